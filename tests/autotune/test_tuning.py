"""Tuning a model from end to end: tasks, budgets, a database that compilation uses, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import tc
from tc.autotune import tuning
from tc.autotune.events import BatchMeasured, Event, TuningFinished
from tc.autotune.in_model.outcome import InModelResult
from tc.autotune.measure import LocalRunner
from tc.autotune.runner import Job, Measurement
from tc.autotune.search.space import Candidate
from tc.autotune.tasks import extract_tasks
from tc.autotune.tuning import is_budget, parse_budget, tune
from tc.check.compare import sized_inputs
from tc.demo import MODEL_PATH
from tc.errors import UserError
from tc.interp.graph import run_function
from tc.ir.parser import parse_module
from tc.measure.harness import Ratio
from tc.records.apply import TunedSchedules
from tc.records.database import Database
from tc.records.record import DEFAULT, SCHEDULE, Choice, Record, target_key
from tc.schedule.canonical import canonical_names, workload_key
from tc.target import native_target
from tests.small_models import PRODUCTS

TARGET = dataclasses.replace(native_target(), cores=1)


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of trials ends a search, and no budget does; what the whole model gains is told and not measured."""
    monkeypatch.setattr(tuning, "FORMS_SHARE", 1e-4)
    monkeypatch.setattr(tuning, "IN_MODEL_SHARE", 1e-4)
    monkeypatch.setattr(tuning, "_ratio", lambda *args: Ratio(0.8, 0.7, 0.9))


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600), ("90s", 90), ("1h30m", 5400), ("45", 45), (30, 30), ("0.5m", 30), ("1h", 3600)]
)
def test_budgets_are_read(text: str | float, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "10x", "-5s", "0", 0, -1.0, float("nan"), float("inf"), "0m"])
def test_what_is_no_budget_is_refused(text: str | float) -> None:
    with pytest.raises(UserError, match="budget"):
        parse_budget(text)


def test_paths_are_no_budgets() -> None:
    assert is_budget("10m") and is_budget("90")
    assert not is_budget("tuned.db") and not is_budget(None) and not is_budget(Path("10m"))


def test_tasks_are_the_distinct_kernels_with_their_literals() -> None:
    found = extract_tasks(str(MODEL_PATH), TARGET, sizes={"batch": 8})

    keys = [variant.key for task in found.tasks for variant in task.variants.values()]
    assert len(keys) == len(set(keys))
    assert any(task.variants["default"].literals for task in found.tasks)
    for task in found.tasks:
        variant = task.variants["default"]
        assert task.key == workload_key(variant.func) == workload_key(canonical_names(variant.func))
        for place, value in variant.literals.items():
            assert [int(dim.value) for dim in variant.func.inputs[place].shape] == list(value.shape)  # type: ignore[attr-defined]
    assert any(task.dims for task in found.tasks) and all(size == 8 for task in found.tasks for size in task.dims.values())


def test_equal_kernels_of_a_model_are_one_task() -> None:
    text = """
@graph
def main(x: f32[64, 64], w: f32[64, 64]):
    a: f32[64, 64] = matmul(x, w)
    b: f32[64, 64] = relu(a)
    c: f32[64, 64] = matmul(b, w)
    d: f32[64, 64] = relu(c)
    return d
"""
    found = extract_tasks(parse_module(text), TARGET)

    assert 2 in [task.calls for task in found.tasks if "relu" in task.name]


class FlatteringRunner(LocalRunner):
    """Builds, runs and checks everything, and says of all but the reference that it takes half the time: no clock decides what is kept."""

    def measure(self, jobs: Sequence[Job]) -> list[Measurement]:
        return [_flattered(job, found) for job, found in zip(jobs, super().measure(jobs), strict=True)]


def _flattered(job: Job, found: Measurement) -> Measurement:
    is_reference = (job.trace, job.workload) == (job.reference_trace, job.reference)
    return found if found.error is not None or is_reference else Measurement.of_ratios([0.5], found.reference_seconds, found.build_seconds)


@pytest.fixture(scope="module")
def flattering() -> Iterator[FlatteringRunner]:
    """Whose processes are started once."""
    with FlatteringRunner() as shared:
        yield shared


