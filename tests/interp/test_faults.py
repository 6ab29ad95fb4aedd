"""Every fault put into a finished program is caught, and no program without one is complained of."""

from __future__ import annotations

import numpy as np
import pytest

from tc.errors import VerifyError
from tc.interp import run_prim_func
from tc.interp.threads import Watch
from tc.ir.loop import PrimFunc
from tc.ir.verify import verify
from tests.interp.faults import KINDS, faults_of, why_harmless
from tests.interp.launch_programs import PROGRAMS, LaunchProgram

HARMLESS = {
    "row_sum": {"drop guard 2": "all threads store the same"},
    "transpose": {"shrink buffer 0": "the last column is padding"},
    "softmax_with_sink": {"drop guard 1": "all threads store the same"},
    "centred": {"drop guard 0": "all threads store the same"},
    "column_sums": {"drop guard 1": "all threads store the same"},
}
"""The faults that change nothing, and why."""

MOST_INTERVALS = 4000
"""Barriers that a program meets at most; with a fault it may never end."""


@pytest.fixture(autouse=True)
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Watch._check_met

    def check_met(watch: Watch, reached: dict[int, tuple[int, ...] | None]) -> None:
        if watch.interval > MOST_INTERVALS:
            raise VerifyError("it does not end")
        check(watch, reached)

    monkeypatch.setattr(Watch, "_check_met", check_met)


def computes_what_it_should(program: LaunchProgram, func: PrimFunc, **order: object) -> bool:
    found = run_prim_func(func, program.inputs(), program.dims, **order)  # type: ignore[arg-type]
    expected = program.expected()
    assert len(found) == len(expected)
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(found, expected, strict=True))


def outcome(program: LaunchProgram, func: PrimFunc) -> str:
    """How a program with a fault is told from the one without."""
    try:
        verify(func)
    except VerifyError:
        return "refused"
    try:
        return "missed" if computes_what_it_should(program, func) else "wrong"
    except VerifyError:
        return "reported"


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_without_faults_are_not_complained_of(name: str) -> None:
    program = PROGRAMS[name]

    for func in (program.scheduled, program.finished):
        verify(func)
        for order in ({}, {"backward": True}, {"seed": 1}, {"seed": 2}):
            assert computes_what_it_should(program, func, **order)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_fault_is_caught_or_argued_to_be_harmless(name: str) -> None:
    program = PROGRAMS[name]

    func = program.finished
    missed = {what: why_harmless(what, node, func) for what, node, changed in faults_of(func) if outcome(program, changed) == "missed"}

    assert missed == HARMLESS.get(name, {})


def test_there_are_faults_of_all_kinds_in_number() -> None:
    found = [(name, what) for name, program in PROGRAMS.items() for what, _, _ in faults_of(program.finished)]

    assert len(found) >= 500
    for kind in KINDS:
        assert sum(what.startswith(kind) for _, what in found) >= 4, kind
