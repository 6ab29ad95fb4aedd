"""Migration: what makes channels of an operand large goes into the rows of the weights that it is multiplied with.

    y = x @ w   =>   y = (x / f) @ (f[:, None] * w),   f[c] = max|x[c]| ** strength / max|w[c]| ** (1 - strength)

A scale is for all of an operand, so a channel with numbers far larger than those of the others leaves these few steps; weights have scales
for columns, and rows that differ cost them less. All products that read one operand share its factors. Dividing is one more Mul in the
model that is written, which joins the kernel that makes the operand.

Source: Xiao et al. 2023, "SmoothQuant", where the strength is called alpha; there the factors go into the normalization before, which
cannot be where its results are read by a residual sum, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tc.quantization.correction import LayerInput
from tc.quantization.statistics import Statistics

STRENGTHS = (0.5, 0.65, 0.8)
"""Those that the search tries; 0 is none."""

LEAST_SHARE = 1e-3
"""A channel counts as this part of the largest at least: what was almost 0 on calibration inputs need not be later."""


def channel_factors(layer: LayerInput, rows: Sequence[np.ndarray], strength: float) -> np.ndarray:
    """float32[channels]: what channels of an operand are divided by; their geometric mean is 1.

    rows: float[channels, columns] of each matrix that reads the operand. strength: 0 to 1, how much of the differences between channels
    goes to the weights.
    """
    operand = np.maximum(np.abs(layer.lows).max(axis=0), np.abs(layer.highs).max(axis=0)).astype(np.float64)
    weight = np.max([np.abs(matrix).max(axis=1, initial=0.0) for matrix in rows], axis=0).astype(np.float64)
    if not operand.any() or not weight.any():
        return np.ones(len(operand), np.float32)
    logs = strength * _log(operand) - (1 - strength) * _log(weight)
    return np.asarray(np.exp(logs - logs.mean()), np.float32)


def _log(magnitudes: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(np.maximum(magnitudes, magnitudes.max() * LEAST_SHARE)))


def migrated_statistics(layer: LayerInput, factors: np.ndarray) -> Statistics:
    """Those of the operand divided by the factors: ranges of all numbers, the histogram of the sampled ones."""
    lows, highs = layer.lows / factors, layer.highs / factors
    return Statistics.of(list(zip(lows.min(axis=1).tolist(), highs.max(axis=1).tolist(), strict=True)), layer.rows / factors)
