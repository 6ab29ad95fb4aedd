"""A scheduled PrimFunc as one row of numbers that a learned cost model reads: float32[n_features], named columns.

Everything is counted from loops, stores and buffers; neither knobs nor names play a part. Most columns are ratios: to the least
cycles that the work could take, to the size of a cache or of the register file, to the operations done, so that programs of different
size compare, and what is learned from one kernel holds for another. Logarithms have base 2.

A row has four parts: the whole program; its *main* statement, the one with most arithmetic; the *second*; and sums over the statements
that write results (*final*) and those that write scratch memory for others to read (*fill*).
Source: context and curve features of Chen et al., "Learning to Optimize Tensor Programs" (2018), and of Zheng et al., "Ansor" (2020),
taken relative to a roofline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tc.cost.estimate import Estimate, StatementCost, access_count, line_cycles, port_cycles
from tc.cost.nest import KINDS, MemoryAccess, Nest
from tc.ir.loop import LoopKind, PrimFunc
from tc.target import Target

_SMALL = 1 / 64
"""Parts below this share of the whole are told apart no more."""

_SIZE_NAMES = ("L1 / 8", "L1 / 4", "L1 / 2", "L1", "2 L1", "L2 / 8", "L2 / 4", "L2 / 2", "L2", "2 L2", "L3")

_PROGRAM = (
    "log cycles", "log least cycles", "cycles / least", "computing / least", "moving data / least", "launching / least",
    "arithmetic / least", "loading / least", "storing / least", "waiting / least", "spilling / least", "looping / least",
    *(f"lines beyond {size} / least" for size in _SIZE_NAMES),
    "log operations per byte", "log working set / L1", "log working set / L2", "log working set / L3",
    "log tasks", "threads / cores", "log imbalance", "log cycles per task", "log launches", "share on one thread",
    "log scratch / L1", "log scratch / L2", "registers wanted / registers", "log straight code", "log longest straight code",
    "log statements", "log loops", "share in cut tiles", "share under checks", "log repetition",
    "log selections of loads in straight code",
)  # fmt: skip

_ACCESS = (
    "touched / L2", "log uses per element", "log bytes per step", "log lines in the tile / L1", "lines beyond L1 / operation",
    "lines beyond L2 / operation",
)
_ROLES = ("result", "vector", "broadcast", "gather")

_STATEMENT = (
    "share of cycles", "log iterations", "log repetition", "share in cut tiles", "log lanes", "fill of vectors",
    "log unrolled", "log tile runs", "log innermost loop", "log loops inside tasks", "loops", "log sum length", "log unrolled sum",
    "accumulators / registers", "live / registers", "log accumulators / chain",
    *(f"{kind} / operation" for kind in KINDS),
    "log operations per tile", "vector loads / operation", "broadcasts / operation", "gathers / operation", "stores / operation",
    "scatters / operation", "log loading / arithmetic", "log waiting / arithmetic", "log computing / arithmetic",
    "log moving data / arithmetic", "log set conflicts", "unaligned loads / loads", "log prefetched bytes", "log cycles per tile",
    *(f"{role}: {column}" for role in _ROLES for column in _ACCESS),
)  # fmt: skip

_GROUP = (
    "share of cycles", "computing / least", "moving data / least", "log lanes", "fill of vectors", "share in cut tiles", "log repetition",
    "gathers and scatters / store", "log innermost loop", "unrolled stores", "share on one thread",
)  # fmt: skip

FEATURE_NAMES: tuple[str, ...] = (
    *_PROGRAM,
    *(f"{part}: {name}" for part in ("main", "second") for name in _STATEMENT),
    *(f"{part}: {name}" for part in ("final", "fill") for name in _GROUP),
)
"""The columns of a row, in order."""

ESTIMATE_COLUMN = FEATURE_NAMES.index("log cycles")
"""log2 of the estimated cycles on the target's cores: the roofline prior."""


def extract(func: PrimFunc, target: Target, dims: Mapping[str, int]) -> np.ndarray:
    """float32[len(FEATURE_NAMES)] of a scheduled PrimFunc, all finite; `dims` gives symbolic dims by name.

    A dim without a size and a number that comes from memory are taken to be 64.
    """
    estimate = Estimate(Nest(func, dims, target.cache_line_bytes), target)
    costs = sorted(estimate.costs, key=_by_work)
    least = _least_cycles(estimate, costs)
    row = _program(estimate, least)
    for k in range(2):
        row += _statement(costs[k], estimate) if k < len(costs) and _work(costs[k]) else [0.0] * len(_STATEMENT)
    rest = [cost for cost in estimate.costs if cost.statement.target is not None]
    row += _group([cost for cost in rest if cost.statement.target.region.is_result], estimate, least)  # type: ignore[union-attr]
    row += _group([cost for cost in rest if _fills(cost)], estimate, least)
    assert len(row) == len(FEATURE_NAMES), "a value for every column"
    found: np.ndarray = np.clip(np.nan_to_num(np.array(row)), -1e6, 1e6).astype(np.float32)
    return found


