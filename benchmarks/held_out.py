"""Shapes that no constant was tuned on: the default schedule against the best that a search finds.

    python -m benchmarks.held_out --seed 1                      draws about ninety kernels, tunes each with 100 trials; an hour
    python -m benchmarks.held_out --seed 1 --retime             times the defaults and the winners that are kept once more
    python -m benchmarks.held_out --seed 1 --versus ../old      lets the tuner of another version search the same kernels

writes HELD_OUT.json and HELD_OUT.md beside this file after every kernel. A search whose time was over before its trials were made goes on
when the same is asked again, others are not made again unless `--again`; winners are kept. Of a model with several kernels the one that
takes longest is tuned. Its results, and those of every winner, are compared with onnxruntime's
or the reference interpreter's. Winners are timed again in turns with the default, the best of them once more: that is its ratio.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tc
from benchmarks import drawn_kernels, held_out_report
from benchmarks.drawn_kernels import Drawn
from benchmarks.report import describe_machine
from tc.autotune.events import Event, TaskStopped
from tc.autotune.measure import LocalRunner
from tc.autotune.runner import Job, Measurement
from tc.autotune.task import Task
from tc.autotune.tasks import extract_tasks
from tc.autotune.tuner import Tuner
from tc.check.compare import differing_result, sized_inputs
from tc.errors import ScheduleError
from tc.interp.graph import run_function
from tc.measure.runtimes import reference_outputs
from tc.records.database import Database
from tc.records.record import Record
from tc.schedule.step import Trace
from tc.stages import interpret
from tc.target import Target, native_target

FOLDER = Path(__file__).parent

WINNERS, KEPT = 4, 8
"""Schedules of a search that are timed again, and of all searches that are kept."""

AGAIN_EFFORT, FINAL_EFFORT = 6.0, 24.0
"""How much longer than a trial they are timed, and the best of them at last."""

LEAST_GAIN = 0.99
"""What looks no better than this is not timed again."""

PACKAGES = ("tc", "llvmlite", "numpy")


@dataclass(frozen=True)
class Winner:
    """A schedule that a search found: of which variant, its trace as text, its answers, and the version whose tuner it was."""

    variant: str
    trace: str
    point: tuple[tuple[str, Any], ...]
    tuner: str = "new"


def one_core() -> Target:
    return dataclasses.replace(native_target(), cores=1)


def wrong_result(drawn: Drawn) -> str:
    """How the model's results differ from onnxruntime's, or the interpreter's where that cannot run it; "" when they do not."""
    found = tc.compile(drawn.model, threads=1).run(drawn.arrays)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(drawn.model, path)
        try:
            expected = dict(zip(found, reference_outputs(path, drawn.arrays), strict=True))
        except Exception:  # whatever a peer raises at types that it does not have
            expected = interpret(drawn.model, drawn.arrays)
    return differing_result(expected, found) or ""


def heaviest_task(drawn: Drawn, runner: LocalRunner) -> tuple[Task, Measurement]:
    """The kernel that takes longest, and what its default takes."""
    tasks = extract_tasks(drawn.model, one_core(), sizes=drawn.sizes).tasks
    timed = runner.measure([job_of(task, Winner(*default_of(task))) for task in tasks])
    return max(zip(tasks, timed, strict=True), key=lambda pair: pair[0].calls * pair[1].reference_seconds)


def default_of(task: Task) -> tuple[str, str, tuple[tuple[str, Any], ...]]:
    """Variant, trace and answers of what compiles untuned."""
    default = task.space().default()
    return default.variant, default.trace.to_json(), default.point


def job_of(task: Task, winner: Winner, effort: float = 1.0) -> Job:
    """To time a schedule in turns with the default."""
    variant, trace, _ = default_of(task)
    return Job(task.workload(winner.variant), winner.trace, trace, task.workload(variant), effort)


