"""Every point of a space is a program that computes the same; the default is what compiles untuned."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from tc.autotune.search.space import Space
from tc.ir.loop import PrimFunc
from tc.ir.structural import structural_equal
from tc.ops.registry import OPS
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import finish_loops
from tc.schedule.rules import apply_rules
from tc.schedule.step import Trace
from tc.target import Target, native_target
from tests.ops.kernels import make_prim_func, run

TARGET = dataclasses.replace(native_target(), cores=2)

CONV: dict[str, Any] = {
    "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1, "depthwise": False, "in_channels": 32, "in_block": 16,
}  # fmt: skip

KERNELS: dict[str, tuple[str, list[tuple[int, ...]], dict[str, Any]]] = {
    "matmul": ("matmul", [(37, 48), (48, 65)], {}),
    "packed": ("matmul_packed", [(28, 1024), (3, 1024, 32)], {"columns": 90}),
    "batched": ("matmul", [(3, 20, 16), (3, 16, 32)], {}),
    "conv3x3": ("conv_blocked", [(1, 2, 9, 14, 16), (4, 2, 3, 3, 16, 16)], CONV),
    "conv1x1": ("conv_blocked", [(1, 4, 8, 14, 16), (4, 4, 1, 1, 16, 16)], {**CONV, "pads": (0,) * 4, "in_channels": 64}),
    "strided": ("conv_blocked", [(1, 2, 14, 14, 16), (2, 2, 3, 3, 16, 16)], {**CONV, "strides": (2, 2)}),
    "biased": ("conv_blocked", [(1, 2, 9, 14, 16), (4, 2, 3, 3, 16, 16), (4, 16)], CONV),
    "first layer": ("conv_blocked", [(1, 3, 18, 18), (2, 3, 3, 3, 16)], {**CONV, "in_channels": 3, "in_block": 0}),
    "depthwise": ("conv_blocked", [(1, 2, 15, 15, 16), (2, 1, 3, 3, 16)], {**CONV, "depthwise": True, "groups": 32}),
    "winograd": ("conv_winograd", [(1, 2, 10, 11, 16), (4, 4, 2, 2, 16, 16)], {"tile": 2, "pads": (1,) * 4, "in_channels": 32}),
    "max_pool": ("max_pool", [(1, 4, 12, 16)], {"kernel": (3, 3), "strides": (2, 2)}),
    "softmax": ("softmax", [(6, 77)], {}),
    "layer_norm": ("layer_norm", [(9, 80), (80,), (80,)], {}),
    "sum": ("sum", [(5, 24, 40)], {"axes": (1,)}),
    "gelu": ("gelu", [(3, 700)], {}),
    "block": ("block", [(1, 40, 9, 14)], {"axis": 1, "block": 16}),
    "unblock": ("unblock", [(1, 3, 9, 14, 16)], {"axis": 1, "size": 40}),
    "transpose": ("transpose", [(20, 36)], {"perm": (1, 0)}),
}


def kernel(name: str) -> tuple[PrimFunc, list[np.ndarray]]:
    op, shapes, attrs = KERNELS[name]
    rng = np.random.default_rng(3)
    arrays: list[np.ndarray | None] = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    return simplify_loops(make_prim_func(OPS[op], arrays, attrs)), [array for array in arrays if array is not None]


def space(name: str, target: Target = TARGET) -> Space:
    return Space({"": kernel(name)[0]}, target)


@pytest.mark.parametrize("name", KERNELS)
def test_the_default_candidate_is_the_untuned_schedule(name: str) -> None:
    func, _ = kernel(name)

    candidate = Space({"": func}, TARGET).default()

    assert str(candidate.trace) == str(apply_rules(func, TARGET).trace)
    assert all(value == knob.default for knob, (_, value) in zip(candidate.knobs, candidate.point, strict=True))


@pytest.mark.parametrize("name", KERNELS)
def test_sampled_candidates_compute_what_the_default_computes(name: str, samples: int = 4) -> None:
    check_samples(name, samples)


@pytest.mark.parametrize("name", ["packed", "biased"])
def test_what_follows_a_sum_may_be_done_afterwards(name: str) -> None:
    func, arrays = kernel(name)
    block = {"packed": "matmul", "biased": "conv"}[name]
    candidate = Space({"": func}, TARGET).at({f"{block}/epilogue": "alone"})
    default = Space({"": func}, TARGET).default()

    assert candidate.key != default.key
    ours, expected = (run(finish_loops(each.func), arrays)[0] for each in (candidate, default))
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_many_sampled_candidates_compute_what_the_default_computes(name: str) -> None:
    check_samples(name, 60)


def check_samples(name: str, count: int) -> None:
    func, arrays = kernel(name)
    points = Space({"": func}, TARGET)
    rng = np.random.default_rng(len(name))
    (expected, *_) = run(finish_loops(points.default().func, threads=2), arrays)
    scale = np.abs(expected).max()
    candidate = points.default()
    for trial in range(count):
        candidate = points.sample(rng) if trial % 2 == 0 else points.mutate(candidate, rng)

        (found, *_) = run(finish_loops(candidate.func, threads=2), arrays)

        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * scale, err_msg=f"{candidate.point}")


@pytest.mark.parametrize("name", KERNELS)
def test_a_point_and_a_trace_lead_to_the_same_program_again(name: str) -> None:
    points = space(name)
    candidate = points.sample(np.random.default_rng(1))

    again = points.at(dict(candidate.point))
    replayed = Trace.from_json(candidate.trace.to_json()).apply(kernel(name)[0])

    assert again.key == candidate.key
    assert structural_equal(replayed, candidate.func)


def test_unknown_and_illegal_answers_fall_back_to_the_rules_own() -> None:
    points = space("matmul")

    candidate = points.at({"matmul/rows": 1000, "no such knob": 3})

    assert candidate.key == points.default().key


@pytest.mark.parametrize("name", KERNELS)
def test_every_knob_is_named_after_a_block_of_the_schedule_and_asked_once(name: str) -> None:
    points = space(name)
    rng = np.random.default_rng(3)

    for candidate in (points.default(), *(points.sample(rng) for _ in range(4))):
        names = [knob.name for knob in candidate.knobs]
        assert len(set(names)) == len(names) > 0
        assert all(re.fullmatch(r"\w+/[a-z_]+", name) for name in names), names


def test_mutation_and_crossover_stay_among_the_options() -> None:
    points = space("conv3x3")
    rng = np.random.default_rng(0)
    first, second = points.sample(rng), points.sample(rng)

    child = points.at(points.crossing(first, second, rng))
    changed = points.mutate(first, rng)

    for candidate in (child, changed):
        assert all(value in knob.options for knob, (_, value) in zip(candidate.knobs, candidate.point, strict=True))
    assert changed.point != first.point


def test_neighbours_differ_in_one_answer() -> None:
    points = space("conv1x1")
    default = dict(points.default().point)

    near = points.neighbours(points.default())

    assert near
    for point in near:
        assert sum(point[name] != value for name, value in default.items()) == 1


def test_products_and_convolutions_have_a_million_points() -> None:
    big = make_prim_func(OPS["matmul"], [np.ones((128, 384), np.float32), np.ones((384, 1536), np.float32)], {})
    x, w = np.ones((1, 16, 14, 14, 16), np.float32), np.ones((64, 16, 1, 1, 16, 16), np.float32)
    pointwise = make_prim_func(OPS["conv_blocked"], [x, w], {**CONV, "pads": (0,) * 4, "in_channels": 256})
    x, w = np.ones((1, 8, 28, 28, 16), np.float32), np.ones((8, 8, 3, 3, 16, 16), np.float32)
    window = make_prim_func(OPS["conv_blocked"], [x, w], {**CONV, "in_channels": 128})

    for func in (big, pointwise, window):
        assert Space({"": simplify_loops(func)}, TARGET).size() >= 1e6
