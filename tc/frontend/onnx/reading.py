"""Model files to protocol buffers, with errors in our words; what a graph must fulfil before it is imported."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from google.protobuf.message import DecodeError

from tc.errors import ModelError, NodeError, Span, TcError, UnsupportedError, UserError, located
from tc.frontend.formats import foreign_format
from tc.frontend.onnx.tensors import TensorReader, map_file, path_inside
from tc.frontend.onnx.wire import split_tensors

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

ModelSource = Union[str, "os.PathLike[str]", bytes, "ModelProto"]

_SPLIT_FROM_BYTES = 1 << 16
# Deprecated operators are gone in that opset, but for this one: opset 21 changed what it means, and files of 18 to 20 have it.
# Ensembles of trees of two kinds have been one since ai.onnx.ml 5, but tools go on to write the two.
_DEPRECATED_WITH_MEANING = (("GroupNormalization", 18), ("TreeEnsembleRegressor", 5), ("TreeEnsembleClassifier", 5))

_INT = 2
_WRITTEN_EARLY = {(op, 10): {"axis": (_INT, False)} for op in ("QuantizeLinear", "DequantizeLinear")}
"""Attributes, as in `Schema`, that tools write into files of opsets before the one that introduced them, by operator and version."""


@dataclass(frozen=True)
class ModelFile:
    """A parsed model, the reader of its tensors, and its opset version per domain ("" is ONNX itself)."""

    proto: ModelProto
    reader: TensorReader
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], FunctionProto]


def read_model(source: ModelSource) -> ModelFile:
    """Parse a model given as path, bytes or message. Raises ModelError for what is no ONNX model, naming the file."""
    is_file = isinstance(source, (str, os.PathLike))
    with located(Span(os.fspath(source)) if is_file else None):  # type: ignore[arg-type]
        return _read_model(source)


def whole_proto(source: str | os.PathLike[str] | bytes) -> ModelProto:
    """A model's message with all of its weights inside, for what changes it. Raises what `read_model` does."""
    import onnx

    is_file = isinstance(source, (str, os.PathLike))
    with located(Span(os.fspath(source)) if is_file else None):  # type: ignore[arg-type]
        _read_model(source)
        if not isinstance(source, (str, os.PathLike)):
            return _parse(source)
        try:
            return onnx.load(os.fspath(source))
        except OSError as error:
            raise ModelError(f"weights cannot be read: {error.strerror or error}", code="TC1002") from error
        except Exception as error:  # of weights in other files: onnx raises its own
            raise ModelError(f"weights cannot be read: {error}", code="TC1002") from error


def _read_model(source: ModelSource) -> ModelFile:
    import onnx

    folder: Path | None = None
    own = linked = None
    if isinstance(source, onnx.ModelProto):
        proto = source
    else:
        if isinstance(source, (bytes, bytearray, memoryview)):
            data = memoryview(source).cast("B")
        elif not isinstance(source, (str, os.PathLike)):
            kinds = "the path of an ONNX file, its bytes or an onnx.ModelProto"
            raise UserError(f"the model is a {type(source).__name__}, must be {kinds}")
        else:
            path = Path(source)
            folder, data = path.parent, map_file(path)
            linked = path.resolve().parent  # caches keep a model and its data under other names, and folders of links to them
        if len(data) == 0:
            raise ModelError("the model is empty: 0 bytes", code="TC1001")
        foreign = foreign_format(data)
        if foreign is not None:
            raise ModelError(f"this is not an ONNX model but {foreign}", code="TC1001")
        raw: bytes | memoryview = data
        if len(data) >= _SPLIT_FROM_BYTES:
            split = split_tensors(data)
            raw, own = split.proto, (split.location, split.data)
        proto = _parse(bytes(raw))
    if not proto.HasField("graph"):
        raise ModelError("this is not an ONNX model: it holds no graph", code="TC1001")
    opsets = _opsets(proto.opset_import, proto.ir_version)
    functions = {(_domain(f.domain), f.name, f.overload): f for f in proto.functions}
    for function in proto.functions:
        check_text(function.domain, function.name, function.overload, *function.input, *function.output, *function.attribute)
        _opsets(function.opset_import, proto.ir_version)
    return ModelFile(proto, TensorReader(folder, own, linked), opsets, functions)


def data_files(path: Path) -> set[Path]:
    """The files beside a model that its tensors lie in; none where it cannot be read."""
    try:
        proto = read_model(path).proto
    except TcError:
        return set()
    return {path.parent / inside for location in _locations(proto) if (inside := path_inside(location)) is not None}


def _locations(message: Any) -> Iterator[str]:
    """Of the external data of all tensors in a message."""
    for described, value in message.ListFields():
        if described.name == "external_data":
            yield from (entry.value for entry in value if entry.key == "location")
        elif described.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                yield from _locations(each)


