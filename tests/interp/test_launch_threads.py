"""Threads of launches in the interpreter: what is reported names buffer, element, threads and statements."""

from __future__ import annotations

import numpy as np
import pytest

from tc.errors import VerifyError
from tc.interp import run_prim_func
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_module
from tc.ir.verify import verify


def program(body: str, signature: str = "A: f32[8], B: f32[8]", depth: int = 1, outputs: int = 1) -> PrimFunc:
    lines = "\n".join("    " * depth + line for line in body.strip("\n").splitlines())
    return parse_module(f"@loops\ndef f({signature}):\n    outputs({outputs})\n{lines}\n").prim_funcs[0]


def reported(func: PrimFunc) -> str:
    with pytest.raises(VerifyError) as error:
        run_prim_func(func, [np.arange(8, dtype=np.float32)])
    return error.value.message


def in_block(body: str, shared: str = "f32[8]") -> PrimFunc:
    """Eight threads of two blocks with a shared buffer S."""
    lines = "\n".join("            " + line for line in body.strip("\n").splitlines())
    return program(f"""
for b in bound(1, 'block.x'):
    with alloc({shared}, scope='shared') as S:
        for t in bound(8, 'thread.x'):
{lines}
""")


def test_a_read_of_what_another_thread_writes_is_a_race() -> None:
    func = in_block("S[t] = A[t]\nB[t] = S[7 - t]")

    assert reported(in_block("S[t] = A[t]\nbarrier()\nB[t] = S[7 - t]\nS[t] = 0.0")) == (
        "f: a race on S[3]: thread (t=3) writes it in `S[t] = 0.0`, thread (t=4) reads in `B[t] = S[7 - t]`, and no barrier is between"
    )
    assert "thread (t=0) reads S[7] in `B[t] = S[7 - t]`, but nothing has been stored there" in reported(func)


def test_races_are_found_in_whatever_order_threads_run() -> None:
    func = in_block("S[t] = A[t]\nbarrier()\nS[t] = S[(t + 1) % 8]")

    for order in ({}, {"backward": True}, *({"seed": seed} for seed in range(5))):
        with pytest.raises(VerifyError, match=r"a race on S\[\d\]: thread \(t=\d\) (reads|writes) it in .*thread \(t=\d\) (reads|writes)"):
            run_prim_func(func, [np.arange(8, dtype=np.float32)], **order)  # type: ignore[arg-type]


def test_a_write_after_the_reads_of_several_threads_is_a_race_for_the_first_of_them_too() -> None:
    func = in_block("S[t] = A[t]\nbarrier()\nB[t] = S[0]\nif t == 0:\n    S[0] = 2.0")

    assert "a race on S[0]" in reported(func)


def test_two_threads_may_store_the_same_value_and_not_different_ones() -> None:
    same = in_block("S[0] = 3.0\nbarrier()\nB[t] = S[0]")
    other = in_block("S[0] = A[t]\nbarrier()\nB[t] = S[0]")

    (found,) = run_prim_func(same, [np.arange(8, dtype=np.float32)])

    assert found.tolist() == [3.0] * 8
    assert "a race on S[0]: thread (t=0) writes it in `S[0] = A[t]`, thread (t=1) writes another value" in reported(other)


def test_global_memory_is_watched_within_a_block_and_between_blocks() -> None:
    within = program("for t in bound(8, 'thread.x'):\n    B[t] = A[t]\n    B[(t + 1) % 8] = A[0]")
    between = program("for b in bound(2, 'block.x'):\n    for t in bound(4, 'thread.x'):\n        B[b * 3 + t] = A[t] + cast(b, f32)")

    assert "a race on B[1]: thread (t=0) writes it in `B[(t + 1) % 8] = A[0]`, thread (t=1) writes another value" in reported(within)
    assert "a race on B[3]: block 1 writes it in" in reported(between)
    assert "block 2 of the same launch writes another value" in reported(between)


def test_launches_follow_each_other() -> None:
    func = program("""
for b in bound(8, 'block.x'):
    for t in bound(1, 'thread.x'):
        B[b] = A[b]
for c in bound(8, 'block.x'):
    for u in bound(1, 'thread.x'):
        B[c] = B[c] + A[7 - c]
""")

    (found,) = run_prim_func(func, [np.arange(8, dtype=np.float32)])

    assert found.tolist() == [7.0] * 8


def test_what_a_thread_has_not_stored_in_its_own_memory_is_not_read() -> None:
    func = program("""
for t in bound(8, 'thread.x'):
    with alloc(f32[2], scope='local') as L:
        L[0] = A[t]
        B[t] = L[0] + L[1]
""")

    assert reported(func) == "f: thread (t=0) reads L[1] in `B[t] = L[0] + L[1]`, but nothing has been stored there"


