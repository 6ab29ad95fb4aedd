"""One operation each, on numbers that are hard: for any language of the C family against the meaning of the IR."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tc.interp import run_prim_func
from tc.ir.dtype import ALL_DTYPES, DType, bf16, f16, f32, f64, int_range, u32, u64
from tc.ir.expr import (
    MATH_CALLS,
    Add,
    Buffer,
    Cast,
    Div,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    MathCall,
    Max,
    Min,
    Mul,
    Ne,
    Select,
    Sub,
    Var,
    const,
    result_of_call,
)
from tc.ir.loop import For, LoopKind, PrimFunc, Store
from tc.ir.node import replace

COUNT = 160
"""Elements: a number of vectors of 16, and room for all pairs of the edges."""

FLOATS = (f64, f32, f16, bf16)
INTEGERS = tuple(d for d in ALL_DTYPES if d.is_int and d.bits >= 8)
EXACT = frozenset("sqrt floor ceil round trunc abs sign isnan isinf fmod fma round_tf32 float_bits float_of_bits".split())
"""Functions of floats that give the same bits as the meaning."""


@dataclass(frozen=True)
class Program:
    """A function on arrays, what it is called, and whether its results are exact."""

    name: str
    func: PrimFunc
    arrays: tuple[np.ndarray, ...]
    is_exact: bool

    def expected(self) -> np.ndarray:
        """By the interpreter."""
        with np.errstate(all="ignore"):
            (found,) = run_prim_func(self.func, self.arrays, ())
        return found


def edges(dtype: DType, seed: int) -> np.ndarray:
    """Numbers of a dtype that are hard, in an order that depends on the seed, and others."""
    rng = np.random.default_rng(seed)
    if dtype.is_bool:
        return rng.integers(0, 2, COUNT).astype(bool)
    if dtype.is_float:
        if dtype.bits >= 16:
            info = ml_dtypes.finfo(dtype.numpy)
            limits = [float(info.max), float(info.tiny), -float(info.smallest_subnormal)]
            hard = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, *limits, 0.5, 2.5, -1.5]
            values = np.concatenate([np.array(hard), rng.normal(0, 3, COUNT)])[:COUNT]
        else:
            values = rng.normal(0, 3, COUNT)
        with np.errstate(all="ignore"):
            found = values.astype(dtype.numpy)
    else:
        low, high = int_range(dtype)
        hard_integers = [0, 1, 2, 3, low, high, low + 1, high - 1, *(min(n, high) for n in (7, 31, 63))] + ([-1, -2, -3] if low else [])
        small = [int(n) for n in rng.integers(max(low, -50), min(high, 50), COUNT, endpoint=True)]
        found = np.array((hard_integers + small)[:COUNT], dtype=object).astype(dtype.numpy)
    return rng.permutation(found)


def elementwise(name: str, dtypes: tuple[DType, ...], result: DType, make: Callable[..., Expr], is_exact: bool, lanes: int) -> Program:
    """out[i] = make(x0[i], x1[i], ...), in vectors of so many lanes (1: one by one)."""
    buffers = tuple(Buffer(f"x{k}", (const(COUNT),), dtype) for k, dtype in enumerate(dtypes))
    out = Buffer("out", (const(COUNT),), result)
    outer, inner = Var("i"), Var("l")
    index = outer * const(lanes) + inner if lanes > 1 else outer
    body = Store(out, (index,), make(*(buffer[index] for buffer in buffers)))
    loop = For(inner, const(lanes), body, LoopKind.VECTORIZED) if lanes > 1 else body
    func = PrimFunc(name, (*buffers, out), For(outer, const(COUNT // lanes), loop))
    return Program(name, func, tuple(edges(dtype, 7 * k + len(name)) for k, dtype in enumerate(dtypes)), is_exact)


def on_device(program: Program) -> PrimFunc:
    """The same, an iteration of the outer loop by each thread."""
    outer = program.func.body
    assert isinstance(outer, For)
    return replace(program.func, body=replace(outer, kind=LoopKind.BOUND, thread="thread.x"))


def casts(lanes: int) -> Iterator[Program]:
    """Between all dtypes."""
    for source, target in itertools.permutations(ALL_DTYPES, 2):
        yield elementwise(f"cast_{source}_{target}", (source,), target, lambda x, target=target: Cast(x, target), True, lanes)


def operators(lanes: int) -> Iterator[Program]:
    """All operators of two numbers, and choices."""
    for dtype in (*FLOATS, *INTEGERS):
        classes = [Add, Sub, Mul, Div, Min, Max] + ([FloorDiv, FloorMod] if dtype.is_int else [])
        for operation in classes:
            yield elementwise(f"{operation.__name__}_{dtype}", (dtype, dtype), dtype, operation, True, lanes)
        for comparison in (Eq, Ne, Lt, Le):
            yield elementwise(f"{comparison.__name__}_{dtype}", (dtype, dtype), _bool(), comparison, True, lanes)
        yield elementwise(f"select_{dtype}", (dtype, dtype), dtype, lambda x, y: Select(Lt(x, y), y, x), True, lanes)


def _bool() -> DType:
    return next(dtype for dtype in ALL_DTYPES if dtype.is_bool)


def functions(lanes: int) -> Iterator[Program]:
    """All functions of the language on all dtypes that have them."""
    for name, count in MATH_CALLS.items():
        if name == "thread_index":
            continue
        for dtype in (*FLOATS, *INTEGERS, _bool()):
            if not _has(name, dtype):
                continue
            result = result_of_call(name, dtype)
            exact = not dtype.is_float or name in EXACT

            def called(*x: Expr, name: str = name, result: DType = result) -> Expr:
                if name == "decay":  # of nothing above 0
                    x = (MathCall("abs", x, result) * -1.0,)
                return MathCall(name, x, result)

            yield elementwise(f"{name}_{dtype}", (dtype,) * count, result, called, exact, lanes)


_BITS = ("bit_and", "bit_or", "bit_xor", "bit_not")
_OF_INTEGERS = ("abs", "sign", "floor", "ceil", "round", "trunc", "isnan", "isinf", "fmod", "pow", "shift_left", "shift_right", *_BITS)


def _has(name: str, dtype: DType) -> bool:
    if dtype.is_bool:
        return name in _BITS
    if name == "float_of_bits":
        return dtype in (u32, u64)
    if dtype.is_int:
        return name in _OF_INTEGERS
    if name == "float_bits":
        return dtype in (f32, f64)
    if name == "round_tf32":
        return dtype is f32
    if name == "bounded_quotient":  # of operands that fit together
        return False
    return name not in _BITS and not name.startswith("shift")


def programs(lanes: int) -> list[Program]:
    """All of them."""
    return [*casts(lanes), *operators(lanes), *functions(lanes)]


ABSOLUTE = {"normal_cdf": 1e-7}
RELATIVE = {f64: 2e-15, f32: 1e-6, f16: 1e-3, bf16: 8e-3}
"""A few units in the last place; of f16 and bf16 one, where f32 was rounded to the wrong side."""


def assert_equal(program: Program, actual: np.ndarray, expected: np.ndarray) -> None:
    """The same bits, NaN apart, of which there are many; or close."""
    dtype = program.func.buffers[-1].dtype
    if program.is_exact or not dtype.is_float:
        if dtype.is_float:
            wide, want = actual.astype(np.float64), expected.astype(np.float64)
            np.testing.assert_array_equal(wide, want, err_msg=program.name)
            keep = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(wide)[keep], np.signbit(want)[keep], err_msg=program.name)
        else:
            np.testing.assert_array_equal(actual, expected, err_msg=program.name)
        return
    tiny = float(ml_dtypes.finfo(dtype.numpy).tiny)
    absolute = ABSOLUTE.get(program.name.rsplit("_", 1)[0], tiny)
    wide, want = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(wide, want, rtol=RELATIVE[dtype], atol=absolute, err_msg=program.name)
