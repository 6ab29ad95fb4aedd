"""From a model to a compiled module: the order of everything."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tc.check.compare import CompiledKernel, verify_kernels
from tc.codegen.kernels import Kernel, Tuned, schedule_module, workload_key
from tc.errors import InputError, ModelError, UnsupportedError, UserError, located
from tc.frontend.dims import Dim, checked_dims
from tc.frontend.onnx import Imported, load_model
from tc.frontend.onnx.tensors import map_file
from tc.ir.arith import Facts, evaluate
from tc.ir.expr import Expr, Var
from tc.ir.graph import Attrs, AttrValue, Binding, CallFunction, CallTir, Function, GlobalRef, TensorVar, all_bindings
from tc.ir.module import IRModule
from tc.ir.node import replace
from tc.ir.plan import CallOut, ExecutionPlan
from tc.ir.verify import verify as verify_ir
from tc.ops.registry import PYTHON_FUNCTIONS, get_op, inference
from tc.ops.restate import restate
from tc.passes.graph.canonicalize import canonicalize
from tc.passes.graph.convert_layout import convert_layout
from tc.passes.graph.cse import share_common_subexpressions
from tc.passes.graph.dce import remove_dead_code
from tc.passes.graph.find_attention import find_attention
from tc.passes.graph.find_idioms import find_idioms
from tc.passes.graph.fold_constants import fold_constants
from tc.passes.graph.fuse_ops import fuse_ops
from tc.passes.graph.pack_matmul import pack_matmul
from tc.passes.graph.plan_memory import plan_memory
from tc.passes.graph.prove_indices import prove_indices
from tc.passes.graph.questions import Answer, own_answer
from tc.passes.graph.simplify_graph import simplify_graph
from tc.passes.graph.simplify_splits import simplify_splits
from tc.passes.graph.split_phases import split_phases
from tc.passes.graph.use_winograd import use_winograd
from tc.passes.lower import lower_primitives
from tc.passes.manager import Stopwatch, map_prim_funcs
from tc.records.apply import TunedSchedules
from tc.records.database import Database
from tc.runtime.builder import ENTRY, ModuleBuilder, Program
from tc.runtime.callbacks import provide_reference_kernels
from tc.runtime.collector import rare_collections
from tc.runtime.entry import EntrySource
from tc.runtime.float_mode import usual_float_mode
from tc.runtime.jit import Library
from tc.runtime.loading import load_sealed
from tc.runtime.module import CompiledModule
from tc.runtime.module_cache import ModuleCache, module_key
from tc.runtime.report import KernelReport, Report
from tc.target import Target, check_threads

Model = str | os.PathLike[str] | bytes | onnx.ModelProto | IRModule

@dataclass
class Stages:
    """Everything that compilation makes on the way, for those who want to look at it."""

    imported: Imported
    graph: IRModule
    lowered: IRModule
    kernels: dict[str, Kernel]
    module: IRModule
    plan: ExecutionPlan
    seconds: dict[str, float] = field(default_factory=dict)

    def sources(self) -> dict[TensorVar, tuple[str, ...]]:
        """For each result of a primitive function, the model's nodes inside the function that made it."""
        return nodes_by_result(self.graph)


def primitive_calls(module: IRModule) -> Iterator[tuple[Binding, Function]]:
    """The bindings of a fused module that call primitive functions, and the functions."""
    for binding in all_bindings(module.main):
        if isinstance(binding.value, CallFunction) and isinstance(binding.value.callee, GlobalRef):
            inner = module[binding.value.callee.name]
            assert isinstance(inner, Function)
            yield binding, inner


def nodes_by_result(module: IRModule) -> dict[TensorVar, tuple[str, ...]]:
    """For each result of a primitive function, the model's nodes inside the function that made it."""
    found: dict[TensorVar, tuple[str, ...]] = {}
    for binding, inner in primitive_calls(module):
        nodes = tuple(dict.fromkeys(str(b.span) for b in inner.bindings if b.span is not None))
        found.update(dict.fromkeys(binding.targets, nodes))
    return found


