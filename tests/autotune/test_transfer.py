"""What tasks teach each other: points of similar ones, and rows for a shared model that never saw the task it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tc.autotune.cost_model.accuracy import Measured
from tc.autotune.cost_model.learned import SharedModel
from tc.autotune.cost_model.models import RankCost
from tc.autotune.cost_model.transfer import (
    LEARNED_ROWS,
    Precedent,
    precedents_of,
    similarity,
    suggestions,
    teach,
    telling,
)
from tc.autotune.search.space import Space
from tc.autotune.tasks import extract_tasks
from tc.ir.parser import parse_module
from tc.records.record import Record
from tc.records.workloads import WorkloadStore
from tc.schedule.canonical import canonical_names, workload_key
from tc.target import Target
from tests.autotune.test_space import kernel
from tests.records.made_up_records import make_record

TARGET = Target.parse("x86-64-v3:cores=1")

WIDE = (("rows", 8), ("vectors", 2), ("order", "mnk"))
NARROW = (("rows", 8), ("vectors", 1), ("order", "mnk"))
OTHER = (("height", 3), ("taps", 2))


def test_similarity_is_the_share_of_equal_answers() -> None:
    assert similarity(WIDE, WIDE) == 1.0
    assert similarity(WIDE, NARROW) == 0.5
    assert similarity(WIDE, OTHER) == 0.0
    assert similarity((), ()) == 1.0


def test_answers_are_carried_over_to_the_block_of_which_the_same_is_asked() -> None:
    """A padded convolution teaches one without padding, whose sum is its first block."""
    padded = Precedent(
        "contraction",
        (("s0/parallel", True), ("s1/rows", 6), ("s1/vectors", 2), ("s1/parallel", True), ("variant", "default")),
        (("s0/parallel", False), ("s1/rows", 12), ("s1/vectors", 2), ("s1/parallel", False), ("variant", "default")),
        0.8,
    )
    plain = (("s0/rows", 6), ("s0/vectors", 2), ("s0/parallel", True), ("s1/parallel", True))

    (best,) = suggestions("contraction", plain, [padded])

    assert dict(best) == {"s1/parallel": False, "s0/rows": 12, "s0/vectors": 2, "s0/parallel": False, "variant": "default"}


def test_blocks_that_are_like_none_keep_their_names() -> None:
    other = Precedent("contraction", (("s0/taps", 2),), (("s0/taps", 3),), 0.5)

    assert suggestions("contraction", (("s0/rows", 6),), [other]) == [(("s0/taps", 3),)]


def test_the_most_similar_tasks_of_the_same_rule_are_followed_first() -> None:
    best = [(("rows", k), ("vectors", 2), ("order", "kmn")) for k in range(4)]
    known = [
        Precedent("contraction", NARROW, best[0], 0.5),
        Precedent("contraction", WIDE, best[1], 0.9),
        Precedent("contraction", WIDE, best[2], 0.7),
        Precedent("winograd", WIDE, best[3], 0.1),
        Precedent("contraction", WIDE, best[1], 0.8),
        Precedent("contraction", NARROW, WIDE, 0.2),
    ]

    assert suggestions("contraction", WIDE, known) == [best[2], best[1], best[0]]


def test_a_precedent_is_what_checks_have_left_of_the_trials() -> None:
    trials = [make_record(k, seconds=2e-3, ratio=r, trial=k, verified=False) for k, r in ((1, 1.0), (2, 0.6), (3, 0.8), (4, 0.9))]
    lucky = replace(trials[1], ratio=1.1)
    good = replace(trials[2], ratio=0.82, verified=True)

    (found,) = precedents_of({"a": [*trials, lucky, good], "b": trials[:1], "c": [make_record(5, error="crash", trial=1)]})

    assert found.best == good.point
    assert found.ratio == 0.82
    assert found.default == trials[0].point


def test_telling_records_are_the_fastest_and_some_of_the_others() -> None:
    records = [make_record(k, ratio=0.1 * k) for k in range(1, 41)]

    chosen = [record.ratio for record in telling(records, 8)]

    assert chosen[:4] == [0.1 * k for k in range(1, 5)]
    assert len(chosen) == 8
    assert chosen[-1] == 4.0
    assert telling(records[:3], 8) == records[:3]


def measured_records(name: str, count: int, folder: Path) -> tuple[str, list[Record]]:
    """Records of random schedules of a real kernel, which the store beside `folder` / "db" knows."""
    func = canonical_names(kernel(name)[0])
    key = workload_key(func)
    WorkloadStore(folder / "db").put(key, func)
    space, rng = Space({"": func}, TARGET), np.random.default_rng(0)
    candidates = {c.key: c for c in (space.sample(rng) for _ in range(2 * count))}
    records = [
        make_record(k, seconds=1e-3 * (1 + k), ratio=1.0 + k, trace=c.trace.to_json(), rule=c.rule, workload=key)
        for k, c in enumerate(candidates.values())
    ]
    return key, records[:count]


def test_the_shared_model_learns_from_records_of_other_workloads(tmp_path: Path) -> None:
    known = dict(measured_records(name, 12, tmp_path) for name in ("matmul", "gelu"))
    known["unknown"] = [make_record()]
    shared = SharedModel(RankCost)

    teach(shared, known, WorkloadStore(tmp_path / "db"), TARGET, {"contraction"}, lambda: False)

    assert set(shared.groups) == set(known) - {"unknown"}
    assert len(shared.groups[next(iter(known))].seconds) == 12
    assert LEARNED_ROWS > 24


def test_records_of_symbolic_programs_teach_at_the_sizes_they_were_measured_at(tmp_path: Path) -> None:
    text = """
