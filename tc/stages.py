"""Look at a model at any stage of compilation, without running it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from tc.codegen.backend import ExportedProgram, Language
from tc.codegen.backends import language_names, language_of
from tc.compiler import check_words, run_stages
from tc.errors import InputError, UserError
from tc.frontend.dims import Dim, checked_dims
from tc.frontend.imported import Imported
from tc.frontend.registry import Model, import_model
from tc.interp import run_named
from tc.interp.widen import widen_array, widen_floats
from tc.ir.loop import PrimFunc
from tc.ir.plan import Launch, PlanStep, all_steps
from tc.ir.print_plan import print_plan
from tc.ir.printer import print_ir
from tc.runtime.host_work import HostWork, host_work
from tc.target import Target

IR_STAGES = ("graph", "loops", "scheduled", "final", "plan")
"""Stages that are the same for all targets; the others are the languages of a target's kernels."""


def known_stages() -> tuple[str, ...]:
    """Every stage that there is for some target."""
    return IR_STAGES + language_names()


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
        names = {kernel: f"{stem}{self.suffix}" for kernel, stem in _stems(self.kernels).items()}
        program = None if self.program is None else self.program()
        found: dict[str, str | bytes] = {names[kernel]: make() for kernel, make in self.kernels.items()}
        found["plan.txt"] = self.plan()
        if self.build is not None:
            lines = ["#!/bin/sh", "set -e", 'cd "$(dirname "$0")"', *(self.build(name) for name in names.values())]
            if program is not None:
                found |= program.files
                lines += [f"KERNELS='{' '.join(Path(name).stem + '.o' for name in names.values())}'", *program.build]
            found["build.sh"] = "\n".join(lines) + "\n"
        return found


def lower(
    model: Model,
    stage: str = "graph",
    target: str | Target = "native",
    dims: Mapping[str, Dim | int] | None = None,
    numerics: str = "default",
    on_unsupported: str = "fallback",
) -> Lowered:
    """A model at a stage of compilation.

    "graph": after graph passes and fusion. "loops": each kernel before scheduling. "scheduled": after its schedule, with blocks.
    "final": the loops that code generation takes. "plan": what the host does with the kernels. Else a language in which kernels of the
    target are written; "llvm", "asm": optimized LLVM IR, assembly, of a CPU. No device needs to be there. The other arguments are those
    of `tc.compile`.
    """
    if not isinstance(stage, str) or stage not in known_stages():
        raise UserError(f"no stage {stage!r}; there are: {', '.join(known_stages())}")
    chosen = Target.of(target)
    check_words(numerics, on_unsupported)
    language = None if stage in IR_STAGES else language_of(stage, chosen)
    stages = run_stages(model, chosen, checked_dims(dims), on_unsupported, numerics)
    if stage == "graph":
        return Lowered(stage, lambda: print_ir(stages.graph), {})
    if stage == "plan":
        return Lowered(stage, lambda: print_plan(stages.plan), {})
    plan = partial(print_plan, stages.plan)
    if language is None:
        of_stage = {"loops": "lowered", "scheduled": "scheduled", "final": "final"}[stage]
        texts = {name: partial(print_ir, getattr(kernel, of_stage)) for name, kernel in stages.kernels.items()}
        return Lowered(stage, partial(_joined, texts), texts, plan)
    symbols = {name: f"tc_{stem}" for name, stem in _stems(stages.kernels).items()}
    notes = _notes(stages.plan.steps, language.comment)
    texts = {
        name: partial(_written, notes.get(name, ""), language, kernel.final, symbols[name], chosen)
        for name, kernel in stages.kernels.items()
    }
    program = None
    if language.program is not None:
        program = partial(language.program, stages.plan, {n: (symbols[n], kernel.final) for n, kernel in stages.kernels.items()})
    return Lowered(stage, partial(_joined, texts), texts, plan, language.suffix, lambda file: language.build(file, chosen), program)


def _written(note: str, language: Language, func: PrimFunc, symbol: str, target: Target) -> str:
    """A kernel in a language, below a note."""
    return note + language.write(func, symbol, target)


def _notes(steps: Sequence[PlanStep], comment: str) -> dict[str, str]:
    """Which of the model's nodes each kernel computes, as a comment."""
    found: dict[str, dict[str, None]] = {}
    for step in all_steps(steps) if comment else ():
        if isinstance(step, Launch) and step.span is not None:
            found.setdefault(step.kernel, {})[str(step.span)] = None
    return {name: comment.format(_in_comment("; ".join(spans))) + "\n" for name, spans in found.items()}


def _in_comment(text: str) -> str:
    """Text of a model, which may be anything, as a part of a comment in any language: one line, nothing that ends or begins a comment."""
    return "".join(c if c.isprintable() else " " for c in text).replace("*/", "* /").replace("/*", "/ *").rstrip("\\")


def _joined(texts: Mapping[str, Callable[[], str]]) -> str:
    return "\n\n".join(make() for make in texts.values()) + "\n"


def _stems(names: Iterable[str]) -> dict[str, str]:
    """What files and functions are called after kernels: an identifier of its own for each, whatever a user called it."""
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)[:_LONGEST_STEM] or "kernel"
        taken = {*_NOT_KERNELS, *(stem.lower() for stem in found.values())}
        candidates = (plain if number == 0 else f"{plain}_{number}" for number in count())
        found[name] = next(stem for stem in candidates if stem.lower() not in taken)
    return found


_LONGEST_STEM = 100
_NOT_KERNELS = ("model", "runtime", "main")
"""Files of a program that is written around the kernels."""


def on_host(model: Model, target: str | Target, dims: Mapping[str, Dim | int] | None = None) -> tuple[HostWork, ...]:
    """What stays with the host when a model is compiled for a device, which need not be there. UserError for a target without one."""
    chosen = Target.of(target)
    if chosen.device is None:
        raise UserError(f"target: '{target}' has no device, all of a model runs on the host")
    stages = run_stages(model, chosen, checked_dims(dims))
    return host_work(stages.plan, {name: kernel.scheduled for name, kernel in stages.kernels.items()})


def interpret(model: Model, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a model on the reference interpreter: slow, and the meaning that compiled code is checked against."""
    imported = _checked_import(model, inputs)
    return run_named(imported.module, inputs, imported.requirements)


def interpret_in_f64(model: Model, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`interpret` with every float of the model in double precision: what it would compute if nothing were rounded to fewer bits."""
    imported = _checked_import(model, inputs)
    wide = {name: widen_array(np.asarray(array)) for name, array in inputs.items()}
    return run_named(widen_floats(imported.module), wide, imported.requirements)


def _checked_import(model: Model, inputs: Mapping[str, np.ndarray]) -> Imported:
    """The model; InputError when the inputs are not exactly its own."""
    if not isinstance(inputs, Mapping):
        raise InputError(f"the inputs are a {type(inputs).__name__}, must map names to arrays")
    imported = import_model(model, assume_equal=False)
    names = [param.name for param in imported.module.main.params]
    for name in names:
        if name not in inputs:
            raise InputError(f'input "{name}" is missing; the inputs are: {", ".join(names)}')
    for name in inputs:
        if name not in names:
            raise InputError(f'there is no input "{name}"; the inputs are: {", ".join(names)}')
    return imported
