"""If, Loop, Scan and the recurrent operators against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tc
from tc.errors import InputError, ModelError, UnsupportedError
from tc.frontend.onnx import load_model
from tests.frontend.models import (
    check_against_onnxruntime,
    graph,
    make_model,
    node,
    operators,
    run,
    value,
)

F32 = np.float32
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def branches(then_nodes: list[Any], else_nodes: list[Any]) -> dict[str, onnx.GraphProto]:
    return {"then_branch": graph(then_nodes, [], "t"), "else_branch": graph(else_nodes, [], "e")}


# -- If


def test_a_constant_condition_takes_its_branch_at_import() -> None:
    nodes = [node("If", "c", "y", **branches([node("Relu", "x", "t")], [node("Neg", "x", "e")]))]
    model = make_model(nodes, {"x": (F32, ["n"])}, ["y"], {"c": np.array(False)})

    assert operators(load_model(model)) == ["neg"]


def test_a_condition_on_data_is_a_branch_of_the_graph(rng: np.random.Generator) -> None:
    nodes = [node("If", "c", "y", **branches([node("Mul", "x w", "t")], [node("Neg", "x", "e")]))]
    inputs = {"x": (F32, ["n"]), "c": (np.bool_, [])}
    model = make_model(nodes, inputs, ["y"], {"w": np.array(3, F32)})

    for choice in (True, False):
        imported = check_against_onnxruntime(model, {"x": rng.standard_normal(4).astype(F32), "c": np.array(choice)})
    assert operators(imported) == ["if", "mul", "neg"]


def test_branches_of_different_sizes_give_a_dim_that_is_read() -> None:
    nodes = [
        node("If", "c", "y0", **branches([node("Concat", "x x", "t", axis=0)], [node("Neg", "x", "e")])),
        node("Relu", "y0", "y"),
    ]
    model = make_model(nodes, {"x": (F32, ["n"]), "c": (np.bool_, [])}, ["y"])

    for choice in (True, False):
        check_against_onnxruntime(model, {"x": np.arange(3, dtype=F32), "c": np.array(choice)})


SQUEEZE_IF_ONE = [
    node("Shape", "x", "s"),
    node("Gather", "s k", "last"),
    node("Equal", "last one", "c"),
    node("If", "c", "z", **branches([node("Squeeze", "x k_", "t")], [node("Identity", "x", "e")])),
]
SQUEEZE_CONSTANTS = {"k": np.array(-1), "one": np.array(1), "k_": i64(-1), "row": i64(0, -1), "two": np.array(2)}


def test_branches_of_different_rank_take_the_rest_of_the_graph_along() -> None:
    nodes = [*SQUEEZE_IF_ONE, node("ReduceSum", "z", "y", keepdims=0)]
    model = make_model(nodes, {"x": (F32, ["n", "m", "k"])}, ["y"], SQUEEZE_CONSTANTS)

    for last in (1, 4):
        imported = check_against_onnxruntime(model, {"x": np.arange(6 * last, dtype=F32).reshape(2, 3, last)})
    assert operators(imported) == ["shape_tensor", "cast", "reshape", "if", "squeeze", "sum", "sum"]


def test_what_decides_by_rank_afterwards_is_decided_in_each_path() -> None:
    by_rank = branches([node("Transpose", "z", "t", perm=[1, 0])], [node("Transpose", "z", "e", perm=[2, 1, 0])])
    nodes = [
        *SQUEEZE_IF_ONE,
        node("Shape", "z", "zs"),
        node("Size", "zs", "rank"),
        node("Equal", "rank two", "flat"),
        node("If", "flat", "w", **by_rank),
        node("Flatten", "w", "y"),
    ]
    model = make_model(nodes, {"x": (F32, ["n", "m", "k"])}, ["y"], SQUEEZE_CONSTANTS)

    for last in (1, 4):
        x = np.arange(6 * last, dtype=F32).reshape(2, 3, last)
        found = run(load_model(model), {"x": x})[0]
        expected = (x[..., 0].T if last == 1 else x.T).reshape(3 if last == 1 else last, -1)
        np.testing.assert_array_equal(found, expected)


def test_a_path_that_cannot_work_becomes_a_requirement() -> None:
    nodes = [*SQUEEZE_IF_ONE, node("Conv", "z w", "y")]
    constants = {**SQUEEZE_CONSTANTS, "w": np.ones((1, 5, 1), F32)}
    model = make_model(nodes, {"x": (F32, [1, 5, 7, "k"])}, ["y"], constants)

    imported = load_model(model)

    assert operators(imported) == ["squeeze", "conv"]
    run(imported, {"x": np.zeros((1, 5, 7, 1), F32)})
    with pytest.raises(InputError, match="the_z: the model works only where k == 1"):
        run(imported, {"x": np.zeros((1, 5, 7, 2), F32)})


def test_requirements_of_a_branch_are_checked_when_it_is_taken() -> None:
    then_nodes = [node("Add", "x b", "t")]
    nodes = [node("If", "c", "y", **branches(then_nodes, [node("Identity", "x", "e")]))]
    inputs = {"x": (F32, ["n"]), "b": (F32, ["m"]), "c": (np.bool_, [])}
    imported = load_model(make_model(nodes, inputs, ["y"]))
    arrays = {"x": np.ones(3, F32), "b": np.ones(2, F32)}

    assert not imported.requirements
    run(imported, {**arrays, "c": np.array(False)})
    with pytest.raises(InputError, match="dim 0 of operand 1 is m, which does not broadcast with n"):
        run(imported, {**arrays, "c": np.array(True)})


# -- Loop and Scan


def loop_model(stop_at: float | None, scan: bool = True, trip: str = "m") -> onnx.ModelProto:
    """Adds x to a sum, `m` times or until the sum passes `stop_at`; stacks the sums."""
    body = [
        node("Add", "sum_in x", "sum_out"),
        node("Identity", "sum_out", "row"),
        node("ReduceMax", "sum_out", "top", keepdims=0),
    ]
    body.append(node("Less", "top limit", "go") if stop_at is not None else node("Identity", "go_in", "go"))
    inner = graph(
        body,
        [value("i", INT64, []), value("go_in", BOOL, []), value("sum_in", TensorProto.FLOAT, ["n"])],
        "go sum_out" + (" row" if scan else ""),
    )
    nodes = [node("Loop", f"{trip} - start", "last" + (" rows" if scan else ""), body=inner)]
    outputs = ["last", "rows"] if scan else ["last"]
    inputs = {"x": (F32, ["n"]), "start": (F32, ["n"]), **({"m": (np.int64, [])} if trip == "m" else {})}
    limit = {} if stop_at is None else {"limit": np.array(stop_at, F32)}
    return make_model(nodes, inputs, outputs, limit)


@pytest.mark.parametrize("stop_at", [None, 2.5])
@pytest.mark.parametrize(("scan", "count"), [(False, 0), (False, 6), (True, 1), (True, 6)])
def test_loops_carry_stack_and_stop(stop_at: float | None, scan: bool, count: int) -> None:
    arrays = {"x": np.array([1, 0.5], F32), "start": np.zeros(2, F32), "m": np.array(count)}

    imported = check_against_onnxruntime(loop_model(stop_at, scan), arrays)

    assert "loop" in operators(imported)


def test_no_iterations_stack_nothing() -> None:
    arrays = {"x": np.ones(2, F32), "start": np.full(2, 7, F32), "m": np.array(0)}

    last, rows = run(load_model(loop_model(None)), arrays)

    assert rows.shape == (0, 2)
    np.testing.assert_array_equal(last, [7, 7])


def test_a_loop_whose_values_grow_is_unrolled() -> None:
    inner = graph(
        [node("Concat", "v x", "v_out", axis=0), node("Identity", "go_in", "go")],
        [value("i", INT64, []), value("go_in", BOOL, []), value("v")],
        "go v_out",
    )
    model = make_model([node("Loop", "three - x", "y", body=inner)], {"x": (F32, ["n"])}, ["y"], {"three": np.array(3)})

    imported = load_model(model)

    assert operators(imported) == ["concat"] * 3
    np.testing.assert_array_equal(run(imported, {"x": np.ones(2, F32)})[0], np.ones(8))


def test_a_loop_uses_its_iteration_number_and_values_from_outside() -> None:
    inner = graph(
        [
            node("Gather", "x i", "row"),
            node("Mul", "row w", "scaled"),
            node("Add", "acc scaled", "acc_out"),
            node("Identity", "go_in", "go"),
        ],
        [value("i", INT64, []), value("go_in", BOOL, []), value("acc", TensorProto.FLOAT, [3])],
        "go acc_out",
    )
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Loop", "n - start", "y", body=inner),
    ]
    constants = {"zero": np.array(0), "start": np.zeros(3, F32), "w": np.array([1, 2, 3], F32)}
    model = make_model(nodes, {"x": (F32, ["n", 3])}, ["y"], constants)

    check_against_onnxruntime(model, {"x": np.arange(12, dtype=F32).reshape(4, 3)})


@pytest.mark.parametrize("reverse_in", [0, 1])
@pytest.mark.parametrize("reverse_out", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_scan_runs_over_any_axis_in_both_directions(
    reverse_in: int, reverse_out: int, axis: int, rng: np.random.Generator
) -> None:
    inner = graph(
        [node("Add", "state item", "state_out"), node("Mul", "state_out item", "out")],
        [value("state", TensorProto.FLOAT, [2]), value("item", TensorProto.FLOAT, [2])],
        "state_out out",
    )
    scan = node(
        "Scan",
        "start x",
        "last y",
        body=inner,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_output_axes=[axis],
        scan_input_directions=[reverse_in],
        scan_output_directions=[reverse_out],
    )
    shape: list[int | str | None] = [2, 2]
    shape[axis] = "n"
    model = make_model([scan], {"start": (F32, [2]), "x": (F32, shape)}, ["last", "y"])
    sizes = [2, 2]
    sizes[axis] = 5

    check_against_onnxruntime(model, {"start": np.ones(2, F32), "x": rng.standard_normal(sizes).astype(F32)})


# -- recurrent operators

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent_model(
    op: str, length: int | str, given: str, directions: int, rng: np.random.Generator, **attributes: Any
) -> onnx.ModelProto:
    """`given`: which optional inputs there are, of b(ias), l(engths), h, c, p(eepholes)."""
    hidden, inputs, batch = 4, 3, 2
    gates = GATES[op]

    def weights(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(F32) * F32(0.5)

    constants = {
        "w": weights(directions, gates * hidden, inputs),
        "r": weights(directions, gates * hidden, hidden),
    }
    optional = {
        "b": weights(directions, 2 * gates * hidden),
        "l": np.array([3, 2], np.int32),
        "h": weights(directions, batch, hidden),
        "c": weights(directions, batch, hidden),
        "p": weights(directions, 3 * hidden),
    }
    names = "blhcp" if op == "LSTM" else "blh"
    constants.update({name: optional[name] for name in names if name in given})
    operands = " ".join(["x w r", *(name if name in given else "-" for name in names)])
    outputs = ["y", "y_h", "y_c"][: 3 if op == "LSTM" else 2]
    made = node(op, operands, " ".join(outputs), hidden_size=hidden, **attributes)
    return make_model([made], {"x": (F32, [length, batch, inputs])}, outputs, constants)


RECURRENT = [
    ("RNN", "", {}),
    ("RNN", "bh", {"direction": "reverse"}),
    ("RNN", "blh", {"direction": "bidirectional"}),
    ("RNN", "b", {"activations": ["Relu"], "clip": 0.5}),
    ("GRU", "", {}),
    ("GRU", "bh", {"linear_before_reset": 1}),
    ("GRU", "blh", {"direction": "bidirectional", "linear_before_reset": 1}),
    ("GRU", "bl", {"direction": "reverse"}),
    ("GRU", "b", {"activations": ["HardSigmoid", "Softsign"], "activation_alpha": [0.3], "activation_beta": [0.4]}),
    ("LSTM", "", {}),
    ("LSTM", "bhc", {"direction": "reverse"}),
    ("LSTM", "bhcp", {"direction": "bidirectional"}),
    ("LSTM", "blhc", {"direction": "bidirectional"}),
    ("LSTM", "bl", {"direction": "reverse"}),
    ("LSTM", "b", {"input_forget": 1}),
    ("LSTM", "b", {"activations": ["Sigmoid", "Relu", "Elu"], "activation_alpha": [0.7], "clip": 1.5}),
]


@pytest.mark.parametrize("length", [3, "t"])
@pytest.mark.parametrize(("op", "given", "attributes"), RECURRENT)
def test_recurrent_operators(
    op: str, given: str, attributes: dict[str, Any], length: int | str, rng: np.random.Generator
) -> None:
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    model = recurrent_model(op, length, given, directions, rng, **attributes)

    imported = check_against_onnxruntime(model, {"x": rng.standard_normal((3, 2, 3)).astype(F32)})

    assert operators(imported).count("loop") == directions
    assert {report.status for report in imported.report} == {"native"}


def test_a_sequence_of_one_step_needs_no_loop(rng: np.random.Generator) -> None:
    model = recurrent_model("LSTM", 1, "bhc", 1, rng)

    imported = check_against_onnxruntime(model, {"x": rng.standard_normal((1, 2, 3)).astype(F32)})

    assert "loop" not in operators(imported)


def test_the_product_with_the_inputs_is_one_matmul_outside_of_the_loop(rng: np.random.Generator) -> None:
    imported = load_model(recurrent_model("LSTM", "t", "b", 1, rng))

    names = operators(imported)

    assert names.index("matmul") < names.index("loop")
    assert names.count("matmul") == 2


def test_an_unknown_activation_is_refused(rng: np.random.Generator) -> None:
    model = recurrent_model("RNN", 3, "b", 1, rng, activations=["Cube"])

    with pytest.raises(UnsupportedError, match="'Cube'"):
        load_model(model, on_unsupported="error")


@pytest.mark.parametrize("begin", [True, False])
def test_a_loop_that_may_not_begin_stacks_nothing_then(begin: bool) -> None:
    inner = graph(
        [node("Add", "v x", "v_out"), node("Identity", "go_in", "go"), node("Identity", "v_out", "row")],
        [value("i", INT64, []), value("go_in", BOOL, []), value("v", TensorProto.FLOAT, [2])],
        "go v_out row",
    )
    inputs = {"x": (F32, [2]), "m": (np.int64, []), "begin": (np.bool_, [])}
    model = make_model([node("Loop", "m begin x", "last rows", body=inner)], inputs, ["last", "rows"])

    imported = load_model(model)
    last, rows = run(imported, {"x": np.ones(2, F32), "m": np.array(3), "begin": np.array(begin)})

    np.testing.assert_array_equal(last, [4, 4] if begin else [1, 1])
    assert rows.shape == (3 if begin else 0, 2)


@pytest.mark.parametrize("chosen", [True, False])
def test_a_condition_that_only_the_taken_branch_works_is_checked(chosen: bool) -> None:
    # The check went with the dim that it was about: the other branch's case ran as if it were this one.
    works = graph([node("Neg", "x", "o1")], [], "o1")
    fails = graph([node("Reshape", "x s", "o2")], [], "o2")
    model = make_model(
        [node("If", "c", "y", then_branch=works, else_branch=fails)],
        {"c": (np.bool_, []), "x": (np.float32, [3])}, ["y"], {"s": np.array([7])},
    )  # fmt: skip
    compiled, x = tc.compile(model), np.ones(3, np.float32)

    if chosen:
        np.testing.assert_array_equal(compiled(np.array(True), x), -x)
    else:
        with pytest.raises(InputError, match=r"the_y: the model works only where the_y\.condition == 1"):
            compiled(np.array(False), x)


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_a_range_by_a_delta_of_zero_names_its_node(dtype: type) -> None:
    # It was an empty tensor.
    model = make_model([node("Range", "a b c", "y")], dict.fromkeys("abc", (dtype, [])), ["y"])
    compiled = tc.compile(model)

    np.testing.assert_array_equal(compiled(dtype(0), dtype(5), dtype(2)), np.arange(0, 5, 2, dtype))
    with pytest.raises(InputError, match="the_y: Range: delta is 0"):
        compiled(dtype(0), dtype(5), dtype(0))


LARGE_STOP = [
    node("Add", "s s", "o"),
    node("ReduceMax", "o", "m", keepdims=0),
    node("Constant", "", "l", value_float=100.0),
    node("Less", "m l", "c2"),
]


def unbounded(body: list[Any], condition: str = "-") -> onnx.ModelProto:
    inner = graph(body, [value("i", INT64, []), value("c", BOOL, []), value("s", shape=[3])], "c2 o")
    inputs = {"x": (F32, [3]), **({"c0": (np.bool_, [])} if condition != "-" else {})}
    return make_model([node("Loop", f"- {condition} x", "y", body=inner)], inputs, ["y"])


def test_a_loop_without_a_bound_ends_by_its_condition() -> None:
    compiled = tc.compile(unbounded(LARGE_STOP))

    np.testing.assert_array_equal(compiled(np.ones(3, F32)), np.full(3, 128, F32))


def test_a_loop_that_never_ends_is_refused_by_name() -> None:
    # "a loop has neither a bound nor a condition", of no node
    with pytest.raises(ModelError, match="the_y: the loop never ends"):
        tc.compile(unbounded([node("Identity", "c", "c2"), node("Add", "s s", "o")]))


def test_a_loop_that_would_never_end_may_never_begin() -> None:
    compiled = tc.compile(unbounded([node("Identity", "c", "c2"), node("Add", "s s", "o")], "c0"))

    np.testing.assert_array_equal(compiled(np.ones(3, F32), np.array(False)), np.ones(3, F32))


@pytest.mark.parametrize("seed", range(24))
def test_operands_of_recurrent_nets_have_dims_by_any_name(seed: int) -> None:
    """Ended in a KeyError: the batch of a known initial state is 1, and that of the inputs and of the lengths had other names."""
    rng = np.random.default_rng(seed)
    op, gates = [("LSTM", 4), ("GRU", 3), ("RNN", 1)][rng.integers(3)]
    way = ["forward", "reverse", "bidirectional"][rng.integers(3)]
    d, h, t, b, terms = 1 + (way == "bidirectional"), int(rng.integers(1, 9)), int(rng.integers(1, 5)), int(rng.integers(1, 3)), 3
    shapes = {"x": [t, b, terms], "w": [d, gates * h, terms], "r": [d, gates * h, h], "B": [d, 2 * gates * h], "l": [b], "h": [d, b, h]}
    shapes |= {"c": [d, b, h], "p": [d, 3 * h]} if op == "LSTM" else {}
    arrays = {name: rng.standard_normal(shape).astype(F32) for name, shape in shapes.items()}
    arrays["l"] = rng.integers(1, t + 1, b).astype(np.int32)
    inputs, constants = {}, {}
    for name, array in arrays.items():
        if name != "x" and rng.random() < 0.4:
            constants[name] = array
            continue
        inputs[name] = (array.dtype.type, [f"{name}{k}" if rng.random() < 0.6 else size for k, size in enumerate(array.shape)])
    operands = " ".join(name for name in ("x", "w", "r", "B", "l", "h", "c", "p") if name in arrays)
    outputs = ["y", "y_h", "y_c"][: 3 if op == "LSTM" else 2]
    model = make_model([node(op, operands, " ".join(outputs), hidden_size=h, direction=way)], inputs, outputs, constants)

    imported = check_against_onnxruntime(model, {name: arrays[name] for name in inputs})

    assert {report.status for report in imported.report} == {"native"}
