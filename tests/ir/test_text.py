"""Text: what is printed parses back to an equal program, and errors point at the place."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

import tc
from tc.compiler import run_stages
from tc.demo import MODEL_PATH
from tc.errors import LoweringError, ParseError
from tc.frontend.registry import import_model
from tc.interp import run_function
from tc.ir.dtype import bool_, f32, from_numpy, i64
from tc.ir.expr import Var
from tc.ir.graph import Atom, Function, If
from tc.ir.module import IRModule
from tc.ir.parser import parse_module
from tc.ir.printer import print_ir
from tc.ir.structural import first_difference
from tc.ir.types import TensorType, tensor_type
from tc.ops.build import GraphBuilder
from tc.ops.registry import OPS
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.manager import run_pipeline
from tc.passes.pipeline import SIMPLIFY
from tc.schedule.rules import apply_rules
from tc.target import native_target
from tests.golden_files import FOLDER
from tests.ops.kernels import finish, make_prim_func

NAMES = sorted(OPS)
WITH_LOOPS = [name for name in NAMES if OPS[name].compute is not None]


class AnyArray(dict[str, np.ndarray]):
    """An array for every name."""

    def __missing__(self, name: str) -> np.ndarray:
        return np.zeros(3, np.float32)


def assert_round_trip(module: IRModule) -> None:
    constants: dict[str, np.ndarray] = {}
    text = print_ir(module, constants)

    again = parse_module(text, constants)

    assert first_difference(module, again) is None
    assert print_ir(again, {}) == text


@pytest.mark.parametrize("name", WITH_LOOPS)
@pytest.mark.parametrize("some", [slice(3), pytest.param(slice(3, None), marks=pytest.mark.slow)], ids=["few", "others"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_kernels_round_trip_before_and_after_scheduling(name: str, some: slice) -> None:
    op = OPS[name]
    for arrays, attrs in list(op.samples(np.random.default_rng(8)))[some]:
        prim = simplify_loops(make_prim_func(op, arrays, attrs))
        scheduled = apply_rules(prim, native_target()).func

        assert_round_trip(IRModule((prim, scheduled, finish(prim))))


@pytest.mark.parametrize("name", NAMES)
def test_calls_of_every_operator_round_trip(name: str) -> None:
    op = OPS[name]
    for arrays, attrs in op.samples(np.random.default_rng(9)):
        builder = GraphBuilder()
        args = [
            None if a is None else builder.param(f"x {k}", tensor_type(a.shape, from_numpy(a.dtype)))
            for k, a in enumerate(arrays)
        ]
        results = builder.call_many(name, *args, **attrs)

        assert_round_trip(IRModule((builder.function("main", results),)))


def test_a_model_round_trips_at_every_stage() -> None:
    stages = run_stages(str(MODEL_PATH), native_target())
    imported = import_model(str(MODEL_PATH), None, "error").module

    for module in (imported, run_pipeline(imported, SIMPLIFY), stages.graph, stages.lowered, stages.module):
        assert_round_trip(module)


def test_a_kernel_of_nothing_round_trips() -> None:
    b, n = GraphBuilder(), Var("n", i64)
    b.param("x", TensorType((n,), f32))
    module = IRModule((b.function("main", (b.call("full", shape=(n,), value=1.0, dtype=f32),)),))

    assert_round_trip(run_stages(module, native_target()).graph)


NESTED = """
@graph
def main(x: f32[n], c: bool[()], d: bool[()]):
    def then_branch():
        p: f32[n] = neg(x)
        return p
    def else_branch():
        def then_branch():
            p: f32[n] = exp(x)
            return p
        def else_branch():
            p: f32[n] = abs(x)
            return p
        v: f32[n] = cond(d, then_branch, else_branch)
        return v
    y: f32[n] = cond(c, then_branch, else_branch)
    z: f32[n] = cond(d, then_branch, else_branch)
    return y, z
