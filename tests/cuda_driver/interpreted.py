"""Kernels of the fake driver, run in the interpreter of PTX."""

from __future__ import annotations

from cuda_driver.driver import FakeDriver
from ptx.launch import Pointer, run


def runs_in(fake: FakeDriver):
    """What a driver shall run its images by."""

    def interpreted(text, name, grid, block, shared, values):
        """A parameter that lies in memory of the device is a pointer."""
        arguments = []
        for value in values:
            try:
                arguments.append(Pointer(*fake.memory(value)))
            except ValueError:
                arguments.append(value)
        run(text, name, grid, block, arguments, shared)

    return interpreted
