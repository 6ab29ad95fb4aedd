"""The short way into a program: machine code that looks at the caller's arrays, puts their addresses into the frame, and runs.

What Python would ask of each array of a call (is it one of numpy's, of this dtype, this shape, C-contiguous, does a result lie upon
an input) takes longer than a small model. The code of `<symbol>_call` reads it off the objects instead, holding the interpreter's
lock, and gives the lock away while the program runs. Whatever is not just so is `MISFIT`: nothing has run, and the long way, in
Python, converts it or says what is wrong with it. Small results whose size data decide it makes as well, by numpy's own function.

Where the fields of objects are is no promise of CPython's, but has been the same in all versions and in both of numpy's; `find_types`
tries it out, and there is no short way where it is not so. Sources: CPython's object.h and tupleobject.h, numpy's ndarraytypes.h and
the table of its C API, in which functions keep their places.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tc.ir.dtype import DType
from tc.ir.plan import ExecutionPlan, SlotPlace
from tc.ir.types import TensorType
from tc.runtime.frame_layout import TYPES, FrameLayout
from tc.runtime.memory import LEAST_ALIGNED_BYTES

MISFIT = -(1 << 63)

_HEAD = 16
_ADDRESS, _RANK, _DIMS, _DTYPE, _FLAGS = _HEAD, _HEAD + 8, _HEAD + 16, _HEAD + 40, _HEAD + 48
_COUNT, _ITEMS = _HEAD, _HEAD + 8
_C_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400

_ARRAY_TYPE, _NEW_ARRAY = 2, 93
"""The places of PyArray_Type and PyArray_New in numpy's table."""
_FUNCTIONS = 5
"""What a table of types begins with."""

# The table of a program's frames: the lock's two functions, numpy's type of arrays, the functions that make an array and put it into a
# list, then the dtype of each port, an input or a result that has a place before the program runs, then the number of the type of each
# result that data decide the size of. Rows in @ports: the word of the frame with its address (those of its dims follow), rank, flags it
# must have, bytes of an element. In @found: the word, that of the block the result lies in, rank, bytes of an element.
_IR = """
@{symbol}_ports = internal constant [{count} x [4 x i64]] [{rows}]
@{symbol}_found = internal constant [{found} x [4 x i64]] [{found_rows}]

define i64 @{symbol}_call(ptr noundef %frame, ptr noundef %args, ptr noundef %results, ptr noundef %list) nounwind {{
entry:
  %sizes = alloca i64, i64 {count}
  %starts = alloca i64, i64 {count}
  %table_place = getelementptr i64, ptr %frame, i64 {TYPES}
  %table = load ptr, ptr %table_place
  %kind_place = getelementptr ptr, ptr %table, i64 2
  %kind = load ptr, ptr %kind_place
  %dtypes = getelementptr ptr, ptr %table, i64 {FUNCTIONS}
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
  %new_place = getelementptr ptr, ptr %table, i64 3
  %new = load ptr, ptr %new_place
  %put_place = getelementptr ptr, ptr %table, i64 4
  %put = load ptr, ptr %put_place
  %numbers = getelementptr ptr, ptr %dtypes, i64 {count}
  %has_run = icmp eq i64 %status, 0
  br i1 %has_run, label %give, label %end
give:
  %f = phi i64 [ 0, %go ], [ %f1, %given ]
  %no_more_found = icmp eq i64 %f, {found}
  br i1 %no_more_found, label %end, label %measure
measure:
  %found = getelementptr [4 x i64], ptr @{symbol}_found, i64 %f
  %f_block_place = getelementptr i64, ptr %found, i64 1
  %f_rank_place = getelementptr i64, ptr %found, i64 2
  %f_bytes_place = getelementptr i64, ptr %found, i64 3
  %f_word = load i64, ptr %found
  %f_block = load i64, ptr %f_block_place
  %f_rank = load i64, ptr %f_rank_place
  %f_bytes = load i64, ptr %f_bytes_place
  %f_place = getelementptr i64, ptr %frame, i64 %f_word
  %f_dims = getelementptr i64, ptr %f_place, i64 1
  br label %f_dim
f_dim:
  %f_axis = phi i64 [ 0, %measure ], [ %f_axis1, %f_next ]
  %f_size = phi i64 [ %f_bytes, %measure ], [ %f_size1, %f_next ]
  %f_measured = icmp eq i64 %f_axis, %f_rank
  br i1 %f_measured, label %weigh, label %f_next
f_next:
  %f_extent_place = getelementptr i64, ptr %f_dims, i64 %f_axis
  %f_extent = load i64, ptr %f_extent_place
  %f_size1 = mul i64 %f_size, %f_extent
  %f_axis1 = add i64 %f_axis, 1
  br label %f_dim
weigh:
  %is_small = icmp ult i64 %f_size, {LEAST_ALIGNED_BYTES}
  br i1 %is_small, label %make, label %given
make:
  %f_number_place = getelementptr i64, ptr %numbers, i64 %f
  %f_number = load i64, ptr %f_number_place
  %f_number32 = trunc i64 %f_number to i32
  %f_rank32 = trunc i64 %f_rank to i32
  %made = call ptr %new(ptr %kind, i32 %f_rank32, ptr %f_dims, i32 %f_number32, ptr null, ptr null, i32 0, i32 0, ptr null)
  %is_made = icmp ne ptr %made, null
  br i1 %is_made, label %fill, label %end
fill:
  %made_address_place = getelementptr i8, ptr %made, i64 {ADDRESS}
  %made_address = load ptr, ptr %made_address_place
  %f_start = load ptr, ptr %f_place
  call void @llvm.memcpy.p0.p0.i64(ptr %made_address, ptr %f_start, i64 %f_size, i1 false)
  %was_put = call i32 %put(ptr %list, i64 %f, ptr %made)
  %own_block = icmp sge i64 %f_block, 0
  br i1 %own_block, label %own, label %given
own:
  %held_place = getelementptr i64, ptr %frame, i64 %f_block
  %held = load ptr, ptr %held_place
  %is_there = icmp eq ptr %held, %f_start
  br i1 %is_there, label %return, label %given
return:
  store ptr null, ptr %held_place
  call void @free(ptr %held)
  br label %given
given:
  %f1 = add i64 %f, 1
  br label %give
end:
  ret i64 %status
misfit:
  ret i64 {MISFIT}
}}
"""


