"""CUDA devices, through cuda-bindings and the driver's own functions.

A device is used in its primary context, the one that the CUDA runtime and torch use, so that their arrays and streams are ours. Memory
comes from a pool of tc's own that gives and takes in the order of a stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from tc.codegen.cuda.calls import CALLS, IR_TEXT, LOG, OUT_OF_MEMORY, STEPS
from tc.codegen.cuda.compile import arch_of, binary_in, capability_of, compile_cuda, is_ptx
from tc.codegen.device import Queue
from tc.codegen.device_calls import WORK, CalledQueue, DeviceCalls, provide_calls
from tc.codegen.llvm.host_stub import Image
from tc.errors import CodegenError, DeviceError, LimitError
from tc.target.detect import cuda_driver, cuda_facts, refuse_forked_child

KEPT_SHARE = 8
"""A pool keeps at most this part of the device's memory for allocations to come."""

GRANULARITY = 16
"""Bytes of whose multiples memory is: elements that share bytes are changed as parts of words."""

_LIBRARY = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
_LOG_BYTES = 1 << 14


@functools.cache
def open_device(number: int) -> CudaDevice:
    """CUDA device `number`, opened once in a process. UserError when it is not there."""
    return CudaDevice(number)


class _CudaBlock:
    """Memory of a device, given back when nothing refers to it and all that was launched is done."""

    def __init__(self, device: CudaDevice, size_bytes: int, queue: CudaQueue | None) -> None:
        self.size_bytes = size_bytes
        self.address = device.allocate_raw(size_bytes, queue)
        if not self.address:
            raise LimitError(device.no_memory(size_bytes))
        weakref.finalize(self, device.free_raw, self.address).atexit = False


class CudaQueue(CalledQueue):
    """A stream. Begins with a stream of its own."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._own = device.new_stream()
        super().__init__(device, (self._own, device.context, device.pool, 0), STEPS)
        weakref.finalize(self, device.drop_stream, self._own).atexit = False

    @property
    def stream(self) -> int:
        """The handle of the stream that work goes to."""
        return self._words[WORK]

    def follow(self, stream: int | None) -> None:
        """Work goes to this stream from now on; None: to the queue's own. What was given to the other one is not waited for."""
        self._words[WORK] = self._own if stream is None else stream

    def record(self, log: np.ndarray | None) -> None:
        """Work goes into this log (int64[...], see `calls`) from now on; None: to the stream."""
        self._log = log
        self._words[LOG] = 0 if log is None else log.ctypes.data

    def send(self, array: np.ndarray, address: int) -> None:
        """Copy to an array of `pinned_words`, when all work before is done, without waiting."""
        self._device.send(self.address, array.ctypes.data, address, array.nbytes)
        self.check()

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Inside, the device's context is that of the calling thread."""
        entered = self._device.enter(self.address)
        try:
            yield
        finally:
            self._device.leave(self.address, entered)


