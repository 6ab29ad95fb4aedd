"""Compute equal things once."""

from __future__ import annotations

from collections.abc import Hashable

from tc.ir.expr import Var
from tc.ir.graph import Atom, Binding, Call, Function, TensorConst, TensorVar, map_bodies, with_atoms
from tc.ir.module import IRModule
from tc.ir.node import Node, replace, substitute
from tc.ir.types import TensorType
from tc.ops.build import full_attrs
from tc.passes.manager import graph_pass, map_graph_functions

_SMALL_BYTES = 1024


@graph_pass
def share_common_subexpressions(module: IRModule) -> IRModule:
    """Replace an operator call by an earlier equal one: same operator, operands and attributes.

    Sizes that only the later call finds are those that the earlier one found. Literals of up to a kilobyte are equal when their
    bytes are; larger ones when they are one object.
    """
    return map_graph_functions(module, _share)


def _share(func: Function) -> Function:
    sharing = _Sharing()
    shared = sharing.function(func, {})
    return substitute(shared, sharing.dims) if sharing.dims else shared


class _Sharing:
    """What has been computed so far, and by which variables; `dims` maps sizes that a later call found to those of the first."""

    def __init__(self) -> None:
        self.renamed: dict[Node, Node] = {}
        self.dims: dict[Node, Node] = {}

    def function(self, func: Function, outer: dict[Hashable, tuple[TensorVar, ...]]) -> Function:
        known = dict(outer)
        kept: list[Binding] = []
        for old in func.bindings:
            binding = self._rename(old, known)
            value = binding.value
            key = _key(value) if isinstance(value, Call) else None
            earlier = known.get(key) if key is not None else None
            if earlier is not None:
                self.renamed.update(zip(binding.targets, earlier, strict=True))
                self._unite_dims(binding.targets, earlier)
                continue
            if key is not None:
                known[key] = binding.targets
            kept.append(binding)
        results = tuple(self.renamed.get(result, result) for result in func.results)
        if len(kept) == len(func.bindings) and all(a is b for a, b in zip(kept, func.bindings, strict=True)):
            return replace(func, results=results) if any(r in self.renamed for r in func.results) else func
        return replace(func, bindings=tuple(kept), results=results)

    def _unite_dims(self, later: tuple[TensorVar, ...], earlier: tuple[TensorVar, ...]) -> None:
        for target, other in zip(later, earlier, strict=True):
            assert isinstance(target.type, TensorType) and isinstance(other.type, TensorType)
            for dim, same in zip(target.type.shape, other.type.shape, strict=True):
                if isinstance(dim, Var) and dim is not same:
                    self.dims[dim] = self.dims.get(same, same)

    def _rename(self, binding: Binding, known: dict[Hashable, tuple[TensorVar, ...]]) -> Binding:
        binding = replace(binding, value=map_bodies(binding.value, lambda body: self.function(body, known)))
        return replace(binding, value=with_atoms(binding.value, self.renamed)) if self.renamed else binding


def _key(call: Call) -> Hashable:
    attrs = tuple(sorted(full_attrs(call).items(), key=lambda item: item[0]))
    return call.op, tuple(_atom_key(arg) for arg in call.args), attrs


def _atom_key(atom: Atom | None) -> Hashable:
    if isinstance(atom, TensorConst) and atom.value.nbytes <= _SMALL_BYTES:
        return atom.value.dtype.str, atom.value.shape, atom.value.tobytes()
    return atom
