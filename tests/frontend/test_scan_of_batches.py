"""Scan of opset 8: every batch is scanned by itself, as far as it is long. numpy says what is right."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

import tc
from tc.errors import InputError, ShapeError

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


def test_batches_may_be_shorter_than_others() -> None:
    """They were refused. A sequence that is read from its end begins with the last item that its batch has."""
    text = MODEL.replace("(float[b, 2] s", "(int64[b] n, float[b, 2] s").replace("( , s", "(n, s")
    module, rng = tc.compile(parse_model(HEAD + text)), np.random.default_rng(0)
    assert not module.report().fallbacks

    for lengths in ([4], [4, 1, 3], [2, 2], []):
        b = len(lengths)
        s, x, z = (np.asarray(rng.standard_normal(shape), np.float32) for shape in ((b, 2), (b, 4, 2), (b, 4)))
        y, o = module(np.array(lengths, np.int64), s, x, z)

        for i, length in enumerate(lengths):
            state = s[i]
            for j in range(length):
                state = (state + x[i, j]) * z[i, length - 1 - j]
                np.testing.assert_allclose(o[i, j], state, rtol=1e-6)
            np.testing.assert_allclose(y[i], state, rtol=1e-6)
            assert not o[i, length:].any()
    for wrong in (0, 5, -1):
        with pytest.raises(InputError, match=rf"sequence length, less 1, {wrong - 1} is out of range.*TC2004"):
            module(np.array([1, wrong]), *(np.zeros(shape, np.float32) for shape in ((2, 2), (2, 4, 2), (2, 4))))


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(ShapeError, match="Scan: batches of 2 and 3"):
        tc.compile(parse_model(HEAD + MODEL.replace("float[b, l] z", "float[3, l] z").replace("[b,", "[2,")))
    lengths = MODEL.replace("(float[b, 2] s", "(int64[3] n, float[b, 2] s").replace("( , s", "(n, s").replace("[b,", "[2,")
    with pytest.raises(ShapeError, match=r"Scan: sequence lengths i64\[3\] of 2 batches"):
        tc.compile(parse_model(HEAD + lengths))


@pytest.mark.parametrize(("directions", "step"), [("", 1), (", scan_input_directions = [1, 1]", -1)])
def test_sequences_of_two_lengths_are_refused_when_they_come(directions: str, step: int) -> None:
    """The last item of the shorter one was taken for all that it lacks, as no gather leaves its tensor."""
    body = "body = f (float[2] a, float[2] e, float[2] w) => (float[2] next, float[2] o) { next = Add(a, e) o = Mul(e, w) }"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] s, float[t, 2] x, float[u, 2] z) => (float[2] y, float[v, 2] o) {{
        y, o = Scan<num_scan_inputs = 2, {body}{directions}>(s, x, z) }}"""
    module, start = tc.compile(parse_model(text)), np.zeros(2, np.float32)

    x, z = np.random.default_rng(0).standard_normal((2, 5, 2)).astype(np.float32)
    y, o = module(start, x, z)
    np.testing.assert_allclose(y, x.sum(0), rtol=1e-5)
    np.testing.assert_array_equal(o, (x * z)[::step])
    for shorter, longer in ((2, 5), (5, 2), (0, 3), (3, 0), (1, 3)):
        with pytest.raises(InputError, match=f"sequences of length t and u .*t = {shorter}, u = {longer}.*TC2004"):
            module(start, x[:shorter], z[:longer])


def test_batches_and_items_of_two_sizes_are_refused_when_they_come() -> None:
    text = MODEL.replace("float[b, l] z", "float[c, k] z")
    module = tc.compile(parse_model(HEAD + text))

    module(*(np.zeros(shape, np.float32) for shape in ((2, 2), (2, 4, 2), (2, 4))))
    for batches, length in ((1, 4), (3, 4), (2, 3), (2, 5)):
        with pytest.raises(InputError, match=r"(batches of|sequences of length) .*TC2004"):
            module(*(np.zeros(shape, np.float32) for shape in ((2, 2), (2, 4, 2), (batches, length))))
