"""What code is compiled for: instruction set, vector shape, cores and caches, and the device, where kernels run on one.

A `Target` is plain data and prints as text that `Target.parse` reads back, so that it can stand in file names, reports
and tuning records. It names no operating system and no object format: those belong to code generation.

Feature flags are trusted, CPU names are not: virtual machines report a name that does not go with their flags.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache

from llvmlite import binding as llvm

from tc.errors import ModuleFileError, TargetError
from tc.target.detect import cuda_facts, opencl_facts
from tc.target.device import DEVICE_KINDS, DeviceFacts, device_called, known_archs, lacking, occupancy, with_facts
from tc.target.host import (
    MAX_THREADS,
    SIZE_UNITS,
    HostCaches,
    affinity_cpus,
    available_cores,
    available_cpus,
    check_threads,
    default_threads,
    host_caches,
    host_features,
    parse_size,
)
from tc.target.table import MachineKind, kind_called, kind_of_cpu, machine_kinds

__all__ = [
    "MAX_THREADS",
    "MOST_SHUFFLED_STRIDE",
    "DeviceFacts",
    "Target",
    "affinity_cpus",
    "available_cores",
    "available_cpus",
    "check_threads",
    "default_threads",
    "native_target",
    "occupancy",
    "widest_vector_bits",
]

HOST_KINDS = ("cpu", "c")
"""Kinds whose kernels run on the CPU."""

MOST_SHUFFLED_STRIDE = 4
"""Elements that the lanes of a vector may lie apart in memory to be loaded as whole vectors and shuffled; beyond they are gathered, which
takes as long for any distance."""

# The psABI levels. Each adds to the one before; the first is what every x86-64 has.
_V1 = ("cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
_V2 = (*_V1, "crc32", "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

# What a CPU name may imply, and what must therefore be switched off by name where the machine lacks it.
_IMPLIED_BY_NAME = frozenset(_V4).difference(_V1) | {
    "adx", "aes", "amx-bf16", "amx-fp16", "amx-int8", "amx-tile", "avx10.1", "avx10.2", "avx512bf16",
    "avx512bitalg", "avx512fp16", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vnni", "avx512vp2intersect",
    "avx512vpopcntdq", "avxifma", "avxneconvert", "avxvnni", "avxvnniint16", "avxvnniint8", "fma4", "gfni", "pclmul",
    "prfchw", "rdrnd", "rdseed", "sha", "sse4a", "tbm", "vaes", "vpclmulqdq", "xop", "xsavec", "xsaveopt", "xsaves",
}  # fmt: skip

_LEAST = {"cores": 1, "num_vector_registers": 1, "l1_bytes": 1, "l2_bytes": 1, "l3_bytes": 0, "cache_line_bytes": 1}


@dataclass(frozen=True)
class Target:
    """The machine that code is compiled for.

    `cpu` is the name that LLVM takes instruction costs from; which instructions may be used is `features` alone
    (LLVM's names, sorted). `cores` counts the cores that the process may use. Cache sizes are in bytes:
    L1 data and L2 of one core, and the whole L3 that the cores share, 0 where there is none. `machine` names the kind of CPU whose rates
    are taken (an entry of `tc.target.table`); "": that of `cpu` and `features`, and what the user has had measured.
    Of the kinds "cuda", "opencl" and "rocm", whose kernels run on a `device`, all this is about the host, and `number` says which of the
    machine's devices runs them.
    """

    kind: str = "cpu"
    cpu: str = "x86-64"
    features: tuple[str, ...] = _V1
    vector_bits: int = 128
    num_vector_registers: int = 16
    cores: int = 1
    l1_bytes: int = 32 << 10
    l2_bytes: int = 256 << 10
    l3_bytes: int = 8 << 20
    cache_line_bytes: int = 64
    machine: str = ""
    device: DeviceFacts | None = None
    number: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or type(self.vector_bits) is not int:
            raise TargetError("target: kind must be a name, and vector_bits a whole number")
        if self.kind not in (*HOST_KINDS, *DEVICE_KINDS):
            raise TargetError(f"target: unknown kind '{self.kind}'; known are {', '.join((*HOST_KINDS, *DEVICE_KINDS))}")
        of_device = self.device.kind if isinstance(self.device, DeviceFacts) else None
        if of_device != (self.kind if self.kind in DEVICE_KINDS else None) or (self.device is not None and of_device is None):
            raise TargetError(f"target: {self.kind} {'needs the facts of such a device' if self.kind in DEVICE_KINDS else 'has no device'}")
        if type(self.number) is not int or self.number < 0 or (self.number and self.device is None):
            raise TargetError(f"target: number is {self.number!r}, must be that of a device")
        if not isinstance(self.cpu, str) or not isinstance(self.features, tuple) or not all(isinstance(f, str) for f in self.features):
            raise TargetError("target: cpu must be a name, and features a tuple of names")
        if self.vector_bits not in (128, 256, 512):
            raise TargetError(f"target: vector_bits is {self.vector_bits}, must be 128, 256 or 512")
        widest = widest_vector_bits(self.features)
        if self.vector_bits > widest:
            raise TargetError(f"target: vector_bits is {self.vector_bits}, but the features allow {widest} at most")
        for name, least in _LEAST.items():
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise TargetError(f"target: {name} is {getattr(self, name)!r}, must be at least {least}")
        if self.cores > MAX_THREADS:
            raise TargetError(f"target: cores is {self.cores}, must be at most {MAX_THREADS}")
        if self.machine:
            kind_called(self.machine)

    def has(self, feature: str) -> bool:
        """Whether instructions of `feature` (an LLVM name such as "avx512vnni") may be used."""
        return feature in self.features

    def lanes(self, dtype_bits: int) -> int:
        """How many elements of `dtype_bits` bits one vector register holds."""
        return self.vector_bits // dtype_bits

    @property
    def llvm_features(self) -> str:
        """The feature string for LLVM: everything on that is there, everything off that `cpu` might imply and is not.

        With 512-bit vectors LLVM's preference for 256-bit ones, which several CPU names carry, is off as well.
        """
        switches = [f"+{name}" for name in self.features]
        if not self.has("neon"):
            switches += [f"-{name}" for name in sorted(_IMPLIED_BY_NAME.difference(self.features))]
        if self.vector_bits == 512:
            switches.append("-prefer-256-bit")
        return ",".join(switches)

    def fingerprint(self) -> str:
        """16 hex digits that differ when the same program may become different machine code.

        Cores, cache sizes, rates and what a device can hold are not part of it: they act through the schedule, which is part of the
        program.
        """
        code_facts: tuple[object, ...] = (self.kind, self.cpu, self.features, self.vector_bits)
        if self.device is not None:
            code_facts += (self.device.arch, self.device.features)
        return hashlib.sha256(repr(code_facts).encode()).hexdigest()[:16]

    @property
    def device_text(self) -> str:
        """The device without its number and its host: `cuda:sm_80`; "" where there is none."""
        return "" if self.device is None else f"{self.kind}:{self.device}"

    @property
    def host(self) -> Target:
        """The CPU that runs what does not run on a device."""
        return self if self.device is None else replace(self, kind="cpu", device=None, number=0)

    def missing_here(self) -> tuple[str, ...]:
        """What this machine, and the device with this number, do not have of what code for the target may use. UserError where there is no
        such device."""
        missing = tuple(sorted(set(self.features) - set(native_target().features)))
        if self.device is None:
            return missing
        return missing + lacking(self.device, _facts_of_number(self.kind, self.number))

    def require_here(self) -> None:
        """ModuleFileError where this machine, or the device with this number, lacks what code for the target may use: the operating system
        would answer an instruction that is not there by ending the process."""
        missing = self.missing_here()
        if missing:
            where = "a CPU" if self.device is None else f"{self.kind} device {self.number} and a CPU"
            raise ModuleFileError(
                f"the module was compiled for {where} with {', '.join(missing)}, which this machine lacks; it can be saved, and run where "
                "they are",
                code="TC4011",
            )

    def __str__(self) -> str:
        """`BASE:key=value,...`, where BASE is an x86-64 level if one fits and "cpu" otherwise; `DEVICE@HOST` where there is a device."""
        if self.device is not None:
            number = f",number={self.number}" if self.number else ""
            return f"{self.device_text}{number}@{self.host}"
        for level, machine in _LEVELS.items():
            if self == replace(machine, cores=self.cores):
                return f"{level}:cores={self.cores}"
        facts = {
            "name": self.cpu,
            "vector_bits": self.vector_bits,
            "registers": self.num_vector_registers,
            "cores": self.cores,
            "l1": _format_size(self.l1_bytes),
            "l2": _format_size(self.l2_bytes),
            "l3": _format_size(self.l3_bytes),
            "line": self.cache_line_bytes,
            "features": "+".join(self.features),
        }
        if self.machine:
            facts["machine"] = self.machine
        return f"{self.kind}:" + ",".join(f"{key}={value}" for key, value in facts.items())

    @staticmethod
    def of(target: object) -> Target:
        """A target, or the text of one. UserError for anything else."""
        if isinstance(target, Target):
            return target
        if not isinstance(target, str):
            raise TargetError(f"target is a {type(target).__name__}, must be a name such as 'native', or a tc.Target")
        return Target.parse(target)

    @staticmethod
    def parse(text: str) -> Target:
        """Read a target from text.

            native                        this machine
            x86-64-v2, -v3, -v4           any machine of that level, with modest caches
            native:cores=1,l2=1M          the same with some facts changed
            x86-64-v4:machine=znver4      the same, with the rates of a kind of CPU
            cpu:name=...,features=a+b     every fact given, the rest as for plain x86-64
            c, c:cores=1                  this machine, with some facts changed; its kernels are C, and the system's compiler makes code
            cuda, cuda:1                  the first, the second CUDA device of this machine
            cuda:sm_80, rocm:gfx942       a device of that architecture, which need not be here
            cuda:sm_80,processors=56      the same with some facts changed
            opencl, opencl:1              the first, the second OpenCL device of this machine
            opencl:generic                a plain OpenCL device, which need not be here
            cuda:sm_80@x86-64-v4          a device and its host; without one it is this machine

        Raises UserError for a name or a fact that is not known, and for a device of this machine that is not there.
        """
        if not isinstance(text, str):
            raise TargetError(f"target is a {type(text).__name__}, must be a name such as 'native'")
        base, _, facts = text.strip().partition(":")
        kind = base.partition("@")[0]
        if kind in DEVICE_KINDS:
            return _parse_device_target(kind, text.strip().removeprefix(kind).removeprefix(":"))
        if base == "native":
            target = native_target()
        elif base == "cpu":
            target = Target()
        elif base == "c":
            target = _for_c_compiler(native_target())
        elif base in _LEVELS:
            target = replace(_LEVELS[base], cores=default_threads())
        else:
            known = ", ".join(("native", *_LEVELS, "cpu:...", "c", "cuda", "cuda:sm_80", "opencl", "rocm:gfx942"))
            raise TargetError(f"target: unknown target '{text}'; {_meant(base, facts)}known are {known}")
        return _with_facts(target, facts) if facts else target


def _meant(base: str, facts: str) -> str:
    """What an unknown target names without its kind, or with another one's: a device, or a kind of CPU. As a question; "" where there is
    none."""
    wanted = {base, *facts.split(",")[:1]}
    found = [f"'{kind}:{arch}'" for kind in DEVICE_KINDS for arch in known_archs(kind) if arch in wanted]
    kinds = [kind for kind in machine_kinds().values() if base in kind.names and kind.family != "arm"]
    found += [f"'{_level_of(kind)}:machine={kind.name}'" for kind in kinds]
    return f"did you mean {' or '.join(found)}? " if found else ""


def _level_of(kind: MachineKind) -> str:
    """The highest x86-64 level that the CPUs of an entry have."""
    if any(feature.startswith("avx512") for feature in kind.features):
        return "x86-64-v4"
    return "x86-64-v3" if "avx2" in kind.features else "x86-64-v2"


def _parse_device_target(kind: str, text: str) -> Target:
    """The device and its host that `text`, what stands after the kind, names."""
    which, _, host_text = text.partition("@")
    host = Target.parse(host_text) if host_text else native_target()
    if host.device is not None:
        raise TargetError(f"target: '{host_text}' is a device, must be a CPU")
    first, *rest = which.split(",")
    if "=" in first or not first:
        first, rest = "0", list(filter(None, (first, *rest)))
    facts = dict(map(_split_fact, rest))
    if first.isdecimal():
        return replace(host, kind=kind, device=with_facts(_facts_of_number(kind, int(first)), facts), number=int(first))
    number = facts.pop("number", "0")
    if not number.isdecimal():
        raise TargetError(f"target: number={number} is not the number of a device")
    return replace(host, kind=kind, device=with_facts(device_called(kind, first), facts), number=int(number))


def _facts_of_number(kind: str, number: int) -> DeviceFacts:
    """What is known of a device of this machine. UserError when it is not there."""
    if kind not in _DETECTION:
        archs = ", ".join(f"{kind}:{arch}" for arch in known_archs(kind))
        raise TargetError(
            f"target: no {kind} device is looked for: kernels for {archs} are written as text (tc compile --emit), and not run"
        )
    return _DETECTION[kind](number)


_DETECTION = {"cuda": cuda_facts, "opencl": opencl_facts}


_WRITTEN_BY_NAME = ("amx-", "avx512vnni", "avxvnni", "avx512bf16")
"""How features begin whose instructions no compiler of C chooses by itself for loops."""


def _for_c_compiler(target: Target) -> Target:
    """The same machine for kernels in C: without features that they have no use for."""
    features = tuple(name for name in target.features if not name.startswith(_WRITTEN_BY_NAME))
    return replace(target, kind="c", features=features)


def widest_vector_bits(features: tuple[str, ...]) -> int:
    """The widest vectors for which `features` have a complete instruction set, integers included."""
    present = set(features)
    if present.issuperset(("avx512f", "avx512bw", "avx512dq", "avx512vl")):
        return 512
    return 256 if "avx2" in present else 128


def native_target() -> Target:
    """The machine this process runs on, with the cores it uses unless told."""
    return replace(_host_target(), cores=default_threads())


@cache
def _host_target() -> Target:
    features = host_features()
    cpu = llvm.get_host_cpu_name() or "generic"
    vector_bits = widest_vector_bits(features)
    many_registers = vector_bits == 512 or "neon" in features
    target = Target(cpu=cpu, features=features, vector_bits=vector_bits, num_vector_registers=32 if many_registers else 16)
    usual = kind_of_cpu(cpu, features).caches
    target = replace(target, l1_bytes=usual.l1_bytes, l2_bytes=usual.l2_bytes, l3_bytes=usual.l3_bytes)
    return _with_caches(target, host_caches())


def _with_caches(target: Target, found: HostCaches) -> Target:
    """`target` with what the system says of one CPU's caches; what it leaves out stays."""
    return replace(
        target,
        l1_bytes=found.sizes.get(1, target.l1_bytes),
        l2_bytes=found.sizes.get(2, target.l2_bytes),
        l3_bytes=found.sizes.get(3, 0 if found.sizes else target.l3_bytes),
        cache_line_bytes=found.line_bytes or target.cache_line_bytes,
    )


def _format_size(size_bytes: int) -> str:
    for unit in ("G", "M", "K"):
        if size_bytes and size_bytes % SIZE_UNITS[unit] == 0:
            return f"{size_bytes // SIZE_UNITS[unit]}{unit}"
    return str(size_bytes)


_FACT_FIELDS = {
    "vector_bits": "vector_bits",
    "registers": "num_vector_registers",
    "cores": "cores",
    "l1": "l1_bytes",
    "l2": "l2_bytes",
    "l3": "l3_bytes",
    "line": "cache_line_bytes",
}


def _with_facts(target: Target, text: str) -> Target:
    """`target` with the facts of `key=value,...` put in. Without a word on vectors, they follow the features."""
    changes: dict[str, object] = {}
    for fact in text.split(","):
        key, value = _split_fact(fact)
        if key == "name":
            changes["cpu"] = value
        elif key == "features":
            changes["features"] = tuple(sorted(filter(None, value.split("+"))))
        elif key == "machine":
            changes["machine"] = value
        elif key in _FACT_FIELDS:
            changes[_FACT_FIELDS[key]] = _parse_fact(key, value)
        else:
            known = ", ".join(("name", "features", *_FACT_FIELDS, "machine"))
            raise TargetError(f"target: unknown fact '{key}'; known are {known}")
    if "features" in changes:
        vector_bits = widest_vector_bits(changes["features"])  # type: ignore[arg-type]
        changes.setdefault("vector_bits", vector_bits)
        changes.setdefault("num_vector_registers", 32 if vector_bits == 512 else 16)
    return replace(target, **changes)  # type: ignore[arg-type]


def _split_fact(fact: str) -> tuple[str, str]:
    key, equals, value = fact.strip().partition("=")
    if not equals or (not value and not key.endswith(_MAY_BE_NONE)):
        raise TargetError(f"target: '{fact}' is not of the form key=value")
    return key, value


_MAY_BE_NONE = ("features", "tensor_flops_per_cycle")


def _parse_fact(key: str, value: str) -> int:
    number = parse_size(value)
    if number is None:
        raise TargetError(f"target: {key}={value} is not a number (sizes may end in K, M or G)")
    return number


def _level(name: str, features: tuple[str, ...], vector_bits: int, registers: int = 16) -> Target:
    """A machine of an x86-64 level, with the caches that the table says."""
    caches = kind_called(name).caches
    sizes = (caches.l1_bytes, caches.l2_bytes, caches.l3_bytes)
    return Target("cpu", name, tuple(sorted(features)), vector_bits, registers, 1, *sizes)


_LEVELS = {
    "x86-64-v2": _level("x86-64-v2", _V2, 128),
    "x86-64-v3": _level("x86-64-v3", _V3, 256),
    "x86-64-v4": _level("x86-64-v4", _V4, 512, 32),
}
