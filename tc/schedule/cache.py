"""Primitives that put a copy of a buffer, perhaps in another layout, between a block and its operands or results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tc.errors import ScheduleError
from tc.ir.arith import Facts, bounds
from tc.ir.dtype import ALL_DTYPES, DType, bf16, f16, f32, f64, i64, int_range, parse_dtype
from tc.ir.expr import TRUE, Buffer, Cast, Expr, Load, Sub, Var, cast, const, select
from tc.ir.loop import Alloc, AxisKind, Block, BlockAxis, For, PrimFunc, Stmt, Store, seq
from tc.ir.node import Node, replace, substitute, transform, walk
from tc.ir.uses import buffers_read, buffers_written, has_intrinsic, variables
from tc.schedule.analysis import as_contraction, block_info_of
from tc.schedule.layout import SCOPES, Layout, check_rank, in_bounds
from tc.schedule.tree import (
    Place,
    block_places,
    find_block,
    find_buffer,
    fresh_block_name,
    fresh_buffer_name,
    fresh_names,
    loop_var,
    reads_at,
    replace_stmt,
    with_scratch,
    writers_of,
)


def cache_read(func: PrimFunc, block: str, buffer: str, scope: str = "global", layout: str = "") -> PrimFunc:
    """Let a block read a copy of a buffer, filled by a new block `<buffer>_<scope>` in front of it.

        C[i] = f(B[i])      =>      T[i] = B[i] ;  C[i] = f(T[i])
                                    T[i, j] = B[i * 16 + j] if i * 16 + j < n else 0 ;  C[i] = f(T[i // 16, i % 16])

    With a layout ("n, k -> n // 16, k, n % 16") the copy is packed that way, zero in the padding. Use `compute_at` on the new block to
    pack a part at a time. Raises ScheduleError unless the block reads the buffer, and nothing in its loops writes it.
    Source: `cache_read` of TVM.
    """
    place, source = find_block(func, block), find_buffer(func, buffer)
    _check_cache(place, scope, "cache_read")
    if source not in buffers_read(place.block):
        raise ScheduleError(f"cache_read: block {block} does not read {buffer}")
    if source in buffers_written(place.block):
        raise ScheduleError(f"cache_read: block {block} writes {buffer} too")
    rule = _layout(source, layout)
    shape = rule.shape(source.shape)
    scratch = Buffer(fresh_buffer_name(func, f"{source.name}_{scope}"), shape, source.dtype, scope)
    facts = _axis_facts(func, place.block)
    copy = copy_nest(
        func,
        fresh_block_name(func, scratch.name),
        shape,
        lambda axes, inside: Store(scratch, axes, _packed(source, rule, axes, inside)),
    )
    cached = _redirected(place.block, source, scratch, rule, facts)
    rebuilt = replace_stmt(func, place, cached)
    before = _before(rebuilt, find_block(rebuilt, block), source)
    rebuilt = replace_stmt(rebuilt, before, seq(copy, before.stmt))
    return with_scratch(rebuilt, find_block(rebuilt, block), scratch)


def cache_operand(func: PrimFunc, block: str, side: str, dtype: str, scope: str = "global") -> PrimFunc:
    """Let a sum of products read a copy of one operand ("lhs" or "rhs"), with all that is done to it, filled by a new block in front.

        C[i, j] += A[i, k] * (f32(Q[k, idx[j]]) * s[j])    =>    T[k, j] = f32(Q[k, idx[j]]) * s[j] ;  C[i, j] += A[i, k] * T[k, j]

    The copy has an index for each axis that the operand depends on, and the type `dtype`; its block is called `<buffer>_<side>`.
    Use `compute_at` to make a part at a time, `transform_layout` to pack it. Raises ScheduleError unless the block is an unconditional
    contraction whose operand reads nothing that the block writes, and keeps its value in `dtype`: that is its own type, or the type it is
    cast from, or an integer type known to hold all its values.
    Source: `reindex_cache_read` of TVM, which copies the load alone.
    """
    place = find_block(func, block)
    _check_cache(place, scope, "cache_operand")
    contraction = as_contraction(block_info_of(place))
    if contraction is None or side not in ("lhs", "rhs") or place.block.where is not TRUE:
        raise ScheduleError(f"cache_operand: block {block} has no operand {side!r}, being no unconditional sum of products")
    value, load = (contraction.lhs_value, contraction.lhs) if side == "lhs" else (contraction.rhs_value, contraction.rhs)
    if buffers_read(value) & buffers_written(place.block):
        raise ScheduleError(f"cache_operand: the {side} of block {block} reads what the block writes")
    kept = narrowed(value, dtype)
    if kept is None:
        raise ScheduleError(f"cache_operand: the {side} of block {block}, {value}, may have values that {dtype} has not")
    extents = {axis.var: axis.extent for axis in place.block.axes}
    found = [node for index in load.indices for node in walk(index) if isinstance(node, Var)]
    axes = tuple(dict.fromkeys(axis for axis in (*found, *sorted(variables(value), key=str)) if axis in extents))
    if len(set(found)) < len(found):  # of digits, which lie in panels: those of columns are to lie side by side again
        last = contraction.columns if side == "rhs" else contraction.depth
        axes = (*(axis for axis in axes if axis not in last), *(axis for axis in axes if axis in last))
    shape = tuple(extents[axis] for axis in axes)
    scratch = Buffer(fresh_buffer_name(func, f"{load.buffer.name}_{side}"), shape, kept.dtype, scope)
    copy = copy_nest(
        func,
        fresh_block_name(func, scratch.name),
        shape,
        lambda at, _: Store(scratch, at, substitute(kept, dict(zip(axes, at, strict=True)))),
    )
    read = cast(Load(scratch, axes), value.dtype)
    cached = transform(place.block, lambda node: read if node is value else None)
    rebuilt = replace_stmt(func, place, cached)
    before = _before(rebuilt, find_block(rebuilt, block), load.buffer)
    rebuilt = replace_stmt(rebuilt, before, seq(copy, before.stmt))
    return with_scratch(rebuilt, find_block(rebuilt, block), scratch)


_LARGEST_INTEGER = {"bf16": 1 << 8, "f16": 1 << 11}
"""Up to which floats of 16 bits hold all integers."""


def narrowed(value: Expr, dtype: str) -> Expr | None:
    """The expression in a type from which a cast to its own gives the same value back; None where that is not known."""
    inner = value
    while isinstance(inner, Cast) and inner.dtype.name != dtype and _is_exact(inner.operand.dtype, inner.dtype):
        inner = inner.operand
    if inner.dtype.name == dtype:
        return inner
    if isinstance(inner, Cast) and inner.dtype.is_float and inner.operand.dtype.is_int and dtype in _LARGEST_INTEGER:
        low, high = int_range(inner.operand.dtype)
        return cast(inner.operand, parse_dtype(dtype)) if max(-low, high) <= _LARGEST_INTEGER[dtype] else None
    wanted = next((each for each in ALL_DTYPES if each.name == dtype and each.is_int), None)
    if wanted is None or not value.dtype.is_int:
        return None
    found, (lo, hi) = bounds(value), int_range(wanted)
    is_inside = found.lo is not None and found.hi is not None and lo <= found.lo and found.hi <= hi
    return _made_in(value, wanted) if is_inside else None


def _made_in(value: Expr, dtype: DType) -> Expr:
    """A value that the type has. The difference of two that it has, too, is one of narrow numbers: LLVM narrows those of literals alone."""
    match value:
        case Sub(lhs=Cast(operand=lhs), rhs=Cast(operand=rhs)) if lhs.dtype.is_int and rhs.dtype.is_int:
            if _is_exact(lhs.dtype, dtype) and _is_exact(rhs.dtype, dtype):
                return cast(lhs, dtype) - cast(rhs, dtype)
    return cast(value, dtype)


def _is_exact(narrow: DType, wide: DType) -> bool:
    """Whether each value of a type is known to be one of another of the same sort."""
    if narrow.is_int and wide.is_int:
        (low, high), (lowest, highest) = int_range(narrow), int_range(wide)
        return lowest <= low and high <= highest
    return (narrow, wide) in ((bf16, f32), (bf16, f64), (f16, f32), (f16, f64), (f32, f64))


def _check_cache(place: Place, scope: str, what: str) -> None:
    if scope not in SCOPES:
        raise ScheduleError(f"{what}: there is no scope {scope!r}; there are: {', '.join(SCOPES)}")
    if has_intrinsic(place.block):
        raise ScheduleError(f"{what}: block {place.block.name} is an intrinsic")


def _layout(buffer: Buffer, text: str) -> Layout:
    if not text:
        names = ", ".join(f"a{d}" for d in range(len(buffer.shape)))
        return Layout.parse(f"{names} -> {names}") if names else Layout(0, ())
    rule = Layout.parse(text)
    check_rank(buffer, rule, text)
    return rule


def _axis_facts(func: PrimFunc, block: Block) -> Facts:
    facts = Facts.of(func.facts)
    for axis in block.axes:
        facts = facts.with_range(axis.var, axis.extent)
    return facts


def _packed(source: Buffer, rule: Layout, axes: tuple[Expr, ...], facts: Facts) -> Expr:
    """The element that belongs at `axes` of the copy: zero in the padding."""
    indices = rule.backward(axes)
    return select(in_bounds(indices, source.shape, facts), Load(source, indices), const(0, source.dtype))


def _redirected(block: Block, old: Buffer, new: Buffer, rule: Layout, facts: Facts) -> Block:
    """The block with every access of one buffer replaced by one of its copy."""

    def redirect(node: Node) -> Node | None:
        if isinstance(node, (Load, Store)) and node.buffer is old:
            return replace(node, buffer=new, indices=rule.forward(node.indices, facts))
        return None

    return transform(block, redirect)


def _before(func: PrimFunc, place: Place, source: Buffer) -> Place:
    """The outermost loop around a block: the copy goes in front. ScheduleError when `source` is made inside that loop."""
    depth = next((d for d, stmt in enumerate(place.path) if isinstance(stmt, For)), None)
    if depth is None:
        return place
    root = place.path[depth]
    for other in block_places(func):
        if root in other.path and source in buffers_written(other.block):
            raise ScheduleError(
                f"cache_read: block {other.block.name} makes {source.name} inside the loops of block {place.block.name}"
            )
    return Place(root, place.path[:depth])


def copy_nest(
    func: PrimFunc, name: str, shape: Sequence[Expr], body: Callable[[tuple[Expr, ...], Facts], Stmt]
) -> Stmt:
    """Loops over a shape around one spatial block, `body(axes, facts about them)`."""
    names = fresh_names(func, [f"{'ijklmnpq'[d % 8]}{d // 8 or ''}c" for d in range(len(shape))])
    loop_vars = [loop_var(each) for each in names]
    axes = [Var(f"v{each}", i64) for each in names]
    facts = Facts.of(func.facts)
    for axis, dim in zip(axes, shape, strict=True):
        facts = facts.with_range(axis, dim)
    result: Stmt = Block(
        name,
        tuple(
            BlockAxis(axis, dim, AxisKind.SPATIAL, var) for axis, dim, var in zip(axes, shape, loop_vars, strict=True)
        ),
        body(tuple(axes), facts),
    )
    for var, dim in reversed(list(zip(loop_vars, shape, strict=True))):
        result = For(var, dim, result)
    return result


def cache_write(func: PrimFunc, block: str, scope: str, layout: str = "") -> PrimFunc:
    """Let a block write a scratch buffer, and add a block `<block>_copy` that copies it to the original one.

        C[i] = ...     =>     T[i] = ... ;  C[i] = T[i]

    With a layout ("n -> n // 16, n % 16") the scratch buffer has that one. Raises ScheduleError unless the block writes one buffer
    that nobody else writes, and that is read only after the block's loops. Source: `cache_write` of TVM.
    """
    place = find_block(func, block)
    _check_cache(place, scope, "cache_write")
    buffers = buffers_written(place.block)
    if len(buffers) != 1:
        raise ScheduleError(f"cache_write: block {block} must write one buffer, it writes {len(buffers)}")
    (target,) = buffers
    if len(writers_of(func, target)) != 1:
        raise ScheduleError(f"cache_write: {target.name} has other writers than block {block}")
    root = next((Place(s, place.path[:d]) for d, s in enumerate(place.path) if isinstance(s, For)), place)
    for other in block_places(func):
        if other.block is not place.block and root.stmt in other.path and target in reads_at(other):
            raise ScheduleError(
                f"cache_write: block {other.block.name} reads {target.name} inside the loops of block {block}"
            )
    rule = _layout(target, layout)
    name = fresh_buffer_name(func, f"{target.name}_{scope}")
    scratch = Buffer(name, rule.shape(target.shape), target.dtype, scope)
    cached = _redirected(place.block, target, scratch, rule, _axis_facts(func, place.block))
    copy = copy_nest(
        func,
        fresh_block_name(func, f"{block}_copy"),
        target.shape,
        lambda axes, inside: Store(target, axes, Load(scratch, rule.forward(axes, inside))),
    )
    rebuilt = replace_stmt(func, place, cached)
    moved = find_block(rebuilt, block)
    stmt = next((s for s in moved.path if isinstance(s, For)), moved.stmt)
    path = moved.path[: moved.path.index(stmt)] if stmt in moved.path else moved.path
    rebuilt = replace_stmt(rebuilt, Place(stmt, path), seq(stmt, copy))
    return replace(rebuilt, body=Alloc(scratch, rebuilt.body))
