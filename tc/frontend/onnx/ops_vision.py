"""Operators of ONNX that take from images what lies at places that are data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np

from tc.errors import NodeError, ShapeError, UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.values import ModelValue, size_value
from tc.ir.arith import simplify
from tc.ir.dtype import f32, f64, i64
from tc.ir.expr import Expr, const, floordiv, is_const, maximum, minimum
from tc.ir.types import product
from tc.ops.common import require_equal
from tc.ops.sampling import OFFSETS

_SAMPLING_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""What opset 16 calls the modes that have been called otherwise since 20."""


@onnx_op("GridSample", since=16)
def import_grid_sample(n: NodeContext) -> NodeResult:
    x, grid = n.value(0), n.value(1)
    if x.rank < 3 or x.rank != grid.rank:
        raise ShapeError(f"GridSample: {x.type} and the grid {grid.type} must have the same number of dims, at least 3")
    mode = n.attr("mode", "linear")
    mode, padding = _SAMPLING_MODES.get(mode, mode), n.attr("padding_mode", "zeros")
    sizes = x.shape[2:]
    tables = n.graph.call(
        "grid_taps", grid, span=n.span, sizes=sizes, mode=mode, padding=padding, align_corners=bool(n.attr("align_corners", 0))
    )
    flat = n.call("reshape", x, shape=(*x.shape[:2], product(sizes)))
    return n.call("sample_taps", flat, *tables, rank=len(sizes), taps=len(OFFSETS[mode]), zeros=padding == "zeros")


@onnx_op("RoiAlign", since=10)
def import_roi_align(n: NodeContext) -> NodeResult:
    """Until opset 16 borders are not moved by half an element."""
    coordinates = n.attr("coordinate_transformation_mode", "half_pixel") if n.opset >= 16 else "output_half_pixel"
    if coordinates not in ("half_pixel", "output_half_pixel"):
        raise NodeError(f"RoiAlign: there is no coordinate_transformation_mode {coordinates!r}")
    x, rois, batch = n.value(0), n.value(1), n.value(2)
    ratio = max(n.attr("sampling_ratio", 0), 0)
    attrs = {"sampling_ratio": ratio, "half_pixel": coordinates == "half_pixel", "scale": n.attr("spatial_scale", 1.0)}
    pooled = (n.attr("output_height", 1), n.attr("output_width", 1))
    tables = n.graph.call("roi_grid", rois, span=n.span, pooled=pooled, sizes=_image_sizes(n, x), **attrs)
    last = n.call("transpose", x, perm=(0, 2, 3, 1))
    found = n.call("roi_align", last, batch, *tables, mode=n.attr("mode", "avg").lower(), sampling_ratio=ratio)
    return n.call("transpose", found, perm=(0, 3, 1, 2))


def _image_sizes(n: NodeContext, x: ModelValue) -> tuple[Expr, ...]:
    if x.rank != 4:
        raise ShapeError(f"{n.op_type}: the input must be [n, c, h, w], found {x.type}")
    return x.shape[2:]


@onnx_op("MaxRoiPool")
def import_max_roi_pool(n: NodeContext) -> NodeResult:
    """Rows of a region: the number of its image, then its borders. As onnxruntime does it: elements at the borders belong to it."""
    x, rois = n.value(0), n.value(1)
    if rois.rank != 2:
        raise ShapeError(f"MaxRoiPool: the regions must be [r, 5], found {rois.type}")
    regions = rois.shape[0]
    n.graph.state(lambda: require_equal(rois.shape[1], const(5), f"MaxRoiPool: dim 1 of the regions {rois.type}"), n.span)
    batch = n.call("slice", rois, starts=(0, 0), sizes=(regions, 1), steps=(1, 1))
    batch = n.call("cast", n.call("reshape", batch, shape=(regions,)), dtype=i64)
    batch = n.call("check_range", batch, limit=x.shape[0], what="batch index")
    borders = n.call("slice", rois, starts=(0, 1), sizes=(regions, 4), steps=(1, 1))
    pooled, scale = tuple(n.attr("pooled_shape")), n.attr("spatial_scale", 1.0)
    edges = n.graph.call("roi_edges", borders, span=n.span, pooled=pooled, sizes=_image_sizes(n, x), scale=scale)
    last = n.call("transpose", x, perm=(0, 2, 3, 1))
    return n.call("transpose", n.call("roi_max", last, batch, *edges), perm=(0, 3, 1, 2))


