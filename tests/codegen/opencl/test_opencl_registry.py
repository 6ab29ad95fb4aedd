"""Every operator, scheduled for a device, as OpenCL-C that runs: the same results as the reference."""

from __future__ import annotations

import pytest

from tc.ops.registry import OPS
from tc.passes.loop.simplify_loops import simplify_loops
from tc.target import Target
from tests.codegen.opencl.kernels import finished, run_on
from tests.opencl_driver import need_opencl
from tests.ops.kernels import make_prim_func
from tests.ops.test_registry import WITH_LOOPS, assert_same, samples_of

need_opencl()


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.of("opencl")


def check(name: str, target: Target, most: int | None) -> None:
    """The first samples of an operator, or all, on the device."""
    op = OPS[name]
    for arrays, attrs in samples_of(op)[:most]:
        expected = op.run_reference(arrays, op.attrs(attrs))
        func = finished(simplify_loops(make_prim_func(op, arrays, attrs)), target)

        actual = run_on(target, func, [a for a in arrays if a is not None])

        for a, e in zip(actual[: len(expected)], expected, strict=True):
            assert_same(a, e)


@pytest.mark.parametrize("name", WITH_LOOPS[::8])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_some_operators_compute_the_reference_on_a_device(name: str, target: Target) -> None:
    check(name, target, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", WITH_LOOPS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_operator_computes_the_reference_on_a_device(name: str, target: Target) -> None:
    check(name, target, None)
