"""The execution plan: what the native entry point of a graph function does, step by step.

A plan is what is left of a graph function when every operation is a compiled kernel and every value has a place in memory. Its
sizes and offsets are expressions over the dims, so one plan serves all shapes. Code generation turns it into one native
function; nothing interprets it at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from enum import Enum

from tc.ir.expr import Expr, Var, const
from tc.ir.graph import AttrValue, TensorConst, TensorVar
from tc.ir.node import Located, Node, cached_on_node, children
from tc.ir.types import DimFact, TensorType


class SlotPlace(Enum):
    """Who owns the memory of a slot. DYNAMIC memory is allocated by an `Allocate` step and freed when the entry returns,
    unless it is an output: its size depends on data. Where kernels run on a device, HOST is memory of its host, in which HOST_INPUT and
    HOST_CONSTANT are the same values as in INPUT and CONSTANT."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    ARENA = "arena"
    DYNAMIC = "dynamic"
    HOST = "host"
    HOST_INPUT = "host input"
    HOST_CONSTANT = "host constant"


ON_HOST = frozenset((SlotPlace.HOST, SlotPlace.HOST_INPUT, SlotPlace.HOST_CONSTANT))
"""Places that the host of a device reads at once."""


@dataclass(frozen=True, eq=False)
class Slot(Node):
    """A tensor's memory: `offset` bytes into input/output/constant/dynamic block number `index`, or into the arena or the host's memory
    (index 0)."""

    place: SlotPlace
    index: int
    type: TensorType
    offset: Expr = const(0)


class PlanStep(Located):
    """One thing the entry point does. `span` names the model's node."""


@dataclass(frozen=True, eq=False)
class Launch(PlanStep):
    """Run kernel `kernel` (a PrimFunc of the module) on the slots' memory with the scalars `dims`.

    With `checks`, the last slot holds three i64 for each: whether an index was out of range, that index, and the size. Then the call
    stops with the message, in which {index} and {size} stand for these. `on_host`: the host of a device runs it, on its own memory.
    """

    kernel: str
    slots: tuple[Slot, ...]
    dims: tuple[Expr, ...]
    checks: tuple[str, ...] = ()
    on_host: bool = False


@dataclass(frozen=True, eq=False)
class CallOut(PlanStep):
    """Call "c:symbol" (PrimFunc calling convention) or "py:name" / "op:name" / "import:module:function" (Python, through a callback that
    receives arrays).

    "op:name" runs the reference kernel of operator `name` with `attrs`, whose expressions are evaluated at the dims first. A user's
    function that can be imported is called by that name, with all attributes.
    `found_dims` are the dims that the call binds; a result whose size depends on one is in a dynamic block that the call allocates.
    """

    symbol: str
    args: tuple[Slot | None, ...]
    results: tuple[Slot, ...]
    dims: tuple[Expr, ...] = ()
    attrs: tuple[tuple[str, AttrValue], ...] = ()
    found_dims: tuple[Var, ...] = ()


@dataclass(frozen=True, eq=False)
class BindDims(PlanStep):
    """Set `dims` to the elements of the integer tensor in `slot`; an element below 0 is an error."""

    slot: Slot
    dims: tuple[Var, ...]


@dataclass(frozen=True, eq=False)
class Check(PlanStep):
    """Stop with `message` unless `condition` holds. `assumed`: the model does not need it; where it fails another program runs."""

    condition: Expr
    message: str
    assumed: bool = False


@dataclass(frozen=True, eq=False)
class Allocate(PlanStep):
    """Allocate dynamic block number `index` of `size_bytes`, freeing what it held."""

    index: int
    size_bytes: Expr


@dataclass(frozen=True, eq=False)
class Extend(PlanStep):
    """Let dynamic block number `index` have room for `size_bytes`, the first `kept_bytes` as they are; it may lie elsewhere then, and has
    room for more, so that what is added piece by piece is seldom moved."""

    index: int
    size_bytes: Expr
    kept_bytes: Expr


