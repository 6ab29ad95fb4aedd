"""Operators of ONNX that sample images at places that are data."""

from __future__ import annotations

from tc.errors import ShapeError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.ir.types import product
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
