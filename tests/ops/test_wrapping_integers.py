"""Data in i64 wraps, though dims and indices are read as unbounded: what is fused with a sum or product gets its value modulo 2**64.

`x < x + 1`, `max(x, x + 1)` and `(3 * x + y) % 3` were decided as for unbounded integers, and `x % -3` was made of -x.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tc
from tc.interp import run_prim_func
from tc.ir.arith import simplify
from tc.ir.dtype import i64
from tc.ir.expr import Add, FloorDiv, FloorMod, Mul, Var, const, wrapping
from tc.te import compute, create_prim_func, placeholder
from tests.frontend.models import make_model, node
from tests.ops.kernels import finish, run

LEAST, MOST = -(2**63), 2**63 - 1
X = np.array([LEAST, LEAST + 1, -1, 0, 1, 2, MOST // 3 + 1, MOST // 2 + 1, MOST - 1, MOST, -7, 1 << 62])
Z = np.arange(12) - 5

CASES: dict[str, tuple[list[object], int, Callable[[np.ndarray, np.ndarray, np.int64], np.ndarray]]] = {
    "remainder of a multiple and more": (
        [node("Mul", "x c", "a"), node("Add", "a z", "b"), node("Mod", "b c", "y")],
        3,
        lambda x, z, c: (x * c + z) % c,
    ),
    "less than one more": ([node("Add", "x c", "a"), node("Less", "x a", "y")], 1, lambda x, z, c: x < x + c),
    "multiples compared": ([node("Mul", "x c", "a"), node("Mul", "z c", "b"), node("Less", "a b", "y")], 8, lambda x, z, c: x * c < z * c),
    "the greater of one more": ([node("Add", "x c", "a"), node("Max", "x a", "y")], 1, lambda x, z, c: np.maximum(x, x + c)),
    "the lesser of one less": ([node("Sub", "x c", "a"), node("Min", "x a", "y")], 1, lambda x, z, c: np.minimum(x, x - c)),
    "less than its negative": ([node("Neg", "x", "a"), node("Add", "a c", "b"), node("Less", "a b", "y")], 1, lambda x, z, c: -x < c - x),
    "more than a negative number": ([node("Greater", "x c", "y")], -2, lambda x, z, c: x > c),
    "less than a negative number": ([node("Less", "x c", "y")], -2, lambda x, z, c: x < c),
    "no less than a negative number": ([node("GreaterOrEqual", "x c", "y")], LEAST + 1, lambda x, z, c: x >= c),
    "a negative number": ([node("Equal", "x c", "y")], -7, lambda x, z, c: x == c),
    "multiples of data more than a number": ([node("Mul", "z c", "a"), node("Greater", "a c", "y")], -3, lambda x, z, c: z * c > c),
    "remainder by a negative number": ([node("Mod", "x c", "y")], -3, lambda x, z, c: x % c),
    "remainder by -1": ([node("Mod", "x c", "y")], -1, lambda x, z, c: x % c),
}


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("name", CASES)
def test_fused_arithmetic_of_data_wraps(name: str, target: str) -> None:
    nodes, number, expected = CASES[name]
    uses_z = any("z" in each.input for each in nodes)  # type: ignore[attr-defined]
    inputs = {"x": (np.int64, [12])} | ({"z": (np.int64, [12])} if uses_z else {})

    with np.errstate(all="ignore"):
        want = expected(X, Z, np.int64(number))
        got = tc.compile(make_model(nodes, inputs, ["y"], {"c": np.int64(number)}), target)(*([X, Z] if uses_z else [X]))

    assert np.array_equal(got, want)


@pytest.mark.parametrize("divisor", [-1, -3, LEAST])
@pytest.mark.parametrize("operation", [FloorDiv, FloorMod])
def test_data_is_divided_by_a_negative_literal_exactly(operation: type, divisor: int) -> None:
    x = placeholder((12,), i64, "x")
    func = create_prim_func("divide", [x], [compute((12,), lambda i: operation(x[i], const(divisor)), "y")])
    exact = [int(v) // divisor if operation is FloorDiv else int(v) % divisor for v in X]
    wrapped = np.array([(v - LEAST) % 2**64 + LEAST for v in exact])

    assert np.array_equal(run_prim_func(func, [X])[0], wrapped)
    assert np.array_equal(run(finish(func), [X])[0], wrapped)


def test_arithmetic_of_dims_and_of_data_that_cannot_wrap_is_plain() -> None:
    i, n = Var("i"), Var("n")
    small = FloorMod(placeholder((12,), i64, "x")[i], const(100))

    assert simplify(wrapping(Add, wrapping(Mul, i, const(4)), n)) is simplify(i * 4 + n)
    assert simplify(wrapping(Mul, small, const(4))) is simplify(small * 4)
