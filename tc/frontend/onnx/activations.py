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


_FUSED = {"selu": (1.67326319217681884765625, 1.05070102214813232421875), "clip": (-3.402823466e38, 3.402823466e38)}


def fused_activation(n: NodeContext, x: ModelValue, name: str | None, given: list[float]) -> ModelValue:
    """x, or what an operator that a node names makes of it; given: its numbers, of which the last ones may be missing."""
    if not name:
        return x
    key = name.lower()
    if key in _FUSED:
        first, second = (*given[:2], *_FUSED[key][len(given[:2]) :])
        if key == "clip":
            return n.call("clip", x, n.const(first, x.dtype), n.const(second, x.dtype))
        return n.call("selu", x, alpha=first, gamma=second)
    if key not in ACTIVATIONS:
        raise UnsupportedError(f"{n.op_type}: there is no activation {name!r}", code="TC1013", supported=", ".join(ACTIVATIONS))
    alpha, beta = (number if number is None or place >= len(given) else given[place] for place, number in enumerate(ACTIVATIONS[key]))
    return Activation(key, alpha or 0.0, beta or 0.0, None).apply(n, x)
