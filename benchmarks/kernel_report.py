"""The kernel tables as data, as a page and as a picture: KERNELS.json keeps one row per kernel and number of threads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import load_rows, replace_file, store_rows
from tc.measure.harness import Ratio

FORMAT = 1


@dataclass(frozen=True)
class KernelRow:
    """One kernel, measured beside other programs and its limit.

    `seconds`, `shortest`: by program, the median and the least; those of a limit are scaled to the work of the kernel.
    `ratios`: each program's seconds over those of `tc`, so that of the limit is the fraction of it that is reached.
    `flops`, `size_bytes`: what the kernel must compute and move at least. `errors`: largest difference from onnxruntime without
    rewriting over the largest magnitude. `left_out`: which peers are not compared, and why. `problem` says why there are no numbers,
    where there are none.
    """

    table: str
    name: str
    threads: int
    seconds: Mapping[str, float]
    shortest: Mapping[str, float]
    ratios: Mapping[str, Ratio]
    errors: Mapping[str, float]
    flops: int = 0
    size_bytes: int = 0
    limit: str = ""
    rule: str = ""
    rounds: int = 0
    problem: str = ""
    date: str = ""
    commit: str = ""
    cpu: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(name for name in self.seconds if name not in ("tc", self.limit))

    def fraction_of_least(self) -> float | None:
        """The least time of the limit over the least time of `tc`: what is reached when nothing else disturbs either."""
        return self.shortest[self.limit] / self.shortest["tc"] if self.limit in self.shortest else None

    def best_peer(self) -> str | None:
        return min(self.peers, key=lambda name: self.seconds[name], default=None)


@dataclass(frozen=True)
class Table:
    """What one table is about. `judged`: by which ratio, "peer" (the fastest one), "limit", or "" for absolute times.

    `mean` and `worst` are what the geometric mean and the least of these ratios are to be at least. `in_picture`: it has a panel there.
    """

    title: str
    text: str
    judged: str
    mean: float | None = None
    worst: float | None = None
    in_picture: bool = True


TABLES: dict[str, Table] = {
    "sgemm": Table(
        "Matrix products, both operands inputs",
        "Beside numpy (OpenBLAS) and torch (MKL), which are called just so.",
        "peer",
        0.97,
        0.85,
    ),
    "sgemm_constant": Table(
        "Matrix products, the right operand a constant",
        "What a linear layer is: `tc` arranges the constant when it compiles. Same programs beside it, measured in the same rounds.",
        "peer",
        0.97,
        0.85,
    ),
    "conv": Table(
        "Convolutions of ResNet-50",
        "NCHW in and out, with bias. The limit is multiply-adds that stay in registers; operations are those of the direct form.",
        "limit",
        0.85,
    ),
    "peers": Table("Other kernels beside onnxruntime and OpenVINO", "", "peer", None, 1.0),
    "stream": Table(
        "Memory-bound kernels",
        "The limit is a native loop in the same process over as many bytes as the kernel touches: y = x + 1 with ordinary stores, "
        "or, for matrix times vector, the sum of x, read from eight places at once.",
        "limit",
        None,
        0.9,
    ),
    "native": Table(
        "Other operators, three sizes of each",
        "Beside onnxruntime and OpenVINO, of those that run them and give the same, and numpy and torch where they have the operator. The "
        "limit, where memory is one, is a native loop over as many bytes as must move at least. Rows for 2 threads, and of drawn sizes, "
        "were measured on 2026-11-25 and 26 while other programs kept both cores busy: ratios hold, with wide quartiles where memory is "
        "the limit, and times do not.",
        "peer",
        2.0,
        1.0,
        in_picture=False,
    ),
    "drawn": Table(
        "The same operators at drawn sizes",
        "Made by `python -m benchmarks.kernel_tables native --seed N`: nothing can be made for these sizes.",
        "peer",
        2.0,
        1.0,
        in_picture=False,
    ),
    "dynamic": Table(
        "One build for any shape beside a build for this shape",
        "The ratio is the static build's time over that of the dynamic one.",
        "peer",
        0.95,
    ),
    "overhead": Table(
        "Overheads",
        "A call of one node on 32 floats from Python, the result a new array, on one thread; what a parallel loop on two threads takes "
        "beyond the share of each (the least seen).",
        "",
    ),
}


def update(folder: Path, rows: Sequence[KernelRow]) -> None:
    """Put `rows` in the place of the ones of the same table, name and threads; write page and picture anew."""
    file = folder / "KERNELS.json"
    old = read_rows(file) if file.exists() else ()
    merged = tuple({(row.table, row.name, row.threads): row for row in (*old, *rows)}.values())
    folder.mkdir(parents=True, exist_ok=True)
    if rows:
        store_rows(file, FORMAT, merged)
    else:
        replace_file(folder / "KERNELS.md", as_markdown(merged))
        draw(merged, folder / "kernels.svg")


def drop(folder: Path, table: str, threads: int) -> None:
    """Take the rows of a table and a number of threads out."""
    file = folder / "KERNELS.json"
    if file.exists():
        store_rows(file, FORMAT, tuple(row for row in read_rows(file) if (row.table, row.threads) != (table, threads)))


def read_rows(file: Path) -> tuple[KernelRow, ...]:
    """ValueError for a file of another format."""
    return tuple(map(_row_from, load_rows(file, FORMAT)))


def judged_ratio(row: KernelRow) -> Ratio | None:
    """The ratio that the row's table is judged by."""
    match TABLES[row.table].judged:
        case "limit":
            return row.ratios.get(row.limit)
        case "peer":
            best = row.best_peer()
            return row.ratios[best] if best else None
    return None


