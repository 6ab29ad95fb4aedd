"""Whole compiled modules on disk, so that compiling the same model again is reading a file.

The key is a hash of all that the result depends on: the model's bytes, the options, and the compiler itself. The bytes have a hash of
their own in it, which is not waited for where no file can be the one: hashing a large model takes as long as importing it. Files appear
whole or not at all, carry the user's seal instead of a plain hash (`tc.runtime.cache_root`), are verified when read, and the least recently
used go first when the folder exceeds its bound.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from tc.errors import ModelError, UserError
from tc.frontend.onnx.tensors import map_file, path_inside
from tc.ir.cached import cached_property
from tc.runtime.cache_root import open_cache_folder, warn_once
from tc.runtime.digest import digest_of
from tc.runtime.saved import Seal
from tc.version import compiler_fingerprint

DEFAULT_LIMIT_BYTES = 2 << 30
LARGEST_SHARE = 4
"""A module that takes more than 1 / LARGEST_SHARE of the bound is not kept."""

_BEGINNING = 32
"""Characters of the part of a key that is known at once."""

_log = logging.getLogger("tc.cache")


class ModelKey:
    """What the compiled module of a model is found by: a hash of its size, of what else decides the result, and of the compiler; and,
    computed when it is first asked for, that of its bytes."""

    def __init__(self, model: bytes | memoryview, facts: Sequence[object], path: Path | None = None) -> None:
        self.beginning = hashlib.sha256(repr((len(model), compiler_fingerprint(), *facts)).encode()).hexdigest()[:_BEGINNING]
        self._model = model
        self._path = path
        self._state = None if path is None else _state(path)
        self._beside: dict[Path, tuple[int, ...] | None] = {}
        self.is_named = False

    @cached_property
    def name(self) -> str:
        """The whole key. A file must still be what it was, unless `is_named`: it is mapped, and where it was cut short there is nothing."""
        found = f"{self.beginning}{digest_of(self._model).hex()}"
        self.is_named = True
        return found

    def is_current(self) -> bool:
        """Whether the file is the one that it was, so that what has been read of it since belongs to the key."""
        return self._path is None or _state(self._path) == self._state

    def add_files(self, names: Iterable[str]) -> None:
        """The files beside the model that it was made of, too: the key says nothing of what they hold."""
        if self._path is not None:
            paths = [self._path.parent / inside for name in names if (inside := path_inside(name)) is not None]
            self._beside.update((path, _state(path)) for path in paths)

    def has_current_files(self) -> bool:
        """Whether the files beside the model are those that they were."""
        return all(_state(path) == state for path, state in self._beside.items())


def refuse_change(action: str, key: ModelKey | None, make_again: Callable[[], ModelKey | None]) -> None:
    """UserError unless a model's files still are what the key is of: what else is made of them would be of another model."""
    if key is None:
        return
    if not key.has_current_files():
        raise UserError(f"{action}: the model's external data have changed since it was compiled; compile it again")
    if key.is_current() or (key.is_named and (found := make_again()) is not None and found.name == key.name):
        return
    raise UserError(f"{action}: the model's file has changed since it was compiled; compile it again")


def model_key(model: object, *facts: object, domains: Collection[str] = ()) -> ModelKey | None:
    """The key of a model's file or bytes; None for others, and for files that cannot be read: the importer says what is wrong.

    `domains`: of operators that users have defined in Python, by code that nothing here can compare. A file that may use one of them, in
    that it names the domain, has no key; its kernels are in the cache of objects, which goes by what they compute.
    """
    data: bytes | memoryview
    path = None
    match model:
        case bytes():
            data = model
        case str() | os.PathLike():
            path = Path(model)
            try:
                data = map_file(path)
            except ModelError:
                return None
        case _:
            return None
    return None if any(re.search(re.escape(domain.encode()), data) for domain in domains) else ModelKey(data, facts, path)


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

    def find_model(
        self, key: ModelKey | None, read: Callable[[Path, Seal], object], beside: Callable[[Callable[[], str]], object]
    ) -> object | None:
        """`find` of a model. Where no file can be its module, the rest of its key is computed `beside` what its caller does next."""
        if key is None or self.folder is None:
            return None
        if any(self.folder.glob(f"{key.beginning}*.tcm")):
            return self.find(key.name, read)
        beside(lambda: key.name)
        return None

    def store_model(self, key: ModelKey, size_bytes: int, write: Callable[[Path, Seal], None]) -> None:
        """`store` of a model, unless its file has been changed meanwhile."""
        if self.folder is not None and key.is_current():
            self.store(key.name, size_bytes, write)

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


def _state(path: Path) -> tuple[int, ...] | None:
    """What changes with the contents of a file, or when another takes its place."""
    status = _status(path)
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)


def _status(path: Path) -> os.stat_result | None:
    """What the file system says of a file; None when another process has just removed it."""
    try:
        return path.stat()
    except OSError:
        return None
