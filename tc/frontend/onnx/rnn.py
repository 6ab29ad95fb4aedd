"""RNN, GRU and LSTM: the products with the inputs as one matmul over all steps, then a loop over a step.

Shapes, for `layout` 0: X [t, b, i], W [d, g*h, i], R [d, g*h, h], B [d, 2*g*h], states [d, b, h], Y [t, d, b, h]; `d`
is the number of directions, `g` the number of gates. The weights of DynamicQuantizeLSTM ("com.microsoft") are of bytes, their last two axes
exchanged; what is multiplied by them is rounded to bytes of its own range: all inputs together, the states of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tc.errors import NodeError, ShapeError, UnsupportedError
from tc.frontend.onnx.activations import ACTIVATIONS, Activation
from tc.frontend.onnx.control_flow import bind_loop, flip
from tc.frontend.onnx.node_context import Calls, NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.quantized import dynamically_quantized, integer_product
from tc.frontend.onnx.values import ModelValue, size_value
from tc.ir.dtype import i64
from tc.ir.expr import Expr, as_expr, const, is_const
from tc.ops.common import require_equal


@dataclass(frozen=True)
class _Kind:
    """A recurrent operator."""

    name: str
    gates: int
    states: int
    activations: tuple[str, ...]
    in_bytes: bool = False

    def weights(self, rows: int, terms: Expr | int, count: int) -> tuple[Expr | int, ...]:
        """The shape of W or R."""
        return (count, terms, rows) if self.in_bytes else (count, rows, terms)


@dataclass(frozen=True)
class _Weights:
    """What inputs or states are multiplied by, [k, g*h]; of bytes where there is a scale."""

    matrix: ModelValue
    scale: ModelValue | None = None
    zero: ModelValue | None = None

    def product(self, c: Calls, x: ModelValue) -> ModelValue:
        if self.scale is None:
            return c.call("matmul", x, self.matrix)
        return integer_product(c, *dynamically_quantized(c, x), self.matrix, self.scale, self.zero)

    def part(self, c: Calls, start: int, size: int) -> _Weights:
        assert self.scale is None
        return _Weights(c.part(self.matrix, -1, start, size))


@dataclass(frozen=True)
class _Direction:
    """One direction of a recurrent node: its weights, transposed for `x @ w`, and how it runs.

    projected: X W^T plus the biases that may be added before the loop, [t, b, g*h].
    """

    projected: ModelValue
    recurrent: _Weights  # [h, g*h]
    hidden_bias: ModelValue | None  # [h], of a GRU with linear_before_reset
    peepholes: tuple[ModelValue, ...]
    activations: tuple[Activation, ...]
    hidden: int


_RNN = _Kind("RNN", 1, 1, ("Tanh",))
_GRU = _Kind("GRU", 3, 1, ("Sigmoid", "Tanh"))
_LSTM = _Kind("LSTM", 4, 2, ("Sigmoid", "Tanh", "Tanh"))
_LSTM_IN_BYTES = replace(_LSTM, in_bytes=True)


def _register(kind: _Kind, name: str, domain: str, since: int) -> None:
    onnx_op(name, domain=domain, since=since)(lambda n: _recurrent(n, kind))


for _kind in (_RNN, _GRU, _LSTM):
    _register(_kind, _kind.name, "", 1)
_register(_LSTM_IN_BYTES, "DynamicQuantizeLSTM", "com.microsoft", 1)


def _recurrent(n: NodeContext, kind: _Kind) -> NodeResult:
    x, w, r = n.value(0), n.value(1), n.value(2)
    direction = n.attr("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise NodeError(f"{n.op_type}: there is no direction {direction!r}")
    count = 2 if direction == "bidirectional" else 1
    for value, rank, what in ((x, 3, "X"), (w, 3, "W"), (r, 3, "R")):
        if value.rank != rank:
            raise ShapeError(f"{n.op_type}: {what} must have rank {rank}, but is {value.type}")
    terms = r.shape[1 if kind.in_bytes else 2]
    given = terms if is_const(terms) else n.attr("hidden_size")
    if given is None:
        raise UnsupportedError(f"{n.op_type}: the hidden size must be known, but is {terms}", code="TC1015")
    hidden = int(given)
    layout = n.attr("layout", 0)
    if layout:
        x = n.call("transpose", x, perm=(1, 0, 2))
    length, batch = x.shape[0], x.shape[1]
    lengths = _sequence_lengths(n, length)
    n.graph.state(lambda: _require_sizes(n, kind, count, hidden, batch, lengths, layout), n.span)
    _with_known_sizes(n, kind, count, hidden)
    if lengths is not None and lengths.shape[0] is not batch:
        lengths = n.call("reshape", lengths, shape=(batch,))
    if kind.in_bytes and lengths is not None:
        x = _up_to_longest(n, x, lengths)
    chosen = _activations(n, kind.activations, count)
    all_outputs, last_states = [], []
    for d in range(count):
        backward = direction == "reverse" or d == 1
        one = _direction(n, kind, d, hidden, x, lengths, backward, chosen[d])
        init = [_initial_state(n, 5 + k, d, batch, hidden, layout) for k in range(kind.states)]
        outputs, finals = _run(n, kind, one, length, lengths, init, backward)
        all_outputs.append(outputs)
        last_states.append(finals)
    return _results(n, all_outputs, last_states, layout)


def _up_to_longest(n: NodeContext, x: ModelValue, lengths: ModelValue) -> ModelValue:
    """Zeros behind the longest of the sequences: they are no part of the range of all inputs."""
    steps = n.call("reshape", n.call("range", size=x.shape[0]), shape=(x.shape[0], const(1), const(1)))
    is_there = n.call("less", n.call("cast", steps, dtype=i64), n.call("max", lengths, axes=(0,), keepdims=False))
    return n.call("where", is_there, x, n.const(0, x.dtype))


def _require_sizes(
    n: NodeContext, kind: _Kind, count: int, hidden: int, batch: Expr, lengths: ModelValue | None, layout: int
) -> None:
    """State that every operand has the directions, the gates and the batch of the others."""
    wanted = _sizes_of_weights(n, kind, count, hidden)
    state = (batch, count, hidden) if layout else (count, batch, hidden)
    for k in range(5, 5 + kind.states):
        wanted[k] = state
    if lengths is not None:
        wanted[4] = (batch,)
    for k, shape in wanted.items():
        value = n.optional(k)
        if value is None:
            continue
        if value.rank != len(shape):
            raise ShapeError(f"{n.op_type}: input {k} must have rank {len(shape)}, but is {value.type}")
        for d, (dim, size) in enumerate(zip(value.shape, shape, strict=True)):
            require_equal(dim, as_expr(size), f"{n.op_type}: dim {d} of input {k}")


def _sizes_of_weights(n: NodeContext, kind: _Kind, count: int, hidden: int) -> dict[int, tuple[Expr | int, ...]]:
    """The shapes of W, R, B and P, by the places of inputs."""
    rows = kind.gates * hidden
    terms = {1: n.value(0).shape[2], 2: hidden}
    weights = {k: kind.weights(rows, size, count) for k, size in terms.items()}
    return {**weights, 3: (count, 2 * rows), 7: (count, 3 * hidden)}


def _with_known_sizes(n: NodeContext, kind: _Kind, count: int, hidden: int) -> None:
    """Let the node see weights and biases in the sizes that they must have, where those are not written down."""
    wanted = _sizes_of_weights(n, kind, count, hidden)
    for k, shape in wanted.items():
        value = n.optional(k)
        if value is None:
            continue
        if any(isinstance(size, int) and not is_const(dim) for dim, size in zip(value.shape, shape, strict=True)):
            n.inputs[k] = n.call("reshape", value, shape=tuple(map(as_expr, shape)))


def _results(n: NodeContext, outputs: list[ModelValue], finals: list[list[ModelValue]], layout: int) -> list[ModelValue | None]:
    """Y and the last states, the directions side by side: [t, d, b, h] and [d, b, h], or batch first."""
    results: list[ModelValue | None] = []
    axis = 2 if layout else 1
    if n.has_output(0):
        parts = [n.call("transpose", y, perm=(1, 0, 2)) if layout else y for y in outputs]
        results.append(_concat(n, [n.call("unsqueeze", y, axes=(axis,)) for y in parts], axis))
    else:
        results.append(None)
    axis = 1 if layout else 0
    for k in range(len(finals[0])):
        if n.has_output(1 + k):
            results.append(_concat(n, [n.call("unsqueeze", one[k], axes=(axis,)) for one in finals], axis))
        else:
            results.append(None)
    return results


def _concat(c: Calls, values: list[ModelValue], axis: int) -> ModelValue:
    return values[0] if len(values) == 1 else c.call("concat", *values, axis=axis)


def _sequence_lengths(n: NodeContext, length: Expr) -> ModelValue | None:
    """The lengths of the batch's sequences, i64[b]; None when all are whole."""
    lengths = n.optional(4)
    if lengths is None:
        return None
    known = n.graph.array(lengths)
    if known is not None and is_const(length) and (known == int(length)).all():
        return None
    return n.call("cast", lengths, dtype=i64)


