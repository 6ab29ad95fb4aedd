"""DFT and STFT of ONNX.

Lengths that are known are for `tc.ops.spectra`. Where the length is data, a transform is a product with a matrix that is made when the
module runs. Complex numbers are the last axis, of two elements, which transforms take in one row with the axis before.
"""

from __future__ import annotations

import math
from functools import partial, reduce

import numpy as np

from tc.errors import NodeError, UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.run_time_axes import around_axis, axes_from_data, bound
from tc.frontend.onnx.values import ModelValue, size_value
from tc.ir.arith import simplify
from tc.ir.dtype import f32, f64
from tc.ir.expr import Const, Expr, const, equal, select
from tc.ir.types import product
from tc.ops.fourier import roots_of_one
from tc.ops.registry import require
from tc.ops.spectra import Spectra, halves, has_kernel, is_direct


def _rows_transformed(n: NodeContext, x: ModelValue, size: Expr, kept: Expr, is_complex: bool, inverse: bool) -> ModelValue:
    if isinstance(size, Const) and isinstance(kept, Const):
        return Spectra(n).of(x, int(size), int(kept), is_complex, inverse)
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


_WINDOWS = {"HannWindow": (0.5, 0.5, 0.0), "HammingWindow": (25 / 46, 21 / 46, 0.0), "BlackmanWindow": (0.42, 0.5, 0.08)}
"""Of a cosine, of none, one and two waves in the window: a0 - a1 cos(w) + a2 cos(2 w)."""


def _window(n: NodeContext) -> ModelValue:
    """Weights of the points of a window, in double precision until they are of the type asked for."""
    size = _length(n, 0, const(0))
    waves = size if n.attr("periodic", 1) else size - 1
    place = n.call("cast", n.call("range", start=0, size=size, step=1), dtype=f64)
    angle = n.call("mul", place, n.call("div", n.const(2 * math.pi, f64), n.call("cast", size_value(waves), dtype=f64)))
    terms = [n.const(_WINDOWS[n.op_type][0], f64)]
    for count, factor in enumerate(_WINDOWS[n.op_type][1:], 1):
        if factor:
            cosine = n.call("cos", n.call("mul", angle, n.const(count, f64)))
            terms.append(n.call("mul", cosine, n.const((-1) ** count * factor, f64)))
    total = reduce(partial(n.call, "add"), terms)
    return n.call("cast", total, dtype=n.dtype_attr("output_datatype", 1))


for _name in _WINDOWS:
    onnx_op(_name, since=17)(_window)


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
        count = n.call("cast", size_value(size), dtype=found.dtype)
        found = n.call("div", found, count)
    found = n.call("reshape", found, shape=(*outer, kept, const(2)))
    if onesided and inverse:
        found, _ = halves(n, found)
    if perm != tuple(range(x.rank)):
        found = n.call("transpose", found, perm=tuple(perm.index(d) for d in range(x.rank)))
    return n.cast(found, dtype)


def _mirrored(n: NodeContext, x: ModelValue, size: Expr) -> ModelValue:
    """The whole spectrum of a real signal of `size` elements, of its first half; what is imaginary of a real number is left out."""
    if not _is_complex(n, x):
        x = n.call("concat", x, n.call("mul", x, n.const(0, x.dtype)), axis=x.rank - 1)
    if not isinstance(size, Const):
        raise UnsupportedError("DFT: the inverse of half a spectrum, of a length that is not known", code="TC1015")
    length, half = int(size), int(size) // 2 + 1
    real, imaginary = halves(n, x)
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
    """Where a transform is one product, the window is multiplied into the matrix, so that frames are read as they lie."""
    signal, step, window = n.value(0), _length(n, 1, const(1)), n.optional(2)
    is_complex = signal.rank == 3 and _is_complex(n, signal)
    dtype = signal.dtype
    if dtype not in (f32, f64):
        signal = n.call("cast", signal, dtype=f32)
    if window is not None and window.dtype != signal.dtype:
        window = n.call("cast", window, dtype=signal.dtype)
    size = _length(n, 3, window.shape[0] if window is not None else signal.shape[1])
    kept = simplify(size // 2 + 1, n.facts) if n.attr("onesided", 1) else size
    pair, batch = 2 if is_complex else 1, signal.shape[0]
    flat = n.call("reshape", signal, shape=(batch, simplify(signal.shape[1] * pair, n.facts)))
    if isinstance(size, Const) and has_kernel(int(size)):
        roots = n.const(roots_of_one(int(size), False), signal.dtype)
        found = n.call("transforms", flat, roots, window, size=int(size), step=step, kept=int(kept), pair=pair)  # type: ignore[arg-type]
    else:
        found = _frames_transformed(n, n.call("frames", flat, size=size * pair, step=step * pair), window, size, kept, pair)
    found = n.call("reshape", found, shape=(batch, found.shape[1], kept, const(2)))
    return n.cast(found, dtype)


def _frames_transformed(n: NodeContext, frames: ModelValue, window: ModelValue | None, size: Expr, kept: Expr, pair: int) -> ModelValue:
    """[b, frames, kept * 2], of frames [b, frames, size * pair]."""
    batch, count, width = frames.shape
    if not isinstance(size, Const) or is_direct(int(size)):
        return n.call("matmul", frames, n.call("dft_matrix", window, size=size, kept=kept, pair=pair, dtype=frames.dtype))
    if window is not None:
        column = n.call("expand", n.call("reshape", window, shape=(size, const(1))), shape=(size, const(pair)))
        frames = n.call("mul", frames, n.call("reshape", column, shape=(width,)))
    rows = n.call("reshape", frames, shape=(simplify(batch * count, n.facts), width))
    found = Spectra(n).of(rows, int(size), int(kept), pair == 2, False)
    return n.call("reshape", found, shape=(batch, count, simplify(kept * 2, n.facts)))
