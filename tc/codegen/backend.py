"""What a kind of target is to the compiler: one record, found by `Target.kind`.

Everything above code generation asks the record and knows no kind by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tc.codegen.device import Device
from tc.errors import UnsupportedError
from tc.ir.loop import PrimFunc
from tc.ir.plan import ExecutionPlan
from tc.passes.manager import PassCall
from tc.target import Target


class Loaded(Protocol):
    """Code in the process. `device`: where its kernels run and keep their values; None for the process itself."""

    @property
    def device(self) -> Device | None: ...

    def address(self, name: str) -> int:
        """Where a symbol is; CodegenError when there is none of that name."""


@dataclass(frozen=True)
class ExportedProgram:
    """The files of a program around its kernels, and the shell commands that build it when its kernels have been built to $OBJECTS."""

    files: Mapping[str, str | bytes]
    build: tuple[str, ...]


@dataclass(frozen=True)
class Language:
    """Kernels of a target as text to keep, to read and to build elsewhere.

    `suffix`: of the files. `write`: the text of a kernel (finished loops) whose functions' names begin with a name. `build`: the shell
    command that compiles a file of such text, whose name may hold a variable of the shell, for the target. `program`: files and shell
    commands for all that is around the kernels of a plan, whose symbols and finished loops are given by name; None for a language of
    kernels alone. `comment`: how one is written.
    """

    suffix: str
    write: Callable[[PrimFunc, str, Target], str]
    build: Callable[[str, Target], str]
    program: Callable[[ExecutionPlan, Mapping[str, tuple[str, PrimFunc]]], ExportedProgram] | None = None
    comment: str = ""


@dataclass(frozen=True)
class Backend:
    """How kernels for one kind of target become code that runs.

    `finish`: the passes from a scheduled PrimFunc to loops that `emit` takes. `emit`: the text of a kernel under a linker symbol.
    `make`: the artifacts (object files, binaries) of texts that define different symbols and do not call each other; the bool says whether
    they are worth optimizing. An artifact depends on nothing but its text and the target. `load`: artifacts, linked, for a target.
    `calls`: how the names of the functions begin by which a program reaches a device and its memory ("<calls>_launch", "_read", "_write",
    "_copy", "_allocate", "_free", "_finish"); "" for a target whose memory is the program's own. `languages`: in which its kernels can be
    written, by name.
    """

    kind: str
    finish: tuple[PassCall, ...]
    emit: Callable[[PrimFunc, str, Target], str]
    make: Callable[[Sequence[str], bool, Target], list[bytes]]
    load: Callable[[Iterable[bytes], Target], Loaded]
    calls: str = ""
    languages: Mapping[str, Language] = field(default_factory=dict)


def find_backend(backends: Iterable[Backend], target: Target) -> Backend:
    """The one for the target's kind; UnsupportedError when there is none."""
    known = {backend.kind: backend for backend in backends}
    if target.kind not in known:
        raise UnsupportedError(f"target: no code is generated for the kind {target.kind!r}; the kinds are: {', '.join(known)}")
    return known[target.kind]
