"""A PrimFunc that somebody wrote fuses like an operator where its loops say what each element is, and runs as written where not."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.errors import InputError
from tc.interp import run_function
from tc.ir.dtype import from_numpy
from tc.ir.graph import CallTir
from tc.ir.module import IRModule
from tc.ir.node import replace
from tc.ir.parser import parse_module
from tc.ir.types import TensorType, tensor_type
from tc.ops.build import GraphBuilder
from tc.ops.registry import OPS
from tc.passes.pipeline import PassOptions
from tests.ops.kernels import make_prim_func

F32 = np.float32
ALONE = PassOptions(text="fuse_ops(enable=False)")


def rules(module: tc.CompiledModule) -> list[str]:
    return [kernel.rule for kernel in module.report().kernels]


def between(prim_func: str, given: str, made: str, dims: str = "", before: str = "relu", after: str = "neg") -> IRModule:
    """A module that calls the PrimFunc `f` between an operator on its operand and one on its result."""
    return parse_module(
        f"{prim_func}\n@graph\ndef main(x: {given}):\n    a: {given} = {before}(x)\n"
        f'    b: {made} = call_tir("f", (a,), ({dims}))\n    c: {made} = {after}(b)\n    return c\n'
    )


Both = tuple[tc.CompiledModule, tc.CompiledModule]


def fused_and_alone(module: IRModule, kernels: int) -> Both:
    """The module fused into so many kernels, and unfused."""
    compiled = tc.compile(module, threads=1)
    assert len(rules(compiled)) == kernels
    return compiled, tc.compile(module, threads=1, passes=ALONE)


def compare(module: IRModule, both: Both, arrays: list[np.ndarray], tolerance: float) -> None:
    """Fused and unfused, the module computes what its interpreter does."""
    (expected,) = run_function(module, "main", arrays)
    for each in both:
        result = np.asarray(each(*arrays)).reshape(expected.shape)
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def check(module: IRModule, kernels: int, *arrays: np.ndarray, tolerance: float = 0.0) -> None:
    compare(module, fused_and_alone(module, kernels), list(arrays), tolerance)


CHAIN = """
@loops
def scale(A: f32[n, 8], B: f32[n, 8], n: i64):
    for i in range(n):
        for j in range(8):
            B[i, j] = A[i, j] * 2.0 + 1.0

@loops
def product(A: f32[n, 8], B: f32[8, 10], C: f32[n, 10], n: i64):
    for i in range(n):
        for j in range(10):
            for k in range(8):
                with block('C', vi=spatial(n, i), vj=spatial(10, j), vk=reduction(8, k)):
                    with init():
                        C[vi, vj] = 0.0
                    C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

@loops
def rows(A: f32[n, 10], C: f32[n], n: i64):
    for i in range(n):
        C[i] = 0.0
        for k in range(10):
            C[i] = A[i, k] + C[i]

@graph
def main(x: f32[n, 8], w: f32[8, 10]):
    a: f32[n, 8] = relu(x)
    b: f32[n, 8] = call_tir("scale", (a,), (n,))
    c: f32[n, 8] = neg(b)
    d: f32[n, 10] = call_tir("product", (c, w,), (n,))
    e: f32[n, 10] = tanh(d)
    f: f32[n] = call_tir("rows", (e,), (n,))
    g: f32[n] = neg(f)
    return g
"""


@pytest.mark.parametrize("n", [0, 1, 7])
def test_elementwise_operators_join_the_prim_funcs_beside_them(n: int) -> None:
    rng = np.random.default_rng(n)
    module = parse_module(CHAIN)

    assert rules(tc.compile(module, threads=1)) == ["elementwise", "contraction", "row reduction"]
    check(module, 3, rng.standard_normal((n, 8)).astype(F32), rng.standard_normal((8, 10)).astype(F32), tolerance=1e-4)


def test_not_a_number_stays_one() -> None:
    x = np.full((3, 8), np.nan, F32)

    check(parse_module(CHAIN), 3, x, np.ones((8, 10), F32))


def test_elements_that_are_stored_elsewhere_than_they_are_read() -> None:
    text = """
