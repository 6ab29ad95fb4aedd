"""HELD_OUT.md: how near the default schedules come to what a search finds, from the rows in HELD_OUT.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import replace_file

Row = Mapping[str, Any]

INTRODUCTION = """\
# Shapes that no constant was tuned on

Kernels whose sizes a seed draws, one thread. The ratio is the time of the best schedule that a search of 100 trials found, timed again
in turns with the default, over the default's (median and quartiles of pairs): 1 where nothing faster was found. Kernels whose rule
leaves nothing open are listed and do not count. Made by `python -m benchmarks.held_out --seed N`; traces of the winners are in
HELD_OUT.json.
"""


def write(path: Path, rows: Sequence[Row]) -> None:
    """Both files."""
    replace_file(path, json.dumps({"rows": rows}, indent=1) + "\n")
    replace_file(path.with_suffix(".md"), as_markdown(rows))


def as_line(row: Row) -> str:
    """One kernel for the terminal."""
    words = f"{row['class']}/{row['name']}"
    wrong = f"  WRONG: {row['wrong']}" if row["wrong"] else ""
    return f"{words:48} {_ratio(row):20} {1e6 * row['default_seconds']:9.1f} us  {row['trials']} {row['shape']} {_knobs(row)}{wrong}"


def as_markdown(rows: Sequence[Row]) -> str:
    parts = [INTRODUCTION]
    for seed in sorted({row["seed"] for row in rows}):
        parts.append(_seed_text(seed, [row for row in rows if row["seed"] == seed]))
    return "\n".join(parts)


def value(row: Row) -> float:
    """The part of the best known speed that the default has; no more than 1."""
    return min(1.0, float(row["ratio"][0]))


def _seed_text(seed: int, rows: Sequence[Row]) -> str:
    counted = [row for row in rows if row["is_open"]]
    classes = {kind: [row for row in counted if row["class"] == kind] for kind in dict.fromkeys(row["class"] for row in rows)}
    lines = [f"## Seed {seed}", "", "| class | kernels | geometric mean | worst |", "|---|---:|---:|---|"]
    lines += [f"| {kind} | {len(own)} | {_summary(own)} |" for kind, own in [*classes.items(), ("all", counted)] if own]
    lines += ["", "| kernel | operands | default, us | best / default | trials | what differs (default, best) |"]
    lines += ["|---|---|---:|---:|---:|---|"]
    for row in rows:
        trials = ", ".join(f"{count}{f' {tuner}' if tuner != 'new' else ''}" for tuner, count in row["trials"].items())
        shape = row["shape"] + "".join(f", {name}={size}" for name, size in row["sizes"].items())
        cells = (f"{row['class']}: {row['name']}", shape, f"{1e6 * row['default_seconds']:.1f}", _ratio(row), trials, _knobs(row))
        lines.append(f"| {' | '.join(cells)} |")
    wrong = [f"- wrong results: {row['class']}, {row['name']}: {row['wrong']}" for row in rows if row["wrong"]]
    where = sorted({_origin(row) for row in rows})
    return "\n".join([*lines, "", *wrong, *([""] if wrong else []), *where, ""])


def _origin(row: Row) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    return f"- {row['date']}, commit {row['commit']}, {row['cpu']}, {row['features']}; {versions}"


def _summary(rows: Sequence[Row]) -> str:
    worst = min(rows, key=value)
    return f"{_geomean(map(value, rows)):.3f} | {value(worst):.2f} ({worst['name']})"


def _ratio(row: Row) -> str:
    if not row["is_open"]:
        return "one schedule"
    median, low, high = row["ratio"]
    return f"{median:.2f} [{low:.2f}, {high:.2f}]{' old' if row['tuner'] == 'old' else ''}"


def _knobs(row: Row) -> str:
    return "; ".join(f"{name} {_short(default)} -> {_short(best)}" for name, (default, best) in row["differing"].items())


def _short(answer: Any) -> str:
    return "-" if answer is None else str(answer)


def _geomean(values: Iterable[float]) -> float:
    logs = [math.log(each) for each in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
