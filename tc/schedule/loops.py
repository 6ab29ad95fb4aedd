"""Primitives that reshape loops: split, fuse, reorder, and how a loop's iterations are carried out."""

from __future__ import annotations

from collections.abc import Sequence

from tc.errors import ScheduleError
from tc.ir.arith import Facts, prove, simplify
from tc.ir.expr import (
    FALSE,
    CompareExpr,
    Const,
    Expr,
    Var,
    ceildiv,
    conjuncts,
    const,
    equal,
    is_const,
    logical_and,
    minimum,
    mul,
)
from tc.ir.hints import HintValue
from tc.ir.intrinsic import INTRINSICS
from tc.ir.launch import AXES, first_complaint, is_thread_loop
from tc.ir.loop import (
    Alloc,
    AxisKind,
    Block,
    For,
    If,
    IntrinsicCall,
    Let,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    annotation,
    walk_statements,
)
from tc.ir.node import Node, replace, substitute
from tc.ir.uses import buffers_read, buffers_written, variables
from tc.ir.x86_intrinsics import is_tile_dot, is_tile_zero
from tc.schedule.independence import CONCURRENT, check_iterations_apart, check_marked_loops
from tc.schedule.tree import (
    Place,
    axis_loops,
    block_names,
    blocks_in,
    check_extent_stays,
    facts_at,
    find_block,
    find_loop,
    fresh_names,
    guarded_read,
    loop_names,
    loop_var,
    replace_stmt,
    statements,
    statements_from,
)
from tc.te import MONOIDS

Factor = int | None


def split(func: PrimFunc, loop: str, factors: Sequence[Factor], names: Sequence[str]) -> PrimFunc:
    """Split a loop of extent n into nested loops of the given extents, outermost first; one may be None: as many as needed.

        for i in range(n):          for i0 in range((n + f - 1) // f):          (factors None, f)
            S(i)              =>        for i1 in range(f):
                                            S(i0 * f + i1) where i0 * f + i1 < n

    The condition goes into the blocks, and is left out when the new loops are proven to make exactly n iterations. A factor may
    exceed n. Raises ScheduleError if the loop is vectorized or bound, a factor is not positive, two are None, or factors
    without None do not cover the loop. Source: `split` of Halide and of TVM.
    """
    place = find_loop(func, loop)
    stmt = place.loop
    _check_split(stmt, factors, names)
    check_extent_stays("split", stmt)
    deciding = variables(stmt.extent) & {each.var for each in place.loops}
    if deciding and factors[0] is not None:  # else the open factor is part of the index, and depends on these loops
        outer = min(var.name for var in deciding)
        raise ScheduleError(f"split: loop {outer} decides the extent of loop {loop}; leave its first factor open")
    facts = facts_at(func, place)
    extents = _split_extents(stmt, factors, facts)
    fresh = [loop_var(name) for name in fresh_names(func, names)]
    value: Expr = fresh[0]
    total = extents[0]
    for var, extent in zip(fresh[1:], extents[1:], strict=True):
        value = value * extent + var
        total = mul(total, extent)
    body = substitute(stmt.body, {stmt.var: value})
    if prove(equal(total, stmt.extent), facts) is not True:
        body = _guarded(body, value < stmt.extent)
    inner_kind = LoopKind.SERIAL if stmt.kind is LoopKind.PARALLEL else stmt.kind
    for var, extent in reversed(list(zip(fresh[1:], extents[1:], strict=True))):
        body = For(var, extent, body, inner_kind)
    outermost = For(fresh[0], extents[0], body, stmt.kind, hints=stmt.hints, span=stmt.span)
    return replace_stmt(func, place, outermost)


def _check_split(loop: For, factors: Sequence[Factor], names: Sequence[str]) -> None:
    name = loop.var.name
    if loop.kind in (LoopKind.VECTORIZED, LoopKind.BOUND):
        raise ScheduleError(f"split: loop {name} is {loop.kind.name.lower()}; split it before that")
    if len(factors) < 2 or len(names) != len(factors):
        raise ScheduleError(
            f"split: loop {name} needs two factors or more and a name for each, got {factors} and {names}"
        )
    if sum(factor is None for factor in factors) > 1:
        raise ScheduleError(f"split: only one factor of loop {name} may be left open, got {factors}")
    for factor in factors:
        if factor is not None and (not isinstance(factor, int) or isinstance(factor, bool) or factor < 1):
            raise ScheduleError(f"split: a factor of loop {name} is {factor}, must be at least 1")


