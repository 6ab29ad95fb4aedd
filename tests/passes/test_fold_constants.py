"""Literals that are folded."""

from __future__ import annotations

import numpy as np

import tc
from tc.compiler import run_stages
from tc.ir.graph import Call, TensorConst
from tc.target import native_target
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