def optimize_graph(module: IRModule, numerics: str = "default") -> IRModule:
    """The graph passes, up to fusion."""
    module = canonicalize(module)
    module = fold_constants(module)
    module = canonicalize(module)  # branches on conditions that folding made known
    module = simplify_graph(module, exact=numerics == "strict")
    module = fold_constants(module)
    module = prove_indices(share_common_subexpressions(module))
    if numerics == "strict":  # what follows computes the same in another way
        return remove_dead_code(module)
    module = find_idioms(module)
    module = find_attention(module)  # when equal values are one: what else uses the scores shows
    return remove_dead_code(module)


def mark_numerics(module: IRModule, numerics: str) -> IRModule:
    """Note on every PrimFunc, as attribute "numerics", what rules and code generation may do to its floats, unless all is as usual."""
    if numerics == "default":
        return module
    return map_prim_funcs(module, lambda func: replace(func, attrs=(*func.attrs, ("numerics", numerics))))


@dataclass(frozen=True)
class LoweredModel:
    """A model up to its PrimFuncs: what was imported, the graph with primitive functions, and the same with PrimFuncs in their place."""

    imported: Imported
    fused: IRModule
    lowered: IRModule

    @cached_property
    def workloads(self) -> dict[str, str]:
        """What tuning records know the PrimFuncs by, by their names."""
        return {func.name: workload_key(func) for func in self.lowered.prim_funcs}


@dataclass(frozen=True)
class PreparedModel:
    """A model up to a graph pass that leaves something open; nothing before it depends on an answer."""

    imported: Imported
    graph: IRModule
    target: Target
    numerics: str


def prepare_model(
    model: Model,
    target: Target,
    dims: Mapping[str, Dim | int] | None = None,
    on_unsupported: str = "fallback",
    numerics: str = "default",
    watch: Stopwatch | None = None,
    assume_equal: bool = True,
    overridden: Collection[str] = (),
) -> PreparedModel:
    """Import, the passes of `optimize_graph`, and what layouts need."""
    watch = watch or Stopwatch()
    with watch.time("import"):
        imported = import_model(model, dims, on_unsupported, assume_equal, overridden)
    with watch.time("graph passes"):
        graph = optimize_graph(imported.module, numerics)
        graph = split_phases(graph, block=target.lanes(32), strict=numerics == "strict")
        graph = simplify_splits(graph, block=target.lanes(32))
    return PreparedModel(imported, graph, target, numerics)


def lay_out(model: PreparedModel, answer: Answer = own_answer, watch: Stopwatch | None = None) -> PreparedModel:
    """Choose layouts, as `answer` decides."""
    watch = watch or Stopwatch()
    with watch.time("graph passes"):
        graph = convert_layout(model.graph, block=model.target.lanes(32), answer=answer)
    return dataclasses.replace(model, graph=graph)


def lower_model(model: PreparedModel, answer: Answer = own_answer, watch: Stopwatch | None = None) -> LoweredModel:
    """Everything else before schedules, of a model with layouts; `answer` decides what graph passes leave open."""
    watch = watch or Stopwatch()
    with watch.time("graph passes"):
        graph = use_winograd(model.graph, enable=model.numerics == "default", answer=answer)
        graph = remove_dead_code(pack_matmul(graph, lanes=model.target.lanes(32), answer=answer))
        fused = fuse_ops(graph, answer=answer)
    with watch.time("lower"):
        lowered = mark_numerics(lower_primitives(fused), model.numerics)
    return LoweredModel(model.imported, fused, lowered)


def run_stages(
    model: Model,
    target: Target,
    dims: Mapping[str, Dim | int] | None = None,
    on_unsupported: str = "fallback",
    numerics: str = "default",
    tuned: Tuned | None = None,
    assume_equal: bool = True,
    overridden: Collection[str] = (),
    ready: Callable[[Kernel], None] | None = None,
) -> Stages:
    """Everything up to the execution plan; nothing is emitted. `tuned`: what measurements have shown to be best.

    assume_equal, overridden: see `load_model`. ready: told of each kernel as soon as it is scheduled.
    """
    watch = Stopwatch()
    answer = own_answer if tuned is None else tuned.answer
    prepared = prepare_model(model, target, dims, on_unsupported, numerics, watch, assume_equal, overridden)
    found = lower_model(lay_out(prepared, answer, watch), answer, watch)
    with watch.time("schedule"):
        module, kernels = schedule_module(found.lowered, target, tuned, ready)
    with watch.time("plan"):
        plan = plan_memory(module, found.imported.requirements)
    return Stages(found.imported, found.fused, found.lowered, kernels, module, plan, watch.seconds)


