"""The numerics contract of reductions: errors against float64 stay within bounds that grow with log2 of the number of terms.

What broke before: a sum over a whole tensor had one accumulator. ReduceMean of 2^26 uniform numbers was off by 50 %, a sum of 2^27 ones
was 2^24, softmax of 2^25 numbers was off by 26 %, a column of 2^18 ones times 0.1 by 3 %, and strict numerics were no better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import parser

import tc

U = 2.0**-24
HALF = 2.0**-11

LAYOUTS = {
    "all": ((1 << 16,), (0,)),
    "odd": ((99_991,), (0,)),
    "rows": ((5, 4_097), (1,)),
    "long rows": ((3, 1 << 17), (1,)),
    "columns": ((3_001, 35), (0,)),
    "long columns": ((1 << 15, 16), (0,)),
    "few columns": ((20_011, 3), (0,)),
    "middle": ((3, 1_000, 33), (1,)),
    "channels": ((9, 5, 17, 19), (0, 2, 3)),
    "small planes": ((70, 3, 7, 7), (0, 2, 3)),
    "leading": ((12, 13, 14, 20), (0, 1, 2)),
}
DATA: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "uniform": lambda rng, shape: rng.random(shape),
    "cancelling": lambda rng, shape: rng.standard_normal(shape),
    "constant": lambda rng, shape: np.full(shape, 0.1),
    "shifted": lambda rng, shape: 30 + rng.random(shape),
}


def depth(n: int) -> float:
    """The additions on the way to any term of a sum of n."""
    return 4 + float(np.log2(max(n, 1)))


@dataclass(frozen=True)
class Kind:
    """An operator over `axes`, its value in float64, and the bound of its error, from x, the axes and the value."""

    node: str
    value: Callable[[np.ndarray, tuple[int, ...]], np.ndarray]
    bound: Callable[[np.ndarray, tuple[int, ...], np.ndarray], np.ndarray]
    keeps_shape: bool = False
    is_positive: bool = False


def _terms(x: np.ndarray, axes: tuple[int, ...]) -> int:
    return int(np.prod([x.shape[axis] for axis in axes]))


def _sum_bound(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return depth(_terms(x, axes)) * U * np.abs(x).sum(axes, keepdims=True)


def _lse(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    top = x.max(axes, keepdims=True)
    return top + np.log(np.exp(x - top).sum(axes, keepdims=True))


def _normalized(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    d = x - x.mean(axes, keepdims=True)
    return d / np.sqrt((d * d).mean(axes, keepdims=True) + epsilon)


def _normalized_bound(x: np.ndarray, axes: tuple[int, ...], y: np.ndarray, epsilon: float) -> np.ndarray:
    """The mean's error and the rounding of x - mean, each over the deviation, and half of what the variance is off by."""
    steps = depth(_terms(x, axes))
    deviation = np.sqrt(x.var(axes, keepdims=True) + epsilon)
    of_mean = (steps + 3) * U * np.abs(x).mean(axes, keepdims=True) / deviation
    return of_mean + np.abs(y) * (steps / 2 + 8) * U + np.abs(y) * of_mean**2


