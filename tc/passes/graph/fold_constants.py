"""Compute at compile time what depends on literals alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tc.ir.arith import Facts
from tc.ir.expr import Const, Expr
from tc.ir.graph import (
    Attrs,
    AttrValue,
    Binding,
    Call,
    Function,
    TensorConst,
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
from tc.ops.folding import FoldBudget
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
    (`FoldBudget`). A call whose attributes are symbolic is kept; so is one that widens a large literal that only matrix products read,
    as it is or transposed: their kernels widen a tile at a time, and memory holds the narrow one. With `keep_quantized` literals stay
    quantized, whoever reads them.
    """
    budget = FoldBudget.for_model(_held_bytes(module), max_bytes=max_bytes, growth=growth, max_seconds=max_seconds)
    folding = _Folding(budget, frozenset({"dequantize_linear"} if keep_quantized else ()))
    return map_graph_functions(module, lambda func: _fold_function(func, folding, {}))


@dataclass(frozen=True)
class _Folding:
    """What is left to spend, and the operators whose calls stay."""

    budget: FoldBudget
    kept: frozenset[str]


def _held_bytes(module: IRModule) -> int:
    """The bytes of the module's literals."""
    atoms = (atom for func in module.graph_functions for b in all_bindings(func) for atom in atoms_of(b.value))
    return sum({id(atom.value): atom.value.nbytes for atom in atoms if isinstance(atom, TensorConst)}.values())


def _fold_function(func: Function, folding: _Folding, known: dict[Node, Node]) -> Function:
    kept: list[Binding] = []
    changed = False
    uses = uses_of(func)
    for old in func.bindings:
        binding = _fold_bodies(old, folding, known)
        if known and not _has_bodies(binding):
            binding = replace(binding, value=with_atoms(binding.value, known))
        changed = changed or binding is not old
        results = None if _is_kept(binding, folding, uses) else _evaluate(binding, folding.budget, func)
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


def _evaluate(binding: Binding, budget: FoldBudget, func: Function) -> list[TensorConst] | None:
    call = binding.value
    if not isinstance(call, Call) or not all(arg is None or isinstance(arg, TensorConst) for arg in call.args):
        return None
    attrs = _literal_attrs(full_attrs(call))
    types = [target.type for target in binding.targets]
    if attrs is None or not all(isinstance(type_, TensorType) for type_ in types):
        return None
    arrays = [arg.value if isinstance(arg, TensorConst) else None for arg in call.args]
    op, first = get_op(call.op), arrays[0] if arrays else None
    if op.turned is not None and first is not None and first.nbytes >= LARGE_BYTES:  # whoever needs it in order packs it anyway
        return [TensorConst(op.turned(first, attrs), binding.targets[0].name, span=binding.span)]
    with inference(Facts.of(func.facts)):
        results = budget.evaluate(op, arrays, attrs, types)  # type: ignore[arg-type]
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
