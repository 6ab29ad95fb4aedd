"""Give regions of memory with lifetimes and symbolic sizes their places in one arena.

The size of a region is a number of bytes times a *unit*, a product of symbolic dims (static regions: 1). There are two ways to place
them, and that is taken which needs less for typical dims:

By classes: regions of one unit compare as numbers and are placed, largest first or in another order if that needs less, at the lowest
offset that no living neighbour overlaps; classes follow one another and do not share memory. Best when nearly everything has one unit.
Source: greedy-by-size offset assignment (Pisarchyk and Lee, 2020), lifted to symbolic sizes.

By slots: a slot is as large as the largest of the regions that live in it one after the other, whatever their units, so that no
proof is needed for regions of different units to share it; its size is a maximum of formulas, from which go those that are
proven never to be the largest. Beside a smaller tenant, a slot also holds regions that provably fit into what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import le

from tc.cost.typical import SPREAD, typical_dims
from tc.ir.arith import Facts, evaluate, polynomial, proves, simplify
from tc.ir.expr import Const, Expr, FloorDiv, Var, const, maximum, mul
from tc.ir.types import TensorType, product

ALIGNMENT = 64

MOST_ROUNDED, SEVERAL = 1.25, 4
"""How many times as large a count may be for its alignment, and how often a larger region has to have what then is one of any size."""


@dataclass(eq=False)
class StorageRegion:
    """Memory needed from step `start` to step `end`, both included. The size is `count` * `unit` bytes, `unit` symbolic."""

    count: int
    unit: Expr
    start: int
    end: int
    offset: Expr = const(0)

    @property
    def size_bytes(self) -> Expr:
        return mul(self.unit, const(self.count))

    def meets(self, other: StorageRegion) -> bool:
        """Whether there is a step at which both are needed."""
        return self.start <= other.end and other.start <= self.end


def region_of_type(type_: TensorType, start: int, end: int) -> StorageRegion:
    """A region for a tensor, exactly as large: the constant dims are the count, the symbolic ones the unit."""
    elements = 1
    symbolic = []
    for dim in type_.shape:
        if isinstance(dim, Const):
            elements *= int(dim.value)
        else:
            symbolic.append(dim)
    unit = simplify(product(tuple(sorted(symbolic, key=str)))) if symbolic else const(1)
    return StorageRegion(type_.dtype.bytes_of(elements), unit, start, end)


def align(regions: Sequence[StorageRegion]) -> None:
    """Make all sizes multiples of ALIGNMENT: counts, or where much of a region would be for that, as of [n, m] of f32, what is counted.

    Little is what a region of the same unit needs several times anyway, as units that are equal compare as numbers, and what there is for
    each of blocks of many.
    """
    largest: dict[Expr, int] = {}
    for region in regions:
        largest[region.unit] = max(largest.get(region.unit, 0), _aligned(region.count))
    for region in regions:
        rounded = _aligned(region.count)
        is_little = rounded <= MOST_ROUNDED * region.count * _block_size(region.unit) or SEVERAL * rounded <= largest[region.unit]
        if is_little or isinstance(region.unit, Const):
            region.count = rounded
        else:
            region.count *= ALIGNMENT
            region.unit = simplify((region.unit + (ALIGNMENT - 1)) // ALIGNMENT)


def _block_size(unit: Expr) -> int:
    """Of how many elements there is one: 512 of (n + 511) // 512."""
    return math.prod(int(factor.rhs.value) for factor in _factors(unit) if isinstance(factor, FloorDiv) and isinstance(factor.rhs, Const))


def _aligned(size: int) -> int:
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT


@dataclass
class StorageLayout:
    """Where each region starts, and how much there is in all, in bytes."""

    offsets: Mapping[StorageRegion, Expr]
    total: Expr


def assign_offsets(regions: Sequence[StorageRegion], facts: Facts) -> Expr:
    """Align all regions and set their `offset` (bytes, a multiple of ALIGNMENT); returns the size of the arena in bytes."""
    align(regions)
    layout = place_by_classes(regions, facts)
    if any(not isinstance(region.unit, Const) for region in regions):
        samples = samples_of((region.unit for region in regions), facts)
        other = place_by_slots(regions, facts, samples)
        if _score(other.total, samples) < _score(layout.total, samples):
            layout = other
    for region, offset in layout.offsets.items():
        region.offset = offset
    return layout.total


