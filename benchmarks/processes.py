"""Jobs that are measured one after the other in a process of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def each_apart(
    measure: Callable[[Job], Result], jobs: Sequence[Job], failed: Callable[[Job, str], Result]
) -> Iterator[Result]:
    """What `measure` gives for each job, in one process apart. A job that kills it, or raises, costs its own result alone: it is what
    `failed` makes of the job and the reason."""
    pool = _new_process()
    try:
        for job in jobs:
            try:
                yield pool.submit(measure, job).result()
            except BrokenProcessPool:
                pool.shutdown()
                pool = _new_process()
                yield failed(job, "the measuring process died")
            except Exception as failure:  # what a program raises is its job's result, not the end of the others
                yield failed(job, f"{type(failure).__name__}: {str(failure)[:200]}")
    finally:
        pool.shutdown()


def _new_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn"))
