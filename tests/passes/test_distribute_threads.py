"""Launches in the form that devices run: how many barriers, whose memory what is, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.expr import Var
from tc.ir.loop import Alloc, Barrier, PrimFunc, walk_statements
from tc.ir.parser import parse_module
from tc.ir.printer import print_ir
from tc.ir.verify import verify
from tc.passes.loop.distribute_threads import distribute_threads
from tc.passes.loop.lower_blocks import lower_blocks
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tc.schedule.step import Schedule
from tests.interp.launch_programs import PROGRAMS
from tests.passes.random_launches import random_launch
from tests.schedule.programs import row_sum, softmax


def program(body: str, signature: str = "A: f32[8, 8], B: f32[8, 8]") -> PrimFunc:
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    return parse_module(f"@loops\ndef f({signature}):\n    outputs(1)\n{lines}\n").prim_funcs[0]


def barriers(func: PrimFunc) -> int:
    return sum(isinstance(node, Barrier) for node in walk_statements(func.body))


@pytest.mark.parametrize(
    ("name", "count"),
    [("matmul", 2), ("row_sum", 3), ("transpose", 1), ("two_stages", 2), ("scan", 3), ("halving", 3), ("table", 1)],
)
def test_there_is_no_more_than_a_barrier_where_threads_touch_what_others_do(name: str, count: int) -> None:
    assert barriers(PROGRAMS[name].finished) == count


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_in_the_finished_form_stays(name: str) -> None:
    func = PROGRAMS[name].finished

    again = distribute_threads(func)

    assert barriers(func) > 0
    assert again.body is func.body


def test_a_loop_that_may_not_run_keeps_what_is_before_it_in_mind() -> None:
    func = program(
        """
for b in bound(1, 'block.x'):
    with alloc(f32[8], scope='shared') as S:
        for t in bound(8, 'thread.x'):
            S[t] = A[0, t]
        for k in range(n):
            for u in bound(8, 'thread.x'):
                B[k, u] = A[k, u]
        for v in bound(8, 'thread.x'):
            B[7, v] = S[7 - v]
""",
        "A: f32[8, 8], B: f32[8, 8], n: i64",
    )

    assert barriers(distribute_threads(func)) == 1


def test_what_part_of_the_threads_share_is_in_shared_memory_once_for_each_part() -> None:
    func = simplify_loops(distribute_threads(program("""
for y in bound(8, 'thread.y'):
    with alloc(f32[8], scope='global') as row:
        for x in bound(8, 'thread.x'):
            row[x] = A[y, x]
        for z in bound(8, 'thread.x'):
            B[y, z] = row[7 - z]
""")))
    x = np.arange(64, dtype=np.float32).reshape(8, 8)

    (found,) = run_prim_func(func, [x])

    assert [str(node.buffer) for node in walk_statements(func.body) if isinstance(node, Alloc)] == ["row: f32[8, 8]"]
    np.testing.assert_array_equal(found, x[:, ::-1])


def test_conditions_on_threads_go_to_the_parts_inside_of_them() -> None:
    func = distribute_threads(program("""
for y in bound(4, 'thread.y'):
    with alloc(f32[8], scope='shared') as row:
        if y < 3:
            for x in bound(8, 'thread.x'):
                row[x] = A[y, x] + 1.0
            for z in bound(8, 'thread.x'):
                B[y, z] = row[7 - z]
        else:
            for w in bound(8, 'thread.x'):
                B[y, w] = 0.0
for y2 in bound(4, 'thread.y'):
    for x2 in bound(8, 'thread.x'):
        B[y2 + 4, x2] = 1.0
"""))
    x = np.arange(64, dtype=np.float32).reshape(8, 8)

    verify(func)
    (found,) = run_prim_func(func, [x])

    np.testing.assert_array_equal(found[:3], x[:3, ::-1] + 1)
    assert found[3:].sum() == 32


def test_host_code_that_touches_memory_is_a_launch_of_one_thread() -> None:
    func = distribute_threads(program("for i in range(8):\n    for j in range(8):\n        B[i, j] = A[j, i]"))

    assert "bound(1, 'thread.x')" in print_ir(func)


SEQUENCES = {
    "a condition on what threads change is read before they do": """
for z in bound(8, 'thread.y'):
    for w in bound(8, 'thread.x'):
        B[z, w] = A[z, w]
