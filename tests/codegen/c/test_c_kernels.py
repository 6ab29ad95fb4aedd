"""Kernels as C: operators and programs against their reference, names, errors, and the text itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tc
from tc.codegen.c import backend
from tc.codegen.c.backend import machine_options
from tc.codegen.c.host import emit_host
from tc.errors import CodegenError
from tc.interp import run_prim_func
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_module, parse_prim_func
from tc.ops.registry import OPS
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import finish_loops
from tc.schedule.rules import apply_rules
from tc.target import Target
from tests.codegen.c.kernels import VARIANTS, CLibrary, needs_compiler
from tests.golden_files import FOLDER, check_text
from tests.ops.kernels import make_prim_func
from tests.ops.test_registry import TOLERANCES, WITH_LOOPS, assert_same, samples_of
from tests.small_models import PRODUCTS

DASHES = "# -----"
PROGRAMS = sorted((FOLDER / "llvm").glob("*.txt"))
TEXTS = sorted((FOLDER / "c").glob("*.txt"))
SIZE = 37
FEW = ("conv", "gather_nd", "layer_norm", "matmul", "max_pool", "quantize_linear", "scatter_nd", "softmax", "trilu")
TARGET = Target.parse("c")


def program(path: Path) -> PrimFunc:
    (func,) = parse_module(path.read_text().partition(DASHES)[0]).prim_funcs
    return func


def inputs(func: PrimFunc) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [tuple(int(getattr(dim, "value", SIZE)) for dim in buffer.shape) for buffer in func.inputs]
    values = [
        np.abs(rng.normal(size=shape) if buffer.dtype.is_float else rng.integers(1, 6, shape))
        for buffer, shape in zip(func.inputs, shapes, strict=True)
    ]
    return [value.astype(buffer.dtype.numpy) for buffer, value in zip(func.inputs, values, strict=True)]


@needs_compiler
@pytest.mark.parametrize("variant", VARIANTS)
def test_programs_that_llvm_text_is_pinned_of_compute_their_meaning_in_c(variant, tmp_path):
    funcs = [finish_loops(program(path)) for path in PROGRAMS]

    library = CLibrary(funcs, tmp_path, VARIANTS[variant])

    for path, func in zip(PROGRAMS, funcs, strict=True):
        arrays, dims = inputs(func), [SIZE] * len(func.dims)
        for want, got in zip(run_prim_func(func, arrays, dims), library.run(func, arrays, dims), strict=True):
            tolerance = TOLERANCES.get(want.itemsize, 1e-6)
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, err_msg=path.stem)


def check_operators(names, variant, folder):
    calls = [(OPS[name], arrays, attrs) for name in names for arrays, attrs in samples_of(OPS[name])]
    funcs = [finish_loops(apply_rules(simplify_loops(make_prim_func(*call)), TARGET).func) for call in calls]

    library = CLibrary(funcs, folder, VARIANTS[variant])

    for func, (op, arrays, attrs) in zip(funcs, calls, strict=True):
        expected = op.run_reference(arrays, op.attrs(attrs))
        actual = library.run(func, [a for a in arrays if a is not None])
        for a, e in zip(actual[: len(expected)], expected, strict=True):  # workspaces follow
            assert_same(a, e)


@needs_compiler
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_some_operators_compute_the_reference(tmp_path):
    check_operators(FEW, "vectors", tmp_path)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("first", range(0, len(WITH_LOOPS), 12))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_all_operators_compute_the_reference(first, variant, tmp_path):
    check_operators(WITH_LOOPS[first : first + 12], variant, tmp_path)


NAMES = """
@loops
def names(int: f32[n], restrict: f32[n], f32x16: f32[n], double: i64):
    outputs(1)
    for for_ in range(n):
        f32x16[for_] = int[for_] + restrict[for_]
