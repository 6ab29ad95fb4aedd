"""What a model takes and returns: the parameters of its function and its results, and how other values than tensors lie in them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from tc.errors import ModelError, Span, UnsupportedError, UserError, located
from tc.frontend.dims import Dim, checked_dims
from tc.frontend.imported import RANDOM_KEY
from tc.frontend.onnx.fallback import dtype_name, kind_of, pack_deferred
from tc.frontend.onnx.importer import GraphImporter, check_size
from tc.frontend.onnx.node_context import Calls
from tc.frontend.onnx.reading import check_text
from tc.frontend.onnx.stored_sequences import packed_tensors
from tc.frontend.onnx.tensors import STRING_CODE, dtype_of
from tc.frontend.onnx.values import (
    AnyValue,
    DeferredValue,
    MapsValue,
    ModelValue,
    OptionalValue,
    PackedValue,
    SequenceValue,
    StoredSequence,
    StringsValue,
)
from tc.frontend.signature import LIST, MAPS, NOTHING, PACKED, PACKED_NAMES, STRING, TENSOR, ValueLayout
from tc.ir.dtype import i64, u64
from tc.ir.expr import Const, Expr, Var, add, const, floordiv, mul, sub
from tc.ir.types import DimFact, TensorType
from tc.ops.build import GraphBuilder

if TYPE_CHECKING:
    from onnx import ValueInfoProto

DimPromise = Union[Dim, int]


def output_part(importer: GraphImporter, info: ValueInfoProto, value: AnyValue) -> tuple[ValueLayout, tuple[ModelValue, ...]]:
    """How an output lies in tensors, and these."""
    name = info.name
    content = value.content if isinstance(value, OptionalValue) else value
    match content:
        case None:
            return ValueLayout(name, NOTHING, 0, STRING), ()
        case ModelValue():
            return ValueLayout(name, TENSOR, 1, content.dtype.name), (content,)
        case StringsValue():
            return ValueLayout(name, TENSOR, 1, STRING), (content.numbers,)
        case SequenceValue(items=items):
            declared = kind_of(info.type)[1]
            known = items[0].dtype if items else content.dtype
            dtype = known.name if known is not None else dtype_name(declared, f"the output {name!r}") if declared else "f32"
            if any(item.dtype.name != dtype for item in items):
                raise ModelError(f"the output {name!r} is a sequence of several element types: {', '.join(str(i.type) for i in items)}")
            return ValueLayout(name, LIST, len(items), dtype), items
        case StoredSequence(elements=elements):
            tensors = packed_tensors(Calls(importer, Span(name), name), content)
            return ValueLayout(name, PACKED, len(tensors), elements.dtype.name, "sequence"), tensors
        case MapsValue(scores=scores, labels=labels):
            return ValueLayout(name, MAPS, 1, scores.dtype.name, labels=labels), (scores,)
        case DeferredValue():
            tensors, kind, dtype = pack_deferred(importer, content, info.type)
            return ValueLayout(name, PACKED, len(tensors), dtype, kind), tensors
    raise UnsupportedError(f"the output {name!r} is of a kind that tc does not return", code="TC1017")


def check_names(parts: Sequence[ValueLayout]) -> None:
    """UnsupportedError where a tensor of one value would be called like another value."""
    known = {part.name for part in parts}
    for part in parts:
        for name in part.flat_names():
            if name != part.name and name in known:
                raise UnsupportedError(
                    f"a tensor of {part.name!r} would be called {name!r}, as another input or output is: rename that",
                    code="TC1021",
                )


class ModelInputs:
    """The inputs and dims of a model, made from its declarations and the user's promises."""

    def __init__(self, promises: Mapping[str, DimPromise], builder: GraphBuilder) -> None:
        self.promises = checked_dims(promises)
        self.builder = builder
        self.dims: dict[str, Expr] = {}
        self.inputs: dict[str, AnyValue] = {}
        self.parts: list[ValueLayout] = []
        self.key: ModelValue | None = None  # the last parameter, where there are random operators
        self.defaults: tuple[str, ...] = ()  # names of inputs that need not be given

    def declare(self, inputs: Iterable[ValueInfoProto]) -> None:
        """Make the dims that are plain names; UserError for a promise about a dim that is not there."""
        found: dict[str, None] = {}
        for info in inputs:
            if info.type.HasField("sequence_type"):
                found[_length_name(info.name)] = None
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

    def add_input(self, info: ValueInfoProto) -> AnyValue:
        """The parameters of the function for an input of the model, as one value."""
        what = f"the input {info.name!r}"
        if info.type.HasField("tensor_type"):
            part, value = self._tensor(info, what)
        else:
            part, value = self._structured(info, what)
        self.parts.append(part)
        self.inputs[info.name] = value
        return value

    def random_key(self) -> ModelValue:
        """The parameter that random operators take their numbers by, behind all inputs; made where one asks for it."""
        if self.key is None:
            self.key = self._param(RANDOM_KEY, TensorType((), u64))
        return self.key

    def _tensor(self, info: ValueInfoProto, what: str) -> tuple[ValueLayout, AnyValue]:
        tensor = info.type.tensor_type
        is_text = tensor.elem_type == STRING_CODE
        dtype = i64 if is_text else dtype_of(tensor.elem_type, what)
        if not tensor.HasField("shape"):
            hint = "give it one, of symbolic dims if need be"
            raise UnsupportedError(f"{what} has no shape, not even a rank", code="TC1014", hint=hint)
        shape = []
        for axis, dim in enumerate(tensor.shape.dim):
            name = _dim_name(info.name, axis, dim)
            shape.append(const(dim.dim_value) if name is None else self.dims[name])
        value = self._param(info.name, TensorType(tuple(shape), dtype))
        return ValueLayout(info.name, TENSOR, 1, STRING if is_text else dtype.name), StringsValue(value) if is_text else value

    def _param(self, name: str, type_: TensorType) -> ModelValue:
        with located(Span(name)):
            check_size(type_, f"the input {name!r}", None)
        return ModelValue(type_, self.builder.param(name, type_))

    def _structured(self, info: ValueInfoProto, what: str) -> tuple[ValueLayout, AnyValue]:
        """A sequence or optional: the items of a promised number, else packed tensors, which ONNX's reference takes."""
        kind, code = kind_of(info.type)
        if not kind or not code:
            named = str(info.type.WhichOneof("value") or "nothing").removesuffix("_type")
            raise UnsupportedError(
                f"{what} is of the kind {named}",
                code="TC1017",
                supported="tensors, sequences and optionals of known element type",
            )
        dtype = dtype_name(code, what)
        length = self.dims.get(_length_name(info.name)) if kind == "sequence" else None
        if isinstance(length, Const) and dtype != STRING:
            part = ValueLayout(info.name, LIST, int(length), dtype)
            return part, SequenceValue(tuple(self._item(info, name) for name in part.flat_names()), dtype_of(code, what))
        element = i64 if dtype == STRING else dtype_of(code, what)
        sizes = [Var(f"{info.name}.size"), Var(f"{info.name}.length") if length is None else length, Var(f"{info.name}.axes")]
        for dim in sizes:
            if isinstance(dim, Var) and dim is not length:
                self.builder.add_fact(DimFact(dim))
        part = ValueLayout(info.name, PACKED, len(sizes), dtype, kind, sizes=self._sizes_in_optional(info))
        named_sizes = zip(part.flat_names(), PACKED_NAMES, sizes, strict=True)
        tensors = tuple(self._param(name, TensorType((dim,), element if word == "elements" else i64)) for name, word, dim in named_sizes)
        reason = f"{what}, a {kind} of which only the run says what is in it"
        return part, DeferredValue((), info.name, {info.name: PackedValue(info.type, tensors)}, reason, "", info.name)

    def _sizes_in_optional(self, info: ValueInfoProto) -> tuple[int | None, ...] | None:
        """The sizes that the file states for the tensor in an optional, None for each that it does not; None where it states no rank."""
        tensor = info.type.optional_type.elem_type.tensor_type
        if not info.type.optional_type.elem_type.HasField("tensor_type") or not tensor.HasField("shape"):
            return None
        return tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in tensor.shape.dim)

    def _item(self, info: ValueInfoProto, name: str) -> ModelValue:
        """An item of a sequence: dims that are no numbers are its own."""
        tensor = info.type.sequence_type.elem_type.tensor_type
        if not tensor.HasField("shape"):
            raise UnsupportedError(f"the items of the input {info.name!r} have no shape: leave its length open", code="TC1014")
        shape: list[Expr] = []
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                shape.append(const(dim.dim_value))
                continue
            var = Var(f"{name}.{axis}")
            self.builder.add_fact(DimFact(var))
            shape.append(var)
        return self._param(name, TensorType(tuple(shape), dtype_of(tensor.elem_type, f"the input {info.name!r}")))


def _length_name(input_name: str) -> str:
    """The dim that is the length of a sequence."""
    return f"{input_name}.length"


def _dim_name(input_name: str, axis: int, dim: Any) -> str | None:
    """The name of a symbolic dim, made from the input and axis when the file gives none; None for a known size."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return None
    check_text(dim.dim_param)
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


