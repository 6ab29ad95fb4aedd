"""Shared memory of a GPU's block: how often the banks are asked for an access of a warp, and swizzles with which once is enough.

There are 32 banks of 4 bytes. A warp's access is served in *wavefronts*; in each, a bank gives one word, to all lanes that want it.
Accesses of 8 bytes a lane are served by half warps, those of 16 bytes, and `ldmatrix`, by quarters.

A tile lies in memory by a layout from (row, column) to `offset`, in elements; an *access* is a layout from (element, lane) to (row,
column), where `element` counts the neighbours that a lane takes at once. What a warp does elsewhere in the tile, or another warp does,
differs by a sum of bits: it meets as many banks.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

from tc.errors import ScheduleError
from tc.ir.bit_layout import BitLayout, layout, row_major
from tc.ir.cached import cached_property
from tc.ir.gf2 import eliminate, rank

BANKS = 32
BANK_BYTES = 4
LINE_BYTES = BANKS * BANK_BYTES
"""Bytes that all banks give at once."""


# -- wavefronts


def wavefronts_of(addresses: Sequence[int | None], width_bytes: int) -> int:
    """The wavefronts of an access of so many bytes a lane at these addresses, in bytes, one a lane: by counting.

    None stands for a lane that takes no part. ScheduleError for an address that is no multiple of the width.
    """
    if any(address is not None and address % width_bytes for address in addresses):
        raise ScheduleError(f"accesses of {width_bytes} bytes must be at multiples of {width_bytes}")
    banks = [[word % BANKS for word in words] for words in _words_at_once(addresses, width_bytes)]
    return sum(max(map(each.count, set(each)), default=0) for each in banks)


def least_wavefronts_of(addresses: Sequence[int | None], width_bytes: int) -> int:
    """The wavefronts of such an access if its words were in banks as different as can be."""
    return sum(-(-len(words) // BANKS) for words in _words_at_once(addresses, width_bytes))


def _words_at_once(addresses: Sequence[int | None], width_bytes: int) -> Iterator[set[int]]:
    """The words of the lanes that are served together."""
    at_once, step = _lanes_at_once(width_bytes), min(width_bytes, BANK_BYTES)
    for first in range(0, len(addresses), at_once):
        lanes = [address for address in addresses[first : first + at_once] if address is not None]
        yield {(address + byte) // BANK_BYTES for address in lanes for byte in range(0, width_bytes, step)}


def _lanes_at_once(width_bytes: int) -> int:
    return LINE_BYTES // max(width_bytes, BANK_BYTES)


def wavefronts(access: BitLayout, element_bytes: int) -> int:
    """The wavefronts of an access from (element, lane) to `offset`, in elements: by ranks.

    The words that are met at once are the sums of what the bits of the lanes and of the words of an element add, and those in one bank
    differ by such sums that are multiples of a line: 2**d of them, where d bits of the words are lost when only the banks are looked at.
    ScheduleError where elements of a lane do not follow each other.
    """
    check_vector(access)
    parts = _Parts.of(access, element_bytes)
    return parts.groups << (rank(parts.words) - rank(word % BANKS for word in parts.words))


def least_wavefronts(access: BitLayout, element_bytes: int) -> int:
    """The wavefronts of an access that meets no bank twice, or only when there are not enough banks for all that it wants."""
    return _Parts.of(access, element_bytes).least


def check_vector(access: BitLayout) -> None:
    """ScheduleError unless the elements of a lane follow each other, from a multiple of their number on."""
    count = dict(access.inputs).get("element", 1)
    if count > 1 and access.contiguous("element") != count:
        raise ScheduleError(f"the {count} elements of a lane do not follow each other: {access}")


@dataclass(frozen=True)
class _Parts:
    """Of an access: how many times lanes are served, and the words that the bits of those served at once, and of an element, add."""

    groups: int
    words: tuple[int, ...]

    @staticmethod
    def of(access: BitLayout, element_bytes: int) -> _Parts:
        sizes, images = dict(access.inputs), dict(access.images)
        width_bytes = sizes.get("element", 1) * element_bytes
        at_once = min(sizes["lane"], _lanes_at_once(width_bytes))
        lane = [point[0] * element_bytes for point in images["lane"][: at_once.bit_length() - 1]]
        inside = [1 << bit for bit in range(width_bytes.bit_length() - 1)]
        return _Parts(sizes["lane"] // at_once, tuple(byte // BANK_BYTES for byte in (*lane, *inside)))

    @cached_property
    def echelon(self) -> tuple[int, ...]:
        """A basis of the sums of words, no two of which have one leading bit."""
        return tuple(vector for vector, _ in eliminate(self.words).pivots.values())

    @property
    def least(self) -> int:
        return self.groups << max(0, rank(self.words) - (BANKS.bit_length() - 1))


# -- swizzles


def xor_bits(size: int, sources: Sequence[tuple[int, int]]) -> BitLayout:
    """offset -> offset: a bit, for each pair, is also the other one's: (from, to)."""
    images = [1 << bit for bit in range(size.bit_length() - 1)]
    for source, target in sources:
        images[source] ^= 1 << target
    return layout({"offset": size}, offset=images)


SWIZZLE_BYTES = (32, 64, 128)
"""The modes of the copies by TMA and of the operands of wgmma in shared memory."""


