"""Kernels that are products in register tiles: as written, their hot loops are what they shall be, and few of LLVM's passes suffice."""

from __future__ import annotations

from tc.ir.expr import Add, Expr, Load, Mul, Var
from tc.ir.loop import For, IntrinsicCall, LoopKind, PrimFunc, Stmt, Store, inner_statements
from tc.ir.node import walk
from tc.ir.uses import variables
from tc.ir.x86_intrinsics import DOTS, INTERLEAVES, fills_tile, is_sum_store, is_tile_dot

MARK = "; products in register tiles\n"
"""What the text of such a kernel begins with."""

EXCHANGES = "; lanes are exchanged\n"
"""And that of a kernel in which squares of elements are turned, or rows interleaved: LLVM finds shorter ways to exchange lanes late."""


def exchanges_lanes(stmt: Stmt) -> bool:
    """Whether vectors at or below a statement are exchanged in registers."""
    return (isinstance(stmt, For) and stmt.hints.transpose) or any(map(exchanges_lanes, inner_statements(stmt)))


def is_all_products(func: PrimFunc) -> bool:
    """Whether all that a kernel of known sizes adds up, of f32 or f64, are products of a vector and a number, and sums of such tiles; or
    all that a kernel of any sizes adds up, of any type, is by instructions that add several products, of vectors or of tiles: all passes
    spill sums in vectors. Where it interleaves an operand for them, or has versions by vectors beside those by tiles, its sizes are known.

    Found by comparing code: what other passes than the few would do for such kernels is nothing, or an instruction outside of the hot
    loop. Where sizes are symbolic, addresses are computed in loops that do not need them there; sums of other kinds gain from passes too.
    """
    found = _Sums()
    if not found.all_products(func.body, None):
        return False
    if found.dots or found.tile_dots:
        return not found.products and not (func.dims and (found.interleaves or (found.dots and found.tile_dots)))
    return not func.dims and found.products > 0 and all(buffer.dtype.is_float and buffer.dtype.bits >= 32 for buffer in func.buffers)


class _Sums:
    def __init__(self) -> None:
        self.products = 0
        self.dots = 0
        self.tile_dots = 0
        self.interleaves = 0

    def all_products(self, stmt: Stmt, lane: Var | None) -> bool:
        match stmt:
            case IntrinsicCall():
                self.dots += stmt.name in DOTS
                self.tile_dots += is_tile_dot(stmt.name)
                self.interleaves += stmt.name in INTERLEAVES
                return stmt.name in DOTS or stmt.name in INTERLEAVES or fills_tile(stmt.name) or is_sum_store(stmt.name)
            case Store():
                return self._is_product_or_copy(stmt, lane)
            case For(kind=LoopKind.VECTORIZED):
                return self.all_products(stmt.body, stmt.var)
        return all(self.all_products(child, lane) for child in inner_statements(stmt))

    def _is_product_or_copy(self, store: Store, lane: Var | None) -> bool:
        own = Load(store.buffer, store.indices)
        if all(node is not own for node in walk(store.value)):
            return True
        if not isinstance(store.value, Add) or store.buffer.scope == "global" or lane is None:
            return False
        lhs, rhs = store.value.lhs, store.value.rhs
        added = rhs if lhs is own else lhs
        if isinstance(added, Load) and added.buffer.scope == "register":
            return True
        if not isinstance(added, Mul) or _depends(added.lhs, lane) is _depends(added.rhs, lane):
            return False
        self.products += 1
        return True


def _depends(expr: Expr, lane: Var) -> bool:
    return any(var is lane for var in variables(expr))