def test_a_tuned_model_computes_the_same_and_uses_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flattering: FlatteringRunner
) -> None:
    database = tmp_path / "t.db"
    events: list[Event] = []
    model = parse_module(PRODUCTS)
    monkeypatch.setattr(tuning, "_select_in_model", lambda *args: [])

    found = tune(model, "1h", threads=1, database=database, trials=4, callback=events.append, runner=flattering)
    tuned = tc.compile(model, tune=database, threads=1)
    untuned = tc.compile(model, threads=1)

    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape, dtype=np.float32) for shape in ((40, 64), (64, 96), (96, 32))]
    np.testing.assert_allclose(tuned(*inputs), untuned(*inputs), rtol=0, atol=1e-4 * np.abs(untuned(*inputs)).max())
    verified = {record.workload for record in Database(database).records() if record.verified}
    assert all(verified & {variant.key for variant in task.variants.values()} for task in found.tasks)
    assert found.is_used and all(kernel.tuned for kernel in tuned.report().kernels)
    assert not any(kernel.tuned for kernel in untuned.report().kernels)
    assert not tuned.report().notes
    assert isinstance(events[-1], TuningFinished) and any(isinstance(event, BatchMeasured) for event in events)
    assert all(task.trials <= 4 and task.ratio == 0.5 for task in found.result.tasks)
    assert found.result.tuned_ms < found.result.default_ms


def test_the_model_has_the_last_word_on_what_was_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flattering: FlatteringRunner
) -> None:
    database, model = tmp_path / "t.db", parse_module(PRODUCTS)

    found = tune(model, "1h", threads=1, database=database, trials=4, runner=flattering)
    tuned = tc.compile(model, tune=database, threads=1)

    chosen = {result.kernel: result.chosen != DEFAULT for result in found.in_model}
    assert {kernel.name: kernel.tuned for kernel in tuned.report().kernels} == chosen


def test_what_makes_the_model_no_faster_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flattering: FlatteringRunner) -> None:
    database, model = tmp_path / "t.db", parse_module(PRODUCTS)
    monkeypatch.setattr(tuning, "_ratio", lambda *args: Ratio(1.02, 1.0, 1.05))

    first = tune(model, "1h", threads=1, database=database, trials=4, runner=flattering)
    tuned = tc.compile(model, tune=database, threads=1)

    assert first.is_used == (first.ratio is None)
    assert not any(kernel.tuned for kernel in tuned.report().kernels) and not tuned.report().notes
    assert any(record.error is None for record in Database(database).records()), "what was measured is kept"


def test_what_was_used_before_is_used_again_where_more_time_gained_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, model = tmp_path / "t.db", parse_module(PRODUCTS)
    (task, *_) = extract_tasks(model, TARGET).tasks
    space, rng = task.space(), np.random.default_rng(0)
    mutants = {candidate.trace.to_json(): candidate for candidate in (space.mutate(space.default(), rng) for _ in range(20))}

    def verified(candidate: Candidate, ratio: float) -> Record:
        place = {"workload": task.key, "target": target_key(TARGET), "threads": 1, "rule": candidate.rule, "point": candidate.point}
        times = {"seconds": 1e-6, "low": 1e-6, "high": 1e-6, "ratio": ratio}
        return Record(**place, **times, variant=candidate.variant, trace=candidate.trace.to_json(), verified=True)

    before, found = (verified(candidate, ratio) for candidate, ratio in zip(mutants.values(), (0.5, 0.25), strict=False))
    Database(database).append([before])

    def find_another(model: object, inputs: object, records: Database, *args: object) -> list[InModelResult]:
        place = {"pass_name": SCHEDULE, "key": task.key, "target": target_key(TARGET), "threads": 1}
        records.append([found, Choice(**place, value=found.schedule_key)])
        return []

    monkeypatch.setattr(tuning, "_select_in_model", find_another)
    monkeypatch.setattr(tuning, "_ratio", lambda *args: Ratio(1.02, 1.0, 1.05))

    tuned = tune(model, "1h", threads=1, database=database, trials=4, tasks=[task.name])

    assert not tuned.is_used
    record = TunedSchedules(Database(database), TARGET, 1).record(task.key)
    assert record is not None and record.schedule_key == before.schedule_key != found.schedule_key


