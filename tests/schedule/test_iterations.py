"""Kernels of symbolic dims run few iterations where the dims are small: parts and vectors are sized for large ones."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np
import pytest

import tc
from tc.compiler import run_stages
from tc.interp.loops import compile_to_python
from tc.ir.arith import evaluate
from tc.ir.expr import FloorDiv, FloorMod, Load
from tc.ir.loop import For, LoopKind, PrimFunc
from tc.ir.node import walk
from tc.ir.uses import variables
from tc.target import Target
from tests.frontend.models import from_text

SUMS = {
    "all of four dims": ("float[n,5,8,m]", "3,0,2,1"),
    "the last of four dims": ("float[n,5,8,m]", "1,2,3"),
    "channels of images": ("float[n,c,h,w]", "0,2,3"),
    "channels of rows": ("float[n,c,m]", "0,2"),
    "all of a row": ("float[n]", "0"),
}


def kernels(text: str, opset: int) -> list[PrimFunc]:
    stages = run_stages(from_text(text, opset), Target.parse("x86-64-v3"))
    return [kernel.final for kernel in stages.kernels.values()]


def iterations(func: PrimFunc, size: int) -> int:
    """How many iterations of vectors and of parallel loops run when all dims are `size`, on zeros."""
    count = 0

    def counted(some: Iterable[int]) -> Iterable[int]:
        nonlocal count
        found = list(some)
        count += len(found)
        return found

    dims = dict.fromkeys(func.dims, size)
    sizes = [prod(int(evaluate(dim, dims)) for dim in buffer.shape) for buffer in func.buffers]
    lists = iter([[buffer.dtype.numpy.type(0)] * n for buffer, n in zip(func.buffers, sizes, strict=True)])
    compile_to_python(func, counted)(*(next(lists) if parameter in func.buffers else size for parameter in func.params))
    return count


@pytest.mark.parametrize("case", SUMS)
def test_a_sum_over_small_dims_takes_few_iterations(case: str) -> None:
    """It took 16,384 for each of a few rows."""
    kind, axes = SUMS[case]
    constant = f"int64[{axes.count(',') + 1}] a = {{{axes}}}"
    (func,) = kernels(f"g ({kind} x) => (float y) <{constant}> {{ r = ReduceSum (x, a) y = ReduceMax <keepdims=0> (r) }}", 18)[:1]

    assert iterations(func, 4) < 3000


def test_a_sum_of_gathered_terms_takes_few_iterations() -> None:
    (func,) = kernels("g (float[n,5] x, int64[n] t) => (float y) { y = NegativeLogLikelihoodLoss <reduction = \"sum\"> (x, t) }", 13)

    assert iterations(func, 4) < 3000


def test_terms_in_several_pieces_of_memory_are_not_found_by_division() -> None:
    (func,) = kernels("g (float[n,c,m] x) => (float[a] y) <int64[2] a = {0,2}> { y = ReduceSum <keepdims=0> (x, a) }", 18)

    lanes = {node.var for node in walk(func) if isinstance(node, For) and node.kind is LoopKind.VECTORIZED}
    loads = [node for node in walk(func) if isinstance(node, Load) and node.buffer is func.inputs[0]]
    divisions = [node for load in loads for node in walk(load) if isinstance(node, (FloorDiv, FloorMod))]
    assert loads
    assert not [node for node in divisions if variables(node.lhs) & lanes]


def test_reshapes_that_divide_by_unknown_numbers_are_views() -> None:
    """Each element of the normalization took six divisions, three times."""
    text = """g (float[n,8,h,w] x, float[2] s) => (float[a,b,c] y) <int64[3] i = {0,2,-1}>
        { t = Transpose <perm=[0,1,3,2]> (x) r = Reshape(t, i) y = InstanceNormalization(r, s, s) }"""

    assert [func.name for func in kernels(text, 18)] == ["transpose", "instance_norm"]


@pytest.mark.parametrize("shape", [(3, 7, 5, 4), (1, 1, 1, 1), (2, 6, 0, 3), (2, 9, 40, 1)])
def test_rows_that_lie_side_by_side_are_copied_at_once(shape: tuple[int, ...]) -> None:
    text = "g (float[n,k,h,w] x, int64[m] i) => (float[a,b,c,d] y) { y = Gather <axis=1> (x, i) }"
    (func,) = kernels(text, 13)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    chosen = np.arange(shape[1])[::-2].copy()

    np.testing.assert_array_equal(tc.compile(from_text(text, 13), threads=1)(x, chosen), x[:, chosen])
    assert iterations(func, 3) <= 3 + 9 + 2 * 3 * 3 * 8, "a vector for each of the rows"
