"""Results whose size data decide, made by the short way into a program: of every type, small and large, beside others and again."""

from __future__ import annotations

import copy
import gc
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import onnx
import pytest

import tc
from tc.errors import InputError, LimitError
from tc.runtime import program
from tests.frontend.models import make_model, node

DTYPES = (np.float32, np.float64, np.float16, np.int8, np.uint16, np.int64, np.bool_, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)


def rows(dtype: type, count: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2, (count, width)).astype(dtype), rng.integers(0, 2, count).astype(np.bool_)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 5, 700])
def test_rows_of_every_type_are_those_of_numpy(dtype: type, width: int) -> None:
    model = make_model([node("Compress", "x kept", "y", axis=0)], {"x": (dtype, ["n", width]), "kept": (np.bool_, ["n"])}, ["y"])
    compiled = tc.compile(model)

    for seed, count in enumerate((3, 0, 40, 40, 40, 7, 1, 1)):
        x, kept = rows(dtype, count, width, seed)
        y = compiled(x, kept)
        assert y.dtype == x.dtype and y.flags.carray
        np.testing.assert_array_equal(y, x[kept])
    assert compiled(x, np.zeros(1, np.bool_)).shape == (0, width)


def test_they_come_in_the_order_of_the_model_beside_those_of_known_size() -> None:
    nodes = [node("NonZero", "x", "a"), node("Neg", "x", "b"), node("Compress", "x kept", "c"), node("Identity", "a", "d")]
    inputs = {"x": (np.float32, [60, 70]), "kept": (np.bool_, [4200])}
    compiled = tc.compile(make_model(nodes, inputs, ["a", "b", "c", "d"]))

    for seed in range(4):  # few and many: made by the program, and by Python
        x, _ = rows(np.float32, 60, 70, seed)
        x[seed % 2 :] = 0
        kept = np.arange(4200) < (10, 4200)[seed % 2]
        a, b, c, d = compiled(x, kept)
        np.testing.assert_array_equal(a, np.nonzero(x))
        np.testing.assert_array_equal(b, -x)
        np.testing.assert_array_equal(c, x.reshape(-1)[kept])
        np.testing.assert_array_equal(d, a)
        assert not np.shares_memory(a, d)


def test_each_call_gives_memory_of_its_own_and_leaves_none_behind() -> None:
    compiled = tc.compile(make_model([node("NonZero", "x", "y")], {"x": (np.float32, [50])}, ["y"]))
    x, _ = rows(np.float32, 1, 50)
    first = compiled(x[0])
    kept = first.copy()
    for seed in range(1, 50):
        compiled(rows(np.float32, 1, 50, seed)[0][0])
    np.testing.assert_array_equal(first, kept)

    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(1000):
        compiled(x[0])
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 5000  # each of the arrays has 100 bytes at least


def test_threads_get_their_own() -> None:
    compiled = tc.compile(make_model([node("NonZero", "x", "y")], {"x": (np.float32, ["n"])}, ["y"]))

    def run(seed: int) -> None:
        for k in range(100):
            x = rows(np.float32, 1, 1 + (seed + k) % 40, seed + k)[0][0]
            np.testing.assert_array_equal(compiled(x), np.nonzero(x))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(0, 4000, 1000)))


def test_the_long_way_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model([node("NonZero", "x", "y")], {"x": (np.int8, ["n", 3])}, ["y"])
    short = tc.compile(model)
    monkeypatch.setattr(program, "find_types", lambda ports, found: None)
    long = tc.compile(model)
    assert short._enter is not None and long._enter is None

    for count in (4, 4, 0, 9, 9):
        x, _ = rows(np.int8, count, 3, count)
        for _ in range(2):
            np.testing.assert_array_equal(short(x), long(x))


def test_the_memory_of_a_result_is_not_copied_as_an_object() -> None:
    """A copy of what gives it back would have given it back twice."""
    x = np.ones(60_000, np.float32)
    found = tc.compile(make_model([node("Compress", "x kept", "y")], {"x": (np.float32, ["n"]), "kept": (np.bool_, ["n"])}, ["y"]))
    lent = tc.compile(make_model([node("Neg", "x", "y")], {"x": (np.float32, ["n"])}, ["y"]))
    for y in (found(x, x > 0), lent(x)):
        for copies in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises((TypeError, ValueError)):  # of ctypes
                copies(y.base)
        np.testing.assert_array_equal(copy.deepcopy(y), y)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(y)), y)


def test_what_maps_no_names_is_refused_in_words() -> None:
    plain = make_model([node("Neg", "x", "y")], {"x": (np.float32, ["n"])}, ["y"])
    nodes = [node("SequenceConstruct", "x x", "y")]
    listed = make_model(nodes, {"x": (np.float32, ["n"])}, ["y"])
    for model in (plain, listed):
        module = tc.compile(model)
        for given in ([np.ones(3, np.float32)], None, 3):
            with pytest.raises(InputError, match="must map names to arrays"):
                module.run(given)


def test_tensors_of_torch_give_arrays_where_it_has_no_such_type() -> None:
    torch = pytest.importorskip("torch")
    to_float8 = make_model([node("Cast", "x", "y", to=onnx.TensorProto.FLOAT8E4M3FN)], {"x": (np.float32, ["n"])}, ["y"], opset=19)
    to_bf16 = make_model([node("Cast", "x", "y", to=onnx.TensorProto.BFLOAT16)], {"x": (np.float32, ["n"])}, ["y"], opset=19)
    x = torch.ones(4)

    assert tc.compile(to_float8)(x).dtype == ml_dtypes.float8_e4m3fn
    assert tc.compile(to_bf16)(x).dtype == torch.bfloat16


def test_no_memory_for_a_result_is_a_limit() -> None:
    nodes = [node("Expand", "x s", "y")]
    module = tc.compile(make_model(nodes, {"x": (np.float32, [1]), "s": (np.int64, ["r"])}, ["y"]))
    one_dim = tc.compile(make_model(nodes, {"x": (np.float32, [1]), "s": (np.int64, [1])}, ["y"]))
    assert module(np.ones(1, np.float32), np.array([3])).shape == one_dim(np.ones(1, np.float32), np.array([3])).shape == (3,)

    with pytest.raises(LimitError, match="out of memory"):
        one_dim(np.ones(1, np.float32), np.array([2**50]))


def test_a_shape_that_no_array_has_is_told_by_short_calls() -> None:
    """An error of numpy."""
    module = tc.compile(make_model([node("ConstantOfShape", "s", "y")], {"s": (np.int64, [3])}, ["y"]))
    assert module(np.array([2, 0, 3])).shape == (2, 0, 3)

    for _ in range(2):
        with pytest.raises(LimitError, match=r"the shape \(0, 1099511627776, 1099511627776\), of which there are no arrays"):
            module(np.array([0, 2**40, 2**40]))
    assert module(np.array([2, 1, 3])).shape == (2, 1, 3)
