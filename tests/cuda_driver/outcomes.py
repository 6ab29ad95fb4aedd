"""What the functions of a script end with, in a process whose CUDA driver is our own.

The functions of a script share one process, and so do their tests a file: `--dist loadfile` gives these to one worker.
"""

import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from cuda_driver.driver import HERE, functions_of, run_scenarios

SM_80, SM_90 = (("FAKE_CUDA_ARCHS", "80,75"),), (("FAKE_CUDA_ARCHS", "90"),)
Machine = tuple[tuple[str, str], ...]


def script_named(name: str) -> Path:
    return HERE / f"{name}_scenarios.py"


@cache
def outcomes(driver: Path, script: Path, names: tuple[str, ...], machine: Machine) -> tuple[dict[str, str], str]:
    return run_scenarios(driver, script, list(names), dict(machine))


def check(driver: Path, script: Path, name: str, machine: Machine = SM_80, alone: Mapping[str, Machine] | None = None) -> None:
    """Fail unless the function `name` of a script ends well. `alone`: functions with a machine, and a process, of their own."""
    if "nvcc" in name and shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    alone = alone or {}
    if name in alone:
        found, errors = outcomes(driver, script, (name,), alone[name])
    else:
        found, errors = outcomes(driver, script, tuple(each for each in functions_of(script) if each not in alone), machine)
    outcome = found.get(name, f"the process ended before: {errors}")

    assert outcome.strip() == "good", outcome
