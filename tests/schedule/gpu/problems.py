"""Random programs for devices of every class of block, with sizes around those of tiles, symbolic ones, and numbers that add up exactly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tc.ir.dtype import DType, f16, f32, f64, i8, i32, u8
from tc.ir.expr import Expr, Var, call, cast, const, logical_and, maximum, select
from tc.ir.loop import PrimFunc
from tc.te import Tensor, compute, create_prim_func, placeholder, reduce, reduce_many

Problem = tuple[PrimFunc, list[np.ndarray], tuple[int, ...]]


class Sizes:
    """Draws sizes, some of which are symbolic."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.dims: dict[Var, int] = {}

    def size(self, name: str, low: int, high: int, symbolic: float = 0.3) -> tuple[Expr, int]:
        """A size as it stands in a program, and as it is: mostly any, sometimes a power of two, 1 or 0."""
        value = int(self.rng.integers(low, high + 1))
        if self.rng.random() < 0.3:
            value = int(self.rng.choice([size for size in (4, 8, 16, 32, 64) if low <= size <= high] or [value]))
        if self.rng.random() < 0.05:
            value = int(self.rng.integers(0, 2))
        if self.rng.random() >= symbolic:
            return const(value), value
        var = Var(name)
        self.dims[var] = value
        return var, value

    def problem(self, name: str, inputs: list[Tensor], results: list[Tensor], arrays: list[np.ndarray]) -> Problem:
        return create_prim_func(name, inputs, results, tuple(self.dims)), arrays, tuple(self.dims.values())

    def numbers(self, dtype: DType, *shape: int) -> np.ndarray:
        low = 0 if dtype.name.startswith("u") else -3
        return self.rng.integers(low, 4, shape).astype(dtype.numpy)


def product(rng: np.random.Generator) -> Problem:
    """Matrices, perhaps a batch of them, either one transposed, of several types, with what may follow and precede them."""
    sizes = Sizes(rng)
    (m, mn), (n, nn), (k, kn) = (sizes.size(name, 3, high) for name, high in (("m", 40), ("n", 40), ("k", 24)))
    b, bn = sizes.size("b", 1, 3)
    has_batch = rng.random() < 0.4
    dtype, total = [(f32, f32), (f32, f32), (f16, f32), (i8, i32), (u8, i32), (f64, f64)][int(rng.integers(6))]
    lead, leads = ((b,), (bn,)) if has_batch else ((), ())
    if not has_batch:
        sizes.dims.pop(b, None)  # type: ignore[call-overload]
    turned = rng.random(2) < 0.4
    shapes = [(*leads, *((kn, mn) if turned[0] else (mn, kn))), (*leads, *((nn, kn) if turned[1] else (kn, nn)))]
    x = placeholder((*lead, *((k, m) if turned[0] else (m, k))), dtype, "X")
    w = placeholder((*lead, *((n, k) if turned[1] else (k, n))), dtype, "W")
    bias = placeholder((n,), total, "bias")
    prologue = rng.random() < 0.3

    def term(*at: Expr) -> Expr:
        *z, i, j, r = at
        left = x[(*z, r, i)] if turned[0] else x[(*z, i, r)]
        right = w[(*z, j, r)] if turned[1] else w[(*z, r, j)]
        left = cast(left, total) * const(2, total) if prologue else cast(left, total)
        return left * cast(right, total)

    c = reduce("sum", (*lead, m, n), (k,), term, "mm")
    kind = int(rng.integers(4))
    inputs, arrays = [x, w], [sizes.numbers(dtype, *shapes[0]), sizes.numbers(dtype, *shapes[1])]
    if kind == 0:
        return sizes.problem("product", inputs, [c], arrays)
    shifted = compute((*lead, m, n), lambda *at: c[at] + bias[at[-1]], "shifted")
    inputs, arrays = [*inputs, bias], [*arrays, sizes.numbers(total, nn)]
    if kind == 1:
        return sizes.problem("product", inputs, [compute((*lead, m, n), lambda *at: maximum(shifted[at], const(0, total)), "act")], arrays)
    if kind == 2:  # the result lies the other way round
        return sizes.problem("product", inputs, [compute((*lead, n, m), lambda *at: shifted[(*at[:-2], at[-1], at[-2])], "turn")], arrays)
    return sizes.problem("product", inputs, [c, shifted], arrays)