def _mean_variance(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    d = x - x.mean(axes, keepdims=True)
    return d / (np.sqrt((d * d).mean(axes, keepdims=True)) + 1e-9)


def _mean_variance_bound(x: np.ndarray, axes: tuple[int, ...], y: np.ndarray) -> np.ndarray:
    """The same, the mean of what is off it, and of what rounding left of it, being taken off again."""
    steps = depth(_terms(x, axes))
    off = np.abs(x - x.mean(axes, keepdims=True)) + (steps + 3) * U * np.abs(x).mean(axes, keepdims=True)
    of_mean = (steps + 3) * U * off.mean(axes, keepdims=True) / (x.std(axes, keepdims=True) + 1e-9)
    return of_mean + np.abs(y) * (steps / 2 + 8) * U + np.abs(y) * of_mean**2


KINDS = {
    "ReduceSum": Kind("ReduceSum(x, a)", lambda x, a: x.sum(a, keepdims=True), lambda x, a, y: _sum_bound(x, a)),
    "ReduceMean": Kind(
        "ReduceMean(x, a)",
        lambda x, a: x.mean(a, keepdims=True),
        lambda x, a, y: _sum_bound(x, a) / _terms(x, a) + 2 * U * np.abs(y),
    ),
    "ReduceL1": Kind("ReduceL1(x, a)", lambda x, a: np.abs(x).sum(a, keepdims=True), lambda x, a, y: _sum_bound(x, a)),
    "ReduceSumSquare": Kind(
        "ReduceSumSquare(x, a)",
        lambda x, a: (x * x).sum(a, keepdims=True),
        lambda x, a, y: (depth(_terms(x, a)) + 1) * U * y,
    ),
    "ReduceL2": Kind(
        "ReduceL2(x, a)",
        lambda x, a: np.sqrt((x * x).sum(a, keepdims=True)),
        lambda x, a, y: (depth(_terms(x, a)) / 2 + 2) * U * y,
    ),
    "ReduceLogSum": Kind(
        "ReduceLogSum(x, a)",
        lambda x, a: np.log(x.sum(a, keepdims=True)),
        lambda x, a, y: depth(_terms(x, a)) * U + 4 * U * np.maximum(np.abs(y), 1),
        is_positive=True,
    ),
    "ReduceLogSumExp": Kind(
        "ReduceLogSumExp(x, a)", _lse, lambda x, a, y: (depth(_terms(x, a)) + 8) * U + 4 * U * np.abs(y)
    ),
    "ReduceMax": Kind("ReduceMax(x, a)", lambda x, a: x.max(a, keepdims=True), lambda x, a, y: 0 * y),
    "ReduceMin": Kind("ReduceMin(x, a)", lambda x, a: x.min(a, keepdims=True), lambda x, a, y: 0 * y),
    "MeanVarianceNormalization": Kind(
        "MeanVarianceNormalization<axes=AXES>(x)", _mean_variance, _mean_variance_bound, keeps_shape=True
    ),
}


def dims_of(shape: tuple[int, ...], is_symbolic: bool) -> list[str]:
    return [f"d{k}" if is_symbolic else str(size) for k, size in enumerate(shape)]


def parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')


@cache
def model(kind: str, shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, is_symbolic: bool) -> onnx.ModelProto:
    dims = dims_of(shape, is_symbolic)
    results = dims if KINDS[kind].keeps_shape else ["1" if k in axes else dim for k, dim in enumerate(dims)]
    element = {"f32": "float", "f16": "float16"}[dtype]
    node = KINDS[kind].node.replace("AXES", str(list(axes)))
    constant = f"a = Constant<value_ints={list(axes)}>()" if "(x, a)" in node else ""
    return parsed(f"g ({element}[{', '.join(dims)}] x) => ({element}[{', '.join(results)}] y) {{ {constant} y = {node} }}")


def excess(kind: str, x: np.ndarray, axes: tuple[int, ...], got: np.ndarray) -> float:
    """The largest error over its bound; of f16, without the last rounding."""
    wide = x.astype(np.float64)
    want = KINDS[kind].value(wide, axes)
    bound = KINDS[kind].bound(wide, axes, want)
    error = np.abs(got.astype(np.float64) - want)
    if got.dtype == np.float16:
        error = np.maximum(error - HALF * np.abs(want) - 2.0**-25, 0)
    return float((error / np.maximum(bound, 1e-300)).max()) if bound.any() else float(error.max())


def inputs_of(kind: str, shape: tuple[int, ...], dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(kind) + sum(shape))
    found = {name: make(rng, shape) for name, make in DATA.items()}
    if dtype == "f16":  # sums stay below the largest f16
        found = {name: x / 16 for name, x in found.items() if name != "shifted"}
    if KINDS[kind].is_positive:
        found = {name: np.abs(x) for name, x in found.items()}
    return {name: x.astype({"f32": np.float32, "f16": np.float16}[dtype]) for name, x in found.items()}


CASES = [
    *((kind, layout) for kind in ("ReduceSum", "ReduceLogSumExp", "MeanVarianceNormalization") for layout in LAYOUTS),
    *((kind, layout) for kind in KINDS for layout in ("long rows", "columns", "small planes")),
]


@pytest.mark.covering
@pytest.mark.parametrize(("kind", "layout"), dict.fromkeys(CASES))
def test_errors_grow_with_the_logarithm_of_the_terms(kind: str, layout: str) -> None:
    shape, axes = LAYOUTS[layout]
    one, two = (tc.compile(model(kind, shape, axes, "f32", False), threads=threads) for threads in (1, 2))
    for name, x in inputs_of(kind, shape, "f32").items():
        got = two(x)
        assert excess(kind, x, axes, got) <= 1, name
        np.testing.assert_array_equal(one(x), got)


@pytest.mark.covering
@pytest.mark.parametrize("layout", ["odd", "rows", "columns", "few columns", "small planes"])
@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMean", "ReduceL2", "ReduceLogSumExp", "MeanVarianceNormalization"])
def test_f16_is_rounded_once_at_the_end(kind: str, layout: str) -> None:
    shape, axes = LAYOUTS[layout]
    compiled = tc.compile(model(kind, shape, axes, "f16", False))
    for name, x in inputs_of(kind, shape, "f16").items():
        assert excess(kind, x, axes, compiled(x)) <= 1, name


SYMBOLIC_KINDS, SYMBOLIC_LAYOUTS = ("ReduceSum", "ReduceLogSumExp", "MeanVarianceNormalization"), ("odd", "rows", "columns", "channels")
SYMBOLIC = [(kind, layout) for kind in SYMBOLIC_KINDS for layout in SYMBOLIC_LAYOUTS]
USUALLY = [*SYMBOLIC[:4], *SYMBOLIC[4:6], SYMBOLIC[11]]
"""All layouts of sums, and some of each other kind; the others are slow."""


@pytest.mark.parametrize(
    ("kind", "layout"), [pytest.param(*each, marks=() if each in USUALLY else pytest.mark.slow) for each in SYMBOLIC]
)
def test_symbolic_sizes_have_the_same_bounds(kind: str, layout: str) -> None:
    shape, axes = LAYOUTS[layout]
    one, two = (tc.compile(model(kind, shape, axes, "f32", True), threads=threads) for threads in (1, 2))
    for size in (1, 2, 7, 40):  # the dims that are reduced, short and long
        small = tuple(min(extent, size + k) if k in axes else extent for k, extent in enumerate(shape))
        for name, x in {**inputs_of(kind, small, "f32"), **inputs_of(kind, shape, "f32")}.items():
            got = two(x)
            assert excess(kind, x, axes, got) <= 1, (name, x.shape)
            np.testing.assert_array_equal(one(x), got)


@pytest.mark.parametrize("layout", ["odd", "rows", "long rows", "columns", "few columns", "channels"])
def test_strict_sums_are_as_accurate(layout: str) -> None:
    shape, axes = LAYOUTS[layout]
    strict = tc.compile(model("ReduceSum", shape, axes, "f32", False), numerics="strict")
    for name, x in inputs_of("ReduceSum", shape, "f32").items():
        assert excess("ReduceSum", x, axes, strict(x)) <= 1, name


@pytest.mark.covering
@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize(("shape", "axis"), [((1, 1 << 17), 1), ((4, 3_001), 1), ((3_001, 20), 0), ((2, 999, 17), 1)])
def test_softmax_of_many_numbers(shape: tuple[int, ...], axis: int, numerics: str) -> None:
    dims = ", ".join(map(str, shape))
    softmax, log_softmax = (
        tc.compile(parsed(f"g (float[{dims}] x) => (float[{dims}] y) {{ y = {op}<axis={axis}>(x) }}"), numerics=numerics)
        for op in ("Softmax", "LogSoftmax")
    )
    steps = depth(shape[axis])
    for scale in (0.0, 0.01, 4.0):
        x = (np.random.default_rng(0).standard_normal(shape) * scale).astype(np.float32)
        wide = x.astype(np.float64)
        log = wide - _lse(wide, (axis,))
        below = wide.max(axis, keepdims=True) - wide

        relative = np.abs(softmax(x) / np.exp(log) - 1)
        absolute = np.abs(log_softmax(x) - log)

        assert (relative <= (steps + 8 + below) * U).all()
        assert (absolute <= (steps + 8) * U + 4 * U * (below + np.abs(log))).all()


NORMALIZATIONS = {
    "LayerNormalization": ("LayerNormalization<axis=1>(x, s, b)", (6, 5_003), (5_003,), (1,)),
    "one row": ("LayerNormalization<axis=1>(x, s, b)", (1, 1 << 17), (1 << 17,), (1,)),
    "InstanceNormalization": ("InstanceNormalization(x, s, b)", (2, 3, 101, 103), (3,), (2, 3)),
    "one plane": ("InstanceNormalization(x, s, b)", (1, 1, 512, 512), (1,), (2, 3)),
}


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_normalizations_of_many_numbers(name: str) -> None:
    node, shape, size, axes = NORMALIZATIONS[name]
    dims = ", ".join(map(str, shape))
    text = f"g (float[{dims}] x, float[{size[0]}] s, float[{size[0]}] b) => (float[{dims}] y) {{ y = {node} }}"
    compiled = tc.compile(parsed(text))
    scale, shift = np.full(size, 1.5, np.float32), np.full(size, -0.5, np.float32)
    rng = np.random.default_rng(0)
    for data in DATA:
        x = DATA[data](rng, shape).astype(np.float32)
        wide = x.astype(np.float64)
        want = _normalized(wide, axes, 1e-5)

        error = np.abs(compiled(x, scale, shift) - (want * 1.5 - 0.5))

        bound = 1.5 * _normalized_bound(wide, axes, want, 1e-5) + 2 * U * (np.abs(want * 1.5) + 0.5)
        assert (error <= bound).all(), data


@pytest.mark.covering(2)
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize(("shape", "axis"), [((1, 100_003), 1), ((33, 1_000), 1), ((5, 7, 300), 1), ((40, 3, 20), 0), ((70_000, 2), 0)])
@pytest.mark.parametrize("last", [0, 1])
def test_the_place_of_an_extreme_is_exact(op: str, shape: tuple[int, ...], axis: int, last: int) -> None:
    dims = ", ".join(map(str, shape))
    results = ", ".join("1" if k == axis else str(size) for k, size in enumerate(shape))
    text = f"g (float[{dims}] x) => (int64[{results}] y) {{ y = {op}<axis={axis}, select_last_index={last}>(x) }}"
    compiled = tc.compile(parsed(text))
    rng = np.random.default_rng(0)
    for x in (rng.standard_normal(shape), rng.integers(0, 3, shape), np.full(shape, -np.inf), np.zeros(shape)):
        x = x.astype(np.float32)
        fn = {"ArgMax": np.argmax, "ArgMin": np.argmin}[op]
        want = shape[axis] - 1 - fn(np.flip(x, axis), axis) if last else fn(x, axis)
        np.testing.assert_array_equal(compiled(x), np.expand_dims(want, axis))


@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (4, 32)])
@pytest.mark.parametrize("constant", [False, True])
def test_deep_products_of_matrices_are_summed_in_parts(rows: int, columns: int, constant: bool) -> None:
    """What broke: one accumulator for 2^20 terms of one sign was off by 1 %."""
    k = 1 << 16
    compiled = tc.compile(parsed(f"g (float[{rows},{k}] x, float[{k},{columns}] w) => (float[{rows},{columns}] y) {{ y = MatMul(x, w) }}"))
    rng = np.random.default_rng(0)
    x, w = (np.full(shape, 0.1, np.float32) if constant else rng.random(shape, np.float32) for shape in ((rows, k), (k, columns)))

    want = x.astype(np.float64) @ w.astype(np.float64)

    assert (np.abs(compiled(x, w) - want) <= 2 * np.sqrt(k) * U * want).all()


