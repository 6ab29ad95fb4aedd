"""Threads that help the caller, for as long as Python starts any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

ResultT = TypeVar("ResultT")
PlaceT = TypeVar("PlaceT")


class Workers(ThreadPoolExecutor):
    """A pool of threads in which work that no thread can be started for is done by the caller, at once.

    From when a program's main thread has come to its end, Python starts no more of them, though other threads run on. Such work may be
    done twice, where a thread was there after all: it must do no harm.
    """

    def submit(self, fn: Callable[..., ResultT], /, *args: object, **kwargs: object) -> Future[ResultT]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            done: Future[ResultT] = Future()
            try:
                done.set_result(fn(*args, **kwargs))
            except BaseException as error:  # the caller's, when the result is asked for
                done.set_exception(error)
            return done


def for_each(work: Callable[[PlaceT], ResultT], places: Sequence[PlaceT], threads: int) -> list[ResultT]:
    """What `work` returns for each of the places, done by so many threads at most; what one raises is raised."""
    if min(threads, len(places)) < 2:
        return [work(place) for place in places]
    with Workers(min(threads, len(places))) as pool:
        return list(pool.map(work, places))
