"""Measures models side by side and keeps the table.

    python -m benchmarks.run --models resnet50 'silero*' --threads 1,2 --vs onnxruntime,openvino

writes RESULTS.json and RESULTS.md beside this file; rows of models that are not measured again stay. Each row is
measured in a process of its own, so that one runtime's crash costs one row and no runtime meets the threads of an
earlier model.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from benchmarks import report, zoo
from benchmarks.report import SUBJECT, Result, Row
from benchmarks.runtimes import LOADERS
from tc.compiler import run_stages
from tc.measure.compare import compare_runtimes, run_apart, with_load_costs
from tc.measure.harness import Plan
from tc.measure.roofline import count_model, machine_limits, roofline_fractions
from tc.measure.runtimes import BOUND, CALLS, reference_outputs
from tc.target import native_target

# What the table is about when no models are named: every architecture once.
DEFAULT_MODELS = (
    *("resnet50", "densenet121", "inception_v1", "inception_v2", "shufflenet", "squeezenet", "vgg19", "zfnet512"),
    *("alexnet", "mobilenet_v2", "vit_tiny", "ppocr_det", "ppocr_rec", "ppocr_cls", "silero_vad", "magika", "minilm"),
    *("llama_prefill", "llama_decode", "matmul_1024", "gemv_4096", "conv3x3_64_56", "conv3x3_256_14"),
    *("depthwise3x3_64_112", "softmax_12x128x128", "layernorm_128x768", "gelu_16m", "attention_12x512x64"),
)


@dataclass(frozen=True)
class Job:
    """One row to measure. `model` is a name of the zoo or the path of an ONNX file."""

    model: str
    threads: int
    runtimes: tuple[str, ...]
    dims: Mapping[str, int]
    fix_dims: bool
    plan: Plan
    seed: int = 0
    calls: str = BOUND


def measure(job: Job) -> Row:
    """Load the model into every runtime, check what it gives, and time those that gave something."""
    arrays = zoo.random_inputs(job.model, np.random.default_rng(job.seed), job.dims)
    with tempfile.TemporaryDirectory() as folder:
        model = zoo.path(job.model) if job.model in zoo.names() else Path(job.model)
        if job.fix_dims:
            model = fix_input_dims(model, arrays, Path(folder))
        loaders = {name: LOADERS[name] for name in job.runtimes}
        expected = reference_outputs(model, arrays)
        target = replace(native_target(), cores=job.threads)
        limits = machine_limits(target)
        found = compare_runtimes(loaders, model, job.threads, arrays, expected, job.plan, limits, job.calls)
        results = found.results
        if job.calls == BOUND:  # what loading costs does not depend on calls
            results = with_load_costs(results, loaders, model, job.threads, arrays)
        fractions = {}
        if SUBJECT in loaders and not results[SUBJECT].problem and found.timings:
            stages = run_stages(model, target)
            work = count_model(stages.plan, stages.kernels, arrays, expected).total
            fractions = roofline_fractions(work, found.timings, limits) if work else {}
    facts = report.describe_machine()
    return Row(job.model, job.threads, job.dims, results, found.ratios, found.rounds, **facts, fractions=fractions, calls=job.calls)


def measure_apart(job: Job) -> Row:
    """`measure` in a new process; one that dies gives a row that says so."""
    try:
        return run_apart(measure, job)
    except BrokenProcessPool:
        results = dict.fromkeys(job.runtimes, Result(problem="the measuring process died"))
        return Row(job.model, job.threads, job.dims, results, **report.describe_machine(), calls=job.calls)


def fix_input_dims(model: Path, arrays: Mapping[str, np.ndarray], folder: Path) -> Path:
    """A copy of `model` whose inputs are declared with the shapes of `arrays`, and nothing else is."""
    proto = onnx.load(model)
    for value in proto.graph.input:
        if value.name in arrays:
            for dim, size in zip(value.type.tensor_type.shape.dim, arrays[value.name].shape):
                dim.dim_value = size
    proto.graph.ClearField("value_info")
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    fixed = folder / model.name
    onnx.save(proto, fixed)
    return fixed


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Measure models side by side.")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="of the zoo, or ONNX files (default: the table)")
    parser.add_argument("--threads", default="1", metavar="N,N", help="numbers of threads (default: 1)")
    parser.add_argument("--calls", default=",".join(CALLS), metavar="KIND,KIND", help="bound, ordinary (default: both)")
    parser.add_argument("--vs", default="onnxruntime,openvino", metavar="NAME,NAME", help="peers (default: both)")
    parser.add_argument("--only-peers", action="store_true", help=f"leave {SUBJECT} out")
    parser.add_argument("--dims", nargs="*", default=[], metavar="DIM=N", help="symbolic dims, if not the usual ones")
    parser.add_argument("--fix-dims", action="store_true", help="give every runtime the model with its dims filled in")
    parser.add_argument("--seconds", type=float, default=Plan.budget_seconds, help="time for each row (default: 20)")
    parser.add_argument("--rounds", type=int, default=Plan.max_rounds, help="at most this many (default: 40)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder of the results")
    return parser.parse_args(arguments)


def make_jobs(options: argparse.Namespace) -> list[Job]:
    """Raises zoo.ZooError or ValueError for names that do not exist."""
    peers = tuple(name for name in options.vs.split(",") if name)
    unknown = [name for name in peers if name not in LOADERS]
    if unknown:
        raise ValueError(f"no runtime {unknown[0]!r}; there are {', '.join(LOADERS)}")
    names = peers if options.only_peers else (SUBJECT, *(name for name in peers if name != SUBJECT))
    given = {dim: int(size) for dim, size in (text.split("=", 1) for text in options.dims)}
    plan = Plan(
        budget_seconds=options.seconds, max_rounds=options.rounds, min_rounds=min(Plan.min_rounds, options.rounds)
    )
    threads = [int(text) for text in options.threads.split(",")]
    kinds = options.calls.split(",")
    if set(kinds) - set(CALLS):
        raise ValueError(f"no calls {options.calls!r}; there are {', '.join(CALLS)}")
    jobs = []
    for model in chosen_models(options.models):
        dims = (zoo.default_dims(model) if model in zoo.names() else {}) | given
        jobs += [Job(model, count, names, dims, options.fix_dims, plan, calls=kind) for count in threads for kind in kinds]
    return jobs


def chosen_models(patterns: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the zoo, and paths of files that exist, in the order given."""
    if not patterns:
        return DEFAULT_MODELS
    models: list[str] = []
    for pattern in patterns:
        models += [pattern] if Path(pattern).is_file() else zoo.select([pattern])
    return tuple(dict.fromkeys(models))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        jobs = make_jobs(options)
        for model in dict.fromkeys(job.model for job in jobs if job.model in zoo.names()):
            zoo.path(model)
        if (options.output / "RESULTS.json").exists():
            report.read_rows(options.output / "RESULTS.json")
    except (zoo.ZooError, ValueError) as error:
        print(f"run: {error}", file=sys.stderr)
        return 1
    for job in jobs:
        row = measure_apart(job)
        report.update(options.output, [row])
        print(report.as_line(row), flush=True)
    print(f"written: {options.output / 'RESULTS.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
