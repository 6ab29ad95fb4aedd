"""The fake driver (`fake.c`) from Python: building it, and running kernels that are launched on it."""

from __future__ import annotations

import ast
import ctypes
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

Kernel = Callable[..., None]
"""Takes grid and block, then the parameters: arrays of bytes from where pointers point to the end of their allocations, and numbers."""


def build_driver(folder: Path) -> Path:
    """Compile the driver into a folder for LD_LIBRARY_PATH."""
    flags = ["-O1", "-Wall", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    files = ["-o", str(folder / "libcuda.so.1"), str(HERE / "fake.c")]
    subprocess.run(["gcc", *flags, *files, "-ldl", "-lpthread"], check=True, capture_output=True)
    return folder


def build_compiler(folder: Path) -> None:
    """Put an `nvcc` into a folder whose binaries are PTX, as the driver has them."""
    real = shutil.which("nvcc")
    if real is not None:
        swap = 'for word do shift; [ "$word" = -cubin ] && word=-ptx; set -- "$@" "$word"; done'
        (folder / "nvcc").write_text(f'#!/bin/sh\n{swap}\nexec {real} "$@"\n')
        (folder / "nvcc").chmod(0o755)


def functions_of(script: Path) -> list[str]:
    """The scenarios in a script: functions without arguments whose names are sentences."""
    found = [node for node in ast.parse(script.read_text()).body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in found if "_" in node.name and not node.args.args]


def run_scenarios(folder: Path, script: Path, names: list[str], facts: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Run functions of a script in one process whose CUDA driver is that in `folder`: what each ended with ("good"), and errors."""
    paths = {"PATH": os.pathsep.join((str(folder), os.environ["PATH"])), "PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE.parent)))}
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "TC_TEST_FOLDER": str(folder), **paths, **facts}
    done = subprocess.run([sys.executable, str(script), *names], env=environment, capture_output=True, text=True, timeout=300, check=False)
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, _, rest = line.partition(": ")
        if name in names:
            last, found[name] = name, rest
        elif found:
            found[last] += "\n" + line
    return found, done.stderr


_SIZES = ctypes.POINTER(ctypes.c_uint)
_LAUNCH = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p, _SIZES, _SIZES, ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint64
)


class FakeDriver:
    """The driver in this process. `kernels`: what runs, by the names of functions; others are left to `run_image`."""

    latest: FakeDriver | None = None

    def __init__(self) -> None:
        FakeDriver.latest = self
        self.library = library = ctypes.CDLL("libcuda.so.1")
        for name in ("fake_log", "fake_complaints"):
            getattr(library, name).restype = ctypes.c_char_p
        for name in ("fake_shift", "fake_in_use", "fake_max_in_use", "fake_allocation"):
            getattr(library, name).restype = ctypes.c_uint64
        self.kernels: dict[str, Kernel] = {}
        self.run_image: Callable[[str, str, tuple[int, ...], tuple[int, ...], int, list[object]], object] | None = None
        self.errors: list[str] = []
        self._callback = _LAUNCH(self._launched)
        library.fake_on_launch(self._callback)

    @property
    def log(self) -> list[str]:
        """The calls so far, one a line."""
        return self.library.fake_log().decode().splitlines()

    @property
    def complaints(self) -> list[str]:
        """What was wrong with them."""
        return self.library.fake_complaints().decode().splitlines() + self.errors

    def clear(self) -> None:
        """Forget calls and complaints."""
        self.library.fake_clear()
        self.errors.clear()

    def count(self, name: str) -> int:
        """How often a function was called."""
        return self.log.count(name)

    def memory(self, address: int) -> tuple[np.ndarray, int]:
        """The bytes of the allocation that holds an address of the device, and where in it the address is."""
        size = ctypes.c_uint64()
        start = self.library.fake_allocation(ctypes.c_uint64(address), ctypes.byref(size))
        if not start:
            raise ValueError(f"{address:#x} is in no live memory of the device")
        raw = (ctypes.c_uint8 * size.value).from_address((start + self.library.fake_shift()) % 2**64)
        return np.frombuffer(raw, np.uint8), address - start

    def _launched(self, image: int, size: int, name: bytes, grid: object, block: object, shared: int, words: int, num_bytes: int) -> None:
        try:
            values = list((ctypes.c_uint64 * (num_bytes // 8)).from_address(words)) if num_bytes else []
            sizes = tuple(grid[:3]), tuple(block[:3])  # type: ignore[index]
            kernel = self.kernels.get(name.decode())
            text = ctypes.string_at(image, size).decode()
            if kernel is not None:
                kernel(*sizes, *(self._argument(value) for value in values))
            elif self.run_image is not None:
                self.run_image(text, name.decode(), *sizes, shared, values)
            else:
                raise ValueError(f"nobody runs {name.decode()}")
        except BaseException:
            self.errors.append(traceback.format_exc())
            self.library.fake_complain(b"a kernel failed")

    def _argument(self, value: int) -> object:
        try:
            memory, place = self.memory(value)
        except ValueError:
            return value - 2**64 if value >= 2**63 else value
        return memory[place:]


def main(scenarios: Mapping[str, object]) -> None:
    """Run those named on the command line; say which of them failed, and how."""
    failed = 0
    for name in sys.argv[1:]:
        try:
            scenarios[name]()  # type: ignore[operator]
            print(f"{name}: good", flush=True)
        except BaseException:
            failed += 1
            said = FakeDriver.latest.complaints[-1:] if FakeDriver.latest else ""
            print(f"{name}: failed\n{traceback.format_exc()}\n{''.join(said)}", flush=True)
    sys.exit(1 if failed else 0)
