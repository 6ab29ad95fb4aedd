"""LLVM at work beside Python: texts go in as they are written, object files come out when all are there.

    queue = ObjectQueue(target)
    queue.put(text)             # at any time; LLVM begins at once if a processor is free
    queue.objects()             # of all texts, in the order in which they were put; the caller helps

The code of a text depends on nothing but the text and the target: neither on the company in which it went through LLVM's passes nor on
threads and their order.
"""

from __future__ import annotations

import heapq
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from tc.codegen.backends import backend_of
from tc.codegen.llvm.jit import GROUPED_BYTES
from tc.target import Target, available_cpus
from tc.target.workers import Workers

ResultT = TypeVar("ResultT")

TURN_SECONDS = 5e-4
"""How long a thread that runs Python is left alone when another one wants to; Python's own number is 5 ms. LLVM returns to Python some
forty times a kernel, for a moment each: with turns of 5 ms it would spend five times as long on waiting as on its work."""


class ObjectQueue:
    """Object files of modules that define different symbols and do not call each other. For one thread.

    jobs: how many threads work on them, the caller's included once it waits.
    """

    def __init__(self, target: Target, jobs: int | None = None) -> None:
        self._target = target
        self._work = _Work(target)
        self._jobs = jobs or available_cpus()
        self._count = 0
        self._small: list[tuple[int, str]] = []
        self._room = 0
        self._executor: Workers | None = None
        self._running: list[Future[Any]] = []
        self._end: weakref.finalize | None = None

    def put(self, text: str, *, optimized: bool = True) -> None:
        """Compile this as well. Small texts wait for others to share a run of LLVM's passes with, where they are `optimized`."""
        number = self._count
        self._count += 1
        if not optimized or len(text) >= GROUPED_BYTES:
            self._start([(number, text)], optimized)
            return
        if len(text) > self._room:
            self._start_small()
        self._small.append((number, text))
        self._room -= len(text)

    def beside(self, task: Callable[[], ResultT]) -> Callable[[], ResultT]:
        """Run something else that is needed when all objects are there, if a processor is free for it. What it raises `objects` raises.

        Returns what gives the result: it waits for it if it is being made, and makes it if that is not begun.
        """
        if self._jobs == 1:
            return task
        future = self._submit(task)
        return lambda: task() if future.cancel() else future.result()

    def objects(self) -> list[bytes]:
        """The object files of all texts so far. Raises what went wrong with the first text that is refused."""
        self._start_small()
        try:
            while self._work.one():
                pass
            for future in self._running:
                if not future.cancelled():
                    future.result()
        finally:
            self._running = []
            self._rest()
        failed = self._work.errors
        if failed:
            raise failed[min(failed)]
        return [self._work.done[number] for number in range(self._count)]

    def _start_small(self) -> None:
        small, self._small, self._room = self._small, [], GROUPED_BYTES
        if small:
            self._start(small, True)

    def _start(self, group: Sequence[tuple[int, str]], optimized: bool) -> None:
        self._work.add(group, optimized)
        if self._jobs > 1:
            self._submit(self._work.one)

    def _submit(self, task: Callable[[], ResultT]) -> Future[ResultT]:
        if self._executor is None:
            self._executor = Workers(self._jobs - 1, thread_name_prefix="tc-compile")
        if self._end is None:
            _take_short_turns()
            self._end = weakref.finalize(self, _abandon, self._work)
        future = self._executor.submit(task)
        self._running.append(future)
        return future

    def _rest(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None
        if self._end is not None:
            self._end()
            self._end = None


class _Work:
    """What is to be done, the most of it first, and what came of it. Shared by threads; knows nothing of its queue."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.make = backend_of(target).make
        self.done: dict[int, bytes] = {}
        self.errors: dict[int, BaseException] = {}
        self.waiting: list[tuple[int, int, Sequence[tuple[int, str]], bool]] = []
        self.lock = threading.Lock()
        self.numbers = itertools.count()

    def add(self, group: Sequence[tuple[int, str]], optimized: bool) -> None:
        size = sum(len(text) for _, text in group)
        with self.lock:
            heapq.heappush(self.waiting, (-size, next(self.numbers), group, optimized))

    def one(self) -> bool:
        """Do one piece; False when there is none."""
        with self.lock:
            if not self.waiting:
                return False
            _, _, group, optimized = heapq.heappop(self.waiting)
        try:
            objects = self.make([text for _, text in group], optimized, self.target)
        except BaseException as error:  # the thread that waits raises it
            self.errors[group[0][0]] = error
        else:
            self.done.update(zip((number for number, _ in group), objects, strict=True))
        return True


def _abandon(work: _Work) -> None:
    """Nobody waits for what is not begun."""
    with work.lock:
        work.waiting.clear()
    _take_usual_turns()


_turns_lock = threading.Lock()
_short_turns = 0
_usual_seconds = sys.getswitchinterval()


def _take_short_turns() -> None:
    """Let threads of Python change places often; what was set before is set again when the last user is done."""
    global _short_turns, _usual_seconds
    with _turns_lock:
        if _short_turns == 0:
            _usual_seconds = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual_seconds, TURN_SECONDS))
        _short_turns += 1


def _take_usual_turns() -> None:
    global _short_turns
    with _turns_lock:
        if _short_turns == 1:
            sys.setswitchinterval(_usual_seconds)
        _short_turns = max(_short_turns - 1, 0)


def _after_fork_in_child() -> None:
    """Users on other threads do not exist in a child, nor does one of them hold the lock."""
    global _turns_lock, _short_turns
    _turns_lock = threading.Lock()
    if _short_turns:
        _short_turns = 0
        sys.setswitchinterval(_usual_seconds)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
