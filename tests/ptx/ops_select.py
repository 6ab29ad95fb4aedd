"""Comparing and choosing: setp, set, selp, slct."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx import ops_float
from tests.ptx.coder import Coder, Reader, Run, builds
from tests.ptx.element_types import TYPES, PtxType
from tests.ptx.machine import Machine
from tests.ptx.ops_integer import elementwise

INTEGER_COMPARISONS: dict[str, Callable] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
COMBINATIONS: dict[str, Callable] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
COMPARISONS = (*INTEGER_COMPARISONS, *ops_float.COMPARISONS)


def comparison(c: Coder, name: str, type: PtxType) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    if type.is_integer:
        if name not in INTEGER_COMPARISONS:
            raise c.unsupported(f"comparison {name} of {type.name}")
        return INTEGER_COMPARISONS[name]
    return ops_float.comparison(c, name, type)


@builds("setp")
def build_setp(c: Coder) -> Run:
    name = c.choose(*dict.fromkeys(COMPARISONS))
    combine = c.choose(*COMBINATIONS, default="")
    ftz, type = c.flag("ftz"), c.type()
    compare = comparison(c, name, type)
    first, second = c.pair(0)
    if type.name in ("f16x2", "bf16x2"):
        return compare_pairs(c, compare, type, combine)
    write = c.destination(first, "pred")
    write_other = None if second is None else c.destination(second, "pred")
    a, b = ops_float.flushed(c.source(1, type), ftz), ops_float.flushed(c.source(2, type), ftz)
    other = c.source(3, "pred") if combine else None

    def run(m: Machine, active: np.ndarray | None) -> None:
        result = compare(a(m, active), b(m, active))
        opposite = ~result
        if other is not None:
            extra = other(m, active)
            result, opposite = COMBINATIONS[combine](result, extra), COMBINATIONS[combine](opposite, extra)
        write(m, active, result)
        if write_other is not None:
            write_other(m, active, opposite)

    return run


def compare_pairs(c: Coder, compare: Callable, type: PtxType, combine: str) -> Run:
    """`setp.eq.f16x2 p|q, a, b`: p of the lower halves, q of the upper ones."""
    first, second = c.pair(0)
    if combine or second is None:
        raise c.unsupported("this comparison of pairs")
    writes = c.destination(first, "pred"), c.destination(second, "pred")
    a, b = c.source(1, type), c.source(2, type)

    def run(m: Machine, active: np.ndarray | None) -> None:
        result = compare(a(m, active), b(m, active))
        for i, write in enumerate(writes):
            write(m, active, result[:, i])

    return run


@builds("set")
def build_set(c: Coder) -> Run:
    name = c.choose(*dict.fromkeys(COMPARISONS))
    combine = c.choose(*COMBINATIONS, default="")
    ftz, result_type, type = c.flag("ftz"), c.type(), c.type()
    compare = comparison(c, name, type)
    pairs = type.name in ("f16x2", "bf16x2")
    true = ops_float.truth(result_type)
    write = c.destination(0, result_type)
    a, b = ops_float.flushed(c.source(1, type), ftz), ops_float.flushed(c.source(2, type), ftz)
    other = c.source(3, "pred") if combine else None

    def run(m: Machine, active: np.ndarray | None) -> None:
        result = compare(a(m, active), b(m, active))
        if other is not None:
            extra = other(m, active)
            result = COMBINATIONS[combine](result, extra[:, None] if pairs else extra)
        write(m, active, true(result))

    return run


@builds("selp")
def build_selp(c: Coder) -> Run:
    type = c.type()
    return elementwise(c, lambda a, b, p: np.where(p, a, b), type, type, type, TYPES["pred"])


@builds("slct")
def build_slct(c: Coder) -> Run:
    ftz, type, by = c.flag("ftz"), c.type(), c.type("s32", "f32")
    write, a, b = c.destination(0, type), c.source(1, type), c.source(2, type)
    chooser: Reader = ops_float.flushed(c.source(3, by), ftz)
    return lambda m, active: write(m, active, np.where(chooser(m, active) >= 0, a(m, active), b(m, active)))

