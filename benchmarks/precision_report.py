"""The precision tables as data and as a page: PRECISION.json keeps the rows, PRECISION.md shows them and what they amount to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import load_rows, replace_file, store_rows
from tc.measure.harness import Ratio

FORMAT = 1
SUBJECT = "tc"
WIDE = "tc f32"
"""The same network in f32 by `tc`, in the same rounds."""


@dataclass(frozen=True)
class Entrant:
    """One runtime in one row. `precision`: what it says that it computes floats in. `error`: relative (L2) against double precision.

    `compile_seconds`: with nothing kept of earlier times, in a process of its own. `problem` says why there is no time.
    """

    version: str = ""
    precision: str = ""
    median_seconds: float | None = None
    error: float | None = None
    compile_seconds: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class PrecisionRow:
    """One network in one precision on one number of threads. `ratios`: each other's seconds over those of `tc`, `WIDE` included.

    `isa`: what all were held to; "" for all that the machine has.
    """

    kind: str
    model: str
    threads: int
    isa: str
    entrants: Mapping[str, Entrant]
    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    rounds: int = 0
    date: str = ""
    commit: str = ""
    cpu: str = ""

    @property
    def key(self) -> tuple[str, str, int, str, str]:
        return self.kind, self.model, self.threads, self.isa, self.cpu

    def best_peer(self) -> str | None:
        """The fastest of the peers whose results are right."""
        peers = {name: ratio.median for name, ratio in self.ratios.items() if name != WIDE}
        return min(peers, key=lambda name: peers[name]) if peers else None

    def compile_ratio(self) -> float | None:
        """Seconds to compile the narrow network over those of its twin in f32."""
        narrow, wide = (self.entrants.get(name, Entrant()).compile_seconds for name in (SUBJECT, WIDE))
        return None if narrow is None or wide is None else narrow / wide


def update(folder: Path, rows: Sequence[PrecisionRow]) -> None:
    """Put `rows` in the place of those of the same network, precision, threads and machine; write the page anew."""
    file = folder / "PRECISION.json"
    merged = {row.key: row for row in (*(read_rows(file) if file.exists() else ()), *rows)}
    store_rows(file, FORMAT, tuple(merged.values()))
    replace_file(folder / "PRECISION.md", as_markdown(tuple(merged.values())))


def read_rows(file: Path) -> tuple[PrecisionRow, ...]:
    """ValueError for a file of another format."""
    return tuple(map(_row_from, load_rows(file, FORMAT)))


def _row_from(data: Mapping[str, object]) -> PrecisionRow:
    fields = dict(data)
    fields["entrants"] = {name: Entrant(**entrant) for name, entrant in fields["entrants"].items()}
    fields["ratios"] = {name: Ratio(**ratio) for name, ratio in fields["ratios"].items()}
    return PrecisionRow(**fields)


LEGEND = """\
`python -m benchmarks.precision` makes this page. Milliseconds are the median over rounds in which all of a row take turns; the ratio
(median and quartiles of the pairs, above 1 means that tc is faster) is what to read. A peer stands with what it says that it computes
floats in. Errors are against the same graph in double precision, relative (L2); a peer whose error is above {most} is named as corrupt
and is not compared. Compiling is in new processes with empty caches, the least of the tries. int8 networks are QDQ twins made by
onnxruntime's quantizer (`benchmarks/quantized.py`)."""

MOST_ERROR = 0.9
"""Results without any likeness to the right ones have an error of 1 and more; what rounds otherwise in a deep network of random weights
has up to two thirds."""


def as_markdown(rows: Sequence[PrecisionRow]) -> str:
    parts = ["# Precision", "", LEGEND.format(most=MOST_ERROR)]
    for (drawn, cpu, isa, kind, threads), chosen in _sections(rows).items():
        held = f", held to {isa}" if isa else ""
        parts += [
            "",
            f"## {kind}, {threads} thread{'s' if threads > 1 else ''}{held}{', networks that seeds draw' if drawn else ''}",
            "",
            f"{cpu}.",
            "",
            *_table(chosen),
            "",
            *summary(chosen),
        ]
    parts += ["", "## Where and with what", ""]
    parts += sorted({f"- {row.date}, commit {row.commit}, {row.cpu}: {_versions(row)}" for row in rows})
    return "\n".join(parts) + "\n"


