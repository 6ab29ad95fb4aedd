"""Every operation of the IR on every dtype, as C: in vectors of the compiler, and as C11 without any."""

from __future__ import annotations

import pytest

from tests.codegen.c.kernels import VARIANTS, CLibrary, needs_compiler
from tests.codegen.c.programs import assert_equal, programs

pytestmark = needs_compiler


SLOW = [pytest.param(variant, lanes, 1, marks=pytest.mark.slow) for variant in VARIANTS for lanes in (1, 5, 16)]


@pytest.mark.parametrize(("variant", "lanes", "every"), [("vectors", 16, 4), ("scalar", 5, 7), *SLOW])
def test_operations_have_the_meaning_of_the_ir(variant, lanes, every, tmp_path):
    found = programs(lanes)[::every]

    library = CLibrary([program.func for program in found], tmp_path, VARIANTS[variant])

    for program in found:
        (actual,) = library.run(program.func, program.arrays)
        assert_equal(program, actual, program.expected())
