"""Schedules that turn out to have no form for code generation: the next rule is taken, and the kernel says why."""

from __future__ import annotations

import numpy as np
import pytest

from tc.autotune.search.space import Space
from tc.codegen import kernels
from tc.codegen.kernels import finish_scheduled, schedule_kernel
from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_module
from tc.schedule.knobs import Value
from tc.schedule.rules import Scheduled, apply_rules
from tc.target import Target, native_target

CONVOLUTION = """
@loops
def conv(x: f16[1, 8, 9], w: f16[32, 2, 3], b: f16[32], y: f16[1, 32, 4]):
    outputs(1)
    with alloc(f32[1, 4, 8, 4], scope='global') as conv:
        for i in range(1):
            for j in range(4):
                for k in range(8):
                    for l in range(4):
                        for ri in range(2):
                            for rj in range(3):
                                with block('conv', vi=spatial(1, i), vj=spatial(4, j), vk=spatial(8, k), vl=spatial(4, l), vri=reduction(2, ri), vrj=reduction(3, rj)):
                                    annotate(monoid='sum')
                                    with init():
                                        conv[vi, vj, vk, vl] = 0.0
                                    conv[vi, vj, vk, vl] = conv[vi, vj, vk, vl] + cast(x[vi, 2 * vj + vri, vl * 2 + vrj], f32) * cast(w[vj * 8 + vk, vri, vrj], f32)
        for i_1 in range(1):
            for j_1 in range(32):
                for k_1 in range(4):
                    with block('bias', vi_1=spatial(1, i_1), vj_1=spatial(32, j_1), vk_1=spatial(4, k_1)):
                        y[vi_1, vj_1, vk_1] = narrow(conv[vi_1, vj_1 // 8, vj_1 % 8, vk_1] + cast(b[vj_1], f32), f16)
"""  # noqa: E501  as it is printed
GROUPED: PrimFunc = parse_module(CONVOLUTION).prim_funcs[0]


@pytest.mark.parametrize("device", ["cuda:sm_75", "cuda:sm_90"])
def test_a_convolution_of_small_groups_in_f16_has_a_kernel(device: str) -> None:
    """Tiles of sixteen rows hold eight channels of a group, whose place in the result no thread knew."""
    kernel = schedule_kernel(GROUPED, Target.parse(device))

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([int(n.value) for n in buffer.shape]).astype(np.float16) for buffer in GROUPED.inputs]
    (expected,) = run_prim_func(GROUPED, arrays)
    np.testing.assert_allclose(run_prim_func(kernel.final, arrays)[0], expected, rtol=2e-3, atol=2e-3)


def test_its_schedules_are_searched_by_the_rule_that_fits() -> None:
    target = Target.parse("cuda:sm_90")
    space, kernel = Space({"": GROUPED}, target), schedule_kernel(GROUPED, target)
    rng = np.random.default_rng(0)

    assert space.default().rule == kernel.rule and str(space.default().trace) == kernel.trace
    drawn = [space.sample(rng) for _ in range(4)]
    assert {candidate.rule for candidate in drawn} == {kernel.rule}
    for candidate in drawn:
        assert candidate.final.outputs


def test_the_rule_that_was_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    target = native_target()
    usual = schedule_kernel(GROUPED, target)
    assert not usual.unfit

    def finish(func: PrimFunc, *args: object) -> PrimFunc:
        if func is usual.scheduled:
            raise ScheduleError("of no such form")
        return finish_scheduled(func, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(kernels, "apply_rules", lambda *args, **options: _as_usual(usual, *args, **options))
    monkeypatch.setattr(kernels, "finish_scheduled", finish)
    kernel = schedule_kernel(GROUPED, target)

    assert kernel.rule != usual.rule
    assert any("of no such form" in text for text in kernel.unfit)


def _as_usual(usual: kernels.Kernel, func: PrimFunc, target: Target, without: dict[str, str]) -> Scheduled:
    """The rules' schedule; the first is the same object each time."""
    made = apply_rules(func, target, without=without)
    return made if without else Scheduled(usual.scheduled, made.rule, made.trace)


def test_what_no_rule_can_finish_fails_and_so_does_a_tuned_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(func: PrimFunc, *args: object) -> PrimFunc:
        raise ScheduleError("of no such form")

    class Tuned:
        def schedule(self, func: PrimFunc) -> Scheduled:
            return apply_rules(func, native_target())

        def decide(self, knob: object) -> Value:
            raise AssertionError

    monkeypatch.setattr(kernels, "finish_scheduled", finish)
    for tuned in (None, Tuned()):
        with pytest.raises(ScheduleError, match="of no such form"):
            schedule_kernel(GROUPED, native_target(), tuned)
