"""Corners of operators where a runtime and the definition are easily misread; onnxruntime or ONNX's reference has the numbers."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from onnx import TensorProto

import tc
from tc.errors import InputError, ModelError, ShapeError
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


# -- norms


@pytest.mark.parametrize("spread", [1e-5, 3e-5, 1e-3, 0.0])
def test_mean_variance_adds_its_epsilon_to_the_deviation(spread: float) -> None:
    """Not to the variance, as other norms do: rows that differ by 1e-5 came out at a third of their size."""
    x = (normal(4, 37) * spread).astype(F32)
    model = make_model([node("MeanVarianceNormalization", "x", "y", axes=[1])], {"x": (F32, ["n", 37])}, ["y"])
    wide = x.astype(np.float64)
    off = wide - wide.mean(1, keepdims=True)
    expected = (off / (np.sqrt((off * off).mean(1, keepdims=True)) + 1e-9)).astype(F32)
    for found in (run(load_model(model), {"x": x})[0], tc.compile(model)(x)):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    small = np.array([[-1e-5, 1e-5], [-3e-5, 3e-5], [-1e-3, 1e-3]], F32)
    model = make_model([node("MeanVarianceNormalization", "x", "y", axes=[1])], {"x": (F32, [3, 2])}, ["y"])
    check_all(model, {"x": small}, [np.array([[-0.9999, 0.9999], [-0.99996667, 0.99996667], [-0.999999, 0.999999]], F32)])


# -- resizing

COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn", "align_corners", "asymmetric"]


def resize(shape: list[Any], sizes_or_scales: str, constants: dict[str, np.ndarray], **attributes: Any) -> onnx.ModelProto:
    opset = 12 if attributes.get("coordinate_transformation_mode") == "tf_half_pixel_for_nn" else 19
    inputs: dict[str, Any] = {"x": (F32, shape)}
    if "s" not in constants:
        inputs["s"] = (np.int64, [4])
    return make_model([node("Resize", f"x none {sizes_or_scales}", "y", **attributes)], inputs, ["y"], {**constants, "none": NONE}, opset)


@pytest.mark.covering
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


@pytest.mark.covering
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


@pytest.mark.parametrize(("start", "limit", "delta"), [(LEAST, MOST, 1), (MOST, LEAST, -1), (LEAST, 0, 1), (0, MOST, 1)])
def test_a_range_of_more_elements_than_i64_has_numbers_is_refused(start: int, limit: int, delta: int) -> None:
    # Their number wrapped, and there were none.
    model = make_model([node("Range", "s l d", "y")], {name: (np.int64, []) for name in "sld"}, ["y"])

    with pytest.raises(tc.TcError, match="no memory holds a result"):
        tc.compile(model)(*map(np.int64, (start, limit, delta)))


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


# Broke: an internal error, where a stage has more axes than its result.
@pytest.mark.parametrize("tail", [None, "Abs", "Neg"])
@pytest.mark.parametrize(("shape", "index", "update"), [((6,), [1], ()), ((2, 3), [1], (3,)), ((2, 3, 4), [1, 2, 0], ())])
def test_one_place_is_scattered_to(tail: str | None, shape: tuple[int, ...], index: list[int], update: tuple[int, ...]) -> None:
    nodes = [node("ScatterND", "x i u", "s" if tail else "y"), *([node(tail, "s", "y")] if tail else [])]
    arrays = {"x": normal(*shape), "i": np.array(index), "u": np.asarray(normal(*update), np.float32)}
    check_all(make_model(nodes, {name: (each.dtype.type, each.shape) for name, each in arrays.items()}, ["y"]), arrays)


@pytest.mark.parametrize("op", ["IsNaN", "IsInf"])
@pytest.mark.parametrize("kind", [ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e4m3fnuz])
def test_bytes_that_are_no_numbers_are_found(op: str, kind: type) -> None:
    x = np.array([1, np.inf, -np.inf, np.nan, 0], np.float32).astype(kind)
    model = make_model([node(op, "x", "y")], {"x": (kind, [5])}, ["y"], opset=20)

    (y,) = tc.compile(model, on_unsupported="error").run({"x": x}).values()

    np.testing.assert_array_equal(y, {"IsNaN": np.isnan, "IsInf": np.isinf}[op](x.astype(np.float32)))


@pytest.mark.parametrize("shape", [(2,), (1, 2), (2, 2), ()])
def test_a_summand_of_gemm_times_beta_may_be_more_than_its_type_holds(shape: tuple[int, ...]) -> None:
    """Broke: inf where the summand was broadcast, the right sum where it was not."""
    arrays = {"a": np.full((2, 1), -173.2, np.float16), "b": np.full((1, 2), 173.2, np.float16), "c": np.full(shape, 40000, np.float16)}
    model = make_model([node("Gemm", "a b c", "y", beta=2.0)], {k: (np.float16, v.shape) for k, v in arrays.items()}, ["y"])

    (y,) = tc.compile(model).run(arrays).values()

    np.testing.assert_allclose(y, np.full((2, 2), 50000), rtol=2e-3)


def test_a_vector_is_normalized_as_one_channel() -> None:
    arrays = {name: np.array(values, np.float32) for name, values in {"x": [1, 2, 3], "s": [2], "b": [1], "m": [0.5], "v": [4]}.items()}
    model = make_model([node("BatchNormalization", "x s b m v", "y")], {k: (np.float32, v.shape) for k, v in arrays.items()}, ["y"])
    check_all(model, arrays)


def test_erf_of_integers_is_of_integers() -> None:
    model = make_model([node("Erf", "x", "y")], {"x": (np.int32, ["n"])}, ["y"], opset=9)
    (y,) = tc.compile(model, on_unsupported="error").run({"x": np.array([-40, -1, 0, 1, 40], np.int32)}).values()
    np.testing.assert_array_equal(y, [-1, 0, 0, 0, 1])


# Broke: ONNX's definition, log(sum(exp(x))), where the run tells how many axes there are.
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("values", [[[1e4, 1], [2, 3]], [[-1000, -1001], [-800, -900]]])
def test_logarithms_of_sums_of_exponentials_do_not_overflow(dtype: type, values: list[list[float]]) -> None:
    arrays = {"x": np.array(values, dtype), "a": np.array([0])}
    types = {"x": (dtype, [2, 2]), "a": (np.int64, ["k"])}

    (y,) = tc.compile(make_model([node("ReduceLogSumExp", "x a", "y", keepdims=0)], types, ["y"], opset=18)).run(arrays).values()

    np.testing.assert_allclose(y, np.logaddexp(*arrays["x"]), rtol=1e-6)


@pytest.mark.covering(2)
@pytest.mark.parametrize("lengths", [1, "k"])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("step", [-1, -2, 1])
@pytest.mark.parametrize("start", [-9, -4, -2, 0, 2, 9])
def test_starts_before_the_first_element_are_at_it(start: int, step: int, size: int, lengths: Any) -> None:
    """Broke: nothing was left where the number of axes is known at the call only."""
    arrays = {"x": np.arange(size, dtype=np.float32), **{n: np.array([v]) for n, v in zip("seat", (start, -(2**31), 0, step), strict=True)}}
    types = {"x": (np.float32, ["n"]), **{name: (np.int64, [lengths]) for name in "seat"}}
    model = make_model([node("Slice", "x s e a t", "y")], types, ["y"])

    (y,) = tc.compile(model).run(arrays).values()
    known = {**{name: array for name, array in arrays.items() if name != "x"}, "c": np.arange(size)}
    (z,) = tc.compile(make_model([node("Identity", "c", "x"), node("Slice", "x s e a t", "y")], {}, ["y"], known)).run({}).values()

    for result in (y, z):
        np.testing.assert_array_equal(result, onnxruntime.InferenceSession(model.SerializeToString()).run(None, arrays)[0])


@pytest.mark.covering(2)
@pytest.mark.parametrize("wanted", [TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_are_as_exact_as_their_type(op: str, periodic: int, wanted: int) -> None:
    terms = {"HannWindow": (0.5, 0.5, 0), "HammingWindow": (25 / 46, 21 / 46, 0), "BlackmanWindow": (0.42, 0.5, 0.08)}[op]
    model = make_model([node(op, "n", "y", periodic=periodic, output_datatype=wanted)], {"n": (np.int64, [])}, ["y"])
    for size in (0, 2, 9, 1000):
        angle = 2 * np.pi * np.arange(size) / max(size - 1 + periodic, 1)
        expected = terms[0] - terms[1] * np.cos(angle) + terms[2] * np.cos(2 * angle)

        (y,) = tc.compile(model).run({"n": np.array(size)}).values()

        assert y.dtype == onnx.helper.tensor_dtype_to_np_dtype(wanted)
        is_near_one = np.abs(expected - 1) < 1e-6
        tolerance = 1e-15 if wanted == TensorProto.DOUBLE else np.finfo(y.dtype).eps if y.dtype.kind == "f" else 0
        np.testing.assert_allclose(y[~is_near_one], expected.astype(y.dtype)[~is_near_one], rtol=tolerance, atol=tolerance)


def test_a_size_of_a_grid_may_have_any_declared_length() -> None:
    theta = normal(2, 2, 3)
    model = make_model([node("AffineGrid", "t s", "y")], {"t": (np.float32, ["b", 2, "c"]), "s": (np.int64, ["k"])}, ["y"], opset=20)
    arrays = {"t": theta, "s": np.array([2, 3, 4, 5])}
    np.testing.assert_allclose(
        tc.compile(model, on_unsupported="error").run(arrays)["y"],
        onnx.reference.ReferenceEvaluator(model).run(None, arrays)[0],
        rtol=1e-5,
        atol=1e-6,
    )


# Broke: the last channels were not written.
@pytest.mark.parametrize("opset", [18, 21])
def test_groups_that_do_not_divide_the_channels_are_refused(opset: int) -> None:
    types = {"x": (np.float32, ["n", "c", 5]), **{name: (np.float32, ["g"]) for name in "sb"}}
    module = tc.compile(make_model([node("GroupNormalization", "x s b", "y", num_groups=4)], types, ["y"], opset=opset))
    for channels in (8, 12, 7, 3):
        x, ones = normal(2, channels, 5), np.ones(4 if opset == 18 else channels, np.float32)
        if channels % 4:
            with pytest.raises(InputError, match=f"c = {channels}"):
                module(x, ones, ones * 0)
        else:
            grouped = x.reshape(2, 4, -1)
            expected = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(grouped.var(2, keepdims=True) + 1e-5)
            np.testing.assert_allclose(module(x, ones, ones * 0), expected.reshape(x.shape), rtol=1e-5, atol=1e-5)
    with pytest.raises(ShapeError, match="4 groups do not divide"):
        static = {**types, "x": (np.float32, [1, 6, 2])}
        tc.compile(make_model([node("GroupNormalization", "x s b", "y", num_groups=4)], static, ["y"], opset=opset))


@pytest.mark.parametrize(("stash_type", "is_exact"), [(1, False), (11, True)])
def test_groups_of_doubles_are_normalized_in_the_type_that_the_node_says(stash_type: int, is_exact: bool) -> None:
    nodes = [node("GroupNormalization", "x s b", "y", num_groups=2, stash_type=stash_type)]
    model = make_model(nodes, {"x": (np.float64, ["n", 4, 5]), **{name: (np.float64, [4]) for name in "sb"}}, ["y"], opset=21)
    rng = np.random.default_rng(0)
    x, scale, shift = rng.standard_normal((2, 4, 5)) + 1e3, rng.standard_normal(4), rng.standard_normal(4)
    grouped = x.reshape(2, 2, -1)
    centred = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(grouped.var(2, keepdims=True) + 1e-5)
    expected = centred.reshape(x.shape) * scale[:, None] + shift[:, None]

    found = tc.compile(model)(x, scale, shift)

    error = np.abs(found - expected).max()
    assert found.dtype == np.float64
    assert error < 1e-9 if is_exact else 1e-6 < error < 1e-2


# -- pools


@pytest.mark.covering
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 3), (3, 2), (1, 2), (2, 5)])
def test_places_of_maxima_of_images_of_any_size(auto: str, kernel: int, stride: int) -> None:
    """Padding that depends on sizes left them to a kernel in Python; elements that it leaves out were refused."""
    made = node("MaxPool", "x", "y i", kernel_shape=[kernel, kernel], strides=[stride, stride], auto_pad=auto)
    model = make_model([made], {"x": (F32, ["n", 2, "h", "w"])}, ["y", "i"])
    assert [report.status for report in tc.inspect(model).nodes] == ["native"]
    lowest = np.full((1, 2, 3, 5), -np.inf, F32)

    for x in (normal(1, 2, 7, 8), normal(2, 2, 1, 1), normal(1, 2, 3, 9), lowest):
        check_all(model, {"x": x})


@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_pools_of_four_spatial_axes(ceil_mode: int) -> None:
    """They were left to ONNX's reference, which has maxima of three. Two pools of two axes each are the same."""
    kernel, strides, pads = [2, 3, 1, 2], [2, 2, 1, 3], [1, 1, 0, 0, 0, 1, 0, 1]
    attrs = {"kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": ceil_mode}
    model = make_model([node("MaxPool", "x", "y", **attrs)], {"x": (F32, ["n", "c", "a", "b", "d", "e"])}, ["y"])
    pairs = [
        make_model([node("MaxPool", "x", "y", kernel_shape=kernel[k : k + 2], strides=strides[k : k + 2],
                         pads=pads[k : k + 2] + pads[k + 4 : k + 6], ceil_mode=ceil_mode)], {"x": (F32, ["n", "c", "h", "w"])}, ["y"])
        for k in (0, 2)
    ]  # fmt: skip
    assert [report.status for report in tc.inspect(model).nodes] == ["native"]

    for shape in ((1, 2, 5, 4, 3, 6), (2, 1, 2, 3, 1, 2)):
        x = normal(*shape)
        (last,) = run_onnxruntime(pairs[1], {"x": x.reshape(-1, 1, *shape[4:])})
        swapped = np.moveaxis(last.reshape(*shape[:4], *last.shape[2:]), (2, 3), (4, 5))
        (first,) = run_onnxruntime(pairs[0], {"x": swapped.reshape(-1, 1, *shape[2:4])})
        expected = np.moveaxis(first.reshape(*swapped.shape[:4], *first.shape[2:]), (4, 5), (2, 3))
        check_all(model, {"x": x}, [np.ascontiguousarray(expected)])


