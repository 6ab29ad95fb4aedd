"""Linear algebra over bits: vectors are integers, whose bits are the elements, and sums are exclusive ors.

A matrix is the sequence of its columns: it maps the bits of x to the sum of the columns whose bits are set in x.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Elimination(NamedTuple):
    """What a matrix reaches, and what it does not tell apart.

    `pivots`: leading bit (counted from 1) -> a vector that starts with it, and the columns (a set, as bits) of which it is the sum;
    only columns that are no sum of earlier ones take part. `kernel`: sets of columns of sum 0, a basis of all such sets.
    """

    pivots: dict[int, tuple[int, int]]
    kernel: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.pivots)

    def solve(self, target: int) -> int | None:
        """The columns of sum `target`, no column among them that is a sum of earlier ones; None where there are none."""
        rest, chosen = _reduce(target, 0, self.pivots)
        return None if rest else chosen


def eliminate(columns: Iterable[int]) -> Elimination:
    """The echelon form of a matrix."""
    pivots: dict[int, tuple[int, int]] = {}
    kernel: list[int] = []
    for number, column in enumerate(columns):
        rest, chosen = _reduce(column, 1 << number, pivots)
        if rest:
            pivots[rest.bit_length()] = (rest, chosen)
        else:
            kernel.append(chosen)
    return Elimination(pivots, tuple(kernel))


def _reduce(vector: int, chosen: int, pivots: dict[int, tuple[int, int]]) -> tuple[int, int]:
    while pivot := pivots.get(vector.bit_length()):
        vector, chosen = vector ^ pivot[0], chosen ^ pivot[1]
    return vector, chosen


def rank(columns: Iterable[int]) -> int:
    """The number of linearly independent columns."""
    return eliminate(columns).rank


def product(columns: Sequence[int], vector: int) -> int:
    """The sum of the columns whose bits are set in `vector`."""
    total = 0
    for column in bits_of(vector):
        total ^= columns[column]
    return total


def bits_of(number: int) -> list[int]:
    """The places of the bits that are set in a number that is not negative, the lowest first."""
    return [place for place in range(number.bit_length()) if number >> place & 1]
