"""Values that are computed when they are first asked for."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

import tc
from tc.ir.cached import cached_property


class Slow:
    """`value` takes until `go` is set, and is counted."""

    def __init__(self) -> None:
        self.begun, self.go, self.count = threading.Event(), threading.Event(), 0

    @cached_property
    def value(self) -> int:
        """A number."""
        self.begun.set()
        self.go.wait(20)
        self.count += 1
        return self.count


def test_it_is_computed_once() -> None:
    slow = Slow()
    slow.go.set()

    assert (slow.value, slow.value, slow.count) == (1, 1, 1)
    assert Slow.value.__doc__ == "A number."


# functools' own, before Python 3.12, held a lock of the class: a child that was forked then waited for it for ever.
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_computes_what_another_thread_was_computing() -> None:
    slow, ready = Slow(), Slow()
    ready.go.set()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert slow.begun.wait(20)

    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if ready.value == 1 else 1)
    _, status = os.waitpid(child, 0)
    slow.go.set()
    thread.join()

    assert status == 0


def test_no_module_uses_the_one_that_locks() -> None:
    sources = list(Path(tc.__file__).parent.rglob("*.py"))

    assert len(sources) > 100
    assert [path.name for path in sources if "from functools import cached_property" in path.read_text()] == []
