"""Bring graph functions to the plain form that later passes rely on.

No tuples are made only to be taken apart, no binding only renames another value, an `If` on a literal is replaced by its branch.
"""

from __future__ import annotations

from tc.ir.graph import Atom, AttrValue, Binding, Function, GetItem, If, TensorConst, TensorVar, Tuple, map_bodies
from tc.ir.module import IRModule
from tc.ir.node import Node, replace, substitute
from tc.passes.manager import graph_pass, map_graph_functions


@graph_pass
def canonicalize(module: IRModule) -> IRModule:
    """Remove aliases, tuples and branches on literals."""
    return map_graph_functions(module, lambda func: _Canonical().function(func))


class _Canonical:
    """`renamed`: variables that stand for another value. `tuples`: variables that are known tuples."""

    def __init__(self) -> None:
        self.renamed: dict[Node, Node] = {}
        self.tuples: dict[Node, tuple[Atom, ...]] = {}
        self.taken_over: list[AttrValue] = []  # requirements of branches that became part of the current function

    def function(self, func: Function) -> Function:
        kept: list[Binding] = []
        outer, self.taken_over = self.taken_over, []
        for binding in func.bindings:
            self._visit(binding, kept)
        taken_over, self.taken_over = self.taken_over, outer
        results = tuple(self._atom(result) for result in func.results)
        same = len(kept) == len(func.bindings) and all(a is b for a, b in zip(kept, func.bindings, strict=True))
        if same and all(a is b for a, b in zip(results, func.results, strict=True)):
            return func
        attrs = _with_requirements(func.attrs, taken_over) if taken_over else func.attrs
        return replace(func, bindings=tuple(kept), results=results, attrs=attrs)

    def _atom(self, atom: Atom) -> Atom:
        return self.renamed.get(atom, atom)  # type: ignore[return-value]

    def _visit(self, old: Binding, kept: list[Binding]) -> None:
        binding = self._rewritten(old)
        value = binding.value
        match value:
            case TensorVar() | TensorConst():
                self.renamed[binding.targets[0]] = self._atom(value)
            case Tuple(fields=fields) if len(binding.targets) == 1:
                self.tuples[binding.targets[0]] = fields
                kept.append(binding)
            case Tuple(fields=fields):
                self.renamed.update(zip(binding.targets, fields, strict=True))
            case GetItem(operand=operand, index=index) if operand in self.tuples:
                self.renamed[binding.targets[0]] = self.tuples[operand][index]
            case If(condition=TensorConst(value=condition)) if condition.size == 1:
                branch = value.then_branch if bool(condition.reshape(())) else value.else_branch
                self.taken_over.extend(_requirements(branch.attrs))
                for inner in branch.bindings:
                    self._visit(inner, kept)
                self.renamed.update(zip(binding.targets, map(self._atom, branch.results), strict=True))
            case _:
                kept.append(binding)

    def _rewritten(self, binding: Binding) -> Binding:
        value = map_bodies(binding.value, self.function)
        if self.renamed:
            value = substitute(value, self.renamed)
        return replace(binding, value=value)


def _requirements(attrs: tuple[tuple[str, AttrValue], ...]) -> tuple[AttrValue, ...]:
    """The conditions to check when a function runs: pairs (condition, message)."""
    found = dict(attrs).get("requirements", ())
    assert isinstance(found, tuple), "requirements are pairs of condition and message"
    return found


def _with_requirements(
    attrs: tuple[tuple[str, AttrValue], ...], more: list[AttrValue]
) -> tuple[tuple[str, AttrValue], ...]:
    others = tuple((name, value) for name, value in attrs if name != "requirements")
    return (*others, ("requirements", (*_requirements(attrs), *more)))
