"""Whole compiled modules on disk, so that compiling the same model again is reading a file.

The key is a hash of all that the result depends on: the model's bytes, the options, and the compiler itself. Files appear whole or
not at all, carry the user's seal instead of a plain hash (`tc.runtime.cache_root`), are verified when read, and the least recently
used go first when the folder exceeds its bound.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from tc.errors import ModelError
from tc.frontend.onnx.tensors import map_file
from tc.runtime.cache_root import open_cache_folder, warn_once
from tc.runtime.digest import digest_of
from tc.runtime.saved import Seal
from tc.version import compiler_fingerprint

DEFAULT_LIMIT_BYTES = 2 << 30
LARGEST_SHARE = 4
"""A module that takes more than 1 / LARGEST_SHARE of the bound is not kept."""

_log = logging.getLogger("tc.cache")


def model_key(model: object, *facts: object, domains: Collection[str] = ()) -> str | None:
    """`module_key` of a model's file or bytes; None for others, and for files that cannot be read: the importer says what is wrong.

    `domains`: of operators that users have defined in Python, by code that nothing here can compare. A file that may use one of them, in
    that it names the domain, has no key; its kernels are in the cache of objects, which goes by what they compute.
    """
    data: bytes | memoryview
    match model:
        case bytes():
            data = model
        case str() | os.PathLike():
            try:
                data = map_file(Path(model))
            except ModelError:
                return None
        case _:
            return None
    return None if any(re.search(re.escape(domain.encode()), data) for domain in domains) else module_key(data, *facts)


def module_key(model: bytes | memoryview, *facts: object) -> str:
    """What a compiled module is found by: a hash of the model, of what else decides the result, and of the compiler."""
    return hashlib.sha256(repr((digest_of(model), compiler_fingerprint(), *facts)).encode()).hexdigest()


class ModuleCache:
    """A folder of module files. Safe for any number of processes at once."""

    def __init__(self, folder: Path | None = None, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._at = open_cache_folder("modules") if folder is None else open_cache_folder("", folder)
        self.limit_bytes = limit_bytes

    @property
    def folder(self) -> Path | None:
        """Where the modules lie; None without a cache."""
        return None if self._at is None else self._at.path

    def _seal(self, key: str) -> Seal:
        assert self._at is not None
        return partial(self._at.seal, f"module {key}")

    def find(self, key: str, read: Callable[[Path, Seal], object]) -> object | None:
        """What `read` makes of the file stored under `key`; None when there is none, or it is damaged or forged (and then removed)."""
        if self.folder is None:
            return None
        path = self._path(key)
        if not path.exists():
            return None
        try:
            found = read(path, self._seal(key))
        except ModelError as error:
            _log.warning("cached module %s is damaged and will be rebuilt: %s", path.name, error)
            self._remove(path)
            return None
        except OSError:
            return None
        with contextlib.suppress(OSError):  # a folder that is only read serves as well
            os.utime(path)  # the time of last use decides what goes first
        return found

    def store(self, key: str, size_bytes: int, write: Callable[[Path, Seal], None]) -> None:
        """Let `write` make the file for `key`; does nothing when it is large beside the bound, or the folder cannot be written."""
        if self.folder is None or size_bytes * LARGEST_SHARE > self.limit_bytes:
            return
        path = self._path(key)
        try:
            with FileLock(path.with_suffix(".lock"), timeout=0):
                write(path, self._seal(key))
            with FileLock(self.folder / ".lock", timeout=0):
                self._prune()
        except Timeout:
            return  # another process is at it
        except OSError as error:
            warn_once(f"modules are not cached: {error.filename or path.parent}: {error.strerror or error}")

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}.tcm"

    def _prune(self) -> None:
        assert self.folder is not None
        entries = sorted((s.st_mtime, s.st_size, path) for path in self.folder.glob("*.tcm") if (s := _status(path)) is not None)
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self.limit_bytes:
                return
            self._remove(path)
            total -= size

    def _remove(self, path: Path) -> None:
        for each in (path, path.with_suffix(".lock")):
            try:
                each.unlink()
            except OSError:
                continue  # gone already, or not ours to remove


def _status(path: Path) -> os.stat_result | None:
    """What the file system says of a file; None when another process has just removed it."""
    try:
        return path.stat()
    except OSError:
        return None
