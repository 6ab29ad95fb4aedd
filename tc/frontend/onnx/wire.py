"""Cut the tensor bytes out of a serialized ONNX model, without copying them.

Protocol buffers copy every bytes field when it is read. A model is mostly such fields, so large `raw_data` fields are
left in the file: `split_tensors` rewrites each tensor as external data that points into the model's own bytes.
Format: the "Encoding" page of the Protocol Buffers documentation; field numbers from onnx.proto.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from tc.errors import ModelError

# Message -> field number -> message of that field. Only the ways that lead to tensors.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
}
_RAW_DATA = 9
_EXTERNAL_DATA = 13
_DATA_LOCATION = 14
_BYTES = 2
_MIN_BYTES = 256
_MAX_DEPTH = 64


@dataclass(frozen=True)
class SplitModel:
    """A serialized model whose large tensors are external data at `location`, which means: in `data`."""

    proto: bytes
    location: str
    data: memoryview


def split_tensors(data: memoryview) -> SplitModel:
    """Leave the large tensors of a serialized model where they are. Raises ModelError for bytes that are no message."""
    location = f"in-model-{secrets.token_hex(8)}"
    parts = list(_rewrite(data, 0, len(data), "model", location, 0))
    return SplitModel(b"".join(parts), location, data)


def _rewrite(
    data: memoryview, start: int, end: int, message: str, location: str, depth: int
) -> Iterator[bytes | memoryview]:
    """The bytes of the message at data[start:end], its large tensors replaced by references."""
    if depth > _MAX_DEPTH:
        raise ModelError("the model is nested too deeply", code="TC1032")
    if message == "tensor":
        yield from _rewrite_tensor(data, start, end, location)
        return
    known = _FIELDS.get(message, {})
    position = kept = start
    while position < end:
        field_start = position
        key, position = _varint(data, position, end)
        number, wire_type = key >> 3, key & 7
        content, position = _skip(data, position, end, wire_type)
        if wire_type != _BYTES:
            continue
        if number in known and position - content >= _MIN_BYTES:  # what is smaller holds nothing large
            inner = list(_rewrite(data, content, position, known[number], location, depth + 1))
            if len(inner) == 1 and len(inner[0]) == position - content:
                continue  # nothing was cut out
            yield data[kept:field_start]
            yield _key(number, _BYTES) + _encode(sum(map(len, inner)))
            yield from inner
            kept = position
    yield data[kept:end]


def _rewrite_tensor(data: memoryview, start: int, end: int, location: str) -> Iterator[bytes | memoryview]:
    """A tensor without its raw data, if that is large and not external data anyway.

    The reference stands behind all other fields: of a field that occurs twice the last one counts, and many writers state the
    location that a tensor has by default.
    """
    position = kept = start
    parts: list[bytes | memoryview] = []
    place: tuple[int, int] | None = None
    is_external = False
    while position < end:
        field_start = position
        key, position = _varint(data, position, end)
        number, wire_type = key >> 3, key & 7
        content, position = _skip(data, position, end, wire_type)
        if number == _RAW_DATA and wire_type == _BYTES and position - content >= _MIN_BYTES:
            parts.append(data[kept:field_start])
            place, kept = (content, position - content), position
        elif number == _DATA_LOCATION and wire_type == 0:
            is_external = _varint(data, content, end)[0] == 1
    if place is None or is_external:
        yield data[start:end]
        return
    yield from (*parts, data[kept:end], _reference(location, *place))


def _reference(location: str, offset: int, length: int) -> bytes:
    entries = (("location", location), ("offset", str(offset)), ("length", str(length)))
    fields = b"".join(
        _delimited(_EXTERNAL_DATA, _delimited(1, key.encode()) + _delimited(2, value.encode()))
        for key, value in entries
    )
    return fields + _key(_DATA_LOCATION, 0) + _encode(1)


def _delimited(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _encode(len(content)) + content


def _key(number: int, wire_type: int) -> bytes:
    return _encode(number << 3 | wire_type)


def _encode(value: int) -> bytes:
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """The variable-length integer at `position`, and where it ends."""
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ModelError("this is not an ONNX model: a number runs over the end of its message", code="TC1003")


def _skip(data: memoryview, position: int, end: int, wire_type: int) -> tuple[int, int]:
    """Where the content of a field starts and ends; `position` is behind its key."""
    start = position
    match wire_type:
        case 0:
            position = _varint(data, position, end)[1]
        case 1:
            position += 8
        case 2:
            length, start = _varint(data, position, end)
            position = start + length
        case 5:
            position += 4
        case _:
            raise ModelError(f"this is not an ONNX model: unknown wire type {wire_type}", code="TC1003")
    if position > end:
        raise ModelError("the model ends in the middle of a field: the file is truncated, or it is not ONNX", code="TC1003")
    return start, position
