"""Kernels timed and checked on a CUDA device, and rows of the GPU benchmark, in a process whose driver is the fake one."""

import os
from pathlib import Path

import numpy as np
from cuda_driver.driver import FakeDriver, main
from cuda_driver.interpreted import runs_in

from benchmarks.gpu_rows import Settings, measure_row
from tc.autotune.build import BuildRequest, build
from tc.autotune.tasks import extract_tasks
from tc.autotune.timing import CheckRequest, Timer, TimeRequest, TrialPlan
from tc.ir.parser import parse_module
from tc.target import Target

PTX = "cuda:sm_80,features=+ptx"
PRODUCT = """
@graph
def main(x: f32[8, 16], w: f32[16, 8]):
    y: f32[8, 8] = matmul(x, w)
    return y
"""
fake = FakeDriver()
fake.run_image = runs_in(fake)


def built():
    (task,) = extract_tasks(parse_module(PRODUCT), Target.parse(PTX)).tasks
    return build(BuildRequest(task.workload("default"), task.space().default().trace.to_json()))


def a_kernel_is_timed_and_checked_on_the_device():
    kernel, timer = built(), Timer(TrialPlan(slot_seconds=0.0, budget_seconds=0.0, min_pairs=1, max_pairs=1))
    x, w = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((8, 16), (16, 8)))

    timed = timer.time(TimeRequest(kernel, kernel, 1.0, True), lambda stage: None)

    assert timed.wrong is None and timed.reference_seconds > 0 and len(timed.ratios) >= 1
    assert timer.check(CheckRequest(kernel, (x, w), (x @ w,))) is None
    assert "the largest error is 1" in timer.check(CheckRequest(kernel, (x, w), (x @ w + 1,)))
    assert not fake.complaints


def rows_of_the_benchmark_are_measured_on_the_device():
    settings = Settings(PTX, 0.0, "", os.environ["TC_TEST_FOLDER"])

    right = measure_row("check/small_softmax", settings)
    peak = measure_row("peak/copy", settings)

    assert right["right"] is True and right["same_bits"] is True, right
    assert "problem" in peak and "bytes_per_second" not in peak
    assert not list(Path(settings.folder).glob("*.jsonl"))


if __name__ == "__main__":
    main(globals())
