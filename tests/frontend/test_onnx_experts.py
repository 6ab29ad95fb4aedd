"""Mixtures of experts, of floats and of few bits: against their definition in numpy, and against onnxruntime where it runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tc
from tc.errors import TcError
from tests.frontend.models import run_onnxruntime

EXPERTS, HIDDEN, INNER = 4, 32, 64
SWIGLU = {"activation_type": "swiglu", "activation_alpha": 1.3, "activation_beta": 0.5, "swiglu_limit": 1.1}
KINDS: list[tuple[dict[str, Any], bool]] = [
    ({"activation_type": "relu"}, False), ({"activation_type": "gelu"}, False), ({"activation_type": "silu"}, True),
    ({"activation_type": "identity"}, False), ({**SWIGLU, "swiglu_fusion": 1}, False), ({**SWIGLU, "swiglu_fusion": 2}, False),
    ({**SWIGLU, "swiglu_fusion": 0}, True),
]  # fmt: skip
OF_NODES = ("x", "logits", "router_weights")


def make_node(
    op: str, operands: Mapping[str, np.ndarray | None], attrs: dict[str, Any], rows: Any, inputs: tuple[str, ...] = OF_NODES
) -> onnx.ModelProto:
    """A model of one node: operands that are not `inputs` are constants, and tokens are of `rows` rows."""
    given = {name: array for name, array in operands.items() if array is not None}
    names = [name if name in given else "" for name in operands]
    node = helper.make_node(op, names, ["y"], name="experts", domain="com.microsoft", **attrs)
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), [rows if name in OF_NODES else len(array), *array.shape[1:]]
        )
        for name, array in given.items()
        if name in inputs
    ]
    output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(given["x"].dtype), None)
    literals = [numpy_helper.from_array(array, name) for name, array in given.items() if name not in inputs]
    graph = helper.make_graph([node], "test", infos, [output], literals)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def activate(first: np.ndarray, gate: np.ndarray | None, attrs: dict[str, Any]) -> np.ndarray:
    kind = attrs["activation_type"]
    if kind == "swiglu":
        fusion = attrs["swiglu_fusion"]
        g, linear = (first[::2], first[1::2]) if fusion == 1 else np.split(first, 2) if fusion == 2 else (first, gate)
        g, linear = np.minimum(g, attrs["swiglu_limit"]), np.clip(linear, -attrs["swiglu_limit"], attrs["swiglu_limit"])  # type: ignore[arg-type]
        made: np.ndarray = g / (1 + np.exp(-attrs["activation_alpha"] * g)) * (linear + attrs["activation_beta"])
        return made
    simple = {
        "relu": lambda: np.maximum(first, 0), "identity": lambda: first, "silu": lambda: first / (1 + np.exp(-first)),
        "gelu": lambda: first * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (first + 0.044715 * first**3))),
    }[kind]()  # fmt: skip
    return simple if gate is None else simple * gate


def mixed(
    x: np.ndarray, logits: np.ndarray, weights: list[np.ndarray | None], biases: list[Any], attrs: dict[str, Any], shares: Any
) -> np.ndarray:
    """By the definition, token by token, in f64. `shares(token, chosen)`: of what each expert makes."""
    first, second, gate = weights
    assert first is not None and second is not None
    b_first, b_second, b_gate = biases
    result = np.zeros((len(x), second.shape[1]))
    for t, token in enumerate(x.astype(np.float64)):
        chosen = np.argsort(-logits[t], kind="stable")[: attrs["k"]]
        for expert, share in zip(chosen, shares(t, chosen), strict=True):
            g = None if gate is None else gate[expert] @ token + (0 if b_gate is None else b_gate[expert])
            inner = activate(first[expert] @ token + b_first[expert], g, attrs)
            result[t] += share * (second[expert] @ inner + b_second[expert])
    return result


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    made: np.ndarray = e / e.sum()
    return made


def normal(shares: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    return shares / shares.sum() if attrs.get("normalize_routing_weights") else shares


def run(model: onnx.ModelProto, operands: Mapping[str, np.ndarray | None]) -> np.ndarray:
    module = tc.compile(model, threads=2)
    names = [info.name for info in model.graph.input]
    result: np.ndarray = module(*(operands[name] for name in names))
    return result


@pytest.mark.covering
@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize(("kind", "has_gate"), KINDS, ids=lambda kind: str(kind.get("activation_type")) if isinstance(kind, dict) else None)
def test_a_mixture_of_experts(kind: dict[str, Any], has_gate: bool, tokens: int, rng: np.random.Generator) -> None:
    fused = 2 if kind.get("swiglu_fusion") else 1
    attrs = {"k": 1 + tokens % 3, "normalize_routing_weights": tokens % 2, **kind}

    def draw(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    operands: dict[str, np.ndarray | None] = {
        "x": draw(tokens, HIDDEN), "logits": draw(tokens, EXPERTS), "w1": draw(EXPERTS, fused * INNER, HIDDEN),
        "b1": draw(EXPERTS, fused * INNER), "w2": draw(EXPERTS, HIDDEN, INNER), "b2": draw(EXPERTS, HIDDEN),
        "w3": draw(EXPERTS, INNER, HIDDEN) if has_gate else None, "b3": draw(EXPERTS, INNER) if has_gate else None,
    }  # fmt: skip
    x, logits = operands["x"], operands["logits"]
    assert x is not None and logits is not None
    model = make_node("MoE", operands, attrs, "tokens", inputs=OF_NODES if tokens else tuple(operands))

    found = run(model, operands)

    weights, biases = ([operands[f"{what}{k}"] for k in (1, 2, 3)] for what in "wb")
    shares = lambda t, chosen: normal(softmax(logits[t].astype(np.float64))[chosen], attrs)  # noqa: E731
    np.testing.assert_allclose(found, mixed(x, logits, weights, biases, attrs, shares), rtol=1e-4, atol=1e-4)
    if not has_gate and kind.get("swiglu_fusion") != 2:
        (expected,) = run_onnxruntime(model, {info.name: operands[info.name] for info in model.graph.input})  # type: ignore[misc]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def pack(values: np.ndarray, bits: int) -> np.ndarray:
    """Several to a byte along the last axis, the first one lowest."""
    each = 8 // bits
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % each)])
    parts = padded.reshape(*padded.shape[:-1], -1, each).astype(np.int64) << (bits * np.arange(each))
    made: np.ndarray = parts.sum(-1).astype(np.uint8)
    return made


def draw_quantized(rng: np.random.Generator, rows: int, depth: int, bits: int, block: int, has_zeros: bool) -> tuple[np.ndarray, ...]:
    """Numbers, as they are packed, their scales and zero points, and what they stand for."""
    groups = depth // block if block else 1
    values = rng.integers(0, 2**bits, (EXPERTS, rows, depth))
    scale = rng.uniform(0.1, 1, (EXPERTS, rows, groups)).astype(np.float32) / 2**bits
    zero = rng.integers(0, 2**bits, scale.shape) if has_zeros else np.full(scale.shape, 2 ** (bits - 1))
    wide = (values - np.repeat(zero, depth // groups, 2)) * np.repeat(scale.astype(np.float64), depth // groups, 2)
    return pack(values, bits), scale if block else scale[..., 0], pack(zero if block else zero[..., 0], bits), wide


@pytest.mark.covering
@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_mixture_of_quantized_experts(bits: int, has_zeros: bool, block: int, rng: np.random.Generator) -> None:
    for (kind, has_gate), by_weights in zip(KINDS[2:6], [True, False, True, False], strict=True):
        fused = 2 if kind.get("swiglu_fusion") else 1
        attrs = {"k": 2, "expert_weight_bits": bits, "normalize_routing_weights": int(has_zeros), **kind}
        if block:
            attrs["block_size"] = block
        shapes = [(fused * INNER, HIDDEN), (HIDDEN, INNER), *([(INNER, HIDDEN)] if has_gate else [])]
        drawn = [draw_quantized(rng, *shape, bits, block, has_zeros) for shape in shapes]
        parts = [*drawn, *[(None,) * 4] * (3 - len(drawn))]
        x, logits = (rng.standard_normal((5, size)).astype(np.float32) for size in (HIDDEN, EXPERTS))
        biases = [rng.standard_normal((EXPERTS, rows)).astype(np.float32) for rows, _ in shapes]
        biases += [None] * (3 - len(biases))  # type: ignore[list-item]
        zeros = [part[2] if has_zeros else None for part in parts]
        mixing = rng.uniform(0.1, 1, logits.shape).astype(np.float32) if by_weights else None
        operands: dict[str, Any] = {"x": x, "logits": logits}
        for k, (part, bias) in enumerate(zip(parts, biases, strict=True), 1):
            operands |= {f"w{k}": part[0], f"s{k}": part[1], f"b{k}": bias}
        operands |= {f"z{k}": zero for k, zero in enumerate(zeros, 1)}
        operands["router_weights"] = mixing

        found = run(make_node("QMoE", operands, attrs, "tokens"), operands)

        def shares(t: int, chosen: np.ndarray, given: Any = mixing, of: Any = attrs, own: np.ndarray = logits) -> np.ndarray:
            return softmax(own[t][chosen].astype(np.float64)) if given is None else normal(given[t][chosen], of)

        expected = mixed(x, logits, [part[3] for part in parts], biases, attrs, shares)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        if not has_gate and kind.get("swiglu_fusion") != 2:
            given = {name: operands[name] for name in OF_NODES if operands[name] is not None}
            (other,) = run_onnxruntime(make_node("QMoE", operands, attrs, 5), given)
            off = 3e-2 if bits == 8 and block else 2e-3  # onnxruntime rounds what it multiplies with bytes to bytes
            np.testing.assert_allclose(found, other, rtol=off, atol=off * np.abs(other).max())


def test_experts_of_a_batch_of_sentences_in_f16(rng: np.random.Generator) -> None:
    operands: dict[str, Any] = {"x": rng.standard_normal((2, 3, HIDDEN)), "logits": rng.standard_normal((6, EXPERTS))}
    operands |= {"w1": rng.standard_normal((EXPERTS, INNER, HIDDEN)), "b1": None, "w2": rng.standard_normal((EXPERTS, HIDDEN, INNER))}
    operands = {name: None if array is None else (array * 0.3).astype(np.float16) for name, array in operands.items()}
    attrs = {"k": 2, "activation_type": "silu", "normalize_routing_weights": 1}
    model = make_node("MoE", operands, attrs, None)
    wide = {name: None if array is None else array.astype(np.float32) for name, array in operands.items()}

    found = run(model, operands)

    expected = run(make_node("MoE", wide, attrs, None), wide)
    assert found.dtype == np.float16 and found.shape == (2, 3, HIDDEN)
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ({"k": 5}, "the best 5 of 4 experts"), ({"use_sparse_mixer": 1}, "use_sparse_mixer"),
        ({"activation_type": "relu2"}, "activation_type 'relu2'"), ({**SWIGLU, "swiglu_fusion": 0}, "no third product"),
        ({"expert_weight_bits": 3}, "3 bits"), ({"block_size": 24}, "whole blocks of 24"), ({"quant_type": "fp8"}, "quant_type 'fp8'"),
    ],
)  # fmt: skip
def test_experts_that_are_refused(attrs: dict[str, Any], text: str, rng: np.random.Generator) -> None:
    parts = [draw_quantized(rng, *shape, 4, 0, has_zeros=False) for shape in ((INNER, HIDDEN), (HIDDEN, INNER))]
    operands: dict[str, Any] = {"x": np.zeros((2, HIDDEN), np.float32), "logits": np.zeros((2, EXPERTS), np.float32)}
    operands |= {"w1": parts[0][0], "s1": parts[0][1], "b1": None, "w2": parts[1][0], "s2": parts[1][1]}

    with pytest.raises(TcError, match=text):
        tc.compile(make_node("QMoE", operands, attrs, 2))


@pytest.mark.parametrize(("groups", "active", "of_each", "k"), [(1, 1, 2, 2), (4, 2, 2, 3), (2, 1, 5, 4), (4, 4, 1, 8)])
def test_a_router_by_groups(groups: int, active: int, of_each: int, k: int, rng: np.random.Generator) -> None:
    operands: dict[str, Any] = {"x": rng.standard_normal((7, 8)).astype(np.float32)}
    operands["bias"] = (rng.standard_normal(8) * 0.1).astype(np.float32)
    attrs = {"n_group": groups, "topk_group": active, "group_topk": of_each, "top_k": k}

    found = run(make_node("MoEGroupRouter", operands, attrs, "tokens"), operands)

    (expected,) = run_onnxruntime(make_node("MoEGroupRouter", operands, attrs, 7), {"x": operands["x"]})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
