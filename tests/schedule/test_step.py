"""Schedules as data: text and back, replay, versions, and the time that scheduling takes."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.dtype import f32
from tc.ir.expr import const, logical_and, maximum, select
from tc.ir.loop import For, PrimFunc
from tc.ir.node import walk
from tc.ir.structural import fresh_binders, structural_equal
from tc.schedule.step import LANGUAGE_VERSION, PRIMITIVES, Schedule, Step, Trace
from tc.schedule.tree import normalize_names
from tc.te import compute, create_prim_func, placeholder, reduce
from tests.schedule.programs import biased, chain, softmax


def scheduled() -> Schedule:
    s = Schedule(biased())
    outer, inner = s.split("i_1", 4)
    s.compute_at("mm", outer)
    s.vectorize("j_1")
    s.parallel(outer)
    s.annotate_loop(inner, "grain", 2)
    return s


def test_a_trace_survives_json() -> None:
    trace = scheduled().trace

    assert Trace.from_json(trace.to_json()) == trace
    assert json.loads(trace.to_json())["version"] == LANGUAGE_VERSION


def test_a_trace_replays_on_an_equal_function() -> None:
    s = scheduled()

    replayed = s.trace.apply(fresh_binders(biased()))

    assert structural_equal(replayed, s.func)


def test_every_loop_gets_a_name_of_its_own() -> None:
    named = normalize_names(softmax())

    loops = [node.var.name for node in walk(named) if isinstance(node, For)]
    assert loops == ["i", "ri", "i_1", "j", "i_2", "ri_1", "i_3", "j_1"]
    assert normalize_names(named) is named


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a schedule trace"),
        ("[]", "not a schedule trace"),
        ('{"version":1}', "not a schedule trace: 'steps'"),
        ('{"version":1,"steps":[["split",{"loop":"i"}]]}', "is not an argument of a step"),
        ('{"version":1,"steps":["split"]}', "'split' is not a step"),
        ('{"version":99,"steps":[]}', "schedule trace of version 99; this is version 1"),
    ],
)
def test_damaged_traces_are_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Trace.from_json(text)


def test_unknown_primitives_and_wrong_arguments_are_refused() -> None:
    with pytest.raises(ScheduleError, match="there is no primitive 'spllit'; known: add_unit_loop, annotate_loop, bind"):
        Step("spllit", ("i", 4)).apply(chain())
    with pytest.raises(ScheduleError, match="parallel: too many positional arguments"):
        Step("parallel", ("i", 4)).apply(chain())
    with pytest.raises(ScheduleError, match="split: missing a required argument: 'names'"):
        Step("split", ("i", (None, 4))).apply(chain())


def test_a_schedule_has_a_method_for_every_primitive() -> None:
    assert all(callable(getattr(Schedule, name, None)) for name in PRIMITIVES)


def convolution() -> PrimFunc:
    """Padding, convolution, bias and activation."""
    x, w = placeholder((8, 14, 14), f32, "X"), placeholder((16, 8, 3, 3), f32, "W")
    pad = compute(
        (8, 16, 16),
        lambda c, i, j: select(logical_and(i >= 1, i < 15, j >= 1, j < 15), x[c, i - 1, j - 1], const(0.0, f32)),
        "pad",
    )
    y = reduce("sum", (16, 14, 14), (8, 3, 3), lambda o, i, j, c, p, q: pad[c, i + p, j + q] * w[o, c, p, q], "conv")
    z = compute((16, 14, 14), lambda o, i, j: maximum(y[o, i, j], 0.0), "relu")
    return create_prim_func("convolution", [x, w], [z])


def schedule_convolution(func: PrimFunc) -> Schedule:
    """About 20 steps: blocked channels, a tile of rows, packed weights, the padding computed by rows."""
    s = Schedule(func)
    pack = s.cache_read("conv", "W", "global", "o, c, p, q -> o // 8, c, p, q, o % 8")
    o, i, j = s.loops_of("relu")
    oo, oi = s.split(o, 8)
    jo, ji = s.split(j, 7)
    s.reorder(oo, i, jo, ji, oi)
    s.parallel(oo)
    s.vectorize(oi)
    s.unroll(ji)
    s.compute_at("conv", jo)
    co, ci, cj, c, p, q = s.loops_of("conv")[3:]
    s.reorder(c, p, q, ci, cj, co)
    s.vectorize(co)
    s.unroll(cj)
    s.decompose_reduction("conv", c)
    s.compute_at("pad", i)
    s.set_scope("conv", "register")
    s.set_scope("pad", "local")
    s.annotate_loop(oo, "grain", 1)
    loops = s.loops_of(pack)
    s.fuse(*loops[:2])
    s.vectorize(loops[-1])
    s.unroll(q)
    return s


def test_scheduling_a_convolution_keeps_its_meaning() -> None:
    func = convolution()
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-2, 3, shape).astype(np.float32) for shape in ((8, 14, 14), (16, 8, 3, 3))]

    s = schedule_convolution(func)

    (want,), (got,) = run_prim_func(func, arrays), run_prim_func(s.func, arrays)
    np.testing.assert_array_equal(got, want)
    assert 18 <= len(s.trace.steps) <= 24


HAMMER = """
import inspect, random, sys, threading
from tc.schedule import step

sys.setswitchinterval(1e-6)
step.PRIMITIVES["nothing"] = lambda func, factor: (func, factor)
step.Step._check_result = lambda self, result: None
step._SIGNATURES["nothing"] = inspect.signature(step.PRIMITIVES["nothing"])
funcs, wrong = [object() for _ in range(50)], []

def apply(seed):
    draw = random.Random(seed)
    for _ in range(50_000):
        k, func = draw.randrange(100), draw.choice(funcs)
        if step.Step("nothing", (k,)).apply(func) != (func, k):
            wrong.append(k)
    finished.append(seed)

finished = []
threads = [threading.Thread(target=apply, args=(seed,)) for seed in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(int(bool(wrong) or len(finished) != 2 or len(step._APPLIED) > step.APPLIED_STEPS))
"""


def test_threads_that_schedule_at_once_share_what_is_remembered() -> None:
    """An OrderedDict of keys that compare in Python is none for two threads: the process ended with a segmentation fault."""
    assert subprocess.run([sys.executable, "-c", HAMMER], timeout=120, check=False).returncode == 0


@pytest.mark.parametrize("loop", ["i_1", "nothing"])
def test_an_answer_is_wrong_only_where_another_would_have_been_right(loop: str) -> None:
    """A rule asked, and could not be: whoever answered was told that the answer was wrong, and the next rule was not tried."""
    schedule = Schedule(biased(), lambda knob: max(knob.options))

    def rule() -> str:
        factor = schedule.choose("mm", "factor", (2, 4), 2)
        schedule.split(loop, factor)
        if factor > 2:
            raise ScheduleError("too large")
        return "done"

    if loop == "nothing":
        assert schedule.attempt(rule) is None
        assert structural_equal(schedule.func, biased()) and not schedule.choices and not schedule.trace.steps
    else:
        with pytest.raises(ScheduleError, match="too large"):
            schedule.attempt(rule)