def test_kernels_over_symbolic_dims_are_tuned_at_a_size_and_right_at_all(tmp_path: Path, flattering: FlatteringRunner) -> None:
    text = """
@graph
def main(x: f32[n, 48], w: f32[48, 40]):
    a: f32[n, 40] = matmul(x, w)
    b: f32[n, 40] = softmax(a, axis=1)
    return b
"""
    model, database = parse_module(text), tmp_path / "t.db"

    found = tune(model, "1h", threads=1, database=database, trials=2, sizes={"n": 30}, runner=flattering)
    tuned, untuned = tc.compile(model, tune=database, threads=1), tc.compile(model, threads=1)

    assert not any("reference" in record.detail for record in Database(database).records())
    assert all(set(task.dims.values()) == {30} for task in found.tasks)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((48, 40), dtype=np.float32)
    for rows in (1, 2, 13, 30, 57):
        x = rng.standard_normal((rows, 48), dtype=np.float32)
        np.testing.assert_allclose(tuned(x, w), untuned(x, w), rtol=0, atol=1e-4)


def test_references_run_where_shapes_do_not_tell_the_dims() -> None:
    text = """
@graph
def main(x: f32[1, 8, h, w]):
    a: f32[1, 8, h // 2, w // 2] = max_pool(x, kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0))
    b: f32[1, 8, h // 2, w // 2] = softmax(a, axis=3)
    return b
"""
    _, softmax = extract_tasks(parse_module(text), TARGET, sizes={"h": 9, "w": 12}).tasks
    (variant,) = softmax.variants.values()
    inputs = sized_inputs(variant.reference.main, variant.sizes, np.random.default_rng(0))

    (result,) = run_function(variant.reference, variant.reference.main.name, inputs, dims=variant.sizes)

    shifted = np.exp(inputs[0] - inputs[0].max(axis=3, keepdims=True))
    np.testing.assert_allclose(result, shifted / shifted.sum(axis=3, keepdims=True), rtol=1e-5)


def test_a_second_run_does_not_measure_again_what_is_known(tmp_path: Path, flattering: FlatteringRunner) -> None:
    database = tmp_path / "t.db"
    model = parse_module(PRODUCTS)
    events: list[Event] = []
    tune(model, "1h", threads=1, database=database, trials=2, tasks=["matmul*"], callback=events.append, runner=flattering)
    first = [(r.workload, r.variant, r.trace) for r in Database(database).records()]

    tune(model, "1h", threads=1, database=database, trials=4, tasks=["matmul*"], seed=1, callback=events.append, runner=flattering)

    later = [(r.workload, r.variant, r.trace) for r in Database(database).records()]
    assert later[: len(first)] == first
    trials = sum(len(event.ratios) for event in events if isinstance(event, BatchMeasured))
    assert len(set(later)) == trials  # checks of what looks best are records too, of schedules that are known


def test_records_for_other_threads_are_left_alone(tmp_path: Path, flattering: FlatteringRunner) -> None:
    database = tmp_path / "t.db"
    model = parse_module(PRODUCTS)
    tune(model, "1h", threads=1, database=database, trials=2, tasks=["matmul*"], runner=flattering)

    other = tc.compile(model, tune=database, threads=2)

    assert not any(kernel.tuned for kernel in other.report().kernels)


def test_records_that_do_not_replay_leave_a_note_and_the_default(tmp_path: Path) -> None:
    database = tmp_path / "t.db"
    model = parse_module(PRODUCTS)
    task = extract_tasks(model, TARGET).tasks[0]
    Database(database).append([broken_record(task.key)])

    module = tc.compile(model, tune=database, threads=1)

    assert any("does not replay" in note for note in module.report().notes)
    assert not any(kernel.tuned for kernel in module.report().kernels)


def broken_record(workload: str) -> Record:
    trace = json.dumps({"version": 1, "steps": [["parallel", "no_such_loop"]]})
    times = {"seconds": 1e-9, "low": 1e-9, "high": 1e-9, "ratio": 0.1}
    return Record(workload=workload, target=target_key(TARGET), threads=1, trace=trace, **times, verified=True)


def test_nothing_to_tune_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing fits conv"):
        tune(parse_module(PRODUCTS), "5s", database=tmp_path / "t.db", tasks=["conv*"])
    with pytest.raises(UserError, match="budget"):
        tune(parse_module(PRODUCTS), 0, database=tmp_path / "t.db")
    with pytest.raises(UserError, match="trials"):
        tune(parse_module(PRODUCTS), "5s", database=tmp_path / "t.db", trials=0)
    assert not (tmp_path / "t.db").exists()


def test_a_database_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tuning database"):
        tc.compile(parse_module(PRODUCTS), tune=tmp_path / "none.db")


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello\n")

    with pytest.raises(UserError):
        tune(parse_module(PRODUCTS), "5s", database=path, threads=1)
    with pytest.raises(UserError):
        tc.compile(parse_module(PRODUCTS), tune=path)
    assert path.read_text() == "hello\n"
