"""Machine code of kernels: assembled, and its instructions listed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tc.codegen.c.dialect import CUDA


def cuobjdump() -> str | None:
    import nvidia

    found = (path for root in nvidia.__path__ for path in Path(root).glob("*/bin/cuobjdump"))
    return shutil.which("cuobjdump") or next(map(str, found), None)


def needs_assembler() -> None:
    """Skips where a kernel cannot be assembled, or its machine code not be listed."""
    if not (shutil.which("nvcc") and shutil.which("ptxas")):
        pytest.skip("needs nvcc and ptxas")
    pytest.importorskip("nvidia", reason="needs the wheel of cuobjdump")
    if cuobjdump() is None:
        pytest.skip("needs cuobjdump")


def assembled(text: str, program: str, folder: Path, arch: str = "sm_90a") -> tuple[str, list[str]]:
    """What the assembler says of a kernel, and its instructions with their modifiers, in order."""
    source, binary = folder / f"kernel.{'ptx' if program == 'ptxas' else 'cu'}", folder / f"{program}.cubin"
    source.write_text(text)
    options = ["-v", f"-arch={arch}"] if program == "ptxas" else ["-cubin", f"--gpu-architecture={arch}", *CUDA.options, "-Xptxas", "-v"]
    done = subprocess.run([program, *options, "-o", str(binary), str(source)], check=True, capture_output=True, text=True)
    tool = cuobjdump()
    assert tool is not None
    listing = subprocess.run([tool, "-sass", str(binary)], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"/\*[0-9a-f]{4,}\*/ +(@!PT +)?(?:@\S+ +)?([A-Z][\w.]*)", listing)
    return done.stdout + done.stderr, [name for never, name in found if not never]  # those that never run fill slots


def kinds(instructions: Sequence[str]) -> Counter[str]:
    """Instructions by their names alone."""
    return Counter(name.partition(".")[0] for name in instructions)
