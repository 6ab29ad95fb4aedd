"""Tuning records: what one trial, or one decision about a node, has left, as values and as lines of text.

A line is a JSON object whose first member is a checksum of all that follows, so an edited or damaged line is known. Lines
come from files that anybody may have written: nothing in them is executed, every field is checked for its type and size, and text that
people get to see holds no control characters.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, NoReturn

import numpy as np

from tc.errors import DatabaseError, ScheduleError
from tc.schedule.knobs import Value
from tc.schedule.step import LANGUAGE_VERSION, Trace
from tc.target import Target
from tc.target.machine import machine_fingerprint
from tc.version import __version__

LINE_LIMIT_BYTES = 1 << 20
"""No line is longer."""
WRONG = "wrong"
"""The `error` of a record whose kernel ran and gave wrong results."""
SCHEDULE = "schedule"
"""The `pass_name` of a choice of a workload's schedule, made by measuring the model that it is in; its `value` is a schedule key."""
DEFAULT = "default"
"""The `value` of a choice for what is compiled untuned: the rules' own schedule of a kernel, a pass's own answer."""

_TASK_LIMIT = 512
_DETAIL_LIMIT = 4096
_PAIRS_LIMIT = 512
_VALUE_DEPTH = 4
_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|\+00:00)", re.ASCII)
_CORES = re.compile(r"[:,]cores=1\b")
_SUM = re.compile(rb'\{"sum":"([0-9a-f]{16})",')


def utc_now() -> str:
    """The time as records hold it: `2026-05-17T09:30:00Z`."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def target_key(target: Target | str) -> str:
    """The facts of a target that a record holds for: the key of a device where there is one, else all but the number of cores. Text is
    taken to be such a key already."""
    if isinstance(target, str):
        return target
    return _CORES.sub("", str(replace(target, cores=1)), count=1) if target.device is None else target.device.key


def threads_of(target: Target) -> int:
    """The `threads` of records for a target: its cores; 1 for a device, where the host's cores play no part."""
    return target.cores if target.device is None else 1


def place_of(target: Target) -> dict[str, Any]:
    """The fields of a record or a choice that say for which machine it is."""
    return {"target": target_key(target), "threads": threads_of(target), "rates": machine_fingerprint(target)}


