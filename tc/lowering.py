"""Look at a model at any stage of compilation, without running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tc.codegen.llvm import emit_prim_func
from tc.compiler import Model, import_model, run_stages
from tc.errors import UserError
from tc.frontend.dims import Dim
from tc.interp import run_named
from tc.ir.printer import print_ir
from tc.kernels import Kernel
from tc.runtime.jit import disassemble
from tc.target import Target

STAGES = ("graph", "loops", "scheduled", "final", "llvm", "asm", "plan")


@dataclass(frozen=True)
class Lowered:
    """A model at one stage. `as_text()` prints all of it, `as_text(kernel=name)` one kernel."""

    stage: str
    whole: Callable[[], str]
    kernels: Mapping[str, Callable[[], str]]

    def as_text(self, kernel: str | None = None) -> str:
        """UserError for a kernel that does not exist, or a stage that has no kernels."""
        if kernel is None:
            return self.whole()
        if kernel not in self.kernels:
            raise UserError(f"no kernel {kernel!r}; there are: {', '.join(self.kernels) or 'none at this stage'}")
        return self.kernels[kernel]()


def lower(
    model: Model,
    stage: str = "graph",
    target: str | Target = "native",
    dims: Mapping[str, Dim | int] | None = None,
) -> Lowered:
    """A model at a stage of compilation.

    "graph": after graph passes and fusion. "loops": each kernel before scheduling. "scheduled": after its schedule, with blocks.
    "final": the loops that code generation takes. "llvm", "asm": optimized LLVM IR, assembly.
    """
    if stage not in STAGES:
        raise UserError(f"no stage {stage!r}; there are: {', '.join(STAGES)}")
    chosen = Target.parse(target) if isinstance(target, str) else target
    stages = run_stages(model, chosen, dims)
    if stage == "graph":
        return Lowered(stage, lambda: print_ir(stages.graph), {})
    if stage == "plan":
        return Lowered(stage, lambda: "\n".join(map(str, stages.plan.steps)), {})
    texts = {
        name: (lambda kernel=kernel: _kernel_text(kernel, stage, chosen)) for name, kernel in stages.kernels.items()
    }
    return Lowered(stage, lambda: "\n\n".join(make() for make in texts.values()) + "\n", texts)


def _kernel_text(kernel: Kernel, stage: str, target: Target) -> str:
    match stage:
        case "loops":
            return print_ir(kernel.lowered)
        case "scheduled":
            return print_ir(kernel.scheduled)
        case "final":
            return print_ir(kernel.final)
    optimized = disassemble(emit_prim_func(kernel.final, kernel.symbol, target.features).ir_text, target)
    return optimized.ir_text if stage == "llvm" else optimized.assembly


def interpret(model: Model, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a model on the reference interpreter: slow, and the meaning that compiled code is checked against."""
    imported = import_model(model, None, "fallback", assume_equal=False)
    return run_named(imported.module, inputs, imported.requirements)
