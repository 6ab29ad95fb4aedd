"""What compiling small networks takes, in numbers that no clock gives: run as a program, in a process that has compiled nothing yet."""

from __future__ import annotations

import cProfile
import json
import sys
from collections import Counter
from pathlib import Path
from types import CodeType

import tc
from tc.codegen.llvm.emitter import emit_prim_func
from tc.compiler import run_stages
from tc.ir.parser import parse_module
from tests.golden_files import FOLDER, TARGETS, Literals

ROOT = str(Path(tc.__file__).parent) + "/"
Counts = dict[str, int]
NETWORKS = ("attention_block", "mlp_of_any_batch", "residual_block")
ROOMS = ("codegen", "cost", "ir", "ops", "passes", "schedule")
NAMED = {("ir/node.py", "visit"): "nodes rewritten", ("passes/manager.py", "__call__"): "passes"}


def counts_of(network: Path) -> Counts:
    """Calls of Python functions by the room of the package, nodes looked at to be rewritten, passes, and instructions of LLVM."""
    target = TARGETS["x86-64-v4"]
    module = parse_module(network.read_text().partition("# -----")[0], Literals())
    profile = cProfile.Profile(builtins=False)
    profile.enable()
    stages = run_stages(module, target)
    texts = [emit_prim_func(kernel.final, kernel.symbol, target.features).ir_text for kernel in stages.kernels.values()]
    profile.disable()
    return {**_calls(profile), "instructions": sum(map(_instructions, texts))}


def _calls(profile: cProfile.Profile) -> Counts:
    found: Counter[str] = Counter()
    for entry in profile.getstats():
        code = entry.code
        if not isinstance(code, CodeType) or not code.co_filename.startswith(ROOT):
            continue
        file = code.co_filename.removeprefix(ROOT)
        room = file.partition("/")[0]
        if room in ROOMS:
            found[f"calls in {room}"] += entry.callcount
        if (file, code.co_name) in NAMED:
            found[NAMED[file, code.co_name]] += entry.callcount
    return dict(sorted(found.items()))


def _instructions(text: str) -> int:
    return sum(line.startswith("  ") for line in text.splitlines())


if __name__ == "__main__":
    json.dump({name: counts_of(FOLDER / "networks" / f"{name}.txt") for name in NETWORKS}, sys.stdout)
