"""Convolution 3x3 with fewer multiplications: tiles of the input and the weights are transformed, multiplied element by element, and the
products transformed back.

For tiles of m x m results, with a = m + 2, y = A^T [(G g G^T) * (B^T d B)] A, where A, G, B evaluate and interpolate polynomials at a - 1
points and infinity. a * a products take the place of 9 m * m, at the price of rounding: in units of the result's root mean square,
F(4) with the points below and sums of 32 channels at a time, as its schedule rule makes them, errs by 0.45e-6 (64 input channels) to
0.54e-6 (512), F(2) by 0.18e-6 to 0.2e-6, a direct sum by 0.29e-6 to 0.87e-6. With one sum over 512 channels F(4) would err by 1.6e-6.
Sources: "Fast Algorithms for Convolutional Neural Networks" (Lavin and Gray, 2016); the matrices by Toom and Cook's construction
with points chosen as in "Error Analysis and Improving the Accuracy of Winograd Convolution" (Barabasz et al., 2020).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from tc import te
from tc.ir.dtype import f32
from tc.ir.expr import Expr, cast, ceildiv, const, equal, logical_and, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.blocked import require_blocked_bias
from tc.ops.common import require_equal
from tc.ops.registry import REQUIRED, OpDef, get_op, register
from tc.te import Tensor

POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}
"""For each tile size m, the m + 1 finite points."""

Matrix = tuple[tuple[Fraction, ...], ...]


@cache
def transforms(tile: int) -> tuple[Matrix, Matrix, Matrix]:
    """(A^T [m, a], G [a, 3], B^T [a, a]) of F(m, 3), exactly."""
    points, size = POINTS[tile], tile + 2
    zero, one = Fraction(0), Fraction(1)

    def powers(count: int) -> list[list[Fraction]]:
        finite = [[p**k for k in range(count)] for p in points]
        return [*finite, [one if k == count - 1 else zero for k in range(count)]]

    def expand(roots: Sequence[Fraction]) -> list[Fraction]:
        """The coefficients of the product of (x - root), lowest first."""
        found = [one]
        for root in roots:
            shifted = [zero, *found]
            found = [s - root * f for s, f in zip(shifted, [*found, zero], strict=True)]
        return found

    others = [[q for q in points if q != p] for p in points]
    scales = [np.prod([p - q for q in rest]) for p, rest in zip(points, others, strict=True)]
    g = [[v / scale for v in row] for row, scale in zip(powers(3), [*scales, one], strict=True)]
    b = [[*expand(rest), zero] for rest in others] + [expand(points)]
    a = [list(column) for column in zip(*powers(tile), strict=True)]
    assert all(len(row) == size for row in b)
    return _frozen(a), _frozen(g), _frozen(b)


def _frozen(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(tuple(row) for row in rows)


def _floats(matrix: Matrix) -> np.ndarray:
    return np.array([[float(v) for v in row] for row in matrix])


_ROWS = 512
"""Windows that are transformed at a time: so few that what is made of them stays in a cache, and that no library of matrix products takes
threads, which cost ten times as much as such a product, and more where other processes run."""


def transform_weights(weights: np.ndarray, tile: int) -> np.ndarray:
    """G g G^T of [..., 3, 3] in f64, as [a, a, ...] in f32."""
    g = _floats(transforms(tile)[1])
    both = np.kron(g, g)  # [a * a, 9]
    flat = np.ascontiguousarray(weights).reshape(-1, 9)
    result = np.empty((len(both), len(flat)), np.float32)
    for start in range(0, len(flat), _ROWS):  # as much as stays in a cache
        part = slice(start, start + _ROWS)
        result[:, part] = both @ flat[part].astype(np.float64).T
    return result.reshape(tile + 2, tile + 2, *weights.shape[:-2])


def has_fitting_window(kernel: Sequence[int], attrs: Attrs) -> bool:
    """Whether a convolution sums windows as Winograd's method does: 3x3, side by side, of all channels together."""
    return tuple(kernel) == (3, 3) and attrs.groups == 1 and {*(attrs.strides or (1,)), *(attrs.dilations or (1,))} == {1}