def samples_of(exprs: Iterable[Expr], facts: Facts) -> list[dict[Var, int]]:
    """Values for the dims in `exprs`, from small to large: two layouts are compared at these. Both are right for all dims."""
    exprs = list(exprs)
    return [typical_dims(exprs, facts, size) for size in SPREAD]


def _score(size: Expr, samples: Sequence[Mapping[Var, int]]) -> float:
    """The geometric mean of a size over the samples, as a logarithm."""
    return sum(math.log(max(evaluate(size, env), 1)) for env in samples) / len(samples)


# -- by classes


def place_by_classes(regions: Sequence[StorageRegion], facts: Facts) -> StorageLayout:
    """One packing for each unit, one after the other."""
    classes: dict[Expr, list[StorageRegion]] = {}
    for region in regions:
        classes.setdefault(region.unit, []).append(region)
    offsets: dict[StorageRegion, Expr] = {}
    base: Expr = const(0)
    for unit, members in classes.items():
        places, total = _pack(members)
        for region, start in places.items():
            offsets[region] = simplify(base + mul(unit, const(start)), facts)
        base = base + mul(unit, const(total))
    return StorageLayout(offsets, simplify(base, facts))


_ORDERS: tuple[Callable[[StorageRegion], tuple[int, ...]], ...] = (
    lambda r: (-r.count, r.start),
    lambda r: (-r.count, -r.end),
    lambda r: (r.start - r.end, -r.count),
    lambda r: (-r.count * (1 + r.end - r.start), r.start),
    lambda r: (r.start, -r.count),
)
"""In which order to place regions. Largest first is the best of them for most models, and near it for all."""


def _pack(regions: Sequence[StorageRegion]) -> tuple[dict[StorageRegion, int], int]:
    """The tightest of the packings by `_ORDERS`."""
    return min((_pack_in_order(sorted(regions, key=order)) for order in _ORDERS), key=lambda packed: packed[1])


def _pack_in_order(regions: Iterable[StorageRegion]) -> tuple[dict[StorageRegion, int], int]:
    """Greedy: each region at the lowest gap between the placed regions that live at the same time."""
    places: dict[StorageRegion, int] = {}
    total = 0
    for region in regions:
        neighbours = [(start, start + other.count) for other, start in places.items() if other.meets(region)]
        places[region] = _lowest_gap(neighbours, region.count)
        total = max(total, places[region] + region.count)
    return places, total


def _lowest_gap(taken: Iterable[tuple[int, int]], count: int) -> int:
    place = 0
    for low, high in sorted(taken):
        if place + count <= low:
            break
        place = max(place, high)
    return place


# -- by slots


@dataclass(eq=False)
class _Slot:
    """Regions by their offset in the slot, as a count of their unit. `size` is typical bytes, one number a sample."""

    tenants: dict[StorageRegion, int] = field(default_factory=dict)
    size: list[int] = field(default_factory=list)

    def is_free_for(self, region: StorageRegion) -> bool:
        return not any(region.meets(other) for other in self.tenants)

    def room_for(self, region: StorageRegion, fits: Callable[[Expr, Expr], bool]) -> int | None:
        """An offset beside tenants of its own unit, inside the space that a tenant takes at another time; None if there is none.

        Every tenant alive with the region must be of its unit, since others do not compare.
        """
        neighbours = [other for other in self.tenants if other.meets(region)]
        if any(other.unit is not region.unit for other in neighbours):
            return None
        taken = [(self.tenants[other], self.tenants[other] + other.count) for other in neighbours]
        start = _lowest_gap(taken, region.count)
        end = start + region.count
        known = (other for other in self.tenants if end <= self.tenants[other] + other.count and fits(region.unit, other.unit))
        return start if next(known, None) is not None else None


