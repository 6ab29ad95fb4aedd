"""What a loop nest costs on a processor: an estimate in cycles, part by part.

The innermost unrolled and vectorized loops of a statement are its *tile*: straight-line code, whose operations, loads and stores
share the ports of the processor, and whose sums wait for each other. Around the tile, data moves between caches: a loop finds again what
its last iteration touched if all that fits the cache. The parts are features in their own right; a learned model says how they add up.
Source: the micro-kernel model of Low et al., "Analytical Modeling Is Enough for High-Performance BLIS" (2016); reuse by footprint as in
Chen et al. (2018).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tc.cost.nest import KINDS, Guard, MemoryAccess, Nest, NestLoop, Region, Statement
from tc.ir.loop import LoopKind
from tc.target import Target
from tc.target.machine import machine_of
from tc.target.table import SET_BYTES, CoreRates

_VECTORS = dict(zip(KINDS, (1.0, 1.0, 1.0, 2.0, 12.0, 1.0, 1.5, 16.0, 18.0, 1.0), strict=True))
"""How many vector operations one of each kind takes as long as. A function is a polynomial of some twenty operations."""

STEP_CYCLES, PARALLEL_STEP_CYCLES = 1.3, 10.0
"""Cycles to go on to the next iteration of a loop, and to that of the innermost of several loops run in parallel, numbered as one."""

SHARES_PER_THREAD = 4
"""How many chunks a parallel loop makes for each thread at most, when no grain is larger."""

STRIDED = 1.2
"""How much longer a cache line takes that does not lie beside those before."""

SPILL_CYCLES = 2.0
"""Cycles of one register too many in one step of a tile."""

USABLE = 0.8
"""The part of a cache that holds what is used again."""

HIDDEN = 0.88
"""The part of the shorter of computing and moving data that the longer one hides."""


@lru_cache(maxsize=64)
def port_cycles(core: CoreRates) -> tuple[float, ...]:
    """Cycles of one vector operation of each of KINDS."""
    others = (count / core.vectors_per_cycle for kind, count in _VECTORS.items() if kind != "multiply-add")
    return (1.0 / core.fma_per_cycle, *others)


def line_cycles(core: CoreRates) -> tuple[float, float, float]:
    """Cycles for one cache line from the second level, from the third, and from memory."""
    return core.l2_cycles_per_line, core.l3_cycles_per_line, core.memory_cycles_per_line


@dataclass(eq=False, slots=True)
class StatementCost:
    """What one statement costs on a core. Parts are in cycles of one thread, for all iterations.

    tile: the loops from number `first` on; `runs`: how often it runs; `tail_share`: the part of the runs that are cut short.
    vector: the vectorized loop, which takes `vectors` operations of `lanes` elements each; fill: the part of a register used.
    In one run of the tile: `operations` on vectors, `vector_loads`, `broadcasts` (one number for all lanes), `gathers` (one load per
    lane), `stores`, `scatters`, `moves` (registers that get a value), `accumulators` and, in each step of a sum, `live` registers,
    and loads that are `unaligned`. `conflicts`: lines in use at once that fall into one set of the first-level cache. `chain`:
    how many additions wait for each other in one run, and in `linked` runs after each other.
    line_counts: cache lines from beyond each of `footprints(target)`. span: the part of the work that the busiest thread does.
    """

    statement: Statement
    core: CoreRates
    first: int = 0
    tile: Sequence[NestLoop] = ()
    vector: NestLoop | None = None
    runs: float = 0.0
    tail_share: float = 0.0
    lanes: float = 1.0
    vectors: float = 1.0
    fill: float = 0.0
    operations: float = 0.0
    vector_loads: float = 0.0
    broadcasts: float = 0.0
    gathers: float = 0.0
    stores: float = 0.0
    scatters: float = 0.0
    moves: float = 0.0
    accumulators: float = 0.0
    live: float = 0.0
    unaligned: float = 0.0
    conflicts: float = 1.0
    chain: float = 1.0
    linked: float = 1.0
    line_counts: list[float] = field(default_factory=list)
    span: float = 1.0
    arithmetic: float = 0.0
    loading: float = 0.0
    storing: float = 0.0
    latency: float = 0.0
    spilling: float = 0.0
    overhead: float = 0.0
    compute: float = 0.0
    memory: float = 0.0
    total: float = 0.0

    @property
    def copies(self) -> float:
        """How often unrolled loops repeat the statement in straight code."""
        return math.prod(loop.extent for loop in self.tile if loop is not self.vector)


class Estimate:
    """The cost of every statement of a nest, and of the whole on the target's cores.

    `footprints`: bytes of the caches that `line_counts` of the costs are about; each counts the lines that come from beyond.
    """

    def __init__(self, nest: Nest, target: Target) -> None:
        self.nest, self.target, self.core = nest, target, machine_of(target)
        self.line_bytes = float(target.cache_line_bytes)
        self.footprints = footprints(target)
        self.bodies = {id(loop): sum(loop.body_lines.values()) * self.line_bytes for loop in nest.loops}
        self.working_set = sum(nest.root.body_lines.values()) * self.line_bytes
        self._levels: dict[tuple[int, float], tuple[int, float]] = {}
        self._held: list[dict[tuple[int, Region], float]] = [{} for _ in self.footprints]
        self.launches: dict[int, LaunchEstimate] = {}
        self.costs = [self._cost(statement) for statement in nest.statements]
        self.compute = sum(cost.compute * cost.span for cost in self.costs)
        self.memory = sum(cost.memory * cost.span for cost in self.costs)
        self.launching = sum(launch.cycles for launch in self.launches.values())
        self.total = sum(cost.total * cost.span for cost in self.costs) + self.launching

    def _cost(self, statement: Statement) -> StatementCost:
        cost = StatementCost(statement, self.core)
        _describe_tile(cost, self.target)
        _add_up(cost, self.target)
        self._move_data(cost)
        shorter, longer = sorted((cost.compute, cost.memory))
        cost.total = longer + (1 - HIDDEN) * shorter
        cost.span = self._span(statement)
        return cost

    def _move_data(self, cost: StatementCost) -> None:
        """Count the lines that each cache does not hold, and the cycles that they take. Statements inside a loop whose iterations fit the
        cache find there what others of them have brought."""
        statement = cost.statement
        loops, depth = statement.loops, len(statement.loops)
        cost.line_counts = counts = []
        weights = [STRIDED if _is_strided(access, cost, self.line_bytes) else 1.0 for access in statement.accesses]
        weighted: dict[float, float] = {}
        for size, held in zip(self.footprints, self._held, strict=True):
            level, _ = self._level(loops, size)
            place = -1 if self.working_set <= size else id(loops[level]) if level < depth else id(statement)
            total = slow = 0.0
            for access, weight in zip(statement.accesses, weights, strict=True):
                lines = self.lines_of(access, statement, size)
                if lines:
                    key = (place, access.region)
                    known = held.get(key, 0.0)
                    if lines > known:
                        held[key] = lines
                        total += lines - known
                        slow += (lines - known) * weight
            counts.append(total)
            weighted[size] = slow
        sizes = (self.target.l1_bytes, self.target.l2_bytes, self.target.l3_bytes or self.target.l2_bytes)
        cost.memory = sum(
            cycles * weighted[USABLE * size]
            for size, cycles in zip(sizes, line_cycles(self.core), strict=True)
            if self.working_set > USABLE * size
        )

    def lines_of(self, access: MemoryAccess, statement: Statement, size: float) -> float:
        """Cache lines that come from beyond a cache of `size` bytes, or go there, while all loops run: what one iteration of a loop
        touches is found again in the next if all of it fits."""
        region = access.region
        if region.is_register or not statement.iterations:
            return 0.0
        level, outside = self._level(statement.loops, size)
        if not region.is_param and (level < region.common or self.working_set <= size):
            return 0.0  # written and read again while it is in the cache
        lines = access.lines[0]
        if level:
            lines = max(lines, access.lines[level] * outside * statement.share * access.share)
        return 2 * lines if access.is_store else lines

    def _level(self, loops: Sequence[NestLoop], size: float) -> tuple[int, float]:
        """The outermost loop whose iterations each fit a cache of `size` bytes, and how often that loop runs."""
        key = (id(loops), size)
        found = self._levels.get(key)
        if found is None:
            level = len(loops)
            while level and self.bodies[id(loops[level - 1])] <= size:
                level -= 1
            found = self._levels[key] = level, math.prod(max(loop.extent, 1.0) for loop in loops[:level])
        return found

    def _span(self, statement: Statement) -> float:
        """The part of the statement's work that the busiest thread does."""
        first = next((k for k, loop in enumerate(statement.loops) if loop.kind is LoopKind.PARALLEL), None)
        if first is None:
            return 1.0
        loop = statement.loops[first]
        launch = self.launches.get(loop.number)
        if launch is None:
            launch = self.launches[loop.number] = LaunchEstimate(statement.loops, first, self.target.cores, self.core)
        return launch.span


