"""Axes that are data: which axes a node means is known when it runs, how many it names when it is compiled.

Each axis becomes a symbolic number below the rank, and every size that depends on it a dim with the value that a few comparisons give:
kernels are compiled once, over those dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tc.errors import UnsupportedError
from tc.frontend.onnx.node_context import NodeContext
from tc.frontend.onnx.size_elements import make_elements
from tc.frontend.onnx.values import ModelValue, elements_value
from tc.ir.dtype import i64
from tc.ir.expr import Const, Expr, const, equal, logical_or, select
from tc.ir.types import product
from tc.ops.registry import require


def vector(dims: Sequence[Expr]) -> ModelValue:
    """Dims as the elements of an integer vector."""
    return elements_value(make_elements(list(dims), (len(dims),)), i64)


def count_of(n: NodeContext, index: int, what: str = "axes") -> int:
    """How many elements input `index` has. UnsupportedError where that is data, too: the rank of the result would be."""
    value = n.value(index)
    if value.rank > 1 or (value.rank == 1 and not isinstance(value.shape[0], Const)):
        raise UnsupportedError(f"{n.op_type}: {what} (input {index}) are {value.type}; their number must be known", code="TC1015")
    return int(value.shape[0]) if value.rank else 1


def axes_from_data(n: NodeContext, index: int, rank: int) -> tuple[Expr, ...]:
    """The axes that input `index` names, as dims below `rank`, all different; the call fails where they are not."""
    given = n.value(index)
    if given.dtype is not i64:
        given = n.call("cast", given, dtype=i64)
    if not given.rank:
        given = n.call("reshape", given, shape=(const(1),))
    places = n.call("check_range", given, limit=const(rank), what=f"{n.op_type}: axis", from_end=True)
    axes = n.graph.dims(places, f"{n.label}.axis", n.span)

    def all_differ() -> None:
        for k, axis in enumerate(axes):
            require(axis < rank, f"{n.op_type}: an axis is out of range for rank {rank}")  # though no size depends on it
            for other in axes[:k]:
                require(select(equal(axis, other), const(0), const(1)) > 0, f"{n.op_type}: an axis is named twice")

    n.graph.state(all_differ, n.span)
    return axes


def names_axis(axes: Sequence[Expr], axis: int) -> Expr:
    """Whether one of `axes`, one at least, is `axis`."""
    return reduce(logical_or, (equal(each, axis) for each in axes))


def bound(n: NodeContext, sizes: Sequence[Expr], what: str) -> tuple[Expr, ...]:
    """Sizes that take some computing, as dims of their own."""
    names = [n.graph.shared.fresh_dim(f"{n.label}.{what}{k}") for k in range(len(sizes))]
    return tuple(n.graph.builder.read_dims(n.graph.atom(vector(sizes)), names, n.span)) if sizes else ()


def without_axes(n: NodeContext, sizes: Sequence[Expr], axes: Sequence[Expr]) -> tuple[Expr, ...]:
    """The sizes but for those of the named axes, in order, as dims."""
    dropped = [select(names_axis(axes, d), const(1), const(0)) for d in range(len(sizes))]
    found = []
    for place in range(len(sizes) - len(axes)):
        size: Expr = const(0)
        for d in reversed(range(place, place + len(axes) + 1)):
            before = reduce(lambda a, b: a + b, dropped[:d], const(0))
            size = select(equal(before + place, d), select(equal(dropped[d], 0), sizes[d], size), size)
        found.append(size)
    return bound(n, found, "size")


def with_axes(n: NodeContext, sizes: Sequence[Expr], axes: Sequence[Expr]) -> tuple[Expr, ...]:
    """The sizes with axes of one element between them, where `axes` name places of the result, as dims."""
    rank = len(sizes) + len(axes)
    added = [select(names_axis(axes, d), const(1), const(0)) for d in range(rank)]
    found = []
    for d in range(rank):
        place = d - reduce(lambda a, b: a + b, added[:d], const(0))
        size: Expr = const(1)
        for k in range(max(d - len(axes), 0), min(d + 1, len(sizes))):
            size = select(equal(place, k), sizes[k], size)
        found.append(select(equal(added[d], 1), const(1), size))
    return bound(n, found, "size")


def around_axis(n: NodeContext, sizes: Sequence[Expr], axis: Expr) -> tuple[Expr, ...]:
    """Three dims: how many elements there are before `axis`, along it, and behind it."""
    places = range(len(sizes))
    before = product(tuple(select(axis > d, sizes[d], const(1)) for d in places))
    along = reduce(lambda a, b: a + b, (select(equal(axis, d), sizes[d], const(0)) for d in places))
    behind = product(tuple(select(axis < d, sizes[d], const(1)) for d in places))
    return bound(n, [before, along, behind], "part")
