"""Operators: one `OpDef` record each, in a registry. Importing this package fills it."""

from tc.ops import (
    attention,
    blocked,
    elementwise,
    index,
    linear,
    norm,
    pool,
    quantize,
    reduce,
    resize,
    scan,
    shape,
    source,
    view,
    window,
    winograd,
)

__all__ = [
    "attention",
    "blocked",
    "elementwise",
    "index",
    "linear",
    "norm",
    "pool",
    "quantize",
    "reduce",
    "resize",
    "scan",
    "shape",
    "source",
    "view",
    "window",
    "winograd",
]
