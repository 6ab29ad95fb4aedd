"""Products of one column or a few, summed along vectors of their depth: what numpy computes, whatever the sizes, types and neighbours."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tc
from benchmarks.products import model, node
from tc.codegen.llvm.emitter import emit_prim_func
from tc.ir.dtype import f32
from tc.ir.expr import Expr, Var
from tc.ir.loop import For, LoopKind, PrimFunc
from tc.ir.node import walk
from tc.ir.parser import parse_module
from tc.ir.printer import print_ir
from tc.ir.types import DimFact
from tc.passes.pipeline import finish_loops
from tc.schedule.knobs import Decide, Knob, Value, follow
from tc.schedule.rules import apply_rules
from tc.target import Target, native_target
from tc.te import create_prim_func, placeholder, reduce
from tests.ops.kernels import run

WIDE = Target.parse("x86-64-v4")


def product(batch: int, m: int | Var, k: int, n: int) -> PrimFunc:
    """A[batch, m, k] @ B[batch, k, n]."""
    a, b = placeholder((batch, m, k), f32, "A"), placeholder((batch, k, n), f32, "B")

    def term(s: Expr, i: Expr, j: Expr, r: Expr) -> Expr:
        return a[s, i, r] * b[s, r, j]

    result = reduce("sum", (batch, m, n), (k,), term, "mm")
    if not isinstance(m, Var):
        return create_prim_func("mm", [a, b], [result])
    return create_prim_func("mm", [a, b], [result], (m,), facts=(DimFact(m, 0),))


def answer(lanes: str) -> Decide:
    def decide(knob: Knob) -> Value:
        return lanes if knob.name.endswith("/lanes") else knob.default

    return decide


@pytest.mark.covering
@pytest.mark.parametrize("lanes", ["depth", "columns"])
@pytest.mark.parametrize("seed", range(12))
def test_products_of_few_columns_are_right_either_way(seed: int, lanes: str) -> None:
    rng = np.random.default_rng(seed)
    batch, rows, depth, columns = (int(rng.integers(1, most)) for most in (4, 40, 150, 17))
    size: int | Var = rows if seed % 2 else Var("m")
    a = rng.standard_normal((batch, rows, depth), dtype=np.float32)
    b = rng.standard_normal((batch, depth, columns), dtype=np.float32)

    func = finish_loops(apply_rules(product(batch, size, depth, columns), native_target(), answer(lanes)).func)

    one, two = (run(func, [a, b], () if seed % 2 else (rows,), threads=threads)[0] for threads in (1, 2))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(one, a.astype(float) @ b, rtol=0, atol=1e-6 * (4 + depth))


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        ((500, 300, 1), "row reduction"),
        ((500, 300, 3), "row reduction"),
        ((500, 3000, 1), "row reduction"),
        ((500, 8, 1), "contraction"),  # less than a vector to sum
        ((500, 300, 16), "contraction"),  # columns fill a vector
        ((2, 300, 7), "contraction"),  # too few rows for turning the columns
    ],
)
def test_vectors_lie_along_the_depth_where_columns_would_leave_lanes_empty(sizes: tuple[int, int, int], rule: str) -> None:
    assert apply_rules(product(1, *sizes), WIDE).rule == rule


def test_the_other_way_stays_in_the_space() -> None:
    func = product(1, 500, 300, 3)

    default = apply_rules(func, WIDE)
    other = apply_rules(func, WIDE, follow({default.choices[0].knob.name: "columns"}))

    assert (default.choices[0].value, other.rule) == ("depth", "contraction")


def close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=tolerance, atol=tolerance * np.abs(expected).max())


@pytest.mark.covering
@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "native"])
@pytest.mark.parametrize("columns", [2, 3, 5, 6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16, np.int32])
def test_rows_that_are_summed_together_are_what_each_is_alone(dtype: type, columns: int, target: str) -> None:
    """Numbers of rows that fill no tile, known and symbolic, sums that fill no vector, a bias and a relu behind them."""
    rng = np.random.default_rng(columns)
    nodes = [node("MatMul", ["a", "b"], "p"), node("Add", ["p", "c"], "q"), node("Max", ["q", "z"], "y")]
    for batch, rows, depth in ((1, 45, 300), (3, 33, 257)):
        shapes = ((batch, rows, depth), (depth, columns), (columns,), ())
        a, b, c, z = (rng.integers(-3, 4, shape).astype(dtype) for shape in shapes)
        expected = np.maximum(a.astype(float) @ b.astype(float) + c.astype(float), z.astype(float))
        made = model(nodes, {"a": a}, {"b": b, "c": c, "z": z})
        for is_symbolic in (False, True):
            if is_symbolic:
                made.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
            module = tc.compile(made, target=target)
            for count in (rows, 1, 0, 7) if is_symbolic else (rows,):
                (found,) = module.run({"a": a[:, :count]}).values()
                np.testing.assert_array_equal(found.astype(float), expected[:, :count].astype(dtype).astype(float))


def test_rows_are_summed_together_in_registers() -> None:
    text = print_ir(finish_loops(apply_rules(product(1, 500, 300, 3), WIDE).func))

    assert "8, 3, 16], scope='register')" in text


def test_what_precedes_and_follows_a_product_with_a_vector_is_kept() -> None:
    """Rows that are gathered, a function of the vector, a bias and a relu."""
    rng = np.random.default_rng(0)
    a, x, bias = (rng.standard_normal(shape, dtype=np.float32) for shape in ((60, 100), (100, 1), (45, 1)))
    rows = rng.integers(-60, 60, 45)
    nodes = [node("Gather", ["a", "i"], "g", axis=0), node("Tanh", ["x"], "t"), node("MatMul", ["g", "t"], "p")]
    nodes += [node("Add", ["p", "c"], "q"), node("Relu", ["q"], "y")]

    (found,) = tc.compile(model(nodes, {"a": a, "x": x, "i": rows}, {"c": bias})).run({"a": a, "x": x, "i": rows}).values()

    close(found, np.maximum(a[rows].astype(float) @ np.tanh(x.astype(float)) + bias, 0), 1e-5)


@pytest.mark.parametrize("columns", [1, 2, 5])
@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, np.int32])
def test_products_of_few_columns_in_other_types(dtype: type, columns: int) -> None:
    rng = np.random.default_rng(columns)
    a, b = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((37, 75), (75, columns)))

    (found,) = tc.compile(model([node("MatMul", ["a", "b"], "y")], {"a": a, "b": b}, {})).run({"a": a, "b": b}).values()

    np.testing.assert_array_equal(found.astype(float), (a.astype(float) @ b.astype(float)).astype(dtype).astype(float))


@pytest.mark.parametrize("columns", [1, 3])
def test_products_of_bytes_with_few_columns_are_exact(columns: int) -> None:
    rng = np.random.default_rng(columns)
    a, b = rng.integers(0, 256, (50, 91)).astype(np.uint8), rng.integers(-128, 128, (91, columns)).astype(np.int8)

    (found,) = tc.compile(model([node("MatMulInteger", ["a", "b"], "y")], {"a": a}, {"b": b})).run({"a": a}).values()

    np.testing.assert_array_equal(found, a.astype(np.int64) @ b)


def test_not_a_number_and_infinity_of_a_row_stay_in_it() -> None:
    a, b = np.ones((20, 50), np.float32), np.ones((50, 3), np.float32)
    a[3, 7], a[5, 49] = np.nan, np.inf

    (found,) = tc.compile(model([node("MatMul", ["a", "b"], "y")], {"a": a, "b": b}, {})).run({"a": a, "b": b}).values()

    assert np.isnan(found[3]).all()
    assert np.isposinf(found[5]).all()
    assert (np.delete(found, (3, 5), axis=0) == 50).all()


def test_tiles_of_part_of_a_vector_have_one_width() -> None:
    """Sums of 14 columns that were stored from vectors of 16 were blended into what was there, in the chain of each sum."""
    scheduled = apply_rules(product(1, 389, 217, 14), WIDE)

    widths = {int(loop.extent.value) for loop in walk(scheduled.func.body) if isinstance(loop, For) and loop.kind is LoopKind.VECTORIZED}
    assert (scheduled.rule, widths) == ("contraction", {14})


def test_vectors_of_odd_widths_are_loaded_at_once_and_nothing_behind_them_is_read() -> None:
    text = emit_prim_func(finish_loops(apply_rules(product(1, 60, 20, 14), WIDE).func), "kernel", WIDE.features).ir_text

    assert "load <14 x float>, ptr %B" not in text
    assert "@llvm.masked.load.v16f32.p0" in text
    assert "i1 true, i1 false, i1 false>" in text


def test_sums_of_more_terms_than_a_chain_may_have_are_made_in_parts_whatever_their_number() -> None:
    rng = np.random.default_rng(0)
    a, b = (np.abs(rng.standard_normal(shape, dtype=np.float32)) for shape in ((20, 9001), (9001, 40)))

    (found,) = tc.compile(model([node("MatMul", ["a", "b"], "y")], {"a": a, "b": b}, {})).run({"a": a, "b": b}).values()

    np.testing.assert_allclose(found, a.astype(float) @ b, rtol=2e-6)


FEW_TERMS = """
@loops
def f(x: f32[2, 12, 5], y: f32[2, d0, 5], s: i64, d0: i64):
    outputs(1)
    promise(s, 0, None, 1)
    promise(d0, 2, 4, 1)
    for i in range(2):
        for j in range(d0):
            for l in range(5):
                for rj in range(select(s == 2, 1, 0) + 1):
                    with block('y', vi=spatial(2, i), vj=spatial(d0, j), vl=spatial(5, l), vri=reduction(1, 0), vrj=reduction(select(s == 2, 1, 0) + 1, rj)):
                        annotate(monoid='sum')
                        with init():
                            y[vi, vj, vl] = 0.0
                        y[vi, vj, vl] = y[vi, vj, vl] + x[vi, vj * 2 + vrj, vri + vl]
"""  # noqa: E501  as it is printed


@pytest.mark.parametrize("size", [1, 2])
def test_sums_of_so_few_terms_that_there_is_one_part_have_a_schedule(size: int) -> None:
    """How many there are is known when they are summed: one, or two."""
    func = parse_module(FEW_TERMS).prim_funcs[0]
    x = np.random.default_rng(0).standard_normal((2, 12, 5)).astype(np.float32)

    scheduled = apply_rules(func, native_target())

    assert scheduled.rule == "column reduction"
    (found,) = run(finish_loops(scheduled.func), [x], (size, 3))
    np.testing.assert_allclose(found, sum(x[:, k : 6 : 2] for k in range(size)), rtol=1e-6)