def check_model(model: object) -> None:
    """UserError for what no model can be made of."""
    if not isinstance(model, (str, os.PathLike, bytes, bytearray, memoryview, onnx.ModelProto, IRModule)):
        kinds = "the path of an ONNX file, its bytes, an onnx.ModelProto or a tc IRModule"
        raise UserError(f"the model is a {type(model).__name__}, must be {kinds}")


def check_words(numerics: object, on_unsupported: object, verify: object = "auto") -> None:
    """UserError for an option that is none of the words it may be."""
    words = {
        "numerics": (numerics, ("default", "strict")),
        "verify": (verify, ("auto", "always", "never")),
        "on_unsupported": (on_unsupported, ("fallback", "error")),
    }
    for name, (given, known) in words.items():
        if not isinstance(given, str) or given not in known:
            raise UserError(f"{name} is {given!r}; it must be {', '.join(map(repr, known[:-1]))} or {known[-1]!r}")


def import_model(
    model: Model,
    dims: Mapping[str, Dim | int] | None,
    on_unsupported: str,
    assume_equal: bool = True,
    overridden: Collection[str] = (),
) -> Imported:
    """The front end for whatever `model` is."""
    check_model(model)
    if isinstance(model, IRModule):
        verify_ir(model)
        return Imported(restate(model), (), ())
    return load_model(model, dims=dims, on_unsupported=on_unsupported, assume_equal=assume_equal, overridden=overridden)


@rare_collections()
@usual_float_mode()
def compile_model(
    model: Model,
    target: str | Target = "native",
    *,
    dims: Mapping[str, Dim | int] | None = None,
    tune: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    numerics: str = "default",
    verify: str = "auto",
    on_unsupported: str = "fallback",
    overridden: Collection[str] = (),
) -> CompiledModule:
    """Compile a model to native code.

    model: path of an ONNX file, its bytes, an onnx.ModelProto, or an IRModule.
    target: "native", "x86-64-v3", ... or a Target.
    dims: facts about the model's symbolic dims, by name: an int fixes one, `tc.Dim(lo, hi, multiple_of)` bounds it.
    tune: path of a tuning database: kernels that it knows for this target and this number of threads get the best schedules found;
        `report().notes` says which of them could not be used. `tc.compile` also takes a time budget such as "10m": the model is tuned
        first.
    threads: how many threads a call may use; by default what TC_NUM_THREADS or OMP_NUM_THREADS say, else one for each core.
    numerics: "default" fuses a product and a sum into one rounding, and may compute the same function in another way (a
        normalization folded into weights, attention in one pass, 3x3 convolutions by Winograd's method, in which one infinite or NaN
        input may spoil a tile of results). "strict" computes each operator as it is defined, every sum
        and product rounded by itself; the terms of a reduction are added in the order of the kernel's schedule, as trees where they are
        many: errors have the bounds that README states in either case.
    verify: "auto" checks IR that is given as such, "never" none. "always" checks the IR of every stage, and compares every compiled
        kernel that one small random input reaches with the reference interpreter: VerifyError naming node and kernel.
    on_unsupported: "fallback" runs nodes without native code on their reference kernels; "error" raises UnsupportedError.
    overridden: inputs with a default in the file that are to be inputs of the module. It need not be said: a module that is given such
        an input by name is compiled again, once for each set of them.

    Raises ModelError for damaged models, UnsupportedError for what cannot be compiled.
    """
    check_words(numerics, on_unsupported, verify)
    check_model(model)
    dims = checked_dims(dims)
    chosen = Target.of(target)
    count = chosen.cores if threads is None else check_threads(threads)
    chosen = dataclasses.replace(chosen, cores=count)
    tuned = None if tune is None else _open_tuned(tune, chosen)
    overridden = tuple(sorted(set(overridden)))
    facts = (str(chosen), sorted(dims.items()), count, numerics, on_unsupported, _state_of(tune), overridden)
    stages_of = partial(run_stages, model, chosen, dims, on_unsupported, numerics, tuned, overridden=overridden)
    key = _module_key(model, facts) if verify != "always" else None
    start = time.perf_counter()

    def general() -> CompiledModule:
        """The program that assumes nothing of dims that may be broadcast."""
        other = ModuleBuilder(chosen)
        return build_module(stages_of(assume_equal=False, ready=other.want), other, count)

    def overriding(names: tuple[str, ...]) -> CompiledModule:
        """The program that takes these inputs as well."""
        options = {"dims": dims, "tune": tune, "threads": count, "numerics": numerics, "verify": verify, "on_unsupported": on_unsupported}
        return compile_model(model, chosen, **options, overridden=(*overridden, *names))  # type: ignore[arg-type]

    known = ModuleCache().find(key, lambda path, seal: load_sealed(path, seal, count)) if key is not None else None
    if isinstance(known, CompiledModule):
        seconds = time.perf_counter() - start

        def profiled() -> tuple[EntrySource, Library]:
            if _module_key(model, facts) != key:
                raise UserError("profile: the model's file has changed since it was compiled; compile it again")
            other = ModuleBuilder(chosen)
            return _profiled_entry(stages_of(ready=other.want), other)

        known.set_origin(seconds, profiled, general)
        known.set_overriding(known.overridable, overriding)
        return known
    builder = ModuleBuilder(chosen)
    stages = stages_of(ready=None if verify == "always" else builder.want)
    _verify_stages(stages, verify, isinstance(model, IRModule))
    for kernel in stages.kernels.values() if verify == "always" else ():
        builder.want(kernel)  # no code of what is not well formed
    module = build_module(stages, builder, count, () if tuned is None else tuple(tuned.summary()))
    module.set_general(general)
    module.set_overriding(stages.imported.defaults, overriding)
    if verify == "always":
        kernels = {
            name: CompiledKernel(name, kernel.final, module.address(kernel.symbol)) for name, kernel in stages.kernels.items()
        }
        verify_kernels(stages.graph, stages.lowered, kernels, stages.imported.requirements, threads=count)
    if key is not None and not stages.imported.data_files:  # the key says nothing of other files
        ModuleCache().store(key, sum(c.value.nbytes for c in stages.plan.constants), module.save_sealed)
    return module


