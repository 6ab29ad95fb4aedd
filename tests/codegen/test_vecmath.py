"""Vector math against float64, in units in the last place; lanes against scalars, bit for bit."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest

from tc.codegen.llvm.builder import FunctionBuilder, Module, Value
from tc.codegen.llvm.jit import compile_object, link
from tc.codegen.llvm.vecmath import MATH_ULPS
from tc.codegen.llvm.vector_libm import emit_function
from tc.interp import run_prim_func
from tc.ir.dtype import DType, f32, f64
from tc.ir.expr import call
from tc.target import native_target
from tc.te import compute, create_prim_func, placeholder
from tests.ops.kernels import finish, run

EXACT = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "exp2": np.exp2,
    "log2": np.log2,
}
SPECIALS = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 88.7, 89.5, -87.4, -103.9, -120.0, 1e5, 131071.9, 131072.0, -2e6, 7e20]


def compiled(name: str, lanes: int, native: bool, element: str = "float") -> object:
    """fn(pointer in, pointer out): applies `name` to `lanes` numbers; with `native`, by what only this machine may have."""
    module = Module(native_target().features if native else ())
    b = FunctionBuilder(module)
    kind = f"<{lanes} x {element}>" if lanes else element
    x = b.emit(f"load {kind}, ptr %x, align 4", element, lanes)
    y = emit_function(b, name, x)
    b.emit_void(f"store {y}, ptr %y, align 4")
    b.emit_void("ret void")
    module.definitions.append("\n".join(["define void @f(ptr %x, ptr %y) {", "entry:", *b.entry, *b.lines, "}"]))
    library = link([compile_object(str(module))])
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.address("f"))
    return function, library


def apply(name: str, values: np.ndarray, lanes: int, native: bool = False) -> np.ndarray:
    dtype = values.dtype if values.dtype == np.float64 else np.dtype(np.float32)
    function, keep = compiled(name, lanes, native, "double" if dtype == np.float64 else "float")  # type: ignore[misc]
    step = max(lanes, 1)
    padded = np.resize(values, -(-values.size // step) * step).astype(dtype)
    result = np.empty_like(padded)
    for k in range(0, padded.size, step):
        function(padded[k:].ctypes.data, result[k:].ctypes.data)
    del keep
    return result[: values.size]


def inputs(name: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    parts = [np.array(SPECIALS), rng.standard_normal(4000) * 3, rng.uniform(-90, 90, 2000), rng.uniform(-1, 1, 2000)]
    parts += [np.exp(rng.uniform(-90, 88, 1000)), rng.uniform(0.3, 1.2, 20000)]
    parts.append(-np.nextafter(np.float32([0.5, 1, 1]), np.float32([0, 0, 2])))
    values = np.concatenate(parts).astype(np.float32)
    if name in ("asin", "acos", "atanh"):
        return np.clip(values, -1, 1)
    if name == "acosh":
        return np.concatenate([np.abs(values) + np.float32(1), np.nextafter(np.float32([1, 1]), np.float32([1, 2]))])
    if name == "decay":
        near_the_end = np.float32(np.log(2.0**-126)) * rng.uniform(0.999, 1.0005, 2000).astype(np.float32)
        return -np.abs(np.concatenate([values, near_the_end]))
    return np.abs(values) if name in ("log", "log2", "sqrt", "rsqrt", "log1p") else values


@pytest.mark.parametrize("name", sorted(EXACT))
@pytest.mark.parametrize("native", [False, True])
def test_results_are_within_the_stated_ulps(name: str, native: bool) -> None:
    values = inputs(name)

    actual = apply(name, values, 16, native)

    with np.errstate(all="ignore"):
        exact = EXACT[name](values.astype(np.float64))
    rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(actual[~finite], rounded[~finite])
    spacing = np.maximum(np.spacing(np.abs(rounded[finite])), np.float32(1e-45)).astype(np.float64)
    error = np.abs(actual[finite].astype(np.float64) - exact[finite]) / spacing
    assert error.max() <= MATH_ULPS.get(name, 1.0), f"worst at {values[finite][error.argmax()]!r}"


def test_exp_of_f64_is_within_an_ulp_in_vectors_and_alone(rng: np.random.Generator) -> None:
    edges = [0.0, -0.0, 709.7, 709.79, 710.5, 1e300, -708.4, -745.1, -745.2, -746.5, -1e300, np.inf, -np.inf, 5e-324]
    values = np.concatenate([edges, rng.uniform(-746, 710, 9000), rng.standard_normal(9000), rng.uniform(-1e-3, 1e-3, 1000)])
    with np.errstate(all="ignore"):
        exact = np.exp(values.astype(np.longdouble))
        rounded = exact.astype(np.float64)
    inside = np.isfinite(rounded) & (rounded > 0)

    found = apply("exp", values, 8, native=True)

    spacing = np.maximum(np.spacing(rounded[inside]), 5e-324)
    assert np.abs((found[inside] - exact[inside]) / spacing).max() < 1.0
    assert np.array_equal(found[~inside], rounded[~inside])
    assert np.isnan(apply("exp", np.full(8, np.nan), 8)).all()
    assert apply("decay", np.array([-np.inf]), 0)[0] == 0
    for lanes in (0, 4):
        assert np.array_equal(apply("exp", values, lanes).view(np.uint64), found.view(np.uint64))


@pytest.mark.parametrize("native", [False, True])
def test_decay_is_an_exponential_down_to_the_last_normal_number(native: bool) -> None:
    values = inputs("decay")
    exact = np.exp(values.astype(np.float64))

    actual = apply("decay", values, 16, native)

    normal = exact >= np.finfo(np.float32).smallest_normal
    assert 0.5 < normal.mean() < 1
    error = np.abs(actual[normal] - exact[normal]) / np.spacing(exact[normal].astype(np.float32)).astype(np.float64)
    assert error.max() <= MATH_ULPS["decay"], f"worst at {values[normal][error.argmax()]!r}"
    assert ((actual[~normal] >= 0) & (actual[~normal] <= np.finfo(np.float32).smallest_normal)).all()


@pytest.mark.covering
@pytest.mark.parametrize("name", sorted({*EXACT, "normal_cdf", "decay"}))
@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
def test_lanes_give_the_bits_of_scalars(name: str, lanes: int) -> None:
    values = inputs(name)[:320]

    vector, scalar = apply(name, values, lanes, native=True), apply(name, values, 0)

    np.testing.assert_array_equal(vector.view(np.uint32), scalar.view(np.uint32))


@pytest.mark.parametrize("name", sorted({*EXACT, "decay"}))
def test_nan_stays_nan(name: str) -> None:
    for native in (False, True):
        assert np.isnan(apply(name, np.array([np.nan] * 16, np.float32), 16, native)).all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("exp", [0.0, np.inf]), ("tanh", [-1.0, 1.0]), ("erf", [-1.0, 1.0]), ("sigmoid", [0.0, 1.0])],
)
def test_infinities_give_the_limits(name: str, expected: list[float]) -> None:
    result = apply(name, np.array([-np.inf, np.inf], np.float32), 0)

    np.testing.assert_array_equal(result, np.array(expected, np.float32))


def test_tanh_is_odd_bit_for_bit_and_never_above_one() -> None:
    toward_one = np.arange(np.float32(4).view(np.uint32), np.float32(10.5).view(np.uint32), 31, dtype=np.uint32).view(np.float32)
    values = np.concatenate([toward_one, np.abs(inputs("tanh")), np.float32([0, 1e-45, 1e-20, np.inf])])

    found, opposite = apply("tanh", values, 16), apply("tanh", -values, 16)

    np.testing.assert_array_equal(found.view(np.uint32) ^ np.uint32(1 << 31), opposite.view(np.uint32))
    assert found.max() == 1
    assert found.min() == 0


@pytest.mark.parametrize("native", [False, True])
def test_the_normal_distribution_is_right_to_what_is_stated(native: bool) -> None:
    values = np.concatenate([inputs("erf"), np.linspace(-8, 8, 4000), [np.inf, -np.inf]]).astype(np.float32)

    actual = apply("normal_cdf", values, 16, native)

    exact = np.array([0.5 * math.erfc(-x * math.sqrt(0.5)) for x in values.astype(np.float64)])
    assert np.abs(actual - exact).max() <= 1.1e-7
    assert np.isnan(apply("normal_cdf", np.full(16, np.nan, np.float32), 16, native)).all()


EDGES = [0.0, 1e-45, 3e-45, 2.0**-126, 2.0**-25, 2.0**-13, 0.5, 1.0, 88.7228, 89.4159, 4096.0, 2.0**17, 2.0**63, 2.0**64, 2.0**127]


@pytest.mark.parametrize("lanes", [0, 8])
@pytest.mark.parametrize("name", ["tan", "sinh", "cosh", "asinh", "acosh", "atanh"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_edges_and_poles_are_those_of_f64(name: str, lanes: int) -> None:
    poles = np.arange(1, 400) * (math.pi / 2)
    middle = np.concatenate([EDGES, [np.finfo(np.float32).max, np.nan], poles]).astype(np.float32)
    sizes = np.concatenate([np.nextafter(middle, np.float32(end)) for end in (-np.inf, np.inf)] + [middle])
    values = np.concatenate([sizes, -sizes])

    found = apply(name, values, lanes, native=True)

    exact = EXACT[name](values.astype(np.float64))
    rounded = exact.astype(np.float32)
    numbers = np.isfinite(rounded)
    assert 8 <= numbers.sum() < numbers.size
    np.testing.assert_array_equal(found[~numbers], rounded[~numbers])
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(rounded[numbers]))
    spacing = np.maximum(np.spacing(np.abs(rounded[numbers])), np.float32(1e-45)).astype(np.float64)
    error = np.abs(found[numbers] - exact[numbers]) / spacing
    assert error.max() <= MATH_ULPS.get(name, 1.0), f"worst at {values[numbers][error.argmax()]!r}"


def test_values_print_their_type() -> None:
    assert str(Value("%x", "float", 4)) == "<4 x float> %x"


@pytest.mark.parametrize("lanes", [0, 8])
def test_rounding_to_tf32_is_to_the_nearest_and_away_from_zero_in_the_middle(lanes: int, rng: np.random.Generator) -> None:
    edges = [0.0, -0.0, 1 + 2**-11, -1 - 2**-11, 1 + 3 * 2**-12, 3.4e38, -3.4e38, 1e-45, -1e-40, np.inf, -np.inf, np.nan]
    bits = rng.integers(0, 2**32, 500, dtype=np.uint32)
    values = np.concatenate([np.array(edges, np.float32), bits.view(np.float32)])
    x = placeholder((values.size,), f32, "x")
    func = create_prim_func("rounded", [x], [compute((values.size,), lambda i: call("round_tf32", x[i]), "y")])

    found = apply("round_tf32", values, lanes)
    (interpreted,) = run_prim_func(func, [values])

    finite = np.isfinite(values)
    wide = values[finite].astype(np.float64)
    step = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(wide), 2.0**-126))) - 10)
    with np.errstate(over="ignore"):
        nearest = (np.sign(wide) * np.floor(np.abs(wide) / step + 0.5) * step).astype(np.float32)
    np.testing.assert_array_equal(found[finite], nearest)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(values))
    np.testing.assert_array_equal(found[~finite].view(np.uint32), values[~finite].view(np.uint32))
    np.testing.assert_array_equal(interpreted.view(np.uint32), found.view(np.uint32))


def test_powers_of_vectors_are_those_of_c(rng: np.random.Generator) -> None:
    ends = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32)
    grid = np.stack(np.meshgrid(ends, ends)).reshape(2, -1)
    drawn = np.stack([rng.uniform(0, 20, 5000), rng.uniform(-30, 30, 5000)]).astype(np.float32)
    whole = np.stack([rng.uniform(-20, 20, 1000), rng.integers(-9, 9, 1000)]).astype(np.float32)
    bases, exponents = np.concatenate([grid, drawn, whole], axis=1)
    x, y = (placeholder(bases.shape, f32, name) for name in "xy")
    func = create_prim_func("power", [x, y], [compute(bases.shape, lambda i: call("pow", x[i], y[i]), "z")])

    (found,) = run(finish(func), [bases, exponents])

    with np.errstate(all="ignore"):
        exact = np.power(bases.astype(np.float64), exponents.astype(np.float64))
        rounded = exact.astype(np.float32)
    normal = np.isfinite(rounded) & (rounded != 0)
    np.testing.assert_array_equal(found[~normal].view(np.uint32) << 1, rounded[~normal].view(np.uint32) << 1)
    error = np.abs(found[normal] - exact[normal]) / np.spacing(np.abs(rounded[normal]))
    assert error.max() <= MATH_ULPS.get("pow", 1.0)


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_remainders_of_vectors_are_those_of_c(dtype: DType, rng: np.random.Generator) -> None:
    kind, bits, digits = (np.float32, np.uint32, 22) if dtype is f32 else (np.float64, np.uint64, 51)
    tiny, huge = np.finfo(kind).smallest_subnormal, np.finfo(kind).max
    far = 2.0**digits
    ends = [0.0, 1.0, 2.0, 3.0, 0.1, tiny, tiny * 9e4, far, far + 1, 4 * far, huge, np.inf, np.nan]
    ends = np.array([*ends, *(-end for end in ends)], kind)
    grid = np.stack(np.meshgrid(ends, ends)).reshape(2, -1)
    drawn = rng.integers(0, np.iinfo(bits).max, (2, 4000), dtype=bits).view(kind)
    near = rng.uniform(-1, 1, (2, 20000)).astype(kind) * np.array([[50], [3]], kind)
    steps = near[1] * rng.integers(1, 2000, 20000).astype(kind)  # quotients that are whole numbers, or next to them
    whole = np.stack([np.nextafter(steps, rng.choice(np.array([-np.inf, 0, np.inf], kind), 20000)), near[1]])
    large = np.stack([near[0] * far / 20, near[1]])  # quotients on both sides of where they are near
    values, divisors = np.concatenate([grid, drawn, near, whole, large, np.stack([steps, near[1]])], axis=1)
    x, y = (placeholder(values.shape, dtype, name) for name in "xy")
    func = create_prim_func("remainder", [x, y], [compute(values.shape, lambda i: call("fmod", x[i], y[i]), "z")])

    (found,) = run(finish(func), [values, divisors])

    with np.errstate(all="ignore"):
        exact = np.fmod(values.astype(np.float64), divisors.astype(np.float64)).astype(kind)
    np.testing.assert_array_equal(found, exact)
    np.testing.assert_array_equal(np.signbit(found)[exact == 0], np.signbit(exact)[exact == 0])
