"""Where the best records of a database are: what a look-up needs to know of a file without reading it.

An index covers the first bytes of a file, whole lines, and grows with it. It is kept beside the file as JSON, and it is a hint, no more:
one that does not fit the file is made anew, and each line that is found through it is read and checked before it counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from heapq import nsmallest
from pathlib import Path
from typing import Any, BinaryIO

from tc.records.file import read_lines
from tc.records.record import WRONG, Choice, DamagedLine, Record, clean_text, decode
from tc.schedule.step import LANGUAGE_VERSION

INDEX_FORMAT = "tc-tuning-index"
INDEX_VERSION = 2
PROBLEM_LIMIT = 1000
"""So many damaged lines are described; all are counted."""
_INDEX_LIMIT_BYTES = 64 << 20
_TAIL_BYTES = 4096

Place = tuple[str, str, int]
"""What records compete for: a variant of a workload, on a target, with a number of threads."""
ChoicePlace = tuple[str, str, str, int]
"""What choices are about: the pass, the node's workload, target, threads."""
Verified = dict[str, tuple[float, int]]
"""The verified schedules of a place, by their keys: seconds, of several records the least, and the offset of that line."""
Stamp = tuple[int, int]
"""Size and time of change (ns) of a file."""


@dataclass(frozen=True)
class Problem:
    """A line that is refused, and why. `line` counts from 1."""

    line: int
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.why}"


