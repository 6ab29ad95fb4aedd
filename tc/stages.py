"""Look at a model at any stage of compilation, without running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tc.codegen.backends import backend_of
from tc.codegen.kernels import Kernel
from tc.codegen.llvm.jit import disassemble
from tc.compiler import check_words, run_stages
from tc.errors import InputError, UserError
from tc.frontend.dims import Dim, checked_dims
from tc.frontend.imported import Imported
from tc.frontend.registry import Model, import_model
from tc.interp import run_named
from tc.interp.widen import widen_array, widen_floats
from tc.ir.print_plan import print_plan
from tc.ir.printer import print_ir
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
        if not isinstance(kernel, str) or kernel not in self.kernels:
            raise UserError(f"no kernel {kernel!r}; there are: {', '.join(self.kernels) or 'none at this stage'}")
        return self.kernels[kernel]()


def lower(
    model: Model,
    stage: str = "graph",
    target: str | Target = "native",
    dims: Mapping[str, Dim | int] | None = None,
    numerics: str = "default",
    on_unsupported: str = "fallback",
) -> Lowered:
    """A model at a stage of compilation.

    "graph": after graph passes and fusion. "loops": each kernel before scheduling. "scheduled": after its schedule, with blocks.
    "final": the loops that code generation takes. "llvm", "asm": optimized LLVM IR, assembly. The other arguments are those of
    `tc.compile`.
    """
    if not isinstance(stage, str) or stage not in STAGES:
        raise UserError(f"no stage {stage!r}; there are: {', '.join(STAGES)}")
    chosen = Target.of(target)
    check_words(numerics, on_unsupported)
    stages = run_stages(model, chosen, checked_dims(dims), on_unsupported, numerics)
    if stage == "graph":
        return Lowered(stage, lambda: print_ir(stages.graph), {})
    if stage == "plan":
        return Lowered(stage, lambda: print_plan(stages.plan), {})
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
    optimized = disassemble(backend_of(target).emit(kernel.final, kernel.symbol, target), target)
    return optimized.ir_text if stage == "llvm" else optimized.assembly


def interpret(model: Model, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a model on the reference interpreter: slow, and the meaning that compiled code is checked against."""
    imported = _checked_import(model, inputs)
    return run_named(imported.module, inputs, imported.requirements)


def interpret_in_f64(model: Model, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`interpret` with every float of the model in double precision: what it would compute if nothing were rounded to fewer bits."""
    imported = _checked_import(model, inputs)
    wide = {name: widen_array(np.asarray(array)) for name, array in inputs.items()}
    return run_named(widen_floats(imported.module), wide, imported.requirements)


def _checked_import(model: Model, inputs: Mapping[str, np.ndarray]) -> Imported:
    """The model; InputError when the inputs are not exactly its own."""
    if not isinstance(inputs, Mapping):
        raise InputError(f"the inputs are a {type(inputs).__name__}, must map names to arrays")
    imported = import_model(model, assume_equal=False)
    names = [param.name for param in imported.module.main.params]
    for name in names:
        if name not in inputs:
            raise InputError(f'input "{name}" is missing; the inputs are: {", ".join(names)}')
    for name in inputs:
        if name not in names:
            raise InputError(f'there is no input "{name}"; the inputs are: {", ".join(names)}')
    return imported
