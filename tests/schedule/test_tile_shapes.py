"""Tiles of fewer rows, of short ones, of every second one in memory, and of rows that run on mean what their loops do."""

from __future__ import annotations

import numpy as np
import pytest

from tc.codegen.llvm.emitter import emit_prim_func
from tc.codegen.llvm.jit import compile_object
from tc.interp import run_prim_func
from tc.ir.dtype import DType, i8, i32, u8
from tc.ir.expr import Expr, cast
from tc.ir.intrinsic import INTRINSICS
from tc.ir.loop import IntrinsicCall, PrimFunc
from tc.ir.node import walk
from tc.ir.x86_intrinsics import TILE_ROWS, TileShape, base_and_shape, is_tile_dot, tile_dot_name, tile_zero_name
from tc.passes.loop.intrinsics import select_intrinsics
from tc.passes.loop.tile_registers import keep_in_tiles
from tc.passes.pipeline import finish_loops
from tc.schedule.step import Schedule
from tc.te import create_prim_func, placeholder, reduce
from tests.codegen import tile_model
from tests.draws import some_of
from tests.ops.kernels import run
from tests.schedule.test_dot_products import numbers
from tests.schedule.test_tile_products import NARROW, WIDE


def window_product(shape: TileShape, width: int, taps: int, lhs: DType, rhs: DType, rows: int) -> tuple[PrimFunc, list[tuple[int, ...]]]:
    """Sums of products over taps and bytes of pixels of an image [h, width, bytes], whose rows are read one after the other, or its first;
    with the shapes of its operands."""
    terms, height = shape.row_bytes, (shape.step * (rows - 1) + taps + 1) // width + 2
    x, w = placeholder((height, width, terms), lhs, "X"), placeholder((taps, terms // 4, TILE_ROWS, 4), rhs, "W")

    def body(i: Expr, j: Expr, tap: Expr, k: Expr) -> Expr:
        pixel = i * shape.step + tap
        place = (pixel // width, pixel % width) if shape.runs_on else (0, pixel)
        return cast(x[(*place, k)], i32) * cast(w[tap, k // 4, j, k % 4], i32)

    total = reduce("sum", (rows, TILE_ROWS), (taps, terms), body, "mm")
    return create_prim_func("product", [x, w], [total]), [(height, width, terms), (taps, terms // 4, TILE_ROWS, 4)]


def tensorized(func: PrimFunc, shape: TileShape, lhs: DType, rhs: DType) -> PrimFunc:
    schedule = Schedule(func)
    row, column, tap, term = schedule.loops_of("mm")
    tiles, row = schedule.split(row, shape.rows)
    groups, terms = schedule.split(term, 4)
    schedule.reorder(tiles, tap, row, column, groups, terms)
    start = schedule.decompose_reduction("mm", tap)
    schedule.tensorize(schedule.loops_of(start)[-2], tile_zero_name(i32, shape))
    schedule.tensorize(row, tile_dot_name(lhs, rhs, shape))
    return finish_loops(schedule.func, threads=1)


@pytest.mark.parametrize("seed", some_of(range(12), quick=range(5)))
def test_every_shape_means_its_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    is_flat = bool(seed % 2)
    shape = TileShape(int(rng.integers(1, 17)), 4 * int(rng.integers(1, 17)), int(rng.integers(1, 4)), is_flat)
    lhs, rhs = (u8 if rng.integers(2) else i8 for _ in range(2))
    rows, taps = 3 * shape.rows, int(rng.integers(1, 4))
    width = int(rng.integers(1, 9)) if is_flat else shape.step * rows + taps
    func, sizes = window_product(shape, width, taps, lhs, rhs, rows)
    arrays = [numbers(rng, sizes[0], lhs), numbers(rng, sizes[1], rhs)]
    expected, *_ = run_prim_func(func, arrays)
    final = tensorized(func, shape, lhs, rhs)
    tile_model.used.clear()
    tile_model.errors.clear()

    result, *_ = run(final, arrays, target=NARROW)

    np.testing.assert_array_equal(result, expected)
    kept = keep_in_tiles(select_intrinsics(final, NARROW.features))
    np.testing.assert_array_equal(run_prim_func(kept, arrays)[0], expected)
    assert tile_model.errors == []
    assert sum(count for name, count in tile_model.used.items() if name.startswith("tdp")) == 3 * taps
    assert tile_model.used["tilestored64"] == 3, "sums stay in registers over the taps"


def test_names_tell_the_shape() -> None:
    for shape in (TileShape(), TileShape(7), TileShape(16, 32), TileShape(step=2), TileShape(3, 4, 5, True), TileShape(runs_on=True)):
        name = tile_dot_name(u8, i8, shape)

        assert base_and_shape(name) == ("tile_dot.u8.i8", shape)
        assert INTRINSICS[name].name == name
        assert is_tile_dot(name)


@pytest.mark.parametrize("name", ["17x64", "16x64", "0x64", "3x66", "3x68", "4x64.step1", "04x64", "4x64.step0", "4x64.on"])
def test_there_are_no_other_shapes(name: str) -> None:
    assert f"tile_dot.u8.i8.{name}" not in INTRINSICS
    assert "tile_zero.i32.3x64.step2" not in INTRINSICS


def test_strided_rows_of_few_bytes_are_assembled() -> None:
    shape = TileShape(14, 32, 2)
    final = tensorized(window_product(shape, 100, 3, u8, i8, 42)[0], shape, u8, i8)

    source = emit_prim_func(final, "kernel", WIDE.features)

    assert compile_object(source.ir_text, WIDE)
    calls = [node.name for node in walk(keep_in_tiles(select_intrinsics(final, WIDE.features))) if isinstance(node, IntrinsicCall)]
    assert {"tile_load.lhs.u8.14x32.step2", "tile_load.rhs.i8.8x64", "tile_dot.u8.i8.14x32", "tile_store.i32.14x64"} <= set(calls)
