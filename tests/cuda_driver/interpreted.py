"""Kernels of the fake driver, run in the interpreter of PTX."""

from __future__ import annotations

import numpy as np
from cuda_driver.driver import FakeDriver
from ptx.launch import Pointer, make_program, run

from tests.ptx.tensor_map import TensorMap

MAP_WORDS, MAP_MARK = 16, 0x7E5502
SPANS = (0, 32, 64, 128)
KINDS = {0: np.uint8, 1: np.uint16, 2: np.uint32}


def runs_in(fake: FakeDriver):
    """What a driver shall run its images by."""

    def argument(value: int) -> object:
        """A parameter that lies in memory of the device is a pointer."""
        try:
            return Pointer(*fake.memory(value))
        except ValueError:
            return value

    def tensor_map(words: list[int]) -> object:
        """What `cuTensorMapEncodeTiled` of the driver wrote, if it did."""
        if words[0] != MAP_MARK:
            return np.array(words, np.uint64).tobytes()
        memory, offset = fake.memory(words[1])
        rank, span = words[2] >> 8 & 0xFF, SPANS[words[2] >> 16]
        box = tuple(words[12 + k // 2] >> 32 * (k % 2) & 0xFFFFFFFF for k in range(rank))
        array = memory.view(KINDS[words[2] & 0xFF])
        return TensorMap(array, box, span, tuple(words[3 : 3 + rank]), tuple(words[8 : 7 + rank]), offset_bytes=offset)

    def interpreted(text, name, grid, block, shared, values):
        left, arguments = list(values), []
        for param in make_program(text, name).layout.params:
            if param.size == MAP_WORDS * 8:
                arguments.append(tensor_map(left[:MAP_WORDS]))
                del left[:MAP_WORDS]
            else:
                arguments.append(argument(left.pop(0)))
        assert not left, f"{name} is given {len(left)} words that it does not take"
        run(text, name, grid, block, arguments, shared)

    return interpreted
