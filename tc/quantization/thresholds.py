"""From what a value was on calibration inputs to its scale: where the range of an integer ends.

A wide range clips nothing and has coarse steps, a narrow one the reverse. Every method takes statistics and the integer type, and gives
the range; scale and zero point follow. All of them keep 0 exact: padding and relu make many zeros.

Sources: average range and powers of two: HAGO, as TVM has it; `kl`: Migacz, "8-bit inference with TensorRT"; `mse`: the histogram observer
of torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tc.errors import check_word
from tc.quantization.description import INTEGERS
from tc.quantization.statistics import BINS, Statistics
from tc.target.host import default_threads
from tc.target.workers import for_each

QUANTILE = 0.9999
"""The part of numbers that the method `quantile` keeps in range, on each side."""

_TINY = float(np.finfo(np.float32).tiny)
_KL_LEVELS = 128
_STEPS = 64
_PARTS = np.linspace(1.0, 0.6, 17)
"""Of the scale that clips no number of a weight: those that are tried."""

_TOGETHER = 1 << 16
"""Numbers of a weight that are worked on at a time: they stay in the cache."""


@dataclass(frozen=True)
class Quantizer:
    """x is stored as `clip(round_half_even(x / scale) + zero, low, high)`."""

    dtype: str
    scale: float
    zero: int

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest number that is stored."""
        return INTEGERS[self.dtype]

    def fake(self, array: np.ndarray) -> np.ndarray:
        """float32[...]: the array, quantized and back, by numpy."""
        low, high = self.limits
        with np.errstate(over="ignore"):
            stored = np.clip(np.rint(array / np.float32(self.scale)) + np.float32(self.zero), low, high)
        return np.asarray((stored - np.float32(self.zero)) * np.float32(self.scale), np.float32)


