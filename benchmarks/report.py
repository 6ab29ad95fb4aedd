"""Results as data and as a table: RESULTS.json keeps one row per model and number of threads, RESULTS.md shows them."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from tc.measure.compare import SUBJECT, Result
from tc.measure.harness import Ratio
from tc.measure.runtimes import BOUND

FORMAT = 1


@dataclass(frozen=True)
class Row:
    """One model on one number of threads, measured side by side.

    `ratios`: each peer's seconds over those of `tc`. `fractions`: of the roofline, what each runtime reaches. `calls`: their kind.
    """

    model: str
    threads: int
    dims: Mapping[str, int]
    results: Mapping[str, Result]
    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    rounds: int = 0
    date: str = ""
    commit: str = ""
    cpu: str = ""
    fractions: Mapping[str, Ratio] = field(default_factory=dict)
    calls: str = BOUND

    def best_peer(self) -> str | None:
        """The peer with the least median time, if there is one to compare `tc` with."""
        times = {name: self.results[name].median_seconds for name in self.ratios}
        known = {name: seconds for name, seconds in times.items() if seconds is not None}
        return min(known, key=lambda name: known[name]) if known else None


def describe_machine() -> dict[str, str]:
    """Date, commit and processor, the fields of a `Row` that say where and when."""
    return {"date": date.today().isoformat(), "commit": _git_commit(), "cpu": f"{_cpu_name()}, {os.cpu_count()} cores"}


def update(folder: Path, rows: Sequence[Row]) -> None:
    """Put `rows` in the place of the ones of the same model, threads and calls in RESULTS.json; write RESULTS.md anew."""
    file = folder / "RESULTS.json"
    old = read_rows(file) if file.exists() else ()
    merged = {(row.model, row.threads, row.calls): row for row in (*old, *rows)}
    store_rows(file, FORMAT, tuple(merged.values()))
    replace_file(folder / "RESULTS.md", as_markdown(tuple(merged.values())))


def read_rows(file: Path) -> tuple[Row, ...]:
    """ValueError for a file of another format."""
    return tuple(map(_row_from, load_rows(file, FORMAT)))


def as_markdown(rows: Sequence[Row]) -> str:
    """The whole page: how to read it, a table for each number of threads, where the rows come from."""
    parts = ["# Results", "", *_legend()]
    for threads, calls in sorted({(row.threads, row.calls) for row in rows}):
        chosen = [row for row in rows if (row.threads, row.calls) == (threads, calls)]
        title = f"## {threads} thread{'s' if threads > 1 else ''}{'' if calls == BOUND else f', {calls} calls'}"
        parts += ["", title, "", *_table(chosen), "", *_summary(chosen)]
        parts += _load_table(chosen) if calls == BOUND else []
    parts += ["", "## Where and with what", ""]
    parts += sorted({f"- {row.date}, commit {row.commit}, {row.cpu}: {_versions(row)}" for row in rows})
    return "\n".join(parts) + "\n"


def as_line(row: Row) -> str:
    """One row for the terminal."""
    times = "  ".join(f"{name} {_time_cell(result)}" for name, result in row.results.items())
    ratio = f"  best peer / {SUBJECT} {_ratio_cell(row)}" if row.ratios else ""
    problems = "".join(f"\n    {name}: {result.problem}" for name, result in row.results.items() if result.problem)
    return f"{_model_cell(row):32} {row.threads} thr {row.calls:8}  {times}{ratio}{problems}"


def _legend() -> list[str]:
    return [
        "Milliseconds are the median over rounds, and in brackets the shortest call. The runtimes took turns within",
        "each round, so the ratio (the best peer's time over that of tc, median and quartiles of the pairs; above 1",
        "means that tc is faster) is what to read; times of different rows come from different moments of a shared",
        "machine. The roofline is the longer of all operations at the rate of multiply-adds in registers and of inputs,",
        "weights and outputs at the rate of a stream through memory, both measured in the same rounds. The error is the largest",
        "difference from onnxruntime without graph rewriting, over the largest magnitude. Ordinary calls are those that",
        "people write, each runtime's in its fastest way: tc returns fresh arrays, onnxruntime values of its own, OpenVINO",
        "memory that its next call writes over. In all others results go to arrays allocated once.",
    ]


def _table(rows: Sequence[Row]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row.results))
    compares = any(row.ratios for row in rows)
    head = ["model", *(f"{name}, ms" for name in names)]
    head += [f"best peer / {SUBJECT}", "of roofline", "error"] if compares else []
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for row in rows:
        cells = [_model_cell(row), *(_time_cell(row.results.get(name)) for name in names)]
        lines.append(cells + ([_ratio_cell(row), _fraction_cell(row), _error_cell(row)] if compares else []))
    notes = [_note(row, name) for row in rows for name in names if name in row.results and row.results[name].problem]
    return ["| " + " | ".join(line) + " |" for line in lines] + ([""] + notes if notes else [])


def _load_table(rows: Sequence[Row]) -> list[str]:
    """What loading costs each runtime, where that was measured."""
    known = [row for row in rows if any(result.cold_seconds is not None for result in row.results.values())]
    names = list(dict.fromkeys(name for row in known for name in row.results))
    if not known:
        return []
    head = ["model", *(f"{name}, s" for name in names), *(f"{name}, MiB" for name in names)]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for row in known:
        found = [row.results.get(name, Result()) for name in names]
        seconds = ["-" if result.cold_seconds is None else f"{result.cold_seconds:.2f}" for result in found]
        memory = ["-" if result.peak_bytes is None else f"{result.peak_bytes / 2**20:.0f}" for result in found]
        lines.append([_model_cell(row), *seconds, *memory])
    text = "Compiling or loading in a new process with empty caches, and how far memory grows until the first run is over:"
    return ["", text, "", *("| " + " | ".join(line) + " |" for line in lines)]


def _model_cell(row: Row) -> str:
    dims = "x".join(str(size) for size in row.dims.values())
    return f"{row.model} ({dims})" if dims else row.model


def _time_cell(result: Result | None) -> str:
    if result is None or result.median_seconds is None or result.min_seconds is None:
        return "-"
    return f"{_milliseconds(result.median_seconds)} ({_milliseconds(result.min_seconds)})"


def _milliseconds(seconds: float) -> str:
    """Three significant digits."""
    value = 1e3 * seconds
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else "0"


def _ratio_cell(row: Row) -> str:
    best = row.best_peer()
    return f"{row.ratios[best]} {best}" if best else "-"


def _fraction_cell(row: Row) -> str:
    return f"{row.fractions[SUBJECT].median:.2f}" if SUBJECT in row.fractions else "-"


def _error_cell(row: Row) -> str:
    error = row.results[SUBJECT].error if SUBJECT in row.results else None
    return "-" if error is None else f"{error:.1e}"


def _note(row: Row, name: str) -> str:
    return f"- {row.model}, {name}: {row.results[name].problem}"


def _summary(rows: Sequence[Row]) -> list[str]:
    ratios = {row.model: row.ratios[best].median for row in rows if (best := row.best_peer())}
    if not ratios:
        return [f"{len(rows)} models; {SUBJECT} was not measured."]
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    worst = min(ratios, key=lambda model: ratios[model])
    return [f"{len(ratios)} models: geometric mean {mean:.2f}, worst {ratios[worst]:.2f} ({worst})."]


def _versions(row: Row) -> str:
    return ", ".join(f"{name} {result.version}" for name, result in row.results.items() if result.version)


def _row_from(data: Mapping[str, object]) -> Row:
    fields = dict(data)
    fields["results"] = {name: Result(**result) for name, result in fields["results"].items()}
    for key in ("ratios", "fractions"):
        fields[key] = {name: Ratio(**ratio) for name, ratio in fields.get(key, {}).items()}
    return Row(**fields)


def load_rows(file: Path, expected: int) -> list[dict[str, Any]]:
    """The rows of a table as plain data; ValueError for a file of another format than `expected`."""
    data = json.loads(file.read_text())
    if data.get("format") != expected:
        raise ValueError(f"{file}: format {data.get('format')}, expected {expected}; move it away to start a new table")
    rows: list[dict[str, Any]] = data["rows"]
    return rows


def store_rows(file: Path, number: int, rows: Sequence[Any]) -> None:
    """Write dataclasses as the rows of a table in the format of this number, into a folder that need not be there."""
    replace_file(file, json.dumps({"format": number, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


def replace_file(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)  # minutes of measuring are not to be lost for want of a folder
    partial = file.with_suffix(file.suffix + ".partial")
    partial.write_text(text)
    os.replace(partial, file)


def _git_commit() -> str:
    """The commit of this working tree, with a plus when tracked files differ from it."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(("git", *arguments), cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu_name() -> str:
    """The processor by name, and family-model-stepping, which tells apart those that a hypervisor calls alike."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    pairs = (line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in reversed(list(pairs))}
    numbers = "-".join(facts.get(key, "?") for key in ("cpu family", "model", "stepping"))
    return f"{facts.get('model name', platform.machine())} ({numbers})"
