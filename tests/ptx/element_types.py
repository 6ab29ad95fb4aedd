"""The types that modifiers of instructions name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PtxType:
    """`kind`: u, s, b, f, or the name of a format that numpy does not have. `dtype` holds one value's bits."""

    name: str
    kind: str
    bits: int
    dtype: np.dtype

    @property
    def size(self) -> int:
        return self.bits // 8

    @property
    def unsigned(self) -> np.dtype:
        return UNSIGNED[self.bits]

    @property
    def is_integer(self) -> bool:
        return self.kind in "usb"

    @property
    def is_signed(self) -> bool:
        return self.kind == "s"


UNSIGNED = {8: np.dtype(np.uint8), 16: np.dtype(np.uint16), 32: np.dtype(np.uint32), 64: np.dtype(np.uint64)}
SIGNED = {8: np.dtype(np.int8), 16: np.dtype(np.int16), 32: np.dtype(np.int32), 64: np.dtype(np.int64)}
FLOATS = {16: np.dtype(np.float16), 32: np.dtype(np.float32), 64: np.dtype(np.float64)}


def make_types() -> dict[str, PtxType]:
    found = {}
    for bits in (8, 16, 32, 64):
        for kind in "ub":
            found[f"{kind}{bits}"] = PtxType(f"{kind}{bits}", kind, bits, UNSIGNED[bits])
        found[f"s{bits}"] = PtxType(f"s{bits}", "s", bits, SIGNED[bits])
        if bits in FLOATS:
            found[f"f{bits}"] = PtxType(f"f{bits}", "f", bits, FLOATS[bits])
    for name, bits in (("bf16", 16), ("tf32", 32), ("f16x2", 32), ("bf16x2", 32), ("e4m3x2", 16), ("e5m2x2", 16),
                       ("e4m3", 8), ("e5m2", 8), ("u16x2", 32), ("s16x2", 32)):  # fmt: skip
        found[name] = PtxType(name, name, bits, UNSIGNED[bits])
    found["pred"] = PtxType("pred", "pred", 1, np.dtype(bool))
    return found


TYPES = make_types()