"""


@needs_compiler
def test_names_that_c_has_are_given_others(tmp_path):
    func = parse_prim_func(NAMES.replace("double: i64", "n: i64").replace("for_", "v_int"))
    arrays = [np.arange(5, dtype=np.float32), np.ones(5, np.float32)]

    (found,) = CLibrary([func], tmp_path).run(func, arrays, (5,))

    assert found.tolist() == [1, 2, 3, 4, 5]


RAGGED = """
@loops
def ragged(A: f32[4], B: f32[4]):
    outputs(1)
    for i in range(4):
        B[i] = 0.0
        for k in range(select(i < 2, i + 3, 1)):
            B[i] = B[i] + A[i]
"""


@needs_compiler
def test_an_extent_that_is_a_choice_ends_its_loop(tmp_path):
    """It was written `k < i < 2 ? i + 3 : 1`, which is another condition."""
    func = parse_prim_func(RAGGED)

    (found,) = CLibrary([func], tmp_path).run(func, [np.ones(4, np.float32)])

    assert found.tolist() == [3, 4, 1, 1]


BOUND = """
@loops
def f(A: f32[64]):
    outputs(1)
    for t in bound(64, 'thread.x'):
        A[t] = 0.0
"""


def test_a_loop_over_an_axis_of_a_device_is_refused():
    with pytest.raises(CodegenError, match=r"loop t of f is bound to thread\.x"):
        emit_host(parse_prim_func(BOUND), "f")


def test_without_a_compiler_the_error_says_what_was_looked_for(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(backend.shutil, "which", lambda name: None)

    with pytest.raises(CodegenError, match=r"no C compiler is here \(looked for gcc, clang, cc\)"):
        backend.find_compiler()


def test_what_a_compiler_refuses_is_an_error_with_its_words(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler-here")

    with pytest.raises(CodegenError, match="no-such-compiler-here cannot be run"):
        backend.compile_texts(["/* C */"], True, TARGET)


def test_the_target_reads_back_from_its_text_and_names_no_instructions_that_c_cannot_choose():
    assert TARGET.kind == "c" and Target.parse(str(TARGET)) == TARGET
    assert not [name for name in TARGET.features if name.startswith(("amx", "avx512vnni", "avx512bf16"))]
    assert machine_options(Target.parse("c:features=sse2+avx+fma")) == ("-mavx", "-mfma", "-mprefer-vector-width=128")


@needs_compiler
def test_a_model_compiled_through_c_gives_the_bits_of_the_one_through_llvm():
    same = replace(TARGET, kind="cpu")
    module = parse_module(PRODUCTS)
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in (("x", (40, 64)), ("w", (64, 96)), ("v", (96, 32)))}

    through_c, through_llvm = (tc.compile(module, target=target).run(arrays) for target in (TARGET, same))

    for name, value in through_llvm.items():
        np.testing.assert_array_equal(through_c[name], value)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_text(path, update_golden):
    text = path.read_text().partition(DASHES)[0]

    found = emit_host(finish_loops(parse_prim_func(text)), "kernel")

    assert len(found.splitlines()) < 150
    check_text(path, f"{text}{DASHES}\n{found}", update_golden)


@needs_compiler
@pytest.mark.parametrize("n, m", [(1, 1), (5, 9), (2, 0), (5, 7)])
def test_parallel_loops_over_quotients_run_as_often_as_they_say(n: int, m: int, tmp_path: Path) -> None:
    func = parse_prim_func("""
@loops
def tiles(A: f32[n, m], B: f32[n, m], n: i64, m: i64):
    outputs(1)
    promise(n, 0, None, 1)
    promise(m, 0, None, 1)
    for i in parallel(n):
        for j in parallel((m + 5) // 6):
            for k in range(6):
                if j * 6 + k < m:
                    B[i, j * 6 + k] = A[i, j * 6 + k] * 2.0
""")
    a = np.arange(n * m, dtype=np.float32).reshape(n, m)

    (found,) = CLibrary([func], tmp_path).run(func, [a], (n, m))

    assert np.array_equal(found, a * 2)
