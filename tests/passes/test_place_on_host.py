"""What only decides sizes and branches is computed on the host of a device, and read there."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tc
from tc.compiler import run_stages
from tc.ir.module import IRModule
from tc.ir.plan import ON_HOST, BindDims, Branch, Launch, SlotPlace, all_steps
from tc.ir.verify import verify
from tc.passes.graph.place_on_host import SMALL_BYTES, is_on_host, place_on_host
from tc.runtime.host_work import host_work
from tc.target import Target
from tests.opencl_driver import need_opencl

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
DEVICE = Target.parse("opencl:generic@x86-64-v3")


def model(nodes: list, inputs: list, outputs: list, **literals: object) -> ModelProto:
    values = [[helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in some] for some in (inputs, outputs)]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in literals.items()]
    graph = helper.make_graph(nodes, "g", *values, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def branch(kind: str, name: str) -> object:
    return helper.make_graph([helper.make_node(kind, ["x"], [name])], name, [], [helper.make_tensor_value_info(name, F32, ["n"])])


SLICE = model(
    [helper.make_node("Slice", ["x", "a", "b"], ["y"])], [("x", F32, ["n", 4]), ("a", I64, [1]), ("b", I64, [1])], [("y", F32, [None, 4])]
)
RANGE = model(
    [helper.make_node("Mul", ["k", "two"], ["m"]), helper.make_node("Range", ["zero", "m", "one"], ["y"])],
    [("k", I64, [])], [("y", I64, [None])], zero=0, two=2, one=1,
)  # fmt: skip
RESHAPE = model(
    [helper.make_node("Reshape", ["x", "s"], ["y"])], [("x", F32, ["n", 4]), ("s", I64, [2])], [("y", F32, [None, None])]
)
IF_SIZE = model(
    [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "zero"], ["n"]),
     helper.make_node("Greater", ["n", "two"], ["c"]),
     helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu", "p"), else_branch=branch("Neg", "q"))],
    [("x", F32, ["n"])], [("y", F32, ["n"])], zero=0, two=2,
)  # fmt: skip
MODELS = {"slice": SLICE, "range": RANGE, "reshape": RESHAPE, "if": IF_SIZE}


@pytest.mark.parametrize("name", MODELS)
def test_the_program_waits_for_no_size_or_condition(name: str) -> None:
    stages = run_stages(MODELS[name], DEVICE)
    steps = list(all_steps(stages.plan.steps))

    read = [step.slot if isinstance(step, BindDims) else step.condition for step in steps if isinstance(step, (BindDims, Branch))]
    launches = [step for step in steps if isinstance(step, Launch)]

    verify(stages.lowered)
    assert read and all(slot.place in ON_HOST for slot in read)
    assert any(step.on_host for step in launches)
    assert all(is_on_host(stages.module[step.kernel]) == step.on_host for step in launches)
    assert all((slot.place in ON_HOST) == step.on_host for step in launches for slot in step.slots)
    assert not any("wait" in each.why for each in host_work(stages.plan, {n: k.scheduled for n, k in stages.kernels.items()}))


def test_on_a_cpu_nothing_changes() -> None:
    stages = run_stages(SLICE, Target.parse("x86-64-v3"))

    assert not any(slot.place in ON_HOST for s in all_steps(stages.plan.steps) if isinstance(s, Launch) for slot in s.slots)
    assert place_on_host(parsed := IRModule((stages.graph.main,))) is parsed


def test_what_the_device_needs_too_is_computed_by_both() -> None:
    both = model(
        [helper.make_node("Mul", ["k", "two"], ["m"]), helper.make_node("Range", ["zero", "m", "one"], ["r"]),
         helper.make_node("Add", ["r", "m"], ["y"])],
        [("k", I64, [])], [("y", I64, [None]), ("m", I64, [])], zero=0, two=2, one=1,
    )  # fmt: skip
    stages = run_stages(both, DEVICE)

    kinds = {step.on_host for step in all_steps(stages.plan.steps) if isinstance(step, Launch)}
    (slot,) = [step.slot for step in all_steps(stages.plan.steps) if isinstance(step, BindDims)]

    assert kinds == {True, False} and slot.place is SlotPlace.HOST and stages.plan.host_inputs == (0,)


def test_what_is_large_stays_on_the_device() -> None:
    count = SMALL_BYTES // 8 + 1
    large = model(
        [helper.make_node("ReduceMax", ["k"], ["m"], keepdims=0), helper.make_node("Range", ["zero", "m", "one"], ["y"])],
        [("k", I64, [count])], [("y", I64, [None])], zero=0, one=1,
    )  # fmt: skip
    stages = run_stages(large, DEVICE)

    assert not any(step.on_host for step in all_steps(stages.plan.steps) if isinstance(step, Launch))
    assert not stages.plan.host_inputs and not stages.plan.host_bytes


CALLS = {
    "slice": [(6, 1, 4), (6, -2, 100), (6, 5, 2), (0, 1, 4), (6, -(2**63), 2**63 - 1)],
    "range": [(4,), (0,), (-3,)],
    "reshape": [(6, (3, 8)), (6, (-1, 2)), (6, (5, 5)), (0, (0, 4)), (6, (-5, 2))],
    "if": [(4,), (2,), (0,)],
}


def arrays_of(name: str, values: tuple) -> list[np.ndarray]:
    first, *others = values
    if name == "range":
        return [np.int64(first)]
    x = np.random.default_rng(0).standard_normal((first, 4) if name != "if" else first).astype(np.float32)
    return [x, *(np.atleast_1d(np.array(value, np.int64)) for value in others)]


@pytest.mark.parametrize("name", MODELS)
def test_results_and_errors_are_those_of_a_cpu(name: str) -> None:
    need_opencl()
    module, host = tc.compile(MODELS[name], target="opencl"), tc.compile(MODELS[name])

    for values in CALLS[name] * 2:
        arrays = arrays_of(name, values)
        found, expected = (_outcome(each, arrays) for each in (module, host))
        assert found == expected, (values, found, expected)


def _outcome(module: tc.CompiledModule, arrays: list[np.ndarray]) -> object:
    try:
        found = module(*arrays)
    except tc.TcError as error:
        return str(error)
    return found.shape, found.tolist()
