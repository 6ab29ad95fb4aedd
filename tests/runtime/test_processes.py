"""Modules in forked and spawned processes: every call right, none waits for ever, whatever other threads were at during the fork."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from llvmlite.binding import ffi

import tc
from tc.codegen.llvm import jit
from tc.ir.parser import parse_module
from tc.runtime import collector, pool
from tc.runtime.memory import Arena
from tc.runtime.module import CompiledModule
from tc.target import available_cpus
from tests.runtime.forking import failures, in_child

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def run_scenario(name: str, children: int, seconds: float) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.forking", name, str(children)],
        capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode} children failed\n{done.stderr}"


@pytest.mark.parametrize("name", ["beside_parent", "threads_fork", "grandchildren", "server", "pool_fork"])
def test_children_compute_what_their_parent_does(name: str) -> None:
    """Broke when arenas were shared mappings, and when a child kept a lock or a job of its parent's threads."""
    run_scenario(name, 4, 120)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "children"),
    [("beside_parent", 100), ("threads_fork", 240), ("grandchildren", 60), ("while_compiling", 40), ("server", 24),
     ("pool_fork", 80), ("pool_spawn", 50), ("pool_forkserver", 50)],
)  # fmt: skip
def test_five_hundred_children_compute_what_their_parent_does(name: str, children: int) -> None:
    run_scenario(name, children, 900)


def small_module(threads: int = 2) -> tuple[CompiledModule, np.ndarray]:
    text = "@graph\ndef main(x: f32[64, 64]):\n    a: f32[64, 64] = matmul(x, x)\n    b: f32[64, 64] = matmul(a, x)\n    return b\n"
    return tc.compile(parse_module(text), threads=threads), np.eye(64, dtype=np.float32)


def test_an_arena_of_a_child_is_not_its_parents() -> None:
    for size in (4096, 4 << 20):
        values = Arena(size).bytes()
        values[...] = 1

        def write(values: np.ndarray = values) -> bool:
            inherited = bool((values == 1).all())
            values[...] = 2
            return inherited

        assert failures([in_child(write)]) == 0
        assert (values == 1).all()


def test_a_discarded_arena_can_be_used_again() -> None:
    arena = Arena(4 << 20)
    values = arena.bytes()
    values[...] = 7

    arena.discard()
    values[:5] = 1

    assert values[:6].tolist() == [1, 1, 1, 1, 1, 0]


def locks() -> list[Callable[[], object]]:
    module, _ = small_module()
    return [
        lambda: ffi.lib._lock._lock,
        lambda: pool.get_pool()._lock,
        lambda: pool._pool_lock,
        lambda: jit._init_lock,
        lambda: collector._lock,
        lambda: module._lock,
    ]


@pytest.mark.parametrize("which", range(6))
def test_a_lock_that_another_thread_held_is_free_in_the_child(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broke: the child waited for a thread that it does not have."""
    monkeypatch.setattr(jit, "_FORK_WAIT_SECONDS", 0.05)
    monkeypatch.setenv("TC_CACHE_DIR", "off")
    pool.get_pool()
    lock = locks()[which]()
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:  # type: ignore[attr-defined]
            taken.set()
            over.wait()

    thread = threading.Thread(target=hold)
    module, x = small_module()
    thread.start()
    taken.wait()

    def work() -> bool:
        fresh, _ = small_module()
        return np.array_equal(fresh(x), x) and np.array_equal(module(x), x)

    child = in_child(work)
    over.set()
    thread.join()
    assert failures([child]) == 0


def test_a_fork_waits_for_a_short_call_of_llvm_and_the_parent_gets_the_lock_back() -> None:
    lock = ffi.lib._lock._lock

    assert failures([in_child(lambda: lock.acquire(blocking=False))]) == 0

    found: list[bool] = []

    def take() -> None:
        found.append(lock.acquire(blocking=False))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert found == [True]


@pytest.mark.skipif(available_cpus() < 2, reason="needs two processors")
def test_a_child_has_workers_again_once_it_calls() -> None:
    """Broke: a child ran on one thread for the rest of its life."""
    module, x = small_module()
    before = pool.get_pool().num_workers

    def work() -> bool:
        forgotten = pool.get_pool().num_workers == 0
        return np.array_equal(module(x), x) and forgotten and pool.get_pool().num_workers == 1

    assert before >= 1
    assert failures([in_child(work)]) == 0


@pytest.mark.skipif(available_cpus() < 2, reason="needs two processors")
def test_a_child_forked_inside_a_parallel_loop_of_another_thread_starts_with_no_job() -> None:
    """Broke: `busy` stayed 1 and `inside` above 0; a loop of the child would have run alone for ever, or waited for ever."""
    shared = pool.get_pool()
    shared.start(2)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    loop = ctypes.CFUNCTYPE(None, kind, ctypes.c_void_p, *[ctypes.c_int64] * 3)(shared.address())
    begun, over = threading.Semaphore(0), threading.Event()

    def block(_: int, begin: int, end: int, thread: int) -> None:
        begun.release()
        over.wait()

    blocking = kind(block)
    thread = threading.Thread(target=lambda: loop(blocking, None, 2, 1, 2))
    thread.start()
    begun.acquire()
    begun.acquire()  # the worker as well

    def work() -> bool:
        shared.start(2)
        met = threading.Barrier(2, timeout=20)  # met only by two threads at once
        done: list[int] = []

        def meet(_: int, begin: int, end: int, thread: int) -> None:
            met.wait()
            done.append(begin)

        for _ in range(3):
            loop(kind(meet), None, 2, 1, 2)
        return sorted(done) == [0, 0, 0, 1, 1, 1]

    child = in_child(work)
    over.set()
    thread.join()
    assert failures([child]) == 0


def test_frames_of_calls_on_other_threads_are_gone_in_the_child() -> None:
    module, x = small_module()
    module(x)
    busy = module._take_frame()
    assert busy.arena is not None
    memory = busy.arena.bytes()
    memory[...] = 9

    def work(owner: int) -> Callable[[], bool]:
        def check() -> bool:
            kept = owner == threading.get_ident()
            gone = busy.address not in module._frames and not memory.any()
            right = np.array_equal(module(x), x) and all(frame is not busy for frame in module._idle)
            return right and (not gone if kept else gone)

        return check

    for owner in (threading.get_ident(), threading.get_ident() + 1):
        busy.thread = owner
        assert failures([in_child(work(owner))]) == 0
    assert (memory == 9).all()


def test_a_child_forked_while_another_thread_compiles_collects_garbage_as_usual() -> None:
    usual = gc.get_threshold()
    inside, over = threading.Event(), threading.Event()

    def compile_long() -> None:
        with collector.rare_collections():
            inside.set()
            over.wait()

    thread = threading.Thread(target=compile_long)
    thread.start()
    inside.wait()
    child = in_child(lambda: gc.get_threshold() == usual)
    over.set()
    thread.join()
    assert failures([child]) == 0


def test_a_reference_kernel_may_fork_in_the_middle_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "@graph\ndef main(x: f32[9]):\n    a: i64[1, k] = nonzero(x)\n    b: i64[1] = sum(a, axes=(1,), keepdims=False)\n    return b\n"
    module = tc.compile(parse_module(text), threads=1)
    assert module._callback is not None
    forked, original = [], module._callback

    def forking(*arguments: object) -> object:
        if not forked:
            forked.append(os.fork())
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_callback", forking)
    x = np.arange(9, dtype=np.float32)
    result = int(module(x)[0])
    if forked == [0]:
        os._exit(0 if result == 36 and int(module(x)[0]) == 36 else 1)
    assert result == 36
    assert failures(forked) == 0
