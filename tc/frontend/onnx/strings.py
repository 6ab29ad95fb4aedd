"""Operators on tensors of strings.

A string is a number in the table of the call, and equal strings have equal numbers: what only moves or compares strings does so with
numbers. What looks into them runs on ONNX's reference implementation (`fallback`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tc.frontend.onnx.values import AnyValue, ModelValue, StringsValue

MOVING = frozenset(
    (
        *("Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad"),
        *("Reshape", "ReverseSequence", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile"),
        *("Transpose", "Unsqueeze", "Where"),
    )
)
"""Their results are elements of their operands, or the empty string, whose number is 0."""
ASKING = frozenset(("Equal", "Shape", "Size"))
"""Their results depend on which strings are equal, or on no strings at all."""


def take_numbers(n: Any) -> list[AnyValue | None] | None:
    """Put the numbers of strings in the place of a node's operands, where it works on them alike; returns the operands as they were, or
    None where nothing was to do. `n` is a NodeContext."""
    if n.domain or n.op_type not in MOVING | ASKING or not any(isinstance(v, StringsValue) for v in n.inputs):
        return None
    if n.attr("reduction", "none") != "none":
        return None
    given = list(n.inputs)
    n.inputs = [value.numbers if isinstance(value, StringsValue) else value for value in given]
    return given


def as_strings(n: Any, results: Any) -> Any:
    """The results of a node on numbers of strings."""
    if n.op_type in ASKING:
        return results
    found = results if isinstance(results, Sequence) else [results]
    return [StringsValue(value) if isinstance(value, ModelValue) else value for value in found]
