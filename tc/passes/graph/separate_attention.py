"""Attention of bf16 as two products with a softmax between them, where the machine multiplies tiles of bf16.

One kernel that carries a tile of rows all the way multiplies vectors, and spares the scores a way through memory; products on tile
registers are so much faster that the way pays, as long as all scores stay near.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tc.ir.arith import simplify
from tc.ir.dtype import DType, bf16, f32
from tc.ir.expr import Const, Expr, const
from tc.ir.graph import Atom
from tc.ir.module import IRModule
from tc.ir.types import TensorType, tensor_type
from tc.ir.x86_intrinsics import TILE_ROWS
from tc.ops.attention import STEPS, group_size
from tc.ops.build import GraphBuilder
from tc.passes.graph.find_attention import perm_of
from tc.passes.graph.pack_matmul import terms_of_halves
from tc.passes.graph.rewrite import GraphRule, Match, any_, op, rewrite_module
from tc.passes.manager import graph_pass
from tc.schedule.rules.matrix_tiles import terms_of_tile
from tc.target import Target

LEAST_SIDE = 2 * TILE_ROWS
"""Rows and columns of scores from which on tiles are well filled."""

NEAR_SCORES = 8
"""How many times the second-level cache the scores may take: beyond, they come and go from memory."""


@graph_pass
def separate_attention(module: IRModule, *, lanes: int = 16, target: Target | None = None) -> IRModule:
    """Spell out attention of bf16 where `target` has tile registers; see `separation_rules`."""
    if target is None or target.device is not None or terms_of_halves(lanes, target) != terms_of_tile(bf16):
        return module
    return rewrite_module(module, separation_rules(NEAR_SCORES * target.l2_bytes))


def separation_rules(most_bytes: int) -> tuple[GraphRule, ...]:
    """The rules where scores may take so many bytes."""
    return (
        GraphRule(
            "attention in products of tiles",
            op("attention", any_("q"), any_("k"), any_("v"), name="attention", rest=True),
            lambda b, m: _products(b, m) if _pays(m, most_bytes) else None,
            example=_example,
            inexact=True,
        ),
    )


def _types(m: Match) -> list[TensorType]:
    """The operands as the products take them: after their transposes."""
    given = [(m.type_of(name), perm_of(m.attrs("attention"), f"{name}_perm", m.type_of(name).rank)) for name in "qkv"]
    return [TensorType(tuple(own.shape[axis] for axis in perm), own.dtype) for own, perm in given]


def _sharing(q: TensorType, others: Sequence[TensorType]) -> int | None:
    """How many heads of q share one of all others'; 1 where each has its own, or all have the same one. None where that differs."""
    groups = [[group_size(q.shape, each.shape, axis) for axis in range(q.rank - 2)] for each in others]
    shared = {own[-1] if own else 1 for own in groups}
    if shared <= {0, 1}:
        return 1
    return shared.pop() if len(shared) == 1 and all(group in (0, 1) for own in groups for group in own[:-1]) else None


def _pays(m: Match, most_bytes: int) -> bool:
    q, k, v = _types(m)
    columns, shape = k.shape[-2], q.static_shape
    if q.dtype is not bf16 or shape is None or not isinstance(columns, Const) or _sharing(q, (k, v)) is None:
        return False
    *lead, rows, _ = shape
    is_filled = min(rows, int(columns.value)) >= LEAST_SIDE
    return is_filled and prod(lead) * rows * int(columns.value) * f32.size_bytes <= most_bytes


def _products(b: GraphBuilder, m: Match) -> Atom:
    call, attrs, (q_type, k_type, v_type) = m.call("attention"), m.attrs("attention"), _types(m)
    own = {name: perm_of(attrs, f"{name}_perm", q_type.rank) for name in ("q", "k", "v", "out")}
    *lead, rows, depth = q_type.shape
    columns, width, group = k_type.shape[-2], v_type.shape[-1], _sharing(q_type, (k_type, v_type)) or 1
    *outer, heads = lead or [const(1)]

    def placed(x: Atom, perm: tuple[int, ...]) -> Atom:
        return x if perm == tuple(range(len(perm))) else b.call("transpose", x, perm=perm, span=call.span)

    def together(x: Atom, last: Expr) -> Atom:
        """The rows of heads that share keys one after the other."""
        return x if group == 1 else b.call("reshape", x, shape=(*outer, simplify(heads // group), simplify(rows * group), last))

    def apart(x: Atom, last: Expr) -> Atom:
        return x if group == 1 else b.call("reshape", x, shape=(*lead, rows, last))

    queries, values = together(placed(m.atoms["q"], own["q"]), depth), placed(m.atoms["v"], own["v"])
    keys = placed(m.atoms["k"], (*own["k"][:-2], own["k"][-1], own["k"][-2]))
    scores = apart(b.call("cast", b.call("matmul", queries, keys, span=call.span), dtype=f32), columns)
    terms = [term for term in call.args[3:] if term is not None]
    for name in attrs.steps:
        operands, terms = terms[: STEPS[name].operands], terms[STEPS[name].operands :]
        scores = _step(b, name, scores, operands)
    chances = b.call("softmax", scores, axis=-1, span=call.span)
    if attrs.nan_to_zero:
        chances = b.call("where", b.call("is_nan", chances), b.const(np.float32(0)), chances)
    chances = b.call("narrow", chances, dtype=bf16)
    result = b.call("matmul", together(chances, columns), values, span=call.span)
    return placed(apart(result, width), own["out"])


def _step(b: GraphBuilder, name: str, scores: Atom, operands: list[Atom]) -> Atom:
    wide = [each if _dtype(each).is_bool or _dtype(each) is f32 else b.call("cast", each, dtype=f32) for each in operands]
    match name:
        case "keep":
            return b.call("where", wide[0], scores, wide[1])
        case "drop":
            return b.call("where", wide[0], wide[1], scores)
    return b.call(name, scores, *wide)


def _dtype(atom: Atom) -> DType:
    assert isinstance(atom.type, TensorType)
    return atom.type.dtype


def _example(b: GraphBuilder) -> Atom:
    shapes = {"q": (2, 40, 4, 8), "k": (2, 33, 2, 8), "v": (2, 33, 2, 16)}
    q, k, v = (b.param(name, tensor_type(shape, bf16)) for name, shape in shapes.items())
    mask = b.param("mask", tensor_type((2, 1, 1, 33), f32))
    perm = (0, 2, 1, 3)
    return b.call("attention", q, k, v, mask, steps=("add",), q_perm=perm, k_perm=perm, v_perm=perm, out_perm=perm)
