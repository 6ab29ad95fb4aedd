"""CompiledModule: a compiled graph as a callable.

A call fills a frame of machine words with pointers and dims, calls native code once (twice when shapes are dynamic), and returns
arrays. Between those calls no Python runs, except for nodes on the reference kernel. Calls from several threads are
independent: each takes a frame and an arena of its own from a stack of idle ones. So are processes: a forked child takes neither
from its parent, whatever the parent's threads were at when it forked.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
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
from tc.errors import InputError, UnsupportedError, UserError
from tc.ir.arith import evaluate
from tc.ir.dtype import from_numpy, pack, tensor_memory, unpack
from tc.ir.expr import Const, Expr, Var
from tc.ir.node import walk
from tc.ir.plan import Check, ExecutionPlan, Launch, SlotPlace
from tc.ir.types import TensorType
from tc.runtime.arrays import NO_OVERLAP, Port, dtype_name, fit, input_array, like, listed, output_array, overlapping
from tc.runtime.available import check_fits
from tc.runtime.callbacks import Callback
from tc.runtime.entry import EntrySource
from tc.runtime.frame_layout import ARENA, ARENA_BYTES, CALLBACK, CONSTANTS, DETAIL, SIZE, THREADS
from tc.runtime.frames import Frame, free_block, run_reference
from tc.runtime.interface import dim_vars, interface_to_json
from tc.runtime.memory import Arena, data_address, result_array
from tc.runtime.pool import get_pool
from tc.runtime.report import KernelTime, Report, tensor_info
from tc.runtime.results import LEAST_LENT_BYTES, ResultPool
from tc.runtime.saved import Seal, plain_seal, write_files, write_module

_Wanted = tuple[tuple[int, ...], Any]
"""Of a result: shape and dtype."""


def _is_known(expr: Expr, env: Mapping[Var, int]) -> bool:
    """Whether an expression has a value for these dims."""
    return all(node in env for node in walk(expr) if isinstance(node, Var))


class _AssumptionFails(Exception):
    """The dims of a call are not what the program was made for: the general one is to run."""


class _DefaultsReplaced(Exception):
    """Inputs are given that have a default, which the program has as constants: `names`."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self.names = names


_living: weakref.WeakSet[CompiledModule] = weakref.WeakSet()


