"""The order of passes, and models on their way through it.

    imported --SIMPLIFY, SPLIT, NARROW--> prepared --LAY_OUT--> laid out --FUSE--> fused --LOWER--> lowered      the graph
    scheduled --FINISH--> loops that code generation takes                                        each kernel

Between `lowered` and `scheduled` stand the schedules, which no pass chooses. Options that depend on the target, the model or the
caller (`block`, `lanes`, `target`, `equal_dims`, `decide`, `threads`) are settings of the run; all others stand in the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from tc.errors import UserError
from tc.frontend.imported import Imported
from tc.ir.cached import cached_property
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.passes import lower
from tc.passes.graph import (
    bounded_steps,
    byte_tables,
    canonicalize,
    convert_layout,
    cse,
    dce,
    find_attention,
    find_idioms,
    fold_constants,
    fuse_ops,
    integer_graphs,
    integer_products,
    merge_image_axes,
    narrow_floats,
    pack_matmul,
    place_on_host,
    prove_indices,
    separate_attention,
    separate_windows,
    share_kernels,
    share_scales,
    simplify_graph,
    simplify_splits,
    split_phases,
    transforms_as_products,
    unify_dims,
    use_parallel_forms,
    use_winograd,
)
from tc.passes.graph.narrowing import F32, NodePrecision, Precision, choose_narrowing
from tc.passes.loop import (
    check_accesses,
    compact_buffers,
    compute_in_outputs,
    cut_borders,
    distribute_threads,
    exchange_lanes,
    fake_quantize,
    hoist_choices,
    hoist_guards,
    hold_fragments,
    interleave_stores,
    intrinsics,
    invert_divisors,
    lift_workspace,
    lower_blocks,
    mark_in_place,
    mark_numerics,
    partition_loops,
    pipeline_loops,
    privatize_scratch,
    report_in_order,
    round_once,
    simplify_loops,
    swizzle_shared,
    unroll_launches,
    whole_vectors,
)
from tc.passes.manager import NO_HOOKS, Hooks, PassCall, parse_pipeline, run_pipeline
from tc.schedule.canonical import workload_key
from tc.schedule.knobs import Decide, take_default
from tc.target import Target

# Importing these registers the passes that the texts below name.
REGISTERED = (
    *(bounded_steps, byte_tables, canonicalize, convert_layout, cse, dce, find_attention, find_idioms, fold_constants, fuse_ops),
    *(integer_graphs, integer_products, merge_image_axes, narrow_floats, share_kernels, share_scales),
    *(pack_matmul, place_on_host, prove_indices, simplify_graph, simplify_splits, split_phases, use_parallel_forms, use_winograd, lower),
    *(separate_attention, separate_windows, transforms_as_products, unify_dims),
    *(check_accesses, compact_buffers, compute_in_outputs, hoist_guards, intrinsics, lift_workspace, lower_blocks, mark_in_place),
    *(cut_borders, exchange_lanes, fake_quantize, hoist_choices, interleave_stores, invert_divisors),
    *(distribute_threads, hold_fragments, mark_numerics, partition_loops, pipeline_loops, privatize_scratch, report_in_order),
    *(round_once, simplify_loops, swizzle_shared, unroll_launches, whole_vectors),
)

INTEGERS = """
    unify_dims,
    canonicalize,
    fold_constants(keep_quantized=True),
    canonicalize,                   # branches on conditions that folding made known
    integer_graphs,                 # while weights are still quantized
    fold_constants,                 # quantized literals that no product took
    share_common_subexpressions,    # bytes that were moved for each use of theirs
    byte_tables,                    # of what stayed float
"""
"""What a quantized model has in integers stays so, whatever the numerics: sums of integers are exact."""

FLOATS = "unify_dims, canonicalize, fold_constants, canonicalize,"
"""The same for devices, whose kernels of quantized models are those of floats."""

ALGEBRA = """
    simplify_graph,
    fold_constants,
    share_common_subexpressions,
    prove_indices,
    integer_products,
    find_idioms,
    find_attention,                 # when equal values are one: what else uses the scores shows
    remove_dead_code,
"""

SIMPLIFY = INTEGERS + ALGEBRA
"""The same model, said more simply: for any CPU."""

SPLIT = "split_phases, simplify_splits"
"""Strided and split tensors in a form that layouts can follow."""

NARROW = "narrow_floats"
"""Where less than f32 is asked for: when idioms and attention are known by their shape in f32, and before layouts, which go by bytes."""

SEPARATE = ", separate_attention"
"""What has become a product of 16 bits runs where these are fastest."""

LAY_OUT = "convert_layout"
"""Asks first: other layouts make other kernels."""

FUSE = """
    spell_out_phases,               # which are not whole blocks
    use_winograd,                   # of convolutions that have a layout
    integer_windows,                # of those that have none
    merge_scales,                   # when what is quantized and dequantized again by the same steps has met
    bound_steps,                    # of the steps that are merged
    pack_matmul,
    separate_windows,               # of what has no blocks of channels
    share_scales,                   # last of what reads scales and zero points
    remove_dead_code,               # weights that were packed or transformed
    fuse_ops,
    merge_image_axes,
