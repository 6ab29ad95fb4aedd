"""Writing ONNX graphs by hand: one call adds one node and returns the name of its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Dim = int | str
F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

# The file format that each operator set came with, so that older runtimes read the model too.
IR_VERSION = {12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9}


class OnnxBuilder:
    """Collects nodes in the order of the calls. Names are made unique by numbering, so equal calls give equal files."""

    def __init__(self, name: str, opset: int = 17) -> None:
        self.name = name
        self.opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._count: Counter[str] = Counter()
        self._renamed: dict[str, str] = {}

    def input(self, name: str, dtype: int, shape: Sequence[Dim]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def output(self, value: str, name: str, dtype: int, shape: Sequence[Dim]) -> None:
        """Make `value` a result of the model, where it is called `name`."""
        assert value not in self._renamed, f"{value} is an output already"
        self._renamed[value] = name
        self._outputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))

    def weight(self, name: str, array: np.ndarray) -> str:
        """A trained constant: an initializer with a name of its own."""
        self._initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def const(self, value: object, dtype: type = np.float32) -> str:
        """A number or a short list that the program needs: a `Constant` node, as exporters write it."""
        tensor = numpy_helper.from_array(np.asarray(value, dtype))
        return self.op("Constant", value=tensor)

    def ints(self, *values: int) -> str:
        """The vector int64[len(values)], which shapes, axes and slices are given as."""
        return self.const(values, np.int64)

    def op(self, op_type: str, *inputs: str, **attrs: object) -> str:
        """Add a node with one result. An input "" is an optional one left out."""
        return self.ops(op_type, 1, *inputs, **attrs)[0]

    def ops(self, op_type: str, results: int, *inputs: str, **attrs: object) -> tuple[str, ...]:
        """Add a node with several results."""
        name = self._fresh(op_type)
        outputs = tuple(f"{name}_output_{i}" for i in range(results))
        self._nodes.append(helper.make_node(op_type, list(inputs), list(outputs), name=name, **attrs))
        return outputs

    def model(self) -> onnx.ModelProto:
        """The checked model."""
        for node in self._nodes:
            for values in (node.input, node.output):
                values[:] = [self._renamed.get(value, value) for value in values]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, self._initializers)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=IR_VERSION[self.opset],
            producer_name="tc benchmarks",
        )
        onnx.checker.check_model(model)
        return model

    def _fresh(self, op_type: str) -> str:
        number = self._count[op_type]
        self._count[op_type] += 1
        return f"{op_type}_{number}"
