"""Linear maps over bits, against enumeration of all their inputs."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from tc.errors import ParseError, ScheduleError, ShapeError
from tc.ir.arith import evaluate, simplify
from tc.ir.bit_layout import BitLayout, identity, layout, parse_layout, row_major
from tc.ir.expr import Var
from tc.ir.node import substitute

ACCUMULATOR = layout(
    {"row": 16, "column": 8}, register=[(0, 1), (8, 0)], lane=[(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)]
)
SWIZZLED = layout({"offset": 4096}, row=[64 + 8, 128 + 16, 256 + 32, 512, 1024, 2048], column=[1, 2, 4, 8, 16, 32])


def random_layout(rng: random.Random, inputs: dict[str, int], outputs: dict[str, int]) -> BitLayout:
    """Any linear map between dims of these numbers of bits, often with bits that are moved alone."""

    def image() -> tuple[int, ...]:
        if rng.random() < 0.5:
            return tuple(rng.randrange(1 << bits) for bits in outputs.values())
        chosen = rng.randrange(len(outputs))
        return tuple((1 << rng.randrange(bits)) % (1 << bits) if k == chosen and bits else 0 for k, bits in enumerate(outputs.values()))

    return layout(
        {name: 1 << bits for name, bits in outputs.items()},
        **{name: [image() for _ in range(bits)] for name, bits in inputs.items()},
    )


def random_invertible(rng: random.Random) -> BitLayout:
    while True:
        found = random_layout(rng, {"register": 2, "lane": 3, "warp": 1}, {"row": 4, "column": 2})
        if found.is_invertible:
            return found


def points_of(dims: tuple[tuple[str, int], ...]) -> list[dict[str, int]]:
    return [dict(zip(dict(dims), values)) for values in product(*(range(size) for _, size in dims))]


def table_of(mapped: BitLayout) -> dict[tuple[int, ...], tuple[int, ...]]:
    return {tuple(point.values()): mapped(**point) for point in points_of(mapped.inputs)}  # type: ignore[misc]


def variables(mapped: BitLayout) -> dict[str, Var]:
    return {name: Var(name) for name, _ in mapped.inputs}


def test_index_expressions_of_an_accumulator_are_those_of_the_manual() -> None:
    inverse = ACCUMULATOR.inverse()

    row, column = ACCUMULATOR.exprs(**variables(ACCUMULATOR))
    register, lane = inverse.exprs(**variables(inverse))

    assert str(row) == "register // 2 * 8 + lane // 4"
    assert str(column) == "lane % 4 * 2 + register % 2"
    assert str(register) == "row // 8 * 2 + column % 2"
    assert str(lane) == "row % 8 * 4 + column // 2"


def test_bits_that_meet_are_an_exclusive_or() -> None:
    (offset,) = SWIZZLED.exprs(**variables(SWIZZLED))

    assert str(offset) == "row * 64 + bit_xor(column // 8, row % 8) * 8 + column % 8"


@pytest.mark.parametrize("mapped", [ACCUMULATOR, SWIZZLED, *(random_invertible(random.Random(seed)) for seed in range(40))], ids=str)
def test_the_expressions_of_an_inverse_undo_those_of_the_layout(mapped: BitLayout) -> None:
    inverse = mapped.inverse()
    here, there = variables(mapped), variables(inverse)
    facts = inverse.facts(mapped.facts(**here), **there)
    forward = dict(zip(there.values(), mapped.exprs(**here), strict=True))
    backward = dict(zip(here.values(), inverse.exprs(**there), strict=True))

    for var, expr in backward.items():
        assert simplify(substitute(expr, forward), facts) is var
    for var, expr in forward.items():
        assert simplify(substitute(expr, backward), facts) is var


@pytest.mark.parametrize("seed", range(30))
def test_numbers_arrays_and_expressions_agree(seed: int) -> None:
    rng = random.Random(seed)
    mapped = random_layout(rng, {"a": rng.randrange(4), "b": 3}, {"x": 3, "y": rng.randrange(3)})
    names = variables(mapped)
    exprs = mapped.exprs(**names)
    points = points_of(mapped.inputs)

    arrays = mapped(**{name: np.array([point[name] for point in points]) for name in names})

    for number, point in enumerate(points):
        values = mapped(**point)
        assert values == tuple(evaluate(expr, {names[name]: value for name, value in point.items()}) for expr in exprs)
        assert values == tuple(int(np.broadcast_to(array, len(points))[number]) for array in arrays)


@pytest.mark.parametrize("seed", range(30))
def test_composition_and_blocks_are_those_of_the_maps(seed: int) -> None:
    rng = random.Random(seed)
    first = random_layout(rng, {"a": 2, "b": 2}, {"x": 2, "y": 3})
    second = random_layout(rng, {"y": 3, "x": 2}, {"u": 3})
    blocks = random_layout(rng, {"b": 1, "c": 2}, {"z": 1, "y": 2})

    both, tiled = first.then(second), first * blocks

    for point in points_of(first.inputs):
        x, y = first(**point)
        assert both(**point) == second(x=x, y=y)
    assert tiled.inputs == (("a", 4), ("b", 8), ("c", 4))
    assert tiled.outputs == (("x", 4), ("y", 32), ("z", 2))
    for point in points_of(tiled.inputs):
        x, y = first(a=point["a"], b=point["b"] % 4)
        z, block = blocks(b=point["b"] // 4, c=point["c"])
        assert tiled(**point) == (x, y + 8 * block, z)


@pytest.mark.parametrize("seed", range(60))
def test_inverses_and_duplicates_are_those_of_the_table(seed: int) -> None:
    rng = random.Random(seed)
    mapped = random_layout(rng, {"a": rng.randrange(4), "b": 2}, {"x": rng.randrange(3), "y": 1})
    table = table_of(mapped)
    reached = len(set(table.values()))
    size = dict(mapped.outputs)["x"] * 2

    assert mapped.is_injective == (reached == len(table))
    assert mapped.is_surjective == (reached == size)
    assert len(table) == reached << len(mapped.duplicates())
    assert all(mapped(**point) == (0, 0) and any(point.values()) for point in mapped.duplicates())
    if mapped.is_surjective:
        there = mapped.right_inverse()
        assert there.then(mapped) == identity(**dict(mapped.outputs))
    else:
        with pytest.raises(ScheduleError, match="does not reach all of x of"):
            mapped.right_inverse()
    if mapped.is_invertible:
        assert mapped.then(mapped.inverse()) == identity(**dict(mapped.inputs))
    elif not mapped.is_injective:
        with pytest.raises(ScheduleError, match="held more than once"):
            mapped.inverse()


def test_of_elements_held_by_several_lanes_the_first_one_is_found() -> None:
    """Lanes 4, 8 and 16 hold what lane 0 does."""
    held = layout({"column": 8}, register=[1], lane=[2, 4, 0, 0, 0])

    inverse = held.right_inverse()

    assert [inverse(column=column) for column in range(8)] == [(column % 2, column // 2) for column in range(8)]
    assert held.duplicates() == ({"register": 0, "lane": 4}, {"register": 0, "lane": 8}, {"register": 0, "lane": 16})


def test_parts_of_a_layout() -> None:
    small = ACCUMULATOR.restrict(register=2)
    column = ACCUMULATOR.without("lane").only("column")
    renamed = ACCUMULATOR.rename(row="i", lane="thread")

    assert table_of(small) == {key: value for key, value in table_of(ACCUMULATOR).items() if key[0] < 2}
    assert table_of(column) == {(0,): (0,), (1,): (1,), (2,): (0,), (3,): (1,)}
    assert (renamed.inputs, renamed.outputs) == ((("register", 4), ("thread", 32)), (("i", 16), ("column", 8)))


def test_row_major_numbers_elements_as_arrays_do() -> None:
    numbered = row_major("offset", i=4, j=2, k=8)

    i, j, k = np.indices((4, 2, 8))

    assert np.array_equal(numbered(i=i, j=j, k=k)[0], np.arange(64).reshape(4, 2, 8))


@pytest.mark.parametrize("seed", range(40))
def test_contiguous_counts_what_follows_each_other_wherever_it_starts(seed: int) -> None:
    rng = random.Random(seed)
    mapped = random_layout(rng, {"a": 2, "b": 1}, {"x": 1, "y": 3})
    if rng.random() < 0.6:
        mapped = layout({"x": 2, "y": 8}, a=[(0, 1), (0, 2)], b=list(dict(mapped.images)["b"]))

    def follow(count: int) -> bool:
        starts = [(point, point["a"] // count * count) for point in points_of(mapped.inputs)]
        return all(
            mapped(**point) == tuple(v + (point["a"] - first) * k for k, v in enumerate(mapped(**{**point, "a": first})))
            and mapped(**{**point, "a": first})[1] % count == 0
            for point, first in starts
        )

    assert mapped.contiguous("a") == max(count for count in (1, 2, 4) if follow(count))


@pytest.mark.parametrize("seed", range(20))
def test_text_is_read_back(seed: int) -> None:
    rng = random.Random(seed)
    outputs = {name: rng.randrange(4) for name in "xyz"[: rng.randrange(4)]}
    mapped = random_layout(rng, {"a": rng.randrange(3), "b": 1}, outputs) if outputs else layout({}, a=[(), ()])

    assert parse_layout(str(mapped)) == mapped


def test_text_of_a_layout() -> None:
    text = "layout((row, 16), (column, 8), register=[(0, 1), (8, 0)], lane=[(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)])"

    assert str(ACCUMULATOR) == text
    assert str(row_major("offset", i=2, j=4)) == "layout((offset, 8), i=[4], j=[1, 2])"


@pytest.mark.parametrize(
    "text", ["", "layout", "layout(row=1)", "layout((row, x))", "layout((row, 4), a=[1.0])", "layout((row, 4), a=[True])", "f((row, 4))"]
)
def test_text_that_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="expected"):
        parse_layout(text)


def test_dims_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="row has 12 values, which is no power of two"):
        layout({"row": 12})
    with pytest.raises(ShapeError, match=r"an image of lane is \(4,\), which is not in row of 4"):
        layout({"row": 4}, lane=[4])
    with pytest.raises(ShapeError, match="cannot be mapped by a layout of"):
        ACCUMULATOR.then(SWIZZLED)
    with pytest.raises(ShapeError, match="lane is 32; it must be from 0 to 31"):
        ACCUMULATOR(lane=32)
    with pytest.raises(ShapeError, match="there is no input thread"):
        ACCUMULATOR(thread=0)
    with pytest.raises(ShapeError, match="that of two"):
        BitLayout((("row", 2), ("row", 2)))
