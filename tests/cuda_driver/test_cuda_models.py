"""Models in small, on CUDA devices of two generations."""

import shutil
from pathlib import Path

import pytest
from cuda_driver.driver import functions_of
from cuda_driver.outcomes import check, script_named

SCRIPT = script_named("model")
QUICK = (("a_block_of_convolutions_in_halves", "80"), ("a_block_of_convolutions_in_f32", "90"))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc is here")
@pytest.mark.parametrize(
    ("name", "arch"),
    [
        case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow)
        for case in ((name, arch) for name in functions_of(SCRIPT) for arch in ("80", "90"))
    ],
)
def test_of_models_in_small(name: str, arch: str, driver: Path) -> None:
    check(driver, SCRIPT, name, alone={name: (("FAKE_CUDA_ARCHS", arch),)})
