"""The tuning database: every trial that was ever made, and the best schedule of each workload.

A database is one file (`record_file`) of records (`record`), with an index beside it (`record_index`) that is made when it is missing.
Records hold for one target, one number of threads and one version of the schedule language: all others are left alone, and counted.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TextIO

from tc.errors import DatabaseError
from tc.records.file import LOCK_SECONDS, Line, RecordFile, read_lines
from tc.records.index import Problem, RecordIndex, stamp_of
from tc.records.record import SCHEDULE, WRONG, Choice, DamagedLine, Record, decode, encode, target_key
from tc.schedule.knobs import Value
from tc.schedule.step import LANGUAGE_VERSION
from tc.target import Target

COLUMNS = tuple(each.name for each in fields(Record))
"""What can be exported of a record."""
TORN = "it has no end: its writer was stopped, or is still at it; the next one to write takes it away"
_SAVE_AFTER_BYTES = 256 << 10
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Ignored:
    """How many records do not count: made for other targets, in another schedule language, or (the rest alike) for other threads."""

    other_targets: int = 0
    other_languages: int = 0
    other_threads: int = 0

    def __str__(self) -> str:
        parts = {
            "for another CPU or device": self.other_targets,
            "in another version of the schedule language": self.other_languages,
            "for another number of threads": self.other_threads,
        }
        return ", ".join(f"{count} {which}" for which, count in parts.items() if count)


@dataclass(frozen=True)
class Merged:
    """What came of merging: lines taken over, lines that were there already, and the refused lines of each file."""

    added: int
    duplicates: int
    problems: Mapping[str, tuple[Problem, ...]]


@dataclass(frozen=True)
class Pruned:
    """What came of pruning: lines kept, records and outdated choices left out, and damaged lines left out."""

    kept: int
    dropped: int
    damaged: int


class Database:
    """The tuning database in the file `path`; `create` makes it if it is missing, and asks that it can be written.

    Any number of objects, threads and processes may read and append at once. Reading needs no right to write.
    Raises UserError when the file is no database of this version, or cannot be read or written.
    """

    def __init__(self, path: str | Path, create: bool = True, *, lock_seconds: float = LOCK_SECONDS) -> None:
        self.path = Path(path)
        self._file = RecordFile(path, create=create, lock_seconds=lock_seconds)
        self._index: RecordIndex | None = None
        self._index_lock = threading.RLock()
        self._saved_bytes = 0  # what the index on the disk covers

    def append(self, entries: Iterable[Record | Choice]) -> None:
        """Keep a batch: all of it, or none and a UserError. It is on the disk when this returns."""
        batch = b"".join(map(encode, entries))
        if batch:
            self._file.append((batch,))

    def records(
        self,
        workload: str | None = None,
        target: Target | str | None = None,
        threads: int | None = None,
        *,
        any_language: bool = False,
    ) -> Iterator[Record]:
        """The records of a workload, target and number of threads, as far as given, oldest line first. Damaged lines are left out.

        Those of another schedule language come only with `any_language`.
        """
        key = None if target is None else target_key(target)
        for _, entry in self._entries(containing="" if workload is None else workload):
            if (
                isinstance(entry, Record)
                and workload in (None, entry.workload)
                and key in (None, entry.target)
                and threads in (None, entry.threads)
                and (any_language or entry.language == LANGUAGE_VERSION)
            ):
                yield entry

    def choices(self) -> Iterator[Choice]:
        """Every choice, oldest line first."""
        return (entry for _, entry in self._entries(containing="choice") if isinstance(entry, Choice))

    def best(self, workload: str, target: Target | str, threads: int, variant: str | None = None) -> Record | None:
        """The fastest verified record of a workload (of one variant of it, if given). A schedule once found wrong does not count."""
        return next(iter(self.shortlist(workload, target, threads, 1, variant)), None)

    def shortlist(self, workload: str, target: Target | str, threads: int, most: int, variant: str | None = None) -> list[Record]:
        """The `most` fastest verified records of a workload, one of each schedule, the fastest first."""
        place = (workload, target_key(target), threads)
        return self._verified(place, variant, lambda index: index.find_best(*place, variant, most))

    def verified(self, workload: str, target: Target | str, threads: int, variant: str | None, schedule: str) -> Record | None:
        """The fastest verified record of a workload's schedule with this key."""
        place = (workload, target_key(target), threads)
        return next(iter(self._verified(place, variant, lambda index: index.find_schedule(*place, variant, schedule))), None)

    def _verified(
        self, place: tuple[str, str, int], variant: str | None, find: Callable[[RecordIndex], list[int]]
    ) -> list[Record]:
        def is_meant(found: Record | Choice | None) -> bool:
            return (
                isinstance(found, Record)
                and place == (found.workload, found.target, found.threads)
                and variant in (None, found.variant)
                and found.verified
                and found.language == LANGUAGE_VERSION
            )

        return [found for found in self._look_up(find, is_meant) if isinstance(found, Record)]

    def choice(self, pass_name: str, key: str, target: Target | str, threads: int) -> Choice | None:
        """What was decided last about a node."""
        place = (pass_name, key, target_key(target), threads)

        def is_meant(found: Record | Choice | None) -> bool:
            return isinstance(found, Choice) and place == (found.pass_name, found.key, found.target, found.threads)

        def find(index: RecordIndex) -> list[int]:
            return [index.choices[place]] if place in index.choices else []

        return next((found for found in self._look_up(find, is_meant) if isinstance(found, Choice)), None)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The lines that are refused, with why: the first thousand of them, and a last one that has no end."""
        with self._fresh_index() as index:
            torn = (Problem(index.lines + 1, TORN),) if index.ends_torn else ()
            return (*index.problems, *torn)

    @property
    def num_problems(self) -> int:
        """How many lines are refused."""
        with self._fresh_index() as index:
            return index.num_problems + index.ends_torn

    @property
    def num_records(self) -> int:
        """How many records there are, for whatever target."""
        with self._fresh_index() as index:
            return index.counts.total()

    def ignored(self, target: Target | str, threads: int) -> Ignored:
        """How many records do not count for this target and number of threads."""
        key = target_key(target)
        targets = languages = others = 0
        with self._fresh_index() as index:
            for (its_target, language, its_threads), count in index.counts.items():
                if its_target != key:
                    targets += count
                elif language != LANGUAGE_VERSION:
                    languages += count
                elif its_threads != threads:
                    others += count
        return Ignored(targets, languages, others)

    def merge(self, paths: Iterable[str | Path]) -> Merged:
        """Add the lines of other databases that are not in this one: all of them, or none and a UserError.

        Lines for other targets and schedule languages are taken over too; damaged ones are not.
        """
        others = [Database(path, create=False) for path in paths]
        added = duplicates = 0
        problems: dict[str, list[Problem]] = {}

        def new_lines() -> Iterator[bytes]:
            nonlocal added, duplicates
            seen = {_checksum_of(line) for line, _ in self._entries()}
            for other in others:
                if other._file.path == self._file.path:
                    continue
                for line, _ in other._entries(refused=problems.setdefault(str(other.path), [])):
                    checksum = _checksum_of(line)
                    if checksum in seen:
                        duplicates += 1
                        continue
                    seen.add(checksum)
                    added += 1
                    yield line.data.rstrip(b"\r\n") + b"\n"

        with self._file.locked():
            self._file.append(_in_chunks(new_lines()))
        return Merged(added, duplicates, {name: tuple(refused) for name, refused in problems.items()})

    def prune(self, keep: int) -> Pruned:
        """Keep the `keep` best schedules of each workload, variant, target and number of threads, and the last choices.

        Verified schedules come first. One that was decided for stays too. Wrong ones stay known as wrong. The rest, other failures
        among it, and damaged lines are gone for good, and the cost model has less to learn from.
        """
        if keep < 1:
            raise DatabaseError(f"keep is {keep}, must be at least 1")
        with self._file.locked():
            refused: list[Problem] = []
            survey = _Survey()
            for line, entry in self._entries(refused=refused):
                survey.add(entry, line.offset)
            offsets = survey.best(keep)
            self._file.replace(_in_chunks(line.data.rstrip(b"\r\n") + b"\n" for line in self._lines() if line.offset in offsets))
        return Pruned(len(offsets), survey.entries - len(offsets), len(refused))

    def export(
        self, stream: TextIO, format: str = "csv", columns: Sequence[str] = COLUMNS, records: Iterable[Record] | None = None
    ) -> int:
        """Write columns of the records (all, if none are given) as `csv` or `json` text; returns how many records there were."""
        check_columns(columns)
        rows = (export_row(record, columns) for record in (self.records(any_language=True) if records is None else records))
        count = 0
        if format == "csv":
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(columns)
            for row in rows:
                writer.writerow([json.dumps(cell) if isinstance(cell, (list, bool)) else cell for cell in row.values()])
                count += 1
        elif format == "json":
            for row in rows:
                stream.write((",\n " if count else "[\n ") + json.dumps(row, allow_nan=False))
                count += 1
            stream.write("\n]\n" if count else "[]\n")
        else:
            raise DatabaseError(f"there is no format '{format}'; there are csv and json")
        return count

    def _lines(self) -> Iterator[Line]:
        """The lines after the first, as they are."""
        with self._file.open() as file:
            size = os.fstat(file.fileno()).st_size
            if self._file.check_header(file):
                yield from read_lines(file, 2, size)

    def _entries(self, *, containing: str = "", refused: list[Problem] | None = None) -> Iterator[tuple[Line, Record | Choice]]:
        """The lines that hold an entry, and have `containing` as a JSON string in them; the damaged ones go to `refused`."""
        wanted = json.dumps(containing).encode() if containing else b""
        for line in self._lines():
            if line.is_blank or wanted not in line.data:
                continue
            try:
                yield line, decode(line.data)
            except DamagedLine as error:
                if refused is not None:
                    refused.append(Problem(line.number, str(error)))

    def _look_up(
        self, find: Callable[[RecordIndex], list[int]], is_meant: Callable[[Record | Choice | None], bool]
    ) -> list[Record | Choice | None]:
        """The entries at the offsets that `find` gets from the index. One that is not meant shows that the index is none of this file."""
        for _ in range(2):
            with self._fresh_index() as index:
                offsets = find(index)
            found = [self._entry_at(offset) for offset in offsets]
            if all(map(is_meant, found)):
                return found
            self._rebuild_index()
        return []

    def _entry_at(self, offset: int) -> Record | Choice | None:
        with self._file.open() as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(offset)
            try:
                return next((decode(line.data) for line in read_lines(file, 0, size)), None)
            except DamagedLine:
                return None

    @contextlib.contextmanager
    def _fresh_index(self) -> Iterator[RecordIndex]:
        """An index that covers the file as it is now, for this thread alone."""
        with self._index_lock:
            if self._index is None:
                self._index = RecordIndex.load(self._file.index_path) or RecordIndex()
                self._saved_bytes = self._index.covered
            self._index = self._extended(self._index)
            yield self._index

    def _rebuild_index(self) -> None:
        """Read the whole file again."""
        with self._index_lock:
            self._saved_bytes = 0
            self._index = self._extended(RecordIndex())

    def _extended(self, index: RecordIndex) -> RecordIndex:
        """`index`, or a new one if it is not of this file, extended to the end of the file; kept when that took long."""
        with self._file.open() as file:
            status = os.fstat(file.fileno())
            if index.stamp == stamp_of(status):
                return index
            header_length = self._file.check_header(file)
            if index.covered and not index.fits(file, status):
                index, self._saved_bytes = RecordIndex(), 0
            index.extend(file, header_length, status)
        if index.covered - self._saved_bytes >= _SAVE_AFTER_BYTES:
            index.save(self._file.index_path, mode=stat.S_IMODE(status.st_mode))
            self._saved_bytes = index.covered
        return index


def check_columns(columns: Iterable[str]) -> None:
    """UserError for a name that is no column of a record."""
    for name in columns:
        if name not in COLUMNS:
            raise DatabaseError(f"there is no column '{name}'; there are {', '.join(COLUMNS)}")


def export_row(record: Record, columns: Iterable[str]) -> dict[str, Any]:
    """Columns of a record in the types of JSON: None for the times of a failure, lists for tuples."""
    row = {}
    for name in columns:
        value = getattr(record, name)
        row[name] = None if value == math.inf else json.loads(json.dumps(value)) if isinstance(value, tuple) else value
    return row


class _Survey:
    """What a database holds, as far as pruning needs to know."""

    def __init__(self) -> None:
        self.entries = 0
        self._groups: dict[tuple[object, ...], dict[str, tuple[bool, float, int]]] = {}
        self._choices: dict[tuple[object, ...], int] = {}
        self._decided: dict[tuple[object, ...], Value] = {}
        self._wrong: dict[tuple[object, ...], int] = {}

    def add(self, entry: Record | Choice, offset: int) -> None:
        self.entries += 1
        if isinstance(entry, Choice):
            self._choices[entry.pass_name, entry.key, entry.target, entry.threads] = offset
            if entry.pass_name == SCHEDULE:
                self._decided[entry.key, entry.target, entry.threads] = entry.value
            return
        schedule = entry.schedule_key
        identity = (entry.workload, entry.target, entry.language, schedule)
        if entry.error == WRONG:
            self._wrong[identity] = offset
        if entry.error is not None:
            return
        group = self._groups.setdefault((entry.workload, entry.target, entry.language, entry.variant, entry.threads), {})
        rank = (not entry.verified, entry.seconds, offset)
        group[schedule] = min(rank, group.get(schedule, rank))

    def best(self, keep: int) -> set[int]:
        """Offsets of the lines to keep."""
        offsets = {*self._choices.values(), *self._wrong.values()}
        for place, group in self._groups.items():
            workload, target, language, _, threads = place
            ranks = {schedule: rank for schedule, rank in group.items() if (workload, target, language, schedule) not in self._wrong}
            kept = {*sorted(ranks, key=ranks.__getitem__)[:keep], self._decided.get((workload, target, threads))}
            offsets.update(offset for schedule, (_, _, offset) in ranks.items() if schedule in kept)
        return offsets


def _checksum_of(line: Line) -> bytes:
    return line.data[8:24]  # {"sum":"


def _in_chunks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, joined to chunks that are worth a write."""
    chunk, size = [], 0
    for line in lines:
        chunk.append(line)
        size += len(line)
        if size >= _CHUNK_BYTES:
            yield b"".join(chunk)
            chunk, size = [], 0
    if chunk:
        yield b"".join(chunk)
