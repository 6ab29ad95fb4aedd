"""What recurrent language models are written with, against onnxruntime: attention by a state, its gates, convolution and norm, and rotary
embeddings of three places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import tc
from tc.errors import TcError
from tests.frontend.models import make_model, node, run_onnxruntime

F32 = np.float32


def check(op: str, operands: dict[str, Any], attrs: dict[str, Any], outputs: str = "y", free: dict[str, list[Any]] | None = None) -> None:
    """A node as tc and as onnxruntime run it; `free`: shapes that tc sees instead of the sizes."""
    given = {name: array for name, array in operands.items() if array is not None}
    names = " ".join(name if name in given else "-" for name in operands)
    made = node(op, names, outputs, domain="com.microsoft", **attrs)
    results = []
    for shapes in (free or {}, {}):
        inputs = {name: (array.dtype, shapes.get(name, list(array.shape))) for name, array in given.items()}
        model = make_model([made], inputs, outputs.split(), domains=[("com.microsoft", 1)])
        for info in model.graph.output:
            info.type.tensor_type.elem_type = TensorProto.FLOAT16 if next(iter(given.values())).dtype == np.float16 else TensorProto.FLOAT
        if results:
            results.append(run_onnxruntime(model, given))
        else:
            found = tc.compile(model, threads=2)(*given.values())
            results.append(list(found) if isinstance(found, (tuple, list)) else [found])
    off = 2e-3 if next(iter(given.values())).dtype == np.float16 else 2e-5
    for ours, other in zip(*results, strict=True):
        assert ours.dtype == other.dtype
        np.testing.assert_allclose(ours, other, rtol=off, atol=off * max(1, float(np.abs(other).max(initial=0))))


@pytest.mark.covering(2)
@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (2, 4), (3, 1)])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_attention_by_a_state(rule: str, heads: int, kv_heads: int, length: int, rng: np.random.Generator) -> None:
    depth, width = 4, 6

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal((2, *shape)).astype(F32)

    for has_past, by_element, is_shared in ((False, False, True), (True, True, False)):
        rates = 1 if is_shared else kv_heads
        operands = {
            "q": draw(length, heads * depth), "k": draw(length, kv_heads * depth) * F32(0.3), "v": draw(length, kv_heads * width),
            "past": draw(kv_heads, depth, width) if has_past else None,
            "decay": -np.abs(draw(length, kv_heads * (depth if by_element else 1))) if "gated" in rule else None,
            "rate": 1 / (1 + np.exp(-draw(length, rates))) if "delta" in rule else None,
        }  # fmt: skip
        attrs = {"q_num_heads": heads, "kv_num_heads": kv_heads, "update_rule": rule, **({"scale": 0.7} if by_element else {})}
        free = {name: ["b", "t", array.shape[2]] for name, array in operands.items() if array is not None and array.ndim == 3}

        check("LinearAttention", operands, attrs, "y state", free if is_shared else None)


@pytest.mark.covering
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("taps", [1, 2, 4])
def test_a_convolution_that_goes_on(taps: int, last: bool, rng: np.random.Generator) -> None:
    for dilation, length, activation in ((1, 1, "silu"), (2, 3, "none"), (1, 9, "swish"), (3, 2, "silu")):
        held = (taps - 1) * dilation

        def draw(length: int) -> np.ndarray:
            return rng.standard_normal((2, length, 5) if last else (2, 5, length)).astype(F32)

        weight, bias = rng.standard_normal((5, 1, taps)).astype(F32), rng.standard_normal(5).astype(F32)
        past = draw(held) if held and length != 9 else None
        operands = {"x": draw(length), "w": weight, "b": None if length == 3 else bias, "past": past}
        attrs = {"ndim": 1, "dilation": dilation, "channels_last": int(last), "activation": activation}
        free = {"x": ["b", "t", 5] if last else ["b", 5, "t"]} if past is None else None

        check("CausalConvWithState", operands, attrs, "y after", free)


def test_a_convolution_of_channels_along_several_axes(rng: np.random.Generator) -> None:
    shapes = {"x": (2, 4, 3, 2), "w": (6, 1, 3), "b": (6,), "past": (2, 2, 3, 2)}
    check("CausalConvWithState", {k: rng.standard_normal(s).astype(F32) for k, s in shapes.items()}, {"channels_last": 1}, "y after")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
def test_a_norm_behind_a_gate(activation: str, dtype: Any, rng: np.random.Generator) -> None:
    for size in (4, 12):
        shapes = {"x": (2, 3, 12), "s": (size,), "g": (2, 3, 12)}
        operands = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
        check("GatedRMSNorm", operands, {"activation": activation, "epsilon": 1e-3}, free={"x": ["b", "t", 12], "g": ["b", "t", 12]})


@pytest.mark.parametrize("has_rate", [False, True])
def test_gates_of_attention_by_a_state(has_rate: bool, rng: np.random.Generator) -> None:
    shapes = {"a": (2, 3, 4), "d": (4,), "s": (4,)}
    operands: dict[str, Any] = {name: rng.standard_normal(shape).astype(F32) for name, shape in shapes.items()}
    operands["b"] = rng.standard_normal((2, 3, 4)).astype(F32) if has_rate else None
    check("LinearAttentionGate", operands, {}, "decay rate" if has_rate else "decay")


@pytest.mark.covering
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("sections", [[2, 1, 1], [4, 0, 0], [0, 2, 2]])
def test_rotary_embeddings_of_three_places(sections: list[int], layout: int, rng: np.random.Generator) -> None:
    for interleaved, rotated, width in ((0, 0, 8), (1, 0, 8), (0, 8, 12), (1, 8, 12)):
        operands = {
            "x": rng.standard_normal((2, 5, 3 * width)).astype(F32), "places": rng.integers(0, 16, (3, 2, 5)),
            "cos": rng.standard_normal((16, 4)).astype(F32), "sin": rng.standard_normal((16, 4)).astype(F32),
        }  # fmt: skip
        attrs = {"mrope_section": sections, "mrope_layout": layout, "interleaved": interleaved, "num_heads": 3}
        attrs["rotary_embedding_dim"] = rotated

        check("MRotaryEmbedding", operands, attrs)
        operands["x"] = rng.standard_normal((2, 3, 5, width)).astype(F32)
        check("MRotaryEmbedding", operands, attrs, free={"x": ["b", 3, "t", width], "places": [3, "b", "t"]})


@pytest.mark.parametrize(("branches", "shape"), [(0, (2, 3, 4, 6)), (4, (2, 3, 24)), (0, (4, 6)), (4, (24,))])
def test_operators_of_branches(branches: int, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(F32)

    attrs, lead = {"num_branches": branches}, shape[:-1] if branches else shape[:-2]
    for scale in (None, (6,), (4, 6), (24,)):
        check("BranchwiseRMSNorm", {"x": draw(*shape), "s": None if scale is None else draw(*scale)}, attrs)
    for gates in ((4,), (4, 1), (4, 6), *([(24,)] if branches else [])):
        check("HyperConnectionPreMix", {"x": draw(*shape), "g": draw(*lead, *gates)}, {**attrs, "reduction_scale": 0.5})
    for gates, has_mix in (((4,), True), ((4, 1), False), ((4, 6), True)):
        operands = {"x": draw(*shape), "o": draw(*lead, 6), "g": draw(*lead, *gates), "m": draw(*lead, 4, 4) if has_mix else None}
        check("HyperConnectionPostMix", operands, attrs)


def test_a_scaled_silu_and_a_gated_sum(rng: np.random.Generator) -> None:
    x, y, gate = (rng.standard_normal(shape).astype(F32) for shape in ((3, 4), (3, 4), (3, 1)))
    check("ScaledSiLU", {"x": x}, {"alpha": 1.7})
    check("ScaledSiLU", {"x": x, "s": np.array(0.3, F32)}, {})
    check("GatedAdd", {"x": x, "other": y, "g": gate}, {})


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "text"),
    [
        ("LinearAttention", {"q": [1, 2, 8], "k": [1, 2, 8], "v": [1, 2, 8]}, {"q_num_heads": 2, "kv_num_heads": 2}, "needs decay"),
        ("LinearAttention", {"q": [1, 2, 8], "k": [1, 2, 8], "v": [1, 2, 8]}, {"q_num_heads": 3, "kv_num_heads": 2}, "3 heads"),
        ("CausalConvWithState", {"x": [1, 4, 5, 5], "w": [4, 1, 3, 3]}, {"ndim": 2}, "ndim = 2"),
        ("GatedRMSNorm", {"x": [2, 10], "s": [4], "g": [2, 10]}, {}, "runs of 4"),
        ("MRotaryEmbedding", {"x": [1, 2, 8], "p": [3, 1, 2], "c": [9, 4], "s": [9, 4]}, {"mrope_section": [1, 1, 1]}, "three of 4"),
        ("BranchwiseRMSNorm", {"x": [2, 10]}, {"num_branches": 3}, "in 3 branches"),
    ],
)
def test_what_is_refused(op: str, operands: dict[str, Any], attrs: dict[str, Any], text: str) -> None:
    made = node(op, " ".join(operands), "y after" if op == "CausalConvWithState" else "y", domain="com.microsoft", **attrs)
    inputs = {name: (np.int64 if name == "p" else F32, shape) for name, shape in operands.items()}

    with pytest.raises(TcError, match=text):
        tc.compile(make_model([made], inputs, made.output, domains=[("com.microsoft", 1)]))
