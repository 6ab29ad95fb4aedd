"""Launches as device functions in OpenCL-C or CUDA-C: pointers to global memory, then one i64 per number; one thread's program as it is.

What is on the other side: `tc.codegen.launches` for the order of arguments, the host stub for who calls. Global buffers begin at multiples
of 16 bytes, so that vectors are one access where their offsets are multiples of their lanes.
"""

from __future__ import annotations

from math import prod

from tc.codegen.async_copies import CopyPiece, copy_pieces
from tc.codegen.box_assembly import AWAIT_PRODUCTS, BEGIN_PRODUCTS, COMMIT_PRODUCTS, descriptor_bits, words_of
from tc.codegen.c.async_copies import commit_helper, copy_helper, wait_helper
from tc.codegen.c.boxes import barrier_helper, copy_box_helper, group_helper, map_type, matrix_helper
from tc.codegen.c.dialect import Dialect
from tc.codegen.c.helpers import Helpers, without_unused
from tc.codegen.c.host import unit_text
from tc.codegen.c.scalars import CValue
from tc.codegen.c.statements import StatementWriter
from tc.codegen.c.warps import DESCRIPTOR_TYPE, pointer_types, warp_function
from tc.codegen.launches import AXES, FEW_THREADS, BoxMap, DeviceLaunch, launches_of
from tc.codegen.llvm.packed import is_packed
from tc.errors import CodegenError
from tc.ir.arith import Facts
from tc.ir.box_copies import Arrive, AwaitPhase, AwaitProducts, BeginProducts, CommitProducts, CopyBox, SetUpBarrier
from tc.ir.dtype import f32, i64
from tc.ir.expr import Buffer, Const, Load, const
from tc.ir.lane_exchange import is_exchange, mask_of
from tc.ir.loop import (
    AsyncStore,
    AwaitCopies,
    Barrier,
    CommitCopies,
    For,
    PrimFunc,
    Stmt,
    WarpCall,
    in_place_inputs,
    is_strict,
)
from tc.ir.types import product
from tc.ir.uses import buffers_read
from tc.passes.loop.intrinsics import select_intrinsics


def emit_launches(func: PrimFunc, symbol: str, dialect: Dialect, comment: str = "") -> str:
    """All launches of a PrimFunc in the finished form as one text; the function of launch k is called `symbol`_k."""
    helpers = Helpers(dialect)
    chosen = select_intrinsics(func, ())
    functions = [write_launch(helpers, chosen, launch, f"{symbol}_{launch.index}", comment) for launch in launches_of(chosen)]
    return unit_text(helpers, functions)


def write_launch(helpers: Helpers, func: PrimFunc, launch: DeviceLaunch, name: str, comment: str = "") -> str:
    """The device function of a launch; what it calls goes to `helpers`."""
    writer = _LaunchWriter(helpers, func, launch)
    params = [*map(writer.map_parameter, launch.maps), *map(writer.buffer_parameter, launch.buffers)]
    params += map(writer.scalar_parameter, launch.scalars)
    with writer.captured() as lines:
        writer.shared_memory()
        writer.statement(launch.body)
    dialect = helpers.dialect
    total = prod(launch.threads)
    size = dialect.launch_bounds.format(*launch.threads, total=total, blocks=", 1" if total <= FEW_THREADS else "")
    head = f"/* {(comment or func.name).replace('*/', '* /')}: {_sizes(launch)} */"
    return "\n".join((head, f"{dialect.kernel} {size} {name}({', '.join(params)}) {{", *without_unused(lines), "}"))


def _sizes(launch: DeviceLaunch) -> str:
    grid, threads = (", ".join(map(str, sizes)) for sizes in (launch.grid, launch.threads))
    asked = f", {launch.shared_bytes} bytes of shared memory" if launch.asks_for_shared else ""
    return f"grid ({grid}), blocks of ({threads}) threads{asked}"


_ASKED = "tc_shared"
"""The shared memory that a launch asks for."""


