"""Products on tile registers, run on a model of these: exact for every shape and type, within their own tiles and memory."""

from __future__ import annotations

import dataclasses
import functools

import ml_dtypes
import numpy as np
import pytest

from tc.codegen.llvm.emitter import emit_prim_func
from tc.codegen.llvm.jit import disassemble
from tc.interp import run_prim_func
from tc.ir.dtype import bf16, f32, i8, i32, i64, u8
from tc.ir.expr import Const, Expr, Var, cast
from tc.ir.graph import Attrs
from tc.ir.loop import Alloc, IntrinsicCall, PrimFunc, Stmt
from tc.ir.node import Node, children, walk
from tc.ir.types import DimFact, tensor_type
from tc.ir.uses import buffers_read
from tc.ir.x86_intrinsics import NUM_TILES, is_tile_dot
from tc.ops.blocked import compute_matmul_packed
from tc.passes.graph.pack_matmul import in_groups
from tc.passes.loop.intrinsics import select_intrinsics
from tc.passes.loop.tile_registers import keep_in_tiles
from tc.passes.pipeline import finish_loops
from tc.schedule.knobs import Knob
from tc.schedule.rules import apply_rules
from tc.schedule.rules.matrix_tiles import TileProduct
from tc.target import Target, native_target
from tc.te import compute, create_prim_func, placeholder, reduce
from tests.codegen import tile_model
from tests.draws import some_of
from tests.golden_files import TARGETS
from tests.ops.kernels import run
from tests.schedule.test_dot_products import numbers, product

WIDE = dataclasses.replace(TARGETS["amx"], cores=1)
_AMX = ("amx-tile", "amx-int8", "amx-bf16")
NARROW = dataclasses.replace(
    TARGETS["x86-64-v3"], features=tuple(sorted({*TARGETS["x86-64-v3"].features, *_AMX})), machine="sapphirerapids"
)


def is_here(target: Target) -> bool:
    """Whether this CPU has all that the target needs beside tiles."""
    return {name for name in target.features if name not in _AMX} <= set(native_target().features)


@pytest.fixture(params=[WIDE, NARROW], ids=("avx512", "avx2"))
def target(request: pytest.FixtureRequest) -> Target:
    if not is_here(request.param):
        pytest.skip("this CPU lacks the vectors that the code uses beside tiles")
    return request.param


@functools.lru_cache(maxsize=4)
def scheduled_loops(func: PrimFunc, target: Target) -> PrimFunc:
    """A kernel under its default schedule."""
    return finish_loops(apply_rules(func, target).func, threads=2)


def compiled(func: PrimFunc, arrays: list[np.ndarray], target: Target, *dims: int) -> np.ndarray:
    """The result of a kernel under its default schedule, with the model in place of the instructions."""
    tile_model.used.clear()
    tile_model.errors.clear()

    result, *_ = run(scheduled_loops(func, target), arrays, dims, target=target)

    assert tile_model.errors == []
    assert tile_model.held() == 0
    return result


@pytest.mark.covering
@pytest.mark.parametrize("seed", range(6))
def test_products_are_exact(target: Target, seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n, k = (int(size) for size in rng.integers((16, 17, 64), (90, 90, 150)))
    lhs, rhs = (u8 if rng.integers(2) else i8 for _ in range(2))
    arrays = [numbers(rng, (m, k), lhs), numbers(rng, (k, n), rhs)]

    result = compiled(product(m, n, k, lhs, rhs), arrays, target)

    np.testing.assert_array_equal(result, arrays[0].astype(np.int64) @ arrays[1].astype(np.int64))
    letters = {u8: "u", i8: "s"}
    assert f"tdpb{letters[lhs]}{letters[rhs]}d" in tile_model.used


@pytest.mark.parametrize("grid", TileProduct(64, 64, 64, u8).grids())
def test_every_grid_of_tiles_gives_the_same(grid: tuple[int, int]) -> None:
    if not is_here(WIDE):
        pytest.skip("this CPU lacks the vectors that the code uses beside tiles")
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, (70, 64), u8), numbers(rng, (64, 70), i8)]

    def decide(knob: Knob) -> object:
        return grid if knob.name.endswith("/tile_grid") else knob.default

    final = finish_loops(apply_rules(product(70, 70, 64), WIDE, decide).func, threads=1)
    result, *_ = run(final, arrays, target=WIDE)

    kept = keep_in_tiles(select_intrinsics(final, WIDE.features))
    assert {node.name for node in walk(kept) if isinstance(node, IntrinsicCall)} >= {"tile_dot.u8.i8", "tile_store.i32"}
    np.testing.assert_array_equal(result, arrays[0].astype(np.int64) @ arrays[1].astype(np.int64))


