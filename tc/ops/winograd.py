"""Convolution 3x3 with fewer multiplications: tiles of the input and the weights are transformed, multiplied element by element, and the
products transformed back. Of more spatial axes the last two are cut into tiles; taps along those before them count as more channels.

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
from math import prod
from typing import Any

import numpy as np

from tc import te
from tc.ir.arith import simplify
from tc.ir.dtype import f32
from tc.ir.expr import Expr, cast, ceildiv, const, equal, logical_and, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.blocked import require_blocked_bias
from tc.ops.common import require_equal, unravel
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
    """Whether a convolution sums windows as Winograd's method does: 3x3 along the last two axes, side by side, of all channels together."""
    steps = {*(attrs.strides or (1,))[-2:], *(attrs.dilations or (1,))[-2:]}
    return tuple(kernel[-2:]) == (3, 3) and attrs.groups == 1 and steps == {1}


def by_taps(weights: np.ndarray) -> np.ndarray:
    """[ob, taps * ib, 3, 3, ...] from the weights of a `conv_blocked` [ob, ib, *outer, 3, 3, b, b]: taps along outer axes are channels."""
    outer = weights.ndim - 6
    moved = np.moveaxis(weights, 1, 1 + outer)
    return moved.reshape(moved.shape[0], -1, *moved.shape[-4:])


