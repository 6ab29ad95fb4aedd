"""PTX of CUDA-C sources for tests, by the installed nvcc."""

from __future__ import annotations

import shutil
import subprocess
from functools import lru_cache

import pytest


@lru_cache(maxsize=64)
def ptx_of(source: str, arch: str = "sm_80", options: tuple[str, ...] = ()) -> str:
    """The PTX that nvcc makes of a source. Skips the test without nvcc; fails on warnings."""
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc on this machine")
    command = ["nvcc", "-ptx", f"-arch={arch}", "-O3", "-Werror", "all-warnings", *options, "-x", "cu", "-", "-o", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
