"""A kernel made flat: names resolved, called functions copied in, memory laid out, every instruction a `Step`.

Calls are inlined where they stand: a formal `.param` is another name of the actual one, `ret` jumps behind the call.
So a program has one list of steps, and "lowest program counter first" needs no stack. Recursion and indirect calls
are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tests.ptx.element_types import TYPES
from tests.ptx.errors import PtxSyntaxError, Unsupported
from tests.ptx.memory import HEAP, LOCAL_START, SHARED_START, Heap
from tests.ptx.syntax import (
    Address,
    Body,
    Declaration,
    Float,
    Function,
    Group,
    Instruction,
    Int,
    Label,
    Module,
    Name,
    Not,
    Operand,
    Pair,
    Targets,
    parse_module,
)

SHARED_GAP = 128  # unused bytes behind each variable, so that an overrun is seen


@dataclass(frozen=True)
class Register:
    index: int
    type: str

    @property
    def bits(self) -> int:
        return TYPES[self.type].bits


@dataclass(eq=False)
class Variable:
    """Memory with a name. `address` is within its state space, and is set by the layout."""

    name: str
    space: str
    size: int
    align: int
    declaration: Declaration
    address: int = 0


@dataclass(eq=False)
class Place:
    """A label: the step that it stands before."""

    name: str
    pc: int = -1


@dataclass(frozen=True)
class PlaceTable:
    """`.branchtargets`."""

    labels: tuple[str, ...]


Symbol = Register | Variable | Place | PlaceTable


class Scope:
    """Names of one `{ }`, and of those around it."""

    def __init__(self, parent: Scope | None) -> None:
        self.names: dict[str, Symbol] = {}
        self.parent = parent

    def find(self, name: str) -> Symbol | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


@dataclass(eq=False)
class Placed:
    """An instruction with the scope that its names live in."""

    instruction: Instruction
    scope: Scope
    returns_to: Place | None  # of an inlined function


def size_of(declaration: Declaration) -> int:
    return TYPES[declaration.type].size * (declaration.count or 0)


@dataclass
class Layout:
    """What a launch must provide."""

    registers: list[str] = field(default_factory=list)  # type of each
    shared: list[tuple[str, int, int]] = field(default_factory=list)  # static variables: name, start, end
    dynamic: list[Variable] = field(default_factory=list)
    dynamic_start: int = SHARED_START
    local_size: int = 0
    variables: list[Variable] = field(default_factory=list)  # on the heap, in the order of their addresses
    params: list[Variable] = field(default_factory=list)
    param_size: int = 0


class Flattener:
    """Collects the placed instructions of one kernel and the variables that they name."""

    def __init__(self, module: Module, function: Function) -> None:
        self.module = module
        self.layout = Layout()
        self.placed: list[Placed] = []
        self.of_declaration: dict[int, Variable] = {}
        self.calling: list[str] = []
        self.module_scope = Scope(None)
        self.declared = {v.name: v for v in module.variables}
        scope = Scope(self.module_scope)
        self.place_params(function, scope)
        assert function.body is not None
        self.flatten(function.body, scope, None)

    # -- declarations

    def place_params(self, function: Function, scope: Scope) -> None:
        offset = 0
        for declaration in function.params:
            align = max(declaration.align, TYPES[declaration.type].size)
            offset = -(-offset // align) * align
            variable = Variable(declaration.name, "param", size_of(declaration), align, declaration, offset)
            scope.names[declaration.name] = variable
            self.layout.params.append(variable)
            offset += variable.size
        self.layout.param_size = offset

    def declare(self, declaration: Declaration, scope: Scope) -> None:
        if declaration.space == "reg":
            names = [declaration.name] if declaration.span is None else [f"{declaration.name}{i}" for i in range(declaration.span)]
            for name in names:
                self.layout.registers.append(declaration.type)
                scope.names[name] = Register(len(self.layout.registers) - 1, declaration.type)
        else:
            scope.names[declaration.name] = self.variable(declaration)

    def variable(self, declaration: Declaration) -> Variable:
        """The memory of a declaration outside of the kernel's own parameters."""
        if id(declaration) not in self.of_declaration or declaration.space in ("param", "local"):
            size, align = size_of(declaration), max(declaration.align, TYPES[declaration.type].size)
            space = "local" if declaration.space == "param" else declaration.space
            variable = Variable(declaration.name, space, size, align, declaration)
            self.allocate(variable)
            self.of_declaration[id(declaration)] = variable
        return self.of_declaration[id(declaration)]

    def allocate(self, variable: Variable) -> None:
        layout = self.layout
        match variable.space:
            case "local":
                variable.address = -(-(LOCAL_START + layout.local_size) // variable.align) * variable.align
                layout.local_size = variable.address + variable.size - LOCAL_START
            case "shared" if variable.declaration.count is None or (variable.declaration.extern and not variable.size):
                layout.dynamic.append(variable)
            case "shared":
                end = layout.shared[-1][2] + SHARED_GAP if layout.shared else SHARED_START
                variable.address = -(-end // variable.align) * variable.align
                layout.shared.append((variable.name, variable.address, variable.address + variable.size))
            case "const" | "global":
                if variable.declaration.extern:
                    raise Unsupported(f"extern variable {variable.name}")
                layout.variables.append(variable)
            case _:
                raise Unsupported(f"variable {variable.name} in state space {variable.space}")

    # -- statements

    def flatten(self, body: Body, scope: Scope, returns_to: Place | None) -> None:
        for item in body.items:
            match item:
                case Label(name=name):
                    scope.names[name] = Place(name)
                case Declaration():
                    self.declare(item, scope)
                case Targets(name=name, labels=labels):
                    scope.names[name] = PlaceTable(labels)
        for item in body.items:
            match item:
                case Label(name=name):
                    place = scope.names[name]
                    assert isinstance(place, Place)
                    place.pc = len(self.placed)
                case Instruction(opcode="call"):
                    self.inline(item, scope)
                case Instruction():
                    self.note_names(item, scope)
                    self.placed.append(Placed(item, scope, returns_to))
                case Body():
                    self.flatten(item, Scope(scope), returns_to)

    def note_names(self, instruction: Instruction, scope: Scope) -> None:
        """Make those variables of the module that are named, so that only they take memory."""
        for name in names_in(instruction.operands):
            if scope.find(name) is None and name in self.declared:
                self.module_scope.names[name] = self.variable(self.declared[name])

    def inline(self, call: Instruction, scope: Scope) -> None:
        results, callee, arguments = self.parts_of_call(call)
        function = self.module.functions.get(callee)
        if function is None:
            raise Unsupported(f"line {call.line}: call of {callee}, which is no function of the module: {call.text}")
        if function.body is None:
            self.placed.append(Placed(external_call(call, callee), scope, None))
            return
        if callee in self.calling:
            raise Unsupported(f"line {call.line}: recursive call of {callee}")
        behind, inner = Place(f"behind {callee}"), Scope(self.module_scope)
        for formals, actuals in ((function.results, results), (function.params, arguments)):
            if len(formals) != len(actuals):
                raise PtxSyntaxError(f"line {call.line}: {callee} takes {len(formals)} values, got {len(actuals)}")
            for formal, actual in zip(formals, actuals, strict=True):
                inner.names[formal.name] = self.actual_param(formal, actual, scope, call)
        if call.guard is not None:
            self.skip_call(call, scope, behind)
        self.calling.append(callee)
        self.flatten(function.body, inner, behind)
        self.calling.pop()
        behind.pc = len(self.placed)

    def skip_call(self, call: Instruction, scope: Scope, behind: Place) -> None:
        guard = call.guard.operand if isinstance(call.guard, Not) else Not(call.guard)
        inner = Scope(scope)
        inner.names[behind.name] = behind
        jump = Instruction("bra", (), (Name(behind.name),), guard, call.line, call.text)
        self.placed.append(Placed(jump, inner, None))

    def parts_of_call(self, call: Instruction) -> tuple[tuple[Operand, ...], str, tuple[Operand, ...]]:
        operands = list(call.operands)
        results = operands.pop(0).items if isinstance(operands[0], Group) else ()
        callee = operands.pop(0)
        arguments = operands.pop(0).items if operands and isinstance(operands[0], Group) else ()
        if not isinstance(callee, Name) or callee.name.startswith("%"):
            raise Unsupported(f"line {call.line}: indirect call: {call.text}")
        return results, callee.name, arguments

    def actual_param(self, formal: Declaration, actual: Operand, scope: Scope, call: Instruction) -> Variable:
        symbol = scope.find(actual.name) if isinstance(actual, Name) else None
        if formal.space != "param" or not isinstance(symbol, Variable):
            raise Unsupported(f"line {call.line}: argument {formal.name} that is not in .param: {call.text}")
        return symbol


def external_call(call: Instruction, callee: str) -> Instruction:
    return Instruction("%external", (callee,), (), call.guard, call.line, call.text)


def names_in(operands: tuple[Operand, ...]) -> Iterator[str]:
    for operand in operands:
        match operand:
            case Name(name=name):
                yield name
            case Group(items=items):
                yield from names_in(items)
            case Address(base=base, extra=extra):
                yield from names_in((base, *extra))
            case Pair(first=first, second=second):
                yield from names_in((first, second))
            case Not(operand=inner):
                yield from names_in((inner,))


# ---------------------------------------------------------------- initial contents


def bytes_of(value: Operand, size: int, address_of: Callable[[str], int]) -> bytes:
    match value:
        case Int(value=number):
            return (number & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
        case Float(bits=bits, width=width):
            if width == 64 and size == 4:
                return struct.pack("<f", struct.unpack("<d", bits.to_bytes(8, "little"))[0])
            return bits.to_bytes(size, "little")
        case Name(name=name, offset=offset):
            return (address_of(name) + offset).to_bytes(size, "little")
    raise Unsupported(f"initial value {value}")


def content_of(variable: Variable, address_of: Callable[[str], int]) -> np.ndarray:
    """The bytes that a variable of the module starts with; what has no initial value is zero."""
    size = TYPES[variable.declaration.type].size
    data = b"".join(bytes_of(value, size, address_of) for value in variable.declaration.init)
    return np.frombuffer(data.ljust(variable.size, b"\0"), np.uint8)


# ---------------------------------------------------------------- program


@dataclass(eq=False)
class Step:
    """One instruction, ready to run.

    `run(machine, active)`, or for `control` steps `run(machine, active, pc)`, which returns the groups (pc, lanes)
    that go on. `guard` is (register, negated).
    """

    run: Callable
    control: bool
    guard: tuple[int, bool] | None
    registers: tuple[int, ...]
    instruction: Instruction
    writes: tuple[int, ...] = ()  # those of `registers` that it writes
    asynchronous: bool = False  # its registers belong to wgmma until it is waited for


@dataclass(eq=False)
class Program:
    name: str
    steps: list[Step]
    layout: Layout
    granule: int  # smallest access to shared memory
    global_granule: int  # and to global memory, 4 at most
    orders_blocks: bool  # whether blocks may tell each other something
    units: tuple[str, ...]  # asynchronous units that it uses: "copy", "wgmma", "bulk"
    required_block: tuple[int, ...] | None
    target: str

    def make_heap(self) -> Heap:
        """A heap with the module's variables, at the addresses that the steps know."""
        heap = Heap()
        addresses = {v.name: v.address for v in self.layout.variables}
        for variable in self.layout.variables:
            content = content_of(variable, lambda name: addresses[name])
            address = heap.add(variable.name, content, writable=variable.space != "const")
            assert address == variable.address, "variables are laid out as the program was made"
        return heap


def lay_out(layout: Layout) -> None:
    """Addresses of what was met while flattening."""
    end = layout.shared[-1][2] + SHARED_GAP if layout.shared else SHARED_START
    align = max([16, *(v.align for v in layout.dynamic)])
    layout.dynamic_start = -(-end // align) * align
    for variable in layout.dynamic:
        variable.address = layout.dynamic_start
    heap = Heap()
    for variable in layout.variables:
        variable.address = heap.add(variable.name, np.zeros(variable.size, np.uint8))
    assert HEAP + heap.size < 1 << 63


def initial_names(flat: Flattener) -> None:
    """Variables that only initial values name exist as well."""
    todo = list(flat.layout.variables)
    while todo:
        for name in names_in(todo.pop().declaration.init):
            if name not in flat.declared:
                raise Unsupported(f"initial value names {name}")
            if name not in flat.module_scope.names:
                flat.module_scope.names[name] = flat.variable(flat.declared[name])
                todo.append(flat.layout.variables[-1])


@lru_cache(maxsize=64)
def flatten(text: str, name: str) -> tuple[Flattener, Function]:
    """The kernel `name` of a text, flat and laid out."""
    module = parse_module(text)
    function = module.functions.get(name)
    if function is None or not function.is_entry:
        entries = [f.name for f in module.functions.values() if f.is_entry]
        raise PtxSyntaxError(f"no kernel {name}; there are {', '.join(entries)}")
    flat = Flattener(module, function)
    initial_names(flat)
    lay_out(flat.layout)
    return flat, function
