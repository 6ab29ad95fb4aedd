"""Products on matrix instructions: in order, by lanes that hold fragments together, by loops on shared memory, and as PTX."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tc.codegen.c.dialect import CUDA
from tc.codegen.c.launch import emit_launches
from tc.codegen.launches import launches_of
from tc.codegen.ptx.emitter import emit_ptx
from tc.errors import ScheduleError, VerifyError
from tc.interp import run_prim_func
from tc.ir.arith import evaluate
from tc.ir.dtype import DType, bf16, f16, f32, i8, i32, i64
from tc.ir.expr import Var, cast, const, maximum
from tc.ir.loop import If, PrimFunc, WarpCall, is_statement, walk_statements
from tc.ir.node import Node, replace, substitute, transform
from tc.ir.parser import parse_prim_func
from tc.ir.printer import print_ir
from tc.ir.verify import verify
from tc.passes.loop.hold_fragments import hold_fragments
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tc.schedule.knobs import Decide, take_default
from tc.schedule.rules import apply_rules
from tc.target import Target
from tc.te import compute, create_prim_func, placeholder, reduce
from tests.codegen.c.devices import OpenClPrograms, opencl_context
from tests.draws import some_of
from tests.ptx.launch import Report, run
from tests.ptx.nvcc import ptx_of
from tests.schedule.gpu.launches import DEVICE

FEATURES = DEVICE.device.features if DEVICE.device is not None else ()


class Product:
    """out(max(lhs * rhs + bias, 0)) with operands that are small integers, so that every sum is exact."""

    def __init__(
        self, rows: int, columns: int, depth: int, dtype: DType, *, turned: tuple[bool, bool] = (False, False),
        batch: tuple[int, ...] = (), has_bias: bool = False, result: DType | None = None, symbolic: bool = False,
    ) -> None:  # fmt: skip
        total = i32 if dtype is i8 else f32
        sizes = {"m": rows, "n": columns, "k": depth}
        m, n, k = (Var(name, i64) if symbolic else size for name, size in sizes.items())
        x = placeholder((*batch, *((k, m) if turned[0] else (m, k))), dtype, "X")
        w = placeholder((*batch, *((n, k) if turned[1] else (k, n))), dtype, "W")
        bias = placeholder((n,), total, "bias")

        def term(*at):
            *z, i, j, r = at
            left, right = x[(*z, r, i) if turned[0] else (*z, i, r)], w[(*z, j, r) if turned[1] else (*z, r, j)]
            return cast(left, total) * cast(right, total)

        out = reduce("sum", (*batch, m, n), (k,), term, "mm")
        rng = np.random.default_rng([rows, columns, depth])
        ends = ((depth, rows) if turned[0] else (rows, depth), (columns, depth) if turned[1] else (depth, columns))
        self.arrays = [rng.integers(-3, 4, (*batch, *end)).astype(dtype.numpy) for end in ends]
        lhs, rhs = (np.swapaxes(a, -1, -2) if t else a for a, t in zip(self.arrays, turned, strict=True))
        self.expected = lhs.astype(np.float64) @ rhs.astype(np.float64)
        inputs = [x, w]
        if has_bias:
            inputs.append(bias)
            self.arrays.append(rng.integers(-3, 4, columns).astype(total.numpy))
            self.expected = np.maximum(self.expected + self.arrays[-1], 0)
            summed = out
            out = compute((*batch, m, n), lambda *at: maximum(summed[at] + bias[at[-1]], const(0, total)), "act")
        if result is not None:
            wide = out
            out = compute((*batch, m, n), lambda *at: cast(wide[at], result), "narrow")
        self.dims = tuple(sizes.values()) if symbolic else ()
        self.func = create_prim_func("product", inputs, [out], tuple(v for v in (m, n, k) if isinstance(v, Var)))

    def check(self, decide: Decide = take_default, in_order: bool = True) -> PrimFunc:
        """Schedule it, and run the schedule as warps and, `in_order`, without matrix instructions and as loops; what the warps run."""
        scheduled = apply_rules(self.func, DEVICE, decide)
        assert scheduled.rule == "matrix contraction"
        held, plain = finish(scheduled.func, FEATURES), finish(scheduled.func, ())
        assert calls_of(held) and not calls_of(plain)
        for each in (held, scheduled.func, plain) if in_order else (held,):
            verify(each)
            (found, *_) = run_prim_func(each, self.arrays, self.dims)
            np.testing.assert_array_equal(found.astype(np.float64), self.expected)
        return held


def finish(scheduled: PrimFunc, features: tuple[str, ...]) -> PrimFunc:
    return finish_loops(scheduled, calls=DEVICE_FINISH_CALLS, features=features)


def calls_of(func: PrimFunc) -> list[str]:
    return [node.name for node in walk_statements(func.body) if isinstance(node, WarpCall)]


PRODUCTS = {
    "plain": Product(32, 32, 32, f16),
    "turned right": Product(16, 40, 32, f16, turned=(False, True), has_bias=True, result=f16),
    "turned left": Product(24, 32, 48, bf16, turned=(True, False), result=bf16),
    "both": Product(17, 19, 16, f16, turned=(True, True), batch=(2,)),
    "odd": Product(33, 21, 18, f16, has_bias=True, result=f16),
    "bytes": Product(20, 24, 40, i8, turned=(False, True), has_bias=True),
    "symbolic": Product(33, 35, 17, f16, has_bias=True, symbolic=True),
    "symbolic batch": Product(18, 9, 5, f16, batch=(2,), turned=(False, True), symbolic=True),
}


@pytest.mark.parametrize("name", some_of(PRODUCTS, quick=PRODUCTS.keys() - {"symbolic batch"}))
def test_products_of_fragments_are_what_the_loops_say(name: str) -> None:
    held = PRODUCTS[name].check(in_order=name in ("turned left", "both", "odd", "bytes"))

    assert {call.split(".")[0] for call in calls_of(held)} == {"ldmatrix", "mma"}


def test_what_warps_run_is_read_back_from_its_text() -> None:
    held = finish(apply_rules(PRODUCTS["odd"].func, DEVICE).func, FEATURES)

    assert print_ir(parse_prim_func(print_ir(held))) == print_ir(held)


def test_f32_stays_on_multiply_adds() -> None:
    assert apply_rules(Product(64, 64, 64, f32).func, DEVICE).rule == "contraction"


def test_a_device_without_the_instruction_gets_other_tiles() -> None:
    older = Target.parse("cuda:sm_75@x86-64-v3:cores=1")

    assert apply_rules(Product(64, 64, 64, bf16).func, older).rule == "contraction"
    assert apply_rules(Product(64, 64, 64, f16).func, older).rule == "matrix contraction"


# -- faults


def held_plain() -> tuple[PrimFunc, Product]:
    return finish(apply_rules(PRODUCTS["plain"].func, DEVICE).func, FEATURES), PRODUCTS["plain"]


def lanes_of(func: PrimFunc) -> Var:
    return next(node.var for node in walk_statements(func.body) if getattr(node, "thread", "") == "thread.x")


def test_lanes_that_do_not_come_to_a_product_are_reported() -> None:
    func, case = held_plain()
    lane, first = lanes_of(func), []

    def guard(node: Node) -> Node | None:
        if isinstance(node, WarpCall) and node.name.startswith("mma") and not first:
            first.append(node)
            return If(lane < 31, node)
        return None

    broken = transform(func, guard, lambda node: node is func or is_statement(node))

    with pytest.raises(VerifyError, match=r"lanes of a warp do not meet at `warp\('mma.*tx=31"):
        run_prim_func(broken, case.arrays)


def test_registers_that_nothing_was_loaded_to_are_reported() -> None:
    func, case = held_plain()

    def drop(node: Node) -> Node | None:
        return If(const(False), node) if isinstance(node, WarpCall) and node.name.startswith("ldmatrix.lhs") else None

    broken = transform(func, drop, lambda node: node is func or is_statement(node))

    with pytest.raises(VerifyError, match="reads registers in which nothing was stored"):
        run_prim_func(broken, case.arrays)


def test_a_lane_that_touches_what_another_one_holds_is_refused() -> None:
    scheduled = apply_rules(PRODUCTS["plain"].func, DEVICE).func
    before = DEVICE_FINISH_CALLS[: [call.target.name for call in DEVICE_FINISH_CALLS].index("hold_fragments")]
    marked = finish_loops(scheduled, calls=before)
    *_, last = [node for node in walk_statements(marked.body) if getattr(node, "thread", "") == "thread.x"]
    turned = replace(last, body=substitute(last.body, {last.var: 31 - last.var}))
    broken = transform(marked, lambda node: turned if node is last else None)

    with pytest.raises(ScheduleError, match="of a fragment is held by lane"):
        hold_fragments(broken, features=FEATURES)


# -- as PTX


def text_for_cuda(func: PrimFunc) -> str:
    return ptx_of(emit_launches(func, "kernel", CUDA), "sm_80")


def text_as_ptx(func: PrimFunc) -> str:
    return emit_ptx(func, "kernel", "sm_80")


def run_text(func: PrimFunc, text: str, case: Product) -> tuple[np.ndarray, Report]:
    (launch,) = launches_of(func)
    env = dict(zip(func.dims, case.dims, strict=True))
    grid = tuple(int(evaluate(size, env)) for size in launch.grid)
    memory = {buffer: np.ascontiguousarray(array) for buffer, array in zip(func.inputs, case.arrays, strict=True)}
    out = func.outputs[0]
    memory[out] = np.zeros(case.expected.shape, out.dtype.numpy)
    arguments = [*(memory[buffer] for buffer in launch.buffers), *(env[var] for var in launch.scalars)]
    return memory[out], run(text, "kernel_0", grid, launch.threads, arguments)


@pytest.mark.covering
@pytest.mark.parametrize("write", [text_for_cuda, text_as_ptx])
@pytest.mark.parametrize("name", ["odd", "turned right", "turned left", "bytes", "symbolic"])
def test_texts_do_the_same_without_bank_conflicts(name: str, write: Callable[[PrimFunc], str]) -> None:
    case = PRODUCTS[name]
    func = finish(apply_rules(case.func, DEVICE).func, FEATURES)

    found, report = run_text(func, write(func), case)

    np.testing.assert_array_equal(found.astype(np.float64), case.expected)
    assert report.bank_conflicts("ldmatrix") == 0
    assert report.count("mma.sync.aligned") > 0 and report.count("ldmatrix.sync.aligned.m8n8.x4") > 0


@pytest.mark.parametrize("write", [text_for_cuda, text_as_ptx])
def test_a_large_product_keeps_its_sums_in_registers_and_reads_memory_by_wide_copies(write: Callable[[PrimFunc], str]) -> None:
    func = finish(apply_rules(Product(1024, 1024, 64, f16, result=f16).func, DEVICE).func, FEATURES)

    text = write(func)

    assert ".local" not in text and "ld.global" not in text
    assert text.count("mma.sync.aligned.m16n8k16") % 32 == 0 and "ldmatrix.sync.aligned.m8n8.x4.trans" in text
    assert "cp.async.cg.shared.global" in text and "cp.async.ca" not in text


def test_products_run_on_an_opencl_device_which_has_no_matrix_instructions() -> None:
    context, queue = opencl_context()
    names = ("plain", "odd", "turned left", "bytes", "symbolic")
    funcs = [finish(apply_rules(PRODUCTS[name].func, DEVICE).func, ()) for name in names]

    programs = OpenClPrograms(funcs, context, queue)

    for name, func in zip(names, funcs, strict=True):
        (found, *_) = programs.run(func, PRODUCTS[name].arrays, PRODUCTS[name].dims)
        assert np.array_equal(found.astype(np.float64), PRODUCTS[name].expected), name