def _activations(n: NodeContext, defaults: Sequence[str], count: int) -> list[tuple[Activation, ...]]:
    """The activations of each direction."""
    names = n.attr("activations") or list(defaults) * count
    if len(names) != len(defaults) * count:
        raise NodeError(f"{n.op_type}: {len(defaults) * count} activations are needed, but there are {len(names)}")
    alphas, betas = list(n.attr("activation_alpha") or []), list(n.attr("activation_beta") or [])
    clip, size = n.attr("clip"), len(defaults)
    made = []
    for place, name in enumerate(names):
        key = name.lower()
        if key not in ACTIVATIONS:
            raise UnsupportedError(f"{n.op_type}: there is no activation {name!r}", code="TC1013", supported=", ".join(ACTIVATIONS))
        alpha, beta = ACTIVATIONS[key]
        if alpha is not None and alphas:
            alpha = alphas.pop(0)
        if beta is not None and betas:
            beta = betas.pop(0)
        is_clipped = n.op_type != "DynamicQuantizeLSTM" or place % size < 2  # onnxruntime, whose operator it is, does not clip cells
        made.append(Activation(key, alpha or 0.0, beta or 0.0, clip if is_clipped else None))
    return [tuple(made[d * size : (d + 1) * size]) for d in range(count)]


