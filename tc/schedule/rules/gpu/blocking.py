"""Sizes of the tiles of a product on a device: what a block of threads computes, what a thread keeps in registers, how deep a stage is.

The default is the choice of least time by a simple model (multiply-adds that wait for shared memory, whole waves of blocks) among those
that the device can hold; every one of these is an answer that a search may give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tc.target.device import DeviceFacts, occupancy

USUAL_EXTENT, USUAL_SIDE, USUAL_BATCH = 512, 24, 4
"""What a symbolic extent is taken to be: the only one, one of several along which a result goes on (the sides of an image), one that
counts how often the same is done."""

ENOUGH_ELEMENTS = 8
"""Elements along axes of known extents from which on a tile goes along these alone."""

OTHER_REGISTERS = 40
"""Registers of a thread beside its sums and the operands of one step: addresses, counters, what is on its way from memory."""

LEAST_DEPTH, MOST_DEPTH = 8, 32
"""Terms of a stage: few stages wait for barriers, and shared memory holds it."""


LEAST_PART_TERMS = 256


@dataclass(frozen=True)
class Blocking:
    """A block of threads computes `rows` x `columns` sums, each thread `thread_rows` x `thread_columns` of them, `depth` terms a stage.

    `part_terms`: of a part of a sum at least, where blocks are too few and parts are made by several.
    """

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    depth: int
    part_terms: int = LEAST_PART_TERMS

    @property
    def threads_y(self) -> int:
        return self.rows // self.thread_rows

    @property
    def threads_x(self) -> int:
        return self.columns // self.thread_columns

    @property
    def threads(self) -> int:
        return self.threads_x * self.threads_y

    def shared_bytes(self, lhs_bytes: int, rhs_bytes: int) -> int:
        """Of one stage, by the sizes of the operands' elements, rows of both with a vector of padding."""
        return self.depth * (self.rows * lhs_bytes + self.columns * rhs_bytes + 2 * 16)

    def registers(self, sum_bytes: int) -> int:
        """Of a thread, estimated."""
        words = max(1, sum_bytes // 4)
        return words * (self.thread_rows * self.thread_columns + self.thread_rows + self.thread_columns) + OTHER_REGISTERS


@dataclass(frozen=True)
class Extents:
    """The sizes of a product, by what its axes do, symbolic ones as they usually are. Sizes of elements in bytes.

    `batch`: how often there are so many rows and columns, the symbolic axes along which tiles do not go among them.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    lhs_bytes: int
    rhs_bytes: int
    sum_bytes: int


def blockings(sizes: Extents, device: DeviceFacts) -> Iterator[Blocking]:
    """All that the device can hold: whole warps where there are sums enough, none more than twice as large as the result along an axis."""
    least = min(device.warp_size, sizes.rows * sizes.columns // 2)
    for thread_rows in (1, 2, 4, 8):
        for thread_columns in (1, 2, 4, 8):
            for threads_y in (1, 2, 4, 8, 16, 32):
                for threads_x in (4, 8, 16, 32):
                    rows, columns = thread_rows * threads_y, thread_columns * threads_x
                    if threads_x * threads_y < least:
                        continue
                    if rows >= 2 * max(sizes.rows, 1) or (columns >= 2 * max(sizes.columns, 1) and threads_x > 4):
                        continue
                    found = Blocking(rows, columns, thread_rows, thread_columns, stage_depth(sizes, rows, columns))
                    if fits(found, sizes, device):
                        yield found


def stage_depth(sizes: Extents, rows: int, columns: int) -> int:
    """Deeper for small tiles: as much is fetched between barriers."""
    depth = MOST_DEPTH
    while depth > LEAST_DEPTH and (depth * (rows + columns) > 16 * 128 or depth >= 2 * max(sizes.depth, 1)):
        depth //= 2
    return depth


def fits(blocking: Blocking, sizes: Extents, device: DeviceFacts) -> bool:
    """Whether the device can run such blocks: threads, registers and shared memory. What cannot be is no answer."""
    shared = blocking.shared_bytes(sizes.lhs_bytes, sizes.rhs_bytes)
    if blocking.threads > device.max_block[0] or blocking.threads_y > device.max_block[1] or shared > device.static_shared_bytes_per_block:
        return False
    registers = blocking.registers(sizes.sum_bytes)
    return registers <= device.max_registers_per_thread and occupancy(blocking.threads, registers, shared, device) > 0


def cost(blocking: Blocking, sizes: Extents, device: DeviceFacts) -> float:
    """Cycles for the whole product: waves of blocks; the blocks that a processor holds at a time hide each other's waits for memory."""
    shared = blocking.shared_bytes(sizes.lhs_bytes, sizes.rhs_bytes)
    resident = occupancy(blocking.threads, blocking.registers(sizes.sum_bytes), shared, device)
    blocks = sizes.batch * _parts(sizes.rows, blocking.rows) * _parts(sizes.columns, blocking.columns)
    per_processor = _parts(blocks, device.processors)
    together = min(resident, per_processor)
    warps = _parts(blocking.threads, device.warp_size)
    multiply = blocking.thread_rows * blocking.thread_columns * device.warp_size / device.f32_fma_per_cycle
    load = blocking.thread_columns * sizes.rhs_bytes * device.warp_size / SHARED_BYTES_PER_CYCLE + _parts(blocking.thread_rows, 4)
    fetch = shared / FETCHED_BYTES_PER_CYCLE
    compute = blocking.depth * warps * max(multiply, load)
    stage = max(compute, fetch) + min(compute, fetch) / 2
    waves = _parts(per_processor, together)
    return waves * _parts(max(sizes.depth, 1), blocking.depth) * max(together * stage, stage + STAGE_LATENCY)


SHARED_BYTES_PER_CYCLE = 128.0
"""That a processor reads from its shared memory, 32 banks of 4 bytes."""

FETCHED_BYTES_PER_CYCLE = 16.0
"""That a processor gets from the second-level cache and memory when all do."""

STAGE_LATENCY = 700.0
"""Cycles of a stage in which a block waits: for global memory, and for barriers."""


def best(sizes: Extents, device: DeviceFacts) -> Blocking | None:
    """The one of least cost, of equals the largest tile; None where nothing fits."""
    found = list(blockings(sizes, device))
    return min(found, key=lambda each: (cost(each, sizes, device), -each.rows * each.columns, each.threads)) if found else None


def _parts(number: int, size: int) -> int:
    return -(-number // size)


# -- several axes


def usual_extents(extents: Sequence[int | None]) -> list[int]:
    """The extents of the axes along which a tile goes, 1 for symbolic ones (None) along which it should not.

    These may be 1, whatever a tile would take of them for nothing: so all of them where there is enough along known axes, and else the
    first axis of several, which is mostly a batch.
    """
    count = extents.count(None)
    is_enough = prod(extent for extent in extents if extent is not None) >= ENOUGH_ELEMENTS
    has_batch = count > 1 and extents[0] is None
    side = 1 if is_enough else USUAL_SIDE if count - has_batch > 1 else USUAL_EXTENT
    usual = [side if extent is None else extent for extent in extents]
    return [1, *usual[1:]] if has_batch else usual


def repeats(extents: Sequence[int | None]) -> int:
    """How often the elements of `usual_extents` are there, usually."""
    return USUAL_BATCH if any(extent is None and usual == 1 for extent, usual in zip(extents, usual_extents(extents), strict=True)) else 1


def tile_of(extents: Sequence[int | None], size: int, least: int = 1) -> list[int]:
    """Sizes, powers of two, of a tile of `size` elements over several axes (None: symbolic), with the least left over at their ends; no
    less than `least` along the last axis.

    Symbolic axes are as they usually are. Of equals the one that is longest along the last axis.
    """
    if not extents:
        return []
    options = [tile for tile in _factorizations(size, len(extents)) if tile[-1] >= least and not _is_too_long(tile, extents)]
    if not options:
        options = [[1] * (len(extents) - 1) + [size]]

    usual = usual_extents(extents)

    def waste(tile: list[int]) -> float:
        return prod(_parts(extent, part) * part / max(extent, 1) for extent, part in zip(usual, tile, strict=True))

    return min(options, key=lambda tile: (round(waste(tile), 6), [-part for part in reversed(tile)]))


def _is_too_long(tile: list[int], extents: Sequence[int | None]) -> bool:
    return any(part > 1 and extent is not None and part >= 2 * extent for part, extent in zip(tile, extents, strict=True))


def _factorizations(size: int, count: int) -> Iterator[list[int]]:
    """All ways to write a power of two as so many factors."""
    if count == 1:
        yield [size]
        return
    last = size
    while last >= 1:
        for rest in _factorizations(size // last, count - 1):
            yield [*rest, last]
        last //= 2


def stage_of(extents: Sequence[int | None], depth: int) -> list[int]:
    """How far a stage of at most `depth` terms goes along each axis of the sum, from the last axis on: whole windows, or parts of which
    there is a whole number, if these are not much shorter."""
    left, stage = max(1, depth), []
    for extent in reversed(extents):
        size = left
        if extent is not None and extent > 0:
            even = max(part for part in range(1, min(extent, left) + 1) if extent % part == 0)
            size = even if extent <= left or 2 * even > left else left
        stage.append(size)
        left = max(1, left // size)
    return list(reversed(stage))


def innermost(tile: Sequence[int], size: int) -> list[int]:
    """How many of the elements of a tile along each axis one thread takes, `size` in all if they fit, from the last axis on."""
    left, parts = size, []
    for extent in reversed(tile):
        part = min(extent, left)
        while extent % part:
            part //= 2
        parts.append(part)
        left //= part
    return list(reversed(parts))
