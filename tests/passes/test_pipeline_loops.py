"""Loops that copy ahead: the same results for any number of iterations, one barrier in each, and faults that are proven without a run."""

from __future__ import annotations

import numpy as np
import pytest

from tc.errors import VerifyError
from tc.interp import run_prim_func
from tc.ir.loop import AsyncStore, Barrier, PrimFunc, walk_statements
from tc.ir.parser import parse_module
from tc.ir.printer import print_ir
from tc.ir.structural import structural_equal
from tc.ir.verify import verify
from tc.passes.loop.distribute_threads import distribute_threads
from tc.passes.loop.pipeline_loops import pipeline_loops
from tc.passes.loop.simplify_loops import simplify_loops

SUMS = """
@loops
def f(A: f32[n, 8], B: f32[8], n: i64):
    outputs(1)
    promise(n, 0, None, 1)
    for b in bound(1, 'block.x'):
        with alloc(f32[8], scope='local') as C:
            for t in bound(8, 'thread.x'):
                C[t] = 0.0
            for k in range({n}, pipeline={stages}):
                with alloc(f32[8], scope='shared') as S:
                    for t2 in bound(8, 'thread.x'):
                        S[t2] = {value}
                    for t3 in bound(8, 'thread.x'):
                        C[t3] = C[t3] * 0.5 + S[7 - t3]
            for t4 in bound(8, 'thread.x'):
                B[t4] = C[t4]
"""

PRODUCT = """
@loops
def product(A: f32[m, k], B: f32[k, n], C: f32[m, n], m: i64, n: i64, k: i64):
    outputs(1)
    promise(m, 0, None, 1)
    promise(n, 0, None, 1)
    promise(k, 0, None, 1)
    for bm in bound((m + 3) // 4, 'block.y'):
        for bn in bound((n + 7) // 8, 'block.x'):
            with alloc(f32[4, 8], scope='local') as C_l:
                for y in bound(4, 'thread.y'):
                    for x in bound(4, 'thread.x'):
                        for j in range(2):
                            C_l[y, j * 4 + x] = 0.0
                for ko in range((k + 3) // 4, pipeline=3):
                    with alloc(f32[4, 4], scope='shared') as A_s:
                        with alloc(f32[4, 8], scope='shared') as B_s:
                            for ay in bound(4, 'thread.y'):
                                for ax in bound(4, 'thread.x'):
                                    A_s[ay, ax] = select(bm * 4 + ay < m and ko * 4 + ax < k, A[bm * 4 + ay, ko * 4 + ax], 0.0)
                            for by in bound(4, 'thread.y'):
                                for bx in bound(4, 'thread.x'):
                                    for bj in range(2):
                                        with let(bn * 8 + bx * 2 + bj) as column:
                                            B_s[by, bx * 2 + bj] = select(ko * 4 + by < k and column < n, B[ko * 4 + by, column], 0.0)
                            for uy in bound(4, 'thread.y'):
                                for ux in bound(4, 'thread.x'):
                                    for r in range(4):
                                        for uj in range(2):
                                            C_l[uy, uj * 4 + ux] = C_l[uy, uj * 4 + ux] + A_s[uy, r] * B_s[r, uj * 4 + ux]
                for wy in bound(4, 'thread.y'):
                    for wx in bound(4, 'thread.x'):
                        for wj in range(2):
                            if bm * 4 + wy < m and bn * 8 + wj * 4 + wx < n:
                                C[bm * 4 + wy, bn * 8 + wj * 4 + wx] = C_l[wy, wj * 4 + wx]
"""


def program(text: str) -> PrimFunc:
    (func,) = parse_module(text).prim_funcs
    verify(func)
    return func


def sums(stages: int, n: str = "n", value: str = "A[k, t2]") -> PrimFunc:
    return program(SUMS.format(stages=stages, n=n, value=value))


def finished(func: PrimFunc) -> PrimFunc:
    made = simplify_loops(distribute_threads(func))
    verify(made)
    return made


def count(func: PrimFunc, kind: type) -> int:
    return sum(isinstance(node, kind) for node in walk_statements(func.body))


@pytest.mark.parametrize("stages", range(2, 6))
def test_any_number_of_iterations_gives_what_the_loop_in_order_gives(stages: int) -> None:
    func = sums(stages)
    forked = pipeline_loops(func)
    verify(forked)

    for n in (0, 1, 2, 3, 4, 9):
        array = np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)
        (expected,) = run_prim_func(func, [array], [n])
        for each in (forked, finished(forked)):
            for order in ({}, {"backward": True}, {"seed": 3}):
                np.testing.assert_array_equal(run_prim_func(each, [array], [n], **order)[0], expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", range(1, 5))
def test_constant_numbers_of_iterations_have_no_more_stages_than_that(n: int) -> None:
    func = sums(4, str(n))
    made = finished(pipeline_loops(func))
    array = np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)

    assert f"alloc(f32[{n}, 8], scope='shared')" in print_ir(made) or n == 1
    np.testing.assert_array_equal(run_prim_func(made, [array], [n])[0], run_prim_func(func, [array], [n])[0])


