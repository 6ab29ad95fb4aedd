"""How much memory there is, and calls that need more: refused before they run, not killed while they do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tc.errors import LimitError

_UNASKED_BYTES = 256 << 20
"""So little is not asked for: the third of a millisecond that it takes is then a hundredth of touching the memory."""
_KIB = 1024
_GIB = 1 << 30


def check_fits(needed_bytes: int) -> None:
    """LimitError with both numbers when so much memory is needed, and less is there."""
    if needed_bytes <= _UNASKED_BYTES:
        return
    there = available_bytes()
    if there is not None and needed_bytes > there:
        raise LimitError(
            f"the call needs {needed_bytes} bytes ({needed_bytes / _GIB:.1f} GiB) for results and values in between, "
            f"but {there} ({there / _GIB:.1f} GiB) are available on this machine, or to this control group"
        )


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this process may still take: what the machine has, or its control groups leave if that is less. None if no file says."""
    found = [size for size in (_machine(root), *_control_groups(root)) if size is not None]
    return min(found, default=None)


def _machine(root: Path) -> int | None:
    fields = dict(line.split(":", 1) for line in _text(root / "proc/meminfo").splitlines() if ":" in line)
    for name in ("MemAvailable", "MemTotal"):
        words = fields.get(name, "").split()
        if words and words[0].isdigit():
            return int(words[0]) * _KIB
    return None


def _control_groups(root: Path) -> Iterator[int | None]:
    """What each group leaves in which this process is, up to the root of its hierarchy, of version 2 and of version 1."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from _up(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            yield from _up(base, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _up(base: Path, path: str, limit: str, usage: str, cached: str) -> Iterator[int | None]:
    """Of a group and those around it. In a container the path may be of the host: the base is always asked."""
    parts = PurePosixPath(path.strip("/"))
    for group in dict.fromkeys((parts, *parts.parents, PurePosixPath("."))):
        if ".." in group.parts:
            continue
        folder = base / group
        most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
        if most.isdigit() and used.isdigit():
            stat = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
            yield max(int(most) - int(used) + int(stat.get(cached, 0)), 0)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