def search(task: Task, runner: LocalRunner, trials: int, seconds: float, seed: int) -> tuple[list[Winner], int, bool]:
    """What a search found that is faster than the default and right, the best first; how many trials there were; whether those were all."""
    stops: list[TaskStopped] = []

    def note(event: Event) -> None:
        stops.extend([event] if isinstance(event, TaskStopped) else [])

    with tempfile.TemporaryDirectory() as folder:
        database = Database(Path(folder) / "records.jsonl")
        bounds: dict[str, Any] = {"trials_per_task": trials, "budget_seconds": seconds, "seed": seed}
        result = Tuner([task], runner, database, threshold=0.0, transfer=False, on_event=note, **bounds).run()
        records = list(database.records())
    winners = [Winner(record.variant, record.trace, record.point) for record in best_records(records) if record.verified]
    return winners, result.tasks[0].trials, bool(stops)


def best_records(records: Iterable[Record]) -> list[Record]:
    """Faster than the default by what was last measured of them, the best first."""
    last = {record.schedule_key: record for record in records}
    return sorted((record for record in last.values() if record.ratio < LEAST_GAIN), key=lambda record: record.ratio)


_SEARCH = """
import sys, tc
model, budget, trials, database, sizes = sys.argv[1:]
sizes = {name: int(size) for name, size in (item.split("=") for item in sizes.split(",") if item)}
tc.tune(model, budget, trials=int(trials), database=database, sizes=sizes, threads=1)
"""


def search_elsewhere(drawn: Drawn, tree: Path, trials: int, seconds: float, folder: Path) -> list[Record]:
    """The records of a search by the version of `tc` in `tree`; none where it finds nothing to tune."""
    path, database = folder / "model.onnx", folder / "elsewhere.jsonl"
    onnx.save(drawn.model, path)
    sizes = ",".join(f"{name}={size}" for name, size in drawn.sizes.items())
    code = f"import sys; sys.path.insert(0, {str(tree.resolve())!r})\n{_SEARCH}"
    command = [sys.executable, "-c", code, str(path), f"{seconds}s", str(trials), str(database), sizes]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"  {tree}: {done.stderr.strip().splitlines()[-1]}", flush=True)
    return list(Database(database).records()) if database.is_file() else []


def replayed(task: Task, records: Sequence[Record], runner: LocalRunner) -> list[Winner]:
    """Those of another version's best schedules that are legal here, and right."""
    found: list[Winner] = []
    for record in best_records(records):
        for variant in [name for name in (record.variant, *task.variants) if name in task.variants]:
            winner = Winner(variant, record.trace, record.point, "old")
            if len(found) < WINNERS and is_legal(task, winner) and differs(task, winner, runner) is None:
                found.append(winner)
                break
    return found


def is_legal(task: Task, winner: Winner) -> bool:
    """Whether the schedule can still be made."""
    try:
        Trace.from_json(winner.trace).apply(task.variants[winner.variant].func)
    except ScheduleError:
        return False
    return True


def differs(task: Task, winner: Winner, runner: LocalRunner) -> str | None:
    """What is wrong with the results of a schedule, by the reference in numpy."""
    variant = task.variants[winner.variant]
    main = variant.reference.main
    drawn = sized_inputs(main, variant.sizes, np.random.default_rng(0))
    inputs = [variant.literals.get(place, value) for place, value in enumerate(drawn)]
    expected = [np.asarray(x) for x in run_function(variant.reference, main.name, inputs, dims=variant.sizes)]
    return runner.check(job_of(task, winner), inputs, expected)


def time_again(task: Task, winners: Iterable[Winner], runner: LocalRunner) -> tuple[list[Winner], Measurement | None]:
    """Those of some schedules that can still be made, the best in turns with the default first, and its last time, if there is one."""
    different = {(winner.variant, winner.trace): winner for winner in winners if winner.variant in task.variants}
    legal = [winner for winner in different.values() if is_legal(task, winner)]
    timed = runner.measure([job_of(task, winner, AGAIN_EFFORT) for winner in legal])
    pairs = sorted(zip(legal, timed, strict=True), key=lambda pair: pair[1].ratio)
    found = [winner for winner, first in pairs if first.error is None][:KEPT]
    last = runner.measure([job_of(task, found[0], FINAL_EFFORT)])[0] if found else None
    return (found, last) if last is not None and last.error is None else ([], None)


