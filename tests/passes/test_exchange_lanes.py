"""Reductions of rows by exchanges of lanes: what they compute, that no barrier is missing, and what stays in shared memory."""

from __future__ import annotations

import numpy as np
import pytest

from tc.codegen.ptx.emitter import emit_ptx
from tc.interp import run_prim_func
from tc.ir.dtype import DType, f16, f32, f64, i8, i32, i64, u32
from tc.ir.expr import Var, cast
from tc.ir.loop import Barrier, PrimFunc, WarpCall, walk_statements
from tc.ir.parser import parse_prim_func
from tc.ir.verify import verify
from tc.passes.loop.exchange_lanes import exchange_lanes
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tc.schedule.rules import apply_rules
from tc.target import Target
from tc.te import compute, create_prim_func, placeholder, reduce
from tests.ptx.kernels import run_launches

CUDA = Target.parse("cuda:sm_80")
NUMPY = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
EXCHANGING = ("shuffle", "sm_75")


def reduced(monoid: str, rows: int, terms: int | Var, dtype: DType) -> PrimFunc:
    """Each row's reduction, added to its elements."""
    dims = (terms,) if isinstance(terms, Var) else ()
    x = placeholder((rows, terms), dtype, "X")
    total = reduce(monoid, (rows,), (terms,), lambda i, k: x[i, k], "total")
    return create_prim_func("f", [x], [compute((rows, terms), lambda i, j: cast(x[i, j] + total[i], dtype), "y")], dims)


def finished(func: PrimFunc, features: tuple[str, ...]) -> PrimFunc:
    made = finish_loops(apply_rules(func, CUDA).func, calls=DEVICE_FINISH_CALLS, features=features)
    verify(made)
    return made


def exchanges(func: PrimFunc) -> int:
    return sum(isinstance(stmt, WarpCall) for stmt in walk_statements(func.body))


def barriers(func: PrimFunc) -> int:
    return sum(isinstance(stmt, Barrier) for stmt in walk_statements(func.body))


@pytest.mark.parametrize(
    ("monoid", "dtype"), [*((monoid, f32) for monoid in NUMPY), ("sum", f64), ("max", i32), ("prod", i64), ("min", u32)], ids=str
)
def test_reductions_of_rows_are_numpys(monoid: str, dtype: DType) -> None:
    rng = np.random.default_rng(list(NUMPY).index(monoid))
    for rows, terms in ((1, 33), (3, 1000), (5, 64)):
        x = rng.integers(1, 3 if monoid == "prod" else 9, (rows, terms)).astype(dtype.numpy)
        if monoid == "prod" and not dtype.is_int:
            x[:, 20:] = 1
        func = finished(reduced(monoid, rows, terms, dtype), EXCHANGING)
        with np.errstate(over="ignore"):
            want = x + NUMPY[monoid].reduce(x, 1, keepdims=True, dtype=x.dtype)

        assert exchanges(func) >= 2
        np.testing.assert_array_equal(run_prim_func(func, [x])[0], want)
        np.testing.assert_array_equal(run_launches(func, emit_ptx(func, "k", "sm_80"), "k", [x])[0], want)


@pytest.mark.parametrize("n", [0, 1, 31, 33, 1000])
def test_rows_of_unknown_length_are_reduced_by_exchanges(n: int) -> None:
    func = finished(reduced("max", 3, Var("n"), f32), EXCHANGING)
    x = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)

    assert exchanges(func) >= 2
    np.testing.assert_array_equal(run_prim_func(func, [x], (n,))[0], x + x.max(1, keepdims=True) if n else x)


def test_every_lane_knows_of_a_value_that_is_no_number() -> None:
    x = np.random.default_rng(0).standard_normal((6, 300)).astype(np.float32)
    x[1, 7] = x[4, 299] = np.nan
    x[2, 0] = np.inf
    func = finished(reduced("max", 6, 300, f32), EXCHANGING)

    (got,) = run_prim_func(func, [x])

    np.testing.assert_array_equal(got, x + x.max(1, keepdims=True))


@pytest.mark.parametrize("dtype", [f16, i8], ids=str)
def test_what_fills_no_register_stays_in_shared_memory(dtype: DType) -> None:
    func = finished(reduced("max", 3, 100, dtype), EXCHANGING)
    x = np.random.default_rng(0).integers(-9, 9, (3, 100)).astype(dtype.numpy)

    assert exchanges(func) == 0
    np.testing.assert_array_equal(run_prim_func(func, [x])[0], x + x.max(1, keepdims=True))


def test_without_exchanges_the_same_program_uses_shared_memory_and_gives_the_same_bits() -> None:
    func = reduced("sum", 4, 1000, f32)
    x = np.random.default_rng(0).standard_normal((4, 1000)).astype(np.float32)
    held, shared = finished(func, EXCHANGING), finished(func, ())

    assert (exchanges(held), barriers(held)) != (0, barriers(shared)) and exchanges(shared) == 0
    assert barriers(held) < barriers(shared)
    assert run_prim_func(held, [x])[0].tobytes() == run_prim_func(shared, [x])[0].tobytes()


STEP = """
@loops
def f(A: f32[64, 32], B: f32[64, 16]):
    outputs(1)
    for b in bound(64, 'block.x'):
        with alloc(f32[32], scope='shared') as P:
            for x in bound(32, 'thread.x'):
                P[x] = A[b, x]
            for x_1 in bound(16, 'thread.x'):
                B[b, x_1] = P[x_1] - P[x_1 + 16]
"""


@pytest.mark.parametrize(
    ("old", "new", "held"),
    [
        ("", "", True),
        ("P[x_1 + 16]", "P[x_1 + 8]", False),  # of no partner
        ("P[x_1 + 16]", "P[31 - x_1]", False),
        ("P[x] = A[b, x]", "P[31 - x] = A[b, x]", False),  # not the lane's own
        ("P[x] = A[b, x]", "P[x] = A[b, x]\n                if x < 3:\n                    P[x + 1] = 1.0", False),
        ("bound(32, 'thread.x')", "bound(31, 'thread.x')", False),  # no power of two
        ("- P[x_1 + 16]", "- P[x_1 + 16] + P[b % 32]", False),  # some other lane's
    ],
)
def test_only_elements_of_partners_are_exchanged(old: str, new: str, held: bool) -> None:
    func = parse_prim_func(STEP.replace(old, new) if old else STEP)

    made = exchange_lanes(func, features=EXCHANGING)

    verify(made)
    assert exchanges(made) == held
    if held:
        x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
        np.testing.assert_array_equal(run_prim_func(finish_loops(made, calls=DEVICE_FINISH_CALLS), [x])[0], x[:, :16] - x[:, 16:])
