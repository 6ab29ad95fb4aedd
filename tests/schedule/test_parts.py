"""Blocks that are cut where what they choose changes: each part is computed as before, and what is joined is copied in whole rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tc
from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.dtype import f32
from tc.ir.expr import Expr, Select, Var, const
from tc.ir.loop import PrimFunc
from tc.ir.node import walk
from tc.ir.structural import structural_equal
from tc.ir.types import DimFact
from tc.ir.verify import verify
from tc.schedule.analysis import block_infos
from tc.schedule.step import Schedule, Trace
from tc.te import compute, create_prim_func, placeholder
from tests.frontend.models import make_model, node


def joined(m: Any = 3, n: Any = 2) -> PrimFunc:
    """y[i, j, k] = a[i, j, k] * 2 for j < m, behind it b, and c at last."""
    a, b, c = (placeholder((4, size, 5), f32, name) for size, name in ((m, "a"), (n, "b"), (1, "c")))
    m, n = (size if isinstance(size, Expr) else const(size) for size in (m, n))

    def element(i: Expr, j: Expr, k: Expr) -> Expr:
        return Select(j < m, a[i, j, k], Select(j < m + n, b[i, j - m, k], c[i, j - m - n, k])) * 2.0

    dims = tuple(size for size in (m, n) if isinstance(size, Var))
    return create_prim_func("joined", [a, b, c], [compute((4, m + n + 1, 5), element, "y")], dims, tuple(map(DimFact, dims)))


def check(func: PrimFunc, schedule: Schedule, m: int, n: int, *dims: int) -> None:
    verify(schedule.func)
    arrays = [np.random.default_rng(1).standard_normal((4, size, 5)).astype(np.float32) for size in (m, n, 1)]
    (got,), (want,) = run_prim_func(schedule.func, arrays, dims), run_prim_func(func, arrays, dims)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(got, 2 * np.concatenate(arrays, 1))


def test_each_part_is_copied_without_a_choice() -> None:
    schedule = Schedule(joined())

    parts = schedule.cut_choices("y", 1)

    check(joined(), schedule, 3, 2)
    assert [str(info.block.axes[1].extent) for info in block_infos(schedule.func)] == ["3", "2", "1"] and len(parts) == 3
    assert not any(isinstance(each, Select) for each in walk(schedule.func.body))
    assert structural_equal(Trace.from_json(schedule.trace.to_json()).apply(joined()), schedule.func)


def test_parts_of_symbolic_sizes_may_be_empty() -> None:
    func = joined(Var("m"), Var("n"))
    schedule = Schedule(func)

    schedule.cut_choices("y", 1)

    for m, n in ((0, 0), (0, 3), (2, 0), (1, 1), (4, 3)):
        check(func, schedule, m, n, m, n)


@pytest.mark.parametrize(
    "axis, message",
    [(0, r"nothing is chosen along axis 0 of block y"), (3, r"block y has no axis 3, it has 3"), (-1, r"block y has no axis -1")],
)
def test_what_is_no_choice_along_an_axis_is_not_cut(axis: int, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Schedule(joined()).cut_choices("y", axis)


def test_places_that_come_in_another_order_are_sorted() -> None:
    n = Var("n")
    joined = compute((3 * n,), lambda i: Select(i < 2 * n, Select(i < n, const(1.0, f32), const(2.0, f32)), const(3.0, f32)), "y")
    schedule = Schedule(create_prim_func("chosen", [], [joined], (n,), (DimFact(n, 0),)))

    parts = schedule.cut_choices("y", 0)

    assert len(parts) == 3
    for size in (0, 1, 5):
        (found,) = run_prim_func(schedule.func, [], [size])
        assert found.tolist() == [1.0] * size + [2.0] * size + [3.0] * size


def test_places_of_which_the_order_is_not_known_are_not_cut() -> None:
    m, n, size = (Var(name) for name in ("m", "n", "size"))
    one = compute((size,), lambda i: Select(i < m, const(1.0, f32), Select(i < n, const(2.0, f32), const(3.0, f32))), "y")
    func = create_prim_func("chosen", [], [one], (m, n, size), tuple(map(DimFact, (m, n, size))))

    with pytest.raises(ScheduleError, match=r"the order of 0, m, n, size is not known"):
        Schedule(func).cut_choices("y", 0)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_joined_tensors_of_any_sizes(axis: int) -> None:
    """One module of symbolic sizes for all of them, by one thread and by two."""
    shapes = [[f"{name}{d}" if d == axis else f"s{d}" for d in range(3)] for name in "abc"]
    inputs = {name: (np.float32, shape) for name, shape in zip("abc", shapes, strict=True)}
    model = make_model([node("Concat", "a b c", "y", axis=axis)], inputs, ["y"])
    modules = [tc.compile(model, threads=threads) for threads in (1, 2)]
    rng = np.random.default_rng(axis)
    for number in range(12):
        others, sizes = rng.integers(0 if number == 5 else 1, 40, 3), rng.integers(0, 40, 3) if number % 3 else [0, 1, 0]
        arrays = [rng.standard_normal([n if d == axis else others[d] for d in range(3)]).astype(np.float32) for n in sizes]
        for module in modules:
            np.testing.assert_array_equal(module(*arrays), np.concatenate(arrays, axis))


@pytest.mark.parametrize("axis, sizes", [(0, (2, 3, 1)), (1, (1, 60, 7)), (2, (3, 50, 33)), (1, (5, 5))])
def test_what_is_joined_and_what_is_computed_with_it(axis: int, sizes: tuple[int, ...]) -> None:
    rng, shape = np.random.default_rng(0), [9, 11, 13]
    arrays = [rng.standard_normal([n if d == axis else shape[d] for d in range(3)]).astype(np.float32) for n in sizes]
    names = "abc"[: len(sizes)]
    joined = np.concatenate(arrays, axis)
    factor = rng.standard_normal(joined.shape).astype(np.float32)
    nodes = [node("Concat", " ".join(names), "t", axis=axis), node("Relu", "t", "r"), node("Mul", "r f", "y")]
    inputs = {name: (np.float32, list(array.shape)) for name, array in zip((*names, "f"), (*arrays, factor), strict=True)}

    found = tc.compile(make_model(nodes, inputs, ["y"]))(*arrays, factor)

    np.testing.assert_array_equal(found, np.maximum(joined, 0) * factor)


def test_rolled_rows_are_not_written_over_what_is_still_read() -> None:
    """The result has the shape of its operand, of which each part reads what another one writes."""
    x = np.arange(48, dtype=np.float32).reshape(2, 24)
    nodes = [node("Neg", "x", "n"), node("Split", "n s", "a b", axis=1), node("Concat", "b a", "y", axis=1)]
    module = tc.compile(make_model(nodes, {"x": (np.float32, [2, 24])}, ["y"], {"s": np.array([8, 16])}))

    np.testing.assert_array_equal(module(x), np.roll(-x, -8, 1))
