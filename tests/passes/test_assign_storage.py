"""Places in the arena: for all values of the dims, memory that is needed at the same time does not overlap."""

from __future__ import annotations

import random

import pytest

from tc.ir.arith import Facts, evaluate
from tc.ir.dtype import DType, bool_, f32, i64
from tc.ir.expr import Expr, Var, const, mul
from tc.ir.types import TensorType
from tc.passes.graph.assign_storage import (
    ALIGNMENT,
    StorageLayout,
    StorageRegion,
    align,
    assign_offsets,
    place_by_classes,
    place_by_slots,
    region_of_type,
    samples_of,
)

N, H, W = Var("n"), Var("h"), Var("w")
HALF = (H + 1) // 2
UNITS = (const(1), N, N * H, N * H * W, N * HALF * W, N * HALF, H * H * N, (W + 1) // 2 * HALF * N, H * N + W)
FACTS = Facts().with_bounds(N, 1, 8).with_bounds(H, 0, None).with_bounds(W, 1, None)


def random_regions(rng: random.Random) -> list[StorageRegion]:
    regions = []
    for _ in range(rng.randint(1, 40)):
        start = rng.randint(0, 30)
        count = rng.choice([1, 4, 36, *(ALIGNMENT * k for k in (1, 2, 3, 8, 10, 64))])
        regions.append(StorageRegion(count, rng.choice(UNITS), start, start + rng.choice([0, 1, 1, 2, 3, 20])))
    return regions


def assert_disjoint(layout: StorageLayout, regions: list[StorageRegion], env: dict[Var, int]) -> None:
    total = evaluate(layout.total, env)
    places = [(evaluate(layout.offsets[r], env), evaluate(r.size_bytes, env), r) for r in regions]
    for k, (start, size, region) in enumerate(places):
        assert start % ALIGNMENT == 0 and 0 <= start and start + size <= total
        for other_start, other_size, other in places[:k]:
            if region.meets(other) and size and other_size:
                assert start + size <= other_start or other_start + other_size <= start, (region, other, env)


@pytest.mark.parametrize("seed", range(40))
def test_what_lives_together_never_overlaps(seed: int) -> None:
    rng = random.Random(seed)
    regions = random_regions(rng)
    exact = [(r.count, r.unit) for r in regions]
    align(regions)
    samples = samples_of([r.unit for r in regions], FACTS)
    layouts = [place_by_classes(regions, FACTS), place_by_slots(regions, FACTS, samples)]

    for _ in range(10):
        env = {N: rng.randint(1, 8), H: rng.choice([0, 1, 2, 7, 100]), W: rng.choice([1, 2, 3, 50])}
        for layout in layouts:
            assert_disjoint(layout, regions, env)
        for (count, unit), region in zip(exact, regions, strict=True):
            assert evaluate(mul(unit, const(count)), env) <= evaluate(region.size_bytes, env)


@pytest.mark.parametrize("dtype", [f32, bool_, i64])
def test_elements_of_symbolic_dims_alone_take_no_more_than_they_are(dtype: DType) -> None:
    region = region_of_type(TensorType((N, H), dtype), 0, 1)

    assert peak([region], FACTS, {N: 8, H: 100_000}) < 1.01 * 800_000 * dtype.size_bytes


def test_a_small_region_beside_large_ones_of_its_unit_is_counted_as_they_are() -> None:
    small, large = region_of_type(TensorType((N, const(10)), f32), 0, 2), region_of_type(TensorType((N, const(128)), f32), 0, 1)

    assert str(assign_offsets([small, large], FACTS)) == "n * 576"


def peak(regions: list[StorageRegion], facts: Facts, env: dict[Var, int]) -> int:
    return evaluate(assign_offsets(regions, facts), env)


def test_sizes_that_do_not_compare_share_memory_as_a_maximum() -> None:
    regions = [StorageRegion(64, N * H, 0, 1), StorageRegion(64, N * W, 2, 3)]

    for env in ({N: 2, H: 3, W: 100}, {N: 2, H: 100, W: 3}):
        assert peak(regions, FACTS, env) == 64 * 2 * 100


def test_a_size_that_is_proven_to_fit_leaves_no_maximum() -> None:
    whole, half = StorageRegion(64, N * H * W, 0, 1), StorageRegion(64, N * HALF * W, 2, 3)
    facts = FACTS.with_bounds(H, 1, None)

    total: Expr = assign_offsets([whole, half], facts)

    assert str(total) == str(assign_offsets([StorageRegion(64, N * H * W, 0, 1)], facts))


def test_two_that_live_in_the_place_of_one() -> None:
    """A pyramid: a large value, then two of half its size together, of a unit that is proven to be smaller."""
    facts = FACTS.with_bounds(H, 1, None)
    regions = [StorageRegion(256, N * H * W, 0, 1), StorageRegion(128, N * HALF * W, 2, 4), StorageRegion(128, N * HALF * W, 3, 5)]

    env = {N: 1, H: 9, W: 5}
    assert peak(regions, facts, env) == 256 * 45
    assert_disjoint(StorageLayout({r: r.offset for r in regions}, const(256) * N * H * W), regions, env)


def test_static_regions_are_packed_into_gaps() -> None:
    regions = [StorageRegion(256, const(1), 0, 2), StorageRegion(128, const(1), 1, 3), StorageRegion(256, const(1), 3, 4)]

    assert peak(regions, Facts(), {}) == 384
