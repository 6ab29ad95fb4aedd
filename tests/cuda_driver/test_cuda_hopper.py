"""Modules on devices of compute capability 9.0."""

from pathlib import Path

import pytest
from cuda_driver.driver import functions_of
from cuda_driver.outcomes import SM_90, check, script_named

SCRIPT = script_named("hopper")


@pytest.mark.parametrize("name", functions_of(SCRIPT))
def test_of_modules_with_products_of_warpgroups(name: str, driver: Path) -> None:
    check(driver, SCRIPT, name, SM_90)
