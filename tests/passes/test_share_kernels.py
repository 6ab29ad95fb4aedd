"""Kernels that differ in literals alone are one, and compute the same bits as each by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx.parser import parse_model

import tc
from tc.frontend.registry import import_model
from tc.ir.dtype import DType, f32, i8, int_range, u8, u16
from tc.ir.graph import Atom
from tc.ir.module import IRModule
from tc.ir.structural import structural_hash
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.passes import pipeline
from tc.passes.lower import primitive_calls
from tc.passes.manager import parse_pipeline
from tc.target import native_target
from tests.frontend.models import run_onnxruntime
from tests.passes.test_share_scales import values

Layer = Callable[[GraphBuilder, Atom, np.random.Generator], Atom]


def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on every kernel has its own literals."""
    monkeypatch.setenv("TC_CACHE_DIR", "off")
    for name, text in (("DEFAULT", pipeline.LOWER), ("STRICT", pipeline.STRICT_LOWER)):
        monkeypatch.setattr(pipeline, name, dataclasses.replace(getattr(pipeline, name), lower=parse_pipeline(text)))


def quantized(scale: float | None, dtype: DType) -> Layer:
    """Between two sums that no kernel may compute together: rounded to steps and back, by numbers of its own in each layer."""
    least, most = int_range(dtype)

    def layer(b: GraphBuilder, x: Atom, rng: np.random.Generator) -> Atom:
        step, zero = b.const(np.float32(scale or rng.uniform(0.01, 0.2))), b.const(rng.integers(least, most + 1, (), dtype.numpy))
        narrow = b.call("quantize_linear", x, step, zero, dtype=dtype)
        wide = b.call("dequantize_linear", narrow, b.const(np.float32(rng.uniform(0.01, 0.2))), zero)
        return b.call("mul", b.call("softmax", wide, axis=0), b.const(np.float32(rng.uniform(50, 200))))

    return layer


def scaled(b: GraphBuilder, x: Atom, rng: np.random.Generator) -> Atom:
    wide = b.call("add", b.call("mul", x, b.const(np.float32(rng.normal()))), b.const(np.float32(rng.normal())))
    return b.call("sub", b.const(np.float32(rng.normal())), b.call("cumsum", wide, axis=0))


LAYERS = {
    "u8 of steps": quantized(1.0, u8),
    "u8": quantized(None, u8),
    "i8": quantized(None, i8),
    "u16 of steps": quantized(1.0, u16),
    "scaled": scaled,
}


