"""Memory for results, used again when nobody holds it any more.

Fresh memory costs a fault of the page table for every page that is written first, up to half the time of a model that is bound by
memory. A large result therefore lies in a block that comes from here and returns when its last owner is gone: a view, a memoryview
and whoever took it through DLPack keep the array alive, and with it the loan that is its base.

A block belongs to one loan or is idle, and is taken out of the idle ones in one step: no two threads get the same. No more are kept
idle than the last calls had at once, or, up to KEPT_BYTES, than callers held at once; what a call needed longer ago is given back.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tc.runtime.available import check_fits
from tc.runtime.memory import LEAST_ALIGNED_BYTES, Arena, no_array, result_array

LEAST_LENT_BYTES = 128 << 10
"""What is smaller comes from numpy: the allocator of the C library keeps such memory itself."""

KEPT_BYTES = 32 << 20
"""Of one size that may be idle because a caller held so many results: about what the allocator of the C library keeps."""

CALLS_REMEMBERED = 16
MANY = 1 << 30


class _Loan:
    """The base of a result: a ctypes array of the bytes of one block, which goes back to its shelf at the end."""

    block: Arena
    shelf: Shelf

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("the memory of a result is no object of its own; copy the array")

    def __del__(self) -> None:
        shelf = self.shelf
        shelf.lent.discard(self.block.address)
        if len(shelf.idle) < shelf.limit:
            shelf.idle.append(self.block)


class Shelf:
    """The blocks of one size, of which at most `limit` are kept idle. `lent`: the addresses of those that somebody holds."""

    __slots__ = ("__weakref__", "_loan", "idle", "last_call", "lent", "limit", "most", "size_bytes", "unused")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.idle: list[Arena] = []
        self.lent: set[int] = set()
        self.limit = 0
        # Since old ones were forgotten: the most that calls may have had at once, and how many were idle all the time.
        self.most = 0
        self.unused = MANY
        self.last_call = 0
        self._loan = type("Loan", (_Loan, ctypes.c_uint8 * size_bytes), {})

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array in a block that nobody holds."""
        try:
            block = self.idle.pop()
            self.unused = min(self.unused, len(self.idle))
        except IndexError:
            self.unused = 0
            check_fits(self.size_bytes)
            block = Arena(self.size_bytes)
        loan = self._loan.from_address(block.address)  # type: ignore[attr-defined]
        loan.shelf = self
        loan.block = block
        self.lent.add(block.address)
        array: np.ndarray = np.ndarray(shape, dtype, loan)
        return array


class ResultPool:
    """The memory for the results of one module."""

    def __init__(self) -> None:
        self._shelves: dict[int, Shelf] = {}
        self._calls = 0

    def arrays(self, wanted: Sequence[tuple[tuple[int, ...], np.dtype]], callers: int) -> list[np.ndarray]:
        """Arrays for the results of one call, of a module that had so many calls at once (0 counts as 1)."""
        if self._shelves:
            self._calls += 1
            if self._calls % CALLS_REMEMBERED == 0:
                self._forget_old()
        made: list[np.ndarray] = []
        counts: dict[int, int] = {}
        for shape, dtype in wanted:
            size = math.prod(shape) * dtype.itemsize
            if size < LEAST_LENT_BYTES:
                try:
                    made.append(np.empty(shape, dtype) if size < LEAST_ALIGNED_BYTES else result_array(shape, dtype))
                except ValueError:
                    raise no_array(shape) from None
                continue
            size = _rounded(size)
            counts[size] = count = counts.get(size, 0) + 1
            shelf = self._shelves.get(size)
            if shelf is None:
                shelf = self._shelves.setdefault(size, Shelf(size))
            shelf.last_call = self._calls
            made.append(shelf.array(shape, dtype))
            shelf.most = max(shelf.most, count * max(callers, 1), min(len(shelf.lent), KEPT_BYTES // size))
            shelf.limit = max(shelf.limit, shelf.most)
        return made

    def idle_bytes(self) -> int:
        """What is kept for results to come."""
        return sum(shelf.size_bytes * len(shelf.idle) for shelf in list(self._shelves.values()))

    def trim(self) -> None:
        """Give back what is idle, and later what is lent now."""
        for size in list(self._shelves):
            self._drop(size)

    def _forget_old(self) -> None:
        """Keep no block of a size that the last calls did not need, and none more than they did."""
        for size, shelf in list(self._shelves.items()):
            if shelf.last_call <= self._calls - CALLS_REMEMBERED:
                self._drop(size)
                continue
            shelf.limit, shelf.most = shelf.most, 0
            del shelf.idle[: shelf.unused]  # the last to come is the first to go: these lie at the bottom
            shelf.unused = MANY
            del shelf.idle[shelf.limit :]

    def _drop(self, size: int) -> None:
        shelf = self._shelves.pop(size, None)
        if shelf is not None:
            shelf.limit = 0
            shelf.idle.clear()


def _rounded(size_bytes: int) -> int:
    """The size of the block: a multiple of an eighth of the power of two below, so that growing results meet few sizes."""
    step = 1 << (size_bytes.bit_length() - 4)
    return -(-size_bytes // step) * step
