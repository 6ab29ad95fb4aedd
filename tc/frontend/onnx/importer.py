"""The walk over a model's graph: each node becomes bindings of a graph function, or elements of a shape that is known.

A `GraphImporter` holds the names of one graph (the model's, a branch, a loop body, a function body) and the builder
that receives its bindings. What nodes mean is in the tables of the `ops_*` modules; this module finds the right
entry, keeps names and places, and decides what happens to a node that has none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from tc.errors import (
    LimitError,
    ModelError,
    NodeError,
    ShapeError,
    Span,
    TcError,
    UnsupportedError,
    located,
    working_on,
)
from tc.frontend.imported import FALLBACK, NATIVE, REFUSED, NodeReport
from tc.frontend.onnx.assumptions import aligned_operands
from tc.frontend.onnx.node_context import (
    Alternative,
    Continuation,
    Finished,
    NodeContext,
    NodeResult,
    cannot_work,
    classify,
    find_adapter,
    known_operators,
)
from tc.frontend.onnx.reading import (
    ModelFile,
    OrderedNode,
    check_node,
    check_text,
    count_nodes,
    first_opset,
    order_nodes,
)
from tc.frontend.onnx.size_elements import Elements, SizeRatio, array_of_elements, elements_of_array, is_constant
from tc.frontend.onnx.strings import as_strings, take_numbers
from tc.frontend.onnx.tensors import CODES, STRING_CODE, check_bytes, dtype_of, read_strings
from tc.frontend.onnx.values import (
    AnyValue,
    ModelValue,
    StringsValue,
    UnknownValue,
    constant_value,
)
from tc.frontend.signature import StringTable
from tc.ir.arith import Facts, prove, simplify
from tc.ir.dtype import bool_, i64, u64
from tc.ir.expr import Const, Expr, Var, is_const, select
from tc.ir.graph import Atom, AttrValue, Call, Operation, TensorConst, TensorVar, tensor_type_of
from tc.ir.types import TensorType
from tc.ops.build import GraphBuilder, full_attrs
from tc.ops.folding import FoldBudget
from tc.ops.registry import Requirement, get_op

_FOLD_LIMIT = 1 << 16
_MAX_NESTING = 24
_IMPORTED_AGAIN = {"functions": (4_000, 64), "bodies": (4_000, 1024)}
"""How many nodes of functions, and of bodies of loops and branches (which may be unrolled), are imported at most: so many, and so many
times as many as the file has."""
_KEY_FACTOR, _KEY_STEP = 0xD1342543DE82EF95, 0x9E3779B97F4A7C15
"""Of a generator of 64 bits with a step of the golden ratio: keys of nested loops are all different."""

Mark = tuple[tuple[int, int], dict[ModelValue, Atom]]


class ModelImporter:
    """What all graphs of one model share.

    mode: "fallback" lets Python run what has no operator, "error" refuses it, "inspect" goes on after a refusal.
    alternatives: ways to import a node without an adapter, tried in order.
    check: puts checks in front of a node's operands, before any way is tried.
    assume_equal: whether dims that may be broadcast may be assumed to be equal, and sizes to be such that quotients of theirs are
        not negative.
    `assumes`: whether any were.
    """

    def __init__(
        self,
        model: ModelFile,
        mode: str,
        alternatives: Sequence[Alternative] = (),
        check: Callable[[NodeContext], None] = lambda n: None,
        assume_equal: bool = True,
    ) -> None:
        self.model = model
        self.mode = mode
        self.alternatives = alternatives
        self.assume_equal = assume_equal
        self.assumes = False
        self.check = check
        self.random_key: Callable[[], ModelValue] = lambda: constant_value(np.array(0, np.uint64))
        self.attempts = 0  # branches being imported to see whether they can work at all
        self.strings = StringTable()
        self.has_strings = False  # whether the reference reads or makes strings of the call
        self.reports: dict[str, NodeReport] = {}
        self.definitions: dict[TensorVar, tuple[Call, tuple[TensorVar, ...]]] = {}
        self._folded: dict[TensorVar, np.ndarray | None] = {}
        self._budget = FoldBudget.for_model(0)  # the values that shapes are made of are small
        self._initializers: dict[int, ModelValue] = {}
        self._dim_counts: dict[str, int] = {}
        self._imported_again = dict.fromkeys(_IMPORTED_AGAIN, 0)
        self._own_nodes = sum(map(count_nodes, (model.proto.graph, *model.proto.functions)))

    def report(self, place: str, report: NodeReport) -> None:
        """Note how a node runs; a node that is imported twice keeps the worse report."""
        old = self.reports.get(place)
        self.reports[place] = report if old is None else old.joined(report)

    def count_again(self, what: str, count: int) -> None:
        """Note that something of `_IMPORTED_AGAIN` is imported, once more. LimitError when that grows out of all proportion to the file:
        functions that call the next one twice are two to the power of their number, and loops within loops are tried in several ways
        each."""
        floor, growth = _IMPORTED_AGAIN[what]
        self._imported_again[what] += count
        if self._imported_again[what] > floor + growth * self._own_nodes:
            message = f"{what} within {what} are more than {floor + growth * self._own_nodes}, of {self._own_nodes} nodes"
            raise LimitError(message, code="TC1061")

    def fresh_dim(self, hint: str) -> str:
        """A name for a new dim."""
        count = self._dim_counts.get(hint, 0)
        self._dim_counts[hint] = count + 1
        return hint if count == 0 else f"{hint}_{count}"

    def fold(self, atom: Atom) -> np.ndarray | None:
        """The value of an atom that depends on constants only; None when it depends on more, or is large."""
        if isinstance(atom, TensorConst):
            return atom.value
        if not isinstance(atom, TensorVar) or atom not in self.definitions:
            return None
        if atom not in self._folded:
            self._folded[atom] = self._evaluate(atom)
        return self._folded[atom]

    def _evaluate(self, var: TensorVar) -> np.ndarray | None:
        call, results = self.definitions[var]
        shape = var.type.static_shape if isinstance(var.type, TensorType) else None
        if shape is None or np.prod(shape, dtype=object) > _FOLD_LIMIT:
            return None
        attrs = full_attrs(call)
        arrays = []
        for arg in call.args:
            array = None if arg is None else self.fold(arg)
            if arg is not None and (array is None or array.size > _FOLD_LIMIT):
                return None
            arrays.append(array)
        numbers = {name: _plain_attr(value) for name, value in attrs.items()}
        if any(value is _SYMBOLIC for value in numbers.values()):
            return None
        types = [tensor_type_of(result) for result in results]
        found = self._budget.evaluate(get_op(call.op), arrays, type(attrs)(tuple(numbers.items())), types)
        return None if found is None else found[results.index(var)]


_SYMBOLIC: Any = object()


def _plain_attr(value: AttrValue) -> Any:
    """An attribute with constant expressions as ints; `_SYMBOLIC` when one is not constant."""
    if isinstance(value, Const):
        return value.value
    if isinstance(value, Expr):
        return _SYMBOLIC
    if isinstance(value, tuple):
        items = tuple(map(_plain_attr, value))
        return _SYMBOLIC if any(item is _SYMBOLIC for item in items) else items
    return value


class GraphImporter:
    """Imports the nodes of one graph into `builder`. Names that it does not define are those of `parent`; `caller`: where the node of a
    function stands whose body it is."""

    def __init__(
        self,
        shared: ModelImporter,
        builder: GraphBuilder,
        *,
        parent: GraphImporter | None = None,
        path: str = "",
        opsets: Mapping[str, int] | None = None,
        span: Span | None = None,
        collected: list[NodeReport] | None = None,
        depth: int = 0,
        caller: GraphImporter | None = None,
    ) -> None:
        self.shared = shared
        self.builder = builder
        self.parent = parent
        self.caller = parent if caller is None else caller
        self.iteration: ModelValue | None = None  # of a loop, when this is its body
        self.path = path
        self.opsets = opsets if opsets is not None else shared.model.opsets
        self.span = span  # of all nodes, when they are the body of a function
        self.collected = collected  # reports on the nodes of a function body, instead of reports to the user
        self.depth = depth
        self.names: dict[str, AnyValue | None] = {}  # None: an optional input of a function that was not given
        self._made: dict[ModelValue, Atom] = {}
        self._declared: dict[str, Any] = {}
        self._declared_ranks: dict[str, int] = {}
        if self.depth > _MAX_NESTING:
            raise ModelError(f"graphs are nested more than {_MAX_NESTING} deep", code="TC1032")

    @property
    def facts(self) -> Facts:
        return self.builder.known

    # -- names

    def lookup(self, name: str) -> AnyValue | None:
        """What a name stands for, here or in an enclosing graph."""
        graph: GraphImporter | None = self
        while graph is not None:
            if name in graph.names:
                return graph.names[name]
            graph = graph.parent
        raise ModelError(f"nothing defines {name!r}", code="TC1007")

    def output(self, name: str) -> AnyValue:
        """What an output of the graph stands for."""
        found = self.lookup(name)
        if found is None:
            raise ModelError(f"the output {name!r} is an input that was not given", code="TC1007")
        return found

    def visible_names(self) -> frozenset[str]:
        """The names defined here and in enclosing graphs."""
        outer = frozenset() if self.parent is None else self.parent.visible_names()
        return outer | frozenset(self.names)

    def nested(self, path: str, *, builder: GraphBuilder | None = None) -> GraphImporter:
        """The importer of a branch or loop body, which sees the names of this graph."""
        inner = builder if builder is not None else GraphBuilder(parent=self.builder)
        return GraphImporter(
            self.shared,
            inner,
            parent=self,
            path=f"{self.path}{path}/",
            opsets=self.opsets,
            span=self.span,
            collected=self.collected,
            depth=self.depth + 1,
        )

    def random_key(self) -> ModelValue:
        """u64: what random numbers of this graph depend on, another one in each iteration of a loop."""
        key = self.shared.random_key() if self.caller is None else self.caller.random_key()
        if self.iteration is None:
            return key
        grown = self.call("mul", key, constant_value(np.array(_KEY_FACTOR, np.uint64)))[0]
        steps = self.call("add", self.call("cast", self.iteration, dtype=u64)[0], constant_value(np.array(1, np.uint64)))[0]
        return self.call("add", grown, self.call("mul", steps, constant_value(np.array(_KEY_STEP, np.uint64)))[0])[0]

    def add_initializers(self, graph: Any, but: Collection[str] = ()) -> None:
        """Define the constants of a graph, but for some."""
        reader = self.shared.model.reader
        for tensor in graph.initializer:
            check_text(tensor.name)
            if tensor.name in but:
                continue
            if tensor.name in self.names:
                raise ModelError(f"the initializer {tensor.name!r} is defined twice", code="TC1008")
            self.names[tensor.name] = self.constant(tensor)
        for sparse in graph.sparse_initializer:
            self.names[sparse.values.name] = constant_value(reader.read_sparse(sparse), sparse.values.name)

    def constant(self, tensor: Any) -> ModelValue | StringsValue:
        """The value of a constant tensor of the file."""
        if tensor.data_type != STRING_CODE:
            return constant_value(self.shared.model.reader.read(tensor), tensor.name)
        return StringsValue(constant_value(self.shared.strings.numbers(read_strings(tensor), f"tensor {tensor.name!r}"), tensor.name))

    # -- values

    def atom(self, value: ModelValue) -> Atom:
        """The data of a value; elements that were only known as expressions are bound now."""
        if value.atom is not None:
            return value.atom
        graph: GraphImporter | None = self
        while graph is not None:
            if value in graph._made:
                return graph._made[value]
            graph = graph.parent
        assert value.elements is not None, "a value has an atom or elements"
        self._made[value] = self._bind_elements(value.elements, value.type)
        return self._made[value]

    def _bind_elements(self, elements: Elements, type_: TensorType) -> Atom:
        if is_constant(elements):
            return TensorConst(array_of_elements(elements, type_.dtype))
        flat = list(elements.reshape(-1))
        if type_.dtype.is_float:
            pairs = [e if isinstance(e, SizeRatio) else SizeRatio(e) for e in flat]
            num = self._bind_integers([p.num for p in pairs], type_)
            if all(is_const(p.den, 1) for p in pairs):
                return num
            return self.builder.call("div", num, self._bind_integers([p.den for p in pairs], type_))
        return self._bind_integers([select(e, 1, 0) if e.dtype is bool_ else e for e in flat], type_)

    def _bind_integers(self, exprs: Sequence[Expr], type_: TensorType) -> Atom:
        flat: Atom = self.builder.call("shape_tensor", dims=tuple(exprs))
        if type_.dtype != i64:
            flat = self.builder.call("cast", flat, dtype=type_.dtype)
        if len(type_.shape) != 1:
            flat = self.builder.call("reshape", flat, shape=type_.shape)
        return flat

    def array(self, value: ModelValue) -> np.ndarray | None:
        """The value of a small constant, computed if need be; None when it is not constant."""
        if value.atom is not None:
            return self.shared.fold(value.atom)
        if value.elements is not None and is_constant(value.elements):
            return array_of_elements(value.elements, value.dtype)
        return None

    def elements(self, value: ModelValue) -> Elements | None:
        """The elements of a small tensor that depends on dims and constants only, else None."""
        if value.elements is not None:
            return value.elements
        shape = value.type.static_shape
        if shape is None or np.prod(shape, dtype=object) > 64:
            return None
        array = self.array(value)
        return None if array is None else elements_of_array(array)

    def dims(self, value: ModelValue, what: str, span: Span | None) -> tuple[Expr, ...]:
        """The elements of an integer tensor as dims; those that depend on data are read at run time, and are >= 0."""
        elements = self.elements(value)
        if elements is not None:
            return tuple(elements.reshape(-1))
        shape = value.type.static_shape
        if shape is None or len(shape) > 1:
            raise UnsupportedError(f"{what} depends on data, so its length must be known, but it is {value.type}", span, code="TC1015")
        count = 1 if not shape else shape[0]
        atom = self.atom(value)
        if value.dtype != i64:
            atom = self.builder.call("cast", atom, span=span, dtype=i64)
        names = [self.shared.fresh_dim(f"{what}.{k}" if count > 1 else what) for k in range(count)]
        return self.builder.read_dims(atom, names, span)

    def call(
        self, op: str, *args: ModelValue | None, span: Span | None = None, names: Sequence[str] = (), **attrs: AttrValue
    ) -> tuple[ModelValue, ...]:
        """Bind operator `op`; its results, as values."""
        results = self.builder.call_many(op, *self._aligned(op, args, span, attrs), span=span, names=names, **attrs)
        made = self.builder.bindings[-1].value
        assert isinstance(made, Call), "a call binds a Call"
        for result in results:
            self._check_type(tensor_type_of(result), op, span)
            self.shared.definitions[result] = (made, results)
        return tuple(ModelValue(tensor_type_of(result), result) for result in results)

    def _aligned(
        self, op: str, args: Sequence[ModelValue | None], span: Span | None, attrs: Mapping[str, AttrValue]
    ) -> list[Atom | None]:
        own = [None if arg is None else self.atom(arg) for arg in args]
        return aligned_operands(self.builder, self.shared, op, own, attrs, span)

    def aligned(self, op: str, args: Sequence[ModelValue], span: Span | None = None, **attrs: AttrValue) -> list[ModelValue]:
        """The operands as `call` would have them, for what is decided by which dims are equal."""
        atoms = self._aligned(op, args, span, attrs)
        return [arg if self.atom(arg) is atom else ModelValue(tensor_type_of(atom), atom) for arg, atom in zip(args, atoms, strict=True)]  # type: ignore[arg-type]

    def state(self, rule: Callable[[], object], span: Span | None) -> None:
        """Run what states requirements (`registry.require`): they are checked when the model runs."""
        self.builder.state(rule, span)

    def _check_type(self, type_: TensorType, op: str, span: Span | None) -> None:
        """Sizes that no machine holds are refused; symbolic ones must not be negative."""
        check_size(type_, op, span)
        for axis, dim in enumerate(type_.shape):
            if isinstance(dim, Var):
                self.builder.know(dim)
            elif isinstance(dim, Const) and dim.value >= 0:
                continue
            elif prove(dim >= 0, self.facts) is not True:
                message = f"{op}: dim {axis} of the result is {dim}, which must not be negative"
                if prove(dim >= 0, self.facts) is False:
                    raise ShapeError(message, span)
                place = "" if span is None else f"{span}: "
                self.builder.require(Requirement(simplify(dim >= 0, self.facts), place + message))

    def bind(
        self, operation: Operation, types: Sequence[TensorType], names: Sequence[str], span: Span | None
    ) -> tuple[ModelValue, ...]:
        """Bind an operation that is not a call of an operator."""
        for type_ in types:
            check_size(type_, names[0] if names else "result", span)
        results = self.builder.bind(operation, types, names, span)
        return tuple(ModelValue(type_, result) for type_, result in zip(types, results, strict=True))

    def mark(self) -> Mark:
        """Where the graph stands now, for `roll_back`."""
        return self.builder.mark(), dict(self._made)

    def roll_back(self, mark: Mark) -> None:
        """Forget what was bound since `mark`."""
        self.builder.roll_back(mark[0])
        self._made = dict(mark[1])

    # -- nodes

    def run(self, nodes: Sequence[OrderedNode], outputs: Sequence[str]) -> list[AnyValue]:
        """Import the nodes in order, and look up the outputs."""
        for position, item in enumerate(nodes):
            context = NodeContext(self, item, Continuation(self, nodes[position + 1 :], tuple(outputs)))
            with located(context.span), working_on("import", context):
                results, status, reason = self._import(context)
                self._report(context, status, reason)
                if isinstance(results, Finished):
                    return results.outputs
                context.define(results)
        return [self.output(name) for name in outputs]

    def run_graph(self, graph: Any, inputs: Sequence[AnyValue | None]) -> list[AnyValue]:
        """Import a subgraph whose inputs have these values; its outputs."""
        self.shared.count_again("bodies", len(graph.node))
        if len(graph.input) != len(inputs):
            raise NodeError(f"the graph {graph.name!r} takes {len(graph.input)} inputs, not {len(inputs)}", code="TC1042")
        for info, value in zip(graph.input, inputs, strict=True):
            check_declared_dtype(info, value, f"the input {info.name!r} of graph {graph.name!r}")
            self.names[info.name] = value
        self.add_initializers(graph)
        self.declare(graph.value_info, graph.output)
        nodes = order_nodes(graph.node, self.visible_names(), f"graph {graph.name!r}")
        results = self.run(nodes, [output.name for output in graph.output])
        for info, value in zip(graph.output, results, strict=False):  # fewer or more where the rest came along
            check_declared_dtype(info, value, f"the output {info.name!r} of graph {graph.name!r}")
        return results

    def declare(self, infos: Sequence[Any], outputs: Sequence[Any] = ()) -> None:
        """Note the types that the file states for values in between; of outputs, which are checked elsewhere, the ranks."""
        self._declared.update({info.name: info for info in infos})
        for info in (*infos, *outputs):
            if info.type.tensor_type.HasField("shape"):
                self._declared_ranks[info.name] = len(info.type.tensor_type.shape.dim)

    def declared_rank(self, name: str) -> int | None:
        """The rank that the file states for a value, if it does."""
        return self._declared_ranks.get(name)

    def check_declared(self, name: str, value: AnyValue) -> None:
        """ModelError when the file states another element type for a value than it has."""
        info = self._declared.get(name)
        if info is not None:
            check_declared_dtype(info, value, f"the value {name!r}")

    def _report(self, n: NodeContext, status: str, reason: str) -> None:
        report = NodeReport(n.label, n.op_type, n.domain, status, reason)
        if self.collected is not None:
            self.collected.append(report)
        else:
            self.shared.report(n.place, report)

    def _import(self, n: NodeContext) -> tuple[NodeResult, str, str]:
        """Results, status and reason of a node: our operator, else the alternatives, else refused."""
        if any(isinstance(value, UnknownValue) for value in n.inputs):
            return n.unknown_results(), *classify(n)
        try:
            return self._import_known(n)
        except TcError as error:
            if self.shared.mode != "inspect" or isinstance(error, LimitError):
                raise
            if self.shared.attempts and cannot_work(error):
                raise
            return n.unknown_results(), REFUSED, error.message

    def _import_known(self, n: NodeContext) -> tuple[NodeResult, str, str]:
        is_function = n.is_function
        if n.schema is not None and not is_function:
            check_node(n.node, n.schema, n.opset)
        strings = take_numbers(n)
        self.shared.check(n)
        mark, given = self.mark(), list(n.inputs)
        reason, first = "it has no operator in tc", None
        adapter = None if is_function else find_adapter(n.domain, n.op_type, n.opset)
        if adapter is not None:
            try:
                known = n.known_results()
                results = adapter(n) if known is None else known
                results = results if strings is None else as_strings(n, results)
                in_python = self._python_kernels(mark)
                return results, *((FALLBACK, f"numpy's kernel of {', '.join(in_python)}") if in_python else (NATIVE, ""))
            except UnsupportedError as error:
                reason, first = error.said, error
                self.roll_back(mark)
        n.inputs = given if strings is None else strings  # an adapter may have put what it bound in the place of operands
        n.reason = reason
        for alternative in self.shared.alternatives:
            try:
                found = alternative(n)
            except UnsupportedError as error:
                reason = f"{reason}; {error.said}"
                self.roll_back(mark)
                continue
            if found is not None:
                return *found, reason
        raise self._refusal(n, reason, first)

    def _python_kernels(self, mark: Mark) -> list[str]:
        """The operators without loops that were bound since `mark`: unless their results are folded, they run in Python."""
        found = set()
        for binding in self.builder.bindings[mark[0][0] :]:
            op = get_op(binding.value.op) if isinstance(binding.value, Call) else None
            if op is not None and op.compute is None and not op.view:
                if any(self.shared.fold(target) is None for target in binding.targets):
                    found.add(op.name)
        return sorted(found)

    def _refusal(self, n: NodeContext, reason: str, first: UnsupportedError | None) -> UnsupportedError:
        """The error for a node that nothing imports. first: what our own form of the operator lacks, if there is one."""
        where = f"domain {n.domain!r}" if n.domain else "ONNX"
        code, supported = ("TC1020", "") if first is None else (first.code, first.supported)
        if n.schema is None and n.function_key not in self.shared.model.functions:
            advice = _UNKNOWN_BY_DOMAIN.get(n.domain, _UNKNOWN)
            code, supported = self._unknown_operator(n, code, supported)
        elif self.shared.mode == "error":
            advice = 'allow the slow reference implementation with on_unsupported="fallback"'
        else:
            advice = "export the model without it"
        message = f"{n.op_type} of {where}, opset {n.opset}, is not supported: {reason}"
        return UnsupportedError(message, code=code, supported=supported, hint=advice).of_node(n.op_type, n.domain, n.opset)

    def _unknown_operator(self, n: NodeContext, code: str, supported: str) -> tuple[str, str]:
        """The code for a node that ONNX has no schema for, and what is there in place of it: the operator's opsets, or its likes."""
        since = first_opset(n.op_type, n.domain)
        if since is not None:
            return "TC1011", f"{n.op_type} since opset {since}"
        if code != "TC1020":  # an operator of ours outside of ONNX's own, in a form that we lack
            return code, supported
        near = get_close_matches(n.op_type, known_operators(n.domain), n=3, cutoff=0.75)
        return "TC1010", ", ".join(near)


_UNKNOWN = "check the operator's name and domain, register it with tc.op, or export the model with standard operators"

_UNKNOWN_BY_DOMAIN = {
    "com.microsoft.nchwc": "the file was saved by onnxruntime for one kind of CPU, and does not say how its weights lie; save it again "
    "with optimizations up to ORT_ENABLE_EXTENDED, or take the model from before"
}
"""What to do about operators that nobody knows, where their domain tells."""


def check_declared_dtype(info: Any, value: AnyValue | None, what: str) -> None:
    """ModelError when a file declares another element type than the value has."""
    code = info.type.tensor_type.elem_type if info.type.HasField("tensor_type") else 0
    if isinstance(value, ModelValue) and code and CODES[value.dtype] != code:
        raise ModelError(f"{what} is declared as {dtype_of(code, what)}, but is {value.type}", code="TC1031")


def check_size(type_: Any, what: str, span: Span | None) -> None:
    """LimitError for a tensor of known size that no machine holds."""
    shape = type_.static_shape if isinstance(type_, TensorType) else None
    if shape is not None:
        check_bytes(shape, type_.dtype, lambda: f"{what}: the result {type_}", span)
