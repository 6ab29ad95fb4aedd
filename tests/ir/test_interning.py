"""Equal expressions are one object, also when threads make them at once."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from tc.ir import interning
from tc.ir.dtype import f32, i64
from tc.ir.expr import Add, Const, Expr, FloorDiv, Mul, Var, const


@pytest.fixture
def busy_threads() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def build(var: Var, count: int) -> list[Expr]:
    return [FloorDiv(Add(Mul(var, const(k)), const(k + 1)), const(k + 2)) for k in range(count)]


def test_threads_get_one_object_for_equal_expressions(busy_threads: None) -> None:
    """Looked up, then entered: of two threads in between, each had an object of its own, and `==` is identity."""
    for _ in range(20):
        var, made = Var("n"), [list[Expr]() for _ in range(4)]
        start = threading.Barrier(len(made))

        def work(place: int, var: Var = var, made: list[list[Expr]] = made, start: threading.Barrier = start) -> None:
            start.wait()
            made[place] = build(var, 100)

        threads = [threading.Thread(target=work, args=(place,)) for place in range(len(made))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        for each in zip(*made, strict=True):
            assert len(set(map(id, each))) == 1


def test_an_expression_that_died_is_made_anew(busy_threads: None) -> None:
    var = Var("n")

    def churn() -> None:
        for _ in range(300):
            assert all(isinstance(expr, FloorDiv) and expr.lhs.rhs.value == k + 1 for k, expr in enumerate(build(var, 5)))

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Add(var, const(1)) is Add(var, const(1))


def test_constants_differ_by_type_and_sign() -> None:
    assert Const(1, i64) is not Const(1.0, f32)
    assert Const(0.0, f32) is not Const(-0.0, f32)
    assert Const(float("nan"), f32) is Const(float("nan"), f32)


def test_dead_expressions_leave_nothing_behind() -> None:
    build(Var("m"), 1000)  # small literals stay
    gc.collect()
    before = len(interning._INTERNED)
    made = build(Var("m"), 1000)
    assert len(interning._INTERNED) >= before + 2000

    del made

    assert len(interning._INTERNED) <= before + 10
