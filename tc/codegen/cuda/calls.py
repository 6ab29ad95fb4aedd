"""What generated host code calls to reach a CUDA device: functions around the driver's, as LLVM IR, linked into the process once.

A queue is five words: the stream, the context, the first error of a call (0: none), which one it was (`CALLED`), and the pool of memory.
A handle is two words: the function, and the bytes of shared memory that a launch asks for beside what the function has by itself.

Every function runs in the queue's context: the one that is current on the calling thread stays where it is the same, else the queue's is
pushed and taken away again, so that other users of the driver find their own. A program does that once for all its steps (`enter`).
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

from llvmlite import binding as llvm

from tc.codegen.llvm.jit import Library, compile_object, link

CALLS = "tc_cuda"
"""How the functions' names begin."""

STREAM, CONTEXT, STATUS, CALLED, POOL = range(5)
"""The words of a queue."""

TOO_MANY_BLOCKS = -1
"""A status of our own; the driver's are positive."""

OUT_OF_MEMORY = 2
"""The driver's status."""

STEPS = ("the sizes of a launch", "making the context current", "a launch", "a copy", "waiting", "allocating", "freeing")
"""What failed, by the last word of a queue but one."""

_HELPERS = """
declare i32 @cuCtxGetCurrent(ptr)
declare i32 @cuCtxPushCurrent_v2(ptr)
declare i32 @cuCtxPopCurrent_v2(ptr)
declare i32 @cuLaunchKernel(ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)
declare i32 @cuMemcpyHtoDAsync_v2(ptr, ptr, i64, ptr)
declare i32 @cuMemcpyDtoHAsync_v2(ptr, ptr, i64, ptr)
declare i32 @cuMemcpyDtoDAsync_v2(ptr, ptr, i64, ptr)
declare i32 @cuStreamSynchronize(ptr)
declare i32 @cuMemAllocFromPoolAsync(ptr, i64, ptr, ptr)
declare i32 @cuMemFreeAsync(ptr, ptr)

define internal void @note(ptr %queue, i32 %status, i64 %called) nounwind {
  %place = getelementptr i64, ptr %queue, i64 2
  %known = load i64, ptr %place
  %clear = icmp eq i64 %known, 0
  %bad = icmp ne i32 %status, 0
  %first = and i1 %clear, %bad
  br i1 %first, label %keep, label %done
keep:
  %wide = sext i32 %status to i64
  store i64 %wide, ptr %place
  %which = getelementptr i64, ptr %queue, i64 3
  store i64 %called, ptr %which
  br label %done
done:
  ret void
}

define i64 @tc_cuda_enter(ptr %queue) nounwind {
  %room = alloca ptr
  store ptr null, ptr %room
  %asked = call i32 @cuCtxGetCurrent(ptr %room)
  %current = load ptr, ptr %room
  %place = getelementptr i64, ptr %queue, i64 1
  %context = load ptr, ptr %place
  %same = icmp eq ptr %current, %context
  br i1 %same, label %there, label %other
there:
  ret i64 0
other:
  %pushed = call i32 @cuCtxPushCurrent_v2(ptr %context)
  call void @note(ptr %queue, i32 %pushed, i64 1)
  %good = icmp eq i32 %pushed, 0
  %flag = zext i1 %good to i64
  ret i64 %flag
}

define void @tc_cuda_leave(ptr %queue, i64 %entered) nounwind {
  %some = icmp ne i64 %entered, 0
  br i1 %some, label %pop, label %done
pop:
  %room = alloca ptr
  %popped = call i32 @cuCtxPopCurrent_v2(ptr %room)
  call void @note(ptr %queue, i32 %popped, i64 1)
  br label %done
done:
  ret void
}

define internal void @wait(ptr %queue) nounwind {
  %stream = load ptr, ptr %queue
  %status = call i32 @cuStreamSynchronize(ptr %stream)
  call void @note(ptr %queue, i32 %status, i64 4)
  ret void
}

define internal void @fetch(ptr %queue, ptr %to, ptr %from, i64 %size) nounwind {
  %some = icmp sgt i64 %size, 0
  br i1 %some, label %go, label %done
go:
  %stream = load ptr, ptr %queue
  %status = call i32 @cuMemcpyDtoHAsync_v2(ptr %to, ptr %from, i64 %size, ptr %stream)
  call void @note(ptr %queue, i32 %status, i64 3)
  br label %done
done:
  call void @wait(ptr %queue)
  ret void
}
"""

