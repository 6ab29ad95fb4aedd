"""Control flow and sequences: bodies are drawn by the same tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tc.fuzz.builder import BF16, BOOL, F32, FLOATS, I32, I64, Builder, Held, Rejected
from tc.fuzz.operators.row import Row

Grow = Callable[[Builder, int], None]


def body(b: Builder, grow: Grow, count: int) -> Builder:
    """A builder for a body, to which `count` rows were added."""
    inner = Builder(b.rng, b.style, b)
    if inner.depth > 2:
        raise Rejected("deep enough")
    grow(inner, count)
    return inner


def like(b: Builder, held: Held, *, shape: bool = True) -> Held:
    """A value made in this body of the dtype and rank (or shape) of `held`; at least one step away from it."""
    made = {name for node in b.nodes for name in node.output}
    known = [
        h
        for h in b.pool
        if h.name in made and h.dtype == held.dtype and (h.shape == held.shape if shape else h.rank == held.rank)
    ]
    if known and b.chance(0.7):
        return b.choose(known)
    if held.dtype == BOOL:
        return b.emit(b.choose(("Not", "Identity")), [held])[0]
    if b.chance(0.2):
        return b.emit("Identity", [held])[0]
    other = b.constant(np.array(b.choose((1, 2)), held.dtype))
    return b.emit(b.choose(("Add", "Sub", "Max") if b.since(12) else ("Add", "Sub")), [held, other])[0]


def resized(b: Builder, held: Held) -> Held:
    """A value made in this body of the dtype and rank of `held`, which is of another size along an axis, mostly."""
    axis = b.integer(0, held.rank - 1)
    match b.integer(0, 3):
        case 0:
            return b.emit("Concat", [held, held], axis=axis)[0]
        case 1:
            row = b.constant(np.ones([1 if k == axis else n for k, n in enumerate(held.shape)], held.dtype))
            return b.emit("Concat", [held, row], axis=axis)[0]
        case 2:
            kept = np.array([b.chance(0.7) for _ in range(held.shape[axis])], np.bool_)
            return b.emit("Compress", [held, b.constant(kept)], axis=axis)[0]
    first, end, along = (b.constant(np.array([k], np.int64)) for k in (1, 2**31, axis))
    return b.emit("Slice", [held, first, end, along])[0]


def bindable(name: str, held: Held, *, shaped: bool = True) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(held.dtype)
    return helper.make_tensor_value_info(name, kind, list(held.shape) if shaped else None)


def graph(b: Builder, name: str, inputs: list[onnx.ValueInfoProto], results: list[Held]) -> onnx.GraphProto:
    """The finished body. A result that is not made inside, or stands twice, goes through Identity."""
    seen: set[str] = set()
    made = {n for node in b.nodes for n in node.output}
    names = []
    for held in results:
        if held.name in seen or held.name not in made:
            held = b.emit("Identity", [held])[0]
        seen.add(held.name)
        names.append(helper.make_tensor_value_info(held.name, helper.np_dtype_to_tensor_dtype(held.dtype), None))
    return helper.make_graph(b.nodes, name, inputs, names)


def condition(b: Builder) -> Held:
    """A truth that is a constant, an input, or computed."""
    if b.chance(0.3):
        return b.parameter(b.chance(0.5), BOOL)
    known = [h for h in b.pool if h.dtype == BOOL and h.shape in ((), (1,))]
    if known and b.chance(0.4):
        return b.choose(known)
    x = b.pick((F32, I64), where=lambda h: 0 < h.array.size < 500)
    size = b.emit("Size", [x])[0]
    return (
        b.emit("Less", [size, b.constant(np.array(b.integer(0, 30), I64))])[0]
        if b.since(9)
        else b.parameter(True, BOOL)
    )


def if_(grow: Grow) -> Callable[[Builder], None]:
    def draw(b: Builder) -> None:
        truth = condition(b)
        carried = [b.pick((*FLOATS[:3], I64, I32, BOOL)) for _ in range(b.integer(1, 2))]
        same = b.chance(0.75)
        branches = []
        for name in ("then", "else"):
            inner = body(b, grow, b.integer(0, 3))
            branches.append(graph(inner, name, [], [like(inner, h, shape=same) for h in carried]))
        b.emit("If", [truth], len(carried), then_branch=branches[0], else_branch=branches[1])

    return draw


def step_input(inner: Builder, held: Held, array: np.ndarray | None = None) -> Held:
    """What a body receives for `held`, on its first iteration."""
    array = held.array if array is None else array
    return inner._hold(inner.new_name("c"), array)


def loop(grow: Grow) -> Callable[[Builder], None]:
    def draw(b: Builder) -> None:
        trips = b.integer(0 if b.chance(0.2) else 1, 4)
        bound = b.parameter(trips) if b.chance(0.85) else None
        carried = [
            b.pick((*FLOATS[:2], I64, I32), where=lambda h: h.array.size < 300)
            for _ in range(b.integer(0 if bound else 1, 2))
        ]
        inner = Builder(b.rng, b.style, b)
        if inner.depth > 2:
            raise Rejected("deep enough")
        count = inner._hold(inner.new_name("i"), np.array(0, np.int64))
        going = inner._hold(inner.new_name("g"), np.array(True))
        states = [step_input(inner, h) for h in carried]
        changing = [h.rank > 0 and h.dtype in (F32, I64) and b.chance(0.25) for h in carried]
        inputs = [
            bindable(count.name, count),
            bindable(going.name, going),
            *(bindable(s.name, s, shaped=not other and b.chance(0.5)) for s, other in zip(states, changing)),
        ]
        grow(inner, b.integer(0, 3))
        if bound is None or b.chance(0.4):
            goes_on = (
                inner.emit("Less", [count, inner.constant(np.array(b.integer(-1, 4), np.int64))])[0]
                if b.since(9)
                else going
            )
        else:
            goes_on = inner.emit("Identity", [going])[0]
        if bound is None and not b.since(9):
            raise Rejected("would never end")
        results = [goes_on, *(resized(inner, s) if other else like(inner, s) for s, other in zip(states, changing))]
        made = {n for node in inner.nodes for n in node.output}
        stacked = [h for h in inner.pool if h.name in made and h.array.size < 200 and h.dtype != BF16]
        scans = [b.choose(stacked) for _ in range(b.integer(0 if carried else 1, 2))] if stacked else []
        truth = b.parameter(True, BOOL) if b.chance(0.7) else None
        b.emit(
            "Loop",
            [bound, truth, *carried],
            len(carried) + len(scans),
            body=graph(inner, "body", inputs, [*results, *scans]),
        )

    return draw


def scan(grow: Grow) -> Callable[[Builder], None]:
    def draw(b: Builder) -> None:
        x = b.pick((*FLOATS[:2], I64), ranks=(1, 4), where=lambda h: 0 < min(h.shape) and h.array.size < 400)
        axis = b.integer(0, x.rank - 1) if b.since(9) else 0
        if not b.since(9):
            raise Rejected("another operator then")
        length = x.shape[axis]
        scanned = [(x, axis)]
        if b.chance(0.3):
            scanned.append((b.data(x.dtype, (length, *b.shape(1, most=9))), 0))
        reverse = [b.integer(0, 1) for _ in scanned]
        carried = [b.data(x.dtype, np.delete(x.shape, axis))] if b.chance(0.7) else []
        inner = Builder(b.rng, b.style, b)
        if inner.depth > 2:
            raise Rejected("deep enough")
        states = [step_input(inner, h) for h in carried]
        slices = [
            step_input(inner, h, np.take(h.array, length - 1 if back else 0, a))
            for (h, a), back in zip(scanned, reverse)
        ]
        for s in slices:
            if states:
                inner.emit("Add", [states[0], s] if s.shape == states[0].shape else [s, s])
        grow(inner, b.integer(0, 3))
        results = [like(inner, s) for s in states]
        made = {n for node in inner.nodes for n in node.output}
        stacked = [h for h in inner.pool if h.name in made and h.array.size < 200]
        scans = [b.choose(stacked) for _ in range(b.integer(0 if carried else 1, 2))] if stacked else []
        if not results and not scans:
            raise Rejected("no result")
        attrs: dict[str, Any] = {"num_scan_inputs": len(scanned)}
        if any(reverse) or b.chance(0.2):
            attrs["scan_input_directions"] = reverse
        if axis or b.chance(0.2):
            attrs["scan_input_axes"] = [a for _, a in scanned]
        if scans and b.chance(0.3):
            attrs["scan_output_directions"] = [b.integer(0, 1) for _ in scans]
        if scans and b.chance(0.2):
            attrs["scan_output_axes"] = [b.integer(0, h.rank) for h in scans]
        inputs = [bindable(h.name, h) for h in (*states, *slices)]
        b.emit(
            "Scan",
            [*carried, *(h for h, _ in scanned)],
            len(results) + len(scans),
            body=graph(inner, "body", inputs, [*results, *scans]),
            **attrs,
        )

    return draw


def sequence(b: Builder) -> None:
    """A sequence is built, changed, and read back as tensors."""
    x = b.pick(FLOATS[:1], ranks=(1, 3), where=lambda h: 0 not in h.shape)
    parts = [x, *(b.reshaped((x.dtype,), x.shape) for _ in range(b.integer(1, 2)))]
    made = b.emit("SequenceConstruct", parts)[0]
    count = len(parts)
    if b.chance(0.4):
        made = b.emit(
            "SequenceInsert", [made, parts[0], b.parameter(b.integer(-count, count)) if b.chance(0.6) else None]
        )[0]
        count += 1
    if b.chance(0.3):
        made = b.emit("SequenceErase", [made, b.parameter(b.integer(-count, count - 1)) if b.chance(0.6) else None])[0]
        count -= 1
    match b.integer(0, 2):
        case 0:
            b.emit("SequenceAt", [made, b.parameter(b.integer(-count, count - 1), kind="index")])
        case 1:
            b.emit(
                "ConcatFromSequence",
                [made],
                axis=b.integer(0, x.rank - 1),
                **({"new_axis": 1} if b.chance(0.4) else {}),
            )
        case _:
            b.emit("SequenceLength", [made])


def split_to_sequence(b: Builder) -> None:
    x = b.pick(FLOATS[:1], ranks=(1, 3), where=lambda h: 0 not in h.shape)
    axis = b.integer(0, x.rank - 1)
    n = x.shape[axis]
    cut = b.integer(0, n)
    sizes = b.choose((None, b.choose((1, 2)), [cut, n - cut]))
    attrs: dict[str, Any] = {"axis": axis}
    if sizes is None:
        attrs["keepdims"] = b.integer(0, 1)
    made = b.emit("SplitToSequence", [x, None if sizes is None else b.parameter(sizes)], **attrs)[0]
    count = len(b.shared.values[made.name])
    b.emit("SequenceAt", [made, b.parameter(b.integer(-count, count - 1), kind="index")])


def optional(b: Builder) -> None:
    x = b.pick(FLOATS[:1])
    made = b.emit("Optional", [x])[0]
    b.emit(b.choose(("OptionalHasElement", "OptionalGetElement")), [made])


def rows(grow: Grow) -> tuple[Row, ...]:
    """The rows, which draw their bodies with `grow`: add that many rows to a builder."""
    return (
        Row("If", if_(grow), weight=2.5, simple=False),
        Row("Loop", loop(grow), since=11, weight=3.0, simple=False),
        Row("Scan", scan(grow), since=9, weight=2.0, simple=False),
        Row("SequenceConstruct", sequence, since=11, weight=1.0, simple=False),
        Row("SplitToSequence", split_to_sequence, since=11, weight=0.7, simple=False),
        Row("Optional", optional, since=15, weight=0.2, simple=False),
    )
