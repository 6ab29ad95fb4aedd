"""Small programs that the tests of single primitives schedule."""

from __future__ import annotations

import numpy as np

from tc.interp import run_prim_func
from tc.ir.dtype import DType, f32, i32, i64
from tc.ir.expr import Var, call, const, floormod, maximum, select
from tc.ir.loop import PrimFunc
from tc.schedule.step import Schedule
from tc.te import compute, create_prim_func, placeholder, reduce


def filled_up() -> PrimFunc:
    """a[5] doubled, and three zeros behind it."""
    x = placeholder((5,), f32, "X")
    a = compute((5,), lambda i: x[i] * 2.0, "a")
    return create_prim_func("filled_up", [x], [compute((8,), lambda i: select(i < 5, a[i], const(0.0, f32)), "b")])


def chain(n: int | Var = 20) -> PrimFunc:
    """a = X + 1; b = a * 2."""
    x = placeholder((n,), f32, "X")
    a = compute((n,), lambda i: x[i] + 1.0, "a")
    b = compute((n,), lambda i: a[i] * 2.0, "b")
    return create_prim_func("chain", [x], [b], (n,) if isinstance(n, Var) else ())


def matmul(m: int | Var = 6, n: int = 8, k: int = 5) -> PrimFunc:
    """mm[i, j] = sum A[i, k] * B[k, j]."""
    a, b = placeholder((m, k), f32, "A"), placeholder((k, n), f32, "B")
    total = reduce("sum", (m, n), (k,), lambda i, j, r: a[i, r] * b[r, j], "mm")
    return create_prim_func("matmul", [a, b], [total], (m,) if isinstance(m, Var) else ())


def biased(m: int = 6, n: int = 8, k: int = 5, dtype: DType = f32, biases: int | None = None) -> PrimFunc:
    """A matmul, and a stage that applies a bias, one of some, and an activation."""
    a, b, bias = placeholder((m, k), dtype, "A"), placeholder((k, n), dtype, "B"), placeholder((biases or n,), dtype, "bias")
    mm = reduce("sum", (m, n), (k,), lambda i, j, r: a[i, r] * b[r, j], "mm")
    act = compute((m, n), lambda i, j: maximum(mm[i, j] + bias[floormod(j, biases) if biases else j], const(0, dtype)), "act")
    return create_prim_func("biased", [a, b, bias], [act])


def two_addends(other: str = "bias") -> PrimFunc:
    """A matmul of integers and a bias, and once more with another one, without one, or with one that is no input."""
    a, b, bias, more = (placeholder(shape, i32, name) for shape, name in (((4, 3), "A"), ((3, 4), "B"), ((4,), "bias"), ((4,), "more")))
    mm = reduce("sum", (4, 4), (3,), lambda i, j, r: a[i, r] * b[r, j], "mm")
    long = compute((4,), lambda j: bias[j] + more[j], "long")
    act = compute((4, 4), lambda i, j: mm[i, j] + (long if other == "long" else bias)[j], "act")
    again = compute((4, 4), lambda i, j: mm[i, j] + (more[j] if other == "bias" else bias[i]) if other != "mm" else mm[i, j] * 2, "other")
    return create_prim_func("two_addends", [a, b, bias, more], [act, again])


def row_sum(m: int = 3, k: int | Var = 10, dtype: DType = f32) -> PrimFunc:
    """s[i] = sum A[i, k]."""
    a = placeholder((m, k), dtype, "A")
    dims = (k,) if isinstance(k, Var) else ()
    return create_prim_func("row_sum", [a], [reduce("sum", (m,), (k,), lambda i, r: a[i, r], "s")], dims)


def softmax(m: int = 4, n: int = 6) -> PrimFunc:
    """Four stages over rows."""
    x = placeholder((m, n), f32, "X")
    top = reduce("max", (m,), (n,), lambda i, r: x[i, r], "top")
    e = compute((m, n), lambda i, j: call("exp", x[i, j] - top[i]), "e")
    s = reduce("sum", (m,), (n,), lambda i, r: e[i, r], "s")
    y = compute((m, n), lambda i, j: e[i, j] / s[i], "y")
    return create_prim_func("softmax", [x], [y])


def two_readers(n: int | Var = 8, first: int | Var = 8) -> PrimFunc:
    """The `first` numbers of a are read by b, all by c, both results."""
    x = placeholder((n,), f32, "X")
    a = compute((n,), lambda i: x[i] + 1.0, "a")
    b = compute((first,), lambda i: a[i] * 2.0, "b")
    c = compute((n,), lambda i: a[i] * 3.0, "c")
    return create_prim_func("two_readers", [x], [b, c])


def gather(n: int = 5, vocabulary: int = 7, width: int = 4) -> PrimFunc:
    """Rows of a scaled table."""
    table, ids = placeholder((vocabulary, width), f32, "T"), placeholder((n,), i64, "ids")
    scaled = compute((vocabulary, width), lambda i, j: table[i, j] * 3.0, "scaled")
    rows = compute((n, width), lambda i, j: scaled[ids[i], j], "rows")
    return create_prim_func("gather", [table, ids], [rows])


def shifted(n: int = 9) -> PrimFunc:
    """b reads a window of a, and the last part of a only."""
    x = placeholder((n,), f32, "X")
    a = compute((n,), lambda i: x[i] * x[i], "a")
    b = compute((n - 2,), lambda i: a[i] + a[i + 2], "b")
    return create_prim_func("shifted", [x], [b])


def filled(n: int = 4) -> PrimFunc:
    """A constant."""
    return create_prim_func("filled", [], [compute((n,), lambda i: const(1.0, f32), "one")])


def assert_same(func: PrimFunc, schedule: Schedule, dims: tuple[int, ...] = (), seed: int = 0) -> None:
    """The schedule computes what the function does, and its trace makes it again."""
    rng = np.random.default_rng(seed)
    env = dict(zip(func.dims, dims, strict=True))
    arrays = []
    for buffer in func.inputs:
        shape = [env[dim] if isinstance(dim, Var) else int(dim) for dim in buffer.shape]  # type: ignore[call-overload]
        arrays.append(rng.integers(0 if buffer.dtype == i64 else -4, 5, shape).astype(buffer.dtype.numpy))
    expected = run_prim_func(func, arrays, dims)
    for found in (schedule.func, schedule.trace.apply(func)):
        for want, got in zip(expected, run_prim_func(found, arrays, dims), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
