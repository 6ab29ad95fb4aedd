"""Where kernels that are timed run and have their arrays: this process, or a device.

Kernels get addresses. The host writes what is at them, and reads it: in place where it is its own memory, as a copy where it is a device's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from tc.autotune.inputs import ArraySpec
from tc.autotune.native_timer import flush
from tc.codegen.backend import Loaded
from tc.codegen.backends import backend_of
from tc.codegen.device import Device
from tc.codegen.llvm.jit import link
from tc.errors import MeasureError
from tc.runtime.memory import ALIGNMENT, Arena
from tc.target import Target

_GUARD = 0xA5
_SPOILT = 0xFF
_DEVICE_ALIGNMENT = 256
"""Bytes at whose multiples arrays begin that a device's own allocator gives."""


class PlacedArrays(Protocol):
    """Arrays one behind the other. With `guard_bytes` there are known bytes around each, by which writes beyond its ends show."""

    specs: tuple[ArraySpec, ...]
    addresses: tuple[int, ...]
    size_bytes: int

    def read(self, number: int) -> np.ndarray:
        """What array `number` holds, the memory itself or a copy; all work is done."""

    def write(self, number: int, array: np.ndarray) -> None:
        """Let array `number` hold what `array` does."""

    def spoil(self, number: int) -> None:
        """Make what it holds unusable: NaN, or -1."""

    def carve(self, specs: Sequence[ArraySpec]) -> list[int]:
        """Addresses of other arrays in the same bytes, one behind the other; they fit."""

    def broken_guards(self) -> list[int]:
        """The numbers of the arrays behind which something was written; -1: before the first."""

    def flush(self) -> None:
        """Throw all arrays out of the caches."""


class KernelPlace(Protocol):
    """Where kernels run. `finish`: the function of native code that waits for them, "" where calls do; `group_seconds`: of calls that
    are timed together, long beside the clock and beside waiting."""

    finish: str
    group_seconds: float

    def arrays(self, specs: Sequence[ArraySpec], guard_bytes: int = 0) -> PlacedArrays:
        """New arrays. MemoryError, OSError or LimitError when there is no room for them."""

    def load(self, code: bytes) -> Loaded:
        """Code that runs here."""

    def running(self, threads: int) -> AbstractContextManager[int]:
        """Inside, kernels may be called; their last argument, for so many threads. Leaving says what went wrong with them."""


def place_of_kernels(target: str) -> KernelPlace:
    """Where kernels for a target run; "": in this process."""
    return _device_place(target) if target else HOST


# -- this process


