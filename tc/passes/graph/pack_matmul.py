"""Give the right operand of a matrix product the layout that its kernel reads: panels of two vectors of columns, [n / b, k, b].

Literals are packed at compile time, transposed ones too. Bytes, of which an instruction adds the products of several at once, lie with
these side by side, [n / b, k / g, b, g]. Another right operand is packed by the kernel of the product, a tile at a time, if enough rows
share it.
Source: packing as in Goto and van de Geijn (2008).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tc.ir.dtype import DType, bf16, f16, f32, i8, i16, u8
from tc.ir.expr import Const
from tc.ir.graph import Atom
from tc.ir.intrinsic import INTRINSICS
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ir.x86_intrinsics import dot_name, tile_dot_name
from tc.ops.arrays import contiguous
from tc.ops.build import GraphBuilder
from tc.passes.graph.blocked_literals import block_axes
from tc.passes.graph.knobs import knob_of_call
from tc.passes.graph.pack_blocks import block_rules
from tc.passes.graph.rewrite import GraphRule, Match, any_, const_, op, rewrite_module
from tc.passes.manager import graph_pass
from tc.schedule.knobs import Decide, decide_number, take_default
from tc.schedule.rules.matrix_tiles import terms_of_tile
from tc.schedule.rules.operands import LONGEST_CHAIN, LONGEST_CHAIN_ON_TILES
from tc.schedule.rules.tiling import MOST_CLASHING_ROWS, MOST_SHALLOW_TERMS, NEAR_VECTORS, is_clashing_pitch
from tc.target import Target
from tc.target.machine import machine_of

PANEL_VECTORS = 2
"""Vectors of a panel: what a register tile takes of one row, in one stream from memory."""

PANELS = (1, 2, 4)
"""Vectors that a panel may have."""

GROUP = 4
"""Products of bytes that an instruction adds at once in each lane of 32 bits."""

HALVES = 2
"""Products of bf16, or of i16, that an instruction adds at once in each lane."""

LEAST_COLUMNS = 8
"""With fewer columns most of a panel would be empty."""


@graph_pass
def pack_matmul(
    module: IRModule, *, lanes: int = 16, target: Target | None = None, decide: Decide = take_default, exact: bool = False
) -> IRModule:
    """Replace matrix products by products with a packed right operand, in panels of two vectors of `lanes` columns.

    `decide` says how many vectors a panel has. Products of bytes are packed for the instructions of `target`, and those of bf16. `exact`:
    weights are rounded as dequantized ones are, not used as the integers that they are, and products are added one by one.
    """
    halves = 0 if target is None or exact else terms_of_halves(lanes, target)
    rules = matmul_rules(lanes, decide, () if target is None else target.features, halves)
    return rewrite_module(module, rules if exact else (*rules, *block_rules(lanes)))


def terms_of_halves(lanes: int, target: Target) -> int:
    """What the number of terms of products of bf16 is rounded up to a multiple of; 0 where no instruction that adds several pays."""
    machine = machine_of(target)
    if INTRINSICS[tile_dot_name(bf16, bf16)].is_there(target.features) and machine.amx_bf16_per_cycle > 0:
        return terms_of_tile(bf16)
    known = INTRINSICS.get(dot_name(32 * lanes, bf16, bf16))
    pays = known is not None and known.is_there(target.features) and machine.bf16_dots_per_fma > 1.0
    return HALVES if pays else 0


def matmul_rules(
    lanes: int, decide: Decide = take_default, features: Sequence[str] = (), halves: int = 0
) -> tuple[GraphRule, ...]:
    """The rewrite rules for vectors of `lanes` columns, and a processor with these features. `halves`: see `terms_of_halves`."""

    def width(m: Match, columns: int) -> int:
        if columns <= lanes:
            return lanes
        default = NEAR_VECTORS if _rows_clash(m) or _is_shallow(m) else PANEL_VECTORS
        knob = knob_of_call(m.call("matmul"), "pack_matmul", PANELS, default)
        return decide_number(decide, knob) * lanes

    def pack(b: GraphBuilder, m: Match, w: np.ndarray) -> Atom:
        """With the right operand [k, n]."""
        depth, columns = w.shape
        block = width(m, columns)
        longest = LONGEST_CHAIN if halves == HALVES else LONGEST_CHAIN_ON_TILES
        if halves and m.type_of("x").dtype is bf16 and depth <= longest:
            return _packed(b, m, b.const(in_groups(w, block, HALVES, halves)), columns)
        return _packed(b, m, b.const(block_axes(w.T, (0,), block)), columns)

    def pack_literal(b: GraphBuilder, m: Match) -> Atom:
        return pack(b, m, m.value("w"))

    def pack_transposed(b: GraphBuilder, m: Match) -> Atom:
        return pack(b, m, m.value("w").T)

    def pack_bytes(b: GraphBuilder, m: Match) -> Atom:
        columns = m.value("w").shape[1]
        panels = in_groups(m.value("w"), width(m, columns), GROUP, _terms_together(features))
        return _packed(b, m, b.const(panels), columns)

    def pack_words(b: GraphBuilder, m: Match) -> Atom:
        w = m.value("w").astype(np.int16)
        return _packed(b, m, b.const(in_groups(w, width(m, w.shape[1]), HALVES, HALVES)), w.shape[1])

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
        *((bytes_rule(pack_bytes),) if _has_dots(lanes, features, u8, i8) else ()),
        *((words_rule(pack_words),) if _has_dots(lanes, features, i16, i16) else ()),
    )


def bytes_rule(pack: Callable[[GraphBuilder, Match], Atom]) -> GraphRule:
    """The rule for unsigned bytes times a literal of signed ones."""

    def can_pack(m: Match) -> bool:
        x, w = m.type_of("x"), m.type_of("w")
        is_plain = all(arg is None for arg in m.call("matmul").args[2:])
        is_matrix = x.rank > 0 and w.rank == 2 and m.value("w").size > 0
        return is_plain and is_matrix and x.dtype is u8 and w.dtype is i8 and m.value("w").shape[1] >= LEAST_COLUMNS

    return GraphRule(
        "a product of bytes with a literal, packed",
        op("matmul_integer", any_("x"), const_("w"), name="matmul", rest=True),
        pack,
        when=can_pack,
        example=lambda b: b.call("matmul_integer", b.param("x", tensor_type((3, 7), u8)), b.const((100 * _w(7, 10)).astype(np.int8))),
    )


def words_rule(pack: Callable[[GraphBuilder, Match], Atom]) -> GraphRule:
    """The rule for i16 times a literal of numbers that i16 has."""

    def can_pack(m: Match) -> bool:
        x, w = m.type_of("x"), m.type_of("w")
        is_plain = all(arg is None for arg in m.call("matmul").args[2:])
        is_matrix = x.rank > 0 and w.rank == 2 and m.value("w").size > 0
        return is_plain and is_matrix and x.dtype is i16 and w.dtype in (i8, u8, i16) and m.value("w").shape[1] >= LEAST_COLUMNS

    return GraphRule(
        "a product of words with a literal, packed",
        op("matmul_integer", any_("x"), const_("w"), name="matmul", rest=True),
        pack,
        when=can_pack,
        example=lambda b: b.call("matmul_integer", b.param("x", tensor_type((3, 7), i16)), b.const((3e4 * _w(7, 10)).astype(np.int16))),
    )


def _has_dots(lanes: int, features: Sequence[str], lhs: DType, rhs: DType) -> bool:
    """Whether there is an instruction that adds products of these types in vectors of so many sums."""
    known = INTRINSICS.get(dot_name(32 * lanes, lhs, rhs))
    return known is not None and known.is_there(features)


def _terms_together(features: Sequence[str]) -> int:
    """What the number of terms is rounded up to a multiple of: what the widest instruction takes at once."""
    return terms_of_tile(i8) if INTRINSICS[tile_dot_name(u8, i8)].is_there(features) else GROUP


def in_groups(array: np.ndarray, block: int, group: int, terms: int) -> np.ndarray:
    """[k, n] as [ceil(n / block), k / group, block, group], zeros up to a multiple of `terms` of k and after the columns. Two groups at
    least: of one nobody could tell that terms lie in groups."""
    depth, columns = array.shape
    padded = np.pad(array, [(0, max(-depth % terms, 2 * group - depth)), (0, -columns % block)])
    cut = padded.reshape(padded.shape[0] // group, group, padded.shape[1] // block, block)
    return contiguous(cut.transpose(2, 0, 3, 1))


def _packed(b: GraphBuilder, m: Match, panels: Atom, columns: int) -> Atom:
    own: dict[str, Any] = {name: value for name, value in m.call("matmul").attrs if name == "dtype"}
    return b.call("matmul_packed", m.x, panels, columns=columns, span=m.call("matmul").span, **own)


def _can_pack(m: Match, column_axis: int) -> bool:
    x, w = m.type_of("x"), m.type_of("w")
    columns = w.shape[column_axis] if w.rank == 2 else None
    fits = x.rank > 0 and x.dtype in (f32, f16, bf16) and x.dtype is w.dtype
    return fits and isinstance(columns, Const) and int(columns.value) >= LEAST_COLUMNS


def _rows_clash(m: Match) -> bool:
    """Whether tiles have few rows of the left operand, which evict each other, and so more vectors of the right one."""
    *rows, pitch = m.type_of("x").shape
    known = [int(dim.value) for dim in rows if isinstance(dim, Const)]
    are_few = len(known) == len(rows) and prod(known) <= MOST_CLASHING_ROWS
    return not are_few and is_clashing_pitch(pitch, f32)


def _is_shallow(m: Match) -> bool:
    """Whether sums are so short that wide tiles are the better ones."""
    return isinstance(depth := m.type_of("x").shape[-1], Const) and int(depth.value) <= MOST_SHALLOW_TERMS


def _x(b: GraphBuilder, *shape: int) -> Atom:
    return b.param("x", tensor_type(shape, f32))


def _w(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
