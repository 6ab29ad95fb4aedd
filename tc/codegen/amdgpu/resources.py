"""What the functions of an AMDGPU assembly take, as LLVM says in the metadata at its end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tc.target.device import DeviceFacts, occupancy

_KERNELS = re.compile(r"^amdhsa\.kernels:\n(.*?)^amdhsa\.", re.MULTILINE | re.DOTALL)
_FACT = re.compile(r"^ +(?:- )?\.(\w+): +(\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class WaveResources:
    """Registers of one lane (`vector`, with those that sums of matrix instructions are kept in) and of a wave (`scalar`); those that
    did not fit and are kept in memory (`spilled`); bytes of memory of a lane's own (`scratch_bytes`) and of a block (`shared_bytes`);
    `threads` of a block."""

    name: str
    vector: int
    scalar: int
    spilled: int
    scratch_bytes: int
    shared_bytes: int
    threads: int

    def blocks(self, facts: DeviceFacts) -> int:
        """How many blocks a processor holds at a time."""
        return occupancy(self.threads, self.vector, self.shared_bytes, facts)

    def __str__(self) -> str:
        spilled = f"{self.spilled} of them spilled" if self.spilled else "none spilled"
        scratch = f", {self.scratch_bytes} bytes of scratch for a thread" if self.scratch_bytes else ""
        return (
            f"{self.name}: blocks of {self.threads} threads, {self.vector} vector and {self.scalar} scalar registers, {spilled}, "
            f"{self.shared_bytes} bytes of shared memory{scratch}"
        )


def wave_resources(assembly: str) -> Iterator[WaveResources]:
    """Of each function, in the order of the metadata."""
    found = _KERNELS.search(assembly)
    for part in re.split(r"^  - ", found[1], flags=re.MULTILINE)[1:] if found else ():
        facts = dict(_FACT.findall(f"    {part}"))
        yield WaveResources(
            facts["symbol"].removesuffix(".kd"),
            int(facts["vgpr_count"]),
            int(facts["sgpr_count"]),
            int(facts["vgpr_spill_count"]) + int(facts["sgpr_spill_count"]),
            int(facts["private_segment_fixed_size"]),
            int(facts["group_segment_fixed_size"]),
            int(facts["max_flat_workgroup_size"]),
        )
