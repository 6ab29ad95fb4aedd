"""Elements that a gather takes from padding, or from one part of a concatenation, are read nowhere else.

`Gather(Pad(x))` at an index of the padding was refused: the read of x, which that element does not do, was checked at its index.
"""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

import tc
from tests.frontend.models import make_model, node

LENGTH = 13
BEFORE = {
    "padded": [node("Pad", "x pads", "a")],
    "joined": [node("Concat", "x x", "a", axis=1)],
    "padded twice": [node("Pad", "x pads", "b"), node("Neg", "b", "c"), node("Pad", "c pads", "a")],
    "cut and padded": [node("Slice", "x one most axis", "b"), node("Pad", "b pads", "a")],
}
NUMBERS = {
    "pads": np.array([0, 2, 0, 3]),
    "one": np.array([1]),
    "most": np.array([LENGTH - 2]),
    "axis": np.array([1]),
}


@pytest.mark.parametrize("indices", ["literal", "data"])
@pytest.mark.parametrize("name", BEFORE)
def test_gathered_padding_is_what_it_is(name: str, indices: str) -> None:
    rng = np.random.default_rng(len(name))
    x = rng.standard_normal((3, LENGTH)).astype(np.float32)
    used = {word for each in BEFORE[name] for word in each.input}
    constants = {word: value for word, value in NUMBERS.items() if word in used}
    size = {"padded": LENGTH + 5, "joined": 2 * LENGTH, "padded twice": LENGTH + 10, "cut and padded": LENGTH - 3 + 5}[name]
    places = np.concatenate([rng.integers(-size, size, 20), [0, size - 1, -size, -1]])
    inputs: dict = {"x": (np.float32, [3, "n"])}
    arrays = {"x": x}
    if indices == "data":
        inputs["i"], arrays["i"] = (np.int64, [24]), places
    else:
        constants["i"] = places
    model = make_model([*BEFORE[name], node("Gather", "a i", "y", axis=1)], inputs, ["y"], constants)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, arrays)

    (found,) = tc.compile(model).run(arrays).values()

    np.testing.assert_array_equal(found, expected)


def test_an_index_beyond_the_padding_is_reported() -> None:
    nodes = [*BEFORE["padded"], node("Gather", "a i", "y", axis=1)]
    inputs = {"x": (np.float32, [3, LENGTH]), "i": (np.int64, [2])}
    module = tc.compile(make_model(nodes, inputs, ["y"], {"pads": NUMBERS["pads"]}))
    x = np.ones((3, LENGTH), np.float32)

    np.testing.assert_array_equal(module(x, np.array([0, LENGTH + 4])), np.zeros((3, 2), np.float32))
    with pytest.raises(tc.errors.InputError, match=f"{LENGTH + 5}"):
        module(x, np.array([0, LENGTH + 5]))