@pytest.mark.covering
@pytest.mark.parametrize("target", ["native", "x86-64-v3", "c"])
@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_of_drawn_literals(kind: str, numerics: str, target: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    b = GraphBuilder()
    x = b.param("x", tensor_type((3001,), f32))
    y: Atom = x
    for _ in range(4):
        y = LAYERS[kind](b, y, rng)
    module = IRModule((b.function("main", (y,)),))
    given = rng.standard_normal(3001).astype(np.float32) if kind == "scaled" else values(rng, 1.0)

    shared = tc.compile(module, target, threads=1, numerics=numerics)
    apart(monkeypatch)
    alone = tc.compile(module, target, threads=1, numerics=numerics)

    assert len({kernel.name for kernel in shared.report().kernels}) < len({kernel.name for kernel in alone.report().kernels})
    np.testing.assert_array_equal(np.asarray(shared(given)), np.asarray(alone(given)))


def kernels(model: str, arrays: dict[str, np.ndarray]) -> list[str]:
    """The kernels of a model whose results are onnxruntime's."""
    parsed = parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {model}')
    expected = run_onnxruntime(parsed, arrays)
    module = tc.compile(parsed, threads=1)
    for found, wanted in zip(module.run(arrays).values(), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    return [kernel.name for kernel in module.report().kernels]


CONVOLUTIONS = """g (float[1, 32, N, N] x) => (uint8[1, 32, N, N] d)
    <int8[32, 1, 3, 3] w, float s = {0.0625}, float t = {0.25},
     uint8 z0 = {7}, uint8 z1 = {200}, uint8 z2 = {91}, uint8 z3 = {0}, int8 zw = {0}> {
        q0 = QuantizeLinear (x, s, z0)
        #
        d = Identity (q3)
}"""

CONVOLUTION = """
        x%(k)d = DequantizeLinear (q%(k)d, s, z%(k)d)
        w%(k)d = DequantizeLinear (w, t, zw)
        y%(k)d = Conv <pads = [1, 1, 1, 1], group = 32> (x%(k)d, w%(k)d)
        q%(n)d = QuantizeLinear (y%(k)d, s, z%(n)d)
"""


@pytest.mark.parametrize("size", [1, 2, 9, 20])
def test_convolutions_that_pad_by_other_zero_points(size: int, rng: np.random.Generator) -> None:
    text = CONVOLUTIONS.replace("N", str(size))
    model = text.replace("#", "".join(CONVOLUTION % {"k": k, "n": k + 1} for k in range(3)))
    weights = ", ".join(map(str, rng.integers(-127, 128, 288)))

    model = model.replace("w, float s", f"w = {{{weights}}}, float s")
    names = kernels(model, {"x": rng.standard_normal((1, 32, size, size), np.float32) * 4})

    assert sum("conv" in name for name in names) == 1  # what the first reads is quantized, and cut into blocks, before it


@pytest.mark.parametrize(("layer", "literals", "count"), [
    ("Div ({x}, {c})", [4.0, 8.0, 0.5], 3),  # by products of an inverse, or not, as the literal is
    ("Max ({x}, {c})", [3.0, -7.0, 0.5], 3),
    ("Mul ({x}, {c})", [3.0, 7.0, 7.0], 1),
    ("Mul ({x}, {c})", [7.0, 7.0, 7.0], 1),
    ("Pow ({x}, {c})", [2.0, 1.0, 1.5], 3),
])  # fmt: skip
def test_what_a_literal_decides(layer: str, literals: list[float], count: int, rng: np.random.Generator) -> None:
    names = [f"c{k}" for k in range(3)]
    heads = ", ".join(f"float {name} = {{{value}}}" for name, value in zip(names, literals, strict=True))
    lines = "\n".join(f"y{k} = {layer.format(x=f'x{k}', c=name)}\n x{k + 1} = CumSum (y{k}, axis)" for k, name in enumerate(names))
    model = f"g (float[9, 5] x0) => (float[9, 5] x3) <int64 axis = {{0}}, {heads}> {{ {lines} }}"

    names = kernels(model, {"x0": np.exp2(rng.integers(-2, 3, (9, 5))).astype(np.float32)})

    assert names.count("cumsum") == 1 and len(names) == 1 + count


LOOP = """g (float[n] x, int64 trips) => (float[n] y, float[n] z) <float c = {3}, float d = {5}, float e = {7}> {
    y = Loop (trips, , x) <body = body (int64 i, bool on, float[n] s) => (bool again, float[n] t) {
        again = Identity (on)
        u = Mul (s, c)
        t = Sub (u, d)
    }>
    v = Mul (x, d)
    z = Sub (v, e)
}"""


@pytest.mark.parametrize("length", [0, 1, 40])
def test_in_a_loop_and_outside_with_a_symbolic_length(length: int, rng: np.random.Generator) -> None:
    arrays = {"x": rng.integers(-9, 9, length).astype(np.float32), "trips": np.array(4)}

    assert kernels(LOOP, arrays) == ["maximum", "mul_sub"]  # of the number of trips, and both others


def test_a_saved_module_knows_the_literals_of_each_call(tmp_path: Path, rng: np.random.Generator) -> None:
    b = GraphBuilder()
    x = b.param("x", tensor_type((40,), f32))
    y: Atom = x
    for factor in (3.0, 5.0, 0.25):
        y = b.call("cumsum", b.call("mul", y, b.const(np.float32(factor))), axis=0)
    module = tc.compile(IRModule((b.function("main", (y,)),)), threads=1)
    given = rng.integers(-3, 4, 40).astype(np.float32)

    module.save(f"{tmp_path}/module.so")

    expected = np.cumsum(np.cumsum(np.cumsum(given * 3) * 5) * 0.25)
    assert [(kernel.name, kernel.calls) for kernel in module.report().kernels] == [("mul", 3), ("cumsum", 3)]
    for made in (module, tc.load(f"{tmp_path}/module.so")):
        np.testing.assert_array_equal(np.asarray(made(given)), expected)


@pytest.mark.parametrize("layer", [
    "m# = Conv (x#, w#)",  # nothing is around the image, so no number is
    "u# = Conv (x#, w#) v# = QuantizeLinear (u#, s, a#) n# = DequantizeLinear (v#, s, a#) m# = Add (n#, x#)",  # by the steps of either
    "u# = Conv (x#, w#) v# = QuantizeLinear (u#, s, a#) n# = DequantizeLinear (v#, s, a#) m# = Add (n#, y)",
], ids=["convolution", "residual", "sum"])  # fmt: skip
def test_layers_of_other_zero_points_are_lowered_once(layer: str, rng: np.random.Generator) -> None:
    points, count = rng.permutation(np.arange(1, 255)), 5
    constants, lines = [], []
    for k in range(count):
        constants += [f"uint8 z{k} = {{{points[k]}}}", f"uint8 a{k} = {{{points[-1 - k]}}}"]
        constants.append(f"int8[64, 64, 1, 1] k{k} = {{{', '.join(map(str, rng.integers(-127, 128, 4096)))}}}")
        lines.append(f"x{k} = DequantizeLinear (q{k}, s, z{k})  w{k} = DequantizeLinear (k{k}, t, zero)  {layer.replace('#', str(k))}")
        lines.append(f"q{k + 1} = QuantizeLinear (m{k}, s, {f'z{k + 1}' if k + 1 < count else 'last'})")
    heads = ", ".join(("float s = {0.0625}", "float t = {0.002}", "int8 zero = {0}", "uint8 last = {3}", *constants))
    header = '<ir_version: 8, opset_import: ["" : 18]>'
    ends = "(float[1, 64, 8, 8] x, float[1, 64, 8, 8] y) => (uint8[1, 64, 8, 8] d)"
    model = parse_model(f"{header} g {ends} <{heads}> {{ q0 = QuantizeLinear (x, s, z0) {' '.join(lines)} d = Identity (q{count}) }}")
    arrays = {name: rng.standard_normal((1, 64, 8, 8), np.float32) * 4 for name in "xy"}

    fused = pipeline.fuse_model(pipeline.lay_out(pipeline.prepare_model(import_model(model), native_target())))
    names = {structural_hash(func): func.name for _, func in primitive_calls(fused.graph)}.values()

    assert sum("conv" in name for name in names) <= 3  # the first, those between, and the last
    assert "u8[()]" not in tc.lower(model, "loops").as_text()  # what is made of zero points is computed here
    (expected,) = run_onnxruntime(model, arrays)
    np.testing.assert_array_equal(tc.compile(model, threads=1).run(arrays)["d"], expected)
