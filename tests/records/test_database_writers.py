"""The tuning database when files are shared, full, or not the user's to write: nothing is lost."""

from __future__ import annotations

import contextlib
import errno
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
from tc.records import file
from tc.records.database import Database
from tc.records.file import HEADER
from tc.records.record import encode
from tests.records.made_up_records import TARGET, WORKLOAD, all_records, make_record

FORK = multiprocessing.get_context("fork")


def in_child(body: Callable[[], None], *, signal_expected: int = 0) -> None:
    """Run `body` in a child process, which must end well, or by that signal."""
    child = FORK.Process(target=body)
    child.start()
    child.join(60)
    assert child.exitcode == -signal_expected


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
            with pytest.raises(UserError, match=r"new.db: cannot be written: Permission denied \[TC4020\]$"):
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
