"""From a model whose floats are what they are to be to its program: the stages that follow."""

from __future__ import annotations

from collections.abc import Callable

from tc.codegen.kernels import Kernel, TunedDecisions, schedule_module
from tc.errors import working_on
from tc.ir.module import IRModule
from tc.passes.graph.plan_memory import plan_memory
from tc.passes.manager import Stopwatch
from tc.passes.pipeline import PreparedModel, fuse_model, lay_out
from tc.runtime.builder import ModuleBuilder, Stages, build_module
from tc.runtime.module import CompiledModule
from tc.schedule.knobs import take_default


def build_prepared(model: PreparedModel) -> CompiledModule:
    """The module of a model whose graph is what it is to be."""
    builder = ModuleBuilder(model.target)
    return build_module(finish_stages(model, Stopwatch(), None, builder.want, builder.expect), builder, model.target.cores)


def finish_stages(
    prepared: PreparedModel,
    watch: Stopwatch,
    tuned: TunedDecisions | None = None,
    ready: Callable[[Kernel], None] | None = None,
    expect: Callable[[IRModule], None] | None = None,
) -> Stages:
    """The stages from there on; see `run_stages`."""
    imported, target, passes = prepared.imported, prepared.target, prepared.passes
    decide = take_default if tuned is None else tuned.decide
    with watch.time("graph passes"):
        fused = fuse_model(lay_out(prepared, decide), decide)
    with watch.time("lower"):
        lowered = fused.run((*fused.pipeline.lower, *fused.pipeline.place))
    if expect is not None:
        expect(lowered)
    with watch.time("schedule"):
        module, kernels = schedule_module(lowered, target, tuned, ready and watch.uncounted(ready), passes.hooks)
    with watch.time("plan"):
        with working_on("plan", lowered):
            plan = plan_memory(module, imported.requirements, is_for_device=target.device is not None)
    return Stages(imported, fused.graph, lowered, kernels, module, plan, watch.seconds, prepared.precisions)
