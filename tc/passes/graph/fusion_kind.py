"""How an operator or a PrimFunc fuses, read off its loops. No list of operator names exists anywhere.

Source: the pattern kinds of TVM's and Relay's fusion; there they are declared per operator, here they are inferred.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from tc.ir.arith import Facts, proves
from tc.ir.contraction import Product, product_of
from tc.ir.expr import Checked, Const, Expr, FloorDiv, FloorMod, Load, Var, is_const
from tc.ir.graph import Attrs
from tc.ir.loop import PrimFunc
from tc.ir.node import walk
from tc.ir.polynomial import linear_coefficients
from tc.ir.types import TensorType
from tc.ir.uses import variables
from tc.ops.registry import OpDef
from tc.passes.raise_loops import NotRaised, raise_prim_func
from tc.te import Read, Stage, Tensor, placeholder, reads, stages_of

MANY = 64
"""What an unknown number of rows or columns counts as."""


class FusionKind(IntEnum):
    """From the freest to the least free.

    ELEMENTWISE: each result element is computed from single elements of the operands, some through index maps.
    REDUCTION: folds many elements into one, without reuse of what it reads.
    CONTRACTION: sums products of operands that are each reused along an axis of the other (matmul, convolution).
    OPAQUE: writes its results in its own way, or is to stand apart.
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
class Reuse:
    """How often a contraction uses each element of an operand: by `times` elements of the other, unknown sizes counted as many.

    `is_rhs`: it is the operand along the last axis of the result.
    """

    times: int
    is_rhs: bool


@dataclass(frozen=True)
class LoopShape:
    """What fusion needs to know of an operator: its kind and how it reads each operand (None: not read, or absent).

    `gathers`: what it reads where depends on data. `divides`: along its last axis, by numbers that are known at run time only, to find
    what it reads. `reuses`: for each operand of a contraction that is one side of its products, every
    element of which could be copied, what shares an element. `terms`: the nodes of its longest formula, what its stages make of single
    elements put in where it is read; `times`: how often each operand stands in it. `checks`: it asks whether indices are in range.
    """

    kind: FusionKind
    accesses: tuple[Access | None, ...]
    gathers: bool = False
    divides: bool = False
    reuses: tuple[Reuse | None, ...] = ()
    terms: int = 1
    times: tuple[int, ...] = ()
    checks: bool = False
    operands: tuple[Tensor | None, ...] = ()
    stages: tuple[Stage, ...] = ()

    def reads_all(self, place: int, facts: Facts) -> bool:
        """Whether there is no element of an operand that it never reads, whatever conditions choose: none that a slice leaves out, or an
        index from data may."""
        whole, read_at_all = set[Tensor](), set[Tensor]()
        for stage in reversed(self.stages):
            own = {Tensor(buffer, stage) for buffer in stage.buffers}
            is_whole = bool(own & whole) or not own & read_at_all
            for read in reads(stage):
                read_at_all.add(read.tensor)
                if is_whole and _reads_all(read, stage, facts):
                    whole.add(read.tensor)
        return self.operands[place] in whole


def infer_loop_shape(op: OpDef, types: Sequence[TensorType | None], attrs: Attrs, results: Sequence[TensorType]) -> LoopShape:
    """The loop shape of a call with operands of these types."""
    if op.compute is None or op.apart:
        return LoopShape(FusionKind.OPAQUE, tuple(None for _ in types))
    operands = [None if t is None else placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(types)]
    return _loop_shape(operands, op.compute_tensors(operands, attrs, results))


def infer_loop_shape_of_kernel(func: PrimFunc, types: Sequence[TensorType], dims: Sequence[Expr], facts: Facts) -> LoopShape:
    """The loop shape of a call of a PrimFunc with operands of these types; opaque where its loops have no form as tensor expressions."""
    operands = [placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(types)]
    try:
        outputs = raise_prim_func(func, operands, dims, facts)
    except NotRaised:
        return LoopShape(FusionKind.OPAQUE, tuple(None for _ in types))
    return _loop_shape(operands, outputs)