def _row(c: Calls, value: ModelValue, index: int) -> ModelValue:
    """value[index]."""
    if is_const(value.shape[0], 1):
        return c.call("squeeze", value, axes=(0,))
    return c.call("gather", value, c.const(index, i64), axis=0, in_range=True)


def _weights(n: NodeContext, kind: _Kind, index: int, d: int) -> _Weights:
    """Those of input `index` for a direction; if of bytes with the scales and zero points of inputs 8 to 11."""
    matrix = _row(n, n.value(index), d)
    if not kind.in_bytes:
        return _Weights(n.call("transpose", matrix, perm=(1, 0)))
    place = 6 + 2 * index
    zero = n.optional(place + 1)
    return _Weights(matrix, _row(n, n.value(place), d), None if zero is None else _row(n, zero, d))


def _direction(
    n: NodeContext,
    kind: _Kind,
    d: int,
    hidden: int,
    x: ModelValue,
    lengths: ModelValue | None,
    backward: bool,
    activations: tuple[Activation, ...],
) -> _Direction:
    if backward and lengths is not None:
        x = n.call("reverse_sequence", x, lengths, time_axis=0, batch_axis=1)
    projected = _weights(n, kind, 1, d).product(n, x)
    bias = n.optional(3)
    hidden_bias = None
    if bias is not None:
        row = _row(n, bias, d)
        size = kind.gates * hidden
        inputs, recurrent = n.part(row, -1, 0, size), n.part(row, -1, size, size)
        if kind is _GRU and n.attr("linear_before_reset", 0):
            hidden_bias = n.part(recurrent, -1, 2 * hidden, hidden)
            zeros = n.call("mul", hidden_bias, n.const(0, hidden_bias.dtype))
            recurrent = n.call("concat", n.part(recurrent, -1, 0, 2 * hidden), zeros, axis=0)
        projected = n.call("add", projected, n.call("add", inputs, recurrent))
    peepholes: tuple[ModelValue, ...] = ()
    weights = n.optional(7) if kind.name == "LSTM" else None
    if weights is not None:
        row = _row(n, weights, d)
        peepholes = tuple(n.part(row, -1, k * hidden, hidden) for k in range(3))
    return _Direction(projected, _weights(n, kind, 2, d), hidden_bias, peepholes, activations, hidden)


def _initial_state(n: NodeContext, index: int, d: int, batch: Expr, hidden: int, layout: int) -> ModelValue:
    state = n.optional(index)
    if state is None:
        zero = n.const(0, n.value(0).dtype)
        return n.call("expand", zero, shape=(as_expr(batch), const(hidden)))
    if state.rank != 3:
        raise ShapeError(f"{n.op_type}: an initial state must have rank 3, but is {state.type}")
    if layout:
        state = n.call("transpose", state, perm=(1, 0, 2))
    row = _row(n, state, d)
    return row if row.shape[0] is batch else n.call("reshape", row, shape=(as_expr(batch), const(hidden)))


