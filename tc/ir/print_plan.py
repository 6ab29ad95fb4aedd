"""An execution plan as text: what it reads and writes where, one step a line.

    input 0: x f32[1, 64, 28, 28]
    constant 0: f32[4, 16]
    arena: 401408 bytes
    conv_relu(input[0]: f32[1, 64, 28, 28], constant[0]: f32[4, 16], arena[200704]: f32[1, 4, 28, 28, 16])
    ...
    output 0: y is output[0]: f32[1, 64]

In brackets stands the number of a block, and behind + an offset in it; of the arena the offset. Offsets count bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tc.ir.expr import Const, Expr
from tc.ir.plan import (
    Allocate,
    BindDims,
    Branch,
    CallOut,
    Check,
    Copy,
    Exchange,
    ExecutionPlan,
    Extend,
    Launch,
    PlanStep,
    Repeat,
    Slot,
    SlotPlace,
    StoreIndex,
)
from tc.ir.types import DimFact

_INDENT = "    "


def print_plan(plan: ExecutionPlan) -> str:
    """The whole plan. It is made to be read, and does not parse back."""
    lines = [f"input {place}: {var.name} {var.type}" for place, var in enumerate(plan.inputs)]
    lines += [f"constant {place}: {each.type}" for place, each in enumerate(plan.constants)]
    lines += [f"fact: {_fact(fact)}" for fact in plan.facts]
    lines.append(f"arena: {plan.arena_bytes} bytes")
    lines += _steps(plan.steps, 0)
    results = zip(plan.outputs, plan.output_slots, strict=True)
    lines += [f"output {place}: {var.name} is {_slot(slot)}" for place, (var, slot) in enumerate(results)]
    return "\n".join(lines) + "\n"


def _fact(fact: DimFact) -> str:
    upper = "" if fact.hi is None else f" <= {fact.hi}"
    return f"{fact.lo} <= {fact.var}{upper}" + (f", {fact.var} % {fact.multiple_of} == 0" if fact.multiple_of > 1 else "")


def _steps(steps: Sequence[PlanStep], depth: int) -> Iterator[str]:
    if not steps:
        yield f"{_INDENT * depth}nothing"
    for step in steps:
        yield from _step(step, depth)


def _step(step: PlanStep, depth: int) -> Iterator[str]:
    pad = _INDENT * depth
    match step:
        case Launch(kernel=kernel, slots=slots, dims=dims, checks=checks):
            more = (f" checks {len(checks)}" if checks else "") + (" on the host" if step.on_host else "")
            yield f"{pad}{kernel}({_arguments(slots, dims)}){more}"
        case CallOut(symbol=symbol, args=args, results=results, dims=dims, attrs=attrs, found_dims=found):
            given = "".join(f", {name}={value}" for name, value in attrs)
            yield f"{pad}{', '.join(map(_slot, results))} = {symbol}({_arguments(args, dims)}{given})" + _found(found)
        case BindDims(slot=slot, dims=dims):
            yield f"{pad}{', '.join(map(str, dims))} = {_slot(slot)}"
        case Check(condition=condition, message=message, assumed=assumed):
            yield f"{pad}{'assume' if assumed else 'check'} {condition}: {message}"
        case Allocate(index=index, size_bytes=size):
            yield f"{pad}dynamic[{index}] = allocate {size} bytes"
        case Copy(source=source, target=target, size_bytes=size):
            yield f"{pad}{_slot(target)} = copy {size} bytes of {_slot(source)}"
        case Extend(index=index, size_bytes=size, kept_bytes=kept):
            yield f"{pad}dynamic[{index}] = extend {kept} to {size} bytes"
        case Exchange(first=first, second=second):
            yield f"{pad}exchange dynamic[{first}] and dynamic[{second}]"
        case StoreIndex(slot=slot, value=value):
            yield f"{pad}{_slot(slot)} = {value}"
        case Branch(condition=condition, then_steps=then_steps, else_steps=else_steps):
            yield f"{pad}if {_slot(condition)}:"
            yield from _steps(then_steps, depth + 1)
            yield f"{pad}else:"
            yield from _steps(else_steps, depth + 1)
        case Repeat(index=index, trip_count=count, condition=condition, body=body):
            bound = "" if count is None else f" < {count}"
            yield f"{pad}for {index}{bound}" + ("" if condition is None else f" while {_slot(condition)}") + ":"
            yield from _steps(body, depth + 1)
        case _:
            raise AssertionError(f"no text for the step {type(step).__name__}")


def _arguments(slots: Sequence[Slot | None], dims: Sequence[Expr]) -> str:
    return ", ".join(["none" if slot is None else _slot(slot) for slot in slots] + [str(dim) for dim in dims])


def _found(dims: Sequence[Expr]) -> str:
    return f" finds {', '.join(map(str, dims))}" if dims else ""


def _slot(slot: Slot) -> str:
    starts_at_zero = isinstance(slot.offset, Const) and slot.offset.value == 0
    if slot.place in (SlotPlace.ARENA, SlotPlace.HOST):
        where = str(slot.offset)
    else:
        where = str(slot.index) if starts_at_zero else f"{slot.index} + {slot.offset}"
    return f"{slot.place.value}[{where}]: {slot.type}"
