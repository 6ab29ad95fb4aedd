"""Arithmetic that numpy does not have: directed roundings, exact fused multiply-add, the narrow floating-point types.

Values of `bf16` are their bits in uint16, those of the 8-bit types their bits in uint8. An exact real number that a
result is rounded from is handed over as a float64 *rounded to odd*: its last bit is set when it is not exact.
Rounding that once more to a type of at most 50 bits gives what rounding the exact number would (Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

NAN32 = np.uint32(0x7FFFFFFF)
NAN16 = np.uint16(0x7FFF)
NAN64 = np.uint64(0x7FF8000000000000)


# ---------------------------------------------------------------- sums and products, exact


def two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rounded sum and its error: a + b == s + e exactly (Knuth), for finite s."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def split(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """High and low half of the mantissa (Dekker)."""
    c = a * 134217729.0
    high = c - (c - a)
    return high, a - high


def two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rounded product and its error, for exponents far from the limits."""
    p = a * b
    ah, al = split(a)
    bh, bl = split(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def to_odd(s: np.ndarray, e: np.ndarray) -> np.ndarray:
    """`s + e`, |e| below an ulp of the float64 s, rounded to odd. Not finite: `s` itself."""
    s, e = np.broadcast_arrays(s, e)
    bits = s.view(np.int64) if s.flags.c_contiguous else np.ascontiguousarray(s).view(np.int64)
    change = np.isfinite(s) & (e != 0) & ~np.isnan(e) & (bits & 1 == 0)
    if not change.any():
        return s
    towards = np.where((e > 0) == (s > 0), 1, -1)
    return np.where(change, bits + towards, bits).view(np.float64)


def add_odd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b of float64 values, rounded to odd."""
    return to_odd(*two_sum(a, b))


def fma_odd(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c for float64 values whose product is exact (those of at most 26 bits), rounded to odd."""
    return add_odd(a * b, c)


# ---------------------------------------------------------------- rounding to float32

MIDPOINT = np.uint64(0x1FFFFFFF)
TIE = np.uint64(0x10000000)


def directed(value: np.ndarray, near: np.ndarray, mode: str) -> np.ndarray:
    """`near`, the nearest of its type to the float64 `value`, moved to the neighbour that `mode` (rz, rm, rp) asks for."""
    wide = near.astype(np.float64)
    up = near.dtype.type(np.inf)
    if mode == "rz":
        return np.where(np.abs(wide) > np.abs(value), np.nextafter(near, near.dtype.type(0)), near)
    if mode == "rm":
        return np.where(wide > value, np.nextafter(near, -up), near)
    if mode == "rp":
        return np.where(wide < value, np.nextafter(near, up), near)
    raise ValueError(f"rounding {mode!r}")


def round_to(value: np.ndarray, dtype: type, mode: str = "rn") -> np.ndarray:
    """float64 (rounded to odd, or exact) -> float32 or float16, by rn, rz, rm or rp."""
    near = value.astype(dtype)
    return near if mode == "rn" else directed(value, near, mode)


def fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray, mode: str = "rn") -> np.ndarray:
    """The float32 nearest to the exact a * b + c."""
    product = a.astype(np.float64) * b
    total = product + c
    if mode == "rn":
        suspicious = (total.view(np.uint64) & MIDPOINT == TIE) | (np.abs(total) < 1.2e-38)
        if not suspicious.any():
            return total.astype(np.float32)
    return round_to(add_odd(product, c.astype(np.float64)), np.float32, mode)


def fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The float64 nearest to the exact a * b + c."""
    a, b, c = (np.ascontiguousarray(x) for x in np.broadcast_arrays(a, b, c))
    high, low = two_product(a, b)
    th, tl = two_sum(c, low)
    vh, vl = two_sum(high, th)
    result = vh + add_odd(tl, vl)
    exponents = [np.frexp(x)[1] for x in (a, b, c)]
    simple = np.isfinite(result)
    for exponent, value in zip(exponents, (a, b, c)):
        simple &= (np.abs(exponent) < 450) & (value != 0)
    simple &= np.abs(result) > 1e-250
    for i in np.flatnonzero(~simple):
        result[i] = fma64_exact(float(a[i]), float(b[i]), float(c[i]))
    return result


def fma64_exact(a: float, b: float, c: float) -> float:
    """One exact a * b + c by rational numbers."""
    if not np.isfinite([a, b, c]).all() or a == 0 or b == 0:
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return float(np.float64(a) * np.float64(b) + np.float64(c)) if c == 0 else 0.0
    try:
        return float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


# ---------------------------------------------------------------- bfloat16


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """uint16 bits -> float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(value: np.ndarray, mode: str = "rn") -> np.ndarray:
    """float32 or float64 (rounded to odd, or exact) -> uint16 bits. NaN becomes the canonical one."""
    if value.dtype == np.float64:  # to odd in float32 first, so that the second rounding sees what is missing
        near = directed(value, value.astype(np.float32), "rz")
        inexact = (near.astype(np.float64) != value) & np.isfinite(value)
        value = (near.view(np.uint32) | inexact).astype(np.uint32).view(np.float32)
    bits = value.view(np.uint32)
    sign = (bits >> 31).astype(bool)
    if mode == "rn":
        bits = bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))
    elif mode == "rna":
        bits = bits + np.uint32(0x8000)
    elif mode in ("rm", "rp"):
        bits = np.where(sign == (mode == "rm"), bits + np.uint32(0xFFFF), bits)
        bits = np.where(np.isinf(value), value.view(np.uint32), bits)
    elif mode != "rz":
        raise ValueError(f"rounding {mode!r}")
    return np.where(np.isnan(value), NAN16, (bits >> 16).astype(np.uint16))


def to_tf32(value: np.ndarray, mode: str) -> np.ndarray:
    """float32 -> uint32 bits with 10 bits of mantissa: rna (to nearest, ties away), rn or rz."""
    bits = value.view(np.uint32)
    if mode == "rna":
        bits = bits + np.uint32(0x1000)
    elif mode == "rn":
        bits = bits + (np.uint32(0xFFF) + ((bits >> 13) & 1))
    rounded = bits & np.uint32(0xFFFFE000)
    return np.where(np.isnan(value), NAN32, np.where(np.isinf(value), value.view(np.uint32), rounded))


# ---------------------------------------------------------------- 8-bit floating point


def make_fp8_table(exponent_bits: int, bias: int, has_inf: bool) -> np.ndarray:
    """The 256 values of an 8-bit type, in float32."""
    mantissa_bits = 7 - exponent_bits
    values = np.zeros(256, np.float32)
    for code in range(128):
        exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        fraction = mantissa / (1 << mantissa_bits)
        value = 2.0 ** (1 - bias) * fraction if exponent == 0 else 2.0 ** (exponent - bias) * (1 + fraction)
        if has_inf and exponent == (1 << exponent_bits) - 1:
            value = np.nan if mantissa else np.inf
        if not has_inf and code == 127:
            value = np.nan
        values[code], values[code + 128] = value, -value
    return values


FP8 = {"e4m3": make_fp8_table(4, 7, False), "e5m2": make_fp8_table(5, 15, True)}


def to_fp8(value: np.ndarray, kind: str) -> np.ndarray:
    """float32 -> uint8 bits by rn.satfinite: beyond the largest finite value becomes that one, NaN stays NaN."""
    table = FP8[kind][:128].astype(np.float64)
    codes = np.flatnonzero(np.isfinite(table))
    finite = table[codes]
    magnitude = np.minimum(np.abs(value.astype(np.float64)), finite[-1])
    above = np.clip(np.searchsorted(finite, magnitude), 1, len(finite) - 1)
    low, high = finite[above - 1], finite[above]
    up = magnitude - low > high - magnitude
    tie = magnitude - low == high - magnitude
    chosen = above - 1 + (up | (tie & ((above - 1) % 2 == 1)))
    code = codes[chosen].astype(np.uint8) | (np.signbit(value).astype(np.uint8) << 7)
    return np.where(np.isnan(value), np.uint8(0x7F), code).astype(np.uint8)


# ---------------------------------------------------------------- small helpers


def flush(value: np.ndarray) -> np.ndarray:
    """Subnormal float32 to zero of the same sign."""
    small = np.abs(value) < np.float32(1.17549435e-38)
    return np.where(small, np.copysign(np.float32(0), value), value) if small.any() else value


def canonical(value: np.ndarray) -> np.ndarray:
    """NaN becomes the one NaN that the hardware's arithmetic returns."""
    nan = np.isnan(value)
    if not nan.any():
        return value
    if value.dtype == np.float32:
        return np.where(nan, NAN32.view(np.float32), value)
    if value.dtype == np.float16:
        return np.where(nan, NAN16.view(np.float16), value)
    return np.where(nan, NAN64.view(np.float64), value)
