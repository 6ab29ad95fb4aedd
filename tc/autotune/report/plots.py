"""Plots of reports: matplotlib's SVG, made fit to stand inside a page.

Every colour is drawn as a placeholder that becomes a CSS variable, so that the page's light and dark styles hold for plots too. No text
from outside is drawn: names and captions are the page's.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from tc.autotune.report.facts import Accuracy, CurveStep, TaskFacts
from tc.errors import TuningError

COLOURS = {
    "ink": "#0a0b01",
    "muted": "#0a0b02",
    "grid": "#0a0b03",
    "first": "#0a0b04",
    "second": "#0a0b05",
    "good": "#0a0b06",
    "bad": "#0a0b07",
}
"""Names of CSS variables, and the colours that stand for them until the SVG is written."""

_SMOOTHED_BATCHES = 9
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def require_matplotlib() -> None:
    """UserError when there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise TuningError("a report has plots, which need matplotlib: pip install tc[viz]") from None


def plot_curve(task: TaskFacts, number: int) -> str:
    """The trials of one task: its gain over the default, trial by trial, and the best so far. `number` is another one for every plot."""
    figure, axes = new_figure(3.1, 1.8, size=9.5)
    gains = [1 / ratio if math.isfinite(ratio) and ratio > 0 else math.nan for ratio in task.ratios]
    places = list(range(task.first_trial, task.first_trial + len(gains)))
    best = list(accumulate((0.0 if math.isnan(gain) else gain for gain in gains), max))
    top = max([1.1, *(gain for gain in gains if gain == gain), task.winner.gain if task.winner else 0.0]) * 1.08
    failed = [place for place, gain in zip(places, gains, strict=True) if gain != gain]
    axes.axhline(1.0, color=COLOURS["muted"], linewidth=0.9, linestyle=(0, (4, 3)))
    axes.plot(places, gains, ".", color=COLOURS["second"], markersize=3.6, alpha=0.75)
    axes.plot(failed, [0.03 * top] * len(failed), "x", color=COLOURS["bad"], markersize=3.4, markeredgewidth=1.0)
    shown = [(place, gain) for place, gain in zip(places, best, strict=True) if gain]
    line = {"color": COLOURS["first"], "linewidth": 1.8, "drawstyle": "steps-post"}
    axes.plot([place for place, _ in shown], [gain for _, gain in shown], **line)
    if task.winner:
        axes.axhline(task.winner.gain, color=COLOURS["good"], linewidth=1.2, linestyle=(0, (1, 1.5)))
    last = max(places, default=1)
    axes.set_xlim(min(places, default=1) - 0.02 * last - 0.5, last * 1.02 + 0.5)
    axes.set_ylim(0, top)
    few_ticks(axes, whole_x=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.set_xlabel("trials")
    return svg_of(figure, number, f"Gain over the default during {len(gains)} trials")


def plot_model_time(steps: Sequence[CurveStep], number: int) -> str:
    """What a run of the model takes while tuning goes on: ms over wall time."""
    figure, axes = new_figure(5.2, 2.8)
    scale, unit = _time_scale(steps[-1].seconds)
    places = [step.seconds / scale for step in steps]
    for name, values, width in (
        ("second", [step.measured_ms for step in steps], 1.6),
        ("first", [step.verified_ms for step in steps], 2.2),
    ):
        axes.plot(places, values, color=COLOURS[name], linewidth=width, drawstyle="steps-post")
    least = min(min(step.measured_ms, step.verified_ms) for step in steps)
    most = max(max(step.measured_ms, step.verified_ms) for step in steps)
    room = 0.08 * max(most - least, 0.05 * most, 1e-9)
    axes.set_ylim(max(0.0, least - room), most + room)
    axes.set_xlim(0, max(places[-1], 1e-9))
    few_ticks(axes)
    axes.set_xlabel(f"{unit} of tuning")
    axes.set_ylabel("ms per run")
    first_ms, last_ms = steps[0].verified_ms, steps[-1].verified_ms
    return svg_of(figure, number, f"Time of the model, from {first_ms:.4g} to {last_ms:.4g} ms per run")


def plot_accuracy(accuracies: Sequence[Accuracy], number: int) -> str:
    """How well the cost model had ordered each batch before it was measured, over wall time; the line is the mean of nine batches."""
    figure, axes = new_figure(5.2, 2.8)
    scale, unit = _time_scale(accuracies[-1].seconds)
    places = [each.seconds / scale for each in accuracies]
    values = [each.value for each in accuracies]
    axes.axhline(0.5, color=COLOURS["muted"], linewidth=0.9, linestyle=(0, (4, 3)))
    axes.plot(places, values, "o", color=COLOURS["second"], markersize=3.6, alpha=0.6, markeredgewidth=0)
    axes.plot(places, _smoothed(values), color=COLOURS["first"], linewidth=2.2)
    axes.set_ylim(min(0.4, min(values) - 0.04), 1.02)
    axes.set_xlim(0, max(places[-1] * 1.02, 1e-9))
    few_ticks(axes)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel(f"{unit} of tuning")
    axes.set_ylabel("pairs in order")
    return svg_of(figure, number, f"Rank accuracy of the cost model over {len(values)} batches")


def _smoothed(values: Sequence[float]) -> list[float]:
    """The mean of each value and of those just before it."""
    windows = [values[max(0, end - _SMOOTHED_BATCHES) : end] for end in range(1, len(values) + 1)]
    return [sum(window) / len(window) for window in windows]


def _time_scale(seconds: float) -> tuple[float, str]:
    return (1.0, "seconds") if seconds < 180 else (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")


def new_figure(width: float, height: float, size: float = 9.5) -> tuple[Any, Any]:
    """An empty figure in inches, with one pair of axes; `size` of its letters in points, of which an inch has 72."""
    import matplotlib
    from matplotlib.figure import Figure

    ink, muted, grid = (COLOURS[name] for name in ("ink", "muted", "grid"))
    style: dict[str, Any] = {
        "font.family": "DejaVu Sans", "font.size": size, "axes.edgecolor": muted, "axes.labelcolor": ink,
        "axes.linewidth": 0.8,
        "xtick.color": muted, "ytick.color": muted, "xtick.labelcolor": ink, "ytick.labelcolor": ink,
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
        "grid.color": grid, "grid.linewidth": 0.7, "axes.facecolor": "none", "figure.facecolor": "none",
        "axes.formatter.useoffset": False, "axes.formatter.use_mathtext": False,
    }  # fmt: skip
    everything: Any = {**matplotlib.rcParamsDefault, **style}
    with matplotlib.rc_context(everything):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.add_subplot()


def few_ticks(axes: Any, *, whole_x: bool = False) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5, integer=whole_x, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))


def svg_of(figure: Any, number: int, label: str) -> str:
    """The figure as an `svg` element: no ids but those it needs, which other plots of the page do not have; no sizes, no addresses."""
    import matplotlib

    written = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tc"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = written.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    box = re.search(r'viewBox="([\d. ]+)"', text)
    assert box is not None, "matplotlib's SVG has a viewBox"
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'(font: *)([\d.]+px)[^;"]*', rf"\1\2 {_FONT}", body)
    used = set(re.findall(r'(?:url\(#|href="#)([\w-]+)', body))
    body = re.sub(r' id="([\w.-]+)"', lambda m: f' id="p{number}-{m[1]}"' if m[1] in used else "", body)
    body = re.sub(r'(url\(#|href="#)([\w-]+)', rf"\1p{number}-\2", body)
    body = body.replace("xlink:href", "href")
    for name, colour in COLOURS.items():
        body = body.replace(colour, f"var(--{name})")
    return f'<svg viewBox="{box[1]}" role="img" aria-label="{label}">{_without_lines(body)}'


def _without_lines(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text).strip()
