"""The one place that makes modules: what is compiled once, and where it is kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tc.codegen.kernels import Kernel
from tc.compiler import Stages, run_stages
from tc.demo import MODEL_PATH, as_model_input, load_heldout
from tc.runtime import builder as builder_module
from tc.runtime.builder import ENTRY, LinkUnit, ModuleBuilder
from tc.runtime.memory import ALIGNMENT, data_address
from tc.runtime.module import CompiledModule
from tc.runtime.object_queue import ObjectQueue
from tc.target import native_target


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def stages_with(builder: ModuleBuilder) -> Stages:
    return run_stages(str(MODEL_PATH), builder.target, ready=builder.want)


def symbols(stages: Stages) -> set[str]:
    return {kernel.symbol for kernel in stages.kernels.values()}


def test_a_second_builder_finds_the_code_of_the_first_on_disk() -> None:
    first, second = ModuleBuilder(native_target()), ModuleBuilder(native_target())
    stages = stages_with(first)
    first.link([LinkUnit.of(stages.plan, stages.kernels)])

    again = stages_with(second)
    second.link([LinkUnit.of(again.plan, again.kernels)])

    assert first.made == symbols(stages) == symbols(again) != set()
    assert second.made == set()


def test_programs_of_one_builder_share_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[str] = []

    class Counting(ObjectQueue):
        def put(self, text: str, *, optimized: bool = True) -> None:
            sources.append(text)
            super().put(text, optimized=optimized)

    monkeypatch.setattr(builder_module, "ObjectQueue", Counting)
    builder = ModuleBuilder(native_target())
    stages = stages_with(builder)
    program = LinkUnit.of(stages.plan, stages.kernels)

    builder.link([program, program])
    (timed,) = builder.link([program], profile=True)

    made = [symbol for text in sources for symbol in symbols(stages) if f"define void @{symbol}(" in text]
    assert sorted(made) == sorted(symbols(stages)) and len(sources) == len(made) + 3
    assert {launch.kernel for launch in timed.entry.timed} == set(stages.kernels)


def test_a_kernel_may_be_wanted_long_before_it_is_linked_and_more_than_once() -> None:
    builder = ModuleBuilder(native_target())
    told: list[Kernel] = []
    stages = run_stages(str(MODEL_PATH), builder.target, ready=told.append)
    for kernel in (*told, *told):
        builder.want(kernel)

    (linked,) = builder.link([LinkUnit.of(stages.plan, stages.kernels)])
    module = CompiledModule(stages.plan, linked.entry, linked.library, ENTRY, builder.constants(stages.plan), 1)

    assert [kernel.name for kernel in told] == list(stages.kernels)
    assert len(linked.objects) == len(symbols(stages)) + 1
    images, labels = load_heldout()
    assert (module(as_model_input(images)).argmax(axis=1) == labels).mean() > 0.9


@pytest.fixture
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder_module, "LEAST_EXPECTED_BYTES", 0)


@pytest.mark.usefixtures("few_are_enough")
def test_constants_that_were_expected_are_those_of_the_plan_in_its_order() -> None:
    builder, usual = ModuleBuilder(native_target()), ModuleBuilder(native_target())
    stages = run_stages(str(MODEL_PATH), builder.target, expect=builder.expect)

    found, wanted = builder.constants(stages.plan), usual.constants(stages.plan)

    assert len(found) == len(stages.plan.constants) > 1
    for array, expected, constant in zip(found, wanted, stages.plan.constants, strict=True):
        np.testing.assert_array_equal(array, expected)
        np.testing.assert_array_equal(array, constant.value)
        assert array.dtype == constant.value.dtype and data_address(array) % ALIGNMENT == 0


@pytest.mark.usefixtures("few_are_enough")
def test_constants_are_not_those_that_were_expected_when_the_plan_has_others() -> None:
    builder = ModuleBuilder(native_target())
    stages = run_stages(str(MODEL_PATH), builder.target, expect=builder.expect)
    first, *rest = stages.plan.constants
    other = dataclasses.replace(first, value=first.value + 1)

    found = builder.constants(dataclasses.replace(stages.plan, constants=(*rest, other)))

    np.testing.assert_array_equal(found[-1], first.value + 1)
    np.testing.assert_array_equal(found[0], rest[0].value)


@pytest.mark.usefixtures("few_are_enough")
def test_constants_that_find_no_room_beside_are_refused_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(values: list[np.ndarray]) -> list[np.ndarray]:
        raise MemoryError(f"no memory for {len(values)} values")

    monkeypatch.setattr(builder_module, "place_constants", refuse)
    builder = ModuleBuilder(native_target())
    stages = run_stages(str(MODEL_PATH), builder.target, expect=builder.expect)

    with pytest.raises(MemoryError, match=f"no memory for {len(stages.plan.constants)} values"):
        builder.constants(stages.plan)
    with pytest.raises(MemoryError):
        builder.link([])
