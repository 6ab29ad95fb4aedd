"""Intrinsics as loops while loop passes run, and as instructions where code is emitted.

A loop pass knows what loops touch; so a call is its loops from lowering on, the outermost marked with the instruction's name. What the
passes have made of the loops becomes the instruction again where the machine has it and they still are its loops.
"""

from __future__ import annotations

from collections.abc import Iterable

from tc.ir.arith import Facts
from tc.ir.hints import LoopHints
from tc.ir.intrinsic import INTRINSICS, perfect_nest
from tc.ir.loop import For, IntrinsicCall, PrimFunc, is_statement
from tc.ir.node import Node, replace, transform
from tc.passes.manager import loop_pass


@loop_pass
def expand_intrinsics(func: PrimFunc) -> PrimFunc:
    """Replace every intrinsic by the loops it stands for, the outermost of them marked with its name."""

    def expand(node: Node) -> Node | None:
        if not isinstance(node, IntrinsicCall) or node.name not in INTRINSICS:
            return None
        loops = INTRINSICS[node.name].expand(node.operands)
        return replace(loops, hints=LoopHints(intrinsic=node.name))

    return replace(func, body=transform(func.body, expand, is_statement))


def select_intrinsics(func: PrimFunc, features: Iterable[str]) -> PrimFunc:
    """Replace marked loops by the instruction where a machine with `features` has it, and the loops still are its own."""
    facts = Facts.of(func.facts)
    present = frozenset(features)

    def select(node: Node) -> Node | None:
        intrinsic = INTRINSICS.get(node.hints.intrinsic) if isinstance(node, For) else None
        if intrinsic is None or not intrinsic.is_there(present):
            return None
        loops, body = perfect_nest(node)  # type: ignore[arg-type]
        operands = intrinsic.match(loops, body, facts)
        return None if isinstance(operands, str) else IntrinsicCall(intrinsic.name, operands)

    return replace(func, body=transform(func.body, select, is_statement))
