"""The short way into a program: machine code that looks at the caller's arrays, puts their addresses into the frame, and runs.

What Python would ask of each array of a call (is it one of numpy's, of this dtype, this shape, C-contiguous, does a result lie upon
an input) takes longer than a small model. The code of `<symbol>_call` reads it off the objects instead, holding the interpreter's
lock, and gives the lock away while the program runs. Whatever is not just so is `MISFIT`: nothing has run, and the long way, in
Python, converts it or says what is wrong with it.

Where the fields of objects are is no promise of CPython's, but has been the same in all versions and in both of numpy's; `find_types`
tries it out, and there is no short way where it is not so. Sources: CPython's object.h and tupleobject.h, numpy's ndarraytypes.h.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence

import numpy as np

from tc.ir.plan import ExecutionPlan, SlotPlace
from tc.ir.types import TensorType
from tc.runtime.frame_layout import TYPES, FrameLayout

MISFIT = -(1 << 63)

_HEAD = 16
_ADDRESS, _RANK, _DIMS, _DTYPE, _FLAGS = _HEAD, _HEAD + 8, _HEAD + 16, _HEAD + 40, _HEAD + 48
_COUNT, _ITEMS = _HEAD, _HEAD + 8
_C_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400

# The table of a program's frames: the lock's two functions, numpy's type of arrays, then the dtype of each port, an input or a result
# that has a place before the program runs. Its rows in @ports: the word of the frame with its address (those of its dims follow),
# rank, flags it must have, bytes of an element.
_IR = """
@{symbol}_ports = internal constant [{count} x [4 x i64]] [{rows}]