for y in bound(4, 'thread.y'):
    if B[y, 0] < 0.0:
        for x in bound(8, 'thread.x'):
            B[y, x] = B[y, x] + 1.0
        for v in bound(8, 'thread.x'):
            B[y + 4, v] = B[y, 7 - v]
    else:
        for u in bound(4, 'thread.x'):
            B[y, u] = 0.0
""",
    "loops go on as long as memory says that one thread changes": """
for b in bound(8, 'block.x'):
    with alloc(i64[1], scope='shared') as last:
        for y in bound(8, 'thread.x'):
            B[b, y] = A[b, y]
        last[0] = 0
        while last[0] < 3:
            for q in bound(8, 'thread.x'):
                B[b, q] = B[b, q] * 2.0
            last[0] = last[0] + 1
        for k in range(last[0]):
            for u in bound(8, 'thread.x'):
                B[b, u] = B[b, u] + A[b, 7 - u] + cast(k, f32)
""",
    "blocks without threads have one": """
for b in bound(8, 'block.x'):
    B[b, 0] = A[b, 0]
    for k in range(7):
        B[b, k + 1] = B[b, k] + A[b, k + 1]
""",
}


@pytest.mark.parametrize("claim", SEQUENCES)
def test_threads_compute_what_the_loops_in_order_do(claim: str) -> None:
    func = program(SEQUENCES[claim])
    x = np.arange(64, dtype=np.float32).reshape(8, 8) - 20

    finished = simplify_loops(distribute_threads(func))

    verify(finished)
    (want,) = run_prim_func(func, [x])
    for order in ({}, {"backward": True}, {"seed": 5}):
        (got,) = run_prim_func(finished, [x], **order)  # type: ignore[arg-type]
        np.testing.assert_array_equal(got, want)


REFUSED = {
    r"L is each thread's own, but several threads touch the same element": """
