"""The processor's floating-point mode: rounding to nearest, subnormal numbers kept, nothing trapped.

Another library of the process may have set another mode on the calling thread: to flush subnormal numbers to zero, or to round
upwards. Native code sets the usual one where it begins and puts the caller's back where it ends, so that results never depend on it;
worker threads set it once, since a new thread has the mode of the one that made it; and compiling is done in it.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

_X86_CONTROL = 0xFFC0
"""The bits of MXCSR that say how to compute; the others say what has happened."""
_X86_USUAL = 0x1F80

_X86_IR = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define i64 @{name}(ptr noundef %frame) nounwind {{
entry:
  %before = alloca i32, align 4
  %usual = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %before)
  %mode = load i32, ptr %before, align 4
  %control = and i32 %mode, {control}
  %same = icmp eq i32 %control, {usual}
  br i1 %same, label %run, label %set
run:
  %status = call i64 @{body}(ptr %frame)
  ret i64 %status
set:
  store i32 {usual}, ptr %usual, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %usual)
  %status1 = call i64 @{body}(ptr %frame)
  call void @llvm.x86.sse.ldmxcsr(ptr %before)
  ret i64 %status1
}}
"""

_ARM_IR = """
define i64 @{name}(ptr noundef %frame) nounwind {{
entry:
  %mode = call i64 asm sideeffect "mrs $0, fpcr", "=r"()
  %same = icmp eq i64 %mode, 0
  br i1 %same, label %run, label %set
run:
  %status = call i64 @{body}(ptr %frame)
  ret i64 %status
set:
  call void asm sideeffect "msr fpcr, $0", "r,~{{memory}}"(i64 0)
  %status1 = call i64 @{body}(ptr %frame)
  call void asm sideeffect "msr fpcr, $0", "r,~{{memory}}"(i64 %mode)
  ret i64 %status1
}}
"""

_PLAIN_IR = """
define i64 @{name}(ptr noundef %frame) nounwind {{
entry:
  %status = call i64 @{body}(ptr %frame)
  ret i64 %status
}}
"""

_WRAPPERS = {"x86_64": _X86_IR, "aarch64": _ARM_IR}

_X86_SET = f"""
  %float_mode = alloca i32, align 4
  store i32 {_X86_USUAL}, ptr %float_mode, align 4
  call void asm sideeffect "ldmxcsr $0", "*m"(ptr elementtype(i32) %float_mode)
"""
_SETTERS = {"x86_64": _X86_SET, "aarch64": '  call void asm sideeffect "msr fpcr, $0", "r"(i64 0)\n'}


def wrapped_in_usual_mode(name: str, body: str) -> str:
    """LLVM IR of `i64 name(ptr)`: `body`, of the same type, in the usual mode."""
    return _WRAPPERS.get(platform.machine(), _PLAIN_IR).format(name=name, body=body, control=_X86_CONTROL, usual=_X86_USUAL)


def set_usual_mode() -> str:
    """LLVM IR of instructions, for the entry block of a function, that set the usual mode."""
    return _SETTERS.get(platform.machine(), "")


_libm = ctypes.CDLL(None)
_GET, _SET = getattr(_libm, "fegetenv", None), getattr(_libm, "fesetenv", None)
_ENV_BYTES = 256  # more than any library's fenv_t


@contextmanager
def usual_float_mode() -> Iterator[None]:
    """Compute in the usual mode what the interpreter computes on this thread, and put back what was; also a decorator."""
    if _GET is None or _SET is None:
        yield
        return
    before = ctypes.create_string_buffer(_ENV_BYTES)
    _GET(before)
    _SET(ctypes.c_void_p(-1))  # FE_DFL_ENV of the GNU and musl libraries
    try:
        yield
    finally:
        _SET(before)
