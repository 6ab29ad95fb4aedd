"""Modules on an OpenCL device as callers see them: errors, arrays, files, threads."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tc
from tc.errors import InputError
from tc.ir.parser import parse_module
from tests.opencl_driver import need_opencl

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    need_opencl()


def onnx_model(nodes: list, inputs: list, outputs: list, initializers: tuple = ()) -> ModelProto:
    values = [[helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in some] for some in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", *values, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def message_of(module: object, *arrays: np.ndarray) -> str:
    with pytest.raises(InputError) as caught:
        module(*arrays)  # type: ignore[operator]
    return str(caught.value)


def test_the_first_index_out_of_range_is_named_whichever_kernel_found_it() -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["a"], name="first"), helper.make_node("Softmax", ["a"], ["s"], axis=0)]
    nodes.append(helper.make_node("Gather", ["s", "j"], ["y"], name="second"))
    model = onnx_model(nodes, [("x", F32, ["n", 4]), ("i", I64, ["k"]), ("j", I64, ["m"])], [("y", F32, ["m", 4])])
    module, host = tc.compile(model, target="opencl"), tc.compile(model)
    x, good, first, second = RNG.random((3, 4), np.float32), np.array([2, 0]), np.array([0, 9, -7]), np.array([-3, 1])

    for wrong in ((x, first, good), (x, good, second), (x, first, second)):
        assert message_of(module, *wrong) == message_of(host, *wrong)
        np.testing.assert_allclose(module(x, good, good * 0), host(x, good, good * 0), rtol=1e-6)


def test_an_index_out_of_range_in_an_iteration_is_that_of_the_host() -> None:
    body = helper.make_graph(
        [helper.make_node("Gather", ["i", "k"], ["w"]), helper.make_node("Gather", ["v", "w"], ["r"], name="pick"),
         helper.make_node("Add", ["r", "v"], ["next"])],
        "body", [helper.make_tensor_value_info(*each) for each in (("k", I64, []), ("c", BOOL, []), ("v", F32, [5]))],
        [helper.make_tensor_value_info(*each) for each in (("c", BOOL, []), ("next", F32, [5]))],
    )  # fmt: skip
    constants = (numpy_helper.from_array(np.array(6), "most"), numpy_helper.from_array(np.array(True), "yes"))
    model = onnx_model(
        [helper.make_node("Loop", ["most", "yes", "x"], ["y"], body=body)], [("x", F32, [5]), ("i", I64, [6])], [("y", F32, [5])], constants
    )
    module, host = tc.compile(model, target="opencl"), tc.compile(model)
    x = RNG.random(5, np.float32)

    for places in ([0, 7, 1, -9, 2, 3], [4, 3, 2, 1, 0, 5]):
        assert message_of(module, x, np.array(places)) == message_of(host, x, np.array(places))
        np.testing.assert_allclose(module(x, np.arange(6) % 5), host(x, np.arange(6) % 5), rtol=1e-6)


TWO_RESULTS = """
@graph
def main(x: {dtype}[n, m]):
    y: {dtype}[n, m] = {op}
    z: {dtype}[m, n] = transpose(y, perm=(1, 0))
    return y, z