@dataclass(frozen=True)
class FoundPlace:
    """Where a result that data decide the size of is found: which of the results, the words of its address and of the block that is its
    alone (-1 for none), its dtype and rank."""

    number: int
    word: int
    block: int
    dtype: DType
    rank: int


def found_places(plan: ExecutionPlan, layout: FrameLayout) -> list[FoundPlace]:
    """Of all such results of a plan, in their order."""
    blocks = [slot.index if slot.place is SlotPlace.DYNAMIC else -1 for slot in plan.output_slots]
    places = []
    for k, (word, var, index) in enumerate(zip(layout.outputs, plan.outputs, blocks, strict=True)):
        if index >= 0:
            assert isinstance(var.type, TensorType)
            block = layout.dynamic + 2 * index if blocks.count(index) == 1 else -1
            places.append(FoundPlace(k, word, block, var.type.dtype, var.type.rank))
    return places


DECLARED = ("free", "void", ["ptr"]), ("llvm.memcpy.p0.p0.i64", "void", ["ptr", "ptr", "i64", "i1"])
"""What its code calls."""


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
    found = [(place.word, place.block, place.rank, place.dtype.size_bytes) for place in found_places(plan, layout)]
    return _IR.format(
        symbol=symbol, count=len(rows), rows=_table(rows), found=len(found), found_rows=_table(found), inputs=len(inputs),
        results=len(results), TYPES=TYPES, MISFIT=MISFIT, COUNT=_COUNT, ITEMS=_ITEMS, DTYPE=_DTYPE, FLAGS=_FLAGS, RANK=_RANK, DIMS=_DIMS,
        ADDRESS=_ADDRESS, FUNCTIONS=_FUNCTIONS, LEAST_ALIGNED_BYTES=LEAST_ALIGNED_BYTES,
    )  # fmt: skip


def _table(rows: Sequence[Sequence[int]]) -> str:
    return ", ".join(f"[4 x i64] [{', '.join(f'i64 {number}' for number in row)}]" for row in rows)


def find_types(dtypes: Sequence[np.dtype], found: Sequence[np.dtype]) -> ctypes.Array[ctypes.c_void_p] | None:
    """The table of the frames of a program with ports of these dtypes, which are to live as long, and results that are found of those;
    None where there is no short way."""
    functions = _functions()
    if functions is None:
        return None
    release, take, new, put = functions
    numbers = [dtype.num for dtype in found]
    entries = release, take, id(np.ndarray), new, put, *map(id, dtypes), *numbers
    return (ctypes.c_void_p * len(entries))(*entries)


@functools.cache
def _functions() -> tuple[int, int, int, int] | None:
    """The addresses of the functions that give the interpreter's lock away and take it again, that make an array, and that put one into a
    list; None if objects look another way here."""
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
    new = _new_array()
    if new is None:
        return None
    names = "PyEval_SaveThread", "PyEval_RestoreThread", "PyList_SetItem"
    save, restore, put = (ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in names)
    return save, restore, new, put


def _new_array() -> int | None:
    """The address of numpy's PyArray_New; None where what stands in its place is not tried out to be that."""
    core: Any = getattr(np, "_core", None) or np.core  # before numpy 2
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        table = ctypes.cast(pointer(core.multiarray._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    except (AttributeError, ValueError):
        return None
    number, pointers, whole = ctypes.c_int, ctypes.c_void_p, (ctypes.c_ssize_t * 2)(3, 5)
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, pointers, number, pointers, number, pointers, pointers, number, number, pointers)
    if table[_ARRAY_TYPE] != id(np.ndarray):  # the places are others
        return None
    made = kind(table[_NEW_ARRAY] or 0)(id(np.ndarray), 2, ctypes.addressof(whole), np.dtype(np.int16).num, None, None, 0, 0, None)
    is_array = type(made) is np.ndarray and made.shape == (3, 5) and made.dtype == np.int16 and made.flags.carray
    return table[_NEW_ARRAY] if is_array else None


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
