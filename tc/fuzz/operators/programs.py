"""Programs: loops in branches in loops, over rows whose number changes from step to step, and sequences that collect them.

Each step is one that any number of rows allows, so what holds in the first iteration holds in all. What iterations hand on is drawn from
all there is: values change places, stand twice, come from outside, lead nowhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from tc.fuzz.builder import BOOL, F32, I64, Builder, Held, Input, Rejected
from tc.fuzz.operators.control import bindable, graph, step_input
from tc.fuzz.operators.row import Row

WIDTH = 4
MOST_ROWS = 40  # that an iteration hands on: what doubles in each stays small
_SEQUENCE = helper.make_sequence_type_proto(helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None))


def rows(b: Builder) -> Held:
    """A value of any number of rows."""
    known = [h for h in b.pool if h.dtype == F32 and h.rank == 2 and h.shape[1] == WIDTH and not h.constant]
    if known and not (b.depth == 0 and b.chance(0.05)):
        return b.recent(known)
    count, name = b.integer(0, 5), b.new_name("x")
    array = b.numbers(F32, (count, WIDTH))
    b.shared.inputs.append(Input(name, array, (b._declare(count), WIDTH), "data"))
    return b._hold(name, array, pool=b.root)


def _ints(b: Builder, *numbers: int) -> Held:
    return b.constant(np.array(numbers, I64))


def _size(b: Builder, x: Held) -> Held:
    return b.emit("Size", [x])[0]


# -- steps


def concat(b: Builder) -> None:
    b.emit("Concat", [rows(b) for _ in range(b.choose((2, 2, 3)))], axis=0)


def unary(b: Builder) -> None:
    b.emit(b.choose(("Tanh", "Neg", "Identity", "Sigmoid", "Relu")), [rows(b)])


def cut(b: Builder) -> None:
    b.emit("Slice", [rows(b), _ints(b, b.choose((0, 1, -2))), _ints(b, b.choose((2, 1000, -1))), _ints(b, 0)])


def kept(b: Builder) -> None:
    """Rows by what is in them."""
    x = rows(b)
    first = b.emit("Gather", [x, b.constant(np.array(0, I64))], axis=1)[0]
    truth = b.emit("Greater", [first, b.constant(np.array(b.choose((-1.3, 0.037, 0.71)), F32))])[0]
    b.emit("Compress", [x, truth], axis=0)


def product(b: Builder) -> None:
    b.emit("MatMul", [rows(b), b.constant(b.rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 2)])


def folded(b: Builder) -> None:
    """Other views of the same elements, perhaps changed there."""
    flat = b.emit("Reshape", [rows(b), _ints(b, -1, 2)])[0]
    if b.chance(0.5):
        flat = b.emit("Neg", [flat])[0]
    b.emit("Reshape", [flat, _ints(b, -1, WIDTH)])


def tiled(b: Builder) -> None:
    b.emit("Tile", [rows(b), _ints(b, b.choose((1, 2)), 1)])


def softened(b: Builder) -> None:
    x = rows(b)
    b.emit("Add", [b.emit("Softmax", [x], axis=-1)[0], x])


def reordered(b: Builder) -> None:
    """The rows in the order of what is in them."""
    x = rows(b)
    first = b.emit("Gather", [x, b.constant(np.array(1, I64))], axis=1)[0]
    order = b.emit("TopK", [first, b.emit("Shape", [first])[0]], 2, axis=0)[1]
    b.emit("Gather", [x, order], axis=0)


# -- control flow


def _body(b: Builder) -> Builder:
    inner = Builder(b.rng, b.style, b)
    if inner.depth > 3:
        raise Rejected("deep enough")
    return inner


def _grow(b: Builder, count: int) -> None:
    for _ in range(count):
        weights = np.array([row.weight / (1 + 2 * b.depth if not row.simple else 1) for row in ROWS])
        ROWS[int(b.rng.choice(len(ROWS), p=weights / weights.sum()))].draw(b)


def branch(b: Builder) -> None:
    truth = b.emit("Greater", [_size(b, rows(b)), b.constant(np.array(b.choose((0, 8, 14)), I64))])[0]
    count, bodies = b.choose((1, 1, 2)), []
    for name in ("then", "else"):
        inner = _body(b)
        _grow(inner, b.integer(0, 2))
        bodies.append(graph(inner, name, [], [rows(inner) for _ in range(count)]))
    b.emit("If", [truth], count, then_branch=bodies[0], else_branch=bodies[1])


def loop(b: Builder) -> None:
    init = [rows(b) for _ in range(b.integer(1, 3))]
    collected = b.emit("SequenceConstruct", [rows(b)])[0] if b.chance(0.4) else None
    inner = _body(b)
    count = inner._hold(inner.new_name("i"), np.array(0, I64))
    going = inner._hold(inner.new_name("g"), np.array(True))
    if b.chance(0.3):
        inner.pool = [count, going]  # nothing from outside
    states = [step_input(inner, h) for h in init]
    inputs = [bindable(h.name, h, shaped=h.rank == 0) for h in (count, going, *states)]
    _grow(inner, b.integer(1, 4))
    first, most, axis = _ints(inner, 0), _ints(inner, MOST_ROWS), _ints(inner, 0)
    results = [inner.emit("Slice", [rows(inner), first, most, axis])[0] for _ in states]
    goes_on = inner.emit("Identity", [going])[0]
    if b.chance(0.4):
        goes_on = inner.emit("Less", [_size(inner, results[0]), inner.constant(np.array(b.choose((20, 60, 1000)), I64))])[0]
    elif b.chance(0.2):
        goes_on = inner.emit("Less", [count, inner.constant(np.array(b.integer(-1, 3), I64))])[0]
    sequence = None if collected is None else _collect(inner, inputs, inner.shared.values[collected.name])
    scans = []  # scalars: what else no iteration made has sizes of its own in each runtime
    if b.chance(0.3):
        scans.append(_size(inner, rows(inner)))
    if b.chance(0.3):
        scans.append(inner.emit("ReduceSum", [rows(inner)], keepdims=0)[0])
    body = graph(inner, "body", inputs, [goes_on, *results])
    if sequence is not None:
        body.output.append(helper.make_value_info(sequence.name, _SEQUENCE))
    made = [n for node in inner.nodes for n in node.output]
    body.output.extend(bindable(h.name, h, shaped=False) for h in scans if h.name in made)
    trips = b.parameter(b.choose((0, 1, 2, 3, 20)))
    truth = b.parameter(b.chance(0.9), BOOL) if b.chance(0.3) else None
    carried: list[Held | None] = [trips, truth, *init, *([] if collected is None else [collected])]
    found = b.emit("Loop", carried, len(carried) - 2 + len(scans), body=body)
    if sequence is not None:
        _read(b, found[len(init)])


def _collect(b: Builder, inputs: list[onnx.ValueInfoProto], items: Any) -> Held:
    """The sequence that an iteration hands on."""
    own = Held(b.new_name("s"), np.empty(0))
    b.shared.values[own.name] = items
    inputs.append(helper.make_value_info(own.name, _SEQUENCE))
    place = b.constant(np.array(0, I64)) if b.chance(0.3) else None
    made = b.emit("SequenceInsert", [own, rows(b), place])[0]
    if b.chance(0.3):
        more = b.emit("SequenceInsert", [made, rows(b)])[0]
        made = b.emit("SequenceErase", [more, b.constant(np.array(b.choose((0, -1)), I64))])[0]
    return made


def _read(b: Builder, sequence: Held) -> None:
    match b.integer(0, 2):
        case 0:
            b.emit("ConcatFromSequence", [sequence], axis=0)
        case 1:
            b.emit("SequenceAt", [sequence, b.parameter(b.choose((0, -1)))])
        case _:
            b.emit("SequenceLength", [sequence])


ROWS = (
    Row("Concat", concat, weight=1.5),
    Row("Tanh", unary),
    Row("Slice", cut, weight=1.5),
    Row("Compress", kept, weight=1.5),
    Row("MatMul", product),
    Row("Reshape", folded),
    Row("Tile", tiled, weight=0.7),
    Row("Softmax", softened),
    Row("TopK", reordered, weight=0.5),
    Row("If", branch, weight=2.5, simple=False),
    Row("Loop", loop, weight=6.0, simple=False),
)
PROGRAM_ROWS = (*ROWS, Row("Loop", loop, weight=20.0, simple=False))
"""Of a model itself: mostly loops."""
