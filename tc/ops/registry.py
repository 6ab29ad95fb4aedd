"""The record that defines an operator, and the table of all of them.

Everything the compiler knows about an operator is in its `OpDef`: its type rule over symbolic shapes, its meaning in numpy, its
meaning as loops. How it fuses is not stated: it is inferred from the loops.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np

from tc.errors import ShapeError, UnsupportedError, UserError
from tc.ir.arith import Facts, prove
from tc.ir.expr import Expr
from tc.ir.graph import Atom, Attrs, AttrValue
from tc.ir.types import TensorType
from tc.te import Tensor, narrowed_result

Infer = Callable[[Sequence["TensorType | None"], Attrs], "TensorType | tuple[TensorType, ...]"]
Reference = Callable[[Sequence["np.ndarray | None"], Attrs], Any]
Compute = Callable[[Sequence["Tensor | None"], Attrs, Sequence[TensorType]], "Tensor | tuple[Tensor, ...]"]


AxisKeys = Sequence["Sequence[object] | None"]


class Form(Enum):
    """How an operand of the blocked form of an operator is made from the plain one.

    PLAIN: as it is. CHANNELS: axis 1 is cut into blocks. FEW: it is one block, of FEW_CHANNELS. ROWS: the same, and a pixel has all that a
    row of the kernel reads for it. OUTPUTS: axis 0 is cut. WEIGHTS: axis 1, then axis 0. GROUPED: the same, but in a block of axis 1 the
    terms that an instruction adds up at once lie side by side, behind axis 0.
    BROADCAST: axis 1 of the result's rank, where the operand has it; a one is appended otherwise. In every case blocks become last axes.
    """

    PLAIN = "plain"
    CHANNELS = "channels"
    FEW = "few"
    ROWS = "rows"
    OUTPUTS = "outputs"
    WEIGHTS = "weights"
    GROUPED = "grouped"
    BROADCAST = "broadcast"


@dataclass(frozen=True)
class RowForm:
    """What the form ROWS is made by: so many pixels of `fill` before and after, for each axis of the image; then `row_windows`."""

    around: tuple[tuple[int, int], ...]
    fill: float
    kernel: int
    stride: int
    dilation: int
    channels: int


@dataclass(frozen=True)
class BlockedForm:
    """The call that computes the same result with axis 1 cut into blocks: operator, attributes, how it takes each operand.

    `as_words`: the first two operands are widened to i16, for instructions that add two such products at once. `rows`: of the
    first operand, if it has the form ROWS. `groups`: those of a convolution, several of which are one of the form's: in its weights what
    is between groups is zero. 0 where each is one of the form's.
    """

    op: str
    attrs: tuple[tuple[str, AttrValue], ...]
    operands: tuple[Form, ...]
    as_words: bool = False
    rows: RowForm | None = None
    groups: int = 0


@dataclass(frozen=True)
class OpDef:
    """An operator.

    infer(types, attrs): the result types; an absent optional operand is None. Raises ShapeError for operands that do not fit;
        facts that can be neither proven nor refuted go to `require`.
    reference(arrays, attrs): the results in numpy, in the stated dtypes. Attributes that are dims come as ints.
    compute(tensors, attrs, types): the results as tensor expressions; `types` are the inferred result types. None when the
        operator has no loops: it then runs as a call of `reference`.
    defaults: attributes and their default values; every attribute of the operator is listed. REQUIRED marks one without default.
    cheap: recomputing the result in each consumer costs less than storing it (constants, index arithmetic).
    view: the one result is the memory of the first operand under another shape (reshape, squeeze, flatten).
    turned(array, attrs): the one result as a view of the first operand, whose axes are in another order.
    part(types, attrs): where in the memory of the first operand the one result begins, in elements, if it is there as it is.
    joins(types, attrs): whether the one result is the memory of the operands, one after the other.
    blocked(types, attrs, block): the layout rule: how the operator runs on tensors [n, c, *space] whose channels are cut into
        blocks of `block`, [n, ceil(c / block), *space, block]; None when it cannot. Lanes past c are unspecified.
    aligned(types, attrs): for operators that broadcast: for each operand the key of every axis; axes of one key broadcast with each
        other, None stands for an axis that does not.
    rounds: whether rounding to the result's dtype is what the operator is for, rather than how its result is stored.
    periodic: a function of what is left of its operand after whole periods: to round a large one changes it wholly.
    factors: how many of the first operands are multiplied with each other, for operators that sum such products; -1: all operands.
    depth: the axes of two factors along which products are added up where both are as long, such as the columns of one matrix and the rows
        of the other; None where there are no such axes.
    data(operands, attrs): places of operands whose numbers decide nothing about the code: kernels take constants there as parameters, so
        that those that differ in nothing else are one.
    is_interpreted: whether `reference` runs the loops in an interpreter, so that folding much of it would take long.
    apart: whether its kernel is its own: it is fused with no other operator.
    imported_as: "module:function", where `reference` is a function of a user that another process can import.
    samples(rng): for tests: (arrays, attrs) pairs that cover the corners; one at least.
    """

    name: str
    infer: Infer
    reference: Reference
    compute: Compute | None = None
    defaults: dict[str, AttrValue] = field(default_factory=dict)
    cheap: bool = False
    view: bool = False
    turned: Callable[[np.ndarray, Attrs], np.ndarray] | None = None
    part: Callable[[Sequence[TensorType | None], Attrs], Expr | None] | None = None
    joins: Callable[[Sequence[TensorType | None], Attrs], bool] | None = None
    blocked: Callable[[Sequence[TensorType | None], Attrs, int], BlockedForm | None] | None = None
    aligned: Callable[[Sequence[TensorType | None], Attrs], AxisKeys] | None = None
    rounds: bool = False
    periodic: bool = False
    factors: int = 0
    depth: tuple[int, int] | None = None
    data: Callable[[Sequence[Atom | None], Attrs], tuple[int, ...]] | None = None
    is_interpreted: bool = False
    apart: bool = False
    imported_as: str | None = None
    samples: Callable[[np.random.Generator], Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]] = field(kw_only=True)

    def attrs(self, given: dict[str, AttrValue] | tuple[tuple[str, AttrValue], ...]) -> Attrs:
        """The given attributes with the defaults filled in; ShapeError for one that is unknown or missing."""
        values = dict(given)
        for name in values:
            if name not in self.defaults:
                raise ShapeError(f"{self.name}: no attribute {name!r}; known: {', '.join(self.defaults) or 'none'}")
        merged = {**self.defaults, **values}
        missing = [name for name, value in merged.items() if value is REQUIRED]
        if missing:
            raise ShapeError(f"{self.name}: attribute {missing[0]!r} is required")
        return Attrs(tuple(merged.items()))

    def infer_types(self, types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
        """`infer`, always as a tuple."""
        result = self.infer(types, attrs)
        return result if isinstance(result, tuple) else (result,)

    def run_reference(self, arrays: Sequence[np.ndarray | None], attrs: Attrs) -> tuple[np.ndarray, ...]:
        """`reference`, always as a tuple of arrays."""
        result = self.reference(arrays, attrs)
        return tuple(np.asarray(r) for r in (result if isinstance(result, tuple) else (result,)))

    def compute_tensors(
        self, tensors: Sequence[Tensor | None], attrs: Attrs, types: Sequence[TensorType]
    ) -> tuple[Tensor, ...]:
        """`compute`, always as a tuple."""
        if self.compute is None:
            raise UnsupportedError(f"{self.name} has no loop definition", code="TC1010")
        result = self.compute(tensors, attrs, types)
        if isinstance(result, tuple):
            return result
        return (result if self.rounds else narrowed_result(result),)


REQUIRED: Any = object()
OPS: dict[str, OpDef] = {}


def register(op: OpDef) -> OpDef:
    """Add an operator to the table; its name must be new."""
    assert op.name not in OPS, f"operator {op.name} is registered twice"
    OPS[op.name] = op
    return op


_scoped: Mapping[str, OpDef] = MappingProxyType({})  # replaced as a whole and never changed, so that who reads it sees one state
_scoped_lock = threading.Lock()


def _after_fork_in_child() -> None:
    """The lock may have been held by a thread that does not exist in the child."""
    global _scoped_lock
    _scoped_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

_SEEN: ContextVar[Mapping[str, OpDef] | None] = ContextVar("operators", default=None)


def scoped_ops() -> Mapping[str, OpDef]:
    """The operators of users, by names such as "my.domain::MyOp": those of now, or those that `seeing` says."""
    seen = _SEEN.get()
    return _scoped if seen is None else seen


@contextmanager
def seeing(ops: Mapping[str, OpDef]) -> Iterator[None]:
    """Inside, users' operators are these, whatever is registered or removed meanwhile."""
    token = _SEEN.set(ops)
    try:
        yield
    finally:
        _SEEN.reset(token)