def _log(value: float) -> float:
    """log2 of a count or size; 0 and 1 are alike."""
    return math.log2(value) if value > 1.0 else 0.0


def _log_ratio(part: float, whole: float) -> float:
    """log2 of part / whole, not below that of _SMALL."""
    return math.log2(_SMALL + part / whole) if whole > 0 else math.log2(_SMALL)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _work(cost: StatementCost) -> float:
    """Cycles of arithmetic that the statement's block asks for, whatever the schedule."""
    statement = cost.statement
    return statement.useful * sum(n * cycles for n, cycles in zip(statement.operations, port_cycles(cost.core), strict=True))


def _by_work(cost: StatementCost) -> tuple[float, float, int]:
    return -_work(cost), -cost.statement.useful, cost.statement.order


def _fills(cost: StatementCost) -> bool:
    region = cost.statement.target.region  # type: ignore[union-attr]
    return not (region.is_param or region.is_register)


def _least_cycles(estimate: Estimate, costs: Sequence[StatementCost]) -> float:
    """A roofline for all cores: the arithmetic of the main statement in full vectors, or every parameter moved once."""
    target = estimate.target
    computing = 0.0
    if costs:
        stored = costs[0].statement.target
        element = stored.region.element_bytes if stored is not None else 4.0
        computing = _work(costs[0]) * 8 * element / target.vector_bits
    params = estimate.nest.root.body_lines.items()
    lines = sum(count for region, count in params if region.is_param)
    working_set = lines * estimate.line_bytes
    second, third, memory = line_cycles(estimate.core)
    cycles = second if working_set <= target.l2_bytes else third if working_set <= target.l3_bytes else memory
    return max(computing, lines * cycles, 16.0) / target.cores


def _program(estimate: Estimate, least: float) -> list[float]:
    nest, target, costs = estimate.nest, estimate.target, estimate.costs

    def spent(part: str) -> float:
        return sum(float(getattr(cost, part)) * cost.span for cost in costs)

    parts = ("arithmetic", "loading", "storing", "latency", "spilling", "overhead")
    row = [_log(estimate.total), _log(least), math.log2(max(estimate.total, _SMALL) / least)]
    row += [_log_ratio(part, least) for part in (estimate.compute, estimate.memory, estimate.launching, *map(spent, parts))]
    for k in range(len(_SIZE_NAMES)):
        row.append(_log_ratio(estimate.core.l3_cycles_per_line * sum(cost.line_counts[k] * cost.span for cost in costs), least))
    operations = sum(cost.statement.useful * sum(cost.statement.operations) for cost in costs)
    working_set = estimate.working_set
    row.append(math.log2((1 + operations) / (1 + working_set)))
    row += [_log_ratio(working_set, size) for size in (target.l1_bytes, target.l2_bytes, target.l3_bytes or target.l2_bytes)]
    row += _parallel(estimate)
    scratch = sum(region.size_bytes for region, used in nest.accesses.items() if used and not (region.is_param or region.is_register))
    row += [_log_ratio(scratch, target.l1_bytes), _log_ratio(scratch, target.l2_bytes)]
    code = [cost.operations + cost.vector_loads + cost.broadcasts + cost.gathers * 2 + cost.stores + cost.scatters for cost in costs]
    row += [max((cost.live for cost in costs), default=0.0) / target.num_vector_registers, _log(sum(code)), _log(max(code, default=0.0))]
    total = sum(cost.total for cost in costs)
    checked = sum(cost.total for cost in costs if any(not guard.is_partitioned for guard in cost.statement.guards))
    row += [_log(len(costs)), _log(len(nest.loops)), _ratio(sum(cost.total * cost.tail_share for cost in costs), total)]
    row += [_ratio(checked, total), _ratio(sum(cost.total * _repetition(cost) for cost in costs), total)]
    row.append(_log(max((cost.statement.checks * cost.copies for cost in costs), default=0.0)))
    return row


def _repetition(cost: StatementCost) -> float:
    """log2 of how often the statement runs over how often it has to."""
    useful = cost.statement.useful
    return _log(cost.statement.iterations / useful) if useful else 0.0


def _prefetch_bytes(cost: StatementCost) -> float:
    """How far ahead of its use something is prefetched; 0 where nothing is."""
    return next((float(loop.ahead_bytes) for loop in cost.statement.loops if loop.ahead_bytes), 0.0)


def _parallel(estimate: Estimate) -> list[float]:
    launches = estimate.launches.values()
    tasks = sum(launch.tasks for launch in launches)
    threads = max((launch.threads for launch in launches), default=1.0)
    whole = sum(cost.total for cost in estimate.costs)
    alone = sum(cost.total for cost in estimate.costs if cost.span >= 1.0)
    busiest = sum(cost.total * cost.span for cost in estimate.costs)
    return [
        _log(tasks),
        threads / estimate.target.cores,
        _log(_ratio(busiest * estimate.target.cores, whole)),
        _log(whole / max(tasks, 1.0)),
        _log(1 + estimate.launching / estimate.core.launch_cycles),
        _ratio(alone, whole),
    ]


