"""What follows a tile of sums, between the products of the next tile: the same numbers, in the order that was asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby

import ml_dtypes
import numpy as np
import pytest

from tc.codegen.llvm.emitter import emit_prim_func
from tc.codegen.llvm.jit import disassemble
from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.dtype import DType, bf16, f32, i8, i32, i64, u8
from tc.ir.expr import Expr, Var, cast, maximum, minimum
from tc.ir.graph import Attrs
from tc.ir.hints import Prefetch
from tc.ir.loop import For, IntrinsicCall, LoopKind, PrimFunc, walk_statements
from tc.ir.node import Node
from tc.ir.parser import parse_module
from tc.ir.printer import print_ir
from tc.ir.types import tensor_type
from tc.ir.x86_intrinsics import NUM_TILES, is_tile_dot
from tc.ops.blocked import compute_matmul_packed
from tc.passes.graph.blocked_literals import grouped_weights
from tc.passes.graph.pack_matmul import in_groups
from tc.passes.loop.interleave_stores import interleave_stores
from tc.passes.loop.intrinsics import select_intrinsics
from tc.passes.loop.tile_registers import keep_in_tiles
from tc.passes.pipeline import finish_loops
from tc.schedule.knobs import Decide, take_default
from tc.schedule.rules import apply_rules
from tc.schedule.rules.matrix_tiles import TileProduct
from tc.schedule.rules.window_cost import WindowProduct
from tc.schedule.step import Schedule
from tc.target import Target
from tc.te import compute, create_prim_func, placeholder
from tests.codegen import tile_model
from tests.draws import some_of
from tests.ops.kernels import run
from tests.schedule.test_dot_products import numbers
from tests.schedule.test_tile_products import NARROW, WIDE, bf16_product, most_held, product
from tests.schedule.test_window_tiles import attrs_of, convolution, expected_of


def quantized(m: int | Var, n: int, k: int) -> PrimFunc:
    """A product of bytes with a packed literal, scaled by column, with a residual added, clipped to bytes."""
    a, b = placeholder((m, k), u8, "A"), placeholder((-(-n // 32), -(-k // 64) * 16, 32, 4), i8, "B")
    scale, residual = placeholder((n,), f32, "scale"), placeholder((m, n), u8, "R")
    total = compute_matmul_packed([a, b], Attrs((("columns", n),)), [tensor_type((m, n), i32)])

    def body(i: Expr, j: Expr) -> Expr:
        value = cast(total[i, j], f32) * scale[j] + cast(residual[i, j], f32)
        return cast(minimum(maximum(value, 0.0), 255.0), u8)

    result = compute((m, n), body, "scaled")
    return create_prim_func("quantized", [a, b, scale, residual], [result], [m] if isinstance(m, Var) else [])


def arrays_of(rng: np.random.Generator, m: int, n: int, k: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Operands of `quantized`, and its result. Scales are powers of two, so that nothing is rounded but the last."""
    a, b, residual = numbers(rng, (m, k), u8), numbers(rng, (k, n), i8), numbers(rng, (m, n), u8)
    scale = np.exp2(-rng.integers(4, 12, n)).astype(np.float32)
    sums = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.float64)
    expected = np.clip(sums * scale + residual, 0, 255).astype(np.uint8)
    return [a, in_groups(b, 32, 4, 64), scale, residual], expected


def deciding(**answers: object) -> Decide:
    return lambda knob: answers.get(knob.name.rpartition("/")[2], knob.default)


def finished(func: PrimFunc, target: Target, decide: Decide) -> PrimFunc:
    return finish_loops(apply_rules(func, target, decide).func, threads=2)


def in_registers(func: PrimFunc, target: Target) -> PrimFunc:
    """The loops as they are emitted."""
    return interleave_stores(keep_in_tiles(select_intrinsics(func, target.features)))


