"""GroupQueryAttention and RotaryEmbedding of com.microsoft, against onnxruntime: prompts, steps with a cache, caches with room to spare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tc
from tc.errors import InputError, TcError
from tests.draws import some_of
from tests.frontend.models import check_against_onnxruntime, make_model, node, run_onnxruntime

MS = {"domain": "com.microsoft"}
F32, F16 = np.float32, np.float16


def model_of(
    op: str, names: list[str], outputs: str, declared: Mapping[str, tuple[Any, list[Any]]], dtype: Any, **attrs: Any
) -> onnx.ModelProto:
    model = make_model([node(op, " ".join(names), outputs, **MS, **attrs)], dict(declared), outputs.split(), domains=[("com.microsoft", 1)])
    for info in model.graph.output:
        info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return model


@pytest.mark.covering
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("in_heads", [False, True])
@pytest.mark.parametrize("rotated", [0, 4])
def test_rotary_embedding_of_any_length(interleaved: int, in_heads: bool, rotated: int) -> None:
    rng, heads, width = np.random.default_rng(0), 3, 8
    half = (rotated or width) // 2
    declared = {
        "x": (F32, ["b", heads, "s", width] if in_heads else ["b", "s", heads * width]),
        "p": (np.int64, ["b", "s"]),
        "c": (F32, [9, half]),
        "d": (F32, [9, half]),
    }
    attrs = {"interleaved": interleaved, **({"rotary_embedding_dim": rotated, "num_heads": heads} if rotated else {})}
    model = model_of("RotaryEmbedding", list("xpcd"), "y", declared, F32, **attrs)
    module = tc.compile(model, threads=1, on_unsupported="error")

    for batch, length in ((1, 1), (2, 5), (3, 9)):
        shape = (batch, heads, length, width) if in_heads else (batch, length, heads * width)
        arrays = {
            "x": rng.standard_normal(shape).astype(F32),
            "p": rng.integers(0, 9, (batch, length)),
            "c": rng.standard_normal((9, half)).astype(F32),
            "d": rng.standard_normal((9, half)).astype(F32),
        }
        np.testing.assert_allclose(module.run(arrays)["y"], run_onnxruntime(model, arrays)[0], rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="out of range"):
        module.run({**arrays, "p": np.full((3, 9), 9)})


def test_the_place_of_the_first_is_enough_for_a_rotary_embedding() -> None:
    rng = np.random.default_rng(1)
    arrays = {"x": rng.standard_normal((2, 4, 16)).astype(F32), "p": np.array([3])}
    arrays |= {name: rng.standard_normal((8, 4)).astype(F32) for name in "cd"}
    declared = {name: (array.dtype, list(array.shape)) for name, array in arrays.items()}

    check_against_onnxruntime(model_of("RotaryEmbedding", list("xpcd"), "y", declared, F32), arrays)


class Draw:
    """One GroupQueryAttention, and operands of it."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.kv_heads, self.width = int(rng.choice([1, 2, 3])), int(rng.choice([16, 32]))
        self.heads = self.kv_heads * int(rng.choice([1, 2, 4]))
        self.dtype = F16 if seed % 5 == 4 else F32
        self.is_packed, self.has_cache, self.is_rotated = seed % 3 == 0, seed % 4 != 0, seed % 2 == 1
        self.attrs: dict[str, Any] = {"num_heads": self.heads, "kv_num_heads": self.kv_heads}
        if seed % 3 == 1:
            self.attrs["local_window_size"] = int(rng.integers(1, 5))
        if seed % 4 == 1:
            self.attrs["softcap"] = 2.0
        if seed % 6 == 2:
            self.attrs["smooth_softmax"] = 1
        if seed % 4 == 3:
            self.attrs["scale"] = 0.3
        if self.is_rotated:
            self.attrs |= {"do_rotary": 1, "rotary_interleaved": seed // 2 % 2}
        self.has_bias = seed % 6 == 5

    def model(self) -> onnx.ModelProto:
        width, kv = self.width, self.kv_heads * self.width
        declared: dict[str, tuple[Any, list[Any]]] = {"q": (self.dtype, ["b", "s", self.heads * width + (2 * kv if self.is_packed else 0)])}
        if not self.is_packed:
            declared |= {name: (self.dtype, ["b", "s", kv]) for name in "kv"}
        if self.has_cache:
            declared |= {name: (self.dtype, ["b", self.kv_heads, "p", width]) for name in ("k0", "v0")}
        declared |= {"l": (np.int32, ["b"]), "t": (np.int32, [])}
        if self.is_rotated:
            declared |= {name: (self.dtype, [32, width // 2]) for name in "cd"}
        if self.has_bias:
            declared["m"] = (self.dtype, ["b", 1, "s", "all"])
        names = [name if name in declared else "-" for name in ("q", "k", "v", "k0", "v0", "l", "t", "c", "d", "-", "m")]
        while names[-1] == "-":
            names.pop()
        return model_of("GroupQueryAttention", names, "y k1 v1", declared, self.dtype, **self.attrs)

    def arrays(self, lengths: list[int], new: int, held: int) -> dict[str, np.ndarray]:
        """`lengths`: how many places each sentence has in all, of which `new` are new; the cache has room for `held`."""

        def normal(*shape: int) -> np.ndarray:
            return self.rng.standard_normal(shape).astype(self.dtype)

        batch, kv, extra = len(lengths), self.kv_heads * self.width, 0
        if self.is_packed:
            extra = 2 * kv
        found = {"q": normal(batch, new, self.heads * self.width + extra)}
        if not self.is_packed:
            found |= {name: normal(batch, new, kv) for name in "kv"}
        if self.has_cache:
            found |= {name: normal(batch, self.kv_heads, held, self.width) for name in ("k0", "v0")}
        found |= {"l": np.array(lengths, np.int32) - 1, "t": np.array(max(lengths), np.int32)}
        if self.is_rotated:
            found |= {name: normal(32, self.width // 2) for name in "cd"}
        if self.has_bias:
            found["m"] = normal(batch, 1, new, max(lengths))
        return {name: np.asarray(array, np.int32 if name in "lt" else self.dtype) for name, array in found.items()}


def check_every_step(draw: Draw, threads: int) -> None:
    model = draw.model()
    module = tc.compile(model, threads=threads, on_unsupported="error")
    calls = [([5, 5], 5, 0), ([4, 2, 3], 4, 0), ([1], 1, 0)]  # prompts, of which the shorter ones end in nothing
    if draw.has_cache:
        calls += [([6, 4], 1, 5), ([3, 9, 1], 1, 8), ([7, 2], 1, 12), ([9], 3, 6), ([5, 5], 5, 9)]

    for lengths, new, held in calls:
        arrays = draw.arrays(lengths, new, held)
        expected, found = run_onnxruntime(model, arrays), list(module.run(arrays).values())
        assert [a.shape for a in found] == [a.shape for a in expected]
        for b, length in enumerate(lengths):
            parts = [slice(min(new, length) if new > 1 else 1), (slice(None), slice(length)), (slice(None), slice(length))]
            for a, e, part in zip(found, expected, parts, strict=True):
                atol = 2e-2 if draw.dtype == F16 else 2e-5
                np.testing.assert_allclose(a[b][part].astype(np.float64), e[b][part].astype(np.float64), rtol=atol, atol=atol)


@pytest.mark.parametrize("seed", some_of(range(12), quick=(1, 2, 3, 4, 11)))  # each attribute, packed, without a cache, a bias, f16
def test_attention_of_shared_keys_is_onnxruntimes_at_every_step(seed: int) -> None:
    check_every_step(Draw(seed), threads=1 + seed % 2)


@pytest.mark.parametrize("seed", [2, 3, 6])  # a cell for nothing; rotated; packed
def test_attention_that_is_not_causal_sees_whole_sentences(seed: int) -> None:
    draw = Draw(seed)
    draw.attrs["causal"] = 0

    check_every_step(draw, threads=1)


def test_a_cache_that_is_too_short_is_an_error() -> None:
    draw = Draw(7)
    module = tc.compile(draw.model(), threads=1, on_unsupported="error")
    arrays = draw.arrays([4, 6], 1, 5)

    with pytest.raises(InputError, match="number of places of the cache"):
        module.run({**arrays, "l": np.array([3, 30], np.int32)})


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ({"num_heads": 3, "kv_num_heads": 2}, "3 heads, 2 of keys"),
        ({"num_heads": 2, "kv_num_heads": 2, "qk_output": 1}, "returns scores"),
        ({"num_heads": 2, "kv_num_heads": 2, "sliding_window_cache": 1, "local_window_size": 2}, "cache of the last places"),
        ({"num_heads": 2, "kv_num_heads": 2, "causal": 0, "local_window_size": 2}, "of causal attention alone"),
        ({"num_heads": 2, "kv_num_heads": 2, "k_quant_type": "PER_TENSOR"}, "cache of integers"),
    ],
)
def test_what_is_no_attention_of_groups_is_said(attrs: dict[str, Any], text: str) -> None:
    declared = {"q": (F32, [1, 2, 96]), "l": (np.int32, [1]), "t": (np.int32, [])}
    names = ["q", "-", "-", "-", "-", "l", "t"]

    with pytest.raises(TcError, match=text):
        tc.compile(model_of("GroupQueryAttention", names, "y", declared, F32, **attrs))
