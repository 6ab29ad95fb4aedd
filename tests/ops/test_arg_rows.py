"""Where rows have their best element: rows of all lengths and types, ties, NaN and extremes, fused and in parts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tc
from tests.frontend.models import make_model, node

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
INTEGERS = (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64)
LENGTHS = (1, 2, 15, 16, 17, 20, 33, 64, 100, 129, 1000)


def drawn(rng: np.random.Generator, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """Few values, so that many are equal, and in each third row an extreme one."""
    x = rng.integers(0, 5, shape).astype(dtype)
    rows = x.reshape(-1, shape[-1]) if x.size else x.reshape(0, 1)
    if dtype in FLOATS:
        for row, value in zip(rows[::3], np.tile([np.nan, np.inf, -np.inf, -0.0], len(rows)).tolist()):
            row[rng.integers(0, shape[-1], 2)] = value
        rows[1::7] = -np.inf
    else:
        info = np.iinfo(dtype)
        for row, value in zip(rows[::3], [info.max, info.min] * len(rows)):
            row[rng.integers(0, shape[-1], 2)] = value
        rows[1::7], rows[2::7] = info.min, info.max
    return x


def expected(op: str, x: np.ndarray, last: int) -> np.ndarray:
    find = np.argmax if op == "ArgMax" else np.argmin
    wide = x.astype(np.float64) if x.dtype.kind in "fV" else x
    return np.asarray(x.shape[-1] - 1 - find(wide[..., ::-1], axis=-1) if last else find(wide, axis=-1), np.int64)


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_the_first_or_last_of_the_best_is_found(op: str, length: int, dtype: type, last: int, rng: np.random.Generator) -> None:
    nodes = [node(op, "x", "y", axis=-1, keepdims=0, select_last_index=last)]
    compiled = tc.compile(make_model(nodes, {"x": (dtype, [3, 21, length])}, ["y"]), threads=1 + last)
    x = drawn(rng, dtype, (3, 21, length))

    np.testing.assert_array_equal(compiled(x), expected(op, x, last))


@pytest.mark.covering
@pytest.mark.parametrize("target", ["native", "x86-64-v2", "x86-64-v3", "c"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8])
def test_of_any_size_on_every_target(target: str, dtype: type, rng: np.random.Generator) -> None:
    nodes = [node("ArgMax", "x", "a", axis=1, keepdims=1), node("Hardmax", "x", "h", axis=1)]
    names = ["a", "h"] if dtype is np.float32 else ["a"]
    compiled = tc.compile(make_model(nodes[: len(names)], {"x": (dtype, ["n", "m"])}, names), target=target, threads=2)

    for shape in ((1, 1), (40, 3), (7, 33), (3, 4099), (0, 5), (200, 20)):
        x = drawn(rng, dtype, shape)
        found = compiled(x)
        places = expected("ArgMax", x, 0)[:, None]
        np.testing.assert_array_equal(found[0] if len(names) > 1 else found, places)
        if len(names) > 1:
            np.testing.assert_array_equal(found[1], (np.arange(shape[1]) == places).astype(dtype))


def test_what_is_computed_before_is_the_same_for_both_steps(rng: np.random.Generator) -> None:
    """A place is that of an element that equals the best one, which has to be computed alike."""
    nodes: list[Any] = [node("MatMul", "x w", "t"), node("Add", "t b", "u"), node("Softmax", "u", "v", axis=-1)]
    nodes += [node("ArgMax", "u", "a", axis=-1, keepdims=0), node("ArgMax", "v", "c", axis=-1, keepdims=0)]
    literals = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("w", (37, 90)), ("b", (90,)))}
    model = make_model(nodes, {"x": (np.float32, ["n", 37])}, ["a", "c", "u"], literals)
    for threads, numerics in ((1, "default"), (2, "default"), (2, "strict")):
        compiled = tc.compile(model, threads=threads, numerics=numerics)
        for count in (1, 5, 64):
            a, c, u = compiled(rng.standard_normal((count, 37)).astype(np.float32))
            np.testing.assert_array_equal(a, u.argmax(-1))
            np.testing.assert_array_equal(a, c)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_largest_of_a_row_equals_an_element_of_it(dtype: type, rng: np.random.Generator) -> None:
    """What is computed once for the largest is not computed once more, and rounded another way, to be compared with it."""
    nodes = [node("Mul", "x w", "t"), node("Add", "t w", "u"), node("ReduceMax", "u axes", "m", keepdims=1), node("Equal", "u m", "y")]
    literals = {"w": rng.standard_normal(50).astype(dtype), "axes": np.array([1])}
    compiled = tc.compile(make_model(nodes, {"x": (dtype, [200, 50])}, ["y"], literals, opset=18))

    assert compiled(rng.standard_normal((200, 50)).astype(dtype)).any(1).all()
