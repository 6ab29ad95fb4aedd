"""Whether an operator computes each element of those at its place, and of nothing else: asked once for all shapes that are alike."""

from __future__ import annotations

from functools import lru_cache
from typing import Union

from tc.errors import TcError
from tc.ir.dtype import DType
from tc.ir.expr import Var, const
from tc.ir.graph import AttrValue, Call
from tc.ir.node import Node, children
from tc.ir.types import TensorType
from tc.ops.registry import get_op, is_scoped
from tc.passes.graph.fusion_kind import Access, FusionKind, infer_loop_shape
from tc.te import Read

SIZES = (2, 3, 5, 7, 11, 13, 17, 19)
"""Of the axes of a tensor that stands for all: of different lengths none of which broadcasts."""

Pattern = tuple[DType, tuple[Union[int, None], ...]]
"""A dtype, and for each axis its length, or None for that of the result."""


def computes_elements(call: Call, operands: tuple[Pattern | None, ...], dtype: DType, rank: int) -> bool:
    """Whether the operator of a call computes each element of a result of `rank` axes of the elements at its place of those operands that
    have an axis of the result, broadcast where one is 1. What it reads of the others, such as numbers and tables, is the same for all, and
    no index is checked."""
    if rank > len(SIZES) or any(operand is not None and None in operand[1] and len(operand[1]) > rank for operand in operands):
        return False
    asked = call.op, call.attrs, operands, dtype, rank
    return _computes_elements.__wrapped__(*asked) if is_scoped(call.op) else _computes_elements(*asked)


@lru_cache(512)
def _computes_elements(
    op: str, attrs: tuple[tuple[str, AttrValue], ...], operands: tuple[Pattern | None, ...], dtype: DType, rank: int
) -> bool:
    shape = tuple(map(const, SIZES[:rank]))
    types = [operand and _stand_in(operand, rank) for operand in operands]
    record, full = get_op(op), get_op(op).attrs(attrs)
    try:
        inferred = record.infer_types(types, full)
    except TcError:
        return False
    if [type_.shape for type_ in inferred] != [shape]:
        return False
    found = infer_loop_shape(record, types, full, (TensorType(shape, dtype),))
    is_local = all(_is_local(*pair) for pair in zip(operands, found.accesses, strict=True))
    says_where = any(_says(value, stage.axes) for stage in found.stages for value in stage.values)
    return found.kind is FusionKind.ELEMENTWISE and is_local and not (says_where or found.checks)


def _stand_in(operand: Pattern, rank: int) -> TensorType:
    """Of an operand whose last axis is at the last of the result; one of numbers may have more axes than that."""
    dtype, lengths = operand
    first = rank - len(lengths)
    return TensorType(tuple([const(SIZES[first + k] if length is None else length) for k, length in enumerate(lengths)]), dtype)


def _is_local(operand: Pattern | None, access: Access | None) -> bool:
    if operand is None or None not in operand[1]:
        return True
    return access in (Access.IDENTITY, None) or (access is Access.BROADCAST and 1 in operand[1])


def _says(value: Node, axes: tuple[Var, ...]) -> bool:
    """Whether a value is computed of where it stands, as in trilu, and not only of what it reads there."""
    return value in axes or (not isinstance(value, Read) and any(_says(child, axes) for child in children(value)))
