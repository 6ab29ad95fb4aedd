"""OpenCL devices, through pyopencl, and memory that host code and kernels name by the same address (shared virtual memory)."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import weakref
from typing import Any

import numpy as np

from tc.codegen.device import Queue
from tc.codegen.llvm.host_stub import HANDLES, IMAGE, Image
from tc.codegen.llvm.jit import Library, link
from tc.codegen.llvm.object_symbols import symbols_of
from tc.codegen.opencl.calls import CALLED, CONTEXT, QUEUE, STATUS, STEPS, TOO_MANY_BLOCKS, DriverCalls, provide_calls
from tc.errors import CodegenError, DeviceError, LimitError
from tc.target.detect import opencl_devices, opencl_facts, refuse_forked_child

_READ_WRITE = 1
ALIGNMENT = 128
"""Bytes: the most that OpenCL promises, the size of its longest vector."""


@functools.cache
def open_device(number: int) -> OpenClDevice:
    """Device `number` of `opencl_devices()`, opened once in a process."""
    opencl_facts(number)  # which says what is wrong with the number
    return OpenClDevice(opencl_devices()[number])


class _Block:
    """Shared virtual memory, freed when nothing refers to it."""

    def __init__(self, device: OpenClDevice, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.address = device.allocate_raw(max(size_bytes, 1))
        if not self.address:
            raise LimitError(f"{device.name} has no memory for {size_bytes} bytes")
        weakref.finalize(self, device.free_raw, self.address)


class _Queue:
    """An in-order command queue, and the words by which generated code knows it."""

    def __init__(self, device: OpenClDevice) -> None:
        import pyopencl as cl

        self._device = device
        self._commands = cl.CommandQueue(device.context, device.device)
        self._words = (ctypes.c_int64 * 4)()
        self._words[QUEUE], self._words[CONTEXT] = self._commands.int_ptr, device.context.int_ptr
        self.address = ctypes.addressof(self._words)

    def upload(self, address: int, array: np.ndarray) -> None:
        self._device.calls.write(self.address, address, array.ctypes.data, array.nbytes)
        self._check()

    def download(self, array: np.ndarray, address: int) -> None:
        self._device.calls.download(self.address, array.ctypes.data, address, array.nbytes)
        self._check()

    def finish(self) -> None:
        self._device.calls.finish(self.address)
        self._check()

    def free(self, address: int) -> None:
        self.finish()
        self._device.free_raw(address)

    def _check(self) -> None:
        """Raise what went wrong since the last time."""
        status, step = self._words[STATUS], self._words[CALLED]
        if not status:
            return
        self._words[STATUS] = 0
        if status == TOO_MANY_BLOCKS:
            raise LimitError(f"{self._device.name}: a launch has more blocks than devices take along one axis")
        import pyopencl as cl

        names = {value: name for name, value in vars(cl.status_code).items() if isinstance(value, int)}
        name = names.get(status, "an unknown error")
        raise DeviceError(f"{self._device.name}: {STEPS[step]} failed: {name} ({status})")


class OpenClDevice:
    """One device and a context of its own. DeviceError for a device without shared virtual memory."""

    def __init__(self, device: Any) -> None:
        import pyopencl as cl

        self.device = device
        self.name = f"{device.name.strip()} ({device.platform.name.strip()})"
        if not _has_shared_memory(device):
            raise DeviceError(f"{self.name} has no shared virtual memory (OpenCL 2.0), which tc needs")
        self._options = own_options(device)
        self._pid = os.getpid()
        self.context = cl.Context([device])
        self._driver = ctypes.CDLL(cl._cl.__file__)
        self.calls: DriverCalls = provide_calls(self._driver)
        self._alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint32)(
            ("clSVMAlloc", self._driver)
        )
        self._free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(("clSVMFree", self._driver))

    def allocate(self, size_bytes: int) -> _Block:
        """See `Device`."""
        return _Block(self, size_bytes)

    def allocate_raw(self, size_bytes: int) -> int:
        """See `Device`."""
        return self._alloc(self.context.int_ptr, _READ_WRITE, max(size_bytes, 1), ALIGNMENT) or 0

    def free_raw(self, address: int) -> None:
        """See `Device`."""
        if address and os.getpid() == self._pid:
            self._free(self.context.int_ptr, address)

    def new_queue(self) -> _Queue:
        """See `Device`."""
        return _Queue(self)

    def read(self, queue: Queue, address: int, size_bytes: int) -> np.ndarray:
        """See `Device`."""
        found = np.empty(size_bytes, np.uint8)
        queue.download(found, address)
        return found

    def check_process(self) -> None:
        """See `Device`."""
        refuse_forked_child("opencl")

    def build(self, image: Image) -> list[Any]:
        """The functions of an image. CodegenError, with the compiler's words, for text that it refuses."""
        import pyopencl as cl

        try:
            program = cl.Program(self.context, image.text).build(options=[*image.options.split(), *self._options], devices=[self.device])
        except cl.RuntimeError as error:
            raise CodegenError(f"{self.name} refuses a kernel: {error}") from None
        return [cl.Kernel(program, name) for name in image.functions]


def own_options(device: Any) -> tuple[str, ...]:
    """What the compiler of a device is to be told beside what the text asks for.

    The optimizer of PoCL before version 4 takes arrays of one thread for those of all where it vectorizes over the threads of a block:
    wrong numbers, found on matrices staged by masked vectors. Kernels take hardly longer without it.
    """
    found = re.search(r"PoCL (\d+)", device.platform.version)
    return ("-cl-opt-disable",) if found is not None and int(found[1]) < 4 else ()


def _has_shared_memory(device: Any) -> bool:
    import pyopencl as cl

    try:
        return bool(device.svm_capabilities & cl.device_svm_capabilities.COARSE_GRAIN_BUFFER)
    except (cl.Error, AttributeError):
        return False


class OpenClLibrary:
    """Host code in the process, and the kernels that it launches on a device."""

    def __init__(self, device: OpenClDevice, library: Library, kernels: list[Any]) -> None:
        self.device = device
        self._library = library
        self._kernels = kernels  # alive as long as the code that has their handles

    def address(self, name: str) -> int:
        """See `Loaded`."""
        return self._library.address(name)


def load_kernels(objects: list[bytes], device: OpenClDevice) -> OpenClLibrary:
    """Link host code, build the device text that is in it, and tell the one where the other is."""
    names = [name for data in objects for name in sorted(symbols_of(data).defined) if name.endswith(IMAGE)]
    library = link(objects)
    kernels = []
    for name in names:
        start = library.address(name)
        size = ctypes.c_int64.from_address(start).value
        image = Image.from_bytes(ctypes.string_at(start + 8, size))
        handles = (ctypes.c_int64 * (2 * len(image.functions))).from_address(library.address(name.removesuffix(IMAGE) + HANDLES))
        for k, kernel in enumerate(device.build(image)):
            handles[2 * k] = kernel.int_ptr
            kernels.append(kernel)
    return OpenClLibrary(device, library, kernels)
