"""One dim where the model has several, or a number: what the operators of a model require of the dims of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tc.ir.arith import prove
from tc.ir.expr import Const, Eq, Expr, Var
from tc.ir.graph import Binding, Call, Function, TensorVar
from tc.ir.module import IRModule
from tc.ir.node import Node, Substitution, replace, substitute, walk
from tc.ir.types import TensorType
from tc.ops.registry import Requirement
from tc.passes.lower import dims_of_types
from tc.passes.manager import graph_pass


def dims_as_required(params: Sequence[TensorVar], requirements: Iterable[Requirement]) -> dict[Var, Expr]:
    """For each dim of the inputs that is required to be a number, or another one of theirs: the number, or the first of all these.

    What is required of the dims of inputs is checked before anything runs, so a program may speak of one where the model has two. What is
    assumed does not count where nothing fits it all: the program that assumes nothing is then the one that runs.
    """
    known = list(requirements)
    found = _equal_dims(params, known)
    required = [requirement for requirement in known if not requirement.assumed]
    if len(required) == len(known):
        return found
    renamed = Substitution(found)
    fits = all(prove(renamed(requirement.condition)) is not False for requirement in known)
    return found if fits else _equal_dims(params, required)


def _equal_dims(params: Sequence[TensorVar], requirements: Iterable[Requirement]) -> dict[Var, Expr]:
    dims = dims_of_types([p.type for p in params if isinstance(p.type, TensorType)])
    order: dict[Expr, int] = {var: number for number, var in enumerate(dims)}
    first: dict[Var, Expr] = {}

    def found(dim: Expr) -> Expr:
        while isinstance(dim, Var) and dim in first:
            dim = first[dim]
        return dim

    for requirement in requirements:
        condition = requirement.condition
        if not isinstance(condition, Eq):
            continue
        sides = (condition.lhs, condition.rhs)
        if not all(isinstance(side, Const) or side in order for side in sides):
            continue
        one, other = sorted(map(found, sides), key=lambda dim: order.get(dim, -1))
        if isinstance(other, Var) and one is not other:
            first[other] = one
    return {var: found(var) for var in first}


@graph_pass
def unify_dims(module: IRModule, *, equal_dims: Mapping[Var, Expr] | None = None) -> IRModule:
    """Speak of what the dims of inputs are required to be (`dims_as_required`) behind the inputs, which keep their own dims."""
    if not equal_dims:
        return module
    main = _unified(module.main, equal_dims)
    return IRModule(tuple(main if func is module.main else func for func in module.functions), module.entry)


def _unified(func: Function, equal_dims: Mapping[Var, Expr]) -> Function:
    dims: dict[Node, Node] = dict(equal_dims.items())
    mapping = dict(dims)
    matched: list[Binding] = []
    for param in func.params:
        if isinstance(param.type, TensorType) and any(node in dims for node in walk(param.type)):
            type_ = substitute(param.type, dims)
            target = TensorVar(param.name, type_, span=param.span)
            matched.append(Binding((target,), Call("match_shape", (param,), (("shape", type_.shape),), span=param.span), span=param.span))
            mapping[param] = target
    renamed = Substitution(mapping)
    results = tuple(result if result in func.params else renamed(result) for result in func.results)
    return replace(func, bindings=(*matched, *map(renamed, func.bindings)), results=results)