for b in bound(2, 'block.x'):
    with alloc(f32[4], scope='local') as L:
        for t in bound(8, 'thread.x'):
            L[t // 2] = A[b, t]
        for u in bound(8, 'thread.x'):
            B[b, u] = L[u // 2]
""",
    r"but L\[tx\] and L\[.*7\] are of different threads|which part of it a thread touches is not clear: L\[7 - tx\]": """
for b in bound(2, 'block.x'):
    with alloc(f32[8], scope='local') as L:
        for t in bound(8, 'thread.x'):
            L[t] = A[b, t]
        for u in bound(8, 'thread.x'):
            B[b, u] = L[7 - u]
""",
    r"but L\[tx\] and L\[.*tx % 4 \* 2.*\] are of different threads": """
for b in bound(2, 'block.x'):
    with alloc(f32[8], scope='local') as L:
        for t in bound(8, 'thread.x'):
            L[t] = A[b, t]
        for u in bound(8, 'thread.x'):
            B[b, u] = L[u // 4 + u % 4 * 2]
""",
    r"S: f32\[n\] is allocated in a launch, but n has no constant bound": """
for b in bound(2, 'block.x'):
    with alloc(f32[n], scope='shared') as S:
        for t in bound(8, 'thread.x'):
            S[t] = A[b, t]
        for u in bound(8, 'thread.x'):
            B[b, u] = S[7 - u]
""",
    r"a barrier is needed between S\[.*\] and S\[.*\] inside of loop k that is not the same for all threads": """
for y in bound(2, 'thread.y'):
    with alloc(f32[8], scope='shared') as S:
        for k in range(y + 1):
            for t in bound(8, 'thread.x'):
                S[t] = A[k, t]
            for u in bound(8, 'thread.x'):
                B[y, u] = S[7 - u]
""",
    r"A\[0, 0\] < 1.0 is read from memory outside of a launch": """
if A[0, 0] < 1.0:
    for t in bound(8, 'thread.x'):
        B[0, t] = A[0, t]
""",
    r"loop v is vectorized around loops over threads|loop v is vectorized": """
for b in bound(2, 'block.x'):
    for v in vectorized(2):
        for t in bound(8, 'thread.x'):
            B[b * 2 + v, t] = A[0, t]
""",
}


@pytest.mark.parametrize("words", REFUSED)
def test_launches_that_are_no_threads_are_refused_in_words(words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        distribute_threads(program(REFUSED[words], "A: f32[8, 8], B: f32[8, 8], n: i64"))


def test_loops_made_for_empty_reductions_keep_their_axis() -> None:
    """Copies of bound loops had no axis, which the verifier refused."""
    schedule = Schedule(row_sum(3, Var("k")))
    schedule.reorder("ri", "i")
    schedule.bind("i", "thread.x")

    func = lower_blocks(schedule.func)

    verify(func)
    assert print_ir(func).count("'thread.x'") == 2


def test_finished_kernels_of_scheduled_programs_compute_the_same() -> None:
    schedule = Schedule(softmax(4, 6))
    for loop in ("i", "i_1", "i_2", "i_3"):
        schedule.bind(loop, "block.x")
    schedule.bind("j", "thread.x")
    schedule.bind("j_1", "thread.x")
    x = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)

    func = finish_loops(schedule.func, calls=DEVICE_FINISH_CALLS)

    verify(func)
    found, *_ = run_prim_func(func, [x])
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, e / e.sum(1, keepdims=True), rtol=1e-5)


ROW = "b * 4 + w"
UNDER_A_GUARD = {
    "an extent": (f"for k in range(L[{ROW}]):", "1.0"),
    "an extent that is the same for all": ("for k in range(L[b * 4 + 4]):", "1.0"),
    "a condition that is the same for all": ("if 0 < L[b * 4 + 4]:", "1.0"),
    "a number": ("with let(L[b * 4 + 4]) as k:", "cast(k, f32)"),
}
"""What decides about loops over threads: of their row, or of the row after those of a block."""


@pytest.mark.parametrize("name", UNDER_A_GUARD)
def test_what_a_guard_keeps_from_memory_does_not_read_it_elsewhere(name: str) -> None:
    """Guards went to the statements inside: what stands between was evaluated without them, and a loop ran as often as rubbish said."""
    head, value = UNDER_A_GUARD[name]
    guard = f"{ROW} < n" if ROW in head else f"{ROW} < n and b * 4 + 4 < n and 0 < w"
    func = program(
        f"""
for b in bound(3, 'block.x'):
    for w in bound(4, 'thread.y'):
        for t in bound(2, 'thread.x'):
            if {ROW} < n:
                B[{ROW}, t] = 0.0
        if {guard}:
            {head}
                for u in bound(2, 'thread.x'):
                    B[{ROW}, u] = B[{ROW}, u] + {value}
""",
        "L: i64[n], B: f32[n, 2], n: i64",
    )
    lengths = np.arange(1, 10)

    for order in ({}, {"seed": 1}):
        (found,) = run_prim_func(distribute_threads(func), [lengths], (9,), **order)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, run_prim_func(func, [lengths], (9,))[0])


def check_random(seeds: range) -> None:
    count = 0
    for seed in seeds:
        func = random_launch(seed)
        finished = simplify_loops(distribute_threads(func))
        verify(finished)
        x = np.random.default_rng(seed).standard_normal((2, 16)).astype(np.float32)
        (want,) = run_prim_func(func, [x])
        for order in ({}, {"seed": seed}):
            (got,) = run_prim_func(finished, [x], **order)  # type: ignore[arg-type]
            np.testing.assert_array_equal(got, want)
        count += barriers(finished)
    assert count > len(seeds)


def test_random_launches_have_the_barriers_that_they_need() -> None:
    check_random(range(40))


@pytest.mark.slow
def test_many_random_launches_have_the_barriers_that_they_need() -> None:
    check_random(range(40, 600))


def test_an_axis_of_one_thread_is_no_digit_of_what_each_thread_has() -> None:
    func = program(
        """
for b in bound(8, 'block.x'):
    with alloc(f32[1, 4, 8], scope='local') as C:
        for y in bound(1, 'thread.y'):
            for t in bound(8, 'thread.x'):
                for k in range(4):
                    C[0, k + y * 4, t] = A[b, t] + cast(k, f32)
        for z in bound(1, 'thread.y'):
            for u in bound(8, 'thread.x'):
                B[b, u] = C[z, 0, u] + C[z, 3, u]
"""
    )
    x = np.arange(64, dtype=np.float32).reshape(8, 8)

    found = distribute_threads(func)

    verify(found)
    np.testing.assert_array_equal(run_prim_func(found, [x])[0], x * 2 + 3)
