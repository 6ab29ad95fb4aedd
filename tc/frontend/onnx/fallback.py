"""Nodes that run on ONNX's reference implementation: slow, correct, and there for every operator that ONNX defines (`reference_run`).

Such a node becomes a call of the Python function "onnx_reference", whose attribute is a model of this one node, and of those before it
whose results only the reference can hold. Its result types come from ONNX's shape inference; a dim that this cannot say is bound when the
result is there.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tc.errors import Span, UnsupportedError
from tc.frontend.imported import FALLBACK
from tc.frontend.onnx.node_context import GraphImporter, NodeContext, NodeResult
from tc.frontend.onnx.reading import all_nodes, reads
from tc.frontend.onnx.reference_ops import corrected_ops
from tc.frontend.onnx.stored_sequences import packed_tensors
from tc.frontend.onnx.tensors import CODES, STRING_CODE, dtype_of
from tc.frontend.onnx.values import (
    AnyValue,
    DeferredValue,
    ModelValue,
    OptionalValue,
    PackedValue,
    SequenceValue,
    Source,
    StoredSequence,
    StringsValue,
)
from tc.frontend.signature import PACKED_NAMES, STRING
from tc.ir.dtype import f32, i64
from tc.ir.expr import Const, Expr, Var, const
from tc.ir.graph import AttrValue, CallExtern
from tc.ir.types import DimFact, TensorType

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
    if n.op_type == "GridSample" and n.opset < 20:
        for attribute in node.attribute:
            if attribute.name == "mode":
                attribute.s = attribute.s.removeprefix(b"bi")  # bilinear and bicubic have been linear and cubic since
        opsets[""] = 20
    if n.op_type == "Resize":
        for attribute in node.attribute:
            if attribute.name == "axes":
                rank = n.value(0).rank
                attribute.ints[:] = [axis % rank for axis in attribute.ints]
    return node, opsets, constants


def call_reference(n: NodeContext) -> tuple[NodeResult, str] | None:
    """Import a node as a call of its reference implementation. UnsupportedError when ONNX has none.

    A result that is a sequence, or of a rank that nobody can say, is deferred: the node runs with those that use the result.
    """
    if n.graph.shared.mode == "error" or n.schema is None:
        return None
    if n.op_type == "Scan" and n.opset < 9:
        raise UnsupportedError("ONNX's reference does not know Scan of opset 8", code="TC1011")
    values = {name: n.graph.lookup(name) for name in sorted(reads(n.node))}
    values.update((name, value) for name, value in zip(n.node.input, n.inputs, strict=True) if name)
    sources = _Sources(n)
    for name, value in values.items():
        sources.add(name, value)
    node, opsets, defaults = _as_reference_knows_it(n)
    if sources.nodes and opsets != dict(n.graph.opsets):
        raise UnsupportedError("its operands come from nodes of another opset than its reference is of", code="TC1011")
    tensors = sources.tensors
    nodes = [*sources.nodes.values(), node]
    constants = {name: array for name, value in tensors.items() if (array := _small_constant(n, value)) is not None}
    dim_names = _DimNames()
    wanted = [name for name in n.outputs if name]
    model = _model_of(n.graph, nodes, wanted, opsets, tensors, {**constants, **defaults}, dim_names)
    types, unknown = _infer(n, model, dim_names)
    del model.graph.output[:]
    model.graph.output.extend(_output_info(name, code) for name, (_, code) in types.items())
    _check_runs(model)
    results: dict[str, AnyValue] = {
        name: DeferredValue(tuple(nodes), name, tensors, f"{n.label}, where {n.reason}; {why}", n.place, n.label)
        for name, why in unknown.items()
    }
    if types:
        args = [value for name, value in tensors.items() if name not in constants]
        made = _bind_call(n.graph, model, args, {name: type_ for name, (type_, _) in types.items()}, n.span)
        results.update((name, StringsValue(value) if types[name][1] == STRING_CODE else value) for name, value in made.items())
    return [results.get(name) for name in n.outputs], FALLBACK


def _bind_call(
    graph: GraphImporter,
    model: Any,
    args: Sequence[Source],
    types: Mapping[str, TensorType],
    span: Span | None,
    attrs: tuple[tuple[str, AttrValue], ...] = (),
) -> dict[str, ModelValue]:
    """Bind a call of the reference; its results by name."""
    text = base64.b64encode(model.SerializeToString()).decode()
    operands = tuple(graph.atom(tensor) for value in args for tensor in _tensors_of(value))
    infos = (*model.graph.input, *model.graph.output)
    graph.shared.has_strings |= any(kind_of(info.type)[1] == STRING_CODE for info in infos)
    operation = CallExtern(f"py:{REFERENCE_FUNCTION}", operands, (), tuple(types.values()), (("model", text), *attrs), span=span)
    return dict(zip(types, graph.bind(operation, list(types.values()), list(types), span), strict=True))


def _tensors_of(value: Source) -> tuple[ModelValue, ...]:
    match value:
        case StringsValue(numbers=numbers):
            return (numbers,)
        case PackedValue(tensors=tensors):
            return tensors
    return (value,)


def pack_deferred(graph: GraphImporter, value: DeferredValue, declared: Any) -> tuple[tuple[ModelValue, ...], str, str]:
    """The tensors that a value lies in which the reference alone can hold, what kind it is of, and its element type.

    declared: its ONNX type as the file states it, which counts for what inference does not say. UnsupportedError where neither says.
    """
    held = value.tensors.get(value.name)
    if isinstance(held, PackedValue):
        kind, code = kind_of(held.type)
        return held.tensors, kind, dtype_name(code, value.name)
    model = _model_of(graph, value.nodes, [value.name], dict(graph.opsets), value.tensors, {}, _DimNames())
    found = _inferred(model).get(value.name)
    kind, code = kind_of(found if found is not None and kind_of(found)[1] else declared)
    if not code:
        raise UnsupportedError(f"the type of the output {value.name!r} is not known; it comes from {value.reason}", code="TC1017")
    dtype = dtype_name(code, f"the output {value.name!r}")
    model.graph.output[0].type.CopyFrom(_type_of(kind, code))
    _check_runs(model)
    counts = [Var(graph.shared.fresh_dim(f"{value.name}.{word}")) for word in ("size", "length", "axes")]
    for dim in counts:
        graph.builder.add_fact(DimFact(dim))
    element = i64 if dtype == STRING else dtype_of(code, value.name)
    types = {
        f"{value.name}.{word}": TensorType((dim,), element if word == "elements" else i64)
        for word, dim in zip(PACKED_NAMES, counts, strict=True)
    }
    made = _bind_call(graph, model, list(value.tensors.values()), types, Span(value.label), (("packed", (value.name,)),))
    return tuple(made.values()), kind, dtype


def dtype_name(code: int, what: str) -> str:
    """An ONNX element type by the name that a signature has for it."""
    return STRING if code == STRING_CODE else dtype_of(code, what).name


def kind_of(type_: Any) -> tuple[str, int]:
    """Of an ONNX type: the kind of a packed value, and the code of its elements, 0 where there is none."""
    match type_.WhichOneof("value"):
        case "optional_type":
            kind, code = kind_of(type_.optional_type.elem_type)
            return ("optional sequence" if kind == "sequence" else "optional" if kind == "tensor" else ""), code
        case "sequence_type":
            kind, code = kind_of(type_.sequence_type.elem_type)
            return ("sequence" if kind == "tensor" else ""), code
        case "tensor_type":
            return "tensor", type_.tensor_type.elem_type
    return "", 0


def _type_of(kind: str, code: int) -> Any:
    from onnx import helper

    found = helper.make_tensor_type_proto(code, None)
    if kind.endswith("sequence"):
        found = helper.make_sequence_type_proto(found)
    return helper.make_optional_type_proto(found) if kind.startswith("optional") else found


class _Sources:
    """What a node reads: tensors by name, and before it nodes that make the rest of it from tensors."""

    def __init__(self, n: NodeContext) -> None:
        self.n = n
        self.tensors: dict[str, Source] = {}
        self.packed: dict[StoredSequence, PackedValue] = {}
        self.nodes: dict[str, Any] = {}  # by the name of their first result, each after what it reads

    def add(self, name: str, value: AnyValue | None) -> None:
        from onnx import helper

        match value:
            case None:
                return
            case ModelValue() | StringsValue() | PackedValue():
                if name in self.nodes or self.tensors.setdefault(name, value) is not value:
                    raise UnsupportedError(f"two values that it needs are called {name!r}", code="TC1021")
            case SequenceValue(items=items, dtype=dtype):
                parts = [f"{name}.item{k}" for k in range(len(items))]
                for part, item in zip(parts, items, strict=True):
                    self.add(part, item)
                empty = helper.make_node("SequenceEmpty", [], [name], dtype=CODES[dtype if dtype is not None else f32])
                self._add_node(helper.make_node("SequenceConstruct", parts, [name]) if parts else empty)
            case StoredSequence(elements=elements):
                type_ = _type_of("sequence", CODES[elements.dtype])
                self.add(name, self.packed.setdefault(value, PackedValue(type_, packed_tensors(self.n, value))))
            case DeferredValue():
                for key, tensor in value.tensors.items():
                    self.add(key, tensor)
                for node in value.nodes:
                    self._add_node(node)
                if value.name != name:
                    self._add_node(helper.make_node("Identity", [value.name], [name]))
            case OptionalValue(content=content) if content is not None:
                self.add(f"{name}.content", content)
                self._add_node(helper.make_node("Optional", [f"{name}.content"], [name]))
            case _:
                raise UnsupportedError(f"its input {name!r} is an optional", code="TC1017")

    def _add_node(self, node: Any) -> None:
        name = next(filter(None, node.output))
        if name in self.tensors or self.nodes.setdefault(name, node) != node:
            raise UnsupportedError(f"two values that it needs are called {name!r}", code="TC1021")


def _output_info(name: str, code: int) -> Any:
    """The declaration of a result: numpy's promotion is not ONNX's, what is declared is returned."""
    from onnx import helper

    return helper.make_tensor_value_info(name, code, None)


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


def model_of_node(n: NodeContext, stand_in: Callable[[np.ndarray], np.ndarray]) -> Any:
    """A model of this node alone, whose inputs are the node's as far as they are known. stand_in: what is kept of a constant."""
    sources = _Sources(n)
    for name in sorted(reads(n.node)):
        sources.add(name, n.graph.lookup(name))
    arrays = {name: n.graph.array(value) for name, value in sources.tensors.items() if isinstance(value, ModelValue)}
    constants = {name: stand_in(array) for name, array in arrays.items() if array is not None}
    nodes, wanted, opsets = [*sources.nodes.values(), n.node], [name for name in n.outputs if name], dict(n.graph.opsets)
    model = _model_of(n.graph, nodes, wanted, opsets, sources.tensors, constants, _DimNames())
    with contextlib.suppress(UnsupportedError):  # the types of results, where ONNX knows them
        types = _inferred(model)
        for output in model.graph.output:
            output.type.CopyFrom(types.get(output.name, output.type))
    return model


