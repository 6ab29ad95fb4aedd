"""Whether tests can run kernels on an OpenCL device of this machine."""

from __future__ import annotations

import functools
import importlib.util

import pytest

from tc.codegen.llvm.host_stub import Image
from tc.errors import DeviceError


def need_opencl() -> None:
    """Skip the test, or the module that is being imported, with the reason, where no kernel can be built."""
    reason = _why_not()
    if reason:
        pytest.skip(reason, allow_module_level=True)


@functools.cache
def _why_not() -> str:
    if importlib.util.find_spec("pyopencl") is None:
        return "needs the extra 'opencl'"
    from tc.codegen.opencl.device import open_device

    try:
        open_device(0).load(Image("kernel void nothing() {}", ("nothing",), (0,)))
    except DeviceError as error:  # what any other failure means, tests are to say
        return str(error)
    return ""
