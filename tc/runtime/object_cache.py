"""Object code on disk, by content key.

Each entry is one file: a header with magic, version and the payload's sha256, then the payload. Files appear by renaming, so a
reader sees all of one or nothing; one that does not match its hash is removed and counts as missing. When the folder
cannot be used (read-only, full, missing), there is no cache, one warning, and no error.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import tempfile
import time
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

_MAGIC = b"tc-object"
_VERSION = 1
_HEADER = struct.Struct(f"<{len(_MAGIC)}sI32sQ")
_log = logging.getLogger("tc.cache")
DEFAULT_LIMIT_BYTES = 1 << 30
_PRUNE_EVERY_SECONDS = 60.0


def cache_folder() -> Path | None:
    """Where objects are kept: TC_CACHE_DIR, else the user's cache folder. None when TC_CACHE_DIR is "0" or "off"."""
    chosen = os.environ.get("TC_CACHE_DIR")
    if chosen in ("0", "off"):
        return None
    return (Path(chosen) if chosen else Path(platformdirs.user_cache_dir("tc"))) / "objects"


class ObjectCache:
    """A folder of object files. Safe for any number of processes at once."""

    def __init__(self, folder: Path | None = None, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.folder = folder if folder is not None else cache_folder()
        self.limit_bytes = limit_bytes
        self._warned = False
        self._pruned_at = time.monotonic()

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / f"{key}.tco"

    def get(self, key: str) -> bytes | None:
        """The payload stored under `key`, verified; None when there is none."""
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        payload = _unpack(data)
        if payload is None:
            _log.warning("cache entry %s is damaged and will be rebuilt", path.name)
            self._try(path.unlink)
            return None
        self._try(lambda: os.utime(path))  # the time of last use decides what goes first
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Store `payload`; does nothing, with one warning, when the folder cannot be written."""
        if self.folder is None:
            return
        path = self._path(key)
        header = _HEADER.pack(_MAGIC, _VERSION, hashlib.sha256(payload).digest(), len(payload))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(header + payload)
                os.replace(name, path)
            except BaseException:
                self._try(lambda: os.unlink(name))
                raise
        except OSError as error:
            self._warn(error)
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

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("object code is not cached: %s", error)


def _unpack(data: bytes) -> bytes | None:
    if len(data) < _HEADER.size:
        return None
    magic, version, digest, size = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if magic != _MAGIC or version != _VERSION or len(payload) != size:
        return None
    return payload if hashlib.sha256(payload).digest() == digest else None
