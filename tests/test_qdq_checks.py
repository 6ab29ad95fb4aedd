"""The checker of quantized graphs: what it takes for right is right, and it finds what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks import qdq_checks, zoo
from benchmarks.qdq_checks import (
    Beside,
    Check,
    Place,
    beside,
    check_bits,
    check_places,
    compare_integers,
    cut,
    problems,
    squared_errors,
    targets,
    values_of,
)
from benchmarks.qdq_reference import run_in_double
from tc.measure.runtimes import reference_outputs
from tc.target import native_target

pytest.importorskip("onnxruntime")
slow = pytest.mark.slow

SMALL = ("digits_qdq", "blocks_qdq")


def model_of(
    nodes: list[onnx.NodeProto], inputs: dict[str, np.ndarray], weights: dict[str, np.ndarray]
) -> onnx.ModelProto:
    declared = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", declared, [onnx.ValueInfoProto(name=nodes[-1].output[0])], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# -- the reference in double precision


WINDOWS = [
    ("MaxPool", {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 0, 1, 1)}),
    ("MaxPool", {"kernel_shape": (3, 2), "strides": (2, 3), "ceil_mode": 1}),
    ("MaxPool", {"kernel_shape": (2, 2), "dilations": (2, 1)}),
    ("AveragePool", {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ("AveragePool", {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 0, 1, 0), "count_include_pad": 1}),
    ("AveragePool", {"kernel_shape": (2, 2), "strides": (2, 2), "ceil_mode": 1}),
    ("Conv", {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2), "group": 2}),
    ("ConvTranspose", {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 0, 1)}),
]


@pytest.mark.parametrize(("op", "attributes"), WINDOWS)
def test_windows_in_double_precision_are_those_of_onnxruntime(
    op: str, attributes: dict, rng: np.random.Generator, tmp_path
) -> None:  # type: ignore[no-untyped-def]
    arrays = {"x": rng.standard_normal((2, 4, 9, 11)).astype(np.float32)}
    shape = {"Conv": (6, 2, 3, 2), "ConvTranspose": (4, 5, 3, 2)}.get(op)
    weights = (
        {}
        if shape is None
        else {
            "w": rng.standard_normal(shape).astype(np.float32),
            "b": rng.standard_normal(shape[0 if op == "Conv" else 1]).astype(np.float32),
        }
    )
    model = model_of([helper.make_node(op, ["x", *weights], ["y"], **attributes)], arrays, weights)
    onnx.save(model, tmp_path / "model.onnx")

    (found,) = run_in_double(model, arrays)
    (expected,) = reference_outputs(tmp_path / "model.onnx", arrays)

    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_quantization_in_double_precision_rounds_half_to_even_and_saturates_after_the_zero_point() -> None:
    arrays = {"x": np.array([0.5, 1.5, -0.5, 126.0, 250.0, -129.0, -300.0, np.inf, -np.inf], np.float32)}
    weights = {"s": np.array(1.0, np.float32), "z": np.array(3, np.int8)}
    model = model_of([helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])], arrays, weights)

    (found,) = run_in_double(model, arrays)

    assert found.dtype == np.int8
    assert found.tolist() == [3, 5, 3, 127, 127, -126, -128, 127, -128]


def test_parameters_for_each_channel_go_along_their_axis() -> None:
    arrays = {"x": np.array([[10, 20], [30, 40], [50, 60]], np.uint8)}
    weights = {"s": np.array([1.0, 0.5, 2.0], np.float32), "z": np.array([10, 0, 50], np.uint8)}
    model = model_of([helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], axis=0)], arrays, weights)

    (found,) = run_in_double(model, arrays)

    assert found.tolist() == [[0, 10], [15, 20], [0, 20]]


@pytest.mark.parametrize("name", SMALL)
def test_the_reference_is_nearer_to_onnxruntime_than_a_few_quanta(name: str, rng: np.random.Generator) -> None:
    arrays = zoo.random_inputs(name, rng)

    found, expected = run_in_double(onnx.load(zoo.path(name)), arrays), reference_outputs(zoo.path(name), arrays)

    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() <= 0.1 * np.abs(b).max()


# -- cutting and comparing


@pytest.mark.parametrize("name", SMALL)
def test_a_cut_graph_makes_of_its_values_what_the_whole_makes_of_them(name: str, rng: np.random.Generator) -> None:
    model, arrays = onnx.load(zoo.path(name)), zoo.random_inputs(name, rng)

    made, inputs, expected = cut(model, arrays)
    found = values_of(made, list(expected), inputs)

    assert len(expected) == sum(map(qdq_checks.is_maker, model.graph.node)) + len(model.graph.output)
    for value, array in expected.items():
        assert np.array_equal(found[value], array), value


def test_differences_are_counted_in_quanta() -> None:
    place = compare_integers("y", np.array([0, 255, 7, 9], np.uint8), np.array([255, 255, 8, 9], np.uint8))

    assert place == Place("y", 4, 2, 255)
    assert place.share == 0.5


GOOD = Check("m", 10_000, 10, 1, (), 8, 0.11, Beside(0.1, 1.1, 0.03), Beside(0.2, 0.55, 0.2), (("a/1", "a/2", "b/1", "b/2"),), False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        ({"differing": 11}, ["0.110% of the integers differ"]),
        ({"quanta": 2}, ["an integer differs by 2 quanta"]),
        ({"ort": Beside(0.1, 1.1, 0.02)}, ["error 1.10e-01, 1.10 ± 0.02 times onnxruntime's"]),
        ({"ort_plain": Beside(0.1, 1.1, 0.02)}, ["error 1.10e-01, 1.10 ± 0.02 times onnxruntime's without optimisations"]),
        ({"error": 2e-7, "ort": Beside(1e-7, 2.0, 0.01)}, []),
        ({"ort": Beside(0.0, np.inf, 0.0)}, ["error 1.10e-01, inf ± 0.00 times onnxruntime's"]),
        ({"bits": (("a/1", "a/2"), ("b/1", "b/2"))}, ["bits depend on the target or the threads"]),
        ({"bits": (("a/1", "a/2"), ("b/1", "b/2")), "float_sums": True}, []),
        ({"bits": (("a/1", "b/2"), ("a/2", "b/1")), "float_sums": True}, ["bits depend on the number of threads"]),
    ],
)
def test_each_bar_that_is_missed_is_named(change: dict, words: list[str]) -> None:  # type: ignore[type-arg]
    assert problems(replace(GOOD, **change), ("a", "b")) == words


def test_errors_are_of_all_samples_and_each_output_counts_by_its_own_size() -> None:
    exact = [[np.array([3.0, 4.0]), np.array([1e6])], [np.array([0.0, 0.0]), np.array([1e6])]]
    found = [[np.array([3.0, 4.5], np.float32), np.array([1e6])], [np.array([0.25, 0.0], np.float32), np.array([1e6 + 1e3])]]

    np.testing.assert_allclose(squared_errors(found, exact), [0.25 / 25, 0.0625 / 25 + 1e6 / 2e12])


def test_ratios_of_errors_have_the_spread_of_the_mean_of_many_draws(rng: np.random.Generator) -> None:
    draws = rng.chisquare(4, (2000, 2, 12)) / 4

    found = [beside(1.21 * mine, theirs) for mine, theirs in draws]

    ratios, spreads = (np.array([getattr(each, name) for each in found]) for name in ("ratio", "spread"))
    assert abs(ratios.mean() - 1.1) < 0.03
    assert 0.85 < spreads.mean() / ratios.std() < 1.15
    assert beside(np.ones(1), np.ones(1)).spread == np.inf
    assert beside(np.zeros(3), np.zeros(3)) == Beside(0.0, 1.0, 0.0)
    assert beside(np.ones(2), np.zeros(2)) == Beside(0.0, np.inf, 0.0)
    assert beside(np.ones(2), np.array([0.0, 1.0])).spread == np.inf


# -- what tc computes


@pytest.mark.parametrize("name", ["digits_qdq", pytest.param("blocks_qdq", marks=slow)])
def test_integers_node_by_node_are_those_of_onnxruntime(name: str, rng: np.random.Generator) -> None:
    places = check_places(onnx.load(zoo.path(name)), [zoo.random_inputs(name, rng)], native_target())

    assert len(places) >= 10
    assert max(place.quanta for place in places) <= 1
    assert sum(place.differing for place in places) <= qdq_checks.MOST_DIFFERING * sum(
        place.elements for place in places
    )


@slow
@pytest.mark.parametrize("name", SMALL)
def test_bits_are_those_of_every_kind_of_cpu(name: str, rng: np.random.Generator) -> None:
    arrays, kinds = zoo.random_inputs(name, rng), targets(native_target())

    bits = check_bits(zoo.path(name), arrays, kinds)

    assert sum(map(len, bits)) == 6
    for kind in kinds:
        assert any({f"{kind}/1", f"{kind}/2"} <= set(group) for group in bits)


@slow
def test_the_quantized_digits_network_reads_what_onnxruntime_reads(rng: np.random.Generator) -> None:
    import tc
    from tc import demo

    images, _ = demo.load_heldout()
    arrays = {"image": demo.as_model_input(images)}

    (found,) = tc.compile(zoo.path("digits_qdq")).run(arrays).values()
    (expected,) = reference_outputs(zoo.path("digits_qdq"), arrays)

    assert np.array_equal(found.argmax(axis=1), expected.argmax(axis=1))
    assert np.abs(found - expected).max() < 0.02


def test_rows_that_are_stored_replace_older_ones_of_the_model(tmp_path: Path) -> None:
    table = tmp_path / "checks.json"

    qdq_checks.store([GOOD, replace(GOOD, model="n", problems=("something",))], table)
    qdq_checks.store([replace(GOOD, differing=3, worst=(Place("p", 50, 1, 1),))], table)

    rows = [line.split(" | ") for line in table.with_suffix(".md").read_text().splitlines() if line.startswith(("| m |", "| n |"))]
    assert [row[:4] for row in rows] == [
        ["| m", "3 of 10000, 0.0300%", "1", "p: 2.000%"],
        ["| n", "10 of 10000, 0.1000%", "1", "-"],
    ]
    assert rows[1][7] == "something"