def _small_constant(n: NodeContext, value: Source) -> np.ndarray | None:
    """What a reference's model may hold itself: strings that the model knows as such, which no call need have numbers for."""
    if isinstance(value, PackedValue):
        return None
    (tensor,) = _tensors_of(value)
    array = n.graph.array(tensor)
    if array is None or array.nbytes > _EMBED_LIMIT_BYTES:
        return None
    return n.graph.shared.strings.array(array) if isinstance(value, StringsValue) else array


def _model_of(
    graph: GraphImporter,
    nodes: Sequence[Any],
    wanted: Sequence[str],
    opsets: dict[str, int],
    tensors: Mapping[str, Source],
    constants: dict[str, np.ndarray],
    dims: _DimNames,
) -> Any:
    """A model of the nodes with the wanted outputs, and of the functions that they call. Small constants are its initializers."""
    from onnx import helper, numpy_helper

    inputs = [_input_info(name, value, dims) for name, value in tensors.items() if name not in constants]
    outputs = [helper.make_empty_tensor_value_info(name) for name in wanted]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    made = helper.make_graph(nodes, "node", inputs, outputs, initializers)
    functions = _called_functions(graph, made)
    model = helper.make_model(made, opset_imports=imports, functions=functions, ir_version=graph.shared.model.proto.ir_version or 8)
    named = (each for part in (model.graph, *model.functions) for each in all_nodes(part))
    for each in (*named, *(each for function in model.functions for each in function.opset_import)):
        each.domain = "" if each.domain == "ai.onnx" else each.domain  # the reference knows the short name only
    return model


