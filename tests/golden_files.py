"""What tests with golden files share: arrays that programs as text name, fixed targets, and the comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tc.ir.dtype import parse_dtype
from tc.target import Target

FOLDER = Path(__file__).parent / "golden"

_AMX = (
    "amx-bf16 amx-int8 amx-tile avx avx2 avx512bf16 avx512bw avx512cd avx512dq avx512f avx512fp16 avx512vl avx512vnni avxvnni bmi bmi2 "
    "cmov crc32 cx16 cx8 f16c fma fxsr lzcnt mmx movbe popcnt sahf sse sse2 sse3 sse4.1 sse4.2 ssse3 xsave"
).split()

TARGETS = {
    "x86-64-v3": Target.parse("x86-64-v3:cores=2"),
    "x86-64-v4": Target.parse("x86-64-v4:cores=2"),
    "amx": Target.parse(f"cpu:name=sapphirerapids,cores=2,l1=48K,l2=2M,l3=32M,features={'+'.join(_AMX)}"),
}
"""Machines that decisions are pinned on. Nothing of them depends on the machine that the tests run on."""


class Literals(dict[str, np.ndarray]):
    """Arrays by name; those called `random 2x3`, or `random i8 2x3`, come into being when they are asked for."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or str(name).startswith("random ")

    def __missing__(self, name: str) -> np.ndarray:
        *dtype, size = name.removeprefix("random ").split()
        shape = tuple(map(int, size.split("x")))
        values = np.random.default_rng(len(self)).standard_normal(shape).astype(np.float32)
        self[name] = values if not dtype else (values * 30).astype(parse_dtype(dtype[0]).numpy)
        return self[name]


def narrow(text: str) -> str:
    """Text of the IR, which stays the same program, with one space of indentation instead of four."""
    lines = text.rstrip().splitlines()
    return "\n".join(" " * ((len(line) - len(line.lstrip(" "))) // 4) + line.lstrip(" ") for line in lines)


def check_text(path: Path, found: str, update: bool) -> None:
    """The file holds `found`; with `update`, it does from now on."""
    if update:
        path.write_text(found)
    assert path.read_text() == found, f"{path.name} differs; `pytest --update-golden` writes it again, then read the diff"
