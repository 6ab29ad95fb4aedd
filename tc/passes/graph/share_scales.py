"""Scales and zero points as data of kernels: the same layers of a quantized network, which differ in these alone, are one kernel."""

from __future__ import annotations

import numpy as np

from tc.ir.dtype import f32, i32, u8, u16
from tc.ir.graph import Atom, Call, TensorConst
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder, full_attrs
from tc.ops.quantize import LEAST_SCALE, MOST_SCALE, packed_parameters
from tc.passes.graph.quantized import Quantized, dequantized_from, quantized_to
from tc.passes.graph.rewrite import GraphRule, Match, any_, const_, op, rewrite_module
from tc.passes.manager import graph_pass


@graph_pass
def share_scales(module: IRModule) -> IRModule:
    """Make scales and zero points of whole tensors operands; see SCALE_RULES. Every bit of a result stays what it was.

    A scale of 1 stays, which sums have that one factor takes to steps (`merge_scales`), where they are those of a convolution, or known to
    be bounded: literals take fewer instructions to round by, which shows in shallow sums.
    """
    return rewrite_module(module, SCALE_RULES)


def _quantize(b: GraphBuilder, m: Match) -> Atom | None:
    call = m.call("quantize")
    to = quantized_to(call, m.roots["quantize"])
    if to is None or not _becomes_data(m, call, to):
        return None
    parameters = b.const(packed_parameters(float(to.scale), int(to.zero), to.dtype))
    return b.call("quantize_by", m.x, parameters, dtype=to.dtype, span=call.span)


def _becomes_data(m: Match, call: Call, to: Quantized) -> bool:
    """Whether scale and zero point of what quantizes are made operands."""
    if to.axis is not None or to.dtype not in (u8, u16) or not LEAST_SCALE < to.scale < MOST_SCALE:
        return False
    return to.scale != 1 or (not full_attrs(call).bounded and _is_of_product(m, call.args[0]))


_AFTER_SUMS = frozenset(("add", "sub", "cast", "mul", "dequantize_by"))
_PRODUCTS = frozenset(("matmul_integer", "matmul_packed"))


def _is_of_product(m: Match, x: Atom | None) -> bool:
    """Whether what is quantized is the sums of a matrix product, scaled."""
    call = m.call_of(x)
    while call is not None and call.op in _AFTER_SUMS:
        call = m.call_of(call.args[0])
    return call is not None and call.op in _PRODUCTS


def _dequantize(b: GraphBuilder, m: Match) -> Atom | None:
    found = dequantized_from(m, m.roots["dequantize"])
    if found is None or found.axis is not None or found.is_literal or m.type_of("dequantize").dtype is not f32:
        return None
    span = m.call("dequantize").span
    if (parameters := _undone(m, found)) is not None:
        return b.call("dequantize_by", found.value, parameters, span=span)
    if (quantize := _undone_literals(m, found)) is not None:
        return b.call("dequantize_by", found.value, b.const(np.array([found.scale], np.float32)), *quantize.args[2:], span=span)
    return b.call("dequantize_by", found.value, b.const(np.array([found.scale, found.zero], np.float32)), span=span)


def _undone(m: Match, found: Quantized) -> TensorConst | None:
    """The parameters by which what is dequantized was quantized, which a kernel of both then reads from one place."""
    call = m.call_of(found.value)
    if call is None or call.op != "quantize_by" or not isinstance(call.args[1], TensorConst):
        return None
    parameters = call.args[1].value
    return call.args[1] if parameters[0] == found.scale and parameters[4] == found.zero else None


def _undone_literals(m: Match, found: Quantized) -> Call | None:
    """What quantizes to a zero point that stays as it is: from one place here, too, it is neither added nor subtracted."""
    call = m.call_of(found.value)
    if call is None or call.op != "quantize_linear":
        return None
    to = quantized_to(call, found.value)
    is_same = to is not None and to.axis is None and to.zero == found.zero and not _becomes_data(m, call, to)
    return call if is_same else None


def _scale(b: GraphBuilder, m: Match) -> Atom:
    factor = m.value("scale").reshape(())
    return b.call("dequantize_by", m.x, b.const(np.array([factor, 0], np.float32)), span=m.call("mul").span)


def _is_of_sums(m: Match) -> bool:
    same = m.type_of("x").rank == m.type_of("mul").rank and not isinstance(m.x, TensorConst)
    return same and m.type_of("x").dtype is i32 and m.type_of("mul").dtype is f32 and m.value("scale").size == 1


def _number(b: GraphBuilder, value: float) -> TensorConst:
    return b.const(np.float32(value))


SCALE_RULES = (
    GraphRule(
        "quantized by parameters",
        op("quantize_linear", any_("x"), name="quantize", rest=True),
        _quantize,
        example=lambda b: b.call("quantize_linear", b.param("x", tensor_type((9,), f32)), _number(b, 0.3), b.const(np.uint8(7)), dtype=u8),
    ),
    GraphRule(
        "dequantized by parameters",
        op("dequantize_linear", any_("x"), name="dequantize", rest=True),
        _dequantize,
        example=lambda b: b.call("dequantize_linear", b.param("x", tensor_type((9,), u8)), _number(b, 0.3), b.const(np.uint8(7))),
    ),
    GraphRule(
        "sums by their scale",
        op("mul", op("cast", any_("x"), name="cast"), const_("scale"), commutes=True, name="mul"),
        _scale,
        when=_is_of_sums,
        example=lambda b: b.call("mul", b.call("cast", b.param("x", tensor_type((9,), i32)), dtype=f32), _number(b, 0.3)),
    ),
)
