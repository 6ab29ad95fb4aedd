"""Bulk copies: cp.async.bulk of bytes and of boxes of tensors (TMA), into shared memory by mbarriers, out of it by groups.

A copy into shared memory arrives as late as it can: when somebody waits for its mbarrier. Until then its bytes are in
flight, and touching them is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.ptx import ops_copy
from tests.ptx.coder import Coder, Reader, Run, spread
from tests.ptx.element_types import TYPES, PtxType
from tests.ptx.errors import AsyncMisuse, Misaligned
from tests.ptx.machine import Machine
from tests.ptx.mbarriers import barriers_of, shared_address
from tests.ptx.ops_memory import HINT_PREFIXES, atomic_update, store_global
from tests.ptx.shared import IN_FLIGHT, WRITTEN
from tests.ptx.syntax import Address, Operand
from tests.ptx.tensor_map import TensorMap, swizzle

TENSOR_TYPES = {"float16": TYPES["f16"], "float32": TYPES["f32"], "float64": TYPES["f64"], "int32": TYPES["s32"], "uint32": TYPES["u32"]}
CHUNK = 16  # bytes; swizzles move these as a whole


@dataclass(eq=False)
class Arrival:
    """A copy into shared memory that is under way: chunks uint8[n, 16] to byte offsets of shared memory."""

    barrier: tuple[int, int]
    offset: np.ndarray
    chunks: np.ndarray
    clock: int


def arrivals_of(m: Machine) -> list[Arrival]:
    found = m.unit.setdefault("arrivals", [])
    assert isinstance(found, list)
    return found


# ---------------------------------------------------------------- into shared memory


def send(m: Machine, lane: int, address: np.ndarray, chunks: np.ndarray, barrier: int) -> None:
    """Start a copy of chunks to shared addresses, on behalf of a lane; `barrier` counts its bytes."""
    shared, block, warp = m.shared, int(m.lane_block[lane]), np.full(len(address), m.lane_warp[lane])
    offset = shared.locate(np.full(len(address), block), address, CHUNK)
    cells = shared.cells(offset, CHUNK)
    shared.check_write(cells, warp, m.clocks.known[warp])
    shared.state[cells] = IN_FLIGHT
    barriers_of(m).find(block, barrier, warp[:1])
    m.clocks.issued[block, m.clocks.arrivals()] += 1
    arrivals_of(m).append(Arrival((block, barrier), offset, chunks, int(m.clocks.issued[block, m.clocks.arrivals()])))


def deliver(m: Machine, block: int, address: int) -> None:
    """All copies arrive that this mbarrier counts."""
    waiting = arrivals_of(m)
    for arrival in [a for a in waiting if a.barrier == (block, address)]:
        waiting.remove(arrival)
        land(m, arrival)
        barriers = barriers_of(m)
        barrier = barriers.find(block, address)
        vector = np.zeros_like(barrier.known)
        vector[:, m.clocks.arrivals()] = arrival.clock
        barrier.known = np.maximum(barrier.known, vector)
        barrier.pending_bytes -= arrival.chunks.size
        barriers.settle(barrier)


def deliver_awaited(m: Machine) -> bool:
    """Nobody can go on: what arrives that somebody waits for. False when that is nothing."""
    awaited = {a.barrier for a in arrivals_of(m) if barriers_of(m).find(*a.barrier).name in m.waiting}
    for block, address in sorted(awaited):
        deliver(m, block, address)
    return bool(awaited)


def land(m: Machine, arrival: Arrival) -> None:
    shared = m.shared
    cells = shared.cells(arrival.offset, CHUNK)
    shared.state[cells] = WRITTEN
    shared.writer[cells] = m.clocks.arrivals()
    shared.written_at[cells] = arrival.clock
    shared.bytes[arrival.offset[:, None] + np.arange(CHUNK)] = arrival.chunks


def check_over(m: Machine) -> None:
    """At the end of a launch nothing may be under way."""
    if arrivals_of(m):
        first = arrivals_of(m)[0]
        barrier = barriers_of(m).find(*first.barrier)
        raise AsyncMisuse(f"the kernel ends while a bulk copy is in flight: {barrier.name} was not waited for", 0)
    groups = m.unit.get("groups of bulk")
    if isinstance(groups, ops_copy.Groups) and any(groups.clocks):
        raise AsyncMisuse("the kernel ends while a bulk copy out of shared memory is in flight: its group was not waited for", 0)


# ---------------------------------------------------------------- forms


def build_bulk(c: Coder) -> Run:
    reduces = c.flag("reduce")
    c.flag("async")
    c.flag("bulk")
    if c.flag("commit_group"):
        return ops_copy.commit_step("bulk")
    if c.flag("wait_group"):
        c.flag("read")
        return ops_copy.wait_step(c, "bulk")
    if "L2::cache_hint" in c.mods:
        c.operands = c.operands[:-1]
    c.drop(prefixes=HINT_PREFIXES)
    if c.flag("prefetch"):
        c.mods.clear()
        return lambda m, active: None
    rank = take_rank(c)
    c.flag("tile")
    outward = c.flag("bulk_group")
    if not outward and not c.flag("mbarrier::complete_tx::bytes"):
        raise c.unsupported("a copy that nothing waits for")
    spaces = [mod for mod in c.mods if mod.partition("::")[0] in ("global", "shared")]
    c.drop(*spaces)
    if [s.partition("::")[0] for s in spaces] != (["global", "shared"] if outward else ["shared", "global"]):
        raise c.unsupported("these state spaces")
    update = take_update(c) if reduces else None
    if outward:
        return build_store(c, rank, update)
    return build_load(c, rank)


def take_rank(c: Coder) -> int:
    """The number of dimensions; 0 for plain bytes."""
    return int(c.choose("1d", "2d", "3d", "4d", "5d")[0]) if c.flag("tensor") else 0


def take_update(c: Coder) -> tuple[Callable, PtxType | None]:
    operation = c.choose("add", "min", "max", "and", "or", "xor", "inc", "dec")
    c.flag("noftz")
    if not any(m for m in c.mods):
        return (lambda type: atomic_update(c, operation, type)), None
    type = c.type()
    return (lambda _: atomic_update(c, operation, type)), type


def box_reader(c: Coder, operand: Operand, rank: int) -> Callable[[Machine, np.ndarray], tuple[list[TensorMap], np.ndarray]]:
    """The tensor map and the corner int64[n, rank] that each lane names."""
    if not isinstance(operand, Address) or len(operand.extra) != 1:
        raise c.unsupported("an operand that is not [map, {coordinates}]")
    read_map = c.address(Address(operand.base, operand.offset))
    coordinates = [c.source(o, "s32") for o in c.items(operand.extra[0])]
    if len(coordinates) != rank:
        raise c.unsupported(f"{len(coordinates)} coordinates of {rank} dimensions")

    def read(m: Machine, lanes: np.ndarray) -> tuple[list[TensorMap], np.ndarray]:
        maps = [find_map(m, int(address)) for address in spread(read_map(m, lanes), len(lanes))]
        corners = np.stack([spread(read_one(m, lanes), len(lanes)) for read_one in coordinates], 1)
        if any(found.rank != rank for found in maps):
            raise AsyncMisuse(f"a tensor map of {maps[0].rank} dimensions used for {rank}", 0)
        return maps, corners

    return read


def find_map(m: Machine, address: int) -> TensorMap:
    found = m.objects.get(address)
    if not isinstance(found, TensorMap):
        raise AsyncMisuse(f"no tensor map at address 0x{address:x}", 0)
    return found


def box_addresses(tensor: TensorMap, start: int) -> np.ndarray:
    """Where the chunks of a box go, in the order of its elements."""
    if start % 128:
        raise Misaligned(f"a box at shared address 0x{start:x}, which is no multiple of 128", 0)
    return swizzle(start + np.arange(0, tensor.box_bytes, CHUNK), tensor.swizzle)


def build_load(c: Coder, rank: int) -> Run:
    if c.flag("multicast::cluster"):
        c.operands = c.operands[:-1]
    target = c.address(0)
    barrier = c.address(2 if rank else 3)
    take = box_taker(c, rank) if rank else bytes_taker(c)

    def run(m: Machine, active: np.ndarray | None) -> None:
        for lane in m.indices(active).tolist():  # usually one
            one = np.array([lane])
            start = int(shared_address(target(m, one), True)[0])
            address, chunks = take(m, one, start)
            send(m, lane, address, chunks, int(shared_address(barrier(m, one), True)[0]))

    return run


Taker = Callable[[Machine, np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def box_taker(c: Coder, rank: int) -> Taker:
    read_box = box_reader(c, c.operand(1), rank)

    def take(m: Machine, one: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
        (tensor,), (corner,) = read_box(m, one)
        address, inside = tensor.elements(tuple(corner.tolist()))
        size = tensor.item_bytes
        values = np.zeros((len(address), size), np.uint8)
        if inside.any():
            values[inside] = load_global(m, one, address[inside], size, 1).reshape(-1, size)
        return box_addresses(tensor, start), values.reshape(-1, CHUNK)

    return take


def load_global(m: Machine, one: np.ndarray, address: np.ndarray, size: int, count: int) -> np.ndarray:
    values = m.heap.load(address, size, count)
    if m.history is not None:
        m.history.read(m, np.repeat(one, len(address)), address, size * count, False)
    return values.view(np.uint8)


def bytes_taker(c: Coder) -> Taker:
    source, size = c.address(1), c.source(2, "u32")

    def take(m: Machine, one: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
        count = whole_chunks(int(size(m, one)[0]))
        offsets = np.arange(0, count, CHUNK)
        return start + offsets, load_global(m, one, source(m, one) + offsets, 8, 2).reshape(-1, CHUNK)

    return take


def whole_chunks(count: int) -> int:
    if count % CHUNK or count <= 0:
        raise Misaligned(f"a bulk copy of {count} bytes, which is no multiple of 16", 0)
    return count


# ---------------------------------------------------------------- out of shared memory


def build_store(c: Coder, rank: int, update: tuple[Callable, PtxType | None] | None) -> Run:
    source = c.address(1)
    read_box = box_reader(c, c.operand(0), rank) if rank else None
    target: Reader | None = None if rank else c.address(0)
    size = None if rank else c.source(2, "u32")

    def run(m: Machine, active: np.ndarray | None) -> None:
        for lane in m.indices(active).tolist():
            one = np.array([lane])
            start = int(shared_address(source(m, one), True)[0])
            if read_box is not None:
                (tensor,), (corner,) = read_box(m, one)
                values = fetch(m, one, box_addresses(tensor, start)).reshape(-1, tensor.item_bytes)
                address, inside = tensor.elements(tuple(corner.tolist()))
                put_values(m, lane, address[inside], values[inside], update, tensor.array.dtype)
            else:
                assert target is not None and size is not None
                offsets = np.arange(0, whole_chunks(int(size(m, one)[0])), CHUNK)
                values = fetch(m, one, start + offsets)
                item = 1 if update is None or update[1] is None else update[1].size
                address = int(target(m, one)[0]) + np.arange(0, values.size, item)
                put_values(m, lane, address, values.reshape(-1, item), update, None)

    return run


def fetch(m: Machine, one: np.ndarray, address: np.ndarray) -> np.ndarray:
    """Chunks of shared memory as the bulk unit reads them, uint8[n, 16]."""
    warp = m.lane_warp[one]
    clock = np.repeat(m.clocks.issue("bulk", warp), len(address))
    warp = np.repeat(warp, len(address))
    return m.shared.read_async(np.repeat(m.lane_block[one], len(address)), warp, address, CHUNK, m.clocks.column("bulk", warp), clock)


def put_values(m: Machine, lane: int, address: np.ndarray, values: np.ndarray, update: tuple | None, dtype: np.dtype | None) -> None:
    """Write values uint8[n, item] to global addresses, or update what is there."""
    if len(address) == 0:
        return
    size = values.shape[1]
    words = np.ascontiguousarray(values).view(f"u{size}")
    if update is None:
        store_global(m, np.full(len(address), lane), address, size, words)
        return
    make, type = update
    type = type or TENSOR_TYPES.get(str(dtype))
    if type is None:
        raise AsyncMisuse(f"a reduction of a tensor of {dtype}, which names no type of PTX", 0)
    offset = m.heap.check(address, size, True) // size
    view = m.heap.bytes.view(type.dtype)
    view[offset] = make(type)(view[offset], words[:, 0].view(type.dtype))


ops_copy.BULK.append(build_bulk)
