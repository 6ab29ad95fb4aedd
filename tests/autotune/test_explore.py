"""Candidates made in children are those that this process makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from tc.autotune.cost_model.models import Program
from tc.autotune.explore import ExploreRequest, explore
from tc.autotune.measure import LocalRunner
from tc.autotune.search.limits import written_out
from tc.autotune.search.space import Space
from tc.autotune.task import Task
from tc.autotune.tasks import extract_tasks
from tc.errors import ScheduleError
from tc.ir.parser import parse_module
from tc.ir.structural import structural_equal
from tc.schedule.knobs import Value
from tc.target import native_target

TARGET = dataclasses.replace(native_target(), cores=2)

MODEL = """
@graph
def main(x: f32[n, 48], w: f32[48, 40], y: f32[1, 32, 14, 14], k: f32[32, 32, 3, 3]):
    a: f32[n, 40] = matmul(x, w)
    b: f32[n, 40] = softmax(a, axis=1)
    c: f32[1, 32, 14, 14] = conv(y, k, pads=(1, 1, 1, 1))
    return b, c
"""


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    with LocalRunner(builders=2) as runner:
        yield runner


def tasks() -> tuple[Task, ...]:
    return extract_tasks(parse_module(MODEL), TARGET).tasks


def random_points(space: Space, count: int) -> list[dict[str, Value]]:
    rng = np.random.default_rng(0)
    candidate = space.default()
    points = []
    for _ in range(count):
        points.append(space.mutation(candidate, rng))
        candidate = space.legal_at(points[-1]) or candidate
    return points


@pytest.mark.parametrize("number", range(len(tasks())))
def test_children_make_the_same_candidates(runner: LocalRunner, number: int) -> None:
    task = tasks()[number]
    space = task.space()
    points = random_points(space, 9)

    found = runner.explore(space, task.dims, points)

    for point, made in zip(points, found, strict=True):
        expected = space.legal_at(point)
        if expected is None:
            assert made is None
            continue
        assert made is not None
        assert (made.key, made.variant, made.rule, made.point) == (expected.key, expected.variant, expected.rule, expected.point)
        assert made.knobs == expected.knobs
        assert made.operations == sum(written_out(expected.func))
        np.testing.assert_array_equal(made.features, Program(expected.func, TARGET, task.dims).features)
        assert structural_equal(made.func, expected.func)


def test_a_space_with_a_helper_asks_it(runner: LocalRunner) -> None:
    task = tasks()[0]
    space, alone = task.space(), task.space()
    space.helper = lambda points: runner.explore(space, task.dims, points)
    points = random_points(alone, 5)

    keys = [made and made.key for made in space.at_all(points)]

    assert keys == [made and made.key for made in alone.at_all(points)]


def test_what_children_cannot_make_is_made_here(runner: LocalRunner) -> None:
    task = tasks()[0]
    space = task.space()
    points = random_points(space, 3)
    space.texts = (("default", "no program"),)  # what children get, and cannot read

    found = runner.explore(space, task.dims, points)

    assert [made and made.key for made in found] == [made and made.key for made in space.at_all(points)]


def test_what_is_not_legal_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    task = tasks()[0]
    space = task.space()
    request = ExploreRequest(space.texts, str(TARGET), tuple(task.dims.items()), (space.default().point,))
    (made,) = explore(request)
    assert made is not None and made.candidate(space).key == space.default().key

    def refuse(self: Space, point: object) -> object:
        raise ScheduleError("no")

    monkeypatch.setattr(Space, "at", refuse)

    assert explore(request) == [None]
