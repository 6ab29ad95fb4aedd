"""The largest and the smallest of many: the same places as a stable sort of all gives."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tc
from tc.ir.graph import Call
from tc.ops.build import full_attrs
from tc.ops.registry import get_op
from tests.ops.kernels import finish, make_prim_func, run

SHAPES = [((3, 50), -1), ((4, 7, 5), 1), ((60, 2), 0), ((1, 1), 0), ((2, 9), 1), ((0, 4), 1)]


def sorted_places(x: np.ndarray, axis: int, largest: bool) -> np.ndarray:
    """All places, of equal elements the first one first; NaN is the largest."""
    if largest:
        return np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return np.argsort(x, axis, kind="stable")


def elements(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Few different ones, with the extremes of the type among them."""
    x = rng.integers(0, 6, shape).astype(dtype)
    if x.dtype.kind == "f":
        x.flat[::4] = rng.choice([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], x.flat[::4].shape)
    else:
        x.flat[::4] = rng.choice(np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype), x.flat[::4].shape)
    return x


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_places_are_those_of_a_stable_sort(shape: tuple[int, ...], axis: int, largest: bool, dtype: str) -> None:
    x = elements(np.random.default_rng(0), shape, dtype)

    for k in {0, 1, 2, shape[axis] - 1, shape[axis]} & set(range(shape[axis] + 1)):
        attrs = full_attrs(Call("topk", (), (("k", k), ("axis", axis), ("largest", largest))))
        values, places = get_op("topk").run_reference([x], attrs)

        expected = np.take(sorted_places(x, axis, largest), np.arange(k), axis)
        np.testing.assert_array_equal(places, expected, strict=True)
        np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis), strict=True)


def compiled_topk(x: np.ndarray, k: object, axis: int, largest: bool, shape: list | None = None) -> list[np.ndarray]:
    """By machine code, without any call of Python. `k`: a number, "given" (an input whose value is data) or the name of a dim."""
    from onnx import TensorProto, helper

    wanted = k if isinstance(k, int) else 0
    dims = list(x.shape) if shape is None else shape
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    inputs = [helper.make_tensor_value_info("x", element, dims)]
    nodes, constants = [], []
    if isinstance(k, int):
        constants = [helper.make_tensor("k", TensorProto.INT64, [1], [wanted])]
    elif isinstance(k, np.ndarray):
        inputs.append(helper.make_tensor_value_info("k", TensorProto.INT64, [1]))
    else:
        inputs.append(helper.make_tensor_value_info("like", TensorProto.FLOAT, [k[0]]))
        nodes = [helper.make_node("Shape", ["like"], ["k"])]
    nodes.append(helper.make_node("TopK", ["x", "k"], ["values", "places"], axis=axis, largest=int(largest)))
    outputs = [helper.make_tensor_value_info("values", element, None), helper.make_tensor_value_info("places", TensorProto.INT64, None)]
    graph = helper.make_graph(nodes, "topk", inputs, outputs, constants)
    model = tc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), on_unsupported="error")
    given = [] if isinstance(k, int) else [k] if isinstance(k, np.ndarray) else [np.zeros(k[1], np.float32)]
    return list(model(x, *given))


SIZES = [((3, 50), 1, 50), ((4, 90, 5), 1, 7), ((2, 2000), 1, 3), ((1, 3000), 1, 2000), ((20, 700), -1, 0), ((1, 1), 0, 1), ((2, 0), 1, 0)]
DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "bfloat16"]


@pytest.mark.parametrize(("dtype", "largest"), [(dtype, k % 2 == 0) for k, dtype in enumerate([*DTYPES, "f4"])])
def test_kernels_give_the_places_of_a_stable_sort(dtype: str, largest: bool) -> None:
    rng = np.random.default_rng(1)
    for shape, axis, k in SIZES:
        x = rng.permutation(int(np.prod(shape))).reshape(shape).astype("f4" if dtype == "bfloat16" else dtype)
        x = np.where(rng.random(shape) < 0.4, elements(rng, shape, x.dtype.str), x)
        if dtype == "bfloat16":
            x = x.astype(ml_dtypes.bfloat16).astype(np.float32)

        values, places = run_topk(x.astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else x, k, axis, largest)

        expected = np.take(sorted_places(x, axis, largest), np.arange(k), axis)
        np.testing.assert_array_equal(places, expected)
        np.testing.assert_array_equal(values.astype(x.dtype), np.take_along_axis(x, expected, axis))


def run_topk(x: np.ndarray, k: int, axis: int, largest: bool) -> list[np.ndarray]:
    attrs = {"k": k, "axis": axis, "largest": largest}
    return run(finish(make_prim_func(get_op("topk"), [x], attrs)), [x])[:2]


@pytest.mark.parametrize("order", ["up", "down", "same"])
def test_orders_that_make_most_work(order: str) -> None:
    x = np.arange(9000, dtype=np.float32)[None]
    x = {"up": x, "down": x[:, ::-1].copy(), "same": np.full_like(x, -0.0)}[order]

    for k in (1, 40, 3000):
        for largest in (True, False)[:: 1 if k == 40 else 2]:
            values, places = run_topk(x, k, 1, largest)

            np.testing.assert_array_equal(places, sorted_places(x, 1, largest)[:, :k])
            np.testing.assert_array_equal(values, np.take_along_axis(x, places, 1))
            assert np.signbit(values).all() == (order == "same")


