"""Parts of a split that kernels of their own read are never stored; any other split is as it was."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

import tc
from tests.frontend.models import run_onnxruntime

HEAD = '<ir_version: 8, opset_import: ["" : 18]>'


def kernels(graph: str, *shapes: tuple[int, ...], literals: Mapping[str, np.ndarray] | None = None) -> list[str]:
    """The kernels of a model whose results are onnxruntime's, with 1 and 2 threads."""
    model = parse_model(f"{HEAD} {graph}")
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in (literals or {}).items())
    rng = np.random.default_rng(0)
    arrays = {info.name: rng.standard_normal(shape, dtype=np.float32) for info, shape in zip(model.graph.input, shapes, strict=True)}
    expected = run_onnxruntime(model, arrays)
    for threads in (1, 2):
        module = tc.compile(model, threads=threads)
        for found, wanted in zip(module.run(arrays).values(), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    return [kernel.name for kernel in module.report().kernels]


HEADS = """g (float[1, 37, 3, 2, 8] x) => (float[1, 1, 2, 37, 8] a, float[1, 2, 8, 37] b, float[1, 1, 37, 2, 8] c) {
    p, q, r = Split <axis = 2, num_outputs = 3> (x)
    a = Transpose <perm = [2, 0, 3, 1, 4]> (p)
    axis = Constant <value_ints = [2]> ()
    t = Squeeze (q, axis)
    b = Transpose <perm = [0, 2, 3, 1]> (t)
    u = Sigmoid (r)
    c = Transpose <perm = [0, 2, 1, 3, 4]> (u)
}"""


def test_each_part_is_read_where_the_whole_lies() -> None:
    names = kernels(HEADS, (1, 37, 3, 2, 8))

    assert len(names) == 3 and not any("split" in name for name in names)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_parts_of_uneven_sizes_of_a_symbolic_tensor(rows: int) -> None:
    graph = """g (float[n, 11] x) => (float[2, n] a, float[n, 1] b, float[8, n] c) {
        p, q, r = Split <axis = 1> (x, sizes)
        a = Transpose (p)
        b = Exp (q)
        s = Relu (r)
        c = Transpose (s)
    }"""
    names = kernels(graph, (rows, 11), literals={"sizes": np.array([2, 1, 8])})

    assert not any("split" in name for name in names)


def test_a_part_that_nobody_reads_is_not_made() -> None:
    graph = """g (float[6, 10] x) => (float[5, 6] a) {
        p, q = Split <axis = 1, num_outputs = 2> (x)
        a = Transpose (q)
    }"""
    assert len(kernels(graph, (6, 10))) == 1


@pytest.mark.parametrize(
    "rest",
    {
        "a part leaves": ("float[6, 5] q, float[5, 6] a", "a = Transpose (p)"),
        "a product reads a part": ("float[5, 6] a, float[6, 6] b", "a = Transpose (p)  b = MatMul (q, a)"),
        "a sum reads a part": ("float[5, 6] a, float[6] b", "a = Transpose (p)  b = ReduceSum <keepdims = 0> (q, last)"),
        "one reads both parts": ("float[6, 5] a", "s = Sigmoid (q)  a = Mul (p, s)"),
        "one reads both parts, another one of them": ("float[6, 5] a, float[5, 6] b", "a = Mul (p, q)  b = Transpose (q)"),
        "two read a part": ("float[6, 5] a, float[5, 6] b, float[6, 5] c", "a = Relu (p)  b = Transpose (q)  c = Exp (q)"),
        "an epilogue reads a part": ("float[6, 5] a, float[5, 6] b", "h = MatMul (x, w)  a = Add (h, p)  b = Transpose (q)"),
        "what gathers reads a part": ("float[4, 5] a, float[5, 6] b", "a = Gather (p, rows)  b = Transpose (q)"),
    }.items(),
    ids=lambda rest: rest[0],
)
def test_whoever_reads_them_results_are_right(rest: tuple[str, tuple[str, str]]) -> None:
    _, (results, nodes) = rest
    graph = f"g (float[6, 10] x) => ({results}) {{ p, q = Split <axis = 1, num_outputs = 2> (x) {nodes} }}"
    literals = {"w": np.linspace(-1, 1, 50, dtype=np.float32).reshape(10, 5), "rows": np.array([5, 0, 3, 3]), "last": np.array([1])}

    assert kernels(graph, (6, 10), literals={name: value for name, value in literals.items() if f" {name})" in nodes})


def test_what_is_made_wider_before_is_made_once_for_all_parts() -> None:
    """It was to be computed where it is read as well: in the group of the split that was there no more."""
    made = kernels(
        """g (float[3, 16, 10] x) => (float[3, 4, 10] a, float[3, 12, 10] b) {
        q = Cast <to = 3> (x)
        d = Cast <to = 1> (q)
        sizes = Constant <value_ints = [4, 12]> ()
        p, r = Split <axis = 1> (d, sizes)
        a = Neg (p)
        b = Relu (r)
        }""",
        (3, 16, 10),
    )

    assert made == ["cast_cast", "slice_neg", "slice_relu"]
