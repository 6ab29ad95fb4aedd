"""Tune a model: its tasks, a tuner, a database, and the whole model measured and compared at the end."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from tc.autotune.events import Event, FormTried
from tc.autotune.in_model.graph_search import search_forms
from tc.autotune.in_model.outcome import InModelResult
from tc.autotune.in_model.selection import select_in_model
from tc.autotune.measure import LocalRunner, refuse_foreign
from tc.autotune.runner import Runner
from tc.autotune.task import Task
from tc.autotune.tasks import measured_sizes, tasks_of
from tc.autotune.tuner import Tuner, TuningResult
from tc.check.compare import differing_result, sized_inputs
from tc.compiler import check_words, compile_model
from tc.errors import TcError, TuningError, UserError
from tc.frontend.dims import Dim, checked_dims
from tc.frontend.registry import Model, check_model, import_model
from tc.frontend.signature import require_numbers
from tc.measure.harness import Plan, Ratio, time_interleaved
from tc.passes.pipeline import PreparedModel, lay_out, lower_model, simplify_model
from tc.precision.choose import prepare_in
from tc.precision.request import Calibration, PrecisionRequest, checked_precision
from tc.records.apply import TunedSchedules
from tc.records.database import Database
from tc.records.record import DEFAULT, SCHEDULE, Choice, place_of, target_key, threads_of
from tc.runtime.module import CompiledModule
from tc.schedule.knobs import Value, take_default
from tc.target import Target, check_threads

_BUDGET = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")

IN_MODEL_SHARE = 0.05
"""Of the budget: how long the model runs with the best schedules of each kernel."""

FORMS_SHARE = 0.05
"""Of the budget: how long other forms of the graph are tried, before the kernels of the best one are tuned."""

LOOSE_TILE = 4
"""Winograd tiles from this size on change the rounding most: they go when the whole model's results do not agree."""


@dataclass(frozen=True)
class Tuned:
    """What came of tuning a model.

    `ratio`: the whole model's seconds tuned over untuned, taken in turns; None when nothing was found or it was not measured.
    `skipped`: kernels that were left alone, with the reason. `dropped`: decisions that the whole model's results spoke against.
    `in_model`: how the best schedules of each kernel did inside the model. `forms`: other forms of the graph that were tried.
    `is_used`: whether the model compiles with what was found; not where it was no faster.
    """

    database: Path
    result: TuningResult
    tasks: tuple[Task, ...]
    ratio: Ratio | None
    skipped: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()
    in_model: tuple[InModelResult, ...] = ()
    forms: tuple[FormTried, ...] = ()
    is_used: bool = True


