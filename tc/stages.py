"""Look at a model at any stage of compilation, without running it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from tc.check.reproducer import explained
from tc.codegen.backends import language_names, language_of
from tc.compiler import compile_model, run_stages
from tc.errors import InputError, UserError
from tc.frontend.dims import Dim, checked_dims
from tc.frontend.imported import Imported
from tc.frontend.registry import Model, check_words, import_model
from tc.interp import run_named
from tc.interp.widen import widen_array, widen_floats
from tc.ir.module import IRModule
from tc.ir.print_plan import print_plan
from tc.ir.printer import print_ir
from tc.passes.graph.narrowing import NodePrecision
from tc.passes.pipeline import simplify_model
from tc.precision.choose import prepare_in
from tc.precision.request import Calibration, checked_precision
from tc.runtime.host_work import HostWork, host_work
from tc.runtime.report import precision_notes
from tc.runtime.texts import Lowered, joined, write_kernels
from tc.target import Target

IR_STAGES = ("graph", "loops", "scheduled", "final", "plan")
"""Stages that are the same for all targets; the others are the languages of a target's kernels."""


def known_stages() -> tuple[str, ...]:
    """Every stage that there is for some target."""
    return IR_STAGES + language_names()


def lower(
    model: Model,
    stage: str = "graph",
    target: str | Target = "native",
    dims: Mapping[str, Dim | int] | None = None,
    numerics: str = "default",
    on_unsupported: str = "fallback",
    precision: str = "f32",
    calibration: Calibration | None = None,
) -> Lowered:
    """A model at a stage of compilation.

    "graph": after graph passes and fusion. "loops": each kernel before scheduling. "scheduled": after its schedule, with blocks.
    "final": the loops that code generation takes. "plan": what the host does with the kernels. Else a language in which kernels of the
    target are written; "llvm", "asm": optimized LLVM IR, assembly, of a CPU. No device needs to be there. The other arguments are those
    of `tc.compile`.
    """
    if not isinstance(stage, str) or stage not in known_stages():
        raise UserError(f"no stage {stage!r}; there are: {', '.join(known_stages())}")
    chosen = Target.of(target)
    check_words(numerics, on_unsupported)
    asked = checked_precision(precision, calibration)
    if stage not in IR_STAGES:
        language_of(stage, chosen)  # which there is, before all the work
    options = {"target": chosen, "numerics": numerics, "on_unsupported": on_unsupported, "precision": precision, "dims": dims}
    with explained(options, isinstance(model, IRModule), lambda again, options: compile_model(again, **options)):
        stages = run_stages(model, chosen, checked_dims(dims), on_unsupported, numerics, precision=asked)
    if stage == "graph":
        return Lowered(stage, lambda: print_ir(stages.graph), {})
    if stage == "plan":
        return Lowered(stage, lambda: print_plan(stages.plan), {})
    if stage in IR_STAGES:
        of_stage = {"loops": "lowered", "scheduled": "scheduled", "final": "final"}[stage]
        texts = {name: partial(print_ir, getattr(kernel, of_stage)) for name, kernel in stages.kernels.items()}
        return Lowered(stage, partial(joined, texts), texts, partial(print_plan, stages.plan))
    return write_kernels(stages, stage, chosen)


def precisions_of(
    model: Model, precision: str, calibration: Calibration | None = None, target: str | Target = "native"
) -> tuple[tuple[NodePrecision, ...], tuple[str, ...]]:
    """How each operation on floats would be computed, and what is to be said of the target. Only what calibration runs is compiled."""
    asked, chosen = checked_precision(precision, calibration), Target.of(target)
    prepared = prepare_in(lambda equal: simplify_model(import_model(model, assume_equal=equal), chosen), asked)
    return prepared.precisions, precision_notes(asked.word, chosen)


def on_host(model: Model, target: str | Target, dims: Mapping[str, Dim | int] | None = None) -> tuple[HostWork, ...]:
    """What stays with the host when a model is compiled for a device, which need not be there. UserError for a target without one."""
    chosen = Target.of(target)
    if chosen.device is None:
        raise UserError(f"target: '{target}' has no device, all of a model runs on the host")
    stages = run_stages(model, chosen, checked_dims(dims))
    return host_work(stages.plan, {name: kernel.scheduled for name, kernel in stages.kernels.items()})


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
        raise InputError(f"the inputs are a {type(inputs).__name__}, must map names to arrays", code="TC2001")
    imported = import_model(model, assume_equal=False)
    names = [param.name for param in imported.module.main.params]
    for name in names:
        if name not in inputs:
            raise InputError(f'input "{name}" is missing; the inputs are: {", ".join(names)}', code="TC2001")
    for name in inputs:
        if name not in names:
            raise InputError(f'there is no input "{name}"; the inputs are: {", ".join(names)}', code="TC2001")
    return imported
