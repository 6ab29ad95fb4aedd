"""What a program is called through, by where it runs."""

from __future__ import annotations

from tc.codegen.backend import Loaded
from tc.codegen.cuda.device import CudaDevice
from tc.runtime.cuda_module import CudaModule
from tc.runtime.device_module import DeviceModule
from tc.runtime.module import CompiledModule

MODULE_CLASSES: tuple[type[CompiledModule], ...] = (CompiledModule, DeviceModule, CudaModule)


def module_class(library: Loaded) -> type[CompiledModule]:
    """The class of modules over a library."""
    if library.device is None:
        return CompiledModule
    return CudaModule if isinstance(library.device, CudaDevice) else DeviceModule
