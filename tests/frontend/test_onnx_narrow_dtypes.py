"""Models with floats of 8 bits and 4 and integers that share bytes, against the reference evaluator of the onnx package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tc

FLOAT8 = (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ)
RANGES = {TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15), TensorProto.INT2: (-2, 1), TensorProto.UINT2: (0, 3)}
FLOAT4, EXPONENTS = TensorProto.FLOAT4E2M1, TensorProto.FLOAT8E8M0
NARROW = [*FLOAT8, FLOAT4, *RANGES]
F32 = TensorProto.FLOAT
Value = tuple[str, int, tuple[int | str, ...]]


def _numpy(code: int) -> np.dtype:
    return helper.tensor_dtype_to_np_dtype(code)


def _model(nodes: list[onnx.NodeProto], inputs: list[Value], outputs: list[Value], **values: np.ndarray) -> onnx.ModelProto:
    literals = [onnx.numpy_helper.from_array(value, name) for name, value in values.items()]
    ends = ([helper.make_tensor_value_info(*each) for each in part] for part in (inputs, outputs))
    graph = helper.make_graph(nodes, "g", *ends, literals)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)


def _random(code: int, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if code in RANGES:
        low, high = RANGES[code]
        return rng.integers(low, high + 1, shape).astype(_numpy(code))
    if code == EXPONENTS:
        return rng.integers(0, 256, shape).astype(np.uint8).view(_numpy(code))
    return (rng.standard_normal(shape) * 30).astype(_numpy(code))


def _require_as_reference(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> tc.CompiledModule:
    """That the model runs natively, and gives the reference's values, zeros with their signs."""
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(model).run(None, feeds)
    compiled = tc.compile(model)

    found = list(compiled.run(feeds).values())

    assert "reference kernel" not in str(compiled.report())
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        a, b = one.astype(np.float64), other.astype(np.float64)
        assert one.dtype == other.dtype
        assert np.array_equal(a, b, equal_nan=True)
        assert np.array_equal(np.signbit(a[a == a]), np.signbit(b[b == b]))
    return compiled


@pytest.mark.covering
@pytest.mark.parametrize("to", FLOAT8, ids=TensorProto.DataType.Name)
@pytest.mark.parametrize("saturate", [0, 1])
def test_casts_to_8_bit_floats_saturate_if_asked(to: int, saturate: int, rng: np.random.Generator) -> None:
    for source in (F32, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.INT32):
        with np.errstate(all="ignore"):
            x = rng.standard_normal((5, 33)) * 10.0 ** rng.integers(-3, 6, (5, 33))
            if source != TensorProto.INT32:
                x[0, :6] = [np.inf, -np.inf, np.nan, -0.0, 448.0, 465.0]
            x = x.astype(_numpy(source))
        node = helper.make_node("Cast", ["x"], ["y"], to=to, saturate=saturate)
        _require_as_reference(_model([node], [("x", source, x.shape)], [("y", to, x.shape)]), {"x": x})


@pytest.mark.parametrize("code", [*NARROW, EXPONENTS], ids=TensorProto.DataType.Name)
def test_narrow_types_are_cast_to_others(code: int, rng: np.random.Generator) -> None:
    targets = (F32, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.BOOL)
    x = np.clip(np.nan_to_num(_random(code, (3, 11), rng).astype(np.float32)), -99, 99).astype(_numpy(code))
    nodes = [helper.make_node("Cast", ["x"], [f"y{to}"], to=to) for to in targets]
    model = _model(nodes, [("x", code, x.shape)], [(f"y{to}", to, x.shape) for to in targets])

    _require_as_reference(model, {"x": x})


