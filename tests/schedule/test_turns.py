"""Rows that take their elements in turn from a few others, as images made larger do: interleaved in registers, whatever the sizes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tc
from tests.frontend.models import make_model, node

DTYPES = (np.float32, np.uint8, np.int64, np.float16, np.bool_, ml_dtypes.bfloat16)


def enlarged(x: np.ndarray, size: int, mode: str) -> np.ndarray:
    n, c, h, w = x.shape
    c //= size * size
    split, order = ([n, c, size, size, h, w], [0, 1, 4, 2, 5, 3]) if mode == "CRD" else ([n, size, size, c, h, w], [0, 3, 4, 1, 5, 2])
    return x.reshape(split).transpose(order).reshape(n, c, h * size, w * size)


def model_of(dims: list[Any], size: int, mode: str, dtype: type = np.float32) -> Any:
    return make_model([node("DepthToSpace", "x", "y", blocksize=size, mode=mode)], {"x": (dtype, dims)}, ["y"])


@pytest.mark.covering
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_images_of_any_width_made_larger(mode: str, size: int, dtype: type, rng: np.random.Generator) -> None:
    symbolic = tc.compile(model_of(["n", 2 * size * size, "h", "w"], size, mode, dtype), threads=2)
    for width in (1, 3, 4, 7, 8, 16, 17, 30, 64, 65):
        x = rng.integers(0, 2, (2, 2 * size * size, 3, width)).astype(dtype)
        static = tc.compile(model_of(list(x.shape), size, mode, dtype))

        for module in (static, symbolic):
            np.testing.assert_array_equal(module(x), enlarged(x, size, mode), err_msg=str(width))


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "c"])
def test_on_other_targets_and_behind_what_is_computed(target: str, rng: np.random.Generator) -> None:
    nodes = [node("Mul", "x two", "t"), node("DepthToSpace", "t", "u", blocksize=3), node("Slice", "u a b axis", "y")]
    literals = {"two": np.array(2, np.float32), "a": np.array([1]), "b": np.array([100]), "axis": np.array([3])}
    x = rng.integers(-9, 9, (1, 18, 4, 37)).astype(np.float32)
    module = tc.compile(make_model(nodes, {"x": (np.float32, list(x.shape))}, ["y"], literals), target=target, threads=2)

    np.testing.assert_array_equal(module(x), enlarged(2 * x, 3, "DCR")[..., 1:100])


def test_no_element_is_gathered() -> None:
    for size in (2, 3, 5):
        text = tc.lower(model_of([1, 2 * size * size, 5, 40], size, "DCR"), "scheduled", target="x86-64-v3").as_text()

        assert "transpose=1" in text and f"vectorized({size})" in text


@pytest.mark.parametrize("stride, kernel", [(3, 3), (4, 4), (2, 2), (3, 9)])
def test_transposed_convolutions_by_phases(stride: int, kernel: int, rng: np.random.Generator) -> None:
    x, w = rng.integers(-3, 4, (1, 4, 7, 19)).astype(np.float32), rng.integers(-3, 4, (4, 3, kernel, kernel)).astype(np.float32)
    pads = [(kernel - stride) // 2] * 4
    nodes = [node("ConvTranspose", "x w", "y", strides=[stride] * 2, pads=pads)]
    model = make_model(nodes, {"x": (np.float32, list(x.shape))}, ["y"], {"w": w})
    full = np.zeros((3, 6 * stride + kernel, 18 * stride + kernel), np.float32)
    for i in range(7):
        for j in range(19):
            full[:, i * stride : i * stride + kernel, j * stride : j * stride + kernel] += np.einsum("c,cokl->okl", x[0, :, i, j], w)
    cut = pads[0]

    np.testing.assert_array_equal(tc.compile(model)(x)[0], full[:, cut : full.shape[1] - cut, cut : full.shape[2] - cut])


@pytest.mark.parametrize("count", [1, 2, 13, 16])
@pytest.mark.parametrize("times", [2, 7, 15])
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_repeated_elements_of_which_there_may_be_fewer_than_repeats(times: int, count: int, cut: int, rng: np.random.Generator) -> None:
    nodes = [node("Reshape", "x a", "u"), node("Expand", "u b", "v"), node("Reshape", "v c", "w"), node("Slice", "w start end axis", "y")]
    shapes = {"a": [3, count, 1], "b": [3, count, times], "c": [3, -1]}
    ends = {"start": [0], "end": [count * times - cut], "axis": [1]}
    literals = {name: np.array(value, np.int64) for name, value in {**shapes, **ends}.items()}
    x = rng.standard_normal((3, count)).astype(np.float32)

    found = tc.compile(make_model(nodes, {"x": (np.float32, [3, count])}, ["y"], literals))(x)

    np.testing.assert_array_equal(found, x.repeat(times, 1)[:, : count * times - cut])


@pytest.mark.parametrize("width", [4, 16, 40, 64])
@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("is_symbolic", [False, True])
def test_pairs_within_several_rows_of_one(width: int, heads: int, is_symbolic: bool, rng: np.random.Generator) -> None:
    """Rotary embeddings of pairs side by side, heads in one row: 350 us at 253 x 8 x 64 while each element was gathered, 17 interleaved."""
    x = rng.standard_normal((2, 5, heads * width)).astype(np.float32)
    cos, sin = (rng.standard_normal((2, 5, width // 2)).astype(np.float32) for _ in range(2))
    lead = ["n", "s"] if is_symbolic else [2, 5]
    types = {name: (np.float32, [*lead, array.shape[-1]]) for name, array in (("x", x), ("c", cos), ("d", sin))}
    model = make_model([node("RotaryEmbedding", "x c d", "y", interleaved=1, num_heads=heads)], types, ["y"], opset=23)
    pairs = x.reshape(2, 5, heads, width // 2, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    c, d = cos[:, :, None], sin[:, :, None]

    found = tc.compile(model)(x, cos, sin)

    np.testing.assert_allclose(found, np.stack([first * c - second * d, first * d + second * c], -1).reshape(x.shape), atol=1e-5)
    if width == 64 and not is_symbolic:
        assert "transpose=1" in tc.lower(model, "scheduled", target="x86-64-v3").as_text()


HEADS = {
    "boxes": [node("Transpose", "x", "t", perm=[0, 2, 3, 1]), node("Reshape", "t s", "r"), node("Mul", "r k", "y")],
    "boxes of two images": [
        node("Transpose", "x", "t", perm=[0, 2, 3, 1]),
        node("Reshape", "t s", "r"),
        node("Transpose", "x", "u", perm=[0, 3, 2, 1]),
        node("Reshape", "u s", "v"),
        node("Concat", "r v", "j", axis=1),
        node("Mul", "j k", "y"),
    ],
    "half of them": [
        node("Transpose", "x", "t", perm=[0, 2, 3, 1]),
        node("Reshape", "t s", "r"),
        node("Slice", "r one three two", "h"),
        node("Add", "h h", "y"),
    ],
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("shape", [(1, 24, 38, 38), (2, 16, 5, 7), (1, 4, 1, 9), (3, 8, 33, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64])
def test_few_columns_of_what_is_transposed(name: str, shape: tuple[int, ...], dtype: type, rng: np.random.Generator) -> None:
    literals = {"s": np.array([shape[0], -1, 4]), "k": np.array([1, 2, 3, 1], dtype)}
    literals |= {word: np.array([number]) for word, number in (("one", 1), ("two", 2), ("three", 3))}
    x = rng.integers(0, 9, shape).astype(dtype)
    rows, turned = (x.transpose(order).reshape(shape[0], -1, 4) for order in ((0, 2, 3, 1), (0, 3, 2, 1)))
    want = {"boxes": rows * literals["k"], "half of them": 2 * rows[..., 1:3]}.get(name, np.concatenate([rows, turned], 1) * literals["k"])
    for dims in (list(shape), ["n", shape[1], "h", "w"]):
        if name != "half of them" and dims != list(shape):
            literals["s"] = np.array([0, -1, 4])
        module = tc.compile(make_model(HEADS[name], {"x": (dtype, dims)}, ["y"], literals), threads=2)
        np.testing.assert_array_equal(module(x), want.astype(dtype))


def test_phases_apart_are_interleaved_in_registers() -> None:
    """Of blocks of channels, of which each element was taken by itself: four times as long as what it is now."""
    w = np.ones((64, 64, 3, 3), np.float32)
    attrs = {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}
    model = make_model([node("ConvTranspose", "x w", "y", **attrs)], {"x": (np.float32, [1, 64, 32, 32])}, ["y"], {"w": w})
    text = tc.lower(model, "final", target="x86-64-v4").as_text()
    last = text[text.rindex("@loops") :]

    assert "vectorized(2)" in last and "for n_1 in range(2)" not in last
