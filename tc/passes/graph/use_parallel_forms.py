"""Operators that go through an axis in order, in the form of which all elements are independent: for devices."""

from __future__ import annotations

from tc.ir.arith import Facts
from tc.ir.graph import Binding, Call, Function, map_bodies
from tc.ir.module import IRModule
from tc.ir.node import replace
from tc.ops.build import full_attrs, operand_types
from tc.ops.parallel import ON_HOST, PARALLEL_FORMS, has_parallel_form
from tc.ops.registry import inference
from tc.passes.manager import graph_pass, map_graph_functions


@graph_pass
def use_parallel_forms(module: IRModule) -> IRModule:
    """Replace running sums, `topk` and scatters by the operators that mean the same and have no order; see `tc.ops.parallel`.

    A `topk` along an axis of which nothing says how long it is at most runs on the host, and so does what looks for elements that are
    not zero.
    """
    return map_graph_functions(module, _function)


def _function(func: Function) -> Function:
    with inference(Facts.of(func.facts)):
        bindings = tuple(map(_binding, func.bindings))
    changed = any(new is not old for new, old in zip(bindings, func.bindings, strict=True))
    return replace(func, bindings=bindings) if changed else func


def _binding(binding: Binding) -> Binding:
    value = map_bodies(binding.value, _function)
    if isinstance(value, Call):
        if value.op in PARALLEL_FORMS and has_parallel_form(value.op, operand_types(value), full_attrs(value)):
            value = replace(value, op=PARALLEL_FORMS[value.op])
        elif value.op in ON_HOST:
            value = replace(value, op=ON_HOST[value.op])
    return binding if value is binding.value else replace(binding, value=value)
