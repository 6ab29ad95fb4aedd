"""The activations that recurrent and fused operators name."""

from __future__ import annotations

from dataclasses import dataclass

from tc.errors import UnsupportedError
from tc.frontend.onnx.node_context import Calls, NodeContext
from tc.frontend.onnx.values import ModelValue

# Name -> default alpha and beta; None when the activation has none.
ACTIVATIONS: dict[str, tuple[float | None, float | None]] = {
    "relu": (None, None),
    "tanh": (None, None),
    "sigmoid": (None, None),
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (1.0, None),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
    "softsign": (None, None),
    "softplus": (None, None),
}


@dataclass(frozen=True)
class Activation:
    """One of ONNX's recurrent activations, its input clipped to +-`clip`."""

    name: str
    alpha: float
    beta: float
    clip: float | None

    def apply(self, c: Calls, x: ModelValue) -> ModelValue:
        if self.clip is not None:
            x = c.call("clip", x, c.const(-self.clip, x.dtype), c.const(self.clip, x.dtype))
        alpha, beta = c.const(self.alpha, x.dtype), c.const(self.beta, x.dtype)
        match self.name:
            case "affine":
                return c.call("add", c.call("mul", x, alpha), beta)
            case "leakyrelu":
                return c.call("leaky_relu", x, alpha=self.alpha)
            case "thresholdedrelu":
                return c.call("thresholded_relu", x, alpha=self.alpha)
            case "scaledtanh":
                return c.call("mul", c.call("tanh", c.call("mul", x, beta)), alpha)
            case "hardsigmoid":
                return c.call("hard_sigmoid", x, alpha=self.alpha, beta=self.beta)
            case "elu":
                return c.call("elu", x, alpha=self.alpha)
        return c.call(self.name, x)


# Of fused operators alone. Name -> what its numbers are where a node has none.
_FUSED: dict[str, tuple[float, ...]] = {
    "selu": (1.67326319217681884765625, 1.05070102214813232421875),
    "clip": (-3.402823466e38, 3.402823466e38),
    "celu": (1.0,),
    "parametricsoftplus": (1.0, 1.0),
    "hardswish": (),
}


def fused_activation(n: NodeContext, x: ModelValue, name: str | None, given: list[float]) -> ModelValue:
    """x, or what an operator that a node names makes of it; given: its numbers, of which the last ones may be missing."""
    if not name:
        return x
    key = name.lower()
    if key in _FUSED:
        count = len(_FUSED[key])
        return _fused(n, x, key, *given[:count], *_FUSED[key][len(given[:count]) :])
    if key not in ACTIVATIONS:
        supported = ", ".join((*ACTIVATIONS, *_FUSED))
        raise UnsupportedError(f"{n.op_type}: there is no activation {name!r}", code="TC1013", supported=supported)
    alpha, beta = (number if number is None or place >= len(given) else given[place] for place, number in enumerate(ACTIVATIONS[key]))
    return Activation(key, alpha or 0.0, beta or 0.0, None).apply(n, x)


def _fused(n: NodeContext, x: ModelValue, key: str, *numbers: float) -> ModelValue:
    match key:
        case "selu":
            return n.call("selu", x, alpha=numbers[0], gamma=numbers[1])
        case "clip":
            return n.call("clip", x, *(n.const(number, x.dtype) for number in numbers))
        case "celu":
            return n.call("celu", x, alpha=numbers[0])
        case "parametricsoftplus":  # alpha * log(1 + exp(beta * x))
            factor, steepness = (n.const(number, x.dtype) for number in numbers)
            return n.call("mul", n.call("softplus", n.call("mul", x, steepness)), factor)
    return n.call("hard_swish", x)
