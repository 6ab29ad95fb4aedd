"""Literals as operators on blocks of channels take them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tc.ops.arrays import contiguous
from tc.ops.registry import Form
from tc.ops.window import FEW_CHANNELS


def blocked_array(array: np.ndarray, form: Form, rank: int, block: int) -> np.ndarray:
    """A literal as the blocked form of its operator takes it; lanes past the end are zeros."""
    match form:
        case Form.CHANNELS:
            return block_axes(array, (1,), block)
        case Form.FEW:
            return block_axes(array, (1,), FEW_CHANNELS)
        case Form.OUTPUTS:
            return block_axes(array, (0,), block)
        case Form.WEIGHTS:
            return block_axes(array, (1, 0), block)
    if array.ndim == 0:
        return array
    if array.ndim < rank - 1 or array.shape[1 - (rank - array.ndim)] == 1:
        return array[..., None]
    return block_axes(array.reshape((1,) * (rank - array.ndim) + array.shape), (1,), block)


def grouped_weights(array: np.ndarray, in_block: int, block: int) -> np.ndarray:
    """[o, i, *kernel] -> [ceil(o / block), ceil(i / in_block), *kernel, in_block / g, block, g], g elements having 32 bits."""
    group = 4 // array.dtype.itemsize
    blocked = block_axes(block_axes(array, (1,), in_block), (0,), block)
    *outer, inputs, outputs = blocked.shape
    return contiguous(blocked.reshape(*outer, inputs // group, group, outputs).swapaxes(-1, -2))


def merge_groups(array: np.ndarray, merged: int, groups: int) -> np.ndarray:
    """[o, i, *kernel] of a convolution in groups -> [o, merged * i, *kernel], of so many together: zeros but for those of its own."""
    outputs, inputs, *kernel = array.shape
    made = np.zeros((groups, outputs // groups, merged, inputs, *kernel), array.dtype)
    for group, own in enumerate(array.reshape(groups, outputs // groups, inputs, *kernel)):
        made[group, :, group % merged] = own
    return made.reshape(outputs, merged * inputs, *kernel)


def block_axes(array: np.ndarray, axes: Sequence[int], block: int) -> np.ndarray:
    """Cut each of `axes`, in this order, into blocks; every block becomes the last axis. Padded with zeros."""
    pads = [(0, -size % block if axis in axes else 0) for axis, size in enumerate(array.shape)]
    if any(after for _, after in pads):
        array = np.pad(array, pads)
    shape: list[int] = []
    places: dict[int, int] = {}
    outer: list[int] = []
    for axis, size in enumerate(array.shape):
        outer.append(len(shape))
        shape.append(size // block if axis in axes else size)
        if axis in axes:
            places[axis] = len(shape)
            shape.append(block)
    order = [*outer, *(places[axis] for axis in axes)]
    return contiguous(array.reshape(shape).transpose(order))


def row_weights(array: np.ndarray, channels: int) -> np.ndarray:
    """[o, i, taps, kernel] -> [o, channels, taps, 1]: for each pixel of a row its channels."""
    outputs, inputs, taps, kernel = array.shape
    made = np.zeros((outputs, channels // FEW_CHANNELS, FEW_CHANNELS, taps, 1), array.dtype)
    made[:, :kernel, :inputs, :, 0] = array.transpose(0, 3, 1, 2)
    return made.reshape(outputs, channels, taps, 1)
