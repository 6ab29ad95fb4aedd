"""CUDA devices, and modules on them, on a driver of our own: each test is a function of a script that runs in another process."""

import shutil
from functools import cache
from pathlib import Path

import pytest
from cuda_driver.driver import HERE, build_compiler, build_driver, functions_of, run_scenarios

DEVICE, MODULES, GRAPHS, OPERATORS, HOPPER, TIMING, MODELS = (
    HERE / f"{name}_scenarios.py" for name in ("device", "module", "graph", "operator", "hopper", "timing", "model")
)
USUAL = {"FAKE_CUDA_ARCHS": "80,75"}
OTHER_MACHINES = {
    **{name: {"FAKE_CUDA_ARCHS": "90"} for name in functions_of(HOPPER)},
    "a_device_without_pools_is_refused": {"FAKE_CUDA_NO_POOLS": "1"},
    "a_driver_that_does_not_start_is_an_error_in_words": {"FAKE_CUDA_INIT": "803"},
}


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cuda.bindings", reason="needs the extra 'cuda'")
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = build_driver(tmp_path_factory.mktemp("driver"))
    build_compiler(folder)
    return folder


@cache
def usual_outcomes(driver: Path, script: Path) -> tuple[dict[str, str], str]:
    names = [name for name in functions_of(script) if name not in OTHER_MACHINES]
    return run_scenarios(driver, script, names, USUAL)


def check(driver: Path, script: Path, name: str) -> None:
    other = OTHER_MACHINES.get(name)
    found, errors = usual_outcomes(driver, script) if other is None else run_scenarios(driver, script, [name], other)
    outcome = found.get(name, f"the process ended before: {errors}")

    assert outcome.strip() == "good", outcome


@pytest.mark.parametrize("name", functions_of(DEVICE))
def test_on_a_device(name: str, driver: Path) -> None:
    check(driver, DEVICE, name)


@pytest.mark.parametrize("name", functions_of(MODULES))
def test_of_modules(name: str, driver: Path) -> None:
    if "nvcc" in name and shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    check(driver, MODULES, name)


@pytest.mark.parametrize("name", functions_of(GRAPHS))
def test_of_graphs(name: str, driver: Path) -> None:
    check(driver, GRAPHS, name)


@pytest.mark.parametrize("name", functions_of(OPERATORS))
def test_of_operators(name: str, driver: Path) -> None:
    if "nvcc" in name and shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    check(driver, OPERATORS, name)


@pytest.mark.parametrize("name", functions_of(HOPPER))
def test_of_modules_with_products_of_warpgroups(name: str, driver: Path) -> None:
    if "nvcc" in name and shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    check(driver, HOPPER, name)


@pytest.mark.parametrize("name", functions_of(TIMING))
def test_of_timing(name: str, driver: Path) -> None:
    check(driver, TIMING, name)


QUICK = (("a_block_of_convolutions_in_halves", "80"), ("a_block_of_convolutions_in_f32", "90"))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc is here")
@pytest.mark.parametrize(
    ("name", "arch"),
    [
        case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow)
        for case in ((name, arch) for name in functions_of(MODELS) for arch in ("80", "90"))
    ],
)
def test_of_models_in_small(name: str, arch: str, driver: Path) -> None:
    found, errors = run_scenarios(driver, MODELS, [name], {"FAKE_CUDA_ARCHS": arch})

    assert found.get(name, f"the process ended before: {errors}").strip() == "good", found
