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
    gains = ("untuned / tuned", "best peer / tuned", "peer")
    head = ("model", "threads", "budget", *gains, "trials", "failed", "kernels", "CPU", "date", "commit")
    lines += _table(head, map(_model_row, rows))
    for name in ("default_over_tuned", "peer_over_tuned"):
        lines.append(f"Geometric mean, {name.replace('_', ' ')}: {_geomean(row[name]['median'] for row in rows):.3f}.")
    return "\n".join([*lines, ""])


def _model_row(row: Mapping[str, Any]) -> tuple[object, ...]:
    gains = (_ratio(row["default_over_tuned"]), _ratio(row["peer_over_tuned"]))
    untuned, tuned, _ = row["kernels_ms"]
    counts = (row["trials"], row["failures"], f"{untuned:.2f} -> {tuned:.2f} ms")
    where = (row["cpu"], row["date"], row["commit"])
    return (row["model"], row["threads"], f"{row['budget_seconds']:.0f} s", *gains, row["peer"], *counts, *where)


def kernels_text(data: Mapping[str, Any]) -> str:
    """Kernels one by one, and what they say about search and model."""
    runs = [{**run, "ratios": [math.inf if ratio is None else ratio for ratio in run["ratios"]]} for run in data["runs"]]
    lines = [f"## Kernels, {data['trials']} trials each, {data['date']}, commit {data['commit']}", ""]
    known = {name: min(run["verified"] for run in runs if run["task"] == name) for name in dict.fromkeys(run["task"] for run in runs)}
    begun = [run for run in runs if run["from_default"]]
    lines += gains_text(begun, known)
    for start, own in (("the default", begun), ("random places", [run for run in runs if not run["from_default"]])):
        if own:
            lines += ["", f"### Searches that begin at {start}", "", *trials_text(own, known, data["trials"])]
    accuracy = [(n, f"{a['rank_accuracy']:.3f}", f"{a['top_recall']:.2f}", a["pairs"]) for n, a in data.get("accuracy", {}).items()]
    if accuracy:
        lines += ["", "### Cost models", "", "Pairs of held-out candidates of unseen kernels in the right order:", ""]
        lines += _table(("model", "in order", "top-8 recall", "pairs"), accuracy)
    lines.append(expectation(begun))
    return "\n".join([*lines, ""])


def gains_text(runs: Sequence[Mapping[str, Any]], known: Mapping[str, float]) -> list[str]:
    """What the model's search gains over the default, verified."""
    tuned: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run["policy"] == "model" and not run["transfer"]:
            tuned.setdefault(run["task"], []).append(run)
    gains = {name: _geomean(1 / run["verified"] for run in own) for name, own in tuned.items()}
    rows = [(name, f"{gain:.2f}", f"{1 / known[name]:.2f}", tuned[name][0]["variant"]) for name, gain in gains.items()]
    lines = ["Gain: of the model's search, verified, geometric mean over seeds. Best known: of all searches.", ""]
    lines += _table(("kernel", "gain", "best known", "variant"), rows)
    if gains:
        lines.append(f"Gain over the default: geometric mean {_geomean(gains.values()):.3f}, least {min(gains.values()):.3f}.")
    return lines


def trials_text(runs: Sequence[Mapping[str, Any]], known: Mapping[str, float], most: int) -> list[str]:
    """How fast searches arrive; only kernels that have something to be found, beyond where a search begins."""
    others = {"evolutionary": "evolution", "random": "random", "transfer": "the model without transfer"}
    shares: dict[str, list[float]] = {other: [] for other in others}
    rows = []
    for name in known:
        own = [run for run in runs if run["task"] == name]
        if not own or (own[0]["from_default"] and known[name] > NEAR):
            continue
        trials = {p: _median(_arrivals(own, known[name] / NEAR, p, transfer=False)) for p in ("model", "evolutionary", "random")}
        transferred = _median(_arrivals(own, known[name] / NEAR, "model", transfer=True))
        for other in ("evolutionary", "random"):
            shares[other] += _share(trials["model"], trials[other], most)
        shares["transfer"] += _share(transferred, trials["model"], most) if any(run["transfer"] for run in own) else []
        rows.append((name, f"{1 / known[name]:.2f}", *map(_count, (*trials.values(), transferred))))
    lines = [f"Trials to {NEAR:.0%} of the best known speed, medians over seeds; -: not in {most}, which then count.", ""]
    lines += _table(("kernel", "best known", "model", "evolution", "random", "model with transfer"), rows)
    for other, found in shares.items():
        if found:
            subject = "the model's search with transfer" if other == "transfer" else "the model's search"
            half = sum(share <= 0.5 for share in found)
            share = f"median {np.median(found):.2f}; at most half for {half} of {len(found)}"
            lines.append(f"Trials of {subject} over those of {others[other]}: {share}.")
    return lines


def _arrivals(runs: Sequence[Mapping[str, Any]], ratio: float, policy: str, *, transfer: bool) -> Iterable[float]:
    return (trials_to(run, ratio) for run in runs if run["policy"] == policy and run["transfer"] == transfer)


def _share(trials: float, others: float, most: int) -> list[float]:
    """Of the trials that the other search took; of all of its trials, where it did not arrive. None where neither did."""
    return [trials / min(others, most)] if math.isfinite(min(trials, others)) else []


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
