"""Instructions that a hint asks for on a loop of any extent around other statements.

The loop is their pattern: it means the same without the hint, but for the order in which a tree adds, and is what runs where a machine
lacks the instructions, or where the loop is not of the form that they are for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tc.ir.intrinsic import has_all_of_one
from tc.ir.loop import For, LoopKind
from tc.ir.tree_loop import as_square, as_tree_loop


@dataclass(frozen=True)
class LoopIntrinsic:
    """What the hint of this name asks for. `fits`: whether a loop with it is of the form; `features` as of an `Intrinsic`."""

    hint: str
    fits: Callable[[For], bool]
    features: tuple[tuple[str, ...], ...] = ()

    def is_there(self, features: Iterable[str]) -> bool:
        """Whether a machine with these features has the instructions."""
        return has_all_of_one(features, self.features)


_ALL = (
    LoopIntrinsic("prefetch", lambda loop: loop.kind is not LoopKind.UNROLLED),
    LoopIntrinsic("tree", lambda loop: as_tree_loop(loop) is not None),
    LoopIntrinsic("transpose", lambda loop: as_square(loop) is not None),
)

LOOP_INTRINSICS: Mapping[str, LoopIntrinsic] = {intrinsic.hint: intrinsic for intrinsic in _ALL}
"""Hint -> intrinsic."""
