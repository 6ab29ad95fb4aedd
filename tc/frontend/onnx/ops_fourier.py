"""DFT and STFT of ONNX as products with constant matrices.

A short transform is one product, a long one a product for each factor of its length, with turns of the complex plane between them (Cooley
and Tukey, 1965). A length with a large prime factor becomes a convolution of a length with small ones (Bluestein, 1970). Where the
length is data, so is the matrix. Complex numbers are the last axis, of two elements, which products take in one row with the axis before.
"""

from __future__ import annotations

import math

import numpy as np

from tc.errors import NodeError, UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.run_time_axes import around_axis, axes_from_data, bound
from tc.frontend.onnx.size_elements import make_elements
from tc.frontend.onnx.values import ModelValue, elements_value
from tc.ir.arith import simplify
from tc.ir.dtype import f16, f32, f64, i64
from tc.ir.expr import Const, Expr, const, equal, is_const, select
from tc.ir.types import product
from tc.ops.registry import require

DIRECT = 128
"""The longest transform that is one product, where its length is even."""
MOST_HALVED = 512
"""The longest transform that is two products of half its length, or one where its length is odd."""
MOST_PRIME = 64
"""The largest prime factor that is transformed by one product inside of a longer transform."""


def _angles(size: int, rows: int, columns: np.ndarray) -> np.ndarray:
    """2 pi n k / size for n below `rows` and the given k, reduced while they are integers."""
    return (np.arange(rows)[:, None] * columns % size) * (2 * math.pi / size)


def _matrix(angles: np.ndarray, is_complex: bool, inverse: bool) -> np.ndarray:
    """[n * (2 if is_complex else 1), k * 2]: what turns rows by the angles and adds up."""
    angles = angles if inverse else -angles
    rows, columns = angles.shape
    of_real = np.stack([np.cos(angles), np.sin(angles)], -1)
    if not is_complex:
        return of_real.reshape(rows, 2 * columns)
    of_imaginary = np.stack([-np.sin(angles), np.cos(angles)], -1)
    return np.stack([of_real, of_imaginary], 1).reshape(2 * rows, 2 * columns)


def _parts(size: int) -> tuple[int, int] | None:
    """The two factors of a length that are closest to each other; None for one with a large prime factor."""
    left = size
    for prime in range(2, MOST_PRIME + 1):
        while left % prime == 0:
            left //= prime
    if left > 1:
        return None
    first = max(d for d in range(1, math.isqrt(size) + 1) if size % d == 0)
    return size // first, first


def _is_direct(size: int) -> bool:
    return size <= DIRECT or (size <= MOST_HALVED and size % 2 == 1)


