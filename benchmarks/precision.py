"""Networks in 8 and 16 bits beside the peers at their best settings, and beside their own f32.

    python -m benchmarks.precision --threads 1,2                     all of it: PRECISION.json and PRECISION.md beside this file
    python -m benchmarks.precision --kinds int8 --models resnet50 --isa vnni

Each row is measured in a process of its own. Before anything is timed, what everybody computes is compared with the same graph in
double precision. int8: QDQ networks, float parts in f32; `int8, bf16 floats`: the same with float parts in bf16, where the peer's
default is; bf16: f32 networks computed in bf16.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx

import tc
from benchmarks import report, zoo
from benchmarks.inputs import Arrays
from benchmarks.precision_report import MOST_ERROR, SUBJECT, WIDE, Entrant, PrecisionRow, as_line, read_rows, update
from benchmarks.qdq_checks import relative_l2
from benchmarks.qdq_reference import run_in_double
from benchmarks.quantized import modern
from tc.measure.compare import in_short, load_cost, run_apart
from tc.measure.harness import Plan, time_interleaved
from tc.measure.runtimes import Runtime, RuntimeMissingError, as_runtime, load_onnxruntime, load_openvino
from tc.target import Target, native_target

QUANTIZED = ("resnet50", "mobilenet_v2", "densenet121", "squeezenet", "minilm", "vit_tiny", "ppocr_rec", "ppocr_det")
HALF = ("resnet50", "minilm", "vit_tiny", "densenet121", "llama_prefill")

INT8, INT8_BF16, BF16 = "int8", "int8, bf16 floats", "bf16"
KINDS = {INT8: QUANTIZED, INT8_BF16: QUANTIZED, BF16: HALF}

Loader = Callable[[Path, int], Runtime]


@dataclass(frozen=True)
class Isa:
    """What both sides are held to: the value of ONEDNN_MAX_CPU_ISA, and how the features begin that `tc` goes without."""

    onednn: str = ""
    without: tuple[str, ...] = ()


ISAS = {
    "": Isa(),
    "vnni": Isa("AVX512_CORE_VNNI", ("amx-", "avx512bf16", "avx512fp16")),
    "avx2": Isa("AVX2", ("amx-", "avx512", "avxvnni")),
}


@dataclass(frozen=True)
class Job:
    """One row to measure; `tries`: how often each is compiled anew, 0 for never."""

    kind: str
    model: str
    threads: int
    isa: str
    plan: Plan
    peers: tuple[str, ...]
    tries: int = 1


def load_tc(model: Path, threads: int, target: Target, precision: str) -> Runtime:
    """RuntimeMissingError where `tc` has no such precision."""
    if precision != "f32" and "precision" not in inspect.signature(tc.compile).parameters:
        raise RuntimeMissingError(f"tc compiles nothing in {precision}")
    options = {} if precision == "f32" else {"precision": precision}
    start = time.perf_counter()
    compiled = tc.compile(str(model), target, threads=threads, **options)
    return replace(as_runtime(compiled, time.perf_counter() - start), precision=precision)


def entrants(job: Job) -> dict[str, tuple[str, Loader]]:
    """The name of the network and what loads it, for everybody in a row."""
    target = held_target(native_target(), ISAS[job.isa])
    floats = "f32" if job.kind == INT8 else "bf16"
    name = job.model if job.kind == BF16 else f"{job.model}_qdq"
    found: dict[str, tuple[str, Loader]] = {
        SUBJECT: (name, partial(load_tc, target=target, precision=floats)),
        WIDE: (job.model, partial(load_tc, target=target, precision="f32")),
        "openvino": (name, partial(load_openvino, precision=floats)),
        "onnxruntime": (name, load_onnxruntime),  # which has no bf16 on CPUs
    }
    return {key: found[key] for key in (SUBJECT, WIDE, *job.peers)}


def held_target(target: Target, isa: Isa) -> Target:
    kept = tuple(feature for feature in target.features if not feature.startswith(isa.without or ("-",)))
    if kept == target.features:
        return target
    return (
        Target.parse(f"cpu:name={target.cpu},features={'+'.join(kept)}")
        if "avx512" in isa.without
        else replace(target, features=kept)
    )


def measure(job: Job, arrays: Arrays, exact: Sequence[np.ndarray]) -> PrecisionRow:
    """Load everybody, compare what they compute with `exact`, time those that are right, and compile anew."""
    if ISAS[job.isa].onednn:
        os.environ["ONEDNN_MAX_CPU_ISA"] = ISAS[job.isa].onednn
    found: dict[str, Entrant] = {}
    steps = {}
    for name, (network, load) in entrants(job).items():
        try:
            runtime = load(zoo.path(network), job.threads)
            error = None if name == WIDE else relative_l2([runtime.run(arrays)], [exact])
            found[name] = Entrant(runtime.version, runtime.precision, error=error)
            if error is not None and not error <= MOST_ERROR:
                found[name] = replace(found[name], problem=f"corrupt: its error is {error:.2g}")
                continue
            steps[name] = runtime.bind(arrays)
        except RuntimeMissingError as missing:
            found[name] = Entrant(problem=f"not measured: {missing}")
        except Exception as failure:  # whatever a runtime raises is its result
            found[name] = Entrant(problem=f"failed: {in_short(failure)}")
    timings = time_interleaved(steps, job.plan) if steps else None
    for name in steps:
        found[name] = replace(found[name], median_seconds=timings.median(name))
    others = [name for name in steps if name != SUBJECT] if SUBJECT in steps else []
    ratios = {name: timings.ratio(name, SUBJECT) for name in others}
    found = with_compile_seconds(found, job, arrays)
    rounds = 0 if timings is None else len(timings.seconds)
    return PrecisionRow(job.kind, job.model, job.threads, job.isa, found, ratios, rounds, **report.describe_machine())


def with_compile_seconds(found: Mapping[str, Entrant], job: Job, arrays: Arrays) -> dict[str, Entrant]:
    """What compiling costs `tc`, the network and its twin in turns; the least of the tries."""
    least: dict[str, float] = {}
    for _ in range(job.tries):
        for name in (SUBJECT, WIDE):
            network, load = entrants(job)[name]
            if found[name].median_seconds is not None:
                seconds, _ = run_apart(load_cost, load, zoo.path(network), job.threads, arrays)
                least[name] = min(seconds, least.get(name, seconds))
    return {name: replace(each, compile_seconds=least.get(name)) for name, each in found.items()}


def measure_apart(job: Job, arrays: Arrays, exact: Sequence[np.ndarray]) -> PrecisionRow:
    """`measure` in a new process. Where that dies, those peers are left out, and named, that do not live through one run alone."""
    try:
        return run_apart(measure, job, arrays, exact)
    except BrokenProcessPool:
        dead = [peer for peer in job.peers if not _lives(peer, job, arrays)]
        problems = {peer: Entrant(problem="its process died") for peer in dead}
    try:
        row = run_apart(measure, replace(job, peers=tuple(peer for peer in job.peers if peer not in dead)), arrays, exact)
    except BrokenProcessPool:
        everybody = dict.fromkeys(entrants(job), Entrant(problem="the measuring process died"))
        return PrecisionRow(job.kind, job.model, job.threads, job.isa, everybody, **report.describe_machine())
    return replace(row, entrants={**row.entrants, **problems})


def _lives(peer: str, job: Job, arrays: Arrays) -> bool:
    try:
        run_apart(_run_once, peer, job, arrays)
    except BrokenProcessPool:
        return False
    except Exception:  # which `measure` will write down
        return True
    return True


def _run_once(peer: str, job: Job, arrays: Arrays) -> None:
    network, load = entrants(job)[peer]
    load(zoo.path(network), job.threads).run(arrays)


def exact_outputs(name: str, arrays: Arrays) -> list[np.ndarray]:
    """What the network `name` of the zoo gives in double precision."""
    model = onnx.load(zoo.path(name))
    return run_in_double(model if zoo.entry_of(name).twin else modern(model), arrays)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.precision", description="Measure narrow networks side by side."
    )
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument(
        "--models", nargs="+", metavar="NAME", help="of the zoo, as in f32 (default: those of each kind)"
    )
    parser.add_argument("--threads", default="1", metavar="N,N", help="numbers of threads (default: 1)")
    parser.add_argument("--vs", default="onnxruntime,openvino", metavar="NAME,NAME", help="peers (default: both)")
    parser.add_argument(
        "--isa", default="", choices=list(ISAS), help="hold both sides to these instructions (default: all there are)"
    )
    parser.add_argument("--seconds", type=float, default=Plan.budget_seconds, help="time for each row (default: 20)")
    parser.add_argument("--rounds", type=int, default=Plan.max_rounds, help="at most this many (default: 40)")
    parser.add_argument("--tries", type=int, default=1, help="compilations of each network, 0 for none (default: 1)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder of the results")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    plan = Plan(
        budget_seconds=options.seconds, max_rounds=options.rounds, min_rounds=min(Plan.min_rounds, options.rounds)
    )
    threads, peers = [int(text) for text in options.threads.split(",")], tuple(filter(None, options.vs.split(",")))
    try:
        if (options.output / "PRECISION.json").exists():
            read_rows(options.output / "PRECISION.json")
        for kind in options.kinds:
            for model in options.models or KINDS[kind]:
                name = model if kind == BF16 else f"{model}_qdq"
                zoo.path(name), zoo.path(model)
                arrays = zoo.random_inputs(name, np.random.default_rng(0))
                exact = exact_outputs(name, arrays)
                for count in threads:
                    row = measure_apart(Job(kind, model, count, options.isa, plan, peers, options.tries), arrays, exact)
                    update(options.output, [row])
                    print(as_line(row), flush=True)
    except (zoo.ZooError, ValueError) as error:
        print(f"precision: {error}", file=sys.stderr)
        return 1
    print(f"written: {options.output / 'PRECISION.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
