"""Schedules ordered by predictions: what comes out, that limits hold, and that nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tc.autotune.build import BuildRequest, build
from tc.autotune.rank import rank_task
from tc.autotune.search.limits import refuse
from tc.autotune.tasks import extract_tasks
from tc.cli.main import main
from tc.cost.device_work import device_work
from tc.demo import MODEL_PATH
from tc.errors import ScheduleError
from tc.ir.parser import parse_module
from tc.target import Target

PRODUCT = """
@graph
def main(x: {dtype}[{rows}, 256], w: {dtype}[256, 128]):
    y: {dtype}[{rows}, 128] = matmul(x, w)
    return y
"""
SMALL = "cuda:sm_75,max_shared_bytes_per_block=6000,static_shared_bytes_per_block=65536@x86-64-v3"


def task_of(target: str, rows: int = 256, dtype: str = "f32"):
    (task,) = extract_tasks(parse_module(PRODUCT.format(rows=rows, dtype=dtype)), Target.parse(target)).tasks
    return task


@pytest.mark.slow
def test_the_best_by_prediction_come_first_and_are_no_worse_than_the_default() -> None:
    ranked = rank_task(task_of("opencl:generic@x86-64-v3", rows=32), 0.5, trials=8)

    predicted = [each.seconds for each in ranked.best]
    assert predicted == sorted(predicted) and len(predicted) == 4
    assert predicted[0] <= ranked.default.seconds < np.inf
    assert len({each.candidate.key for each in ranked.best}) == 4 and ranked.scored >= 8


def test_candidates_that_a_device_cannot_hold_are_refused_before_anything_is_compiled() -> None:
    """The device has less shared memory than the rules believe, who take all that a block has without asking."""
    task = task_of(SMALL)
    rng, space = np.random.default_rng(0), task.space()
    drawn = [space.sample(rng) for _ in range(12)]

    problems = [refuse(each, task.dims) for each in drawn]

    bytes_of = [sum(launch.shared_bytes for launch in device_work(each.final, {})) for each in drawn]
    assert [problem is None for problem in problems] == [size <= 6000 for size in bytes_of]
    assert "bytes of shared memory, sm_75 has 6000" in str(problems[int(np.argmax(bytes_of))])
    refused = BuildRequest(task.workload("default"), drawn[int(np.argmax(bytes_of))].trace.to_json())
    with pytest.raises(ScheduleError, match="bytes of shared memory, sm_75 has 6000"):
        build(refused)


PAIRS = [("cuda:sm_80", "f32"), ("cuda:sm_80", "f16")]


@pytest.mark.parametrize(("target", "dtype"), PAIRS)
def test_products_leave_hundreds_of_schedules_open(target: str, dtype: str) -> None:
    space, rng, found = task_of(f"{target}@x86-64-v3", dtype=dtype).space(), np.random.default_rng(0), set()
    for _ in range(30):
        try:
            found.add(space.sample(rng).key)
        except ScheduleError:
            continue

    assert len(found) >= 20 and space.size(8) >= 300


def test_ranking_on_the_command_line_says_that_nothing_was_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ["--target", "cuda:sm_80", "--rank", "--budget", "1s", "--trials", "2", "--tasks", "*0*"]

    assert main(["tune", str(MODEL_PATH), *options, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert main(["tune", str(MODEL_PATH), *options, "--db", str(tmp_path / "t.db")]) == 1

    assert data["measured"] is False and "seconds" not in json.dumps(data["tasks"]).replace("predicted_seconds", "")
    assert all(task["best"][0]["predicted_seconds"] <= task["default"]["predicted_seconds"] * 1.001 for task in data["tasks"])
    assert not (tmp_path / "t.db").exists()
