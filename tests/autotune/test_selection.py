"""The choice among good schedules inside a model: what is read off the times of launches, what is written down, what is compiled then."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tc
from tc.autotune.in_model import selection
from tc.autotune.in_model.outcome import InModelResult
from tc.autotune.in_model.selection import select_in_model
from tc.autotune.tasks import extract_tasks
from tc.frontend.registry import import_model
from tc.ir.parser import parse_module
from tc.passes.pipeline import lower_model, prepare_model
from tc.records.apply import TunedSchedules
from tc.records.database import Database
from tc.records.record import DEFAULT, SCHEDULE, Choice, Record, target_key
from tc.target import native_target
from tests.small_models import PRODUCTS

TARGET = dataclasses.replace(native_target(), cores=1)

INPUTS = {name: np.ones(shape, np.float32) for name, shape in (("x", (40, 64)), ("w", (64, 96)), ("v", (96, 32)))}


def with_records(path: Path, count: int) -> tuple[Database, list[list[Record]]]:
    """`count` verified schedules of each kernel: the first takes 0.5 of the default's time, the next 0.6 ..."""
    database, found = Database(path), []
    for number, task in enumerate(extract_tasks(parse_module(PRODUCTS), TARGET).tasks):
        space, rng = task.space(), np.random.default_rng(number)
        default = space.default()
        candidates = {default.key: default}
        while len(candidates) <= count:
            candidate = space.mutate(default, rng)
            candidates.setdefault(candidate.key, candidate)
        records = [
            Record(
                workload=task.key,
                target=target_key(TARGET),
                threads=1,
                trace=candidate.trace.to_json(),
                seconds=(0.5 + 0.1 * k) * 1e-3,
                low=1e-4,
                high=1e-2,
                ratio=0.5 + 0.1 * k,
                verified=True,
                variant=candidate.variant,
                task=task.name,
                rule=candidate.rule,
                point=candidate.point,
            )
            for k, candidate in enumerate(list(candidates.values())[1:])
        ]
        database.append(records)
        found.append(records)
    return database, found


def run(database: Database, records: list[list[Record]]) -> list[InModelResult]:
    lowered = lower_model(prepare_model(import_model(parse_module(PRODUCTS)), TARGET))
    return select_in_model(lowered, TARGET, database, [each[0].workload for each in records], INPUTS, 0.1)


def with_costs(monkeypatch: pytest.MonkeyPatch, costs: list[list[float]], *, is_faster: bool = True) -> None:
    """Let the kernels' schedules cost this in the model, default first; the chosen ones together are faster or not."""

    def made_up(self: Any, draws: Any, counts: Any, inputs: Any, seconds: float) -> dict[str, np.ndarray]:
        return {key: np.array(each) for key, each in zip(counts, costs, strict=True)}

    monkeypatch.setattr(selection._InModelRun, "costs", made_up)
    monkeypatch.setattr(selection._InModelRun, "call_seconds", lambda self, inputs: 1e-5)  # how many schedules are tried depends on it
    monkeypatch.setattr(selection._InModelRun, "is_faster", lambda *args, **kwargs: is_faster)


def decided(database: Database, workload: str) -> Choice | None:
    return database.choice(SCHEDULE, workload, TARGET, 1)


def test_what_a_schedule_costs_itself_and_the_next_launch_is_read_off() -> None:
    rng = np.random.default_rng(0)
    own, before = rng.integers(3, size=60), rng.integers(2, size=60)
    seconds = 5.0 + np.array([0.0, 1.0, -2.0])[own] + np.array([0.0, 0.5])[before] + 0.01 * rng.standard_normal(60)

    first, second = selection._effects(seconds, [(np.eye(3)[own], 0.05), (np.eye(2)[before], 0.5)])

    np.testing.assert_allclose(first - first[0], [0.0, 1.0, -2.0], atol=0.05)
    np.testing.assert_allclose(second - second[0], [0.0, 0.5], atol=0.05)


