"""`tc fuzz` on the fake CUDA driver: random models whose PTX runs in an interpreter.

    PYTHONPATH=. python tests/cuda_driver/fuzz.py --seed 1000 --count 500 --folder failing

takes the options of `tc fuzz` but for the target. Without any it is the process that judges, which a campaign starts.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from cuda_driver.driver import FakeDriver, build_compiler, build_driver  # noqa: E402
from cuda_driver.interpreted import runs_in  # noqa: E402

from tc.cli import main as run_command  # noqa: E402
from tc.fuzz import process, worker  # noqa: E402

ARCHITECTURE, TARGET = "80", "cuda:sm_80,features=+ptx"


def judge_models() -> None:
    """Answer a campaign until it ends."""
    fake = FakeDriver()
    fake.run_image = runs_in(fake)
    worker.main()


def run_campaign(arguments: list[str]) -> int:
    """`tc fuzz` whose processes are this script."""
    with tempfile.TemporaryDirectory() as folder:
        build_compiler(build_driver(Path(folder)))
        paths = {"LD_LIBRARY_PATH": folder, "PATH": os.pathsep.join((folder, os.environ["PATH"]))}
        with patch.dict(os.environ, {**paths, "FAKE_CUDA_ARCHS": ARCHITECTURE}), patch.object(process, "WORKER", (__file__,)):
            return run_command(["fuzz", "--target", TARGET, *arguments])


if __name__ == "__main__":
    sys.exit(run_campaign(sys.argv[1:])) if len(sys.argv) > 1 else judge_models()
