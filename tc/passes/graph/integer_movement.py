"""Rules by which tensors move as integers, and by which what is quantized again as it was stays what it is.

Operators that only move elements commute with those that map each element alike: they wait for dequantize_linear, and go after
quantize_linear, so that bytes are moved. Signed bytes that are made here become unsigned ones, which products want: 128 more each.
"""

from __future__ import annotations

import numpy as np

from tc.ir.dtype import f32, i8, int_range, u8
from tc.ir.expr import Const
from tc.ir.graph import Atom, Call, TensorConst
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder, full_attrs
from tc.ops.registry import get_op
from tc.passes.graph.quantized import Quantized, dequantized_from, quantized_to
from tc.passes.graph.rewrite import GraphRule, Match, any_, const_, op

REARRANGED = "reshape|squeeze|unsqueeze|flatten|identity|transpose|expand|tile|interleave|depth_to_space|space_to_depth|resize|pad"
"""Operators each of whose results is an element of the first operand or a fill; a resize only of nearest neighbours."""

MOVED = f"{REARRANGED}|slice|split|gather|gather_elements|gather_nd|reverse_sequence|max_pool"
"""The same, those that leave elements out included."""


# -- what waits for dequantize_linear


def _move_integers(b: GraphBuilder, m: Match) -> Atom | tuple[Atom, ...] | None:
    """move(dequantize(x)) as dequantize(move(x))."""
    call, x = m.call("move"), dequantized_from(m, m.x)
    if x is None or not _only_moves(call) or (x.axis is not None and call.op != "transpose"):
        return None
    moved = _moved(b, call, x)
    if moved is None:
        return None
    axis = None if x.axis is None else _order(call, x.type.rank).index(x.axis)
    found = tuple(x.dequantized(b, each, axis) for each in moved)
    return found[0] if len(found) == 1 else found


def _only_moves(call: Call) -> bool:
    attrs = full_attrs(call)
    if call.op == "resize":
        return bool(attrs.mode == "nearest" and attrs.coordinate_mode != "tf_crop_and_resize")
    return True


def _order(call: Call, rank: int) -> tuple[int, ...]:
    return tuple(full_attrs(call).perm or reversed(range(rank)))


def _moved(b: GraphBuilder, call: Call, x: Quantized) -> tuple[Atom, ...] | None:
    """The results of the operator on the integers; None where they have no number for a fill."""
    operands = [x.value, *call.args[1:]]
    if call.op == "pad" and full_attrs(call).mode == "constant":
        fill = _steps_of(x, call.args[1] if len(call.args) > 1 else None)
        if fill is None:
            return None
        operands = [x.value, b.const(np.array(fill, x.dtype.numpy))]
    turned = get_op(call.op).turned
    if isinstance(x.value, TensorConst) and turned is not None:  # whoever needs it in order packs it anyway
        return (TensorConst(turned(x.value.value, full_attrs(call)), x.value.name, span=call.span),)
    return b.call_many(call.op, *operands, span=call.span, **dict(call.attrs))  # type: ignore[arg-type]  # no attribute is called span


def _steps_of(x: Quantized, number: Atom | None) -> int | None:
    """The integer that means just this literal number (None: 0) under the parameters of x, if there is one."""
    if number is None:
        value = np.float32(0)
    elif isinstance(number, TensorConst) and number.value.size == 1:
        value = np.float32(number.value.reshape(()))
    else:
        return None
    if value == 0:
        return int(x.zero)
    if not np.isfinite(value) or not x.is_one_to_one:
        return None
    steps = round(float(value) / float(x.scale)) + int(x.zero)  # in f64: FLT_MAX over a scale is no number of f32
    low, high = int_range(x.dtype)
    if not low <= steps <= high:
        return None
    return steps if np.float32(steps - int(x.zero)) * x.scale == value else None