class CompiledModule:
    """A compiled model.

    y = m(x)                      arrays by position (in the order of `inputs`), or one dict by name
    m.run({"x": x})               dict of outputs by name
    m(x, out=buffer)              results go into your arrays (a list when there are several)

    Arrays are numpy arrays or anything with `__dlpack__` on the CPU; results are of the kind of the first input. An array that
    is C-contiguous is used in place, another is copied once. dtypes are never converted: a wrong one raises InputError.

    `out` may lie upon inputs: such a result is computed apart and copied. Results without `out` are the caller's for as long as
    anything holds them; their memory then serves later results of this module, until `trim` gives it back.
    """

    _takes_host_addresses = True

    def __init__(
        self,
        plan: ExecutionPlan,
        entry: EntrySource,
        library: Loaded,
        symbol: str,
        constants: Sequence[np.ndarray],
        threads: int,
        callback: Callback | None = None,
        report: Report | None = None,
        explanations: Mapping[str, str] | None = None,
        objects: Sequence[bytes] = (),
        target: str = "native",
        make_profiled: Callable[[], tuple[EntrySource, Loaded]] | None = None,
        make_general: Callable[[], CompiledModule] | None = None,
    ) -> None:
        self.plan = plan
        self.target = target
        self._objects = tuple(objects)
        self._make_profiled = make_profiled
        self._make_general = make_general
        self._general: CompiledModule | None = None
        self.overridable: tuple[str, ...] = ()
        """Names of inputs that need not be given: the model has their values."""
        self._make_overriding: Callable[[tuple[str, ...]], CompiledModule] | None = None
        self._write: Callable[[str | None], Mapping[str, str | bytes]] | None = None
        self._overriding_modules: dict[tuple[str, ...], CompiledModule] = {}
        self._profiled: tuple[EntrySource, Loaded] | None = None
        self._symbol = symbol
        self.threads = threads
        self.inputs = tuple(tensor_info(v.name, v.type) for v in plan.inputs)  # type: ignore[arg-type]
        self.outputs = tuple(tensor_info(v.name, v.type) for v in plan.outputs)  # type: ignore[arg-type]
        self._entry = entry
        self._library = library
        self._callback = callback
        self._report = report or Report(())
        self._explanations = dict(explanations or {})
        self._constants = list(constants)
        self._table = (ctypes.c_void_p * max(len(constants), 1))(*self._place_constants())
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
        self._prepare = kind(library.address(f"{symbol}_prepare"))
        self._run = kind(library.address(f"{symbol}_run"))
        self._native_callback = _CALLBACK(_weakly(weakref.WeakMethod(self._call_out))) if entry.calls else None
        self._lock = threading.Lock()
        self._idle: list[Frame] = []
        self._frames: dict[int, Frame] = {}
        self._dtypes = [v.type.dtype.numpy for v in plan.inputs]  # type: ignore[union-attr]
        self._static_in = [v.type.static_shape for v in plan.inputs]  # type: ignore[union-attr]
        self._static_out = [v.type.static_shape for v in plan.outputs]  # type: ignore[union-attr]
        self._is_static = self._takes_host_addresses and all(s is not None for s in (*self._static_in, *self._static_out))
        self._static_arena = int(plan.arena_bytes.value) if isinstance(plan.arena_bytes, Const) else None
        self._static_results = sum(v.type.dtype.size_bytes * math.prod(v.type.static_shape or (0,)) for v in plan.outputs)  # type: ignore[union-attr,misc]
        # Blocks of a size that depends on data are freed after every call, which is not for the short way.
        self._is_static = self._is_static and self._static_arena is not None and not plan.num_dynamic
        # Nor are elements that share bytes: arrays of callers have each in a byte of its own.
        self._shares_bytes = any(v.type.dtype.per_byte > 1 for v in (*plan.inputs, *plan.outputs))  # type: ignore[union-attr]
        self._is_static = self._is_static and not self._shares_bytes
        self._out_types = [(v.type.dtype.numpy, v.type.rank) for v in plan.outputs]  # type: ignore[union-attr]
        self._dynamic_out = [slot.place is SlotPlace.DYNAMIC for slot in plan.output_slots]
        self._known_out = [
            (shape, word, dtype, rank)
            for shape, word, (dtype, rank), dynamic in zip(
                self._static_out, entry.layout.outputs, self._out_types, self._dynamic_out, strict=True
            )
            if not dynamic
        ]
        # What the calls of a static module need, looked up here once.
        layout, out_dtypes = entry.layout, [dtype for dtype, _ in self._out_types]
        self._wanted: list[Port] = list(zip(range(len(self.inputs)), layout.inputs, self._dtypes, self._static_in, strict=True))
        self._made: list[Port] = list(zip(range(len(self.outputs)), layout.outputs, out_dtypes, self._static_out, strict=True))
        self._result_types = [(shape, dtype) for _, _, dtype, shape in self._made]
        self._lends = self._is_static and any(math.prod(s) * d.itemsize >= LEAST_LENT_BYTES for s, d in self._result_types)
        self._results = ResultPool()
        self._address_words = [word for _, word, _, _ in (*self._wanted, *self._made)]
        self._output_names = [info.name for info in self.outputs]
        self._positions = {info.name: k for k, info in enumerate(self.inputs)}
        if threads > 1:
            get_pool().start(threads)
        _living.add(self)

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

    def __call__(self, *args: Any, out: Any = None) -> Any:
        """Run; returns the result, or a tuple of results when there are several."""
        try:
            return self._call(args, out)
        except _AssumptionFails:
            return self.general(*args, out=out)
        except _DefaultsReplaced as given:
            return self._overriding(given.names)(*args, out=out)

    def _call(self, args: tuple[Any, ...], out: Any) -> Any:
        results: Any = None
        if self._is_static and fit(args, self._wanted):
            if out is None:
                results = self._run_static(args)
            elif fit(given := listed(out), self._made) and all(array.flags.carray for array in given):
                results = self._run_into(args, given)
        if results is None:
            if len(args) == 1 and isinstance(args[0], Mapping):
                args = self._by_name(args[0])
            results = self._execute(args, out)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run on inputs by name; returns outputs by name, in order."""
        try:
            args = self._by_name(inputs)
            results = self._run_static(args) if self._is_static and fit(args, self._wanted) else self._execute(args, None)
        except _AssumptionFails:
            return self.general.run(inputs)
        except _DefaultsReplaced as given:
            return self._overriding(given.names).run(inputs)
        return dict(zip(self._output_names, results, strict=True))

    def _by_name(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        if not isinstance(inputs, Mapping):
            names = ", ".join(self._positions)
            raise InputError(f"the inputs are a {type(inputs).__name__}, must map names to arrays; the names are: {names}")
        unknown = [name for name in inputs if name not in self._positions and name not in self.overridable]
        missing = [info.name for info in self.inputs if info.name not in inputs]
        if unknown:
            raise InputError(f'there is no input "{unknown[0]}"; the inputs are: {", ".join(self._positions)}')
        if missing:
            raise InputError(f'input "{missing[0]}" is missing; the inputs are: {", ".join(self._positions)}')
        if len(inputs) > len(self._positions):
            raise _DefaultsReplaced(tuple(sorted(name for name in inputs if name in self.overridable)))
        return tuple(inputs[info.name] for info in self.inputs)

    def _run_static(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run where nothing but addresses changes from call to call: the other words of a frame and its arena are what they were."""
        if self._lends:
            results = self._results.arrays(self._result_types, len(self._frames))
        else:
            results = [result_array(shape, dtype) for shape, dtype in self._result_types]
        frame = self._take_frame()
        try:
            words, frame.places = frame.words, None
            for k, word, _, _ in self._wanted:
                words[word] = data_address(arrays[k])
            for k, word, _, _ in self._made:
                words[word] = data_address(results[k])
            status = self._run(frame.address)
            if status:
                self._fail(status, frame)
            return results
        finally:
            self._idle.append(frame)

    def _run_into(self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
        """`_run_static` with results in arrays of the caller. None, and nothing is done, when one lies upon an input or another."""
        places = [data_address(array) for array in arrays]
        places += [data_address(array) for array in results]
        frame = self._take_frame()
        try:
            if places != frame.places:  # sizes are fixed: the same places are as far apart as they were
                if overlapping(arrays, results) != NO_OVERLAP:
                    return None
                words, frame.places = frame.words, None
                for word, place in zip(self._address_words, places):
                    words[word] = place
                frame.places = places
            status = self._run(frame.address)
            if status:
                self._fail(status, frame)
            return results
        finally:
            self._idle.append(frame)

    def _execute(self, args: Sequence[Any], out: Any) -> list[Any]:
        if len(args) != len(self.inputs):
            raise InputError(f"{len(args)} arrays given, but the model has {len(self.inputs)} inputs")
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
            raise InputError(f'input "{self.inputs[k].name}": dtype is {dtype_name(array.dtype)}, but must be {expected}')
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
            raise InputError(f'input "{info.name}": rank is {len(shape)}, but must be {len(info.shape)} ({info})')
        for axis, (actual, expected) in enumerate(zip(shape, info.shape, strict=True)):
            if isinstance(expected, int) and actual != expected:
                raise InputError(f'input "{info.name}": dim {axis} is {actual}, but must be {expected} ({info})')

    def _run_frame(self, frame: Frame, arrays: list[np.ndarray], out: Any) -> list[np.ndarray]:
        words, frame.places = frame.words, None
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
        stay for the next call, unless data may change them. Raises what the checks of the dims say."""
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
        if not self.plan.num_dynamic:
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
        results: list[Any] = self._results.arrays(wanted, len(self._frames))
        if len(results) < len(self.outputs):
            made = iter(results)
            results = [None if is_dynamic else next(made) for is_dynamic in self._dynamic_out]
        for word, result in zip(self._entry.layout.outputs, results):
            if result is not None:
                frame.words[word] = data_address(result)
        return results

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
            raise InputError(f'out: the buffers for "{one}" and "{other}" overlap')

    def _check_outputs(self, given: list[Any], wanted: Sequence[_Wanted]) -> list[np.ndarray]:
        """The memory of the caller's arrays for results. InputError for what cannot hold them."""
        if len(given) != len(self.outputs):
            raise InputError(f"out: {len(given)} arrays given, but the model has {len(self.outputs)} outputs")
        if len(wanted) != len(given):
            name = self.outputs[self._dynamic_out.index(True)].name
            raise InputError(f'out: output "{name}" has a size that depends on the data')
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
        if self._is_static:
            self._provide(frame, self._static_arena or 0)
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
            raise _AssumptionFails
        found = {"{value}": frame.words[DETAIL], "{index}": frame.words[DETAIL], "{size}": frame.words[SIZE]}
        message = check.message
        for name, value in found.items():
            message = message.replace(name, str(value))
        values = [f"{name} = {frame.words[self._entry.layout.dims + word]}" for name, word in check.dims]
        raise InputError(f"{message} (here {', '.join(values)})" if values else message)

    # -- results of data-dependent size

    def _dynamic_words(self, frame: Frame) -> list[int]:
        start = self._entry.layout.dynamic
        return [start + 2 * k for k in range(self.plan.num_dynamic)]

    def _free_dynamic(self, frame: Frame) -> None:
        for word in self._dynamic_words(frame):
            free_block(frame, word)

    def _run_dynamic(self, frame: Frame, results: list[Any]) -> None:
        """Run, and give what results of unknown size there are; blocks are freed whatever happens."""
        try:
            self._run_once(frame)
            self._take_dynamic(frame, results)
        finally:
            self._free_dynamic(frame)

    def _take_dynamic(self, frame: Frame, results: list[Any]) -> None:
        """Copy outputs out of dynamic blocks."""
        words = frame.words
        found = [(k, word) for k, word in enumerate(self._entry.layout.outputs) if self._dynamic_out[k]]
        types = [self._out_types[k] for k, _ in found]
        wanted = [(tuple(words[word + 1 : word + 1 + rank]), dtype) for (_, word), (dtype, rank) in zip(found, types, strict=True)]
        for (k, word), array in zip(found, self._results.arrays(wanted, len(self._frames)), strict=True):
            results[k] = array
            if array.nbytes:
                dtype = from_numpy(array.dtype)
                array[...] = unpack(frame.memory.view(words[word], dtype.bytes_of(array.size)), dtype, array.shape)

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

    # -- facts

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the symbolic dims of the inputs."""
        return tuple(sorted({var.name for var in dim_vars(self.plan)}))

    def peak_bytes(self, **dims: int) -> int:
        """Memory of one call beyond inputs and constants, for these dims: arena and outputs.

        InputError for a dim that is missing, that the module does not have, or of a size that it cannot have.
        """
        self._check_dims(dims)
        env = {n: dims[n.name] for n in dim_vars(self.plan) if n.name in dims}
        if self._make_general is not None and not all(evaluate(c, env) for c in self._assumptions if _is_known(c, env)):
            return self.general.peak_bytes(**dims)
        total = self._evaluate(self.plan.arena_bytes, env)
        for var, slot in zip(self.plan.outputs, self.plan.output_slots, strict=True):
            if slot.place is not SlotPlace.DYNAMIC:
                assert isinstance(var.type, TensorType)
                total += self._evaluate(var.type.size_bytes, env)
        return total

    def _check_dims(self, dims: Mapping[str, object]) -> None:
        """Refuse what is no size, or contradicts what the module was compiled for."""
        for name, size in dims.items():
            if name not in self.dims:
                raise InputError(f"there is no dim {name!r}; the dims are: {', '.join(self.dims) or 'none, all shapes are fixed'}")
            if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 0:
                raise InputError(f"dim {name} is {size!r}, must be a whole number, not negative")

    def _evaluate(self, expr: Expr, env: Mapping[Var, int]) -> int:
        for node in walk(expr):
            if isinstance(node, Var) and node not in env:
                raise InputError(f"a value for dim {node.name} is needed")
        return int(evaluate(expr, env))

    def report(self) -> Report:
        """Kernels, reference kernels, sizes, seconds of compilation."""
        return self._report

    def explain(self, node: str) -> str:
        """Why the model's node `node` was fused and scheduled as it was; InputError for a name that is not in the model."""
        if not isinstance(node, str) or node not in self._explanations:
            raise InputError(f"no node {node!r}; the nodes are: {', '.join(list(self._explanations)[:20])} ...")
        return self._explanations[node]

    def profile(self, *args: Any, repeat: int = 10) -> list[KernelTime]:
        """Time every kernel launch of a call on these inputs: the mean over `repeat` calls, after one to warm up, slowest first.

        Seconds of the monotonic clock, on the thread that calls; a launch inside a loop adds up its iterations. The first profile
        compiles an instrumented entry. UnsupportedError for a module that was loaded from a file.
        """
        if self._make_profiled is None:
            raise UnsupportedError("profile: a module loaded from a file cannot be instrumented; compile the model again")
        if not isinstance(repeat, (int, np.integer)) or isinstance(repeat, bool) or repeat < 1:
            raise InputError(f"profile: repeat is {repeat!r}, must be at least 1")
        if self._profiled is None:
            self._profiled = self._make_profiled()
        entry, library = self._profiled
        timed = type(self)(
            self.plan, entry, library, self._symbol, self._constants, self.threads, self._callback, make_general=self._make_general
        )
        try:
            timed._call(args, None)
        except _AssumptionFails:
            return self.general.profile(*args, repeat=repeat)
        seconds = np.mean([timed.launch_seconds(*args) for _ in range(repeat)], axis=0)
        rows = [
            KernelTime(str(launch.span or ""), launch.kernel, float(mean))
            for launch, mean in zip(timed.launches, seconds, strict=True)
        ]
        return sorted(rows, key=lambda row: -row.seconds)

    @property
    def _assumptions(self) -> list[Expr]:
        """What the program takes for granted of the dims (`Check.assumed`), as far as it is said before anything runs."""
        return [step.condition for step in self.plan.steps if isinstance(step, Check) and step.assumed]

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launches of an entry that times them, in the order of the plan; of another entry none."""
        return self._entry.timed

    def launch_seconds(self, *args: Any) -> np.ndarray:
        """float64[launches]: what each launch takes in one call of a module whose entry times them, the iterations of loops added up.

        Not for calls from several threads at once.
        """
        words = slice(self._entry.layout.words, self._entry.layout.words + len(self.launches))
        for frame in self._idle:
            frame.words[words] = [0] * len(self.launches)
        self(*args)
        (frame,) = self._idle
        return np.array(frame.words[words]) * 1e-9

    # -- files

    @property
    def general(self) -> CompiledModule:
        """The module that takes what this one does not, because it assumes dims to be equal that may be broadcast; compiled when first
        needed. This module itself where it assumes nothing."""
        if self._make_general is None or not any(check.assumed for check in self._entry.checks):
            return self
        if self._general is None:
            self._general = self._make_general()
        return self._general

    def set_general(self, make_general: Callable[[], CompiledModule]) -> None:
        """Say how to make the module that assumes nothing."""
        self._make_general = make_general

    def set_overriding(self, names: tuple[str, ...], make: Callable[[tuple[str, ...]], CompiledModule] | None) -> None:
        """Say which inputs have a default, and how to make the module that takes some of them."""
        self.overridable, self._make_overriding = names, make

    def _overriding(self, names: tuple[str, ...]) -> CompiledModule:
        if self._make_overriding is None:
            raise InputError(
                f'input "{names[0]}" has a default, which is part of this file\'s program; compile the model with overridden={list(names)}'
            )
        if names not in self._overriding_modules:
            self._overriding_modules[names] = self._make_overriding(names)
        return self._overriding_modules[names]

    def set_origin(
        self,
        seconds: float,
        make_profiled: Callable[[], tuple[EntrySource, Loaded]],
        make_general: Callable[[], CompiledModule],
    ) -> None:
        """Say that the module was read from a cache, and in how many seconds; and how to make the entry point that profiles, and the
        module that assumes nothing."""
        self.set_general(make_general)
        self._report = dataclasses.replace(self._report, seconds=(("load from cache", seconds),))
        self._make_profiled = make_profiled

    def set_writer(self, write: Callable[[str | None], Mapping[str, str | bytes]]) -> None:
        """Say how to write the program's kernels in a language (None: the usual one of the target) as files by name."""
        self._write = write

    def export(self, folder: str | os.PathLike[str], language: str | None = None) -> tuple[str, ...]:
        """Write the kernels into a folder as text, a file for each, with what the host does ("plan.txt") and how to build them
        ("build.sh"); for target "c" all of a program. Returns the names of the files.

        language: one in which kernels of the target are written ("c", "cuda", "ptx", "opencl", "llvm", "asm"), by default the first of
        its own. The schedules are those of this module. Like `tc compile --emit`, from a model that is compiled already.
        UnsupportedError for a module that was loaded from a file, UserError for a language that is none of the target's.
        """
        if self._write is None:
            raise UnsupportedError("export: a module loaded from a file has no kernels as text; compile the model again")
        if not isinstance(folder, (str, os.PathLike)):
            raise UserError(f"export: the folder is a {type(folder).__name__}, must be a string or path")
        if language is not None and not isinstance(language, str):
            raise UserError(f"export: the language is a {type(language).__name__}, must be a string")
        files = self._write(language)
        write_files(files, folder)
        return tuple(files)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the module to a file that `tc.load` reads, with the one that assumes nothing (`general`).

        A node that runs on a reference kernel is in it as the kernel's name.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise UserError(f"save: the path is a {type(path).__name__}, must be a string or path")
        header, sections = self.content()
        try:
            write_module(path, header, sections, plain_seal)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"save: {os.fspath(path)!r} cannot be written: {why}") from error

    def content(self) -> tuple[dict[str, Any], list[bytes | np.ndarray]]:
        """The header and the sections of a file of this module and of the one that assumes nothing."""
        header, sections = self._content()
        try:
            general = self.general
        except UnsupportedError:  # what it assumes is what it is able to do; other dims are refused, as they are now
            general = self
        if general is not self:
            header["general"], others = general._content()
            sections = [*sections, *others]
        return header, sections

    def save_sealed(self, path: str | os.PathLike[str], seal: Seal) -> None:
        """This module alone, for those who can make the one again that assumes nothing, under a seal that whoever loads the file must
        know."""
        write_module(path, *self._content(), seal)

    def _content(self) -> tuple[dict[str, Any], list[bytes | np.ndarray]]:
        """The header and the sections of a file of this module alone."""
        header = {
            **interface_to_json(self.plan, self._entry),
            "target": self.target,
            "rates": self._report.rates,
            "symbol": self._symbol,
            "threads": self.threads,
            "constants": [[from_numpy(c.dtype).name, list(c.shape)] for c in self._constants],
            "num_objects": len(self._objects),
            "kernels": [[k.name, list(k.nodes), k.calls, k.rule] for k in self._report.kernels],
            "explanations": self._explanations,
            "general": None,
            "overridable": self.overridable,
        }
        return header, [*self._objects, *self._constants]


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
