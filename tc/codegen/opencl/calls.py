"""What generated host code calls to reach an OpenCL device: functions around the driver's, as LLVM IR, linked into the process once.

A queue is four words: the command queue, the context, the first error of a call (0: none), and which one it was (`CALLED`).
A handle is two words: the kernel object, and a lock: setting the arguments of a kernel object and enqueuing it are several calls of the
driver, between which no other thread may do the same.
"""

from __future__ import annotations

import ctypes
import functools
import threading

from llvmlite import binding as llvm

from tc.codegen.llvm.jit import Library, compile_object, link

CALLS = "tc_opencl"
"""How the functions' names begin."""

QUEUE, CONTEXT, STATUS, CALLED = range(4)
"""The words of a queue."""

TOO_MANY_BLOCKS = 1
"""A status of our own; the driver's are negative."""

_IR = """
declare i32 @clSetKernelArgSVMPointer(ptr, i32, ptr)
declare i32 @clSetKernelArg(ptr, i32, i64, ptr)
declare i32 @clEnqueueNDRangeKernel(ptr, ptr, i32, ptr, ptr, ptr, i32, ptr, ptr)
declare i32 @clEnqueueSVMMemcpy(ptr, i32, ptr, ptr, i64, i32, ptr, ptr)
declare i32 @clFinish(ptr)
declare ptr @clSVMAlloc(ptr, i64, i64, i32)
declare void @clSVMFree(ptr, ptr)
declare i32 @sched_yield()

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

define void @tc_opencl_launch(ptr %queue, ptr %handle, i64 %gx, i64 %gy, i64 %gz, i64 %bx, i64 %by, i64 %bz, ptr %table, i64 %buffers,
                              i64 %scalars) nounwind {
entry:
  %global = alloca [3 x i64]
  %local = alloca [3 x i64]
  %some_x = icmp sgt i64 %gx, 0
  %some_y = icmp sgt i64 %gy, 0
  %some_z = icmp sgt i64 %gz, 0
  %some_xy = and i1 %some_x, %some_y
  %some = and i1 %some_xy, %some_z
  %status_place = getelementptr i64, ptr %queue, i64 2
  %status = load i64, ptr %status_place
  %clear = icmp eq i64 %status, 0
  %go = and i1 %some, %clear
  br i1 %go, label %sizes, label %done
sizes:
  %few_x = icmp slt i64 %gx, 2147483648
  %few_y = icmp slt i64 %gy, 65536
  %few_z = icmp slt i64 %gz, 65536
  %few_xy = and i1 %few_x, %few_y
  %few = and i1 %few_xy, %few_z
  br i1 %few, label %lock, label %many
many:
  call void @note(ptr %queue, i32 1, i64 0)
  br label %done
lock:
  %guard = getelementptr i64, ptr %handle, i64 1
  br label %try
try:
  %won = cmpxchg ptr %guard, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %won, 1
  br i1 %mine, label %set, label %yield
yield:
  %y = call i32 @sched_yield()
  br label %try
set:
  %kernel = load ptr, ptr %handle
  br label %pointers
pointers:
  %p = phi i64 [ 0, %set ], [ %p1, %pointer ]
  %more_p = icmp slt i64 %p, %buffers
  br i1 %more_p, label %pointer, label %numbers
pointer:
  %p_place = getelementptr ptr, ptr %table, i64 %p
  %address = load ptr, ptr %p_place
  %p32 = trunc i64 %p to i32
  %p_status = call i32 @clSetKernelArgSVMPointer(ptr %kernel, i32 %p32, ptr %address)
  call void @note(ptr %queue, i32 %p_status, i64 1)
  %p1 = add i64 %p, 1
  br label %pointers
numbers:
  %all = add i64 %buffers, %scalars
  br label %next
next:
  %k = phi i64 [ %buffers, %numbers ], [ %k1, %number ]
  %more_k = icmp slt i64 %k, %all
  br i1 %more_k, label %number, label %enqueue
number:
  %k_place = getelementptr i64, ptr %table, i64 %k
  %k32 = trunc i64 %k to i32
  %k_status = call i32 @clSetKernelArg(ptr %kernel, i32 %k32, i64 8, ptr %k_place)
  call void @note(ptr %queue, i32 %k_status, i64 2)
  %k1 = add i64 %k, 1
  br label %next
enqueue:
  %tx = mul i64 %gx, %bx
  %ty = mul i64 %gy, %by
  %tz = mul i64 %gz, %bz
  store i64 %tx, ptr %global
  %global_y = getelementptr i64, ptr %global, i64 1
  store i64 %ty, ptr %global_y
  %global_z = getelementptr i64, ptr %global, i64 2
  store i64 %tz, ptr %global_z
  store i64 %bx, ptr %local
  %local_y = getelementptr i64, ptr %local, i64 1
  store i64 %by, ptr %local_y
  %local_z = getelementptr i64, ptr %local, i64 2
  store i64 %bz, ptr %local_z
  %commands = load ptr, ptr %queue
  %launched = call i32 @clEnqueueNDRangeKernel(ptr %commands, ptr %kernel, i32 3, ptr null, ptr %global, ptr %local,
                                               i32 0, ptr null, ptr null)
  call void @note(ptr %queue, i32 %launched, i64 3)
  store atomic i64 0, ptr %guard release, align 8
  br label %done
done:
  ret void
}

define internal void @move(ptr %queue, i32 %waits, ptr %to, ptr %from, i64 %size) nounwind {
  %some = icmp sgt i64 %size, 0
  br i1 %some, label %go, label %done
go:
  %commands = load ptr, ptr %queue
  %status = call i32 @clEnqueueSVMMemcpy(ptr %commands, i32 %waits, ptr %to, ptr %from, i64 %size, i32 0, ptr null, ptr null)
  call void @note(ptr %queue, i32 %status, i64 4)
  br label %done
done:
  ret void
}

define void @tc_opencl_read(ptr %queue, ptr %to, ptr %from, i64 %size) nounwind {
  store i64 0, ptr %to
  call void @move(ptr %queue, i32 1, ptr %to, ptr %from, i64 %size)
  ret void
}

define void @tc_opencl_download(ptr %queue, ptr %to, ptr %from, i64 %size) nounwind {
  call void @move(ptr %queue, i32 1, ptr %to, ptr %from, i64 %size)
  ret void
}

define void @tc_opencl_write(ptr %queue, ptr %to, ptr %from, i64 %size) nounwind {
  call void @move(ptr %queue, i32 1, ptr %to, ptr %from, i64 %size)
  ret void
}

define void @tc_opencl_copy(ptr %queue, ptr %to, ptr %from, i64 %size) nounwind {
  call void @move(ptr %queue, i32 0, ptr %to, ptr %from, i64 %size)
  ret void
}

define void @tc_opencl_finish(ptr %queue) nounwind {
  %commands = load ptr, ptr %queue
  %status = call i32 @clFinish(ptr %commands)
  call void @note(ptr %queue, i32 %status, i64 5)
  ret void
}

define ptr @tc_opencl_allocate(ptr %queue, i64 %size) nounwind {
  %place = getelementptr i64, ptr %queue, i64 1
  %context = load ptr, ptr %place
  %block = call ptr @clSVMAlloc(ptr %context, i64 1, i64 %size, i32 0)
  ret ptr %block
}

define void @tc_opencl_free(ptr %queue, ptr %block) nounwind {
  %none = icmp eq ptr %block, null
  br i1 %none, label %done, label %free
free:
  call void @tc_opencl_finish(ptr %queue)
  %place = getelementptr i64, ptr %queue, i64 1
  %context = load ptr, ptr %place
  call void @clSVMFree(ptr %context, ptr %block)
  br label %done
done:
  ret void
}
"""

