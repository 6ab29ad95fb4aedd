"""Small ONNX models for tests, and two ways to run them: by the reference interpreter, and by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tc.frontend.onnx import Imported, load_model
from tc.frontend.onnx.node_context import ADAPTERS
from tc.interp import run_function
from tc.ir.graph import Call, CallExtern, Function, If, Loop

Arrays = Mapping[str, np.ndarray]


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[Any, Sequence[int | str | None]]],
    outputs: Sequence[str],
    constants: Arrays | None = None,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[tuple[str, int]] = (),
) -> onnx.ModelProto:
    """A model; inputs are name -> (numpy dtype, shape). Output types are left to the reader."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for name, (dtype, shape) in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(*entry) for entry in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def forget_adapter(monkeypatch: pytest.MonkeyPatch, op_type: str) -> None:
    """Nodes of an operator of ONNX run on its reference, as those without one of ours do."""
    monkeypatch.delitem(ADAPTERS, ("", op_type))


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node; names separated by spaces, `-` for one that is left out. It is named after its first output."""
    split = [["" if name == "-" else name for name in text.split()] for text in (inputs, outputs)]
    domain = attributes.pop("domain", None)
    return helper.make_node(op_type, *split, name=f"the_{split[1][0]}", domain=domain, **attributes)


def graph(nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto], outputs: str) -> onnx.GraphProto:
    """A subgraph, for a branch or a loop body."""
    infos = [helper.make_empty_tensor_value_info(name) for name in outputs.split()]
    return helper.make_graph(list(nodes), "inner", list(inputs), infos)


def value(name: str, code: int = TensorProto.FLOAT, shape: Sequence[int | str | None] | None = None) -> Any:
    """A declared input of a subgraph."""
    return helper.make_tensor_value_info(name, code, shape)


def run_onnxruntime(model: onnx.ModelProto, arrays: Arrays) -> list[np.ndarray]:
    """The results of onnxruntime, on one thread and without its optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        _typed(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    results: list[np.ndarray] = session.run(None, dict(arrays))
    return results


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """onnxruntime wants outputs with element types."""
    return onnx.shape_inference.infer_shapes(model)


def check_against_onnxruntime(model: onnx.ModelProto, arrays: Arrays, tolerance: float = 1e-5) -> Imported:
    """Import, run both, compare; returns the import."""
    imported = load_model(model)
    found = run(imported, arrays)
    expected = run_onnxruntime(model, arrays)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    return imported


def run(imported: Imported, arrays: Arrays) -> list[np.ndarray]:
    """Run the imported module, operator by operator."""
    main = imported.module.main
    inputs = [np.asarray(arrays[param.name]) for param in main.params]
    return run_function(imported.module, main.name, inputs, requirements=imported.requirements)


def operators(imported: Imported) -> list[str]:
    """The operators of the graph in order, those of nested functions included."""
    found: list[str] = []

    def visit(function: Function) -> None:
        for binding in function.bindings:
            match binding.value:
                case Call(op=op):
                    found.append(op)
                case If(then_branch=a, else_branch=b):
                    found.append("if")
                    visit(a)
                    visit(b)
                case Loop(body=body):
                    found.append("loop")
                    visit(body)
                case CallExtern(symbol=symbol):
                    found.append(symbol)

    visit(imported.module.main)
    return found


def from_text(text: str, opset: int = 17) -> onnx.ModelProto:
    """The model of a graph in ONNX's text form."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
