"""What threads report of indices out of range does not depend on the order in which they run."""

from __future__ import annotations

import numpy as np
import pytest

from tc.interp import run_prim_func
from tc.ir.loop import PrimFunc, in_place_inputs
from tc.ir.parser import parse_module
from tc.ir.verify import verify
from tc.passes.loop.check_accesses import check_accesses
from tc.passes.loop.report_in_order import report_in_order
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops

ORDERS: list[dict[str, object]] = [{}, {"backward": True}, *({"seed": seed} for seed in range(4))]


def look_up(table: str = "T", before: str = "") -> PrimFunc:
    """Rows of X by a table, by 3 blocks of 4 threads."""
    return parse_module(f"""
@loops
def look_up(X: f32[5, 8], T: i64[12], Y: f32[12, 8]):
    outputs(1)
    with alloc(i64[12], scope='global') as U:
{before}
        for b in bound(3, 'block.x'):
            for t in bound(4, 'thread.x'):
                for j in range(8):
                    Y[b * 4 + t, j] = checked(X[{table}[b * 4 + t], j],
                                              {table}[b * 4 + t], 5, {table}[b * 4 + t], 'row {{index}} of {{size}}', 2)
""").prim_funcs[0]


@pytest.mark.parametrize("bad", [{}, {3: 7}, {3: 7, 4: -1}, {0: 9, 5: 8, 11: 6}, {k: 100 + k for k in range(12)}])
def test_the_report_is_that_of_the_last_that_fails_in_order(bad: dict[int, int]) -> None:
    table = np.arange(12) % 5
    for place, value in bad.items():
        table[place] = value
    x = np.arange(40, dtype=np.float32).reshape(5, 8)

    func = finish_loops(look_up(), calls=DEVICE_FINISH_CALLS)

    verify(func)
    last = [1, bad[max(bad)], 5] if bad else [0, 0, 0]
    for order in ORDERS:
        rows, report = run_prim_func(func, [x, table], **order)  # type: ignore[arg-type]
        assert report.tolist() == [last]
        good = [k for k in range(12) if k not in bad]
        np.testing.assert_array_equal(rows[good], x[table[good]])


def test_a_check_of_what_the_function_computes_reports_one_that_fails() -> None:
    before = """
        for c in bound(3, 'block.x'):
            for s in bound(4, 'thread.x'):
                U[c * 4 + s] = T[c * 4 + s] + 1
"""
    checked = check_accesses(look_up("U", before))
    table = np.arange(12) % 5
    x = np.arange(40, dtype=np.float32).reshape(5, 8)

    func = finish_loops(look_up("U", before), calls=DEVICE_FINISH_CALLS)

    assert report_in_order(checked) is checked
    for order in ORDERS:
        *_, report = run_prim_func(func, [x, table], **order)  # type: ignore[arg-type]
        assert report.tolist() == [[1, 5, 5]]


def test_what_an_output_may_have_overwritten_is_not_read_again() -> None:
    func = parse_module("""
@loops
def look_up(X: i64[5], T: i64[12], Y: i64[12]):
    outputs(1)
    for t in bound(12, 'thread.x'):
        Y[t] = checked(X[T[t]], T[t], 5, T[t], 'row {index} of {size}', 2)
""").prim_funcs[0]
    before = [call.target.name for call in DEVICE_FINISH_CALLS].index("report_in_order")

    marked = finish_loops(func, calls=DEVICE_FINISH_CALLS[:before])

    assert in_place_inputs(marked) == (1,)
    assert report_in_order(marked) is marked
