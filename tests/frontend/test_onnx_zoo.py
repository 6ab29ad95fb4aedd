"""Every model of the zoo: imported natively and fast, and right for its usual and for other shapes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks import zoo
from tc.errors import InputError
from tc.frontend.onnx import inspect_model, load_model
from tests.frontend.models import run

FETCHED = {name for name in zoo.names() if zoo.ENTRIES[name].member is not None}
LARGE = {n for n in zoo.names() if n.startswith(("llama", "gelu", "gemv", "vgg", "zfnet", "alexnet", "resnet"))}
TWINS = {name for name in zoo.names() if zoo.ENTRIES[name].twin}
LARGE |= TWINS - {"digits_qdq", "squeezenet_qdq", "blocks_qdq"}
# Operator by operator in numpy these are too slow even for slow tests, or have nothing that the others do not have.
HEAVY = {"vgg19", "zfnet512", "gelu_16m", "densenet121", "inception_v2"}
slow = pytest.mark.slow


def models(skip: set[str] = frozenset()) -> list[object]:  # type: ignore[assignment]
    return [
        pytest.param(name, marks=[slow] if name in FETCHED | LARGE else []) for name in zoo.names() if name not in skip
    ]


def run_onnxruntime(name: str, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(zoo.path(name), options, providers=["CPUExecutionProvider"])
    results: list[np.ndarray] = session.run(None, dict(arrays))
    return results


def compare(name: str, arrays: Mapping[str, np.ndarray]) -> None:
    found = run(load_model(zoo.path(name)), arrays)
    for a, b in zip(found, run_onnxruntime(name, arrays), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.abs(a - b).max(initial=0) <= 1e-4 * np.abs(b).max(initial=0)


@pytest.mark.parametrize("name", models())
def test_every_node_is_native(name: str) -> None:
    imported = load_model(zoo.path(name), on_unsupported="error")

    assert {report.status for report in imported.report} == {"native"}
    assert [report.status for report in inspect_model(zoo.path(name)).nodes] == [r.status for r in imported.report]


# Of a quantized network one sum that falls on the other side of a half shows in all that follows: those are compared node by node.
@pytest.mark.parametrize("name", models(HEAVY | TWINS))
def test_results_are_those_of_onnxruntime(name: str, rng: np.random.Generator) -> None:
    compare(name, zoo.random_inputs(name, rng))


SHAPES = [
    ("minilm_dyn", {"batch": 3, "seq": 17}),
    ("minilm_dyn", {"batch": 1, "seq": 1}),
    ("ppocr_rec", {"p2o.DynamicDimension.0": 2, "x.2": 48, "p2o.DynamicDimension.1": 33}),
    ("ppocr_det", {"p2o.DynamicDimension.0": 2, "p2o.DynamicDimension.1": 32, "p2o.DynamicDimension.2": 96}),
    ("ppocr_cls", {"x.0": 2, "x.2": 40, "x.3": 100}),
    ("llama_dyn", {"seq": 5, "past": 0}),
    ("llama_dyn", {"seq": 1, "past": 7}),
    ("magika", {"unk__214": 3}),
    ("silero_vad", {"input.0": 3, "input.1": 320, "state.1": 3}),
    ("silero_vad_sequence", {"sequence_length": 1}),
    ("resnet50_dyn", {"N": 2}),
]


@slow
@pytest.mark.parametrize(("name", "dims"), SHAPES)
def test_other_shapes(name: str, dims: dict[str, int], rng: np.random.Generator) -> None:
    compare(name, zoo.random_inputs(name, rng, dims))


@slow
@pytest.mark.parametrize("rate", [16000, 8000])
def test_silero_takes_the_branch_of_its_rate(rate: int, rng: np.random.Generator) -> None:
    arrays = zoo.random_inputs("silero_vad", rng, {"input.0": 2, "input.1": 288, "state.1": 2})

    compare("silero_vad", {**arrays, "sr": np.array(rate)})


@slow
def test_silero_says_which_lengths_it_takes(rng: np.random.Generator) -> None:
    arrays = zoo.random_inputs("silero_vad", rng, {"input.0": 1, "input.1": 1000, "state.1": 1})

    with pytest.raises(InputError, match="the model works only where"):
        run(load_model(zoo.path("silero_vad")), arrays)


@slow
def test_minilm_says_how_long_a_sentence_may_be(rng: np.random.Generator) -> None:
    with pytest.raises(InputError, match="dims seq and min"):
        run(load_model(zoo.path("minilm_dyn")), zoo.random_inputs("minilm_dyn", rng, {"batch": 1, "seq": 513}))


@pytest.mark.covering
@pytest.mark.parametrize("opset", [9, 11, 13, 17, 21])
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_a_network_in_other_opsets(name: str, opset: int, rng: np.random.Generator) -> None:
    model = onnx.version_converter.convert_version(onnx.load(zoo.path(name)), opset)
    arrays = zoo.random_inputs(name, rng)

    found = run(load_model(model, on_unsupported="error"), arrays)

    for a, b in zip(found, run_onnxruntime(name, arrays), strict=True):
        assert np.abs(a - b).max() <= 1e-4 * np.abs(b).max()