def _called_functions(graph: GraphImporter, made: Any) -> list[Any]:
    """Functions of the model that are called in a graph, each behind those that it calls. UnsupportedError for overloads, which the
    reference does not tell from each other."""
    own, seen, found = graph.shared.model.functions, set[tuple[str, str, str]](), []

    def add(body: Any) -> None:
        for node in all_nodes(body):
            key = ("" if node.domain == "ai.onnx" else node.domain, node.op_type, node.overload)
            if key in own and key not in seen:
                seen.add(key)
                add(own[key])
                found.append(own[key])

    add(made)
    if len({key[:2] for key in seen}) < len(found):
        raise UnsupportedError("the reference does not know functions that share a name", code="TC1020")
    return found


def _input_info(name: str, value: Source, dims: _DimNames) -> Any:
    """The declaration of an input. Items of a sequence have no dims in common but those that are numbers."""
    from onnx import helper

    if not isinstance(value, PackedValue):
        (tensor,) = _tensors_of(value)
        code = STRING_CODE if isinstance(value, StringsValue) else CODES[tensor.dtype]
        return helper.make_tensor_value_info(name, code, [dims.name(dim) for dim in tensor.shape])
    return helper.make_value_info(name, _without_names(value.type))


def _without_names(type_: Any) -> Any:
    found = type(type_)()
    found.CopyFrom(type_)
    inner = found
    while inner.WhichOneof("value") in ("optional_type", "sequence_type"):
        inner = getattr(inner, inner.WhichOneof("value")).elem_type
    for dim in inner.tensor_type.shape.dim if inner.tensor_type.HasField("shape") else ():
        dim.ClearField("dim_param")
    return found


