"""What a command hands back, and how values look on a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tc.errors import UsageError
from tc.files import whole_file
from tc.frontend.onnx.reading import data_files
from tc.ir.dtype import from_numpy


@dataclass(frozen=True)
class Outcome:
    """The result of a command: plain data for `--json`, a function that shows the same to people, the exit code."""

    data: dict[str, Any]
    show: Callable[[Console], None]
    exit_code: int = 0


def make_table(title: str, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> Table:
    """A table of plain text. Columns whose name ends in a blank are right-aligned; without names there is no header."""
    table = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        show_header=any(columns),
        header_style="dim",
        box=None,
        pad_edge=False,
    )
    for column in columns:
        table.add_column(column.strip(), justify="right" if column.endswith(" ") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_escape(str(cell)) for cell in row))
    return table


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


def format_shape(shape: Iterable[object], dtype: object) -> str:
    """`1x3x224x224xf32`; a scalar is `f32`."""
    return "x".join((*map(str, shape), str(dtype)))


def format_array(array: np.ndarray) -> str:
    """Shape and dtype of an array, as `format_shape`."""
    return format_shape(array.shape, from_numpy(array.dtype))


def format_bytes(size_bytes: int) -> str:
    """A size with a unit that leaves at most four digits."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def format_seconds(seconds: float) -> str:
    """A time with a unit that leaves one to three digits before the point."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def check_output(path: Path, option: str, model: Path | None = None, others: Mapping[str, Path | None] = MappingProxyType({})) -> None:
    """UserError, before any work is done, when no file can be written there, or it would replace what is read, or written as well.

    others: such files by what they are; of a folder all that is in it.
    """
    folder = path.parent
    try:
        if not folder.is_dir():
            raise UsageError(f"{option} {path}: there is no folder {str(folder)!r}")
        if path.is_dir():
            raise UsageError(f"{option} {path}: that is a folder")
        if path.exists() and not path.is_file():
            raise UsageError(f"{option} {path}: that is no file")
        for what, other in {"the model itself": model, **others}.items():
            if other is not None and _is_same(path, other):
                raise UsageError(f"{option} {path}: that is {what}; nothing was written")
        if model is not None and path.exists() and any(_is_same(path, each) for each in data_files(model)):
            raise UsageError(f"{option} {path}: that is data of the model; nothing was written")
        if not os.access(folder, os.W_OK):
            raise UsageError(f"{option} {path}: the folder {str(folder)!r} cannot be written")
    except (OSError, ValueError) as error:  # a name that is too long, a zero byte
        raise UsageError(f"{option} {path}: no file can have that name: {getattr(error, 'strerror', None) or error}") from error


def _is_same(path: Path, other: Path) -> bool:
    """Whether two names are of one file, there or not, or the second one is of the folder of the first, which is there."""
    if other.is_dir():
        return path.exists() and path.resolve().parent == other.resolve()
    return path.samefile(other) if path.exists() and other.exists() else path.resolve() == other.resolve()


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` fill a file beside `path` that then takes its name: an interruption leaves nothing half written."""
    try:
        with whole_file(path) as unfinished:
            write(unfinished)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
