"""Special registers: name -> the values of all lanes, or [1] where all lanes share one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def uniform(value: int) -> np.ndarray:
    return np.array([value & (2**64 - 1)], np.uint64)


def lane_masks(relation: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    lane = np.arange(32)
    bits = relation(lane[None, :], lane[:, None])
    return (bits * (1 << lane)).sum(1)


MASKS = {
    "eq": lane_masks(np.equal),
    "lt": lane_masks(np.less),
    "le": lane_masks(np.less_equal),
    "gt": lane_masks(np.greater),
    "ge": lane_masks(np.greater_equal),
}


def make_special() -> dict[str, Callable[[Any], np.ndarray]]:
    table: dict[str, Callable[[Any], np.ndarray]] = {
        "%laneid": lambda m: m.lanes % 32,
        "%warpid": lambda m: m.lane_warp % m.warps,
        "%nwarpid": lambda m: uniform(m.warps),
        "%smid": lambda m: uniform(0),
        "%nsmid": lambda m: uniform(1),
        "%gridid": lambda m: uniform(1),
        "%clock": lambda m: uniform(m.executed),
        "%clock_hi": lambda m: uniform(0),
        "%clock64": lambda m: uniform(m.executed),
        "%globaltimer": lambda m: uniform(m.executed),
        "%globaltimer_lo": lambda m: uniform(m.executed),
        "%globaltimer_hi": lambda m: uniform(0),
        "%dynamic_smem_size": lambda m: uniform(m.dynamic_shared),
        "%total_smem_size": lambda m: uniform(m.shared.stride),
        "%cluster_ctarank": lambda m: uniform(0),
        "%cluster_nctarank": lambda m: uniform(1),
    }
    for i, axis in enumerate("xyz"):
        table[f"%tid.{axis}"] = lambda m, i=i: m.tid[i]
        table[f"%ntid.{axis}"] = lambda m, i=i: uniform(m.block[i])
        table[f"%ctaid.{axis}"] = lambda m, i=i: m.ctaid[i]
        table[f"%nctaid.{axis}"] = lambda m, i=i: uniform(m.grid[i])
        table[f"%cluster_ctaid.{axis}"] = lambda m: uniform(0)
        table[f"%cluster_nctaid.{axis}"] = lambda m: uniform(1)
        table[f"%clusterid.{axis}"] = table[f"%ctaid.{axis}"]
        table[f"%nclusterid.{axis}"] = table[f"%nctaid.{axis}"]
    for name, values in MASKS.items():
        table[f"%lanemask_{name}"] = lambda m, values=values: values[m.lanes % 32]
    return table


SPECIAL = make_special()
