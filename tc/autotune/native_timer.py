"""Native code that calls a kernel many times and reads the clock around groups of calls.

On a device calls are work that is given to a queue: a group begins when the queue is empty and ends when it is empty again.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tc.codegen.llvm.jit import Library, compile_object, link
from tc.runtime.memory import ALIGNMENT
from tc.target import native_target

_CLOCK = getattr(time, "CLOCK_MONOTONIC", 1)

_TIMER_TEXT = """
declare i32 @clock_gettime(i32, ptr)
{declarations}

define internal void @nothing(ptr %context, i64 %begin, i64 %end, i64 %thread) nounwind {{
entry:
  ret void
}}

define internal i64 @now() nounwind {{
entry:
  %time = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 {clock}, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %part = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %part, align 8
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %rest
  ret i64 %sum
}}

define void @time_calls(ptr %kernel, ptr %tables, i64 %turn, i64 %count, ptr %scalars, i64 %threads, i64 %calls, i64 %groups,
                        ptr %out) nounwind {{
entry:
{scalars}
{begin}
  br label %group
group:
  %g = phi i64 [ 0, %entry ], [ %g1, %done ]
{of_group}
  %start = call i64 @now()
  br label %again
again:
  %c = phi i64 [ 0, %group ], [ %c1, %again ]
{of_call}
  call void %kernel({arguments})
  %c1 = add i64 %c, 1
  %more = icmp slt i64 %c1, %calls
  br i1 %more, label %again, label %done
done:
{wait}
  %end = call i64 @now()
  %taken = sub i64 %end, %start
  %place = getelementptr i64, ptr %out, i64 %g
  store i64 %taken, ptr %place, align 8
  %g1 = add i64 %g, 1
  %left = icmp slt i64 %g1, %groups
  br i1 %left, label %group, label %leave
leave:
  ret void
}}
"""
"""`groups` times: `calls` calls of a kernel, and the nanoseconds they take together."""

_OF_PROCESS = {
    "declarations": "declare void @tc_parallel_for(ptr, ptr, i64, i64, i64)",
    "begin": "  call void @tc_parallel_for(ptr @nothing, ptr null, i64 %threads, i64 1, i64 %threads)",
    "of_group": "  %passed = add i64 %g, %turn\n{pointers}",
    "of_call": "",
    "wait": "",
}
"""The empty parallel loop wakes the workers. Groups take the `count` tables of pointers in turns, beginning with number `turn`."""

_OF_DEVICE = {
    "declarations": "declare void @{finish}(ptr)",
    "begin": "  %queue = inttoptr i64 %threads to ptr\n  call void @{finish}(ptr %queue)",
    "of_group": "  %before = mul i64 %g, %calls\n  %first = add i64 %before, %turn",
    "of_call": "  %passed = add i64 %first, %c\n{pointers}",
    "wait": "  call void @{finish}(ptr %queue)",
}
"""Calls take the tables in turns: a group has many, for waiting takes as long as several."""

_TABLE = """
  %number = urem i64 %passed, %count
  %table = mul i64 %number, {size}
  %pointers = getelementptr ptr, ptr %tables, i64 %table
"""

_FLUSH_TEXT = """
declare void @llvm.x86.{instruction}(ptr)
declare void @llvm.x86.sse2.mfence()
define void @flush(ptr %start, i64 %lines) nounwind {{
entry:
  br label %again
again:
  %i = phi i64 [ 0, %entry ], [ %j, %again ]
  %offset = mul i64 %i, 64
  %p = getelementptr i8, ptr %start, i64 %offset
  call void @llvm.x86.{instruction}(ptr %p)
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %lines
  br i1 %more, label %again, label %done
done:
  call void @llvm.x86.sse2.mfence()
  ret void
}}
"""


@lru_cache(64)
def native_timer(pointers: int, scalars: int, finish: str = "") -> tuple[Library, Callable[..., None]]:
    """`time_calls` for kernels that take so many pointers and scalars, and the library it lives in.

    `finish`: the function that waits for a queue, whose address kernels then have in the place of threads; "" in the process itself.
    """
    loads: dict[str, list[str]] = {"ptr": [], "i64": []}
    arguments = []
    for kind, count, table in (("ptr", pointers, "%pointers"), ("i64", scalars, "%scalars")):
        for k in range(count):
            loads[kind].append(f"  %{kind}p{k} = getelementptr {kind}, ptr {table}, i64 {k}")
            loads[kind].append(f"  %{kind}{k} = load {kind}, ptr %{kind}p{k}, align 8")
            arguments.append(f"{kind} %{kind}{k}")
    places = _TABLE.format(size=pointers) + "\n".join(loads["ptr"])
    parts = {name: part.format(finish=finish, pointers=places) for name, part in (_OF_DEVICE if finish else _OF_PROCESS).items()}
    arguments.append("i64 %threads")
    text = _TIMER_TEXT.format(clock=_CLOCK, scalars="\n".join(loads["i64"]), arguments=", ".join(arguments), **parts)
    library = link([compile_object(text)])
    types = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    return library, ctypes.CFUNCTYPE(None, *types)(library.address("time_calls"))


@lru_cache(1)
def _flusher() -> tuple[Library, Callable[[int, int], None]] | None:
    """The function that empties cache lines; None where the processor has none that we know."""
    target = native_target()
    if not target.has("sse2"):
        return None
    instruction = "clflushopt" if target.has("clflushopt") else "sse2.clflush"  # the former does not wait for each line
    library = link([compile_object(_FLUSH_TEXT.format(instruction=instruction), target)])
    return library, ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library.address("flush"))


@lru_cache(1)
def _stream() -> np.ndarray:
    """More than the caches hold."""
    target = native_target()
    return np.zeros(2 * max(target.l3_bytes, 4 * target.l2_bytes), np.uint8)


def flush(array: np.ndarray) -> None:
    """Throw an array out of the processor's caches."""
    flusher = _flusher()
    if flusher is not None:
        flusher[1](array.ctypes.data, -(-array.nbytes // ALIGNMENT))
    elif array.nbytes:
        stream = _stream()
        np.add(stream, 1, out=stream)
