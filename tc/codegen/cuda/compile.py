"""CUDA-C to binaries: by NVRTC, a library that comes with cuda-bindings' companions, else by nvcc, the program of the toolkit.

Both are told the architecture by `Image.options`, and nothing that an option of the image does not say: no fast math.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tc.errors import CodegenError, DeviceError

_ARCH = re.compile(r"--gpu-architecture=(sm|compute)_(\d+)([a-z]?)")
_BINARY = "cubin:"
_NVCC_SECONDS = 600


def arch_of(options: str) -> str:
    """The architecture that an image was made for, such as "sm_90a"."""
    found = _ARCH.search(options)
    if found is None:
        raise CodegenError(f"the options of a CUDA image name no architecture: {options!r}")
    return f"sm_{found[2]}{found[3]}"


def capability_of(arch: str) -> tuple[int, int, bool]:
    """Major and minor number of "sm_90a", and whether it is of that device alone."""
    digits = arch.removeprefix("sm_").rstrip("af")
    return int(digits[:-1]), int(digits[-1]), arch[-1] == "a"


def is_ptx(text: str) -> bool:
    """Whether a device text is PTX, which the driver takes as it is."""
    return re.search(r"^\s*\.version\s", text, re.MULTILINE) is not None and ".address_size" in text


def binary_text(data: bytes) -> str:
    """A binary as the text of an image."""
    return _BINARY + base64.b85encode(data).decode()


def binary_in(text: str) -> bytes | None:
    """The binary that an image has as its text; None for an image that has a program there."""
    return base64.b85decode(text.removeprefix(_BINARY)) if text.startswith(_BINARY) else None


def toolkit_program(name: str) -> str | None:
    """The path of a program of the CUDA toolkit: of the system, else of a package that brings it alone (such as nvidia-cuda-nvdisasm)."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec is not None and spec.submodule_search_locations is not None else ()
    found = (str(path) for folder in folders for path in sorted(Path(folder).glob(f"*/bin/{name}")))
    return shutil.which(name) or next(found, None)


@functools.cache
def compiler() -> str:
    """What compiles CUDA-C here: "nvrtc", the path of nvcc, or "" where there is neither."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
        return "nvrtc"
    except (ImportError, RuntimeError):
        return toolkit_program("nvcc") or ""


_kept: Path | None = None


def keep_binaries(folder: Path | None) -> None:
    """From now on take what a folder has of binaries, by hashes of text and options, and keep others there; None: no more.

    So what was compiled on one machine is used on another, which needs no compiler. Files are the driver's to judge.
    """
    global _kept
    _kept = folder
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)


def compile_cuda(text: str, options: str) -> bytes:
    """CUDA-C to a binary for its architecture, or to PTX where the options name a virtual one ("compute_90").

    CodegenError with the compiler's words for text that it refuses; DeviceError where there is no compiler.
    """
    if _kept is None:
        return _compiled_anew(text, options)
    name = hashlib.sha256(f"{options}\n{text}".encode()).hexdigest()
    path = _kept / f"{name}.cubin"
    if path.is_file():
        return path.read_bytes()
    data = _compiled_anew(text, options)
    with tempfile.NamedTemporaryFile(dir=_kept, suffix=".part", delete=False) as file:
        file.write(data)
    Path(file.name).replace(path)
    return data


def _compiled_anew(text: str, options: str) -> bytes:
    found = compiler()
    if not found:
        raise DeviceError(
            "CUDA-C is compiled by NVRTC or nvcc, and neither is here: pip install nvidia-cuda-nvrtc, or install the CUDA toolkit"
        )
    return _by_nvrtc(text, options) if found == "nvrtc" else _by_nvcc(found, text, options)


def _by_nvrtc(text: str, options: str) -> bytes:
    from cuda.bindings import nvrtc

    def checked(answer: tuple[Any, ...]) -> Any:
        if answer[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CodegenError(f"NVRTC: {answer[0].name}")
        return answer[1] if len(answer) > 1 else None

    words = [option.encode() for option in (*options.split(), "--std=c++17")]
    program = checked(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(checked(nvrtc.nvrtcGetProgramLogSize(program)))
            checked(nvrtc.nvrtcGetProgramLog(program, log))
            said = bytes(log).split(b"\0")[0].decode(errors="replace").strip()
            raise CodegenError(f"NVRTC refuses a kernel ({status.name}): {said}")
        name = "PTX" if "=compute_" in options else "CUBIN"
        data = bytearray(checked(getattr(nvrtc, f"nvrtcGet{name}Size")(program)))
        checked(getattr(nvrtc, f"nvrtcGet{name}")(program, data))
        return bytes(data)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _by_nvcc(path: str, text: str, options: str) -> bytes:
    kind = "-ptx" if "=compute_" in options else "-cubin"
    with tempfile.TemporaryDirectory(prefix="tc-cuda-") as folder:
        source, made = Path(folder, "kernel.cu"), Path(folder, "kernel.out")
        source.write_text(text, encoding="utf-8")
        command = [path, kind, *options.split(), "--std=c++17", "-o", str(made), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_NVCC_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CodegenError(f"{path} does not run: {error}") from None
        if done.returncode:
            raise CodegenError(f"nvcc refuses a kernel: {(done.stderr or done.stdout).strip()}")
        return made.read_bytes()
