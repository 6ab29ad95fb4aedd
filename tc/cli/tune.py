"""`tc tune`: search for faster schedules of a model's kernels, under a time budget."""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

import tc
from tc.autotune.events import (
    BatchMeasured,
    Event,
    FormTried,
    TaskStarted,
    TaskStopped,
    TuningFinished,
    TuningStarted,
    WinnerChecked,
)
from tc.autotune.job_runner import JobFolderRunner
from tc.autotune.rank import RankedTask, rank_model
from tc.autotune.report.page import GainVerdict, write_report
from tc.autotune.report.plots import require_matplotlib
from tc.autotune.tuning import Tuned, default_database, parse_budget, select_tasks, tune
from tc.cli.options import THREADS_HELP, add_precision_arguments, need_model, parse_dims, precision_options
from tc.cli.outcome import Outcome, check_output, format_seconds, make_table, write_file
from tc.errors import UsageError
from tc.records.database import Database
from tc.records.record import target_key
from tc.target import Target, check_threads

EPILOG = """\
examples:
  tc tune model.onnx                                  ten minutes, records in the user's data folder
  tc tune model.onnx --budget 30m --db tuned.db       longer, records in a file of your own
  tc tune model.onnx --db tuned.db --resume           go on where an earlier run ended
  tc tune model.onnx --tasks 'conv*' --trials 200     only some kernels, at most 200 trials each
  tc tune model.onnx --size batch=4 --report out.html what symbolic dims are measured with; a page with the curves
  tc run model.onnx --tune tuned.db                   use what was found; so does tc.compile(model, tune="tuned.db")
  tc tune model.onnx --target opencl                  on the OpenCL device of this machine; cuda: on its NVIDIA GPU
  tc tune model.onnx --target cuda:sm_90a --jobs DIR  compile here, measure where `tc measure DIR` runs
  tc tune model.onnx --target cuda:sm_90 --rank       what a model of the device predicts, without one; nothing is measured or kept

Every batch is written to the database before the next one is measured, so stopping (Ctrl-C) keeps all that was found. What the
database holds is not measured again. A schedule is only used when it was measured a second time beside the best one before it
and its results agree with the reference.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="an ONNX file")
    parser.add_argument("--budget", default="10m", metavar="TIME", help="wall time of the search, such as 90s, 10m, 1h30m (default 10m)")
    parser.add_argument("--trials", type=int, metavar="N", help="at most so many trials per kernel")
    parser.add_argument(
        "--tasks", action="append", default=[], metavar="PATTERN", help="only kernels or nodes whose name fits, such as 'conv*'"
    )
    parser.add_argument("--db", type=Path, metavar="FILE", help=f"the database, made or extended (default {default_database()})")
    parser.add_argument("--resume", action="store_true", help="the database must be there: go on with it")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn by chance (default 0)")
    parser.add_argument("--rank", action="store_true", help="order schedules for a device, here or not, by predictions; keep nothing")
    parser.add_argument(
        "--jobs", type=Path, metavar="FOLDER", help="let other machines measure, through a folder of jobs (tc measure FOLDER)"
    )
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="write a page with curves, schedules and failures")
    group = parser.add_argument_group("compilation")
    group.add_argument("--target", default="native", help="native (default), x86-64-v2, -v3, -v4, cpu:fact=value,..., opencl, cuda")
    group.add_argument("--threads", type=int, metavar="N", help=THREADS_HELP)
    facts, sizes = "what is promised about symbolic dims, as for tc compile", "what a symbolic dim is measured with, such as batch=4"
    group.add_argument("--dims", action="append", default=[], metavar="NAME=N|LO:HI[:MULTIPLE]", help=facts)
    add_precision_arguments(group)
    group.add_argument("--size", action="append", default=[], metavar="NAME=N", help=sizes)


def execute(args: argparse.Namespace) -> Outcome:
    """Tune, showing what happens; the outcome is what was found."""
    parse_budget(args.budget)
    threads = None if args.threads is None else check_threads(args.threads, "--threads")
    need_model(args.model, "tc tune", "whose schedules are chosen already")
    database = args.db or default_database()
    if args.report:  # before the budget is spent
        require_matplotlib()
        check_output(args.report, "--report", args.model, {"the database": database})
    if args.resume and not database.is_file():
        raise UsageError(f"--resume: there is no database {str(database)!r}; without --resume it is made")
    dims = {name: tc.Dim(spec.lo, spec.hi, spec.multiple_of) for name, spec in parse_dims(args.dims).items()}
    if args.rank:
        return _rank(args, dims)
    console = Console(stderr=True)
    show = Progress(console, quiet=args.json)
    with show:
        found = tune(
            args.model,
            args.budget,
            target=args.target,
            dims=dims or None,
            sizes={name: spec.lo for name, spec in parse_dims(args.size, "--size").items()},
            threads=threads,
            database=database,
            tasks=args.tasks,
            trials=args.trials,
            seed=args.seed,
            callback=show.on_event,
            **precision_options(args),
            runner=None if args.jobs is None else JobFolderRunner(args.jobs, patience_seconds=parse_budget(args.budget)),
        )
    if args.report:
        _write_report(args, found, show.events)
    return Outcome(_as_data(args, found, show.events), lambda out: _show_end(out, args, found, show.events))


def _rank(args: argparse.Namespace, dims: dict[str, tc.Dim]) -> Outcome:
    """What is predicted of schedules for a device."""
    if args.report or args.resume or args.db:
        raise UsageError("--rank: nothing is measured, so there is no database and no report")
    sizes = {name: spec.lo for name, spec in parse_dims(args.size, "--size").items()}
    ranked = rank_model(
        args.model,
        Target.parse(args.target),
        parse_budget(args.budget),
        dims=dims or None,
        sizes=sizes,
        select=lambda tasks: select_tasks(tasks, args.tasks),
        trials=args.trials,
        seed=args.seed,
    )
    data = {"model": str(args.model), "target": args.target, "measured": False, "tasks": [_ranked_data(each) for each in ranked]}
    return Outcome(data, lambda out: _show_ranked(out, ranked))


def _ranked_data(ranked: RankedTask) -> dict[str, Any]:
    task = ranked.task
    best = [each.as_data() for each in ranked.best]
    return {"task": task.name, "calls": task.calls, "scored": ranked.scored, "default": ranked.default.as_data(), "best": best}


def _show_ranked(console: Console, ranked: list[RankedTask]) -> None:
    rows = []
    for each in ranked:
        for which, found in (("default", each.default), *((f"{k + 1}.", best) for k, best in enumerate(each.best))):
            longest = max(found.launches, key=lambda launch: launch.seconds)
            registers = ", ".join(str(f.registers) for f in found.resources or ()) or f"~{longest.work.registers}"
            point = " ".join(f"{name.rpartition('/')[2]}={value}" for name, value in found.candidate.point)
            predicted = format_seconds(found.seconds)
            rows.append((each.task.name, which, predicted, longest.bound, longest.resident, registers, longest.work.shared_bytes, point))
    columns = ("task", "schedule", "predicted ", "bound by", "blocks ", "registers ", "shared ", "point")
    console.print(make_table("", columns, rows))
    _printer(console)("predicted, not measured: nothing was written, and tc compile uses none of it")


def _write_report(args: argparse.Namespace, found: Tuned, events: list[Event]) -> None:
    target = Target.parse(args.target)
    threads = args.threads or target.cores
    keys = {variant.key for task in found.tasks for variant in task.variants.values()}
    records = [r for r in Database(found.database).records(target=target_key(target), threads=threads) if r.workload in keys]
    write_file(
        args.report,
        lambda path: write_report(
            path,
            model=str(args.model),
            events=events,
            tasks=found.tasks,
            records=records,
            importance=found.result.importance,
            in_model=found.in_model,
            verdict=GainVerdict(found.ratio, found.is_used),
        ),
    )


# -- while it runs


@dataclasses.dataclass
class _Row:
    """What is shown of a task."""

    default_seconds: float = math.nan
    ratio: float = 1.0
    verified: float = 1.0
    trials: int = 0
    errors: Counter[str] = dataclasses.field(default_factory=Counter)
    gain_ms: float = math.nan
    state: str = "waiting"


FIRST = "comparing forms of the graph"
"""What is done before the search."""

LAST = "the best schedules run inside the model"
"""What is done when the search is over."""


class Progress:
    """A live table on a terminal; plain lines elsewhere; nothing when `quiet`."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self.events: list[Event] = []
        self._console, self._quiet = console, quiet
        self._rows: dict[str, _Row] = {}
        self._budget: float | None = None
        self._start = time.monotonic()
        self._is_over = False
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4) if console.is_terminal and not quiet else None

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def on_event(self, event: Event) -> None:
        """Take note, and show it."""
        self.events.append(event)
        self._note(event)
        if self._live is None and not self._quiet:
            line = _line(event)
            if line:
                self._console.print(line, highlight=False, markup=False)

    def _note(self, event: Event) -> None:
        match event:
            case TuningStarted(tasks=tasks, budget_seconds=budget):
                self._rows = {name: _Row() for name in tasks}
                self._budget = budget
                self._start = time.monotonic()
            case TaskStarted(task=task, default_seconds=seconds, resumed_trials=trials):
                row = self._rows[task]
                row.default_seconds, row.trials, row.state = seconds, trials, "tuning"
            case BatchMeasured(task=task):
                row = self._rows[task]
                row.trials, row.ratio, row.gain_ms, row.state = event.trials, event.best_ratio, event.predicted_gain_ms, "tuning"
                row.errors.update(dict(event.errors))
            case WinnerChecked(task=task, problem=None, ratio=ratio):
                self._rows[task].verified = min(ratio, 1.0)
            case TaskStopped(task=task, reason=reason):
                self._rows[task].state = reason
            case TuningFinished():
                self._is_over = True

    def _render(self) -> Group:
        elapsed = time.monotonic() - self._start
        left = "" if self._budget is None else f", {format_seconds(max(self._budget - elapsed, 0.0))} left"
        left = f": {LAST}" if self._is_over else left
        done = f"{len(self._rows)} tasks" if self._rows else FIRST
        head = Text(f"{done}, {format_seconds(elapsed)}{left}", style="bold")
        table = make_table("", ("task", "default ", "best ", "verified ", "trials ", "failed ", "may save ", "state"), ())
        worth = sorted(self._rows.items(), key=lambda item: (item[1].state == "waiting", -(item[1].default_seconds or 0.0)))
        room = max(self._console.height - 4, 5)
        for name, row in worth[:room]:
            table.add_row(*_cells(name, row))
        if len(worth) > room:
            table.add_row(f"... {len(worth) - room} more")
        return Group(head, table)