class CudaDevice:
    """One device in its primary context."""

    kind = "cuda"

    def __init__(self, number: int) -> None:
        self._driver = driver = cuda_driver()
        self.facts = cuda_facts(number)
        self.number = number
        self._pid = os.getpid()
        self.name = f"CUDA device {number} ({self.facts.product})"
        self._device = self._of(driver.cuDeviceGet(number), "finding the device")
        attribute = driver.CUdevice_attribute
        self.capability = (
            self._asked(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._asked(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        if not self._asked(attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED):
            raise DeviceError(f"{self.name} has no memory pools, which tc needs")
        self._context = self._of(driver.cuDevicePrimaryCtxRetain(self._device), "making a context")
        self.context = int(self._context)
        self._library = ctypes.CDLL(_LIBRARY)
        self.calls: DeviceCalls = provide_calls(CALLS, IR_TEXT, self._library)
        self._is_capturing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(("cuStreamIsCapturing", self._library))
        self.enter = self.calls.function("enter", ctypes.c_int64, ctypes.c_void_p)
        self.leave = self.calls.function("leave", None, ctypes.c_void_p, ctypes.c_int64)
        self.send = self.calls.function("send", None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
        self._lock = threading.RLock()  # the garbage collector may give memory back while some is asked for
        with self._current():
            self._pool = self._new_pool()
            self.pool = int(self._pool)
            self._home = CudaQueue(self)

    # -- the driver

    def _of(self, answer: tuple[Any, ...], step: str) -> Any:
        """The value of a call of the driver. DeviceError, LimitError for memory, when it failed."""
        if answer[0] != self._driver.CUresult.CUDA_SUCCESS:
            raise self.error(step, int(answer[0]))
        return answer[1] if len(answer) > 1 else None

    def _asked(self, attribute: Any) -> int:
        return int(self._of(self._driver.cuDeviceGetAttribute(attribute, self._device), "asking the device"))

    def error(self, step: str, status: int) -> DeviceError | LimitError:
        """What to raise when the driver fails in a step with a status."""
        try:
            name = self._driver.CUresult(status).name
        except ValueError:
            name = "an unknown error"
        found = self._driver.cuGetErrorString(self._driver.CUresult(status)) if name != "an unknown error" else (None, None)
        said = f": {found[1].decode()}" if found[1] else ""
        if status == OUT_OF_MEMORY:
            return LimitError(f"{self.name}: {step} failed: out of memory ({self._free_memory()})")
        lost = "; the context is lost, start the process afresh" if status in _LOST else ""
        return DeviceError(f"{self.name}: {step} failed: {name} ({status}){said}{lost}")

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Inside, the device's context is that of the calling thread."""
        self._of(self._driver.cuCtxPushCurrent(self._context), "making the context current")
        try:
            yield
        finally:
            self._driver.cuCtxPopCurrent()

    def _new_pool(self) -> Any:
        driver = self._driver
        properties = driver.CUmemPoolProps()
        properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self.number
        pool = self._of(driver.cuMemPoolCreate(properties), "making a pool of memory")
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        kept = driver.cuuint64_t(self.facts.memory_bytes // KEPT_SHARE)
        self._of(driver.cuMemPoolSetAttribute(pool, threshold, kept), "bounding a pool of memory")
        return pool

    def new_stream(self) -> int:
        """The handle of a stream that waits for no other."""
        with self._current():
            flag = self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            return int(self._of(self._driver.cuStreamCreate(flag), "making a stream"))

    def drop_stream(self, stream: int) -> None:
        """Give a stream back; the driver does so when its work is done."""
        if self._is_mine():
            with self._current():
                self._driver.cuStreamDestroy(stream)

    def order(self, first: int, then: int) -> None:
        """Let a stream wait for all that was given to another one."""
        if first == then:
            return
        driver = self._driver
        with self._current():
            event = self._of(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING), "making an event")
            self._of(driver.cuEventRecord(event, first), "ordering streams")
            self._of(driver.cuStreamWaitEvent(then, event, 0), "ordering streams")
            driver.cuEventDestroy(event)

    def _is_mine(self) -> bool:
        return os.getpid() == self._pid

    # -- memory

    def allocate(self, size_bytes: int, queue: CudaQueue | None = None) -> _CudaBlock:
        """See `Device`. For work of any stream; with a queue, for work in its order and without waiting."""
        return _CudaBlock(self, size_bytes, queue)

    def allocate_raw(self, size_bytes: int, queue: CudaQueue | None = None) -> int:
        """See `Device`, and `allocate`."""
        rounded = -(-max(size_bytes, 1) // GRANULARITY) * GRANULARITY
        if queue is not None:
            return self.calls.allocate(queue.address, rounded) or 0
        with self._lock:
            address = self.calls.allocate(self._home.address, rounded) or 0
            self._home.finish()
        return address

    def free_raw(self, address: int) -> None:
        """See `Device`. Waits for all work of the device: it may use the memory."""
        if not address or not self._is_mine():
            return
        with self._lock, contextlib.suppress(DeviceError):  # of a lost context: whoever used the memory is told
            self.finish()
            self.calls.free(self._home.address, address)
            self._home.finish()

    def finish(self) -> None:
        """Wait for all work on the device."""
        with self._current():
            self._of(self._driver.cuCtxSynchronize(), "waiting")

    def trim(self) -> None:
        """Give the memory back that the pool keeps."""
        if self._is_mine():
            with self._current():
                self._of(self._driver.cuMemPoolTrimTo(self._pool, 0), "giving memory back")

    def no_memory(self, size_bytes: int) -> str:
        """What to say when there is no memory for so many bytes."""
        return f"{self.name} has no memory for {size_bytes} bytes ({self._free_memory()})"

    def _free_memory(self) -> str:
        with self._current():
            status, free, total = self._driver.cuMemGetInfo()
        known = status == self._driver.CUresult.CUDA_SUCCESS
        return f"{free} of {total} bytes are free" if known else "how much is free is not known"

    def new_queue(self) -> CudaQueue:
        """See `Device`."""
        return CudaQueue(self)

    def read(self, queue: Queue, address: int, size_bytes: int) -> np.ndarray:
        """See `Device`."""
        found = np.empty(size_bytes, np.uint8)
        queue.download(found, address)
        return found

    def pinned_words(self, count: int) -> np.ndarray:
        """int64[count] of the host, zeros, to which the device copies by itself."""
        with self._current():
            address = int(self._of(self._driver.cuMemHostAlloc(8 * count, 0), "allocating memory of the host"))
        memory = (ctypes.c_int64 * count).from_address(address)
        weakref.finalize(memory, self._free_pinned, address).atexit = False
        words: np.ndarray = np.ctypeslib.as_array(memory)
        words[:] = 0
        return words

    def _free_pinned(self, address: int) -> None:
        if self._is_mine():
            with self._current():
                self._driver.cuCtxSynchronize()
                self._driver.cuMemFreeHost(address)

    def check_process(self) -> None:
        """See `Device`."""
        refuse_forked_child("cuda")

    # -- graphs

    def graph_call(self, name: str, *arguments: Any) -> int:
        """The status of a function of the driver's library, by arguments of ctypes."""
        status: int = getattr(self._library, name)(*arguments)
        return status

    def drop_graph(self, name: str, handle: ctypes.c_void_p) -> None:
        """Give a graph back by a function of the driver, which does so when it does not run any more."""
        if self._is_mine() and handle:
            with self._current():
                self.graph_call(name, handle)

    def is_captured(self, stream: int) -> bool:
        """Whether somebody makes a graph of what is given to a stream."""
        found = ctypes.c_int(0)
        return bool(self._is_capturing(stream, ctypes.byref(found))) or found.value != 0

    # -- code

    def load(self, image: Image) -> CudaImage:
        """The functions of an image in the context. CodegenError, with the compiler's words, for text that is refused; DeviceError for an
        image of another architecture."""
        data = self._code_of(image)
        driver = self._driver
        log = bytearray(_LOG_BYTES)
        option = driver.CUjit_option
        names = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        with self._current():
            status, module = driver.cuModuleLoadDataEx(data + b"\0", len(names), names, [log, len(log)])
            if status != driver.CUresult.CUDA_SUCCESS:
                said = bytes(log).split(b"\0")[0].decode(errors="replace").strip()
                raise CodegenError(f"{self.name} refuses a kernel: {status.name}{f': {said}' if said else ''}")
            wanted = zip(image.functions, image.shared_bytes, strict=True)
            return CudaImage(self, module, [self._function(module, *each) for each in wanted])

    def _code_of(self, image: Image) -> bytes:
        """What the driver takes: a binary, or PTX."""
        arch = arch_of(image.options)
        major, minor, is_exact = capability_of(arch)
        is_binary_good = self.capability == (major, minor) if is_exact else self.capability[0] == major and self.capability[1] >= minor
        if not is_binary_good and (is_exact or self.capability < (major, minor)):
            raise DeviceError(
                f"the module was compiled for {arch}, and {self.name} is sm_{self.capability[0]}{self.capability[1]}; "
                f"compile it for target 'cuda:{self.facts.arch}'"
            )
        binary = binary_in(image.text)
        if binary is not None:
            if not is_binary_good:
                raise DeviceError(f"the module has binaries for {arch} alone, which {self.name} does not run; compile it again")
            return binary
        if is_ptx(image.text):
            return image.text.encode()
        virtual = arch.replace("sm_", "compute_")
        return compile_cuda(image.text, image.options if is_binary_good else image.options.replace(f"={arch}", f"={virtual}"))

    def _function(self, module: Any, name: str, shared_bytes: int) -> tuple[int, int]:
        """The handle of a function, and how many bytes of shared memory its launches ask for: what its own do not hold."""
        driver = self._driver
        attribute = driver.CUfunction_attribute
        function = self._of(driver.cuModuleGetFunction(module, name.encode()), f"finding {name}")
        own = int(self._of(driver.cuFuncGetAttribute(attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function), f"asking {name}"))
        most = self.facts.max_shared_bytes_per_block
        asked = 0 if own else shared_bytes  # either all is declared or all is asked for
        if own + asked > most:
            raise LimitError(f"{name} needs {own + asked} bytes of shared memory for a block; {self.name} has {most}")
        if own + asked > self.facts.static_shared_bytes_per_block:
            which = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._of(driver.cuFuncSetAttribute(function, which, asked), f"giving {name} shared memory")
        return int(function), asked

    def unload(self, module: Any) -> None:
        """Give code back when all work is done."""
        if self._is_mine():
            with self._current():
                self._driver.cuCtxSynchronize()
                self._driver.cuModuleUnload(module)


_LOST = (700, 702, 709, 710, 714, 715, 716, 717, 718, 719)
"""Statuses after which a context takes no more work. Source: CUDA driver API, CUresult."""


class CudaImage:
    """Code on a device, given back when nothing refers to it. `handles`: of each function the two words that launches take."""

    def __init__(self, device: CudaDevice, module: Any, handles: list[tuple[int, int]]) -> None:
        self.handles = handles
        weakref.finalize(self, device.unload, module).atexit = False
