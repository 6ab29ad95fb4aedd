"""What a quantization is, as one HTML page: the front, what each layer costs in accuracy, the search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tc.autotune.report.markup import (
    breakable,
    card,
    color_key,
    element,
    figure,
    section,
    table,
    whole_page,
    words,
    write_page,
)
from tc.autotune.report.plots import COLOURS, few_ticks, new_figure, require_matplotlib, svg_of
from tc.quantization.evaluate import LayerNoise
from tc.version import __version__

LAYERS_SHOWN = 60
NOT_KNOWN = "–"
LARGE = (8.4, 3.6)
"""Inches of a plot as wide as the page: its words are then as large as the page's."""


@dataclass(frozen=True)
class ReportPoint:
    """A measured strategy; NaN for what is not known."""

    label: str
    error: float
    cosine: float
    metric: float
    seconds: float
    ratio: float
    is_on_front: bool
    is_chosen: bool


@dataclass(frozen=True)
class ReportFacts:
    """What the page shows. `trials`: predicted seconds and loss of each. `types`: (site, operator, types) of the chosen model."""

    model: str
    mode: str
    hardware: str
    points: tuple[ReportPoint, ...]
    trials: tuple[tuple[float, float], ...]
    noise: tuple[LayerNoise, ...]
    notes: tuple[str, ...]
    types: tuple[tuple[str, str, str], ...]


def write_quantization_report(path: Path, facts: ReportFacts) -> None:
    """Write the page. UserError where matplotlib is missing or the file cannot be written."""
    require_matplotlib()
    write_page(path, make_quantization_page(facts))


def make_quantization_page(facts: ReportFacts) -> str:
    """The whole page."""
    sections = (
        _head(facts),
        _front(facts.points),
        _search(facts.trials),
        _layers(facts.noise, {name: types for name, _, types in facts.types}),
        section("Notes", *(element("p", words(note)) for note in facts.notes)) if facts.notes else "",
        element("footer", words(f"Made by tc {__version__}.")),
    )
    return whole_page(f"Quantization of {facts.model}", sections)


def _head(facts: ReportFacts) -> str:
    chosen = next((point for point in facts.points if point.is_chosen), None)
    cards = []
    if chosen is not None:
        cards.append(("chosen", chosen.label, "products by their types"))
        cards.append(("error", _percent(chosen.error), "relative, of the outputs, beside f32"))
        if chosen.metric == chosen.metric:
            cards.append(("metric", f"{chosen.metric:.4g}", "larger is better"))
        if chosen.ratio == chosen.ratio:
            cards.append(("speed", f"{1 / chosen.ratio:.2f}×", "of f32, in turns"))
    return element(
        "header",
        element("h1", words(f"Quantization of {facts.model}")),
        element("p", words(f"{facts.mode}, for {facts.hardware}; {len(facts.trials)} trials"), class_="where"),
        element("div", *(card(*each) for each in cards), class_="cards") if cards else "",
    )


def _front(points: Sequence[ReportPoint]) -> str:
    if not points:
        return ""
    has_metric = any(point.metric == point.metric for point in points)
    rows = []
    for point in points:
        cells = (
            _percent(point.error), f"{point.cosine:.5f}",
            *((f"{point.metric:.4g}" if point.metric == point.metric else NOT_KNOWN,) if has_metric else ()),
            f"{point.seconds * 1e3:.3f} ms" if point.seconds == point.seconds else NOT_KNOWN,
            f"{1 / point.ratio:.2f}×" if point.ratio == point.ratio else NOT_KNOWN,
            "chosen" if point.is_chosen else "on the front" if point.is_on_front else "",
        )  # fmt: skip
        rows.append(element("tr", element("th", words(point.label), scope="row"), *(element("td", words(c), class_="n") for c in cells)))
    metric = (("metric", "n"),) if has_metric else ()
    columns = (("products in", ""), ("error", "n"), ("cosine", "n"), *metric, ("a call", "n"), ("speed of f32", "n"), ("", "n"))
    note = "Each was written, compiled and run: its error is that of the model that is written, its time was taken in turns with f32."
    timed = [point for point in points if point.seconds == point.seconds]
    parts = [element("p", words(note), class_="note"), table(columns, rows)]
    if timed:
        key = color_key(("good", "chosen"), ("first", "on the front"), ("muted", "beaten"))
        parts.append(element("div", figure("Time and error", _plot_front(timed), key, ""), class_="large"))
    return section("The front", *parts)


