"""The symbols of an object file: what it defines, and what it expects others to define.

Source: the ELF-64 format, System V gABI, chapter 4.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_MAGIC = b"\x7fELF\x02\x01"
"""ELF, 64 bits, little-endian."""
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB = 2
_WRITABLE, _ALLOCATED = 1, 2
"""Flags of a section."""
_LOCAL = 0
_OF_THE_LINKER = ("", "_GLOBAL_OFFSET_TABLE_")


@dataclass(frozen=True)
class Symbols:
    """Names of one object file, those that only it sees left out; and the size of its sections that may be written."""

    defined: frozenset[str]
    undefined: frozenset[str]
    writable_bytes: int = 0


def symbols_of(data: bytes) -> Symbols:
    """The symbols of an object file; none of a file in another format than ELF with 64 bits."""
    defined: set[str] = set()
    undefined: set[str] = set()
    writable = 0
    if data.startswith(_MAGIC):
        (table,) = struct.unpack_from("<Q", data, 0x28)
        (count,) = struct.unpack_from("<H", data, 0x3C)
        sections = [_SECTION.unpack_from(data, table + k * _SECTION.size) for k in range(count)]
        for _, kind, flags, _, start, size, strings, *_ in sections:
            if flags & (_WRITABLE | _ALLOCATED) == _WRITABLE | _ALLOCATED:
                writable += size
            if kind == _SYMTAB:
                names = sections[strings][4]
                for name, info, _, section, _, _ in _SYMBOL.iter_unpack(data[start : start + size]):
                    if info >> 4 != _LOCAL:
                        text = data[names + name : data.index(b"\0", names + name)].decode()
                        if text not in _OF_THE_LINKER:
                            (defined if section else undefined).add(text)
    return Symbols(frozenset(defined), frozenset(undefined), writable)
