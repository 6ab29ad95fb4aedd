"""What the blocks of GGUF hold: integers, a scale for each few of them, and perhaps what is added.

Source: the reference quantization of ggml, ggml-quants.c, and its block structures, ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tc.errors import UnsupportedError
from tc.frontend.gguf.reading import KINDS, GgufTensor
from tc.ir.dtype import i4, u4


@dataclass(frozen=True, eq=False)
class QuantizedBlocks:
    """Weights [n, k] = values * scale + shift: integers [n, k], scales and shifts [n, k / block] in f16 or f32, as exact as in the file."""

    values: np.ndarray
    scale: np.ndarray
    shift: np.ndarray | None
    block: int


_Read = Callable[[np.ndarray], "tuple[np.ndarray, np.ndarray, np.ndarray | None]"]
"""Blocks, uint8[blocks, bytes] -> integers [blocks, terms], scales [blocks, groups], and shifts like these or None."""


def quantized_blocks(tensor: GgufTensor) -> QuantizedBlocks:
    """The integers, scales and shifts of a tensor; leading axes are joined. UnsupportedError for floats and unknown kinds."""
    name = "of an unknown kind" if tensor.kind is None else tensor.kind.name
    read = _READERS.get(name)
    if tensor.kind is None or read is None:
        raise UnsupportedError(
            f"the tensor {tensor.name!r} is {name}, kind {tensor.number}, of which no blocks are known",
            code="TC1012",
            supported=", ".join(_READERS),
        )
    values, scale, shift = read(tensor.data.reshape(-1, tensor.kind.size_bytes))
    depth = tensor.shape[-1]
    rows = values.size // depth if depth else 0
    per_row = depth // tensor.kind.terms * scale.shape[1]
    return QuantizedBlocks(
        values.reshape(rows, depth),
        scale.reshape(rows, per_row),
        None if shift is None else shift.reshape(rows, per_row),
        tensor.kind.terms // scale.shape[1],
    )


def decode(tensor: GgufTensor) -> np.ndarray:
    """float32[shape]: what a tensor holds, the reference of its kind: one multiplication and one addition of f32 for each element."""
    floats = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
    if tensor.kind is not None and tensor.kind.name in floats:
        return np.frombuffer(tensor.data, floats[tensor.kind.name]).astype(np.float32).reshape(tensor.shape)
    found = quantized_blocks(tensor)

    def spread(array: np.ndarray) -> np.ndarray:
        return np.repeat(array.astype(np.float32), found.block, axis=1)

    result = found.values.astype(np.float32) * spread(found.scale)
    if found.shift is not None:
        result += spread(found.shift)
    return result.reshape(tensor.shape)


def _halves(data: np.ndarray) -> np.ndarray:
    """float16[blocks, 1] of two bytes of each block."""
    return np.ascontiguousarray(data).view("<f2")


def _nibbles(data: np.ndarray) -> np.ndarray:
    """The lower halves of some bytes, and then the upper ones."""
    return np.concatenate([data & 15, data >> 4], axis=1)


def _read_q4_0(data: np.ndarray) -> tuple[np.ndarray, np.ndarray, None]:
    values = _nibbles(data[:, 2:]).astype(np.int8) - 8
    return values.astype(i4.numpy), _halves(data[:, :2]), None


def _read_q4_1(data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return _nibbles(data[:, 4:]).astype(u4.numpy), _halves(data[:, :2]), _halves(data[:, 2:4])


def _read_q8_0(data: np.ndarray) -> tuple[np.ndarray, np.ndarray, None]:
    return np.ascontiguousarray(data[:, 2:]).view(np.int8), _halves(data[:, :2]), None


def _read_q4_k(data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eight groups of 32 in a block; scales and minima of six bits lie in twelve bytes."""
    factor, least, packed = (part.astype(np.float32) for part in (_halves(data[:, :2]), _halves(data[:, 2:4]), data[:, 4:16]))
    six = packed.astype(np.uint8)
    low, middle, high = six[:, :4], six[:, 4:8], six[:, 8:]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=1)
    values = np.concatenate([_nibbles(data[:, first : first + 32]) for first in range(16, 144, 32)], axis=1)
    return values.astype(u4.numpy), factor * scales.astype(np.float32), -(least * minima.astype(np.float32))


def _read_q6_k(data: np.ndarray) -> tuple[np.ndarray, np.ndarray, None]:
    """Sixteen groups of 16 in a block; the lower four bits and the upper two of the integers lie apart, in two halves of 128."""
    parts = []
    for half in range(2):
        low, high = data[:, 64 * half : 64 * half + 64], data[:, 128 + 32 * half : 160 + 32 * half]
        bits = _nibbles(low).reshape(len(data), 4, 32)
        upper = np.stack([high >> place & 3 for place in (0, 2, 4, 6)], axis=1)
        parts.append((bits | upper << 4).astype(np.int8).reshape(len(data), 128) - 32)
    scales = np.ascontiguousarray(data[:, 192:208]).view(np.int8).astype(np.float32)
    return np.concatenate(parts, axis=1).astype(np.int8), _halves(data[:, 208:]).astype(np.float32) * scales, None


_READERS: dict[str, _Read] = {"Q4_0": _read_q4_0, "Q4_1": _read_q4_1, "Q8_0": _read_q8_0, "Q4_K": _read_q4_k, "Q6_K": _read_q6_k}

assert set(_READERS) <= {kind.name for kind in KINDS.values()}
