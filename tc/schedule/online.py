"""Sums of exponentials relative to a greatest value, in the loop that finds the greatest value: the online softmax.

What was added up relative to the greatest value so far is multiplied by exp(old - new) where that grows, so that one pass is enough.
Source: Milakov and Gimelshein (2018); Dao et al. (2022) for a product as one of the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

from tc.errors import ScheduleError
from tc.ir.arith import prove
from tc.ir.dtype import i64
from tc.ir.expr import (
    TRUE,
    Add,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    MathCall,
    Mul,
    Select,
    Sub,
    Var,
    call,
    const,
    equal,
    is_const,
    select,
)
from tc.ir.loop import Alloc, AxisKind, Block, BlockAxis, If, LoopKind, PrimFunc, Seq, Stmt, Store, annotation, seq
from tc.ir.node import Node, replace, substitute, transform, walk
from tc.ir.uses import buffers_read, buffers_written, has_intrinsic, touches, variables
from tc.schedule.accesses import accesses
from tc.schedule.independence import never_meet
from tc.schedule.layout import facts_of_axes, in_bounds
from tc.schedule.reduction import points_of
from tc.schedule.tree import (
    Place,
    block_places_in,
    facts_at,
    facts_inside,
    find_block,
    find_loop,
    fresh_block_name,
    fresh_buffer_name,
    rename_loops,
    replace_stmt,
)
from tc.te import lowest


def merge_online(func: PrimFunc, block: str, loops: Sequence[str]) -> PrimFunc:
    """Run sibling `loops` as one, the sums in them relative to the greatest value so far that `block` makes.

        for k: M = max(M, X[k])                          B = -inf
        for k: P[k] = exp(X[k] - M)                      for k:
        for k: S += P[k]                       =>            M = max(M, X[k])
                                                             C = exp(B - M') ;  B = M
                                                             P[k] = exp(X[k] - M')
                                                             S = S * C
                                                             S += P[k]
                                                         C = exp(B' - B) ;  S = S * C

    M' is M, but 0 where that is -inf: rows of which nothing is known yet add zeros. The last step tells these from rows that are -inf to
    the end, which are NaN as they were. The sums' initialisations stand in front of the loops, as do those of maxima; a maximum that is
    combined from parts between the loops is combined in each iteration. Values are rounded in another way. Raises ScheduleError unless
    `loops` are statements of one sequence with the same extent, in which each iteration reads what earlier loops made in this one or in
    those before, but for one block that takes exponentials of differences to the maximum, whose results only go into sums.
    """
    return _Merger.of(func, block, tuple(loops)).merged()


# -- the parts


@dataclass(frozen=True, eq=False)
class _Carrier:
    """A buffer of exponentials, or multiples of them: where an element stands, by axes, and of which maximum that is."""

    places: tuple[Expr, ...]
    top: tuple[Expr, ...]

    def top_at(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        known: dict[Node, Node] = dict(zip(self.places, indices, strict=True))
        return tuple(substitute(index, known) for index in self.top)


@dataclass(frozen=True, eq=False)
class _Sum:
    """A block that adds up multiples of exponentials, and the maximum that each of its results is relative to."""

    place: Place
    store: Store
    top: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class _Merger:
    """What is merged: `loops` in order; `pulled`: statements between them that combine maxima; others go `ahead` of them, or `behind`."""

    func: PrimFunc
    top: Buffer
    maximum: Place
    powers: Block
    loops: tuple[Place, ...]
    pulled: tuple[Stmt, ...]
    ahead: tuple[Stmt, ...]
    behind: tuple[Stmt, ...]
    sums: tuple[_Sum, ...]

    @staticmethod
    def of(func: PrimFunc, block: str, names: tuple[str, ...]) -> _Merger:
        loops = _siblings(func, names)
        maximum = find_block(func, block)
        top = _maximum(maximum.block)
        between = _between(loops)
        pulled = tuple(stmt for stmt in between if maximum.block in (p.block for p in block_places_in(stmt)) or _feeds(stmt, top, between))
        ahead, behind = _apart(loops, [stmt for stmt in between if stmt not in pulled], pulled)
        powers, carriers = _carriers(loops, top)
        sums = tuple(_sums(loops, carriers))
        merger = _Merger(func, top, maximum, powers, loops, pulled, ahead, behind, sums)
        merger.check(set(carriers))
        return merger

    # -- legality

    def check(self, carriers: set[Buffer]) -> None:
        if not self.sums:
            raise ScheduleError(f"merge_online: no loop adds up what block {self.powers.name} makes")
        self.check_readers(carriers)
        for stmt in self.pulled:
            for place in block_places_in(stmt):
                if not _combines_maxima(place.block):
                    raise ScheduleError(f"merge_online: block {place.block.name} stands between the loops, and makes no greatest number")
        kept = {buffer for stmt in self.pulled for buffer in buffers_read(stmt) | buffers_written(stmt)} | {self.top}
        _check_order("merge_online", self.func, self.loops, kept)

    def check_readers(self, carriers: set[Buffer]) -> None:
        known = {self.powers, *(each.place.block for each in self.sums)}
        for place in block_places_in(self.func.body):
            block = place.block
            if self.top in buffers_read(block) and block not in (self.powers, self.maximum.block):
                raise ScheduleError(f"merge_online: block {block.name} reads {self.top.name}, too")
            used = (buffers_read(block) | buffers_written(block)) & carriers
            if used and block not in known and not _is_carried(block, carriers):
                raise ScheduleError(f"merge_online: block {block.name} reads {min(b.name for b in used)}, but does not add it up")

    # -- the result

    def merged(self) -> PrimFunc:
        func, top, first = self.func, self.top, self.loops[0].loop
        before = replace(top, name=fresh_buffer_name(func, f"{top.name}_before"))
        change = replace(top, name=fresh_buffer_name(func, f"{top.name}_change"))
        one = const(1, top.dtype)
        order = BlockAxis(Var(f"v{first.var.name}", i64), first.extent, AxisKind.ORDERED, first.var)

        def at_top(name: str, make: Callable[[tuple[Expr, ...]], Stmt], *ordered: BlockAxis) -> Stmt:
            stmt = make(_store_of(self.maximum.block).indices)
            return points_of(func, self.maximum, self.depth(self.maximum), fresh_block_name(func, name), stmt, ordered, name)

        def rescaled(each: _Sum, suffix: str, *ordered: BlockAxis) -> Stmt:
            store = each.store
            value = Load(store.buffer, store.indices) * _as(Load(change, each.top), store.buffer.dtype)
            stmt: Stmt = replace(store, value=value)
            known = in_bounds(each.top, top.shape, facts_of_axes(func))
            if known is not TRUE:  # what was padded adds zeros, relative to nothing
                stmt = If(known, stmt)
            name = fresh_block_name(func, f"{each.place.block.name}_{suffix}")
            return points_of(func, each.place, self.depth(each.place), name, stmt, ordered, suffix)

        def shrunk(at: tuple[Expr, ...]) -> Stmt:
            return Store(change, at, call("exp", Load(before, at) - _base(Load(top, at))))

        def noted(at: tuple[Expr, ...]) -> Stmt:
            return Store(before, at, Load(top, at))

        start = at_top(f"{top.name}_before_init", lambda at: Store(before, at, lowest(top.dtype)))
        body: list[Stmt] = []
        sums = {each.place.block: each for each in self.sums}
        for place in self.loops:
            mine = [each for block, each in sums.items() if any(block is p.block for p in block_places_in(place.stmt))]
            if any(self.powers is p.block for p in block_places_in(place.stmt)):
                body += self.pulled
                body += [at_top(f"{top.name}_change", shrunk, order), at_top(f"{top.name}_before", noted, order)]
            body += [rescaled(each, "rescaled", order) for each in mine]
            body.append(substitute(place.loop.body, {place.loop.var: first.var}))
        last = at_top(
            f"{top.name}_change_last",
            lambda at: Store(change, at, select(first.extent > 0, call("exp", _base(Load(before, at)) - Load(before, at)), one)),
        )
        ends = [rescaled(each, "rescaled_last") for each in self.sums]
        loop = replace(first, body=_with_base(seq(*body), self.powers, top))
        return self.put(seq(*self.ahead, start, loop, last, *ends, *self.behind), (before, change))

    def depth(self, place: Place) -> int:
        """How many statements around a block are around the merged loop, and the loop itself."""
        return len(self.loops[0].path) + 1 if any(loop.stmt in place.path for loop in self.loops) else len(self.loops[0].path)

    def put(self, stmt: Stmt, buffers: tuple[Buffer, ...]) -> PrimFunc:
        """The function with all that was merged replaced."""
        gone = (*(place.stmt for place in self.loops), *self.pulled, *self.ahead, *self.behind)
        whole = _replaced(self.func, self.loops[0], gone, stmt)
        body = whole.body
        for buffer in buffers:
            body = Alloc(buffer, body)
        return rename_loops(replace(whole, body=body))


def _as(expr: Expr, dtype: object) -> Expr:
    if expr.dtype is not dtype:
        raise ScheduleError("merge_online: a sum is not of the type of the maximum")
    return expr


def _base(top: Expr) -> Expr:
    """What exponentials are relative to."""
    return select(equal(top, lowest(top.dtype)), const(0, top.dtype), top)


def _with_base(body: Stmt, powers: Block, top: Buffer) -> Stmt:
    def rewrite(node: Node) -> Node | None:
        if isinstance(node, Block) and node.name == powers.name:
            return transform(node, lambda inner: _base(inner) if isinstance(inner, Load) and inner.buffer is top else None)
        return None

    return transform(body, rewrite)


# -- loops side by side


def merge_loops(func: PrimFunc, loops: Sequence[str]) -> PrimFunc:
    """Run sibling loops as one.

        for i: A[i] = f(i)                for i:
        for i: B[i] = g(A[i])      =>         A[i] = f(i)
                                              B[i] = g(A[i])

    What stands between the loops goes in front of them or behind. Raises ScheduleError unless `loops` are statements of one sequence with
    the same extent, in which each iteration reads what earlier loops made in this one or in those before.
    Source: `fuse_loops` of Exo.
    """
    places = _siblings(func, tuple(loops))
    _check_order("merge_loops", func, places, set())
    ahead, behind = _apart(places, _between(places), ())
    first = places[0].loop
    body = seq(*(substitute(place.loop.body, {place.loop.var: first.var}) for place in places))
    gone = (*(place.stmt for place in places), *ahead, *behind)
    return _replaced(func, places[0], gone, seq(*ahead, replace(first, body=body), *behind))


def _replaced(func: PrimFunc, first: Place, gone: Sequence[Stmt], stmt: Stmt) -> PrimFunc:
    """The function with `stmt` in the place of the first of the statements that are gone."""
    sequence = first.path[-1]
    assert isinstance(sequence, Seq)
    items = [stmt if item is first.stmt else item for item in sequence.stmts if item is first.stmt or item not in gone]
    return replace_stmt(func, Place(sequence, first.path[:-1]), seq(*items))


def _check_order(what: str, func: PrimFunc, loops: tuple[Place, ...], kept: Set[Buffer]) -> None:
    """An iteration reads what was made in it or before, but for what is kept up to date in other ways."""
    first = loops[0].loop
    facts = facts_inside(func, loops[0])
    bodies = [substitute(place.loop.body, {place.loop.var: first.var}) for place in loops]
    for b, later in enumerate(bodies):
        for earlier in bodies[:b]:
            made = buffers_written(earlier)
            if buffers_written(later) & (made | buffers_read(earlier)):
                raise ScheduleError(f"{what}: a loop writes what an earlier one touches")
            for buffer in (made & buffers_read(later)) - kept:
                stores = [each for each in accesses(earlier, {buffer}) if each.is_store]
                loads = [each for each in accesses(later, {buffer}) if not each.is_store]
                if not all(never_meet(load, store, first.var, facts) for load in loads for store in stores):
                    raise ScheduleError(f"{what}: {buffer.name} is read before later iterations have made it")


# -- parts that are made apart


def rebase_parts(func: PrimFunc, block: str, length: int) -> PrimFunc:
    """Take exponentials relative to the greatest value of their part, where maxima and sums are made in parts of `length` terms.

        for p: for k: M'[p] = max(M'[p], X[p * 4 + k])        for p: for k: M'[p] = max(M'[p], X[p * 4 + k])
        for p: M = max(M, M'[p])                              for p: M = max(M, M'[p])
        for j: P[j] = exp(X[j] - M)                    =>     for j: P[j] = exp(X[j] - base(M'[j // 4]))
        for p: for k: S'[p] += P[p * 4 + k]                   for p: for k: S'[p] += P[p * 4 + k]
        for p: S += S'[p]                                     for p: S += S'[p] * exp(M'[p] - M)

    base is as in `merge_online`. The parts then need nothing of each other: each can be made by itself, and combined in the end. `block`
    combines the maxima of parts; parts are those of `rfactor`. Values are rounded in another way. Raises ScheduleError unless one block
    takes exponentials, and sums of these, or of multiples, are made in the same parts.
    """
    maximum = find_block(func, block)
    top = _maximum(maximum.block)
    part_top = _only_other(maximum.block)
    blocks = [place.block for place in block_places_in(func.body)]
    readers = [each for each in blocks if top in buffers_read(each) and each is not maximum.block]
    powers = readers[0] if len(readers) == 1 else None
    store = _store_of(powers) if powers is not None else None
    match store:
        case Store(
            indices=places,
            value=MathCall(name="exp" | "decay" | "exp_brief" as power, args=(Sub(lhs=x, rhs=Load(buffer=buffer, indices=own)),)),
        ) if buffer is top:
            along = [index for index in places if isinstance(index, Var) and index not in own]
        case _:
            along = []
    if powers is None or store is None or len(along) != 1 or top in buffers_read(x):
        raise ScheduleError(f"rebase_parts: what reads the result of block {block} is not one block of exponentials")
    sums = [each for each in blocks if store.buffer in buffers_read(each)]
    makers = [each for each in blocks if part_top in buffers_written(each)]
    for each in (*makers, *sums):
        _check_parts(each, x.buffer if each in makers and isinstance(x, Load) else store.buffer, places.index(along[0]), length, func)
    part = along[0] // length
    shifted = replace(store, value=call(power, x - _base(Load(part_top, (part, *own)))))
    shrunk = {each: _shrunk(func, each, _Carrier(store.indices, own), store.buffer, top, part_top) for each in sums}
    changed: dict[Node, Node] = {powers: replace(powers, body=transform(powers.body, lambda node: shifted if node is store else None))}
    changed.update(dict(shrunk.values()))
    return replace(func, body=transform(func.body, lambda node: changed.get(node) if isinstance(node, Block) else None))


def _only_other(block: Block) -> Buffer:
    others = buffers_read(block) - buffers_written(block)
    if len(others) != 1:
        raise ScheduleError(f"rebase_parts: block {block.name} does not combine parts")
    return next(iter(others))


def _check_parts(block: Block, read: Buffer, place: int, length: int, func: PrimFunc) -> None:
    """ScheduleError unless the first index of what a block makes is the part of what it reads."""
    own, facts = _store_of(block).indices, facts_of_axes(func)
    loads = [node for node in walk(block.body) if isinstance(node, Load) and node.buffer is read]
    if not own or not loads or any(prove(equal(load.indices[place] // length, own[0]), facts) is not True for load in loads):
        raise ScheduleError(f"rebase_parts: block {block.name} does not reduce parts of {length}")


def _shrunk(
    func: PrimFunc, partial: Block, carrier: _Carrier, powers: Buffer, top: Buffer, part_top: Buffer
) -> tuple[Block, Block]:
    """The block that adds up what another one makes of parts, as it is and with the parts brought to the common maximum."""
    store = _store_of(partial)
    match store.value:
        case Add(lhs=Load(buffer=buffer), rhs=term) if buffer is store.buffer:
            load = _multiple_of(term, {powers: carrier})
        case _:
            load = None
    readers = [place.block for place in block_places_in(func.body) if store.buffer in buffers_read(place.block)]
    finals = [block for block in readers if block is not partial]
    if load is None or annotation(partial, "monoid") != "sum" or len(finals) != 1 or annotation(finals[0], "monoid") != "sum":
        raise ScheduleError(f"rebase_parts: block {partial.name} makes no parts of a sum of exponentials")
    (final,) = finals
    at = carrier.top_at(load.indices)
    whole = _store_of(final)
    match whole.value:
        case Add(lhs=Load(), rhs=Load(buffer=buffer, indices=indices) as term) if buffer is store.buffer:
            known: dict[Node, Node] = dict(zip(store.indices, indices, strict=True))
        case _:
            raise ScheduleError(f"rebase_parts: block {final.name} does not add up parts as they are")
    if not frozenset[Var]().union(*map(variables, at)) <= set(known):
        raise ScheduleError(f"rebase_parts: parts of block {partial.name} are relative to several maxima")
    own = tuple(substitute(index, known) for index in at)
    factor = call("exp", Load(part_top, (indices[0], *own)) - Load(top, own))
    added = replace(whole, value=replace(whole.value, rhs=term * factor))
    return final, replace(final, body=transform(final.body, lambda node: added if node is whole else None))


# -- recognition


def _siblings(func: PrimFunc, names: tuple[str, ...]) -> tuple[Place, ...]:
    places = tuple(find_loop(func, name) for name in names)
    if len(places) < 2 or not places[0].path or not isinstance(places[0].path[-1], Seq):
        raise ScheduleError("the loops to merge are no statements of one sequence")
    facts = facts_at(func, places[0])
    for place in places:
        if place.path != places[0].path:
            raise ScheduleError(f"loop {place.loop.var.name} is not beside loop {names[0]}")
        if place.loop.kind is not LoopKind.SERIAL:
            raise ScheduleError(f"loop {place.loop.var.name} does not run in order")
        if prove(equal(place.loop.extent, places[0].loop.extent), facts) is not True:
            raise ScheduleError(f"loops {places[0].loop.var.name} and {place.loop.var.name} may differ in extent")
    if len(set(names)) != len(names):
        raise ScheduleError("a loop to merge is named twice")
    return tuple(sorted(places, key=lambda place: _position(places[0], place.stmt)))


def _position(place: Place, stmt: Stmt) -> int:
    sequence = place.path[-1]
    assert isinstance(sequence, Seq)
    return next(k for k, item in enumerate(sequence.stmts) if item is stmt)


def _between(loops: tuple[Place, ...]) -> list[Stmt]:
    sequence = loops[0].path[-1]
    assert isinstance(sequence, Seq)
    start, end = (_position(loops[0], place.stmt) for place in (loops[0], loops[-1]))
    own = {place.stmt for place in loops}
    return [stmt for stmt in sequence.stmts[start + 1 : end] if stmt not in own]


def _apart(loops: tuple[Place, ...], others: list[Stmt], pulled: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """Statements between loops: those that may run before all loops, and those that may run behind them."""
    ahead: list[Stmt] = []
    behind: list[Stmt] = []
    for stmt in others:
        inside = [*(place.stmt for place in loops), *pulled]
        earlier = [other for other in inside if _position(loops[0], other) < _position(loops[0], stmt)]
        if not any(_depend(other, stmt) for other in (*earlier, *behind)):
            ahead.append(stmt)
        elif any(_depend(stmt, other) for other in inside if other not in earlier):
            raise ScheduleError("a statement between the loops to merge depends on one of them, and another one on it")
        else:
            behind.append(stmt)
    return tuple(ahead), tuple(behind)


def _depend(first: Stmt, second: Stmt) -> bool:
    """Whether two statements touch the same buffer, which one of them writes."""
    return any(touches(a, buffer) for a, b in ((first, second), (second, first)) for buffer in buffers_written(b))


def _feeds(stmt: Stmt, top: Buffer, between: list[Stmt]) -> bool:
    """Whether a statement makes what the maximum, or what stands between the two, is combined from."""
    blocks = [place.block for place in block_places_in(stmt)]
    if not all(map(_combines_maxima, blocks)) or not any(annotation(block, "monoid") for block in blocks):
        return False
    made = buffers_written(stmt)
    readers = [other for other in between if other is not stmt and buffers_read(other) & made]
    return bool(readers) and all(top in buffers_written(other) or _feeds(other, top, between) for other in readers)


def _store_of(block: Block) -> Store:
    stores = [node for node in walk(block.body) if isinstance(node, Store)]
    if len(stores) != 1 or has_intrinsic(block):
        raise ScheduleError(f"merge_online: block {block.name} must write one element")
    return stores[0]


def _combines_maxima(block: Block) -> bool:
    """Whether a block takes a greatest number, or starts one: what it makes only grows from iteration to iteration, started anew or not."""
    stores = [node for node in walk(block.body) if isinstance(node, Store)]
    starts = len(stores) == 1 and stores[0].value is lowest(stores[0].value.dtype)
    return starts or annotation(block, "monoid") == "max_number"


def _maximum(block: Block) -> Buffer:
    if annotation(block, "monoid") != "max_number":
        raise ScheduleError(f"merge_online: block {block.name} makes no greatest number")
    return _store_of(block).buffer


def _carriers(loops: tuple[Place, ...], top: Buffer) -> tuple[Block, dict[Buffer, _Carrier]]:
    """The block that takes exponentials, and the buffers of these and of what is made of them one by one."""
    found: dict[Buffer, _Carrier] = {}
    powers: list[Block] = []
    for place in (p for loop in loops for p in block_places_in(loop.stmt)):
        block = place.block
        if any(axis.kind is not AxisKind.SPATIAL for axis in block.axes) or has_intrinsic(block):
            continue
        store = _store_of(block)
        match store.value:
            case MathCall(
                name="exp" | "decay" | "exp_brief", args=(Sub(lhs=lhs, rhs=Load(buffer=buffer, indices=indices)),)
            ) if buffer is top:
                if top not in buffers_read(lhs):
                    powers.append(block)
                    found[store.buffer] = _Carrier(store.indices, indices)
                    continue
        load = _multiple_of(store.value, found)
        if load is not None:
            found[store.buffer] = _Carrier(store.indices, found[load.buffer].top_at(load.indices))
    if len(powers) != 1:
        raise ScheduleError(f"merge_online: {len(powers)} blocks in the loops take exponentials of differences to {top.name}, not one")
    for buffer, carrier in found.items():
        if not all(isinstance(place, Var) for place in carrier.places if not isinstance(place, Const)):
            raise ScheduleError(f"merge_online: {buffer.name} is not made at axes of its block")
    return powers[0], found


def _is_carried(block: Block, carriers: set[Buffer]) -> bool:
    return len(buffers_written(block) & carriers) == 1 and all(axis.kind is AxisKind.SPATIAL for axis in block.axes)


def _multiple_of(value: Expr, carriers: dict[Buffer, _Carrier]) -> Load | None:
    """The load of which a value is a multiple, rounded or masked by zeros perhaps."""
    if not buffers_read(value) & carriers.keys():
        return None
    match value:
        case Load(buffer=buffer):
            return value if buffer in carriers else None
        case Cast(operand=operand) if value.dtype.is_float and operand.dtype.is_float:
            return _multiple_of(operand, carriers)
        case Mul(lhs=lhs, rhs=rhs):
            with_carriers = [side for side in (lhs, rhs) if buffers_read(side) & carriers.keys()]
            return _multiple_of(with_carriers[0], carriers) if len(with_carriers) == 1 else None
        case Select(condition=condition, true_value=kept, false_value=other):
            if is_const(other, 0) and not buffers_read(condition) & carriers.keys():
                return _multiple_of(kept, carriers)
    return None


def _sums(loops: tuple[Place, ...], carriers: dict[Buffer, _Carrier]) -> Iterator[_Sum]:
    for loop in loops:
        for place in block_places_in(loop.stmt):
            block = place.block
            if all(axis.kind is AxisKind.SPATIAL for axis in block.axes) or not buffers_read(block) & carriers.keys():
                continue
            store = _store_of(block)
            if annotation(block, "monoid") != "sum" or block.init is not None:
                raise ScheduleError(f"merge_online: block {block.name} is no sum that was started before the loops")
            load = None
            match store.value:
                case Add(lhs=Load(buffer=buffer, indices=indices), rhs=term) if buffer is store.buffer and indices == store.indices:
                    load = _multiple_of(term, carriers)
            if load is None:
                raise ScheduleError(f"merge_online: block {block.name} adds up what is no multiple of an exponential")
            top = carriers[load.buffer].top_at(load.indices)
            spatial = {axis.var for axis in block.axes if axis.kind is AxisKind.SPATIAL}
            if not frozenset[Var]().union(*map(variables, top)) <= spatial:
                raise ScheduleError(f"merge_online: terms of block {block.name} are relative to different maxima")
            yield _Sum(Place(block, (*loop.path, *_below(loop, place))), store, top)


def _below(loop: Place, place: Place) -> tuple[Stmt, ...]:
    return place.path if place.path and place.path[0] is loop.stmt else place.path[len(loop.path) :]
