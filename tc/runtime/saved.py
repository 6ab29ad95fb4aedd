"""Compiled modules as files: a JSON header, then raw sections; nothing in it is ever executed while reading.

    magic, version, hash of everything after it, length of the header | header | sections, each at a multiple of 64 bytes

Sections are read straight to where constants are used, hashed on the way. Dim formulas are text in Python syntax, and are parsed,
not evaluated.
"""

from __future__ import annotations

import ast
import hmac
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tc.errors import ModuleFileError, UserError
from tc.files import whole_file
from tc.ir.dtype import parse_dtype
from tc.ir.expr import (
    Add,
    And,
    Div,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    Max,
    Min,
    Mul,
    Ne,
    Not,
    Or,
    Select,
    Sub,
    Var,
    const,
    format_expr,
)
from tc.runtime.digest import digest_of, read_with_digest, write_with_digest
from tc.runtime.memory import Arena

MAGIC = b"tcmodule"
VERSION = 9
_HEAD = struct.Struct("<8sI32sQ")
_ALIGNMENT = 64
MAX_HEADER_BYTES = 64 << 20


Seal = Callable[[bytes], bytes]
"""What stands in a file for the hash of its contents: in the cache a code that only the user's own key makes."""


def plain_seal(digest: bytes) -> bytes:
    """The hash itself, which shows damage and no author."""
    return digest


def write_module(
    path: str | os.PathLike[str], header: Mapping[str, Any], sections: Sequence[bytes | np.ndarray], seal: Seal = plain_seal
) -> None:
    """Write a module file; it appears whole or not at all."""
    length, pieces = _body(header, sections)
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        digest = write_with_digest(file, _HEAD.size, list(pieces))
        file.write(_HEAD.pack(MAGIC, VERSION, seal(digest), length))


def pack_module(header: Mapping[str, Any], sections: Sequence[bytes | np.ndarray]) -> bytes:
    """The bytes of the file that `write_module` writes."""
    length, pieces = _body(header, sections)
    body = b"".join(pieces)
    return _HEAD.pack(MAGIC, VERSION, digest_of(body), length) + body


