"""What a tuning run did, as one HTML page that needs nothing else: no scripts, no other files, no network.

Whatever comes from models and databases is text here and never markup: every piece of it goes through `words`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tc.autotune.events import Event, FormTried
from tc.autotune.in_model.outcome import InModelResult
from tc.autotune.report.facts import RunFacts, TaskFacts, gather_facts
from tc.autotune.report.markup import (
    bar,
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
from tc.autotune.report.plots import plot_accuracy, plot_curve, plot_model_time, require_matplotlib
from tc.autotune.report.schedules import Difference, compare
from tc.autotune.task import Task
from tc.errors import TcError
from tc.measure.harness import Ratio
from tc.records.record import DEFAULT, Record, clean_text
from tc.schedule.knobs import Value
from tc.target import Target
from tc.version import __version__

CURVES_SHOWN = 12
SCHEDULES_SHOWN = 8
FEATURES_SHOWN = 20
NODES_SHOWN = 6
LINES_SHOWN = 400
EXAMPLES_SHOWN = 3
NOT_KNOWN = "–"

CAUSES = {
    "illegal": "a step of the schedule was not legal",
    "build": "no machine code could be made",
    "timeout": "building or running took too long",
    "crash": "the process died",
    "memory": "it wanted more memory than it may have",
    "wrong": "its results were not those of the reference",
}

_LOOP_WORDS = re.compile(r"\b(parallel|vectorized|unrolled|bound)(?=\()")


@dataclass(frozen=True)
class GainVerdict:
    """What tuning did for the whole model: its seconds tuned over untuned, taken in turns (None: no kernel is another one, or nothing
    was measured), and whether it compiles with what was found."""

    ratio: Ratio | None
    is_used: bool = True


def write_report(
    path: str | Path,
    *,
    model: str,
    events: Sequence[Event],
    tasks: Sequence[Task],
    records: Sequence[Record],
    importance: Sequence[tuple[str, float]] = (),
    in_model: Sequence[InModelResult] = (),
    verdict: GainVerdict | None = None,
) -> None:
    """Write the report of a tuning run to `path`, which changes only when the whole page is there.

    Any of `events`, `tasks` and `records` may be empty: the page says what it can. `importance`: features of the cost model with
    their parts of its gain. `in_model`: how schedules did inside the model. `verdict`: how the whole model did. UserError when matplotlib
    is missing or the file cannot be written.
    """
    require_matplotlib()
    page = make_page(gather_facts(model, events, tasks, records), importance, in_model, verdict)
    write_page(path, page)


def make_page(
    facts: RunFacts,
    importance: Sequence[tuple[str, float]] = (),
    in_model: Sequence[InModelResult] = (),
    verdict: GainVerdict | None = None,
) -> str:
    """The whole page."""
    sections = (
        _headline(facts, verdict),
        _tasks(facts),
        _over_time(facts),
        _curves(facts),
        _schedules(facts),
        _in_model(in_model),
        _forms(facts.forms),
        _importance(importance),
        _failures(facts),
        element("footer", words(f"Made by tc {__version__}.")),
    )
    return whole_page("Tuning of " + facts.model, sections)


# The sections.


def _headline(facts: RunFacts, verdict: GainVerdict | None) -> str:
    is_known = 0 < facts.default_ms < math.inf
    what = "A run of the model" if facts.is_whole_model else "A call of each task"
    times = f"{format_ms(facts.default_ms)} → {format_ms(facts.tuned_ms)}" if is_known else NOT_KNOWN
    saved_ms = facts.default_ms - facts.tuned_ms
    failures = sum(task.num_failures for task in facts.tasks)
    budget = "" if facts.budget_seconds is None else f"of {format_duration(facts.budget_seconds)} allowed"
    cards = [
        (what, times, f"{format_ms(saved_ms)} less" if saved_ms > 0 else "default, then tuned"),
        ("Gain", format_gain(facts.gain), "kernels added up; the whole model is below" if verdict else "default time over tuned time"),
        ("Time spent", format_duration(facts.seconds), budget),
        ("Trials", f"{facts.trials:,}", f"{failures:,} of them failed" if failures else "none of them failed"),
        ("As much time again", *_remaining(facts)),
    ]
    others = "for other machines, threads or schedule languages"
    left_out = f"{count(facts.left_out, 'record')} {others} left out." if facts.left_out else ""
    return element(
        "header",
        element("h1", words(f"Tuning of {facts.model}")),
        element("p", words(_place(facts)), class_="where"),
        element("div", *(card(*each) for each in cards), class_="cards"),
        element("p", element("b", "The whole model: "), words(say_verdict(verdict)), class_="reason") if verdict else "",
        element("p", element("b", "Why it stopped: "), words(facts.reason), class_="reason"),
        element("p", words(left_out), class_="note") if left_out else "",
    )


def say_verdict(verdict: GainVerdict) -> str:
    """What the whole model gained, in a sentence."""
    if verdict.ratio is None:
        return "it gained nothing: no kernel got another schedule, so it is what it was."
    times = f"{format_gain(1 / verdict.ratio.median)} [{format_gain(1 / verdict.ratio.high)}, {format_gain(1 / verdict.ratio.low)}]"
    if verdict.is_used:
        return f"{times} as fast as untuned, measured in turns."
    return f"it gained nothing: {times} as fast as untuned, measured in turns. It compiles as it did before."


def _place(facts: RunFacts) -> str:
    """The target's CPU and vectors, its full text where that is not readable, and the threads."""
    if not facts.target:
        return "target not known"
    try:
        target = Target.parse(facts.target)
        name = f"{target.cpu}, {target.vector_bits}-bit vectors"
    except TcError:
        name = facts.target
    return f"{name} · {count(facts.threads, 'thread')} · {count(len(facts.tasks), 'task')}"


