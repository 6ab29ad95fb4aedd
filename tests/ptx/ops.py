"""The tables of instructions: importing this module registers all of them."""

from __future__ import annotations

from tests.ptx import (
    ops_barrier,
    ops_bulk,
    ops_control,
    ops_convert,
    ops_copy,
    ops_float,
    ops_integer,
    ops_memory,
    ops_mma,
    ops_select,
    ops_warp,
    ops_wgmma,
)

TABLES = (
    *(ops_barrier, ops_bulk, ops_control, ops_convert, ops_copy, ops_float, ops_integer, ops_memory, ops_mma, ops_select),
    *(ops_warp, ops_wgmma),
)
