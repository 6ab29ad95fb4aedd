"""Arrays of torch on CUDA devices."""

from pathlib import Path

import pytest
from cuda_driver.driver import functions_of
from cuda_driver.outcomes import check, script_named

SCRIPT = script_named("torch")


@pytest.mark.parametrize("name", functions_of(SCRIPT))
def test_of_torch(name: str, driver: Path) -> None:
    check(driver, SCRIPT, name)
