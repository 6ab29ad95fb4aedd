"""Records that come with tc for devices of an architecture: used without being asked for, and below a user's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tc
from tc.autotune.search.space import Candidate
from tc.autotune.task import Task
from tc.autotune.tasks import extract_tasks
from tc.cost.device_work import device_work
from tc.errors import ScheduleError
from tc.ir.parser import parse_module
from tc.records import apply
from tc.records.database import Database
from tc.records.record import Record
from tc.target import Target
from tests.opencl_driver import need_opencl

TARGET = Target.parse("opencl:generic@x86-64-v3")
MODEL = """
@graph
def main(x: f32[16, 24], w: f32[24, 32]):
    y: f32[16, 32] = matmul(x, w)
    return y
"""


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a plain OpenCL device, which is not there yet."""
    monkeypatch.setattr(apply, "SHIPPED", tmp_path)
    yield tmp_path / "opencl-generic.jsonl"


def task_and_others(count: int) -> tuple[Task, list[Candidate]]:
    """The model's task, and different schedules of it that are not the default."""
    (task,) = extract_tasks(parse_module(MODEL), TARGET).tasks
    space, rng, found = task.space(), np.random.default_rng(0), {}
    default = space.default().key
    while len(found) < count:
        try:
            candidate = space.sample(rng)
        except ScheduleError:
            continue
        if candidate.key != default:
            found[candidate.key] = candidate
    return task, list(found.values())


def record_of(task: Task, candidate: Candidate, target: str, seconds: float = 1e-3) -> Record:
    facts = {"seconds": seconds, "low": seconds, "high": seconds, "ratio": 0.5, "verified": True, "variant": "default"}
    return Record(workload=task.key, target=target, threads=1, trace=candidate.trace.to_json(), rule=candidate.rule, **facts)


def traces_of(target: Target, tune: Path | None = None) -> list[str]:
    """The schedules that a compilation takes."""
    known = apply.tuned_for(tune, target)
    (task,) = extract_tasks(parse_module(MODEL), TARGET).tasks
    (variant,) = task.variants.values()
    found = None if known is None else known.schedule(variant.func, variant.key)
    return [] if found is None else [found.trace.to_json()]


def test_records_of_another_product_of_the_architecture_are_used(shipped: Path) -> None:
    task, (one, other) = task_and_others(2)
    before = traces_of(TARGET)
    two = record_of(task, other, "opencl:generic,product=two")
    Database(shipped).append([record_of(task, one, "opencl:generic,product=large", 1e-6), two, replace(two, workload="0" * 20)])

    assert before == []
    assert traces_of(TARGET) == [other.trace.to_json()]  # most records are of that product
    Database(shipped).append([record_of(task, one, TARGET.device.key)])
    assert traces_of(TARGET) == [one.trace.to_json()]
    assert traces_of(Target.parse("x86-64-v3")) == traces_of(Target.parse("cuda:sm_80@x86-64-v3")) == []


def test_a_users_own_records_go_before_and_others_fill_up(shipped: Path, tmp_path: Path) -> None:
    task, (own, theirs) = task_and_others(2)
    Database(shipped).append([record_of(task, theirs, TARGET.device.key)])
    mine = tmp_path / "mine.jsonl"
    Database(mine)

    without = traces_of(TARGET, mine)
    Database(mine).append([record_of(task, own, TARGET.device.key, 1.0)])

    assert without == [theirs.trace.to_json()] and traces_of(TARGET, mine) == [own.trace.to_json()]


def test_a_schedule_that_a_smaller_device_cannot_hold_is_left_out_with_a_note(shipped: Path) -> None:
    task, (one,) = task_and_others(1)
    least = max(work.shared_bytes for work in device_work(one.final, {})) - 1
    small = Target.parse(f"opencl:generic,max_shared_bytes_per_block={least}@x86-64-v3")
    Database(shipped).append([record_of(task, one, TARGET.device.key)])
    known = apply.shipped_schedules(small)
    (variant,) = task.variants.values()

    assert known is not None and known.schedule(variant.func, variant.key) is None
    assert f"bytes of shared memory, generic has {least}" in known.notes[0]


def test_modules_are_compiled_with_them_on_a_device_and_anew_when_they_change(shipped: Path) -> None:
    need_opencl()
    target = Target.parse("opencl")
    (task,) = extract_tasks(parse_module(MODEL), target).tasks
    x, w = (np.random.default_rng(1).standard_normal(shape).astype(np.float32) for shape in ((16, 24), (24, 32)))

    plain = tc.compile(parse_module(MODEL), target)
    candidate = task_and_others(1)[1][0]
    Database(shipped).append([record_of(task, candidate, target.device.key)])
    tuned = tc.compile(parse_module(MODEL), target)

    assert [kernel.tuned for module in (plain, tuned) for kernel in module.report().kernels] == [False, True]
    np.testing.assert_allclose(tuned(x, w), x @ w, atol=1e-4)
