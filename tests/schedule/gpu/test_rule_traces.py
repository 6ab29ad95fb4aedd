"""Answers drawn at random to what the rules for devices leave open: every schedule of their spaces computes what the loops say, executed by
an OpenCL device (instructions of warps as the loops that they stand for) and, where there are such instructions, as PTX."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tc.codegen.ptx.emitter import emit_ptx
from tc.errors import ScheduleError
from tc.ir.verify import verify
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tc.schedule.knobs import Decide, Knob, Value
from tc.schedule.rules import Scheduled, apply_rules
from tc.target import Target
from tests.codegen.opencl.kernels import run_on
from tests.opencl_driver import need_opencl
from tests.ptx.kernels import run_launches
from tests.schedule.gpu.launches import drawn
from tests.schedule.gpu.rule_problems import OF_WARPS, RULE_CLASSES, RuleProblem


def drawn_schedule(name: str, seed: int) -> tuple[RuleProblem, Scheduled, str]:
    """A problem of a class, a schedule of it, and the device for which it was made.

    Others are drawn instead where shared memory does not hold what was asked for, and where a rule asked that has to leave the function to
    the next one: its answers are none of the space.
    """
    for draw in range(20):
        rng = np.random.default_rng([zlib.crc32(name.encode()), seed, draw])
        problem = RULE_CLASSES[name](rng)
        device = str(rng.choice(problem.devices))
        target = Target.parse(f"{device}@x86-64-v3:cores=1")
        asked: set[str] = set()
        try:
            made = apply_rules(problem.func, target, noting(asked, drawn(rng)))
        except ScheduleError as error:
            of_space = {choice.knob.name for choice in apply_rules(problem.func, target).choices}
            assert "shared memory" in str(error) or not asked <= of_space, error
            continue
        verify(made.func)
        return problem, made, device
    raise AssertionError(f"no draw of {name} with seed {seed} is of a space")


def noting(asked: set[str], decide: Decide) -> Decide:
    """Answers, and what they were asked for."""

    def answer(knob: Knob) -> Value:
        asked.add(knob.name)
        return decide(knob)

    return answer


def check_on_device(name: str, seed: int, opencl: Target) -> None:
    problem, made, device = drawn_schedule(name, seed)
    final = finish_loops(made.func, calls=DEVICE_FINISH_CALLS)

    problem.check(run_on(opencl, final, problem.arrays, problem.dims), f"{name} {seed} for {device}\n{made.trace}")


def check_as_ptx(name: str, seed: int) -> None:
    problem, made, device = drawn_schedule(name, seed)
    facts = Target.parse(device).device
    assert facts is not None
    final = finish_loops(made.func, calls=DEVICE_FINISH_CALLS, features=facts.features)
    verify(final)

    results = run_launches(final, emit_ptx(final, "k", device.partition(":")[2]), "k", problem.arrays, problem.dims)

    problem.check(results, f"{name} {seed} for {device}\n{made.trace}")


@pytest.fixture(scope="module")
def opencl() -> Target:
    need_opencl()
    return Target.of("opencl")


@pytest.mark.parametrize("name", ["attention", "window", "long_product", "running_sum", "first_in_order"])
def test_any_answers_on_a_device(name: str, opencl: Target) -> None:
    check_on_device(name, 0, opencl)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", RULE_CLASSES)
def test_many_answers_on_a_device(name: str, opencl: Target, seeds: range) -> None:
    for seed in seeds:
        check_on_device(name, seed, opencl)


@pytest.mark.parametrize("name", OF_WARPS)
def test_any_answers_as_ptx(name: str) -> None:
    check_as_ptx(name, 0)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", OF_WARPS)
def test_many_answers_as_ptx(name: str, seeds: range) -> None:
    for seed in seeds:
        check_as_ptx(name, seed)
