"""LLVM IR text to object code, and object code to callable addresses."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from llvmlite import binding as llvm
from llvmlite.binding import ffi

from tc.codegen.llvm import conversions
from tc.codegen.llvm.object_symbols import Symbols, symbols_of
from tc.codegen.llvm.products import EXCHANGES, MARK
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


def _optimize_functions(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """The same for a large kernel in which lanes are not exchanged, in two thirds of the time: by LLVM's passes over functions, and a last
    cleaning. Those over whole modules, and around the vectorizer, change nothing that was measured: nothing is called that could be
    inlined."""
    builder = _pass_builder(machine)
    functions = builder.getFunctionPassManager()
    try:
        for function in module.functions:
            if not function.is_declaration:
                ffi.lib._lib.LLVMPY_RunNewFunctionPassManager(functions, function, builder)
    finally:  # as below
        ffi.lib.LLVMPY_DisposeNewFunctionPassManger(functions)
        functions.detach()
    manager = llvm.create_new_module_pass_manager()
    manager.add_instruction_combine_pass()
    manager.add_simplify_cfg_pass()
    _run_passes(manager, module, builder)


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


class _Module(llvm.ModuleRef):  # type: ignore[misc]  # no types there
    """A module that its context frees, as LLVM's contexts do. An exception, which holds all that stood around it, goes to Python's
    collector, which frees in any order: a module freed after its context, as llvmlite's do by themselves, takes the process down."""

    _owned = True

    def clone(self) -> _Module:
        return _Module(ffi.lib.LLVMPY_CloneModule(self), self._context)


def _parse(ir_text: str, context: llvm.ContextRef) -> llvm.ModuleRef:
    with ffi.OutputString() as message:
        module = _Module(ffi.lib.LLVMPY_ParseAssembly(context, ir_text.encode(), message), context)
        if message:
            raise CodegenError(f"LLVM refuses the module: {message}")
    try:
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
        return [_emit(machine, context, module) for module in modules]
    if len(ir_texts) == 1 and len(ir_texts[0]) >= GROUPED_BYTES:
        _optimize_alone(ir_texts[0], modules[0], machine)
        return [_emit(machine, context, modules[0])]
    objects = {}
    for number, (text, module) in enumerate(zip(ir_texts, modules, strict=True)):
        if text.startswith(MARK):
            _optimize_products(module, machine)
            objects[number] = _emit(machine, context, module)
    others = [number for number in range(len(modules)) if number not in objects]
    optimized_others = _optimized_together([modules[number] for number in others], machine, context) if others else ()
    objects |= {number: _emit(machine, context, module) for number, module in zip(others, optimized_others, strict=True)}
    return [objects[number] for number in range(len(modules))]


