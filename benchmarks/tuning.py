"""How well tuning works: what it gains, how fast it gets there, and whether its model knows what it says.

    python -m benchmarks.tuning kernels --trials 200 --jobs 2      kernels of several models: gain, search against search, transfer
    python -m benchmarks.tuning models --budget 10m --threads 2    whole models: tuned, untuned, and the peers, in turns

writes TUNING.json, with every curve, and TUNING.md beside this file, after every search; what is not measured again stays.
"""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import functools
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tc
from benchmarks import tuning_report, zoo
from benchmarks.report import describe_machine
from benchmarks.runtimes import LOADERS
from tc.autotune.cost_model.accuracy import Measured
from tc.autotune.cost_model.models import AnalyticCost, Program, RankCost, RegressionCost, cross_validate
from tc.autotune.events import BatchMeasured, Event
from tc.autotune.measure import LocalRunner
from tc.autotune.task import Task
from tc.autotune.tasks import extract_tasks
from tc.autotune.tuner import Tuner
from tc.autotune.tuning import parse_budget, tune
from tc.frontend.registry import import_model
from tc.ir.expr import Var
from tc.measure.compare import SUBJECT, compare_runtimes
from tc.measure.harness import Plan
from tc.measure.roofline import machine_limits
from tc.measure.runtimes import Runtime, as_runtime, reference_outputs
from tc.records.database import Database
from tc.schedule.step import Trace
from tc.target import Target, native_target

FOLDER = Path(__file__).parent
MODELS = ("resnet50", "mobilenet_v2", "minilm", "ppocr_det", "shufflenet")
MATMULS = {"minilm": 4, "llama_prefill": 1, "matmul_1024": 1}
OTHERS = ("depthwise3x3_64_112", "softmax_12x128x128", "layernorm_128x768")
PEERS = ("onnxruntime", "openvino")
POLICIES = ("model", "evolutionary", "random")


@dataclass(frozen=True)
class Run:
    """One search: the ratio of every trial to the default, in order (inf for failures), and what it ended with.

    `expected`: before each batch, what the scheduler thought that as many batches again would save, as a part of the default.
    """

    task: str
    policy: str
    seed: int
    transfer: bool
    from_default: bool
    ratios: tuple[float, ...]
    verified: float
    variant: str
    batches: tuple[int, ...]
    expected: tuple[float, ...]
    seconds: float


def kernel_tasks(target: Target) -> list[Task]:
    """The distinct convolutions of ResNet-50, six matrix products, and a few others."""
    tasks = [_named(task, "resnet50") for task in _tasks("resnet50", target) if task.name.startswith("conv")]
    for model, count in MATMULS.items():
        products = sorted((t for t in _tasks(model, target) if "matmul" in t.name), key=lambda t: -t.calls)
        tasks += [_named(task, model) for task in products[:count]]
    return tasks + [_named(_tasks(model, target)[0], model) for model in OTHERS]


def _tasks(model: str, target: Target) -> list[Task]:
    return list(extract_tasks(str(zoo.path(model)), target).tasks)


def _named(task: Task, model: str) -> Task:
    return dataclasses.replace(task, name=f"{model}/{task.name}")


def search(
    task: Task, runner: LocalRunner, path: Path, policy: str, seed: int, trials: int, *, transfer: bool, from_default: bool
) -> Run:
    """Tune one task alone. With `transfer`, what the database at `path` holds of others is used."""
    events: list[Event] = []
    tuner = Tuner(
        [task],
        runner,
        Database(path),
        trials_per_task=trials,
        seed=seed,
        policy=policy,
        threshold=0.0,
        transfer=transfer,
        from_default=from_default,
        on_event=events.append,
    )
    result = tuner.run()
    batches = [event for event in events if isinstance(event, BatchMeasured)]
    weight = max(result.default_ms, 1e-9)
    found = result.tasks[0]
    return Run(
        task.name,
        policy,
        seed,
        transfer,
        from_default,
        tuple(ratio for event in batches for ratio in event.ratios),
        found.ratio,
        found.variant,
        tuple(len(event.ratios) for event in batches),
        tuple(event.predicted_gain_ms / weight for event in batches),
        result.seconds,
    )


