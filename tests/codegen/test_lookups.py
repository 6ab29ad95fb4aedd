"""Tables of bytes: every entry, in every kind of vector, with and without permutations of bytes, and in what they fuse with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tc
from tc.ir.byte_table import PERMUTES_BYTES
from tc.ir.parser import parse_module
from tc.stages import lower
from tc.target import Target, native_target

LOOKUP = """
@graph
def main(x: {x}[{shape}], table: {entry}[256]):
    y: {entry}[{shape}] = lookup(x, table)
    return y
"""

NUMPY = {"u8": np.uint8, "i8": np.int8, "f32": np.float32}
WITHOUT = replace(native_target(), features=tuple(f for f in native_target().features if f != PERMUTES_BYTES))


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", [native_target(), WITHOUT], ids=["native", "without permutations"])
@pytest.mark.parametrize(("x", "entry"), [("u8", "u8"), ("i8", "i8"), ("u8", "i8"), ("i8", "f32")])
@pytest.mark.parametrize("shape", [(256,), (3, 67), (2, 5, 131), (1,), (0, 4)])
def test_each_byte_finds_its_entry(
    x: str, entry: str, shape: tuple[int, ...], target: Target, rng: np.random.Generator
) -> None:
    table = rng.integers(-100 if entry != "u8" else 0, 100, 256).astype(NUMPY[entry])
    numbers = np.resize(rng.permutation(256).astype(np.uint8), shape).view(NUMPY[x])
    module = tc.compile(
        parse_module(LOOKUP.format(x=x, entry=entry, shape=", ".join(map(str, shape)))), target, threads=1
    )

    found = module(numbers, table)

    assert np.array_equal(found, table[numbers.view(np.uint8)])


def test_vectors_are_as_wide_as_bytes_allow_where_they_are_permuted() -> None:
    has = Target.parse("x86-64-v4")
    has = replace(has, features=(*has.features, PERMUTES_BYTES))
    module = parse_module(LOOKUP.format(x="u8", entry="u8", shape="4096"))

    wide, narrow = (lower(module, "scheduled", target=target).as_text() for target in (has, Target.parse("x86-64-v4")))
    text = lower(module, "llvm", target=has).as_text()

    assert "vectorized(64)" in wide
    assert "vectorized(16)" in narrow
    assert text.count("call <64 x i8> @llvm.x86.avx512.vpermi2var.qi.512") % 2 == 0
    assert "vpermi2var" in text
    assert "masked.gather" not in text


BETWEEN = """
@graph
def main(x: u8[33, 70], w: u8[33, 70], table: u8[256]):
    a: u8[33, 70] = maximum(x, w)
    b: u8[33, 70] = lookup(a, table)
    c: u8[33, 70] = minimum(b, x)
    return c
"""


def test_a_table_is_looked_up_between_other_operators_of_a_kernel(rng: np.random.Generator) -> None:
    x, w = (rng.integers(0, 256, (33, 70)).astype(np.uint8) for _ in range(2))
    table = rng.permutation(256).astype(np.uint8)
    module = tc.compile(parse_module(BETWEEN), threads=1)

    assert len(module.report().kernels) == 1
    assert np.array_equal(module(x, w, table), np.minimum(table[np.maximum(x, w)], x))


GATHER = """
@graph
def main(table: {entry}[256], x: u8[3, 67]):
    y: {entry}[3, 67] = gather(table, x, axis=0)
    return y
"""


@pytest.mark.parametrize("entry", ["bool", "f8e4m3fn", "u8"])
def test_what_is_gathered_by_bytes_is_of_any_narrow_type(entry: str, rng: np.random.Generator) -> None:
    module = parse_module(GATHER.format(entry=entry))
    (param, _) = module.main.params
    table = rng.integers(0, 2, 256).astype(param.type.dtype.numpy)
    x = rng.integers(0, 256, (3, 67)).astype(np.uint8)

    found = np.asarray(tc.compile(module, threads=1)(table, x))

    assert found.dtype == table.dtype
    assert np.array_equal(found.view(np.uint8), table[x].view(np.uint8))
