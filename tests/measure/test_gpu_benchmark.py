"""`benchmarks.gpu` without a GPU: models in 16-bit floats, states that survive, rows on an OpenCL device, reports that invent nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from benchmarks import gpu, gpu_report, half
from benchmarks.gpu_rows import ROWS, Settings, relative_error
from benchmarks.onnx_builder import F32, OnnxBuilder
from tc.codegen.cuda import compile as cuda_compile
from tc.errors import DeviceError
from tests.opencl_driver import need_opencl


def angles() -> onnx.ModelProto:
    g = OnnxBuilder("angles")
    x = g.input("x", TensorProto.INT64, (4, 1))
    wide = g.op("Mul", g.op("Cast", x, to=F32), g.const(np.array([[1.0, 0.1]])))
    masked = g.op("Add", g.op("Cos", wide), g.const(float(np.finfo(np.float32).min)))
    g.output(g.op("Max", masked, g.weight("w", np.full((4, 2), 0.5, np.float32))), "y", F32, (4, 2))
    return g.model()


def test_models_become_half_but_for_what_leads_to_angles() -> None:
    made = half.to_half(angles())

    types = {value.name: value.type.tensor_type.elem_type for value in onnx.shape_inference.infer_shapes(made).graph.value_info}
    assert types["Mul_0_output_0"] == types["Cos_0_output_0_wide"] == TensorProto.FLOAT
    assert types["Cos_0_output_0"] == types["Add_0_output_0"] == TensorProto.FLOAT16
    assert made.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    (mask,) = [node for node in made.graph.node if node.op_type == "Constant" and onnx.numpy_helper.to_array(node.attribute[0].t).ndim == 0]
    assert onnx.numpy_helper.to_array(mask.attribute[0].t) == np.float16(-65504)


@pytest.mark.parametrize("name", sorted(half.SMALL))
def test_torch_runs_the_graph_that_tc_runs(name: str) -> None:
    torch, runtime = pytest.importorskip("torch"), pytest.importorskip("onnxruntime")
    from benchmarks.torch_graph import torch_module

    model = half.entry(name).make()
    arrays = half.random_inputs(model, half.entry(name).fill)

    found = torch_module(model, "cpu")(*map(torch.from_numpy, arrays.values()))

    expected = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, arrays)
    assert relative_error([each.float().numpy() for each in found], expected) < 0.005


def test_torch_compiles_a_whole_graph_as_one() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.torch_graph import torch_module

    module, x = torch_module(half.to_half(angles()), "cpu"), torch.arange(4)[:, None]

    (traced,) = torch.compile(module, backend="eager", fullgraph=True)(x)

    assert traced.dtype == torch.float16 and torch.equal(traced, module(x)[0])


def test_a_state_leaves_out_what_a_killed_command_did_not_finish(tmp_path: Path) -> None:
    state = gpu.State(tmp_path)
    state.add({"row": "a", "right": True})
    state.add({"row": "b", "problem": "MissingError: torch is not installed"})
    with open(state.path, "ab") as file:
        file.write(b'{"row": "c", "rig')

    before = gpu.State(tmp_path).results()
    state.add({"row": "a", "right": False})

    assert sorted(before) == ["a", "b"] and before["a"]["right"] is True
    assert state.path.read_bytes().count(b"\n") == 3 and state.results()["a"]["right"] is False
    assert list(gpu.pending(state, ["a", "b", "c"])) == ["b", "c"]


def test_rows_are_measured_on_a_device_and_a_second_command_finds_them_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_opencl()
    command = ["--state", str(tmp_path), "--target", "opencl", "--minutes", "3", "--rows", "check/small_chain", "peak/copy"]

    assert gpu.main(command) == 0
    first = capsys.readouterr().out
    assert gpu.main([*command, "--rows", "check/small_chain"]) == 0
    second = capsys.readouterr().out
    assert gpu.main([*command, "--report", str(tmp_path / "RESULTS")]) == 0

    assert "check/small_chain" in first and "right, error" in first and "peak/copy" in first
    assert second == "0 of 1 rows are left\n"
    data = json.loads((tmp_path / "RESULTS.json").read_text())
    assert data["peaks"] == {}
    assert {row["row"]: "problem" in row for row in data["results"]} == {"check/small_chain": False, "peak/copy": True}
    text = (tmp_path / "RESULTS.md").read_text()
    assert "MissingError: torch has no CUDA device" in text or "torch is not installed" in text


def test_parts_of_peaks_stand_only_beside_what_was_measured(tmp_path: Path) -> None:
    row = {"row": "kernel/add", "seconds": {"tc": 2e-3}, "flops": 4e9, "bytes": 1e9, "ratios": {"copy": [1.1, 1.0, 1.2]}}
    copy = {"row": "peak/copy", "bytes_per_second": 1e12}

    gpu_report.write(tmp_path / "R", {"kernel/add": row, "peak/copy": copy}, ["peak/copy", "kernel/add", "kernel/softmax"])

    assert gpu_report.fractions(row, gpu_report.peaks({"peak/copy": copy})) == {"bandwidth": 0.5}
    lines = (tmp_path / "R.md").read_text().splitlines()
    assert "| kernel/add | tc 2 ms, 1.10x [1.00, 1.20] copy |  | 0.50 |  |  |" in lines
    assert "| kernel/softmax | not measured |  |  |  |  |" in lines


def test_every_model_and_kernel_has_rows_and_settings_travel_as_text() -> None:
    settings = Settings("cuda", 60.0, "", "state")

    assert Settings.from_json(settings.to_json()) == settings
    assert {f"check/{name}" for name in (*half.MODELS, *half.KERNELS, *half.SMALL)} <= ROWS.keys()
    assert {f"model/{name}" for name in half.MODELS} | {"launch/graph", "peak/matmul"} <= ROWS.keys()
    assert not any(ROWS[name].is_tuned for name in gpu.chosen_rows([], Settings("cuda", 0.0, "", "")))


def test_binaries_that_were_kept_are_taken_where_there_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compile, "_compiled_anew", lambda text, options: f"{options} {text}".encode())
    monkeypatch.setattr(cuda_compile, "_kept", None)
    cuda_compile.keep_binaries(tmp_path)
    made = cuda_compile.compile_cuda("kernel", "--gpu-architecture=sm_80")
    monkeypatch.undo()
    monkeypatch.setattr(cuda_compile, "compiler", lambda: "")
    monkeypatch.setattr(cuda_compile, "_kept", tmp_path)

    assert cuda_compile.compile_cuda("kernel", "--gpu-architecture=sm_80") == made
    with pytest.raises(DeviceError, match="CUDA-C is compiled by NVRTC or nvcc, and neither is here"):
        cuda_compile.compile_cuda("kernel", "--gpu-architecture=sm_90a")
