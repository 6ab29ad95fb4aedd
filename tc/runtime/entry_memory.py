"""Instructions of an entry for the memory that kernels work on: the process's own, or a device's."""

from __future__ import annotations

from dataclasses import dataclass

from tc.codegen.llvm.builder import FunctionBuilder, Value, int_value


@dataclass(frozen=True)
class EntryMemory:
    """Reads, writes and blocks, as instructions at the place where `builder` writes.

    calls: what the functions of a device's runtime begin with (see `Backend`), each of which takes `queue`, the handle of the call's
    queue as i64, and works in its order; "" where the memory is the process's own.
    """

    builder: FunctionBuilder
    calls: str
    queue: Value

    def call(self, name: str, *arguments: Value) -> None:
        """Call a function of the device's runtime that returns nothing."""
        self.builder.emit_void(self._call_text(name, "void", arguments))

    def _call_text(self, name: str, result: str, arguments: tuple[Value, ...]) -> str:
        values = (self.builder.emit(f"inttoptr {self.queue} to ptr", "ptr"), *arguments)
        self.builder.module.declare(f"{self.calls}_{name}", result, [value.type for value in values])
        return f"call {result} @{self.calls}_{name}({', '.join(map(str, values))})"

    def read(self, place: Value, element: str, on_host: bool = False) -> Value:
        """The integer of type `element` at `place`, as it is when everything before has run."""
        size = int(element[1:]) // 8
        if self.calls and not on_host:
            room = self.builder.alloca("i64", 1, 8, "word")
            self.call("read", room, place, int_value(size))
            place = room
        return self.builder.emit(f"load {element}, {place}, align {size}", element)

    def write_word(self, place: Value, value: Value) -> None:
        """Store an i64."""
        if not self.calls:
            self.builder.emit_void(f"store {value}, {place}, align 8")
            return
        room = self.builder.alloca("i64", 1, 8, "word")
        self.builder.emit_void(f"store {value}, {room}, align 8")
        self.call("write", place, room, int_value(8))

    def copy(self, to: Value, start: Value, size_bytes: Value) -> None:
        """Copy between places that do not overlap."""
        if self.calls:
            self.call("copy", to, start, size_bytes)
            return
        self.builder.module.declare("llvm.memcpy.p0.p0.i64", "void", ["ptr", "ptr", "i64", "i1"])
        self.builder.emit_void(f"call void @llvm.memcpy.p0.p0.i64({to}, {start}, {size_bytes}, i1 false)")

    def free(self, block: Value) -> None:
        """Give back a block of `allocate`, or null."""
        if self.calls:
            self.call("free", block)
            return
        self.builder.module.declare("free", "void", ["ptr"])
        self.builder.emit_void(f"call void @free({block})")

    def allocate(self, size_bytes: Value) -> Value:
        """A block of so many bytes, null where there is no memory for it."""
        b = self.builder
        rounded = b.binary("and", b.binary("add", size_bytes, int_value(127)), int_value(-64))
        if self.calls:
            return b.emit(self._call_text("allocate", "ptr", (rounded,)), "ptr")
        b.module.declare("aligned_alloc", "ptr", ["i64", "i64"])
        return b.emit(f"call ptr @aligned_alloc(i64 64, {rounded})", "ptr")
