"""Loops of one iteration are replaced by their bodies, with all that depends on them."""

from __future__ import annotations

import numpy as np

from tc.interp import run_prim_func
from tc.ir.arith import simplify
from tc.ir.expr import const
from tc.ir.loop import Alloc, Store
from tc.ir.node import walk
from tc.ir.parser import parse_prim_func
from tc.ir.uses import buffers_read
from tc.ir.verify import verify
from tc.passes.loop.drop_unread import drop_unread
from tc.passes.loop.simplify_loops import simplify_loops

TEXT = """
@loops
def f(x: f32[4], y: f32[4]):
    outputs(1)
    for i in range(1):
        with alloc(f32[i + 4], scope='local') as T:
            for j in range(4):
                T[j] = x[j + i]
            for k in range(1):
                for j in range(4):
                    y[j + k] = T[j + i + k]
"""


def test_a_buffer_whose_size_depends_on_a_loop_of_one_iteration_stays_one() -> None:
    func = simplify_loops(parse_prim_func(TEXT))

    verify(func)
    (alloc,) = (node for node in walk(func.body) if isinstance(node, Alloc))
    first, last = (node for node in walk(func.body) if isinstance(node, Store))
    assert [simplify(dim) for dim in alloc.buffer.shape] == [const(4)]
    assert first.buffer is alloc.buffer
    assert buffers_read(last) == {alloc.buffer}
    assert str(last.indices) == "(j,)"


def test_a_sum_that_turns_out_to_have_no_terms_keeps_its_start() -> None:
    """Its loop was dropped, and with it the initialisation."""
    func = parse_prim_func("""
@loops
def f(x: f32[4], y: f32[4]):
    outputs(1)
    for i in range(4):
        for k in range(select(i < 4, 0, 3)):
            with block('y', vi=spatial(4, i), vk=reduction(select(i < 4, 0, 3), k)):
                with init():
                    y[vi] = 7.0
                y[vi] = y[vi] + x[vk]
""")

    (found,) = run_prim_func(simplify_loops(func), [np.ones(4, np.float32)])

    assert found.tolist() == [7.0] * 4


def test_what_a_block_stores_for_nobody_has_a_place() -> None:
    """The memory of its own that nothing reads was taken away, and its stores were left."""
    func = parse_prim_func("""
@loops
def f(x: f32[8], y: f32[8]):
    outputs(1)
    with block('y'):
        with alloc(f32[8], scope='local') as own:
            for i in range(8):
                own[i] = x[i]
                y[i] = x[i]
""")

    after = drop_unread(func)

    verify(after)
    np.testing.assert_array_equal(run_prim_func(after, [np.arange(8, dtype=np.float32)])[0], np.arange(8))
