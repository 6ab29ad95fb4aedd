"""The graph IR: typed, functional, in A-normal form.

A `Function` is a flat tuple of bindings. The right-hand side of a binding is one operation over *atoms* (variables and
constants), so nesting is as deep as the control flow, never as the model. Bodies of `If` and `Loop` are functions that may use
variables of the enclosing functions.

Effects: everything is pure except `CallExtern` with `effect=True`, and those keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

import numpy as np

from tc.errors import Span
from tc.ir import dtype as dtypes
from tc.ir.cached import cached_property
from tc.ir.expr import Expr, Var, const
from tc.ir.node import Located, Node, replace
from tc.ir.types import DimFact, FunctionType, TensorType, Type

AttrValue = Union[None, bool, int, float, str, dtypes.DType, Expr, "tuple[AttrValue, ...]"]


class Attrs(Mapping[str, AttrValue]):
    """Read-only view of an attribute tuple, by name: `attrs["axis"]`, `attrs.axis`."""

    def __init__(self, items: tuple[tuple[str, AttrValue], ...]) -> None:
        self._items = dict(items)

    def __getitem__(self, name: str) -> AttrValue:
        return self._items[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._items[name]
        except KeyError:
            raise AttributeError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


@dataclass(frozen=True, eq=False)
class TensorVar(Located):
    """A binder of the graph and its uses. `type` is a tensor, tuple or function type."""

    name: str
    type: Type

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True, eq=False)
class TensorConst(Located):
    """A literal tensor. `value` (read-only by convention, possibly memory-mapped, its axes in any order) has the type's dtype and shape."""

    value: np.ndarray
    name: str = ""

    @cached_property
    def type(self) -> TensorType:
        return TensorType(tuple(const(dim) for dim in self.value.shape), dtypes.from_numpy(self.value.dtype))


@dataclass(frozen=True, eq=False)
class GlobalRef(Located):
    """A function of the module, by name, as a value or as a callee."""

    name: str
    type: FunctionType


Atom = Union[TensorVar, TensorConst, GlobalRef]


def tensor_type_of(atom: Atom) -> TensorType:
    """The type of a value that is a tensor."""
    assert isinstance(atom.type, TensorType), f"{atom!r} is not a tensor"
    return atom.type


@dataclass(frozen=True, eq=False)
class Call(Located):
    """The operator `op` of the registry on `args`. An absent optional operand is None. Result type: the op's `infer`."""

    op: str
    args: tuple[Atom | None, ...]
    attrs: tuple[tuple[str, AttrValue], ...] = ()


@dataclass(frozen=True, eq=False)
class CallFunction(Located):
    """A call of a graph function: a `GlobalRef`, or a variable of function type."""

    callee: Atom
    args: tuple[Atom, ...]


@dataclass(frozen=True, eq=False)
class CallTir(Located):
    """A call of the loop-level PrimFunc `callee` of the same module, in destination-passing style.

    The PrimFunc takes the buffers of `args`, then those of the results, then the scalars `dims`. `result_types` are the types
    of the results. `origins`: the nodes whose operators the PrimFunc computes, for a PrimFunc that checks indices: a check says by a
    number which one asks for it.
    """

    callee: str
    args: tuple[Atom, ...]
    dims: tuple[Expr, ...]
    result_types: tuple[TensorType, ...]
    origins: tuple[Span | None, ...] = field(default=(), compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, eq=False)
class CallExtern(Located):
    """A call out of the compiler: a C symbol ("c:name") or a registered Python function ("py:name").

    A C symbol has the PrimFunc calling convention: data pointers of args and results, then the i64 `dims`.
    """

    symbol: str
    args: tuple[Atom, ...]
    dims: tuple[Expr, ...]
    result_types: tuple[TensorType, ...]
    attrs: tuple[tuple[str, AttrValue], ...] = ()
    effect: bool = False


@dataclass(frozen=True, eq=False)
class Tuple(Located):
    """Makes a tuple."""

    fields: tuple[Atom, ...]


@dataclass(frozen=True, eq=False)
class GetItem(Located):
    """Field `index` of a tuple."""

    operand: Atom
    index: int


@dataclass(frozen=True, eq=False)
class If(Located):
    """`then_branch()` when the bool scalar `condition` holds, else `else_branch()`; both take nothing and return alike.

    A dim of a result that nothing around it binds is the size that the branch's result has.
    """

    condition: Atom
    then_branch: Function
    else_branch: Function


@dataclass(frozen=True, eq=False)
class Loop(Located):
    """Run `body` at most `trip_count` times (a dim expression, or None: until the condition fails) while `condition` holds.

    body(i: i64[], carried...) -> (condition: bool[], carried..., scanned...). `condition` is the bool scalar before the first
    iteration. Results: the last carried values (the `init` ones when there is no iteration), then each scanned value of every
    iteration stacked along a new first axis. A dim of a carried parameter that nothing around the loop binds is the size that the value
    has in an iteration, and may change with each; the result's dim in its place is another one, bound when the loop has run.
    Source: ONNX `Loop`.
    """

    trip_count: Expr | None
    condition: Atom
    init: tuple[Atom, ...]
    body: Function


@dataclass(frozen=True, eq=False)
class ReadDims(Located):
    """Bind symbolic dims to the elements of an integer tensor, at run time: `n, m = read_dims(t)`; checked to be >= 0.

    The variables are `Var`s in `dims`; they are in scope below. This is how shapes that depend on data enter types.
    """

    operand: Atom
    dims: tuple[Var, ...]


Operation = Union[Call, CallFunction, CallTir, CallExtern, Tuple, GetItem, If, Loop, ReadDims, TensorVar, TensorConst, GlobalRef]
OperationT = TypeVar("OperationT", bound=Operation)


