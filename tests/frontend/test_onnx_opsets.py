"""The same operators as old and new opsets write them, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tc.errors import ModelError, ShapeError, UnsupportedError
from tc.frontend.onnx import load_model
from tests.frontend.models import check_against_onnxruntime, make_model, node, operators, run

F32 = np.float32
IMAGE = {"x": (F32, ["n", 3, 6, 8])}
SIZE = (2, 3, 6, 8)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def f32(*values: float) -> np.ndarray:
    return np.array(values, F32)


SIZES = i64(2, 3, 9, 4)
HALF = {"s": f32(1, 1, 2, 0.5)}
# opset, node, constants
CASES: list[tuple[int, Any, dict[str, np.ndarray]]] = [
    (7, node("Slice", "x", "y", starts=[1, -5], ends=[100, -1], axes=[1, 3]), {}),
    (7, node("Slice", "x", "y", starts=[0, 1], ends=[1, 2]), {}),
    (10, node("Slice", "x a b", "y"), {"a": i64(0, 1), "b": i64(1, 3)}),
    (13, node("Slice", "x a b - c", "y"), {"a": i64(0, 2, 5, -1), "b": i64(1, 0, 0, -9), "c": i64(1, -1, -2, -3)}),
    (7, node("Pad", "x", "y", pads=[0, 0, 1, 2, 0, 0, 3, 0], value=1.5), {}),
    (7, node("Pad", "x", "y", pads=[0, 0, 1, 2, 0, 0, 3, 0], mode="reflect"), {}),
    (11, node("Pad", "x p v", "y"), {"p": i64(0, 0, 1, 2, 0, 0, -3, 0), "v": np.array(2, F32)}),
    (13, node("Pad", "x p", "y", mode="edge"), {"p": i64(0, 0, 1, 2, 0, 0, 3, 0)}),
    (18, node("Pad", "x p - a", "y"), {"p": i64(1, 2, 3, 0), "a": i64(-1, 1)}),
    (19, node("Pad", "x p", "y", mode="wrap"), {"p": i64(0, 0, 1, 2, 0, 0, 3, 0)}),
    (7, node("Clip", "x", "y", min=-0.5, max=0.25), {}),
    (7, node("Clip", "x", "y"), {}),
    (11, node("Clip", "x lo", "y"), {"lo": np.array(0.1, F32)}),
    (13, node("Clip", "x - hi", "y"), {"hi": np.array(0.1, F32)}),
    (7, node("Unsqueeze", "x", "y", axes=[0, 4]), {}),
    (13, node("Unsqueeze", "x a", "y"), {"a": i64(-1, 2)}),
    (7, node("ReduceSum", "x", "y", axes=[1, -1], keepdims=0), {}),
    (13, node("ReduceSum", "x a", "y"), {"a": i64(2)}),
    (13, node("ReduceSum", "x", "y", noop_with_empty_axes=1), {}),
    (13, node("ReduceSum", "x", "y"), {}),
    (13, node("ReduceMean", "x", "y", axes=[-2]), {}),
    (18, node("ReduceMean", "x a", "y", keepdims=0), {"a": i64(1, 2)}),
    (18, node("ReduceLogSumExp", "x a", "y"), {"a": i64(3)}),
    (7, node("ReduceL2", "x", "y", axes=[3]), {}),
    (7, node("Dropout", "x", "y", ratio=0.3), {}),
    (12, node("Dropout", "x r", "y"), {"r": np.array(0.3, F32)}),
    (7, node("Softmax", "x", "y"), {}),
    (11, node("Softmax", "x", "y", axis=2), {}),
    (11, node("LogSoftmax", "x", "y", axis=-1), {}),
    (13, node("Softmax", "x", "y", axis=1), {}),
    (13, node("Softmax", "x", "y"), {}),
    (11, node("Hardmax", "x", "y", axis=2), {}),
    (13, node("Hardmax", "x", "y", axis=2), {}),
    (7, node("Split", "x", "y z", axis=3, split=[3, 5]), {}),
    (11, node("Split", "x", "y z", axis=2), {}),
    (13, node("Split", "x s", "y z", axis=-1), {"s": i64(1, 7)}),
    (18, node("Split", "x", "y z", axis=3, num_outputs=2), {}),
    (7, node("Upsample", "x", "y", scales=[1.0, 1.0, 2.0, 3.0]), {}),
    (9, node("Upsample", "x s", "y", mode="linear"), {"s": f32(1, 1, 2, 2)}),
    (10, node("Resize", "x s", "y"), {"s": f32(1, 1, 2, 3)}),
    (11, node("Resize", "x r s", "y"), {**HALF, "r": f32()}),
    (11, node("Resize", "x r r t", "y", mode="linear"), {"r": f32(), "t": SIZES}),
    (13, node("Resize", "x - - t", "y", mode="cubic"), {"t": SIZES}),
    (13, node("Resize", "x - s", "y", mode="linear", coordinate_transformation_mode="asymmetric"), HALF),
    (13, node("Resize", "x - - t", "y", mode="linear", coordinate_transformation_mode="align_corners"), {"t": SIZES}),
    (13, node("Resize", "x - s", "y", coordinate_transformation_mode="pytorch_half_pixel", mode="linear"), HALF),
    (13, node("Resize", "x - s", "y", nearest_mode="ceil", coordinate_transformation_mode="asymmetric"), HALF),
    (18, node("Resize", "x - s", "y", axes=[3, 2]), {"s": f32(2, 1.5)}),
    (18, node("Resize", "x - - t", "y", axes=[2, 3]), {"t": i64(12, 5)}),
    (7, node("BatchNormalization", "x c c c d", "y"), {"c": f32(1, 2, 3), "d": f32(4, 5, 6)}),
    (9, node("BatchNormalization", "x c c c d", "y", epsilon=0.1), {"c": f32(1, 2, 3), "d": f32(4, 5, 6)}),
    (14, node("BatchNormalization", "x c c c d", "y"), {"c": f32(1, 2, 3), "d": f32(4, 5, 6)}),
    (7, node("TopK", "x", "y z", k=3), {}),
    (10, node("TopK", "x k", "y z", axis=2), {"k": i64(2)}),
    (11, node("TopK", "x k", "y z", axis=1, largest=0), {"k": i64(2)}),
    (7, node("Cast", "x", "y", to=TensorProto.INT32), {}),
    (13, node("Cast", "x", "y", to=TensorProto.FLOAT16), {}),
    (7, node("Flatten", "x", "y", axis=2), {}),
    (11, node("Flatten", "x", "y", axis=-1), {}),
    (7, node("MaxPool", "x", "y", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]), {}),
    (10, node("MaxPool", "x", "y", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, dilations=[1, 2]), {}),
    (11, node("MaxPool", "x", "y z", kernel_shape=[2, 2], strides=[2, 2]), {}),
    (11, node("MaxPool", "x", "y", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"), {}),
    (7, node("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1), {}),
    (11, node("AveragePool", "x", "y", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER"), {}),
    (11, node("AveragePool", "x", "y", kernel_shape=[2, 3], strides=[2, 2], auto_pad="VALID"), {}),
    (7, node("GlobalAveragePool", "x", "y"), {}),
    (7, node("GlobalMaxPool", "x", "y"), {}),
    (11, node("DepthToSpace", "t", "y", blocksize=2, mode="CRD"), {"t": np.arange(96, dtype=F32).reshape(1, 8, 3, 4)}),
    (7, node("SpaceToDepth", "x", "y", blocksize=2), {}),
    (11, node("Conv", "x w", "y", auto_pad="SAME_UPPER", strides=[2, 3]), {"w": np.ones((4, 3, 3, 3), F32)}),
    (7, node("Conv", "x w b", "y", group=3, dilations=[2, 1], pads=[2, 0, 2, 1]),
     {"w": np.arange(72, dtype=F32).reshape(6, 1, 3, 4), "b": np.arange(6, dtype=F32)}),
    (11, node("ConvTranspose", "x w", "y", strides=[2, 2], output_padding=[1, 0], pads=[1, 0, 0, 1]),
     {"w": np.arange(54, dtype=F32).reshape(3, 2, 3, 3)}),
    (11, node("ConvTranspose", "x w", "y", strides=[2, 3], auto_pad="SAME_UPPER"),
     {"w": np.arange(54, dtype=F32).reshape(3, 2, 3, 3)}),
    (11, node("ConvTranspose", "x w", "y", strides=[3, 2], output_shape=[20, 18]),
     {"w": np.arange(54, dtype=F32).reshape(3, 2, 3, 3)}),
    (7, node("LRN", "x", "y", size=3), {}),
    (7, node("InstanceNormalization", "x c d", "y"), {"c": f32(1, 2, 3), "d": f32(4, 5, 6)}),
    (9, node("MeanVarianceNormalization", "x", "y"), {}),
    (7, node("Transpose", "x", "y"), {}),
    (9, node("OneHot", "i d v", "y", axis=1), {"i": i64(0, 2, 3), "d": np.array(4), "v": f32(5, 6)}),
    (11, node("OneHot", "i d v", "y", axis=1), {"i": i64(0, 2, -1), "d": np.array(4), "v": f32(5, 6)}),
    (11, node("CumSum", "x a", "y", exclusive=1, reverse=1), {"a": np.array(2)}),
    (9, node("EyeLike", "e", "y", k=1), {"e": np.zeros((3, 4), F32)}),
    (11, node("GatherND", "x i", "y"), {"i": np.array([[0, 1], [1, 2]], np.int64)}),
    (11, node("ScatterElements", "t i u", "y", axis=1),
     {"t": np.zeros((2, 4), F32), "i": np.array([[1, -1]], np.int64), "u": np.ones((1, 2), F32)}),
    (10, node("ReverseSequence", "t l", "y", time_axis=0, batch_axis=1),
     {"t": np.arange(8, dtype=F32).reshape(4, 2), "l": i64(3, 1)}),
]


def case_name(case: tuple[int, Any, dict[str, np.ndarray]]) -> str:
    return f"{case[1].op_type}-{case[0]}"


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_an_operator_of_an_opset(case: tuple[int, Any, dict[str, np.ndarray]], rng: np.random.Generator) -> None:
    opset, made, constants = case
    if made.op_type == "ReduceSum" and any(a.name == "noop_with_empty_axes" for a in made.attribute):
        pytest.importorskip("onnxruntime", minversion="1.24", reason="earlier ones, all there are for Python 3.10, refuse the node")
    model = make_model([made, node("Identity", "x", "unchanged")], IMAGE, [*made.output, "unchanged"], constants, opset)
    x = rng.standard_normal(SIZE).astype(F32)

    imported = check_against_onnxruntime(model, {"x": x}, tolerance=2e-5)

    assert {report.status for report in imported.report} == {"native"}


GEMM = [
    {},
    {"transA": 1},
    {"transB": 1, "alpha": 0.5},
    {"transA": 1, "transB": 1, "beta": 2.0},
    {"beta": 0.0},
]


@pytest.mark.parametrize("attributes", GEMM)
@pytest.mark.parametrize("bias", [(), (5,), (3, 1), (1,)])
def test_gemm(attributes: dict[str, Any], bias: tuple[int, ...], rng: np.random.Generator) -> None:
    a = (4, 3) if attributes.get("transA") else (3, 4)
    b = (5, 4) if attributes.get("transB") else (4, 5)
    inputs = {"a": (F32, a), "b": (F32, b), "c": (F32, bias)}
    model = make_model([node("Gemm", "a b c", "y", **attributes)], inputs, ["y"], opset=13)

    check_against_onnxruntime(
        model, {name: rng.standard_normal(shape).astype(F32) for name, (_, shape) in inputs.items()}
    )


def test_same_padding_of_a_symbolic_image_is_computed_from_its_size(rng: np.random.Generator) -> None:
    inputs = {"x": (F32, [1, 2, "h", "w"])}
    conv = node("Conv", "x k", "y", auto_pad="SAME_LOWER", strides=[2, 2])
    model = make_model([conv], inputs, ["y"], {"k": np.ones((2, 2, 3, 3), F32)})

    for height, width in ((7, 8), (1, 2), (6, 5)):
        check_against_onnxruntime(model, {"x": rng.standard_normal((1, 2, height, width)).astype(F32)})


def test_dropout_in_training_is_refused_unless_its_ratio_is_zero() -> None:
    constants = {"r": np.array(0.5, F32), "zero": np.array(0, F32), "t": np.array(True)}
    random = make_model([node("Dropout", "x r t", "y")], IMAGE, ["y"], constants)
    plain = make_model([node("Dropout", "x zero t", "y mask")], IMAGE, ["y", "mask"], constants)

    with pytest.raises(UnsupportedError, match="random"):
        load_model(random, on_unsupported="error")
    assert operators(load_model(plain)) == ["full"]


def test_constants_of_every_kind() -> None:
    made = helper.make_node
    nodes = [
        made("Constant", [], ["a"], value_float=1.5),
        made("Constant", [], ["b"], value_floats=[1.0, 2.0]),
        made("Constant", [], ["c"], value_int=3),
        made("Constant", [], ["d"], value_ints=[4, 5]),
        made(
            "Constant",
            [],
            ["e"],
            sparse_value=helper.make_sparse_tensor(
                helper.make_tensor("v", TensorProto.FLOAT, [2], [7, 8]),
                helper.make_tensor("i", TensorProto.INT64, [2], [1, 3]),
                [5],
            ),
        ),
        made("Constant", [], ["f"], value=helper.make_tensor("t", TensorProto.BFLOAT16, [2], [1.0, -2.0])),
    ]
    model = make_model(nodes, {}, list("abcdef"))

    results = run(load_model(model), {})

    for found, expected in zip(results, (1.5, [1, 2], 3, [4, 5], [0, 7, 0, 8, 0], [1, -2]), strict=True):
        np.testing.assert_array_equal(found.astype(np.float64), expected)
    assert [r.dtype.name for r in results] == ["float32", "float32", "int64", "int64", "float32", "bfloat16"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64",
                                   "uint32", "uint16", "uint8", "bool"])
def test_typed_fields_hold_values_of_every_dtype(dtype: str) -> None:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = [1, 0, 1] if dtype == "bool" else [1, 100, 7]
    tensor = helper.make_tensor("t", code, [3], values)
    model = make_model([helper.make_node("Constant", [], ["y"], value=tensor)], {}, ["y"])

    (found,) = run(load_model(model), {})

    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array(values, dtype))


def test_pool_geometry_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ShapeError, match="strides has 1 entries for 2"):
        load_model(make_model([node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[1])], IMAGE, ["y"]))


@pytest.mark.parametrize("opset", [10, 11, 12, 13])
def test_scales_of_an_axis_are_read_in_files_of_opsets_before_it(opset: int, rng: np.random.Generator) -> None:
    """Tools that quantize older files write the axis of opset 13 into them."""
    x, scales = rng.standard_normal((3, 4)).astype(F32), f32(0.01, 0.02, 0.03)
    nodes = [node("QuantizeLinear", "x s z", "q", axis=0), node("DequantizeLinear", "q s z", "y", axis=-2)]
    model = make_model(nodes, {"x": (F32, [3, 4])}, ["q", "y"], {"s": scales, "z": np.zeros(3, np.int8)}, opset)

    quantized, back = run(load_model(model), {"x": x})

    np.testing.assert_array_equal(quantized, np.clip(np.round(x / scales[:, None]), -128, 127))
    np.testing.assert_array_equal(back, quantized * scales[:, None])


def test_other_attributes_of_later_opsets_are_refused() -> None:
    nodes = [node("DequantizeLinear", "q s", "y", axis=0, block_size=2)]
    with pytest.raises(ModelError, match="DequantizeLinear of opset 11 has no attribute 'block_size'"):
        load_model(make_model(nodes, {"q": (np.int8, [4])}, ["y"], {"s": f32(1, 2)}, opset=11))
