"""The tuner without a clock and without a machine: what it measures, keeps, writes down, survives and says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tc.autotune.events import BatchMeasured, Event, TaskStopped, TuningFinished, TuningStarted, WinnerChecked
from tc.autotune.task import Task
from tc.autotune.tuner import BATCH, SMALL_BATCH, Tuner, TuningResult
from tc.errors import MeasureError, UserError
from tc.records.database import Database
from tc.records.record import Record
from tests.autotune.fake_runner import TARGET, FakeClock, FakeRunner, made_up_task, point_of, true_ratio

GOOD_START = {"rows": 14, "vectors": 2, "depth": 256, "order": "kmn", "unroll": 8, "pack_a": False, "pack_b": False, "panel_m": 16}


class Killed(BaseException):
    """The process is gone: nothing catches this."""


class Run:
    """A tuner on made-up tasks, with all that it said."""

    def __init__(self, folder: Path, *tasks: Task, runner: FakeRunner | None = None, **options: Any) -> None:
        self.clock = FakeClock() if runner is None else runner.clock
        self.runner = runner or FakeRunner(self.clock)
        self.database = Database(folder / "tuning.jsonl")
        self.events: list[Event] = []
        self.tasks = tasks or (made_up_task(),)
        options = {"policy": "evolutionary", "trials_per_task": 64, "seed": 1, **options}
        self.tuner = Tuner(
            self.tasks, self.runner, self.database, clock=self.clock, on_event=self.events.append, **options
        )

    def run(self) -> TuningResult:
        return self.tuner.run()

    def said(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def records(self) -> list[Record]:
        return list(self.database.records())

    def verified(self) -> list[Record]:
        return [record for record in self.records() if record.verified]


def test_a_task_becomes_faster_and_what_is_best_is_verified(tmp_path: Path) -> None:
    run = Run(tmp_path)

    result = run.run()

    (task,) = result.tasks
    assert task.ratio < 0.7
    assert result.tuned_ms == pytest.approx(result.default_ms * task.ratio)
    best = run.database.best(run.tasks[0].key, TARGET, TARGET.cores)
    assert best is not None
    assert best.verified
    assert best.ratio == pytest.approx(task.ratio)
    assert best.trace in [job.trace for job in run.runner.checked]
    assert isinstance(run.events[0], TuningStarted)
    assert isinstance(run.events[-1], TuningFinished)


def test_the_default_is_candidate_zero(tmp_path: Path) -> None:
    run = Run(tmp_path)

    run.run()

    default = run.tasks[0].space().default().trace.to_json()
    assert run.runner.batches[0][0].trace == default
    assert run.records()[0].trace == default


@pytest.mark.parametrize("policy", ["model", "evolutionary", "random"])
def test_equal_seeds_propose_the_same(tmp_path: Path, policy: str) -> None:
    def trials(name: str, seed: int) -> list[tuple[str, str]]:
        (tmp_path / name).mkdir()
        tasks = made_up_task(4), made_up_task(6, calls=3)
        run = Run(tmp_path / name, *tasks, policy=policy, seed=seed, trials_per_task=20, threshold=0.0)
        run.run()
        return run.runner.trials

    first = trials("a", 1)

    assert first == trials("b", 1)
    assert first != trials("c", 2)
    assert len(first) == 40


def test_every_trial_is_written_down_at_once(tmp_path: Path) -> None:
    run = Run(tmp_path)
    seen: list[int] = []
    measure = run.runner.measure

    def watched(jobs: Any) -> Any:
        seen.append(len(run.records()))
        return measure(jobs)

    run.runner.measure = watched  # type: ignore[method-assign]
    run.run()

    assert sorted({record.trial for record in run.records()}) == list(range(1, 65))
    assert len({record.schedule_key for record in run.records()}) == 64
    batches = [count for count in seen if count]
    assert batches[0] == SMALL_BATCH
    assert len(run.records()) > batches[-1]


def test_a_killed_tuner_loses_at_most_a_batch_and_measures_nothing_again(tmp_path: Path) -> None:
    clock = FakeClock()
    killed = Run(tmp_path, runner=FakeRunner(clock, stop_at=6, stop=Killed()))
    with pytest.raises(Killed):
        killed.run()
    measured = killed.runner.trials
    kept = {record.trace for record in killed.records()}
    assert len(measured) - len(kept) <= BATCH
    assert len(kept) >= 24

    resumed = Run(tmp_path, runner=FakeRunner(clock))
    result = resumed.run()

    default = resumed.tasks[0].space().default().trace.to_json()
    again = [job.trace for batch in resumed.runner.batches for job in batch if job.effort == 1.0 and job.trace in kept]
    assert set(again) <= {default}
    assert result.tasks[0].trials == 64
    assert result.tasks[0].ratio < 0.8


def test_what_a_killed_tuner_had_not_checked_is_checked_when_resumed(tmp_path: Path) -> None:
    clock = FakeClock()
    with pytest.raises(Killed):
        Run(tmp_path, runner=FakeRunner(clock, stop_at=3, stop=Killed()), trials_per_task=16).run()

    resumed = Run(tmp_path, runner=FakeRunner(clock), trials_per_task=16)
    result = resumed.run()

    assert result.tasks[0].trials == 16
    assert result.tasks[0].ratio < 0.95
    assert resumed.verified()


def test_a_finished_run_that_is_resumed_has_nothing_to_do(tmp_path: Path) -> None:
    first = Run(tmp_path)
    before = first.run()
    again = Run(tmp_path)

    after = again.run()

    assert after.tasks[0].ratio == pytest.approx(before.tasks[0].ratio)
    assert sum(len(batch) for batch in again.runner.batches) <= 2
    assert "64 trials" in again.said(TaskStopped)[0].reason


def test_more_trials_go_on_where_others_stopped(tmp_path: Path) -> None:
    first = Run(tmp_path, trials_per_task=32).run()

    more = Run(tmp_path, trials_per_task=96)
    second = more.run()

    assert second.tasks[0].trials == 96
    assert second.tasks[0].ratio <= first.tasks[0].ratio
    best = more.database.best(more.tasks[0].key, TARGET, TARGET.cores)
    assert best is not None
    assert best.ratio == pytest.approx(second.tasks[0].ratio)


def test_the_better_schedule_is_found_again_although_the_machine_was_slower(tmp_path: Path) -> None:
    Run(tmp_path, trials_per_task=32).run()
    clock = FakeClock()
    slower = FakeRunner(clock, slowness=1.5)

    run = Run(tmp_path, runner=slower, trials_per_task=128)
    result = run.run()

    best = run.database.best(run.tasks[0].key, TARGET, TARGET.cores)
    assert best is not None
    assert best.trial > 32
    assert best.ratio == pytest.approx(result.tasks[0].ratio)


def test_a_wrong_candidate_is_recorded_and_never_kept(tmp_path: Path) -> None:
    clock = FakeClock()
    run = Run(tmp_path, runner=FakeRunner(clock, is_wrong=lambda point: point["order"] == "kmn"), trials_per_task=128)

    result = run.run()

    wrong = [record for record in run.records() if record.error == "wrong"]
    assert wrong
    assert all(dict(record.point)["order"] == "kmn" for record in wrong)
    best = run.database.best(run.tasks[0].key, TARGET, TARGET.cores)
    assert best is None or dict(best.point)["order"] != "kmn"
    assert all(dict(record.point)["order"] != "kmn" for record in run.verified())
    assert result.tasks[0].ratio < 1.0
    assert dict(result.tasks[0].failures)["wrong"] == len(wrong)
    assert [event for event in run.said(WinnerChecked) if event.problem and event.problem.startswith("wrong")]


def test_a_wrong_candidate_stays_wrong_when_resumed(tmp_path: Path) -> None:
    clock = FakeClock()
    Run(tmp_path, runner=FakeRunner(clock, is_wrong=lambda point: True), trials_per_task=48).run()

    resumed = Run(tmp_path, runner=FakeRunner(clock), trials_per_task=48)
    wrong = {record.trace for record in resumed.records() if record.error == "wrong"}
    resumed.run()

    assert wrong
    assert not wrong & {record.trace for record in resumed.verified()}
    assert not wrong & {job.trace for job in resumed.runner.checked}


@pytest.mark.parametrize("start", [GOOD_START, None], ids=["the best to start from", "a poor start"])
def test_a_lucky_trial_does_not_win(tmp_path: Path, start: dict[str, Any] | None) -> None:
    clock = FakeClock()
    run = Run(tmp_path, made_up_task(start=start), runner=FakeRunner(clock, lucky=0.3), trials_per_task=96)

    result = run.run()

    assert min(record.ratio for record in run.records() if not record.verified) < 0.85  # some did look fast
    assert bool(run.verified()) == (start is None)
    for record in run.verified():
        job = next(job for batch in run.runner.batches for job in batch if job.trace == record.trace)
        assert true_ratio(job, run.runner.product) < 1.0
    assert result.tasks[0].ratio <= 1.0


def test_where_nothing_is_faster_the_default_stays(tmp_path: Path) -> None:
    clock = FakeClock()
    slow = FakeRunner(clock, lucky=0.2)
    slow._measured = _never_faster(slow, slow._measured)  # type: ignore[method-assign]
    run = Run(tmp_path, runner=slow)

    result = run.run()

    assert result.tasks[0].ratio == 1.0
    assert result.tuned_ms == result.default_ms
    assert not run.verified()
    assert run.database.best(run.tasks[0].key, TARGET, TARGET.cores) is None


def _never_faster(runner: FakeRunner, measured: Any) -> Any:
    """Measures all as if candidates took at least the time of the reference."""

    def measure(job: Any) -> Any:
        found = measured(job)
        if found.error is None and job.effort > 1.0 and found.ratio < 1.0:
            return found.of_ratios([1.0 + 0.01 * k for k in range(5)], found.reference_seconds, 0.1)
        return found

    return measure


def test_failures_are_recorded_by_kind_and_the_search_goes_on(tmp_path: Path) -> None:
    def fails(point: Any) -> str | None:
        return {16: "crash", 32: "timeout", 512: "memory"}.get(point["depth"])

    run = Run(tmp_path, runner=FakeRunner(FakeClock(), fails=fails), trials_per_task=96)

    result = run.run()

    failures = dict(result.tasks[0].failures)
    assert failures
    assert set(failures) <= {"crash", "timeout", "memory"}
    assert sum(failures.values()) == sum(record.error is not None for record in run.records())
    assert all(math.isinf(record.seconds) for record in run.records() if record.error)
    assert sum(count for event in run.said(BatchMeasured) for _, count in event.errors) == sum(failures.values())
    assert result.tasks[0].ratio < 0.9


def test_a_task_whose_default_fails_ends_with_words_and_the_others_go_on(tmp_path: Path) -> None:
    def fails(point: Any) -> str | None:
        return "build" if point["unroll"] == 4 else None

    tasks = made_up_task(4, start={"unroll": 4}), made_up_task(6)
    run = Run(tmp_path, *tasks, runner=FakeRunner(FakeClock(), fails=fails))

    result = run.run()

    (stopped, _) = run.said(TaskStopped)
    assert stopped.task == "task_4"
    assert "default" in stopped.reason
    assert "made to fail" in stopped.reason
    assert result.tasks[1].ratio < 0.9


def test_a_task_of_which_nothing_else_runs_ends_with_words(tmp_path: Path) -> None:
    start = made_up_task().space().default().trace.to_json()
    run = Run(tmp_path, runner=FakeRunner(FakeClock(), fails=lambda p: None if p == point_of(start) else "crash"))

    result = run.run()

    assert len(run.runner.batches) <= 5
    assert "crash" in run.said(TaskStopped)[0].reason
    assert result.tasks[0].ratio == 1.0


def test_a_runner_that_cannot_measure_ends_the_run_with_words(tmp_path: Path) -> None:
    failing = FakeRunner(FakeClock(), stop_at=5, stop=MeasureError("no worker is left"))
    run = Run(tmp_path, runner=failing)

    result = run.run()

    assert "no worker is left" in result.reason
    assert result.tasks[0].ratio < 1.0
    assert run.said(TuningFinished)[0].reason == result.reason


def test_interrupted_it_keeps_what_was_found(tmp_path: Path) -> None:
    run = Run(tmp_path, runner=FakeRunner(FakeClock(), stop_at=4, stop=KeyboardInterrupt()))

    result = run.run()

    assert result.reason == "interrupted"
    assert result.tasks[0].ratio < 1.0
    best = run.database.best(run.tasks[0].key, TARGET, TARGET.cores)
    assert best is not None
    assert best.ratio == pytest.approx(result.tasks[0].ratio)


def test_interrupted_at_once_it_ends_in_order(tmp_path: Path) -> None:
    run = Run(tmp_path, runner=FakeRunner(FakeClock(), stop_at=0, stop=KeyboardInterrupt()))

    result = run.run()

    assert result.reason == "interrupted"
    assert result.tuned_ms == result.default_ms
    assert run.records() == []


@pytest.mark.parametrize("budget", [10.0, 40.0, 200.0])
def test_the_budget_is_kept(tmp_path: Path, budget: float) -> None:
    tasks = [made_up_task(rows, calls=rows) for rows in range(4, 12)]
    run = Run(tmp_path, *tasks, budget_seconds=budget, trials_per_task=None)
    started = run.clock.now

    result = run.run()

    assert run.clock.now - started <= budget + 3.0
    assert run.clock.now - started >= 0.6 * budget
    assert "time" in result.reason


def test_no_budget_measures_nothing_that_takes_long(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="budget"):
        Run(tmp_path, budget_seconds=0.0, trials_per_task=None)
    with pytest.raises(UserError, match="no tasks"):
        Tuner([], FakeRunner(FakeClock()), Database(tmp_path / "db"), budget_seconds=1.0)
    with pytest.raises(UserError, match="bound"):
        Run(tmp_path, trials_per_task=None)


def test_a_task_of_one_schedule_ends_with_words(tmp_path: Path) -> None:
    fixed = dict(made_up_task().space().default().point)
    run = Run(tmp_path, made_up_task(fixed=fixed))

    result = run.run()

    assert result.tasks[0].ratio == 1.0
    assert "one schedule" in run.said(TaskStopped)[0].reason


def test_time_goes_where_most_is_saved(tmp_path: Path) -> None:
    tasks = made_up_task(4, calls=1), made_up_task(6, calls=50), made_up_task(8, calls=1, start=GOOD_START)
    run = Run(tmp_path, *tasks, budget_seconds=60.0, trials_per_task=None)

    light, heavy, good = run.run().tasks

    assert heavy.trials >= 2 * light.trials
    assert heavy.trials >= 2 * good.trials


def test_what_was_found_for_one_task_is_tried_early_for_another(tmp_path: Path) -> None:
    run = Run(tmp_path, made_up_task(4, calls=100), made_up_task(6), policy="model", budget_seconds=90.0, trials_per_task=None)

    run.run()

    heavy, light = (task.key for task in run.tasks)
    best = run.database.best(heavy, TARGET, TARGET.cores)
    tried = [job.trace for batch in run.runner.batches for job in batch if job.workload.key == light]
    assert best is not None
    early = [point_of(trace) for trace in tried[1 : 1 + 2 * SMALL_BATCH]]
    assert any(point == point_of(record.trace) for record in run.verified() if record.workload == heavy for point in early)


def test_what_other_models_have_found_is_tried_early(tmp_path: Path) -> None:
    Run(tmp_path, made_up_task(4), policy="model").run()
    next_model = Run(tmp_path, made_up_task(6), policy="model", trials_per_task=8)
    known = next_model.database.best(made_up_task(4).key, TARGET, TARGET.cores)

    result = next_model.run()

    assert known is not None
    assert known.trace in {job.trace for batch in next_model.runner.batches for job in batch}
    assert result.tasks[0].ratio == pytest.approx(known.ratio, rel=0.1)


def test_it_stops_when_little_is_left_to_gain_and_says_so(tmp_path: Path) -> None:
    run = Run(tmp_path, budget_seconds=1e6, trials_per_task=None)

    result = run.run()

    assert "expected to save" in result.reason
    assert result.tasks[0].trials < 2000
    assert result.remaining_ms < 0.01 * result.tuned_ms


def test_a_full_disk_ends_it_with_the_words_of_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    append = run.database.append
    calls = 0

    def filling(entries: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise UserError("tuning.jsonl: cannot be written: No space left on device")
        append(entries)

    monkeypatch.setattr(run.database, "append", filling)

    with pytest.raises(UserError, match="No space left"):
        run.run()

    assert len(run.records()) >= BATCH


def test_events_tell_the_whole_story(tmp_path: Path) -> None:
    run = Run(tmp_path, made_up_task(4), made_up_task(6), policy="model", trials_per_task=32)

    run.run()

    batches = run.said(BatchMeasured)
    assert [event.trials for event in batches if event.task == "task_4"] == [8, 16, 24, 32]
    assert all(event.seconds > 0 and len(event.ratios) == 8 for event in batches)
    assert all(event.predicted_gain_ms >= 0 for event in batches)
    assert {event.task for event in run.said(TaskStopped)} == {"task_4", "task_6"}
