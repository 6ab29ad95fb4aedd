"""One model in several runtimes: loaded, checked against a reference, and timed in turns.

What one runtime cannot do is its own result and not the end of the comparison. What loading costs is measured apart, in a process
for each runtime, since memory has no owner in a process that all share.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tc.measure.harness import Plan, Ratio, Step, Timings, time_interleaved
from tc.measure.machine import Limit
from tc.measure.runtimes import BOUND, Arrays, Runtime, RuntimeMissingError, relative_error

SUBJECT = "tc"
Loader = Callable[[Path, int], Runtime]
Returned = TypeVar("Returned")


@dataclass(frozen=True)
class Result:
    """What one runtime did with one model. `problem` says why there are no numbers, where there are none.

    `load_seconds`: compiling or loading, with whatever the runtime has kept of earlier times. `cold_seconds`: the same in a new
    process that has nothing kept. `peak_bytes`: how far memory grew there until the first run was over, at its highest. `precision`:
    what it really computed floats in.
    """

    version: str = ""
    load_seconds: float | None = None
    median_seconds: float | None = None
    min_seconds: float | None = None
    error: float | None = None
    problem: str = ""
    cold_seconds: float | None = None
    peak_bytes: int | None = None
    precision: str = ""


@dataclass(frozen=True)
class Comparison:
    """`ratios`: each peer's seconds over those of `tc`, empty when `tc` has none. `limits`: seconds of one call of each limit.

    `timings` holds the rounds of runtimes and limits alike, None when no runtime could be timed.
    """

    results: Mapping[str, Result]
    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    timings: Timings | None = None

    @property
    def rounds(self) -> int:
        return 0 if self.timings is None else len(self.timings.seconds)


def compare_runtimes(
    loaders: Mapping[str, Loader],
    model: Path,
    threads: int,
    arrays: Arrays,
    expected: Sequence[np.ndarray],
    plan: Plan,
    limits: Sequence[Limit] = (),
    calls: str = BOUND,
) -> Comparison:
    """Load `model` into every runtime, compare what it gives with `expected`, and time those that gave something.

    `calls` says how each is called. The limits take their turns too.
    """
    results: dict[str, Result] = {}
    steps: dict[str, Step] = {}
    for name, load in loaders.items():
        try:
            runtime = load(model, threads)
            error = relative_error(runtime.run(arrays), expected)
            steps[name] = runtime.step(arrays, calls)
            results[name] = Result(runtime.version, runtime.load_seconds, error=error, precision=runtime.precision)
        except RuntimeMissingError as missing:
            results[name] = Result(problem=f"not measured: {missing}")
        except Exception as failure:  # whatever a runtime raises is its result, not ours
            results[name] = Result(problem=f"failed: {in_short(failure)}")
    if not steps:
        return Comparison(results)
    timings = time_interleaved({**steps, **{limit.name: limit.step for limit in limits}}, plan)
    for name in steps:
        results[name] = replace(results[name], median_seconds=timings.median(name), min_seconds=timings.shortest(name))
    peers = [name for name in steps if name != SUBJECT] if SUBJECT in steps else []
    return Comparison(results, {peer: timings.ratio(peer, SUBJECT) for peer in peers}, timings)


def load_cost(load: Loader, model: Path, threads: int, arrays: Arrays) -> tuple[float, int | None]:
    """Seconds that a first load takes, and by how many bytes memory grows until the first run is over (None if unknown).

    To be called in a process of its own: it takes the object cache away. What a runtime imports to load counts as well.
    """
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TC_CACHE_DIR"] = cache
        before = _memory_bytes("VmRSS")
        start = time.perf_counter()
        runtime = load(model, threads)
        seconds = time.perf_counter() - start
        runtime.run(arrays)
    peak = _memory_bytes("VmHWM")
    return seconds, None if before is None or peak is None else peak - before


def run_apart(function: Callable[..., Returned], *arguments: Any) -> Returned:
    """The result of `function` in a new process. Raises BrokenProcessPool when that dies, or what the function raises."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def with_load_costs(
    results: Mapping[str, Result], loaders: Mapping[str, Loader], model: Path, threads: int, arrays: Arrays
) -> dict[str, Result]:
    """`results` with what loading costs each runtime that was timed, measured in processes of their own."""
    found = dict(results)
    for name, result in results.items():
        if result.median_seconds is None:
            continue
        try:
            seconds, peak = run_apart(load_cost, loaders[name], model, threads, arrays)
        except (BrokenProcessPool, RuntimeError, OSError):  # it was measured once; without a process there is no cost to tell
            continue
        found[name] = replace(result, cold_seconds=seconds, peak_bytes=peak)
    return found


def in_short(failure: Exception) -> str:
    """What went wrong in one line, without the positions in OpenVINO's sources that its messages start with."""
    lines = [line.strip() for line in str(failure).splitlines() if not line.startswith(("Exception from", "Check 'f"))]
    return f"{type(failure).__name__}: {' '.join(lines)}"[:240]


def _memory_bytes(entry: str) -> int | None:
    """An entry of this process's memory account: VmRSS, what is resident now; VmHWM, the most that ever was."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith(f"{entry}:")), None)
    return None if found is None else int(found.split()[1]) * 1024
