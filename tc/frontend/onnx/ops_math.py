"""Elementwise operators, matrix products and reductions of ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tc.errors import NodeError, ShapeError, UnsupportedError
from tc.frontend.onnx.node_context import Calls, NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.run_time_axes import around_axis, axes_from_data, bound, count_of, names_axis, without_axes
from tc.frontend.onnx.values import ModelValue
from tc.ir.arith import simplify
from tc.ir.dtype import FLOAT8, SUB_BYTE, DType, bf16, bool_, f8e8m0, f16, f32, f64, i32, i64, largest_number, u8
from tc.ir.expr import Const, const, select
from tc.ir.graph import AttrValue
from tc.ops.bitcast import has_bitcast
from tc.ops.common import require_broadcasts_to

# -- elementwise

_SAME = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "BitwiseNot": "bit_not",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Exp": "exp",
    "Floor": "floor",
    "HardSwish": "hard_swish",
    "Log": "log",
    "Mish": "mish",
    "Neg": "neg",
    "Not": "logical_not",
    "Reciprocal": "reciprocal",
    "Relu": "relu",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}
_BINARY = {
    "Add": "add",
    "And": "logical_and",
    "BitwiseAnd": "bit_and",
    "BitwiseOr": "bit_or",
    "BitwiseXor": "bit_xor",
    "Div": "div",
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Mul": "mul",
    "Or": "logical_or",
    "PRelu": "prelu",
    "Sub": "sub",
    "Xor": "logical_xor",
}


def _operator(op: str, count: int) -> Callable[[NodeContext], ModelValue]:
    """An adapter that passes `count` operands on."""
    return lambda n: n.call(op, *(n.value(k) for k in range(count)))


for _name, _op in _SAME.items():
    onnx_op(_name)(_operator(_op, 1))
for _name, _op in _BINARY.items():
    onnx_op(_name)(_operator(_op, 2))
onnx_op("Where")(_operator("where", 3))


@onnx_op("Pow")
def import_pow(n: NodeContext) -> NodeResult:
    """Literal exponents are numbers of the base's type where that holds them: a wider one is slower."""
    base, exponent = n.value(0), n.value(1)
    known = n.graph.array(exponent) if base.dtype.is_float and exponent.dtype is not base.dtype else None
    if known is not None:
        with np.errstate(all="ignore"):
            narrow = known.astype(base.dtype.numpy)
            is_same = np.array_equal(narrow.astype(np.float64), known.astype(np.float64), equal_nan=True)
        exponent = n.const(narrow, base.dtype) if is_same else exponent
    return n.call("pow", base, exponent)


