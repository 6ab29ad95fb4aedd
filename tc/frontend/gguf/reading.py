"""GGUF files: metadata, and tensors as the bytes that they lie in, mapped rather than read.

Source: the specification of GGUF, docs/gguf.md of ggml.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tc.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

MOST_ENTRIES = 1 << 20
"""Of metadata, of an array in it, and of tensors."""

MOST_ITEMS = 1 << 24
"""Of an array in the metadata: vocabularies have some hundred thousand."""

LONGEST_TEXT = 1 << 24
MOST_DIMS = 8
DEEPEST_ARRAY = 4


@dataclass(frozen=True)
class BlockKind:
    """How the elements of a row are stored: `terms` of them in `size_bytes`."""

    name: str
    terms: int
    size_bytes: int


KINDS = {
    0: BlockKind("F32", 1, 4),
    1: BlockKind("F16", 1, 2),
    2: BlockKind("Q4_0", 32, 18),
    3: BlockKind("Q4_1", 32, 20),
    8: BlockKind("Q8_0", 32, 34),
    12: BlockKind("Q4_K", 256, 144),
    14: BlockKind("Q6_K", 256, 210),
    30: BlockKind("BF16", 1, 2),
}
"""Kinds of tensors by their numbers in files."""


@dataclass(frozen=True, eq=False)
class GgufTensor:
    """`shape`: the slowest axis first, as numpy has it; `data`: uint8[bytes] on the file. None for a kind that is not known."""

    name: str
    shape: tuple[int, ...]
    kind: BlockKind | None
    number: int
    data: np.ndarray


@dataclass(frozen=True, eq=False)
class GgufFile:
    """What a file holds; names are those of the file."""

    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


class _Reader:
    """Goes through the bytes of a file. ModelError where they end too soon."""

    def __init__(self, data: np.ndarray, name: str) -> None:
        self.data, self.name, self.place = memoryview(data), name, 0

    def fail(self, what: str) -> ModelError:
        return ModelError(f"{self.name}: {what} (byte {self.place})", code="TC1003")

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.place:
            raise self.fail(f"the file ends within {count} bytes")
        found = self.data[self.place : self.place + count]
        self.place += count
        return found

    def number(self, code: str) -> Any:
        (value,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))
        return value

    def count(self, limit: int, what: str) -> int:
        found = int(self.number("Q"))
        if found > limit:
            raise self.fail(f"{found} {what}, more than {limit}")
        return found

    def text(self) -> str:
        raw = bytes(self.take(self.count(LONGEST_TEXT, "bytes of a text")))
        return raw.decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY and depth < DEEPEST_ARRAY:
            item, count = int(self.number("I")), self.count(MOST_ITEMS, "elements of an array")
            if item in _NUMBERS:
                size = struct.calcsize(f"<{_NUMBERS[item]}")
                return np.frombuffer(self.take(size * count), np.dtype(f"<{_NUMBERS[item]}")).tolist()
            return [self.value(item, depth + 1) for _ in range(count)]
        if kind not in _NUMBERS:
            raise self.fail(f"a value of the unknown type {kind}")
        return self.number(_NUMBERS[kind])


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """The file at `path`, mapped into memory. ModelError where it is damaged or lies about its sizes."""
    name = Path(path).name
    try:
        data: np.ndarray = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise ModelError(f"{name}: {error}", code="TC1002") from None
    reader = _Reader(data, name)
    if bytes(reader.take(4)) != MAGIC:
        raise reader.fail("this is no GGUF file")
    version = int(reader.number("I"))
    if version not in VERSIONS:
        raise reader.fail(f"version {version} of GGUF; known are {', '.join(map(str, VERSIONS))}")
    num_tensors, num_entries = reader.count(MOST_ENTRIES, "tensors"), reader.count(MOST_ENTRIES, "entries of metadata")
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = reader.text()
        metadata[key] = reader.value(int(reader.number("I")))
    heads = [_read_head(reader) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise reader.fail(f"an alignment of {alignment!r}")
    first = -(-reader.place // alignment) * alignment
    tensors = {}
    for head in heads:
        if head[0] in tensors:
            raise reader.fail(f"two tensors are called {head[0]!r}")
        tensors[head[0]] = _tensor(reader, data, first, *head)
    return GgufFile(version, metadata, tensors)


def _read_head(reader: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    name, rank = reader.text(), int(reader.number("I"))
    if rank > MOST_DIMS:
        raise reader.fail(f"the tensor {name!r} has {rank} dims")
    dims = tuple(int(reader.number("Q")) for _ in range(rank))
    return name, dims[::-1], int(reader.number("I")), int(reader.number("Q"))


def _tensor(reader: _Reader, data: np.ndarray, first: int, name: str, shape: tuple[int, ...], number: int, offset: int) -> GgufTensor:
    kind = KINDS.get(number)
    begin = first + offset
    if kind is None:
        return GgufTensor(name, shape, None, number, data[:0])
    if not shape or shape[-1] % kind.terms:
        raise reader.fail(f"the tensor {name!r} is {list(shape)}, but blocks of {kind.name} hold {kind.terms} elements of a row")
    size = math.prod(shape) // kind.terms * kind.size_bytes
    if begin + size > len(data):
        takes = f"takes {size} bytes from {begin} on; the file has {len(data)}"
        raise reader.fail(f"the tensor {name!r}, {list(shape)} of {kind.name}, {takes}")
    return GgufTensor(name, shape, kind, number, data[begin : begin + size])