@dataclass(frozen=True)
class Search:
    """Which search to run: the task by its place among `kernel_tasks`."""

    place: int
    policy: str
    seed: int
    trials: int
    threads: int
    folder: Path
    from_default: bool = True
    transfer_from: tuple[int, ...] = ()

    @property
    def database(self) -> Path:
        if self.transfer_from:
            return self.folder / f"transfer-{self.place}.db"
        return self.folder / f"{self.policy}-{self.seed}-{self.place}{'' if self.from_default else '-anywhere'}.db"


def measure_kernels(args: argparse.Namespace, target: Target, folder: Path, data: dict[str, Any], keep: Callable[[], None]) -> None:
    """All searches, policy beside policy; then the same with what the others have left. `data` is brought up to date after each.

    With `--jobs 2` two searches run at a time, each with its measurements on a processor of its own.
    """
    tasks = kernel_tasks(target)
    places = range(0, len(tasks), args.every)
    context = multiprocessing.get_context("spawn")
    processors: Any = context.Queue()
    for number in sorted(os.sched_getaffinity(0))[: args.jobs] if args.jobs > 1 else ():
        processors.put(number)
    known = (args.trials, args.threads, folder, not args.anywhere)
    searches = [Search(place, policy, seed, *known) for seed in args.seeds for place in places for policy in args.policies]
    if args.transfer:
        searches += [Search(place, "model", args.seeds[0], *known, tuple(set(places) - {place})) for place in places]
    data.setdefault("runs", [])
    with ProcessPoolExecutor(args.jobs, context, _pin, (processors, args.jobs > 1)) as pool:
        for run in _told(pool.map(run_search, searches)):
            row = dataclasses.asdict(run)
            data["runs"] = [*(old for old in data["runs"] if _which(old) != _which(row)), row]
            data.update(describe_machine(), trials=args.trials)
            keep()
    groups = [row for place in places for row in _measured(tasks[place], [s.database for s in searches if s.place == place])]
    data["accuracy"] = _accuracy(groups)
    keep()


def _which(run: Mapping[str, Any]) -> tuple[object, ...]:
    return run["task"], run["policy"], run["seed"], run["transfer"], run["from_default"]


def _pin(processors: Any, wanted: bool) -> None:
    if wanted:
        os.sched_setaffinity(0, {processors.get()})


def _told(runs: Iterator[Run]) -> Iterator[Run]:
    for run in runs:
        how = f"{run.policy} {run.seed}{' with transfer' * run.transfer}{' from anywhere' * (not run.from_default)}"
        print(f"{run.task} {how}: {1 / run.verified:.2f}x, {run.seconds:.0f} s", flush=True)
        yield run


def _accuracy(groups: Sequence[Measured]) -> dict[str, Any]:
    models = {"rank": RankCost, "regression": RegressionCost, "analytic": AnalyticCost}
    return {name: dataclasses.asdict(cross_validate(make, groups)) for name, make in models.items()}


@functools.cache
def _worker(threads: int) -> tuple[list[Task], LocalRunner]:
    """What the searches of one process share."""
    runner = LocalRunner()
    atexit.register(runner.close)
    return kernel_tasks(dataclasses.replace(native_target(), cores=threads)), runner


def run_search(wanted: Search) -> Run:
    """One search, in a process of the pool."""
    tasks, runner = _worker(wanted.threads)
    path = wanted.database
    path.unlink(missing_ok=True)  # of a run before: a search would go on there
    if wanted.transfer_from:
        others = [dataclasses.replace(wanted, place=place, transfer_from=()).database for place in wanted.transfer_from]
        Database(path).merge(others)
        for store in (other.with_name(f"{other.name}.workloads") for other in others):
            _link_workloads(store, path)
    task, transfer = tasks[wanted.place], bool(wanted.transfer_from)
    how = {"transfer": transfer, "from_default": wanted.from_default}
    return search(task, runner, path, wanted.policy, wanted.seed, wanted.trials, **how)


def _link_workloads(store: Path, path: Path) -> None:
    folder = path.with_name(f"{path.name}.workloads")
    folder.mkdir(exist_ok=True)
    for file in store.glob("*.tc"):
        if not (folder / file.name).exists():
            (folder / file.name).write_bytes(file.read_bytes())


