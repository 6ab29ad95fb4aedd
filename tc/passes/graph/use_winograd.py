"""Choose for each blocked convolution between direct sums and Winograd's, by an estimate of seconds on one core."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tc.cost.rates import USUAL_TARGET, kernel_rates
from tc.cost.typical import USUAL_IMAGE, typical_dims
from tc.ir.arith import Facts, bounds, evaluate
from tc.ir.graph import Atom, Binding, Call, Function, TensorConst, constants_of, map_bodies
from tc.ir.module import IRModule
from tc.ir.node import replace
from tc.ir.types import TensorType
from tc.ops.build import GraphBuilder, full_attrs, operand_types
from tc.ops.winograd import POINTS, by_taps, has_fitting_window, transform_weights, weights_matrix
from tc.passes.graph.knobs import knob_of_call
from tc.passes.graph.tile_layout import multiplies_on_tiles, seconds_of, window_product
from tc.passes.manager import graph_pass, map_graph_functions
from tc.schedule.knobs import Decide, decide_number, take_default
from tc.schedule.rules.winograd_cost import WEIGHTS_OF_L2, WinogradShape
from tc.target import Target
from tc.target.machine import machine_of

LEAST_GAIN = 1.15
"""How much faster the estimate must be."""

PLAIN_RANK, PAIRED_RANK = 4, 5
"""Dims beside the kernel's, of weights, and of those whose terms lie in pairs for instructions that add two products of bf16."""

IMAGE_RANK = 5
"""Dims of blocked images, [n, ob, h, w, b]."""

MOST_GROWTH = 4
"""How many times as large weights become at most: thirty-six numbers for nine."""


@graph_pass
def use_winograd(
    module: IRModule, *, enable: bool = True, target: Target = USUAL_TARGET, decide: Decide = take_default
) -> IRModule:
    """Replace `conv_blocked` by `conv_winograd` where that is estimated to be faster: 3x3, stride 1, many channels;
    of more axes the last two, each tap along the others being as many channels more.

    Tiles of 2 and of 4 round like direct sums; see `tc.ops.winograd` for the errors.
    `decide` says it for each convolution; the pass's own answer is the estimate's.
    """
    if not enable:
        return module
    return map_graph_functions(module, _Rewriter(target, decide, _weights_stay(module, target)).function)


def _weights_stay(module: IRModule, target: Target) -> bool:
    """Whether a run leaves all weights of a small model in the second-level cache for the next, transformed ones included."""
    values = {id(each.value): each.value.nbytes for func in module.graph_functions for each in constants_of(func)}
    return MOST_GROWTH * sum(values.values()) <= WEIGHTS_OF_L2 * target.l2_bytes


class _Rewriter:
    """Replaces convolutions; remembers transformed weights, which several may share."""

    def __init__(self, target: Target, decide: Decide, weights_stay: bool) -> None:
        self.target, self.decide, self.weights_stay = target, decide, weights_stay
        self.literals: dict[tuple[TensorConst, int], TensorConst] = {}

    def function(self, func: Function) -> Function:
        facts = Facts.of(func.facts)
        bindings = tuple(made for binding in func.bindings for made in self._bindings(binding, facts))
        changed = len(bindings) != len(func.bindings) or any(new is not old for new, old in zip(bindings, func.bindings, strict=True))
        return replace(func, bindings=bindings) if changed else func

    def _bindings(self, binding: Binding, facts: Facts) -> list[Binding]:
        binding = replace(binding, value=map_bodies(binding.value, self.function))
        call = binding.value
        if not isinstance(call, Call) or call.op != "conv_blocked":
            return [binding]
        result = binding.targets[0].type
        assert isinstance(result, TensorType), "a convolution makes a tensor"
        if len(result.shape) < IMAGE_RANK:
            return [binding]
        sizes = _sizes(result, facts)
        tiles = legal_tiles(call, sizes)
        if not tiles:
            return [binding]
        default = choose_tile(call, tiles, sizes, self.target, self.weights_stay)
        tile = decide_number(self.decide, knob_of_call(call, "use_winograd", (0, *tiles), default))
        if not tile:
            return [binding]
        attrs, builder = full_attrs(call), GraphBuilder()
        args = (call.args[0], self._weights(call.args[1], tile, len(attrs.strides), builder), *call.args[2:])
        own = (("tile", tile), ("pads", attrs.pads), ("in_channels", attrs.in_channels), *_outer_window(call))
        return [*builder.bindings, replace(binding, value=Call("conv_winograd", args, own, span=call.span))]

    def _weights(self, weights: Atom | None, tile: int, rank: int, builder: GraphBuilder) -> Atom:
        """Transformed weights: at compile time, or in each call by what `builder` binds."""
        if not isinstance(weights, TensorConst):
            return builder.call("winograd_weights", weights, builder.const(weights_matrix(tile)), tile=tile)
        key = (weights, tile)
        if key not in self.literals:
            self.literals[key] = TensorConst(_transformed(weights.value, tile, rank), weights.name, span=weights.span)
        return self.literals[key]


