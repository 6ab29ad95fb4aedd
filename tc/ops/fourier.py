"""Overlapping pieces of signals, one after the other, their transforms, and the matrices of these, where their length is data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import simplify
from tc.ir.dtype import f32, f64
from tc.ir.expr import Buffer, Const, Expr, Load, call, cast, ceildiv, const, equal, floordiv, maximum, select
from tc.ir.graph import Attrs
from tc.ir.hints import LoopHints
from tc.ir.loop import For, If, LoopKind, Stmt, Store, seq
from tc.ir.node import replace
from tc.ir.types import TensorType, product
from tc.ops.butterflies import MOST_PRIME, Rows, radices
from tc.ops.common import Arrays, Tensors, Types, exprs, operand, require_equal, unravel
from tc.ops.registry import REQUIRED, OpDef, current_facts, register, require
from tc.ops.statements import loop, scratch
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _infer(types: Types, attrs: Attrs) -> TensorType:
    """[b, n] becomes [b, frames, size]: those that fit whole, `step` apart."""
    x, (size, step) = operand(types, 0, "frames"), exprs((attrs.size, attrs.step))
    if x.rank != 2:
        raise ShapeError(f"frames: signals must be [b, n], found {x}")
    require(size >= 1, f"frames: a frame has {size} elements")
    require(step >= 1, f"frames: the step from frame to frame is {step}")
    return TensorType((x.shape[0], _count_frames(x.shape[1], size, step), size), x.dtype)


def _count_frames(length: Expr, size: Expr | int, step: Expr) -> Expr:
    count = maximum(floordiv(length - size, maximum(step, const(1))) + 1, const(0))
    return simplify(count, current_facts())


def _compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, step = tensors[0], exprs((attrs.step,))[0]
    assert x is not None
    return te.compute(types[0].shape, lambda b, f, k: x[(b, te.minimum(f * step + k, x.shape[1] - 1))], "frames")


def _run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, size, step = arrays[0], int(attrs.size), int(attrs.step)
    assert x is not None
    count = max((x.shape[1] - size) // step + 1, 0)
    return np.ascontiguousarray(x[:, np.arange(count)[:, None] * step + np.arange(size)])


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((2, 23)).astype(np.float32)
    for size, step in ((4, 3), (5, 1), (23, 7), (24, 2), (2, 6)):
        yield [x], {"size": size, "step": step}


register(OpDef("frames", _infer, _run, _compute, {"size": REQUIRED, "step": REQUIRED}, samples=_samples))


# -- the matrix of a transform


def _infer_matrix(types: Types, attrs: Attrs) -> TensorType:
    """[size * pair, kept * 2]: for each element of a row, or its real and imaginary part, those of what it adds to each element of the
    transform (unscaled); times a window of `size` numbers, if there is one."""
    size, kept = exprs((attrs.size, attrs.kept))
    if attrs.pair not in (1, 2) or attrs.dtype not in (f32, f64):
        raise ShapeError(f"dft_matrix: numbers of {attrs.pair} parts, {attrs.dtype}")
    require(size >= 1, f"dft_matrix: a transform of {size} elements")
    if types and types[0] is not None:
        if types[0].rank != 1:
            raise ShapeError(f"dft_matrix: the window is {types[0]}")
        require_equal(types[0].shape[0], size, "dft_matrix: the size of the window")
    return TensorType((simplify(size * attrs.pair, current_facts()), simplify(kept * 2, current_facts())), attrs.dtype)


def _compute_matrix(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    window, (size,) = (tensors[0] if tensors else None), exprs((attrs.size,))
    turn = 2 * math.pi * (1 if attrs.inverse else -1)

    def entry(i: Expr, j: Expr) -> Expr:
        row, part = (i // 2, i % 2) if attrs.pair == 2 else (i, const(0))
        angle = cast(row * (j // 2) % maximum(size, const(1)), f64) * turn / cast(size, f64)
        cos, sin = call("cos", angle), call("sin", angle)
        is_same = equal(part, j % 2)  # real of real, imaginary of imaginary
        found = select(is_same, cos, select(equal(part, 0), sin, sin * -1.0))
        return cast(found if window is None else found * cast(window[row], f64), types[0].dtype)

    return te.compute(types[0].shape, entry, "dft_matrix")


def _run_matrix(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    size, kept = int(attrs.size), int(attrs.kept)
    turns = np.arange(size)[:, None] * np.arange(kept) % size * (2 * math.pi * (1 if attrs.inverse else -1) / size)
    if arrays and arrays[0] is not None:
        factors = np.exp(1j * turns) * arrays[0].astype(np.float64)[:, None]
    else:
        factors = np.exp(1j * turns)
    rows = [factors] if attrs.pair == 1 else [factors, factors * 1j]
    found = np.stack([np.stack([row.real, row.imag], -1) for row in rows], 1)
    return found.reshape(size * attrs.pair, kept * 2).astype(attrs.dtype.numpy)


def _matrix_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for pair in (1, 2):
        for inverse in (False, True):
            yield [], {"size": 7, "kept": 4, "pair": pair, "inverse": inverse}
            yield [rng.standard_normal(8).astype(np.float32)], {"size": 8, "kept": 8, "pair": pair, "inverse": inverse, "dtype": f64}


register(
    OpDef(
        "dft_matrix",
        _infer_matrix,
        _run_matrix,
        _compute_matrix,
        {"size": REQUIRED, "kept": REQUIRED, "pair": 1, "inverse": False, "dtype": f32},
        apart=True,
        samples=_matrix_samples,
    )
)


# -- transforms of frames

VECTOR_BYTES = 32
"""Rows are transformed side by side, as many as numbers fit a vector."""

GRAIN = 1 << 15
"""Elements of rows that a thread takes at least."""


def _infer_transforms(types: Types, attrs: Attrs) -> TensorType:
    """[b, n] becomes [b, frames, 2 * kept]: the first `kept` complex numbers of the (unscaled) transform of every frame.

    A frame has `size` numbers of `pair` parts, which a window is multiplied to, if there is one; frames are `step` numbers apart. Operand
    1, [size, 2], holds the roots of 1 that terms are turned by: number k is exp(-2 pi i k / size), of the inverse exp(2 pi i k / size).
    """
    x, roots, window = operand(types, 0, "transforms"), operand(types, 1, "transforms"), types[2] if len(types) > 2 else None
    size, kept, step = attrs.size, attrs.kept, exprs((attrs.step,))[0]
    if x.rank != 2 or x.dtype not in (f32, f64) or attrs.pair not in (1, 2):
        raise ShapeError(f"transforms: of {x}, numbers of {attrs.pair} parts")
    if not can_transform(size) or not 0 < kept <= size:
        raise ShapeError(f"transforms: {kept} numbers of transforms of {size}, whose prime factors must be at most {MOST_PRIME}")
    if roots.dtype is not x.dtype or tuple(roots.shape) != (const(size), const(2)):
        raise ShapeError(f"transforms: {roots} must be {x.dtype}[{size}, 2]")
    if window is not None:
        if window.dtype is not x.dtype or window.rank != 1:
            raise ShapeError(f"transforms: the window is {window}, must be {x.dtype}[{size}]")
        require_equal(window.shape[0], const(size), "transforms: the size of the window")
    require(step >= 1, f"transforms: the step from frame to frame is {step}")
    count = _count_frames(x.shape[1], size * attrs.pair, step * attrs.pair)
    return TensorType((x.shape[0], count, const(2 * kept)), x.dtype)


def can_transform(size: int) -> bool:
    return size > 0 and radices(size) is not None


def _compute_transforms(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, roots, window = tensors[0], tensors[1], tensors[2] if len(tensors) > 2 else None
    assert x is not None and roots is not None
    size, kept, pair, dtype = attrs.size, attrs.kept, attrs.pair, x.dtype
    step = exprs((attrs.step,))[0] * pair
    lanes = VECTOR_BYTES // dtype.size_bytes
    rows = Rows(roots, size, lanes, attrs.inverse)
    is_halved, is_alone = pair == 1 and size % 2 == 0, pair == 1 and size % 2 == 1
    shape = types[0].shape[:2]
    total = product(shape)

    def element(row: Expr, k: Expr) -> Expr:
        batch, frame = unravel(row, shape)
        value = x[(batch, frame * step + k)]
        return value if window is None else value * window[(k if pair == 1 else k // 2,)]

    def body(y: Buffer) -> Stmt:
        room = const(2 * max(size // 2 + 1 if is_halved else size, kept))
        one, other = (Buffer(name, (room, const(lanes)), dtype) for name in ("numbers", "passed"))

        def block(b: Expr) -> Stmt:
            def read(k: Expr, lane: Expr) -> Stmt:
                return Store(one, (k * 2 if is_alone else k, lane), element(te.minimum(b * lanes + lane, total - 1), k))

            def write(k: Expr, lane: Expr) -> Stmt:
                return Store(y, (*unravel(b * lanes + lane, shape), k), Load(found, (k, lane)))

            def write_some(k: Expr, lane: Expr) -> Stmt:
                return If(b * lanes + lane < total, write(k, lane))

            zero = lambda k: rows.across(lambda lane: Store(one, (k * 2 + 1, lane), const(0.0, dtype)))  # noqa: E731
            steps = [_columns_from_rows(size * pair, lanes, read)]
            steps += [loop(size, zero, "k")] if is_alone else []
            transformed, found, spare = rows.transform(size // 2 if is_halved else size, one, other)
            steps.append(transformed)
            if is_halved:
                steps.append(rows.of_real(size // 2, kept, found, spare))
                found = spare
            whole = _rows_from_columns(2 * kept, lanes, write)
            rest = loop(2 * kept, lambda k: loop(lanes, lambda lane: write_some(k, lane), "lane"), "k")
            return scratch([one, other], seq(*steps, If((b + 1) * lanes <= total, whole, rest)))

        blocks, grain = ceildiv(total, lanes), max(1, GRAIN // (size * lanes))
        if isinstance(blocks, Const) and blocks.value <= grain:
            return loop(blocks, block, "b")
        nest = loop(blocks, block, "b", LoopKind.PARALLEL)
        assert isinstance(nest, For)
        return replace(nest, hints=LoopHints(grain=grain))

    return te.raw([("transforms", types[0].shape, dtype)], body, "transforms")[0]


def _columns_from_rows(count: int, lanes: int, copy: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """`copy(k, lane)` for k < `count` and all lanes, where what is read lies side by side along k, and what is written along the lanes."""
    return _squares(count, lanes, copy, lambda outer, inner: (outer, inner))


def _rows_from_columns(count: int, lanes: int, copy: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """The same, read along the lanes and written along k."""
    return _squares(count, lanes, copy, lambda outer, inner: (inner, outer))


def _squares(count: int, lanes: int, copy: Callable[[Expr, Expr], Stmt], order: Callable[[Expr, Expr], tuple[Expr, Expr]]) -> Stmt:
    def square(base: Expr) -> Stmt:
        def one(outer: Expr, inner: Expr) -> Stmt:
            k, lane = order(outer, inner)
            return copy(base * lanes + k, lane)

        nest = loop(lanes, lambda outer: loop(lanes, lambda inner: one(outer, inner), "j", LoopKind.VECTORIZED), "i", LoopKind.UNROLLED)
        assert isinstance(nest, For)
        return replace(nest, hints=LoopHints(transpose=True))

    whole = count // lanes
    rest = loop(count - whole * lanes, lambda k: loop(lanes, lambda lane: copy(k + whole * lanes, lane), "lane"), "k")
    return seq(loop(whole, square, "s"), rest)


def _run_transforms(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, window = arrays[0], arrays[2] if len(arrays) > 2 else None
    assert x is not None
    whole = x.shape[1] // attrs.pair
    pairs = x[:, : whole * attrs.pair].astype(np.float64).reshape(x.shape[0], whole, attrs.pair)
    signal = pairs[..., 0] + (1j * pairs[..., 1] if attrs.pair == 2 else 0)
    count = max((signal.shape[1] - attrs.size) // int(attrs.step) + 1, 0)
    frames = signal[:, np.arange(count)[:, None] * int(attrs.step) + np.arange(attrs.size)]
    frames = frames if window is None else frames * window
    found = (np.fft.ifft(frames) * attrs.size if attrs.inverse else np.fft.fft(frames))[..., : attrs.kept]
    return np.stack([found.real, found.imag], -1).reshape(x.shape[0], count, 2 * attrs.kept).astype(x.dtype)


def roots_of_one(size: int, inverse: bool) -> np.ndarray:
    angles = np.arange(size) * (2 * math.pi / size) * (1 if inverse else -1)
    return np.stack([np.cos(angles), np.sin(angles)], -1)


def _transform_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for size, pair, kept, step in ((1, 1, 1, 2), (2, 1, 2, 3), (12, 1, 7, 5), (10, 1, 10, 10), (9, 1, 5, 2), (16, 2, 16, 3), (13, 2, 4, 1)):
        x = rng.standard_normal((2, 40 * pair)).astype(np.float32)
        inverse, window = size % 3 == 0, rng.standard_normal(size).astype(np.float32) if size % 2 == 0 else None
        attrs = {"size": size, "pair": pair, "kept": kept, "step": step, "inverse": inverse}
        yield [x, roots_of_one(size, inverse).astype(np.float32), window], attrs
    yield [rng.standard_normal((3, 20)), roots_of_one(20, False)], {"size": 20, "kept": 11, "step": 1}
    yield [rng.standard_normal((3, 7)), roots_of_one(8, False)], {"size": 8, "kept": 5, "step": 1}  # no frame fits


register(
    OpDef(
        "transforms",
        _infer_transforms,
        _run_transforms,
        _compute_transforms,
        {"size": REQUIRED, "step": REQUIRED, "kept": REQUIRED, "pair": 1, "inverse": False},
        apart=True,
        samples=_transform_samples,
    )
)
