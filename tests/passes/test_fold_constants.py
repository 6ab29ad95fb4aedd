"""Literals that are folded."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tc
from tc.compiler import run_stages
from tc.ir.graph import Call, TensorConst, atoms_of
from tc.target import native_target
from tests.frontend.models import run_onnxruntime
from tests.test_corner_shapes import model


def test_a_large_literal_is_turned_without_a_copy_and_the_model_gives_the_same() -> None:
    """Each weight of a model that multiplies by a transpose was copied once more than it was packed."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((700, 600)).astype(np.float32)
    text = "g (float[5,600] x) => (float[5,700] y, float[600,700] t) { t = Transpose<perm=[1, 0]>(w) y = MatMul(x, t) }"
    made = model(text, w=w)

    stages = run_stages(made, native_target())
    x = rng.standard_normal((5, 600)).astype(np.float32)
    y, t = tc.compile(made)(x)

    assert not any(isinstance(b.value, Call) and b.value.op == "transpose" for b in stages.graph.main.bindings)
    literals = [atom.value for atom in stages.graph.main.results if isinstance(atom, TensorConst)]
    assert [literal.shape for literal in literals] == [(600, 700)] and not literals[0].flags.c_contiguous
    np.testing.assert_array_equal(t, w.T)
    np.testing.assert_allclose(y, x @ w.T, rtol=1e-4, atol=1e-4)


def kernels(made: onnx.ModelProto, *inputs: np.ndarray) -> list[str]:
    """The kernels of a model whose results are onnxruntime's."""
    arrays = dict(zip([given.name for given in made.graph.input], inputs, strict=True))
    expected = run_onnxruntime(made, arrays)
    module = tc.compile(made, threads=1)
    for found, wanted in zip(module.run(arrays).values(), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    return [kernel.name for kernel in module.report().kernels]


def test_what_is_small_again_is_folded_through_what_is_too_large(rng: np.random.Generator) -> None:
    """Indices that are expanded before a literal is gathered from or scattered into: the results are as large as the literal."""
    w, rows = rng.standard_normal((300, 200, 3)).astype(np.float32), np.arange(300)[:, None]
    added = rng.standard_normal((300, 200)).astype(np.float32)
    text = """g (float[300,200,3] x) => (float[300,200,3] y, float[300,200] t) {
        all = Expand (rows, size)  more = Expand (columns, size)
        place = Unsqueeze (all, last)  other = Unsqueeze (more, last)  index = Concat <axis=-1> (place, other)  t = GatherND (first, index)
        last3 = Expand (two, three)  whole = Concat <axis=-1> (place, other, last3)
        v = ScatterND (w, whole, added)  y = Add (v, x)
    }"""
    columns = rng.integers(0, 200, (1, 200))
    made = model(
        text, w=w, added=added, first=w[..., 0].copy(), rows=rows, columns=columns, size=np.array([300, 200]), last=np.array([-1]),
        two=np.array([[[2]]]), three=np.array([300, 200, 1]),
    )  # fmt: skip

    assert kernels(made, rng.standard_normal((300, 200, 3)).astype(np.float32)) == ["add"]


def test_what_stays_too_large_is_computed_when_the_model_runs(rng: np.random.Generator) -> None:
    text = "g (float[1] x) => (float[3000,400] y) { a = Expand (w, size)  b = Mul (a, a)  c = Sqrt (b)  y = Add (c, x) }"
    made = model(text, w=np.abs(rng.standard_normal((1, 400))).astype(np.float32), size=np.array([3000, 400]))

    main = run_stages(made, native_target()).graph.main
    literals = [atom.value for binding in main.bindings for atom in atoms_of(binding.value) if isinstance(atom, TensorConst)]

    assert literals and max(literal.nbytes for literal in literals) <= 64 << 10
    assert len(kernels(made, np.float32([1]))) == 1


@pytest.mark.parametrize("steps", [3, 400])
def test_a_chain_of_what_is_too_large_ends(steps: int) -> None:
    """Chains of any length are left to the machine."""
    chain = "".join(f"a{k + 1} = Neg (a{k})  " for k in range(steps))
    made = model(
        f"g (float[1] x) => (float[1,1] y) {{ a0 = Expand (w, size)  {chain} s = ReduceMax <keepdims=1> (a{steps})  y = Add (s, x) }}",
        w=np.zeros((1, 400), np.float32), size=np.array([3000, 400]),
    )  # fmt: skip

    kernels(made, np.float32([1]))


def test_an_index_out_of_range_in_a_branch_that_is_not_taken(rng: np.random.Generator) -> None:
    text = """g (bool c, float[300,20] x) => (float[300,20] y) {
        y = If (c) <then_branch = then () => (float[300,20] a) {
            many = Expand (row, size)  index = Unsqueeze (many, last)  v = ScatterND (w, index, w)  a = Add (v, x)
        }, else_branch = other () => (float[300,20] b) { b = Identity (x) }>
    }"""
    w = rng.standard_normal((300, 20)).astype(np.float32)
    made = model(text, w=w, row=np.array([300]), size=np.array([300]), last=np.array([-1]))
    x = rng.standard_normal((300, 20)).astype(np.float32)

    module = tc.compile(made, threads=1)

    np.testing.assert_array_equal(module(np.array(False), x), x)
    with pytest.raises(tc.TcError, match="out of range"):
        module(np.array(True), x)