def _outer_window(call: Call) -> list[tuple[str, tuple[int, ...]]]:
    """The window along the axes before the last two, as attributes of `conv_winograd`; of images none, which have no such axes."""
    attrs, kernel = full_attrs(call), _kernel(call)[:-2]
    outer = (("kernel", kernel), ("strides", attrs.strides[:-2]), ("dilations", attrs.dilations[:-2]))
    return [*outer] if kernel else []


def _kernel(call: Call) -> tuple[int, ...]:
    """Of weights with a static shape, the taps along each spatial axis."""
    (w,) = operand_types(call)[1:2]
    assert isinstance(w, TensorType) and w.static_shape is not None
    return w.static_shape[2 : 2 + len(full_attrs(call).strides)]


def _transformed(weights: np.ndarray, tile: int, rank: int) -> np.ndarray:
    """[a, a, ob, taps * ib, b, b] from [ob, ib, *outer, 3, 3, b, b], or from pairs of terms [ob, ib, *outer, 3, 3, b / 2, b, 2]."""
    if weights.ndim == rank + PAIRED_RANK:
        weights = weights.swapaxes(-1, -2).reshape(*weights.shape[:-3], -1, weights.shape[-2])
    return transform_weights(np.moveaxis(by_taps(weights), (2, 3), (-2, -1)), tile)


def legal_tiles(call: Call, sizes: Sequence[int]) -> tuple[int, ...]:
    """The tile sizes that Winograd's method can use for a `conv_blocked` with a result of these sizes: none for other windows, strides,
    groups."""
    attrs = full_attrs(call)
    w, rank = call.args[1], len(attrs.strides)
    assert w is not None and isinstance(w.type, TensorType)
    shape = w.type.static_shape
    plain = not attrs.depthwise and attrs.in_block and attrs.dtype is None
    if not plain or shape is None or not has_fitting_window(shape[2 : 2 + rank], attrs):
        return ()
    if len(shape) - rank not in (PLAIN_RANK, PAIRED_RANK) or not w.type.dtype.is_float:
        return ()
    taps = math.prod(_kernel(call)[:-2])
    if taps > 1 and attrs.in_channels % attrs.in_block:  # with whole blocks for each tap alone the sum is one of so many channels
        return ()
    samples, _, height, width, _ = sizes
    if min(samples, height, width) < 1 or shape[1] * taps < 2 or shape[0] * samples < 2:
        return ()
    return tuple(tile for tile in POINTS if min(-(-height // tile), -(-width // tile)) >= 2)


def choose_tile(
    call: Call, tiles: Sequence[int], sizes: Sequence[int], target: Target = USUAL_TARGET, weights_stay: bool = False
) -> int:
    """Of the legal tile sizes the one that is estimated to be fastest; 0 for direct sums."""
    w = call.args[1]
    assert w is not None and isinstance(w.type, TensorType)
    shape = w.type.static_shape
    assert shape is not None, "legal tiles have static weights"
    kernel = _kernel(call)
    inputs = shape[1] * math.prod(kernel[:-2])
    seconds = {tile: _seconds(tile, inputs, sizes, target, weights_stay) for tile in (0, *tiles)}
    if len(shape) - len(kernel) == PAIRED_RANK:  # of half the bytes, too
        seconds[0] /= max(machine_of(target).bf16_dots_per_fma, 1.0)
        if multiplies_on_tiles(target):
            seconds[0] = min(seconds[0], seconds_of(window_product(sizes, inputs, 9, w.type.dtype), target))
    if not isinstance(w, TensorConst):
        channels_of_blocks = shape[0] * inputs * shape[-2] * shape[-1]
        for tile in tiles:
            seconds[tile] += 4 * ((tile + 2) ** 2 + 9) * channels_of_blocks / kernel_rates(target).weight_bytes_per_second
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < seconds[0] / LEAST_GAIN else 0


def _sizes(result: TensorType, facts: Facts) -> tuple[int, ...]:
    """The sizes [n, ob, h, w, b] of a result [n, ob, *outer, h, w, b], whose planes are samples; where they are symbolic, the fewest
    samples, and the sizes for large images."""
    samples, *others = result.shape
    large = typical_dims(others, facts, USUAL_IMAGE)
    blocks, *outer, height, width, block = (evaluate(dim, large) for dim in others)
    return max(bounds(samples, facts).lo or 1, 1) * math.prod(outer), blocks, height, width, block


def _seconds(tile: int, inputs: int, result: Sequence[int], target: Target, weights_stay: bool = False) -> float:
    """On one core, for a result [n, ob, h, w, b] of `inputs` blocks of channels, with tiles of this size, or by direct sums (0)."""
    n, outputs, height, width, block = result
    if tile:
        rows, across = -(-height // tile), -(-width // tile)
        shape = WinogradShape(tile, n, inputs, outputs, rows, across, block, target.lanes(32), machine_of(target), weights_stay)
        l2_bytes, registers = target.l2_bytes, target.num_vector_registers
        return shape.seconds(shape.best_height(l2_bytes, registers, 1), l2_bytes, registers)
    channels = inputs * outputs * block * block
    flops = 2.0 * 9 * channels * n * height * width
    reached = kernel_rates(target)
    read = reached.l2_bytes_per_second if weights_stay else reached.weight_bytes_per_second
    return flops / reached.flops_per_second + 36 * channels / read
