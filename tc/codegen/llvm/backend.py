"""The CPU as a back end: LLVM IR as text, object files, linked into the process."""

from __future__ import annotations

from collections.abc import Iterable

from tc.codegen.backend import Backend, Language
from tc.codegen.llvm.emitter import emit_prim_func
from tc.codegen.llvm.jit import Library, compile_group, disassemble, link
from tc.codegen.llvm.memory import SLOW_GATHERS
from tc.ir.loop import PrimFunc
from tc.passes.pipeline import FINISH_CALLS
from tc.target import Target
from tc.target.machine import machine_of

SLOW_CYCLES = 2.0
"""From so many cycles for each lane of a gathered vector on, loads of the lanes take less time: there are two in each cycle, and lanes
are joined meanwhile."""


def emit_kernel(func: PrimFunc, symbol: str, target: Target) -> str:
    """LLVM IR of a kernel, under this symbol."""
    is_slow = machine_of(target).gather_cycles_per_lane >= SLOW_CYCLES
    return emit_prim_func(func, symbol, (*target.features, *([SLOW_GATHERS] if is_slow else []))).ir_text


def load_objects(objects: Iterable[bytes], target: Target) -> Library:
    """Object files, linked; what they need of the target is in them."""
    return link(objects)


def _write_ir(func: PrimFunc, symbol: str, target: Target) -> str:
    return disassemble(emit_kernel(func, symbol, target), target).ir_text


def _write_assembly(func: PrimFunc, symbol: str, target: Target) -> str:
    return disassemble(emit_kernel(func, symbol, target), target).assembly


def _build_ir(file: str, target: Target) -> str:
    return f"llc -O3 -filetype=obj -relocation-model=pic -mcpu={target.cpu} -mattr={target.llvm_features} {file}"


def _build_assembly(file: str, target: Target) -> str:
    return f"cc -c {file}"


LANGUAGES = {
    "llvm": Language(".ll", _write_ir, _build_ir, comment="; {}"),
    "asm": Language(".s", _write_assembly, _build_assembly, comment="# {}"),
}

CPU = Backend("cpu", FINISH_CALLS, emit_kernel, compile_group, load_objects, languages=LANGUAGES)
