"""`If`, `Loop` and `Scan`.

An `If` whose condition is known takes its branch at import. One whose branches give results of different rank cannot
be one typed operation: exporters write `if n == 1: squeeze(x) else: x`, and what follows decides by rank again. Then
each branch is imported together with the rest of the graph. A branch that cannot work (its shapes do not fit,
whatever runs) is left out, and its condition becomes a requirement that is checked when the model runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tc.errors import LimitError, NodeError, ShapeError, UnsupportedError
from tc.frontend.onnx.importer import GraphImporter
from tc.frontend.onnx.node_context import Calls, Finished, NodeContext, NodeResult, onnx_op, onnx_op_before
from tc.frontend.onnx.size_elements import make_elements
from tc.frontend.onnx.values import AnyValue, ModelValue, constant_value, elements_value
from tc.ir.arith import prove, simplify
from tc.ir.dtype import bool_, i64
from tc.ir.expr import Const, Expr, Var, as_expr, const, equal, logical_not, maximum, select
from tc.ir.graph import Call, CallExtern, If, Loop, ReadDims
from tc.ir.node import walk
from tc.ir.types import TensorType
from tc.ops.build import GraphBuilder
from tc.ops.registry import Requirement

_MAX_PATHS_DEEP = 10
_UNROLL_LIMIT = 256
_MAX_COUNTED_DEEP = 5  # each is imported three times, and so is what it holds
_NO_LIMIT = 1 << 31


# -- If


@onnx_op("If")
def import_if(n: NodeContext) -> NodeResult:
    condition = n.value(0)
    if condition.dtype != bool_:
        raise ShapeError(f"If: the condition must be a bool, but is {condition.type}")
    elements = n.graph.elements(condition)
    if elements is not None and elements.size == 1:
        test = simplify(elements.reshape(-1)[0], n.facts)
        known = prove(test, n.facts)
        if known is not None:
            return _inline(n, known)
        return _branch(n, condition, test)
    return _branch(n, condition, None)


def _name(taken: bool) -> str:
    return "then_branch" if taken else "else_branch"


def _inline(n: NodeContext, taken: bool) -> NodeResult:
    """The results of one branch, imported in place."""
    inside = n.graph.nested(f"{n.place_here}/{_name(taken)}", builder=n.graph.builder)
    return inside.run_graph(n.attr(_name(taken)), [])


@dataclass(frozen=True)
class _Path:
    """One branch, imported into a function of its own, and what it gives."""

    graph: GraphImporter
    results: list[AnyValue]


def _branch(n: NodeContext, condition: ModelValue, test: Expr | None) -> NodeResult:
    """An If that is decided at run time. `test` is the condition as an expression over dims, when it is one."""
    paths, errors = _try_both(n, test, lambda graph, taken: graph.run_graph(n.attr(_name(taken)), []))
    if errors:
        return _only_path(n, condition, test, errors)
    if not _differ(paths[True], paths[False]):
        return _join(n, condition, test, paths, n.outputs)

    def follow(graph: GraphImporter, taken: bool) -> list[AnyValue]:
        results = graph.run_graph(n.attr(_name(taken)), [])
        graph.names.update({name: result for name, result in zip(n.outputs, results, strict=True) if name})
        return n.rest.run_in(graph)

    paths, errors = _try_both(n, test, follow)
    if errors:
        return _only_path(n, condition, test, errors)
    return Finished(_join(n, condition, test, paths, list(n.rest.outputs)))


def _try_both(
    n: NodeContext, test: Expr | None, run: Callable[[GraphImporter, bool], list[AnyValue]]
) -> tuple[dict[bool, _Path], dict[bool, ShapeError]]:
    """Import both branches; a ShapeError means that the branch can never work. Raises it when neither can."""
    paths: dict[bool, _Path] = {}
    errors: dict[bool, ShapeError] = {}
    for taken in (True, False):
        graph = n.graph.nested(f"{n.place_here}/{_name(taken)}")
        if graph.depth > n.graph.depth + 1 + _MAX_PATHS_DEEP:
            raise UnsupportedError(f"more than {_MAX_PATHS_DEEP} Ifs with branches of different rank follow each other", code="TC1018")
        if test is not None:
            graph.builder.assume(test if taken else logical_not(test))
        n.graph.shared.attempts += 1
        try:
            paths[taken] = _Path(graph, run(graph, taken))
        except ShapeError as error:
            errors[taken] = error
        finally:
            n.graph.shared.attempts -= 1
    if len(errors) == 2:
        raise errors[True]
    return paths, errors


def _only_path(n: NodeContext, condition: ModelValue, test: Expr | None, errors: dict[bool, ShapeError]) -> NodeResult:
    """The branch that can work, imported in place; that it is the one to take is checked at run time."""
    taken = False in errors
    if test is None:
        dim = _condition_dim(n, condition)
        test = equal(dim, 1)
    needed = test if taken else logical_not(test)
    reason = errors[not taken]
    n.graph.builder.require(
        Requirement(
            simplify(needed, n.facts),
            f"{n.label}: the model works only where {needed}; otherwise: {reason.message}",
        )
    )
    return _inline(n, taken)


def _condition_dim(n: NodeContext, condition: ModelValue) -> Expr:
    """The condition as a dim, 0 or 1."""
    number = n.call("cast", condition, dtype=i64)
    return n.graph.dims(number, f"{n.label}.condition", n.span)[0]


def _differ(a: _Path, b: _Path) -> bool:
    """Whether results are such that no operation can have one or the other."""
    for x, y in zip(a.results, b.results, strict=True):
        if not isinstance(x, ModelValue) or not isinstance(y, ModelValue) or x.rank != y.rank:
            return True
    return False


def _join(
    n: NodeContext, condition: ModelValue, test: Expr | None, paths: dict[bool, _Path], names: list[str]
) -> list[AnyValue]:
    """The results of an If over imported branches: as elements where these are known, else by an If of the graph."""
    joined: list[ModelValue | None] = []
    types: list[TensorType] = []
    for x, y in zip(paths[True].results, paths[False].results, strict=True):
        if not isinstance(x, ModelValue) or not isinstance(y, ModelValue) or x.rank != y.rank:
            kinds = f"{_kind(x)} and {_kind(y)}"
            raise UnsupportedError(f"If: the branches give results of different rank or kind: {kinds}", code="TC1018")
        if x.dtype != y.dtype:
            raise ShapeError(f"If: the branches give results of different dtypes: {x.type} and {y.type}")
        known = _join_elements(n, test, x, y)
        joined.append(known)
        if known is None:
            types.append(TensorType(_join_shapes(n, condition, test, x, y, paths), x.dtype))
    if types:
        functions = [_branch_function(paths[taken], taken, joined, types) for taken in (True, False)]
        operation = If(n.graph.atom(_as_scalar(n, condition)), *functions, span=n.span)
        labels = [name or n.label for name, known in zip(names, joined, strict=True) if known is None]
        values = iter(n.graph.bind(operation, types, labels, n.span))
        return [next(values) if known is None else known for known in joined]
    return list(filter(None, joined))


def _kind(value: AnyValue) -> str:
    return str(value.type) if isinstance(value, ModelValue) else "no tensor"


def _join_elements(n: NodeContext, test: Expr | None, x: ModelValue, y: ModelValue) -> ModelValue | None:
    """The result as elements, when the condition and both sides are known."""
    a, b = x.elements, y.elements
    if test is None or a is None or b is None or a.shape != b.shape or x.dtype.is_float:
        return None
    chosen = [simplify(select(test, p, q), n.facts) for p, q in zip(a.reshape(-1), b.reshape(-1), strict=True)]
    return elements_value(make_elements(chosen, a.shape), x.dtype)


def _join_shapes(
    n: NodeContext, condition: ModelValue, test: Expr | None, x: ModelValue, y: ModelValue, paths: dict[bool, _Path]
) -> tuple[Expr, ...]:
    """The dims of a result: those of both branches, a choice between them, or dims that are read from the data."""
    inner = {taken: dims_bound_in(path.graph.builder) for taken, path in paths.items()}
    dims: list[Expr] = []
    for axis, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)):
        for dim, own in ((a, inner[True]), (b, inner[False])):
            if any(node in own for node in walk(dim)):
                raise UnsupportedError(f"If: the size {dim} of a result depends on data that only its branch has", code="TC1018")
        if prove(equal(a, b), n.facts) is True:
            dims.append(a)
        elif test is not None:
            dims.append(simplify(select(test, a, b), n.facts))
        else:
            dims.append(_read_choice(n, condition, a, b, axis))
    return tuple(dims)


def _read_choice(n: NodeContext, condition: ModelValue, a: Expr, b: Expr, axis: int) -> Expr:
    """A dim that is `a` or `b` as the data of `condition` says."""
    sizes = [elements_value(make_elements([dim], ()), i64) for dim in (a, b)]
    chosen = n.call("where", _as_scalar(n, condition), *sizes)
    return n.graph.dims(chosen, f"{n.label}.{axis}", n.span)[0]


def _as_scalar(n: NodeContext, condition: ModelValue) -> ModelValue:
    return condition if condition.rank == 0 else n.call("reshape", condition, shape=())


def _branch_function(path: _Path, taken: bool, joined: Sequence[ModelValue | None], types: Sequence[TensorType]) -> Any:
    """The function of a branch; results have the joined types."""
    wanted = iter(types)
    results = []
    for value, known in zip(path.results, joined, strict=True):
        if known is not None:
            continue
        assert isinstance(value, ModelValue)
        type_ = next(wanted)
        results.append(_with_type(path.graph, value, type_))
    return path.graph.builder.function(_name(taken), results)


def _with_type(graph: GraphImporter, value: ModelValue, type_: TensorType) -> Any:
    """The atom of `value` in a type that is known to be the same at run time."""
    atom = graph.atom(value)
    if all(a is b for a, b in zip(value.shape, type_.shape, strict=True)):
        return atom
    return graph.builder.bind(Call("reshape", (atom,), (("shape", type_.shape),)), [type_], ["same"])[0]


def dims_bound_in(builder: GraphBuilder) -> set[Var]:
    """The dims that get their values inside of a function: read from data, or sizes that an operator finds."""
    own: set[Var] = set()
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


# -- loops

class _ShapeChanges(UnsupportedError):
    """A loop carries values of changing sizes; `ranks` are those that every iteration keeps."""

    default_code = "TC1018"

    def __init__(self, ranks: Sequence[int | None], message: str) -> None:
        super().__init__(message)
        self.ranks = ranks


Body = Callable[[Calls, ModelValue, "list[ModelValue]"], "tuple[ModelValue | None, list[ModelValue], list[ModelValue]]"]


def bind_loop(
    c: Calls, trip_count: Expr | None, condition: ModelValue | None, init: Sequence[ModelValue], body: Body, path: str
) -> list[ModelValue]:
    """A Loop of the graph. `body(calls, i, carried)` gives (next condition or None, next carried, scanned).

    Carried values must keep their types: UnsupportedError otherwise. Returns the last carried values, then the
    scanned ones.
    """
    graph = c.graph.nested(path)
    index = ModelValue(TensorType((), i64), graph.builder.param("i", TensorType((), i64), c.span))
    graph.iteration = index
    params = [ModelValue(v.type, graph.builder.param(f"carried{k}", v.type, c.span)) for k, v in enumerate(init)]
    after, carried, scanned = body(c.within(graph), index, params)
    for k, (old, new) in enumerate(zip(init, carried, strict=True)):
        same = old.rank == new.rank and all(
            prove(equal(a, b), graph.facts) is True for a, b in zip(old.shape, new.shape, strict=True)
        )
        if old.dtype != new.dtype or not same:
            ranks = [x.rank if x.rank == y.rank else None for x, y in zip(init, carried, strict=True)]
            raise _ShapeChanges(ranks, f"a loop changes the type of its carried value {k} from {old.type} to {new.type}")
    if trip_count is None and after is None:
        if condition is None:
            raise NodeError("the loop never ends: it has no bound, and its condition is always true")
        trip_count, condition = _iterations(c, const(1 << 62), condition), None
    own = dims_bound_in(graph.builder)
    for value in scanned:
        if any(node in own for node in walk(value.type)):
            raise UnsupportedError("a loop stacks results whose size depends on the data of each iteration", code="TC1018")
    if scanned:
        if trip_count is None or after is not None:
            raise UnsupportedError("a loop that stacks results needs a known number of iterations", code="TC1018")
        if condition is not None:
            trip_count, condition = _iterations(c, trip_count, condition), None
    true = constant_value(np.array(True))
    results = [graph.atom(true if after is None else after)]
    results += [_with_type(graph, new, old.type) for old, new in zip(init, carried, strict=True)]
    results += [graph.atom(value) for value in scanned]
    function = graph.builder.function("body", results)
    types = [v.type for v in init]
    types += [TensorType((trip_count, *v.shape), v.dtype) for v in scanned]  # type: ignore[arg-type]
    start = c.graph.atom(true if condition is None else condition)
    operation = Loop(trip_count, start, tuple(c.graph.atom(v) for v in init), function, span=c.span)
    return list(c.graph.bind(operation, types, [c.label] * len(types), c.span))


def _iterations(c: Calls, trip_count: Expr, condition: ModelValue) -> Expr:
    """The number of iterations of a loop that runs `trip_count` times, or, where `condition` fails, not at all."""
    whole = elements_value(make_elements([trip_count], ()), i64)
    number = c.call("mul", whole, c.call("cast", condition, dtype=i64))
    return c.graph.dims(number, f"{c.label}.iterations", c.span)[0]


@onnx_op("Loop")
def import_loop(n: NodeContext) -> NodeResult:
    """A Loop of the graph; one iteration, or some of values whose types change, one after the other."""
    trip_count, condition = _trip_count(n), n.optional(1)
    start = None if condition is None else n.graph.array(condition)
    if start is not None:
        condition = None
        trip_count = trip_count if start.reshape(-1)[0] else const(0)
    fixed = int(trip_count) if isinstance(trip_count, Const) and condition is None else None
    if fixed == 1:
        return _unroll(n, fixed)
    mark = n.graph.mark()
    try:
        return _import_loop(n, trip_count, condition, [_tensor(v) for v in n.inputs[2:]])
    except UnsupportedError as error:
        if fixed is None or not 0 < fixed <= _UNROLL_LIMIT:
            if isinstance(error, _ShapeChanges):
                own = error.ranks[len(error.ranks) - len(n.inputs[2:]) :]  # behind a count of iterations
                n.ranks = {name: rank for name, rank in zip(n.outputs, own, strict=False) if rank is not None}
            raise
    n.graph.roll_back(mark)
    return _unroll(n, fixed)


def _tensor(value: AnyValue | None) -> ModelValue:
    if not isinstance(value, ModelValue):
        raise UnsupportedError("a loop carries a sequence or an optional", code="TC1018")
    return value


def _trip_count(n: NodeContext) -> Expr | None:
    """The largest number of iterations; None when there is no bound."""
    count = n.optional(0)
    if count is None:
        return None
    elements = n.graph.elements(count)
    if elements is None:
        zero = n.const(0, count.dtype)
        return n.graph.dims(n.call("maximum", count, zero), f"{n.label}.trip_count", n.span)[0]
    number = simplify(maximum(elements.reshape(-1)[0], 0), n.facts)
    return None if isinstance(number, Const) and int(number) >= _NO_LIMIT else number


def _import_loop(n: NodeContext, trip_count: Expr | None, condition: ModelValue | None, init: list[ModelValue]) -> list[ModelValue]:
    """As a Loop of the graph. One that stacks and stops by a condition is run twice, first to count."""
    condition = None if condition is None else _as_scalar(n, condition)
    body = n.attr("body")
    stacks = len(body.output) - 1 - len(init) > 0
    mark = n.graph.mark()
    try:
        whole = _onnx_body(n, body, len(init), stop=True)
        return bind_loop(n, trip_count, condition, init, whole, f"{n.place_here}/body")
    except UnsupportedError:
        if not stacks:
            raise
    n.graph.roll_back(mark)
    if n.graph.depth > _MAX_COUNTED_DEEP:
        message = f"loops that stack results and stop by a condition are nested more than {_MAX_COUNTED_DEEP} deep"
        raise LimitError(message, code="TC1061")
    return _count_then_stack(n, trip_count, condition, init)


def _onnx_body(n: NodeContext, body: Any, count: int, *, stop: bool) -> Body:
    """The body of an ONNX Loop; without `stop` its condition is known to hold."""

    def run(c: Calls, i: ModelValue, carried: list[ModelValue]) -> tuple[ModelValue | None, list[ModelValue], list[ModelValue]]:
        true = constant_value(np.array(True))
        results = [_tensor(v) for v in c.graph.run_graph(body, [i, true, *carried])]
        after: ModelValue | None = results[0]
        known = c.graph.array(results[0])
        if not stop or (known is not None and known.reshape(-1)[0]):
            after = None
        elif results[0].rank:
            after = c.call("reshape", results[0], shape=())
        return after, results[1 : 1 + count], results[1 + count :]

    return run


def _count_then_stack(
    n: NodeContext, trip_count: Expr | None, condition: ModelValue | None, init: list[ModelValue]
) -> list[ModelValue]:
    body = n.attr("body")
    inner = _onnx_body(n, body, len(init), stop=True)

    def count(c: Calls, i: ModelValue, carried: list[ModelValue]) -> tuple[ModelValue | None, list[ModelValue], list[ModelValue]]:
        after, values, _ = inner(c, i, carried[1:])
        return after, [c.call("add", carried[0], c.const(1, i64)), *values], []

    counted = bind_loop(n, trip_count, condition, [n.const(0, i64), *init], count, f"{n.place_here}/body")
    iterations = n.graph.dims(counted[0], f"{n.label}.iterations", n.span)[0]
    return bind_loop(
        n, iterations, None, init, _onnx_body(n, body, len(init), stop=False), f"{n.place_here}/body"
    )


def _unroll(n: NodeContext, trip_count: int) -> NodeResult:
    """All iterations one after the other."""
    body, carried = n.attr("body"), list(n.inputs[2:])
    count = len(carried)
    stacks: list[list[ModelValue]] = [[] for _ in range(len(body.output) - 1 - count)]
    for i in range(trip_count):
        graph = n.graph.nested(f"{n.place_here}/body", builder=n.graph.builder)
        graph.iteration = constant_value(np.array(i, np.int64))
        given = [graph.iteration, constant_value(np.array(True)), *carried]
        after, *results = graph.run_graph(body, given)
        go_on = n.graph.array(_tensor(after))
        if go_on is None:
            raise UnsupportedError("a loop that changes the types of its values stops by a condition on data", code="TC1018")
        carried = list(results[:count])
        for stack, value in zip(stacks, results[count:], strict=True):
            stack.append(n.call("unsqueeze", _tensor(value), axes=(0,)))
        if not go_on.reshape(-1)[0]:
            break
    if any(not stack for stack in stacks):
        raise UnsupportedError("a loop of no iterations stacks results of unknown size", code="TC1018")
    stacked = [stack[0] if len(stack) == 1 else n.call("concat", *stack, axis=0) for stack in stacks]
    return [*carried, *stacked]


@onnx_op("Scan", since=9)
def import_scan(n: NodeContext) -> NodeResult:
    body, num_scanned = n.attr("body"), n.attr("num_scan_inputs")
    values = n.values()
    init, sequences = values[: len(values) - num_scanned], values[len(values) - num_scanned :]
    if not sequences:
        raise NodeError("Scan needs at least one input to scan")
    num_results = len(body.output) - len(init)
    axes = n.attr("scan_input_axes") or [0] * num_scanned
    reverse = n.attr("scan_input_directions") or [0] * num_scanned
    axes = [axis % value.rank for axis, value in zip(axes, sequences, strict=True)]
    length = sequences[0].shape[axes[0]]
    for value, axis in zip(sequences[1:], axes[1:], strict=True):
        if prove(equal(value.shape[axis], length), n.facts) is False:
            raise ShapeError(f"Scan: sequences of length {length} and {value.shape[axis]}")
    results = _scan(n, body, init, sequences, axes, reverse, length, f"{n.place_here}/body")
    out_axes = n.attr("scan_output_axes") or [0] * num_results
    out_reverse = n.attr("scan_output_directions") or [0] * num_results
    stacked = [
        _place_axis(n, flip(n, value, 0) if backward else value, axis % value.rank)
        for value, axis, backward in zip(results[len(init) :], out_axes, out_reverse, strict=True)
    ]
    return [*results[: len(init)], *stacked]


@onnx_op_before(9, "Scan")
def import_scan_of_batches(n: NodeContext) -> NodeResult:
    """Opset 8: every value has a first axis of batches, each of which is scanned by itself."""
    if n.optional(0) is not None:
        raise UnsupportedError("Scan of opset 8 with sequence lengths", code="TC1011")
    values, num_scanned, body = [n.value(k) for k in range(1, len(n.inputs))], n.attr("num_scan_inputs"), n.attr("body")
    states, scanned = values[: len(values) - num_scanned], values[len(values) - num_scanned :]
    if not scanned:
        raise NodeError("Scan needs at least one input to scan")
    short = next((v for v in (*states, *scanned) if v.rank < (1 if v in states else 2)), None)
    if short is not None:
        raise ShapeError(f"Scan: {short.type} has no axes of batches and of items to scan")
    reverse = n.attr("directions") or [0] * num_scanned
    (batches, length), axes = scanned[0].shape[:2], [0] * num_scanned
    for value in values:
        if prove(equal(value.shape[0], batches), n.facts) is False:
            raise ShapeError(f"Scan: batches of {batches} and {value.shape[0]}")

    def one(c: Calls, b: ModelValue, _: list[ModelValue]) -> tuple[ModelValue | None, list[ModelValue], list[ModelValue]]:
        own = [[c.call("gather", value, b, axis=0, in_range=True) for value in group] for group in (states, scanned)]
        return None, [], _scan(c, body, *own, axes, reverse, length, f"{n.place_here}/body")

    return bind_loop(n, batches, None, [], one, f"{n.place_here}/batches")


def _scan(
    c: Calls,
    body: Any,
    init: Sequence[ModelValue],
    sequences: Sequence[ModelValue],
    axes: Sequence[int],
    reverse: Sequence[int],
    length: Expr,
    path: str,
) -> list[ModelValue]:
    """The last states, and what is scanned, stacked along a first axis."""
    last = elements_value(make_elements([as_expr(length) - 1], ()), i64)

    def step(c: Calls, i: ModelValue, carried: list[ModelValue]) -> tuple[ModelValue | None, list[ModelValue], list[ModelValue]]:
        items = [
            c.call("gather", value, c.call("sub", last, i) if backward else i, axis=axis, in_range=True)
            for value, axis, backward in zip(sequences, axes, reverse, strict=True)
        ]
        results = [_tensor(v) for v in c.graph.run_graph(body, [*carried, *items])]
        return None, results[: len(init)], results[len(init) :]

    return bind_loop(c, length, None, init, step, path)


def flip(c: Calls, value: ModelValue, axis: int) -> ModelValue:
    """`value` with one axis in the opposite order."""
    size = value.shape[axis]
    steps = tuple(-1 if d == axis else 1 for d in range(value.rank))
    starts = tuple(size - 1 if d == axis else const(0) for d in range(value.rank))
    return c.call("slice", value, starts=starts, sizes=value.shape, steps=steps)


def _place_axis(c: Calls, value: ModelValue, axis: int) -> ModelValue:
    """Move the first axis to place `axis`."""
    if axis == 0:
        return value
    order = list(range(1, value.rank))
    order.insert(axis, 0)
    return c.call("transpose", value, perm=tuple(order))
