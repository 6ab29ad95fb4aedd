"""Attention, in any spelling, as one operator.

A second product of a softmax of a first product is an attention, whatever maps the scores one by one in between. The rules
here find it, and then draw into the operator what models write around it: transposes, scales, and heads that are repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tc.errors import ShapeError
from tc.ir.arith import equal_shapes
from tc.ir.dtype import bf16, f16, f32
from tc.ir.expr import Expr, is_const
from tc.ir.graph import Atom, Attrs, Call, TensorConst
from tc.ir.module import IRModule
from tc.ir.types import TensorType, tensor_type
from tc.ops.build import GraphBuilder, full_attrs
from tc.passes.graph.rewrite import GraphRule, Match, any_, op, rewrite_module
from tc.passes.graph.simplify_graph import GRAPH_RULES, VIEWS
from tc.passes.manager import graph_pass

MAX_STEPS = 8
"""Operators looked at between the first product and the softmax."""


@graph_pass
def find_attention(module: IRModule) -> IRModule:
    """Make every attention one operator; see ATTENTION_RULES."""
    found = rewrite_module(module, ATTENTION_RULES[:1])
    return module if found is module else rewrite_module(found, (*ATTENTION_RULES, *GRAPH_RULES))


@graph_pass
def round_attention(module: IRModule) -> IRModule:
    """Let the second product of each attention of halves take halves, which instructions for products of matrices multiply."""
    return rewrite_module(module, ROUNDING_RULES)


# -- from the softmax up to the first product


@dataclass(frozen=True)
class Scores:
    """How scores come about: `first` is the first product; the steps from there on, with their operands, in order.

    `lead` are the leading dims of the scores where they are most finely divided: a model may write (batch, heads) as one axis.
    """

    first: Call
    steps: tuple[tuple[str, tuple[Atom, ...]], ...]
    lead: tuple[Expr, ...]


def _type(atom: Atom | None) -> TensorType:
    assert atom is not None and isinstance(atom.type, TensorType)
    return atom.type


def trace_scores(m: Match, atom: Atom, depth: int = 0) -> Scores | None:
    """The way from a first product to the value `atom`; None when it is not made of steps that attention knows."""
    call = m.call_of(atom, single_use=True)
    if call is None or depth > MAX_STEPS:
        return None
    shape = _type(atom).shape
    if call.op == "matmul":
        types = [_type(arg) for arg in call.args]
        return Scores(call, (), shape[:-2]) if types[0].rank == types[1].rank == len(shape) else None
    if call.op in VIEWS:
        return _through_view(m, call, shape, depth)
    if call.op == "cast" and _type(atom).dtype.is_float and _type(call.args[0]).dtype.is_float:
        return trace_scores(m, call.args[0], depth + 1) if _type(atom).dtype.bits >= 32 else None  # type: ignore[arg-type]
    for name, place, operands in _as_steps(call):
        inner = call.args[place]
        same = inner is not None and equal_shapes(_type(inner).shape, shape, m.facts) is True
        before = trace_scores(m, inner, depth + 1) if same and inner is not None else None
        if before is not None:
            fitted = tuple(_fitted(operand, len(shape), before.lead) for operand in operands)
            if None in fitted:
                return None
            return Scores(before.first, (*before.steps, (name, fitted)), before.lead)  # type: ignore[arg-type]
    return None


def _as_steps(call: Call) -> list[tuple[str, int, tuple[Atom, ...]]]:
    """Ways to read a call as a step: its name, which operand the scores are, the other operands."""
    args: tuple[Any, ...] = call.args
    match call.op:
        case "mul" | "add":
            return [(call.op, 0, args[1:]), (call.op, 1, args[:1])]
        case "div" | "sub":
            return [(call.op, 0, args[1:])]
        case "where":
            return [("keep", 1, (args[0], args[2])), ("drop", 2, (args[0], args[1]))]
        case "tanh":
            return [("tanh", 0, ())]
    return []


def _through_view(m: Match, call: Call, shape: tuple[Expr, ...], depth: int) -> Scores | None:
    """A view that leaves rows and columns alone divides or joins leading axes."""
    inner = call.args[0]
    assert inner is not None
    old = _type(inner).shape
    if len(old) < 2 or len(shape) < 2 or equal_shapes(old[-2:], shape[-2:], m.facts) is not True:
        return None
    before = trace_scores(m, inner, depth + 1)
    if before is None or len(before.lead) > len(shape) - 2:
        return before
    if len(before.lead) == len(shape) - 2:
        return before if equal_shapes(before.lead, shape[:-2], m.facts) is True else None
    steps = tuple((name, tuple(_fitted(o, len(old), shape[:-2]) for o in operands)) for name, operands in before.steps)
    if any(None in operands for _, operands in steps):
        return None
    return Scores(before.first, steps, shape[:-2])  # type: ignore[arg-type]


def _fitted(operand: Atom, rank: int, lead: tuple[Expr, ...]) -> Atom | None:
    """An operand of scores of some rank that fits scores with `lead` too; None for one that depends on axes that differ."""
    own = _type(operand).shape
    plain = rank == len(lead) + 2 or len(own) <= 2 or all(is_const(dim, 1) for dim in own[:-2])
    return operand if plain else None


# -- the rules


def _attention(b: GraphBuilder, m: Match) -> Atom | None:
    """matmul(softmax(scores), v), the softmax over the last axis; or of its chances with zeros where they are NaN."""
    chances, v = m.call("second").args
    softmax = m.call_of(chances, single_use=True)
    with_nan = _without_nan(m, softmax)
    if with_nan is not None:
        chances, softmax = with_nan, m.call_of(with_nan)
    if softmax is not None and softmax.op == "cast":
        softmax = m.call_of(softmax.args[0], single_use=True)
    if softmax is None or softmax.op != "softmax" or v is None or chances is None:
        return None
    rank, source = _type(chances).rank, softmax.args[0]
    if full_attrs(softmax).axis not in (-1, rank - 1) or _type(v).rank != rank or source is None:
        return None
    scores = trace_scores(m, source)
    if scores is None:
        return None
    q, keys = scores.first.args
    assert q is not None and keys is not None
    dtype = _type(v).dtype
    if not dtype.is_float or any(_type(each).dtype != dtype for each in (q, keys)):
        return None
    width = len(scores.lead) + 2
    q, keys, values = (_with_lead(b, each, scores.lead) for each in (q, keys, v))
    swapped = (*range(width - 2), width - 1, width - 2)
    steps = tuple(_without_division(b, name, operands) for name, operands in scores.steps)
    terms = tuple(operand for _, operands in steps for operand in operands)
    names = tuple(name for name, _ in steps)
    attrs = (("steps", names), ("k_perm", swapped), *((("nan_to_zero", True),) if with_nan is not None else ()))
    found = _call(b, Call("attention", (q, keys, values, *terms), attrs))
    return None if found is None else _like(b, m, found)


def _without_nan(m: Match, call: Call | None) -> Atom | None:
    """x when a call is where(isnan(x), 0, x), which is all that reads x."""
    if call is None or call.op != "where":
        return None
    asked, zero, x = call.args
    test = m.call_of(asked, single_use=True)
    is_zero = isinstance(zero, TensorConst) and zero.value.size == 1 and not zero.value.any()
    return x if is_zero and test is not None and test.op == "is_nan" and test.args[0] is x and m.num_uses(x) == 2 else None


def _without_division(b: GraphBuilder, name: str, operands: tuple[Atom, ...]) -> tuple[str, tuple[Atom, ...]]:
    """Division by a literal as a product."""
    if name != "div" or not isinstance(operands[0], TensorConst) or not np.all(operands[0].value):
        return name, operands
    value = operands[0].value
    return "mul", (b.const((1.0 / value.astype(np.float64)).astype(value.dtype)),)


def _with_lead(b: GraphBuilder, x: Atom, lead: tuple[Expr, ...]) -> Atom:
    """`x` with its leading axes divided as `lead`; leading axes of one element stay so."""
    shape = _type(x).shape
    if len(shape) == len(lead) + 2:
        return x
    ones = all(is_const(dim, 1) for dim in shape[:-2])
    return b.call("reshape", x, shape=(*((1,) * len(lead) if ones else lead), *shape[-2:]))


def _like(b: GraphBuilder, m: Match, found: Atom) -> Atom:
    shape = m.type_of("second").shape
    return found if len(_type(found).shape) == len(shape) else b.call("reshape", found, shape=shape)


def _call(b: GraphBuilder, call: Call) -> Atom | None:
    """The call, or None when its operands do not fit."""
    mark = b.mark()
    try:
        return b.call_with(call.op, call.args, call.attrs, call.span)
    except ShapeError:
        b.roll_back(mark)
        return None


_OPERANDS = (any_("q"), any_("k"), any_("v"))


def _changed(call: Call, place: int, operand: Atom, attrs: dict[str, Any]) -> Call:
    args = (*call.args[:place], operand, *call.args[place + 1 :])
    return Call(call.op, args, tuple({**dict(call.attrs), **attrs}.items()), span=call.span)


def perm_of(attrs: Attrs, name: str, rank: int) -> tuple[int, ...]:
    """The axes of an operand or of the result, by the name of the attribute, in the order that attention takes or gives them in."""
    perm = attrs[name]
    return tuple(range(rank)) if perm is None else tuple(perm)  # type: ignore[arg-type]


def _draw_in_transposes(b: GraphBuilder, m: Match) -> Atom | None:
    call = m.call("attention")
    for place, name in enumerate(("q_perm", "k_perm", "v_perm")):
        source = m.call_of(call.args[place])
        if source is None or source.op != "transpose":
            continue
        inner = source.args[0]
        rank = _type(inner).rank
        perm = full_attrs(source).perm or tuple(reversed(range(rank)))
        outer = perm_of(m.attrs("attention"), name, rank)
        return _call(b, _changed(call, place, inner, {name: tuple(perm[axis] for axis in outer)}))  # type: ignore[arg-type]
    return None


def _draw_in_result(b: GraphBuilder, m: Match) -> Atom | None:
    call = m.call("attention")
    rank = m.type_of("outer").rank
    perm = m.attrs("outer").perm or tuple(reversed(range(rank)))
    inner = perm_of(m.attrs("attention"), "out_perm", rank)
    attrs = {**dict(call.attrs), "out_perm": tuple(inner[axis] for axis in perm)}
    return _call(b, Call(call.op, call.args, tuple(attrs.items()), span=call.span))


def _draw_in_scales(b: GraphBuilder, m: Match) -> Atom | None:
    """A factor on all of q or k is a factor on the scores."""
    call = m.call("attention")
    for place in (0, 1):
        source = m.call_of(call.args[place])
        if source is None or source.op not in ("mul", "div"):
            continue
        for inner, factor in ((source.args[0], source.args[1]), (source.args[1], source.args[0])):
            scalar = all(is_const(dim, 1) for dim in _type(factor).shape) and _type(factor).rank <= 2
            if scalar and inner is not None and equal_shapes(_type(inner).shape, _type(call.args[place]).shape, m.facts):
                steps = (source.op, *m.attrs("attention").steps)
                changed = _changed(call, place, inner, {"steps": steps})
                args = (*changed.args[:3], factor, *changed.args[3:])
                return _call(b, Call(changed.op, args, changed.attrs, span=call.span))
            if source.op == "div":
                break
    return None


def _draw_in_repeats(b: GraphBuilder, m: Match) -> Atom | None:
    """Heads of k or v that are repeated for the queries that share them need no copies."""
    call = m.call("attention")
    for place in (1, 2):
        operand = call.args[place]
        once = _unrepeated(b, m, operand)
        if once is None:
            continue
        found = _call(b, _changed(call, place, once, {}))
        if found is not None:
            return found
    return None


def _unrepeated(b: GraphBuilder, m: Match, operand: Atom | None) -> Atom | None:
    """x when `operand` is x with an axis put in, expanded, and joined with the axis before it; or x expanded from ones."""
    view = m.call_of(operand)
    if view is not None and view.op == "expand":
        inner = view.args[0]
        return inner if _type(inner).rank == _type(operand).rank else None
    expand = m.call_of(view.args[0]) if view is not None and view.op in VIEWS else None
    if expand is None or expand.op != "expand":
        return None
    shape, wide, source = _type(operand).shape, _type(view.args[0]).shape, expand.args[0]  # type: ignore[union-attr]
    narrow = _type(source).shape
    if len(narrow) != len(wide) or len(wide) != len(shape) + 1:
        return None
    grown = [d for d, (a, c) in enumerate(zip(narrow, wide, strict=True)) if is_const(a, 1) and not is_const(c, 1)]
    if len(grown) != 1 or grown[0] == 0:
        return None
    axis = grown[0]
    joined = (*wide[: axis - 1], wide[axis - 1] * wide[axis], *wide[axis + 1 :])
    if equal_shapes(joined, shape, m.facts) is not True:
        return None
    assert source is not None
    return b.call("reshape", source, shape=(*narrow[:axis], *narrow[axis + 1 :]))


def _round_weights(b: GraphBuilder, m: Match) -> Atom | None:
    call = m.call("attention")
    if m.attrs("attention").rounded or _type(call.args[2]).dtype not in (f16, bf16):
        return None
    return _call(b, _changed(call, 0, call.args[0], {"rounded": True}))  # type: ignore[arg-type]


# -- examples, which tests run before and after


def _param(b: GraphBuilder, name: str, *shape: int) -> Atom:
    return b.param(name, tensor_type(shape, f32))


def _scalar(b: GraphBuilder, value: float) -> TensorConst:
    return b.const(np.float32(value))


def _example_plain(b: GraphBuilder) -> Atom:
    q, k, v = _param(b, "q", 2, 3, 5, 4), _param(b, "k", 2, 3, 4, 7), _param(b, "v", 2, 3, 7, 6)
    scores = b.call("add", b.call("div", b.call("matmul", q, k), _scalar(b, 2.0)), _param(b, "mask", 2, 1, 1, 7))
    return b.call("matmul", b.call("softmax", scores), v)


def _example_operator(b: GraphBuilder, **around: Any) -> Atom:
    """An attention; each argument may put something around an operand."""
    q, k, v = _param(b, "q", 2, 4, 5, 4), _param(b, "k", 2, 4, 7, 4), _param(b, "v", 2, 4, 7, 6)
    shaped = {"q": q, "k": k, "v": v}
    for name, wrap in around.items():
        shaped[name] = wrap(b, shaped[name])
    return b.call("attention", *shaped.values(), _scalar(b, 0.5), steps=("mul",))


def _example_repeat(b: GraphBuilder) -> Atom:
    k = b.call("expand", b.call("unsqueeze", _param(b, "k2", 2, 2, 7, 4), axes=(2,)), shape=(2, 2, 2, 7, 4))
    q, v = _param(b, "q", 2, 4, 5, 4), _param(b, "v", 2, 4, 7, 6)
    return b.call("attention", q, b.call("reshape", k, shape=(2, 4, 7, 4)), v)


def _example_transposed(b: GraphBuilder) -> Atom:
    q = b.call("transpose", _param(b, "q", 2, 5, 4, 4), perm=(0, 2, 1, 3))
    return b.call("attention", q, _param(b, "k", 2, 4, 7, 4), _param(b, "v", 2, 4, 7, 6))


def _example_halves(b: GraphBuilder) -> Atom:
    shapes = {"q": (2, 4, 5, 4), "k": (2, 4, 7, 4), "v": (2, 4, 7, 6)}
    return b.call("attention", *(b.param(name, tensor_type(shape, f16)) for name, shape in shapes.items()))


ROUNDING_RULES = (
    GraphRule(
        "attention of halves",
        op("attention", *_OPERANDS, rest=True),
        _round_weights,
        example=_example_halves,
        inexact=True,
    ),
)

ATTENTION_RULES = (
    GraphRule(
        "a softmax between two products",
        op("matmul", any_("chances"), any_("v"), name="second"),
        _attention,
        example=_example_plain,
        inexact=True,
    ),
    GraphRule(
        "attention of what is transposed",
        op("attention", *_OPERANDS, rest=True),
        _draw_in_transposes,
        example=_example_transposed,
    ),
    GraphRule(
        "attention, transposed",
        op("transpose", op("attention", *_OPERANDS, rest=True, single_use=True), name="outer"),
        _draw_in_result,
        example=lambda b: b.call("transpose", _example_operator(b), perm=(0, 2, 1, 3)),
    ),
    GraphRule(
        "attention of q or k times a number",
        op("attention", *_OPERANDS, rest=True),
        _draw_in_scales,
        example=lambda b: _example_operator(b, q=lambda b, q: b.call("mul", q, _scalar(b, 0.3))),
        inexact=True,
    ),
    GraphRule(
        "attention of repeated heads",
        op("attention", *_OPERANDS, rest=True),
        _draw_in_repeats,
        example=_example_repeat,
        inexact=True,
    ),
)
