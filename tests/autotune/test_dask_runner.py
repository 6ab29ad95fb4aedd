"""Candidates on the workers of a cluster: in order, on the right machines, and none is lost with a worker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import pytest

from tc.autotune.dask_runner import DaskRunner, RunnerOptions, describe_machine, local_cluster
from tc.autotune.runner import Measurement
from tc.errors import MeasureError, UserError
from tc.target import Target, native_target
from tests.autotune.faulty_worker import FaultyRunner
from tests.autotune.test_measure import is_alive, matmul_job, scale_job, vectorized, wait_until, x_and_y

pytest.importorskip("distributed", reason="the extra `dask` is not installed")
CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="two workers need two CPUs")
OPTIONS = RunnerOptions(build_timeout=5.0, run_timeout=3.0)


class FaultyDaskRunner(DaskRunner):
    local_runner = FaultyRunner


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with local_cluster(CPUS[:2]) as connected:
        yield connected


@pytest.fixture(scope="module")
def runner(client: Any) -> Iterator[FaultyDaskRunner]:
    with FaultyDaskRunner(client, options=OPTIONS) as shared:
        yield shared


def test_each_worker_has_a_core_of_its_own(client: Any) -> None:
    found = client.run(lambda: sorted(os.sched_getaffinity(0)))

    assert sorted(found.values()) == [[core] for core in CPUS[:2]]


def test_measurements_come_in_order_from_both_workers(runner: FaultyDaskRunner) -> None:
    rows = [4096, 64, 1024, 4096, 64, 1024]

    found = runner.measure([scale_job(rows=n) for n in rows])

    assert [m.error for m in found] == [None] * 6
    assert found[1].seconds < found[2].seconds < found[0].seconds
    assert found[0].reference_seconds == found[3].reference_seconds  # of whichever worker
    assert len(runner.workers) == 2 and not runner.refused


def test_equal_kernels_have_ratio_one_on_every_worker(runner: FaultyDaskRunner) -> None:
    found = runner.measure([matmul_job()] * 8)

    assert median(m.ratio for m in found) == pytest.approx(1.0, abs=0.4)


def test_faults_stay_with_their_candidate(runner: FaultyDaskRunner) -> None:
    traces = ["fault:crashes", vectorized(), "fault:does nothing", "not a trace", vectorized()]

    found = runner.measure([scale_job(trace) for trace in traces])

    assert [m.error for m in found] == ["crash", None, "wrong", "illegal", None]


def test_results_are_checked_on_a_worker(runner: FaultyDaskRunner) -> None:
    x, y = x_and_y()

    assert runner.check(scale_job(vectorized()), [x], [y]) is None
    assert "largest error" in str(runner.check(scale_job(), [x], [y + np.float32(1)]))


def test_what_a_lost_worker_had_is_measured_by_others(client: Any, runner: FaultyDaskRunner) -> None:
    runner.measure([scale_job(), scale_job()])
    before = dict(client.run(os.getpid))
    address, victim = next(iter(before.items()))
    children = client.run(_children_of_worker, workers=[address])[address]
    jobs = [scale_job("fault:slow", rows=n) for n in range(1, 9)]
    killed = threading.Timer(0.8, lambda: os.kill(victim, signal.SIGKILL))

    killed.start()
    found = runner.measure(jobs)
    killed.join()

    assert [m.error for m in found] == [None] * 8
    assert children and wait_until(lambda: not any(map(is_alive, children)))
    assert wait_until(lambda: len(client.nthreads()) == 2, seconds=30)
    assert set(client.run(os.getpid).values()) != set(before.values())
    assert sorted(client.run(lambda: sorted(os.sched_getaffinity(0))).values()) == [[core] for core in CPUS[:2]]


def _children_of_worker() -> list[int]:
    from tc.autotune import dask_runner

    return [pid for runner in dask_runner._runners.values() for pid in runner.pids]


def test_a_job_that_costs_worker_after_worker_is_given_up() -> None:
    class Lost(DaskRunner):
        def _take_finished(self, running: Any, pending: Any) -> None:
            for future in list(running):
                address, task = running.pop(future)
                self._lose(task, address, pending)

    runner = Lost(FakeClient({"a": describe_machine()}), max_losses=2)

    (found,) = runner.measure([scale_job()])

    assert found.error == "crash" and found.detail == "2 workers were lost while they had it"


def test_workers_of_another_kind_are_refused_with_words() -> None:
    here = describe_machine()
    old = replace(here, versions=(("tc", "0.0.0"), *here.versions[1:]))
    foreign = replace(here, fingerprint="0" * 16, target="x86-64-v2:cores=4")
    client = FakeClient({"a": old, "b": foreign, "c": RuntimeError("no tc here"), "d": here})
    runner = DaskRunner(client)

    assert set(runner.workers) == {"d"}
    assert "its version of tc is 0.0.0" in runner.refused["a"]
    assert "another target: x86-64-v2:cores=4" in runner.refused["b"]
    assert "RuntimeError: no tc here" in runner.refused["c"]


def test_without_workers_it_is_an_error_that_says_why() -> None:
    foreign = replace(describe_machine(), fingerprint="0" * 16, target="x86-64-v2:cores=4")
    runner = DaskRunner(FakeClient({"a": foreign}), patience_seconds=0.0)

    with pytest.raises(MeasureError, match=r"no worker to measure on.*a: it is another target"):
        runner.measure([scale_job()])


def test_the_wanted_machines_need_not_be_like_this_one() -> None:
    other = Target.parse("x86-64-v2:cores=2")
    machine = replace(describe_machine(), fingerprint=other.fingerprint(), target=str(other))

    assert set(DaskRunner(FakeClient({"a": machine, "b": describe_machine()}), target=other).workers) == {"a"}


def test_workers_for_a_device_are_those_that_have_it() -> None:
    target = Target.parse("cuda:sm_80@x86-64-v2")
    without, having = (replace(describe_machine(), lacking=lacking) for lacking in (("sm_80",), ()))
    runner = DaskRunner(FakeClient({"a": without, "b": having}), target=target)

    assert set(runner.workers) == {"b"}
    assert runner.refused == {"a": "it cannot run code for cuda:sm_80: sm_80"}
    assert describe_machine("rocm:gfx90a").lacking  # no such device is looked for


def test_more_threads_than_any_worker_has_are_an_error(runner: FaultyDaskRunner) -> None:
    job = scale_job()

    with pytest.raises(MeasureError, match="no worker can measure with 7 threads: they may use 1 CPUs"):
        runner.measure([replace(job, workload=replace(job.workload, threads=7))])


def test_what_is_wrong_with_the_request_is_told(runner: FaultyDaskRunner) -> None:
    job = scale_job()

    with pytest.raises(UserError, match="no made-up"):
        runner.measure([replace(job, workload=replace(job.workload, target="cpu:features=cmov+made-up"))])


def test_a_closed_runner_measures_no_more() -> None:
    runner = DaskRunner(FakeClient({"a": describe_machine()}))
    runner.close()
    runner.close()

    with pytest.raises(MeasureError, match="closed"):
        runner.measure([scale_job()])


@pytest.mark.parametrize("cores", [[], [0, 0], [100_000]])
def test_cores_must_be_there(cores: list[int]) -> None:
    with pytest.raises(UserError, match="they must be different CPUs of these"), local_cluster(cores):
        pass


class FakeClient:
    """Workers that say what they are told to, and never do anything."""

    status = "running"

    def __init__(self, machines: dict[str, object]) -> None:
        self.machines = machines

    def nthreads(self) -> dict[str, int]:
        return dict.fromkeys(self.machines, 1)

    def run(self, function: object, *arguments: object, workers: list[str], on_error: str) -> dict[str, object]:
        return {address: self.machines[address] for address in workers} if function is describe_machine else {}

    def submit(self, *arguments: object, **options: object) -> object:
        return object()

    def cancel(self, futures: object, force: bool) -> None:
        pass


def test_workers_leave_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """`distributed` left OMP_NUM_THREADS at 1, so that what was compiled afterwards ran on one thread."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = dict(os.environ)

    with local_cluster(CPUS[:1]):
        pass

    assert dict(os.environ) == before


def test_the_machine_of_this_process_is_described() -> None:
    here = describe_machine()

    assert here.fingerprint == native_target().fingerprint() and dict(here.versions).keys() >= {"tc", "llvmlite"}
    assert Measurement.failed("crash", "").error == "crash"
