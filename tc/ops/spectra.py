"""Transforms of rows, of any length, as graphs.

A length of small prime factors, and not too long, is transformed by one kernel, where the target has it; a longer one in two parts of
about the same length, with turns of the complex plane between them (Cooley and Tukey, 1965). One with a large prime factor is a product
with a constant matrix, or where it is long a convolution of a length with small factors (Bluestein, 1970). Without the kernel, what is
not too long is one product, or two of half the length. Complex numbers are the last axis, of two elements, in one row with the axis before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tc.ir.arith import simplify
from tc.ir.dtype import DType
from tc.ir.expr import Expr, const, is_const
from tc.ops.butterflies import radices
from tc.ops.fourier import roots_of_one

LONGEST_PASSED = 4096
"""The longest transform of one kernel: of eight rows side by side both buffers lie in the second cache."""
DIRECT = 128
"""The longest transform that is one product, where its length is even."""
MOST_HALVED = 512
"""The longest transform that is two products of half its length, or one where its length is odd."""


class Shaped(Protocol):
    """A tensor of the graph that is made."""

    @property
    def shape(self) -> tuple[Expr, ...]: ...

    @property
    def rank(self) -> int: ...

    @property
    def dtype(self) -> DType: ...


V = TypeVar("V", bound=Shaped)


class Binder(Protocol[V]):
    """What binds operators."""

    def call(self, op: str, *args: V | None, **attrs: Any) -> V: ...

    def const(self, value: Any, dtype: DType) -> V: ...


def has_kernel(size: int) -> bool:
    """Whether one kernel transforms such rows, faster than a product with a matrix does."""
    factors = radices(size)
    return size <= LONGEST_PASSED and factors is not None and not (len(factors) == 1 and size > 8)


def is_direct(size: int) -> bool:
    """Whether a product with a matrix transforms such rows, where no kernel does."""
    return size <= DIRECT or (size <= MOST_HALVED and size % 2 == 1)


def matrix_of(size: int, kept: int, is_complex: bool, inverse: bool) -> np.ndarray:
    """[size * (2 if is_complex else 1), kept * 2]: what transforms rows."""
    return _matrix(_angles(size, size, np.arange(kept)), is_complex, inverse)


def _angles(size: int, rows: int, columns: np.ndarray) -> np.ndarray:
    """2 pi n k / size for n below `rows` and the given k, reduced while they are integers."""
    return (np.arange(rows)[:, None] * columns % size) * (2 * math.pi / size)


def _matrix(angles: np.ndarray, is_complex: bool, inverse: bool) -> np.ndarray:
    """[n * (2 if is_complex else 1), k * 2]: what turns rows by the angles and adds up."""
    angles = angles if inverse else -angles
    rows, columns = angles.shape
    of_real = np.stack([np.cos(angles), np.sin(angles)], -1)
    if not is_complex:
        return of_real.reshape(rows, 2 * columns)
    of_imaginary = np.stack([-np.sin(angles), np.cos(angles)], -1)
    return np.stack([of_real, of_imaginary], 1).reshape(2 * rows, 2 * columns)


def _parts(size: int) -> tuple[int, int] | None:
    """The two factors of a length that are closest to each other; None for one with a large prime factor."""
    if radices(size) is None:
        return None
    first = max(d for d in range(1, math.isqrt(size) + 1) if size % d == 0)
    return size // first, first


def halves(n: Binder[V], x: V) -> tuple[V, V]:
    """Real and imaginary parts; the last axis stays, of one element."""
    sizes, steps, begin = (*x.shape[:-1], const(1)), (1,) * x.rank, (0,) * (x.rank - 1)
    real, imaginary = (n.call("slice", x, starts=(*begin, k), sizes=sizes, steps=steps) for k in (0, 1))
    return real, imaginary


@dataclass(frozen=True)
class Spectra(Generic[V]):
    """Binds transforms. `has_kernels`: whether the target transforms rows by a kernel of its own."""

    bind: Binder[V]
    has_kernels: bool = True

    def of(self, x: V, size: int, kept: int, is_complex: bool, inverse: bool) -> V:
        """Transforms of the rows of x, [rows, size * (2 if is_complex else 1)]: their first `kept` elements, [rows, kept * 2], unscaled."""
        n, rows, pair = self.bind, x.shape[0], 2 if is_complex else 1
        if self.has_kernels and has_kernel(size):
            row = n.call("reshape", x, shape=(const(1), simplify(rows * (size * pair))))
            roots = n.const(roots_of_one(size, inverse), x.dtype)
            found = n.call("transforms", row, roots, size=size, step=size, kept=kept, pair=pair, inverse=inverse)
            return n.call("reshape", found, shape=(rows, const(2 * kept)))
        if is_direct(size):
            return n.call("matmul", x, n.const(matrix_of(size, kept, is_complex, inverse), x.dtype))
        if size <= MOST_HALVED:
            return self._halved(x, size, kept, is_complex, inverse)
        parts = _parts(size)
        if parts is None:
            return self._as_convolution(x, size, kept, is_complex, inverse)
        first, second = parts
        columns = n.call("transpose", n.call("reshape", x, shape=(rows, first, second, pair)), perm=(0, 2, 1, 3))
        columns = n.call("reshape", columns, shape=(simplify(rows * second), const(first * pair)))
        done = n.call("reshape", self.of(columns, first, first, is_complex, inverse), shape=(rows, second, first, 2))
        turned = self._turned(done, _angles(size, second, np.arange(first)) * (1 if inverse else -1))
        across = n.call("reshape", n.call("transpose", turned, perm=(0, 2, 1, 3)), shape=(simplify(rows * first), const(second * 2)))
        count = -(-kept // first)
        found = n.call("reshape", self.of(across, second, count, True, inverse), shape=(rows, first, count, 2))
        found = n.call("reshape", n.call("transpose", found, perm=(0, 2, 1, 3)), shape=(rows, const(first * count * 2)))
        return self._first(found, kept * 2)

    def _halved(self, x: V, size: int, kept: int, is_complex: bool, inverse: bool) -> V:
        """Even elements are transforms of the sums of elements half the length apart, odd ones of their differences."""
        n, rows, half, count = self.bind, x.shape[0], size // 2 * (2 if is_complex else 1), -(-kept // 2)
        a, b = (n.call("slice", x, starts=(0, begin), sizes=(rows, const(half)), steps=(1, 1)) for begin in (0, half))
        even = self.of(n.call("add", a, b), size // 2, count, is_complex, inverse)
        odd_matrix = _matrix(_angles(size, size // 2, 2 * np.arange(count) + 1), is_complex, inverse)
        odd = n.call("matmul", n.call("sub", a, b), n.const(odd_matrix, x.dtype))
        both = n.call("concat", *(n.call("reshape", v, shape=(rows, count, 1, 2)) for v in (even, odd)), axis=2)
        return self._first(n.call("reshape", both, shape=(rows, const(4 * count))), kept * 2)

    def _first(self, x: V, count: int) -> V:
        if is_const(x.shape[1], count):
            return x
        return self.bind.call("slice", x, starts=(0, 0), sizes=(x.shape[0], const(count)), steps=(1, 1))

    def _times(self, x: V, real: np.ndarray, imaginary: np.ndarray) -> V:
        """Complex numbers times constants."""
        n = self.bind
        a, b = halves(n, x)
        c, d = n.const(real[..., None], x.dtype), n.const(imaginary[..., None], x.dtype)
        found = n.call("sub", n.call("mul", a, c), n.call("mul", b, d)), n.call("add", n.call("mul", a, d), n.call("mul", b, c))
        return n.call("concat", *found, axis=x.rank - 1)

    def _turned(self, x: V, angles: np.ndarray) -> V:
        return self._times(x, np.cos(angles), np.sin(angles))

    def _as_convolution(self, x: V, size: int, kept: int, is_complex: bool, inverse: bool) -> V:
        """n k = (n^2 + k^2 - (k - n)^2) / 2: what is turned by n^2 is convolved with turns by -n^2, then turned by k^2."""
        n, rows, sign = self.bind, x.shape[0], 1 if inverse else -1
        longer = 1 << (2 * size - 1).bit_length()
        chirp = (np.arange(size) ** 2 % (2 * size)) * (math.pi / size) * sign
        x = n.call("reshape", x, shape=(rows, size, 2 if is_complex else 1))
        if not is_complex:
            x = n.call("concat", x, n.call("mul", x, n.const(0, x.dtype)), axis=2)
        x = self._turned(x, chirp)
        padded = n.call("reshape", n.call("pad", x, None, pads=(0, 0, 0, 0, longer - size, 0)), shape=(rows, const(2 * longer)))
        filter_ = np.zeros(longer, complex)
        filter_[:size] = np.exp(-1j * chirp)
        filter_[longer - size + 1 :] = filter_[1:size][::-1]
        spectrum = np.fft.fft(filter_) / longer
        found = n.call("reshape", self.of(padded, longer, longer, True, False), shape=(rows, longer, 2))
        found = n.call("reshape", self._times(found, spectrum.real, spectrum.imag), shape=(rows, const(2 * longer)))
        found = n.call("reshape", self.of(found, longer, kept, True, True), shape=(rows, kept, 2))
        return n.call("reshape", self._turned(found, chirp[:kept]), shape=(rows, const(2 * kept)))
