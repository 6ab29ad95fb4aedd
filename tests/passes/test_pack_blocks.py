"""Products with dequantized literals use the integers as they are: what they compute, in which memory, and for which targets."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tc.ir.dtype import DType, i2, i4, i8, int_range, pack, u2, u4, u8
from tc.passes.graph import narrow_literals
from tests.draws import some_of


@pytest.fixture(autouse=True)
def _small_literals_stay_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow_literals, "LEAST_KEPT_BYTES", 0)


CODES = {dtype: getattr(TensorProto, f"{'U' if dtype.kind == 'uint' else ''}INT{dtype.bits}") for dtype in (i2, u2, i4, u4, i8, u8)}


def literal(name: str, array: np.ndarray, dtype: DType) -> onnx.TensorProto:
    return helper.make_tensor(name, CODES[dtype], array.shape, pack(array.astype(dtype.numpy)).tobytes(), raw=True)


class Case:
    """A product of f32 with dequantized integers, [k, n] in blocks of k, and what it is in f64."""

    def __init__(
        self, seed: int, depth: int, columns: int, dtype: DType, block: int, zeros: bool = True, turned: bool = False, axis_scale: str = ""
    ) -> None:
        rng = np.random.default_rng(seed)
        low, high = int_range(dtype)
        self.q = rng.integers(low, high + 1, (depth, columns))
        groups = -(-depth // block) if block else 1
        shape = (groups, columns) if block else {"column": (columns,), "": ()}[axis_scale]
        self.scale = rng.uniform(0.01, 0.1, shape).astype(np.float32)
        self.zero = rng.choice([low, high, (low + high + 1) // 2], shape) if zeros else None
        self.dtype, self.block, self.turned, self.depth, self.columns = dtype, block, turned, depth, columns

    def expanded(self, parameter: np.ndarray) -> np.ndarray:
        wide = parameter.astype(np.float64)
        return np.repeat(wide, self.block, 0)[: self.depth] if self.block else wide

    def model(self, rows: int | str, ir: int = 13, opset: int = 25) -> bytes:
        def of(name: str, array: np.ndarray) -> onnx.TensorProto:
            laid = np.ascontiguousarray(array.T if self.turned else array)
            return numpy_helper.from_array(laid, name) if name == "s" else literal(name, laid, self.dtype)

        inits = [of("q", self.q), of("s", self.scale), *([] if self.zero is None else [of("z", self.zero)])]
        names = [each.name for each in inits]
        attrs = {"axis": 1 if self.turned else 0, "block_size": self.block} if self.block else {"axis": 0 if self.turned else 1}
        nodes = [helper.make_node("DequantizeLinear", names, ["w"], **attrs)]
        if self.turned:
            nodes.append(helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["x", nodes[-1].output[0]], ["y"]))
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, size]) for n, size in (("x", self.depth), ("y", self.columns)))
        graph = helper.make_graph(nodes, "product", [x], [y], inits)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir).SerializeToString()

    def check(self, y: np.ndarray, x: np.ndarray) -> None:
        """Each of the sums of a block of b and of g blocks has an error of at most (b + g + 4) half units of what it may add up to."""
        zero = 0.0 if self.zero is None else self.expanded(self.zero)
        w = (self.q - zero) * self.expanded(self.scale)
        low, high = int_range(self.dtype)
        most = (np.abs(self.q - (low + high + 1) / 2) + np.abs(zero - (low + high + 1) / 2)) * self.expanded(self.scale)
        bound = (self.depth + 8) * 2.0**-24 * (np.abs(x.astype(np.float64)) @ most)
        assert np.all(np.abs(y - x.astype(np.float64) @ w) <= bound + 1e-30)


def ops_of(model: bytes, **options: object) -> set[str]:
    graph = tc.lower(model, "graph", **options).as_text()  # type: ignore[arg-type]
    return {name for name in ("matmul_blocks", "dequantize_linear", "matmul_packed") if name in graph}


CASES = [
    (32, 16, u4, 32, 1), (64, 48, i4, 16, 3), (96, 33, u4, 32, 2), (70, 129, u8, 16, 5), (40, 9, i8, 8, 14), (256, 64, u4, 128, 16),
    (128, 200, i8, 0, 1), (33, 17, u8, 0, 4), (35, 31, i4, 0, 1), (64, 40, u2, 16, 2), (64, 40, i2, 32, 20), (24, 12, u4, 24, 1),
]  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("number", some_of(range(len(CASES)), quick=range(0, len(CASES), 2)))
def test_weights_of_blocks_are_used_as_integers(number: int, target: str) -> None:
    depth, columns, dtype, block, rows = CASES[number]
    for zeros in (False, True):
        case = Case(number, depth, columns, dtype, block, zeros, turned=number % 2 == 1, axis_scale="column" if number % 3 else "")
        x = np.random.default_rng(number).standard_normal((rows, depth)).astype(np.float32)
        model = case.model(rows)

        y = tc.compile(model, target=target, threads=1)(x)

        case.check(y, x)
        assert ops_of(model, target=target) == {"matmul_blocks"}


@pytest.mark.parametrize("dtype", [i4, u8])
def test_any_number_of_rows_of_one_module(dtype: DType) -> None:
    case = Case(5, 64, 80, dtype, 32)
    model = case.model("rows")
    one, two = tc.compile(model, threads=1), tc.compile(model, threads=2)
    rng = np.random.default_rng(0)

    for rows in (0, 1, 2, 3, 4, 7, 13, 14, 15, 16, 29, 64):
        x = rng.standard_normal((rows, 64)).astype(np.float32)
        y = one(x)
        assert y.shape == (rows, 80)
        case.check(y, x)
        np.testing.assert_array_equal(y, two(x))


@pytest.mark.covering
@pytest.mark.parametrize("is_symbolic", [False, True], ids=("static", "symbolic"))
@pytest.mark.parametrize("number", some_of(range(len(CASES)), quick=range(1, len(CASES), 2)))
def test_bf16_rounds_what_the_weights_are_multiplied_with_and_not_them(number: int, is_symbolic: bool) -> None:
    depth, columns, dtype, block, rows = CASES[number]
    case = Case(number, depth, columns, dtype, block, number % 2 == 0, axis_scale="column")
    module = tc.compile(case.model("rows" if is_symbolic else rows), precision="bf16", threads=1)
    for count in (0, 1, 15, 16, 40) if is_symbolic else (rows,):
        x = np.random.default_rng(number).standard_normal((count, depth)).astype(np.float32)

        case.check(module(x), x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_blocks_that_are_no_words_stay_dequantized() -> None:
    case = Case(1, 30, 16, u4, 3)
    x = np.random.default_rng(0).standard_normal((2, 30)).astype(np.float32)

    y = tc.compile(case.model(2), threads=1)(x)

    case.check(y, x)
    assert "matmul_blocks" not in ops_of(case.model(2))


def test_strict_numerics_round_the_weights_first() -> None:
    case = Case(2, 64, 32, u4, 32)
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)

    y = tc.compile(case.model(3), numerics="strict", threads=1)(x)

    case.check(y, x)
    assert "matmul_blocks" not in ops_of(case.model(3), numerics="strict")


def test_infinite_and_missing_scales_give_what_arithmetic_says() -> None:
    case = Case(3, 64, 16, i8, 32, zeros=False)
    case.scale[0, 3], case.scale[1, 5] = np.nan, np.inf
    x = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)

    y = tc.compile(case.model(1), threads=1)(x)

    assert np.isnan(y[0, 3]) and np.isinf(y[0, 5])
    assert np.isfinite(np.delete(y, [3, 5], 1)).all()


@pytest.mark.parametrize("turned", [False, True])
def test_weights_are_never_made_as_floats(turned: bool) -> None:
    floats = 4 * 1024 * 4096
    case = Case(4, 1024, 4096, u4, 32, turned=turned)
    model = case.model(1)
    tc.compile(Case(4, 64, 64, u4, 32, turned=turned).model(1), threads=1)
    tracemalloc.start()

    tc.compile(model, threads=1)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * floats  # of the model, panels, the compiler; floats and what they are made of would be three times that
