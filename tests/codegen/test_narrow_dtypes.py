"""Elements of a byte and less: floats of 8 bits and 4, and integers that share bytes."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tc.errors import CodegenError, VerifyError
from tc.interp import run_prim_func
from tc.ir.dtype import (
    FLOAT8,
    NARROW_FLOATS,
    SUB_BYTE,
    DType,
    bf16,
    bool_,
    f4e2m1,
    f8e5m2fnuz,
    f8e8m0,
    f32,
    f64,
    i4,
    i32,
    i64,
    int_range,
    pack,
    round_to,
    u4,
    u8,
    unpack,
)
from tc.ir.expr import Cast, Expr, Var, const, select
from tc.ir.loop import PrimFunc
from tc.ir.verify import verify
from tc.schedule.rules import apply_rules
from tc.schedule.step import Schedule
from tc.target import Target, native_target
from tc.te import compute, create_prim_func, placeholder
from tests.ops.kernels import finish, run

PATTERNS = np.arange(256, dtype=np.uint8)


def _all_of(dtype: DType) -> np.ndarray:
    """Every number of a dtype, whatever its bits, in an odd number of elements."""
    if dtype in SUB_BYTE:
        low, high = int_range(dtype)
        return np.arange(low, high + 1).astype(dtype.numpy)
    return PATTERNS[: 2**dtype.bits].view(dtype.numpy)


def _compiled(func: PrimFunc, *arrays: np.ndarray, target: str = "native") -> np.ndarray:
    machine = native_target() if target == "native" else Target.parse(target)
    return run(finish(apply_rules(func, machine).func), list(arrays), target=machine)[0]


def _cast(x: np.ndarray, source: DType, to: DType) -> PrimFunc:
    operand = placeholder(x.shape, source, "x")
    return create_prim_func("cast", [operand], [compute(x.shape, lambda *i: Cast(operand[i], to), "y")])


def _same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal bits; any NaN is as good as another."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    same_signs = np.array_equal(np.signbit(a[a == a]), np.signbit(b[b == b]))
    return found.dtype == expected.dtype and np.array_equal(a, b, equal_nan=True) and same_signs


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [*NARROW_FLOATS, *SUB_BYTE], ids=str)
@pytest.mark.parametrize("to", [f32, f64, bf16, u8, i64, bool_, f8e5m2fnuz, f8e8m0, f4e2m1, i4], ids=str)
def test_every_bit_pattern_is_cast_as_the_interpreter_casts_it(dtype: DType, to: DType) -> None:
    x = np.concatenate([_all_of(dtype)] * 3)[:-1]
    func = _cast(x, dtype, to)

    found = _compiled(func, x)

    assert _same(found, run_prim_func(func, [x])[0])
    if to in (f32, f64):
        assert _same(found, x.astype(to.numpy))


def _hard_cases(to: DType, source: type) -> np.ndarray:
    """Every number of the narrow type, the middles between neighbours, and what lies a last bit beside those."""
    narrow = np.unique(_all_of(to).astype(np.float64))
    narrow = narrow[np.isfinite(narrow)]
    beyond = 2 * narrow[-1] - narrow[-2]
    middles = (np.append(narrow[:-1], narrow[-1]) + np.append(narrow[1:], beyond)) / 2
    numbers = np.concatenate([narrow, middles, -middles, [0.0, -0.0, beyond, 1e30, -1e30, 1e-30, -1e-30, 1e-45]]).astype(source)
    infinity = source(np.inf)
    around = np.concatenate([numbers, np.nextafter(numbers, infinity), np.nextafter(numbers, -infinity)])
    return np.concatenate([around, np.array([np.inf, -np.inf, np.nan, -np.nan], source)])


@pytest.mark.parametrize("to", NARROW_FLOATS, ids=str)
@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
def test_floats_are_rounded_to_the_nearest_narrow_float(to: DType, target: str) -> None:
    x = _hard_cases(to, np.float32)
    if to is f8e8m0:
        x = x[(x <= 2.0**-127) | (x >= 2.0**-126) | (x != x)]  # between them, ml_dtypes rounds up
    x = np.where(x == x, x, np.float32(np.nan)) if to is f4e2m1 else x  # ml_dtypes makes zero of NaN, of the other sign
    found = _compiled(_cast(x, f32, to), x, target=target)

    with np.errstate(all="ignore"):
        assert _same(found, x.astype(to.numpy))


def test_of_two_powers_of_two_the_nearer_one_is_taken() -> None:
    """What is below the least number, too; of two as near ones the larger."""
    numbers = [1.0, 1.25, np.nextafter(np.float32(1.5), np.float32(0)), 1.5, 1.75, 2.0, 2.9, 3.0]
    least = [1e-45, 2.0**-128, 2.0**-127, 1.25 * 2.0**-127, 1.5 * 2.0**-127, 2.0**-126, 1.4 * 2.0**127, 1.5 * 2.0**127]
    nothing = [0.0, -0.0, -1.0, -1e-45, np.inf, -np.inf, np.nan]
    expected = [127, 127, 127, 128, 128, 128, 128, 129] + [0, 0, 0, 0, 1, 1, 254, 255] + [255] * len(nothing)
    for source in (f32, f64):
        x = np.array(numbers + least + nothing, source.numpy)
        func = _cast(x, source, f8e8m0)

        assert _compiled(func, x).view(np.uint8).tolist() == expected
        assert run_prim_func(func, [x])[0].view(np.uint8).tolist() == expected
        assert round_to(x, f8e8m0).view(np.uint8).tolist() == expected
    whole = np.array([0, -3, 3, (3 << 61) - 1, 3 << 61, (3 << 51) - 1, 1], np.int64)
    func = _cast(whole, i64, f8e8m0)
    expected = [255, 255, 129, 127 + 62, 127 + 63, 127 + 52, 127]
    assert _compiled(func, whole).view(np.uint8).tolist() == expected
    assert run_prim_func(func, [whole])[0].view(np.uint8).tolist() == expected
    assert round_to(whole, f8e8m0).view(np.uint8).tolist() == expected


@pytest.mark.parametrize("source", [f32, f64], ids=str)
def test_nan_is_zero_of_one_sign_where_there_is_none(source: DType) -> None:
    x = np.array([np.nan, -np.nan, np.inf, -np.inf], source.numpy)
    func = _cast(x, source, f4e2m1)

    assert _compiled(func, x).view(np.uint8).tolist() == [8, 8, 7, 15]
    assert run_prim_func(func, [x])[0].view(np.uint8).tolist() == [8, 8, 7, 15]
    assert round_to(x, f4e2m1).view(np.uint8).tolist() == [8, 8, 7, 15]


@pytest.mark.parametrize("to", NARROW_FLOATS, ids=str)
def test_doubles_are_rounded_once(to: DType) -> None:
    """By way of f32, a double beside the middle of two neighbours would become the middle first."""
    x = _hard_cases(to, np.float64)
    func = _cast(x, f64, to)

    found = _compiled(func, x)

    assert _same(found, run_prim_func(func, [x])[0])
    if to not in FLOAT8:
        return
    middles = np.array([1.0 + 2.0**-4, 1.0 + 2.0**-4 + 2.0**-40]) if to in FLOAT8[:2] else np.array([1.125, 1.125 + 2.0**-40])
    above = _compiled(_cast(middles, f64, to), middles).astype(np.float64)
    assert above[0] == 1.0 and above[1] > 1.0


@pytest.mark.parametrize("to", SUB_BYTE, ids=str)
def test_narrow_integers_saturate_floats_and_wrap_integers(to: DType) -> None:
    low, high = int_range(to)
    x = np.array([0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 2.9, 7.9, -8.9, 15.9, 16.0, -100.0, 1e30, np.inf, -np.inf, np.nan, 3.0], np.float32)
    found = _compiled(_cast(x, f32, to), x)
    assert found.astype(int).tolist() == np.clip(np.trunc(np.nan_to_num(x, nan=0.0)), low, high).astype(int).tolist()

    whole = np.arange(-300, 301, dtype=np.int32)
    wrapped = _compiled(_cast(whole, i32, to), whole)
    assert wrapped.astype(int).tolist() == [(int(v) - low) % (high - low + 1) + low for v in whole]


def _copy(shape: tuple[int, ...], dtype: DType, place: Callable[..., tuple[Expr, ...]], result: tuple[int, ...]) -> PrimFunc:
    x = placeholder(shape, dtype, "x")
    return create_prim_func("copy", [x], [compute(result, lambda *i: x[place(*i)], "y")])


_MOVES: dict[str, tuple[Callable[..., tuple[Expr, ...]], Callable[[np.ndarray], np.ndarray]]] = {
    "as it is": (lambda i, j: (i, j), lambda x: x),
    "transposed": (lambda i, j: (j, i), lambda x: x.T),
    "from the second row on": (lambda i, j: (i + 1, j), lambda x: x[1:]),
    "from the second column on": (lambda i, j: (i, j + 1), lambda x: x[:, 1:]),
    "every second column": (lambda i, j: (i, j * 2), lambda x: x[:, ::2]),
    "backwards": (lambda i, j: (i, const(BACK[0] - 1) - j), lambda x: x[:, ::-1]),
    "one row": (lambda i, j: (const(0), j), lambda x: np.repeat(x[:1], len(x), 0)),
    "one column": (lambda i, j: (i, const(0)), lambda x: np.repeat(x[:, :1], x.shape[1], 1)),
}
BACK = [0]


SHAPES = ((2, 2), (3, 5), (7, 31), (17, 64), (130, 257))
MORE_SHAPES = ((1, 33), (5, 16), (64, 66))


@pytest.mark.covering
@pytest.mark.parametrize("shapes", [SHAPES, pytest.param(MORE_SHAPES, marks=pytest.mark.slow)], ids=("some", "more"))
@pytest.mark.parametrize("move", _MOVES)
@pytest.mark.parametrize("dtype", [*SUB_BYTE, f4e2m1], ids=str)
def test_elements_that_share_bytes_are_moved(
    dtype: DType, move: str, shapes: tuple[tuple[int, int], ...], rng: np.random.Generator
) -> None:
    numbers = _all_of(dtype)
    place, meant = _MOVES[move]
    for shape in shapes:
        x = rng.choice(numbers, shape)
        BACK[0] = shape[1]
        expected = meant(x)
        func = _copy(shape, dtype, place, expected.shape)

        found = _compiled(func, x)

        assert np.array_equal(found.astype(float), expected.astype(float)), shape


@pytest.mark.parametrize("dtype", [*SUB_BYTE, f4e2m1], ids=str)
def test_threads_that_share_bytes_keep_each_others_elements(dtype: DType, rng: np.random.Generator) -> None:
    """Rows of an odd number of elements, each written by any thread."""
    x = rng.choice(_all_of(dtype), (40_001, 3))
    operand = placeholder(x.shape, dtype, "x")
    y = compute(x.shape, lambda i, j: operand[i, j], "y")
    func = create_prim_func("copy", [operand], [y])
    schedule = Schedule(func)
    schedule.parallel(schedule.loops_of("y")[0])
    parallel = finish(schedule.func)

    for _ in range(10):
        assert np.array_equal(run(parallel, [x])[0].astype(float), x.astype(float))


def test_gathered_elements_that_share_bytes(rng: np.random.Generator) -> None:
    table, rows = rng.integers(-8, 8, (50, 21)).astype(ml_dtypes.int4), rng.integers(0, 50, 33)
    t, r = placeholder(table.shape, i4, "t"), placeholder(rows.shape, i64, "r")
    func = create_prim_func("rows", [t, r], [compute((33, 21), lambda i, j: Cast(t[r[i], j], f32), "y")])

    assert np.array_equal(_compiled(func, table, rows), table[rows].astype(np.float32))


def test_values_are_chosen_among_elements_that_share_bytes(rng: np.random.Generator) -> None:
    x, y = (rng.integers(0, 16, (9, 37)).astype(ml_dtypes.uint4) for _ in range(2))
    a, b = placeholder(x.shape, u4, "a"), placeholder(x.shape, u4, "b")
    func = create_prim_func("choose", [a, b], [compute(x.shape, lambda i, j: select((i + j) % 3 < 1, a[i, j], b[i, j]), "y")])

    chosen = np.where(np.add.outer(np.arange(9), np.arange(37)) % 3 < 1, x.astype(int), y.astype(int))
    assert np.array_equal(_compiled(func, x, y).astype(int), chosen)


def test_sizes_that_calls_decide(rng: np.random.Generator) -> None:
    n = Var("n")
    x = placeholder((3, n), i4, "x")
    func = create_prim_func("widen", [x], [compute((3, n), lambda i, j: Cast(x[i, j], f32), "y")], (n,))
    back = placeholder((3, n), f32, "x")
    narrow = create_prim_func("narrow", [back], [compute((3, n), lambda i, j: Cast(back[i, j], i4), "y")], (n,))
    for count in (0, 1, 2, 7, 16, 33, 100):
        values = rng.integers(-8, 8, (3, count)).astype(ml_dtypes.int4)
        wide = run(finish(apply_rules(func, native_target()).func), [values], (count,))[0]
        assert np.array_equal(wide, values.astype(np.float32))
        again = run(finish(apply_rules(narrow, native_target()).func), [wide], (count,))[0]
        assert np.array_equal(again.astype(int), values.astype(int))


@pytest.mark.parametrize("dtype", [*NARROW_FLOATS, *SUB_BYTE], ids=str)
def test_what_is_only_stored_has_no_arithmetic(dtype: DType) -> None:
    x = placeholder((4,), dtype, "x")
    func = create_prim_func("twice", [x], [compute((4,), lambda i: x[i] + x[i], "y")])

    with pytest.raises(VerifyError, match="only stored, moved and cast"):
        verify(func)
    with pytest.raises(CodegenError, match="only stored, moved and cast"):
        run(finish(func), [np.zeros(4, dtype.numpy)])


@pytest.mark.parametrize("dtype", [*SUB_BYTE, f4e2m1], ids=str)
def test_the_first_element_lies_lowest(dtype: DType) -> None:
    x = np.array([1, 0, 1, 1, 0][: 8 // dtype.bits + 1]).astype(dtype.numpy)

    memory = pack(x)

    assert len(memory) == dtype.bytes_of(len(x)) == 2
    assert memory[0] & (2**dtype.bits - 1) == x.view(np.uint8)[0] > 0
    assert np.array_equal(unpack(memory, dtype, x.shape).astype(float), x.astype(float))
