"""Convolutions of bytes: the same sums as numpy's in 64 bits, in every layout and on every kind of CPU."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tc
from tc.errors import ShapeError
from tc.ir.dtype import f32, from_numpy, i32, u8
from tc.ir.expr import Var
from tc.ir.graph import Atom
from tc.ir.module import IRModule
from tc.ir.types import TensorType, tensor_type
from tc.ops.build import GraphBuilder
from tc.target import Target
from tests.draws import some_of

TARGETS = ("native", "x86-64-v4", "x86-64-v3")


@dataclass(frozen=True)
class Problem:
    """One convolution: its operands, and what its attributes are."""

    x: np.ndarray
    w: np.ndarray
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    fill: int

    @property
    def attrs(self) -> dict[str, Any]:
        names = ("strides", "pads", "dilations", "groups", "fill")
        return {name: getattr(self, name) for name in names}

    def sums(self, x: np.ndarray) -> np.ndarray:
        """Those of numpy, tap by tap, in 64 bits."""
        rank, (outputs, inputs, *kernel) = x.ndim - 2, self.w.shape
        around = [(0, 0), (0, 0), *zip(self.pads[:rank], self.pads[rank:], strict=True)]
        padded = np.pad(x.astype(np.int64), around, constant_values=self.fill)
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, self.dilations, strict=True)]
        counts = [(n - r) // s + 1 for n, r, s in zip(padded.shape[2:], reach, self.strides, strict=True)]
        result = np.zeros((len(x), outputs, *counts), np.int64)
        each = outputs // self.groups
        for tap in np.ndindex(*kernel):
            places = zip(tap, counts, self.strides, self.dilations, strict=True)
            part = padded[(..., *(slice(t * d, t * d + (n - 1) * s + 1, s) for t, n, s, d in places))]
            for g in range(self.groups):
                weights = self.w[(slice(g * each, (g + 1) * each), slice(None), *tap)].astype(np.int64)
                result[:, g * each : (g + 1) * each] += np.einsum("oc,nc...->no...", weights, part[:, g * inputs : (g + 1) * inputs])
        return result


def _bytes(rng: np.random.Generator, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """Random ones, with many at the ends of the range."""
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max + 1, shape).astype(dtype)
    ends = rng.random(shape)
    values[ends < 0.2], values[ends > 0.8] = info.min, info.max
    return values


def draw_problem(rng: np.random.Generator, most: int = 64) -> Problem:
    def pick(*options: Any) -> Any:
        return options[int(rng.integers(len(options)))]

    rank = pick(1, 2, 2, 2, 2, 3)
    channels = pick(1, 3, 5, 16, 17, 64, most)
    outputs, groups = pick(1, 3, 16, 17, 64, most), 1
    match pick("one", "one", "one", "depthwise", "multiplied", "groups"):
        case "depthwise":
            groups = outputs = channels
        case "multiplied":
            groups, outputs = channels, 2 * channels
        case "groups":
            groups, channels, outputs = 2, pick(4, 32, 2 * most), pick(6, 32, 2 * most)
    kernel = tuple(pick(1, 1, 3, 3, 2, 5) for _ in range(rank)) if pick(0, 1) else (pick(1, 3),) * rank
    dilations = tuple(pick(1, 1, 2) for _ in range(rank))
    pads = tuple(int(rng.integers(0, 3)) for _ in range(2 * rank)) if pick(0, 1) else (0,) * 2 * rank
    space = tuple((k - 1) * d + int(rng.integers(1, 12)) for k, d in zip(kernel, dilations, strict=True))
    strides = tuple(pick(1, 1, 2, 3) for _ in range(rank))
    x = _bytes(rng, pick(np.uint8, np.uint8, np.int8), (pick(1, 1, 2), channels, *space))
    w = _bytes(rng, pick(np.int8, np.int8, np.int8, np.uint8), (outputs, channels // groups, *kernel))
    info = np.iinfo(x.dtype)
    return Problem(x, w, strides, pads, dilations, groups, pick(int(info.min), int(info.max), 3))


DRAWS = [(seed, target) for seed in range(60) for target in TARGETS]
QUICK_DRAWS = [(seed, target) for seed, target in DRAWS if seed < 21 and seed % 3 == TARGETS.index(target)]


@pytest.mark.parametrize(("seed", "target"), some_of(DRAWS, quick=QUICK_DRAWS))
def test_sums_are_those_of_numpy(seed: int, target: str) -> None:
    rng = np.random.default_rng(seed)
    problem = draw_problem(rng)
    is_known, is_symbolic = bool(rng.integers(4)), rng.integers(3) == 0
    b = GraphBuilder()
    shape = (Var("n"), problem.x.shape[1], *map(Var, "hwd"[: problem.x.ndim - 2])) if is_symbolic else problem.x.shape
    x = b.param("x", _type(shape, problem.x))
    w: Atom = b.const(problem.w) if is_known else b.param("w", tensor_type(problem.w.shape, from_numpy(problem.w.dtype)))
    call = b.call("conv_integer", x, w, **problem.attrs)
    module = tc.compile(IRModule((b.function("main", (call,)),)), target, threads=1 + seed % 2)

    for own in (problem.x, *([problem.x[:1], problem.x[:0]] if is_symbolic else [])):
        (found,) = module.run({"x": own} if is_known else {"x": own, "w": problem.w}).values()

        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, problem.sums(own))


def _type(shape: tuple[Any, ...], like: np.ndarray) -> TensorType:
    return tensor_type(shape, from_numpy(like.dtype))


def test_operands_that_are_no_bytes_and_fills_out_of_range_are_refused() -> None:
    b = GraphBuilder()
    x, w = b.param("x", tensor_type((1, 4, 5, 5), from_numpy(np.dtype(np.uint8)))), b.const(np.ones((4, 4, 3, 3), np.int8))

    with pytest.raises(ShapeError, match="i8, u8 or i16"):
        b.call("conv_integer", b.call("cast", x, dtype=i32), w)
    with pytest.raises(ShapeError, match="fill of -1"):
        b.call("conv_integer", x, w, fill=-1)
    with pytest.raises(ShapeError, match="i8, u8 or i16"):
        b.call("conv_integer", x, b.const(np.ones((4, 4, 3, 3), np.float32)))


def _with(name: str, *features: str) -> Target:
    """For two cores, however many there are: tiles differ where blocks are shared out among them."""
    plain = Target.parse(name)
    return dataclasses.replace(plain, features=(*plain.features, *features), cores=2)


WITH_VNNI = _with("x86-64-v4", "avx512vnni")


AVX2 = _with("x86-64-v3")


@pytest.mark.covering
@pytest.mark.parametrize(
    ("target", "instruction", "register"), [(WITH_VNNI, "vpdpbusd", "%zmm"), (AVX2, "vpmaddwd", "%ymm")], ids=("vnni", "avx2")
)
@pytest.mark.parametrize(("channels", "kernel"), [(64, 3), (24, 1), (3, 7)])
def test_tiles_of_sums_stay_in_registers(channels: int, kernel: int, target: Target, instruction: str, register: str) -> None:
    """On blocks, by instructions that add four products, or two of 16 bits, what follows being done before sums are stored."""
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.param("x", tensor_type((1, channels, 28, 28), u8))
    w = b.const(_bytes(rng, np.int8, (64, channels, kernel, kernel)))
    sums = b.call("conv_integer", x, w, pads=(kernel // 2,) * 4, fill=7)
    scaled = b.call("mul", b.call("cast", sums, dtype=f32), b.const(rng.random((64, 1, 1)).astype(np.float32)))
    y = b.call("quantize_linear", b.call("relu", scaled), b.const(np.float32(0.5)), b.const(np.uint8(3)), dtype=u8)
    module = IRModule((b.function("main", (y,)),))

    final = tc.lower(module, "scheduled", target).as_text()
    assembly = tc.lower(module, "asm", target).as_text()

    block = target.vector_bits // 32
    blocks = f"i32[1, {64 // block}, "
    assert f"{blocks}28, 28, {block}], scope='register'" in final or f"{blocks}784, {block}], scope='register'" in final
    assert assembly.count(instruction) >= 2 * (target.num_vector_registers - 4) // 3
    assert not [line for line in assembly.splitlines() if "(%rsp)" in line and register in line]


@pytest.mark.covering
@pytest.mark.parametrize(("target", "register"), [(WITH_VNNI, "%zmm"), (_with("x86-64-v3", "avxvnni"), "%ymm")], ids=["512", "256"])
@pytest.mark.parametrize("is_symbolic", [False, True])
def test_sums_of_any_sizes_and_vectors_stay_in_registers(is_symbolic: bool, target: Target, register: str) -> None:
    b = GraphBuilder()
    space = (Var("h"), Var("w")) if is_symbolic else (28, 28)
    x = b.param("x", tensor_type((1, 64, *space), u8))
    sums = b.call("conv_integer", x, b.const(_bytes(np.random.default_rng(0), np.int8, (64, 64, 3, 3))), pads=(1,) * 4)
    module = IRModule((b.function("main", (sums,)),))

    assembly = tc.lower(module, "asm", target).as_text()

    assert assembly.count("vpdpbusd") >= 8
    assert not [line for line in assembly.splitlines() if "(%rsp)" in line and register in line]
