"""CUDA devices as a back end: CUDA-C or PTX of a kernel's launches, under host stubs, which reach the driver.

CUDA-C is compiled to a binary where objects are made, if there is a compiler, and so kept with them; else when a module is loaded. A target
whose device has the feature AS_PTX gets PTX instead of CUDA-C.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath

from tc.codegen.backend import Backend, Language
from tc.codegen.c.dialect import CUDA
from tc.codegen.c.launch import emit_launches
from tc.codegen.cuda.calls import CALLS
from tc.codegen.cuda.compile import binary_in, binary_text, compile_cuda, compiler, is_ptx
from tc.codegen.cuda.device import open_device
from tc.codegen.device_library import DeviceLibrary, load_kernels
from tc.codegen.launches import launches_of
from tc.codegen.llvm.host_stub import Image, emit_host_stub, with_image
from tc.codegen.llvm.jit import compile_group
from tc.codegen.ptx.emitter import emit_ptx
from tc.errors import CodegenError
from tc.ir.loop import PrimFunc
from tc.passes.pipeline import DEVICE_FINISH_CALLS
from tc.target import Target
from tc.target.device import AS_PTX


def write_cuda(func: PrimFunc, name: str, target: Target) -> str:
    """The device functions of a kernel as CUDA-C."""
    return emit_launches(func, name, CUDA)


def write_ptx(func: PrimFunc, name: str, target: Target) -> str:
    """The device functions of a kernel as PTX."""
    return emit_ptx(func, name, _arch(target))


def emit_kernel(func: PrimFunc, symbol: str, target: Target) -> str:
    """LLVM IR of a kernel's host stub, with the text of its launches inside."""
    assert target.device is not None
    launches = launches_of(func)
    names, shared = tuple(f"{symbol}_{launch.index}" for launch in launches), tuple(launch.shared_bytes for launch in launches)
    most = target.device.max_shared_bytes_per_block
    for name, size in zip(names, shared, strict=True):
        if size > most:
            raise CodegenError(f"{func.name}: {name} needs {size} bytes of shared memory for a block, {target.device.arch} has {most}")
    write = write_ptx if target.device.has(AS_PTX) else write_cuda
    return emit_host_stub(func, symbol, Image(write(func, symbol, target), names, shared, _options(target)), CALLS)


def make_objects(texts: Sequence[str], optimized: bool, target: Target) -> list[bytes]:
    """Object files of host stubs, with binaries of their kernels where there is a compiler of CUDA-C."""
    return compile_group([with_image(text, _compiled) for text in texts] if compiler() else texts, optimized, target.host)


def _compiled(image: Image) -> Image:
    if is_ptx(image.text) or binary_in(image.text) is not None:
        return image
    return dataclasses.replace(image, text=binary_text(compile_cuda(image.text, image.options)))


def load_objects(objects: Iterable[bytes], target: Target) -> DeviceLibrary:
    """Host code linked, its kernels loaded on the device whose number the target has."""
    return load_kernels(list(objects), open_device(target.number))


def _arch(target: Target) -> str:
    assert target.device is not None
    return target.device.arch


def _options(target: Target) -> str:
    return " ".join((f"--gpu-architecture={_arch(target)}", *CUDA.options))


def _builds(program: str) -> Callable[[str, Target], str]:
    """The command that makes a binary of a file with a program."""

    def line(name: str, target: Target) -> str:
        options = _options(target) if program == "nvcc" else f"-arch={_arch(target)}"
        kind = "-cubin " if program == "nvcc" else ""
        return f"{program} {kind}{options} -o {PurePath(name).stem}.cubin {name}"

    return line


CUDA_DEVICE = Backend(
    "cuda",
    DEVICE_FINISH_CALLS,
    emit_kernel,
    make_objects,
    load_objects,
    CALLS,
    {
        "cuda": Language(".cu", write_cuda, _builds("nvcc"), comment="/* {} */"),
        "ptx": Language(".ptx", write_ptx, _builds("ptxas"), comment="// {}"),
    },
)
