"""The thread pool of the process, shared by all compiled modules.

`tc_parallel_for(fn, ctx, n, grain, max_threads)` runs fn(ctx, begin, end, thread) over [0, n) on the calling thread and the workers;
`thread` is 0 for the caller and below `max_threads` for all. Each
thread has a part of the range of its own, the same one for loops of equal length, so that it finds in its cache what it wrote there
in the loop before. It claims chunks of its part from an atomic counter, and then chunks of the others' parts: a slow core does not
hold up the others. Workers spin for some microseconds
after a job, then sleep on a futex; an idle process uses no CPU. A call from inside a job, or while another thread has the pool,
runs on the calling thread alone.

A worker that ran on the processor where the caller now is gets moved off it before the next job: the system may wake a worker beside
its waker and leave both there for milliseconds. One that has not begun has no id yet, and stays. Workers keep all other processors
that the process had when the first of them was made.

A forked child has no workers. Its job words begin anew, and a module that is called there starts workers again.

One 32-bit word says which job runs and how many workers take part (low 8 bits): a worker that wakes late can then never
mistake the next job for the one it belongs to. A job is closed when its last chunk has been claimed, and only workers that
entered before that are waited for: one that the system does not let run holds up nobody.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

from llvmlite import binding as llvm

from tc.codegen.llvm.jit import Library, compile_object, link
from tc.runtime.float_mode import set_usual_mode
from tc.target import MAX_THREADS, affinity_cpus, available_cpus

MAX_WORKERS = MAX_THREADS - 1
_SPIN = 4000  # pauses before a worker sleeps, about 50 us
_SYSTEM_CALLS = {
    "x86_64": {"futex": 202, "set_affinity": 203, "get_id": 186},
    "aarch64": {"futex": 98, "set_affinity": 122, "get_id": 178},
}

_IR = """
@job_fn = internal global ptr null
@job_ctx = internal global ptr null
@job_chunk = internal global i64 1
@job_threads = internal global i64 1
@parts = internal global [{most_threads} x [8 x i64]] zeroinitializer, align 64
@inside = internal global i64 0, align 64
@open = internal global i32 0, align 64
@generation = internal global i32 0, align 64
@sleepers = internal global i32 0, align 64
@busy = internal global i32 0, align 64
@tc_workers = global i64 0
@tc_allowed = global [16 x i64] zeroinitializer
@ids = internal global [256 x i32] zeroinitializer
@places = internal global [256 x i32] zeroinitializer, align 64

declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal void @spread(i64 %helpers) nounwind {{
entry:
  %mask = alloca [16 x i64]
  %cpu = call i32 @sched_getcpu()
  br label %each
each:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %more = icmp ult i64 %k, %helpers
  br i1 %more, label %check, label %leave
check:
  %place = getelementptr i32, ptr @places, i64 %k
  %where = load atomic i32, ptr %place monotonic, align 4
  %here = icmp eq i32 %where, %cpu
  %known = icmp ult i32 %cpu, 1024
  %idp = getelementptr i32, ptr @ids, i64 %k
  %id = load atomic i32, ptr %idp monotonic, align 4
  %began = icmp ne i32 %id, 0
  %can = and i1 %known, %began
  %moves = and i1 %here, %can
  br i1 %moves, label %move, label %next
move:
  call void @llvm.memcpy.p0.p0.i64(ptr %mask, ptr @tc_allowed, i64 128, i1 false)
  %wide = zext i32 %cpu to i64
  %word = lshr i64 %wide, 6
  %bit = and i64 %wide, 63
  %one = shl i64 1, %bit
  %kept = xor i64 %one, -1
  %p = getelementptr i64, ptr %mask, i64 %word
  %old = load i64, ptr %p
  %new = and i64 %old, %kept
  store i64 %new, ptr %p
  %r = call i64 (i64, ...) @syscall(i64 {set_affinity}, i32 %id, i64 128, ptr %mask)
  store atomic i32 -1, ptr %place monotonic, align 4
  br label %next
next:
  %k1 = add i64 %k, 1
  br label %each
leave:
  ret void
}}

