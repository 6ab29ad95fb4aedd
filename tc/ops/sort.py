"""Numbers that order as values do, and a stable sort of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tc.ir.dtype import DType, f32, f64, i32, i64, u32, u64
from tc.ir.expr import Buffer, Const, Expr, Load, Lt, Var, call, cast, const, equal, logical_and, logical_not, select
from tc.ir.loop import If, Let, Stmt, Store, While, seq
from tc.ops.statements import cell, get, grow, held, let, loop, put, scratch

# -- the order of values


def order_rank(value: Expr, largest: bool = False) -> Expr:
    """An i32, or an i64 for types of 64 bits, that is less where `value` comes first: NaN is the largest, zeros are equal."""
    dtype = value.dtype
    kind, unsigned = (i64, u64) if dtype.bits == 64 else (i32, u32)
    if dtype.is_float:
        wide = cast(value, f64 if dtype.bits == 64 else f32)
        bits = call("float_bits", wide)
        quiet = const(0x7FF8 << 48 if unsigned is u64 else 0x7FC0 << 16, unsigned)
        bits = select(equal(wide, const(0.0, wide.dtype)), const(0, unsigned), select(call("isnan", wide), quiet, bits))
        signed = cast(bits, kind)
        rank = select(signed < 0, call("bit_xor", signed, const((1 << (kind.bits - 1)) - 1, kind)), signed)
    elif dtype is unsigned:
        rank = cast(call("bit_xor", value, const(1 << (kind.bits - 1), unsigned)), kind)
    else:
        rank = cast(value, kind)
    return call("bit_not", rank) if largest else rank


def order_key(value: Expr, largest: bool = False) -> Expr:
    """As `order_rank`, a number without a sign."""
    rank = order_rank(value, largest)
    kind = u64 if rank.dtype is i64 else u32
    return call("bit_xor", cast(rank, kind), const(1 << (kind.bits - 1), kind))


# -- a stable sort

FEW = 40
"""Elements that are sorted by insertion."""

LARGE = 1024
"""Elements from which on digits of 11 bits, whose counts are 2048, are less work than digits of 8 bits."""


@dataclass(frozen=True)
class Pairs:
    """Keys and the places they are from, `count` of the `room` that there is, in row `side` of the buffers; the other row is spare.

    Keys of 32 bits and places that fit as many are one word, the key above; others have buffers of their own.
    """

    parts: tuple[Buffer, ...]
    kind: DType
    side: Buffer
    count: Buffer
    room: Expr

    @staticmethod
    def of(kind: DType, most: int | None, room: Expr) -> Pairs:
        """`most`: the places are below."""
        shape = (const(2), room)
        if kind is u32 and most is not None and most < 1 << 32:
            parts: tuple[Buffer, ...] = (Buffer("pairs", shape, u64),)
        else:
            parts = (Buffer("keys", shape, kind), Buffer("places", shape, i64))
        return Pairs(parts, kind, cell("side"), cell("count"), room)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (*self.parts, self.side, self.count)

    @property
    def shift(self) -> int:
        """Where in the first part keys begin."""
        return self.parts[0].dtype.bits - self.kind.bits

    def at(self, index: Expr, spare: bool = False) -> tuple[Expr, Expr]:
        own = held(get(self.side), 2)
        return (1 - own if spare else own), held(index, self.room)

    def load(self, index: Expr, use: Callable[[tuple[Expr, ...]], Stmt]) -> Stmt:
        """`use` the parts of a pair, by names."""
        found = [Load(part, self.at(index)) for part in self.parts]
        names = [Var("part", part.dtype) for part in self.parts]
        stmt = use(tuple(names))
        for name, value in reversed(list(zip(names, found, strict=True))):
            stmt = Let(name, value, stmt)
        return stmt

    def store(self, index: Expr, parts: Sequence[Expr], spare: bool = False) -> Stmt:
        at = self.at(index, spare)
        return seq(*(Store(part, at, value) for part, value in zip(self.parts, parts, strict=True)))

    def made_of(self, key: Expr, place: Expr) -> tuple[Expr, ...]:
        if len(self.parts) == 2:
            return key, place
        return (call("bit_or", call("shift_left", cast(key, u64), const(32, u64)), cast(place, u64)),)

    def key(self, index: Expr) -> Expr:
        first = Load(self.parts[0], self.at(index))
        return first if self.kind is first.dtype else cast(call("shift_right", first, const(32, u64)), u32)

    def place(self, index: Expr) -> Expr:
        last = Load(self.parts[-1], self.at(index))
        return last if last.dtype is i64 else cast(cast(last, u32), i64)

    def append(self, key: Expr, place: Expr, condition: Expr) -> Stmt:
        """Put a pair behind the others; it stays if the condition holds."""
        return seq(self.store(get(self.count), self.made_of(key, place)), grow(self.count, cast(condition, i64)))


def sort(pairs: Pairs) -> Stmt:
    """Sort by keys; equal ones stay as they were."""
    most = int(pairs.room.value) if isinstance(pairs.room, Const) else None
    if most is not None and most <= FEW:
        return _insertion_sort(pairs)
    bits = 8 if most is None or most < LARGE else 11
    return If(get(pairs.count) <= FEW, _insertion_sort(pairs), _radix_sort(pairs, bits))


def _insertion_sort(pairs: Pairs) -> Stmt:
    hole, one = cell("hole"), pairs.parts[0]

    def insert(i: Expr) -> Stmt:
        def into(parts: tuple[Expr, ...]) -> Stmt:
            before = get(hole) - 1
            is_behind = logical_and(const(0) < get(hole), Lt(parts[0], Load(one, pairs.at(before))))
            move = seq(pairs.load(before, lambda earlier: pairs.store(get(hole), earlier)), put(hole, before))
            return seq(put(hole, i + 1), While(is_behind, move), pairs.store(get(hole), parts))

        return pairs.load(i + 1, into)

    return scratch([hole], loop(get(pairs.count) - 1, insert))


def _radix_sort(pairs: Pairs, bits: int) -> Stmt:
    """By one digit after the other, the last one first; digits that all keys share are passed over. The counts of all digits are made in
    one pass."""
    values, first = 1 << bits, pairs.parts[0].dtype
    digits = -(-pairs.kind.bits // bits)
    counts, sum_ = Buffer("counts", (const(digits), const(values)), i32 if bits > 8 else i64), cell("sum")
    one = const(1, counts.dtype)

    def digit(part: Expr, d: Expr) -> Expr:
        return cast(cast(call("shift_right", part, cast(d * bits + pairs.shift, first)), u32), i64) % values

    def count(i: Expr) -> Stmt:
        def all_digits(parts: tuple[Expr, ...]) -> Stmt:
            at = [(const(d), digit(parts[0], const(d))) for d in range(digits)]
            return seq(*(Store(counts, place, Load(counts, place) + one) for place in at))

        return pairs.load(i, all_digits)

    def sum_counts(d: Expr, v: Expr) -> Stmt:
        def add(own: Expr) -> Stmt:
            return seq(Store(counts, (d, v), cast(get(sum_), counts.dtype)), grow(sum_, cast(own, i64)))

        return let(Load(counts, (d, v)), add, "own")

    def move(d: Expr, i: Expr) -> Stmt:
        def to(parts: tuple[Expr, ...]) -> Stmt:
            at = (d, digit(parts[0], d))

            def there(target: Expr) -> Stmt:
                return seq(Store(counts, at, target + one), pairs.store(cast(target, i64), parts, spare=True))

            return let(Load(counts, at), there, "target")

        return pairs.load(i, to)

    def by(d: Expr) -> Stmt:
        at = (d, digit(Load(pairs.parts[0], pairs.at(const(0))), d))
        passed = seq(
            put(sum_, 0),
            loop(values, lambda v: sum_counts(d, v), "v"),
            loop(get(pairs.count), lambda i: move(d, i)),
            put(pairs.side, 1 - held(get(pairs.side), 2)),
        )
        return If(logical_not(equal(cast(Load(counts, at), i64), get(pairs.count))), passed)

    clear = loop(digits, lambda d: loop(values, lambda v: Store(counts, (d, v), const(0, counts.dtype)), "v"), "d")
    return scratch([counts, sum_], seq(clear, loop(get(pairs.count), count), loop(digits, by, "d")))
