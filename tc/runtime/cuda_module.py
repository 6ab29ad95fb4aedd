"""Modules on CUDA devices: arrays of torch, cupy and others that lie on the device are used in place, on the caller's stream.

A call whose results stay on the device does not wait for them: it is work on the stream of its caller, like a kernel of torch or cupy, and
from the second call of some shapes on as a graph of the driver (see `cuda_graphs`). What checks of indices find there is raised by the next
call that sees it, or by `synchronize`. Each stream has frames, and so arenas and graphs, of its own. A call with arrays of the host, or of
a library that does not say on which stream it works, runs on a stream of the module and waits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tc.codegen.cuda.device import CudaDevice, CudaQueue
from tc.errors import InputError
from tc.ir.dtype import from_numpy, pack, unpack
from tc.runtime.arrays import dtype_name, like, listed, output_array
from tc.runtime.cuda_graphs import LEAST_LAUNCHES, ProgramGraphs
from tc.runtime.device_arrays import (
    DeviceArray,
    DeviceArrayView,
    current_stream,
    is_on_device,
    new_like,
    read_device_array,
    stream_handle,
    waiting_stream,
)
from tc.runtime.device_module import DeviceMemory, DeviceModule
from tc.runtime.faults import RECORD_BYTES
from tc.runtime.frame_layout import ARENA
from tc.runtime.frames import Frame
from tc.runtime.report import Report

MOST_STREAMS = 8
"""Frames that are kept for calls to come on streams that they were used on before; for one more, the device is waited for."""

LEAST_ALIGNMENT = 16
"""Bytes at whose multiples the arrays of a kernel begin: its accesses are up to so wide."""

_asked = threading.local()


@dataclass
class _CudaMemory(DeviceMemory):
    """`busy`: the stream whose work may still use the frame's memory; None when all is done. `first`: the caller's array whose kind the
    results of this call have; None for arrays of the host."""

    queue: CudaQueue
    device: CudaDevice
    busy: int | None = None
    first: Any = None
    seen: Any = None
    """int64[3] of the host to which the record of faults is copied behind each call that nobody waits for."""

    graphs: ProgramGraphs | None = None

    def send_faults(self) -> None:
        """Copy the record of faults to the host when the work before is done."""
        if self.record is not None:
            if self.seen is None:
                self.seen = self.device.pinned_words(RECORD_BYTES // 8)
            self.queue.send(self.seen, self.record.address)


@dataclass
class _Target:
    """Where a result goes: `given` is what the caller gets. `view`: memory of the device that the program writes; `array`: an array of the
    host, else. `is_apart`: the result is computed elsewhere and copied, because an input lies there or it does not begin where results of
    kernels do."""

    given: Any
    view: DeviceArrayView | None = None
    array: np.ndarray | None = None
    is_apart: bool = False


class CudaModule(DeviceModule):
    """A compiled model on a CUDA device.

    y = m(x)                      x: torch's or cupy's on the device: y is, too, on the library's current stream, and is not waited for
    m(x, stream=s)                on this stream: of torch, of cupy, or the driver's handle
    """

    _memory_type = _CudaMemory
    _device: CudaDevice

    def __call__(self, *args: Any, out: Any = None, stream: Any = None) -> Any:
        """Run; returns the result, or a tuple of results when there are several."""
        if stream is None:
            return super().__call__(*args, out=out)
        before = getattr(_asked, "stream", None)
        _asked.stream = stream_handle(stream)
        try:
            return super().__call__(*args, out=out)
        finally:
            _asked.stream = before

    def synchronize(self) -> None:
        """See `CompiledModule`. Waits for all work on the device."""
        self._device.check_process()
        self._device.finish()
        self._raise_earlier()

    def trim(self) -> None:
        """Give memory back that is kept for calls to come, to the driver, too."""
        super().trim()
        self._device.trim()

    def report(self) -> Report:
        """See `CompiledModule`; what graphs there are is as of now."""
        return dataclasses.replace(super().report(), graphs=self._graphs_text())

    def _graphs_text(self) -> str:
        if self._entry.undecided:
            return f"none, as {self._entry.undecided}"
        with self._lock:
            found = [frame.memory.graphs for frame in self._frames.values() if isinstance(frame.memory, _CudaMemory)]
        refused = next((graphs.refused for graphs in found if graphs is not None and graphs.refused), "")
        if refused:
            return f"none, as the driver refused one: {refused}"
        nodes = [count for graphs in found if graphs is not None for count in graphs.nodes]
        if nodes:
            return f"{len(nodes)}, of {', '.join(map(str, nodes))} nodes"
        return f"from the second call of some shapes, where it launches {LEAST_LAUNCHES} kernels or more"

    def _execute(self, args: Sequence[Any], out: Any) -> list[Any]:
        if len(args) != len(self.inputs):
            raise InputError(f"{len(args)} arrays given, but the model has {len(self.inputs)} inputs", code="TC2001")
        self._device.check_process()
        stream = getattr(_asked, "stream", None)
        if stream is None:
            stream = self._callers_stream(args, out)
        self._raise_earlier()
        frame = self._frame_for(stream)
        memory = frame.memory
        assert isinstance(memory, _CudaMemory)
        try:
            memory.queue.follow(stream)
            memory.busy = memory.queue.stream
            entered = self._device.enter(memory.queue.address)
            try:
                results = self._run_on(frame, memory, args, out)
                if stream is None or any(isinstance(result, np.ndarray) for result in results):
                    self._raise_faults(frame)
                else:
                    memory.send_faults()
                if stream is None:
                    memory.queue.finish()
                    memory.busy = None
            finally:
                self._device.leave(memory.queue.address, entered)
            return results
        finally:
            memory.first = None
            self._idle.append(frame)

    def _raise_earlier(self) -> None:
        """Raise what is known of faults in calls that nobody has waited for."""
        for frame in list(self._idle) if self._entry.reports else ():
            memory = frame.memory
            assert isinstance(memory, _CudaMemory)
            if memory.seen is None or not memory.seen[0]:
                continue
            try:
                self._idle.remove(frame)
            except ValueError:  # another thread has taken it, and finds the same
                continue
            try:
                self._device.finish()  # the first word of three has come
                memory.seen[:] = 0
                with memory.queue.current():
                    self._raise_faults(frame)
            finally:
                self._idle.append(frame)

    def _callers_stream(self, args: Sequence[Any], out: Any) -> int | None:
        """The stream on which the library of the first array on the device works; None where it does not say, and without such."""
        for value in (*args, *(() if out is None else listed(out))):
            if is_on_device(value):
                return current_stream(value, self._device.number)
        return None

    def _frame_for(self, stream: int | None) -> Frame:
        """A frame whose memory no other stream's work uses."""
        for frame in reversed(list(self._idle)):
            memory = frame.memory
            assert isinstance(memory, _CudaMemory)
            if memory.busy in (None, stream):
                try:
                    self._idle.remove(frame)
                except ValueError:  # another thread took it
                    continue
                frame.thread = threading.get_ident()
                return frame
        if len(self._idle) < MOST_STREAMS:
            frame = self._new_frame()
            frame.thread = threading.get_ident()
            return frame
        self._device.finish()
        return self._take_frame()

    # -- one call

    def _run_program(self, frame: Frame) -> int:
        memory = frame.memory
        assert isinstance(memory, _CudaMemory)
        if self._entry.undecided or self._entry.timed or frame.shapes is None or self._device.is_captured(memory.queue.stream):
            return super()._run_program(frame)
        if memory.graphs is None:
            memory.graphs = ProgramGraphs(self._device, memory.queue)
        addresses = tuple(frame.words[word] for word in (*self._address_words, ARENA))
        return memory.graphs.run(tuple(frame.shapes), addresses, lambda: self._run(frame.address))

    @contextlib.contextmanager
    def _on_host(self, frame: Frame) -> Iterator[None]:
        memory = frame.memory
        assert isinstance(memory, _CudaMemory)
        with memory.graphs.divided() if memory.graphs is not None else contextlib.nullcontext(), super()._on_host(frame):
            yield

    def _run_on(self, frame: Frame, memory: _CudaMemory, args: Sequence[Any], out: Any) -> list[Any]:
        layout, words = self._entry.layout, frame.words
        inputs = [self._placed_input(memory, k, value) for k, value in enumerate(args)]
        seen = {k: self._on_host_too(memory, *inputs[k]) for k in self.plan.host_inputs}
        self._show_host(frame, seen)
        for word, (address, _) in zip(layout.inputs, inputs, strict=True):
            words[word] = address
        shapes = [array.shape for _, array in inputs]
        if shapes != frame.shapes:
            self._set_shapes(frame, shapes)
        memory.first = args[0] if args and out is None and is_on_device(args[0]) else None
        views = [array for _, array in inputs if isinstance(array, DeviceArrayView)]
        targets = self._targets(frame, memory, views, out)
        for word, target in zip(layout.outputs, targets, strict=True):
            if target is not None:
                words[word] = self._place_for(memory, word, target)
        dynamic: list[Any] = [None] * len(targets)
        if self.plan.num_dynamic:
            self._run_dynamic(frame, dynamic)
        else:
            self._run_once(frame)
        for word, target in zip(layout.outputs, targets, strict=True):
            if target is not None:
                self._deliver(memory, words[word], target)
        memory.queue.check()
        if out is not None:
            return listed(out)
        made = [dynamic[k] if target is None else target.given for k, target in enumerate(targets)]
        is_foreign = bool(args) and not isinstance(args[0], np.ndarray) and memory.first is None
        return [like(args[0], result) for result in made] if is_foreign else made

    def _placed_input(self, memory: _CudaMemory, k: int, value: Any) -> tuple[int, np.ndarray | DeviceArrayView]:
        """The address of an input on the device, and the array."""
        if is_on_device(value):
            view = self._read(memory, value, f'input "{self.inputs[k].name}"')
            self._check_input(k, view)
            return self._aligned(memory, k, view), view
        array = self._as_input(k, value)
        data = np.ascontiguousarray(pack(array))
        address = memory.block(self._entry.layout.inputs[k], data.nbytes)
        memory.queue.upload(address, data)
        return address, array

    def _on_host_too(self, memory: _CudaMemory, address: int, array: np.ndarray | DeviceArrayView) -> np.ndarray:
        """An input as the host reads it."""
        if isinstance(array, np.ndarray):
            return np.ascontiguousarray(pack(array))
        found = np.empty(array.shape, array.dtype)
        memory.queue.download(found, address)
        return found

    def _aligned(self, memory: _CudaMemory, k: int, view: DeviceArrayView) -> int:
        """The address of an input, copied if it does not begin where kernels take inputs to begin."""
        if view.address % LEAST_ALIGNMENT == 0 or not view.nbytes:
            return view.address
        address = memory.block(self._entry.layout.inputs[k], view.nbytes)
        memory.queue.copy(address, view.address, view.nbytes)
        return address

    def _read(self, memory: _CudaMemory, value: Any, name: str) -> DeviceArrayView:
        stream = memory.queue.stream
        made_on = waiting_stream(value)
        if made_on is not None:
            self._device.order(made_on, stream)
        return read_device_array(value, self._device.number, stream, name)

    def _check_input(self, k: int, view: DeviceArrayView) -> None:
        if view.dtype != self._dtypes[k]:
            expected = self.inputs[k].dtype
            raise InputError(f'input "{self.inputs[k].name}": dtype is {dtype_name(view.dtype)}, but must be {expected}', code="TC2002")
        static = self._static_in[k]
        if len(view.shape) != len(self.inputs[k].shape) or (static is not None and view.shape != static):
            self._refuse_shape(k, view.shape)

    # -- results

    def _targets(self, frame: Frame, memory: _CudaMemory, inputs: Sequence[DeviceArrayView], out: Any) -> list[_Target | None]:
        """Where results go, None for those whose sizes data decide."""
        if out is not None:
            return [*self._given_targets(frame, memory, inputs, listed(out))]
        wanted = iter(frame.wanted)
        return [None if is_dynamic else self._fresh(memory, *next(wanted)) for is_dynamic in self._dynamic_out]

    def _fresh(self, memory: _CudaMemory, shape: tuple[int, ...], dtype: np.dtype) -> _Target:
        """A new array of the kind of the first input, of the host for elements that share bytes."""
        if memory.first is None or from_numpy(dtype).per_byte > 1:
            (array,) = self._results.arrays([(shape, dtype)], len(self._frames))
            return _Target(array, array=array)
        given = new_like(memory.first, shape, dtype, self._device.number)
        if given is not None:
            return _Target(given, read_device_array(given, self._device.number, memory.queue.stream, "a result"))
        made = self._own_array(memory, shape, dtype)
        view = DeviceArrayView(made.address, shape, dtype, self._device.number, made)
        return _Target(like(memory.first, made), view)

    def _own_array(self, memory: _CudaMemory, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
        size = from_numpy(dtype).bytes_of(int(np.prod(shape, dtype=np.int64)))
        made_on, device = memory.queue.stream, self._device
        block = device.allocate(size, memory.queue) if size else None
        return DeviceArray(shape, dtype, device.number, block, lambda stream: device.order(made_on, stream))

    def _given_targets(
        self, frame: Frame, memory: _CudaMemory, inputs: Sequence[DeviceArrayView], given: list[Any]
    ) -> list[_Target]:
        if len(given) != len(self.outputs) or len(frame.wanted) != len(given):
            self._check_outputs(given, frame.wanted)  # which says why not
        targets = []
        for value, (shape, dtype), info in zip(given, frame.wanted, self.outputs, strict=True):
            if not is_on_device(value):
                targets.append(_Target(value, array=output_array(value, shape, dtype, info.name)))
                continue
            view = self._read(memory, value, f'out: the buffer for "{info.name}"')
            if view.shape != shape or view.dtype != dtype:
                found, expected = (f"{dtype_name(d)}{list(s)}" for d, s in ((view.dtype, view.shape), (dtype, shape)))
                raise InputError(f'out: the buffer for "{info.name}" is {found}, but must be {expected}', code="TC2006")
            is_apart = view.address % LEAST_ALIGNMENT != 0 or any(_overlap(view, each) for each in inputs)
            targets.append(_Target(value, view, is_apart=is_apart))
        self._refuse_overlapping(targets)
        return targets

    def _refuse_overlapping(self, targets: Sequence[_Target]) -> None:
        for k, one in enumerate(targets):
            for other in range(k):
                if _lie_upon(one, targets[other]):
                    self._refuse_overlap((other, k))

    def _place_for(self, memory: _CudaMemory, word: int, target: _Target) -> int:
        """The address at which the program computes a result."""
        if target.view is not None and not target.is_apart:
            return target.view.address
        source = target.array if target.view is None else target.view
        assert source is not None
        return memory.block(word, from_numpy(source.dtype).bytes_of(int(np.prod(source.shape, dtype=np.int64))))

    def _deliver(self, memory: _CudaMemory, address: int, target: _Target) -> None:
        """Bring a result from where it was computed to where it goes."""
        if target.array is not None:
            dtype = from_numpy(target.array.dtype)
            raw = memory.view(address, dtype.bytes_of(target.array.size))
            target.array[...] = unpack(raw, dtype, target.array.shape)
        elif target.is_apart and target.view is not None:
            memory.queue.copy(target.view.address, address, target.view.nbytes)

    def _take_dynamic(self, frame: Frame, results: list[Any]) -> None:
        """Copy outputs out of blocks whose sizes data decided, to the host or to arrays on the device."""
        memory = frame.memory
        assert isinstance(memory, _CudaMemory)
        for k, word in enumerate(self._entry.layout.outputs):
            if self._dynamic_out[k]:
                dtype, rank = self._out_types[k]
                target = self._fresh(memory, tuple(frame.words[word + 1 : word + 1 + rank]), dtype)
                results[k] = target.given
                if target.view is not None:
                    memory.queue.copy(target.view.address, frame.words[word], target.view.nbytes)
                else:
                    self._deliver(memory, frame.words[word], target)


def _overlap(one: DeviceArrayView, other: DeviceArrayView) -> bool:
    return one.address < other.address + other.nbytes and other.address < one.address + one.nbytes


def _lie_upon(one: _Target, other: _Target) -> bool:
    """Whether two results share memory."""
    if one.view is not None and other.view is not None:
        return _overlap(one.view, other.view)
    return one.array is not None and other.array is not None and np.may_share_memory(one.array, other.array)
