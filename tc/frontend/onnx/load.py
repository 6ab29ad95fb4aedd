"""From a model file to an `IRModule`, and what is in a model file."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from tc.errors import ModelError, ShapeError, Span, UnsupportedError, UserError, located
from tc.frontend.dims import checked_dims
from tc.frontend.imported import NATIVE, RANDOM_KEY, REFUSED, Imported, Inspection, NodeReport, ValueReport
from tc.frontend.onnx.fallback import call_reference
from tc.frontend.onnx.functions import expand_model_function, expand_schema_function
from tc.frontend.onnx.importer import GraphImporter, ModelImporter, check_declared_dtype
from tc.frontend.onnx.model_signature import DimPromise, ModelInputs, check_names, output_part
from tc.frontend.onnx.node_context import Calls
from tc.frontend.onnx.operand_checks import check_operands
from tc.frontend.onnx.reading import ModelFile, ModelSource, check_text, needed_nodes, order_nodes, read_model
from tc.frontend.onnx.stored_sequences import from_packed
from tc.frontend.onnx.tensors import STRING_CODE, dtype_of
from tc.frontend.onnx.values import AnyValue, DeferredValue, ModelValue, PackedValue, StringsValue
from tc.frontend.signature import STRING, ValueLayout, signature_of
from tc.ir.dtype import DType
from tc.ir.expr import Const
from tc.ir.graph import Atom, AttrValue
from tc.ir.module import IRModule
from tc.ops.build import GraphBuilder, carried_requirements

if TYPE_CHECKING:
    from onnx import ValueInfoProto


def load_model(
    model: ModelSource,
    *,
    dims: Mapping[str, DimPromise] | None = None,
    on_unsupported: str = "fallback",
    assume_equal: bool = False,
    overridden: Collection[str] = (),
) -> Imported:
    """The model as a module whose function "main" takes its inputs and returns its outputs.

    dims: promises about symbolic dims by name; an int, or a Dim that leaves one size, fixes the dim. An unnamed dim
        is called "input.axis".
    on_unsupported: a node without an operator of ours runs on ONNX's reference implementation ("fallback"), or is an
        UnsupportedError ("error").
    assume_equal: dims that may be broadcast against each other are taken to be equal where nothing is known of them, and those whose
        quotients are sizes to be large enough: a faster program, for fewer inputs, with assumed requirements that say which.
    overridden: inputs with a default, an initializer of the same name, that are inputs here; of the others the defaults are constants.

    The constants share the memory of the file, which must not change while the module lives.
    Raises ModelError for a damaged or unsafe file, ShapeError where operands do not fit, UnsupportedError, LimitError.
    """
    if on_unsupported not in ("fallback", "error"):
        raise UserError(f'on_unsupported is {on_unsupported!r}, must be "fallback" or "error"')
    source, promises = read_model(model), checked_dims(dims)
    shared = _shared(source, on_unsupported, assume_equal)
    try:
        return _load(shared, promises, overridden)
    except (ShapeError, UnsupportedError):
        if not shared.assumes:
            raise
    return _load(_shared(source, on_unsupported, False), promises, overridden)  # what was assumed may be what does not fit


def _load(shared: ModelImporter, dims: Mapping[str, DimPromise], overridden: Collection[str]) -> Imported:
    importer, inputs, outputs = _import(shared, dims, overridden)
    results: list[Atom] = []
    parts: list[ValueLayout] = []
    for info, value in zip(importer.shared.model.proto.graph.output, outputs, strict=True):
        with located(Span(value.label) if isinstance(value, DeferredValue) else None):
            part, tensors = output_part(importer, info, value)
        parts.append(part)
        results.extend(map(importer.atom, tensors))
    taken, names = (tuple(name for part in each for name in part.flat_names()) for each in (inputs.parts, parts))
    taken = taken if inputs.key is None else (*taken, RANDOM_KEY)
    for each in (inputs.parts, parts):
        check_names(each)
    # The function carries what is required of its dims: for passes, these are uses.
    requirements = tuple(importer.builder.requirements)
    carried = carried_requirements(requirements)
    attrs: tuple[tuple[str, AttrValue], ...] = (("input_names", taken), ("output_names", names))
    if carried:
        attrs = (*attrs, ("requirements", carried))
    function = importer.builder.function("main", results, attrs)
    files, assumes = importer.shared.model.reader.files, importer.shared.assumes
    signature = signature_of(inputs.parts, parts, shared.strings, shared.has_strings)
    return Imported(IRModule((function,)), requirements, _reports(importer.shared), files, assumes, inputs.defaults, signature)


def inspect_model(model: ModelSource, *, dims: Mapping[str, DimPromise] | None = None) -> Inspection:
    """What is in a model, and how each node would run. Nodes that cannot run are reported, not raised.

    Raises ModelError for what is no readable ONNX model.
    """
    read = read_model(model)
    importer, signature, outputs = _import(_shared(read, "inspect", False), checked_dims(dims))
    for info, value in zip(read.proto.graph.output, outputs, strict=True):
        old = importer.shared.reports.get(value.place) if isinstance(value, DeferredValue) else None
        if old is not None:
            try:
                output_part(importer, info, value)
            except UnsupportedError as error:
                importer.shared.report(value.place, dataclasses.replace(old, status=REFUSED, reason=error.message))
    inputs = [_input_report(part, signature.inputs[part.name]) for part in signature.parts]
    if signature.key is not None:
        inputs.append(_value_report(RANDOM_KEY, signature.key))
    results = [
        _value_report(info.name, value) if isinstance(value, ModelValue) else _output_report(importer, info, value)
        for info, value in zip(read.proto.graph.output, outputs, strict=True)
    ]
    return Inspection(tuple(inputs), tuple(results), tuple(signature.dims), _reports(importer.shared))


def _reports(shared: ModelImporter) -> tuple[NodeReport, ...]:
    """The reports in the order of the file."""
    return tuple(report for _, report in sorted(shared.reports.items()))


def _input_report(part: ValueLayout, value: AnyValue) -> ValueReport:
    if isinstance(value, StringsValue):
        return dataclasses.replace(_value_report(part.name, value.numbers), dtype=STRING)
    return _value_report(part.name, value) if isinstance(value, ModelValue) else ValueReport(part.name, (), part.described)


def _value_report(name: str, value: ModelValue) -> ValueReport:
    shape = tuple(int(dim) if isinstance(dim, Const) else str(dim) for dim in value.shape)
    return ValueReport(name, shape, value.dtype)


def _output_report(importer: GraphImporter, info: ValueInfoProto, value: AnyValue) -> ValueReport:
    """An output that is more than a tensor of numbers, or as the file declares it."""
    if isinstance(value, StringsValue):
        return dataclasses.replace(_value_report(info.name, value.numbers), dtype=STRING)
    try:
        layout, _ = output_part(importer, info, value)
    except UnsupportedError:
        return _declared_report(info)
    return ValueReport(info.name, (), layout.described)


def _declared_report(info: ValueInfoProto) -> ValueReport:
    """An output as the file declares it."""
    tensor = info.type.tensor_type
    shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
    dtype: DType | str = "?"
    if tensor.elem_type:
        try:
            dtype = dtype_of(tensor.elem_type, info.name)
        except (UnsupportedError, ModelError):
            dtype = "?"
    return ValueReport(info.name, shape, dtype)


def _shared(model: ModelFile, mode: str, assume_equal: bool) -> ModelImporter:
    return ModelImporter(model, mode, (expand_model_function, expand_schema_function, call_reference), check_operands, assume_equal)


def _import(
    shared: ModelImporter, dims: Mapping[str, DimPromise], overridden: Collection[str] = ()
) -> tuple[GraphImporter, ModelInputs, list[Any]]:
    model = shared.model
    graph = model.proto.graph
    builder = GraphBuilder()
    importer = GraphImporter(shared, builder)
    with_default = {each.name for each in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))}
    for name in overridden:
        if name not in with_default or name not in {info.name for info in graph.input}:
            raise UserError(f"overridden: {name!r} is no input with a default: an input and an initializer of one name")
    importer.add_initializers(graph, overridden)
    signature = ModelInputs(dims, builder)
    check_text(*(each.name for each in (*graph.input, *graph.output, *graph.value_info)))
    inputs = [info for info in graph.input if info.name not in importer.names]
    shared.random_key = signature.random_key
    signature.declare(inputs)
    for info in graph.input:
        if info.name in importer.names:
            what = f"the input {info.name!r}"
            check_declared_dtype(info, importer.names[info.name], what)
            if message := _other_shape(info, importer.names[info.name], what):
                raise ModelError(message, code="TC1031")
            signature.defaults = (*signature.defaults, info.name)
    for info in inputs:
        if info.name in importer.names:
            raise ModelError(f"two inputs are called {info.name!r}", code="TC1008")
        importer.names[info.name] = _in_tensors(importer, info, signature.add_input(info))
    if not graph.output:
        raise ModelError("the model has no outputs")
    outputs = [info.name for info in graph.output]
    ordered = order_nodes(graph.node, importer.visible_names(), "the graph", unique=True)
    defined = {name for item in ordered for name in item.node.output} | importer.names.keys()
    for name in outputs:
        if name not in defined:
            raise ModelError(f"the model's output {name!r} is defined by no node", code="TC1007")
    needed = needed_nodes(ordered, outputs)
    for item in ordered:
        if item.index not in needed:
            report = NodeReport(item.label, item.node.op_type, item.node.domain, NATIVE, "no output depends on it")
            shared.report(f"{item.index:06d}", report)
    importer.declare(graph.value_info, graph.output)
    values = importer.run([item for item in ordered if item.index in needed], outputs)
    producers = {name: item.label for item in ordered for name in item.node.output}
    for info, value in zip(graph.output, values, strict=True):
        what, node = f"the output {info.name!r}", Span(producers.get(info.name, info.name))
        with located(node):
            check_declared_dtype(info, value, what)
        if message := _other_shape(info, value, what):  # as exporters write that infer it wrongly; runtimes do not mind
            warnings.warn(f"{node}: {message}, as its node says", stacklevel=2)
    return importer, signature, values


def _in_tensors(importer: GraphImporter, info: ValueInfoProto, value: AnyValue) -> AnyValue:
    """A sequence of items of a known rank, which operators of ours read."""
    item = info.type.sequence_type.elem_type.tensor_type
    if not isinstance(value, DeferredValue) or not item.HasField("shape") or item.elem_type == STRING_CODE:
        return value
    (packed,) = value.tensors.values()
    if not isinstance(packed, PackedValue):
        return value
    what = f"the input {info.name!r}"
    return from_packed(Calls(importer, Span(info.name), info.name), packed.tensors, len(item.shape.dim), what)


def _other_shape(info: ValueInfoProto, value: Any, what: str) -> str | None:
    """What is wrong with the shape that the file declares, if a value cannot have it. A size that only one side knows may be right."""
    declared = info.type.tensor_type.shape.dim
    if not isinstance(value, ModelValue) or not declared:  # no dims: some writers leave out the shape in this way
        return None
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in declared]
    fits = len(sizes) == value.rank and all(
        size is None or not isinstance(dim, Const) or int(dim) == size for size, dim in zip(sizes, value.shape, strict=True)
    )
    text = ", ".join("?" if size is None else str(size) for size in sizes)
    return None if fits else f"{what} is declared with shape [{text}], but is {value.type}"