def _remaining(facts: RunFacts) -> tuple[str, str]:
    if not math.isfinite(facts.remaining_ms):
        return NOT_KNOWN, "what more would bring is not known"
    if facts.remaining_ms <= 0:
        return "nothing", "no more gain is expected"
    part = facts.remaining_ms / facts.tuned_ms if facts.tuned_ms > 0 else math.nan
    return f"−{format_ms(facts.remaining_ms)}", "expected per run" + (f", {part:.1%} of it" if part == part else "")


def _tasks(facts: RunFacts) -> str:
    if not facts.tasks:
        return section("Tasks", element("p", "There was nothing to tune: the model has no task."))
    columns = (
        ("task", ""), ("saved per run" if facts.is_whole_model else "saved", "n"), ("gain", "n"), ("default", "n"),
        ("best verified", "n"), ("share of time", "n"), ("calls", "n"), ("trials", "n"), ("failed", "n"), ("variant", ""),
        *((("why no more", ""),) if any(task.reason for task in facts.tasks) else ()),
    )  # fmt: skip
    shown = table(columns, (_task_row(facts, task) for task in facts.tasks))
    note = (
        "Times are those of one call. The gain is the default schedule's time over that of the best verified one, measured "
        "in turns, with quartiles; a schedule is verified when it was measured again and its results were those of the reference."
    )
    return section("Tasks", element("p", words(note), class_="note"), shown)


def _task_row(facts: RunFacts, task: TaskFacts) -> str:
    share, winner = facts.share(task), task.winner
    earlier = f"{task.resumed_trials:,} earlier" if task.resumed_trials else ""
    is_spread = winner is not None and 0 < winner.low <= winner.high < math.inf
    spread = f"{1 / winner.high:.2f} to {format_gain(1 / winner.low)}" if winner and is_spread else ""
    gained = "n strong" if winner and winner.gain >= 1.01 else "n"
    track = bar(share) if share == share else ""
    cells = (
        (_cell(format_ms(task.saved_ms) if winner else NOT_KNOWN), "n"),
        (_cell(format_gain(winner.gain) if winner else NOT_KNOWN, spread), gained),
        (_cell(format_seconds(task.default_seconds)), "n"),
        (_cell(format_seconds(task.best_seconds)), "n"),
        (_cell(f"{share:.1%}" if share == share else NOT_KNOWN) + track, "n"),
        (_cell(task.calls if task.task else NOT_KNOWN), "n"),
        (_cell(f"{task.trials:,}", earlier), "n"),
        (_cell(f"{task.num_failures:,}" if task.num_failures else ""), "n"),
        (_cell(winner.variant if winner else ""), ""),
        *(((_cell(task.reason), "reason"),) if any(each.reason for each in facts.tasks) else ()),
    )
    nodes = [shorten(node, 80) for node in task.nodes[:NODES_SHOWN]]
    more = f" and {len(task.nodes) - NODES_SHOWN:,} more" if len(task.nodes) > NODES_SHOWN else ""
    return element(
        "tr",
        element("th", breakable(task.name), element("small", breakable(", ".join(nodes) + more)), scope="row"),
        *(element("td", content, class_=kind) for content, kind in cells),
    )


