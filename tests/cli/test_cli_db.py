"""`tc db`: what people read, what programs read, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tc.cli import main
from tc.cli.db import difference, short_name, target_names
from tc.records.database import Database
from tc.records.record import target_key
from tc.schedule.step import LANGUAGE_VERSION
from tc.target import native_target
from tests.records.made_up_records import all_records, lines_of, make_choice, make_record

HERE = target_key(native_target())
ELSEWHERE = target_key(replace(native_target(), l2_bytes=123456))


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two tasks, one of them on two machines, the other without a verified schedule."""
    path = tmp_path / "tuned.db"
    conv = {"workload": "5f3a" * 8, "task": "net/conv_1", "target": HERE}
    softmax = {"workload": "77ab" * 8, "task": "softmax [64]", "target": HERE, "verified": False}
    Database(path).append(
        [
            make_record(1, 2e-3, **conv, verified=False),
            make_record(2, 1e-3, **conv, variant="winograd 4"),
            make_record(3, 0.5e-3, **conv, verified=False),
            make_record(4, **conv, error="timeout", detail="\nran longer than 5 s\nand was killed"),
            make_record(5, **conv, error="timeout", detail="again"),
            make_record(6, **conv, error="wrong", detail="largest error 0.3"),
            make_record(2, 0.9e-3, **conv, variant="winograd 4"),
            make_record(1, 4e-3, **{**conv, "target": ELSEWHERE}),
            make_record(1, 3e-3, **softmax),
            make_record(2, **{**softmax, "error": "crash"}, language=LANGUAGE_VERSION + 1),
            make_choice(target=HERE),
        ]
    )
    return path


