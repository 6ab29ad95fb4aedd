"""A device with memory of its own, as the runtime sees it: blocks of memory, and queues of work on them.

Addresses are numbers that kernels take; the host never looks behind them.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class DeviceBlock(Protocol):
    """Memory of a device, given back when nothing refers to it."""

    address: int
    size_bytes: int


class Queue(Protocol):
    """Work that a device does in order. Used by one thread at a time.

    `address`: of the words that generated code takes as the queue.
    """

    address: int

    def upload(self, address: int, array: np.ndarray) -> None:
        """Copy a C-contiguous array to the device; it may be changed as soon as this returns."""

    def download(self, array: np.ndarray, address: int) -> None:
        """Copy to a C-contiguous array, when all work before is done. DeviceError for what went wrong with it."""

    def finish(self) -> None:
        """Wait for all work. DeviceError for what went wrong with it."""

    def free(self, address: int) -> None:
        """Give memory back (see `Device.free_raw`) when all work before is done."""


class Device(Protocol):
    """One device. Valid in the process that opened it (see `check_process`)."""

    def allocate(self, size_bytes: int) -> DeviceBlock:
        """Memory, its contents not set, aligned to 128 bytes. LimitError when there is none left."""

    def new_queue(self) -> Queue:
        """An empty queue."""

    def read(self, queue: Queue, address: int, size_bytes: int) -> np.ndarray:
        """uint8[size_bytes] as they are when the queue's work is done."""

    def allocate_raw(self, size_bytes: int) -> int:
        """The address of memory that `free_raw` gives back; 0 when there is none left."""

    def free_raw(self, address: int) -> None:
        """Give back what `allocate_raw`, or generated code, allocated; nothing may use it any more."""

    def check_process(self) -> None:
        """UserError in a process that was forked after the device was opened: drivers do not survive that."""
