"""The first elements in order of many lines at once, each a lane of vectors: where lines are short, or lie side by side.

Keys of a block of places are copied to a tile, [place, lane], in whichever order memory has them. What follows is the same for all lanes:

- where few are wanted, each lane keeps its first ones sorted, and a place at which some lane's key is among them is put in by vectors;
- where lines are short and many are wanted, all of them are sorted by a network (merge exchange: Batcher 1968; Knuth 5.2.2, algorithm M).

Keys that are equal are told apart by their places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tc import te
from tc.ir.arith import bounds, prove, simplify
from tc.ir.dtype import i32, i64
from tc.ir.expr import (
    FALSE,
    TRUE,
    Buffer,
    Const,
    Expr,
    Load,
    Var,
    cast,
    ceildiv,
    const,
    equal,
    logical_and,
    logical_or,
    not_equal,
    select,
)
from tc.ir.hints import LoopHints
from tc.ir.loop import If, Let, LoopKind, Stmt, Store, While, seq
from tc.ir.node import replace
from tc.ir.types import product
from tc.ops.common import unravel
from tc.ops.registry import current_facts
from tc.ops.sort import order_rank
from tc.ops.statements import LANES, cell, get, held, let, loop, loops_over_rows, put, scratch, vector_loops
from tc.te import Tensor

FEW_KEPT = 16
"""Elements that are kept sorted by putting one in after the other, at most."""

UNROLLED = 6
"""Elements kept of which all are put in without a test, and without a loop."""

SHORT = 512
"""Elements of a line that a network sorts, at most; longer ones are less work by digits."""

SHORT_ROW = 256
"""Elements of a row, a line whose elements follow each other in memory, that is one lane of many, at most."""

LONGEST = (1 << 31) - 1
"""Elements of a line whose places lanes hold, at most."""

FEW_LINES = 6
"""Lines of which each is looked at by itself, where there are no more."""

BLOCK = 32
"""Places whose keys are copied at once."""

SQUARE = 8
"""Keys of rows that are exchanged in registers: as many of as many rows."""


@dataclass(frozen=True)
class Lines:
    """The lines of `x` along `axis`, of `size` elements each, and how many first ones of each are wanted."""

    x: Tensor
    axis: int
    k: Expr
    largest: bool

    @property
    def size(self) -> Expr:
        return self.x.shape[self.axis]

    @property
    def outer(self) -> tuple[Expr, ...]:
        return self.x.shape[: self.axis]

    @property
    def inner(self) -> tuple[Expr, ...]:
        return self.x.shape[self.axis + 1 :]

    @property
    def neighbours(self) -> Expr:
        """Lines whose elements at one place follow each other in memory."""
        return product(self.inner)

    @property
    def total(self) -> Expr:
        return product(self.outer) * self.neighbours

    def at(self, around: Expr, line: Expr, place: Expr) -> tuple[Expr, ...]:
        """Where element `place` is of line `line` among its neighbours, and these number `around` of all such."""
        before = unravel(around, self.outer) if self.outer else ()
        return (*before, place, *(unravel(line, self.inner) if self.inner else ()))

    def key(self, around: Expr, line: Expr, place: Expr) -> Expr:
        return order_rank(self.x[self.at(around, line, place)], self.largest)

    def split(self, number: Expr, use: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """`use` the two numbers of the line that is number `number` of all."""
        return let(number // self.neighbours, lambda around: let(number % self.neighbours, lambda line: use(around, line)))


def suit_lanes(lines: Lines) -> Expr:
    """When lines are taken as lanes; under the facts of the current inference that may be known to be always, or never."""
    facts = current_facts()
    longest, most = bounds(lines.size, facts).hi, bounds(lines.k, facts).hi
    count = bounds(lines.total, facts).hi
    is_row = prove(lines.neighbours <= 1, facts) is True
    if count is not None and count <= FEW_LINES:
        return FALSE
    if most is None or most > FEW_KEPT:
        return TRUE if longest is not None and longest <= (SHORT_ROW if is_row else SHORT) else FALSE
    limit = lines.size <= (SHORT_ROW if is_row else LONGEST)
    known = prove(limit, facts)
    return limit if known is None else TRUE if known else FALSE


def first_of_lines(lines: Lines, values: Buffer, indices: Buffer) -> Stmt:
    """Write the first elements of each line, and where they are."""
    neighbours, total = lines.neighbours, lines.total
    aligned = ceildiv(neighbours, LANES)
    are_many = const(LANES) <= neighbours

    def group(number: Expr) -> Stmt:
        wanted = number % aligned * LANES
        line = te.minimum(wanted, neighbours - LANES)
        first = select(are_many, number // aligned * neighbours + line, number * LANES)
        written = select(are_many, wanted - line, const(0))

        def at(around: Expr, line: Expr) -> Stmt:
            return let(written, lambda written: _Group(lines, around, line, written).body(values, indices))

        return lines.split(first, at)

    count = select(are_many, product(lines.outer) * aligned, ceildiv(total, LANES))
    return loops_over_rows((simplify(count, current_facts()),), lines.size * LANES, group)


@dataclass(frozen=True)
class _Group:
    """As many lines as there are lanes, from one on. Those of the first lanes, `written` of them, another group writes too; of the last
    group some may not be there. They are neighbours where any line has so many."""

    lines: Lines
    around: Expr
    line: Expr
    written: Expr

    def body(self, values: Buffer, indices: Buffer) -> Stmt:
        lines = self.lines
        most = bounds(lines.k, current_facts()).hi
        by_putting_in = most is not None and most <= FEW_KEPT
        room = te.maximum(lines.k if by_putting_in else lines.size, const(1))
        kind = lines.key(const(0), const(0), const(0)).dtype
        kept = _Lanes(Buffer("kept", (room, const(LANES)), kind), Buffer("kept_places", (room, const(LANES)), i32), room)
        fill = self._kept_by_putting_in(kept) if by_putting_in else self._kept_by_sorting(kept)
        return scratch([kept.keys, kept.places], seq(fill, self._write(kept, values, indices)))

    @property
    def first(self) -> Expr:
        """The number of the first line."""
        return self.around * self.lines.neighbours + self.line

    def _either_way(self, together: Callable[[], Stmt], apart: Callable[[], Stmt], condition: Expr) -> Stmt:
        """What lanes do together where they are neighbours, and the condition holds; what they do one by one elsewhere."""
        are_neighbours, facts = const(LANES) <= self.lines.neighbours, current_facts()
        if prove(are_neighbours, facts) is False:
            return apart()
        are_neighbours = logical_and(are_neighbours, condition)
        return together() if prove(are_neighbours, facts) is True else If(are_neighbours, together(), apart())

    def _copy(self, tile: Buffer, start: Expr, count: Expr) -> Stmt:
        """Keys of places from `start` on to the first rows of the tile."""
        lines = self.lines

        def of_lane(lane: Expr, use: Callable[[Expr, Expr], Stmt]) -> Stmt:
            """`use` the numbers of a lane's line, the last one's for a lane that has none."""
            return lines.split(te.minimum(self.first + lane, lines.total - 1), use)

        def square(b: Expr, lane: int) -> Stmt:
            def row(i: Expr) -> Stmt:
                def key(other: Expr) -> Stmt:
                    line = te.minimum(self.first + lane + other, lines.total - 1)
                    return Store(tile, (b * SQUARE + i, lane + other), lines.key(line, const(0), start + b * SQUARE + i))

                return loop(side, key, "lane", LoopKind.VECTORIZED)

            side = const(SQUARE)
            return replace(loop(side, row, "i", LoopKind.UNROLLED), hints=LoopHints(transpose=True))

        def apart() -> Stmt:
            is_row = prove(lines.neighbours <= 1, current_facts()) is True
            whole = count // SQUARE if is_row else const(0)
            done = whole * SQUARE

            def rest(lane: Expr) -> Stmt:
                def one(around: Expr, line: Expr) -> Stmt:
                    return loop(count - done, lambda i: Store(tile, (done + i, lane), lines.key(around, line, start + done + i)))

                return of_lane(lane, one)

            squares = loop(whole, lambda b: seq(*(square(b, lane) for lane in range(0, LANES, SQUARE))), "b")
            return seq(squares, loop(LANES, rest, "lane")) if is_row else loop(LANES, rest, "lane")

        def together() -> Stmt:
            def row(j: Expr) -> Stmt:
                return vector_loops(LANES, lambda i: Store(tile, (j, i), lines.key(self.around, self.line + i, start + j)))

            return loop(count, row, "j")

        return self._either_way(together, apart, TRUE)

    def _kept_by_putting_in(self, kept: _Lanes) -> Stmt:
        lines = self.lines
        tile = Buffer("tile", (const(BLOCK), const(LANES)), kept.keys.dtype)

        def block(b: Expr) -> Stmt:
            start = b * BLOCK

            count = te.minimum(lines.size - start, const(BLOCK))
            begins = te.minimum(te.maximum(lines.k - start, const(0)), count)
            append = loop(begins, lambda j: kept.append(tile, j, start + j), "j")
            put_in = loop(count - begins, lambda j: kept.put_in(tile, begins + j, start + begins + j), "j")
            return seq(self._copy(tile, start, count), append, put_in)

        return scratch([tile], loop(ceildiv(lines.size, BLOCK), block, "b"))

    def _kept_by_sorting(self, kept: _Lanes) -> Stmt:
        size = self.lines.size
        number = loop(size, lambda j: vector_loops(LANES, lambda lane: Store(kept.places, (j, lane), cast(j, i32))), "j")
        return seq(self._copy(kept.keys, const(0), size), number, kept.sort(size))

    def _write(self, kept: _Lanes, values: Buffer, indices: Buffer) -> Stmt:
        lines = self.lines

        def result(around: Expr, line: Expr, t: Expr, lane: Expr) -> Stmt:
            place, at = held(cast(Load(kept.places, (t, lane)), i64), lines.size), lines.at(around, line, t)
            return seq(Store(values, at, lines.x[lines.at(around, line, place)]), Store(indices, at, place))

        def one(lane: Expr) -> Stmt:
            is_own = logical_and(self.written <= lane, self.first + lane < lines.total)
            write = lines.split(self.first + lane, lambda around, line: loop(lines.k, lambda t: result(around, line, t, lane), "t"))
            return If(is_own, write)

        def together(t: Expr) -> Stmt:
            return vector_loops(LANES, lambda lane: result(self.around, self.line + lane, t, lane))

        return self._either_way(lambda: loop(lines.k, together, "t"), lambda: loop(LANES, one, "lane"), equal(self.written, 0))


@dataclass(frozen=True)
class _Lanes:
    """Keys and their places, [room, LANES] each."""

    keys: Buffer
    places: Buffer
    room: Expr

    def _row(self, t: Expr, i: Expr) -> tuple[Expr, Expr]:
        return Load(self.keys, (t, i)), Load(self.places, (t, i))

    def append(self, tile: Buffer, j: Expr, place: Expr) -> Stmt:
        """Put the keys of row j of a tile, which are those of `place`, among the sorted ones that there are of places before."""
        last = held(place, self.room)

        def behind(i: Expr) -> Stmt:
            return seq(Store(self.keys, (last, i), Load(tile, (j, i))), Store(self.places, (last, i), cast(place, self.places.dtype)))

        return seq(vector_loops(LANES, behind), self._moves(tile, j, place, last))

    def put_in(self, tile: Buffer, j: Expr, place: Expr) -> Stmt:
        """Put the keys of row j of a tile among sorted ones of places before, as many as there is room for; the last one is dropped."""
        if isinstance(self.room, Const) and self.room.value <= UNROLLED:
            return self._moves(tile, j, place, self.room - 1)
        flags = Buffer("flags", (const(LANES),), i32)

        def flag(i: Expr) -> Stmt:
            return Store(flags, (i,), cast(Load(tile, (j, i)) < Load(self.keys, (self.room - 1, i)), i32))

        halves = [vector_loops(width, partial(_either, flags, width)) for width in (8, 4, 2, 1)]
        is_first = not_equal(Load(flags, (const(0),)), const(0, i32))
        return scratch([flags], seq(vector_loops(LANES, flag), *halves, If(is_first, self._moves(tile, j, place, self.room - 1))))

    def _moves(self, tile: Buffer, j: Expr, place: Expr, last: Expr) -> Stmt:
        """Make room for keys where they belong, the rows up to `last` moving by one from there on: behind those that are equal."""
        number = cast(place, self.places.dtype)

        def move(t: Expr) -> Stmt:
            before = held(t - 1, self.room)

            def lane(i: Expr) -> Stmt:
                def put_row(new: Expr, own: Expr, own_place: Expr, earlier: Expr, earlier_place: Expr) -> Stmt:
                    here = select(new < own, number, own_place)
                    return seq(
                        Store(self.keys, (t, i), te.maximum(earlier, te.minimum(new, own))),
                        Store(self.places, (t, i), select(new < earlier, earlier_place, here)),
                    )

                return _named([Load(tile, (j, i)), *self._row(t, i), *self._row(before, i)], put_row)

            return vector_loops(LANES, lane)

        def first(i: Expr) -> Stmt:
            def put_row(new: Expr, own: Expr, own_place: Expr) -> Stmt:
                return seq(
                    Store(self.keys, (const(0), i), te.minimum(new, own)),
                    Store(self.places, (const(0), i), select(new < own, number, own_place)),
                )

            return _named([Load(tile, (j, i)), *self._row(const(0), i)], put_row)

        if isinstance(last, Const) and last.value <= UNROLLED:
            return seq(*(move(const(t)) for t in range(int(last.value), 0, -1)), vector_loops(LANES, first))
        return seq(loop(last, lambda u: move(last - u), "u"), vector_loops(LANES, first))

    def sort(self, size: Expr) -> Stmt:
        """Sort all lanes: rounds of exchanges of rows that are `d` apart, of rows whose number has bit `p` as `r` has it."""
        p, q, r, d, top = (cell(name) for name in ("p", "q", "r", "d", "top"))

        def exchange(a: Expr) -> Stmt:
            lower, upper = held(a, self.room), held(a + get(d), self.room)

            def lane(i: Expr) -> Stmt:
                def put_both(x: Expr, y: Expr, x_place: Expr, y_place: Expr) -> Stmt:
                    is_wrong = logical_or(y < x, logical_and(equal(x, y), y_place < x_place))
                    return seq(
                        Store(self.keys, (lower, i), te.minimum(x, y)),
                        Store(self.keys, (upper, i), te.maximum(x, y)),
                        Store(self.places, (lower, i), select(is_wrong, y_place, x_place)),
                        Store(self.places, (upper, i), select(is_wrong, x_place, y_place)),
                    )

                return _named([Load(part, (row, i)) for part in (self.keys, self.places) for row in (lower, upper)], put_both)

            return vector_loops(LANES, lane)

        def run(b: Expr) -> Stmt:
            first = get(r) + b * 2 * get(p)
            count = te.minimum(size - get(d) - first, get(p))
            return let(first, lambda start: loop(count, lambda i: exchange(start + i), "i"))

        runs = ceildiv(te.maximum(size - get(d) - get(r), const(0)), te.maximum(2 * get(p), const(1)))
        round_ = seq(
            loop(runs, run, "run"),
            let(get(q) - get(p), lambda distance: put(d, distance)),
            put(q, get(q) // 2),
            put(r, get(p)),
        )
        rounds = seq(put(q, get(top)), put(r, 0), put(d, get(p)), While(const(0) < get(d), round_))
        passes = seq(put(p, get(top)), While(const(0) < get(p), seq(rounds, put(p, get(p) // 2))))
        return scratch([p, q, r, d, top], seq(_largest_power_below(size, top), passes))


def _either(flags: Buffer, width: int, i: Expr) -> Stmt:
    return Store(flags, (i,), te.maximum(Load(flags, (i,)), Load(flags, (i + width,))))


def _named(values: Sequence[Expr], use: Callable[..., Stmt]) -> Stmt:
    names = [Var("own", value.dtype) for value in values]
    stmt = use(*names)
    for name, value in reversed(list(zip(names, values, strict=True))):
        stmt = Let(name, value, stmt)
    return stmt


def _largest_power_below(size: Expr, place: Buffer) -> Stmt:
    """Put the largest power of two that is less than `size` into a cell; 0 where there is none."""
    if isinstance(size, Const):
        return put(place, (1 << (int(size.value) - 1).bit_length()) // 2 if size.value > 1 else 0)
    double = While(logical_and(const(0) < get(place), 2 * get(place) < size), put(place, 2 * get(place)))
    return seq(put(place, te.minimum(te.maximum(size - 1, const(0)), const(1))), double)
