"""What is measured of a core, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tc.cli import doctor, main
from tc.measure.harness import Plan, Timings
from tc.measure.machine import Limit
from tc.measure.rates import CHASE_STEPS, MeasuredRates, measure_rates, rates_of
from tc.target import Target, native_target


def test_rates_follow_from_the_shortest_calls() -> None:
    target = Target.parse("x86-64-v4:cores=2")
    limits = {
        "f32 multiply-adds": Limit("", lambda: None, flops=192 * 10**9),  # 3 GHz of two multiply-adds of 16 lanes
        "u8 x i8 products": Limit("", lambda: None, flops=384 * 10**9),
        "L2 stream": Limit("", lambda: None, size_bytes=96 * 10**9),
        "L2 latency": Limit("", lambda: None, size_bytes=1),
    }
    shortest = np.array([1.0, 0.5, 1.0, 5e-9 * CHASE_STEPS])

    found = rates_of(target, limits, Timings(tuple(limits), np.stack([2 * shortest, 3 * shortest]), shortest))

    assert found.rates == {"clock_hz": 3e9, "i8_dots_per_fma": 4.0, "l2_cycles_per_line": 2.0, "l2_latency": 15.0}
    assert found.shown["L2 stream, G/s"] == 96.0 and found.shown["L2 latency, ns"] == pytest.approx(5.0)


@pytest.mark.slow
def test_everything_that_is_measured_here_is_positive() -> None:
    found = measure_rates(native_target(), Plan(0.001, 0.001, 0.0, 1, 1))

    assert {"clock_hz", "l2_cycles_per_line", "memory_cycles_per_line", "memory_latency"} <= set(found.rates)
    assert [name for name, rate in found.rates.items() if not rate > 0] == []
    assert found.rates["memory_latency"] > found.rates["l2_latency"]


def test_doctor_keeps_what_it_measures_and_forgets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "machine.json"
    monkeypatch.setenv("TC_MACHINE_FILE", str(path))
    monkeypatch.setattr(doctor, "measure_rates", lambda target: MeasuredRates({"fma_latency": 4.5}, {"L2 stream, G/s": 96.0}))

    def rates(*options: str) -> dict[str, Any]:
        assert main(["doctor", "--json", *options]) == 0
        return json.loads(capsys.readouterr().out)["rates"]

    before = rates()
    assert before["file"] is None and before["measured"] == [] and before["source"]["rates"]
    measured = rates("--measure")
    assert (measured["file"], measured["measured"], measured["values"]["fma_latency"]) == (str(path), ["fma_latency"], 4.5)
    monkeypatch.setattr("os.getloadavg", lambda: (3.0, 0.0, 0.0))
    assert main(["doctor", "--measure"]) == 0 and "measure again on an idle machine" in " ".join(capsys.readouterr().out.split())
    assert measured["measured_now"] == {"L2 stream, G/s": 96.0} and measured["fingerprint"] != before["fingerprint"]
    assert main(["doctor"]) == 0 and "fma_latency measured" in "".join(capsys.readouterr().out.split("\n"))
    assert rates("--forget") == before | {"forgotten": str(path)}
    assert rates() == before and not path.exists()


def test_doctor_tells_of_a_damaged_file_and_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "machine.json"
    path.write_text("no")
    monkeypatch.setenv("TC_MACHINE_FILE", str(path))

    assert main(["doctor"]) == 1
    assert "not a file of measured rates" in " ".join(capsys.readouterr().out.split())
    assert main(["doctor", "--forget"]) == 0


def test_doctor_measures_nothing_where_files_are_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--measure"]) == 1
    assert "TC_MACHINE_FILE switches measured rates off" in capsys.readouterr().err
