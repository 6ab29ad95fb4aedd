"""Every operator at sizes that a seed draws, beside its peers: what is slow that no table has?

    python -m benchmarks.drawn_operators --seed 1                         one model of each operator, a quarter of an hour
    python -m benchmarks.drawn_operators --seed 1 --count 4 --only Pool
    python -m benchmarks.drawn_operators --seed 1 --folder drawn          models and inputs stay there

Models are those of `tc fuzz`, of one operator each, whose tensors have some hundred times as many elements. Those that take longer than
`--above` of the fastest peer's time are printed, the slowest first; results that differ from onnxruntime's are told, and not timed. What a
change of rules made of them: `python -m benchmarks.versions OLD NEW --models drawn/*.onnx`.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import tc
from benchmarks.processes import each_apart
from tc.fuzz.builder import Builder, Rejected, Style
from tc.fuzz.evaluate import EvaluationStep, node_model, node_reads, run_onnxruntime
from tc.fuzz.generate import ROWS, Case, finish, try_row
from tc.fuzz.operators.row import Row
from tc.measure.harness import Plan, Ratio, time_interleaved
from tc.measure.runtimes import PEERS, Runtime, RuntimeMissingError, as_runtime, reference_outputs, relative_error

SCALE = 300.0
MOST_ELEMENTS = 4_000_000
TRIES = 40
NEWEST_OPSET = 24  # that peers run all operators of
SAME = 2e-3
"""Programs whose results differ by more, relative to the largest, compute something else."""
NOT_SIZED = frozenset(("If", "Loop", "Scan", "SequenceMap", "Constant"))
"""The bodies are drawn from all rows: what they cost is told by no operator's name. A constant is nothing to run."""


class LargeBuilder(Builder):
    """A builder that asks onnxruntime alone: large results of other oracles take long, and nothing is compared with their roundings."""

    def evaluate(self, node: onnx.NodeProto, both: bool) -> EvaluationStep:
        """The node's results by onnxruntime."""
        feeds = {name: self.shared.values[name] for name in sorted(node_reads(node))}
        results = run_onnxruntime(node_model(node, feeds, self.imports([node]), self.ir_version), feeds)
        return EvaluationStep(results, [0.0] * len(results), by_reference=False, by_onnxruntime=True)


@dataclass(frozen=True)
class Job:
    """A row of the operator tables and the number of its draw."""

    row: int
    number: int
    seed: int

    @property
    def name(self) -> str:
        """The operator and the draw."""
        return f"{ROWS[self.row].op}_{self.row}_{self.seed}_{self.number}"


@dataclass(frozen=True)
class Timed:
    """What a draw came to: `ratio` is the time of `tc` over that of the fastest peer, `seconds` its own; or why there is none."""

    name: str
    shape: str = ""
    peer: str = ""
    ratio: Ratio | None = None
    seconds: float = math.nan
    problem: str = ""
    is_wrong: bool = False

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.name:34} {self.problem}  {self.shape}"
        return f"{self.name:34} {self.ratio!s:18} of {self.peer:12} {1e6 * self.seconds:9.0f} us  {self.shape}"


def draw(job: Job) -> Case | None:
    """A model of one row. None where nothing came of some tries."""
    row: Row = ROWS[job.row]
    for attempt in range(TRIES):
        rng = np.random.default_rng((job.seed, job.number, attempt, job.row, zlib.crc32(row.op.encode())))
        opset = int(rng.integers(max(13, row.since), max(min(NEWEST_OPSET, row.until), row.since) + 1))
        style = Style(
            opset, 1, p_symbolic=float(rng.choice([0.0, 0.0, 0.5])), p_one=0.05, p_runtime=float(rng.choice([0.0, 0.0, 0.5])),
            p_initializer=0.2, both=False, most_elements=MOST_ELEMENTS, scale=SCALE,
        )  # fmt: skip
        builder = LargeBuilder(rng, style)
        if row.exists(opset) and try_row(builder, row):
            try:
                return finish(builder, job.seed)
            except Rejected:
                continue
    return None


