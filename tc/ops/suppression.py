"""Suppression of boxes that overlap better ones: the boxes of each class in order of their scores, each against those kept before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from tc import te
from tc.errors import InputError, ShapeError
from tc.ir.arith import bounds
from tc.ir.dtype import f32, i32, i64, u32
from tc.ir.expr import Buffer, Expr, Load, Select, cast, ceildiv, const, equal, logical_and
from tc.ir.graph import Attrs
from tc.ir.loop import If, Stmt, Store, seq
from tc.ir.types import TensorType, product
from tc.ops.common import Arrays, Tensors, Types, exprs, operand, require_equal
from tc.ops.registry import REQUIRED, OpDef, current_facts, register, require
from tc.ops.sort import Pairs, order_key, sort
from tc.ops.statements import LANES, cell, get, grow, held, let, loop, loops_over_rows, put, scratch, vector_loops
from tc.te import Tensor

# -- which boxes are kept


def _infer_kept(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    boxes, scores = operand(types, 0, "kept_boxes"), operand(types, 1, "kept_boxes")
    if boxes.rank != 3 or scores.rank != 3:
        raise ShapeError(f"kept_boxes: boxes are {boxes}, scores {scores}, must have 3 dims each")
    require_equal(boxes.shape[2], const(4), "kept_boxes: the last dim of boxes")
    require_equal(boxes.shape[0], scores.shape[0], "kept_boxes: the number of batches")
    require_equal(boxes.shape[1], scores.shape[2], "kept_boxes: the number of boxes")
    for k in (2, 3):
        if k < len(types) and types[k] is not None:
            require_equal(product(operand(types, k, "kept_boxes").shape), const(1), "kept_boxes: the number of thresholds of a kind")
    (limit,) = exprs((attrs.limit,))
    rows = scores.shape[0] * scores.shape[1]
    return TensorType((*scores.shape[:2], limit), i64), TensorType((rows + 1,), i64), TensorType((const(1),), i64)


def _corners(box: Callable[[int], Expr], is_center: bool) -> tuple[Expr, ...]:
    """The least and the greatest place of a box along two axes."""
    if is_center:
        halves = [box(2) / const(2.0, f32), box(3) / const(2.0, f32)]
        return box(0) - halves[0], box(1) - halves[1], box(0) + halves[0], box(1) + halves[1]
    lows = [te.minimum(box(d), box(d + 2)) for d in range(2)]
    return (*lows, *(te.maximum(box(d), box(d + 2)) for d in range(2)))


def _compute_kept(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, ...]:
    """[batch, class, limit]: the boxes kept, the best first, what follows them being of no use; where each row's begin among all kept, and
    behind the last row's; how many there are."""
    boxes, scores, overlap, least = tensors
    assert boxes is not None and scores is not None and overlap is not None
    batches, classes, size = scores.shape
    (limit,) = exprs((attrs.limit,))
    zero = const(0.0, f32)
    room = ceildiv(limit, LANES) * LANES

    def body(kept: Buffer, starts: Buffer, total: Buffer) -> Stmt:
        def row(batch: Expr, class_: Expr) -> Stmt:
            pairs = Pairs.of(u32, bounds(size, current_facts()).hi, te.maximum(size, const(1)))
            earlier, count, is_bad = Buffer("earlier", (const(5), te.maximum(room, const(LANES))), f32), cell("kept_count"), cell("is_bad")
            bad = Buffer("bad", (const(LANES),), i32)
            own = [cell(name, f32) for name in ("low0", "low1", "high0", "high1", "area")]

            def candidate(i: Expr) -> Stmt:
                score = scores[(batch, class_, i)]
                key = order_key(score, largest=True)
                is_good = const(1) if least is None else cast(least[(const(0),)] < score, i64)
                return seq(pairs.store(get(pairs.count), pairs.made_of(key, i)), grow(pairs.count, is_good))

            def compare(g: Expr) -> Stmt:
                def one(lane: Expr) -> Stmt:
                    j = g * LANES + lane
                    low0, low1, high0, high1, area = (Load(earlier, (const(d), j)) for d in range(5))
                    width = te.minimum(high0, get(own[2])) - te.maximum(low0, get(own[0]))
                    height = te.minimum(high1, get(own[3])) - te.maximum(low1, get(own[1]))
                    common = width * height
                    whole = area + get(own[4]) - common
                    holds = (zero < width, zero < height, zero < common, zero < area, zero < get(own[4]), zero < whole)
                    is_over = logical_and(j < get(count), *holds, overlap[(const(0),)] < common / whole)
                    return Store(bad, (lane,), Select(is_over, const(1, i32), const(0, i32)))

                halves = [vector_loops(width, partial(_either, bad, width)) for width in (8, 4, 2, 1)]
                found = put(is_bad, cast(Load(bad, (const(0),)), i64))
                return If(logical_and(g * LANES + LANES <= room, equal(get(is_bad), 0)), seq(vector_loops(LANES, one), *halves, found))

            def look(c: Expr) -> Stmt:
                place = held(pairs.place(c), size)
                corners = _corners(lambda d: boxes[(batch, place, const(d))], attrs.is_center)
                area = (get(own[2]) - get(own[0])) * (get(own[3]) - get(own[1]))
                keep = seq(
                    *(Store(earlier, (const(d), held(get(count), room)), get(part)) for d, part in enumerate(own)),
                    Store(kept, (batch, class_, held(get(count), limit)), place),
                    grow(count),
                )
                return If(
                    get(count) < limit,
                    seq(
                        *(put(part, corner) for part, corner in zip(own, corners, strict=False)),
                        put(own[4], area),
                        put(is_bad, 0),
                        loop(ceildiv(get(count), LANES), compare, "g"),
                        If(equal(get(is_bad), 0), keep),
                    ),
                )

            begin = seq(put(pairs.side, 0), put(pairs.count, 0))
            chosen = seq(begin, loop(size, candidate), sort(pairs), loop(get(pairs.count), look, "c"))
            end = Store(starts, (batch * classes + class_ + 1,), get(count))
            work = If(logical_and(const(0) < limit, const(0) < size), chosen)
            return scratch((*pairs.buffers, earlier, count, is_bad, bad, *own), seq(put(count, 0), work, end))

        def add_up(p: Expr) -> Stmt:
            return seq(grow(so_far, Load(starts, (p + 1,))), Store(starts, (p + 1,), get(so_far)))

        so_far = cell("so_far")
        rows = loops_over_rows((batches, classes), size, row)
        summed = seq(put(so_far, 0), Store(starts, (const(0),), const(0)), loop(batches * classes, add_up, "p"))
        return seq(rows, scratch([so_far], seq(summed, Store(total, (const(0),), get(so_far)))))

    names = ("kept", "starts", "total")
    return te.raw([(name, t.shape, t.dtype) for name, t in zip(names, types, strict=True)], body, "kept_boxes")


