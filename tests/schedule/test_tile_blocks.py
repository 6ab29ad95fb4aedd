"""Products with weights in blocks, each of its own scale, on a model of tile registers; with few rows, without any."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tc.codegen.llvm.builder import Module
from tc.ir.arith import Facts
from tc.ir.dtype import bf16, f32, from_numpy, i64, parse_dtype
from tc.ir.expr import Var, cast
from tc.ir.loop import PrimFunc
from tc.ir.types import DimFact, tensor_type
from tc.ops.block_products import _run, pack_parameters, pack_weights
from tc.ops.registry import OPS, inference
from tc.target import Target
from tc.te import compute, create_prim_func, placeholder
from tests.codegen import tile_model
from tests.ops.kernels import run
from tests.schedule.test_tile_products import scheduled_loops, target  # noqa: F401

OP = OPS["matmul_blocks"]
WEIGHTS = {"bytes": ("i4", "u4", "i8", "u8"), "bf16": ("i4", "u4", "i8", "u8")}


def draw(seed: int, kind: str, block: int) -> tuple[list[np.ndarray | None], int]:
    """Operands for 40 rows, and the columns."""
    rng = np.random.default_rng(1000 * block + seed)
    weights = WEIGHTS[kind][(block // 32 + 2 * seed) % 4]
    groups, columns, panel = int(rng.integers(1, 5)), int(rng.choice([9, 33, 64, 100])), int(rng.choice([16, 32, 64]))
    dtype = parse_dtype(weights)
    low, high = (0, 2**dtype.bits) if weights.startswith("u") else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1))
    packed = pack_weights(rng.integers(low, high, (columns, groups * block)).astype(dtype.numpy), block, panel)
    scale = pack_parameters(rng.uniform(0.01, 0.1, (columns, groups)).astype(np.float32), panel)
    if kind == "bytes":
        x = rng.integers(-127, 128, (40, groups, block)).astype(np.int8)
        each = rng.integers(-8, 8, (columns, groups)).astype(np.int8)
        zero = np.array(8, np.int8) if rng.random() < 0.5 else pack_parameters(each, panel)
        sums = x.astype(np.int32).sum(-1, dtype=np.int32)
        return [x, packed, scale, zero, None, sums, rng.uniform(0.1, 1, (40, groups)).astype(np.float32)], columns
    x = rng.standard_normal((40, groups, block)).astype(ml_dtypes.bfloat16)
    return [x, packed, scale], columns


def product(operands: list[np.ndarray | None], columns: int, is_symbolic: bool) -> PrimFunc:
    """The product; x of bf16 is cast, as it is where `precision` asks for it."""
    row = Var("m", i64)

    def shape_of(place: int, array: np.ndarray) -> tuple[object, ...]:
        return (row, *array.shape[1:]) if is_symbolic and place in (0, 5, 6) else array.shape

    tensors = [None if a is None else placeholder(shape_of(k, a), from_numpy(a.dtype), f"x{k}") for k, a in enumerate(operands)]
    inputs = [each for each in tensors if each is not None]
    x = tensors[0]
    assert x is not None
    if x.dtype is bf16:
        tensors[0] = compute(x.shape, lambda *at: cast(x[at], f32), "wide")
    attrs = OP.attrs({"columns": columns})
    with inference(Facts()):
        types = OP.infer_types([None if t is None else tensor_type(t.shape, t.dtype) for t in tensors], attrs)
        outputs = OP.compute_tensors(tensors, attrs, types)
    return create_prim_func("product", inputs, outputs, [row] * is_symbolic, (DimFact(row, 0),) * is_symbolic)


@pytest.mark.covering
@pytest.mark.parametrize("is_symbolic", [False, True], ids=("static", "symbolic"))
@pytest.mark.parametrize("block", [32, 64, 96, 128, 40])
@pytest.mark.parametrize("kind", ["bytes", "bf16"])
@pytest.mark.parametrize("seed", range(2))
def test_blocks_are_summed_on_tiles_and_scaled(target: Target, seed: int, kind: str, block: int, is_symbolic: bool) -> None:  # noqa: F811
    operands, columns = draw(seed, kind, block)
    func = product(operands, columns, is_symbolic)
    assert operands[0] is not None
    for rows in (0, 1, 7, 15, 16, 17, 40) if is_symbolic else (40,):
        few = [each[:rows] if each is not None and k in (0, 5, 6) else each for k, each in enumerate(operands)]
        given = [each for each in few if each is not None]
        tile_model.used.clear()
        tile_model.errors.clear()

        result, *_ = run(scheduled_loops(func, target), given, (rows,) * is_symbolic, target=target)

        wide = [each.astype(np.float64) if each is not None and each.dtype == ml_dtypes.bfloat16 else each for each in few]
        expected = _run(wide, OP.attrs({"columns": columns}))
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max(initial=1.0))
        assert tile_model.errors == [] and tile_model.held() == 0
        if rows >= 16 and target.vector_bits == 512 and block % 32 == 0 and (kind == "bf16" or block >= 64):
            assert any(name.startswith("tdp") for name in tile_model.used)
        elif rows < 16:
            assert not any(name.startswith("tdp") for name in tile_model.used)


def test_constants_of_one_name_and_other_contents_are_two() -> None:
    """Registers of another version of a kernel were shaped as the first version's: an illegal instruction."""
    module = Module(())

    first, second, again = (module.constant("tile_config", content) for content in (b"\1\2", b"\1\3", b"\1\2"))

    assert first == again == "@tile_config" and second != first
    assert all(str(module).count(f"{name} = ") == 1 for name in (first, second))