def _cell(value: object, below: str = "") -> str:
    return words(value) + (element("small", words(below)) if below else "")


def _over_time(facts: RunFacts) -> str:
    figures = []
    if facts.steps:
        key = color_key(("first", "verified schedules"), ("second", "fastest measured so far, not checked yet"))
        text = "Calls × time, added up over all kernels. The axis need not begin at 0."
        figures.append(figure("The whole model", plot_model_time(facts.steps, 1), key, text))
    if facts.accuracies:
        key = color_key(("second", "one batch"), ("first", "mean of nine batches"), ("muted", "guessing"))
        text = "How many pairs of a batch the model had in the right order before they were measured."
        figures.append(figure("Accuracy of the cost model", plot_accuracy(facts.accuracies, 2), key, text))
    elif facts.steps:
        text = "The cost model was not trained in this run, so there is nothing to tell."
        figures.append(figure("Accuracy of the cost model", "", "", text))
    return section("Over time", element("div", *figures, class_="large")) if figures else ""


def _curves(facts: RunFacts) -> str:
    shown = [task for task in facts.important if task.ratios][:CURVES_SHOWN]
    if not shown:
        return ""
    key = color_key(
        ("second", "one trial"), ("first", "fastest so far"), ("good", "verified"), ("bad", "failed trial"),
        ("muted", "default"),
    )  # fmt: skip
    figures = (
        figure(task.name, plot_curve(task, 10 + place), "", _curve_text(task)) for place, task in enumerate(shown)
    )
    tried = sum(1 for task in facts.tasks if task.ratios)
    which = f"The {len(shown)} of {tried} tasks that saved most. " if tried > len(shown) else ""
    text = which + "Height is the gain: the default schedule's time over the trial's."
    note = element("p", words(text), class_="note")
    return section("Tuning curves", note, key, element("div", *figures, class_="small"))


def _curve_text(task: TaskFacts) -> str:
    parts = [f"{format_gain(task.winner.gain)} verified" if task.winner else "nothing verified"]
    if task.num_failures:
        parts.append(f"{task.num_failures:,} failed")
    if math.isfinite(task.space_size):
        parts.append(f"about {format_count(task.space_size)} schedules possible")
    return ", ".join(parts)


def _schedules(facts: RunFacts) -> str:
    shown = [task for task in facts.important if task.winner][:SCHEDULES_SHOWN]
    if not shown:
        return section("Schedules", element("p", "No task has a verified schedule of its own: all keep the default."))
    folds = (_schedule(task, is_open=place == 0) for place, task in enumerate(shown))
    note = "Loops before the passes that make code of them. The kinds of loops that are not plain are marked."
    return section("Schedules", element("p", note, class_="note"), *folds)