def register_scoped(op: OpDef) -> None:
    """Add a user's operator. UserError when its name is taken."""
    global _scoped
    with _scoped_lock:
        if op.name in _scoped:
            raise UserError(f"{op.name}: an operator of this name is registered already")
        _scoped = MappingProxyType({**_scoped, op.name: op})


def unregister_scoped(name: str) -> None:
    """Take a user's operator away. UserError when there is none."""
    global _scoped
    with _scoped_lock:
        if name not in _scoped:
            raise UserError(f"{name}: no operator of this name is registered")
        _scoped = MappingProxyType({key: op for key, op in _scoped.items() if key != name})


def is_scoped(name: str) -> bool:
    """Whether this is a name as users' operators have them."""
    return "::" in name


def get_op(name: str) -> OpDef:
    """The operator called `name`; UnsupportedError when there is none."""
    found = OPS.get(name) or scoped_ops().get(name)
    if found is None:
        raise UnsupportedError(f"there is no operator {name!r}", code="TC1010")
    return found


@dataclass(frozen=True)
class Requirement:
    """A condition over dims that must hold at run time, and the words to use when it does not.

    `assumed`: it need not hold for the model, only for a program that was made under it; where it fails another program runs.
    """

    condition: Expr
    message: str
    assumed: bool = False


