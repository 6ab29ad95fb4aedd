"""`tc bench`: a model beside other runtimes, and beside what the machine allows."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import tc
from tc.cli.options import add_compile_arguments, compile_options, need_model
from tc.cli.outcome import Outcome, format_array, format_bytes, format_seconds, make_table
from tc.cli.reference import check_outputs, describe_check
from tc.cli.run import add_input_arguments, hint_at_dims, make_inputs
from tc.compiler import run_stages
from tc.errors import CheckError, MeasureError, UsageError
from tc.measure.compare import SUBJECT, Comparison, Loader, compare_runtimes, run_apart, with_load_costs
from tc.measure.harness import Plan, Ratio
from tc.measure.roofline import ModelWork, count_model, machine_limits, rates, roofline_fractions
from tc.measure.runtimes import PEERS, Arrays, Runtime, as_runtime, load_openvino, reference_outputs
from tc.precision.request import checked_precision
from tc.schedule.work import Work
from tc.stages import interpret_in_f64
from tc.target import Target, available_cpus

EXACT, NARROW = 1e-4, 1e-1  # tolerances of programs in f32, and in 16 bits
WIDE = 100  # columns that the whole tables take

EPILOG = """\
examples:
  tc bench model.onnx                                    beside the peers that are installed
  tc bench model.onnx --vs openvino --threads 1,2        one peer; on one thread, then on two
  tc bench model.onnx --shape x=1x3x224x224xf32          random inputs of this shape
  tc bench model.onnx --vs none --kernels --threads 1    no peer; every kernel and what bounds it
  tc bench model.onnx --seconds 30 --json                longer, as data

