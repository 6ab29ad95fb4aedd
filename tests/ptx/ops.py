"""The tables of instructions: importing this module registers all of them."""

from __future__ import annotations

from tests.ptx import ops_control, ops_convert, ops_float, ops_integer, ops_memory, ops_warp

TABLES = (ops_control, ops_convert, ops_float, ops_integer, ops_memory, ops_warp)
