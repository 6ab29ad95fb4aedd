"""Layouts of fragments, against the formulas of the manuals, and in products whose operands lie as they say."""

from __future__ import annotations

import numpy as np
import pytest

from tc.ir.bit_layout import BitLayout, layout
from tc.ir.fragments import (
    MFMA_FRAGMENTS,
    MMA_SHAPES,
    WGMMA_SHAPES,
    ProductFragments,
    ldmatrix_result,
    ldmatrix_rows,
    mma_fragments,
    wgmma_fragments,
)
from tests.ir.lanes import LHS, RHS, Formula, gathered, held, ldmatrix, sums_of


def agrees(held: BitLayout, formula: Formula) -> bool:
    sizes = dict(held.inputs)
    return all(
        held(register=i, lane=lane) == formula(i, lane >> 2, lane % 4)
        for i in range(sizes["register"])
        for lane in range(sizes["lane"])
    )


@pytest.mark.parametrize("shape", MMA_SHAPES, ids=str)
def test_fragments_of_mma_are_those_of_the_manual(shape: tuple[int, int]) -> None:
    fragments = mma_fragments(*shape)

    assert fragments.extents == (16, 8, shape[0])
    assert agrees(fragments.lhs, LHS[shape])
    assert fragments.rhs is not None and agrees(fragments.rhs, RHS[shape])
    assert agrees(fragments.sums, sums_of)


