"""The CPU as a back end: LLVM IR as text, object files, linked into the process."""

from __future__ import annotations

from tc.codegen.backend import Backend
from tc.codegen.llvm.emitter import emit_prim_func
from tc.codegen.llvm.jit import compile_group, link
from tc.ir.loop import PrimFunc
from tc.passes.pipeline import FINISH_CALLS
from tc.target import Target


def emit_kernel(func: PrimFunc, symbol: str, target: Target) -> str:
    """LLVM IR of a kernel, under this symbol."""
    return emit_prim_func(func, symbol, target.features).ir_text


CPU = Backend("cpu", FINISH_CALLS, emit_kernel, compile_group, link)