def _parse(data: bytes) -> ModelProto:
    import onnx

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ModelError(f"this is not an ONNX model, or a damaged one: {error}", code="TC1003") from error
    return proto


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _opsets(imports: Iterable[Any], ir_version: int) -> dict[str, int]:
    """The opset versions, checked against what the installed `onnx` package knows."""
    import onnx

    imports = list(imports)
    check_text(*(entry.domain for entry in imports))
    opsets = {_domain(entry.domain): entry.version for entry in imports}
    for domain, stated in opsets.items():
        if domain and not 1 <= stated < 1 << 31:
            raise ModelError(f"the model uses opset {stated} of the domain {domain!r}; opsets begin with 1", code="TC1030")
    if "" not in opsets and ir_version < 3:
        opsets[""] = 1
    version = opsets.get("")
    newest = onnx.defs.onnx_opset_version()
    if version is not None and version > newest:
        raise UnsupportedError(
            f"the model uses ONNX opset {version}, which the installed onnx package does not know",
            code="TC1011",
            supported=f"1 to {newest}",
            hint="upgrade onnx, or export the model with an older opset",
        )
    if version is not None and version < 1:
        raise ModelError(f"the model uses ONNX opset {version}; the first one is 1", code="TC1030")
    return opsets


def check_text(*names: object) -> None:
    """ModelError for a name that is no UTF-8, which protocol buffers give as bytes."""
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"the name {name!r:.200} is not UTF-8", code="TC1003")


def node_label(node: NodeProto, index: int) -> str:
    """The name of a node in errors and reports; nodes without a name are counted."""
    return node.name or f"{node.op_type}_{index}"


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """The graphs among a node's attributes: branches and loop bodies."""
    found = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            found.append(attribute.g)
        found.extend(attribute.graphs)
    return found


