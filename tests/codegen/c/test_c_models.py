"""Real models through C against the same through LLVM. Slow: the models are prepared on first use (`python -m benchmarks.zoo`)."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from benchmarks import zoo
from tests.codegen.c.kernels import needs_compiler
from tests.test_models import MODELS

pytestmark = [pytest.mark.slow, needs_compiler]


@pytest.mark.parametrize("name", MODELS)
def test_models_through_c_give_what_those_through_llvm_give(name):
    path, inputs = str(zoo.path(name)), zoo.random_inputs(name, np.random.default_rng(11))

    through_c, through_llvm = (tc.compile(path, target=target, threads=2).run(inputs) for target in ("c", "native"))

    for output, want in through_llvm.items():
        wide = want.astype(np.float64)
        scale = max(float(np.abs(wide).max(initial=0.0)), 1e-30)
        np.testing.assert_allclose(through_c[output].astype(np.float64), wide, rtol=0, atol=1e-5 * scale, err_msg=output)
