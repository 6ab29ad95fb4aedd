"""Shape arithmetic: what exporters compute with nodes becomes dims, and nothing of it is left in the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import tc
from tc.errors import InputError, ModelError, ShapeError, UserError
from tc.frontend.dims import Dim
from tc.frontend.onnx import load_model
from tests.frontend.models import (
    check_against_onnxruntime,
    make_model,
    node,
    operators,
    run,
    run_onnxruntime,
)

F32 = np.float32
X = {"x": (F32, ["n", "m", 4])}


def result_shape(nodes: list[object], constants: dict[str, np.ndarray], inputs: object = X, opset: int = 17) -> str:
    imported = load_model(make_model(nodes, inputs, ["y"], constants, opset))  # type: ignore[arg-type]
    return str(imported.module.main.results[0].type)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


SHAPE_OF_X = node("Shape", "x", "s")

# nodes that make `y` from `s`, the shape of x: f32[n, m, 4]; constants; the type of y
CASES = {
    "keep batch, flatten": (
        [node("Gather", "s k0", "b"), node("Unsqueeze", "b ax", "b1"), node("Concat", "b1 minus", "t", axis=0)],
        "f32[n, m * 4]",
    ),
    "merge by multiplying": (
        [
            node("Slice", "s k0v k2v", "front"),
            node("ReduceProd", "front", "p", keepdims=1),
            node("Concat", "p minus", "t", axis=0),
        ],
        "f32[m * n, 4]",
    ),
    "split heads": (
        [
            node("Slice", "s k0v k2v", "front"),
            node("Concat", "front two_minus", "t", axis=0),
        ],
        "f32[n, m, 2, 2]",
    ),
    "dim times two over two": (
        [
            node("Gather", "s k1", "m_"),
            node("Mul", "m_ two", "m2"),
            node("Div", "m2 two", "m3"),
            node("Unsqueeze", "m3 ax", "m4"),
            node("Concat", "minus m4", "t", axis=0),
        ],
        "f32[n * 4, m]",
    ),
    "through floats": (
        [
            node("Cast", "s", "sf", to=TensorProto.FLOAT),
            node("Mul", "sf half", "h"),
            node("Mul", "h twof", "h2"),
            node("Floor", "h2", "fl"),
            node("Cast", "fl", "si", to=TensorProto.INT64),
            node("Slice", "si k0v k1v", "b"),
            node("Concat", "b minus", "t", axis=0),
        ],
        "f32[n, m * 4]",
    ),
    "where and equal choose the batch": (
        [
            node("ConstantOfShape", "three", "ones", value=helper.make_tensor("v", TensorProto.INT64, [1], [1])),
            node("Mul", "ones minus1", "neg"),
            node("Equal", "wanted neg", "eq"),
            node("Where", "eq s wanted", "t"),
        ],
        "f32[n, m, 4]",
    ),
    "split and squeeze": (
        [
            node("Split", "s", "a b c", axis=0),
            node("Squeeze", "c ax", "c0"),
            node("Unsqueeze", "c0 ax", "c1"),
            node("Concat", "c1 minus", "t", axis=0),
        ],
        "f32[4, m * n]",
    ),
    "zero copies the dim": ([node("Identity", "zero_minus", "t")], "f32[n, m * 4]"),
    "max of known": (
        [node("Max", "s ones3", "mx"), node("Min", "mx big3", "mn"), node("Slice", "mn k2v k3v", "l"),
         node("Concat", "minus l", "t", axis=0)],
        "f32[m * n, 4]",
    ),
}
CONSTANTS = {
    "k0": np.array(0),
    "k1": np.array(1),
    "ax": i64(0),
    "minus": i64(-1),
    "minus1": np.array(-1),
    "k0v": i64(0),
    "k1v": i64(1),
    "k2v": i64(2),
    "k3v": i64(3),
    "two": np.array(2),
    "half": F32(0.5),
    "twof": F32(2),
    "two_minus": i64(2, -1),
    "zero_minus": i64(0, -1),
    "three": i64(3),
    "wanted": i64(-1, -1, 4),
    "ones3": i64(1, 1, 1),
    "big3": i64(9, 9, 9),
}


@pytest.mark.parametrize("name", CASES)
def test_a_computed_target_of_reshape_becomes_dims(name: str) -> None:
    nodes, expected = CASES[name]
    model = make_model([SHAPE_OF_X, *nodes, node("Reshape", "x t", "y")], X, ["y"], CONSTANTS)

    imported = load_model(model)

    assert str(imported.module.main.results[0].type) == expected
    assert operators(imported) in (["reshape"], [])
    assert not imported.requirements


@pytest.mark.parametrize("name", CASES)
def test_reshaped_values_are_those_of_onnxruntime(name: str, rng: np.random.Generator) -> None:
    nodes, _ = CASES[name]
    model = make_model([SHAPE_OF_X, *nodes, node("Reshape", "x t", "y")], X, ["y"], CONSTANTS)

    check_against_onnxruntime(model, {"x": rng.standard_normal((3, 5, 4)).astype(F32)})


def test_a_shape_that_is_used_as_data_is_made_by_one_operator() -> None:
    model = make_model([SHAPE_OF_X, node("Mul", "s two", "y")], X, ["y"], CONSTANTS)

    imported = load_model(model)

    assert operators(imported) == ["shape_tensor"]
    np.testing.assert_array_equal(run(imported, {"x": np.zeros((3, 5, 4), F32)})[0], [6, 10, 8])


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [
        (0, 2**63 - 1, 1, "f32[n, m, 4]"),
        (1, 2**31 - 1, 1, "f32[n, max(m - 1, 0), 4]"),
        (-1, 2**63 - 1, 1, "f32[n, min(m, 1), 4]"),
        (-1, -(2**63) + 1, -1, "f32[n, m, 4]"),
        (0, 2**63 - 1, 2, "f32[n, (m + 1) // 2, 4]"),
    ],
)
def test_slice_bounds_are_clamped_to_a_symbolic_dim(start: int, end: int, step: int, expected: str) -> None:
    constants = {"starts": i64(start), "ends": i64(end), "axes": i64(1), "steps": i64(step)}
    model = make_model([node("Slice", "x starts ends axes steps", "y")], X, ["y"], constants)

    assert result_shape([node("Slice", "x starts ends axes steps", "y")], constants) == expected
    for size in (0, 1, 2, 5):
        check_against_onnxruntime(model, {"x": np.arange(8 * size, dtype=F32).reshape(2, size, 4)})


# Those of shapes ended as errors of Python, and the last of two ranges of one axis was taken.
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"axes": [3]}, "axis 3 is out of range for rank 1"),
        ({"axes": [-2]}, "axis -2 is out of range for rank 1"),
        ({"starts": [0, 1], "ends": [2, 2], "axes": [0, -1], "steps": [1, 1]}, "an axis is named twice"),
        ({"starts": [0, 0]}, "2 starts, 1 ends, 1 axes"),
        ({"steps": [0]}, "a step is 0"),
        ({"steps": [1, 1]}, "1 starts, 1 ends, 1 axes and 2 steps"),
    ],
)
def test_slices_of_shapes_that_are_none_are_refused(changed: dict[str, list[int]], words: str) -> None:
    constants = {name: np.array(value) for name, value in {"starts": [0], "ends": [2], "axes": [0], "steps": [1], **changed}.items()}
    nodes = [node("Shape", "x", "s"), node("Slice", "s starts ends axes steps", "part"), node("Expand", "one part", "y")]

    with pytest.raises(ShapeError, match=rf"the_part: Slice: {words}"):
        tc.compile(make_model(nodes, X, ["y"], {**constants, "one": np.ones(1, np.float32)}))


@pytest.mark.parametrize("bounds", [(0, 3), (1, -1), (-2, 100), (5, 2), (-100, 100)])
@pytest.mark.parametrize("step", [1, 2, -1])
def test_slice_bounds_may_be_data(bounds: tuple[int, int], step: int, rng: np.random.Generator) -> None:
    inputs = {"x": (F32, [6, "m"]), "start": (np.int64, [1]), "end": (np.int64, [1])}
    constants = {"axes": i64(0), "steps": i64(step)}
    model = make_model([node("Slice", "x start end axes steps", "y")], inputs, ["y"], constants)
    x = rng.standard_normal((6, 3)).astype(F32)

    check_against_onnxruntime(model, {"x": x, "start": i64(bounds[0]), "end": i64(bounds[1])})


@pytest.mark.parametrize("shape", [[3, -1], [0, -1], [-1], [2, 3, 4, 1]])
def test_a_target_of_reshape_may_be_data(shape: list[int], rng: np.random.Generator) -> None:
    inputs = {"x": (F32, ["n", "m", 4]), "t": (np.int64, [len(shape)])}
    model = make_model([node("Reshape", "x t", "y")], inputs, ["y"])

    check_against_onnxruntime(model, {"x": rng.standard_normal((2, 3, 4)).astype(F32), "t": i64(*shape)})


def test_a_size_found_in_data_that_is_zero_takes_the_dim_of_the_input(rng: np.random.Generator) -> None:
    inputs = {"x": (F32, [6, "m"]), "list": (F32, [4]), "start": (np.int64, [1])}
    nodes = [
        node("Slice", "list start end", "part"),
        node("Shape", "part", "size"),
        node("Concat", "two three size", "t", axis=0),
        node("Reshape", "x t", "y"),
    ]
    model = make_model(nodes, inputs, ["y"], {"end": i64(4), "two": i64(6), "three": i64(-1)})
    fixed = make_model(nodes, inputs, ["y"], {"end": i64(4), "two": i64(3), "three": i64(2)})
    numbers = rng.standard_normal(4).astype(F32)

    for start in range(4):
        check_against_onnxruntime(model, {"x": rng.standard_normal((6, 12)).astype(F32), "list": numbers, "start": i64(start)})
    check_against_onnxruntime(fixed, {"x": rng.standard_normal((6, 3)).astype(F32), "list": numbers, "start": i64(1)})
    with pytest.raises(InputError, match="reshape"):
        run(load_model(fixed), {"x": rng.standard_normal((6, 3)).astype(F32), "list": numbers, "start": i64(4)})
    nodes[2] = node("Concat", "size two three", "t", axis=0)
    square = make_model(nodes, inputs, ["y"], {"end": i64(4), "two": i64(3), "three": i64(2)})
    check_against_onnxruntime(square, {"x": rng.standard_normal((6, 6)).astype(F32), "list": numbers, "start": i64(4)})


@pytest.mark.parametrize(("op", "target"), [("Expand", [3, 1, 4]), ("Tile", [2, 1, 3]), ("Expand", [1, 5, 1])])
def test_other_shapes_may_be_data(op: str, target: list[int], rng: np.random.Generator) -> None:
    inputs = {"x": (F32, [1, 5, 4]), "t": (np.int64, [3])}
    model = make_model([node(op, "x t", "y")], inputs, ["y"])

    check_against_onnxruntime(model, {"x": rng.standard_normal((1, 5, 4)).astype(F32), "t": i64(*target)})


@pytest.mark.covering(2)
@pytest.mark.parametrize("dims", [["a", "b", "c"], [3, 20, 17], [3, "b", 1]])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("after", ["Neg", "Transpose"])
def test_tiles_of_every_size(dims: list[Any], known: bool, after: str, rng: np.random.Generator) -> None:
    declared: dict[str, Any] = {"x": (F32, dims)} | ({} if known else {"t": (np.int64, [3])})
    for sizes, repeats in (((3, 20, 17), (2, 1, 3)), ((3, 20, 1), (1, 4, 19)), ((3, 0, 1), (2, 2, 2)), ((3, 20, 17), (1, 0, 2))):
        if any(isinstance(dim, int) and dim != size for dim, size in zip(dims, sizes, strict=True)):
            continue
        model = make_model([node("Tile", "x t", "r"), node(after, "r", "y")], declared, ["y"], {"t": i64(*repeats)} if known else {})
        x = rng.standard_normal(sizes).astype(F32)

        found = tc.compile(model, threads=1).run({"x": x} | ({} if known else {"t": i64(*repeats)}))["y"]

        np.testing.assert_array_equal(found, -np.tile(x, repeats) if after == "Neg" else np.tile(x, repeats).transpose())


OF_OPEN_LENGTH: dict[str, tuple[str, dict[str, Any], list[int]]] = {
    "TopK": ("y indices", {}, [3]),
    "Tile": ("y", {}, [2, 1, 3]),
    "Pad": ("y", {}, [1, 0, 2, 0, 1, 1]),
    "CenterCropPad": ("y", {"axes": [0, 2]}, [4, 9]),
}


@pytest.mark.parametrize("op", OF_OPEN_LENGTH)
def test_vectors_that_must_be_of_one_length_may_be_declared_of_any(op: str, rng: np.random.Generator) -> None:
    outputs, attrs, given = OF_OPEN_LENGTH[op]
    inputs = {"x": (F32, ["a", 5, "c"]), "v": (np.int64, ["k"])}
    model = make_model([node(op, "x v", outputs, **attrs)], inputs, outputs.split(), opset=18)
    module = tc.compile(model, threads=1, on_unsupported="error")
    x = rng.standard_normal((3, 5, 7)).astype(F32)

    found = module.run({"x": x, "v": i64(*given)})["y"]

    np.testing.assert_array_equal(found, run_onnxruntime(model, {"x": x, "v": i64(*given)})[0])
    with pytest.raises(UserError):
        module.run({"x": x, "v": i64(*given, 1, 1)})


def test_pads_may_be_data_and_negative(rng: np.random.Generator) -> None:
    inputs = {"x": (F32, [5, "m"]), "p": (np.int64, [4])}
    model = make_model([node("Pad", "x p", "y")], inputs, ["y"])

    check_against_onnxruntime(model, {"x": rng.standard_normal((5, 3)).astype(F32), "p": i64(-1, 2, 3, -2)})


def test_a_range_over_a_dim_and_one_over_data() -> None:
    inputs = {"x": (F32, ["n"]), "limit": (np.int64, [])}
    nodes = [
        node("Size", "x", "n_"),
        node("Range", "zero n_ one", "a"),
        node("Range", "zero limit two", "b"),
    ]
    constants = {"zero": np.array(0), "one": np.array(1), "two": np.array(2)}
    model = make_model(nodes, inputs, ["a", "b"], constants)

    check_against_onnxruntime(model, {"x": np.zeros(4, F32), "limit": np.array(7)})


def test_equal_dims_get_the_simpler_name() -> None:
    inputs = {"x": (F32, ["batch", "seq", 8])}
    nodes = [
        node("Shape", "x", "s"),
        node("Slice", "s k1v k2v", "len"),
        node("Slice", "table k0v len k0v", "rows"),
        node("Add", "x rows", "y"),
    ]
    model = make_model(nodes, inputs, ["y"], {**CONSTANTS, "table": np.ones((32, 8), F32)})

    imported = load_model(model)

    assert str(imported.module.main.results[0].type) == "f32[batch, seq, 8]"
    run(imported, {"x": np.zeros((2, 32, 8), F32)})
    with pytest.raises(InputError, match="the_y"):
        run(imported, {"x": np.zeros((2, 33, 8), F32)})


# -- dims of inputs


def test_equal_names_are_one_dim_and_unnamed_dims_get_names() -> None:
    inputs = {"a": (F32, ["n", None]), "b": (F32, ["n", 3])}
    imported = load_model(make_model([node("MatMul", "a b2", "y")], inputs, ["y"], {"b2": np.ones((5, 2), F32)}))

    a, b = imported.module.main.params

    assert a.type.shape[0] is b.type.shape[0]  # type: ignore[union-attr]
    assert str(a.type) == "f32[n, a.1]"
    assert [r.message for r in imported.requirements] != []


def test_a_formula_as_the_name_of_a_dim_is_that_formula() -> None:
    inputs = {"a": (F32, ["past"]), "b": (F32, ["seq"]), "mask": (F32, ["past + seq"])}
    nodes = [node("Concat", "a b", "ab", axis=0), node("Mul", "ab mask", "y")]

    imported = load_model(make_model(nodes, inputs, ["y"]))

    assert str(imported.module.main.results[0].type) == "f32[past + seq]"
    assert not imported.requirements


def test_promises_fix_and_bound_dims() -> None:
    model = make_model([node("Relu", "x", "y")], X, ["y"])

    imported = load_model(model, dims={"n": 2, "m": Dim(1, 64, 4)})

    assert str(imported.module.main.results[0].type) == "f32[2, m, 4]"
    (fact,) = imported.module.main.facts
    assert (fact.lo, fact.hi, fact.multiple_of) == (1, 64, 4)


def test_a_promise_about_a_dim_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(UserError, match=r"no symbolic dim 'batch'; it has n, m"):
        load_model(make_model([node("Relu", "x", "y")], X, ["y"]), dims={"batch": 1})


@pytest.mark.parametrize(("lo", "hi", "multiple"), [(-1, None, 1), (5, 4, 1), (1, 7, 8), (0, None, 0)])
def test_a_dim_that_no_size_fulfils_is_refused(lo: int, hi: int | None, multiple: int) -> None:
    with pytest.raises(UserError):
        Dim(lo, hi, multiple)


@pytest.mark.parametrize(("dim", "fixed"), [(Dim(4, 4), 4), (Dim(3, 7, 4), 4), (Dim(1, 64), None), (Dim(), None)])
def test_a_dim_knows_when_one_size_is_left(dim: Dim, fixed: int | None) -> None:
    assert dim.fixed == fixed


@pytest.mark.parametrize(
    ("shape", "error", "words"),
    [
        (i64(7, -1, -1), ShapeError, "-1 more than once"),
        (i64(0, 0, 0, 0), ShapeError, "dim 3 of the shape is 0"),
        (np.array([[1]], np.int64), ShapeError, "must be a vector"),
    ],
)
def test_wrong_targets_of_reshape(shape: np.ndarray, error: type[ModelError], words: str) -> None:
    with pytest.raises(error, match=words):
        load_model(make_model([node("Reshape", "x t", "y")], X, ["y"], {"t": shape}))


# -- random programs over shapes


@st.composite
def shape_programs(draw: st.DrawFn) -> tuple[list[object], dict[str, np.ndarray], str]:
    """Nodes that compute vectors from the shape `s` of x, their constants, and the name of the last vector."""
    nodes: list[object] = []
    constants: dict[str, np.ndarray] = {}
    lengths = {"s": 3}

    def constant(array: np.ndarray) -> str:
        name = f"c{len(constants)}"
        constants[name] = array
        return name

    for step in range(draw(st.integers(1, 7))):
        source = draw(st.sampled_from(list(lengths)))
        size, out = lengths[source], f"v{step}"
        match draw(st.sampled_from(["binary", "constant", "gather", "slice", "concat", "where", "reduce", "round"])):
            case "binary":
                others = [name for name, length in lengths.items() if length == size]
                op = draw(st.sampled_from(["Add", "Sub", "Mul", "Max", "Min"]))
                nodes.append(node(op, f"{source} {draw(st.sampled_from(others))}", out))
            case "constant":
                op = draw(st.sampled_from(["Add", "Sub", "Mul", "Div", "Mod"]))
                value = draw(st.integers(1, 5))
                nodes.append(node(op, f"{source} {constant(np.array(value))}", out))
            case "gather":
                places = draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=3))
                nodes.append(node("Gather", f"{source} {constant(i64(*places))}", out))
                size = len(places)
            case "slice":
                start = draw(st.integers(0, size - 1))
                end = draw(st.integers(start + 1, size))
                nodes.append(node("Slice", f"{source} {constant(i64(start))} {constant(i64(end))}", out))
                size = end - start
            case "concat":
                other = draw(st.sampled_from(list(lengths)))
                nodes.append(node("Concat", f"{source} {other}", out, axis=0))
                size += lengths[other]
            case "where":
                limit = constant(np.array(draw(st.integers(0, 6))))
                test = draw(st.sampled_from(["Equal", "Less", "GreaterOrEqual"]))
                nodes.append(node(test, f"{source} {limit}", f"{out}_if"))
                nodes.append(node("Where", f"{out}_if {source} {limit}", out))
            case "reduce":
                op = draw(st.sampled_from(["ReduceProd", "ReduceMax", "ReduceMin"]))
                nodes.append(node(op, source, out, keepdims=1))
                size = 1
            case "round":
                factor = constant(np.array(draw(st.sampled_from([0.5, 2.0, 0.25, 3.0])), F32))
                nodes += [
                    node("Cast", source, f"{out}_f", to=TensorProto.FLOAT),
                    node("Mul", f"{out}_f {factor}", f"{out}_m"),
                    node(draw(st.sampled_from(["Floor", "Ceil"])), f"{out}_m", f"{out}_r"),
                    node("Cast", f"{out}_r", out, to=TensorProto.INT64),
                ]
        lengths[out] = size
    return nodes, constants, out


@settings(max_examples=150)
@given(program=shape_programs(), dims=st.tuples(*[st.integers(0, 7)] * 2))
def test_random_shape_programs(
    program: tuple[list[object], dict[str, np.ndarray], str], dims: tuple[int, int]
) -> None:
    nodes, constants, last = program
    result = node("Identity", last, "y")
    model = make_model([SHAPE_OF_X, *nodes, result], X, ["y"], constants)  # type: ignore[list-item]

    check_against_onnxruntime(model, {"x": np.zeros((*dims, 4), F32)})
