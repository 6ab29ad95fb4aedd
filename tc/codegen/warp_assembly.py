"""What the lanes of a warp do together as PTX: the text of an instruction, and which registers go where.

Both the C of CUDA and LLVM IR take a piece of assembly with numbered places; so this one table serves both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tc.errors import CodegenError
from tc.ir.bit_layout import BitLayout
from tc.ir.dtype import DType, f32
from tc.ir.fragments import ldmatrix_of
from tc.ir.intrinsic import INTRINSICS, Intrinsic, is_of_group
from tc.ir.lane_exchange import is_exchange, mask_of

DESCRIPTOR = -1
"""In the place of a number of registers: 64 bits that say where a matrix is in shared memory."""


@dataclass(frozen=True)
class WarpAssembly:
    """One instruction.

    `text`: with {0}, {1}, ... for its places: the registers of the result, then those of the operands in order, each operand's in order;
    where a row of shared memory is an operand, its address; where a matrix is, its descriptor. `results`: registers of the result; `kind`
    of these: "f" for f32, "r" for 32 bits of anything. `operands`: registers of each operand but the last, 0 for an address, DESCRIPTOR
    for one. `is_update`: the result is an operand, too.
    """

    text: str
    results: int
    kind: str
    operands: tuple[int, ...]
    is_update: bool

    @property
    def has_address(self) -> bool:
        """Whether it reads shared memory."""
        return 0 in self.operands or DESCRIPTOR in self.operands

    def written(self, place: Callable[[int], str]) -> str:
        """The text, with places as some language writes them."""
        return self.text.format(*(place(k) for k in range(self.results + sum(max(count, 1) for count in self.operands))))


@cache
def assembly_of(name: str) -> WarpAssembly:
    """The assembly of an intrinsic. CodegenError for one that is no instruction of a warp."""
    intrinsic = INTRINSICS[name]
    if name.startswith("mma."):
        return _product(intrinsic)
    if is_of_group(name):
        return _group_product(intrinsic)
    if name.startswith("ldmatrix."):
        return _load(intrinsic)
    if is_exchange(name):
        return _exchange(intrinsic)
    raise CodegenError(f"{name} is no instruction of the lanes of one warp")


def _product(intrinsic: Intrinsic) -> WarpAssembly:
    lhs, rhs, sums = (_registers(found, buffer.dtype) for found, buffer in zip(intrinsic.layouts, intrinsic.pattern.buffers, strict=True))
    types = [buffer.dtype for buffer in intrinsic.pattern.buffers]
    shape = intrinsic.name.split(".")[1]
    names = [_PTX_TYPES.get(dtype.name, dtype.name) for dtype in types]
    groups, first = [], 0
    for count in (sums, lhs, rhs):
        groups.append(_places(first, count))
        first += count
    text = f"mma.sync.aligned.{shape}.row.col.{names[2]}.{names[0]}.{names[1]}.{names[2]} {', '.join((*groups, groups[0]))};"
    return WarpAssembly(text, sums, "f" if types[2] is f32 else "r", (lhs, rhs), True)


def _group_product(intrinsic: Intrinsic) -> WarpAssembly:
    """Of four warps. Operands in shared memory whose columns lie side by side are said to be transposed."""
    lhs, _, total = intrinsic.pattern.buffers
    _, shape, kind, _, order = intrinsic.name.split(".")
    sums = _registers(intrinsic.layouts[2], total.dtype)
    from_registers = 0 if intrinsic.layouts[0] is None else _registers(intrinsic.layouts[0], lhs.dtype)
    left = _places(sums, from_registers) if from_registers else f"{{{sums}}}"
    turned = [str(int(order[1] == "n"))] if from_registers else [str(int(order[0] == "t")), str(int(order[1] == "n"))]
    operands = ", ".join((_places(0, sums), left, f"{{{sums + max(from_registers, 1)}}}", "p", "1", "1", *turned))
    head = f"wgmma.mma_async.sync.aligned.{shape}.{_PTX_TYPES[total.dtype.name]}.{kind}.{kind}"
    text = f"{{{{ .reg .pred p; setp.eq.u32 p, 0, 0; {head} {operands}; }}}}"
    return WarpAssembly(text, sums, "f", (from_registers or DESCRIPTOR, DESCRIPTOR), True)


_PTX_TYPES = {"f32": "f32", "f16": "f16", "bf16": "bf16", "i8": "s8", "u8": "u8", "i32": "s32"}


def _load(intrinsic: Intrinsic) -> WarpAssembly:
    target, dtype = intrinsic.layouts[1], intrinsic.pattern.buffers[1].dtype
    assert target is not None
    load = ldmatrix_of(target, dtype.bits)
    assert load is not None, f"{intrinsic.name} is an ldmatrix"
    head = f"ldmatrix.sync.aligned.m8n8.x{load.count}{'.trans' if load.transposed else ''}.shared.b16"
    return WarpAssembly(f"{head} {_places(0, load.count)}, [{{{load.count}}}];", load.count, "r", (0,), False)


def _exchange(intrinsic: Intrinsic) -> WarpAssembly:
    words = intrinsic.pattern.buffers[0].dtype.bits // 32
    one = "shfl.sync.bfly.b32 {{{}}}, {{{}}}, {}, 31, -1;"
    text = " ".join(one.format(k, words + k, mask_of(intrinsic.name)) for k in range(words))
    return WarpAssembly(text, words, "r", (words,), False)


def _registers(layout: BitLayout | None, dtype: DType) -> int:
    """Of 32 bits, for a fragment."""
    assert layout is not None
    return dict(layout.inputs)["register"] * dtype.bits // 32


def _places(first: int, count: int) -> str:
    """Registers in the text, in braces, which `format` wants twice."""
    return f"{{{{{', '.join(f'{{{k}}}' for k in range(first, first + count))}}}}}"
