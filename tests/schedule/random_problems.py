"""Small programs of every class of block, of random sizes and with random numbers: what random schedules are made for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tc.ir.dtype import f16, f32, i8, i32, i64, u8
from tc.ir.expr import Expr, Var, call, cast, const, logical_and, maximum, minimum, select
from tc.ir.graph import Attrs
from tc.ir.loop import PrimFunc
from tc.ir.types import DimFact, tensor_type
from tc.ops.blocked import compute_matmul_packed
from tc.te import compute, create_prim_func, placeholder, reduce, reduce_many
from tests.schedule.uneven import uneven_problem

Problem = tuple[PrimFunc, list[np.ndarray], tuple[int, ...]]


def matmul(rng: np.random.Generator) -> Problem:
    """C[i, j] = sum A[i, k] * B[k, j], then bias and activation; the rows may be symbolic."""
    m, n, k = (int(v) for v in rng.integers(1, 14, 3))
    rows = Var("m") if rng.random() < 0.5 else const(m)
    a, b = placeholder((rows, k), f32, "A"), placeholder((k, n), f32, "B")
    bias = placeholder((n,), f32, "bias")
    c = reduce("sum", (rows, n), (k,), lambda i, j, r: a[i, r] * b[r, j], "mm")
    d = compute((rows, n), lambda i, j: maximum(c[i, j] + bias[j], 0.0), "act")
    dims = (rows,) if isinstance(rows, Var) else ()
    final = d if rng.random() < 0.7 else c
    inputs = [a, b, bias] if final is d else [a, b]
    arrays = [integers(rng, m, k), integers(rng, k, n), integers(rng, n)][: len(inputs)]
    return create_prim_func("matmul", inputs, [final], dims), arrays, (m,) if dims else ()


def conv2d(rng: np.random.Generator) -> Problem:
    """Padding, convolution with a stride, and a bias."""
    c, h, o = (int(v) for v in rng.integers(1, 5, 3))
    height, width = h + 2, int(rng.integers(3, 8))
    stride = int(rng.integers(1, 3))
    x, w = placeholder((c, height, width), f32, "X"), placeholder((o, c, 3, 3), f32, "W")
    bias = placeholder((o,), f32, "bias")
    pad = compute(
        (c, height + 2, width + 2),
        lambda ci, i, j: select(
            logical_and(i >= 1, i < height + 1, j >= 1, j < width + 1), x[ci, i - 1, j - 1], const(0.0, f32)
        ),
        "pad",
    )
    shape = (o, (height - 1) // stride + 1, (width - 1) // stride + 1)
    y = reduce(
        "sum",
        shape,
        (c, 3, 3),
        lambda co, i, j, ci, di, dj: pad[ci, i * stride + di, j * stride + dj] * w[co, ci, di, dj],
        "conv",
    )
    z = compute(shape, lambda co, i, j: maximum(y[co, i, j] + bias[co], 0.0), "relu")
    arrays = [integers(rng, c, height, width), integers(rng, o, c, 3, 3), integers(rng, o)]
    return create_prim_func("conv2d", [x, w, bias], [z]), arrays, ()


def padded(rng: np.random.Generator) -> Problem:
    """A convolution over rows that reach far into their padding, some of it copied before."""
    c, h, w, o, taps, stride = (int(v) for v in rng.integers((1, 1, 1, 1, 2, 1), (5, 7, 9, 5, 4, 3)))
    dilation, before, after = (int(v) for v in rng.integers((1, 0, 0), (5, 6, 6)))
    reach = dilation * (taps - 1)
    height, width = (max(n + before + after, reach + 1) for n in (h, w))
    x, weights = placeholder((c, h, w), f32, "X"), placeholder((o, c, taps, taps), f32, "W")

    def element(ci: Expr, i: Expr, j: Expr) -> Expr:
        inside = logical_and(i >= before, i < h + before, j >= before, j < w + before)
        return select(inside, x[ci, i - before, j - before], const(0.0, f32))

    pad = compute((c, height, width), element, "pad")
    if rng.random() < 0.5:
        made = pad
        pad = compute((height, c, width), lambda i, ci, j: made[ci, i, j] * 1.0, "turned")
    is_turned = pad.name == "turned"

    def term(co: Expr, i: Expr, j: Expr, ci: Expr, di: Expr, dj: Expr) -> Expr:
        row, column = i * stride + di * dilation, j * stride + dj * dilation
        return (pad[row, ci, column] if is_turned else pad[ci, row, column]) * weights[co, ci, di, dj]

    shape = (o, (height - reach - 1) // stride + 1, (width - reach - 1) // stride + 1)
    y = reduce("sum", shape, (c, taps, taps), term, "conv")
    z = compute(shape, lambda co, i, j: maximum(y[co, i, j], -1.0), "relu")
    return create_prim_func("padded", [x, weights], [z]), [integers(rng, c, h, w), integers(rng, o, c, taps, taps)], ()


def depthwise(rng: np.random.Generator) -> Problem:
    """A stencil per channel over a symbolic width."""
    c, width = int(rng.integers(1, 6)), int(rng.integers(3, 16))
    n = Var("n")
    x, w = placeholder((c, n), f32, "X"), placeholder((c, 3), f32, "W")
    y = reduce("sum", (c, n - 2), (3,), lambda ci, i, d: x[ci, i + d] * w[ci, d], "dw")
    z = compute((c, n - 2), lambda ci, i: y[ci, i] * 2.0, "scale")
    func = create_prim_func("depthwise", [x, w], [z], (n,), (DimFact(n, 3),))
    return func, [integers(rng, c, width), integers(rng, c, 3)], (width,)


def softmax(rng: np.random.Generator) -> Problem:
    """Four stages over rows of a ragged, perhaps symbolic length."""
    rows, cols = int(rng.integers(1, 6)), int(rng.integers(1, 20))
    n = Var("n") if rng.random() < 0.5 else const(cols)
    x = placeholder((rows, n), f32, "X")
    m = reduce("max", (rows,), (n,), lambda i, k: x[i, k], "row_max")
    e = compute((rows, n), lambda i, j: call("exp", x[i, j] - m[i]), "exp")
    s = reduce("sum", (rows,), (n,), lambda i, k: e[i, k], "row_sum")
    y = compute((rows, n), lambda i, j: e[i, j] / s[i], "div")
    dims = (n,) if isinstance(n, Var) else ()
    return create_prim_func("softmax", [x], [y], dims), [integers(rng, rows, cols)], (cols,) if dims else ()


def layer_norm(rng: np.random.Generator) -> Problem:
    """Mean and mean of squares, both read by the last stage."""
    rows, cols = int(rng.integers(1, 6)), int(rng.integers(1, 20))
    x, g = placeholder((rows, cols), f32, "X"), placeholder((cols,), f32, "G")
    s = reduce("sum", (rows,), (cols,), lambda i, k: x[i, k], "total")
    q = reduce("sum", (rows,), (cols,), lambda i, k: x[i, k] * x[i, k], "squares")
    y = compute((rows, cols), lambda i, j: (x[i, j] * float(cols) - s[i]) * g[j] + q[i], "norm")
    return create_prim_func("layer_norm", [x, g], [y]), [integers(rng, rows, cols), integers(rng, cols)], ()


def argmax(rng: np.random.Generator) -> Problem:
    """A monoid with two states."""
    rows, cols = int(rng.integers(1, 6)), int(rng.integers(1, 12))
    x = placeholder((rows, cols), f32, "X")
    value, index = reduce_many("argmax", (rows,), (cols,), lambda i, k: (x[i, k], k), ("best", "where"))
    y = compute((rows,), lambda i: value[i] * 2.0, "twice")
    return create_prim_func("argmax", [x], [y, index]), [integers(rng, rows, cols)], ()


def elementwise(rng: np.random.Generator) -> Problem:
    """A chain with broadcasts over a symbolic number of rows, perhaps none; a value is used twice."""
    n, m = Var("n"), int(rng.integers(1, 9))
    size = int(rng.integers(0, 18))
    x, b = placeholder((n, m), f32, "X"), placeholder((m,), f32, "B")
    s = compute((n, m), lambda i, j: x[i, j] + b[j], "shift")
    t = compute((n, m), lambda i, j: maximum(s[i, j], 0.0), "relu")
    u = compute((n, m), lambda i, j: t[i, j] * s[i, j], "gate")
    return create_prim_func("elementwise", [x, b], [u], (n,)), [integers(rng, size, m), integers(rng, m)], (size,)


def movement(rng: np.random.Generator) -> Problem:
    """Transpose, reverse and slice, each a stage."""
    n, m = (int(v) for v in rng.integers(2, 9, 2))
    x = placeholder((n, m), f32, "X")
    t = compute((m, n), lambda i, j: x[j, i], "transpose")
    r = compute((m, n), lambda i, j: t[m - 1 - i, j], "reverse")
    y = compute((m - 1, n), lambda i, j: r[i + 1, j], "slice")
    return create_prim_func("movement", [x], [y]), [integers(rng, n, m)], ()


def gather(rng: np.random.Generator) -> Problem:
    """Rows chosen by an index tensor, scaled before and summed after."""
    vocabulary, width, count = (int(v) for v in rng.integers(1, 9, 3))
    table, ids = placeholder((vocabulary, width), f32, "T"), placeholder((count,), i64, "ids")
    scaled = compute((vocabulary, width), lambda i, j: table[i, j] * 3.0, "scaled")
    rows = compute((count, width), lambda i, j: scaled[ids[i], j], "rows")
    y = reduce("sum", (count,), (width,), lambda i, k: rows[i, k], "sums")
    arrays = [integers(rng, vocabulary, width), rng.integers(0, vocabulary, count)]
    return create_prim_func("gather", [table, ids], [y]), arrays, ()


def chain(rng: np.random.Generator) -> Problem:
    """Two contractions, one after the other, with stages between: an attention in small."""
    n, d, e = (int(v) for v in rng.integers(1, 8, 3))
    q, k, v = placeholder((n, d), f32, "Q"), placeholder((n, d), f32, "K"), placeholder((n, e), f32, "V")
    s = reduce("sum", (n, n), (d,), lambda i, j, r: q[i, r] * k[j, r], "scores")
    p = compute((n, n), lambda i, j: maximum(s[i, j], 0.0), "relu")
    z = reduce("sum", (n,), (n,), lambda i, r: p[i, r], "norm")
    o = reduce("sum", (n, e), (n,), lambda i, j, r: p[i, r] * v[r, j], "mix")
    y = compute((n, e), lambda i, j: o[i, j] + z[i], "out")
    arrays = [integers(rng, n, d), integers(rng, n, d), integers(rng, n, e)]
    return create_prim_func("chain", [q, k, v], [y]), arrays, ()


def _one_of(*names: str) -> Callable[[np.random.Generator], Problem]:
    """One of the programs whose loops are as long as data says; rows are of any length, many of them empty."""
    return lambda rng: uneven_problem(names[int(rng.integers(len(names)))], rng, most=9)


def gathered_rows(rng: np.random.Generator) -> Problem:
    """C[i, j] = sum A[idx[i], k] * B[k, j], and an activation; the number of rows may be symbolic."""
    m, n, k, vocabulary = (int(v) for v in rng.integers(1, 10, 4))
    rows = Var("m") if rng.random() < 0.5 else const(m)
    a, b, ids = placeholder((vocabulary, k), f32, "A"), placeholder((k, n), f32, "B"), placeholder((rows,), i64, "ids")
    c = reduce("sum", (rows, n), (k,), lambda i, j, r: a[ids[i], r] * b[r, j], "mm")
    d = compute((rows, n), lambda i, j: maximum(c[i, j], 0.0), "act")
    dims = (rows,) if isinstance(rows, Var) else ()
    arrays = [integers(rng, vocabulary, k), integers(rng, k, n), rng.integers(0, vocabulary, m)]
    return create_prim_func("gathered_rows", [a, b, ids], [d], dims), arrays, (m,) if dims else ()


def gathered_depth(rng: np.random.Generator) -> Problem:
    """C[i, j] = sum A[i, idx[k]] * B[k, j] * s[k]: columns of one operand, chosen by data, and a scale of the other."""
    m, n, k, width = (int(v) for v in rng.integers(1, 10, 4))
    a, b = placeholder((m, width), f32, "A"), placeholder((k, n), f32, "B")
    ids, scale = placeholder((k,), i64, "ids"), placeholder((k,), f32, "s")
    scaled = compute((k, n), lambda r, j: b[r, j] * scale[r], "scaled")
    c = reduce("sum", (m, n), (k,), lambda i, j, r: a[i, ids[r]] * scaled[r, j], "mm")
    d = compute((m, n), lambda i, j: c[i, j] + 1.0, "shift")
    arrays = [integers(rng, m, width), integers(rng, k, n), rng.integers(0, width, k), integers(rng, k)]
    return create_prim_func("gathered_depth", [a, b, ids, scale], [d]), arrays, ()


def int8(rng: np.random.Generator) -> Problem:
    """Bytes of both kinds are multiplied and summed in 32 bits, with a bias, scaled in floats, and stored as bytes."""
    m, n, k = (int(v) for v in rng.integers(1, 14, 3))
    a, b, scale = placeholder((m, k), u8, "A"), placeholder((k, n), i8, "B"), placeholder((n,), f32, "s")
    bias = placeholder((n,), i32, "bias")
    c = reduce("sum", (m, n), (k,), lambda i, j, r: cast(a[i, r], i32) * cast(b[r, j], i32), "mm")
    d = compute((m, n), lambda i, j: cast(c[i, j] + bias[j], f32) * scale[j], "dequantize")
    e = compute((m, n), lambda i, j: cast(minimum(maximum(call("round", d[i, j]), -128.0), 127.0), i8), "quantize")
    arrays = [rng.integers(0, 256, (m, k)).astype(np.uint8), rng.integers(-128, 128, (k, n)).astype(np.int8), integers(rng, n) / 8]
    return create_prim_func("int8", [a, b, scale, bias], [e]), [*arrays, rng.integers(-999, 999, n).astype(np.int32)], ()


def packed(rng: np.random.Generator) -> Problem:
    """Bytes whose right operand lies in panels of columns, four terms side by side, after as many of the left one as fill these up."""
    m, n, k = (int(v) for v in rng.integers(1, 14, 3))
    panels = (-(-n // 4), -(-k // 4), 4, 4)
    a, b = placeholder((m, k), u8, "A"), placeholder(panels, i8, "B")
    total = compute_matmul_packed([a, b], Attrs((("columns", n),)), [tensor_type((m, n), i32)])
    arrays = [rng.integers(0, 256, (m, k)).astype(np.uint8), rng.integers(-128, 128, panels).astype(np.int8)]
    return create_prim_func("packed", [a, b], [total]), arrays, ()


def joined(rng: np.random.Generator) -> Problem:
    """Two values that are computed, one behind the other along the rows or the columns, sums of it, and a part of it shifted."""
    n, width = Var("n"), int(rng.integers(2, 9))
    size, more, along = int(rng.integers(0, 7)), int(rng.integers(1, 6)), int(rng.integers(2))
    rows = n if rng.random() < 0.5 else const(size)
    x, y = placeholder((rows, width), f32, "X"), placeholder((more, width) if along == 0 else (rows, more), f32, "Y")
    a = compute(x.shape, lambda i, j: x[i, j] * 2.0, "a")
    b = compute(y.shape, lambda i, j: maximum(y[i, j], 0.0), "b")
    shape = (rows + more, const(width)) if along == 0 else (rows, const(width + more))

    def pick(i: Expr, j: Expr) -> Expr:
        if along == 0:
            return select(i < rows, a[i, j], b[i - rows, j])
        return select(j < width, a[i, j], b[i, j - width])

    both = compute(shape, pick, "both")
    total = reduce("sum", (shape[0],), (shape[1],), lambda i, k: both[i, k], "total")
    last = compute(shape, lambda i, j: select(j < shape[1] - 1, both[i, j + 1], total[i]) + total[i], "shifted")
    dims = (n,) if rows is n else ()
    arrays = [integers(rng, size, width), integers(rng, *((more, width) if along == 0 else (size, more)))]
    return create_prim_func("joined", [x, y], [last, total], dims), arrays, (size,) if dims else ()


def pooled(rng: np.random.Generator) -> Problem:
    """Windows over an input of any length with a margin of the least number, their maximum, and what follows them spread out again."""
    n, channels = Var("n"), int(rng.integers(1, 5))
    size, window, step = int(rng.integers(3, 14)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    length = n if rng.random() < 0.5 else const(size)
    x = placeholder((channels, length), f32, "X")
    pad = compute(
        (channels, length + 2), lambda c, i: select(logical_and(i >= 1, i < length + 1), x[c, i - 1], const(-9.0, f32)), "pad"
    )
    count = (length + 2 - window) // step + 1
    top = reduce("max", (channels, count), (window,), lambda c, i, d: pad[c, i * step + d], "top")
    half_ = compute((channels, count), lambda c, i: top[c, i] * 0.5, "half")
    wide = compute((channels, count * 2), lambda c, i: half_[c, i // 2] + select(i % 2 < 1, top[c, i // 2], const(1.0, f32)), "wide")
    dims = (n,) if length is n else ()
    facts = (DimFact(n, 3),) if dims else ()
    return create_prim_func("pooled", [x], [wide], dims, facts), [integers(rng, channels, size)], (size,) if dims else ()


def batched(rng: np.random.Generator) -> Problem:
    """Products of two lists of matrices, one symbolic size being two of theirs, less the greatest of each row, masked below it."""
    n, batch, k = Var("n"), int(rng.integers(1, 4)), int(rng.integers(1, 6))
    size = int(rng.integers(0, 8))
    a, b = placeholder((batch, n, k), f32, "A"), placeholder((batch, n, k), f32, "B")
    c = reduce("sum", (batch, n, n), (k,), lambda q, i, j, r: a[q, i, r] * b[q, j, r], "scores")
    mask = compute((batch, n, n), lambda q, i, j: select(j <= i, c[q, i, j], const(-99.0, f32)), "mask")
    top = reduce("max", (batch, n), (n,), lambda q, i, j: mask[q, i, j], "top")
    less = compute((batch, n, n), lambda q, i, j: mask[q, i, j] - top[q, i], "less")
    d = reduce("sum", (batch, n, k), (n,), lambda q, i, r, j: less[q, i, j] * b[q, j, r], "mixed")
    return create_prim_func("batched", [a, b], [d], (n,)), [integers(rng, batch, size, k) for _ in range(2)], (size,)


def resized(rng: np.random.Generator) -> Problem:
    """Neighbours of a picture that is spread out, the ends repeated, averaged over a window, and its rows and columns exchanged."""
    h, w = Var("h"), int(rng.integers(1, 6))
    size, up = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    rows = h if rng.random() < 0.5 else const(size)
    x = placeholder((rows, w), f32, "X")
    wide = compute((rows * up, w * up), lambda i, j: x[i // up, j // up], "wide")
    last = rows * up - 1
    edge = compute((rows * up + 2, w * up), lambda i, j: wide[minimum(maximum(i - 1, 0), last), j], "edge")
    mean = reduce("sum", (rows * up, w * up), (3,), lambda i, j, d: edge[i + d, j], "window")
    turned = compute((w * up, rows * up), lambda j, i: mean[i, j] * 0.5 + edge[i, j], "turned")
    dims = (h,) if rows is h else ()
    facts = (DimFact(h, 1),) if dims else ()
    return create_prim_func("resized", [x], [turned], dims, facts), [integers(rng, size, w)], (size,) if dims else ()


def converted(rng: np.random.Generator) -> Problem:
    """Numbers of several widths: bytes that wrap, a truth value for each, a table read where a number says, sums in 64 bits."""
    n, m = Var("n"), int(rng.integers(1, 12))
    size = int(rng.integers(0, 20))
    x, table = placeholder((n, m), i8, "X"), placeholder((7,), f32, "T")
    wrapped = compute((n, m), lambda i, j: x[i, j] * x[i, j] + const(100, i8), "wrapped")
    is_less = compute((n, m), lambda i, j: wrapped[i, j] < x[i, j], "is_less")
    place = compute((n, m), lambda i, j: cast(wrapped[i, j], i64) % 7, "place")
    chosen = compute((n, m), lambda i, j: select(is_less[i, j], table[place[i, j]], cast(x[i, j], f32)), "chosen")
    total = reduce("sum", (m,), (n,), lambda j, i: cast(place[i, j], i64) * cast(x[i, j], i64), "total")
    best = reduce("max", (n,), (m,), lambda i, j: chosen[i, j], "best")
    arrays = [rng.integers(-128, 128, (size, m)).astype(np.int8), integers(rng, 7)]
    return create_prim_func("converted", [x, table], [chosen, total, best], (n,)), arrays, (size,)


def grouped(rng: np.random.Generator) -> Problem:
    """Windows of groups of channels over pictures of any height, several at once, with a margin, and a second operand per channel."""
    groups, ins, outs, kernel = (int(v) for v in rng.integers(1, 4, 4))
    h, width, samples = Var("h"), int(rng.integers(kernel, 7)), int(rng.integers(1, 3))
    size = int(rng.integers(kernel, 8))
    x, w = placeholder((samples, groups * ins, h, width), f32, "X"), placeholder((groups * outs, ins, kernel, kernel), f32, "W")
    scale = placeholder((groups * outs,), f32, "S")
    shape = (samples, groups * outs, h - (kernel - 1), width - (kernel - 1))

    def term(s: Expr, o: Expr, i: Expr, j: Expr, c: Expr, p: Expr, q: Expr) -> Expr:
        return x[s, o // outs * ins + c, i + p, j + q] * w[o, c, p, q]

    y = reduce("sum", shape, (ins, kernel, kernel), term, "conv")
    z = compute(shape, lambda s, o, i, j: maximum(y[s, o, i, j] * scale[o], 0.0), "scaled")
    mean = reduce("sum", (samples, groups * outs), (h - (kernel - 1), width - (kernel - 1)), lambda s, o, i, j: z[s, o, i, j], "mean")
    weights = integers(rng, groups * outs, ins, kernel, kernel)
    arrays = [integers(rng, samples, groups * ins, size, width), weights, integers(rng, groups * outs)]
    return create_prim_func("grouped", [x, w, scale], [z, mean], (h,), (DimFact(h, kernel),)), arrays, (size,)


def half(rng: np.random.Generator) -> Problem:
    """Halves: a product summed in f32, a bias, and a chain that stays in halves."""
    m, n, k = (int(v) for v in rng.integers(1, 14, 3))
    a, b, bias = placeholder((m, k), f16, "A"), placeholder((k, n), f16, "B"), placeholder((n,), f16, "bias")
    c = reduce("sum", (m, n), (k,), lambda i, j, r: cast(a[i, r], f32) * cast(b[r, j], f32), "mm")
    d = compute((m, n), lambda i, j: cast(c[i, j], f16) + bias[j], "biased")
    e = compute((m, n), lambda i, j: maximum(d[i, j], const(0.0, f16)) * const(0.5, f16), "act")
    arrays = [integers(rng, *shape).astype(np.float16) for shape in ((m, k), (k, n), (n,))]
    return create_prim_func("half", [a, b, bias], [e]), arrays, ()


def weights_as_inputs(rng: np.random.Generator) -> Problem:
    """A convolution in groups, whose weights are scaled by channel before, as a normalisation that is folded at run time."""
    groups, each, o, taps = (int(v) for v in rng.integers(1, 4, 4))
    width = int(rng.integers(taps, taps + 6))
    x, w = placeholder((groups, each, width), f32, "X"), placeholder((groups, o, each, taps), f32, "W")
    scale, shift = placeholder((groups, o), f32, "scale"), placeholder((groups, o), f32, "shift")
    scaled = compute((groups, o, each, taps), lambda g, c, e, t: w[g, c, e, t] * scale[g, c], "scaled")
    shape = (groups, o, width - taps + 1)
    y = reduce("sum", shape, (each, taps), lambda g, c, i, e, t: x[g, e, i + t] * scaled[g, c, e, t], "conv")
    z = compute(shape, lambda g, c, i: maximum(y[g, c, i] + shift[g, c], 0.0), "relu")
    arrays = [integers(rng, groups, each, width), integers(rng, groups, o, each, taps), integers(rng, groups, o), integers(rng, groups, o)]
    return create_prim_func("weights_as_inputs", [x, w, scale, shift], [z]), arrays, ()


CLASSES: dict[str, Callable[[np.random.Generator], Problem]] = {
    **{
        rule.__name__: rule
        for rule in (matmul, conv2d, depthwise, softmax, layer_norm, argmax, elementwise, movement, gather, chain)
    },
    "ragged": _one_of("ragged_mean", "ragged_softmax", "ragged_scale", *["ragged_chain", "ragged_product_chain"] * 2),
    "csr": _one_of("csr_vector", "csr_matrix", *["csr_chain"] * 6),
    "paged": _one_of(*["paged_chain", "paged_sum_chain"]),
    **{rule.__name__: rule for rule in (gathered_rows, gathered_depth, int8, packed, half, weights_as_inputs)},
    **{rule.__name__: rule for rule in (joined, pooled, batched, resized, converted, grouped, padded)},
}


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Small whole numbers: sums and products of them are exact in float32, in any order."""
    return rng.integers(-3, 4, shape).astype(np.float32)
