"""Sums of products whose operands are gathered, cast or scaled on the way, against numpy and the interpreter, on shapes of all kinds."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import pytest

from tc.codegen.kernels import finish_loops
from tc.interp import run_prim_func
from tc.ir.dtype import DType, bf16, f16, f32, i8, i32, i64
from tc.ir.expr import Const, Expr, Load, Var, cast, const, is_const
from tc.ir.loop import Alloc, For, If, LoopKind, PrimFunc
from tc.ir.node import substitute, walk
from tc.ir.uses import buffers_read, variables
from tc.schedule.analysis import block_infos
from tc.schedule.rules import apply_rules
from tc.target import Target
from tc.te import Read, Tensor, compute, create_prim_func, placeholder, reduce
from tests.ops.kernels import run

TARGETS = {name: Target.parse(f"{name}:cores=2") for name in ("x86-64-v3", "x86-64-v4")}

Case = tuple[list[Tensor], list[np.ndarray], Callable[[Expr, Expr, Expr], Expr], np.ndarray]


def floats(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType = f32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype.numpy)


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def gathered_rows(rng: np.random.Generator, m: int, n: int, k: int) -> Case:
    arrays = [floats(rng, (m + 3, k)), rng.integers(0, m + 3, m), floats(rng, (k, n))]
    a, rows, b = placeholder((m + 3, k), f32, "A"), placeholder((m,), i64, "I"), placeholder((k, n), f32, "B")
    return [a, rows, b], arrays, lambda i, j, r: a[rows[i], r] * b[r, j], wide(arrays[0])[arrays[1]] @ wide(arrays[2])


def gathered_depth(rng: np.random.Generator, m: int, n: int, k: int) -> Case:
    arrays = [floats(rng, (m, k + 5)), rng.integers(0, k + 5, k), floats(rng, (k, n))]
    a, terms, b = placeholder((m, k + 5), f32, "A"), placeholder((k,), i64, "I"), placeholder((k, n), f32, "B")
    return [a, terms, b], arrays, lambda i, j, r: a[i, terms[r]] * b[r, j], wide(arrays[0])[:, arrays[1]] @ wide(arrays[2])


def gathered_terms_of_weights(rng: np.random.Generator, m: int, n: int, k: int) -> Case:
    arrays = [floats(rng, (m, k)), rng.integers(0, k + 5, k), floats(rng, (k + 5, n))]
    a, terms, b = placeholder((m, k), f32, "A"), placeholder((k,), i64, "I"), placeholder((k + 5, n), f32, "B")
    return [a, terms, b], arrays, lambda i, j, r: a[i, r] * b[terms[r], j], wide(arrays[0]) @ wide(arrays[2])[arrays[1]]


def gathered_columns(rng: np.random.Generator, m: int, n: int, k: int) -> Case:
    arrays = [floats(rng, (m, k)), rng.integers(0, n + 5, n), floats(rng, (k, n + 5))]
    a, columns, b = placeholder((m, k), f32, "A"), placeholder((n,), i64, "I"), placeholder((k, n + 5), f32, "B")
    return [a, columns, b], arrays, lambda i, j, r: a[i, r] * b[r, columns[j]], wide(arrays[0]) @ wide(arrays[2])[:, arrays[1]]


def scaled_bytes(rng: np.random.Generator, m: int, n: int, k: int) -> Case:
    arrays = [floats(rng, (m, k)), rng.integers(-128, 128, (k, n)).astype(np.int8), floats(rng, (n,))]
    a, q, s = placeholder((m, k), f32, "A"), placeholder((k, n), i8, "Q"), placeholder((n,), f32, "S")
    return [a, q, s], arrays, lambda i, j, r: a[i, r] * (cast(q[r, j], f32) * s[j]), wide(arrays[0]) @ (arrays[1] * wide(arrays[2]))


def halves(dtype: DType) -> Callable[[np.random.Generator, int, int, int], Case]:
    def made(rng: np.random.Generator, m: int, n: int, k: int) -> Case:
        arrays = [floats(rng, (m, k), dtype), floats(rng, (k, n), dtype)]
        a, b = placeholder((m, k), dtype, "A"), placeholder((k, n), dtype, "B")
        return [a, b], arrays, lambda i, j, r: cast(a[i, r], f32) * cast(b[r, j], f32), wide(arrays[0]) @ wide(arrays[1])

    return made


def transposed_halves(rng: np.random.Generator, m: int, n: int, k: int) -> Case:
    arrays = [floats(rng, (m, k)), floats(rng, (n, k), bf16)]
    a, b = placeholder((m, k), f32, "A"), placeholder((n, k), bf16, "B")
    return [a, b], arrays, lambda i, j, r: a[i, r] * cast(b[j, r], f32), wide(arrays[0]) @ wide(arrays[1]).T


KINDS = {
    "gathered rows": gathered_rows,
    "gathered depth": gathered_depth,
    "gathered terms of weights": gathered_terms_of_weights,
    "gathered columns": gathered_columns,
    "scaled bytes": scaled_bytes,
    "bf16": halves(bf16),
    "f16": halves(f16),
    "transposed bf16": transposed_halves,
}


def product(case: Case, m: int | Var, n: int, k: int, with_bias: bool = False) -> PrimFunc:
    inputs, _, body, _ = case
    total = reduce("sum", (m, n), (k,), body, "mm")
    result = compute((m, n), lambda i, j: total[i, j] * 2.0 + 1.0, "after") if with_bias else total
    return create_prim_func("product", inputs, [result])


def largest_term(case: Case) -> float:
    """A bound of the products that are summed, and of the doubled result's share of each."""
    factors = [float(np.abs(array).max(initial=0)) for array in case[1] if array.dtype != np.int64]
    return 2 * float(np.prod(factors)) + 1


