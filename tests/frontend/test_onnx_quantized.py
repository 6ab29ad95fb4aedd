"""Operators on quantized tensors, of ONNX and of onnxruntime, against onnxruntime on random inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

import tc
from tc.errors import TcError
from tc.frontend.onnx import load_model
from tc.frontend.onnx.node_context import ADAPTERS
from tc.interp import run_function
from tc.passes.manager import run_pipeline
from tc.passes.pipeline import SIMPLIFY
from tests.draws import exact_range
from tests.frontend.models import make_model, node

F32, U8, S8 = np.float32, np.uint8, np.int8
MS = "com.microsoft"


class Operands:
    """The inputs of a node: drawn ones, and literals or inputs for scales and zero points."""

    def __init__(self, seed: int, dtype: type, literal: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.literal = literal
        self.arrays: dict[str, np.ndarray] = {}
        self.constants: dict[str, np.ndarray] = {}

    def _add(self, array: np.ndarray, literal: bool) -> str:
        name = f"v{len(self.arrays) + len(self.constants)}"
        (self.constants if literal else self.arrays)[name] = array
        return name

    def numbers(self, *shape: int, dtype: type | None = None, literal: bool = False) -> str:
        least, most = exact_range(dtype or self.dtype)
        return self._add(self.rng.integers(least, most + 1, shape).astype(dtype or self.dtype), literal)

    def floats(self, *shape: int, factor: float = 1.0) -> str:
        return self._add((self.rng.standard_normal(shape) * factor).astype(F32), False)

    def scale(self, *shape: int, around: float = 0.05, fixed: bool = False) -> str:
        return self._add(self.rng.uniform(around / 2, around, shape).astype(F32), self.literal or fixed)

    def zero(self, *shape: int, dtype: type | None = None, fixed: bool = False) -> str:
        info = np.iinfo(dtype or self.dtype)
        return self._add(self.rng.integers(info.min, info.max + 1, shape).astype(dtype or self.dtype), self.literal or fixed)

    def const(self, array: Any) -> str:
        return self._add(np.asarray(array), True)

    def tensor(self, *shape: int, fixed: bool = False) -> list[str]:
        """A tensor, its scale and its zero point."""
        return [self.numbers(*shape), self.scale(fixed=fixed), self.zero(fixed=fixed)]


Made = tuple[list[str], dict[str, Any]]


Build = Callable[[Operands], Made]


def conv(o: Operands, channel_scales: bool = True, bias: bool = True, **attrs: Any) -> Made:
    kind = S8 if o.dtype is S8 else o.rng.choice([U8, S8])
    w = o.numbers(6, 4 // attrs.get("group", 1), 3, 3, dtype=kind, literal=True)
    own = (6,) if channel_scales else ()
    zero = np.zeros(own, kind) if channel_scales else np.array(o.rng.integers(0, 9), kind)
    term = [o.const(o.rng.integers(-9000, 9000, 6).astype(np.int32))] if bias else []
    return [*o.tensor(2, 4, 7, 6), w, o.scale(*own), o.const(zero), o.scale(around=30.0), o.zero(), *term], attrs


def conv_integer(o: Operands) -> Made:
    return [o.numbers(1, 3, 5, 5, dtype=U8), o.numbers(4, 3, 2, 2, dtype=U8), o.zero(dtype=U8)], {}


def columns(o: Operands) -> Made:
    w = [o.numbers(5, 4, dtype=S8, literal=True), o.scale(4), o.const(np.zeros(4, S8))]
    return [*o.tensor(3, 5), *w, o.scale(around=2.0), o.zero()], {}


def qgemm(o: Operands) -> Made:
    term = o.const(o.rng.integers(-9000, 9000, 4).astype(np.int32))
    return [*o.tensor(3, 5), *o.tensor(4, 5, fixed=True), term, o.scale(around=3.0), o.zero()], {"transB": 1, "alpha": 0.5}


def qgemm_to_floats(o: Operands) -> Made:
    return [*o.tensor(5, 3), *o.tensor(5, 4), o.const(o.rng.integers(-900, 900, (3, 4)).astype(np.int32))], {"transA": 1}


def dynamic_matmul(o: Operands) -> Made:
    return [o.floats(2, 3, 5), o.numbers(5, 4, dtype=S8, literal=True), o.scale(4), o.zero(4, dtype=S8), o.floats(4)], {}


def to_float(o: Operands) -> Made:
    return [o.numbers(2, 3, 5), o.numbers(5, 4, dtype=S8), o.scale(), o.scale(4), o.zero(), o.zero(4, dtype=S8), o.floats(4)], {}


def to_float_of_each(o: Operands, columns: int) -> Made:
    """A scale and a zero point for each column of each product of a batch."""
    own = (2, 1, columns)
    w = o.numbers(2, 5, columns, dtype=S8, literal=True)
    return [o.numbers(2, 3, 5), w, o.scale(), o.scale(*own), o.zero(), o.zero(*own, dtype=S8)], {}


def where(o: Operands) -> Made:
    condition = o.const(o.rng.integers(0, 2, (3, 4)).astype(bool))
    return [condition, *o.tensor(3, 4, fixed=True), *o.tensor(4, fixed=True), o.scale(fixed=True), o.zero(fixed=True)], {}


def attention(o: Operands, mask: Any = None, past: int | None = None, **attrs: Any) -> Made:
    x, w = o.numbers(2, 4, 16, dtype=U8), o.numbers(16, 48, dtype=S8, literal=True)
    names = [x, w, o.floats(48), o.scale(around=0.01), o.scale(around=0.01), "-" if mask is None else o.const(np.array(mask, np.int32))]
    names += [o.zero(dtype=U8), o.const(np.int8(3))]
    return [*names, *([] if past is None else [o.floats(2, 2, 4, past, 4)])], attrs


def channels_last(o: Operands) -> Made:
    w = [o.numbers(6, 4, 3, 2, dtype=S8, literal=True), o.scale(6, fixed=True), o.const(np.zeros(6, S8))]
    term = o.const(o.rng.integers(-9000, 9000, 6).astype(np.int32))
    ends = [o.scale(around=30.0, fixed=True), o.zero(fixed=True), term]
    return [*o.tensor(2, 7, 6, 4, fixed=True), *w, *ends], {"channels_last": 1, "pads": [1, 0, 2, 1], "strides": [2, 1]}


def of_one(*shape: int, around: float = 0.05, **attrs: Any) -> Build:
    """An operator of one tensor; onnxruntime wants its parameters to be literals."""
    return lambda o: ([*o.tensor(*shape, fixed=True), o.scale(around=around, fixed=True), o.zero(fixed=True)], attrs)


BY_TABLES = {"QLinearSoftmax"}
"""What onnxruntime computes of rounded exponentials."""

WINDOW = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}
CASES: dict[str, tuple[str, Build]] = {
    "QLinearConv": ("", lambda o: conv(o, pads=[1, 0, 2, 1], strides=[2, 1])),
    "QLinearConv of groups": ("", lambda o: conv(o, False, group=2, dilations=[2, 1])),
    "QLinearConv without bias": ("", lambda o: conv(o, False, False)),
    "QLinearConv, of onnxruntime": (MS, lambda o: conv(o, False, pads=[1, 1, 1, 1])),
    "ConvInteger": ("", conv_integer),
    "MatMulInteger": ("", lambda o: ([o.numbers(3, 5), o.numbers(5, 4, dtype=S8), o.zero(), o.zero(4, dtype=S8)], {})),
    "MatMulInteger of each": ("", lambda o: ([o.numbers(2, 3, 5), o.numbers(2, 5, 4, dtype=S8), o.zero(), o.zero(2, 1, 4, dtype=S8)], {})),
    "QLinearMatMul": ("", lambda o: ([*o.tensor(2, 3, 5), *o.tensor(2, 5, 4), o.scale(around=2.0), o.zero()], {})),
    "QLinearMatMul of columns": ("", columns),
    "DynamicQuantizeLinear": ("", lambda o: ([o.floats(3, 7, factor=5)], {})),
    "QLinearAdd": (MS, lambda o: ([*o.tensor(2, 3, 4), *o.tensor(3, 1), o.scale(), o.zero()], {})),
    "QLinearMul": (MS, lambda o: ([*o.tensor(2, 3, 4), *o.tensor(4), o.scale(around=0.5), o.zero()], {})),
    "QLinearSigmoid": (MS, of_one(5, 20, around=0.01)),
    "QLinearLeakyRelu": (MS, of_one(5, 20, alpha=0.2)),
    "QLinearSoftmax": (MS, of_one(3, 4, 5, around=0.01, axis=1, opset=13)),
    "QLinearSoftmax before 13": (MS, of_one(3, 4, 5, around=0.01, axis=1, opset=12)),
    "QLinearGlobalAveragePool": (MS, of_one(2, 3, 4, 5, channels_last=0)),
    "QLinearGlobalAveragePool, channels last": (MS, of_one(2, 4, 5, 3, channels_last=1)),
    "QLinearAveragePool": (MS, of_one(2, 3, 6, 5, **WINDOW)),
    "QLinearAveragePool of whole windows": (MS, of_one(2, 3, 6, 5, **WINDOW, ceil_mode=1, count_include_pad=1)),
    "QLinearAveragePool that sticks out": (MS, of_one(1, 2, 7, 8, kernel_shape=[3, 3], strides=[3, 3], ceil_mode=1, count_include_pad=1)),
    "QLinearAveragePool, channels last": (MS, of_one(2, 6, 5, 3, **WINDOW, ceil_mode=1, count_include_pad=1, channels_last=1)),
    "QLinearConcat": (MS, lambda o: ([o.scale(), o.zero(), *o.tensor(2, 3), *o.tensor(2, 1), *o.tensor(2, 4)], {"axis": 1})),
    "QLinearWhere": (MS, where),
    "QGemm": (MS, qgemm),
    "QGemm to floats": (MS, qgemm_to_floats),
    "MatMulIntegerToFloat": (MS, to_float),
    "MatMulIntegerToFloat of each": (MS, lambda o: to_float_of_each(o, 4)),
    "MatMulIntegerToFloat of each column": (MS, lambda o: to_float_of_each(o, 1)),
    "DynamicQuantizeMatMul": (MS, dynamic_matmul),
    "QuantizeLinear": (MS, lambda o: ([o.floats(3, 4, factor=3), o.scale(), o.zero()], {})),
    "DequantizeLinear": (MS, lambda o: ([o.numbers(3, 4), o.scale(4), o.zero(4)], {"axis": 1})),
    "QAttention": (MS, lambda o: attention(o, num_heads=2)),
    "QAttention with a mask": (MS, lambda o: attention(o, [[1, 1, 1, 0], [1, 0, 1, 1]], num_heads=2)),
    "QAttention with lengths": (MS, lambda o: attention(o, [3, 1], num_heads=2)),
    "QAttention with a past": (MS, lambda o: attention(o, None, 3, num_heads=4, unidirectional=1)),
    "QAttention with an empty past": (MS, lambda o: attention(o, None, 0, num_heads=4)),
    "QAttention with a past and a mask": (MS, lambda o: attention(o, [[1, 0, 1, 1, 1, 1, 0]] * 2, 3, num_heads=4, unidirectional=1)),
    "QLinearConv, channels last": (MS, channels_last),
    "NhwcMaxPool": (MS, lambda o: ([o.numbers(2, 7, 6, 3)], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]})),
    "QAttention to the left": (MS, lambda o: attention(o, num_heads=4, unidirectional=1)),
}


@pytest.mark.covering
@pytest.mark.parametrize("literal", [True, False], ids=("literals", "data"))
@pytest.mark.parametrize("dtype", [U8, S8])
@pytest.mark.parametrize("case", CASES)
def test_an_operator_is_onnxruntimes(case: str, dtype: type, literal: bool) -> None:
    (domain, build), op = CASES[case], case.split()[0].rstrip(",")
    compared = 0
    for seed in range(4):
        o = Operands(seed, dtype, literal)
        inputs, attrs = build(o)
        outputs = "y s z" if op == "DynamicQuantizeLinear" else "y p" if "past" in case else "y"
        made = node(op, " ".join(inputs), outputs, **attrs, **({"domain": domain} if domain else {}))
        declared = {name: (array.dtype, array.shape) for name, array in o.arrays.items()}
        model = make_model([made], declared, outputs.split(), o.constants, opset=21, domains=[(MS, 1)])
        try:
            session = _session(model)
        except onnxruntime.capi.onnxruntime_pybind11_state.OrtException:  # it has no kernel for these types
            continue
        expected = session.run(None, o.arrays)

        module = run_pipeline(load_model(model, on_unsupported="error").module, SIMPLIFY)
        found = run_function(module, "main", list(o.arrays.values()))

        for a, b in zip(found, expected, strict=True):
            compared += 1
            assert a.dtype == b.dtype and a.shape == b.shape
            if a.dtype == F32:
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
            else:
                apart = np.abs(a.astype(np.int64) - b.astype(np.int64))
                assert apart.max() <= 1 and (apart > 0).mean() <= (0.5 if op in BY_TABLES else 0.02)
    assert compared or dtype is S8 or not literal


def _session(model: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


# They were sums of rounded numbers, so that some ties went the other way.
@pytest.mark.parametrize("dtype", [U8, S8])
@pytest.mark.parametrize(("shape", "channels_last"), [((6, 7, 6, 6), 0), ((4, 7, 2, 5), 1)])
def test_means_of_images_are_onnxruntimes(shape: tuple[int, ...], channels_last: int, dtype: type) -> None:
    rng, info = np.random.default_rng(7), np.iinfo(dtype)
    constants = {"xs": F32(0.1), "xz": dtype(3), "ys": F32(0.1), "yz": dtype(info.min)}
    made = node("QLinearGlobalAveragePool", "x xs xz ys yz", "y", domain=MS, channels_last=channels_last)
    sizes = (shape, [f"d{k}" for k in range(len(shape))])
    fixed, symbolic = (make_model([made], {"x": (dtype, dims)}, ["y"], constants, domains=[(MS, 1)]) for dims in sizes)
    session, modules = _session(fixed), [tc.compile(model) for model in (fixed, symbolic)]

    for _ in range(8):
        x = rng.integers(info.min, info.max + 1, shape).astype(dtype)
        (expected,) = session.run(None, {"x": x})
        for module in modules:
            np.testing.assert_array_equal(module(x), expected)


# Their sums were of 32 bits, which wrapped: means of bright images were 0.
@pytest.mark.parametrize("sizes", [(1, 1, 3000, 3000), ("n", "c", "h", "w")])
def test_means_of_large_bright_images(sizes: tuple[int | str, ...]) -> None:
    constants = {"xs": F32(0.1), "xz": U8(0), "ys": F32(0.1), "yz": U8(0)}
    made = node("QLinearGlobalAveragePool", "x xs xz ys yz", "y", domain=MS, channels_last=0)
    module = tc.compile(make_model([made], {"x": (U8, sizes)}, ["y"], constants, domains=[(MS, 1)]))

    np.testing.assert_array_equal(module(np.full((1, 1, 3000, 3000), 255, U8)), np.full((1, 1, 1, 1), 255, U8))


@pytest.mark.parametrize("axes", [[1, -1], None])
def test_a_mean_is_rounded_once(axes: list[int] | None) -> None:
    """Of which onnxruntime has the definition, and no kernel for CPUs."""
    o = Operands(0, U8, True)
    names = [*o.tensor(3, 4, 5), o.scale(around=0.01), o.zero()]
    attrs = {} if axes is None else {"axes": axes}
    model = make_model([node("QLinearReduceMean", " ".join(names), "y", domain=MS, keepdims=0, **attrs)], {names[0]: (U8, (3, 4, 5))},
                       ["y"], o.constants, domains=[(MS, 1)])  # fmt: skip

    (found,) = run_function(load_model(model, on_unsupported="error").module, "main", list(o.arrays.values()))

    scale, zero, y_scale, y_zero = (o.constants[name].astype(np.float64) for name in names[1:])
    mean = ((o.arrays[names[0]] - zero) * scale).mean(None if axes is None else tuple(axes))
    wanted = np.clip(np.round(mean / y_scale) + y_zero, 0, 255)
    assert found.dtype == U8 and found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 1 and (found != wanted).mean() <= 0.02


def test_every_quantized_operator_of_the_table_is_tested() -> None:
    named = {(domain, case.split()[0].rstrip(",")) for case, (domain, _) in CASES.items()}
    quantized = {key for key, entries in ADAPTERS.items() if entries[0][1].__module__.endswith("ops_quantized")}

    assert quantized - named == {("", "QuantizeLinear"), ("", "DequantizeLinear"), (MS, "QLinearReduceMean")}  # no kernel is elsewhere


@pytest.mark.parametrize(("op", "inputs"), [("QLinearConcat", "s z x s"), ("QAttention", "x w b s s - - - past")])
def test_what_cannot_be_is_refused_in_words(op: str, inputs: str) -> None:
    declared = {name: (F32, [2, 2]) for name in dict.fromkeys(inputs.replace("-", "").split())}
    model = make_model([node(op, inputs, "y", domain=MS, axis=0)], declared, ["y"], domains=[(MS, 1)])

    with pytest.raises(TcError, match=op):
        load_model(model, on_unsupported="error")


@pytest.mark.covering
@pytest.mark.parametrize("are_literals", [True, False], ids=("literals", "inputs"))
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("seed", range(6))
def test_ties_of_two_tensors_are_rounded_with_the_zero_point_as_onnxruntime_does(seed: int, op: str, are_literals: bool) -> None:
    rng = np.random.default_rng(seed)
    dtype = (np.uint8, np.int8)[seed % 2]
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    steps = np.float32(rng.uniform(0.03, 0.06)) * np.float32([1, rng.choice([0.5, 1, 1.5]), 2])
    if op == "QLinearMul":
        steps[2] = 32 * steps[0] * steps[1]
    zeros = rng.integers(low // 2, high // 2, 3) | 1
    numbers = {f"{name}{kind}": np.asarray(value) for kind, values in (("s", steps), ("z", zeros.astype(dtype)))
               for name, value in zip("abc", values, strict=True)}  # fmt: skip
    arrays = {name: rng.integers(low, high + 1, (40, 101), dtype=dtype) for name in "ab"}
    made = node(op, "a as az b bs bz cs cz", "y", domain="com.microsoft")
    given = arrays if are_literals else arrays | numbers
    model = make_model([made], {name: (array.dtype, array.shape) for name, array in given.items()}, ["y"],
                       numbers if are_literals else {}, domains=[("com.microsoft", 1)])  # fmt: skip

    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    (found,) = tc.compile(model, threads=1).run(given).values()

    np.testing.assert_array_equal(found, expected)
    real = [(arrays[name].astype(np.float64) - int(zero)) * float(step) for name, zero, step in zip("ab", zeros, steps, strict=False)]
    exact = (real[0] + real[1] if op == "QLinearAdd" else real[0] * real[1]) / float(steps[2])
    assert (np.abs(np.abs(exact % 1) - 0.5) < 1e-5).sum() > 20, "there are ties"


@pytest.mark.parametrize("seed", range(6))
def test_ties_of_averages_are_rounded_with_the_zero_point_as_onnxruntime_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = (np.uint8, np.int8)[seed % 2]
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    step, size = np.float32(2.0 ** rng.integers(-6, -2)), (2, 3)[seed % 3 == 2]
    numbers = {"xs": step, "xz": dtype(rng.integers(low // 2, high // 2)), "ys": step, "yz": dtype(rng.integers(low // 2, high // 2) | 1)}
    x = rng.integers(low, high + 1, (2, 3, 12, 13), dtype=dtype)
    pool = node("QLinearAveragePool", "x xs xz ys yz", "y", domain="com.microsoft", kernel_shape=[size, size], strides=[size - 1] * 2)
    model = make_model([pool], {"x": (dtype, x.shape)}, ["y"], numbers, domains=[("com.microsoft", 1)])

    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})

    np.testing.assert_array_equal(tc.compile(model, threads=1)(x), expected)
