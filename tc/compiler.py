"""From a model to a compiled module: the order of everything."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from tc.check.compare import CompiledKernel, verify_kernels, verify_stages
from tc.check.reproducer import explained
from tc.codegen.backend import Loaded
from tc.codegen.kernels import Kernel, TunedDecisions
from tc.errors import check_kind, checked_names
from tc.frontend.dims import Dim, checked_dims
from tc.frontend.registry import Model, check_words, import_model
from tc.ir.module import IRModule
from tc.ops.registry import OpDef, scoped_ops, seeing
from tc.passes.manager import Stopwatch
from tc.passes.pipeline import USUAL, PassOptions, PreparedModel, simplify_model
from tc.precision.choose import prepare_in
from tc.precision.request import USUAL_PRECISION, Calibration, PrecisionRequest, checked_precision
from tc.records.apply import TunedSchedules, states_of, tuned_for
from tc.runtime.builder import LinkUnit, ModuleBuilder, Stages, build_module, timed_entry
from tc.runtime.collector import rare_collections
from tc.runtime.entry import EntrySource
from tc.runtime.finish import finish_stages
from tc.runtime.float_mode import usual_float_mode
from tc.runtime.loading import load_sealed
from tc.runtime.module import CompiledModule
from tc.runtime.module_cache import ModelKey, ModuleCache, model_key, refuse_change
from tc.runtime.texts import kernel_files
from tc.target import Target, check_threads
from tc.target.machine import machine_fingerprint


def run_stages(
    model: Model,
    target: Target,
    dims: Mapping[str, Dim | int] | None = None,
    on_unsupported: str = "fallback",
    numerics: str = "default",
    tuned: TunedDecisions | None = None,
    assume_equal: bool = True,
    overridden: Collection[str] = (),
    ready: Callable[[Kernel], None] | None = None,
    passes: PassOptions = USUAL,
    expect: Callable[[IRModule], None] | None = None,
    precision: PrecisionRequest = USUAL_PRECISION,
) -> Stages:
    """Everything up to the execution plan; nothing is emitted. tuned: what measurements have shown to be best. assume_equal, overridden:
    see `load_model`. ready: told of each kernel as soon as it is scheduled. expect: told of the module as soon as it is lowered."""
    watch = Stopwatch()

    def prepare(equal: bool) -> PreparedModel:
        is_equal = equal and assume_equal
        imported = watch.apart("import", lambda: import_model(model, dims, on_unsupported, is_equal, overridden))
        return simplify_model(imported, target, numerics, passes)

    with watch.time("graph passes"):
        prepared = prepare_in(prepare, precision, watch)
    return finish_stages(prepared, watch, tuned, ready, expect)


@dataclass(frozen=True)
class CompileRequest:
    """A model, for what and how it is to be compiled: checked, and all that the result depends on."""

    model: Model
    target: Target
    dims: Mapping[str, Dim | int]
    numerics: str
    verify: str
    on_unsupported: str
    tune: str | os.PathLike[str] | None
    tuned: TunedSchedules | None
    overridden: tuple[str, ...]
    passes: PassOptions
    precision: PrecisionRequest = USUAL_PRECISION
    operators: Mapping[str, OpDef] = field(default_factory=scoped_ops)  # of users, when the module was asked for

    def stages(self, builder: ModuleBuilder | None, assume_equal: bool = True) -> Stages:
        """`run_stages` of it; a builder is told of what it makes."""
        what = (self.model, self.target, self.dims, self.on_unsupported, self.numerics, self.tuned, assume_equal, self.overridden)
        with seeing(self.operators):
            return run_stages(*what, builder.want if builder else None, self.passes, builder.expect if builder else None, self.precision)

    def key(self) -> ModelKey | None:
        """What the module cache knows the result by; None for IR, for files that cannot be read, and where somebody watches the passes."""
        if self.verify == "always" or self.passes != USUAL:
            return None
        target = str(self.target), machine_fingerprint(self.target), states_of(self.tune, self.target)
        facts = (*target, sorted(self.dims.items()), self.numerics, self.on_unsupported, self.overridden, *self.precision.facts)
        return model_key(self.model, facts, domains={name.partition("::")[0] for name in self.operators})

    def general(self, key: ModelKey | None) -> CompiledModule:
        """The program that assumes nothing of dims that may be broadcast."""
        refuse_change("sizes that need another program", key, self.key)
        with explained(vars(self), isinstance(self.model, IRModule), lambda again, options: compile_model(again, **options).general):
            return build_module(self.stages(builder := ModuleBuilder(self.target), assume_equal=False), builder, self.target.cores)

    def profiled(self, key: ModelKey) -> tuple[EntrySource, Loaded]:
        """The entry that times every kernel, for a module whose stages were not kept."""
        refuse_change("profile", key, self.key)
        stages = self.stages(builder := ModuleBuilder(self.target))
        return timed_entry(LinkUnit.of(stages.plan, stages.kernels), builder)

    def files(self, key: ModelKey | None, language: str | None) -> Mapping[str, str | bytes]:
        """See `CompiledModule.export`."""
        refuse_change("export", key, self.key)
        return kernel_files(lambda: self.stages(None), language, self.target)

    def overriding(self, key: ModelKey | None, names: tuple[str, ...]) -> CompiledModule:
        """The program that takes these inputs as well."""
        refuse_change("inputs with a default", key, self.key)
        more = tuple(sorted({*self.overridden, *names}))
        return compile_request(dataclasses.replace(self, tuned=tuned_for(self.tune, self.target), overridden=more))


@rare_collections()
@usual_float_mode()
def compile_request(request: CompileRequest) -> CompiledModule:
    """The module, from the cache if it is there."""
    builder, always = ModuleBuilder(request.target), request.verify == "always"  # first: it begins with what every module needs
    start, key, threads = time.perf_counter(), request.key(), request.target.cores
    known = ModuleCache().find_model(key, lambda path, seal: load_sealed(path, seal, threads), builder.beside)
    if isinstance(known, CompiledModule) and key is not None:
        known.set_origin(time.perf_counter() - start, partial(request.profiled, key), partial(request.general, key))
        known.set_overriding(known.overridable, partial(request.overriding, key))
        known.set_writer(partial(request.files, key))
        return known
    stages = request.stages(None if always else builder)
    verify_stages(stages, always, isinstance(request.model, IRModule) and request.verify == "auto")
    for kernel in stages.kernels.values() if always else ():  # no code of what is not well formed
        builder.want(kernel)
    notes = () if request.tuned is None else tuple(request.tuned.summary())
    module = build_module(stages, builder, threads, notes, request.precision.word)
    module.set_general(partial(request.general, key))
    module.set_overriding(stages.imported.defaults, partial(request.overriding, key))
    module.set_writer(partial(request.files, key))
    if always:
        compiled = {n: CompiledKernel(n, k.final, module.address(k.symbol), k.memory(module.device)) for n, k in stages.kernels.items()}
        verify_kernels(stages.graph, stages.lowered, compiled, stages.imported.requirements, threads=threads)
    if key is not None and stages.imported.data_files:
        key.add_files(stages.imported.data_files)
    elif key is not None:
        ModuleCache().store_model(key, sum(c.value.nbytes for c in stages.plan.constants), module.save_sealed)
    return module


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
    passes: PassOptions = USUAL,
    precision: str | PrecisionRequest = "f32",
    calibration: Calibration | None = None,
) -> CompiledModule:
    """Compile a model to native code.

    model: path of an ONNX file, its bytes, an onnx.ModelProto, or an IRModule. target: "native", "x86-64-v3", ... or a Target.
    dims: facts about the model's symbolic dims, by name: an int fixes one, `tc.Dim(lo, hi, multiple_of)` bounds it.
    tune: path of a tuning database: kernels that it knows for this target and this number of threads get the best schedules found;
        `report().notes` says which of them could not be used. `tc.compile` also takes a time budget such as "10m": the model is tuned
        first. Without it, kernels for a device have the schedules that come with tc for its architecture, where some do.
    threads: how many threads a call may use; by default what TC_NUM_THREADS or OMP_NUM_THREADS say, else one a core.
    numerics: "default" fuses a product and a sum into one rounding, and may compute the same function in another way (a
        normalization folded into weights, attention in one pass, 3x3 convolutions by Winograd's method, transposed ones by phases of their
        strides, grouped ones of 16 bits several groups at once, where one infinite or NaN input may spoil results beside those it reaches).
        "strict" computes each operator as it is defined, every sum and product rounded by itself; the terms of a reduction are added in
        the order of the kernel's schedule, as trees where they are many: errors have the bounds that README states in either case.
    verify: "auto" checks IR that is given as such, "never" none. "always" checks the IR of every stage, and compares every compiled
        kernel that one small random input reaches with the reference interpreter: VerifyError naming node and kernel.
    on_unsupported: "fallback" runs nodes without native code on their reference kernels; "error" raises UnsupportedError.
    overridden: inputs with a default that are inputs of the module; one that is given such an input by name is compiled again by itself.
    passes: what is done around each pass, and other passes of the graph (`tc.passes.pipeline.PassOptions`); no module is cached then.
    precision: what floats of f32 may become inside. "bf16": products take 16-bit operands and sum in f32, values between kernels have 16
        bits, all else is f32. "f16": so where values stay far from 65,504 on calibration inputs. "bf16x3": products of sums of two bf16.
        "mixed:1e-2": bf16 as far as every result keeps that relative L2 error on calibration inputs: arrays, or a folder of them.

    Raises ModelError for damaged models, UnsupportedError for what cannot be compiled, InternalError where tc fails.
    """
    asked = checked_precision(precision, calibration)
    check_words(numerics, on_unsupported, verify)
    check_kind("passes", passes, PassOptions)
    known, chosen, names = checked_dims(dims), Target.of(target), checked_names("overridden", overridden)
    chosen = chosen if threads is None else dataclasses.replace(chosen, cores=check_threads(threads))
    request = CompileRequest(model, chosen, known, numerics, verify, on_unsupported, tune, tuned_for(tune, chosen), names, passes, asked)
    with explained(vars(request), isinstance(model, IRModule), lambda again, options: compile_model(again, **options)):
        return compile_request(request)
