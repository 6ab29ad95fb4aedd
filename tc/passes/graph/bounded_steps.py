"""Steps of a quantized tensor that are known to be few enough for an i32: nothing has to be clipped before it is rounded to one."""

from __future__ import annotations

from typing import Any

import numpy as np

from tc.ir.dtype import f32, i32, int_range, u8
from tc.ir.graph import Atom, TensorConst, tensor_type_of
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.ops.quantize import MOST_STEPS
from tc.passes.graph.rewrite import GraphRule, Match, any_, const_, op, rewrite_module
from tc.passes.manager import graph_pass

MOST_CALLS = 8
"""Calls, one of another, up to which it is looked for what a value comes from."""


@graph_pass
def bound_steps(module: IRModule) -> IRModule:
    """Say which calls of quantize_linear are of numbers without units that are no larger than MOST_STEPS; see BOUND_RULES.

    A sum of integers that is scaled is: no i32 is above 2^31, and few layers are scaled by a half and more.
    """
    return rewrite_module(module, BOUND_RULES)


def _largest(m: Match, atom: Atom | None, calls: int = MOST_CALLS) -> float:
    """What no element of an f32 tensor, or of a literal, is larger than, either way; infinity where nothing is known, or one may be NaN."""
    if isinstance(atom, TensorConst):
        found = float(np.max(np.abs(atom.value.astype(np.float64)), initial=0.0))
        return found if np.isfinite(found) else np.inf
    call = m.call_of(atom)
    if call is None or calls == 0 or call.op not in ("cast", "relu", "neg", "abs", "mul", "add", "sub"):
        return np.inf
    assert call.args[0] is not None
    source = tensor_type_of(call.args[0])
    if call.op == "cast":
        return float(max(map(abs, int_range(source.dtype)))) if source.dtype.is_int else np.inf
    if call.op in ("relu", "neg", "abs"):
        return _largest(m, call.args[0], calls - 1)
    lhs, rhs = (_largest(m, each, calls - 1) for each in call.args)
    found = lhs * rhs if call.op == "mul" else lhs + rhs
    return found if np.isfinite(found) else np.inf


def _bounded(b: GraphBuilder, m: Match) -> Atom:
    call, attrs = m.call("quantize"), dict[str, Any](m.attrs("quantize"))
    return b.call("quantize_linear", *call.args, **{**attrs, "bounded": True}, span=call.span)


def _is_bounded(m: Match) -> bool:
    attrs, step = m.attrs("quantize"), m.value("step")
    is_new = attrs.dtype.is_int and not attrs.bounded and m.type_of("x").dtype is f32
    return bool(is_new and np.all(step == 1) and _largest(m, m.x) <= MOST_STEPS)


def _example(b: GraphBuilder) -> Atom:
    factor = np.random.default_rng(0).uniform(-0.4, 0.4, (4, 1, 1)).astype(np.float32)
    scaled = b.call("mul", b.call("cast", b.param("x", tensor_type((2, 4, 3, 5), i32)), dtype=f32), b.const(factor))
    return b.call("quantize_linear", scaled, b.const(np.ones((), np.float32)), b.const(np.array(3, np.uint8)), dtype=u8)


BOUND_RULES = (
    GraphRule(
        "a quantized number is within bounds",
        op("quantize_linear", any_("x"), const_("step"), name="quantize", rest=True),
        _bounded,
        when=_is_bounded,
        example=_example,
    ),
)
