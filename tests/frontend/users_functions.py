"""Functions of a user that another process can import."""

from __future__ import annotations

import numpy as np


def running_total(x: np.ndarray, *, start: float = 0.0) -> np.ndarray:
    return (np.cumsum(x, axis=-1) + start).astype(x.dtype)