@functools.cache
def product_of_any_rows(n: int, k: int) -> PrimFunc:
    m = Var("m", i64)
    a, b = placeholder((m, k), u8, "A"), placeholder((k, n), i8, "B")
    total = reduce("sum", (m, n), (k,), lambda i, j, r: cast(a[i, r], i32) * cast(b[r, j], i32), "mm")
    return create_prim_func("product", [a, b], [total], [m])


@pytest.mark.covering
@pytest.mark.parametrize("rows", [0, 1, 4, 15, 16, 31, 33, 64])
def test_any_number_of_rows(target: Target, rows: int) -> None:
    rng = np.random.default_rng(rows)
    arrays = [numbers(rng, (rows, 96), u8), numbers(rng, (96, 72), i8)]

    result = compiled(product_of_any_rows(72, 96), arrays, target, rows)

    np.testing.assert_array_equal(result, arrays[0].astype(np.int64) @ arrays[1].astype(np.int64))
    assert ("tdpbusd" in tile_model.used) == (rows >= 16)


@pytest.mark.covering
@pytest.mark.parametrize(("size", "is_symbolic"), [(64, False), (70, False), (16, True), (33, True), (5, True)])
def test_products_of_a_matrix_with_itself(target: Target, size: int, is_symbolic: bool) -> None:
    n: int | Var = Var("n", i64) if is_symbolic else size
    a = placeholder((n, n), i8, "A")
    total = reduce("sum", (n, n), (n,), lambda i, j, r: cast(a[i, r], i32) * cast(a[r, j], i32), "mm")
    x = numbers(np.random.default_rng(size), (size, size), i8)

    result = compiled(create_prim_func("square", [a], [total], [n] if isinstance(n, Var) else []), [x], target, *[size][: is_symbolic])

    np.testing.assert_array_equal(result, x.astype(np.int64) @ x.astype(np.int64))
    assert ("tdpbssd" in tile_model.used) == (size >= 16)


