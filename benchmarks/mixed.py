"""What `precision="mixed:..."` keeps of its tolerance on inputs that it was not calibrated with, how fast it is, and what its search takes.

    python -m benchmarks.mixed                            five models, 1 % each
    python -m benchmarks.mixed minilm --tolerance 3e-3

16 inputs calibrate, 64 fresh ones are compared with the model in f32: the relative L2 error of the worst result of each. `kept`: operations
that the tolerance keeps in f32, of those that could have 16 bits; `split`: products of sums of two bf16. `f32/mixed`: seconds of a call
over each other, in turns, one thread. CPU time is of the whole compilation, in a process without a cache. A median above the tolerance, or
an error above one and a half of it, is marked and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

import tc
from benchmarks import zoo
from tc.measure.compare import run_apart
from tc.measure.harness import Plan, Ratio, time_interleaved
from tc.precision.calibrate import relative_error

MODELS = ("minilm", "llama_prefill", "vit_tiny", "mobilenet_v2", "ppocr_rec")
CALIBRATED, FRESH = 16, 64
SECONDS = 5.0
MOST_ERROR = 1.5
"""Of the tolerance, that a fresh input may have."""


@dataclass(frozen=True)
class MixedRow:
    """`errors`: of the worst result of each fresh input. `narrowed`, `kept`: operations in 16 bits, and those that the tolerance keeps in
    f32; `split`: products in three of bf16. `faster`: seconds of a call in f32 over those of one in mixed precision. `cpu_seconds`: of
    compiling with the search, and without it in f32."""

    model: str
    tolerance: float
    errors: tuple[float, ...]
    narrowed: int
    kept: int
    split: int
    faster: Ratio
    cpu_seconds: float
    cpu_seconds_f32: float

    @property
    def is_within(self) -> bool:
        return float(np.median(self.errors)) <= self.tolerance and max(self.errors) <= MOST_ERROR * self.tolerance

    def __str__(self) -> str:
        mark = "" if self.is_within else "  OVER"
        return (
            f"{self.model:14} error median {np.median(self.errors):.2e}  worst {max(self.errors):.2e}  narrowed {self.narrowed:3}  "
            f"kept {self.kept:3}  split {self.split:3}  f32/mixed {self.faster}  "
            f"CPU {self.cpu_seconds:6.1f} s (f32 {self.cpu_seconds_f32:.1f} s){mark}"
        )


def measure(name: str, tolerance: float, calibrated: int = CALIBRATED, fresh: int = FRESH) -> MixedRow:
    """Compile a model both ways and compare them."""
    path = str(zoo.path(name))
    start = time.process_time()
    exact = tc.compile(path, threads=1)
    between = time.process_time()
    batches = [zoo.random_inputs(name, np.random.default_rng([1, place])) for place in range(calibrated)]
    mixed = tc.compile(path, threads=1, precision=f"mixed:{tolerance}", calibration=batches)
    end = time.process_time()
    inputs = (zoo.random_inputs(name, np.random.default_rng([2, place])) for place in range(fresh))
    errors = tuple(relative_error(mixed.run(x), {n: np.array(y) for n, y in exact.run(x).items()}) for x in inputs)
    again = zoo.random_inputs(name, np.random.default_rng([2, 0]))
    calls = {"f32": partial(exact.run, again), "mixed": partial(mixed.run, again)}
    faster = time_interleaved(calls, Plan(budget_seconds=SECONDS)).ratio("f32", "mixed")
    found = mixed.report().precisions
    narrowed = sum((each.computed, each.stored) != ("f32", "f32") for each in found)
    kept = sum("tolerance" in each.why for each in found)
    split = sum(each.computed.endswith("x3") for each in found)
    return MixedRow(name, tolerance, errors, narrowed - split, kept - split, split, faster, end - between, between - start)


def measure_uncached(name: str, tolerance: float) -> MixedRow:
    """`measure` without a cache, which is taken from the whole process."""
    os.environ["TC_CACHE_DIR"] = "off"
    return measure(name, tolerance)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixed", description="Mixed precision on fresh inputs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"models of the zoo (default: {', '.join(MODELS)})")
    parser.add_argument("--tolerance", type=float, default=1e-2, help="relative L2 error (default 1e-2)")
    options = parser.parse_args(arguments)
    is_within = True
    try:
        for name in options.names or MODELS:
            zoo.path(name)
            row = run_apart(measure_uncached, name, options.tolerance)
            is_within &= row.is_within
            print(row, flush=True)
    except zoo.ZooError as error:
        print(f"mixed: {error}", file=sys.stderr)
        return 1
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