def _infer(types: Sequence[TensorType | None], attrs: Attrs) -> TensorType:
    """x [n, ib, *outer, h, w, b], u [a, a, ob, taps * ib, b, b], perhaps bias [ob, b] -> [n, ob, *outer', h', w', b].

    u holds transformed weights, of ib blocks of channels for each tap along the outer axes, whose numbers of taps, strides and dilations
    are `kernel`, `strides` and `dilations`. Pads are of all axes.
    """
    x, u = types[0], types[1]
    assert x is not None and u is not None
    rank, taps = len(attrs.kernel) + 2, prod(attrs.kernel)
    require_equal(u.shape[3], x.shape[1] * taps, f"conv_winograd: dim 3 of the weights {u}")
    for axis, wanted in ((0, attrs.tile + 2), (1, attrs.tile + 2), (4, x.shape[-1])):
        require_equal(u.shape[axis], const(wanted) if isinstance(wanted, int) else wanted, f"conv_winograd: dim {axis} of {u}")
    if taps > 1:
        require_equal(x.shape[1] * x.shape[-1], const(attrs.in_channels), f"conv_winograd: the channels of {x}")
    require_blocked_bias(types, u.shape[2], u.shape[-1], "conv_winograd")
    space = []
    for d, (count, stride, dilation) in enumerate(_window(attrs)):
        reach = (count - 1) * dilation + 1
        space.append((x.shape[2 + d] + (attrs.pads[d] + attrs.pads[rank + d] - reach)) // stride + 1)
    return TensorType((x.shape[0], u.shape[2], *space, u.shape[-1]), x.dtype)


def _window(attrs: Attrs) -> list[tuple[int, int, int]]:
    """Taps, stride and dilation along each spatial axis."""
    return [*zip(attrs.kernel, attrs.strides, attrs.dilations, strict=True), (3, 1, 1), (3, 1, 1)]


def _plain_weights(u: np.ndarray, attrs: Attrs) -> np.ndarray:
    """[ob, ib, *outer, 3, 3, b, b] from transformed weights: G has full column rank."""
    inverse, outer = np.linalg.pinv(_floats(transforms(attrs.tile)[1])), len(attrs.kernel)
    plain = np.einsum("ki,ij...,lj->...kl", inverse, u.astype(np.float64), inverse).transpose(0, 1, 4, 5, 2, 3)
    apart = plain.reshape(plain.shape[0], *attrs.kernel, -1, *plain.shape[2:])
    return np.moveaxis(apart, 1 + outer, 1)


def _reference(arrays: Sequence[np.ndarray | None], attrs: Attrs) -> np.ndarray:
    x, u = arrays[0], arrays[1]
    assert x is not None and u is not None
    direct, (_, strides, dilations) = get_op("conv_blocked"), zip(*_window(attrs), strict=True)
    own = {"strides": strides, "pads": tuple(attrs.pads), "dilations": dilations}
    own |= {"in_channels": attrs.in_channels, "in_block": x.shape[-1]}
    weights = _plain_weights(u, attrs).astype(np.float32)
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
    m, taps = attrs.tile, prod(attrs.kernel)
    channels = taps * attrs.in_channels
    a_t, _, b_t = transforms(m)
    size, outer = m + 2, len(attrs.kernel)
    n, ob, *depth, height, width, lanes = types[0].shape
    blocks, block = x.shape[1], x.shape[-1]
    ty, tx = ceildiv(height, m), ceildiv(width, m)
    lead = (n, *depth)

    def padded(*axes: Expr) -> Expr:
        (i, *at), (c, y, z, lane) = axes[:-4], axes[-4:]
        places = unravel(c // blocks, tuple(const(k) for k in attrs.kernel)) if outer else ()
        at = [p * stride + k * dilation for p, k, (_, stride, dilation) in zip(at, places, _window(attrs)[:outer], strict=True)]
        space = [*zip((*at, y, z), attrs.pads, x.shape[2:-1], strict=False)]
        inside = [bound for p, before, dim in space for bound in (p >= before, p < dim + before)]
        value = x[(i, c % blocks if outer else c, *(p - before for p, before, _ in space), lane)]
        return select(logical_and(*inside), cast(value, f32), const(0.0, f32))

    def transformed_rows(*axes: Expr) -> Expr:
        *at, r, c, t, z, lane = axes
        return _by_row(b_t, r, [source[(*at, c, t * m + k, z, lane)] for k in range(size)])

    def transformed_tiles(*axes: Expr) -> Expr:
        *at, r, s, c, t, lane = axes
        return _by_row(b_t, s, [rows[(*at, r, c, t // tx, t % tx * m + k, lane)] for k in range(size)])

    def product_of(*axes: Expr) -> Expr:
        *at, r, s, o, t, lane, c = axes
        return tiles[(*at, r, s, c // block, t, c % block)] * u[r, s, o, c // block, c % block, lane]

    def rows_back(*axes: Expr) -> Expr:
        *at, r, s, o, t, lane = axes
        return _by_row(a_t, r, [products[(*at, k, s, o, t, lane)] for k in range(size)])

    bias = tensors[2] if len(tensors) > 2 else None

    def finish(*axes: Expr) -> Expr:
        i, o, *at, y, z, lane = axes
        tile = y // m * tx + z // m
        value = _by_row(a_t, z % m, [back[(i, *at, y % m, k, o, tile, lane)] for k in range(size)])
        return cast(value if bias is None else value + cast(bias[o, lane], f32), types[0].dtype)

    source = te.compute((*lead, blocks * taps, ty * m + 2, tx * m + 2, block), padded, "winograd_pad")
    rows = te.compute((*lead, size, blocks * taps, ty, tx * m + 2, block), transformed_rows, "winograd_rows")
    tiles = te.compute((*lead, size, size, blocks * taps, ty * tx, block), transformed_tiles, "winograd_tiles")
    products = te.reduce("sum", (*lead, size, size, ob, ty * tx, lanes), (const(channels),), product_of, "winograd_products")
    back = te.compute((*lead, m, size, ob, ty * tx, lanes), rows_back, "winograd_back")
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
    outer = {"kernel": (3,), "strides": (1,), "dilations": (1,)}
    yield [normal(2, 2, 4, 6, 5, 4), weights(2, 1, 6, 4), normal(1, 4)], {"tile": 2, "pads": (1,) * 6, "in_channels": 8, **outer}
    outer = {"kernel": (2,), "strides": (2,), "dilations": (3,)}
    yield [normal(1, 1, 7, 9, 4, 4), weights(4, 2, 2, 4)], {"tile": 4, "pads": (0, 1, 0, 2, 0, 1), "in_channels": 4, **outer}


register(
    OpDef(
        "conv_winograd",
        _infer,
        _reference,
        _compute,
        {"tile": REQUIRED, "pads": REQUIRED, "in_channels": REQUIRED, "kernel": (), "strides": (), "dilations": ()},
        samples=_samples,
    )
)


# -- weights that are not literals


def weights_matrix(tile: int) -> np.ndarray:
    """f32[a * a, 9]: what takes the nine taps of a filter to its transform."""
    g = _floats(transforms(tile)[1])
    return np.kron(g, g).astype(np.float32)


def _infer_weights(types: Sequence[TensorType | None], attrs: Attrs) -> TensorType:
    """w [ob, ib, *outer, 3, 3, b, b], matrix [a * a, 9] -> [a, a, ob, taps * ib, b, b]."""
    w, matrix = types[0], types[1]
    assert w is not None and matrix is not None
    size = attrs.tile + 2
    for axis in (-4, -3):
        require_equal(w.shape[axis], const(3), f"winograd_weights: dim {axis} of {w}")
    require_equal(matrix.shape[0], const(size * size), f"winograd_weights: dim 0 of {matrix}")
    ob, ib, *outer = w.shape[:-4]
    return TensorType((const(size), const(size), ob, simplify(product((ib, *outer))), *w.shape[-2:]), f32)


def _compute_weights(tensors: Sequence[Tensor | None], attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    w, matrix = tensors[0], tensors[1]
    assert w is not None and matrix is not None
    size, (_, blocks, *outer) = attrs.tile + 2, w.shape[:-4]

    def term(r: Expr, s: Expr, o: Expr, c: Expr, k: Expr, lane: Expr, i: Expr, j: Expr) -> Expr:
        at = (c % blocks, *unravel(c // blocks, outer)) if outer else (c,)
        return matrix[r * size + s, i * 3 + j] * cast(w[(o, *at, i, j, k, lane)], f32)

    return te.reduce("sum", types[0].shape, (const(3), const(3)), term, "winograd_weights")


def _reference_weights(arrays: Sequence[np.ndarray | None], attrs: Attrs) -> np.ndarray:
    w = arrays[0]
    assert w is not None
    return transform_weights(np.moveaxis(by_taps(w), (2, 3), (-2, -1)), attrs.tile)


def _weights_samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    for tile in POINTS:
        for outer in ((), (2,), (3, 2)):
            yield [rng.standard_normal((2, 3, *outer, 3, 3, 4, 4)).astype(np.float32), weights_matrix(tile)], {"tile": tile}


register(OpDef("winograd_weights", _infer_weights, _reference_weights, _compute_weights, {"tile": REQUIRED}, samples=_weights_samples))