def place_by_slots(regions: Sequence[StorageRegion], facts: Facts, samples: Sequence[Mapping[Var, int]]) -> StorageLayout:
    """Largest first, each region goes where the slots grow least; a new slot where none is free."""
    typical = {region: [evaluate(region.size_bytes, env) for env in samples] for region in regions}
    fits = _comparison(facts, samples)
    slots: list[_Slot] = []
    for region in sorted(regions, key=lambda r: (-_logarithm(typical[r]), r.start)):
        slot, offset = _choose_slot(slots, region, typical[region], fits)
        slot.tenants[region] = offset
        if offset == 0:
            slot.size = [max(a, b) for a, b in zip(slot.size or typical[region], typical[region], strict=True)]
    offsets: dict[StorageRegion, Expr] = {}
    base: Expr = const(0)
    for slot in slots:
        for region, start in slot.tenants.items():
            offsets[region] = base if start == 0 else simplify(base + mul(region.unit, const(start)), facts)
        base = simplify(base + _slot_bytes(slot, facts, fits), facts)
    return StorageLayout(offsets, base)


def _logarithm(sizes: Sequence[int]) -> float:
    return sum(math.log(max(size, 1)) for size in sizes)


def _choose_slot(
    slots: list[_Slot], region: StorageRegion, size: Sequence[int], fits: Callable[[Expr, Expr], bool]
) -> tuple[_Slot, int]:
    """The slot, and the offset in it, that wastes least."""
    for slot in slots:
        room = slot.room_for(region, fits)
        if room is not None:
            return slot, room
    free = [slot for slot in slots if slot.is_free_for(region)]
    if not free:
        slots.append(_Slot())
        return slots[-1], 0

    def cost(slot: _Slot) -> tuple[float, float]:
        grown = _logarithm([max(a, b) for a, b in zip(slot.size, size, strict=True)]) - _logarithm(slot.size)
        return grown, _logarithm(slot.size)

    return min(free, key=cost), 0


def _slot_bytes(slot: _Slot, facts: Facts, fits: Callable[[Expr, Expr], bool]) -> Expr:
    """The largest end of a tenant. For each unit the largest number counts, and none that another is proven to cover."""
    ends: dict[Expr, int] = {}
    for region, start in slot.tenants.items():
        ends[region.unit] = max(ends.get(region.unit, 0), start + region.count)

    def is_covered(unit: Expr) -> bool:
        """Whether the tenants of another unit never need less; of two units that are always equal the first by name stays."""
        for other, most in ends.items():
            if other is not unit and ends[unit] <= most and fits(unit, other):
                if ends[unit] < most or not fits(other, unit) or str(other) < str(unit):
                    return True
        return False

    kept = [mul(unit, const(count)) for unit, count in ends.items() if not is_covered(unit)]
    total = kept[0]
    for size in kept[1:]:
        total = maximum(total, size)
    return simplify(total, facts)


def _comparison(facts: Facts, samples: Sequence[Mapping[Var, int]]) -> Callable[[Expr, Expr], bool]:
    """A function that says whether one unit is proven to be at most another: not where it is larger in a sample."""
    known: dict[tuple[Expr, Expr], bool] = {}
    sizes: dict[Expr, list[int]] = {}

    def sizes_of(unit: Expr) -> list[int]:
        if unit not in sizes:
            sizes[unit] = [evaluate(unit, env) for env in samples]
        return sizes[unit]

    def fits(unit: Expr, other: Expr) -> bool:
        if unit is other:
            return True
        found = known.get((unit, other))
        if found is None:
            may_fit = all(map(le, sizes_of(unit), sizes_of(other)))
            found = known[unit, other] = may_fit and _is_at_most(unit, other, facts)
        return found

    return fits


def _is_at_most(unit: Expr, other: Expr, facts: Facts) -> bool:
    """Factor by factor: each of the one is at most one of the other, and what is left of the other is at least 1."""
    left = _factors(other)
    for factor in sorted(_factors(unit), key=lambda f: f not in left):
        match = next((k for k, larger in enumerate(left) if factor is larger or proves(factor <= larger, facts)), None)
        if match is None:
            return False
        del left[match]
    return all(proves(const(1) <= factor, facts) for factor in left)


def _factors(unit: Expr) -> list[Expr]:
    poly = polynomial(unit)
    if len(poly.terms) != 1 or poly.constant:
        return [] if unit is const(1) else [unit]
    ((atoms, count),) = poly.terms.items()
    return [*atoms] if count == 1 else [*atoms, const(count)]
