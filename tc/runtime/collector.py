"""How often Python looks for garbage in cycles while a compiler works."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 500_000
"""Objects made, and not freed by reference counting, from one look at the young ones to the next; Python's own number is 700."""

_lock = threading.Lock()
_users = 0
_before: tuple[int, int, int] = gc.get_threshold()


def _after_fork_in_child() -> None:
    """Users on other threads do not exist in a child, nor does one of them hold the lock."""
    global _lock, _users
    _lock = threading.Lock()
    if _users:
        _users = 0
        gc.set_threshold(*_before)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for garbage in cycles rarely; also a decorator. What was set before is set again when the last user is done.

    IRs are trees of many small objects that die by reference counting. Walking all of them every 700 new ones takes a quarter
    of the time of scheduling and compiling (measured). A collector that was switched off, or is rarer already, stays as it is.
    """
    global _users, _before
    with _lock:
        if _users == 0:
            _before = gc.get_threshold()
            young, *older = _before
            if 0 < young < YOUNG:
                gc.set_threshold(YOUNG, *older)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users = max(_users - 1, 0)  # none in a child that was forked inside
            if _users == 0:
                gc.set_threshold(*_before)
