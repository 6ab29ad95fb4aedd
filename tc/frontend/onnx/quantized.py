"""Tensors of integers that mean (integer - zero point) * scale: from and to floats, and their products."""

from __future__ import annotations

from tc.frontend.onnx.node_context import Calls
from tc.frontend.onnx.values import ModelValue
from tc.ir.arith import prove
from tc.ir.dtype import DType, f32, i32, u8
from tc.ir.expr import const, equal
from tc.ir.graph import TensorConst
from tc.ir.types import product


def cast(c: Calls, x: ModelValue, dtype: DType) -> ModelValue:
    return x if x.dtype == dtype else c.call("cast", x, dtype=dtype)


def is_one(value: ModelValue) -> bool:
    return prove(equal(product(value.shape), 1)) is True


def scalar(c: Calls, value: ModelValue) -> ModelValue:
    return value if value.rank == 0 else c.call("reshape", value, shape=())


def parameter(c: Calls, value: ModelValue, dtype: DType | None = None) -> ModelValue:
    """A scale or zero point: a number, or one for each place of an axis."""
    value = value if dtype is None else cast(c, value, dtype)
    return scalar(c, value) if is_one(value) else value


def dequantized(c: Calls, x: ModelValue, scale: ModelValue, zero: ModelValue | None, axis: int = 1) -> ModelValue:
    """What integers mean, in f32."""
    own = None if zero is None else parameter(c, zero)
    return c.call("dequantize_linear", x, parameter(c, scale, f32), own, axis=axis if -x.rank <= axis < x.rank else 0)


def quantized(c: Calls, x: ModelValue, scale: ModelValue, zero: ModelValue | None, dtype: DType = u8) -> ModelValue:
    """As integers of the zero point's dtype, or of `dtype`."""
    own = None if zero is None else parameter(c, zero)
    return c.call("quantize_linear", x, parameter(c, scale, f32), own, dtype=dtype if zero is None else zero.dtype)


def are_literals(*values: ModelValue | None) -> bool:
    return all(value is None or isinstance(value.atom, TensorConst) for value in values)


def dynamically_quantized(c: Calls, x: ModelValue) -> tuple[ModelValue, ModelValue, ModelValue]:
    """To u8 with the range of the data, widened to hold 0, as scale and zero point; the scale of zeros alone is 1."""
    axes, zero = tuple(range(x.rank)), c.const(0, f32)
    low = c.call("minimum", c.call("min", x, axes=axes, keepdims=False), zero)
    high = c.call("maximum", c.call("max", x, axes=axes, keepdims=False), zero)
    scale = c.call("div", c.call("sub", high, low), c.const(255, f32))
    scale = c.call("where", c.call("equal", high, low), c.const(1, f32), scale)
    place = c.call("sub", zero, c.call("div", low, scale))
    shift = c.call("cast", c.call("round", c.call("clip", place, zero, c.const(255, f32))), dtype=u8)
    return c.call("quantize_linear", x, scale, shift, dtype=u8), scale, shift


def integer_product(
    c: Calls, a: ModelValue, a_scale: ModelValue, a_zero: ModelValue | None,
    b: ModelValue, b_scale: ModelValue, b_zero: ModelValue | None,
) -> ModelValue:  # fmt: skip
    """a @ b in f32; the scales may be those of a's rows and of b's columns, [m] and [n], or, of each product of a batch, [b, m, 1] and
    [b, 1, n]."""
    of_each = [value for value in (a_scale, a_zero, b_scale, b_zero) if value is not None and _is_of_each(value)]
    if not of_each and are_literals(a_scale, a_zero, b_scale, b_zero) and is_one(a_scale):
        return c.call("matmul", dequantized(c, a, a_scale, a_zero), dequantized(c, b, b_scale, b_zero, b.rank - 1))
    total = integer_sums(c, a, b, a_zero, b_zero)
    rows, columns = parameter(c, a_scale, f32), parameter(c, b_scale, f32)
    if rows.rank == 1:
        rows = c.call("reshape", rows, shape=(rows.shape[0], const(1)))
    return c.call("mul", c.call("cast", total, dtype=f32), c.call("mul", rows, columns))


def integer_sums(c: Calls, a: ModelValue, b: ModelValue, a_zero: ModelValue | None, b_zero: ModelValue | None) -> ModelValue:
    """(a - a_zero) @ (b - b_zero) in i32. What zero points of each product of a batch add is taken off afterwards."""
    a_own, b_own = (None if zero is None or _is_of_each(zero) else parameter(c, zero) for zero in (a_zero, b_zero))
    total = c.call("matmul_integer", a, b, a_own, b_own)
    if b_zero is not None and _is_of_each(b_zero):
        total = c.call("sub", total, c.call("mul", _sums(c, a, a_own, -1), cast(c, b_zero, i32)))
    if a_zero is not None and _is_of_each(a_zero):
        total = c.call("sub", total, c.call("mul", cast(c, a_zero, i32), _sums(c, b, b_zero, -2)))
    return total


def _is_of_each(value: ModelValue) -> bool:
    return value.rank > 1 and not is_one(value)


def _sums(c: Calls, x: ModelValue, zero: ModelValue | None, axis: int) -> ModelValue:
    """Those of x - zero along the rows or the columns."""
    wide = cast(c, x, i32)
    if zero is not None:
        zero = parameter(c, zero, i32)
        if zero.rank == 1 and axis == -1:
            zero = c.call("reshape", zero, shape=(zero.shape[0], const(1)))
        wide = c.call("sub", wide, zero)
    return c.call("sum", wide, axes=(axis,), keepdims=True)


def with_term(c: Calls, x: ModelValue, term: ModelValue | None) -> ModelValue:
    return x if term is None else c.call("add", x, term)
