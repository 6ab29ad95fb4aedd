"""Running sums and products, scheduled: what numpy accumulates, whatever shapes and axes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tc
from tc.autotune.search.space import Space
from tc.ir.printer import print_ir
from tc.ops.registry import OPS
from tc.ops.trees import node_words
from tc.schedule.rules import apply_rules
from tc.target import Target, native_target
from tests.frontend.models import make_model, node
from tests.ops.kernels import make_prim_func, run

SHAPES = [
    (7,), (1,), (0,), (3, 0), (0, 3), (5, 1), (1, 37), (9, 40), (17, 129), (2, 3, 5), (3, 50, 33), (2, 9, 2100), (2, 2, 3, 17),
    (3, 5, 1, 20), (2, 1, 9, 1), (4, 30, 3), (1, 1, 1), (9, 30, 12), (7, 20, 20), (16, 9, 40), (5, 3, 8, 7),
]  # fmt: skip


def expected(x: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    x = np.flip(x, axis) if reverse else x
    total = np.cumsum(x, axis, dtype=x.dtype)
    total = total - x if exclusive else total
    return np.flip(total, axis) if reverse else total


@pytest.mark.covering
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_sums_along_each_axis_are_those_of_numpy(
    shape: tuple[int, ...], symbolic: bool, exclusive: int, reverse: int, rng: np.random.Generator
) -> None:
    x = rng.integers(-50, 50, shape).astype(np.float32)  # all sums are exact
    dims: list[Any] = [f"d{k}" for k in range(len(shape))] if symbolic else list(shape)
    for axis in range(len(shape)):
        nodes = [node("CumSum", "x a", "y", exclusive=exclusive, reverse=reverse)]
        module = tc.compile(make_model(nodes, {"x": (np.float32, dims)}, ["y"], {"a": np.array(axis)}, opset=17), threads=2)

        np.testing.assert_array_equal(module(x), expected(x, axis, bool(exclusive), bool(reverse)))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64, np.float64])
def test_sums_of_other_types_wrap_as_in_numpy(dtype: type, rng: np.random.Generator) -> None:
    top = np.iinfo(dtype).max // 3 if np.issubdtype(dtype, np.integer) else 1000
    x = rng.integers(0, top, (11, 19)).astype(dtype)
    for axis in (0, 1):
        module = tc.compile(make_model([node("CumSum", "x a", "y")], {"x": (dtype, [11, 19])}, ["y"], {"a": np.array(axis)}, opset=17))

        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(module(x), np.cumsum(x, axis, dtype=dtype))


def test_what_is_beside_the_axis_runs_in_vectors_and_at_once() -> None:
    target = Target.parse("x86-64-v3:cores=2")
    shapes = (((4, 100, 4096), 1, "vectorized(8)"), ((4, 100, 1, 4096), 1, "vectorized(8)"), ((4096, 100), 1, "unrolled(8)"))
    for shape, axis, words in shapes:
        made = apply_rules(make_prim_func(OPS["cumsum"], [np.zeros(shape, np.float32)], {"axis": axis}), target)

        text = print_ir(made.func)
        assert made.rule == "scan" and words in text and "parallel(" in text


def test_few_columns_are_exact_vectors_of_several_rows_at_once() -> None:
    """What a mask had stored, as all of a chain that is the only one, is waited for by the next step."""
    for shape, cores, chains in (((8, 200, 7), 1, 8), ((8, 200, 7), 2, 4), ((7, 300, 12), 1, 4), ((2, 300, 20), 1, 2), ((300, 20), 1, 0)):
        target = Target.parse(f"x86-64-v3:cores={cores}")
        axis = len(shape) - 2
        text = print_ir(apply_rules(make_prim_func(OPS["cumsum"], [np.zeros(shape, np.float32)], {"axis": axis}), target).func)

        assert f"vectorized({shape[-1]})" in text
        assert f"unrolled({chains})" in text if chains else "unrolled" not in text


@pytest.mark.parametrize(
    "shape, cores, strip",
    [((50, 4000), 1, 4000), ((50, 4000), 2, 2016), ((4, 50, 4000), 4, 4000), ((50, 300), 2, 320), ((50, 90000), 1, 4096)],
)
def test_rows_are_cut_for_threads_or_where_the_row_before_would_be_gone(shape: tuple[int, ...], cores: int, strip: int) -> None:
    """They were always cut into strips of 1024, each a jump in memory from row to row."""
    func = make_prim_func(OPS["cumsum"], [np.zeros(shape, np.float32)], {"axis": len(shape) - 2})

    made = apply_rules(func, Target.parse(f"x86-64-v3:cores={cores}"))

    assert [choice.value for choice in made.choices if choice.knob.name.endswith("/strip")] == [strip]


@pytest.mark.parametrize("rows, trees, unrolled", [(100, 40, 16), (1, 5, 4), (3, 1, 2)])
def test_a_fold_goes_on_for_some_results_at_once(rows: int, trees: int, unrolled: int) -> None:
    arrays = [np.zeros((rows, 3), np.float32), np.zeros((7, 4), np.uint32), np.zeros(trees, np.uint32)]
    func = make_prim_func(OPS["walk_trees"], arrays, {"depth": 4, "comparisons": ("less",)})

    made = apply_rules(func, Target.parse("x86-64-v3:cores=2"))

    text = print_ir(made.func)
    assert made.rule == "fold" and "scope='register'" in text and f"unrolled({unrolled})" in text and ("parallel(" in text) == (rows == 100)


@pytest.mark.parametrize("rows, trees, depth", [(9, 5, 4), (1, 5, 3), (3, 1, 2), (6, 7, 1), (1, 1, 2)])
def test_every_number_of_results_at_once_is_a_schedule(rows: int, trees: int, depth: int, rng: np.random.Generator) -> None:
    """A tuner's 1 ended in an internal error, and so did a fold of one step."""
    own = np.arange(7)
    nodes = node_words(own % 3, rng.standard_normal(7, dtype=np.float32), (own + 1) % 7, (own + 2) % 7, 0 * own, 0 * own)
    arrays = [rng.standard_normal((rows, 3), dtype=np.float32), nodes, rng.integers(0, 7, trees).astype(np.uint32)]
    attrs = {"depth": depth, "comparisons": ("less",)}
    space = Space({"": make_prim_func(OPS["walk_trees"], arrays, attrs)}, native_target())
    default = space.default()
    points = [{**dict(default.point), knob.name: value} for knob in default.knobs for value in knob.options]

    (expected,) = OPS["walk_trees"].run_reference(arrays, OPS["walk_trees"].attrs(attrs))

    for candidate in (default, *map(space.at, points)):
        np.testing.assert_array_equal(run(candidate.final, arrays)[0], expected)


def test_not_a_number_stays_in_its_own_row() -> None:
    x = np.ones((20, 30), np.float32)
    x[3, 5], x[7, 0] = np.nan, np.inf
    module = tc.compile(make_model([node("CumSum", "x a", "y")], {"x": (np.float32, [20, 30])}, ["y"], {"a": np.array(1)}, opset=17))

    np.testing.assert_array_equal(module(x), np.cumsum(x, 1, dtype=np.float32))
