"""Matrix instructions of GPUs: what lanes do with what they hold, by the manual, is what the loops of the pattern do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir import lane_exchange
from tc.ir.bit_layout import BitLayout, layout
from tc.ir.dtype import DType, bf16, f16, f32
from tc.ir.expr import Buffer, Load, const
from tc.ir.fragments import ldmatrix_of
from tc.ir.intrinsic import INTRINSICS, Intrinsic, copy_pattern, register_intrinsic, sizes
from tc.ir.loop import IntrinsicCall, PrimFunc, Seq, Stmt
from tc.ir.node import substitute, walk
from tc.ir.nvidia_intrinsics import (
    MMA_OPERANDS,
    fragment_name,
    ldmatrix_name,
    mma_name,
    product_pattern,
    wgmma_name,
)
from tc.ir.verify import verify
from tc.passes.loop.intrinsics import expand_intrinsics, select_intrinsics
from tc.schedule.step import Schedule
from tests.ir.lanes import LHS, RHS, gathered, held, ldmatrix, sums_of

EXCHANGES = lane_exchange.FEATURES
WITH_FRAGMENTS = {name: intrinsic for name, intrinsic in INTRINSICS.items() if intrinsic.layouts}


def operand_layouts(intrinsic: Intrinsic) -> Iterator[tuple[Buffer, BitLayout]]:
    for buffer, found in zip(intrinsic.pattern.buffers, intrinsic.layouts, strict=True):
        if found is not None:
            yield buffer, found


def shape(buffer: Buffer) -> tuple[int, ...]:
    return tuple(int(dim) for dim in buffer.shape)  # type: ignore[call-overload]


def test_there_are_instructions_with_fragments_of_each_kind() -> None:
    kinds = {name.split(".")[0] for name in WITH_FRAGMENTS}

    assert kinds == {"mma", "wgmma", "ldmatrix", "fragment_zero", "fragment_load", "fragment_store", "shuffle", "combine_lanes"}


@pytest.mark.parametrize("name", WITH_FRAGMENTS)
def test_each_element_of_a_fragment_is_held_once_in_whole_registers(name: str) -> None:
    intrinsic = WITH_FRAGMENTS[name]
    lanes = {"lane": 128 if "64x" in name or name.startswith("wgmma") else 32}

    for buffer, found in operand_layouts(intrinsic):
        sizes_ = dict(found.inputs)
        registers = sizes_.pop("register")
        assert found.is_invertible
        assert tuple(size for _, size in found.outputs) == shape(buffer)
        assert sizes_ == lanes
        assert registers * buffer.dtype.bits % 32 == 0
    assert intrinsic.features in ((("sm_75",),), (("sm_80",),), (("sm_90a",),), EXCHANGES)


# -- products


def numbers(rng: np.random.Generator, size: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Of which sums are exact in any order; integers of the whole range."""
    if dtype.is_float:
        return rng.integers(-8, 9, size).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return rng.choice([info.min, info.max, *rng.integers(info.min, info.max, 5)], size).astype(dtype.numpy)


def run(intrinsic: Intrinsic, *arrays: np.ndarray) -> np.ndarray:
    """What the pattern makes of operands, of which the last one is written."""
    buffers = [dataclasses.replace(buffer, name=f"{buffer.name}_in") for buffer in intrinsic.pattern.buffers]
    start, result = buffers[-1], intrinsic.pattern.buffers[-1]
    copy = Intrinsic("copy", copy_pattern("copy", shape(start), start.dtype, ("global", "global")))
    zeros = [const(0)] * len(start.shape)
    at_start = [Load(buffer, tuple(const(0) for _ in buffer.shape)) for buffer in (*buffers[:-1], result)]
    body: Stmt = Seq((copy.expand((Load(start, tuple(zeros)), Load(result, tuple(zeros)))), IntrinsicCall(intrinsic.name, tuple(at_start))))
    func = PrimFunc("call", (*buffers, result), body)
    verify(func)
    return run_prim_func(func, arrays)[0]


