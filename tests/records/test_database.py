"""The tuning database: what is found again, and that nothing is lost or believed when files are damaged, shared or full."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tc.errors import UserError
from tc.records import file, index
from tc.records.database import COLUMNS, Database, Ignored
from tc.records.file import HEADER
from tc.records.record import decode, encode
from tc.schedule.step import LANGUAGE_VERSION
from tc.target import Target
from tests.records.made_up_records import (
    KEY,
    TARGET,
    WORKLOAD,
    all_records,
    lines_of,
    make_choice,
    make_record,
    make_trace,
    seal,
)

FORK = multiprocessing.get_context("fork")
SMALLER_CACHE = Target.parse("x86-64-v3:cores=2,l2=128K")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuned.db"


@pytest.fixture
def database(path: Path) -> Database:
    return Database(path)


def in_child(body: Callable[[], None], *, signal_expected: int = 0) -> None:
    """Run `body` in a child process, which must end well, or by that signal."""
    child = FORK.Process(target=body)
    child.start()
    child.join(60)
    assert child.exitcode == -signal_expected


# What is found again.


def test_a_new_file_has_a_header_and_nothing_else(database: Database, path: Path) -> None:
    assert path.read_bytes() == HEADER == b'{"format":"tc-tuning","version":1}\n'
    assert (list(database.records()), database.problems, database.num_records) == ([], (), 0)
    assert database.best(WORKLOAD, TARGET, 2) is None


def test_records_come_back_in_their_order(database: Database, path: Path) -> None:
    first, second = [make_record(i) for i in range(3)], [make_record(error="timeout"), make_record(9, verified=False)]

    database.append(first)
    database.append(iter(second))
    database.append([])

    assert list(database.records()) == all_records(path) == [*first, *second]
    assert database.num_records == 5
    assert [json.loads(line)["record"]["trial"] for line in lines_of(path)[1:]] == [0, 1, 2, 4, 9]


def test_records_are_chosen_by_workload_target_threads_and_language(database: Database) -> None:
    other_key = "x86-64-v2"
    plain, other_workload, other_target = make_record(0), make_record(1, workload="ab"), make_record(2, target=other_key)
    other_threads, other_language = make_record(3, threads=1), make_record(4, language=LANGUAGE_VERSION + 1)
    database.append([plain, other_workload, other_target, other_threads, other_language])

    assert list(database.records(WORKLOAD, TARGET, 2)) == [plain]
    assert list(database.records(workload="ab")) == [other_workload]
    assert list(database.records(target=Target.parse("x86-64-v2"))) == [other_target]
    assert list(database.records(threads=1)) == [other_threads]
    assert other_language not in list(database.records())
    assert other_language in list(database.records(any_language=True))
    assert list(database.records("abc")) == []


def test_the_best_is_the_fastest_verified_record(database: Database) -> None:
    database.append([make_record(1, 3e-3), make_record(2, 1e-3, verified=False), make_record(3, 2e-3), make_record(error="crash")])
    assert database.best(WORKLOAD, TARGET, 2) == make_record(3, 2e-3)

    database.append([make_record(2, 1e-3)])
    assert database.best(WORKLOAD, KEY, 2) == make_record(2, 1e-3)


@pytest.mark.parametrize(
    "changes",
    [{"target": "x86-64-v2"}, {"threads": 1}, {"language": LANGUAGE_VERSION + 1}, {"verified": False}, {"workload": "ab"}],
    ids=str,
)
def test_the_best_is_made_for_the_same_machine_threads_and_language(changes: dict[str, Any], database: Database) -> None:
    database.append([make_record(1, 1e-3, **changes)])
    assert database.best(WORKLOAD, TARGET, 2) is None

    database.append([make_record(2, 2e-3)])
    assert database.best(WORKLOAD, TARGET, 2) == make_record(2, 2e-3)


def test_cores_do_not_matter_but_caches_do(database: Database) -> None:
    database.append([make_record()])

    assert database.best(WORKLOAD, Target.parse("x86-64-v3:cores=64"), 2) == make_record()
    assert database.best(WORKLOAD, SMALLER_CACHE, 2) is None


def test_records_that_do_not_count_are_counted(database: Database) -> None:
    assert str(database.ignored(TARGET, 2)) == ""

    languages = [make_record(i, language=LANGUAGE_VERSION + 1) for i in range(3)]
    database.append([make_record(1, target="x86-64-v2"), make_record(1, threads=1), make_record(1), *languages])

    assert database.ignored(TARGET, 2) == Ignored(other_targets=1, other_languages=3, other_threads=1)
    assert database.ignored(SMALLER_CACHE, 2) == Ignored(other_targets=6)
    assert str(database.ignored(TARGET, 1)) == (
        "1 for another CPU or device, 3 in another version of the schedule language, 1 for another number of threads"
    )


def test_variants_compete_unless_one_is_asked_for(database: Database) -> None:
    direct, winograd = make_record(1, 2e-3, variant="direct"), make_record(2, 1e-3, variant="winograd 4")
    database.append([direct, winograd])

    assert database.best(WORKLOAD, TARGET, 2) == winograd
    assert database.best(WORKLOAD, TARGET, 2, variant="direct") == direct
    assert database.best(WORKLOAD, TARGET, 2, variant="winograd 2") is None


@pytest.mark.parametrize("wrong_first", [False, True])
def test_a_schedule_once_found_wrong_is_never_the_best(wrong_first: bool, database: Database) -> None:
    fast, slow = make_record(1, 1e-3), make_record(2, 2e-3)
    wrong = make_record(1, error="wrong", detail="largest error 0.3")

    for batch in ([[wrong], [fast, slow]] if wrong_first else [[fast, slow], [wrong]]):
        database.append(batch)

    assert database.best(WORKLOAD, TARGET, 2) == slow
    assert database.best(WORKLOAD, TARGET, 2, variant="") == slow


def test_a_schedule_wrong_on_another_machine_or_workload_may_be_right_here(database: Database) -> None:
    database.append([make_record(1, error="wrong", target="x86-64-v2"), make_record(1, error="wrong", workload="ab")])
    database.append([make_record(1, error="timeout"), make_record(1)])

    assert database.best(WORKLOAD, TARGET, 2) == make_record(1)


def test_all_of_the_best_schedules_may_turn_out_wrong(database: Database) -> None:
    database.append([make_record(i, 1e-3 * (i + 1)) for i in range(20)])
    assert database.best(WORKLOAD, TARGET, 2) == make_record(0, 1e-3)

    database.append([make_record(i, error="wrong") for i in range(18)])

    for reader in (database, Database(database.path)):
        assert reader.shortlist(WORKLOAD, TARGET, 2, 8) == [make_record(18, 1e-3 * 19), make_record(19, 1e-3 * 20)]


@pytest.mark.parametrize("variant", [None, ""])
def test_a_schedule_is_found_however_many_are_faster(database: Database, variant: str | None) -> None:
    records = [make_record(i, 1e-3 * (i + 1)) for i in range(100)]
    database.append([*records, make_record(90, 2.0), make_record(91, error="wrong")])

    for reader in (database, Database(database.path)):
        assert reader.verified(WORKLOAD, TARGET, 2, variant, records[90].schedule_key) == records[90]
        assert reader.verified(WORKLOAD, TARGET, 2, variant, records[91].schedule_key) is None
        assert reader.verified(WORKLOAD, TARGET, 2, "other", records[90].schedule_key) is None
        assert reader.verified(WORKLOAD, TARGET, 1, variant, records[90].schedule_key) is None


def test_the_last_choice_holds(database: Database) -> None:
    database.append([make_choice(2), make_choice(4), make_choice(0, threads=1), make_choice(6, key="ab")])

    assert database.choice("use_winograd", WORKLOAD, TARGET, 2) == make_choice(4)
    assert database.choice("use_winograd", WORKLOAD, TARGET, 1) == make_choice(0, threads=1)
    assert database.choice("use_winograd", WORKLOAD, SMALLER_CACHE, 2) is None
    assert database.choice("pack_matmul", WORKLOAD, TARGET, 2) is None
    assert [choice.value for choice in database.choices()] == [2, 4, 0, 6]
    assert list(database.records()) == []


def test_objects_see_what_others_append(path: Path) -> None:
    first, second = Database(path), Database(path)
    for number in range(5):
        (first, second)[number % 2].append([make_record(number, 1e-3 / (number + 1))])

        assert first.best(WORKLOAD, TARGET, 2) == second.best(WORKLOAD, TARGET, 2) == make_record(number, 1e-3 / (number + 1))


# Damaged files.


def test_damaged_lines_are_refused_by_number_and_the_others_count(path: Path) -> None:
    Database(path).append([make_record(i, 1e-3 * (i + 1)) for i in range(6)])
    lines = lines_of(path)
    lines[1] = lines[1].replace(b'"seconds":0.001', b'"seconds":0.0001')  # too good to be true
    lines[3] = lines[3][:100] + b"\n"
    lines[4] = b"# a note of mine\n"
    lines[5] = seal({"record": {"workload": WORKLOAD}})
    lines.insert(3, b"\n")
    path.write_bytes(b"".join(lines))

    database = Database(path)

    assert [record.trial for record in database.records()] == [1, 5]
    assert database.best(WORKLOAD, TARGET, 2) == make_record(1, 2e-3)
    assert database.num_problems == 4
    assert [str(problem) for problem in database.problems] == [
        "line 2: its checksum does not match: it was edited or damaged",
        "line 5: it is cut off",
        "line 6: it has no checksum, so it is not a line that tc has written",
        "line 7: 'created' is missing",
    ]
    database.append([make_record(9, 1e-4)])
    assert database.best(WORKLOAD, TARGET, 2) == make_record(9, 1e-4)
    assert database.num_problems == 4


def test_damage_after_the_file_was_opened_is_noticed(database: Database, path: Path) -> None:
    database.append([make_record(1, 1e-3), make_record(2, 2e-3)])
    assert database.best(WORKLOAD, TARGET, 2) == make_record(1, 1e-3)

    path.write_bytes(path.read_bytes().replace(b'"threads":2', b'"threads":3', 1))

    assert database.best(WORKLOAD, TARGET, 2) == make_record(2, 2e-3)
    assert [problem.line for problem in database.problems] == [2]


def test_damage_that_leaves_no_trace_in_times_is_noticed_when_it_matters(database: Database, path: Path) -> None:
    database.append([make_record(1, 1e-3), make_record(2, 2e-3)])
    status = path.stat()
    assert database.best(WORKLOAD, TARGET, 2) == make_record(1, 1e-3)

    path.write_bytes(path.read_bytes().replace(b'"threads":2', b'"threads":3', 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert database.best(WORKLOAD, TARGET, 2) == make_record(2, 2e-3)


def test_a_file_cut_anywhere_keeps_its_whole_lines_and_goes_on(path: Path, tmp_path: Path) -> None:
    Database(path).append([make_record(1), make_record(2)])
    data = path.read_bytes()
    ends = [len(b"".join(lines_of(path)[: n + 1])) for n in range(3)]
    cut = tmp_path / "cut.db"

    for length in [*range(ends[0] + 2), *range(ends[1] - 3, ends[1] + 3), *range(ends[1] + 3, ends[2], 17), ends[2] - 1]:
        cut.write_bytes(data[:length])
        whole = sum(length >= end for end in ends[1:])
        torn = length not in (0, *ends)

        reader = Database(cut, create=False)
        assert [record.trial for record in reader.records()] == [1, 2][:whole]
        assert [problem.why.partition(":")[0] for problem in reader.problems] == ["it has no end"] * torn

        Database(cut).append([make_record(3)])
        rescued = [2] if length == ends[2] - 1 else [1] if length == ends[1] - 1 else []  # only the end was missing
        assert [record.trial for record in all_records(cut)] == [*[1, 2][:whole], *rescued, 3]
        assert reader.problems == Database(cut).problems == ()


def test_lines_with_the_ends_of_another_system_are_read(database: Database, path: Path) -> None:
    database.append([make_record(1), make_record(2)])
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))

    assert [record.trial for record in all_records(path)] == [1, 2]
    Database(path).append([make_record(3)])
    assert [record.trial for record in all_records(path)] == [1, 2, 3]


def test_a_line_without_measure_is_skipped(database: Database, path: Path) -> None:
    database.append([make_record(1)])
    with path.open("ab") as file:
        file.write(b'{"sum":"' + b"x" * (3 << 20) + b"\n")
    database.append([make_record(2)])
    with path.open("ab") as file:
        file.write(b"y" * (3 << 20))
    database.append([make_record(3)])

    assert [record.trial for record in database.records()] == [1, 2, 3]
    assert [problem.line for problem in database.problems] == [3, 5]
    assert all("more than" in problem.why for problem in database.problems)


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_never_invents_a_record(seed: int, path: Path) -> None:
    records = [make_record(i, 1e-3 * (i + 1)) for i in range(5)]
    Database(path).append([*records, make_choice()])
    rng, data = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(rng.randrange(1, 6)):
        start = rng.randrange(len(HEADER), len(data))
        match rng.randrange(4):
            case 0:
                data[start] = rng.randrange(256)
            case 1:
                del data[start : start + rng.randrange(1, 400)]
            case 2:
                data[start:start] = rng.randbytes(rng.randrange(1, 40))
            case 3:
                data[start:start] = data[start - 30 : start + rng.randrange(1, 900)]
    path.write_bytes(data)

    database = Database(path)
    found = list(database.records())

    assert all(record in records for record in found)
    assert database.best(WORKLOAD, TARGET, 2) == min(found, key=lambda record: record.seconds, default=None)
    assert database.choice("use_winograd", WORKLOAD, TARGET, 2) in (None, make_choice())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"format":"tc-tuning","version":2}\n{"anything":1}\n', "is a tuning database of version 2; this tc reads and writes version 1"),
        (b'{"format":"tc-tuning","version":"1"}\n', "is not a tuning database"),
        (b'{"format":"other","version":1}\n', "is not a tuning database"),
        (b"task,seconds\nconv,0.1\n", "is not a tuning database"),
        (b"\x7fELF\x00\x01", "is not a tuning database"),
        (b"[" * 100_000, "is not a tuning database"),
        (b'{"format":"tc-tuning","version":1', "without"),
    ],
)
def test_files_of_other_kinds_and_versions_are_refused_and_not_touched(content: bytes, words: str, path: Path) -> None:
    path.write_bytes(content)
    if words == "without":  # the header of this very version, cut off: a crash while the file was made
        Database(path)
        assert path.read_bytes() == HEADER
        return

    for create in (False, True):
        with pytest.raises(UserError, match=f"tuned.db: {words}"):
            Database(path, create=create)

    assert path.read_bytes() == content


def test_a_file_that_becomes_another_one_is_not_written(database: Database, path: Path) -> None:
    path.write_bytes(b'{"format":"tc-tuning","version":2}\n')

    for action in (lambda: database.append([make_record()]), lambda: database.prune(1), lambda: database.best("a", KEY, 1)):
        with pytest.raises(UserError, match="of version 2"):
            action()

    assert path.read_bytes() == b'{"format":"tc-tuning","version":2}\n'


# Files that cannot be used.


def test_what_is_missing_is_made_or_named(tmp_path: Path, path: Path) -> None:
    with pytest.raises(UserError, match=r"tuned.db: there is no such tuning database"):
        Database(path, create=False)
    assert not path.exists()

    with pytest.raises(UserError, match=r"cannot be written: there is no folder .*/nowhere"):
        Database(tmp_path / "nowhere" / "tuned.db")
    assert not (tmp_path / "nowhere").exists()

    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name in ("x" * 300, "circle", "a\0b", "tuned.db/x"):
        path.touch()
        with pytest.raises(UserError, match=r"cannot be (read|written)|is no path of a file|no such tuning database"):
            Database(tmp_path / name)


@pytest.mark.parametrize("create", [False, True])
def test_a_folder_or_a_device_is_no_database(create: bool, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder, not a tuning database"):
        Database(tmp_path, create=create)
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", Path("/dev/full")):
        with pytest.raises(UserError, match="is no regular file"):
            Database(other, create=create)
    assert not Path("/dev/.full.lock").exists()


@contextlib.contextmanager
def public_folder() -> Iterator[Path]:
    """A folder that ordinary users reach too."""
    folder = Path(tempfile.mkdtemp(prefix="tc-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def as_ordinary_user(body: Callable[[], None]) -> None:
    """Run `body` in a child process for which permissions of files count."""

    def run() -> None:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        body()

    in_child(run)


def test_a_file_that_may_only_be_read_is_read_and_not_written() -> None:
    with public_folder() as folder:
        path = folder / "tuned.db"
        Database(path).append([make_record()] * 300)  # more than is looked up without an index
        before = path.read_bytes()
        path.chmod(0o444)
        folder.chmod(0o555)

        def use() -> None:
            database = Database(path, create=False)
            assert database.best(WORKLOAD, TARGET, 2) == make_record()
            for action in (lambda: database.append([make_record()]), lambda: database.prune(1), lambda: Database(path)):
                with pytest.raises(UserError, match="cannot be written: Permission denied; what was in it is unchanged"):
                    action()
            with pytest.raises(UserError, match=r"new.db: cannot be written: Permission denied$"):
                Database(folder / "new.db")

        as_ordinary_user(use)

        assert path.read_bytes() == before
        assert sorted(entry.name for entry in folder.iterdir()) == [".tuned.db.lock", "tuned.db"]


def test_a_file_that_may_not_even_be_read_is_named() -> None:
    with public_folder() as folder:
        Database(folder / "tuned.db")
        (folder / "tuned.db").chmod(0)

        def use() -> None:
            with pytest.raises(UserError, match="cannot be read: Permission denied"):
                Database(folder / "tuned.db", create=False)

        as_ordinary_user(use)


def with_room_for(size_bytes: int, body: Callable[[], None]) -> None:
    """Run `body` in a child process in which no file can grow beyond this size, as on a disk that is full."""

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))
        body()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    in_child(run)


def test_a_batch_that_does_not_fit_on_the_disk_is_taken_back(database: Database, path: Path) -> None:
    database.append([make_record(1), make_record(2)])
    before = path.read_bytes()

    def use() -> None:
        with pytest.raises(UserError, match="cannot be written: File too large; what was in it is unchanged"):
            database.append([make_record(i) for i in range(100)])
        assert path.read_bytes() == before
        database.append([make_record(3)])  # a smaller one fits

    with_room_for(len(before) + 5000, use)

    assert [record.trial for record in all_records(path)] == [1, 2, 3]
    assert Database(path).problems == ()
    database.append([make_record(4)])
    assert [record.trial for record in database.records()] == [1, 2, 3, 4]


def test_merging_and_pruning_on_a_full_disk_change_nothing(path: Path, tmp_path: Path) -> None:
    database, other = Database(path), Database(tmp_path / "other.db")
    database.append([make_record(i) for i in range(20)])
    other.append([make_record(i + 100) for i in range(5000)])
    before = path.read_bytes()
    assert (tmp_path / "other.db").stat().st_size > 2 << 20  # more than one write

    def merge() -> None:
        with pytest.raises(UserError, match="cannot be written: File too large"):
            database.merge([tmp_path / "other.db"])

    def prune() -> None:
        with pytest.raises(UserError, match="cannot be written: File too large"):
            database.prune(15)

    with_room_for(len(before) + 1_200_000, merge)
    assert path.read_bytes() == before
    with_room_for(len(before) // 2, prune)

    assert path.read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir() if "tuned" in entry.name) == [".tuned.db.lock", "tuned.db"]


def test_a_new_file_on_a_full_disk_is_an_error_at_once(path: Path) -> None:
    def use() -> None:
        with pytest.raises(UserError, match="cannot be written: File too large"):
            Database(path)

    with_room_for(3, use)

    Database(path).append([make_record()])
    assert len(all_records(path)) == 1


def test_a_batch_that_the_disk_does_not_confirm_is_taken_back(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(file.os, "fsync", fail)
        with pytest.raises(UserError, match="cannot be written: No space left on device; what was in it is unchanged"):
            database.append([make_record()])

    assert path.read_bytes() == before


def test_a_bad_record_keeps_its_batch_out(database: Database, path: Path) -> None:
    with pytest.raises(UserError, match="this record cannot be kept: 'threads' is 0"):
        database.append([make_record(1), make_record(2, threads=0)])

    assert path.read_bytes() == HEADER


def test_a_lock_that_is_not_given_back_is_named(path: Path) -> None:
    database = Database(path, lock_seconds=0.05)
    with FileLock(path.with_name(".tuned.db.lock")), pytest.raises(UserError, match="have kept it locked for"):
        database.append([make_record()])
    database.append([make_record()])

    assert len(all_records(path)) == 1


# Many writers, and writers that die.


def test_many_processes_append_at_once(path: Path) -> None:
    writers, batches, size = 12, 8, 5

    def write(writer: int) -> None:
        database = Database(path)
        for batch in range(batches):
            first = (writer * batches + batch) * size
            database.append([make_record(first + i, 1e-3 / (first + i + 1)) for i in range(size)])
            assert database.best(WORKLOAD, TARGET, 2).seconds <= 1e-3 / (first + size)
            problems = database.problems  # read once: each look may find that another writer has finished its line
            assert problems == () or "no end" in problems[0].why

    children = [FORK.Process(target=write, args=(writer,)) for writer in range(writers)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)

    assert [child.exitcode for child in children] == [0] * writers
    numbers = [record.trial for record in all_records(path)]
    assert sorted(numbers) == list(range(writers * batches * size))
    assert all(numbers[i : i + size] == list(range(numbers[i], numbers[i] + size)) for i in range(0, len(numbers), size))
    assert Database(path).problems == ()


def test_threads_share_an_object(database: Database) -> None:
    def work(writer: int) -> None:
        for number in range(10):
            database.append([make_record(writer * 10 + number, 1e-3 / (number + 1))])
            assert database.best(WORKLOAD, TARGET, 2) is not None
            assert database.num_records > 0

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(record.trial for record in database.records()) == list(range(60))
    assert database.best(WORKLOAD, TARGET, 2).seconds == 1e-4


def test_readers_see_whole_records_while_pruning_and_appending_go_on(path: Path) -> None:
    database = Database(path)
    database.append([make_record(i, 1e-3 * (i + 1)) for i in range(50)])

    def write() -> None:
        writer = Database(path)
        for round_ in range(15):
            writer.append([make_record(1000 + round_ * 10 + i, 1.0) for i in range(10)])
            writer.prune(5)

    child = FORK.Process(target=write)
    child.start()
    while child.is_alive():
        assert database.best(WORKLOAD, TARGET, 2) == make_record(0, 1e-3)
        assert [record.trial for record in database.records()][:5] == [0, 1, 2, 3, 4]

    child.join()
    assert child.exitcode == 0
    assert [record.trial for record in database.records()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("written", [0, 1, 700, 1500])
def test_a_writer_killed_in_the_middle_of_a_write_loses_only_its_batch(written: int, database: Database, path: Path) -> None:
    database.append([make_record(1)])
    batch = [make_record(i) for i in (2, 3, 4)]

    def write() -> None:
        def write_and_die(descriptor: int, data: bytes) -> int:
            real_write(descriptor, data[:written])
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        real_write, os.write = os.write, write_and_die
        database.append(batch)

    in_child(write, signal_expected=signal.SIGKILL)

    whole = b"".join(map(encode, batch))[:written].count(b"\n")
    survivors = [1, *(record.trial for record in batch[:whole])]
    assert [record.trial for record in database.records()] == survivors
    database.append([make_record(9)])  # the lock is free, the torn line is gone
    assert [record.trial for record in database.records()] == [*survivors, 9]
    assert database.problems == () == Database(path).problems


def test_a_writer_killed_while_pruning_leaves_the_old_file(database: Database, path: Path) -> None:
    database.append([make_record(i) for i in range(20)])
    before = path.read_bytes()

    def prune() -> None:
        def die(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        os.replace = die
        database.prune(1)

    in_child(prune, signal_expected=signal.SIGKILL)

    assert path.read_bytes() == before
    assert database.prune(1).kept == 1


def test_writers_killed_at_any_time_lose_at_most_one_batch(path: Path) -> None:
    size, rng = 3, random.Random(0)
    confirmed: list[int] = []

    def write(first: int, pipe: Any) -> None:
        database = Database(path)
        for number in range(first, first + 10_000, size):
            database.append([make_record(number + i) for i in range(size)])
            pipe.send(number)

    for attempt in range(8):
        receiver, sender = FORK.Pipe(duplex=False)
        child = FORK.Process(target=write, args=(attempt * 100_000, sender))
        child.start()
        sender.close()
        assert receiver.poll(30)
        time.sleep(rng.random() * 0.05)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        with contextlib.suppress(EOFError):
            while True:
                confirmed.append(receiver.recv())

    found = {record.trial for record in all_records(path)}
    assert found.issuperset(number + i for number in confirmed for i in range(size))
    assert len(found) <= (len(confirmed) + 8) * size
    Database(path).append([make_record(7)])
    assert Database(path).problems == ()


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


@pytest.mark.parametrize("seed", range(60))
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
