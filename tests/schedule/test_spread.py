"""`spread` and `read_copy`, `widen`, `read_on` and `pad_softmax`: more than is needed, which changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.dtype import f32
from tc.ir.expr import Expr, Var, call, const, logical_and, select
from tc.ir.loop import PrimFunc
from tc.ir.verify import verify
from tc.schedule.analysis import block_infos
from tc.schedule.step import Schedule
from tc.te import compute, create_prim_func, placeholder, reduce

ROWS, TERMS = 6, 10


def softmax(rows: int | Var = ROWS, terms: int | Var = TERMS) -> PrimFunc:
    x = placeholder((rows, terms), f32, "X")
    scaled = compute((rows, terms), lambda i, j: x[(i, j)] * 2.0, "scaled")
    top = reduce("max_number", (rows,), (terms,), lambda i, j: scaled[(i, j)], "top")
    powers = compute((rows, terms), lambda i, j: call("exp", scaled[(i, j)] - top[(i,)]), "powers")
    total = reduce("sum", (rows,), (terms,), lambda i, j: powers[(i, j)], "total")
    out = compute((rows, terms), lambda i, j: powers[(i, j)] / total[(i,)], "out")
    return create_prim_func("softmax", [x], [out], tuple(v for v in (rows, terms) if isinstance(v, Var)))


def log_sum(terms: int | Var = TERMS) -> PrimFunc:
    x = placeholder((terms,), f32, "X")
    scaled = compute((terms,), lambda j: x[(j,)] * 2.0, "scaled")
    top = reduce("max_number", (), (terms,), lambda j: scaled[(j,)], "top")
    powers = compute((terms,), lambda j: call("exp", scaled[(j,)] - top[()]), "powers")
    total = reduce("sum", (), (terms,), lambda j: powers[(j,)], "total")
    out = compute((), lambda: total[()] + 0.0, "out")
    return create_prim_func("log_sum", [x], [out], (terms,) if isinstance(terms, Var) else ())


def same(before: PrimFunc, after: PrimFunc, x: np.ndarray, dims: tuple[int, ...] = ()) -> None:
    verify(after)
    (want,), (got,) = run_prim_func(before, [x], dims), run_prim_func(after, [x], dims)
    np.testing.assert_array_equal(got, want)


def extents(s: Schedule) -> dict[str, str]:
    return {info.name: " ".join(str(axis.extent) for axis in info.block.axes) for info in block_infos(s.func)}


X = np.random.default_rng(0).standard_normal((ROWS, TERMS)).astype(np.float32)


def test_copies_of_what_a_row_has() -> None:
    func = softmax()
    s = Schedule(func)

    s.spread(("top", "total"), 4)
    s.read_copy("powers", "top", -1, 2)
    s.read_copy("out", "total", 1, 1)

    same(func, s.func, X)
    (info,) = (info for info in block_infos(s.func) if info.name == "powers")
    i, j = info.spatial_axes
    assert {str(load) for load in info.reads if load.buffer.name == "top"} == {f"top[{i}, {j} // 2 % 4]"}


def test_copies_that_differ_are_not_chosen_from() -> None:
    s = Schedule(softmax())
    with pytest.raises(ScheduleError, match="equal copies"):
        s.read_copy("powers", "scaled", 0, 1)


def test_a_result_has_no_copies() -> None:
    with pytest.raises(ScheduleError, match="scratch"):
        Schedule(softmax()).spread(("out",), 4)


@pytest.mark.parametrize("rows", [0, 1, 6, 8])
def test_more_rows_than_are_read(rows: int) -> None:
    func = softmax(Var("m"))
    s = Schedule(func)

    s.widen(("scaled", "top", "powers", "total"), 0, 4)

    assert extents(s)["scaled"] == "(m + 3) // 4 * 4 10"
    same(func, s.func, np.ones((rows, TERMS), np.float32) * np.arange(TERMS, dtype=np.float32), (rows,))


def test_a_reduction_is_not_widened_without_what_it_reduces() -> None:
    with pytest.raises(ScheduleError, match="reduces what is not wider"):
        Schedule(softmax()).widen(("top",), 0, 4)


def windows(rows: int | Var = 7) -> PrimFunc:
    """Sums of three neighbours, zeros before the first; the copy of what is multiplied has rows and taps."""
    x, w = placeholder((rows, 4), f32, "x"), placeholder((3, 5), f32, "w")
    zero = const(0, f32)

    def seen(i: Expr, t: Expr) -> Expr:
        at = i + t - 1
        return select(logical_and(at >= 0, at < rows), x[at, 2], zero)

    out = reduce("sum", (rows, 5), (3,), lambda i, j, t: seen(i, t) * w[t, j], "out")
    return create_prim_func("windows", [x, w], [out], (rows,) if isinstance(rows, Var) else ())


@pytest.mark.parametrize("rows", [0, 1, 6, 7, 8])
def test_a_copy_reads_on_what_is_next_in_memory_and_nothing_beyond(rows: int) -> None:
    func = windows(Var("m"))
    s = Schedule(func)
    (copy,) = [s.cache_operand("out", "lhs", "f32")]

    s.read_on(copy, 0, 4)

    assert extents(s)[copy].startswith("(m + 3) // 4 * 4")
    verify(s.func)
    rng = np.random.default_rng(rows)
    arrays = [rng.standard_normal((rows, 4)).astype(np.float32), rng.standard_normal((3, 5)).astype(np.float32)]
    np.testing.assert_array_equal(run_prim_func(s.func, arrays, (rows,))[0], run_prim_func(func, arrays, (rows,))[0])


def test_a_copy_that_read_on_keeps_the_conditions_that_say_what_is_inside() -> None:
    s = Schedule(windows())
    copy = s.cache_operand("out", "lhs", "f32")

    s.read_on(copy, 0, 4)

    (info,) = (info for info in block_infos(s.func) if info.name == copy)
    i, t = info.spatial_axes
    assert str(info.writes[0].value) == f"select(0 <= {i} + {t} - 1 and {i} + {t} - 1 < 7, x[{i} + {t} - 1, 2], 0.0)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, copy: s.read_on(copy, 5, 4), "has no axis 5"),
        (lambda s, copy: s.read_on(copy, 0, 0), "nothing is a multiple of 0"),
        (lambda s, copy: s.read_on("out", 0, 4), "does not write one scratch buffer"),
    ],
)
def test_what_cannot_read_on(change, message: str) -> None:
    s = Schedule(windows())
    copy = s.cache_operand("out", "lhs", "f32")
    with pytest.raises(ScheduleError, match=message):
        change(s, copy)


ENDS = {
    "any": X[0],
    "nothing": np.full(TERMS, -np.inf),
    "infinite": np.array([1.0] * 9 + [np.inf]),
    "no number": np.array([np.nan] + [1.0] * 9),
}


@pytest.mark.parametrize("row", ENDS.values(), ids=ENDS.keys())
def test_more_terms_that_add_nothing(row: np.ndarray) -> None:
    func = log_sum()
    s = Schedule(func)

    s.pad_softmax("top", 4)

    assert extents(s) == {"scaled": "12", "top": "12", "powers": "12", "total": "12", "out": ""}
    same(func, s.func, row.astype(np.float32))


@pytest.mark.parametrize("terms", [0, 1, 4])
def test_no_terms_stay_none(terms: int) -> None:
    func = log_sum(Var("n"))
    s = Schedule(func)

    s.pad_softmax("top", 4)

    same(func, s.func, np.arange(terms, dtype=np.float32), (terms,))