def on_model(func: PrimFunc, arrays: list[np.ndarray], *dims: int) -> np.ndarray:
    """The result of finished loops, with a model in place of the instructions."""
    tile_model.used.clear()
    tile_model.errors.clear()
    result, *_ = run(func, arrays, dims, target=NARROW)
    assert tile_model.errors == []
    assert tile_model.held() == 0
    return result


def is_interleaved(func: PrimFunc) -> bool:
    """Whether the hint of a loop is carried out: none is left in what is emitted."""
    return any(map(has_hint, walk_statements(func.body))) and not any(map(has_hint, walk_statements(in_registers(func, NARROW).body)))


def has_hint(node: Node) -> bool:
    return isinstance(node, For) and node.hints.pipeline == 2


# -- the same numbers


@pytest.mark.parametrize("seed", some_of(range(5), quick=range(2)))
def test_products_with_residuals_are_exact_in_every_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n, k = (int(size) for size in rng.integers((16, 17, 1), (150, 130, 400)))
    arrays, expected = arrays_of(rng, m, n, k)
    grids = TileProduct(m, n, k, u8).grids()
    grid = grids[int(rng.integers(len(grids)))]

    for stores in ("plain", "interleaved"):
        func = finished(quantized(m, n, k), NARROW, deciding(tile_grid=grid, stores=stores))

        np.testing.assert_array_equal(on_model(func, arrays), expected)
        assert "tdpbusd" in tile_model.used
        if stores == "plain":
            assert not is_interleaved(func)


@pytest.mark.parametrize("seed", range(3))
def test_a_rhs_that_passes_by_the_first_cache_is_the_same_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n, k = (int(size) for size in rng.integers((16, 40, 1), (100, 130, 300)))
    arrays, expected = arrays_of(rng, m, n, k)

    func = finished(quantized(m, n, k), NARROW, deciding(stream_rhs=True))

    np.testing.assert_array_equal(on_model(func, arrays), expected)
    assert "tileloaddt164" in tile_model.used


def test_the_rhs_passes_by_where_rows_of_the_lhs_would_stay_without_it() -> None:
    def streams(m: int, n: int, k: int) -> bool:
        return ".streams" in print_ir(finished(quantized(m, n, k), WIDE, take_default))

    assert streams(1024, 1000, 1024)
    assert not streams(1024, 1000, 512), "both stay"
    assert not streams(1024, 1000, 4096), "the rows do not stay either"
    assert not streams(1024, 8192, 1024), "it is no part of the second cache, and is fetched ahead"


def test_products_between_stores_fetch_tiles_ahead_as_those_before_do() -> None:
    func = finished(quantized(256, 512, 512), WIDE, deciding(stores="interleaved", prefetch_bytes=8192, stream_rhs=False))

    assert is_interleaved(func)
    loops = [node for node in walk_statements(in_registers(func, WIDE).body) if isinstance(node, For) and holds_products(node)]
    assert len(loops) >= 2, "those of the first tile, and of the others"
    assert all(loop.hints.prefetch == Prefetch(1, 8192) for loop in loops)


def test_products_over_taps_that_are_loops_keep_the_hint_of_the_loop_around_them() -> None:
    attrs = attrs_of(128, 64, pads=(3, 3, 3, 3), strides=(1, 1))
    func = convolution(tensor_type((1, 2, 14, 16, 64), u8), tensor_type((2, 2, 7, 7, 16, 64, 4), i8), attrs)
    found = finished(func, WIDE, deciding(stores="interleaved", prefetch_bytes=8192))

    assert is_interleaved(found)
    statements = list(walk_statements(in_registers(found, WIDE).body))
    loops = [node for node in statements if isinstance(node, For) and node.hints.prefetch == Prefetch(1, 8192)]
    fetching = {node for loop in loops for node in walk_statements(loop.body)}
    products = [node for node in statements if isinstance(node, IntrinsicCall) and is_tile_dot(node.name)]
    assert products
    assert fetching.issuperset(products)