def test_threads_that_do_not_meet_are_named() -> None:
    ended = in_block("S[t] = A[t]\nif A[t] < 3.0:\n    barrier()\nB[t] = S[t]")
    elsewhere = in_block("S[t] = A[t]\nif A[t] < 3.0:\n    barrier()\nelse:\n    barrier()\nB[t] = S[t]")
    rounds = in_block("S[t] = A[t]\nfor k in range(2):\n    if A[t] < 3.0 or k == 1:\n        barrier()\nB[t] = S[t]")

    assert "threads of a block do not meet: thread (t=0) is at barrier 1, but thread (t=3) is at its end" in reported(ended)
    assert "thread (t=0) is at barrier 1, but thread (t=3) is at barrier 2" in reported(elsewhere)
    assert "thread (t=0) is at barrier 1 in iteration 0, but thread (t=3) is at barrier 1 in iteration 1" in reported(rounds)


def test_a_barrier_is_met_in_nested_loops_deeper_than_python_allows() -> None:
    loops = "\n".join("    " * k + f"for k{k} in range(1):" for k in range(20))
    inner = "    " * 20
    func = in_block(f"{loops}\n{inner}S[t] = A[t]\n{inner}barrier()\n{inner}B[t] = S[7 - t]")

    (found,) = run_prim_func(func, [np.arange(8, dtype=np.float32)])

    assert found.tolist() == list(range(7, -1, -1))


def test_iterations_that_depend_on_their_order_show_in_a_drawn_one() -> None:
    func = program("for i in parallel(8):\n    B[i] = A[i]\n    if 0 < i:\n        B[i] = B[i - 1] + A[i]")
    x = np.ones(8, np.float32)

    (forward,), (drawn,) = run_prim_func(func, [x]), run_prim_func(func, [x], seed=1)

    assert forward.tolist() == list(range(1, 9))
    assert drawn.tolist() != forward.tolist()


LAUNCHES = {
    "a barrier stands in a launch that is not in its finished form": """
for t in bound(8, 'thread.x'):
    B[t] = A[t]
    barrier()
for b in bound(2, 'block.x'):
    for u in bound(4, 'thread.x'):
        B[u] = A[u]
    barrier()
""",
    r"under the condition t < 4, which need not be the same for all": "for t in bound(8, 'thread.x'):\n    if t < 4:\n        barrier()",
    r"in loop k of t \+ 1 iterations, which need not": "for t in bound(8, 'thread.x'):\n    for k in range(t + 1):\n        barrier()",
    r"under the condition 0 < h": "for t in bound(8, 'thread.x'):\n    with let(t // 2) as h:\n        if 0 < h:\n            barrier()",
    r"L: f32\[1\] is a thread's own, but is of scope 'shared'": """
for t in bound(8, 'thread.x'):
    with alloc(f32[1], scope='shared') as L:
        barrier()
""",
    r"have 262144 bytes; no device has more than 232448": """
for b in bound(2, 'block.x'):
    with alloc(f32[65536], scope='shared') as S:
        for t in bound(8, 'thread.x'):
            barrier()
""",
    r"S: f32\[8\] is allocated for the whole block, but its scope is 'local'": """
for b in bound(2, 'block.x'):
    with alloc(f32[8], scope='local') as S:
        for t in bound(8, 'thread.x'):
            barrier()
""",
    r"loop t is of a launch of 2048 of thread.x threads, more than 1024": "for t in bound(2048, 'thread.x'):\n    B[0] = A[0]",
    r"loop u around loop t has thread.x already": "for u in bound(2, 'thread.x'):\n    for t in bound(2, 'thread.x'):\n        B[t] = A[u]",
    r"loop b has block.x inside of loop t": "for t in bound(2, 'thread.x'):\n    for b in bound(2, 'block.x'):\n        B[t] = A[b]",
    r"loop t is bound to 'warp'": "for t in bound(2, 'warp'):\n    B[t] = A[t]",
    r"the extent of loop c is b \+ 1, which depends on the block": """
for b in bound(2, 'block.x'):
    for c in bound(b + 1, 'block.y'):
        B[b] = A[c]
""",
    r"which is read from memory: it must be known before the launch": "for b in bound(cast(A[0], i64), 'block.x'):\n    B[b] = A[b]",
}


@pytest.mark.parametrize("words", LAUNCHES)
def test_ill_formed_launches_are_refused(words: str) -> None:
    with pytest.raises(VerifyError, match=words):
        verify(program(LAUNCHES[words]))


def test_memory_that_launches_hand_on_is_read_where_something_was_stored() -> None:
    """What an earlier launch left out was a large number there: that it decided nothing here says nothing about a device."""
    func = program(
        """
for t in bound(7, 'thread.x'):
    B[t] = 3
for t in bound(8, 'thread.x'):
    C[t] = select(B[t] < A[t], 1.0, 0.0)
""",
        "A: i32[8], B: i32[8], C: f32[8]",
        outputs=2,
    )

    with pytest.raises(VerifyError, match=r"thread \(t=7\) reads B\[7\] in .*, but nothing has been stored there"):
        run_prim_func(func, [np.arange(8, dtype=np.int32)])
