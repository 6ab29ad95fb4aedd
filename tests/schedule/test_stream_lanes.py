"""Elementwise kernels of narrow types use whole vectors, without code lane by lane, and give numpy's numbers."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from tc.codegen.kernels import finish_loops
from tc.codegen.llvm.emitter import emit_prim_func
from tc.codegen.llvm.jit import disassemble
from tc.errors import CodegenError
from tc.interp import run_prim_func
from tc.ir.dtype import DType, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, int_range, u8, u16, u32, u64
from tc.ir.expr import Expr, Var, call, cast, const, logical_and, maximum, minimum, select
from tc.ir.loop import PrimFunc
from tc.schedule.rules import apply_rules
from tc.schedule.step import Schedule
from tc.target import Target, native_target
from tc.te import compute, create_prim_func, placeholder
from tests.ops.kernels import run
from tests.schedule.programs import chain

INTEGERS = (i8, u8, i16, u16, i32, u32, i64, u64)
NARROW = (i8, u8, i16, u16, f16)


def kernel(dtypes: list[DType], body: Callable[..., Expr], shape: tuple[int | Var, ...] = (1 << 16,)) -> PrimFunc:
    inputs = [placeholder(shape, dtype, f"x{k}") for k, dtype in enumerate(dtypes)]
    dims = tuple(dim for dim in shape if isinstance(dim, Var))
    return create_prim_func("kernel", inputs, [compute(shape, lambda *at: body(*(x[at] for x in inputs)), "y")], dims)


def assembly(func: PrimFunc, target: str) -> tuple[str, str]:
    machine = Target.parse(target)
    source = emit_prim_func(finish_loops(apply_rules(func, machine).func), "kernel", machine.features)
    return source.ir_text, disassemble(source.ir_text, machine).assembly


def hot_loop(text: str) -> list[str]:
    """The instructions of the longest block that jumps to itself."""
    blocks = [block for block in re.split(r"\n(?=\.LBB)", text) if re.search(rf"\bj\w+\s+{re.escape(block.split(':')[0])}\b", block)]
    return [line.split()[0] for line in max(blocks, key=len).splitlines() if line.startswith("\t") and not line.strip().startswith(".")]


LANE_BY_LANE = re.compile(r"vpextr|vpinsr|vmovd$|vcvttss|vcvttsd|vucomis|call|idiv|div[lq]?$|cmov")

BODIES: dict[str, tuple[list[DType], Callable[..., Expr]]] = {
    **{f"add {d}": ([d, d], lambda a, b: a + b) for d in NARROW},
    **{f"relu {d}": ([d], lambda a: maximum(a, const(0, a.dtype))) for d in NARROW},
    "and": ([bool_, bool_], logical_and),
    "less": ([i8, i8], lambda a, b: a < b),
    "where i8": ([bool_, i8, i8], select),
    "where f32": ([bool_, f32, f32], select),
    "dequantize": ([i8], lambda a: cast(a, f32) * 0.5),
    "quantize": ([f32], lambda a: cast(minimum(maximum(call("round", a * 3.0), -128.0), 127.0), i8)),
    "requantize": ([i8], lambda a: cast(call("round", cast(a, f32) * 0.7), i8)),
    "to u16": ([f32], lambda a: cast(a, u16)),
    "to i32": ([f32], lambda a: cast(a, i32)),
}


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", BODIES)
def test_whole_vectors_and_no_lane_by_itself(name: str, target: str) -> None:
    """int8 kernels used a quarter of each vector, saturating conversions went lane by lane, and so did masks of bytes on AVX2."""
    dtypes, body = BODIES[name]
    func = kernel(dtypes, body)
    narrow = min(buffer.dtype.bits for buffer in func.buffers)

    text, code = assembly(func, target)

    lanes = Target.parse(target).vector_bits // narrow
    assert re.search(rf"(load|store) <{lanes} x \w+>", text)
    loop = hot_loop(code)
    assert not [instruction for instruction in loop if LANE_BY_LANE.match(instruction)]
    widest = max(32, *(buffer.dtype.bits for buffer in func.buffers)) if "to " in name or "quant" in name else 32
    assert len(loop) <= 8 + 14 * max(1, widest // narrow)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_bytes_take_a_quarter_of_the_instructions_of_f32(target: str) -> None:
    counts = {}
    for dtype in (i8, f32):
        func = kernel([dtype, dtype], lambda a, b: a + b)
        text, code = assembly(func, target)
        lanes = max(int(n) for n in re.findall(r"load <(\d+) x", text))
        counts[dtype] = len(hot_loop(code)) / lanes

    assert counts[i8] <= counts[f32] / 4


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_f32_keeps_the_vectors_that_it_had(target: str) -> None:
    text, _ = assembly(kernel([f32, f32], lambda a, b: a + b), target)

    assert set(re.findall(r"load <(\d+) x", text)) == {str(Target.parse(target).vector_bits // 32)}


def numbers(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Any value of a type, the ends of its range and what is no number included."""
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_float:
        found = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 4, shape)).astype(dtype.numpy)
        odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 127.5, 128, 255.5, 256, -0.5, -1, 32767.5, 65535.5, 65504], np.float64)
        return np.where(rng.random(shape) < 0.3, rng.choice(odd, shape), found.astype(np.float64)).astype(dtype.numpy)
    low, high = int_range(dtype)
    found = rng.integers(low, high, shape, dtype.numpy, endpoint=True)
    return np.where(rng.random(shape) < 0.2, rng.choice(np.array([low, high, 0, 1], dtype.numpy), shape), found).astype(dtype.numpy)


