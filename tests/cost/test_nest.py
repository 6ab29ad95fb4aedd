"""What loops touch, counted from steps and ranges, against running the loops."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tc.cost.nest import MemoryAccess, Nest
from tc.ir.dtype import f32, i64
from tc.ir.expr import Var
from tc.ir.loop import PrimFunc
from tc.schedule.step import Schedule
from tc.te import compute, create_prim_func, placeholder, reduce
from tests.cost.enumeration import LINE_BYTES, Enumeration, Ran
from tests.draws import some_of
from tests.schedule import programs
from tests.schedule.random_problems import CLASSES
from tests.schedule.random_traces import random_schedule


def tiled_matmul(m: int, n: int, k: int, tile: int) -> PrimFunc:
    schedule = Schedule(programs.matmul(m, n, k))
    i, j, r = schedule.loops_of("mm")
    io, ii = schedule.split(i, tile)
    jo, ji = schedule.split(j, 16)
    schedule.reorder(io, jo, r, ii, ji)
    schedule.vectorize(ji)
    schedule.unroll(ii)
    return schedule.func


def strided_convolution(stride: int) -> PrimFunc:
    x, w = placeholder((3, 20, 40), f32, "X"), placeholder((4, 3, 3, 3), f32, "W")
    height, width = (20 - 3) // stride + 1, (40 - 3) // stride + 1
    y = reduce(
        "sum", (4, height, width), (3, 3, 3),
        lambda o, i, j, c, di, dj: x[c, i * stride + di, j * stride + dj] * w[o, c, di, dj], "conv",
    )  # fmt: skip
    return create_prim_func("conv", [x, w], [y])


def reordered_convolution(stride: int) -> PrimFunc:
    schedule = Schedule(strided_convolution(stride))
    o, i, j, c, di, dj = schedule.loops_of("conv")
    jo, ji = schedule.split(j, 4)
    schedule.reorder(i, o, jo, c, di, dj, ji)
    return schedule.func


def blocked(channels: int) -> PrimFunc:
    """Channels in blocks of 8: a quotient and a remainder of one axis."""
    x = placeholder((channels // 8, 10, 8), f32, "X")
    y = reduce("sum", (10,), (channels,), lambda i, c: x[c // 8, i, c % 8], "total")
    schedule = Schedule(create_prim_func("blocked", [x], [y]))
    i, c = schedule.loops_of("total")
    schedule.reorder(c, i)
    schedule.split(c, 8)
    return schedule.func


def fused(rows: int, columns: int, tile: int) -> PrimFunc:
    x = placeholder((rows, columns), f32, "X")
    func = create_prim_func("copy", [x], [compute((rows, columns), lambda i, j: x[i, j] * 2.0, "y")])
    schedule = Schedule(func)
    schedule.split(schedule.fuse(*schedule.loops_of("y")), tile)
    return schedule.func


EXACT: dict[str, PrimFunc] = {
    "matmul, whole tiles": tiled_matmul(12, 32, 7, 4),
    "matmul, cut tiles": tiled_matmul(13, 40, 5, 4),
    "convolution": strided_convolution(1),
    "convolution, stride 2": strided_convolution(2),
    "convolution, tiled": reordered_convolution(1),
    "convolution, stride 2, tiled": reordered_convolution(2),
    "convolution, stride 3: windows that touch": reordered_convolution(3),
    "blocks of channels": blocked(32),
    "fused and split within a row": fused(6, 24, 8),
    "fused and split across rows": fused(6, 8, 24),
    "softmax": programs.softmax(5, 40),
    "transposed": Schedule(CLASSES["movement"](np.random.default_rng(3))[0]).func,
}


def pairs_of(func: PrimFunc, dims: Mapping[str, int]) -> list[tuple[MemoryAccess, list[int], list[int]]]:
    """Every access to a parameter, with the elements and lines that running the loops finds."""
    nest, ran = Nest(func, dims, LINE_BYTES), list(Enumeration(func, dims).stores.values())
    statements = [statement for statement in nest.statements if statement.iterations]
    assert len(statements) == len(ran)
    found = []
    for statement, enumerated in zip(statements, ran, strict=True):
        assert statement.iterations == pytest.approx(enumerated.times)
        for buffer, region in nest.regions.items():
            for is_store in (False, True):
                accesses = [a for a in statement.accesses if a.region is region and a.is_store == is_store]
                touched = [t for t in enumerated.accesses.values() if t.buffer is buffer and t.is_store == is_store]
                assert len(accesses) == len(touched)
                if region.is_param:
                    counted = sorted(accesses, key=lambda access: access.elements)
                    enumerated_counts = sorted((t.counts(), t.lines()) for t in touched)
                    found += [(a, *counts) for a, counts in zip(counted, enumerated_counts, strict=True)]
    return found


@pytest.mark.parametrize("name", some_of(EXACT, quick=EXACT.keys() - {"convolution, tiled"}))
def test_touched_elements_are_those_that_running_the_loops_touches(name: str) -> None:
    for access, elements, _ in pairs_of(EXACT[name], {}):
        assert access.elements == pytest.approx(elements), access.region.shape


@pytest.mark.parametrize("name", some_of(EXACT, quick=EXACT.keys() - {"convolution, tiled"}))
def test_touched_lines_are_exact_where_rows_begin_with_a_line(name: str) -> None:
    for access, _, lines in pairs_of(EXACT[name], {}):
        row_bytes = access.region.shape[-1] * access.region.element_bytes
        if row_bytes % LINE_BYTES == 0:
            assert access.lines == pytest.approx(lines), access.region.shape
        ratios = np.array(access.lines) / lines
        assert 0.5 <= ratios.min() and ratios.max() <= 1.25, access.region.shape


def iterations_off(name: str, seed: int) -> list[bool]:
    """Of a random schedule: for each access, whether the number of elements it touches in all is not the one counted."""
    rng = np.random.default_rng(seed)
    func, _, sizes = CLASSES[name](rng)
    scheduled = random_schedule(func, rng).func
    dims = {var.name: size for var, size in zip(func.dims, sizes, strict=True)}
    nest = Nest(scheduled, dims, LINE_BYTES)
    off = []
    for statement, ran in zip((s for s in nest.statements if s.iterations), enumerated(scheduled, dims), strict=True):
        for buffer, region in nest.regions.items():
            mine = sorted(a.elements[0] for a in statement.accesses if a.region is region)
            theirs = sorted(float(t.counts()[0]) for t in ran.accesses.values() if t.buffer is buffer)
            if region.is_param:
                off += [abs(a - b) > 1e-6 for a, b in zip(mine, theirs, strict=True)]
    return off


def enumerated(func: PrimFunc, dims: Mapping[str, int]) -> list[Ran]:
    return list(Enumeration(func, dims).stores.values())


FROM_DATA = {"argmax", "gather", "gathered_rows", "gathered_depth", "ragged", "csr", "paged", "converted"}
"""Classes whose indices or extents are data, which an enumeration of the loops does not know."""


@pytest.mark.parametrize("count", some_of([1, 3], quick=[1]))
def test_nearly_all_accesses_of_random_schedules_are_counted_exactly(count: int) -> None:
    off = [wrong for name in sorted(set(CLASSES) - FROM_DATA) for seed in range(count) for wrong in iterations_off(name, seed)]

    assert len(off) > 20 * count
    assert np.mean(off) <= 0.05


def test_scratch_memory_is_as_large_as_one_iteration_around_its_accesses_needs() -> None:
    schedule = Schedule(programs.biased(12, 32, 5))
    outer, _ = schedule.split(schedule.loops_of("act")[0], 4)
    schedule.compute_at("mm", outer)

    nest = Nest(schedule.func, {}, LINE_BYTES)
    scratch = [region for region in nest.regions.values() if not region.is_param]

    assert [region.shape for region in scratch] == [[4.0, 32.0]]


def test_a_guard_leaves_the_iterations_that_the_axes_ask_for() -> None:
    nest = Nest(tiled_matmul(13, 40, 5, 4), {}, LINE_BYTES)

    statement = nest.statements[-1]
    whole = np.prod([loop.extent for loop in statement.loops])
    assert statement.iterations == pytest.approx(13 * 40 * 5)
    assert whole > statement.iterations
    assert statement.useful == pytest.approx(13 * 40 * 5)


def test_places_from_memory_are_spread_over_the_dimension() -> None:
    table, ids = placeholder((100, 16), f32, "T"), placeholder((10,), i64, "ids")
    func = create_prim_func("gather", [table, ids], [compute((10, 16), lambda i, j: table[ids[i], j], "rows")])

    (statement,) = Nest(Schedule(func).func, {}, LINE_BYTES).statements
    rows = next(a for a in statement.accesses if a.is_irregular)

    assert rows.elements == [160, 16, 1]
    assert rows.lines == [10, 1, 1]


def test_symbolic_dims_take_the_sizes_given() -> None:
    func = Schedule(programs.chain(Var("n"))).func

    small, large = (Nest(func, {"n": size}, LINE_BYTES).statements[0].iterations for size in (8, 80))

    assert (small, large) == (8, 80)