"""

LOWER = "lower_primitives"

STEPS = ", fake_quantize"
"""Before literals are read: those that are bounds of what is quantized are found as such."""

SHARE = ", share_kernels"
"""Layers of one shape are one kernel, whatever their scales: compiled and tuned once."""

STRICT_ALGEBRA = """
    simplify_graph(exact=True),
    fold_constants,
    share_common_subexpressions,
    prove_indices,
    integer_products,
    remove_dead_code,               # what finds idioms and attention computes the same in another way
"""
STRICT_SIMPLIFY = INTEGERS + STRICT_ALGEBRA
STRICT_LAY_OUT = "convert_layout(exact=True)"
STRICT_SPLIT = "split_phases(strict=True), simplify_splits"
STRICT_FUSE = """
    spell_out_phases, integer_windows, bound_steps, pack_matmul(exact=True), share_scales, remove_dead_code, fuse_ops, merge_image_axes
"""
STRICT_LOWER = LOWER + STEPS + ", mark_numerics(numerics='strict')"

DEVICE_FUSE = "integer_windows, round_attention, transforms_as_products, use_parallel_forms, fuse_ops"
"""For devices nothing is packed for the vectors of a CPU."""

DEVICE_STRICT_FUSE = "integer_windows, transforms_as_products, use_parallel_forms, fuse_ops"

DEVICE_PLACE = "place_on_host"
"""Of a whole program, none of whose kernels is to be tuned any more."""

FINISH = """
    privatize_scratch,
    lower_blocks,
    expand_intrinsics,
    round_once,                     # schedules know sums and products by their text, with the casts that were there
    simplify_loops,
    compute_in_outputs,
    compact_buffers,                # before loops are cut in two: each part then gets a buffer of its own
    partition_loops,
    cut_borders,
    hoist_guards,
    simplify_loops,
    drop_unread_scratch,            # of loops that do not run for these attributes
    lift_workspace,
    mark_in_place,
    hoist_choices,                  # what may work in place is seen before its one store is several
    invert_divisors,
    check_accesses,
"""
"""Of a scheduled PrimFunc, to loops without blocks that a compiler of loops takes."""

DEVICE_FINISH = """
    privatize_scratch,
    lower_blocks,
    expand_intrinsics,
    round_once,
    simplify_loops,
    compute_in_outputs,
    compact_buffers,                # of launches: each gets what a block, or a thread, uses at once
    partition_loops,
    hoist_guards,
    simplify_loops,
    drop_unread_scratch,
    whole_vectors,
    lift_workspace(max_stack_bytes=0, threads=0),  # around launches: a device has neither stack nor workers of the host
    mark_in_place,
    check_accesses,                 # while threads fork and join: a check around several loops over threads is then the same for all
    report_in_order,                # threads that fail at once would report now one of them, now another
    hold_fragments,                 # the last that knows loops as instructions
    pipeline_loops,                 # buffers are of one iteration now
    exchange_lanes,                 # what is left in shared memory of threads that fork and join
    distribute_threads,
    unroll_launches,
    swizzle_shared,
    simplify_loops,
"""
"""Of a scheduled PrimFunc whose loops are bound to the axes of a device, to launches in the form that device code is emitted of."""


@dataclass(frozen=True)
class Pipeline:
    """The graph's passes by the stops that a model makes on the way."""

    simplify: tuple[PassCall, ...]
    narrow: tuple[PassCall, ...]
    lay_out: tuple[PassCall, ...]
    fuse: tuple[PassCall, ...]
    lower: tuple[PassCall, ...]
    place: tuple[PassCall, ...] = ()

    def __str__(self) -> str:
        return ", ".join(map(str, (*self.simplify, *self.narrow, *self.lay_out, *self.fuse, *self.lower, *self.place)))


DEFAULT = Pipeline(*map(parse_pipeline, (SIMPLIFY + SPLIT, NARROW + SEPARATE, LAY_OUT, FUSE, LOWER + STEPS + SHARE)))
STRICT = Pipeline(*map(parse_pipeline, (STRICT_SIMPLIFY + STRICT_SPLIT, NARROW, STRICT_LAY_OUT, STRICT_FUSE, STRICT_LOWER + SHARE)))
DEVICE = Pipeline(*map(parse_pipeline, (FLOATS + ALGEBRA, NARROW, LAY_OUT, DEVICE_FUSE, LOWER + STEPS, DEVICE_PLACE)))
DEVICE_STRICT = Pipeline(*map(parse_pipeline, (FLOATS + STRICT_ALGEBRA, NARROW, LAY_OUT, DEVICE_STRICT_FUSE, STRICT_LOWER, DEVICE_PLACE)))
FINISH_CALLS = parse_pipeline(FINISH)
DEVICE_FINISH_CALLS = parse_pipeline(DEVICE_FINISH)


