"""What the lanes of a warp hold and do, as the PTX ISA writes it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tc.ir.bit_layout import BitLayout

Formula = Callable[[int, int, int], tuple[int, int]]
"""Element, group of the lane (lane // 4) and place in the group (lane % 4) -> the indices, as the PTX ISA writes them."""

LHS: dict[tuple[int, int], Formula] = {
    (8, 16): lambda i, group, place: (group if i < 2 else group + 8, place * 2 + (i & 1)),
    (16, 16): lambda i, group, place: (
        group if 0 <= i < 2 or 4 <= i < 6 else group + 8,
        place * 2 + (i & 1) + (8 if i >= 4 else 0),
    ),
    (4, 32): lambda i, group, place: (group if i == 0 else group + 8, place),
    (8, 32): lambda i, group, place: (group if i in (0, 2) else group + 8, place if i in (0, 1) else place + 4),
    (16, 8): lambda i, group, place: (group if i < 4 else group + 8, place * 4 + (i & 3)),
    (32, 8): lambda i, group, place: (
        group if 0 <= i < 4 or 8 <= i < 12 else group + 8,
        place * 4 + (i & 3) + (16 if i >= 8 else 0),
    ),
}
RHS: dict[tuple[int, int], Formula] = {
    (8, 16): lambda i, group, place: (place * 2 + i, group),
    (16, 16): lambda i, group, place: (place * 2 + (i & 1) + (8 if i >= 2 else 0), group),
    (4, 32): lambda i, group, place: (place, group),
    (8, 32): lambda i, group, place: (place if i == 0 else place + 4, group),
    (16, 8): lambda i, group, place: (place * 4 + (i & 3), group),
    (32, 8): lambda i, group, place: (place * 4 + (i & 3) + (16 if i >= 4 else 0), group),
}


def sums_of(i: int, group: int, place: int) -> tuple[int, int]:
    return group if i < 2 else group + 8, place * 2 + (i & 1)


def held(fragment: BitLayout, matrix: np.ndarray) -> np.ndarray:
    """What the lanes hold of a matrix: [register, lane, ...]."""
    places = np.indices([size for _, size in fragment.inputs])
    return matrix[fragment(**{name: place for (name, _), place in zip(fragment.inputs, places, strict=True)})]


def gathered(fragment: BitLayout, lanes: np.ndarray) -> np.ndarray:
    """The matrix that the lanes hold."""
    inverse = fragment.inverse()
    places = np.indices([size for _, size in inverse.inputs])
    return lanes[inverse(**{name: place for (name, _), place in zip(inverse.inputs, places, strict=True)})]


def ldmatrix(memory: np.ndarray, addresses: list[int], count: int, transposed: bool) -> np.ndarray:
    """The instruction as the manual says it, on memory of elements of 8, 16 or 32 bits, by their numbers: [register, lane]."""
    width = 4 // memory.itemsize
    result = np.zeros((width * count, 32), memory.dtype)
    for matrix in range(count):
        rows = np.array([memory[addresses[8 * matrix + row] :][: 4 * width] for row in range(8)])
        for lane in range(32):
            row, column = lane // 4, lane % 4 * width
            taken = rows[column : column + width, row] if transposed else rows[row, column : column + width]
            result[width * matrix : width * (matrix + 1), lane] = taken
    return result