@pytest.mark.covering
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_products_of_staged_operands(kind: str, seed: int) -> None:
    rng = np.random.default_rng([seed, len(kind)])
    m, n, k = (int(size) for size in rng.choice([1, 2, 7, 16, 17, 31, 33, 64, 70, 129, 200], 3))
    case, with_bias = KINDS[kind](rng, m, n, k), bool(rng.integers(2))
    target = TARGETS["x86-64-v3" if rng.integers(2) else "x86-64-v4"]
    scheduled = apply_rules(product(case, m, n, k, with_bias), target)

    result, *_ = run(finish_loops(scheduled.func, threads=2), case[1], target=target)

    expected = case[3] * 2.0 + 1.0 if with_bias else case[3]
    np.testing.assert_allclose(result, expected, rtol=0, atol=k * 2.0**-23 * largest_term(case))


@pytest.mark.parametrize("kind", KINDS)
def test_the_schedule_means_the_same_to_the_interpreter(kind: str) -> None:
    rng = np.random.default_rng(0)
    case = KINDS[kind](rng, 17, 70, 5)
    func = product(case, 17, 70, 5)

    scheduled = apply_rules(func, TARGETS["x86-64-v3"])

    assert scheduled.rule == "contraction"
    np.testing.assert_allclose(run_prim_func(scheduled.func, case[1])[0], run_prim_func(func, case[1])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_no_copy_is_as_large_as_the_operand(kind: str) -> None:
    m, n, k = 256, 512, 512
    case = KINDS[kind](np.random.default_rng(0), m, n, k)

    scheduled = apply_rules(product(case, m, n, k), TARGETS["x86-64-v4"])
    final = finish_loops(scheduled.func, threads=1)

    assert scheduled.rule == "contraction"
    copies = [*final.outputs[1:], *(node.buffer for node in walk(final) if isinstance(node, Alloc))]
    sizes = [int(np.prod([int(dim.value) for dim in copy.shape])) for copy in copies]  # type: ignore[attr-defined]
    assert max(sizes) <= k * n // 2


def times_run(func: PrimFunc, wanted: str) -> int:
    """How often the blocks whose names contain `wanted` run, with what guards skip."""
    found = [info for info in block_infos(func) if wanted in info.name and not info.reduction_axes]
    assert found
    return sum(int(np.prod([int(loop.extent.value) for loop in info.loops])) for info in found)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "is_across"), [("x86-64-v3", True), ("x86-64-v4", False)])
def test_what_all_rows_choose_is_chosen_once_where_gathers_are_slow(name: str, is_across: bool) -> None:
    case = gathered_depth(np.random.default_rng(0), 50, 100, 40)

    loops = apply_rules(product(case, 50, 100, 40), dataclasses.replace(TARGETS[name], machine="sapphirerapids")).func

    copies = [node for node in walk(loops) if isinstance(node, For) and node.kind is LoopKind.UNROLLED and is_const(node.extent, 8)]
    indices = [load for node in copies for load in walk(node) if isinstance(load, Load) and load.buffer.dtype is i64]
    assert bool(indices) == is_across