def parse_budget(text: str | float) -> float:
    """Seconds of a time budget: "10m", "90s", "1h30m", "600" or a number. UserError for anything else, or for none at all."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        seconds = float(text)
    else:
        matched = _BUDGET.fullmatch(text.strip()) if isinstance(text, str) and text.strip() else None
        if matched is None:
            raise TuningError(f"budget: {text!r} is not a time such as 10m, 90s or 1h30m")
        hours, minutes, rest = (float(part or 0) for part in matched.groups())
        seconds = 3600 * hours + 60 * minutes + rest
    if not 0 < seconds < float("inf"):
        raise TuningError(f"budget: {text} leaves no time to measure anything")
    return seconds


def is_budget(text: object) -> bool:
    """Whether this is written like a time budget, and not like a file."""
    return isinstance(text, str) and bool(text.strip()) and _BUDGET.fullmatch(text.strip()) is not None


def default_database() -> Path:
    """Where records go when no file is named."""
    return Path(platformdirs.user_data_dir("tc")) / "tuning.jsonl"


def tune(
    model: Model,
    budget: str | float = "10m",
    *,
    target: str | Target = "native",
    dims: Mapping[str, Dim | int] | None = None,
    sizes: Mapping[str, int] | None = None,
    threads: int | None = None,
    database: str | os.PathLike[str] | None = None,
    tasks: Sequence[str] = (),
    trials: int | None = None,
    seed: int = 0,
    callback: Callable[[Event], None] | None = None,
    runner: Runner | None = None,
    precision: str | PrecisionRequest = "f32",
    calibration: Calibration | None = None,
) -> Tuned:
    """Search for faster schedules of a model's kernels, and keep what was measured in a database.

    budget: wall time, such as "10m", of the search: first among forms of the graph, unless `tasks` are named, then among schedules.
        Loading the model, running it with the best schedules of each kernel to see which of them are best inside it (a twentieth of the
        budget), and the comparison at the end come on top.
    dims: promises about symbolic dims, as in `tc.compile`; sizes: what they are measured with, by name.
    database: a file, made or extended; what it holds is not measured again. By default `default_database()`.
    tasks: patterns such as "conv*" for names of kernels or nodes; all by default. trials: at most so many per task.
    precision, calibration: as in `tc.compile`, whose kernels are tuned.
    callback: told every event of the search. runner: what measures; the cores of this machine by default.

    `tc.compile(model, tune=database)` then uses the best verified schedules; where the whole model is no faster with them, what it used
    before. Records that were made for another target or number of threads are left alone.
    On a device, schedules are searched for, and not forms of the graph; which of them are best inside the model is not asked, for the
    clock around launches is the host's.
    Raises UserError when there is nothing to tune, the database cannot be used, or this machine has no such device.
    """
    seconds = parse_budget(budget)
    check_model(model)
    dims, sizes = checked_dims(dims), checked_sizes(sizes)
    asked = checked_precision(precision, calibration)
    _check_search(tasks, trials, seed, database, callback)
    chosen = Target.of(target)
    chosen = chosen if threads is None else dataclasses.replace(chosen, cores=check_threads(threads))
    path = Path(database) if database is not None else default_database()
    if runner is None:
        refuse_foreign(chosen)
    prepared = prepare_in(lambda equal: _simplified(model, dims, equal, chosen), asked)
    symbolic = [var.name for var in measured_sizes(prepared.imported.module.main, {})]
    for name in sizes:
        if name not in symbolic:
            raise TuningError(f"sizes: the model has no symbolic dim {name!r}; it has {', '.join(symbolic) or 'none'}")
    known = TunedSchedules(Database(path, create=False), chosen, threads_of(chosen)).decide if path.is_file() else take_default
    found = tasks_of(prepared, sizes, known)
    selected = select_tasks(found.tasks, tasks)
    path.parent.mkdir(parents=True, exist_ok=True)
    records = Database(path)
    inputs = _inputs(prepared, sizes or {})
    before = _decisions(records, chosen)
    start = time.monotonic()
    is_on_host = chosen.device is None
    forms = _try_forms(prepared, records, inputs, FORMS_SHARE * seconds, callback) if is_on_host and not tasks else ()
    if any(trial.is_kept for trial in forms):
        found = tasks_of(prepared, sizes, TunedSchedules(records, chosen, threads_of(chosen)).decide)
        selected = select_tasks(found.tasks, tasks)
    seconds_left = max(seconds - (time.monotonic() - start), seconds / 2)
    own = LocalRunner() if runner is None else None
    try:
        tuner = Tuner(
            selected,
            runner or own,  # type: ignore[arg-type]
            records,
            budget_seconds=seconds_left,
            trials_per_task=trials,
            seed=seed,
            on_event=callback,
        )
        result = tuner.run()
    finally:
        if own is not None:
            own.close()
    in_model = _select_in_model(prepared, inputs, records, selected, IN_MODEL_SHARE * seconds) if is_on_host else []
    ratio, dropped = (None, ()) if _is_elsewhere(chosen, runner) else _compare_whole(model, chosen, dims, inputs, path, selected, asked)
    is_used = ratio is None or ratio.median < 1.0
    if not is_used:
        _restore(Database(path), chosen, before, selected, forms)
    return Tuned(path, result, tuple(selected), ratio, found.skipped, dropped, tuple(in_model), forms, is_used)


def _is_elsewhere(target: Target, runner: Runner | None) -> bool:
    """Whether candidates run on another machine, since this one cannot: then the whole model is compared with nothing."""
    if runner is None or target.device is None:
        return False
    try:
        return bool(target.missing_here())
    except UserError:
        return True


def checked_sizes(sizes: object) -> dict[str, int]:
    """Sizes of symbolic dims by name; UserError for anything else."""
    found = {}
    for name, dim in checked_dims(sizes, "sizes").items():
        if dim.fixed is None:
            raise TuningError(f"sizes: {name} is {dim}, must be one size")
        found[name] = dim.fixed
    return found


def _check_search(tasks: object, trials: object, seed: object, database: object, callback: object) -> None:
    """UserError for what `tune` cannot use, before any time is spent."""
    if trials is not None and (not isinstance(trials, int) or trials < 1):
        raise TuningError(f"trials is {trials!r}, must be at least 1")
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise TuningError(f"seed is {seed!r}, must be a whole number, not negative")
    if database is not None and not isinstance(database, (str, os.PathLike)):
        raise TuningError(f"database is a {type(database).__name__}, must be a path")
    if isinstance(tasks, str) or not isinstance(tasks, Sequence):
        raise TuningError(f"tasks is a {type(tasks).__name__}, must be a list of patterns such as ['conv*']")
    for pattern in tasks:
        if not isinstance(pattern, str):
            raise TuningError(f"tasks: {pattern!r} is not a pattern such as 'conv*'")
    if callback is not None and not callable(callback):
        raise TuningError(f"callback is a {type(callback).__name__}, must be a function")


def select_tasks(tasks: Sequence[Task], patterns: Sequence[str]) -> list[Task]:
    """The tasks with something to choose whose name, or one of whose nodes, fits a pattern."""
    fitting = [
        task
        for task in tasks
        if not patterns or any(fnmatchcase(name, pattern) for name in (task.name, *task.nodes) for pattern in patterns)
    ]
    if not tasks:
        raise TuningError("nothing to tune: the model has no kernels")
    if not fitting:
        raise TuningError(f"tasks: nothing fits {', '.join(patterns)}; there are: {', '.join(task.name for task in tasks)}")
    open_ones = [task for task in fitting if len(task.variants) > 1 or task.space().default().knobs]
    if not open_ones:
        raise TuningError(f"nothing to tune: the schedules of {', '.join(task.name for task in fitting)} leave nothing open")
    return open_ones


def _try_forms(
    model: PreparedModel,
    database: Database,
    inputs: Mapping[str, np.ndarray],
    seconds: float,
    callback: Callable[[Event], None] | None,
) -> tuple[FormTried, ...]:
    """Search among forms of the graph, telling every trial."""
    trials: list[FormTried] = []
    for trial in search_forms(model, database, inputs, seconds):
        trials.append(trial)
        if callback is not None:
            callback(trial)
    return tuple(trials)


def _select_in_model(
    model: PreparedModel,
    inputs: Mapping[str, np.ndarray],
    database: Database,
    tasks: Sequence[Task],
    seconds: float,
) -> list[InModelResult]:
    """Let the best schedules of each task compete inside the model."""
    decide = TunedSchedules(database, model.target, threads_of(model.target)).decide
    workloads = [variant.key for task in tasks for variant in task.variants.values()]
    return select_in_model(lower_model(lay_out(model, decide), decide), model.target, database, workloads, inputs, seconds)


def _compare_whole(
    model: Model,
    target: Target,
    dims: Mapping[str, Dim | int] | None,
    inputs: Mapping[str, np.ndarray],
    path: Path,
    tasks: Sequence[Task],
    precision: PrecisionRequest,
) -> tuple[Ratio | None, tuple[str, ...]]:
    """The tuned model beside the untuned one. Decisions that make results differ are taken back, the loosest first."""
    options: dict[str, Any] = {"target": target, "dims": dims, "threads": target.cores, "precision": precision}
    untuned = compile_model(model, **options)
    expected = untuned.run(inputs)
    dropped: list[str] = []
    while True:
        tuned = compile_model(model, tune=path, **options)
        problem = differing_result(expected, tuned.run(inputs))
        if problem is None:
            break
        names = _take_back(path, tasks, target, problem)
        if not names:
            raise TcError(f"the tuned model's results differ from the untuned one's, and no decision is left to blame: {problem}")
        dropped += names
    if _kernels_of(tuned) == _kernels_of(untuned):
        return None, tuple(dropped)
    return _ratio(untuned, tuned, inputs), tuple(dropped)


def _kernels_of(module: CompiledModule) -> list[tuple[str, tuple[str, ...], bool]]:
    """What tells a tuned module from an untuned one: its kernels, the nodes inside, and whether their schedules are tuned."""
    return [(kernel.name, kernel.nodes, kernel.tuned) for kernel in module.report().kernels]


def _simplified(model: Model, dims: Mapping[str, Dim | int], assume_equal: bool, target: Target) -> PreparedModel:
    imported = import_model(model, dims, assume_equal=assume_equal)
    require_numbers(imported.signature, "tune")
    return simplify_model(imported, target)


def _inputs(model: PreparedModel, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Random inputs of the sizes that were measured."""
    main = model.imported.module.main
    arrays = sized_inputs(main, measured_sizes(main, sizes), np.random.default_rng(0))
    return dict(zip((param.name for param in main.params), arrays, strict=True))


