"""An OpenCL driver's part of what generated host code calls (see `device_calls`), as LLVM IR.

A handle is the kernel object, and a lock: setting the arguments of a kernel object and enqueuing it are several calls of the driver,
between which no other thread may do the same.
"""

from __future__ import annotations

CALLS = "tc_opencl"
"""How the functions' names begin."""

STEPS = ("the sizes of a launch", "an argument", "a number", "a launch", "a copy", "waiting")
"""What failed, by the word CALLED of a queue."""

IR_TEXT = """
declare i32 @clSetKernelArgSVMPointer(ptr, i32, ptr)
declare i32 @clSetKernelArg(ptr, i32, i64, ptr)
declare i32 @clEnqueueNDRangeKernel(ptr, ptr, i32, ptr, ptr, ptr, i32, ptr, ptr)
declare i32 @clEnqueueSVMMemcpy(ptr, i32, ptr, ptr, i64, i32, ptr, ptr)
declare i32 @clFinish(ptr)
declare ptr @clSVMAlloc(ptr, i64, i64, i32)
declare void @clSVMFree(ptr, ptr)
declare i32 @sched_yield()

define internal void @submit(ptr %queue, ptr %handle, i64 %gx, i64 %gy, i64 %gz, i64 %bx, i64 %by, i64 %bz, ptr %table, i64 %maps,
                             i64 %buffers, i64 %scalars) nounwind {
entry:
  %global = alloca [3 x i64]
  %local = alloca [3 x i64]
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
  ret void
}

define internal void @move(ptr %queue, i32 %waits, ptr %to, ptr %from, i64 %size) nounwind {
  %any = icmp sgt i64 %size, 0
  %elsewhere = icmp ne ptr %to, %from
  %some = and i1 %any, %elsewhere
  br i1 %some, label %go, label %done
go:
  %commands = load ptr, ptr %queue
  %status = call i32 @clEnqueueSVMMemcpy(ptr %commands, i32 %waits, ptr %to, ptr %from, i64 %size, i32 0, ptr null, ptr null)
  call void @note(ptr %queue, i32 %status, i64 4)
  br label %done
done:
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
