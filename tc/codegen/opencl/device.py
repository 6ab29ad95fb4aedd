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
from tc.codegen.device_calls import CalledQueue, DeviceCalls, provide_calls
from tc.codegen.llvm.host_stub import Image
from tc.codegen.opencl.calls import CALLS, IR_TEXT, STEPS
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


class _Queue(CalledQueue):
    """An in-order command queue."""

    def __init__(self, device: OpenClDevice) -> None:
        import pyopencl as cl

        self._commands = cl.CommandQueue(device.context, device.device)
        super().__init__(device, (self._commands.int_ptr, device.context.int_ptr), STEPS)


class _LoadedImage:
    """Kernel objects, and a lock of each (see `calls`)."""

    def __init__(self, kernels: list[Any]) -> None:
        self._kernels = kernels
        self.handles = [(kernel.int_ptr, 0) for kernel in kernels]


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
        self.calls: DeviceCalls = provide_calls(CALLS, IR_TEXT, self._driver)
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

    def error(self, step: str, status: int) -> DeviceError:
        """See `CalledDevice`."""
        import pyopencl as cl

        names = {value: name for name, value in vars(cl.status_code).items() if isinstance(value, int)}
        return DeviceError(f"{self.name}: {step} failed: {names.get(status, 'an unknown error')} ({status})")

    def load(self, image: Image) -> _LoadedImage:
        """See `LoadingDevice`."""
        import pyopencl as cl

        try:
            program = cl.Program(self.context, image.text).build(options=[*image.options.split(), *self._options], devices=[self.device])
        except cl.RuntimeError as error:
            if "unknown target CPU" in str(error):  # as LLVM says of one that is newer than itself
                why = "cannot compile for this CPU, which is newer than the driver: install a later version of it"
                raise DeviceError(f"{self.name} {why}") from None
            raise CodegenError(f"{self.name} refuses a kernel: {error}") from None
        return _LoadedImage([cl.Kernel(program, name) for name in image.functions])


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
