"""Normalisations and activations that a model spells out, as the operators they are.

The rules for normalisations meet in the middle: `x / sqrt(mean(x * x) + e)` in each of its spellings is an RMS normalisation;
one of values from which their mean was taken is a layer normalisation; a factor or term per element of the row is its scale
or its bias.
"""

from __future__ import annotations

import numpy as np

from tc.ir.arith import equal_shapes, prove
from tc.ir.dtype import bf16, f16, f32
from tc.ir.expr import equal, is_const
from tc.ir.graph import Atom, Call, TensorConst
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.passes.graph.rewrite import GraphRule, Match, OpPattern, any_, const_, op, rewrite_module
from tc.passes.manager import graph_pass


@graph_pass
def find_idioms(module: IRModule) -> IRModule:
    """Make normalisations over the last axis, and gelu, one operator each; see IDIOM_RULES."""
    return rewrite_module(module, IDIOM_RULES)


_X = any_("x")
_SQUARES = op("add", op("mean", op("mul", _X, _X), name="mean"), const_("epsilon"), commutes=True, name="shifted")
_SPREAD = op("sqrt", _SQUARES)
_INVERSES: dict[str, OpPattern] = {
    "one over a root": op("div", const_("one"), _SPREAD, name="inverse"),
    "the reciprocal of a root": op("reciprocal", _SPREAD),
    "a reciprocal root": op("rsqrt", _SQUARES),
    "a power of -1/2": op("abs", op("div", const_("one"), _SPREAD)),  # as `simplify_graph` has it
}


def _is_last_axis(m: Match, name: str, rank: int) -> bool:
    attrs = m.attrs(name)
    return attrs.axes is not None and bool(attrs.keepdims) and [a % rank for a in attrs.axes] == [rank - 1]


def _is_number(m: Match, name: str, value: float) -> bool:
    return name not in m.atoms or (m.value(name).size == 1 and float(m.value(name).reshape(())) == value)


def _is_rms(m: Match) -> bool:
    type_ = m.type_of("x")
    plain = type_.dtype.is_float and type_.rank > 0 and _is_last_axis(m, "mean", type_.rank)
    return plain and m.value("epsilon").size == 1 and _is_number(m, "one", 1.0)


def _rms_norm(b: GraphBuilder, m: Match) -> Atom:
    return b.call("rms_norm", m.x, axis=-1, epsilon=float(m.value("epsilon").reshape(())))


def _layer_norm(b: GraphBuilder, m: Match) -> Atom | None:
    """An RMS normalisation of x - mean(x)."""
    rank, attrs = m.type_of("x").rank, m.attrs("rms_norm")
    if attrs.axis not in (-1, rank - 1) or not _is_last_axis(m, "mean", rank):
        return None
    return b.call("layer_norm", m.x, *m.call("rms_norm").args[1:], axis=-1, epsilon=attrs.epsilon)


def _row(b: GraphBuilder, m: Match, name: str) -> Atom | None:
    """An operand with one element per place of the last axis, as a tensor of rank 1; None when it is anything else."""
    atom, type_ = m.atoms[name], m.type_of(name)
    last = m.type_of("norm").shape[-1]
    per_place = type_.rank > 0 and all(is_const(dim, 1) for dim in type_.shape[:-1])
    if not per_place or prove(equal(type_.shape[-1], last), m.facts) is not True or is_const(last, 1):
        return None
    if type_.dtype != m.type_of("norm").dtype:
        return None
    if isinstance(atom, TensorConst):
        return b.const(atom.value.reshape(-1))
    return atom if type_.rank == 1 else b.call("reshape", atom, shape=(last,))


def _with_operand(b: GraphBuilder, m: Match, name: str, place: int) -> Atom | None:
    """The normalisation with its scale (1) or bias (2), if it has none and nothing comes after it already."""
    call, attrs = m.call("norm"), m.attrs("norm")
    args = (*call.args, *(None for _ in range(3 - len(call.args))))
    rank = m.type_of("norm").rank
    if attrs.axis not in (-1, rank - 1) or any(arg is not None for arg in args[place:]):
        return None
    row = _row(b, m, name)
    if row is None:
        return None
    given = (*args[:place], row)
    return b.call_with(call.op, given, call.attrs, call.span)


def _any_norm(ops: str) -> OpPattern:
    return op(ops, any_("source"), name="norm", single_use=True, rest=True)


def _scaled(b: GraphBuilder, m: Match) -> Atom | None:
    return _with_operand(b, m, "factor", 1)


def _shifted(b: GraphBuilder, m: Match) -> Atom | None:
    return _with_operand(b, m, "term", 2)


# -- a normalisation of groups, as that of instances whose channels are the groups


