"""Operators: one `OpDef` record each, in a registry. Importing this package fills it."""

from tc.ops import (
    attention,
    blocked,
    elementwise,
    index,
    linear,
    norm,
    quantize,
    reduce,
    resize,
    shape,
    window,
    winograd,
)

__all__ = ["attention", "blocked", "elementwise", "index", "linear", "norm", "quantize", "reduce", "resize", "shape", "window", "winograd"]
