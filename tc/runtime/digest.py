"""Hashes of much data, in all cores: sha256 over the sha256 of every piece of CHUNK_BYTES, a Merkle tree of two levels."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import BinaryIO

import numpy as np

from tc.errors import ModuleFileError
from tc.target import available_cpus
from tc.target.workers import for_each

CHUNK_BYTES = 1 << 20


def digest_of(data: bytes | memoryview) -> bytes:
    """The 32 bytes of the hash of some bytes."""
    view = memoryview(data)
    return _digest(len(view), lambda start, end: view[start:end])


def digest_of_calls(calls: Iterable[Mapping[str, np.ndarray]]) -> str:
    """Of the inputs of calls in their order, arrays by name in any: what a search or a module depends on that was made with them."""
    digest = hashlib.sha256()
    for call in calls:
        digest.update(len(call).to_bytes(8, "little"))
        for name, array in sorted(call.items()):
            digest.update(repr((name, str(array.dtype), array.shape)).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def read_with_digest(file: BinaryIO, start: int, room: memoryview) -> bytes:
    """Fill `room` with what lies in a file from `start` on; returns its hash. ModelError when the file ends before."""

    def read(begin: int, end: int) -> memoryview:
        piece = room[begin:end]
        if os.preadv(file.fileno(), [piece], start + begin) != len(piece):
            raise ModuleFileError(f"{file.name} is damaged: it ends too early")
        return piece

    return _digest(len(room), read)


def write_with_digest(file: BinaryIO, start: int, pieces: Sequence[bytes | memoryview]) -> bytes:
    """Write bytes one after the other into a file, from `start` on; returns their hash. The file has nothing buffered."""
    ends = list(itertools.accumulate(map(len, pieces)))

    def write(begin: int, end: int) -> bytes | memoryview:
        data = _part(pieces, ends, begin, end)
        done = 0
        while done < len(data):
            done += os.pwrite(file.fileno(), data[done:], start + begin + done)
        return data

    return _digest(ends[-1] if ends else 0, write)


def _part(pieces: Sequence[bytes | memoryview], ends: Sequence[int], begin: int, end: int) -> bytes | memoryview:
    """The bytes from `begin` to `end` of all pieces together, which end at `ends`; copied only if they lie in several."""
    number = bisect.bisect_right(ends, begin)
    found: list[bytes | memoryview] = []
    while begin < end:
        first = ends[number] - len(pieces[number])
        found.append(memoryview(pieces[number])[begin - first : end - first])
        begin, number = ends[number], number + 1
    return found[0] if len(found) == 1 else b"".join(found)


def _digest(size: int, piece: Callable[[int, int], bytes | memoryview]) -> bytes:
    """The hash over all pieces; those of large data are made by threads, as hashing and reading leave the interpreter to others."""

    def leaf(start: int) -> bytes:
        return hashlib.sha256(piece(start, min(start + CHUNK_BYTES, size))).digest()

    starts = range(0, size, CHUNK_BYTES)
    leaves = for_each(leaf, starts, available_cpus())
    return hashlib.sha256(b"".join([size.to_bytes(8, "little"), *leaves])).digest()
