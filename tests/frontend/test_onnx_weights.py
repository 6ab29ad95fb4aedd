"""MatMulNBits, MatMulBnb4 and GatherBlockQuantized: against onnxruntime, and against their definition in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tc.errors import TcError
from tc.passes.graph import narrow_literals


@pytest.fixture(autouse=True)
def _small_literals_stay_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow_literals, "LEAST_KEPT_BYTES", 0)


@dataclass
class Product:
    """A MatMulNBits of random weights."""

    depth: int
    columns: int
    bits: int = 4
    block: int = 32
    level: int = 0
    zeros: str = ""
    bias: bool = False
    index: np.ndarray | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        groups = -(-self.depth // self.block)
        self.packed = rng.integers(0, 256, (self.columns, groups, self.block * self.bits // 8)).astype(np.uint8)
        self.scale = rng.uniform(0.005, 0.02, (self.columns, groups)).astype(np.float32)
        self.zero: np.ndarray | None = None
        if self.zeros == "packed":
            self.zero = rng.integers(0, 256, (self.columns, -(-groups * self.bits // 8))).astype(np.uint8)
        elif self.zeros == "float":
            self.zero = rng.uniform(0, 2**self.bits, (self.columns, groups)).astype(np.float32)
        self.added = rng.standard_normal(self.columns).astype(np.float32) if self.bias else None

    def bits_of(self, packed: np.ndarray, count: int) -> np.ndarray:
        places = np.arange(8 // self.bits) * self.bits
        return ((packed[..., None] >> places) & (2**self.bits - 1)).reshape(len(packed), -1)[:, :count].astype(np.float64)

    def weights(self) -> np.ndarray:
        """[n, k] in float64."""
        of_term = np.arange(self.depth) // self.block if self.index is None else self.index
        zero: Any = 2.0 ** (self.bits - 1)
        if self.zero is not None:
            groups = self.scale.shape[1]
            zero = (self.zero if self.zeros == "float" else self.bits_of(self.zero, groups)).astype(np.float64)[:, of_term]
        return (self.bits_of(self.packed.reshape(self.columns, -1), self.depth) - zero) * self.scale.astype(np.float64)[:, of_term]

    def model(self, rows: int | str = "rows", dtype: int = TensorProto.FLOAT, **changed: Any) -> onnx.ModelProto:
        wide = np.float16 if dtype == TensorProto.FLOAT16 else np.float32
        arrays = {"B": self.packed, "scales": self.scale.astype(wide)}
        arrays |= {name: array for name, array in (("zero", self.zero), ("index", self.index), ("bias", self.added)) if array is not None}
        names = ["x", *(name if name in arrays else "" for name in ("B", "scales", "zero", "index", "bias"))]
        while not names[-1]:
            names.pop()
        attrs = {"K": self.depth, "N": self.columns, "bits": self.bits, "block_size": self.block, "accuracy_level": self.level, **changed}
        node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **attrs)
        x, y = (helper.make_tensor_value_info(name, dtype, [rows, size]) for name, size in (("x", self.depth), ("y", self.columns)))
        graph = helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(a, name) for name, a in arrays.items()])
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run_peer(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    found: np.ndarray = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]
    return found


def rows_of(product: Product, rows: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, product.depth)).astype(np.float32)


PRODUCTS = [
    Product(96, 40), Product(96, 33, zeros="packed"), Product(64, 24, zeros="float", bias=True), Product(100, 17, block=16, zeros="packed"),
    Product(96, 70, bits=8), Product(160, 40, bits=8, block=64, zeros="packed"), Product(128, 16, block=128), Product(32, 8, bias=True),
    Product(64, 48, bits=2, zeros="packed"), Product(40, 5, zeros="packed"), Product(1024, 40, bits=8),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(PRODUCTS)))
def test_products_with_few_bits_are_what_they_are_in_float64(number: int) -> None:
    product = PRODUCTS[number]
    module = tc.compile(product.model(), threads=1)

    for rows in (0, 1, 2, 3, 4, 5, 6, 7, 17):
        x = rows_of(product, rows)
        wanted = x.astype(np.float64) @ product.weights().T + (0 if product.added is None else product.added)
        most = np.abs(x).astype(np.float64) @ (2.0 ** (product.bits + 1) * np.repeat(product.scale, product.block, 1)[:, : product.depth].T)
        assert np.all(np.abs(module(x) - wanted) <= (product.depth + 8) * 2.0**-24 * (most + 4))


@pytest.mark.parametrize("number", [0, 1, 3, 4, 5, 6, 7])
def test_products_of_bytes_are_those_of_onnxruntime(number: int) -> None:
    product = PRODUCTS[number]
    product = Product(product.depth, product.columns, product.bits, product.block, 4, product.zeros, product.bias)
    module = tc.compile(product.model(), threads=1)

    for rows in (1, 3, 16, 30):
        x = rows_of(product, rows)
        wanted = run_peer(product.model(), x)
        np.testing.assert_allclose(module(x), wanted, rtol=0, atol=3e-6 * np.abs(wanted).max())


@pytest.mark.parametrize(("target", "threads"), [("native", 2), ("x86-64-v4", 1), ("x86-64-v3", 2)])
def test_products_of_bytes_have_the_same_bits_everywhere(target: str, threads: int) -> None:
    product = Product(96, 40, level=4, zeros="packed")
    for rows in (1, 20):
        x = rows_of(product, rows)
        model = product.model(rows)
        np.testing.assert_array_equal(tc.compile(model, threads=threads, target=target)(x), tc.compile(model, threads=1)(x))


def test_blocks_of_zeros_and_not_a_number() -> None:
    product = Product(64, 16, level=4)
    x = np.zeros((4, 64), np.float32)
    x[1, 3], x[2, 40], x[3, :5] = np.nan, np.inf, 1e-30

    y = tc.compile(product.model(), threads=1)(x)

    np.testing.assert_array_equal(y[0], 0)
    assert np.isnan(y[1]).all() and not np.isfinite(y[2]).any() and np.isfinite(y[3]).all()


@pytest.mark.parametrize("level", [0, 4])
def test_terms_of_a_block_may_lie_anywhere(level: int) -> None:
    index = np.random.default_rng(0).integers(0, 3, 96).astype(np.int32)
    product = Product(96, 24, index=index, level=level, zeros="packed")
    x = rows_of(product, 3)

    y = tc.compile(product.model(), threads=1)(x)

    wanted = x.astype(np.float64) @ product.weights().T
    np.testing.assert_allclose(y, wanted, rtol=0, atol=(1e-5 if level == 0 else 2e-2) * np.abs(wanted).max())


def test_terms_that_fill_the_last_block_up_may_be_of_any_block() -> None:
    index = np.random.default_rng(1).permutation(np.arange(128) // 32).astype(np.int32)
    product = Product(100, 24, index=index[:100])
    model, x = product.model(), rows_of(product, 3)
    (stored,) = (each for each in model.graph.initializer if each.name == "index")
    stored.CopyFrom(numpy_helper.from_array(index, "index"))

    y = tc.compile(model, threads=1)(x)

    wanted = x.astype(np.float64) @ product.weights().T
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    np.testing.assert_allclose(run_peer(model, x), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(("bits", "block"), [(8, 64), (4, 32), (8, 32)])
def test_zero_points_far_from_the_middle_cancel_no_digits(bits: int, block: int) -> None:
    """Weights are their zero point or one less, which is at the end of their range; the rows are far from 0."""
    product = Product(320, 40, bits=bits, block=block, zeros="packed")
    rng, top, groups = np.random.default_rng(0), 2**bits - 1, 320 // block
    zero = top - rng.integers(0, 2, (40, groups))
    values = np.repeat(zero, block, 1) - rng.integers(0, 2, (40, 320))
    each = 8 // bits

    def packed(numbers: np.ndarray) -> np.ndarray:
        parts = np.pad(numbers, [(0, 0), (0, -numbers.shape[1] % each)]).reshape(len(numbers), -1, each)
        made: np.ndarray = (parts << (bits * np.arange(each))).sum(-1).astype(np.uint8)
        return made

    product.packed, product.zero = packed(values).reshape(40, groups, -1), packed(zero)
    x = (rng.standard_normal((4, 320)) * 0.1 + 10).astype(np.float32)

    y = tc.compile(product.model(), threads=1)(x)

    wanted = x.astype(np.float64) @ product.weights().T
    assert (np.abs(y - wanted) <= 320 * 2.0**-24 * (np.abs(x.astype(np.float64)) @ np.abs(product.weights()).T)).all()
    large = tc.compile(product.model(), threads=1)(np.full((1, 320), 3e35, np.float32))
    assert np.isfinite(large).all()


def test_half_floats_are_summed_as_floats() -> None:
    product = Product(96, 24)
    product.scale = product.scale.astype(np.float16).astype(np.float32)
    x = rows_of(product, 3).astype(np.float16)

    y = tc.compile(product.model(dtype=TensorProto.FLOAT16), threads=1)(x)

    wanted = x.astype(np.float64) @ product.weights().T
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, wanted, rtol=2.0**-10, atol=1e-3)


WRONG = [
    ({"block_size": 24}, "blocks"), ({"bits": 3}, "3 bits"), ({"K": 95}, "K is 95"), ({"N": 41}, "B has"), ({"block_size": 16}, "scales"),
]  # fmt: skip


@pytest.mark.covering(2)
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("count", "depth", "block"), [(8, 64, 32), (5, 14, 16), (3, 7, 128), (13, 112, 64), (1, 1, 16)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_products_with_numbers_of_a_table(rng: np.random.Generator, kind: int, count: int, depth: int, block: int, dtype: type) -> None:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    codes = rng.integers(0, 256, -(-count * depth // 2)).astype(np.uint8)
    largest = rng.uniform(0.1, 2, -(-count * depth // block)).astype(dtype)
    attrs = {"K": depth, "N": count, "block_size": block, "quant_type": kind}
    graph = helper.make_graph(
        [helper.make_node("MatMulBnb4", ["x", "b", "absmax"], ["y"], domain="com.microsoft", **attrs)], "bnb",
        [helper.make_tensor_value_info("x", element, ["n", depth])], [helper.make_tensor_value_info("y", element, ["n", count])],
        [numpy_helper.from_array(codes, "b"), numpy_helper.from_array(largest, "absmax")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8)
    x = rng.standard_normal((3, depth)).astype(dtype)

    found = tc.compile(model, threads=1).run({"x": x})["y"]

    near = 1e-5 if dtype is np.float32 else 4e-3
    np.testing.assert_allclose(found, run_peer(model, x), rtol=near, atol=near)


WRONG_TABLES = [({"K": 66}, "must have 264 bytes"), ({"block_size": 16}, "must have 32 numbers"), ({"quant_type": 2}, "quant_type 2")]


@pytest.mark.parametrize(("changed", "words"), WRONG_TABLES)
def test_wrong_sizes_of_tables_are_told(changed: dict[str, int], words: str) -> None:
    attrs = {"K": 64, "N": 8, "block_size": 32, "quant_type": 1} | changed
    graph = helper.make_graph(
        [helper.make_node("MatMulBnb4", ["x", "b", "absmax"], ["y"], domain="com.microsoft", **attrs)], "bnb",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(np.zeros(256, np.uint8), "b"), numpy_helper.from_array(np.ones(16, np.float32), "absmax")],
    )  # fmt: skip
    with pytest.raises(TcError, match=words):
        tc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("com.microsoft", 1)], ir_version=8))


@pytest.mark.parametrize(("changed", "words"), WRONG)
def test_wrong_sizes_are_told(changed: dict[str, int], words: str) -> None:
    with pytest.raises(TcError, match=words):
        tc.compile(Product(96, 40).model(**changed), threads=1)


def test_zero_points_of_too_few_bytes_are_told() -> None:
    product = Product(96, 40, zeros="packed")
    product.zero = product.zero[:, :1]  # type: ignore[index]
    with pytest.raises(TcError, match="zero points of 40 bytes"):
        tc.compile(product.model(), threads=1)


@pytest.mark.parametrize("kind", ["u8", "i4"])
def test_rows_are_gathered_and_dequantized(kind: str) -> None:
    rng = np.random.default_rng(0)
    packed, scale = rng.integers(0, 256, (12, 16)).astype(np.uint8), rng.uniform(0.1, 1, (12, 2)).astype(np.float32)
    halves = np.stack([packed & 15, packed >> 4], -1).reshape(12, 32).astype(np.float64)
    if kind == "i4":
        data = helper.make_tensor("d", TensorProto.INT4, [12, 32], packed.tobytes(), raw=True)
        numbers, zeros, names = np.where(halves > 7, halves - 16, halves), [], ["d", "i", "s"]
    else:
        zero = rng.integers(0, 256, (12, 1)).astype(np.uint8)
        data, zeros, names = numpy_helper.from_array(packed, "d"), [numpy_helper.from_array(zero, "z")], ["d", "i", "s", "z"]
        numbers = halves - np.repeat(np.concatenate([zero & 15, zero >> 4], 1), 16, 1)
    attrs = {"block_size": 16, "quantize_axis": 1, "gather_axis": 0, **({"bits": 4} if kind == "u8" else {})}
    node = helper.make_node("GatherBlockQuantized", names, ["y"], domain="com.microsoft", **attrs)
    inputs = [helper.make_tensor_value_info("i", TensorProto.INT64, [2, 3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, 32])]
    graph = helper.make_graph([node], "rows", inputs, outputs, [data, numpy_helper.from_array(scale, "s"), *zeros])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    indices = np.array([[0, 11, 3], [3, 5, -1]])

    y = tc.compile(model, threads=1)(indices)

    np.testing.assert_allclose(y, (numbers * np.repeat(scale, 16, 1))[indices], rtol=1e-6)
