"""LLVM IR text to object code, and object code to callable addresses."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from llvmlite import binding as llvm
from llvmlite.binding import ffi

from tc.codegen.llvm import conversions
from tc.codegen.llvm.object_symbols import symbols_of
from tc.codegen.llvm.products import MARK
from tc.errors import CodegenError
from tc.target import Target, native_target

_init_lock = threading.Lock()
_initialized = False
_FORK_WAIT_SECONDS = 5.0
PLAIN_ENTRY_BYTES = 8192
"""The text of an entry up to which LLVM's passes are left out: they take as long as the code generator, every run of them leaves 1.5 KB
in llvmlite that nothing frees, and no call was found to be slower. (One of 386 KB is: by 6 %.)"""
GROUPED_BYTES = 16384
"""Kernels with less text go through LLVM's passes together, up to this much at a time: each run of the passes leaves 1.5 KB in llvmlite,
and costs as much as a small kernel before it begins."""
_forking = threading.local()


def _initialize() -> None:
    global _initialized
    with _init_lock:
        if not _initialized:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            llvm.initialize_native_asmparser()
            _initialized = True


def _target_machine(target: Target) -> llvm.TargetMachine:
    """A machine for the target; kernels are position independent, so that they can also go into a shared library."""
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.llvm_features, opt=2, reloc="pic", codemodel="default"
    )


def _optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Promote allocas, clean up, hoist invariants. No vectorizer and no unroller: the schedule has decided.

    llvmlite guards every call by one lock, though LLVM needs none between modules of different contexts: the optimizer and the
    code generator, where the time goes, are called past that lock.
    """
    builder = _pass_builder(machine)
    _run_passes(builder.getModulePassManager(), module, builder)


def _optimize_products(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """What `_optimize` would do for products in register tiles, in a sixth of the time: tiles become registers, branches are merged,
    addresses take their usual form. The code generator itself moves what does not change out of loops."""
    manager = llvm.create_new_module_pass_manager()
    manager.add_sroa_pass()
    manager.add_simplify_cfg_pass()
    manager.add_instruction_combine_pass()
    manager.add_simplify_cfg_pass()
    _run_passes(manager, module, _pass_builder(machine))


def _pass_builder(machine: llvm.TargetMachine) -> llvm.PassBuilder:
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = False
    tuning.slp_vectorization = False
    tuning.loop_unrolling = False
    tuning.loop_interleaving = False
    return llvm.create_pass_builder(machine, tuning)


def _run_passes(manager: llvm.ModulePassManager, module: llvm.ModuleRef, builder: llvm.PassBuilder) -> None:
    try:
        ffi.lib._lib.LLVMPY_RunNewModulePassManager(manager, module, builder)
    finally:  # llvmlite's own finalizer finds a method that does nothing first: every pipeline, 56 KB, would stay
        ffi.lib.LLVMPY_DisposeNewModulePassManger(manager)
        manager.detach()


def _parse(ir_text: str, context: llvm.ContextRef | None = None) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(ir_text, context)
        module.verify()
    except RuntimeError as error:
        raise CodegenError(f"LLVM refuses the module: {error}") from None
    return module


def foreign_assembly(ir_text: str, triple: str, cpu: str, features: str) -> str:
    """The assembly of a module, optimized, for a processor that is not this machine's."""
    _initialize()
    _initialize_all()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3)
    module = _parse(ir_text, llvm.create_context())
    module.triple = triple
    module.data_layout = str(machine.target_data)
    _optimize(module, machine)
    return str(machine.emit_assembly(module))


@functools.cache
def _initialize_all() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def compile_object(ir_text: str, target: Target | None = None) -> bytes:
    """The object file of one module."""
    return compile_group([ir_text], True, target or native_target())[0]


def compile_group(ir_texts: Sequence[str], optimized: bool, target: Target) -> list[bytes]:
    """The object files of modules that define different symbols and do not call each other. `optimized`: by one run of LLVM's passes, but
    each of products by itself, in which few passes suffice."""
    _initialize()
    machine = _target_machine(target)
    context = llvm.create_context()
    modules = [_for_machine(_parse(text, context), machine) for text in ir_texts]
    if not optimized:
        return [_emit_unlocked(machine, module) for module in modules]
    if len(ir_texts) == 1 and len(ir_texts[0]) >= GROUPED_BYTES:
        _optimize_alone(ir_texts[0], modules[0], machine)
        return [_emit_unlocked(machine, modules[0])]
    objects = {}
    for number, (text, module) in enumerate(zip(ir_texts, modules, strict=True)):
        if text.startswith(MARK):
            _optimize_products(module, machine)
            objects[number] = _emit_unlocked(machine, module)
    others = [number for number in range(len(modules)) if number not in objects]
    optimized_others = _optimized_together([modules[number] for number in others], machine, context) if others else ()
    objects |= {number: _emit_unlocked(machine, module) for number, module in zip(others, optimized_others, strict=True)}
    return [objects[number] for number in range(len(modules))]