@dataclass(frozen=True, eq=False)
class Copy(PlanStep):
    """Copy `size_bytes` from `source` to `target`; they do not overlap."""

    source: Slot
    target: Slot
    size_bytes: Expr


@dataclass(frozen=True, eq=False)
class Exchange(PlanStep):
    """Let the dynamic blocks number `first` and `second` change places: nothing is copied."""

    first: int
    second: int


@dataclass(frozen=True, eq=False)
class Branch(PlanStep):
    """`then_steps` if the bool scalar in `condition` is true, else `else_steps`."""

    condition: Slot
    then_steps: tuple[PlanStep, ...]
    else_steps: tuple[PlanStep, ...]


@dataclass(frozen=True, eq=False)
class Repeat(PlanStep):
    """Run `body` with `index` = 0, 1, ... while the bool scalar in `condition` (None: always) is true and `index` < `trip_count`
    (None: no bound). `condition` is read before each iteration."""

    index: Var
    trip_count: Expr | None
    condition: Slot | None
    body: tuple[PlanStep, ...]


@dataclass(frozen=True, eq=False)
class StoreIndex(PlanStep):
    """Write the value of a dim expression as an i64 scalar into `slot` (a loop's iteration number, as a tensor)."""

    slot: Slot
    value: Expr


@dataclass(frozen=True, eq=False)
class ExecutionPlan(Located):
    """The program of one graph function.

    Dims are bound from the inputs' shapes (first plain occurrence; all others are checked), then `facts` and the Check steps hold.
    `arena_bytes` is over those dims only. Arena offsets and sizes are multiples of 64. `host_bytes`: of the memory of a device's host;
    `host_inputs`: the inputs that are needed there.
    """

    name: str
    inputs: tuple[TensorVar, ...]
    outputs: tuple[TensorVar, ...]
    constants: tuple[TensorConst, ...]
    facts: tuple[DimFact, ...]
    arena_bytes: Expr
    num_dynamic: int
    steps: tuple[PlanStep, ...]
    output_slots: tuple[Slot, ...]
    host_bytes: int = 0
    host_inputs: tuple[int, ...] = ()


def all_steps(steps: Iterable[PlanStep]) -> Iterator[PlanStep]:
    """The steps and those inside of them, in the order of the text."""
    for step in steps:
        yield step
        match step:
            case Branch(then_steps=first, else_steps=second):
                yield from all_steps((*first, *second))
            case Repeat(body=body):
                yield from all_steps(body)


def allocated_blocks(steps: Iterable[PlanStep], before: Set[int] = frozenset()) -> set[int]:
    """The dynamic blocks that are allocated when `steps` have run, given those `before`. AssertionError if a step takes one that is not."""
    found = set(before)
    for step in steps:
        taken: Set[int] = frozenset()
        match step:
            case Allocate(index=index):
                found.add(index)
            case Extend(index=index):
                taken = {index}
            case Exchange(first=one, second=other):
                taken = {one, other}
            case Branch(condition=condition, then_steps=first, else_steps=second):
                taken = _dynamic_blocks(condition)
                found |= allocated_blocks(first, found) & allocated_blocks(second, found)
            case Repeat(condition=condition, body=body):
                taken = frozenset() if condition is None else _dynamic_blocks(condition)
                allocated_blocks(body, found)
            case _:
                if isinstance(step, CallOut):
                    found.update(*map(_dynamic_blocks, step.results))
                taken = _dynamic_blocks(step)
        assert taken <= found, f"{type(step).__name__} takes dynamic blocks {sorted(taken - found)}, which nothing allocates"
    return found


@cached_on_node
def _dynamic_blocks(node: Node) -> frozenset[int]:
    own = frozenset[int]((node.index,) if isinstance(node, Slot) and node.place is SlotPlace.DYNAMIC else ())
    return own.union(*map(_dynamic_blocks, children(node)))
