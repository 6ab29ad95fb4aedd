"""The file of a tuning database: lines that are only ever added, by any number of processes.

The first line names the format and its version. A batch is written at once under a lock and is on the disk when `append` returns; a
process that is killed on the way leaves at most a line without an end, which the next writer takes away. Nothing is written into a file
that is not a database of this version, and a write that fails takes back what it has written.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from tc.errors import DatabaseError, UserError
from tc.records.record import LINE_LIMIT_BYTES, DamagedLine, verify_checksum

FORMAT = "tc-tuning"
FORMAT_VERSION = 1
HEADER = b'{"format":"%s","version":%d}\n' % (FORMAT.encode(), FORMAT_VERSION)
LOCK_SECONDS = 60.0
"""How long a writer waits for the others."""


@dataclass(frozen=True)
class Line:
    """A line with its end, or, of one that is too long, its beginning. `number` counts from 1, `offset` and `length` in bytes."""

    number: int
    offset: int
    length: int
    data: bytes

    @property
    def is_blank(self) -> bool:
        return self.data.isspace()


class RecordFile:
    """The file at `path`, which is made if it is missing and `create` is set.

    UserError when it cannot be read, or when it is not a database of this version. With `create`, also when it cannot be added to,
    so that who has results to keep learns it at the start.
    """

    def __init__(self, path: str | Path, *, create: bool, lock_seconds: float = LOCK_SECONDS) -> None:
        self.shown = str(path)
        try:
            self.path = Path(path).resolve()  # one lock for all names of a file, and links stay when it is replaced
        except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a zero byte
            raise DatabaseError(f"{self.shown!r} is no path of a file: {error}") from error
        if self._exists() and self.path.is_dir():
            raise self._not_a_file()
        self.index_path = self.path.with_name(f".{self.path.name}.index")
        self._lock_seconds = lock_seconds
        self._locks: dict[int, FileLock] = {}  # one for each process: a lock is not inherited by fork
        if not create or self._exists():
            with self.open() as file:
                self.check_header(file)
        if create:
            self.append(())

    def open(self) -> BinaryIO:
        """The file, for reading; the caller closes it."""
        try:
            if not self.path.is_file() and self.path.exists():
                raise self._not_a_file()
            return open(self.path, "rb")
        except FileNotFoundError:
            raise DatabaseError(f"{self.shown}: there is no such tuning database") from None
        except OSError as error:
            raise DatabaseError(f"{self.shown}: cannot be read: {error.strerror}") from error

    def check_header(self, file: BinaryIO) -> int:
        """The length of the first line, after which the position is; 0 when not even that is complete. UserError when it is another's."""
        file.seek(0)
        head = file.readline(4096)
        if HEADER.startswith(head) and head != HEADER:
            file.seek(0)
            return 0
        try:
            data = json.loads(head)
            found, version = data["format"], data["version"]
        except (ValueError, TypeError, KeyError, RecursionError):
            found, version = None, None
        if found != FORMAT or type(version) is not int:
            raise DatabaseError(f"{self.shown}: is not a tuning database: its first line is not {HEADER.decode().strip()}")
        if version != FORMAT_VERSION:
            raise DatabaseError(
                f"{self.shown}: is a tuning database of version {version}; this tc reads and writes version {FORMAT_VERSION} only"
            )
        return len(head)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """No other process writes meanwhile. May be nested."""
        if self._exists() and not self.path.is_file():
            raise self._not_a_file()
        if not self.path.parent.is_dir():
            raise DatabaseError(f"{self.shown}: cannot be written: there is no folder {self.path.parent}")
        path = self.path.with_name(f".{self.path.name}.lock")
        lock = self._locks.setdefault(os.getpid(), FileLock(path, timeout=self._lock_seconds))
        try:
            path.touch()  # where that cannot be, the lock is waited for as if others had it
            lock.acquire()
        except Timeout:
            raise DatabaseError(f"{self.shown}: other processes have kept it locked for {self._lock_seconds:g} s") from None
        except (OSError, NotImplementedError) as error:
            raise self._cannot_be_written(error) from error
        try:
            yield
        finally:
            lock.release()

    def append(self, chunks: Iterable[bytes]) -> None:
        """Add chunks of whole lines: all of them, or none and a UserError. They are on the disk when this returns."""
        with self.locked():
            is_new = not self.path.exists()
            descriptor = self._open_for_append()
            try:
                start, missing = self._end_of_lines(descriptor)
                try:
                    _write_all(descriptor, _after(missing, chunks))
                except BaseException:
                    os.ftruncate(descriptor, start)
                    raise
            except OSError as error:
                raise self._cannot_be_written(error) from error
            finally:
                os.close(descriptor)
            if is_new:
                self._sync_folder()

    def replace(self, chunks: Iterable[bytes]) -> None:
        """Put a header and these lines in place of the file, at once; UserError and no change when that fails."""
        with self.locked():
            temporary = ""
            try:
                descriptor, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
                try:
                    os.fchmod(descriptor, stat.S_IMODE(self.path.stat().st_mode))
                    _write_all(descriptor, _after(HEADER, chunks))
                finally:
                    os.close(descriptor)
                os.replace(temporary, self.path)
            except BaseException as error:
                if temporary:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary)
                if isinstance(error, OSError):
                    raise self._cannot_be_written(error) from error
                raise
            self._sync_folder()

    def _open_for_append(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._cannot_be_written(error) from error

    def _end_of_lines(self, descriptor: int) -> tuple[int, bytes]:
        """Where the next line goes, and what must be put before it. A line that a killed writer left without an end is cut off."""
        with open(descriptor, "rb", closefd=False) as file:
            if not self.check_header(file):
                os.ftruncate(descriptor, 0)
                return 0, HEADER
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - LINE_LIMIT_BYTES)
            file.seek(start)
            tail = file.read(size - start)
        torn = tail[tail.rfind(b"\n") + 1 :]
        if not torn:
            return size, b""
        if len(torn) == LINE_LIMIT_BYTES or is_whole(torn):
            return size, b"\n"
        os.ftruncate(descriptor, size - len(torn))
        return size - len(torn), b""

    def _exists(self) -> bool:
        try:
            return self.path.exists()
        except OSError as error:
            raise DatabaseError(f"{self.shown}: cannot be read: {error.strerror}") from error

    def _sync_folder(self) -> None:
        with contextlib.suppress(OSError):  # not every file system can; the file itself is safe
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _not_a_file(self) -> UserError:
        kind = "a folder" if self.path.is_dir() else "no regular file"
        return DatabaseError(f"{self.shown}: is {kind}, not a tuning database")

    def _cannot_be_written(self, error: BaseException) -> UserError:
        if self.path.is_dir():
            return self._not_a_file()
        reason = getattr(error, "strerror", None) or error
        kept = "; what was in it is unchanged" if self.path.exists() else ""
        return DatabaseError(f"{self.shown}: cannot be written: {reason}{kept}")


def read_lines(file: BinaryIO, number: int, end: int) -> Iterator[Line]:
    """The lines from the file's position, line `number`, to offset `end`, but for a last one that has no end."""
    offset = file.tell()
    while offset < end:
        data = file.readline(LINE_LIMIT_BYTES + 1)
        last = data
        while last and not last.endswith(b"\n"):
            last = file.readline(LINE_LIMIT_BYTES)
        after = file.tell()
        if not last or after > end:
            return
        yield Line(number, offset, after - offset, data)
        offset = after
        number += 1


def is_whole(line: bytes) -> bool:
    """Whether `line` is as it was written, but for its end."""
    try:
        verify_checksum(line.rstrip(b"\r\n"))
    except DamagedLine:
        return False
    return True


def _after(first: bytes, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks, with `first` put before the first of them, to be written with it."""
    rest = iter(chunks)
    yield first + next(rest, b"")
    yield from rest


def _write_all(descriptor: int, chunks: Iterable[bytes]) -> None:
    """Write each chunk at once, as far as the system lets, and wait for the disk."""
    for chunk in chunks:
        left = memoryview(chunk)
        while left:
            left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)
