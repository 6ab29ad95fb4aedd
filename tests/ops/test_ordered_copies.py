"""Copies of literals in the order of memory."""

from __future__ import annotations

import numpy as np
import pytest

from tc.ops import arrays
from tc.ops.arrays import ALIGNMENT, LARGE_BYTES, PART_BYTES, contiguous, turned


@pytest.mark.parametrize("shape", [(700, 900), (3, 1200, 130), (65, 33, 7, 31), (1, 300_000), (5, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float64])
def test_copies_are_those_of_numpy_whatever_the_order_of_axes(shape: tuple[int, ...], dtype: type) -> None:
    array = np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)
    for axes in (tuple(reversed(range(len(shape)))), (*range(1, len(shape)), 0), tuple(range(len(shape)))):
        given = array.transpose(axes)
        for made in (contiguous(given), turned(given)):
            assert made.flags.c_contiguous and made.shape == given.shape
            np.testing.assert_array_equal(made, given)


def test_strides_that_run_backwards_or_stand_still_are_walked_as_well() -> None:
    array = np.arange(900 * 700, dtype=np.float32).reshape(900, 700)
    for given in (array[::-1, ::2].T, np.broadcast_to(array[:, :1], (900, 700)).T, array[:, ::-1]):
        np.testing.assert_array_equal(contiguous(given), given.copy())


def test_a_large_copy_is_aligned_and_nobody_changes_it_and_what_is_in_order_is_not_copied() -> None:
    array = np.ones((LARGE_BYTES // 16, 8), np.float32)

    copy = contiguous(array.T)

    assert copy.ctypes.data % ALIGNMENT == 0
    assert not copy.flags.writeable and not copy.base.flags.writeable  # type: ignore[union-attr]
    assert np.shares_memory(contiguous(array), array) and array.flags.writeable
    assert turned(array.T).flags.writeable and not np.shares_memory(turned(array), array)


@pytest.mark.parametrize("cpus", [1, 2, 3, 64])
@pytest.mark.parametrize(("count", "size_bytes"), [(0, 0), (1, 1 << 30), (5, 1 << 30), (1000, PART_BYTES * 7), (1000, 10)])
def test_parts_are_all_of_a_range_each_once(monkeypatch: pytest.MonkeyPatch, cpus: int, count: int, size_bytes: int) -> None:
    monkeypatch.setattr(arrays, "available_cpus", lambda: cpus)
    done: list[int] = []

    arrays.in_parts(count, size_bytes, lambda start, stop: done.extend(range(start, stop)))

    assert sorted(done) == list(range(count))


def test_what_goes_wrong_in_a_part_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "available_cpus", lambda: 3)

    def fail_at_last(start: int, stop: int) -> None:
        if stop == 30:
            raise ValueError("the last part")

    with pytest.raises(ValueError, match="the last part"):
        arrays.in_parts(30, 1 << 30, fail_at_last)