def _cells(name: str, row: _Row) -> tuple[str, ...]:
    known = not math.isnan(row.default_seconds)
    return (
        name.replace("[", "\\["),
        format_seconds(row.default_seconds) if known else "",
        _gain(row.ratio) if known else "",
        _gain(row.verified) if row.verified < 1 else "",
        str(row.trials) if row.trials else "",
        ", ".join(f"{count} {kind}" for kind, count in row.errors.most_common(2)),
        "" if math.isnan(row.gain_ms) else f"{row.gain_ms:.3f} ms",
        row.state,
    )


def _form(form: FormTried) -> str:
    what = f"{form.question} = {form.answer} at {form.node}"
    if form.ratio is None:
        return f"{what}: not kept: {form.problem}"
    return f"{what}: {_gain(form.ratio.median)} [{_gain(form.ratio.high)}, {_gain(form.ratio.low)}]{', kept' if form.is_kept else ''}"


def _gain(ratio: float) -> str:
    """How many times faster, of a ratio to the default."""
    return f"{1 / ratio:.2f}x" if 0 < ratio < math.inf else "-"


def _line(event: Event) -> str:
    match event:
        case FormTried():
            return f"graph: {_form(event)}"
        case TuningStarted(tasks=tasks, budget_seconds=budget):
            return f"{len(tasks)} tasks" + ("" if budget is None else f", {format_seconds(budget)}")
        case TaskStarted():
            resumed = f", {event.resumed_trials} trials known" if event.resumed_trials else ""
            return f"{event.task}: {format_seconds(event.default_seconds)} untuned, about {event.space_size:.1e} schedules{resumed}"
        case BatchMeasured():
            failed = ", ".join(f"{count} {kind}" for kind, count in event.errors)
            return (
                f"{event.task}: {event.trials} trials, best {_gain(event.best_ratio)}"
                + (f", may save {event.predicted_gain_ms:.3f} ms more" if not math.isnan(event.predicted_gain_ms) else "")
                + (f", failed: {failed}" if failed else "")
            )
        case WinnerChecked(problem=None):
            return f"{event.task}: verified {_gain(event.ratio)} [{_gain(event.high)}, {_gain(event.low)}]"
        case WinnerChecked():
            return f"{event.task}: not kept: {event.problem}"
        case TaskStopped():
            return f"{event.task}: {event.reason}"
        case TuningFinished():
            return f"done after {format_seconds(event.seconds)}: {event.reason}; {LAST}"
    return ""


