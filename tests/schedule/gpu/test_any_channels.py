"""Convolutions of any number of channels, whose weights come at run time, in the form that devices run."""

from __future__ import annotations

import numpy as np
import pytest

from tc.interp import run_prim_func
from tc.ir.arith import Facts
from tc.ir.dtype import DType, f16, f32
from tc.ir.expr import Const, Var
from tc.ir.loop import Alloc, PrimFunc, walk_statements
from tc.ir.types import TensorType
from tc.ir.verify import verify
from tc.ops.registry import get_op, inference
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tc.schedule.rules import apply_rules
from tc.target import Target
from tc.te import Tensor, create_prim_func, placeholder


def convolution(dtype: DType, filters: int, group: int) -> PrimFunc:
    """f[n, c * group, h, w] by f[filters, c, 3, 3] with a border of one pixel."""
    n, c, h, w = (Var(name) for name in "nchw")
    tensors = [placeholder((n, c * group, h, w), dtype, "x"), placeholder((filters, c, 3, 3), dtype, "w")]
    op = get_op("conv")
    attrs = op.attrs((("pads", (1, 1, 1, 1)), ("groups", group)))
    with inference(Facts()):
        type_ = op.infer([TensorType(tensor.shape, dtype) for tensor in tensors], attrs)
        assert op.compute is not None and isinstance(type_, TensorType)
        made = op.compute(tensors, attrs, [type_])
    assert isinstance(made, Tensor)
    return create_prim_func("conv", tensors, [made], (n, c, h, w))


@pytest.mark.parametrize(("dtype", "filters", "group"), [(f32, 16, 1), (f16, 4, 1), (f32, 16, 4)])
def test_a_convolution_of_any_number_of_channels_runs_on_a_device(dtype: DType, filters: int, group: int) -> None:
    """Its tiles of channels were as large as all channels, and rows of one thread were taken for another's."""
    func = convolution(dtype, filters, group)
    target = Target.parse("cuda:sm_80")
    rng = np.random.default_rng(0)

    found = finish_loops(apply_rules(func, target).func, calls=DEVICE_FINISH_CALLS, features=target.features)

    verify(found)
    assert all(isinstance(dim, Const) for node in walk_statements(found.body) if isinstance(node, Alloc) for dim in node.buffer.shape)
    for channels in (1, 4):
        shapes = [(1, channels * group, 3, 2), (filters, channels, 3, 3)]
        arrays = [rng.integers(-2, 3, shape).astype(dtype.numpy) for shape in shapes]
        expected = get_op("conv").reference(arrays, get_op("conv").attrs({"pads": (1, 1, 1, 1), "groups": group}))
        np.testing.assert_array_equal(run_prim_func(found, arrays, (1, channels, 3, 2))[0], expected)