def _split_extents(loop: For, factors: Sequence[Factor], facts: Facts) -> list[Expr]:
    known = 1
    for factor in factors:
        known *= 1 if factor is None else factor
    if None not in factors:
        if prove(loop.extent <= known, facts) is not True:
            raise ScheduleError(
                f"split: the factors {tuple(factors)} of loop {loop.var.name} make {known} iterations, "
                f"which may be fewer than its {loop.extent}"
            )
        return [const(factor) for factor in factors if factor is not None]
    rest = simplify(ceildiv(loop.extent, known), facts)
    return [rest if factor is None else const(factor) for factor in factors]


def _guarded(stmt: Stmt, condition: Expr) -> Stmt:
    """A statement that does nothing where a condition does not hold, and reads nothing there that it would depend on."""
    match stmt:
        case Block(where=where):
            return replace(stmt, where=logical_and(*(_guarded_condition(part, condition) for part in conjuncts(where)), condition))
        case Seq(stmts=stmts):
            return replace(stmt, stmts=tuple(_guarded(inner, condition) for inner in stmts))
        case For(extent=extent, body=body):
            return replace(stmt, extent=guarded_read(extent, condition, const(0)), body=_guarded(body, condition))
        case Let(value=value, body=body):
            return replace(stmt, value=guarded_read(value, condition, const(0, value.dtype)), body=_guarded(body, condition))
        case Alloc(body=body):
            return replace(stmt, body=_guarded(body, condition))
    return If(condition, stmt)


def _guarded_condition(part: Expr, condition: Expr) -> Expr:
    """A part of a condition that is evaluated also where another condition does not hold. Comparisons stay comparisons."""
    if isinstance(part, CompareExpr):
        sides = (guarded_read(side, condition, const(0, side.dtype)) for side in (part.lhs, part.rhs))
        return type(part)(*sides)
    return guarded_read(part, condition, FALSE)


def split_overlapped(func: PrimFunc, loop: str, factor: int, names: Sequence[str]) -> PrimFunc:
    """Split a loop of extent n into tiles of `factor` iterations; the last tile begins early rather than ends late.

        for i in range(n):          for i0 in range((n + f - 1) // f):
            S(i)              =>        for i1 in range(f):
                                            S(min(i0 * f, n - f) + i1)

    Some iterations run twice, none needs a condition. Raises ScheduleError unless n >= factor is proven, and running the
    blocks inside again gives the same: they have no reduction axes and read nothing that they write, in place or otherwise.
    """
    place = find_loop(func, loop)
    stmt = place.loop
    _check_split(stmt, (None, factor), names)
    facts = facts_at(func, place)
    if prove(stmt.extent >= factor, facts) is not True:
        raise ScheduleError(f"split_overlapped: loop {loop} may have fewer than {factor} iterations: {stmt.extent}")
    _check_repeatable(func, stmt)
    first, second = map(loop_var, fresh_names(func, names))
    start: Expr = first * factor
    if prove(equal(stmt.extent % factor, 0), facts) is not True:
        start = minimum(start, stmt.extent - factor)
    body = substitute(stmt.body, {stmt.var: start + second})
    inner_kind = LoopKind.SERIAL if stmt.kind is LoopKind.PARALLEL else stmt.kind
    inner = For(second, const(factor), body, inner_kind)
    outer = For(first, simplify(ceildiv(stmt.extent, factor), facts), inner, stmt.kind, hints=stmt.hints)
    return replace_stmt(func, place, outer)


def _check_repeatable(func: PrimFunc, loop: For) -> None:
    name = loop.var.name
    if any(key == "in_place" for key, _ in func.attrs):
        raise ScheduleError(f"split_overlapped: {func.name} works in place, so loop {name} must not repeat iterations")
    for block in blocks_in(loop):
        if block.init is not None or any(axis.kind is not AxisKind.SPATIAL for axis in block.axes):
            raise ScheduleError(f"split_overlapped: loop {name} is around block {block.name}, a reduction")
        if buffers_read(block) & buffers_written(block):
            raise ScheduleError(f"split_overlapped: block {block.name} in loop {name} reads what it writes")


