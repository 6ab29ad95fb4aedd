"""Comparing and hashing programs, and their text."""

from __future__ import annotations

from tc import te
from tc.ir.dtype import f32
from tc.ir.expr import Const, Var, const
from tc.ir.loop import PrimFunc
from tc.ir.printer import print_ir
from tc.ir.structural import _tokens, _words, first_difference, fresh_binders, structural_equal, structural_hash


def matmul_relu(n: Var, name: str = "f", floor: float = 0.0) -> PrimFunc:
    a, b = te.placeholder((n, 64), f32, "A"), te.placeholder((64, 32), f32, "B")
    c = te.reduce("sum", (n, 32), (64,), lambda i, j, k: a[i, k] * b[k, j], "C")
    d = te.compute((n, 32), lambda i, j: te.maximum(c[i, j], const(floor, f32)), "relu")
    return te.create_prim_func(name, (a, b), (d,), (n,))


def test_names_of_variables_do_not_matter() -> None:
    one, other = matmul_relu(Var("n")), matmul_relu(Var("rows"))

    assert structural_equal(one, other)
    assert structural_hash(one) == structural_hash(other)
    assert structural_hash(one) == structural_hash(matmul_relu(Var("n"), "another_name"))


def test_the_words_that_are_hashed_are_the_tokens_that_are_compared() -> None:
    func = matmul_relu(Var("n"), floor=-0.0)

    assert ";".join(_words(func)) == ";".join(map(repr, _tokens(func, with_name=False)))


def test_literals_are_compared_by_their_bits() -> None:
    zero, minus_zero = matmul_relu(Var("n")), matmul_relu(Var("n"), floor=-0.0)

    assert not structural_equal(zero, minus_zero)
    assert first_difference(zero, minus_zero) is not None
    assert structural_hash(zero) != structural_hash(minus_zero)


def test_fresh_binders_make_an_equal_program_of_new_variables() -> None:
    func = matmul_relu(Var("n"))

    copy = fresh_binders(func)

    assert structural_equal(func, copy)
    assert not set(func.params) & set(copy.params)


def test_expressions_are_shared() -> None:
    n = Var("n")

    assert (n + 3) * 4 is (n + 3) * 4
    assert Const(0.0, f32) is not Const(-0.0, f32)
    assert Var("n") is not Var("n")


def test_the_text_of_loops_names_everything_once() -> None:
    text = print_ir(matmul_relu(Var("n")))

    assert "def f(A: f32[n, 64], B: f32[64, 32], relu: f32[n, 32], n: i64):" in text
    assert "C[vi, vj] = C[vi, vj] + A[vi, vri] * B[vri, vj]" in text
    assert "with init():" in text
