"""The CPU as a back end: LLVM IR as text, object files, linked into the process."""

from __future__ import annotations

from collections.abc import Iterable

from tc.codegen.backend import Backend
from tc.codegen.llvm.emitter import emit_prim_func
from tc.codegen.llvm.jit import Library, compile_group, link
from tc.ir.loop import PrimFunc
from tc.passes.pipeline import FINISH_CALLS
from tc.target import Target


def emit_kernel(func: PrimFunc, symbol: str, target: Target) -> str:
    """LLVM IR of a kernel, under this symbol."""
    return emit_prim_func(func, symbol, target.features).ir_text


def load_objects(objects: Iterable[bytes], target: Target) -> Library:
    """Object files, linked; what they need of the target is in them."""
    return link(objects)


CPU = Backend("cpu", FINISH_CALLS, emit_kernel, compile_group, load_objects)