@graph
def main(x: f32[n, 48], w: f32[48, 40]):
    a: f32[n, 40] = matmul(x, w)
    return a
"""
    (task,) = extract_tasks(parse_module(text), TARGET, sizes={"n": 30}).tasks
    store, space, rng = WorkloadStore(tmp_path / "db"), task.space(), np.random.default_rng(0)
    store.put(task.key, next(iter(task.variants.values())).func)
    candidates = {c.key: c for c in (space.sample(rng) for _ in range(8))}.values()
    record = make_record(workload=task.key, rule="contraction")
    sized = [
        replace(record, trace=c.trace.to_json(), ratio=1.0 + k, dims=tuple(task.dims.items())) for k, c in enumerate(candidates)
    ]
    shared, untold = SharedModel(RankCost), SharedModel(RankCost)

    teach(shared, {task.key: sized}, store, TARGET, (), lambda: False)
    teach(untold, {task.key: [replace(each, dims=()) for each in sized]}, store, TARGET, (), lambda: False)

    assert list(task.dims.values()) == [30]
    assert len(shared.groups[task.key].seconds) == len(sized) > 1
    assert not untold.groups


def test_no_time_means_no_foreign_measurements(tmp_path: Path) -> None:
    known = dict([measured_records("matmul", 4, tmp_path)])
    shared = SharedModel(RankCost)

    teach(shared, known, WorkloadStore(tmp_path / "db"), TARGET, (), lambda: True)

    assert not shared.groups


class Witness:
    """A cost that remembers what it was fitted to."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.fits = 0

    def fit(self, groups: Sequence[Measured]) -> None:
        self.seen = [group.key for group in groups]
        self.fits += 1


def test_a_shared_model_has_not_seen_the_task_it_serves_but_most_others() -> None:
    shared = SharedModel(Witness)  # type: ignore[arg-type]
    keys = [f"task{k}" for k in range(30)]
    for key in keys:
        shared.add(key, np.ones((4, 2), np.float32), np.ones(4))

    for key in keys:
        shared.refit(key)
        cost = shared.cost_for(key)

        assert isinstance(cost, Witness)
        assert key not in cost.seen
        assert len(cost.seen) >= 10


def test_foreign_measurements_are_for_all_tasks() -> None:
    shared = SharedModel(Witness)  # type: ignore[arg-type]
    rows, seconds = np.zeros((9, 2), np.float32), np.ones(9)
    keys = [f"task {k}" for k in range(6)]
    for key in keys:
        shared.add(key, rows, seconds, is_foreign=True)

    shared.refit("new")

    assert sorted(shared.cost_for("new").seen) == keys  # type: ignore[attr-defined]


def test_a_shared_model_learns_again_when_there_is_a_third_more() -> None:
    shared = SharedModel(Witness)  # type: ignore[arg-type]
    for k in range(20):
        shared.add(f"task{k}", np.ones((4, 2), np.float32), np.ones(4))
    cost = shared.cost_for("new")
    assert isinstance(cost, Witness)

    shared.refit("new")
    shared.refit("new")
    assert cost.fits == 1
    for k in range(20):
        shared.add(f"task{k}", np.ones((2, 2), np.float32), np.ones(2))
    shared.refit("new")
    assert cost.fits == 2
    assert len(shared.groups["task0"].seconds) == 6
