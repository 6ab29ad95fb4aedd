"""One node while it is imported: what it says, what is known of its operands, and the table of what operators mean.

The `ops_*` modules fill the table with `onnx_op`; each entry gets a `NodeContext` and binds operators through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Union

import numpy as np

from tc.errors import ModelError, NodeError, ShapeError, Span, TcError, UnsupportedError
from tc.frontend.imported import FALLBACK, FUNCTION_BODY, NATIVE, REFUSED
from tc.frontend.onnx.assumptions import assume_large_enough, is_usual
from tc.frontend.onnx.reading import (
    OrderedNode,
    Schema,
    attribute_value,
    find_schema,
)
from tc.frontend.onnx.shapes import (
    ALWAYS_KNOWN,
    ARITHMETIC,
    FIRST_WITH_NUMPYS_BROADCASTING,
    RULES,
    ShapeOperand,
    evaluate,
)
from tc.frontend.onnx.size_elements import Elements, demands, fits, rounds_down
from tc.frontend.onnx.tensors import dtype_of
from tc.frontend.onnx.values import (
    AnyValue,
    DeferredValue,
    ModelValue,
    OptionalValue,
    StoredSequence,
    StringsValue,
    UnknownValue,
    constant_value,
    elements_value,
)
from tc.ir.arith import Facts, prove, simplify
from tc.ir.dtype import DType
from tc.ir.expr import Const, Expr, const, is_const
from tc.ir.graph import AttrValue
from tc.ops.common import normalize_axes, normalize_axis, sum_dtype
from tc.ops.registry import OpDef, Requirement, scoped_ops

GraphImporter = Any
"""The walk over the graph in which a node stands (`importer.GraphImporter`, which makes the contexts and so cannot be imported here)."""

NodeResult = Union[AnyValue, "Finished", Sequence["AnyValue | None"]]
Adapter = Callable[["NodeContext"], NodeResult]
# Results and status, or None if the alternative does not apply:
Alternative = Callable[["NodeContext"], "tuple[NodeResult, str] | None"]
ADAPTERS: dict[tuple[str, str], list[tuple[int, Adapter]]] = {}


def no_run_passes(message: str) -> NodeError:
    """The error of a node that no run gets past: where runs do not come to it, the model works all the same."""
    error = NodeError(message)
    error.ends_runs = True
    return error


def cannot_work(error: TcError) -> bool:
    """Whether it says of a branch, or of the body of a loop, that it can never work."""
    return isinstance(error, ShapeError) or (isinstance(error, NodeError) and error.ends_runs)


def onnx_op(*op_types: str, since: int = 1, domain: str = "") -> Callable[[Adapter], Adapter]:
    """Register what ONNX operators mean from opset `since` on, up to a later entry for the same name."""

    def register(adapter: Adapter) -> Adapter:
        for op_type in op_types:
            entries = ADAPTERS.setdefault((domain, op_type), [])
            entries.append((since, adapter))
            entries.sort(key=lambda entry: entry[0], reverse=True)
        return adapter

    return register


_EARLY: dict[str, tuple[int, Adapter]] = {}


def onnx_op_before(opset: int, op_type: str) -> Callable[[Adapter], Adapter]:
    """Register what an ONNX operator meant before `opset`, where that is not what the entry for it says that begins with opset 1."""

    def register(adapter: Adapter) -> Adapter:
        _EARLY[op_type] = (opset, adapter)
        return adapter

    return register


def find_adapter(domain: str, op_type: str, opset: int) -> Adapter | None:
    """The entry for an operator of that opset, or None. What a user has registered goes before ours."""
    own = scoped_ops().get(f"{domain}::{op_type}")
    if own is not None:
        return partial(_import_users, own)
    before, early = _EARLY.get(op_type, (0, None)) if not domain else (0, None)
    if early is not None and opset < before:
        return early
    for since, adapter in ADAPTERS.get((domain, op_type), ()):
        if since <= opset:
            return adapter
    return None


_ONLY_OPSETS = {"com.microsoft": 1}
"""Domains that have had one opset ever, which files need not state: quantizers of onnxruntime forget to, and it runs them."""


def known_operators(domain: str) -> list[str]:
    """The operators of a domain that have entries, those of users included."""
    users = (name.removeprefix(f"{domain}::") for name in scoped_ops() if name.startswith(f"{domain}::"))
    return sorted({*users, *(op_type for of, op_type in ADAPTERS if of == domain)})


def _import_users(op: OpDef, n: NodeContext) -> NodeResult:
    """A node of a user's operator: its inputs are the operands, its attributes those of the operator."""
    if op.compute is None and n.graph.shared.mode == "error":
        raise UnsupportedError(f"{op.name} has no tensor expression, it runs in Python", code="TC1020")
    attrs = {a.name: _plain(op.name, a.name, n.attr(a.name)) for a in n.node.attribute}
    return n.call_many(op.name, *(n.optional(k) for k in range(len(n.inputs))), **attrs)


