"""What can go wrong, as the user sees it.

    TcError
    ├── UserError              the request itself is wrong: a bad argument, file or shape      exit code 1
    │   ├── ParseError         text that is not our IR
    │   ├── ModelError         a model file that is damaged, inconsistent or unsafe
    │   ├── ShapeError         shapes, ranks or dtypes that do not fit
    │   └── InputError         an array given to a compiled module breaks its signature
    ├── UnsupportedError       valid, but not something tc can do (yet)                        exit code 2
    ├── VerifyError            IR that is not well formed, or a kernel that does not keep its meaning    exit code 3
    ├── ScheduleError          a schedule step that is not legal here
    ├── LoweringError          no loops for this graph
    ├── CodegenError           no machine code for these loops
    ├── DeviceError            a device that cannot be reached, or failed
    ├── MeasureError           a candidate that could not be built, run or timed
    ├── CheckError             a result differs from the reference                             exit code 3
    └── LimitError             a size, time or memory bound was reached                        exit code 4
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Span:
    """Where a piece of IR comes from: a file position, or the name of a model's node.

    `line` and `column` count from 1; 0 means unknown. `text` is the source line when known. `replaced`: the nodes that the piece
    takes the place of, if they are several.
    """

    source: str
    line: int = 0
    column: int = 0
    text: str = ""
    replaced: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that the piece computes."""
        return self.replaced or (str(self),)

    def in_place_of(self, nodes: Iterable[str]) -> Span:
        """The same place, for a piece that computes these nodes, too: they stand before its own."""
        found = tuple(dict.fromkeys((*nodes, *self.nodes)))
        return self if found == self.nodes else replace(self, replaced=found)

    def __str__(self) -> str:
        if not self.line:
            return self.source
        return f"{self.source}:{self.line}:{self.column}"


class TcError(Exception):
    """Base of every error that `tc` raises on purpose. `span` says which piece of the user's program it is about."""

    exit_code = 1

    def __init__(self, message: str, span: Span | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.span = span

    def __str__(self) -> str:
        if self.span is None:
            return self.message
        where = f"{self.span}: {self.message}"
        if not self.span.text:
            return where
        marker = " " * max(self.span.column - 1, 0) + "^"
        return f"{where}\n    {self.span.text}\n    {marker}"


class UserError(TcError):
    """The request itself is wrong."""


class ParseError(UserError):
    """Text that is not our IR."""


class ModelError(UserError):
    """A model file that is damaged, inconsistent or unsafe."""


class ShapeError(UserError):
    """Shapes, ranks or dtypes that do not fit an operator."""


class InputError(UserError):
    """An array given to a compiled module breaks the module's signature."""


class UnsupportedError(TcError):
    """Valid, but not something `tc` can do."""

    exit_code = 2


class VerifyError(TcError):
    """IR that is not well formed, or a compiled kernel that does not compute what the IR means."""

    exit_code = 3


class ScheduleError(TcError):
    """A schedule step that is not legal where it was asked for."""


class LoweringError(TcError):
    """A graph for which no loops can be made."""


class CodegenError(TcError):
    """Loops for which no target code can be made."""


class DeviceError(TcError):
    """A device that is not there, cannot be reached from here, or failed at what it was given."""


class MeasureError(TcError):
    """A candidate that could not be built, run or timed."""


class CheckError(TcError):
    """A result differs from the reference by more than the stated bound."""

    exit_code = 3


class LimitError(TcError):
    """A bound on size, time or memory was reached."""

    exit_code = 4


@contextmanager
def located(span: Span | None) -> Iterator[None]:
    """Give a `TcError` that passes through, and has no span yet, this one."""
    try:
        yield
    except TcError as error:
        if error.span is None:
            error.span = span
        raise


def check_word(name: str, given: object, known: tuple[str, ...]) -> None:
    """UserError for an option that is none of the words it may be."""
    if not isinstance(given, str) or given not in known:
        raise UserError(f"{name} is {given!r}; it must be {', '.join(map(repr, known[:-1]))} or {known[-1]!r}")
