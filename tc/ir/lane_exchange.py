"""What lanes of a warp give each other without memory: each gets the element of the lane whose number differs from its own in one bit.

    warp(shuffle.xor4.f32, X[lane], T[lane])        T[lane] = X[lane xor 4]

An instruction of the intrinsic table that a `WarpCall` names: all lanes of a warp reach it, each with one register of its own of every
operand. Combining a value with what comes from the partner, for the masks 1, 2, 4, ... one after the other, leaves the combination of all
lanes in each of them: a tree that is the same in every run. Lanes hold elements by a `BitLayout`; `masks_within` says which
exchanges combine what a fragment has along its other dims: of the sums of an `mma`, rows are shared by the four lanes of masks 1 and 2.
A register that holds nothing gives nothing: its partner's holds nothing then, until something is stored there.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from tc.errors import ScheduleError
from tc.ir.bit_layout import BitLayout, layout
from tc.ir.bits import bit_xor
from tc.ir.dtype import DType, f32, f64, i32, i64, u32, u64
from tc.ir.expr import Buffer, Expr, Load, Var, const, select
from tc.ir.intrinsic import Intrinsic, make_pattern, register_intrinsic, sizes
from tc.ir.loop import PrimFunc, Store

WARP_LANES = 32

MASKS = (1, 2, 4, 8, 16)
"""Numbers that partners' numbers differ by."""

EXCHANGED = (f32, f64, i32, i64, u32, u64)
"""Types of what is exchanged: whole registers."""

FEATURES = (("shuffle", "sm_75"),)
"""What a device must have: warps of 32 lanes, and instructions that are known here."""

LANE = layout({"lane": WARP_LANES}, register=[], lane=[1 << bit for bit in range(5)])
"""A value in each lane."""


def exchange_name(mask: int, dtype: DType) -> str:
    """The name of the exchange with the lane whose number is the exclusive or of a lane's own and a mask."""
    return f"shuffle.xor{mask}.{dtype.name}"


def is_exchange(name: str) -> bool:
    """Whether an intrinsic is one of these."""
    return name.startswith("shuffle.")


def mask_of(name: str) -> int:
    """The mask of an exchange."""
    return int(name.split(".")[1].removeprefix("xor"))


def can_exchange(lanes: int, along: int, threads: int) -> bool:
    """Whether groups of so many neighbours along x are in one warp each, where a block has `along` threads along x and `threads` in all."""
    return threads % WARP_LANES == 0 and along % lanes == 0 and (along % WARP_LANES == 0 or WARP_LANES % along == 0)


def masks_within(fragment: BitLayout, dim: str) -> tuple[int, ...]:
    """The masks of the exchanges after which every lane knows the combination of all that is held at its own values of `dim`.

    Lanes first combine their own registers of each value of `dim`. ScheduleError where the lanes that share a value are not told apart by
    bits of their number.
    """
    images = dict(fragment.only(dim).images)
    free = tuple(1 << bit for bit, image in enumerate(images["lane"]) if not any(image))
    bound = [image[0] for image in images["lane"] if any(image)]
    if len(set(bound)) < len(bound) or any(image & (image - 1) for image in bound):
        raise ScheduleError(f"lanes that share a value of {dim} in {fragment} do not differ in single bits")
    return free


def _pattern(name: str, mask: int, dtype: DType) -> PrimFunc:
    x, t = (Buffer(each, sizes(WARP_LANES), dtype, "fragment") for each in "xt")

    def body(lane: Var) -> Store:
        return Store(t, (lane,), Load(x, (bit_xor(lane, const(mask)),)))

    return make_pattern(name, (WARP_LANES,), (x, t), body)


ROWS_OF_SUMS = {
    8: layout({"m": 8, "n": 4}, register=[], lane=[(0, 1), (0, 2), (1, 0), (2, 0), (4, 0)]),
    64: layout({"m": 64, "n": 4}, register=[(8, 0)], lane=[(0, 1), (0, 2), (1, 0), (2, 0), (4, 0), (16, 0), (32, 0)]),
}
"""A value of each lane by the row, and the place in it, of the sums that the lane has: of half an `mma`, and of a `wgmma`."""


def combine_name(monoid: str, dtype: DType, rows: int = 8) -> str:
    """The name of the instructions that combine what the four lanes of each of so many rows of sums have, for each of the four."""
    return f"combine_lanes.{monoid}.{rows}x4.{dtype.name}"


COMBINED: dict[str, Callable[[Expr, Expr], Expr]] = {"sum": lambda a, b: a + b, "max_number": lambda a, b: select(a < b, b, a)}
"""How two values are combined, by the name of the monoid."""


def monoid_of(name: str) -> Callable[[Expr, Expr], Expr]:
    """How `combine_lanes` of this name combines two values."""
    return COMBINED[name.split(".")[1]]


def _combine_pattern(name: str, rows: int, monoid: str, dtype: DType) -> PrimFunc:
    """c[i, j] = combine(c[i, j], a[i, r]) for the four r."""
    a, c = (Buffer(each, sizes(rows, 4), dtype, "fragment") for each in "ac")

    def body(i: Var, j: Var, r: Var) -> Store:
        return Store(c, (i, j), COMBINED[monoid](Load(c, (i, j)), Load(a, (i, r))))

    return make_pattern(name, (rows, 4, 4), (a, c), body, num_reduced=1)


def _register() -> None:
    for (rows, held), monoid in product(ROWS_OF_SUMS.items(), COMBINED):
        name = combine_name(monoid, f32, rows)
        pattern = _combine_pattern(name, rows, monoid, f32)
        register_intrinsic(Intrinsic(name, pattern, FEATURES, frozenset((0, 1)), (held, held)))
    for mask in MASKS:
        for dtype in EXCHANGED:
            name = exchange_name(mask, dtype)
            register_intrinsic(Intrinsic(name, _pattern(name, mask, dtype), FEATURES, frozenset((0, 1)), (LANE, LANE)))


_register()
