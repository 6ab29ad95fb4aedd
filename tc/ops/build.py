"""Build graph functions by calling operators; result types are inferred on the way.

    b = GraphBuilder(facts)
    x = b.param("x", tensor_type((n, 64), f32))
    y = b.call("relu", b.call("matmul", x, w), span=span)
    func = b.function("main", (y,))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tc.errors import Span, located
from tc.ir.arith import Facts
from tc.ir.graph import Atom, Attrs, AttrValue, Binding, Call, Function, Operation, TensorConst, TensorVar
from tc.ir.types import DimFact, TensorType, Type
from tc.ops.registry import Requirement, get_op, inference


class GraphBuilder:
    """Collects the bindings of one function. `parent` is the builder of the enclosing function, for the body of an If or Loop.

    `requirements` collects conditions over dims that must be checked at run time; nested builders share their parent's.
    """

    def __init__(self, facts: tuple[DimFact, ...] = (), parent: GraphBuilder | None = None) -> None:
        self.facts = facts if parent is None else parent.facts
        self.params: list[TensorVar] = []
        self.bindings: list[Binding] = []
        self.requirements: list[Requirement] = [] if parent is None else parent.requirements

    def param(self, name: str, type_: Type, span: Span | None = None) -> TensorVar:
        """A new parameter."""
        var = TensorVar(name, type_, span=span)
        self.params.append(var)
        return var

    def call(self, op: str, *args: Atom | None, span: Span | None = None, name: str = "", **attrs: AttrValue) -> TensorVar:
        """Bind the single result of operator `op`."""
        return self.call_many(op, *args, span=span, names=(name,), **attrs)[0]

    def call_many(
        self, op: str, *args: Atom | None, span: Span | None = None, names: Sequence[str] = (), **attrs: AttrValue
    ) -> tuple[TensorVar, ...]:
        """Bind all results of operator `op`. ShapeError, with `span`, when the operands do not fit."""
        record = get_op(op)
        with located(span), inference(Facts.of(self.facts)) as requirements:
            full = record.attrs(attrs)
            types = record.infer_types([None if arg is None else _tensor_type(arg) for arg in args], full)
        self.requirements.extend(requirements)
        given = tuple((key, value) for key, value in attrs.items())
        return self.bind(Call(op, args, given, span=span), types, [name or op for name in names] or (op,), span)

    def bind(
        self, value: Operation, types: Sequence[Type], names: Sequence[str], span: Span | None = None
    ) -> tuple[TensorVar, ...]:
        """Bind an operation with results of these types."""
        labels = [*names, *(f"{names[0]}_{k}" for k in range(len(names), len(types)))]
        targets = tuple(TensorVar(label, type_, span=span) for label, type_ in zip(labels, types, strict=False))
        self.bindings.append(Binding(targets, value, span=span))
        return targets

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
        return Function(name, tuple(self.params), tuple(self.bindings), tuple(results), self.facts, attrs, span=span)


def _tensor_type(atom: Atom) -> TensorType:
    assert isinstance(atom.type, TensorType), f"{atom!r} is not a tensor"
    return atom.type


def full_attrs(call: Call) -> Attrs:
    """The attributes of a call with the operator's defaults filled in."""
    return get_op(call.op).attrs(call.attrs)
