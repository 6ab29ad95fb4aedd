"""Operators that onnxruntime's optimizer writes, against onnxruntime."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

import tc
from tc.errors import TcError
from tc.frontend.onnx import load_model
from tests.frontend.models import make_model, node, run

F32 = np.float32
MS = {"domain": "com.microsoft"}
INPUTS = {
    "x": (F32, [2, 3, 8]), "skip": (F32, [2, 3, 8]), "w": (F32, [8]), "b": (F32, [8]), "z": (F32, [2, 4, 8]),
    "image": (F32, [2, 4, 6, 5]), "kernels": (F32, [6, 2, 3, 3]), "channels": (F32, [6]), "other": (F32, [2, 6, 3, 5]),
    "rows": (F32, [7, 3]), "grid": (F32, [2, 3, 2, 2]),
    "left": (F32, [5, 3]), "right": (F32, [4, 5]), "sum": (F32, [4]), "turned": (F32, [3, 2, 8]),
}  # fmt: skip
CONV = {"pads": [1, 1, 1, 1], "strides": [2, 1], "group": 2, "kernel_shape": [3, 3], **MS}
GEMM = {"transA": 1, "transB": 1, "alpha": 0.7, "beta": 0.3, **MS}

CASES: list[Any] = [
    node("Gelu", "x", "y", **MS),
    node("BiasGelu", "x b", "y", **MS),
    node("FastGelu", "x", "y", **MS),
    node("FastGelu", "x b", "y", **MS),
    node("QuickGelu", "x", "y", alpha=1.5, **MS),
    node("FusedMatMul", "x z", "y", alpha=0.5, transB=1, **MS),
    node("FusedMatMul", "x skip", "y", transA=1, **MS),
    node("FusedMatMul", "turned z", "y", transBatchA=1, transB=1, **MS),
    node("FusedMatMul", "turned x", "y", transBatchA=1, transA=1, **MS),
    node("FusedMatMul", "x turned", "y", transBatchB=1, transB=1, alpha=2.0, **MS),
    node("TransposeMatMul", "x z", "y", transB=1, **MS),
    node("FusedConv", "image kernels channels", "y", activation="Relu", **CONV),
    node("FusedConv", "image kernels channels other", "y", activation="Relu", **CONV),
    node("FusedConv", "image kernels", "y", activation="LeakyRelu", activation_params=[0.3], **CONV),
    node("FusedConv", "image kernels", "y", activation="Clip", activation_params=[-0.5, 0.7], **CONV),
    node("FusedConv", "image kernels", "y", activation="HardSigmoid", activation_params=[0.3, 0.4], **CONV),
    node("FusedConv", "image kernels", "y", activation="HardSwish", **CONV),
    node("FusedConv", "image kernels", "y", activation="Tanh", **CONV),
    node("FusedConv", "image kernels", "y", activation="Sigmoid", **CONV),
    node("FusedGemm", "left right sum", "y", activation="Relu", **GEMM),
    node("FusedGemm", "left right sum", "y", activation="LeakyRelu", activation_alpha=0.3, **GEMM),
    node("FusedGemm", "left right sum", "y", activation="Elu", activation_alpha=0.5, **GEMM),
    node("FusedGemm", "left right sum", "y", activation="Selu", activation_alpha=1.5, activation_gamma=1.25, **GEMM),
    node("FusedGemm", "left right", "y", activation="HardSigmoid", activation_alpha=0.3, activation_beta=0.4, **GEMM),
    node("FusedGemm", "left right", "y", activation="Celu", activation_alpha=0.5, **GEMM),
    node("FusedGemm", "left right", "y", activation="ParametricSoftplus", activation_alpha=0.3, activation_beta=0.4, **GEMM),
    node("SkipLayerNormalization", "x skip w b", "y", epsilon=1e-5, **MS),
    node("SkipLayerNormalization", "x skip w b b", "y - - s", **MS),
    node("SkipSimplifiedLayerNormalization", "x skip w b", "y - - s", **MS),
    node("SimplifiedLayerNormalization", "x w", "y", axis=-1, epsilon=1e-5),
    node("Trilu", "x", "y", upper=0, **MS),
    node("GridSample", "image grid", "y", mode="bicubic", padding_mode="border", align_corners=1, **MS),
    node("CDist", "left rows", "y", metric="euclidean", **MS),
    node("CDist", "left rows", "y", metric="sqeuclidean", **MS),
]


@pytest.mark.parametrize("made", CASES, ids=lambda made: made.op_type)
def test_an_operator_of_microsoft(made: Any, rng: np.random.Generator) -> None:
    outputs = [name for name in made.output if name]
    inputs = {name: INPUTS[name] for name in dict.fromkeys(made.input)}
    model = make_model([made], inputs, outputs, domains=[("com.microsoft", 1)])
    for info in model.graph.output:
        info.type.tensor_type.elem_type = TensorProto.FLOAT
    arrays = {name: rng.standard_normal(shape).astype(F32) for name, (_, shape) in inputs.items()}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    imported = load_model(model, on_unsupported="error")

    for found, expected in zip(run(imported, arrays), session.run(None, arrays), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


WITH_OPERANDS: dict[str, tuple[list[Any], dict[str, np.ndarray], dict[str, Any]]] = {
    "Pad": ([np.ones((3, 4), F32)], {"pads": np.array([1, 0, 2, 1])}, {"mode": "reflect"}),
    "ExpandDims": ([np.ones((3, 4), F32)], {"axis": np.array(-1, np.int32)}, {}),
    "GatherND": ([np.arange(9, dtype=F32).reshape(3, 3)], {"places": np.array([[2], [0]])}, {}),
    "Range": ([np.array(1, F32), np.array(6, F32)], {}, {}),
    "Unique": ([np.array([3, 1, np.nan, 2, 1, np.nan, 3, 5], F32)], {}, {}),
    "MatMulInteger16": ([np.array([[-32768, 7]], np.int16), np.array([[32767], [-9]], np.int16)], {}, {}),
}


def test_the_only_opset_of_a_domain_need_not_be_stated(rng: np.random.Generator) -> None:
    # "MatMulNBits is of the domain 'com.microsoft', but the model states no opset for it", as some quantizers of onnxruntime
    model = make_model([node("QuickGelu", "x", "y", domain="com.microsoft", alpha=1.5)], {"x": (np.float32, ["n", 5])}, ["y"])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = rng.standard_normal((3, 5)).astype(np.float32)

    got = tc.compile(model)(x)

    assert not any(entry.domain for entry in model.opset_import)
    np.testing.assert_allclose(got, session.run(None, {"x": x})[0], atol=1e-6)


@pytest.mark.parametrize("op", WITH_OPERANDS)
def test_an_operator_that_onnx_has_too(op: str) -> None:
    arrays, literals, attrs = WITH_OPERANDS[op]
    names = [f"x{k}" for k in range(len(arrays))]
    outputs = "y numbers counts" if op == "Unique" else "y"
    inputs = {name: (array.dtype, array.shape) for name, array in zip(names, arrays, strict=True)}
    made = node(op, " ".join([*names, *literals]), outputs, **attrs, **MS)
    model = make_model([made], inputs, outputs.split(), literals, domains=[("com.microsoft", 1)])
    for info in model.graph.output:
        is_int = info.name in ("numbers", "counts")
        info.type.tensor_type.elem_type = (
            TensorProto.INT64 if is_int else TensorProto.INT32 if op == "MatMulInteger16" else TensorProto.FLOAT
        )
    given = dict(zip(names, arrays, strict=True))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    found = run(load_model(model, on_unsupported="error"), given)

    for a, b in zip(found, session.run(None, given), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def _normal_groups(x: np.ndarray, groups: int, scale: np.ndarray, shift: np.ndarray, is_silu: bool) -> np.ndarray:
    """group_norm of [b, c, h, w], in f64."""
    parts = x.astype(np.float64).reshape(len(x), groups, -1)
    parts = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
    made: np.ndarray = parts.reshape(x.shape) * scale[:, None, None] + shift[:, None, None]
    return made / (1 + np.exp(-made)) if is_silu else made


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("skip", [None, (2, 6), (2, 1, 1, 6), (2, 3, 5, 6)])
def test_norms_of_groups_of_channels(skip: tuple[int, ...] | None, last: bool, dtype: Any, rng: np.random.Generator) -> None:
    """onnxruntime has no kernels of these for CPUs: against their definition."""

    def image(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array if last or array.ndim != 4 else array.transpose(0, 3, 1, 2))

    x, added = (rng.standard_normal(shape).astype(dtype) for shape in ((2, 3, 5, 6), skip or (2, 6)))
    scale, shift, bias = (rng.standard_normal(6).astype(F32 if k < 2 else dtype) for k in range(3))
    arrays = {"x": image(x), "scale": scale, "shift": shift, "skip": image(added), "bias": bias}
    names = list(arrays) if skip else ["x", "scale", "shift"]
    attrs = {"channels_last": int(last), "groups": 3, "activation": int(dtype is np.float16)}
    made = node("SkipGroupNorm" if skip else "GroupNorm", " ".join(names), "y s" if skip else "y", **attrs, **MS)
    inputs = {name: (arrays[name].dtype, list(arrays[name].shape)) for name in names}
    model = make_model([made], inputs, made.output, domains=[("com.microsoft", 1)])

    found = run(load_model(model, on_unsupported="error"), {name: arrays[name] for name in names})

    total = x
    if skip:
        total = (x + (added[:, None, None] if added.ndim == 2 else added)) + bias
        np.testing.assert_array_equal(found[1], image(total))
    whole = _normal_groups(total.transpose(0, 3, 1, 2), 3, scale, shift, bool(attrs["activation"])).transpose(0, 2, 3, 1)
    off = 2e-5 if dtype is np.float32 else 2e-3
    assert found[0].dtype == dtype
    np.testing.assert_allclose(found[0], image(whole), rtol=off, atol=off)


def test_biases_of_diffusion_models(rng: np.random.Generator) -> None:
    x, bias, skip = (rng.standard_normal(shape).astype(F32) for shape in ((2, 3, 8), (8,), (2, 3, 8)))
    nodes = [node("BiasAdd", "x bias skip", "sum", **MS), node("BiasSplitGelu", "x bias", "gated", **MS)]
    inputs = {"x": (F32, [2, "s", 8]), "bias": (F32, [8]), "skip": (F32, [2, "s", 8])}
    model = make_model(nodes, inputs, ["sum", "gated"], domains=[("com.microsoft", 1)])

    total, gated = run(load_model(model, on_unsupported="error"), {"x": x, "bias": bias, "skip": skip})

    np.testing.assert_array_equal(total, x + bias + skip)
    left, right = np.split((x + bias).astype(np.float64), 2, -1)
    gelu = right * 0.5 * (1 + np.vectorize(math.erf)(right / np.sqrt(2)))
    np.testing.assert_allclose(gated, left * gelu, rtol=1e-5, atol=1e-5)


def _check(op: str, arrays: dict[str, np.ndarray], attrs: dict[str, Any], free: dict[str, list[str]], off: float = 1e-5) -> None:
    """Compiled with sizes and without, against onnxruntime."""
    made = node(op, " ".join(arrays), "y", **attrs, **MS)
    for shapes in ({}, free):
        inputs = {name: (array.dtype, shapes.get(name, list(array.shape))) for name, array in arrays.items()}
        model = make_model([made], inputs, ["y"], domains=[("com.microsoft", 1)])
        model.graph.output[0].type.tensor_type.elem_type = model.graph.input[0].type.tensor_type.elem_type
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (expected,) = session.run(None, arrays)

        found = tc.compile(model, threads=2)(*arrays.values())

        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=off, atol=off * np.abs(expected).max(initial=1))


@pytest.mark.parametrize("shape", [(5, 5), (3, 4, 4), (0, 3, 3), (2, 1, 1), (1, 33, 33)])
def test_inverses_of_matrices(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    free = {"x": ["n"] * 2 if len(shape) == 2 else ["b", "n", "n"]}
    _check("Inverse", {"x": rng.standard_normal(shape).astype(F32)}, {}, free, off=1e-4)
    _check("Inverse", {"x": rng.standard_normal(shape)}, {}, free, off=1e-10)


def test_an_inverse_by_rows_that_change_places() -> None:
    _check("Inverse", {"x": np.array([[[0, 1], [1, 0]], [[0, 2], [3, 1]]], F32)}, {}, {})


@pytest.mark.parametrize(
    ("shape", "dim", "size", "step"), [((2, 12), 1, 4, 3), ((7, 3, 2), 0, 7, 2), ((7, 3, 2), -2, 1, 1), ((4,), 0, 2, 5)]
)
def test_runs_along_an_axis(shape: tuple[int, ...], dim: int, size: int, step: int, rng: np.random.Generator) -> None:
    attrs = {"dim": dim, "size": size, "step": step}
    _check("UnfoldTensor", {"x": rng.standard_normal(shape).astype(F32)}, attrs, {"x": ["a", "b", "c"][: len(shape)]})


@pytest.mark.covering
@pytest.mark.parametrize("crop", [(4, 3), (1, 1), (1, 4)])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_crops_of_images(mode: str, crop: tuple[int, int], rng: np.random.Generator) -> None:
    boxes = np.array([[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.6], [-0.2, 0, 1.3, 0.9], [0.9, 0.9, 0.1, 0.1]], F32)
    arrays = {"x": rng.standard_normal((2, 3, 7, 5)).astype(F32), "boxes": boxes, "of": np.array([0, 1, 1, 0], np.int32)}
    arrays["size"] = np.array(crop, np.int32)
    free = {"x": ["n", "c", "h", "w"], "boxes": ["r", "4"], "of": ["r"]}

    _check("CropAndResize", arrays, {"mode": mode, "extrapolation_value": 9.0}, free)


def test_a_crop_of_an_image_that_is_not_there() -> None:
    arrays = {"x": np.zeros((1, 1, 2, 2), F32), "boxes": np.zeros((1, 4), F32), "of": np.array([-1], np.int32)}
    made = node("CropAndResize", "x boxes of size", "y", **MS)
    inputs = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    model = make_model([made], inputs, ["y"], {"size": np.array([2, 2], np.int32)}, domains=[("com.microsoft", 1)])

    with pytest.raises(TcError, match="-1"):
        tc.compile(model)(*arrays.values())


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64])
@pytest.mark.parametrize("seed", [0, 17, 2**32 - 1])
@pytest.mark.parametrize("positive", [0, 1])
def test_hashes_of_numbers(positive: int, seed: int, dtype: type, rng: np.random.Generator) -> None:
    ends = [np.inf, -np.inf, np.nan] if np.dtype(dtype).kind == "f" else [np.iinfo(dtype).min, np.iinfo(dtype).max, 0]
    x = np.concatenate([np.array(ends, dtype), rng.integers(0, 2**31, 9).astype(dtype)])
    model = make_model([node("MurmurHash3", "x", "y", seed=seed, positive=positive, **MS)], {"x": (dtype, ["n"])}, ["y"],
                       domains=[("com.microsoft", 1)])  # fmt: skip
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT32 if positive else TensorProto.INT32
    session, module = onnxruntime.InferenceSession(model.SerializeToString()), tc.compile(model, on_unsupported="error")

    for each in (x, x[:1], x[:0]):
        (expected,), found = session.run(None, {"x": each}), module(each)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_tokens_that_would_repeat_a_run_are_barred(size: int, rng: np.random.Generator) -> None:
    made = node("NGramRepeatBlock", "ids scores", "y", ngram_size=size, **MS)
    inputs = {"ids": (np.int64, ["b", "l"]), "scores": (F32, ["b", "v"])}
    model = make_model([made], inputs, ["y"], domains=[("com.microsoft", 1)])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    session, module = onnxruntime.InferenceSession(model.SerializeToString()), tc.compile(model, on_unsupported="error")

    for length in (0, 1, 2, 3, 4, 30):
        ids, scores = rng.integers(0, 3, (3, length)), rng.standard_normal((3, 5)).astype(F32)
        scores[0, 1] = np.nan
        np.testing.assert_array_equal(module(ids, scores), session.run(None, {"ids": ids, "scores": scores})[0])
    with pytest.raises(TcError, match=r"token 7 is out of range.*TC2004"):
        module(np.full((1, 5), 7), np.zeros((1, 5), F32))


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 1, 2]])
@pytest.mark.parametrize("bias", ["", " b"])
def test_transposed_convolutions_whose_pads_are_data(bias: str, pads: list[int], rng: np.random.Generator) -> None:
    attrs = {"strides": [2, 3], "kernel_shape": [3, 2], "output_padding": [1, 0], "group": 2}
    shapes = {"x": (1, 4, 4, 3), "w": (4, 3, 3, 2)} | ({"b": (6,)} if bias else {})
    arrays = {name: rng.standard_normal(shape).astype(F32) for name, shape in shapes.items()}
    arrays = {"x": arrays["x"], "w": arrays["w"], "p": np.array(pads), **({"b": arrays["b"]} if bias else {})}

    _check("ConvTransposeWithDynamicPads", arrays, attrs, {"x": ["n", 4, "h", "w"]})
