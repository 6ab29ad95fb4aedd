"""Code reaches its constants by 32 bits, also in a process whose memory is so full that free pages lie gigabytes apart.

LLVM's loader took the process down: it asks for the code's memory and for that of the constants one after the other.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.codegen.c.kernels import needs_compiler

SCRIPT = """
import ctypes
import sys
import numpy as np
import tc
from tests.frontend.models import make_model, node

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PAGE, READ, WRITE, PRIVATE_ANONYMOUS_NORESERVE = 4096, 1, 2, 0x4022


def map_pages(size, protection):
    return libc.mmap(None, size, protection, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)


def fill(count):
    return [map_pages(PAGE, READ | WRITE * (k % 2)) for k in range(count)]  # in turns, or they would become one


def model(number):
    nodes = [node("Exp", "x", "a"), node("Tanh", "a", "b"), node("Mul", "b s", "c"), node("Erf", "c", "y")]
    return make_model(nodes, {"x": (np.float32, [200_000])}, ["y"], {"s": np.float32(number)})


target = sys.argv[1]
x = np.linspace(-3, 3, 200_000).astype(np.float32)  # so many that kernels call the pool
tc.compile(model(1), target=target)(x)  # what is loaded once
pages = fill(20_000)
far = [map_pages(3 << 30, READ) for _ in range(4)]
fill(1_500)
assert max(pages) - min(far) > 8 << 30
for k in range(6):
    libc.munmap(pages[6_000 + 7 * k], PAGE)
    assert np.isfinite(tc.compile(model(k + 2), target=target)(x)).all()
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="fills memory by Linux's rules")
@pytest.mark.parametrize("target", ["cpu", pytest.param("c", marks=needs_compiler)])
def test_code_and_constants_are_loaded_side_by_side(target: str) -> None:
    """What the C compiler makes had no room for the addresses of what it calls, and was loaded in pieces."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, target], capture_output=True, text=True, timeout=300)

    assert done.returncode == 0 and done.stdout.split() == ["done"], done.stderr[-2000:]
