"""Winograd convolutions: chosen where they pay, exact enough, and off when asked."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.ir.dtype import f32, i64
from tc.ir.expr import Var
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.ops.winograd import POINTS, transform_weights, transforms
from tc.passes.graph.convert_layout import convert_layout
from tc.passes.graph.use_winograd import use_winograd
from tests.ops.kernels import correlate


def network(
    channels: int, outputs: int, size: tuple[int | str, int | str], pads: tuple[int, ...] = (1, 1, 1, 1), samples: int | str = 1
) -> IRModule:
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    dims = [Var(dim, i64) if isinstance(dim, str) else dim for dim in (samples, channels, *size)]
    x = b.param("x", tensor_type(dims, f32))
    w = b.const(rng.standard_normal((outputs, channels, 3, 3)).astype(np.float32) / np.float32(np.sqrt(9 * channels)))
    y = b.call("relu", b.call("conv", x, w, b.const(rng.standard_normal(outputs).astype(np.float32)), pads=pads))
    return IRModule((b.function("main", (y,)),))


def ops_of(module: IRModule) -> list[str]:
    return [binding.value.op for binding in module.main.bindings]


def in_double(module: IRModule, x: np.ndarray, pads: tuple[int, ...]) -> np.ndarray:
    conv = module.main.bindings[0].value
    w, bias = (arg.value.astype(np.float64) for arg in conv.args[1:])
    padded = np.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    return np.maximum(correlate(padded, w) + bias[:, None, None], 0)


@pytest.mark.parametrize("tile", sorted(POINTS))
def test_the_transforms_compute_a_correlation_exactly(tile: int) -> None:
    a_t, g, b_t = (np.array(matrix, dtype=object) for matrix in transforms(tile))
    rng = np.random.default_rng(tile)
    d, w = rng.integers(-9, 9, tile + 2).astype(object), rng.integers(-9, 9, 3).astype(object)

    y = a_t.dot(g.dot(w) * b_t.dot(d))

    assert list(y) == [sum(d[k + j] * w[j] for j in range(3)) for k in range(tile)]


@pytest.mark.parametrize("tile", sorted(POINTS))
def test_weights_are_transformed_in_double(tile: int) -> None:
    w = np.random.default_rng(0).standard_normal((2, 3, 3, 3)).astype(np.float32)
    g = np.array([[float(v) for v in row] for row in transforms(tile)[1]])

    u = transform_weights(w, tile)

    assert u.shape == (tile + 2, tile + 2, 2, 3)
    np.testing.assert_array_equal(u[..., 1, 2], (g @ w[1, 2].astype(np.float64) @ g.T).astype(np.float32))


@pytest.mark.parametrize(
    ("channels", "outputs", "size", "pads"),
    [
        (64, 64, (56, 56), (1, 1, 1, 1)),
        (90, 72, (37, 45), (1, 0, 2, 1)),
        (128, 96, (40, 27), (0, 0, 0, 0)),
        (256, 64, (27, 8), (1, 1, 1, 1)),
        (512, 48, (28, 28), (1, 1, 1, 1)),
        (509, 48, (28, 28), (1, 1, 1, 1)),
        (170, 21, (15, 28), (1, 1, 1, 1)),
    ],
)
def test_results_are_within_the_stated_error(
    channels: int, outputs: int, size: tuple[int, int], pads: tuple[int, ...]
) -> None:
    module = network(channels, outputs, size, pads)
    x = np.random.default_rng(1).standard_normal((1, channels, *size)).astype(np.float32)

    m = tc.compile(module)
    y = m(x)

    assert [kernel.rule for kernel in m.report().kernels].count("winograd") == 1
    exact = in_double(module, x, pads)
    assert np.sqrt(np.mean((y - exact) ** 2) / np.mean(exact**2)) <= 6e-7
    assert np.abs(y - exact).max() <= 1.5e-6 * np.abs(exact).max()
    one, two = tc.compile(module, threads=1)(x), tc.compile(module, threads=2)(x)
    np.testing.assert_array_equal(one, two)


SYMBOLIC = {
    "samples": ("n", (28, 28), [(1, 28, 28), (2, 28, 28), (7, 28, 28)]),
    "samples of small images": ("n", (9, 14), [(1, 9, 14), (5, 9, 14)]),
    "images": (1, ("h", "w"), [(1, 56, 56), (1, 1, 1), (1, 3, 97), (1, 37, 2), (1, 5, 5), (1, 130, 64)]),
    "widths": (2, (20, "w"), [(2, 20, 1), (2, 20, 33), (2, 20, 200)]),
    "all": ("n", ("h", "w"), [(1, 4, 4), (3, 17, 30), (2, 64, 65), (0, 8, 8)]),
}
USUALLY = {(64, "samples"), (256, "samples of small images"), (64, "widths"), (90, "all")}
"""Each dim, and each number of channels; the other pairs are slow."""


@pytest.mark.parametrize(
    ("channels", "dims"),
    [
        pytest.param(channels, dims, marks=() if (channels, dims) in USUALLY else pytest.mark.slow)
        for channels in (64, 90, 256)
        for dims in SYMBOLIC
    ],
)
def test_sizes_may_be_symbolic(channels: int, dims: str) -> None:
    samples, size, shapes = SYMBOLIC[dims]
    module = network(channels, 72, size, samples=samples)

    one, two = tc.compile(module, threads=1), tc.compile(module, threads=2)

    assert [kernel.rule for kernel in two.report().kernels].count("winograd") == 1
    for n, height, width in shapes:
        x = np.random.default_rng(n).standard_normal((n, channels, height, width)).astype(np.float32)
        y = two(x)
        exact = in_double(module, x, (1, 1, 1, 1))
        np.testing.assert_allclose(y, exact, rtol=0, atol=2e-6 * np.abs(exact).max(initial=0))
        np.testing.assert_array_equal(one(x), y)


def test_what_is_added_may_be_computed_in_the_kernel() -> None:
    """A cast of it, a block of its own before the products, once made the kernel compute all products of a tile for each pixel."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((64, 64, 3, 3)).astype(np.float32) / np.float32(np.sqrt(9 * 64)) for _ in range(2)]
    bias = rng.standard_normal(64).astype(np.float32)
    b = GraphBuilder()
    x = b.param("x", tensor_type((1, 64, 28, 30), f32))
    first = b.call("relu", b.call("conv", x, b.const(weights[0]), b.const(bias), pads=(1, 1, 1, 1)))
    second = b.call("conv", first, b.const(weights[1]), b.const(bias), pads=(1, 1, 1, 1))
    module = IRModule((b.function("main", (b.call("relu", b.call("add", first, second)),)),))
    image = rng.standard_normal((1, 64, 28, 30)).astype(np.float32)

    m = tc.compile(module, precision="bf16", target="x86-64-v3")

    assert [kernel.rule for kernel in m.report().kernels if "winograd" in kernel.name] == ["winograd"] * 2
    exact = np.zeros(())
    for w in weights:
        source = exact if exact.ndim else image
        sums = correlate(np.pad(source, [(0, 0), (0, 0), (1, 1), (1, 1)]), w.astype(np.float64)) + bias[:, None, None]
        exact = np.maximum(sums + exact, 0)
    assert np.sqrt(np.mean((m(image) - exact) ** 2) / np.mean(exact**2)) <= 1e-2


