"""What a device that runs blocks of threads can hold and do: `devices.json`, checked as it is read, and how many blocks fit.

An entry is an architecture ("sm_80") with the numbers of one product that has it. The text form of facts is the name of the entry and
what differs from it, so that facts that were asked of a device can stand in file names, reports and tuning records, too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from tc.errors import TargetError

DEVICE_TABLE = Path(__file__).with_name("devices.json")
DEVICE_SCHEMA = 1
DEVICE_KINDS = ("cuda", "opencl", "rocm")
TENSOR_DTYPES = ("f16", "bf16", "tf32", "i8", "f8")
_COPY_ENGINES = ("cp.async", "tma")
AS_PTX = "ptx"
"""The feature of a device whose kernels are to be written as PTX, and not as CUDA-C: every CUDA device takes them."""

_PLAIN = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class DeviceFacts:
    """A device as code is generated and chosen for it.

    A *processor* (streaming multiprocessor, compute unit) runs whole blocks of threads and has registers and shared memory; a *warp* is the
    threads that are issued together. `arch` names the entry of the table, `product` the device whose rates these are.

    max_block, max_grid: threads of a block, and blocks of a launch, along x, y and z. static_shared_bytes_per_block: shared memory that a
    block has without asking; max_shared_bytes_per_block: when it asks. reserved_shared_bytes_per_block: what the system takes beside, of
    shared_bytes_per_processor. shared_granularity_bytes, register_granularity: the pieces in which shared memory (of a block) and registers
    (of a warp) are given out. Registers have 32 bits; a processor has partitions_per_processor sets of them, of one size each, and a warp's
    are all in one.
    clock_hz: under load, the one that the vendor's peaks are for. f32_fma_per_cycle: multiply-adds of all threads of one processor.
    tensor_flops_per_cycle: by the dtype of factors, of one processor, dense, with sums in f32 (i32 for i8), two operations a product.
    memory_bytes_per_s: the vendor's bandwidth of device memory.
    features: what code is generated for, and `Intrinsic.features` are asked of. An architecture has its own name and those of all whose
    instructions it has. Beside these: "shuffle" (threads of a warp see each other's values without a barrier), "fp16", "bf16", "fp8",
    "fp64" (arithmetic or conversions of such values), "cp.async" and "tma" (copies to shared memory that do not occupy threads), "wgmma",
    "svm" (memory that host and device address alike), and AS_PTX.
    """

    kind: str
    arch: str
    product: str
    warp_size: int
    max_threads_per_block: int
    max_block: tuple[int, int, int]
    max_grid: tuple[int, int, int]
    max_threads_per_processor: int
    max_blocks_per_processor: int
    static_shared_bytes_per_block: int
    max_shared_bytes_per_block: int
    shared_bytes_per_processor: int
    reserved_shared_bytes_per_block: int
    shared_granularity_bytes: int
    registers_per_processor: int
    max_registers_per_block: int
    max_registers_per_thread: int
    register_granularity: int
    partitions_per_processor: int
    processors: int
    clock_hz: float
    f32_fma_per_cycle: float
    tensor_flops_per_cycle: tuple[tuple[str, int], ...]
    memory_bytes: int
    memory_bytes_per_s: float
    l2_bytes: int
    features: tuple[str, ...]

    def __post_init__(self) -> None:
        for field in fields(self):
            problem = _problem(field.name, getattr(self, field.name))
            if problem:
                raise TargetError(f"device {self.arch}: {field.name} is {getattr(self, field.name)!r}, must be {problem}")

    def has(self, feature: str) -> bool:
        """Whether the device has a feature."""
        return feature in self.features

    @property
    def copy_engines(self) -> tuple[str, ...]:
        """The ways to copy from global to shared memory without threads that wait: "cp.async", "tma"."""
        return tuple(name for name in _COPY_ENGINES if name in self.features)

    @property
    def f32_flops_per_s(self) -> float:
        """The peak of f32 multiply-adds of the whole device."""
        return 2 * self.f32_fma_per_cycle * self.processors * self.clock_hz

    def tensor_flops_per_s(self, dtype: str) -> float:
        """The dense peak of products of this dtype ("f16", "bf16", "tf32", "i8", "f8") on tensor cores; 0 where there are none for it."""
        return dict(self.tensor_flops_per_cycle).get(dtype, 0) * self.processors * self.clock_hz

    @property
    def key(self) -> str:
        """What measurements on the device are known by: its architecture, and the product and its size where they are not those of the
        table. What a driver says of clocks and memory is not part of it."""
        usual = device_called(self.kind, self.arch)
        changes = [f"{name}={getattr(self, name)}" for name in ("product", "processors") if getattr(self, name) != getattr(usual, name)]
        return f"{self.kind}:{','.join((self.arch, *changes))}"

    def fingerprint(self) -> str:
        """16 hex digits that differ when a decision may."""
        return hashlib.sha256(repr(dataclasses.astuple(self)).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """The entry of the table, and what differs from it: `sm_80` or `sm_90a,product=H200,...`."""
        usual = device_called(self.kind, self.arch)
        changes = [f.name for f in fields(self) if getattr(self, f.name) != getattr(usual, f.name)]
        return ",".join((self.arch, *(f"{name}={_format_fact(getattr(self, name))}" for name in changes)))


_MAY_BE_ZERO = frozenset(name.name for name in fields(DeviceFacts) if "shared_bytes" in name.name or name.name == "l2_bytes")
_NUMBERS = frozenset(field.name for field in fields(DeviceFacts) if field.type in ("int", "float"))
_RATES = frozenset(field.name for field in fields(DeviceFacts) if field.type == "float")
_SIZES = ("max_block", "max_grid")


def _problem(name: str, value: object) -> str | None:
    """What a fact must be, when it is not."""
    if name in _NUMBERS:
        good = type(value) is (float if name in _RATES else int) and 0 <= value < 2**63 and (value > 0 or name in _MAY_BE_ZERO)
        return None if good else "a positive number"
    if name in _SIZES:
        good = isinstance(value, tuple) and len(value) == 3 and all(type(size) is int and size > 0 for size in value)
        return None if good else "three positive numbers"
    if name == "features":
        good = isinstance(value, tuple) and all(isinstance(each, str) and _PLAIN.fullmatch(each) for each in value)
        return None if good else "a tuple of plain names"
    if name == "tensor_flops_per_cycle":
        good = isinstance(value, tuple) and all(pair[0] in TENSOR_DTYPES and type(pair[1]) is int for pair in value)
        return None if good else f"pairs of one of {', '.join(TENSOR_DTYPES)} and a number"
    return None if isinstance(value, str) and _PLAIN.fullmatch(value) else "a plain name"


def lacking(wanted: DeviceFacts, there: DeviceFacts) -> tuple[str, ...]:
    """What a device does not have of what code for another may use: features by name, and sizes in words. Versions of OpenCL do not count:
    code is text that the driver compiles, and what it uses beyond the first is a feature of its own."""
    features = [name for name in wanted.features if name not in (*there.features, AS_PTX) and not name.startswith("opencl_")]
    sizes = [name for name in _LIMITS if getattr(there, name) < getattr(wanted, name)]
    if wanted.has("shuffle") and wanted.warp_size != there.warp_size:
        sizes.append("warp_size")
    return (*features, *(f"{name}={getattr(wanted, name)} (it has {getattr(there, name)})" for name in sizes))


_LIMITS = ("max_threads_per_block", "max_shared_bytes_per_block", "max_registers_per_thread")


def plain_name(text: str) -> str:
    """A vendor's name of a device in the letters that a target's text may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-") or "unnamed"


# -- the table


@cache
def device_table() -> Mapping[tuple[str, str], DeviceFacts]:
    """The entries by kind and name, in order; an entry has what it does not say from the one that it is `like`."""
    table = json.loads(DEVICE_TABLE.read_text(encoding="utf-8"))
    assert table["schema"] == DEVICE_SCHEMA, f"{DEVICE_TABLE.name} has schema {table['schema']}"
    said: dict[str, dict[str, Any]] = {}
    found: dict[tuple[str, str], DeviceFacts] = {}
    for entry in table["devices"]:
        said[entry["name"]] = said.get(entry.get("like", ""), {}) | entry["facts"]
        facts = {name: _from_json(name, value) for name, value in said[entry["name"]].items()}
        found[entry["kind"], entry["name"]] = DeviceFacts(entry["kind"], entry["name"], entry["product"], **facts)
    return found


def _from_json(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(value.items())
    if isinstance(value, list):
        return tuple(value)
    return float(value) if name in _RATES else value


def known_archs(kind: str) -> tuple[str, ...]:
    """The names of the table's entries of a kind."""
    return tuple(name for of, name in device_table() if of == kind)


def device_called(kind: str, arch: str) -> DeviceFacts:
    """The entry of that name; UserError when there is none."""
    found = device_table().get((kind, arch))
    if found is None:
        raise TargetError(f"target: unknown {kind} device '{arch}'; known are {', '.join(known_archs(kind))}")
    return found


# -- text


def with_facts(device: DeviceFacts, facts: Mapping[str, str]) -> DeviceFacts:
    """A device with some facts changed, given as they are printed. UserError for what is no such fact."""
    known = [field.name for field in fields(DeviceFacts) if field.name not in ("kind", "arch")]
    for name in facts:
        if name not in known:
            raise TargetError(f"target: unknown fact '{name}' of a {device.kind} device; known are {', '.join(known)}")
    changed = {name: _parse_device_fact(name, text) for name, text in facts.items()}
    if facts.get("features", "").startswith("+"):  # these as well
        changed["features"] = tuple(dict.fromkeys((*device.features, *changed["features"])))
    return dataclasses.replace(device, **changed)


def _format_fact(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(f"{each[0]}:{each[1]}" if isinstance(each, tuple) else str(each) for each in value)
    return str(value)


def _parse_device_fact(name: str, text: str) -> Any:
    try:
        if name in _RATES:
            return float(text)
        if name in _NUMBERS:
            return int(text)
        parts = tuple(filter(None, text.split("+")))
        if name in _SIZES:
            return tuple(map(int, parts))
        if name == "tensor_flops_per_cycle":
            return tuple((dtype, int(rate)) for dtype, _, rate in (part.partition(":") for part in parts))
    except ValueError:
        raise TargetError(f"target: {name}={text} is not a number") from None
    return parts if name == "features" else text


# -- occupancy


def occupancy(threads: int, registers_per_thread: int, shared_bytes: int, facts: DeviceFacts) -> int:
    """How many blocks a processor holds at a time; 0 for a block that the device cannot run.

    `threads` of a block, `shared_bytes` of a block (static and dynamic together). The least of four limits: blocks, warps, registers
    (whole warps in each of the processor's partitions) and shared memory (with what the system takes, in whole pieces).
    Source: the rules of NVIDIA's occupancy calculator (CUDA toolkit, cuda_occupancy.h); AMD's units follow the same with their numbers.
    """
    if not 0 < threads <= facts.max_threads_per_block or registers_per_thread > facts.max_registers_per_thread:
        return 0
    warps = -(-threads // facts.warp_size)
    by_warps = facts.max_threads_per_processor // facts.warp_size // warps
    return min(facts.max_blocks_per_processor, by_warps, _by_registers(warps, registers_per_thread, facts), _by_shared(shared_bytes, facts))


def most_registers(threads: int, facts: DeviceFacts) -> int:
    """Registers of a thread of a block of so many threads: what compilers keep to."""
    warps = _round_up(-(-threads // facts.warp_size), facts.partitions_per_processor)
    of_warp = facts.max_registers_per_block // warps // facts.register_granularity * facts.register_granularity
    return min(facts.max_registers_per_thread, of_warp // facts.warp_size)


def _by_registers(warps: int, registers_per_thread: int, facts: DeviceFacts) -> int:
    if registers_per_thread <= 0:
        return facts.max_blocks_per_processor
    of_warp = _round_up(registers_per_thread * facts.warp_size, facts.register_granularity)
    partitions = facts.partitions_per_processor
    if of_warp * _round_up(warps, partitions) > facts.max_registers_per_block:
        return 0  # a launch is checked as if the block took the same of every partition
    return facts.registers_per_processor // partitions // of_warp * partitions // warps


def _by_shared(shared_bytes: int, facts: DeviceFacts) -> int:
    if shared_bytes > facts.max_shared_bytes_per_block:
        return 0
    taken = _round_up(shared_bytes + facts.reserved_shared_bytes_per_block, facts.shared_granularity_bytes)
    return facts.shared_bytes_per_processor // taken if taken else facts.max_blocks_per_processor


def _round_up(number: int, piece: int) -> int:
    return -(-number // piece) * piece
