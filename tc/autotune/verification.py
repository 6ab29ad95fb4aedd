"""What looks fast is measured again beside the best, and compared with the reference, before it counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from tc.autotune.events import Event, WinnerChecked
from tc.autotune.runner import Measurement, Runner
from tc.autotune.search.space import Candidate
from tc.autotune.state import TaskState
from tc.check.compare import sized_inputs
from tc.errors import TcError
from tc.interp.graph import run_function
from tc.records.database import Database
from tc.records.record import WRONG

CHECK_EFFORT = 6.0
"""How much longer than a trial a winner is measured again."""

LEAST_GAIN = 0.99
"""A winner must take at most this part of the time of the one before it."""

WORTH_CHECKING = 0.98
"""A trial must look better than the best verified one by this factor before it is measured again."""

MOST_REJECTED = 3
"""Candidates of one check that may fail before the search goes on."""

RUNNERS_UP = 3
"""Candidates of a task, beside the best, that are verified in the end: inside a model one of them may be better."""

NEARLY = 1.03
"""Times of the best one that they may take."""


class Verifier:
    """Decides which candidates are verified. `now`: seconds of the run; `emit` is told of every winner and of every failure."""

    def __init__(self, runner: Runner, database: Database, emit: Callable[[Event], None], now: Callable[[], float]) -> None:
        self._runner, self._database, self._emit, self._now = runner, database, emit, now

    def check(self, state: TaskState) -> None:
        """Measure the most promising candidates again beside the verified best; keep the first that is better and right."""
        state.since_check = 0
        for _ in range(MOST_REJECTED):
            key = min((k for k in state.measured if k not in state.rejected), key=state.measured.__getitem__, default=None)
            if key is None or state.measured[key] > WORTH_CHECKING * state.best_verified:
                break
            if (state.best is not None and key == state.best.key) or self._accept(state, state.candidates[key]):
                break
        state.best_ratio = min((r for k, r in state.measured.items() if k not in state.rejected), default=1.0)
        state.best_ratio = min(state.best_ratio, 1.0)

    def check_runners_up(self, states: Iterable[TaskState], latest: float) -> None:
        """Verify what is nearly as good as the best, of the tasks that take longest first, and begin no check after `latest`."""
        for state in sorted(states, key=lambda state: -state.curve.weight_ms):
            limit = min(NEARLY * state.best_verified, LEAST_GAIN)
            near = [k for k, ratio in state.measured.items() if ratio < limit and k not in state.failed | state.kept]
            for key in sorted(near, key=state.measured.__getitem__)[:RUNNERS_UP]:
                if self._now() > latest:
                    return
                self._accept(state, state.candidates[key], limit)

    def _accept(self, state: TaskState, candidate: Candidate, limit: float | None = None) -> bool:
        """Whether a candidate is right, and its ratio, measured again, at most `limit`; by default it must become the best."""
        limit = LEAST_GAIN * state.best_verified if limit is None else limit
        found = self._runner.measure([state.job(candidate, CHECK_EFFORT)])[0]
        problem = None if found.error is None else f"{found.error}: {found.detail}"
        if problem is None:
            state.measured[candidate.key] = found.ratio
            state.policy.correct(candidate, found.ratio * state.default_seconds)
            if found.ratio > limit:
                state.rejected.add(candidate.key)
                self._database.append([state.record(candidate, found, state.trials)])
                return False
            wrong = self._differs(state, candidate)
            if wrong is not None:
                problem = f"wrong: {wrong}"
                found = Measurement.failed(WRONG, wrong, found.build_seconds)
        point, now = candidate.point, self._now()
        low, high = (x / found.reference_seconds if problem is None else math.inf for x in (found.low, found.high))
        if problem is not None or found.ratio < state.best_verified:
            self._emit(WinnerChecked(state.task.name, now, found.ratio, low, high, problem, candidate.variant, point))
        if problem is None:  # records of several runs compare by seconds, and the machine may be slower today
            found = found.with_reference(state.scale.setdefault(candidate.variant, found.reference_seconds))
        self._database.append([state.record(candidate, found, state.trials, verified=problem is None)])
        if problem is not None:
            state.rejected.add(candidate.key)
            state.failed.add(candidate.key)
            state.policy.correct(candidate, math.inf)
            state.failures[found.error or WRONG] += 1
            return False
        state.kept.add(candidate.key)
        if found.ratio < state.best_verified:
            state.best, state.best_verified = candidate, found.ratio
        state.verified[candidate.variant] = min(found.ratio, state.verified.get(candidate.variant, math.inf))
        return True

    def _differs(self, state: TaskState, candidate: Candidate) -> str | None:
        """What is wrong with a candidate's results, by the reference in numpy."""
        variant = state.task.variants[candidate.variant]
        if candidate.variant not in state.reference:
            main = variant.reference.main
            rng = np.random.default_rng(0)
            try:
                drawn = sized_inputs(main, variant.sizes, rng)
                inputs = [variant.literals.get(place, value) for place, value in enumerate(drawn)]
                expected = run_function(variant.reference, main.name, inputs, dims=variant.sizes)
            except TcError as error:
                return f"its reference cannot be run: {error.text}"
            state.reference[candidate.variant] = (inputs, [np.asarray(x) for x in expected])
        inputs, expected = state.reference[candidate.variant]
        return self._runner.check(state.job(candidate), inputs, expected)
