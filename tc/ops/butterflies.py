"""Fourier transforms of several rows at once, one in each lane of vectors: statements that rearrange two buffers.

The factors of a length are gone through one after the other (Cooley and Tukey, 1965), each time from one buffer to the other, so that
elements end up in order without being sorted (Stockham). Of a real row of even length, half as many complex numbers are
transformed: those at even places are real parts, those at odd ones imaginary.

A buffer is [2 n, lanes]: the real and then the imaginary part of each number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tc.ir.expr import Buffer, Expr, Load, Var, const
from tc.ir.loop import Let, LoopKind, Stmt, Store, seq
from tc.ops.statements import loop, scratch
from tc.te import Tensor

MOST_PRIME = 64
"""Lengths with larger prime factors are not transformed in this way: a factor takes as many terms for each number."""

LARGEST_UNROLLED = 7

Complex = tuple[Expr, Expr]


def radices(n: int) -> list[int] | None:
    """The factors that a transform of n numbers goes through; None where one is too large."""
    found: list[int] = []
    for radix in (8, 4, 2, *range(3, MOST_PRIME, 2)):
        while n % radix == 0 and not (radix == 8 and n == 16):  # 4 * 4 is less work than 8 * 2
            n //= radix
            found.append(radix)
    return found if n == 1 else None


class _Names:
    """Values that are computed once, in order."""

    def __init__(self) -> None:
        self.made: list[tuple[Var, Expr]] = []

    def __call__(self, value: Expr) -> Expr:
        var = Var(f"t{len(self.made)}", value.dtype)
        self.made.append((var, value))
        return var

    def around(self, body: Stmt) -> Stmt:
        for var, value in reversed(self.made):
            body = Let(var, value, body)
        return body

    def add(self, a: Complex, b: Complex) -> Complex:
        return self(a[0] + b[0]), self(a[1] + b[1])

    def sub(self, a: Complex, b: Complex) -> Complex:
        return self(a[0] - b[0]), self(a[1] - b[1])

    def mul(self, a: Complex, b: Complex) -> Complex:
        return self(a[0] * b[0] - a[1] * b[1]), self(a[0] * b[1] + a[1] * b[0])


@dataclass(frozen=True)
class Rows:
    """Rows of `lanes` transforms, and [size, 2] `roots` of 1: number k is turned by k / size of the circle, clockwise unless `inverse`."""

    roots: Tensor
    size: int
    lanes: int
    inverse: bool

    def across(self, body: Callable[[Expr], Stmt]) -> Stmt:
        return loop(self.lanes, body, "lane", LoopKind.VECTORIZED)

    def root(self, number: Expr) -> Complex:
        return self.roots[(number, const(0))], self.roots[(number, const(1))]

    def transform(self, n: int, x: Buffer, spare: Buffer) -> tuple[Stmt, Buffer, Buffer]:
        """The first n numbers of `x` transformed, unscaled; where they are then, and the other buffer."""
        factors, steps, done = radices(n), [], 1
        assert factors is not None, n
        for radix in factors:
            one_pass = self._unrolled if radix <= LARGEST_UNROLLED + 1 else self._summed
            steps.append(one_pass(radix, done, n // done // radix, x, spare))
            x, spare, done = spare, x, done * radix
        return seq(*steps), x, spare

    def _unrolled(self, radix: int, done: int, left: int, x: Buffer, y: Buffer) -> Stmt:
        def of(p: Expr, q: Expr) -> Stmt:
            def numbers(lane: Expr) -> Stmt:
                names = _Names()
                given = [_named(names, number(x, q + (p + j * left) * done, lane)) for j in range(radix)]
                found = self._butterfly(names, given)
                if left > 1:
                    turns = [_named(names, self.root(p * (k * done * (self.size // (left * radix * done))))) for k in range(1, radix)]
                    found = [found[0], *(names.mul(value, turn) for value, turn in zip(found[1:], turns, strict=True))]
                places = [q + (p * radix + k) * done for k in range(radix)]
                return names.around(seq(*(put_number(y, at, lane, value) for at, value in zip(places, found, strict=True))))

            return self.across(numbers)

        return loop(left, lambda p: loop(done, lambda q: of(p, q), "q"), "p")

    def _butterfly(self, names: _Names, given: Sequence[Complex]) -> list[Complex]:
        """The transform of few numbers."""
        count = len(given)
        if count == 1:
            return list(given)
        if count % 2:
            return self._odd(names, given)
        half = count // 2
        even, odd = (self._butterfly(names, given[start::2]) for start in (0, 1))
        turned = [self._turned(names, value, k, count) for k, value in enumerate(odd)]
        pairs = list(zip(even, turned, strict=True))
        assert len(pairs) == half
        return [*(names.add(*pair) for pair in pairs), *(names.sub(*pair) for pair in pairs)]

    def _turned(self, names: _Names, value: Complex, number: int, order: int) -> Complex:
        """Times a root of 1, of which eighths of the circle take no general product."""
        re, im = value
        if number == 0:
            return value
        if 4 * number == order:
            return (names(im * -1.0), re) if self.inverse else (im, names(re * -1.0))
        cos, sin = self._circle(number, order, re)
        return names.mul(value, (cos, sin))

    def _circle(self, number: int, order: int, like: Expr) -> Complex:
        angle = 2 * math.pi * number / order * (1 if self.inverse else -1)
        return const(math.cos(angle), like.dtype), const(math.sin(angle), like.dtype)

    def _odd(self, names: _Names, given: Sequence[Complex]) -> list[Complex]:
        """Numbers k and -k of the result have the same products, of sums and differences of what is given at j and -j."""
        count, first = len(given), given[0]
        sums = [names.add(given[j], given[-j]) for j in range(1, count // 2 + 1)]
        differences = [names.sub(given[j], given[-j]) for j in range(1, count // 2 + 1)]
        total = first
        for pair in sums:
            total = names.add(total, pair)
        found = [total] * count
        for k in range(1, count // 2 + 1):
            (re, im), turned = first, (const(0.0, first[0].dtype),) * 2
            for j, ((sum_re, sum_im), (less_re, less_im)) in enumerate(zip(sums, differences, strict=True), 1):
                cos, sin = self._circle(j * k % count, count, re)
                re, im = names(re + sum_re * cos), names(im + sum_im * cos)
                products = less_im * sin, less_re * sin
                turned = products if j == 1 else (turned[0] + products[0], turned[1] + products[1])
                turned = names(turned[0]), names(turned[1])
            found[k] = names(re - turned[0]), names(im + turned[1])
            found[count - k] = names(re + turned[0]), names(im - turned[1])
        return found

    def _summed(self, radix: int, done: int, left: int, x: Buffer, y: Buffer) -> Stmt:
        """A pass of a larger prime: numbers k and -k of each result have the same products, added up in the order of what is given."""
        turn = self.size // (left * radix * done)
        sums = Buffer("sums", (const(4), const(self.lanes)), x.dtype)
        added, across = const(0), const(1)  # the numbers of `sums` for what both have in common, and for what they differ in

        def of(p: Expr, q: Expr) -> Stmt:
            def given(j: Expr, lane: Expr) -> Complex:
                return number(x, q + (p + j * left) * done, lane)

            def start(lane: Expr) -> Stmt:
                zero = const(0.0, x.dtype)
                return seq(put_number(sums, added, lane, given(const(0), lane)), put_number(sums, across, lane, (zero, zero)))

            def add(j: Expr, k: Expr, lane: Expr) -> Stmt:
                names = _Names()
                (re, im), (cos, sin) = _named(names, given(j, lane)), _named(names, self.root(k * j % radix * (self.size // radix)))
                (sum_re, sum_im), (across_re, across_im) = number(sums, added, lane), number(sums, across, lane)
                common = put_number(sums, added, lane, (sum_re + re * cos, sum_im + im * cos))
                return names.around(seq(common, put_number(sums, across, lane, (across_re + im * sin, across_im + re * sin))))

            def put(k: Expr, lane: Expr, value: Complex, names: _Names) -> Stmt:
                turned = names.mul(value, _named(names, self.root(p * k * (done * turn)))) if left > 1 else value
                return put_number(y, q + (p * radix + k) * done, lane, turned)

            def put_both(k: Expr, lane: Expr) -> Stmt:
                names = _Names()
                (re, im), (across_re, across_im) = (_named(names, number(sums, at, lane)) for at in (added, across))
                one, other = (names(re - across_re), names(im + across_im)), (names(re + across_re), names(im - across_im))
                both = seq(put(k, lane, one, names), put(radix - k, lane, other, names))
                return names.around(both)

            def summed(k: Expr) -> Stmt:
                terms = loop(radix - 1, lambda j: self.across(lambda lane: add(j + 1, k, lane)), "j")
                return seq(self.across(start), terms)

            first = self.across(lambda lane: put_number(y, q + p * (radix * done), lane, number(sums, added, lane)))
            pairs = loop(radix // 2, lambda k: seq(summed(k + 1), self.across(lambda lane: put_both(k + 1, lane))), "k")
            return seq(summed(const(0)), first, pairs)

        return scratch([sums], loop(left, lambda p: loop(done, lambda q: of(p, q), "q"), "p"))

    def of_real(self, half: int, kept: int, x: Buffer, y: Buffer) -> Stmt:
        """The transforms of real rows of `2 half` elements: their first `kept` numbers in `y`, from those of pairs of elements in `x`."""

        def ends(lane: Expr) -> Stmt:
            names, zero = _Names(), const(0.0, x.dtype)
            re, im = _named(names, number(x, const(0), lane))
            first, last = (names(re + im), zero), (names(re - im), zero)
            return names.around(seq(put_number(y, const(0), lane, first), put_number(y, const(half), lane, last)))

        def middle(lane: Expr) -> Stmt:
            re, im = number(x, const(half // 2), lane)
            return put_number(y, const(half // 2), lane, (re, im if self.inverse else im * -1.0))

        def pair(q: Expr, lane: Expr) -> Stmt:
            names = _Names()
            (a_re, a_im), (b_re, b_im) = (_named(names, number(x, at, lane)) for at in (q, half - q))
            even = names((a_re + b_re) * 0.5), names((a_im - b_im) * 0.5)
            odd = names((a_im + b_im) * 0.5), names((b_re - a_re) * 0.5)
            turned = names.mul(odd, _named(names, self.root(q * (self.size // (2 * half)))))
            one, (re, im) = names.add(even, turned), names.sub(even, turned)
            return names.around(seq(put_number(y, q, lane, one), put_number(y, half - q, lane, (re, im * -1.0))))

        def mirrored(q: Expr, lane: Expr) -> Stmt:
            re, im = number(y, half - 1 - q, lane)
            return put_number(y, half + 1 + q, lane, (re, im * -1.0))

        return seq(
            self.across(ends),
            loop((half - 1) // 2, lambda q: self.across(lambda lane: pair(q + 1, lane)), "q"),
            self.across(middle) if half % 2 == 0 else seq(),
            loop(max(kept - half - 1, 0), lambda q: self.across(lambda lane: mirrored(q, lane)), "q"),
        )


def _named(names: _Names, value: Complex) -> Complex:
    return names(value[0]), names(value[1])


def number(x: Buffer, place: Expr, lane: Expr) -> Complex:
    return Load(x, (place * 2, lane)), Load(x, (place * 2 + 1, lane))


def put_number(y: Buffer, place: Expr, lane: Expr, value: Complex) -> Stmt:
    return seq(Store(y, (place * 2, lane), value[0]), Store(y, (place * 2 + 1, lane), value[1]))
