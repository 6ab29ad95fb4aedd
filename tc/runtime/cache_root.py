"""The folder in which compiled code is kept, and why what lies in it may be run.

Native code that is read from the cache is run, so nobody but the user may be able to put it there. Two defences, each enough alone
against another user of the machine: the folders belong to the user and nobody else may write to them, and every entry carries a code
(HMAC-SHA256 over its name and contents) under a key that only the user can read. What fails either is not used.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

import platformdirs

KEY_BYTES = 32
KEY_NAME = "key"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_log = logging.getLogger("tc.cache")
_said: set[str] = set()


class _Refused(Exception):
    """The folder is not one to keep native code in, and why."""


@dataclass(frozen=True)
class CacheFolder:
    """A folder that is the user's alone, and the key to its entries."""

    path: Path
    key: bytes

    def seal(self, name: str, digest: bytes) -> bytes:
        """The 32 bytes that show that this user's tc wrote contents of this digest under this name."""
        return hmac.digest(self.key, name.encode() + b"\0" + digest, "sha256")


def cache_path() -> Path | None:
    """TC_CACHE_DIR, else the user's cache folder. None when TC_CACHE_DIR is "0" or "off"."""
    chosen = os.environ.get("TC_CACHE_DIR")
    if chosen in ("0", "off"):
        return None
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("tc"))


def open_cache_folder(part: str, root: Path | None = None) -> CacheFolder | None:
    """A part of the cache in `root`, made if it is missing; None when the cache is switched off, or cannot be trusted or used.

    The reason is logged as one warning a process.
    """
    root = cache_path() if root is None else root
    if root is None:
        return None
    found = _open(root, part)
    if isinstance(found, CacheFolder):
        return found
    warn_once(f"compiled code is not cached: {found}")
    return None


def warn_once(message: str) -> None:
    """Log a warning that this process has not given yet."""
    if message not in _said:
        _said.add(message)
        _log.warning("%s", message)


def cache_problem(root: Path) -> str | None:
    """Why no code can be kept in this folder, or None; it is made if it is missing."""
    found = _open(root, "objects")
    return found if isinstance(found, str) else None


def _open(root: Path, part: str) -> CacheFolder | str:
    """The folder, or what is wrong with it."""
    place = root.absolute()
    try:
        _make(place)
        check_owned(place)
        key = _read_key(place / KEY_NAME)
        if part:
            place = place / part
            _make(place)
            check_owned(place)
            if stat.S_IMODE(place.stat().st_mode) & _OTHERS:
                place.chmod(0o700)
    except _Refused as refusal:
        return str(refusal)
    except OSError as error:
        return f"{error.filename or place}: {error.strerror or error}"
    return CacheFolder(place, key)


def check_owned(folder: Path) -> None:
    """Refuse a folder that is not the user's own, or that others may write to."""
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise _Refused(f"{folder} is not a folder")
    if status.st_uid != os.geteuid():
        raise _Refused(f"{folder} belongs to user {status.st_uid}, not to you (user {os.geteuid()})")
    if status.st_mode & _OTHERS_WRITE:
        raise _Refused(f"other users may write to {folder} (mode {stat.S_IMODE(status.st_mode):04o}); chmod 700 makes it yours alone")


def _make(folder: Path) -> None:
    """Make a folder and those above it, for the user alone whatever the umask is."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        try:
            each.mkdir(mode=0o700)
        except FileExistsError:
            if not each.is_dir():
                raise  # something else of that name; a folder is another process's that came first


def _read_key(path: Path) -> bytes:
    """The key, made if it is missing. Checked on the open file, so that nobody can put another in its place in between."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        _make_key(path)
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(handle)
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or mode & _OTHERS:
            raise _Refused(f"{path} is not a file that you alone can read (owner {status.st_uid}, mode {mode:04o}); remove it")
        key = os.read(handle, KEY_BYTES + 1)
    finally:
        os.close(handle)
    if len(key) != KEY_BYTES:
        raise _Refused(f"{path} is not a key of {KEY_BYTES} bytes; remove it, and a new one is made")
    return key


def _make_key(path: Path) -> None:
    """Write a new key; where another process was first, its key stays. It appears with all its bytes or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        try:
            os.link(unfinished, path)
        except FileExistsError:
            return
    finally:
        unfinished.unlink(missing_ok=True)
