"""Bias correction: what quantizing a product shifts its results by, on average in each channel, is taken off its bias.

    shift[o] = mean(sum(w8[o, c] * x8[c])) - mean(sum(w[o, c] * x[c])),  over calibration inputs; a convolution's taps are summed too

Rounded weights times operands that are no zeros on average, and thresholds that clip one side, give every product a shift of its own,
which is the same for all inputs; the bias is there anyway, so taking it off costs nothing when the model runs.

Source: Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias Correction"; means are of operands in f32, so that
no product's shift depends on the types of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from tc.quantization.prepare import attribute
from tc.quantization.topology import QuantizationSite, Topology

SAMPLED_ROWS = 1024
"""Of each operand, over all calibration inputs: the mean of what rounding does to so many is a hundredth of a step off."""


class OperandSample:
    """Numbers of an operand by channel. `rows`: float32[n, channels], evenly spaced over what each call gave; `shapes`: of each call;
    `lows`, `highs`: float32[channels] of each call that gave any."""

    def __init__(self, axis: int, calls: int) -> None:
        self.axis, self._each = axis, max(1, SAMPLED_ROWS // max(calls, 1))
        self._rows: list[np.ndarray] = []
        self.shapes: list[tuple[int, ...]] = []
        self.lows: list[np.ndarray] = []
        self.highs: list[np.ndarray] = []

    def update(self, array: np.ndarray) -> None:
        """Take rows of one call."""
        self.shapes.append(array.shape)
        rows = np.moveaxis(array, self.axis, -1).reshape(-1, array.shape[self.axis])
        stride = max(1, -(-len(rows) // self._each)) | 1  # odd: not in step with an image's rows
        self._rows.append(rows[::stride].astype(np.float32))
        if rows.size:
            self.lows.append(rows.min(axis=0))
            self.highs.append(rows.max(axis=0))

    @property
    def rows(self) -> np.ndarray:
        """Those of all calls."""
        return np.concatenate(self._rows)


@dataclass(frozen=True)
class LayerInput:
    """What a product with a literal weight reads. `rows`: float32[n, channels], some of all; `lows`, `highs`: float32[calls, channels], of
    all. `taps`: of each tap of a convolution the part of its results that it reads a number for, not padding; 1 for other products.
    `groups`: of a convolution."""

    value: str
    rows: np.ndarray
    lows: np.ndarray
    highs: np.ndarray
    taps: np.ndarray = field(default_factory=lambda: np.ones(()))
    groups: int = 1


def sampled_operands(topology: Topology, calls: int) -> dict[tuple[str, int], OperandSample]:
    """An empty sample for each operand that a literal weight is multiplied with, by its name and the axis of its channels."""
    found = {}
    for site in topology.sites:
        key = _sampled_key(site)
        if key is not None:
            found[key] = OperandSample(key[1], calls)
    return found


def _sampled_key(site: QuantizationSite) -> tuple[str, int] | None:
    operand = next((edge for edge in site.edges if not edge.is_weight), None)
    if operand is None or not any(edge.is_weight for edge in site.edges):
        return None
    return operand.value, 1 if site.op_type == "Conv" else -1


def layer_inputs(
    proto: onnx.ModelProto, topology: Topology, samples: Mapping[tuple[str, int], OperandSample]
) -> dict[str, LayerInput]:
    """By the names of sites; those with a stack of weights have none."""
    nodes = {node.name: node for node in proto.graph.node}
    dims = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    seen = {key: (key[0], sample.rows, np.array(sample.lows), np.array(sample.highs)) for key, sample in samples.items() if sample.lows}
    found = {}
    for site in topology.sites:
        key = _sampled_key(site)
        if key is None or key not in seen:
            continue
        node, weight = nodes[site.name], dims[nodes[site.name].input[1]]
        if site.op_type == "Conv":
            taps = tap_shares(node, weight[2:], samples[key].shapes)
            found[site.name] = LayerInput(*seen[key], taps, int(attribute(node, "group", 1)))  # type: ignore[call-overload]
        elif len(weight) == 2:
            found[site.name] = LayerInput(*seen[key])
    return found


def tap_shares(node: onnx.NodeProto, kernel: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    """float64[*kernel]: the part of a convolution's results for which each tap lies on the image, the mean over calls."""
    return np.asarray(np.mean([_tap_shares(node, kernel, shape[2:]) for shape in shapes], axis=0))


def _tap_shares(node: onnx.NodeProto, kernel: Sequence[int], sizes: Sequence[int]) -> np.ndarray:
    rank = len(kernel)
    strides = list(attribute(node, "strides", None) or [1] * rank)  # type: ignore[call-overload]
    dilations = list(attribute(node, "dilations", None) or [1] * rank)  # type: ignore[call-overload]
    pads = list(attribute(node, "pads", None) or [0] * (2 * rank))  # type: ignore[call-overload]
    auto = attribute(node, "auto_pad", b"NOTSET")
    shares = np.ones(())
    for axis, (taps, size, stride, dilation) in enumerate(zip(kernel, sizes, strides, dilations, strict=True)):
        before, after = (0, 0) if auto == b"VALID" else (pads[axis], pads[rank + axis])
        reach = dilation * (taps - 1) + 1
        if auto in (b"SAME_UPPER", b"SAME_LOWER"):
            total = max((-(-size // stride) - 1) * stride + reach - size, 0)
            before = total // 2 if auto == b"SAME_UPPER" else total - total // 2
            after = total - before
        results = np.arange((size + before + after - reach) // stride + 1)
        places = results[None] * stride - before + np.arange(taps)[:, None] * dilation
        shares = np.multiply.outer(shares, ((places >= 0) & (places < size)).mean(axis=1))
    return shares


def mean_results(weight: np.ndarray, axis: int, means: np.ndarray, layer: LayerInput) -> np.ndarray:
    """float64[results]: the mean of a product's results without its bias, from the means of its operand's channels.

    weight: as the operator reads it, its channels of results on `axis`.
    """
    rows = np.moveaxis(weight, axis, 0).astype(np.float64)
    if rows.ndim > 2 or layer.taps.ndim:  # a convolution's: results, channels of a group, taps
        rows = (rows * layer.taps).reshape(*rows.shape[:2], -1).sum(axis=2)
    grouped = rows.reshape(layer.groups, -1, rows.shape[1])
    return np.asarray(np.einsum("gok,gk->go", grouped, means.reshape(layer.groups, -1)).reshape(-1))
