"""The primitive that lets copies run ahead: where it may stand, and its step."""

from __future__ import annotations

import pytest

from tc.errors import ScheduleError
from tc.ir.printer import print_ir
from tc.schedule.step import Schedule, Trace
from tc.schedule.tree import find_loop
from tests.schedule.programs import matmul


def test_pipeline_takes_loops_in_order_of_launches_around_threads() -> None:
    s = Schedule(matmul())
    i, j, k = s.loops_of("mm")
    ko, ki = s.split(k, 4)
    s.reorder(i, ko, j, ki)
    with pytest.raises(ScheduleError, match="is not part of a launch"):
        s.pipeline(ko, 3)
    s.bind(i, "block.x")
    with pytest.raises(ScheduleError, match="is not around loops over threads"):
        s.pipeline(ko, 3)
    s.bind(j, "thread.x")
    with pytest.raises(ScheduleError, match="is bound; stages are of iterations in order"):
        s.pipeline(j, 3)
    with pytest.raises(ScheduleError, match="pipeline is 9, must be a number of stages, 1 to 8"):
        s.pipeline(ko, 9)

    s.pipeline(ko, 3)

    assert find_loop(s.func, ko).loop.hints.pipeline == 3
    assert print_ir(Trace.from_json(s.trace.to_json()).apply(matmul())) == print_ir(s.func)