def _offsets(specs: Sequence[ArraySpec], alignment: int, guard_bytes: int) -> tuple[list[int], int]:
    """Where arrays begin, and where the last one's guard ends."""
    offsets, end = [], guard_bytes
    for spec in specs:
        offsets.append(end)
        end += -(-spec.size_bytes // alignment) * alignment + guard_bytes
    return offsets, end


def _broken(found: np.ndarray, inside: Sequence[tuple[int, int]]) -> list[int]:
    """See `PlacedArrays.broken_guards`: of all bytes, and where the arrays are in them."""
    broken, before = [], 0
    for number, (begin, end) in enumerate([*inside, (found.size, found.size)]):
        if (found[before:begin] != _GUARD).any():
            broken.append(number - 1)
        before = end
    return broken


class HostArrays:
    """Arrays of the process, each at a multiple of 64 bytes, in huge pages where there is much of it, as in the runtime's arena."""

    def __init__(self, specs: Sequence[ArraySpec], guard_bytes: int = 0) -> None:
        self.specs = tuple(specs)
        offsets, self.size_bytes = _offsets(specs, ALIGNMENT, guard_bytes)
        self._bytes = Arena(self.size_bytes).bytes()
        self._bytes[...] = _GUARD if guard_bytes else 0  # every page is there before anything is timed
        self._inside = [(offset, offset + spec.size_bytes) for offset, spec in zip(offsets, specs, strict=True)]
        parts = [self._bytes[begin:end] for begin, end in self._inside]
        self._arrays = [part.view(s.dtype.numpy).reshape(s.shape) for part, s in zip(parts, specs, strict=True)]
        self.addresses = tuple(array.ctypes.data for array in self._arrays)

    def read(self, number: int) -> np.ndarray:
        """See `PlacedArrays`."""
        return self._arrays[number]

    def write(self, number: int, array: np.ndarray) -> None:
        """See `PlacedArrays`."""
        self._arrays[number][...] = array

    def spoil(self, number: int) -> None:
        """See `PlacedArrays`."""
        self._arrays[number].reshape(-1).view(np.uint8)[...] = _SPOILT

    def carve(self, specs: Sequence[ArraySpec]) -> list[int]:
        """See `PlacedArrays`."""
        start = self._bytes.ctypes.data
        return [start + offset for offset in _offsets(specs, ALIGNMENT, 0)[0]]

    def broken_guards(self) -> list[int]:
        """See `PlacedArrays`."""
        return _broken(self._bytes, self._inside)

    def flush(self) -> None:
        """See `PlacedArrays`."""
        for array in self._arrays:
            flush(array)


class _HostPlace:
    finish = ""
    group_seconds = 20e-6

    def arrays(self, specs: Sequence[ArraySpec], guard_bytes: int = 0) -> PlacedArrays:
        return HostArrays(specs, guard_bytes)

    def load(self, code: bytes) -> Loaded:
        return link([code])

    def running(self, threads: int) -> AbstractContextManager[int]:
        return contextlib.nullcontext(threads)


HOST: KernelPlace = _HostPlace()


# -- a device


class DeviceArrays:
    """Arrays of a device, in one block of its memory."""

    def __init__(self, device: Device, queue: Any, specs: Sequence[ArraySpec], guard_bytes: int) -> None:
        offsets, self.size_bytes = _offsets(specs, _DEVICE_ALIGNMENT, guard_bytes)
        self._device, self._queue, self.specs = device, queue, tuple(specs)
        self._block = device.allocate(max(self.size_bytes, 1))
        self._inside = [(offset, offset + spec.size_bytes) for offset, spec in zip(offsets, specs, strict=True)]
        self.addresses = tuple(self._block.address + offset for offset in offsets)
        if guard_bytes:
            self._fill(self._block.address, self.size_bytes, _GUARD)

    def _fill(self, address: int, size_bytes: int, value: int) -> None:
        if size_bytes:
            self._queue.upload(address, np.full(size_bytes, value, np.uint8))

    def read(self, number: int) -> np.ndarray:
        """See `PlacedArrays`."""
        spec = self.specs[number]
        raw = self._device.read(self._queue, self.addresses[number], spec.size_bytes)
        found: np.ndarray = raw.view(spec.dtype.numpy).reshape(spec.shape)
        return found

    def write(self, number: int, array: np.ndarray) -> None:
        """See `PlacedArrays`."""
        spec = self.specs[number]
        if spec.size_bytes:
            data = np.broadcast_to(np.asarray(array, spec.dtype.numpy), spec.shape)
            self._queue.upload(self.addresses[number], np.ascontiguousarray(data))

    def spoil(self, number: int) -> None:
        """See `PlacedArrays`."""
        self._fill(self.addresses[number], self.specs[number].size_bytes, _SPOILT)

    def carve(self, specs: Sequence[ArraySpec]) -> list[int]:
        """See `PlacedArrays`."""
        return [self._block.address + offset for offset in _offsets(specs, _DEVICE_ALIGNMENT, 0)[0]]

    def broken_guards(self) -> list[int]:
        """See `PlacedArrays`."""
        return _broken(self._device.read(self._queue, self._block.address, self.size_bytes), self._inside)

    def flush(self) -> None:
        """MeasureError: nothing empties a device's caches."""
        raise MeasureError("kernels on devices are not timed with empty caches")


class _DevicePlace:
    """A device of this machine, with one queue."""

    group_seconds = 400e-6

    def __init__(self, target: Target) -> None:
        backend = backend_of(target)
        self._load, self._target = backend.load, target
        self.finish = f"{backend.calls}_finish"
        device = backend.load((), target).device
        assert device is not None, "the target has a device"
        self._device, self._queue = device, device.new_queue()

    def arrays(self, specs: Sequence[ArraySpec], guard_bytes: int = 0) -> PlacedArrays:
        return DeviceArrays(self._device, self._queue, specs, guard_bytes)

    def load(self, code: bytes) -> Loaded:
        return self._load([code], self._target)

    @contextlib.contextmanager
    def running(self, threads: int) -> Any:
        current = getattr(self._queue, "current", contextlib.nullcontext)
        with current():
            yield self._queue.address
            self._queue.finish()


@lru_cache(4)
def _device_place(target: str) -> KernelPlace:
    return _DevicePlace(Target.parse(target))
