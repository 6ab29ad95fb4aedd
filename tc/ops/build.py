"""Build graph functions by calling operators; result types are inferred on the way.

    b = GraphBuilder(facts)
    x = b.param("x", tensor_type((n, 64), f32))
    y = b.call("relu", b.call("matmul", x, w), span=span)
    func = b.function("main", (y,))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np

from tc.errors import Span, located
from tc.ir.arith import Facts, simplify
from tc.ir.dtype import i64
from tc.ir.expr import Const, Eq, Expr, Var, const
from tc.ir.graph import (
    Atom,
    Attrs,
    AttrValue,
    Binding,
    Call,
    Function,
    Operation,
    ReadDims,
    TensorConst,
    TensorVar,
    tensor_type_of,
)
from tc.ir.node import cached_on_node, replace, substitute, walk
from tc.ir.types import DimFact, TensorType, Type
from tc.ops.registry import Requirement, get_op, inference, is_scoped


class GraphBuilder:
    """Collects the bindings of one function. `parent` is the builder of the enclosing function, for the body of an If
    or Loop.

    `requirements` collects conditions over dims that must be checked at run time when this function runs. A nested
    function carries them as its attribute "requirements": (condition, message), and True for one that is assumed. Facts
    are shared by nested builders: a dim is one variable everywhere.
    """

    def __init__(self, facts: Sequence[DimFact] = (), parent: GraphBuilder | None = None) -> None:
        self.parent = parent
        self._facts: list[DimFact] = list(facts) if parent is None else parent._facts
        self._assumptions: list[Expr] = []
        self._known: tuple[tuple[int, ...], Facts] | None = None
        self.params: list[TensorVar] = []
        self.bindings: list[Binding] = []
        self.requirements: list[Requirement] = []
        self.found_dims: set[Var] = set()  # sizes that its branches and loops find

    @property
    def facts(self) -> tuple[DimFact, ...]:
        return tuple(self._facts)

    @property
    def known(self) -> Facts:
        """The facts, ready for the prover: promises about dims, and what has been required or assumed so far."""
        state = self._state()
        if self._known is None or self._known[0] != state:
            known = Facts.of(self._facts)
            for condition in self._conditions():
                known = known.assume(condition)
            self._known = state, known
        return self._known[1]

    def _state(self) -> tuple[int, ...]:
        own = (len(self._assumptions), len(self.requirements))
        return (len(self._facts), *own) if self.parent is None else (*self.parent._state(), *own)

    def _conditions(self) -> list[Expr]:
        outer = [] if self.parent is None else self.parent._conditions()
        return [*outer, *self._assumptions, *(r.condition for r in self.requirements)]

    def assume(self, condition: Expr) -> None:
        """Rely on a condition over dims that holds whenever the function runs (the branch of an If)."""
        self._assumptions.append(condition)

    def add_fact(self, fact: DimFact) -> None:
        """Promise something about a dim that is bound inside of the function."""
        self._facts.append(fact)

    def given_facts(self) -> dict[Var, DimFact]:
        """What is promised about the dims of the inputs."""
        given = {node for param in self._root().params for node in walk(param.type)}
        return {fact.var: fact for fact in self._facts if fact.var in given}

    def assume_at_least(self, dim: Var, lo: int, message: str) -> None:
        """Rely on a dim of the inputs being so large, in the whole program; it is checked before all else."""
        place = next(k for k, fact in enumerate(self._facts) if fact.var is dim)
        self._facts[place] = replace(self._facts[place], lo=lo)
        self._root().require(Requirement(const(lo) <= dim, message, assumed=True))

    def _root(self) -> GraphBuilder:
        return self if self.parent is None else self.parent._root()

    def know(self, dim: Var) -> None:
        """Dims are never negative: note it for a dim that an operator made up, if nothing is known of it."""
        if dim not in self.known.variables:
            self.add_fact(DimFact(dim))

    def param(self, name: str, type_: Type, span: Span | None = None) -> TensorVar:
        """A new parameter."""
        var = TensorVar(name, type_, span=span)
        self.params.append(var)
        return var

    def call(
        self, op: str, *args: Atom | None, span: Span | None = None, name: str = "", **attrs: AttrValue
    ) -> TensorVar:
        """Bind the single result of operator `op`."""
        return self.call_many(op, *args, span=span, names=(name,), **attrs)[0]

    def call_with(
        self, op: str, args: Sequence[Atom | None], attrs: Iterable[tuple[str, AttrValue]], span: Span | None = None
    ) -> TensorVar:
        """`call` with operands and attributes as a call holds them."""
        return self.call_many(op, *args, span=span, **dict(attrs))[0]  # type: ignore[arg-type]  # no attribute is called span or names

    def call_many(
        self, op: str, *args: Atom | None, span: Span | None = None, names: Sequence[str] = (), **attrs: AttrValue
    ) -> tuple[TensorVar, ...]:
        """Bind all results of operator `op`. ShapeError, with `span`, when the operands do not fit."""
        record = get_op(op)
        attrs = {key: _frozen(value) for key, value in attrs.items()}
        with located(span), inference(self.known) as requirements:
            full = record.attrs(attrs)
            types = record.infer_types([None if arg is None else tensor_type_of(arg) for arg in args], full)
        if requirements:
            self._require_all(requirements, span)
            types = tuple(self._with_equal_dims(type_) for type_ in types)
        given = tuple(attrs.items())
        return self.bind(Call(op, args, given, span=span), types, [name or op for name in names] or (op,), span)

    def bind(
        self, value: Operation, types: Sequence[Type], names: Sequence[str], span: Span | None = None
    ) -> tuple[TensorVar, ...]:
        """Bind an operation with results of these types."""
        labels = [*names, *(f"{names[0]}_{k}" for k in range(len(names), len(types)))]
        targets = tuple(TensorVar(label, type_, span=span) for label, type_ in zip(labels, types, strict=False))
        self.bindings.append(Binding(targets, value, span=span))
        return targets

    def read_dims(self, operand: Atom, names: Sequence[str], span: Span | None = None) -> tuple[Var, ...]:
        """New dims with the values of an integer tensor's elements, known when it runs; an element below 0 stops it."""
        dims = tuple(Var(name) for name in names)
        self.bindings.append(Binding((), ReadDims(operand, dims, span=span), span=span))
        for dim in dims:
            self.add_fact(DimFact(dim))
        return dims

    def require(self, requirement: Requirement) -> None:
        """Check a condition over dims when the function runs; the same condition is kept once."""
        builder: GraphBuilder | None = self
        while builder is not None:
            if any(requirement.condition is old.condition for old in builder.requirements):
                return
            builder = builder.parent
        self.requirements.append(requirement)

    def state(self, rule: Callable[[], object], span: Span | None) -> None:
        """Run what states requirements (`registry.require`), and keep those that are not proven."""
        with located(span), inference(self.known) as requirements:
            rule()
        self._require_all(requirements, span)

    def _require_all(self, requirements: Iterable[Requirement], span: Span | None) -> None:
        place = "" if span is None else f"{span}: "
        for requirement in requirements:
            self.require(Requirement(requirement.condition, place + requirement.message))

    def _with_equal_dims(self, type_: TensorType) -> TensorType:
        """The type with the simpler one of dims that are required to be equal."""
        aliases = self._aliases()
        dims = (substitute(dim, aliases) for dim in type_.shape)
        return TensorType(tuple(simplify(dim, self.known) for dim in dims), type_.dtype)

    def simplest(self, dim: Expr) -> Expr:
        """The simplest expression that is required to be equal to `dim`."""
        return simplify(substitute(dim, self._aliases()), self.known)

    def _aliases(self) -> dict[Expr, Expr]:
        """Dim expressions, and simpler ones that requirements make equal to them."""
        found: dict[Expr, Expr] = {}
        for condition in self._conditions():
            if isinstance(condition, Eq) and condition.lhs.dtype is i64:
                simpler, other = sorted((condition.lhs, condition.rhs), key=lambda e: sum(1 for _ in walk(e)))
                if not isinstance(other, Const):
                    found.setdefault(other, simpler)
        return found

    def mark(self) -> tuple[int, int]:
        """Where the function stands now, for `roll_back`."""
        return len(self.bindings), len(self.requirements)

    def roll_back(self, mark: tuple[int, int]) -> None:
        """Forget what was bound and required since `mark`."""
        del self.bindings[mark[0] :]
        del self.requirements[mark[1] :]

    def const(self, value: Any, dtype: np.dtype | None = None, name: str = "") -> TensorConst:
        """A literal tensor."""
        return TensorConst(np.ascontiguousarray(value, dtype=dtype).reshape(np.shape(value)), name)

    def function(
        self,
        name: str,
        results: Sequence[Atom],
        attrs: tuple[tuple[str, AttrValue], ...] = (),
        span: Span | None = None,
    ) -> Function:
        """The function of everything bound so far."""
        if self.parent is not None and self.requirements:
            checks = carried_requirements(self.requirements)
            attrs = (*attrs, ("requirements", checks))
        return Function(name, tuple(self.params), tuple(self.bindings), tuple(results), self.facts, attrs, span=span)


def carried_requirements(requirements: Iterable[Requirement]) -> tuple[AttrValue, ...]:
    """What a function carries in its attribute "requirements": condition and message, and True after those that are assumed."""
    return tuple((r.condition, r.message, True) if r.assumed else (r.condition, r.message) for r in requirements)


def _frozen(value: Any) -> AttrValue:
    """An attribute as a graph holds it: a list as a tuple."""
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def operand_types(call: Call) -> list[TensorType | None]:
    """The types of a call's operands, which are tensors; None for an optional one that is absent."""
    return cast("list[TensorType | None]", [None if arg is None else arg.type for arg in call.args])


def full_attrs(call: Call) -> Attrs:
    """The attributes of a call with the operator's defaults filled in. Those of users' operators may be others each time."""
    return get_op(call.op).attrs(call.attrs) if is_scoped(call.op) else _own_attrs(call)


@cached_on_node
def _own_attrs(call: Call) -> Attrs:
    return get_op(call.op).attrs(call.attrs)