def convolution(rng: np.random.Generator) -> Problem:
    """Images, channels first or last, with padding, steps and a bias."""
    sizes = Sizes(rng)
    (n, nn), (c, cn), (o, on) = sizes.size("n", 1, 2), sizes.size("c", 1, 6, 0.1), sizes.size("o", 4, 20, 0.1)
    h, w, kernel, step, pad = (int(rng.integers(*ends)) for ends in ((4, 9), (4, 9), (1, 4), (1, 3), (0, 2)))
    last = rng.random() < 0.5
    shape, actual = ((n, h, w, c), (nn, h, w, cn)) if last else ((n, c, h, w), (nn, cn, h, w))
    filters, counts = ((kernel, kernel, c, o), (kernel, kernel, cn, on)) if last else ((o, c, kernel, kernel), (on, cn, kernel, kernel))
    x, f, bias = placeholder(shape, f32, "X"), placeholder(filters, f32, "W"), placeholder((o,), f32, "bias")

    def padded(b: Expr, ch: Expr, i: Expr, j: Expr) -> Expr:
        inside = logical_and(i >= pad, i < h + pad, j >= pad, j < w + pad)
        value = x[b, i - pad, j - pad, ch] if last else x[b, ch, i - pad, j - pad]
        return select(inside, value, const(0.0, f32)) if pad else value

    high, wide = h + 2 * pad, w + 2 * pad
    p = (
        compute((n, high, wide, c), lambda b, i, j, ch: padded(b, ch, i, j), "pad")
        if last
        else compute((n, c, high, wide), padded, "pad")
    )
    rows, columns = (high - kernel) // step + 1, (wide - kernel) // step + 1
    if last:
        y = reduce(
            "sum",
            (n, rows, columns, o),
            (kernel, kernel, c),
            lambda b, i, j, co, di, dj, ci: p[b, i * step + di, j * step + dj, ci] * f[di, dj, ci, co],
            "conv",
        )
        z = compute((n, rows, columns, o), lambda b, i, j, co: y[b, i, j, co] + bias[co], "biased")
    else:
        y = reduce(
            "sum",
            (n, o, rows, columns),
            (c, kernel, kernel),
            lambda b, co, i, j, ci, di, dj: p[b, ci, i * step + di, j * step + dj] * f[co, ci, di, dj],
            "conv",
        )
        z = compute((n, o, rows, columns), lambda b, co, i, j: y[b, co, i, j] + bias[co], "biased")
    arrays = [sizes.numbers(f32, *actual), sizes.numbers(f32, *counts), sizes.numbers(f32, on)]
    return sizes.problem("convolution", [x, f, bias], [z], arrays)


