"""Operators that are defined by other operators: functions of the model, and function bodies in ONNX's schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tc.errors import NodeError, UnsupportedError
from tc.frontend.imported import FALLBACK, FUNCTION_BODY, REFUSED, NodeReport
from tc.frontend.onnx.importer import GraphImporter
from tc.frontend.onnx.node_context import NodeContext, NodeResult
from tc.frontend.onnx.reading import captured, needed_nodes, order_nodes, subgraphs
from tc.frontend.onnx.tensors import CODES, STRING_CODE
from tc.frontend.onnx.values import DeferredValue, ModelValue, SequenceValue, StoredSequence, StringsValue
from tc.ir.expr import Const

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto

_RANK = {FUNCTION_BODY: 0, FALLBACK: 1, REFUSED: 2}


def expand_model_function(n: NodeContext) -> tuple[NodeResult, str] | None:
    """Import a node that calls a function of the model."""
    function = n.graph.shared.model.functions.get(n.function_key)
    if function is None:
        return None
    n.graph.shared.count_again("functions", len(function.node))
    return expand(n, function, {})


def expand_schema_function(n: NodeContext) -> tuple[NodeResult, str] | None:
    """Import a node by the definition that ONNX gives for its operator."""
    if any(isinstance(value, DeferredValue) for value in n.inputs):
        return None  # the reference has the node itself
    if n.op_type.startswith("Reduce"):
        return None  # and ours stands aside for axes alone of which there are who knows how many: the definition sums what may overflow
    function = _schema_function(n)
    return None if function is None or n.schema is None else expand(n, function, n.schema.defaults)


def _schema_function(n: NodeContext) -> FunctionProto | None:
    import onnx

    if n.schema is None:
        return None
    schema: Any = onnx.defs.get_schema(n.op_type, n.opset, n.domain)
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= n.opset]
        if not versions:
            return None
        data = schema.get_function_with_opset_version(max(versions))
    elif schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= n.opset]
        found = [_type_proto(v) for v in n.inputs]
        if not versions or None in found:
            return None  # what builds functions has no answer to a type that is not there, and ends the process
        types, node = [each.SerializeToString() for each in found if each is not None], n.node.SerializeToString()
        data = schema.get_context_dependent_function_with_opset_version(max(versions), node, types)
    else:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(data)
    return function if function.node else None  # there is none of operands whose sizes only the run tells


def _type_proto(value: Any) -> TypeProto | None:
    """The ONNX type of an input; an empty one when it is absent, None of what has none that is known."""
    import onnx

    match value:
        case None:
            return onnx.TypeProto()
        case StringsValue(numbers=numbers):
            return onnx.helper.make_tensor_type_proto(STRING_CODE, [int(d) if isinstance(d, Const) else None for d in numbers.shape])
        case StoredSequence(elements=elements, rank=rank):
            return onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(CODES[elements.dtype], [None] * rank))
        case SequenceValue(items=items, dtype=dtype):
            kinds = {STRING_CODE if isinstance(item, StringsValue) else CODES[item.dtype] for item in items}
            code = kinds.pop() if kinds else None if dtype is None else CODES[dtype]
            return None if code is None else onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(code, None))
        case ModelValue():
            shape = [int(dim) if isinstance(dim, Const) else None for dim in value.shape]
            return onnx.helper.make_tensor_type_proto(CODES[value.dtype], shape)
    return None


def expand(n: NodeContext, function: FunctionProto, defaults: Mapping[str, AttributeProto]) -> tuple[NodeResult, str]:
    """Import the body of `function` in place of a node; the status says whether Python is needed somewhere inside.

    defaults: values of attributes that neither the node nor the function gives.
    """
    if len(n.inputs) > len(function.input) or n.num_outputs > len(function.output):
        raise NodeError(
            f"{n.op_type} is a function of {len(function.input)} inputs and {len(function.output)} outputs, "
            f"but the node has {len(n.inputs)} and {n.num_outputs}",
            code="TC1042",
        )
    reports: list[NodeReport] = []
    opsets = {**n.graph.opsets, **{_domain(o.domain): o.version for o in function.opset_import}}
    body = GraphImporter(
        n.graph.shared,
        n.graph.builder,
        path=f"{n.place}/body/",
        opsets=opsets,
        span=n.span,
        collected=reports,
        depth=n.graph.depth + 1,
        caller=n.graph,
    )
    given = [*n.inputs, *[None] * (len(function.input) - len(n.inputs))]
    body.names.update(zip(function.input, given, strict=True))
    outer = _read_by_graphs(n, function)
    body.names.update({name: n.graph.lookup(name) for name in outer})
    attributes = dict(defaults)
    attributes.update({a.name: a for a in (*function.attribute_proto, *n.node.attribute)})
    nodes = [bind_attributes(node, attributes) for node in function.node]
    ordered = order_nodes(nodes, frozenset(function.input) | outer, f"function {function.name!r}")
    wanted = [name for name, given in zip(function.output, n.outputs, strict=False) if given]
    needed = needed_nodes(ordered, wanted)
    found = iter(body.run([item for item in ordered if item.index in needed], wanted))
    results = [next(found) if name else None for name in n.outputs]
    worst = max(reports, key=lambda r: _RANK.get(r.status, 0), default=None)
    if worst is None or worst.status not in (FALLBACK, REFUSED):
        return results, FUNCTION_BODY
    return results, worst.status


def _read_by_graphs(n: NodeContext, function: FunctionProto) -> frozenset[str]:
    """Values around a node that graphs among its attributes read, in place of which the function's body has those graphs."""
    outer = frozenset(name for graph in subgraphs(n.node) for name in captured(graph))
    own = outer.intersection(function.input, *(node.output for node in function.node))
    if own:
        message = f"{n.op_type}: its graph reads {sorted(own)[0]!r}, and so is a value of its definition called"
        raise UnsupportedError(message, code="TC1017")
    return outer


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def bind_attributes(node: NodeProto, attributes: Mapping[str, AttributeProto]) -> NodeProto:
    """`node` with references to the function's attributes replaced by their values, or left out if there is none."""
    import onnx

    if not any(a.ref_attr_name or a.HasField("g") or a.graphs for a in node.attribute):
        return node
    bound = onnx.NodeProto()
    bound.CopyFrom(node)
    del bound.attribute[:]
    for attribute in node.attribute:
        value = onnx.AttributeProto()
        if attribute.ref_attr_name:
            given = attributes.get(attribute.ref_attr_name)
            if given is None:
                continue
            value.CopyFrom(given)
            value.name = attribute.name
        else:
            value.CopyFrom(attribute)
            for graph in (*([value.g] if value.HasField("g") else []), *value.graphs):
                inner = [bind_attributes(child, attributes) for child in graph.node]
                del graph.node[:]
                graph.node.extend(inner)
        bound.attribute.append(value)
    return bound