def holds_products(loop: For) -> bool:
    """Whether products of tiles are in a loop, and in none inside of it."""
    inner = [node for node in walk_statements(loop.body) if isinstance(node, For | IntrinsicCall)]
    return any(isinstance(node, IntrinsicCall) and is_tile_dot(node.name) for node in inner) and not any(
        isinstance(node, For) and node.kind is LoopKind.SERIAL for node in inner
    )


@pytest.mark.parametrize("depth", [40, 128, 300])
def test_any_number_of_rows(depth: int) -> None:
    func = finished(quantized(Var("m", i64), 96, depth), NARROW, deciding(stores="interleaved"))

    assert is_interleaved(func)
    for rows in (0, 1, 15, 16, 31, 32, 33, 64, 100, 161):
        arrays, expected = arrays_of(np.random.default_rng(rows), rows, 96, depth)
        np.testing.assert_array_equal(on_model(func, arrays, rows), expected)


def test_sums_of_bf16_are_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((70, 200), (200, 90))]

    plain, interleaved = (finished(bf16_product(70, 90, 200), NARROW, deciding(stores=each)) for each in ("plain", "interleaved"))

    assert is_interleaved(interleaved)
    np.testing.assert_array_equal(on_model(interleaved, arrays), on_model(plain, arrays))


WINDOWS = [  # channels, outputs, height, width, taps, stride
    (64, 64, 9, 40, 3, 1),
    (64, 128, 12, 12, 1, 1),
    (128, 64, 8, 20, 3, 2),
    (192, 64, 20, 16, 1, 1),
]


