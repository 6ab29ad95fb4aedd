"""Blocks of blocks, and blocks that are one instruction: `blockize` and `tensorize`."""

from __future__ import annotations

from tc.errors import ScheduleError
from tc.ir import nvidia_intrinsics as _nvidia  # noqa: F401  fills the table
from tc.ir import x86_intrinsics as _x86  # noqa: F401  fills the table
from tc.ir.arith import Facts, linear_coefficients, prove, simplify
from tc.ir.dtype import i64
from tc.ir.expr import TRUE, Const, Expr, Lt, Var, const, equal, floordiv
from tc.ir.intrinsic import INTRINSICS, perfect_nest
from tc.ir.loop import (
    AxisKind,
    Block,
    BlockAxis,
    For,
    IntrinsicCall,
    PrimFunc,
    Stmt,
)
from tc.ir.node import Node, replace, substitute, transform
from tc.ir.uses import variables
from tc.schedule.tree import Place, block_names, facts_at, find_block, find_loop, fresh_block_name, replace_stmt


def _tile_of(stmt: Stmt) -> tuple[list[For], Block]:
    """The loops of a perfect nest and the one block inside."""
    loops, inside = perfect_nest(stmt)
    if not isinstance(inside, Block):
        raise ScheduleError("the loops are not a perfect nest around one block")
    return loops, inside


def blockize(func: PrimFunc, loop: str) -> PrimFunc:
    """Make a loop nest around one block a block of its own, named `<block>_o`, whose axes count tiles, or are the loops around tiles
    that overlap.

        for io: for ii in 8:                      for io: block C_o (vio = io):
            block C (vi = io * 8 + ii): S  =>         for ii in 8: block C (vi = vio * 8 + ii): S

    The initialisation of a reduction becomes one of the outer block. Raises ScheduleError unless the loops are a perfect nest
    of constant extents, none 0, around a block whose condition is the same for the whole tile, each reduction axis a multiple of its
    tile plus the loops inside.
    Source: `blockize` of TVM.
    """
    target = find_loop(func, loop)
    try:
        loops, block = _tile_of(target.stmt)
    except ScheduleError as error:
        raise ScheduleError(f"blockize: loop {loop}: {error.text}") from None
    facts = facts_at(func, Place(block, (*target.path, *loops)))
    if any(prove(each.extent >= 1, facts_at(func, target)) is not True for each in loops):
        raise ScheduleError(f"blockize: a loop of the tile of block {block.name} may make no iteration")
    where = _of_tiles(block.where, loops, facts)
    if variables(where) & {each.var for each in loops}:
        raise ScheduleError(f"blockize: the condition {block.where} of block {block.name} differs inside the tile")
    outer_axes: dict[Var, BlockAxis] = {}  # by their own variables, or by those of the loops that they are
    inner_axes: list[BlockAxis] = []
    around = [each for each in target.path if isinstance(each, For)]
    for axis in block.axes:
        form = _tile_form(axis.value, loops, facts)
        if form is None:
            raise ScheduleError(f"blockize: axis {axis.var.name} of block {block.name} is {axis.value}, not a tile of its loops")
        outer, start = _whole_tiles(axis, form, facts) or _overlapping_tiles(axis, form, around, outer_axes, block.name)
        outer_axes |= outer
        inner_axes.append(replace(axis, value=start + _inside(form, loops)))
    inside: Stmt = replace(block, axes=tuple(inner_axes), init=None, where=TRUE)
    for each in reversed(loops):
        inside = replace(each, body=inside)
    made = Block(
        fresh_block_name(func, f"{block.name}_o"),
        tuple(outer_axes.values()),
        inside,
        init=None if block.init is None else _tile_init(func, block, loops, inner_axes),
        where=where,
        annotations=block.annotations,
        span=block.span,
    )
    return replace_stmt(func, target, made)


TileForm = tuple[dict[Var, Expr], Expr, int]
"""The steps of a value along loops, the value where they begin, and one more than they add to it at most."""


def _inside(form: TileForm, loops: list[For]) -> Expr:
    """What the loops of a tile add."""
    value: Expr = const(0)
    for each in loops:
        if each.var in form[0]:
            value = value + each.var * form[0][each.var]
    return value


def _whole_tiles(axis: BlockAxis, form: TileForm, facts: Facts) -> tuple[dict[Var, BlockAxis], Expr] | None:
    """The axis of the outer block that counts tiles, and where one begins in terms of it; None where tiles are not whole."""
    first, extent = form[1:]
    if prove(equal(first % extent, 0), facts) is not True or prove(equal(axis.extent % extent, 0), facts) is not True:
        return None
    var = Var(f"{axis.var.name}o", i64)
    outer = BlockAxis(var, simplify(floordiv(axis.extent, extent), facts), axis.kind, simplify(first // extent, facts))
    return {var: outer}, var * extent


def _overlapping_tiles(
    axis: BlockAxis, form: TileForm, around: list[For], known: dict[Var, BlockAxis], block: str
) -> tuple[dict[Var, BlockAxis], Expr]:
    """The loops around as axes of the outer block, for tiles that begin anywhere: the last one before the one before it ends."""
    first, extent = form[1:]
    driving = [each for each in around if each.var in variables(first)]
    own = {each.var for each in around}
    if axis.kind is not AxisKind.SPATIAL or any(variables(each.extent) & own for each in driving):
        raise ScheduleError(f"blockize: axis {axis.var.name} of block {block} does not consist of tiles of {extent}")
    axes = {
        each.var: known.get(each.var) or BlockAxis(Var(f"v{each.var.name}", i64), each.extent, AxisKind.SPATIAL, each.var)
        for each in driving
    }
    return axes, substitute(first, {loop: outer.var for loop, outer in axes.items()})


def _tile_form(value: Expr, loops: list[For], facts: Facts) -> TileForm | None:
    """A value in terms of loops; None if it may fall along one."""
    form = linear_coefficients(simplify(value, facts), [each.var for each in loops])
    if form is None:
        return None
    coefficients, rest = form
    extent = 1
    for each in loops:
        factor = coefficients.get(each.var)
        if factor is None:
            continue
        if not isinstance(factor, Const) or not isinstance(each.extent, Const) or factor.value < 0:
            return None
        extent += int(factor.value) * (int(each.extent.value) - 1)
    return coefficients, rest, extent


def _of_tiles(condition: Expr, loops: list[For], facts: Facts) -> Expr:
    """A condition in terms of where a tile begins, as far as bounds fall between tiles: i * 8 + ii < 24 is i * 8 < 24 for ii of 8."""
    inside = {each.var for each in loops}

    def at_start(node: Node) -> Node | None:
        if not isinstance(node, Lt) or not variables(node.lhs) & inside or variables(node.rhs) & inside:
            return None
        form = _tile_form(node.lhs, loops, facts)
        if form is None or any(prove(equal(end % form[2], 0), facts) is not True for end in (form[1], node.rhs)):
            return None
        return Lt(form[1], node.rhs)

    return transform(condition, at_start)


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
    body = substitute(inner.body, {axis.var: axis.value for axis in inner.axes})
    facts = Facts.of(func.facts)
    for axis in outer.axes:
        facts = facts.with_range(axis.var, axis.extent)
    operands = known.match(loops, body, facts)
    if isinstance(operands, str):
        raise ScheduleError(f"tensorize: {intrinsic} does not match block {inner.name}: {operands}")
    return replace_stmt(tiled, place, replace(outer, body=IntrinsicCall(intrinsic, operands)))