define internal void @run_chunks(i64 %thread) nounwind {{
entry:
  %fn = load ptr, ptr @job_fn
  %ctx = load ptr, ptr @job_ctx
  %chunk = load i64, ptr @job_chunk
  %threads = load i64, ptr @job_threads
  br label %part
part:
  %visited = phi i64 [ 0, %entry ], [ %visited1, %exhausted ]
  %owner = phi i64 [ %thread, %entry ], [ %following, %exhausted ]
  %next = getelementptr [8 x i64], ptr @parts, i64 %owner
  %stop = getelementptr i64, ptr %next, i64 1
  %end = load i64, ptr %stop
  br label %claim
claim:
  %begin = atomicrmw add ptr %next, i64 %chunk monotonic
  %left = icmp slt i64 %begin, %end
  br i1 %left, label %work, label %exhausted
work:
  %far = add i64 %begin, %chunk
  %near = call i64 @llvm.smin.i64(i64 %far, i64 %end)
  call void %fn(ptr %ctx, i64 %begin, i64 %near, i64 %thread)
  br label %claim
exhausted:
  %owner1 = add i64 %owner, 1
  %last = icmp eq i64 %owner1, %threads
  %following = select i1 %last, i64 0, i64 %owner1
  %visited1 = add i64 %visited, 1
  %all = icmp eq i64 %visited1, %threads
  br i1 %all, label %done, label %part
done:
  ret void
}}

define ptr @tc_worker(ptr %argument) nounwind {{
entry:
{float_mode}
  %index = ptrtoint ptr %argument to i64
  %id = call i64 (i64, ...) @syscall(i64 {get_id})
  %id32 = trunc i64 %id to i32
  %idp = getelementptr i32, ptr @ids, i64 %index
  store atomic i32 %id32, ptr %idp monotonic, align 4
  %place = getelementptr i32, ptr @places, i64 %index
  store atomic i32 -1, ptr %place monotonic, align 4
  %now = load atomic i32, ptr @generation acquire, align 4
  br label %await
await:
  %seen = phi i32 [ 0, %entry ], [ %current, %after ]
  br label %spin
spin:
  %count = phi i32 [ 0, %await ], [ %count1, %again ]
  %current0 = load atomic i32, ptr @generation acquire, align 4
  %changed = icmp ne i32 %current0, %seen
  br i1 %changed, label %awake, label %again
again:
  {pause}
  %count1 = add i32 %count, 1
  %tired = icmp uge i32 %count1, {spin}
  br i1 %tired, label %sleep, label %spin
sleep:
  %s0 = atomicrmw add ptr @sleepers, i32 1 seq_cst
  %ignored = call i64 (i64, ...) @syscall(i64 {futex}, ptr @generation, i32 128, i32 %seen, ptr null, ptr null, i32 0)
  %s1 = atomicrmw sub ptr @sleepers, i32 1 seq_cst
  %current1 = load atomic i32, ptr @generation acquire, align 4
  %changed1 = icmp ne i32 %current1, %seen
  br i1 %changed1, label %awake, label %sleep
awake:
  %current = phi i32 [ %current0, %spin ], [ %current1, %sleep ]
  %part32 = and i32 %current, 255
  %part = zext i32 %part32 to i64
  %mine = icmp ult i64 %index, %part
  br i1 %mine, label %take, label %after
take:
  %thread = add i64 %index, 1
  %p0 = atomicrmw add ptr @inside, i64 1 seq_cst
  %now_open = load atomic i32, ptr @open seq_cst, align 4
  %in_time = icmp eq i32 %now_open, %current
  br i1 %in_time, label %run, label %leave
run:
  %cpu = call i32 @sched_getcpu()
  store atomic i32 %cpu, ptr %place monotonic, align 4
  call void @run_chunks(i64 %thread)
  br label %leave
leave:
  %p1 = atomicrmw sub ptr @inside, i64 1 release
  br label %after
after:
  br label %await
}}

define void @tc_forget() nounwind {{
entry:
  store i64 0, ptr @tc_workers
  store i64 0, ptr @inside
  store i32 0, ptr @open
  store i32 0, ptr @generation
  store i32 0, ptr @sleepers
  store i32 0, ptr @busy
  call void @llvm.memset.p0.i64(ptr @ids, i8 0, i64 1024, i1 false)
  call void @llvm.memset.p0.i64(ptr @places, i8 0, i64 1024, i1 false)
  ret void
}}

