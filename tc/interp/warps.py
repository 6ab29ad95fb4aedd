"""What the lanes of a warp do together: the instruction's pattern, on the elements that they hold.

A lane that reaches a `WarpCall` stops there with what it names of each operand. When all lanes of its warp have, the matrices are put
together by the layouts of fragments, the pattern is run on them, and the lanes get their parts of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Union

from tc.errors import VerifyError
from tc.ir.bit_layout import BitLayout
from tc.ir.expr import Buffer
from tc.ir.fragments import ldmatrix_of
from tc.ir.intrinsic import INTRINSICS
from tc.ir.lane_exchange import WARP_LANES, is_exchange
from tc.ir.phases import Registers, Running

LANES = WARP_LANES


class SharedMemory(Protocol):
    """What the threads of a block see."""

    def load(self, place: int, site: int) -> Any: ...


Memory = Union["list[Any]", SharedMemory]


@dataclass(frozen=True)
class WarpStop:
    """A lane at a call: the number of the statement and the loops around, the intrinsic, its pattern as a function of flat lists, and
    of each operand where the lane's part begins, and in what."""

    place: tuple[int, ...]
    name: str
    pattern: Callable[..., None]
    parts: tuple[tuple[Memory, int], ...]


def run_warp(watch: Running, stops: Mapping[int, WarpStop]) -> None:
    """Carry out a call. `stops`: by the numbers of threads, those of one warp, lane by lane."""
    first = next(iter(stops.values()))
    intrinsic = INTRINSICS[first.name]
    lanes = sorted(stops)
    target = next(found for found in intrinsic.layouts if found is not None)
    operands = []
    for k, (buffer, found) in enumerate(zip(intrinsic.pattern.buffers, intrinsic.layouts, strict=True)):
        parts = [stops[thread].parts[k] for thread in lanes]
        values = _rows(watch, lanes, parts, buffer, target, first.place[0]) if found is None else _gathered(parts, buffer, found)
        operands.append(values)
    is_read = first.name.startswith("mma")
    for k, values in enumerate(operands):
        if None in values and (is_read or k + 1 < len(operands)) and not is_exchange(first.name):
            raise VerifyError(f"{watch.name}: `{watch.text(first.place[0])}` reads registers in which nothing was stored")
    first.pattern(*operands)
    layout = intrinsic.layouts[-1]
    assert layout is not None, "what a call makes is a fragment"
    for lane, thread in enumerate(lanes):
        memory, place = stops[thread].parts[-1]
        for register in range(dict(layout.inputs)["register"]):
            memory[place + register] = operands[-1][_number(layout, intrinsic.pattern.buffers[-1], register, lane)]  # type: ignore[index]


def run_group(watch: Any, stops: Mapping[int, WarpStop]) -> None:
    """Begin a product of a group of warps: its shared operands are whole matrices, its sums are there when it has been awaited."""
    first = next(iter(stops.values()))
    intrinsic, site, phases = INTRINSICS[first.name], first.place[0], watch.phases
    threads, read = sorted(stops), set[int]()
    operands, held = [], dict[int, Registers]()
    for k, (buffer, layout) in enumerate(zip(intrinsic.pattern.buffers, intrinsic.layouts, strict=True)):
        parts = [stops[thread].parts[k] for thread in threads]
        if layout is None:
            memory, place = parts[0]
            if any(part != parts[0] for part in parts):
                raise VerifyError(f"{watch.name}: threads of a group name different matrices in `{watch.text(site)}`")
            values, copies = phases.read(memory, place, [int(str(dim)) for dim in buffer.shape], threads, site)
            read |= copies
        elif k + 1 < len(stops[threads[0]].parts):
            values, count = _gathered(parts, buffer, layout), dict(layout.inputs)["register"]
            if None in values:
                raise VerifyError(f"{watch.name}: `{watch.text(site)}` reads registers in which nothing was stored")
            held = {
                thread: (memory, place, memory[place : place + count])  # type: ignore[index, misc]
                for thread, (memory, place) in zip(threads, parts, strict=True)
            }
        else:
            count = dict(layout.inputs)["register"]
            given = [phases.sums(thread, *part, count, site) for thread, part in zip(threads, parts, strict=True)]
            values = _gathered([(each, 0) for each in given], buffer, layout)
        operands.append(values)
    first.pattern(*operands)
    layout, sums = intrinsic.layouts[-1], intrinsic.pattern.buffers[-1]
    assert layout is not None, "what a call makes is a fragment"
    results = {}
    for lane, thread in enumerate(threads):
        numbers = [_number(layout, sums, register, lane) for register in range(dict(layout.inputs)["register"])]
        results[thread] = (*stops[thread].parts[-1], [operands[-1][k] for k in numbers])
    phases.issue(threads, read, results, held, site)


def _gathered(parts: list[tuple[Memory, int]], buffer: Buffer, layout: BitLayout) -> list[Any]:
    """A fragment, row by row."""
    registers = dict(layout.inputs)["register"]
    values: list[Any] = [None] * (registers * len(parts))
    for lane, (memory, place) in enumerate(parts):
        if place + registers > len(memory):  # type: ignore[arg-type]
            raise VerifyError(f"{buffer.name} of a warp has {registers} registers, of which lane {lane} has {len(memory) - place}")  # type: ignore[arg-type]
        for register in range(registers):
            values[_number(layout, buffer, register, lane)] = memory[place + register]  # type: ignore[index]
    return values


def _number(layout: BitLayout, buffer: Buffer, register: int, lane: int) -> int:
    number = 0
    for index, size in zip(layout(register=register, lane=lane), buffer.shape, strict=True):
        number = number * int(str(size)) + int(index)
    return number


def _rows(watch: Running, lanes: list[int], parts: list[tuple[Memory, int]], buffer: Buffer, target: BitLayout, site: int) -> list[Any]:
    """A matrix in shared memory, by the rows that lanes name."""
    load = ldmatrix_of(target, buffer.dtype.bits)
    assert load is not None, "the fragment is one that ldmatrix fills"
    rows, columns = (int(str(dim)) for dim in buffer.shape)
    values: list[Any] = [None] * (rows * columns)
    running = watch.thread
    for lane in range(dict(load.addresses.inputs)["lane"]):
        watch.thread = lanes[lane]
        memory, place = parts[lane]
        row, column = load.addresses(lane=lane)
        for element in range(16 // buffer.dtype.size_bytes):
            values[int(row) * columns + int(column) + element] = memory.load(place + element, site)  # type: ignore[union-attr]
    watch.thread = running
    return values