"""


def test_a_name_means_what_the_function_around_it_says() -> None:
    # The branches of an inner `If` took the place of an outer one's of the same name.
    module = parse_module(NESTED)
    x = np.array([1, -2], np.float32)

    for c in (True, False):
        for d in (True, False):
            y, z = run_function(module, "main", [x, np.array(c), np.array(d)])
            np.testing.assert_allclose(y, -x if c else np.exp(x) if d else np.abs(x), rtol=1e-6)
            np.testing.assert_allclose(z, -x if d else np.abs(x), rtol=1e-6)


def test_nested_branches_round_trip() -> None:
    b = GraphBuilder()
    x, c = b.param("x", TensorType((Var("n", i64),), f32)), b.param("c", TensorType((), bool_))

    def branch(name: str, op: str, depth: int) -> Function:
        inner = GraphBuilder()
        made: Atom = inner.call(op, x)
        if depth:
            value = If(c, branch("then_branch", "exp", depth - 1), branch("else_branch", "abs", depth - 1))
            (made,) = inner.bind(value, [x.type], ["made"])
        return inner.function(name, (made,))

    (y,) = b.bind(If(c, branch("then_branch", "neg", 2), branch("else_branch", "neg", 2)), [x.type], ["y"])

    assert_round_trip(IRModule((b.function("main", (y,)),)))


def test_a_fused_graph_is_not_compiled_again() -> None:
    b = GraphBuilder()
    x = b.param("x", TensorType((Var("n", i64),), f32))
    module = IRModule((b.function("main", (b.call("exp", b.call("neg", x)),)),))
    fused = parse_module(tc.lower(module, "graph").whole())

    with pytest.raises(LoweringError, match="is a kernel of a graph that is fused already"):
        tc.compile(fused)


def test_names_of_nodes_survive_as_spans() -> None:
    module = import_model(str(MODEL_PATH), None, "error").module
    constants: dict[str, np.ndarray] = {}

    again = parse_module(print_ir(module, constants), constants)

    assert [str(b.span) for b in again.main.bindings] == [str(b.span) for b in module.main.bindings]


GOOD = """
@loops
def scale(A: f32[n], B: f32[n], n: i64):
    outputs(1)
    promise(n, 0, 100, 4)
    for i in parallel(n, grain=64):
        with block('scale', vi=spatial(n, i)):
            where(vi < 90)
            B[vi] = max(A[vi] * (-2.5), f32('-inf')) + cast(vi, f32)
"""


def test_hand_written_text_is_read() -> None:
    module = parse_module(GOOD)

    assert "promise(n, 0, 100, 4)" in print_ir(module)
    assert_round_trip(module)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("A[vi] *", "A[vj] *", "vj is not a variable in scope"),
        ("A[vi] *", "C[vi] *", "C is not a buffer in scope"),
        ("parallel(n", "sometimes(n", "no kind of loop sometimes"),
        ("cast(vi, f32)", "vi", "operands of .* are f32 and i64"),
        ("cast(vi, f32)", "launch(vi)", "no function launch"),
        ("spatial(n, i)", "7", "expected spatial"),
        ("A: f32[n]", "A", "has no type"),
        ("A: f32[n]", "A: f99[n]", "not a dtype"),
        ("@loops", "@magic", "marked @graph or @loops"),
        ("B[vi] =", "B =", "not a statement"),
        ("for i in", "for i in in", "invalid syntax"),
        ("with block(", "with lock(", "expected block, alloc or let"),
        ("max(A[vi]", "exp(A[vi], A[vi]) + max(A[vi]", "exp takes 1 arguments"),
    ],
)
def test_errors_name_the_place_and_the_reason(old: str, new: str, words: str) -> None:
    assert old in GOOD

    with pytest.raises(ParseError, match=words) as caught:
        parse_module(GOOD.replace(old, new), filename="kernel.tc")

    assert "kernel.tc:" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("outputs(1)", "outputs()", "outputs takes 1 arguments, found 0"),
        ("outputs(1)", "outputs('one')", "expected a whole number"),
        ("promise(n, 0, 100, 4)", "promise(n, 0, 100)", "promise takes 4 arguments"),
        ("promise(n, 0, 100, 4)", "promise(3, 0, 100, 4)", "expected a dim"),
        ("parallel(n, grain=64)", "parallel(grain=64)", "parallel takes 1 arguments, found 0"),
        ("block('scale', ", "block(", "block takes 1 arguments"),
        ("block('scale', ", "block(7, ", "expected a text"),
        ("spatial(n, i)", "special(n, i)", "expected spatial"),
        ("where(vi < 90)", "where()", "where takes 1 arguments"),
        ("max(A[vi] * (-2.5), ", "max(", "max takes 2 arguments, found 1"),
        ("cast(vi, f32)", "cast(vi)", "cast takes 2 arguments"),
        ("f32('-inf')", "f32('many')", "not a number of f32"),
    ],
)
def test_calls_with_other_arguments_are_errors_with_a_place(old: str, new: str, words: str) -> None:
    """They were IndexError, TypeError and ValueError."""
    assert old in GOOD

    with pytest.raises(ParseError, match=words) as caught:
        parse_module(GOOD.replace(old, new), filename="kernel.tc")

    assert "kernel.tc:" in str(caught.value)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_damaged_text_is_a_parse_error_or_another_program() -> None:
    programs = [file.read_text().partition("# -----")[0] for file in sorted(FOLDER.rglob("*.txt"))]
    rng, refused = random.Random(0), 0
    for _ in range(1500):
        words = re.findall(r"\w+|\s+|[^\w\s]", rng.choice(programs))
        place, other = rng.randrange(len(words)), rng.randrange(len(words))
        words[place : place + rng.randrange(2)] = [words[other]] if rng.randrange(2) else []
        try:
            parse_module("".join(words), AnyArray())
        except ParseError:
            refused += 1

    assert 300 < refused < 1400


def test_text_is_never_evaluated() -> None:
    with pytest.raises(ParseError):
        parse_module("@loops\ndef f(A: f32[__import__('os').getpid()]):\n    A[0] = 1.0\n")
