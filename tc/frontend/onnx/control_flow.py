"""What branches and loops are made of: an operation over functions whose results have sizes that only these know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tc.errors import NodeError, UnsupportedError
from tc.frontend.onnx.importer import GraphImporter
from tc.frontend.onnx.node_context import Calls, NodeContext
from tc.frontend.onnx.values import ModelValue, constant_value, size_value
from tc.ir.arith import Facts, prove
from tc.ir.dtype import i64
from tc.ir.expr import Expr, Var, const, equal
from tc.ir.graph import Call, CallExtern, Loop, ReadDims
from tc.ir.node import walk
from tc.ir.types import TensorType
from tc.ops.build import GraphBuilder


def as_scalar(n: NodeContext, condition: ModelValue) -> ModelValue:
    return condition if condition.rank == 0 else n.call("reshape", condition, shape=())


def with_type(graph: GraphImporter, value: ModelValue, type_: TensorType) -> Any:
    """The atom of `value` in a type that is known to be the same at run time."""
    atom = graph.atom(value)
    if all(a is b for a, b in zip(value.shape, type_.shape, strict=True)):
        return atom
    return graph.builder.bind(Call("reshape", (atom,), (("shape", type_.shape),)), [type_], ["same"])[0]


def dims_bound_in(builder: GraphBuilder) -> set[Var]:
    """The dims that get their values inside of a function: read from data, or sizes that an operator finds."""
    own = set(builder.found_dims)
    for binding in builder.bindings:
        if isinstance(binding.value, ReadDims):
            own.update(binding.value.dims)
        elif isinstance(binding.value, Call | CallExtern):
            result = {v for t in binding.targets for v in walk(t.type) if isinstance(v, Var)}  # type: ignore[arg-type]
            if result:
                args = [arg.type for arg in binding.value.args if arg is not None]
                given = {v for type_ in args for v in walk(type_)}  # type: ignore[union-attr,arg-type]
                own |= result - given - {v for _, value in binding.value.attrs for v in _attr_vars(value)}
    return own


def _attr_vars(value: Any) -> set[Any]:
    if isinstance(value, Expr):
        return set(walk(value))
    return {v for item in value for v in _attr_vars(item)} if isinstance(value, tuple) else set()


class _RankChanges(UnsupportedError):
    """A loop carries values of changing rank; `ranks` are those that every iteration keeps."""

    default_code = "TC1018"

    def __init__(self, ranks: Sequence[int | None], message: str) -> None:
        super().__init__(message)
        self.ranks = ranks


def kept_ranks(error: UnsupportedError) -> Sequence[int | None] | None:
    """The ranks that every iteration keeps of what the loop carries, where it is refused for another that it does not; else None."""
    return error.ranks if isinstance(error, _RankChanges) else None


Body = Callable[[Calls, ModelValue, "list[ModelValue]"], "tuple[ModelValue | None, list[ModelValue], list[ModelValue]]"]


def condition_dim(n: NodeContext, condition: ModelValue) -> Expr:
    """The condition as a dim, 0 or 1."""
    number = n.call("cast", condition, dtype=i64)
    return n.graph.dims(number, f"{n.label}.condition", n.span)[0]


def bind_loop(
    c: Calls,
    trip_count: Expr | None,
    condition: ModelValue | None,
    init: Sequence[ModelValue],
    body: Body,
    path: str,
    keeps_sizes: bool = False,
) -> list[ModelValue]:
    """A Loop of the graph. `body(calls, i, carried)` gives (next condition or None, next carried, scanned).

    Carried values must keep their dtypes and ranks: UnsupportedError otherwise. Where a size changes, or may, it is a dim of each
    iteration, and another one after the loop; UnsupportedError instead, when it must keep sizes. What is scanned is stacked; where only
    the run tells how many iterations there are, by growing. Returns the last carried values, then the scanned ones.
    """
    sizes, start_mark = _CarriedSizes(c, [v.type for v in init]), c.graph.mark()
    stacks: list[TensorType] = []  # of what is scanned: carried, where the number of iterations is not known
    while True:
        graph = c.graph.nested(path)
        index = ModelValue(TensorType((), i64), graph.builder.param("i", TensorType((), i64), c.span))
        graph.iteration = index
        params = [ModelValue(type_, graph.builder.param(f"carried{k}", type_, c.span)) for k, type_ in enumerate(sizes.types)]
        after, carried, scanned = body(c.within(graph), index, params[: len(init)])
        _require_ranks(init, carried)
        if stacks:
            carried, scanned = [*carried, *map(partial(_grown, c.within(graph)), params[len(init) :], scanned)], []
        if sizes.hold([v.type for v in carried], graph.facts):
            own = dims_bound_in(graph.builder) | sizes.changing
            for value in scanned:
                if any(node in own for node in walk(value.type)):
                    raise UnsupportedError("a loop stacks results whose size depends on the data of each iteration", code="TC1018")
            if not scanned or (trip_count is not None and after is None):
                break
            stacks = [v.type for v in scanned]
            sizes.grow(stacks)
        elif keeps_sizes and not stacks:
            raise UnsupportedError("a loop changes the sizes of what it carries", code="TC1018")
        c.graph.roll_back(start_mark)
    init = [*init, *(c.call("full", shape=(0, *item.shape), value=0, dtype=item.dtype) for item in stacks)]
    if trip_count is None and after is None:
        if condition is None:
            raise NodeError("the loop never ends: it has no bound, and its condition is always true")
        trip_count, condition = iterations(c, const(1 << 62), condition), None
    if scanned and condition is not None:
        trip_count, condition = iterations(c, trip_count, condition), None  # type: ignore[arg-type]
    true = constant_value(np.array(True))
    results = [graph.atom(true if after is None else after)]
    results += [with_type(graph, new, sizes.next_type(old, new.type)) for old, new in zip(sizes.types, carried, strict=True)]
    results += [graph.atom(value) for value in scanned]
    function = graph.builder.function("body", results)
    types = sizes.types_after()
    types += [TensorType((trip_count, *v.shape), v.dtype) for v in scanned]  # type: ignore[arg-type]
    start = c.graph.atom(true if condition is None else condition)
    operation = Loop(trip_count, start, tuple(c.graph.atom(v) for v in init), function, span=c.span)
    return list(c.graph.bind(operation, types, [c.label] * len(types), c.span))


def _grown(c: Calls, stack: ModelValue, item: ModelValue) -> ModelValue:
    return c.call("concat", stack, c.call("unsqueeze", item, axes=(0,)), axis=0)


def _require_ranks(init: Sequence[ModelValue], carried: Sequence[ModelValue]) -> None:
    for k, (old, new) in enumerate(zip(init, carried, strict=True)):
        if old.dtype != new.dtype or old.rank != new.rank:
            ranks = [x.rank if x.rank == y.rank else None for x, y in zip(init, carried, strict=True)]
            raise _RankChanges(ranks, f"a loop changes the type of its carried value {k} from {old.type} to {new.type}")


class _CarriedSizes:
    """The types of what a loop carries. A size that an iteration may change is a dim of its own, one of `changing`; those that always
    change alike are one dim."""

    def __init__(self, c: Calls, types: Sequence[TensorType]) -> None:
        self.c = c
        self.types = list(types)
        self.changing: set[Var] = set()

    def grow(self, items: Sequence[TensorType]) -> None:
        """Carry stacks of such items too, all of one length."""
        length = fresh_size(self.c)
        self.changing.add(length)
        self.types += [TensorType((length, *item.shape), item.dtype) for item in items]

    def hold(self, following: Sequence[TensorType], facts: Facts) -> bool:
        """Whether an iteration that begins with `types` ends with types that these allow; where it does not, they change."""
        groups: list[tuple[Expr, Expr, Var]] = []  # a dim, what it becomes, and what it is called from now on
        ends = zip(self.types, following, strict=True)
        found = [_with_dims(old, [self._dim(a, b, groups, facts) for a, b in _pairs(old, new)]) for old, new in ends]
        held = all(a is b for old, new in zip(self.types, found, strict=True) for a, b in _pairs(old, new))
        self.types = found
        return held

    def _dim(self, dim: Expr, following: Expr, groups: list[tuple[Expr, Expr, Var]], facts: Facts) -> Expr:
        if dim not in self.changing and prove(equal(dim, following), facts) is True:
            return dim
        alike = [group for group in groups if group[0] == dim]
        for _, other, var in alike:
            if prove(equal(other, following), facts) is True:
                return var
        var = dim if isinstance(dim, Var) and dim in self.changing and not alike else fresh_size(self.c)
        self.changing.add(var)
        groups.append((dim, following, var))
        return var

    def next_type(self, type_: TensorType, following: TensorType) -> TensorType:
        """The type that an iteration gives: that of the parameter, but for what changes."""
        return _with_dims(type_, [b if a in self.changing else a for a, b in _pairs(type_, following)])

    def types_after(self) -> list[TensorType]:
        """The types behind the loop: what changes inside of it is found when it has run."""
        found = {dim: fresh_size(self.c) for type_ in self.types for dim in type_.shape if dim in self.changing}
        return [_with_dims(type_, [found.get(dim, dim) for dim in type_.shape]) for type_ in self.types]  # type: ignore[call-overload]


def _pairs(a: TensorType, b: TensorType) -> list[tuple[Expr, Expr]]:
    return list(zip(a.shape, b.shape, strict=True))


def _with_dims(type_: TensorType, dims: Sequence[Expr]) -> TensorType:
    return TensorType(tuple(dims), type_.dtype)


def fresh_size(c: Calls) -> Var:
    """A dim that only the run tells."""
    made = Var(c.graph.shared.fresh_dim(f"{c.label}.size"))
    c.graph.builder.know(made)
    c.graph.builder.found_dims.add(made)
    return made


def iterations(c: Calls, trip_count: Expr, condition: ModelValue) -> Expr:
    """The number of iterations of a loop that runs `trip_count` times, or, where `condition` fails, not at all."""
    whole = size_value(trip_count)
    number = c.call("mul", whole, c.call("cast", condition, dtype=i64))
    return c.graph.dims(number, f"{c.label}.iterations", c.span)[0]


def flip(c: Calls, value: ModelValue, axis: int) -> ModelValue:
    """`value` with one axis in the opposite order."""
    size = value.shape[axis]
    steps = tuple(-1 if d == axis else 1 for d in range(value.rank))
    starts = tuple(size - 1 if d == axis else const(0) for d in range(value.rank))
    return c.call("slice", value, starts=starts, sizes=value.shape, steps=steps)
