"""Files that onnxruntime's quantizers and its optimizer write: all are native, and say what onnxruntime says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import tc
from tc.frontend.onnx import load_model
from tc.interp import run_function
from tc.passes.manager import run_pipeline
from tc.passes.pipeline import SIMPLIFY
from tests.frontend.quantizer_models import KINDS, NETWORKS, inputs_of, optimize, peer, write

Arrays = dict[str, np.ndarray]

MOST_OF_THE_STEP = 0.25
"""How far results may be apart on average, as a part of how far quantization itself takes them from those of floats: a number that lies
between two integers may be rounded to either, and what is computed from it moves by a step."""


def compiled(path: Path, arrays: Arrays) -> list[np.ndarray]:
    found = tc.compile(path, on_unsupported="error", threads=1).run(arrays)
    return [found[output.name] for output in onnx.load(path).graph.output]


def interpreted(path: Path, arrays: Arrays) -> list[np.ndarray]:
    module = run_pipeline(load_model(path, on_unsupported="error").module, SIMPLIFY)
    return list(run_function(module, "main", [arrays[param.name] for param in module.main.params]))


def check(network: str, kind: str, folder: Path, run: Callable[[Path, Arrays], list[np.ndarray]], *levels: str) -> None:
    """Run the file as it is, and as the optimizer leaves it at the levels: all are what onnxruntime computes of the file, node by node;
    where the optimizer has asked for less, activations rounded to bytes before MatMulNBits, what it computes of its own file."""
    path = write(network, kind, folder)
    if path is None:
        pytest.skip("onnxruntime cannot quantize it")
    arrays = inputs_of(onnx.load(path), 7)
    wanted, floats = peer(path, arrays), peer(folder / "float.onnx", arrays)

    for each in (path, *(optimize(path, level) for level in levels)):
        expected = peer(each, arrays) if rounds_more(each) else wanted
        for a, b, real in zip(run(each, arrays), expected, floats, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            if a.dtype == np.float32:
                step = np.abs(b - real).mean()
                assert np.abs(a - b).mean() <= MOST_OF_THE_STEP * step + 1e-6 * np.abs(b).max(), each.name
            else:
                assert (a != b).mean() <= 0.01, each.name


def rounds_more(path: Path) -> bool:
    """Whether products take activations in bytes that no other node has rounded."""
    levels = [a.i for n in onnx.load(path).graph.node if n.op_type == "MatMulNBits" for a in n.attribute if a.name == "accuracy_level"]
    return 4 in levels


SHORT = [
    ("residual", "QDQ u8s8 channels"), ("residual", "QOperator u8u8"), ("depthwise", "QDQ all edges"), ("depthwise", "QOperator s8s8"),
    ("segmenter", "QDQ s16s8"), ("segmenter", "QOperator u8s8"), ("transformer", "QDQ u8s8"), ("transformer", "dynamic s8 channels"),
    ("lstm", "dynamic u8"), ("gru", "dynamic s8"), ("elementwise", "QDQ u16u8"), ("normalized", "QDQ s16s16"), ("sequence", "QDQ u8s4"),
    ("depthwise", "float"), ("transformer", "float"),
]  # fmt: skip


@pytest.mark.parametrize(("network", "kind"), SHORT)
def test_a_quantized_network_is_onnxruntimes(network: str, kind: str, tmp_path: Path) -> None:
    check(network, kind, tmp_path, interpreted, "ORT_ENABLE_EXTENDED")


@pytest.mark.parametrize("kind", ["QDQ u8s8 channels", "QOperator u8s8"])
def test_a_network_whose_channels_the_optimizer_puts_last_is_onnxruntimes(kind: str, tmp_path: Path) -> None:
    check("residual", kind, tmp_path, interpreted, "ORT_ENABLE_ALL")


@pytest.mark.parametrize(("network", "kind"), [("segmenter", "QDQ all edges"), ("sequence", "dynamic s8")])
def test_a_quantized_network_is_compiled(network: str, kind: str, tmp_path: Path) -> None:
    check(network, kind, tmp_path, compiled)


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_quantized_network_is_compiled(network: str, kind: str, tmp_path: Path) -> None:
    check(network, kind, tmp_path, compiled, "ORT_ENABLE_EXTENDED")


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_every_network_with_weights_of_few_bits_is_compiled(network: str, bits: int, symmetric: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnx_ir")
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    path = tmp_path / "float.onnx"
    onnx.save(NETWORKS[network](), path)
    quantizer = MatMulNBitsQuantizer(onnx.version_converter.convert_version(onnx.load(path), 21), block_size=16, is_symmetric=symmetric,
                                     bits=bits, op_types_to_quantize=("MatMul", "Gather"))  # fmt: skip
    quantizer.process()
    made = tmp_path / "made.onnx"
    onnx.save(quantizer.model.model, made)
    arrays = inputs_of(onnx.load(path), 7)

    for each in (made, optimize(made)):
        for a, b in zip(compiled(each, arrays), peer(made, arrays), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
