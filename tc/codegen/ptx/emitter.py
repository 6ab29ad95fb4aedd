"""Launches as one thread's program, from the emitter of LLVM IR that CPUs have, and that as PTX, through LLVM's NVPTX target.

What another target of LLVM's writes in another way stands in a `ThreadDialect`.
Pointers are generic in the text; LLVM finds out that those of parameters are of global memory, and those of blocks' buffers of shared
memory.
No operation is contracted or approximated: products and sums come out as `.rn`, which ptxas leaves as they are.

Buffers of a launch begin at multiples of ALIGNMENT; accesses are as wide as their places are known to be aligned.
"""

from __future__ import annotations

import math

from tc.codegen.async_copies import PIECE_BYTES, CopyPiece, copy_pieces
from tc.codegen.box_assembly import (
    ARRIVE,
    ARRIVE_EXPECTING,
    AWAIT_PHASE,
    AWAIT_PRODUCTS,
    BEGIN_PRODUCTS,
    COMMIT_PRODUCTS,
    MAP_ALIGNMENT,
    MAP_BYTES,
    SET_UP_BARRIER,
    copy_box_text,
    descriptor_bits,
    words_of,
)
from tc.codegen.launches import AXES, DeviceLaunch, launches_of
from tc.codegen.llvm.addresses import Offset
from tc.codegen.llvm.builder import POWER_OF_TWO, Module, Value
from tc.codegen.llvm.emitter import KernelEmitter
from tc.codegen.llvm.jit import foreign_assembly
from tc.codegen.llvm.places import memory_type
from tc.codegen.ptx.dialect import NVPTX, ThreadDialect
from tc.codegen.ptx.libm import F32_LIBM, define_libm
from tc.codegen.warp_assembly import DESCRIPTOR, assembly_of
from tc.errors import CodegenError
from tc.ir.box_copies import Arrive, AwaitPhase, AwaitProducts, BeginProducts, CommitProducts, CopyBox, SetUpBarrier
from tc.ir.dtype import f32
from tc.ir.expr import Buffer, Const, Expr, Load, MathCall, Var, const
from tc.ir.loop import (
    AsyncStore,
    AwaitCopies,
    Barrier,
    CommitCopies,
    For,
    PrimFunc,
    Stmt,
    Store,
    WarpCall,
    in_place_inputs,
)
from tc.ir.types import product
from tc.passes.loop.intrinsics import select_intrinsics

ALIGNMENT = 16
"""Bytes at whose multiples buffers of a launch begin: those of the widest access."""

WORD_BYTES = 4
"""Of a register."""

_VERSIONS = {"sm_75": 70, "sm_80": 70, "sm_86": 71, "sm_89": 78, "sm_90": 78, "sm_90a": 80}
_NEWEST = 80
"""PTX versions (times 10) that know the architectures. Source: PTX ISA, release notes."""


def emit_launches_ir(func: PrimFunc, symbol: str, has_async_copies: bool = False, dialect: ThreadDialect = NVPTX) -> str:
    """LLVM IR of all launches of a PrimFunc in the finished form; the function of launch k is called `symbol`_k.

    `has_async_copies`: the architecture copies to shared memory while a thread does something else, as sm_80 and later ones.
    """
    module = Module((POWER_OF_TWO,) if dialect.has_warps else (), F32_LIBM)
    chosen = select_intrinsics(func, ())
    for launch in launches_of(chosen):
        _ThreadEmitter(module, f"{symbol}_{launch.index}", chosen, launch, has_async_copies, dialect).emit_function()
    define_libm(module)
    return str(module)


def emit_ptx(func: PrimFunc, symbol: str, arch: str) -> str:
    """The launches of a PrimFunc in the finished form as PTX for an architecture such as "sm_80"."""
    version = _VERSIONS.get(arch, _NEWEST)
    ir = emit_launches_ir(func, symbol, has_async_copies=int(arch.removeprefix("sm_").rstrip("af")) >= 80)
    return foreign_assembly(ir, NVPTX.triple, arch, f"+ptx{version}")