def _statement(cost: StatementCost, estimate: Estimate) -> list[float]:
    statement, target = cost.statement, estimate.target
    loops, registers = statement.loops, target.num_vector_registers
    stored = statement.target
    operations = max(cost.operations, 1.0)
    serial = loops[cost.first - 1].extent if cost.first else 1.0
    inside = math.prod(loop.extent for loop in loops[: cost.first] if loop.kind is not LoopKind.PARALLEL)
    summed = [loop for loop in loops if stored is None or not stored.moves_with(loop)]
    row = [
        _ratio(cost.total, sum(other.total for other in estimate.costs)),
        _log(statement.iterations),
        _repetition(cost),
        cost.tail_share,
        _log(cost.lanes),
        cost.fill,
        _log(cost.copies),
        _log(cost.runs),
        _log(serial),
        _log(inside),
        float(len(loops)),
        _log(math.prod(loop.extent for loop in summed)),
        _log(cost.chain),
        cost.accumulators / registers,
        cost.live / registers,
        math.log2(max(cost.accumulators, 1.0) / max(cost.chain, 1.0)),
    ]
    per_element = max(sum(statement.operations), 1.0)
    row += [count / per_element for count in statement.operations]
    counts = (cost.vector_loads, cost.broadcasts, cost.gathers, cost.stores, cost.scatters)
    row += [_log(cost.operations), *(min(count / operations, 64.0) for count in counts)]
    row += [_log_ratio(part, cost.arithmetic) for part in (cost.loading, cost.latency, cost.compute, cost.memory)]
    loads = cost.vector_loads + cost.broadcasts + cost.gathers
    row += [_log(cost.conflicts), _ratio(cost.unaligned, loads), _log(_prefetch_bytes(cost))]
    row.append(_log(_ratio(cost.compute, cost.runs)))
    return row + _accesses(cost, estimate)


def _accesses(cost: StatementCost, estimate: Estimate) -> list[float]:
    """For each role, the access with that role that touches most."""
    statement = cost.statement
    by_role: dict[str, MemoryAccess] = {}
    for access in statement.accesses:
        if access is statement.target:
            role = "result"
        elif access.region.is_register or (statement.target is not None and access.region is statement.target.region):
            continue
        else:
            role = access_count(cost, access)[0]
        known = by_role.get(role)
        if known is None or access.lines[0] > known.lines[0]:
            by_role[role] = access
    row: list[float] = []
    for role in _ROLES:
        chosen = by_role.get(role)
        row += _access(chosen, cost, estimate) if chosen is not None else [0.0] * len(_ACCESS)
    return row


def _access(access: MemoryAccess, cost: StatementCost, estimate: Estimate) -> list[float]:
    statement, target, line_bytes = cost.statement, estimate.target, estimate.line_bytes
    step = access.steps.get(statement.loops[cost.first - 1].number, 0.0) if cost.first else 0.0
    total = max(cost.operations * cost.runs, 1.0)
    beyond = [estimate.lines_of(access, statement, size) for size in (estimate.footprints[3], estimate.footprints[8])]
    return [
        _log_ratio(access.lines[0] * line_bytes, target.l2_bytes),
        _log(_ratio(statement.iterations, access.elements[0])),
        _log(abs(step)),
        _log_ratio(access.lines[cost.first] * line_bytes, target.l1_bytes),
        *(_log_ratio(lines, total) for lines in beyond),
    ]


def _group(costs: Iterable[StatementCost], estimate: Estimate, least: float) -> list[float]:
    """Sums over some statements, and means weighted by their cycles."""
    chosen = [cost for cost in costs if cost.total]
    weight = sum(cost.total for cost in chosen)
    if not weight:
        return [0.0] * len(_GROUP)

    def mean(values: Iterable[float]) -> float:
        return sum(cost.total * value for cost, value in zip(chosen, values, strict=True)) / weight

    return [
        _ratio(weight, sum(cost.total for cost in estimate.costs)),
        _log_ratio(sum(cost.compute * cost.span for cost in chosen), least),
        _log_ratio(sum(cost.memory * cost.span for cost in chosen), least),
        mean(_log(cost.lanes) for cost in chosen),
        mean(cost.fill for cost in chosen),
        mean(cost.tail_share for cost in chosen),
        mean(_repetition(cost) for cost in chosen),
        mean((cost.gathers + cost.scatters) / max(cost.stores + cost.scatters, 1.0) for cost in chosen),
        mean(_log(cost.statement.loops[cost.first - 1].extent) if cost.first else 0.0 for cost in chosen),
        mean(_log(cost.stores + cost.scatters) for cost in chosen),
        mean(float(cost.span >= 1.0) for cost in chosen),
    ]
