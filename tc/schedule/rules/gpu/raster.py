"""The order in which the tiles of a product are given to processors.

All processors take blocks in the order of their numbers. Those of one wave share operands in the second-level cache, and read less memory
the nearer their tiles are to a square together: so some columns of tiles, and all rows of them, come before the next columns.

    columns_together=2, three rows, four columns of tiles:      0  1 |  6  7
                                                                2  3 |  8  9
                                                                4  5 | 10 11

Source: the rasterization of tiles in CUTLASS (its documentation of efficient GEMM).
"""

from __future__ import annotations

from math import log, prod

from tc.schedule.rules.common import extent_value
from tc.schedule.step import Schedule
from tc.target.device import DeviceFacts


def columns_together(
    schedule: Schedule, block: str, rows: list[str], columns: list[str], tile: tuple[int, int], device: DeviceFacts
) -> int | None:
    """Ask how many columns of tiles come together; None where there is one order alone, or no wave is full.

    `rows`, `columns`: loops over tiles, rows of which may be of unknown number; `tile`: rows and columns of each.
    """
    num_rows, num_columns = _count(schedule, rows), _count(schedule, columns)
    if num_columns is None or num_columns == 1 or num_rows == 1:
        return None
    if num_rows is not None and num_rows * num_columns <= device.processors:
        return None
    square = (device.processors * tile[0] / tile[1]) ** 0.5
    options = [count for count in range(1, num_columns + 1) if num_columns % count == 0]
    usual = min(options, key=lambda count: abs(log(count / square)))
    return schedule.choose(block, "columns_together", options, usual)


def _count(schedule: Schedule, loops: list[str]) -> int | None:
    extents = [extent_value(schedule, loop) for loop in loops]
    return None if None in extents else prod(extent for extent in extents if extent is not None)
