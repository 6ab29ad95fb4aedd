"""What is raised to tensor expressions is the program that was written."""

from __future__ import annotations

import numpy as np
import pytest

from tc.interp import run_prim_func
from tc.ir.arith import Facts
from tc.ir.loop import Block, PrimFunc, annotation
from tc.ir.node import walk
from tc.ir.parser import parse_module
from tc.ir.structural import first_difference
from tc.ops.registry import OPS
from tc.passes.raise_loops import NotRaised, raise_prim_func
from tc.te import create_prim_func, placeholder
from tests.ops.kernels import make_prim_func

OPAQUE = {
    *("cumsum", "cumprod", "scatter_elements", "scatter_nd", "topk", "count_nonzero", "nonzero_at"),
    *("kept_boxes", "box_rows", "transforms"),
    *("cumsum_parallel", "topk_parallel", "scatter_elements_parallel", "scatter_nd_parallel"),
    *("roi_align", "roi_max", "determinant", "equal_slices", "group_numbers", "walk_trees"),
}
"""Operators one stage of which writes its result in its own way, in an order, or as often as data say."""


def made_again(func: PrimFunc) -> PrimFunc:
    operands = [placeholder(buffer.shape, buffer.dtype, buffer.name) for buffer in func.inputs]
    return create_prim_func(func.name, operands, raise_prim_func(func, operands, func.dims, Facts()), func.dims, func.facts)


@pytest.mark.parametrize("name", sorted(name for name, op in OPS.items() if op.compute is not None and name not in OPAQUE))
def test_the_loops_of_operators_come_out_as_they_went_in(name: str) -> None:
    samples = list(OPS[name].samples(np.random.default_rng(7)))
    assert samples
    for arrays, attrs in samples:
        func = make_prim_func(OPS[name], arrays, attrs)
        again = made_again(func)

        given = [array for array in arrays if array is not None]
        if all(array.size for array in given):
            assert first_difference(func, again) is None
        else:  # sums of nothing have become literals
            for a, b in zip(run_prim_func(func, given), run_prim_func(again, given), strict=True):
                np.testing.assert_array_equal(a, b)


def reduction(start: str, update: str, notes: str = "") -> PrimFunc:
    module = parse_module(f"""
@loops
def f(A: f32[5, 6], C: f32[5]):
    outputs(1)
    for i in range(5):
        for k in range(6):
            with block('C', vi=spatial(5, i), vk=reduction(6, k)):
                {notes or "annotate()"}
                with init():
                    C[vi] = {start}
                C[vi] = {update}
""".replace("                annotate()\n", ""))
    return module.prim_funcs[0]


@pytest.mark.parametrize(
    ("start", "update", "notes", "monoid"),
    [
        ("0.0", "C[vi] + A[vi, vk]", "", "sum"),
        ("0.0", "A[vi, vk] + C[vi]", "", "sum"),
        ("0.0", "A[vi, vk] + C[vi]", "annotate(monoid='max')", "sum"),
        ("1.0", "C[vi] * A[vi, vk]", "", "prod"),
        ("f32('-inf')", "max(C[vi], A[vi, vk] * 2.0)", "", "max"),
        ("1.0", "C[vi] + A[vi, vk]", "annotate(monoid='sum')", None),
        ("0.0", "C[vi] * 2.0 + A[vi, vk]", "annotate(monoid='sum')", None),
        ("0.0", "C[vi] + A[vi, vk] * C[vi]", "annotate(monoid='sum')", None),
        ("0.0", "A[vi, vk] - C[vi]", "annotate(monoid='sum')", None),
    ],
)
def test_a_monoid_is_read_off_the_update_and_not_believed(start: str, update: str, notes: str, monoid: str | None) -> None:
    (block,) = [node for node in walk(made_again(reduction(start, update, notes)).body) if isinstance(node, Block)]

    assert annotation(block, "monoid") == monoid


def test_what_says_how_it_is_to_be_rounded_is_not_raised() -> None:
    func = parse_module("""
@loops
def f(A: f32[8], B: f32[8]):
    notes(numerics='strict')
    for i in range(8):
        B[i] = A[i] * 3.0 + 1.0
""").prim_funcs[0]

    with pytest.raises(NotRaised, match="it says numerics"):
        made_again(func)