@dataclass(frozen=True, kw_only=True)
class Record:
    """One trial: a schedule of a workload, and how fast it was, or why it failed.

    `workload` is the key of a program, on which, with canonical names, `trace` (JSON of a Trace) replays; `variant` is the program's
    name among the ways to compute the same. `point`: the answers that `rule` was given. `dims`: the sizes of the program's symbolic
    dims when it was measured, by name. `target` is a `target_key`. `seconds` is the median, `low` and `high` its quartiles, `ratio`
    the time over that of the default schedule, taken in turns; all four are infinite when `error`, the kind of failure, is not None.
    `rates`: the fingerprint of the rates by which the default schedule was chosen; "" in records of versions that knew none.
    `verified`: its results were compared with the reference, and it was measured again beside the best.
    """

    workload: str
    target: str
    threads: int
    trace: str
    seconds: float = math.inf
    low: float = math.inf
    high: float = math.inf
    ratio: float = math.inf
    error: str | None = None
    detail: str = ""
    verified: bool = False
    variant: str = ""
    task: str = ""
    rule: str = ""
    point: tuple[tuple[str, Value], ...] = ()
    dims: tuple[tuple[str, int], ...] = ()
    trial: int = 0
    language: int = LANGUAGE_VERSION
    rates: str = ""
    created: str = field(default_factory=utc_now)
    version: str = __version__

    @property
    def schedule_key(self) -> str:
        """16 hex digits that are equal for the same schedule of the same variant."""
        return hashlib.blake2b(f"{self.variant}\n{self.trace}".encode(), digest_size=8).hexdigest()

    def parse_trace(self) -> Trace:
        """The schedule; ScheduleError when the text is none of this schedule language."""
        try:
            return Trace.from_json(self.trace)
        except RecursionError:
            raise ScheduleError("not a schedule trace: nested too deeply") from None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A decision made by measuring whole alternatives. It is about one of two things:

        a knob of a graph pass     `pass_name` is the knob's name, `key` its key, `value` one of its options (which Winograd tile)
        a kernel inside its model  `pass_name` is SCHEDULE, `key` the kernel's workload, `value` the key of a schedule that has a record

    Either `value` may be DEFAULT: what is compiled untuned, now and after an update. `seconds`: the time of every option tried, infinite
    for one that failed. `rates`: as in a record. Of several choices about one thing the last one written holds.
    """

    pass_name: str
    key: str
    target: str
    threads: int
    value: Value
    seconds: tuple[tuple[Value, float], ...] = ()
    rates: str = ""
    created: str = field(default_factory=utc_now)
    version: str = __version__


class DamagedLine(ValueError):
    """A line that is no record; the message says why."""


def encode(entry: Record | Choice) -> bytes:
    """The line of `entry`, with its end. Overlong or unprintable `task` and `detail` are put right; UserError for any other bad field."""
    kind = "record" if isinstance(entry, Record) else "choice"
    members = {name: getattr(entry, name) for name in _FIELDS[type(entry)]}
    if isinstance(entry, Record):
        members["task"] = clean_text(entry.task, _TASK_LIMIT)
        members["detail"] = clean_text(entry.detail, _DETAIL_LIMIT, multiline=True)
    try:
        members = _checked(type(entry), members)
    except DamagedLine as error:
        raise DatabaseError(f"this {kind} cannot be kept: {error}") from None
    text = json.dumps({kind: {name: _to_json(value) for name, value in members.items()}}, separators=(",", ":"), allow_nan=False)
    body = text[1:].encode()
    line = b'{"sum":"%s",%s\n' % (_checksum(body), body)
    if len(line) > LINE_LIMIT_BYTES:
        raise DatabaseError(f"this {kind} cannot be kept: it takes {len(line)} bytes, {LINE_LIMIT_BYTES} are allowed")
    return line


def decode(line: bytes) -> Record | Choice:
    """What `encode` made this line from; DamagedLine when it was not, or was changed since."""
    if len(line) > LINE_LIMIT_BYTES:
        raise DamagedLine(f"it has more than {LINE_LIMIT_BYTES} bytes")
    line = line.rstrip(b"\r\n")
    verify_checksum(line)
    try:
        data = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedLine(f"it is not JSON: {error}") from None
    match data:
        case {"sum": str(), "record": dict(members), **others} if not others:
            return Record(**_checked(Record, members))
        case {"sum": str(), "choice": dict(members), **others} if not others:
            return Choice(**_checked(Choice, members))
    raise DamagedLine("it holds neither a record nor a choice")


def verify_checksum(line: bytes) -> None:
    """DamagedLine unless `line`, without its end, is as it was written."""
    matched = _SUM.match(line)
    if matched is None:
        raise DamagedLine("it has no checksum, so it is not a line that tc has written")
    if _checksum(line[matched.end() :]) != matched[1]:
        raise DamagedLine("its checksum does not match: it was edited or damaged" if line.endswith(b"}}") else "it is cut off")


def clean_text(text: str, limit: int, *, multiline: bool = False) -> str:
    """`text` with what a terminal could take for a command replaced by �, at most `limit` characters of it."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    kept = "\n\t" if multiline else ""
    return "".join(c if c.isprintable() or c in kept else " " if c in "\n\t" else "�" for c in text)


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).hexdigest().encode()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _to_json(value: Any) -> Any:
    """`value` with infinities as None."""
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value


# What a field may hold. Each function takes a value from JSON, or from the program, gives it the form that it has in memory, and raises
# DamagedLine, whose message goes on after the field's name.


def _text(limit: int, *, empty: bool = False, multiline: bool = False) -> Callable[[Any], str]:
    def check(text: Any) -> str:
        if not isinstance(text, str):
            raise DamagedLine(f"is {_shown(text)}, not text")
        if len(text) > limit:
            raise DamagedLine(f"has {len(text)} characters, {limit} are allowed")
        if not text and not empty:
            raise DamagedLine("is empty")
        if not text.isprintable() and not (multiline and re.sub(r"[\n\t]", "", text).isprintable()):
            raise DamagedLine("holds characters that are not printable")
        return sys.intern(text) if len(text) < 1024 else text  # a file says the same thousands of times

    return check


def _count(low: int, high: int = 1 << 53) -> Callable[[Any], int]:
    def check(number: Any) -> int:
        if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or not low <= number < high:
            raise DamagedLine(f"is {_shown(number)}, not a whole number from {low} to {high - 1}")
        return int(number)

    return check