def make_quantizer(low: float, high: float, dtype: str, is_power_of_two: bool = False) -> Quantizer:
    """The quantizer of `dtype` for numbers in [low, high], widened to hold 0. A range of nothing has the scale 1.

    With powers of two the scale is the next one up: nothing in the range is clipped.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    least, largest = INTEGERS[dtype]
    if low == high:
        return Quantizer(dtype, 1.0, 0)
    if least == 0:
        scale = (high - low) / largest
    else:
        scale = max(high, -low) / largest
    scale = float(np.float32(max(scale, _TINY)))
    if is_power_of_two:
        scale = float(2.0 ** math.ceil(math.log2(scale)))
    zero = int(np.clip(np.rint(-low / scale), least, largest)) if least == 0 else 0
    return Quantizer(dtype, scale, zero)


def choose_quantizer(method: str, statistics: Statistics, dtype: str, is_power_of_two: bool = False) -> Quantizer:
    """The quantizer of a value by one of `METHODS`.

    With powers of two, the one of the two scales next to the method's that has the smaller mean squared error.
    """
    check_word("threshold", method, tuple(METHODS))
    if statistics.is_constant_zero:
        return Quantizer(dtype, 1.0, 0)
    low, high = METHODS[method](statistics, dtype)
    exact = make_quantizer(low, high, dtype)
    if not is_power_of_two:
        return exact
    up = 2.0 ** math.ceil(math.log2(exact.scale))
    options = [_with_scale(exact, scale, low) for scale in (up, up / 2)]
    return min(options, key=lambda quantizer: mean_squared_error(statistics, quantizer))


def _with_scale(quantizer: Quantizer, scale: float, low: float) -> Quantizer:
    least, largest = quantizer.limits
    zero = int(np.clip(np.rint(-min(low, 0.0) / scale), least, largest)) if least == 0 else 0
    return Quantizer(quantizer.dtype, scale, zero)


def mean_squared_error(statistics: Statistics, quantizer: Quantizer) -> float:
    """Of quantizing the numbers of the histogram, each taken in the middle of its bin."""
    total = statistics.counts.sum()
    if not total:
        return 0.0
    centers, (low, high) = statistics.centers, quantizer.limits
    stored = np.clip(np.rint(centers / quantizer.scale) + quantizer.zero, low, high)
    errors = (stored - quantizer.zero) * quantizer.scale - centers
    return float((statistics.counts * errors * errors).sum() / total)


# -- the methods


def _minmax(statistics: Statistics, dtype: str) -> tuple[float, float]:
    return statistics.low, statistics.high


def _average(statistics: Statistics, dtype: str) -> tuple[float, float]:
    lows, highs = zip(*statistics.ranges, strict=True)
    return float(np.mean(lows)), float(np.mean(highs))


def _quantile(statistics: Statistics, dtype: str) -> tuple[float, float]:
    """Edges of bins with at most 1 - QUANTILE of all numbers beyond, within what was seen."""
    cumulated = np.cumsum(statistics.counts)
    out = (1 - QUANTILE) * cumulated[-1]
    width = 2 * statistics.reach / BINS
    first = int(np.searchsorted(cumulated, out, side="right"))
    last = int(np.searchsorted(cumulated, cumulated[-1] - out, side="left"))
    low, high = -statistics.reach + first * width, -statistics.reach + (last + 1) * width
    return max(low, statistics.low), min(high, statistics.high)


def _kl(statistics: Statistics, dtype: str) -> tuple[float, float]:
    """Clip both sides at the magnitude where the histogram in 128 levels says least else than the histogram, by relative entropy."""
    half = BINS // 2
    magnitudes = statistics.counts[half:] + statistics.counts[:half][::-1]
    magnitudes = magnitudes.reshape(half // 2, 2).sum(axis=1)  # 2048 bins, as the source has
    width = statistics.reach / magnitudes.size
    magnitudes = magnitudes.copy()
    magnitudes[0] = magnitudes[1]  # what relu made 0 is exact and says nothing of steps
    best, kept = math.inf, magnitudes.size
    for count in range(_KL_LEVELS, magnitudes.size + 1, 16):
        divergence = clipping_divergence(magnitudes, count)
        if divergence < best:
            best, kept = divergence, count
    edge = kept * width
    return max(statistics.low, -edge), min(statistics.high, edge)


def clipping_divergence(counts: np.ndarray, kept: int, levels: int = _KL_LEVELS) -> float:
    """Relative entropy of the first `kept` bins, the rest counted in the last of them, to the same bins in `levels` levels."""
    reference = counts[:kept].astype(np.float64)
    outside = counts[kept:].sum()
    level = np.minimum(np.arange(kept) * levels // kept, levels - 1)
    used = reference > 0
    sums = np.bincount(level, weights=reference, minlength=levels)
    filled = np.bincount(level, weights=used.astype(np.float64), minlength=levels)
    spread = np.where(used, (sums / np.maximum(filled, 1))[level], 0.0)
    reference[-1] += outside
    if reference.sum() == 0 or spread.sum() == 0:
        return math.inf
    p, q = reference / reference.sum(), spread / spread.sum()
    there = p > 0
    return float((p[there] * np.log(p[there] / np.maximum(q[there], 1e-12))).sum())


def _mse(statistics: Statistics, dtype: str) -> tuple[float, float]:
    """The range, of those that narrow the one that was seen, with the least mean squared error: first both ends, then each."""
    low, high = min(statistics.low, 0.0), max(statistics.high, 0.0)

    def error(a: float, b: float) -> float:
        return mean_squared_error(statistics, make_quantizer(low * a, high * b, dtype))

    parts = np.arange(_STEPS, 1, -1) / _STEPS
    part = float(min(parts, key=lambda part: error(part, part)))
    below = float(min(parts, key=lambda a: error(a, part))) if low < 0 else part
    above = float(min(parts, key=lambda b: error(below, b))) if high > 0 else part
    return low * below, high * above


METHODS: Mapping[str, Callable[[Statistics, str], tuple[float, float]]] = {
    "minmax": _minmax, "average": _average, "quantile": _quantile, "kl": _kl, "mse": _mse,
}  # fmt: skip


# -- weights


WEIGHT_METHODS = ("minmax", "mse")


def weight_scales(
    weight: np.ndarray, axis: int, method: str, is_power_of_two: bool = False, largest: int = 127
) -> np.ndarray:
    """float32[channels]: scales of a literal operand, symmetric; a channel of zeros has the scale 1.

    minmax: nothing is clipped. mse: the part of that, from 1 down, with the least squared error in each channel.
    """
    check_word("weights' threshold", method, WEIGHT_METHODS)
    axis %= weight.ndim
    rows, others = np.moveaxis(weight, axis, 0), tuple(i for i in range(weight.ndim) if i != axis)
    full = np.maximum(weight.max(axis=others, initial=0.0), -weight.min(axis=others, initial=0.0)).astype(np.float64)
    if method == "minmax":
        return _weight_scale(full, largest, is_power_of_two)
    chosen = np.empty(len(rows), np.float32)
    step = max(_TOGETHER // max(weight.size // max(len(rows), 1), 1), 1)

    def choose(start: int) -> None:
        some = rows[start : start + step]
        chosen[start : start + step] = _least_squares(some.reshape(len(some), -1), full[start : start + step], is_power_of_two, largest)

    for_each(choose, range(0, len(rows), step), default_threads())  # numpy lets others run while it computes
    return chosen


def _least_squares(rows: np.ndarray, full: np.ndarray, is_power_of_two: bool, largest: int) -> np.ndarray:
    """float32[channels]: of the scales up to those of the largest magnitudes `full`, the one with the least error in each row."""
    tried = _weight_scale(full * _PARTS[:, None], largest, is_power_of_two)
    can_win = np.ones(tried.shape, bool) if is_power_of_two else _can_be_least(rows, full, largest)
    places = can_win.argmax(axis=0)
    for row in np.flatnonzero(can_win.sum(axis=0) > 1):
        errors = _squared_errors(rows[row].astype(np.float64), tried[can_win[:, row], row], largest)
        places[row] = np.flatnonzero(can_win[:, row])[errors.argmin()]
    return np.asarray(tried[places, np.arange(len(rows))])


def _squared_errors(row: np.ndarray, scales: np.ndarray, largest: int) -> np.ndarray:
    """float64[scales]: of quantizing a row with each scale."""
    found = row / scales[:, None]
    np.clip(np.rint(found, out=found), -largest, largest, out=found)
    found *= scales[:, None]
    found -= row
    return np.asarray(np.square(found, out=found).sum(axis=1))


def _can_be_least(rows: np.ndarray, full: np.ndarray, largest: int) -> np.ndarray:
    """bool[parts, channels]: which scales may have the least error in a row: all but those whose error in f32, where numbers of a row are
    multiples of its scale of minmax, is larger than another one's by more than rounding can be.

    An element's error is off by at most 2^-19 of the largest integer: its rounding by 2^-22 before a tie goes to the other side, and
    products by 2^-23 each. A sum of n squares in f32 is off by n 2^-24 of itself.
    """
    usual = full * _PARTS[-1] / largest > 2 * _TINY  # others have no scale in proportion
    factors = np.where(usual, largest / np.where(usual, full, 1.0), 0.0).astype(np.float32)
    multiples = rows * factors[:, None]
    found = np.empty_like(multiples)
    norms = np.empty((len(_PARTS), len(rows)))
    for place, part in enumerate(_PARTS):
        np.multiply(multiples, np.float32(1 / part), out=found)
        np.rint(found, out=found)
        if place:  # the first clips nothing
            np.clip(found, np.float32(-largest), np.float32(largest), out=found)
        found *= np.float32(part)
        found -= multiples
        np.sqrt(np.einsum("ij,ij->i", found, found), out=norms[place])
    count = rows.shape[1]
    doubt = math.sqrt(count) * largest * 2.0**-19 + norms * (count * 2.0**-24)
    return np.asarray((norms - doubt <= (norms + doubt).min(axis=0)) | ~usual)


def _weight_scale(highest: np.ndarray, largest: int, is_power_of_two: bool) -> np.ndarray:
    scales = np.where(highest > 0, np.maximum(highest / largest, _TINY), 1.0)
    if is_power_of_two:
        scales = 2.0 ** np.ceil(np.log2(scales))
    return np.asarray(scales, np.float32)


def quantize_weight(weight: np.ndarray, scales: np.ndarray, axis: int, largest: int = 127) -> np.ndarray:
    """int8[...]: the literal operand as it is stored."""
    axis %= weight.ndim
    stored = np.empty(weight.shape, np.int8)
    step = max(_TOGETHER // max(weight.size // max(len(weight), 1), 1), 1)

    def store(start: int) -> None:
        some = slice(start, start + step)
        found = weight[some] / _along(scales[some] if axis == 0 else scales, axis, weight.ndim)
        stored[some] = np.clip(np.rint(found, out=found), -largest, largest, out=found)

    for_each(store, range(0, len(weight), step), default_threads())
    return stored


def fake_weight(weight: np.ndarray, scales: np.ndarray, axis: int) -> np.ndarray:
    """float64[...]: the literal operand, quantized and back."""
    return np.asarray(quantize_weight(weight, scales, axis) * _along(scales, axis, weight.ndim).astype(np.float64), np.float64)


def _along(scales: np.ndarray, axis: int, rank: int) -> np.ndarray:
    shape = [1] * rank
    shape[axis] = -1
    return np.reshape(scales, shape)