def test_an_activation_of_slope_0_is_computed() -> None:
    # Broke: 1 over it was computed when the model was compiled.
    x = np.array([-2, -0.5, 0, 1, np.inf, -np.inf], F32)
    model = make_model([node("Celu", "x", "y", alpha=0.0)], {"x": (F32, ["n"])}, ["y"], opset=12)

    np.testing.assert_array_equal(tc.compile(model)(x), run_onnxruntime(model, {"x": x})[0])


# The variance was the mean of squares less the square of the mean, in f32 whatever the elements are: NaN for large means.
@pytest.mark.parametrize("dtype, offset", [(np.float64, 0.0), (np.float64, 1e8), (np.float32, 0.0), (np.float32, 1e4), (np.float16, 8.0)])
@pytest.mark.parametrize("axis", [-1, 1])
def test_mean_and_deviation_of_a_layer_are_as_accurate_as_the_layer(dtype: type, offset: float, axis: int) -> None:
    shape = (3, 4, 250)
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) + offset).astype(dtype)
    scale, shift = rng.standard_normal((2, *shape[axis:])).astype(dtype)
    layer = node("LayerNormalization", "x s b", "y mean inverse", axis=axis)
    inputs = {"x": (dtype, ["n", 4, 250]), "s": (dtype, shape[axis:]), "b": (dtype, shape[axis:])}
    model = make_model([layer], inputs, ["y", "mean", "inverse"])

    y, mean, inverse = tc.compile(model)(x, scale, shift)

    over = (1, 2) if axis == 1 else (2,)
    exact = x.astype(np.longdouble)
    away = exact - exact.mean(over, keepdims=True)
    deviation = np.sqrt((away**2).mean(over, keepdims=True) + np.float32(1e-5))  # the attribute is one of f32
    assert (y.dtype, mean.dtype, inverse.dtype) == (dtype, np.float32, np.float32) and mean.shape == inverse.shape == deviation.shape
    unit, depth = 2.0**-53 if dtype == np.float64 else 2.0**-24, 4 + np.log2(away[0].size)  # as README has it, before scale and shift
    error = (depth + 3) * unit * (abs(offset) + 1) + (depth / 2 + 8) * unit * 5
    np.testing.assert_allclose(mean, exact.mean(over, keepdims=True), rtol=2.0**-23, atol=depth * unit * (offset + 1))
    np.testing.assert_allclose(inverse, 1 / deviation, rtol=2.0**-23 + depth * unit + (depth * unit * (offset + 1)) ** 2)
    rounding = {"rtol": 2.0**-10, "atol": 2.0**-10} if dtype == np.float16 else {"rtol": 4 * unit, "atol": 4 * unit}
    np.testing.assert_allclose(y, away / deviation * scale + shift, rtol=rounding["rtol"], atol=5 * error + rounding["atol"])


