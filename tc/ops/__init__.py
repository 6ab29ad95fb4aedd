"""Operators: one `OpDef` record each, in a registry. Importing this package fills it."""

from tc.ops import blocked, elementwise, index, linear, norm, quantize, reduce, resize, shape, window

__all__ = ["blocked", "elementwise", "index", "linear", "norm", "quantize", "reduce", "resize", "shape", "window"]
