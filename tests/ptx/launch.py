"""`run`: a kernel of a PTX text on numpy arrays, as a GPU would execute it.

    report = run(text, "axpy", grid=(4, 1, 1), block=(256, 1, 1), args=[x, y, np.int32(n)])

Arrays are changed in place. Each becomes a region of its own on the heap, and an access outside of it is an error;
arrays that share memory on the host share it here as well. `Pointer(array, offset_bytes)` points into an array.
Scalars take the width of the parameter. `bytes` fill a parameter that is a structure.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tests.ptx.coder import build_step
from tests.ptx.element_types import TYPES
from tests.ptx.errors import PtxError, PtxSyntaxError
from tests.ptx.history import make_history
from tests.ptx.machine import Machine
from tests.ptx.memory import HEAP, Heap
from tests.ptx.ops import TABLES
from tests.ptx.ops_bulk import check_over, deliver_awaited
from tests.ptx.ops_wgmma import ownership_of
from tests.ptx.program import Program, Step, Variable, flatten
from tests.ptx.syntax import Instruction
from tests.ptx.tensor_map import TensorMap

assert TABLES, "the tables of instructions are registered by import"

MAX_LANES = 4096  # of the blocks that run together
MAX_SHARED = 1 << 20  # bytes of shared memory of the blocks that run together


@dataclass(frozen=True, eq=False)
class Pointer:
    """A pointer `offset_bytes` behind the start of `array`; the whole array may be accessed through it."""

    array: np.ndarray
    offset_bytes: int = 0


@dataclass(frozen=True)
class BankConflict:
    """One access to shared memory: warps that executed it, wavefronts beyond those that its data needs."""

    line: int
    text: str
    accesses: int
    extra_wavefronts: int


@dataclass(frozen=True)
class Report:
    """What a launch did. Instructions are counted once per warp, by opcode with modifiers."""

    instructions: Counter[str]
    thread_instructions: Counter[str]
    shared_accesses: tuple[BankConflict, ...]
    shared_bytes: int

    def bank_conflicts(self, opcode: str = "") -> int:
        """Wavefronts that conflicts cost, of all accesses to shared memory or of those whose text starts so."""
        return sum(access.extra_wavefronts for access in self.shared_accesses if access.text.startswith(opcode))

    def count(self, opcode: str) -> int:
        """Warp instructions whose opcode is `opcode`, or starts with it and a dot."""
        return sum(n for name, n in self.instructions.items() if name == opcode or name.startswith(opcode + "."))


# ---------------------------------------------------------------- programs


def smallest_access(instructions: list[Instruction], space: str) -> int:
    """Bytes of the smallest access that may go to a state space, shared or global."""
    smallest = 16 if space == "shared" else 4
    for instruction in instructions:
        if instruction.opcode in ("ld", "st", "atom", "red"):
            spaces = {"global", "shared", "local", "param", "const"} - {space} & {m.partition("::")[0] for m in instruction.mods}
            sizes = [TYPES[m].size for m in instruction.mods if m in TYPES]
            if not spaces and sizes:
                smallest = min(smallest, *sizes)
        elif instruction.opcode in ("cp", "ldmatrix", "stmatrix"):
            smallest = min(smallest, 4)
        elif instruction.opcode == "mbarrier":
            smallest = min(smallest, 8)
    return smallest


def orders_blocks(instruction: Instruction) -> bool:
    """Whether blocks may tell each other something by it."""
    opcode, mods = instruction.opcode, {m.partition("::")[0] for m in instruction.mods}
    if opcode in ("membar", "fence"):
        return not {"proxy", "mbarrier_init", "cta"} & mods
    strong = opcode in ("atom", "red") or (opcode in ("ld", "st") and {"volatile", "acquire", "release", "relaxed"} & mods)
    return bool(strong) and "shared" not in mods


def units_of(instructions: list[Instruction]) -> tuple[str, ...]:
    copies = [i for i in instructions if i.opcode == "cp"]
    found = {
        "copy": any("bulk" not in i.mods for i in copies),
        "wgmma": any(i.opcode == "wgmma" for i in instructions),
        "bulk": any("bulk" in i.mods for i in copies),
    }
    return tuple(unit for unit, used in found.items() if used)


@lru_cache(maxsize=64)
def make_program(text: str, name: str) -> Program:
    """The steps of a kernel. Raises Unsupported, with the line, for what the tables do not have."""
    flat, function = flatten(text, name)
    steps: list[Step] = [build_step(placed, flat) for placed in flat.placed]
    steps.append(ending_step(function.line))
    directives, instructions = dict(function.directives), [s.instruction for s in steps]
    return Program(
        name=name,
        steps=steps,
        layout=flat.layout,
        granule=smallest_access(instructions, "shared"),
        global_granule=smallest_access(instructions, "global"),
        orders_blocks=any(orders_blocks(i) for i in instructions),
        units=units_of(instructions),
        required_block=directives.get(".reqntid"),
        target="",
    )


def ending_step(line: int) -> Step:
    """What stands behind the last instruction: the end of the kernel."""

    def run(m: Machine, active: np.ndarray | None, pc: int) -> list:
        m.end(active)
        return []

    return Step(run, True, None, (), Instruction("ret", (), (), None, line, "end of the kernel"))


# ---------------------------------------------------------------- arguments


@dataclass(frozen=True, eq=False)
class Binding:
    """Host memory that the heap holds a copy of."""

    host: np.ndarray  # uint8
    address: int


def host_bytes(array: np.ndarray) -> np.ndarray:
    if not array.flags.c_contiguous:
        raise PtxError("arguments must be contiguous arrays")
    return array.reshape(-1).view(np.uint8)


def bind_arrays(arrays: list[np.ndarray], names: list[str], heap: Heap) -> tuple[list[int], list[Binding]]:
    """The address of each array on the heap. Those that overlap on the host lie in one region."""
    views = [host_bytes(a) for a in arrays]
    starts = [v.__array_interface__["data"][0] for v in views]
    order = sorted(range(len(views)), key=lambda i: (starts[i], -views[i].size))
    addresses, bindings = [0] * len(views), []
    at = 0
    while at < len(order):
        members, end = [order[at]], starts[order[at]] + views[order[at]].size
        while at + len(members) < len(order) and starts[order[at + len(members)]] < end:
            members.append(order[at + len(members)])
            end = max(end, starts[members[-1]] + views[members[-1]].size)
        first = starts[members[0]]
        content = np.zeros(end - first, np.uint8)
        for i in members:
            content[starts[i] - first : starts[i] - first + views[i].size] = views[i]
        address = heap.add(" and ".join(names[i] for i in members), content)
        for i in members:
            addresses[i] = address + starts[i] - first
            bindings.append(Binding(views[i], addresses[i]))
        at += len(members)
    return addresses, bindings


def scalar_bytes(value: object, param: Variable) -> bytes:
    """A scalar argument as the bytes of its parameter."""
    size, name = param.size, param.declaration.type
    if isinstance(value, bytes | bytearray):
        if len(value) != size:
            raise PtxError(f"parameter {param.name} has {size} bytes, got {len(value)}")
        return bytes(value)
    if isinstance(value, np.generic):
        if not isinstance(value, np.integer | np.bool_):
            if value.itemsize != size:
                raise PtxError(f"parameter {param.name} has {size} bytes, got {value.dtype}")
            return value.tobytes()
        value = int(value)
    if isinstance(value, float):
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], value)
    if not isinstance(value, int):
        raise PtxError(f"parameter {param.name} cannot be {type(value).__name__}")
    if name.startswith("f"):
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], float(value))
    if not -(1 << (8 * size - 1)) <= value < 1 << (8 * size):
        raise PtxError(f"parameter {param.name} of type {name} cannot hold {value}")
    return (value & ((1 << (8 * size)) - 1)).to_bytes(size, "little")


@dataclass(frozen=True, eq=False)
class Bound:
    """A heap with all arguments of a launch on it."""

    heap: Heap
    param_base: int
    bindings: list[Binding]
    objects: dict[int, object]


def bind(program: Program, args: list) -> Bound:
    params = program.layout.params
    if len(params) != len(args):
        raise PtxError(f"kernel {program.name} takes {len(params)} arguments, got {len(args)}")
    heap = program.make_heap()
    pointers = [(i, a.array if isinstance(a, Pointer) else a) for i, a in enumerate(args) if isinstance(a, np.ndarray | Pointer)]
    maps = [(i, a) for i, a in enumerate(args) if isinstance(a, TensorMap)]
    arrays = [a for _, a in pointers] + [m.array for _, m in maps]
    names = [f"argument {i} ({params[i].name})" for i, _ in pointers + maps]
    addresses, bindings = bind_arrays(arrays, names, heap)
    content = np.zeros(max(program.layout.param_size, 1), np.uint8)
    objects: dict[int, object] = {}
    offsets = dict(zip([i for i, _ in pointers], addresses, strict=False))
    placed_maps = []
    for i, (param, arg) in enumerate(zip(params, args, strict=True)):
        if isinstance(arg, TensorMap):
            placed_maps.append((param, arg, addresses[len(pointers) + len(placed_maps)]))
            continue
        if isinstance(arg, np.ndarray | Pointer):
            arg = offsets[i] + (arg.offset_bytes if isinstance(arg, Pointer) else 0)
        content[param.address : param.address + param.size] = np.frombuffer(scalar_bytes(arg, param), np.uint8)
    pointed = [(p, m, base, heap.add(f"tensor map {p.name}", np.zeros(128, np.uint8))) for p, m, base in placed_maps if p.size == 8]
    for param, _, _, address in pointed:
        content[param.address : param.address + 8] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)
    param_base = heap.add("parameters", content, writable=False)
    for param, tensor, base in placed_maps:
        if param.size != 8:
            objects[param_base + param.address] = tensor.at(base)
    for _, tensor, base, address in pointed:
        objects[address] = tensor.at(base)
    heap.freeze()
    return Bound(heap, param_base, bindings, objects)


# ---------------------------------------------------------------- launches


def three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1, 1)[:3]
    if min(x, y, z) < 1:
        raise PtxError(f"launch of size {sizes}")
    return x, y, z


def blocks_together(program: Program, threads: int, dynamic_shared: int, total: int) -> int:
    lanes = -(-threads // 32) * 32
    extents = program.layout.shared
    shared = (extents[-1][2] if extents else 0) + dynamic_shared + 1
    return max(1, min(total, MAX_LANES // lanes, MAX_SHARED // shared))


def run(
    ptx_text: str, kernel_name: str, grid: tuple[int, ...], block: tuple[int, ...], args: list, dynamic_shared: int = 0,
    *, max_steps: int = 10_000_000,
) -> Report:  # fmt: skip
    """Execute a kernel; `args` are arrays (changed in place), `Pointer`s, scalars, bytes and `TensorMap`s.

    Raises a KernelFault for what a kernel must not do (see `errors`), with instruction, line and thread, and
    Unsupported for instructions outside of the subset. After a fault the arrays are as they were.
    """
    program = make_program(ptx_text, kernel_name)
    grid, block = three(grid), three(block)
    threads = int(np.prod(block))
    if threads > 1024:
        raise PtxError(f"a block of {threads} threads")
    if program.required_block is not None and three(program.required_block) != block:
        raise PtxSyntaxError(f"kernel {kernel_name} requires blocks of {program.required_block}, launched with {block}")
    bound = bind(program, list(args))
    total = int(np.prod(grid))
    history = make_history(bound.heap, program.global_granule, not program.orders_blocks)
    step = blocks_together(program, threads, dynamic_shared, total)
    tally = Tally(program)
    for first in range(0, total, step):
        blocks = np.arange(first, min(first + step, total))
        machine = Machine(program, grid, block, blocks, bound.heap, bound.param_base, dynamic_shared, bound.objects, history)
        if "wgmma" in program.units:
            machine.watch = ownership_of(machine).check
        if "bulk" in program.units:
            machine.late.append(deliver_awaited)
        machine.run(max_steps)
        check_over(machine)
        tally.add(machine)
    bound.heap.check_gaps()
    for binding in bound.bindings:
        binding.host[...] = bound.heap.content(binding.address, binding.host.size)
    return tally.report(dynamic_shared)


class Tally:
    """Sums the statistics of machines."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.counts = np.zeros(len(program.steps), np.int64)
        self.threads = np.zeros(len(program.steps), np.int64)
        self.conflicts: dict[int, list[int]] = {}

    def add(self, machine: Machine) -> None:
        self.counts += machine.counts
        self.threads += machine.thread_counts
        for pc, (accesses, extra) in machine.conflicts.items():
            total = self.conflicts.setdefault(pc, [0, 0])
            total[0] += accesses
            total[1] += extra

    def report(self, dynamic_shared: int) -> Report:
        instructions: Counter[str] = Counter()
        threads: Counter[str] = Counter()
        for step, count, thread_count in zip(self.program.steps[:-1], self.counts.tolist(), self.threads.tolist()):
            if count:
                name = ".".join((step.instruction.opcode, *step.instruction.mods))
                instructions[name] += count
                threads[name] += thread_count
        accesses = []
        for pc, (count, extra) in sorted(self.conflicts.items()):
            instruction = self.program.steps[pc].instruction
            accesses.append(BankConflict(instruction.line, instruction.text, count, extra))
        static = self.program.layout.shared
        used = sum(end - start for _, start, end in static) + dynamic_shared
        return Report(instructions, threads, tuple(accesses), used)


__all__ = ["HEAP", "BankConflict", "Pointer", "Report", "run"]
