"""CUDA devices, on a driver of our own: each test is a function of a script that runs in another process."""

from pathlib import Path

import pytest
from cuda_driver.driver import functions_of
from cuda_driver.outcomes import check, script_named

SCRIPT = script_named("device")
ALONE = {
    "a_device_without_pools_is_refused": (("FAKE_CUDA_NO_POOLS", "1"),),
    "a_driver_that_does_not_start_is_an_error_in_words": (("FAKE_CUDA_INIT", "803"),),
}


@pytest.mark.parametrize("name", functions_of(SCRIPT))
def test_on_a_device(name: str, driver: Path) -> None:
    check(driver, SCRIPT, name, alone=ALONE)