@pytest.mark.covering
@pytest.mark.parametrize("k", [1, 25, 26, 50, 300])
@pytest.mark.parametrize("dtype", ["f4", "i1", "i8"])
def test_a_bound_that_is_looked_for_first_loses_nothing(k: int, dtype: str) -> None:
    """Rows around the length from which on it is, whose first elements all are of one group of places, or equal, or hardly any number."""
    rng = np.random.default_rng(k)
    module = topk_module(dtype, k, 0, False, ["n"])
    groups = max(64, -(-5 * k // 32) * 16)
    for size in (max(k, 8 * groups - 1), 8 * groups, 8 * groups + 1, 20 * groups + 37):
        places = np.arange(size)
        for x in (
            np.where(places % groups == 5, -places % 99, 100),
            np.where(places % 7 == 0, rng.integers(0, 3, size), 3),
            rng.integers(-100, 100, size),
        ):
            x = x.astype(dtype)
            if dtype == "f4":
                x[rng.random(size) < 0.9] = np.nan
            values, found = module(x)
            np.testing.assert_array_equal(found, sorted_places(x, 0, False)[:k])
            np.testing.assert_array_equal(values, x[found])


@pytest.mark.covering
@pytest.mark.parametrize("k", [0, 1, 30, 2500])
@pytest.mark.parametrize("kind", ["known", "given", "dim"])
def test_sizes_that_are_known_when_it_runs(kind: str, k: int) -> None:
    x = elements(np.random.default_rng(2), (3, 2500), "f4")
    wanted = {"known": k, "given": np.array([k]), "dim": ("count", k)}[kind]

    values, places = compiled_topk(x, wanted, 1, True, ["rows", "columns"])

    np.testing.assert_array_equal(places, sorted_places(x, 1, True)[:, :k])
    np.testing.assert_array_equal(values, np.take_along_axis(x, places, 1))


@pytest.mark.parametrize("k", [1, 2, 3, 8, 10])
def test_rows_of_any_length_lose_nothing(k: int) -> None:
    # Of rows of 31 elements, five were written over before any had been sorted.
    rng = np.random.default_rng(9)
    module = topk_module("i4", k, 0, True, ["n"])

    for size in (*range(k, 70), 1007, 1023):
        x = rng.permutation(size).astype(np.int32)
        np.testing.assert_array_equal(module(x)[1], sorted_places(x, 0, True)[:k])


LINES = [(3, 40, 50), (1, 1, 1), (2, 20, 15), (2, 33, 16), (1, 70, 17), (5, 30, 3), (0, 30, 20), (4, 30, 0), (7, 18, 1), (1, 400, 33)]
LINES += [(9, 256, 2), (9, 257, 2)]  # as long as rows are that lanes take, and longer


@pytest.mark.parametrize(
    ("dtype", "k", "axis", "dims"),
    [
        ("f4", 3, 1, ["a", "n", "b"]),
        ("f4", 13, 1, ["a", "n", "b"]),
        ("f8", 6, 1, ["a", "n", "b"]),
        ("u8", 16, 1, ["a", "n", "b"]),
        ("i1", 9, 1, ["a", 30, "b"]),
        ("f2", 29, 1, ["a", 30, "b"]),
        ("i4", 300, 1, ["a", 400, "b"]),
        ("f4", 5, -1, ["a", "b", 30]),
        ("i8", 28, -1, ["a", "b", 30]),
        ("f4", 4, 0, [30, "b"]),
        ("f4", 7, -1, ["a", "b", "n"]),
        ("f4", 2, 1, ["n", "n", "n"]),
        ("f4", 2, 2, ["a", "b", "n", "b"]),
    ],
)
def test_lines_side_by_side_are_sorted_as_each_by_itself(dtype: str, k: int, axis: int, dims: list) -> None:
    rng = np.random.default_rng(7)
    largest = k % 2 == 0
    module = topk_module(dtype, k, axis, largest, dims)
    seen = 0
    for a, n, b in LINES:
        shape = tuple(dim if isinstance(dim, int) else {"a": a, "n": max(n, k), "b": b}[dim] for dim in dims)
        if dims == ["n", "n", "n"]:
            shape = (max(n, k) % 23 + k,) * 3
        x = elements(rng, shape, dtype) if rng.random() < 0.5 else rng.permutation(int(np.prod(shape))).reshape(shape).astype(dtype)

        values, places = module(x)

        expected = np.take(sorted_places(x, axis, largest), np.arange(k), axis)
        np.testing.assert_array_equal(places, expected)
        np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis))
        seen += x.size > 0
    assert seen > 5


def test_lines_are_the_same_by_one_thread_and_by_two() -> None:
    x = np.random.default_rng(8).integers(0, 40, (3, 90, 500)).astype(np.int32)

    for k in (4, 60):
        by_one, by_two = (topk_module("i4", k, 1, True, ["a", 90, "b"], threads)(x) for threads in (1, 2))

        for one, two in zip(by_one, by_two, strict=True):
            np.testing.assert_array_equal(one, two)


def topk_module(dtype: str, k: int, axis: int, largest: bool, dims: list, threads: int = 2) -> tc.CompiledModule:
    from onnx import TensorProto, helper

    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("TopK", ["x", "k"], ["values", "places"], axis=axis, largest=int(largest))],
        "lines",
        [helper.make_tensor_value_info("x", element, dims)],
        [helper.make_tensor_value_info("values", element, None), helper.make_tensor_value_info("places", TensorProto.INT64, None)],
        [helper.make_tensor("k", TensorProto.INT64, [1], [k])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return tc.compile(model, on_unsupported="error", threads=threads)


def test_more_elements_than_there_are_is_an_error() -> None:
    with pytest.raises(tc.errors.InputError, match="k is"):
        compiled_topk(np.zeros((2, 3), np.float32), np.array([4]), 1, True, ["rows", "columns"])
