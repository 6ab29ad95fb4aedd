"""Tables of 256 bytes, one for each number that a byte can be: some machines look bytes up in registers, a vector at once."""

from __future__ import annotations

from tc.ir.dtype import u8
from tc.ir.expr import Cast, Expr, Load, is_const

ENTRIES = 256

PERMUTES_BYTES = "avx512vbmi"
"""The feature of machines that permute the bytes of two registers: a table is two such pairs."""


def place_in_table(load: Load) -> Expr | None:
    """The byte, u8, that says which entry of a table of bytes is loaded; None where that is no such load."""
    buffer = load.buffer
    if len(buffer.shape) != 1 or buffer.dtype.bits != 8 or not is_const(buffer.shape[0], ENTRIES):
        return None
    match load.indices[0]:
        case Cast(operand=place) if place.dtype is u8:
            return place
    return None