def _plain(op: str, name: str, value: Any) -> AttrValue:
    """An attribute of a file as a graph holds it."""
    if isinstance(value, list):
        return tuple(_plain(op, name, item) for item in value)
    if isinstance(value, (int, float, str)):
        return value
    raise NodeError(f"{op}: the attribute {name!r} is a tensor or a graph; users' operators take numbers, strings and lists of them")


@dataclass(frozen=True)
class Finished:
    """What a node returns that imported the rest of its graph itself: the outputs of the graph."""

    outputs: list[AnyValue]


@dataclass(frozen=True)
class Continuation:
    """What comes after a node in its graph."""

    graph: GraphImporter
    nodes: Sequence[OrderedNode]
    outputs: tuple[str, ...]

    def run_in(self, graph: GraphImporter) -> list[AnyValue]:
        """Import the rest into another graph, one that sees the names of this one."""
        return graph.run(self.nodes, self.outputs)


class Calls:
    """Short ways to bind operators into a graph, in the name of a node."""

    def __init__(self, graph: GraphImporter, span: Span | None, label: str) -> None:
        self.graph = graph
        self.span = span
        self.label = label

    @property
    def facts(self) -> Facts:
        return self.graph.facts

    def call(self, op: str, *args: ModelValue | None, **attrs: AttrValue) -> ModelValue:
        """Bind the one result of an operator."""
        return self.graph.call(op, *args, span=self.span, names=self._names(1), **attrs)[0]

    def cast(self, x: ModelValue, dtype: DType) -> ModelValue:
        """x in that element type; itself where it has it."""
        return x if x.dtype is dtype else self.call("cast", x, dtype=dtype)

    def widened(self, x: ModelValue) -> ModelValue:
        """x in the type that sums of its elements are accumulated in: what is computed of it is rounded to its own once."""
        return self.cast(x, sum_dtype(x.dtype))

    def part(self, x: ModelValue, axis: int, start: Expr | int, size: Expr | int) -> ModelValue:
        """`size` elements of one axis, from `start` on."""
        axis %= x.rank
        starts = tuple(start if d == axis else 0 for d in range(x.rank))
        sizes = tuple(size if d == axis else dim for d, dim in enumerate(x.shape))
        return self.call("slice", x, starts=starts, sizes=sizes, steps=(1,) * x.rank)

    def _names(self, count: int) -> list[str]:
        return [self.label] * count

    def const(self, value: Any, dtype: DType) -> ModelValue:
        """A constant tensor."""
        return constant_value(np.asarray(value, dtype.numpy))

    def within(self, graph: GraphImporter) -> Calls:
        """The same, into the body of a loop or branch."""
        return Calls(graph, self.span, self.label)