def _optimize_alone(text: str, module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    (_optimize_products if text.startswith(MARK) else _optimize)(module, machine)


def _for_machine(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    return module


def _optimized_together(
    modules: Sequence[llvm.ModuleRef], machine: llvm.TargetMachine, context: llvm.ContextRef
) -> Iterator[llvm.ModuleRef]:
    """The modules, which define different symbols and do not call each other, after one run of LLVM's passes; they are used up.

    Each is copied out of the joint module, also when it is alone: the order of uses, which decides between instructions that are as
    good, is that of the copy, so the code of a module does not depend on its company.
    """
    names = [[each.name for each in (*module.functions, *module.global_variables) if _is_visible(each)] for module in modules]
    joint = _for_machine(_parse("", context), machine)
    for module in modules:
        joint.link_in(module)
    _optimize(joint, machine)
    joined = {each.name: each for each in (*joint.functions, *joint.global_variables)}
    for name in itertools.chain(*names):
        joined[name].linkage = llvm.Linkage.available_externally
    for own in names:
        for name in own:
            joined[name].linkage = llvm.Linkage.external
        module = _for_machine(_parse("", context), machine)
        module.link_in(joint, preserve=True)  # what is available elsewhere stays behind, and what only that used
        for name in own:
            joined[name].linkage = llvm.Linkage.available_externally
        yield module


def _is_visible(value: llvm.ValueRef) -> bool:
    return not value.is_declaration and value.linkage is llvm.Linkage.external


@dataclass(frozen=True)
class Disassembly:
    """What a module looks like after optimization."""

    ir_text: str
    assembly: str


def disassemble(ir_text: str, target: Target) -> Disassembly:
    """The optimized LLVM IR and the assembly of a module."""
    _initialize()
    machine = _target_machine(target)
    module = _for_machine(_parse(ir_text, llvm.create_context()), machine)
    _optimize_alone(ir_text, module, machine)
    return Disassembly(str(module), machine.emit_assembly(module))


def _emit_unlocked(machine: llvm.TargetMachine, module: llvm.ModuleRef) -> bytes:
    library = ffi.lib._lib
    with ffi.OutputString() as message:
        buffer = library.LLVMPY_TargetMachineEmitToMemory(machine, module, 1, message)
        if not buffer:
            raise CodegenError(f"LLVM cannot generate code: {message}")
    try:
        return ctypes.string_at(library.LLVMPY_GetBufferStart(buffer), library.LLVMPY_GetBufferSize(buffer))
    finally:
        library.LLVMPY_DisposeMemoryBuffer(buffer)


class Library:
    """Linked object code. Addresses are valid as long as the library is alive."""

    device = None

    def __init__(self, engine: llvm.ExecutionEngine) -> None:
        self._engine = engine

    def address(self, name: str) -> int:
        """The address of a function or global; CodegenError when there is none."""
        found = self._engine.get_function_address(name) or self._engine.get_global_value_address(name)
        if not found:
            raise CodegenError(f"symbol {name!r} is not in the library")
        return int(found)


@functools.cache
def _link_context() -> llvm.ContextRef:
    """The context of the empty modules that engines want. It is never freed: the garbage collector may free an engine's parts
    in any order, and a context that goes before its engine takes the process down."""
    return llvm.create_context()


def link(objects: Iterable[bytes]) -> Library:
    """Load object files into the process. External symbols come from the process and from llvmlite's `add_symbol`.

    CodegenError for a symbol that nobody has: LLVM would take its address to be 0.
    """
    _initialize()
    objects = list(objects)
    symbols = [symbols_of(data) for data in objects]
    wanted = frozenset().union(*(each.undefined for each in symbols)).difference(*(each.defined for each in symbols))
    if not wanted.isdisjoint(conversions.NAMES):
        _provide_conversions()
    return _link(objects, wanted)


_conversions_lock = threading.Lock()
_conversions: Library | None = None


def _provide_conversions() -> None:
    """Make `conversions` known to `link`, once."""
    global _conversions
    with _conversions_lock:
        if _conversions is None:
            library = _link([compile_object(conversions.IR)], ())
            for name in conversions.NAMES:
                llvm.add_symbol(name, library.address(name))
            _conversions = library


def _link(objects: Sequence[bytes], wanted: Iterable[str]) -> Library:
    machine = _target_machine(native_target())
    engine = llvm.create_mcjit_compiler(_parse("", _link_context()), machine)
    missing = sorted(name for name in wanted if not llvm.address_of_symbol(name))  # the first engine makes the process's symbols known
    if missing:
        raise CodegenError(f"the code calls what is not in this process: {', '.join(missing)}")
    for data in objects:
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return Library(engine)


def _before_fork() -> None:
    """Let no other thread be inside LLVM's shared parts, so that the child gets them whole. Those calls are short."""
    _forking.holds = ffi.lib._lock._lock.acquire(timeout=_FORK_WAIT_SECONDS)


def _after_fork_in_parent() -> None:
    if _forking.holds:
        ffi.lib._lock._lock.release()


def _after_fork_in_child() -> None:
    global _init_lock, _conversions_lock
    _init_lock, _conversions_lock = threading.Lock(), threading.Lock()
    if _forking.holds:
        ffi.lib._lock._lock.release()
    else:  # its owner does not exist here
        ffi.lib._lock._lock = threading.RLock()


if hasattr(os, "register_at_fork") and hasattr(getattr(ffi.lib, "_lock", None), "_lock"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
