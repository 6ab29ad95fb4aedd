"""Algebra on graphs: a table of rewrite rules."""

from __future__ import annotations

import numpy as np

from tc.ir.arith import equal_shapes
from tc.ir.dtype import f32, f64
from tc.ir.expr import Const, Expr, as_expr, const, is_const
from tc.ir.graph import Atom, TensorConst
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.arrays import in_parts
from tc.ops.build import GraphBuilder
from tc.ops.common import sum_dtype
from tc.ops.window import window_of
from tc.passes.graph.joins import MOST_JOINED
from tc.passes.graph.rewrite import GraphRule, Match, absent, any_, const_, op, rewrite_module
from tc.passes.manager import graph_pass


@graph_pass
def simplify_graph(module: IRModule, *, exact: bool = False) -> IRModule:
    """Apply GRAPH_RULES until none applies; with `exact`, only those after which every bit of a result is what it was."""
    return rewrite_module(module, [rule for rule in GRAPH_RULES if not (exact and rule.inexact)])


def _keeps_type(m: Match, source: str, target: str) -> bool:
    a, b = m.type_of(source), m.type_of(target)
    return a.dtype == b.dtype and equal_shapes(a.shape, b.shape, m.facts) is True


def _is_value(m: Match, name: str, value: float) -> bool:
    array = m.value(name)
    return array.size > 0 and bool(np.all(array == value))


def _is_power(m: Match, exponent: float) -> bool:
    """Whether a float is raised to one literal exponent."""
    return m.value("c").size == 1 and _is_value(m, "c", exponent) and m.type_of("x").dtype.is_float


def _reciprocal(b: GraphBuilder, m: Match, x: Atom) -> Atom:
    return b.call("div", b.const(np.ones((), m.type_of("x").dtype.numpy)), x)


