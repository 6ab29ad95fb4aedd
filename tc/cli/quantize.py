"""`tc quantize`: find which edges of a model run in 8 bits, and write it as a standard ONNX file."""

from __future__ import annotations

import argparse
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

import tc
from tc.autotune.report.plots import require_matplotlib
from tc.cli.options import THREADS_HELP, need_model, parse_dims
from tc.cli.outcome import Outcome, check_output, format_bytes, format_seconds, make_table
from tc.errors import UsageError
from tc.quantization.quantize import MODES, QuantizationStep, quantize
from tc.quantization.result import FrontPoint, QuantizedModel, check_limit
from tc.quantization.search import ALGORITHMS
from tc.target import check_threads

EPILOG = """\
examples:
  tc quantize model.onnx --data calib/ -o model.int8.onnx           calib/ holds .npz or .npy files, one for each call
  tc quantize model.onnx --data calib/ -o small.onnx --report q.html   a page with the front and what each layer costs
  tc quantize model.onnx --data calib/ -o small.onnx --max-error 0.01  the fastest point with at most 1 % error
  tc quantize model.onnx --data calib/ -o small.onnx --min-speedup 2   the most accurate point twice as fast as f32
  tc quantize model.onnx --data calib/ -o small.onnx --metric top1.py:accuracy   what counts is a function of yours
  tc quantize model.onnx --data calib/ -o small.onnx --state s.jsonl   go on from there after Ctrl-C, with the same command
  tc quantize model.onnx --data calib/ -o small.onnx --keep 'head*'    nodes (or operators) that stay in f32
  tc quantize model.onnx -o small.onnx --mode dynamic               operands quantized as they come: no data needed
  tc quantize model.onnx -o small.onnx --mode weights --bits 4      weights in 4 bits, everything computed in f32

The search guesses on one simulated graph and ends with a front of models that were compiled, compared with f32 and timed in turns; one of
them is written. Without --max-error, --min-metric, --min-speedup or --point that is the fastest whose relative error is at most 0.1, and
0.2 on any input, or, with a metric, that loses at most 1 % of it; one that takes up to 5 % longer if it is more accurate. Where no point in
fewer bits is as near, the model stays in f32. A metric is a function of `predict`, which takes a dict of arrays and returns one; larger is
better. Ctrl-C during the search, or while the front is measured, ends it, and the best so far is written.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="an ONNX file, in f32")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.onnx", help="what is written")
    data = "calibration inputs, a file for each call: .npz by the names of inputs, or .npy for a model of one"
    parser.add_argument("--data", type=Path, metavar="FOLDER", help=data)
    parser.add_argument("--mode", choices=MODES, default="static", help="static: scales from calibration (default); dynamic; weights")
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="write a page with the front, sensitivities and the search")
    group = parser.add_argument_group("search")
    group.add_argument("--budget", default="5m", metavar="TIME", help="time of the search, such as 90s or 10m (default 5m)")
    group.add_argument("--trials", type=int, metavar="N", help="so many guesses at most, instead of a time")
    group.add_argument("--search", choices=ALGORITHMS, default="greedy", help="how guesses are made (default greedy)")
    group.add_argument("--metric", metavar="FILE.py:FUNCTION", help="what counts; by default agreement with the model in f32")
    group.add_argument("--keep", action="append", default=[], metavar="PATTERN", help="nodes or operators to leave in f32, such as 'head*'")
    described = "vnni, vnni_bf16, amx, plain, power_of_two or a file of your own; by default what the target is"
    group.add_argument("--hardware", metavar="NAME|FILE.json", help=described)
    group.add_argument("--state", type=Path, metavar="FILE", help="every trial is written there; the same command goes on from it")
    group.add_argument("--seed", type=int, default=0, help="of all that is drawn by chance (default 0)")
    group = parser.add_argument_group("choice")
    group.add_argument("--max-error", type=float, metavar="E", help="the fastest point with at most this relative error")
    group.add_argument("--min-metric", type=float, metavar="M", help="the fastest point with at least this metric")
    group.add_argument("--min-speedup", type=float, metavar="S", help="the most accurate point that is so many times as fast as f32")
    group.add_argument("--point", type=int, metavar="N", help="the point of this number on the front, from 0, fastest first")
    group = parser.add_argument_group("dynamic and weights")
    group.add_argument("--granularity", choices=("tensor", "row"), help="dynamic: what has one scale (default tensor)")
    group.add_argument("--bits", type=int, choices=(4, 8), help="weights: of a number (default 8)")
    group.add_argument("--block", type=int, metavar="N", help="weights: numbers with one scale (default: 32 with 4 bits, else a channel)")
    group = parser.add_argument_group("compilation")
    group.add_argument("--target", default="native", help="what times are measured on: native (default), x86-64-v3, cpu:fact=value,...")
    group.add_argument("--dims", action="append", default=[], metavar="NAME=N|LO:HI[:MULTIPLE]", help="promises about symbolic dims")
    group.add_argument("--threads", type=int, metavar="N", help=THREADS_HELP)


def execute(args: argparse.Namespace) -> Outcome:
    """Quantize, choose, write."""
    need_model(args.model, "tc quantize", "which has its types already")
    read = {"in the folder of --data" if args.data and args.data.is_dir() else "the file of --data": args.data}
    check_output(args.output, "-o", args.model, read)
    if args.state:
        check_output(args.state, "--state", args.model, {**read, "what -o names": args.output})
    if args.report:
        check_output(args.report, "--report", args.model, {**read, "what -o names": args.output, "what --state names": args.state})
        require_matplotlib()
        if args.mode != "static":
            raise UsageError(f"--report: the mode {args.mode!r} searches nothing that a report could show")
    choice = {"max_error": args.max_error, "min_metric": args.min_metric, "min_speedup": args.min_speedup}
    for name, limit in choice.items():  # before the search
        check_limit(name, limit)
    is_chosen = args.point is not None or any(value is not None for value in choice.values())
    if is_chosen and args.mode != "static":
        raise UsageError(f"--max-error, --min-metric, --min-speedup and --point choose on a front; the mode {args.mode!r} has none")
    if args.point is not None and any(value is not None for value in choice.values()):
        raise UsageError("--point: names the point; --max-error, --min-metric and --min-speedup look for one")
    if args.min_metric is not None and args.metric is None:
        raise UsageError("--min-metric: there is no metric; --metric names one")
    for option, given, mode in (
        *((f"--{name}", getattr(args, name), "static") for name in ("state", "trials", "metric", "data")),
        ("--granularity", args.granularity, "dynamic"),
        ("--bits", args.bits, "weights"),
        ("--block", args.block, "weights"),
    ):
        if given is not None and args.mode != mode:
            raise UsageError(f"{option}: is for the mode {mode!r}, not for {args.mode!r}")
    console = Console(stderr=True)
    with StepDisplay(console, quiet=args.json) as display:
        found = quantize(
            args.model,
            args.data,
            args.mode,
            None if args.metric is None else read_metric(args.metric),
            args.target,
            budget=args.budget,
            trials=args.trials,
            search=args.search,
            hardware=args.hardware,
            keep=args.keep,
            dims={name: tc.Dim(spec.lo, spec.hi, spec.multiple_of) for name, spec in parse_dims(args.dims).items()} or None,
            threads=None if args.threads is None else check_threads(args.threads, "--threads"),
            seed=args.seed,
            state=args.state,
            granularity=args.granularity or "tensor",
            bits=args.bits or 8,
            block=args.block,
            callback=display.on_step,
        )
    if args.report:  # before anything that may be refused: what was found is shown in any case
        found.report(args.report)
    if is_chosen:
        found = found.choose(args.point, **choice)
        if args.report:
            found.report(args.report)
    found.save(args.output)
    return Outcome(_as_data(args, found), lambda out: _show(out, args, found))


def read_metric(text: str) -> Callable[[Any], float]:
    """The function that `file.py:name` says; UserError where there is none."""
    file, colon, name = text.rpartition(":")
    path = Path(file)
    if not colon or path.suffix != ".py":
        raise UsageError(f"--metric {text}: must be of the form file.py:function")
    if not path.is_file():
        raise UsageError(f"--metric {text}: there is no file {file!r}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"--metric {text}: {file} raised {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"--metric {text}: {file} has no function {name!r}")
    return function  # type: ignore[no-any-return]


class StepDisplay:
    """A progress bar on a terminal; a line for each stage elsewhere; nothing when `quiet`."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console, self._quiet = console, quiet
        ends = TextColumn("{task.description}"), TextColumn("{task.fields[text]}")
        columns = (ends[0], BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), ends[1])
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal and not quiet else None
        self._task: TaskID | None = None
        self._stage = ""

    def __enter__(self) -> StepDisplay:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_step(self, step: QuantizationStep) -> None:
        """Show how far it is."""
        is_new, self._stage = step.stage != self._stage, step.stage
        if self._bar is None:
            if is_new and not self._quiet:
                self._console.print(step.stage, highlight=False, markup=False)
            return
        if self._task is None or is_new:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(step.stage, total=step.total or None, text="")
        self._bar.update(self._task, completed=step.done, total=step.total or None, text=step.text.replace("[", "\\["))


