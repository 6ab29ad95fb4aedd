"""Determinants of square matrices: products of the pivots of a factorisation with partial pivoting, a copy of the matrix its workspace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import bounds
from tc.ir.dtype import f32, f64
from tc.ir.expr import Buffer, Expr, Load, call, cast, ceildiv, const, equal, logical_and, logical_not, select
from tc.ir.graph import Attrs
from tc.ir.loop import If, LoopKind, Stmt, Store, seq
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, operand, require_equal
from tc.ops.registry import OpDef, current_facts, register
from tc.ops.statements import LANES, cell, get, grow, held, let, loop, loops_over_rows, put, scratch
from tc.te import Tensor

SCALE = 2.0**512
"""Of products of pivots that leave the middle of f64's range: they are so many times larger or smaller, which is counted."""

MIDDLE = 2.0**256


def _infer(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "determinant")
    if x.rank < 2 or not x.dtype.is_float:
        raise ShapeError(f"determinant: {x} must be floats with at least 2 dims")
    require_equal(x.shape[-2], x.shape[-1], "determinant: the last two dims")
    return TensorType(x.shape[:-2], x.dtype)


def _compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, ...]:
    x = tensors[0]
    assert x is not None
    size, dtype = x.shape[-1], f64 if x.dtype == f64 else f32
    most = bounds(size, current_facts()).hi
    lanes = next((count for count in (4, 8) if most is not None and most <= count), LANES)
    groups = ceildiv(size, lanes)

    def body(out: Buffer) -> Stmt:
        def one(*outer: Expr) -> Stmt:
            rows = Buffer("rows", (te.maximum(size, const(1)), te.maximum(groups * lanes, const(lanes))), dtype)
            best, pivot, place = cell("best", dtype), cell("pivot", dtype), cell("pivot_row")
            total, exponent = cell("product", f64), cell("exponent")

            def vectors(start: Expr, body: Any) -> Stmt:
                """`body(column)` for whole groups of columns, from the one that column `start` is in."""
                first = start // lanes
                return loop(
                    groups - first, lambda g: loop(lanes, lambda lane: body((first + g) * lanes + lane), "lane", LoopKind.VECTORIZED), "g"
                )

            def copied(i: Expr, j: Expr) -> Stmt:
                return Store(rows, (i, j), select(j < size, cast(x[(*outer, i, te.minimum(j, size - 1))], dtype), const(0.0, dtype)))

            def look(k: Expr, i: Expr) -> Stmt:
                found = call("abs", Load(rows, (i, k)))
                better = logical_and(logical_not(found <= get(best)), equal(get(best), get(best)))  # a NaN is taken, and stays
                return If(better, seq(put(best, found), put(place, i)))

            def exchange(k: Expr, j: Expr) -> Stmt:
                other = held(get(place), size)
                return let(
                    Load(rows, (k, j)), lambda mine: seq(Store(rows, (k, j), Load(rows, (other, j))), Store(rows, (other, j), mine)), "mine"
                )

            def eliminate(k: Expr, i: Expr) -> Stmt:
                def less(factor: Expr, j: Expr) -> Stmt:
                    return Store(rows, (i, j), Load(rows, (i, j)) - factor * Load(rows, (k, j)))

                return let(Load(rows, (i, k)) / get(pivot), lambda factor: vectors(k + 1, lambda j: less(factor, j)), "factor")

            def step(k: Expr) -> Stmt:
                begin = seq(put(place, k), put(best, call("abs", Load(rows, (k, k)))), loop(size - k - 1, lambda i: look(k, k + 1 + i)))
                swap = seq(put(total, const(0.0, f64) - get(total)), vectors(k, lambda j: exchange(k, j)))
                rest = seq(
                    put(pivot, Load(rows, (k, k))),
                    _multiply(total, exponent, cast(get(pivot), f64)),
                    If(logical_not(equal(get(best), const(0.0, dtype))), loop(size - k - 1, lambda i: eliminate(k, k + 1 + i))),
                )
                return seq(begin, If(logical_not(equal(get(place), k)), swap), rest)

            fill = loop(size, lambda i: vectors(const(0), lambda j: copied(i, j)), "i")
            factorise = If(const(0) < size, seq(fill, loop(size, step, "k")))
            buffers = (rows, best, pivot, place, total, exponent)
            start = seq(put(total, const(1.0, f64)), put(exponent, 0))
            result = select(equal(get(total), const(0.0, f64)), const(0.0, f64), get(total))  # of a singular matrix without a sign
            return scratch(buffers, seq(start, factorise, _unscale(total, exponent), Store(out, outer, cast(result, out.dtype))))

        return loops_over_rows(x.shape[:-2], size * size * te.maximum(size, const(1)), one)

    return te.raw([("determinant", types[0].shape, types[0].dtype)], body, "determinant")


def _multiply(total: Buffer, exponent: Buffer, factor: Expr) -> Stmt:
    """`total` *= factor, both of which are brought to the middle of the range before: the product is exact but for its rounding."""

    def centred(place: Buffer) -> Stmt:
        amount = call("abs", get(place))
        large, small = const(MIDDLE, f64) < amount, amount < const(1 / MIDDLE, f64)
        scale = select(large, const(1 / SCALE, f64), select(small, const(SCALE, f64), const(1.0, f64)))
        return seq(grow(exponent, select(large, const(1), select(small, const(-1), const(0)))), put(place, get(place) * scale))

    own = cell("factor", f64)
    zero = equal(factor, const(0.0, f64))
    work = seq(put(own, factor), centred(own), put(total, get(total) * get(own)), centred(total))
    return If(zero, put(total, get(total) * const(0.0, f64)), scratch([own], work))


def _unscale(total: Buffer, exponent: Buffer) -> Stmt:
    """Multiply by SCALE as often as `exponent` says: more than four times nothing is left of a number."""

    def once(_: Expr) -> Stmt:
        up, down = const(0) < get(exponent), get(exponent) < const(0)
        scale = select(up, const(SCALE, f64), select(down, const(1 / SCALE, f64), const(1.0, f64)))
        return seq(put(total, get(total) * scale), grow(exponent, select(up, const(-1), select(down, const(1), const(0)))))

    return loop(5, once)


def _run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    with np.errstate(all="ignore"):
        return np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype)


def _samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    for shape in ((3, 3), (2, 5, 5), (2, 1, 9, 9), (4, 1, 1), (3, 0, 0)):
        shift = 3 * np.eye(shape[-1])[rng.permutation(shape[-1])]
        yield [(rng.standard_normal(shape) + shift).astype(np.float64 if len(shape) == 4 else np.float32)], {}
    yield [np.array([[0, 2, 0], [0, 0, 3], [4, 0, 0]], np.float16)], {}
    yield [np.array([[1, 2], [2, 4]], np.float64)], {}
    yield [np.diag([1e200, 1e-200, 1e200, -1e-200, 3.0])], {}
    yield [np.array([[np.nan, 1], [1, 2]], np.float32)], {}


register(OpDef("determinant", _infer, _run, _compute, {}, samples=_samples))
