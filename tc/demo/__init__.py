"""The model and the pictures of `tc demo`: handwritten digits, 8x8 pixels in 0..16.

`scripts/train_digits.py` in the repository made both files; the pictures took no part in training.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

MODEL_PATH = Path(__file__).parent / "digits.onnx"
_HELDOUT_PATH = Path(__file__).parent / "digits_heldout.npz"


def load_heldout() -> tuple[np.ndarray, np.ndarray]:
    """The held-out pictures, uint8[360, 8, 8], and the digits they show, uint8[360]."""
    with np.load(_HELDOUT_PATH) as arrays:
        return arrays["images"], arrays["labels"]


def as_model_input(images: np.ndarray) -> np.ndarray:
    """Pictures, uint8[n, 8, 8], as the model takes them: float32[n, 1, 8, 8]."""
    return images[:, None].astype(np.float32)
