"""Attention and the embeddings before it as onnxruntime's optimizer writes them, against onnxruntime, with dims that are names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import tc
from tc.errors import TcError
from tc.frontend.onnx import load_model
from tests.frontend.models import make_model, node, run

F32, I32 = np.float32, np.int32
MS = {"domain": "com.microsoft"}
NAMED = {2: "b", 5: "s", 3: "p", 8: "t"}
"""The dims of sizes that tests use: sentences, places, those of a past, both together."""


def named(shape: tuple[int, ...]) -> list[int | str]:
    """Names for those; keys and values, which are two, stand first of five dims."""
    return [size if len(shape) == 5 and axis == 0 else NAMED.get(size, size) for axis, size in enumerate(shape)]


class Operands:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.arrays: dict[str, np.ndarray] = {}

    def add(self, array: np.ndarray) -> str:
        name = f"v{len(self.arrays)}"
        self.arrays[name] = array
        return name

    def floats(self, *shape: int) -> str:
        return self.add((self.rng.standard_normal(shape) / 2).astype(F32))

    def numbers(self, most: int, *shape: int, dtype: type = I32) -> str:
        return self.add(self.rng.integers(0, most, shape).astype(dtype))


def model_of(
    op: str, names: list[str], outputs: str, arrays: Mapping[str, np.ndarray], fixed: bool = False, **attrs: Any
) -> onnx.ModelProto:
    declared = {name: (array.dtype, array.shape if fixed else named(array.shape)) for name, array in arrays.items()}
    model = make_model([node(op, " ".join(names), outputs, **MS, **attrs)], declared, outputs.split(), domains=[("com.microsoft", 1)])
    for info in model.graph.output:
        info.type.tensor_type.elem_type = TensorProto.INT32 if info.name == "lengths" else TensorProto.FLOAT
    return model


def peer(model: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, dict(arrays))
    return found


def check(op: str, o: Operands, names: list[str], outputs: str, **attrs: Any) -> None:
    model = model_of(op, names, outputs, o.arrays, **attrs)

    found = run(load_model(model, on_unsupported="error"), o.arrays)

    for a, b in zip(found, peer(model, o.arrays), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def packed(o: Operands, mask: str = "-", past: bool = False, bias: bool = False, width: int = 48) -> list[str]:
    """Of 4 heads; `bias`: a term of the scores."""
    names = [o.floats(2, 5, 16), o.floats(16, width), o.floats(width)]
    all_places = 8 if past else 5
    match mask:
        case "rows":
            names.append(o.numbers(2, 2, all_places))
        case "matrices":
            names.append(o.numbers(2, 2, 5, all_places))
        case "ends":
            names.append(o.add(np.array([3, 5], I32)))
        case "ends and begins":
            names.append(o.add(np.array([3, 5, 1, 2], I32)))
        case _:
            names.append("-")
    names.append(o.floats(2, 2, 4, 3, 4) if past else "-")
    return [*names, o.floats(2, 4, 5, all_places)] if bias else names


ATTENTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"mask": "rows"}, {"unidirectional": 1}),
    ({"mask": "matrices"}, {"mask_filter_value": -3.0}),
    ({"mask": "ends"}, {}),
    ({"mask": "ends and begins"}, {}),
    ({"past": True}, {"unidirectional": 1, "scale": 0.3}),
    ({"past": True, "mask": "rows"}, {"unidirectional": 1}),
    ({"past": True, "mask": "matrices"}, {}),
    ({"bias": True}, {"unidirectional": 1}),
    ({"width": 56}, {"qkv_hidden_sizes": [16, 16, 24]}),
]


@pytest.mark.parametrize("case", range(len(ATTENTIONS)))
def test_attention_is_onnxruntimes(case: int) -> None:
    (made, attrs), o = ATTENTIONS[case], Operands()

    outputs, fixed = "y present" if made.get("past") else "y", made.get("mask") == "ends and begins"
    check("Attention", o, packed(o, **made), outputs, num_heads=4, fixed=fixed, **attrs)


def test_a_mask_of_any_length_says_where_sentences_end_and_maybe_begin() -> None:
    made = node("Attention", "x w b mask", "y", **MS, num_heads=2)
    rng = np.random.default_rng(3)
    weights = {"w": rng.standard_normal((16, 24)).astype(F32), "b": rng.standard_normal(24).astype(F32)}
    declared = {"x": (F32, ["n", "s", 16]), "w": (F32, [16, 24]), "b": (F32, [24]), "mask": (I32, ["m"])}
    model = make_model([made], declared, ["y"], domains=[("com.microsoft", 1)])
    module = tc.compile(model, threads=1, on_unsupported="error")

    for n, s in ((1, 3), (3, 5), (4, 1)):
        ends = rng.integers(1, s + 1, n)
        begins, places = rng.integers(0, ends), np.arange(n + 1) * s
        for parts in ((ends,), (ends, begins), (ends, places, places)):
            arrays = {"x": rng.standard_normal((n, s, 16)).astype(F32), **weights, "mask": np.concatenate(parts).astype(I32)}
            np.testing.assert_allclose(module.run(arrays)["y"], peer(model, arrays)[0], rtol=2e-5, atol=2e-5)
    with pytest.raises(TcError, match="the mask has m numbers"):
        module.run({"x": np.zeros((3, 2, 16), F32), **weights, "mask": np.zeros(12, I32)})


def test_attention_to_nothing_that_is_seen_prefers_nothing() -> None:
    o = Operands()
    names = [o.floats(2, 5, 16), o.floats(16, 48), o.floats(48), o.add(np.zeros((2, 5), I32))]

    check("Attention", o, names, "y", num_heads=2, unidirectional=1)


def test_attention_of_a_past_of_any_size_is_compiled_once() -> None:
    o = Operands()
    names = [o.floats(2, 5, 16), o.floats(16, 48), o.floats(48), "-", o.floats(2, 2, 4, 3, 4)]
    model = model_of("Attention", names, "y present", o.arrays, num_heads=4, unidirectional=1)
    module = tc.compile(model, on_unsupported="error", threads=1)

    for batch, length, past in ((2, 5, 3), (1, 1, 0), (3, 1, 9), (1, 4, 0)):
        arrays = {**o.arrays, "v0": o.rng.standard_normal((batch, length, 16)).astype(F32)}
        arrays["v3"] = o.rng.standard_normal((2, batch, 4, past, 4)).astype(F32)
        found = module.run(arrays)
        for a, b in zip((found["y"], found["present"]), peer(model, arrays), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def apart(o: Operands, *rest: str) -> list[str]:
    return [o.floats(2, 5, 16), o.floats(2, 6, 16), o.floats(2, 6, 16), *rest]


HEADS: dict[str, Any] = {
    "apart": lambda o: (apart(o), "y", {}),
    "with a bias": lambda o: (apart(o, o.floats(48)), "y", {}),
    "with a mask": lambda o: (apart(o, "-", o.numbers(2, 2, 6)), "y", {"scale": 0.5}),
    "with lengths": lambda o: (apart(o, "-", o.add(np.array([6, 2], I32))), "y", {}),
    "with a term": lambda o: (apart(o, "-", "-", o.floats(1, 4, 5, 6)), "y", {}),
    "keys in heads": lambda o: ([o.floats(2, 5, 16), o.floats(2, 4, 6, 4), o.floats(2, 4, 6, 4)], "y", {}),
    "keys in heads, with a bias": lambda o: ([o.floats(2, 5, 16), o.floats(2, 4, 6, 4), o.floats(2, 4, 6, 4), o.floats(48)], "y", {}),
    "more keys than queries, in order": lambda o: (apart(o), "y", {"unidirectional": 1}),
    "fewer keys than queries, in order": lambda o: ([o.floats(2, 6, 16), *(o.floats(2, 4, 16) for _ in "kv")], "y", {"unidirectional": 1}),
    "one query, in order": lambda o: ([o.floats(2, 1, 16), *(o.floats(2, 6, 16) for _ in "kv")], "y", {"unidirectional": 1}),
    "with lengths and where sentences begin": lambda o: (
        [o.floats(1, 5, 16), *(o.floats(1, 6, 16) for _ in "kv"), "-", o.add(np.array([4, 0, 5, 0, 4], I32))],
        "y",
        {},
    ),
    "with a past": lambda o: (
        [*(o.floats(2, 5, 16) for _ in range(3)), "-", "-", "-", o.floats(2, 4, 3, 4), o.floats(2, 4, 3, 4)],
        "y k v",
        {"unidirectional": 1},
    ),
}


@pytest.mark.parametrize("case", HEADS)
def test_attention_of_heads_is_onnxruntimes(case: str) -> None:
    o = Operands()
    names, outputs, attrs = HEADS[case](o)

    check("MultiHeadAttention", o, names, outputs, num_heads=4, **attrs)


@pytest.mark.covering
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize(("biased", "attrs"), [(False, {}), (True, {}), (False, {"scale": 0.3})])
def test_heads_of_any_width_are_compiled_once(heads: int, biased: bool, attrs: dict[str, Any]) -> None:
    names = ["q", "k", "v", *(["bias"] if biased else [])]
    shapes = {"q": ["b", "s", "w"], "k": ["b", "t", "w"], "v": ["b", "t", "w"], "bias": ["u"]}
    made = node("MultiHeadAttention", " ".join(names), "y", **MS, num_heads=heads, **attrs)
    model = make_model([made], {name: (F32, shapes[name]) for name in names}, ["y"], domains=[("com.microsoft", 1)])
    module = tc.compile(model, threads=1, on_unsupported="error")
    rng = np.random.default_rng(0)

    for b, s, t, w in ((1, 3, 4, 6), (2, 1, 5, 12), (2, 7, 7, 96)):
        sizes = {"q": (b, s, w), "k": (b, t, w), "v": (b, t, w), "bias": (3 * w,)}
        arrays = {name: rng.standard_normal(sizes[name]).astype(F32) for name in names}
        np.testing.assert_allclose(module.run(arrays)["y"], peer(model, arrays)[0], rtol=2e-5, atol=2e-5)
    if heads == 3:
        with pytest.raises(TcError, match="must be a multiple of 3"):
            module.run({name: np.zeros((15,) if name == "bias" else (1, 2, 5), F32) for name in names})
    if biased:
        with pytest.raises(TcError, match="the bias' size"):
            module.run({name: np.zeros((17,) if name == "bias" else (1, 2, 6), F32) for name in names})


@pytest.mark.parametrize("with_queries", [True, False])
def test_packed_heads_are_what_they_are_apart(with_queries: bool) -> None:
    """Which onnxruntime packs for devices alone."""
    o = Operands()
    names = [o.floats(2, 5, 16), o.floats(2, 5, 16), o.floats(2, 5, 16)]
    (wanted,) = peer(model_of("MultiHeadAttention", names, "y", o.arrays, num_heads=4), o.arrays)
    in_heads = [array.reshape(2, 5, 4, 4) for array in o.arrays.values()]
    arrays = {"qkv": np.stack(in_heads, 3)} if with_queries else {"q": o.arrays["v0"], "kv": np.stack(in_heads[1:], 3)}

    model = model_of("MultiHeadAttention", list(arrays), "y", arrays, True, num_heads=4)
    (found,) = run(load_model(model, on_unsupported="error"), arrays)

    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def tables(o: Operands) -> list[str]:
    return [o.floats(9, 16), o.floats(7, 16), o.floats(3, 16)]


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_embeddings_are_onnxruntimes(segments: bool, masked: bool) -> None:
    o = Operands()
    ids, segment_ids = o.numbers(9, 2, 5), o.numbers(3, 2, 5) if segments else "-"
    word, place, segment = tables(o)
    names = [ids, segment_ids, word, place, segment if segments else "-", o.floats(16), o.floats(16)]
    names.append(o.numbers(2, 2, 5) if masked else "-")

    check("EmbedLayerNormalization", o, names, "y lengths total", epsilon=1e-6)


def test_embeddings_at_given_places_are_onnxruntimes() -> None:
    o = Operands()
    names = [o.numbers(9, 2, 5), o.numbers(3, 2, 5), *tables(o), o.floats(16), o.floats(16), "-", o.numbers(7, 2, 5)]

    check("EmbedLayerNormalization", o, names, "y lengths", epsilon=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_embeddings_in_bytes_are_onnxruntimes(dtype: type) -> None:
    o, sizes = Operands(), ((9, 16), (7, 16), (3, 16), (16,), (16,))
    ids, segment_ids = o.numbers(9, 2, 5), o.numbers(3, 2, 5)
    quantized = [o.numbers(120, *shape, dtype=dtype) for shape in sizes]
    scales = [o.add(np.array(0.01 * (k + 1), F32)) for k in range(5)]
    zeros = [o.add(np.array(40 + k, dtype)) for k in range(5)]
    names = [ids, segment_ids, *quantized, o.numbers(2, 2, 5), *scales, *zeros]

    check("QEmbedLayerNormalization", o, names, "y lengths", epsilon=1e-6)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Attention", {"num_heads": 5}, "5 heads"),
    ("Attention", {"num_heads": 4, "qkv_hidden_sizes": [16, 8, 24]}, "are \\[16, 8, 24\\]"),
    ("Attention", {"num_heads": 4, "do_rotary": 1}, "rotations"),
    ("MultiHeadAttention", {"num_heads": 4}, "without values"),
]


@pytest.mark.parametrize(("op", "attrs", "words"), REFUSED)
def test_what_cannot_be_is_refused_in_words(op: str, attrs: dict[str, Any], words: str) -> None:
    o = Operands()
    model = model_of(op, [o.floats(2, 5, 16), o.floats(16, 48)], "y", o.arrays, **attrs)

    with pytest.raises(TcError, match=words):
        load_model(model, on_unsupported="error")