@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("operands", MMA_OPERANDS, ids=str)
def test_mma_on_the_registers_of_lanes_does_what_its_pattern_does(operands: tuple, order: str) -> None:
    """Lanes get their registers by the layouts; the product is made of them by the formulas of the manual."""
    k, lhs_type, rhs_type, total, _ = operands
    intrinsic = INTRINSICS[mma_name(k, lhs_type, rhs_type, order)]
    assert all(found is not None for found in intrinsic.layouts)
    of_lhs, of_rhs, of_sums = intrinsic.layouts
    rng = np.random.default_rng(k)
    lhs = numbers(rng, (16, k) if order[0] == "n" else (k, 16), lhs_type)
    rhs = numbers(rng, (k, 8) if order[1] == "n" else (8, k), rhs_type)
    start = numbers(rng, (16, 8), total)
    a, b, c = held(of_lhs, lhs), held(of_rhs, rhs), held(of_sums, start)  # type: ignore[arg-type]

    found = run(intrinsic, lhs, rhs, start)

    rows, columns = np.zeros((16, k)), np.zeros((k, 8))
    for lane in range(32):
        for i in range(a.shape[0]):
            rows[LHS[k, lhs_type.bits](i, lane // 4, lane % 4)] = a[i, lane]
        for i in range(b.shape[0]):
            columns[RHS[k, rhs_type.bits](i, lane // 4, lane % 4)] = b[i, lane]
    expected = c.copy()
    for lane in range(32):
        for i in range(4):
            row, column = sums_of(i, lane // 4, lane % 4)
            exact = int(c[i, lane]) + int(rows[row] @ columns[:, column])
            expected[i, lane] = exact if total.is_float else (exact + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(held(of_sums, found), expected)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, gathered(of_sums, expected))  # type: ignore[arg-type]


def test_operands_of_products_on_tf32_are_rounded_to_it() -> None:
    intrinsic = INTRINSICS[mma_name(8, f32, f32, "nn")]
    lhs, rhs = np.zeros((16, 8), np.float32), np.zeros((8, 8), np.float32)
    values = np.array([1 + 2**-10, 1 + 2**-11, 1 + 2**-12, -1 - 2**-11, 3e38, np.inf, -np.inf, 1e-40], np.float32)
    lhs[:8, 0], rhs[0, :] = values, 1

    found = run(intrinsic, lhs, rhs, np.zeros((16, 8), np.float32))

    rounded = (values.view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view(np.float32)
    assert rounded[:4].tolist() == [1 + 2**-10, 1 + 2**-10, 1, -1 - 2**-10]
    np.testing.assert_array_equal(found[:8, 0], rounded)


@pytest.mark.parametrize("order", ["nn", "tt"])
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_wgmma_does_what_its_pattern_does(dtype: DType, order: str) -> None:
    intrinsic = INTRINSICS[wgmma_name(64, dtype, "shared", order)]
    rng = np.random.default_rng(3)
    lhs = numbers(rng, (64, 16), dtype)
    rhs = numbers(rng, (16, 64), dtype)
    start = numbers(rng, (64, 64), f32)

    found = run(intrinsic, *((lhs, rhs) if order == "nn" else (lhs.T.copy(), rhs.T.copy())), start)

    np.testing.assert_array_equal(found, start + lhs.astype(np.float32) @ rhs.astype(np.float32))


# -- copies


COPIES = [name for name in WITH_FRAGMENTS if name.startswith(("ldmatrix", "fragment_"))]
SMALL = [name for name in COPIES if "64x128" not in name and "64x256" not in name]


@pytest.mark.parametrize("name", SMALL)
def test_copies_move_every_element(name: str) -> None:
    intrinsic = INTRINSICS[name]
    source, target = intrinsic.pattern.buffers[0], intrinsic.pattern.buffers[-1]
    values = np.arange(np.prod(shape(source))).reshape(shape(source)).astype(source.dtype.numpy)

    if source is target:
        np.testing.assert_array_equal(run(intrinsic, values), np.zeros_like(values))
    else:
        np.testing.assert_array_equal(run(intrinsic, values, np.zeros_like(values)), values)


LOADS = [name for name in COPIES if name.startswith("ldmatrix")]


@pytest.mark.parametrize("name", LOADS)
def test_ldmatrix_gives_lanes_what_the_layout_says(name: str) -> None:
    """From a tile of rows that are apart in memory."""
    intrinsic = INTRINSICS[name]
    ((buffer, found),) = operand_layouts(intrinsic)
    load = ldmatrix_of(found, buffer.dtype.bits)
    assert load is not None
    rows, columns = shape(buffer)
    memory = np.random.default_rng(5).integers(0, 200, (rows, columns + 24)).astype(f"u{buffer.dtype.size_bytes}")
    lanes = np.arange(8 * load.count)
    row, column = load.addresses(lane=lanes)

    registers = ldmatrix(memory.ravel(), (row * (columns + 24) + column).tolist(), load.count, load.transposed)

    np.testing.assert_array_equal(registers, held(found, memory[:, :columns]))


def test_ldmatrix_is_there_where_it_fills_a_fragment_and_only_there() -> None:
    plain = [name for name in COPIES if name.startswith("fragment_load") and ".sums." not in name]

    assert len(plain) > len(LOADS) > 20
    for name in plain:
        ((buffer, found),) = operand_layouts(INTRINSICS[name])
        assert (name.replace("fragment_load", "ldmatrix") in LOADS) == (ldmatrix_of(found, buffer.dtype.bits) is not None)


# -- matching


def product_of_fragments(m: int, n: int, k: int, scopes: tuple[str, str, str], shift: int = 0) -> PrimFunc:
    """C[i, j] += A[i + shift, k] * B[k, j], by tiles of 16 x 8 x 16."""
    a = Buffer("A", sizes(m + shift, k), f16, scopes[0])
    b = Buffer("B", sizes(k, n), f16, scopes[1])
    c = Buffer("C", sizes(m, n), f32, scopes[2])
    nest = product_pattern("product", (m, n, k), "nn", (f16, f16, f32), ("fragment", "fragment"))
    func = substitute(nest, dict(zip(nest.buffers, (a, b, c), strict=True)))
    (lhs,) = [node for node in walk(func) if isinstance(node, Load) and node.buffer is a]
    row, column = lhs.indices
    return substitute(func, {lhs: Load(a, (row + shift, column))})


def tensorized(func: PrimFunc) -> Schedule:
    schedule = Schedule(func)
    outer, inner = [], []
    for loop, size in zip(schedule.loops_of("product"), (16, 8, 16), strict=True):
        o, i = schedule.split(loop, size)
        outer.append(o)
        inner.append(i)
    schedule.reorder(*outer, *inner)
    schedule.tensorize(inner[0], mma_name(16, f16, f16, "nn"))
    return schedule


FRAGMENTS = ("fragment", "fragment", "fragment")


def test_parts_of_fragments_become_instructions() -> None:
    schedule = tensorized(product_of_fragments(32, 16, 32, FRAGMENTS))

    (call_,) = [node for node in walk(schedule.func) if isinstance(node, IntrinsicCall)]

    assert [str(operand) for operand in call_.operands] == ["A[v0o * 16, v2o * 16]", "B[v2o * 16, v1o * 8]", "C[v0o * 16, v1o * 8]"]


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("scope", ["global", "shared", "local"])
def test_what_is_no_fragment_is_no_operand(place: int, scope: str) -> None:
    scopes = tuple(scope if k == place else "fragment" for k in range(3))

    with pytest.raises(ScheduleError, match=r"mma.m16n8k16.f16.f16.nn does not match"):
        tensorized(product_of_fragments(32, 16, 32, scopes))  # type: ignore[arg-type]


def test_a_part_that_starts_inside_registers_is_no_operand() -> None:
    """Row 8 of a fragment is in other registers of the same lanes: the instruction takes rows from a multiple of 16 on."""
    with pytest.raises(ScheduleError, match="does not match"):
        tensorized(product_of_fragments(32, 16, 32, FRAGMENTS, shift=8))


def test_instructions_are_taken_where_the_device_has_them() -> None:
    func = expand_intrinsics(tensorized(product_of_fragments(32, 16, 32, FRAGMENTS)).func)

    def calls(features: tuple[str, ...]) -> list[IntrinsicCall]:
        return [node for node in walk(select_intrinsics(func, features)) if isinstance(node, IntrinsicCall)]

    assert calls(()) == calls(("sm_75",)) == []
    assert [call_.name for call_ in calls(("sm_75", "sm_80"))] == [mma_name(16, f16, f16, "nn")]


def test_a_fragment_is_no_memory() -> None:
    """A load that takes any memory, of what is not in memory."""
    name = fragment_name("load", "lhs.n", (16, 16), f16)
    pattern = INTRINSICS[name].pattern
    x, _ = pattern.buffers
    moved = substitute(pattern, {x: dataclasses.replace(x, scope="fragment")})
    schedule = Schedule(moved)

    with pytest.raises(ScheduleError, match="does not match"):
        schedule.tensorize(schedule.loops_of(name)[0], name)


def test_matrices_are_loaded_from_shared_memory_alone() -> None:
    name = ldmatrix_name("lhs.n", (16, 16), f16)
    pattern = INTRINSICS[name].pattern
    x, _ = pattern.buffers
    schedule = Schedule(substitute(pattern, {x: dataclasses.replace(x, scope="global")}))

    with pytest.raises(ScheduleError, match="does not match"):
        schedule.tensorize(schedule.loops_of(name)[0], name)


def test_a_layout_that_does_not_fit_its_operand_is_refused() -> None:
    pattern = copy_pattern("load", (8, 4), f32, ("global", "fragment"))
    fits = layout({"row": 8, "column": 4}, lane=[(0, 1), (0, 2), (1, 0), (2, 0), (4, 0)])
    small = layout({"row": 4, "column": 4}, lane=[(0, 1), (0, 2), (1, 0), (2, 0)])
    twice = layout({"row": 8, "column": 4}, register=[(0, 1)], lane=[(0, 1), (0, 2), (1, 0), (2, 0), (4, 0)])

    for layouts in ((None, small), (None, twice)):
        with pytest.raises(ScheduleError, match="holds once"):
            register_intrinsic(Intrinsic("load", pattern, layouts=layouts))
    for missing in ((), (fits, fits), (fits, None)):
        with pytest.raises(ScheduleError, match="must have a layout if it is a fragment, and only then"):
            register_intrinsic(Intrinsic("load", pattern, layouts=missing))
    assert "load" not in INTRINSICS
