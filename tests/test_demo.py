from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tc.demo import MODEL_PATH, as_model_input, load_heldout


def heldout_accuracy(model: Path) -> float:
    images, labels = load_heldout()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (probability,) = session.run(None, {"image": as_model_input(images)})
    return float((probability.argmax(1) == labels).mean())


def test_the_shipped_model_reads_the_heldout_digits() -> None:
    assert heldout_accuracy(MODEL_PATH) >= 0.98


def test_the_shipped_files_are_small() -> None:
    assert sum(path.stat().st_size for path in MODEL_PATH.parent.glob("digits*")) < 300_000


@pytest.mark.slow
def test_the_training_script_reaches_the_accuracy_on_the_same_digits(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    script = Path(__file__).parent.parent / "scripts/train_digits.py"

    subprocess.run([sys.executable, str(script), "--output", str(tmp_path)], check=True)

    images, labels = load_heldout()
    with np.load(tmp_path / "digits_heldout.npz") as again:
        assert np.array_equal(again["images"], images) and np.array_equal(again["labels"], labels)
    assert heldout_accuracy(tmp_path / "digits.onnx") >= 0.98