@dataclass
class _Context:
    facts: Facts
    requirements: list[Requirement]


_CONTEXT: ContextVar[_Context | None] = ContextVar("inference", default=None)


class _Inference:
    """See `inference`."""

    __slots__ = ("_context", "_token")

    def __init__(self, facts: Facts) -> None:
        self._context = _Context(facts, [])

    def __enter__(self) -> list[Requirement]:
        self._token = _CONTEXT.set(self._context)
        return self._context.requirements

    def __exit__(self, *_: object) -> None:
        _CONTEXT.reset(self._token)


def inference(facts: Facts) -> _Inference:
    """Infer types under `facts`; entering it gives the list that collects what must be checked at run time."""
    return _Inference(facts)


def current_facts() -> Facts:
    """The facts that type rules may rely on."""
    context = _CONTEXT.get()
    return context.facts if context is not None else Facts()


def require(condition: Expr, message: str) -> None:
    """State that `condition` must hold: nothing if it is proven, ShapeError if it is refuted, else a check at run time."""
    context = _CONTEXT.get()
    known = prove(condition, context.facts if context is not None else Facts())
    if known is False:
        raise ShapeError(message)
    if known is None and context is not None:
        context.requirements.append(Requirement(condition, message))


PythonFunction = Callable[[Sequence["np.ndarray | None"], Attrs], "tuple[np.ndarray, ...]"]
PYTHON_FUNCTIONS: dict[str, PythonFunction] = {}
"""What `CallExtern("py:name")` calls: fn(arrays, attrs) -> results, in the types that the call states."""


def register_python_function(name: str, function: PythonFunction) -> None:
    """Let graphs call `function` as "py:name"; the name must be new."""
    assert name not in PYTHON_FUNCTIONS, f"Python function {name} is registered twice"
    PYTHON_FUNCTIONS[name] = function