def _infer(types: Sequence[TensorType | None], attrs: Attrs) -> TensorType:
    """x [n, ib, h, w, b], u [a, a, ob, ib, b, b] (transformed weights), perhaps bias [ob, b] -> [n, ob, h', w', b]."""
    x, u = types[0], types[1]
    assert x is not None and u is not None
    require_equal(u.shape[3], x.shape[1], f"conv_winograd: dim 3 of the weights {u}")
    for axis, wanted in ((0, attrs.tile + 2), (1, attrs.tile + 2), (4, x.shape[-1])):
        require_equal(u.shape[axis], const(wanted) if isinstance(wanted, int) else wanted, f"conv_winograd: dim {axis} of {u}")
    require_blocked_bias(types, u.shape[2], u.shape[-1], "conv_winograd")
    top, left, bottom, right = attrs.pads
    space = (x.shape[2] + (top + bottom - 2), x.shape[3] + (left + right - 2))
    return TensorType((x.shape[0], u.shape[2], *space, u.shape[-1]), x.dtype)


def _plain_weights(u: np.ndarray, tile: int) -> np.ndarray:
    """[ob, ib, 3, 3, b, b] from transformed weights: G has full column rank."""
    inverse = np.linalg.pinv(_floats(transforms(tile)[1]))
    return np.einsum("ki,ij...,lj->...kl", inverse, u.astype(np.float64), inverse).transpose(0, 1, 4, 5, 2, 3)


def _reference(arrays: Sequence[np.ndarray | None], attrs: Attrs) -> np.ndarray:
    x, u = arrays[0], arrays[1]
    assert x is not None and u is not None
    direct, ones = get_op("conv_blocked"), (1, 1)
    own = {"strides": ones, "pads": tuple(attrs.pads), "dilations": ones, "in_channels": attrs.in_channels, "in_block": x.shape[-1]}
    weights = _plain_weights(u, attrs.tile).astype(np.float32)
    wide = [None if array is None else array.astype(np.float32) for array in (x, weights, *arrays[2:])]
    (result,) = direct.run_reference(wide, direct.attrs(own))
    return result.astype(x.dtype)


def _combine(row: Sequence[Fraction], values: Sequence[Expr]) -> Expr:
    """The sum of values times coefficients; terms times zero are left out."""
    total: Expr | None = None
    for coefficient, value in zip(row, values, strict=True):
        if coefficient == 0:
            continue
        term = value if coefficient == 1 else value * const(float(coefficient), f32)
        total = term if total is None else total + term
    return total if total is not None else const(0.0, f32)


def _by_row(matrix: Matrix, axis: Expr, values: Sequence[Expr]) -> Expr:
    """Row number `axis` of matrix times values. The loop over `axis` is to be unrolled: one row then remains."""
    rows = [_combine(row, values) for row in matrix]
    result = rows[-1]
    for k in reversed(range(len(rows) - 1)):
        result = select(equal(axis, k), rows[k], result)
    return result


