"""Random inputs are harmless: whatever becomes an index stays within its buffer."""

from __future__ import annotations

import numpy as np
import pytest

from tc.autotune.inputs import ArraySpec, Range, fill, input_ranges, signature
from tc.ir.parser import parse_prim_func

HEAD = "@loops\ndef f({params}, B: f32[n], n: i64):\n    outputs(1)\n"
NEST = "    for i in range(n):\n        with block('b', v=spatial(n, i)):\n            "


def ranges(params: str, body: str, before: str = "") -> tuple[Range | None, ...]:
    text = HEAD.format(params=params) + before + NEST + body + "\n"
    return input_ranges(parse_prim_func(text), {"n": 10})


@pytest.mark.parametrize(
    ("params", "body", "expected"),
    [
        ("X: f32[7], I: i64[n]", "B[v] = X[I[v]]", [None, (0, 6)]),
        ("X: f32[7], I: i32[n]", "B[v] = X[cast(I[v], i64)]", [None, (0, 6)]),
        ("X: f32[7], I: i64[n]", "B[v] = X[select(I[v] < 0, I[v] + 7, I[v])]", [None, (0, 6)]),
        ("X: f32[n], I: u8[n]", "B[v] = X[cast(I[v], i64)]", [None, (0, 9)]),
        ("X: f32[n], I: i64[n]", "B[I[v]] = X[v]", [None, (0, 9)]),
        ("X: f32[900], I: i8[n]", "B[v] = X[cast(I[v], i64)]", [None, (0, 127)]),
        ("X: f32[7, 4], I: i64[n]", "B[v] = X[I[v], I[v]]", [None, (0, 3)]),
        ("X: f32[7], I: i64[n]", "B[v] = X[I[v] + 1]", [None, (0, 0)]),
        ("X: f32[7], I: i64[n]", "B[v] = X[min(I[v] + 1, 6)]", [None, (0, 6)]),
        ("X: f32[7], I: f32[n]", "B[v] = X[cast(I[v], i64)]", [None, (0, 0)]),
        ("X: f32[7], I: i64[5], J: i64[n]", "B[v] = X[I[J[v]]]", [None, (0, 6), (0, 4)]),
        ("X: f32[n], I: i64[n]", "B[v] = X[v] * cast(I[v], f32)", [None, (1, 100)]),
        ("X: f32[n], C: bool[n]", "B[v] = select(C[v], X[v], 0.0)", [None, (0, 1)]),
    ],
)
def test_what_serves_as_an_index_is_bounded(params: str, body: str, expected: list[Range | None]) -> None:
    assert list(ranges(params, body)) == expected


def test_an_index_that_went_through_another_buffer_is_zero() -> None:
    text = """
@loops
def f(X: f32[7], I: i64[n], B: f32[n], n: i64):
    outputs(1)
    with alloc(i64[n], scope='global') as T:
        for i in range(n):
            with block('t', v=spatial(n, i)):
                T[v] = I[v] * 2
        for i in range(n):
            with block('b', v=spatial(n, i)):
                B[v] = X[T[v]]
"""

    assert input_ranges(parse_prim_func(text), {"n": 10}) == (None, (0, 0))


def test_shapes_take_the_sizes_of_dims() -> None:
    func = parse_prim_func(HEAD.format(params="X: f32[n, n * 2]") + NEST + "B[v] = X[v, v]\n")

    inputs, outputs = signature(func, {"n": 3})

    assert inputs == (ArraySpec((3, 6), "f32"),) and outputs == (ArraySpec((3,), "f32"),)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64", "i8", "u8", "i32", "i64", "bool"])
def test_arrays_are_filled_within_their_range(dtype: str) -> None:
    spec = ArraySpec((300, 1000), dtype, None if "f" in dtype else (0, 1))
    array = np.zeros(spec.shape, spec.dtype.numpy)

    fill(array, spec, seed=3)

    values = array.astype(np.float64)
    assert np.isfinite(values).all() and values.std() > 0.3
    if spec.values is not None:
        assert set(np.unique(values)) == {0.0, 1.0}


def test_arrays_without_elements_or_axes_are_filled() -> None:
    empty, number = np.zeros((0, 4), np.float32), np.zeros((), np.float32)

    fill(empty, ArraySpec((0, 4), "f32"), seed=0)
    fill(number, ArraySpec((), "f32"), seed=0)

    assert number != 0