@pytest.mark.covering
@pytest.mark.parametrize("sizes", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", [u8, bf16], ids=str)
def test_convolutions_are_the_same_bits(sizes: tuple[int, ...], dtype: DType) -> None:
    (channels, outputs, height, width, taps, stride), rng = sizes, np.random.default_rng(0)
    block = 64 // dtype.size_bytes
    image, weights = (2, channels // block, height, width, block), (outputs, channels, taps, taps)
    x, w = (numbers(rng, shape, each) if dtype is u8 else rng.standard_normal(shape) for shape, each in ((image, u8), (weights, i8)))
    x, w = (x, w) if dtype is u8 else (each.astype(ml_dtypes.bfloat16) for each in (x, w))
    w = grouped_weights(w, block, block)
    attrs = attrs_of(channels, block, pads=(taps // 2,) * 4, strides=(stride, stride))
    func = convolution(tensor_type(x.shape, dtype), tensor_type(w.shape, i8 if dtype is u8 else bf16), attrs)

    plain, interleaved = (finished(func, NARROW, deciding(stores=each)) for each in ("plain", "interleaved"))

    result = on_model(interleaved, [x, w])
    assert is_interleaved(interleaved)
    np.testing.assert_array_equal(result, on_model(plain, [x, w]))
    if dtype is u8:
        np.testing.assert_array_equal(result, expected_of(x, w, attrs))


@pytest.mark.parametrize("depth", [64, 130])
def test_what_is_emitted_means_the_same_to_the_interpreter(depth: int) -> None:
    arrays, expected = arrays_of(np.random.default_rng(0), 40, 32, depth)
    kept = in_registers(finished(quantized(40, 32, depth), WIDE, deciding(stores="interleaved", tile_grid=(1, 2))), WIDE)

    np.testing.assert_array_equal(run_prim_func(kept, arrays)[0], expected)
    assert most_held(kept.body) <= NUM_TILES


# -- what may be late

TILES = """
@loops
def tiles(A: u8[4, 16, 64], B: i8[16, 16, 4], D: i32[4, 16, 16], C: i32[4, 16, 16]):
    outputs(1){notes}
    for i in range(4, pipeline=2):
        with alloc(i32[16, 16], scope='local') as S:
            {before}
            with alloc(i32[16, 16], scope='tile') as sums:
                with alloc(u8[16, 64], scope='tile') as lhs:
                    with alloc(i8[16, 16, 4], scope='tile') as rhs:
                        intrinsic('tile_zero.i32', sums[0, 0])
                        intrinsic('tile_load.lhs.u8', A[i, 0, 0], lhs[0, 0])
                        intrinsic('tile_load.rhs.i8', B[0, 0, 0], rhs[0, 0, 0])
                        intrinsic('tile_dot.u8.i8', lhs[0, 0], rhs[0, 0, 0], sums[0, 0])
                        intrinsic('tile_store.i32', sums[0, 0], S[0, 0])
            for r in range(16):
                for j in vectorized(16):
                    {after}
"""
PLAIN = {"notes": "", "before": "", "after": "C[i, r, j] = S[r, j] + D[i, r, j]"}
CHANGES = [
    ({}, True),
    ({"before": "D[i, 0, 0] = 5"}, False),  # read by what is to come later
    ({"before": "C[i, 0, 0] = 5"}, False),  # written twice, in this order
    ({"after": "D[i, r, j] = S[r, j] + cast(A[i, r, j], i32)"}, True),
    ({"after": "A[i, r, j] = cast(S[r, j], u8)"}, False),  # read by the next products, should they come first
    ({"notes": "\n    notes(in_place=(2,))"}, True),  # D may lie where C does, which the products do not read
    ({"notes": "\n    notes(in_place=(0,))"}, False),  # and A, which they read
    ({"before": "while D[0, 0, 0] < i32(0): D[0, 0, 0] = 0"}, False),
]


@pytest.mark.parametrize(("changes", "may_be"), CHANGES, ids=str)
def test_what_products_of_the_next_tile_need_is_not_done_late(changes: dict[str, str], may_be: bool) -> None:
    text = TILES.format(**PLAIN | changes)
    (func,) = parse_module("\n".join(line for line in text.splitlines() if line.strip())).prim_funcs

    found = interleave_stores(func)

    assert any(map(has_hint, walk_statements(found.body))) != may_be
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, (4, 16, 64), u8), numbers(rng, (16, 16, 4), i8), numbers(rng, (4, 16, 16), i8).astype(np.int32)]
    before, after = ([each.copy() for each in arrays] for _ in range(2))
    for one, other in zip(run_prim_func(func, before), run_prim_func(found, after), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


BEFORE_REGISTERS = """
@loops
def tiles(A: u8[4, 16, 64], B: i8[16, 16, 4], D: i32[4, 16, 16], C: i32[4, 16, 16]):
    outputs(1){notes}
    for i in range(4, pipeline=2):
        with alloc(i32[16, 16], scope='local') as S:
            intrinsic('tile_zero.i32', S[0, 0])
            intrinsic('tile_dot.u8.i8', A[i, 0, 0], B[0, 0, 0], S[0, 0])
            for r in range(16):
                for j in vectorized(16):
                    C[i, r, j] = S[r, j] + D[0, 0, j]
"""


@pytest.mark.parametrize(("notes", "is_once"), [("", True), ("notes(in_place=(2,))", False)])
def test_what_all_rows_read_is_loaded_once_unless_the_result_may_lie_there(notes: str, is_once: bool) -> None:
    text = BEFORE_REGISTERS.format(notes=f"\n    {notes}")
    (func,) = parse_module("\n".join(line for line in text.splitlines() if line.strip())).prim_funcs

    emitted = emit_prim_func(func, features=WIDE.features).ir_text

    assert "tdpbusd" in emitted
    assert (emitted.count("load <16 x i32>, ptr %p2,") <= 3) == is_once


def scheduled(decide: Decide) -> Schedule:
    """The schedule of a small product, its steps one by one."""
    schedule = Schedule(product(64, 64, 64))
    for step in apply_rules(product(64, 64, 64), WIDE, decide).trace.steps:
        schedule.apply(step)
    return schedule


def test_only_serial_loops_around_products_and_what_follows_are_pipelined() -> None:
    schedule = scheduled(deciding(stores="plain"))
    *_, tiles, row, _, _ = schedule.loops_of("mm_copy")
    *_, steps, _, _ = schedule.loops_of("mm_o")

    with pytest.raises(ScheduleError, match=f"loop {row} is unrolled"):
        schedule.pipeline(row, 2)
    with pytest.raises(ScheduleError, match=f"nothing follows the products of tiles in loop {steps}"):
        schedule.pipeline(steps, 2)
    with pytest.raises(ScheduleError, match=f"loop {tiles} is around products of tiles, which are made for one iteration ahead, not 2"):
        schedule.pipeline(tiles, 3)
    with pytest.raises(ScheduleError, match="not around products of tiles"):
        schedule.pipeline(schedule.loops_of("B_global_o")[1], 2)
    schedule.pipeline(tiles, 2)
    schedule.pipeline(tiles, 1)
    assert not any(map(has_hint, walk_statements(schedule.func.body)))


# -- the code, for processors that have the instructions


def assembly_of(func: PrimFunc) -> str:
    return disassemble(emit_prim_func(finish_loops(func, threads=1), "kernel", WIDE.features).ir_text, WIDE).assembly


def blocks_of_convolution(channels: int, size: int, taps: int) -> PrimFunc:
    x, w = tensor_type((1, channels // 64, size, size, 64), u8), tensor_type((channels // 64, channels // 64, taps, taps, 16, 64, 4), i8)
    return convolution(x, w, attrs_of(channels, 64, pads=(taps // 2,) * 4))


CODE: list[tuple[str, Callable[[], PrimFunc], int, int]] = [  # with products and rows of a vector in the text between stores of sums
    ("product", lambda: quantized(1024, 1024, 1024), 4, 2 * 2),
    ("few terms", lambda: quantized(1024, 1024, 64), 4, 2 * 32),
    ("3x3", lambda: blocks_of_convolution(64, 56, 3), 36, 2 * 28),
    ("1x1", lambda: blocks_of_convolution(64, 56, 1), 4, 2 * 32),
]


@pytest.mark.parametrize(("make", "products", "vectors"), [each[1:] for each in CODE], ids=[each[0] for each in CODE])
def test_vectors_are_narrowed_between_products(make: Callable[[], PrimFunc], products: int, vectors: int) -> None:
    assembly = assembly_of(apply_rules(make(), WIDE).func)

    _, before, *_ = re.split(r"(?:\ttilestored.*\n)+", assembly)
    kinds = ["product" if "tdpbusd" in line else "vector" for line in before.splitlines() if re.search("tdpbusd|vpmov[a-z]*db\t", line)]
    assert kinds.count("product") == products
    assert kinds.count("vector") == vectors
    runs = [len(list(run)) for kind, run in groupby(kinds) if kind == "vector"]
    assert len(runs) >= min(products, vectors) // 2
    assert max(runs) <= 2 * -(-vectors // products)
    assert not re.search(r"vmov\w+\t%[xyz]mm\d+, -?\d*\(%rsp\)", before), "no vector is spilled"


# -- what it costs


def test_the_longer_of_products_and_what_follows_counts() -> None:
    product, window = TileProduct(1024, 1024, 1024, u8), WindowProduct(1, 56, 56, 64, 64, 9, 64, u8)

    for each, grid in ((product, (2, 2)), (window, (1, 2, 2))):
        interleaved, plain = (each.cycles(grid, WIDE, is_interleaved) for is_interleaved in (True, False))
        assert each.interleaving_pays(grid, WIDE)
        assert 1.1 < plain / interleaved < 2.0
    alone = TileProduct(32, 32, 1024, u8)
    assert not alone.interleaving_pays((2, 2), WIDE), "one tile has no next"
