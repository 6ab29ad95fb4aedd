"""The report of a tuning run: what it shows is what happened, whatever happened, and none of it is markup."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tc.autotune.events import (
    BatchMeasured,
    Event,
    FormTried,
    TaskStarted,
    TaskStopped,
    TuningFinished,
    TuningStarted,
    WinnerChecked,
)
from tc.autotune.in_model.outcome import InModelResult
from tc.autotune.report.facts import gather_facts
from tc.autotune.report.page import (
    GainVerdict,
    format_count,
    format_duration,
    format_ms,
    format_seconds,
    make_page,
    write_report,
)
from tc.autotune.search.space import Candidate
from tc.autotune.task import Task, Variant
from tc.errors import UserError
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.measure.harness import Ratio
from tc.records.record import Record
from tc.schedule.canonical import canonical_names
from tests.records.made_up_records import TARGET, make_record, make_trace
from tests.schedule.programs import matmul, softmax

pytest.importorskip("matplotlib")

HOSTILE = "<script>alert('x')</script>\"&$\\frac$\x00\x1b[2J"
VOID = {"meta", "wbr", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Checks that tags are balanced, and keeps what a reader sees and where attributes point."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == [], "all tags are closed"
        assert len(self.ids) == len(set(self.ids)), "no id is used twice"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} is closed where it is open"

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.texts.append(data)
        if {"td", "th"} & set(self.open) and "small" not in self.open:
            self.rows[-1][-1] += data

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "action")]
        assert not any(name.startswith("on") for name, _ in attrs), "nothing runs"
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def row(self, first: str) -> list[str]:
        (found,) = [row for row in self.rows if row and row[0] == first]
        return found


def make_task(name: str, calls: int = 1, func: PrimFunc | None = None, **others: PrimFunc) -> Task:
    programs = {"default": func or matmul(64, 64, 64), **others}
    variants = {
        variant: Variant(f"{name}:{variant}", canonical_names(program), IRModule((), name))
        for variant, program in programs.items()
    }
    return Task(name, variants, TARGET, {}, calls, (f"/{name}/MatMul",))


def record_of(task: Task, candidate: Candidate, variant: str = "default", **changes: object) -> Record:
    facts = {"trace": candidate.trace.to_json(), "point": candidate.point, "variant": variant, **changes}
    return make_record(workload=task.variants[variant].key, task=task.name, **facts)


def another(task: Task) -> Candidate:
    """A legal schedule that is not the default."""
    space = task.space()
    default = space.default()
    return next(c for c in map(space.at, space.neighbours(default)) if c.key != default.key)


def started(task: str, default_seconds: float = 2e-3, resumed: int = 0) -> TaskStarted:
    return TaskStarted(task, 1.0, default_seconds, 2.5e7, resumed)


def batch(task: str, seconds: float, trials: int, ratios: Sequence[float], **changes: object) -> BatchMeasured:
    failed = sum(1 for ratio in ratios if math.isinf(ratio))
    facts = {
        "errors": (("timeout", failed),) if failed else (),
        "best_ratio": min(ratios, default=math.inf),
        "model_accuracy": math.nan,
        "predicted_gain_ms": 0.25,
        **changes,
    }
    return BatchMeasured(task, seconds, trials, tuple(ratios), **facts)  # type: ignore[arg-type]


def won(task: str, ratio: float, candidate: Candidate | None = None, seconds: float = 20.0) -> WinnerChecked:
    point = candidate.point if candidate else ()
    return WinnerChecked(task, seconds, ratio, 0.98 * ratio, 1.03 * ratio, None, "default", point)


def write(
    folder: Path,
    events: Sequence[Event] = (),
    tasks: Sequence[Task] = (),
    records: Sequence[Record] = (),
    importance: Sequence[tuple[str, float]] = (),
    model: str = "net.onnx",
    in_model: Sequence[InModelResult] = (),
) -> tuple[str, Page]:
    file = folder / "report.html"
    write_report(file, model=model, events=events, tasks=tasks, records=records, importance=importance, in_model=in_model)
    assert [each.name for each in folder.iterdir()] == ["report.html"]
    html = file.read_text(encoding="utf-8")
    return html, Page(html)


def run_of_two_tasks() -> tuple[list[Event], list[Task], list[Record]]:
    first, second = make_task("dense", 3), make_task("softmax_1", 2, softmax(8, 64))
    best = another(first)
    events = [
        TuningStarted(("softmax_1", "dense"), 600.0),
        started("softmax_1", 5e-4),
        batch("softmax_1", 5.0, 3, (1.0, 1.2, 1.1)),
        started("dense", 2e-3, resumed=4),
        batch("dense", 10.0, 8, (1.0, 0.9, math.inf, 0.8), model_accuracy=0.7),
        won("dense", 0.8, best),
        batch("dense", 60.0, 10, (math.inf, 0.6), best_ratio=0.6, model_accuracy=0.9),
        WinnerChecked("dense", 61.0, 0.6, 0.6, 0.6, "wrong: 0.5 instead of 0.25", "default", ()),
        TaskStopped("dense", 70.0, "too little is expected"),
        TuningFinished(125.0, "nothing more is expected", 8.0, 6.8, 0.34),
    ]
    records = [
        record_of(first, best, seconds=1.6e-3, ratio=0.8),
        make_record(9, workload=first.key, task="dense", error="timeout", detail="ran for more than 2 s\nat all"),
    ]
    return events, [first, second], records


def test_headline_shows_the_numbers_of_the_events(tmp_path: Path) -> None:
    events, tasks, records = run_of_two_tasks()

    _, page = write(tmp_path, events, tasks, records)

    assert "Tuning of net.onnx" in page.text
    for shown in (
        "x86-64-v3, 256-bit vectors · 2 threads · 2 tasks",
        "8.000 ms → 6.800 ms",
        "1.200 ms less",
        "1.18×",
        "2 min 5 s",
        "of 10 min allowed",
        "−0.340 ms",
        "5.0% of it",
        "Why it stopped: nothing more is expected",
    ):
        assert shown in page.text


def test_tasks_are_ordered_by_what_they_saved_with_the_numbers_of_the_events(tmp_path: Path) -> None:
    events, tasks, records = run_of_two_tasks()

    _, page = write(tmp_path, events, tasks, records)

    names = [row[0] for row in page.rows]
    assert names.index("dense") < names.index("softmax_1")
    assert page.row("dense") == [
        "dense", "1.200 ms", "1.25×", "2.00 ms", "1.60 ms", "85.7%", "3", "10", "2", "default", "too little is expected",
    ]  # fmt: skip
    assert page.row("softmax_1") == ["softmax_1", "–", "–", "500.0 µs", "–", "14.3%", "2", "3", "", "", ""]
    assert "4 earlier" in page.text and "1.21 to 1.28×" in page.text and "about 25.0 million schedules" in page.text


def test_the_whole_model_is_followed_over_time() -> None:
    events, tasks, records = run_of_two_tasks()

    facts = gather_facts("net.onnx", events, tasks, records)

    # 3 * 2 ms and 2 * 0.5 ms are tuned, 1 ms is not.
    assert [step.seconds for step in facts.steps] == [0, 5, 10, 20, 60, 125]
    assert [step.measured_ms for step in facts.steps] == pytest.approx([8, 8, 6.8, 6.8, 5.6, 5.6])
    assert [step.verified_ms for step in facts.steps] == pytest.approx([8, 8, 8, 6.8, 6.8, 6.8])
    assert [(each.seconds, each.value) for each in facts.accuracies] == [(10.0, 0.7), (60.0, 0.9)]
    assert facts.tasks[0].ratios == [1.0, 0.9, math.inf, 0.8, math.inf, 0.6] and facts.tasks[0].first_trial == 5


def test_the_best_loops_stand_beside_the_default_with_the_knobs_that_differ(tmp_path: Path) -> None:
    events, tasks, records = run_of_two_tasks()
    default, best = dict(tasks[0].space().default().point), dict(another(tasks[0]).point)

    html, page = write(tmp_path, events, tasks, records)

    assert html.count("@loops") == 2 and "no longer replays" not in page.text
    knobs = [row[0] for row in page.rows if row[0] in best]
    assert sorted(knobs) == sorted(name for name in best if best[name] != default.get(name))


def test_a_winner_without_a_record_is_built_from_its_answers(tmp_path: Path) -> None:
    events, tasks, _ = run_of_two_tasks()

    html, page = write(tmp_path, events, tasks)

    assert html.count("@loops") == 2 and "no longer replays" not in page.text


@pytest.mark.parametrize(
    "trace",
    [make_trace(), "not JSON", '{"version":99,"steps":[]}', '{"version":1,"steps":[["split",1,2,3]]}'],
    ids=["other program", "no trace", "other version", "wrong types"],
)
def test_a_schedule_that_no_longer_replays_is_said_to(trace: str, tmp_path: Path) -> None:
    events, tasks, records = run_of_two_tasks()

    html, page = write(tmp_path, events, tasks, [replace(records[0], trace=trace)])

    assert "The best schedule no longer replays: " in page.text
    assert html.count("@loops") == 1


def test_a_schedule_of_a_variant_replays_on_its_program(tmp_path: Path) -> None:
    task = make_task("dense", 1, matmul(64, 64, 64), other=matmul(32, 32, 32))
    best = task.space().at({"variant": "other"})
    record = record_of(task, best, "other", ratio=0.5)

    html, page = write(tmp_path, (), [task], [record])

    assert "f32[64, 64]" in html and "f32[32, 32]" in html
    assert page.row("dense")[-1] == "other"


def test_failures_are_counted_by_cause_with_examples(tmp_path: Path) -> None:
    events, tasks, records = run_of_two_tasks()

    _, page = write(tmp_path, events, tasks, records)

    assert page.row("timeout") == ["timeout", "2", "1", "dense: ran for more than 2 s"]
    assert page.text.count("wrong: 0.5 instead of 0.25") == 1 and "Winners that were not kept" in page.text


def test_features_are_shown_with_their_parts(tmp_path: Path) -> None:
    _, page = write(tmp_path, importance=[("bytes", 1.0), ("flops", 3.0), ("unused", 0.0), ("odd", math.nan)])

    assert re.search(r"flops ?75\.0% ?bytes ?25\.0%", page.text)
    assert "unused" not in page.text and "odd" not in page.text


def test_what_the_model_decided_is_shown(tmp_path: Path) -> None:
    seconds = (("default", 10e-6), ("a" * 16, 12e-6), ("b" * 16, 8e-6))
    in_model = [
        InModelResult("w1", "conv_1", seconds, alone="a" * 16, chosen="default"),
        InModelResult("w2", "conv_2", seconds, alone="a" * 16, chosen="b" * 16),
        InModelResult("w3", "conv_3", seconds, alone="b" * 16, chosen="b" * 16),
    ]

    _, page = write(tmp_path, in_model=in_model)

    assert "1 kernel of 3 kept the schedule that is best alone" in page.text
    assert ["conv_2", "10.0 µs", "12.0 µs", "8.0 µs", "another one"] in page.rows
    assert ["conv_1", "10.0 µs", "12.0 µs", "10.0 µs", "the default"] in page.rows
    assert not any(row[0] == "conv_3" for row in page.rows)


def test_forms_of_the_graph_are_shown(tmp_path: Path) -> None:
    forms = [
        FormTried("fuse_ops", "k1", "Relu_3", False, Ratio(0.8, 0.78, 0.82), True),
        FormTried("convert_layout/vectors of a block", "k2", "main", 2, Ratio(1.25, 1.2, 1.3), False),
        FormTried("convert_layout/rate of plain, %", "k2", "main", 50, None, False, "y: the largest error is 2"),
    ]

    _, page = write(tmp_path, events=forms)

    assert ["fuse_ops", "Relu_3", "False", "1.25×", "kept"] in page.rows
    assert ["convert_layout/vectors of a block", "main", "2", "0.80×", ""] in page.rows
    assert ["convert_layout/rate of plain, %", "main", "50", "–", "y: the largest error is 2"] in page.rows


def test_records_alone_make_a_page(tmp_path: Path) -> None:
    records = [
        make_record(4, seconds=1e-3, ratio=0.5, low=0.9e-3, high=1.1e-3),
        make_record(5, seconds=0.5e-3, ratio=0.25, verified=False),
        make_record(6, error="crash", detail="signal 11"),
        make_record(7, threads=1),
    ]

    _, page = write(tmp_path, records=records)

    assert page.row("conv_1") == ["conv_1", "1.000 ms", "2.00×", "2.00 ms", "1.00 ms", "100.0%", "–", "3", "1", ""]
    assert page.row("crash") == ["crash", "1", "1", "conv_1: signal 11"]
    assert "made from records alone" in page.text and "1 record for other machines" in page.text
    assert "The program is not at hand" in page.text and "split('i', (None, 4), ('io', 'ii'))" in page.text


def test_a_schedule_once_found_wrong_is_no_winner() -> None:
    good, wrong = make_record(4, ratio=0.5), make_record(5, ratio=0.25)

    facts = gather_facts("net", (), (), [wrong, good, make_record(5, error="wrong")])

    assert facts.tasks[0].winner is not None and facts.tasks[0].winner.record == good


def test_records_of_another_model_are_no_tasks_of_this_one() -> None:
    facts = gather_facts("net", (), [make_task("dense")], [make_record()])

    assert [task.name for task in facts.tasks] == ["dense"] and facts.trials == 0


def test_a_run_without_trials_makes_a_page(tmp_path: Path) -> None:
    events = [TuningStarted(("dense",), 0.0), TuningFinished(0.0, "the budget is 0", 3.0, 3.0, math.nan)]

    _, page = write(tmp_path, events, [make_task("dense")])

    assert "3.000 ms → 3.000 ms" in page.text and "1.00×" in page.text and "the budget is 0" in page.text
    assert page.row("dense") == ["dense", "–", "–", "–", "–", "–", "1", "0", "", ""]
    assert "svg" not in page.tags


def test_nothing_at_all_makes_a_page(tmp_path: Path) -> None:
    _, page = write(tmp_path)

    assert "There was nothing to tune" in page.text


def test_a_task_with_failures_only_and_a_model_that_was_never_trained_make_a_page(tmp_path: Path) -> None:
    events = [TuningStarted(("dense",), None), started("dense"), batch("dense", 3.0, 2, (math.inf, math.inf))]

    _, page = write(tmp_path, events, [make_task("dense")])

    assert page.row("dense")[:2] == ["dense", "–"] and page.row("dense")[7:9] == ["2", "2"]
    assert "The cost model was not trained" in page.text and "did not come to its end" in page.text
    assert "nan" not in page.text.lower() and "inf" not in page.text.replace("information", "")


def test_numbers_that_are_none_do_not_break_the_page(tmp_path: Path) -> None:
    nothing = (math.nan, math.inf)
    events: list[Event] = [TuningStarted(("dense",), math.nan)]
    for bad in nothing:
        events += [
            TaskStarted("dense", 1.0, bad, bad, 0),
            batch("dense", 2.0, 3, (bad, math.nan), best_ratio=bad, predicted_gain_ms=bad),
            WinnerChecked("dense", 3.0, bad, bad, bad, None, "default", ()),
        ]
    for bad in nothing:
        _, page = write(tmp_path, [*events, TuningFinished(9.0, "done", bad, bad, bad)], [make_task("dense")])
        assert "nan" not in page.text.lower()


def test_an_interrupted_run_adds_up_what_it_knows() -> None:
    events, tasks, records = run_of_two_tasks()

    facts = gather_facts("net.onnx", events[:-1], tasks, records)

    assert (facts.default_ms, facts.tuned_ms) == pytest.approx((7.0, 5.8))
    assert facts.seconds == 70.0 and facts.remaining_ms == pytest.approx(0.5)


def test_text_from_outside_is_never_markup(tmp_path: Path) -> None:
    task = replace(make_task("dense"), name=HOSTILE, nodes=(HOSTILE,))
    events = [
        TuningStarted((HOSTILE,), 10.0),
        started(HOSTILE),
        batch(HOSTILE, 2.0, 2, (0.5, math.inf), errors=((HOSTILE, 1),), model_accuracy=0.5),
        WinnerChecked(HOSTILE, 3.0, 0.5, 0.4, 0.6, None, HOSTILE, ((HOSTILE, HOSTILE),)),
        WinnerChecked(HOSTILE, 4.0, 0.5, 0.4, 0.6, HOSTILE, HOSTILE, ()),
        TaskStopped(HOSTILE, 5.0, HOSTILE),
        TuningFinished(6.0, HOSTILE, 2.0, 1.0, 0.1),
    ]
    failed = make_record(5, workload=task.key, task=HOSTILE, error=HOSTILE, detail=HOSTILE)

    html, page = write(tmp_path, events, [task], [failed], [(HOSTILE, 1.0)], model=HOSTILE)

    assert "script" not in page.tags and "<script" not in html
    assert page.text.count("<script>alert('x')</script>") >= 8
    assert "\x00" not in html and "\x1b" not in html


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    events, tasks, records = run_of_two_tasks()

    html, page = write(tmp_path, events, tasks, records, [("bytes", 1.0)])

    assert page.tags.count("svg") == 4
    assert "://" not in html and "@import" not in html
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert all(name in page.ids for name in re.findall(r"url\(#([^)]*)\)", html))
    assert "#0a0b0" not in html, "every colour is one of the style sheet's"


def test_one_run_makes_one_page(tmp_path: Path) -> None:
    events, tasks, records = run_of_two_tasks()

    assert write(tmp_path, events, tasks, records)[0] == write(tmp_path, events, tasks, records)[0]


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(UserError, match=r"pip install tc\[viz\]"):
        write(tmp_path)


def test_a_file_that_cannot_be_written_is_an_error_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none/report\.html: cannot be written: No such file"):
        write_report(tmp_path / "none" / "report.html", model="net", events=(), tasks=(), records=())


def test_numbers_have_the_units_that_fit() -> None:
    assert [format_seconds(x) for x in (2.5e-6, 1.5e-3, 2.0, math.nan)] == ["2.5 µs", "1.50 ms", "2.00 s", "–"]
    assert [format_ms(x) for x in (0.0123, 12.5, 1234.5, math.inf)] == ["0.012 ms", "12.50 ms", "1,234.5 ms", "–"]
    assert [format_duration(x) for x in (0.5, 59.0, 60.0, 605.0, 7500.0)] == ["0.5 s", "59 s", "1 min", "10 min 5 s", "2 h 5 min"]
    assert [format_count(x) for x in (123.4, 3.4e6, 1e12)] == ["123", "3.4 million", "10^12"]


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (GainVerdict(Ratio(0.8, 0.75, 0.85)), "The whole model: 1.25× [1.18×, 1.33×] as fast as untuned, measured in turns."),
        (GainVerdict(Ratio(1.25, 1.2, 1.3), is_used=False), "The whole model: it gained nothing: 0.80×"),
        (GainVerdict(None), "The whole model: it gained nothing: no kernel got another schedule"),
    ],
)
def test_the_page_says_what_the_whole_model_gained(verdict: GainVerdict, words: str) -> None:
    """The sum over kernels stood there alone, also where the whole model was no faster and nothing of it is used."""
    page = make_page(gather_facts("m.onnx", (), (), ()), verdict=verdict)

    text = " ".join(re.sub(r"<[^>]*>", "", page).split())
    assert words in text
