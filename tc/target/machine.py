"""The rates that a target's cores are taken to have: one table, read by whatever chooses between ways to compute.

They are those of the target's kind of CPU (`tc.target.table`), unless the user has had this machine measured: `tc doctor --measure`
writes a file, which counts for the CPU that it was measured on and for no other. Nothing is measured while a model is compiled, so the same
model, target and table give the same code. A process reads the file once.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import platformdirs

from tc.errors import TargetError, UserError
from tc.target import Target
from tc.target.table import SCHEMA, CoreRates, MachineKind, checked_rates, kind_called, kind_of_cpu

MOST_BYTES = 1 << 16
"""Of a file of measured rates."""


@dataclass(frozen=True)
class MachineTable:
    """What is taken to be known of a target: the kind of its CPU, its rates, and the file from which some of these are."""

    kind: MachineKind
    rates: CoreRates
    measured: Path | None = None
    measured_names: tuple[str, ...] = ()


def machine_of(target: Target) -> CoreRates:
    """The rates of a target's cores."""
    return table_of(target).rates


def machine_fingerprint(target: Target) -> str:
    """16 hex digits that differ when the same program may get another schedule for the target: part of the key of whatever is kept."""
    return machine_of(target).fingerprint() if target.device is None else target.device.fingerprint()


def table_of(target: Target) -> MachineTable:
    """What decisions for a target rest on. UserError for a file of measured rates that is damaged."""
    path = None if target.machine else measured_path()
    return _table_of(target, path)


@lru_cache(maxsize=256)
def _table_of(target: Target, path: Path | None) -> MachineTable:
    kind = kind_called(target.machine) if target.machine else kind_of_cpu(target.cpu, target.features)
    numbers = None if path is None else _measured_rates(path, target.fingerprint())
    if numbers is None:
        return MachineTable(kind, kind.rates)
    return MachineTable(kind, dataclasses.replace(kind.rates, **numbers), path, tuple(numbers))


def measured_path() -> Path | None:
    """The file of measured rates: TC_MACHINE_FILE, else one in the user's folder of settings. None when TC_MACHINE_FILE is "0" or "off"."""
    chosen = os.environ.get("TC_MACHINE_FILE")
    if chosen in ("0", "off"):
        return None
    return Path(chosen) if chosen else _usual_path()


@cache
def _usual_path() -> Path:
    return Path(platformdirs.user_config_dir("tc")) / "machine.json"


def _measured_rates(path: Path, fingerprint: str) -> dict[str, float] | None:
    """What a file says of the CPU with this fingerprint; None when it says nothing, or is not there."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TargetError(f"{path}: {error.strerror or error}") from error
    return _parse(data, path).get(fingerprint)


def _parse(data: bytes, path: Path) -> dict[str, dict[str, float]]:
    """Rates by the fingerprint of a CPU."""
    advice = "`tc doctor --forget` removes it"
    try:
        found = json.loads(data) if len(data) <= MOST_BYTES else None
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("machines"), dict):
        raise TargetError(f"{path} is not a file of measured rates; {advice}")
    if found.get("schema") != SCHEMA:
        return {}  # of another version, which measured other things
    machines: dict[str, Any] = found["machines"]
    for name, entry in machines.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("rates"), dict):
            raise TargetError(f"{path}: no rates of {name}; {advice}")
    return {name: checked_rates(entry["rates"], str(path)) for name, entry in machines.items()}


def write_measured(target: Target, rates: Mapping[str, float], path: Path) -> None:
    """Write what was measured of a target's CPU, beside what the file says of others; it appears complete or not at all."""
    known = checked_rates(rates, "measured rates")
    others = _entries_kept(path)
    text = json.dumps({"schema": SCHEMA, "machines": {**others, target.fingerprint(): {"cpu": target.cpu, "rates": known}}}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text + "\n", encoding="utf-8")
    unfinished.replace(path)
    _table_of.cache_clear()


def _entries_kept(path: Path) -> dict[str, Any]:
    """What a file says of CPUs; nothing where it is not there, damaged, or of another version."""
    try:
        data = path.read_bytes()
        return json.loads(data)["machines"] if _parse(data, path) else {}
    except (FileNotFoundError, NotADirectoryError, UserError):
        return {}


def forget_measured(path: Path) -> bool:
    """Remove a file of measured rates; whether there was one."""
    there = path.exists()
    path.unlink(missing_ok=True)
    _table_of.cache_clear()
    return there
