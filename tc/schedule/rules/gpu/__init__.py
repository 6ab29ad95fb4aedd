"""Schedule rules for devices that run blocks of threads: the same primitives and knobs, loops bound to the axes of a launch.

What a rule makes is the fork-join form: a nest of block loops is a launch, thread loops inside run one after the other and each joins at
its end, so that the program means what its loops mean in order. Sizes follow from `target.device`.
"""

from __future__ import annotations

from tc.schedule.rules.gpu.attention import schedule_tiled_attention
from tc.schedule.rules.gpu.elementwise import schedule_elementwise
from tc.schedule.rules.gpu.fallback import schedule_launches
from tc.schedule.rules.gpu.matrix_attention import schedule_matrix_attention
from tc.schedule.rules.gpu.matrix_product import schedule_matrix_contraction
from tc.schedule.rules.gpu.product import schedule_contraction
from tc.schedule.rules.gpu.reduction import schedule_reduction, schedule_stages
from tc.schedule.rules.gpu.split_attention import schedule_split_attention
from tc.schedule.rules.gpu.warpgroup_attention import schedule_warpgroup_attention
from tc.schedule.rules.gpu.warpgroup_product import schedule_warpgroup_contraction
from tc.schedule.rules.gpu.window import schedule_windows

DEVICE_BEFORE_INLINING = (
    *(schedule_split_attention, schedule_warpgroup_attention, schedule_matrix_attention, schedule_tiled_attention),
)
"""Tried before anything is inlined into the stages that these rules look for."""

DEVICE_RULES = (
    schedule_warpgroup_contraction,
    *(schedule_matrix_contraction, schedule_contraction, schedule_windows, schedule_reduction, schedule_elementwise, schedule_stages),
    schedule_launches,
)
"""Tried in this order; the last one takes everything."""

__all__ = ["DEVICE_BEFORE_INLINING", "DEVICE_RULES"]
