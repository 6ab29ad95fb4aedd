"""Give regions of memory with lifetimes and symbolic sizes their places in one arena.

Regions whose sizes are constant multiples of one symbolic expression (the static ones: of 1) form a class. Within a class,
sizes compare as numbers and regions are placed largest first at the lowest offset that no living neighbour overlaps. Classes
follow one another, each at an offset that is a sum of expressions, and do not share memory.
Source: greedy-by-size offset assignment (Pisarchyk and Lee, 2020), lifted to symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tc.ir.arith import Facts, simplify
from tc.ir.expr import Const, Expr, const, mul
from tc.ir.types import TensorType, product

ALIGNMENT = 64


@dataclass(eq=False)
class Region:
    """Memory needed from step `start` to step `end`, both included. The size is `count` * `unit` bytes, `unit` symbolic."""

    count: int
    unit: Expr
    start: int
    end: int
    offset: Expr = const(0)

    @property
    def size_bytes(self) -> Expr:
        return mul(self.unit, const(self.count))


def region_of_type(type_: TensorType, start: int, end: int) -> Region:
    """A region for a tensor: the constant dims are the count, the symbolic ones the unit. Sizes are multiples of ALIGNMENT."""
    count = type_.dtype.size_bytes
    symbolic = []
    for dim in type_.shape:
        if isinstance(dim, Const):
            count *= int(dim.value)
        else:
            symbolic.append(dim)
    if not symbolic:
        return Region(_aligned(count), const(1), start, end)
    unit = simplify(product(tuple(sorted(symbolic, key=str))))
    return Region(_aligned(count), unit, start, end)


def _aligned(size: int) -> int:
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT


def assign_offsets(regions: Sequence[Region], facts: Facts) -> Expr:
    """Set every region's `offset` (bytes, a multiple of ALIGNMENT); returns the size of the arena in bytes."""
    classes: dict[Expr, list[Region]] = {}
    for region in regions:
        classes.setdefault(region.unit, []).append(region)
    base: Expr = const(0)
    for unit, members in classes.items():
        height = _place(members)
        for region, start in height.places.items():
            region.offset = simplify(base + mul(unit, const(start)), facts)
        base = base + mul(unit, const(height.total))
    return simplify(base, facts)


@dataclass
class _Placement:
    places: dict[Region, int]
    total: int


def _place(regions: Sequence[Region]) -> _Placement:
    """Greedy by size: each region, largest first, at the lowest gap between the placed regions that live at the same time."""
    placement = _Placement({}, 0)
    for region in sorted(regions, key=lambda r: (-r.count, r.start)):
        neighbours = sorted(
            (start, start + other.count)
            for other, start in placement.places.items()
            if other.start <= region.end and region.start <= other.end
        )
        place = 0
        for low, high in neighbours:
            if place + region.count <= low:
                break
            place = max(place, high)
        placement.places[region] = place
        placement.total = max(placement.total, place + region.count)
    return placement
