"""Keep in integers what a quantized graph computes between dequantize_linear and quantize_linear.

A product of dequantized operands is a product of integers, its sums exact, times the product of the scales; what only moves elements moves
integers; what is quantized as it was before is what it was. The rest stays float, element by element, and fuses into the products.
Results are those of the float graph but for the rounding of its sums: however long a sum is, it is rounded once to f32 and once when it is
multiplied by the scale. So the pass is part of strict numerics, too.
Source: "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference" (Jacob et al., 2018), equation 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from tc.ir.arith import prove
from tc.ir.dtype import f32, i8, i16, i32, int_range, u8, u16
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

MOST_PARTS, LONGEST = 8, 128
"""Products of words are left to floats where their sums would be made of more parts than this; those of bytes."""

FIELD = 16
"""Bits of the lower part of a sum that i32 does not hold."""

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


@dataclass(frozen=True)
class Digit:
    """A digit of a literal's differences to its zero points: `factor` times (`numbers` - `shift`), no difference beyond `reach`.

    numbers: of i8 or i16. shift: i64, one or one for each channel, 0 where the numbers are the differences. Bytes have one digit. Words
    have two where sums of their products would not be numbers of i32: whole ones of base 256.
    """

    factor: int
    numbers: np.ndarray
    shift: np.ndarray
    reach: int

    def lengths(self, axis: int, channel: int) -> np.ndarray:
        """i64[depth, channels]: the sum of what the differences are at a place of `axis`, without their signs. Axes before these two are
        of sums of their own: the largest counts."""
        shift = self.shift.reshape([-1 if d == channel else 1 for d in range(self.numbers.ndim)]) if self.shift.ndim else self.shift
        apart, lead = np.abs(self.numbers.astype(np.int64) - shift), min(axis, channel)
        found: np.ndarray = apart.sum(tuple(range(lead + 2, apart.ndim))).max(tuple(range(lead)), initial=0)
        return found if axis < channel else found.T


Part = tuple[Digit, slice]
"""A digit, and a range of terms."""


def _distance(x: Quantized) -> int:
    """How far from its zero point a number can be."""
    low, high = int_range(x.dtype)
    return max(high - int(x.zero.min()), int(x.zero.max()) - low)


def _parts(x: Quantized, w: Quantized, axis: int, channel: int) -> tuple[list[Part], int]:
    """Parts of a sum along `axis` of the literal w that are numbers of i32 in each channel, and the largest sum of the first. None where an
    element alone is too much, or parts are too many to pay."""
    found, most = [], 0
    for digit in _digits(x, w, axis, channel):
        ranges, longest = _ranges(digit, _distance(x), axis, channel)
        if not ranges:
            return [], 0
        found += [(digit, each) for each in ranges]
        most = max(most, longest)
    return (found, most) if len(found) <= (LONGEST if _are_bytes(x, w) else MOST_PARTS) else ([], 0)


def _digits(x: Quantized, w: Quantized, axis: int, channel: int) -> list[Digit]:
    assert isinstance(w.value, TensorConst)
    if _are_bytes(x, w):
        return [Digit(1, *_numbers(w), _distance(w))]
    wide = w.value.value.astype(np.int32) - w.along(w.zero).astype(np.int32)
    whole = _digit(1, wide)
    if whole.reach < 128 or (whole.reach < 2**15 and len(_ranges(whole, _distance(x), axis, channel)[0]) == 1):
        return [whole]
    high = (wide + 128) >> 8
    return [_digit(256, high), _digit(1, wide - 256 * high)]


def _digit(factor: int, numbers: np.ndarray) -> Digit:
    reach = int(np.abs(numbers).max(initial=0))
    return Digit(factor, numbers.astype(np.int8 if reach < 128 else np.int16), np.zeros((), np.int64), reach)


def _ranges(digit: Digit, distance: int, axis: int, channel: int) -> tuple[list[slice], int]:
    """Parts of `axis` whose sums of products with numbers up to `distance` are numbers of i32, and the largest sum, or more than that if it
    is small anyway: one of everything where that fits. None where an element alone is too much."""
    shape = digit.numbers.shape
    simple = prod(shape[min(axis, channel) :]) // max(shape[channel], 1) * digit.reach * distance
    if simple <= MOST // 2 or not digit.numbers.size:
        return [slice(None)], simple
    sums = digit.lengths(axis, channel).cumsum(0)
    most = int(sums[-1].max()) * distance
    if most <= MOST:
        return [slice(None)], most
    found, start, before = [], 0, np.zeros_like(sums[0])
    while start < len(sums):
        stop = int(np.searchsorted((sums - before).max(1) * distance, MOST, side="right"))
        if stop <= start:
            return [], most
        found.append(slice(start, stop))
        start, before = stop, sums[stop - 1]
    return found, most


def _are_bytes(*values: Quantized) -> bool:
    return {value.dtype for value in values} <= set(BYTES)


def _signed_words(b: GraphBuilder, x: Quantized) -> Quantized:
    """The same numbers of i16 where they are of u16, of which products have no instructions; others as they are."""
    if x.dtype is not u16:
        return x
    value = b.call("cast", b.call("sub", x.value, b.const(np.uint16(2**15))), dtype=i16)
    return Quantized(value, x.scale, x.zero - 2**15, x.axis)


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
    assert isinstance(total.type, TensorType)
    result = total if total.type.dtype is f32 else b.call("cast", total, dtype=f32)
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


def _total(b: GraphBuilder, parts: list[Part], sums: list[Atom], term: np.ndarray | None = None) -> Atom:
    """The sum of exact ones, each times its digit's factor, and of a term in i32. In i32 if there is only one; else in f32, rounded once.

    Sums are cut in two, u * 2**16 + l. So cut up there are no more of them than LONGEST: no sum of the u's has more than 27 bits, none of
    the l's, what f32 does not hold of the first added, more than 24.
    """
    assert len(sums) <= LONGEST
    if len(sums) == 1:
        return sums[0]
    upper, lower = _cut(b, sums[0], parts[0][0].factor)
    for (digit, _), each in zip(parts[1:], sums[1:], strict=True):
        more, less = _cut(b, each, digit.factor)
        upper, lower = b.call("add", upper, more), b.call("add", lower, less)
    if term is not None and term.any():
        upper, lower = _added(b, upper, term >> FIELD), _added(b, lower, term & (2**FIELD - 1))
    high, unit = b.call("cast", upper, dtype=f32), b.const(np.float32(2**FIELD))
    rest = b.call("cast", b.call("sub", upper, b.call("cast", high, dtype=i32)), dtype=f32)
    small = b.call("add", b.call("mul", rest, unit), b.call("cast", lower, dtype=f32))
    return b.call("add", b.call("mul", high, unit), small)


def _cut(b: GraphBuilder, total: Atom, factor: int) -> tuple[Atom, Atom]:
    """How often 2**16 is in `factor` times a sum, rounded down, and the rest."""
    bits = FIELD - (factor.bit_length() - 1)
    lower = b.call("bit_and", total, b.const(np.int32(2**bits - 1)))
    if factor > 1:
        lower = b.call("mul", lower, b.const(np.int32(factor)))
    return b.call("shift_right", total, b.const(np.int32(bits))), lower


# -- convolutions


def _convolution(b: GraphBuilder, m: Match) -> Atom | None:
    """conv(x, w, bias) of dequantized x and a dequantized literal w."""
    call, attrs = m.call("conv"), m.attrs("conv")
    x, w = dequantized_from(m, m.x), dequantized_from(m, m.w)
    if x is None or w is None or x.axis is not None or w.axis not in (None, 0):
        return None
    shape = w.type.static_shape
    if not w.is_literal or not shape or not all(shape) or not is_const(x.type.shape[1]):
        return None
    parts, most = _parts(x, w, 1, 0)
    if not parts or (any(part != slice(None) for _, part in parts) and attrs.groups > 1):
        return None
    scale, bias = x.scale.astype(np.float64) * w.scale, call.args[2] if len(call.args) > 2 else None
    steps = _steps(m, bias, scale, MOST - most if len(parts) == 1 else MOST)
    none, image = np.zeros((), np.int64), _image(b, x, w)
    added = none if steps is None or len(parts) > 1 else steps
    term = None if steps is None else _per_channel(steps, len(shape))
    total = _total(b, parts, [_sum_of_windows(b, call, image, *part, added) for part in parts], term)
    result = _scaled(b, total, x.scale, _per_channel(w.scale, len(shape)))
    if bias is None or steps is not None:
        return result
    return b.call("add", result, b.call("reshape", bias, shape=(shape[0], *[1] * (len(shape) - 2))))


def _image(b: GraphBuilder, x: Quantized, w: Quantized) -> Quantized:
    """What is convolved as products have instructions for it: bytes with bytes, else words."""
    if _are_bytes(x, w):
        return x
    x = _signed_words(b, x)
    return x if x.dtype is i16 else Quantized(b.call("cast", x.value, dtype=i16), x.scale, x.zero, x.axis)


def _sum_of_windows(b: GraphBuilder, call: Call, x: Quantized, digit: Digit, channels: slice, term: np.ndarray) -> Atom:
    """Of the products of differences, of some of the channels, and one term for each result's channel, in i32."""
    shift, numbers = digit.shift, np.ascontiguousarray(digit.numbers[:, channels])
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
    if x is None or w is None or not x.type.rank or not w.type.rank:
        return None
    if w.is_literal and not x.is_literal:
        return _with_literal_columns(b, m, x, w)
    if x.is_literal and not w.is_literal:
        return _with_literal_rows(b, m, x, w)
    if x.axis is not None or w.axis is not None:
        return None
    if not _are_bytes(x, w):
        return None
    if prove(x.type.shape[-1] <= MOST // (_distance(x) * _distance(w)), m.facts) is not True:
        return None
    zeros = [b.const(each.zero.astype(each.dtype.numpy)) if each.zero else None for each in (x, w)]
    total = b.call("matmul_integer", x.value, w.value, *zeros, span=m.call("matmul").span)
    return _scaled(b, total, x.scale, w.scale)


def _with_literal_columns(b: GraphBuilder, m: Match, x: Quantized, w: Quantized) -> Atom | None:
    shape = w.type.static_shape
    if x.axis is not None or not shape or not all(shape) or not (w.axis is None or (w.axis == len(shape) - 1 > 0)):
        return None
    flat = w if len(shape) > 1 else Quantized(TensorConst(w.value.value.reshape(-1, 1)), w.scale, w.zero)  # type: ignore[union-attr]
    parts, _ = _parts(x, flat, max(len(shape) - 2, 0), max(len(shape) - 1, 1))
    rows = _signed_words(b, x)
    sums = [_sum_of_products(b, m.call("matmul"), rows, digit, len(shape) == 1, part) for digit, part in parts]
    return _scaled(b, _total(b, parts, sums), x.scale, w.scale) if parts else None


def _sum_of_products(b: GraphBuilder, call: Call, x: Quantized, digit: Digit, is_vector: bool, terms: slice) -> Atom:
    """Of differences, in i32, of some of the terms. `is_vector`: of one column, which the result has no axis for."""
    numbers, shift = digit.numbers[(..., terms, slice(None))], digit.shift
    if is_vector:
        numbers = numbers[:, 0]
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
    flat = x if len(shape) > 1 else Quantized(TensorConst(x.value.value.reshape(1, -1)), x.scale, x.zero)  # type: ignore[union-attr]
    parts, _ = _parts(w, flat, max(len(shape) - 1, 1), max(len(shape) - 2, 0))
    if not parts or any(digit.shift.any() for digit, _ in parts):
        return None
    columns, made = _signed_words(b, w), []
    for digit, terms in parts:
        numbers = digit.numbers[..., terms].reshape(*shape[:-1], -1)
        sums = numbers.sum(-1, dtype=np.int64, keepdims=w.type.rank > 1)
        part = _part(b, columns.value, max(w.type.rank - 2, 0), terms)
        each = b.call("matmul_integer", b.const(numbers), part, span=m.call("matmul").span)
        made.append(_added(b, each, -int(columns.zero) * np.asarray(sums)))
    return _scaled(b, _total(b, parts, made), w.scale, x.scale.reshape(-1, 1) if x.scale.ndim and w.type.rank > 1 else x.scale)


# -- products of words that are data


def _of_words(b: GraphBuilder, m: Match) -> Atom | None:
    """The product of two tensors, one of words at least, from digits of the right one, where few parts of sums do."""
    x, w = dequantized_from(m, m.x), dequantized_from(m, m.w)
    if x is None or w is None or x.is_literal or w.is_literal or x.axis is not None or w.axis is not None or not x.type.rank:
        return None
    depth = x.type.shape[-1]
    if not isinstance(depth, Const) or not depth.value or x.type.rank < 2 or w.type.rank < 2:
        return None
    count, distance = int(depth.value), _distance(x)
    rows, columns = _signed_words(b, x), _signed_words(b, w)
    digits = [(1, columns)]
    if distance * _distance(w) * count > MOST and columns.dtype is i16:
        digits = _digits_of_data(b, columns)
    reach = max(_distance(digit) if digit.dtype is not i16 or len(digits) == 1 else 257 for _, digit in digits)
    width = MOST // (distance * reach)
    ranges = [slice(None)] if width >= count else [slice(k, min(k + width, count)) for k in range(0, count, max(width, 1))]
    if not width or len(digits) * len(ranges) > MOST_PARTS:
        return None
    parts = [(_digit(factor, np.zeros((), np.int32)), part) for factor, _ in digits for part in ranges]
    made = [_sum_of_data(b, m, rows, digit, part, count) for _, digit in digits for part in ranges]
    return _scaled(b, _total(b, parts, made), x.scale, w.scale)


def _digits_of_data(b: GraphBuilder, w: Quantized) -> list[tuple[int, Quantized]]:
    """i16 as 256 times i16 up to 128, and i8; zero points likewise."""
    zero = int(w.zero)
    low = b.call("cast", w.value, dtype=i8)
    rest = b.call("sub", b.call("cast", w.value, dtype=i32), b.call("cast", low, dtype=i32))
    high = b.call("cast", b.call("div", rest, b.const(np.int32(256))), dtype=i16)
    over = (zero + 128) >> 8
    return [(256, Quantized(high, w.scale, np.array(over))), (1, Quantized(low, w.scale, np.array(zero - 256 * over)))]


def _sum_of_data(b: GraphBuilder, m: Match, x: Quantized, w: Quantized, terms: slice, count: int) -> Atom:
    """The products of differences of some of `count` terms, summed in i32: what the zero points are too much comes off afterwards."""
    rows, columns = _part(b, x.value, -1, terms), _part(b, w.value, w.type.rank - 2, terms)
    total: Atom = b.call("matmul_integer", rows, columns, span=m.call("matmul").span)
    of_x, of_w = int(x.zero), int(w.zero)
    for own, side, axis in ((of_w, rows, -1), (of_x, columns, -2)):
        if own:
            sums = b.call("sum", b.call("cast", side, dtype=i32), axes=(axis,), keepdims=True)
            total = b.call("sub", total, b.call("mul", sums, b.const(np.int32(own))))
    length = len(range(*terms.indices(count)))
    return _added(b, total, np.asarray(of_x * of_w * length))


# -- terms per column


def _with_steps(b: GraphBuilder, m: Match) -> Atom | None:
    """t * scale + bias as (t + bias / scale) * scale, where t and the steps of the bias are numbers of i32 together."""
    call = m.call_of(m.total)
    while call is not None and call.op in ("add", "sub"):
        call = m.call_of(call.args[0])
    if call is None or call.op != "matmul_integer" or m.type_of("total").rank < 2:
        return None
    x, w = call.args[:2]
    assert x is not None and isinstance(x.type, TensorType) and w is not None and isinstance(w.type, TensorType)
    if not {x.type.dtype, w.type.dtype} <= set(BYTES):
        return None
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


def _has_words(m: Match) -> bool:
    """Whether an operand is dequantized from 16 bits."""
    return any(q is not None and q.dtype not in BYTES for q in (dequantized_from(m, m.x), dequantized_from(m, m.w)))


def _has_no_words(m: Match) -> bool:
    return not _has_words(m)


def _u16(b: GraphBuilder, *shape: int, name: str = "x") -> Atom:
    return b.call("dequantize_linear", b.param(name, tensor_type(shape, u16)), b.const(np.float32(2e-4)), b.const(np.uint16(40_000)))


PRODUCT_RULES = (
    GraphRule(
        "a convolution of dequantized operands is one of integers",
        op("conv", any_("x"), any_("w"), name="conv", rest=True),
        _convolution,
        when=_has_no_words,
        example=_convolution_example,
        inexact=True,
    ),
    GraphRule(
        "a convolution of dequantized words is those of their digits",
        op("conv", any_("x"), any_("w"), name="conv", rest=True),
        _convolution,
        when=_has_words,
        example=lambda b: b.call("conv", _u16(b, 2, 4, 5, 6), _literal(b, np.int16, 6, 2, 3, 2, axis=0), pads=(1, 0, 2, 1), groups=2),
        inexact=True,
    ),
    GraphRule(
        "a product with a literal of words is those with its digits",
        op("matmul", any_("x"), any_("w"), name="matmul"),
        _matrix_product,
        when=_has_words,
        example=lambda b: b.call("matmul", _u16(b, 2, 3, 300), _literal(b, np.uint16, 300, 4, axis=1, zeros=True)),
        inexact=True,
    ),
    GraphRule(
        "a product of dequantized words is those of the digits of one",
        op("matmul", any_("x"), any_("w"), name="matmul"),
        _of_words,
        when=_has_words,
        example=lambda b: b.call("matmul", _u16(b, 3, 5), _u16(b, 5, 4, name="y")),
        inexact=True,
    ),
    GraphRule(
        "a product of a dequantized tensor and a literal is one of integers",
        op("matmul", any_("x"), any_("w"), name="matmul"),
        _matrix_product,
        when=_has_no_words,
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
