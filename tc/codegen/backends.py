"""The back ends that there are."""

from __future__ import annotations

from tc.codegen.backend import Backend, find_backend
from tc.codegen.llvm.backend import CPU
from tc.target import Target

BACKENDS = (CPU,)


def backend_of(target: Target) -> Backend:
    """How kernels for this target become code; UnsupportedError for a kind without a back end."""
    return find_backend(BACKENDS, target)
