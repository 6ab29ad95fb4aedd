"""Whole models on an OpenCL device: the results of the CPU's module, whatever the sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tc
from tc.demo import MODEL_PATH, as_model_input, load_heldout
from tc.errors import InputError
from tests.opencl_driver import need_opencl

COUNTED = """<ir_version: 10, opset_import: ["" : 18]> g (float[1] x, bool c) => (float[1] y) {
    y = Loop ("", c, x) <body: graph = body (int64 i, bool go, float[1] v) => (bool next, float[1] w) {
        three = Constant <value: tensor = int64 t {3}> ()
        next = Less (i, three)
        w = Add (v, v)
    }>
}"""
need_opencl()


@pytest.fixture(scope="module")
def digits():
    return tc.compile(MODEL_PATH, target="opencl", verify="always")


def test_a_model_on_a_device_computes_what_it_computes_on_the_cpu(digits):
    images = as_model_input(load_heldout()[0])
    on_cpu = tc.compile(MODEL_PATH)

    for count in (20, 1, 0, 33):
        np.testing.assert_allclose(digits(images[:count]), on_cpu(images[:count]), rtol=1e-5, atol=1e-6)


def test_results_go_into_the_callers_arrays_which_may_lie_upon_inputs(digits):
    images = as_model_input(load_heldout()[0])[:3]
    expected, into = digits(images), np.empty((3, 10), np.float32)

    assert digits(images, out=into) is into
    assert np.array_equal(into, expected)


def test_a_saved_module_runs_on_the_device_again(digits, tmp_path):
    images = as_model_input(load_heldout()[0])[:5]

    digits.save(tmp_path / "digits.tcm")

    assert np.array_equal(tc.load(tmp_path / "digits.tcm")(images), digits(images))


def test_a_wrong_dtype_is_refused_as_on_the_cpu(digits):
    with pytest.raises(InputError, match="dtype is f64, but must be f32"):
        digits(as_model_input(load_heldout()[0])[:2].astype(np.float64))


def test_a_loop_whose_condition_stays_where_it_is_ends():
    """The driver refuses to copy something upon itself; the host then waited for a condition that nobody computed any more."""
    module = tc.compile(onnx.parser.parse_model(COUNTED), target="opencl")

    assert module.run({"x": np.ones(1, np.float32), "c": np.array(True)})["y"].tolist() == [16.0]


SPELT_OUT = """<ir_version: 10, opset_import: ["" : 18]>
g (float[b, s, 24] x, float[b, 1, 1, s] mask) => (float[b, s, 24] y)
<int64[4] heads = {0, 0, 3, 8}, int64[3] joined = {0, 0, 24}, float scale = {2.8}> {
    split = Reshape (x, heads)
    q = Transpose <perm = [0, 2, 1, 3]> (split)
    k = Transpose <perm = [0, 2, 3, 1]> (split)
    scores = MatMul (q, k)
    scaled = Div (scores, scale)
    masked = Add (scaled, mask)
    chances = Softmax <axis = -1> (masked)
    found = MatMul (chances, q)
    back = Transpose <perm = [0, 2, 1, 3]> (found)
    y = Reshape (back, joined)
}"""


def test_attention_that_a_model_spells_out_is_one_kernel():
    model = onnx.parser.parse_model(SPELT_OUT)
    module, on_cpu = tc.compile(model, target="opencl"), tc.compile(model)
    rng = np.random.default_rng(0)

    assert "tiled attention" in [kernel.rule for kernel in module.report().kernels]
    for batch, length in ((2, 19), (1, 40), (1, 1)):
        x = rng.standard_normal((batch, length, 24)).astype(np.float32)
        mask = np.where(rng.random((batch, 1, 1, length)) < 0.3, np.float32(-3e38), np.float32(0)).astype(np.float32)
        np.testing.assert_allclose(module(x, mask), on_cpu(x, mask), rtol=2e-5, atol=2e-6)