# The driver takes the arguments of a function as they lie in a launch's table: all are words.
_LAUNCH = """
define void @tc_cuda_launch(ptr %queue, ptr %handle, i64 %gx, i64 %gy, i64 %gz, i64 %bx, i64 %by, i64 %bz, ptr %table, i64 %buffers,
                            i64 %scalars) nounwind {
entry:
  %size = alloca i64
  %extra = alloca [5 x ptr]
  %some_x = icmp sgt i64 %gx, 0
  %some_y = icmp sgt i64 %gy, 0
  %some_z = icmp sgt i64 %gz, 0
  %some_xy = and i1 %some_x, %some_y
  %some = and i1 %some_xy, %some_z
  %status_place = getelementptr i64, ptr %queue, i64 2
  %known = load i64, ptr %status_place
  %clear = icmp eq i64 %known, 0
  %go = and i1 %some, %clear
  br i1 %go, label %sizes, label %done
sizes:
  %few_x = icmp slt i64 %gx, 2147483648
  %few_y = icmp slt i64 %gy, 65536
  %few_z = icmp slt i64 %gz, 65536
  %few_xy = and i1 %few_x, %few_y
  %few = and i1 %few_xy, %few_z
  br i1 %few, label %enter, label %many
many:
  call void @note(ptr %queue, i32 -1, i64 0)
  br label %done
enter:
  %entered = call i64 @tc_cuda_enter(ptr %queue)
  %words = add i64 %buffers, %scalars
  %bytes = shl i64 %words, 3
  store i64 %bytes, ptr %size
  store ptr inttoptr (i64 1 to ptr), ptr %extra
  %e1 = getelementptr ptr, ptr %extra, i64 1
  store ptr %table, ptr %e1
  %e2 = getelementptr ptr, ptr %extra, i64 2
  store ptr inttoptr (i64 2 to ptr), ptr %e2
  %e3 = getelementptr ptr, ptr %extra, i64 3
  store ptr %size, ptr %e3
  %e4 = getelementptr ptr, ptr %extra, i64 4
  store ptr null, ptr %e4
  %function = load ptr, ptr %handle
  %shared_place = getelementptr i64, ptr %handle, i64 1
  %shared64 = load i64, ptr %shared_place
  %shared = trunc i64 %shared64 to i32
  %stream = load ptr, ptr %queue
  %x = trunc i64 %gx to i32
  %y = trunc i64 %gy to i32
  %z = trunc i64 %gz to i32
  %tx = trunc i64 %bx to i32
  %ty = trunc i64 %by to i32
  %tz = trunc i64 %bz to i32
  %launched = call i32 @cuLaunchKernel(ptr %function, i32 %x, i32 %y, i32 %z, i32 %tx, i32 %ty, i32 %tz, i32 %shared, ptr %stream,
                                       ptr null, ptr %extra)
  call void @note(ptr %queue, i32 %launched, i64 2)
  call void @tc_cuda_leave(ptr %queue, i64 %entered)
  br label %done
done:
  ret void
}

define ptr @tc_cuda_allocate(ptr %queue, i64 %size) nounwind {
  %room = alloca ptr
  store ptr null, ptr %room
  %entered = call i64 @tc_cuda_enter(ptr %queue)
  %stream = load ptr, ptr %queue
  %pool_place = getelementptr i64, ptr %queue, i64 4
  %pool = load ptr, ptr %pool_place
  %status = call i32 @cuMemAllocFromPoolAsync(ptr %room, i64 %size, ptr %pool, ptr %stream)
  %full = icmp eq i32 %status, 2
  %other = select i1 %full, i32 0, i32 %status
  call void @note(ptr %queue, i32 %other, i64 5)
  call void @tc_cuda_leave(ptr %queue, i64 %entered)
  %good = icmp eq i32 %status, 0
  %found = load ptr, ptr %room
  %block = select i1 %good, ptr %found, ptr null
  ret ptr %block
}

define void @tc_cuda_free(ptr %queue, ptr %block) nounwind {
  %none = icmp eq ptr %block, null
  br i1 %none, label %done, label %free
free:
  %entered = call i64 @tc_cuda_enter(ptr %queue)
  %stream = load ptr, ptr %queue
  %status = call i32 @cuMemFreeAsync(ptr %block, ptr %stream)
  call void @note(ptr %queue, i32 %status, i64 6)
  call void @tc_cuda_leave(ptr %queue, i64 %entered)
  br label %done
done:
  ret void
}

define void @tc_cuda_finish(ptr %queue) nounwind {
  %entered = call i64 @tc_cuda_enter(ptr %queue)
  call void @wait(ptr %queue)
  call void @tc_cuda_leave(ptr %queue, i64 %entered)
  ret void
}

define void @tc_cuda_download(ptr %queue, ptr %to, ptr %from, i64 %size) nounwind {
  %entered = call i64 @tc_cuda_enter(ptr %queue)
  call void @fetch(ptr %queue, ptr %to, ptr %from, i64 %size)
  call void @tc_cuda_leave(ptr %queue, i64 %entered)
  ret void
}

define void @tc_cuda_read(ptr %queue, ptr %to, ptr %from, i64 %size) nounwind {
  store i64 0, ptr %to
  call void @tc_cuda_download(ptr %queue, ptr %to, ptr %from, i64 %size)
  ret void
}
"""

