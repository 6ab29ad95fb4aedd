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
"""All results together may be so much, however small the file, and so much what is on the way to one."""
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
        self, op: OpDef, arrays: Sequence[np.ndarray | None], attrs: Attrs, results: Sequence[TensorType], given: int | None = None
    ) -> tuple[np.ndarray, ...] | None:
        """The results of a node on these operands; None when their size is not known, or more than what is left is needed. `given`: the
        bytes of what the operands are made of, if these are not kept."""
        total = sum(array.nbytes for array in arrays if array is not None) if given is None else given
        if not self.keeps(results, total) or not self._is_quick(op, arrays, attrs, results):
            return None
        made = self._run(op, arrays, attrs)
        self.left_bytes -= sum(result.nbytes for result in made)
        return made

    def evaluate_between(
        self, op: OpDef, arrays: Sequence[np.ndarray | None], attrs: Attrs, results: Sequence[TensorType], most_bytes: int
    ) -> tuple[np.ndarray, ...] | None:
        """`evaluate` of what is on the way to a result, and is not kept, of so many bytes at most."""
        total = _total_bytes(results)
        if total is None or total > most_bytes or not self._is_quick(op, arrays, attrs, results):
            return None
        return self._run(op, arrays, attrs)

    def keeps(self, results: Sequence[TensorType], given: int) -> bool:
        """Whether results may be as large as they are, made of literals of `given` bytes."""
        total = _total_bytes(results)
        return total is not None and total <= self.left_bytes and total <= max(ALWAYS_BYTES, self.growth * given)

    def _run(self, op: OpDef, arrays: Sequence[np.ndarray | None], attrs: Attrs) -> tuple[np.ndarray, ...]:
        start = time.perf_counter()
        with np.errstate(all="ignore"):
            made = op.run_reference(arrays, attrs)
        self.left_seconds -= time.perf_counter() - start
        return made

    def _is_quick(self, op: OpDef, arrays: Sequence[np.ndarray | None], attrs: Attrs, results: Sequence[TensorType]) -> bool:
        total = _total_bytes(results)
        if total is None or self.left_seconds <= 0:
            return False
        most = max((array.size for array in arrays if array is not None), default=1)
        if op.is_interpreted:
            return num_terms(op, arrays, attrs, results) <= MAX_INTERPRETED_TERMS
        return total * most <= _SURELY_CHEAP or num_terms(op, arrays, attrs, results) <= MAX_TERMS


def _total_bytes(types: Sequence[TensorType]) -> int | None:
    """The bytes of tensors together; None where one's are not known."""
    sizes = [_size_bytes(type_) for type_ in types]
    return None if None in sizes else sum(size for size in sizes if size is not None)


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