def _compute(tensors: Sequence[Tensor | None], attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    """Stages: padded input, rows transformed, columns transformed, products summed over channels, rows and columns back."""
    x, u = tensors[0], tensors[1]
    assert x is not None and u is not None
    m, channels = attrs.tile, attrs.in_channels
    a_t, _, b_t = transforms(m)
    size = m + 2
    n, ob, height, width, lanes = types[0].shape
    block = x.shape[-1]
    ty, tx = ceildiv(height, m), ceildiv(width, m)
    top, left = attrs.pads[:2]

    def padded(i: Expr, c: Expr, y: Expr, z: Expr, lane: Expr) -> Expr:
        inside = logical_and(y >= top, y < x.shape[2] + top, z >= left, z < x.shape[3] + left)
        return select(inside, cast(x[i, c, y - top, z - left, lane], f32), const(0.0, f32))

    source = te.compute((n, x.shape[1], ty * m + 2, tx * m + 2, block), padded, "winograd_pad")
    rows = te.compute(
        (n, size, x.shape[1], ty, tx * m + 2, block),
        lambda i, r, c, t, z, lane: _by_row(b_t, r, [source[i, c, t * m + k, z, lane] for k in range(size)]),
        "winograd_rows",
    )
    tiles = te.compute(
        (n, size, size, x.shape[1], ty * tx, block),
        lambda i, r, s, c, t, lane: _by_row(b_t, s, [rows[i, r, c, t // tx, t % tx * m + k, lane] for k in range(size)]),
        "winograd_tiles",
    )
    products = te.reduce(
        "sum",
        (n, size, size, ob, ty * tx, lanes),
        (const(channels),),
        lambda i, r, s, o, t, lane, c: tiles[i, r, s, c // block, t, c % block] * u[r, s, o, c // block, c % block, lane],
        "winograd_products",
    )
    back = te.compute(
        (n, m, size, ob, ty * tx, lanes),
        lambda i, r, s, o, t, lane: _by_row(a_t, r, [products[i, k, s, o, t, lane] for k in range(size)]),
        "winograd_back",
    )
    bias = tensors[2] if len(tensors) > 2 else None

    def finish(i: Expr, o: Expr, y: Expr, z: Expr, lane: Expr) -> Expr:
        tile = y // m * tx + z // m
        value = _by_row(a_t, z % m, [back[i, y % m, k, o, tile, lane] for k in range(size)])
        return cast(value if bias is None else value + cast(bias[o, lane], f32), types[0].dtype)

    return te.compute(types[0].shape, finish, "winograd")


def _samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    def weights(tile: int, outputs: int, inputs: int, block: int) -> np.ndarray:
        plain = rng.standard_normal((outputs, inputs, block, block, 3, 3)).astype(np.float32)
        return transform_weights(plain, tile)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    yield [normal(1, 2, 6, 7, 4), weights(2, 1, 2, 4)], {"tile": 2, "pads": (1, 1, 1, 1), "in_channels": 8}
    yield [normal(2, 1, 9, 8, 4), weights(4, 2, 1, 4), normal(2, 4)], {"tile": 4, "pads": (1, 0, 0, 1), "in_channels": 3}
    yield [normal(1, 1, 5, 3, 4), weights(4, 1, 1, 4)], {"tile": 4, "pads": (0, 0, 0, 0), "in_channels": 4}


register(
    OpDef(
        "conv_winograd",
        _infer,
        _reference,
        _compute,
        {"tile": REQUIRED, "pads": REQUIRED, "in_channels": REQUIRED},
        samples=_samples,
    )
)


# -- weights that are not literals


def weights_matrix(tile: int) -> np.ndarray:
    """f32[a * a, 9]: what takes the nine taps of a filter to its transform."""
    g = _floats(transforms(tile)[1])
    return np.kron(g, g).astype(np.float32)


def _infer_weights(types: Sequence[TensorType | None], attrs: Attrs) -> TensorType:
    """w [ob, ib, 3, 3, b, b], matrix [a * a, 9] -> [a, a, ob, ib, b, b]."""
    w, matrix = types[0], types[1]
    assert w is not None and matrix is not None
    size = attrs.tile + 2
    for axis in (2, 3):
        require_equal(w.shape[axis], const(3), f"winograd_weights: dim {axis} of {w}")
    require_equal(matrix.shape[0], const(size * size), f"winograd_weights: dim 0 of {matrix}")
    return TensorType((const(size), const(size), *w.shape[:2], *w.shape[4:]), f32)


def _compute_weights(tensors: Sequence[Tensor | None], attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    w, matrix = tensors[0], tensors[1]
    assert w is not None and matrix is not None
    size = attrs.tile + 2

    def term(r: Expr, s: Expr, o: Expr, c: Expr, k: Expr, lane: Expr, i: Expr, j: Expr) -> Expr:
        return matrix[r * size + s, i * 3 + j] * cast(w[o, c, i, j, k, lane], f32)

    return te.reduce("sum", types[0].shape, (const(3), const(3)), term, "winograd_weights")


def _reference_weights(arrays: Sequence[np.ndarray | None], attrs: Attrs) -> np.ndarray:
    w = arrays[0]
    assert w is not None
    return transform_weights(np.moveaxis(w, (2, 3), (-2, -1)), attrs.tile)


register(
    OpDef(
        "winograd_weights",
        _infer_weights,
        _reference_weights,
        _compute_weights,
        {"tile": REQUIRED},
        samples=lambda rng: iter(
            [([rng.standard_normal((2, 3, 3, 3, 4, 4)).astype(np.float32), weights_matrix(tile)], {"tile": tile}) for tile in POINTS]
        ),
    )
)
