"""Shared memory with its history: what was written, by whom, and whether accesses are ordered.

Order is kept by vector clocks (Flanagan and Freund, "FastTrack", 2009) with a warp as the thread of execution: inside
a warp the order of instructions counts. Each warp of a block has one column, and one more for what its asynchronous
instructions do (cp.async, wgmma, bulk stores); a last column stands for the copies into shared memory by bulk copies.
An access is recorded with its column's clock; another warp may touch those bytes when it knows that clock: through a
barrier, an mbarrier, or a wait for the asynchronous column.

The history is kept per granule: the smallest access of the kernel, so that every access covers whole granules.
"""

from __future__ import annotations

import numpy as np

from tests.ptx.errors import OutOfBounds, Race, UnwrittenRead
from tests.ptx.memory import SHARED_START, UNSIGNED, check_aligned

NEVER, WRITTEN, IN_FLIGHT, OUTSIDE = 0, 1, 2, 3


class Clocks:
    """What each warp knows of the others: `known[warp, column]`, warps of all blocks that run together.

    `units` are the asynchronous units that the kernel uses: "copy" (cp.async), "wgmma", "bulk".
    """

    def __init__(self, blocks: int, warps: int, units: tuple[str, ...] = ()) -> None:
        self.blocks, self.warps, self.units = blocks, warps, units
        self.columns = warps * (1 + len(units)) + ("bulk" in units)
        self.known = np.zeros((blocks * warps, self.columns), np.int32)
        self.known[np.arange(blocks * warps), np.arange(blocks * warps) % warps] = 1
        self.proxied = np.zeros_like(self.known)  # what asynchronous instructions may see of ordinary writes
        self.issued = np.zeros((blocks, self.columns), np.int32)  # clocks of the asynchronous columns

    def column(self, unit: str, warp: np.ndarray) -> np.ndarray:
        return self.warps * (1 + self.units.index(unit)) + warp % self.warps

    def arrivals(self) -> int:
        """The column of bulk copies into shared memory."""
        return self.columns - 1

    def issue(self, unit: str, warp: np.ndarray) -> np.ndarray:
        """These warps, each named once, begin something of the unit: its clocks."""
        column = self.column(unit, warp)
        self.issued[warp // self.warps, column] += 1
        return self.issued[warp // self.warps, column]

    def latest(self, unit: str, warp: np.ndarray) -> np.ndarray:
        return self.issued[warp // self.warps, self.column(unit, warp)]

    def await_unit(self, unit: str, warp: int, clock: int) -> None:
        """The warp has waited for what its unit did up to `clock`."""
        column = self.column(unit, np.int64(warp))
        for table in (self.known, self.proxied):
            table[warp, column] = max(table[warp, column], clock)

    def advance(self, warp: np.ndarray) -> None:
        """A new interval of these warps begins: what they do now is not yet known to others."""
        self.known[warp, warp % self.warps] += 1

    def publish(self, warp: np.ndarray) -> np.ndarray:
        """All that these warps know by now, int32[2, columns]: plainly, and to asynchronous instructions."""
        vector = np.stack([self.known[warp].max(0), self.proxied[warp].max(0)])
        self.advance(warp)
        return vector

    def learn(self, warp: np.ndarray, vector: np.ndarray) -> None:
        self.known[warp] = np.maximum(self.known[warp], vector[0])
        self.proxied[warp] = np.maximum(self.proxied[warp], vector[1])

    def join_all(self) -> None:
        """A barrier of all warps in every block: all learn what any of them knows, and start a new interval."""
        for table in (self.known, self.proxied):
            per_block = table.reshape(self.blocks, self.warps, self.columns)
            per_block[...] = per_block.max(1, keepdims=True)
        self.advance(np.arange(self.blocks * self.warps))

    def fence_proxy(self, warp: np.ndarray) -> None:
        self.proxied[warp] = np.maximum(self.proxied[warp], self.known[warp])
        self.advance(warp)


class SharedMemory:
    """Shared memory of `blocks` blocks. `extents` are the (name, start, end) of its variables."""

    def __init__(self, blocks: int, extents: list[tuple[str, int, int]], granule: int, clocks: Clocks) -> None:
        self.extents = extents
        self.clocks = clocks
        self.granule = granule
        self.stride = -(-max([SHARED_START, *(end for _, _, end in extents)]) // 256) * 256
        self.bytes = np.full(blocks * self.stride, 0xCD, np.uint8)
        self.views = {size: self.bytes.view(dtype) for size, dtype in UNSIGNED.items()}
        cells = blocks * self.stride // granule
        self.state = np.full(cells, OUTSIDE, np.uint8)
        for block in range(blocks):
            for _, start, end in extents:
                first = (block * self.stride + start) // granule
                self.state[first : first + -(-(end - start) // granule)] = NEVER
        self.writer = np.zeros(cells, np.int16)
        self.written_at = np.zeros(cells, np.int32)
        self.reads = np.zeros((cells, clocks.columns), np.int32)
        self.atomics: np.ndarray | None = None

    # -- where

    def locate(self, block: np.ndarray, address: np.ndarray, size: int) -> np.ndarray:
        """Byte offsets of accesses of `size` bytes. Raises Misaligned or OutOfBounds."""
        check_aligned(address, min(size, 16), "shared")
        at = address.astype(np.int64)
        bad = (at < 0) | (at + size > self.stride)
        if bad.any():
            raise self.outside(at, size, int(np.flatnonzero(bad)[0]))
        return block * self.stride + at

    def cells(self, offset: np.ndarray, size: int) -> np.ndarray:
        """The granules of accesses: int64[n, size / granule]."""
        first = offset // self.granule
        return first[:, None] + np.arange(size // self.granule) if size > self.granule else first[:, None]

    def outside(self, address: np.ndarray, size: int, at: int) -> OutOfBounds:
        known = ", ".join(f"{name} [0x{start:x}, 0x{end:x})" for name, start, end in self.extents) or "nothing"
        return OutOfBounds(f"{size} bytes at shared address 0x{int(address[at]):x}; shared memory holds {known}", at)

    def name_of(self, cell: int) -> str:
        at = cell * self.granule % self.stride
        for name, start, end in self.extents:
            if start <= at < end:
                return f"{name}[byte {at - start}]"
        return f"0x{at:x}"

    def column_name(self, column: int) -> str:
        warps = self.clocks.warps
        if column < warps:
            return f"warp {column}"
        unit = column // warps - 1
        return f"an asynchronous instruction of warp {column % warps}" if unit < len(self.clocks.units) else "a bulk copy"

    # -- checks; cells int64[n, k], warp int64[n]

    def check_read(self, cells: np.ndarray, warp: np.ndarray, known: np.ndarray) -> None:
        """`known` is int32[n, columns]: what the reader knows."""
        state = self.state[cells]
        if (state != WRITTEN).any():
            at, k = (int(i[0]) for i in np.nonzero(state != WRITTEN))
            raise self.unreadable(int(state[at, k]), int(cells[at, k]), at)
        self.check_writers(cells, warp, known, "reads")

    def unreadable(self, state: int, cell: int, at: int) -> Exception:
        name = self.name_of(cell)
        if state == OUTSIDE:
            return OutOfBounds(f"shared read outside of every variable, at {name}", at)
        if state == IN_FLIGHT:
            return UnwrittenRead(f"{name} is read while a bulk copy into it is in flight", at)
        return UnwrittenRead(f"{name} is read before anyone wrote it", at)

    def check_writers(self, cells: np.ndarray, warp: np.ndarray, known: np.ndarray, verb: str) -> None:
        writer = self.writer[cells]
        late = self.written_at[cells] > np.take_along_axis(known, writer, 1)
        if late.any():
            at, k = (int(i[0]) for i in np.nonzero(late))
            raise self.race(int(cells[at, k]), int(warp[at]), verb, int(writer[at, k]), "wrote", at)

    def check_table(self, table: np.ndarray, cells: np.ndarray, warp: np.ndarray, known: np.ndarray, verb: str, past: str) -> None:
        late = table[cells] > known[:, None, :]
        if late.any():
            at, k, column = (int(i[0]) for i in np.nonzero(late))
            raise self.race(int(cells[at, k]), int(warp[at]), verb, column, past, at)

    def race(self, cell: int, warp: int, verb: str, column: int, past: str, at: int) -> Exception:
        own, name = warp % self.clocks.warps, self.name_of(cell)
        if own < column < self.clocks.warps * (1 + len(self.clocks.units)) and column % self.clocks.warps == own:
            return UnwrittenRead(f"warp {own} {verb} {name}, which its own asynchronous instruction {past}, without waiting for it", at)
        who = self.column_name(column)
        return Race(f"warp {own} {verb} {name}, which {who} {past}, with nothing between that orders them", at)

    def check_write(self, cells: np.ndarray, warp: np.ndarray, known: np.ndarray) -> None:
        state = self.state[cells]
        if (state >= IN_FLIGHT).any():
            at, k = (int(i[0]) for i in np.nonzero(state >= IN_FLIGHT))
            if state[at, k] == OUTSIDE:
                raise OutOfBounds(f"shared write outside of every variable, at {self.name_of(int(cells[at, k]))}", at)
            raise Race(f"{self.name_of(int(cells[at, k]))} is written while a bulk copy into it is in flight", at)
        self.check_writers(cells, warp, known, "writes")
        self.check_table(self.reads, cells, warp, known, "writes", "read")
        if self.atomics is not None:
            self.check_table(self.atomics, cells, warp, known, "writes", "changed atomically")

    def record_write(self, cells: np.ndarray, warp: np.ndarray, column: np.ndarray, clock: np.ndarray) -> None:
        """Raises Race when two columns write one granule by one instruction."""
        self.writer[cells] = column[:, None]
        self.written_at[cells] = clock[:, None]
        self.state[cells] = WRITTEN
        lost = self.writer[cells] != column[:, None]
        if lost.any():
            at, k = (int(i[0]) for i in np.nonzero(lost))
            other = int(self.writer[cells[at, k]])
            raise self.race(int(cells[at, k]), int(warp[at]), "writes", other, "writes by the same instruction", at)

    # -- ordinary accesses

    def load(self, block: np.ndarray, warp: np.ndarray, address: np.ndarray, size: int, count: int) -> np.ndarray:
        """unsigned[n, count]: `count` consecutive values of `size` bytes from each address."""
        offset = self.locate(block, address, size * count)
        cells = self.cells(offset, size * count)
        known = self.clocks.known[warp]
        self.check_read(cells, warp, known)
        column = warp % self.clocks.warps
        if self.atomics is not None:
            self.check_table(self.atomics, cells, warp, known, "reads", "changed atomically")
        self.reads[cells, column[:, None]] = known[np.arange(len(warp)), column][:, None]
        return self.views[size][(offset // size)[:, None] + np.arange(count)]

    def store(self, block: np.ndarray, warp: np.ndarray, address: np.ndarray, size: int, values: np.ndarray) -> None:
        """Write values unsigned[n, count]."""
        count = values.shape[1]
        offset = self.locate(block, address, size * count)
        cells = self.cells(offset, size * count)
        known = self.clocks.known[warp]
        self.check_write(cells, warp, known)
        column = warp % self.clocks.warps
        self.record_write(cells, warp, column, known[np.arange(len(warp)), column])
        index = (offset // size)[:, None] + np.arange(count)
        self.views[size][index] = values
        lost = self.views[size][index] != values
        if lost.any():
            at, k = (int(i[0]) for i in np.nonzero(lost))
            where = self.name_of(int(offset[at] + k * size) // self.granule)
            raise Race(f"two lanes of a warp write different values to {where} by one instruction", at)

    def touch_atomic(self, block: np.ndarray, warp: np.ndarray, address: np.ndarray, size: int, initialised: bool = True) -> np.ndarray:
        """Check and record an access that may race with others of its kind; byte offsets."""
        offset = self.locate(block, address, size)
        cells = self.cells(offset, size)
        known = self.clocks.known[warp]
        if self.atomics is None:
            self.atomics = np.zeros_like(self.reads)
        if initialised:
            self.check_read(cells, warp, known)
        else:
            self.check_write_strong(cells, warp, known)
        self.check_table(self.reads, cells, warp, known, "changes atomically", "read")
        column = warp % self.clocks.warps
        self.atomics[cells, column[:, None]] = known[np.arange(len(warp)), column][:, None]
        return offset

    def check_write_strong(self, cells: np.ndarray, warp: np.ndarray, known: np.ndarray) -> None:
        if (self.state[cells] == OUTSIDE).any():
            raise OutOfBounds("shared write outside of every variable", 0)
        self.check_writers(cells, warp, known, "writes")
        self.state[cells] = WRITTEN

    # -- accesses of asynchronous instructions; `column` and `clock` int[n] are theirs

    def read_async(
        self, block: np.ndarray, warp: np.ndarray, address: np.ndarray, size: int, column: np.ndarray, clock: np.ndarray
    ) -> np.ndarray:
        """Bytes uint8[n, size] that an asynchronous instruction of these warps reads; it must be able to see them."""
        offset = self.locate(block, address, size)
        cells = self.cells(offset, size)
        known = self.clocks.known[warp]
        self.check_read(cells, warp, known)
        writer = self.writer[cells]
        hidden = (writer < self.clocks.warps) & (self.written_at[cells] > np.take_along_axis(self.clocks.proxied[warp], writer, 1))
        if hidden.any():
            at, k = (int(i[0]) for i in np.nonzero(hidden))
            raise Race(f"{self.name_of(int(cells[at, k]))} was written by ordinary stores, without fence.proxy.async before this read", at)
        self.reads[cells, column[:, None]] = clock[:, None]
        return self.bytes[offset[:, None] + np.arange(size)]

    def write_async(
        self, block: np.ndarray, warp: np.ndarray, address: np.ndarray, values: np.ndarray, column: np.ndarray, clock: np.ndarray
    ) -> np.ndarray:
        """Write bytes uint8[n, size] on behalf of `column`; the warps that issued it must be ordered behind others."""
        size = values.shape[1]
        offset = self.locate(block, address, size)
        cells = self.cells(offset, size)
        self.check_write(cells, warp, self.clocks.known[warp])
        self.record_write(cells, warp, column, clock)
        self.bytes[offset[:, None] + np.arange(size)] = values
        return cells
