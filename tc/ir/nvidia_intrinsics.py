"""The matrix instructions of NVIDIA's GPUs that schedules may ask for by name, and the loads and stores of their operands.

Operands are fragments, held by the lanes of a warp as `fragments` says. A fragment has two dims, in the order of the memory that it is
loaded from: the left operand of a product [m, k] or [k, m], the right one [k, n] or [n, k]. The *order* of a product is two letters, one
for each operand: `n` for [m, k] and [k, n], as they are written, `t` for the transposed one. It makes no difference in registers, but which
load fills them: matrices of 16-bit elements are transposed by `ldmatrix.trans`, others must lie along k in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tc.ir.bit_layout import BitLayout, layout
from tc.ir.dtype import DType, bf16, f16, f32, i8, i32, u8
from tc.ir.expr import Buffer, Expr, Load, Var, call, cast, const
from tc.ir.fragments import ProductFragments, mma_fragments, of_group, wgmma_fragments
from tc.ir.intrinsic import Intrinsic, copy_pattern, fill_pattern, make_pattern, register_intrinsic, sizes
from tc.ir.loop import PrimFunc, Stmt, Store

ORDERS = ("nn", "nt", "tn", "tt")

MMA_OPERANDS: tuple[tuple[int, DType, DType, DType, str], ...] = (
    (8, f16, f16, f32, "sm_75"),
    (16, f16, f16, f32, "sm_80"),
    (16, bf16, bf16, f32, "sm_80"),
    (8, f32, f32, f32, "sm_80"),  # on tf32: the pattern says where it rounds
    *((32, lhs, rhs, i32, "sm_80") for lhs, rhs in product((i8, u8), (i8, u8))),
)
"""k of an `mma.sync.m16n8k{k}`, the types of its operands and of its sums, and the feature that has it."""

WGMMA_OPERANDS: tuple[tuple[DType, DType], ...] = ((f16, f32), (bf16, f32))
"""The types of the operands and of the sums of `wgmma.mma_async.m64n{n}k16`."""

WGMMA_COLUMNS = (64, 128, 256)
"""n of those."""

SWIZZLED_COLUMNS = 64
"""Elements of 16 bits of a row that is swizzled by 128 bytes: what lies side by side of an operand of wgmma in shared memory."""


def mma_name(k: int, lhs: DType, rhs: DType, order: str) -> str:
    """The name of the instruction that adds the product of two fragments of a warp, of 16 x k and k x 8 elements, to one of sums."""
    return f"mma.m16n8k{k}.{_operand_name(lhs)}.{_operand_name(rhs)}.{order}"


def wgmma_name(n: int, dtype: DType, place: str, order: str) -> str:
    """The name of the same on four warps, for 64 x n sums; `place` of the left operand, shared or fragment. The right one is shared."""
    return f"wgmma.m64n{n}k16.{dtype.name}.{place}.{order}"


def fragment_name(what: str, role: str, shape: tuple[int, ...], dtype: DType) -> str:
    """The name of the instructions that `zero`, `load` or `store` a fragment, element by element: of `sums`, `lhs.n`, `rhs.t`, ..."""
    return f"fragment_{what}.{role}.{'x'.join(map(str, shape))}.{dtype.name}"


def ldmatrix_name(role: str, shape: tuple[int, ...], dtype: DType) -> str:
    """The name of the `ldmatrix` that loads such a fragment of an operand from shared memory, of `lhs.n`, `rhs.t`, ..."""
    return f"ldmatrix.{role}.{'x'.join(map(str, shape))}.{dtype.name}"


def _operand_name(dtype: DType) -> str:
    return "tf32" if dtype is f32 else dtype.name


# -- patterns


def product_pattern(
    name: str, extents: tuple[int, int, int], order: str, types: tuple[DType, DType, DType], places: tuple[str, str]
) -> PrimFunc:
    """c[i, j] += total(a[i, r]) * total(b[r, j]), or a[r, i], or b[j, r], as the order says. f32 operands are rounded to tf32.

    The sum over r is that of the loops; the machine adds the products of one instruction in an order of its own, which no manual states.
    """
    m, n, k = extents
    lhs, rhs, total = types
    a = Buffer("a", sizes(*((m, k) if order[0] == "n" else (k, m))), lhs, places[0])
    b = Buffer("b", sizes(*((k, n) if order[1] == "n" else (n, k))), rhs, places[1])
    c = Buffer("c", sizes(m, n), total, "fragment")

    def body(i: Var, j: Var, r: Var) -> Stmt:
        left = a[i, r] if order[0] == "n" else a[r, i]
        right = b[r, j] if order[1] == "n" else b[j, r]
        return Store(c, (i, j), Load(c, (i, j)) + _factor(left, total) * _factor(right, total))

    return make_pattern(name, extents, (a, b, c), body, num_reduced=1)


def _factor(element: Expr, total: DType) -> Expr:
    return call("round_tf32", element) if element.dtype is f32 else cast(element, total)


# -- layouts


def _in_order(fragments: ProductFragments, order: str) -> tuple[BitLayout, BitLayout | None]:
    """The layouts of both operands, their dims in this order; None for one that is not in registers."""
    lhs = fragments.lhs.only(*(("m", "k") if order[0] == "n" else ("k", "m")))
    return lhs, None if fragments.rhs is None else fragments.rhs.only(*(("k", "n") if order[1] == "n" else ("n", "k")))


def shape_of(fragment: BitLayout) -> tuple[int, ...]:
    """The extents of a fragment."""
    return tuple(size for _, size in fragment.outputs)


# -- the table


def _register() -> None:
    for k, lhs, rhs, total, feature in MMA_OPERANDS:
        fragments = mma_fragments(k, lhs.bits)
        for order in ORDERS:
            name = mma_name(k, lhs, rhs, order)
            pattern = product_pattern(name, fragments.extents, order, (lhs, rhs, total), ("fragment", "fragment"))
            _register_one(name, pattern, feature, (*_in_order(fragments, order), fragments.sums))
    for (role, dtype), fragment in _operands():
        _register_copies(role, dtype, fragment)
    for dtype, total in WGMMA_OPERANDS:
        for n, place, order in product(WGMMA_COLUMNS, ("shared", "fragment"), ORDERS):
            if place == "shared" or order[0] == "n":  # registers hold the left operand in one order
                _register_wgmma(n, dtype, total, place, order)
    for total in (f32, i32):
        _register_sums(mma_fragments(16, 16).sums, total, "sm_75")
    for n in WGMMA_COLUMNS:
        _register_sums(of_group(wgmma_fragments(n, 16)).sums, f32, "sm_90a")


def _register_wgmma(n: int, dtype: DType, total: DType, place: str, order: str) -> None:
    fragments = of_group(wgmma_fragments(n, 16))
    name = wgmma_name(n, dtype, place, order)
    m, _, k = fragments.extents
    if order[1] == "n" and n > SWIZZLED_COLUMNS:
        pattern = _wide_pattern(name, (m, n, k), order, (dtype, dtype, total), place)
    else:
        pattern = product_pattern(name, (m, n, k), order, (dtype, dtype, total), (place, "shared"))
    _register_one(name, pattern, "sm_90a", (fragments.lhs if place == "fragment" else None, None, fragments.sums))


def _wide_pattern(
    name: str, extents: tuple[int, int, int], order: str, types: tuple[DType, DType, DType], place: str
) -> PrimFunc:
    """The same for a right operand that lies along n, in columns of 64: b[j // 64, r, j % 64]."""
    m, n, k = extents
    a = Buffer("a", sizes(*((m, k) if order[0] == "n" else (k, m))), types[0], place)
    b = Buffer("b", sizes(n // SWIZZLED_COLUMNS, k, SWIZZLED_COLUMNS), types[1], "shared")
    c = Buffer("c", sizes(m, n), types[2], "fragment")

    def body(i: Var, p: Var, q: Var, r: Var) -> Stmt:
        j = p * SWIZZLED_COLUMNS + q
        factors = cast(a[i, r] if order[0] == "n" else a[r, i], types[2]) * cast(b[p, r, q], types[2])
        return Store(c, (i, j), Load(c, (i, j)) + factors)

    return make_pattern(name, (m, n // SWIZZLED_COLUMNS, SWIZZLED_COLUMNS, k), (a, b, c), body, num_reduced=1)


def _operands() -> Iterator[tuple[tuple[str, DType], BitLayout]]:
    """The operands of products in registers: the role and order, the type, and the layout; of right ones two beside each other, too."""
    found: dict[tuple[str, DType, BitLayout], None] = {}
    for k, lhs, rhs, _, _ in MMA_OPERANDS:
        fragments = mma_fragments(k, lhs.bits)
        two = layout({"n": 2}, register=[1])
        for order in ("nn", "tt"):
            left, right = _in_order(fragments, order)
            assert right is not None
            for role, dtype, fragment in (("lhs", lhs, left), ("rhs", rhs, right), ("rhs", rhs, right * two)):
                found[f"{role}.{order[0]}", dtype, fragment] = None
    return (((role, dtype), fragment) for role, dtype, fragment in found)


def _register_copies(role: str, dtype: DType, fragment: BitLayout) -> None:
    """The loads of an operand: from any memory, element by element, and from shared memory by `ldmatrix` where that fills it.

    That is where neighbours in a register are neighbours in memory, or have 16 bits.
    """
    shape = shape_of(fragment)
    name = fragment_name("load", role, shape, dtype)
    _register_one(name, copy_pattern(name, shape, dtype, ("global", "fragment")), "sm_75", (None, fragment))
    if role in ("lhs.n", "rhs.t") or dtype.bits == 16:
        name = ldmatrix_name(role, shape, dtype)
        _register_one(name, copy_pattern(name, shape, dtype, ("shared", "fragment")), "sm_75", (None, fragment))


def _register_sums(fragment: BitLayout, total: DType, feature: str) -> None:
    shape = shape_of(fragment)
    name = fragment_name("zero", "sums", shape, total)
    _register_one(name, fill_pattern(name, shape, const(0, total), "fragment"), feature, (fragment,))
    for what, scopes, layouts in (("load", ("global", "fragment"), (None, fragment)), ("store", ("fragment", "global"), (fragment, None))):
        name = fragment_name(what, "sums", shape, total)
        _register_one(name, copy_pattern(name, shape, total, scopes), feature, layouts)


def _register_one(name: str, pattern: PrimFunc, feature: str, layouts: tuple[BitLayout | None, ...]) -> None:
    apart = frozenset(range(len(pattern.buffers)))
    register_intrinsic(Intrinsic(name, pattern, ((feature,),), apart, layouts))


_register()