def _compose(outer: tuple[int, ...], inner: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(inner[axis] for axis in outer)


VIEWS = ("reshape", "squeeze", "unsqueeze", "flatten")
_VIEWS = "|".join(VIEWS)


def _x(b: GraphBuilder, *shape: int) -> Atom:
    return b.param("x", tensor_type(shape, f32))


def _c(b: GraphBuilder, *shape: int, seed: int = 0) -> TensorConst:
    return b.const(np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(np.float32))


def _merge_transposes(b: GraphBuilder, m: Match) -> Atom:
    perm = _compose(m.attrs("outer").perm, m.attrs("inner").perm)
    return m.x if perm == tuple(range(len(perm))) else b.call("transpose", m.x, perm=perm)


def _has_perms(m: Match) -> bool:
    return m.attrs("outer").perm is not None and m.attrs("inner").perm is not None


ALONG_AXIS = "softmax|log_softmax|hardmax|cumsum"


def _moves_and_returns(m: Match) -> bool:
    return _has_perms(m) and _compose(m.attrs("outer").perm, m.attrs("inner").perm) == tuple(range(m.type_of("x").rank))


def _along_axis_of_source(b: GraphBuilder, m: Match) -> Atom:
    call, perm = m.call("along"), m.attrs("inner").perm
    return b.call(call.op, m.x, span=call.span, **{**dict(call.attrs), "axis": perm[m.attrs("along").axis]})


def _join_in_steps(b: GraphBuilder, m: Match) -> Atom:
    call = m.call("concat")
    size = max(MOST_JOINED, -(-len(call.args) // MOST_JOINED))
    parts = [call.args[start : start + size] for start in range(0, len(call.args), size)]
    joined = [b.call_with("concat", part, call.attrs, call.span) if len(part) > 1 else part[0] for part in parts]
    return b.call_with("concat", joined, call.attrs, call.span)


def _example_of_many(b: GraphBuilder) -> Atom:
    x = _x(b, 2, 3)
    return b.call("concat", *(b.call("mul", x, b.const(np.float32(k))) for k in range(MOST_JOINED + 2)), axis=1)


def _bytes(b: GraphBuilder, *shape: int) -> TensorConst:
    return b.const(np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8))


def _transpose_between_views(b: GraphBuilder, m: Match) -> Atom | None:
    """Leading axes that are one while others change places, and that are the same ones again behind that, need not be one."""
    shape, joined, outer = (m.type_of(name).shape for name in ("x", "joined", "outer"))
    lead = len(shape) - len(joined) + 1
    perm = m.attrs("turned").perm or tuple(reversed(range(len(joined))))
    if lead < 2 or len(outer) != len(shape) or perm[0] != 0:
        return None
    same = zip((joined[1:], outer[:lead]), (shape[lead:], shape[:lead]), strict=True)
    if not all(equal_shapes(a, c, m.facts) is True for a, c in same):
        return None
    return b.call("transpose", m.x, perm=(*range(lead), *(lead - 1 + axis for axis in perm[1:])))


def _transpose_quantized(b: GraphBuilder, m: Match) -> Atom:
    rank = m.type_of("w").rank
    perm = m.attrs("outer").perm or tuple(reversed(range(rank)))
    axis = perm.index(m.attrs("wide").axis % rank) if rank > 1 else 0
    attrs = m.attrs("wide")
    parameters = m.call("wide").args[1:]
    if attrs.block_size:  # they have the axes of what they belong to
        parameters = tuple(arg if arg is None else b.call("transpose", arg, perm=perm) for arg in parameters)
    return b.call("dequantize_linear", b.call("transpose", m.w, perm=perm), *parameters, axis=axis, block_size=attrs.block_size)


# -- folding scales and shifts into the weights of a convolution


def _per_output_channel(m: Match, name: str) -> np.ndarray | None:
    """A literal as one value per output channel of the convolution; None when it varies otherwise."""
    value = m.value(name)
    rank = len(m.type_of("conv").shape)
    channels = int(m.type_of("w").shape[0])
    if value.size == 1:
        return np.full(channels, value.reshape(()), value.dtype)
    padded: np.ndarray | None = value.reshape((1,) * (rank - value.ndim) + value.shape) if value.ndim <= rank else None
    if padded is None or padded.shape[1] != channels or padded.size != channels:
        return None
    return padded.reshape(channels)


def _conv_with(b: GraphBuilder, m: Match, scale: np.ndarray, shift: np.ndarray, x: str = "x") -> Atom:
    """conv(x, w, bias) * scale + shift as one convolution."""
    w = m.value("w")
    dtype = w.dtype
    bias = m.atoms.get("bias")
    old = bias.value.astype(np.float64) if isinstance(bias, TensorConst) else 0.0
    weights = np.empty_like(w)
    factors = scale.reshape(-1, *(1,) * (w.ndim - 1))

    def multiply(start: int, stop: int) -> None:  # a cache's worth at a time
        part = slice(start, stop)
        np.multiply(w[part], factors[part], out=weights[part], dtype=np.float64, casting="unsafe")

    in_parts(len(w), w.nbytes, multiply)
    new_bias = (old * scale + shift).astype(dtype)
    call = m.call("conv")
    return b.call_with(call.op, (m.atoms[x], b.const(weights), b.const(new_bias)), call.attrs, call.span)


def _fold_batch_norm(b: GraphBuilder, m: Match) -> Atom:
    scale, shift, mean, var = (m.value(name).astype(np.float64) for name in ("scale", "shift", "mean", "var"))
    factor = scale / np.sqrt(var + m.attrs("batch_norm").epsilon)
    return _conv_with(b, m, factor, shift - mean * factor)


def _fold_channel_op(b: GraphBuilder, m: Match) -> Atom | None:
    values = _per_output_channel(m, "c")
    if values is None:
        return None
    values = values.astype(np.float64)
    match m.calls["outer"].op:
        case "mul":
            return _conv_with(b, m, values, np.zeros_like(values))
        case "add":
            return _conv_with(b, m, np.ones_like(values), values)
    return _conv_with(b, m, np.ones_like(values), -values)


def _tile_by_parts(b: GraphBuilder, m: Match) -> Atom:
    """Each axis that is repeated as two, so that no place is divided by a size: [n, m] -> [1, n, 1, m] -> [r, n, q, m] -> [r n, q m]."""
    parts: list[Expr] = []
    wide: list[Expr] = []
    for dim, count in zip(m.type_of("x").shape, map(as_expr, m.attrs("tile").repeats), strict=True):
        is_alone = is_const(count, 1) or is_const(dim, 1)
        parts += [dim] if is_alone else [const(1), dim]
        wide += [count if is_const(dim, 1) else dim] if is_alone else [count, dim]
    made = b.call("expand", b.call("reshape", m.x, shape=tuple(parts)), shape=tuple(wide), span=m.call("tile").span)
    return b.call("reshape", made, shape=m.type_of("tile").shape)


def _used_taps(m: Match) -> list[tuple[int, int]] | None:
    """For each spatial axis the first of the taps that ever come over the image, and the end of these; None where its size is not known."""
    kernel = m.value("w").shape[2:]
    window = window_of(m.attrs("conv"), kernel, len(kernel), "conv")
    found = []
    for d, (size, count) in enumerate(zip(m.type_of("x").shape[2:], m.type_of("conv").shape[2:], strict=True)):
        if not (isinstance(size, Const) and isinstance(count, Const)) or min(size.value, count.value, kernel[d]) < 1:
            return None
        apart, last = window.dilations[d], (int(count.value) - 1) * window.strides[d]
        used = [t for t in range(kernel[d]) if t * apart - window.begin[d] < size.value and last + t * apart - window.begin[d] >= 0]
        if not used:
            return None
        after = kernel[d] - 1 - max(window.end[d], 0) // apart  # from this tap on there is padding to take away
        found.append((min(used[0], max(window.begin[d], 0) // apart), max(used[-1], after) + 1))
    return found


def _drop_taps(b: GraphBuilder, m: Match) -> Atom | None:
    w, call, used = m.value("w"), m.call("conv"), _used_taps(m)
    if used is None or all(each == (0, size) for each, size in zip(used, w.shape[2:], strict=True)) or not np.isfinite(w).all():
        return None
    window = window_of(m.attrs("conv"), w.shape[2:], len(used), "conv")
    begin = [pad - first * apart for pad, (first, _), apart in zip(window.begin, used, window.dilations, strict=True)]
    lost = [size - end for (_, end), size in zip(used, w.shape[2:], strict=True)]
    ends = [pad - count * apart for pad, count, apart in zip(window.end, lost, window.dilations, strict=True)]
    parts = (slice(None), slice(None), *(slice(*each) for each in used))
    kept = b.const(np.ascontiguousarray(w[parts]))
    attrs = {**dict(call.attrs), "pads": (*begin, *ends)}
    return b.call_with(call.op, (m.x, kept, *call.args[2:]), attrs.items(), call.span)


def _example_of_padding(b: GraphBuilder) -> Atom:
    return b.call("conv", _x(b, 1, 2, 4, 5), _c(b, 3, 2, 3, 3), _c(b, 3, seed=1), dilations=(4, 5), pads=(4, 5, 4, 5))


_CONV = op("conv", any_("x"), const_("w"), absent(), name="conv", single_use=True)
_CONV_BIAS = op("conv", any_("x"), const_("w"), const_("bias"), name="conv", single_use=True)


def _example_conv(b: GraphBuilder, bias: bool) -> Atom:
    return b.call("conv", _x(b, 1, 3, 5, 5), _c(b, 4, 3, 3, 3), _c(b, 4, seed=1) if bias else None)


def _example_batch_norm(b: GraphBuilder, bias: bool) -> Atom:
    return b.call("batch_norm", _example_conv(b, bias), *(_c(b, 4, seed=k) for k in range(2, 6)))


def _batch_norm_alone(b: GraphBuilder, m: Match) -> Atom:
    """A batch normalization that no convolution takes in: one multiplication and one addition."""
    scale, shift, mean, var = (m.value(name).astype(np.float64) for name in ("scale", "shift", "mean", "var"))
    factor = scale / np.sqrt(var + m.attrs("batch_norm").epsilon)
    type_ = m.type_of("x")
    shape, wide = (-1, *(1,) * (type_.rank - 2)), sum_dtype(type_.dtype)
    factors, summands = (b.const(each.astype(wide.numpy).reshape(shape)) for each in (factor, shift - mean * factor))
    if wide is type_.dtype:
        return b.call("add", b.call("mul", m.x, factors), summands)
    # of 16 bits neither would be a number near enough: the two nearly cancel where the mean is large
    return b.call("cast", b.call("add", b.call("mul", b.call("cast", m.x, dtype=wide), factors), summands), dtype=type_.dtype)


_BN_LITERALS = (const_("scale"), const_("shift"), const_("mean"), const_("var"))


GRAPH_RULES = (
    GraphRule(
        "a tile is an expansion of parts",
        op("tile", any_("x"), name="tile"),
        _tile_by_parts,
        example=lambda b: b.call("tile", _x(b, 2, 1, 3, 5), repeats=(3, 4, 1, 2)),
    ),
    GraphRule(
        "a reshape to the same shape",
        op(_VIEWS, any_("x"), name="view"),
        lambda b, m: m.x,
        when=lambda m: _keeps_type(m, "x", "view"),
        example=lambda b: b.call("reshape", _x(b, 2, 3), shape=(2, 3)),
    ),
    GraphRule(
        "a view of a view",
        op(_VIEWS, op(_VIEWS, any_("x"), name="inner"), name="outer"),
        lambda b, m: b.call("reshape", m.x, shape=m.type_of("outer").shape),
        example=lambda b: b.call("unsqueeze", b.call("reshape", _x(b, 2, 3), shape=(6,)), axes=(0,)),
    ),
    GraphRule(
        "a transpose of a transpose",
        op("transpose", op("transpose", any_("x"), name="inner"), name="outer"),
        _merge_transposes,
        when=_has_perms,
        example=lambda b: b.call(
            "transpose", b.call("transpose", _x(b, 2, 3, 4), perm=(1, 2, 0)), perm=(2, 1, 0)
        ),
    ),
    GraphRule(
        "a function along an axis between a transpose and its inverse",
        op("transpose", op(ALONG_AXIS, op("transpose", any_("x"), name="inner"), name="along"), name="outer"),
        _along_axis_of_source,
        when=_moves_and_returns,
        example=lambda b: b.call(
            "transpose", b.call("softmax", b.call("transpose", _x(b, 2, 3, 4), perm=(0, 2, 1)), axis=2), perm=(0, 2, 1)
        ),
    ),
    GraphRule(
        "a transpose between views that join leading axes and divide them again",
        op("reshape", op("transpose", op(_VIEWS, any_("x"), name="joined"), name="turned"), name="outer"),
        _transpose_between_views,
        example=lambda b: b.call(
            "reshape", b.call("transpose", b.call("reshape", _x(b, 2, 3, 4, 5), shape=(6, 4, 5)), perm=(0, 2, 1)), shape=(2, 3, 5, 4)
        ),
    ),
    GraphRule(
        "a transpose that moves nothing",
        op("transpose", any_("x"), name="outer"),
        lambda b, m: m.x,
        when=lambda m: m.attrs("outer").perm == tuple(range(m.type_of("x").rank)),
        example=lambda b: b.call("transpose", _x(b, 2, 3), perm=(0, 1)),
    ),
    GraphRule(
        "a literal that is cast and transposed",
        op("transpose", op("cast", const_("w"), name="cast"), name="outer"),
        lambda b, m: b.call("cast", b.call("transpose", m.w, perm=m.attrs("outer").perm), dtype=m.attrs("cast").dtype),
        example=lambda b: b.call("transpose", b.call("cast", _c(b, 2, 3), dtype=f64), perm=(1, 0)),
    ),
    GraphRule(
        "a concatenation of many parts, in two steps",
        op("concat", name="concat", rest=True),
        _join_in_steps,
        when=lambda m: len(m.call("concat").args) > MOST_JOINED,
        example=_example_of_many,
    ),
    GraphRule(
        "a literal that is dequantized and transposed",
        op("transpose", op("dequantize_linear", const_("w"), name="wide", rest=True), name="outer"),
        _transpose_quantized,
        example=lambda b: b.call("transpose", b.call("dequantize_linear", _bytes(b, 2, 3), _c(b, 3), None, axis=1), perm=(1, 0)),
    ),
    GraphRule(
        "a literal that is dequantized in blocks and transposed",
        op("transpose", op("dequantize_linear", const_("w"), name="wide", rest=True), name="outer"),
        _transpose_quantized,
        example=lambda b: b.call(
            "transpose", b.call("dequantize_linear", _bytes(b, 2, 4), _c(b, 2, 2), None, axis=1, block_size=2), perm=(1, 0)
        ),
    ),
    GraphRule(
        "identity",
        op("identity", any_("x")),
        lambda b, m: m.x,
        example=lambda b: b.call("identity", _x(b, 2)),
    ),
    GraphRule(
        "a cast to the same dtype",
        op("cast", any_("x"), name="cast"),
        lambda b, m: m.x,
        when=lambda m: m.type_of("x").dtype == m.type_of("cast").dtype,
        example=lambda b: b.call("cast", _x(b, 2), dtype=f32),
    ),
    GraphRule(
        "an expand to the same shape",
        op("expand", any_("x"), name="expand"),
        lambda b, m: m.x,
        when=lambda m: _keeps_type(m, "x", "expand"),
        example=lambda b: b.call("expand", _x(b, 2, 3), shape=(1, 3)),
    ),
    GraphRule(
        "times one",
        op("mul", any_("x"), const_("c"), commutes=True, name="mul"),
        lambda b, m: m.x,
        when=lambda m: _is_value(m, "c", 1) and _keeps_type(m, "x", "mul"),
        example=lambda b: b.call("mul", _x(b, 2), b.const(np.float32(1.0))),
    ),
    GraphRule(
        "divided by one",
        op("div", any_("x"), const_("c"), name="div"),
        lambda b, m: m.x,
        when=lambda m: _is_value(m, "c", 1) and _keeps_type(m, "x", "div"),
        example=lambda b: b.call("div", _x(b, 2), b.const(np.float32(1.0))),
    ),
    GraphRule(
        "a square, as a product",
        op("pow", any_("x"), const_("c"), name="pow"),
        lambda b, m: b.call("mul", m.x, m.x),
        when=lambda m: _is_power(m, 2),
        example=lambda b: b.call("pow", _x(b, 2, 3), b.const(np.float32(2.0))),
    ),
    GraphRule(
        "a square root, as such",
        op("pow", any_("x"), const_("c"), name="pow"),
        lambda b, m: b.call("sqrt", m.x),
        when=lambda m: _is_power(m, 0.5) and m.type_of("x").dtype is f32,
        example=lambda b: b.call("pow", b.call("abs", _x(b, 2, 3)), b.const(np.float32(0.5))),
        inexact=True,
    ),
    GraphRule(
        "a reciprocal, as a quotient",
        op("pow", any_("x"), const_("c"), name="pow"),
        lambda b, m: _reciprocal(b, m, m.x),
        when=lambda m: _is_power(m, -1),
        example=lambda b: b.call("pow", _x(b, 2, 3), b.const(np.float32(-1.0))),
        inexact=True,
    ),
    GraphRule(
        "the reciprocal of a square root, as a quotient",
        op("pow", any_("x"), const_("c"), name="pow"),
        lambda b, m: b.call("abs", _reciprocal(b, m, b.call("sqrt", m.x))),  # infinity for either zero
        when=lambda m: _is_power(m, -0.5) and m.type_of("x").dtype is f32,
        example=lambda b: b.call("pow", b.call("abs", _x(b, 2, 3)), b.const(np.float32(-0.5))),
        inexact=True,
    ),
    GraphRule(
        "a convolution with taps over padding alone",
        op("conv", any_("x"), const_("w"), name="conv", rest=True),
        _drop_taps,
        when=lambda m: any(step > 1 for step in m.attrs("conv").dilations or ()),
        example=_example_of_padding,
        inexact=True,
    ),
    GraphRule(
        "a convolution, then a batch normalization",
        op("batch_norm", _CONV, *_BN_LITERALS),
        _fold_batch_norm,
        example=lambda b: _example_batch_norm(b, False),
        inexact=True,
    ),
    GraphRule(
        "a convolution with bias, then a batch normalization",
        op("batch_norm", _CONV_BIAS, *_BN_LITERALS),
        _fold_batch_norm,
        example=lambda b: _example_batch_norm(b, True),
        inexact=True,
    ),
    GraphRule(
        "a convolution, then a factor or term per channel",
        op("mul|add", _CONV, const_("c"), name="outer", commutes=True),
        _fold_channel_op,
        example=lambda b: b.call("mul", _example_conv(b, False), _c(b, 4, 1, 1)),
        inexact=True,
    ),
    GraphRule(
        "a convolution with bias, then a factor or term per channel",
        op("mul|add", _CONV_BIAS, const_("c"), name="outer", commutes=True),
        _fold_channel_op,
        example=lambda b: b.call("add", _example_conv(b, True), _c(b, 4, 1, 1)),
        inexact=True,
    ),
    GraphRule(
        "a convolution, then a subtraction per channel",
        op("sub", _CONV, const_("c"), name="outer"),
        _fold_channel_op,
        example=lambda b: b.call("sub", _example_conv(b, False), _c(b, 4, 1, 1)),
        inexact=True,
    ),
    GraphRule(
        "a batch normalization, as a factor and a term",
        op("batch_norm", any_("x"), *_BN_LITERALS),
        _batch_norm_alone,
        example=lambda b: b.call("batch_norm", _x(b, 2, 4, 3), *(_c(b, 4, seed=k) for k in range(4))),
        inexact=True,
    ),
)
