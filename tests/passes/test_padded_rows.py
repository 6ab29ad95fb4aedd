"""Pads that repeat elements: rows are copied in vectors, and their ends, which alone choose, apart."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.ir.dtype import i64
from tc.ir.expr import Load, Max, Min, Select
from tc.ir.loop import For, LoopKind, PrimFunc
from tc.ir.node import walk
from tc.ir.parser import parse_module
from tc.ir.uses import variables
from tests.frontend.models import make_model, node

SHAPES = [((4000,), (3, 5)), ((40, 333), (0, 4, 0, 2)), ((2, 30, 100), (0, 0, 3, 0, 0, 7))]


def padded(mode: str, dims: list[object], pads: tuple[int, ...]) -> tc.Module:
    """A model that pads what it is given."""
    return tc.compile(make_model([node("Pad", "x p", "y", mode=mode)], {"x": (np.float32, dims)}, ["y"], {"p": np.array(pads)}), threads=1)


def loops_that_gather(func: PrimFunc) -> list[For]:
    """Loops over vectors in which the place to read is one of two."""
    vectors = [loop for loop in walk(func.body) if isinstance(loop, For) and loop.kind is LoopKind.VECTORIZED]
    indices = [(loop, index) for loop in vectors for load in walk(loop) if isinstance(load, Load) for index in load.indices]
    chosen = [(loop, each) for loop, index in indices for each in walk(index) if isinstance(each, (Max, Min, Select)) and each.dtype == i64]
    return [loop for loop, each in chosen if loop.var in variables(each)]


@pytest.mark.parametrize("mode", ["wrap", "reflect", "edge"])
@pytest.mark.parametrize(("shape", "pads"), SHAPES)
def test_no_vector_chooses_where_it_reads(mode: str, shape: tuple[int, ...], pads: tuple[int, ...]) -> None:
    model = make_model([node("Pad", "x p", "y", mode=mode)], {"x": (np.float32, list(shape))}, ["y"], {"p": np.array(pads)})
    (func,) = parse_module(tc.lower(model, stage="final", target="x86-64-v4").as_text()).prim_funcs
    assert not loops_that_gather(func)


@pytest.mark.parametrize("mode", ["wrap", "reflect", "edge"])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_rows_of_any_length(seed: int, symbolic: bool, mode: str) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    shape = [int(rng.choice([1, 2, 7, 16, 33, 150])) for _ in range(rank)]
    most = [dim - 1 if mode == "reflect" else dim for dim in shape]
    pads = [int(rng.integers(0, min(each, 40) + 1)) for each in most * 2]
    module = padded(mode, [f"d{k}" for k in range(rank)] if symbolic else list(shape), tuple(pads))
    x = rng.standard_normal(shape).astype(np.float32)
    want = np.pad(x, list(zip(pads[:rank], pads[rank:], strict=True)), mode=mode)  # type: ignore[call-overload]
    np.testing.assert_array_equal(module(x), want)
