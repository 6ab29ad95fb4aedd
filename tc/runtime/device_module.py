"""Modules whose kernels run on a device: the same program and calls, with constants, arena and values in the device's memory.

Inputs are copied there and results back; nothing in between crosses, but for nodes on reference kernels and sizes that data decide. Each
frame has a queue of its own, so calls from several threads do not wait for each other.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tc.codegen.backend import Loaded
from tc.codegen.device import Device, DeviceBlock, Queue
from tc.errors import LimitError
from tc.ir.dtype import from_numpy, pack, unpack
from tc.runtime.arrays import listed, overlapping
from tc.runtime.faults import RECORD_BYTES
from tc.runtime.frame_layout import DETAIL, FAULTS, SIZE, THREADS
from tc.runtime.frames import Frame
from tc.runtime.memory import aligned_empty, data_address
from tc.runtime.module import CompiledModule


@dataclass
class DeviceMemory:
    """A device's memory as a running call sees it (see `ValueMemory`), its queue, and the blocks of inputs and results by word."""

    device: Device
    queue: Queue
    blocks: dict[int, DeviceBlock]
    record: DeviceBlock | None = None
    """Of faults (see `tc.runtime.faults`), of a program with checks."""

    def view(self, address: int, size_bytes: int) -> np.ndarray:
        """A copy."""
        return self.device.read(self.queue, address, size_bytes)

    def store(self, address: int, array: np.ndarray) -> None:
        """See `ValueMemory`."""
        self.queue.upload(address, np.ascontiguousarray(array))

    def allocate(self, size_bytes: int) -> int:
        """See `ValueMemory`."""
        return self.device.allocate_raw(size_bytes)

    def free(self, address: int) -> None:
        """See `ValueMemory`."""
        self.queue.free(address)

    def take_faults(self) -> tuple[int, ...]:
        """The record of faults when all work is done, which is empty then."""
        assert self.record is not None
        found = np.zeros(RECORD_BYTES // 8, np.int64)
        self.queue.download(found, self.record.address)
        if found[0]:
            self.empty_record()
        return tuple(found.tolist())

    def empty_record(self) -> None:
        """No fault is known."""
        assert self.record is not None
        self.queue.upload(self.record.address, np.zeros(RECORD_BYTES // 8, np.int64))

    def block(self, word: int, size_bytes: int) -> int:
        """The address of a block of so many bytes at least for the value whose address is in a word of the frame."""
        known = self.blocks.get(word)
        if known is None or known.size_bytes < size_bytes:
            self.blocks[word] = known = self.device.allocate(size_bytes)
        return known.address


@contextlib.contextmanager
def _needing(what: str) -> Iterator[None]:
    """Say what memory is for that a device does not have."""
    try:
        yield
    except LimitError as error:
        raise LimitError(f"{error.text}; {what}") from None


class DeviceModule(CompiledModule):
    """A compiled model on a device."""

    _takes_host_addresses = False
    _memory_type: type[DeviceMemory] = DeviceMemory

    def __init__(self, plan: Any, entry: Any, library: Loaded, *args: Any, **kwargs: Any) -> None:
        assert library.device is not None
        self._device: Device = library.device
        super().__init__(plan, entry, library, *args, **kwargs)

    def _place_constants(self) -> list[int]:
        queue = self._device.new_queue()
        size = sum(constant.nbytes for constant in self._constants)
        with _needing(f"the constants of the model take {size} bytes"):
            self._blocks = [self._device.allocate(constant.nbytes) for constant in self._constants]
        for block, constant in zip(self._blocks, self._constants, strict=True):
            queue.upload(block.address, constant)
        queue.finish()
        addresses = [data_address(constant) for constant in self._constants]
        self._host_table = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        return [block.address for block in self._blocks]

    def _new_arena(self, size_bytes: int) -> DeviceBlock:
        kept = sum(constant.nbytes for constant in self._constants)
        with _needing(f"a call of these sizes needs {size_bytes} bytes for values in between, beside {kept} bytes of constants"):
            return self._device.allocate(size_bytes)

    def _connect(self, frame: Frame) -> None:
        self._device.check_process()
        frame.memory = memory = self._memory_type(self._device, self._device.new_queue(), {})
        frame.words[THREADS] = memory.queue.address
        place = self._entry.layout.host
        if place >= 0:
            frame.host = aligned_empty((self.plan.host_bytes,), np.dtype(np.uint8))
            frame.words[place], frame.words[place + 1] = data_address(frame.host), ctypes.addressof(self._host_table)
        if self._entry.reports:
            memory.record = self._device.allocate(RECORD_BYTES)
            memory.empty_record()
            frame.words[FAULTS] = memory.record.address

    def _start_anew(self) -> None:
        super()._start_anew()
        self._idle, self._frames = [], {}

    def _run_frame(self, frame: Frame, arrays: list[np.ndarray], out: Any) -> list[np.ndarray]:
        self._device.check_process()
        memory, words = frame.memory, frame.words
        assert isinstance(memory, DeviceMemory)
        given = [np.ascontiguousarray(pack(array)) for array in arrays]
        for word, data in zip(self._entry.layout.inputs, given, strict=True):
            words[word] = memory.block(word, data.nbytes)
            memory.queue.upload(words[word], data)
        self._show_host(frame, dict(enumerate(given)))
        shapes = [array.shape for array in arrays]
        if shapes != frame.shapes:
            self._set_shapes(frame, shapes)
        results = self._results_for(frame, arrays, out)
        for word, result in zip(self._entry.layout.outputs, results, strict=True):
            if result is not None:
                words[word] = memory.block(word, from_numpy(result.dtype).bytes_of(result.size))
        if self.plan.num_dynamic:
            self._run_dynamic(frame, results)
        else:
            self._run_once(frame)
        self._raise_faults(frame)
        for k, (word, result) in enumerate(zip(self._entry.layout.outputs, results, strict=True)):
            if not self._dynamic_out[k]:
                dtype = from_numpy(result.dtype)
                result[...] = unpack(memory.view(words[word], dtype.bytes_of(result.size)), dtype, result.shape)
        memory.queue.finish()
        return results if out is None else listed(out)

    def _run_once(self, frame: Frame) -> None:
        status = self._run_program(frame)
        if status:
            self._raise_faults(frame)  # with which one its number comes
            self._fail(status, frame)

    def _run_program(self, frame: Frame) -> int:
        """The status of the program, which has run as far as the host is concerned."""
        status: int = self._run(frame.address)
        return status

    @contextlib.contextmanager
    def _on_host(self, frame: Frame) -> Iterator[None]:
        self._raise_faults(frame)
        yield

    def _raise_faults(self, frame: Frame) -> None:
        """Raise what the first check says that failed in a kernel, of all that were to run before; they are waited for."""
        assert isinstance(frame.memory, DeviceMemory)
        if frame.memory.record is not None:
            status, frame.words[DETAIL], frame.words[SIZE] = frame.memory.take_faults()
            if status:
                self._fail(status, frame)

    def _show_host(self, frame: Frame, arrays: Mapping[int, np.ndarray]) -> None:
        """Tell the program where the host has the inputs that it looks at itself; they must stay until it has run."""
        for k in self.plan.host_inputs:
            frame.words[self._entry.layout.host + 2 + k] = data_address(arrays[k])

    def _results_for(self, frame: Frame, arrays: list[np.ndarray], out: Any) -> list[Any]:
        """The caller's arrays for results, or fresh ones; None for those whose size data decide."""
        if out is None:
            return self._in_order(self._results.arrays(frame.wanted, len(self._frames)))
        results = self._check_outputs(listed(out), frame.wanted)
        self._refuse_overlap(overlapping(arrays, results)[1])
        return list(results)
