"""Small ONNX models for tests, and two ways to run them: by the references of our operators, and by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tc.frontend.onnx import Imported, load_model
from tc.ir import arith
from tc.ir.dtype import DType
from tc.ir.expr import Expr, Var
from tc.ir.graph import (
    Atom,
    Attrs,
    Binding,
    Call,
    CallExtern,
    Function,
    If,
    Loop,
    ReadDims,
    TensorConst,
    TensorVar,
)
from tc.ir.node import walk
from tc.ops.registry import PYTHON_FUNCTIONS, Requirement, get_op

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


class RequirementBroken(Exception):
    """A condition over dims does not hold for the given arrays."""


def run(imported: Imported, arrays: Arrays) -> list[np.ndarray]:
    """Run the imported module, operator by operator. Checks every type on the way."""
    return _Run(imported.requirements).main(imported.module.main, arrays)


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


class _Run:
    def __init__(self, requirements: Sequence[Requirement]) -> None:
        self.dims: dict[Var, int] = {}
        self.pending = [(r.condition, r.message) for r in requirements]

    def main(self, function: Function, arrays: Arrays) -> list[np.ndarray]:
        values = {param: np.asarray(arrays[param.name]) for param in function.params}
        for param, array in values.items():
            for dim, size in zip(param.type.shape, array.shape, strict=True):  # type: ignore[union-attr]
                if isinstance(dim, Var):
                    self.dims.setdefault(dim, size)
        for param, array in values.items():
            self._check_type(param, array)
        return self._body(function, values)

    def _evaluate(self, item: Any) -> Any:
        if isinstance(item, Expr):
            return arith.evaluate(item, self.dims)
        return tuple(map(self._evaluate, item)) if isinstance(item, tuple) else item

    def _check_type(self, var: TensorVar, array: np.ndarray) -> None:
        type_ = var.type
        for dim, size in zip(type_.shape, array.shape, strict=True):  # type: ignore[union-attr]
            if isinstance(dim, Var):
                self.dims.setdefault(dim, size)
        if self._evaluate(type_.shape) != array.shape:  # type: ignore[union-attr]
            raise RequirementBroken(f"{var} is {array.shape}")
        assert isinstance(type_.dtype, DType) and type_.dtype.numpy == array.dtype  # type: ignore[union-attr]

    def _check_ready(self) -> None:
        for condition, message in list(self.pending):
            if all(v in self.dims for v in walk(condition) if isinstance(v, Var)):
                self.pending.remove((condition, message))
                if not self._evaluate(condition):
                    raise RequirementBroken(message)

    def _body(self, function: Function, values: dict[Any, np.ndarray]) -> list[np.ndarray]:
        outer = list(self.pending)
        self.pending += list(dict(function.attrs).get("requirements", ()))  # type: ignore[arg-type,call-overload]
        values = dict(values)
        self._check_ready()
        for binding in function.bindings:
            results = self._value(binding, values)
            for target, result in zip(binding.targets, results, strict=True):
                values[target] = np.asarray(result)
                self._check_type(target, values[target])
            self._check_ready()
        self.pending = [check for check in self.pending if check in outer]
        return [_array(result, values) for result in function.results]

    def _value(self, binding: Binding, values: dict[Any, np.ndarray]) -> Sequence[np.ndarray]:
        operation = binding.value
        match operation:
            case Call(op=op, args=args, attrs=attrs):
                record = get_op(op)
                full = Attrs(tuple((name, self._evaluate(v)) for name, v in record.attrs(attrs).items()))
                with np.errstate(all="ignore"):
                    return record.run_reference([None if a is None else _array(a, values) for a in args], full)
            case CallExtern(symbol=symbol, args=args, attrs=attrs):
                return PYTHON_FUNCTIONS[symbol.removeprefix("py:")]([_array(a, values) for a in args], Attrs(attrs))
            case ReadDims(operand=operand, dims=dims):
                for dim, size in zip(dims, _array(operand, values).reshape(-1).tolist(), strict=True):
                    if size < 0:
                        raise RequirementBroken(f"{dim} is {size}")
                    self.dims[dim] = size
                return []
            case If(condition=condition, then_branch=a, else_branch=b):
                return self._body(a if _array(condition, values) else b, values)
            case Loop():
                return self._loop(binding, operation, values)
        raise AssertionError(f"no {type(operation).__name__} in imported graphs")

    def _loop(self, binding: Binding, loop: Loop, values: dict[Any, np.ndarray]) -> list[np.ndarray]:
        count = None if loop.trip_count is None else self._evaluate(loop.trip_count)
        go_on = bool(_array(loop.condition, values))
        carried = [_array(v, values) for v in loop.init]
        rows: list[list[np.ndarray]] = [[] for _ in binding.targets[len(carried) :]]
        index = 0
        while go_on and (count is None or index < count):
            given = [np.array(index, np.int64), *carried]
            condition, *results = self._body(loop.body, {**values, **dict(zip(loop.body.params, given, strict=True))})
            go_on, carried = bool(condition), results[: len(carried)]
            for row, result in zip(rows, results[len(carried) :], strict=True):
                row.append(result)
            index += 1
        stacks = []
        for row, target in zip(rows, binding.targets[len(carried) :], strict=True):
            shape = self._evaluate(target.type.shape)  # type: ignore[union-attr]
            stacks.append(np.stack(row) if row else np.zeros(shape, target.type.dtype.numpy))  # type: ignore[union-attr]
        return [*carried, *stacks]


def _array(atom: Atom, values: Mapping[Any, np.ndarray]) -> np.ndarray:
    return atom.value if isinstance(atom, TensorConst) else values[atom]
