"""What follows a tile of sums, done while the next tile is multiplied: products of tiles leave the units of vectors idle.

    for i in range(n, pipeline=2):                  tile_zero(c); for k in range(4): tile_dot(A[0, k], B[k], c)
        tile_zero(c)                                tile_store(c, S[0, 0])
        for k in range(4):                          for i in range(n - 1):
            tile_dot(A[i, k], B[k], c)                  tile_zero(c)
        tile_store(c, S[0, 0])                 =>       for k in range(4):
        for r in range(16):                                 tile_dot(A[i + 1, k], B[k], c)
            for j in vectorized(16):                        for r in unrolled(4):
                C[i, r, j] = f(S[r, j])                         for j in vectorized(16): C[i, 4 * k + r, j] = f(S[4 * k + r, j])
                                                        tile_store(c, S[0, 0])
                                                    for r in range(16): ... C[n - 1, r, j] = f(S[r, j])

The sums wait in registers until all rows of the tile before are done, so that one place in memory is enough for both. Only the order of
what stands in front of the stores of one iteration and what follows those of the one before changes: neither may touch what the other
writes.
Source: the interleaved stores of oneDNN's kernel of batches of products on AMX (Intel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from tc.ir.arith import Facts, proves, simplify
from tc.ir.cached import cached_property
from tc.ir.dtype import i64
from tc.ir.expr import (
    Buffer,
    CompareExpr,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Max,
    Min,
    Var,
    const,
    floormod,
    is_const,
)
from tc.ir.hints import NO_HINTS, LoopHints
from tc.ir.loop import (
    Alloc,
    For,
    If,
    IntrinsicCall,
    Let,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    While,
    in_place_inputs,
    seq,
    walk_statements,
)
from tc.ir.node import Node, map_children, replace, substitute, walk
from tc.ir.structural import fresh_binders
from tc.ir.uses import buffers_read, buffers_written, has_intrinsic, has_tiles, reads_memory, variables
from tc.ir.x86_intrinsics import fills_tile, is_sum_store, is_tile_dot
from tc.passes.loop.pipeline_roles import allocated
from tc.passes.loop.simplify_loops import simplify_statement
from tc.passes.manager import loop_pass


@loop_pass
def interleave_stores(func: PrimFunc) -> PrimFunc:
    """Carry out the hint `pipeline` of loops around products of tiles in registers, where it is proven to change nothing.

    Serial loops that have nothing but the loop with the hint inside run with it as one, as far as their extents are known: the fewer
    first and last tiles there are, the better. Runs on what `keep_in_tiles` makes.
    """
    if not has_intrinsic(func.body):
        return func
    return replace(func, body=_visit(func.body, func, Facts.of(func.facts)))


def _visit(stmt: Stmt, func: PrimFunc, facts: Facts) -> Stmt:
    loops: list[For] = []
    inner = stmt
    while isinstance(inner, For) and inner.kind is LoopKind.SERIAL:
        loops.append(inner)
        inner = inner.body
    if loops and loops[-1].hints.pipeline == 2:
        outer, joined = _joined(loops)
        parts = _parts(inner, func)
        if parts is not None and not reads_memory(joined[0].extent):
            return _rebuilt(outer, _pipelined(joined, parts, _facts_inside(outer, facts)))
    known = _facts_inside(loops, facts)

    def inside(node: Node) -> Node:
        return _visit(node, func, known) if isinstance(node, Stmt) else node

    return _rebuilt(loops, map_children(inner, inside))


def _facts_inside(loops: Sequence[For], facts: Facts) -> Facts:
    for loop in loops:
        facts = facts.with_range(loop.var, loop.extent)
    return facts


def _rebuilt(loops: Sequence[For], body: Stmt) -> Stmt:
    for loop in reversed(loops):
        body = loop if body is loop.body else replace(loop, body=body)
    return body


def _joined(loops: list[For]) -> tuple[list[For], list[For]]:
    """The loops of a nest that stay as they are, and the inner ones that run as one: all but the outermost of these of known extents."""
    first = len(loops) - 1
    while first > 0 and isinstance(loops[first].extent, Const) and loops[first - 1].hints.without("pipeline") == NO_HINTS:
        first -= 1
    return loops[:first], loops[first:]


# -- what can be done later


@dataclass(frozen=True, eq=False)
class _Parts:
    """The body of a loop: what is allocated in it; what stands in front of a tile; its registers, the products and the stores of its sums;
    and what follows them."""

    scratch: list[Buffer]
    before: list[Stmt]
    registers: list[Buffer]
    products: list[Stmt]
    stores: list[Stmt]
    after: list[Stmt]


def _parts(body: Stmt, func: PrimFunc) -> _Parts | None:
    """The parts of the body of a loop of which the last may be done an iteration later; None where there is no such order."""
    scratch, inner = allocated(body)
    if not all(isinstance(dim, Const) for buffer in scratch for dim in buffer.shape):
        return None
    stmts = _listed(inner)
    tiles = [k for k, stmt in enumerate(stmts) if has_tiles(stmt)]
    if len(tiles) != 1 or any(isinstance(node, While) or _is_parallel(node) for node in walk_statements(body)):
        return None
    (place,) = tiles
    registers, inner = allocated(stmts[place])
    calls = _listed(inner)
    count = len(calls)
    while count and isinstance(call := calls[count - 1], IntrinsicCall) and is_sum_store(call.name):
        count -= 1
    parts = _Parts(scratch, stmts[:place], registers, calls[:count], calls[count:], stmts[place + 1 :])
    if not parts.stores or not parts.after or not all(map(_is_of_products, parts.products)) or not _num_dots(parts.products):
        return None
    return parts if _may_be_late(parts, func) else None


def _listed(stmt: Stmt) -> list[Stmt]:
    return list(stmt.stmts) if isinstance(stmt, Seq) else [stmt]


def _is_parallel(node: Node) -> bool:
    return isinstance(node, For) and node.kind in (LoopKind.PARALLEL, LoopKind.BOUND)


def _is_of_products(stmt: Stmt) -> bool:
    """Whether a statement is an instruction on tiles that writes registers alone, or serial loops of a known number of these."""
    while isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL and isinstance(stmt.extent, Const):
        stmt = stmt.body
    return all(isinstance(call, IntrinsicCall) and fills_tile(call.name) for call in _listed(stmt))


def _num_dots(stmts: Sequence[Stmt]) -> int:
    """How many products of tiles statements make."""
    total = 0
    for stmt in stmts:
        loops, body = _nest(stmt)
        total += _times(loops) * sum(map(_is_dot, _listed(body)))
    return total


def _times(loops: Sequence[For]) -> int:
    """How many iterations loops of known extents have together."""
    count = 1
    for loop in loops:
        assert isinstance(loop.extent, Const), "loops of known extents"
        count *= int(loop.extent.value)
    return count


def _nest(stmt: Stmt) -> tuple[list[For], Stmt]:
    loops = []
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def _is_dot(stmt: Stmt) -> bool:
    return isinstance(stmt, IntrinsicCall) and is_tile_dot(stmt.name)


def _may_be_late(parts: _Parts, func: PrimFunc) -> bool:
    """Whether what follows the sums of one iteration, and what makes those of the next, do not touch what the other one writes."""
    early = seq(*parts.before, *parts.products)
    late = seq(*parts.after)
    changed = frozenset[Buffer]().union(*map(buffers_written, parts.before))
    read = buffers_read(early)
    written = buffers_written(late)
    inputs = {func.inputs[number] for number in in_place_inputs(func)}
    if func.outputs[0] in written and not inputs.isdisjoint(read):
        return False
    return written.isdisjoint(read | changed) and changed.isdisjoint(buffers_read(late))


# -- the loop


def _pipelined(loops: list[For], parts: _Parts, facts: Facts) -> Stmt:
    """The loops as one, in which the tile of an iteration is multiplied while what follows the tile of the one before is done."""
    count: Expr = loops[0].extent
    for loop in loops[1:]:
        count = count * loop.extent
    number = Var(loops[-1].var.name, loops[-1].var.dtype)
    inside = facts.with_range(number, simplify(count - 1, facts))

    def at(iteration: Expr, *stmts: Stmt) -> Stmt:
        known = inside if number in variables(iteration) else facts
        return simplify_statement(fresh_binders(substitute(seq(*stmts), digits(loops, iteration))), known)

    rows = _rows_of(at(number, parts.after[0]), frozenset().union(*map(buffers_written, parts.stores)))
    meanwhile = seq(*_interleaved(parts.products, rows, inside), at(number, *parts.after[1:]), *parts.stores)
    meanwhile = _let(digits(loops, number + 1), meanwhile)
    products = fresh_binders(_let(digits(loops, const(0)), seq(*parts.products, *parts.stores)))
    first = seq(at(const(0), *parts.before), products)
    others = _repeated(number, simplify(count - 1, facts), seq(at(number + 1, *parts.before), meanwhile))
    whole = seq(_in(parts.registers, seq(first, others)), at(count - 1, *parts.after))
    return _in(parts.scratch, whole if proves(count >= 1, facts) else If(count >= 1, whole))


def _let(values: Mapping[Var, Expr], stmt: Stmt) -> Stmt:
    """A statement in which variables have these values, of which it need not be simplified: they say where something lies."""
    for var, value in values.items():
        stmt = Let(var, value, stmt)
    return stmt


def _repeated(var: Var, count: Expr, body: Stmt, hints: LoopHints = NO_HINTS) -> Stmt:
    """The body so often, in a loop where it is not once or never."""
    if is_const(count, 0):
        return Seq(())
    return Let(var, const(0), body) if is_const(count, 1) else For(var, count, body, hints=hints)


def _in(buffers: Sequence[Buffer], stmt: Stmt) -> Stmt:
    for buffer in reversed(buffers):
        stmt = Alloc(buffer, stmt)
    return stmt


def digits(loops: Sequence[For], number: Expr) -> dict[Var, Expr]:
    """What the variables of nested loops are in iteration `number` of all; the extents of all but the outermost are known."""
    found: dict[Var, Expr] = {}
    for loop in reversed(loops[1:]):
        found[loop.var] = floormod(number, loop.extent)
        number = number // loop.extent
    return {**found, loops[0].var: number} if loops else found


# -- rows between products


@dataclass(frozen=True, eq=False)
class _Rows:
    """What follows a tile, in parts that may be apart: one for each iteration of its loops over rows."""

    loops: list[For]
    body: Stmt

    @property
    def count(self) -> int:
        return _times(self.loops)

    def some(self, first: Expr, count: int, facts: Facts) -> list[Stmt]:
        """`count` of them from one on, one after the other. Those whose numbers are known share their statements if they can."""
        if count == 0:
            return []
        if isinstance(first, Const) and self._are_alike:
            return [self._with_places(first + k) for k in range(count)]
        place = Var("row", i64)
        row = substitute(self.body, digits(self.loops, first + place if count > 1 else first))
        loop = For(place, const(count), row, LoopKind.UNROLLED) if count > 1 else row
        return [simplify_statement(fresh_binders(loop), facts)]

    def _with_places(self, number: Expr) -> Stmt:
        return _let(digits(self.loops, number), self.body)

    @cached_property
    def _are_alike(self) -> bool:
        """Whether which row it is only says where something lies: nothing is simpler in one than in another."""
        own = {loop.var for loop in self.loops}
        return not any(_is_simplified(node) and not own.isdisjoint(variables(node)) for node in walk(self.body))


def _is_simplified(node: Node) -> bool:
    """Whether it may be simpler where more is known of the numbers in it."""
    compared = isinstance(node, CompareExpr) and node.lhs.dtype == i64
    return compared or (isinstance(node, (Min, Max, FloorDiv, FloorMod)) and node.dtype == i64)


def _rows_of(stmt: Stmt, sums: frozenset[Buffer]) -> _Rows:
    """The rows of what reads sums: iterations of its outer loops that choose no element within a row of these."""
    loops: list[For] = []
    guards: list[Expr] = []
    while True:
        match stmt:
            case For(kind=LoopKind.SERIAL | LoopKind.UNROLLED, extent=Const(), var=var, body=body) if not _is_in_rows(var, body, sums):
                loops.append(stmt)
                stmt = body
            case If(condition=condition, then_body=body, else_body=None) if not reads_memory(condition):
                guards.append(condition)
                stmt = body
            case _:
                break
    for guard in reversed(guards):
        stmt = If(guard, stmt)
    return _Rows(loops, stmt)


def _is_in_rows(var: Var, stmt: Stmt, sums: frozenset[Buffer]) -> bool:
    return any(isinstance(node, Load) and node.buffer in sums and var in variables(node.indices[-1]) for node in walk(stmt))


def _interleaved(products: Sequence[Stmt], rows: _Rows, facts: Facts) -> list[Stmt]:
    """The products with all rows among them, as evenly as an equal number in each iteration of a loop allows; the last after them."""
    stmts: list[Stmt] = []
    total, dots, done = _num_dots(products), 0, 0
    for stmt in products:
        dots += _num_dots([stmt])
        end = rows.count * dots // total
        among = _among_iterations(stmt, rows, done, end, facts) if isinstance(stmt, For) and end > done else None
        stmts += among or _among([stmt], rows, const(done), end - done, facts)
        done = end
    return stmts


def _among_iterations(loop: For, rows: _Rows, first: int, end: int, facts: Facts) -> list[Stmt]:
    """A nest of products and the rows from `first` up to `end`: as many in each of its first iterations, of which the last have none."""
    loops, body = _nest(loop)
    steps = _times(loops)
    each = -(-(end - first) // steps)
    full = (end - first) // each
    hints = reduce(LoopHints.merged, [each.hints for each in loops])

    def iterations(begin: int, count: int, each: int) -> Stmt:
        step = loop.var if not begin and len(loops) == 1 else Var(loop.var.name, loop.var.dtype)
        number, inside = (step, facts.with_range(step, const(count))) if count > 1 else (const(0), facts)
        among = seq(*_among(_listed(body), rows, number * each + first, each, inside))
        whole = _let({var: value for var, value in digits(loops, number + begin).items() if value is not var}, among)
        return _repeated(step, const(count), fresh_binders(whole) if begin else whole, hints)

    rest = rows.some(const(first + full * each), end - first - full * each, facts)
    return [iterations(0, full, each), *rest, iterations(full, steps - full, 0)]


def _among(calls: Sequence[Stmt], rows: _Rows, first: Expr, count: int, facts: Facts) -> list[Stmt]:
    """Calls and `count` rows: as many as can be after each product of tiles."""
    stmts: list[Stmt] = []
    total, dots, done = _num_dots(calls), 0, 0
    for call in calls:
        dots += _is_dot(call)
        end = count * dots // max(total, 1)
        stmts += [call, *rows.some(first + done, end - done, facts)]
        done = end
    return stmts
