"""The version of `tc`, in the one place where it is written, and what tells one compiler from another of the same version."""

import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import llvmlite

__version__ = "0.1.0"

_IMPORTED_AT = time.time()


@cache
def compiler_fingerprint() -> str:
    """20 hex digits: equal for compilers that make the same of the same. Whatever is cached under it needs no version raised by hand.

    A hash over the files of the package, by name and content, and the version of llvmlite: an installed package and a checkout of the
    same sources are one compiler, wherever they lie. When a file has been written since this process imported the package, what runs is
    not what is written: the fingerprint is then one that no other process has.
    """
    return fingerprint_of(Path(__file__).parent, _IMPORTED_AT)


def fingerprint_of(folder: Path, imported_at: float) -> str:
    """`compiler_fingerprint` of the package in `folder`; `imported_at`: seconds, time.time."""
    digest = hashlib.sha256(f"llvmlite {llvmlite.__version__}\n".encode())
    now = time.time()
    for name, path in sorted(_files(str(folder), "")):
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            data = file.read()
        digest.update(f"{name} {len(data)}\n".encode() + data)
        if imported_at < max(status.st_mtime, status.st_ctime) <= now:
            digest.update(uuid.uuid4().bytes)
    return digest.hexdigest()[:20]


def _files(folder: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Names, relative to the package, and paths of its modules and its data."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "__pycache__")):
                continue
            if entry.is_dir():
                yield from _files(entry.path, f"{prefix}{entry.name}/")
            else:
                yield prefix + entry.name, entry.path
