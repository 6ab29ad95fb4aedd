"""Winograd's method over the last two axes of volumes: taps along the axes before them count as channels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import pytest

import tc
from tc.ir.dtype import f32, i64
from tc.ir.expr import Var
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.passes.graph.convert_layout import convert_layout
from tc.passes.graph.use_winograd import _transformed, use_winograd
from tests.ops.kernels import correlate


@dataclass(frozen=True)
class Case:
    channels: int
    outputs: int
    size: tuple[int | str, ...]
    taps: int = 3
    stride: int = 1
    dilation: int = 1
    pads: tuple[int, ...] = (1,) * 6
    samples: int | str = 1

    @property
    def weights(self) -> np.ndarray:
        rng = np.random.default_rng(0)
        scale = np.float32(np.sqrt(9 * self.taps * self.channels))
        return rng.standard_normal((self.outputs, self.channels, self.taps, 3, 3)).astype(np.float32) / scale

    def module(self, literal: bool = True) -> IRModule:
        b = GraphBuilder()
        dims = [Var(dim, i64) if isinstance(dim, str) else dim for dim in (self.samples, self.channels, *self.size)]
        x = b.param("x", tensor_type(dims, f32))
        w = b.const(self.weights) if literal else b.param("w", tensor_type(self.weights.shape, f32))
        strides, dilations = (self.stride, 1, 1), (self.dilation, 1, 1)
        y = b.call("relu", b.call("conv", x, w, pads=self.pads, strides=strides, dilations=dilations))
        return IRModule((b.function("main", (y,)),))

    def in_double(self, x: np.ndarray) -> np.ndarray:
        """Plane by plane: the sum over taps along the first axis of convolutions of images."""
        front, *low, back, bottom, right = self.pads
        padded = np.pad(x, [(0, 0), (0, 0), (front, back), (low[0], bottom), (low[1], right)])
        reach = (self.taps - 1) * self.dilation + 1
        firsts = range(0, padded.shape[2] - reach + 1, self.stride)
        planes = [
            sum(correlate(padded[:, :, first + t * self.dilation], self.weights[:, :, t]) for t in range(self.taps)) for first in firsts
        ]
        return np.maximum(np.stack(planes, 2), 0)


STATIC = [
    Case(64, 48, (9, 28, 30)),
    Case(32, 64, (5, 17, 41), pads=(0, 1, 0, 1, 2, 1), samples=2),
    Case(48, 32, (12, 20, 20), taps=2, stride=2, pads=(0, 0, 1, 1, 0, 0)),
    Case(128, 64, (7, 15, 14), dilation=2, pads=(2, 1, 1, 2, 1, 1)),
    Case(72, 40, (6, 22, 26), taps=1, pads=(0, 1, 1, 0, 1, 1)),
    Case(256, 128, (4, 8, 8)),
]


@pytest.mark.parametrize("case", STATIC, ids=lambda case: f"{case.channels}-{case.outputs}-{case.taps}x3x3")
def test_results_are_within_the_stated_error(case: Case) -> None:
    x = np.random.default_rng(1).standard_normal((case.samples, case.channels, *case.size)).astype(np.float32)

    one, two = (tc.compile(case.module(), threads=threads) for threads in (1, 2))

    assert [kernel.rule for kernel in two.report().kernels].count("winograd") == 1
    y, exact = two(x), case.in_double(x)
    assert np.sqrt(np.mean((y - exact) ** 2) / np.mean(exact**2)) <= 1e-6
    assert np.abs(y - exact).max() <= 2e-6 * np.abs(exact).max()
    np.testing.assert_array_equal(one(x), y)


@pytest.mark.parametrize(
    ("case", "shapes"),
    [
        (Case(64, 48, (6, 20, 24), samples="n"), [(1, 6, 20, 24), (3, 6, 20, 24), (0, 6, 20, 24)]),
        (Case(64, 48, ("d", 20, 24)), [(1, 1, 20, 24), (1, 7, 20, 24)]),
        (Case(32, 32, ("d", "h", "w"), samples="n"), [(1, 1, 1, 1), (2, 5, 9, 33), (1, 3, 2, 50), (0, 4, 4, 4)]),
        (Case(64, 32, (3, "h", "w"), pads=(0, 1, 1, 0, 1, 1)), [(1, 3, 1, 1), (1, 3, 18, 7)]),
    ],
    ids=["samples", "depths", "all", "images-of-one-plane"],
)
def test_sizes_may_be_symbolic(case: Case, shapes: list[tuple[int, ...]]) -> None:
    one, two = (tc.compile(case.module(), threads=threads) for threads in (1, 2))

    assert [kernel.rule for kernel in two.report().kernels].count("winograd") == 1
    for n, *size in shapes:
        x = np.random.default_rng(n).standard_normal((n, case.channels, *size)).astype(np.float32)
        exact = case.in_double(x)
        np.testing.assert_allclose(two(x), exact, rtol=0, atol=2e-6 * np.abs(exact).max(initial=0))
        np.testing.assert_array_equal(one(x), two(x))


def test_weights_may_be_inputs() -> None:
    case = Case(128, 128, (5, 40, 40))
    m = tc.compile(case.module(literal=False))
    x = np.random.default_rng(1).standard_normal((1, 128, 5, 40, 40)).astype(np.float32)

    assert [kernel.rule for kernel in m.report().kernels].count("winograd") == 1
    exact = case.in_double(x)
    np.testing.assert_allclose(m(x, case.weights), exact, rtol=0, atol=2e-6 * np.abs(exact).max())


@pytest.mark.parametrize("outer", [(), (3,), (2, 3)])
def test_terms_may_lie_in_pairs(outer: tuple[int, ...]) -> None:
    """Weights for instructions that add two products of bf16 have one dim more, as those of volumes have of images."""
    plain = np.random.default_rng(0).standard_normal((2, 3, *outer, 3, 3, 4, 8)).astype(np.float32)
    pairs = np.moveaxis(plain.reshape(*plain.shape[:-2], 2, 2, 8), -2, -1)

    transformed = _transformed(plain, 4, 2 + len(outer))

    assert transformed.shape == (6, 6, 2, 3 * prod(outer), 4, 8)
    np.testing.assert_array_equal(_transformed(pairs, 4, 2 + len(outer)), transformed)


def test_values_of_16_bits_are_transformed_in_f32() -> None:
    case = Case(64, 64, (5, 28, 28))
    x = np.random.default_rng(1).standard_normal((1, 64, 5, 28, 28)).astype(np.float32)
    exact = case.in_double(x)

    for target in ("x86-64-v3", "native"):
        y = tc.compile(case.module(), precision="bf16", target=target)(x)
        assert np.sqrt(np.mean((y - exact) ** 2) / np.mean(exact**2)) <= 1e-2


def test_parts_of_blocks_are_summed_directly() -> None:
    """Past the last channel lie unspecified values, which a sum over the channels of each tap would read."""
    for channels, taps in ((40, 3), (40, 1)):
        module = use_winograd(convert_layout(Case(channels, 64, (5, 28, 28), taps=taps, pads=(0, 1, 1, 0, 1, 1)).module()))
        assert ("conv_winograd" in [binding.value.op for binding in module.main.bindings]) == (taps == 1)


def test_volumes_take_no_many_times_their_room() -> None:
    """All planes at once, each transformed for every tap, would take nine times the room of the volume and of the result."""
    symbolic, static = Case(32, 32, ("d", "h", "w")), Case(32, 32, (24, 48, 48))
    room = 4 * 32 * 24 * 48 * 48

    assert tc.compile(symbolic.module(), threads=1).peak_bytes(d=24, h=48, w=48) <= 3.5 * room
    assert tc.compile(static.module(), threads=1).peak_bytes() <= 3.5 * room