@loops
def f(A: f32[n, 5], B: f32[5, n, 1], n: i64):
    for i in range(n):
        for j in range(5):
            B[j, i, 0] = A[i, j] - A[i, 4 - j]
"""
    check(between(text, "f32[n, 5]", "f32[5, n, 1]", "n,"), 1, np.arange(15, dtype=F32).reshape(3, 5))


@pytest.mark.parametrize(
    ("start", "update"),
    [("0.0", "C[j] + A[k, j]"), ("1.0", "A[k, j] * C[j]"), ("0.0", "max(C[j], A[k, j])"), ("3.5", "min(C[j], A[k, j] * A[k, j])")],
)
def test_reductions_with_any_start(start: str, update: str) -> None:
    text = f"""
@loops
def f(A: f32[n, 6], C: f32[6], n: i64):
    for j in range(6):
        C[j] = {start}
        for k in range(n):
            C[j] = {update}
"""
    module = parse_module(
        f'{text}\n@graph\ndef main(x: f32[n, 6]):\n    b: f32[6] = call_tir("f", (x,), (n,))\n    c: f32[6] = neg(b)\n    return c\n'
    )

    both = fused_and_alone(module, 1)

    for n in (0, 1, 3, 40):
        compare(module, both, [np.random.default_rng(n).uniform(0.8, 1.2, (n, 6)).astype(F32)], tolerance=1e-4)


def test_what_lies_between_two_nests_gets_buffers_of_its_own() -> None:
    text = """
@loops
def f(A: f32[4, 6], B: f32[4, 6]):
    with alloc(f32[4], scope='global') as t:
        for i in range(4):
            t[i] = 0.0
            for k in range(6):
                t[i] = t[i] + A[i, k]
        for i in range(4):
            for j in range(6):
                B[i, j] = A[i, j] / t[i]
"""
    module = parse_module(
        f"{text}\n@graph\ndef main(x: f32[4, 6]):\n"
        '    a: f32[4, 6] = call_tir("f", (x,), ())\n    b: f32[4, 6] = call_tir("f", (a,), ())\n    c: f32[4, 6] = neg(b)\n    return c\n'
    )

    check(module, 2, np.random.default_rng(0).uniform(1, 2, (4, 6)).astype(F32), tolerance=1e-6)


def test_several_results_and_a_scalar() -> None:
    module = parse_module("""
@loops
def f(A: f32[n], B: f32[n], C: f32[n], n: i64, shift: i64):
    outputs(2)
    for i in range(n):
        with block('B', vi=spatial(n, i)):
            with let(A[vi] * 2.0) as twice:
                B[vi] = twice + cast(vi + shift, f32)
                C[vi] = twice - 1.0

@graph
def main(x: f32[n], y: f32[n]):
    a: f32[n] = add(x, y)
    b, c, = call_tir("f", (a,), (n, n + 3,)) @ (f32[n], f32[n],)
    d: f32[n] = mul(b, c)
    return d
""")
    x = np.arange(5, dtype=F32)

    check(module, 1, x, x + 1)


def test_rows_that_data_choose_are_checked_and_the_node_is_named() -> None:
    text = """
@loops
def f(A: f32[4], idx: i64[6], B: f32[6]):
    for i in range(6):
        B[i] = A[idx[i]] * 2.0
"""
    module = parse_module(
        f"{text}\n@graph\ndef main(x: f32[4], k: i64[6]):\n"
        '    a: f32[4] = neg(x)\n    b: f32[6] = call_tir("f", (a, k,), ())\n    c: f32[6] = relu(b)\n    return c\n'
    )
    x, k = np.arange(4, dtype=F32), np.array([3, 1, 0, 2, 3, 3])
    check(module, 1, x, k)

    with pytest.raises(InputError, match="index 4 is out of range"):
        tc.compile(module, threads=1)(x, np.array([3, 1, 0, 2, 4, 3]))


def test_what_may_be_written_in_place_fuses() -> None:
    text = """
