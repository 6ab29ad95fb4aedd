"""What can go wrong, as the user sees it.

    TcError
    ├── UserError              the request itself is wrong: a bad argument, file or shape      exit code 1
    │   ├── ParseError         text that is not our IR
    │   ├── ModelError         a model file that is damaged, inconsistent or unsafe
    │   │   ├── NodeError      a node that is not what its operator requires
    │   │   └── ModuleFileError    a compiled module's file that is damaged, or none
    │   ├── ShapeError         shapes, ranks or dtypes that do not fit
    │   ├── InputError         an array given to a compiled module breaks its signature
    │   ├── TargetError        a target that there is not, or that is not here
    │   ├── DatabaseError      a tuning database, or a record of one, that cannot be used
    │   ├── TuningError        a search that was asked for and cannot be done
    │   ├── QuantizationError  a quantization that was asked for and cannot be done
    │   ├── CalibrationError   a precision, or inputs given to choose it by, that are no good
    │   └── UsageError         a command line that cannot be obeyed
    ├── UnsupportedError       valid, but not something tc can do (yet)                        exit code 2
    ├── VerifyError            IR that is not well formed, or a kernel that does not keep its meaning    exit code 3
    ├── ScheduleError          a schedule step that is not legal here
    ├── LoweringError          no loops for this graph
    ├── CodegenError           no machine code for these loops
    ├── DeviceError            a device that cannot be reached, or failed
    ├── MeasureError           a candidate that could not be built, run or timed
    ├── CheckError             a result differs from the reference                             exit code 3
    ├── InternalError          tc itself failed, and where a reproducer of that lies          exit code 5
    └── LimitError             a size, time or memory bound was reached                        exit code 4

Each class has a code, and raise sites give those that say more: `error_codes.py` is the table, `tc explain CODE` prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tc.error_codes import explain_code


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
        source = self.source if self.source.isprintable() and len(self.source) <= _LONGEST_NAME else _plain(self.source)
        return source if not self.line else f"{source}:{self.line}:{self.column}"


_LONGEST_NAME, _LONGEST_LINE, _LONGEST_MESSAGE = 1000, 160, 10_000


def _plain(text: str) -> str:
    """A name of a file as it may stand on a terminal: neither control characters nor millions of letters."""
    shown = text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}..."
    return shown if shown.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)


class TcError(Exception):
    """Base of every error that `tc` raises on purpose.

    `span`: which piece of the user's program it is about. `code`: what kind of thing went wrong (`tc explain CODE`); that of the class
    if none is given. `supported`: what would have been possible there; `hint`: what to do. Both are part of the text.
    """

    exit_code = 1
    default_code = "TC3090"

    def __init__(
        self, message: str, span: Span | None = None, *, code: str | None = None, supported: str = "", hint: str = ""
    ) -> None:
        super().__init__(message)
        self.said = message
        self.span = span
        self.code = self.default_code if code is None else code
        self.supported = supported
        self.hint = hint

    @property
    def message(self) -> str:
        """What went wrong, what is supported and what to do, without the place and the code."""
        supported = f"; supported: {self.supported}" if self.supported else ""
        hint = f"; {self.hint}" if self.hint else ""
        said = self.said
        if len(said) > _LONGEST_MESSAGE and not isinstance(self, VerifyError):  # which shows the program
            said = f"{said[: _LONGEST_MESSAGE // 2]} ... {said[-_LONGEST_MESSAGE // 4 :]}"
        return f"{said}{supported}{hint}"

    @property
    def text(self) -> str:
        """The message behind its place: for messages that are made of others, whose codes would be in the way."""
        return self.message if self.span is None else f"{self.span}: {self.message}"

    @property
    def node(self) -> str:
        """The node of the model, or the place in a file, that it is about; empty when unknown."""
        return "" if self.span is None else str(self.span)

    @property
    def miss(self) -> str:
        """Which of operator, opset, dtype, attribute, rank ... is not supported; empty for errors that are not about that."""
        return explain_code(self.code).miss

    def with_end(self, end: str) -> str:
        """The text with an end, and below it the line that it is about."""
        if self.span is None or not self.span.text:
            return self.text + end
        first = 0 if len(self.span.text) <= _LONGEST_LINE else max(self.span.column - 1 - _LONGEST_LINE // 2, 0)
        marker = " " * max(self.span.column - 1 - first, 0) + "^"
        return f"{self.text}{end}\n    {self.span.text[first : first + _LONGEST_LINE]}\n    {marker}"

    def __str__(self) -> str:
        return self.with_end(f" [{self.code}]")

    def facts(self) -> dict[str, object]:
        """What is known of it, by name: for programs. What is not known is left out."""
        found = {"code": self.code, "node": self.node, "miss": self.miss, "supported": self.supported, "hint": self.hint}
        return {name: value for name, value in found.items() if value}


class UserError(TcError):
    """The request itself is wrong."""

    default_code = "TC3000"


class ParseError(UserError):
    """Text that is not our IR."""

    default_code = "TC4000"


class ModelError(UserError):
    """A model file that is damaged, inconsistent or unsafe."""

    default_code = "TC1000"


class NodeError(ModelError):
    """A node of a model that is not what its operator requires. `ends_runs`: it is valid, and no run gets past it."""

    default_code = "TC1040"
    ends_runs = False


class ModuleFileError(ModelError):
    """A compiled module's file that is damaged, of another version, or none."""

    default_code = "TC4010"


