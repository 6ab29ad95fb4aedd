"""CUDA devices on a driver of our own: each test is a function of `device_scenarios`, run in another process."""

import ast
import shutil
from pathlib import Path

import pytest
from cuda_driver.driver import HERE, build_driver, run_scenarios

SCRIPT = HERE / "device_scenarios.py"
OTHER_MACHINES = {
    "a_device_without_pools_is_refused": {"FAKE_CUDA_NO_POOLS": "1"},
    "a_driver_that_does_not_start_is_an_error_in_words": {"FAKE_CUDA_INIT": "803"},
}
FUNCTIONS = [node for node in ast.parse(SCRIPT.read_text()).body if isinstance(node, ast.FunctionDef)]
SCENARIOS = [function.name for function in FUNCTIONS if "_" in function.name and not function.args.args]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cuda.bindings", reason="needs the extra 'cuda'")
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def outcomes(driver: Path) -> dict[str, str]:
    """What each scenario of the usual machine ended with."""
    usual = [name for name in SCENARIOS if name not in OTHER_MACHINES]
    done = run_scenarios(driver, SCRIPT, usual, {"FAKE_CUDA_ARCHS": "80,75"})
    parts = done.stdout.split("\n")
    found, last = {}, ""
    for line in parts:
        name, _, rest = line.partition(": ")
        if name in usual:
            last, found[name] = name, rest
        elif last:
            found[last] += "\n" + line
    assert found, done.stderr
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_on_a_device(name: str, driver: Path, request: pytest.FixtureRequest) -> None:
    if name in OTHER_MACHINES:
        done = run_scenarios(driver, SCRIPT, [name], OTHER_MACHINES[name])
        assert done.returncode == 0, done.stdout + done.stderr
        return

    outcome = request.getfixturevalue("outcomes").get(name, "the process ended before")

    assert outcome.strip() == "good", outcome