SIZES = ((0,), (1,), (7,), (31,), (64,), (65,), (200,), (3, 5), (4, 33), (2, 64), (5, 100), (1, 1), (3, 0))

OPERATIONS: dict[str, tuple[Callable[..., Expr], Callable[..., np.ndarray]]] = {
    "add": (lambda a, b: a + b, np.add),
    "multiply": (lambda a, b: a * b, np.multiply),
    "maximum": (maximum, np.maximum),
    "less": (lambda a, b: a < b, np.less),
    "where": (lambda a, b: select(a < b, a, b), lambda a, b: np.where(a < b, a, b)),
}


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [i8, u8, i16, u16, i32, i64, f16, bf16, f32, f64], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_elementwise_kernels_match_numpy(name: str, dtype: DType) -> None:
    rng = np.random.default_rng([len(name), dtype.bits])
    body, reference = OPERATIONS[name]

    def loops(*shape: int | Var) -> PrimFunc:
        return finish_loops(apply_rules(kernel([dtype, dtype], body, shape), native_target()).func)

    symbolic = {rank: loops(*(Var(f"n{d}") for d in range(rank))) for rank in (1, 2)}
    for k, shape in enumerate(SIZES):
        arrays = [numbers(dtype, shape, rng) for _ in range(2)]
        func, dims = (symbolic[len(shape)], shape) if k % 2 else (loops(*shape), ())

        (found,) = run(func, arrays, dims)

        wide = [a.astype(np.float32) for a in arrays] if dtype in (f16, bf16) else arrays
        want = reference(*wide).astype(found.dtype)
        as_numbers = np.float64 if dtype.is_float else want.dtype
        np.testing.assert_array_equal(found.astype(as_numbers), want.astype(as_numbers))


@pytest.mark.parametrize("source", [f16, bf16, f32, f64], ids=str)
@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_floats_to_integers_saturate_in_vectors_as_alone(source: DType, target: DType) -> None:
    rng = np.random.default_rng([source.bits, target.bits])
    low, high = int_range(target)
    ends = [low, high, low - 1, high + 1, low - 0.5, high + 0.5, 2.0**31, 2.0**63, 2.0**64, -(2.0**31), -(2.0**63), 1e30, -1e30]
    odd = np.array([*map(float, ends), np.nan, np.inf, -np.inf])
    x = np.concatenate([numbers(source, (90,), rng).astype(np.float64), odd]).astype(source.numpy)
    func = kernel([source], lambda a: cast(a, target), (len(x),))

    (found,) = run(finish_loops(apply_rules(func, native_target()).func), [x])

    (want,) = run_prim_func(func, [x])
    np.testing.assert_array_equal(found, want)
    exact = [0 if np.isnan(v) else min(max(int(np.clip(v, -1e38, 1e38)), low), high) for v in x.astype(np.float64)]
    np.testing.assert_array_equal(found, np.array(exact, target.numpy))


@pytest.mark.parametrize("lanes", [2, 8, 32])
def test_masked_bytes_that_are_there_are_loaded_unmasked(lanes: int) -> None:
    """Behind an index that is not proved to be in range masks stay: the end of a page is no place to read beyond."""
    shape = (96,)
    func = kernel([bool_, u8, u8], select, shape)
    text, _ = assembly(func, "x86-64-v3")
    assert "masked.load" not in text
    padded = create_prim_func("f", [x := placeholder((90,), u8, "x")], [compute((128,), lambda i: select(i < 90, x[i], const(0, u8)), "y")])
    schedule = Schedule(padded)
    schedule.vectorize(schedule.split("i", lanes)[1])
    values = np.arange(90, dtype=np.uint8)

    (found,) = run(finish_loops(schedule.func), [values])

    np.testing.assert_array_equal(found, np.concatenate([values, np.zeros(38, np.uint8)]))


def test_loops_bound_to_axes_of_a_gpu_are_no_code_for_a_cpu() -> None:
    """They ran one iteration after the other, without a word."""
    schedule = Schedule(chain())
    schedule.bind("i", "thread.x")

    with pytest.raises(CodegenError, match=r"loop i of chain is bound to thread.x, an axis of a GPU; the target is a CPU"):
        emit_prim_func(finish_loops(schedule.func))
