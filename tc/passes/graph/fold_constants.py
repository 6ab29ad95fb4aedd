"""Compute at compile time what depends on literals alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tc.errors import InputError
from tc.ir.arith import Facts
from tc.ir.expr import Const, Expr
from tc.ir.graph import (
    Atom,
    Attrs,
    AttrValue,
    Binding,
    Call,
    Function,
    TensorConst,
    TensorVar,
    all_bindings,
    atoms_of,
    bodies_of,
    map_bodies,
    with_atoms,
)
from tc.ir.module import IRModule
from tc.ir.node import Node, replace
from tc.ir.types import TensorType
from tc.ops.arrays import LARGE_BYTES
from tc.ops.build import full_attrs
from tc.ops.folding import FLOOR_BYTES, FoldBudget
from tc.ops.registry import get_op, inference
from tc.passes.graph.narrow_literals import Uses, uses_of, widens_operand
from tc.passes.manager import graph_pass, map_graph_functions


@graph_pass
def fold_constants(
    module: IRModule, *, max_bytes: int = 256 << 20, growth: int = 4, max_seconds: float = 10.0, keep_quantized: bool = False
) -> IRModule:
    """Replace operator calls on literals by their results, computed by the operators' references.

    A result may be at most `growth` times as large as the operands, or 64 KiB; all results together at most `growth` times the
    module's literals, or 16 MiB, and at most `max_bytes`. No new evaluation starts after `max_seconds`, and none of more than seconds
    (`FoldBudget`). What is too large is computed at run time, but what is made of it may be small again, as what an expanded index
    gathers is: what it is measured by are the literals that all is made of. A call whose attributes are symbolic is kept; so is one
    that widens a large literal that only matrix products read, as it is or transposed: their kernels widen a tile at a time, and memory
    holds the narrow one. With `keep_quantized` literals stay quantized, whoever reads them.
    """
    budget = FoldBudget.for_model(_held_bytes(module), max_bytes=max_bytes, growth=growth, max_seconds=max_seconds)
    folding = _Folding(budget, frozenset({"dequantize_linear"} if keep_quantized else ()))
    return map_graph_functions(module, lambda func: _fold_function(func, folding, {}))


MOST_STEPS = 12
"""So many calls on the way from literals to one whose result is kept are computed for it."""


@dataclass(frozen=True)
class _TooLarge:
    """A call on literals whose result is none: how many bytes these have, and how many calls there are from them to it."""

    binding: Binding
    given: int
    steps: int


@dataclass(frozen=True)
class _Folding:
    """What is left to spend, the operators whose calls stay, and what of literals is too large to be one, with its numbers while they
    are needed."""

    budget: FoldBudget
    kept: frozenset[str]
    too_large: dict[Node, _TooLarge] = field(default_factory=dict)
    arrays: dict[Node, np.ndarray] = field(default_factory=dict)

    def is_known(self, atom: Atom | None) -> bool:
        """Whether what an operand is depends on literals alone."""
        return atom is None or isinstance(atom, TensorConst) or atom in self.too_large

    def given(self, call: Call) -> int:
        """The bytes of the literals that operands are made of; of those that are too large, of one."""
        literals = {arg: arg.value.nbytes for arg in call.args if isinstance(arg, TensorConst)}
        return sum(literals.values()) + max((large.given for large in self._large(call)), default=0)

    def _large(self, call: Call) -> list[_TooLarge]:
        return [self.too_large[arg] for arg in call.args if arg is not None and arg in self.too_large]

    def leave(self, binding: Binding, call: Call) -> None:
        """Note that results of a call on literals are no literals."""
        steps = 1 + max((large.steps for large in self._large(call)), default=0)
        if steps <= MOST_STEPS:
            self.too_large.update(dict.fromkeys(binding.targets, _TooLarge(binding, self.given(call), steps)))

    def operands(self, call: Call) -> list[np.ndarray | None] | None:
        """The numbers of a call's operands; None where they are too many to be computed."""
        found: list[np.ndarray | None] = []
        for arg in call.args:
            if isinstance(arg, TensorVar) and arg not in self.arrays and not self._compute(self.too_large[arg].binding):
                return None
            found.append(self.arrays[arg] if isinstance(arg, TensorVar) else arg.value if isinstance(arg, TensorConst) else None)
        return found

    def _compute(self, binding: Binding) -> bool:
        call = _call_of(binding)
        attrs, operands = _literal_attrs(full_attrs(call)), self.operands(call)
        if attrs is None or operands is None:
            return False
        most_bytes = FLOOR_BYTES - sum(array.nbytes for array in self.arrays.values())
        results = self.budget.evaluate_between(get_op(call.op), operands, attrs, _types(binding), most_bytes)
        self.arrays.update(zip(binding.targets, results or (), strict=False))
        return results is not None


