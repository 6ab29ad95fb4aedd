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
from tc.ir.loop_intrinsics import LOOP_INTRINSICS
from tc.ir.node import Node, replace, transform
from tc.passes.manager import loop_pass


@loop_pass
def expand_intrinsics(func: PrimFunc) -> PrimFunc:
    """Replace every intrinsic by the loops it stands for, the outermost of them marked with its name; those that do nothing stay."""

    def expand(node: Node) -> Node | None:
        if not isinstance(node, IntrinsicCall) or node.name not in INTRINSICS or INTRINSICS[node.name].does_nothing:
            return None
        loops = INTRINSICS[node.name].expand(node.operands)
        return replace(loops, hints=LoopHints(intrinsic=node.name))

    return replace(func, body=transform(func.body, expand, is_statement))


def select_intrinsics(func: PrimFunc, features: Iterable[str]) -> PrimFunc:
    """Replace marked loops by the instruction where a machine with `features` has it, and the loops still are its own.

    Of the hints that ask for instructions those stay that the machine has, on loops that they are for.
    """
    facts = Facts.of(func.facts)
    present = frozenset(features)

    def select(node: Node) -> Node | None:
        if not isinstance(node, For):
            return None
        intrinsic = INTRINSICS.get(node.hints.intrinsic)
        if intrinsic is not None and intrinsic.is_there(present):
            operands = intrinsic.match(*perfect_nest(node), facts)
            if not isinstance(operands, str):
                return IntrinsicCall(intrinsic.name, operands)
        return _with_fitting_hints(node, present)

    return replace(func, body=transform(func.body, select, is_statement))


def _with_fitting_hints(loop: For, features: frozenset[str]) -> For | None:
    """The loop without the hints that ask for what the machine lacks, or the loop is not fit for; None if all stay."""
    hints = loop.hints
    for key, _ in loop.hints.items():
        intrinsic = LOOP_INTRINSICS.get(key)
        if intrinsic is not None and not (intrinsic.is_there(features) and intrinsic.fits(loop)):
            hints = hints.without(key)
    return None if hints is loop.hints else replace(loop, hints=hints)