# ONNX name -> (operator, {attribute: default})
_WITH_FLOATS: dict[str, tuple[str, dict[str, float]]] = {
    "LeakyRelu": ("leaky_relu", {"alpha": 0.01}),
    "Elu": ("elu", {"alpha": 1.0}),
    "Celu": ("celu", {"alpha": 1.0}),
    "Selu": ("selu", {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "ThresholdedRelu": ("thresholded_relu", {"alpha": 1.0}),
    "Shrink": ("shrink", {"bias": 0.0, "lambd": 0.5}),
}


def _in_floats(n: NodeContext, op: str, x: ModelValue, **attrs: AttrValue) -> ModelValue:
    """An operator of floats. Integers are computed as doubles, and the result is cut."""
    if x.dtype.is_float:
        return n.call(op, x, **attrs)
    return n.call("cast", n.call(op, n.call("cast", x, dtype=f64), **attrs), dtype=x.dtype)


def _with_floats(op: str, defaults: dict[str, float]) -> Callable[[NodeContext], ModelValue]:
    return lambda n: _in_floats(n, op, n.value(0), **{name: float(n.attr(name, value)) for name, value in defaults.items()})


for _name, (_op, _defaults) in _WITH_FLOATS.items():
    onnx_op(_name)(_with_floats(_op, _defaults))


@onnx_op("Gelu")
def import_gelu(n: NodeContext) -> NodeResult:
    return n.call("gelu", n.value(0), approximate=n.attr("approximate", "none"))


@onnx_op("Swish")
def import_swish(n: NodeContext) -> NodeResult:
    return swish(n, n.value(0), n.attr("alpha", 1.0))


def swish(c: Calls, x: ModelValue, alpha: float) -> ModelValue:
    """x sigmoid(alpha x)."""
    if alpha == 1.0:
        return c.call("silu", x)
    wide = c.widened(x)  # as 16 bits may not hold alpha, nor the product
    return c.cast(c.call("mul", wide, c.call("sigmoid", c.call("mul", wide, c.const(alpha, wide.dtype)))), x.dtype)


@onnx_op("IsInf")
def import_is_inf(n: NodeContext) -> NodeResult:
    negative, positive = bool(n.attr("detect_negative", 1)), bool(n.attr("detect_positive", 1))
    return n.call("is_inf", _computable(n, n.value(0)), detect_negative=negative, detect_positive=positive)


@onnx_op("IsNaN")
def import_is_nan(n: NodeContext) -> NodeResult:
    return n.call("is_nan", _computable(n, n.value(0)))


def _computable(n: NodeContext, x: ModelValue) -> ModelValue:
    """In f32, what is of one byte."""
    return n.call("cast", x, dtype=f32) if x.dtype.is_float and x.dtype.size_bytes == 1 else x


@onnx_op("Erf")
def import_erf(n: NodeContext) -> NodeResult:
    """Of integers, too: 0 and, nearly, the signs."""
    x = n.value(0)
    return n.call("erf", x) if x.dtype.is_float else n.call("cast", n.call("erf", n.call("cast", x, dtype=f64)), dtype=x.dtype)


@onnx_op("Mod")
def import_mod(n: NodeContext) -> NodeResult:
    a, b = n.value(0), n.value(1)
    return n.call("mod", a, b, fmod=bool(n.attr("fmod", 0)))


@onnx_op("BitShift")
def import_bit_shift(n: NodeContext) -> NodeResult:
    direction = n.attr("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise NodeError(f"BitShift: there is no direction {direction!r}")
    return n.call("shift_left" if direction == "LEFT" else "shift_right", n.value(0), n.value(1))


def _fold(op: str, n: NodeContext) -> ModelValue:
    values = n.values()
    result = values[0]
    for value in values[1:]:
        result = n.call(op, result, value)
    return result


@onnx_op("Sum")
def import_sum(n: NodeContext) -> NodeResult:
    return _fold("add", n)


@onnx_op("Max")
def import_max(n: NodeContext) -> NodeResult:
    return _fold("maximum", n)


@onnx_op("Min")
def import_min(n: NodeContext) -> NodeResult:
    return _fold("minimum", n)


@onnx_op("Mean")
def import_mean(n: NodeContext) -> NodeResult:
    total = _fold("add", n)
    return total if len(n.inputs) == 1 else n.call("div", total, n.const(len(n.inputs), total.dtype))


@onnx_op("Clip")
def import_clip_by_attributes(n: NodeContext) -> NodeResult:
    x = n.value(0)
    lo, hi = n.attr("min"), n.attr("max")
    limits = [None if v is None else n.const(v, x.dtype) for v in (lo, hi)]
    return n.call("clip", x, *limits)


@onnx_op("Clip", since=11)
def import_clip(n: NodeContext) -> NodeResult:
    limits = []
    for k in (1, 2):
        limit = n.optional(k)
        limits.append(n.call("reshape", limit, shape=()) if limit is not None and limit.rank else limit)
    return n.call("clip", n.value(0), *limits)


@onnx_op("Cast")
def import_cast(n: NodeContext) -> NodeResult:
    return _cast(n, n.value(0), n.attr("to_dtype"))


@onnx_op("CastLike")
def import_cast_like(n: NodeContext) -> NodeResult:
    return _cast(n, n.value(0), n.value(1).dtype)


@onnx_op("BitCast")
def import_bit_cast(n: NodeContext) -> NodeResult:
    x, dtype = n.value(0), n.attr("to_dtype")
    if x.dtype.bits != dtype.bits:
        raise NodeError(f"BitCast: {x.dtype} has {x.dtype.bits} bits, {dtype} has {dtype.bits}")
    if x.dtype is dtype:
        return x
    if not has_bitcast(x.dtype, dtype):
        raise UnsupportedError(f"BitCast of {x.dtype} to {dtype}", code="TC1012")
    return n.call("bitcast", x, dtype=dtype)


def _cast(n: NodeContext, x: ModelValue, dtype: DType) -> ModelValue:
    """`x` as another dtype; `saturate`: what is too large for an 8-bit float becomes its largest number."""
    if x.dtype == dtype:
        return x
    saturate = bool(n.attr("saturate", 1))
    if dtype is f8e8m0:
        return _power_of_two(n, x, saturate, n.attr("round_mode", "up"))
    if saturate and dtype in FLOAT8:
        x = x if x.dtype.is_float and not x.dtype.is_storage else n.call("cast", x, dtype=f32)
        largest = largest_number(dtype)
        x = n.call("clip", x, n.const(-largest, x.dtype), n.const(largest, x.dtype))
    if dtype in SUB_BYTE and x.dtype.is_float:  # rounded toward zero, then the lowest bits
        x = n.call("cast", x, dtype=i64 if x.dtype is f64 else i32)
    return n.call("cast", x, dtype=dtype)


def _power_of_two(n: NodeContext, x: ModelValue, saturate: bool, mode: str) -> ModelValue:
    """`x` as f8e8m0: the power of two that is next below, next above or nearest, of two as near ones the larger.

    `saturate`: what is out of range, signs and infinities included, becomes the end of the range that is nearest; else NaN, as NaN does.
    """
    if x.dtype.is_storage or not x.dtype.is_float or x.dtype in (f16, bf16):
        x = n.call("cast", x, dtype=f64 if x.dtype.is_int and x.dtype.bits >= 32 else f32)

    def number(value: float) -> ModelValue:
        return n.const(value, x.dtype)

    least, largest = number(2.0**-127), number(2.0**127)
    if saturate:
        x = n.call("clip", x, least, largest)
    else:
        x = n.call("where", n.call("less", x, least), number(math.nan), x)
    if mode in ("up", "down"):
        # Three quarters of what lies between two powers are nearer to the lower one, and of the power itself just as near to itself.
        below = n.call("cast", n.call("cast", n.call("mul", x, number(0.75)), dtype=f8e8m0), dtype=x.dtype)
        x = below if mode == "down" else n.call("where", n.call("less", below, x), n.call("mul", below, number(2)), below)
    elif mode != "nearest":
        raise NodeError(f"{n.label}: round_mode is {mode!r}, but can be up, down and nearest")
    return n.call("cast", x, dtype=f8e8m0)


@onnx_op("Identity")
def import_identity(n: NodeContext) -> NodeResult:
    found = n.inputs[0]
    if found is None:
        raise NodeError("Identity: the input is missing")
    return found


@onnx_op("Dropout")
def import_dropout(n: NodeContext) -> NodeResult:
    """The identity, as in inference; the mask, if wanted, is all true."""
    x = n.value(0)
    training = n.array(2, "training_mode") if n.opset >= 12 else None
    if training is not None and bool(training.reshape(-1)[0]):
        ratio = n.array(1, "ratio")
        if ratio is None or float(ratio.reshape(-1)[0]) != 0.0:
            raise UnsupportedError("Dropout in training mode is random", code="TC1019")
    if not n.has_output(1):
        return x
    mask_dtype = bool_ if n.opset >= 10 else x.dtype
    return [x, n.call("full", shape=x.shape, value=True if mask_dtype.is_bool else 1, dtype=mask_dtype)]


@onnx_op("MelWeightMatrix", since=17)
def import_mel_weight_matrix(n: NodeContext) -> NodeResult:
    """Triangles over the bins of a spectrum, whose corners are evenly spaced on the mel scale (2595 log10(1 + f / 700))."""
    one = (const(1),)
    count, length = (n.call("cast", n.call("reshape", n.value(k), shape=one), dtype=i64) for k in (0, 1))
    (bins,), (points,) = (n.graph.dims(value, f"{n.label}.{what}", n.span) for value, what in ((count, "bins"), (length, "length")))
    rate, low, high = (n.call("cast", n.call("reshape", n.value(k), shape=one), dtype=f64) for k in (2, 3, 4))

    def number(value: float) -> ModelValue:
        return n.const(value, f64)

    def mel(hertz: ModelValue) -> ModelValue:
        grown = n.call("log", n.call("add", number(1), n.call("div", hertz, number(700))))
        return n.call("mul", grown, number(2595 / math.log(10)))

    step = n.call("div", n.call("sub", mel(high), mel(low)), n.call("add", n.call("cast", count, dtype=f64), number(2)))
    index = n.call("cast", n.call("range", start=0, size=bins + 2, step=1), dtype=f64)
    mels = n.call("add", n.call("mul", index, step), mel(low))
    hertz = n.call("mul", n.call("sub", n.call("exp", n.call("mul", mels, number(math.log(10) / 2595))), number(1)), number(700))
    scaled = n.call("mul", n.call("add", n.call("cast", length, dtype=f64), number(1)), hertz)
    corners = n.call("floor", n.call("div", scaled, rate))
    left, middle, right = (n.call("slice", corners, starts=(k,), sizes=(bins,), steps=(1,)) for k in range(3))
    rows = simplify(points // 2 + 1, n.facts)
    row = n.call("cast", n.call("range", start=0, size=rows, step=1), dtype=f64)
    row = n.call("reshape", row, shape=(rows, const(1)))

    def ramp(begin: ModelValue, end: ModelValue, at: ModelValue) -> ModelValue:
        return n.call("div", n.call("sub", at, begin), n.call("sub", end, begin))

    zero = number(0)
    is_rising = n.call("logical_and", n.call("greater_equal", row, left), n.call("less_equal", row, middle))
    rising = n.call("where", is_rising, ramp(left, middle, row), zero)
    peak = n.call("where", n.call("equal", row, middle), number(1), zero)
    rising = n.call("where", n.call("equal", left, middle), peak, rising)
    is_falling = n.call("logical_and", n.call("greater_equal", row, middle), n.call("less", row, right))
    found = n.call("where", is_falling, ramp(right, middle, row), rising)
    return n.call("cast", found, dtype=n.dtype_attr("output_datatype", 1))


# -- products


@onnx_op("MatMul")
def import_matmul(n: NodeContext) -> NodeResult:
    return n.call("matmul", n.value(0), n.value(1))


@onnx_op("Gemm")
def import_gemm(n: NodeContext) -> NodeResult:
    """alpha * A' B' + beta * C"""
    a, b, c = n.value(0), n.value(1), n.optional(2)
    if a.rank != 2 or b.rank != 2:
        raise ShapeError(f"Gemm: A and B must be matrices, found {a.type} and {b.type}")
    if n.attr("transA", 0):
        a = n.call("transpose", a, perm=(1, 0))
    if n.attr("transB", 0):
        b = n.call("transpose", b, perm=(1, 0))
    alpha, beta = n.attr("alpha", 1.0), n.attr("beta", 1.0)
    result = scaled_product(n, a, b, alpha)
    if c is None or beta == 0.0:
        return n.cast(result, a.dtype)
    n.graph.state(partial(require_broadcasts_to, c.shape, result.shape, "Gemm: C"), n.span)
    if beta != 1.0:  # beta * C may be more than 16 bits hold, though the sum is not
        result, c = n.widened(result), n.widened(c)
        c = n.call("mul", c, n.const(beta, c.dtype))
    return n.cast(n.call("add", result, n.cast(c, result.dtype)), a.dtype)


def scaled_product(n: NodeContext, a: ModelValue, b: ModelValue, alpha: float) -> ModelValue:
    """alpha * A B, of 16-bit floats in f32 unless alpha is 1: neither alpha nor the product need be numbers of 16 bits."""
    if alpha == 1.0:
        return n.call("matmul", a, b)
    product = n.call("matmul", n.widened(a), n.widened(b))
    return n.call("mul", product, n.const(alpha, product.dtype))


# -- reductions

_REDUCTIONS = {
    "ReduceL1": "l1",
    "ReduceL2": "l2",
    "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
    "ReduceMax": "max",
    "ReduceMean": "mean",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceSum": "sum",
    "ReduceSumSquare": "sum_square",
}
_ROOTS_AND_LOGARITHMS = ("l2", "log_sum", "log_sum_exp")


def _reduce(op: str, n: NodeContext, axes: list[int] | None) -> ModelValue:
    x = n.value(0)
    if not axes:
        if n.attr("noop_with_empty_axes", 0):
            return _reduce_nothing(op, n, x)
        axes = None
    keepdims = bool(n.attr("keepdims", 1))
    given = None if axes is None else tuple(sorted({axis % max(x.rank, 1) for axis in axes}))
    if given is not None and any(not -x.rank <= axis < x.rank for axis in axes or ()):
        raise ShapeError(f"{n.op_type}: axes {axes} of {x.type}")
    return _reduce_value(op, n, x, given, keepdims)


def _reduce_value(op: str, n: NodeContext, x: ModelValue, given: tuple[int, ...] | None, keepdims: bool) -> ModelValue:
    if x.dtype.is_bool:
        return n.call("cast", n.call(op, n.call("cast", x, dtype=u8), axes=given, keepdims=keepdims), dtype=bool_)
    if op in _ROOTS_AND_LOGARITHMS:
        return _in_floats(n, op, x, axes=given, keepdims=keepdims)
    return n.call(op, x, axes=given, keepdims=keepdims)


def _reduce_nothing(op: str, n: NodeContext, x: ModelValue) -> ModelValue:
    """A reduction over no axis: what it does to each element is done still."""
    match op:
        case "l1" | "l2":
            return n.call("abs", x)
        case "log_sum":
            return _in_floats(n, "log", x)
        case "sum_square":
            return n.call("mul", x, x)
    return x


def _reduce_by_attribute(op: str) -> Callable[[NodeContext], ModelValue]:
    return lambda n: _reduce(op, n, n.axes())


def _reduce_by_input(op: str) -> Callable[[NodeContext], ModelValue]:
    return lambda n: _reduce_by_data(op, n) if n.is_data(1) else _reduce(op, n, n.axes(1))


def _reduce_by_data(op: str, n: NodeContext) -> ModelValue:
    """Over axes that are data: each axis of the operand becomes two, one that is kept and one that is reduced, of which one has its size
    and the other one element."""
    x, count = n.value(0), count_of(n, 1)
    if not count:
        return _reduce(op, n, [])
    axes = axes_from_data(n, 1, x.rank)
    kept = bound(n, [select(names_axis(axes, d), const(1), dim) for d, dim in enumerate(x.shape)], "kept")
    reduced = bound(n, [select(names_axis(axes, d), dim, const(1)) for d, dim in enumerate(x.shape)], "reduced")
    apart = n.call("part_axes", x, kept=kept, reduced=reduced)
    result = _reduce_value(op, n, apart, tuple(range(x.rank, 2 * x.rank)), False)
    return result if n.attr("keepdims", 1) else n.call("reshape", result, shape=without_axes(n, x.shape, axes))


for _name, _op in _REDUCTIONS.items():
    onnx_op(_name)(_reduce_by_attribute(_op))
    onnx_op(_name, since=13 if _name == "ReduceSum" else 18)(_reduce_by_input(_op))


def _arg_reduce(op: str) -> Callable[[NodeContext], ModelValue]:
    return lambda n: n.call(
        op,
        n.value(0),
        axis=n.attr("axis", 0),
        keepdims=bool(n.attr("keepdims", 1)),
        select_last_index=bool(n.attr("select_last_index", 0)),
    )


onnx_op("ArgMax")(_arg_reduce("argmax"))
onnx_op("ArgMin")(_arg_reduce("argmin"))


def _softmax(op: str, *, flatten: bool) -> Callable[[NodeContext], ModelValue]:
    def adapter(n: NodeContext) -> ModelValue:
        x = n.value(0)
        axis = n.attr("axis", 1 if flatten else -1)
        if not -x.rank <= axis < max(x.rank, 1):
            raise ShapeError(f"{n.op_type}: axis {axis} of {x.type}")
        if not flatten or axis % x.rank == x.rank - 1:
            return n.call(op, x, axis=axis)
        rows = n.call("flatten", x, axis=axis % x.rank)
        return n.call("reshape", n.call(op, rows, axis=-1), shape=x.shape)

    return adapter


for _name, _op in {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardmax": "hardmax"}.items():
    onnx_op(_name)(_softmax(_op, flatten=True))
    onnx_op(_name, since=13)(_softmax(_op, flatten=False))


def _running(op: str) -> Callable[[NodeContext], ModelValue]:
    def adapter(n: NodeContext) -> ModelValue:
        x, attrs = n.value(0), {"exclusive": bool(n.attr("exclusive", 0)), "reverse": bool(n.attr("reverse", 0))}
        if count_of(n, 1, "axis") != 1 or not x.rank:
            raise NodeError(f"{n.op_type}: the axis must be one integer, and {x.type} must have it")
        if n.is_data(1):
            (axis,) = axes_from_data(n, 1, x.rank)
            flat = n.call("reshape", x, shape=around_axis(n, x.shape, axis))
            return n.call("reshape", n.call(op, flat, axis=1, **attrs), shape=x.shape)
        known = n.ints(1, "axis")
        assert known is not None, "it is there"
        return n.call(op, x, axis=known[0], **attrs)

    return adapter


onnx_op("CumSum")(_running("cumsum"))
onnx_op("CumProd")(_running("cumprod"))


@onnx_op("TopK")
def import_topk(n: NodeContext) -> NodeResult:
    return _topk(n, n.attr("k"), largest=True, sort=True)


@onnx_op("TopK", since=10)
def import_topk_by_input(n: NodeContext) -> NodeResult:
    (k,) = n.dims(1, "k", 1)
    return _topk(n, k, largest=bool(n.attr("largest", 1)), sort=bool(n.attr("sorted", 1)))


def _topk(n: NodeContext, k: AttrValue, *, largest: bool, sort: bool) -> Sequence[ModelValue]:
    """One of the largest is found by a search for it; of the smallest one that is not NaN is wanted, which a search takes first."""
    x, axis = n.value(0), n.attr("axis", -1)
    is_one = k == 1 or (isinstance(k, Const) and k.value == 1)
    if is_one and -x.rank <= axis < x.rank and isinstance(dim := x.shape[axis], Const) and dim.value > 0 and (largest or x.dtype.is_int):
        place = n.call("argmax" if largest else "argmin", x, axis=axis)
        return n.call("gather_elements", x, place, axis=axis, in_range=True), place
    return n.call_many("topk", x, k=k, axis=axis, largest=largest, sorted=sort)


@onnx_op("Det", since=11)
def import_det(n: NodeContext) -> NodeResult:
    return n.call("determinant", n.value(0))
