"""Products whose factors are split into terms of bf16: how exact they are, what infinities become, which are split."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tc
from tc.interp import run_named
from tc.ir.dtype import bf16, f32
from tc.ir.expr import Var
from tc.ir.graph import Atom
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ir.verify import verify
from tc.ops.build import GraphBuilder
from tc.ops.terms import FINITE, REST, ROUNDED, join_terms
from tc.passes.graph.convert_layout import layout_seconds
from tc.passes.graph.narrow_floats import narrow_floats
from tc.passes.graph.narrowing import Precision, calls_of, choose_narrowing
from tc.precision.savings import saved_seconds, split_seconds
from tc.stages import interpret_in_f64
from tc.target import Target
from tests.passes.test_narrow_floats import module_of, normal, types_of, x_of

_VECTORS = Target.parse("x86-64-v4:cores=1,machine=sapphirerapids")
TILES = replace(_VECTORS, features=tuple(sorted({*_VECTORS.features, "avx512bf16", "avx512vnni", "amx-tile", "amx-int8", "amx-bf16"})))
LEFT = 2.0**-16
"""What three products of terms leave of the sum of magnitudes: the terms have 16 bits together, and the product of rests is not there."""


def split(module: IRModule) -> IRModule:
    places = range(len(calls_of(module)))
    made = narrow_floats(module, precision=Precision(bf16, tuple((place, "") for place in places), tuple(places)))
    verify(made)
    return made


def check(module: IRModule, factors: tuple[np.ndarray, np.ndarray], bound: np.ndarray, **arrays: np.ndarray) -> IRModule:
    """The module with all products split, whose results, interpreted and compiled, are as near those in f64 as `bound` says."""
    made = split(module)
    (exact,) = interpret_in_f64(module, arrays).values()
    for found in (run_named(made, arrays), tc.compile(made, threads=1).run(arrays)):
        (result,) = found.values()
        assert result.dtype == np.float32
        assert (np.abs(result - exact) <= LEFT * bound + 1e-30).all()
    return made


@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 1, 5), (7, 40, 33), (33, 64, 16), (3, 0, 2), (0, 8, 4), (20, 257, 3)])
@pytest.mark.parametrize("is_literal", [True, False])
def test_matrices_lose_an_eighth_of_a_thousandth(rows: int, depth: int, columns: int, is_literal: bool) -> None:
    rng = np.random.default_rng([rows, depth, columns])
    x, w = (rng.lognormal(0, 2, shape).astype(np.float32) * rng.choice([-1, 1], shape) for shape in ((rows, depth), (depth, columns)))
    x, w = x.astype(np.float32), w.astype(np.float32)
    b = GraphBuilder()
    rhs: Atom = b.const(w) if is_literal else b.param("w", tensor_type((depth, columns), f32))
    module = module_of(b, b.call("matmul", x_of(b, Var("n"), depth), rhs))

    made = check(module, (x, w), np.abs(x) @ np.abs(w), x=x, **({} if is_literal else {"w": w}))

    assert types_of(made, "matmul") == [f"f32[n, {columns}]"]
    if depth and not is_literal:
        assert types_of(made, "join_terms") == [f"bf16[n, {3 * -(-depth // 32) * 32}]", f"bf16[{3 * -(-depth // 32) * 32}, {columns}]"]


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "strides", "has_bias"),
    [(3, 8, 3, 2, True), (40, 33, 1, 1, True), (64, 32, 3, 1, False), (16, 16, 5, 1, True), (96, 24, 1, 2, False)],
)
def test_convolutions_do_too(channels: int, outputs: int, kernel: int, strides: int, has_bias: bool) -> None:
    x, w, bias = normal(2, channels, 9, 11), normal(outputs, channels, kernel, kernel), 100 * normal(outputs)
    attrs = {"strides": (strides, strides), "pads": (kernel // 2,) * 4}

    def conv(b: GraphBuilder, image: Atom, weights: np.ndarray) -> Atom:
        added = [b.const(np.abs(bias) if (weights >= 0).all() else bias)] if has_bias else []
        return b.call("conv", image, b.const(weights), *added, **attrs)

    b, magnitudes = GraphBuilder(), GraphBuilder()
    module = module_of(b, conv(b, x_of(b, 2, channels, 9, 11), w))
    of_magnitudes = module_of(magnitudes, conv(magnitudes, x_of(magnitudes, 2, channels, 9, 11), np.abs(w)))
    (bound,) = interpret_in_f64(of_magnitudes, {"x": np.abs(x)}).values()

    made = check(module, (x, w), bound, x=x)

    assert types_of(made, "add") == []  # the bias goes into the convolution, in f32


def test_infinities_and_nan_are_what_they_are_in_f32() -> None:
    x = normal(6, 40)
    x[0, 0], x[1, 1], x[2, 2], x[3, 3] = np.inf, -np.inf, np.nan, 3.4e38  # the last is infinite in bf16
    w = np.abs(normal(40, 8)) + np.float32(0.01)
    b = GraphBuilder()
    module = module_of(b, b.call("matmul", x_of(b, 6, 40), b.const(w)))

    (exact,), (found,) = (tc.compile(each, threads=1).run({"x": x}).values() for each in (module, split(module)))

    assert (found[0] == np.inf).all() and (found[1] == -np.inf).all() and np.isnan(found[2]).all() and (found[3] == np.inf).all()
    np.testing.assert_allclose(found[4:], exact[4:], rtol=1e-4)


def test_a_factor_that_is_stored_in_16_bits_has_no_rest_and_one_that_is_exact_neither() -> None:
    b = GraphBuilder()
    exact = normal(64, 64).astype(ml_dtypes.bfloat16).astype(np.float32)
    first = b.call("matmul", x_of(b, 32, 64), b.const(normal(64, 64)))
    module = module_of(b, b.call("matmul", b.call("matmul", first, b.const(normal(64, 64))), b.const(exact)))

    made = narrow_floats(module, precision=Precision(bf16, ((1, ""), (2, "")), (1, 2)))

    assert types_of(made, "join_terms") == ["bf16[32, 128]", "bf16[32, 128]"]  # rounded and finite; rounded and rest
    x = normal(32, 64)
    (found,), (compiled,) = run_named(made, {"x": x}).values(), tc.compile(made, threads=1).run({"x": x}).values()
    np.testing.assert_allclose(compiled, found, rtol=0, atol=1e-5 * np.abs(found).max())


def test_products_of_one_value_share_its_terms() -> None:
    b = GraphBuilder()
    x = x_of(b, 16, 64)
    module = module_of(b, *(b.call("matmul", x, b.const(normal(64, 16 + k))) for k in range(3)))

    assert types_of(split(module), "join_terms") == ["bf16[16, 192]"]


def test_products_that_cannot_be_split_stay_in_f32() -> None:
    b = GraphBuilder()
    x = b.param("x", tensor_type((1, 32, 8, 8), f32))
    infinite = np.full((32, 32, 1, 1), np.inf, np.float32)
    grouped = b.call("conv", x, b.const(normal(32, 16, 1, 1)), groups=2)
    module = module_of(b, grouped, b.call("conv", x, b.const(infinite)), b.call("matmul", x, b.param("v", tensor_type((8,), f32))))

    made = split(module)

    assert types_of(made, "join_terms") == [] and len(types_of(made, "conv")) == 2


def test_the_terms_of_a_literal_are_those_of_a_value() -> None:
    x = np.random.default_rng(0).lognormal(0, 30, (5, 40)).astype(np.float32)
    terms = join_terms(x, bf16, 1, (ROUNDED, REST, FINITE)).astype(np.float64).reshape(5, 3, 64)

    assert (terms[:, :, 40:] == 0).all() and (terms[:, 0] == terms[:, 2]).all()
    np.testing.assert_allclose((terms[:, 0] + terms[:, 1])[:, :40], x, rtol=2.0**-16)


def test_what_is_split_is_faster_by_the_estimate_and_only_where_there_are_tiles() -> None:
    def seconds(target: Target, *shape: int, **attrs: object) -> float:
        b = GraphBuilder()
        rows, depth, columns = shape[:3]
        if attrs:
            x = b.param("x", tensor_type((1, depth, rows, rows), f32))
            y = b.call("conv", x, b.const(normal(columns, depth, *shape[3:])), **attrs)
        else:
            y = b.call("matmul", x_of(b, rows, depth), b.const(normal(depth, columns)))
        (binding,) = module_of(b, y).main.bindings
        found = split_seconds(target, binding)
        assert found <= saved_seconds(target, binding)
        return found

    pads = {"pads": (1, 1, 1, 1)}
    assert seconds(TILES, 200, 192, 768) > 0 and seconds(TILES, 14, 96, 576, 1, 1, pads=(0, 0, 0, 0)) > 0
    assert seconds(Target.parse("x86-64-v4:cores=1"), 200, 192, 768) == 0
    assert seconds(TILES, 1, 480, 120) == 0  # three times the weights for one row
    assert seconds(TILES, 224, 3, 64, 7, 7, strides=(2, 2)) == 0  # rows of three channels
    assert seconds(TILES, 14, 256, 256, 3, 3, **pads) == 0  # Winograd's method
    assert seconds(TILES, 14, 8224, 256, 1, 1, pads=(0, 0, 0, 0)) == 0  # sums of so many terms lose too much


def test_nodes_are_named_by_what_multiplies_them() -> None:
    b = GraphBuilder()
    module = module_of(b, b.call("matmul", x_of(b, 32, 64), b.const(normal(64, 64))))

    (found,) = choose_narrowing(module, Precision(bf16, ((0, "because"),), (0,))).describe(module)

    assert found.said == "bf16x3, stored as f32 (because)"


def test_layouts_are_estimated_for_convolutions_alone() -> None:
    b = GraphBuilder()
    image = b.param("x", tensor_type((1, 64, 28, 28), f32))
    conv = module_of(b, b.call("conv", image, b.const(normal(64, 64, 1, 1))))
    c = GraphBuilder()
    matmul = module_of(c, c.call("matmul", x_of(c, 8, 8), c.const(normal(8, 8))))

    assert 0 < layout_seconds(conv.main, TILES) < 1
    assert layout_seconds(matmul.main, TILES) == float("inf")


@pytest.mark.parametrize("precision", ["bf16x3", " bf16x3 "])
def test_all_products_are_split_where_that_is_asked_for(precision: str) -> None:
    b = GraphBuilder()
    x, w = normal(128, 256), normal(256, 256)
    module = module_of(b, b.call("softmax", b.call("matmul", x_of(b, 128, 256), b.const(w)), axis=-1))

    compiled = tc.compile(module, threads=1, precision=precision)

    (exact,), (found,) = interpret_in_f64(module, {"x": x}).values(), compiled.run({"x": x}).values()
    product, softmax = compiled.report().precisions
    assert np.abs(found - exact).max() < 1e-5
    assert softmax.computed == "f32" and product.said in ("bf16x3, stored as f32", "f32 (no faster as three products of bf16)")
    assert (product.computed == "bf16x3") == Target.of("native").has("amx-bf16")


@pytest.mark.parametrize(("depth", "is_on_tiles"), [(8192, True), (11008, True), (65536 + 32, False)])
def test_long_sums_of_bf16_are_made_on_tiles_as_far_as_their_roundings_stay_below_those_of_factors(depth: int, is_on_tiles: bool) -> None:
    """Of positive numbers, whose sums lose most."""
    rng = np.random.default_rng(depth)
    x, w = rng.uniform(0.5, 1, (40, depth)).astype(np.float32), rng.uniform(0.5, 1, (depth, 32)).astype(np.float32)
    b = GraphBuilder()
    module = module_of(b, b.call("matmul", b.call("identity", x_of(b, 40, depth)), b.const(w)))

    (found,) = tc.compile(module, threads=1, precision="bf16").run({"x": x}).values()

    factors = (each.astype(ml_dtypes.bfloat16).astype(np.float64) for each in (x, w))
    exact = np.matmul(*factors)
    assert (np.abs(found - exact) <= depth * 2.0**-24 * exact).all()
    assert ("tile_dot" in tc.lower(module, stage="scheduled", target=TILES, precision="bf16").as_text()) == is_on_tiles


def test_sums_of_a_symbolic_length_are_split() -> None:
    b, k = GraphBuilder(), Var("k")
    x, w = normal(5, 70), normal(70, 9)
    module = module_of(b, b.call("matmul", x_of(b, Var("n"), k), b.param("w", tensor_type((k, 9), f32))))

    made = check(module, (x, w), np.abs(x) @ np.abs(w), x=x, w=w)

    assert len(types_of(made, "join_terms")) == 2


@pytest.mark.parametrize(
    ("numerics", "is_decoded", "why"),
    [("strict", False, "products are added one by one"), ("default", True, "no faster as three products of bf16")],
)
def test_strict_products_and_those_of_weights_of_fewer_bits_stay_f32_and_say_why(numerics: str, is_decoded: bool, why: str) -> None:
    b, w = GraphBuilder(), normal(1024, 512)
    bytes_ = b.const(np.clip(w * 2000, -127, 127).astype(np.int8))
    weights = b.call("dequantize_linear", bytes_, b.const(np.float32(0.01)), None) if is_decoded else b.const(w)
    module = module_of(b, b.call("matmul", x_of(b, 512, 1024), weights))

    compiled = tc.compile(module, threads=1, precision="bf16x3", numerics=numerics)

    assert f"f32 ({why})" in [each.said for each in compiled.report().precisions]
