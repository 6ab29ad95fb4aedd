"""What the functions of a CUDA binary take: registers, stack, shared memory; what `ptxas -v` says, read from the binary itself.

Source: the ELF-64 format, and the attributes EIATTR_REGCOUNT and EIATTR_MIN_STACK_SIZE of its section `.nv.info` as cuobjdump shows them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_MAGIC = b"\x7fELF\x02\x01"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB = 2
_SIZED, _REGISTERS, _STACK = 0x04, 0x2F, 0x12
_SHARED = ".nv.shared."


@dataclass(frozen=True)
class FunctionResources:
    """Registers of a thread, bytes that it keeps on a stack (spilt registers are there, too), and shared bytes that a block declares."""

    registers: int
    stack_bytes: int
    shared_bytes: int


def resources_of(binary: bytes) -> dict[str, FunctionResources]:
    """By the names of functions; nothing for what is no binary of the kind that nvcc makes."""
    if not binary.startswith(_MAGIC):
        return {}
    sections = dict(_sections(binary))
    if ".nv.info" not in sections or ".symtab" not in sections or ".strtab" not in sections:
        return {}
    names = _symbols(sections[".symtab"], sections[".strtab"])
    found: dict[int, dict[int, int]] = {}
    for attribute, payload in _attributes(sections[".nv.info"]):
        if attribute in (_REGISTERS, _STACK) and len(payload) == 8:
            symbol, value = struct.unpack("<II", payload)
            found.setdefault(symbol, {})[attribute] = value
    return {
        names[symbol]: FunctionResources(facts[_REGISTERS], facts.get(_STACK, 0), len(sections.get(_SHARED + names[symbol], b"")))
        for symbol, facts in found.items()
        if _REGISTERS in facts and symbol < len(names)
    }


def _sections(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents; as many zeros for a section that has a size and no contents."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    count, names = struct.unpack_from("<HH", data, 0x3C)
    headers = [_SECTION.unpack_from(data, table + k * _SECTION.size) for k in range(count)]
    strings = headers[names][4]
    for name, kind, _, _, start, size, *_ in headers:
        text = data[strings + name : data.index(b"\0", strings + name)].decode()
        yield text, bytes(size) if kind == 8 else data[start : start + size]


def _symbols(table: bytes, strings: bytes) -> list[str]:
    return [strings[name : strings.index(b"\0", name)].decode() for name, *_ in _SYMBOL.iter_unpack(table)]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, place)
        payload = data[place + 4 : place + 4 + size] if form == _SIZED else b""
        yield attribute, payload
        place += 4 + len(payload)