def test_casts_to_floats_of_4_bits(rng: np.random.Generator) -> None:
    """They round once, to even, and saturate whatever the attribute says."""
    sources = (F32, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT8, TensorProto.BOOL)
    for source in sources:
        x = rng.standard_normal((3, 33)) * 4
        if source not in sources[4:]:
            x[0, :16] = [np.inf, -np.inf, np.nan, -0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0, 7.0, 1e4, 1e-6, -0.3]
        x = x.astype(_numpy(source))
        nodes = [helper.make_node("Cast", ["x"], [f"y{saturate}"], to=FLOAT4, saturate=saturate) for saturate in (0, 1)]
        _require_as_reference(_model(nodes, [("x", source, x.shape)], [("y0", FLOAT4, x.shape), ("y1", FLOAT4, x.shape)]), {"x": x})


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_casts_to_powers_of_two_round_as_asked(mode: str, saturate: int, rng: np.random.Generator) -> None:
    """As the reference evaluator where it and ONNX's text agree: in the range of normal f32, without infinities."""
    for source in (F32, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT32):
        x = np.exp2(rng.uniform(-14, 15, (5, 33)))
        if source != TensorProto.INT32:
            x[0, :8] = [1.0, 2.0, 1.5, np.nan, 1.25, 3.0, 6.0, 2.0**-14]
        else:
            x += 1
        x = x.astype(_numpy(source))
        x[1] = 2.0 ** rng.integers(0, 14, 33)
        node = helper.make_node("Cast", ["x"], ["y"], to=EXPONENTS, saturate=saturate, round_mode=mode)
        _require_as_reference(_model([node], [("x", source, x.shape)], [("y", EXPONENTS, x.shape)]), {"x": x})
    bits = np.concatenate([e * 2**23 + np.array([0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFF]) for e in range(1, 254)])
    x = bits.astype(np.uint32).view(np.float32)
    _require_as_reference(_model([node], [("x", F32, x.shape)], [("y", EXPONENTS, x.shape)]), {"x": x})


@pytest.mark.parametrize(
    ("saturate", "mode", "expected"),
    [
        (1, "up", [0, 0, 0, 0, 0, 1, 1, 254, 254, 254, 255, 0]),
        (1, "down", [0, 0, 0, 0, 0, 0, 0, 254, 254, 254, 255, 0]),
        (1, "nearest", [0, 0, 0, 0, 0, 0, 1, 254, 254, 254, 255, 0]),
        (0, "up", [255, 255, 255, 255, 0, 1, 1, 254, 255, 255, 255, 255]),
        (0, "down", [255, 255, 255, 255, 0, 0, 0, 254, 254, 255, 255, 255]),
        (0, "nearest", [255, 255, 255, 255, 0, 0, 1, 254, 255, 255, 255, 255]),
    ],
)
def test_what_is_no_power_of_two_in_range_is_as_the_table_of_onnx_says(saturate: int, mode: str, expected: list[int]) -> None:
    """The reference evaluator takes exponents as they are, makes NaN of infinities, and ignores signs."""
    least, most = 2.0**-127, 2.0**127
    numbers = [0.0, -0.0, 1e-45, least / 2, least, least * 1.25, least * 1.5, most, most * 1.5, np.inf, np.nan, -1.0]
    for source in (F32, TensorProto.DOUBLE):
        x = np.array(numbers, _numpy(source))
        node = helper.make_node("Cast", ["x"], ["y"], to=EXPONENTS, saturate=saturate, round_mode=mode)
        found = tc.compile(_model([node], [("x", source, x.shape)], [("y", EXPONENTS, x.shape)]))(x)

        assert found.view(np.uint8).tolist() == expected
    node = helper.make_node("Cast", ["x"], ["y"], to=EXPONENTS, round_mode="around")
    with pytest.raises(tc.TcError, match="round_mode is 'around'"):
        tc.compile(_model([node], [("x", F32, (3,))], [("y", EXPONENTS, (3,))]))


