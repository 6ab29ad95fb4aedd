"""Products on devices: tiles of blocks and threads, whatever sizes and types are, and whatever stands around them."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.arith import evaluate
from tc.ir.dtype import DType, bf16, f16, f32, i8
from tc.ir.expr import Const, Expr, Var, cast, const
from tc.ir.loop import Alloc, For, LoopKind, PrimFunc, Store, walk_statements
from tc.schedule.knobs import Decide, Knob, Value, take_default
from tc.schedule.rules.gpu.blocking import Blocking, Extents, best, blockings, cost, innermost, stage_of, tile_of
from tc.schedule.work import count_work
from tc.target import Target
from tc.te import compute, create_prim_func, placeholder, reduce
from tests.draws import some_of
from tests.schedule.gpu.launches import DEVICE, check_schedule, device_schedule, drawn, finished, launches, lowered
from tests.schedule.gpu.problems import DEVICE_CLASSES
from tests.schedule.programs import biased, matmul

PRODUCTS = ("product", "convolution")


def check_seed(name: str, seed: int, decide: Decide = take_default) -> str:
    func, arrays, dims = DEVICE_CLASSES[name](np.random.default_rng([zlib.crc32(name.encode()), seed]))
    return check_schedule(func, arrays, dims, decide=decide).rule


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_keep_their_meaning(name: str) -> None:
    rules = [check_seed(name, seed) for seed in range(5)]

    assert sum("contraction" in rule for rule in rules) >= 4


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("seed", some_of(range(3), quick=[0]))
def test_products_keep_their_meaning_with_any_answers(name: str, seed: int) -> None:
    try:
        check_seed(name, seed, drawn(np.random.default_rng(seed)))
    except ScheduleError as error:
        assert "than shared memory holds" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_many_products_keep_their_meaning(name: str) -> None:
    for seed in range(5, 105):
        check_seed(name, seed)


def buffers_of(func: PrimFunc, scope: str) -> list[tuple[int, ...]]:
    allocs = [stmt.buffer for stmt in walk_statements(lowered(func).body) if isinstance(stmt, Alloc)]
    return sorted(tuple(int(str(dim)) for dim in buffer.shape) for buffer in allocs if buffer.scope == scope)


def test_a_large_product_has_large_tiles_in_shared_memory_and_registers() -> None:
    scheduled = device_schedule(matmul(4096, 4096, 4096)).func

    assert buffers_of(scheduled, "shared") == [(8, 128), (8, 132)]
    assert buffers_of(scheduled, "local") == [(1, 4), (1, 8), (128, 128)]  # of the last each thread has its 64
    sizes = {(stmt.thread, str(stmt.extent)) for stmt in walk_statements(scheduled.body) if isinstance(stmt, For) and stmt.thread}
    assert sizes == {("block.x", "1024"), ("thread.x", "16"), ("thread.y", "16")}


def test_operands_and_results_of_a_large_product_move_in_vectors() -> None:
    scheduled = device_schedule(matmul(1024, 1024, 1024)).func

    vectors = [stmt for stmt in walk_statements(scheduled.body) if isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED]
    assert [str(loop.extent) for loop in vectors] == ["4"] * 5  # two fetches, two loads of registers, and the result


def test_what_follows_a_product_is_part_of_its_launch() -> None:
    assert len(launches(device_schedule(biased(40, 48, 24)).func.body)) == 1


@pytest.mark.parametrize("dtype", [f16, bf16, i8])
def test_products_of_small_elements_are_tiled_where_no_matrix_instruction_takes_them(dtype: DType) -> None:
    x, w = placeholder((64, 5), dtype, "X"), placeholder((5, 272), dtype, "W")
    total = reduce("sum", (64, 272), (5,), lambda i, j, k: cast(x[i, k], f32) * cast(w[k, j], f32), "total")
    func = create_prim_func("small", [x, w], [compute((64, 272), lambda i, j: cast(total[i, j], dtype), "y")])
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-1, 2, shape).astype(dtype.numpy) for shape in ((64, 5), (5, 272))]

    def wide(knob: Knob) -> Value:
        """Eight columns a thread: as many as a store of 128 bits has halves, twice as many as are next to each other."""
        if not knob.name.endswith("/tile"):
            return knob.default
        return next(tile for tile in knob.options if isinstance(tile, tuple) and tile[3] == 8)

    assert check_schedule(func, arrays, decide=wide, target=Target.parse("opencl:generic")).rule == "contraction"


def over_pixels(batch: int | Var, channels: int, filters: int, height: int | Var, width: int) -> PrimFunc:
    """A product over all pixels of images, whose sums have one axis for them and whose result has two."""
    x, w = placeholder((batch, channels, height, width), f32, "X"), placeholder((filters, channels), f32, "W")
    bias = placeholder((filters,), f32, "B")
    places = (batch, filters, height * width)
    total = reduce("sum", places, (channels,), lambda n, o, p, c: x[n, c, p // width, p % width] * w[o, c], "total")
    y = compute((batch, filters, height, width), lambda n, o, i, j: total[n, o, i * width + j] + bias[o], "y")
    return create_prim_func("over_pixels", [x, w, bias], [y], tuple(dim for dim in (batch, height) if isinstance(dim, Var)))


def in_groups(groups: int, channels: int, filters: int, length: int) -> PrimFunc:
    """A product for each group of channels, whose sums have an axis for groups and whose result has not."""
    x, w = placeholder((2, groups * channels, length), f32, "X"), placeholder((groups * filters, channels), f32, "W")
    bias = placeholder((groups * filters,), f32, "B")

    def term(n: Expr, g: Expr, o: Expr, i: Expr, c: Expr) -> Expr:
        return x[n, g * channels + c, i] * w[g * filters + o, c]

    total = reduce("sum", (2, groups, filters, length), (channels,), term, "total")
    y = compute((2, groups * filters, length), lambda n, o, i: total[n, o // filters, o % filters, i] + bias[o], "y")
    return create_prim_func("in_groups", [x, w, bias], [y])


@pytest.mark.parametrize(
    ("func", "dims"),
    [
        (over_pixels(1, 24, 32, 14, 12), ()),
        (over_pixels(2, 9, 17, 7, 5), ()),
        (over_pixels(Var("n"), 8, 16, 6, 6), (3,)),
        (over_pixels(2, 8, 16, Var("h"), 6), (5,)),
        (in_groups(3, 8, 16, 40), ()),
        (in_groups(2, 5, 7, 33), ()),
    ],
)
def test_what_follows_a_product_may_count_its_results_in_another_way(func: PrimFunc, dims: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    sizes = dict(zip(func.dims, dims, strict=True))
    arrays = [rng.integers(-4, 5, [evaluate(dim, sizes) for dim in each.shape]).astype(np.float32) for each in func.inputs]

    scheduled = check_schedule(func, arrays, dims)

    assert len(launches(scheduled.func.body)) == 1


def test_results_over_pixels_are_stored_in_vectors() -> None:
    scheduled = device_schedule(over_pixels(1, 64, 128, 28, 28)).func

    stores = [stmt for stmt in walk_statements(scheduled.body) if isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED]
    assert "y" in {store.buffer.name for store in walk_statements(stores[-1]) if isinstance(store, Store)}


@pytest.mark.parametrize(("m", "n", "k", "parts"), [(8, 12, 1024, 4), (9, 11, 512, 2), (9, 11, 509, 1)])
def test_few_long_sums_are_made_in_parts_by_several_blocks(m: int, n: int, k: int, parts: int) -> None:
    rng = np.random.default_rng(k)
    arrays = [rng.integers(-2, 3, shape).astype(np.float32) for shape in ((m, k), (k, n), (n,))]

    scheduled = check_schedule(biased(m, n, k), arrays)

    assert len(launches(scheduled.func.body)) == (2 if parts > 1 else 1)
    assert [choice.value for choice in scheduled.choices if choice.knob.name == "mm/parts"] == ([parts] if parts > 1 else [])


SIZES = Extents(1, 1024, 1024, 1024, 4, 4, 4)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
def test_no_answer_is_more_than_the_device_holds(arch: str) -> None:
    device = Target.parse(f"cuda:{arch}@x86-64-v3").device
    assert device is not None

    found = list(blockings(SIZES, device))

    assert len(found) > 50
    assert all(32 <= each.threads <= 1024 and each.shared_bytes(4, 4) <= 48 << 10 for each in found)
    assert Blocking(128, 128, 8, 8, 8) in found
    assert Blocking(256, 256, 8, 8, 8) not in found  # 1024 threads, of which each would need more than 64 registers
    assert best(SIZES, device) == min(found, key=lambda each: (cost(each, SIZES, device), -each.rows * each.columns, each.threads))


def test_small_products_have_small_tiles() -> None:
    assert DEVICE.device is not None
    found = best(Extents(1, 9, 12, 7, 4, 4, 4), DEVICE.device)

    assert found is not None
    assert found.rows < 18 and found.columns < 24


def test_tiles_of_images_leave_little_over() -> None:
    assert tile_of([1, 56, 56], 64) == [1, 8, 8]
    assert tile_of([7, 7], 16) == [2, 8]
    assert tile_of([None, 4], 32) == [8, 4]
    assert tile_of([3], 16) == [16]


def test_tiles_go_along_known_axes_where_these_have_enough() -> None:
    assert tile_of([None, 509], 64) == [1, 64]
    assert tile_of([None, 56, 56], 64) == [1, 8, 8]
    assert tile_of([None, 12], 16) == [1, 16]
    assert tile_of([None, 3], 16) == [16, 1]
    assert tile_of([None], 16) == [16]


def test_of_several_symbolic_axes_the_first_is_taken_for_a_batch() -> None:
    assert tile_of([None, None], 64) == [1, 64]
    assert tile_of([None, None, None], 64) == [1, 8, 8]


def symbolic_convolution(rng: np.random.Generator, lengths: tuple[str, ...]) -> PrimFunc:
    """Of images or series, channels first or last; the axes named are symbolic."""
    rank, last = int(rng.integers(1, 3)), rng.random() < 0.5
    channels, filters, kernel, step = (int(rng.integers(*ends)) for ends in ((1, 9), (8, 40), (1, 4), (1, 3)))
    n = Var("n") if "batch" in lengths else const(2)
    sides = [Var(f"s{k}") if "length" in lengths else const(int(rng.integers(20, 40))) for k in range(rank)]
    shape = (n, *sides, channels) if last else (n, channels, *sides)
    x = placeholder(shape, f32, "X")
    w = placeholder((filters, channels, *[kernel] * rank), f32, "W")
    out = [(side - kernel) // step + 1 for side in sides]

    def term(*at: Expr) -> Expr:
        b, *at_out = at[: rank + 2]
        o, place = (at_out[-1], at_out[:-1]) if last else (at_out[0], at_out[1:])
        c, *window = at[rank + 2 :]
        moved = [i * step + d for i, d in zip(place, window, strict=True)]
        return x[(b, *moved, c) if last else (b, c, *moved)] * w[(o, c, *window)]

    conv = reduce("sum", (n, *out, filters) if last else (n, filters, *out), (channels, *[kernel] * rank), term, "conv")
    return create_prim_func("conv", [x, w], [conv], tuple(var for var in (n, *sides) if isinstance(var, Var)))


@pytest.mark.parametrize("lengths", [("batch",), ("length",), ("batch", "length")])
def test_symbolic_convolutions_compute_little_more_than_is_needed(lengths: tuple[str, ...]) -> None:
    rng, seen = np.random.default_rng(len(lengths[0])), 0
    for _ in range(8):
        func = symbolic_convolution(rng, lengths)
        scheduled = device_schedule(func)
        for batch in (1, 2, 33):
            dims = {var: batch if var.name == "n" else int(rng.integers(24, 60)) for var in func.dims}
            needed, done = count_work(func, dims), count_work(scheduled.func, dims)
            assert needed is not None and done is not None
            assert done.flops <= 2.5 * needed.flops, (str(func), dims, scheduled.rule)
            seen += "contraction" in scheduled.rule
    assert seen >= 18


@pytest.mark.parametrize("lengths", [("batch",), ("length",), pytest.param(("batch", "length"), marks=pytest.mark.slow)])
def test_symbolic_convolutions_keep_their_meaning_whatever_the_batch(lengths: tuple[str, ...]) -> None:
    rng = np.random.default_rng(len(lengths))
    func = symbolic_convolution(rng, lengths)
    scheduled = device_schedule(func).func
    final = finished(scheduled)
    for batch in (0, 1, 2, 5):
        dims = {var: batch if var.name == "n" else int(rng.integers(5, 12)) for var in func.dims}
        shapes = [[int(evaluate(dim, dims)) for dim in buffer.shape] for buffer in func.inputs]
        arrays = [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]
        expected, *_ = run_prim_func(func, arrays, tuple(dims.values()))
        for each in (scheduled, final):
            np.testing.assert_array_equal(run_prim_func(each, arrays, tuple(dims.values()))[0], expected)


def test_stages_go_over_whole_windows() -> None:
    assert stage_of([64, 3, 3], 32) == [2, 3, 3]
    assert stage_of([1024], 16) == [16]
    assert stage_of([30], 16) == [15]
    assert stage_of([37], 16) == [16]
    assert stage_of([None], 8) == [8]


def test_a_thread_takes_neighbours() -> None:
    assert innermost([8, 4], 8) == [2, 4]
    assert innermost([2, 2], 8) == [2, 2]


def test_extents_of_threads_are_alike_in_all_parts_of_a_launch() -> None:
    for seed in range(6):
        func, _, _ = DEVICE_CLASSES["product"](np.random.default_rng(seed))
        scheduled = device_schedule(func)
        for launch in launches(scheduled.func.body) if scheduled.rule == "contraction" else ():
            sizes = {(s.thread, s.extent.value) for s in walk_statements(launch) if isinstance(s, For) and isinstance(s.extent, Const)}
            assert len({size for size in sizes if size[0].startswith("thread")}) <= 2
