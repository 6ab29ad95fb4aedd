"""Measuring through a folder: what goes back and forth, who does what when several are at it or one is killed, and files from strangers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tc
from tc.autotune.job_folder import (
    DamagedFile,
    JobFolder,
    encode,
    job_data,
    parse_job,
    parse_measurement,
    read_json,
    write_at_once,
)
from tc.autotune.job_runner import JobFolderRunner, measure_folder
from tc.autotune.measure import LocalRunner
from tc.autotune.runner import Job, Measurement, Workload
from tc.autotune.timing import TrialPlan
from tc.cli.main import main
from tc.errors import MeasureError, UserError
from tc.ir.parser import parse_module
from tc.records.database import Database
from tc.schedule.step import Step, Trace
from tests.opencl_driver import need_opencl

PLAIN = Trace().to_json()
SPLIT = Trace((Step("vectorize", ("i",)),)).to_json()


def job(number: int = 0, trace: str = SPLIT) -> Job:
    workload = Workload(f"key{number}", f"program {number}", (("n", 5),), "x86-64-v3:cores=1", 1, (1,), 4096)
    return Job(workload, trace, PLAIN, None if number % 2 else replace(workload, key="other"), 1.0 + number)


class Stub:
    """A runner whose times follow from the workload's key, and whose checks say what they were given."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.lock = threading.Lock()

    def measure(self, jobs: Sequence[Job]) -> list[Measurement]:
        with self.lock:
            self.seen.update(each.workload.key for each in jobs)
        if any(each.workload.target == "cuda:sm_80" for each in jobs):
            raise UserError("this machine cannot run code for cuda:sm_80")
        failed = Measurement.failed("timeout", "took more than 10 s")
        return [failed if each.workload.key == "key3" else Measurement.of_ratios([0.5, 0.6], 2e-3, 0.25) for each in jobs]

    def check(self, job: Job, inputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str | None:
        return None if expected[0].sum() == 0 else f"{[(x.dtype.name, x.shape, float(x.sum())) for x in (*inputs, *expected)]}"

    def close(self) -> None:
        """Nothing to end."""


def measured_beside(folder: Path, stub: Stub) -> threading.Thread:
    thread = threading.Thread(target=measure_folder, args=(folder, stub), kwargs={"watch_seconds": 30.0, "seconds": 30.0}, daemon=True)
    thread.start()
    return thread


def test_jobs_and_results_are_the_same_on_both_sides(tmp_path: Path) -> None:
    jobs, stub = [job(k) for k in range(5)], Stub()
    measured_beside(tmp_path, stub)
    with JobFolderRunner(tmp_path, patience_seconds=20) as runner:
        found = runner.measure(jobs)
        again = runner.measure(jobs[:2])
        said = runner.check(jobs[0], [np.ones((2, 3), ml_dtypes.bfloat16), np.zeros((0,), np.int64)], [np.full((), 3, np.float16)])
        right = runner.check(jobs[0], [np.ones(2, bool)], [np.zeros(1, np.float32)])

    assert [each.error for each in found] == [None, None, None, "timeout", None]
    assert found[3].detail == "took more than 10 s" and math.isinf(found[3].seconds)
    assert (found[0].ratio, found[0].rounds, found[0].reference_seconds, found[0].build_seconds) == (0.55, 2, 2e-3, 0.25)
    assert again == found[:2] and stub.seen["key0"] == 1
    assert said == "[('bfloat16', (2, 3), 6.0), ('int64', (0,), 0.0), ('float16', (), 3.0)]" and right is None
    assert all(parse_job(json.loads(json.dumps(job_data(each)))) == each for each in jobs)


def test_each_of_many_jobs_is_measured_once_by_two_at_a_time(tmp_path: Path) -> None:
    folder, stubs = JobFolder(tmp_path), [Stub(), Stub()]
    names = {folder.put(job(k)) for k in range(40)}
    threads = [threading.Thread(target=measure_folder, args=(tmp_path, stub)) for stub in stubs]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(names) == 40 and sum((stub.seen for stub in stubs), Counter()) == Counter({f"key{k}": 1 for k in range(40)})
    assert not folder.pending() and not list((tmp_path / "claims").iterdir())


def test_what_a_killed_process_had_is_done_by_the_next(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    name = folder.put(job())
    killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    write_at_once(folder.claim_path(name), read_own_claim(tmp_path).replace(b'"pid": 1', f'"pid": {killed.pid}'.encode()))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "tmpabc.part").write_bytes(b'{"format"')

    while_alive = folder.claim(name)
    killed.kill()
    killed.wait()
    report = measure_folder(tmp_path, Stub())

    assert not while_alive
    assert report.done == {"measured": 1} and folder.result(name) is not None and not folder.claim_path(name).exists()


def read_own_claim(folder: Path) -> bytes:
    """A claim of this machine, of process 1."""
    other = JobFolder(folder / "other")
    assert other.claim("x")
    data = read_json(other.claim_path("x"))
    return encode("claim", {**{k: data[k] for k in ("host", "time")}, "pid": 1})


def test_results_that_do_not_come_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    runner = JobFolderRunner(tmp_path, patience_seconds=0.1)
    with pytest.raises(MeasureError, match=r"2 jobs wait in .*: run tc measure on it"):
        runner.measure([job(0), job(1)])

    assert len(JobFolder(tmp_path).pending()) == 2
    measure_folder(tmp_path, Stub())
    with JobFolderRunner(tmp_path, patience_seconds=0.1) as runner:
        assert runner.measure([job(0), job(1)])[1].ratio == 0.55


@pytest.mark.parametrize(
    "change",
    [
        {"effort": 1e9},
        {"effort": True},
        {"trace": "import os"},
        {"trace": Trace((Step("vectorize", (1 << 40,)),)).to_json()},
        {"workload": {}},
        {"workload": {**vars(job().workload), "threads": "1"}},
        {"workload": {**vars(job().workload), "dims": [["n", -1]]}},
        {"workload": {**vars(job().workload), "more": 1}},
    ],
)
def test_files_from_strangers_are_refused_field_by_field(tmp_path: Path, change: dict[str, object]) -> None:
    folder = JobFolder(tmp_path)
    write_at_once(folder.job_path("a" * 24), encode("job", {**job_data(job(1)), **change}))
    good = folder.put(job(1))

    report = measure_folder(tmp_path, Stub())

    assert list(report.damaged) == ["a" * 24] and report.done == {"measured": 1} and folder.result(good) is not None
    assert not folder.claim_path("a" * 24).exists()


def test_arrays_with_objects_in_them_are_never_unpickled(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    name = folder.put(job(), {"input0": np.zeros(3, np.float32), "result0": np.zeros(3, np.float32)})
    np.savez(folder.job_path(name).with_suffix(".npz"), **{"input0:f32:3": np.array([{"a": 1}], object)})

    report = measure_folder(tmp_path, Stub())

    assert "its arrays cannot be read" in report.damaged[name] and not folder.result_path(name).exists()


@pytest.mark.parametrize("change", [{"ratio": -1.0}, {"seconds": None}, {"rounds": 0}, {"error": "no such kind"}, {"low": "1"}])
def test_results_from_strangers_are_refused(change: dict[str, object]) -> None:
    good = vars(Measurement.of_ratios([0.5], 1e-3, 0.1))

    assert parse_measurement(dict(good)).ratio == 0.5
    with pytest.raises(DamagedFile):
        parse_measurement({**good, **change})


def test_jobs_for_another_machine_keep_none_of_the_others_waiting(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    foreign = folder.put(replace(job(1), workload=replace(job(1).workload, target="cuda:sm_80")))
    names = [folder.put(job(k)) for k in range(2)]

    report = measure_folder(tmp_path, Stub())

    assert report.damaged == {foreign: "this machine cannot run code for cuda:sm_80"}
    assert all(folder.result(name) is not None for name in names) and folder.pending() == [foreign]


@pytest.mark.slow
def test_a_model_is_tuned_here_by_what_is_measured_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_opencl()
    module = parse_module("""
@graph
def main(x: f32[16, 24], w: f32[24, 32]):
    y: f32[16, 32] = matmul(x, w)
    return y
""")
    folder, database = tmp_path / "jobs", tmp_path / "tuned.jsonl"
    plan = TrialPlan(slot_seconds=0.0005, budget_seconds=0.002, min_pairs=2, max_pairs=2)
    with JobFolderRunner(folder, patience_seconds=200) as runner, LocalRunner(builders=1, plan=plan) as local:
        there = threading.Thread(target=measure_folder, args=(folder, local), kwargs={"watch_seconds": 300.0}, daemon=True)
        there.start()
        found = tc.tune(module, "400s", target="opencl", database=database, trials=3, runner=runner)

    assert found.result.tasks[0].trials == 3
    assert len({record.schedule_key for record in Database(database).records()}) == 3
    assert main(["measure", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left"] == 0
