"""A search for files that lie in new ways: changed copies of known ones are kept where they reach lines of the readers that none has.

Changes are of bytes, of fields of a protocol buffer (with the lengths around them set right again), and of words of a text. What is a
finding (`judge`) is made smaller and written to a folder, once for each kind of error and function.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tc.fuzz.files.corpus import KINDS, FileCase, all_cases
from tc.fuzz.files.judge import TOO_LONG, FileVerdict, judge_file

WATCHED = ("frontend/", "ir/parse", "ir/printer", "ir/verify", "records/", "runtime/saved", "runtime/loading", "ops/registry")
"""The readers, as places below `tc`: lines of other modules do not count."""

NUMBERS = (0, 1, 2, 3, 7, 8, 9, 16, 127, 128, 255, 1 << 15, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1)
WORDS = tuple("0 -1 1 10 9999999999 1e400 nan x n main relu f32 i64 [ ] ( ) , : None True".split())
_LARGEST_BYTES = 1 << 20
_SMALLER_SECONDS = 5.0


class Coverage:
    """Lines of the watched modules that have run while it was on."""

    def __init__(self) -> None:
        self.lines: set[tuple[CodeType, int]] = set()
        root = str(Path(__file__).parents[2]) + "/"
        self._places = tuple(root + place for place in WATCHED)
        self._is_watched: dict[CodeType, bool] = {}

    def __enter__(self) -> Coverage:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        code = frame.f_code
        watched = self._is_watched.get(code)
        if watched is None:
            watched = self._is_watched[code] = code.co_filename.startswith(self._places)
        return self._line if watched else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "line":
            self.lines.add((frame.f_code, frame.f_lineno))
        return self._line


@dataclass
class FileSearch:
    """What a search has come to: how many files of each kind of outcome, the kept ones, findings by what they have in common."""

    outcomes: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    kept: list[FileCase] = field(default_factory=list)
    findings: dict[str, tuple[FileCase, FileVerdict]] = field(default_factory=dict)
    lines: int = 0
    first_lines: int = 0
    seconds: float = 0.0

    @property
    def tried(self) -> int:
        return sum(self.outcomes.values())


def search_files(
    seed: int, count: int, seconds: float | None = None, folder: Path | None = None, kinds: Sequence[str] = KINDS
) -> FileSearch:
    """Judge the corpus, then `count` changed files, or as many as `seconds` allow. Findings go to `folder`, made smaller."""
    found, begin, rng, coverage = FileSearch(), time.monotonic(), random.Random(seed), Coverage()
    with tempfile.TemporaryDirectory(prefix="tc-files-") as place:
        work = Path(place)

        def judge(case: FileCase) -> FileVerdict:
            path = case.write(work)
            if folder is not None:  # what is left here ended the process
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "current").write_bytes(case.data)
            with coverage:
                verdict = judge_file(case.kind, path)
            if verdict.text.startswith(TOO_LONG):  # noting lines takes several times as long as reading
                verdict = judge_file(case.kind, path)
            for name in (*case.beside, *case.links):
                (work / name).unlink(missing_ok=True)
            return verdict

        def take(case: FileCase) -> None:
            before = len(coverage.lines)
            verdict = judge(case)
            found.outcomes[verdict.kind] += 1
            found.codes[verdict.code or verdict.kind] += 1
            if verdict.kind == "finding":
                known = verdict.text.partition(":")[0]
                if known not in found.findings:
                    is_slow = verdict.text.startswith(TOO_LONG)  # to make that smaller would take for ever
                    small = case if is_slow else smaller(case, lambda other: judge(other).text.partition(":")[0] == known)
                    found.findings[known] = small, verdict
                    if folder is not None:
                        _write(folder, len(found.findings), small, verdict)
            elif len(coverage.lines) > before and verdict.seconds < 1:
                found.kept.append(case)

        for case in all_cases():
            if case.kind in kinds:
                take(case)
        found.first_lines = len(coverage.lines)
        for _ in range(count):
            if not found.kept:
                break
            if seconds is not None and time.monotonic() - begin > seconds:
                break
            take(changed(rng, found.kept))
    if folder is not None:
        (folder / "current").unlink(missing_ok=True)
    found.lines, found.seconds = len(coverage.lines), time.monotonic() - begin
    return found


def _write(folder: Path, number: int, case: FileCase, verdict: FileVerdict) -> None:
    case.write(folder / f"finding{number}")
    told = {"kind": case.kind, "from": case.name, "text": verdict.text}
    (folder / f"finding{number}" / "finding.json").write_text(json.dumps(told, indent=1))


def smaller(case: FileCase, same: Callable[[FileCase], bool], seconds: float = _SMALLER_SECONDS) -> FileCase:
    """The file with parts left out, as long as `same` holds: halves, then quarters, and so on."""
    end, size = time.monotonic() + seconds, max(len(case.data) // 2, 1)
    while size and time.monotonic() < end:
        place, cut = 0, False
        while place < len(case.data) and time.monotonic() < end:
            shorter = replace(case, data=case.data[:place] + case.data[place + size :])
            if same(shorter):
                case, cut = shorter, True
            else:
                place += size
        size = size if cut and size > 1 else size // 2
    return case


# -- changes


def changed(rng: random.Random, cases: Sequence[FileCase]) -> FileCase:
    """A copy of a case with one to four changes."""
    case = rng.choice(cases)
    others = [each for each in cases if each.kind == case.kind]
    data = case.data[:_LARGEST_BYTES]
    for _ in range(rng.choice((1, 1, 2, 4))):
        other = rng.choice(others).data[:_LARGEST_BYTES]
        if case.kind == "onnx" and rng.random() < 0.8:
            data = changed_field(rng, data, other)
        elif case.kind in ("ir", "records") and rng.random() < 0.7:
            data = changed_words(rng, data, other)
        else:
            data = changed_bytes(rng, data, other)
    return replace(case, data=data[: 2 * _LARGEST_BYTES])


def changed_bytes(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Bytes replaced, left out, repeated, or taken from another file; numbers of 4 or 8 bytes set."""
    if not data:
        return other
    at, size = rng.randrange(len(data)), rng.choice((1, 1, 2, 4, 8, 32))
    match rng.randrange(6):
        case 0:
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + size :]
        case 2:
            return data[:at] + data[at : at + size] * 2 + data[at + size :]
        case 3:
            start = rng.randrange(len(other) + 1)
            return data[:at] + other[start : start + size] + data[at + size :]
        case 4:
            width = rng.choice((1, 2, 4, 8))
            return data[:at] + (rng.choice(NUMBERS) & (1 << 8 * width) - 1).to_bytes(width, "little") + data[at + width :]
    return data[:at]


