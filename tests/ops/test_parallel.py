"""Running sums, the first in an order and scatters in the form that devices run: against numpy, by threads without races, as PTX, and
executed through OpenCL; each kernel on many threads."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tc.codegen.launches import launches_of
from tc.codegen.ptx.emitter import emit_ptx
from tc.errors import InputError
from tc.interp import run_prim_func
from tc.ir.expr import Const
from tc.ir.loop import PrimFunc
from tc.ops.registry import OPS
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tc.schedule.rules import apply_rules
from tc.target import Target
from tests.opencl_driver import need_opencl
from tests.ops.kernels import make_prim_func
from tests.ptx.kernels import run_launches

CUDA = Target.parse("cuda:sm_80")
FLOATS, INTEGERS = ("f4", "f2", "f8"), ("i1", "i4", "i8", "u1", "u4", "u8", "bool")


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Few different ones, with all that is special."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    found = rng.integers(-3 if dtype[0] != "u" else 0, 5, shape).astype(dtype)
    special = [np.nan, np.inf, -np.inf, -0.0] if dtype[0] == "f" else [np.iinfo(dtype).min, np.iinfo(dtype).max]
    if found.size > 8:
        for each in special:
            found.reshape(-1)[rng.integers(0, found.size, 2)] = each
    return found


def finished(name: str, arrays: list[np.ndarray], attrs: dict[str, object]) -> PrimFunc:
    func = simplify_loops(make_prim_func(OPS[f"{name}_parallel"], arrays, attrs))
    return finish_loops(apply_rules(func, CUDA).func, calls=DEVICE_FINISH_CALLS)


def reference(name: str, arrays: list[np.ndarray], attrs: dict[str, object]) -> list[np.ndarray]:
    return list(OPS[name].run_reference(arrays, OPS[name].attrs(attrs)))  # type: ignore[arg-type]


def check(name: str, arrays: list[np.ndarray], attrs: dict[str, object], rtol: float = 0.0) -> None:
    """By threads whose memory is watched, and as PTX."""
    func, wanted = finished(name, arrays, attrs), reference(name, arrays, attrs)
    results = (run_prim_func(func, arrays), run_launches(func, emit_ptx(func, "k", "sm_80"), "k", arrays))
    for got in results:
        for found, want in zip(got[: len(wanted)], wanted, strict=True):
            np.testing.assert_allclose(found.astype("f8"), want.astype("f8"), rtol=rtol, atol=rtol)


def topk_arrays(seed: int) -> tuple[list[np.ndarray], dict[str, object]]:
    rng = np.random.default_rng(seed)
    dtype = (*FLOATS, *INTEGERS)[seed % 10]
    axis, size = int(rng.integers(0, 2)), int(rng.choice([0, 1, 31, 33, 70, 129]))
    shape = (size, int(rng.integers(0, 4))) if axis == 0 else (int(rng.integers(0, 4)), size)
    k = int(rng.choice([0, min(1, size), min(7, size), size // 2, size]))
    return [values(rng, dtype, shape)], {"k": k, "axis": axis, "largest": bool(rng.integers(2))}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(10))
def test_the_first_in_an_order_are_numpys_whatever_the_type(seed: int) -> None:
    check("topk", *topk_arrays(seed))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(10, 110))
def test_many_first_in_an_order_are_numpys(seed: int) -> None:
    check("topk", *topk_arrays(seed))


def scan_arrays(seed: int) -> tuple[list[np.ndarray], dict[str, object]]:
    rng = np.random.default_rng(seed)
    dtype = ("i4", "i8", "f4", "f8", "u4", "u8", "f2")[seed % 7]
    axis, size = int(rng.integers(0, 3)), int(rng.choice([0, 1, 31, 33, 65, 100]))
    shape = tuple(size if d == axis else int(rng.integers(0, 4)) for d in range(3))
    return [rng.integers(0, 9, shape).astype(dtype)], {"axis": axis, "reverse": bool(seed & 1), "exclusive": bool(seed & 2)}


@pytest.mark.parametrize("seed", range(12))
def test_running_sums_are_numpys(seed: int) -> None:
    check("cumsum", *scan_arrays(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 112))
def test_many_running_sums_are_numpys(seed: int) -> None:
    check("cumsum", *scan_arrays(seed))


def test_a_running_sum_is_as_accurate_as_pairs() -> None:
    """Sums of blocks of sums: errors grow with the blocks, not with the length."""
    x = np.random.default_rng(0).random((1, 4097), np.float32)
    (got,) = run_prim_func(make_prim_func(OPS["cumsum_parallel"], [x], {"axis": 1}), [x])

    assert np.abs(got - x.astype("f8").cumsum(1)).max() < 100 * 2.0**-24 * x.sum()


def scatter_arrays(seed: int) -> tuple[list[np.ndarray], dict[str, object]]:
    rng = np.random.default_rng(seed)
    dtype = ("f4", "i8", "f8", "i4", "f2", "i1")[seed % 6]
    axis, size, updates = int(rng.integers(0, 2)), int(rng.choice([1, 5, 40])), int(rng.choice([0, 1, 9, 70]))
    rows = int(rng.integers(1, 4))
    places = lambda length, n: (length, n) if axis == 0 else (n, length)  # noqa: E731
    x = values(rng, dtype, places(size, rows))
    shape = places(updates, int(rng.integers(0, rows + 1)))
    attrs = {"axis": axis, "reduction": ("none", "add", "mul", "max", "min")[seed % 5]}
    return [x, rng.integers(-size, size, shape), rng.integers(-2, 3, shape).astype(dtype)], attrs


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(12))
def test_scatters_apply_updates_in_their_order(seed: int) -> None:
    check("scatter_elements", *scatter_arrays(seed))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(12, 112))
def test_many_scatters_apply_updates_in_their_order(seed: int) -> None:
    check("scatter_elements", *scatter_arrays(seed))


def test_sorted_updates_are_added_in_the_bits_of_a_loop() -> None:
    rng = np.random.default_rng(2)
    arrays = [np.zeros((2000, 2), np.float32), rng.integers(0, 3, (150, 1)), rng.standard_normal((150, 2)).astype(np.float32)]
    func, (want,) = finished("scatter_nd", arrays, {"reduction": "add"}), reference("scatter_nd", arrays, {"reduction": "add"})

    assert any(buffer.name.startswith("kept") for buffer in func.buffers), "these are so many that they are sorted"
    got = run_launches(func, emit_ptx(func, "k", "sm_80"), "k", arrays)[0]

    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    ("name", "arrays", "attrs"),
    [
        ("cumsum", [np.zeros((1, 70001), np.float32)], {"axis": 1}),
        ("cumsum", [np.zeros((4097, 33), np.float32)], {"axis": 0}),
        ("topk", [np.zeros((1, 70001), np.float32)], {"k": 10}),
        ("topk", [np.zeros((1000, 33), np.float32)], {"k": 5}),
        ("scatter_elements", [np.zeros(70001), np.zeros(5000, np.int64), np.zeros(5000)], {}),
        ("scatter_nd", [np.zeros((1000, 16)), np.zeros((50, 1), np.int64), np.zeros((50, 16))], {"reduction": "add"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_work_is_done_by_many_threads(name: str, arrays: list[np.ndarray], attrs: dict[str, object]) -> None:
    func = finished(name, arrays, attrs)

    launches = launches_of(func)
    threads = [prod(each.threads) * prod(int(size.value) for size in each.grid if isinstance(size, Const)) for each in launches]
    results = sum(buffer.shape[0].value * prod(int(dim.value) for dim in buffer.shape[1:]) for buffer in func.outputs[:1])  # type: ignore[attr-defined, misc]
    assert max(threads) >= min(results, 1 << 14) // 4
    assert sum(count == 1 for count in threads) <= 2, "only what reports wrong indices has one thread"


# -- models


def model(op: str, arrays: dict[str, np.ndarray], constants: dict[str, np.ndarray], num_outputs: int, **attrs: object) -> onnx.ModelProto:
    inits = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    types = _types(arrays, num_outputs)
    outputs = [helper.make_value_info(f"y{k}", helper.make_tensor_type_proto(type_, None)) for k, type_ in enumerate(types)]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in arrays.items()
    ]
    node = helper.make_node(op, [*arrays, *constants], [output.name for output in outputs], **attrs)
    graph = helper.make_graph([node], "g", inputs, outputs, inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _types(arrays: dict[str, np.ndarray], num_outputs: int) -> list[int]:
    first = helper.np_dtype_to_tensor_dtype(next(iter(arrays.values())).dtype)
    return [first, TensorProto.INT64][:num_outputs]


def on_device(made: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    need_opencl()
    module = tc.compile(made, target="opencl")
    found = module.run(arrays)
    return [np.asarray(value) for value in found.values()]


@pytest.mark.parametrize("n", [1, 33, 4097, 70001])
def test_running_sums_of_models_run_on_the_device(n: int) -> None:
    x = np.random.default_rng(n).integers(-9, 9, (2, n))

    (got,) = on_device(model("CumSum", {"x": x}, {"axis": np.array(1)}, 1, reverse=1), {"x": x})

    np.testing.assert_array_equal(got, x[:, ::-1].cumsum(1)[:, ::-1])


@pytest.mark.parametrize(("n", "k"), [(1, 1), (1000, 1000), (4097, 10)])
def test_the_first_of_models_are_found_on_the_device(n: int, k: int) -> None:
    x = np.random.default_rng(n).integers(0, n, (2, n)).astype(np.float32)
    made = model("TopK", {"x": x}, {"k": np.array([k])}, 2)

    got, where = on_device(made, {"x": x})

    want = np.argsort(-x, 1, kind="stable")[:, :k]
    np.testing.assert_array_equal(where, want)
    np.testing.assert_array_equal(got, np.take_along_axis(x, want, 1))


def test_scatters_of_models_run_on_the_device_and_report_wrong_indices() -> None:
    rng = np.random.default_rng(0)
    arrays = {"x": np.zeros(3000, np.float32), "i": rng.integers(-3000, 3000, 700), "u": rng.standard_normal(700).astype(np.float32)}
    made = model("ScatterElements", arrays, {}, 1, reduction="add")
    (want,) = reference("scatter_elements", list(arrays.values()), {"reduction": "add"})

    assert on_device(made, arrays)[0].tobytes() == want.tobytes()
    with pytest.raises(InputError, match="index 3000 is out of range for axis 0 of size 3000"):
        on_device(made, {**arrays, "i": np.where(np.arange(700) == 650, 3000, arrays["i"])})