@dataclass
class RecordIndex:
    """What is known of the first `covered` bytes of a file, its first `lines` lines.

    `wrong` holds (workload, target, schedule key) of schedules whose results were wrong: no record of them counts. `counts` are the
    records of each (target, schedule language, threads).
    """

    covered: int = 0
    lines: int = 0
    tail: str = ""
    stamp: Stamp = (0, 0)
    counts: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    verified: dict[str, dict[Place, Verified]] = field(default_factory=dict)
    wrong: set[tuple[str, str, str]] = field(default_factory=set)
    choices: dict[ChoicePlace, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    num_problems: int = 0

    @property
    def ends_torn(self) -> bool:
        """Whether the file goes on after the last whole line."""
        return self.stamp[0] > self.covered

    def find_best(self, workload: str, target: str, threads: int, variant: str | None, most: int) -> list[int]:
        """The offsets of the `most` fastest verified records, of any variant if None, the fastest first."""
        found = self._verified(workload, target, threads, variant)
        return [offset for _, offset in nsmallest(most, (entry for schedules in found for entry in schedules.values()))]

    def find_schedule(self, workload: str, target: str, threads: int, variant: str | None, schedule: str) -> list[int]:
        """The offset of the fastest verified record of a schedule, if there is one."""
        found = self._verified(workload, target, threads, variant)
        return [offset for _, offset in nsmallest(1, (entries[schedule] for entries in found if schedule in entries))]

    def _verified(self, workload: str, target: str, threads: int, variant: str | None) -> list[Verified]:
        return [
            schedules
            for place, schedules in self.verified.get(workload, {}).items()
            if place[1:] == (target, threads) and variant in (None, place[0])
        ]

    def fits(self, file: BinaryIO, status: os.stat_result) -> bool:
        """Whether the file is the one that was read, or that one with more at its end."""
        if self.stamp == stamp_of(status):
            return True
        return self.stamp[0] < status.st_size and self.covered > 0 and self.tail == _tail_of(file, self.covered)

    def extend(self, file: BinaryIO, header_length: int, status: os.stat_result) -> None:
        """Read what `file` holds beyond the lines that are covered."""
        if not self.covered and header_length:
            self.covered, self.lines = header_length, 1
        if self.covered:
            file.seek(self.covered)
            for line in read_lines(file, self.lines + 1, status.st_size):
                try:
                    if not line.is_blank:
                        self.add(decode(line.data), line.offset)
                except DamagedLine as error:
                    self._add_problem(Problem(line.number, str(error)))
                self.covered, self.lines = line.offset + line.length, line.number
            self.tail = _tail_of(file, self.covered)
        self.stamp = stamp_of(status)

    def add(self, entry: Record | Choice, offset: int) -> None:
        """Take in what the line at `offset` holds."""
        if isinstance(entry, Choice):
            self.choices[entry.pass_name, entry.key, entry.target, entry.threads] = offset
            return
        self.counts[entry.target, entry.language, entry.threads] += 1
        if entry.language != LANGUAGE_VERSION:
            return
        if entry.error == WRONG:
            self._withdraw(entry)
        elif entry.verified and (entry.workload, entry.target, entry.schedule_key) not in self.wrong:
            place = (entry.variant, entry.target, entry.threads)
            schedules = self.verified.setdefault(entry.workload, {}).setdefault(place, {})
            timed = (entry.seconds, offset)
            schedules[entry.schedule_key] = min(timed, schedules.get(entry.schedule_key, timed))

    def _withdraw(self, entry: Record) -> None:
        self.wrong.add((entry.workload, entry.target, entry.schedule_key))
        for (_, target, _), schedules in self.verified.get(entry.workload, {}).items():
            if target == entry.target:
                schedules.pop(entry.schedule_key, None)

    def _add_problem(self, problem: Problem) -> None:
        self.num_problems += 1
        if len(self.problems) < PROBLEM_LIMIT:
            self.problems.append(problem)

    def save(self, path: Path, mode: int) -> None:
        """Keep the index at `path`, with these permissions; a folder that cannot be written does without."""
        with contextlib.suppress(OSError):
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
            try:
                os.fchmod(descriptor, mode)
                with open(descriptor, "w", encoding="ascii") as file:
                    json.dump(self._to_json(), file, separators=(",", ":"))
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise

    @staticmethod
    def load(path: Path) -> RecordIndex | None:
        """The index at `path`; None when there is none that can be read."""
        try:
            if path.stat().st_size > _INDEX_LIMIT_BYTES:
                return None
            return _from_json(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
            return None

    def _to_json(self) -> dict[str, Any]:
        """Plain data, with targets, which are long, by number."""
        targets: dict[str, int] = {}

        def number(target: str) -> int:
            return targets.setdefault(target, len(targets))

        return {
            "format": INDEX_FORMAT,
            "version": INDEX_VERSION,
            "language": LANGUAGE_VERSION,
            "covered": self.covered,
            "lines": self.lines,
            "tail": self.tail,
            "stamp": self.stamp,
            "counts": [[number(target), language, threads, n] for (target, language, threads), n in self.counts.items()],
            "verified": {
                workload: [[variant, number(target), threads, schedules] for (variant, target, threads), schedules in places.items()]
                for workload, places in self.verified.items()
            },
            "wrong": [[workload, number(target), schedule] for workload, target, schedule in self.wrong],
            "choices": [[name, key, number(t), threads, offset] for (name, key, t, threads), offset in self.choices.items()],
            "problems": [[problem.line, problem.why] for problem in self.problems],
            "num_problems": self.num_problems,
            "targets": list(targets),
        }


def _from_json(data: dict[str, Any]) -> RecordIndex:
    """The inverse of `_to_json`; any of several exceptions when the data has another form."""
    if (data["format"], data["version"], data["language"]) != (INDEX_FORMAT, INDEX_VERSION, LANGUAGE_VERSION):
        raise ValueError("an index of another version")
    targets = [clean_text(target, len(target)) for target in data["targets"]]
    size, mtime_ns = data["stamp"]
    return RecordIndex(
        covered=_count(data["covered"]),
        lines=_count(data["lines"]),
        tail=str(data["tail"]),
        stamp=(_count(size), _count(mtime_ns)),
        counts=Counter({(targets[t], _count(language), _count(threads)): _count(n) for t, language, threads, n in data["counts"]}),
        verified={
            workload: {
                (variant, targets[t], threads): {key: (float(seconds), _count(at)) for key, (seconds, at) in schedules.items()}
                for variant, t, threads, schedules in places
            }
            for workload, places in data["verified"].items()
        },
        wrong={(workload, targets[t], schedule) for workload, t, schedule in data["wrong"]},
        choices={(name, key, targets[t], threads): _count(at) for name, key, t, threads, at in data["choices"]},
        problems=[Problem(_count(line), clean_text(why, 200)) for line, why in data["problems"]],
        num_problems=_count(data["num_problems"]),
    )


def stamp_of(status: os.stat_result) -> Stamp:
    """What changes when a file is written."""
    return status.st_size, status.st_mtime_ns


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _tail_of(file: BinaryIO, end: int) -> str:
    """A hash of the last bytes before `end`."""
    start = max(0, end - _TAIL_BYTES)
    file.seek(start)
    return hashlib.blake2b(file.read(end - start), digest_size=16).hexdigest()