_FUNCTIONS = ("launch", "read", "download", "write", "copy", "finish", "allocate", "free")
_DRIVER = (
    *("clSetKernelArgSVMPointer", "clSetKernelArg", "clEnqueueNDRangeKernel", "clEnqueueSVMMemcpy"),
    *("clFinish", "clSVMAlloc", "clSVMFree"),
)
STEPS = ("the sizes of a launch", "an argument", "a number", "a launch", "a copy", "waiting")
"""What failed, by the last word of a queue."""


class DriverCalls:
    """The functions in the process, as addresses and for Python."""

    def __init__(self, library: Library) -> None:
        self._library = library
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        self.write = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, size)(library.address(f"{CALLS}_write"))
        self.download = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, size)(library.address(f"{CALLS}_download"))
        self.finish = ctypes.CFUNCTYPE(None, pointer)(library.address(f"{CALLS}_finish"))


_lock = threading.Lock()


def provide_calls(driver: ctypes.CDLL) -> DriverCalls:
    """Make the functions known to `link`, over the functions of a driver's library; once."""
    with _lock:
        return _provided(driver)


@functools.cache
def _provided(driver: ctypes.CDLL) -> DriverCalls:
    for name in _DRIVER:
        address = ctypes.cast(getattr(driver, name), ctypes.c_void_p).value
        assert address, f"the OpenCL loader has {name}"
        llvm.add_symbol(name, address)
    library = link([compile_object(_IR)])
    for name in _FUNCTIONS:
        llvm.add_symbol(f"{CALLS}_{name}", library.address(f"{CALLS}_{name}"))
    return DriverCalls(library)