def _loop_shape(operands: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> LoopShape:
    stages = stages_of(outputs)
    kind = max((_stage_kind(stage) for stage in stages), default=FusionKind.ELEMENTWISE)
    accesses = tuple(_operand_access(operand, outputs, stages) for operand in operands)
    indices = [(index, stage) for stage in stages for read in reads(stage) for index in read.indices]
    gathers = any(reads_data(index) for index, _ in indices)
    divides = any(bool(stage.axes) and _divides(index, stage.axes[-1]) for index, stage in indices)
    reuses = _reuses(operands, stages) if kind is FusionKind.CONTRACTION else tuple(None for _ in operands)
    return LoopShape(kind, accesses, gathers, divides, reuses, *_formula(operands, stages), tuple(operands), tuple(stages))


def _formula(operands: Sequence[Tensor | None], stages: Sequence[Stage]) -> tuple[int, tuple[int, ...], bool]:
    """`terms`, `times` and `checks` of a loop shape. What a stage folds many elements into is stored, and read as one."""
    longest, most, checks = 1, Counter[Tensor](), False
    formulas: dict[Stage, tuple[int, Counter[Tensor]]] = {}
    for stage in stages:
        terms, times = 0, Counter[Tensor]()
        for node in itertools.chain.from_iterable(map(walk, stage.values)):
            terms += 1
            checks |= isinstance(node, Checked)
            if isinstance(node, Read):
                below = formulas.get(node.tensor.stage) if node.tensor.stage is not None else (0, Counter((node.tensor,)))
                if below is not None:
                    terms += below[0]
                    times.update(below[1])
        longest, most = max(longest, terms), most | times
        if not stage.reduce_axes:
            formulas[stage] = terms, times
    return longest, tuple(0 if operand is None else most[operand] for operand in operands), checks


def _reads_all(read: Read, stage: Stage, facts: Facts) -> bool:
    """Whether a read meets each element of its tensor: along each dim as one of the loops counts, up or down, past both ends or to them."""
    extents = dict(zip((*stage.axes, *stage.reduce_axes), (*stage.buffers[0].shape, *stage.reduce_extents), strict=True))
    for index, dim in zip(read.indices, read.tensor.shape, strict=True):
        if index in extents and extents[index] is dim:
            del extents[index]
            continue
        if is_const(dim, 1) and isinstance(index, Const):
            continue
        linear = linear_coefficients(index, extents)
        if linear is None or len(linear[0]) != 1:
            return False
        ((axis, step),) = linear[0].items()
        extent, first = extents.pop(axis), linear[1]
        if not (is_const(step, 1) or is_const(step, -1)):
            return False
        ends = (first, first + extent - 1) if is_const(step, 1) else (first - extent + 1, first)
        if not (proves(ends[0] <= 0, facts) and proves(dim - 1 <= ends[1], facts)):
            return False
    return True


def reads_data(index: Expr) -> bool:
    """Whether an index of a tensor expression is, or is made of, elements of a tensor."""
    return any(isinstance(node, (Read, Load)) for node in walk(index))


def _divides(index: Expr, axis: Var) -> bool:
    """Whether what the axis runs over is divided by what no constant is."""
    parts = (node for node in walk(index) if isinstance(node, (FloorDiv, FloorMod)))
    return any(not isinstance(node.rhs, Const) and axis in variables(node.lhs) for node in parts)


def _reuses(operands: Sequence[Tensor | None], stages: Sequence[Stage]) -> tuple[Reuse | None, ...]:
    sums = [stage for stage in stages if stage.reduce_axes and is_contraction(stage)]
    found = _product(sums[0]) if len(sums) == 1 else None
    if found is None:
        return tuple(None for _ in operands)
    sides = {read.tensor: _reuse(read, sums[0]) for read in found.reads if isinstance(read, Read)}
    return tuple(None if operand is None else sides.get(operand) for operand in operands)


def _product(stage: Stage) -> Product | None:
    return product_of(stage.values[0], (*stage.axes, *stage.reduce_axes), lambda node: isinstance(node, (Read, Load)))


def _reuse(read: Read, stage: Stage) -> Reuse | None:
    """How a sum of products uses the elements of one side; None where an element stands at several places, as in windows."""
    axes = (*stage.axes, *stage.reduce_axes)
    used = [axis for index in read.indices for axis in axes if axis in variables(index)]
    if len(set(used)) != len(used) or any(sum(axis in variables(index) for axis in axes) > 1 for index in read.indices):
        return None
    times = 1
    for axis, dim in zip(stage.axes, stage.buffers[0].shape, strict=True):
        if axis not in used:
            times *= int(dim.value) if isinstance(dim, Const) else MANY
    return Reuse(times, bool(stage.axes) and stage.axes[-1] in used)


def _stage_kind(stage: Stage) -> FusionKind:
    if not stage.is_independent:
        return FusionKind.OPAQUE
    if not stage.reduce_axes:
        return FusionKind.ELEMENTWISE
    return FusionKind.CONTRACTION if is_contraction(stage) else FusionKind.REDUCTION


def is_contraction(stage: Stage) -> bool:
    """Whether the stage sums products of two operands, each of which misses a spatial axis that the other has."""
    if len(stage.values) != 1 or ("monoid", "sum") not in stage.annotations:
        return False
    found = _product(stage)
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
    if len(read.indices) == len(axes) == len(stage.buffers[0].shape) and all(
        index is axis or (is_const(index, 0) and is_const(dim, 1))
        for index, axis, dim in zip(read.indices, axes, stage.buffers[0].shape, strict=True)
    ):
        return Access.IDENTITY
    position = {axis: k for k, axis in enumerate(axes)}
    kept = [index for index in read.indices if not isinstance(index, Const)]
    places = [position.get(index, -1) for index in kept if isinstance(index, Var)]
    if len(places) == len(kept) and -1 not in places and places == sorted(set(places)):
        return Access.BROADCAST
    return Access.INDEXED

