"""Ill-formed programs are refused, each with a message of its own."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tc.compiler import run_stages
from tc.demo import MODEL_PATH
from tc.errors import TcError, VerifyError
from tc.frontend.registry import import_model
from tc.interp import run_prim_func
from tc.ir.dtype import f32, i32, i64
from tc.ir.expr import TRUE, Add, Buffer, FloorDiv, Load, MathCall, Not, Select, Var, const
from tc.ir.graph import (
    Binding,
    Call,
    CallFunction,
    CallTir,
    Function,
    GetItem,
    GlobalRef,
    If,
    Loop,
    ReadDims,
    TensorConst,
    TensorVar,
    Tuple,
)
from tc.ir.loop import Alloc, AxisKind, Barrier, Block, BlockAxis, For, Let, LoopKind, PrimFunc, Seq, Store
from tc.ir.loop import If as LoopIf
from tc.ir.module import IRModule
from tc.ir.node import replace
from tc.ir.parser import parse_module
from tc.ir.types import DimFact, FunctionType, TensorType, tensor_type
from tc.ir.verify import verify
from tc.target import native_target

N = Var("n")
A, B = Buffer("A", (N,), f32), Buffer("B", (N,), f32)
INDEX = Var("i")


def prim(body: object, params: tuple = (A, B, N), **changes: object) -> PrimFunc:
    return PrimFunc("f", params, body, **changes)  # type: ignore[arg-type]


def copy_loop(value: object = None, index: object = None, kind: LoopKind = LoopKind.SERIAL, extent: object = N) -> For:
    var = Var("i")
    place = var if index is None else index
    stored = Load(A, (var,)) if value is None else value
    return For(var, extent, Store(B, (place,), stored), kind)  # type: ignore[arg-type]


def block(**changes: object) -> For:
    var, axis = Var("i"), Var("vi")
    made = Block("copy", (BlockAxis(axis, N, AxisKind.SPATIAL, var),), Store(B, (axis,), Load(A, (axis,))))
    return For(var, N, replace(made, **changes))


def sum_block(kind: LoopKind) -> For:
    var, axis = Var("k"), Var("vk")
    total = Buffer("S", (), f32)
    body = Store(total, (), Add(Load(total, ()), Load(A, (axis,))))
    inner = Block("sum", (BlockAxis(axis, N, AxisKind.REDUCTION, var),), body)
    return Alloc(total, For(var, N, inner, kind))  # type: ignore[return-value]


SHARED = Var("twice")
LOOPS = {
    "variable j is not in scope": prim(copy_loop(index=Var("j"))),
    "buffer C is not in scope": prim(copy_loop(value=Load(Buffer("C", (N,), f32), (const(0),)))),
    "A has 1 dims, but 2 indices": prim(copy_loop(value=Load(A, (const(0), const(1))))),
    "the value stored to B is i64": prim(copy_loop(value=const(1))),
    "an index of B is f32": prim(copy_loop(index=const(1.0, f32))),
    "operands of .* are f32 and i64": prim(copy_loop(value=Add(const(1.0, f32), const(1)))),
    "rounds down; that is for integers": prim(copy_loop(value=FloorDiv(const(1.0, f32), const(1.0, f32)))),
    "the condition of .* is i64": prim(copy_loop(value=Select(const(1), const(1.0, f32), const(2.0, f32)))),
    "the values of .* are f32 and i64": prim(copy_loop(value=Select(TRUE, const(1.0, f32), const(2)))),
    "no intrinsic exp with 2": prim(copy_loop(value=MathCall("exp", (const(1.0, f32), const(1.0, f32)), f32))),
    "negates i64": prim(LoopIf(Not(const(1)), copy_loop())),
    "a condition is i64": prim(LoopIf(const(1), copy_loop())),
    "twice is bound twice": prim(
        Seq(tuple(For(SHARED, N, Store(B, (SHARED,), const(0.0, f32))) for _ in range(2)))
    ),
    "two blocks are named": prim(Seq((block(), block()))),
    "has an initialisation but no reduction": prim(block(init=Store(B, (const(0),), const(0.0, f32)))),
    "the condition of block copy is i64": prim(block(where=const(1))),
    "is vectorized, but its extent n is not constant": prim(copy_loop(kind=LoopKind.VECTORIZED)),
    "is bound to no GPU axis": prim(copy_loop(kind=LoopKind.BOUND)),
    "a barrier stands outside of bound loops": prim(Seq((copy_loop(), Barrier()))),
    "drives the reduction axis": prim(sum_block(LoopKind.PARALLEL)),
    "store to the same element of B": prim(
        copy_loop(index=const(0), value=const(0.0, f32), kind=LoopKind.PARALLEL, extent=const(8))
    ),
    "the extent of loop i is f32": prim(copy_loop(extent=const(1.0, f32))),
    "a parameter is listed twice": prim(copy_loop(), params=(A, A, N)),
    "5 outputs, but 2 buffers": prim(copy_loop(), num_outputs=5),
    "stands behind the scalars": prim(copy_loop(), params=(A, N, B)),
    "a promise speaks of m": prim(copy_loop(), facts=(DimFact(Var("m")),)),
    "unknown scope 'attic'": prim(Alloc(Buffer("T", (const(4),), f32, "attic"), copy_loop())),
    "2 strides for 1 dims": prim(Alloc(Buffer("T", (const(4),), f32, "local", (const(1), const(1))), copy_loop())),
    "the value of v is i64": prim(Let(Var("v", f32), const(1), copy_loop())),
    "a dim of T is f32": prim(Alloc(Buffer("T", (const(4.0, f32),), f32, "local"), copy_loop())),
}


@pytest.mark.parametrize("words", sorted(LOOPS))
def test_ill_formed_loops_are_refused(words: str) -> None:
    with pytest.raises(VerifyError, match=words):
        verify(LOOPS[words])


X = TensorVar("x", tensor_type((4,), f32))
Y = TensorVar("y", tensor_type((4,), f32))
FLAG = TensorConst(np.array(True))
NUMBER = TensorConst(np.array(1.0, np.float32))


def graph(*bindings: Binding, results: tuple = (), params: tuple = (X,), **changes: object) -> Function:
    return Function("main", params, bindings, results, **changes)  # type: ignore[arg-type]


def relu(target: TensorVar = Y, source: TensorVar = X) -> Binding:
    return Binding((target,), Call("relu", (source,)))


def body(*results: object, params: tuple = ()) -> Function:
    return Function("body", params, (), results)  # type: ignore[arg-type]


COUNTER = TensorVar("i", TensorType((), i64))
CARRIED = TensorVar("c", tensor_type((4,), f32))
GROWING = TensorVar("c", TensorType((Var("size"),), f32))
GRAPHS = {
    "variable y is used before": graph(results=(Y,)),
    "variable y is bound twice": graph(relu(), relu()),
    "speaks of m, which nothing has bound": graph(params=(TensorVar("z", TensorType((Var("m") + 1,), f32)),)),
    "is -3, must not be negative": graph(params=(TensorVar("z", TensorType((const(-3),), f32)),)),
    "is f32, must be i64": graph(params=(TensorVar("z", TensorType((const(1.0, f32),), f32)),)),
    "cannot hold: 5..2": graph(facts=(DimFact(N, 5, 2),)),
    "read_dims reads integers": graph(Binding((), ReadDims(X, (Var("k"),)))),
    "a condition is f32": graph(Binding((Y,), If(NUMBER, body(X), body(X)))),
    "returns 2 values for 1 targets": graph(Binding((Y,), If(FLAG, body(X, X), body(X)))),
    "a branch takes no parameters": graph(Binding((Y,), If(FLAG, body(X, params=(CARRIED,)), body(X)))),
    "for y, which is f32": graph(Binding((Y,), If(FLAG, body(TensorConst(np.zeros(4, np.int32))), body(X)))),
    "the body takes 0 parameters for 1 carried": graph(Binding((Y,), Loop(const(2), FLAG, (X,), body(FLAG, X)))),
    "the body returns 1 values for 1 targets": graph(
        Binding((Y,), Loop(const(2), FLAG, (X,), body(FLAG, params=(COUNTER, CARRIED))))
    ),
    "first parameter is f32": graph(
        Binding((Y,), Loop(const(2), FLAG, (X,), body(FLAG, X, params=(CARRIED, TensorVar("d", X.type)))))
    ),
    "the number of iterations speaks of q": graph(
        Binding((Y,), Loop(Var("q"), FLAG, (X,), body(FLAG, CARRIED, params=(COUNTER, CARRIED))))
    ),
    "the loop carries f32.4. as f32.4., f32.4., f32.1, 4., of another rank": graph(
        Binding(
            (TensorVar("z", tensor_type((1, 4), f32)),), Loop(const(2), FLAG, (X,), body(FLAG, CARRIED, params=(COUNTER, CARRIED)))
        )
    ),
    "the loop changes size, and 4 after it is no dim of its own": graph(
        Binding((Y,), Loop(const(2), FLAG, (X,), body(FLAG, GROWING, params=(COUNTER, GROWING))))
    ),
    "is called, but is no function": graph(Binding((Y,), CallFunction(X, ()))),
    "1 arguments for 0 parameters": graph(Binding((Y,), CallFunction(GlobalRef("g", FunctionType((), (Y.type,))), (X,)))),
    "0 results for 1 targets": graph(Binding((Y,), CallFunction(GlobalRef("g", FunctionType((), ())), ()))),
    "there is no field 3": graph(Binding((Y,), GetItem(X, 3))),
    "3 fields for 2 targets": graph(Binding((Y, TensorVar("z", Y.type)), Tuple((X, X, X)))),
}


@pytest.mark.parametrize("words", sorted(GRAPHS))
def test_ill_formed_graphs_are_refused(words: str) -> None:
    with pytest.raises(VerifyError, match=words):
        verify(GRAPHS[words])


SCALE = prim(copy_loop())
MODULES = {
    "2 functions named 'f'": IRModule((graph(), SCALE, SCALE)),
    "the entry 'main' is not a graph function": IRModule((SCALE,)),
    "no loop-level function 'g'": IRModule((graph(Binding((Y,), CallTir("g", (X,), (), (Y.type,)))),)),
    "f has 2 buffers, but 2 arguments and 1 results": IRModule(
        (graph(Binding((Y,), CallTir("f", (X, X), (const(4),), (Y.type,)))), SCALE)
    ),
    "f takes 1 dims, found 0": IRModule((graph(Binding((Y,), CallTir("f", (X,), (), (Y.type,)))), SCALE)),
    "f takes B: f32.n., found i32": IRModule(
        (graph(Binding((TensorVar("w", tensor_type((4,), i32)),), CallTir("f", (X,), (const(4),), ()))), SCALE)
    ),
    "there is no function 'nowhere'": IRModule(
        (graph(Binding((Y,), CallFunction(GlobalRef("nowhere", FunctionType((), (Y.type,))), ()))),)
    ),
}


@pytest.mark.parametrize("words", sorted(MODULES))
def test_ill_formed_modules_are_refused(words: str) -> None:
    with pytest.raises(VerifyError, match=words):
        verify(MODULES[words])


def test_each_of_the_complaints_is_its_own() -> None:
    everything = {**LOOPS, **GRAPHS, **MODULES}
    messages = set()
    for program in everything.values():
        with pytest.raises(VerifyError) as caught:
            verify(program)
        messages.add(re.sub(r"\s.*", "", str(caught.value)) + str(caught.value).splitlines()[0])

    assert len(messages) == len(everything) >= 40


def test_the_complaint_stands_under_the_line() -> None:
    with pytest.raises(VerifyError) as caught:
        verify(LOOPS["the value stored to B is i64"])

    lines = str(caught.value).splitlines()
    place = next(k for k, line in enumerate(lines) if "^--" in line)
    assert "B[i] = 1" in lines[place - 1]


def test_stated_types_are_compared_with_the_rules() -> None:
    with pytest.raises(VerifyError, match=r"stated to be f32\[4\], but is f32\[5\]"):
        verify(graph(relu(), results=(Y,)), infer=lambda binding: [tensor_type((5,), f32)])


def test_real_programs_are_well_formed_at_every_stage() -> None:
    stages = run_stages(str(MODEL_PATH), native_target())

    for module in (import_model(str(MODEL_PATH), None, "error").module, stages.lowered, stages.module):
        verify(module)


def test_parsed_text_is_verified_too() -> None:
    module = parse_module("@loops\ndef f(A: f32[4], B: f32[3]):\n    for i in range(4):\n        B[i] = A[i]\n")

    with pytest.raises(TcError, match="entry"):
        verify(module)




def test_iterations_of_a_parallel_loop_may_store_to_memory_of_their_thread() -> None:
    text = """
@loops
def f(X: f32[8], Y: f32[8], S: f32[4, 2]):
    outputs(2)
    for i in parallel(8):
        for j in range(2):
            S[thread_index(dtype=i64), j] = X[i]
        Y[i] = S[INDEX, 0] + S[INDEX, 1]
"""
    (func,) = parse_module(text.replace("INDEX", "thread_index(dtype=i64)")).prim_funcs

    verify(func)

    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(run_prim_func(func, [x])[0], 2 * x)