def _join_integers(b: GraphBuilder, m: Match) -> Atom | None:
    """concat(dequantize(x), dequantize(y)) of equal parameters as dequantize(concat(x, y))."""
    call = m.call("concat")
    parts = [dequantized_from(m, arg) for arg in call.args if arg is not None]
    first = parts[0] if parts else None
    if first is None or first.axis is not None or not all(part is not None and part.has_parameters_of(first) for part in parts):
        return None
    joined = b.call_with("concat", [part.value for part in parts if part is not None], call.attrs, call.span)
    return first.dequantized(b, joined)


def _clip_integers(b: GraphBuilder, m: Match) -> Atom | None:
    """clip(dequantize(x)), at numbers that x has or beyond all of them, as dequantize(clip(x))."""
    call, x = m.call("clip"), dequantized_from(m, m.x)
    if x is None or x.axis is not None or not x.is_one_to_one:
        return None
    low, high = int_range(x.dtype)
    bounds: list[int] = []
    for beyond, number in zip((low, high), _bounds(call), strict=True):
        steps = _steps_of(x, number) if number is not None else beyond
        if steps is None and number is not None and _is_beyond(x, number, beyond):
            steps = beyond
        if steps is None:
            return None
        bounds.append(steps)
    if bounds[0] > bounds[1]:
        return None
    value = x.value
    if bounds != [low, high]:
        value = b.call("clip", value, *(b.const(np.array(bound, x.dtype.numpy)) for bound in bounds))
    return x.dequantized(b, value)


def _bounds(call: Call) -> tuple[Atom | None, Atom | None]:
    """The least and the greatest result of relu or clip."""
    if call.op == "relu":
        return TensorConst(np.zeros((), np.float32)), None
    low, high, *_ = (*call.args[1:], None, None)
    return low, high


def _is_beyond(x: Quantized, number: Atom, end: int) -> bool:
    """Whether a literal number is no less (or no greater) than what the end of the integers' range means."""
    if not isinstance(number, TensorConst) or number.value.size != 1:
        return False
    means = np.float32(end - int(x.zero)) * x.scale
    return bool(number.value.reshape(()) <= means if end == int_range(x.dtype)[0] else number.value.reshape(()) >= means)


# -- what goes after quantize_linear


def _quantize_first(b: GraphBuilder, m: Match) -> Atom | None:
    """quantize(move(x)) as move(quantize(x))."""
    call, to = m.call("move"), quantized_to(m.call("quantize"), m.roots["quantize"])
    if to is None or to.axis is not None or not _only_moves(call) or (call.op == "slice" and not _keeps_half(m)):
        return None
    operands = list(call.args)
    if call.op == "pad" and full_attrs(call).mode == "constant":
        fill = operands[1] if len(operands) > 1 else None
        if fill is not None and not isinstance(fill, TensorConst):
            return None
        operands[1:] = [_again(b, m, b.const(np.float32(0)) if fill is None else fill)]
    return b.call_with(call.op, [_again(b, m, m.x), *operands[1:]], call.attrs, call.span)


def _keeps_half(m: Match) -> bool:
    """Whether at least half of what is moved is kept, as far as that is known: to quantize the rest for nobody costs less than a copy."""
    share = 1.0
    for kept, dim in zip(m.type_of("move").shape, m.type_of("x").shape, strict=True):
        if kept is not dim:
            if not isinstance(kept, Const) or not isinstance(dim, Const) or not dim.value:
                return False
            share *= int(kept.value) / int(dim.value)
    return share >= 0.5


def _quantize_parts(b: GraphBuilder, m: Match) -> Atom | None:
    """quantize(concat(x, y)) as concat(quantize(x), quantize(y))."""
    call, to = m.call("concat"), quantized_to(m.call("quantize"), m.roots["quantize"])
    if to is None or to.axis is not None:
        return None
    return b.call_with("concat", [_again(b, m, arg) for arg in call.args if arg is not None], call.attrs, call.span)


def _again(b: GraphBuilder, m: Match, x: Atom) -> Atom:
    """Another value, of any rank, quantized by the one scale of what was matched, which belongs to no axis."""
    call = m.call("quantize")
    attrs = (*((name, value) for name, value in call.attrs if name != "axis"), ("axis", 0))
    return b.call_with("quantize_linear", (x, *call.args[1:]), attrs, call.span)