def _take_back(path: Path, tasks: Sequence[Task], target: Target, problem: str) -> list[str]:
    """Write the passes' own answers over decisions for large Winograd tiles; what was decided otherwise."""
    database = Database(path)
    key = target_key(target)
    undone: list[Choice] = []
    names: list[str] = []
    for task in tasks:
        for variant in task.variants.values():
            knob = variant.knob
            if knob is None or knob.name != "use_winograd" or variant.answer != LOOSE_TILE:
                continue
            choice = database.choice(knob.name, knob.key, key, threads_of(target))
            if choice is not None and choice.value == LOOSE_TILE != knob.default:
                undone.append(dataclasses.replace(choice, value=knob.default))
                names.append(f"{task.name}: use_winograd={LOOSE_TILE} ({problem})")
    if undone:
        database.append(undone)
    return names


Decisions = dict[tuple[str, str], Value]
"""By the names of passes (SCHEDULE for a kernel's schedule) and the keys of what they ask about."""


def _decisions(database: Database, target: Target) -> Decisions:
    """What a database says for a target: the schedules that kernels get, and the answers of knobs."""
    key, threads = target_key(target), threads_of(target)
    found: Decisions = {}
    for workload in {record.workload for record in database.records(target=key, threads=threads)}:
        best = database.best(workload, key, threads)
        found[SCHEDULE, workload] = DEFAULT if best is None else best.schedule_key
    for choice in database.choices():
        if (choice.target, choice.threads) == (key, threads):
            found[choice.pass_name, choice.key] = choice.value
    return found


