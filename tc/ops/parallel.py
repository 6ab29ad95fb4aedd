"""Running sums, the greatest elements and scatters as tensor expressions of which all elements are independent: for devices.

On a CPU each of them is a loop that goes through an axis in order. Here every element of every stage is computed by itself, so that the
usual rules give it a thread, at the price of some more work:

- a running sum is sums of blocks, the running sum of those, and a short sum inside of the block;
- the k first in an order are found by ranks: the rank of an element among its block is a count, the ones of rank below k go on to the next
  round; where k is no small part of a block, sorted runs are merged, each element of the result finding its own place by bisection;
- a scatter is turned around: updates are sorted by where they go, stably, and each target folds its own in their order. So equal indices
  meet in the order of the updates, as in a loop, and no two threads store to one element.

Nothing is added in an order that depends on the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tc import te
from tc.ir.arith import bounds
from tc.ir.dtype import DType, f32, i32, i64
from tc.ir.expr import (
    TRUE,
    Const,
    Expr,
    call,
    cast,
    ceildiv,
    const,
    equal,
    floordiv,
    floormod,
    logical_and,
    logical_not,
    logical_or,
    select,
)
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops import chosen as _chosen  # noqa: F401
from tc.ops import scan as _scan  # noqa: F401
from tc.ops import suppression as _suppression  # noqa: F401
from tc.ops import topk as _topk  # noqa: F401
from tc.ops import unique as _unique  # noqa: F401  these fill the table
from tc.ops.common import Tensors, Types, normalize_axis, ravel, sum_dtype, unravel
from tc.ops.index import combine_updates, place_of
from tc.ops.registry import OPS, OpDef, current_facts, register
from tc.te import Tensor

Axes = Sequence[Expr]

SCAN_BLOCK = 32
"""Elements of a running sum that each sum by themselves from the start of their block: half as many loads, which a warp shares."""

SCAN_ROUNDS = 3
"""Rounds of sums of blocks at most, where no size is known; a row of 2**30 elements has 2**15 sums then."""

RANK_BLOCK = 64
"""Elements among which ranks are counted, one by one."""

FEW_UPDATES = 64
"""Updates of which each target looks at all, however many targets there are."""

MOST_LOOKS = 1024
"""Updates of which each target looks at all where that is less work than to sort them: a thread looks at one after the other."""


def _along(dims: Sequence[Expr], axis: int, size: Expr) -> tuple[Expr, ...]:
    """Dims with another size along an axis."""
    return (*dims[:axis], size, *dims[axis + 1 :])


def _held(index: Expr, size: Expr) -> Expr:
    """An index that is known to be in range, or whose element is not used."""
    return te.maximum(te.minimum(index, size - 1), const(0))


def most_of(dim: Expr) -> int | None:
    """What a dim is at most; None where nothing says it."""
    return bounds(dim, current_facts()).hi


# -- running sums


def _compute_cumsum(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    axis = normalize_axis(attrs.axis, len(x.shape), "cumsum")
    size, wide = x.shape[axis], sum_dtype(x.dtype)

    def element(axes: Axes) -> Expr:
        return cast(x[_along(axes, axis, size - 1 - axes[axis] if attrs.reverse else axes[axis])], wide)

    total = _running_sum(x.shape, axis, element, attrs.exclusive, 0)

    def body(*axes: Expr) -> Expr:
        return cast(total(_along(axes, axis, size - 1 - axes[axis] if attrs.reverse else axes[axis])), x.dtype)

    return te.compute(x.shape, body, "cumsum")


def _running_sum(
    shape: Sequence[Expr], axis: int, element: Callable[[Axes], Expr], exclusive: bool, depth: int
) -> Callable[[Axes], Expr]:
    """The sums of all elements up to each place, or before it, along an axis."""
    size = shape[axis]
    most = most_of(size)
    if (most is not None and most <= 2 * SCAN_BLOCK) or depth == SCAN_ROUNDS:
        whole = _sum_up_to(shape, axis, size, element, exclusive, "running")
        return lambda axes: whole[tuple(axes)]
    count = ceildiv(size, SCAN_BLOCK)

    def of_block(*axes: Expr) -> Expr:
        *outer, k = axes
        place = outer[axis] * SCAN_BLOCK + k
        value = element(_along(outer, axis, te.minimum(place, size - 1)))
        return select(place < size, value, const(0, value.dtype))

    sums = te.reduce("sum", _along(shape, axis, count), (SCAN_BLOCK,), of_block, "block_sums")
    before = _running_sum(sums.shape, axis, lambda axes: sums[tuple(axes)], True, depth + 1)
    inside = _sum_up_to(shape, axis, const(SCAN_BLOCK), element, exclusive, "inside")
    return lambda axes: before(_along(axes, axis, floordiv(axes[axis], const(SCAN_BLOCK)))) + inside[tuple(axes)]


def _sum_up_to(shape: Sequence[Expr], axis: int, block: Expr, element: Callable[[Axes], Expr], exclusive: bool, name: str) -> Tensor:
    """For each place the sum from the start of its block on; `block` may be all there is."""
    size = shape[axis]

    def term(*axes: Expr) -> Expr:
        *outer, k = axes
        place = outer[axis]
        first = const(0) if block is size else floordiv(place, block) * block
        value = element(_along(outer, axis, k if block is size else te.minimum(first + k, size - 1)))
        counts = first + k < place if exclusive else first + k <= place
        return select(counts, value, const(0, value.dtype))

    return _summed(shape, block, term, name)


def _summed(shape: Sequence[Expr], terms: Expr, term: Callable[..., Expr], name: str) -> Tensor:
    """Sums of a few terms that many results share: neighbouring threads, each with a result of its own, read the same."""
    start = const(0, term(*shape, const(0)).dtype)
    return te.fold(shape, lambda *axes: terms, lambda *axes: start, lambda total, *axes: total + term(*axes), name)


def _stored(shape: Sequence[Expr], value: Callable[..., Expr], name: str) -> Tensor:
    """What others read many times, and had better not compute again: a fold of one step, which no schedule inlines."""
    dtype = value(*shape).dtype
    return te.fold(shape, lambda *axes: const(1), lambda *axes: const(0, dtype), lambda total, *axes: value(*axes[:-1]), name)


# -- the first in an order


@dataclass(frozen=True)
class _Order:
    """What is sorted: along the axis after `rows`, elements of places 0 to `size` - 1; places from `size` on are behind all others.

    `value(rows, place)`: an element, of a place in range. `largest`: the largest is first. Of equal ones the first place is first, and not
    a number is larger than all numbers.
    """

    rows: tuple[Expr, ...]
    size: Expr
    value: Callable[[Axes, Expr], Expr]
    largest: bool
    place_type: DType

    def at(self, rows: Axes, place: Expr) -> Expr:
        """The value at a place, the last of all values for one where nothing is."""
        value = self.value(rows, _held(cast(place, i64), self.size))
        if value.dtype.is_bool or value.dtype.bits < 32:
            value = cast(value, f32 if value.dtype.is_float else i32)
        return select(place < cast(self.size, place.dtype), value, self.worst(value.dtype))

    def worst(self, dtype: DType) -> Const:
        """What no value is behind."""
        if self.largest:
            return te.lowest(dtype)
        return const(float("nan"), dtype) if dtype.is_float else te.highest(dtype)

    def is_before(self, value: Expr, other: Expr) -> Expr:
        """Whether a value comes before another one, to which it is not equal."""
        if not value.dtype.is_float:
            return other < value if self.largest else value < other
        if self.largest:
            return logical_and(equal(other, other), logical_not(value <= other))
        return logical_and(equal(value, value), logical_not(other <= value))


@dataclass(frozen=True)
class _Runs:
    """Sorted runs: values and places, both [*rows, runs, length]. All places of a run are below those of equal values in later runs."""

    order: _Order
    values: Tensor
    places: Tensor

    @property
    def count(self) -> Expr:
        return self.places.shape[-2]

    @property
    def length(self) -> int:
        length = self.places.shape[-1]
        assert isinstance(length, Const), "runs are of one length"
        return int(length.value)

    def in_rows(self, tensor: Tensor, rows: Axes, k: Expr) -> Expr:
        """Element k of all runs, one after the other."""
        return tensor[(*rows, floordiv(k, const(self.length)), floormod(k, const(self.length)))]

    def value(self, rows: Axes, run: Expr, k: Expr) -> Expr:
        """A value of a run; of one that is not there the last of all."""
        value = self.values[(*rows, _held(run, self.count), _held(k, const(self.length)))]
        return select(run < self.count, value, self.order.worst(value.dtype))

    def place(self, rows: Axes, run: Expr, k: Expr) -> Expr:
        """Where that stands."""
        place = self.places[(*rows, _held(run, self.count), _held(k, const(self.length)))]
        return select(run < self.count, place, cast(self.order.size, place.dtype))


def _with_values(order: _Order, places: Tensor) -> _Runs:
    values = _stored(places.shape, lambda *axes: order.at(axes[:-2], places[axes]), "sorted_values")
    return _Runs(order, values, places)


def first_places(order: _Order, count: Expr) -> Tensor | None:
    """[*rows, count]: the places of the first elements, in order. None where nothing says how many elements there are at most."""
    most = most_of(order.size)
    if most is None:
        return None
    wanted = int(count.value) if isinstance(count, Const) else None
    runs: _Runs | None = None
    while True:
        block = max(1, min(RANK_BLOCK, most))
        kept = block if wanted is None else min(block, wanted)
        runs = _sorted_blocks(order, runs, block, kept)
        if most <= block:
            break
        if 4 * kept > block:
            runs = _merged(runs, -(-most // block), wanted)
            break
        most = -(-most // block) * kept
    found = runs.places
    return te.compute((*order.rows, count), lambda *axes: found[(*axes[:-1], const(0), axes[-1])], "places")


def _sorted_blocks(order: _Order, runs: _Runs | None, block: int, kept: int) -> _Runs:
    """Of each block of so many elements (of all, or of what runs have) the first ones, as runs."""
    size = order.size if runs is None else runs.count * runs.length
    count, last = ceildiv(size, block), te.maximum(size - 1, const(0))

    def place_at(rows: Axes, b: Expr, k: Expr) -> Expr:
        number = b * block + k
        if runs is None:
            return cast(number, order.place_type)
        none = cast(order.size, order.place_type)
        return select(number < size, runs.in_rows(runs.places, rows, te.minimum(number, last)), none)

    def value_at(*axes: Expr) -> Expr:
        *rows, b, k = axes
        if runs is None:
            return order.at(rows, b * block + k)
        value = runs.in_rows(runs.values, rows, te.minimum(b * block + k, last))
        return select(b * block + k < size, value, order.worst(value.dtype))

    values = te.compute((*order.rows, count, const(block)), value_at, "candidates")

    def is_ahead(*axes: Expr) -> Expr:
        *rows, b, k, other = axes
        own, its = values[(*rows, b, k)], values[(*rows, b, other)]
        return cast(select(other < k, logical_not(order.is_before(own, its)), order.is_before(its, own)), i32)

    ranks = _summed((*order.rows, count, const(block)), const(block), is_ahead, "rank")

    def of_rank(*axes: Expr) -> Expr:
        *rows, b, rank, k = axes
        return select(equal(ranks[(*rows, b, k)], cast(rank, i32)), place_at(rows, b, k), const(0, order.place_type))

    return _with_values(order, _summed((*order.rows, count, const(kept)), const(block), of_rank, "kept"))


def _merged(runs: _Runs, most: int, wanted: int | None) -> _Runs:
    """One run of sorted ones, at most so many, by merging two and two."""
    while most > 1:
        runs, most = _merge_pairs(runs, wanted), -(-most // 2)
    return runs


def _merge_pairs(runs: _Runs, wanted: int | None) -> _Runs:
    """Runs of twice the length, or of as many as are wanted.

    Of the first o elements of a pair, how many are of its first run is found by bisection (the merge path of Odeh, Green et al., 2012).
    """
    order, width = runs.order, runs.length
    twice = 2 * width if wanted is None else min(2 * width, wanted)

    def grow(total: Expr, *axes: Expr) -> Expr:
        *rows, pair, o, step = axes
        taken = total + call("shift_left", const(1), const(width.bit_length() - 1) - step)
        own, its = runs.value(rows, pair * 2, taken - 1), runs.value(rows, pair * 2 + 1, o - taken)
        fits = logical_and(taken <= te.minimum(o, const(width)), logical_not(order.is_before(its, own)))
        return select(fits, taken, total)

    shape = (*order.rows, ceildiv(runs.count, 2), const(twice))
    start = lambda *axes: te.maximum(axes[-1] - width, const(0))  # noqa: E731  one of three functions of the same arguments
    split = te.fold(shape, lambda *axes: const(width.bit_length()), start, grow, "split")

    def body(*axes: Expr) -> Expr:
        *rows, pair, o = axes
        taken = split[axes]
        own, its = runs.value(rows, pair * 2, taken), runs.value(rows, pair * 2 + 1, o - taken)
        is_first = logical_and(taken < width, logical_or(o - taken >= width, logical_not(order.is_before(its, own))))
        return select(is_first, runs.place(rows, pair * 2, taken), runs.place(rows, pair * 2 + 1, o - taken))

    return _with_values(order, _stored(shape, body, "merged"))


def _place_type(size: Expr) -> DType:
    most = most_of(size)
    return i32 if most is not None and most < 1 << 28 else i64


def _compute_topk(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, ...]:
    x = tensors[0]
    assert x is not None
    axis = normalize_axis(attrs.axis, len(x.shape), "topk")
    size, rows = x.shape[axis], (*x.shape[:axis], *x.shape[axis + 1 :])

    def value(outer: Axes, place: Expr) -> Expr:
        return x[(*outer[:axis], place, *outer[axis:])]

    order = _Order(rows, size, value, attrs.largest, _place_type(size))
    places = first_places(order, types[0].shape[axis])
    assert places is not None, "who asks for this form knows how long rows are at most"

    def place_at(axes: Axes) -> Expr:
        return cast(places[(*axes[:axis], *axes[axis + 1 :], axes[axis])], i64)

    values = te.compute(types[0].shape, lambda *axes: x[_along(axes, axis, _held(place_at(axes), size))], "values")
    return values, te.compute(types[0].shape, lambda *axes: place_at(axes), "indices")


# -- scatter


@dataclass(frozen=True)
class _Scatter:
    """Updates of the elements of `x`. `rows`: the dims that have updates of their own; of each row there are `updates`, and `targets`.

    `target`: [*rows, updates], where each goes; `update(rows, axes, number)`: its value for the element at `axes`.
    """

    x: Tensor
    rows: tuple[Expr, ...]
    updates: Expr
    targets: Expr
    target: Tensor
    update: Callable[[Axes, Axes, Expr], Expr]
    reduction: str
    name: str

    def fold(self, locate: Callable[[Axes], tuple[Axes, Expr, Expr]]) -> Tensor:
        """`locate(axes)`: the row of an element, its target's number, and whether it has updates at all."""
        least = _few_or_sorted(self)
        return self._looking_at_all(locate) if least is None else self._sorted(locate, least)

    def _looking_at_all(self, locate: Callable[[Axes], tuple[Axes, Expr, Expr]]) -> Tensor:
        def step(total: Expr, *axes: Expr) -> Expr:
            *place, number = axes
            rows, target, _ = locate(place)
            new = combine_updates(self.reduction, total, self.update(rows, place, number))
            return select(equal(self.target[(*rows, number)], target), new, total)

        def count(*axes: Expr) -> Expr:
            return select(locate(axes)[2], self.updates, const(0))

        return te.fold(self.x.shape, count, lambda *axes: self.x[axes], step, self.name)

    def _sorted(self, locate: Callable[[Axes], tuple[Axes, Expr, Expr]], places: Tensor) -> Tensor:
        def target_of(rows: Axes, k: Expr) -> Expr:
            return self.target[(*rows, _held(cast(places[(*rows, _held(k, self.updates))], i64), self.updates))]

        most = most_of(self.updates)
        assert most is not None, "what is sorted has a known size"

        def grow(total: Expr, *axes: Expr) -> Expr:
            *rows, target, step = axes
            taken = total + call("shift_left", const(1), const(most.bit_length() - 1) - step)
            return select(logical_and(taken <= self.updates, target_of(rows, taken - 1) < target), taken, total)

        def bits(*axes: Expr) -> Expr:
            return select(self.updates > 0, const(most.bit_length()), const(0))

        first = te.fold((*self.rows, self.targets + 1), bits, lambda *axes: const(0), grow, "first")

        def count(*axes: Expr) -> Expr:
            rows, target, is_inside = locate(axes)
            return select(is_inside, first[(*rows, target + 1)] - first[(*rows, target)], const(0))

        def step(total: Expr, *axes: Expr) -> Expr:
            *place, k = axes
            rows, target, _ = locate(place)
            number = _held(cast(places[(*rows, _held(first[(*rows, target)] + k, self.updates))], i64), self.updates)
            return combine_updates(self.reduction, total, self.update(rows, place, number))

        return te.fold(self.x.shape, count, lambda *axes: self.x[axes], step, self.name)


