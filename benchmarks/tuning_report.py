"""TUNING.md: what tuning gains, and how fast, from the runs in TUNING.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import replace_file

NEAR = 0.95
"""A search has arrived when it is at this part of the best speed known."""

INTRODUCTION = """\
# What tuning gains

Times are ratios to the untuned default, taken in turns (see `tc/autotune/timing.py`), so they hold on a machine whose speed drifts;
literals are read as cold as a run of their model finds them. Made by `python -m benchmarks.tuning`.
"""


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Both files."""
    replace_file(path, json.dumps(_plain(data), indent=1) + "\n")
    parts = [INTRODUCTION]
    if data.get("models"):
        parts.append(models_table(data["models"]))
    if data.get("kernels"):
        parts.append(kernels_text(data["kernels"]))
    replace_file(path.with_suffix(".md"), "\n".join(parts))


def models_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Whole models."""
    lines = ["## Whole models", ""]
    head = ("model", "threads", "budget", "untuned / tuned", "best peer / tuned", "peer", "trials", "failed", "kernels", "date", "commit")
    lines += _table(head, map(_model_row, rows))
    for name in ("default_over_tuned", "peer_over_tuned"):
        lines.append(f"Geometric mean, {name.replace('_', ' ')}: {_geomean(row[name]['median'] for row in rows):.3f}.")
    return "\n".join([*lines, ""])


def _model_row(row: Mapping[str, Any]) -> tuple[object, ...]:
    gains = (_ratio(row["default_over_tuned"]), _ratio(row["peer_over_tuned"]))
    untuned, tuned, _ = row["kernels_ms"]
    counts = (row["trials"], row["failures"], f"{untuned:.2f} -> {tuned:.2f} ms")
    return (row["model"], row["threads"], f"{row['budget_seconds']:.0f} s", *gains, row["peer"], *counts, row["date"], row["commit"])


def kernels_text(data: Mapping[str, Any]) -> str:
    """Kernels one by one, and what they say about search and model."""
    runs = [{**run, "ratios": [math.inf if ratio is None else ratio for ratio in run["ratios"]]} for run in data["runs"]]
    names = list(dict.fromkeys(run["task"] for run in runs if run["policy"] == "model"))
    gains, rows, ratios = [], [], {"random": [], "evolutionary": []}
    for name in names:
        own = [run for run in runs if run["task"] == name and not run["transfer"]]
        tuned = [run for run in own if run["policy"] == "model"]
        best = min(run["verified"] for run in own)
        trials = {policy: _median(trials_to(r, best / NEAR) for r in own if r["policy"] == policy) for policy in ("model", *ratios)}
        gain = _geomean(1 / run["verified"] for run in tuned)
        gains.append(gain)
        transferred = [trials_to(run, best / NEAR) for run in runs if run["task"] == name and run["transfer"]]
        counts = map(_count, (*trials.values(), _median(transferred)))
        rows.append((name, f"{gain:.2f}", f"{1 / best:.2f}", *counts, tuned[0]["variant"]))
        if best < NEAR:  # else the default is there already
            for policy in ratios:
                ratios[policy].append((trials["model"], trials[policy]))
    lines = [f"## Kernels, {data['trials']} trials each, {data['date']}, commit {data['commit']}", ""]
    head = ("kernel", "gain", "best known", "model", "evolution", "random", "with transfer", "variant")
    lines += ["Gain: of the model's search, verified, geometric mean over seeds; then trials to 95 % of the best known speed, medians.", ""]
    lines += _table(head, rows)
    lines.append(f"Gain over the default: geometric mean {_geomean(gains):.3f}, least {min(gains):.3f}.")
    for policy, pairs in ratios.items():
        shares = [a / b for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
        if shares:
            lost = sum(not math.isfinite(a) for a, _ in pairs)
            share = f"median {np.median(shares):.2f} of {len(shares)} kernels ({lost} not reached)"
            lines.append(f"Trials of the model's search over those of {policy}: {share}.")
    accuracy = [(n, f"{a['rank_accuracy']:.3f}", f"{a['top_recall']:.2f}", a["pairs"]) for n, a in data.get("accuracy", {}).items()]
    if accuracy:
        lines += ["", "Pairs of held-out candidates of unseen kernels in the right order:", ""]
        lines += _table(("model", "in order", "top-8 recall", "pairs"), accuracy)
    lines.append(expectation(runs))
    return "\n".join([*lines, ""])


def expectation(runs: Sequence[Mapping[str, Any]]) -> str:
    """What the scheduler expected of doubling the trials, halfway, beside what came."""
    expected = realised = 0.0
    for run in runs:
        if run["policy"] != "model" or len(run["batches"]) < 4:
            continue
        half = len(run["batches"]) // 2
        trials = sum(run["batches"][:half])
        ratios = [ratio for ratio in run["ratios"] if math.isfinite(ratio)]
        before = min([1.0, *run["ratios"][:trials]])
        expected += run["expected"][half - 1]
        realised += before - min([1.0, *ratios])
    if expected == 0.0:
        return ""
    return f"Halfway, the gain expected of as many trials again was {expected / max(realised, 1e-9):.2f} times what came."


def trials_to(run: Mapping[str, Any], ratio: float) -> float:
    """How many trials it took until one was at `ratio` or below; inf when none was."""
    return next((k + 1.0 for k, found in enumerate(run["ratios"]) if found <= ratio), math.inf)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows), ""]


def _ratio(found: Mapping[str, float]) -> str:
    return f"{found['median']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def _count(trials: float) -> str:
    return f"{trials:.0f}" if math.isfinite(trials) else "-"


def _median(values: Iterable[float]) -> float:
    found = sorted(values)
    return found[len(found) // 2] if found else math.inf


def _geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _plain(value: Any) -> Any:
    """`value` for JSON: infinities, those of failures, as None."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
