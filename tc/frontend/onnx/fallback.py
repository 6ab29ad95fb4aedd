"""Nodes that run on ONNX's reference implementation: slow, correct, and there for every operator that ONNX defines.

Such a node becomes a call of the Python function "onnx_reference", whose attribute is a model of this one node. Its
result types come from ONNX's shape inference; a dim that this cannot say is bound when the result is there.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tc.errors import TcError, UnsupportedError
from tc.frontend.onnx.importer import NodeContext, NodeResult
from tc.frontend.onnx.reading import reads
from tc.frontend.onnx.report import FALLBACK
from tc.frontend.onnx.tensors import CODES, dtype_of
from tc.frontend.onnx.values import Value
from tc.ir.expr import Const, Expr, Var, const
from tc.ir.graph import Attrs, CallExtern
from tc.ir.types import DimFact, TensorType
from tc.ops.registry import register_python_function

REFERENCE_FUNCTION = "onnx_reference"
_EMBED_LIMIT_BYTES = 1 << 12


def _as_reference_knows_it(n: NodeContext) -> tuple[Any, dict[str, int], dict[str, np.ndarray]]:
    """The node, the opsets of its model and constants to add: ONNX's reference has some operators in a later form only, and takes
    some optional inputs for required ones. The node means the same."""
    import onnx

    node = onnx.NodeProto()
    node.CopyFrom(n.node)
    opsets, constants = dict(n.graph.opsets), {}
    if n.domain:
        return node, opsets, constants
    if n.op_type == "RoiAlign" and n.opset < 16:
        node.attribute.append(onnx.helper.make_attribute("coordinate_transformation_mode", "output_half_pixel"))
        opsets[""] = 16
    if n.op_type == "NonMaxSuppression":
        opsets[""] = max(n.opset, 11)
        for position, default in ((2, np.int64(0)), (3, np.float32(0))):
            while len(node.input) <= position:
                node.input.append("")
            if not node.input[position]:
                node.input[position] = f"{n.label}.default{position}"
                constants[node.input[position]] = np.array([default])
    return node, opsets, constants


def call_reference(n: NodeContext) -> tuple[NodeResult, str] | None:
    """Import a node as a call of its reference implementation. UnsupportedError when ONNX has none."""
    if n.graph.shared.mode == "error" or n.schema is None:
        return None
    if n.op_type == "Scan" and n.opset < 9:
        raise UnsupportedError("ONNX's reference does not know Scan of opset 8")
    names = sorted(reads(n.node))
    values = {name: n.graph.lookup(name) for name in names}
    values.update((name, value) for name, value in zip(n.node.input, n.inputs, strict=True) if name)
    for name, value in values.items():
        if value is not None and not isinstance(value, Value):
            raise UnsupportedError(f"its input {name!r} is a sequence or optional")
    tensors = {name: value for name, value in values.items() if isinstance(value, Value)}
    constants = {name: array for name, value in tensors.items() if (array := _small_constant(n, value)) is not None}
    args = [value for name, value in tensors.items() if name not in constants]
    dim_names = _DimNames()
    node, opsets, defaults = _as_reference_knows_it(n)
    model = _model_of(n, node, opsets, tensors, {**constants, **defaults}, dim_names)
    types = _infer(n, model, dim_names)
    for info, type_ in zip(model.graph.output, types, strict=True):  # numpy's promotion is not ONNX's: what is declared is returned
        info.type.tensor_type.elem_type = CODES[type_.dtype]
    _check_runs(n, model)
    text = base64.b64encode(model.SerializeToString()).decode()
    operation = CallExtern(
        f"py:{REFERENCE_FUNCTION}",
        tuple(n.graph.atom(value) for value in args),
        (),
        tuple(types),
        (("model", text),),
        span=n.span,
    )
    results = iter(n.graph.bind(operation, types, [name for name in n.outputs if name], n.span))
    return [next(results) if name else None for name in n.outputs], FALLBACK


class _DimNames:
    """Text names for dims, there and back, so that ONNX's shape inference can carry them through a node."""

    def __init__(self) -> None:
        self.by_name: dict[str, Expr] = {}
        self.by_dim: dict[Expr, str] = {}

    def name(self, dim: Expr) -> int | str:
        if isinstance(dim, Const):
            return int(dim)
        if dim not in self.by_dim:
            self.by_dim[dim] = f"dim{len(self.by_dim)}"
            self.by_name[self.by_dim[dim]] = dim
        return self.by_dim[dim]


