"""Modules on CUDA devices."""

from pathlib import Path

import pytest
from cuda_driver.driver import functions_of
from cuda_driver.outcomes import check, script_named

SCRIPT = script_named("module")


@pytest.mark.parametrize("name", functions_of(SCRIPT))
def test_of_modules(name: str, driver: Path) -> None:
    check(driver, SCRIPT, name)
