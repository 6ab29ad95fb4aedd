"""The register tile of contractions: it fits the registers, keeps what it was asked for, and is the cheapest by the estimate."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tc.schedule.rules import tiling
from tc.schedule.rules.tiling import Tile, TileSpace, cycles_per_step
from tc.target.table import GENERIC, LINE_BYTES

REGISTERS = (16, 32)
ROWS = (*range(1, 31), 49, 56, 100, 112, 128, 196, 197, 512, 1000, 3136)
BLOCKS = (1, 2, 3, 4, 5, 7, 8, 13, 16, 32, 63, None)


def cycles(rows: int, outer_rows: int, blocks: int, height: int, outer: int, vectors: int) -> float:
    return TileSpace(rows, outer_rows, blocks, 16, 32).cycles(Tile(height, vectors, 16, outer))


def registers_of(tile: Tile) -> int:
    """Accumulators, the vectors of one row of the rhs, one broadcast number."""
    return tile.all_rows * tile.vectors + tile.vectors + 1


@pytest.mark.parametrize("registers", REGISTERS)
def test_a_tile_fits_the_registers(registers: int) -> None:
    for rows, outer, blocks in product((*ROWS, None), (1, 2, 7, 28), BLOCKS):
        tile = TileSpace(rows, outer, blocks, 16, registers).best()

        assert registers_of(tile) <= registers, (rows, outer, blocks)
        assert 1 <= tile.rows <= (rows or 14) and 1 <= tile.vectors <= (blocks or 8) and 1 <= tile.outer_rows <= outer
        assert tile.outer_rows == 1 or tile.rows == rows  # only whole rows are joined


@pytest.mark.parametrize("registers", REGISTERS)
def test_vectors_keep_to_groups_and_panels(registers: int) -> None:
    for rows, blocks, divide, panel in product((1, 5, 14, 60, None), (1, 6, 12, 24), (0, 2, 3, 6), (1, 2, 4)):
        tile = TileSpace(rows, 1, blocks, 16, registers, divide, panel).best()

        assert divide == 0 or divide % tile.vectors == 0
        assert panel == 1 or panel % tile.vectors == 0


def test_exact_tiles_leave_no_rows_over() -> None:
    for rows in ROWS:
        assert rows % TileSpace(rows, 1, 8, 16, 32, exact=True).best().rows == 0


def test_no_other_tile_is_cheaper() -> None:
    for rows, blocks in product(range(1, 40), (1, 2, 3, 8, 11)):
        chosen = TileSpace(rows, 1, blocks, 16, 32).best()
        cost = cycles(rows, 1, blocks, chosen.rows, 1, chosen.vectors)
        for height, vectors in product(range(1, rows + 1), range(1, min(8, blocks) + 1)):
            if (height + 1) * vectors + 1 <= 32:
                assert cost <= cycles(rows, 1, blocks, height, 1, vectors) * (1 + 1e-9), (rows, blocks, height, vectors)


@pytest.mark.parametrize(("registers", "least"), [(16, 0.75), (32, 0.95)])
def test_large_products_keep_the_multipliers_busy(registers: int, least: float) -> None:
    for rows in (196, 512, 1000, 3136, None):
        tile = TileSpace(rows, 1, 32, 16, registers).best()

        busy = tile.all_rows * tile.vectors / GENERIC.fma_per_cycle / cycles_per_step(tile.all_rows, tile.vectors)
        assert busy >= least and (rows is None or tile.all_rows * tile.vectors >= registers // 2)


def test_the_estimate_counts_every_row_and_column_once() -> None:
    assert cycles(5, 1, 3, 5, 1, 3) == cycles_per_step(5, 3)
    assert cycles(5, 1, 3, 2, 1, 3) == 2 * cycles_per_step(2, 3) + cycles_per_step(1, 3)
    assert cycles(2, 5, 1, 2, 2, 1) == 2 * cycles_per_step(4, 1) + cycles_per_step(2, 1)
    assert cycles(4, 3, 5, 4, 1, 2) == 3 * (2 * cycles_per_step(4, 2) + cycles_per_step(4, 1))


def test_a_second_height_saves_cycles_where_rows_are_symbolic() -> None:
    space = TileSpace(None, 1, 24, 16, 32, panel=2)
    tile = space.best()
    second = space.second_height(tile)

    assert 1 < second < tile.rows
    both = tiling._mean_cycles(24, (tile.rows, second), tile.vectors, LINE_BYTES, GENERIC)
    assert both < (1 - tiling.LEAST_GAIN_OF_SECOND) * tiling._mean_cycles(24, (tile.rows,), tile.vectors, LINE_BYTES, GENERIC)
    assert space.cycles(tile) == both
    assert both <= min(tiling._mean_cycles(24, (tile.rows, rows), tile.vectors, LINE_BYTES, GENERIC) for rows in range(2, tile.rows))


def test_tiles_are_wide_where_rows_cost_more_than_their_few_steps() -> None:
    deep, shallow = (TileSpace(1015, 1, 19, 16, 32, row_cycles=cycles) for cycles in (0.0, tiling.ROW_CYCLES / 10))

    assert deep.best().vectors == tiling.PREFERRED_VECTORS
    assert shallow.best().vectors > tiling.PREFERRED_VECTORS
    assert shallow.cycles(deep.best()) > 1.1 * shallow.cycles(shallow.best())


def test_rows_of_a_matrix_are_read_by_wide_tiles() -> None:
    packed, row_major = TileSpace(5, 1, 86, 16, 32).best(), TileSpace(5, 1, 86, 16, 32, is_row_major=True).best()

    assert (packed.rows, row_major.rows) == (5, 5)
    assert row_major.vectors > packed.vectors == tiling.PREFERRED_VECTORS


def test_tiles_are_wide_where_their_columns_stay_in_the_first_cache() -> None:
    far, near = TileSpace(56, 56, 16, 16, 32).best(), TileSpace(56, 56, 16, 16, 32, near_rhs=True).best()

    assert (far.rows, far.vectors) == (14, 2)
    assert (near.rows, near.vectors) == (6, 4)


def test_tiles_for_a_symbolic_number_of_columns_are_narrow_and_tall() -> None:
    """One dim may be small, and all of a tile is computed: eight vectors of one row took five times as long for seven columns."""
    several, one = TileSpace(24, 1, None, 16, 32), TileSpace(24, 1, None, 16, 32, is_one_dim=True)
    narrow = TileSpace(24, 1, None, 16, 32, is_one_dim=True, has_narrow=True)

    assert one.best().vectors <= 2 <= several.best().vectors
    assert narrow.cycles(narrow.best()) <= one.cycles(one.best())


def test_few_columns_get_narrower_tiles_where_rows_alone_keep_the_multipliers_busy() -> None:
    space = TileSpace(24, 1, None, 16, 32, is_one_dim=True, has_narrow=True)

    assert space.narrow_vectors(Tile(8, 3, 16)) < 3
    assert replace(space, has_narrow=False).narrow_vectors(Tile(8, 3, 16)) == 3


def test_tiles_that_overlap_may_take_any_number_of_a_prime_number_of_rows() -> None:
    for rows in (7, 17, 19, 23, 29, 31, 37):
        exact, overlapping = TileSpace(rows, 1, 2, 16, 32, exact=True), TileSpace(rows, 1, 2, 16, 32, overlaps=True)
        tile = overlapping.best()

        assert overlapping.cycles(tile) <= exact.cycles(exact.best())
        whole = -(-rows // tile.rows) * tile.rows
        assert overlapping.cycles(tile) == TileSpace(whole, 1, 2, 16, 32).cycles(tile)


@pytest.mark.parametrize("blocks", [6, 16, 64])
def test_vectors_that_are_half_a_line_come_in_half_the_time(blocks: int) -> None:
    space = TileSpace(32, 1, blocks, 8, 16, panel=2, vector_bytes=32)

    assert space.best().vectors == 2, "one vector of a panel would read each of its lines twice"
    assert cycles_per_step(4, 2, 32) < cycles_per_step(4, 2, 64)


@pytest.mark.parametrize(("rows", "blocks", "usual", "few"), [
    (49, 10, Tile(14, 2, 16), Tile(7, 2, 16)),  # 49 = 7 * 7: none left over
    (12544, 6, Tile(14, 2, 16), Tile(14, 2, 16)),  # none is left over anyway
    (14, 8, Tile(14, 2, 16), Tile(14, 2, 16)),
])  # fmt: skip
def test_of_tiles_of_equal_cost_the_one_with_the_fewest_versions(rows: int, blocks: int, usual: Tile, few: Tile) -> None:
    far, near = (TileSpace(rows, 1, blocks, 16, 32, near_panel=near_panel) for near_panel in (False, True))
    assert (far.best(), near.best()) == (usual, few)
    assert near.cycles(usual) == near.cycles(few)


def test_few_versions_never_cost_cycles_nor_leave_multiply_adds_waiting() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows, blocks, registers = (int(rng.integers(1, most)) for most in (400, 70, 2))
        space = TileSpace(rows, 1, blocks, 16, 32 >> registers, near_panel=True)
        chosen, usual = space.best(), replace(space, near_panel=False).best()
        assert space.cycles(chosen) == pytest.approx(space.cycles(usual))
        assert chosen == usual or chosen.rows * chosen.vectors >= tiling.LEAST_SUMS
        rests = [(rows % tile.rows > 0) + (blocks % tile.vectors > 0) for tile in (chosen, usual)]
        assert rests[0] <= rests[1]