class _ThreadEmitter(KernelEmitter):
    """One thread's program of one launch."""

    def __init__(
        self, module: Module, name: str, func: PrimFunc, launch: DeviceLaunch, has_async_copies: bool, dialect: ThreadDialect
    ) -> None:
        super().__init__(module, name, func)
        self.dialect = dialect
        self.has_async_copies = has_async_copies
        self.launch = launch
        self.inputs = frozenset(launch.buffers) - launch.written
        self.elements_aligned = 1  # of the access that is being emitted: its place is a multiple of so many elements
        self.num_shared = 0

    def emit_function(self) -> None:
        """Add the launch's function to the module."""
        params = [self._map_parameter(k) for k in range(len(self.launch.maps))]
        params += [self._buffer_parameter(k, buffer) for k, buffer in enumerate(self.launch.buffers)]
        for k, var in enumerate(self.launch.scalars):
            self.state.values[var] = Value(f"%s{k}", "i64")
            params.append(f"i64 %s{k}")
        self.statement(self.launch.body)
        self.b.emit_void("ret void")
        kind, sizes = self.dialect.convention, self.dialect.block_size(*self.launch.threads)
        header = f"define {kind} void @{self.symbol}({', '.join(params)}) nounwind {sizes} {{"
        self.module.definitions.append("\n".join([header, "entry:", *self.b.entry, *self.b.lines, "}"]))

    def _map_parameter(self, k: int) -> str:
        """The description of a tensor, which stays where the launch puts it."""
        if not self.dialect.has_warps:
            raise CodegenError(f"{self.func.name}: boxes are copied by CUDA devices, and not by {self.dialect.name}")
        return f'ptr byval([{MAP_BYTES} x i8]) align {MAP_ALIGNMENT} "nvvm.grid_constant" %m{k}'

    def _buffer_parameter(self, k: int, buffer: Buffer) -> str:
        """A pointer to global memory. What others may write, and this thread read behind a barrier, LLVM must not take to be its own."""
        place = self.b.name(f"p{k}.")
        self.b.entry.append(f"  {place} = addrspacecast ptr addrspace(1) %p{k} to ptr")
        self.state.pointers[buffer] = Value(place, "ptr")
        number = self.func.buffers.index(buffer) if buffer in self.func.buffers else -1
        shared = in_place_inputs(self.func)
        is_alone = buffer in self.inputs and number not in shared
        return f"ptr addrspace(1) {'noalias readonly ' if is_alone else ''}align {ALIGNMENT} %p{k}"

    # -- statements

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Barrier():
                self._barrier()
            case CommitCopies() if self.has_async_copies:
                self._call("llvm.nvvm.cp.async.commit.group")
            case AwaitCopies(pending=pending) if self.has_async_copies:
                self._call("llvm.nvvm.cp.async.wait.group", Value(str(pending), "i32"))
                self.forget_memory()
            case CommitCopies() | AwaitCopies():
                pass
            case WarpCall():
                self._warp_call(stmt)
            case CopyBox():
                self._copy_box(stmt)
            case SetUpBarrier(barrier=barrier, arrivals=arrivals):
                self._assembly(SET_UP_BARRIER, self._shared_address(barrier), Value(str(arrivals), "i32"))
            case Arrive(barrier=barrier, expected_bytes=0):
                self._assembly(ARRIVE, self._shared_address(barrier))
            case Arrive(barrier=barrier, expected_bytes=count):
                self._assembly(ARRIVE_EXPECTING, self._shared_address(barrier), Value(str(count), "i32"))
            case AwaitPhase(barrier=barrier, parity=parity):
                self._assembly(AWAIT_PHASE, self._shared_address(barrier), self._narrow(parity))
            case BeginProducts(sums=sums):
                self._hand_over(BEGIN_PRODUCTS, sums)
            case CommitProducts():
                self._assembly(COMMIT_PRODUCTS)
            case AwaitProducts(pending=pending, sums=sums):
                self._hand_over(AWAIT_PRODUCTS.format(pending), sums)
            case _:
                super().statement(stmt)

    def _call(self, name: str, *args: Value) -> None:
        """An instruction without a result."""
        self.module.declare(name, "void", [arg.type for arg in args])
        self.b.emit_void(f"call void @{name}({', '.join(map(str, args))})")

    def _assembly(self, text: str, *arguments: Value) -> None:
        """A piece of assembly without results that may touch memory."""
        kinds = {"i32": "r", "i64": "l", "ptr": "l"}
        constraints = ",".join((*(kinds[value.type] for value in arguments), "~{memory}"))
        written = text.format(*(f"${k}" for k in range(len(arguments))))
        self.b.emit_void(f'call void asm sideeffect "{written}", "{constraints}"({", ".join(map(str, arguments))}) convergent')
        self.forget_memory()

    def _narrow(self, expr: Expr) -> Value:
        value = self.value(expr)
        assert value.type == "i64"
        return self.b.emit(f"trunc {value} to i32", "i32")

    def _copy_box(self, stmt: CopyBox) -> None:
        to = self._shared_address(Load(stmt.buffer, stmt.indices))
        described = Value(f"%m{self.launch.map_of(stmt)}", "ptr")
        corner = [self._narrow(index) for index in reversed(stmt.corner)]
        self._assembly(copy_box_text(len(corner)), to, described, self._shared_address(stmt.barrier), *corner)

    def _hand_over(self, text: str, registers: tuple[Load, ...]) -> None:
        """An instruction of a group of warps that stands between accesses to registers."""
        kinds: list[str] = []
        places: list[Value] = []
        for each in registers:
            pointer = self._pointer_of(Load(each.buffer, (const(0),) * len(each.indices)))
            count = words_of(each.buffer)
            places += [self._word_at(pointer, k) for k in range(count)]
            kinds += ["float" if each.buffer.dtype is f32 else "i32"] * count
        if not places:
            self._assembly(text)
            return
        values = [self.b.emit(f"load {kind}, {place}, align {WORD_BYTES}", kind) for kind, place in zip(kinds, places, strict=True)]
        results = ["=f" if kind == "float" else "=r" for kind in kinds]
        constraints = ",".join([*results, *(str(k) for k in range(len(values))), "~{memory}"])
        struct = kinds[0] if len(kinds) == 1 else f"{{ {', '.join(kinds)} }}"
        made = self.b.emit(f'call {struct} asm sideeffect "{text}", "{constraints}"({", ".join(map(str, values))}) convergent', struct)
        for k, (kind, place) in enumerate(zip(kinds, places, strict=True)):
            part = made if len(kinds) == 1 else self.b.emit(f"extractvalue {made}, {k}", kind)
            self.b.emit_void(f"store {part}, {place}, align {WORD_BYTES}")
        self.forget_memory()

    def _descriptor(self, call: WarpCall, place: int) -> Value:
        """Of a matrix in shared memory: pieces of 16 bytes up to it, and what else is known about it."""
        address = self._shared_address(call.operands[place])
        inside = self.b.emit(f"and {address}, {0x3FFFF}", "i32")
        wide = self.b.emit(f"zext {self.b.emit(f'lshr {inside}, 4', 'i32')} to i64", "i64")
        return self.b.emit(f"or {wide}, {descriptor_bits(call, place)}", "i64")

    def _warp_call(self, call: WarpCall) -> None:
        """One piece of assembly, of registers that are loaded from the lane's own memory, and stored there: LLVM makes them values."""
        if not self.dialect.has_warps:
            raise CodegenError(f"{self.func.name}: {call.name} is an instruction of CUDA devices, and not of {self.dialect.name}")
        assembly = assembly_of(call.name)
        arguments: list[Value] = []
        for k, (operand, count) in enumerate(zip(call.operands[:-1], assembly.operands, strict=True)):
            if count == DESCRIPTOR:
                arguments.append(self._descriptor(call, k))
            else:
                arguments += self._words(operand, count, "i32") if count else [self._shared_address(operand)]
        kind = "float" if assembly.kind == "f" else "i32"
        result, constraints = call.operands[-1], [f"={assembly.kind}"] * assembly.results
        constraints += ["l" if value.type == "i64" else "r" for value in arguments]
        if assembly.is_update:
            arguments += self._words(result, assembly.results, kind)
            constraints += map(str, range(assembly.results))
        if assembly.has_address:
            constraints.append("~{memory}")
        struct = kind if assembly.results == 1 else f"{{ {', '.join([kind] * assembly.results)} }}"
        given = ", ".join(map(str, arguments))
        written = assembly.written(lambda k: f"${k}")
        text = f'call {struct} asm sideeffect "{written}", "{",".join(constraints)}"({given}) convergent'
        made = self.b.emit(text, struct)
        pointer = self._pointer_of(result)
        for k in range(assembly.results):
            part = made if assembly.results == 1 else self.b.emit(f"extractvalue {made}, {k}", kind)
            self.b.emit_void(f"store {part}, {self._word_at(pointer, k)}, align {WORD_BYTES}")
        self.forget_memory()

    def _words(self, operand: Load, count: int, kind: str) -> list[Value]:
        """Registers that follow each other in the lane's memory."""
        pointer = self._pointer_of(operand)
        return [self.b.emit(f"load {kind}, {self._word_at(pointer, k)}, align {WORD_BYTES}", kind) for k in range(count)]

    def _word_at(self, pointer: Value, k: int) -> Value:
        return self.b.emit(f"getelementptr inbounds i32, {pointer}, i64 {k}", "ptr") if k else pointer

    def _pointer_of(self, operand: Load) -> Value:
        found = self._offset(operand.buffer, operand.indices)
        return self.pointer_to(operand.buffer, found.shared, found.known)

    def _shared_address(self, operand: Load) -> Value:
        """Of an element of shared memory, in 32 bits."""
        return self.b.emit(f"ptrtoint {self._place_of(operand.buffer, operand.indices, 3)} to i32", "i32")

    def _barrier(self) -> None:
        name, *params = self.dialect.barrier_function
        self.module.declare(name, "void", params)
        for line in self.dialect.barrier:
            self.b.emit_void(line)
        self.forget_memory()

    def bound(self, loop: For) -> None:
        """The thread's number along the loop's axis is the value of its variable; threads behind its last one leave it out."""
        level, _, axis = loop.thread.partition(".")
        most = self.launch.threads[AXES.index(axis)] if level == "thread" else 2**31 - 1
        name = f"{self.dialect.numbers[level]}.{axis}"
        self.module.declare(name, "i32", [])
        number = self.b.once(name, lambda: self._number(name, most))
        self.state.values[loop.var] = number
        with self.knowing(self.facts.with_range(loop.var, loop.extent)):
            if level == "thread" and isinstance(loop.extent, Const) and loop.extent.value < most:
                self.where(self.b.compare("icmp slt", number, self.value(loop.extent)), lambda: self.statement(loop.body))
            else:
                self.statement(loop.body)

    def _number(self, name: str, most: int) -> Value:
        number = self.b.emit(f"call range(i32 0, {min(most, 2**31 - 1)}) i32 @{name}()", "i32")
        return self.b.emit(f"zext nneg {number} to i64", "i64")

    def _parallel(self, loop: For) -> None:
        self._serial(loop)

    def _alloc(self, buffer: Buffer) -> None:
        size = product(buffer.shape)
        if not isinstance(size, Const):
            raise CodegenError(f"buffer {buffer} of a launch has no constant size")
        element, count = memory_type(buffer.dtype), max(int(size.value), 1)
        if buffer.scope != "shared":
            self.state.pointers[buffer] = self.b.alloca(element, count, ALIGNMENT, "local", self.dialect.own_space)
            return
        if self.dialect.asked_shared and self.launch.asks_for_shared:
            self.state.pointers[buffer] = self._asked_for(self.launch.shared_offset(buffer))
            return
        name = f"{self.symbol}_shared{self.num_shared}"
        self.num_shared += 1
        aligned = self.launch.shared_alignment(buffer)
        self.module.declarations[name] = f"@{name} = internal addrspace(3) global [{count} x {element}] poison, align {aligned}"
        place = self.b.name("shared")
        self.b.entry.append(f"  {place} = addrspacecast ptr addrspace(3) @{name} to ptr")
        self.state.pointers[buffer] = Value(place, "ptr")

    def _asked_for(self, offset: int) -> Value:
        """A place in the shared memory that the launch asks for."""
        name, aligned = self.dialect.asked_shared, self.launch.most_shared_alignment
        name = name if aligned == ALIGNMENT else f"{name}{aligned}"
        self.module.declarations[name] = f"@{name} = external addrspace(3) global [0 x i8], align {aligned}"
        place, start = self.b.name("shared"), self.b.name("shared")
        self.b.entry.append(f"  {start} = getelementptr i8, ptr addrspace(3) @{name}, i64 {offset}")
        self.b.entry.append(f"  {place} = addrspacecast ptr addrspace(3) {start} to ptr")
        return Value(place, "ptr")

    # -- accesses

    def _offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Offset:
        found = super()._offset(buffer, indices)
        self.elements_aligned = self._aligned_elements(buffer, indices, found.known)
        return found

    def _aligned_elements(self, buffer: Buffer, indices: tuple[Expr, ...], known: int) -> int:
        """A number of elements of which the offset of an access is known to be a multiple, a power of two. Of lane 0, in a vector."""
        values, aligned = self.state.values, math.gcd(known, ALIGNMENT)
        for monomial, coefficient in self._numbers((buffer, indices))[0].others:
            if self.lane is not None and self.lane.var in monomial:
                continue
            factor = coefficient
            for atom in monomial:
                value = values.get(atom) if isinstance(atom, Var) else None
                factor *= 1 if value is None or value.known is None else value.known
            aligned = math.gcd(aligned, factor)
        return aligned or ALIGNMENT

    def align_of(self, buffer: Buffer, lanes: int) -> int:
        """Bytes of which the place of an access is a multiple."""
        size = buffer.dtype.size_bytes
        return min(size * math.gcd(self.elements_aligned, ALIGNMENT), ALIGNMENT) if lanes else size

    def may_share_bytes(self, buffer: Buffer) -> bool:
        return buffer.scope != "local"

    def _hidden(self, mask: Value) -> Value:
        return mask

    def _store(self, stmt: Store) -> None:
        pieces = None
        if isinstance(stmt, AsyncStore) and self.has_async_copies and self.mask is None:
            lane, lanes = (None, 1) if self.lane is None else (self.lane.var, self.lane.lanes)
            pieces = copy_pieces(stmt, lane, lanes, self.facts, self.depends_on_lane)
        if pieces is None:
            self._store_now(stmt)
            return
        for piece in pieces:
            self._copy(piece)

    def _copy(self, piece: CopyPiece) -> None:
        """A copy that the thread does not wait for. 16 bytes go past the first level of caches, where less may not."""
        to = self._place_of(piece.buffer, piece.indices, 3)
        start = self._place_of(piece.load.buffer, piece.load.indices, 1)
        count = self.b.select(self.value(piece.condition), Value(str(piece.size_bytes), "i32"), Value("0", "i32"))
        level = "cg" if piece.size_bytes == PIECE_BYTES[-1] else "ca"
        self._call(f"llvm.nvvm.cp.async.{level}.shared.global.{piece.size_bytes}.s", to, start, count)
        self.forget_memory()

    def _place_of(self, buffer: Buffer, indices: tuple[Expr, ...], space: int) -> Value:
        """The address of an element in an address space of its own."""
        found = self._offset(buffer, indices)
        pointer = self.pointer_to(buffer, found.shared, found.known)
        return self.b.emit(f"addrspacecast {pointer} to ptr addrspace({space})", f"ptr addrspace({space})")

    # -- values

    def _math(self, expr: MathCall) -> Value:
        if expr.name == "thread_index":
            raise CodegenError("the number of a worker is asked for in a launch, which has none")
        return super()._math(expr)
