"""The index beside a tuning database, and databases that are joined, shrunk and exported."""

from __future__ import annotations

import io
import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tc.errors import UserError
from tc.records import index
from tc.records.database import COLUMNS, Database
from tc.records.file import HEADER
from tc.records.record import decode
from tc.schedule.step import LANGUAGE_VERSION
from tests.draws import some_of
from tests.records.made_up_records import TARGET, WORKLOAD, all_records, lines_of, make_choice, make_record, make_trace

# The index.


@pytest.fixture
def indexed(path: Path) -> Database:
    """A database that is large enough to have an index, which knows of all its lines."""
    database = Database(path)
    database.append([make_record(i, 1e-3 * (i + 1), workload=f"{i % 7:016x}", trace=make_trace(i) + " " * 500) for i in range(400)])
    database.append([make_choice(3)])
    assert database.best("0" * 16, TARGET, 2) is not None
    assert path.with_name(".tuned.db.index").exists()
    return database


def decoded_lines(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines that are decoded from now on."""
    seen: list[bytes] = []

    def spy(line: bytes) -> Any:
        seen.append(line)
        return decode(line)

    monkeypatch.setattr("tc.records.database.decode", spy)
    monkeypatch.setattr("tc.records.index.decode", spy)
    return seen


def test_a_look_up_reads_the_index_and_one_line(indexed: Database, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = decoded_lines(monkeypatch)

    found = Database(path, create=False).best(f"{3:016x}", TARGET, 2)

    assert found.trial == 3
    assert len(seen) == 1


def test_lines_behind_the_index_are_read_too(indexed: Database, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    indexed.append([make_record(500, 1e-6, workload=f"{3:016x}"), make_choice(5)])
    seen = decoded_lines(monkeypatch)
    database = Database(path, create=False)

    assert database.best(f"{3:016x}", TARGET, 2).trial == 500
    assert database.choice("use_winograd", WORKLOAD, TARGET, 2).value == 5
    assert database.best(f"{4:016x}", TARGET, 2).trial == 4
    assert len(seen) == 2 + 3


def test_an_index_survives_copying_with_its_file(indexed: Database, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "copy").mkdir()
    for name in ("tuned.db", ".tuned.db.index"):
        shutil.copy2(tmp_path / name, tmp_path / "copy" / name)
    seen = decoded_lines(monkeypatch)

    assert Database(tmp_path / "copy" / "tuned.db").best(f"{3:016x}", TARGET, 2).trial == 3
    assert len(seen) == 1


def spoilt(data: Any, rng: random.Random) -> Any:
    """`data` with one value in it changed, at random."""
    match data:
        case dict() if data and rng.random() < 0.95:
            key = rng.choice(list(data))
            return {**data, key: spoilt(data[key], rng)}
        case list() if data and rng.random() < 0.95:
            at = rng.randrange(len(data))
            return [*data[:at], spoilt(data[at], rng), *data[at + 1 :]]
        case int() if rng.random() < 0.7:
            return data + rng.choice([-1, 1, 1000, -(10**9), 10**30])
    return rng.choice([None, [], {}, "x", -1, 0.5, True])


@pytest.mark.parametrize("seed", some_of(range(60), quick=range(20)))
def test_a_spoilt_index_does_not_mislead(seed: int, indexed: Database, path: Path) -> None:
    index_path, rng = path.with_name(".tuned.db.index"), random.Random(seed)
    good = json.loads(index_path.read_bytes())
    section = rng.choice(list(good))
    index_path.write_text(json.dumps({**good, section: spoilt(good[section], rng)}))

    database = Database(path, create=False)

    for number in range(7):
        found = database.best(f"{number:016x}", TARGET, 2)
        assert found is None or (found.workload == f"{number:016x}" and found.verified and found in all_records_cached(path))
    assert database.choice("use_winograd", WORKLOAD, TARGET, 2) in (None, make_choice(3))
    assert isinstance(database.problems, tuple) and database.num_records >= 0


_ALL: dict[tuple[int, int], list[Any]] = {}


def all_records_cached(path: Path) -> list[Any]:
    stamp = index.stamp_of(path.stat())
    return _ALL.setdefault(stamp, all_records(path))


@pytest.mark.parametrize("content", [b"", b"{}", b"x", b"[" * 100_000, b"\xff\xfe", b"null"])
def test_an_index_that_is_none_is_made_anew(content: bytes, indexed: Database, path: Path) -> None:
    index_path = path.with_name(".tuned.db.index")
    good = json.loads(index_path.read_bytes())
    index_path.write_bytes(content)

    assert Database(path).best(f"{3:016x}", TARGET, 2).trial == 3

    assert json.loads(index_path.read_bytes()) == good


def test_an_index_of_another_file_is_made_anew(indexed: Database, path: Path, tmp_path: Path) -> None:
    other = Database(tmp_path / "other.db")
    other.append([make_record(i, 1.0 / (i + 1), workload=f"{i % 7:016x}", trace=make_trace(i) + " " * 600) for i in range(500)])
    other.best(WORKLOAD, TARGET, 2)
    shutil.copy2(tmp_path / ".other.db.index", tmp_path / ".tuned.db.index")

    assert Database(path).best(f"{3:016x}", TARGET, 2).trial == 3


def test_lines_put_in_or_taken_out_by_hand_make_the_index_anew(indexed: Database, path: Path) -> None:
    lines = lines_of(path)
    path.write_bytes(b"".join([*lines[:3], b"# a note\n", *lines[5:]]))
    database = Database(path)

    assert [record.trial for record in database.records()][:3] == [0, 1, 4]
    assert database.best(f"{2:016x}", TARGET, 2).trial == 9
    assert [problem.line for problem in database.problems] == [4]


@pytest.mark.clock
def test_a_model_is_looked_up_in_a_large_file_at_once(path: Path) -> None:
    database = Database(path)
    long_trace = make_trace()[:-2] + "".join(f',["annotate_loop","i","key_{i}",{i}]' for i in range(30)) + "]}"
    for first in range(0, 100_000, 5000):
        database.append(
            make_record(i, 1e-3 + 1e-9 * i, workload=f"{i % 500:032x}", trace=f"{long_trace} {i}", verified=i % 3 == 0)
            for i in range(first, first + 5000)
        )
    database.best(WORKLOAD, TARGET, 2)

    def seconds_of_look_up() -> float:
        start = time.perf_counter()
        opened = Database(path, create=False)
        found = [opened.best(f"{i:032x}", TARGET, 2) for i in range(60)]
        seconds = time.perf_counter() - start
        assert all(record is not None and record.trial < 1500 for record in found)
        return seconds

    assert min(seconds_of_look_up() for _ in range(5)) < 0.05


# Joining, shrinking, exporting.


def test_merging_takes_over_what_is_not_there_yet(database: Database, tmp_path: Path) -> None:
    database.append([make_record(1), make_record(2)])
    first, second = Database(tmp_path / "a.db"), Database(tmp_path / "b.db")
    first.append([make_record(2), make_record(3), make_choice(), make_record(4, target="x86-64-v2"), make_record(4, language=9)])
    second.append([make_record(3), make_record(5), make_record(5)])

    merged = database.merge([tmp_path / "a.db", tmp_path / "b.db", database.path])

    assert (merged.added, merged.duplicates) == (5, 3)
    assert [record.trial for record in database.records(any_language=True)] == [1, 2, 3, 4, 4, 5]
    assert list(database.choices()) == [make_choice()]
    again = database.merge([tmp_path / "a.db", tmp_path / "b.db"])
    assert (again.added, again.duplicates) == (0, 8)


def test_merging_leaves_damaged_lines_behind(database: Database, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    Database(other).append([make_record(1), make_record(2), make_record(3)])
    lines = lines_of(other)
    other.write_bytes(b"".join([*lines[:2], lines[2].replace(b"conv", b"vnoc"), lines[3][:-30]]))

    merged = database.merge([other])

    assert [record.trial for record in database.records()] == [1]
    assert [problem.line for problem in merged.problems[str(other)]] == [3]
    assert database.problems == ()


def test_nothing_is_merged_when_one_file_cannot_be_read(database: Database, path: Path, tmp_path: Path) -> None:
    Database(tmp_path / "good.db").append([make_record()])
    (tmp_path / "new.db").write_bytes(b'{"format":"tc-tuning","version":2}\n')

    for other, words in (("new.db", "of version 2"), ("none.db", "no such tuning database")):
        with pytest.raises(UserError, match=words):
            database.merge([tmp_path / "good.db", tmp_path / other])

    assert path.read_bytes() == HEADER


def test_pruning_keeps_the_best_schedules_of_every_place(database: Database, path: Path) -> None:
    wanted = [
        make_record(1, 2e-3),  # verified, so better than the faster ones that are not
        make_record(2, 1e-3, verified=False),
        make_record(5, 5e-3, threads=1),
        make_record(5, 6e-3, target="x86-64-v2"),
        make_record(5, 7e-3, variant="winograd 4"),
        make_record(5, 8e-3, workload="ab"),
        make_record(5, 9e-3, language=LANGUAGE_VERSION + 1),
        make_record(7, error="wrong"),
        make_record(8, error="wrong"),
        make_choice(4),
    ]
    unwanted = [
        make_record(1, 2e-3, verified=False),  # the same schedule before it was verified
        make_record(3, 1.5e-3, verified=False),
        make_record(4, error="timeout"),
        make_record(7, 1e-4),  # found wrong
        make_record(8, error="wrong", detail="the first time"),
        make_choice(2),
    ]
    database.append([*unwanted, *wanted])
    with path.open("ab") as file:
        file.write(b"damage\n")
    path.chmod(0o640)

    pruned = database.prune(keep=2)

    assert (pruned.kept, pruned.dropped, pruned.damaged) == (10, 6, 1)
    assert [*database.records(any_language=True), *database.choices()] == wanted
    assert database.problems == ()
    assert path.stat().st_mode & 0o777 == 0o640
    assert database.best(WORKLOAD, TARGET, 2) == make_record(1, 2e-3)
    assert database.prune(keep=2).dropped == 0


def test_pruning_keeps_the_schedule_that_was_decided_for(database: Database) -> None:
    records = [make_record(i, 1e-3 * (i + 1)) for i in range(9)]
    choice = make_choice(records[7].schedule_key, pass_name="schedule")
    elsewhere = make_choice(records[8].schedule_key, pass_name="schedule", threads=1)
    database.append([*records, choice, elsewhere])

    assert (database.prune(keep=2).kept, list(database.records())) == (5, [*records[:2], records[7]])


def test_pruning_wants_to_keep_something(database: Database) -> None:
    with pytest.raises(UserError, match="keep is 0, must be at least 1"):
        database.prune(0)


def test_a_link_to_a_database_stays_a_link(database: Database, path: Path, tmp_path: Path) -> None:
    database.append([make_record(1), make_record(2)])
    link = tmp_path / "link.db"
    link.symlink_to(path)

    Database(link).prune(1)

    assert link.is_symlink()
    assert len(all_records(path)) == 1


def test_records_are_exported_as_text(database: Database) -> None:
    database.append([make_record(1, task='a "b", c'), make_record(2, error="crash", verified=False)])
    as_csv, as_json, everything = io.StringIO(), io.StringIO(), io.StringIO()
    columns = ("task", "seconds", "verified", "error", "point")

    assert database.export(as_csv, "csv", columns) == database.export(as_json, "json", columns) == 2
    assert database.export(everything, "json", records=database.records("none")) == 0

    assert as_csv.getvalue().splitlines() == [
        "task,seconds,verified,error,point",
        '"a ""b"", c",0.001,true,,"[[""mm/rows"", [1, 2]], [""mm/pack"", true], [""mm/order"", ""io jo""]]"',
        'conv_1,,false,crash,"[[""mm/rows"", [2, 2]], [""mm/pack"", true], [""mm/order"", ""io jo""]]"',
    ]
    rows = json.loads(as_json.getvalue())
    assert [row["seconds"] for row in rows] == [0.001, None]
    assert rows[0]["point"][0] == ["mm/rows", [1, 2]]
    assert json.loads(everything.getvalue()) == []
    with pytest.raises(UserError, match="there is no column 'colour'; there are workload, "):
        database.export(io.StringIO(), columns=("colour",))
    with pytest.raises(UserError, match="there is no format 'xml'"):
        database.export(io.StringIO(), "xml")
    assert {"workload", "seconds", "trace"}.issubset(COLUMNS)