def _measured(task: Task, paths: Sequence[Path]) -> Iterator[Measured]:
    """What was measured of a task, as rows of features."""
    known: dict[str, tuple[np.ndarray, float]] = {}
    by_key = {variant.key: variant.func for variant in task.variants.values()}
    for path in paths:
        for record in Database(path).records():
            if record.trace not in known and record.workload in by_key:
                func = Trace.from_json(record.trace).apply(by_key[record.workload])
                known[record.workload + record.trace] = (Program(func, task.target, task.dims).features, record.ratio)
    if known:
        rows, ratios = zip(*known.values(), strict=True)
        yield Measured(task.key, np.stack(rows), np.array(ratios))


def measure_model(name: str, budget: str, threads: int, database: Path) -> dict[str, Any]:
    """Tune a model, then time it tuned and untuned and the peers in turns."""
    model = zoo.path(name)
    arrays = zoo.random_inputs(name, np.random.default_rng(0), {})
    found = tune(str(model), budget, threads=threads, database=database, sizes=sizes_of(model, arrays))
    expected = reference_outputs(model, arrays)
    loaders = {peer: LOADERS[peer] for peer in (SUBJECT, *PEERS)}
    loaders["tuned"] = partial(load_tuned, database=database)
    target = dataclasses.replace(native_target(), cores=threads)
    compared = compare_runtimes(loaders, model, threads, arrays, expected, Plan(budget_seconds=30), machine_limits(target))
    assert compared.timings is not None, "all runtimes ran"
    timings = compared.timings
    best = min(PEERS, key=timings.median)
    return {
        "model": name,
        "threads": threads,
        "budget_seconds": parse_budget(budget),
        "default_over_tuned": dataclasses.asdict(timings.ratio(SUBJECT, "tuned")),
        "peer_over_tuned": dataclasses.asdict(timings.ratio(best, "tuned")),
        "peer": best,
        "kernels_ms": [found.result.default_ms, found.result.tuned_ms, found.result.remaining_ms],
        "trials": sum(task.trials for task in found.result.tasks),
        "failures": sum(count for task in found.result.tasks for _, count in task.failures),
        "reason": found.result.reason,
        "dropped": list(found.dropped),
    }


def sizes_of(model: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The symbolic dims of a model by name, as these inputs have them."""
    main = import_model(str(model)).module.main
    pairs = ((dim, size) for param in main.params for dim, size in zip(param.type.shape, arrays[param.name].shape, strict=True))
    return {dim.name: size for dim, size in pairs if isinstance(dim, Var)}


def load_tuned(model: Path, threads: int, *, database: Path) -> Runtime:
    """A model with the schedules of a database."""
    start = time.perf_counter()
    compiled = tc.compile(model, threads=threads, tune=database)
    return as_runtime(compiled, time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsers = parser.add_subparsers(dest="part", required=True)
    kernels = parsers.add_parser("kernels")
    kernels.add_argument("--trials", type=int, default=200)
    kernels.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    kernels.add_argument("--policies", nargs="+", default=POLICIES, choices=POLICIES)
    kernels.add_argument("--every", type=int, default=1, help="only every so many-th task")
    kernels.add_argument("--jobs", type=int, default=1, help="searches at a time, each pinned to a processor if several")
    kernels.add_argument("--anywhere", action="store_true", help="searches begin at random places, not at the default")
    kernels.add_argument("--no-transfer", dest="transfer", action="store_false")
    models = parsers.add_parser("models")
    models.add_argument("--models", nargs="+", default=MODELS)
    models.add_argument("--budget", default="10m")
    for each in (kernels, models):
        each.add_argument("--records", type=Path, help="the folder where databases go; a temporary one by default")
        each.add_argument("--threads", type=int, default=1 if each is kernels else 2)
        each.add_argument("--output", type=Path, default=FOLDER)
    args = parser.parse_args()
    path = args.output / "TUNING.json"
    data = json.loads(path.read_text()) if path.is_file() else {}
    keep = partial(tuning_report.write, path, data)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.records or Path(temporary)
        for each in (folder, args.output):
            each.mkdir(parents=True, exist_ok=True)
        if args.part == "kernels":
            target = dataclasses.replace(native_target(), cores=args.threads)
            measure_kernels(args, target, folder, data.setdefault("kernels", {}), keep)
            return
        for name in args.models:
            row = measure_model(name, args.budget, args.threads, folder / f"{name}.db")
            print(json.dumps(row), flush=True)
            rows = [each for each in data.get("models", []) if (each["model"], each["threads"]) != (name, args.threads)]
            data["models"] = [*rows, {**row, **describe_machine()}]
            keep()


if __name__ == "__main__":
    main()
