"""What `benchmarks.gpu` has found, for people: tables in Markdown, all of it as JSON. A cell without a number says why."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Results = Mapping[str, Mapping[str, Any]]


def in_short(row: Mapping[str, Any]) -> str:
    """A result in one line."""
    if "problem" in row:
        return f"no result: {row['problem']}"
    parts = []
    if "right" in row:
        parts.append("right" if row["right"] else "WRONG")
    parts += [f"error {row['error']:.1e} of {row['bound']:.1e}" for _ in "x" if "error" in row]
    parts += [str(row["said"]) for _ in "x" if "said" in row]
    parts += [f"{name} {_seconds(value)}" for name, value in row.get("seconds", {}).items()]
    parts += [f"{_ratio(value)} {name}" for name, value in row.get("ratios", {}).items()]
    parts += [f"{name}: {why}" for name, why in row.get("missing", {}).items()]
    for key, unit, scale in (("flops_per_second", "TFLOP/s", 1e12), ("bytes_per_second", "TB/s", 1e12)):
        parts += [f"{row[key] / scale:.3g} {unit}" for _ in "x" if key in row]
    return ", ".join(parts)


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"


def _ratio(value: Sequence[float]) -> str:
    """How many times faster than a peer: the median and the quartiles."""
    median, low, high = value
    return f"{median:.2f}x [{low:.2f}, {high:.2f}]"


def peaks(results: Results) -> dict[str, float]:
    """What the device was seen to reach, as far as it was measured: operations and bytes a second."""
    found = {}
    for row, key in (("peak/matmul", "flops_per_second"), ("peak/copy", "bytes_per_second")):
        if key in results.get(row, {}):
            found[key] = float(results[row][key])
    return found


def fractions(row: Mapping[str, Any], known: Mapping[str, float]) -> dict[str, float]:
    """The parts of the measured peak and bandwidth that tc's program reaches; what was not measured is left out."""
    seconds = row.get("seconds", {}).get("tc")
    found = {}
    for amount, key, name in (("flops", "flops_per_second", "peak"), ("bytes", "bytes_per_second", "bandwidth")):
        if seconds and row.get(amount) and key in known:
            found[name] = row[amount] / seconds / known[key]
    return found


def write(name: Path, results: Results, rows: Iterable[str]) -> None:
    """NAME.json with every result, NAME.md with tables of the rows."""
    rows, known = list(rows), peaks(results)
    data = {"peaks": known, "results": [results[row] for row in results]}
    name.with_name(f"{name.name}.json").write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    name.with_name(f"{name.name}.md").write_text("\n".join(_markdown(results, rows, known)) + "\n", encoding="utf-8")


def _markdown(results: Results, rows: Sequence[str], known: Mapping[str, float]) -> list[str]:
    lines = ["# On a GPU", "", *_facts(results), ""]
    lines += ["Ratios are a peer's time over tc's, pair by pair: the median and the quartiles. Above 1 tc is faster.", ""]
    lines += ["| row | result | of measured peak | of measured bandwidth | device | when |", "|---|---|---|---|---|---|"]
    for row in rows:
        found = results.get(row, {})
        parts = fractions(found, known)
        cells = [f"{parts[key]:.2f}" if key in parts else "" for key in ("peak", "bandwidth")]
        cells += [found.get("facts", {}).get("device", ""), found.get("when", "")]
        lines.append(f"| {row} | {in_short(found) if found else 'not measured'} | {' | '.join(cells)} |")
    return lines


def _facts(results: Results) -> list[str]:
    """The devices and versions that results are from, each set once."""
    seen: dict[str, None] = {}
    for row in results.values():
        if "facts" in row:
            seen[", ".join(f"{name} {value}" for name, value in row["facts"].items() if value)] = None
    return [f"- {each}" for each in seen] or ["Nothing was measured."]
