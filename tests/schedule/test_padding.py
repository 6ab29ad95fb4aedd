"""`skip_padding`: sums leave out iterations that would add padding alone, and rules do so where much of a sum is padding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.dtype import f32
from tc.ir.expr import Expr, Var, const, equal, logical_and, select
from tc.ir.loop import If, PrimFunc
from tc.ir.node import walk
from tc.ir.verify import verify
from tc.passes.loop.lower_blocks import lower_blocks
from tc.passes.loop.partition_loops import partition_loops
from tc.passes.loop.simplify_loops import simplify_loops
from tc.schedule.step import Schedule
from tc.te import Tensor, compute, create_prim_func, placeholder, reduce


def dilated(size: int | Var = 8, taps: int = 3, dilation: int = 4, pad: Callable[[Tensor, Expr], Expr] | None = None) -> PrimFunc:
    """A convolution along a row with `dilation` pixels of padding on each side."""
    x, w = placeholder((size,), f32, "X"), placeholder((taps,), f32, "W")

    def inside(i: Expr) -> Expr:
        return select(logical_and(i >= dilation, i < dilation + size), x[(i - dilation,)], const(0.0, f32))

    padded = compute((size + 2 * dilation,), inside if pad is None else lambda i: pad(x, i), "pad")
    y = reduce("sum", (size,), (taps,), lambda i, k: padded[(i + k * dilation,)] * w[(k,)], "conv")
    z = compute((size,), lambda i: y[(i,)] * 2.0, "twice")
    return create_prim_func("dilated", [x, w], [z], (size,) if isinstance(size, Var) else ())


def started(func: PrimFunc, tile: int = 4) -> Schedule:
    """Tiles of the row inside the loop over taps."""
    s = Schedule(func)
    outer, inner = s.split("i_1", tile)
    s.reorder(outer, "ri", inner)
    s.decompose_reduction("conv", "ri")
    return s


def test_tiles_of_padding_alone_are_left_out() -> None:
    func = dilated()
    s = started(func)
    s.skip_padding("conv")
    verify(s.func)
    (guard,) = [node for node in walk(s.func.body) if isinstance(node, If)]
    assert "conv_inside" in str(guard.condition)
    x, w = np.arange(8, dtype=np.float32), np.array([2.0, 3.0, 5.0], np.float32)
    want = run_prim_func(func, [x, w], ())
    np.testing.assert_array_equal(run_prim_func(s.func, [x, w], ()), want)
    lowered = simplify_loops(partition_loops(simplify_loops(lower_blocks(s.func))))
    np.testing.assert_array_equal(run_prim_func(lowered, [x, w], ()), want)
    w[0] = np.inf  # of the first tile this tap meets padding alone
    (got,) = run_prim_func(s.func, [x, w], ())
    assert np.isfinite(got[:4]).all() and not np.isfinite(got[4:]).any()


@pytest.mark.parametrize("n", [1, 2, 7, 8, 20])
def test_of_a_symbolic_row_too(n: int) -> None:
    func = dilated(Var("n"))
    s = started(func)
    s.skip_padding("conv")
    verify(s.func)
    rng = np.random.default_rng(n)
    arrays = [rng.integers(-9, 9, n).astype(np.float32), rng.integers(-9, 9, 3).astype(np.float32)]
    np.testing.assert_array_equal(run_prim_func(s.func, arrays, (n,)), run_prim_func(func, arrays, (n,)))


def test_zeros_between_pixels_are_padding() -> None:
    """What a stride of a transposed convolution puts there: a condition that is no comparison of sizes."""
    func = dilated(8, 3, 1, lambda x, i: select(equal(i % 2, 0), x[(i // 2,)], const(0.0, f32)))
    s = Schedule(func)
    s.decompose_reduction("conv", "ri")
    s.skip_padding("conv")
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-9, 9, 8).astype(np.float32), rng.integers(-9, 9, 3).astype(np.float32)]
    np.testing.assert_array_equal(run_prim_func(s.func, arrays, ()), run_prim_func(func, arrays, ()))


ILLEGAL: list[tuple[Callable[[], Schedule], str, str]] = [
    (lambda: Schedule(dilated()), "conv", "block conv initialises what it sums"),
    (lambda: started(dilated()), "twice", "block twice is not a sum"),
    (lambda: started(dilated()), "pad", "block pad is not a sum"),
    (lambda: started(dilated(pad=lambda x, i: x[(i % 8,)])), "conv", "is padding alone"),
    (lambda: started(dilated(pad=lambda x, i: select(i < 4, x[(i % 8,)], const(1.0, f32)))), "conv", "is padding alone"),
    (lambda: started(dilated(pad=lambda x, i: select(x[(i % 8,)] < 4.0, x[(i % 8,)], const(0.0, f32)))), "conv", "is padding alone"),
]


@pytest.mark.parametrize(("make", "block", "message"), ILLEGAL)
def test_what_leaves_nothing_out(make: Callable[[], Schedule], block: str, message: str) -> None:
    s = make()
    before = s.func
    with pytest.raises(ScheduleError, match=message):
        s.skip_padding(block)
    assert s.func is before


# -- the rule


def convolution(rng: np.random.Generator, symbolic: bool = False) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A convolution over one to three dims, whose windows reach far into padding."""
    dims = int(rng.integers(1, 4))
    groups = int(rng.choice([1, 1, 2]))
    channels, filters = (groups * int(rng.choice([1, 3, 8, 16, 24])) for _ in range(2))
    sizes = [int(rng.integers(1, {1: 60, 2: 20, 3: 8}[dims])) for _ in range(dims)]
    taps = [int(rng.integers(1, 5)) for _ in range(dims)]
    dilations = [int(rng.integers(1, 7)) for _ in range(dims)]
    reach = [(tap - 1) * dilation for tap, dilation in zip(taps, dilations, strict=True)]
    before = [int(rng.integers(0, most + 3)) for most in reach]
    after = [max(int(rng.integers(0, most + 3)), most + 1 - size - low) for most, size, low in zip(reach, sizes, before, strict=True)]
    strides = [int(rng.integers(1, 4)) for _ in range(dims)]
    batch = int(rng.integers(1, 3))
    weights = rng.integers(-4, 5, (filters, channels // groups, *taps)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[*before, *after], strides=strides, dilations=dilations, group=groups)
    shape = ["n", channels, *(f"s{k}" for k in range(dims))] if symbolic else [batch, channels, *sizes]
    x, y = (helper.make_tensor_value_info(*each) for each in (("x", TensorProto.FLOAT, shape), ("y", TensorProto.FLOAT, None)))
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model, {"x": rng.integers(-4, 5, (batch, channels, *sizes)).astype(np.float32)}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_convolutions_over_much_padding(seed: int, symbolic: bool) -> None:
    model, feeds = convolution(np.random.default_rng([seed, 91]), symbolic)
    (want,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    (got,) = tc.compile(model, threads=1, verify="never").run(feeds).values()
    np.testing.assert_array_equal(got, want)


def far_taps(numerics: str) -> np.ndarray:
    """A 3x3 convolution whose outer taps are infinite and meet nothing but padding."""
    weights = np.full((64, 64, 3, 3), np.inf, np.float32)
    weights[:, :, 1, 1] = 1.0
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[20] * 4, dilations=[20, 20])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64, 7, 7]) for name in "xy")
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (result,) = tc.compile(model, threads=1, numerics=numerics).run({"x": np.ones((1, 64, 7, 7), np.float32)}).values()
    return np.asarray(result)


def test_strict_numerics_add_padding() -> None:
    assert np.isnan(far_taps("strict")).all()
    np.testing.assert_array_equal(far_taps("default"), np.full((1, 64, 7, 7), 64.0))


@pytest.mark.parametrize("code", [TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.UINT32])
def test_products_of_matrices_have_no_padding_and_stay_tiled(code: int) -> None:
    """Sums of integers stand the other way round, product first, and were refused for it, with the whole rule."""
    infos = [helper.make_tensor_value_info(name, code, shape) for name, shape in (("a", [70, 40]), ("b", [40, 90]))]
    y = helper.make_tensor_value_info("y", code, None)
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "g", infos, [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    assert "scope='register'" in tc.lower(model, "scheduled", target="x86-64-v4").as_text()