@dataclass(frozen=True)
class PassOptions:
    """How the passes are run. `text`: graph passes in place of the usual ones up to `lower_primitives`; `hooks`: around each."""

    hooks: Hooks = NO_HOOKS
    text: str | None = None

    def pipeline(self, numerics: str, on_device: bool = False) -> Pipeline:
        """The graph's passes. UserError for a text that makes no kernels, or where a loop pass meets no loops."""
        if on_device:
            usual = DEVICE_STRICT if numerics == "strict" else DEVICE
        else:
            usual = STRICT if numerics == "strict" else DEFAULT
        if self.text is None:
            return usual
        calls = parse_pipeline(self.text)
        for call in calls:
            if call.target.level != "graph" or call.target.name == LOWER:
                raise UserError(f"passes: {call.target.name} comes by itself, after the passes of the graph")
        if not any(call.target.name == "fuse_ops" for call in calls):
            raise UserError("passes: fuse_ops is missing, which makes the kernels")
        return dataclasses.replace(usual, simplify=(), lay_out=(), fuse=calls)


USUAL = PassOptions()


@dataclass(frozen=True)
class PreparedModel:
    """A model up to a graph pass that leaves something open; nothing before it depends on an answer. `precisions`: of its nodes, where
    less than f32 is asked for."""

    imported: Imported
    graph: IRModule
    target: Target
    numerics: str
    passes: PassOptions = USUAL
    precision: Precision = F32
    precisions: tuple[NodePrecision, ...] = ()

    @property
    def pipeline(self) -> Pipeline:
        """The passes that the model goes through."""
        return self.passes.pipeline(self.numerics, self.target.device is not None)

    def run(self, calls: tuple[PassCall, ...], decide: Decide = take_default) -> IRModule:
        """Some of them, on the graph as it is."""
        lanes = self.target.lanes(32)
        settings = {"block": lanes, "lanes": lanes, "target": self.target, "decide": decide, "precision": self.precision}
        settings["equal_dims"] = unify_dims.dims_as_required(self.imported.module.main.params, self.imported.requirements)
        return run_pipeline(self.graph, calls, settings, self.passes.hooks)


@dataclass(frozen=True)
class LoweredModel:
    """A model up to its PrimFuncs: what was imported, the graph with primitive functions, and the same with PrimFuncs in their place."""

    imported: Imported
    fused: IRModule
    lowered: IRModule

    @cached_property
    def workloads(self) -> Mapping[str, str]:
        """What tuning records know the PrimFuncs by, by their names."""
        return {func.name: workload_key(func) for func in self.lowered.prim_funcs}


def prepare_model(
    imported: Imported, target: Target, numerics: str = "default", passes: PassOptions = USUAL, precision: Precision = F32
) -> PreparedModel:
    """What no answer decides."""
    return narrow_model(simplify_model(imported, target, numerics, passes), precision)


def simplify_model(imported: Imported, target: Target, numerics: str = "default", passes: PassOptions = USUAL) -> PreparedModel:
    """A model before anything is narrowed."""
    model = PreparedModel(imported, imported.module, target, numerics, passes)
    return dataclasses.replace(model, graph=model.run(model.pipeline.simplify))


def narrow_model(model: PreparedModel, precision: Precision) -> PreparedModel:
    """The model in a precision, and which nodes got what."""
    if precision.dtype is None:
        return model
    precisions = choose_narrowing(model.graph, precision).describe(model.graph)
    model = dataclasses.replace(model, precision=precision, precisions=precisions)
    return dataclasses.replace(model, graph=model.run(model.pipeline.narrow))


def lay_out(model: PreparedModel, decide: Decide = take_default) -> PreparedModel:
    """Choose layouts, as `decide` says."""
    return dataclasses.replace(model, graph=model.run(model.pipeline.lay_out, decide))


def fuse_model(model: PreparedModel, decide: Decide = take_default) -> PreparedModel:
    """Choose kernels, of a model with layouts; `decide` says what passes leave open."""
    return dataclasses.replace(model, graph=model.run(model.pipeline.fuse, decide))


def lower_model(model: PreparedModel, decide: Decide = take_default) -> LoweredModel:
    """`fuse_model`, and the kernels as PrimFuncs."""
    fused = fuse_model(model, decide)
    return LoweredModel(model.imported, fused.graph, fused.run(model.pipeline.lower))


def finish_loops(
    func: PrimFunc,
    threads: int = 0,
    hooks: Hooks = NO_HOOKS,
    calls: tuple[PassCall, ...] = FINISH_CALLS,
    features: tuple[str, ...] = (),
) -> PrimFunc:
    """Scheduled PrimFunc to loops that code generation takes; at most `threads` threads will run it (0: any number), on a device that has
    these features, if it is for one."""
    return run_pipeline(func, calls, {"threads": threads, "features": features}, hooks)
