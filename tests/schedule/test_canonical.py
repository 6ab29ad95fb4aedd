"""Canonical names: equal programs become equal texts, and traces found for one replay on the other."""

from __future__ import annotations

import numpy as np
import pytest

from tc.autotune.search.space import Space
from tc.ir.expr import Var
from tc.ir.loop import For, PrimFunc
from tc.ir.node import Node, substitute, walk
from tc.ir.parser import parse_prim_func
from tc.ir.printer import print_ir
from tc.ir.structural import structural_equal, structural_hash
from tc.passes.pipeline import finish_loops
from tc.schedule.canonical import canonical_names
from tests.autotune.test_space import KERNELS, TARGET, kernel
from tests.ops.kernels import run


@pytest.mark.parametrize("name", KERNELS)
def test_the_meaning_stays(name: str) -> None:
    func, arrays = kernel(name)

    expected, found = (run(finish_loops(each), arrays) for each in (func, canonical_names(func)))

    np.testing.assert_array_equal(expected[0], found[0])


def renamed(func: PrimFunc) -> PrimFunc:
    """The same program with other names of loops."""
    names: dict[Node, Node] = {
        node.var: Var(f"other{k}", node.var.dtype) for k, node in enumerate(walk(func.body)) if isinstance(node, For)
    }
    return substitute(func, names)


@pytest.mark.parametrize("name", KERNELS)
def test_equal_programs_become_equal_texts(name: str) -> None:
    func, _ = kernel(name)

    canonical = canonical_names(func)

    assert structural_hash(canonical_names(canonical)) == structural_hash(canonical)
    assert print_ir(canonical_names(renamed(func))) == print_ir(canonical)
    assert print_ir(parse_prim_func(print_ir(canonical), name)) == print_ir(canonical)


@pytest.mark.parametrize("name", KERNELS)
def test_a_trace_replays_on_what_was_printed_and_read_again(name: str) -> None:
    func = canonical_names(kernel(name)[0])
    read = parse_prim_func(print_ir(func), name)
    candidate = Space({"": func}, TARGET).sample(np.random.default_rng(5))

    assert structural_equal(candidate.trace.apply(read), candidate.func)
    assert structural_equal(candidate.trace.apply(canonical_names(renamed(kernel(name)[0]))), candidate.func)
