"""Tables that are put together of many columns, and other nodes of very many operands."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tc


def model(op: str, count: int, columns: int = 1, **attributes: int) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(f"x{k}", TensorProto.FLOAT, ["n", columns]) for k in range(count)]
    node = helper.make_node(op, [info.name for info in inputs], ["y"], **attributes)
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    return helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("count", "columns"), [(9, 1), (17, 1), (64, 1), (70, 3), (400, 1)])
def test_a_table_of_many_columns(count: int, columns: int) -> None:
    # From 32 columns on this took seconds, from 64 on minutes, and from 300 on it ended in a RecursionError.
    made, rng = model("Concat", count, columns, axis=1), np.random.default_rng(count)

    module = tc.compile(made, threads=1)

    for rows in (0, 1, 5, 33):
        parts = [rng.standard_normal((rows, columns)).astype(np.float32) for _ in range(count)]
        np.testing.assert_array_equal(module(*parts), np.concatenate(parts, axis=1))


def test_many_columns_are_not_exchanged_in_registers() -> None:
    few, many = ("".join(tc.lower(model("Concat", count, axis=1), stage="scheduled").files().values()) for count in (8, 64))

    assert "transpose" not in many and len(many) < 64 * len(few)


@pytest.mark.parametrize(("op", "combine"), [("Sum", np.sum), ("Max", np.max), ("Mean", np.mean)])
def test_many_terms(op: str, combine: object) -> None:
    parts = [np.full((3, 7), k, np.float32) for k in range(300)]

    np.testing.assert_allclose(tc.compile(model(op, 300, 7), threads=1)(*parts), combine(parts, axis=0), rtol=1e-6)  # type: ignore[operator]