def packed_product(rows: int | Var | tuple[int | Var, ...], n: int, k: int, block: int = 32) -> PrimFunc:
    """The product with a literal that is packed for instructions on tiles."""
    panels = (-(-n // block), -(-k // 64) * 16, block, 4)
    rows = rows if isinstance(rows, tuple) else (rows,)
    x, w = placeholder((*rows, k), u8, "A"), placeholder(panels, i8, "B")
    total = compute_matmul_packed([x, w], Attrs((("columns", n),)), [tensor_type((*rows, n), i32)])
    dims = [dim for dim in rows if isinstance(dim, Var)]
    return create_prim_func("product", [x, w], [total], dims, tuple(DimFact(dim, 0) for dim in dims))


SIZES = [(16, 16, 64), (33, 100, 130), (70, 31, 200), (48, 96, 7), (90, 250, 64), (20, 1, 64), (3, 40, 100), (1, 64, 64)]
IN_BLOCKS = [(sizes, block) for sizes in SIZES for block in (16, 32, 64)]
QUICK = [(sizes, block) for sizes, block in IN_BLOCKS if block == 32 or sizes in SIZES[1:3]]


@pytest.mark.covering
@pytest.mark.parametrize(("sizes", "block"), some_of(IN_BLOCKS, quick=QUICK), ids=str)
@pytest.mark.parametrize("is_symbolic", [False, True], ids=("static", "symbolic"))
def test_literals_that_were_packed_are_read_in_place(target: Target, sizes: tuple[int, int, int], block: int, is_symbolic: bool) -> None:
    rng, (m, n, k) = np.random.default_rng(0), sizes
    a, b = numbers(rng, (m, k), u8), numbers(rng, (k, n), i8)
    func = packed_product(Var("m", i64) if is_symbolic else m, n, k, block)

    result = compiled(func, [a, in_groups(b, block, 4, 64)], target, *([m] if is_symbolic else []))

    np.testing.assert_array_equal(result, a.astype(np.int64) @ b.astype(np.int64))
    scheduled = apply_rules(func, target).func
    assert sum(buffer.dtype is i8 for buffer in buffers_read(scheduled.body)) == 1, "no copy of the literal"
    copies = [node.buffer for node in walk(finish_loops(scheduled, threads=2).body) if isinstance(node, Alloc) and node.buffer.dtype is u8]
    assert all(int(copy.shape[-2].value) <= 64 for copy in copies), "rows are filled up a tile at a time"


@pytest.mark.covering
@pytest.mark.parametrize("symbolic", [(), (0,), (1,), (0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize(("rows", "k"), [((2, 3, 17), 64), ((1, 40, 5), 128), ((5, 7, 8), 70), ((3, 33, 1), 24)], ids=str)
def test_rows_of_several_dims_follow_each_other_in_tiles(
    target: Target, rows: tuple[int, int, int], k: int, symbolic: tuple[int, ...]
) -> None:
    rng, n = np.random.default_rng(0), 40
    a, b = numbers(rng, (*rows, k), u8), numbers(rng, (k, n), i8)
    dims = tuple(Var(f"d{place}", i64) if place in symbolic else dim for place, dim in enumerate(rows))
    func = packed_product(dims, n, k)

    result = compiled(func, [a, in_groups(b, 32, 4, 64)], target, *(rows[place] for place in symbolic))

    np.testing.assert_array_equal(result, a.astype(np.int64) @ b.astype(np.int64))
    assert "tdpbusd" in tile_model.used
    scheduled = apply_rules(func, target).func
    copies = [node.buffer for node in walk(finish_loops(scheduled, threads=2).body) if isinstance(node, Alloc) and node.buffer.dtype is u8]
    assert all(isinstance(copy.shape[-2], Const) for copy in copies), "rows are filled up a tile at a time"


def bf16_product(m: int, n: int, k: int) -> PrimFunc:
    a, b = placeholder((m, k), bf16, "A"), placeholder((k, n), bf16, "B")
    total = reduce("sum", (m, n), (k,), lambda i, j, r: cast(a[i, r], f32) * cast(b[r, j], f32), "mm")
    return create_prim_func("product", [a, b], [total])


@pytest.mark.parametrize("seed", range(3))
def test_products_of_bf16_are_summed_in_f32(target: Target, seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n, k = (int(size) for size in rng.integers((16, 17, 40), (80, 100, 200)))
    arrays = [rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (k, n))]

    result = compiled(bf16_product(m, n, k), arrays, target)

    a, b = (array.astype(np.float64) for array in arrays)
    assert np.abs(result - a @ b).max() <= k * 2.0**-24 * (np.abs(a) @ np.abs(b)).max()
    assert "tdpbf16ps" in tile_model.used


def test_what_follows_the_sum_and_batches(target: Target) -> None:
    a, b, bias = placeholder((3, 40, 64), u8, "A"), placeholder((3, 64, 48), i8, "B"), placeholder((48,), f32, "bias")

    def body(s: Expr, i: Expr, j: Expr, r: Expr) -> Expr:
        return cast(a[s, i, r], i32) * cast(b[s, r, j], i32)

    total = reduce("sum", (3, 40, 48), (64,), body, "mm")
    scaled = compute((3, 40, 48), lambda s, i, j: cast(total[s, i, j], f32) * 0.5 + bias[j], "scaled")
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, (3, 40, 64), u8), numbers(rng, (3, 64, 48), i8), rng.standard_normal(48).astype(np.float32)]

    result = compiled(create_prim_func("scaled_product", [a, b, bias], [scaled]), arrays, target)

    sums = arrays[0].astype(np.int64) @ arrays[1].astype(np.int64)
    np.testing.assert_array_equal(result, sums.astype(np.float32) * np.float32(0.5) + arrays[2])
    assert "tdpbusd" in tile_model.used


def most_held(stmt: Node) -> int:
    """How many tile registers are allocated at once."""
    own = isinstance(stmt, Alloc) and stmt.buffer.scope == "tile"
    return own + max((most_held(child) for child in children(stmt) if isinstance(child, Stmt)), default=0)


@pytest.mark.parametrize("size", [(50, 48, 128), (32, 32, 64), pytest.param((50, 72, 70), marks=pytest.mark.slow)])
def test_registers_mean_the_same_to_the_interpreter(size: tuple[int, int, int]) -> None:
    func, rng = product(*size), np.random.default_rng(0)
    arrays = [numbers(rng, (size[0], size[2]), u8), numbers(rng, (size[2], size[1]), i8)]
    final = finish_loops(apply_rules(func, WIDE).func, threads=1)

    kept = keep_in_tiles(select_intrinsics(final, WIDE.features))

    assert 1 <= most_held(kept.body) <= NUM_TILES
    expected = arrays[0].astype(np.int64) @ arrays[1].astype(np.int64)
    for each in (final, kept):
        np.testing.assert_array_equal(run_prim_func(each, arrays)[0], expected)


def test_without_the_instructions_the_same_trace_runs_in_loops() -> None:
    func, rng = product(40, 40, 70), np.random.default_rng(0)
    arrays = [numbers(rng, (40, 70), u8), numbers(rng, (70, 40), i8)]
    plain = Target.parse("x86-64-v3:cores=1")
    final = finish_loops(apply_rules(func, WIDE).func, threads=1)

    result, *_ = run(final, arrays, target=plain)

    calls = {node.name for node in walk(select_intrinsics(final, plain.features)) if isinstance(node, IntrinsicCall)}
    assert not any(map(is_tile_dot, calls))
    np.testing.assert_array_equal(result, arrays[0].astype(np.int64) @ arrays[1].astype(np.int64))


def test_the_assembler_takes_the_instructions() -> None:
    """On every machine: no processor is asked."""
    final = finish_loops(apply_rules(product(64, 64, 256), WIDE).func, threads=1)

    assembly = disassemble(emit_prim_func(final, "kernel", WIDE.features).ir_text, WIDE).assembly

    assert assembly.count("tdpbusd") == 2 * 4, "of the first tile of a column, and of the others, while one is stored"
    for instruction in ("ldtilecfg", "tilezero", "tileloadd", "tilestored", "tilerelease"):
        assert instruction in assembly


def test_a_grid_fits_the_registers_and_is_square_for_large_results() -> None:
    assert all(high * wide + 2 <= NUM_TILES for high, wide in TileProduct(1024, 1024, 1024, u8).grids())
    assert TileProduct(1024, 1024, 1024, u8).best_grid(WIDE) == (2, 2)
    assert TileProduct(1024, 16, 256, u8).best_grid(WIDE) == (4, 1)
    assert TileProduct(16, 1024, 128, u8).best_grid(WIDE) == (1, 4)
    assert TileProduct(15, 1024, 1024, u8).paying_grid(WIDE) is None


def test_tiles_are_for_machines_whose_rates_are_known() -> None:
    unknown = dataclasses.replace(WIDE, machine="x86-64-v4")

    assert TileProduct(1024, 1024, 1024, u8).paying_grid(unknown) is None
    assert TileProduct(1024, 1024, 1024, bf16).paying_grid(WIDE) is not None
