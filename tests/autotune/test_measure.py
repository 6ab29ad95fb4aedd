"""Candidates in child processes: what comes back, and that nothing a candidate does harms the others."""

from __future__ import annotations

import math
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from tc.autotune import measure
from tc.autotune.build import BuildRequest, build
from tc.autotune.child import Child
from tc.autotune.measure import LocalRunner
from tc.autotune.runner import ERROR_KINDS, Job, Measurement, ReferenceClock, Workload
from tc.autotune.timing import TrialPlan
from tc.errors import MeasureError, UserError
from tc.ir.parser import parse_prim_func
from tc.schedule.rules import apply_rules
from tc.schedule.step import Schedule, Trace
from tc.target import native_target
from tests.autotune.faulty_worker import BrokenRunner, FaultyRunner

PATIENCE_SECONDS = 250.0
"""What no test waits for unless something is broken, however busy the machine is."""

ROOT = Path(__file__).parent.parent.parent
PLAIN = Trace().to_json()

SCALE = """
@loops
def scale(A: f32[n, 64], B: f32[n, 64], n: i64):
    outputs(1)
    for i in range(n):
        for j in range(64):
            with block('scale', vi=spatial(n, i), vj=spatial(64, j)):
                B[vi, vj] = A[vi, vj] * 2.0 + 1.0
"""

