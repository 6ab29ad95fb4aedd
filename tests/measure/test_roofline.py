"""The work of whole models, and the share of the roofline that a time is."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from benchmarks import kernels
from tc.compiler import run_stages
from tc.measure.harness import Timings
from tc.measure.machine import Limit
from tc.measure.roofline import ModelWork, count_model, machine_limits, rates, roofline_fractions
from tc.schedule.work import Work
from tc.target import native_target


def _count(model: ModelProto, inputs: dict[str, np.ndarray], outputs: list[np.ndarray]) -> ModelWork:
    stages = run_stages(model, native_target())
    return count_model(stages.plan, stages.kernels, inputs, outputs)


def test_a_matmul_counts_its_products_and_what_it_reads_and_writes(rng: np.random.Generator) -> None:
    model = kernels.make_matmul(rng, 16, 32, 64, constant=False)
    inputs = {"x": np.zeros((16, 32), np.float32), "w": np.zeros((32, 64), np.float32)}

    work = _count(model, inputs, [np.zeros((16, 64), np.float32)])

    assert work.total == Work(2 * 16 * 32 * 64, 4 * (16 * 32 + 32 * 64 + 16 * 64))
    assert {launch.rule for launch in work.launches} >= {"contraction"}


def test_constants_are_read_and_symbolic_dims_take_the_sizes_of_the_inputs(rng: np.random.Generator) -> None:
    model = kernels.make_matmul(rng, 16, 32, 64)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"

    work = _count(model, {"x": np.zeros((7, 32), np.float32)}, [np.zeros((7, 64), np.float32)])

    assert work.total is not None
    assert work.total.flops == 2 * 7 * 32 * 64
    assert work.total.size_bytes >= 4 * (7 * 32 + 32 * 64 + 7 * 64)


def test_a_model_that_branches_has_kernels_but_no_total() -> None:
    value = helper.make_tensor_value_info
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [value(op, TensorProto.FLOAT, [8])])
        for op in ("Exp", "Tanh")
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    inputs = [value("c", TensorProto.BOOL, []), value("x", TensorProto.FLOAT, [8])]
    graph = helper.make_graph([node], "g", inputs, [value("y", TensorProto.FLOAT, [8])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    work = _count(model, {"c": np.array(True), "x": np.ones(8, np.float32)}, [np.ones(8, np.float32)])

    assert work.total is None
    assert [launch.work for launch in work.launches] == [Work(8, 64)] * 2


def test_the_fraction_is_the_bound_over_the_time_in_each_round() -> None:
    limits = Limit("fma", print, flops=1000), Limit("stream", print, size_bytes=500)
    timings = Timings(("tc", "fma", "stream"), np.array([[2.0, 1.0, 1.0], [4.0, 2.0, 2.0]]), np.ones(3))

    compute = roofline_fractions(Work(1000, 50), timings, limits)
    memory = roofline_fractions(Work(10, 250), timings, limits)

    assert compute["tc"].median == pytest.approx(0.5)
    assert memory["tc"].median == pytest.approx(0.25)
    assert set(compute) == {"tc"}
    assert rates(timings, limits) == (1000 / 1.5, 500 / 1.5)


def test_the_limits_use_the_cores_of_the_target() -> None:
    compute, memory = machine_limits(native_target())

    compute.step()
    memory.step()

    assert compute.flops > 0
    assert memory.size_bytes > 0
