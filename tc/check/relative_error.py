"""How far a result is from another that should be the same."""

from __future__ import annotations

import numpy as np


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """max |found - expected| / max |expected|. Infinity for other shapes, dtypes, or NaNs and infinities elsewhere."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    f, e = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(e)
    if not np.array_equal(f[~finite], e[~finite], equal_nan=True) or not np.isfinite(f[finite]).all():
        return float("inf")
    error = np.abs(f[finite] - e[finite]).max(initial=0.0)
    scale = np.abs(e[finite]).max(initial=0.0)
    return float(error / scale) if scale else float(error)