@pytest.mark.parametrize("columns", [16 * 13, 816, 1157, 1420])
@pytest.mark.parametrize("name", TARGETS)
def test_what_is_copied_of_the_lhs_serves_all_columns(columns: int, name: str) -> None:
    a, terms = placeholder((762, 305), f32, "A"), placeholder((300,), i64, "I")
    b = placeholder((-(-columns // 16), 300, 16), f32, "B")  # packed
    total = reduce("sum", (762, columns), (300,), lambda i, j, r: a[i, terms[r]] * b[j // 16, r, j % 16], "mm")

    scheduled = apply_rules(create_prim_func("product", [a, terms, b], [total]), TARGETS[name])

    assert scheduled.rule == "contraction"
    assert times_run(scheduled.func, "lhs") <= 1.5 * 762 * 300


@pytest.mark.parametrize("columns", [32 * 13, 816, 1157, 1420])
@pytest.mark.parametrize("dtype", [bf16, i8], ids=str)
def test_what_is_copied_of_the_lhs_serves_several_tiles_where_the_rhs_is_copied_too(columns: int, dtype: DType) -> None:
    total_type = f32 if dtype is bf16 else i32
    a, b = placeholder((762, 300), dtype, "A"), placeholder((300, columns), dtype, "B")
    total = reduce("sum", (762, columns), (300,), lambda i, j, r: cast(a[i, r], total_type) * cast(b[r, j], total_type), "mm")

    scheduled = apply_rules(create_prim_func("product", [a, b], [total]), TARGETS["x86-64-v4"])

    assert scheduled.rule == "contraction"
    tiles = -(-columns // 32)
    assert times_run(scheduled.func, "A_lhs") <= 1.25 * 762 * 300 * -(-tiles // 3)


@functools.cache
def product_of_gathered_rows() -> tuple[str, PrimFunc]:
    m = Var("m", i64)
    a, chosen, b = placeholder((50, 33), f32, "A"), placeholder((m,), i64, "I"), placeholder((5, 33, 16), f32, "B")
    total = reduce("sum", (m, 70), (33,), lambda i, j, r: a[chosen[i], r] * b[j // 16, r, j % 16], "mm")
    scheduled = apply_rules(create_prim_func("product", [a, chosen, b], [total], (m,)), TARGETS["x86-64-v4"])
    return scheduled.rule, finish_loops(scheduled.func, threads=2)


@pytest.mark.parametrize("rows", [0, 1, 5, 14, 40, 200])
def test_any_number_of_gathered_rows_is_copied_tile_by_tile(rows: int) -> None:
    rng = np.random.default_rng(rows)
    arrays = [floats(rng, (50, 33)), rng.integers(0, 50, rows), floats(rng, (5, 33, 16))]
    rule, final = product_of_gathered_rows()

    result, *_ = run(final, arrays, (rows,), target=TARGETS["x86-64-v4"])

    assert rule == "contraction"
    copies = [*final.outputs[1:], *(node.buffer for node in walk(final) if isinstance(node, Alloc))]
    assert all(isinstance(dim, Const) for copy in copies for dim in copy.shape)  # as large as some rows, not as all of them
    weights = wide(arrays[2]).transpose(1, 0, 2).reshape(33, 80)[:, :70]
    np.testing.assert_allclose(result, wide(arrays[0])[arrays[1]] @ weights, rtol=0, atol=33 * 2.0**-23 * 30)


def test_tiles_that_stay_together_are_summed_in_parts_where_sums_are_long() -> None:
    a, b = placeholder((40, 10240), bf16, "A"), placeholder((10240, 512), bf16, "B")
    total = reduce("sum", (40, 512), (10240,), lambda i, j, r: cast(a[i, r], f32) * cast(b[r, j], f32), "mm")

    scheduled = apply_rules(create_prim_func("product", [a, b], [total]), TARGETS["x86-64-v4"])

    assert scheduled.rule == "contraction"
    assert {info.name for info in block_infos(scheduled.func)} >= {"mm", "mm_rf", "A_lhs", "B_rhs"}
    assert any(step.primitive == "transform_layout" for step in scheduled.trace.steps)


@functools.cache
def product_of_any_number_of_rows(kind: str) -> tuple[str, PrimFunc]:
    """The rule that schedules a product of m rows, 70 columns and 33 terms, and its loops."""
    m, (inputs, _, body, _) = Var("m", i64), KINDS[kind](np.random.default_rng(0), 1, 70, 33)
    lhs, wanted = placeholder((m, 33), inputs[0].dtype, "A"), inputs[0]

    def over_rows(i: Expr, j: Expr, r: Expr) -> Expr:
        return substitute(body(i, j, r), {Read(wanted, (i, r)): Read(lhs, (i, r))})

    total = reduce("sum", (m, 70), (33,), over_rows, "mm")
    scheduled = apply_rules(create_prim_func("product", [lhs, *inputs[1:]], [total], (m,)), TARGETS["x86-64-v4"])
    return scheduled.rule, finish_loops(scheduled.func, threads=2)


@pytest.mark.covering
@pytest.mark.parametrize("rows", [0, 1, 3, 5, 9, 16, 40])
@pytest.mark.parametrize("kind", ["scaled bytes", "bf16", "gathered columns", "gathered terms of weights", "transposed bf16"])
def test_products_of_any_number_of_rows(kind: str, rows: int) -> None:
    case = _, arrays, _, expected = KINDS[kind](np.random.default_rng(rows), rows, 70, 33)
    rule, loops = product_of_any_number_of_rows(kind)

    result, *_ = run(loops, arrays, (rows,), target=TARGETS["x86-64-v4"])

    assert rule == "contraction"
    np.testing.assert_allclose(result, expected, rtol=0, atol=33 * 2.0**-23 * largest_term(case))


@pytest.mark.parametrize(("rows", "dtype", "is_copied"), [(28, bf16, False), (42, bf16, True), (14, i8, False), (16, i8, True)])
def test_what_few_tiles_read_is_computed_in_each(rows: int, dtype: DType, is_copied: bool) -> None:
    """A cast costs less than a copy for two tiles of rows; a cast, a shift and a scale do not."""
    a, b, scale = placeholder((rows, 64), f32, "A"), placeholder((64, 96), dtype, "B"), placeholder((96,), f32, "S")

    def term(i: Expr, j: Expr, k: Expr) -> Expr:
        value = cast(b[k, j], f32)
        return a[i, k] * (value if dtype is bf16 else (value - const(3.0, f32)) * scale[j])

    total = reduce("sum", (rows, 96), (64,), term, "mm")
    inputs = [a, b] if dtype is bf16 else [a, b, scale]

    scheduled = apply_rules(create_prim_func("product", inputs, [total]), TARGETS["x86-64-v4"])

    assert any(info.name.endswith("_rhs") for info in block_infos(scheduled.func)) == is_copied


@pytest.mark.parametrize(
    ("rows", "columns", "is_copied"), [("m", "n", True), ("m", 600, True), (400, "n", True), ("m", 64, False), (64, "n", False)]
)
def test_columns_of_a_matrix_of_any_size_are_copied_for_many_rows(rows: int | str, columns: int | str, is_copied: bool) -> None:
    """Rows of any length, each of which would be read again for every tile of rows."""
    m, n = (Var(size) if isinstance(size, str) else size for size in (rows, columns))
    k = Var("k")
    a, b = placeholder((m, k), f32, "A"), placeholder((k, n), f32, "B")
    dims = tuple(size for size in (m, k, n) if isinstance(size, Var))
    total = reduce("sum", (m, n), (k,), lambda i, j, r: a[i, r] * b[r, j], "mm")

    scheduled = apply_rules(create_prim_func("product", [a, b], [total], dims), TARGETS["x86-64-v4"])

    assert scheduled.rule == "contraction"
    assert any("_rhs" in info.name for info in block_infos(scheduled.func)) == is_copied
    rng, loops = np.random.default_rng(0), finish_loops(scheduled.func, threads=2)
    for sizes in ((0, 3, 5), (2, 9, 300), (191, 5, 257), (192, 3, 255), (193, 33, 256), (200, 2, 301)):
        given = {"m": sizes[0], "k": sizes[1], "n": sizes[2]}
        own = [given[size] if isinstance(size, str) else size for size in (rows, "k", columns)]
        x, y = rng.integers(-4, 5, own[:2]).astype(np.float32), rng.integers(-4, 5, own[1:]).astype(np.float32)

        result, *_ = run(loops, [x, y], tuple(given[var.name] for var in dims), target=TARGETS["x86-64-v4"])

        np.testing.assert_array_equal(result, x @ y)


@pytest.mark.parametrize("columns", [12, 108, 300])
def test_copies_of_the_last_columns_have_no_vectors_without_elements(columns: int) -> None:
    """Those that a mask left none of took longer than the product."""
    a, b = placeholder((84, 40), f32, "A"), placeholder((40, columns), bf16, "B")
    total = reduce("sum", (84, columns), (40,), lambda i, j, k: a[i, k] * cast(b[k, j], f32), "mm")
    scheduled = apply_rules(create_prim_func("product", [a, b], [total]), TARGETS["x86-64-v4"])

    final = finish_loops(scheduled.func, threads=2)

    vectors = [node for node in walk(final) if isinstance(node, For) and node.kind is LoopKind.VECTORIZED]
    copies = [loop for loop in vectors if b.buffer in buffers_read(loop.body)]
    assert copies
    for loop in copies:
        conditions = [node.condition for node in walk(loop.body) if isinstance(node, If)]
        assert all(variables(condition) == {loop.var} for condition in conditions)
