"""The CUDA driver's part of what generated host code calls (see `device_calls`), as LLVM IR.

A queue has two words more: the pool of memory, and a log (0: none); work is given to a stream.

A log is three words, how many words have room behind them, how many would be filled, and in how many parts; then the parts. One that has
room keeps what would be given to the stream, for a graph; one without only counts, and all goes on. A part is its number of words, then

    function, shared bytes, blocks along x, y, z, threads along x, y, z, maps, parameters ... a launch
    COPY, to, from, bytes                                                                     a copy on the device
    STORE, to, value                                                                          a word of the host

The parameters of a function are so many maps of 16 words (what boxes are copied from), then words. The driver is told where each of them
is: in one piece it takes them only with the gaps of their alignment in the device's memory, which begins at no multiple of it.

A handle is two words: the function, and the bytes of shared memory that a launch asks for beside what the function has by itself.

Every function runs in the queue's context: the one that is current on the calling thread stays where it is the same, else the queue's is
pushed and taken away again, so that other users of the driver find their own. A program does that once for all its steps (`enter`).
"""

from __future__ import annotations

CALLS = "tc_cuda"
"""How the functions' names begin."""

LOG = 5
"""The word of a queue where a log is; see the module."""

COPY, STORE = 1, 2
"""In the place of a function, which is an address."""

OUT_OF_MEMORY = 2
"""The driver's status."""

STEPS = (
    *("the sizes of a launch", "making the context current", "a launch", "a copy", "waiting", "allocating", "freeing"),
    "describing what boxes are copied from",
)
"""What failed, by the word CALLED of a queue."""

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
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare extern_weak i32 @cuTensorMapEncodeTiled(ptr, i32, i32, ptr, ptr, ptr, ptr, ptr, i32, i32, i32, i32)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal ptr @logged(ptr %queue, i64 %words) nounwind {
  %place = getelementptr i64, ptr %queue, i64 5
  %log = load ptr, ptr %place
  %none = icmp eq ptr %log, null
  br i1 %none, label %go, label %some
some:
  %room = load i64, ptr %log
  %used_place = getelementptr i64, ptr %log, i64 1
  %used = load i64, ptr %used_place
  %parts_place = getelementptr i64, ptr %log, i64 2
  %parts = load i64, ptr %parts_place
  %more = add i64 %used, %words
  store i64 %more, ptr %used_place
  %one_more = add i64 %parts, 1
  store i64 %one_more, ptr %parts_place
  %counts = icmp eq i64 %room, 0
  br i1 %counts, label %go, label %keep
keep:
  %fits = icmp sle i64 %more, %room
  br i1 %fits, label %fill, label %go
fill:
  %start = getelementptr i64, ptr %log, i64 3
  %part = getelementptr i64, ptr %start, i64 %used
  store i64 %words, ptr %part
  ret ptr %part
go:
  ret ptr null
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

define internal void @start_fetch(ptr %queue, ptr %to, ptr %from, i64 %size) nounwind {
  %some = icmp sgt i64 %size, 0
  br i1 %some, label %go, label %done
go:
  %stream = load ptr, ptr %queue
  %status = call i32 @cuMemcpyDtoHAsync_v2(ptr %to, ptr %from, i64 %size, ptr %stream)
  call void @note(ptr %queue, i32 %status, i64 3)
  br label %done
done:
  ret void
}
"""

_LAUNCH = """
define internal void @keep_launch(ptr %part, ptr %handle, i64 %gx, i64 %gy, i64 %gz, i64 %bx, i64 %by, i64 %bz) nounwind {
  %function = load i64, ptr %handle
  %p1 = getelementptr i64, ptr %part, i64 1
  store i64 %function, ptr %p1
  %shared_place = getelementptr i64, ptr %handle, i64 1
  %shared = load i64, ptr %shared_place
  %p2 = getelementptr i64, ptr %part, i64 2
  store i64 %shared, ptr %p2
  %p3 = getelementptr i64, ptr %part, i64 3
  store i64 %gx, ptr %p3
  %p4 = getelementptr i64, ptr %part, i64 4
  store i64 %gy, ptr %p4
  %p5 = getelementptr i64, ptr %part, i64 5
  store i64 %gz, ptr %p5
  %p6 = getelementptr i64, ptr %part, i64 6
  store i64 %bx, ptr %p6
  %p7 = getelementptr i64, ptr %part, i64 7
  store i64 %by, ptr %p7
  %p8 = getelementptr i64, ptr %part, i64 8
  store i64 %bz, ptr %p8
  ret void
}

define internal void @submit(ptr %queue, ptr %handle, i64 %gx, i64 %gy, i64 %gz, i64 %bx, i64 %by, i64 %bz, ptr %table, i64 %maps,
                             i64 %buffers, i64 %scalars) noinline nounwind {
entry:
  %others = add i64 %buffers, %scalars
  %map_words = mul i64 %maps, 16
  %words = add i64 %map_words, %others
  %length = add i64 %words, 10
  %part = call ptr @logged(ptr %queue, i64 %length)
  %direct = icmp eq ptr %part, null
  br i1 %direct, label %launch, label %keep
keep:
  call void @keep_launch(ptr %part, ptr %handle, i64 %gx, i64 %gy, i64 %gz, i64 %bx, i64 %by, i64 %bz)
  %maps_place = getelementptr i64, ptr %part, i64 9
  store i64 %maps, ptr %maps_place
  %kept = getelementptr i64, ptr %part, i64 10
  %kept_bytes = shl i64 %words, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %kept, ptr %table, i64 %kept_bytes, i1 false)
  ret void
launch:
  %count = add i64 %maps, %others
  %parameters = alloca ptr, i64 %count
  br label %next
next:
  %k = phi i64 [0, %launch], [%k1, %place]
  %word = phi i64 [0, %launch], [%word1, %place]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %place, label %go
place:
  %at = getelementptr i64, ptr %table, i64 %word
  %parameter = getelementptr ptr, ptr %parameters, i64 %k
  store ptr %at, ptr %parameter
  %is_map = icmp slt i64 %k, %maps
  %step = select i1 %is_map, i64 16, i64 1
  %word1 = add i64 %word, %step
  %k1 = add i64 %k, 1
  br label %next
go:
  %entered = call i64 @tc_cuda_enter(ptr %queue)
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
                                       ptr %parameters, ptr null)
  call void @note(ptr %queue, i32 %launched, i64 2)
  call void @tc_cuda_leave(ptr %queue, i64 %entered)
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
  call void @start_fetch(ptr %queue, ptr %to, ptr %from, i64 %size)
  call void @wait(ptr %queue)
  call void @tc_cuda_leave(ptr %queue, i64 %entered)
  ret void
}