def all_nodes(graph: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """The nodes of a graph and of the graphs within it."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def count_nodes(graph: GraphProto | FunctionProto) -> int:
    """How many nodes a graph has, those of graphs within it included."""
    return sum(1 for _ in all_nodes(graph))


@dataclass(frozen=True)
class OrderedNode:
    """A node, its number in the file and everything it reads, what its subgraphs capture included."""

    node: NodeProto
    index: int
    reads: frozenset[str]

    @property
    def label(self) -> str:
        return node_label(self.node, self.index)


def order_nodes(
    nodes: Iterable[NodeProto], known: frozenset[str], where: str, *, unique: bool = False
) -> list[OrderedNode]:
    """The nodes in an order where each comes after what it reads; `known` are the names defined before.

    ModelError for a name that is defined twice or never, and for nodes that wait for each other. Subgraphs may define
    names of enclosing graphs anew, as some exporters do; with `unique` that is an error too.
    """
    ordered = [OrderedNode(node, k, reads(node)) for k, node in enumerate(nodes)]
    for item in ordered:
        attributes = (name for each in item.node.attribute for name in (each.name, each.ref_attr_name))
        check_text(item.node.op_type, item.node.domain, item.node.name, item.node.overload, *item.node.output, *item.reads, *attributes)
    producer: dict[str, OrderedNode] = {}
    for item in ordered:
        for name in filter(None, item.node.output):
            if name in producer:
                both = f"{producer[name].label} and {item.label}"
                raise ModelError(f"{name!r} is defined twice, by {both}", Span(item.label), code="TC1008")
            if unique and name in known:
                raise ModelError(f"{name!r} is defined by {item.label}, and once more outside of it", Span(item.label), code="TC1008")
            producer[name] = item
    for item in ordered:
        for name in item.reads:
            if name not in producer and name not in known:
                message = f"{item.node.op_type} reads {name!r}, which nothing in {where} defines"
                raise ModelError(message, Span(item.label), code="TC1007")
    return _sorted(ordered, producer)


def _sorted(ordered: list[OrderedNode], producer: Mapping[str, OrderedNode]) -> list[OrderedNode]:
    """Producers first; files in order, the usual case, stay as they are."""
    done: set[int] = set()
    result: list[OrderedNode] = []
    for root in ordered:
        stack = [root]
        on_path: dict[int, OrderedNode] = {}
        while stack:
            item = stack[-1]
            if item.index in done:
                stack.pop()
                continue
            on_path[item.index] = item
            waiting = [p for name in sorted(item.reads) if (p := producer.get(name)) and p.index not in done]
            if not waiting:
                done.add(item.index)
                on_path.pop(item.index, None)
                result.append(item)
                stack.pop()
                continue
            for other in waiting:
                if other.index in on_path:
                    raise ModelError(
                        f"the graph has a cycle: {_cycle(on_path, producer, other)}", Span(other.label),
                        code="TC1009",
                    )
            stack.append(waiting[0])
    return result


def _cycle(on_path: Mapping[int, OrderedNode], producer: Mapping[str, OrderedNode], start: OrderedNode) -> str:
    items = list(on_path.values())
    labels = [item.label for item in items[items.index(start) :]]
    return " -> ".join([*labels, start.label])


def reads(node: NodeProto) -> frozenset[str]:
    """Every name that a node needs from outside: its inputs and what its subgraphs capture."""
    names = set(filter(None, node.input))
    for graph in subgraphs(node):
        names |= captured(graph)
    return frozenset(names)


def captured(graph: GraphProto) -> set[str]:
    """Names that a subgraph uses and does not define."""
    defined = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    defined |= {sparse.values.name for sparse in graph.sparse_initializer}
    wanted = {value.name for value in graph.output}
    for node in graph.node:
        wanted |= reads(node)
        defined |= set(node.output)
    return wanted - defined


def needed_nodes(ordered: Sequence[OrderedNode], outputs: Iterable[str]) -> set[int]:
    """Numbers of the nodes that the outputs depend on."""
    wanted = set(outputs)
    needed: set[int] = set()
    for item in reversed(ordered):
        if wanted.intersection(item.node.output):
            needed.add(item.index)
            wanted |= item.reads
    return needed


@dataclass(frozen=True)
class Schema:
    """What ONNX says about an operator in one opset; a cached copy of `onnx.defs.OpSchema`."""

    since: int
    min_inputs: int
    max_inputs: int
    min_outputs: int
    max_outputs: int
    attributes: Mapping[str, tuple[int, bool]]  # name -> (type, required)
    defaults: Mapping[str, AttributeProto]
    deprecated: bool


@cache
def find_schema(op_type: str, domain: str, opset: int) -> Schema | None:
    """The schema of an operator, or None if ONNX has none."""
    import onnx

    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    attributes = schema.attributes
    return Schema(
        schema.since_version,
        schema.min_input,
        schema.max_input,
        schema.min_output,
        schema.max_output,
        {name: (int(a.type.value), bool(a.required)) for name, a in attributes.items()},  # type: ignore[attr-defined]
        {name: a.default_value for name, a in attributes.items() if a.default_value.type},
        schema.deprecated,
    )


def first_opset(op_type: str, domain: str) -> int | None:
    """The first opset that has an operator of that name; None if the installed `onnx` package knows none."""
    import onnx

    found = [s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op_type and s.domain == domain]
    return min(found, default=None)


def check_node(node: NodeProto, schema: Schema, opset: int) -> None:
    """ModelError unless number of inputs and outputs and the attributes fit the schema."""
    what = f"{node.op_type} of opset {opset}"
    if schema.deprecated and (node.op_type, schema.since) not in _DEPRECATED_WITH_MEANING:
        raise NodeError(f"{what} was removed from ONNX; export the model again, or convert it to an older opset", code="TC1043")
    if not schema.min_inputs <= len(node.input) <= schema.max_inputs:
        allowed = _range(schema.min_inputs, schema.max_inputs)
        raise NodeError(f"{what} takes {allowed} inputs, but has {len(node.input)}", code="TC1042")
    if not schema.min_outputs <= len(node.output) <= schema.max_outputs:
        raise NodeError(f"{what} has {_range(schema.min_outputs, schema.max_outputs)} outputs, not {len(node.output)}", code="TC1042")
    given = {attribute.name: attribute for attribute in node.attribute}
    for name, attribute in given.items():
        known = schema.attributes.get(name) or _WRITTEN_EARLY.get((node.op_type, schema.since), {}).get(name)
        if known is None and not name.startswith("__"):  # the names that ONNX leaves to tools
            raise NodeError(f"{what} has no attribute {name!r}; it has {', '.join(schema.attributes) or 'none'}", code="TC1041")
        if known is not None and attribute.type and known[0] != attribute.type and not attribute.ref_attr_name:
            raise NodeError(f"{what}: the attribute {name!r} has the wrong type", code="TC1041")
    for name, (_, required) in schema.attributes.items():
        if required and name not in given:
            raise NodeError(f"{what}: the attribute {name!r} is required", code="TC1041")


def _range(lo: int, hi: int) -> str:
    if lo == hi:
        return str(lo)
    return f"{lo} or more" if hi >= 2**31 - 1 else f"{lo} to {hi}"


def _plain_value(value: Any) -> Any:
    """A field of an attribute: bytes as text, lists as lists."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, (int, float)) or hasattr(value, "ListFields") else [_plain_value(item) for item in value]


def attribute_value(attribute: AttributeProto) -> Any:
    """The value of an attribute: numbers, text, lists of them; tensors and graphs as messages."""
    match attribute.type:
        case 1:
            return attribute.f
        case 2:
            return attribute.i
        case 3:
            return attribute.s.decode("utf-8", "replace")
        case 4:
            return attribute.t
        case 5:
            return attribute.g
        case 6:
            return list(attribute.floats)
        case 7:
            return list(attribute.ints)
        case 8:
            return [s.decode("utf-8", "replace") for s in attribute.strings]
        case 9:
            return list(attribute.tensors)
        case 10:
            return list(attribute.graphs)
        case 11:
            return attribute.sparse_tensor
    if attribute.type == 0:  # files from before types were required
        for field, value in attribute.ListFields():
            if field.name not in ("name", "doc_string", "ref_attr_name"):
                return _plain_value(value)
    raise UnsupportedError(f"attribute {attribute.name!r} has a type that tc does not know", code="TC1013")
