"""Keep in integers what a quantized graph computes between dequantize_linear and quantize_linear.

A product of dequantized operands is a product of integers, its sums exact, times the product of the scales; what only moves elements moves
integers; what is quantized as it was before is what it was. The rest stays float, element by element, and fuses into the products.
Results are those of the float graph but for the rounding of its sums: however long a sum is, it is rounded once to f32 and once when it is
multiplied by the scale. So the pass is part of strict numerics, too.
Source: "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference" (Jacob et al., 2018), equation 7.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tc.ir.arith import prove
from tc.ir.dtype import f32, i32, i64, int_range, u8
from tc.ir.expr import Const, is_const
from tc.ir.graph import Atom, Call, TensorConst, all_bindings
from tc.ir.module import IRModule
from tc.ir.types import TensorType, tensor_type
from tc.ops.build import GraphBuilder, full_attrs
from tc.passes.graph.dce import remove_dead_code
from tc.passes.graph.integer_movement import MOVEMENT_RULES
from tc.passes.graph.integer_phases import PHASE_RULES
from tc.passes.graph.quantized import BYTES, Quantized, dequantized_from
from tc.passes.graph.rewrite import GraphRule, Match, any_, const_, op, rewrite_module
from tc.passes.manager import graph_pass

MOST = 2**31 - 1
"""The largest sum of i32."""

SAME_SCALE = 2.0**-21
"""So far apart, as parts of them, the scale of a bias and the product of scales that it is to be may be."""


@graph_pass
def integer_graphs(module: IRModule) -> IRModule:
    """Compute with the integers of quantized tensors; see PRODUCT_RULES and MOVEMENT_RULES."""
    if not _is_quantized(module):
        return module
    module = rewrite_module(module, PHASE_RULES)
    module = rewrite_module(module, MOVEMENT_RULES, tidy=remove_dead_code)  # what is dead is no other use
    # Products take integers as they are when all has moved; what they are made of would be dequantized for nobody.
    return remove_dead_code(rewrite_module(module, PRODUCT_RULES))


def _is_quantized(module: IRModule) -> bool:
    wanted = ("quantize_linear", "dequantize_linear")
    return any(isinstance(b.value, Call) and b.value.op in wanted for func in module.graph_functions for b in all_bindings(func))


# -- sums, whose parts wrap in i32 as long as they do not


def _distance(x: Quantized) -> int:
    """How far from its zero point a number can be."""
    low, high = int_range(x.dtype)
    return max(high - int(x.zero.min()), int(x.zero.max()) - low)


def _most(x: Quantized, w: Quantized, axis: int) -> int:
    """The largest sum of products, of all that a literal has at one place of `axis`, or more than that if it is small anyway."""
    assert isinstance(w.value, TensorConst)
    values = w.value.value
    simple: int = values.size // max(values.shape[axis], 1) * _distance(w) * _distance(x)
    if simple <= MOST // 2 or not values.size:
        return simple
    lengths = np.abs(values.astype(np.int64) - w.along(w.zero)).sum(tuple(d for d in range(values.ndim) if d != axis))
    return int(lengths.max()) * _distance(x)


def _ranges(x: Quantized, w: Quantized, depth: int, terms: int, most: int) -> list[slice]:
    """Parts of an axis of `depth` elements, of which each stands for so many `terms`, whose sums are numbers of i32: one of everything
    where `most`, the largest sum, is such a number. None where an element alone is too much."""
    if most <= MOST:
        return [slice(None)]
    width = MOST // (_distance(x) * _distance(w) * terms)
    return [slice(start, min(start + width, depth)) for start in range(0, depth, width)] if width else []


def _numbers(w: Quantized) -> tuple[np.ndarray, np.ndarray]:
    """A literal as signed bytes, and what is to be subtracted from these: i64, 0 where they are the differences to the zero points."""
    assert isinstance(w.value, TensorConst)
    values, zero = w.value.value, w.along(w.zero)
    if w.dtype is not u8 and not zero.any():
        return values, np.zeros((), np.int64)
    wide = values.astype(np.int16) - zero.astype(np.int16)
    if not wide.size or (wide.min() >= -128 and wide.max() <= 127):
        return wide.astype(np.int8), np.zeros((), np.int64)
    raised = 128 if w.dtype is u8 else 0
    return (values.astype(np.int16) - raised).astype(np.int8), w.zero - raised


def _added(b: GraphBuilder, total: Atom, term: np.ndarray) -> Atom:
    return b.call("add", total, b.const(term.astype(np.int64).astype(np.int32))) if term.any() else total


def _scaled(b: GraphBuilder, total: Atom, *scales: np.ndarray) -> Atom:
    """The sums by all scales: by their product, or by one after the other where that is no normal number of f32, of few bits."""
    result: Atom = b.call("cast", total, dtype=f32)
    product: np.ndarray = np.asarray(prod(scale.astype(np.float64) for scale in scales))
    is_normal = np.all((product == 0) | (product >= np.finfo(np.float32).tiny))
    for factor in (product,) if is_normal else scales:
        result = b.call("mul", result, b.const(factor.astype(np.float32)))
    return result


def _steps(m: Match, atom: Atom | None, scale: np.ndarray, limit: int) -> np.ndarray | None:
    """A term per channel in steps of `scale`, i64, where it is dequantized from a literal of just these, none beyond `limit`; else None."""
    call = m.call_of(atom)
    if call is None or call.op != "dequantize_linear" or full_attrs(call).block_size:
        return None
    steps, own, *zeros = call.args
    if not isinstance(steps, TensorConst) or not isinstance(own, TensorConst) or steps.value.dtype != np.int32 or steps.value.ndim != 1:
        return None
    if any(zero is not None and (not isinstance(zero, TensorConst) or zero.value.any()) for zero in zeros):
        return None
    sizes = (1, steps.value.size)
    if own.value.dtype != np.float32 or own.value.size not in sizes or scale.size not in sizes:
        return None
    is_same = np.abs(own.value.reshape(-1) - scale.reshape(-1)) <= SAME_SCALE * scale.reshape(-1)
    numbers = steps.value.astype(np.int64)
    return numbers if is_same.all() and np.abs(numbers).max(initial=0) <= limit else None



def _part(b: GraphBuilder, x: Atom, axis: int, part: slice) -> Atom:
    """A range of an axis of known size."""
    if part == slice(None):
        return x
    assert isinstance(x.type, TensorType)
    shape = x.type.shape
    starts = tuple(part.start if d == axis % len(shape) else 0 for d in range(len(shape)))
    sizes = tuple(part.stop - part.start if d == axis % len(shape) else dim for d, dim in enumerate(shape))
    return b.call("slice", x, starts=starts, sizes=sizes, steps=(1,) * len(shape))


def _total(b: GraphBuilder, sums: list[Atom]) -> Atom:
    """The sum of exact ones: in i32 if there is only one."""
    if len(sums) == 1:
        return sums[0]
    total: Atom = b.call("cast", sums[0], dtype=i64)
    for each in sums[1:]:
        total = b.call("add", total, b.call("cast", each, dtype=i64))
    return total


# -- convolutions


def _convolution(b: GraphBuilder, m: Match) -> Atom | None:
    """conv(x, w, bias) of dequantized x and a dequantized literal w."""
    call, attrs = m.call("conv"), m.attrs("conv")
    x, w = dequantized_from(m, m.x), dequantized_from(m, m.w)
    if x is None or w is None or not {x.dtype, w.dtype} <= set(BYTES) or x.axis is not None or w.axis not in (None, 0):
        return None
    shape = w.type.static_shape
    if not w.is_literal or not shape or not all(shape) or not is_const(x.type.shape[1]):
        return None
    scale, bias = x.scale.astype(np.float64) * w.scale, call.args[2] if len(call.args) > 2 else None
    most = _most(x, w, 0)
    steps = _steps(m, bias, scale, MOST - most)
    ranges = _ranges(x, w, shape[1], prod(shape[2:]), most)
    if not ranges or (len(ranges) > 1 and attrs.groups > 1):
        return None
    total = _total(b, [_sum_of_windows(b, call, x, w, part, np.zeros((), np.int64) if steps is None else steps) for part in ranges])
    result = _scaled(b, total, x.scale, _per_channel(w.scale, len(shape)))
    if bias is None or steps is not None:
        return result
    return b.call("add", result, b.call("reshape", bias, shape=(shape[0], *[1] * (len(shape) - 2))))


def _sum_of_windows(b: GraphBuilder, call: Call, x: Quantized, w: Quantized, channels: slice, term: np.ndarray) -> Atom:
    """Of the products of differences, of some of the channels, and one term for each result's channel, in i32."""
    numbers, shift = _numbers(w)
    numbers = np.ascontiguousarray(numbers[:, channels])
    outputs, *terms = numbers.shape
    zero, groups = int(x.zero), full_attrs(call).groups
    image = x.value if groups > 1 else _part(b, x.value, 1, channels)

    def convolve(weights: np.ndarray, term: np.ndarray) -> Atom:
        made = b.call_with("conv_integer", (image, b.const(weights)), (*call.attrs, ("fill", zero)), call.span)
        sums = weights.reshape(len(weights), -1).sum(1, dtype=np.int64)
        return _added(b, made, _per_channel(term - zero * sums, numbers.ndim))

    total = convolve(numbers, term)
    if not shift.any():
        return total
    around = convolve(np.ones((1 if groups == 1 else outputs, *terms), np.int8), np.zeros((), np.int64))  # what a step of the shift counts
    return b.call("sub", total, b.call("mul", around, b.const(_per_channel(shift, numbers.ndim).astype(np.int32))))


