"""ONNX's own test cases for every operator: about 1,900 models of one node with expected results."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tc
from tc.errors import UnsupportedError
from tc.frontend.imported import FALLBACK, FUNCTION_BODY, NATIVE
from tc.frontend.onnx import load_model
from tests.frontend.models import make_model, node, run, run_onnxruntime

# Cases that cannot pass, and why.
EXCEPTIONS = {
    "test_bernoulli": "random",
    "test_stft": "ONNX infers a shape that its own results do not have",
    "test_training_dropout": "random",
    "test_resize_downsample_scales_linear_align_corners": "ONNX takes the size before it is rounded, runtimes do not",
    "test_resize_downsample_scales_cubic_align_corners": "ONNX takes the size before it is rounded, runtimes do not",
}
# What tc says about the cases that it refuses.
REASONS = (
    "which tc does not have",  # strings, complex numbers, floats of 8 bits and less
    "tc takes tensors only",
    "tc returns tensors only",
    "must be constant",  # axes of reductions and the like; with constants the cases run
    "results of different rank or kind",
    "changes the type of its carried value",
    "Scan of opset 8",
    "ONNX cannot say the rank",
    "Squeeze without axes",
)
WORST = [NATIVE, FUNCTION_BODY, FALLBACK, "refused"]


def as_array(item: Any) -> np.ndarray:
    return numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else np.asarray(item)


def with_constants(model: onnx.ModelProto, arrays: list[Any]) -> onnx.ModelProto:
    """The model with its small integer and bool inputs but the first, and those of a Resize, as constants."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    resizes = any(node.op_type in ("Resize", "Upsample") for node in made.graph.node)
    for info, item in list(zip(made.graph.input, arrays))[1:]:
        array = None if isinstance(item, list) else as_array(item)
        if array is not None and array.size < 64 and (array.dtype.kind in "ib" or resizes):
            made.graph.initializer.append(numpy_helper.from_array(array, info.name))
    return made


def check(model: onnx.ModelProto, case: Any) -> str:
    """Run a case; the worst status of its nodes."""
    imported = load_model(model)
    check_results(model, case, lambda arrays: run(imported, arrays))
    return max((report.status for report in imported.report), key=WORST.index, default=NATIVE)


def check_compiled(model: onnx.ModelProto, case: Any) -> str:
    """The same, as machine code."""
    compiled = tc.compile(model)
    names = {info.name for info in compiled.inputs}
    check_results(
        model,
        case,
        lambda arrays: list(compiled.run({name: array for name, array in arrays.items() if name in names}).values()),
    )
    return NATIVE


def check_results(model: onnx.ModelProto, case: Any, run_model: Callable[[dict[str, np.ndarray]], Any]) -> None:
    names = [info.name for info in model.graph.input]
    for inputs, outputs in case.data_sets:
        arrays = {name: as_array(item) for name, item in zip(names, inputs)}
        for found, item in zip(run_model(arrays), outputs, strict=True):
            expected = as_array(item)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            half = expected.dtype.itemsize == 2 and expected.dtype.kind in "fV"
            if expected.dtype.kind == "b":
                np.testing.assert_array_equal(found, expected)
            else:
                wide = (array.astype(np.float64) for array in (found, expected))
                np.testing.assert_allclose(*wide, rtol=2e-2 if half else 1e-3, atol=1e-3 if half else 1e-6)


def run_cases(
    constants: bool, check_one: Callable[[onnx.ModelProto, Any], str]
) -> tuple[Counter[str], list[str]]:
    """How many cases had which status, and what failed."""
    from onnx.backend.test.loader import load_model_tests

    statuses: Counter[str] = Counter()
    failures = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = [case for case in load_model_tests(kind="node") if not case.name.startswith(tuple(EXCEPTIONS))]
        for case in cases:
            try:
                model = with_constants(case.model, case.data_sets[0][0]) if constants else case.model
                statuses[check_one(model, case)] += 1
            except UnsupportedError as error:
                statuses["refused"] += 1
                if not any(reason in str(error) for reason in REASONS):
                    failures.append(f"{case.name}: {error}")
            except Exception as error:
                failures.append(f"{case.name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return statuses, failures


@pytest.mark.slow
@pytest.mark.parametrize("constants", [False, True])
def test_node_cases_of_onnx(constants: bool) -> None:
    statuses, failures = run_cases(constants, check)

    assert not failures, "\n".join(failures)
    assert statuses[NATIVE] >= (1200 if constants else 1000), statuses
    assert statuses[FUNCTION_BODY] >= 250, statuses


@pytest.mark.slow
def test_node_cases_of_onnx_compiled() -> None:
    statuses, failures = run_cases(True, check_compiled)

    assert not failures, "\n".join(failures)
    assert statuses[NATIVE] >= 1500, statuses


@pytest.mark.covering
@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("attributes", [{}, {"ceil_mode": 1}, {"pads": [1, 0, 1, 0]}], ids=str)
@pytest.mark.parametrize("height", ["h", 2])
def test_pools_of_inputs_shorter_than_the_window_compute_what_onnxruntime_does(
    op: str, attributes: dict, height: int | str
) -> None:
    model = make_model(
        [node(op, "x", "y", kernel_shape=[4, 2], strides=[3, 2], **attributes)], {"x": (np.float32, [1, 2, height, 8])}, ["y"]
    )
    compiled = tc.compile(model)
    for size in range(2, 9) if height == "h" else [2]:
        x = np.random.default_rng(size).standard_normal((1, 2, size, 8)).astype(np.float32)
        (expected,) = run_onnxruntime(model, {"x": x})
        np.testing.assert_allclose(compiled(x), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(run(load_model(model), {"x": x})[0], expected, rtol=1e-5, atol=1e-6)
