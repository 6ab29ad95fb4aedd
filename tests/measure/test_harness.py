"""The measuring harness: fair turns, ratios that survive a machine that changes speed, rows that are kept."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from benchmarks import report, run
from benchmarks.kernels import make_softmax
from benchmarks.report import Result, Row
from tc.measure import harness
from tc.measure.harness import Plan, Ratio, time_interleaved, wait_until_quiet
from tc.measure.runtimes import relative_error


class FakeMachine:
    """A clock that only programs move; from time to time everything takes twice as long."""

    def __init__(self, slow_from: float = np.inf) -> None:
        self.now = 0.0
        self.slow_from = slow_from
        self.log: list[str] = []

    def clock(self) -> float:
        return self.now

    def program(self, name: str, seconds: float) -> object:
        def step() -> None:
            self.log.append(name)
            self.now += seconds * (2 if self.now >= self.slow_from else 1)

        return step


def measure(machine: FakeMachine, **seconds: float) -> object:
    steps = {name: machine.program(name, each) for name, each in seconds.items()}
    return time_interleaved(steps, Plan(budget_seconds=10), clock=machine.clock, wait=lambda: None)


def test_the_ratio_is_right_when_the_machine_slows_down_halfway() -> None:
    timings = measure(FakeMachine(slow_from=1.0), a=0.001, b=0.003)

    assert timings.ratio("b", "a").median == pytest.approx(3)
    assert timings.ratio("a", "b").median == pytest.approx(1 / 3)
    assert timings.shortest("a") == pytest.approx(0.001)


def test_programs_take_turns_and_every_other_round_goes_backwards() -> None:
    machine = FakeMachine()

    measure(machine, a=2.0, b=2.0)

    assert machine.log == ["a"] * 3 + ["b"] * 3 + ["a", "b", "b", "a"] * (Plan.min_rounds // 2)


def test_rounds_end_with_the_budget_but_not_before_the_least_number() -> None:
    timings = measure(FakeMachine(), a=5.0)

    assert len(timings.seconds) == Plan.min_rounds


def test_a_short_program_is_called_many_times_in_a_slot_and_a_long_one_once() -> None:
    machine = FakeMachine()

    timings = measure(machine, short=0.0005, long=0.2)

    rounds = len(timings.seconds)
    assert machine.log.count("long") <= rounds + 3
    assert machine.log.count("short") > 50 * rounds


def test_a_step_that_changes_the_affinity_of_the_thread_is_refused() -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("needs two cores")

    def pin() -> None:
        os.sched_setaffinity(0, {min(cores)})

    try:
        with pytest.raises(RuntimeError, match="pin changed the affinity"):
            time_interleaved({"pin": pin}, Plan(budget_seconds=0.2), wait=lambda: None)
    finally:
        os.sched_setaffinity(0, cores)


def test_waiting_ends_when_the_process_uses_no_more_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    busy_seconds = iter([0.0, 0.002, 0.002, 0.004, 0.004, 0.0041])  # before and after each of three naps
    naps: list[float] = []
    clock = SimpleNamespace(perf_counter=lambda: 0.0, process_time=lambda: next(busy_seconds), sleep=naps.append)
    monkeypatch.setattr(harness, "time", clock)

    wait_until_quiet(limit_seconds=5)

    assert len(naps) == 3


def test_waiting_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    used = iter(range(100))
    naps: list[float] = []
    clock = SimpleNamespace(
        perf_counter=lambda: float(next(now)), process_time=lambda: float(next(used)), sleep=naps.append
    )
    monkeypatch.setattr(harness, "time", clock)

    wait_until_quiet(limit_seconds=5)

    assert len(naps) == 4


def row(model: str = "m", threads: int = 1, peer: float = 0.002) -> Row:
    results = {
        "tc": Result("0.1", 0.5, 0.001, 0.0009, 2e-6),
        "fast": Result("1", 0.1, peer, peer, 1e-6),
        "slow": Result("2", 0.1, 1.0, 1.0, 1e-6),
        "gone": Result(problem="failed: no such operator"),
    }
    ratios = {"fast": Ratio(peer / 0.001, 1.9, 2.1), "slow": Ratio(1000, 900, 1100)}
    return Row(model, threads, {"N": 3}, results, ratios, 8, "2030-01-02", "abc", "cpu")


def test_rows_are_kept_and_replaced_by_model_and_threads(tmp_path: Path) -> None:
    report.update(tmp_path, [row("a"), row("b"), row("a", threads=2)])

    report.update(tmp_path, [dataclasses.replace(row("b"), rounds=99)])

    rows = report.read_rows(tmp_path / "RESULTS.json")
    assert [(r.model, r.threads, r.rounds) for r in rows] == [("a", 1, 8), ("b", 1, 99), ("a", 2, 8)]
    assert rows[0] == row("a")


def test_rows_of_ordinary_calls_stand_beside_the_others(tmp_path: Path) -> None:
    ordinary = dataclasses.replace(row("a", peer=0.003), calls="ordinary")

    report.update(tmp_path, [row("a")])
    report.update(tmp_path, [ordinary])

    assert report.read_rows(tmp_path / "RESULTS.json") == (row("a"), ordinary)
    bound, text = (tmp_path / "RESULTS.md").read_text().split("## 1 thread, ordinary calls")
    assert "2.00 [1.90, 2.10] fast" in bound and "3.00 [1.90, 2.10] fast" in text


def test_jobs_call_in_both_ways_unless_told_otherwise() -> None:
    def kinds(*arguments: str) -> list[str]:
        return [job.calls for job in run.make_jobs(run.parse_arguments(["--models", "resnet50", *arguments]))]

    assert kinds() == ["bound", "ordinary"] and kinds("--calls", "ordinary") == ["ordinary"]
    with pytest.raises(ValueError, match="no calls 'strange'; there are bound, ordinary"):
        kinds("--calls", "strange")


@pytest.mark.parametrize("name", ["tc", "onnxruntime", "openvino"])
def test_an_ordinary_call_gives_what_the_model_computes(name: str, softmax_file: Path) -> None:
    pytest.importorskip("onnxruntime" if name == "tc" else name)
    runtime, arrays = run.LOADERS[name](softmax_file, 1), {"x": np.ones((4, 64), np.float32)}

    (result,) = _listed(runtime.step(arrays, "ordinary")())

    np.testing.assert_allclose(result, np.full((4, 64), 1 / 64), rtol=1e-6)


def _listed(results: object) -> list[np.ndarray]:
    """What a call returned, as arrays, whichever runtime's."""
    if isinstance(results, np.ndarray):
        return [results]
    values = results.values() if hasattr(results, "values") else results
    return [value.numpy() if hasattr(value, "numpy") else np.array(value) for value in values]  # type: ignore[union-attr]


