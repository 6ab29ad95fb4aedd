"""Calls that are graphs of the driver."""

from pathlib import Path

import pytest
from cuda_driver.driver import functions_of
from cuda_driver.outcomes import check, script_named

SCRIPT = script_named("graph")


@pytest.mark.parametrize("name", functions_of(SCRIPT))
def test_of_graphs(name: str, driver: Path) -> None:
    check(driver, SCRIPT, name)