def _open_tuned(path: str | os.PathLike[str], target: Target) -> TunedSchedules:
    """What a tuning database knows for this target."""
    if not isinstance(path, (str, os.PathLike)):
        raise UserError(f"tune is a {type(path).__name__}, must be a time budget such as '10m' or the path of a tuning database")
    if not Path(path).is_file():
        raise UserError(f"tune: there is no tuning database {os.fspath(path)!r}; tc tune makes one")
    return TunedSchedules(Database(Path(path), create=False), target, target.cores)


def _state_of(path: str | os.PathLike[str] | None) -> object:
    """What changes when the file does: a module that was compiled with other records is another module."""
    if path is None:
        return None
    found = Path(path).stat()
    return str(Path(path).resolve()), found.st_size, found.st_mtime_ns


def _module_key(model: Model, facts: tuple[object, ...]) -> str | None:
    """The key of the compiled module in the cache; None for IR and for files that cannot be read: the importer says what is wrong."""
    match model:
        case bytes():
            data: bytes | memoryview = model
        case str() | os.PathLike():
            try:
                data = map_file(Path(model))
            except ModelError:
                return None
        case _:
            return None
    return module_key(data, facts)


def _profiled_entry(stages: Stages, builder: ModuleBuilder) -> tuple[EntrySource, Library]:
    """The entry point that times every kernel."""
    (timed,) = builder.link([Program.of(stages.plan, stages.kernels)], profile=True)
    return timed.entry, timed.library


def _verify_stages(stages: Stages, mode: str, from_ir: bool) -> None:
    """Check that the IR is well formed: what a user wrote by hand ("auto"), or every stage ("always")."""
    if mode == "always" or (mode == "auto" and from_ir):
        verify_ir(stages.imported.module)
    if mode == "always":
        for module in (stages.graph, stages.lowered, stages.module):
            verify_ir(module)


def build_module(stages: Stages, builder: ModuleBuilder, threads: int, notes: tuple[str, ...] = ()) -> CompiledModule:
    """The module of a model, of whose kernels the builder was told; `notes` go into the report."""
    program = Program.of(stages.plan, stages.kernels)
    (linked,) = builder.link([program])
    constants = builder.constants(stages.plan)

    def profiled() -> tuple[EntrySource, Library]:
        (timed,) = builder.link([program], profile=True)
        return timed.entry, timed.library

    seconds = {**stages.seconds, **builder.watch.seconds}
    report = dataclasses.replace(_report(stages, builder.made, constants, seconds), notes=notes)
    return CompiledModule(
        stages.plan,
        linked.entry,
        linked.library,
        ENTRY,
        constants,
        threads,
        run_reference,
        report,
        _explanations(stages),
        linked.objects,
        str(builder.target),
        profiled,
    )