def _body(header: Mapping[str, Any], sections: Sequence[bytes | np.ndarray]) -> tuple[int, Iterator[bytes | memoryview]]:
    """The length of the header as text, and all that follows the head of a file."""
    places, position = [], 0
    for section in sections:
        size = section.nbytes if isinstance(section, np.ndarray) else len(section)
        places.append([position, size])
        position += -(-size // _ALIGNMENT) * _ALIGNMENT
    text = json.dumps({**header, "sections": places}, separators=(",", ":")).encode()

    def pieces() -> Iterator[bytes | memoryview]:
        yield text
        yield b"\0" * (-(_HEAD.size + len(text)) % _ALIGNMENT)
        for section in sections:
            data = _bytes_of(section)
            yield data
            yield b"\0" * (-len(data) % _ALIGNMENT)

    return len(text), pieces()


def _bytes_of(section: bytes | np.ndarray) -> bytes | memoryview:
    if isinstance(section, bytes):
        return section
    return np.ascontiguousarray(section).reshape(-1).view(np.uint8).data if section.size else b""


def read_module(path: str | os.PathLike[str], seal: Seal = plain_seal) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The header and the sections (uint8, aligned as in the file) of a module.

    ModelError when it is damaged, of another version, or under another seal. Nothing is looked at before the seal is.
    """
    with Path(path).open("rb") as file:  # once: another process may put another file in its place
        size = os.fstat(file.fileno()).st_size
        return _parts(str(path), size, file.read(_HEAD.size), lambda room: read_with_digest(file, _HEAD.size, room), seal)


def unpack_module(data: bytes | memoryview) -> tuple[dict[str, Any], list[np.ndarray]]:
    """`read_module`, of bytes that `pack_module` made."""
    view = memoryview(data)

    def fill(room: memoryview) -> bytes:
        room[:] = view[_HEAD.size :]
        return digest_of(room)

    return _parts("the pickled module", len(view), bytes(view[: _HEAD.size]), fill, plain_seal)


def _parts(
    name: str, size: int, head: bytes, fill: Callable[[memoryview], bytes], seal: Seal
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Header and sections of a file of `size` bytes. `fill` brings what follows the head to where it will stay, and hashes it."""
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        raise ModuleFileError(f"{name} is not a compiled tc module")
    _, version, digest, length = _HEAD.unpack(head)
    if version != VERSION:
        raise ModuleFileError(f"{name} is a module of version {version}; this is version {VERSION}: compile it again", code="TC4011")
    if length > min(MAX_HEADER_BYTES, size - _HEAD.size):
        raise ModuleFileError(f"{name} is damaged: its header claims {length} bytes")
    whole = Arena(size).bytes()
    if not hmac.compare_digest(seal(fill(whole.data[_HEAD.size :])), digest):
        raise ModuleFileError(f"{name} is damaged: its contents do not match their hash")
    header = json.loads(whole.data[_HEAD.size : _HEAD.size + length].tobytes())
    start = -(-(_HEAD.size + length) // _ALIGNMENT) * _ALIGNMENT
    sections = []
    for place, count in header["sections"]:
        if place < 0 or count < 0 or start + place + count > size:
            raise ModuleFileError(f"{name} is damaged: a section lies outside the file")
        sections.append(whole[start + place : start + place + count])
    return header, sections


def dim_text(dim: Expr, names: Mapping[Var, str]) -> str:
    """A dim formula as text, its variables under the given names."""
    return format_expr(dim, 0, lambda var: names[var])


def parse_dim(text: str, variables: Mapping[str, Var]) -> Expr:
    """The formula that `dim_text` wrote. ModelError for anything else."""
    try:
        return _from_ast(ast.parse(text, mode="eval").body, variables)
    except (SyntaxError, KeyError, ValueError, RecursionError) as error:
        raise ModuleFileError(f"not a dim formula: {text!r} ({error})") from None


_OPERATORS: dict[type, type] = {
    ast.Add: Add,
    ast.Sub: Sub,
    ast.Mult: Mul,
    ast.Div: Div,
    ast.FloorDiv: FloorDiv,
    ast.Mod: FloorMod,
    ast.Eq: Eq,
    ast.NotEq: Ne,
    ast.Lt: Lt,
    ast.LtE: Le,
}


def _from_ast(node: ast.expr, variables: Mapping[str, Var]) -> Expr:
    match node:
        case ast.Constant(value=int(value)):
            return const(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return const(-value)
        case ast.Name(id=name):
            return variables[name]
        case ast.BinOp(left=left, op=op, right=right):
            made: Expr = _OPERATORS[type(op)](_from_ast(left, variables), _from_ast(right, variables))
            return made
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            compared: Expr = _OPERATORS[type(op)](_from_ast(left, variables), _from_ast(right, variables))
            return compared
        case ast.BoolOp(op=ast.And() | ast.Or() as op, values=[first, *rest]):
            joined = _from_ast(first, variables)
            for part in rest:
                joined = (And if isinstance(op, ast.And) else Or)(joined, _from_ast(part, variables))
            return joined
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Not(_from_ast(operand, variables))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[a, b]):
            return (Min if name == "min" else Max)(_from_ast(a, variables), _from_ast(b, variables))
        case ast.Call(func=ast.Name(id="select"), args=[c, a, b]):
            return Select(*(_from_ast(part, variables) for part in (c, a, b)))
    raise ValueError(ast.unparse(node))


def as_array(section: np.ndarray, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """A section as an array of a tc dtype; ModelError when the sizes do not match."""
    numpy_dtype = parse_dtype(dtype).numpy
    expected = int(np.prod(shape, dtype=np.int64)) * numpy_dtype.itemsize
    if expected != section.nbytes:
        raise ModuleFileError(f"a constant of {expected} bytes lies in a section of {section.nbytes}")
    return section.view(numpy_dtype).reshape(tuple(shape)) if expected else np.empty(tuple(shape), numpy_dtype)


def write_files(files: Mapping[str, str | bytes], folder: str | os.PathLike[str]) -> None:
    """Put files into a folder, which is made if it is not there; each is there whole or not at all. UserError where that cannot be."""
    try:
        os.makedirs(folder, exist_ok=True)
        for name, content in files.items():
            with whole_file(Path(folder, name)) as unfinished:
                unfinished.write_bytes(content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        raise UserError(f"export: {os.fspath(folder)!r} cannot be written: {error.strerror or error}") from error