def _restore(
    database: Database, target: Target, before: Decisions, tasks: Sequence[Task], forms: Sequence[FormTried]
) -> None:
    """Let the tasks' kernels, the nodes in them, and the form of the graph be as they were before."""
    variants = [variant for task in tasks for variant in task.variants.values()]
    places = [(SCHEDULE, variant.key) for variant in variants]
    places += [variant.knob.place for variant in variants if variant.knob is not None]
    places += [(form.question, form.key) for form in forms]
    now = _decisions(database, target)
    database.append(
        Choice(pass_name=name, key=key, **place_of(target), value=before.get((name, key), DEFAULT))
        for name, key in dict.fromkeys(places)
        if now.get((name, key), DEFAULT) != before.get((name, key), DEFAULT)
    )


def _ratio(untuned: CompiledModule, tuned: CompiledModule, inputs: Mapping[str, np.ndarray]) -> Ratio:
    """Seconds of the tuned module over the untuned one's."""
    steps = {"tuned": lambda: tuned.run(inputs), "untuned": lambda: untuned.run(inputs)}
    start = time.perf_counter()
    steps["untuned"]()
    call = time.perf_counter() - start
    timings = time_interleaved(steps, Plan(budget_seconds=max(4.0, 40 * call), max_rounds=30))
    return timings.ratio("tuned", "untuned")


@wraps(compile_model)
def compile_and_tune(model: Model, target: str | Target = "native", **options: Any) -> CompiledModule:
    """`compile_model`; where `tune` is a time budget, the model is tuned first, with `default_database()`."""
    signature(compile_model).bind(model, target, **options)
    budget = options.get("tune")
    if is_budget(budget):
        asked = checked_precision(options.get("precision", "f32"), options.get("calibration"))
        words = (options.get(name, usual) for name, usual in (("numerics", "default"), ("on_unsupported", "fallback"), ("verify", "auto")))
        check_words(*words)  # before the budget is spent
        found = tune(
            model, budget, target=target, dims=options.get("dims"), threads=options.get("threads"), precision=asked
        )
        options |= {"tune": found.database, "precision": asked, "calibration": None}  # an iterator is read once
    return compile_model(model, target, **options)