The runtimes take turns in rounds, and their ratios are taken within a round, so they hold on a machine whose speed drifts.
"""


@dataclass(frozen=True)
class BenchRequest:
    """What the measuring process needs to know. `expected` are the right outputs, in the order of the model."""

    model: Path
    peers: tuple[str, ...]
    threads: int
    arrays: dict[str, np.ndarray]
    expected: tuple[np.ndarray, ...]
    options: dict[str, Any]
    plan: Plan
    kernels: bool


@dataclass(frozen=True)
class KernelWork:
    """Launches of one kernel added up. `work` is None when it depends on data."""

    kernel: str
    rule: str
    nodes: tuple[str, ...]
    calls: int
    seconds: float
    work: Work | None


@dataclass(frozen=True)
class BenchResult:
    """One number of threads: the comparison, the work of the model, and the rates of the limits within the same rounds."""

    threads: int
    comparison: Comparison
    flops_per_s: float
    bytes_per_s: float
    work: Work | None
    fractions: Mapping[str, Ratio]
    kernels: tuple[KernelWork, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="an ONNX file")
    add_input_arguments(parser)
    parser.add_argument("--shape", action="append", dest="input", metavar="NAME=SHAPE", help="the same as --input")
    parser.add_argument(
        "--vs", metavar="NAME,NAME", help=f"peers, of {', '.join(PEERS)}, or none (default: those that are installed)"
    )
    parser.add_argument("--threads", default="", metavar="N,N", help="numbers of threads (default: one, and every core)")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for the rounds of each number of threads (default 10)")
    parser.add_argument("--rounds", type=int, default=60, help="at most this many (default 60)")
    parser.add_argument("--kernels", action="store_true", help="show every kernel, its rate and what bounds it")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="kernels to show, 0 for all (default 20)")
    parser.add_argument(
        "--tolerance", type=float, help="largest error over largest reference value (default 1e-4; 1e-1 where --precision is not f32)"
    )
    add_compile_arguments(parser, threads=False)


def execute(args: argparse.Namespace) -> Outcome:
    """Compile, check, and measure for each number of threads, each in a process of its own. Exit code 3 for wrong results."""
    need_model(args.model, "tc bench", "which other runtimes cannot read")
    if args.tolerance is None:
        args.tolerance = EXACT if args.precision == "f32" else NARROW
    if math.isnan(args.tolerance):
        raise UsageError("--tolerance is nan, must be a number")
    if args.top < 0 or args.rounds < 1 or not 0 < args.seconds < 86400:
        raise UsageError("--top must not be negative, --rounds at least 1, --seconds more than 0")
    peers, counts = parse_peers(args.vs), parse_threads(args.threads)
    options = compile_options(argparse.Namespace(**{**vars(args), "threads": 1}))
    module = tc.compile(args.model, **options)
    arrays = make_inputs(module, args)
    with hint_at_dims(module, args):
        reference, expected = reference_for(args.model, arrays, [value.name for value in module.outputs])
    plan = Plan(budget_seconds=args.seconds, max_rounds=args.rounds, min_rounds=min(Plan.min_rounds, args.rounds))
    request = BenchRequest(args.model, peers, 1, arrays, expected, options, plan, args.kernels)
    measured = [measure_apart(replace(request, threads=count)) for count in counts]
    errors = [result.error for m in measured if (result := m.comparison.results[SUBJECT]).error is not None]
    data: dict[str, Any] = {
        "model": str(args.model),
        "inputs": {name: format_array(array) for name, array in arrays.items()},
        "reference": reference,
        "runs": [as_data(m) for m in measured],
    }
    wrong = max(errors, default=0.0) > args.tolerance
    if wrong:
        expected_by_name = dict(zip((value.name for value in module.outputs), expected, strict=True))
        checks, _ = check_outputs(module.run(arrays), expected_by_name, args.tolerance, lambda: interpret_in_f64(args.model, arrays))
        data["judged_by_float64"] = [describe_check(each, reference, args.tolerance) for each in checks if each.own_error is not None]
        wrong = not all(each.is_right for each in checks)
    return Outcome(data, lambda console: show(console, data, args.top), CheckError.exit_code if wrong else 0)


def parse_peers(text: str | None) -> tuple[str, ...]:
    """The peers to measure. Those asked for by name stay, installed or not: their row then says what is missing."""
    if text is None:
        return tuple(name for name in PEERS if is_installed(name))
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip() not in ("", "none", SUBJECT)))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise UsageError(f"--vs: there is no runtime '{unknown[0]}'; there are {', '.join(PEERS)}")
    return names


def parse_threads(text: str) -> tuple[int, ...]:
    """Read `1,2`; empty means one thread, and all cores if there are more."""
    cores = available_cpus()
    if not text:
        return tuple(dict.fromkeys((1, cores)))
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= cores for part in parts):
        raise UsageError(f"--threads {text}: needs numbers from 1 to {cores} with commas between them, such as 1,{cores}")
    return tuple(dict.fromkeys(int(part) for part in parts))


def is_installed(name: str) -> bool:
    return find_spec(name) is not None


def reference_for(model: Path, arrays: Arrays, names: Sequence[str]) -> tuple[str, tuple[np.ndarray, ...]]:
    """Who says what is right, and what: onnxruntime without graph rewriting, or else the reference interpreter."""
    if is_installed("onnxruntime"):
        try:
            return "onnxruntime without rewriting", tuple(reference_outputs(model, arrays))
        except Exception:  # a model that it does not take; whatever it raises
            pass
    outputs = tc.interpret(model, arrays)
    return "the reference interpreter", tuple(outputs[name] for name in names)


def load_tc(options: Mapping[str, Any], model: Path, threads: int) -> Runtime:
    """The loader of `tc`, as those of the peers."""
    start = time.perf_counter()
    compiled = tc.compile(model, **{**options, "threads": threads})
    return replace(as_runtime(compiled, time.perf_counter() - start), precision=compiled.report().precision)


def peer_loader(name: str, options: Mapping[str, Any]) -> Loader:
    """A peer that may use what `tc` is allowed to: bf16 where the user asked for less than f32 or nearly f32."""
    may_narrow = name == "openvino" and options.get("precision", "f32") not in ("f32", "bf16x3")
    return partial(load_openvino, precision="f16" if options["precision"] == "f16" else "bf16") if may_narrow else PEERS[name]


def measure_apart(request: BenchRequest) -> BenchResult:
    """`measure` in a process of its own. MeasureError when that dies, as it does when a runtime crashes."""
    try:
        return run_apart(measure, request)
    except BrokenProcessPool as death:
        names = ", ".join((SUBJECT, *request.peers))
        raise MeasureError(f"the measuring process died with {names} on {request.threads} threads; try --vs none") from death


def measure(request: BenchRequest) -> BenchResult:
    """Everything about one number of threads."""
    target = replace(Target.parse(request.options["target"]), cores=request.threads)
    limits = machine_limits(target)
    loaders: dict[str, Loader] = {SUBJECT: partial(load_tc, request.options)}
    loaders |= {name: peer_loader(name, request.options) for name in request.peers}
    found = compare_runtimes(
        loaders, request.model, request.threads, request.arrays, request.expected, request.plan, limits
    )
    costs = with_load_costs(found.results, loaders, request.model, request.threads, request.arrays)
    found = replace(found, results=costs)
    if found.timings is None:
        return BenchResult(request.threads, found, 0.0, 0.0, None, {})
    options = {name: value for name, value in request.options.items() if name in ("dims", "on_unsupported", "numerics")}
    asked = checked_precision(request.options.get("precision", "f32"), request.options.get("calibration"))
    stages = run_stages(request.model, target, **options, precision=asked)
    work = count_model(stages.plan, stages.kernels, request.arrays, request.expected)
    fractions = {} if work.total is None else roofline_fractions(work.total, found.timings, limits)
    rows = kernel_rows(request, work) if request.kernels else ()
    return BenchResult(request.threads, found, *rates(found.timings, limits), work.total, fractions, rows)


def kernel_rows(request: BenchRequest, work: ModelWork) -> tuple[KernelWork, ...]:
    """Where the time of a call goes, one row for each kernel, slowest first."""
    module = tc.compile(request.model, **{**request.options, "threads": request.threads})
    seconds: dict[str, float] = {}
    for launch_time in module.profile(request.arrays):
        seconds[launch_time.kernel] = seconds.get(launch_time.kernel, 0.0) + launch_time.seconds
    rows = []
    for name, spent in seconds.items():
        own = [launch for launch in work.launches if launch.kernel == name]
        known = [launch.work for launch in own if launch.work is not None]
        total = sum(known, Work()) if len(known) == len(own) else None
        rows.append(KernelWork(name, own[0].rule, tuple(dict.fromkeys(launch.node for launch in own)), len(own), spent, total))
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def as_data(measured: BenchResult) -> dict[str, Any]:
    """One number of threads as plain data."""
    rates = (measured.flops_per_s, measured.bytes_per_s)
    data: dict[str, Any] = {
        "threads": measured.threads,
        "rounds": measured.comparison.rounds,
        "results": {name: asdict(result) for name, result in measured.comparison.results.items()},
        "ratios": {name: asdict(ratio) for name, ratio in measured.comparison.ratios.items()},
        "limits": {"flops_per_s": rates[0], "bytes_per_s": rates[1]},
        "roofline": None,
        "kernels": [_kernel_data(row, rates) for row in measured.kernels],
    }
    if measured.work is not None:
        data["roofline"] = {
            **asdict(measured.work),
            "seconds": measured.work.seconds_at(*rates),
            "bound_by": measured.work.bound_by(*rates),
            "fractions": {name: asdict(ratio) for name, ratio in measured.fractions.items()},
        }
    return data


def _kernel_data(row: KernelWork, rates: tuple[float, float]) -> dict[str, Any]:
    data = {"kernel": row.kernel, "rule": row.rule, "nodes": row.nodes, "calls": row.calls, "seconds": row.seconds}
    work = row.work
    if work is None or row.seconds <= 0:
        return data
    return {
        **data,
        **asdict(work),
        "gflops_per_s": work.flops / row.seconds * 1e-9,
        "gbytes_per_s": work.size_bytes / row.seconds * 1e-9,
        "bound_by": work.bound_by(*rates),
        "of_bound": work.seconds_at(*rates) / row.seconds,
    }


def show(console: Console, data: dict[str, Any], top: int) -> None:
    if not console.is_terminal:
        console.width = max(console.width, WIDE)
    for run in data["runs"]:
        _show_runtimes(console, run)
        _show_roofline(console, run)
        if run["kernels"]:
            _show_kernels(console, run, top)
        console.print()
    inputs = ", ".join(f"{name} {shape}" for name, shape in data["inputs"].items())
    versions = ", ".join(f"{name} {r['version']}" for name, r in data["runs"][0]["results"].items() if r["version"])
    console.print(f"inputs: {inputs}", highlight=False, markup=False)
    console.print(f"errors: largest difference over largest value, against {data['reference']}", highlight=False)
    for line in data.get("judged_by_float64", ()):
        console.print(f"by float64: {line}", highlight=False, markup=False)
    console.print(f"versions: {versions}", highlight=False, markup=False)


def _show_runtimes(console: Console, run: dict[str, Any]) -> None:
    """The table of runtimes; a narrow terminal shows no fastest calls and no quartiles."""
    wide = console.width >= WIDE
    columns = ["runtime", "floats", "median ", *(["fastest "] if wide else []), f"over {SUBJECT} ", "of roofline ", "loads in "]
    rows = [
        _runtime_cells(name, result, run, wide)
        for name, result in run["results"].items()
        if result["median_seconds"] is not None
    ]
    threads = f"{run['threads']} thread{'s' if run['threads'] > 1 else ''}"
    console.print(make_table(f"{threads}, {run['rounds']} rounds", [*columns, "memory ", "error "], rows))
    warm = run["results"][SUBJECT]["load_seconds"]
    if warm is not None:
        console.print(f"{SUBJECT} loads in {format_seconds(warm)} once its kernels are in the cache on disk", highlight=False)
    for name, result in run["results"].items():
        if result["problem"]:
            console.print(f"{name}: {result['problem']}", style="yellow", highlight=False, markup=False)


def _runtime_cells(name: str, result: dict[str, Any], run: dict[str, Any], wide: bool) -> list[str]:
    ratio = run["ratios"].get(name)
    fraction = (run["roofline"] or {}).get("fractions", {}).get(name)
    cells = [name, result["precision"], format_seconds(result["median_seconds"])]
    if wide:
        cells.append(format_seconds(result["min_seconds"]))
    spread = f" [{ratio['low']:.2f}, {ratio['high']:.2f}]" if ratio and wide else ""
    cells.append(f"{ratio['median']:.2f}{spread}" if ratio else "")
    cells.append(f"{fraction['median']:.2f}" if fraction else "-")
    cells.append("-" if result["cold_seconds"] is None else format_seconds(result["cold_seconds"]))
    cells.append("-" if result["peak_bytes"] is None else format_bytes(result["peak_bytes"]))
    return [*cells, f"{result['error']:.1e}"]


def _show_roofline(console: Console, run: dict[str, Any]) -> None:
    limits, roofline = run["limits"], run["roofline"]
    if not limits["flops_per_s"]:
        return
    rates = f"{limits['flops_per_s'] * 1e-9:.0f} GFLOP/s and {limits['bytes_per_s'] * 1e-9:.1f} GB/s"
    if roofline is None:
        console.print(f"this machine: {rates}; the work of this model depends on its data", highlight=False)
        return
    console.print(
        f"roofline: {_format_flops(roofline['flops'])}, {format_bytes(roofline['size_bytes'])} in and out; "
        f"at {rates} no less than {format_seconds(roofline['seconds'])}: bound by {roofline['bound_by']}",
        highlight=False,
    )
    if any(ratio["median"] > 1 for ratio in roofline["fractions"].values()):
        console.print("(above 1 of the roofline: the data stay in caches, which are faster than memory)", highlight=False)


def _show_kernels(console: Console, run: dict[str, Any], top: int) -> None:
    total = sum(row["seconds"] for row in run["kernels"]) or 1.0
    shown = run["kernels"][: top or None]
    wide = console.width >= WIDE
    rows = [
        (
            format_seconds(row["seconds"]),
            f"{100 * row['seconds'] / total:.1f} %",
            row["calls"],
            *_rate_cells(row),
            row["kernel"],
            *([row["rule"]] if wide else []),
        )
        for row in shown
    ]
    columns = ["time ", "share ", "calls ", "rate ", "bound by", "of bound ", "kernel", *(["schedule"] if wide else [])]
    console.print(make_table("kernels", columns, rows))
    hidden = run["kernels"][len(shown) :]
    if hidden:
        left = sum(row["seconds"] for row in hidden)
        console.print(f"{len(hidden)} more kernels take {format_seconds(left)} (--top 0 shows them)", highlight=False)
    console.print("of bound: above 1 where operands come from caches, which are faster than memory", highlight=False)


def _format_flops(flops: int) -> str:
    return f"{flops * 1e-9:.3g} GFLOP" if flops >= 10**9 else f"{flops * 1e-6:.3g} MFLOP"


def _rate_cells(row: dict[str, Any]) -> tuple[str, str, str]:
    if "bound_by" not in row:
        return "-", "-", "-"
    compute = row["bound_by"] == "compute"
    rate = f"{row['gflops_per_s']:.1f} GFLOP/s" if compute else f"{row['gbytes_per_s']:.1f} GB/s"
    return rate, row["bound_by"], f"{row['of_bound']:.2f}"