class NodeContext(Calls):
    """One node while it is imported: its inputs as values, its attributes, and ways to bind operators in its name."""

    def __init__(self, graph: GraphImporter, item: OrderedNode, rest: Continuation) -> None:
        super().__init__(graph, graph.span if graph.span is not None else Span(item.label), item.label)
        self.rest = rest
        self.node = item.node
        self.op_type: str = item.node.op_type
        self.domain = "" if item.node.domain == "ai.onnx" else item.node.domain
        self.place_here = f"{item.index:06d}"
        self.place = f"{graph.path}{self.place_here}"
        self.opset = graph.opsets.get(self.domain, _ONLY_OPSETS.get(self.domain, 0))
        self.num_outputs = len(item.node.output)
        self.inputs: list[AnyValue | None] = [graph.lookup(name) if name else None for name in item.node.input]
        self._attributes: dict[str, Any] | None = None
        self.reason = ""  # why the node is not native, once it is known not to be
        self.ranks: dict[str, int] = {}  # of outputs, where more is not known

    # -- what the node says

    @property
    def function_key(self) -> tuple[str, str, str]:
        return self.domain, self.op_type, self.node.overload

    @property
    def is_function(self) -> bool:
        """Whether the model itself defines the operator, and no user does."""
        return self.function_key in self.graph.shared.model.functions and f"{self.domain}::{self.op_type}" not in scoped_ops()

    @property
    def schema(self) -> Schema | None:
        if not self.opset:
            raise ModelError(f"{self.op_type} is of the domain {self.domain!r}, but the model states no opset for it", code="TC1030")
        return find_schema(self.op_type, self.domain, self.opset)

    @property
    def outputs(self) -> list[str]:
        return list(self.node.output)

    def has_output(self, index: int) -> bool:
        """Whether output `index` is there and named."""
        return index < self.num_outputs and bool(self.node.output[index])

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute: numbers, text, lists; a tensor as an array; a graph as a message. Else the default, floats rounded to f32 as
        the file would hold them."""
        if self._attributes is None:
            self._attributes = {a.name: a for a in self.node.attribute}
        if name == "to_dtype":
            return self.dtype_attr("to")
        attribute = self._attributes.get(name)
        if attribute is not None:
            value = attribute_value(attribute)
            return self.graph.shared.model.reader.read(value) if attribute.type == 4 else value
        return float(np.float32(default)) if isinstance(default, float) else default

    def dtype_attr(self, name: str, default: int | None = None) -> DType | None:
        """An attribute that holds an element type."""
        code = self.attr(name, default)
        return None if code is None else dtype_of(code, f"the attribute {name!r}")

    def value(self, index: int) -> ModelValue:
        """Input `index`, a tensor that must be there."""
        found = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(found, OptionalValue) and isinstance(found.content, ModelValue):
            return found.content
        if isinstance(found, DeferredValue):
            raise UnsupportedError(f"input {index} comes from {found.reason}", code="TC1017")
        if isinstance(found, StringsValue):
            raise UnsupportedError(f"input {index} is a tensor of strings", code="TC1017")
        if isinstance(found, StoredSequence):
            raise UnsupportedError(f"input {index} is a sequence whose length data decide", code="TC1017")
        if not isinstance(found, ModelValue):
            what = "is missing" if found is None else "is a sequence or an optional, not a tensor"
            raise NodeError(f"{self.op_type}: input {index} {what}")
        return found

    def optional(self, index: int) -> ModelValue | None:
        """Input `index`, or None when the node does not have it."""
        if index >= len(self.inputs) or self.inputs[index] is None:
            return None
        return self.value(index)

    def values(self) -> list[ModelValue]:
        """All inputs, tensors that must be there."""
        return [self.value(k) for k in range(len(self.inputs))]

    # -- what is known of the inputs

    def array(self, index: int, what: str) -> np.ndarray | None:
        """The value of an optional input that must be constant; None when it is absent."""
        value = self.optional(index)
        if value is None:
            return None
        found = self.graph.array(value)
        if found is None:
            raise UnsupportedError(f"{self.op_type}: {what} (input {index}) must be constant", code="TC1016")
        return found

    def is_data(self, index: int) -> bool:
        """Whether an input is there and known only when the model runs."""
        value = self.optional(index)
        return value is not None and self.graph.array(value) is None

    def ints(self, index: int, what: str) -> list[int] | None:
        """The integers of an optional constant input."""
        found = self.array(index, what)
        return None if found is None else [int(v) for v in found.reshape(-1)]

    def dims(self, index: int, what: str, count: int | None = None) -> tuple[Expr, ...]:
        """The elements of an integer input as dims. `count`: how many there must be."""
        found = self.graph.dims(self.of_length(index, count), f"{self.label}.{what}", self.span)
        if count is not None and len(found) != count:
            raise ShapeError(f"{self.op_type}: {what} (input {index}) has {len(found)} elements, must have {count}")
        return found

    def known(self, dim: Expr, what: str) -> int:
        """A size that must be known before the run. UnsupportedError otherwise."""
        value = simplify(dim, self.facts)
        if not isinstance(value, Const):
            raise UnsupportedError(f"{self.op_type} of {dim} {what}", code="TC1015")
        return int(value.value)

    def of_length(self, index: int, count: int | None) -> ModelValue:
        """An input; where it is a vector of a length that only the run tells, one of `count` elements, which is checked then."""
        value = self.value(index)
        if count is None or value.rank != 1 or isinstance(value.shape[0], Const):
            return value
        return self.call("reshape", value, shape=(const(count),))

    def different_axes(self, axes: Sequence[int], rank: int) -> list[int]:
        """The axes, in their order, from the front; ShapeError for one that is out of range or named twice."""
        found = [normalize_axis(axis, rank, self.op_type) for axis in axes]
        normalize_axes(found, rank, self.op_type)
        return found

    def axes(self, index: int | None = None) -> list[int] | None:
        """The axes of the node: the attribute, or the input `index` (a constant)."""
        if index is not None and index < len(self.inputs):
            return self.ints(index, "axes")
        found: list[int] | None = self.attr("axes")
        return found

    # -- results

    def _names(self, count: int) -> list[str]:
        return [name or f"{self.label}.{k}" for k, name in enumerate(self.node.output[:count])]

    def call_many(self, op: str, *args: ModelValue | None, **attrs: AttrValue) -> tuple[ModelValue, ...]:
        """Bind all results of an operator, one for each output of the node."""
        return self.graph.call(op, *args, span=self.span, names=self._names(self.num_outputs), **attrs)

    def define(self, results: NodeResult) -> None:
        """Give the node's outputs their values. ModelError when it has more outputs than results."""
        assert not isinstance(results, Finished)
        found = list(results) if isinstance(results, Sequence) else [results]
        for index, name in enumerate(self.node.output):
            if not name:
                continue
            result = found[index] if index < len(found) else None
            if result is None:
                raise UnsupportedError(f"{self.op_type}: output {index} ({name!r}) is not computed", code="TC1019")
            self.graph.check_declared(name, result)
            self.graph.names[name] = result

    def unknown_results(self) -> list[AnyValue | None]:
        return [UnknownValue()] * self.num_outputs

    def known_results(self) -> list[AnyValue] | None:
        """The results as elements, if the node works on shapes that are known."""
        if self.op_type not in RULES or self.domain:
            return None
        operands = []
        for value in self.inputs:
            if value is not None and not isinstance(value, ModelValue):
                return None
            operands.append(value)
        if self.op_type not in ALWAYS_KNOWN and all(v is None or v.elements is None for v in operands):
            return None
        if self.opset < FIRST_WITH_NUMPYS_BROADCASTING and self.attr("broadcast", 0):
            operands[1] = self._up_to_axis(*operands)
        if self.op_type == "Div":
            self._assume_to_round_down(operands)
        found = evaluate(self.op_type, self, [self._operand(v) for v in operands], self.facts)
        if found is None or not all(fits(elements, dtype) for elements, dtype in found) or not self._are_numbers(operands, found):
            return None
        return [elements_value(elements, dtype) for elements, dtype in found]

    def _up_to_axis(self, a: ModelValue | None, b: ModelValue | None) -> ModelValue | None:
        """The second operand of an early operator with the axes behind it, if its elements are known."""
        elements = None if b is None else self.graph.elements(b)
        if a is None or b is None or elements is None:
            return b
        return elements_value(elements.reshape((*elements.shape, *[1] * self.axes_behind(a, b))), b.dtype)

    def axes_behind(self, a: ModelValue, b: ModelValue) -> int:
        """How many axes of the first operand of an early operator are behind those of the second, which are its own from `axis` on, by
        default the last ones."""
        axis = self.attr("axis", a.rank - b.rank)
        axis = axis + a.rank if axis < 0 else axis
        if not 0 <= axis <= a.rank - b.rank:
            raise ShapeError(f"{self.op_type}: {b.type} does not lie in {a.type} from axis {axis} on")
        return int(a.rank - axis - b.rank)

    def _are_numbers(self, operands: Sequence[ModelValue | None], results: Sequence[tuple[Elements, DType]]) -> bool:
        """Whether arithmetic on the dtypes of sizes gives the sizes, for dims that the program may be for."""
        if self.op_type not in ARITHMETIC or (self.op_type == "Cast" and results[0][1].is_float):
            return True
        given = [(elements, v.dtype) for v in operands if v is not None and (elements := self.graph.elements(v)) is not None]
        wanted = [(condition, dtype) for elements, dtype in (*given, *results) for condition in demands(elements, dtype)]
        known = {condition: prove(condition, self.facts) for condition, _ in wanted}
        open_ = dict.fromkeys((condition, dtype) for condition, dtype in wanted if known[condition] is None)
        if False in known.values() or not all(is_usual(condition, self.facts) for condition, _ in open_):
            return False
        for condition, dtype in open_:
            if dtype.is_int:  # of floats the real number is as good as a rounded one
                message = f"{self.label}: {self.op_type} of sizes as {dtype}, which holds them only where {condition}"
                self.graph.builder.require(Requirement(condition, message))
        return True

    def _assume_to_round_down(self, operands: Sequence[ModelValue | None]) -> None:
        """Let dims be so large that sizes that are divided are not negative: quotients are then what sizes of convolutions are, rounded
        down."""
        pairs = [None if v is None else self.graph.elements(v) for v in operands]
        if len(pairs) != 2 or any(each is None for each in pairs) or not self.graph.shared.assume_equal:
            return
        for a, b in zip(*(each.reshape(-1) for each in np.broadcast_arrays(*pairs)), strict=True):
            if isinstance(a, Expr) and isinstance(b, Expr) and not is_const(a) and not rounds_down(a, b, self.facts):
                holds = partial(rounds_down, a, b)
                assume_large_enough(self.graph.builder, self.graph.shared, a, holds, self.span)

    def _operand(self, value: ModelValue | None) -> ShapeOperand | None:
        return None if value is None else ShapeOperand(value.shape, value.dtype, self.graph.elements(value))


def classify(n: NodeContext) -> tuple[str, str]:
    """Status and reason for a node whose inputs are not known: what the tables promise."""
    if n.is_function:
        return FUNCTION_BODY, "a function of the model"
    if find_adapter(n.domain, n.op_type, n.opset) is not None:
        return NATIVE, ""
    if n.schema is not None:
        return FALLBACK, "it has no operator in tc"
    return REFUSED, f"there is no operator {n.op_type} in domain {n.domain!r}"