define void @tc_parallel_for(ptr %fn, ptr %ctx, i64 %n, i64 %grain, i64 %max_threads) nounwind {{
entry:
  %empty = icmp sle i64 %n, 0
  br i1 %empty, label %nothing, label %some
nothing:
  ret void
some:
  %small = icmp sle i64 %n, %grain
  %alone = icmp sle i64 %max_threads, 1
  %workers = load i64, ptr @tc_workers
  %none = icmp eq i64 %workers, 0
  %a = or i1 %small, %alone
  %serial = or i1 %a, %none
  br i1 %serial, label %inline, label %lock
lock:
  %pair = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic
  %got = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %got, label %start, label %inline
inline:
  call void %fn(ptr %ctx, i64 0, i64 %n, i64 0)
  ret void
start:
  %wanted = sub i64 %max_threads, 1
  %fewer = icmp slt i64 %wanted, %workers
  %helpers0 = select i1 %fewer, i64 %wanted, i64 %workers
  %g = call i64 @llvm.smax.i64(i64 %grain, i64 1)
  %tasks0 = add i64 %n, %g
  %tasks1 = sub i64 %tasks0, 1
  %tasks = sdiv i64 %tasks1, %g
  %others = sub i64 %tasks, 1
  %helpers = call i64 @llvm.smin.i64(i64 %helpers0, i64 %others)
  %threads = add i64 %helpers, 1
  %shares = mul i64 %threads, {shares}
  %c0 = add i64 %n, %shares
  %c1 = sub i64 %c0, 1
  %c2 = sdiv i64 %c1, %shares
  %chunk = call i64 @llvm.smax.i64(i64 %c2, i64 %g)
  call void @spread(i64 %helpers)
  store ptr %fn, ptr @job_fn
  store ptr %ctx, ptr @job_ctx
  store i64 %threads, ptr @job_threads
  store i64 %chunk, ptr @job_chunk
  br label %share
share:
  %t = phi i64 [ 0, %start ], [ %t1, %share ]
  %from = phi i64 [ 0, %start ], [ %to, %share ]
  %t1 = add i64 %t, 1
  %before = mul i64 %n, %t1
  %to = sdiv i64 %before, %threads
  %p = getelementptr [8 x i64], ptr @parts, i64 %t
  %q = getelementptr i64, ptr %p, i64 1
  store i64 %from, ptr %p
  store i64 %to, ptr %q
  %shared = icmp eq i64 %t1, %threads
  br i1 %shared, label %publish, label %share
publish:
  %old = load atomic i32, ptr @generation monotonic, align 4
  %counter = lshr i32 %old, 8
  %counter1 = add i32 %counter, 1
  %shifted = shl i32 %counter1, 8
  %helpers32 = trunc i64 %helpers to i32
  %new = or i32 %shifted, %helpers32
  store atomic i32 %new, ptr @open seq_cst, align 4
  store atomic i32 %new, ptr @generation seq_cst, align 4
  %asleep = load atomic i32, ptr @sleepers seq_cst, align 4
  %wake = icmp sgt i32 %asleep, 0
  br i1 %wake, label %rouse, label %go
rouse:
  %r = call i64 (i64, ...) @syscall(i64 {futex}, ptr @generation, i32 129, i32 2147483647, ptr null, ptr null, i32 0)
  br label %go
go:
  call void @run_chunks(i64 0)
  store atomic i32 0, ptr @open seq_cst, align 4
  br label %join
join:
  %tries = phi i32 [ 0, %go ], [ %tries1, %wait ]
  %left = load atomic i64, ptr @inside seq_cst, align 8
  %finished = icmp eq i64 %left, 0
  br i1 %finished, label %unlock, label %wait
wait:
  {pause}
  %tries1 = add i32 %tries, 1
  %long = icmp uge i32 %tries1, 20000
  br i1 %long, label %yield, label %join
yield:
  %y = call i32 @sched_yield()
  br label %join2
join2:
  %left2 = load atomic i64, ptr @inside seq_cst, align 8
  %finished2 = icmp eq i64 %left2, 0
  br i1 %finished2, label %unlock, label %yield
unlock:
  store atomic i32 0, ptr @busy release, align 4
  ret void
}}

declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""

_SHARES_PER_THREAD = 4
_SERIAL_IR = """
@tc_workers = global i64 0
define void @tc_parallel_for(ptr %fn, ptr %ctx, i64 %n, i64 %grain, i64 %max_threads) nounwind {
entry:
  %empty = icmp sle i64 %n, 0
  br i1 %empty, label %done, label %run
run:
  call void %fn(ptr %ctx, i64 0, i64 %n, i64 0)
  br label %done
done:
  ret void
}
"""


