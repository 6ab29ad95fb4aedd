"""Rows of a few terms, of each of which much is computed: a vector is of neighbouring rows, exchanged when read and when stored."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

import numpy as np
import pytest

import tc
from tc.ir.expr import Const
from tc.ops.registry import OPS
from tc.schedule.rules import apply_rules
from tc.schedule.tree import block_places
from tc.target import Target
from tests.frontend.models import make_model, node
from tests.ops.kernels import make_prim_func


def softmax(x: np.ndarray) -> np.ndarray:
    shares = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(shares / shares.sum(-1, keepdims=True))


def log_sum_exp(x: np.ndarray) -> np.ndarray:
    top = x.max(-1, keepdims=True)
    return np.asarray(np.log(np.exp(x - top).sum(-1, keepdims=True)) + top)


EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Softmax": softmax,
    "LogSoftmax": lambda x: x - log_sum_exp(x),
    "ReduceLogSumExp": log_sum_exp,
}


def model_of(op: str, shape: list[int | str], dtype: type = np.float32) -> object:
    if op.startswith("Reduce"):
        return make_model([node(op, "x axes", "y")], {"x": (dtype, shape)}, ["y"], {"axes": np.array([-1])}, opset=18)
    return make_model([node(op, "x", "y", axis=-1)], {"x": (dtype, shape)}, ["y"], opset=18)


@pytest.mark.covering
@pytest.mark.parametrize("target", ["native", "x86-64-v2", "x86-64-v3", "x86-64-v4", "c"])
@pytest.mark.parametrize("op", EXACT)
@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 2e-6), (np.float64, 1e-14)], ids=["f32", "f64"])
def test_short_rows_are_those_of_float64(op: str, target: str, dtype: type, error: float, rng: np.random.Generator) -> None:
    chosen = Target.of(target)
    if chosen.missing_here():
        pytest.skip(f"this CPU lacks {', '.join(chosen.missing_here())}")
    for terms in (1, 2, 3, *(int(size) for size in rng.integers(4, 19, 2))):
        shape = (3, int(rng.integers(1, 60)), terms)
        x = (rng.standard_normal(shape) * 5).astype(dtype)
        compiled = tc.compile(model_of(op, ["n", "m", terms], dtype), chosen, threads=2)

        for some in (x, x[:1, :1], x[:, :0], np.repeat(x, 7, axis=1)):
            np.testing.assert_allclose(compiled(some), EXACT[op](some.astype(np.float64)), rtol=error, atol=error)


@pytest.mark.parametrize("op", EXACT)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_no_number_stays_in_its_row(op: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((40, 5)).astype(np.float32)
    x[3, 1], x[17, 0], x[18] = np.nan, np.inf, -np.inf
    found = np.asarray(tc.compile(model_of(op, [40, 5]), threads=1)(x))

    others = [row for row in range(40) if row not in (3, 17, 18)]
    np.testing.assert_allclose(found[others], EXACT[op](x[others].astype(np.float64)), rtol=2e-6, atol=2e-6)
    assert np.isnan(found[3]).all()
    if op == "ReduceLogSumExp":
        assert found[17] == np.inf and found[18] == -np.inf
    else:
        assert np.isnan(found[18]).all() and np.isnan(found[17, 0])


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("terms", "is_exchanged"), [(2, True), (16, True), (17, False)])
def test_lanes_are_rows_up_to_a_vector_of_terms(op: str, terms: int, is_exchanged: bool) -> None:
    text = tc.lower(model_of(op, [500, terms]), "scheduled", "x86-64-v4").as_text()

    assert ("transpose=1" in text) == is_exchanged


@pytest.mark.covering
@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64-v4", "x86-64-v4:machine=znver4"])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_the_place_of_an_extreme_in_a_short_row(op: str, target: str, rng: np.random.Generator) -> None:
    """The first of equal ones, or the last; in lanes that are rows, and in lanes of a row."""
    chosen = Target.of(target)
    if chosen.missing_here():
        pytest.skip(f"this CPU lacks {', '.join(chosen.missing_here())}")
    for terms in (1, 2, 5, 16, *(int(size) for size in rng.integers(17, 70, 2))):
        for last in (0, 1):
            x = rng.integers(0, 5, (int(rng.integers(1, 80)), terms)).astype(np.float32)
            model = make_model([node(op, "x", "y", axis=1, keepdims=0, select_last_index=last)], {"x": (np.float32, ["n", terms])}, ["y"])
            found = tc.compile(model, chosen, threads=1)(x)

            signed = x if op == "ArgMax" else -x
            expected = terms - 1 - signed[:, ::-1].argmax(1) if last else signed.argmax(1)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.covering
@pytest.mark.parametrize("target", ["native", "x86-64-v3", "c"])
@pytest.mark.parametrize("dims", [["n"], ["n", "m"]])
def test_what_is_made_of_the_mean_of_short_rows_of_any_number(dims: list[str], target: str, rng: np.random.Generator) -> None:
    """One number of a row, of which much is computed: rows are lanes, however many the run has."""
    for terms in (2, 3, 7, 16, 17):
        nodes = [node("ReduceMean", "x", "mean", axes=[-1], keepdims=0), node("Exp", "mean", "y"), node("ReduceL2", "x", "z", axes=[-1])]
        model = make_model(nodes, {"x": (np.float32, [*dims, terms])}, ["y", "z"], opset=17)
        module = tc.compile(model, target, threads=2)
        for rows in (0, 1, 15, 16, 17, 63, 64, 65, 1000):
            x = rng.standard_normal((*[3] * (len(dims) - 1), rows, terms)).astype(np.float32)

            exp, norm = module(x)

            np.testing.assert_allclose(exp, np.exp(x.astype(np.float64).mean(-1)), rtol=2e-6)
            np.testing.assert_allclose(norm, np.linalg.norm(x.astype(np.float64), axis=-1, keepdims=True), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("rows", [(15, 435), (3, 7, 19), (2, 500)])
def test_each_row_is_reduced_once(rows: tuple[int, ...]) -> None:
    """Rows of two outer dims at once, whose vectors go from one to the next, were all computed for each vector."""
    func = make_prim_func(OPS["softmax"], [np.zeros((*rows, 15), np.float32)], {"axis": -1})
    scheduled = apply_rules(func, Target.parse("x86-64-v4")).func

    def runs(name: str) -> int:
        (place,) = (place for place in block_places(scheduled) if place.block.name == name)
        return prod(int(loop.extent.value) for loop in place.loops if isinstance(loop.extent, Const))

    assert runs("softmax_sum") < 1.1 * prod(rows) * 15 + 16 * 15


SYMBOLIC: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    **EXACT,
    "ReduceMax": lambda x: x.max(-1, keepdims=True, initial=-np.inf),
    "ReduceMean": lambda x: x.mean(-1, keepdims=True),
    "ArgMin": lambda x: x.argmin(-1, keepdims=True),
}


@pytest.mark.covering
@pytest.mark.parametrize("target", ["native", "x86-64-v3", "c"])
@pytest.mark.parametrize("op", SYMBOLIC)
def test_rows_of_any_length_are_those_of_float64(op: str, target: str, rng: np.random.Generator) -> None:
    """Versions for rows of one vector, of two, and of so few terms that one tree sums them."""
    chosen = Target.of(target)
    if chosen.missing_here():
        pytest.skip(f"this CPU lacks {', '.join(chosen.missing_here())}")
    one, two = (tc.compile(model_of(op, ["m", "n"]), chosen, threads=threads) for threads in (1, 2))

    for terms in (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 256, 257, 512, 513):
        for rows in (0, 1, 5):
            x = (rng.standard_normal((rows, terms)) * 5).astype(np.float32)
            y = two(x)
            np.testing.assert_allclose(y, SYMBOLIC[op](x.astype(np.float64)), rtol=4e-6, atol=4e-6)
            np.testing.assert_array_equal(one(x), y)


def test_rows_of_any_length_are_one_vector_where_one_holds_them() -> None:
    """Of four vectors, three would be computed for nothing."""
    text = tc.lower(model_of("Softmax", ["m", "n"]), "scheduled", "x86-64-v4").as_text()

    assert set(re.findall(r"unrolled\((\d+), tree=1\)", text)) == {"16", "32", "64"}
