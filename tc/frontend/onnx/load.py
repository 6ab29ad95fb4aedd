"""From a model file to an `IRModule`, and what is in a model file."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Union

from tc.errors import ModelError, ShapeError, Span, UnsupportedError, UserError, located
from tc.frontend.dims import Dim, checked_dims
from tc.frontend.imported import NATIVE, RANDOM_KEY, REFUSED, Imported, Inspection, NodeReport, ValueReport
from tc.frontend.onnx.fallback import call_reference
from tc.frontend.onnx.functions import expand_model_function, expand_schema_function
from tc.frontend.onnx.importer import GraphImporter, ModelImporter, check_declared_dtype, check_size
from tc.frontend.onnx.operand_checks import check_operands
from tc.frontend.onnx.reading import ModelFile, ModelSource, needed_nodes, order_nodes, read_model
from tc.frontend.onnx.tensors import dtype_of
from tc.frontend.onnx.values import DeferredValue, ModelValue
from tc.ir.dtype import DType, u64
from tc.ir.expr import Const, Expr, Var, add, const, floordiv, mul, sub
from tc.ir.graph import Atom, AttrValue
from tc.ir.module import IRModule
from tc.ir.types import DimFact, TensorType
from tc.ops.build import GraphBuilder, carried_requirements

if TYPE_CHECKING:
    from onnx import ValueInfoProto

DimPromise = Union[Dim, int]


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
    importer, signature, outputs = _import(shared, dims, overridden)
    names = [info.name for info in importer.shared.model.proto.graph.output]
    results: list[Atom] = []
    for name, value in zip(names, outputs, strict=True):
        if isinstance(value, DeferredValue):
            raise UnsupportedError(_no_result(name, value), Span(value.label))
        if not isinstance(value, ModelValue):
            raise UnsupportedError(f"the output {name!r} is a sequence or an optional; tc returns tensors only")
        results.append(importer.atom(value))
    # The function carries what is required of its dims: for passes, these are uses.
    requirements = tuple(importer.builder.requirements)
    carried = carried_requirements(requirements)
    attrs: tuple[tuple[str, AttrValue], ...] = (("input_names", tuple(signature.inputs)), ("output_names", tuple(names)))
    if carried:
        attrs = (*attrs, ("requirements", carried))
    function = importer.builder.function("main", results, attrs)
    files, assumes = importer.shared.model.reader.files, importer.shared.assumes
    return Imported(IRModule((function,)), requirements, _reports(importer.shared), files, assumes, signature.defaults)


def _no_result(name: str, value: DeferredValue) -> str:
    return f"the output {name!r} is what tc returns no tensor for: it comes from {value.reason}; tc returns tensors only, of known rank"


def inspect_model(model: ModelSource, *, dims: Mapping[str, DimPromise] | None = None) -> Inspection:
    """What is in a model, and how each node would run. Nodes that cannot run are reported, not raised.

    Raises ModelError for what is no readable ONNX model.
    """
    read = read_model(model)
    importer, signature, outputs = _import(_shared(read, "inspect", False), checked_dims(dims))
    for info, value in zip(read.proto.graph.output, outputs, strict=True):
        if isinstance(value, DeferredValue):
            old = importer.shared.reports[value.place]
            importer.shared.report(value.place, dataclasses.replace(old, status=REFUSED, reason=_no_result(info.name, value)))
    inputs = [_value_report(name, value) for name, value in signature.inputs.items()]
    results = [
        _value_report(info.name, value) if isinstance(value, ModelValue) else _declared_report(info)
        for info, value in zip(read.proto.graph.output, outputs, strict=True)
    ]
    return Inspection(tuple(inputs), tuple(results), tuple(signature.dims), _reports(importer.shared))


def _reports(shared: ModelImporter) -> tuple[NodeReport, ...]:
    """The reports in the order of the file."""
    return tuple(report for _, report in sorted(shared.reports.items()))


def _value_report(name: str, value: ModelValue) -> ValueReport:
    shape = tuple(int(dim) if isinstance(dim, Const) else str(dim) for dim in value.shape)
    return ValueReport(name, shape, value.dtype)


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
) -> tuple[GraphImporter, _Signature, list[Any]]:
    model = shared.model
    graph = model.proto.graph
    builder = GraphBuilder()
    importer = GraphImporter(shared, builder)
    importer.add_initializers(graph, overridden)
    signature = _Signature(dims, builder)
    inputs = [info for info in graph.input if info.name not in importer.names]
    shared.random_key = signature.random_key
    signature.declare(inputs)
    for info in graph.input:
        if info.name in importer.names:
            _check_declared(info, importer.names[info.name], "input")
            signature.defaults = (*signature.defaults, info.name)
    for info in inputs:
        if info.name in importer.names:
            raise ModelError(f"two inputs are called {info.name!r}")
        importer.names[info.name] = signature.add_input(info)
    if not graph.output:
        raise ModelError("the model has no outputs")
    outputs = [info.name for info in graph.output]
    ordered = order_nodes(graph.node, importer.visible_names(), "the graph", unique=True)
    defined = {name for item in ordered for name in item.node.output} | importer.names.keys()
    for name in outputs:
        if name not in defined:
            raise ModelError(f"the model's output {name!r} is defined by no node")
    needed = needed_nodes(ordered, outputs)
    for item in ordered:
        if item.index not in needed:
            report = NodeReport(item.label, item.node.op_type, item.node.domain, NATIVE, "no output depends on it")
            shared.report(f"{item.index:06d}", report)
    importer.declare(graph.value_info, graph.output)
    values = importer.run([item for item in ordered if item.index in needed], outputs)
    producers = {name: item.label for item in ordered for name in item.node.output}
    for info, value in zip(graph.output, values, strict=True):
        with located(Span(producers.get(info.name, info.name))):
            _check_declared(info, value, "output")
    return importer, signature, values


def _check_declared(info: ValueInfoProto, value: Any, kind: str) -> None:
    """ModelError when a value cannot be what the file declares. Sizes that are known on one side only may be right."""
    what = f"the {kind} {info.name!r}"
    check_declared_dtype(info, value, what)
    declared = info.type.tensor_type.shape.dim
    if not isinstance(value, ModelValue) or not declared:  # no dims: some writers leave out the shape in this way
        return
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in declared]
    fits = len(sizes) == value.rank and all(
        size is None or not isinstance(dim, Const) or int(dim) == size for size, dim in zip(sizes, value.shape, strict=True)
    )
    if not fits:
        text = ", ".join("?" if size is None else str(size) for size in sizes)
        raise ModelError(f"{what} is declared with shape [{text}], but is {value.type}")


class _Signature:
    """The inputs and dims of a model, made from its declarations and the user's promises."""

    def __init__(self, promises: Mapping[str, DimPromise], builder: GraphBuilder) -> None:
        self.promises = checked_dims(promises)
        self.builder = builder
        self.dims: dict[str, Expr] = {}
        self.inputs: dict[str, ModelValue] = {}
        self.defaults: tuple[str, ...] = ()  # names of inputs that need not be given

    def declare(self, inputs: Iterable[ValueInfoProto]) -> None:
        """Make the dims that are plain names; UserError for a promise about a dim that is not there."""
        found: dict[str, None] = {}
        for info in inputs:
            for axis, dim in enumerate(info.type.tensor_type.shape.dim):
                name = _dim_name(info.name, axis, dim)
                if name is not None:
                    found[name] = None
        for name in self.promises:
            if name not in found:
                known = ", ".join(found) or "none: all its shapes are fixed"
                raise UserError(f"dims: the model has no symbolic dim {name!r}; it has {known}")
        plain = [name for name in found if name in self.promises or _parse_dim(name, found) is None]
        for name in plain:
            self.dims[name] = self._make(name)
        for name in found:
            if name not in self.dims:
                self.dims[name] = _evaluate_dim(_parse_dim(name, found), self.dims)

    def _make(self, name: str) -> Expr:
        promise = self.promises.get(name, Dim())
        if promise.fixed is not None:
            return const(promise.fixed)
        var = Var(name)
        self.builder.add_fact(DimFact(var, promise.lo, promise.hi, promise.multiple_of))
        return var

    def add_input(self, info: ValueInfoProto) -> ModelValue:
        """A parameter of the function for an input of the model."""
        what = f"the input {info.name!r}"
        if not info.type.HasField("tensor_type"):
            kind = info.type.WhichOneof("value") or "nothing"
            raise UnsupportedError(f"{what} is of the kind {kind.removesuffix('_type')}; tc takes tensors only")
        tensor = info.type.tensor_type
        dtype = dtype_of(tensor.elem_type, what)
        if not tensor.HasField("shape"):
            raise UnsupportedError(f"{what} has no shape, not even a rank; give it one, of symbolic dims if need be")
        shape = []
        for axis, dim in enumerate(tensor.shape.dim):
            name = _dim_name(info.name, axis, dim)
            shape.append(const(dim.dim_value) if name is None else self.dims[name])
        type_ = TensorType(tuple(shape), dtype)
        with located(Span(info.name)):
            check_size(type_, what, None)
        self.inputs[info.name] = ModelValue(type_, self.builder.param(info.name, type_))
        return self.inputs[info.name]

    def random_key(self) -> ModelValue:
        """The parameter that random operators take their numbers by, behind all inputs; made where one asks for it."""
        if RANDOM_KEY not in self.inputs:
            type_ = TensorType((), u64)
            self.inputs[RANDOM_KEY] = ModelValue(type_, self.builder.param(RANDOM_KEY, type_))
        return self.inputs[RANDOM_KEY]


def _dim_name(input_name: str, axis: int, dim: Any) -> str | None:
    """The name of a symbolic dim, made from the input and axis when the file gives none; None for a known size."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return None
    # Some files call every dim that they do not know "?".
    return dim.dim_param.strip("?") or f"{input_name}.{axis}"


_OPERATORS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.FloorDiv: floordiv}


def _parse_dim(text: str, names: Iterable[str]) -> ast.expr | None:
    """A dim such as "past + seq" as a formula over other dims; None when it is just a name."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None
    known = set(names)
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(op=op) if type(op) in _OPERATORS:
                pass
            case ast.Name(id=name) if name in known and name != text:
                pass
            case ast.Constant(value=int()) | ast.operator() | ast.expr_context():
                pass
            case _:
                return None
    return tree if isinstance(tree, ast.BinOp) else None


def _evaluate_dim(tree: ast.expr | None, dims: Mapping[str, Expr]) -> Expr:
    match tree:
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_evaluate_dim(left, dims), _evaluate_dim(right, dims))
        case ast.Name(id=name):
            return dims[name]
        case ast.Constant(value=int(value)):
            return const(value)
    raise AssertionError("formulas of dims hold names, integers and four operators")