def test_every_schedule_takes_part_about_equally_often() -> None:
    draws = selection._draw({"a": 4, "b": 2}, {"a": 1, "b": 0})

    assert draws[0] == {"a": 0, "b": 0} and draws[1] == {"a": 1, "b": 0}
    assert len(draws) == 2 + selection.DRAWN_EACH * 4
    assert np.bincount([draw["a"] for draw in draws[2:]]).tolist() == [3, 3, 3, 3]
    assert np.bincount([draw["b"] for draw in draws[2:]]).tolist() == [6, 6]
    assert draws == selection._draw({"a": 4, "b": 2}, {"a": 1, "b": 0})


def test_a_slow_model_has_fewer_contenders() -> None:
    assert selection._most_contenders(1e-3, 30.0) == selection.MOST_CONTENDERS
    assert selection._most_contenders(10.0, 30.0) == 2
    some = selection._most_contenders(0.2, 30.0)
    assert 2 < some < selection.MOST_CONTENDERS
    assert (2 + selection.DRAWN_EACH * some) * 2 * selection.FEWEST_ROUNDS * 0.2 <= 30.0


def test_only_a_clear_gain_displaces_what_is_best_alone() -> None:
    assert selection._best(np.array([1.0, 0.8, 0.79]), alone=1) == 1
    assert selection._best(np.array([1.0, 0.8, 0.7]), alone=1) == 2
    assert selection._best(np.array([1.0, 1.2, 1.1]), alone=1) == 0


def test_the_model_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, records = with_records(tmp_path / "t.db", 2)
    with_costs(monkeypatch, [[1.0, 0.9, 0.6], [1.0, 1.3, 1.2]])

    first, second = run(database, records)

    assert (first.alone, first.chosen) == (records[0][0].schedule_key, records[0][1].schedule_key)
    assert (second.alone, second.chosen) == (records[1][0].schedule_key, DEFAULT)
    known = TunedSchedules(database, TARGET, 1)
    assert known.record(records[0][0].workload) == records[0][1]
    assert known.record(records[1][0].workload) is None
    tuned = tc.compile(parse_module(PRODUCTS), target=TARGET, tune=database.path)
    assert [kernel.tuned for kernel in tuned.report().kernels] == [True, False]
    np.testing.assert_allclose(tuned(*INPUTS.values()), np.full((40, 32), 64.0 * 96.0), rtol=1e-6)


def test_a_decision_is_written_once_and_can_be_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, records = with_records(tmp_path / "t.db", 2)
    with_costs(monkeypatch, [[1.0, 0.9, 0.6], [1.0, 0.5, 0.9]])
    run(database, records)
    run(database, records)

    assert len(list(database.choices())) == 1  # what is best alone needs none
    with_costs(monkeypatch, [[1.0, 0.6, 0.9], [1.0, 0.5, 0.9]])
    run(database, records)

    assert TunedSchedules(database, TARGET, 1).record(records[0][0].workload) == records[0][0]


def test_decisions_that_do_not_pay_together_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, records = with_records(tmp_path / "t.db", 2)
    with_costs(monkeypatch, [[1.0, 0.9, 0.6], [1.0, 1.3, 1.2]], is_faster=False)

    in_model = run(database, records)

    assert all(result.chosen == result.alone for result in in_model)
    assert not list(database.choices())


def test_a_schedule_that_is_known_no_more_leaves_the_best(tmp_path: Path) -> None:
    database, records = with_records(tmp_path / "t.db", 2)
    key, workload = target_key(TARGET), records[0][0].workload
    database.append([Choice(pass_name=SCHEDULE, key=workload, target=key, threads=1, value="0123456789abcdef")])

    assert TunedSchedules(database, TARGET, 1).record(workload) == records[0][0]


def test_a_model_is_run_with_all_of_them(tmp_path: Path) -> None:
    database, records = with_records(tmp_path / "t.db", 3)

    in_model = run(database, records)

    assert [result.workload for result in in_model] == [each[0].workload for each in records]
    for result, each in zip(in_model, records, strict=True):
        assert [name for name, _ in result.seconds] == [DEFAULT, *(record.schedule_key for record in each)]
        assert all(0 < seconds < 1 for _, seconds in result.seconds)
        choice = decided(database, result.workload)
        assert result.chosen == (result.alone if choice is None else choice.value)


def test_a_model_without_records_needs_no_run(tmp_path: Path) -> None:
    assert run(Database(tmp_path / "t.db"), with_records(tmp_path / "other.db", 1)[1]) == []
