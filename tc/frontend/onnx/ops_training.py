"""Operators of ONNX that train: normalization with the statistics of a batch, and the steps of optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tc.errors import NodeError, ShapeError, UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.values import ModelValue
from tc.ir.dtype import DType, f64

TRAINING = "ai.onnx.preview.training"


def batch_norm_of_batch(n: NodeContext) -> NodeResult:
    """Normalization by the mean and variance of the batch, and what running means and variances become."""
    if n.opset < 14:
        raise UnsupportedError("BatchNormalization in training mode", code="TC1019")
    x, scale, bias, *running = n.values()
    wide = n.widened(x)
    if x.rank < 2:
        raise ShapeError(f"BatchNormalization: the input must be [n, c, *space], found {x.type}")
    axes = tuple(d for d in range(x.rank) if d != 1)
    mean = n.call("mean", wide, axes=axes, keepdims=True)
    of_batch = [n.call("reshape", mean, shape=(x.shape[1],))]
    centred = n.call("sub", wide, mean)
    of_batch.append(n.call("mean", n.call("mul", centred, centred), axes=axes, keepdims=False))
    momentum = n.attr("momentum", 0.9)
    found = []
    for old, new in zip(running, of_batch, strict=True):
        kept = n.widened(old)
        own = n.call("mul", n.cast(new, kept.dtype), n.const(1.0 - momentum, kept.dtype))
        found.append(n.cast(n.call("add", n.call("mul", kept, n.const(momentum, kept.dtype)), own), old.dtype))
    return [n.call("batch_norm", x, scale, bias, *of_batch, epsilon=n.attr("epsilon", 1e-5)), *found]


def _scalar(n: NodeContext, value: ModelValue, dtype: DType) -> ModelValue:
    value = n.call("reshape", value, shape=()) if value.rank else value
    return value if value.dtype == dtype else n.call("cast", value, dtype=dtype)


def _each(n: NodeContext, states: int, step: Callable[..., Sequence[ModelValue]]) -> NodeResult:
    """Rate, count of updates, then tensors, their gradients and `states` more for each; the results are new tensors, then new states."""
    rate, count, *rest = n.values()
    total, left = divmod(len(rest), 2 + states)
    if left or not total:
        raise NodeError(f"{n.op_type}: {len(rest)} tensors; each tensor has a gradient and {states} states")
    found = [step(rate, count, *rest[k::total]) for k in range(total)]
    return [tensor for kind in zip(*found, strict=True) for tensor in kind]


def _regularized(n: NodeContext, x: ModelValue, gradient: ModelValue) -> ModelValue:
    return n.call("add", n.call("mul", n.const(n.attr("norm_coefficient", 0.0), x.dtype), x), gradient)


@onnx_op("Adagrad", domain=TRAINING)
def import_adagrad(n: NodeContext) -> NodeResult:
    """Duchi, Hazan and Singer, 2011."""

    def step(rate: ModelValue, count: ModelValue, x: ModelValue, gradient: ModelValue, squares: ModelValue) -> Sequence[ModelValue]:
        wide = _scalar(n, rate, f64)
        decayed = n.call("add", n.const(1, f64), n.call("mul", _scalar(n, count, f64), n.const(n.attr("decay_factor", 0.0), f64)))
        own_rate = _scalar(n, n.call("div", wide, decayed), x.dtype)
        gradient = _regularized(n, x, gradient)
        squares = n.call("add", squares, n.call("mul", gradient, gradient))
        root = n.call("add", n.call("sqrt", squares), n.const(n.attr("epsilon", 0.0), x.dtype))
        return n.call("sub", x, n.call("div", n.call("mul", own_rate, gradient), root)), squares

    return _each(n, 1, step)


@onnx_op("Adam", domain=TRAINING)
def import_adam(n: NodeContext) -> NodeResult:
    """Kingma and Ba, 2015; the rate is corrected for the first steps."""
    alpha, beta = n.attr("alpha", 0.9), n.attr("beta", 0.999)

    def step(
        rate: ModelValue, count: ModelValue, x: ModelValue, gradient: ModelValue, mean: ModelValue, squares: ModelValue
    ) -> Sequence[ModelValue]:
        def blend(old: ModelValue, factor: float, new: ModelValue) -> ModelValue:
            return n.call("add", n.call("mul", n.const(factor, x.dtype), old), n.call("mul", n.const(1 - factor, x.dtype), new))

        def left(factor: float) -> ModelValue:
            return n.call("sub", n.const(1, f64), n.call("pow", n.const(factor, f64), steps))

        gradient = _regularized(n, x, gradient)
        mean, squares = blend(mean, alpha, gradient), blend(squares, beta, n.call("mul", gradient, gradient))
        root = n.call("add", n.call("sqrt", squares), n.const(n.attr("epsilon", 0.0), x.dtype))
        wide, steps = _scalar(n, rate, f64), _scalar(n, count, f64)
        corrected = n.call("div", n.call("mul", wide, n.call("sqrt", left(beta))), left(alpha))
        own_rate = _scalar(n, n.call("where", n.call("greater", steps, n.const(0, f64)), corrected, wide), x.dtype)
        moved = n.call("sub", x, n.call("mul", own_rate, n.call("div", mean, root)))
        return n.call("mul", n.const(1 - n.attr("norm_coefficient_post", 0.0), x.dtype), moved), mean, squares

    return _each(n, 2, step)


@onnx_op("Momentum", domain=TRAINING)
def import_momentum(n: NodeContext) -> NodeResult:
    """Gradient descent with momentum, standard or Nesterov's."""
    mode = n.attr("mode")
    if mode not in ("standard", "nesterov"):
        raise NodeError(f"Momentum: there is no mode {mode!r}")

    def step(rate: ModelValue, count: ModelValue, x: ModelValue, gradient: ModelValue, velocity: ModelValue) -> Sequence[ModelValue]:
        dtype = x.dtype
        alpha, beta, one = n.const(n.attr("alpha"), dtype), n.const(n.attr("beta"), dtype), n.const(1, dtype)
        gradient = _regularized(n, x, gradient)
        factor = n.call("where", n.call("greater", _scalar(n, count, f64), n.const(0, f64)), beta, one)
        velocity = n.call("add", n.call("mul", alpha, velocity), n.call("mul", factor, gradient))
        way = velocity if mode == "standard" else n.call("add", gradient, n.call("mul", alpha, velocity))
        return n.call("sub", x, n.call("mul", _scalar(n, rate, dtype), way)), velocity

    return _each(n, 1, step)