def test_the_table_shows_the_best_peer_and_why_a_runtime_has_no_numbers() -> None:
    text = report.as_markdown([row("a", peer=0.002), row("b", peer=0.0005)])

    assert "| a (3) | 1.00 (0.900) | 2.00 (2.00) | 1000 (1000) | - | 2.00 [1.90, 2.10] fast | - | 2.0e-06 |" in text
    assert "- a, gone: failed: no such operator" in text
    assert "geometric mean 1.00, worst 0.50 (b)" in text
    assert "2030-01-02, commit abc, cpu: tc 0.1, fast 1, slow 2" in text


def test_results_of_another_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "RESULTS.json").write_text(json.dumps({"format": 0, "rows": []}))

    with pytest.raises(ValueError, match="format 0, expected 1"):
        report.read_rows(tmp_path / "RESULTS.json")


@pytest.fixture
def softmax_file(tmp_path: Path) -> Path:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "softmax.onnx"
    onnx.save(make_softmax(4, 64), file)
    return file


@pytest.mark.slow
def test_a_file_is_measured_from_the_command_line(softmax_file: Path, tmp_path: Path) -> None:
    arguments = ["--models", str(softmax_file), "--only-peers", "--calls", "bound", "--rounds", "2", "--output", str(tmp_path)]

    code = run.main([*arguments, "--vs", "onnxruntime"])

    assert code == 0
    (found,) = report.read_rows(tmp_path / "RESULTS.json")
    result = found.results["onnxruntime"]
    assert result.error is not None
    assert result.error < 1e-6
    assert 0 < result.min_seconds <= result.median_seconds < 1
    assert "softmax.onnx" in (tmp_path / "RESULTS.md").read_text()


def test_what_a_runtime_raises_becomes_its_result(softmax_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> object:
        raise NotImplementedError("no kernel for Softmax")

    monkeypatch.setitem(run.LOADERS, "tc", fail)

    found = run.measure(run.Job(str(softmax_file), 1, ("tc",), {}, fix_dims=False, plan=Plan()))

    assert found.results["tc"].problem == "failed: NotImplementedError: no kernel for Softmax"


def test_wrong_results_show_in_the_error() -> None:
    expected = [np.array([1.0, -4.0])]

    assert relative_error([np.array([1.0, -3.0])], expected) == pytest.approx(0.25)
    assert relative_error([np.array([1.0])], expected) == np.inf


def test_unknown_models_and_runtimes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--models", "resnet51"]) == 1
    assert "no model 'resnet51'" in capsys.readouterr().err
    assert run.main(["--vs", "abacus"]) == 1
    assert "no runtime 'abacus'" in capsys.readouterr().err
