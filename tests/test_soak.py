"""Many compilations in one process, from two threads: no crash, right results, memory that does not grow with their number."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_many_compilations_leave_nothing_behind() -> None:
    """500 networks: 2 to 10 kernels each left 56 KB, and threads that scheduled at once could end the process.

    A network leaves 4 KB in LLVM, and what is remembered of the last ones differs from network to network.
    """
    counts = ["--compilations", "500", "--calls", "5000", "--threads", "2"]
    command = [sys.executable, "-m", "benchmarks.soak", *counts, "--heap-limit", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_threads_that_compile_and_forks_get_the_same_bits_every_time() -> None:
    command = [sys.executable, "-m", "benchmarks.soak", "--repeats", "200", "--forks", "200", "--threads", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
