"""Schedules from a tuning database, replayed on the kernels of a model, and what happens when they no longer fit."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from tc.autotune.tasks import extract_tasks
from tc.codegen.kernels import TunedDecisions
from tc.fuzz.generate import generate
from tc.ir.dtype import f32
from tc.ir.loop import PrimFunc
from tc.ir.structural import structural_equal
from tc.records.apply import STEP_LIMIT, TunedSchedules, check_trace
from tc.records.database import Database
from tc.records.record import Choice, Record, target_key
from tc.schedule.canonical import canonical_names, workload_key
from tc.schedule.knobs import Knob
from tc.schedule.rules import Scheduled, apply_rules
from tc.schedule.step import LANGUAGE_VERSION, PRIMITIVES, Step, Trace
from tc.target import Target, native_target
from tc.te import create_prim_func, placeholder, reduce
from tests.draws import some_of
from tests.schedule.programs import biased, chain, matmul, row_sum, softmax

TARGET = Target.parse("x86-64-v3:cores=2")
WORKLOAD = "0123456789abcdef"


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "tuned.db")


def record(trace: Trace | str, **changes: object) -> Record:
    text = trace if isinstance(trace, str) else trace.to_json()
    facts = {"seconds": 1e-3, "low": 9e-4, "high": 2e-3, "ratio": 0.5, "verified": True, "rule": "tuned", **changes}
    return Record(workload=WORKLOAD, target=target_key(TARGET), threads=2, trace=text, **facts)


def default_of(func: PrimFunc) -> Scheduled:
    """The default schedule of a program with canonical names, as records hold schedules."""
    return apply_rules(canonical_names(func), TARGET)


def test_a_kernel_gets_the_schedule_of_its_fastest_record(database: Database) -> None:
    slow, fast = Trace((Step("parallel", ("l0",)),)), default_of(matmul()).trace
    database.append([record(slow), record(fast, seconds=5e-4)])
    tuned = TunedSchedules(database, TARGET, threads=2)

    scheduled = tuned.schedule(matmul(), WORKLOAD)

    assert scheduled is not None
    assert structural_equal(scheduled.func, default_of(matmul()).func)
    assert (scheduled.rule, scheduled.trace) == ("tuned", fast)
    assert (tuned.find(WORKLOAD), tuned.notes, tuned.applied) == (fast, [], {WORKLOAD})


def test_a_kernel_without_a_record_gets_its_default_and_no_note(database: Database) -> None:
    database.append([record(Trace(), verified=False)])
    tuned = TunedSchedules(database, TARGET, threads=2)

    assert tuned.schedule(matmul(), WORKLOAD) is None
    assert tuned.find("another") is None
    assert (tuned.notes, tuned.applied) == ([], set())


@pytest.mark.parametrize("program", [chain, row_sum, softmax], ids=lambda program: program.__name__)
def test_a_schedule_of_another_program_leaves_a_note(program: Callable[[], PrimFunc], database: Database) -> None:
    database.append([record(default_of(matmul(64, 64, 64)).trace)])
    tuned = TunedSchedules(database, TARGET, threads=2)

    assert tuned.schedule(program(), WORKLOAD) is None

    (note,) = tuned.notes
    assert note.startswith(f"{program.__name__}: its tuned schedule does not replay, so it has the default one: ")
    assert "\n" not in note and tuned.applied == set()


BAD_STEPS = {
    "no such primitive": ["melt", "l0"],
    "too few arguments": ["split"],
    "a loop that is not there": ["vectorize", "nope"],
    "no number": ["split", "l0", [None, "many"], ["io", "ii"]],
    "a negative factor": ["split", "l0", [None, -4], ["io", "ii"]],
    "nothing to split by": ["split", "l0", [None, 0], ["io", "ii"]],
    "a name that is a number": ["split", 3, [None, 4], ["io", "ii"]],
    "names that are none": ["split", "l0", [None, 4], [7, None]],
    "a list for a name": ["vectorize", ["l0", "l1"]],
    "nothing": ["fuse", None, None, None],
    "a fraction": ["pad_einsum", "s0", [1.5, 2.5, True]],
    "a layout of nonsense": ["transform_layout", "b2", "%%%"],
    "nested": ["reorder", [[["l0"]]]],
    "a number out of all proportion": ["split", "l0", [None, 1 << 40], ["io", "ii"]],
    "yes for a number": ["split", "l0", [None, True], ["io", "ii"]],
    "a name with a command for the terminal": ["split", "l0", [None, 4], ["\x1b[2J", "ii"]],
    "a name without end": ["split", "l0", [None, 4], ["x" * 1000, "ii"]],
}


@pytest.mark.parametrize("step", BAD_STEPS.values(), ids=BAD_STEPS)
def test_a_step_that_no_schedule_has_leaves_a_note(step: list[object], database: Database) -> None:
    database.append([record(json.dumps({"version": LANGUAGE_VERSION, "steps": [step]}))])
    tuned = TunedSchedules(database, TARGET, threads=2)

    assert tuned.schedule(matmul(), WORKLOAD) is None

    assert len(tuned.notes) == 1


@pytest.mark.parametrize("program", [matmul, biased, chain, softmax], ids=lambda program: program.__name__)
def test_what_rules_make_passes_the_check(program: Callable[[], PrimFunc]) -> None:
    check_trace(apply_rules(program(), TARGET).trace)


@pytest.mark.parametrize("mode", ["networks", "general"])
@pytest.mark.parametrize("first", some_of([0, 5], quick=[0]))
def test_default_schedules_of_drawn_graphs_come_back_whole_from_a_database(mode: str, first: int, tmp_path: Path) -> None:
    target, made = native_target(), {}
    for seed in range(first, first + 5):
        for task in extract_tasks(generate(seed, mode).model, target).tasks:
            func = task.variants["default"].func
            made[workload_key(func)] = func, apply_rules(canonical_names(func), target)
    place = {"target": target_key(target), "threads": target.cores}
    times = {"seconds": 1e-3, "low": 9e-4, "high": 2e-3, "ratio": 0.5, "verified": True}
    Database(tmp_path / "t.db").append(
        Record(workload=key, **place, **times, rule=default.rule, trace=default.trace.to_json()) for key, (_, default) in made.items()
    )
    tuned = TunedSchedules(Database(tmp_path / "t.db"), target, target.cores)

    for key, (func, default) in made.items():
        scheduled = tuned.schedule(func, key)
        assert scheduled is not None, tuned.notes
        assert structural_equal(scheduled.func, default.func)
    assert made and tuned.applied == set(made) and not tuned.notes


def test_every_primitive_says_what_it_takes() -> None:
    samples = {int: 2, str: "x", float: 0.5, bool: True}

    def sample(type_: Any) -> object:
        match get_args(type_):
            case (of,):
                return (sample(of),)
            case (first, *_):
                return sample(first)
        return samples[type_]

    for primitive, run in PRIMITIVES.items():
        types = get_type_hints(run)
        parameters = list(inspect.signature(run).parameters)[1:]
        check_trace(Trace((Step(primitive, tuple(sample(types[name]) for name in parameters)),)))


TRACES = {
    "no JSON": "x",
    "another version": json.dumps({"version": LANGUAGE_VERSION + 1, "steps": []}),
    "no steps": json.dumps({"version": LANGUAGE_VERSION}),
    "nested without end": '{"version":1,"steps":' + "[" * 100_000 + "]" * 100_000 + "}",
    "too many steps": json.dumps({"version": LANGUAGE_VERSION, "steps": [["unroll", "i"]] * (STEP_LIMIT + 1)}),
}


@pytest.mark.parametrize("text", TRACES.values(), ids=TRACES)
def test_a_text_that_is_no_schedule_leaves_a_note(text: str, database: Database) -> None:
    database.append([record(text, task="conv 3")])
    tuned = TunedSchedules(database, TARGET, threads=2)

    assert tuned.schedule(matmul(), WORKLOAD) is None
    assert tuned.find(WORKLOAD) is None

    assert [note.partition(":")[0] for note in tuned.notes] == ["matmul", "conv 3"]


def test_the_asked_for_variant_is_scheduled(database: Database) -> None:
    direct, winograd = Trace((Step("parallel", ("i",)),)), Trace((Step("unroll", ("j",)),))
    database.append([record(direct, variant="direct"), record(winograd, variant="winograd 4", seconds=5e-4)])
    tuned = TunedSchedules(database, TARGET, threads=2)

    assert tuned.find(WORKLOAD) == winograd
    assert tuned.find(WORKLOAD, "direct") == direct
    assert tuned.find(WORKLOAD, "winograd 2") is None


def test_a_program_with_other_names_gets_the_same_schedule(database: Database) -> None:
    left, right = placeholder((6, 5), f32, "left"), placeholder((5, 8), f32, "right")
    other = reduce("sum", (6, 8), (5,), lambda row, column, r: left[row, r] * right[r, column], "product")
    named_otherwise = create_prim_func("another", [left, right], [other])
    assert workload_key(named_otherwise) == workload_key(matmul())
    database.append([replace(record(default_of(matmul()).trace), workload=workload_key(matmul()))])
    tuned: TunedDecisions = TunedSchedules(database, TARGET, threads=2)

    scheduled = tuned.schedule(named_otherwise)

    assert scheduled is not None
    assert scheduled.func.name == "another"
    assert structural_equal(replace(scheduled.func, name="matmul"), default_of(matmul()).func)


def test_questions_get_the_answer_that_was_measured_if_it_is_still_possible(database: Database) -> None:
    def decide(options: tuple[int | bool | str, ...]) -> object:
        return tuned.decide(Knob("use_winograd", options, options[0], node="conv_3", key=WORKLOAD))

    tuned = TunedSchedules(database, TARGET, threads=2)
    assert decide((0, 2, 4)) == 0

    database.append([Choice(pass_name="use_winograd", key=WORKLOAD, target=target_key(TARGET), threads=2, value=4)])
    assert (decide((0, 2, 4)), tuned.notes) == (4, [])

    assert decide((0, 2)) == 0
    assert tuned.notes == ["conv_3: use_winograd shall be 4, but can be 0, 2; it is 0"]

    database.append([Choice(pass_name="use_winograd", key=WORKLOAD, target=target_key(TARGET), threads=2, value=True)])
    assert decide((0, 1)) == 0


def test_choices_are_found(database: Database) -> None:
    database.append([Choice(pass_name="winograd", key=WORKLOAD, target=target_key(TARGET), threads=2, value=4)])

    tuned = TunedSchedules(database, TARGET, threads=2)

    assert tuned.choice("winograd", WORKLOAD) == 4
    assert tuned.choice("winograd", "another") is None
    assert TunedSchedules(database, TARGET, threads=1).choice("winograd", WORKLOAD) is None


def test_records_for_other_machines_are_counted_in_the_summary(database: Database) -> None:
    database.append([record(Trace()), record(Trace(), language=LANGUAGE_VERSION + 1)])

    (line,) = TunedSchedules(database, Target.parse("x86-64-v2"), threads=2).summary()
    assert line.endswith("records that do not count here: 2 for another CPU or device")

    (line,) = TunedSchedules(database, TARGET, threads=1).summary()
    assert "1 in another version of the schedule language, 1 for another number of threads" in line
