"""Descriptions of tensors for the tensor memory accelerator, as `cuTensorMapEncodeTiled` makes them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tests.ptx.errors import PtxError

SWIZZLES = {0: (0, 0), 32: (1, 256), 64: (2, 512), 128: (3, 1024)}  # span in bytes: bits that are changed, repeat in bytes


def swizzle(address: np.ndarray, span: int) -> np.ndarray:
    """Where a byte address of shared memory goes: bits 4.. are changed by bits 7.. (one, two or three of them)."""
    bits, _ = SWIZZLES[span]
    return address ^ ((address >> 7 & ((1 << bits) - 1)) << 4)


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A tensor in global memory, cut into boxes. All sequences begin with the innermost dimension.

    `sizes` in elements; `strides_bytes` of dimensions 1, 2, ... (the innermost is dense); `box` the extents of a tile
    in shared memory; `steps` the distance of the elements that are taken. By default all of it is that of `array`.
    Elements outside of `sizes` are read as zero and not written.
    """

    array: np.ndarray
    box: tuple[int, ...]
    swizzle: int = 0
    sizes: tuple[int, ...] = ()
    strides_bytes: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    offset_bytes: int = 0
    address: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if not self.sizes:
            object.__setattr__(self, "sizes", tuple(reversed(self.array.shape)))
        if not self.strides_bytes:
            object.__setattr__(self, "strides_bytes", tuple(reversed(self.array.strides))[1:])
        if not self.steps:
            object.__setattr__(self, "steps", (1,) * self.rank)
        self.check()

    def check(self) -> None:
        """The conditions of `cuTensorMapEncodeTiled`."""
        lengths = (len(self.box), len(self.strides_bytes) + 1, len(self.steps))
        if not 1 <= self.rank <= 5 or lengths != (self.rank,) * 3:
            raise PtxError(f"a tensor map of sizes {self.sizes} with box {self.box}, strides {self.strides_bytes}, steps {self.steps}")
        if any(s % 16 for s in self.strides_bytes) or self.offset_bytes % 16:
            raise PtxError(f"strides of a tensor map must be multiples of 16 bytes: {self.strides_bytes}")
        if not all(1 <= b <= 256 for b in self.box) or self.inner_bytes % 16:
            raise PtxError(f"a box of {self.box}: 1 to 256 elements a dimension, the innermost a multiple of 16 bytes")
        if self.swizzle not in SWIZZLES or (self.swizzle and self.inner_bytes > self.swizzle):
            raise PtxError(f"rows of {self.inner_bytes} bytes with a swizzle of {self.swizzle}")

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def item_bytes(self) -> int:
        return int(self.array.dtype.itemsize)

    @property
    def inner_bytes(self) -> int:
        return self.box[0] * self.item_bytes

    @property
    def box_bytes(self) -> int:
        return int(np.prod(self.box)) * self.item_bytes

    def at(self, address: int) -> TensorMap:
        """The map, knowing where its array lies on the heap."""
        return replace(self, address=address + self.offset_bytes)

    def elements(self, corner: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Addresses of the elements of the box at `corner`, in the order of shared memory, and which are inside."""
        address = np.array([self.address], np.int64)
        inside = np.array([True])
        strides = (self.item_bytes, *self.strides_bytes)
        for start, extent, step, size, stride in zip(corner, self.box, self.steps, self.sizes, strides, strict=True):
            index = start + np.arange(extent) * step
            address = (index[:, None] * stride + address[None, :]).reshape(-1)
            inside = (((index >= 0) & (index < size))[:, None] & inside[None, :]).reshape(-1)
        return address, inside