def reduced(rng: np.random.Generator) -> Problem:
    """One result for each row or each column, or one in all, by any monoid, with what may be made of it."""
    sizes = Sizes(rng)
    (a, an), (b, bn), (c, cn) = sizes.size("a", 1, 5), sizes.size("b", 1, 9), sizes.size("c", 1, 200)
    dtype = [f32, f32, f16, i32][int(rng.integers(4))]
    monoid = ["sum", "max", "min", "argmax"][int(rng.integers(4))]
    kept = [(0, 1), (0, 2), (0,), (1,), (2,), (1, 2), ()][int(rng.integers(7))]
    extents = (a, b, c)
    x = placeholder(extents, dtype, "X")
    spatial, terms = [extents[k] for k in kept], [extents[k] for k in range(3) if k not in kept]

    def at(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        rows, over = iter(indices[: len(kept)]), iter(indices[len(kept) :])
        return tuple(next(rows) if k in kept else next(over) for k in range(3))

    arrays = [sizes.numbers(dtype, an, bn, cn)]
    if monoid == "argmax":
        best, where = reduce_many("argmax", spatial, terms, lambda *i: (x[at(i)], i[len(kept)]), ("best", "where"))
        return sizes.problem("reduced", [x], [best, where], arrays)
    total = reduce(monoid, spatial, terms, lambda *i: cast(x[at(i)], f32), "total")
    kind = int(rng.integers(3))
    if kind == 0:
        return sizes.problem("reduced", [x], [total], arrays)
    if kind == 1:
        return sizes.problem("reduced", [x], [compute(spatial, lambda *i: total[i] * 0.5, "scaled")], arrays)
    result = compute(extents, lambda *i: cast(x[i], f32) - total[tuple(i[k] for k in kept)], "less")
    return sizes.problem("reduced", [x], [result], arrays)


def normalised(rng: np.random.Generator) -> Problem:
    """Softmax and normalisations, of rows, of an axis in the middle, of groups of channels."""
    sizes = Sizes(rng)
    (a, an), (b, bn), (c, cn) = sizes.size("a", 1, 4), sizes.size("b", 1, 12), sizes.size("c", 1, 150)
    x, g = placeholder((a, b, c), f32, "X"), placeholder((c,), f32, "G")
    kind = int(rng.integers(4))
    if kind == 0:  # softmax of rows
        top = reduce("max", (a, b), (c,), lambda i, j, k: x[i, j, k], "top")
        e = compute((a, b, c), lambda i, j, k: call("exp", x[i, j, k] - top[i, j]), "e")
        s = reduce("sum", (a, b), (c,), lambda i, j, k: e[i, j, k], "s")
        y = compute((a, b, c), lambda i, j, k: e[i, j, k] / s[i, j], "y")
        return sizes.problem("normalised", [x], [y], [sizes.numbers(f32, an, bn, cn)])
    if kind == 1:  # softmax of an axis in the middle
        top = reduce("max", (a, c), (b,), lambda i, k, j: x[i, j, k], "top")
        e = compute((a, b, c), lambda i, j, k: call("exp", x[i, j, k] - top[i, k]), "e")
        s = reduce("sum", (a, c), (b,), lambda i, k, j: e[i, j, k], "s")
        y = compute((a, b, c), lambda i, j, k: e[i, j, k] / s[i, k], "y")
        return sizes.problem("normalised", [x], [y], [sizes.numbers(f32, an, bn, cn)])
    if kind == 2:  # layer norm, but for roots
        s = reduce("sum", (a, b), (c,), lambda i, j, k: x[i, j, k], "s")
        q = reduce("sum", (a, b), (c,), lambda i, j, k: x[i, j, k] * x[i, j, k], "q")
        y = compute((a, b, c), lambda i, j, k: (x[i, j, k] - s[i, j]) * g[k] + q[i, j], "y")
        return sizes.problem("normalised", [x, g], [y], [sizes.numbers(f32, an, bn, cn), sizes.numbers(f32, cn)])
    s = reduce("sum", (a,), (b, c), lambda i, j, k: x[i, j, k], "s")  # of all of an image
    d = compute((a, b, c), lambda i, j, k: x[i, j, k] * 2.0 - s[i], "d")
    q = reduce("sum", (a,), (b, c), lambda i, j, k: d[i, j, k] * d[i, j, k], "q")
    y = compute((a, b, c), lambda i, j, k: d[i, j, k] + q[i] * g[k], "y")
    return sizes.problem("normalised", [x, g], [y], [sizes.numbers(f32, an, bn, cn), sizes.numbers(f32, cn)])


DEVICE_CLASSES: dict[str, Callable[[np.random.Generator], Problem]] = {
    "product": product,
    "convolution": convolution,
    "reduced": reduced,
    "normalised": normalised,
}
"""By the class of block that their main part is of."""
