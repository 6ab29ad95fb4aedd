"""What generated host code calls to reach a device: functions around a driver's, as LLVM IR, linked into the process once for each driver.

A driver's part begins all names of its functions alike (`prefix`), and has `submit`, which gives a launch of a size that devices take to
the driver. A queue is words, of which the first four are the same for all drivers: what work is given to, the context, the first error of a
call (0: none), and which step it was (`CALLED`). A handle is two words.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from llvmlite import binding as llvm

from tc.codegen.llvm.jit import Library, compile_object, link
from tc.errors import LimitError, TcError

WORK, CONTEXT, STATUS, CALLED = range(4)
"""The words that all queues have."""

TOO_MANY_BLOCKS = 1 << 20
"""A status of our own, which no driver has."""

_COMMON = """
define internal void @note(ptr %queue, i32 %status, i64 %called) nounwind {{
  %place = getelementptr i64, ptr %queue, i64 {STATUS}
  %known = load i64, ptr %place
  %clear = icmp eq i64 %known, 0
  %bad = icmp ne i32 %status, 0
  %first = and i1 %clear, %bad
  br i1 %first, label %keep, label %done
keep:
  %wide = sext i32 %status to i64
  store i64 %wide, ptr %place
  %which = getelementptr i64, ptr %queue, i64 {CALLED}
  store i64 %called, ptr %which
  br label %done
done:
  ret void
}}

define void @{prefix}_launch(ptr %queue, ptr %handle, i64 %gx, i64 %gy, i64 %gz, i64 %bx, i64 %by, i64 %bz, ptr %table, i64 %maps,
                             i64 %buffers, i64 %scalars) nounwind {{
  %some_x = icmp sgt i64 %gx, 0
  %some_y = icmp sgt i64 %gy, 0
  %some_z = icmp sgt i64 %gz, 0
  %some_xy = and i1 %some_x, %some_y
  %some = and i1 %some_xy, %some_z
  %status_place = getelementptr i64, ptr %queue, i64 {STATUS}
  %known = load i64, ptr %status_place
  %clear = icmp eq i64 %known, 0
  %go = and i1 %some, %clear
  br i1 %go, label %sizes, label %done
sizes:
  %few_x = icmp slt i64 %gx, 2147483648
  %few_y = icmp slt i64 %gy, 65536
  %few_z = icmp slt i64 %gz, 65536
  %few_xy = and i1 %few_x, %few_y
  %few = and i1 %few_xy, %few_z
  br i1 %few, label %submit, label %many
many:
  call void @note(ptr %queue, i32 {TOO_MANY_BLOCKS}, i64 0)
  br label %done
submit:
  call void @submit(ptr %queue, ptr %handle, i64 %gx, i64 %gy, i64 %gz, i64 %bx, i64 %by, i64 %bz, ptr %table, i64 %maps,
                    i64 %buffers, i64 %scalars)
  br label %done
done:
  ret void
}}

define void @{prefix}_read(ptr %queue, ptr %to, ptr %from, i64 %size) nounwind {{
  store i64 0, ptr %to
  call void @{prefix}_download(ptr %queue, ptr %to, ptr %from, i64 %size)
  %status_place = getelementptr i64, ptr %queue, i64 {STATUS}
  %status = load i64, ptr %status_place
  %failed = icmp ne i64 %status, 0
  br i1 %failed, label %end, label %done
end:
  store i64 0, ptr %to
  br label %done
done:
  ret void
}}
"""


class DeviceCalls:
    """The functions of a driver's part in the process, for Python: by their names without the prefix."""

    def __init__(self, prefix: str, library: Library) -> None:
        self._prefix = prefix
        self._library = library
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        self.write = self.function("write", None, pointer, pointer, pointer, size)
        self.copy = self.function("copy", None, pointer, pointer, pointer, size)
        self.download = self.function("download", None, pointer, pointer, pointer, size)
        self.finish = self.function("finish", None, pointer)
        self.allocate = self.function("allocate", pointer, pointer, size)
        self.free = self.function("free", None, pointer, pointer)

    def function(self, name: str, result: Any, *parameters: Any) -> Callable[..., Any]:
        """One of them, by the types of ctypes."""
        return ctypes.CFUNCTYPE(result, *parameters)(self._library.address(f"{self._prefix}_{name}"))


