"""Where everything of a call is in its frame: the 64-bit words that a program and its caller share."""

from __future__ import annotations

from dataclasses import dataclass

from tc.ir.expr import Var
from tc.ir.plan import BindDims, CallOut, ExecutionPlan, Repeat, all_steps
from tc.ir.types import TensorType

THREADS, ARENA, CONSTANTS, CALLBACK, FAULTS, DETAIL, ARENA_BYTES, SIZE, TYPES = range(9)
_HEADER_WORDS = 9

NO_MEMORY = "out of memory: a result of {value} bytes"
"""The check of a block that there is no memory for."""


@dataclass(frozen=True)
class FrameLayout:
    """Word offsets in the frame: pointer and dims of every input, pointer and dims of every output, rooms for dynamic blocks
    (pointer, then size in bytes) and, for callbacks, the dims known so far. `host`: where, of a plan that needs it, the host of a device
    has its own values, the table of the constants, and each input (pointers)."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dynamic: int
    dims: int
    words: int
    dim_vars: tuple[Var, ...]
    host: int = -1


def frame_layout(plan: ExecutionPlan) -> FrameLayout:
    """Where everything is in the plan's frame."""
    place = _HEADER_WORDS
    inputs, outputs = [], []
    for var in plan.inputs:
        inputs.append(place)
        place += 1 + _rank(var.type)
    for var in plan.outputs:
        outputs.append(place)
        place += 1 + _rank(var.type)
    dynamic = place
    place += 2 * plan.num_dynamic
    dim_vars = _all_dims(plan)
    host = place + len(dim_vars)
    if not (plan.host_bytes or plan.host_inputs):
        return FrameLayout(tuple(inputs), tuple(outputs), dynamic, place, host, dim_vars)
    return FrameLayout(tuple(inputs), tuple(outputs), dynamic, place, host + 2 + len(inputs), dim_vars, host)


def _rank(type_: object) -> int:
    assert isinstance(type_, TensorType)
    return type_.rank


def _all_dims(plan: ExecutionPlan) -> tuple[Var, ...]:
    """Every dim that the plan binds: from input shapes, from data, from callbacks' results."""
    found: dict[Var, None] = {}

    for var in plan.inputs:
        assert isinstance(var.type, TensorType)
        found.update(dict.fromkeys(dim for dim in var.type.shape if isinstance(dim, Var)))
    for step in all_steps(plan.steps):
        match step:
            case BindDims(dims=dims):
                found.update(dict.fromkeys(dims))
            case CallOut(results=results):
                found.update(dict.fromkeys(d for s in results for d in s.type.shape if isinstance(d, Var)))
            case Repeat(index=index):
                found.setdefault(index)
    return tuple(found)
