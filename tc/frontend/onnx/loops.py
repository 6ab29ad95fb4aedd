"""`Loop` and `Scan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tc.errors import NodeError, ShapeError, TcError, UnsupportedError
from tc.frontend.onnx.control_flow import Body, as_scalar, bind_loop, condition_dim, flip, kept_ranks
from tc.frontend.onnx.node_context import Calls, NodeContext, NodeResult, cannot_work, onnx_op, onnx_op_before
from tc.frontend.onnx.reading import reads
from tc.frontend.onnx.stored_sequences import (
    StoredForms,
    are_same,
    followed_by,
    form_of,
    item_rank,
    only_tensor,
    parts_of,
)
from tc.frontend.onnx.values import AnyValue, ModelValue, SequenceValue, StoredSequence, constant_value, size_value
from tc.ir.arith import prove, simplify
from tc.ir.dtype import i64
from tc.ir.expr import Const, Expr, as_expr, const, equal, logical_or, maximum
from tc.ops.registry import Requirement, require

if TYPE_CHECKING:
    from onnx import NodeProto

_UNROLL_LIMIT = 256
UNROLL_CHANGING = 16  # iterations that change sizes: each has kernels of its own
_NO_LIMIT = 1 << 31


@onnx_op("Loop")
def import_loop(n: NodeContext) -> NodeResult:
    """A Loop of the graph. One whose body can never work gives what it began with: that it has no iterations is checked at run time."""
    trip_count, condition = _trip_count(n), n.optional(1)
    start = None if condition is None else n.graph.array(condition)
    if start is not None:
        condition = None
        trip_count = trip_count if start.reshape(-1)[0] else const(0)
    must_run = condition is None and (trip_count is None or prove(equal(trip_count, 0), n.facts) is False)
    if must_run or len(n.attr("body").output) > 1 + len(n.inputs[2:]):  # what is scanned has a type
        return _loop(n, trip_count, condition)
    mark = n.graph.mark()
    n.graph.shared.attempts += 1
    try:
        return _loop(n, trip_count, condition)
    except TcError as error:
        if not cannot_work(error):
            raise
        reason = error.message
    finally:
        n.graph.shared.attempts -= 1
    n.graph.roll_back(mark)
    is_left: Expr = const(False)
    if trip_count is not None:
        is_left = equal(trip_count, 0)
    if condition is not None:
        is_left = logical_or(is_left, equal(condition_dim(n, condition), 0))
    message = f"{n.label}: the loop must have no iterations, because its body cannot work: {reason}"
    n.graph.builder.require(Requirement(simplify(is_left, n.facts), message))
    return list(n.inputs[2:])


def _loop(n: NodeContext, trip_count: Expr | None, condition: ModelValue | None) -> NodeResult:
    """One iteration, or some of values whose types change, one after the other; else as one of the graph."""
    fixed = int(trip_count) if isinstance(trip_count, Const) and condition is None else None
    if fixed == 1:
        return _unroll(n, fixed)
    mark = n.graph.mark()
    can_unroll = fixed is not None and 0 < fixed <= _UNROLL_LIMIT
    unrolls_first = can_unroll and fixed is not None and fixed <= UNROLL_CHANGING
    try:
        return _import_loop(n, trip_count, condition, unrolls_first)
    except UnsupportedError as error:
        if not can_unroll:
            ranks = kept_ranks(error)
            if ranks is not None and all(isinstance(v, ModelValue) for v in n.inputs[2:]):
                own = ranks[len(ranks) - len(n.inputs[2:]) :]  # behind a count of iterations
                n.ranks = {name: rank for name, rank in zip(n.outputs, own, strict=False) if rank is not None}
            raise
    n.graph.roll_back(mark)
    try:
        return _unroll(n, fixed)  # type: ignore[arg-type]
    except UnsupportedError:
        if not unrolls_first:
            raise
    n.graph.roll_back(mark)
    return _import_loop(n, trip_count, condition)


def _trip_count(n: NodeContext) -> Expr | None:
    """The largest number of iterations; None when there is no bound."""
    count = n.optional(0)
    if count is None:
        return None
    elements = n.graph.elements(count)
    if elements is None:
        zero = n.const(0, count.dtype)
        return n.graph.dims(n.call("maximum", count, zero), f"{n.label}.trip_count", n.span)[0]
    number = simplify(maximum(elements.reshape(-1)[0], 0), n.facts)
    return None if isinstance(number, Const) and int(number) >= _NO_LIMIT else number


def _import_loop(
    n: NodeContext, trip_count: Expr | None, condition: ModelValue | None, keeps_sizes: bool = False
) -> list[AnyValue]:
    """As a Loop of the graph. What iterations put at the end of a sequence is scanned if it is of one size, else carried in tensors that
    grow."""
    collected = [] if keeps_sizes else _collected(n)
    if collected:
        mark = n.graph.mark()
        try:
            return _bind_loop(n, trip_count, condition, collected)
        except UnsupportedError:  # whatever it is, the other way says it as well
            n.graph.roll_back(mark)
    return _bind_loop(n, trip_count, condition, [], keeps_sizes)


def _bind_loop(
    n: NodeContext, trip_count: Expr | None, condition: ModelValue | None, collected: Sequence[int], keeps_sizes: bool = False
) -> list[AnyValue]:
    """As a Loop whose values of the numbers `collected` are sequences that only grow: each iteration has an empty one."""
    condition = None if condition is None else as_scalar(n, condition)
    before = [SequenceValue(()) if k in collected else value for k, value in enumerate(n.inputs[2:])]
    carried = _carried_forms(n, before, collected)
    body = _onnx_body(n, carried, collected)
    init = carried.tensors(n, before)
    after = carried.values(bind_loop(n, trip_count, condition, init, body, f"{n.place_here}/body", keeps_sizes))
    stacks = after[len(after) - len(collected) :]
    for k, stack in zip(collected, stacks, strict=True):
        items = only_tensor(stack)  # those of an iteration are a row
        parts = n.call("reshape", items, shape=(items.shape[0] * items.shape[1], *items.shape[2:]))
        after[k] = followed_by(n, n.inputs[2 + k], parts_of(n, parts))
    return after[: len(after) - len(collected)]


def _collected(n: NodeContext) -> list[int]:
    """The numbers of the carried values that are sequences with which a body does nothing but to put tensors at the end."""
    body = n.attr("body")
    read = [reads(node) for node in body.node]
    results = [value.name for value in body.output]
    found = []
    for k, (value, param, result) in enumerate(zip(n.inputs[2:], body.input[2:], results[1:], strict=False)):
        if not isinstance(value, SequenceValue | StoredSequence):
            continue
        name = param.name
        users = [at for at, names in enumerate(read) if name in names]
        while len(users) == 1 and name not in results and _puts_at_end(body.node[users[0]], name):
            name = body.node[users[0]].output[0]
            users = [at for at, names in enumerate(read) if name in names]
        if name == result != param.name and not users and results.count(name) == 1:
            found.append(k)
    return found


def _puts_at_end(node: NodeProto, sequence: str) -> bool:
    """Whether a node puts a tensor at the end of the sequence of that name."""
    is_insert = node.op_type == "SequenceInsert" and node.domain in ("", "ai.onnx")
    return is_insert and node.input[0] == sequence != node.input[1] and not any(node.input[2:])


def _carried_forms(n: NodeContext, values: Sequence[AnyValue | None], collected: Sequence[int]) -> StoredForms:
    """How what a Loop carries is tensors; one iteration is imported for what sequences that are empty before it have in them."""
    is_open = [k not in collected and not isinstance(value, ModelValue) and item_rank(value) is None for k, value in enumerate(values)]
    after = list(values)
    if any(is_open):
        mark = n.graph.mark()
        graph = n.graph.nested(f"{n.place_here}/body")
        graph.iteration = constant_value(np.array(0, np.int64))
        results = graph.run_graph(n.attr("body"), [graph.iteration, constant_value(np.array(True)), *values])
        n.graph.roll_back(mark)
        after = [before if k in collected else result for k, (before, result) in enumerate(zip(values, results[1:], strict=False))]
    pairs = zip(values, after, strict=True)
    return StoredForms([None if isinstance(value, ModelValue) else form_of([value, later]) for value, later in pairs])


def _onnx_body(n: NodeContext, values: StoredForms, collected: Sequence[int]) -> Body:
    """The body of an ONNX Loop; what is put into the sequences `collected` is scanned behind its own results."""
    body, count = n.attr("body"), len(n.inputs) - 2

    def run(c: Calls, i: ModelValue, carried: list[ModelValue]) -> tuple[ModelValue | None, list[ModelValue], list[ModelValue]]:
        true = constant_value(np.array(True))
        first, *results = c.graph.run_graph(body, [i, true, *values.values(carried)])
        goes_on = only_tensor(first)
        after: ModelValue | None = goes_on
        known = c.graph.array(goes_on)
        if known is not None and known.reshape(-1)[0]:
            after = None
        elif goes_on.rank:
            after = c.call("reshape", goes_on, shape=())
        own, scanned = results[:count], [only_tensor(value) for value in results[count:]]
        for k in collected:
            scanned.append(_row(c, own[k]))
            own[k] = SequenceValue(())
        return after, values.tensors(c, own), scanned

    return run


def _row(c: Calls, sequence: AnyValue) -> ModelValue:
    """The items of a sequence along a first axis. UnsupportedError where they are not of one type."""
    assert isinstance(sequence, SequenceValue) and sequence.items, "the body puts something into it"
    first, *_ = items = [only_tensor(item) for item in sequence.items]
    if not all((item.rank, item.dtype) == (first.rank, first.dtype) and are_same(c, item.shape, first.shape) for item in items):
        raise UnsupportedError("a loop puts tensors of several types into a sequence", code="TC1018")
    rows = [c.call("unsqueeze", item, axes=(0,)) for item in items]
    return rows[0] if len(rows) == 1 else c.call("concat", *rows, axis=0)


def _unroll(n: NodeContext, trip_count: int) -> NodeResult:
    """All iterations one after the other."""
    body, carried = n.attr("body"), list(n.inputs[2:])
    count = len(carried)
    stacks: list[list[ModelValue]] = [[] for _ in range(len(body.output) - 1 - count)]
    for i in range(trip_count):
        graph = n.graph.nested(f"{n.place_here}/body", builder=n.graph.builder)
        graph.iteration = constant_value(np.array(i, np.int64))
        given = [graph.iteration, constant_value(np.array(True)), *carried]
        after, *results = graph.run_graph(body, given)
        go_on = n.graph.array(only_tensor(after))
        if go_on is None and i < trip_count - 1:
            raise UnsupportedError("a loop that changes the types of its values stops by a condition on data", code="TC1018")
        carried = list(results[:count])
        for stack, value in zip(stacks, results[count:], strict=True):
            stack.append(n.call("unsqueeze", only_tensor(value), axes=(0,)))
        if go_on is not None and not go_on.reshape(-1)[0]:
            break
    if any(not stack for stack in stacks):
        raise UnsupportedError("a loop of no iterations stacks results of unknown size", code="TC1018")
    stacked = [stack[0] if len(stack) == 1 else n.call("concat", *stack, axis=0) for stack in stacks]
    return [*carried, *stacked]


@onnx_op("Scan", since=9)
def import_scan(n: NodeContext) -> NodeResult:
    body, num_scanned = n.attr("body"), n.attr("num_scan_inputs")
    values = n.values()
    init, sequences = values[: len(values) - num_scanned], values[len(values) - num_scanned :]
    if not sequences:
        raise NodeError("Scan needs at least one input to scan")
    num_results = len(body.output) - len(init)
    axes = n.attr("scan_input_axes") or [0] * num_scanned
    reverse = n.attr("scan_input_directions") or [0] * num_scanned
    axes = [axis % value.rank for axis, value in zip(axes, sequences, strict=True)]
    length = sequences[0].shape[axes[0]]
    for value, axis in zip(sequences[1:], axes[1:], strict=True):
        _require_equal(n, length, value.shape[axis], "sequences of length")
    results = _scan(n, body, init, sequences, axes, reverse, length, f"{n.place_here}/body")
    out_axes = n.attr("scan_output_axes") or [0] * num_results
    out_reverse = n.attr("scan_output_directions") or [0] * num_results
    stacked = [
        _place_axis(n, flip(n, value, 0) if backward else value, axis % value.rank)
        for value, axis, backward in zip(results[len(init) :], out_axes, out_reverse, strict=True)
    ]
    return [*results[: len(init)], *stacked]


@onnx_op_before(9, "Scan")
def import_scan_of_batches(n: NodeContext) -> NodeResult:
    """Opset 8: every value has a first axis of batches, each of which is scanned by itself, as far as it is long. Zeros follow."""
    values, num_scanned, body = [n.value(k) for k in range(1, len(n.inputs))], n.attr("num_scan_inputs"), n.attr("body")
    states, scanned = values[: len(values) - num_scanned], values[len(values) - num_scanned :]
    if not scanned:
        raise NodeError("Scan needs at least one input to scan")
    short = next((v for v in (*states, *scanned) if v.rank < (1 if v in states else 2)), None)
    if short is not None:
        raise ShapeError(f"Scan: {short.type} has no axes of batches and of items to scan")
    reverse = n.attr("directions") or [0] * num_scanned
    (batches, length), axes = scanned[0].shape[:2], [0] * num_scanned
    for value in values:
        _require_equal(n, batches, value.shape[0], "batches of")
    for value in scanned:
        _require_equal(n, length, value.shape[1], "sequences of length")
    lengths = _lengths_of_batches(n, batches, length)

    def one(c: Calls, b: ModelValue, _: list[ModelValue]) -> tuple[ModelValue | None, list[ModelValue], list[ModelValue]]:
        own = [[c.call("gather", value, b, axis=0, in_range=True) for value in group] for group in (states, scanned)]
        if lengths is None:
            return None, [], _scan(c, body, *own, axes, reverse, length, f"{n.place_here}/body")
        (size,) = c.graph.dims(c.call("gather", lengths, b, axis=0, in_range=True), f"{n.label}.length", n.span)
        results = _scan(c, body, *own, axes, reverse, size, f"{n.place_here}/body")
        return None, [], [*results[: len(states)], *(_filled_up(c, value, length) for value in results[len(states) :])]

    return bind_loop(n, batches, None, [], one, f"{n.place_here}/batches")


def _require_equal(n: NodeContext, first: Expr, size: Expr, what: str) -> None:
    """State that what is scanned together has one size: refused here where it is known not to have, else checked when the model runs."""
    n.graph.state(lambda: require(equal(size, first), f"Scan: {what} {first} and {size}"), n.span)


def _lengths_of_batches(n: NodeContext, batches: Expr, length: Expr) -> ModelValue | None:
    """How many items of each batch are scanned, one at least and not more than there are; None for all of them."""
    given = n.optional(0)
    if given is None:
        return None
    if given.rank != 1 or prove(equal(given.shape[0], batches), n.facts) is False:
        raise ShapeError(f"Scan: sequence lengths {given.type} of {batches} batches")
    one = n.const(1, i64)
    less = n.call("sub", n.call("reshape", n.cast(given, i64), shape=(batches,)), one)
    return n.call("add", n.call("check_range", less, limit=length, what="sequence length, less 1,"), one)


def _filled_up(c: Calls, value: ModelValue, length: Expr) -> ModelValue:
    """With zeros behind, up to so many items."""
    none = (const(0),) * (value.rank - 1)
    return c.call("pad", value, None, pads=(const(0), *none, length - value.shape[0], *none))


def _scan(
    c: Calls,
    body: Any,
    init: Sequence[ModelValue],
    sequences: Sequence[ModelValue],
    axes: Sequence[int],
    reverse: Sequence[int],
    length: Expr,
    path: str,
) -> list[ModelValue]:
    """The last states, and what is scanned, stacked along a first axis."""
    last = size_value(as_expr(length) - 1)

    def step(c: Calls, i: ModelValue, carried: list[ModelValue]) -> tuple[ModelValue | None, list[ModelValue], list[ModelValue]]:
        items = [
            c.call("gather", value, c.call("sub", last, i) if backward else i, axis=axis, in_range=True)
            for value, axis, backward in zip(sequences, axes, reverse, strict=True)
        ]
        results = [only_tensor(v) for v in c.graph.run_graph(body, [*carried, *items])]
        return None, results[: len(init)], results[len(init) :]

    return bind_loop(c, length, None, init, step, path)


def _place_axis(c: Calls, value: ModelValue, axis: int) -> ModelValue:
    """Move the first axis to place `axis`."""
    if axis == 0:
        return value
    order = list(range(1, value.rank))
    order.insert(axis, 0)
    return c.call("transpose", value, perm=tuple(order))