@dataclass(frozen=True, eq=False)
class Binding(Located):
    """`targets = value`. Several targets take a multi-result operation apart; `ReadDims` has none."""

    targets: tuple[TensorVar, ...]
    value: Operation


@dataclass(frozen=True, eq=False)
class Function(Located):
    """A graph function: run the bindings in order, return `results`.

    Symbolic dims that occur in the parameter types as a plain variable are bound by the arguments' shapes; every other occurrence
    is an equation that the arguments must satisfy. `facts` hold promises about dims. `attrs`: notes of any kind.
    """

    name: str
    params: tuple[TensorVar, ...]
    bindings: tuple[Binding, ...]
    results: tuple[Atom, ...]
    facts: tuple[DimFact, ...] = ()
    attrs: tuple[tuple[str, AttrValue], ...] = ()

    @property
    def type(self) -> FunctionType:
        return FunctionType(tuple(p.type for p in self.params), tuple(r.type for r in self.results))


def atoms_of(value: Operation) -> tuple[Atom, ...]:
    """The variables and constants an operation uses directly; those inside the bodies of If and Loop are not included."""
    match value:
        case Call(args=args):
            return tuple([arg for arg in args if arg is not None]) if None in args else args  # type: ignore[return-value]
        case TensorVar() | TensorConst() | GlobalRef():
            return (value,)
        case CallTir(args=args) | CallExtern(args=args):
            return args
        case CallFunction(callee=callee, args=args):
            return (callee, *args)
        case Tuple(fields=fields):
            return fields
        case GetItem(operand=operand) | ReadDims(operand=operand):
            return (operand,)
        case If(condition=condition):
            return (condition,)
        case Loop(condition=condition, init=init):
            return (condition, *init)
    raise AssertionError(f"unknown operation {type(value).__name__}")


def with_atoms(value: Operation, others: Mapping[Any, Any]) -> Operation:
    """An operation with others in place of the atoms that it uses directly; the same object where it uses none of them."""
    match value:
        case Call(args=args) | CallTir(args=args) | CallExtern(args=args):
            return replace(value, args=_exchanged(args, others))
        case TensorVar() | TensorConst() | GlobalRef():
            return others.get(value, value)  # type: ignore[no-any-return]
        case CallFunction(callee=callee, args=args):
            return replace(value, callee=others.get(callee, callee), args=_exchanged(args, others))
        case Tuple(fields=fields):
            return replace(value, fields=_exchanged(fields, others))
        case GetItem(operand=operand) | ReadDims(operand=operand):
            return replace(value, operand=others.get(operand, operand))
        case If(condition=condition):
            return replace(value, condition=others.get(condition, condition))
        case Loop(condition=condition, init=init):
            return replace(value, condition=others.get(condition, condition), init=_exchanged(init, others))
    raise AssertionError(f"unknown operation {type(value).__name__}")


def _exchanged(atoms: tuple[Any, ...], others: Mapping[Any, Any]) -> tuple[Any, ...]:
    return atoms if others.keys().isdisjoint(atoms) else tuple([others.get(atom, atom) for atom in atoms])


def bodies_of(value: Operation) -> tuple[Function, ...]:
    """The nested functions of an operation."""
    match value:
        case If(then_branch=then_branch, else_branch=else_branch):
            return then_branch, else_branch
        case Loop(body=body):
            return (body,)
    return ()


def atoms_read(value: Operation) -> Iterator[Atom]:
    """The variables and constants an operation uses, and those that the bodies in it take from around them."""
    yield from atoms_of(value)
    for body in bodies_of(value):
        yield from free_vars(body)


def constants_of(func: Function) -> tuple[TensorConst, ...]:
    """The literal tensors that a function and the bodies in it use, each once, in the order of their first uses."""
    found: dict[TensorConst, None] = {}
    for binding in func.bindings:
        found |= dict.fromkeys(atom for atom in atoms_of(binding.value) if isinstance(atom, TensorConst))
        for body in bodies_of(binding.value):
            found |= dict.fromkeys(constants_of(body))
    return tuple(found | dict.fromkeys(result for result in func.results if isinstance(result, TensorConst)))


def map_bodies(value: OperationT, visit: Callable[[Function], Function]) -> OperationT:
    """An operation with its nested functions replaced by what `visit` makes of them; the same object when nothing changes."""
    match value:
        case If(then_branch=then_branch, else_branch=else_branch):
            return replace(value, then_branch=visit(then_branch), else_branch=visit(else_branch))
        case Loop(body=body):
            return replace(value, body=visit(body))
    return value


def all_bindings(func: Function) -> Iterator[Binding]:
    """The bindings of a function and of those nested in it, each before what is nested in it."""
    for binding in func.bindings:
        yield binding
        for body in bodies_of(binding.value):
            yield from all_bindings(body)


def tir_calls(func: Function) -> Iterator[tuple[TensorVar, CallTir]]:
    """The calls of PrimFuncs in a function and those nested in it, each with its first target."""
    return ((binding.targets[0], binding.value) for binding in all_bindings(func) if isinstance(binding.value, CallTir))


def free_vars(func: Function) -> list[TensorVar]:
    """Variables that `func` uses and does not bind, in order of first use (captured from enclosing functions)."""
    bound: set[TensorVar] = set(func.params)
    found: dict[TensorVar, None] = {}

    def use(atom: Node) -> None:
        if isinstance(atom, TensorVar) and atom not in bound:
            found.setdefault(atom)

    for binding in func.bindings:
        for atom in atoms_of(binding.value):
            use(atom)
        for body in bodies_of(binding.value):
            for var in free_vars(body):
                use(var)
        bound.update(binding.targets)
    for result in func.results:
        use(result)
    return list(found)