# -- at the end


def _as_data(args: argparse.Namespace, found: Tuned, events: list[Event]) -> dict[str, Any]:
    result = found.result
    return {
        "model": str(args.model),
        "database": str(found.database),
        "reason": result.reason,
        "default_ms": result.default_ms,
        "tuned_ms": result.tuned_ms,
        "remaining_ms": result.remaining_ms,
        "report": None if args.report is None else str(args.report),
        "model_ratio": None if found.ratio is None else dataclasses.asdict(found.ratio),
        "is_used": found.is_used,
        "gained": found.is_used and found.ratio is not None,
        "dropped": list(found.dropped),
        "forms": [
            {
                "question": form.question,
                "node": form.node,
                "answer": form.answer,
                "ratio": None if form.ratio is None else dataclasses.asdict(form.ratio),
                "kept": form.is_kept,
                "problem": form.problem,
            }
            for form in found.forms
        ],
        "in_model": [
            {"kernel": each.kernel, "alone": each.alone, "chosen": each.chosen, "seconds": dict(each.seconds)} for each in found.in_model
        ],
        "skipped": [{"kernel": name, "reason": why} for name, why in found.skipped],
        "tasks": [
            {
                "task": task.name,
                "calls": task.calls,
                "default_seconds": task.default_seconds,
                "best_seconds": task.best_seconds,
                "ratio": task.ratio,
                "variant": task.variant,
                "trials": task.trials,
                "failures": dict(task.failures),
            }
            for task in result.tasks
        ],
    }


