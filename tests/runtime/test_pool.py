"""The thread pool: every iteration runs once, from any thread, after fork too."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from tc.runtime.jit import compile_object, link
from tc.runtime.pool import get_pool

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


@pytest.fixture(scope="module")
def library() -> object:
    pool = get_pool()
    pool.start(2)
    return link([compile_object(COUNT)])


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
