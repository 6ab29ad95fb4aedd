"""The driver of our own that all tests of CUDA devices share."""

import shutil
from pathlib import Path

import pytest
from cuda_driver.driver import build_compiler, build_driver


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cuda.bindings", reason="needs the extra 'cuda'")
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = build_driver(tmp_path_factory.mktemp("driver"))
    build_compiler(folder)
    return folder
