"""Random models on targets other than the CPU's usual one, against the oracles."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tc.cli import main
from tc.fuzz.campaign import Settings, run_campaign
from tests.opencl_driver import need_opencl

pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[2]
FEW_AND_MANY = [3, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])]


def skip_without(target: str) -> None:
    if target == "c" and shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    if target == "opencl":
        need_opencl()
    if target == "cuda" and (importlib.util.find_spec("cuda") is None or shutil.which("gcc") is None):
        pytest.skip("needs the extra 'cuda' and gcc")


@pytest.mark.parametrize("count", FEW_AND_MANY)
@pytest.mark.parametrize("target", ("c", "opencl"))
def test_random_models_agree_with_the_oracles_on_other_targets(target: str, count: int, tmp_path: Path) -> None:
    skip_without(target)

    summary = run_campaign(range(700, 700 + count), Settings(target=target), tmp_path)

    assert {f.seed: f.judged.verdict.text for f in summary.failures} == {}
    assert summary.kinds["ok"] >= 3 * count // 4


@pytest.mark.parametrize("count", FEW_AND_MANY)
def test_random_models_agree_with_the_oracles_on_a_cuda_device(count: int) -> None:
    """On the driver for tests, where PTX is interpreted."""
    skip_without("cuda")
    script = [sys.executable, str(ROOT / "tests/cuda_driver/fuzz.py"), "--seed", "700", "--count", str(count), "--json"]

    done = subprocess.run(script, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)

    report = json.loads(done.stdout)
    assert report["failures"] == [], done.stderr
    assert report["kinds"]["ok"] >= 3 * count // 4


def test_fuzz_refuses_a_target_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--target", "abacus"]) == 1
    assert "abacus" in capsys.readouterr().err
