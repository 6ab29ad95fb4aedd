"""Tables of 256 entries, looked up by bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.byte_table import ENTRIES
from tc.ir.dtype import i8, i64, u8
from tc.ir.expr import Expr, cast, is_const
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, blocked_elementwise, operand
from tc.ops.registry import BlockedForm, Form, OpDef, register
from tc.te import Tensor


def _infer(types: Types, attrs: Attrs) -> TensorType:
    x, table = operand(types, 0, "lookup"), operand(types, 1, "lookup")
    if x.dtype not in (i8, u8):
        raise ShapeError(f"lookup: a place in the table is i8 or u8, not {x}")
    if table.rank != 1 or not is_const(table.shape[0], ENTRIES):
        raise ShapeError(f"lookup: the table has {ENTRIES} entries, not {table}")
    return TensorType(x.shape, table.dtype)


def _compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, table = tensors[0], tensors[1]
    assert x is not None and table is not None
    return te.compute(x.shape, lambda *axes: table[_place(x[axes])], "lookup")


def _place(number: Expr) -> Expr:
    return cast(cast(number, u8), i64)


def _run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, table = arrays[0], arrays[1]
    assert x is not None and table is not None
    return np.asarray(table[x.astype(np.uint8)])


def _blocked(types: Types, attrs: Attrs, block: int) -> BlockedForm | None:
    form = blocked_elementwise("lookup")(types[:1], attrs, block)
    return None if form is None else replace(form, operands=(*form.operands, Form.PLAIN))


def _samples(rng: np.random.Generator) -> Any:
    for dtype in (np.uint8, np.int8):
        limits = np.iinfo(dtype)
        x = rng.integers(limits.min, limits.max + 1, (2, 3, 40)).astype(dtype)
        for entries in (dtype, np.float32):
            yield [x, rng.integers(0, 100, ENTRIES).astype(entries)], {}
    yield [np.array(200, np.uint8), rng.integers(0, 100, ENTRIES).astype(np.uint8)], {}


register(OpDef("lookup", _infer, _run, _compute, blocked=_blocked, samples=_samples))
"""`table[x]`: x u8|i8 [...], table [256] -> [...] of the table's type. Negative numbers stand in the upper half, as their bits do."""
