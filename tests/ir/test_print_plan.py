"""Plans as text: each kind of step has a line of its own."""

from __future__ import annotations

from dataclasses import replace

from tc.ir.dtype import bool_, f32, i64
from tc.ir.expr import Var, const, maximum
from tc.ir.graph import TensorVar
from tc.ir.plan import (
    Allocate,
    BindDims,
    Branch,
    CallOut,
    Check,
    Copy,
    ExecutionPlan,
    Launch,
    Repeat,
    Slot,
    SlotPlace,
    StoreIndex,
)
from tc.ir.print_plan import print_plan
from tc.ir.types import DimFact, tensor_type

N, K, TRIP = Var("n"), Var("k"), Var("i")
ROWS = tensor_type((N, 4), f32)
X = Slot(SlotPlace.INPUT, 0, ROWS)
Y = Slot(SlotPlace.OUTPUT, 0, ROWS)
SCRATCH = Slot(SlotPlace.ARENA, 0, ROWS, N * 64)
PART = Slot(SlotPlace.DYNAMIC, 1, tensor_type((K,), i64), const(128))
FLAG = Slot(SlotPlace.ARENA, 0, tensor_type((), bool_))

PLAN = ExecutionPlan(
    "main", (TensorVar("x", ROWS),), (TensorVar("y", ROWS),), (), (DimFact(N, 1, 64, 8),), N * 128, 2,
    (
        Check(K < N, "k must be below n"),
        replace(Check(K < N, "rows broadcast"), assumed=True),
        Launch("scale", (X, SCRATCH), (N,)),
        Launch("pick", (X, SCRATCH), (N,), ("index {index} of {size}",)),
        BindDims(PART, (K,)),
        Allocate(1, K * 8),
        CallOut("op:unique", (SCRATCH, None), (PART,), (N,), (("axis", 0),), (K,)),
        Branch(FLAG, (Copy(SCRATCH, Y, N * 16),), ()),
        Repeat(TRIP, const(5), FLAG, (StoreIndex(PART, TRIP + 1),)),
        Repeat(TRIP, None, None, (Launch("step", (Y,), ()),)),
    ),
    (Y,),
)  # fmt: skip

TEXT = """\
input 0: x f32[n, 4]
fact: 1 <= n <= 64, n % 8 == 0
arena: n * 128 bytes
check k < n: k must be below n
assume k < n: rows broadcast
scale(input[0]: f32[n, 4], arena[n * 64]: f32[n, 4], n)
pick(input[0]: f32[n, 4], arena[n * 64]: f32[n, 4], n) checks 1
k = dynamic[1 + 128]: i64[k]
dynamic[1] = allocate k * 8 bytes
dynamic[1 + 128]: i64[k] = op:unique(arena[n * 64]: f32[n, 4], none, n, axis=0) finds k
if arena[0]: bool[]:
    output[0]: f32[n, 4] = copy n * 16 bytes of arena[n * 64]: f32[n, 4]
else:
    nothing
for i < 5 while arena[0]: bool[]:
    dynamic[1 + 128]: i64[k] = i + 1
for i:
    step(output[0]: f32[n, 4])
output 0: y is output[0]: f32[n, 4]
"""


def test_every_step_of_a_plan_has_its_line() -> None:
    assert print_plan(PLAN) == TEXT


def test_what_is_long_of_sizes_has_names_and_no_line_grows_with_them() -> None:
    size, most = N * 64, 40  # each step has the one before it twice
    for k in range(most):
        size = maximum(size, (size + N * (k + 1000)) // 3)
    places = [replace(SCRATCH, offset=size + 64 * k) for k in range(3)]
    steps = tuple(Launch("scale", (X, place), (N,)) for place in places)
    text = print_plan(replace(PLAN, steps=steps, arena_bytes=size + 256))
    names = dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line)
    assert names and max(map(len, text.splitlines())) < 160

    def value(expr: str, n: int) -> int:
        known: dict[str, object] = {"n": n, "max": max}
        for name, meant in names.items():
            known[name] = eval(meant, {}, known)  # each is made of those above it
        return int(eval(expr, {}, known))

    for n in (1, 7, 1000):
        expected = n * 64
        for k in range(most):
            expected = max(expected, (expected + n * (k + 1000)) // 3)
        for k, line in enumerate(line for line in text.splitlines() if line.startswith("scale")):
            assert value(line.split("arena[")[1].split("]")[0], n) == expected + 64 * k