class LaunchEstimate:
    """A parallel loop, with those directly inside: how many tasks it has, and how evenly the cores get them."""

    __slots__ = ("cycles", "span", "tasks", "threads")

    def __init__(self, loops: Sequence[NestLoop], first: int, cores: int, core: CoreRates) -> None:
        tasks, times = 1.0, 1.0
        for loop in loops[:first]:
            times *= loop.extent
        for loop in loops[first:]:
            if loop.kind is not LoopKind.PARALLEL:
                break
            tasks *= loop.extent
        grain = float(loops[first].grain)
        self.tasks = tasks
        self.threads = max(1.0, min(float(cores), math.ceil(tasks / grain)))
        chunk = max(math.ceil(tasks / (self.threads * SHARES_PER_THREAD)), grain, 1.0)
        rounds = math.ceil(math.ceil(tasks / chunk) / self.threads)
        self.span = min(1.0, max(1 / self.threads, rounds * chunk / max(tasks, 1.0)))
        self.cycles = core.launch_cycles * times if self.threads > 1 else 0.0


def footprints(target: Target) -> tuple[float, ...]:
    """The cache sizes at which traffic is counted: parts and multiples of the target's caches, and what of each is usable."""
    l1, l2 = float(target.l1_bytes), float(target.l2_bytes)
    l3 = float(target.l3_bytes or target.l2_bytes)
    return (l1 / 8, l1 / 4, l1 / 2, USABLE * l1, 2 * l1, l2 / 8, l2 / 4, l2 / 2, USABLE * l2, 2 * l2, USABLE * l3)


