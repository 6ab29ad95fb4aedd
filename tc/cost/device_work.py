"""What the launches of a finished program ask of a device: arithmetic, traffic by level, shared memory, registers, barriers.

Numbers are per thread block and counted, not measured: index expressions are evaluated for all threads of one block in the middle of the
grid, in the middle of its loops, so that sectors and banks are those of real addresses. Loops multiply. What data decide counts
as if neighbours asked for neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from tc.cost.lifetimes import most_at_once
from tc.cost.typical import USUAL_DIM
from tc.ir.box_copies import AwaitPhase, CopyBox
from tc.ir.columns import column
from tc.ir.expr import (
    Add,
    BinaryExpr,
    Buffer,
    Cast,
    CompareExpr,
    Const,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    MathCall,
    Mul,
    Narrow,
    Select,
    Sub,
    Var,
)
from tc.ir.intrinsic import INTRINSICS
from tc.ir.launch import FinishedLaunch, finished, launches_in
from tc.ir.loop import (
    Alloc,
    AsyncStore,
    AwaitCopies,
    Barrier,
    For,
    If,
    IntrinsicCall,
    Let,
    LoopKind,
    PrimFunc,
    Stmt,
    Store,
    WarpCall,
    While,
    inner_statements,
)
from tc.ir.node import children
from tc.ir.shared_memory import BANK_BYTES, BANKS, LINE_BYTES

SECTOR_BYTES = 32
"""What memory moves at least: a sector of a cache line."""

WARP = 32
"""Threads that ask together; on devices of other warps the counts serve as well."""

OTHER_REGISTERS = 32
"""Of a thread, beside what its own buffers hold: addresses, counters, what is on its way from memory."""

MOST_LANES = 16
"""Elements that a thread takes at once at most."""

DIVIDE, FUNCTION = 10.0, 20.0
"""Instructions of a division or root, and of a function of the mathematics library."""

BOXES_AHEAD = 2
"""Stages of boxes that are on their way, about."""

ADDRESS = 2.0
"""Instructions of the address of an access."""


@dataclass
class DeviceWork:
    """One launch. All counts are of one block but `blocks`, and `times`, how often the host launches it.

    `threads`, `shared_bytes` and `registers` (estimated, of a thread). `multiply_adds`: of threads, in f32; `other`: other instructions
    of threads. `matrix_flops`: of matrix instructions, by the dtype of their factors as tables of devices call it. `requests`: accesses of
    global memory by warps; `asked_bytes`: what threads asked for by them, `sectors` what memory moves; `traffic`: the bytes moved, and the
    size in bytes, of each buffer. `wavefronts`: of shared memory, `least_wavefronts` if there were no conflicts. `rounds`: how often a
    thread waits for global memory and for others. `copies_ahead`: rounds of asynchronous copies that are on their way at once.
    `code`: instructions of the text, unrolled loops written out. `idle`: the part of the threads' statements that a guard skips.
    """

    blocks: float = 1.0
    times: float = 1.0
    threads: int = 1
    shared_bytes: int = 0
    registers: int = OTHER_REGISTERS
    multiply_adds: float = 0.0
    other: float = 0.0
    matrix_flops: dict[str, float] = field(default_factory=dict)
    requests: float = 0.0
    asked_bytes: float = 0.0
    sectors: float = 0.0
    traffic: dict[Buffer, tuple[float, float]] = field(default_factory=dict)
    wavefronts: float = 0.0
    least_wavefronts: float = 0.0
    barriers: float = 0.0
    rounds: float = 0.0
    copies_ahead: int = 0
    code: float = 0.0
    statements: float = 0.0
    idle: float = 0.0


Values = Mapping[Var, np.ndarray]
"""int64[threads, lanes], or shapes that are broadcast to that."""


def device_work(func: PrimFunc, dims: Mapping[str, int]) -> list[DeviceWork]:
    """The launches of a PrimFunc in the finished form. `dims`: sizes by name; others are taken to be 64."""
    values: dict[Var, np.ndarray] = {var: _array(dims.get(var.name, USUAL_DIM)) for var in func.dims}
    return [_launch_work(finished_launch, values, times) for finished_launch, times in _launches(func.body, values, 1.0)]


def _array(number: float) -> np.ndarray:
    return np.asarray(int(number), np.int64)


def _launches(stmt: Stmt, values: dict[Var, np.ndarray], times: float) -> Iterator[tuple[FinishedLaunch, float]]:
    """Launches, and how often host code runs each; its loops' variables get a value in the middle."""
    for launch in launches_in(stmt) if isinstance(stmt, For) and stmt.thread else ():
        found = finished(launch)
        if found is not None:
            yield found, times
        return
    if isinstance(stmt, For):
        extent = _number(stmt.extent, values)
        values[stmt.var] = _array(extent // 2)
        times *= extent
    elif isinstance(stmt, Let):
        values[stmt.var] = _array(_number(stmt.value, values))
    for child in inner_statements(stmt):
        yield from _launches(child, values, times)


def _number(expr: Expr, values: Values) -> float:
    """A size; USUAL_DIM where data decide."""
    found = column(expr, values)
    return float(USUAL_DIM) if found is None else float(np.mean(found))


def _launch_work(launch: FinishedLaunch, outer: Values, times: float) -> DeviceWork:
    work = DeviceWork(times=times)
    values = dict(outer)
    for loop in launch.blocks:
        extent = _number(loop.extent, values)
        values[loop.var] = _array(extent // 2)
        work.blocks *= extent
    sizes = {loop.thread: int(loop.extent.value) for loop in launch.threads if isinstance(loop.extent, Const)}
    work.threads = math.prod(sizes.values())
    step = 1
    for axis in ("thread.x", "thread.y", "thread.z"):
        for loop in launch.threads:
            if loop.thread == axis:
                values[loop.var] = (np.arange(work.threads, dtype=np.int64) // step % sizes[axis])[:, None]
        step *= sizes.get(axis, 1)
    work.shared_bytes = int(sum(math.ceil(_bytes_of(buffer, values) / 16) * 16 for buffer in launch.shared))
    _Walk(work, values).visit(launch.body, _Around(1.0, 1.0, np.ones((work.threads, 1), bool)))
    work.registers = min(OTHER_REGISTERS + math.ceil(most_at_once(launch.body, partial(_bytes_of, values=values)) / 4), 4096)
    return work


def _bytes_of(buffer: Buffer, values: Values) -> float:
    return math.prod(_number(dim, values) for dim in buffer.shape) * buffer.dtype.size_bytes


@dataclass(frozen=True)
class _Around:
    """What stands around a statement: how often a thread runs it, how often the text has it, and which threads do. `loops`: the variables
    of the loops of a thread around, outermost first, with their extents and whether they are unrolled. `lanes`: of the vector around."""

    times: float
    copies: float
    active: np.ndarray
    loops: tuple[tuple[Var, float, bool], ...] = ()
    lanes: int = 1

    @property
    def share(self) -> float:
        return float(self.active.mean())


class _Walk:
    """One walk over what a thread runs."""

    def __init__(self, work: DeviceWork, values: dict[Var, np.ndarray]) -> None:
        self.work, self.values = work, values
        self.depends: dict[Var, frozenset[Var]] = {}

    def visit(self, stmt: Stmt, around: _Around) -> None:
        match stmt:
            case For(kind=LoopKind.VECTORIZED):
                self._vector(stmt, around)
            case For():
                self._loop(stmt, around)
            case Alloc(body=body):
                self.visit(body, around)
            case If():
                self._branch(stmt, around)
            case Let(var=var, value=value, body=body):
                self._compute(value, around)
                found = column(value, self.values)
                self.values[var] = _array(USUAL_DIM) if found is None else found
                self.depends[var] = self._dependence(value)
                self.visit(body, around)
            case While(condition=condition, body=body):
                self._compute(condition, around)
                self.visit(body, replace(around, times=around.times * USUAL_DIM))
            case Store():
                self._store(stmt, around)
            case Barrier():
                self.work.barriers += around.times
                self.work.rounds += around.times
            case AwaitCopies(pending=pending):
                self.work.copies_ahead = max(self.work.copies_ahead, pending + 1)
            case CopyBox():
                self._box(stmt, around)
            case AwaitPhase():
                self.work.barriers += around.times * around.share
                self.work.rounds += around.times * around.share
            case WarpCall():
                self._warp_call(stmt, around)
            case IntrinsicCall(name=name, operands=operands) if name in INTRINSICS:
                self.visit(INTRINSICS[name].expand(operands), around)
            case _:
                for child in inner_statements(stmt):
                    self.visit(child, around)

    # -- what is around

    def _vector(self, stmt: For, around: _Around) -> None:
        lanes = min(int(_number(stmt.extent, self.values)), MOST_LANES)
        self.values[stmt.var] = np.arange(lanes, dtype=np.int64)[None, :]
        self.visit(stmt.body, replace(around, lanes=lanes))

    def _loop(self, stmt: For, around: _Around) -> None:
        extent = _number(stmt.extent, self.values)
        is_unrolled = stmt.kind is LoopKind.UNROLLED
        self.values[stmt.var] = _array(extent // 2)
        self.depends[stmt.var] = frozenset((stmt.var,))
        if extent <= 0:
            return
        if not is_unrolled:
            self.work.other += 2 * extent * around.times * self.work.threads
        copies = around.copies * (extent if is_unrolled else 1.0)
        loops = (*around.loops, (stmt.var, extent, is_unrolled))
        self.visit(stmt.body, replace(around, times=around.times * extent, copies=copies, loops=loops))

    def _branch(self, stmt: If, around: _Around) -> None:
        self._compute(stmt.condition, around)
        holds = column(stmt.condition, self.values)
        if holds is None:
            yes = no = around.active
        else:
            shape = np.broadcast_shapes(np.shape(holds), around.active.shape)
            each = np.broadcast_to(np.asarray(holds, bool), shape).all(axis=-1, keepdims=True)
            yes, no = around.active & each, around.active & ~each
        if yes.any():
            self.visit(stmt.then_body, replace(around, active=yes))
        if stmt.else_body is not None and no.any():
            self.visit(stmt.else_body, replace(around, active=no))

    # -- statements

    def _store(self, stmt: Store, around: _Around) -> None:
        work = self.work
        work.statements += around.times
        work.idle += around.times * (1 - around.share)
        work.code += around.copies
        self._access(Load(stmt.buffer, stmt.indices), around, is_store=True)
        self._compute(stmt.value, around, waits=not isinstance(stmt, AsyncStore))

    def _box(self, stmt: CopyBox, around: _Around) -> None:
        """A copy that no thread waits for while it multiplies, of whole sectors."""
        copies = around.times * around.share * self.work.threads
        self.work.requests += copies
        self.work.copies_ahead = max(self.work.copies_ahead, BOXES_AHEAD)
        self._moved(stmt.source, copies * stmt.size_bytes / SECTOR_BYTES, copies * stmt.size_bytes)
        for name in ("wavefronts", "least_wavefronts"):
            setattr(self.work, name, getattr(self.work, name) + copies * stmt.size_bytes / LINE_BYTES)

    def _warp_call(self, stmt: WarpCall, around: _Around) -> None:
        """A matrix instruction, a load or store of fragments, or an exchange of lanes."""
        work, pattern = self.work, INTRINSICS[stmt.name].pattern
        work.code += around.copies
        calls = around.times * around.share * work.threads / WARP
        work.other += calls * WARP
        points = _points(pattern.body)
        warps = 4 if stmt.name.startswith("wgmma") else 1
        if stmt.name.startswith(("mma", "wgmma")):
            name = pattern.buffers[0].dtype.name
            kind = {"f32": "tf32", "u8": "i8"}.get(name, "f8" if name.startswith("f8") else name)
            work.matrix_flops[kind] = work.matrix_flops.get(kind, 0.0) + 2 * points * calls / warps
        for operand, buffer in zip(stmt.operands, pattern.buffers, strict=False):
            size = math.prod(_number(dim, {}) for dim in buffer.shape) * buffer.dtype.size_bytes
            if operand.buffer.scope == "shared" and stmt.name.startswith("ldmatrix"):
                self._fragment_load(operand, size, calls, around)
            elif operand.buffer.scope == "shared":
                work.wavefronts += calls / warps * size / LINE_BYTES
                work.least_wavefronts += calls / warps * size / LINE_BYTES
            elif operand.buffer.scope == "global":
                self._moved(operand.buffer, calls * size / SECTOR_BYTES, calls * size)

    def _fragment_load(self, operand: Load, size: float, calls: float, around: _Around) -> None:
        least = size / LINE_BYTES
        found = self._addresses(operand)
        self.work.least_wavefronts += calls * least
        if found is None:
            self.work.wavefronts += calls * least
            return
        ratio = _wavefronts(found, around.active, 16)
        self.work.wavefronts += calls * least * (ratio[0] / max(ratio[1], 1.0))

    # -- values

    def _compute(self, value: Expr, around: _Around, waits: bool = True) -> None:
        """Count the operations and loads of a value, each part once."""
        seen: set[int] = set()
        stack: list[tuple[Expr, bool]] = [(value, False)]
        adds = products = rest = 0.0
        while stack:
            node, in_index = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, Load):
                self._access(node, around, is_store=False, waits=waits)
                stack.extend((index, True) for index in node.indices if _reads(index))
                continue
            if not in_index:
                match node:
                    case Add() | Sub() if node.dtype.is_float:
                        adds += 1
                    case Mul() if node.dtype.is_float:
                        products += 1
                    case Div() | FloorDiv() | FloorMod():
                        rest += DIVIDE
                    case MathCall(name=name):
                        rest += 1 if name in _CHEAP else DIVIDE if name in ("sqrt", "rsqrt", "exp_brief") else FUNCTION
                    case BinaryExpr() | CompareExpr() | Select() | Cast() | Narrow():
                        rest += 1
            stack.extend((child, in_index) for child in children(node) if isinstance(child, Expr))
        fused = max(adds, products)
        many = around.times * around.share * self.work.threads * around.lanes
        self.work.multiply_adds += many * fused
        self.work.other += many * rest
        self.work.code += around.copies * (fused + rest)

    def _dependence(self, expr: Expr) -> frozenset[Var]:
        """The loops of a thread that a value changes with."""
        found: set[Var] = set()
        stack: list[Expr] = [expr]
        while stack:
            node = stack.pop()
            if isinstance(node, Var):
                found |= self.depends.get(node, frozenset())
            stack.extend(child for child in children(node) if isinstance(child, Expr))
        return frozenset(found)

    def _times(self, load: Load, around: _Around) -> float:
        """How often a thread reads: once for all iterations of inner loops, and for all copies of unrolled ones, that change nothing."""
        moving = frozenset[Var]().union(*(self._dependence(index) for index in load.indices))
        inner = next((k for k in reversed(range(len(around.loops))) if around.loops[k][0] in moving), -1)
        times = 1.0
        for k, (var, extent, is_unrolled) in enumerate(around.loops):
            if var in moving or (k < inner and not is_unrolled):
                times *= extent
        return times if load.buffer.scope == "shared" or inner >= 0 else 1.0

    def _addresses(self, load: Load) -> np.ndarray | None:
        """int64[threads, lanes] in bytes; None where data decide."""
        total: np.ndarray = np.zeros((1, 1), np.int64)
        stride = 1.0
        sizes = [_number(dim, self.values) for dim in load.buffer.shape]
        given = load.buffer.strides
        for k in reversed(range(len(sizes))):
            found = column(load.indices[k], self.values)
            if found is None:
                return None
            total = total + np.asarray(found, np.int64) * int(stride if given is None else _number(given[k], self.values))
            stride *= max(sizes[k], 1.0)
        shape = np.broadcast_shapes(total.shape, (self.work.threads, 1))
        return np.broadcast_to(total, shape) * load.buffer.dtype.size_bytes

    def _access(self, load: Load, around: _Around, is_store: bool, waits: bool = True) -> None:
        scope = load.buffer.scope
        if scope not in ("global", "shared"):
            return
        times = around.times if is_store else self._times(load, around)
        addresses = self._addresses(load)
        size = load.buffer.dtype.size_bytes
        warps = around.share * self.work.threads / WARP
        self.work.other += ADDRESS * times * warps * WARP
        if addresses is None:  # neighbours, each somewhere
            addresses = np.broadcast_to(np.arange(self.work.threads, dtype=np.int64)[:, None] * SECTOR_BYTES, (self.work.threads, 1))
        width = _width(addresses, size)
        instructions = max(1, addresses.shape[1] * size // width)
        if scope == "shared":
            found, least = _wavefronts(addresses[:, :1] if instructions == 1 else addresses, around.active, width)
            self.work.wavefronts += times * found
            self.work.least_wavefronts += times * least
            return
        asked = times * warps * WARP * addresses.shape[1] * size
        self.work.requests += times * warps * instructions
        self._moved(load.buffer, times * _sectors(addresses, around.active, size), asked)
        if not is_store and waits:
            inner = [extent for var, extent, is_unrolled in around.loops if is_unrolled]
            self.work.rounds += times / max(math.prod(inner), 1.0)

    def _moved(self, buffer: Buffer, sectors: float, asked: float) -> None:
        self.work.sectors += sectors
        self.work.asked_bytes += asked
        known, _ = self.work.traffic.get(buffer, (0.0, 0.0))
        self.work.traffic[buffer] = known + sectors * SECTOR_BYTES, _bytes_of(buffer, self.values)


_CHEAP = frozenset(
    "fma floor ceil round trunc abs sign isnan isinf float_bits float_of_bits bit_not bit_and bit_or bit_xor shift_left shift_right".split()
)


def _reads(expr: Expr) -> bool:
    return isinstance(expr, Load) or any(_reads(child) for child in children(expr) if isinstance(child, Expr))


def _points(stmt: Stmt) -> float:
    """Iterations of the innermost statement of a pattern."""
    if isinstance(stmt, For):
        return _number(stmt.extent, {}) * _points(stmt.body)
    return max(map(_points, inner_statements(stmt)), default=1.0)


def _width(addresses: np.ndarray, size: int) -> int:
    """Bytes that a thread takes at once: all lanes of a vector that lie side by side and are aligned, else one element."""
    lanes = addresses.shape[1]
    if lanes == 1:
        return size
    if np.any(np.diff(addresses, axis=1) != size):
        return size
    width = min(lanes * size, 16)
    while width > size and np.any(addresses[:, 0] % width):
        width //= 2
    return int(max(width, size))


def _by_warp(addresses: np.ndarray, active: np.ndarray) -> Iterator[np.ndarray]:
    """The addresses of the active threads of each warp."""
    taking = np.broadcast_to(active, (len(addresses), 1))[:, 0]
    for first in range(0, len(addresses), WARP):
        chosen = addresses[first : first + WARP][taking[first : first + WARP]]
        if len(chosen):
            yield chosen


def _sectors(addresses: np.ndarray, active: np.ndarray, size: int) -> float:
    """Sectors that the warps of a block ask for."""
    ends = addresses + size - 1
    return float(sum(len(np.unique(np.concatenate((a // SECTOR_BYTES, b // SECTOR_BYTES)))) for a, b in _pairs(addresses, ends, active)))


def _pairs(first: np.ndarray, second: np.ndarray, active: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return zip(_by_warp(first, active), _by_warp(second, active), strict=True)


def _wavefronts(addresses: np.ndarray, active: np.ndarray, width: int) -> tuple[float, float]:
    """Wavefronts of the warps of a block, and the fewest that their words could need."""
    found = least = 0.0
    together = LINE_BYTES // max(width, BANK_BYTES)
    steps = np.arange(0, width, BANK_BYTES)
    for warp in _by_warp(addresses, active):
        for first in range(0, len(warp), together):
            for lane in range(warp.shape[1]):
                words = np.unique((warp[first : first + together, lane, None] + steps) // BANK_BYTES)
                found += int(np.bincount(words % BANKS).max())
                least += -(-len(words) // BANKS)
    return found, least
