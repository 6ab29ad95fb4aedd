"""Object code on disk, by content key.

Each entry is one file: a header with magic, version and the seal of the payload (`tc.runtime.cache_root`), then the payload. Files
appear by renaming, so a reader sees all of one or nothing; one that does not match its seal is removed and counts as missing. When
the folder cannot be trusted or used (another's, read-only, full, missing), there is no cache, one warning, and no error.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import struct
import tempfile
import time
from pathlib import Path

from filelock import FileLock, Timeout

from tc.runtime.cache_root import CacheFolder, open_cache_folder, warn_once

_MAGIC = b"tc-object"
_VERSION = 2
_HEADER = struct.Struct(f"<{len(_MAGIC)}sI32sQ")
_log = logging.getLogger("tc.cache")
DEFAULT_LIMIT_BYTES = 1 << 30
_PRUNE_EVERY_SECONDS = 60.0


class ObjectCache:
    """A folder of object files. Safe for any number of processes at once."""

    def __init__(self, folder: Path | None = None, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._at = open_cache_folder("objects") if folder is None else open_cache_folder("", folder)
        self.limit_bytes = limit_bytes
        self._pruned_at = time.monotonic()

    @property
    def folder(self) -> Path | None:
        """Where the entries lie; None without a cache."""
        return None if self._at is None else self._at.path

    def get(self, key: str) -> bytes | None:
        """The payload stored under `key`, verified; None when there is none."""
        if self._at is None:
            return None
        path = _entry(self._at, key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        payload = _unpack(data, self._at, key)
        if payload is None:
            _log.warning("cache entry %s is damaged and will be rebuilt", path.name)
            self._try(path.unlink)
            return None
        self._try(lambda: os.utime(path))  # the time of last use decides what goes first
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Store `payload`; does nothing, with one warning, when the folder cannot be written."""
        if self._at is None:
            return
        path = _entry(self._at, key)
        header = _HEADER.pack(_MAGIC, _VERSION, _seal(self._at, key, payload), len(payload))
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(header + payload)
                os.replace(name, path)
            except BaseException:
                self._try(lambda: os.unlink(name))
                raise
        except OSError as error:
            warn_once(f"object code is not cached: {path.parent}: {error.strerror or error}")
            return
        if time.monotonic() - self._pruned_at > _PRUNE_EVERY_SECONDS:
            self.prune()

    def prune(self) -> None:
        """Remove the least recently used entries until the folder is within its bound."""
        self._pruned_at = time.monotonic()
        if self.folder is None:
            return
        try:
            with FileLock(self.folder / ".lock", timeout=0):
                self._prune_locked()
        except (Timeout, OSError):
            return  # another process is at it, or the folder is not ours to change

    def _prune_locked(self) -> None:
        assert self.folder is not None
        entries = []
        for path in self.folder.glob("*/*.tco"):
            try:
                status = path.stat()
            except OSError:
                continue
            entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries, key=lambda entry: entry[0]):
            if total <= self.limit_bytes:
                break
            self._try(path.unlink)
            total -= size

    def _try(self, action: object) -> None:
        try:
            action()  # type: ignore[operator]
        except OSError:
            pass  # the entry is gone already, or the folder is read-only: nothing is lost


def _entry(at: CacheFolder, key: str) -> Path:
    return at.path / key[:2] / f"{key}.tco"


def _seal(at: CacheFolder, key: str, payload: bytes) -> bytes:
    return at.seal(f"object {key}", hashlib.sha256(payload).digest())


def _unpack(data: bytes, at: CacheFolder, key: str) -> bytes | None:
    """The payload of an entry; None when it is damaged, or was not written by this user under this key."""
    if len(data) < _HEADER.size:
        return None
    magic, version, seal, size = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if magic != _MAGIC or version != _VERSION or len(payload) != size:
        return None
    return payload if hmac.compare_digest(_seal(at, key, payload), seal) else None