def _show_end(console: Console, args: argparse.Namespace, found: Tuned, events: list[Event]) -> None:
    result = found.result
    tried = [task for task in result.tasks if task.trials]
    rows = []
    for task in sorted(tried, key=lambda t: -(t.default_seconds - t.best_seconds) * t.calls):
        saved = (task.default_seconds - task.best_seconds) * task.calls * 1e3
        name = task.name if task.variant in ("", "default") else f"{task.name}, {task.variant}"
        times = (format_seconds(task.default_seconds), format_seconds(task.best_seconds), _gain(task.ratio))
        failed = sum(count for _, count in task.failures)
        rows.append((name, task.calls, *times, f"{saved:.3f} ms", task.trials, failed or ""))
    console.print(make_table("", ("task", "calls ", "untuned ", "tuned ", "gain ", "saves ", "trials ", "failed "), rows))
    if len(tried) < len(result.tasks):
        console.print(f"{len(result.tasks) - len(tried)} more kernels were not worth a trial", highlight=False, markup=False)
    say = _printer(console)
    say(f"kernels: {result.default_ms:.3f} ms a run untuned, {result.tuned_ms:.3f} ms tuned ({result.reason})")
    if found.ratio is None:
        say("no kernel got another schedule: the whole model gained nothing")
    else:
        low, high = _gain(found.ratio.high), _gain(found.ratio.low)
        say(f"the whole model, in turns: {_gain(found.ratio.median)} as fast [{low}, {high}]")
    if not found.is_used:
        say("the whole model gained nothing: it compiles as it did before; more time may still find something")
    say(f"as much time again is expected to save {result.remaining_ms:.3f} ms a run")
    others = [each.kernel for each in found.in_model if each.chosen != each.alone]
    if others:
        names = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        say(f"inside the model another schedule is best than alone: {names}")
    if found.forms:
        kept = [_form(form) for form in found.forms if form.is_kept]
        say(f"other forms of the graph: {len(found.forms)} tried, {'; '.join(kept) or 'none is faster'}")
    for name in found.dropped:
        say(f"taken back, for the sake of the results: {name}")
    for name, why in found.skipped:
        say(f"left alone: {name}: {why}")
    say(f"records: {found.database}")
    say(f"use them: tc run {args.model} --tune {found.database}")
    if args.report:
        say(f"report: {args.report}")


def _printer(console: Console) -> Any:
    return lambda text: console.print(text, highlight=False, markup=False)