# -- sizes that nothing has


@pytest.mark.parametrize("reach", [2**30, 2**35, 2**38])
@pytest.mark.parametrize("op", ["Conv", "MaxPool"])
def test_padding_whose_bytes_64_bits_do_not_count(op: str, reach: int) -> None:
    """Of (h + 2^39) (w + 2^39) 64 the number 2^84 was taken for 0, and memory was written that was not there."""
    attrs = {"dilations": [reach] * 2, "pads": [reach] * 4, "kernel_shape": [3, 3]}
    nodes = [node("Conv", "x w", "y", **attrs)] if op == "Conv" else [node("MaxPool", "x", "y", **attrs)]
    literals = {"w": np.ones((16, 16, 3, 3), F32)} if op == "Conv" else {}
    module = tc.compile(make_model(nodes, {"x": (F32, [1, 16, "h", "w"])}, ["y"], literals), threads=1)
    try:
        found = module(np.ones((1, 16, 3, 3), F32))
    except tc.TcError as error:
        assert "no memory holds" in str(error) or "the call needs" in str(error)
    else:
        assert (found == (16 if op == "Conv" else 1)).all()


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("reach", [2**41, 2**61, 2**62, 2**63 - 1])
@pytest.mark.parametrize("attr", ["dilations", "pads"])
def test_windows_further_than_any_dim_are_refused(op: str, reach: int, attr: str) -> None:
    attrs = {attr: [reach] * (2 if attr == "dilations" else 4), "kernel_shape": [3, 3]}
    is_conv = op.startswith("Conv")
    literals = {"w": np.ones((4, 4, 3, 3), F32)} if is_conv else {}
    nodes = [node(op, "x w" if is_conv else "x", "y", **attrs)]
    for dims in ([1, 4, 3, 3], [1, 4, "h", "w"]):
        with pytest.raises(tc.TcError, match="elements along an axis"):
            tc.compile(make_model(nodes, {"x": (F32, dims)}, ["y"], literals, opset=19))