def _inferred(model: Any) -> dict[str, Any]:
    """The types of values by name, as far as ONNX infers them. UnsupportedError for operators that it does not know: it may end the
    process at one that reads their results, of which there is no type (EyeLike)."""
    import onnx

    own = {(function.domain, function.name) for function in model.functions}
    called = {(n.domain, n.op_type) for part in (model.graph, *model.functions) for n in all_nodes(part)}
    strangers = {(domain, op_type) for domain, op_type in called if not onnx.defs.has(op_type, domain)} - own
    if strangers:
        names = ", ".join(f"{op_type} of domain {domain!r}" for domain, op_type in sorted(strangers))
        raise UnsupportedError(f"ONNX does not know {names}", code="TC1020")
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError) as error:
        raise UnsupportedError(f"ONNX cannot infer its types: {error}", code="TC1020") from error
    return {value.name: value.type for value in (*inferred.graph.output, *inferred.graph.value_info)}


def _infer(n: NodeContext, model: Any, dims: _DimNames) -> tuple[dict[str, tuple[TensorType, int]], dict[str, str]]:
    """The types of the node's results by name, with ONNX's code of the elements, and why others have none that a program can rely on.

    Dims that are not known get names of their own.
    """
    import onnx

    found = _inferred(model)
    types: dict[str, tuple[TensorType, int]] = {}
    unknown: dict[str, str] = {}
    for name in filter(None, n.outputs):
        kind = found[name].WhichOneof("value") if name in found else None
        if kind != "tensor_type":
            unknown[name] = f"its output {name!r} is a {(kind or 'value of no type').removesuffix('_type')}"
            continue
        tensor = found[name].tensor_type
        # Of what a Loop carries, inference before opset 13 gives the empty shape of a scalar, for want of one.
        has_shape = tensor.HasField("shape") and (len(tensor.shape.dim) > 0 or n.op_type != "Loop")
        rank = len(tensor.shape.dim) if has_shape else n.ranks.get(name, n.graph.declared_rank(name))
        if rank is None or not tensor.elem_type:
            unknown[name] = f"ONNX cannot say the rank of its output {name!r}"
            continue
        dtype = i64 if tensor.elem_type == STRING_CODE else dtype_of(tensor.elem_type, f"the output {name!r}")
        is_known = has_shape and not _is_misjudged(n)
        known = tensor.shape.dim if is_known else [onnx.TensorShapeProto.Dimension()] * rank
        shape = [_dim(n, f"{name}.{axis}", dim, dims) for axis, dim in enumerate(known)]
        types[name] = TensorType(tuple(shape), dtype), tensor.elem_type
    return types, unknown


def _is_misjudged(n: NodeContext) -> bool:
    """Whether inference gives dims that the node need not have: those of the signal, for a DFT of a length that is not known."""
    if n.op_type != "DFT":
        return False
    length = n.optional(1)
    return length is not None and n.graph.array(length) is None


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


def _check_runs(model: Any) -> None:
    """UnsupportedError unless ONNX has a reference implementation of the node."""
    from onnx.reference import ReferenceEvaluator

    try:
        ReferenceEvaluator(model, new_ops=list(corrected_ops()))
    except Exception as error:  # the reference runtime raises its own errors, and whatever numpy does
        raise UnsupportedError(f"ONNX has no reference implementation of it that runs: {error}", code="TC1020") from error