def _describe_tile(cost: StatementCost, target: Target) -> None:
    """What one run of the tile consists of."""
    statement = cost.statement
    loops = statement.loops
    first = len(loops)
    while first and loops[first - 1].kind in (LoopKind.VECTORIZED, LoopKind.UNROLLED):
        first -= 1
    vector = next((loop for loop in loops if loop.kind is LoopKind.VECTORIZED), None)
    tile = loops[first:]
    if vector is None and tile and tile[-1].is_tree:
        vector = tile[-1]
    width = vector.extent if vector is not None else 1.0
    element = statement.target.region.element_bytes if statement.target is not None else 4.0
    bits = 8.0 * max(element, 1.0)
    lanes = max(1.0, min(width, target.vector_bits / bits))
    cost.first, cost.tile, cost.vector, cost.lanes = first, tile, vector, lanes
    times = cost.copies
    cost.vectors = max(1.0, math.ceil(width / lanes))
    cost.fill = width / (cost.vectors * (target.vector_bits / bits)) if vector is not None else bits / target.vector_bits
    per_run = sum(count * cycles for count, cycles in zip(statement.operations, port_cycles(cost.core), strict=True))
    cost.arithmetic = per_run * times * cost.vectors
    cost.operations = sum(statement.operations) * times * cost.vectors
    if vector is not None and vector.is_tree:  # halves of the vectors, down to one number
        cost.arithmetic += 2 * math.log2(max(lanes, 2))
    _count_accesses(cost, target)
    stored = statement.target
    summed = [loop for loop in tile if loop is not vector and stored is not None and not stored.moves_with(loop)]
    cost.chain = math.prod(loop.extent for loop in summed) if statement.is_reduction else 1.0
    if statement.is_reduction and stored is not None:
        for loop in reversed(loops[:first]):
            if stored.moves_with(loop):
                break
            cost.linked *= max(loop.extent, 1.0)
    outer = 1.0
    for loop in loops[:first]:
        outer *= loop.extent
    if vector is not None and vector not in tile:
        outer /= max(vector.extent, 1.0)
    cost.runs = outer * _free_share(statement, tile)


