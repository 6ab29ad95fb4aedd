"""Memory of literals and arrays: where it begins, and that what is in it stays."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from tc.errors import LimitError
from tc.ops.arrays import contiguous
from tc.runtime.memory import (
    ALIGNMENT,
    LEAST_OWN_BYTES,
    MOST_POPULATED_BYTES,
    Arena,
    data_address,
    place_constants,
    result_array,
)
from tc.runtime.results import ResultPool


class Tagged(np.ndarray):
    """A subclass with an attribute of its own."""

    tag = "x"


def arrays_of_all_kinds(folder: Path) -> list[np.ndarray]:
    plain = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    frozen = plain.copy()
    frozen.flags.writeable = False
    mapped = np.memmap(folder / "values", np.int16, "w+", shape=(7, 3))
    views = [plain[1:], plain[:, ::2], plain[::-1], plain.T, plain[1, 2, 3:], plain[3:], np.broadcast_to(plain[:1], (9, 4, 5))]
    others = [np.zeros(()), np.zeros((0, 4)), np.frombuffer(b"abcdefgh", np.uint8), np.array(["text"]), np.asfortranarray(plain)]
    return [plain, frozen, mapped, mapped[2:], *views, *others, plain.view(Tagged), np.zeros(3, [("a", "i4"), ("b", "f8")])]


def test_an_address_is_what_the_array_says(tmp_path: Path) -> None:
    for array in arrays_of_all_kinds(tmp_path):
        assert data_address(array) == array.__array_interface__["data"][0]


@pytest.mark.parametrize("sizes", [(1, 3, 70), (1 << 20, 5, 1 << 21)])
def test_literals_begin_at_cache_lines_and_keep_their_values(sizes: tuple[int, ...]) -> None:
    values = [np.arange(size, dtype=np.float32)[::-1] for size in sizes]

    placed = place_constants(values)

    for value, copy in zip(values, placed, strict=True):
        assert data_address(copy) % ALIGNMENT == 0
        np.testing.assert_array_equal(copy, value)


def test_memory_of_an_arena_outlives_it() -> None:
    values = Arena(4096).bytes().view(np.int64)
    values[...] = 7

    assert data_address(values) % ALIGNMENT == 0
    assert (values == 7).all() and values.size == 512


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (5, 1000), (3, 1 << 13)])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_, np.float64])
def test_results_are_arrays_like_any_other_and_aligned_where_large(shape: tuple[int, ...], dtype: type) -> None:
    array = result_array(shape, np.dtype(dtype))

    assert array.shape == shape and array.dtype == dtype
    assert array.flags.c_contiguous and array.flags.writeable
    assert array.nbytes < 1 << 14 or array.ctypes.data % ALIGNMENT == 0


def test_large_constants_that_nobody_changes_stay_where_they_are() -> None:
    """They were copied: half a gigabyte of them takes a second or two."""
    source = np.arange(LEAST_OWN_BYTES // 4, dtype=np.float32).reshape(-1, 64)
    kept, small = contiguous(source.T), np.ones(70_000, np.float64)[::2]
    writeable = kept.copy()

    placed = place_constants([kept, small, writeable, source])

    assert np.shares_memory(placed[0], kept)
    assert not any(np.shares_memory(made, given) for made, given in zip(placed[1:], (small, writeable, source), strict=True))
    assert all(data_address(made) % ALIGNMENT == 0 for made in placed)
    for made, given in zip(placed, (kept, small, writeable, source), strict=True):
        np.testing.assert_array_equal(made, given)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="how many pages are there is read from Linux' /proc")
def test_the_pages_of_an_arena_are_there_before_anything_is_written_and_some_behind_them() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    kept = []
    for size, expected in ((24 << 20, 24 << 20), (3, 64 << 10), (MOST_POPULATED_BYTES + 1, 64 << 10)):
        before = resident_bytes()
        arena = Arena(size)
        kept.append(arena)
        there = resident_bytes() - before

        assert expected * 3 // 4 < there < expected + (8 << 20)
        assert not arena.bytes()[:: 1 << 16].any()


@pytest.mark.parametrize("shape", [(2**61, 0), (0, 2**62, 3)])
def test_a_shape_that_numpy_has_no_array_of_is_told(shape: tuple[int, ...]) -> None:
    with pytest.raises(LimitError, match="there are no arrays"):
        result_array(shape, np.dtype(np.float32))
    with pytest.raises(LimitError, match="there are no arrays"):
        ResultPool().arrays([(shape, np.dtype(np.float32))], 1)
