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
from tc.frontend.onnx.stored_sequences import item_dtype, item_rank, stored
from tc.frontend.onnx.values import AnyValue, ModelValue, SequenceValue, StoredSequence, constant_value, elements_value
from tc.ir.arith import Facts, prove, simplify
from tc.ir.dtype import DType, bool_, i64
from tc.ir.expr import Const, Expr, Var, as_expr, const, equal, logical_not, maximum, select
from tc.ir.graph import Call, CallExtern, If, Loop, ReadDims
from tc.ir.node import walk
from tc.ir.types import TensorType
from tc.ops.build import GraphBuilder
from tc.ops.registry import Requirement

_MAX_PATHS_DEEP = 10
_UNROLL_LIMIT = 256
_UNROLL_CHANGING = 16  # iterations that change sizes: each has kernels of its own
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
        if isinstance(x, StoredSequence) and isinstance(y, StoredSequence) and x.rank == y.rank:
            continue
        if not isinstance(x, ModelValue) or not isinstance(y, ModelValue) or x.rank != y.rank:
            return True
    return False


def _join(
    n: NodeContext, condition: ModelValue, test: Expr | None, paths: dict[bool, _Path], names: list[str]
) -> list[AnyValue]:
    """The results of an If over imported branches: as elements where these are known, else by an If of the graph."""
    pairs = list(zip(paths[True].results, paths[False].results, strict=True))
    if any(_are_sequences(x, y) for x, y in pairs):
        return _join_sequences(n, condition, test, paths, names)
    joined: list[ModelValue | None] = []
    types: list[TensorType] = []
    found: dict[tuple[Expr, Expr], Var] = {}
    for x, y in zip(paths[True].results, paths[False].results, strict=True):
        if not isinstance(x, ModelValue) or not isinstance(y, ModelValue) or x.rank != y.rank:
            kinds = f"{_kind(x)} and {_kind(y)}"
            raise UnsupportedError(f"If: the branches give results of different rank or kind: {kinds}", code="TC1018")
        if x.dtype != y.dtype:
            raise ShapeError(f"If: the branches give results of different dtypes: {x.type} and {y.type}")
        known = _join_elements(n, test, x, y)
        joined.append(known)
        if known is None:
            types.append(TensorType(_join_shapes(n, condition, test, x, y, paths, found), x.dtype))
    if types:
        functions = [_branch_function(paths[taken], taken, joined, types, set(found.values())) for taken in (True, False)]
        operation = If(n.graph.atom(_as_scalar(n, condition)), *functions, span=n.span)
        labels = [name or n.label for name, known in zip(names, joined, strict=True) if known is None]
        values = iter(n.graph.bind(operation, types, labels, n.span))
        return [next(values) if known is None else known for known in joined]
    return list(filter(None, joined))


def _are_sequences(x: AnyValue, y: AnyValue) -> bool:
    return isinstance(x, SequenceValue | StoredSequence) and isinstance(y, SequenceValue | StoredSequence)


def _join_sequences(
    n: NodeContext, condition: ModelValue, test: Expr | None, paths: dict[bool, _Path], names: list[str]
) -> list[AnyValue]:
    """`_join` of results that are sequences, too: by the tensors that they are stored in."""
    tensors: dict[bool, list[AnyValue]] = {True: [], False: []}
    labels: list[str] = []
    kinds: list[bool | None] = []
    for x, y, name in zip(paths[True].results, paths[False].results, names, strict=True):
        is_sequence = _are_sequences(x, y)
        ranks = [item_rank(value) for value in (x, y)] if is_sequence else []
        rank = next((rank for rank in ranks if rank is not None), None)
        if is_sequence and rank is None:
            kinds.append(None)
            continue
        kinds.append(is_sequence)
        labels += [name, name][: 1 + is_sequence]
        for taken, value in ((True, x), (False, y)):
            if is_sequence:
                known = x if ranks[0] is not None else y
                assert rank is not None and isinstance(known, SequenceValue | StoredSequence)
                sequence = stored(n.within(paths[taken].graph), value, rank, item_dtype(known))
                tensors[taken] += [sequence.elements, sequence.shapes]
            else:
                tensors[taken].append(value)
    stored_paths = {taken: _Path(paths[taken].graph, tensors[taken]) for taken in paths}
    rest = iter(_join(n, condition, test, stored_paths, labels))
    found: list[AnyValue] = []
    for kind in kinds:
        if kind is None:
            found.append(SequenceValue(()))
        elif kind:
            elements, shapes = next(rest), next(rest)
            assert isinstance(elements, ModelValue) and isinstance(shapes, ModelValue)
            found.append(StoredSequence(elements, shapes))
        else:
            found.append(next(rest))
    return found


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
    n: NodeContext,
    condition: ModelValue,
    test: Expr | None,
    x: ModelValue,
    y: ModelValue,
    paths: dict[bool, _Path],
    found: dict[tuple[Expr, Expr], Var],
) -> tuple[Expr, ...]:
    """The dims of a result: those of both branches, a choice between them, dims that are read from the data, or, where only a branch has
    these, dims that the If finds. `found` holds the latter by those of the branches."""
    inner = {taken: dims_bound_in(path.graph.builder) for taken, path in paths.items()}
    dims: list[Expr] = []
    for axis, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)):
        if any(node in inner[True] for node in walk(a)) or any(node in inner[False] for node in walk(b)):
            if (a, b) not in found:
                found[a, b] = _fresh_size(n)
            dims.append(found[a, b])
        elif prove(equal(a, b), n.facts) is True:
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


