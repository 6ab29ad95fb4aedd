"""Convolutions on tile registers, run on a model of these: exact for every shape, type and kind of window, and never im2col."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tc.codegen.llvm.emitter import emit_prim_func
from tc.interp import run_prim_func
from tc.ir.dtype import DType, bf16, i8, i32, i64, u8
from tc.ir.expr import Var, cast, const, maximum, minimum
from tc.ir.graph import Attrs
from tc.ir.loop import For, IntrinsicCall, PrimFunc, Stmt
from tc.ir.node import children
from tc.ir.types import DimFact, TensorType, tensor_type
from tc.ir.uses import buffers_written
from tc.ir.x86_intrinsics import is_tile_dot
from tc.ops.blocked import compute_conv_blocked, infer_conv_blocked, reference_conv_blocked
from tc.ops.registry import OPS
from tc.passes.graph.blocked_literals import block_axes, grouped_weights
from tc.passes.loop.intrinsics import select_intrinsics
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.loop.tile_registers import keep_in_tiles
from tc.passes.pipeline import finish_loops
from tc.schedule.knobs import Knob
from tc.schedule.rules import apply_rules
from tc.schedule.rules.window_cost import WindowProduct
from tc.target import Target
from tc.te import Tensor, compute, create_prim_func, placeholder
from tests.codegen import tile_model
from tests.draws import some_of
from tests.ops.kernels import run
from tests.schedule.test_dot_products import numbers
from tests.schedule.test_tile_products import NARROW, WIDE, is_here

CONV = OPS["conv_blocked"]


def attrs_of(channels: int, block: int, **changes: Any) -> Attrs:
    base = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    return CONV.attrs({**base, "in_channels": -(-channels // block) * block, "in_block": block, **changes})


def convolution(x: TensorType, w: TensorType, attrs: Attrs, dims: tuple[Var, ...] = ()) -> PrimFunc:
    """The convolution of an image and weights in blocks, its sums clipped to bytes if they are integers."""
    image, weights = placeholder(x.shape, x.dtype, "X"), placeholder(w.shape, w.dtype, "W")
    type_ = infer_conv_blocked([x, w], attrs)
    total = compute_conv_blocked([image, weights], attrs, [type_])
    facts = tuple(DimFact(dim, 1) for dim in dims[1:])  # of an image; there may be none
    return simplify_loops(create_prim_func("conv", [image, weights], [_clipped(total)], list(dims), facts))


def _clipped(total: Tensor) -> Tensor:
    if total.dtype is not i32:
        return total
    return compute(total.shape, lambda *axes: cast(minimum(maximum(total[axes] // 256 + 128, 0), 255), u8), "clipped")


def expected_of(x: np.ndarray, w: np.ndarray, attrs: Attrs) -> np.ndarray:
    found = reference_conv_blocked([x, w], attrs)
    return np.clip(found // 256 + 128, 0, 255).astype(np.uint8) if found.dtype == np.int32 else found


def compiled(func: PrimFunc, arrays: list[np.ndarray], *dims: int, target: Target = NARROW, decide: Any = None) -> np.ndarray:
    """The result of a kernel, with the model in place of the instructions."""
    if not is_here(target):
        pytest.skip("this CPU lacks the vectors that the code uses beside tiles")
    tile_model.used.clear()
    tile_model.errors.clear()
    scheduled = apply_rules(func, target) if decide is None else apply_rules(func, target, decide)

    result, *_ = run(finish_loops(scheduled.func, threads=2), arrays, dims, target=target)

    assert tile_model.errors == []
    assert tile_model.held() == 0
    return result


def num_products() -> int:
    return sum(count for name, count in tile_model.used.items() if name.startswith("tdp"))


def draw(seed: int) -> tuple[np.ndarray, np.ndarray, Attrs]:
    """An image, packed weights, and the window: of any kind."""
    rng = np.random.default_rng(seed)
    lhs, rhs = (u8 if rng.integers(2) else i8 for _ in range(2))
    groups = int(rng.choice([1, 1, 1, 2]))
    block = int(rng.choice([64, 64, 32, 16]))
    channels, outputs = (int(rng.choice([1, 3, 17, 24, 64, 96, 130])) for _ in range(2))
    if groups > 1:
        channels, outputs = 2 * block, 2 * block
    kernel = tuple(int(size) for size in rng.choice([1, 1, 2, 3, 5], 2))
    strides, dilations = (tuple(int(each) for each in rng.choice([1, 1, 2, 3], 2)) for _ in range(2))
    pads = tuple(int(each) for each in rng.integers(0, 3, 4)) if rng.integers(3) else (0, 0, 0, 0)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    height, width = (int(rng.integers(low, high)) + size for low, high, size in zip((0, 1), (12, 70), reach, strict=True))
    x = block_axes(numbers(rng, (int(rng.choice([1, 1, 2, 3])), channels, height, width), lhs), (1,), block)
    x = x if channels % block == 0 else numbers(rng, x.shape, lhs) | x  # what is past the last channel may be anything
    w = grouped_weights(numbers(rng, (outputs, channels // groups, *kernel), rhs), block, block)
    changes = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "fill": int(numbers(rng, (1,), lhs)[0])}
    return x, w, attrs_of(channels, block, **changes)


DRAWS = list(range(60))


@pytest.mark.parametrize("seed", some_of(DRAWS, quick=DRAWS[:6]))
def test_convolutions_of_bytes_are_exact(seed: int) -> None:
    x, w, attrs = draw(seed)
    func = convolution(tensor_type(x.shape, _dtype(x)), tensor_type(w.shape, _dtype(w)), attrs)

    result = compiled(func, [x, w])

    np.testing.assert_array_equal(result, expected_of(x, w, attrs))
    assert num_products() or result.shape[3] == 1 or _is_small(result, w, attrs)


def _run_on(knob: Knob) -> object:
    return True if knob.name.endswith("/runs_on") else knob.default


@pytest.mark.parametrize("seed", some_of(DRAWS, quick=DRAWS[:6]))
def test_tiles_may_run_on_across_the_ends_of_rows(seed: int) -> None:
    """Whatever lies between the rows, and behind the last: also where it does not pay."""
    x, w, attrs = draw(seed)
    func = convolution(tensor_type(x.shape, _dtype(x)), tensor_type(w.shape, _dtype(w)), attrs)

    result = compiled(func, [x, w], decide=_run_on)

    np.testing.assert_array_equal(result, expected_of(x, w, attrs))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_nan_reaches_no_sum_of_another_row(stride: int) -> None:
    rng = np.random.default_rng(stride)
    x = rng.standard_normal((2, 1, 9, 7, 32)).astype(ml_dtypes.bfloat16)
    x[0, 0, 4, 6, 3] = x[1, 0, 0, 0, 0] = np.nan
    w = grouped_weights(rng.standard_normal((32, 32, 3, 3)).astype(ml_dtypes.bfloat16), 32, 32)
    attrs = attrs_of(32, 32, strides=(stride, stride), pads=(1, 1, 1, 1))

    with np.errstate(all="ignore"):  # of sums that nobody reads
        result = compiled(convolution(tensor_type(x.shape, bf16), tensor_type(w.shape, bf16), attrs), [x, w], decide=_run_on)

    assert num_products()
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected_of(x, w, attrs)))


@pytest.mark.covering
@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize(("stride", "pad"), [(1, 1), (2, 1), (2, 0)])
def test_tiles_run_on_in_any_number_of_images(n: int, stride: int, pad: int) -> None:
    dim, rng = Var("n", i64), np.random.default_rng(n)
    w = grouped_weights(numbers(rng, (64, 64, 3, 3), i8), 64, 64)
    attrs = attrs_of(64, 64, strides=(stride, stride), pads=(pad,) * 4, fill=3)
    func = convolution(TensorType((dim, *map(const, (1, 9, 8, 64))), u8), tensor_type(w.shape, i8), attrs, (dim,))
    x = numbers(rng, (n, 1, 9, 8, 64), u8)

    result = compiled(func, [x, w], n, decide=_run_on)

    np.testing.assert_array_equal(result, expected_of(x, w, attrs))
    assert (num_products() > 0) == (n > 0)


def _dtype(array: np.ndarray) -> DType:
    return {np.dtype(np.uint8): u8, np.dtype(np.int8): i8, np.dtype(ml_dtypes.bfloat16): bf16}[array.dtype]


def _is_small(result: np.ndarray, w: np.ndarray, attrs: Attrs) -> bool:
    """Whether vectors take fewer cycles."""
    n, blocks, height, width, lanes = result.shape
    if not any(attrs.pads) and {*attrs.strides} == {1} and w.shape[2:4] == (1, 1):
        height, width = 1, height * width
    steps = int(np.prod(w.shape[1:4]))
    taps = int(np.prod(w.shape[2:4]))
    return not WindowProduct(n, height, width, blocks * lanes, lanes, steps, attrs.in_block, u8, taps).pays(NARROW)


@pytest.mark.covering
@pytest.mark.parametrize("window", [(3, 1, 1), (1, 1, 0), (3, 2, 1), (1, 2, 0)], ids=str)
@pytest.mark.parametrize("channels", [32, 96])
def test_convolutions_of_bf16_are_summed_in_f32(window: tuple[int, int, int], channels: int) -> None:
    (taps, stride, pad), rng = window, np.random.default_rng(channels)
    x = rng.standard_normal((2, channels // 32, 11, 19, 32)).astype(ml_dtypes.bfloat16)
    w = grouped_weights(rng.standard_normal((48, channels, taps, taps)).astype(ml_dtypes.bfloat16), 32, 32)
    attrs = attrs_of(channels, 32, strides=(stride, stride), pads=(pad,) * 4)

    with np.errstate(all="ignore"):  # of sums that nobody reads
        result = compiled(convolution(tensor_type(x.shape, bf16), tensor_type(w.shape, bf16), attrs), [x, w]).astype(np.float64)

    wide, size = (reference_conv_blocked([f(each.astype(np.float64)) for each in (x, w)], attrs) for f in (np.asarray, np.abs))
    assert num_products()
    np.testing.assert_array_less(np.abs(result - wide), 2.0**-8 * np.abs(wide) + channels * taps**2 * 2.0**-24 * size + 1e-30)


@pytest.mark.covering
@pytest.mark.parametrize("sizes", [(1, 5, 3), (2, 9, 15), (1, 7, 16), (3, 1, 33), (1, 20, 70), (0, 4, 20)], ids=str)
@pytest.mark.parametrize("window", [(3, 1, 1), (1, 1, 0), (3, 2, 1)], ids=str)
def test_images_of_any_size(sizes: tuple[int, int, int], window: tuple[int, int, int]) -> None:
    (n, height, width), (taps, stride, pad), rng = sizes, window, np.random.default_rng(0)
    dims = tuple(Var(name, i64) for name in "nhw")
    w = grouped_weights(numbers(rng, (70, 64, taps, taps), i8), 64, 64)
    attrs = attrs_of(64, 64, strides=(stride, stride), pads=(pad,) * 4, fill=7)
    image = TensorType((dims[0], const(1), *dims[1:], const(64)), u8)
    func = convolution(image, tensor_type(w.shape, i8), attrs, dims)
    x = numbers(rng, (n, 1, height, width, 64), u8)

    result = compiled(func, [x, w], n, height, width)

    np.testing.assert_array_equal(result, expected_of(x, w, attrs))
    pixels = height * width if taps == 1 else (width + 2 * pad - taps) // stride + 1
    assert (num_products() > 0) == (n > 0 and pixels >= 16)


@pytest.mark.parametrize("grid", WindowProduct(1, 9, 40, 128, 64, 9, 64, u8).grids(), ids=str)
def test_every_grid_of_tiles_gives_the_same(grid: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    x, w = numbers(rng, (1, 1, 9, 40, 64), u8), grouped_weights(numbers(rng, (128, 64, 3, 3), i8), 64, 64)
    attrs = attrs_of(64, 64, pads=(1, 1, 1, 1))

    def decide(knob: Knob) -> object:
        return grid if knob.name.endswith("/tile_grid") else knob.default

    result = compiled(convolution(tensor_type(x.shape, u8), tensor_type(w.shape, i8), attrs), [x, w], decide=decide)

    np.testing.assert_array_equal(result, expected_of(x, w, attrs))
    assert num_products() == WindowProduct(1, 9, 40, 128, 64, 9, 64, u8).tiles(grid) * np.prod(grid) * 9


@pytest.mark.covering
@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("bands", [1, 2, 4])
def test_every_order_of_loops_gives_the_same(order: str, bands: int) -> None:
    rng = np.random.default_rng(0)
    x, w = numbers(rng, (2, 2, 8, 20, 64), i8), grouped_weights(numbers(rng, (128, 128, 3, 2), u8), 64, 64)
    attrs = attrs_of(128, 64, pads=(1, 1, 1, 1), fill=-9)

    def decide(knob: Knob) -> object:
        known = {"outermost": order, "band_tiles": bands, "tile_grid": (1, 2, 2)}
        return known.get(knob.name.rpartition("/")[2], knob.default)

    result = compiled(convolution(tensor_type(x.shape, i8), tensor_type(w.shape, u8), attrs), [x, w], decide=decide)

    np.testing.assert_array_equal(result, expected_of(x, w, attrs))


def test_what_runs_is_what_the_interpreter_says() -> None:
    x, w, attrs = draw(5)
    func = convolution(tensor_type(x.shape, _dtype(x)), tensor_type(w.shape, _dtype(w)), attrs)
    small = apply_rules(func, NARROW).func

    np.testing.assert_array_equal(run_prim_func(small, [x, w])[0], expected_of(x, w, attrs))


def counted(func: PrimFunc, target: Target) -> tuple[int, int, int]:
    """How many products, loads and stores of tiles a run of a kernel makes."""
    found: Counter[str] = Counter()

    def visit(stmt: Stmt, times: int) -> None:
        if isinstance(stmt, IntrinsicCall):
            kind = "dot" if is_tile_dot(stmt.name) else "_".join(stmt.name.split(".")[0].split("_")[1:])
            found[kind] += times
        elif isinstance(stmt, For):
            visit(stmt.body, times * int(stmt.extent.value))
        else:
            for child in children(stmt):
                if isinstance(child, Stmt):
                    visit(child, times)

    visit(keep_in_tiles(select_intrinsics(func, target.features)).body, 1)
    return found["dot"], found["load"], found["store"]


COUNTS = [
    # channels, outputs, size, taps, stride: products of tiles, loads, stores; sixteen rows of sixteen sums of 64 terms each
    ((64, 64, 56, 3, 1), (56 * 4 * 4 * 9, 56 * 4 * 4 * 9, 56 * 4 * 4)),  # tiles of 14 pixels, two by two
    ((256, 64, 56, 1, 1), (196 * 4 * 4, 196 * 4 * 4 * 5 // 4, 196 * 4)),  # of 16, over the ends of rows, each loaded for four of weights
    ((512, 512, 7, 3, 1), (4 * 32 * 72, 4 * 32 * 72 * 5 // 4, 4 * 32)),  # of 16, over the ends of rows and what pads them
    ((512, 512, 14, 3, 2), (4 * 32 * 72, 4 * 32 * 72 * 5 // 4, 4 * 32)),  # of 14, of every second pixel in a copy
    ((64, 128, 56, 3, 2), (28 * 2 * 8 * 9, 28 * 2 * 8 * 9, 28 * 2 * 8)),  # of every second pixel
]


@pytest.mark.parametrize(("sizes", "counts"), COUNTS, ids=str)
def test_products_are_as_few_as_tiles_allow_and_pixels_are_loaded_in_place(
    sizes: tuple[int, int, int, int, int], counts: tuple[int, int, int]
) -> None:
    channels, outputs, size, taps, stride = sizes
    x = tensor_type((1, channels // 64, size, size, 64), u8)
    w = tensor_type((outputs // 64, channels // 64, taps, taps, 16, 64, 4), i8)
    attrs = attrs_of(channels, 64, pads=(taps // 2,) * 4, strides=(stride, stride))

    final = finish_loops(apply_rules(convolution(x, w, attrs), WIDE).func, threads=1)

    assert counted(final, WIDE) == counts
    names = {buffer.name for buffer in buffers_written(final.body)}
    assert not any("lhs" in name or "rhs" in name for name in names), "no windows are copied"


def _ahead(func: PrimFunc) -> list[int]:
    """How many bytes ahead loops of a kernel fetch."""
    found: list[int] = []

    def visit(node: Stmt) -> None:
        if isinstance(node, For) and node.hints.prefetch is not None:
            found.append(node.hints.prefetch.ahead_bytes)
        for child in children(node):
            if isinstance(child, Stmt):
                visit(child)

    visit(func.body)
    return found


def test_weights_that_come_from_memory_are_fetched_a_row_of_a_tile_at_a_time() -> None:
    attrs = attrs_of(256, 64, pads=(1, 1, 1, 1))
    func = convolution(tensor_type((1, 4, 7, 7, 64), u8), tensor_type((4, 4, 3, 3, 16, 64, 4), i8), attrs)

    final = finish_loops(apply_rules(func, WIDE).func, threads=1)
    text = emit_prim_func(final, "conv", WIDE.features).ir_text
    tiles = {line.split("ptr ")[1].split(",")[0] for line in text.splitlines() if "tileloadd64" in line and "call" in line}

    assert len(_ahead(final)) == 1
    assert text.count("call void @llvm.prefetch") == 16 * 9, "sixteen rows of weights for each of nine taps"
    assert len(tiles) > 9


def test_weights_that_stay_in_a_cache_are_not_fetched_ahead() -> None:
    small = convolution(
        tensor_type((1, 1, 7, 7, 64), u8), tensor_type((1, 1, 3, 3, 16, 64, 4), i8), attrs_of(64, 64, pads=(1, 1, 1, 1))
    )
    many = convolution(
        tensor_type((1, 4, 56, 56, 64), u8), tensor_type((4, 4, 3, 3, 16, 64, 4), i8), attrs_of(256, 64, pads=(1, 1, 1, 1))
    )

    for func in (small, many):
        assert _ahead(finish_loops(apply_rules(func, WIDE).func, threads=1)) == []


def test_a_few_channels_of_a_block_are_summed_by_an_instruction_on_vectors() -> None:
    """Sixteen of 64, one pixel at a time: they lie as words of four terms do, which is no reason to copy them into tiles."""
    rng = np.random.default_rng(0)
    x, w = numbers(rng, (1, 1, 55, 55, 64), u8), grouped_weights(numbers(rng, (64, 16, 1, 1), i8), 64, 64)
    attrs = attrs_of(16, 64, in_channels=16)
    func = convolution(tensor_type(x.shape, u8), tensor_type(w.shape, i8), attrs)

    result = compiled(func, [x, w], target=WIDE)

    assert "vpdpbusd" in emit_prim_func(finish_loops(apply_rules(func, WIDE).func, threads=1), "conv", WIDE.features).ir_text
    np.testing.assert_array_equal(result, expected_of(x, w, attrs))