def _search(trials: Sequence[tuple[float, float]]) -> str:
    if len(trials) < 3:
        return ""
    note = "Every trial of the search: the error or loss of the simulated graph over the time that was predicted."
    return section("The search", element("div", figure("Trials", _plot_trials(trials), "", note), class_="large"))


def _layers(noise: Sequence[LayerNoise], types: dict[str, str]) -> str:
    if not noise:
        return ""
    known = [layer for layer in noise if layer.error == layer.error]
    worst = sorted(known, key=lambda layer: -layer.error)[:LAYERS_SHOWN]
    shown = worst or list(noise)[:LAYERS_SHOWN]
    rows = [
        element(
            "tr",
            element("th", breakable(layer.site), element("small", words(layer.op_type)), scope="row"),
            *(element("td", words(text), class_="n") for text in (_percent(layer.error), _db(layer.operand_db), _db(layer.weight_db))),
            element("td", words(types.get(layer.site, ""))),
        )
        for layer in shown
    ]
    note = (
        "Error: of the outputs when this layer alone is quantized to its smallest type. Signal to noise: of the operand on calibration "
        "inputs, and of the weight; 6 dB are one bit."
    )
    parts = [element("p", words(note), class_="note")]
    if len(known) > 1:
        plot = figure("Sensitivity", _plot_sensitivity(known), "", "Layers in the order of the graph.")
        parts.append(element("div", plot, class_="large"))
    columns = (("layer", ""), ("error alone", "n"), ("operand", "n"), ("weight", "n"), ("chosen types", ""))
    return section("Layers", *parts, table(columns, rows))


def _percent(value: float) -> str:
    return NOT_KNOWN if value != value else "∞" if math.isinf(value) else f"{value:.3%}" if value < 0.1 else f"{value:.1%}"


def _db(value: float) -> str:
    return NOT_KNOWN if value != value else "∞" if value == math.inf else f"{value:.1f} dB"


# -- plots


def _plot_front(points: Sequence[ReportPoint]) -> str:
    drawing, axes = new_figure(*LARGE)
    for point in points:
        color = COLOURS["good"] if point.is_chosen else COLOURS["first"] if point.is_on_front else COLOURS["muted"]
        axes.plot([point.seconds * 1e3], [100 * min(point.error, 10.0)], "o", color=color, markersize=8 if point.is_chosen else 6)
    line = sorted((point.seconds * 1e3, 100 * point.error) for point in points if point.is_on_front and math.isfinite(point.error))
    axes.plot([x for x, _ in line], [y for _, y in line], color=COLOURS["first"], linewidth=1.2, drawstyle="steps-post")
    few_ticks(axes)
    axes.set_xlabel("ms per call")
    axes.set_ylabel("error, %")
    return svg_of(drawing, 1, f"Time and error of {len(points)} models")


def _plot_trials(trials: Sequence[tuple[float, float]]) -> str:
    drawing, axes = new_figure(*LARGE)
    finite = [(seconds * 1e3, loss) for seconds, loss in trials if math.isfinite(loss)]
    axes.plot([x for x, _ in finite], [y for _, y in finite], "o", color=COLOURS["second"], markersize=3.6, alpha=0.6, markeredgewidth=0)
    few_ticks(axes)
    axes.set_xlabel("ms per call, predicted")
    axes.set_ylabel("loss")
    return svg_of(drawing, 2, f"Loss and predicted time of {len(trials)} trials")


def _plot_sensitivity(layers: Sequence[LayerNoise]) -> str:
    drawing, axes = new_figure(*LARGE)
    values = [100 * min(layer.error, 10.0) for layer in layers]
    axes.bar(range(1, len(values) + 1), values, color=COLOURS["first"], width=0.8)
    few_ticks(axes, whole_x=True)
    axes.set_xlabel("layer")
    axes.set_ylabel("error, %")
    return svg_of(drawing, 3, f"Error of each of {len(layers)} layers alone")