_REGROUPED = op("reshape", _X, name="groups", rest=True)
_OF_GROUPS = op("reshape", op("instance_norm", _REGROUPED, const_("ones"), const_("zeros"), name="norm"), name="outer", rest=True)


def _is_of_groups(m: Match) -> bool:
    """Of [n, c, *space] as [n, groups, -1], without a scale and a bias of its own."""
    x, grouped, count = m.type_of("x"), m.type_of("groups"), m.value("ones").size
    if x.rank < 3 or grouped.rank != 3 or count == 0 or x.dtype not in (f32, f16, bf16):
        return False
    divides = prove(equal(x.shape[1] % count, 0), m.facts) is True
    same = equal_shapes((x.shape[0], *x.shape), (grouped.shape[0], *m.type_of("outer").shape), m.facts) is True
    return divides and same and bool(np.all(m.value("ones") == 1)) and not m.value("zeros").any()


def _group_norm(b: GraphBuilder, m: Match) -> Atom:
    return b.call("group_norm", m.x, groups=m.value("ones").size, epsilon=m.attrs("norm").epsilon)


def _example_groups(b: GraphBuilder) -> Atom:
    image = b.param("x", tensor_type((2, 6, 4, 3), f32))
    grouped = b.call("reshape", image, shape=(2, 3, 24))
    ones, zeros = (b.const(np.full(3, value, np.float32)) for value in (1, 0))
    return b.call("reshape", b.call("instance_norm", grouped, ones, zeros), shape=(2, 6, 4, 3))


# -- sums of squares and roots that are spelled otherwise


def _integer_power(b: GraphBuilder, m: Match) -> Atom:
    """x * x * ... for a small power."""
    result: Atom = m.x
    for _ in range(int(m.value("c").reshape(())) - 1):
        result = b.call("mul", result, m.x)
    return result


def _is_small_power(m: Match) -> bool:
    same = equal_shapes(m.type_of("x").shape, m.type_of("pow").shape, m.facts) is True
    return same and m.value("c").size == 1 and m.type_of("x").dtype.is_float and m.value("c").reshape(()) in (3, 4)


def _erf_of_product(b: GraphBuilder, m: Match) -> Atom:
    inverse = 1.0 / m.value("c").astype(np.float64)
    return b.call("erf", b.call("mul", m.x, b.const(inverse.astype(m.value("c").dtype))))


# -- gelu: x / 2 * (1 + erf(x / sqrt(2)))


def _halved_products(bell: OpPattern) -> dict[str, OpPattern]:
    """x * bell / 2, in each order."""
    half = const_("half")
    return {
        "the half last": op("mul", op("mul", _X, bell, commutes=True), half, commutes=True, name="outer"),
        "the half first": op("mul", op("mul", _X, half, commutes=True), bell, commutes=True, name="outer"),
        "the half with the bell": op("mul", _X, op("mul", bell, half, commutes=True), commutes=True, name="outer"),
    }


_ERF = op("erf", op("mul", _X, const_("c"), commutes=True, name="inner"))
_GELUS = _halved_products(op("add", _ERF, const_("one"), commutes=True))
_TANH_GELUS = _halved_products(op("add", op("tanh", any_("u")), const_("one"), commutes=True))


def _is_gelu(m: Match) -> bool:
    numbers = _is_number(m, "half", 0.5) and _is_number(m, "one", 1.0) and m.value("c").size == 1
    same = equal_shapes(m.type_of("x").shape, m.type_of("outer").shape, m.facts) is True
    return numbers and same and abs(float(m.value("c").reshape(())) - 0.5**0.5) < 1e-4


def _gelu(b: GraphBuilder, m: Match) -> Atom:
    return b.call("gelu", m.x, approximate="none")


def _is_halved_tanh(m: Match) -> bool:
    floats = m.type_of("u").dtype.is_float and m.type_of("u").dtype == m.type_of("outer").dtype
    return floats and _is_number(m, "half", 0.5) and _is_number(m, "one", 1.0)


def _times_sigmoid(b: GraphBuilder, m: Match) -> Atom:
    """(1 + tanh(u)) / 2 is sigmoid(2 u)."""
    return b.call("mul", m.x, b.call("sigmoid", b.call("add", m.u, m.u)))


def _example_gelu(b: GraphBuilder, name: str, function: str) -> Atom:
    x, half = _x(b), _number(b, 0.5)
    bell = b.call("add", b.call(function, b.call("mul", x, _number(b, 0.70710677))), _number(b, 1.0))
    if name == "the half last":
        return b.call("mul", b.call("mul", bell, x), half)
    if name == "the half first":
        return b.call("mul", b.call("mul", half, x), bell)
    return b.call("mul", b.call("mul", half, bell), x)


# -- examples


def _x(b: GraphBuilder) -> Atom:
    return b.param("x", tensor_type((3, 8), f32))