def _saturate_instead(b: GraphBuilder, m: Match) -> Atom | None:
    """quantize(clip(x)) as quantize(x), where what is clipped would be saturated to the same number."""
    call, to = m.call("clip"), quantized_to(m.call("quantize"), m.roots["quantize"])
    if to is None or to.axis is not None:
        return None
    for end, number in zip(int_range(to.dtype), _bounds(call), strict=True):
        if number is not None and (not isinstance(number, TensorConst) or number.value.size != 1 or _quantized(to, number.value) != end):
            return None
    return _again(b, m, m.x)


def _quantized(to: Quantized, number: np.ndarray) -> int | None:
    low, high = int_range(to.dtype)
    with np.errstate(all="ignore"):
        steps = np.round(number.reshape(()).astype(np.float32) / to.scale) + np.float32(to.zero)
    return None if np.isnan(steps) else int(np.clip(steps, low, high))


# -- what was quantized before


def _as_it_was(b: GraphBuilder, m: Match) -> Atom | None:
    """quantize(dequantize(x)) with equal parameters: x."""
    x = dequantized_from(m, m.x)
    to = None if x is None else quantized_to(m.call("quantize"), m.roots["quantize"])
    return x.value if x is not None and to is not None and x.has_parameters_of(to) and x.is_one_to_one else None


# -- signs

_SHIFT = 128


def _quantize_unsigned(b: GraphBuilder, m: Match) -> Atom | None:
    """quantize to i8 as quantize to u8, less 128."""
    call = m.call("quantize")
    to = quantized_to(call, m.roots["quantize"]) if m.type_of("quantize").dtype is i8 else None
    if to is None:
        return None
    zero = b.const((to.zero + _SHIFT).astype(np.uint8))
    attrs = (*((name, value) for name, value in call.attrs if name != "dtype"), ("dtype", u8))
    made = b.call_with("quantize_linear", (call.args[0], b.const(to.scale), zero), attrs, call.span)
    return b.call("cast", b.call("sub", made, b.const(np.uint8(_SHIFT))), dtype=i8)


def _is_shifted(m: Match) -> bool:
    own = m.type_of("x").dtype is u8 and m.attrs("signed").dtype is i8
    return own and m.value("shift").size == 1 and int(m.value("shift").reshape(())) == _SHIFT


def _dequantize_unsigned(b: GraphBuilder, m: Match) -> Atom | None:
    """dequantize of u8 less 128 as dequantize of the u8."""
    call = m.call("dequantize")
    found = dequantized_from(m, m.roots["dequantize"])
    if found is None:
        return None
    shifted = Quantized(m.x, found.scale, found.zero + _SHIFT, found.axis)
    zero = b.const(shifted.zero.astype(np.uint8))
    return b.call_with("dequantize_linear", (m.x, b.const(found.scale), zero), call.attrs, call.span)


_SIGNED = op("cast", op("sub", any_("x"), const_("shift")), name="signed")


def _is_shifted_back(m: Match) -> bool:
    return _is_shifted(m) and m.value("back").size == 1 and int(m.value("back").reshape(())) == _SHIFT and m.attrs("raised").dtype is u8


# -- the table


def _x(b: GraphBuilder, *shape: int) -> Atom:
    return b.param("x", tensor_type(shape, f32))


def _u8(b: GraphBuilder, *shape: int) -> Atom:
    return b.param("x", tensor_type(shape, u8))


def _number(b: GraphBuilder, value: float) -> TensorConst:
    return b.const(np.float32(value))


def _wide(b: GraphBuilder, *shape: int, name: str = "x", scale: float = 0.5, zero: int = 3) -> Atom:
    x = b.param(name, tensor_type(shape, u8))
    return b.call("dequantize_linear", x, b.const(np.float32(scale)), b.const(np.uint8(zero)))


