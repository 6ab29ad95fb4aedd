"""The benchmark of every operator at drawn sizes: the same models for a seed, large ones, and results that are looked at first."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks import drawn_operators
from benchmarks.drawn_operators import Job, Timed, draw, is_same, measure
from tc.fuzz.generate import ROWS
from tc.measure.harness import Plan, Ratio

QUICK = Plan(slot_seconds=0.0, settle_seconds=0.0, budget_seconds=0.0, min_rounds=1, max_rounds=1)


def row_of(op: str) -> int:
    return next(k for k, row in enumerate(ROWS) if row.op == op)


@pytest.mark.parametrize("op", ["Relu", "ReduceMean", "Concat", "MaxPool", "Tile", "LSTM", "CumSum"])
def test_a_seed_draws_one_model_whose_tensors_are_large(op: str) -> None:
    cases = [draw(Job(row_of(op), number, 3)) for number in range(3)]
    again = draw(Job(row_of(op), 0, 3))

    assert all(case is not None for case in cases)
    assert again is not None and again.model == cases[0].model
    most = max(array.size for case in cases for array in [*case.feeds.values(), *map(initializer_of, case.model.graph.initializer)])
    assert most > 2000


def initializer_of(tensor: object) -> np.ndarray:
    from onnx import numpy_helper

    return numpy_helper.to_array(tensor)  # type: ignore[arg-type]


def test_a_model_is_timed_beside_the_peers_that_give_the_same() -> None:
    found = measure(Job(row_of("Relu"), 0, 3), 1, QUICK, None)

    assert not found.problem and found.ratio is not None and found.peer and found.seconds > 0
    assert "Relu" in found.shape and "Relu" in str(found)


def test_a_wrong_result_is_told_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_operators, "is_same", lambda found, expected: False)

    found = measure(Job(row_of("Relu"), 0, 3), 1, QUICK, None)

    assert found.is_wrong and found.ratio is None


def test_results_are_the_same_but_for_roundings() -> None:
    a = np.array([1.0, 2.0], np.float32)

    assert is_same([a], [a * (1 + 1e-5)]) and not is_same([a], [a * 1.01])
    assert not is_same([a[:1]], [a])
    assert is_same([np.array(["a"])], [np.array(["a"])]) and not is_same([np.array(["b"])], [np.array(["a"])])


def test_what_is_printed_is_the_slowest_first(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Timed(f"op{r}", "shape", "peer", Ratio(r, r, r), 1e-5) for r in (0.5, 2.0, 4.0)]

    drawn_operators.print_results([*rows, dataclasses.replace(rows[0], ratio=None, problem="nothing")], above=1.5)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("op4.0") and lines[1].startswith("op2.0") and len(lines) == 3
    assert "3 models timed" in lines[2] and "2 times more" in lines[2]