def test_an_iteration_has_one_barrier() -> None:
    assert count(finished(sums(1)), Barrier) == 2
    assert [count(finished(pipeline_loops(sums(stages))), Barrier) for stages in (2, 3, 4)] == [1, 1, 1]


def test_a_product_of_any_size_is_that_of_numpy() -> None:
    func = program(PRODUCT)
    made = finished(pipeline_loops(func))
    rng = np.random.default_rng(5)

    assert count(made, AsyncStore) == 4
    assert count(made, Barrier) == 1
    for m, n, k in ((4, 8, 12), (5, 9, 1), (1, 1, 17), (3, 2, 0), (0, 4, 5), (6, 7, 8)):
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        (found,) = run_prim_func(made, [a, b], [m, n, k])
        np.testing.assert_array_equal(found, run_prim_func(func, [a, b], [m, n, k])[0])
        np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)


def test_what_is_computed_on_the_way_is_stored_at_once() -> None:
    made = finished(pipeline_loops(sums(3, value="A[k, t2] * 2.0")))
    array = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)

    assert count(made, AsyncStore) == 0
    np.testing.assert_array_equal(run_prim_func(made, [array], [5])[0], run_prim_func(sums(3), [array * 2], [5])[0])


DEPENDENT = {
    "a copy of what the loop writes": ("S[t2] = A[k, t2]", "S[t2] = B[t2]", "C[t3] = C[t3]", "B[t3] = C[t3]"),
    "a buffer that is changed where it is used": ("C[t3] = C[t3]", "S[7 - t3] = S[7 - t3]", "", ""),
}


@pytest.mark.parametrize("case", sorted(DEPENDENT))
def test_what_depends_on_earlier_iterations_stays_in_order(case: str) -> None:
    old, new, other, another = DEPENDENT[case]
    func = program(SUMS.format(stages=3, n="n", value="A[k, t2]").replace(old, new).replace(other, another))

    assert print_ir(pipeline_loops(func)) == print_ir(func).replace(", pipeline=3", "")


END = "\n" + " " * 24
UNTIL_USED = f"commit_copies(){END}C[0]"
FAULTS = {
    "a dropped wait": ("await_copies(1)", "pass", "never are those of the iteration before"),
    "a wait for one group less": ("await_copies(1)", "await_copies(2)", "stage 0 of S is read, but may still be on its way"),
    "a dropped commit": (UNTIL_USED, "C[0]", "stage 1 of S is read, but may still be on its way"),
    "a dropped first commit": ("commit_copies()", "pass", "stage 0 of S is read, but may still be on its way"),
    "a dropped barrier": ("barrier()", "pass", "stage 0 of S is read, but may not be there for all threads"),
    "a barrier before the wait": (f"await_copies(1){END}barrier()", f"barrier(){END}await_copies(1)", "no barrier is behind the wait"),
    "a copy to the next stage": ("(k + 2) % 3", "(k + 1) % 3", "stage 1 of S is written, but may still be on its way"),
    "a copy to the stage in use": ("(k + 2) % 3", "(k + 3) % 3", "stage 0 of S is read, but may still be on its way"),
    "too few stages": ("(k + 2) % 3", "(k + 2) % 2", "stage 0 of S is read, but may still be on its way"),
    "a read of the next stage": ("S[k % 3,", "S[(k + 1) % 3,", "stage 1 of S is read, but may still be on its way"),
    "a read of the stage behind it": ("S[k % 3,", "S[(k + 2) % 3,", "stage 2 of S is read, but may still be on its way"),
    "a group that some threads close": (UNTIL_USED, f"if tx < 4:{END}    {UNTIL_USED}", "need not be the same for all threads"),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_faults_are_proven_and_also_seen_where_threads_run(fault: str) -> None:
    old, new, words = FAULTS[fault]
    text = print_ir(finished(pipeline_loops(sums(3))))
    assert old in text
    func = parse_module(text.replace(old, new, 1)).prim_funcs[0]
    array = np.random.default_rng(0).standard_normal((7, 8)).astype(np.float32)

    with pytest.raises(VerifyError, match=words):
        verify(func)
    with pytest.raises(VerifyError):
        run_prim_func(func, [array], [7])


def test_what_is_on_its_way_is_named_with_its_copy_and_its_reader() -> None:
    text = print_ir(finished(pipeline_loops(sums(2)))).replace("await_copies(0)", "pass", 1)
    func = parse_module(text).prim_funcs[0]
    array = np.zeros((3, 8), np.float32)

    with pytest.raises(VerifyError) as error:
        run_prim_func(func, [array], [3])

    assert error.value.message == (
        "f: thread (tx=0) reads S[0, 7] in `C[0] = C[0] * 0.5 + S[k % 2, tx * (-1) + 7]`, which may still be on its way: thread (tx=7) "
        "copies it in `copy_async(S[0, tx], A[0, tx])` and has not waited for that"
    )


def test_programs_with_copies_are_their_text() -> None:
    for func in (pipeline_loops(sums(3)), finished(pipeline_loops(sums(3)))):
        assert structural_equal(parse_module(print_ir(func)).prim_funcs[0], func)
        assert not structural_equal(parse_module(print_ir(func).replace("await_copies(1)", "await_copies(2)")).prim_funcs[0], func)
