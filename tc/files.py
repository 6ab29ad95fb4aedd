"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NUMBERS = itertools.count()


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A name beside `path` for a file to be written, which becomes that of `path` at the end; when that raises, nothing has changed.

    A link stays, and the file that it leads to is replaced; permissions are kept. OSError for what is there and is no file, as a device.
    """
    file = Path(os.path.realpath(path))
    mode = file.stat().st_mode if file.exists() else None
    if mode is not None and not stat.S_ISREG(mode):
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, os.strerror(code) if stat.S_ISDIR(mode) else "it is no file", os.fspath(path))
    unfinished = file.with_name(f".tc-{os.getpid()}-{next(_NUMBERS)}.part{file.suffix}")
    try:
        yield unfinished
        if mode is not None:
            unfinished.chmod(stat.S_IMODE(mode))
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def why_no_arrays(error: Exception) -> str:
    """What numpy says of a file that it cannot read, without advice that is not the reader's to take."""
    return "it is no such file, or holds Python objects" if "allow_pickle" in str(error) else str(error)