define i64 @{symbol}_call(ptr noundef %frame, ptr noundef %args, ptr noundef %results) nounwind {{
entry:
  %sizes = alloca i64, i64 {count}
  %starts = alloca i64, i64 {count}
  %table_place = getelementptr i64, ptr %frame, i64 {TYPES}
  %table = load ptr, ptr %table_place
  %kind_place = getelementptr ptr, ptr %table, i64 2
  %kind = load ptr, ptr %kind_place
  %dtypes = getelementptr ptr, ptr %table, i64 3
  %args_count_place = getelementptr i8, ptr %args, i64 {COUNT}
  %args_count = load i64, ptr %args_count_place
  %results_count_place = getelementptr i8, ptr %results, i64 {COUNT}
  %results_count = load i64, ptr %results_count_place
  %enough_args = icmp eq i64 %args_count, {inputs}
  %enough_results = icmp eq i64 %results_count, {results}
  %enough = and i1 %enough_args, %enough_results
  br i1 %enough, label %each, label %misfit
each:
  %k = phi i64 [ 0, %entry ], [ %k1, %fits ]
  %is_last = icmp eq i64 %k, {count}
  br i1 %is_last, label %apart, label %look
look:
  %is_arg = icmp ult i64 %k, {inputs}
  %past = sub i64 %k, {inputs}
  %tuple = select i1 %is_arg, ptr %args, ptr %results
  %item = select i1 %is_arg, i64 %k, i64 %past
  %items = getelementptr i8, ptr %tuple, i64 {ITEMS}
  %array_place = getelementptr ptr, ptr %items, i64 %item
  %array = load ptr, ptr %array_place
  %array_kind_place = getelementptr i8, ptr %array, i64 8
  %array_kind = load ptr, ptr %array_kind_place
  %is_array = icmp eq ptr %array_kind, %kind
  br i1 %is_array, label %fields, label %misfit
fields:
  %port = getelementptr [4 x i64], ptr @{symbol}_ports, i64 %k
  %rank_place = getelementptr i64, ptr %port, i64 1
  %flags_place = getelementptr i64, ptr %port, i64 2
  %bytes_place = getelementptr i64, ptr %port, i64 3
  %word = load i64, ptr %port
  %rank = load i64, ptr %rank_place
  %needed = load i64, ptr %flags_place
  %bytes = load i64, ptr %bytes_place
  %dtype_place = getelementptr ptr, ptr %dtypes, i64 %k
  %dtype = load ptr, ptr %dtype_place
  %array_dtype_place = getelementptr i8, ptr %array, i64 {DTYPE}
  %array_dtype = load ptr, ptr %array_dtype_place
  %same_dtype = icmp eq ptr %array_dtype, %dtype
  %array_flags_place = getelementptr i8, ptr %array, i64 {FLAGS}
  %array_flags32 = load i32, ptr %array_flags_place
  %array_flags = zext i32 %array_flags32 to i64
  %had = and i64 %array_flags, %needed
  %same_flags = icmp eq i64 %had, %needed
  %array_rank_place = getelementptr i8, ptr %array, i64 {RANK}
  %array_rank32 = load i32, ptr %array_rank_place
  %array_rank = sext i32 %array_rank32 to i64
  %same_rank = icmp eq i64 %array_rank, %rank
  %both = and i1 %same_dtype, %same_flags
  %all = and i1 %both, %same_rank
  br i1 %all, label %shape, label %misfit
shape:
  %place = getelementptr i64, ptr %frame, i64 %word
  %wanted_dims = getelementptr i64, ptr %place, i64 1
  %dims_place = getelementptr i8, ptr %array, i64 {DIMS}
  %dims = load ptr, ptr %dims_place
  br label %dim
dim:
  %axis = phi i64 [ 0, %shape ], [ %axis1, %same ]
  %size = phi i64 [ %bytes, %shape ], [ %size1, %same ]
  %no_more = icmp eq i64 %axis, %rank
  br i1 %no_more, label %fits, label %compare
compare:
  %extent_place = getelementptr i64, ptr %dims, i64 %axis
  %extent = load i64, ptr %extent_place
  %wanted_place = getelementptr i64, ptr %wanted_dims, i64 %axis
  %wanted = load i64, ptr %wanted_place
  %is_same = icmp eq i64 %extent, %wanted
  br i1 %is_same, label %same, label %misfit
same:
  %size1 = mul i64 %size, %extent
  %axis1 = add i64 %axis, 1
  br label %dim
fits:
  %address_place = getelementptr i8, ptr %array, i64 {ADDRESS}
  %address = load i64, ptr %address_place
  store i64 %address, ptr %place
  %size_place = getelementptr i64, ptr %sizes, i64 %k
  store i64 %size, ptr %size_place
  %start_place = getelementptr i64, ptr %starts, i64 %k
  store i64 %address, ptr %start_place
  %k1 = add i64 %k, 1
  br label %each
apart:
  %r = phi i64 [ {inputs}, %each ], [ %r1, %next_result ]
  %is_done = icmp eq i64 %r, {count}
  br i1 %is_done, label %go, label %result
result:
  %r_start_place = getelementptr i64, ptr %starts, i64 %r
  %r_start = load i64, ptr %r_start_place
  %r_size_place = getelementptr i64, ptr %sizes, i64 %r
  %r_size = load i64, ptr %r_size_place
  %r_end = add i64 %r_start, %r_size
  %r_empty = icmp eq i64 %r_size, 0
  br i1 %r_empty, label %next_result, label %other
other:
  %o = phi i64 [ 0, %result ], [ %o1, %clear ]
  %is_itself = icmp eq i64 %o, %r
  br i1 %is_itself, label %next_result, label %meet
meet:
  %o_start_place = getelementptr i64, ptr %starts, i64 %o
  %o_start = load i64, ptr %o_start_place
  %o_size_place = getelementptr i64, ptr %sizes, i64 %o
  %o_size = load i64, ptr %o_size_place
  %o_end = add i64 %o_start, %o_size
  %o_some = icmp ne i64 %o_size, 0
  %begins_before = icmp ult i64 %o_start, %r_end
  %ends_after = icmp ult i64 %r_start, %o_end
  %crossing = and i1 %begins_before, %ends_after
  %meets = and i1 %crossing, %o_some
  br i1 %meets, label %misfit, label %clear
clear:
  %o1 = add i64 %o, 1
  br label %other
next_result:
  %r1 = add i64 %r, 1
  br label %apart
go:
  %release = load ptr, ptr %table
  %take_place = getelementptr ptr, ptr %table, i64 1
  %take = load ptr, ptr %take_place
  %thread = call ptr %release()
  %status = call i64 @{symbol}_run(ptr %frame)
  call void %take(ptr %thread)
  ret i64 %status
misfit:
  ret i64 {MISFIT}
}}
"""


def short_call(plan: ExecutionPlan, layout: FrameLayout, symbol: str) -> str:
    """The LLVM IR of `<symbol>_call`, which calls `<symbol>_run`."""
    inputs = list(zip(layout.inputs, plan.inputs, strict=True))
    outputs = zip(layout.outputs, plan.outputs, plan.output_slots, strict=True)
    results = [(word, var) for word, var, slot in outputs if slot.place is not SlotPlace.DYNAMIC]
    needed = [_C_CONTIGUOUS] * len(inputs) + [_C_CONTIGUOUS | _ALIGNED | _WRITEABLE] * len(results)
    rows = []
    for (word, var), flags in zip((*inputs, *results), needed, strict=True):
        assert isinstance(var.type, TensorType)
        rows.append((word, var.type.rank, flags, var.type.dtype.size_bytes))
    texts = [f"[4 x i64] [{', '.join(f'i64 {number}' for number in row)}]" for row in rows]
    return _IR.format(
        symbol=symbol, count=len(rows), rows=", ".join(texts), inputs=len(inputs), results=len(results), TYPES=TYPES, MISFIT=MISFIT,
        COUNT=_COUNT, ITEMS=_ITEMS, DTYPE=_DTYPE, FLAGS=_FLAGS, RANK=_RANK, DIMS=_DIMS, ADDRESS=_ADDRESS,
    )  # fmt: skip


def find_types(dtypes: Sequence[np.dtype]) -> ctypes.Array[ctypes.c_void_p] | None:
    """The table of the frames of a program with ports of these dtypes, which are to live as long; None where there is no short way."""
    functions = _lock_functions()
    if functions is None:
        return None
    return (ctypes.c_void_p * (3 + len(dtypes)))(*functions, id(np.ndarray), *map(id, dtypes))


@functools.cache
def _lock_functions() -> tuple[int, int] | None:
    """The addresses of the functions that give the interpreter's lock away and take it again; None if objects look another way here."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    if (object.__basicsize__, tuple.__basicsize__) != (_HEAD, _ITEMS):
        return None
    whole = np.zeros((3, 5, 2), np.float32)
    frozen = np.zeros((), np.int64)
    frozen.flags.writeable = False
    unaligned = np.zeros(9, np.uint8)[1:].view(np.float64)
    samples = (whole, whole[1], whole[:, 1:], whole.T, frozen, unaligned)
    if not all(_is_as_described(sample, samples, k) for k, sample in enumerate(samples)):
        return None
    save, restore = (ctypes.cast(getattr(ctypes.pythonapi, f"PyEval_{name}Thread"), ctypes.c_void_p) for name in ("Save", "Restore"))
    return save.value or 0, restore.value or 0


def _is_as_described(array: np.ndarray, of: tuple[np.ndarray, ...], k: int) -> bool:
    """Whether the k-th array of a tuple, and the tuple, have their fields where the code of a call reads them."""
    here, flags = id(array), array.flags
    expected = _C_CONTIGUOUS * flags.c_contiguous | _ALIGNED * flags.aligned | _WRITEABLE * flags.writeable
    word, half = ctypes.c_size_t.from_address, ctypes.c_int32.from_address
    dims = tuple(word(word(here + _DIMS).value + 8 * axis).value for axis in range(array.ndim))
    return (
        (word(id(of) + _COUNT).value, word(id(of) + _ITEMS + 8 * k).value) == (len(of), here)
        and word(here + 8).value == id(np.ndarray)
        and word(here + _ADDRESS).value == array.__array_interface__["data"][0]
        and (half(here + _RANK).value, dims) == (array.ndim, array.shape)
        and word(here + _DTYPE).value == id(array.dtype)
        and half(here + _FLAGS).value & (_C_CONTIGUOUS | _ALIGNED | _WRITEABLE) == expected
    )
