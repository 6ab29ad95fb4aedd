"""A compiled graph as native code that is called.

A call fills a frame of machine words with pointers and dims, calls native code once (twice when shapes are dynamic), and returns
arrays. Between those calls no Python runs, except for nodes on the reference kernel. Calls from several threads are
independent: each takes a frame and an arena of its own from a stack of idle ones. So are processes: a forked child takes neither
from its parent, whatever the parent's threads were at when it forked.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any

import numpy as np

from tc.codegen.backend import Loaded
from tc.codegen.device import Device, DeviceBlock
from tc.errors import InputError, LimitError
from tc.frontend.imported import RANDOM_KEY
from tc.ir.dtype import from_numpy, pack, tensor_memory, unpack
from tc.ir.expr import Const
from tc.ir.plan import ExecutionPlan, SlotPlace
from tc.runtime.arrays import dtype_name, input_array, like, listed, output_array, overlapping
from tc.runtime.available import check_fits
from tc.runtime.callbacks import Callback
from tc.runtime.entry import EntrySource
from tc.runtime.frame_layout import ARENA, ARENA_BYTES, CALLBACK, CONSTANTS, DETAIL, NO_MEMORY, SIZE, THREADS, TYPES
from tc.runtime.frames import HOST_MEMORY, Frame, free_block, owned_array, run_reference
from tc.runtime.memory import LEAST_ALIGNED_BYTES, Arena, aligned_empty, data_address, result_array
from tc.runtime.pool import get_pool
from tc.runtime.report import tensor_info
from tc.runtime.results import LEAST_LENT_BYTES, ResultPool
from tc.runtime.short_call import MISFIT, find_types, found_places

_Wanted = tuple[tuple[int, ...], Any]
"""Of a result: shape and dtype."""


class AssumptionFails(Exception):
    """The dims of a call are not what the program was made for: the general one is to run."""


class DefaultsReplaced(Exception):
    """Inputs are given that have a default, which the program has as constants: `names`."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self.names = names


_living: weakref.WeakSet[NativeProgram] = weakref.WeakSet()