def summary(rows: Sequence[KernelRow]) -> str:
    """Geometric mean and worst of one table, beside what they are to be."""
    table = TABLES[rows[0].table]
    found = {row.name: ratio.median for row in rows if (ratio := judged_ratio(row))}
    if not found:
        return f"{len(rows)} rows."
    mean = math.exp(sum(map(math.log, found.values())) / len(found))
    worst = min(found, key=lambda name: found[name])
    goals = [f"{name} {goal}" for name, goal in (("mean", table.mean), ("worst", table.worst)) if goal]
    text = f"{len(found)} rows: geometric mean {mean:.2f}, worst {found[worst]:.2f} ({worst})"
    if table.judged == "limit":
        least = [math.log(fraction) for row in rows if (fraction := row.fraction_of_least())]
        text += f"; of the least times, geometric mean {math.exp(sum(least) / len(least)):.2f}"
    below = sum(ratio < 1 for ratio in found.values())
    text += f"; {below} below 1" if table.judged == "peer" and below else ""
    return f"{text}; the goal: {', '.join(goals)}." if goals else f"{text}."


def as_markdown(rows: Sequence[KernelRow]) -> str:
    """The whole page."""
    parts = [
        "# Kernels",
        "",
        "Made by `python -m benchmarks.kernel_tables`. Milliseconds are medians over rounds in which all programs and the limit",
        "take turns; ratios are medians of the pairs of a round with quartiles, so they hold on a machine whose speed drifts, and",
        "times of different rows do not compare. Above 1 means that `tc` is faster. The error is the largest difference from",
        "onnxruntime without graph rewriting, over the largest magnitude.",
        "",
        "A limit of multiply-adds in registers does not feel what other programs do to the memory of a shared machine, as kernels",
        "do. Beside the fraction within rounds there is therefore that of the least times seen.",
        "",
        "![Ratios by kernel](kernels.svg)",
    ]
    for key, table in TABLES.items():
        for threads in sorted({row.threads for row in rows if row.table == key and row.seconds}) or [0]:
            chosen = [row for row in rows if row.table == key and row.threads in (threads, 0)]
            if key == "overhead":
                chosen = [row for row in rows if row.table == key]
            if chosen and not (key == "overhead" and threads > 1):
                parts += ["", f"## {table.title}{_threads_text(key, threads)}", "", *([table.text, ""] if table.text else [])]
                parts += [*_markdown_table(chosen), "", summary(chosen)]
                parts += _notes_on_convolutions([row for row in rows if row.threads == threads]) if key == "conv" else []
    parts += ["", "## Where", "", *sorted({f"- {row.date}, commit {row.commit}, {row.cpu}" for row in rows})]
    return "\n".join(parts) + "\n"