def changed_words(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Words and lines replaced, left out, repeated, or taken from another text."""
    text, more = data.decode("utf-8", "replace"), other.decode("utf-8", "replace")
    if rng.random() < 0.3:
        lines, others = text.splitlines(keepends=True) or [""], more.splitlines(keepends=True) or [""]
        at = rng.randrange(len(lines))
        lines[at : at + 1] = rng.choice(([], [lines[at]] * 2, [rng.choice(others)], [lines[at], rng.choice(others)]))
        return "".join(lines).encode()
    words, others = list(_words(text)) or [""], list(_words(more)) or [""]
    at = rng.randrange(len(words))
    words[at] = rng.choice(("", words[at] * 2, rng.choice(others), rng.choice(WORDS)))
    return "".join(words).encode()


def _words(text: str) -> Iterator[str]:
    word = ""
    for letter in text[:20_000]:
        if word and not (letter.isalnum() and word[-1].isalnum()):
            yield word
            word = ""
        word += letter
    yield word


Fields = list[tuple[int, int, Any]]
"""Of a message: number, wire type, content."""


def changed_field(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A field of the message, or of one within it, set, left out, repeated, or taken from another file."""
    fields = parse_fields(data)
    if not fields:
        return changed_bytes(rng, data, other)
    at = rng.randrange(len(fields))
    number, wire, content = fields[at]
    inner = parse_fields(content) if wire == 2 else None
    if inner and rng.random() < 0.85:
        fields[at] = number, wire, changed_field(rng, content, _same_field(rng, other, number))
        return encode_fields(fields)
    match rng.randrange(5):
        case 0:
            del fields[at]
        case 1:
            fields.insert(at, fields[at])
        case 2:
            fields[at] = number, 0, rng.choice(NUMBERS)
        case 3 if wire == 2:
            fields[at] = number, wire, changed_bytes(rng, content, _same_field(rng, other, number))
        case 3:
            fields[at] = number, wire, rng.choice(NUMBERS) if wire == 0 else content
        case _:
            theirs = parse_fields(other)
            if theirs:
                fields[at] = rng.choice(theirs)
    return encode_fields(fields)


def _same_field(rng: random.Random, data: bytes, number: int) -> bytes:
    found = [content for n, wire, content in parse_fields(data) or () if n == number and wire == 2]
    return rng.choice(found) if found else data


def parse_fields(data: bytes) -> Fields | None:
    """The fields of a message; None for bytes that are none."""
    found: Fields = []
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, wire = key >> 3, key & 7
        if place < 0 or not number or wire not in (0, 1, 2, 5):
            return None
        if wire == 0:
            content: Any
            content, place = _varint(data, place)
            if place < 0:
                return None
        else:
            size, place = (8, place) if wire == 1 else (4, place) if wire == 5 else _varint(data, place)
            if place < 0 or place + size > len(data):
                return None
            content, place = data[place : place + size], place + size
        found.append((number, wire, content))
    return found


def encode_fields(fields: Iterable[tuple[int, int, Any]]) -> bytes:
    """The message of these fields."""
    parts = []
    for number, wire, content in fields:
        parts.append(_encode(number << 3 | wire))
        if wire == 0:
            parts.append(_encode(content))
        else:
            parts.append((_encode(len(content)) if wire == 2 else b"") + content)
    return b"".join(parts)


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """The number, and where it ends; -1 where there is none."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            return 0, -1
        value |= (data[place] & 0x7F) << shift
        place += 1
        if data[place - 1] < 0x80:
            return value, place
    return 0, -1


def _encode(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