def _sections(rows: Sequence[PrecisionRow]) -> dict[tuple[bool, str, str, str, int], list[PrecisionRow]]:
    """The rows of each table, in order: those of the zoo, then those of drawn networks."""
    found: dict[tuple[bool, str, str, str, int], list[PrecisionRow]] = {}
    for row in rows:
        found.setdefault((row.model.startswith("drawn_"), row.cpu, row.isa, row.kind, row.threads), []).append(row)
    return dict(sorted(found.items()))


def summary(rows: Sequence[PrecisionRow]) -> list[str]:
    """Geometric mean and worst of the best peer over `tc`, of `tc` over its own f32, and of the times to compile."""
    peers = {row.model: row.ratios[best].median for row in rows if (best := row.best_peer())}
    wide = {row.model: row.ratios[WIDE].median for row in rows if WIDE in row.ratios}
    compiling = {row.model: ratio for row in rows if (ratio := row.compile_ratio()) is not None}
    lines = []
    for what, ratios, worst in (
        ("Best peer / tc", peers, min),
        ("Own f32 / tc", wide, min),
        ("Compiling / own f32", compiling, max),
    ):
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            name = worst(ratios, key=lambda model: ratios[model])
            lines.append(
                f"{what}: {len(ratios)} networks, geometric mean {mean:.2f}, worst {ratios[name]:.2f} ({name})."
            )
    return lines


def _table(rows: Sequence[PrecisionRow]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row.entrants))
    head = ["network", *(f"{name}, ms" for name in names), "best peer / tc", "own f32 / tc", "compiling / own f32"]
    head += [f"error {name}" for name in names if name != WIDE]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for row in rows:
        entrants = [row.entrants.get(name, Entrant()) for name in names]
        best, ratio = row.best_peer(), row.compile_ratio()
        cells = [row.model, *map(_time_cell, entrants), f"{row.ratios[best]} {best}" if best else "-"]
        cells += [str(row.ratios[WIDE]) if WIDE in row.ratios else "-", "-" if ratio is None else f"{ratio:.2f}"]
        errors = [entrant.error for name, entrant in zip(names, entrants, strict=True) if name != WIDE]
        lines.append(cells + ["-" if error is None else f"{error:.1e}" for error in errors])
    notes = [
        f"- {row.model}, {name}: {entrant.problem}"
        for row in rows
        for name, entrant in row.entrants.items()
        if entrant.problem
    ]
    return ["| " + " | ".join(line) + " |" for line in lines] + ([""] + notes if notes else [])


def as_line(row: PrecisionRow) -> str:
    """One row for the terminal."""
    times = "  ".join(f"{name} {_time_cell(entrant)}" for name, entrant in row.entrants.items())
    ratios = "  ".join(f"{name}/tc {ratio}" for name, ratio in row.ratios.items())
    compiling = "" if (ratio := row.compile_ratio()) is None else f"  compiling/f32 {ratio:.2f}"
    problems = "".join(f"\n    {name}: {entrant.problem}" for name, entrant in row.entrants.items() if entrant.problem)
    return f"{row.kind} {row.model:18} {row.threads} thr  {times}  {ratios}{compiling}{problems}"


def _time_cell(entrant: Entrant) -> str:
    if entrant.median_seconds is None:
        return "-"
    value = 1e3 * entrant.median_seconds
    digits = f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else "0"
    return f"{digits} {entrant.precision}".rstrip()


def _versions(row: PrecisionRow) -> str:
    return ", ".join(f"{name} {entrant.version}" for name, entrant in row.entrants.items() if entrant.version)
