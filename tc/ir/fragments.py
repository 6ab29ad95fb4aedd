"""Who holds what of the operands of matrix instructions: the register of the lane (of the warp) for each element.

A fragment is a matrix that the lanes of a warp hold together. Its layout maps `register` (the number of an element among those of its
lane, in their order in the instruction's operand, several in one 32-bit register when they are narrow), `lane` and, where four warps
work together, `warp`, to the indices of the element: `m` and `k` of the left operand, `k` and `n` of the right one, `m` and `n` of sums.

Source of all tables: the PTX ISA, "Matrix Fragments" of mma, ldmatrix and wgmma, and AMD's matrix instruction calculator for mfma.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tc.ir.bit_layout import BitLayout, layout

WARPS_OF_A_GROUP = 4
"""Warps that run one wgmma together."""

MATRIX_ROWS = 8
ROW_BYTES = 16
"""Rows, and bytes of a row, of the matrices of which fragments of warps are made."""


@dataclass(frozen=True)
class ProductFragments:
    """The layouts of sums[m, n] += lhs[m, k] * rhs[k, n]. None for an operand that is not in registers."""

    lhs: BitLayout
    rhs: BitLayout | None
    sums: BitLayout

    @property
    def extents(self) -> tuple[int, int, int]:
        """m, n and k."""
        sizes = {**dict(self.lhs.outputs), **dict(self.sums.outputs)}
        return sizes["m"], sizes["n"], sizes["k"]


def core_matrix(bits: int, row: str, column: str) -> BitLayout:
    """A matrix of 8 rows of elements of so many bits, four lanes a row, each of which holds neighbours that fill 32 bits."""
    width = 32 // bits
    inside = [(0, 1 << bit) for bit in range(width.bit_length() - 1)]
    across = [(0, width), (0, 2 * width), (1, 0), (2, 0), (4, 0)]
    return layout({row: MATRIX_ROWS, column: 4 * width}, register=inside, lane=across)


@cache
def mma_fragments(k: int, bits: int) -> ProductFragments:
    """Those of `mma.sync.m16n8k{k}` on operands of so many bits: core matrices in two rows, then in as many columns as k needs."""
    below, beside = layout({"m": 2}, register=[1]), layout({"k": k * bits // 128}, register=[1] if k * bits == 256 else [])
    return ProductFragments(
        lhs=core_matrix(bits, "m", "k") * below * beside,
        rhs=(core_matrix(bits, "n", "k") * beside).only("k", "n"),
        sums=core_matrix(16, "m", "n") * below,  # two sums stand where two halves would
    )


@cache
def wgmma_fragments(n: int, bits: int) -> ProductFragments:
    """Those of `wgmma.mma_async.m64n{n}k{256 / bits}`, its left operand in registers, its right one in shared memory.

    n is a power of two here; for the other multiples of 8 the sums are those of a power of two, several times.
    """
    of_one_warp = mma_fragments(256 // bits, bits)
    warps = layout({"m": WARPS_OF_A_GROUP}, warp=[1, 2])
    beside = layout({"n": n // 8}, register=[1 << bit for bit in range((n // 8).bit_length() - 1)])
    return ProductFragments(of_one_warp.lhs * warps, None, of_one_warp.sums * beside * warps)


def of_group(fragments: ProductFragments) -> ProductFragments:
    """The same with the lanes of all warps of a group counted together: `lane` has as many values as the group has threads."""

    def joined(found: BitLayout) -> BitLayout:
        images = dict(found.images)
        lanes = (*images["lane"], *images["warp"])
        return BitLayout(found.outputs, (("register", images["register"]), ("lane", lanes)))

    rhs = None if fragments.rhs is None else joined(fragments.rhs)
    return ProductFragments(joined(fragments.lhs), rhs, joined(fragments.sums))


MMA_SHAPES = ((8, 16), (16, 16), (4, 32), (8, 32), (16, 8), (32, 8))
"""k and bits of the operands of the `mma.sync.m16n8k{k}` that there are: f16 and bf16, tf32, s8 and u8."""

WGMMA_SHAPES = tuple((n, bits) for n in (8, 16, 32, 64, 128, 256) for bits in (8, 16, 32))
"""n and bits of the operands of those `wgmma.mma_async.m64n{n}` whose fragments are layouts by themselves."""

MFMA_FRAGMENTS: dict[str, ProductFragments] = {
    "f32_16x16x16f16": ProductFragments(
        lhs=layout({"m": 16, "k": 16}, register=[(0, 1), (0, 2)], lane=[(1, 0), (2, 0), (4, 0), (8, 0), (0, 4), (0, 8)]),
        rhs=layout({"k": 16, "n": 16}, register=[(1, 0), (2, 0)], lane=[(0, 1), (0, 2), (0, 4), (0, 8), (4, 0), (8, 0)]),
        sums=layout({"m": 16, "n": 16}, register=[(1, 0), (2, 0)], lane=[(0, 1), (0, 2), (0, 4), (0, 8), (4, 0), (8, 0)]),
    ),
    "f32_32x32x8f16": ProductFragments(
        lhs=layout({"m": 32, "k": 8}, register=[(0, 1), (0, 2)], lane=[(1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (0, 4)]),
        rhs=layout({"k": 8, "n": 32}, register=[(1, 0), (2, 0)], lane=[(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (4, 0)]),
        sums=layout(
            {"m": 32, "n": 32},
            register=[(1, 0), (2, 0), (8, 0), (16, 0)],
            lane=[(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (4, 0)],
        ),
    ),
}
"""The name of AMD's instruction -> its fragments over the 64 lanes of a wavefront."""


# -- ldmatrix


def ldmatrix_rows(count: int) -> BitLayout:
    """Whose address is that of which row, for `ldmatrix` of 1, 2 or 4 matrices: lane -> (row, matrix). Other lanes' do not matter."""
    return layout({"row": MATRIX_ROWS}, lane=[1, 2, 4]) * layout({"matrix": count}, lane=_bits(count))


def ldmatrix_result(count: int, bits: int = 16, transposed: bool = False) -> BitLayout:
    """Who gets what from `ldmatrix`: (register, lane) -> (row, column, matrix). Only elements of 16 bits are transposed."""
    assert bits == 16 or not transposed, "ldmatrix transposes elements of 16 bits"
    of_one = core_matrix(bits, "column", "row") if transposed else core_matrix(bits, "row", "column")
    return of_one.only("row", "column") * layout({"matrix": count}, register=_bits(count))


@dataclass(frozen=True)
class MatrixLoad:
    """An `ldmatrix` of `count` matrices; `addresses` maps lanes to the place in memory of the row of 16 bytes whose address each gives."""

    count: int
    transposed: bool
    addresses: BitLayout


def ldmatrix_of(fragment: BitLayout, bits: int) -> MatrixLoad | None:
    """The `ldmatrix` that fills a fragment of one warp from memory whose rows are along its last dim; None where there is none."""
    count = dict(fragment.inputs)["register"] * bits // 32
    if count not in (1, 2, 4):
        return None
    for transposed in (False, True)[: 2 if bits == 16 else 1]:
        result = ldmatrix_result(count, bits, transposed)
        if set(result.inputs) == set(fragment.inputs):
            places = result.inverse().then(fragment)
            if places.contiguous("column") == 8 * ROW_BYTES // bits:
                return MatrixLoad(count, transposed, ldmatrix_rows(count).then(places.without("column")))
    return None


def _bits(size: int) -> list[int]:
    return [1 << bit for bit in range(size.bit_length() - 1)]
