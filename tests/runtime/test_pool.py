"""The thread pool: every iteration runs once, from any thread, after fork too."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from tc.codegen.llvm.jit import compile_object, link
from tc.runtime.pool import ThreadPool, get_pool
from tc.target import available_cpus

# count(ctx, begin, end): add 1 to each of ctx[begin..end)
COUNT = """
declare void @tc_parallel_for(ptr, ptr, i64, i64, i64)
define void @count(ptr %ctx, i64 %begin, i64 %end, i64 %thread) {
entry:
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %n, %loop ]
  %p = getelementptr i64, ptr %ctx, i64 %i
  %old = atomicrmw add ptr %p, i64 1 seq_cst
  %n = add i64 %i, 1
  %more = icmp slt i64 %n, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
define void @nested(ptr %ctx, i64 %begin, i64 %end, i64 %thread) {
entry:
  call void @tc_parallel_for(ptr @count, ptr %ctx, i64 100, i64 1, i64 2)
  ret void
}
; meet(ctx = {started, thread of [0], thread of [1]}): say who runs each of two iterations once both have begun
define void @meet(ptr %ctx, i64 %begin, i64 %end, i64 %thread) {
entry:
  %old = atomicrmw add ptr %ctx, i64 1 seq_cst
  br label %wait
wait:
  %started = load atomic i64, ptr %ctx seq_cst, align 8
  %both = icmp eq i64 %started, 2
  br i1 %both, label %say, label %wait
say:
  %place = add i64 %begin, 1
  %p = getelementptr i64, ptr %ctx, i64 %place
  store i64 %thread, ptr %p
  ret void
}
define void @run_meeting(ptr %ctx) {
entry:
  call void @tc_parallel_for(ptr @meet, ptr %ctx, i64 2, i64 1, i64 2)
  ret void
}
define void @run(ptr %ctx, i64 %n, i64 %grain, i64 %threads) {
entry:
  call void @tc_parallel_for(ptr @count, ptr %ctx, i64 %n, i64 %grain, i64 %threads)
  ret void
}
define void @run_nested(ptr %ctx, i64 %n) {
entry:
  call void @tc_parallel_for(ptr @nested, ptr %ctx, i64 %n, i64 1, i64 2)
  ret void
}
"""


LIVING: list[ThreadPool] = []


@pytest.fixture(scope="module")
def library() -> object:
    pool = get_pool()
    pool.start(2)
    return link([compile_object(COUNT)])


@pytest.fixture(scope="session")
def pool_of_five() -> ThreadPool:
    """A pool of five threads whatever the number of processors; its threads never end, so it lives as long as the process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tc.runtime.pool.available_cpus", lambda: 5)
        pool = ThreadPool()
        pool.start(5)
    LIVING.append(pool)
    return pool


def runner(library: object) -> object:
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    return kind(library.address("run"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 64, 1000])
@pytest.mark.parametrize("grain", [1, 5, 2000])
@pytest.mark.parametrize("threads", [1, 2, 9])
def test_every_iteration_runs_once(library: object, n: int, grain: int, threads: int) -> None:
    counts = np.zeros(max(n, 1), np.int64)

    runner(library)(counts.ctypes.data, n, grain, threads)  # type: ignore[operator]

    assert (counts[:n] == 1).all()


@pytest.mark.parametrize("n", [3, 4, 5, 17, 1000])
def test_every_iteration_runs_once_on_more_threads_than_processors(
    library: object, n: int, pool_of_five: ThreadPool
) -> None:
    arguments = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    parallel_for = ctypes.CFUNCTYPE(None, *arguments)(pool_of_five.address())
    count = library.address("count")  # type: ignore[attr-defined]
    counts = np.zeros(n, np.int64)

    for _ in range(200):
        parallel_for(count, counts.ctypes.data, n, 1, 5)

    assert pool_of_five.num_workers == 4
    assert (counts == 200).all()


@pytest.mark.skipif(available_cpus() < 2, reason="needs two processors")
def test_a_thread_begins_with_its_own_part(library: object) -> None:
    meet = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("run_meeting"))  # type: ignore[attr-defined]

    for _ in range(100):
        state = np.zeros(3, np.int64)
        meet(state.ctypes.data)
        assert list(state) == [2, 0, 1]


def test_nested_loops_run_without_deadlock(library: object) -> None:
    counts = np.zeros(100, np.int64)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library.address("run_nested"))  # type: ignore[attr-defined]

    run(counts.ctypes.data, 1)

    assert (counts == 1).all()


def test_calls_from_many_threads_are_independent(library: object) -> None:
    run = runner(library)
    results = [np.zeros(512, np.int64) for _ in range(8)]

    def work(counts: np.ndarray) -> None:
        for _ in range(200):
            run(counts.ctypes.data, 512, 1, 2)  # type: ignore[operator]

    threads = [threading.Thread(target=work, args=(counts,)) for counts in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all((counts == 200).all() for counts in results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_still_computes() -> None:
    program = """
import os, sys
import numpy as np
import tc
from tc.demo import MODEL_PATH
module = tc.compile(str(MODEL_PATH), threads=2)
x = np.zeros((1, 1, 8, 8), np.float32)
expected = module(x)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(module(x), expected) else 1)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound to processors here")
def test_a_loop_before_the_workers_have_begun_leaves_the_caller_where_it_may_run() -> None:
    """A worker that has not begun has no id yet, and seems to be on processor 0; the system takes id 0 for the caller."""
    pool, allowed = ThreadPool(), os.sched_getaffinity(0)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    done: list[int] = []
    task = kind(lambda _, begin, end, thread: done.extend(range(begin, end)))
    loop = ctypes.CFUNCTYPE(None, kind, ctypes.c_void_p, *[ctypes.c_int64] * 3)(pool.address())
    pool._workers.value = 1  # as between the making of a thread and its first instruction
    try:
        os.sched_setaffinity(0, {min(allowed)})
        loop(task, None, 8, 1, 2)

        assert os.sched_getaffinity(0) == {min(allowed)} and sorted(done) == list(range(8))
    finally:
        os.sched_setaffinity(0, allowed)