define void @tc_cuda_send(ptr %queue, ptr %to, ptr %from, i64 %size) nounwind {
  %entered = call i64 @tc_cuda_enter(ptr %queue)
  call void @start_fetch(ptr %queue, ptr %to, ptr %from, i64 %size)
  call void @tc_cuda_leave(ptr %queue, i64 %entered)
  ret void
}
"""

# An empty tensor has no description; a kernel that copies nothing needs none.
_DESCRIBE = """
define void @tc_cuda_describe(ptr %queue, ptr %map, i64 %bytes, i64 %rank, ptr %base, ptr %table) nounwind {
entry:
  %extents = alloca [5 x i32]
  %steps = alloca [5 x i32]
  call void @llvm.memset.p0.i64(ptr %map, i8 0, i64 128, i1 false)
  %status_place = getelementptr i64, ptr %queue, i64 2
  %known = load i64, ptr %status_place
  %clear = icmp eq i64 %known, 0
  br i1 %clear, label %next, label %done
next:
  %k = phi i64 [0, %entry], [%following, %filled]
  %more = icmp slt i64 %k, %rank
  br i1 %more, label %dim, label %call
dim:
  %size_place = getelementptr i64, ptr %table, i64 %k
  %size = load i64, ptr %size_place
  %some = icmp sgt i64 %size, 0
  br i1 %some, label %filled, label %done
filled:
  %twice = shl i64 %rank, 1
  %which = add i64 %twice, %k
  %wide_place = getelementptr i64, ptr %table, i64 %which
  %wide = load i64, ptr %wide_place
  %extent = trunc i64 %wide to i32
  %extent_place = getelementptr i32, ptr %extents, i64 %k
  store i32 %extent, ptr %extent_place
  %step_place = getelementptr i32, ptr %steps, i64 %k
  store i32 1, ptr %step_place
  %following = add i64 %k, 1
  br label %next
call:
  %kind64 = lshr i64 %bytes, 1
  %kind = trunc i64 %kind64 to i32
  %dims = trunc i64 %rank to i32
  %strides = getelementptr i64, ptr %table, i64 %rank
  %status = call i32 @cuTensorMapEncodeTiled(ptr %map, i32 %kind, i32 %dims, ptr %base, ptr %table, ptr %strides, ptr %extents,
                                             ptr %steps, i32 0, i32 3, i32 2, i32 0)
  call void @note(ptr %queue, i32 %status, i64 7)
  br label %done
done:
  ret void
}
"""
# The driver's kinds of elements of 1, 2 and 4 bytes, unsigned, are 0, 1 and 2; 3: rows of 128 bytes are mixed; 2: L2 fetches 128 bytes.

_COPY = """
define void @tc_cuda_{name}(ptr %queue, ptr %to, ptr %from, i64 %size) nounwind {{
  %some = icmp sgt i64 %size, 0
  br i1 %some, label %ask, label %done
ask:
  %part = call ptr @logged(ptr %queue, i64 {words})
  %direct = icmp eq ptr %part, null
  br i1 %direct, label %go, label %keep
keep:
  %p1 = getelementptr i64, ptr %part, i64 1
  store i64 {kind}, ptr %p1
  %p2 = getelementptr i64, ptr %part, i64 2
  store ptr %to, ptr %p2
  %p3 = getelementptr i64, ptr %part, i64 3
{keep}  ret void
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
_KEEP_COPY = """  store ptr %from, ptr %p3
  %p4 = getelementptr i64, ptr %part, i64 4
  store i64 %size, ptr %p4
"""
_KEEP_STORE = """  %value = load i64, ptr %from
  store i64 %value, ptr %p3
"""
# A driver has taken memory that is not pinned over when the call returns, so a caller's may be changed then.
IR_TEXT = "\n".join(
    (
        _HELPERS,
        _LAUNCH,
        _DESCRIBE,
        _COPY.format(name="write", function="cuMemcpyHtoDAsync_v2", kind=STORE, words=4, keep=_KEEP_STORE),
        _COPY.format(name="copy", function="cuMemcpyDtoDAsync_v2", kind=COPY, words=5, keep=_KEEP_COPY),
    )
)