def _notes_on_convolutions(rows: Sequence[KernelRow]) -> list[str]:
    """How those fare that Winograd's method fits, and what to hold fractions of the limit against: MKL's large matrix products."""
    notes = []
    fitting = [row for row in rows if row.table == "conv" and row.seconds and row.name.startswith("3x3") and "/" not in row.name]
    if fitting:
        mean = math.exp(sum(math.log(row.ratios[row.limit].median) for row in fitting) / len(fitting))
        notes.append(f"3x3 with stride 1, where fewer multiplications are allowed: geometric mean {mean:.2f}; the goal: mean 1.2.")
    found = [row.seconds["fma"] / row.seconds["torch"] for row in rows if row.table == "sgemm" and row.flops > 2e8 and row.seconds]
    if found:
        notes.append(f"For comparison: torch's (MKL's) large matrix products reach {min(found):.2f} to {max(found):.2f} of this limit.")
    return [line for note in notes for line in ("", note)]


def as_line(row: KernelRow) -> str:
    """One row for the terminal."""
    if row.problem:
        return f"{row.table:15} {row.name:28} {row.problem}"
    times = "  ".join(f"{name} {_milliseconds(seconds)}" for name, seconds in row.seconds.items())
    ratio = judged_ratio(row)
    error = f"  error {row.errors['tc']:.1e}" if "tc" in row.errors else ""
    return f"{row.table:15} {row.name:28} ratio {ratio}  {times} ms{error}" if ratio else f"{row.table:15} {row.name:28} {times} ms"


