"""What evaluating nodes while a model is compiled may cost: one budget for every place where that is done.

A model of 200 bytes can ask for any amount of memory or time. So results are bounded by what the operands, and all results together by
what the file holds; the arithmetic of one node and the seconds of all are bounded too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tc import te
from tc.errors import TcError
from tc.ir.dtype import from_numpy
from tc.ir.expr import Const
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.registry import OpDef

ALWAYS_BYTES = 64 << 10
"""A result of so much may come from operands of any size."""
FLOOR_BYTES = 16 << 20
"""All results together may be so much, however small the file."""
MAX_TERMS = 1 << 32
"""The most elements, each times the terms that it sums, of one node: seconds in numpy."""
MAX_INTERPRETED_TERMS = 1 << 16
"""The same of a node that only an interpreter computes: less than a second."""
_SURELY_CHEAP = 1 << 26


@dataclass
class FoldBudget:
    """What is left to spend on the evaluation of nodes.

    left_bytes: of all results together. growth: how many times as large as its operands a result may be. left_seconds: of wall time; no
    evaluation starts without any.
    """

    left_bytes: int
    growth: int = 4
    left_seconds: float = 10.0

    @staticmethod
    def for_model(held_bytes: int, *, max_bytes: int = 256 << 20, growth: int = 4, max_seconds: float = 10.0) -> FoldBudget:
        """The budget of a model whose constants take `held_bytes`."""
        return FoldBudget(min(max_bytes, max(FLOOR_BYTES, growth * held_bytes)), growth, max_seconds)

    def evaluate(
        self, op: OpDef, arrays: Sequence[np.ndarray | None], attrs: Attrs, results: Sequence[TensorType]
    ) -> tuple[np.ndarray, ...] | None:
        """The results of a node on these operands; None when their size is not known, or more than what is left is needed."""
        if not self._allows(op, arrays, attrs, results):
            return None
        start = time.perf_counter()
        with np.errstate(all="ignore"):
            made = op.run_reference(arrays, attrs)
        self.left_seconds -= time.perf_counter() - start
        self.left_bytes -= sum(result.nbytes for result in made)
        return made

    def _allows(self, op: OpDef, arrays: Sequence[np.ndarray | None], attrs: Attrs, results: Sequence[TensorType]) -> bool:
        sizes = [_size_bytes(result) for result in results]
        if any(size is None for size in sizes) or self.left_seconds <= 0:
            return False
        total = sum(size for size in sizes if size is not None)
        given = sum(array.nbytes for array in arrays if array is not None)
        if total > self.left_bytes or total > max(ALWAYS_BYTES, self.growth * given):
            return False
        most = max((array.size for array in arrays if array is not None), default=1)
        if op.is_interpreted:
            return num_terms(op, arrays, attrs, results) <= MAX_INTERPRETED_TERMS
        return total * most <= _SURELY_CHEAP or num_terms(op, arrays, attrs, results) <= MAX_TERMS


def _size_bytes(type_: TensorType) -> int | None:
    shape = type_.static_shape
    return None if shape is None else math.prod(shape) * type_.dtype.size_bytes


def num_terms(op: OpDef, arrays: Sequence[np.ndarray | None], attrs: Attrs, results: Sequence[TensorType]) -> int:
    """The elements that the loops of an operator compute on the way to its results, each as often as it has terms to sum.

    The elements of operands and results where the operator has no loops.
    """
    tensors = [
        None if a is None else te.placeholder(a.shape, from_numpy(a.dtype), f"operand{k}") for k, a in enumerate(arrays)
    ]
    try:
        made = op.compute_tensors(tensors, attrs, results)
    except TcError:  # these attributes have no loops
        return sum(array.size for array in arrays if array is not None) + sum(_count(tensor.shape) for tensor in results)
    seen: set[int] = set()
    waiting = list(made)
    total = 0
    while waiting:
        tensor = waiting.pop()
        stage = tensor.stage
        if stage is None or id(stage) in seen:
            continue
        seen.add(id(stage))
        total += _count(tensor.shape) * _count(stage.reduce_extents)
        for value in (*stage.values, *stage.init):
            waiting.extend(read.tensor for read in te.reads(value))
    return total


def _count(dims: Sequence[object]) -> int:
    return math.prod(int(dim) if isinstance(dim, Const) else 0 for dim in dims)