class NativeProgram:
    """Native code, its constants, and the frames of its calls: what a module is but for what is known of its model."""

    _takes_host_addresses = True
    _make_general: Callable[[], Any] | None = None
    """How to make the program that assumes nothing of the dims, where there is one."""
    overridable: tuple[str, ...] = ()
    """Names of inputs that need not be given: the model has their values."""

    def __init__(
        self,
        plan: ExecutionPlan,
        entry: EntrySource,
        library: Loaded,
        symbol: str,
        constants: Sequence[np.ndarray],
        threads: int,
        callback: Callback | None = None,
    ) -> None:
        self.plan = plan
        self._symbol = symbol
        self.threads = threads
        self.inputs = tuple(tensor_info(v.name, v.type) for v in plan.inputs)  # type: ignore[arg-type]
        self.outputs = tuple(tensor_info(v.name, v.type) for v in plan.outputs)  # type: ignore[arg-type]
        self._entry = entry
        self._library = library
        self._callback = callback
        self._constants = list(constants)
        self._table = (ctypes.c_void_p * max(len(constants), 1))(*self._place_constants())
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
        self._prepare = kind(library.address(f"{symbol}_prepare"))
        self._run = kind(library.address(f"{symbol}_run"))
        self._enter: Callable[[int, tuple[Any, ...], tuple[Any, ...], list[Any]], int] | None = None
        self._native_callback = _CALLBACK(_weakly(weakref.WeakMethod(self._call_out))) if entry.calls else None
        self._lock = threading.Lock()
        self._idle: list[Frame] = []
        self._frames: dict[int, Frame] = {}
        self._results = ResultPool()
        self._note_types()
        self._types = None
        if self._takes_host_addresses and not self._shares_bytes:
            ports = [*self._dtypes, *(dtype for _, _, dtype, _ in self._known_out)]
            self._types = find_types(ports, [place.dtype.numpy for place in self._found_out])
        if self._types is not None:
            self._enter = _SHORT_CALL(library.address(f"{symbol}_call"))
        if threads > 1:
            get_pool().start(threads)
        _living.add(self)

    def _note_types(self) -> None:
        """Look up once what calls need of the types of inputs and outputs."""
        plan, layout = self.plan, self._entry.layout
        self._dtypes = [v.type.dtype.numpy for v in plan.inputs]  # type: ignore[union-attr]
        self._static_in = [v.type.static_shape for v in plan.inputs]  # type: ignore[union-attr]
        self._static_out = [v.type.static_shape for v in plan.outputs]  # type: ignore[union-attr]
        self._is_static = self._takes_host_addresses and all(s is not None for s in (*self._static_in, *self._static_out))
        self._static_arena = int(plan.arena_bytes.value) if isinstance(plan.arena_bytes, Const) else None
        self._static_results = sum(v.type.dtype.size_bytes * math.prod(v.type.static_shape or (0,)) for v in plan.outputs)  # type: ignore[union-attr,misc]
        self._is_static = self._is_static and self._static_arena is not None and not plan.num_dynamic
        # Arrays of callers have elements that share bytes each in a byte of its own.
        self._shares_bytes = any(v.type.dtype.per_byte > 1 for v in (*plan.inputs, *plan.outputs))  # type: ignore[union-attr]
        self._is_static = self._is_static and not self._shares_bytes
        decided = [slot.place is SlotPlace.DYNAMIC for slot in plan.output_slots]
        self._out_types = [(v.type.dtype.numpy, v.type.rank) for v in plan.outputs]  # type: ignore[union-attr]
        self._dynamic_out = decided
        self._known_out = [
            (shape, word, dtype, rank)
            for shape, word, (dtype, rank), dynamic in zip(
                self._static_out, layout.outputs, self._out_types, self._dynamic_out, strict=True
            )
            if not dynamic
        ]
        self._dynamic_words = [layout.dynamic + 2 * k for k in range(plan.num_dynamic)]
        self._found_out = found_places(plan, layout)
        self._are_all_found = len(self._found_out) == len(plan.outputs)
        self._fixed_in = all(s is not None for s in self._static_in)
        fresh = [(s, d, math.prod(s) * d.itemsize) for s, (d, _) in zip(self._static_out, self._out_types) if s is not None]
        self._are_small = self._is_static and all(size < LEAST_LENT_BYTES for _, _, size in fresh)
        self._result_makers = [(np.empty if size < LEAST_ALIGNED_BYTES else aligned_empty, shape, dtype) for shape, dtype, size in fresh]
        self._address_words = [*layout.inputs, *layout.outputs]
        self._output_names = [info.name for info in self.outputs]
        self._positions = {info.name: k for k, info in enumerate(self.inputs)}
        self._is_random = RANDOM_KEY in self._positions
        self._keys = itertools.count()

    def _place_constants(self) -> list[int]:
        """The addresses of the constants."""
        return [data_address(c) for c in self._constants]

    def address(self, symbol: str) -> int:
        """Where the machine code of a kernel starts; CodegenError when there is none of that symbol."""
        return self._library.address(symbol)

    @property
    def device(self) -> Device | None:
        """Where its kernels run; None for the process itself."""
        return self._library.device

    # -- calling

    def _call(self, args: tuple[Any, ...], out: Any) -> Any:
        if len(args) == 1 and type(args[0]) is not np.ndarray and isinstance(args[0], Mapping):
            args = self._by_name(args[0])
        elif self._is_random and len(args) == len(self.inputs) - 1:
            args = (*args, self._next_key())
        results = self._run_arrays(args, out)
        return results[0] if len(results) == 1 else tuple(results)

    def _next_key(self) -> np.ndarray:
        """Of the random numbers of a run: 0 in the first one, and another one in each."""
        return np.array(next(self._keys), np.uint64)

    def _by_name(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        self._check_names(inputs)
        if self._is_random and RANDOM_KEY not in inputs:
            inputs = {**inputs, RANDOM_KEY: self._next_key()}
        unknown = [name for name in inputs if name not in self._positions and name not in self.overridable]
        missing = [info.name for info in self.inputs if info.name not in inputs]
        if unknown:
            raise InputError(f'there is no input "{unknown[0]}"; the inputs are: {", ".join(self._positions)}', code="TC2001")
        if missing:
            raise InputError(f'input "{missing[0]}" is missing; the inputs are: {", ".join(self._positions)}', code="TC2001")
        if len(inputs) > len(self._positions):
            raise DefaultsReplaced(tuple(sorted(name for name in inputs if name in self.overridable)))
        return tuple(inputs[info.name] for info in self.inputs)

    def _check_names(self, inputs: object) -> None:
        """InputError unless the inputs of a call map names to arrays."""
        if not isinstance(inputs, Mapping):
            names = ", ".join(self._positions)
            raise InputError(f"the inputs are a {type(inputs).__name__}, must map names to arrays; the names are: {names}", code="TC2001")

    def _run_arrays(self, args: tuple[Any, ...], out: Any) -> Sequence[Any]:
        """The results of a call: the short way where nothing is to be converted or explained, else the long one."""
        results = None if self._enter is None else self._run_shortly(args, out)
        return self._execute(args, out) if results is None else results

    def _run_shortly(self, args: tuple[Any, ...], out: Any) -> Sequence[Any] | None:
        """Run where nothing but addresses changes from call to call: the other words of a frame and its arena are what they were. None,
        and nothing has run, where arrays are of other sizes than in the call before, or not such as kernels take (see `short_call`)."""
        frame = self._take_frame()
        try:
            if frame.shapes is None or not (self._fixed_in or [array.shape for array in args if type(array) is np.ndarray] == frame.shapes):
                return None
            results: Any
            if out is not None:
                if self._found_out:
                    return None
                results = out if type(out) is tuple else tuple(listed(out))
            elif self._are_small:
                results = tuple([make(shape, dtype) for make, shape, dtype in self._result_makers])
            else:
                results = tuple(self._results.arrays(frame.wanted, len(self._frames))) if frame.wanted else ()
            found: list[Any] = [None] * len(self._found_out)
            try:
                status: int = self._enter(frame.address, args, results, found)  # type: ignore[misc]
            except ValueError:  # it has run, and numpy has no array of a result's shape: who makes what is not made tells of which
                status = 0
            if status == MISFIT:
                return None
            if status:
                self._fail(status, frame)
            return self._with_found(frame, results, found) if found else tuple(results)
        finally:
            if self._dynamic_words:
                self._free_dynamic(frame)
            self._idle.append(frame)

    def _execute(self, args: Sequence[Any], out: Any) -> list[Any]:
        if len(args) != len(self.inputs):
            raise InputError(f"{len(args)} arrays given, but the model has {len(self.inputs)} inputs", code="TC2001")
        first = args[0] if args else None
        foreign = first is not None and not isinstance(first, np.ndarray)
        arrays = [self._as_input(k, value) for k, value in enumerate(args)]
        frame = self._take_frame()
        try:
            results = self._run_frame(frame, arrays, out)
        finally:
            self._idle.append(frame)
        return [like(first, result) for result in results] if foreign and out is None else results

    def _as_input(self, k: int, value: Any) -> np.ndarray:
        array = value if type(value) is np.ndarray and value.dtype.isnative else input_array(value, self.inputs[k].name)
        if array.dtype != self._dtypes[k]:
            expected = self.inputs[k].dtype
            raise InputError(f'input "{self.inputs[k].name}": dtype is {dtype_name(array.dtype)}, but must be {expected}', code="TC2002")
        static = self._static_in[k]
        if static is not None:
            if array.shape != static:
                self._refuse_shape(k, array.shape)
        elif array.ndim != len(self.inputs[k].shape):
            self._refuse_shape(k, array.shape)
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        return array

    def _refuse_shape(self, k: int, shape: tuple[int, ...]) -> None:
        info = self.inputs[k]
        if len(shape) != len(info.shape):
            raise InputError(f'input "{info.name}": rank is {len(shape)}, but must be {len(info.shape)} ({info})', code="TC2003")
        for axis, (actual, expected) in enumerate(zip(shape, info.shape, strict=True)):
            if isinstance(expected, int) and actual != expected:
                raise InputError(f'input "{info.name}": dim {axis} is {actual}, but must be {expected} ({info})', code="TC2003")

    def _run_frame(self, frame: Frame, arrays: list[np.ndarray], out: Any) -> list[np.ndarray]:
        words = frame.words
        shapes = [array.shape for array in arrays]
        if self._shares_bytes:
            arrays = [pack(array) for array in arrays]
        starts = [data_address(array) for array in arrays]
        for word, start in zip(self._entry.layout.inputs, starts):
            words[word] = start
        if shapes != frame.shapes:
            self._set_shapes(frame, shapes)
        meant: dict[int, np.ndarray] = {}
        if out is None:
            results = self._make_outputs(frame, frame.wanted)
        else:
            results, meant = self._take_outputs(frame, arrays, starts, listed(out), frame.wanted)
        packed = self._set_packed(frame, results) if self._shares_bytes else {}
        if self.plan.num_dynamic:
            self._run_dynamic(frame, results)
        else:
            self._run_once(frame)
        for k, memory in packed.items():
            results[k][...] = unpack(memory, from_numpy(results[k].dtype), results[k].shape)
        for k, array in meant.items():
            array[...] = results[k]
        return results if out is None else listed(out)

    def _run_once(self, frame: Frame) -> None:
        """Run the program. Raises what its checks say."""
        status = self._run(frame.address)
        if status:
            self._fail(status, frame)

    def _set_packed(self, frame: Frame, results: list[Any]) -> dict[int, np.ndarray]:
        """Memory for the results whose elements share bytes, by number; set in the frame."""
        packed = {}
        for k, word in enumerate(self._entry.layout.outputs):
            dtype = from_numpy(self._out_types[k][0])
            if results[k] is not None and dtype.per_byte > 1:
                packed[k] = tensor_memory(dtype, results[k].shape)
                frame.words[word] = data_address(packed[k])
        return packed

    def _set_shapes(self, frame: Frame, shapes: list[tuple[int, ...]]) -> None:
        """Write the sizes of a call into its frame, and what follows from them alone: other dims, the arena, the sizes of results. They
        stay for the next call. Raises what the checks of the dims say."""
        words = frame.words
        frame.shapes = frame.apart = None
        if not self._is_static:
            for word, shape in zip(self._entry.layout.inputs, shapes):
                for size in shape:
                    word += 1
                    words[word] = size
            status = self._prepare(frame.address)
            if status:
                self._fail(status, frame)
            self._provide(frame, words[ARENA_BYTES])
        frame.wanted = [(shape or tuple(words[word + 1 : word + 1 + rank]), dtype) for shape, word, dtype, rank in self._known_out]
        frame.shapes = shapes

    def _provide(self, frame: Frame, needed: int) -> None:
        """Give a frame an arena of so many bytes at least. LimitError when there is no memory for it, and for results of known size."""
        if needed and (frame.arena is None or frame.arena.size_bytes < needed):
            frame.arena = self._new_arena(needed)
            frame.words[ARENA] = frame.arena.address

    def _new_arena(self, size_bytes: int) -> Arena | DeviceBlock:
        """Memory for values in between."""
        check_fits(size_bytes + self._static_results)
        return Arena(size_bytes)

    def _make_outputs(self, frame: Frame, wanted: Sequence[_Wanted]) -> list[Any]:
        """Fresh arrays for results, None for those whose size data decide."""
        results = self._in_order(self._results.arrays(wanted, len(self._frames)))
        for word, result in zip(self._entry.layout.outputs, results):
            if result is not None:
                frame.words[word] = data_address(result)
        return results

    def _in_order(self, fixed: Sequence[Any]) -> list[Any]:
        """All results, of which those of known size are given; None for the others."""
        made = iter(fixed)
        return [None if is_dynamic else next(made) for is_dynamic in self._dynamic_out]

    def _take_outputs(
        self, frame: Frame, arrays: Sequence[np.ndarray], starts: list[int], given: list[Any], wanted: Sequence[_Wanted]
    ) -> tuple[list[Any], dict[int, np.ndarray]]:
        """The caller's arrays for results, and by number those that lie upon an input: such a result is computed apart, to be copied."""
        results = self._check_outputs(given, wanted)
        meant: dict[int, np.ndarray] = {}
        ends = [data_address(array) for array in results]
        if (starts, ends) != frame.apart:
            meant = self._set_apart(arrays, results)
            frame.apart = None if meant else (starts, ends)
            ends = [data_address(array) for array in results]
        for word, end in zip(self._entry.layout.outputs, ends):
            frame.words[word] = end
        return results, meant

    def _set_apart(self, arrays: Sequence[np.ndarray], results: list[np.ndarray]) -> dict[int, np.ndarray]:
        """Put fresh arrays in the place of results that lie upon inputs; returns those, by number."""
        over_input, pair = overlapping(arrays, results)
        self._refuse_overlap(pair)
        meant = {k: results[k] for k in over_input}
        for k, array in meant.items():
            results[k] = result_array(array.shape, array.dtype)
        return meant

    def _refuse_overlap(self, pair: tuple[int, int] | None) -> None:
        if pair is not None:
            one, other = (self.outputs[k].name for k in pair)
            raise InputError(f'out: the buffers for "{one}" and "{other}" overlap', code="TC2006")

    def _check_outputs(self, given: list[Any], wanted: Sequence[_Wanted]) -> list[np.ndarray]:
        """The memory of the caller's arrays for results. InputError for what cannot hold them."""
        if len(given) != len(self.outputs):
            raise InputError(f"out: {len(given)} arrays given, but the model has {len(self.outputs)} outputs", code="TC2006")
        if len(wanted) != len(given):
            name = self.outputs[self._dynamic_out.index(True)].name
            raise InputError(f'out: output "{name}" has a size that depends on the data', code="TC2006")
        fits = [
            type(array) is np.ndarray and array.shape == shape and array.dtype == dtype and array.flags.carray
            for array, (shape, dtype) in zip(given, wanted)
        ]
        if all(fits):
            return given
        return [output_array(array, *type_, info.name) for array, type_, info in zip(given, wanted, self.outputs, strict=True)]

    # -- frames

    def _take_frame(self) -> Frame:
        try:
            frame = self._idle.pop()
        except IndexError:  # all are in use
            frame = self._new_frame()
        frame.thread = get_ident()
        return frame

    def _new_frame(self) -> Frame:
        count = self._entry.layout.words + len(self._entry.timed)
        words = (ctypes.c_int64 * max(count, 1))()
        frame = Frame(words, ctypes.addressof(words))
        words[CONSTANTS] = ctypes.addressof(self._table)
        if self._native_callback is not None:
            words[CALLBACK] = ctypes.cast(self._native_callback, ctypes.c_void_p).value or 0
        self._connect(frame)
        if self._types is not None:
            words[TYPES] = ctypes.addressof(self._types)
        if self._is_static:
            self._provide(frame, self._static_arena or 0)
            shapes = [shape or () for shape in (*self._static_in, *self._static_out)]
            for word, shape in zip(self._address_words, shapes, strict=True):
                words[word + 1 : word + 1 + len(shape)] = shape  # type: ignore[assignment]
            self._set_shapes(frame, shapes[: len(self._static_in)])
        with self._lock:
            self._frames[frame.address] = frame
        return frame

    def _connect(self, frame: Frame) -> None:
        """Give a new frame what its kernels run on."""
        if self.threads > 1:
            get_pool().start(self.threads)  # a forked child has none yet
        frame.words[THREADS] = self.threads

    def synchronize(self) -> None:
        """Wait for what calls have left to a device, and raise what went wrong there since the last time. A CPU's are left nothing."""

    def trim(self) -> None:
        """Give memory back that is kept for calls to come: arenas, and blocks for results. The next calls ask for it again."""
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread took the last one
                frame = self._idle.pop()
                with self._lock:
                    del self._frames[frame.address]
        self._results.trim()

    def _start_anew(self) -> None:
        """In a forked child: no frame is idle, and those of calls on threads that are not here are gone, memory and all.

        A frame is kept whose call is on the thread that forked: a reference kernel may have done so.
        """
        idle, self._idle = {id(frame) for frame in self._idle}, []
        self._lock = threading.Lock()
        self._results.trim()
        for address, frame in list(self._frames.items()):
            if id(frame) in idle or frame.thread != get_ident():
                del self._frames[address]
                if isinstance(frame.arena, Arena):
                    frame.arena.discard()  # the frame of a thread that is not here is never freed

    def _fail(self, status: int, frame: Frame) -> None:
        if status < 0 and frame.error is not None:
            error, frame.error = frame.error, None
            raise error
        check = self._entry.checks[status - 1]
        if check.assumed and self._make_general is not None:
            raise AssumptionFails
        found = {"{value}": frame.words[DETAIL], "{index}": frame.words[DETAIL], "{size}": frame.words[SIZE]}
        message = check.message
        for name, value in found.items():
            message = message.replace(name, str(value))
        if check.message == NO_MEMORY:
            raise LimitError(message)
        values = [f"{name} = {frame.words[self._entry.layout.dims + word]}" for name, word in check.dims]
        raise InputError(f"{message} (here {', '.join(values)})" if values else message, code="TC2004")

    # -- results of data-dependent size

    def _free_dynamic(self, frame: Frame) -> None:
        words = frame.words
        for word in self._dynamic_words:
            if words[word]:
                free_block(frame, word)

    def _run_dynamic(self, frame: Frame, results: list[Any]) -> None:
        """Run, and give what results of unknown size there are; blocks are freed whatever happens."""
        try:
            self._run_once(frame)
            self._take_dynamic(frame, results)
        finally:
            self._free_dynamic(frame)

    def _with_found(self, frame: Frame, fixed: Sequence[Any], found: list[Any]) -> Sequence[Any]:
        """All results, of which those of known size are given, and of the others those that the program has made."""
        for made in found if self._are_all_found else (None,):
            if made is None:
                break
        else:
            return tuple(found)
        results = self._in_order(fixed)
        for place, made in zip(self._found_out, found, strict=True):
            results[place.number] = made
        self._take_dynamic(frame, results)
        return tuple(results)

    def _take_dynamic(self, frame: Frame, results: list[Any]) -> None:
        """Make what results of dynamic blocks are not made: large ones are the memory of a block that is no other result's, others are
        copies."""
        words, is_here = frame.words, frame.memory is HOST_MEMORY
        for place in self._found_out:
            if results[place.number] is not None:
                continue
            dtype, element, word = place.dtype, place.dtype.numpy, place.word
            shape, start = tuple(words[word + 1 : word + 1 + place.rank]), words[word]
            size = math.prod(shape) * element.itemsize
            is_whole = is_here and dtype.per_byte == 1
            if size >= LEAST_ALIGNED_BYTES and is_whole and place.block >= 0 and words[place.block] == start:
                words[place.block] = 0
                results[place.number] = owned_array(start, shape, element)
                continue
            results[place.number] = array = result_array(shape, element)
            if not size:
                continue
            if is_whole:
                ctypes.memmove(data_address(array), start, size)
            else:
                array[...] = unpack(frame.memory.view(start, dtype.bytes_of(array.size)), dtype, array.shape)

    # -- reference kernels

    def _call_out(self, frame_address: int, number: int, table: int) -> int:
        frame = self._frames[frame_address]
        try:
            assert self._callback is not None
            with self._on_host(frame):
                run_reference(frame, self._entry.layout, self._entry.calls[number], self._callback, table)
        except BaseException as error:  # carried to the caller of the module, past native code
            frame.error = error
            return -1
        return 0

    def _on_host(self, frame: Frame) -> contextlib.AbstractContextManager[None]:
        """Around what the host does between launches."""
        return contextlib.nullcontext()


def _weakly(method: weakref.WeakMethod[Callable[[int, int, int], int]]) -> Callable[[int, int, int], int]:
    """The method as a function that keeps its object no longer alive: a module in a cycle kept its code when it was dropped."""

    def call(frame_address: int, number: int, table: int) -> int:
        bound = method()
        assert bound is not None, "a module lives as long as calls of it run"
        return bound(frame_address, number, table)

    return call


def _after_fork_in_child() -> None:
    for module in list(_living):
        module._start_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
_SHORT_CALL = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.py_object, ctypes.py_object, ctypes.py_object)
