"""The one place that makes modules: what is compiled once, and where it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tc.codegen.kernels import Kernel
from tc.compiler import Stages, run_stages
from tc.demo import MODEL_PATH, as_model_input, load_heldout
from tc.runtime import builder as builder_module
from tc.runtime.builder import ENTRY, LinkUnit, ModuleBuilder
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
