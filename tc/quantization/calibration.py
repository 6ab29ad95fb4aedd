"""Calibration data for an ONNX model, and what is said of data that hold little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import helper

from tc.precision.inputs import Feed, InputType, bind_calls, read_calls


def read_feeds(calibration: Any, proto: onnx.ModelProto) -> list[Feed]:
    """The calibration inputs of a model. UserError for what it does not take; see `tc.precision.inputs`."""
    literals = {tensor.name for tensor in proto.graph.initializer}
    inputs = [_input_type(value) for value in proto.graph.input if value.name not in literals]
    return bind_calls(read_calls(calibration), inputs)


def _input_type(value: onnx.ValueInfoProto) -> InputType:
    tensor = value.type.tensor_type
    dims = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or "?" for d in tensor.shape.dim)
    return InputType(value.name, helper.tensor_dtype_to_np_dtype(tensor.elem_type), dims if tensor.HasField("shape") else None)


def constant_inputs(feeds: Sequence[Feed]) -> tuple[str, ...]:
    """What is said of floats that are one and the same number everywhere: ranges of one number say little of others."""
    notes = []
    for name, array in feeds[0].items():
        is_tensor = array.dtype.kind == "f" and array.size > 1
        if is_tensor and all((feed[name] == array.flat[0]).all() for feed in feeds):
            notes.append(f"{name!r} holds nothing but {array.flat[0]} in the calibration inputs: the scales may not suit others")
    return tuple(notes)
