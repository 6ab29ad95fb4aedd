"""Facts about the blocks of a PrimFunc that schedule rules and features ask for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from tc.ir.contraction import Operand, product_of
from tc.ir.expr import Buffer, Const, Expr, Load, Var, is_const
from tc.ir.loop import AxisKind, Block, For, IntrinsicCall, PrimFunc, Stmt, Store, annotation
from tc.ir.node import cached_by_identity, walk
from tc.ir.polynomial import linear_coefficients
from tc.schedule.tree import Place, block_places_in
from tc.target import MOST_SHUFFLED_STRIDE


@dataclass(frozen=True, eq=False)
class BlockInfo:
    """One block, the loops around it (outermost first), and what it reads and writes."""

    block: Block
    loops: tuple[For, ...]
    reads: tuple[Load, ...]
    writes: tuple[Store, ...]

    @property
    def name(self) -> str:
        return self.block.name

    @property
    def spatial_axes(self) -> tuple[Var, ...]:
        return tuple(axis.var for axis in self.block.axes if axis.kind is AxisKind.SPATIAL)

    @property
    def reduction_axes(self) -> tuple[Var, ...]:
        return tuple(axis.var for axis in self.block.axes if axis.kind is AxisKind.REDUCTION)

    @property
    def is_spatial(self) -> bool:
        """Whether every element is computed on its own, once. A block without axes that stores one number counts."""
        plain = bool(self.block.axes) or isinstance(self.block.body, Store)
        return plain and all(axis.kind is AxisKind.SPATIAL for axis in self.block.axes)

    @property
    def is_opaque(self) -> bool:
        return not self.block.axes and bool(self.loops or not isinstance(self.block.body, Store))

    @property
    def written_buffers(self) -> tuple[Buffer, ...]:
        return tuple(dict.fromkeys(store.buffer for store in self.writes))

    @property
    def read_buffers(self) -> tuple[Buffer, ...]:
        """Buffers read, except the block's own results (a reduction reads what it updates)."""
        own = self.written_buffers
        return tuple(dict.fromkeys(load.buffer for load in self.reads if load.buffer not in own))

    def reads_of(self, buffer: Buffer) -> tuple[Load, ...]:
        return tuple(load for load in self.reads if load.buffer is buffer)


def block_infos(func: PrimFunc) -> list[BlockInfo]:
    """The blocks of `func` in program order. Blocks inside blocks are part of the outer one."""
    return list(_block_infos(func.body))


@cached_by_identity(256)
def _block_infos(root: Stmt) -> tuple[BlockInfo, ...]:
    return tuple(map(block_info_of, block_places_in(root)))


def block_info_of(place: Place) -> BlockInfo:
    """What is known of the block at a place."""
    return BlockInfo(place.block, place.loops, *_accesses(place.block.body))


@cached_by_identity(1024)
def _accesses(body: Stmt) -> tuple[tuple[Load, ...], tuple[Store, ...]]:
    """What the body of a block reads and writes."""
    reads: dict[Load, None] = {}
    writes: list[Store] = []
    for node in walk(body):
        if isinstance(node, Load):
            reads.setdefault(node)
        elif isinstance(node, Store):
            writes.append(node)
        elif isinstance(node, IntrinsicCall):
            reads.update(dict.fromkeys(o for o in node.operands if isinstance(o, Load)))
    return tuple(reads), tuple(writes)


def axes_in(expr: Expr | tuple[Expr, ...]) -> set[Var]:
    """The variables in an expression, or in several."""
    parts = expr if isinstance(expr, tuple) else (expr,)
    return {node for part in parts for node in walk(part) if isinstance(node, Var)}


@dataclass(frozen=True, eq=False)
class Contraction:
    """A block that sums products of two operands, each lhs element being used for several columns.

    An operand is an expression around one load of data: elements may be chosen by loads of indices, cast, scaled, masked.
    `lhs_value` and `rhs_value` are the expressions as multiplied, `lhs` and `rhs` their loads. `rows`: spatial axes that choose elements
    of the lhs alone; `columns`: of the rhs alone; `batch`: of both. The rhs is the operand that is contiguous along the last spatial
    axis, when one is. `depth`: the reduction axes. `parts`: axes of `batch`, taken out of it, that another sum runs over.
    """

    info: BlockInfo
    lhs: Load
    rhs: Load
    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    batch: tuple[Var, ...]
    depth: tuple[Var, ...]
    lhs_value: Expr
    rhs_value: Expr
    parts: tuple[Var, ...] = ()