def _schedule(task: TaskFacts, *, is_open: bool) -> str:
    winner = task.winner
    assert winner is not None, "shown for tasks with a winner"
    found = compare(task)
    times = f"{format_seconds(task.default_seconds)} → {format_seconds(task.best_seconds)}"
    variant = f", variant {winner.variant}" if winner.variant else ""
    title = element("b", breakable(task.name)) + words(f"  {times}, {format_gain(winner.gain)}{variant}")
    parts = [element("p", words(found.problem), class_="problem")] if found.problem else []
    if found.knobs:
        parts.append(_knobs(found.knobs, has_default=found.default is not None))
    elif found.best is not None:
        parts.append(element("p", "All knobs have the default's values.", class_="note"))
    nests = [(name, text) for name, text in (("Default", found.default), ("Best", found.best)) if text is not None]
    if nests:
        parts.append(element("div", *(_nest(name, text) for name, text in nests), class_="pair"))
    if found.steps:
        listing = element("pre", "\n".join(words(step) for step in found.steps), tabindex="0")
        fold = element("summary", words(f"{count(len(found.steps), 'step')} of the best schedule")) + listing
        parts.append(element("details", fold, class_="inner"))
    return element("details", element("summary", title), *parts, **({"open": ""} if is_open else {}))


def _knobs(knobs: Sequence[Difference], *, has_default: bool) -> str:
    names = ("knob", "default", "best") if has_default else ("knob", "best")
    answers = [(format_value(old), format_value(new)) if has_default else (format_value(new),) for _, old, new in knobs]
    rows = (
        element("tr", *(element("td", words(text)) for text in (name, *values)))
        for (name, _, _), values in zip(knobs, answers, strict=True)
    )
    head = element("tr", *(element("th", name, scope="col") for name in names))
    table = element("table", element("thead", head), element("tbody", *rows), class_="knobs")
    return element("div", table, class_="wide")


def _nest(name: str, text: str) -> str:
    narrow = re.sub(r"^ +", lambda indent: indent[0][::2], text.rstrip(), flags=re.MULTILINE)  # nests are deep
    lines = narrow.splitlines()
    rest = f"\n… {len(lines) - LINES_SHOWN:,} more lines" if len(lines) > LINES_SHOWN else ""
    shown = clean_text("\n".join(lines[:LINES_SHOWN]) + rest, 1 << 18, multiline=True)
    code = _LOOP_WORDS.sub(r"<mark>\1</mark>", escape(shown))
    listing = element("pre", element("code", code), tabindex="0")
    return element("div", element("h4", words(name)), listing, class_="nest")


def _in_model(in_model: Sequence[InModelResult]) -> str:
    """The kernels that get another schedule inside the model than the one that is best alone."""
    if not in_model:
        return ""
    others = sorted((each for each in in_model if each.chosen != each.alone), key=lambda s: s.of(s.chosen) - s.of(s.alone))
    note = (
        "The best schedules of every kernel ran inside the model too, where other kernels write the inputs and share the caches. "
        f"{count(len(in_model) - len(others), 'kernel')} of {len(in_model)} kept the schedule that is best alone."
    )
    parts = [element("p", words(note), class_="note")]
    if others:
        columns = (("kernel", ""), ("default", "n"), ("best alone", "n"), ("chosen", "n"), ("which is", ""))
        parts.append(table(columns, map(_in_model_row, others), class_="failures"))
    return section("Inside the model", *parts)


def _in_model_row(result: InModelResult) -> str:
    times = (result.of(DEFAULT), result.of(result.alone), result.of(result.chosen))
    return element(
        "tr",
        element("th", breakable(result.kernel), scope="row"),
        *(element("td", words(format_seconds(seconds)), class_="n") for seconds in times),
        element("td", "the default" if result.chosen == DEFAULT else "another one"),
    )


def _forms(forms: Sequence[FormTried]) -> str:
    """Other answers to what graph passes ask about the whole model."""
    if not forms:
        return ""
    note = (
        "How tensors lie in memory and which operators share a kernel concerns several kernels at once, so models that differ in one such "
        "answer ran in turns. The gain is over the best form before it; what is clearly faster is kept."
    )
    columns = (("question", ""), ("where", ""), ("answer", ""), ("gain", "n"), ("", ""))
    return section("The graph", element("p", words(note), class_="note"), table(columns, map(_form_row, forms), class_="failures"))


def _form_row(form: FormTried) -> str:
    gain = NOT_KNOWN if form.ratio is None else format_gain(1 / form.ratio.median)
    return element(
        "tr",
        element("th", breakable(form.question), scope="row"),
        element("td", breakable(form.node)),
        element("td", words(form.answer)),
        element("td", words(gain), class_="n"),
        element("td", words("kept" if form.is_kept else form.problem or "")),
    )


