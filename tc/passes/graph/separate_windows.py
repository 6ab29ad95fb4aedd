"""The maximum of a wide window is that of its columns' maxima: a row of which is found once for all windows that it is part of."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tc.ir.dtype import f32
from tc.ir.expr import Const, Expr
from tc.ir.graph import Atom
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.ops.registry import get_op
from tc.ops.window import Window, window_of
from tc.passes.graph.rewrite import GraphRule, Match, any_, op, rewrite_module
from tc.passes.manager import graph_pass

PASS_TAPS = 2
"""Taps that take as long as to store a vector and to load it again."""


@graph_pass
def separate_windows(module: IRModule) -> IRModule:
    """Pool along all axes but the last, then along that, where this is less to do; see POOL_RULES.

    Of layouts whose last axis is a block of channels nothing is pooled along the last axis.
    """
    return rewrite_module(module, POOL_RULES)


def _window(m: Match) -> Window:
    attrs = get_op("max_pool").attrs(m.call("pool").attrs)
    return window_of(attrs, attrs.kernel, m.type_of("x").rank - 2, "max_pool")


def _sizes(kernel: Sequence[Expr | int]) -> list[int] | None:
    sizes = [size.value if isinstance(size, Const) else size for size in kernel]
    return [int(size) for size in sizes] if all(isinstance(size, int) for size in sizes) else None


def _is_less(m: Match) -> bool:
    """Whether there is less to do for a vector of the result: taps of an axis with a stride are put together of more than one load."""
    window = _window(m)
    sizes = _sizes(window.kernel)
    if sizes is None or len(sizes) < 2:
        return False
    *across, along = sizes
    stride = window.strides[-1]
    shuffled = 1.0 if stride == 1 else 1.0 + stride / 2
    return along > 1 and stride * (prod(across) + PASS_TAPS) + (along + PASS_TAPS) * shuffled < prod(sizes) * shuffled


def _in_two(b: GraphBuilder, m: Match) -> Atom:
    call, window = m.call("pool"), _window(m)
    attrs, last = dict(call.attrs), len(window.kernel) - 1

    def along(axes: Sequence[int]) -> dict[str, Any]:
        def of(values: Sequence[Expr | int], none: int) -> tuple[Expr | int, ...]:
            return tuple(value if d in axes else none for d, value in enumerate(values))

        steps = {"strides": of(window.strides, 1), "dilations": of(window.dilations, 1)}
        return {**attrs, "kernel": of(window.kernel, 1), "pads": (*of(window.begin, 0), *of(window.end, 0)), **steps}

    columns = b.call("max_pool", m.x, span=call.span, **along(range(last)))
    return b.call("max_pool", columns, span=call.span, **along([last]))


POOL_RULES = (
    GraphRule(
        "maxima of columns, then of rows",
        op("max_pool", any_("x"), name="pool"),
        _in_two,
        when=_is_less,
        example=lambda b: b.call(
            "max_pool", b.param("x", tensor_type((2, 3, 9, 8), f32)), kernel=(5, 4), pads=(2, 1, 2, 2), strides=(1, 2), ceil_mode=True
        ),
    ),
)
