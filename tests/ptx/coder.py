"""From an instruction to a function that runs it: modifiers, operands, and the table of opcodes.

A builder is registered per opcode with `@builds(...)`. It gets a `Coder`, takes the modifiers that it knows, asks for
readers and writers of its operands, and returns `run(machine, active)`. Modifiers that nobody took are an error.

`active` is None when all lanes take part, else their indices, ascending. A reader returns one value per active lane,
or an array of length 1 for a value that all lanes share. A writer takes the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from tests.ptx.element_types import SIGNED, TYPES, UNSIGNED, PtxType
from tests.ptx.errors import PtxSyntaxError, Unsupported
from tests.ptx.program import Flattener, Place, Placed, PlaceTable, Register, Scope, Step, Symbol, Variable
from tests.ptx.special import SPECIAL
from tests.ptx.syntax import Address, Float, Group, Int, Name, Not, Operand, Pair

Reader = Callable[..., np.ndarray]
Writer = Callable[..., None]
Run = Callable[..., object]

BUILDERS: dict[str, Callable[[Coder], Run]] = {}


def builds(*opcodes: str) -> Callable:
    """Register a builder for these opcodes."""

    def register(builder: Callable[[Coder], Run]) -> Callable[[Coder], Run]:
        for opcode in opcodes:
            assert opcode not in BUILDERS, f"two builders for {opcode}"
            BUILDERS[opcode] = builder
        return builder

    return register


class Coder:
    """One instruction under construction."""

    def __init__(self, placed: Placed, flat: Flattener) -> None:
        self.instruction = placed.instruction
        self.opcode = placed.instruction.opcode
        self.mods = list(placed.instruction.mods)
        self.operands = placed.instruction.operands
        self.scope: Scope = placed.scope
        self.returns_to = placed.returns_to
        self.flat = flat
        self.registers: list[int] = []
        self.writes: list[int] = []
        self.control = False
        self.asynchronous = False

    # -- modifiers

    def unsupported(self, why: str) -> Unsupported:
        return Unsupported(f"line {self.instruction.line}: {why}: {self.instruction.text}")

    def flag(self, *names: str) -> bool:
        """Whether one of the modifiers is there; it is taken."""
        found = [n for n in names if n in self.mods]
        for name in found:
            self.mods.remove(name)
        return bool(found)

    def choose(self, *names: str, default: str | None = None) -> str:
        """The one of these modifiers that is there; it is taken."""
        for name in self.mods:
            if name in names:
                self.mods.remove(name)
                return name
        if default is None:
            raise self.unsupported(f"needs one of {', '.join(names)}")
        return default

    def drop(self, *names: str, prefixes: tuple[str, ...] = ()) -> None:
        """Take modifiers that change nothing here: hints about caches and the like."""
        self.mods = [m for m in self.mods if m not in names and not m.startswith(prefixes or "\0")]

    def type(self, *allowed: str) -> PtxType:
        """The next modifier that is a type; it is taken."""
        for name in self.mods:
            if name in TYPES:
                if allowed and name not in allowed:
                    raise self.unsupported(f"type {name}")
                self.mods.remove(name)
                return TYPES[name]
        raise self.unsupported("no type")

    def finish(self) -> None:
        if self.mods:
            raise self.unsupported(f"modifier .{' .'.join(self.mods)}")

    # -- operands

    def operand(self, i: int) -> Operand:
        if i >= len(self.operands):
            raise self.unsupported(f"operand {i + 1} is missing")
        return self.operands[i]

    def symbol(self, name: str) -> Symbol:
        found = self.scope.find(name)
        if found is None:
            raise PtxSyntaxError(f"line {self.instruction.line}: unknown name {name}: {self.instruction.text}")
        return found

    def register(self, operand: Operand) -> Register:
        found = self.symbol(operand.name) if isinstance(operand, Name) else None
        if not isinstance(found, Register):
            raise self.unsupported(f"{operand} is no register")
        self.registers.append(found.index)
        return found

    def label(self, operand: Operand) -> Place:
        found = self.symbol(operand.name) if isinstance(operand, Name) else None
        if not isinstance(found, Place):
            raise self.unsupported(f"{operand} is no label")
        return found

    def label_table(self, operand: Operand) -> list[Place]:
        found = self.symbol(operand.name) if isinstance(operand, Name) else None
        if not isinstance(found, PlaceTable):
            raise self.unsupported(f"{operand} is no table of labels")
        return [self.label(Name(name)) for name in found.labels]

    def source(self, operand: Operand | int, type: PtxType | str) -> Reader:
        """A reader of `type.dtype` values."""
        operand = self.operand(operand) if isinstance(operand, int) else operand
        type = TYPES[type] if isinstance(type, str) else type
        match operand:
            case Int(value=value):
                return constant(self.literal(value, type))
            case Float(bits=bits, width=width):
                return constant(self.float_literal(bits, width, type))
            case Not(operand=inner):
                return negated(self.source(inner, "pred"))
            case Name(name=name, offset=offset) if name.startswith("%") and self.scope.find(name) is None:
                return self.special(name, type)
            case Name(name=name, offset=offset):
                found = self.symbol(name)
                if isinstance(found, Variable):
                    return self.address_constant(found, offset, type)
                if isinstance(found, Register):
                    self.registers.append(found.index)
                    return self.register_reader(found, type)
        raise self.unsupported(f"operand {operand}")

    def literal(self, value: int, type: PtxType) -> np.ndarray:
        if type.kind == "pred":
            return np.array([bool(value)])
        if type.kind == "f":
            return np.array([value], type.dtype)
        return np.array([value & ((1 << type.bits) - 1)], type.unsigned).view(type.dtype)

    def float_literal(self, bits: int, width: int, type: PtxType) -> np.ndarray:
        if width == type.bits:
            return np.array([bits], type.unsigned).view(type.dtype)
        value = struct.unpack("<d", bits.to_bytes(8, "little"))[0] if width == 64 else struct.unpack("<f", bits.to_bytes(4, "little"))[0]
        if type.kind != "f":
            raise self.unsupported(f"floating-point literal for type {type.name}")
        return np.array([value], np.float64).astype(type.dtype)

    def special(self, name: str, type: PtxType) -> Reader:
        if name not in SPECIAL:
            raise self.unsupported(f"unknown name {name}")
        read, dtype = SPECIAL[name], type.dtype
        return lambda m, active: select(read(m), active).astype(dtype)

    def address_constant(self, variable: Variable, offset: int, type: PtxType) -> Reader:
        if variable.space == "param":
            return lambda m, active: np.array([m.param_base + variable.address + offset], np.uint64).astype(type.dtype)
        return lambda m, active: np.array([variable.address + offset], np.uint64).astype(type.dtype)

    def register_reader(self, register: Register, type: PtxType) -> Reader:
        index, dtype = register.index, type.dtype
        if (register.type == "pred") != (type.kind == "pred"):
            raise self.unsupported(f"a register of type {register.type} for an operand of type {type.name}")
        if register.bits == type.bits:
            return lambda m, active: (m.regs[index] if active is None else m.regs[index][active]).view(dtype)
        if register.bits > type.bits:
            narrow = type.unsigned
            return lambda m, active: (m.regs[index] if active is None else m.regs[index][active]).astype(narrow).view(dtype)
        raise self.unsupported(f"a register of {register.bits} bits for an operand of {type.bits}")

    def destination(self, operand: Operand | int, type: PtxType | str) -> Writer:
        """A writer of `type.dtype` values; a wider register is extended by the type's sign."""
        operand = self.operand(operand) if isinstance(operand, int) else operand
        type = TYPES[type] if isinstance(type, str) else type
        if operand == Name("_"):
            return lambda m, active, value: None
        register = self.register(operand)
        if (register.type == "pred") != (type.kind == "pred") or register.bits < type.bits:
            raise self.unsupported(f"a register of type {register.type} for a result of type {type.name}")
        index, bits = register.index, register.bits
        self.writes.append(index)
        if type.kind == "pred":
            return lambda m, active, value: put(m, active, index, value)
        unsigned = UNSIGNED[bits]
        if bits == type.bits:
            return lambda m, active, value: put(m, active, index, value.view(unsigned))
        between = SIGNED[bits] if type.is_signed else unsigned
        source = type.dtype if type.is_integer else type.unsigned
        return lambda m, active, value: put(m, active, index, value.view(source).astype(between).view(unsigned))

    def predicate_register(self, operand: Operand) -> tuple[int, bool]:
        inverted = isinstance(operand, Not)
        register = self.register(operand.operand if isinstance(operand, Not) else operand)
        if register.type != "pred":
            raise self.unsupported("a guard that is no predicate")
        return register.index, inverted

    def items(self, operand: Operand | int) -> tuple[Operand, ...]:
        """The parts of a vector; a lone operand is a vector of one."""
        operand = self.operand(operand) if isinstance(operand, int) else operand
        return operand.items if isinstance(operand, Group) else (operand,)

    def pair(self, i: int) -> tuple[Operand, Operand | None]:
        operand = self.operand(i)
        return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)

    def address(self, i: int | Operand) -> Reader:
        """A reader of addresses: int64, [1] when all lanes share one."""
        operand = self.operand(i) if isinstance(i, int) else i
        if not isinstance(operand, Address):
            raise self.unsupported(f"{operand} is no address")
        base, offset = operand.base, operand.offset
        if isinstance(base, Int):
            return constant(np.array([base.value + offset], np.int64))
        found = self.symbol(base.name)
        if isinstance(found, Variable):
            return self.address_constant(found, offset, TYPES["s64"])
        width = TYPES["u64"] if isinstance(found, Register) and found.bits == 64 else TYPES["u32"]
        read = self.source(base, width)
        if width.bits == 32:  # such addresses wrap
            return lambda m, active: (read(m, active).astype(np.int64) + offset) & 0xFFFFFFFF
        return lambda m, active: read(m, active).astype(np.int64) + offset

    def base_symbol(self, i: int) -> Symbol | None:
        operand = self.operand(i)
        base = operand.base if isinstance(operand, Address) else operand
        return self.scope.find(base.name) if isinstance(base, Name) else None


