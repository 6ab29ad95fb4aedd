"""What operators meant before opset 7, where that is not what they have meant since: broadcasting by an axis, operands as attributes,
attributes by other names. Attributes that only told a framework where to write (`consumed_inputs`, `output_sequence`) mean nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tc.errors import NodeError, ShapeError, UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, find_adapter, onnx_op, onnx_op_before
from tc.frontend.onnx.ops_nn import batch_norm_of_places
from tc.frontend.onnx.ops_slice import pad_value
from tc.frontend.onnx.shapes import FIRST_WITH_NUMPYS_BROADCASTING
from tc.frontend.onnx.tensors import dtype_of
from tc.frontend.onnx.values import ModelValue
from tc.ir.dtype import f32, i64
from tc.ir.expr import Expr, as_expr, const

_early = partial(onnx_op_before, FIRST_WITH_NUMPYS_BROADCASTING)

_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "And": "logical_and", "Or": "logical_or",
    "Xor": "logical_xor", "Equal": "equal", "Greater": "greater", "Less": "less",
}


def _with_axes_behind(n: NodeContext, x: ModelValue, behind: int) -> ModelValue:
    return n.call("reshape", x, shape=(*x.shape, *(const(1) for _ in range(behind)))) if behind else x


def _binary(op: str) -> Callable[[NodeContext], ModelValue]:
    """Operands of one shape; with `broadcast` the axes of the second one are those of the first from `axis` on, by default the last."""

    def adapter(n: NodeContext) -> ModelValue:
        a, b = n.value(0), n.value(1)
        if not n.attr("broadcast", 0):
            if a.rank != b.rank:
                raise ShapeError(f"{n.op_type}: {a.type} and {b.type}, without broadcasting")
            return n.call(op, a, b)
        return n.call(op, a, _with_axes_behind(n, b, n.axes_behind(a, b)))

    return adapter


for _name, _op in _BINARY.items():
    _early(_name)(_binary(_op))


@_early("PRelu")
def import_prelu(n: NodeContext) -> NodeResult:
    """One slope, or one for each channel."""
    x, slope = n.value(0), n.value(1)
    return n.call("prelu", x, _with_axes_behind(n, slope, x.rank - 2) if slope.rank == 1 and x.rank > 2 else slope)


@_early("Gemm")
def import_gemm(n: NodeContext) -> NodeResult:
    adapter = find_adapter("", "Gemm", FIRST_WITH_NUMPYS_BROADCASTING)
    assert adapter is not None, "it has one since then"
    return adapter(n)


@_early("BatchNormalization")
def import_batch_norm(n: NodeContext) -> NodeResult:
    if not n.attr("is_test", 0) and any(n.has_output(k) for k in range(1, 5)):
        raise UnsupportedError("BatchNormalization in training mode: it has more than one output", code="TC1019")
    if not n.attr("spatial", 1):
        return batch_norm_of_places(n)
    x, *parameters = n.values()
    if x.rank < 2:
        raise ShapeError(f"BatchNormalization: the input must be [n, c, *space], found {x.type}")
    return n.call("batch_norm", x, *parameters, epsilon=n.attr("epsilon", 1e-5))


@_early("Cast")
def import_cast(n: NodeContext) -> NodeResult:
    """The type is a number since opset 6, and the name of one before."""
    from onnx import TensorProto

    to = n.attr("to")
    if isinstance(to, str):
        if to.upper() not in TensorProto.DataType.keys():
            raise NodeError(f"Cast: no type is called {to!r}")
        to = TensorProto.DataType.Value(to.upper())
    return n.call("cast", n.value(0), dtype=dtype_of(to, "the attribute 'to'"))


@_early("Reshape")
def import_reshape(n: NodeContext) -> NodeResult:
    """The shape is an operand since opset 5, and an attribute before."""
    adapter = find_adapter("", "Reshape", FIRST_WITH_NUMPYS_BROADCASTING)
    assert adapter is not None, "it has one since then"
    if n.opset < 5:
        n.inputs.append(n.const(np.array(n.attr("shape"), np.int64), i64))
    return adapter(n)


@_early("Tile")
def import_tile(n: NodeContext) -> NodeResult:
    """Before opset 6 along one axis, both given as operands."""
    x = n.value(0)
    if n.opset >= 6:
        return n.call("tile", x, repeats=n.dims(1, "repeats"))
    tiles, axis = n.ints(1, "tiles"), n.ints(2, "axis")
    if not tiles or not axis or not 0 <= axis[0] < x.rank:
        raise ShapeError(f"Tile: {tiles} times along axis {axis} of {x.type}")
    return n.call("tile", x, repeats=tuple(const(tiles[0] if d == axis[0] else 1) for d in range(x.rank)))


@_early("Pad")
def import_pad(n: NodeContext) -> NodeResult:
    """`paddings` before opset 2."""
    x = n.value(0)
    pads = n.attr("pads", n.attr("paddings"))
    return pad_value(n, x, [as_expr(v) for v in pads], n.const(n.attr("value", 0.0), x.dtype), n.attr("mode", "constant"))


@_early("Split")
def import_split(n: NodeContext) -> NodeResult:
    """Before opset 2 the sizes may be an operand."""
    x, axis = n.value(0), n.attr("axis", 0)
    sizes = n.attr("split", n.ints(1, "split"))
    if not -x.rank <= axis < x.rank:  # exporters counted from the end before ONNX said so
        raise ShapeError(f"Split: axis {axis} of {x.type}")
    axis %= x.rank
    parts: list[Expr] = [as_expr(v) for v in sizes] if sizes else [x.shape[axis] // n.num_outputs] * n.num_outputs
    return n.call_many("split", x, axis=axis, sizes=tuple(parts))


@_early("Upsample")
def import_upsample(n: NodeContext) -> NodeResult:
    """Of images [n, c, h, w], before opset 7."""
    x, mode = n.value(0), n.attr("mode", "nearest")
    by = (n.attr("height_scale"), n.attr("width_scale"))
    if x.rank != 4 or None in by:
        raise ShapeError(f"Upsample: scales {by} of {x.type}")
    adapter = find_adapter("", "Upsample", FIRST_WITH_NUMPYS_BROADCASTING + 2)
    assert adapter is not None, "it has one since then"
    n.inputs.append(n.const(np.array([1, 1, *by], np.float32), f32))
    if mode not in ("nearest", "bilinear"):
        raise UnsupportedError(f"Upsample: no mode {mode!r}", code="TC1013", supported="nearest, bilinear")
    return adapter(n)


@_early("Selu")
def import_selu(n: NodeContext) -> NodeResult:
    """With fewer digits before opset 6."""
    alpha, gamma = (1.6732, 1.0507) if n.opset < 6 else (1.67326319, 1.05070102)
    return n.call("selu", n.value(0), alpha=n.attr("alpha", alpha), gamma=n.attr("gamma", gamma))


@_early("GlobalLpPool")
def import_global_lp_pool(n: NodeContext) -> NodeResult:
    """Of a norm that is a fraction, before opset 2."""
    x, p = n.value(0), n.attr("p", 2.0)
    axes = tuple(range(2, x.rank))
    if p in (1, 2):
        return n.call("l1" if p == 1 else "l2", x, axes=axes, keepdims=True)
    total = n.call("sum", n.call("pow", n.call("abs", x), n.const(float(p), x.dtype)), axes=axes, keepdims=True)
    return n.call("pow", total, n.const(1.0 / float(p), x.dtype))


# -- what opset 1 tried out, and later ones took back


@onnx_op("Affine")
def import_affine(n: NodeContext) -> NodeResult:
    x = n.value(0)
    scaled = n.call("mul", x, n.const(n.attr("alpha", 1.0), x.dtype))
    return n.call("add", scaled, n.const(n.attr("beta", 0.0), x.dtype))


@onnx_op("Scale")
def import_scale(n: NodeContext) -> NodeResult:
    x = n.value(0)
    return n.call("mul", x, n.const(n.attr("scale", 1.0), x.dtype))


@onnx_op("ImageScaler")
def import_image_scaler(n: NodeContext) -> NodeResult:
    """x * scale + bias, of images [n, c, h, w] and a bias for each channel."""
    x, bias = n.value(0), n.attr("bias")
    if x.rank != 4 or not bias:
        raise ShapeError(f"ImageScaler of {x.type}, which must be [n, c, h, w], by biases {bias}")
    scaled = n.call("mul", x, n.const(n.attr("scale", 1.0), x.dtype))
    return n.call("add", scaled, n.call("reshape", n.const(bias, x.dtype), shape=(x.shape[1], 1, 1)))


def _scaled(op: str) -> Callable[[NodeContext], ModelValue]:
    """alpha * op(beta * x)"""

    def adapter(n: NodeContext) -> ModelValue:
        x, alpha, beta = n.value(0), *(n.attr(name) for name in ("alpha", "beta"))
        if alpha is None or beta is None:
            raise NodeError(f"{n.op_type} needs alpha and beta")
        return n.call("mul", n.call(op, n.call("mul", x, n.const(beta, x.dtype))), n.const(alpha, x.dtype))

    return adapter


onnx_op("ScaledTanh")(_scaled("tanh"))
onnx_op("ParametricSoftplus")(_scaled("softplus"))


@onnx_op("Crop")
def import_crop(n: NodeContext) -> NodeResult:
    """Images [n, c, h, w] less a border (left, top, right, bottom), or as many rows and columns as `scale` says, behind the first two."""
    x, border, size = n.value(0), n.attr("border"), n.attr("scale")
    if x.rank != 4 or border is None or len(border) != 4 or (size is not None and len(size) != 2):
        raise ShapeError(f"Crop of {x.type}, which must be [n, c, h, w], by a border {border} and sizes {size}")
    left, top, right, bottom = border
    rows, columns = size or (x.shape[2] - (top + bottom), x.shape[3] - (left + right))
    sizes = (*x.shape[:2], as_expr(rows), as_expr(columns))
    return n.call("slice", x, starts=(0, 0, top, left), sizes=sizes, steps=(1, 1, 1, 1))


@onnx_op("DynamicSlice")
def import_dynamic_slice(n: NodeContext) -> NodeResult:
    adapter = find_adapter("", "Slice", 10)
    assert adapter is not None, "it takes operands since then"
    return adapter(n)