def test_images_may_be_whole_tiles_of_symbolic_number() -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((72, 128, 3, 3)).astype(np.float32) / np.float32(np.sqrt(9 * 128))
    b = GraphBuilder()
    x = b.param("x", tensor_type((1, 128, Var("h", i64), Var("w", i64)), f32))
    wide = b.call("concat", *[b.call("concat", x, x, x, x, axis=2)] * 4, axis=3)
    module = IRModule((b.function("main", (b.call("conv", wide, b.const(weights), pads=(1, 1, 1, 1)),)),))
    m = tc.compile(module)

    assert "winograd" in [kernel.rule for kernel in m.report().kernels]
    for height, width in ((1, 1), (4, 7), (15, 14)):
        image = rng.standard_normal((1, 128, height, width)).astype(np.float32)
        padded = np.pad(np.tile(image, (1, 1, 4, 4)), [(0, 0), (0, 0), (1, 1), (1, 1)])
        exact = correlate(padded, weights)
        np.testing.assert_allclose(m(image), exact, rtol=0, atol=2e-6 * np.abs(exact).max())


def test_strict_numerics_sum_directly() -> None:
    m = tc.compile(network(64, 64, (56, 56)), numerics="strict")

    assert "winograd" not in [kernel.rule for kernel in m.report().kernels]


def test_few_channels_and_small_images_are_summed_directly() -> None:
    for module in (network(3, 64, (56, 56)), network(512, 512, (7, 7)), network(64, 64, (3, 3))):
        assert "conv_winograd" not in ops_of(use_winograd(convert_layout(module)))


@pytest.mark.parametrize(
    ("channels", "size", "tile"),
    [(64, 56, 4), (128, 28, 4), (256, 14, 2), (256, 56, 4), (250, 56, 4)],
    ids=["few-channels", "more", "small-image-that-4-does-not-divide", "large-image", "uneven-channels"],
)
def test_tiles_fit_the_image_and_the_channels(channels: int, size: int, tile: int) -> None:
    module = use_winograd(convert_layout(network(channels, 256, (size, size))))

    assert [dict(b.value.attrs)["tile"] for b in module.main.bindings if b.value.op == "conv_winograd"] == [tile]


def test_the_answer_decides_which_tile_is_used() -> None:
    blocked = convert_layout(network(64, 128, (56, 56)))
    modules = [use_winograd(blocked, decide=lambda knob, tile=tile: tile) for tile in (0, 2, 4)]

    tiles = [[dict(b.value.attrs).get("tile", 0) for b in module.main.bindings if "conv" in b.value.op] for module in modules]
    assert tiles == [[0], [2], [4]]


def test_small_images_are_transformed_where_all_weights_stay_in_a_cache() -> None:
    """Weights of a small model are not read from memory again in each run: thirty-six numbers for nine then cost next to nothing."""
    small = network(112, 32, (9, 12))
    b = GraphBuilder()
    (x,) = (b.param(param.name, param.type) for param in small.main.params)
    far = b.const(np.zeros((12, 1 << 14), np.float32))
    conv = small.main.bindings[0].value
    y = b.call("conv", x, *conv.args[1:], pads=(1, 1, 1, 1))
    large = IRModule((b.function("main", (y, b.call("exp", far))),))

    assert "conv_winograd" in ops_of(use_winograd(convert_layout(small)))
    assert "conv_winograd" not in ops_of(use_winograd(convert_layout(large)))
