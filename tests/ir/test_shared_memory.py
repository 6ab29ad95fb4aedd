"""Wavefronts of shared memory, by ranks and by counting; swizzles of the usual tiles."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.ir.arith import Facts, simplify
from tc.ir.bit_layout import BitLayout, layout, row_major
from tc.ir.expr import Var
from tc.ir.fragments import ldmatrix_rows
from tc.ir.shared_memory import choose_swizzle, least_wavefronts, swizzle_mode, wavefronts, wavefronts_of


def counted(access: BitLayout, element_bytes: int, start: int = 0) -> int:
    """The wavefronts of an access, all of whose offsets are changed by some bits, by counting."""
    (offsets,) = access(lane=np.arange(dict(access.inputs)["lane"]))
    width_bytes = dict(access.inputs).get("element", 1) * element_bytes
    addresses = (np.asarray(offsets) ^ start) * element_bytes // width_bytes * width_bytes
    return wavefronts_of(addresses.tolist(), width_bytes)


@pytest.mark.parametrize("seed", range(300))
def test_ranks_count_the_wavefronts_that_there_are(seed: int) -> None:
    rng = random.Random(seed)
    element_bytes, count = rng.choice([(1, 1), (2, 1), (2, 2), (2, 4), (2, 8), (4, 1), (4, 2), (4, 4), (1, 16), (8, 1), (16, 1)])
    size = 1 << rng.randint(6, 13)
    lanes = [rng.choice([rng.randrange(size), 1 << rng.randrange(size.bit_length() - 1), 0]) // count * count for _ in range(5)]
    access = layout({"offset": size}, element=_powers(1, count), lane=lanes[: rng.choice([3, 4, 5, 5, 5])])

    found = wavefronts(access, element_bytes)

    assert found == counted(access, element_bytes)
    assert found == counted(access, element_bytes, rng.randrange(size))
    assert found >= least_wavefronts(access, element_bytes)


def test_wavefronts_of_what_everybody_knows() -> None:
    every_word = [4 * lane for lane in range(32)]
    column_of_32, padded = [128 * lane for lane in range(32)], [132 * lane for lane in range(32)]
    pairs, vectors = [8 * lane for lane in range(32)], [16 * lane for lane in range(32)]

    assert wavefronts_of(every_word, 4) == 1
    assert wavefronts_of(column_of_32, 4) == 32
    assert wavefronts_of(padded, 4) == 1
    assert wavefronts_of([0] * 32, 4) == 1
    assert wavefronts_of([2 * lane for lane in range(32)], 2) == 1
    assert wavefronts_of(pairs, 8) == 2
    assert wavefronts_of(pairs, 4) == 2
    assert wavefronts_of(vectors, 16) == 4
    assert wavefronts_of([144 * lane for lane in range(8)], 16) == 1
    assert wavefronts_of([128 * lane for lane in range(8)], 16) == 8
    assert wavefronts_of([], 4) == 0
    with pytest.raises(ScheduleError, match="multiples of 16"):
        wavefronts_of([8], 16)


def test_elements_of_a_lane_must_follow_each_other() -> None:
    with pytest.raises(ScheduleError, match="do not follow each other"):
        wavefronts(layout({"offset": 64}, element=[2], lane=[1, 4, 8, 16, 32]), 4)


# -- swizzles


@pytest.mark.parametrize("element_bytes", [1, 2, 4])
@pytest.mark.parametrize("mode_bytes", [32, 64, 128])
def test_modes_mix_the_numbers_of_chunks_and_lines(mode_bytes: int, element_bytes: int) -> None:
    """As the manual has it: bits 4 to 6 of an address are mixed with bits 7 to 9, as many as the mode says."""
    columns = mode_bytes // element_bytes
    mask = {32: 1, 64: 3, 128: 7}[mode_bytes]
    row, column = np.indices((32, columns))
    plain = (row * columns + column) * element_bytes

    (offset,) = swizzle_mode(mode_bytes, 32, columns, element_bytes)(row=row, column=column)

    assert np.array_equal(offset * element_bytes, plain ^ (plain >> 7 & mask) << 4)
    assert np.array_equal(np.sort(offset.ravel()), np.arange(32 * columns))


def test_a_row_of_another_length_has_no_mode() -> None:
    with pytest.raises(ScheduleError, match="has 128 bytes, not 256"):
        swizzle_mode(128, 64, 128, 2)


def vectors(rows: int, columns: int, count: int) -> BitLayout:
    """Lanes take `count` neighbours each, row by row, as a copy of 128 bits does."""
    whole = row_major("offset", row=rows, column=columns).inverse()
    return layout({"offset": rows * columns}, element=_powers(1, count), lane=_powers(count, 32)).then(whole)


def matrices(rows: int, columns: int, element_bytes: int, below: int) -> BitLayout:
    """ldmatrix.x4, `below` of whose matrices are below each other, the others beside; at the end of the tile it starts again."""
    width = 16 // element_bytes
    places = {1: [(0, width), (0, 2 * width)], 2: [(8, 0), (0, width)], 4: [(8, 0), (16, 0)]}[below]
    inside = [(row % rows, column % columns) for row, column in places]
    where = layout({"row": rows, "column": columns}, row=[(1, 0), (2, 0), (4, 0)], matrix=inside)
    of_lanes = ldmatrix_rows(4).then(where)
    return BitLayout(of_lanes.outputs, (("element", tuple((0, each) for each in _powers(1, width))), *of_lanes.images))


def _powers(first: int, size: int) -> list[int]:
    return [first << bit for bit in range(size.bit_length() - 1)]


TILES = [(rows, width, size) for rows in (16, 32, 64, 128) for width in (32, 64, 128) for size in (1, 2, 4)]


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("below", [1, 2, 4])
def test_copies_and_matrices_meet_no_bank_twice(tile: tuple[int, int, int], below: int) -> None:
    rows, columns, element_bytes = tile
    write = vectors(rows, columns, 16 // element_bytes)
    read = matrices(rows, columns, element_bytes, below)

    swizzle = choose_swizzle(rows, columns, element_bytes, [write, read])

    assert swizzle.is_invertible
    for access in (write, read):
        assert wavefronts(access.then(swizzle), element_bytes) == counted(access.then(swizzle), element_bytes) == 4


def test_the_chosen_swizzle_is_the_mode_of_tma_where_that_is_good() -> None:
    for columns, mode in ((64, 128), (32, 64), (16, 32)):
        accesses = [vectors(64, columns, 8), matrices(64, columns, 2, 4)]

        assert choose_swizzle(64, columns, 2, accesses) == swizzle_mode(mode, 64, columns, 2)


def test_a_square_of_floats_is_read_by_rows_and_by_columns() -> None:
    by_rows = layout({"row": 32, "column": 32}, lane=[(0, 1 << bit) for bit in range(5)])
    by_columns = layout({"row": 32, "column": 32}, lane=[(1 << bit, 0) for bit in range(5)])

    swizzle = choose_swizzle(32, 32, 4, [by_rows, by_columns])

    assert wavefronts(by_rows.then(swizzle), 4) == wavefronts(by_columns.then(swizzle), 4) == 1
    assert wavefronts(by_columns.then(row_major("offset", row=32, column=32)), 4) == 32
    assert [str(expr) for expr in swizzle.exprs(row=Var("row"), column=Var("column"))] == ["row * 32 + bit_xor(column, row)"]


def test_where_vectors_must_stay_whole_the_fewest_wavefronts_are_taken() -> None:
    """Columns of floats that are written four at a time: eight places for 32 rows."""
    write = vectors(32, 32, 4)
    by_columns = layout({"row": 32, "column": 32}, lane=[(1 << bit, 0) for bit in range(5)])

    swizzle = choose_swizzle(32, 32, 4, [write, by_columns])

    assert wavefronts(write.then(swizzle), 4) == 4
    assert wavefronts(by_columns.then(swizzle), 4) == 4


def random_access(rng: random.Random, rows: int, columns: int, count: int) -> BitLayout:
    def place() -> tuple[int, int]:
        if rng.random() < 0.5:
            return (1 << rng.randrange(rows.bit_length() - 1), 0)
        return (rng.randrange(rows) if rng.random() < 0.3 else 0, rng.randrange(columns) // count * count)

    return layout({"row": rows, "column": columns}, element=[(0, each) for each in _powers(1, count)], lane=[place() for _ in range(5)])


@pytest.mark.parametrize("seed", range(40))
def test_no_swizzle_of_the_kind_has_fewer_wavefronts(seed: int) -> None:
    """All maps of two bits of the line, and random ones of more."""
    rng = random.Random(seed)
    rows, columns, element_bytes, count = rng.choice([(4, 128, 2, 8), (16, 32, 2, 8), (16, 64, 1, 16), (16, 16, 4, 4), (8, 32, 4, 2)])
    accesses = [random_access(rng, rows, columns, rng.choice([1, count])) for _ in range(rng.choice([1, 2, 3]))]
    accesses.append(random_access(rng, rows, columns, count))
    plain = row_major("offset", row=rows, column=columns)
    bits = (rows * columns).bit_length() - 1
    line = (128 // element_bytes).bit_length() - 1

    def cost(swizzle: BitLayout) -> int:
        return sum(counted(access.then(swizzle), element_bytes) for access in accesses)

    def mixed(images: list[int]) -> BitLayout:
        moved = [(1 << bit) ^ (images[bit - line] if bit >= line else 0) for bit in range(bits)]
        return plain.then(layout({"offset": 1 << bits}, offset=moved))

    chosen = cost(choose_swizzle(rows, columns, element_bytes, accesses))

    assert chosen <= cost(plain)
    for _ in range(60):
        assert chosen <= cost(mixed([rng.randrange(1 << line) // count * count for _ in range(bits - line)]))


def test_offsets_of_a_swizzled_fragment_simplify_to_few_operations() -> None:
    """What a lane computes once, before the loop: the exclusive or of its place in a row and its row."""
    swizzle = swizzle_mode(128, 64, 64, 2)
    lane, step = Var("lane"), Var("step")
    facts = Facts().with_bounds(lane, 0, 31).with_bounds(step, 0, 3)

    (offset,) = swizzle.exprs(row=lane % 16, column=step * 16 + lane // 16 * 8)

    assert str(simplify(offset, facts)) == "bit_xor(lane % 8, step * 2 + lane // 16) * 8 + lane % 16 * 64"
