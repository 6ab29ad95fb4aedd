"""Traces come from files: whatever stands in one, replaying it gives a well-formed program or a ScheduleError."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.ir.loop import For, PrimFunc
from tc.ir.node import walk
from tc.ir.verify import verify
from tc.schedule.rules import apply_rules
from tc.schedule.step import DEEPEST_NEST, PRIMITIVES, Step, Trace
from tc.schedule.tree import normalize_names
from tc.target import Target
from tests.draws import some_of
from tests.schedule.programs import biased, chain, matmul, row_sum, softmax
from tests.schedule.random_problems import CLASSES
from tests.schedule.random_traces import random_schedule

VALUES: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 16, 10**6, 2**31, 2**63, 10**40, True, False, None, 1.0, 0.5, float("nan"), float("inf"), -1e308,
    "", "i", "j", "ri", "a", "99:64", "0:64", "1:2:3", "::", "abc", "\ud800", "\x00", "x" * 5000, "n -> n", "n, k -> k, n",
    "n -> n // 0, n % 0", "(" * 500, "n -> " + "(" * 300, "n -> n // 99999999999999999999, n % 3", "a -> a.b", "->", "grain", "partition",
    "prefetch", "tree", "transpose", "unroll_factor", "register", "shared", "local", "global", "thread.x", "monoid",
    [], [1], [1, 2, 3], [0, 64], [[1]], [None], [None, 4], [True, 4], ["i"], ["i", "i"], [None] * 200, {}, {"i": 1},
)  # fmt: skip


def corrupted(text: str, rng: np.random.Generator) -> str:
    """A trace with some arguments, names or steps exchanged for others, or characters of its text."""
    if rng.random() < 0.15:
        data = list(text)
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(len(data)))
            data[at] = chr(int(rng.integers(32, 127))) if rng.random() < 0.5 else ""
        return "".join(data)
    trace = json.loads(text)
    steps = trace["steps"]
    names = [argument for step in steps for argument in step[1:] if isinstance(argument, str)]
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(steps) + 1))
        draw = rng.random()
        step = steps[at] if at < len(steps) else None
        if step is None or draw < 0.2:
            primitive = sorted(PRIMITIVES)[int(rng.integers(len(PRIMITIVES)))]
            arguments = [pick(names, rng) for _ in range(int(rng.integers(0, 5)))]
            steps.insert(at, [primitive, *arguments])
        elif draw < 0.3:
            steps.pop(at)
        elif draw < 0.4:
            other = int(rng.integers(len(steps)))
            steps[at], steps[other] = steps[other], steps[at]
        else:
            place = int(rng.integers(1, len(step) + 1))
            step[place : place + 1] = [pick(names, rng)]
    return json.dumps(trace)


def pick(names: list[str], rng: np.random.Generator) -> Any:
    if names and rng.random() < 0.4:
        return names[int(rng.integers(len(names)))]
    return VALUES[int(rng.integers(len(VALUES)))]


def replay(text: str, func: PrimFunc) -> bool:
    """Whether a trace is one that `func` allows; a program that comes of it is well formed, and its trace survives its text."""
    try:
        trace = Trace.from_json(text)
        result = trace.apply(func)
    except ScheduleError:
        return False
    verify(result)
    assert Trace.from_json(trace.to_json()).steps == trace.steps
    return True


def programs(rng: np.random.Generator) -> tuple[PrimFunc, str]:
    """A program, and the trace of a schedule of it: one at random, or that of the rules."""
    if rng.random() < 0.3:
        func = (biased, chain, matmul, row_sum, softmax)[int(rng.integers(5))]()
        return func, apply_rules(func, Target.parse("x86-64-v4")).trace.to_json()
    func = CLASSES[sorted(CLASSES)[int(rng.integers(len(CLASSES)))]](rng)[0]
    return func, random_schedule(func, rng).trace.to_json()


def fuzz(seed: int, count: int) -> int:
    rng = np.random.default_rng([zlib.crc32(b"traces"), seed])
    accepted = 0
    for _ in range(count):
        func, text = programs(rng)
        accepted += sum(replay(corrupted(text, rng), func) for _ in range(10))
    return accepted


@pytest.mark.parametrize("seed", some_of(range(4), quick=range(2)))
def test_no_text_of_a_trace_raises_anything_else(seed: int) -> None:
    assert fuzz(seed, 30) > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_no_text_of_many_traces_raises_anything_else(seed: int) -> None:
    assert fuzz(seed, 200) > 100


@pytest.mark.parametrize("primitive", sorted(PRIMITIVES))
def test_every_primitive_refuses_arguments_of_every_other_type(primitive: str) -> None:
    func = softmax()
    for count in range(5):
        for value in VALUES:
            frozen = tuple(map(tuple_of, [value] * count))
            text = json.dumps({"version": 1, "steps": [[primitive, *([value] * count)]]})
            assert replay(text, func) in (True, False)
            if not any(isinstance(part, dict) for part in frozen):
                try:
                    verify(Step(primitive, frozen).apply(func))
                except ScheduleError:
                    continue


def tuple_of(value: Any) -> Any:
    return tuple(map(tuple_of, value)) if isinstance(value, list) else value


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"version":1,"steps":' + "[" * 5000 + "]" * 5000 + "}", '{"version":1,"steps":"split"}', "NaN", '"a"', "1" * 10_000,
     '{"version":true,"steps":[]}', '{"version":1.0,"steps":[]}', '{"version":1,"steps":[[]]}', '{"version":1,"steps":{"a":1}}'],
)  # fmt: skip
def test_texts_that_are_no_traces_are_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="schedule trace"):
        Trace.from_json(text)


def test_what_is_remembered_of_one_step_says_nothing_of_another() -> None:
    """4 == 4.0 and 1 == True: a step of the wrong type was legal if one of the right type had been applied before."""
    func = normalize_names(chain())
    Step("split", ("i", (None, 4), ("io", "ii"))).apply(func)
    Step("annotate_loop", ("i", "grain", 1)).apply(func)

    for step in (Step("split", ("i", (None, 4.0), ("io", "ii"))), Step("annotate_loop", ("i", "grain", True))):
        with pytest.raises(ScheduleError, match=r"is no (factors|value)"):
            step.apply(func)


def test_a_nest_may_be_only_so_deep() -> None:
    """Deeper ones ended in a RecursionError."""
    func = normalize_names(chain(1 << 20))
    with pytest.raises(ScheduleError, match=f"more than {DEEPEST_NEST} loops around each other"):
        for k in range(1000):
            func = Step("split", (f"l{k}" if k else "i", (1, None), (f"m{k + 1}", f"l{k + 1}"))).apply(func)
    verify(func)


def test_the_hints_of_old_traces_are_replayed() -> None:
    """They said prefetch="number:bytes" and any other key; the known ones mean what they meant."""
    steps = [["annotate_loop", "ri", "prefetch", "1:512"], ["annotate_loop", "i", "partition", 1], ["annotate_loop", "i", "grain", 8]]
    trace = Trace.from_json(json.dumps({"version": 1, "steps": steps}))

    loops = {str(loop.var.name): loop.hints for loop in _loops(trace.apply(matmul()))}

    assert loops["ri"].items() == (("prefetch", (1, 512)),)
    assert loops["i"].items() == (("grain", 8), ("partition", 1))
    with pytest.raises(ScheduleError, match="there is no hint 'no such key'"):
        Step("annotate_loop", ("i", "no such key", 1)).apply(matmul())
    with pytest.raises(ScheduleError, match="has 3 buffers, none of the number 99"):
        Step("annotate_loop", ("i", "prefetch", "99:64")).apply(matmul())


def _loops(func: PrimFunc) -> list[For]:
    return [node for node in walk(func) if isinstance(node, For)]