NOT_SUPPORTED = 801
"""What a function says that older drivers do not have, declared `extern_weak`. It is CUDA's own status."""

_refused = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: NOT_SUPPORTED)

_lock = threading.Lock()


def provide_calls(prefix: str, ir_text: str, driver: ctypes.CDLL) -> DeviceCalls:
    """Make the functions of a driver's part known to `link`, over the functions of its library; once."""
    with _lock:
        return _provided(prefix, ir_text, driver)


@functools.cache
def _provided(prefix: str, ir_text: str, driver: ctypes.CDLL) -> DeviceCalls:
    for kind, name in re.findall(r"^declare ([^@]*)@(\w+)\(", ir_text, re.MULTILINE):
        is_missing = "extern_weak" in kind and not hasattr(driver, name)
        address = ctypes.cast(_refused if is_missing else getattr(driver, name), ctypes.c_void_p).value
        assert address, f"the driver has {name}"
        llvm.add_symbol(name, address)
    text = _COMMON.format(prefix=prefix, STATUS=STATUS, CALLED=CALLED, TOO_MANY_BLOCKS=TOO_MANY_BLOCKS) + ir_text
    library = link([compile_object(text)])
    for name in re.findall(rf"^define [^@]*@({prefix}_\w+)", text, re.MULTILINE):
        llvm.add_symbol(name, library.address(name))
    return DeviceCalls(prefix, library)


class CalledDevice(Protocol):
    """What a queue asks of its device."""

    name: str
    calls: DeviceCalls

    def error(self, step: str, status: int) -> TcError:
        """What to raise when the driver fails in a step with a status."""


class CalledQueue:
    """The words by which generated code knows a queue, and its work through the functions that generated code calls."""

    def __init__(self, device: CalledDevice, words: Sequence[int], steps: Sequence[str]) -> None:
        """`words`: the first, then what a driver has more; see the module. `steps`: what failed, by the word CALLED."""
        self._called = device
        self._steps = steps
        work, context, *more = words
        self._words = (ctypes.c_int64 * (4 + len(more)))(work, context, 0, 0, *more)
        self.address = ctypes.addressof(self._words)

    def upload(self, address: int, array: np.ndarray) -> None:
        """See `Queue`."""
        self._called.calls.write(self.address, address, array.ctypes.data, array.nbytes)
        self.check()

    def download(self, array: np.ndarray, address: int) -> None:
        """See `Queue`."""
        self._called.calls.download(self.address, array.ctypes.data, address, array.nbytes)
        self.check()

    def copy(self, to: int, start: int, size_bytes: int) -> None:
        """Copy within the device, in the order of the queue."""
        self._called.calls.copy(self.address, to, start, size_bytes)
        self.check()

    def finish(self) -> None:
        """See `Queue`."""
        self._called.calls.finish(self.address)
        self.check()

    def free(self, address: int) -> None:
        """See `Queue`. Of the driver's way it depends whether it waits."""
        self._called.calls.free(self.address, address)
        self.check()

    @property
    def has_failed(self) -> bool:
        """Whether `check` would raise."""
        return bool(self._words[STATUS])

    def check(self) -> None:
        """Raise what went wrong since the last time, as far as it is known without waiting."""
        status, step = self._words[STATUS], self._words[CALLED]
        if not status:
            return
        self._words[STATUS] = 0
        if status == TOO_MANY_BLOCKS:
            raise LimitError(f"{self._called.name}: a launch has more blocks than devices take along one axis")
        raise self._called.error(self._steps[step], status)