@loops
def f(A: f32[8], B: f32[8]):
    notes(in_place=(0,))
    for i in range(8):
        B[i] = A[i] * 3.0
"""
    check(between(text, "f32[8]", "f32[8]"), 1, np.arange(8, dtype=F32))


@pytest.mark.parametrize(
    "body",
    [
        "for i in vectorized(8):\n        B[i] = A[i] * 2.0",
        "for i in range(2):\n        for j in range(4):\n            B[i * 4 + j] = A[i * 4 + j] * 2.0",
        "for i in range(8):\n        B[i] = A[i]\n    for i in range(8):\n        B[i] = B[i] * 2.0",
        "for i in range(8):\n        if i < 9:\n            B[i] = A[i] * 2.0",
        "for i in range(8):\n        B[7 - i] = A[i] * 2.0",
        "for i in range(8):\n        for k in range(3):\n            B[i] = A[i] + cast(k, f32)",
        "for i in range(8):\n        B[i] = 0.0\n        for k in range(i):\n            B[i] = B[i] + A[k]",
        "for i in range(8):\n        with block('B', vi=spatial(8, i)):\n            where(i < 9)\n            B[vi] = A[vi]",
        "B[0] = A[0]\n    for i in range(7):\n        B[i + 1] = B[i] + A[i + 1]",
    ],
)
def test_loops_of_another_form_run_as_written(body: str) -> None:
    module = between(f"\n@loops\ndef f(A: f32[8], B: f32[8]):\n    {body}\n", "f32[8]", "f32[8]")

    check(module, 3, np.random.default_rng(0).standard_normal(8).astype(F32))


FIXED_OPERANDS = {"conv_winograd", "winograd_weights"}
"""They take matrices that are what they are, and not their absolute values."""

NAMES = sorted(name for name, op in OPS.items() if op.compute is not None and name not in FIXED_OPERANDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_loops_of_any_operator_between_two_others(name: str) -> None:
    op = OPS[name]
    arrays, attrs = next(op.samples(np.random.default_rng(3)))
    func = replace(make_prim_func(op, arrays, attrs), name="f")
    given = [array for array in arrays if array is not None]
    builder = GraphBuilder()
    params = [builder.param(f"x{k}", tensor_type(a.shape, from_numpy(a.dtype))) for k, a in enumerate(given)]
    args = [builder.call("abs", p) if a.dtype == F32 else p for p, a in zip(params, given, strict=True)]
    expected = op.run_reference([np.abs(a) if a is not None and a.dtype == F32 else a for a in arrays], op.attrs(attrs))
    types = [TensorType(buffer.shape, buffer.dtype) for buffer in func.outputs]  # with the workspaces that some have
    results = builder.bind(CallTir("f", tuple(args), (), tuple(types)), types, ["r"])[: len(expected)]
    ends = [builder.call("neg", r, name=f"y{k}") if e.dtype == F32 else r for k, (r, e) in enumerate(zip(results, expected, strict=True))]
    module = tc.compile(IRModule((func, builder.function("main", ends))), threads=1)

    found = module.run({f"x{k}": array for k, array in enumerate(given)}).values()

    for result, want in zip(found, expected, strict=True):
        wanted = -want if want.dtype == F32 else want
        if want.dtype.kind in "fV":
            tolerance = 1e-4 if want.dtype.itemsize > 2 else 2e-2
            np.testing.assert_allclose(result.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(result, wanted)


def test_strict_rounding_is_not_lost_in_another_kernel() -> None:
    text = "\n@loops\ndef f(A: f32[8], B: f32[8]):\n    notes(numerics='strict')\n    for i in range(8):\n        B[i] = A[i] * 3.0 + 1.0\n"

    check(between(text, "f32[8]", "f32[8]"), 3, np.arange(8, dtype=F32))
