"""Kernels of a program as text to keep, to read and to build elsewhere: files for each, what the host does with them, how to build them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path

from tc.codegen.backend import ExportedProgram, Language
from tc.codegen.backends import language_of, usual_language
from tc.errors import UserError
from tc.ir.loop import PrimFunc
from tc.ir.print_plan import print_plan
from tc.passes.lower import nodes_by_result
from tc.runtime.builder import Stages
from tc.runtime.report import nodes_by_call
from tc.target import Target


@dataclass(frozen=True)
class Lowered:
    """A model at one stage. `as_text()` prints all of it, `as_text(kernel=name)` one kernel; `files()` are files to keep."""

    stage: str
    whole: Callable[[], str]
    kernels: Mapping[str, Callable[[], str]]
    plan: Callable[[], str] = str
    suffix: str = ".tc"
    build: Callable[[str], str] | None = None
    program: Callable[[], ExportedProgram] | None = None

    def as_text(self, kernel: str | None = None) -> str:
        """UserError for a kernel that does not exist, or a stage that has no kernels."""
        if kernel is None:
            return self.whole()
        if not isinstance(kernel, str) or kernel not in self.kernels:
            raise UserError(f"no kernel {kernel!r}; there are: {', '.join(self.kernels) or 'none at this stage'}")
        return self.kernels[kernel]()

    def files(self) -> dict[str, str | bytes]:
        """Names of files and their texts: each kernel; what the host does with them ("plan.txt"); for a language, how to compile them
        ("build.sh"). For a language that has all of a program, a program. UserError for a stage that has no kernels."""
        if self.stage in ("graph", "plan"):
            raise UserError(f"the stage {self.stage!r} is one text, not a file for each kernel")
        names = {kernel: f"{stem}{self.suffix}" for kernel, stem in file_stems(self.kernels).items()}
        program = None if self.program is None else self.program()
        found: dict[str, str | bytes] = {names[kernel]: make() for kernel, make in self.kernels.items()}
        found["plan.txt"] = _PLAN_HEAD + self.plan()
        if self.build is not None:
            found |= {} if program is None else program.files
            found["build.sh"] = _build_script(self.build("$kernel" + self.suffix), [Path(name).stem for name in names.values()], program)
        return found


def _build_script(command: str, kernels: Sequence[str], program: ExportedProgram | None) -> str:
    """A shell script that compiles each kernel by a command for $kernel, and builds what is around them."""
    listed = textwrap.fill(" ".join(kernels), 120, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    collect = [] if program is None else ['    OBJECTS="$OBJECTS $kernel.o"']
    lines = ["#!/bin/sh", "set -e", 'cd "$(dirname "$0")"', 'KERNELS="', listed, '"', *([] if program is None else ["OBJECTS="])]
    lines += ["for kernel in $KERNELS; do", f"    {command}", *collect, "done", *(() if program is None else program.build)]
    return "\n".join(lines) + "\n"


def kernel_files(make_stages: Callable[[], Stages], language: str | None, target: Target) -> dict[str, str | bytes]:
    """The files of a program's kernels in a language, by default the usual one. UserError, before anything is made, for one that is none
    of the target's."""
    name = usual_language(target) if language is None else language
    language_of(name, target)
    return write_kernels(make_stages(), name, target).files()


def write_kernels(stages: Stages, name: str, target: Target) -> Lowered:
    """The kernels of a program in a language of its target, but for those of the host of a device. UserError for a language that is none
    of the target's."""
    kernels = {key: kernel for key, kernel in stages.kernels.items() if not kernel.on_host}
    language, plan = language_of(name, target), partial(print_plan, stages.plan)
    symbols = {kernel: f"tc_{stem}" for kernel, stem in file_stems(kernels).items()}
    notes = _notes(stages, language.comment)
    texts = {
        key: partial(_written, notes.get(key, ""), language, kernel.final, symbols[key], target)
        for key, kernel in kernels.items()
    }
    program = None
    if language.program is not None:
        program = partial(language.program, stages.plan, {n: (symbols[n], kernel.final) for n, kernel in kernels.items()})
    return Lowered(name, partial(joined, texts), texts, plan, language.suffix, lambda file: language.build(file, target), program)


def _written(note: str, language: Language, func: PrimFunc, symbol: str, target: Target) -> str:
    """A kernel in a language, below a note."""
    return note + language.write(func, symbol, target)


def _notes(stages: Stages, comment: str) -> dict[str, str]:
    """Which of the model's nodes each kernel computes, as a comment."""
    if not comment:
        return {}
    calls = nodes_by_call(stages.lowered, nodes_by_result(stages.graph))
    nodes = {name: "; ".join(dict.fromkeys(chain.from_iterable(of_calls))) for name, of_calls in calls.items()}
    return {name: comment.format(f"computes {_in_comment(text)}") + "\n" for name, text in nodes.items()}


def _in_comment(text: str) -> str:
    """Text of a model, which may be anything, as a part of a comment in any language: one line, nothing that ends or begins a comment."""
    return "".join(c if c.isprintable() else " " for c in text).replace("*/", "* /").replace("/*", "/ *").rstrip("\\")


def joined(texts: Mapping[str, Callable[[], str]]) -> str:
    """Texts, one below the other."""
    return "\n\n".join(make() for make in texts.values()) + "\n"


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """What files and functions are called after kernels: an identifier of its own for each, whatever a user called it."""
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)[:_LONGEST_STEM] or "kernel"
        taken = {*_NOT_KERNELS, *(stem.lower() for stem in found.values())}
        candidates = (plain if number == 0 else f"{plain}_{number}" for number in count())
        found[name] = next(stem for stem in candidates if stem.lower() not in taken)
    return found


_PLAN_HEAD = """\
# What the host does, from above: `kernel(arrays, sizes)` launches the functions of a kernel, tc_KERNEL_0 and so on, or calls the only one,
# tc_KERNEL. Each takes addresses of those of the arrays that it names, then sizes as 64-bit integers.
# A kernel that has no file computes sizes, and runs on the host.
# Arrays: inputs, outputs, constants (the weights), and places in one piece of memory, the arena, by their offset in bytes.
"""
_LONGEST_STEM = 100
_NOT_KERNELS = ("model", "runtime", "main")
"""Files of a program that is written around the kernels."""