@pytest.mark.parametrize("shape", WGMMA_SHAPES, ids=str)
def test_fragments_of_wgmma_are_those_of_the_manual(shape: tuple[int, int]) -> None:
    n, bits = shape
    fragments = wgmma_fragments(*shape)
    lhs = LHS[256 // bits, bits]

    assert fragments.extents == (64, n, 256 // bits)
    assert (dict(fragments.sums.inputs), dict(fragments.lhs.inputs)) == (
        {"register": n // 2, "lane": 32, "warp": 4},
        {"register": 128 // bits, "lane": 32, "warp": 4},
    )
    i, lane, warp = np.indices((n // 2, 32, 4))
    row, column = fragments.sums(register=i, lane=lane, warp=warp)
    assert np.array_equal(row, 16 * warp + lane // 4 + 8 * (i // 2 % 2))
    assert np.array_equal(column, 8 * (i // 4) + lane % 4 * 2 + (i & 1))
    for register in range(128 // bits):
        for number in range(32):
            row, column = lhs(register, number // 4, number % 4)
            assert fragments.lhs(register=register, lane=number, warp=3) == (row + 16 * 3, column)
            assert fragments.lhs(register=register, lane=number, warp=1) == (row + 16, column)


def test_fragments_of_mfma_are_those_of_the_manual() -> None:
    small, large = MFMA_FRAGMENTS["f32_16x16x16f16"], MFMA_FRAGMENTS["f32_32x32x8f16"]
    assert small.rhs is not None and large.rhs is not None

    for lane in range(64):
        for i in range(4):
            assert small.lhs(register=i, lane=lane) == (lane % 16, 4 * (lane // 16) + i)
            assert small.rhs(register=i, lane=lane) == (4 * (lane // 16) + i, lane % 16)
            assert small.sums(register=i, lane=lane) == (4 * (lane // 16) + i, lane % 16)
            assert large.lhs(register=i, lane=lane) == (lane % 32, 4 * (lane // 32) + i)
            assert large.rhs(register=i, lane=lane) == (4 * (lane // 32) + i, lane % 32)
        for i in range(16):
            assert large.sums(register=i, lane=lane) == (8 * (i // 4) + 4 * (lane // 32) + i % 4, lane % 32)


EVERY: dict[str, ProductFragments] = {
    **{f"mma k{k} {bits} bits": mma_fragments(k, bits) for k, bits in MMA_SHAPES},
    **{f"wgmma n{n} {bits} bits": wgmma_fragments(n, bits) for n, bits in WGMMA_SHAPES},
    **{f"mfma {name}": each for name, each in MFMA_FRAGMENTS.items()},
}


@pytest.mark.parametrize("name", EVERY)
def test_lanes_hold_every_element_once(name: str) -> None:
    fragments = EVERY[name]
    m, n, k = fragments.extents
    random = np.random.default_rng(1)

    for fragment, shape in ((fragments.lhs, (m, k)), (fragments.rhs, (k, n)), (fragments.sums, (m, n))):
        if fragment is not None:
            matrix = random.integers(-8, 8, shape)
            assert np.array_equal(gathered(fragment, held(fragment, matrix)), matrix)


@pytest.mark.parametrize("shape", MMA_SHAPES, ids=str)
def test_four_lanes_of_a_row_have_all_that_a_dot_product_needs(shape: tuple[int, int]) -> None:
    """The product of registers as the hardware does it: sums of a lane from the rows and columns of the eight lanes of its groups."""
    fragments = mma_fragments(*shape)
    m, n, k = fragments.extents
    random = np.random.default_rng(2)
    lhs, rhs, start = (random.integers(-8, 8, size) for size in ((m, k), (k, n), (m, n)))
    a, b, c = held(fragments.lhs, lhs), held(fragments.rhs, rhs), held(fragments.sums, start)  # type: ignore[arg-type]

    for register in range(4):
        for lane in range(32):
            row, column = sums_of(register, lane // 4, lane % 4)
            for inner in range(k):
                i, of_row = fragments.lhs.inverse()(m=row, k=inner)
                j, of_column = fragments.rhs.inverse()(k=inner, n=column)  # type: ignore[union-attr]
                assert of_row // 4 == row % 8 and of_column // 4 == column
                c[register, lane] += a[i, of_row] * b[j, of_column]

    assert np.array_equal(gathered(fragments.sums, c), start + lhs @ rhs)


def test_sums_beside_each_other_are_the_left_operand_of_the_next_product() -> None:
    """What attention relies on: the weights need not leave their registers."""
    beside = mma_fragments(16, 16).sums * layout({"n": 2}, register=[1])

    assert beside.rename(n="k") == mma_fragments(16, 16).lhs


# -- ldmatrix


@pytest.mark.parametrize("count", [1, 2, 4])
def test_addresses_of_ldmatrix_are_those_of_eight_lanes_a_matrix(count: int) -> None:
    rows = ldmatrix_rows(count)

    assert rows.inputs == (("lane", 8 * count),)
    assert all(rows(lane=lane) == (lane % 8, lane // 8) for lane in range(8 * count))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_results_of_ldmatrix_are_where_the_layout_says(count: int, transposed: bool) -> None:
    memory = np.random.default_rng(count).permutation(64 * count).astype(np.uint16)
    addresses = [64 * (lane // 8) + 8 * (lane % 8) for lane in range(8 * count)]
    where = ldmatrix_result(count, transposed=transposed)

    registers = ldmatrix(memory, addresses, count, transposed)

    tile = memory.reshape(count, 8, 8).transpose(1, 2, 0)
    assert np.array_equal(held(where, tile), registers)


def placed(result: BitLayout, place: BitLayout) -> BitLayout:
    """The result of an ldmatrix whose matrices are at these places: (row, column, matrix) -> the indices of the operand."""
    return result.then(place)


def test_ldmatrix_makes_the_operands_of_mma() -> None:
    """Four matrices are the left operand of m16n8k16; two, transposed, the right one from rows of k, or, as they are, from rows of n."""
    lhs, rhs = mma_fragments(16, 16).lhs, mma_fragments(16, 16).rhs
    four = layout({"m": 16, "k": 16}, row=[(1, 0), (2, 0), (4, 0)], column=[(0, 1), (0, 2), (0, 4)], matrix=[(8, 0), (0, 8)])
    by_k = layout({"k": 16, "n": 8}, row=[(1, 0), (2, 0), (4, 0)], column=[(0, 1), (0, 2), (0, 4)], matrix=[(8, 0)])
    by_n = layout({"k": 16, "n": 8}, row=[(0, 1), (0, 2), (0, 4)], column=[(1, 0), (2, 0), (4, 0)], matrix=[(8, 0)])

    assert placed(ldmatrix_result(4), four) == lhs
    assert placed(ldmatrix_result(2, transposed=True), by_k) == rhs
    assert placed(ldmatrix_result(2), by_n) == rhs


def test_ldmatrix_makes_the_operands_of_eight_bit_and_tf32_products() -> None:
    for k, bits in ((32, 8), (8, 32)):
        width = [(0, 1 << bit) for bit in range((128 // bits).bit_length() - 1)]
        four = layout({"m": 16, "k": k}, row=[(1, 0), (2, 0), (4, 0)], column=width, matrix=[(8, 0), (0, k // 2)])

        assert placed(ldmatrix_result(4, bits), four) == mma_fragments(k, bits).lhs


# -- other machines' packing


def test_tiles_of_amx_and_vnni_are_linear_too() -> None:
    """[K / 4][N][4] holds element (k, n) at k // 4, n, k % 4."""
    four_rows, rows = layout({"k": 4}, byte=[1, 2]), layout({"k": 16}, row=[1, 2, 4, 8])
    packed = four_rows * rows * layout({"n": 16}, column=[1, 2, 4, 8])
    k, n = np.indices((64, 16))

    byte, row, column = packed.inverse()(k=k, n=n)

    assert np.array_equal(row, k // 4) and np.array_equal(byte, k % 4) and np.array_equal(column, n)
