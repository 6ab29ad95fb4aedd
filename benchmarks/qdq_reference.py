"""A quantized graph in double precision: what two runtimes that round differently are both measured against.

ONNX's reference evaluator runs the graph with f64 for every float; what it rounds to f32, or is slow at, is defined here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

Slices = tuple[slice, ...]


def run_in_double(model: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of `model`, every float computed in f64; integers are rounded, and saturate, where the graph says so."""
    evaluator = ReferenceEvaluator(in_double(model), new_ops=list(OPERATORS))
    wide = {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in arrays.items()}
    return list(evaluator.run(None, wide))


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` with f64 for f32 in weights, constants, inputs and outputs, and in what casts convert to."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    graph.ClearField("value_info")
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    tensors = [
        *graph.initializer,
        *(a.t for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.TENSOR),
    ]
    for tensor in tensors:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    return made


# -- quantization


def along(parameter: np.ndarray, x: np.ndarray, axis: int, block: int = 0) -> np.ndarray:
    """A scale or zero point, of the tensor, of each place of `axis` or of so many of them, so that it broadcasts against `x`."""
    parameter = np.asarray(parameter)
    if block:
        return np.take(parameter, np.arange(x.shape[axis]) // block, axis)
    if parameter.size == 1:
        return parameter.reshape(())
    return parameter.reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])


class QuantizeLinear(OpRun):
    """What is no number becomes the least one, as in runtimes that clip with instructions for the larger and the smaller of two."""

    def _run(self, x: Any, scale: Any, zero: Any = None, axis: int = 1, block_size: int = 0, output_dtype: int = 0, saturate: int = 1,
             **_: Any) -> tuple[np.ndarray]:  # fmt: skip
        dtype = _quantized_dtype(zero, output_dtype)
        places = x.astype(np.float64) / along(scale, x, axis, block_size).astype(np.float64)
        if dtype.name.startswith("float8"):
            most = float(ml_dtypes.finfo(dtype).max)
            return (np.asarray(np.clip(places, -most, most) if saturate else places).astype(np.float32).astype(dtype),)
        shift = 0 if zero is None else along(zero, x, axis, block_size).astype(np.float64)
        limits = ml_dtypes.iinfo(dtype)
        steps = np.clip(np.rint(places) + shift, int(limits.min), int(limits.max))
        return (np.where(np.isnan(steps), int(limits.min), steps).astype(np.int64).astype(dtype),)


def _quantized_dtype(zero: np.ndarray | None, output_dtype: int) -> np.dtype:
    if zero is not None:
        return zero.dtype
    return np.dtype(helper.tensor_dtype_to_np_dtype(output_dtype)) if output_dtype else np.dtype(np.uint8)


class DequantizeLinear(OpRun):
    """Scales of f16 give f16, rounded once."""

    def _run(self, x: Any, scale: Any, zero: Any = None, axis: int = 1, block_size: int = 0, **_: Any) -> tuple[np.ndarray]:
        shift = 0.0 if zero is None else along(zero, x, axis, block_size).astype(np.float64)
        result = np.asarray((x.astype(np.float64) - shift) * along(scale, x, axis, block_size).astype(np.float64))
        return (result.astype(np.float16) if scale.dtype == np.float16 else result,)


# -- windows: one product, or one maximum, for each tap


def _window(attributes: Mapping[str, Any], kernel: Sequence[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Strides, dilations, pads before and pads after. Only explicit pads are here."""
    rank = len(kernel)
    assert (attributes.get("auto_pad") or "NOTSET") == "NOTSET", "auto_pad is not here"
    strides, dilations = (list(attributes.get(key) or [1] * rank) for key in ("strides", "dilations"))
    pads = list(attributes.get("pads") or [0] * (2 * rank))
    return strides, dilations, pads[:rank], pads[rank:]


def _taps(
    kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[Any, Slices]]:
    """Each place of the kernel, and the elements that it meets when the window goes to `sizes` places."""
    for tap in itertools.product(*map(range, kernel)):
        starts = [k * d for k, d in zip(tap, dilations, strict=True)]
        met = tuple(slice(s, s + (n - 1) * t + 1, t) for s, n, t in zip(starts, sizes, strides, strict=True))
        yield tap, met


def _padded(x: np.ndarray, before: Sequence[int], after: Sequence[int], fill: float) -> np.ndarray:
    return np.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)], constant_values=fill)


class Conv(OpRun):
    def _run(self, x: Any, w: Any, bias: Any = None, group: int = 1, **attributes: Any) -> tuple[np.ndarray]:
        kernel = w.shape[2:]
        strides, dilations, before, after = _window(attributes, kernel)
        x = _padded(x, before, after, 0.0)
        sizes = [
            (n - d * (k - 1) - 1) // t + 1 for n, k, t, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)
        ]
        batch, channels = x.shape[:2]
        filters = w.reshape(group, w.shape[0] // group, channels // group, *kernel)
        result = np.zeros((batch, group, filters.shape[1], math.prod(sizes)))
        for tap, met in _taps(kernel, strides, dilations, sizes):
            result += filters[(..., *tap)] @ x[(slice(None), slice(None), *met)].reshape(
                batch, group, channels // group, -1
            )
        result = result.reshape(batch, w.shape[0], *sizes)
        return (result if bias is None else result + along(bias, result, 1),)


class ConvTranspose(OpRun):
    def _run(self, x: Any, w: Any, bias: Any = None, group: int = 1, **attributes: Any) -> tuple[np.ndarray]:
        assert group == 1 and not any(attributes.get("output_padding") or ()) and not attributes.get("output_shape")
        kernel, sizes = w.shape[2:], x.shape[2:]
        strides, dilations, before, after = _window(attributes, kernel)
        full = [(n - 1) * t + d * (k - 1) + 1 for n, k, t, d in zip(sizes, kernel, strides, dilations, strict=True)]
        result = np.zeros((x.shape[0], w.shape[1], *full))
        flat = x.reshape(*x.shape[:2], -1)
        for tap, met in _taps(kernel, strides, dilations, sizes):
            result[(slice(None), slice(None), *met)] += (w[(..., *tap)].T @ flat).reshape(
                x.shape[0], w.shape[1], *sizes
            )
        kept = tuple(slice(b, n - a) for b, a, n in zip(before, after, full, strict=True))
        result = result[(slice(None), slice(None), *kept)]
        return (result if bias is None else result + along(bias, result, 1),)


def _pool(x: np.ndarray, attributes: Mapping[str, Any], fill: float, join: Callable[..., np.ndarray]) -> np.ndarray:
    """The windows of `x` joined; where `ceil_mode` has a window reach beyond the pads, by `fill` too."""
    kernel = attributes["kernel_shape"]
    strides, dilations, before, after = _window(attributes, kernel)
    extents = [
        n + b + a - d * (k - 1) - 1 for n, b, a, k, d in zip(x.shape[2:], before, after, kernel, dilations, strict=True)
    ]
    sizes = [(-(-e // t) if attributes.get("ceil_mode") else e // t) + 1 for e, t in zip(extents, strides, strict=True)]
    for d, (n, b, t) in enumerate(zip(x.shape[2:], before, strides, strict=True)):
        sizes[d] -= (sizes[d] - 1) * t >= n + b  # a window may not begin behind the last element
    beyond = [max((m - 1) * t - e, 0) for m, t, e in zip(sizes, strides, extents, strict=True)]
    x = _padded(x, before, [a + more for a, more in zip(after, beyond, strict=True)], fill)
    result = np.full((*x.shape[:2], *sizes), fill)
    for _, met in _taps(kernel, strides, dilations, sizes):
        result = join(result, x[(slice(None), slice(None), *met)])
    return result


class MaxPool(OpRun):
    def _run(self, x: Any, **attributes: Any) -> tuple[np.ndarray]:
        return (_pool(x.astype(np.float64), attributes, -np.inf, np.maximum).astype(x.dtype),)


class AveragePool(OpRun):
    def _run(self, x: Any, **attributes: Any) -> tuple[np.ndarray]:
        ones = np.ones((1, 1, *x.shape[2:]))
        if attributes.get("count_include_pad"):
            kernel = attributes["kernel_shape"]
            _, _, before, after = _window(attributes, kernel)
            counted = _pool(_padded(ones, before, after, 1.0), {**attributes, "pads": None}, 0.0, np.add)
        else:
            counted = _pool(ones, attributes, 0.0, np.add)
        return (_pool(x, attributes, 0.0, np.add) / counted,)


class Erf(OpRun):
    def _run(self, x: Any) -> tuple[np.ndarray]:
        from scipy.special import erf

        return (erf(x),)


OPERATORS = (QuantizeLinear, DequantizeLinear, Conv, ConvTranspose, MaxPool, AveragePool, Erf)