class ThreadPool:
    """Native worker threads. Use `get_pool()`; there is one per process."""

    def __init__(self) -> None:
        machine = os.uname().machine if hasattr(os, "uname") else ""
        self._native = sys.platform.startswith("linux") and machine in _SYSTEM_CALLS
        self._lock = threading.Lock()
        self._threads: list[ctypes.c_ulong] = []
        if self._native:
            pause = 'call void asm sideeffect "pause", ""()' if machine == "x86_64" else ""
            sizes = {"spin": _SPIN, "shares": _SHARES_PER_THREAD, "most_threads": MAX_WORKERS + 1}
            text = _IR.format(pause=pause, float_mode=set_usual_mode(), **sizes, **_SYSTEM_CALLS[machine])
        else:
            text = _SERIAL_IR
        self._library: Library = link([compile_object(text)])
        self._workers = ctypes.c_int64.from_address(self._library.address("tc_workers"))
        self._forget = ctypes.CFUNCTYPE(None)(self._library.address("tc_forget")) if self._native else lambda: None
        self._note_processors()

    def _note_processors(self) -> None:
        """Write down where workers may run."""
        if not self._native:
            return
        allowed = (ctypes.c_uint64 * 16).from_address(self._library.address("tc_allowed"))
        ctypes.memset(allowed, 0, ctypes.sizeof(allowed))
        for cpu in affinity_cpus():
            if cpu < 1024:
                allowed[cpu // 64] |= 1 << cpu % 64

    @property
    def num_workers(self) -> int:
        """Threads besides the caller."""
        return int(self._workers.value)

    def start(self, threads: int) -> None:
        """Make sure that `threads` threads can work together, the calling one included."""
        wanted = min(threads - 1, MAX_WORKERS, max(available_cpus() - 1, 0))
        if not self._native or self.num_workers >= wanted:
            return
        with self._lock:
            if not self._threads:
                self._note_processors()  # a child may be bound to other processors than its parent
            create = ctypes.CDLL(None).pthread_create
            create.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
            while self.num_workers < wanted:
                thread = ctypes.c_ulong()
                entry = self._library.address("tc_worker")
                if create(ctypes.byref(thread), None, entry, len(self._threads)):
                    return  # no more threads to be had: fewer work as well
                self._threads.append(thread)
                self._workers.value = len(self._threads)

    def forget(self) -> None:
        """After fork: the child has no workers, no job, and no lock that another thread of its parent held. `start` makes workers."""
        self._lock = threading.Lock()
        self._threads.clear()
        self._forget()

    def address(self) -> int:
        """The address of tc_parallel_for."""
        return self._library.address("tc_parallel_for")


_pool: ThreadPool | None = None
_pool_lock = threading.Lock()


def get_pool() -> ThreadPool:
    """The pool of this process, its functions registered for linking."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPool()
            llvm.add_symbol("tc_parallel_for", _pool.address())
        return _pool


def has_pool() -> bool:
    """Whether `get_pool` has nothing left to do."""
    return _pool is not None


_EMPTY_IR = """
declare void @tc_parallel_for(ptr, ptr, i64, i64, i64)
define void @nothing(ptr %ctx, i64 %begin, i64 %end, i64 %thread) nounwind {
entry:
  ret void
}
define void @repeat(i64 %times, i64 %threads) nounwind {
entry:
  br label %again
again:
  %i = phi i64 [ 0, %entry ], [ %n, %again ]
  call void @tc_parallel_for(ptr @nothing, ptr null, i64 %threads, i64 1, i64 %threads)
  %n = add i64 %i, 1
  %more = icmp slt i64 %n, %times
  br i1 %more, label %again, label %done
done:
  ret void
}
"""


def fork_join_seconds(threads: int, times: int = 200, rounds: int = 60) -> float:
    """Seconds (perf_counter) that a parallel loop with nothing to do takes on `threads` threads, the workers being awake.

    The least of the means over `times` loops: a busy machine makes it longer, nothing makes it shorter.
    """
    get_pool().start(threads)
    library = link([compile_object(_EMPTY_IR)])
    repeat = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(library.address("repeat"))
    least = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        repeat(times, threads)
        least = min(least, (time.perf_counter() - start) / times)
    return least


def _after_fork_in_child() -> None:
    """Locks and job words may be in any state: other threads of the parent used them when it forked."""
    global _pool_lock
    _pool_lock = threading.Lock()
    if _pool is not None:
        _pool.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