def _call_of(binding: Binding) -> Call:
    assert isinstance(binding.value, Call)
    return binding.value


def _types(binding: Binding) -> list[TensorType]:
    types = [target.type for target in binding.targets]
    assert all(isinstance(type_, TensorType) for type_ in types)
    return types  # type: ignore[return-value]


def _held_bytes(module: IRModule) -> int:
    """The bytes of the module's literals."""
    atoms = (atom for func in module.graph_functions for b in all_bindings(func) for atom in atoms_of(b.value))
    return sum({id(atom.value): atom.value.nbytes for atom in atoms if isinstance(atom, TensorConst)}.values())


def _fold_function(func: Function, folding: _Folding, known: dict[Node, Node]) -> Function:
    kept: list[Binding] = []
    changed = False
    uses: Uses | None = None  # asked for few bindings, but of all
    for old in func.bindings:
        binding = old if isinstance(old.value, Call) else _fold_bodies(old, folding, known)
        is_read = known and not (isinstance(old.value, Call) and known.keys().isdisjoint(old.value.args))
        if is_read and not _has_bodies(binding):
            binding = replace(binding, value=with_atoms(binding.value, known))
        changed = changed or binding is not old
        results = None
        if isinstance(binding.value, Call) and all(map(folding.is_known, binding.value.args)):
            uses = uses_of(func) if uses is None else uses
            results = None if _is_kept(binding, folding, uses) else _evaluate(binding, binding.value, folding, func)
        if results is None:
            kept.append(binding)
            continue
        changed = True
        known.update(zip(binding.targets, results, strict=True))
    results_now = tuple(known.get(result, result) for result in func.results)
    if not changed and all(a is b for a, b in zip(results_now, func.results, strict=True)):
        return func
    return replace(func, bindings=tuple(kept), results=results_now)


def _is_kept(binding: Binding, folding: _Folding, uses: Uses) -> bool:
    call = binding.value
    if not any(target in uses for target in binding.targets):  # what nothing reads is on its way out
        return True
    return (isinstance(call, Call) and call.op in folding.kept) or widens_operand(binding, uses)


def _has_bodies(binding: Binding) -> bool:
    return bool(bodies_of(binding.value))


def _fold_bodies(binding: Binding, folding: _Folding, known: dict[Node, Node]) -> Binding:
    if not _has_bodies(binding):
        return binding
    folded = map_bodies(binding.value, lambda body: _fold_function(body, folding, known))
    plain = {
        name: known[value]
        for name in ("condition",)
        if (value := getattr(binding.value, name, None)) in known
    }
    if hasattr(binding.value, "init"):
        plain["init"] = tuple(known.get(atom, atom) for atom in binding.value.init)  # type: ignore[assignment]
    return replace(binding, value=replace(folded, **plain))


def _evaluate(binding: Binding, call: Call, folding: _Folding, func: Function) -> list[TensorConst] | None:
    attrs = _literal_attrs(full_attrs(call))
    if attrs is None or not all(isinstance(target.type, TensorType) for target in binding.targets):
        return None
    op, first = get_op(call.op), call.args[0] if call.args else None
    if op.turned is not None and isinstance(first, TensorConst) and first.value.nbytes >= LARGE_BYTES:  # in order it is packed anyway
        return [TensorConst(op.turned(first.value, attrs), binding.targets[0].name, span=binding.span)]
    given, types = folding.given(call), _types(binding)
    if not folding.budget.keeps(types, given):
        folding.leave(binding, call)
        return None
    try:
        with inference(Facts.of(func.facts)):
            arrays = folding.operands(call)
            results = None if arrays is None else folding.budget.evaluate(op, arrays, attrs, types, given)
    except InputError:  # such as an index out of range: nothing is wrong before it runs, in a branch that may never do
        results = None
    folding.arrays.clear()
    if results is None:
        return None
    return [
        TensorConst(np.ascontiguousarray(r).reshape(r.shape), target.name, span=binding.span)
        for r, target in zip(results, binding.targets, strict=True)
    ]


def _literal_attrs(attrs: Attrs) -> Attrs | None:
    """The attributes with constant expressions as Python numbers; None when one is symbolic."""

    def literal(value: AttrValue) -> AttrValue:
        if isinstance(value, tuple):
            return tuple(literal(item) for item in value)
        if isinstance(value, Const):
            return value.value
        if isinstance(value, Expr):
            raise _Symbolic
        return value

    try:
        return Attrs(tuple((name, literal(value)) for name, value in attrs.items()))
    except _Symbolic:
        return None


class _Symbolic(Exception):
    """An attribute depends on a dim."""