def run_reference(call: CallOut, args: list[np.ndarray | None], env: dict[Var, int]) -> tuple[np.ndarray, ...]:
    """Run a node on its reference kernel: an operator's, or a registered Python function."""
    kind, _, name = call.symbol.partition(":")
    with located(call.span):
        try:
            if kind == "py":
                attrs = Attrs(tuple((key, _literal(value, env)) for key, value in call.attrs))
                return tuple(PYTHON_FUNCTIONS[name](args, attrs))
            op = get_op(name)
            attrs = Attrs(tuple((key, _literal(value, env)) for key, value in op.attrs(call.attrs).items()))
            with inference(Facts()), np.errstate(all="ignore"):
                return op.run_reference(args, attrs)
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:  # numpy's words for values that do not fit
            raise InputError(f"{type(error).__name__}: {error}") from error


def check_reference(symbol: str) -> None:
    """UnsupportedError for the symbol of a call out that nothing here is registered for."""
    kind, _, name = symbol.partition(":")
    if kind == "op":
        get_op(name)
    elif kind != "py" or name not in PYTHON_FUNCTIONS:
        raise UnsupportedError(f"the module calls {symbol!r}, which is not registered in this process")


provide_reference_kernels(run_reference, check_reference)


def _literal(value: AttrValue, env: Mapping[Var, int]) -> AttrValue:
    if isinstance(value, tuple):
        return tuple(_literal(item, env) for item in value)
    return int(evaluate(value, env)) if isinstance(value, Expr) else value


def _report(stages: Stages, compiled: set[str], constants: list[np.ndarray], seconds: dict[str, float]) -> Report:
    sources = stages.sources()
    groups: dict[str, list[tuple[str, ...]]] = {}
    fallbacks: list[str] = []
    for binding in all_bindings(stages.lowered.main):
        value = binding.value
        if isinstance(value, CallTir):
            groups.setdefault(value.callee, []).append(_nodes_of(sources, binding))
    for call in _callouts(stages.plan):
        fallbacks.append(f"{call.span} ({call.symbol})")
    kernels = []
    for name, calls in groups.items():
        kernel = stages.kernels[name]
        nodes = tuple(dict.fromkeys(node for call in calls for node in call))
        kernels.append(KernelReport(name, nodes, len(calls), kernel.rule, kernel.symbol not in compiled, kernel.is_tuned))
    total = sum(c.nbytes for c in constants)
    return Report(tuple(kernels), tuple(fallbacks), tuple(seconds.items()), str(stages.plan.arena_bytes), total)


def _nodes_of(sources: Mapping[TensorVar, tuple[str, ...]], binding: Binding) -> tuple[str, ...]:
    """The model's nodes behind one kernel call: the spans inside the primitive function that made its targets."""
    return sources.get(binding.targets[0], (str(binding.span),))


def _callouts(plan: ExecutionPlan) -> list[CallOut]:
    found: list[CallOut] = []

    def visit(steps: Any) -> None:
        for step in steps:
            if isinstance(step, CallOut):
                found.append(step)
            for name in ("then_steps", "else_steps", "body"):
                visit(getattr(step, name, ()))

    visit(plan.steps)
    return found


def _explanations(stages: Stages) -> dict[str, str]:
    """For every node of the model, in which kernel it runs, with what, and how that kernel is scheduled."""
    sources = stages.sources()
    texts: dict[str, str] = {}
    for binding in all_bindings(stages.lowered.main):
        if isinstance(binding.value, CallTir):
            kernel = stages.kernels[binding.value.callee]
            nodes = _nodes_of(sources, binding)
            together = ", ".join(nodes)
            for node in nodes:
                texts[node] = (
                    f"{node} runs in kernel {kernel.name}, together with: {together}\n"
                    f"rule: {kernel.rule}\nschedule:\n{kernel.trace or '(as written)'}"
                )
    return texts
