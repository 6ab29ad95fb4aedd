"""AMD's devices as a back end that writes: kernels as assembly, through LLVM's AMDGPU target. Nothing here runs them."""

from __future__ import annotations

from pathlib import PurePath

from tc.codegen.amdgpu.resources import wave_resources
from tc.codegen.backend import Backend, Language
from tc.codegen.llvm.jit import foreign_assembly
from tc.codegen.ptx.dialect import AMDGPU
from tc.codegen.ptx.emitter import emit_launches_ir
from tc.errors import UnsupportedError
from tc.ir.loop import PrimFunc
from tc.passes.pipeline import DEVICE_FINISH_CALLS
from tc.target import Target


def write_amdgpu(func: PrimFunc, name: str, target: Target) -> str:
    """The device functions of a kernel as assembly, below a comment of what each takes."""
    assert target.device is not None
    assembly = foreign_assembly(emit_launches_ir(func, name, dialect=AMDGPU), AMDGPU.triple, target.device.arch, "")
    notes = (f"; {each}, {each.blocks(target.device)} blocks at a time on a processor\n" for each in wave_resources(assembly))
    return "".join(notes) + assembly


def build_line(name: str, target: Target) -> str:
    """The command that assembles and links a file: what a driver of AMD's loads."""
    assert target.device is not None
    return f"clang --target={AMDGPU.triple} -mcpu={target.device.arch} -o {PurePath(name).stem}.co {name}"


def emit_kernel(func: PrimFunc, symbol: str, target: Target) -> str:
    raise _not_run(target)


def make_objects(texts: object, optimized: bool, target: Target) -> list[bytes]:
    raise _not_run(target)


def load_objects(objects: object, target: Target) -> object:
    raise _not_run(target)


def _not_run(target: Target) -> UnsupportedError:
    text = target.device_text
    return UnsupportedError(
        f"target: kernels for {text} are written as text, and nothing in tc runs them; "
        f"tc compile MODEL --target {text} --emit amdgpu -o FOLDER writes them"
    )


ROCM_DEVICE = Backend(
    "rocm",
    DEVICE_FINISH_CALLS,
    emit_kernel,
    make_objects,
    load_objects,  # type: ignore[arg-type]
    languages={"amdgpu": Language(".s", write_amdgpu, build_line, comment="; {}")},
)
