"""What this process finds on its machine: logical CPUs and how many of them it may use, features, and cache sizes.

It knows Linux's description of a machine; where another system says less, less is known. Nothing here is measured.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from llvmlite import binding as llvm

from tc.errors import TargetError
from tc.target.tile_permission import may_use_tiles

MAX_THREADS = 256
"""The most threads that a call may use: the workers' room, and kernels' scratch memory, is for so many."""

_SYSFS = Path("/sys")
_PROC = Path("/proc")
_SIZE = re.compile(r"(\d+)([KMG]?)")
SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def available_cpus() -> int:
    """How many logical CPUs this process may keep busy: its affinity mask, bounded by its cgroup's quota.

    A quota of 2.5 CPUs counts as 2: threads that wait for each other must all be running.
    """
    return _within_quota(len(affinity_cpus()), _cgroup_quota(_PROC, _SYSFS))


def available_cores() -> int:
    """Like `available_cpus`, but two hardware threads of one core count once."""
    siblings = {_siblings(cpu) for cpu in affinity_cpus()}
    return _within_quota(len(siblings), _cgroup_quota(_PROC, _SYSFS))


@cache
def _siblings(cpu: int) -> str:
    """The hardware threads of the core that one belongs to, as the kernel writes them."""
    return _read(_cpu_folder(cpu) / "topology/thread_siblings_list") or str(cpu)


def default_threads() -> int:
    """How many threads a call uses unless told: TC_NUM_THREADS, else OMP_NUM_THREADS, else as many as there are cores.

    UserError for a TC_NUM_THREADS that is no such number. Other libraries read OMP_NUM_THREADS as well, so an odd value of it counts as
    none, and of a list of levels ("4,2") the first is meant.
    """
    own = os.environ.get("TC_NUM_THREADS", "").strip()
    if own:
        return check_threads(int(own) if own.isdecimal() else own, "TC_NUM_THREADS")
    shared = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    count = int(shared) if shared.isdecimal() else 0
    return count if 1 <= count <= MAX_THREADS else min(available_cores(), MAX_THREADS)


def check_threads(count: object, what: str = "threads") -> int:
    """A number of threads that a user gave; UserError, which calls it `what`, for anything but a whole number that can be served."""
    try:
        number = operator.index(count)  # type: ignore[arg-type]
    except TypeError:
        raise TargetError(f"{what} is {count!r}, must be a whole number from 1 to {MAX_THREADS}") from None
    if isinstance(count, bool) or number < 1:
        raise TargetError(f"{what} is {count}, must be at least 1")
    if number > MAX_THREADS:
        raise TargetError(f"{what} is {count}, must be at most {MAX_THREADS}")
    return number


def affinity_cpus() -> tuple[int, ...]:
    """The numbers of the logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@dataclass(frozen=True)
class HostCaches:
    """What the system says of one CPU's caches: bytes by level, of data, and of a line; empty and 0 where it says nothing."""

    sizes: Mapping[int, int]
    line_bytes: int = 0


def host_features() -> tuple[str, ...]:
    """LLVM's names of what the CPU has and this process may use, sorted; none where LLVM cannot ask this operating system."""
    try:
        found = dict(llvm.get_host_cpu_features())
    except RuntimeError:
        return ()
    if found.get("amx-tile") and not may_use_tiles():
        found |= dict.fromkeys((name for name in found if name.startswith("amx-")), False)
    return tuple(sorted(name for name, present in found.items() if present))


def _cpu_folder(cpu: int) -> Path:
    return _SYSFS / f"devices/system/cpu/cpu{cpu}"


def host_caches(folder: Path | None = None) -> HostCaches:
    """The caches of the first CPU that this process may use, or those that the kernel describes in `folder`."""
    folder = _cpu_folder(affinity_cpus()[0]) / "cache" if folder is None else folder
    sizes, line_bytes = {}, 0
    for index in sorted(folder.glob("index*")):
        level, size = _read(index / "level"), parse_size(_read(index / "size"))
        if _read(index / "type") == "Instruction" or not level.isdecimal():
            continue
        if size:
            sizes[int(level)] = size
        line_bytes = parse_size(_read(index / "coherency_line_size")) or line_bytes
    return HostCaches(sizes, line_bytes)


def _within_quota(cpus: int, quota: float | None) -> int:
    return max(1, cpus if quota is None else min(cpus, int(quota)))


@cache  # a dozen files, for which every kernel of a model would ask
def _cgroup_quota(proc: Path, sysfs: Path) -> float | None:
    """The CPU time that this process's control groups allow when it is first asked, in CPUs; None without a bound.

    Every group above the process's own counts too. Reads version 2 (`cpu.max`) and version 1 (`cpu.cfs_quota_us`).
    """
    quotas = []
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        mounts = ("", "unified") if not controllers else (controllers, "cpu")
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in mounts:
            quotas += _quotas_up_from(sysfs / "fs/cgroup" / mount, group)
    return min(quotas, default=None)


def _quotas_up_from(root: Path, group: str) -> list[float]:
    folder = root / group.strip("/")
    folders = [folder, *folder.parents]
    bounds = (_folder_quota(at) for at in folders[: folders.index(root) + 1])
    return [bound for bound in bounds if bound is not None]


def _folder_quota(folder: Path) -> float | None:
    fields = _read(folder / "cpu.max").split()
    if not fields:
        fields = [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
    try:
        quota, period = (int(field) for field in fields)
    except ValueError:  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def parse_size(text: str) -> int | None:
    """A number that may end in K, M or G; None for anything else."""
    matched = _SIZE.fullmatch(text.strip())
    return int(matched[1]) * SIZE_UNITS[matched[2]] if matched else None