def _per_channel(values: np.ndarray, rank: int) -> np.ndarray:
    """One number, or one for each channel of [n, c, *space]."""
    return values.reshape(()) if values.size == 1 else values.reshape(1, -1, *[1] * (rank - 2))


# -- matrix products


def _matrix_product(b: GraphBuilder, m: Match) -> Atom | None:
    """x @ w of dequantized operands, of which a literal one may have scales for its rows or columns."""
    x, w = dequantized_from(m, m.x), dequantized_from(m, m.w)
    if x is None or w is None or not {x.dtype, w.dtype} <= set(BYTES) or not x.type.rank or not w.type.rank:
        return None
    if w.is_literal and not x.is_literal:
        return _with_literal_columns(b, m, x, w)
    if x.is_literal and not w.is_literal:
        return _with_literal_rows(b, m, x, w)
    if x.axis is not None or w.axis is not None or prove(x.type.shape[-1] <= MOST // (_distance(x) * _distance(w)), m.facts) is not True:
        return None
    zeros = [b.const(each.zero.astype(each.dtype.numpy)) if each.zero else None for each in (x, w)]
    total = b.call("matmul_integer", x.value, w.value, *zeros, span=m.call("matmul").span)
    return _scaled(b, total, x.scale, w.scale)


def _with_literal_columns(b: GraphBuilder, m: Match, x: Quantized, w: Quantized) -> Atom | None:
    shape = w.type.static_shape
    if x.axis is not None or not shape or not all(shape) or not (w.axis is None or (w.axis == len(shape) - 1 > 0)):
        return None
    depth = shape[max(len(shape) - 2, 0)]
    most = depth * _distance(x) * _distance(w)
    ranges = _ranges(x, w, depth, 1, _most(x, w, 1) if most > MOST and len(shape) == 2 else most)
    total = _total(b, [_sum_of_products(b, m.call("matmul"), x, w, part) for part in ranges])
    return _scaled(b, total, x.scale, w.scale)


def _sum_of_products(b: GraphBuilder, call: Call, x: Quantized, w: Quantized, terms: slice) -> Atom:
    """Of differences, in i32, of some of the terms."""
    numbers, shift = _numbers(w)
    numbers = numbers[(..., terms, slice(None))] if numbers.ndim > 1 else numbers[terms]
    depth, rows = numbers.shape[max(numbers.ndim - 2, 0)], _part(b, x.value, -1, terms)
    sums = numbers.sum(max(numbers.ndim - 2, 0), dtype=np.int64, keepdims=x.type.rank > 1)  # what a row of ones gives
    made: Atom = b.call("matmul_integer", rows, b.const(numbers), span=call.span)
    total = _added(b, made, -int(x.zero) * np.asarray(sums))
    if not shift.any():
        return total
    around: Atom = b.call("sum", b.call("cast", rows, dtype=i32), axes=(-1,), keepdims=numbers.ndim > 1)
    around = _added(b, around, np.asarray(-int(x.zero) * depth))
    return b.call("sub", total, b.call("mul", around, b.const(shift.astype(np.int32))))


def _with_literal_rows(b: GraphBuilder, m: Match, x: Quantized, w: Quantized) -> Atom | None:
    shape = x.type.static_shape
    if w.axis is not None or not shape or not all(shape) or not (x.axis is None or (x.axis == len(shape) - 2 >= 0)):
        return None
    numbers, shift = _numbers(x)
    if shift.any() or shape[-1] * _distance(x) * _distance(w) > MOST:
        return None
    sums = numbers.sum(-1, dtype=np.int64, keepdims=w.type.rank > 1)
    total = _added(b, b.call("matmul_integer", b.const(numbers), w.value, span=m.call("matmul").span), -int(w.zero) * np.asarray(sums))
    return _scaled(b, total, w.scale, x.scale.reshape(-1, 1) if x.scale.ndim and w.type.rank > 1 else x.scale)


# -- terms per column


def _with_steps(b: GraphBuilder, m: Match) -> Atom | None:
    """t * scale + bias as (t + bias / scale) * scale, where t and the steps of the bias are numbers of i32 together."""
    call = m.call_of(m.total)
    while call is not None and call.op in ("add", "sub"):
        call = m.call_of(call.args[0])
    if call is None or call.op != "matmul_integer" or m.type_of("total").rank < 2:
        return None
    x = call.args[0]
    assert x is not None and isinstance(x.type, TensorType)
    depth = x.type.shape[-1]
    steps = _steps(m, m.bias, m.value("scale").astype(np.float64), MOST - 255**2 * int(depth.value)) if isinstance(depth, Const) else None
    if steps is None:
        return None
    total, other = m.total, m.call_of(m.total)
    if other is not None and other.op == "add" and isinstance(other.args[1], TensorConst):
        assert other.args[0] is not None
        total, steps = other.args[0], steps + other.args[1].value
    return _scaled(b, _added(b, total, steps), m.value("scale"))


# -- the table


def _u8(b: GraphBuilder, *shape: int, scale: float = 0.02, zero: int = 128, name: str = "x") -> Atom:
    x = b.param(name, tensor_type(shape, u8))
    return b.call("dequantize_linear", x, b.const(np.float32(scale)), b.const(np.uint8(zero)))


def _literal(b: GraphBuilder, dtype: type, *shape: int, axis: int, zeros: bool = False) -> Atom:
    rng, info = np.random.default_rng(0), np.iinfo(dtype)
    values: np.ndarray = rng.integers(info.min, info.max + 1, shape).astype(dtype)
    scale = rng.uniform(0.01, 0.02, shape[axis]).astype(np.float32)
    zero = b.const(rng.integers(info.min, info.max + 1, shape[axis]).astype(dtype)) if zeros else None
    return b.call("dequantize_linear", b.const(values), b.const(scale), zero, axis=axis)


def _convolution_example(b: GraphBuilder) -> Atom:
    x, w = _u8(b, 2, 4, 5, 6, zero=3), _literal(b, np.int8, 6, 2, 3, 2, axis=0)
    steps = b.const(np.arange(6, dtype=np.int32) * 1000 - 2000)
    scale = np.random.default_rng(0)
    scale.integers(-128, 128, (6, 2, 3, 2))
    bias = b.call("dequantize_linear", steps, b.const(np.float32(0.02) * scale.uniform(0.01, 0.02, 6).astype(np.float32)), axis=0)
    return b.call("conv", x, w, bias, pads=(1, 0, 2, 1), strides=(2, 1), groups=2)


def _gemm_example(b: GraphBuilder) -> Atom:
    total = b.call("matmul_integer", b.param("x", tensor_type((3, 5), u8)), b.const(np.ones((5, 4), np.int8)))
    scaled = b.call("mul", b.call("cast", total, dtype=f32), b.const(np.float32(0.5)))
    bias = b.call("dequantize_linear", b.const(np.array([1, -7, 2**24, 0], np.int32)), b.const(np.float32(0.5)))
    return b.call("add", bias, scaled)


PRODUCT_RULES = (
    GraphRule(
        "a convolution of dequantized operands is one of integers",
        op("conv", any_("x"), any_("w"), name="conv", rest=True),
        _convolution,
        example=_convolution_example,
        inexact=True,
    ),
    GraphRule(
        "a product of a dequantized tensor and a literal is one of integers",
        op("matmul", any_("x"), any_("w"), name="matmul"),
        _matrix_product,
        example=lambda b: b.call("matmul", _u8(b, 2, 3, 5), _literal(b, np.uint8, 5, 4, axis=1, zeros=True)),
        inexact=True,
    ),
    GraphRule(
        "a bias in steps of the product's scale is added to the integers",
        op("add", op("mul", op("cast", any_("total")), const_("scale"), single_use=True), any_("bias"), commutes=True),
        _with_steps,
        when=lambda m: m.type_of("total").dtype is i32,
        example=_gemm_example,
        inexact=True,
    ),
)