def _importance(importance: Sequence[tuple[str, float]]) -> str:
    known = sorted((item for item in importance if 0 < item[1] < math.inf), key=lambda item: -item[1])
    if not known:
        return ""
    total, most = sum(part for _, part in known), known[0][1]
    rows = (
        element("span", words(name), class_="name")
        + bar(part / most)
        + element("span", words(f"{part / total:.1%}"), class_="part")
        for name, part in known[:FEATURES_SHOWN]
    )
    which = f"The first {FEATURES_SHOWN} of {len(known)} features. " if len(known) > FEATURES_SHOWN else ""
    note = which + "The part of the cost model's gain that comes from splits on each feature of the loops."
    bars = element("div", *rows, class_="bars")
    return section("What the cost model looks at", element("p", words(note), class_="note"), bars)


def _failures(facts: RunFacts) -> str:
    causes = sum((task.failures for task in facts.tasks), Counter[str]())
    refused = [(task, problem) for task in facts.tasks for problem in task.problems]
    if not causes and not refused:
        return section("Failures", element("p", "No trial failed.")) if facts.trials else ""
    parts = []
    if causes:
        columns = (("cause", ""), ("trials", "n"), ("tasks", "n"), ("examples", ""))
        rows = (_failure_row(facts, cause, number) for cause, number in causes.most_common())
        parts.append(table(columns, rows, class_="failures"))
    if refused:
        parts.append(element("h3", "Winners that were not kept"))
        parts.append(element("ul", *(element("li", _example(task.name, problem)) for task, problem in refused)))
    return section("Failures", *parts)


def _failure_row(facts: RunFacts, cause: str, number: int) -> str:
    failed = [(task, r) for task in facts.tasks for r in task.records if r.error == cause and r.detail.strip()]
    texts = {first_line(record.detail): task.name for task, record in failed}
    shown = list(texts.items())[:EXAMPLES_SHOWN]
    examples = "".join(element("div", _example(name, text)) for text, name in shown)
    tasks = sum(1 for task in facts.tasks if task.failures[cause])
    return element(
        "tr",
        element("th", _cell(cause, CAUSES.get(cause, "")), scope="row"),
        element("td", words(f"{number:,}"), class_="n"),
        element("td", words(tasks), class_="n"),
        element("td", examples or words(NOT_KNOWN)),
    )


def _example(task: str, text: str) -> str:
    return element("b", breakable(task)) + words(f": {shorten(text)}")


# Markup.


def format_seconds(seconds: float) -> str:
    """A short time with a unit that leaves one to three digits before the point."""
    if not math.isfinite(seconds):
        return NOT_KNOWN
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def format_ms(milliseconds: float) -> str:
    """A time per run of the model."""
    if not math.isfinite(milliseconds):
        return NOT_KNOWN
    size = abs(milliseconds)
    digits = 3 if size < 10 else 2 if size < 100 else 1
    return f"{milliseconds:,.{digits}f} ms"


def format_duration(seconds: float) -> str:
    """How long somebody has waited."""
    if not math.isfinite(seconds):
        return NOT_KNOWN
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def format_gain(gain: float) -> str:
    return f"{gain:.2f}×" if math.isfinite(gain) else NOT_KNOWN


def format_count(number: float) -> str:
    """About how many: `1,200`, `3.4 million`, `10^12`."""
    if number < 1e6:
        return f"{number:,.0f}"
    return f"{number / 1e6:,.1f} million" if number < 1e9 else f"10^{math.log10(number):.0f}"


def format_value(value: Value | None) -> str:
    """The answer of a knob."""
    if isinstance(value, tuple):
        return "(" + ", ".join(map(format_value, value)) + ")"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NOT_KNOWN if value is None else str(value)


def count(number: int, what: str) -> str:
    """`1 task`, `1,234 tasks`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def shorten(text: str, limit: int = 400) -> str:
    return clean_text(" ".join(text.split()), limit)
