"""What is different along an axis: values, first places, numbers and counts, by machine code alone, whatever the sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tc

Outputs = list[np.ndarray]


def unique_model(dtype: str, dims: list[Any], axis: int | None, in_order: bool, outputs: int = 4) -> Any:
    attrs = {} if axis is None else {"axis": axis}
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = ["y", "first", "inverse", "counts"][:outputs]
    types = [element, *[TensorProto.INT64] * 3]
    graph = helper.make_graph(
        [helper.make_node("Unique", ["x"], names, sorted=int(in_order), **attrs)],
        "unique",
        [helper.make_tensor_value_info("x", element, dims)],
        [helper.make_tensor_value_info(name, type_, None) for name, type_ in zip(names, types, strict=False)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def compiled(*args: Any, **kwargs: Any) -> tc.CompiledModule:
    return tc.compile(unique_model(*args, **kwargs), on_unsupported="error")


def by_comparing(x: np.ndarray, axis: int | None, in_order: bool) -> Outputs:
    """Each slice beside those found before, in plain Python. Along no axis NaN is NaN; slices with NaN differ from all."""
    flat = axis is None
    x = x.reshape(-1) if flat else x
    slices = np.moveaxis(x, axis or 0, 0).reshape(x.shape[axis or 0], -1 if x.size else 0)
    firsts: list[int] = []
    numbers: list[int] = []
    for place, own in enumerate(slices):
        same = [g for g, f in enumerate(firsts) if np.array_equal(slices[f], own, equal_nan=flat and own.dtype.kind == "f")]
        numbers.append(same[0] if same else len(firsts))
        if not same:
            firsts.append(place)
    order = list(range(len(firsts)))
    if in_order:
        order.sort(key=lambda g: [(bool(e != e), 0.0 if e != e else e) for e in slices[firsts[g]].tolist()])
    renumbered = {old: new for new, old in enumerate(order)}
    inverse = np.array([renumbered[g] for g in numbers], np.int64)
    first = np.array([firsts[g] for g in order], np.int64)
    counts = np.bincount(inverse, minlength=len(order)).astype(np.int64) if len(order) else np.zeros(0, np.int64)
    return [np.take(x, first, axis or 0), first, inverse, counts]


def check(found: Outputs, expected: Outputs) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
        if one.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(one) & (one == 0), np.signbit(other) & (other == 0))


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "?":
        return rng.random(shape) < 0.5
    x = rng.integers(-3 if dtype[0] != "u" else 0, 4, shape).astype(dtype)
    ends = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0] if x.dtype.kind == "f" else [np.iinfo(dtype).min, np.iinfo(dtype).max]
    return np.where(rng.random(shape) < 0.3, rng.choice(np.array(ends, dtype), shape), x)


SHAPES = [(3, 5), (1, 1), (9, 0), (0, 4), (0, 0), (40, 2), (7, 30), (60, 1), (1, 70), (20, 40)]


DTYPES = ["f4", "f8", "f2", "i8", "i4", "i1", "u1", "f4", "u8", "?"]


@pytest.mark.parametrize(("dtype", "in_order"), [(dtype, k % 2 == 0) for k, dtype in enumerate(DTYPES)])
def test_elements(dtype: str, in_order: bool) -> None:
    rng = np.random.default_rng(0)
    module = compiled(dtype, ["n", "m"], None, in_order)

    for shape in SHAPES:
        x = drawn(rng, shape, dtype)
        check(module(x), by_comparing(x, None, in_order))


@pytest.mark.parametrize(
    ("dtype", "axis", "in_order"), [("f4", 0, True), ("i8", 1, True), ("f8", -1, False), ("u1", -2, False), ("?", 0, True)]
)
def test_slices(dtype: str, axis: int, in_order: bool) -> None:
    rng = np.random.default_rng(1)
    module = compiled(dtype, ["n", "m"], axis, in_order)
    cube = compiled(dtype, ["n", 6, "n"], axis % 2, in_order)

    for shape in SHAPES:
        x = drawn(rng, shape, dtype)
        if shape[1 - axis % 2]:  # slices of nothing have a test of their own
            check(module(x), by_comparing(x, axis, in_order))
    for size in (1, 2, 3, 50):
        x = drawn(rng, (size, 6, size), dtype) if size < 50 else np.zeros((size, 6, size), dtype)
        check(cube(x), by_comparing(x, axis % 2, in_order))


def test_slices_of_nothing_are_equal() -> None:
    y, first, inverse, counts = compiled("f4", ["n", "m"], 0, True)(np.zeros((5, 0), np.float32))

    assert y.shape == (1, 0) and list(first) == [0] and list(inverse) == [0] * 5 and list(counts) == [5]


@pytest.mark.parametrize("count", [500, 5000])
def test_many_elements_agree_with_numpy(count: int) -> None:
    rng = np.random.default_rng(2)
    for dtype in ("i8", "f4"):
        x = rng.integers(-count // 4, count // 4, count).astype(dtype) * (1 << 20)

        found = compiled(dtype, [count], None, True)(x)

        check(found, [np.asarray(each) for each in np.unique(x, True, True, True)])


@pytest.mark.parametrize("outputs", [1, 2, 3])
@pytest.mark.parametrize("in_order", [True, False])
def test_results_that_nobody_wants_are_left_out(outputs: int, in_order: bool) -> None:
    x = drawn(np.random.default_rng(3), (90,), "i4")

    found = compiled("i4", ["n"], None, in_order, outputs)(x)

    check([found] if outputs == 1 else list(found), by_comparing(x, None, in_order)[:outputs])


@pytest.mark.covering
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("in_order", [True, False])
def test_the_same_as_the_reference_and_onnxruntime(axis: int | None, in_order: bool) -> None:
    import onnxruntime

    rng = np.random.default_rng(4)
    model = unique_model("f4", ["n", "m"], axis, in_order)
    module, reference = tc.compile(model, on_unsupported="error"), ReferenceEvaluator(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    for shape in ((4, 3), (1, 9), (12, 1), (30, 2)):
        x = rng.integers(0, 3, shape).astype(np.float32)
        found = module(x)
        if in_order:  # elsewhere the reference takes places among all elements for places along the first axis
            check(found, reference.run(None, {"x": x}))
        check(found, session.run(None, {"x": x}))


def test_a_saved_module_and_results_in_a_graph(tmp_path: Any) -> None:
    nodes = [helper.make_node("Unique", ["x"], ["y", "f", "i", "c"]), helper.make_node("Gather", ["y", "i"], ["z"])]
    graph = helper.make_graph(
        nodes,
        "again",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None), helper.make_tensor_value_info("c", TensorProto.INT64, None)],
    )
    x = np.random.default_rng(5).integers(0, 30, 400).astype(np.float32)
    tc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), on_unsupported="error").save(tmp_path / "m.tcm")

    again, counts = tc.load(tmp_path / "m.tcm")(x)

    np.testing.assert_array_equal(again, x)
    assert counts.sum() == 400
