"""Object files of a queue: the same whatever works on them, and what goes wrong is said."""

from __future__ import annotations

import dataclasses
import gc
import sys
import threading

import pytest

from tc.codegen.llvm.backend import CPU
from tc.codegen.llvm.jit import GROUPED_BYTES, compile_object
from tc.errors import CodegenError
from tc.runtime import object_queue
from tc.runtime.object_queue import TURN_SECONDS, ObjectQueue
from tc.target import native_target

SOURCE = "define i64 @f{0}(i64 %x) {{\n  %y = add i64 %x, {0}\n  ret i64 %y\n}}"


def texts() -> list[str]:
    """Some that go through LLVM together, and some that are alone."""
    return [SOURCE.format(k) + ";" * (GROUPED_BYTES if k % 3 == 0 else 10 * k) for k in range(12)]


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_objects_are_in_the_order_of_texts_and_as_if_each_were_alone(jobs: int) -> None:
    queue = ObjectQueue(native_target(), jobs)
    for text in texts():
        queue.put(text)

    objects = queue.objects()

    assert objects == [compile_object(text) for text in texts()]


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_first_text_that_llvm_refuses_is_named_whoever_worked_on_it(jobs: int) -> None:
    queue = ObjectQueue(native_target(), jobs)
    queue.put(SOURCE.format(0) + ";" * GROUPED_BYTES)
    queue.put("define nonsense_one" + ";" * GROUPED_BYTES)
    queue.put("define nonsense_two" + ";" * GROUPED_BYTES * 2)

    with pytest.raises(CodegenError, match="nonsense_one"):
        queue.objects()


def test_turns_of_threads_are_as_before_when_all_is_done_or_the_queue_is_dropped() -> None:
    before = sys.getswitchinterval()
    first, second = ObjectQueue(native_target(), 2), ObjectQueue(native_target(), 2)
    for queue in (first, second):
        queue.put(SOURCE.format(0), optimized=False)
    during = sys.getswitchinterval()

    first.objects()
    one_left = sys.getswitchinterval()
    del queue, second
    gc.collect()

    assert during == pytest.approx(min(before, TURN_SECONDS)) and one_left == during
    assert sys.getswitchinterval() == before


def test_a_queue_that_is_dropped_begins_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Semaphore(0), threading.Event()
    compiled: list[str] = []

    def slow(group: list[str], *rest: object) -> list[bytes]:
        begun.release()
        go.wait(10)
        compiled.extend(group)
        return [b""] * len(group)

    monkeypatch.setattr(object_queue, "backend_of", lambda _: dataclasses.replace(CPU, make=slow))
    queue = ObjectQueue(native_target(), 2)
    for text in texts():
        queue.put(text, optimized=False)
    assert begun.acquire(timeout=10)

    del queue
    gc.collect()
    go.set()

    for thread in threading.enumerate():
        if thread.name.startswith("tc-compile"):
            thread.join(10)
    assert len(compiled) == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_runs_beside_is_done_with_the_objects_where_processors_are_free(jobs: int) -> None:
    done: list[str] = []
    queue = ObjectQueue(native_target(), jobs)
    queue.beside(lambda: done.append("beside"))

    queue.objects()

    assert done == (["beside"] if jobs > 1 else [])


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_runs_beside_gives_its_result_once_it_is_there(jobs: int) -> None:
    queue = ObjectQueue(native_target(), jobs)
    result = queue.beside(threading.get_ident)

    assert (result() == threading.get_ident()) == (jobs == 1)
    assert queue.objects() == []


def test_what_has_not_begun_beside_is_done_by_the_one_who_needs_it() -> None:
    go, runs = threading.Event(), []
    queue = ObjectQueue(native_target(), 2)
    queue.beside(lambda: go.wait(10))
    result = queue.beside(lambda: runs.append(threading.get_ident()))

    result()
    go.set()

    assert queue.objects() == []
    assert runs == [threading.get_ident()]
