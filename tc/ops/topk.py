"""The first elements of an axis in order, and what that is made of on a CPU: numbers that order as values do, and a stable sort of them.

A row is read once, in blocks. An element that may be among the first ones is put behind those kept; when there is no more room they are
sorted, the first k stay, and the last of these is what later elements are compared with. So few elements are ever moved where k is
small, and where it is not all of them are sorted once. Sorts are stable, so of equal elements the first one comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tc import te
from tc.ir.arith import bounds, prove, simplify
from tc.ir.dtype import DType, f32, f64, i32, i64, u32, u64
from tc.ir.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Lt,
    Var,
    call,
    cast,
    ceildiv,
    const,
    equal,
    logical_and,
    logical_not,
    logical_or,
    select,
)
from tc.ir.graph import Attrs
from tc.ir.loop import Alloc, For, If, Let, LoopKind, Stmt, Store, While, seq
from tc.ir.types import TensorType, product
from tc.ops.common import Arrays, Tensors, Types, exprs, normalize_axis, operand, unravel
from tc.ops.registry import REQUIRED, OpDef, current_facts, register, require
from tc.te import Tensor

# -- statements


def cell(name: str, dtype: DType = i64) -> Buffer:
    """A number that changes."""
    return Buffer(name, (), dtype)


def get(place: Buffer) -> Expr:
    return Load(place, ())


def put(place: Buffer, value: Expr | int) -> Stmt:
    return Store(place, (), value if isinstance(value, Expr) else const(value, place.dtype))


def grow(place: Buffer, by: Expr | int = 1) -> Stmt:
    return put(place, get(place) + by)


def loop(extent: Expr | int, body: Callable[[Expr], Stmt], name: str = "i", kind: LoopKind = LoopKind.SERIAL) -> Stmt:
    var = Var(name, i64)
    return For(var, extent if isinstance(extent, Expr) else const(extent), body(var), kind)


def let(value: Expr, body: Callable[[Expr], Stmt], name: str = "x") -> Stmt:
    var = Var(name, value.dtype)
    return Let(var, value, body(var))


def scratch(buffers: Sequence[Buffer], body: Stmt) -> Stmt:
    for buffer in reversed(buffers):
        body = Alloc(buffer, body)
    return body


def held(index: Expr, size: Expr | int) -> Expr:
    """An index that is in range as the algorithm has it: holding it there costs less than a check."""
    return te.maximum(te.minimum(index, (size if isinstance(size, Expr) else const(size)) - 1), const(0))


# -- the order of values


def order_key(value: Expr, largest: bool = False) -> Expr:
    """A u32, or a u64 for types of 64 bits, that is less where `value` comes first: NaN is the largest, zeros are equal."""
    dtype = value.dtype
    kind = u64 if dtype.bits == 64 else u32
    if dtype.is_float:
        wide = cast(value, f64 if dtype.bits == 64 else f32)
        bits = call("float_bits", wide)
        quiet = const(0x7FF8 << 48 if kind is u64 else 0x7FC0 << 16, kind)
        bits = select(equal(wide, const(0.0, wide.dtype)), const(0, kind), select(call("isnan", wide), quiet, bits))
        top = const(1 << (kind.bits - 1), kind)
        key = select(bits < top, call("bit_xor", bits, top), call("bit_not", bits))
    elif dtype.kind == "int":
        key = call("bit_xor", cast(cast(value, i64 if kind is u64 else i32), kind), const(1 << (kind.bits - 1), kind))
    else:
        key = cast(value, kind)
    return call("bit_not", key) if largest else key


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


# -- topk

LANES = 16

BLOCK = 32
"""Elements of which one test says that none of them is among the first, at most."""

SPARE = 256
"""Elements more than twice those kept for which there is room between two sorts, at most."""

PER_TASK = 8192
"""Elements of rows that a thread takes at least."""


def first_of_row(size: Expr, k: Expr, key: Callable[[Expr], Expr], use: Callable[[Pairs], Stmt]) -> Stmt:
    """`use` the pairs, in order, that are the k first by `key(place)` among `size`; k is at most `size`."""
    kind, facts = key(const(0)).dtype, current_facts()
    spare = max(FEW - LANES, min(4 * int(k.value), SPARE)) if isinstance(k, Const) else SPARE
    block = BLOCK if spare >= BLOCK else LANES
    room = simplify(2 * k + spare, facts)
    takes_all = prove(size <= room, facts) is True
    if takes_all and isinstance(size, Const):
        room = te.maximum(size, const(1))
    pairs = Pairs.of(kind, bounds(size, facts).hi, room)
    start = seq(put(pairs.side, 0), put(pairs.count, 0))
    if takes_all:
        fill = in_vectors(size, lambda i: pairs.store(i, pairs.made_of(key(i), i)))
        return scratch(pairs.buffers, seq(start, fill, put(pairs.count, size), sort(pairs), use(pairs)))
    limit, near, least = cell("limit", kind), Buffer("near", (const(block),), kind), Buffer("least", (const(block // 2),), kind)
    first = size % block
    blocks = size // block

    def append(key: Expr, place: Expr) -> Stmt:
        return pairs.append(key, place, key <= get(limit))

    def look(b: Expr) -> Stmt:
        base = first + b * block
        whole = vector_loops(block, lambda i: Store(near, (i,), key(base + i)))
        halves, source, width = [], near, block // 2
        while width:
            halves.append(vector_loops(width, partial(_less_of_two, source, least, width)))
            source, width = least, width // 2
        has_one = Load(least, (const(0),)) <= get(limit)
        return seq(whole, *halves, If(has_one, loop(block, lambda i: let(Load(near, (i,)), lambda own: append(own, base + i), "key"))))

    def cut() -> Stmt:
        last = pairs.key(get(pairs.count) - 1)
        return seq(
            sort(pairs),
            put(pairs.count, te.minimum(get(pairs.count), k)),
            put(limit, te.maximum(last, const(1, kind)) - const(1, kind)),
        )

    def round_(b: Expr) -> Stmt:
        is_full = logical_or(equal(b, blocks), const(0) <= get(pairs.count) + block - room)
        return seq(If(b < blocks, look(b)), If(is_full, cut()))

    rest = loop(first, lambda i: let(key(i), lambda own: append(own, i), "key"))
    fill = seq(put(limit, const((1 << kind.bits) - 1, kind)), rest, loop(blocks + 1, round_, "b"))
    return scratch((*pairs.buffers, limit, near, least), seq(start, fill, use(pairs)))



def in_vectors(size: Expr, body: Callable[[Expr], Stmt]) -> Stmt:
    """`body(i)` for i < `size`, of which LANES at once where there are as many."""
    whole = size // LANES
    return seq(
        loop(whole, lambda b: loop(LANES, lambda i: body(b * LANES + i), "lane", LoopKind.VECTORIZED), "b"),
        loop(size - whole * LANES, lambda i: body(whole * LANES + i)),
    )


def vector_loops(count: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """`body(i)` for i < `count`, of which LANES at once."""
    lanes = min(count, LANES)
    return seq(*(loop(lanes, lambda i, base=base: body(base + i), "lane", LoopKind.VECTORIZED) for base in range(0, count, lanes)))


def _less_of_two(source: Buffer, target: Buffer, width: int, lane: Expr) -> Stmt:
    return Store(target, (lane,), te.minimum(Load(source, (lane,)), Load(source, (lane + width,))))


def loops_over_rows(rows: Sequence[Expr], size: Expr, body: Callable[..., Stmt]) -> Stmt:
    """`body(*axes)` for all rows, each of `size` elements, by several threads where there is work for them."""
    total = product(rows)
    if isinstance(total, Const) and (total.value <= 1 or (isinstance(size, Const) and total.value * size.value <= PER_TASK)):
        return loop(total, lambda row: body(*(unravel(row, rows) if rows else ())), "row")
    per = te.maximum(const(PER_TASK) // te.maximum(size, const(1)), const(1))

    def task(number: Expr) -> Stmt:
        def one(j: Expr) -> Stmt:
            row = number * per + j
            return If(row < total, body(*unravel(row, rows)))

        return loop(per, one, "row")

    return loop(ceildiv(total, per), task, "task", LoopKind.PARALLEL)


def _infer_topk(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x = operand(types, 0, "topk")
    axis = normalize_axis(attrs.axis, x.rank, "topk")
    (k,) = exprs((attrs.k,))
    require(k <= x.shape[axis], f"topk: k is {k}, but dim {axis} is {x.shape[axis]}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return TensorType(shape, x.dtype), TensorType(shape, i64)


_RANKED = frozenset(map(np.dtype, ("f4", "f2", "i4", "i2", "i1", "u2", "u1")))
"""Types of which a value and a place fit 64 bits."""


def _select(x: np.ndarray, k: int, largest: bool) -> np.ndarray:
    """The places of the k largest or smallest along the last axis, in order, the first of equal ones first; NaN is the largest of all.

    By selection among numbers that are all different, a value and its place in each: in linear time, where sorting takes longer.
    """
    size = x.shape[-1]
    if x.dtype.kind == "f":
        plain = x.astype(np.float32) + np.float32(0)  # -0.0 is 0.0
        plain[np.isnan(plain)] = np.nan
        bits = plain.view(np.int32)
        ranks = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64)
    else:
        ranks = x.astype(np.int64)
    places = np.arange(size, dtype=np.int64)
    keys = (ranks << 32) | (size - 1 - places if largest else places)
    if largest:
        found = np.sort(np.partition(keys, size - k, axis=-1)[..., size - k :], axis=-1)[..., ::-1]
        return size - 1 - (found & 0xFFFFFFFF)
    return np.sort(np.partition(keys, k - 1, axis=-1)[..., :k], axis=-1) & 0xFFFFFFFF


def _run_topk(arrays: Arrays, attrs: Attrs) -> tuple[np.ndarray, np.ndarray]:
    x = arrays[0]
    assert x is not None
    k = int(attrs.k)
    if 0 < k < x.shape[attrs.axis] and x.dtype in _RANKED:
        order = _select(np.moveaxis(x, attrs.axis, -1), k, attrs.largest)
        order = np.moveaxis(order, -1, attrs.axis)
        return np.take_along_axis(x, order, attrs.axis), order
    if attrs.largest:  # a stable descending sort: ascending on the flipped array keeps ties in order
        order = np.flip(x.shape[attrs.axis] - 1 - np.argsort(np.flip(x, attrs.axis), attrs.axis, kind="stable"), attrs.axis)
    else:
        order = np.argsort(x, attrs.axis, kind="stable")
    order = np.take(order, np.arange(k), axis=attrs.axis)
    return np.take_along_axis(x, order, attrs.axis), order.astype(np.int64)


def _compute_topk(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, ...]:
    x = tensors[0]
    assert x is not None
    axis = normalize_axis(attrs.axis, len(x.shape), "topk")
    size, k, rows = x.shape[axis], types[0].shape[axis], (*x.shape[:axis], *x.shape[axis + 1 :])

    def body(values: Buffer, indices: Buffer) -> Stmt:
        def row(*outer: Expr) -> Stmt:
            def at(place: Expr) -> tuple[Expr, ...]:
                return (*outer[:axis], place, *outer[axis:])

            def result(pairs: Pairs, j: Expr) -> Stmt:
                place = held(pairs.place(j), size)
                return seq(Store(values, at(j), x[at(place)]), Store(indices, at(j), place))

            return first_of_row(
                size, k, lambda place: order_key(x[at(place)], attrs.largest), lambda pairs: loop(k, lambda j: result(pairs, j))
            )

        return If(const(0) < k, loops_over_rows(rows, size, row))

    return te.raw([("values", types[0].shape, x.dtype), ("indices", types[1].shape, i64)], body, "topk")


def _topk_samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    yield [rng.standard_normal((3, 6)).astype(np.float32)], {"k": 2}
    yield [rng.standard_normal((3, 6)).astype(np.float32)], {"k": 3, "axis": 0, "largest": False}
    yield [rng.integers(-9, 9, (2, 40))], {"k": 40}  # sorted by digits
    yield [rng.integers(0, 200, (1, 700)).astype(np.uint8)], {"k": 3, "sorted": False}  # with a cut in between
    yield [rng.standard_normal((2, 0)).astype(np.float32)], {"k": 0}


register(
    OpDef(
        "topk",
        _infer_topk,
        _run_topk,
        _compute_topk,
        {"k": REQUIRED, "axis": -1, "largest": True, "sorted": True},
        samples=_topk_samples,
    )
)