def choose(
    c: Calls, condition: ModelValue, type_: TensorType, then: Callable[[Calls], ModelValue], other: Callable[[Calls], ModelValue]
) -> ModelValue:
    """An If of the graph over two ways to make a value of a type."""
    functions = []
    for taken, make in ((True, then), (False, other)):
        graph = c.graph.nested(_name(taken))
        result = make(c.within(graph))
        functions.append(graph.builder.function(_name(taken), [_with_type(graph, result, type_)]))
    return c.graph.bind(If(c.graph.atom(condition), *functions, span=c.span), [type_], [c.label], c.span)[0]  # type: ignore[no-any-return]


def _branch_function(
    path: _Path, taken: bool, joined: Sequence[ModelValue | None], types: Sequence[TensorType], found: set[Var]
) -> Any:
    """The function of a branch; results have the joined types, but for the dims that the If finds."""
    wanted = iter(types)
    results = []
    for value, known in zip(path.results, joined, strict=True):
        if known is not None:
            continue
        assert isinstance(value, ModelValue)
        dims = zip(value.shape, next(wanted).shape, strict=True)
        results.append(_with_type(path.graph, value, TensorType(tuple(own if dim in found else dim for own, dim in dims), value.dtype)))
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

class _RankChanges(UnsupportedError):
    """A loop carries values of changing rank; `ranks` are those that every iteration keeps."""

    default_code = "TC1018"

    def __init__(self, ranks: Sequence[int | None], message: str) -> None:
        super().__init__(message)
        self.ranks = ranks


