"""Corners of operators where a runtime and the definition are easily misread; onnxruntime or ONNX's reference has the numbers."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest

import tc
from tc.errors import ModelError, ShapeError
from tc.frontend.onnx import load_model
from tests.frontend.models import make_model, node, run, run_onnxruntime

F32 = np.float32
NONE = np.zeros(0, F32)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


def check_all(model: onnx.ModelProto, arrays: dict[str, np.ndarray], expected: list[np.ndarray] | None = None) -> None:
    """The reference interpreter and machine code against onnxruntime, or against `expected`."""
    wanted = run_onnxruntime(model, arrays) if expected is None else expected
    compiled = tc.compile(model)
    for found in (run(load_model(model), arrays), list(compiled.run(arrays).values())):
        for a, b in zip(found, wanted, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# -- resizing

COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn", "align_corners", "asymmetric"]


def resize(shape: list[Any], sizes_or_scales: str, constants: dict[str, np.ndarray], **attributes: Any) -> onnx.ModelProto:
    opset = 12 if attributes.get("coordinate_transformation_mode") == "tf_half_pixel_for_nn" else 19
    inputs: dict[str, Any] = {"x": (F32, shape)}
    if "s" not in constants:
        inputs["s"] = (np.int64, [4])
    return make_model([node("Resize", f"x none {sizes_or_scales}", "y", **attributes)], inputs, ["y"], {**constants, "none": NONE}, opset)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_to_sizes_reads_the_places_that_onnxruntime_reads(mode: str, coordinates: str) -> None:
    # Centred where nothing was rounded off; pytorch's rule for one element forgotten where sizes came at run time.
    x = normal(1, 2, 5, 7)
    model = resize([1, 2, "h", "w"], "none s", {}, mode=mode, coordinate_transformation_mode=coordinates)
    compiled, imported = tc.compile(model), load_model(model)
    for sizes in product([1], [2], [1, 3, 5, 9], [1, 4, 7, 14]):
        arrays = {"x": x, "s": np.array(sizes)}
        (expected,) = run_onnxruntime(model, arrays)
        np.testing.assert_allclose(compiled.run(arrays)["y"], expected, rtol=1e-4, atol=1e-5, err_msg=str(sizes))
        np.testing.assert_allclose(run(imported, arrays)[0], expected, rtol=1e-4, atol=1e-5, err_msg=str(sizes))


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("shape", [[1, 2, 5, 7], [1, 2, "h", "w"]], ids=str)
@pytest.mark.parametrize("scales", [[1, 1, 0.6, 0.6], [1, 1, 1.2, 2.3]], ids=str)
def test_resize_by_scales_reads_the_places_that_onnxruntime_reads(scales: list[float], shape: list[Any], coordinates: str) -> None:
    # An axis that keeps its size under a scale of 1.2 was copied, one of 7 that becomes 14 under 2.3 doubled.
    constants = {"s": np.array(scales, F32)}
    for mode in ("linear", "nearest"):
        check_all(resize(shape, "s", constants, mode=mode, coordinate_transformation_mode=coordinates), {"x": normal(1, 2, 5, 7)})


@pytest.mark.parametrize("scales", [[1, 1, 0.6, 0.6], [1, 1, 1.7, 0.5], [1, 1, 0.25, 2.0]], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_the_first_resize_rounds_up_where_it_shrinks(mode: str, scales: list[float]) -> None:
    # It always rounded down.
    model = make_model([node("Resize", "x s", "y", mode=mode)], {"x": (F32, [1, 2, "h", 7])}, ["y"], {"s": np.array(scales, F32)}, 10)

    check_all(model, {"x": normal(1, 2, 5, 7)})


def test_a_scale_that_is_not_positive_is_refused() -> None:
    model = make_model([node("Resize", "x s", "y")], {"x": (F32, [1, 4])}, ["y"], {"s": np.array([1, -2], F32)}, 10)

    with pytest.raises(ModelError, match="the_y: Resize: scales must be positive"):
        load_model(model)


# -- regions and boxes


@pytest.mark.parametrize("sampling_ratio", [0, 2])
@pytest.mark.parametrize("opset", [10, 16])
def test_regions_of_opset_10_have_no_half_pixel_offset(opset: int, sampling_ratio: int) -> None:
    attributes = {"output_height": 3, "output_width": 2, "sampling_ratio": sampling_ratio, "spatial_scale": 0.9}
    inputs = {"x": (F32, ["n", 3, 9, 8]), "r": (F32, ["k", 4]), "b": (np.int64, ["k"])}
    model = make_model([node("RoiAlign", "x r b", "y", **attributes)], inputs, ["y"], opset=opset)
    regions = np.array([[0.3, 0.4, 4, 5], [1, 1, 7, 7.5]], F32)

    check_all(model, {"x": normal(2, 3, 9, 8), "r": regions, "b": np.array([0, 1])})


@pytest.mark.parametrize("opset", [10, 11])
@pytest.mark.parametrize("inputs", ["b s", "b s m", "b s m i", "b s m - t", "b s m i t"])
def test_boxes_are_chosen_with_any_of_the_optional_inputs_left_out(inputs: str, opset: int) -> None:
    # "internal error: TypeError"
    constants = {"m": np.array([3]), "i": np.array([0.2], F32), "t": np.array([0.3], F32)}
    used = {name: array for name, array in constants.items() if name in inputs}
    model = make_model(
        [node("NonMaxSuppression", inputs, "y")], {"b": (F32, [1, 6, 4]), "s": (F32, [1, 2, 6])}, ["y"], used, opset
    )
    rng = np.random.default_rng(0)
    boxes = np.sort(rng.uniform(0, 1, (1, 6, 2, 2)), axis=2).reshape(1, 6, 4).astype(F32)

    check_all(model, {"b": boxes, "s": rng.uniform(0, 1, (1, 2, 6)).astype(F32)})


# -- convolutions, normalisation, quantization


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_a_transposed_convolution_with_gaps_between_its_kernels_is_centred(kernel: int, auto_pad: str) -> None:
    # All of what was missing came behind.
    model = make_model(
        [node("ConvTranspose", "x w", "y", auto_pad=auto_pad, strides=[5])],
        {"x": (F32, [1, 2, 4])}, ["y"], {"w": normal(2, 3, kernel)}, 22,
    )  # fmt: skip
    x = normal(1, 2, 4)

    check_all(model, {"x": x}, onnx.reference.ReferenceEvaluator(model).run(None, {"x": x}))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_normalization_of_opset_18_scales_by_group(groups: int) -> None:
    # It was called removed.
    x, scale, bias = normal(2, 4, 3, 5), normal(groups), normal(groups, 1).reshape(-1)
    model = make_model(
        [node("GroupNormalization", "x s b", "y", num_groups=groups)], {"x": (F32, ["n", 4, 3, 5])}, ["y"], {"s": scale, "b": bias}, 18
    )
    parts = x.reshape(2, groups, -1).astype(np.float64)
    parts = (parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + 1e-5)
    expected = (parts * scale[None, :, None] + bias[None, :, None]).reshape(x.shape).astype(F32)

    check_all(model, {"x": x}, [expected])


def test_group_normalization_of_opset_18_refuses_a_scale_for_each_channel() -> None:
    model = make_model(
        [node("GroupNormalization", "x s s", "y", num_groups=2)], {"x": (F32, [1, 4, 3])}, ["y"], {"s": normal(4)}, 18
    )

    with pytest.raises(ShapeError, match=r"the_y: GroupNormalization of opset 18: scale and bias must be \[2\]"):
        load_model(model)


@pytest.mark.parametrize("values", [[0, 0, 0], [3, 3], [-2, -2], [-1, 0.5, 2], [1e-40, 0]], ids=str)
def test_quantizing_by_the_range_of_the_data_has_a_scale_for_zeros(values: list[float]) -> None:
    # Zeros gave a scale of 0, which divides.
    model = make_model([node("DynamicQuantizeLinear", "x", "y s z")], {"x": (F32, ["n"])}, ["y", "s", "z"])

    check_all(model, {"x": np.array(values, F32)})


@pytest.mark.parametrize("op", ["LeakyRelu", "HardSigmoid", "Shrink", "Selu"])
def test_default_attributes_are_floats_beside_doubles_too(op: str) -> None:
    # 0.01 was taken as a double; the file format has no such attribute.
    model = make_model([node(op, "x", "y")], {"x": (np.float64, ["n"])}, ["y"])
    defaults = [(a.name, float(a.default_value.f)) for a in onnx.defs.get_schema(op, 17).attributes.values()]
    stated = make_model([node(op, "x", "y", **dict(defaults))], {"x": (np.float64, ["n"])}, ["y"])
    x = np.random.default_rng(0).standard_normal(50)

    np.testing.assert_array_equal(tc.compile(model)(x), tc.compile(stated)(x))
    assert np.abs(tc.compile(model)(x) - onnx.reference.ReferenceEvaluator(stated).run(None, {"x": x})[0]).max() < 1e-15


# -- numbers at the ends of i64

LEAST, MOST = -(2**63), 2**63 - 1


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [LEAST, LEAST + 1, MOST])
def test_a_diagonal_outside_of_every_matrix_keeps_all_or_nothing(k: int, upper: int) -> None:
    # Its sum with an index wrapped, where the sizes of the matrix are known when it runs.
    model = make_model([node("Trilu", "x k", "y", upper=upper)], {"x": (F32, ["a", "b"])}, ["y"], {"k": np.array(k)})
    x = normal(5, 6)

    check_all(model, {"x": x}, [x if (k < 0) == bool(upper) else np.zeros_like(x)])


@pytest.mark.parametrize("places", ["constants", "inputs"])
@pytest.mark.parametrize(
    ("start", "end", "step"), [(LEAST, 3, MOST), (0, MOST, MOST), (-7, LEAST, LEAST), (MOST, LEAST, -(2**62)), (0, 3, LEAST)]
)
def test_a_step_longer_than_every_axis_takes_one_element_or_none(start: int, end: int, step: int, places: str) -> None:
    # What rounds a number of elements up was added to the step, and wrapped.
    arrays = {"x": normal(6), "s": np.array([start]), "e": np.array([end])}
    kept = ["x"] if places == "constants" else list(arrays)
    constants = {"a": np.array([0]), "t": np.array([step])} | {name: array for name, array in arrays.items() if name not in kept}
    inputs = {name: (arrays[name].dtype, ["n" if name == "x" else 1]) for name in kept}

    check_all(make_model([node("Slice", "x s e a t", "y")], inputs, ["y"], constants), {name: arrays[name] for name in kept})


@pytest.mark.parametrize("bits", [64, 32])
@pytest.mark.parametrize(
    ("start", "limit", "delta"), [(0, MOST, 2**62), (LEAST, MOST, 2**62), (MOST, LEAST, -(2**62)), (LEAST, 0, MOST), (MOST, 0, LEAST)]
)
def test_a_range_between_ends_further_apart_than_its_type_is_wide(start: int, limit: int, delta: int, bits: int) -> None:
    # The distance wrapped, and what was added to the step.
    dtype = np.dtype(f"int{bits}")
    numbers = [value >> (64 - bits) for value in (start, limit, delta)]
    model = make_model([node("Range", "s l d", "y")], {name: (dtype, []) for name in "sld"}, ["y"])

    check_all(model, {name: np.array(value, dtype) for name, value in zip("sld", numbers, strict=True)}, [np.array(range(*numbers), dtype)])


@pytest.mark.parametrize("pads", [(MOST, MOST), (LEAST, 0), (-7, 0), (LEAST + 1, LEAST)])
@pytest.mark.parametrize("places", ["constants", "inputs"])
def test_pads_that_leave_no_size_are_refused(pads: tuple[int, int], places: str) -> None:
    # The size wrapped, and so did the negative of a pad.
    arrays = {"x": normal(6), "p": np.array(pads)}
    inputs: dict[str, Any] = {"x": (F32, ["n"])} | ({"p": (np.int64, [2])} if places == "inputs" else {})

    with pytest.raises(tc.TcError, match=r"[Pp]ad"):
        tc.compile(make_model([node("Pad", "x p", "y")], inputs, ["y"], {} if places == "inputs" else {"p": arrays["p"]})).run(
            {name: arrays[name] for name in inputs}
        )
