"""Literal arrays: copies of large ones, made in the order of memory."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from itertools import pairwise

import numpy as np

from tc.target.host import available_cpus
from tc.target.workers import Workers

LARGE_BYTES = 1 << 20
"""What does not fit the nearest cache, so that the order of the copy matters."""

ALIGNMENT = 64
PART_BYTES = 1 << 20
"""Bytes that are worth a thread."""

_TILE = (128, 1024)  # elements along the axis whose neighbours lie side by side in the source, and along the last one of the copy


def in_parts(count: int, size_bytes: int, run: Callable[[int, int], None]) -> None:
    """`run(start, stop)` for all of range(count), part by part: at once by threads where it is about many bytes, as numpy leaves the
    interpreter to others while it computes."""
    parts = min(count, size_bytes // PART_BYTES)
    parts = min(parts, available_cpus()) if parts > 1 else 1
    if parts < 2:
        run(0, count)
        return
    (own, *rest) = pairwise([count * k // parts for k in range(parts + 1)])
    with Workers(parts - 1) as threads:
        others = [threads.submit(copy_context().run, run, *part) for part in rest]
        run(*own)
    for other in others:
        other.result()


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array, C-contiguous: itself, or a copy that nobody may change; that of a large one begins at a multiple of ALIGNMENT.

    Source and copy are walked in tiles, of which the pages stay known to the processor: numpy alone takes seven times as long to
    turn a matrix of 150 MB.
    """
    if array.flags.c_contiguous or array.nbytes < LARGE_BYTES:
        return np.ascontiguousarray(array).reshape(array.shape)
    copy = _turned(array)
    copy.base.flags.writeable = copy.flags.writeable = False  # type: ignore[union-attr]
    return copy


def turned(array: np.ndarray) -> np.ndarray:
    """A C-contiguous copy of an array, whose axes may lie in any order."""
    return _turned(array) if array.nbytes >= LARGE_BYTES else array.copy()


def _turned(array: np.ndarray) -> np.ndarray:
    copy = _aligned_empty(array.shape, array.dtype)
    in_parts(array.shape[0], array.nbytes, lambda start, stop: _copy(array[start:stop], copy[start:stop]))
    return copy


def _copy(source: np.ndarray, copy: np.ndarray) -> None:
    last = source.ndim - 1
    near = min((d for d, size in enumerate(source.shape) if size > 1), key=lambda d: abs(source.strides[d]), default=last)
    if near == last:
        copy[...] = source
        return
    for i in range(0, source.shape[near], _TILE[0]):
        for j in range(0, source.shape[last], _TILE[1]):
            place = [slice(None)] * source.ndim
            place[near], place[last] = slice(i, i + _TILE[0]), slice(j, j + _TILE[1])
            copy[tuple(place)] = source[tuple(place)]


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape)) * dtype.itemsize
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return np.ndarray(shape, dtype, room, start)