def _number(b: GraphBuilder, value: float) -> TensorConst:
    return b.const(np.float32(value))


def _root(b: GraphBuilder, x: Atom) -> Atom:
    squares = b.call("mean", b.call("mul", x, x), axes=(1,))
    return b.call("sqrt", b.call("add", squares, _number(b, 1e-5)))


def _example_inverse(b: GraphBuilder, name: str) -> Atom:
    x = _x(b)
    root = _root(b, x)
    inside = b.bindings[-1].value
    assert isinstance(inside, Call)
    made = {
        "one over a root": lambda: b.call("div", _number(b, 1.0), root),
        "the reciprocal of a root": lambda: b.call("reciprocal", root),
        "a reciprocal root": lambda: b.call("rsqrt", inside.args[0]),
        "a power of -1/2": lambda: b.call("abs", b.call("div", _number(b, 1.0), root)),
    }
    return b.call("mul", made[name](), x)


def _example_centred(b: GraphBuilder) -> Atom:
    x = _x(b)
    return b.call("rms_norm", b.call("sub", x, b.call("mean", x, axes=(-1,))), axis=-1, epsilon=1e-5)


def _row_of(b: GraphBuilder) -> TensorConst:
    return b.const(np.linspace(0.5, 1.5, 8, dtype=np.float32).reshape(1, 8))


IDIOM_RULES = (
    GraphRule(
        "a third or fourth power, as a product",
        op("pow", any_("x"), const_("c"), name="pow"),
        _integer_power,
        when=_is_small_power,
        example=lambda b: b.call("pow", _x(b), _number(b, 3.0)),
        inexact=True,
    ),
    GraphRule(
        "erf of a quotient, as erf of a product",
        op("erf", op("div", any_("x"), const_("c"), name="div")),
        _erf_of_product,
        when=lambda m: bool(np.all(m.value("c") != 0)) and m.type_of("x").dtype == m.type_of("div").dtype,
        example=lambda b: b.call("erf", b.call("div", _x(b), _number(b, 1.4142135))),
        inexact=True,
    ),
    *(
        GraphRule(
            f"gelu, {name}",
            pattern,
            _gelu,
            when=_is_gelu,
            example=lambda b, name=name: _example_gelu(b, name, "erf"),  # type: ignore[misc]
            inexact=True,
        )
        for name, pattern in _GELUS.items()
    ),
    *(
        GraphRule(
            f"half of x (1 + tanh), {name}",
            pattern,
            _times_sigmoid,
            when=_is_halved_tanh,
            example=lambda b, name=name: _example_gelu(b, name, "tanh"),  # type: ignore[misc]
            inexact=True,
        )
        for name, pattern in _TANH_GELUS.items()
    ),
    GraphRule(
        "mish, as the hyperbolic tangent of a softplus",
        op("mul", _X, op("tanh", op("softplus", _X)), commutes=True),
        lambda b, m: b.call("mish", m.x),
        example=lambda b: (lambda x: b.call("mul", b.call("tanh", b.call("softplus", x)), x))(_x(b)),
        inexact=True,
    ),
    GraphRule(
        "a normalisation of groups, as that of instances",
        _OF_GROUPS,
        _group_norm,
        when=_is_of_groups,
        example=_example_groups,
        inexact=True,
    ),
    GraphRule(
        "RMS normalisation, as a quotient",
        op("div", _X, _SPREAD),
        _rms_norm,
        when=_is_rms,
        example=lambda b: (lambda x: b.call("div", x, _root(b, x)))(_x(b)),
        inexact=True,
    ),
    *(
        GraphRule(
            f"RMS normalisation, times {name}",
            op("mul", _X, inverse, commutes=True, name="outer"),
            _rms_norm,
            when=_is_rms,
            example=lambda b, name=name: _example_inverse(b, name),  # type: ignore[misc]
            inexact=True,
        )
        for name, inverse in _INVERSES.items()
    ),
    GraphRule(
        "layer normalisation, as an RMS normalisation",
        op("rms_norm", op("sub", _X, op("mean", _X, name="mean")), rest=True),
        _layer_norm,
        example=_example_centred,
        inexact=True,
    ),
    GraphRule(
        "the scale of a normalisation",
        op("mul", _any_norm("rms_norm|layer_norm"), any_("factor"), commutes=True, name="outer"),
        _scaled,
        example=lambda b: b.call("mul", _row_of(b), b.call("rms_norm", _x(b))),
        inexact=True,
    ),
    GraphRule(
        "the bias of a normalisation",
        op("add", _any_norm("layer_norm"), any_("term"), commutes=True, name="outer"),
        _shifted,
        example=lambda b: b.call("add", b.call("layer_norm", _x(b), b.const(np.ones(8, np.float32))), _row_of(b)),
        inexact=True,
    ),
)

