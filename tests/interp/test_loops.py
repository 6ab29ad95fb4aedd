"""The loop interpreter: every operation exact in its dtype, against numpy arrays, fractions and ml_dtypes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tc.errors import VerifyError
from tc.interp import run_prim_func
from tc.interp.scalars import convert, function
from tc.ir.dtype import ALL_DTYPES, DType, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u32, u64
from tc.ir.expr import (
    Add,
    Buffer,
    Cast,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Max,
    Min,
    Mul,
    Select,
    Sub,
    Var,
    call,
    const,
)
from tc.ir.loop import Alloc, AxisKind, Block, BlockAxis, For, If, IntrinsicCall, Let, LoopKind, PrimFunc, Seq, Store
from tc.ops.casts import cast_array
from tc.te import compute, create_prim_func, placeholder

NUMBERS = [dtype for dtype in ALL_DTYPES if not dtype.is_bool and not dtype.is_storage]
INTEGERS = [dtype for dtype in NUMBERS if dtype.is_int]
FLOATS = [f64, f32, f16, bf16]
N = 200


def elementwise(make: Callable[..., Expr], *arrays: np.ndarray, dtypes: tuple[DType, ...]) -> np.ndarray:
    """make(x[i], y[i], ...) for every i, by the interpreter."""
    inputs = [placeholder((len(arrays[0]),), dtype, f"x{k}") for k, dtype in enumerate(dtypes)]
    result = compute((len(arrays[0]),), lambda i: make(*(x[i] for x in inputs)), "y")
    return run_prim_func(create_prim_func("f", inputs, [result]), list(arrays))[0]


def samples(dtype: DType, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype.is_float:
        values = np.concatenate([rng.standard_normal(N - 8) * 10.0 ** rng.integers(-3, 4, N - 8), [0, -0.0, 1, -1] * 2])
        with np.errstate(all="ignore"):
            return values.astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    values = rng.integers(info.min, info.max, N, dtype=dtype.numpy, endpoint=True)
    values[:6] = [info.min, info.max, 0, 1, info.max - 1, info.min + 1]
    small = rng.integers(0 if dtype.kind == "uint" else -9, 10, N).astype(dtype.numpy)
    return np.where(rng.random(N) < 0.5, values, small).astype(dtype.numpy)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize(("node", "numpy_op"), [(Add, np.add), (Sub, np.subtract), (Mul, np.multiply)])
def test_arithmetic_rounds_or_wraps_to_its_dtype(dtype: DType, node: type, numpy_op: np.ufunc) -> None:
    a, b = samples(dtype, 1), samples(dtype, 2)

    found = elementwise(lambda x, y: node(x, y), a, b, dtypes=(dtype, dtype))

    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(bits(found), bits(numpy_op(a, b)))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_a_sum_of_products_is_rounded_twice(dtype: DType) -> None:
    a, b, c = (samples(dtype, k) for k in range(3))

    found = elementwise(lambda x, y, z: Add(Mul(x, y), z), a, b, c, dtypes=(dtype,) * 3)

    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(bits(found), bits(a * b + c))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_division(dtype: DType) -> None:
    a, b = samples(dtype, 1), samples(dtype, 2)

    found = elementwise(lambda x, y: Div(x, y), a, b, dtypes=(dtype, dtype))

    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found.astype(np.float64), (a / b).astype(np.float64))


def python_quotients(a: int, b: int) -> tuple[int, int, int]:
    """Toward zero, down, and the remainder of the latter; all 0 when b is 0."""
    if b == 0:
        return 0, 0, 0
    return int(Fraction(a, b)), a // b, a % b


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_division_by_any_divisor(dtype: DType) -> None:
    a, b = samples(dtype, 1), samples(dtype, 2)
    low, minus_one = np.iinfo(dtype.numpy).min, -1 if dtype.kind == "int" else 1
    a, b = np.append(a, [low, low]).astype(dtype.numpy), np.append(b, [minus_one, 0]).astype(dtype.numpy)
    expected = [python_quotients(int(x), int(y)) for x, y in zip(a, b, strict=True)]

    for k, node in enumerate((Div, FloorDiv, FloorMod)):
        found = elementwise(lambda x, y, node=node: node(x, y), a, b, dtypes=(dtype, dtype))

        mask = 2**dtype.bits - 1
        assert [int(v) & mask for v in found] == [row[k] & mask for row in expected]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_min_and_max_pass_nan_on(dtype: DType) -> None:
    a = np.array([1, np.nan, 2, np.nan, -np.inf], dtype.numpy)
    b = np.array([2, 1, np.nan, np.nan, np.inf], dtype.numpy)

    low = elementwise(lambda x, y: Min(x, y), a, b, dtypes=(dtype, dtype))
    high = elementwise(lambda x, y: Max(x, y), a, b, dtypes=(dtype, dtype))

    np.testing.assert_array_equal(low.astype(np.float64), [1, np.nan, np.nan, np.nan, -np.inf])
    np.testing.assert_array_equal(high.astype(np.float64), [2, np.nan, np.nan, np.nan, np.inf])


def nearest(exact: Fraction, dtype: DType) -> float:
    """The float of `dtype` nearest to a fraction, by looking at the neighbours of a first guess."""
    kind = dtype.numpy
    guess = np.array(float(exact)).astype(kind)
    code, mask = int(bits(guess.reshape(1))[0]), 2**dtype.bits - 1
    around = [guess, *(np.array((code + k) & mask, f"u{kind.itemsize}").view(kind) for k in (-1, 1))]
    finite = [x for x in around if np.isfinite(x.astype(np.float64))]
    even = {id(x): int(bits(x.reshape(1))[0]) & 1 for x in finite}
    return float(min(finite, key=lambda x: (abs(Fraction(float(x)) - exact), even[id(x)])))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fma_rounds_once(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal(400).astype(dtype.numpy)
    b = rng.standard_normal(400).astype(dtype.numpy)
    c = (-a * b * (1 + rng.choice([0, 1e-3, 1.0], 400).astype(dtype.numpy))).astype(dtype.numpy)  # cancels

    found = elementwise(lambda x, y, z: call("fma", x, y, z), a, b, c, dtypes=(dtype,) * 3)

    for x, y, z, got in zip(*(v.astype(np.float64).tolist() for v in (a, b, c, found)), strict=True):
        assert got == nearest(Fraction(x) * Fraction(y) + Fraction(z), dtype)


@pytest.mark.parametrize("target", FLOATS, ids=str)
@pytest.mark.parametrize("source", [f64, f32, f16, bf16, i64, u64, i32, i8], ids=str)
def test_conversions_to_floats_round_once(source: DType, target: DType) -> None:
    cast = convert(source, target)
    values = samples(source, 3)
    limit = float(np.array(60000, np.float32)) if target == f16 else 1e30
    for value in values:
        exact = Fraction(float(value)) if source.is_float else Fraction(int(value))
        if abs(exact) < limit and (target != f16 or abs(exact) > 1e-3):
            assert float(cast(value)) == nearest(exact, target), value


def test_a_double_between_two_f32_goes_to_the_right_bf16() -> None:
    tie = 1.0 + 2.0**-8  # halfway between two bf16
    above = tie + 2.0**-40  # rounds to the tie in f32

    assert float(convert(f64, bf16)(np.float64(above))) == 1.0 + 2.0**-7
    assert float(convert(f64, bf16)(np.float64(tie))) == 1.0


@pytest.mark.parametrize("target", INTEGERS, ids=str)
def test_floats_to_integers_saturate_and_integers_wrap(target: DType) -> None:
    info = np.iinfo(target.numpy)
    cast = convert(f64, target)

    assert [int(cast(np.float64(x))) for x in (np.nan, np.inf, -np.inf, 1.9, 1e30)] == [0, info.max, info.min, 1, info.max]
    assert int(cast(np.float64(-1.9))) == max(-1, info.min)
    assert int(convert(i64, target)(-1)) == (-1 if target.kind == "int" else info.max)
    assert convert(target, bool_)(target.numpy.type(2)) is True


@pytest.mark.parametrize("source", [f32, f64], ids=str)
@pytest.mark.parametrize("target", INTEGERS, ids=str)
def test_arrays_of_floats_are_cast_as_numbers_are(target: DType, source: DType) -> None:
    """A u64 from 2^63 on was 0 in what constants are folded to."""
    values = np.array([x * s for x in (0.5, 127.6, 2.0**31, 2.0**63, 1.5e19, 2.0**64, np.inf) for s in (1, -1)] + [np.nan], source.numpy)

    assert cast_array(values, target).tolist() == [int(convert(source, target)(value)) for value in values]


def test_functions_are_correct_to_the_last_place() -> None:
    mpmath = pytest.importorskip("mpmath")
    for name in ("exp", "log", "tanh", "erf", "sin", "sqrt"):
        for value in np.random.default_rng(1).uniform(0.01, 5, 50).astype(np.float32):
            exact = getattr(mpmath, name)(mpmath.mpf(float(value)))
            assert function(name, f32)(value) == np.float32(float(exact)), (name, value)


def test_integer_functions_wrap() -> None:
    low = np.int8(-128)

    assert function("abs", i8)(low) == low
    assert function("shift_left", i8)(np.int8(1), np.int8(9)) == 0
    assert function("shift_right", i8)(low, np.int8(-1)) == -1
    assert function("pow", u8)(np.uint8(3), np.uint8(6)) == 3**6 % 256
    assert function("pow", i32)(np.int32(-1), np.int32(-3)) == -1
    assert function("fmod", i64)(-7, 3) == -1


def test_i64_values_from_memory_wrap() -> None:
    top = np.array([2**63 - 1, -(2**63)])

    found = elementwise(lambda x: FloorDiv(Add(x, x), const(2)), top, dtypes=(i64,))

    assert found.tolist() == [-1, 0]


def test_narrow_indices_gather() -> None:
    table, ids = placeholder((5,), f16, "T"), placeholder((3,), i16, "ids")
    rows = compute((3,), lambda i: table[Cast(ids[i], i64)], "rows")

    (found,) = run_prim_func(
        create_prim_func("gather", [table, ids], [rows]), [np.arange(5, dtype=np.float16), np.array([4, 0, 2], np.int16)]
    )

    assert found.tolist() == [4, 0, 2]


# -- statements

A, B, P, J = Buffer("A", (const(6),), f32), Buffer("B", (const(6),), f32), Var("i"), Var("j")


def program(body: For | Seq | Let, num_outputs: int = 1) -> PrimFunc:
    return PrimFunc("f", (A, B), body, num_outputs)


ONES = np.ones(6, np.float32)


def test_an_index_out_of_range_is_an_error() -> None:
    func = program(For(P, const(6), Store(B, (P,), A[P + 1])))

    with pytest.raises(VerifyError, match=r"f: index 0 of A: f32\[6\] is 6, outside \[0, 6\)"):
        run_prim_func(func, [ONES])


def test_an_axis_out_of_range_is_an_error() -> None:
    block = Block("b", (BlockAxis(J, const(4), AxisKind.SPATIAL, P),), Store(B, (J,), A[J]))

    with pytest.raises(VerifyError, match=r"axis j of block b is 4, outside \[0, 4\)"):
        run_prim_func(program(For(P, const(6), block)), [ONES])


def test_an_array_of_another_shape_is_refused() -> None:
    with pytest.raises(VerifyError, match="is given an array"):
        run_prim_func(program(For(P, const(6), Store(B, (P,), A[P]))), [np.ones(5, np.float32)])


def test_memory_that_was_not_written_is_nan() -> None:
    scratch = Buffer("s", (const(6),), f32, "local")
    func = program(For(P, const(6), Alloc(scratch, Store(B, (P,), scratch[P] + A[P]))))

    assert np.isnan(run_prim_func(func, [ONES])[0]).all()


@pytest.mark.parametrize("kind", [LoopKind.PARALLEL, LoopKind.VECTORIZED])
def test_backward_iterations_show_a_dependence(kind: LoopKind) -> None:
    before = Select(P < 1, const(0.0, f32), Load(B, (Select(P < 1, const(0), P - 1),)))
    running_sum = program(For(P, const(6), Store(B, (P,), A[P] + before), kind))
    copy = program(For(P, const(6), Store(B, (P,), A[P]), kind))

    assert np.isnan(run_prim_func(running_sum, [ONES], backward=True)[0]).any()
    np.testing.assert_array_equal(run_prim_func(copy, [ONES], backward=True)[0], ONES)


def test_masks_and_prefetches_in_a_vectorized_loop() -> None:
    body = Seq((IntrinsicCall("prefetch", (A[P],)), If(P < 4, Store(B, (P,), A[P]), Store(B, (P,), const(2.0, f32)))))

    found = run_prim_func(program(For(P, const(6), body, LoopKind.VECTORIZED)), [ONES])[0]

    assert found.tolist() == [1, 1, 1, 1, 2, 2]


def test_forty_nested_loops_run() -> None:
    loops = [Var(f"l{k}") for k in range(40)]
    body: For | Let | Store = Store(B, (loops[-1] + P,), A[P])
    for var in loops:
        body = For(var, const(1), body)

    found = run_prim_func(program(For(P, const(6), body)), [ONES])[0]

    np.testing.assert_array_equal(found, ONES)


def test_symbolic_shapes_and_lets() -> None:
    n = Var("n")
    x, y = Buffer("x", (n, const(2)), u32), Buffer("y", (n,), u32)
    twice = Var("twice", u32)
    func = PrimFunc("f", (x, y, n), For(P, n, Let(twice, Add(x[P, 0], x[P, 1]), Store(y, (P,), twice))))

    found = run_prim_func(func, [np.array([[2**32 - 1, 3], [1, 2]], np.uint32)], [2])[0]

    assert found.tolist() == [2, 3]
