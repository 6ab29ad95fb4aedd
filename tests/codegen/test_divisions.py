"""Integer division in vectors, by way of floats: exact wherever the interpreter's is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tc.interp import run_prim_func
from tc.ir.dtype import DType, i8, i16, i32, i64, u8, u16, u32, u64
from tc.ir.expr import Div, Expr, FloorDiv, FloorMod, call
from tc.schedule.rules import apply_rules
from tc.target import Target, native_target
from tc.te import compute, create_prim_func, placeholder
from tests.ops.kernels import finish, run


def _hard_quotients(dtype: DType, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Multiples and what is one less, ends of the range, zeros, and anything."""
    info, count = np.iinfo(dtype.numpy), 2000
    a, b = (rng.integers(info.min, info.max, count, dtype=dtype.numpy, endpoint=True) for _ in range(2))
    small = rng.integers(max(info.min, -9), 10, count).astype(dtype.numpy)
    b = np.where(rng.random(count) < 0.6, small, b)
    multiples = b * (a // np.where(b == 0, 1, b))
    a = np.where(rng.random(count) < 0.7, multiples - (rng.random(count) < 0.5).astype(dtype.numpy), a)
    ends = np.array([info.min, info.max, 0, 1, info.max // 2, -1 if info.min else 2], dtype.numpy)
    pairs = np.repeat(ends, len(ends)), np.tile(ends, len(ends))
    return np.append(a, pairs[0]).astype(dtype.numpy), np.append(b, pairs[1]).astype(dtype.numpy)


def _truncated_mod(a: Expr, b: Expr) -> Expr:
    return call("fmod", a, b)


@pytest.mark.covering
@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("operation", [Div, FloorDiv, FloorMod, _truncated_mod])
@pytest.mark.parametrize("dtype", [i8, u8, i16, u16, i32, u32, i64, u64], ids=str)
def test_vectors_are_divided_exactly(dtype: DType, operation: Callable[[Expr, Expr], Expr], target: str, rng: np.random.Generator) -> None:
    machine = native_target() if target == "native" else Target.parse(target)
    with np.errstate(all="ignore"):
        a, b = _hard_quotients(dtype, rng)
        x, y = placeholder(a.shape, dtype, "x"), placeholder(a.shape, dtype, "y")
        func = create_prim_func("divide", [x, y], [compute(a.shape, lambda i: operation(x[i], y[i]), "z")])
        expected = run_prim_func(func, [a, b])[0]

    found = run(finish(apply_rules(func, machine).func), [a, b], target=machine)[0]

    assert np.array_equal(found, expected)