def _narrow(b: GraphBuilder, x: Atom, scale: float = 0.5, zero: int = 3) -> Atom:
    return b.call("quantize_linear", x, b.const(np.float32(scale)), b.const(np.uint8(zero)), dtype=u8)


def _signed(b: GraphBuilder, x: Atom) -> Atom:
    return b.call("cast", b.call("sub", x, b.const(np.uint8(_SHIFT))), dtype=i8)


_QUANTIZED = {"name": "quantize", "rest": True}

MOVEMENT_RULES = (
    GraphRule(
        "moved before it is dequantized",
        op(MOVED, any_("x"), name="move", rest=True),
        _move_integers,
        example=lambda b: b.call("pad", b.call("transpose", _wide(b, 2, 3), perm=(1, 0)), b.const(np.float32(-1.5)), pads=(1, 0, 0, 2)),
    ),
    GraphRule(
        "joined before it is dequantized",
        op("concat", name="concat", rest=True),
        _join_integers,
        example=lambda b: b.call("concat", _wide(b, 2, 3), _wide(b, 4, 3, name="y"), axis=0),
    ),
    GraphRule(
        "clipped before it is dequantized",
        op("relu|clip", any_("x"), name="clip", rest=True),
        _clip_integers,
        example=lambda b: b.call("clip", _wide(b, 2, 3, zero=1), b.const(np.float32(-0.5)), b.const(np.float32(0.0))),
    ),
    GraphRule(
        "quantized as it was before",
        op("quantize_linear", any_("x"), **_QUANTIZED),  # type: ignore[arg-type]
        _as_it_was,
        example=lambda b: _narrow(b, _wide(b, 2, 3)),
    ),
    GraphRule(
        "quantized before it is moved",
        op("quantize_linear", op(f"{REARRANGED}|slice", any_("x"), name="move", single_use=True, rest=True), **_QUANTIZED),  # type: ignore[arg-type]
        _quantize_first,
        example=lambda b: _narrow(b, b.call("pad", b.call("reshape", _x(b, 2, 3), shape=(3, 2)), _number(b, 1.0), pads=(1, 0, 0, 2))),
    ),
    GraphRule(
        "quantized before it is joined",
        op("quantize_linear", op("concat", name="concat", single_use=True, rest=True), **_QUANTIZED),  # type: ignore[arg-type]
        _quantize_parts,
        example=lambda b: _narrow(b, b.call("concat", _x(b, 2, 3), _wide(b, 2, 3, name="y", scale=0.25), axis=1)),
    ),
    GraphRule(
        "saturated, and so not clipped",
        op("quantize_linear", op("relu|clip", any_("x"), name="clip", single_use=True, rest=True), **_QUANTIZED),  # type: ignore[arg-type]
        _saturate_instead,
        example=lambda b: _narrow(b, b.call("relu", _x(b, 2, 3)), zero=0),
    ),
    GraphRule(
        "signed bytes as unsigned ones",
        op("quantize_linear", any_("x"), **_QUANTIZED),  # type: ignore[arg-type]
        _quantize_unsigned,
        example=lambda b: b.call("quantize_linear", _x(b, 2, 3), b.const(np.float32(0.25)), b.const(np.int8(-3)), dtype=i8),
    ),
    GraphRule(
        "unsigned bytes in signed ones, dequantized",
        op("dequantize_linear", _SIGNED, name="dequantize", rest=True),
        _dequantize_unsigned,
        when=_is_shifted,
        example=lambda b: b.call("dequantize_linear", _signed(b, _u8(b, 4)), _number(b, 0.5), b.const(np.int8(-9))),
    ),
)

SIGN_RULES = (
    GraphRule(
        "unsigned bytes made signed and unsigned again",
        op("add", op("cast", _SIGNED, name="raised"), const_("back")),
        lambda b, m: m.x,
        when=_is_shifted_back,
        example=lambda b: b.call("add", b.call("cast", _signed(b, _u8(b, 4)), dtype=u8), b.const(np.uint8(_SHIFT))),
    ),
)