def test_microscaled_weights_are_saved_and_loaded(rng: np.random.Generator, tmp_path: Path) -> None:
    """Blocks of 4-bit numbers, each with a power of two, in an odd number of elements; a dim that the call decides."""
    codes = rng.integers(0, 16, (7, 33)).astype(np.uint8).view(_numpy(FLOAT4))
    scale = rng.integers(120, 134, (1, 33)).astype(np.uint8).view(_numpy(EXPONENTS))
    nodes = [
        helper.make_node("Cast", ["s"], ["wide"], to=F32),
        helper.make_node("DequantizeLinear", ["w", "wide"], ["d"], axis=0, block_size=7),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    compiled = tc.compile(_model(nodes, [("x", F32, ("n", 7))], [("y", F32, ("n", 33))], w=codes, s=scale))
    compiled.save(tmp_path / "m.tcm")
    loaded = tc.load(tmp_path / "m.tcm")
    for count in (0, 1, 5):
        x = rng.standard_normal((count, 7)).astype(np.float32)
        expected = x.astype(np.float64) @ (codes.astype(np.float64) * scale.astype(np.float64))

        np.testing.assert_allclose(compiled(x), expected, rtol=1e-5, atol=1e-4)
        assert np.array_equal(loaded(x), compiled(x))


@pytest.mark.covering
@pytest.mark.parametrize("granularity", ["tensor", "axis", "block"])
@pytest.mark.parametrize("code", NARROW, ids=TensorProto.DataType.Name)
def test_tensors_are_quantized_and_back(code: int, granularity: str, rng: np.random.Generator) -> None:
    for shape, axis, block in (((7,), 0, 3), ((3, 5), 1, 2), ((4, 6, 9), 1, 4), ((2, 33), 1, 32)):
        blocks = tuple(-(-dim // block) if k == axis else dim for k, dim in enumerate(shape))
        places = {"tensor": (), "axis": (shape[axis],), "block": blocks}[granularity]
        attrs = {"axis": axis} | ({"block_size": block} if granularity == "block" else {})
        x, scale = (rng.standard_normal(shape) * 60).astype(np.float32), rng.uniform(0.5, 9, places).astype(np.float32)
        zero = _random(code, places, rng) if code in RANGES else np.zeros(places, _numpy(code))
        there = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attrs)
        back = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attrs)
        ends: list[Value] = [("q", code, shape), ("y", F32, shape)]
        given: list[Value] = [("x", F32, shape), ("s", F32, places), ("z", code, places)]

        _require_as_reference(_model([there, back], given, ends), {"x": x, "s": scale, "z": zero})
        _require_as_reference(_model([there, back], given[:1], ends, s=np.asarray(scale), z=np.asarray(zero)), {"x": x})


@pytest.mark.parametrize("code", [TensorProto.INT4, TensorProto.UINT2, TensorProto.FLOAT8E4M3FN], ids=TensorProto.DataType.Name)
def test_weights_of_products_stay_as_narrow_as_the_model_has_them(code: int, rng: np.random.Generator, tmp_path: Path) -> None:
    weights, scale = _random(code, (257, 511), rng), rng.uniform(0.1, 1, (9, 511)).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    model = _model(nodes, [("x", F32, (5, 257))], [("y", F32, (5, 511))], w=weights, s=scale)
    x = rng.standard_normal((5, 257)).astype(np.float32)

    compiled = tc.compile(model)
    compiled.save(tmp_path / "m.tcm")

    elements = 8 // {TensorProto.INT4: 4, TensorProto.UINT2: 2}.get(code, 8)
    padded = 9 * 32 * 512  # whole blocks, and whole panels of columns
    assert compiled.report().constant_bytes <= padded // elements + 9 * 512 * scale.itemsize
    expected = x.astype(np.float64) @ (weights.astype(np.float64) * np.repeat(scale, 32, 0)[:257])
    np.testing.assert_allclose(compiled(x), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert np.array_equal(tc.load(tmp_path / "m.tcm")(x), compiled(x))


@pytest.mark.parametrize("code", [*NARROW, EXPONENTS], ids=TensorProto.DataType.Name)
def test_narrow_tensors_are_moved(code: int, rng: np.random.Generator) -> None:
    """Parts that begin within a byte, among others: the joins and splits of rows of five elements and seven."""
    a, b = _random(code, (5, 7), rng), _random(code, (5, 4), rng)
    nodes = [
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
        helper.make_node("Transpose", ["c"], ["t"], perm=[1, 0]),
        helper.make_node("Split", ["t"], ["s1", "s2"], axis=0, num_outputs=2),
        helper.make_node("Reshape", ["s1", "shape"], ["r"]),
        helper.make_node("Slice", ["t", "from", "to"], ["part"]),
        helper.make_node("Cast", ["part"], ["f"], to=F32),
        helper.make_node("Concat", ["s2", "s1"], ["k"], axis=0),
        helper.make_node("Gather", ["a", "rows"], ["g"], axis=0),
        helper.make_node("Identity", ["a"], ["same"]),
    ]
    sizes = {"s1": (6, 5), "r": (5, 6), "k": (11, 5), "g": (3, 7), "same": (5, 7), "c": (5, 11)}
    outputs: list[Value] = [*((name, code, shape) for name, shape in sizes.items()), ("f", F32, (9, 5))]
    numbers = {"shape": [5, 6], "from": [1], "to": [10], "rows": [3, 1, 1]}
    literals = {name: np.array(value) for name, value in numbers.items()}
    model = _model(nodes, [("a", code, a.shape), ("b", code, b.shape)], outputs, **literals)

    _require_as_reference(model, {"a": a, "b": b})


@pytest.mark.parametrize("code", [*RANGES, FLOAT4], ids=TensorProto.DataType.Name)
def test_results_that_share_bytes_come_in_arrays_of_bytes(code: int, rng: np.random.Generator) -> None:
    """Through a buffer of the caller, with sizes that the call decides, and where the data decide."""
    nodes = [
        helper.make_node("Transpose", ["a"], ["t"], perm=[1, 0]),
        helper.make_node("Compress", ["a", "which"], ["some"], axis=0),
    ]
    model = _model(nodes, [("a", code, ("n", 3)), ("which", TensorProto.BOOL, ("n",))], [("t", code, (3, "n")), ("some", code, ("m", 3))])
    compiled = tc.compile(model)
    for count in (0, 1, 4, 7):
        a, which = _random(code, (count, 3), rng), rng.integers(0, 2, count).astype(bool)

        turned, some = compiled(a, which)

        assert turned.dtype == some.dtype == a.dtype
        assert np.array_equal(turned.astype(float), a.T.astype(float))
        assert np.array_equal(some.astype(float), a[which].astype(float))

    plain = tc.compile(_model(nodes[:1], [("a", code, (5, 3))], [("t", code, (3, 5))]))
    a, room = _random(code, (5, 3), rng), np.zeros((3, 5), _numpy(code))
    assert plain(a, out=room) is room
    assert np.array_equal(room.astype(float), a.T.astype(float))


def test_values_in_typed_fields_share_bytes_as_well() -> None:
    tensor = TensorProto(data_type=TensorProto.INT4, dims=[3], name="w", int32_data=[0x2F, 0x08])
    node = helper.make_node("Cast", ["w"], ["y"], to=F32)
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", F32, (3,))], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)

    assert tc.compile(model)().tolist() == [-1.0, 2.0, -8.0]


def test_scales_of_another_number_of_blocks_are_refused() -> None:
    node = helper.make_node("DequantizeLinear", ["q", "s"], ["y"], axis=1, block_size=4)
    model = _model([node], [("q", TensorProto.INT4, (2, 9)), ("s", F32, (2, 2))], [("y", F32, (2, 9))])

    with pytest.raises(tc.TcError, match="blocks of 4 along axis 1"):
        tc.compile(model)
