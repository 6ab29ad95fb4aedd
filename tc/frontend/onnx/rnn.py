"""RNN, GRU and LSTM: the products with the inputs as one matmul over all steps, then a loop over a step.

Shapes, for `layout` 0: X [t, b, i], W [d, g*h, i], R [d, g*h, h], B [d, 2*g*h], states [d, b, h], Y [t, d, b, h]; `d`
is the number of directions, `g` the number of gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tc.errors import ModelError, ShapeError, UnsupportedError
from tc.frontend.onnx.activations import ACTIVATIONS, Activation
from tc.frontend.onnx.control_flow import bind_loop, flip
from tc.frontend.onnx.node_context import Calls, NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.size_elements import make_elements
from tc.frontend.onnx.values import ModelValue, elements_value
from tc.ir.dtype import i64
from tc.ir.expr import Expr, as_expr, const, is_const
from tc.ops.common import require_equal


@dataclass(frozen=True)
class _Direction:
    """One direction of a recurrent node: its weights, transposed for `x @ w`, and how it runs.

    projected: X W^T plus the biases that may be added before the loop, [t, b, g*h].
    """

    projected: ModelValue
    recurrent: ModelValue  # [h, g*h]
    hidden_bias: ModelValue | None  # [h], of a GRU with linear_before_reset
    peepholes: tuple[ModelValue, ...]
    activations: tuple[Activation, ...]
    hidden: int


@onnx_op("RNN", since=7)
def import_rnn(n: NodeContext) -> NodeResult:
    return _recurrent(n, gates=1, states=1, activations=("Tanh",))


@onnx_op("GRU", since=7)
def import_gru(n: NodeContext) -> NodeResult:
    return _recurrent(n, gates=3, states=1, activations=("Sigmoid", "Tanh"))


@onnx_op("LSTM", since=7)
def import_lstm(n: NodeContext) -> NodeResult:
    return _recurrent(n, gates=4, states=2, activations=("Sigmoid", "Tanh", "Tanh"))


def _recurrent(n: NodeContext, gates: int, states: int, activations: Sequence[str]) -> NodeResult:
    x, w, r = n.value(0), n.value(1), n.value(2)
    direction = n.attr("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise ModelError(f"{n.op_type}: there is no direction {direction!r}")
    count = 2 if direction == "bidirectional" else 1
    for value, rank, what in ((x, 3, "X"), (w, 3, "W"), (r, 3, "R")):
        if value.rank != rank:
            raise ShapeError(f"{n.op_type}: {what} must have rank {rank}, but is {value.type}")
    given = r.shape[2] if is_const(r.shape[2]) else n.attr("hidden_size")
    if given is None:
        raise UnsupportedError(f"{n.op_type}: the hidden size must be known, but is {r.shape[2]}")
    hidden = int(given)
    layout = n.attr("layout", 0)
    if layout:
        x = n.call("transpose", x, perm=(1, 0, 2))
    length, batch = x.shape[0], x.shape[1]
    lengths = _sequence_lengths(n, length)
    n.graph.state(lambda: _require_sizes(n, count, gates, hidden, batch, lengths, layout), n.span)
    _with_known_sizes(n, count, gates, hidden)
    chosen = _activations(n, activations, count)
    all_outputs, last_states = [], []
    for d in range(count):
        backward = direction == "reverse" or d == 1
        one = _direction(n, d, gates, hidden, x, lengths, backward, chosen[d])
        init = [_initial_state(n, 5 + k, d, batch, hidden, layout) for k in range(states)]
        outputs, finals = _run(n, one, length, lengths, init, backward)
        all_outputs.append(outputs)
        last_states.append(finals)
    return _results(n, all_outputs, last_states, layout)


def _require_sizes(
    n: NodeContext, count: int, gates: int, hidden: int, batch: Expr, lengths: ModelValue | None, layout: int
) -> None:
    """State that every operand has the directions, the gates and the batch of the others."""
    wanted: dict[int, tuple[Expr | int, ...]] = {
        1: (count, gates * hidden, n.value(0).shape[2]),
        2: (count, gates * hidden, hidden),
        3: (count, 2 * gates * hidden),
        7: (count, 3 * hidden),
    }
    state = (batch, count, hidden) if layout else (count, batch, hidden)
    for k in range(5, 6 + (n.op_type == "LSTM")):
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


def _with_known_sizes(n: NodeContext, count: int, gates: int, hidden: int) -> None:
    """Let the node see weights and biases in the sizes that they must have, where those are not written down."""
    rows = gates * hidden
    wanted = {1: (count, rows, n.value(0).shape[2]), 2: (count, rows, hidden), 3: (count, 2 * rows), 7: (count, 3 * hidden)}
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
        raise ModelError(f"{n.op_type}: {len(defaults) * count} activations are needed, but there are {len(names)}")
    alphas, betas = list(n.attr("activation_alpha") or []), list(n.attr("activation_beta") or [])
    clip = n.attr("clip")
    made = []
    for name in names:
        key = name.lower()
        if key not in ACTIVATIONS:
            raise UnsupportedError(f"{n.op_type}: there is no activation {name!r}")
        alpha, beta = ACTIVATIONS[key]
        if alpha is not None and alphas:
            alpha = alphas.pop(0)
        if beta is not None and betas:
            beta = betas.pop(0)
        made.append(Activation(key, alpha or 0.0, beta or 0.0, clip))
    size = len(defaults)
    return [tuple(made[d * size : (d + 1) * size]) for d in range(count)]


def _row(c: Calls, value: ModelValue, index: int) -> ModelValue:
    """value[index]."""
    if is_const(value.shape[0], 1):
        return c.call("squeeze", value, axes=(0,))
    return c.call("gather", value, c.const(index, i64), axis=0, in_range=True)


def _part(c: Calls, value: ModelValue, start: int, size: int, axis: int = -1) -> ModelValue:
    """`size` elements from `start` of one axis."""
    axis %= value.rank
    starts = tuple(const(start if d == axis else 0) for d in range(value.rank))
    sizes = tuple(const(size) if d == axis else dim for d, dim in enumerate(value.shape))
    return c.call("slice", value, starts=starts, sizes=sizes, steps=(1,) * value.rank)


def _direction(
    n: NodeContext,
    d: int,
    gates: int,
    hidden: int,
    x: ModelValue,
    lengths: ModelValue | None,
    backward: bool,
    activations: tuple[Activation, ...],
) -> _Direction:
    if backward and lengths is not None:
        x = n.call("reverse_sequence", x, lengths, time_axis=0, batch_axis=1)
    w = n.call("transpose", _row(n, n.value(1), d), perm=(1, 0))
    r = n.call("transpose", _row(n, n.value(2), d), perm=(1, 0))
    projected = n.call("matmul", x, w)
    bias = n.optional(3)
    hidden_bias = None
    if bias is not None:
        row = _row(n, bias, d)
        size = gates * hidden
        inputs, recurrent = _part(n, row, 0, size), _part(n, row, size, size)
        if n.op_type == "GRU" and n.attr("linear_before_reset", 0):
            hidden_bias = _part(n, recurrent, 2 * hidden, hidden)
            zeros = n.call("mul", hidden_bias, n.const(0, hidden_bias.dtype))
            recurrent = n.call("concat", _part(n, recurrent, 0, 2 * hidden), zeros, axis=0)
        projected = n.call("add", projected, n.call("add", inputs, recurrent))
    peepholes: tuple[ModelValue, ...] = ()
    weights = n.optional(7) if n.op_type == "LSTM" else None
    if weights is not None:
        row = _row(n, weights, d)
        peepholes = tuple(_part(n, row, k * hidden, hidden) for k in range(3))
    return _Direction(projected, r, hidden_bias, peepholes, activations, hidden)


def _initial_state(n: NodeContext, index: int, d: int, batch: Expr, hidden: int, layout: int) -> ModelValue:
    state = n.optional(index)
    if state is None:
        zero = n.const(0, n.value(0).dtype)
        return n.call("expand", zero, shape=(as_expr(batch), const(hidden)))
    if state.rank != 3:
        raise ShapeError(f"{n.op_type}: an initial state must have rank 3, but is {state.type}")
    if layout:
        state = n.call("transpose", state, perm=(1, 0, 2))
    return _row(n, state, d)


def _run(
    n: NodeContext, one: _Direction, length: Expr, lengths: ModelValue | None, init: list[ModelValue], backward: bool
) -> tuple[ModelValue, list[ModelValue]]:
    """All outputs [t, b, h] in the order of the input, and the last states."""
    flipped = backward and lengths is None

    def step(c: Calls, i: ModelValue, states: list[ModelValue]) -> tuple[None, list[ModelValue], list[ModelValue]]:
        index = c.call("sub", last, i) if flipped else i
        new = _STEPS[n.op_type](c, n, one, c.call("gather", one.projected, index, axis=0, in_range=True), states)
        if lengths is None:
            return None, new, new[:1]
        alive = c.call("unsqueeze", c.call("less", i, lengths), axes=(1,))
        kept = [c.call("where", alive, a, b) for a, b in zip(new, states, strict=True)]
        return None, kept, [c.call("where", alive, new[0], c.const(0, new[0].dtype))]

    if is_const(length, 1) and lengths is None:
        states = _STEPS[n.op_type](n, n, one, n.call("squeeze", one.projected, axes=(0,)), init)
        return n.call("unsqueeze", states[0], axes=(0,)), states
    last = _as_value(length - 1)
    *states, outputs = bind_loop(n, length, None, init, step, f"{n.place_here}/step")
    if flipped:
        outputs = flip(n, outputs, 0)
    elif backward and lengths is not None:
        outputs = n.call("reverse_sequence", outputs, lengths, time_axis=0, batch_axis=1)
    return outputs, states


def _as_value(expr: Expr) -> ModelValue:
    """A dim as an i64 scalar."""
    return elements_value(make_elements([expr], ()), i64)


def _gates(c: Calls, x: ModelValue, count: int, hidden: int) -> list[ModelValue]:
    return [_part(c, x, k * hidden, hidden) for k in range(count)]


def _rnn_step(c: Calls, n: NodeContext, one: _Direction, x: ModelValue, states: list[ModelValue]) -> list[ModelValue]:
    """h = f(x + h R)"""
    return [one.activations[0].apply(c, c.call("add", x, c.call("matmul", states[0], one.recurrent)))]


def _gru_step(c: Calls, n: NodeContext, one: _Direction, x: ModelValue, states: list[ModelValue]) -> list[ModelValue]:
    """z, r = f(x + h R); n = g(x + r * (h R + b)), or g(x + (r * h) R); h = (1 - z) * n + z * h"""
    (h,), size = states, one.hidden
    f, g = one.activations
    xz, xr, xh = _gates(c, x, 3, size)
    if n.attr("linear_before_reset", 0):
        hz, hr, hh = _gates(c, c.call("matmul", h, one.recurrent), 3, size)
        z, r = f.apply(c, c.call("add", xz, hz)), f.apply(c, c.call("add", xr, hr))
        inner = hh if one.hidden_bias is None else c.call("add", hh, one.hidden_bias)
        new = g.apply(c, c.call("add", xh, c.call("mul", r, inner)))
    else:
        zr = c.call("matmul", h, _part(c, one.recurrent, 0, 2 * size))
        hz, hr = _gates(c, zr, 2, size)
        z, r = f.apply(c, c.call("add", xz, hz)), f.apply(c, c.call("add", xr, hr))
        inner = c.call("matmul", c.call("mul", r, h), _part(c, one.recurrent, 2 * size, size))
        new = g.apply(c, c.call("add", xh, inner))
    keep = c.call("sub", c.const(1, z.dtype), z)
    return [c.call("add", c.call("mul", keep, new), c.call("mul", z, h))]


def _lstm_step(c: Calls, n: NodeContext, one: _Direction, x: ModelValue, states: list[ModelValue]) -> list[ModelValue]:
    """i, o, f, c~ = gates; c = f * c + i * c~; h = o * h(c). Peepholes add p * c to i and f, p * (new c) to o."""
    h, cell = states
    f, g, last = one.activations
    xi, xo, xf, xc = _gates(c, c.call("add", x, c.call("matmul", h, one.recurrent)), 4, one.hidden)
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
