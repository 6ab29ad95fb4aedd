"""Memory for values in between and for literals: aligned, in huge pages where there is much of it."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Callable, Sequence

import numpy as np

from tc.errors import LimitError
from tc.ops.arrays import contiguous
from tc.runtime.available import check_fits

ALIGNMENT = 64
"""Bytes at whose multiples values begin: a cache line, and the longest vector."""

_HUGE_PAGE = 2 << 20
LEAST_ALIGNED_BYTES = 1 << 14
LEAST_OWN_BYTES = 8 * _HUGE_PAGE
"""Of an array that is not moved into huge pages, as at most the first and the last part of it lie elsewhere."""
MOST_POPULATED_BYTES = 64 << 20
"""Of an arena whose pages are there before anything is written."""
_BEYOND_BYTES = 64 << 10
"""How far behind an arena vectors without lanes may reach."""
_MADV_POPULATE_WRITE = 23  # of Linux 5.14, which Python does not name
# Python's own choice, MAP_SHARED, is memory that a forked child would share with its parent, and that gets no huge pages.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def _described_address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _find_data_address() -> Callable[[np.ndarray], int]:
    """The fastest way to an array's address that is right here.

    The C API of numpy has the address as the first field behind the header of the object, from where it is read nine times
    faster than from `__array_interface__`. Whether that holds is tried out.
    """
    if sys.implementation.name != "cpython":
        return _described_address
    header = object.__basicsize__
    word = ctypes.c_size_t.from_address

    def stored_address(array: np.ndarray) -> int:
        return word(id(array) + header).value

    room = np.zeros((3, 5), np.float32)
    samples = (room, room[1:, 2:], room.T, room[1, 3:], np.zeros((), np.int8))
    is_stored = all(stored_address(sample) == _described_address(sample) for sample in samples)
    return stored_address if is_stored else _described_address


data_address = _find_data_address()
"""Where the first element of an array lies."""


class Arena:
    """Anonymous memory of this process alone, aligned, in huge pages when it is large. A forked child has a copy of its own."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        try:
            self._memory = mmap.mmap(-1, max(size_bytes, 1) + _HUGE_PAGE, **_PRIVATE)
        except (OSError, OverflowError):
            raise MemoryError(f"no memory for {size_bytes} bytes") from None
        if size_bytes >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        step = _HUGE_PAGE if size_bytes >= _HUGE_PAGE else ALIGNMENT
        self.address = -(-start // step) * step
        self._offset = self.address - start
        self._populate()

    def bytes(self) -> np.ndarray:
        """uint8[size_bytes]; the memory stays as long as this or a part of it does."""
        return np.frombuffer(self._memory, np.uint8, self.size_bytes, self._offset)

    def _populate(self) -> None:
        """Have the pages there, if they are not too many, and in any case those behind them.

        Kernels access memory by vectors some of whose lanes are off. Where all are, a page that is not there is not brought in either, and
        the processor takes an assist, hundreds of cycles, at each access in each call (measured: up to 25 times the time of a kernel).
        """
        start = self._offset if self.size_bytes <= MOST_POPULATED_BYTES else self._offset + self.size_bytes
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        size = min(self._offset + self.size_bytes + _BEYOND_BYTES, len(self._memory)) - first
        try:
            self._memory.madvise(_MADV_POPULATE_WRITE, first, size)
        except (AttributeError, OSError, ValueError):  # no Linux, or an old one
            np.frombuffer(self._memory, np.uint8, size, first)[:: mmap.PAGESIZE] = 0

    def discard(self) -> None:
        """Give the pages back; what they held is lost, and the addresses stay good."""
        if _PRIVATE and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED)


def place_constants(values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The values, contiguous, each beginning at a multiple of ALIGNMENT.

    Together they are read once per call of a model, mostly front to back: where they are large they go into huge pages, whose
    addresses the processor translates without walking tables (measured: up to a twentieth of a memory-bound model's time).
    Small ones are copied only if need be: where they begin elsewhere, or where somebody may change them, as whoever writes to the file
    that they lie in. So are those of LEAST_OWN_BYTES: numpy asks for huge pages as well.
    """
    values = [contiguous(value) for value in values]
    sizes = [0 if _may_stay(value) else -(-value.nbytes // ALIGNMENT) * ALIGNMENT for value in values]
    if sum(sizes) < _HUGE_PAGE:
        return [value if value.nbytes == 0 or _is_kept(value) else _copied(value) for value in values]
    room = Arena(sum(sizes)).bytes()
    placed, offset = [], 0
    for value, size in zip(values, sizes, strict=True):
        if not size:
            placed.append(value)
            continue
        copy = room[offset : offset + value.nbytes].view(value.dtype).reshape(value.shape)
        copy[...] = value
        placed.append(copy)
        offset += size
    return placed


def _may_stay(value: np.ndarray) -> bool:
    """Whether an array is large and kept, or empty."""
    return value.nbytes == 0 or (value.nbytes >= LEAST_OWN_BYTES and _is_kept(value))


def _is_kept(value: np.ndarray) -> bool:
    """Whether an array is aligned, in memory that numpy has allocated and nobody writes to."""
    owner = value
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return owner.flags.owndata and not (owner.flags.writeable or value.flags.writeable) and data_address(value) % ALIGNMENT == 0


def _copied(value: np.ndarray) -> np.ndarray:
    copy = aligned_empty(value.shape, value.dtype)
    copy[...] = value
    return copy


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that begins at a multiple of ALIGNMENT, its elements not set. Vectors that straddle two cache lines are stored twice."""
    size = math.prod(shape) * dtype.itemsize
    check_fits(size)
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -data_address(room) % ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)


def result_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array for a result: aligned where it is large enough to be worth the microsecond that this takes. LimitError when there is no
    memory for it."""
    if math.prod(shape) * dtype.itemsize >= LEAST_ALIGNED_BYTES:
        return aligned_empty(shape, dtype)
    try:
        return np.empty(shape, dtype)
    except ValueError:
        raise no_array(shape) from None


def no_array(shape: tuple[int, ...]) -> LimitError:
    """For a shape that numpy has no array of, though it holds no element: of dims beside a 0 it takes no more than memory could hold."""
    return LimitError(f"a result has the shape {shape}, of which there are no arrays")
