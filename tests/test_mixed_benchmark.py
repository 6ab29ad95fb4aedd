"""What the table of mixed precision measures: a small model whose tolerance is kept, and a row that says that one is not."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import mixed
from benchmarks.mixed import MixedRow, measure
from tc.measure.harness import Ratio


def test_a_small_model_keeps_its_tolerance_on_fresh_inputs() -> None:
    row = measure("digits", 3e-3, calibrated=4, fresh=8)

    assert len(row.errors) == 8 and all(np.isfinite(row.errors)) and row.is_within
    assert row.narrowed > 0 and row.kept > 0
    assert "OVER" not in str(row)


@pytest.mark.parametrize(
    ("errors", "is_within"),
    [((0.9, 1.0, 1.5), True), ((0.9, 1.01, 1.4), False), ((0.1, 0.1, 1.51), False), ((0.1, 0.1, float("inf")), False)],
)
def test_a_median_and_a_worst_error_that_are_too_large_are_marked(
    errors: tuple[float, ...], is_within: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = MixedRow("m", 1.0, errors, 3, 4, 5, Ratio(2.0, 1.9, 2.1), 5.0, 6.0)
    monkeypatch.setattr(mixed, "run_apart", lambda *_: row)

    code = mixed.main(["digits", "--tolerance", "1"])

    assert row.is_within is is_within
    assert code == (0 if is_within else 1)
    assert ("OVER" in capsys.readouterr().out) is not is_within