def _few_or_sorted(scatter: _Scatter) -> Tensor | None:
    """The updates of each row by where they go; None where it is less work that each target looks at all of them."""
    most, targets = most_of(scatter.updates), most_of(scatter.targets)
    if most is None or most <= FEW_UPDATES:
        return None
    bits = most.bit_length()
    if most <= MOST_LOOKS and targets is not None and most * targets < most * (2 * RANK_BLOCK + 4 * bits) + 2 * targets * bits:
        return None
    order = _Order(
        scatter.rows, scatter.updates, lambda rows, place: scatter.target[(*rows, place)], False, _place_type(scatter.updates)
    )
    return first_places(order, scatter.updates)


def _compute_scatter_elements(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, indices, updates = tensors[0], tensors[1], tensors[2]
    assert x is not None and indices is not None and updates is not None
    axis = normalize_axis(attrs.axis, len(x.shape), "scatter_elements")
    rows = (*indices.shape[:axis], *indices.shape[axis + 1 :])

    def with_place(outer: Axes, place: Expr) -> tuple[Expr, ...]:
        return (*outer[:axis], place, *outer[axis:])

    def target(*axes: Expr) -> Expr:
        *outer, k = axes
        place, checked = place_of(indices[with_place(outer, k)], axis, x.shape[axis], attrs.in_range)
        return checked(place)

    def locate(axes: Axes) -> tuple[Axes, Expr, Expr]:
        outer = (*axes[:axis], *axes[axis + 1 :])
        is_inside = logical_and(*(place < size for place, size in zip(outer, rows, strict=True)))
        return tuple(_held(place, size) for place, size in zip(outer, rows, strict=True)), axes[axis], is_inside

    found = _stored((*rows, indices.shape[axis]), target, "target")
    update = lambda outer, axes, k: updates[with_place(outer, k)]  # noqa: E731  the interface of both scatters
    return _Scatter(x, rows, indices.shape[axis], x.shape[axis], found, update, attrs.reduction, "scatter_elements").fold(locate)


def _compute_scatter_nd(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, indices, updates = tensors[0], tensors[1], tensors[2]
    assert x is not None and indices is not None and updates is not None
    depth, batch = int(indices.shape[-1]), indices.shape[:-1]
    chosen = x.shape[:depth]

    def numbered(k: Expr) -> tuple[Expr, ...]:
        return unravel(k, batch) if batch else ()

    def target(k: Expr) -> Expr:
        axes = numbered(k)
        found = [place_of(indices[(*axes, const(d))], d, chosen[d], attrs.in_range) for d in range(depth)]
        value = ravel([place for place, _ in found], chosen)
        for _, checked in reversed(found):
            value = checked(value)
        return value

    number = product(batch)
    found = _stored((number,), target, "target")
    locate = lambda axes: ((), ravel(axes[:depth], chosen), TRUE)  # noqa: E731
    update = lambda outer, axes, k: updates[(*numbered(k), *axes[depth:])]  # noqa: E731
    return _Scatter(x, (), number, product(chosen), found, update, attrs.reduction, "scatter_nd").fold(locate)


# -- operators

PARALLEL_FORMS = {name: f"{name}_parallel" for name in ("cumsum", "topk", "scatter_elements", "scatter_nd")}
"""Operator -> the one that means the same, all elements of which are independent."""


ON_HOST = {
    name: f"{name}_on_host"
    for name in ("topk", "count_nonzero", "nonzero_at", "kept_boxes", "box_rows", "equal_slices", "group_numbers")
}
"""Operator -> the one that means the same and runs on the host of a device, where it has no parallel form: in order it would take one
thread of the device, and memory of a size that no thread has."""


def has_parallel_form(op: str, types: Types, attrs: Attrs) -> bool:
    """Whether a call of such an operator has that form, under the facts of the current inference."""
    x = types[0]
    return op != "topk" or (x is not None and most_of(x.shape[normalize_axis(attrs.axis, x.rank, op)]) is not None)


Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _cumsum_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for exclusive in (False, True):
        for reverse in (False, True):
            yield [rng.integers(-9, 9, (2, 100, 2))], {"axis": 1, "exclusive": exclusive, "reverse": reverse}
    yield [rng.standard_normal((3, 7)).astype(np.float32)], {"axis": 1}
    yield [rng.standard_normal((70, 3)).astype(np.float32)], {"axis": 0}
    yield [np.zeros((0, 70), np.float32)], {"axis": 1}
    yield [np.zeros((70, 0), np.float32)], {"axis": 0}


def _topk_samples(rng: np.random.Generator) -> Iterator[Sample]:
    with_ties = rng.integers(0, 9, (2, 40)).astype(np.float32)
    with_ties[0, [3, 8, 20]] = [np.nan, -np.inf, np.nan]
    for largest in (True, False):
        yield [with_ties], {"k": 12, "largest": largest}
    yield [rng.integers(-4, 4, (40, 2)).astype(np.int8)], {"k": 40, "axis": 0}
    yield [rng.integers(0, 9, 600)], {"k": 3}  # two rounds
    yield [rng.integers(0, 50, 300).astype(np.uint8)], {"k": 300, "largest": False}  # two runs
    yield [rng.standard_normal((3, 0)).astype(np.float32)], {"k": 0}
    yield [rng.random((2, 5)) < 0.5], {"k": 5}


def _scatter_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x, updates = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 9), (2, 5)))
    for reduction in ("none", "add", "mul", "max", "min"):
        yield [x, rng.integers(-9, 9, (2, 5)), updates], {"axis": 1, "reduction": reduction}
    yield [x, np.zeros((0, 9), np.int64), np.zeros((0, 9), np.float32)], {"axis": 0}
    yield [rng.integers(0, 9, 700), rng.integers(-700, 700, 600), rng.integers(0, 9, 600)], {"reduction": "none"}  # sorted


def _scatter_nd_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((4, 3, 2)).astype(np.float32)
    for reduction in ("none", "add", "mul", "max", "min"):
        yield [x, rng.integers(-3, 3, (2, 4, 2)), rng.standard_normal((2, 4, 2)).astype(np.float32)], {"reduction": reduction}
    yield [x, np.array([2]), x[0]], {"reduction": "add"}
    yield [rng.integers(0, 9, (30, 30)), rng.integers(-30, 30, (600, 2)), rng.integers(0, 9, 600)], {"reduction": "none"}  # sorted


def _register() -> None:
    forms = (
        ("cumsum", _compute_cumsum, _cumsum_samples),
        ("topk", _compute_topk, _topk_samples),
        ("scatter_elements", _compute_scatter_elements, _scatter_samples),
        ("scatter_nd", _compute_scatter_nd, _scatter_nd_samples),
    )
    for name, compute, samples in forms:
        plain = OPS[name]
        register(OpDef(PARALLEL_FORMS[name], plain.infer, plain.reference, compute, plain.defaults, samples=samples))
    for name, on_host in ON_HOST.items():
        plain = OPS[name]
        register(OpDef(on_host, plain.infer, plain.reference, None, plain.defaults, samples=plain.samples))


_register()
