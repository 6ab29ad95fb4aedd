"""How an operator fuses, read off its loops. No list of operator names exists anywhere.

Source: the pattern kinds of TVM's and Relay's fusion; there they are declared per operator, here they are inferred.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from tc.ir.contraction import product_of
from tc.ir.expr import Load, Var, is_const
from tc.ir.graph import Attrs
from tc.ir.loop import AxisKind, Block
from tc.ir.types import TensorType
from tc.ir.uses import variables
from tc.ops.registry import OpDef
from tc.te import Read, Stage, Tensor, placeholder, reads, stages_of


class FusionKind(IntEnum):
    """From the freest to the least free.

    ELEMENTWISE: each result element is computed from single elements of the operands, some through index maps.
    REDUCTION: folds many elements into one, without reuse of what it reads.
    CONTRACTION: sums products of operands that are each reused along an axis of the other (matmul, convolution).
    OPAQUE: writes its results in its own way.
    """

    ELEMENTWISE = 0
    REDUCTION = 1
    CONTRACTION = 2
    OPAQUE = 3


class Access(IntEnum):
    """How result element (i, j, ...) reads an operand: at (i, j, ...); at some of these axes in order; in any other way."""

    IDENTITY = 0
    BROADCAST = 1
    INDEXED = 2


@dataclass(frozen=True)
class LoopShape:
    """What fusion needs to know of an operator: its kind and how it reads each operand (None: not read, or absent)."""

    kind: FusionKind
    accesses: tuple[Access | None, ...]


def infer_loop_shape(op: OpDef, types: Sequence[TensorType | None], attrs: Attrs, results: Sequence[TensorType]) -> LoopShape:
    """The loop shape of a call with operands of these types."""
    if op.compute is None:
        return LoopShape(FusionKind.OPAQUE, tuple(None for _ in types))
    operands = [None if t is None else placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(types)]
    outputs = op.compute_tensors(operands, attrs, results)
    stages = stages_of(outputs)
    kind = max((_stage_kind(stage) for stage in stages), default=FusionKind.ELEMENTWISE)
    return LoopShape(kind, tuple(_operand_access(operand, outputs, stages) for operand in operands))


def _stage_kind(stage: Stage) -> FusionKind:
    if stage.raw is not None:
        return FusionKind.OPAQUE
    if not stage.reduce_axes:
        return FusionKind.ELEMENTWISE
    return FusionKind.CONTRACTION if is_contraction(stage) else FusionKind.REDUCTION


def is_contraction(stage: Stage) -> bool:
    """Whether the stage sums products of two operands, each of which misses a spatial axis that the other has."""
    if len(stage.values) != 1 or ("monoid", "sum") not in stage.annotations:
        return False
    found = product_of(stage.values[0], lambda node: isinstance(node, (Read, Load)))
    if found is None:
        return False
    spatial = frozenset(stage.axes)
    lhs, rhs = (variables(side) & spatial for side in (found.lhs, found.rhs))
    return bool(lhs - rhs) and bool(rhs - lhs)


def _operand_access(operand: Tensor | None, outputs: Sequence[Tensor], stages: Sequence[Stage]) -> Access | None:
    """The loosest way in which any output reaches `operand`, through the stages between."""
    if operand is None:
        return None
    reach: dict[object, Access | None] = {}
    for stage in stages:
        worst: Access | None = None
        for read in reads(stage):
            here = _read_access(read, stage)
            if read.tensor is operand:
                via: Access | None = here
            else:
                below = reach.get(read.tensor.stage)
                via = None if below is None else max(here, below)
            worst = via if worst is None else worst if via is None else max(worst, via)
        reach[stage] = worst
    found = [reach[out.stage] for out in outputs if out.stage is not None and reach.get(out.stage) is not None]
    return max(found) if found else None  # type: ignore[type-var]


def _read_access(read: Read, stage: Stage) -> Access:
    axes = stage.axes
    if len(read.indices) == len(axes) and all(
        index is axis or (is_const(index, 0) and is_const(dim, 1))
        for index, axis, dim in zip(read.indices, axes, stage.buffers[0].shape, strict=True)
    ):
        return Access.IDENTITY
    position = {axis: k for k, axis in enumerate(axes)}
    kept = [index for index in read.indices if not is_const(index, 0)]
    places = [position.get(index, -1) for index in kept if isinstance(index, Var)]
    if len(places) == len(kept) and -1 not in places and places == sorted(set(places)):
        return Access.BROADCAST
    return Access.INDEXED


def block_kind(block: Block) -> FusionKind:
    """The kind of one block of a PrimFunc; blocks without axes are opaque."""
    if not block.axes:
        return FusionKind.OPAQUE
    if all(axis.kind is AxisKind.SPATIAL for axis in block.axes):
        return FusionKind.ELEMENTWISE
    return FusionKind.REDUCTION