def select(values: np.ndarray, active: np.ndarray | None) -> np.ndarray:
    return values if active is None or values.shape[0] == 1 else values[active]


def constant(value: np.ndarray) -> Reader:
    value.flags.writeable = False
    return lambda m, active: value


def negated(read: Reader) -> Reader:
    return lambda m, active: ~read(m, active)


def put(m: object, active: np.ndarray | None, index: int, bits: np.ndarray) -> None:
    register = m.regs[index]  # type: ignore[attr-defined]
    if active is None:
        register[...] = bits
    else:
        register[active] = bits


def spread(value: np.ndarray, count: int) -> np.ndarray:
    """One value per active lane, also where all share one."""
    return np.broadcast_to(value, (count,)) if value.shape[0] != count else value


def build_step(placed: Placed, flat: Flattener) -> Step:
    """The step of an instruction. Raises Unsupported for what is not in the table."""
    coder = Coder(placed, flat)
    builder = BUILDERS.get(coder.opcode)
    if builder is None:
        raise coder.unsupported(f"unknown instruction {coder.opcode}")
    guard = None if placed.instruction.guard is None else coder.predicate_register(placed.instruction.guard)
    run = builder(coder)
    coder.finish()
    registers, writes = tuple(dict.fromkeys(coder.registers)), tuple(dict.fromkeys(coder.writes))
    return Step(run, coder.control, guard, registers, placed.instruction, writes, coder.asynchronous)
