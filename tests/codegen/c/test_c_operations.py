"""Every operation of the IR on every dtype, as C: in vectors of the compiler, and as C11 without any."""

from __future__ import annotations

import pytest

from tests.codegen.c.kernels import VARIANTS, CLibrary, needs_compiler
from tests.codegen.c.programs import assert_equal, programs

pytestmark = needs_compiler


SLOW = [pytest.param(variant, lanes, marks=pytest.mark.slow) for variant, lanes in (("vectors", 1), ("scalar", 16))]


@pytest.mark.parametrize(("variant", "lanes"), [("vectors", 16), ("scalar", 5), *SLOW])
def test_operations_have_the_meaning_of_the_ir(variant, lanes, tmp_path):
    found = programs(lanes)

    library = CLibrary([program.func for program in found], tmp_path, VARIANTS[variant])

    for program in found:
        (actual,) = library.run(program.func, program.arrays)
        assert_equal(program, actual, program.expected())
