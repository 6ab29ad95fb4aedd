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
    """What an assembler said of a text, and the instructions of all its functions in order with places of labels."""

    said: str
    instructions: tuple[str, ...]
    labels: dict[str, int]

    def functions(self, device: DeviceFacts, threads: int) -> tuple[DeviceFunction, ...]:
        """The functions as the assembler tells of them; `threads` of a block of any."""
        names = re.findall(r"Compiling entry function '(\w+)'", self.said)
        return tuple(read_functions(self.said, dict.fromkeys(names, threads), device))

    def names(self) -> Counter[str]:
        """How often each instruction, in full, is there; without those that never run."""
        return Counter(_named(text) for text in self.instructions if not text.startswith("@!PT "))

    def kinds(self) -> Counter[str]:
        """As `names`, by their first words alone."""
        counts: Counter[str] = Counter()
        for name, count in self.names().items():
            counts[name.partition(".")[0]] += count
        return counts

    def assert_clean(self) -> None:
        """No spills, no stack, and nothing that an assembler warns of: no instructions of warpgroups that wait for each other (C75xx)."""
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in self.said, self.said
        assert "C75" not in self.said and "warning" not in self.said.lower(), self.said

    def loops(self) -> list[tuple[str, ...]]:
        """The instructions of each loop, without those that never run; the longest first."""
        found = []
        for end, text in enumerate(self.instructions):
            target = re.search(r"\bBRA\b[^`]*`\(([^)]+)\)", text)
            start = self.labels.get(target[1], end + 1) if target else end + 1
            if start <= end:
                body = [each for each in self.instructions[start : end + 1] if not each.startswith("@!PT ")]
                found.append(tuple(map(_without_condition, body)))
        return sorted(found, key=len, reverse=True)

    def main_loop(self, product: str) -> Counter[str]:
        """How often each instruction, in full, is in the loop with most products."""
        body = max(self.loops(), key=lambda each: sum(text.startswith(product) for text in each))
        return Counter(text.split()[0] for text in body if not text.startswith("NOP"))


def _without_condition(text: str) -> str:
    return re.sub(r"^@!?U?P\d+ +", "", text)


def _named(text: str) -> str:
    return _without_condition(text).split()[0]


def assembled(text: str, language: str, arch: str, folder: Path) -> MachineCode:
    """A text in "cuda" or "ptx" as machine code."""
    tool = disassembler()
    source, binary = folder / ("kernel.ptx" if language == "ptx" else "kernel.cu"), folder / "kernel.cubin"
    source.write_text(text)
    command = ["ptxas", "-v"] if language == "ptx" else ["nvcc", "-cubin", *CUDA.options, "-Xptxas", "-v"]
    done = subprocess.run([*command, f"-arch={arch}", "-o", binary, source], check=True, capture_output=True, text=True)
    said = done.stdout + done.stderr
    listing = subprocess.run([tool, "-c", binary], check=True, capture_output=True, text=True).stdout
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
            instructions.append(found[1])
    return MachineCode(said, tuple(instructions), labels)


def share(mix: Counter[str], name: str) -> float:
    """The part of a mix that instructions called so have."""
    return sum(count for each, count in mix.items() if each.split(".")[0] == name) / mix.total()