"""
BASE = RNG.standard_normal((6, 8)).astype(np.float32)


@cache
def both(dtype: str = "f32") -> tuple[tc.CompiledModule, tc.CompiledModule]:
    """The module on a device and that on the CPU."""
    model = parse_module(TWO_RESULTS.format(dtype=dtype, op="logical_not(x)" if dtype == "bool" else "add(x, x)"))
    return tc.compile(model, target="opencl"), tc.compile(model)


def outcome(call: Callable[[], Any]) -> object:
    try:
        results = call()
    except tc.TcError as error:
        return type(error), str(error)
    return [(type(each), tuple(each.shape), str(each.dtype), np.asarray(each, np.float64).tolist()) for each in results]


def assert_same(use: Callable[[tc.CompiledModule], Any], dtype: str = "f32") -> None:
    device, host = both(dtype)
    assert outcome(lambda: use(device)) == outcome(lambda: use(host))


def unaligned(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(b"x" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape)


ARRAYS: dict[str, Callable[[], Any]] = {
    "a part": lambda: BASE[1:5, 2:7],
    "strides": lambda: BASE[::2, ::3],
    "backwards": lambda: BASE[::-1, ::-1],
    "columns first": lambda: np.asfortranarray(BASE),
    "one row many times": lambda: np.broadcast_to(BASE[:1], (4, 8)),
    "no rows": lambda: BASE[:0],
    "no columns": lambda: BASE[:, :0],
    "nothing": lambda: np.zeros((0, 0), np.float32),
    "read only": lambda: np.broadcast_to(BASE, BASE.shape),
    "not aligned": lambda: unaligned(BASE),
    "other byte order": lambda: BASE.astype(">f4"),
    "another dtype": lambda: BASE.astype(np.float64),
    "another rank": lambda: BASE[0],
    "a list": BASE.tolist,
    "nobody": lambda: None,
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_any_layout_give_what_they_give_on_the_cpu(name: str) -> None:
    assert_same(lambda module: module(ARRAYS[name]()))


def test_tensors_of_torch_are_taken_and_given() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(BASE.copy())
    for value in (tensor, tensor.T, tensor[1:3, ::2], tensor[:1].expand(5, 8), torch.zeros((0, 4)), tensor.half()):
        assert_same(lambda module, value=value: module(value))
    assert_same(lambda module: module(tensor, out=[torch.empty(6, 8), torch.empty(8, 6)]))
    assert_same(lambda module: module(tensor, out=[torch.empty(8, 6).T, torch.empty(8, 6)]))


def fresh(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def upon(part: Callable[[np.ndarray], tuple[np.ndarray, list[np.ndarray]]]) -> Callable[[tc.CompiledModule], Any]:
    """A call on parts of memory that are made anew for it."""

    def use(module: tc.CompiledModule) -> Any:
        room = np.zeros(100, np.float32)
        room[:48] = BASE.ravel()
        x, out = part(room)
        return module(x, out=out)

    return use


OUTS: dict[str, Callable[[tc.CompiledModule], Any]] = {
    "usual": lambda m: m(BASE, out=[fresh(6, 8), fresh(8, 6)]),
    "one": lambda m: m(BASE, out=fresh(6, 8)),
    "another shape": lambda m: m(BASE, out=[fresh(8, 6), fresh(8, 6)]),
    "another dtype": lambda m: m(BASE, out=[fresh(6, 8, dtype=np.float64), fresh(8, 6)]),
    "read only": lambda m: m(BASE, out=[np.broadcast_to(BASE, BASE.shape), fresh(8, 6)]),
    "strides": lambda m: m(BASE, out=[fresh(6, 16)[:, ::2], fresh(8, 6)]),
    "empty": lambda m: m(BASE[:0], out=[fresh(0, 8), fresh(8, 0)]),
    "the input": upon(lambda r: (r[:48].reshape(6, 8), [r[:48].reshape(6, 8), fresh(8, 6)])),
    "the input in another shape": upon(lambda r: (r[:48].reshape(6, 8), [fresh(6, 8), r[:48].reshape(8, 6)])),
    "behind the input's begin": upon(lambda r: (r[:48].reshape(6, 8), [r[12:60].reshape(6, 8), fresh(8, 6)])),
    "upon each other": upon(lambda r: (BASE, [r[:48].reshape(6, 8), r[40:88].reshape(8, 6)])),
}


@pytest.mark.parametrize("name", OUTS)
def test_results_go_where_they_go_on_the_cpu(name: str) -> None:
    assert_same(OUTS[name])


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i8", "u8", "i16", "i32", "i64", "u64", "bool"])
def test_every_dtype_goes_there_and_back(dtype: str) -> None:
    kinds = {"bf16": ml_dtypes.bfloat16, "bool": np.bool_, "f16": np.float16, "f64": np.float64}
    kind = np.dtype(kinds.get(dtype, dtype.replace("i", "int").replace("u", "uint")))
    x = (np.random.default_rng(1).random((5, 7)) * 50).astype(kind)

    for array in (x, x[::-2, 1::2], x[:0]):
        assert_same(lambda module, array=array: module(array), dtype)


def test_a_module_is_saved_again_copied_and_loaded_elsewhere(tmp_path: Path) -> None:
    module, host = both()
    module.save(tmp_path / "first.tcm")
    loaded = tc.load(tmp_path / "first.tcm")
    loaded.save(tmp_path / "second.tcm")
    program = f"import tc, numpy as np; m = tc.load({str(tmp_path / 'second.tcm')!r}); print(m(np.ones((3, 2), np.float32))[1].sum())"

    again = tc.load(tmp_path / "second.tcm")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (tmp_path / "first.tcm").read_bytes() == (tmp_path / "second.tcm").read_bytes()
    for each in (loaded, again, pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert all(np.array_equal(a, b) for a, b in zip(each(BASE), host(BASE), strict=True))
    assert done.stdout.strip() == "12.0", done.stderr


def test_threads_that_call_one_module_get_their_own_results() -> None:
    module, problems = both()[0], []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(20):
                x = rng.standard_normal(tuple(rng.integers(0, 9, 2))).astype(np.float32)
                y, z = module(x)
                assert np.array_equal(y, 2 * x) and np.array_equal(z, 2 * x.T)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not problems, problems
