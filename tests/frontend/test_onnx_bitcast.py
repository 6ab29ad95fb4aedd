"""BitCast between all types of equally many bits: the bytes stay."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from onnx import helper

import tc
from tc.errors import ModelError
from tests.frontend.models import make_model, node

TYPES = [np.dtype(name) for name in "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float32 float64 bool".split()]
PAIRS = [(a, b) for a, b in product(TYPES, TYPES) if a.itemsize == b.itemsize and b.kind != "b"]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]} to {pair[1]}")
def test_the_bytes_stay(pair: tuple[np.dtype, np.dtype]) -> None:
    source, target = pair
    to = helper.np_dtype_to_tensor_dtype(target)
    model = make_model([node("BitCast", "x", "y", to=to)], {"x": (source, ["n", 7])}, ["y"], opset=26)
    module = tc.compile(model, threads=1, on_unsupported="error")

    for rows in (0, 1, 5):
        data = np.random.default_rng(rows).integers(0, 2 if source.kind == "b" else 256, (rows, 7 * source.itemsize)).astype(np.uint8)
        x = data.view(source)
        assert module(x).dtype == target
        assert module(x).tobytes() == data.tobytes()


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (np.float32, np.int16, "f32 has 32 bits, i16 has 16"),
        (np.float32, np.bool_, "f32 has 32 bits, bool has 8"),
        (np.bool_, np.int16, "bool has 8 bits, i16 has 16"),
    ],
)
def test_other_widths_are_refused(source: type, target: type, words: str) -> None:
    to = helper.np_dtype_to_tensor_dtype(np.dtype(target))
    model = make_model([node("BitCast", "x", "y", to=to)], {"x": (source, [3])}, ["y"], opset=26)

    with pytest.raises(ModelError, match=words):
        tc.compile(model)