def _count_accesses(cost: StatementCost, target: Target) -> None:
    first = cost.first
    stored = cost.statement.target
    held = 0.0
    seen: dict[Region, bool] = {}
    for access in cost.statement.accesses:
        kind, count = access_count(cost, access)
        region = access.region
        if region.is_register:
            if not seen.get(region):
                cost.accumulators += count
                seen[region] = True
            continue
        if access.is_store:
            if kind == "gather":
                cost.scatters += count
            else:
                cost.stores += count
            continue
        if kind != "gather":
            held += _held_registers(cost, access, kind)
        if kind == "vector":
            cost.vector_loads += count
            cost.unaligned += count * _is_unaligned(access, cost, target.cache_line_bytes)
        elif kind == "gather":
            cost.gathers += count
        else:
            cost.broadcasts += count
        cost.conflicts = max(cost.conflicts, _conflicts(access, first))
    fills = stored is not None and stored.region.is_register and not cost.statement.is_reduction
    cost.moves = cost.accumulators if fills else 0.0  # registers that get a value
    cost.live = cost.accumulators + held


def _held_registers(cost: StatementCost, access: MemoryAccess, kind: str) -> float:
    """How many registers hold what a load brings until it is used for the last time: what a loop of the tile uses again and again
    stays all the while, with all that the loops inside of it load."""
    width = cost.vectors if kind == "vector" and cost.vector in cost.tile else 1.0
    held = inner = 1.0
    for loop in reversed(cost.tile):
        if loop is cost.vector:
            continue
        if access.moves_with(loop):
            inner *= loop.extent
        elif loop.extent > 1:
            held = inner
    return held * width


def access_count(cost: StatementCost, access: MemoryAccess) -> tuple[str, float]:
    """How the lanes find their elements ("vector": side by side, "broadcast": one for all, "gather": apart), and how many loads
    (or stores) one run of the tile needs if nothing is loaded twice."""
    vector = cost.vector
    touched = access.elements[cost.first]
    if vector is None or not access.moves_with(vector):
        return "broadcast", touched
    bytes_per_lane = access.steps.get(vector.number, 0.0)
    if bytes_per_lane != access.region.element_bytes or access.is_irregular:
        return _transposed(cost, access, touched)
    if vector not in cost.tile:
        return "vector", touched * cost.vectors
    dims = {dim for dim, _ in access.moves[vector.number]}
    slides = 1.0  # copies that overlap along the lanes: each needs a load of its own
    for loop in cost.tile:
        if loop is not vector and any(dim in dims for dim, _ in access.moves.get(loop.number, ())):
            slides *= loop.extent
    count = max(touched / max(vector.extent, 1.0), slides if slides * vector.extent > touched else 1.0)
    return "vector", count * cost.vectors


def _transposed(cost: StatementCost, access: MemoryAccess, touched: float) -> tuple[str, float]:
    """Elements apart; squares that are exchanged in registers are loaded as vectors."""
    for loop in cost.tile:
        if loop.is_transposed and access.steps.get(loop.number) == access.region.element_bytes:
            return "vector", touched / max(loop.extent, 1.0) * math.log2(max(loop.extent, 2.0))
    return "gather", touched


def _is_unaligned(access: MemoryAccess, cost: StatementCost, line_bytes: int) -> bool:
    """Whether vectors of the access lie across cache lines."""
    if cost.lanes * access.region.element_bytes < line_bytes / 2:
        return False
    return any(access.steps.get(loop.number, 0.0) % line_bytes for loop in access.loops if loop is not cost.vector)


def _is_strided(access: MemoryAccess, cost: StatementCost, line_bytes: float) -> bool:
    """Whether the innermost loop that moves the access leaves out lines between what one run of the tile touches and the next."""
    for loop in reversed(access.loops[: cost.first]):
        step = abs(access.steps.get(loop.number, 0.0))
        if step:
            return step > line_bytes * max(1.0, access.lines[cost.first])
    return False


def _conflicts(access: MemoryAccess, first: int) -> float:
    """How many lines in use at once fall into one set of the first-level cache."""
    lines = 1.0
    for loop in access.loops[max(first - 1, 0) :]:
        step = access.steps.get(loop.number, 0.0)
        if step and step % SET_BYTES == 0:
            lines *= loop.extent
    return lines


def _free_share(statement: Statement, tile: Sequence[NestLoop]) -> float:
    """The part of iterations that guards leave which no loop of the tile takes part in."""
    numbers = {loop.number for loop in tile}
    share = statement.share
    for guard in statement.guards:
        if not numbers.isdisjoint(guard.slack.steps):
            part = guard.share
            share = share / part if part else 0.0
    return share


