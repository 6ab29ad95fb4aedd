"""Tuning on a device: candidates timed and checked there, records kept by what the device is, and used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tc
from tc.autotune.inputs import ArraySpec
from tc.autotune.measure import LocalRunner
from tc.autotune.places import place_of_kernels
from tc.autotune.runner import Job, Workload
from tc.autotune.tasks import extract_tasks
from tc.autotune.timing import TrialPlan
from tc.ir.parser import parse_module
from tc.records.database import Database
from tc.schedule.step import Trace
from tc.target import Target
from tests.opencl_driver import need_opencl

need_opencl()

TARGET = Target.parse("opencl")
PRODUCT = """
@graph
def main(x: f32[16, 24], w: f32[24, 32]):
    y: f32[16, 32] = matmul(x, w)
    return y
"""
TOO_MANY_BLOCKS = """
@loops
def scale(A: f32[n], B: f32[n], n: i64):
    outputs(1)
    for b in bound(n, 'block.y'):
        for t in bound(1, 'thread.x'):
            B[b + t] = A[b + t] * 2.0
"""
QUICK = TrialPlan(slot_seconds=0.0005, budget_seconds=0.002, min_pairs=2, max_pairs=2)


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    with LocalRunner(builders=1, plan=QUICK) as shared:
        yield shared


def jobs(count: int, rows: int = 16) -> list[Job]:
    """The default and other schedules of a product whose second operand is read from several places in turns."""
    (task,) = extract_tasks(parse_module(PRODUCT.replace("16", str(rows))), TARGET).tasks
    space, rng = task.space(), np.random.default_rng(0)
    default = space.default().trace.to_json()
    workload = replace(task.workload("default"), constants=(1,), apart_bytes=8 << 10)
    return [Job(workload, default if k == 0 else space.sample(rng).trace.to_json(), default) for k in range(count)]


def test_candidates_are_timed_on_a_device_beside_the_default(runner: LocalRunner) -> None:
    found = runner.measure(jobs(3))

    assert [each.error for each in found] == [None] * 3
    assert all(0 < each.low <= each.seconds <= each.high < np.inf and each.rounds >= 1 for each in found)
    assert len({each.reference_seconds for each in found}) == 1


def test_results_of_a_device_are_compared_with_those_of_the_reference(runner: LocalRunner) -> None:
    job = jobs(2)[1]
    x, w = (np.random.default_rng(1).standard_normal(shape).astype(np.float32) for shape in ((16, 24), (24, 32)))

    assert runner.check(job, [x, w], [x @ w]) is None
    assert "result 0: the largest error is 1" in str(runner.check(job, [x, w], [x @ w + 1]))


def test_a_launch_that_the_device_refuses_has_no_time(runner: LocalRunner) -> None:
    workload = Workload("scale", TOO_MANY_BLOCKS, (("n", 70000),), str(TARGET), 1)

    (found,) = runner.measure([Job(workload, Trace().to_json(), Trace().to_json())])

    assert found.error == "memory" and "a launch has more blocks than devices take" in found.detail and found.ratio == np.inf
    assert runner.measure(jobs(1))[0].error is None  # the device is there for the next


def test_writes_beside_arrays_of_a_device_are_found() -> None:
    arrays = place_of_kernels(str(TARGET)).arrays((ArraySpec((5,), "f32"), ArraySpec((3,), "i8")), guard_bytes=256)
    arrays.write(0, np.arange(5, dtype=np.float32))
    arrays.spoil(1)
    before = arrays.broken_guards()
    arrays.specs = (ArraySpec((6,), "f32"), arrays.specs[1])
    arrays.write(0, np.arange(6, dtype=np.float32))

    assert before == [] and arrays.broken_guards() == [0]
    assert arrays.read(1).tolist() == [-1, -1, -1]


def test_a_model_is_tuned_on_a_device_and_compiles_with_what_was_found(tmp_path: Path, runner: LocalRunner) -> None:
    module, database = parse_module(PRODUCT), tmp_path / "tuning.jsonl"

    found = tc.tune(module, "60s", target="opencl", database=database, trials=3, runner=runner)

    records = list(Database(database).records())
    assert found.result.tasks[0].trials == len({record.schedule_key for record in records}) == 3
    assert {(record.target, record.threads) for record in records} == {(TARGET.device.key, 1)}

    # What the tuner decided depends on three noisy times, so the schedule to compile with comes from a database that holds it alone.
    decided = tmp_path / "decided.jsonl"
    Database(decided).append([replace(min(records, key=lambda record: record.ratio), verified=True)])
    tuned = tc.compile(module, "opencl", tune=decided)

    assert [kernel.tuned for kernel in tuned.report().kernels] == [True]
    x, w = (np.random.default_rng(1).standard_normal(shape).astype(np.float32) for shape in ((16, 24), (24, 32)))
    np.testing.assert_allclose(tuned(x, w), x @ w, atol=1e-4)
