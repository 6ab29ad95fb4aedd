"""What one core of each kind of CPU does in a cycle: `machines.json`, checked as it is read.

An entry is found by the family of a CPU (the vendor, by the name that LLVM gives to it, else by what only one vendor has) and by its
features, which are trusted where names are not: the first entry of the family whose features are all there. So a CPU that no entry
names gets the nearest one, and a virtual machine that hides features gets that of an older CPU.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from tc.errors import TargetError

TABLE = Path(__file__).with_name("machines.json")
SCHEMA = 1

LINE_BYTES = 64
"""Of the cache lines that rates are given for."""

SET_BYTES = 4096
"""Addresses at a multiple of this distance share one set of the first-level cache: 64 sets of lines of 64 bytes, on every x86-64 in
the table."""


@dataclass(frozen=True)
class CoreRates:
    """Rates of one core; cycles are of `clock_hz`, what the core keeps up while its vector units are busy, and vectors the target's.

    fma_per_cycle: fused multiply-adds of whole vectors; vectors_per_cycle: other arithmetic on them. loads_per_cycle: vectors, or numbers
    that are broadcast, from the first-level cache; stores_per_cycle: to it. operations_per_cycle: of any kind, issued.
    operations_in_flight: how far ahead the core looks for operations whose operands are there. fma_latency: cycles until a
    result may be used. gather_cycles_per_lane: of a load of elements that lie apart.
    *_cycles_per_line: for a cache line of a stream from the second-level cache, the third, and memory. *_latency: cycles until a
    number is there, each address being read from the one before. launch_cycles: to hand work to other threads and wait for them.
    i8_dots_per_fma, bf16_dots_per_fma: how many times as many products of 8-bit integers (u8 x i8), or of bf16, the instructions of the
    target sum as a multiply-add of f32 does in the same time; 0 where there is no such instruction.
    amx_*_per_cycle: operations (two a product) of the tile unit; 0 where there is none. tile_*_cycles: to load a tile from the
    first-level and the second-level cache, to store it, and to configure tiles.
    """

    clock_hz: float
    fma_per_cycle: float
    vectors_per_cycle: float
    loads_per_cycle: float
    stores_per_cycle: float
    operations_per_cycle: float
    operations_in_flight: float
    fma_latency: float
    gather_cycles_per_lane: float
    l2_cycles_per_line: float
    l3_cycles_per_line: float
    memory_cycles_per_line: float
    l2_latency: float
    l3_latency: float
    memory_latency: float
    launch_cycles: float
    i8_dots_per_fma: float
    bf16_dots_per_fma: float
    amx_i8_per_cycle: float
    amx_bf16_per_cycle: float
    tile_load_cycles: float
    tile_l2_load_cycles: float
    tile_store_cycles: float
    tile_config_cycles: float

    @property
    def fma_flops_per_lane(self) -> float:
        """FLOP/s that multiply-adds reach for each lane of a vector."""
        return 2 * self.fma_per_cycle * self.clock_hz

    def fingerprint(self) -> str:
        """16 hex digits that differ when a decision may."""
        return hashlib.sha256(repr(dataclasses.astuple(self)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class CacheSizes:
    """Bytes of the data cache and the second-level cache of a core, and of the third-level cache that cores share; 0: none."""

    l1_bytes: int
    l2_bytes: int
    l3_bytes: int


@dataclass(frozen=True)
class MachineKind:
    """An entry of the table. `only_named`: its features do not tell it from others. source: where the numbers are from."""

    name: str
    family: str
    names: tuple[str, ...]
    features: tuple[str, ...]
    rates: CoreRates
    caches: CacheSizes
    source: tuple[tuple[str, str], ...]
    only_named: bool = False


MAY_BE_ZERO = frozenset(name.name for name in fields(CoreRates) if name.name.startswith(("i8", "bf16", "amx", "tile")))
"""Rates of what a core may not have."""


def checked_rates(numbers: Mapping[str, Any], what: str) -> dict[str, float]:
    """Numbers of `CoreRates` by name. UserError for other names and for what cannot be a rate."""
    known = {field.name for field in fields(CoreRates)}
    for name, value in numbers.items():
        if name not in known:
            raise TargetError(f"{what}: unknown rate {name!r}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or value < 0 or (value == 0 and name not in MAY_BE_ZERO):
            raise TargetError(f"{what}: {name} is {value!r}, must be a positive number")
    return {name: float(value) for name, value in numbers.items()}


@cache
def machine_kinds() -> Mapping[str, MachineKind]:
    """The entries of the table by name, in order; an entry has what it does not say from the one that it is `like`."""
    entries = json.loads(TABLE.read_text(encoding="utf-8"))
    assert entries["schema"] == SCHEMA, f"{TABLE.name} has schema {entries['schema']}"
    kinds: dict[str, MachineKind] = {}
    for entry in entries["kinds"]:
        base = kinds[entry["like"]] if "like" in entry else None
        rates = checked_rates(entry["rates"], f"{TABLE.name}, {entry['name']}")
        kinds[entry["name"]] = MachineKind(
            entry["name"],
            entry["family"],
            tuple(entry["names"]),
            tuple(entry["features"]),
            CoreRates(**rates) if base is None else dataclasses.replace(base.rates, **rates),
            CacheSizes(**entry["caches"]) if base is None else dataclasses.replace(base.caches, **entry["caches"]),
            tuple(entry["source"].items()),
            entry.get("only_named", False),
        )
    return kinds


def kind_of_cpu(cpu: str, features: Iterable[str]) -> MachineKind:
    """The entry for a CPU by LLVM's name of it and its features; the nearest where no entry names it."""
    present = frozenset(features)
    family = _family_of(cpu, present)
    for kind in machine_kinds().values():
        if kind.family == family and present.issuperset(kind.features) and (cpu in kind.names or not kind.only_named):
            return kind
    return machine_kinds()["x86-64-v2"]


def _family_of(cpu: str, features: frozenset[str]) -> str:
    if "neon" in features:
        return "arm"
    for kind in machine_kinds().values():
        if cpu in kind.names:
            return kind.family
    return "amd" if "sse4a" in features else "intel"


GENERIC = machine_kinds()["x86-64-v4"].rates
"""Of any CPU with AVX-512."""


def kind_called(name: str) -> MachineKind:
    """The entry of that name; UserError when there is none."""
    kinds = machine_kinds()
    if name not in kinds:
        raise TargetError(f"target: unknown machine '{name}'; known are {', '.join(kinds)}")
    return kinds[name]