def draw(rows: Sequence[KernelRow], file: Path) -> None:
    """A panel for each table: the judged ratio of every kernel with its quartiles, and the line it is to reach."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "tc", "svg.fonttype": "none"}
    from matplotlib import pyplot

    shown = [key for key, table in TABLES.items() if table.in_picture]
    panels = {key: [row for row in rows if row.table == key and row.threads == 1 and judged_ratio(row)] for key in shown}
    panels = {key: chosen for key, chosen in panels.items() if chosen}
    if not panels:
        return
    columns = _balance(panels)
    heights = [sum(len(panels[key]) + 4 for key in column) for column in columns]
    figure = pyplot.figure(figsize=(12, 0.21 * max(heights) + 0.6), layout="constrained")
    for side, column in zip(figure.subfigures(1, len(columns), squeeze=False)[0], columns):
        sizes = [len(panels[key]) + 2 for key in column]
        axes = side.subplots(len(column), 1, squeeze=False, height_ratios=sizes)[:, 0]
        for axis, key in zip(axes, column):
            _draw_panel(axis, TABLES[key], panels[key])
    figure.suptitle("Median and quartiles of ratios within rounds, one thread. Green: reaches the line.", fontsize=9)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def _balance(panels: Mapping[str, Sequence[KernelRow]]) -> list[list[str]]:
    """Two columns of panels of about the same height."""
    columns: list[list[str]] = [[], []]
    heights = [0, 0]
    for key, rows in sorted(panels.items(), key=lambda item: -len(item[1])):
        shorter = heights.index(min(heights))
        columns[shorter].append(key)
        heights[shorter] += len(rows) + 4
    order = list(panels)
    return [sorted(column, key=order.index) for column in columns if column]


def _draw_panel(axis: Any, table: Table, rows: Sequence[KernelRow]) -> None:
    ratios = [judged_ratio(row) for row in rows]
    places = range(len(rows))
    goal = table.worst or table.mean or 1.0
    medians = [ratio.median for ratio in ratios]
    spread = [[ratio.median - ratio.low for ratio in ratios], [ratio.high - ratio.median for ratio in ratios]]
    colors = ["#1b7837" if median >= goal else "#b2182b" for median in medians]
    axis.errorbar(medians, places, xerr=spread, fmt="none", ecolor="#999999", elinewidth=1)
    axis.scatter(medians, places, c=colors, s=18, zorder=3)
    axis.axvline(goal, color="black", linewidth=0.8)
    axis.set_xscale("log")
    low, high = min(0.5, *medians) * 0.9, max(1.25, *medians) * 1.1
    ticks = [tick for tick in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0) if low <= tick <= high]
    axis.set_xlim(low, high)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=7)
    axis.minorticks_off()
    axis.set_yticks(places, [row.name for row in rows], fontsize=7)
    axis.invert_yaxis()
    axis.grid(axis="x", color="#e0e0e0", linewidth=0.5)
    what = "fraction of the limit" if table.judged == "limit" else "best other / tc"
    axis.set_title(f"{table.title}: {what}", fontsize=8, loc="left")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _threads_text(key: str, threads: int) -> str:
    return "" if key == "overhead" or not threads else f", {threads} thread{'s' if threads > 1 else ''}"


def _markdown_table(rows: Sequence[KernelRow]) -> list[str]:
    peers = list(dict.fromkeys(name for row in rows for name in row.peers))
    limited = any(row.limit for row in rows)
    ruled = any(row.rule for row in rows)
    head = ["kernel", "tc, ms", *(f"{name}, ms" for name in peers), *(["best other / tc"] if peers else [])]
    head += [*(["GFLOP/s", "GB/s", "of the limit", "least times"] if limited else []), "error", *(["schedule"] if ruled else [])]
    lines = [head, ["---", *["---:"] * (len(head) - (2 if ruled else 1)), *(["---"] if ruled else [])]]
    for row in (row for row in rows if not row.problem):
        best = row.best_peer()
        cells = [row.name, _milliseconds(row.seconds["tc"])]
        cells += [_milliseconds(row.seconds[name]) if name in row.seconds else "-" for name in peers]
        cells += [f"{row.ratios[best]} {best}" if best else "-"] if peers else []
        if limited:
            seconds = row.seconds["tc"]
            rate = f"{row.size_bytes / seconds * 1e-9:.1f}" if row.size_bytes else "-"
            cells += [f"{row.flops / seconds * 1e-9:.0f}" if row.flops else "-", rate]
            cells += [f"{row.ratios[row.limit]} {row.limit}" if row.limit else "-"]
            least = row.fraction_of_least()
            cells += [f"{least:.2f}" if least is not None else "-"]
        cells += [f"{row.errors['tc']:.0e}" if "tc" in row.errors else "-", *([row.rule] if ruled else [])]
        lines.append(cells)
    notes = [f"- {row.name}: {row.problem}" for row in rows if row.problem]
    for reason in dict.fromkeys(reason for row in rows for reason in row.left_out):
        notes.append(f"- {reason}: {'; '.join(row.name for row in rows if reason in row.left_out)}")
    return ["| " + " | ".join(line) + " |" for line in lines] + ([""] + notes if notes else [])


def _milliseconds(seconds: float) -> str:
    """Three significant digits, and no more than five places."""
    value = 1e3 * seconds
    if value <= 0:
        return "0"
    return f"{value:.{min(5, max(0, 2 - math.floor(math.log10(value))))}f}"


def _row_from(data: Mapping[str, Any]) -> KernelRow:
    ratios = {name: Ratio(**ratio) for name, ratio in data["ratios"].items()}
    return KernelRow(**{**data, "ratios": ratios, "left_out": tuple(data.get("left_out", ()))})