# -- at the end


def _as_data(args: argparse.Namespace, found: QuantizedModel) -> dict[str, Any]:
    return {
        "model": str(args.model),
        "output": str(args.output),
        "mode": found.mode,
        "hardware": found.hardware,
        "ended": found.ended,
        "trials": len(found.trials),
        "bytes": {"before": args.model.stat().st_size, "after": args.output.stat().st_size},
        "points": [_point_data(point, found) for point in found.points],
        "notes": list(found.notes),
    }


def _point_data(point: FrontPoint, found: QuantizedModel) -> dict[str, Any]:
    quality = point.quality
    return {
        "products": point.label,
        "error": quality.error,
        "cosine": quality.cosine,
        "metric": None if math.isnan(quality.metric) else quality.metric,
        "seconds": None if math.isnan(point.seconds) else point.seconds,
        "ratio_to_f32": None if math.isnan(point.ratio) else point.ratio,
        "predicted_seconds": point.predicted,
        "on_front": point in found.front,
        "chosen": point is found.point,
    }


def _show(console: Console, args: argparse.Namespace, found: QuantizedModel) -> None:
    say = lambda text: console.print(text, highlight=False, markup=False)  # noqa: E731
    if found.points:
        has_metric = any(not math.isnan(p.quality.metric) for p in found.points)
        columns = ("", "products in", "error ", *(("metric ",) if has_metric else ()), "a call ", "of f32 ", "front ")
        rows = [
            (
                "*" if point is found.point else "", point.label, f"{point.quality.error:.3%}",
                *((f"{point.quality.metric:.4g}",) if has_metric else ()),
                *(("", "") if math.isnan(point.ratio) else (format_seconds(point.seconds), f"{1 / point.ratio:.2f}x as fast")),
                str(found.front.index(point)) if point in found.front else "",
            )
            for point in found.points
        ]  # fmt: skip
        console.print(make_table("", columns, rows))
        why = {"budget": "the budget was used up", "interrupted": "interrupted", "finished": "nothing better was found"}[found.ended]
        say(f"{len(found.trials)} trials ({why}), for: {found.hardware}")
    for note in found.notes:
        say(f"note: {note}")
    before, after = args.model.stat().st_size, args.output.stat().st_size
    say(f"written: {args.output} ({format_bytes(after)}, was {format_bytes(before)})")
    if args.report:
        say(f"report: {args.report}")
    if found.ended == "interrupted" and args.state:
        say("the same command goes on from here")