@onnx_op("DeformConv", since=19)
def import_deform_conv(n: NodeContext) -> NodeResult:
    """A convolution whose taps are moved by data, between elements: images are sampled first, then weights applied (Dai et al., 2017)."""
    x, w, offset = n.value(0), n.value(1), n.value(2)
    bias, mask = n.optional(3), n.optional(4)
    if x.rank != 4 or w.rank != 4 or offset.rank != 4:
        raise UnsupportedError(
            f"DeformConv of {x.type} with weights {w.type} and offsets {offset.type}: images of two axes are supported",
            code="TC1014",
        )
    groups, parts, out = n.attr("group", 1), n.attr("offset_group", 1), offset.shape[2:]
    strides, dilations, pads = n.attr("strides") or [1, 1], n.attr("dilations") or [1, 1], n.attr("pads") or [0] * 4
    taps = w.shape[2:]
    batch, count = x.shape[0], product(taps)

    def fits() -> None:
        require_equal(w.shape[1] * groups, x.shape[1], f"DeformConv: the channels of the weights {w.type} in {groups} groups")
        require_equal(offset.shape[1], count * (2 * parts), f"DeformConv: dim 1 of the offsets {offset.type}")
        require_equal(offset.shape[0], batch, f"DeformConv: dim 0 of the offsets {offset.type}")
        require_equal(simplify(x.shape[1] // parts, n.facts) * parts, x.shape[1], f"DeformConv: the channels of {parts} offset groups")
        for d, size in enumerate(out):
            reach = x.shape[2 + d] + (pads[d] + pads[2 + d]) - (taps[d] - 1) * dilations[d] - 1
            require_equal(size, floordiv(reach, strides[d]) + 1, f"DeformConv: dim {2 + d} of the offsets {offset.type}")

    n.graph.state(fits, n.span)
    attrs = {"strides": tuple(strides), "dilations": tuple(dilations), "pads": tuple(pads[:2])}
    tables = n.graph.call("moved_taps", offset, span=n.span, sizes=x.shape[2:], taps=taps, parts=parts, **attrs)
    tables = tables if mask is None else (*tables, mask)
    flat = n.call("reshape", x, shape=(*x.shape[:2], x.shape[2] * x.shape[3]))
    last = n.call("transpose", flat, perm=(0, 2, 1))
    is_depthwise = is_const(w.shape[1], 1) and is_const(w.shape[0], groups) and x.dtype in (f32, f64)
    summed = _sum_of_channels if is_depthwise else _sum_of_groups
    found = n.call("reshape", summed(n, last, tables, w, out, groups, parts), shape=(batch, w.shape[0], *out))
    return found if bias is None else n.call("add", found, n.call("reshape", bias, shape=(w.shape[0], const(1), const(1))))


def _sum_of_groups(
    n: NodeContext, x: ModelValue, tables: Sequence[ModelValue], w: ModelValue, out: Sequence[Expr], groups: int, parts: int
) -> ModelValue:
    """[n, g, channels of a group, points]: products with the weights of each group. `x`: [n, elements, c]."""
    units = lcm(groups, parts) // groups  # channels that share weights' group and offsets are a unit: how many a group has
    unit = simplify(w.shape[1] // units, n.facts)
    columns = n.call("sample_moved", x, *tables, groups=groups, units=units, unit=unit, units_of_part=units * groups // parts)
    count = product(w.shape[2:])
    depth, rows = simplify(w.shape[1] * count, n.facts), simplify(w.shape[0] // groups, n.facts)
    columns = n.call("reshape", columns, shape=(x.shape[0], const(groups), product(tuple(out)), depth))
    weights = n.call("reshape", w, shape=(const(groups), rows, w.shape[1], count))
    weights = n.call("reshape", n.call("transpose", weights, perm=(0, 3, 2, 1)), shape=(const(groups), depth, rows))
    return n.call("transpose", n.call("matmul", columns, weights), perm=(0, 1, 3, 2))


def _sum_of_channels(
    n: NodeContext, x: ModelValue, tables: Sequence[ModelValue], w: ModelValue, out: Sequence[Expr], groups: int, parts: int
) -> ModelValue:
    """[n, c, points], where each channel has weights of its own: sums for vectors of channels."""
    count, points = product(w.shape[2:]), product(tuple(out))
    columns = n.call("sample_moved", x, *tables, groups=1, units=parts, unit=groups // parts, units_of_part=1)
    columns = n.call("reshape", columns, shape=(x.shape[0], points, count, const(groups)))
    weights = n.call("transpose", n.call("reshape", w, shape=(const(groups), count)), perm=(1, 0))
    return n.call("transpose", n.call("sum", n.call("mul", columns, weights), axes=(2,), keepdims=False), perm=(0, 2, 1))


@onnx_op("NonMaxSuppression")
def import_non_max_suppression(n: NodeContext) -> NodeResult:
    boxes, scores, most = n.value(0), n.value(1), n.optional(2)
    if most is None or boxes.rank != 3 or scores.rank != 3:
        return n.const(np.zeros((0, 3)), i64)
    wanted = n.call("reshape", n.call("maximum", most, n.const(0, i64)), shape=(const(1),))
    (limit,) = n.graph.dims(wanted, f"{n.label}.limit", n.span)
    limit = simplify(minimum(limit, boxes.shape[1]), n.facts)
    overlap, least = (None if value is None else n.call("reshape", value, shape=(const(1),)) for value in (n.optional(3), n.optional(4)))
    if overlap is None:
        overlap = n.const([0], f32)
    is_center = bool(n.attr("center_point_box", 0))
    kept, starts, total = n.graph.call("kept_boxes", boxes, scores, overlap, least, span=n.span, limit=limit, is_center=is_center)
    (count,) = n.graph.dims(total, f"{n.label}.count", n.span)
    return n.call("box_rows", kept, starts, count=count)


# -- crops


@onnx_op("CropAndResize", domain="com.microsoft")
def import_crop_and_resize(n: NodeContext) -> NodeResult:
    """Parts of images x [n, c, h, w], each between the corners (y, x, y, x) of a box in shares of the image, its borders on those of the
    result [r, c, h', w']; a constant where they are outside of the image."""
    x, boxes, batch = n.value(0), n.value(1), n.value(2)
    height, width = _image_sizes(n, x)
    mode = n.attr("mode", "bilinear")
    if mode not in ("bilinear", "nearest"):
        raise UnsupportedError(f"CropAndResize with mode {mode!r}", code="TC1013", supported="bilinear, nearest")
    if boxes.rank != 2 or batch.rank != 1:
        raise ShapeError(f"CropAndResize: boxes of {boxes.type}, which must be [r, 4], for images [r], which are {batch.type}")
    rows, columns = n.dims(3, "crop_size", 2)
    boxes = n.call("reshape", n.cast(boxes, f64 if x.dtype is f64 else f32), shape=(batch.shape[0], 4))
    ys, xs = _points(n, boxes, 0, height, rows), _points(n, boxes, 1, width, columns)
    is_in = n.call("logical_and", n.call("unsqueeze", ys.is_in, axes=(2,)), n.call("unsqueeze", xs.is_in, axes=(1,)))
    owner = n.call("check_range", n.cast(batch, i64), limit=x.shape[0], what="index of an image")
    last = n.call("transpose", x, perm=(0, 2, 3, 1))

    def taken(row: ModelValue, column: ModelValue) -> ModelValue:
        """[r, h', w', c]"""
        shape = (batch.shape[0], rows, columns, 1)
        image = n.call("unsqueeze", owner, axes=(1, 2, 3))
        each = (image, n.call("unsqueeze", row, axes=(2, 3)), n.call("unsqueeze", column, axes=(1, 3)))
        places = n.call("concat", *(n.call("expand", part, shape=shape) for part in each), axis=3)
        return n.call("gather_nd", last, places, batch_dims=0)

    if mode == "nearest":
        half = n.const(0.5, boxes.dtype)
        near = [n.cast(n.call("floor", n.call("add", points.at, half)), i64) for points in (ys, xs)]
        found = taken(*near)
    else:
        low, high = ([n.cast(n.call(way, points.at), i64) for points in (ys, xs)] for way in ("floor", "ceil"))
        share = n.call("unsqueeze", _rest(n, xs), axes=(1, 3))
        across = [_between(n, taken(row, low[1]), taken(row, high[1]), share) for row in (low[0], high[0])]
        found = _between(n, *across, n.call("unsqueeze", _rest(n, ys), axes=(2, 3)))
    outside = n.const(n.attr("extrapolation_value", 0.0), found.dtype)
    found = n.call("where", n.call("unsqueeze", is_in, axes=(3,)), found, outside)
    return n.cast(n.call("transpose", found, perm=(0, 3, 1, 2)), x.dtype)


@dataclass(frozen=True)
class _Points:
    """Where the rows or columns of crops lie in their images [r, k], 0 where they lie outside."""

    at: ModelValue
    is_in: ModelValue


def _points(n: NodeContext, boxes: ModelValue, axis: int, size: Expr, count: Expr) -> _Points:
    """Those of an axis: `count` from one border of each box to the other, or the one in its middle."""
    first, last = (n.part(boxes, 1, k, 1) for k in (axis, axis + 2))
    limit = n.cast(size_value(size - 1), boxes.dtype)
    step = n.call("div", n.call("mul", n.call("sub", last, first), limit), n.cast(size_value(maximum(count - 1, 1)), boxes.dtype))
    spread = n.call("add", n.call("mul", first, limit), n.call("mul", n.cast(n.call("range", size=count), boxes.dtype), step))
    middle = n.call("mul", n.call("mul", n.call("add", first, last), n.const(0.5, boxes.dtype)), limit)
    at = n.call("where", n.call("equal", size_value(count), n.const(1, i64)), middle, spread)
    is_in = n.call("logical_and", n.call("less_equal", n.const(0, at.dtype), at), n.call("less_equal", at, limit))
    return _Points(n.call("where", is_in, at, n.const(0, at.dtype)), is_in)


def _rest(n: NodeContext, points: _Points) -> ModelValue:
    return n.call("sub", points.at, n.call("floor", points.at))


def _between(n: NodeContext, a: ModelValue, b: ModelValue, share: ModelValue) -> ModelValue:
    wide = [n.cast(value, share.dtype) for value in (a, b)]
    return n.call("add", wide[0], n.call("mul", n.call("sub", wide[1], wide[0]), share))
