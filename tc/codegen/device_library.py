"""Objects of kernels that run on a device, loaded: host code linked, the device code in it handed to the device."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

from tc.codegen.device import Device
from tc.codegen.llvm.host_stub import HANDLES, IMAGE, Image
from tc.codegen.llvm.jit import Library, link
from tc.codegen.llvm.object_symbols import symbols_of


class LoadedImage(Protocol):
    """Code on a device, given back when nothing refers to it. `handles`: of each function the two words that launches take."""

    @property
    def handles(self) -> Sequence[tuple[int, int]]: ...


class LoadingDevice(Device, Protocol):
    """A device that takes images."""

    def load(self, image: Image) -> LoadedImage:
        """The functions of an image. CodegenError, with the compiler's words, for text that is refused."""


class DeviceLibrary:
    """Host code in the process, and the kernels that it launches on a device."""

    def __init__(self, device: Device, library: Library, images: Sequence[LoadedImage]) -> None:
        self.device = device
        self._library = library
        self._images = images  # alive as long as the code that has their handles

    def address(self, name: str) -> int:
        """See `Loaded`."""
        return self._library.address(name)


def load_kernels(objects: list[bytes], device: LoadingDevice) -> DeviceLibrary:
    """Link host code, load the device code that is in it, and tell the one where the other is."""
    names = [name for data in objects for name in sorted(symbols_of(data).defined) if name.endswith(IMAGE)]
    library = link(objects)
    images = []
    for name in names:
        start = library.address(name)
        size = ctypes.c_int64.from_address(start).value
        loaded = device.load(Image.from_bytes(ctypes.string_at(start + 8, size)))
        images.append(loaded)
        words = (ctypes.c_int64 * (2 * len(loaded.handles))).from_address(library.address(name.removesuffix(IMAGE) + HANDLES))
        for k, pair in enumerate(loaded.handles):
            words[2 * k], words[2 * k + 1] = pair
    return DeviceLibrary(device, library, images)
