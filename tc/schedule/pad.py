"""Padding the axes of a contraction, so that tiles fit without conditions."""

from __future__ import annotations

from collections.abc import Sequence

from tc.errors import ScheduleError
from tc.ir.arith import prove, simplify
from tc.ir.expr import TRUE, Add, Buffer, Cast, Const, Expr, Load, Mul, Var, ceildiv, const, equal, select
from tc.ir.loop import Alloc, AxisKind, Block, BlockAxis, For, PrimFunc, Store, annotation, seq
from tc.ir.node import Node, replace, substitute
from tc.ir.uses import variables
from tc.schedule.cache import copy_nest
from tc.schedule.layout import in_bounds
from tc.schedule.tree import (
    Place,
    facts_at,
    find_block,
    fresh_block_name,
    fresh_buffer_name,
    own_root,
    replace_stmt,
    writers_of,
)


def pad_einsum(func: PrimFunc, block: str, multiples: Sequence[int]) -> PrimFunc:
    """Round the axes of a sum of products up to multiples. Operands and result get padded copies, in blocks of their own.

        for i in 30: for k in 7:                A'[i, k] = A[i, k] if i < 30 and k < 7 else 0        (multiples 32, 8)
            C[i] += A[i, k] * B[k]       =>     B'[k] = B[k] if k < 7 else 0
                                                for i in 32: for k in 8: C'[i] += A'[i, k] * B'[k]
                                                C[i] = C'[i]

    `multiples` has one number for each axis of the block, 1 to leave an axis alone. Raises ScheduleError unless the block, not
    scheduled before, is a sum of products of two operands, cast or not, padded axes are indices by themselves, and each padded reduction
    axis is one of both operands: then what is added is 0 * 0. Source: `pad_einsum` of TVM.
    """
    place = find_block(func, block)
    _check_multiples(place.block, multiples)
    facts = facts_at(func, place)
    named = zip(place.block.axes, multiples, strict=True)
    padded = {axis: multiple for axis, multiple in named if prove(equal(axis.extent % multiple, 0), facts) is not True}
    operands, result = _einsum(func, place, {axis.var for axis in padded})
    extents: dict[Var, Expr] = {}
    for axis, multiple in padded.items():
        extents[axis.var] = simplify(ceildiv(axis.extent, multiple) * multiple, facts)
        if axis.kind is not AxisKind.SPATIAL and not all(axis.var in load.indices for load in operands):
            raise ScheduleError(
                f"pad_einsum: reduction axis {axis.var.name} of block {block} is not an index of every operand"
            )
    scratch: dict[Node, Node] = {}
    names = func
    accesses: tuple[Load | Store, ...] = (*operands, result)
    for access in accesses:
        if access.buffer not in scratch and any(index in extents for index in access.indices):
            buffer = _padded(names, access, extents)
            scratch[access.buffer] = buffer
            names = replace(names, body=Alloc(buffer, names.body))
    if not scratch:
        return func
    return _with_copies(_widened(names, place.block, extents, scratch), block, scratch, result.buffer)


def _check_multiples(block: Block, multiples: Sequence[int]) -> None:
    if len(multiples) != len(block.axes) or any(not isinstance(m, int) or m < 1 for m in multiples):
        raise ScheduleError(
            f"pad_einsum: block {block.name} has {len(block.axes)} axes, got the multiples {tuple(multiples)}"
        )


def _einsum(func: PrimFunc, place: Place, padded: set[Var]) -> tuple[list[Load], Store]:
    """Operands and result of a sum of products; ScheduleError for anything else."""
    block = place.block
    axes = {axis.var for axis in block.axes}
    store = block.body
    driven = [axis.value for axis in block.axes if not isinstance(axis.value, Const)]  # an axis of extent 1 may have no loop
    plain = all(isinstance(value, Var) for value in driven) and block.where is TRUE
    uneven = any(variables(axis.extent) & {loop.var for loop in place.loops} for axis in block.axes)
    if uneven:
        raise ScheduleError(f"pad_einsum: the axes of block {block.name} are not of one extent each")
    if not plain or own_root(place).loops != () or len(own_root(place).path) + len(driven) != len(place.path):
        raise ScheduleError(f"pad_einsum: block {block.name} has been scheduled already")
    match store:
        case Store(value=Add(lhs=Load(buffer=buffer), rhs=Mul(lhs=lhs, rhs=rhs))):
            a, b = _uncast(lhs), _uncast(rhs)
            sums = buffer is store.buffer and annotation(block, "monoid") == "sum" and block.init is not None
        case _:
            sums = False
    if not sums or not isinstance(a, Load) or not isinstance(b, Load):
        raise ScheduleError(f"pad_einsum: block {block.name} is not a sum of products of two operands")
    assert isinstance(store, Store)
    for access in (a, b, store):
        used = [index for index in access.indices if isinstance(index, Var)]
        formulas = {var for index in access.indices if not isinstance(index, Var) for var in variables(index)}
        if formulas & padded or len(set(used)) != len(used) or not axes.issuperset(used):
            raise ScheduleError(f"pad_einsum: block {block.name} does not use {access.buffer.name} at its own axes")
    if len(writers_of(func, store.buffer)) != 1:
        raise ScheduleError(f"pad_einsum: {store.buffer.name} has other writers than block {block.name}")
    return [a, b], store


def _uncast(operand: Expr) -> Expr:
    """What is cast, perhaps several times; a zero stays one."""
    while isinstance(operand, Cast):
        operand = operand.operand
    return operand


def _padded(func: PrimFunc, access: Load | Store, extents: dict[Var, Expr]) -> Buffer:
    shape = tuple(
        extents.get(index, dim)  # type: ignore[call-overload]
        for index, dim in zip(access.indices, access.buffer.shape, strict=True)
    )
    return Buffer(fresh_buffer_name(func, f"{access.buffer.name}_pad"), shape, access.buffer.dtype)


def _widened(func: PrimFunc, block: Block, extents: dict[Var, Expr], scratch: dict[Node, Node]) -> PrimFunc:
    """The block over the padded axes and buffers, and its loops with it."""
    place = find_block(func, block.name)
    axes = tuple(replace(axis, extent=extents.get(axis.var, axis.extent)) for axis in block.axes)
    body = replace(substitute(block, scratch), axes=axes)
    loops: dict[Var, BlockAxis] = {axis.value: axis for axis in axes if isinstance(axis.value, Var)}
    result: For | Block = body
    root = own_root(place)
    for loop in reversed(place.loops):
        result = replace(loop, extent=loops[loop.var].extent, body=result)
    return replace_stmt(func, root, result)


def _with_copies(func: PrimFunc, block: str, scratch: dict[Node, Node], result: Buffer) -> PrimFunc:
    """Blocks that fill the padded operands, in front, and that copies the result, behind."""
    for old, new in scratch.items():
        assert isinstance(old, Buffer) and isinstance(new, Buffer)
        source, target = (new, old) if old is result else (old, new)
        nest = copy_nest(
            func,
            fresh_block_name(func, f"{block}_copy" if old is result else target.name),
            target.shape,
            lambda at, facts, source=source, target=target: Store(  # type: ignore[misc]
                target, at, select(in_bounds(at, source.shape, facts), Load(source, at), const(0, source.dtype))
            ),
        )
        root = own_root(find_block(func, block))
        order = (root.stmt, nest) if old is result else (nest, root.stmt)
        func = replace_stmt(func, root, seq(*order))
    return func
