"""Loops that go on from what they have: the first iteration is apart, and the others choose nothing."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.interp import run_prim_func
from tc.ir.dtype import f32, i64
from tc.ir.expr import Load, Select, Var, const, equal, maximum
from tc.ir.loop import For, PrimFunc, Store
from tc.ir.node import walk
from tc.ir.types import DimFact
from tc.passes.loop.cut_borders import cut_borders
from tc.te import placeholder
from tests.frontend.models import make_model, node


def running(n: object) -> PrimFunc:
    """y[t] = y[t - 1] + x[t] of a symbolic or known number of elements."""
    x, y, t = placeholder((n,), f32, "x").buffer, placeholder((n,), f32, "y").buffer, Var("t", i64)
    value = Select(equal(t, 0), Load(x, (t,)), Load(y, (maximum(t - 1, const(0)),)) + Load(x, (t,)))
    dims = (n,) if isinstance(n, Var) else ()
    return PrimFunc("running", (x, y, *dims), For(t, x.shape[0], Store(y, (t,), value)), 1, tuple(map(DimFact, dims)))


@pytest.mark.parametrize("size", [0, 1, 2, 7])
@pytest.mark.parametrize("known", [False, True])
def test_the_first_element_is_stored_before_the_loop(size: int, known: bool) -> None:
    func = running(size if known else Var("n", i64))

    cut = cut_borders(func)

    assert not any(isinstance(node, Select) for node in walk(cut.body))
    x = np.arange(1, size + 1, dtype=np.float32)
    (found,) = run_prim_func(cut, [x], [] if known else [size])
    np.testing.assert_array_equal(found, np.cumsum(x))


def test_a_loop_that_asks_for_its_beginning_without_reading_what_it_wrote_is_one() -> None:
    x, y, t = placeholder((9,), f32, "x").buffer, placeholder((9,), f32, "y").buffer, Var("t", i64)
    func = PrimFunc("copy", (x, y), For(t, const(9), Store(y, (t,), Select(equal(t, 0), const(1.0, f32), Load(x, (t,))))), 1)

    assert cut_borders(func) == func


@pytest.mark.covering
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("attrs", [{}, {"reverse": 1}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1}])
def test_running_sums_of_any_sizes(axis: int, attrs: dict[str, int]) -> None:
    values = {"d": np.array(axis)}
    module = tc.compile(make_model([node("CumSum", "x d", "y", **attrs)], {"x": (np.float32, ["a", "b", "c"])}, ["y"], values))
    rng = np.random.default_rng(axis)
    for shape in ((0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1), (2, 3, 1), (1, 9, 70), (17, 2, 9), (5, 40, 3), (3, 1, 33)):
        x = rng.integers(-9, 9, shape).astype(np.float32)
        way = np.flip(x, axis) if "reverse" in attrs else x
        total = np.cumsum(way, axis) - (way if "exclusive" in attrs else 0)

        np.testing.assert_array_equal(module(x), np.flip(total, axis) if "reverse" in attrs else total)
