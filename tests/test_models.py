"""Real models against ONNX Runtime. Slow: the models are prepared on first use (`python -m benchmarks.zoo`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tc
from benchmarks import zoo
from tc.compiler import run_stages
from tc.ir.arith import evaluate
from tc.ir.graph import CallTir
from tc.ir.module import IRModule
from tc.ir.parser import parse_module
from tc.ir.printer import print_ir
from tc.ir.structural import first_difference
from tc.ir.verify import verify
from tc.target import native_target

pytestmark = pytest.mark.slow
onnxruntime = pytest.importorskip("onnxruntime")

MODELS = (
    "resnet50", "densenet121", "inception_v1", "inception_v2", "shufflenet", "squeezenet", "vgg19", "zfnet512", "alexnet",
    "ppocr_det", "ppocr_rec", "ppocr_cls", "silero_vad", "magika", "minilm", "llama_prefill", "llama_decode",
    "mobilenet_v2", "vit_tiny",
)  # fmt: skip


def session(path: Path) -> object:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(str(path), options)


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest magnitude; infinite when a NaN stands on one side only."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    if not expected.size:
        return 0.0
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    error = np.abs(a - e).max() / max(np.abs(e).max(), 1e-30)
    return float(error) if np.isfinite(error) else float("inf")


def in_double(path: Path) -> onnx.ModelProto:
    """The model with every f32 made an f64."""
    model = onnx.load(str(path))

    def widen(tensor: onnx.TensorProto) -> None:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))

    def visit(graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            widen(tensor)
        for info in (*graph.input, *graph.output):
            if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
                info.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
        del graph.value_info[:]
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.TENSOR:
                    widen(attribute.t)
                elif attribute.type == onnx.AttributeProto.GRAPH:
                    visit(attribute.g)
                elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                    attribute.i = onnx.TensorProto.DOUBLE

    visit(model.graph)
    return model


def exact_results(path: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the model computes in f64, by the reference interpreter."""
    wide = {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in inputs.items()}
    return {name: np.asarray(array, np.float32) for name, array in tc.interpret(in_double(path), wide).items()}


def assert_agree(
    module: tc.CompiledModule, reference: object, inputs: dict[str, np.ndarray], path: Path | None = None
) -> None:
    """At most 1e-4 from ONNX Runtime. Where it is more, rounding decides the answer, and f64 does the judging: at most 1e-4 from
    what the model computes in f64, or, where ONNX Runtime is further from that, at most twice as far as it is."""
    expected = reference.run(None, inputs)  # type: ignore[attr-defined]
    actual = module.run(inputs)
    for info, array in zip(reference.get_outputs(), expected, strict=True):  # type: ignore[attr-defined]
        error = relative_error(actual[info.name], np.asarray(array))
        if error > 1e-4 and path is not None:
            exact = exact_results(path, inputs)[info.name]
            assert relative_error(actual[info.name], exact) <= max(1e-4, 2 * relative_error(np.asarray(array), exact)), info.name
        else:
            assert error <= 1e-4, info.name


@pytest.mark.parametrize("name", MODELS)
def test_native_code_agrees_with_onnxruntime(name: str) -> None:
    path = zoo.path(name)
    module, reference = tc.compile(str(path)), session(path)
    rng = np.random.default_rng(11)

    for _ in range(5):
        assert_agree(module, reference, zoo.random_inputs(name, rng), path)

    assert module.report().fallbacks == ()


@pytest.mark.parametrize("name", MODELS)
def test_the_bits_do_not_depend_on_threads_or_luck(name: str) -> None:
    path = str(zoo.path(name))
    one, two = tc.compile(path, threads=1), tc.compile(path, threads=2)
    inputs = zoo.random_inputs(name, np.random.default_rng(12))
    first = one.run(inputs)

    for _ in range(20):
        again = two.run(inputs)
        assert all(np.array_equal(first[key], again[key], equal_nan=True) for key in first)


def test_minilm_serves_any_batch_and_length() -> None:
    path = zoo.path("minilm_dyn")
    module, reference = tc.compile(str(path)), session(path)
    rng = np.random.default_rng(13)

    for _ in range(50):
        dims = {"batch": int(rng.integers(1, 17)), "seq": int(rng.integers(1, 513)) if rng.random() < 0.2 else int(rng.integers(1, 65))}
        assert_agree(module, reference, zoo.random_inputs("minilm_dyn", rng, dims))


def test_ppocr_rec_serves_any_width() -> None:
    path = zoo.path("ppocr_rec")
    module, reference = tc.compile(str(path)), session(path)
    rng = np.random.default_rng(14)
    (width,) = [name for name in zoo.default_dims("ppocr_rec") if name.endswith(".1")]

    for _ in range(50):
        dims = {width: int(rng.integers(16, 640))}
        assert_agree(module, reference, zoo.random_inputs("ppocr_rec", rng, dims), path)


def test_resnet_serves_any_batch() -> None:
    path = zoo.path("resnet50_dyn")
    module, reference = tc.compile(str(path)), session(path)
    rng = np.random.default_rng(15)

    for _ in range(50):
        dims = {"N": int(rng.integers(1, 8))}
        assert_agree(module, reference, zoo.random_inputs("resnet50_dyn", rng, dims), path)


@pytest.mark.parametrize("name", ["resnet50", "minilm"])
def test_the_arena_is_at_most_a_quarter_of_all_intermediate_values(name: str) -> None:
    stages = run_stages(str(zoo.path(name)), native_target())
    values = [t for b in stages.lowered.main.bindings if isinstance(b.value, CallTir) for t in b.targets]
    total = sum(int(evaluate(t.type.size_bytes, {})) for t in values)  # type: ignore[union-attr]

    assert int(stages.plan.arena_bytes) <= 0.25 * total


@pytest.mark.parametrize("name", MODELS)
def test_every_stage_of_a_model_is_well_formed_and_round_trips_as_text(name: str) -> None:
    stages = run_stages(str(zoo.path(name)), native_target())
    kernels = tuple(kernel.scheduled for kernel in stages.kernels.values())

    for module in (stages.imported.module, stages.graph, stages.lowered, stages.module):
        verify(module)
    for module in (stages.imported.module, stages.graph, stages.lowered, stages.module, IRModule(kernels)):
        for func in module.functions:
            verify(func)
        constants: dict[str, np.ndarray] = {}
        text = print_ir(module, constants)
        again = parse_module(text, constants)
        assert first_difference(module, again) is None
        assert print_ir(again, {}) == text
