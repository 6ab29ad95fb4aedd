"""Scan of opset 8: every batch is scanned by itself. onnxruntime has no such Scan any more; numpy says what is right."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

import tc
from tc.errors import ShapeError, UnsupportedError

HEAD = '<ir_version: 3, opset_import: ["" : 8]>\n'
BODY = """directions = [0, 1], body = f (float[2] a, float[2] e, float w) => (float[2] next, float[2] o) {
    t = Add(a, e) next = Mul(t, w) o = Identity(next) }>"""
MODEL = f"""g (float[b, 2] s, float[b, l, 2] x, float[b, l] z) => (float[b, 2] y, float[b, l, 2] o) {{
    y, o = Scan<num_scan_inputs = 2, {BODY}( , s, x, z) }}"""


def test_each_batch_is_scanned_by_itself() -> None:
    # It was refused.
    module, rng = tc.compile(parse_model(HEAD + MODEL)), np.random.default_rng(0)
    assert not module.report().fallbacks

    for b, length in ((1, 1), (3, 4), (2, 7), (0, 3), (3, 0)):
        s, x, z = (np.asarray(rng.standard_normal(shape), np.float32) for shape in ((b, 2), (b, length, 2), (b, length)))
        y, o = module(s, x, z)

        for i in range(b):
            state = s[i]
            for j in range(length):
                state = (state + x[i, j]) * z[i, length - 1 - j]
                np.testing.assert_allclose(o[i, j], state, rtol=1e-6)
            np.testing.assert_allclose(y[i], state, rtol=1e-6)


def test_what_it_cannot_do_is_said() -> None:
    lengths = MODEL.replace("(float[b, 2] s", "(int64[b] n, float[b, 2] s").replace("( , s", "(n, s")
    with pytest.raises(UnsupportedError, match="Scan of opset 8 with sequence lengths"):
        tc.compile(parse_model(HEAD + lengths))
    with pytest.raises(ShapeError, match="Scan: batches of 2 and 3"):
        tc.compile(parse_model(HEAD + MODEL.replace("float[b, l] z", "float[3, l] z").replace("[b,", "[2,")))