def _small_constant(n: NodeContext, value: Value) -> np.ndarray | None:
    array = n.graph.array(value)
    return array if array is not None and array.nbytes <= _EMBED_LIMIT_BYTES else None


def _model_of(
    n: NodeContext,
    node: Any,
    opsets: dict[str, int],
    tensors: dict[str, Value],
    constants: dict[str, np.ndarray],
    dims: _DimNames,
) -> Any:
    """A model of the one node. Small constants are its initializers."""
    from onnx import helper, numpy_helper

    inputs = [
        helper.make_tensor_value_info(name, CODES[value.dtype], [dims.name(dim) for dim in value.shape])
        for name, value in tensors.items()
        if name not in constants
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in n.outputs if name]
    graph = helper.make_graph(
        [node], "node", inputs, outputs, [numpy_helper.from_array(array, name) for name, array in constants.items()]
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=n.graph.shared.model.proto.ir_version or 8)


def _infer(n: NodeContext, model: Any, dims: _DimNames) -> list[TensorType]:
    """The types of the node's results; dims that are not known get names of their own."""
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError) as error:
        raise UnsupportedError(f"ONNX cannot infer its types: {error}") from error
    found = {value.name: value.type for value in (*inferred.graph.output, *inferred.graph.value_info)}
    types = []
    for name in filter(None, n.outputs):
        tensor = found[name].tensor_type if name in found else None
        if tensor is None or not found[name].HasField("tensor_type") or not tensor.HasField("shape"):
            raise UnsupportedError(f"ONNX cannot say the rank of its output {name!r}, or it is no tensor")
        dtype = dtype_of(tensor.elem_type, f"the output {name!r}")
        shape = [_dim(n, f"{name}.{axis}", dim, dims) for axis, dim in enumerate(tensor.shape.dim)]
        types.append(TensorType(tuple(shape), dtype))
    return types


def _dim(n: NodeContext, hint: str, dim: Any, dims: _DimNames) -> Expr:
    if dim.HasField("dim_value"):
        return const(dim.dim_value)
    known = dims.by_name.get(dim.dim_param)
    if known is not None:
        return known
    fresh = Var(n.graph.shared.fresh_dim(hint))
    n.graph.builder.add_fact(DimFact(fresh))
    if dim.dim_param:
        dims.by_name[dim.dim_param] = fresh
    return fresh


def _check_runs(n: NodeContext, model: Any) -> None:
    """UnsupportedError unless ONNX has a reference implementation of the node."""
    try:
        _evaluator(model.SerializeToString())
    except TcError:
        raise
    except Exception as error:  # the reference runtime raises its own errors, and whatever numpy does
        raise UnsupportedError(f"ONNX has no reference implementation of it that runs: {error}") from error


@functools.lru_cache(maxsize=256)
def _evaluator(data: bytes) -> Any:
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.ModelProto()
    model.ParseFromString(data)
    return ReferenceEvaluator(model)


def run_reference(arrays: Sequence[np.ndarray | None], attrs: Attrs) -> tuple[np.ndarray, ...]:
    """Run the node in `attrs["model"]` on the arrays, in the order of the model's inputs. UnsupportedError when it fails."""
    evaluator = _evaluator(base64.b64decode(str(attrs["model"])))
    inputs = dict(zip(evaluator.input_names, arrays, strict=True))
    try:
        results = evaluator.run(None, inputs)
    except Exception as error:  # whatever ONNX's Python, or numpy below it, raises for these inputs
        shapes = ", ".join(f"{name} {np.shape(array)}" for name, array in inputs.items())
        raise UnsupportedError(f"ONNX's reference implementation fails on {shapes}: {type(error).__name__}: {error}") from error
    dtypes = [dtype_of(info.type.tensor_type.elem_type, info.name).numpy for info in evaluator.proto_.graph.output]
    return tuple(
        np.ascontiguousarray(result, dtype).reshape(np.shape(result)) for result, dtype in zip(results, dtypes, strict=True)
    )


register_python_function(REFERENCE_FUNCTION, run_reference)
