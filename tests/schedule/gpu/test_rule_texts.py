"""A kernel of each rule for devices in both languages, by the vendor's compilers: no warnings, nothing spilled."""

from __future__ import annotations

import shutil
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.device_text import compile_text
from tc.codegen.ptx.emitter import emit_ptx
from tc.ir.loop import PrimFunc
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tc.schedule.rules import apply_rules
from tc.target import Target
from tests.codegen.c.devices import cuda_text
from tests.schedule.gpu.rule_problems import RULE_CLASSES

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None or shutil.which("ptxas") is None, reason="needs nvcc and ptxas")

RULES = {
    *("tiled attention", "attention split over keys", "contraction", "row reduction", "windows", "elementwise"),
    *("stage by stage", "launches"),
}
OF_WARPS = {"tiled attention on matrix instructions", "matrix contraction"}
ARCHS = {"sm_75": RULES | {"matrix contraction"}, "sm_80": RULES | OF_WARPS, "sm_90a": RULES | OF_WARPS | {"warpgroup contraction"}}
"""The rules that are seen for each architecture, at least."""


@cache
def kernels(arch: str) -> tuple[tuple[str, PrimFunc], ...]:
    """A kernel of each rule, as the rule makes it when nobody answers: of the first problems that it takes."""
    target = Target.parse(f"cuda:{arch}@x86-64-v3:cores=1")
    assert target.device is not None
    found: dict[str, PrimFunc] = {}
    for name, draw in RULE_CLASSES.items():
        problem = draw(np.random.default_rng([zlib.crc32(name.encode()), 0, 0]))
        made = apply_rules(problem.func, target)
        if made.rule not in found:
            found[made.rule] = finish_loops(made.func, calls=DEVICE_FINISH_CALLS, features=target.device.features)
    return tuple(found.items())


@pytest.mark.parametrize("arch", ARCHS)
def test_cuda_c_of_each_rule(arch: str, tmp_path: Path) -> None:
    functions, problem = compile_text(cuda_text([func for _, func in kernels(arch)]), Target.parse(f"cuda:{arch}"), "cuda", tmp_path)

    assert not problem and len(functions) >= len(kernels(arch))
    assert {rule for rule, _ in kernels(arch)} >= ARCHS[arch]
    assert [each.name for each in functions if each.spill_bytes] == []


@pytest.mark.parametrize("arch", ARCHS)
def test_ptx_of_each_rule(arch: str, tmp_path: Path) -> None:
    for rule, func in kernels(arch):
        functions, problem = compile_text(emit_ptx(func, "kernel", arch), Target.parse(f"cuda:{arch}"), "ptx", tmp_path)

        assert functions and not problem, f"{rule}: {problem}"
        assert [each.name for each in functions if each.spill_bytes] == [], rule
