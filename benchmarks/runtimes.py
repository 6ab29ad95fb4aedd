"""The runtimes of the tables: `tc`, whose modules are compiled here, and its peers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import tc
from tc.measure.runtimes import PEERS, Runtime, as_runtime


def load_tc(model: Path, threads: int) -> Runtime:
    start = time.perf_counter()
    compiled = tc.compile(str(model), threads=threads)
    return as_runtime(compiled, time.perf_counter() - start)


LOADERS: dict[str, Callable[[Path, int], Runtime]] = {"tc": load_tc, **PEERS}
