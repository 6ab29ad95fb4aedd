"""Machine code of NVIDIA's devices, without a device: texts assembled, disassembled, and the mix of instructions of their loops."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.device_text import DeviceFunction, read_functions
from tc.codegen.c.dialect import CUDA
from tc.target.device import DeviceFacts


def disassembler() -> str:
    """nvdisasm of a toolkit or of the wheel; the test is skipped where there is none, or no compiler."""
    if not (shutil.which("nvcc") and shutil.which("ptxas")):
        pytest.skip("no compiler for CUDA devices is here")
    nvidia = pytest.importorskip("nvidia", reason="the wheel nvidia-cuda-nvdisasm is not here")
    found = [str(path) for root in nvidia.__path__ for path in Path(root).glob("*/bin/nvdisasm")]
    tool = shutil.which("nvdisasm") or next(iter(found), None)
    if tool is None:
        pytest.skip("no nvdisasm is here")
    return tool


@dataclass(frozen=True)
class MachineCode:
    """Functions of a text as an assembler tells of them, what it said, and the instructions of all in order with places of labels."""

    functions: tuple[DeviceFunction, ...]
    said: str
    instructions: tuple[str, ...]
    labels: dict[str, int]

    def loops(self) -> list[tuple[str, ...]]:
        """The instructions of each loop, without those that never run; the longest first."""
        found = []
        for end, text in enumerate(self.instructions):
            target = re.search(r"\bBRA\b[^`]*`\(([^)]+)\)", text)
            start = self.labels.get(target[1], end + 1) if target else end + 1
            if start <= end:
                body = [each for each in self.instructions[start : end + 1] if not each.startswith("@!PT ")]
                found.append(tuple(re.sub(r"^@!?U?P\d+ +", "", each) for each in body))
        return sorted(found, key=len, reverse=True)

    def main_loop(self, product: str) -> Counter[str]:
        """How often each instruction, in full, is in the loop with most products."""
        body = max(self.loops(), key=lambda each: sum(text.startswith(product) for text in each))
        return Counter(text.split()[0] for text in body if not text.startswith("NOP"))


def assembled(text: str, language: str, device: DeviceFacts, threads: int, folder: Path) -> MachineCode:
    """A text in "cuda" or "ptx" as machine code; `threads` of a block of any of its functions."""
    tool = disassembler()
    source, binary = folder / ("kernel.ptx" if language == "ptx" else "kernel.cu"), folder / "kernel.cubin"
    source.write_text(text)
    command = ["ptxas", "-v"] if language == "ptx" else ["nvcc", "-cubin", *CUDA.options, "-Xptxas", "-v"]
    done = subprocess.run([*command, f"-arch={device.arch}", "-o", binary, source], check=True, capture_output=True, text=True)
    said = done.stdout + done.stderr
    listing = subprocess.run([tool, "-c", binary], check=True, capture_output=True, text=True).stdout
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
            instructions.append(found[1])
    names = re.findall(r"Compiling entry function '(\w+)'", said)
    return MachineCode(tuple(read_functions(said, dict.fromkeys(names, threads), device)), said, tuple(instructions), labels)


def share(mix: Counter[str], name: str) -> float:
    """The part of a mix that instructions called so have."""
    return sum(count for each, count in mix.items() if each.split(".")[0] == name) / mix.total()
