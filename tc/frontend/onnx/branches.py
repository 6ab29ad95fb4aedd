"""`If`.

An `If` whose condition is known takes its branch at import. One whose branches give results of different rank cannot
be one typed operation: exporters write `if n == 1: squeeze(x) else: x`, and what follows decides by rank again. Then
each branch is imported together with the rest of the graph. A branch that cannot work (its shapes do not fit,
whatever runs) is left out, and its condition becomes a requirement that is checked when the model runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tc.errors import ShapeError, TcError, UnsupportedError
from tc.frontend.onnx.control_flow import as_scalar, condition_dim, dims_bound_in, fresh_size, with_type
from tc.frontend.onnx.importer import GraphImporter
from tc.frontend.onnx.node_context import Calls, Finished, NodeContext, NodeResult, cannot_work, onnx_op
from tc.frontend.onnx.size_elements import make_elements
from tc.frontend.onnx.stored_sequences import StoredForms, form_of
from tc.frontend.onnx.values import AnyValue, ModelValue, SequenceValue, StoredSequence, elements_value, size_value
from tc.ir.arith import prove, simplify
from tc.ir.dtype import bool_
from tc.ir.expr import Expr, Var, equal, logical_not, select
from tc.ir.graph import If
from tc.ir.node import walk
from tc.ir.types import TensorType
from tc.ops.registry import Requirement

_MAX_PATHS_DEEP = 10


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
) -> tuple[dict[bool, _Path], dict[bool, TcError]]:
    """Import both branches, and why one of them can never work. Raises that when neither can."""
    paths: dict[bool, _Path] = {}
    errors: dict[bool, TcError] = {}
    for taken in (True, False):
        graph = n.graph.nested(f"{n.place_here}/{_name(taken)}")
        if graph.depth > n.graph.depth + 1 + _MAX_PATHS_DEEP:
            raise UnsupportedError(f"more than {_MAX_PATHS_DEEP} Ifs with branches of different rank follow each other", code="TC1018")
        if test is not None:
            graph.builder.assume(test if taken else logical_not(test))
        n.graph.shared.attempts += 1
        try:
            paths[taken] = _Path(graph, run(graph, taken))
        except TcError as error:
            if not cannot_work(error):
                raise
            errors[taken] = error
        finally:
            n.graph.shared.attempts -= 1
    if len(errors) == 2:
        raise errors[True]
    return paths, errors


def _only_path(n: NodeContext, condition: ModelValue, test: Expr | None, errors: dict[bool, TcError]) -> NodeResult:
    """The branch that can work, imported in place; that it is the one to take is checked at run time."""
    taken = False in errors
    if test is None:
        dim = condition_dim(n, condition)
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
    for x, y in pairs:
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
        operation = If(n.graph.atom(as_scalar(n, condition)), *functions, span=n.span)
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
    pairs = list(zip(paths[True].results, paths[False].results, strict=True))
    forms = StoredForms([form_of(pair) if _are_sequences(*pair) else None for pair in pairs])
    tensors = {taken: _Path(path.graph, [*forms.tensors(n.within(path.graph), path.results)]) for taken, path in paths.items()}
    joined = _join(n, condition, test, tensors, forms.names(names))
    return forms.values([value for value in joined if isinstance(value, ModelValue)])


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
                found[a, b] = fresh_size(n)
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
    sizes = [size_value(dim) for dim in (a, b)]
    chosen = n.call("where", as_scalar(n, condition), *sizes)
    return n.graph.dims(chosen, f"{n.label}.{axis}", n.span)[0]


def choose(
    c: Calls, condition: ModelValue, type_: TensorType, then: Callable[[Calls], ModelValue], other: Callable[[Calls], ModelValue]
) -> ModelValue:
    """An If of the graph over two ways to make a value of a type."""
    functions = []
    for taken, make in ((True, then), (False, other)):
        graph = c.graph.nested(_name(taken))
        result = make(c.within(graph))
        functions.append(graph.builder.function(_name(taken), [with_type(graph, result, type_)]))
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
        results.append(with_type(path.graph, value, TensorType(tuple(own if dim in found else dim for own, dim in dims), value.dtype)))
    return path.graph.builder.function(_name(taken), results)