def damage(path: Path) -> None:
    """Line 3 edited, the last one cut off."""
    lines = lines_of(path)
    lines[2] = lines[2].replace(b"winograd", b"windgrad")
    path.write_bytes(b"".join(lines)[:-10])


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command that does well prints."""
    assert main(["db", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(run(capsys, *arguments, "--json"))


def test_list_has_a_row_for_each_task(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.rstrip() for line in run(capsys, "list", path).splitlines()]

    assert lines[0].split() == ["task", "trials", "failed", "best", "gain", "verified", "threads", "target"]
    assert lines[1].split() == ["net/conv_1", "6", "3", "900.0", "µs", "2.22x", "yes", "2", "this", "machine"]
    assert lines[2].split()[:8] == ["net/conv_1", "1", "4.00", "ms", "0.50x", "yes", "2", short_name(ELSEWHERE).split()[0]]
    assert "3.00 ms" in lines[3] and " no " in lines[3] and "softmax [64]" in lines[3]
    assert lines[4].endswith(f"this machine, schedule language {LANGUAGE_VERSION + 1}")
    assert lines[6] == "4 tasks, 2 with a verified schedule; 9 trials; 1 decision about graphs"
    assert len(lines) == 7


def test_list_as_data(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(path)

    data = run_json(capsys, "list", path, "--task", "net/*")

    here = next(task for task in data["tasks"] if task["target"] == HERE)
    assert here["target_name"] == "this machine"
    assert (here["task"], here["workload"], here["trials"], here["failures"]) == ("net/conv_1", "5f3a" * 8, 6, 3)
    assert (here["seconds"], here["gain"], here["verified"]) == (0.9e-3, pytest.approx(2 / 0.9), True)
    assert {task["task"] for task in data["tasks"]} == {"net/conv_1"}
    assert data["choices"] == 0
    assert data["size_bytes"] == path.stat().st_size
    assert (data["num_problems"], [problem["line"] for problem in data["problems"]]) == (2, [3, 12])


def test_options_may_stand_before_the_action(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "--json", "list", str(path)]) == 0

    assert len(json.loads(capsys.readouterr().out)["tasks"]) == 4


def test_damaged_lines_are_told_with_their_numbers(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(path)
    text = run(capsys, "list", path)

    assert "2 damaged lines left out\n  line 3: its checksum does not match: it was edited or damaged\n  line 12: it has no end" in text

    path.write_bytes(path.read_bytes() + b"\n" + b"note\n" * 9)
    text = run(capsys, "show", path, "softmax*")
    assert "11 damaged lines left out" in text and "and 6 more (--json lists them)" in text


def test_an_empty_database_has_no_records_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Database(tmp_path / "new.db")

    assert run(capsys, "list", tmp_path / "new.db") == f"{tmp_path}/new.db: no records yet\n"


def test_show_tells_schedules_step_by_step(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "show", path, "net/conv_1")
    here = text[text.index("this machine") :].split("net/conv_1")[0]

    assert "6, 3 of them failed" in text
    assert "1.  900.0 µs  (810.0 µs to 990.0 µs), 2.22x the speed of the default, verified" in here
    assert "rule  contraction, variant winograd 4" in here
    assert "    answers\n      mm/rows   (2, 2)" in here
    assert "    steps\n      split('i', (None, 2), ('io', 'ii'))\n      vectorize('ii')\n" in here
    assert "2.  500.0 µs" in here and "not verified" in here
    assert "    answers that differ\n      mm/rows  (3, 2)" in here
    assert here.count("steps") == 1
    assert "    2  timeout  ran longer than 5 s" in here and "    1  wrong    largest error 0.3" in here


@pytest.mark.parametrize(
    ("options", "schedules", "steps"), [(["--top", "1"], 1, 1), (["--top", "2", "--steps"], 2, 2), (["--top", "0"], 3, 1)]
)
def test_show_shows_as_many_as_asked_for(
    options: list[str], schedules: int, steps: int, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Database(path).append([make_record(1, 1.0, workload="aa" * 8, task="only"), *(make_record(i, i, workload="aa" * 8) for i in (2, 3))])

    text = run(capsys, "show", path, "aaaa", *options)

    assert (text.count("the speed of the default"), text.count("split(")) == (schedules, steps)


def test_show_as_data(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, _ = run_json(capsys, "show", path, "5f3a5f", "--top", 2)["tasks"]
    other, _ = run_json(capsys, "show", path, "softmax [64]", "--top", 1)["tasks"]

    assert [schedule["seconds"] for schedule in task["schedules"]] == [0.9e-3, 0.5e-3]
    assert task["schedules"][0]["steps"] == ["split('i', (None, 2), ('io', 'ii'))", "vectorize('ii')"]
    assert task["schedules"][0]["point"] == {"mm/rows": [2, 2], "mm/pack": True, "mm/order": "io jo"}
    assert [(failed["cause"], failed["count"]) for failed in task["failures_by_cause"]] == [("timeout", 2), ("wrong", 1)]
    assert other["schedules"][0]["verified"] is False and other["failures_by_cause"] == []


def test_a_schedule_that_cannot_be_read_is_shown_as_such(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = '{"version":1,"steps":[["\\u001b[2Jmelt","i"]]}'
    melting, bad = make_record(trace=step, workload="cc" * 8, task="melting"), make_record(error="crash", task="bad")
    Database(path).append([melting, bad])

    text = run(capsys, "show", path, "melting")
    assert "its steps cannot be shown: there is no primitive '\\x1b[2Jmelt'" in text and "\x1b[2J" not in text
    assert "no schedule ran well" in run(capsys, "show", path, "bad")


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("conv", "no task is named 'conv'; there are net/conv_1, ..."),
        ("sofmax [64]", "no task is named 'sofmax [64]'; there are softmax [64], ..."),
        ("zzz", "there are net/conv_1, softmax [64]"),
        ("5f3", "no task is named '5f3'"),
    ],
)
def test_a_task_that_is_not_there_is_answered_with_names(
    task: str, words: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["db", "show", str(path), task]) == 1

    assert words in capsys.readouterr().err
    assert main(["db", "list", str(path), "--task", task]) == 1


def test_merge_says_what_came_of_it(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(path)
    Database(tmp_path / "more.db").append([make_record(50)])
    out = tmp_path / "all.db"

    text = run(capsys, "merge", out, path, tmp_path / "more.db")
    assert text.startswith(f"{out}: 10 lines added, 0 already there\n{path}: 1 damaged line left out\n  line 3: its checksum")
    data = run_json(capsys, "merge", out, path)
    assert (data["added"], data["duplicates"], data["problems"][str(path)][0]["line"]) == (0, 9, 3)
    assert len(all_records(out)) == 10


def test_merge_makes_nothing_when_an_input_is_missing(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "merge", str(tmp_path / "all.db"), str(path), str(tmp_path / "none.db")]) == 1

    assert capsys.readouterr().err == f"tc: error: {tmp_path}/none.db: there is no such tuning database (tc explain TC4020)\n"
    assert not (tmp_path / "all.db").exists()


def test_prune_says_what_is_left(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(path)

    text = run(capsys, "prune", path, "--keep", 1)

    kept = len(lines_of(path)) - 1
    assert text.startswith(f"{path}: {kept} lines kept; {9 - kept} lines, 1 damaged line removed\n")
    assert "before" in text and "now" in text
    assert run_json(capsys, "prune", path, "--keep", 1)["dropped"] == 0


def test_export_writes_columns(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(run(capsys, "export", path))))
    assert len(rows) == 10 and rows[0]["task"] == "net/conv_1" and json.loads(rows[0]["point"])[0] == ["mm/rows", [1, 2]]

    text = run(capsys, "export", path, "--format", "json", "--columns", "task, seconds,error", "--task", "soft*")
    assert json.loads(text) == [
        {"task": "softmax [64]", "seconds": 3e-3, "error": None},
        {"task": "softmax [64]", "seconds": None, "error": "crash"},
    ]
    assert run_json(capsys, "export", path, "--columns", "trial", "--task", "soft*")["rows"] == [{"trial": 1}, {"trial": 2}]

    damage(path)
    out = tmp_path / "trials.csv"
    assert f"{out}: 9 records\n2 damaged lines left out" in run(capsys, "export", path, "--columns", "task", "-o", out)
    assert out.read_text().splitlines()[:2] == ["task", "net/conv_1"]
    assert main(["db", "export", str(path), "--columns", "task"]) == 0
    assert "2 damaged lines left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prune", "FILE", "--keep", "0"], "--keep is 0, must be at least 1"),
        (["show", "FILE", "net/conv_1", "--top", "-1"], "--top is -1, must not be negative"),
        (["export", "FILE", "--columns", "colour"], "there is no column 'colour'; there are workload, "),
        (["export", "FILE", "--columns", ","], "--columns: no column is named"),
        (["export", "FILE", "-o", "/nowhere/x.csv"], "/nowhere/x.csv: cannot be written: No such file"),
        (["list", "/nowhere/x.db"], "/nowhere/x.db: there is no such tuning database"),
        (["list", "/"], "/: is a folder, not a tuning database"),
        (["merge", "/nowhere/x.db", "FILE"], "there is no folder /nowhere"),
        (["list", "OLD"], "is a tuning database of version 7; this tc reads and writes version 1 only"),
        (["merge", "OLD", "FILE"], "is a tuning database of version 7"),
        (["prune", "OLD", "--keep", "1"], "is a tuning database of version 7"),
    ],
)
def test_wrong_requests_are_one_line(
    arguments: list[str], words: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, content = tmp_path / "old.db", b'{"format":"tc-tuning","version":7}\n{"something":"else"}\n'
    old.write_bytes(content)
    before = path.read_bytes()
    places = {"FILE": str(path), "OLD": str(old)}

    assert main(["db", *(places.get(argument, argument) for argument in arguments)]) == 1

    captured = capsys.readouterr()
    assert words in captured.err and captured.err.startswith("tc: error: ") and captured.err.count("\n") == 1
    assert captured.out == ""
    assert (old.read_bytes(), path.read_bytes()) == (content, before)


@pytest.mark.parametrize("arguments", [[], ["fly"], ["list"], ["show", "x.db"], ["merge", "x.db"], ["prune", "x.db"], ["export"]])
def test_an_incomplete_command_line_exits_with_1(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["db", *arguments])

    assert stopped.value.code == 1
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("action", [[], ["list"], ["show"], ["merge"], ["prune"], ["export"]])
def test_help_has_examples(action: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["db", *action, "--help"])

    text = capsys.readouterr().out
    assert stopped.value.code == 0
    assert "examples:" in text and "--json" in text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_machines_of_one_name_are_told_apart() -> None:
    first, second = "cpu:name=a,vector_bits=256,l2=1M,features=avx2", "cpu:name=a,vector_bits=256,l2=2M,features=avx2+fma"

    names = target_names([HERE, first, second, "x86-64-v3", "cpu:name=b,vector_bits=512,features=", "nonsense"])

    assert names[HERE] == "this machine"
    assert names["x86-64-v3"] == "x86-64-v3"
    assert names["nonsense"] == "nonsense"
    assert (names[first], names[second]) == ("a, 256 bit (l2=1M)", "a, 256 bit (l2=2M +fma)")
    assert difference("cpu:name=a,features=x", ["cpu:name=a,features=x", "cpu:name=a,features=x+y"]) == "fewer features"
