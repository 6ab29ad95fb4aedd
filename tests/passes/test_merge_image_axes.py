"""Kernels around pointwise convolutions see images as one row of pixels: the same bits, and no kernel that does more than that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper

import tc
from tc.interp.graph import run_function
from tc.ir.dtype import f32, i64
from tc.ir.expr import Expr, Var
from tc.ir.graph import Attrs, Function, TensorConst, TensorVar
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.passes.graph.fuse_ops import fuse_ops
from tc.passes.graph.merge_image_axes import merge_image_axes
from tests.frontend.models import make_model, node, run_onnxruntime

BLOCK = 4
Epilogue = Callable[[GraphBuilder, TensorVar, TensorVar], TensorVar]


def _conv(b: GraphBuilder, x: TensorVar, rng: np.random.Generator, blocks: int, rank: int, **attrs: object) -> TensorVar:
    """A blocked convolution without a window over [n, 2, *space, 4], or [n, 3, *space]."""
    plain = x.type.rank == rank + 2  # type: ignore[union-attr]
    shape = (blocks, 3, *(1,) * rank, BLOCK) if plain else (blocks, 2, *(1,) * rank, BLOCK, BLOCK)
    kernel = b.const(rng.standard_normal(shape).astype(np.float32))
    form = {"in_channels": 3, "in_block": 0} if plain else {"in_channels": 2 * BLOCK, "in_block": BLOCK}
    full = {"strides": (1,) * rank, "dilations": (1,) * rank, "pads": (0,) * 2 * rank, **form, **attrs}
    bias = b.const(rng.standard_normal((blocks, BLOCK)).astype(np.float32))
    return b.call("conv_blocked", x, kernel, *([bias] if rng.random() < 0.5 else []), **full)


def _scaled(b: GraphBuilder, y: TensorVar, x: TensorVar) -> TensorVar:
    blocks, rank = y.type.shape[1].value, y.type.rank - 3  # type: ignore[union-attr]
    return b.call("mul", y, b.const(np.linspace(-1, 2, blocks * BLOCK, dtype=np.float32).reshape(1, blocks, *(1,) * rank, BLOCK)))


ELEMENTWISE: dict[str, Epilogue] = {
    "nothing": lambda b, y, x: y,
    "relu": lambda b, y, x: b.call("relu", y),
    "residual": lambda b, y, x: b.call("relu", b.call("add", y, x)),
    "for each channel": _scaled,
    "a number": lambda b, y, x: b.call("sub", b.const(np.float32(1.5)), b.call("tanh", y)),
    "a number with axes": lambda b, y, x: b.call("mul", b.call("add", y, b.const(np.full((1, 1), 2, np.float32))), x),
}
"""What is done with the result y of a convolution of x, of as many channels."""


def _upside_down(b: GraphBuilder) -> tuple[TensorConst, TensorConst]:
    return b.const(np.array([0, 0, 4, 0, 0])), b.const(np.array([1, 1, -1, 1, 1]))


OTHERS: dict[str, Epilogue] = {
    "of where it is": lambda b, y, x: b.call("mul", y, b.call("trilu", x, b.const(np.int64(0)), upper=True)),
    "for each column": lambda b, y, x: b.call("mul", y, b.const(np.arange(5, dtype=np.float32)[:, None])),
    "the other way": lambda b, y, x: b.call("transpose", y, perm=(0, 1, 3, 2, 4)),
    "the image upside down": lambda b, y, x: b.call("strided_slice", y, *_upside_down(b), sizes=(2, 2, 5, 5, BLOCK)),
}


def _modules(build: Callable[[GraphBuilder], TensorVar]) -> tuple[IRModule, IRModule]:
    b = GraphBuilder()
    before = fuse_ops(IRModule((b.function("main", (build(b),)),)))
    return before, merge_image_axes(before)


def _ranks(module: IRModule) -> list[int]:
    """The ranks of the results of primitive functions."""
    funcs = [func for func in module.functions if isinstance(func, Function) and Attrs(func.attrs).get("primitive")]
    return sorted(result.type.rank for func in funcs for result in func.results)  # type: ignore[union-attr]


@pytest.mark.parametrize("image", [(5, 7), (1, 1), (1, 6), (6, 1), (0, 3), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("what", ELEMENTWISE)
def test_what_does_the_same_to_each_pixel_sees_one_row(what: str, image: tuple[int, ...]) -> None:
    rng = np.random.default_rng([*what.encode(), *image])
    shape = (2, 2, *image, BLOCK)

    def build(b: GraphBuilder) -> TensorVar:
        x = b.param("x", tensor_type(shape, f32))
        return ELEMENTWISE[what](b, _conv(b, x, rng, 2, len(image)), x)

    before, after = _modules(build)
    x = rng.standard_normal(shape).astype(np.float32)

    assert _ranks(before) == [3 + len(image)]
    assert _ranks(after) == [4]
    np.testing.assert_array_equal(run_function(after, "main", [x])[0], run_function(before, "main", [x])[0])


@pytest.mark.parametrize("what", OTHERS)
def test_what_does_more_than_that_stays(what: str) -> None:
    def build(b: GraphBuilder) -> TensorVar:
        x = b.param("x", tensor_type((2, 2, 5, 5, BLOCK), f32))
        return OTHERS[what](b, _conv(b, x, np.random.default_rng(1), 2, 2), x)

    before, after = _modules(build)

    kept = [func for func in before.functions if func is not before.main and func.name != "conv_blocked"]
    x = np.random.default_rng(2).standard_normal((2, 2, 5, 5, BLOCK)).astype(np.float32)
    assert kept
    assert all(after[func.name] is func for func in kept)
    np.testing.assert_array_equal(run_function(after, "main", [x])[0], run_function(before, "main", [x])[0])


def test_axes_are_not_taken_for_those_of_the_image_by_their_sizes() -> None:
    """Of a result with another rank, whose axes of the same numbers are as long by chance."""

    b = GraphBuilder()
    y = _conv(b, b.param("x", tensor_type((1, 2, BLOCK, BLOCK, BLOCK), f32)), np.random.default_rng(9), 2, 2)
    primitive = b.function("f", (b.call("relu", b.call("reshape", y, shape=(2, BLOCK, BLOCK, BLOCK))),), (("primitive", True),))
    module = IRModule((primitive,), "f")

    assert merge_image_axes(module) is module


@pytest.mark.parametrize("attrs", [{"strides": (2, 1)}, {"pads": (0, 0, 1, 0)}], ids=["strides", "pads"])
def test_convolutions_that_leave_out_pixels_or_add_some_stay(attrs: dict[str, object]) -> None:
    def build(b: GraphBuilder) -> TensorVar:
        return _conv(b, b.param("x", tensor_type((2, 2, 5, 5, BLOCK), f32)), np.random.default_rng(1), 2, 2, **attrs)

    before, after = _modules(build)

    assert after is before


def test_no_view_stands_between_two_kernels_and_literals_have_none() -> None:
    def build(b: GraphBuilder) -> TensorVar:
        x = b.param("x", tensor_type((1, 2, 6, 4, BLOCK), f32))
        rng = np.random.default_rng(3)
        for _ in range(3):
            x = b.call("relu", _conv(b, x, rng, 2, 2))
        return x

    _, after = _modules(build)

    ops = [getattr(binding.value, "op", "kernel") for binding in after.main.bindings]
    assert ops == ["reshape", "kernel", "kernel", "kernel", "reshape"]


def test_a_gate_of_one_pixel_is_broadcast_along_the_row() -> None:
    def build(b: GraphBuilder) -> TensorVar:
        x = b.param("x", tensor_type((2, 2, 3, 5, BLOCK), f32))
        gate = b.param("gate", tensor_type((2, 2, 1, 1, BLOCK), f32))
        return b.call("mul", _conv(b, x, np.random.default_rng(4), 2, 2), gate)

    before, after = _modules(build)
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 2, 3, 5, BLOCK), (2, 2, 1, 1, BLOCK))]

    assert _ranks(after) == [4]
    np.testing.assert_array_equal(run_function(after, "main", arrays)[0], run_function(before, "main", arrays)[0])


def test_images_of_unknown_size_are_rows_of_as_many_pixels() -> None:
    n, h, w = (Var(name, i64) for name in "nhw")

    def build(b: GraphBuilder) -> TensorVar:
        shape: tuple[int | Expr, ...] = (n, 3, h, w)
        return b.call("relu", _conv(b, b.param("x", tensor_type(shape, f32)), np.random.default_rng(6), 2, 2))

    before, after = _modules(build)

    assert _ranks(after) == [4]
    for shape in ((1, 3, 4, 5), (2, 3, 1, 1), (0, 3, 2, 2), (3, 3, 0, 7), (1, 3, 9, 1)):
        x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(run_function(after, "main", [x])[0], run_function(before, "main", [x])[0])


def test_networks_with_branches_run_as_before_them() -> None:
    """Views of results that others read in another way, in the bodies of If, and of what the model returns."""
    rng = np.random.default_rng(8)
    weights = {name: rng.standard_normal((16, 16, 1, 1)).astype(np.float32) for name in "abc"}
    weights["d"] = rng.standard_normal((16, 16, 3, 3)).astype(np.float32)
    branches = [
        helper.make_graph([node("Conv", f"h {name}", "r"), node("Relu", "r", "s")], name, [], [helper.make_empty_tensor_value_info("s")])
        for name in "bc"
    ]
    nodes = [
        node("Conv", "x a", "g"),
        node("Relu", "g", "h"),
        node("If", "p", "y", then_branch=branches[0], else_branch=branches[1]),
        node("Conv", "h d", "z", pads=[1, 1, 1, 1]),
        node("Add", "y z", "u"),
    ]
    model = make_model(nodes, {"x": ("float32", ["n", 16, "h", 6]), "p": ("bool", [])}, ["u", "h"], weights)
    module = tc.compile(model)
    for shape in ((1, 16, 5, 6), (2, 16, 1, 6)):
        for p in (True, False):
            feed = {"x": rng.standard_normal(shape).astype(np.float32), "p": np.array(p)}
            for found, expected in zip(module.run(feed).values(), run_onnxruntime(model, feed), strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
