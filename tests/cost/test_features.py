"""Features of scheduled programs: what they depend on, what they do not, and that there is a number for every program."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from tc.autotune.search.space import Space
from tc.cost.features import ESTIMATE_COLUMN, FEATURE_NAMES, extract
from tc.errors import ScheduleError
from tc.ir.dtype import f32, i64
from tc.ir.expr import Buffer, Var, call, const, logical_and, maximum, select
from tc.ir.loop import For, If, Let, PrimFunc, Seq, Store, While
from tc.ir.node import Node, substitute, transform, walk
from tc.ir.node import replace as replace_node
from tc.schedule.rules import apply_rules
from tc.schedule.step import Schedule
from tc.target import Target
from tc.te import compute, create_prim_func, placeholder, reduce
from tests.schedule import programs
from tests.schedule.random_problems import CLASSES
from tests.schedule.random_traces import random_schedule

TARGET = Target.parse("x86-64-v4:cores=2")


def features(func: PrimFunc, dims: Mapping[str, int] | None = None, target: Target = TARGET) -> dict[str, float]:
    row = extract(func, target, dims or {})
    assert row.dtype == np.float32 and row.shape == (len(FEATURE_NAMES),)
    return dict(zip(FEATURE_NAMES, row.tolist(), strict=True))


def changed(first: Mapping[str, float], second: Mapping[str, float]) -> set[str]:
    return {name for name in first if abs(first[name] - second[name]) > 1e-6}


def convolution(channels: int = 16, size: int = 14) -> PrimFunc:
    x, w = placeholder((channels, size, size), f32, "X"), placeholder((channels, 3, 3, 32), f32, "W")
    pad = compute(
        (channels, size + 2, size + 2),
        lambda c, i, j: select(
            logical_and(i >= 1, i < size + 1, j >= 1, j < size + 1), x[c, i - 1, j - 1], const(0.0, f32)
        ),
        "pad",
    )
    y = reduce(
        "sum", (size, size, 32), (channels, 3, 3), lambda i, j, o, c, di, dj: pad[c, i + di, j + dj] * w[c, di, dj, o], "conv"
    )
    return create_prim_func("conv", [x, w], [compute((size, size, 32), lambda i, j, o: maximum(y[i, j, o], 0.0), "relu")])


# -- the columns


def test_names_are_unique_and_say_what_they_are_about() -> None:
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES)
    assert all(name == name.strip() and name.isprintable() and len(name) > 3 for name in FEATURE_NAMES)
    assert FEATURE_NAMES[ESTIMATE_COLUMN] == "log cycles"


def renamed(func: PrimFunc) -> PrimFunc:
    """Every loop, axis, buffer and block with another name."""
    binders = {node: replace_node(node, name=f"other_{k}") for k, node in enumerate(dict.fromkeys(walk(func))) if is_binder(node)}
    return transform(
        substitute(func, binders),
        lambda node: replace_node(node, name=f"block_{node.name[::-1]}") if type(node).__name__ == "Block" else None,
    )


def is_binder(node: Node) -> bool:
    return isinstance(node, (Var, Buffer))


@pytest.mark.parametrize("make", [programs.biased, programs.softmax, programs.gather])
def test_names_of_loops_and_buffers_play_no_part(make: Callable[[], PrimFunc]) -> None:
    func = apply_rules(make(), TARGET).func

    assert not changed(features(func), features(renamed(func)))


def test_two_traces_that_lead_to_one_program_have_equal_features() -> None:
    def scheduled(first: int, second: int) -> PrimFunc:
        schedule = Schedule(programs.chain(64))
        schedule.compute_inline("a")
        (loop,) = schedule.loops_of("b")
        if first:
            schedule.vectorize(schedule.split(loop, first)[1])
        else:
            schedule.vectorize(schedule.split(loop, (None, second))[1])
        return schedule.func

    assert not changed(features(scheduled(16, 0)), features(scheduled(0, 16)))


# -- what columns mean


def streamed(rows: int, columns: int, *, vectorize: bool = True, unroll: int = 1, parallel: bool = False) -> PrimFunc:
    x = placeholder((rows, columns), f32, "X")
    schedule = Schedule(create_prim_func("s", [x], [compute((rows, columns), lambda i, j: x[i, j] * 2.0 + 1.0, "y")]))
    i, j = schedule.loops_of("y")
    outer, inner = schedule.split(j, 16)
    if unroll > 1:
        schedule.unroll(schedule.split(outer, unroll)[1])
    if vectorize:
        schedule.vectorize(inner)
    if parallel:
        schedule.parallel(i)
    return schedule.func


def test_doubling_a_loop_adds_one_to_the_logarithms_of_counts() -> None:
    small, large = features(streamed(64, 4096)), features(streamed(128, 4096))

    for name in ("main: log iterations", "main: log tile runs", "main: log loops inside tasks", "log least cycles"):
        assert large[name] - small[name] == pytest.approx(1.0, abs=1e-4), name
    for name in ("main: log lanes", "main: log innermost loop", "main: multiply-add / operation", "main: vector loads / operation"):
        assert large[name] == small[name], name
    assert abs(large["cycles / least"] - small["cycles / least"]) < 0.1


def test_a_vectorized_loop_differs_from_a_scalar_one_in_lanes_and_cycles() -> None:
    scalar, vector = features(streamed(64, 256, vectorize=False)), features(streamed(64, 256))

    assert (scalar["main: log lanes"], vector["main: log lanes"]) == (0.0, 4.0)
    assert scalar["main: fill of vectors"] == pytest.approx(1 / 16)
    assert vector["main: fill of vectors"] == 1.0
    assert scalar["arithmetic / least"] - vector["arithmetic / least"] > 3.0
    same = ("main: log iterations", "log least cycles", "log working set / L1", "log repetition", "log tasks")
    assert not set(same) & changed(scalar, vector)


def test_unrolling_makes_longer_code_and_fewer_runs_of_the_tile() -> None:
    plain, unrolled = features(streamed(64, 256)), features(streamed(64, 256, unroll=4))

    assert unrolled["main: log unrolled"] == 2.0
    assert unrolled["main: log tile runs"] == plain["main: log tile runs"] - 2
    assert unrolled["log straight code"] > plain["log straight code"]
    assert unrolled["looping / least"] < plain["looping / least"]


def test_parallel_loops_make_tasks() -> None:
    alone, shared = features(streamed(64, 4096)), features(streamed(64, 4096, parallel=True))

    assert (alone["log tasks"], shared["log tasks"]) == (0.0, 6.0)
    assert (alone["share on one thread"], shared["share on one thread"]) == (1.0, 0.0)
    assert (alone["threads / cores"], shared["threads / cores"]) == (0.5, 1.0)
    assert shared["log cycles"] < alone["log cycles"] - 0.8


def test_three_tasks_on_two_cores_are_out_of_balance() -> None:
    even, odd = (features(streamed(rows, 65536, parallel=True))["log imbalance"] for rows in (4, 3))

    assert even == 0.0
    assert odd == pytest.approx(np.log2(4 / 3), abs=1e-3)


def tiled(rows: int, m: int = 56, n: int = 64, k: int = 64, *, rows_inside: bool = False, steps: int = 1) -> PrimFunc:
    schedule = Schedule(programs.matmul(m, n, k))
    i, j, r = schedule.loops_of("mm")
    io, ii = schedule.split(i, rows)
    jo, jv, jl = schedule.split(j, (None, 2, 16))
    ro, ri = schedule.split(r, steps)
    schedule.reorder(io, jo, ro, ri, *((jv, ii) if rows_inside else (ii, jv)), jl)
    schedule.vectorize(jl)
    for loop in (jv, ii, ri):
        schedule.unroll(loop)
    schedule.decompose_reduction("mm", ro)
    return schedule.func


def test_a_taller_tile_needs_fewer_loads_per_operation() -> None:
    low, tall = features(tiled(2)), features(tiled(14))

    # two vectors of the rhs, and the sums themselves, which are in memory
    assert low["main: vector loads / operation"] == (2 + 4) / 4
    assert tall["main: vector loads / operation"] == pytest.approx((2 + 28) / 28)
    assert low["main: broadcasts / operation"] == tall["main: broadcasts / operation"] == 0.5


@pytest.mark.parametrize("steps", [1, 4])
def test_what_the_tile_uses_again_stays_in_a_register_until_then(steps: int) -> None:
    rows_outside, rows_inside = (features(tiled(14, rows_inside=inside, steps=steps)) for inside in (False, True))
    registers = TARGET.num_vector_registers

    # the sums in memory are one more operand: both orders hold one operand for the inner loop and all of the other, 14 or 2
    held_outside, held_inside = (f["main: live / registers"] * registers for f in (rows_outside, rows_inside))
    assert held_inside - held_outside == (14 + 1) - (1 + 2)


def test_sums_that_wait_for_each_other_are_seen() -> None:
    few, many = features(tiled(1)), features(tiled(14))

    assert few["main: log waiting / arithmetic"] > 1.0
    assert many["main: log waiting / arithmetic"] < -0.5
    assert few["cycles / least"] > many["cycles / least"]


def test_a_tile_that_does_not_divide_is_cut() -> None:
    whole, cut = features(tiled(14)), features(tiled(16))

    assert whole["main: share in cut tiles"] == 0.0
    assert cut["main: share in cut tiles"] == pytest.approx(0.25)
    assert cut["main: log repetition"] == pytest.approx(0.0, abs=1e-6)


def test_computing_again_is_repetition() -> None:
    x = placeholder((64, 64), f32, "X")
    a = compute((64, 64), lambda i, j: call("exp", x[i, j]), "a")
    b = compute((62, 64), lambda i, j: a[i, j] + a[i + 2, j], "b")
    schedule = Schedule(create_prim_func("windows", [x], [b]))
    apart = features(schedule.func)
    schedule.compute_at("a", schedule.loops_of("b")[0])

    again = features(schedule.func)

    assert apart["main: log repetition"] == 0.0
    assert again["main: log repetition"] == pytest.approx(np.log2(3 * 62 / 64), abs=0.01)
    assert again["log scratch / L1"] < apart["log scratch / L1"]


def test_order_of_loops_changes_what_comes_from_beyond_a_cache() -> None:
    def walked(*order: int) -> dict[str, float]:
        x, y = placeholder((2048, 2048), f32, "X"), placeholder((2048,), f32, "Y")
        func = create_prim_func("f", [x, y], [compute((2048, 2048), lambda i, j: x[i, j] + y[j], "z")])
        schedule = Schedule(func)
        loops = schedule.loops_of("z")
        schedule.reorder(*(loops[k] for k in order))
        return features(schedule.func)

    along, across = walked(0, 1), walked(1, 0)

    assert across["lines beyond L1 / least"] > along["lines beyond L1 / least"] + 3
    assert across["lines beyond L3 / least"] >= along["lines beyond L3 / least"]
    assert across["main: vector: log bytes per step"] == along["main: vector: log bytes per step"] == 0.0
    assert across["main: log set conflicts"] > along["main: log set conflicts"]


def test_larger_caches_let_less_through() -> None:
    func = apply_rules(programs.matmul(256, 256, 256), TARGET).func
    lines = [f"lines beyond {size} / least" for size in ("L1 / 8", "L1 / 2", "L1", "L2 / 8", "L2", "L3")]

    row = features(func)

    assert [row[name] for name in lines] == sorted((row[name] for name in lines), reverse=True)


def test_a_transposition_is_read_in_gathers() -> None:
    x = placeholder((64, 64), f32, "X")
    schedule = Schedule(create_prim_func("t", [x], [compute((64, 64), lambda i, j: x[j, i] + 1.0, "y")]))
    schedule.vectorize(schedule.split(schedule.loops_of("y")[1], 16)[1])

    row = features(schedule.func)

    assert row["main: gathers / operation"] == 16
    assert row["main: vector loads / operation"] == 0
    assert row["main: gather: log uses per element"] == 0


def test_symbolic_dims_take_the_sizes_given() -> None:
    func = apply_rules(programs.chain(Var("n")), TARGET).func
    fixed = {size: features(apply_rules(programs.chain(size), TARGET).func) for size in (4096, 1 << 20)}

    for size, expected in fixed.items():
        found = features(func, {"n": size})
        for name in ("main: log iterations", "log least cycles", "log working set / L2", "main: log lanes"):
            assert found[name] == pytest.approx(expected[name], abs=0.02), name


def test_a_branch_that_the_dims_rule_out_counts_nothing() -> None:
    n = Var("n")
    x = placeholder((n, 64), f32, "X")
    schedule = Schedule(create_prim_func("f", [x], [compute((n, 64), lambda i, j: x[i, j] * 2.0, "y")], (n,)))
    plain = features(schedule.func, {"n": 50})
    schedule.specialize(schedule.loops_of("y")[0], 8)

    assert sum(isinstance(node, Store) for node in walk(schedule.func)) == 2
    assert not changed(plain, features(schedule.func, {"n": 50})) - {"log loops", "log statements"}


def test_vector_width_and_caches_of_the_target_count() -> None:
    func = apply_rules(programs.matmul(64, 64, 64), TARGET).func
    narrow = Target.parse("x86-64-v3:cores=2")

    wide_row, narrow_row = features(func), features(func, target=narrow)
    small_row = features(func, target=replace(TARGET, l2_bytes=1 << 15))

    assert narrow_row["log least cycles"] == wide_row["log least cycles"] + 1
    assert narrow_row["registers wanted / registers"] > wide_row["registers wanted / registers"]
    assert small_row["log working set / L2"] > wide_row["log working set / L2"]


# -- every program has finite features


def empty_loop() -> PrimFunc:
    return streamed(0, 32)


def no_statements() -> PrimFunc:
    return replace_node(programs.filled(), body=Seq(()))


def data_dependent_extent() -> PrimFunc:
    """for i in range(lengths[0]): y[i] = x[i]"""
    x, lengths, y = Buffer("x", (const(64),), f32), Buffer("lengths", (const(1),), i64), Buffer("y", (const(64),), f32)
    i = Var("i")
    return PrimFunc("ragged", (x, lengths, y), For(i, lengths[0], Store(y, (i,), x[i])))


def lets_and_whiles() -> PrimFunc:
    x, y = Buffer("x", (const(64),), f32), Buffer("y", (const(64),), f32)
    i, v = Var("i"), Var("v", f32)
    body = Let(v, call("exp", x[i]), If(v < 1.0, Store(y, (i,), v * 2.0), Store(y, (i,), v)))
    return PrimFunc("f", (x, y), For(i, const(64), While(y[0] < 3.0, body)))


def zero_sized() -> PrimFunc:
    x = Buffer("x", (const(0), const(4)), f32)
    return PrimFunc("f", (x, Buffer("y", (), f32)), Seq(()))


def scalar() -> PrimFunc:
    x, y = Buffer("x", (), f32), Buffer("y", (), f32)
    return PrimFunc("f", (x, y), Store(y, (), x[()] + 1.0))


def huge() -> PrimFunc:
    n = Var("n")
    return apply_rules(programs.chain(n), TARGET).func


def attention() -> PrimFunc:
    func, _, _ = CLASSES["chain"](np.random.default_rng(1))
    return apply_rules(func, TARGET).func


ODD: tuple[Callable[[], PrimFunc], ...] = (
    empty_loop, no_statements, data_dependent_extent, lets_and_whiles, zero_sized, scalar, huge, attention, programs.gather,
)  # fmt: skip


@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize("size", [0, 1, 1 << 40])
def test_odd_programs_have_finite_features(make: Callable[[], PrimFunc], size: int) -> None:
    func = make()

    row = extract(func, TARGET, {dim.name: size for dim in func.dims})

    assert np.isfinite(row).all()
    assert np.abs(row).max() < 1e5


def test_a_dim_without_a_size_has_a_usual_one() -> None:
    assert np.isfinite(extract(huge(), TARGET, {})).all()


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_random_schedules_have_finite_features(name: str) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        func, _, sizes = CLASSES[name](rng)
        scheduled = random_schedule(func, rng, 20).func

        row = extract(scheduled, TARGET, {var.name: size for var, size in zip(func.dims, sizes, strict=True)})

        assert np.isfinite(row).all()


# -- speed, and that the estimate is worth something


def candidates(func: PrimFunc, count: int, seed: int = 0) -> list[PrimFunc]:
    space, rng = Space({"default": func}, TARGET), np.random.default_rng(seed)
    found = []
    while len(found) < count:
        try:
            found.append(space.sample(rng).func)
        except ScheduleError:
            continue
    return found


def test_candidates_of_a_convolution_differ_in_their_features() -> None:
    rows = np.stack([extract(func, TARGET, {}) for func in candidates(convolution(), 12)])

    assert len(np.unique(rows, axis=0)) >= 6
    assert np.ptp(rows[:, ESTIMATE_COLUMN]) > 0.3


@pytest.mark.clock
def test_a_candidate_of_a_convolution_takes_two_milliseconds_at_most() -> None:
    funcs = candidates(convolution(), 8)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        for func in funcs:
            extract(func, TARGET, {})
        seconds.append((time.process_time() - start) / len(funcs))

    assert min(seconds) < 2e-3

