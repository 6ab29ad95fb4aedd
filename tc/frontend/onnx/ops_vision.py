"""Operators of ONNX that take from images what lies at places that are data."""

from __future__ import annotations

from tc.errors import ModelError, ShapeError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.values import ModelValue
from tc.ir.dtype import i64
from tc.ir.expr import Expr, const
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
        raise ModelError(f"RoiAlign: there is no coordinate_transformation_mode {coordinates!r}")
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
