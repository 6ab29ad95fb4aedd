"""Give the right operand of a matrix product the layout that its kernel reads: panels of two vectors of columns, [n / b, k, b].

Literals are packed at compile time, transposed ones too. Another right operand is packed by the kernel of the product, a tile at a time,
if enough rows share it.
Source: packing as in Goto and van de Geijn (2008).
"""

from __future__ import annotations

import numpy as np

from tc.ir.dtype import f32
from tc.ir.expr import Const, is_const
from tc.ir.graph import Atom
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.passes.graph.convert_layout import block_axes
from tc.passes.graph.knobs import knob_of_call
from tc.passes.graph.rewrite import GraphRule, Match, any_, const_, op, rewrite_module
from tc.passes.manager import graph_pass
from tc.schedule.knobs import Decide, decide_number, take_default
from tc.schedule.rules.tiling import MOST_SHALLOW_TERMS, NEAR_VECTORS, is_clashing_pitch

PANEL_VECTORS = 2
"""Vectors of a panel: what a register tile takes of one row, in one stream from memory."""

PANELS = (1, 2, 4)
"""Vectors that a panel may have."""

LEAST_COLUMNS = 8
"""With fewer columns most of a panel would be empty."""


@graph_pass
def pack_matmul(module: IRModule, *, lanes: int = 16, decide: Decide = take_default) -> IRModule:
    """Replace matrix products by products with a packed right operand, in panels of two vectors of `lanes` columns.

    `decide` says how many vectors a panel has.
    """
    return rewrite_module(module, matmul_rules(lanes, decide))


def matmul_rules(lanes: int, decide: Decide = take_default) -> tuple[GraphRule, ...]:
    """The rewrite rules for vectors of `lanes` columns."""

    def width(m: Match, columns: int) -> int:
        if columns <= lanes:
            return lanes
        default = NEAR_VECTORS if _rows_clash(m) or _is_shallow(m) else PANEL_VECTORS
        knob = knob_of_call(m.call("matmul"), "pack_matmul", PANELS, default)
        return decide_number(decide, knob) * lanes

    def pack_literal(b: GraphBuilder, m: Match) -> Atom:
        block = width(m, m.value("w").shape[1])
        return _packed(b, m, b.const(block_axes(m.value("w").T, (0,), block)), m.value("w").shape[1])

    def pack_transposed(b: GraphBuilder, m: Match) -> Atom:
        block = width(m, m.value("w").shape[0])
        return _packed(b, m, b.const(block_axes(m.value("w"), (0,), block)), m.value("w").shape[0])

    return (
        GraphRule(
            "a product with a literal, packed",
            op("matmul", any_("x"), const_("w"), name="matmul"),
            pack_literal,
            when=lambda m: _can_pack(m, 1),
            example=lambda b: b.call("matmul", _x(b, 3, 20), b.const(_w(20, 10))),
            inexact=True,
        ),
        GraphRule(
            "a product with a transposed literal, packed",
            op("matmul", any_("x"), op("transpose", const_("w"), name="transpose"), name="matmul"),
            pack_transposed,
            when=lambda m: _can_pack(m, 0) and tuple(m.attrs("transpose").perm or (1, 0)) == (1, 0),
            example=lambda b: b.call("matmul", _x(b, 3, 20), b.call("transpose", b.const(_w(10, 20)), perm=(1, 0))),
            inexact=True,
        ),
    )


def _packed(b: GraphBuilder, m: Match, panels: Atom, columns: int) -> Atom:
    return b.call("matmul_packed", m.x, panels, columns=columns, span=m.call("matmul").span)


def _can_pack(m: Match, column_axis: int) -> bool:
    x, w = m.type_of("x"), m.type_of("w")
    columns = w.shape[column_axis] if w.rank == 2 else None
    return x.rank > 0 and x.dtype is f32 and isinstance(columns, Const) and int(columns.value) >= LEAST_COLUMNS


def _rows_clash(m: Match) -> bool:
    """Whether tiles have few rows of the left operand, which evict each other, and so more vectors of the right one."""
    *rows, pitch = m.type_of("x").shape
    is_row = all(is_const(dim, 1) for dim in rows)
    return not is_row and is_clashing_pitch(pitch, f32)


def _is_shallow(m: Match) -> bool:
    """Whether sums are so short that wide tiles are the better ones."""
    return isinstance(depth := m.type_of("x").shape[-1], Const) and int(depth.value) <= MOST_SHALLOW_TERMS


def _x(b: GraphBuilder, *shape: int) -> Atom:
    return b.param("x", tensor_type(shape, f32))


def _w(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
