"""The host's part of a kernel that runs on a device: its launches, as a function that the program's entry calls like any kernel.

    void symbol(ptr per buffer, i64 per scalar, i64 queue)

computes the sizes of each launch and hands them to the runtime (`<calls>_launch`) with the addresses and numbers that the device function
takes. The device's text lies in the same object under `<symbol>_image`; where the runtime keeps the handles of its functions,
`<symbol>_handles`, begins empty. So an object file is a whole kernel, and is cached, saved and linked like any.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tc.codegen.box_assembly import MAP_ALIGNMENT, MAP_BYTES
from tc.codegen.launches import MAX_GRID, BoxMap, DeviceLaunch, launches_of
from tc.codegen.llvm.builder import Module, Value, int_value
from tc.codegen.llvm.emitter import KernelEmitter
from tc.errors import CodegenError
from tc.ir.expr import Const, const
from tc.ir.loop import For, PrimFunc
from tc.ir.types import product

IMAGE, HANDLES = "_image", "_handles"
"""Endings of the symbols of a kernel's device text and handles."""


@dataclass(frozen=True)
class Image:
    """The device's part of a kernel: its text, and the functions in it, by the number of the launch.

    `shared_bytes`: of the buffers of a block, for each. `options`: what the compiler of the text is to be told.
    """

    text: str
    functions: tuple[str, ...]
    shared_bytes: tuple[int, ...]
    options: str = ""

    def to_bytes(self) -> bytes:
        """As it stands in the object."""
        return json.dumps([self.text, self.functions, self.shared_bytes, self.options]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Image:
        """The inverse."""
        text, functions, shared_bytes, options = json.loads(data)
        return cls(text, tuple(functions), tuple(shared_bytes), options)


def emit_host_stub(func: PrimFunc, symbol: str, image: Image, calls: str) -> str:
    """LLVM IR of the host's part of a kernel whose device functions are in `image`. `calls`: how names of the runtime's functions begin.

    CodegenError for host code that touches memory.
    """
    module = Module()
    stub = _HostStub(module, symbol, func, launches_of(func), calls)
    module.declarations[IMAGE] = _constant(f"@{symbol}{IMAGE}", image)
    module.declarations[HANDLES] = f"@{symbol}{HANDLES} = global [{max(len(image.functions), 1)} x [2 x i64]] zeroinitializer, align 16"
    stub.emit_entry()
    return str(module)


def _constant(name: str, image: Image) -> str:
    """An image as LLVM IR: its size, then its bytes."""
    data = image.to_bytes()
    text = "".join(f"\\{byte:02X}" for byte in len(data).to_bytes(8, "little") + data)
    return f'{name} = constant [{len(data) + 8} x i8] c"{text}", align 8'


_IMAGE_LINE = re.compile(rf'^(@\w+{IMAGE}) = constant \[\d+ x i8\] c"(.*)", align 8$', re.MULTILINE)


def with_image(stub: str, change: Callable[[Image], Image]) -> str:
    """The LLVM IR of a host stub with another image in the place of its own."""
    found = _IMAGE_LINE.search(stub)
    if found is None:
        return stub
    image = Image.from_bytes(bytes.fromhex(found[2].replace("\\", ""))[8:])
    changed = change(image)
    return stub if changed is image else stub[: found.start()] + _constant(found[1], changed) + stub[found.end() :]


class _HostStub(KernelEmitter):
    """A kernel whose bound loops are calls of the runtime."""

    def __init__(self, module: Module, symbol: str, func: PrimFunc, launches: Sequence[DeviceLaunch], calls: str) -> None:
        super().__init__(module, symbol, func)
        self.launches = {launch.body: launch for launch in launches}
        self.calls = calls

    def bound(self, loop: For) -> None:
        """Call the runtime: queue, handle, blocks and threads along x, y and z, the arguments one behind the other, how many there are of
        each kind."""
        launch, b = self.launches[loop], self.b
        sizes = [self.value(extent) for extent in launch.grid]
        for extent, size, most in zip(launch.grid, sizes, MAX_GRID, strict=True):
            if isinstance(extent, Const) and extent.value > most:
                raise CodegenError(f"{self.func.name}: {extent} blocks along one axis, at most {most} can be launched")
            assert size.element == "i64"
        queue = b.emit("inttoptr i64 %max_threads to ptr", "ptr")
        values = [self.state.pointers[buffer] for buffer in launch.buffers] + [self.state.values[var] for var in launch.scalars]
        first = len(launch.maps) * MAP_BYTES // 8
        table = b.alloca("i64", max(first + len(values), 1), MAP_ALIGNMENT, "arguments")
        for k, value in enumerate(values):
            b.emit_void(f"store {value}, {self._word(table, first + k)}, align 8")
        for k, each in enumerate(launch.maps):
            self._describe(each, queue, self._word(table, k * MAP_BYTES // 8))
        handle = Value(f"getelementptr inbounds ([2 x i64], ptr @{self.symbol}{HANDLES}, i64 {launch.index})", "ptr")
        threads = [int_value(count) for count in launch.threads]
        counts = int_value(len(launch.maps)), int_value(len(launch.buffers)), int_value(len(launch.scalars))
        arguments = (queue, handle, *sizes, *threads, table, *counts)
        self.module.declare(f"{self.calls}_launch", "void", [value.type for value in arguments])
        b.emit_void(f"call void @{self.calls}_launch({', '.join(map(str, arguments))})")
        self.forget_memory()

    def _word(self, table: Value, k: int) -> Value:
        return self.b.emit(f"getelementptr i64, {table}, i64 {k}", "ptr")

    def _describe(self, each: BoxMap, queue: Value, place: Value) -> None:
        """Have the runtime describe what boxes are copied from: the bytes of an element, how many dims there are, where it is; a table of
        its sizes, of the bytes between neighbours along all dims but the last, and of the extents of a box, the last dim first."""
        source, shape = each.source, each.shape
        size_bytes, rank = source.dtype.size_bytes, len(shape)
        sizes = list(reversed(shape))
        strides = [product(shape[rank - k :]) * size_bytes for k in range(1, rank)]
        extents = [const(extent) for extent in reversed(each.extents)]
        table = self.b.alloca("i64", 3 * rank, 16, "sizes")
        for k, value in enumerate((*sizes, *strides, const(0), *extents)):
            self.b.emit_void(f"store {self.value(value)}, {self._word(table, k)}, align 8")
        arguments = (queue, place, int_value(size_bytes), int_value(rank), self.state.pointers[source], table)
        self.module.declare(f"{self.calls}_describe", "void", [value.type for value in arguments])
        self.b.emit_void(f"call void @{self.calls}_describe({', '.join(map(str, arguments))})")
