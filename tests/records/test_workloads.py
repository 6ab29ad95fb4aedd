"""Programs kept beside a database are believed only when they are what their name says; candidates with far too much code are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tc.autotune.search.limits import MOST_OPERATIONS, refuse_large, written_out
from tc.autotune.search.space import Candidate, Space
from tc.ir.structural import structural_equal
from tc.records.workloads import WorkloadStore
from tc.schedule.canonical import canonical_names, workload_key
from tc.schedule.step import Schedule
from tests.autotune.test_space import KERNELS, TARGET, kernel


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_put_is_got(name: str, tmp_path: Path) -> None:
    func = canonical_names(kernel(name)[0])
    store = WorkloadStore(tmp_path / "t.db")
    key = workload_key(func)

    store.put(key, func)
    found = WorkloadStore(tmp_path / "t.db").get(key)

    assert found is not None and structural_equal(found, func)


def test_a_program_under_another_name_is_not_believed(tmp_path: Path) -> None:
    store = WorkloadStore(tmp_path / "t.db")
    store.put("0" * 20, canonical_names(kernel("matmul")[0]))

    assert store.get("0" * 20) is None
    assert store.get("1" * 20) is None


@pytest.mark.parametrize("text", ["", "@loops\ndef f(", "\x00\xff", "import os\n"])
def test_damaged_programs_are_not_there(text: str, tmp_path: Path) -> None:
    func = canonical_names(kernel("gelu")[0])
    key = workload_key(func)
    store = WorkloadStore(tmp_path / "t.db")
    store.put(key, func)
    (store.folder / f"{key}.tc").write_text(text)

    assert store.get(key) is None


def test_candidates_with_far_too_much_code_are_refused() -> None:
    func, _ = kernel("matmul")
    schedule = Schedule(func)
    name = schedule.func.body.var.name  # type: ignore[attr-defined]
    schedule.unroll(name)
    for loop in schedule.loops_of("matmul")[1:]:
        schedule.unroll(loop)

    assert max(written_out(schedule.func)) == 37 * 65 * 48 > MOST_OPERATIONS
    refused = refuse_large(_candidate(schedule))
    assert refused is not None and "are written out" in refused


def _candidate(schedule: Schedule) -> Candidate:
    return Candidate("", (), (), "by hand", schedule.trace, schedule.func)


@pytest.mark.parametrize("name", KERNELS)
def test_no_default_is_refused(name: str) -> None:
    assert refuse_large(Space({"": kernel(name)[0]}, TARGET).default()) is None


def test_most_samples_are_not_refused() -> None:
    points = Space({"": kernel("conv3x3")[0]}, TARGET)
    rng = np.random.default_rng(0)

    assert sum(refuse_large(points.sample(rng)) is None for _ in range(20)) >= 10