def as_contraction(info: BlockInfo) -> Contraction | None:
    """The contraction that a block computes, or None when it is something else."""
    if not info.reduction_axes or len(info.writes) != 1:
        return None
    found = product_of(info.writes[0].value, (*info.spatial_axes, *info.reduction_axes), lambda node: isinstance(node, Load))
    own = set(info.written_buffers)
    if found is None or any(load.buffer in own for load in found.reads):  # type: ignore[attr-defined]
        return None
    lhs, rhs = Operand(found.lhs, found.reads[0]), Operand(found.rhs, found.reads[1])
    driven = {axis.var for axis in info.block.axes if not isinstance(axis.value, Const)}
    spatial = tuple(axis for axis in info.spatial_axes if axis in driven)  # axes of extent 1 have no loop
    last = spatial[-1] if spatial else None
    if last is not None and last in lhs.axes and last not in rhs.axes:
        lhs, rhs = rhs, lhs
    rows = tuple(axis for axis in spatial if axis in lhs.axes and axis not in rhs.axes)
    columns = tuple(axis for axis in spatial if axis in rhs.axes and axis not in lhs.axes)
    batch = tuple(axis for axis in spatial if axis in rhs.axes and axis in lhs.axes)
    if not columns or not (_is_summed(lhs, info) and _is_summed(rhs, info)):
        return None
    return Contraction(
        info, lhs.read, rhs.read, rows, columns, batch, info.reduction_axes, lhs.value, rhs.value  # type: ignore[arg-type]
    )


def _is_summed(operand: Operand, info: BlockInfo) -> bool:
    """Whether a factor differs from term to term, if there are several: a sum times a number is no contraction."""
    several = [axis.var for axis in info.block.axes if axis.var in info.reduction_axes and not is_const(axis.extent, 1)]
    return not several or not operand.axes.isdisjoint(several)


def in_parts(contraction: Contraction, infos: list[BlockInfo]) -> Contraction:
    """The contraction, with the axes that the sum of its parts runs over; itself where nothing sums them up."""
    total = sum_of_parts(contraction.info, infos)
    if total is None:
        return contraction
    (result,), (load,) = contraction.info.writes, total.reads_of(contraction.info.writes[0].buffer)
    summed = {axis for axis, index in zip(result.indices, load.indices, strict=True) if index in total.reduction_axes}
    batch = tuple(axis for axis in contraction.batch if axis not in summed)
    return dataclasses.replace(contraction, batch=batch, parts=tuple(axis for axis in contraction.batch if axis in summed))


def sum_of_parts(info: BlockInfo, infos: list[BlockInfo]) -> BlockInfo | None:
    """The block that alone reads what the sum `info` makes, each element once, to sum it up along axes of its own."""
    if len(info.writes) != 1 or not info.reduction_axes:
        return None
    buffer = info.writes[0].buffer
    users = list(consumers(infos, buffer))
    if len(users) != 1 or annotation(users[0].block, "monoid") != "sum" or len(loads := users[0].reads_of(buffer)) != 1:
        return None
    axes = {axis.var for axis in users[0].block.axes}
    indices = [index for index in loads[0].indices if index in axes]
    is_plain = len(indices) == len(loads[0].indices) == len(set(indices)) == len(axes)
    return users[0] if is_plain and set(users[0].reduction_axes) <= set(indices) else None


def is_stencil(contraction: Contraction) -> bool:
    """Whether neighbours in the result are sums over windows of one operand a few elements apart: plain depthwise convolution."""
    last, index = contraction.columns[-1], contraction.rhs.indices[-1]
    if contraction.rows or last not in axes_in(index) or not axes_in(index) & set(contraction.depth):
        return False
    found = linear_coefficients(index, [last, *contraction.depth])
    step = None if found is None else found[0].get(last)
    return isinstance(step, Const) and 1 <= step.value <= MOST_SHUFFLED_STRIDE


def consumers(infos: list[BlockInfo], buffer: Buffer) -> Iterator[BlockInfo]:
    """The blocks that read `buffer`, except its own producer."""
    return (info for info in infos if buffer in info.read_buffers)


def producer(infos: list[BlockInfo], buffer: Buffer) -> BlockInfo | None:
    """The block that writes `buffer`; None for an input."""
    return next((info for info in infos if buffer in info.written_buffers), None)
