"""An execution plan as text: what it reads and writes where, one step a line.

    input 0: x f32[1, 64, 28, 28]
    constant 0: f32[4, 16]
    arena: 401408 bytes
    conv_relu(input[0]: f32[1, 64, 28, 28], constant[0]: f32[4, 16], arena[200704]: f32[1, 4, 28, 28, 16])
    ...
    output 0: y is output[0]: f32[1, 64]

In brackets stands the number of a block, and behind + an offset in it; of the arena the offset. Offsets count bytes. Parts of offsets and
sizes that are long have names, which stand above: `size2 = max(size1, b * h * 1024)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from tc.ir.expr import Const, Expr, Var
from tc.ir.node import map_children
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
    all_steps,
)
from tc.ir.types import DimFact
from tc.ir.uses import variables

_INDENT = "    "
_LONGEST = 72
"""Characters of an offset or a size: a part of it that has more is named."""


def print_plan(plan: ExecutionPlan) -> str:
    """The whole plan. It is made to be read, and does not parse back."""
    return _PlanPrinter(plan).text()


class _PlanPrinter:
    """Writes one plan; `named` are the sizes that have names so far, in the order in which they can be computed."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        types = [var.type for var in (*plan.inputs, *plan.outputs)]
        self._dims = {dim.name for node in (*types, *all_steps(plan.steps)) for dim in variables(node)}
        self.named: dict[str, Expr] = {}
        self._short: dict[Expr, Expr] = {}

    def _size(self, size: Expr) -> str:
        return str(self._shortened(size))

    def _shortened(self, size: Expr) -> Expr:
        """A size in which names stand for what is long."""
        found = self._short.get(size)
        if found is None:
            found = map_children(size, lambda child: self._shortened(child) if isinstance(child, Expr) else child)
            if len(str(found)) > _LONGEST:
                name = next(name for k in count(1) if (name := f"size{k}") not in self.named and name not in self._dims)
                self.named[name] = found
                found = Var(name)
            self._short[size] = found
        return found

    def text(self) -> str:
        plan = self.plan
        inputs = [f"input {place}: {var.name} {var.type}" for place, var in enumerate(plan.inputs)]
        constants = [f"constant {place}: {each.type}" for place, each in enumerate(plan.constants)]
        facts = [f"fact: {_fact(fact)}" for fact in plan.facts]
        arena, steps = f"arena: {self._size(plan.arena_bytes)} bytes", list(self._steps(plan.steps, 0))
        results = enumerate(zip(plan.outputs, plan.output_slots, strict=True))
        outputs = [f"output {place}: {var.name} is {self._slot(slot)}" for place, (var, slot) in results]
        sizes = [f"{name} = {size}" for name, size in self.named.items()]
        return "\n".join([*inputs, *constants, *facts, *sizes, arena, *steps, *outputs, ""])

    def _steps(self, steps: Sequence[PlanStep], depth: int) -> Iterator[str]:
        if not steps:
            yield f"{_INDENT * depth}nothing"
        for step in steps:
            yield from self._step(step, depth)

    def _step(self, step: PlanStep, depth: int) -> Iterator[str]:
        pad = _INDENT * depth
        match step:
            case Launch(kernel=kernel, slots=slots, dims=dims, checks=checks):
                more = (f" checks {len(checks)}" if checks else "") + (" on the host" if step.on_host else "")
                yield f"{pad}{kernel}({self._arguments(slots, dims)}){more}"
            case CallOut(symbol=symbol, args=args, results=results, dims=dims, attrs=attrs, found_dims=found):
                given = "".join(f", {name}={value}" for name, value in attrs)
                yield f"{pad}{', '.join(map(self._slot, results))} = {symbol}({self._arguments(args, dims)}{given})" + _found(found)
            case BindDims(slot=slot, dims=dims):
                yield f"{pad}{', '.join(map(str, dims))} = {self._slot(slot)}"
            case Check(condition=condition, message=message, assumed=assumed):
                yield f"{pad}{'assume' if assumed else 'check'} {condition}: {message}"
            case Allocate(index=index, size_bytes=size):
                yield f"{pad}dynamic[{index}] = allocate {self._size(size)} bytes"
            case Copy(source=source, target=target, size_bytes=size):
                yield f"{pad}{self._slot(target)} = copy {self._size(size)} bytes of {self._slot(source)}"
            case Extend(index=index, size_bytes=size, kept_bytes=kept):
                yield f"{pad}dynamic[{index}] = extend {self._size(kept)} to {self._size(size)} bytes"
            case Exchange(first=first, second=second):
                yield f"{pad}exchange dynamic[{first}] and dynamic[{second}]"
            case StoreIndex(slot=slot, value=value):
                yield f"{pad}{self._slot(slot)} = {self._size(value)}"
            case Branch(condition=condition, then_steps=then_steps, else_steps=else_steps):
                yield f"{pad}if {self._slot(condition)}:"
                yield from self._steps(then_steps, depth + 1)
                yield f"{pad}else:"
                yield from self._steps(else_steps, depth + 1)
            case Repeat(index=index, trip_count=trips, condition=condition, body=body):
                bound = "" if trips is None else f" < {self._size(trips)}"
                yield f"{pad}for {index}{bound}" + ("" if condition is None else f" while {self._slot(condition)}") + ":"
                yield from self._steps(body, depth + 1)
            case _:
                raise AssertionError(f"no text for the step {type(step).__name__}")

    def _arguments(self, slots: Sequence[Slot | None], dims: Sequence[Expr]) -> str:
        return ", ".join(["none" if slot is None else self._slot(slot) for slot in slots] + [self._size(dim) for dim in dims])

    def _slot(self, slot: Slot) -> str:
        starts_at_zero = isinstance(slot.offset, Const) and slot.offset.value == 0
        if slot.place in (SlotPlace.ARENA, SlotPlace.HOST):
            where = self._size(slot.offset)
        else:
            where = str(slot.index) if starts_at_zero else f"{slot.index} + {self._size(slot.offset)}"
        return f"{slot.place.value}[{where}]: {slot.type}"


def _fact(fact: DimFact) -> str:
    upper = "" if fact.hi is None else f" <= {fact.hi}"
    return f"{fact.lo} <= {fact.var}{upper}" + (f", {fact.var} % {fact.multiple_of} == 0" if fact.multiple_of > 1 else "")


def _found(dims: Sequence[Expr]) -> str:
    return f" finds {', '.join(map(str, dims))}" if dims else ""