def _flag(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise DamagedLine(f"is {_shown(value)}, not true or false")
    return bool(value)


def _time(value: Any) -> float:
    """A time or a ratio; None in JSON is infinity, that of a failure."""
    if value is None:
        return math.inf
    if not isinstance(value, (int, float, np.floating)) or isinstance(value, bool) or not 0 < value:
        raise DamagedLine(f"is {_shown(value)}, not a time or a ratio above 0")
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf


def _created(text: Any) -> str:
    if not isinstance(text, str) or not _CREATED.fullmatch(text):
        raise DamagedLine(f"is {_shown(text)}, not a time such as 2026-05-17T09:30:00Z")
    return text


def _error(text: Any) -> str | None:
    return None if text is None else _KIND(text)


def _value(value: Any, depth: int = 0) -> Value:
    """An answer of a knob, lists as tuples."""
    kind = type(value)
    if (kind is int and -(1 << 63) <= value < 1 << 63) or kind is bool or (kind is str and len(value) <= 256 and value.isprintable()):
        return value  # type: ignore[no-any-return]
    if kind in (list, tuple) and depth < _VALUE_DEPTH and len(value) <= 64:
        return tuple([_value(item, depth + 1) for item in value])
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    raise DamagedLine(f"holds {_shown(value)}, which is no value of a knob")


def _pairs(first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Callable[[Any], tuple]:
    def check(pairs: Any) -> tuple:
        if type(pairs) not in (list, tuple) or len(pairs) > _PAIRS_LIMIT:
            raise DamagedLine(f"is {_shown(pairs)}, not a list of at most {_PAIRS_LIMIT} pairs")
        found = []
        for pair in pairs:
            if type(pair) not in (list, tuple) or len(pair) != 2:
                raise DamagedLine(f"holds {_shown(pair)}, which is no pair")
            found.append((first(pair[0]), second(pair[1])))
        return tuple(found)

    return check


_KEY = _text(128)
_KIND = _text(128)
_WHEN: dict[str, Callable[[Any], Any]] = {"created": _created, "version": _text(64), "rates": _text(64, empty=True)}
_WHERE: dict[str, Callable[[Any], Any]] = {"target": _text(8192), "threads": _count(1, 1 << 16)}
_FIELDS: dict[type, dict[str, Callable[[Any], Any]]] = {
    Record: {
        "workload": _KEY,
        **_WHERE,
        "task": _text(_TASK_LIMIT, empty=True),
        "variant": _text(128, empty=True),
        "rule": _text(128, empty=True),
        "trial": _count(0),
        **dict.fromkeys(("seconds", "low", "high", "ratio"), _time),
        "error": _error,
        "detail": _text(_DETAIL_LIMIT, empty=True, multiline=True),
        "verified": _flag,
        "point": _pairs(_text(256), _value),
        "dims": _pairs(_text(256), _count(0)),
        "trace": _text(1 << 19),
        "language": _count(1),
        **_WHEN,
    },
    Choice: {"pass_name": _KEY, "key": _KEY, **_WHERE, "value": _value, "seconds": _pairs(_value, _time), **_WHEN},
}
"""The fields of a line, in their order there, and what each may hold."""


def _checked(kind: type, members: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record or a choice as they are in memory; DamagedLine when one is missing, unknown or not what it must be."""
    checks = _FIELDS[kind]
    members = {"rates": "", **({"dims": ()} if kind is Record else {}), **members}  # older lines do not have them
    if members.keys() != checks.keys():
        missing, unknown = sorted(checks.keys() - members.keys()), sorted(members.keys() - checks.keys())
        raise DamagedLine(f"'{missing[0]}' is missing" if missing else f"{_shown(unknown[0])} is no field of it")
    found = {}
    for name, check in checks.items():
        try:
            found[name] = check(members[name])
        except DamagedLine as error:
            raise DamagedLine(f"'{name}' {error}") from None
    if kind is Record:
        failed = found["error"] is not None
        for name in ("seconds", "low", "high", "ratio"):
            if math.isinf(found[name]) != failed:
                raise DamagedLine(f"'{name}' is {found[name]}, but 'error' is {found['error']}")
        if failed and found["verified"]:
            raise DamagedLine("'verified' is true, but 'error' is not null")
    return found


def _shown(value: object) -> str:
    try:
        return clean_text(repr(value), 60)
    except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits
        return f"some {type(value).__name__}"