class _LaunchWriter(StatementWriter):
    """One thread's program."""

    def __init__(self, helpers: Helpers, func: PrimFunc, launch: DeviceLaunch) -> None:
        super().__init__(helpers, Facts.of(func.facts), is_strict(func))
        self.func = func
        self.launch = launch
        self.map_names: list[str] = []
        self.handed_on = launch.written & buffers_read(launch.body)

    # -- what the function takes

    def map_parameter(self, each: BoxMap) -> str:
        if not self.dialect.has_boxes:
            raise CodegenError(f"{self.func.name}: boxes of {each.source.name} are copied, but {self.dialect.name} has no such copies")
        self.map_names.append(self.scope.names.new(f"{each.source.name}_map"))
        return f"const __grid_constant__ {map_type(self.helpers)} {self.map_names[-1]}"

    def buffer_parameter(self, buffer: Buffer) -> str:
        name = self.scope.buffers[buffer] = self.scope.names.new(buffer.name)
        number, shared = self.func.buffers.index(buffer), in_place_inputs(self.func)
        may_overlap = number in shared or (shared and number == len(self.func.inputs))
        may_overlap = may_overlap or buffer in self.handed_on  # behind a barrier it has what other threads wrote
        restrict = "" if may_overlap else f"{self.dialect.restrict} "
        return f"{self.pointer_type(buffer, buffer not in self.launch.written)}{restrict}{name}"

    def scalar_parameter(self, var: object) -> str:
        name = self.scope.names.new(var.name)  # type: ignore[attr-defined]
        self.scope.values[var] = CValue(name, i64)  # type: ignore[index]
        self.long.add(var)  # type: ignore[arg-type]
        return f"i64 {name}"

    def shared_memory(self) -> None:
        """Where all threads of the block see it: OpenCL wants it at the beginning of the function."""
        read = buffers_read(self.launch.body)
        if self.asks_for_shared:
            aligned = self.dialect.alignment.format(self.launch.most_shared_alignment)
            self.line(f"{self.dialect.asked_shared} {aligned} u8 {_ASKED}[];")
        for buffer in self.launch.shared:
            if buffer in read:
                self.allocate(buffer)

    # -- what it does

    def allocate(self, buffer: Buffer) -> None:
        if buffer not in self.scope.buffers:
            if buffer.scope == "local" and product(buffer.shape) == const(1) and not is_packed(buffer):
                self.single.add(buffer)
            super().allocate(buffer)

    @property
    def asks_for_shared(self) -> bool:
        return bool(self.dialect.asked_shared) and self.launch.asks_for_shared

    def declaration(self, buffer: Buffer, name: str, size: int) -> str:
        if buffer.scope == "shared" and self.asks_for_shared:
            kind = self.element_type(buffer)
            return f"{kind} *const {name} = ({kind} *)({_ASKED} + {self.launch.shared_offset(buffer)});"
        if buffer.scope == "shared":
            aligned = self.dialect.alignment.format(self.launch.shared_alignment(buffer))
            return f"{self.dialect.storage['shared']} {aligned} {self.element_type(buffer)} {name}[{size}];"
        size_bytes = size * buffer.dtype.size_bytes
        has_words = buffer.dtype.size_bytes < 4 and size_bytes % 4 == 0  # registers of several elements
        alignment = 16 if size_bytes >= 16 or has_words else 8 if size_bytes >= 8 else 0  # of the widest vector that is in it
        aligned = f"{self.dialect.alignment.format(alignment)} " if alignment else ""
        storage = self.dialect.storage.get(buffer.scope, "")
        count = "" if buffer in self.single else f"[{size}]"
        return f"{storage}{' ' if storage else ''}{aligned}{self.element_type(buffer)} {name}{count};"

    def may_share_bytes(self, buffer: Buffer) -> bool:
        return buffer.scope != "local"

    def bound(self, loop: For) -> None:
        level, _, axis = loop.thread.partition(".")
        name = self.scope.names.new(f"b{axis}" if level == "block" else loop.var.name)
        self.scope.values[loop.var] = CValue(name, i64)
        self.line(f"const {self.counter_type(loop)} {name} = {self.dialect.ids[loop.thread]};")
        outer, self.facts = self.facts, self.facts.with_range(loop.var, loop.extent)
        if self._is_shorter(loop):
            with self.block(f"if ({name} < {self.value(loop.extent)}) {{"):
                self.statement(loop.body)
        else:
            self.statement(loop.body)
        self.facts = outer

    def _is_shorter(self, loop: For) -> bool:
        """Whether the hardware has more threads along the axis than the loop has iterations."""
        level, _, axis = loop.thread.partition(".")
        return level == "thread" and isinstance(loop.extent, Const) and loop.extent.value < self.launch.threads[AXES.index(axis)]

    def statement(self, stmt: Stmt) -> None:
        pieces = self._pieces(stmt) if isinstance(stmt, AsyncStore) else None
        if pieces is None:
            super().statement(stmt)
            return
        for piece in pieces:
            to = self.pointer(piece.buffer, self.place(piece.buffer, piece.indices)[0])
            start = self.pointer(piece.load.buffer, self.place(piece.load.buffer, piece.load.indices)[0])
            self.line(f"{copy_helper(self.helpers, piece.size_bytes)}({to}, {start}, {self.value(piece.condition)});")

    def _pieces(self, stmt: AsyncStore) -> tuple[CopyPiece, ...] | None:
        if not self.dialect.has_async_copies or self.mask is not None:
            return None
        lane, lanes = (None, 1) if self.lane is None else (self.lane.var, self.lane.lanes)
        return copy_pieces(stmt, lane, lanes, self.facts, self.depends_on_lane)

    def other(self, stmt: Stmt) -> None:
        match stmt:
            case Barrier():
                self.line(self.dialect.barrier)
            case CommitCopies() | AwaitCopies() if not self.dialect.has_async_copies:
                pass
            case CommitCopies():
                self.line(f"{commit_helper(self.helpers)}();")
            case AwaitCopies(pending=pending):
                self.line(f"{wait_helper(self.helpers, pending)}();")
            case WarpCall() if self.dialect.has_warps:
                self._warp_call(stmt)
            case CopyBox() if self.dialect.has_boxes:
                to = self.pointer(stmt.buffer, self.place(stmt.buffer, stmt.indices)[0])
                given = [to, f"&{self.map_names[self.launch.map_of(stmt)]}", self._element(stmt.barrier)]
                given += [self.value(index).text for index in reversed(stmt.corner)]
                self.line(f"{copy_box_helper(self.helpers, len(stmt.corner))}({', '.join(given)});")
            case SetUpBarrier(barrier=barrier, arrivals=arrivals) if self.dialect.has_boxes:
                self._at_barrier("set_up", barrier, str(arrivals))
            case Arrive(barrier=barrier, expected_bytes=0) if self.dialect.has_boxes:
                self._at_barrier("arrive", barrier)
            case Arrive(barrier=barrier, expected_bytes=count) if self.dialect.has_boxes:
                self._at_barrier("arrive_expecting", barrier, str(count))
            case AwaitPhase(barrier=barrier, parity=parity) if self.dialect.has_boxes:
                self._at_barrier("await", barrier, f"(u32)({self.value(parity)})")
            case BeginProducts(sums=sums) if self.dialect.has_boxes:
                self._hand_over("begin", BEGIN_PRODUCTS, sums)
            case CommitProducts() if self.dialect.has_boxes:
                self._hand_over("commit", COMMIT_PRODUCTS, ())
            case AwaitProducts(pending=pending, sums=sums) if self.dialect.has_boxes:
                self._hand_over(f"await{pending}", AWAIT_PRODUCTS.format(pending), sums)
            case _:
                super().other(stmt)

    def _at_barrier(self, what: str, barrier: Load, *number: str) -> None:
        self.line(f"{barrier_helper(self.helpers, what)}({', '.join((self._element(barrier), *number))});")

    def _element(self, load: Load) -> str:
        """The address of an element."""
        offset, _ = self.place(load.buffer, load.indices)
        return f"&{self.element(load.buffer, offset)}"

    def _hand_over(self, what: str, text: str, registers: tuple[Load, ...]) -> None:
        """An instruction of a group of warps, with all elements of the buffers."""
        counts = tuple((words_of(each.buffer), each.buffer.dtype is f32) for each in registers)
        names = [self.buffer_name(each.buffer) for each in registers]
        given = [name if is_float else f"(u32 *){name}" for name, (_, is_float) in zip(names, counts, strict=True)]
        self.line(f"{group_helper(self.helpers, what, text, counts)}({', '.join(given)});")

    def _warp_call(self, call: WarpCall) -> None:
        """A function on where registers, rows and matrices of shared memory begin; exchanges of lanes are the language's own."""
        if is_exchange(call.name):
            source, target = (self.element(each.buffer, self.place(each.buffer, each.indices)[0]) for each in call.operands)
            self.line(f"{target} = __shfl_xor_sync(0xffffffffu, {source}, {mask_of(call.name)});")
            return
        arguments = []
        for k, (kind, operand) in enumerate(zip(pointer_types(call.name), call.operands, strict=True)):
            if kind == DESCRIPTOR_TYPE:
                arguments.append(f"{matrix_helper(self.helpers)}({self._element(operand)}, {descriptor_bits(call, k):#x}ull)")
            else:
                pointer = self.pointer(operand.buffer, self.place(operand.buffer, operand.indices)[0])
                is_known = kind in ("const void *", f"{self.element_type(operand.buffer)} *")  # no cast is needed
                arguments.append(pointer if is_known else f"({kind}){pointer}")
        self.line(f"{warp_function(self.helpers, call.name)}({', '.join(arguments)});")
