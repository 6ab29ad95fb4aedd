"""Transposed convolutions of dequantized tensors as ordinary ones of such: those of all phases of the stride, side by side.

A tap that a phase has not is its channel's zero point. Sums are then those of integers, as those of any convolution are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tc.ir.dtype import u8
from tc.ir.graph import Atom, TensorConst
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder, full_attrs
from tc.passes.graph.quantized import BYTES, Quantized, dequantized_from
from tc.passes.graph.rewrite import GraphRule, Match, any_, op
from tc.passes.graph.split_phases import (
    for_all_phases,
    interleave,
    phase_attrs,
    phase_axes,
    phase_channels,
    phase_weights,
)

BLOCK = 16
"""Channels of the narrowest blocks that bytes lie in."""


def _phases(b: GraphBuilder, m: Match) -> Atom | None:
    call, attrs = m.call("conv"), m.attrs("conv")
    x, w = dequantized_from(m, m.x), dequantized_from(m, m.w)
    if x is None or w is None or not {x.dtype, w.dtype} <= set(BYTES) or x.axis is not None or w.axis not in (None, 1):
        return None
    shape = w.type.static_shape
    if not isinstance(w.value, TensorConst) or not shape or not all(shape):
        return None
    result = m.type_of("conv")
    strides, axes = phase_axes(attrs, shape, x.type, result)
    channels = phase_channels(shape[1], BLOCK, attrs.groups)
    more = (0, channels - shape[1])

    def repeat(values: np.ndarray, are_scales: bool) -> np.ndarray:
        own = np.pad(values, more, "edge" if are_scales else "constant") if channels > shape[1] else values
        return for_all_phases(own, strides, attrs.groups)

    bias = call.args[2] if len(call.args) > 2 else None
    term = None if bias is None else _repeated(b, m, bias, repeat)
    if axes is None or (bias is not None and term is None):
        return None
    zeros = w.zero.reshape(-1) if w.axis is None else np.pad(w.zero, more)
    numbers = phase_weights(w.value.value, axes, strides, channels, zeros, attrs.groups)
    own = w
    if w.axis is not None:  # channels of all groups have the parameters of the first
        count = attrs.groups * int(np.prod(strides))
        own = Quantized(w.value, np.tile(np.pad(w.scale, more, "edge"), count), np.tile(zeros, count), 0)
    kernels = own.dequantized(b, b.const(numbers), own.axis)
    phases = b.call("conv", m.x, kernels, term, **phase_attrs(axes, attrs.groups), span=call.span)
    return interleave(b, phases, axes, strides, channels, result, call.span, attrs.groups)


def _repeated(b: GraphBuilder, m: Match, bias: Atom, repeat: Callable[[np.ndarray, bool], np.ndarray]) -> Atom | None:
    """A literal term of each channel, dequantized or not, for the channels of each phase."""
    if isinstance(bias, TensorConst):
        return b.const(repeat(bias.value, False))
    call = m.call_of(bias)
    if call is None or call.op != "dequantize_linear" or full_attrs(call).block_size:
        return None
    repeated: list[Atom | None] = []
    for place, each in enumerate(call.args):
        if each is None or (place and isinstance(each, TensorConst) and each.value.size == 1):
            repeated.append(each)
        elif isinstance(each, TensorConst):
            repeated.append(b.const(repeat(each.value, place == 1)))
        else:
            return None
    return b.call_with("dequantize_linear", tuple(repeated), call.attrs, call.span)


def _example(b: GraphBuilder) -> Atom:
    rng = np.random.default_rng(0)
    x = b.param("x", tensor_type((2, 3, 4, 5), u8))
    w = b.const(rng.integers(-128, 128, (3, 4, 3, 2)).astype(np.int8))
    scale = rng.uniform(0.01, 0.02, 4).astype(np.float32)
    bias = b.call("dequantize_linear", b.const(rng.integers(-999, 999, 4).astype(np.int32)), b.const(scale * np.float32(0.02)), axis=0)
    image = b.call("dequantize_linear", x, b.const(np.float32(0.02)), b.const(np.uint8(77)))
    kernels = b.call("dequantize_linear", w, b.const(scale), b.const(rng.integers(-9, 9, 4).astype(np.int8)), axis=1)
    return b.call("conv_transpose", image, kernels, bias, strides=(2, 2), pads=(1, 0, 1, 0), output_padding=(1, 0))


PHASE_RULES = (
    GraphRule(
        "a transposed convolution of dequantized operands is an ordinary one",
        op("conv_transpose", any_("x"), any_("w"), name="conv", rest=True),
        _phases,
        when=lambda m: m.type_of("x").rank > 2,
        example=_example,
        inexact=True,
    ),
)
