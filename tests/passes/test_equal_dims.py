"""Dims that the operators of a model require to be equal are one in its kernels, and still checked before these run."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.errors import UserError
from tc.ir.dtype import f32, i64
from tc.ir.expr import Var, equal
from tc.ir.graph import TensorVar
from tc.ir.types import tensor_type
from tc.ops.registry import Requirement
from tc.passes.lower import dims_as_required
from tests.frontend.models import make_model, node


def joined() -> object:
    inputs = {name: (np.float32, [f"{name}{d}" for d in range(3)]) for name in "abc"}
    return make_model([node("Concat", "a b c", "y", axis=1)], inputs, ["y"])


def test_a_kernel_knows_one_dim_where_the_model_requires_two_to_be_equal() -> None:
    text = tc.lower(joined(), "final").as_text()

    assert "b: f32[a0, b1, a2], c: f32[a0, c1, a2]" in text


def test_sizes_are_those_that_the_inputs_have_and_others_are_refused() -> None:
    module, rng = tc.compile(joined()), np.random.default_rng(0)
    for others in ((0, 3), (1, 1), (4, 0), (3, 5)):
        arrays = [rng.standard_normal((others[0], size, others[1])).astype(np.float32) for size in (2, 0, 3)]
        np.testing.assert_array_equal(module(*arrays), np.concatenate(arrays, 1))

    for shapes in (((2, 3, 4), (1, 3, 4), (2, 1, 4)), ((2, 3, 4), (2, 3, 4), (2, 1, 5)), ((2, 3, 1), (2, 3, 4), (2, 1, 4))):
        with pytest.raises(UserError, match=r"concat: dim [02] is"):
            module(*(np.zeros(shape, np.float32) for shape in shapes))


def test_all_that_are_equal_become_the_first_one_and_dims_of_no_input_stay() -> None:
    a, b, c, d, inner = (Var(name, i64) for name in ("a", "b", "c", "d", "inner"))
    params = [TensorVar("x", tensor_type((a, b), f32)), TensorVar("y", tensor_type((c, d), f32))]
    conditions = [equal(d, c), equal(c, b), equal(inner, a), equal(a, b + 1), equal(b, d), a <= d]

    assert dims_as_required(params, [Requirement(condition, "") for condition in conditions]) == {c: b, d: b}