def swizzle_mode(mode_bytes: int, rows: int, columns: int, element_bytes: int) -> BitLayout:
    """(row, column) -> offset of a tile by one of the modes of TMA and wgmma; its rows have as many bytes as the mode says.

    The numbers of the 16-byte chunks in a line of 128 bytes are mixed with those of the lines: in a row of 128 bytes, chunk c of row r
    lies at place c ^ (r % 8). Source: PTX ISA, "Shared Memory Layout" of wgmma.
    """
    assert mode_bytes in SWIZZLE_BYTES, f"no swizzle of {mode_bytes} bytes"
    if columns * element_bytes != mode_bytes:
        raise ScheduleError(f"a row of a tile swizzled by {mode_bytes} bytes has {mode_bytes} bytes, not {columns * element_bytes}")
    unit = element_bytes.bit_length() - 1
    plain = row_major("offset", row=rows, column=columns)
    size = rows * columns
    bits = range((mode_bytes // 16).bit_length() - 1)
    return plain.then(xor_bits(size, [(7 + bit - unit, 4 + bit - unit) for bit in bits if size >> 7 + bit - unit > 1]))


def choose_swizzle(rows: int, columns: int, element_bytes: int, accesses: Sequence[BitLayout]) -> BitLayout:
    """The layout (row, column) -> offset, row by row but for bits that are mixed, in which these accesses have the fewest wavefronts.

    Each access maps (element, lane) to (row, column). Of an offset, bits of the line (all from 128 bytes on) are added to those of the
    chunk in the line, a chunk being the widest vector of the accesses, which stays whole: offset ^ f(line). Every such map keeps
    elements apart, whatever f is, and addresses of neighbours in a row differ as they do without it. An access has the fewest wavefronts
    when no sum of the words that it meets at once is a multiple of a line, so f is searched for by its images, one bit of the line after
    another: a sum that no later bit takes part in cannot be mended, hence what these have cost by then is a bound from below. The first
    f that costs nothing is the answer; there is none cheaper, and in each of its images the smallest that does is tried first.
    Source: the conflict condition is that of Triton's linear layouts; common complements of subspaces over GF(2).
    """
    return _chosen(rows, columns, element_bytes, tuple(accesses))


@lru_cache(256)
def _chosen(rows: int, columns: int, element_bytes: int, accesses: tuple[BitLayout, ...]) -> BitLayout:
    plain = row_major("offset", row=rows, column=columns)
    flat = [access.then(plain) for access in accesses]
    for access in flat:
        check_vector(access)
    search = _Search.of(rows * columns * element_bytes, flat, element_bytes)
    images = search.best()
    unit = element_bytes.bit_length() - 1
    mixed = [(line - unit, bit - unit) for line, image in images.items() for bit in range(7) if image >> bit & 1]
    return plain.then(xor_bits(rows * columns, mixed))


TRIED = 1 << 11
"""Images that a search tries at most. Where there is a swizzle without conflicts, some hundred do."""


@dataclass(frozen=True)
class _Search:
    """For images, among `choices`, of the bits `lines` of an offset, in bytes; `parts` are those of the accesses."""

    lines: tuple[int, ...]
    choices: tuple[int, ...]
    parts: tuple[_Parts, ...]

    @staticmethod
    def of(size_bytes: int, accesses: Sequence[BitLayout], element_bytes: int) -> _Search:
        parts = tuple(_Parts.of(access, element_bytes) for access in accesses)
        met = reduce(operator.or_, (word * BANK_BYTES for part in parts for word in part.words), 0)
        lines = tuple(bit for bit in range(7, (size_bytes - 1).bit_length()) if met >> bit & 1)
        widest = max((dict(access.inputs).get("element", 1) * element_bytes for access in accesses), default=LINE_BYTES)
        choices = tuple(range(0, LINE_BYTES, min(max(widest, BANK_BYTES), LINE_BYTES)))
        return _Search(lines, choices, parts)

    def best(self) -> dict[int, int]:
        """The images with the fewest wavefronts, of those tried."""
        least = sum(part.least for part in self.parts)
        found: tuple[int, dict[int, int]] | None = None
        for cost, images in self._complete({}, [TRIED]):
            if found is None or cost < found[0]:
                found = cost, images
            if cost <= least:
                break
        assert found is not None
        return found[1]

    def _complete(self, images: dict[int, int], left: list[int]) -> Iterator[tuple[int, dict[int, int]]]:
        """Complete images that extend these, and their costs; those that promise most first."""
        if len(images) == len(self.lines):
            yield self.cost(images), images
            return
        line = self.lines[len(images)]
        extended = [{**images, line: image} for image in self.choices]
        left[0] -= len(extended)
        for each in sorted(extended, key=self.cost):
            yield from self._complete(each, left)
            if left[0] <= 0:
                return

    def cost(self, images: dict[int, int]) -> int:
        """The wavefronts, as far as these images decide them: a bound from below."""
        return sum(part.groups << self._lost(part, images) for part in self.parts)

    def _lost(self, part: _Parts, images: dict[int, int]) -> int:
        """How many bits of the sums in which only lines of these images take part are lost when only the banks are looked at."""
        undecided = self.lines[len(images)] if len(images) < len(self.lines) else None
        decided = [vector for vector in part.echelon if undecided is None or vector * BANK_BYTES < 1 << undecided]
        return len(decided) - rank(self._bank(vector * BANK_BYTES, images) for vector in decided)

    def _bank(self, byte: int, images: dict[int, int]) -> int:
        mixed = (image for line, image in images.items() if byte >> line & 1)
        return reduce(operator.xor, mixed, byte % LINE_BYTES)
