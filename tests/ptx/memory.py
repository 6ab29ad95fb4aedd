"""The memories of a launch: the heap (global, const, param), shared memory of the blocks that run together, local memory.

Addresses: the heap starts at HEAP, far above 32 bits, so that a truncated pointer is caught; the generic window of
shared memory at SHARED, that of local memory at LOCAL. Inside their state spaces both start at small addresses.
Every access is checked as a whole before anything is touched.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from tests.ptx.errors import Misaligned, OutOfBounds

HEAP = 0x7F_0000_0000
SHARED = 0x100_0000_0000
LOCAL = 0x200_0000_0000
WINDOW = 1 << 32
SHARED_START = 1024  # hardware keeps the first KiB for itself
LOCAL_START = 16
FILL = 0xCD  # of memory that nobody wrote
GAP = 256  # between neighbours on the heap

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def check_aligned(address: np.ndarray, size: int, what: str) -> None:
    wrong = address & address.dtype.type(size - 1)
    if size > 1 and wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise Misaligned(f"{what} address 0x{int(address[at]):x} is no multiple of {size}", at)


@dataclass(frozen=True)
class Region:
    """One array or variable on the heap: bytes [start, end) of it."""

    name: str
    start: int
    end: int
    writable: bool = True


class Heap:
    """All of global, const and param memory as one array of bytes, in regions with gaps."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.parts: list[np.ndarray] = []
        self.size = 0
        self.bytes = np.zeros(0, np.uint8)

    def add(self, name: str, content: np.ndarray, *, misalign: int = 0, writable: bool = True) -> int:
        """Append a region with these bytes; its address. It starts `misalign` bytes behind a multiple of 256."""
        start = -(-(self.size + GAP) // 256) * 256 + misalign
        self.regions.append(Region(name, start, start + content.size, writable))
        self.parts.append(content)
        self.size = start + content.size
        return HEAP + start

    def freeze(self) -> None:
        """Lay all regions out; none may be added afterwards."""
        self.bytes = np.full(-(-(self.size + GAP) // 256) * 256, FILL, np.uint8)
        for region, part in zip(self.regions, self.parts, strict=True):
            self.bytes[region.start : region.end] = part
        self.starts = np.array([r.start for r in self.regions], np.int64)
        self.ends = np.array([r.end for r in self.regions], np.int64)
        self.start_list = self.starts.tolist()
        self.views = {size: self.bytes.view(dtype) for size, dtype in UNSIGNED.items()}

    def region_at(self, address: int) -> Region | None:
        i = bisect_right(self.start_list, address - HEAP) - 1
        return self.regions[i] if i >= 0 and address - HEAP < self.regions[i].end else None

    def content(self, address: int, size: int) -> np.ndarray:
        """The bytes from `address`, for those who have checked them."""
        return self.bytes[address - HEAP : address - HEAP + size]

    def check(self, address: np.ndarray, size: int, writing: bool) -> np.ndarray:
        """Offsets into `bytes` of valid accesses. Raises OutOfBounds or Misaligned."""
        check_aligned(address, size, "global")
        offset = address.astype(np.int64) - HEAP
        low, high = int(offset.min()), int(offset.max())
        i = bisect_right(self.start_list, low) - 1
        if i >= 0 and high + size <= self.regions[i].end and low >= self.regions[i].start:
            if writing and not self.regions[i].writable:
                raise OutOfBounds(f"{self.regions[i].name} is constant", 0)
            return offset
        return self.check_each(address, offset, size, writing)

    def check_each(self, address: np.ndarray, offset: np.ndarray, size: int, writing: bool) -> np.ndarray:
        if not self.regions:
            raise OutOfBounds("there is no global memory", 0)
        i = np.searchsorted(self.starts, offset, "right") - 1
        bad = (i < 0) | (offset + size > self.ends[i]) | (offset < self.starts[i])
        if writing:
            bad |= ~np.array([r.writable for r in self.regions])[i]
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise OutOfBounds(self.complain(int(address[at]), size), at)
        return offset

    def check_words(self, address: np.ndarray, size: int) -> np.ndarray:
        """As `check`, for atomic instructions: they may reach the word of four bytes that holds the last bytes of an array.

        What lies behind the array must stay as it was; see `check_gaps`.
        """
        offset = address.astype(np.int64) - HEAP
        i = np.searchsorted(self.starts, offset, "right") - 1
        held = (i >= 0) & (offset < self.ends[i]) & (offset + size <= -(-self.ends[i] // 4) * 4)
        if not held.all():
            at = int(np.flatnonzero(~held)[0])
            raise OutOfBounds(self.complain(int(address[at]), size), at)
        check_aligned(address, size, "global")
        return offset

    def check_gaps(self) -> None:
        """Raises OutOfBounds if bytes between arrays were changed."""
        for region, after in zip(self.regions, [*self.start_list[1:], self.bytes.size], strict=True):
            if (self.bytes[region.end : after] != FILL).any():
                raise OutOfBounds(f"bytes behind {region.name} were changed")

    def complain(self, address: int, size: int) -> str:
        i = bisect_right(self.start_list, address - HEAP) - 1
        text = f"{size} bytes at address 0x{address:x} lie in no array"
        if not 0 <= i < len(self.regions):
            return text
        region = self.regions[i]
        length = region.end - region.start
        return f"{text}: byte {address - HEAP - region.start} from the start of {region.name}, which has {length} bytes"

    def load(self, address: np.ndarray, size: int, count: int) -> np.ndarray:
        """`count` consecutive values of `size` bytes from each address: unsigned[n, count]."""
        return self.take(self.check(address, size * count, False), size, count)

    def take(self, offset: np.ndarray, size: int, count: int) -> np.ndarray:
        view = self.views[size]
        if count == 1:
            return view[offset // size][:, None]
        width = size * count
        if self.bytes.size % width == 0:
            return view.reshape(-1, count)[offset // width]
        return view[(offset // size)[:, None] + np.arange(count)]

    def store(self, address: np.ndarray, size: int, values: np.ndarray) -> None:
        """Write values unsigned[n, count]; where lanes meet, the last one wins."""
        offset = self.check(address, size * values.shape[1], True)
        self.views[size][(offset // size)[:, None] + np.arange(values.shape[1])] = values


class LocalMemory:
    """Private bytes of every lane. Never written ones hold rubbish."""

    def __init__(self, lanes: int, size: int) -> None:
        self.stride = -(-(LOCAL_START + size) // 16) * 16
        self.end = LOCAL_START + size
        self.bytes = np.full(lanes * self.stride, 0xCD, np.uint8)
        self.views = {width: self.bytes.view(dtype) for width, dtype in UNSIGNED.items()}

    def index(self, lane: np.ndarray, address: np.ndarray, size: int, count: int) -> np.ndarray:
        check_aligned(address, size * count, "local")
        at = address.astype(np.int64)
        bad = (at < LOCAL_START) | (at + size * count > self.end)
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            raise OutOfBounds(f"{size * count} bytes at local address 0x{int(at[first]):x}; there are {self.end - LOCAL_START}", first)
        return ((lane * self.stride + at) // size)[:, None] + np.arange(count)

    def load(self, lane: np.ndarray, address: np.ndarray, size: int, count: int) -> np.ndarray:
        return self.views[size][self.index(lane, address, size, count)]

    def store(self, lane: np.ndarray, address: np.ndarray, size: int, values: np.ndarray) -> None:
        self.views[size][self.index(lane, address, size, values.shape[1])] = values