def _either(bad: Buffer, width: int, lane: Expr) -> Stmt:
    return Store(bad, (lane,), te.maximum(Load(bad, (lane,)), Load(bad, (lane + width,))))


def _run_kept(arrays: Arrays, attrs: Attrs) -> tuple[np.ndarray, ...]:
    boxes, scores, overlap, least = arrays
    assert boxes is not None and scores is not None and overlap is not None
    limit = int(attrs.limit)
    kept, counts = np.zeros((*scores.shape[:2], limit), np.int64), np.zeros(scores.shape[:2], np.int64)
    halves = boxes[..., 2:] / np.float32(2)
    low = boxes[..., :2] - halves if attrs.is_center else np.minimum(boxes[..., :2], boxes[..., 2:])
    high = boxes[..., :2] + halves if attrs.is_center else np.maximum(boxes[..., :2], boxes[..., 2:])
    area = (high - low).prod(-1)
    for batch, class_ in np.ndindex(scores.shape[:2]):
        own = scores[batch, class_]
        for place in np.argsort(-own, kind="stable"):
            if counts[batch, class_] == limit or (least is not None and not own[place] > least[0]):
                continue
            before = kept[batch, class_, : counts[batch, class_]]
            sides = np.minimum(high[batch, before], high[batch, place]) - np.maximum(low[batch, before], low[batch, place])
            common = sides.prod(-1)
            whole = area[batch, before] + area[batch, place] - common
            holds = (sides > 0).all(-1) & (common > 0) & (area[batch, before] > 0) & (area[batch, place] > 0) & (whole > 0)
            if not (holds & (common / np.where(whole > 0, whole, 1) > overlap[0])).any():
                kept[batch, class_, counts[batch, class_]] = place
                counts[batch, class_] += 1
    starts = np.cumsum([0, *counts.reshape(-1)], dtype=np.int64)
    return kept, starts, starts[-1:].copy()


Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _boxes(rng: np.random.Generator, batches: int, classes: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    corners = rng.integers(0, 40, (batches, size, 4)).astype(np.float32)
    return corners, rng.integers(0, 50, (batches, classes, size)).astype(np.float32)


def _kept_samples(rng: np.random.Generator) -> Iterator[Sample]:
    half, some = np.array([0.3], np.float32), np.array([20.0], np.float32)
    for is_center in (False, True):
        full = {"limit": 60, "is_center": is_center}
        boxes, scores = _boxes(rng, 2, 2, 60)
        order = np.argsort(np.argsort(scores, -1, kind="stable"), -1).astype(np.float32)  # all kept, so that no place is without use
        far = boxes * 0 + np.arange(60, dtype=np.float32)[:, None] * 100 + np.array([0, 0, 1, 1], np.float32)
        if is_center:
            far[..., 2:] = 1
        yield [far, order, half, None], full
        yield [boxes, scores, half, some], {"limit": 1, "is_center": is_center}
    yield [*_boxes(rng, 1, 2, 0), half, None], {"limit": 0, "is_center": False}


register(OpDef("kept_boxes", _infer_kept, _run_kept, _compute_kept, {"limit": REQUIRED, "is_center": False}, samples=_kept_samples))


# -- their numbers, one a row


def _infer_rows(types: Types, attrs: Attrs) -> TensorType:
    kept, starts = operand(types, 0, "box_rows"), operand(types, 1, "box_rows")
    if kept.rank != 3 or starts.rank != 1:
        raise ShapeError(f"box_rows: boxes are {kept}, their starts {starts}")
    require_equal(starts.shape[0], kept.shape[0] * kept.shape[1] + 1, "box_rows: the number of starts")
    (count,) = exprs((attrs.count,))
    require(count <= product(kept.shape), f"box_rows: {count} of the boxes {kept}")
    return TensorType((count, const(3)), i64)


def _compute_rows(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    kept, starts = tensors
    assert kept is not None and starts is not None
    batches, classes, limit = kept.shape
    (count,) = exprs((attrs.count,))

    def body(out: Buffer) -> Stmt:
        def row(batch: Expr, class_: Expr) -> Stmt:
            p = batch * classes + class_

            def copy(start: Expr, end: Expr) -> Stmt:
                def one(j: Expr) -> Stmt:
                    parts = (batch, class_, kept[(batch, class_, j)])
                    return seq(*(Store(out, (start + j, const(d)), part) for d, part in enumerate(parts)))

                fits = logical_and(const(0) <= start, start <= end, end <= count, end - start <= limit)
                return If(fits, loop(end - start, one))

            return let(starts[(p,)], lambda start: let(starts[(p + 1,)], lambda end: copy(start, end), "end"), "start")

        return loop(batches, lambda batch: loop(classes, lambda c: row(batch, c), "class"), "batch")

    return te.raw([("rows", types[0].shape, i64)], body, "box_rows")[0]


def _run_rows(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    kept, starts = arrays
    assert kept is not None and starts is not None
    counts = np.diff(starts).reshape(kept.shape[:2])
    if starts[-1] != attrs.count or counts.min(initial=0) < 0 or counts.max(initial=0) > kept.shape[2]:
        raise InputError(f"box_rows: starts {starts.tolist()} of {attrs.count} boxes, {kept.shape[2]} of a class at most", code="TC2004")
    rows = [(b, c, place) for b, c in np.ndindex(kept.shape[:2]) for place in kept[b, c, : counts[b, c]]]
    return np.array(rows, np.int64).reshape(int(attrs.count), 3)


register(
    OpDef(
        "box_rows",
        _infer_rows,
        _run_rows,
        _compute_rows,
        {"count": REQUIRED},
        samples=lambda rng: iter([([rng.integers(0, 9, (2, 2, 4)), np.array([0, 3, 3, 4, 8])], {"count": 8})]),
    )
)