def _transform(n: NodeContext, x: ModelValue, size: int, kept: int, is_complex: bool, inverse: bool) -> ModelValue:
    """Transforms of the rows of x, [rows, size * (2 if is_complex else 1)]: their first `kept` elements, [rows, kept * 2], unscaled."""
    if _is_direct(size):
        return n.call("matmul", x, n.const(_matrix(_angles(size, size, np.arange(kept)), is_complex, inverse), x.dtype))
    if size <= MOST_HALVED:
        return _halved(n, x, size, kept, is_complex, inverse)
    parts = _parts(size)
    if parts is None:
        return _as_convolution(n, x, size, kept, is_complex, inverse)
    (first, second), rows, pair = parts, x.shape[0], 2 if is_complex else 1
    columns = n.call("transpose", n.call("reshape", x, shape=(rows, first, second, pair)), perm=(0, 2, 1, 3))
    columns = n.call("reshape", columns, shape=(simplify(rows * second), const(first * pair)))
    done = n.call("reshape", _transform(n, columns, first, first, is_complex, inverse), shape=(rows, second, first, 2))
    turned = _turned(n, done, _angles(size, second, np.arange(first)) * (1 if inverse else -1))
    across = n.call("reshape", n.call("transpose", turned, perm=(0, 2, 1, 3)), shape=(simplify(rows * first), const(second * 2)))
    count = -(-kept // first)
    found = n.call("reshape", _transform(n, across, second, count, True, inverse), shape=(rows, first, count, 2))
    found = n.call("reshape", n.call("transpose", found, perm=(0, 2, 1, 3)), shape=(rows, const(first * count * 2)))
    return _first(n, found, kept * 2)


def _halved(n: NodeContext, x: ModelValue, size: int, kept: int, is_complex: bool, inverse: bool) -> ModelValue:
    """Even elements are transforms of the sums of elements half the length apart, odd ones of their differences."""
    rows, half, count = x.shape[0], size // 2 * (2 if is_complex else 1), -(-kept // 2)
    a, b = (n.call("slice", x, starts=(0, begin), sizes=(rows, const(half)), steps=(1, 1)) for begin in (0, half))
    even = _transform(n, n.call("add", a, b), size // 2, count, is_complex, inverse)
    odd_matrix = _matrix(_angles(size, size // 2, 2 * np.arange(count) + 1), is_complex, inverse)
    odd = n.call("matmul", n.call("sub", a, b), n.const(odd_matrix, x.dtype))
    both = n.call("concat", *(n.call("reshape", v, shape=(rows, count, 1, 2)) for v in (even, odd)), axis=2)
    return _first(n, n.call("reshape", both, shape=(rows, const(4 * count))), kept * 2)


def _first(n: NodeContext, x: ModelValue, count: int) -> ModelValue:
    if is_const(x.shape[1], count):
        return x
    return n.call("slice", x, starts=(0, 0), sizes=(x.shape[0], const(count)), steps=(1, 1))


def _halves(n: NodeContext, x: ModelValue) -> tuple[ModelValue, ModelValue]:
    """Real and imaginary parts; the last axis stays, of one element."""
    sizes, steps, begin = (*x.shape[:-1], const(1)), (1,) * x.rank, (0,) * (x.rank - 1)
    real, imaginary = (n.call("slice", x, starts=(*begin, k), sizes=sizes, steps=steps) for k in (0, 1))
    return real, imaginary


def _times(n: NodeContext, x: ModelValue, real: np.ndarray, imaginary: np.ndarray) -> ModelValue:
    """Complex numbers times constants."""
    a, b = _halves(n, x)
    c, d = n.const(real[..., None], x.dtype), n.const(imaginary[..., None], x.dtype)
    found = n.call("sub", n.call("mul", a, c), n.call("mul", b, d)), n.call("add", n.call("mul", a, d), n.call("mul", b, c))
    return n.call("concat", *found, axis=x.rank - 1)


def _turned(n: NodeContext, x: ModelValue, angles: np.ndarray) -> ModelValue:
    return _times(n, x, np.cos(angles), np.sin(angles))


def _as_convolution(n: NodeContext, x: ModelValue, size: int, kept: int, is_complex: bool, inverse: bool) -> ModelValue:
    """n k = (n^2 + k^2 - (k - n)^2) / 2: what is turned by n^2 is convolved with turns by -n^2, then turned by k^2."""
    rows, sign = x.shape[0], 1 if inverse else -1
    longer = 1 << (2 * size - 1).bit_length()
    chirp = (np.arange(size) ** 2 % (2 * size)) * (math.pi / size) * sign
    x = n.call("reshape", x, shape=(rows, size, 2 if is_complex else 1))
    if not is_complex:
        x = n.call("concat", x, n.call("mul", x, n.const(0, x.dtype)), axis=2)
    x = _turned(n, x, chirp)
    padded = n.call("reshape", n.call("pad", x, None, pads=(0, 0, 0, 0, longer - size, 0)), shape=(rows, const(2 * longer)))
    filter_ = np.zeros(longer, complex)
    filter_[:size] = np.exp(-1j * chirp)
    filter_[longer - size + 1 :] = filter_[1:size][::-1]
    spectrum = np.fft.fft(filter_) / longer
    found = n.call("reshape", _transform(n, padded, longer, longer, True, False), shape=(rows, longer, 2))
    found = n.call("reshape", _times(n, found, spectrum.real, spectrum.imag), shape=(rows, const(2 * longer)))
    found = n.call("reshape", _transform(n, found, longer, kept, True, True), shape=(rows, kept, 2))
    return n.call("reshape", _turned(n, found, chirp[:kept]), shape=(rows, const(2 * kept)))


def _rows_transformed(n: NodeContext, x: ModelValue, size: Expr, kept: Expr, is_complex: bool, inverse: bool) -> ModelValue:
    if isinstance(size, Const) and isinstance(kept, Const):
        return _transform(n, x, int(size), int(kept), is_complex, inverse)
    matrix = n.call("dft_matrix", None, size=size, kept=kept, pair=2 if is_complex else 1, inverse=inverse, dtype=x.dtype)
    return n.call("matmul", x, matrix)


# -- the operators


def _is_complex(n: NodeContext, x: ModelValue) -> bool:
    if not isinstance(x.shape[-1], Const) or int(x.shape[-1]) not in (1, 2):
        raise UnsupportedError(f"{n.op_type}: whether {x.type} is real or complex is not known", code="TC1015")
    return int(x.shape[-1]) == 2


def _length(n: NodeContext, index: int, otherwise: Expr) -> Expr:
    """A scalar input as a dim; `otherwise` where it is left out."""
    value = n.optional(index)
    if value is None:
        return otherwise
    value = n.call("reshape", value, shape=(const(1),)) if value.rank != 1 else value
    (found,) = n.graph.dims(value, f"{n.label}.length", n.span)
    return found


@onnx_op("DFT", since=17)
def import_dft_17(n: NodeContext) -> NodeResult:
    return _dft(n, n.value(0), n.attr("axis", 1))


@onnx_op("DFT", since=20)
def import_dft(n: NodeContext) -> NodeResult:
    if n.is_data(2):
        return _dft_along_data(n)
    axis = n.ints(2, "axis")
    return _dft(n, n.value(0), axis[0] if axis else -2)


def _dft_along_data(n: NodeContext) -> ModelValue:
    """The axes before and behind the one that data say are one axis each."""
    x = n.value(0)
    (axis,) = axes_from_data(n, 2, x.rank)
    n.graph.state(lambda: require(axis < x.rank - 1, f"DFT: axis {axis} of {x.type} holds real and imaginary parts"), n.span)
    before, along, behind = around_axis(n, x.shape[:-1], axis)
    found = _dft(n, n.call("reshape", x, shape=(before, along, behind, x.shape[-1])), 1)
    shape = bound(n, [select(equal(axis, d), found.shape[1], dim) for d, dim in enumerate(x.shape[:-1])], "size")
    return n.call("reshape", found, shape=(*shape, found.shape[-1]))


def _dft(n: NodeContext, x: ModelValue, axis: int) -> ModelValue:
    inverse, onesided = bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    if inverse and not onesided:
        raise UnsupportedError("the inverse of a whole spectrum: ONNX compares rounding errors of numpy, where 0 is exact", code="TC1013")
    if not -x.rank <= axis < x.rank or axis % x.rank == x.rank - 1:
        raise NodeError(f"DFT along axis {axis} of {x.type}, whose last axis holds real and imaginary parts")
    dtype, axis, is_complex = x.dtype, axis % x.rank, _is_complex(n, x)
    x = n.call("cast", x, dtype=f32) if dtype not in (f32, f64) else x
    perm = (*(d for d in range(x.rank - 1) if d != axis), axis, x.rank - 1)
    x = n.call("transpose", x, perm=perm) if perm != tuple(range(x.rank)) else x
    given = x.shape[-2]
    size = simplify(_length(n, 1, (given - 1) * 2 if inverse and onesided else given), n.facts)
    wanted = simplify(size // 2 + 1, n.facts) if onesided and inverse else size
    if wanted is not given:
        x = n.call("pad", x, None, pads=(*[0] * (2 * x.rank - 2), simplify(wanted - given, n.facts), 0))
    outer, pair = x.shape[:-2], 2 if is_complex else 1
    if onesided and inverse:
        x, is_complex = _mirrored(n, x, size), True
        pair = 2
    kept = simplify(size // 2 + 1, n.facts) if onesided and not inverse else size
    rows = n.call("reshape", x, shape=(product(outer), simplify(size * pair, n.facts)))
    found = _rows_transformed(n, rows, size, kept, is_complex, inverse)
    if inverse:
        count = n.call("cast", elements_value(make_elements([size], ()), i64), dtype=found.dtype)
        found = n.call("div", found, count)
    found = n.call("reshape", found, shape=(*outer, kept, const(2)))
    if onesided and inverse:
        found, _ = _halves(n, found)
    if perm != tuple(range(x.rank)):
        found = n.call("transpose", found, perm=tuple(perm.index(d) for d in range(x.rank)))
    return found if found.dtype is dtype else n.call("cast", found, dtype=dtype)


def _mirrored(n: NodeContext, x: ModelValue, size: Expr) -> ModelValue:
    """The whole spectrum of a real signal of `size` elements, of its first half; what is imaginary of a real number is left out."""
    if not _is_complex(n, x):
        x = n.call("concat", x, n.call("mul", x, n.const(0, x.dtype)), axis=x.rank - 1)
    if not isinstance(size, Const):
        raise UnsupportedError("DFT: the inverse of half a spectrum, of a length that is not known", code="TC1015")
    length, half = int(size), int(size) // 2 + 1
    real, imaginary = _halves(n, x)
    alone = np.ones((half, 1))
    alone[0] = 0
    if length % 2 == 0:
        alone[-1] = 0
    imaginary = n.call("mul", imaginary, n.const(alone, x.dtype))
    x = n.call("concat", real, imaginary, axis=x.rank - 1)
    back = length - half
    if not back:
        return x
    starts, sizes, steps = (*[0] * (x.rank - 2), back, 0), (*x.shape[:-2], const(back), const(2)), (*[1] * (x.rank - 2), -1, 1)
    tail = n.call("mul", n.call("slice", x, starts=starts, sizes=sizes, steps=steps), n.const([1, -1], x.dtype))
    return n.call("concat", x, tail, axis=x.rank - 2)


@onnx_op("STFT", since=17)
def import_stft(n: NodeContext) -> NodeResult:
    """The window is multiplied into the matrix where the transform is one product, so that frames are read as they lie."""
    signal, step, window = n.value(0), _length(n, 1, const(1)), n.optional(2)
    is_complex = signal.rank == 3 and _is_complex(n, signal)
    dtype = signal.dtype
    if dtype is f16:
        signal = n.call("cast", signal, dtype=f32)
    if window is not None and window.dtype != signal.dtype:
        window = n.call("cast", window, dtype=signal.dtype)
    size = _length(n, 3, window.shape[0] if window is not None else signal.shape[1])
    kept = simplify(size // 2 + 1, n.facts) if n.attr("onesided", 1) else size
    pair, batch = 2 if is_complex else 1, signal.shape[0]
    flat = n.call("reshape", signal, shape=(batch, simplify(signal.shape[1] * pair, n.facts)))
    frames = n.call("frames", flat, size=size * pair, step=step * pair)
    count, width = frames.shape[1], simplify(size * pair, n.facts)
    if isinstance(size, Const) and not _is_direct(int(size)):
        if window is not None:
            column = n.call("expand", n.call("reshape", window, shape=(size, const(1))), shape=(size, const(pair)))
            frames = n.call("mul", frames, n.call("reshape", column, shape=(width,)))
        rows = n.call("reshape", frames, shape=(simplify(batch * count, n.facts), width))
        found = _transform(n, rows, int(size), int(kept), is_complex, False)
    else:
        matrix = n.call("dft_matrix", window, size=size, kept=kept, pair=pair, dtype=signal.dtype)
        found = n.call("matmul", frames, matrix)
    found = n.call("reshape", found, shape=(batch, count, kept, const(2)))
    return found if found.dtype is dtype else n.call("cast", found, dtype=dtype)