Body = Callable[[Calls, ModelValue, "list[ModelValue]"], "tuple[ModelValue | None, list[ModelValue], list[ModelValue]]"]


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
    iteration, and another one after the loop; UnsupportedError instead, when it must keep sizes. Returns the last carried values, then the
    scanned ones.
    """
    sizes, start_mark = _CarriedSizes(c, [v.type for v in init]), c.graph.mark()
    while True:
        graph = c.graph.nested(path)
        index = ModelValue(TensorType((), i64), graph.builder.param("i", TensorType((), i64), c.span))
        graph.iteration = index
        params = [ModelValue(type_, graph.builder.param(f"carried{k}", type_, c.span)) for k, type_ in enumerate(sizes.types)]
        after, carried, scanned = body(c.within(graph), index, params)
        _require_ranks(init, carried)
        if sizes.hold([v.type for v in carried], graph.facts):
            break
        if keeps_sizes:
            raise UnsupportedError("a loop changes the sizes of what it carries", code="TC1018")
        c.graph.roll_back(start_mark)
    if trip_count is None and after is None:
        if condition is None:
            raise NodeError("the loop never ends: it has no bound, and its condition is always true")
        trip_count, condition = _iterations(c, const(1 << 62), condition), None
    own = dims_bound_in(graph.builder) | sizes.changing
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
    results += [_with_type(graph, new, sizes.next_type(old, new.type)) for old, new in zip(sizes.types, carried, strict=True)]
    results += [graph.atom(value) for value in scanned]
    function = graph.builder.function("body", results)
    types = sizes.types_after()
    types += [TensorType((trip_count, *v.shape), v.dtype) for v in scanned]  # type: ignore[arg-type]
    start = c.graph.atom(true if condition is None else condition)
    operation = Loop(trip_count, start, tuple(c.graph.atom(v) for v in init), function, span=c.span)
    return list(c.graph.bind(operation, types, [c.label] * len(types), c.span))


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
        var = dim if isinstance(dim, Var) and dim in self.changing and not alike else _fresh_size(self.c)
        self.changing.add(var)
        groups.append((dim, following, var))
        return var

    def next_type(self, type_: TensorType, following: TensorType) -> TensorType:
        """The type that an iteration gives: that of the parameter, but for what changes."""
        return _with_dims(type_, [b if a in self.changing else a for a, b in _pairs(type_, following)])

    def types_after(self) -> list[TensorType]:
        """The types behind the loop: what changes inside of it is found when it has run."""
        found = {dim: _fresh_size(self.c) for type_ in self.types for dim in type_.shape if dim in self.changing}
        return [_with_dims(type_, [found.get(dim, dim) for dim in type_.shape]) for type_ in self.types]  # type: ignore[call-overload]


def _pairs(a: TensorType, b: TensorType) -> list[tuple[Expr, Expr]]:
    return list(zip(a.shape, b.shape, strict=True))


def _with_dims(type_: TensorType, dims: Sequence[Expr]) -> TensorType:
    return TensorType(tuple(dims), type_.dtype)


def _fresh_size(c: Calls) -> Var:
    """A dim that only the run tells."""
    made = Var(c.graph.shared.fresh_dim(f"{c.label}.size"))
    c.graph.builder.know(made)
    return made


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
    can_unroll = fixed is not None and 0 < fixed <= _UNROLL_LIMIT
    unrolls_first = can_unroll and fixed is not None and fixed <= _UNROLL_CHANGING
    try:
        return _import_loop(n, trip_count, condition, unrolls_first)
    except UnsupportedError as error:
        if not can_unroll:
            if isinstance(error, _RankChanges) and all(isinstance(v, ModelValue) for v in n.inputs[2:]):
                own = error.ranks[len(error.ranks) - len(n.inputs[2:]) :]  # behind a count of iterations
                n.ranks = {name: rank for name, rank in zip(n.outputs, own, strict=False) if rank is not None}
            raise
    n.graph.roll_back(mark)
    try:
        return _unroll(n, fixed)  # type: ignore[arg-type]
    except UnsupportedError:
        if not unrolls_first:
            raise
    n.graph.roll_back(mark)
    return _import_loop(n, trip_count, condition)


def _tensor(value: AnyValue | None) -> ModelValue:
    if not isinstance(value, ModelValue):
        raise UnsupportedError("a loop gives a sequence or an optional where a tensor is due", code="TC1018")
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


def _import_loop(
    n: NodeContext, trip_count: Expr | None, condition: ModelValue | None, keeps_sizes: bool = False
) -> list[AnyValue]:
    """As a Loop of the graph. One that stacks and stops by a condition is run twice, first to count."""
    condition = None if condition is None else _as_scalar(n, condition)
    carried = _CarriedValues(n)
    init = carried.tensors(n, n.inputs[2:])
    stacks = len(n.attr("body").output) - 1 - len(n.inputs[2:]) > 0
    mark = n.graph.mark()
    try:
        whole = _onnx_body(n, carried, stop=True)
        return carried.results(bind_loop(n, trip_count, condition, init, whole, f"{n.place_here}/body", keeps_sizes))
    except UnsupportedError:
        if not stacks:
            raise
    n.graph.roll_back(mark)
    if n.graph.depth > _MAX_COUNTED_DEEP:
        message = f"loops that stack results and stop by a condition are nested more than {_MAX_COUNTED_DEEP} deep"
        raise LimitError(message, code="TC1061")
    return carried.results(_count_then_stack(n, trip_count, condition, init, carried, keeps_sizes))


class _CarriedValues:
    """What an ONNX Loop carries, as tensors: of a sequence the two that it is stored in. One that stays empty is none."""

    def __init__(self, n: NodeContext) -> None:
        values = n.inputs[2:]
        ranks = [None if isinstance(value, ModelValue) else item_rank(value) for value in values]
        self.kinds: list[tuple[int, DType] | SequenceValue | None] = []
        if any(rank is None and not isinstance(value, ModelValue) for value, rank in zip(values, ranks, strict=True)):
            values = self._after_one(n)
            ranks = [None if isinstance(value, ModelValue) else item_rank(value) for value in values]
        for value, rank in zip(values, ranks, strict=True):
            if isinstance(value, SequenceValue | StoredSequence):
                self.kinds.append(SequenceValue((), None) if rank is None else (rank, item_dtype(value)))
            else:
                self.kinds.append(None)

    def _after_one(self, n: NodeContext) -> list[AnyValue]:
        """The values after one iteration, which is imported for what sequences that are empty before it have in them."""
        mark = n.graph.mark()
        graph = n.graph.nested(f"{n.place_here}/body")
        graph.iteration = constant_value(np.array(0, np.int64))
        results = graph.run_graph(n.attr("body"), [graph.iteration, constant_value(np.array(True)), *n.inputs[2:]])
        n.graph.roll_back(mark)
        return results[1 : len(n.inputs) - 1]

    def tensors(self, c: Calls, values: Sequence[AnyValue | None]) -> list[ModelValue]:
        found: list[ModelValue] = []
        for value, kind in zip(values, self.kinds, strict=True):
            if kind is None:
                found.append(_tensor(value))
            elif isinstance(kind, tuple):
                assert value is not None, "a sequence is there"
                sequence = stored(c, value, *kind)
                found += [sequence.elements, sequence.shapes]
            elif value is None or item_rank(value) is not None:
                raise UnsupportedError("a loop puts something into a sequence later than in its first iteration", code="TC1018")
        return found

    def values(self, tensors: Sequence[ModelValue]) -> list[AnyValue]:
        rest = iter(tensors)
        found: list[AnyValue] = []
        for kind in self.kinds:
            if isinstance(kind, tuple):
                found.append(StoredSequence(next(rest), next(rest)))
            else:
                found.append(next(rest) if kind is None else kind)
        return found

    def results(self, tensors: Sequence[ModelValue]) -> list[AnyValue]:
        """The results of the Loop: last values, and what is stacked."""
        count = sum(2 if isinstance(kind, tuple) else kind is None for kind in self.kinds)
        return [*self.values(tensors[:count]), *tensors[count:]]


def _onnx_body(n: NodeContext, values: _CarriedValues, *, stop: bool) -> Body:
    """The body of an ONNX Loop; without `stop` its condition is known to hold."""
    body, count = n.attr("body"), len(n.inputs) - 2

    def run(c: Calls, i: ModelValue, carried: list[ModelValue]) -> tuple[ModelValue | None, list[ModelValue], list[ModelValue]]:
        true = constant_value(np.array(True))
        first, *results = c.graph.run_graph(body, [i, true, *values.values(carried)])
        goes_on = _tensor(first)
        after: ModelValue | None = goes_on
        known = c.graph.array(goes_on)
        if not stop or (known is not None and known.reshape(-1)[0]):
            after = None
        elif goes_on.rank:
            after = c.call("reshape", goes_on, shape=())
        return after, values.tensors(c, results[:count]), list(map(_tensor, results[count:]))

    return run


def _count_then_stack(
    n: NodeContext,
    trip_count: Expr | None,
    condition: ModelValue | None,
    init: list[ModelValue],
    values: _CarriedValues,
    keeps_sizes: bool,
) -> list[ModelValue]:
    inner = _onnx_body(n, values, stop=True)

    def count(c: Calls, i: ModelValue, carried: list[ModelValue]) -> tuple[ModelValue | None, list[ModelValue], list[ModelValue]]:
        after, following, _ = inner(c, i, carried[1:])
        return after, [c.call("add", carried[0], c.const(1, i64)), *following], []

    counted = bind_loop(n, trip_count, condition, [n.const(0, i64), *init], count, f"{n.place_here}/body", keeps_sizes)
    iterations = n.graph.dims(counted[0], f"{n.label}.iterations", n.span)[0]
    return bind_loop(n, iterations, None, init, _onnx_body(n, values, stop=False), f"{n.place_here}/body")


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