def fuse(func: PrimFunc, outer: str, inner: str, name: str) -> PrimFunc:
    """Join two directly nested loops into one.

        for i in range(n):           for ij in range(n * m):
            for j in range(m):  =>       S(ij // m, ij % m)
                S(i, j)

    Raises ScheduleError if the inner loop is not the whole body of the outer one, its extent depends on it, or they are of
    different kinds. Source: `fuse` of Halide and of TVM.
    """
    place = find_loop(func, outer)
    first = place.loop
    second = first.body
    if not isinstance(second, For) or second.var.name != inner:
        raise ScheduleError(f"fuse: loop {inner} is not directly inside loop {outer}")
    if first.var in variables(second.extent):
        raise ScheduleError(f"fuse: the extent of loop {inner} depends on loop {outer}")
    deciding = variables(second.extent) & {loop.var for loop in place.loops}
    if deciding:  # the quotient and the remainder would depend on it, whatever axis they drive
        raise ScheduleError(f"fuse: the extent of loop {inner} depends on loop {min(var.name for var in deciding)}")
    if first.kind is not second.kind or first.kind in (LoopKind.VECTORIZED, LoopKind.BOUND):
        kinds = f"{first.kind.name.lower()} and {second.kind.name.lower()}"
        raise ScheduleError(f"fuse: loops {outer} and {inner} are {kinds}; fuse them before that")
    check_extent_stays("fuse", replace(second, body=first))
    (fresh,) = fresh_names(func, (name,))
    fused = loop_var(fresh)
    values: dict[Node, Node] = {first.var: fused // second.extent, second.var: fused % second.extent}
    extent = simplify(mul(first.extent, second.extent), facts_at(func, place))
    merged = For(
        fused,
        extent,
        substitute(second.body, values),
        first.kind,
        hints=first.hints.merged(second.hints),
        span=first.span,
    )
    return replace_stmt(func, place, merged)


def add_unit_loop(func: PrimFunc, name: str, loop: str) -> PrimFunc:
    """Put a loop of one iteration around a loop or a block, or, by the name of the function, around all of it.

        S        =>        for u in range(1):
                               S

    A loop that can be bound, where there is none that may be: one thread then runs `S`. Allocations at the top stay around.
    Source: `add_unit_loop` of TVM.
    """
    place = _place_called(func, name)
    (fresh,) = fresh_names(func, (loop,))
    return replace_stmt(func, place, For(loop_var(fresh), const(1), place.stmt))


def drop_unit_loop(func: PrimFunc, loop: str) -> PrimFunc:
    """Take away a loop that makes one iteration, whatever is inside.

        for u in range(1): S(u)        =>        S(0)

    Raises ScheduleError for any other loop, and for one that is bound.
    """
    place = find_loop(func, loop)
    stmt = place.loop
    if not is_const(stmt.extent, 1) or stmt.kind is LoopKind.BOUND:
        raise ScheduleError(f"drop_unit_loop: loop {loop} makes {stmt.extent} iterations, or is bound")
    return replace_stmt(func, place, substitute(stmt.body, {stmt.var: const(0)}))


def _place_called(func: PrimFunc, name: str) -> Place:
    """The place of a loop, or of a block, or the body of the function inside of its allocations."""
    if name in loop_names(func.body):
        return find_loop(func, name)
    if name in block_names(func.body) or name != func.name:
        return find_block(func, name)
    place = Place(func.body, ())
    while isinstance(place.stmt, Alloc):
        place = Place(place.stmt.body, (*place.path, place.stmt))
    return place


def reorder(func: PrimFunc, loops: Sequence[str]) -> PrimFunc:
    """Bring loops of one perfect nest into the given order, outermost first; loops of the nest that are not named stay.

        for i: for j: for k: S   =>   for k: for i: for j: S        (reorder k, i, j)

    Raises ScheduleError if the loops do not form a perfect nest, an extent would depend on an inner loop, iterations that must run
    in order would not, or a parallel loop would be around one in whose iterations it touches the same.
    Source: `reorder` of Halide and of TVM.
    """
    places = [find_loop(func, name) for name in loops]
    if not loops:
        raise ScheduleError("reorder: no loops are named")
    if len(set(loops)) != len(loops):
        raise ScheduleError(f"reorder: a loop is named twice in {', '.join(loops)}")
    outermost = min(places, key=lambda place: len(place.path))
    chain = _perfect_nest(outermost.stmt)
    names = [loop.var.name for loop in chain]
    missing = [name for name in loops if name not in names]
    if missing:
        raise ScheduleError(f"reorder: loop {missing[0]} is not in the perfect nest of loop {names[0]}")
    depth = max(names.index(name) for name in loops) + 1
    nest = chain[:depth]
    wanted = iter([chain[names.index(name)] for name in loops])
    ordered = [next(wanted) if loop.var.name in loops else loop for loop in nest]
    check_extent_stays("reorder", *nest)
    seen: set[Var] = set()
    for loop in ordered:
        later = {other.var for other in ordered} - seen
        if variables(loop.extent) & later:
            raise ScheduleError(
                f"reorder: the extent of loop {loop.var.name} depends on a loop that would be inside it"
            )
        seen.add(loop.var)
    _check_order(func, outermost, nest, ordered)
    body = nest[-1].body
    for loop in reversed(ordered):
        body = replace(loop, body=body)
    outside = {loop: set(nest[:k]) for k, loop in enumerate(nest)}
    freed = [loop.var.name for k, loop in enumerate(ordered) if not outside[loop] <= set(ordered[:k])]
    return check_marked_loops(replace_stmt(func, outermost, body), freed, "reorder")


def _perfect_nest(stmt: Stmt) -> list[For]:
    chain = []
    while isinstance(stmt, For):
        chain.append(stmt)
        stmt = stmt.body
    return chain


def _check_order(func: PrimFunc, outermost: Place, old: list[For], new: list[For]) -> None:
    """Loops that drive ORDERED axes keep their order among themselves.

    So do those of a reduction when one of them drives a spatial axis too, and its start is not decomposed: else the first
    iteration of a point might not be its first update.
    """
    for place in statements_from(outermost):
        if not isinstance(place.stmt, Block):
            continue
        kinds = axis_loops(place)
        fixed = {var for var, kind in kinds.items() if kind is AxisKind.ORDERED}
        if [loop for loop in old if loop.var in fixed] != [loop for loop in new if loop.var in fixed]:
            raise ScheduleError(f"reorder: loops of block {place.block.name} in {func.name} must run in order")
        spatial = [axis for axis in place.block.axes if axis.kind is AxisKind.SPATIAL]
        reducing = {var for var, kind in kinds.items() if kind is not AxisKind.SPATIAL}
        if place.block.init is None or not any(variables(axis.value) & reducing for axis in spatial):
            continue
        if [loop for loop in old if loop.var in reducing] != [loop for loop in new if loop.var in reducing]:
            raise ScheduleError(
                f"reorder: a loop drives spatial and reduction axes of block {place.block.name} at once"
            )


def _check_independent(func: PrimFunc, place: Place, what: str, kind: LoopKind) -> None:
    """Only spatial axes of the blocks inside may use the loop, and its iterations are proven not to meet."""
    for inner in statements_from(place):
        if not isinstance(inner.stmt, Block):
            continue
        axis = axis_loops(inner).get(place.loop.var, AxisKind.SPATIAL)
        if axis is not AxisKind.SPATIAL:
            advice = "; use rfactor first" if axis is AxisKind.REDUCTION else ""
            raise ScheduleError(
                f"{what}: loop {place.loop.var.name} drives {'an' if axis is AxisKind.ORDERED else 'a'} {axis.value} axis "
                f"of block {inner.block.name}{advice}"
            )
    check_iterations_apart(func, place, what, kind)


_VERBS = {
    LoopKind.SERIAL: "serial",
    LoopKind.PARALLEL: "parallel",
    LoopKind.VECTORIZED: "vectorize",
    LoopKind.UNROLLED: "unroll",
    LoopKind.BOUND: "bind",
}


def set_kind(func: PrimFunc, loop: str, kind: LoopKind, thread: str = "") -> PrimFunc:
    """Mark how the iterations of a loop are carried out.

    Parallel, vectorized and bound loops must drive spatial axes only; a vectorized or unrolled loop must have a constant
    extent; a loop is vectorized only when no loop around or inside it is. Bound loops, whose axis `thread` names, make launches: block
    loops outermost, each the whole body of the one around it; thread loops of constant extents; no axis twice on a path.
    """
    place = find_loop(func, loop)
    stmt = place.loop
    verb = _VERBS[kind]
    if kind in CONCURRENT:
        _check_independent(func, place, verb, kind)
    if kind is LoopKind.VECTORIZED:
        if not isinstance(stmt.extent, Const):
            raise ScheduleError(f"vectorize: the extent of loop {loop} is {stmt.extent}; split it by a constant first")
        inside = [p.stmt for p in statements(stmt.body)]
        for other in (*place.path, *inside):
            if isinstance(other, For) and other.kind is LoopKind.VECTORIZED:
                raise ScheduleError(f"vectorize: loop {loop} is nested with loop {other.var.name}, which is vectorized")
    if kind is LoopKind.UNROLLED and not isinstance(stmt.extent, Const):
        raise ScheduleError(f"unroll: the extent of loop {loop} is {stmt.extent}; only constant extents unroll")
    if kind is LoopKind.BOUND and thread not in AXES:
        raise ScheduleError(f"bind: there is no axis {thread!r}; there are: {', '.join(AXES)}")
    return check_launches(replace_stmt(func, place, replace(stmt, kind=kind, thread=thread)), verb)


def check_launches(func: PrimFunc, what: str) -> PrimFunc:
    """`func`; ScheduleError when its bound loops make no launches (see `first_complaint`)."""
    found = first_complaint(func.body)
    if found is not None:
        raise ScheduleError(f"{what}: {found[1]}")
    return func


def annotate_loop(func: PrimFunc, loop: str, key: str, value: HintValue | str) -> PrimFunc:
    """Give a loop a hint (see `LoopHints`), in place of the one of the same key.

    Raises ScheduleError for an unknown key or value, a buffer that does not exist, `partition` of a loop that is vectorized, unrolled
    or bound, `tree` of a loop that is not an unrolled reduction by a monoid that a tree may combine, and `transpose` of one that is
    not unrolled around a vectorized one, to copy a square.
    """
    place = find_loop(func, loop)
    stmt = place.loop
    try:
        hints = stmt.hints.having(key, value)
    except ValueError as error:
        raise ScheduleError(f"annotate_loop: loop {loop}: {error}") from None
    if key == "partition" and hints.partition and stmt.kind not in (LoopKind.SERIAL, LoopKind.PARALLEL):
        raise ScheduleError(f"annotate_loop: loop {loop} is {stmt.kind.name.lower()}, and cannot be cut in two")
    if key == "prefetch" and hints.prefetch is not None and hints.prefetch.parameter >= len(func.buffers):
        raise ScheduleError(f"annotate_loop: {func.name} has {len(func.buffers)} buffers, none of the number {hints.prefetch.parameter}")
    if key == "intrinsic" and value not in INTRINSICS:
        raise ScheduleError(f"annotate_loop: there is no intrinsic {value!r:.60}; there are: {', '.join(sorted(INTRINSICS))}")
    if key == "tree" and hints.tree:
        _check_tree(place)
    if key == "transpose" and hints.transpose:
        _check_square(stmt)
    return replace_stmt(func, place, replace(stmt, hints=hints))


def pipeline(func: PrimFunc, loop: str, stages: int) -> PrimFunc:
    """Let a part of the next `stages` - 1 iterations of a serial loop run while the rest of one does; one stage takes that back.

    In a launch, around loops over threads, these are copies to shared memory (see `pipeline_loops`). Around products of tiles it is what
    precedes the stores of the sums, of the next iteration alone: what follows them runs between its products (see `interleave_stores`).
    What the loop computes stays the same: the order changes where that is proven to change nothing, once buffers are known to be of one
    iteration. ScheduleError where something follows the products that touches what they, or blocks before them, use or make.
    """
    place = find_loop(func, loop)
    if place.loop.kind is not LoopKind.SERIAL:
        raise ScheduleError(f"pipeline: loop {loop} is {place.loop.kind.name.lower()}; stages are of iterations in order")
    if not any(isinstance(outer, For) and outer.kind is LoopKind.BOUND for outer in place.path):
        _check_tiles(place, stages)
    elif not any(is_thread_loop(inner) for inner in walk_statements(place.loop.body)):
        raise ScheduleError(f"pipeline: loop {loop} is not around loops over threads")
    return annotate_loop(func, loop, "pipeline", stages)


def _check_tiles(place: Place, stages: int) -> None:
    """The loop is around products of tiles, and what follows these may be done while the next ones are made."""
    name, blocks = place.loop.var.name, blocks_in(place.loop)
    products = [k for k, block in enumerate(blocks) if isinstance(block.body, IntrinsicCall) and is_tile_dot(block.body.name)]
    if not products:
        raise ScheduleError(f"pipeline: loop {name} is not part of a launch, and not around products of tiles")
    if stages > 2:
        raise ScheduleError(f"pipeline: loop {name} is around products of tiles, which are made for one iteration ahead, not {stages - 1}")
    early, late = blocks[: products[-1] + 1], blocks[products[-1] + 1 :]
    if not late:
        raise ScheduleError(f"pipeline: nothing follows the products of tiles in loop {name}")
    for block in late:
        for other in early:
            made = frozenset() if _is_of_tiles(other) else buffers_written(other)  # sums are stored when all is done
            shared = (buffers_written(block) & (buffers_read(other) | buffers_written(other))) | (buffers_read(block) & made)
            if shared:
                names = ", ".join(sorted(buffer.name for buffer in shared))
                after = f"block {block.name}, after the products"
                raise ScheduleError(f"pipeline: in loop {name} {after}, shares {names} with block {other.name}")


def _is_of_tiles(block: Block) -> bool:
    """Whether a block sets tiles of sums to zero, or adds to them."""
    return isinstance(block.body, IntrinsicCall) and (is_tile_dot(block.body.name) or is_tile_zero(block.body.name))


def _check_tree(place: Place) -> None:
    """The loop combines numbers of one block, in an order that does not matter but for rounding."""
    loop, name = place.loop, place.loop.var.name
    if loop.kind is not LoopKind.UNROLLED:
        raise ScheduleError(f"annotate_loop: loop {name} is {loop.kind.name.lower()}; a tree is of unrolled iterations")
    inside = [inner for inner in statements_from(place) if isinstance(inner.stmt, Block)]
    kinds = {axis_loops(inner).get(loop.var) for inner in inside}
    if len(inside) != 1 or kinds != {AxisKind.REDUCTION} or annotation(inside[0].block, "monoid") not in MONOIDS:
        raise ScheduleError(f"annotate_loop: loop {name} is not a reduction of one block by a named monoid")


def _check_square(loop: For) -> None:
    """The loop copies a square, or rows that are shorter than there are rows, element by element, from what it does not write."""
    name = loop.var.name
    match loop:
        case For(kind=LoopKind.UNROLLED, extent=Const(value=count), body=For(kind=LoopKind.VECTORIZED, extent=Const(value=size)) as inner):
            block = inner.body if size <= count else None
        case _:
            block = None
    if block is None:
        raise ScheduleError(f"annotate_loop: loop {name} is not unrolled around a vectorized loop of as many iterations, or fewer")
    if not isinstance(block, Block) or not isinstance(block.body, Store) or block.init is not None:
        raise ScheduleError(f"annotate_loop: loop {name} is not around a block that stores one element")
    if block.body.buffer in buffers_read(block):
        raise ScheduleError(f"annotate_loop: block {block.name} in loop {name} reads what it writes")


def loop_partition(func: PrimFunc, loop: str) -> PrimFunc:
    """Cut a loop in two when it is lowered: iterations where its guards hold for sure, without them, and the rest.

        for i in range(n):                         for i in range(n - 1): S(i)
            if i * 8 + j < m: S(i)          =>     for i in range(n - 1, n): if i * 8 + j < m: S(i)

    The cut is made by the pass `partition_loops`, when blocks are gone. Raises ScheduleError if the loop is vectorized,
    unrolled or bound.
    """
    stmt = find_loop(func, loop).loop
    if stmt.kind not in (LoopKind.SERIAL, LoopKind.PARALLEL):
        raise ScheduleError(f"loop_partition: loop {loop} is {stmt.kind.name.lower()}")
    return annotate_loop(func, loop, "partition", 1)


def loops_of(func: PrimFunc, block: str) -> tuple[str, ...]:
    """Names of the loops around a block, outermost first."""
    return tuple(loop.var.name for loop in find_block(func, block).loops)


def extent_of(func: PrimFunc, loop: str) -> Expr:
    """The number of iterations of a loop."""
    return find_loop(func, loop).loop.extent