def test_products_are_exact_to_a_rounding_a_factor() -> None:
    n = 1 << 16
    compiled = tc.compile(parsed(f"g (float[{n}] x) => (float[1] y) {{ y = ReduceProd(x) }}"))
    x = (1 + np.random.default_rng(0).uniform(-1e-3, 1e-3, n)).astype(np.float32)

    want = np.prod(x.astype(np.float64))

    assert abs(compiled(x)[0] / want - 1) <= n * U


@pytest.mark.parametrize("values", [(np.nan,), (np.inf,), (np.inf, -np.inf)])
def test_numbers_that_are_none_reach_the_result(values: tuple[float, ...]) -> None:
    x = np.ones(70_001, np.float32)
    x[[65_000, 3][: len(values)]] = values
    compiled = tc.compile(model("ReduceSum", x.shape, (0,), "f32", False))

    np.testing.assert_array_equal(compiled(x), [sum(values)])


def test_the_difference_of_equal_normalizations_is_zero() -> None:
    node = "MeanVarianceNormalization<axes=[0, 2, 3]>(x)"
    compiled = tc.compile(parsed(f"g (float[2,3,5,5] x) => (float[2,3,5,5] y) {{ a = {node} b = {node} y = Sub(a, b) }}"))

    assert not compiled(np.random.default_rng(0).standard_normal((2, 3, 5, 5)).astype(np.float32)).any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "MeanVarianceNormalization"])
