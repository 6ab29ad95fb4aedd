"""Indices that are literals are looked at once, when the model is compiled."""

from __future__ import annotations

import numpy as np

from tc.errors import InputError, NodeError
from tc.ir.expr import Const
from tc.ir.graph import Attrs, Call, Function, TensorConst, map_bodies
from tc.ir.module import IRModule
from tc.ir.node import replace
from tc.ir.types import TensorType
from tc.ops.build import full_attrs
from tc.ops.index import check_places
from tc.passes.manager import graph_pass, map_graph_functions

_LOOK_UPS = frozenset(("gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd"))


@graph_pass
def prove_indices(module: IRModule) -> IRModule:
    """Mark gathers and scatters whose indices are literals, within sizes that are known, as in range: they need no check when they run.

    ModelError, naming the node, for a literal that is out of range.
    """
    return map_graph_functions(module, lambda func: _proved(func, runs_always=func is module.main))


def _proved(func: Function, runs_always: bool) -> Function:
    """The function with its look-ups marked. A literal that is out of range is an error where it is surely looked at; elsewhere, as in
    a branch that may never be taken, it is one when the model runs."""
    bindings = []
    for binding in func.bindings:
        value = map_bodies(binding.value, lambda body: _proved(body, runs_always=False))
        if isinstance(value, Call) and value.op in _LOOK_UPS and not full_attrs(value).in_range:
            wrong = _out_of_range(value)
            if wrong and runs_always:
                raise NodeError(wrong, binding.span)
            if wrong == "":
                kept = tuple(item for item in value.attrs if item[0] != "in_range")
                value = replace(value, attrs=(*kept, ("in_range", True)))
        bindings.append(replace(binding, value=value))
    if all(a is b for a, b in zip(bindings, func.bindings, strict=True)):
        return func
    return replace(func, bindings=tuple(bindings))


def _out_of_range(call: Call) -> str | None:
    """What is wrong with the indices; nothing ("") when they all fit; None when that is not known."""
    data, indices = call.args[0], call.args[1]
    if not isinstance(indices, TensorConst) or data is None or not isinstance(data.type, TensorType):
        return None
    for axis, part in _indexed_axes(call.op, full_attrs(call), data.type.rank, indices.value):
        size = data.type.shape[axis]
        if not isinstance(size, Const):
            return None
        try:
            check_places(part, axis, int(size))
        except InputError as error:
            return error.message
    return ""


def _indexed_axes(op: str, attrs: Attrs, rank: int, indices: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The axes that are indexed, each with the numbers that index it."""
    if op in ("gather_nd", "scatter_nd"):
        first = attrs.batch_dims if op == "gather_nd" else 0
        return [(first + k, indices[..., k]) for k in range(indices.shape[-1])]
    return [(attrs.axis % rank, indices)]