_COPY = """
define void @tc_cuda_{name}(ptr %queue, ptr %to, ptr %from, i64 %size) nounwind {{
  %some = icmp sgt i64 %size, 0
  br i1 %some, label %go, label %done
go:
  %entered = call i64 @tc_cuda_enter(ptr %queue)
  %stream = load ptr, ptr %queue
  %status = call i32 @{function}(ptr %to, ptr %from, i64 %size, ptr %stream)
  call void @note(ptr %queue, i32 %status, i64 3)
  call void @tc_cuda_leave(ptr %queue, i64 %entered)
  br label %done
done:
  ret void
}}
"""
# A driver has taken memory that is not pinned over when the call returns, so a caller's may be changed then.
_IR = "\n".join(
    (
        _HELPERS,
        _LAUNCH,
        _COPY.format(name="write", function="cuMemcpyHtoDAsync_v2"),
        _COPY.format(name="copy", function="cuMemcpyDtoDAsync_v2"),
    )
)

_FUNCTIONS = ("enter", "leave", "launch", "read", "download", "write", "copy", "finish", "allocate", "free")
_DRIVER = (
    *("cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuLaunchKernel", "cuMemcpyHtoDAsync_v2"),
    *("cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuStreamSynchronize", "cuMemAllocFromPoolAsync", "cuMemFreeAsync"),
)


class CudaCalls:
    """The functions in the process, for Python."""

    def __init__(self, library: Library) -> None:
        self._library = library
        pointer, size = ctypes.c_void_p, ctypes.c_int64

        def function(name: str, result: Any, *parameters: Any) -> Callable[..., Any]:
            return ctypes.CFUNCTYPE(result, *parameters)(library.address(f"{CALLS}_{name}"))

        self.enter = function("enter", size, pointer)
        self.leave = function("leave", None, pointer, size)
        self.write = function("write", None, pointer, pointer, pointer, size)
        self.copy = function("copy", None, pointer, pointer, pointer, size)
        self.download = function("download", None, pointer, pointer, pointer, size)
        self.finish = function("finish", None, pointer)
        self.allocate = function("allocate", pointer, pointer, size)
        self.free = function("free", None, pointer, pointer)


_lock = threading.Lock()


def provide_calls(driver: ctypes.CDLL) -> CudaCalls:
    """Make the functions known to `link`, over the functions of the driver's library; once."""
    with _lock:
        return _provided(driver)


@functools.cache
def _provided(driver: ctypes.CDLL) -> CudaCalls:
    for name in _DRIVER:
        address = ctypes.cast(getattr(driver, name), ctypes.c_void_p).value
        assert address, f"the CUDA driver has {name}"
        llvm.add_symbol(name, address)
    library = link([compile_object(_IR)])
    for name in _FUNCTIONS:
        llvm.add_symbol(f"{CALLS}_{name}", library.address(f"{CALLS}_{name}"))
    return CudaCalls(library)
