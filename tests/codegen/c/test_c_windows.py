"""Convolutions as C: in rows whose lengths are no number of lanes that a vector has."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

import tc
from tests.codegen.c.kernels import needs_compiler
from tests.draws import some_of
from tests.frontend.models import run_onnxruntime

pytestmark = needs_compiler
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[n, {channels}, {height}, {width}] x, float[{outputs}, {channels}, {taps}, {taps}] w) => (float[a, b, c, d] y) {{
   y = Conv<pads = [{pad}, {pad}, {pad}, {pad}]>(x, w)
}}"""


@pytest.mark.parametrize("seed", some_of(range(4), quick=range(2)))
def test_convolutions_of_odd_rows(seed: int) -> None:
    # GCC 12 lost what was padded: rows of 9 with 2 on each side.
    rng = np.random.default_rng(seed)
    taps = 5 if seed == 0 else int(rng.choice([3, 5, 7]))
    drawn = {"channels": 1, "outputs": 4, "height": 9, "width": 9}
    if seed:
        drawn = {name: int(rng.integers(1, most)) for name, most in (("channels", 5), ("outputs", 6), ("height", 15), ("width", 15))}
    model = parse_model(MODEL.format(taps=taps, pad=taps // 2, **drawn))
    x = rng.standard_normal((2, drawn["channels"], drawn["height"], drawn["width"])).astype(np.float32)
    arrays = {"x": x, "w": rng.standard_normal((drawn["outputs"], drawn["channels"], taps, taps)).astype(np.float32)}

    found = tc.compile(model, target="c", threads=1).run(arrays)["y"]

    np.testing.assert_allclose(found, run_onnxruntime(model, arrays)[0], rtol=1e-4, atol=1e-4)
