"""Rare collections: what was set before comes back, whatever happens in between."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

import tc
from tc.codegen.llvm.backend import emit_kernel
from tc.compiler import run_stages
from tc.runtime.collector import YOUNG, rare_collections
from tc.target import native_target
from tests.runtime.test_module_cache import model
from tests.test_compiler import affine


@pytest.fixture(autouse=True)
def usual_thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_inside_the_collector_looks_rarely() -> None:
    with rare_collections():
        assert gc.get_threshold() == (YOUNG, 10, 10) and gc.isenabled()
    assert gc.get_threshold() == (700, 10, 10)


def test_an_error_does_not_keep_it_rare() -> None:
    with pytest.raises(ValueError, match="inside"), rare_collections():
        raise ValueError("inside")

    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [(0, 10, 10), (YOUNG * 2, 5, 5)])
def test_who_has_it_off_or_rarer_keeps_that(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)

    with rare_collections():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_the_last_of_several_threads_sets_it_back() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with rare_collections():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with rare_collections():
        thread.start()
        assert entered.wait(10)
    assert gc.get_threshold()[0] == YOUNG
    leave.set()
    thread.join(10)

    assert gc.get_threshold() == (700, 10, 10)


def test_cycles_are_found_nevertheless() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    def collections() -> int:  # an older generation whose turn it is takes the young one with it
        return sum(generation["collections"] for generation in gc.get_stats())

    before = collections()
    with rare_collections():
        for _ in range(2 * YOUNG):  # what other threads free meanwhile counts against them
            Cycle()

    assert collections() > before


def test_compiling_leaves_the_thresholds_alone() -> None:
    tc.compile(model())

    assert gc.get_threshold() == (700, 10, 10)


def test_emitting_products_leaves_nothing_in_cycles() -> None:
    """Which keeps every loop until Python looks for cycles; a fifth of all objects of a compilation were such."""
    stages = run_stages(affine(), native_target())
    (kernel,) = stages.kernels.values()
    gc.collect()
    gc.disable()
    try:
        emit_kernel(kernel.final, kernel.symbol, native_target())

        assert gc.collect() == 0
    finally:
        gc.enable()
