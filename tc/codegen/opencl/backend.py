"""OpenCL devices as a back end: OpenCL-C, built by the driver when a module is loaded, under host stubs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath

from tc.codegen.backend import Backend, Language
from tc.codegen.c.dialect import OPENCL
from tc.codegen.c.launch import emit_launches
from tc.codegen.device_library import DeviceLibrary, load_kernels
from tc.codegen.launches import launches_of
from tc.codegen.llvm.host_stub import Image, emit_host_stub
from tc.codegen.llvm.jit import compile_group
from tc.codegen.opencl.calls import CALLS
from tc.codegen.opencl.device import open_device
from tc.ir.loop import PrimFunc
from tc.passes.pipeline import DEVICE_FINISH_CALLS
from tc.target import Target


def write_kernel(func: PrimFunc, name: str, target: Target) -> str:
    """The device functions of a kernel as OpenCL-C."""
    return emit_launches(func, name, OPENCL)


def emit_kernel(func: PrimFunc, symbol: str, target: Target) -> str:
    """LLVM IR of a kernel's host stub, with the OpenCL-C of its launches inside."""
    launches = launches_of(func)
    names, shared = tuple(f"{symbol}_{launch.index}" for launch in launches), tuple(launch.shared_bytes for launch in launches)
    image = Image(write_kernel(func, symbol, target), names, shared, " ".join(OPENCL.options))
    return emit_host_stub(func, symbol, image, CALLS)


def make_objects(texts: Sequence[str], optimized: bool, target: Target) -> list[bytes]:
    """Object files of host stubs."""
    return compile_group(texts, optimized, target.host)


def load_objects(objects: Iterable[bytes], target: Target) -> DeviceLibrary:
    """Host code linked, its kernels built for the device whose number the target has."""
    return load_kernels(list(objects), open_device(target.number))


def build_line(name: str, target: Target) -> str:
    """How a file of OpenCL-C is compiled without a device: to LLVM's form of SPIR."""
    options = " ".join((*OPENCL.options, "-Xclang -finclude-default-header --target=spir64 -c -emit-llvm"))
    return f"clang {options} -o {PurePath(name).stem}.bc {name}"


OPENCL_DEVICE = Backend(
    "opencl",
    DEVICE_FINISH_CALLS,
    emit_kernel,
    make_objects,
    load_objects,
    CALLS,
    {"opencl": Language(".cl", write_kernel, build_line, comment="/* {} */")},
)
