"""Hashes of large data: every byte, its place and the length count; files are read whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tc.errors import ModelError
from tc.runtime.digest import CHUNK_BYTES, digest_of, digest_of_calls, read_with_digest, write_with_digest

SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 17]


def some_bytes(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_the_hash_is_the_documented_tree(size: int) -> None:
    data = some_bytes(size)
    leaves = [hashlib.sha256(data[i : i + CHUNK_BYTES]).digest() for i in range(0, size, CHUNK_BYTES)]

    assert digest_of(data) == hashlib.sha256(size.to_bytes(8, "little") + b"".join(leaves)).digest()
    assert digest_of(memoryview(data)) == digest_of(data)


@pytest.mark.parametrize("place", [0, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 5])
def test_one_bit_makes_another_hash(place: int) -> None:
    data = bytearray(some_bytes(2 * CHUNK_BYTES + 6))
    before = digest_of(bytes(data))
    data[place] ^= 0x80

    assert digest_of(bytes(data)) != before


def test_swapped_pieces_and_longer_data_make_other_hashes() -> None:
    first, second = some_bytes(CHUNK_BYTES), some_bytes(CHUNK_BYTES + 1)[:CHUNK_BYTES]

    assert len({digest_of(d) for d in (first, second, first + second, second + first, first + b"\0", b"", b"\0")}) == 7


@pytest.mark.parametrize("start", [0, 60])
@pytest.mark.parametrize("size", SIZES)
def test_a_file_is_read_and_hashed_at_once(tmp_path: Path, size: int, start: int) -> None:
    data = some_bytes(size)
    path = tmp_path / "file"
    path.write_bytes(b"x" * start + data)
    room = bytearray(size)

    with path.open("rb") as file:
        assert read_with_digest(file, start, memoryview(room)) == digest_of(data)
    assert room == data


def test_a_file_that_ends_early_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(some_bytes(CHUNK_BYTES + 3))

    with path.open("rb") as file, pytest.raises(ModelError, match="ends too early"):
        read_with_digest(file, 0, memoryview(bytearray(CHUNK_BYTES + 4)))


@pytest.mark.parametrize("start", [0, 60])
@pytest.mark.parametrize(
    "sizes", [[], [0], [5], [CHUNK_BYTES], [0, 3, 0, 0, CHUNK_BYTES - 3, 1, 0], [7, 2 * CHUNK_BYTES + 1, 0, 64, CHUNK_BYTES]]
)
def test_pieces_are_written_one_after_the_other_and_hashed_at_once(tmp_path: Path, sizes: list[int], start: int) -> None:
    pieces = [some_bytes(size + k)[:size] for k, size in enumerate(sizes)]
    whole = b"".join(pieces)

    with (tmp_path / "file").open("wb") as file:
        found = write_with_digest(file, start, [memoryview(piece) if k % 2 else piece for k, piece in enumerate(pieces)])

    assert found == digest_of(whole)
    assert (tmp_path / "file").read_bytes()[start:] == whole


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_what_cannot_be_written_is_said() -> None:
    with Path("/dev/full").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        write_with_digest(file, 0, [some_bytes(3 * CHUNK_BYTES)])


def test_inputs_of_calls_are_known_by_their_names_types_shapes_numbers_and_order() -> None:
    a, b = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    different = [
        [], [{}], [{"x": a}], [{"x": b}], [{"y": a}], [{"x": a}, {"x": b}], [{"x": b}, {"x": a}], [{"x": a, "y": b}], [{"x": b, "y": a}],
        [{"x": a}, {"y": b}], [{"x": a.T}], [{"x": a.view(np.int32)}],
    ]  # fmt: skip

    assert len({digest_of_calls(calls) for calls in different}) == len(different)
    assert digest_of_calls([{"x": a, "y": b}]) == digest_of_calls([{"y": b.copy(), "x": np.asfortranarray(a)}])