MATMUL = """
@loops
def matmul(A: f32[192, 192], B: f32[192, 192], C: f32[192, 192]):
    outputs(1)
    for i in range(192):
        for j in range(192):
            for k in range(192):
                with block('sum', vi=spatial(192, i), vj=spatial(192, j), vk=reduction(192, k)):
                    with init():
                        C[vi, vj] = 0.0
                    C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""


def scale_job(trace: str = PLAIN, rows: int = 64, reference: str = PLAIN) -> Job:
    workload = Workload("scale", SCALE, (("n", rows),), str(replace(native_target(), cores=1)), 1)
    return Job(workload, trace, reference)


def vectorized() -> str:
    schedule = Schedule(parse_prim_func(SCALE))
    schedule.vectorize(schedule.loops_of("scale")[1])
    return schedule.trace.to_json()


def matmul_job(trace: str | None = None, threads: int = 1) -> Job:
    target = replace(native_target(), cores=threads)
    best = apply_rules(parse_prim_func(MATMUL), target).trace.to_json()
    return Job(Workload("matmul", MATMUL, (), str(target), threads), best if trace is None else trace, best)


def x_and_y(rows: int = 64) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(1).standard_normal((rows, 64)).astype(np.float32)
    return x, x * 2 + 1


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not asked for its status does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module")
def runner() -> Iterator[FaultyRunner]:
    patience = {"build_timeout": PATIENCE_SECONDS, "run_timeout": PATIENCE_SECONDS}
    with FaultyRunner(builders=2, memory_bytes=512 << 20, **patience) as shared:
        shared.measure([scale_job()])
        yield shared


# -- numbers


@pytest.mark.clock
def test_measurements_come_in_the_order_of_the_jobs(runner: FaultyRunner) -> None:
    rows = [2048, 64, 2048, 512, 64]

    found = runner.measure([scale_job(rows=n) for n in rows])

    assert [m.error for m in found] == [None] * 5
    seconds = {n: m.reference_seconds for n, m in zip(rows, found, strict=True)}
    assert seconds[64] < seconds[512] < seconds[2048]


def test_seconds_are_the_ratio_times_what_the_reference_takes(runner: FaultyRunner) -> None:
    (found,) = runner.measure([scale_job(vectorized())])

    assert found.error is None and found.rounds >= 4 and found.build_seconds > 0
    assert found.seconds == pytest.approx(found.ratio * found.reference_seconds)
    assert found.low <= found.seconds <= found.high


@pytest.mark.clock
def test_equal_kernels_have_ratio_one(runner: FaultyRunner) -> None:
    found = runner.measure([matmul_job()] * 9)

    assert median(m.ratio for m in found) == pytest.approx(1.0, abs=0.4)


@pytest.mark.clock
def test_a_better_schedule_is_seen(runner: FaultyRunner) -> None:
    plain = matmul_job(PLAIN)

    (found,) = runner.measure([replace(plain, trace=plain.reference_trace, reference_trace=PLAIN)])

    assert found.error is None and found.ratio < 0.5


@pytest.mark.clock
def test_hopeless_candidates_take_few_rounds(runner: FaultyRunner) -> None:
    good, slow = runner.measure([matmul_job(), matmul_job(PLAIN)])

    assert slow.error is None and slow.ratio > 2
    assert slow.rounds <= 2 < good.rounds


@pytest.mark.clock
def test_effort_buys_rounds(runner: FaultyRunner) -> None:
    usual, longer = runner.measure([matmul_job(), replace(matmul_job(), effort=5.0)])

    assert longer.rounds >= 2 * usual.rounds


@pytest.mark.clock
def test_the_reference_may_be_another_workload(runner: FaultyRunner) -> None:
    large, small = scale_job(rows=4096).workload, scale_job(rows=256).workload

    (found,) = runner.measure([Job(large, PLAIN, PLAIN, reference_workload=small, effort=2.0)])

    assert found.error is None and found.ratio > 4


def test_threads_take_part() -> None:
    threads = min(2, native_target().cores)
    with LocalRunner(builders=1) as local:
        (found,) = local.measure([matmul_job(threads=threads)])

    assert found.error is None


@pytest.mark.clock
def test_cold_caches_make_a_kernel_slower() -> None:
    job = scale_job(vectorized(), rows=512, reference=vectorized())
    with LocalRunner(builders=1) as warm, LocalRunner(builders=1, plan=TrialPlan(cold=True)) as cold:
        (quick,), (slow,) = warm.measure([job]), cold.measure([job])

    assert quick.error is None and slow.error is None
    assert slow.reference_seconds > 1.5 * quick.reference_seconds


def test_no_jobs_need_no_children() -> None:
    with LocalRunner() as local:
        assert local.measure([]) == []
        assert local.pids == ()


def test_what_the_reference_takes_is_not_moved_by_slow_phases() -> None:
    clock = ReferenceClock()
    for seconds in (1.0, 1.02, 2.0, 0.99, 1.01, 2.1, 1.0):
        clock.add("k", seconds)

    assert clock.seconds("k") == pytest.approx(1.0, rel=0.01)
    assert clock.seconds("other") is None


def test_a_measurement_can_be_put_on_another_reference() -> None:
    found = Measurement.of_ratios([0.4, 0.5, 0.6], 2.0, 0.1).with_reference(4.0)

    assert (found.seconds, found.ratio, found.reference_seconds) == pytest.approx((2.0, 0.5, 4.0))
    assert Measurement.failed("crash", "x").with_reference(4.0).seconds == math.inf


def test_what_is_built_is_the_same_in_every_process() -> None:
    """The child that times knows a reference again by comparing."""
    job = scale_job()
    built = build(BuildRequest(job.workload, job.trace))

    assert pickle.loads(pickle.dumps(built)) == built


# -- faults


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("build crashes", "crash", "SIGSEGV"),
        ("build eats memory", "memory", "Unable to allocate|MemoryError"),
        ("LLVM aborts", "memory", "SIGABRT.*LLVM ERROR: out of memory"),
        ("build raises", "build", "KeyError: 'no such key'"),
        ("crashes", "crash", "SIGSEGV"),
        ("traps", "crash", "SIGILL"),
        ("huge workspace", "memory", "no memory for"),
        ("does nothing", "wrong", "result 0 differs from that of the reference kernel: NaN or infinity"),
    ],
)
def test_a_fault_is_a_result_and_the_others_are_measured(
    runner: FaultyRunner, fault: str, kind: str, words: str
) -> None:
    jobs = [scale_job(), scale_job(f"fault:{fault}"), scale_job(vectorized()), scale_job()]

    first, faulty, *others = runner.measure(jobs)

    assert faulty.error == kind and kind in ERROR_KINDS
    assert re.search(words, faulty.detail), faulty.detail
    assert faulty.seconds == math.inf and faulty.rounds == 0
    assert [m.error for m in (first, *others)] == [None] * 3


@pytest.mark.parametrize(("fault", "limit"), [("build hangs", "_build_timeout"), ("hangs", "_run_timeout")])
def test_what_hangs_is_ended_and_the_others_are_measured(runner: FaultyRunner, fault: str, limit: str) -> None:
    """Only what hangs is measured under a short limit: however slow the machine is, the others are not what it hits."""
    runner.measure([scale_job()])  # the reference is built
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, limit, 1.0)
        (faulty,) = runner.measure([scale_job(f"fault:{fault}")])

    others = runner.measure([scale_job(), scale_job(vectorized())])

    assert faulty.error == "timeout" and "more than 1" in faulty.detail
    assert faulty.seconds == math.inf and faulty.rounds == 0
    assert [m.error for m in others] == [None] * 2


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        ("not a trace", "not a schedule trace"),
        ('{"version":99,"steps":[]}', "version 99"),
        ('{"version":1,"steps":[["vectorize","no_such_loop"]]}', "no_such_loop"),
        ('{"version":1,"steps":[["explode","i"]]}', "no primitive 'explode'"),
    ],
)
def test_an_illegal_trace_is_a_result(runner: FaultyRunner, trace: str, words: str) -> None:
    illegal, good = runner.measure([scale_job(trace), scale_job()])

    assert illegal.error == "illegal" and words in illegal.detail
    assert good.error is None


def test_text_that_is_no_program_is_a_result(runner: FaultyRunner) -> None:
    job = scale_job()
    workload = replace(job.workload, text="def f(:")

    (found,) = runner.measure([replace(job, workload=workload)])

    assert found.error == "build" and "ParseError" in found.detail


def test_a_dim_without_a_size_is_named(runner: FaultyRunner) -> None:
    job = scale_job()

    (found,) = runner.measure([replace(job, workload=replace(job.workload, dims=()))])

    assert found.error == "build" and "no size is given for dim n" in found.detail


def test_a_reference_that_fails_is_blamed_once(runner: FaultyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [scale_job(reference="fault:crashes", rows=96)] * 20
    started = []

    def start(*args: object, **options: object) -> Child:
        started.append(args)
        return Child(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(measure, "Child", start)
    found = runner.measure(jobs)

    assert {m.error for m in found} == {"crash"}
    assert all("the reference kernel" in m.detail and "SIGSEGV" in m.detail for m in found)
    assert len(started) <= 2  # not a new child for each


def test_a_child_killed_from_outside_costs_nothing(runner: FaultyRunner) -> None:
    runner.measure([scale_job()])
    victims = runner.pids
    killed = threading.Timer(0.3, lambda: [os.kill(pid, signal.SIGKILL) for pid in victims])

    killed.start()
    found = runner.measure([scale_job("fault:slow")] + [scale_job(rows=k) for k in range(1, 9)])
    killed.join()

    assert [m.error for m in found] == [None] * 9
    assert not set(runner.pids) & set(victims)


def test_a_timer_killed_from_outside_costs_nothing(runner: FaultyRunner) -> None:
    jobs = [matmul_job(), *(replace(matmul_job(), effort=10.0) for _ in range(4))]
    runner.measure(jobs[:1])
    timer = runner.pids[-1]
    killed = threading.Timer(0.5, lambda: os.kill(timer, signal.SIGKILL))

    killed.start()
    found = runner.measure(jobs)
    killed.join()

    assert [m.error for m in found] == [None] * 5


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where the process was started in the background, with that signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_what_children_do_and_the_runner_goes_on(runner: FaultyRunner) -> None:
    before = set(runner.pids)
    interrupted = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))

    interrupted.start()
    with pytest.raises(KeyboardInterrupt):
        runner.measure([scale_job("fault:build hangs"), scale_job("fault:build hangs")])
    interrupted.join()

    assert len(set(runner.pids) & before) <= 1  # the child that times was not at work
    assert runner.measure([scale_job()])[0].error is None


def test_closing_ends_the_children() -> None:
    local = LocalRunner(builders=1)
    local.measure([scale_job()])
    pids = local.pids

    local.close()
    local.close()

    assert len(pids) == 2 and not any(map(is_alive, pids))
    with pytest.raises(MeasureError, match="closed"):
        local.measure([scale_job()])


PARENT = """
import signal, sys, threading
from tests.autotune.faulty_worker import FaultyRunner
from tests.autotune.test_measure import scale_job

signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in what was started in the background

def main():
    runner = FaultyRunner(builders=2, build_timeout=100.0, run_timeout=100.0)
    runner.measure([scale_job()])
    print(*runner.pids, flush=True)
    runner.measure([scale_job(sys.argv[1])])

if sys.argv[2] == "thread":  # the system is then not asked to end children with it
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
else:
    main()
"""


@pytest.mark.parametrize(
    ("trace", "number", "where"),
    [
        ("fault:build hangs", signal.SIGKILL, "main"),
        pytest.param("fault:build hangs", signal.SIGKILL, "thread", marks=pytest.mark.slow),
        pytest.param("fault:hangs", signal.SIGKILL, "main", marks=pytest.mark.slow),
        ("fault:hangs", signal.SIGKILL, "thread"),
        ("fault:hangs", signal.SIGINT, "main"),
    ],
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_no_child_outlives_its_parent(trace: str, number: signal.Signals, where: str) -> None:
    command = [sys.executable, "-c", PARENT, trace, where]

    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        time.sleep(0.5)
        alive = [pid for pid in pids if is_alive(pid)]
        parent.send_signal(number)
        parent.wait(PATIENCE_SECONDS)

    assert len(pids) == 2 and alive == pids

    assert wait_until(lambda: not any(map(is_alive, pids)))


def test_children_that_do_not_start_are_an_error_with_their_words() -> None:
    with BrokenRunner(builders=1) as broken, pytest.raises(MeasureError, match="no licence for this machine"):
        broken.measure([scale_job()])


def test_a_target_that_this_machine_lacks_is_refused(runner: FaultyRunner) -> None:
    job = scale_job()
    foreign = replace(job.workload, target="cpu:name=x86-64,features=cmov+made-up")

    with pytest.raises(UserError, match="it has no made-up"):
        runner.measure([replace(job, workload=foreign)])


def test_more_threads_than_cpus_are_refused(runner: FaultyRunner) -> None:
    job = scale_job()

    with pytest.raises(UserError, match="4096 threads"):
        runner.measure([replace(job, workload=replace(job.workload, threads=4096))])


# -- checking


def test_right_results_pass_the_check(runner: FaultyRunner) -> None:
    x, y = x_and_y()

    assert runner.check(scale_job(vectorized()), [x], [y]) is None


def test_the_check_says_by_how_much_a_result_differs(runner: FaultyRunner) -> None:
    x, y = x_and_y()

    assert "largest error is 0.5" in str(runner.check(scale_job(), [x], [y + np.float32(0.5)]))


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        ("fault:does nothing", "NaN or infinity"),
        ("fault:writes behind", "writes outside of its arrays, behind number 1 of 2"),
        ("fault:changes input", "changes its input 0"),
        ("fault:crashes", "crash: killed by SIGSEGV"),
        ("fault:build raises", "build: KeyError"),
        ("not a trace", "illegal: ScheduleError"),
    ],
)
def test_the_check_finds_wrong_candidates(runner: FaultyRunner, trace: str, words: str) -> None:
    x, y = x_and_y()

    assert words in str(runner.check(scale_job(trace), [x], [y]))


def test_inputs_of_other_shapes_are_not_run(runner: FaultyRunner) -> None:
    x, y = x_and_y(rows=5)

    assert "the inputs have shapes" in str(runner.check(scale_job(), [x], [y]))