@pytest.mark.parametrize(("shape", "axes"), [((1 << 22,), (0,)), ((1 << 18, 16), (0,)), ((4, 1 << 20), (1,)), ((1, 1, 2048, 2048), (2, 3))])
def test_millions_of_terms(kind: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    compiled = tc.compile(model(kind, shape, axes, "f32", False))
    for name, x in inputs_of(kind, shape, "f32").items():
        assert excess(kind, x, axes, compiled(x)) <= 1, name


@pytest.mark.slow
@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize("data", ["ones", "uniform", "constant"])
def test_a_quarter_of_a_billion_terms(data: str, is_symbolic: bool) -> None:
    n = 1 << 28
    rng = np.random.default_rng(0)
    x = rng.random(n, np.float32) if data == "uniform" else np.full(n, {"ones": 1, "constant": 0.1}[data], np.float32)
    want = sum(float(part.astype(np.float64).sum()) for part in np.split(x, 64))

    got = tc.compile(model("ReduceSum", (n,), (0,), "f32", is_symbolic))(x)

    assert abs(float(got[0]) - want) <= depth(n) * U * want


@pytest.mark.parametrize("target", ["native", pytest.param("c", marks=pytest.mark.slow)])
@pytest.mark.parametrize("axis", [1, 2])
def test_shares_of_equal_huge_products_are_equal(axis: int, target: str) -> None:
    """A row that a mask hides whole: x * s - max was one fused multiply-add, so what x * s had been rounded by was left, and exp of it
    was 0 or infinite: NaN in every place, as from a quantized mask of which a step is 1e20."""
    text = f"""g (float[m, n, k] x) => (float[m, n, k] y) <float s = {{0.3}}> {{
        z = Mul(x, s)
        y = Softmax<axis = {axis}>(z)
    }}"""
    module = tc.compile(parsed(text), target, threads=1)
    for value in (-3e38, -1e10, 7e9):
        x = np.full((2, 5, 9), value, np.float32)

        (found,) = module.run({"x": x}).values()

        np.testing.assert_allclose(found, 1 / x.shape[axis], rtol=1e-6)
