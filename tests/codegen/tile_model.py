"""Tile registers in Python: what the instructions on them do, for code that runs on machines without any.

Kernels' calls of the instructions become calls of functions here, which hold to what processors do: tiles exist between a configuration
and a release only, for each thread by itself, and no product may read what a smaller tile does not have.
Source: Intel, "64 and IA-32 Architectures Software Developer's Manual", volume 2, instructions TDPBUSD, TILELOADD and others.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from llvmlite import binding as llvm

PREFIX = "tile_model_"


@dataclass(frozen=True)
class _Tiles:
    """The registers of one thread."""

    data: np.ndarray  # uint8[8, 16, 64]
    shapes: list[tuple[int, int]]


_threads: dict[int, _Tiles] = {}
"""The operating system's number of a thread -> its registers while they are configured. Python's own thread-local values go with each call
of a thread that is not Python's."""
used: Counter[str] = Counter()
"""How often each instruction has run."""
errors: list[str] = []
"""What would have been a fault."""


_NONE = _Tiles(np.zeros((8, 16, 64), np.uint8), [(16, 64)] * 8)


def _tiles() -> _Tiles:
    tiles = _threads.get(threading.get_native_id())
    if tiles is None:
        errors.append("an instruction on tiles without a configuration")
    return tiles or _NONE


def _part(number: int) -> np.ndarray:
    """uint8[rows, bytes]: what a register has."""
    tiles = _tiles()
    rows, width = tiles.shapes[number]
    if not rows or not width:
        errors.append("a tile that has no elements")
    return tiles.data[number, :rows, :width]


def _parts(total: int, a: int, b: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The operands of a product; sizes that do not fit are noted."""
    (rows, width), (own, depth), (groups, columns) = (_tiles().shapes[number] for number in (total, a, b))
    if rows != own or width != columns or depth != 4 * groups or len({total, a, b}) < 3:
        errors.append("tiles of sizes that do not fit, or one twice")
    return _part(total), _part(a), _part(b)


def ldtilecfg(place: int) -> None:
    config = np.frombuffer(ctypes.string_at(place, 64), np.uint8)
    if config[0] != 1 or config[1] or config[2:16].any() or config[32:48].any() or config[56:].any():
        errors.append("a configuration that the processor refuses")
    widths = config[16:32].view(np.uint16)
    shapes = [(int(rows), int(width)) for rows, width in zip(config[48:56], widths, strict=True)]
    _threads[threading.get_native_id()] = _Tiles(np.zeros((8, 16, 64), np.uint8), shapes)


def tilerelease() -> None:
    _threads.pop(threading.get_native_id(), None)


def held() -> int:
    """How many threads hold tiles."""
    return len(_threads)


def tilezero(number: int) -> None:
    _tiles().data[number] = 0


def tileloadd64(number: int, place: int, pitch: int) -> None:
    tile = _part(number)
    _tiles().data[number] = 0
    for row, bytes_of_row in enumerate(tile):
        bytes_of_row[:] = np.frombuffer(ctypes.string_at(place + row * pitch, len(bytes_of_row)), np.uint8)


def tilestored64(number: int, place: int, pitch: int) -> None:
    for row, bytes_of_row in enumerate(_part(number)):
        ctypes.memmove(place + row * pitch, bytes_of_row.tobytes(), len(bytes_of_row))


def _integer_product(lhs: type, rhs: type) -> Callable[[int, int, int], None]:
    def run(total: int, a: int, b: int) -> None:
        sums, x, y = _parts(total, a, b)
        terms = np.ascontiguousarray(y).view(rhs).astype(np.int64).reshape(len(y), -1, 4)
        found = np.einsum("ipq,pjq->ij", np.ascontiguousarray(x).view(lhs).astype(np.int64).reshape(len(x), -1, 4), terms)
        sums[:] = (np.ascontiguousarray(sums).view(np.int32) + found).astype(np.int32).view(np.uint8)

    return run


def tdpbf16ps(total: int, a: int, b: int) -> None:
    part, lhs, rhs = _parts(total, a, b)
    x, y = (np.ascontiguousarray(each).view(ml_dtypes.bfloat16).astype(np.float32) for each in (lhs, rhs))
    sums, pairs = np.ascontiguousarray(part).view(np.float32), y.reshape(len(y), -1, 2)
    for p in range(len(pairs)):
        for q in range(2):
            sums = sums + np.outer(x[:, 2 * p + q], pairs[p, :, q])
    part[:] = sums.view(np.uint8)


_PRODUCTS = {
    f"tdpb{a}{b}d": _integer_product(*(np.uint8 if letter == "u" else np.int8 for letter in (a, b))) for a in "us" for b in "us"
}
_INSTRUCTIONS: dict[str, tuple[Callable[..., None], list[type]]] = {
    "ldtilecfg": (ldtilecfg, [ctypes.c_void_p]),
    "tilerelease": (tilerelease, []),
    "tilezero": (tilezero, [ctypes.c_int8]),
    "tileloadd64": (tileloadd64, [ctypes.c_int8, ctypes.c_void_p, ctypes.c_int64]),
    "tileloaddt164": (tileloadd64, [ctypes.c_int8, ctypes.c_void_p, ctypes.c_int64]),
    "tilestored64": (tilestored64, [ctypes.c_int8, ctypes.c_void_p, ctypes.c_int64]),
    **{name: (run, [ctypes.c_int8] * 3) for name, run in {**_PRODUCTS, "tdpbf16ps": tdpbf16ps}.items()},
}


def _noted(name: str, run: Callable[..., None]) -> Callable[..., None]:
    def call(*args: int) -> None:
        used[name] += 1
        run(*args)

    return call


_CALLBACKS = {
    name: ctypes.CFUNCTYPE(None, *types)(_noted(name, run)) for name, (run, types) in _INSTRUCTIONS.items()
}


def emulated(ir_text: str) -> str:
    """The module with calls of this model in place of the instructions."""
    for name, callback in _CALLBACKS.items():
        llvm.add_symbol(PREFIX + name, ctypes.cast(callback, ctypes.c_void_p).value)
    return re.sub(rf"@llvm\.x86\.({'|'.join(_CALLBACKS)})\b", rf"@{PREFIX}\1", ir_text)