def measure(drawn: Drawn, runner: LocalRunner, row: dict[str, Any] | None, args: argparse.Namespace) -> dict[str, Any]:
    """The row of one kernel. `row`: what is known of it."""
    task, default = heaviest_task(drawn, runner)
    variant, _, point = default_of(task)
    known = [Winner(w["variant"], w["trace"], w["point"], w["tuner"]) for w in row["winners"]] if row else []
    trials, wrong, is_done = (row["trials"], row["wrong"], row["is_done"]) if row else ({}, "", False)
    if args.versus is not None:
        with tempfile.TemporaryDirectory() as folder:
            records = search_elsewhere(drawn, args.versus, args.trials, args.seconds, Path(folder))
        known += replayed(task, records, runner)
        trials = {**trials, "old": len({record.schedule_key for record in records})}
    elif not args.retime:
        wrong, made = wrong_result(drawn), trials.get("new", 0)
        wanted = args.trials - made if made < args.trials - 1 else args.trials
        winners, count, is_done = search(task, runner, wanted, args.seconds, made)
        known += winners[:WINNERS]
        trials = {**trials, "new": made + count}
    found, timed = time_again(task, known, runner)
    best = found[0] if found else None
    return {
        "seed": args.seed,
        "class": drawn.kind,
        "name": drawn.name,
        "shape": drawn.shape,
        "sizes": dict(drawn.sizes),
        "kernel": task.name,
        "rule": task.space().default().rule,
        "is_open": len(task.variants) > 1 or bool(point),
        "wrong": wrong,
        "trials": trials,
        "is_done": is_done,
        "default_seconds": default.reference_seconds,
        "ratio": [1.0, 1.0, 1.0] if timed is None else [x / timed.reference_seconds for x in (timed.seconds, timed.low, timed.high)],
        "tuner": best.tuner if best else "",
        "differing": _differing(dict(point), variant, best) if best else {},
        "winners": [dataclasses.asdict(winner) for winner in found],
        **describe_machine(),
        "features": ",".join(one_core().features),
        "versions": {name: metadata.version(name) for name in PACKAGES if name != "tc"} | {"tc": tc.__version__},
    }


def _differing(default: Mapping[str, Any], variant: str, best: Winner) -> dict[str, list[Any]]:
    """The answers of the winner that are not the default's: default, winner."""
    answers = dict(best.point)
    names = [name for name in {**default, **answers} if _plain(default.get(name)) != _plain(answers.get(name))]
    found = {name: [_plain(default.get(name)), _plain(answers.get(name))] for name in names}
    return ({"variant": [variant, best.variant]} if variant != best.variant else {}) | found


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def run(args: argparse.Namespace, keep: Callable[[], None], rows: list[dict[str, Any]]) -> None:
    """Measure what is not known yet, or what is known again; `rows` is brought up to date after each kernel."""
    wanted = [each for each in drawn_kernels.names() if not args.only or any(word in "/".join(each) for word in args.only)]
    with LocalRunner(builders=args.jobs) as runner:
        for kind, name in wanted[: args.most]:
            drawn = drawn_kernels.draw(kind, name, args.seed)
            place = next((k for k, r in enumerate(rows) if (r["seed"], r["class"], r["name"]) == (args.seed, kind, name)), None)
            old = rows[place] if place is not None and rows[place]["shape"] == drawn.shape else None
            is_known = old is not None and (old["is_done"] if args.versus is None else "old" in old["trials"])
            if (is_known and not (args.again or args.retime)) or (old is None and args.retime):
                continue
            row = measure(drawn, runner, old, args)
            if place is None:
                rows.append(row)
            else:
                rows[place] = row
            keep()
            print(held_out_report.as_line(row), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0, help="the most that a search may take")
    parser.add_argument("--jobs", type=int, default=2, help="processes that build candidates")
    parser.add_argument("--only", nargs="+", default=(), help="parts of class/name")
    parser.add_argument("--most", type=int, help="so many kernels")
    parser.add_argument("--retime", action="store_true", help="search nothing, time what was found again")
    parser.add_argument("--again", action="store_true", help="search again what is known")
    parser.add_argument("--versus", type=Path, metavar="TREE", help="a folder that holds another package tc, whose tuner searches")
    parser.add_argument("--output", type=Path, default=FOLDER)
    args = parser.parse_args(arguments)
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "HELD_OUT.json"
    rows = json.loads(path.read_text())["rows"] if path.is_file() else []
    run(args, lambda: held_out_report.write(path, rows), rows)
    held_out_report.write(path, rows)


if __name__ == "__main__":
    main()
