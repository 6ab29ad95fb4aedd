"""Blocks of blocks, and blocks that are one instruction: `blockize`, `tensorize`, and the table of intrinsics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tc.errors import ScheduleError
from tc.ir.arith import Facts, linear_coefficients, prove, simplify
from tc.ir.dtype import i64
from tc.ir.expr import BinaryExpr, Buffer, Cast, Const, Expr, Load, MathCall, Var, add, equal, floordiv
from tc.ir.loop import (
    TRUE,
    AxisKind,
    Block,
    BlockAxis,
    For,
    IntrinsicCall,
    PrimFunc,
    Stmt,
    Store,
)
from tc.ir.node import Node, replace, substitute, transform
from tc.ir.uses import variables
from tc.schedule.tree import Place, block_names, facts_at, find_block, find_loop, fresh_block_name, replace_stmt


@dataclass(frozen=True)
class Intrinsic:
    """An instruction on tiles of buffers, and the loops it stands for.

    `pattern` is a PrimFunc without blocks other than one whose loops have constant extents and drive one axis each; its
    parameters, buffers of constant shape, are the operands in order. Targets emit code for the name; for others
    `expand` gives the loops.
    """

    name: str
    pattern: PrimFunc

    def expand(self, operands: Sequence[Expr]) -> Stmt:
        """The loops of a call, over the buffers that its operands point into."""
        tiles = dict(zip(self.pattern.buffers, operands, strict=True))

        def redirect(node: Node) -> Node | None:
            if isinstance(node, (Load, Store)) and node.buffer in tiles:
                first = tiles[node.buffer]
                assert isinstance(first, Load)
                lead = len(first.indices) - len(node.indices)
                moved = [add(a, b) for a, b in zip(first.indices[lead:], node.indices, strict=True)]
                return replace(node, buffer=first.buffer, indices=(*first.indices[:lead], *moved))
            return None

        return transform(_plain_loops(self.pattern), redirect)


INTRINSICS: dict[str, Intrinsic] = {}
"""Name -> intrinsic. Targets register theirs with `register_intrinsic`."""


def register_intrinsic(intrinsic: Intrinsic) -> Intrinsic:
    """Add an intrinsic to the table; its name must be new, its pattern one nest of constant extents."""
    if intrinsic.name in INTRINSICS:
        raise ScheduleError(f"intrinsic {intrinsic.name} is registered twice")
    loops, _ = _tile_of(intrinsic.pattern.body)
    if not all(isinstance(loop.extent, Const) for loop in loops):
        raise ScheduleError(f"intrinsic {intrinsic.name}: the loops of its pattern must have constant extents")
    INTRINSICS[intrinsic.name] = intrinsic
    return intrinsic


def _plain_loops(pattern: PrimFunc) -> Stmt:
    loops, block = _tile_of(pattern.body)
    body: Stmt = substitute(block.body, {axis.var: axis.value for axis in block.axes})
    for loop in reversed(loops):
        body = replace(loop, body=body)
    return body


def _tile_of(stmt: Stmt) -> tuple[list[For], Block]:
    """The loops of a perfect nest and the one block inside."""
    loops = []
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    if not isinstance(stmt, Block):
        raise ScheduleError("the loops are not a perfect nest around one block")
    return loops, stmt


def blockize(func: PrimFunc, loop: str) -> PrimFunc:
    """Make a loop nest around one block a block of its own, named `<block>_o`, whose axes count tiles.

        for io: for ii in 8:                      for io: block C_o (vio = io):
            block C (vi = io * 8 + ii): S  =>         for ii in 8: block C (vi = vio * 8 + ii): S

    The initialisation of a reduction becomes one of the outer block. Raises ScheduleError unless the loops are a perfect nest
    of constant extents around an unconditional block, each axis a multiple of its tile plus the loops inside.
    Source: `blockize` of TVM.
    """
    target = find_loop(func, loop)
    try:
        loops, block = _tile_of(target.stmt)
    except ScheduleError as error:
        raise ScheduleError(f"blockize: loop {loop}: {error}") from None
    facts = facts_at(func, Place(block, (*target.path, *loops)))
    if block.where is not TRUE:
        raise ScheduleError(f"blockize: block {block.name} has the condition {block.where}")
    outer_axes: list[BlockAxis] = []
    inner_axes: list[BlockAxis] = []
    for axis in block.axes:
        outer, inner = _split_axis(axis, loops, facts, block.name)
        outer_axes.append(outer)
        inner_axes.append(inner)
    inside: Stmt = replace(block, axes=tuple(inner_axes), init=None)
    for each in reversed(loops):
        inside = replace(each, body=inside)
    made = Block(
        fresh_block_name(func, f"{block.name}_o"),
        tuple(outer_axes),
        inside,
        init=None if block.init is None else _tile_init(func, block, loops, inner_axes),
        annotations=block.annotations,
        span=block.span,
    )
    return replace_stmt(func, target, made)


def _split_axis(axis: BlockAxis, loops: list[For], facts: Facts, block: str) -> tuple[BlockAxis, BlockAxis]:
    """The axis of the outer block, which counts tiles, and that of the inner one in terms of it."""
    form = linear_coefficients(simplify(axis.value, facts), [each.var for each in loops])
    extent = 1
    if form is not None:
        coefficients, rest = form
        for each in loops:
            factor = coefficients.get(each.var)
            if factor is None:
                continue
            if not isinstance(factor, Const) or not isinstance(each.extent, Const) or factor.value < 0:
                form = None
                break
            extent += int(factor.value) * (int(each.extent.value) - 1)
    if form is None:
        raise ScheduleError(f"blockize: axis {axis.var.name} of block {block} is {axis.value}, not a tile of its loops")
    if prove(equal(rest % extent, 0), facts) is not True or prove(equal(axis.extent % extent, 0), facts) is not True:
        raise ScheduleError(f"blockize: axis {axis.var.name} of block {block} does not consist of tiles of {extent}")
    var = Var(f"{axis.var.name}o", i64)
    outer = BlockAxis(var, simplify(floordiv(axis.extent, extent), facts), axis.kind, simplify(rest // extent, facts))
    value: Expr = var * extent
    for each in loops:
        if each.var in coefficients:
            value = value + each.var * coefficients[each.var]
    return outer, replace(axis, value=value)


def _tile_init(func: PrimFunc, block: Block, loops: list[For], axes: list[BlockAxis]) -> Stmt:
    """The initialisation of a tile: over the loops that drive spatial axes."""
    assert block.init is not None
    spatial = [axis for axis in axes if axis.kind is AxisKind.SPATIAL]
    used = {var for axis in spatial for var in variables(axis.value)}
    needed = [each for each in loops if each.var in used]
    renamed: dict[Node, Node] = {each.var: Var(f"{each.var.name}_init", i64) for each in needed}
    fresh = {axis.var: Var(axis.var.name, i64) for axis in spatial}
    body: Stmt = Block(
        fresh_block_name(func, f"{block.name}_init"),
        tuple(replace(axis, var=fresh[axis.var], value=substitute(axis.value, renamed)) for axis in spatial),
        substitute(block.init, dict(fresh)),
    )
    for each in reversed(needed):
        body = For(renamed[each.var], each.extent, body, each.kind)  # type: ignore[arg-type]
    return body


def tensorize(func: PrimFunc, loop: str, intrinsic: str) -> PrimFunc:
    """Replace a loop nest by an intrinsic that does the same, in a block `<block>_o`.

        for io: for ii in 4: for k in 4:                  for io: block C_o (vio = io):
            C[io * 4 + ii] += A[..., k] * B[k]     =>         dot4x4(C[vio * 4], A[vio * 4, 0], B[0])

    Raises ScheduleError unless the nest is that of the intrinsic's pattern: the same extents, the same expression, each
    operand's last indices moving with the loops as the pattern's do. The initialisation must have been decomposed, or lies
    outside the tile. Source: `tensorize` of TVM.
    """
    known = INTRINSICS.get(intrinsic)
    if known is None:
        raise ScheduleError(
            f"tensorize: there is no intrinsic {intrinsic!r}; there are: {', '.join(sorted(INTRINSICS))}"
        )
    before = set(block_names(func.body))
    tiled = blockize(func, loop)
    (name,) = set(block_names(tiled.body)) - before
    place = find_block(tiled, name)
    outer = place.block
    loops, inner = _tile_of(outer.body)
    operands = _match(known, loops, inner, Facts.of(func.facts))
    return replace_stmt(tiled, place, replace(outer, body=IntrinsicCall(intrinsic, operands)))


def _match(intrinsic: Intrinsic, loops: list[For], block: Block, facts: Facts) -> tuple[Expr, ...]:
    """The operands with which the intrinsic does what the loops do."""
    pattern_loops, pattern_block = _tile_of(intrinsic.pattern.body)
    what = f"tensorize: {intrinsic.name} does not match block {block.name}"
    extents = [loop.extent for loop in loops]
    wanted = [loop.extent for loop in pattern_loops]
    if len(extents) != len(wanted) or any(a is not b for a, b in zip(extents, wanted, strict=True)):
        raise ScheduleError(f"{what}: its loops are {_sizes(wanted)}, the block's {_sizes(extents)}")
    pattern = substitute(pattern_block.body, {axis.var: axis.value for axis in pattern_block.axes})
    body = substitute(block.body, {axis.var: axis.value for axis in block.axes})
    renamed = {a.var: b.var for a, b in zip(pattern_loops, loops, strict=True)}
    found: dict[Buffer, Load] = {}

    def same(p: Node, b: Node) -> bool:
        match p, b:
            case (Load(), Load()) | (Store(), Store()):
                if not access(p, b):  # type: ignore[arg-type]
                    return False
                return isinstance(p, Load) or same(p.value, b.value)  # type: ignore[attr-defined]
            case (Const(), Const()):
                return p is b
            case (BinaryExpr(), BinaryExpr()) if type(p) is type(b):
                return same(p.lhs, b.lhs) and same(p.rhs, b.rhs)
            case (Cast(), Cast()):
                return p.dtype == b.dtype and same(p.operand, b.operand)
            case (MathCall(), MathCall()) if p.name == b.name:
                return all(same(x, y) for x, y in zip(p.args, b.args, strict=True))
        return False

    def access(p: Load | Store, b: Load | Store) -> bool:
        lead = len(b.indices) - len(p.indices)
        if lead < 0 or p.buffer.dtype != b.buffer.dtype:
            return False
        variables_ = [loop.var for loop in loops]
        first: list[Expr] = []
        for d, index in enumerate(b.indices):
            form = linear_coefficients(simplify(index, facts), variables_)
            moving = (
                linear_coefficients(substitute(p.indices[d - lead], dict(renamed)), variables_)
                if d >= lead
                else ({}, None)
            )
            if form is None or moving is None or form[0] != moving[0]:
                return False
            first.append(form[1])
        operand = Load(b.buffer, tuple(first))
        return found.setdefault(p.buffer, operand) is operand

    if not same(pattern, body):
        raise ScheduleError(f"{what}: the computation or the way operands move with the loops differs")
    return tuple(found[buffer] for buffer in intrinsic.pattern.buffers)


def _sizes(extents: Sequence[Expr]) -> str:
    return " x ".join(map(str, extents)) or "none"


def expand_intrinsics(func: PrimFunc) -> PrimFunc:
    """Replace every intrinsic by the loops it stands for: what a target without the instruction runs."""

    def expand(node: Node) -> Node | None:
        return INTRINSICS[node.name].expand(node.operands) if isinstance(node, IntrinsicCall) else None

    return replace(func, body=transform(func.body, expand))
