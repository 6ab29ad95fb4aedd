"""Products in register tiles go through few of LLVM's passes, and come out as they do from all of them."""

from __future__ import annotations

import re

import pytest

from tc import te
from tc.codegen.kernels import schedule_kernel
from tc.codegen.llvm.emitter import emit_prim_func
from tc.codegen.llvm.jit import compile_group, compile_object, disassemble
from tc.codegen.llvm.products import MARK, is_all_products
from tc.ir.dtype import DType, f16, f32, f64, i32, i64, u8
from tc.ir.expr import Var, cast
from tc.ir.loop import PrimFunc
from tc.target import Target

TARGETS = ("x86-64-v3", "x86-64-v4")


def product(rows: int | Var = 60, dtype: DType = f32) -> PrimFunc:
    x, w = te.placeholder((rows, 48), dtype, "x"), te.placeholder((48, 64), dtype, "w")
    y = te.reduce("sum", (rows, 64), (48,), lambda i, j, k: x[i, k] * w[k, j], "y")
    return te.create_prim_func("f", (x, w), (y,), (rows,) if isinstance(rows, Var) else ())


def products_of_bytes(rows: int | Var = 60) -> PrimFunc:
    """No operand is a literal: both are made 16-bit numbers, and the rows of one are interleaved."""
    x, w = te.placeholder((rows, 48), u8, "x"), te.placeholder((48, 64), u8, "w")
    y = te.reduce("sum", (rows, 64), (48,), lambda i, j, k: cast(x[i, k], i32) * cast(w[k, j], i32), "y")
    return te.create_prim_func("f", (x, w), (y,), (rows,) if isinstance(rows, Var) else ())


def squares() -> PrimFunc:
    x = te.placeholder((60, 48), f32, "x")
    return te.create_prim_func("f", (x,), (te.reduce("sum", (60,), (48,), lambda i, k: x[i, k] * x[i, k], "y"),))


def weighted() -> PrimFunc:
    x, w = te.placeholder((60, 64), f32, "x"), te.placeholder((48, 64), f32, "w")
    y = te.reduce("max", (60, 64), (48,), lambda i, j, k: x[i, j] * w[k, j], "y")
    return te.create_prim_func("f", (x, w), (y,))


def text_of(func: PrimFunc, target: Target) -> str:
    kernel = schedule_kernel(func, target)
    return emit_prim_func(kernel.final, "f", target.features).ir_text


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_tiles_of_products_are_registers_after_few_passes(name: str, dtype: DType) -> None:
    target = Target.of(name)
    text = text_of(product(dtype=dtype), target)

    few, all_passes = disassemble(text, target), disassemble(text.removeprefix(MARK), target)

    assert text.startswith(MARK)
    assert re.search(r"= alloca \[\d+ x (float|double)\]", text)
    assert not re.search(r"= alloca .*(float|double)", few.ir_text)
    assert few.assembly.count("vfmadd") == all_passes.assembly.count("vfmadd") > 8
    assert few.assembly.count("\n") <= all_passes.assembly.count("\n") + 4, "instructions outside of the loops"


@pytest.mark.parametrize("name", TARGETS)
def test_sums_of_interleaved_bytes_are_registers_after_few_passes(name: str) -> None:
    target = Target.of(name)
    text = text_of(products_of_bytes(), target)

    few, all_passes = disassemble(text, target), disassemble(text.removeprefix(MARK), target)

    assert text.startswith(MARK)
    assert not re.search(r"= alloca .*i32\]", few.ir_text)
    assert few.assembly.count("vpmaddwd") == all_passes.assembly.count("vpmaddwd") > 8


@pytest.mark.parametrize("func", [product(Var("n", i64)), product(dtype=f16), product(dtype=i32), products_of_bytes(Var("n", i64)),
                                  squares(), weighted()],
                         ids=["symbolic", "f16", "i32", "symbolic bytes", "squares", "max"])  # fmt: skip
def test_other_sums_go_through_all_passes(func: PrimFunc) -> None:
    kernel = schedule_kernel(func, Target.of("x86-64-v4"))

    assert not is_all_products(kernel.final)


def test_objects_depend_on_their_text_alone() -> None:
    target = Target.of("x86-64-v4")
    texts = [text_of(func, target).replace("@f", f"@f{k}") for k, func in enumerate([squares(), product(), weighted(), product(12)])]
    alone = [compile_object(text, target) for text in texts]

    together = compile_group(texts, True, target)

    assert together == alone
    assert [text.startswith(MARK) for text in texts] == [False, True, False, True]
