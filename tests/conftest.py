"""Options, markers and fixtures that all tests share."""

from __future__ import annotations

import ctypes.util
import gc
import os
import re
import tempfile
from collections.abc import Generator, Iterator

import numpy as np
import pytest
from hypothesis import settings

from tc.errors import DeviceError, UserError
from tests.draws import covering

# The same examples on every run, and no failure because the machine was busy.
settings.register_profile("tc", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("tc")

OTHER_CPU = "the module was compiled for a CPU with .*, which this machine lacks; .*"
OLD_DRIVER = ".* cannot compile for this CPU, which is newer than the driver: .*"


if os.environ.pop("PYTHONDONTWRITEBYTECODE", "") and "PYTHONPYCACHEPREFIX" not in os.environ:
    # Tests that start Python again spent half of their time reading all modules from their texts.
    _BYTECODE = tempfile.TemporaryDirectory(prefix="tc-tests-", ignore_cleanup_errors=True)
    os.environ["PYTHONPYCACHEPREFIX"] = _BYTECODE.name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files; read the diff afterwards")
    parser.addoption("--seeds", default="0:200", metavar="FROM:TO", help="of random schedules that `-m slow` draws (default: 0:200)")


def pytest_collection_finish() -> None:
    """What was collected lives until the end, so the garbage collector need not walk it again and again; nor need it walk what is new
    each time that there are 700 objects more. A sixth of the time of the tests went there."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, *gc.get_threshold()[1:])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if ctypes.util.find_library("cuda") is None:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no GPU driver on this machine"))


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """Of the combinations of parameters of a test that is marked as `covering`, those that add none of what it names are slow."""
    made = yield
    if isinstance(made, list):
        usual = [item for item in made if isinstance(item, pytest.Function) and not item.get_closest_marker("slow")]
        marker = usual[0].get_closest_marker("covering") if usual else None
        if marker:
            chosen = covering([{name: repr(value) for name, value in item.callspec.params.items()} for item in usual], *marker.args)
            for number in set(range(len(usual))).difference(chosen):
                usual[number].add_marker(pytest.mark.slow)
    return made


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> range:
    """Those of the random schedules to draw, which may be drawn in parts."""
    return range(*map(int, str(request.config.getoption("--seeds")).split(":")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test, with the reason, that would run a module for another CPU than this one, or on an OpenCL driver that is older than it."""
    try:
        return (yield)
    except (UserError, DeviceError) as error:
        if re.fullmatch(f"{OTHER_CPU}|{OLD_DRIVER}", str(error)):
            pytest.skip(str(error))
        raise


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def threads_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment says how many threads a call uses; `distributed` sets OMP_NUM_THREADS to 1 in the process that starts workers."""
    for name in ("TC_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def committed_tables() -> Iterator[None]:
    """Decisions are those of the tables that are committed, whatever has been measured on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TC_MACHINE_FILE", "off")
        yield


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Object code compiled by tests goes to a folder of this run that its worker processes share."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TC_CACHE_DIR", str(folder / "cache"))
        yield