class ShapeError(UserError):
    """Shapes, ranks or dtypes that do not fit an operator."""

    default_code = "TC1050"


class InputError(UserError):
    """An array given to a compiled module breaks the module's signature."""

    default_code = "TC2000"


class TargetError(UserError):
    """A target that there is not, or that cannot be used from here."""

    default_code = "TC3010"


class DatabaseError(UserError):
    """A tuning database, or a record of one, that cannot be read or written."""

    default_code = "TC4020"


class TuningError(UserError):
    """A search for schedules that was asked for and cannot be done."""

    default_code = "TC4030"


class QuantizationError(UserError):
    """A quantization that was asked for and cannot be done."""

    default_code = "TC5000"


class CalibrationError(UserError):
    """A precision, or the inputs that it is to be chosen by, that cannot be used."""

    default_code = "TC5010"


class UsageError(UserError):
    """A command line that cannot be read, or asks for what cannot be done."""

    default_code = "TC6000"


class UnsupportedError(TcError):
    """Valid, but not something `tc` can do. Of a node: its operator, domain ("" is ONNX's own) and opset (0 when it is not about one)."""

    exit_code = 2
    default_code = "TC3001"
    operator = domain = ""
    opset = 0

    def of_node(self, operator: str, domain: str, opset: int) -> UnsupportedError:
        """The same error, about a node with this operator."""
        self.operator, self.domain, self.opset = operator, domain, opset
        return self

    def facts(self) -> dict[str, object]:
        about = {"operator": self.operator, "domain": self.domain or "ai.onnx", "opset": self.opset} if self.operator else {}
        return {**super().facts(), **about}


class VerifyError(TcError):
    """IR that is not well formed, or a compiled kernel that does not compute what the IR means."""

    exit_code = 3
    default_code = "TC3020"


class ScheduleError(TcError):
    """A schedule step that is not legal where it was asked for."""

    default_code = "TC3030"


class LoweringError(TcError):
    """A graph for which no loops can be made."""

    default_code = "TC3040"


class CodegenError(TcError):
    """Loops for which no target code can be made."""

    default_code = "TC3050"


class DeviceError(TcError):
    """A device that is not there, cannot be reached from here, or failed at what it was given."""

    default_code = "TC3060"


class MeasureError(TcError):
    """A candidate that could not be built, run or timed."""

    default_code = "TC4040"


class CheckError(TcError):
    """A result differs from the reference by more than the stated bound."""

    exit_code = 3
    default_code = "TC6010"


class InternalError(TcError):
    """`tc` itself failed. `reproducer`: the folder in which what it failed at lies, or None; `tc reproduce` does that again."""

    exit_code = 5
    default_code = "TC3900"
    reproducer: str | None = None

    def facts(self) -> dict[str, object]:
        return super().facts() if self.reproducer is None else {**super().facts(), "reproducer": self.reproducer}


class LimitError(TcError):
    """A bound on size, time or memory was reached."""

    exit_code = 4
    default_code = "TC2090"


class _Located:
    """See `located`. A class: entered for each operator of a model by whatever builds calls, it takes a third of what a generator does."""

    __slots__ = ("_span",)

    def __init__(self, span: Span | None) -> None:
        self._span = span

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TcError) and error.span is None:
            error.span = self._span


def located(span: Span | None) -> _Located:
    """Give a `TcError` that passes through, and has no span yet, this one."""
    return _Located(span)


@dataclass(frozen=True)
class Activity:
    """What `tc` was doing when an error came out of it: a step by name, the program that it was at, and what does the step on another
    program of that kind."""

    step: str
    program: object
    again: Callable[[Any], object] | None = None


@contextmanager
def working_on(step: str, program: object, again: Callable[[Any], object] | None = None) -> Iterator[None]:
    """Note on whatever error passes through what was being done, for `activities_of`."""
    try:
        yield
    except Exception as error:
        note_activity(error, Activity(step, program, again))
        raise


def note_activity(error: Exception, work: Activity) -> None:
    """Say of an error what was being done when it came, around what has been said before."""
    error.__dict__["tc_activities"] = (*activities_of(error), work)


def activities_of(error: BaseException) -> tuple[Activity, ...]:
    """What was being done when an error came, innermost first."""
    found: tuple[Activity, ...] = error.__dict__.get("tc_activities", ())
    return found


def check_word(name: str, given: object, known: tuple[str, ...]) -> None:
    """UserError for an option that is none of the words it may be."""
    if not isinstance(given, str) or given not in known:
        raise UserError(f"{name} is {given!r}; it must be {', '.join(map(repr, known[:-1]))} or {known[-1]!r}")


def checked_names(what: str, given: object) -> tuple[str, ...]:
    """Names that an option lists, sorted, each once. UserError for what is none."""
    if isinstance(given, str) or not isinstance(given, Collection) or not all(isinstance(each, str) for each in given):
        raise UserError(f"{what} is {given!r}; it must be a list of names")
    return tuple(sorted(set(given)))


def check_kind(what: str, given: object, kind: type) -> None:
    """UserError for an option that is no instance of its class."""
    if not isinstance(given, kind):
        raise UserError(f"{what} is {given!r}; it must be a {kind.__module__}.{kind.__qualname__}")
