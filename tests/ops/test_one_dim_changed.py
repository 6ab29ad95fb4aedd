"""A type rule takes no operands that the loops read behind: with one dim of one operand changed, it refuses, or the reference agrees.

Clips, one-hot vectors, paddings, resizings, transposed convolutions and products of integers took what did not fit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tc.errors import InputError, ShapeError
from tc.ir.arith import Facts, prove
from tc.ir.dtype import from_numpy
from tc.ir.expr import Var, const
from tc.ir.node import substitute
from tc.ir.types import TensorType, tensor_type
from tc.ops.registry import OPS, OpDef, inference

Arrays = list["np.ndarray | None"]
# The reference is numpy's, which has no maximum of nothing and no window wider than its data: results without elements, or of padding.
NO_REFERENCE = (
    "of an empty sequence",
    "window shape cannot be larger",
    "cannot reshape array of size 0",
    "zero-size array to reduction",
    "cannot contain negative values",
)
COMPUTED = {"slice"}  # whose places are computed from its dims by those who call it
NAMES = sorted(OPS)


def changed_dims(op: OpDef) -> Iterator[tuple[Arrays, dict, int, int]]:
    """The samples with one dim changed, and which."""
    for arrays, attrs in op.samples(np.random.default_rng(7)):
        for k, array in enumerate(arrays):
            for axis in range(0 if array is None else array.ndim):
                assert array is not None
                size = array.shape[axis]
                for new in sorted({0, 1, size - 1, size + 1} - {size, -1}):
                    yield [*arrays[:k], resized(array, axis, new), *arrays[k + 1 :]], attrs, k, axis


def resized(array: np.ndarray, axis: int, size: int) -> np.ndarray:
    if array.shape[axis] == 0:
        return np.zeros((*array.shape[:axis], size, *array.shape[axis + 1 :]), array.dtype)
    return np.take(array, np.arange(size) % array.shape[axis], axis)


def type_of(array: np.ndarray | None) -> TensorType | None:
    return None if array is None else tensor_type(array.shape, from_numpy(array.dtype))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_a_type_rule_takes_the_reference_computes(name: str) -> None:
    op = OPS[name]
    for arrays, attrs, *_ in changed_dims(op):
        full = op.attrs(attrs)
        try:
            with inference(Facts()):
                inferred = op.infer_types([type_of(a) for a in arrays], full)
        except ShapeError:
            continue
        shapes = [type_.static_shape for type_ in inferred]
        if any(shape is None or min(shape, default=0) < 0 for shape in shapes):
            continue  # what binds the result refuses a negative size

        try:
            results = op.run_reference(arrays, full)
        except InputError:
            continue  # an index is out of range: a matter of the data
        except ValueError as error:
            assert any(words in str(error) for words in NO_REFERENCE), [a.shape for a in arrays if a is not None]
            continue

        assert [r.shape for r in results] == shapes, [a.shape for a in arrays if a is not None]


@pytest.mark.parametrize("name", sorted({*NAMES} - COMPUTED))
def test_a_dim_that_may_not_fit_is_a_requirement_or_refused(name: str) -> None:
    op = OPS[name]
    for arrays, attrs, k, axis in changed_dims(op):
        full = op.attrs(attrs)
        types = [type_of(a) for a in arrays]
        found = refusal(op, types, full)
        changed = types[k]
        assert changed is not None
        dim = Var("n")
        types[k] = TensorType((*changed.shape[:axis], dim, *changed.shape[axis + 1 :]), changed.dtype)
        try:
            with inference(Facts()) as requirements:
                op.infer_types(types, full)
        except ShapeError:
            continue  # no size fits
        size = const(changed.static_shape[axis])  # type: ignore[index]
        holds = [prove(substitute(r.condition, {dim: size}), Facts()) for r in requirements]
        assert (False in holds) == (found is not None), (changed, axis, found)


def refusal(op: OpDef, types: list[TensorType | None], attrs: object) -> str | None:
    try:
        with inference(Facts()):
            op.infer_types(types, attrs)  # type: ignore[arg-type]
    except ShapeError as error:
        return str(error)
    return None
