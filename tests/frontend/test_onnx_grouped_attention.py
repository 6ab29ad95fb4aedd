"""GroupQueryAttention and RotaryEmbedding of com.microsoft, against onnxruntime: prompts, steps with a cache, caches with room to spare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Step:
    """Sentences of which some places are new, each of so many in all; the operands have room for `length` new ones, caches for `held`."""

    totals: tuple[int, ...]
    new: tuple[int, ...]
    length: int
    held: int

    def check(self, attrs: dict[str, Any], *, bits: int = 0, scales: tuple[int, ...] = (), of_each: bool = False) -> None:
        """As onnxruntime, wherever there is a place; `of_each`: the operands say how many places are new."""
        rng, heads, kv_heads, width, batch = np.random.default_rng(0), 4, 2, 32, len(self.totals)
        past = (batch, kv_heads, self.held, width // 2 if bits == 4 else width)
        kept = {0: F32, 4: np.uint8, 8: np.int8}[bits]
        arrays: dict[str, np.ndarray] = {"q": rng.standard_normal((batch, self.length, heads * width)).astype(F32)}
        arrays |= {name: rng.standard_normal((batch, self.length, kv_heads * width)).astype(F32) for name in "kv"}
        arrays |= {name: (rng.standard_normal(past) if not bits else rng.integers(-100, 100, past)).astype(kept) for name in ("k0", "v0")}
        arrays |= {"l": np.array(self.totals, np.int32) - 1, "t": np.array(max(self.totals), np.int32)}
        arrays |= {name: rng.standard_normal((32, width // 2)).astype(F32) for name in "cd"}
        arrays["m"] = rng.standard_normal((1, 1, self.length, max(self.totals))).astype(F32)
        if bits:
            arrays |= {name: rng.uniform(0.02, 0.05, scales).astype(F32) for name in "ef"}
        if of_each:
            arrays["n"] = np.array(self.new, np.int32)
        declared: dict[str, tuple[Any, list[Any]]] = {name: (a.dtype, list(a.shape)) for name, a in arrays.items()}
        for name, place, symbol in (*((name, 1, "s") for name in "qkv"), ("m", 2, "s"), ("m", 3, "t"), ("k0", 2, "p"), ("v0", 2, "p")):
            declared[name][1][place] = symbol
        names = [name if name in arrays else "-" for name in "q k v k0 v0 l t c d - m - e f - - n".split()]
        while names[-1] == "-":
            names.pop()
        outputs = "y k1 v1 w" if attrs.get("qk_output") else "y k1 v1"
        attrs = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": 1, **attrs}
        model = model_of("GroupQueryAttention", names, outputs, declared, F32, **attrs)
        for info in model.graph.output[1:3]:
            info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kept))

        found = list(tc.compile(model, threads=1, on_unsupported="error").run(arrays).values())

        for b, total in enumerate(self.totals):
            if "sliding_window_cache" in attrs:
                group = self.held - attrs["local_window_size"] + 1
                total -= group * max(0, -(-(total - self.held) // group))
            rows = slice(self.new[b])
            parts = [rows, (slice(None), slice(total)), (slice(None), slice(total)), (slice(None), rows, slice(total))]
            for a, e, part in zip(found, run_onnxruntime(model, arrays), parts, strict=False):
                assert a.shape == e.shape and a.dtype == e.dtype
                np.testing.assert_allclose(a[b][part], e[b][part], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shown", [1, 2])
def test_scores_are_shown_before_and_after_the_softmax(shown: int) -> None:
    Step((5, 3), (1, 1), 1, 7).check({"qk_output": shown, "softcap": 2.0, "local_window_size": 3})
    Step((4, 2), (4, 2), 4, 4).check({"qk_output": shown, "smooth_softmax": 1})


def test_operands_may_be_longer_than_what_is_new() -> None:
    Step((7, 3, 4), (2, 3, 0), 3, 10).check({}, of_each=True)
    Step((7, 3), (2, 1), 3, 10).check({"local_window_size": 2, "qk_output": 2}, of_each=True)
    with pytest.raises(InputError, match="number of new places"):
        Step((7, 3), (4, 1), 3, 10).check({}, of_each=True)


@pytest.mark.parametrize("held", [3, 5])  # a place is dropped at each step, or several at some
def test_a_cache_may_hold_the_last_places_alone(held: int) -> None:
    attrs = {"sliding_window_cache": 1, "local_window_size": 3}
    Step((9, 4), (1, 1), 1, held).check(attrs)
    Step((12,), (7,), 7, held).check(attrs)
    Step((14, 2, 5), (2, 0, 3), 3, held).check(attrs, of_each=True)


@pytest.mark.parametrize(("kind", "scales"), [("PER_TENSOR", (1,)), ("PER_CHANNEL", (1, 2, 1, 32))])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_cache_may_hold_integers(bits: int, kind: str, scales: tuple[int, ...]) -> None:
    attrs = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits}
    Step((6, 4), (1, 1), 1, 7).check(attrs, bits=bits, scales=scales)
    Step((9,), (2,), 2, 4).check({**attrs, "sliding_window_cache": 1, "local_window_size": 3}, bits=bits, scales=scales)


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ({"num_heads": 3, "kv_num_heads": 2}, "3 heads, 2 of keys"),
        ({"num_heads": 2, "kv_num_heads": 2, "qk_output": 1}, "qk_output is 1, with 1 outputs"),
        ({"num_heads": 2, "kv_num_heads": 2, "sliding_window_cache": 1, "local_window_size": 2}, "last places alone needs"),
        ({"num_heads": 2, "kv_num_heads": 2, "causal": 0, "local_window_size": 2}, "of causal attention alone"),
        ({"num_heads": 2, "kv_num_heads": 2, "k_quant_type": "PER_TENSOR"}, "cache of 0 bits, PER_TENSOR, without a scale"),
    ],
)
def test_what_is_no_attention_of_groups_is_said(attrs: dict[str, Any], text: str) -> None:
    declared = {"q": (F32, [1, 2, 96]), "l": (np.int32, [1]), "t": (np.int32, [])}
    names = ["q", "-", "-", "-", "-", "l", "t"]

    with pytest.raises(TcError, match=text):
        tc.compile(model_of("GroupQueryAttention", names, "y", declared, F32, **attrs))
