"""What a caller must know of a compiled module, as plain data: inputs, results, their dims, the frame, and the checks that may fail."""

from __future__ import annotations

from typing import Any

from tc.ir.dtype import parse_dtype
from tc.ir.expr import Expr, Var
from tc.ir.graph import TensorVar
from tc.ir.node import walk
from tc.ir.plan import Check, ExecutionPlan, Slot, SlotPlace
from tc.ir.types import TensorType
from tc.runtime.callbacks import call_from_json, call_to_json
from tc.runtime.entry import EntrySource, FailedCheck
from tc.runtime.frame_layout import FrameLayout
from tc.runtime.saved import dim_text, parse_dim


def dim_vars(plan: ExecutionPlan) -> list[Var]:
    """The symbolic dims of the inputs, in order of appearance, each as often as it appears."""
    return [node for var in plan.inputs for node in walk(var.type) if isinstance(node, Var)]


def interface_to_json(plan: ExecutionPlan, entry: EntrySource) -> dict[str, Any]:
    """For the header of a module file. Dims of inputs are called d0, d1 ..., those that only results have u0 ..."""
    names = {var: f"d{k}" for k, var in enumerate(dict.fromkeys(dim_vars(plan)))}

    def tensor(var: TensorVar) -> list[Any]:
        assert isinstance(var.type, TensorType)
        known = [n for n in walk(var.type) if isinstance(n, Var) and n not in names]
        names.update({n: f"u{len(names) + k}" for k, n in enumerate(known)})
        return [var.name, var.type.dtype.name, [dim_text(dim, names) for dim in var.type.shape]]

    inputs = [tensor(var) for var in plan.inputs]
    outputs = [tensor(var) for var in plan.outputs]
    layout = entry.layout
    names.update({var: f"v{k}" for k, var in enumerate(layout.dim_vars) if var not in names})
    return {
        "inputs": inputs,
        "outputs": outputs,
        "dims": [[text, var.name] for var, text in names.items()],
        "arena_bytes": dim_text(plan.arena_bytes, names),
        "num_dynamic": plan.num_dynamic,
        "places": [[slot.place.value, slot.index] for slot in plan.output_slots],
        "layout": [layout.inputs, layout.outputs, layout.dynamic, layout.dims, layout.words],
        "dim_words": [names[var] for var in layout.dim_vars],
        "calls": [call_to_json(call, names) for call in entry.calls],
        "assumed": [dim_text(condition, names) for condition in _assumed_of_inputs(plan)],
        "checks": [[check.message, check.input, check.axis, check.dims, check.assumed] for check in entry.checks],
        "reports": entry.reports,
        "undecided": entry.undecided,
        "host": [layout.host, plan.host_bytes, plan.host_inputs],
    }


def _assumed_of_inputs(plan: ExecutionPlan) -> list[Expr]:
    """The assumptions that speak of dims of inputs alone."""
    given = set(dim_vars(plan))
    checks = [step for step in plan.steps if isinstance(step, Check) and step.assumed]
    return [c.condition for c in checks if all(node in given for node in walk(c.condition) if isinstance(node, Var))]


def interface_from_json(header: dict[str, Any]) -> tuple[ExecutionPlan, EntrySource]:
    """The inverse, for a module whose code is compiled: of the steps there are only the checks of what it assumes. Any of several
    exceptions when the data has another form."""
    variables = {text: Var(name) for text, name in header["dims"]}

    def tensor(item: list[Any]) -> TensorVar:
        name, dtype, shape = item
        return TensorVar(name, TensorType(tuple(parse_dim(d, variables) for d in shape), parse_dtype(dtype)))

    inputs, outputs = tuple(map(tensor, header["inputs"])), tuple(map(tensor, header["outputs"]))
    slots = tuple(
        Slot(SlotPlace(place), index, var.type)  # type: ignore[arg-type]
        for (place, index), var in zip(header["places"], outputs, strict=True)
    )
    arena_bytes = parse_dim(header["arena_bytes"], variables)
    assumed = tuple(Check(parse_dim(text, variables), "", True) for text in header["assumed"])
    host, host_bytes, host_inputs = header.get("host", (-1, 0, ()))  # older files do not have it
    memory = arena_bytes, header["num_dynamic"], assumed, slots, host_bytes, tuple(host_inputs)
    plan = ExecutionPlan("main", inputs, outputs, (), (), *memory)
    ins, outs, dynamic, dims, words = header["layout"]
    layout = FrameLayout(tuple(ins), tuple(outs), dynamic, dims, words, tuple(variables[name] for name in header["dim_words"]), host)
    calls = tuple(call_from_json(item, variables) for item in header["calls"])
    checks = tuple(
        FailedCheck(message, index, axis, tuple((name, word) for name, word in dims), assumed)
        for message, index, axis, dims, assumed in header["checks"]
    )
    known = bool(header.get("reports")), str(header.get("undecided", "it was saved by an older version"))
    return plan, EntrySource("", checks, calls, layout, (), *known)