def _optimize_alone(text: str, module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    if text.startswith(MARK):
        _optimize_products(module, machine)
    else:
        (_optimize if text.startswith(EXCHANGES) or len(text) < GROUPED_BYTES else _optimize_functions)(module, machine)


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


_ROOM = """@tc.room = private global i64 0
@llvm.compiler.used = appending global [1 x ptr] [ptr @tc.room], section "llvm.metadata"
"""
"""With it an object has a page of memory that may be written, in which there is room for the addresses of what it calls: the loader asks
for that when the rest of the object has its memory."""


def _emit(machine: llvm.TargetMachine, context: llvm.ContextRef, module: llvm.ModuleRef) -> bytes:
    """The object file; LLVM's code generator runs while other threads do."""
    module.link_in(_for_machine(_parse(_ROOM, context), machine))
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

    def __init__(self, engines: Sequence[llvm.ExecutionEngine]) -> None:
        self._engines = tuple(engines)

    def address(self, name: str) -> int:
        """The address of a function or global; CodegenError when there is none."""
        found = next(filter(None, (_address_in(engine, name) for engine in reversed(self._engines))), 0)  # what calls the others is last
        if not found:
            raise CodegenError(f"symbol {name!r} is not in the library")
        return found


def _address_in(engine: llvm.ExecutionEngine, name: str) -> int:
    return int(engine.get_function_address(name) or engine.get_global_value_address(name))


@functools.cache
def _link_context() -> llvm.ContextRef:
    """The context of the modules that engines want. It is never freed: the garbage collector may free an engine's parts
    in any order, and a context that goes before its engine takes the process down."""
    return llvm.create_context()


def link(objects: Iterable[bytes]) -> Library:
    """Load object files into the process. External symbols come from each other, the process and llvmlite's `add_symbol`.

    CodegenError for a symbol that nobody has, of which LLVM would take the address to be 0, and where objects use each other in a circle.
    """
    _initialize()
    parts = [(data, symbols_of(data)) for data in objects]
    wanted = frozenset().union(*(each.undefined for _, each in parts)).difference(*(each.defined for _, each in parts))
    if not wanted.isdisjoint(conversions.NAMES):
        _provide_conversions()
    return _link(parts, wanted)


_conversions_lock = threading.Lock()
_conversions: Library | None = None


def _provide_conversions() -> None:
    """Make `conversions` known to `link`, once."""
    global _conversions
    with _conversions_lock:
        if _conversions is None:
            data = compile_object(conversions.IR)
            library = _link([(data, symbols_of(data))], ())
            for name in conversions.NAMES:
                llvm.add_symbol(name, library.address(name))
            _conversions = library


def _link(parts: Sequence[tuple[bytes, Symbols]], wanted: Iterable[str]) -> Library:
    """An engine for each object, whose memory is then one piece: code reaches its constants by 32 bits, and pieces that LLVM asks for
    one by one lie farther apart in a process that has its memory full."""
    _know_process()
    missing = sorted(name for name in wanted if not llvm.address_of_symbol(name))
    if missing:
        raise CodegenError(f"the code calls what is not in this process: {', '.join(missing)}")
    addresses: dict[str, int] = {}
    engines = []
    used = frozenset().union(*(symbols.undefined for _, symbols in parts))
    for data, symbols in _after_what_they_use(parts):
        uses = {name: addresses[name] for name in sorted(symbols.undefined & addresses.keys())}
        engine = _engine(uses, _fits_in_one_piece(symbols))
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        engine.finalize_object()
        addresses.update((name, _address_in(engine, name)) for name in symbols.defined & used)
        engines.append(engine)
    return Library(engines)


@functools.cache
def _know_process() -> None:
    """Make the symbols of the process known to LLVM: its first engine does."""
    _engine({}, True)


_PAGE_BYTES, _ADDRESS_BYTES, _SPARE_BYTES = 4096, 8, 64


def _fits_in_one_piece(symbols: Symbols) -> bool:
    """Whether the addresses of what an object calls go into the rest of the last page of its memory that may be written."""
    room = -symbols.writable_bytes % _PAGE_BYTES
    return not symbols.undefined or _ADDRESS_BYTES * len(symbols.undefined) + _SPARE_BYTES <= room


def _engine(addresses: Mapping[str, int], in_one_piece: bool) -> llvm.ExecutionEngine:
    """An engine for one object that uses symbols which are at these addresses."""
    module = _parse("\n".join(f'@"{name}" = external global i8' for name in addresses), _link_context())
    engine = llvm.create_mcjit_compiler(module, _target_machine(native_target()), use_lmm=in_one_piece)
    for name, address in addresses.items():
        engine.add_global_mapping(module.get_global_variable(name), address)
    engine.remove_module(module)  # else it is compiled, too, and asks for memory a second time
    return engine


def _after_what_they_use(parts: Sequence[tuple[bytes, Symbols]]) -> list[tuple[bytes, Symbols]]:
    """The objects in an order in which each comes after those that it uses."""
    makers = {name: place for place, (_, symbols) in enumerate(parts) for name in symbols.defined}
    uses = {
        place: {makers[name] for name in symbols.undefined - symbols.defined if name in makers}
        for place, (_, symbols) in enumerate(parts)
    }
    try:
        return [parts[place] for place in TopologicalSorter(uses).static_order()]
    except CycleError:
        raise CodegenError("objects use each other in a circle") from None


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