class _Cut:
    """How a guard cuts tiles: `full` of the tiles are whole, `rest` of them are cut to the part `kept`, others do not run."""

    __slots__ = ("full", "kept", "loops", "rest")

    def __init__(self, guard: Guard, statement: Statement, tile: Sequence[NestLoop], vector: NestLoop | None) -> None:
        slack = guard.slack
        covered, copies, width = 1.0, 1.0, 1.0
        self.loops: list[int] = []
        for loop in statement.loops:
            step = slack.steps.get(loop.number)
            if step is None:
                continue
            if loop in tile:
                covered += abs(step) * (loop.extent - 1)
                if loop is vector:
                    width = max(1.0, abs(step) * loop.extent)
                else:
                    self.loops.append(loop.number)
            else:
                copies *= max(loop.extent, 1.0)
        valid = max(slack.high, 0.0)
        full = min(copies, valid // covered)
        left = valid - full * covered if full < copies else 0.0
        self.full = full / copies
        self.rest = 1 / copies if left else 0.0
        self.kept = min(1.0, math.ceil(left / width) * width / covered) if left else 1.0


def _add_up(cost: StatementCost, target: Target) -> None:
    """Cycles of all runs of the tile, whole ones and those at the end of a range."""
    statement = cost.statement
    numbers = {loop.number for loop in cost.tile}
    cuts = [
        _Cut(guard, statement, cost.tile, cost.vector)
        for guard in statement.guards
        if not numbers.isdisjoint(guard.slack.steps)
    ][:3]
    versions: list[tuple[float, dict[int, float]]] = [(1.0, {})]
    whole = 1.0
    for cut in cuts:
        whole *= cut.full
        split = [(share * cut.full, kept) for share, kept in versions if cut.full]
        if cut.rest:
            mark = {cut.loops[0] if cut.loops else -1: cut.kept}
            split += [(share * cut.rest, {**kept, **mark}) for share, kept in versions]
        versions = split
    running = sum(share for share, _ in versions)
    cost.tail_share = 1 - whole / running if running else 0.0
    arithmetic = 0.0
    for share, kept in versions:
        runs = cost.runs * share
        if runs:
            arithmetic += _run_tile(cost, runs, kept, target)
    cost.arithmetic = arithmetic


def _overhead(loop: NestLoop) -> float:
    return PARALLEL_STEP_CYCLES if loop.kind is LoopKind.PARALLEL else STEP_CYCLES


def _run_tile(cost: StatementCost, runs: float, kept: dict[int, float], target: Target) -> float:
    """Add the cycles of `runs` runs of a tile of which along some loops only a part is kept; returns those of arithmetic."""
    part = math.prod(kept.values())
    loads, stores, gathers, scatters = cost.vector_loads + cost.broadcasts, cost.stores, cost.gathers, cost.scatters
    if kept:
        loads = stores = gathers = scatters = 0.0
        for access in cost.statement.accesses:
            if access.region.is_register:
                continue
            kind, count = access_count(cost, access)
            for number, share in kept.items():
                if number in access.moves:
                    count *= share
            if access.is_store:
                stores, scatters = (stores, scatters + count) if kind == "gather" else (stores + count, scatters)
            else:
                loads, gathers = (loads, gathers + count) if kind == "gather" else (loads + count, gathers)
    arithmetic = cost.arithmetic * part
    core = cost.core
    loading = (loads + cost.unaligned * part) / core.loads_per_cycle + gathers * core.gather_cycles_per_lane
    storing = (stores + 1.5 * scatters) / core.stores_per_cycle
    issued = cost.operations * part + loads + stores + cost.moves * part
    issuing = issued / core.operations_per_cycle
    side_by_side = max(1.0, core.operations_in_flight / max(issued * cost.linked, 1.0))  # chains
    latency = core.fma_latency * cost.chain / side_by_side
    spilled = max(0.0, cost.live * part - target.num_vector_registers) * cost.chain
    overhead = _overhead(cost.statement.loops[cost.first - 1]) if cost.first else 0.0
    cycles = max(arithmetic, loading, storing, latency, issuing) + SPILL_CYCLES * spilled + overhead
    cost.loading += runs * loading
    cost.storing += runs * storing
    cost.latency += runs * latency
    cost.spilling += runs * SPILL_CYCLES * spilled
    cost.overhead += runs * overhead
    cost.compute += runs * cycles
    return runs * arithmetic
