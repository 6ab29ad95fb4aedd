"""Depthwise convolutions and pooling on devices: threads that make neighbours, read what these share once, and access memory by vectors."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tc.codegen.c.dialect import CUDA
from tc.codegen.c.launch import emit_launches
from tc.ir.dtype import DType, f16, f32
from tc.ir.expr import Var, const, maximum
from tc.ir.loop import PrimFunc
from tc.ir.types import TensorType
from tc.ops.registry import get_op
from tc.te import compute, create_prim_func, placeholder
from tests.schedule.gpu.launches import check_schedule, device_schedule, drawn, finished, launches
from tests.schedule.gpu.problems import Problem


def problem(
    name: str, shapes: list[tuple], dtype: DType, rng: np.random.Generator, batch: int, is_finished: bool, **attrs: object
) -> Problem:
    """An operator on small integers, perhaps with an elementwise one behind it."""
    op = get_op(name)
    full = op.attrs(tuple(attrs.items()))
    tensors = [placeholder(shape, dtype, f"x{k}") for k, shape in enumerate(shapes)]
    type_ = op.infer([TensorType(tensor.shape, dtype) for tensor in tensors], full)
    assert op.compute is not None and isinstance(type_, TensorType)
    made = op.compute(tensors, full, [type_])
    out = compute(type_.shape, lambda *at: maximum(made[at], const(1, dtype)), "relu") if is_finished else made
    n = shapes[0][0]
    dims = (n,) if isinstance(n, Var) else ()
    arrays = [rng.integers(-2, 3, [batch if dim is n else int(str(dim)) for dim in tensor.shape]).astype(dtype.numpy) for tensor in tensors]
    return create_prim_func(name, tensors, [out], dims), arrays, (batch,) if dims else ()


def window(rng: np.random.Generator) -> Problem:
    """A depthwise convolution, channels apart or side by side, or pooling."""
    kind, dtype = int(rng.integers(4)), (f32, f32, f16)[int(rng.integers(3))]
    symbolic = bool(rng.random() < 0.4)
    batch = int(rng.integers(0 if symbolic else 1, 3))
    n = Var("n") if symbolic else const(batch)
    channels, size = int(rng.integers(2, 6)), [int(side) for side in rng.integers(4, 13, 2)]
    kernel, strides = [tuple(map(int, rng.integers(1, most, 2))) for most in (4, 3)]
    pads = tuple(map(int, rng.integers(0, min(kernel) + (kind < 2), 4)))
    common = {"strides": strides, "pads": pads}
    image = (n, channels, *size)
    if kind == 0:
        filters = (channels, 1, *kernel)
        return problem("conv", [image, filters], dtype, rng, batch, rng.random() < 0.5, groups=channels, **common)
    if kind == 1:
        lanes = int(rng.choice([4, 8, 16]))
        shapes = [(n, 2, *size, lanes), (2, 1, *kernel, lanes)]
        own = {"dilations": (1, 1), "in_channels": 2 * lanes - 1, "in_block": lanes, "depthwise": True}
        return problem("conv_blocked", shapes, dtype, rng, batch, rng.random() < 0.5, **own, **common)
    name = "max_pool" if kind == 2 else "avg_pool"
    return problem(name, [image], dtype, rng, batch, rng.random() < 0.5, kernel=kernel, **common)


def check_seed(seed: int, with_any_answers: bool = False) -> str:
    rng = np.random.default_rng(seed)
    func, arrays, dims = window(rng)
    if with_any_answers:
        return check_schedule(func, arrays, dims, decide=drawn(rng)).rule
    return check_schedule(func, arrays, dims).rule


def test_windows_keep_their_meaning() -> None:
    rules = [check_seed(seed) for seed in range(12)]

    assert rules.count("windows") >= 8


def test_windows_keep_their_meaning_with_any_answers() -> None:
    for seed in range(12, 18):
        check_seed(seed, with_any_answers=True)


@pytest.mark.slow
def test_many_windows_keep_their_meaning_with_any_answers() -> None:
    for seed in range(18, 120):
        check_seed(seed, with_any_answers=seed % 2 == 0)


def text_of(func: PrimFunc) -> str:
    scheduled = device_schedule(func)
    assert scheduled.rule == "windows" and len(launches(scheduled.func.body)) == 1
    return emit_launches(finished(scheduled.func), "kernel", CUDA)


def test_a_depthwise_convolution_is_one_launch_that_reads_what_neighbours_share_once() -> None:
    func, *_ = problem("conv", [(1, 64, 56, 56), (64, 1, 3, 3)], f32, np.random.default_rng(0), 1, True, groups=64, pads=(1, 1, 1, 1))

    text = text_of(func)

    (pad,) = re.findall(r"f32 conv_pad\[(\d+)\]", text)
    assert pad == "18"  # three rows of six for four results
    assert "*(f32x4 *)&relu[" in text or "f32x4_store_aligned(&relu" in text


def test_channels_side_by_side_are_read_as_vectors() -> None:
    shapes = [(1, 2, 28, 28, 32), (2, 1, 3, 3, 32)]
    own = {"strides": (1, 1), "dilations": (1, 1), "in_channels": 64, "in_block": 32, "depthwise": True, "pads": (1, 1, 1, 1)}
    func, *_ = problem("conv_blocked", shapes, f16, np.random.default_rng(0), 1, False, **own)

    text = text_of(func)

    assert re.search(r"const u16x8 \*\)&x0\[|u16x8_load_aligned\(&x0\[", text) and not re.search(r"[^&]x0\[", text)
