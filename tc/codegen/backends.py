"""The back ends that there are."""

from __future__ import annotations

from tc.codegen.amdgpu.backend import ROCM_DEVICE
from tc.codegen.backend import Backend, Language, find_backend
from tc.codegen.c.backend import C_BACKEND
from tc.codegen.cuda.backend import CUDA_DEVICE
from tc.codegen.llvm.backend import CPU
from tc.codegen.opencl.backend import OPENCL_DEVICE
from tc.errors import UserError
from tc.target import Target
from tc.target.device import AS_PTX

BACKENDS = (CPU, C_BACKEND, CUDA_DEVICE, OPENCL_DEVICE, ROCM_DEVICE)


def backend_of(target: Target) -> Backend:
    """How kernels for this target become code; UnsupportedError for a kind without a back end."""
    return find_backend(BACKENDS, target)


def language_names() -> tuple[str, ...]:
    """The languages in which kernels of some target can be written."""
    return tuple(dict.fromkeys(name for backend in BACKENDS for name in backend.languages))


def language_of(name: str, target: Target) -> Language:
    """How kernels for a target are written in a language. UserError when they are not."""
    known = backend_of(target).languages
    if name not in known:
        others = " or ".join(f"'{backend.kind}'" for backend in BACKENDS if name in backend.languages)
        raise UserError(
            f"{name}: kernels for a target of the kind '{target.kind}' are written as {', '.join(known) or 'nothing'}"
            + (f"; {name} is for targets of the kind {others}" if others else "")
        )
    return known[name]


def usual_language(target: Target) -> str:
    """The language in which kernels for a target are made."""
    known = tuple(backend_of(target).languages)
    is_ptx = target.device is not None and target.device.has(AS_PTX)
    return "ptx" if is_ptx and "ptx" in known else known[0]
