"""Fit the polynomials of tc/codegen/llvm/vecmath.py and tc/codegen/llvm/libm_f32.py: relative-error minimax by repeated weighted least
squares, in mpmath.

Prints each polynomial's coefficients, lowest power first, and its largest relative error before rounding to f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath as mp
import numpy as np

mp.mp.dps = 40


def fit(
    function: Callable[[mp.mpf], mp.mpf], weight: Callable[[float], float], low: float, high: float, degree: int
) -> tuple[list[float], float]:
    """Coefficients of p minimising max |weight * (p - function)| on [low, high] (Lawson's iteration on Chebyshev points)."""
    points = np.cos(np.pi * (np.arange(400) + 0.5) / 400) * (high - low) / 2 + (high + low) / 2
    values = np.array([float(function(mp.mpf(float(x)))) for x in points])
    scale = np.array([weight(float(x)) for x in points])
    vander = np.vander(points, degree + 1, increasing=True)
    lawson = np.ones_like(points)
    best: tuple[float, np.ndarray] | None = None
    for _ in range(200):
        rows = np.sqrt(lawson) * scale
        coefficients = np.linalg.lstsq(vander * rows[:, None], values * rows, rcond=None)[0]
        error = np.abs((vander @ coefficients - values) * scale)
        if best is None or error.max() < best[0]:
            best = (float(error.max()), coefficients)
        lawson *= error + 1e-30
        lawson /= lawson.sum()
    assert best is not None
    return best[1].tolist(), best[0]


def show(name: str, result: tuple[list[float], float]) -> None:
    print(f"{name}: error {result[1]:.2e}")
    print("    " + ", ".join(f"{float(np.float32(c))!r}" for c in result[0]))


def main() -> None:
    def near_zero(f: Callable[[mp.mpf], mp.mpf], limit: float) -> Callable[[mp.mpf], mp.mpf]:
        return lambda x: mp.mpf(limit) if abs(x) < mp.mpf(10) ** -12 else f(x)

    half = float(mp.log(2) / 2)
    show("exp: (exp(r) - 1) / r", fit(near_zero(lambda r: (mp.exp(r) - 1) / r, 1), lambda r: abs(r) / math.exp(r), -half, half, 5))
    show("exp2: (2^r - 1) / r", fit(near_zero(lambda r: (mp.mpf(2) ** r - 1) / r, math.log(2)), lambda r: abs(r) / 2**r, -0.5, 0.5, 4))
    show(
        "normal_cdf: log2(1 - cdf(a)) in a",
        fit(lambda a: mp.log(mp.erfc(a / mp.sqrt(2)) / 2, 2), lambda a: float(mp.erfc(a / mp.sqrt(2))), 0.0, 5.6, 8),
    )
    show(
        "log: (log(1 + f) - f + f^2/2) / f^3",
        fit(near_zero(lambda f: (mp.log(1 + f) - f + f * f / 2) / f**3, 1 / 3), lambda f: f * f, -0.2929, 0.4143, 8),
    )
    show(
        "erf: log2(1 - erf(a)) / a in a",
        fit(lambda a: mp.log(mp.erfc(a), 2) / a, lambda a: a * float(mp.erfc(a) / mp.erf(a)) * math.log(2), 1e-7, 4.0, 8),
    )
    show("erf: (2^r - 1) / r", fit(lambda r: (mp.mpf(2) ** r - 1) / r, lambda r: 1.0, -0.5, 0.5, 5))
    show_f32_libm()


def show_f32_libm() -> None:
    """Those of tc/codegen/llvm/libm_f32.py. Near zero a series is told by its first term."""

    def of_square(f: Callable[[mp.mpf], mp.mpf]) -> Callable[[mp.mpf], mp.mpf]:
        return lambda s: f(mp.sqrt(s))

    eighth = (math.pi / 4) ** 2 * 1.0001
    show("sin: (sin(r) - r) / r^3 in r^2", fit(of_square(lambda r: (mp.sin(r) - r) / r**3), lambda s: s, 1e-9, eighth, 3))
    cosine = of_square(lambda r: (mp.cos(r) - 1 + r * r / 2) / r**4)
    show("cos: (cos(r) - 1 + r^2/2) / r^4 in r^2", fit(cosine, lambda s: s * s / math.cos(math.sqrt(s)), 1e-9, eighth, 3))
    tangent = of_square(lambda r: (mp.tan(r) - r) / r**3)
    show("tan: (tan(r) - r) / r^3 in r^2", fit(tangent, lambda s: s * math.sqrt(s) / math.tan(math.sqrt(s)), 1e-6, eighth, 6))
    show("tanh: (tanh(r) / r - 1) / r^2 in r^2", fit(of_square(lambda r: (mp.tanh(r) / r - 1) / r**2), lambda s: s, 1e-8, 0.0301, 2))
    show("sinh: (sinh(r) - r) / r^3 in r^2", fit(of_square(lambda r: (mp.sinh(r) - r) / r**3), lambda s: s, 1e-6, 0.1202, 2))
    hyperbolic = of_square(lambda r: (mp.cosh(r) - 1 - r * r / 2) / r**4)
    show("cosh: (cosh(r) - 1 - r^2/2) / r^4 in r^2", fit(hyperbolic, lambda s: s * s, 1e-6, 0.1202, 1))
    show("exp2: (2^r - 1) / r", fit(lambda r: (mp.mpf(2) ** r - 1) / r, lambda r: abs(r) / 2**r, -0.5, 0.5, 5))
    show("exp: (exp(r) - 1 - r - r^2/2) / r^3", fit(lambda r: (mp.exp(r) - 1 - r - r * r / 2) / r**3, lambda r: r * r, -0.36, 0.36, 4))
    series = of_square(lambda s: (mp.log((1 + s) / (1 - s)) - 2 * s) / s**3)
    show("log: (log((1 + s) / (1 - s)) - 2 s) / s^3 in s^2", fit(series, lambda t: t, 1e-9, 0.0295, 3))
    show("atan: (atan(t) - t) / t^3 in t^2", fit(of_square(lambda t: (mp.atan(t) - t) / t**3), lambda s: s, 1e-6, 1.0, 8))
    show("asin: (asin(t) - t) / t^3 in t^2", fit(of_square(lambda t: (mp.asin(t) - t) / t**3), lambda s: s, 1e-6, 0.25, 4))


if __name__ == "__main__":
    main()
