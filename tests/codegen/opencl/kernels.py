"""Run finished PrimFuncs on the first OpenCL device of this machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tc.check.compare import CompiledKernel, run_kernel
from tc.codegen.backends import backend_of
from tc.ir.loop import PrimFunc
from tc.ir.structural import structural_hash
from tc.passes.pipeline import finish_loops
from tc.schedule.rules import apply_rules
from tc.target import Target


def finished(func: PrimFunc, target: Target) -> PrimFunc:
    """A PrimFunc as the rules and passes for a target make it."""
    return finish_loops(apply_rules(func, target).func, calls=backend_of(target).finish)


def run_on(target: Target, func: PrimFunc, arrays: Sequence[np.ndarray], dims: Sequence[int] = ()) -> list[np.ndarray]:
    """The results, and workspaces, of a finished PrimFunc on a device."""
    backend, symbol = backend_of(target), f"tc_{structural_hash(func)[:20]}"
    library = backend.load(backend.make([backend.emit(func, symbol, target)], True, target), target)
    return run_kernel(CompiledKernel(func.name, func, library.address(symbol), library.device), arrays, dims, 1)