def _run(
    n: NodeContext, kind: _Kind, one: _Direction, length: Expr, lengths: ModelValue | None, init: list[ModelValue], backward: bool
) -> tuple[ModelValue, list[ModelValue]]:
    """All outputs [t, b, h] in the order of the input, and the last states."""
    flipped = backward and lengths is None

    def step(c: Calls, i: ModelValue, states: list[ModelValue]) -> tuple[None, list[ModelValue], list[ModelValue]]:
        index = c.call("sub", last, i) if flipped else i
        seen = states
        if kind.in_bytes and lengths is not None:  # a sequence that has ended is no part of the range
            goes_on = c.call("unsqueeze", c.call("less_equal", i, lengths), axes=(1,))
            seen = [c.call("where", goes_on, states[0], c.const(0, states[0].dtype)), *states[1:]]
        new = _STEPS[kind.name](c, n, one, c.call("gather", one.projected, index, axis=0, in_range=True), seen)
        if lengths is None:
            return None, new, new[:1]
        alive = c.call("unsqueeze", c.call("less", i, lengths), axes=(1,))
        kept = [c.call("where", alive, a, b) for a, b in zip(new, states, strict=True)]
        return None, kept, [c.call("where", alive, new[0], c.const(0, new[0].dtype))]

    if is_const(length, 1) and lengths is None:
        states = _STEPS[kind.name](n, n, one, n.call("squeeze", one.projected, axes=(0,)), init)
        return n.call("unsqueeze", states[0], axes=(0,)), states
    last = size_value(length - 1)
    *states, outputs = bind_loop(n, length, None, init, step, f"{n.place_here}/step")
    if flipped:
        outputs = flip(n, outputs, 0)
    elif backward and lengths is not None:
        outputs = n.call("reverse_sequence", outputs, lengths, time_axis=0, batch_axis=1)
    return outputs, states


def _gates(c: Calls, x: ModelValue, count: int, hidden: int) -> list[ModelValue]:
    return [c.part(x, -1, k * hidden, hidden) for k in range(count)]


def _rnn_step(c: Calls, n: NodeContext, one: _Direction, x: ModelValue, states: list[ModelValue]) -> list[ModelValue]:
    """h = f(x + h R)"""
    return [one.activations[0].apply(c, c.call("add", x, one.recurrent.product(c, states[0])))]


def _gru_step(c: Calls, n: NodeContext, one: _Direction, x: ModelValue, states: list[ModelValue]) -> list[ModelValue]:
    """z, r = f(x + h R); n = g(x + r * (h R + b)), or g(x + (r * h) R); h = (1 - z) * n + z * h"""
    (h,), size = states, one.hidden
    f, g = one.activations
    xz, xr, xh = _gates(c, x, 3, size)
    if n.attr("linear_before_reset", 0):
        hz, hr, hh = _gates(c, one.recurrent.product(c, h), 3, size)
        z, r = f.apply(c, c.call("add", xz, hz)), f.apply(c, c.call("add", xr, hr))
        inner = hh if one.hidden_bias is None else c.call("add", hh, one.hidden_bias)
        new = g.apply(c, c.call("add", xh, c.call("mul", r, inner)))
    else:
        zr = one.recurrent.part(c, 0, 2 * size).product(c, h)
        hz, hr = _gates(c, zr, 2, size)
        z, r = f.apply(c, c.call("add", xz, hz)), f.apply(c, c.call("add", xr, hr))
        inner = one.recurrent.part(c, 2 * size, size).product(c, c.call("mul", r, h))
        new = g.apply(c, c.call("add", xh, inner))
    keep = c.call("sub", c.const(1, z.dtype), z)
    return [c.call("add", c.call("mul", keep, new), c.call("mul", z, h))]


def _lstm_step(c: Calls, n: NodeContext, one: _Direction, x: ModelValue, states: list[ModelValue]) -> list[ModelValue]:
    """i, o, f, c~ = gates; c = f * c + i * c~; h = o * h(c). Peepholes add p * c to i and f, p * (new c) to o."""
    h, cell = states
    f, g, last = one.activations
    xi, xo, xf, xc = _gates(c, c.call("add", x, one.recurrent.product(c, h)), 4, one.hidden)
    if one.peepholes:
        xi = c.call("add", xi, c.call("mul", one.peepholes[0], cell))
        xf = c.call("add", xf, c.call("mul", one.peepholes[2], cell))
    i = f.apply(c, xi)
    forget = c.call("sub", c.const(1, i.dtype), i) if n.attr("input_forget", 0) else f.apply(c, xf)
    cell = c.call("add", c.call("mul", forget, cell), c.call("mul", i, g.apply(c, xc)))
    if one.peepholes:
        xo = c.call("add", xo, c.call("mul", one.peepholes[1], cell))
    return [c.call("mul", f.apply(c, xo), last.apply(c, cell)), cell]


_STEPS = {"RNN": _rnn_step, "GRU": _gru_step, "LSTM": _lstm_step}
