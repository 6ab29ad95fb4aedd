"""Choose for each blocked convolution between direct sums and Winograd's, by an estimate of seconds on one core."""

from __future__ import annotations

import numpy as np

from tc.ir.expr import Const
from tc.ir.graph import Atom, Binding, Call, Function, TensorConst
from tc.ir.module import IRModule
from tc.ir.node import replace
from tc.ir.types import TensorType
from tc.ops.build import full_attrs
from tc.ops.winograd import POINTS, transform_weights
from tc.passes.manager import graph_pass

FLOPS_PER_SECOND = 2e11
"""What matrix products and direct convolutions reach on a core."""

WEIGHT_BYTES_PER_SECOND = 1.5e10
"""Weights come from memory once per call."""

NEAR_BYTES, NEAR_BYTES_PER_SECOND, FAR_BYTES_PER_SECOND = 16 << 20, 2.5e10, 1e10
"""Transformed tiles: what fits near the core, and at which rates they are written and read back near and far."""

LEAST_GAIN = 1.1
"""How much faster the estimate must be."""


@graph_pass
def use_winograd(module: IRModule, *, enable: bool = True, largest_tile: int = 2) -> IRModule:
    """Replace `conv_blocked` by `conv_winograd` where that is estimated to be faster: 3x3, stride 1, many channels, static sizes.

    Tiles of 2 round like direct sums. Tiles of 4 need 1.8 times fewer products and err some three times more: in a chain of many
    convolutions that is more than 1e-4 of the result, so they are for those who ask for them.
    """
    if not enable:
        return module
    literals: dict[tuple[TensorConst, int], TensorConst] = {}
    functions = tuple(
        _rewritten(func, literals, largest_tile) if isinstance(func, Function) else func for func in module.functions
    )
    if all(new is old for new, old in zip(functions, module.functions, strict=True)):
        return module
    return IRModule(functions, module.entry)


def _rewritten(func: Function, literals: dict[tuple[TensorConst, int], TensorConst], largest: int) -> Function:
    bindings = tuple(_rewritten_binding(binding, literals, largest) for binding in func.bindings)
    changed = any(new is not old for new, old in zip(bindings, func.bindings, strict=True))
    return replace(func, bindings=bindings) if changed else func


def _rewritten_binding(binding: Binding, literals: dict[tuple[TensorConst, int], TensorConst], largest: int) -> Binding:
    call = binding.value
    bodies = {
        name: _rewritten(body, literals, largest)
        for name in ("then_branch", "else_branch", "body")
        if isinstance(body := getattr(call, name, None), Function)
    }
    if any(body is not getattr(call, name) for name, body in bodies.items()):
        return replace(binding, value=replace(call, **bodies))
    if not isinstance(call, Call) or call.op != "conv_blocked":
        return binding
    tile = choose_tile(call, binding.targets[0].type, largest)
    weights = call.args[1]
    if tile == 0 or not isinstance(weights, TensorConst):
        return binding
    attrs = full_attrs(call)
    own = (("tile", tile), ("pads", attrs.pads), ("in_channels", attrs.in_channels))
    key = (weights, tile)
    if key not in literals:
        literals[key] = TensorConst(_transformed(weights.value, tile), weights.name, span=weights.span)
    args: tuple[Atom | None, ...] = (call.args[0], literals[key], *call.args[2:])
    return replace(binding, value=Call("conv_winograd", args, own, span=call.span))


def _transformed(weights: np.ndarray, tile: int) -> np.ndarray:
    """[a, a, ob, ib, b, b] from [ob, ib, 3, 3, b, b]."""
    return transform_weights(np.moveaxis(weights, (2, 3), (-2, -1)), tile)


def choose_tile(call: Call, result: object, largest: int) -> int:
    """The tile size that is estimated to be fastest; 0 for direct sums, or where Winograd's cannot be used."""
    attrs = full_attrs(call)
    x, w = call.args[0], call.args[1]
    assert x is not None and w is not None and isinstance(w.type, TensorType) and isinstance(result, TensorType)
    plain = attrs.groups == 1 and not attrs.depthwise and attrs.in_block and {*attrs.strides, *attrs.dilations} == {1}
    shape = w.type.static_shape
    if not plain or shape is None or shape[2:4] != (3, 3) or len(shape) != 6 or w.type.dtype.bits != 32:
        return 0
    n, outputs, height, width, block = (dim.value if isinstance(dim, Const) else 0 for dim in result.shape)
    inputs = shape[1]
    if min(n, height, width) < 1 or inputs < 2 or outputs < 2:
        return 0
    channels = inputs * outputs * block * block
    direct = 2.0 * 9 * channels * n * height * width / FLOPS_PER_SECOND + 36 * channels / WEIGHT_BYTES_PER_SECOND
    best, chosen = direct / LEAST_GAIN, 0
    for tile in POINTS:
        down, across, places = -(-height // tile), -(-width // tile), (tile + 2) ** 2
        if down < 2 or across < 2 or tile > largest:
            continue
        tiles = n * down * across
        moved = 4.0 * places * tiles * (inputs + outputs) * block
        rate = NEAR_BYTES_PER_SECOND if moved <= NEAR_BYTES else FAR_BYTES_PER_SECOND
        seconds = 2.0 * places * channels * tiles / FLOPS_PER_SECOND
        seconds += 2 * moved / rate + 4.0 * places * channels / WEIGHT_BYTES_PER_SECOND
        if seconds < best:
            best, chosen = seconds, tile
    return chosen