def measure(job: Job, threads: int, plan: Plan, folder: Path | None) -> Timed:
    """Draw a model, compile it, compare and time it."""
    case = draw(job)
    if case is None:
        return Timed(job.name, problem="nothing drawn")
    shape = describe(case)
    with tempfile.TemporaryDirectory() as scratch:
        path = (folder or Path(scratch)) / f"{job.name}.onnx"
        onnx.save(case.model, path)
        np.savez(path.with_suffix(".npz"), **case.feeds)
        expected = reference_outputs(path, case.feeds)
        mine = as_runtime(tc.compile(path, threads=threads), 0.0)
        if not is_same(mine.run(case.feeds), expected):
            return Timed(job.name, shape, problem="differs from onnxruntime", is_wrong=True)
        runtimes = {"tc": mine, **peers_of(path, case, expected, threads)}
        timings = time_interleaved({name: runtime.bind(case.feeds) for name, runtime in runtimes.items()}, plan)
    peers = [name for name in runtimes if name != "tc"]
    if not peers:
        return Timed(job.name, shape, problem="no peer runs it")
    best = min(peers, key=timings.median)
    return Timed(job.name, shape, best, timings.ratio("tc", best), timings.median("tc"))


def describe(case: Case) -> str:
    """The nodes of a model and the shapes of its inputs."""
    nodes = "+".join(node.op_type for node in case.model.graph.node if node.op_type != "Constant")
    return f"{nodes}({', '.join(f'{i.array.dtype}{list(i.shape)}' for i in case.inputs)})"


def is_same(found: Sequence[object], expected: Sequence[object]) -> bool:
    """Whether results are those expected, but for roundings."""
    arrays = [(np.asarray(a), np.asarray(b)) for a, b in zip(found, expected, strict=True)]
    exact = [np.array_equal(a, b) for a, b in arrays if b.dtype.kind not in "fiub"]
    numbers = [(a, b) for a, b in arrays if b.dtype.kind in "fiub"]
    return all(exact) and relative_error([a for a, _ in numbers], [b for _, b in numbers]) <= SAME


def peers_of(path: Path, case: Case, expected: Sequence[np.ndarray], threads: int) -> dict[str, Runtime]:
    """The peers that run a model and give the same."""
    found = {}
    for name, load in PEERS.items():
        try:
            runtime = load(path, threads)
            if is_same(runtime.run(case.feeds), expected):
                runtime.bind(case.feeds)()
                found[name] = runtime
        except (RuntimeError, ValueError, TypeError, RuntimeMissingError):  # it has no such operator, or not for these operands
            continue
    return found


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drawn_operators", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1, metavar="N", help="models of each operator (default: 1)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only operators whose name contains this")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of every program (default: 1)")
    parser.add_argument("--seconds", type=float, default=0.6, help="time for each model (default: 0.6)")
    parser.add_argument("--above", type=float, default=1.2, metavar="R", help="print what takes longer than this (default: 1.2)")
    parser.add_argument("--folder", type=Path, help="where models and their inputs stay")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print; 1 where a result was wrong."""
    options = parse_arguments(arguments)
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(slot_seconds=0.008, budget_seconds=options.seconds, min_rounds=5, max_rounds=30)
    rows = [k for k, row in enumerate(ROWS) if options.only in row.op and row.op not in NOT_SIZED]
    jobs = [Job(row, number, options.seed) for row in rows for number in range(options.count)]
    run = functools.partial(measure, threads=options.threads, plan=plan, folder=options.folder)
    results = []
    for done, result in enumerate(each_apart(run, jobs, lambda job, problem: Timed(job.name, problem=problem))):
        results.append(result)
        if result.problem:
            print(result, flush=True)
        elif sys.stderr.isatty():
            print(f"\r{done + 1} of {len(jobs)}", end="", file=sys.stderr)
    print_results(results, options.above)
    return int(any(result.is_wrong for result in results))


def print_results(results: Sequence[Timed], above: float) -> None:
    """The slowest against their peers, and all of them as one number."""
    timed = [(result.ratio.median, result) for result in results if result.ratio is not None]
    for ratio, result in sorted(timed, key=lambda pair: -pair[0]):
        if ratio > above:
            print(result)
    if timed:
        mean = math.exp(sum(math.log(ratio) for ratio, _ in timed) / len(timed))
        slower = sum(ratio > 1.0 for ratio, _ in timed)
        print(f"{len(timed)} models timed: tc takes {mean:.2f} of its best peer's time as a geometric mean, {slower} times more than it")


if __name__ == "__main__":
    sys.exit(main())
