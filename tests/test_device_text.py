"""What compilers say of device text is read as it is meant, and a text that does not compile is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks import device_text
from benchmarks.device_text import DeviceFunction, operator_models, read_functions, threads_of
from tc.demo import MODEL_PATH
from tc.target.device import device_called

SAID = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'tc_a_1' for 'sm_80'
ptxas info    : Function properties for tc_a_1
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 8 bytes cumulative stack size, 4608 bytes smem, 376 bytes cmem[0]
ptxas info    : Compile time = 2.043 ms
ptxas info    : Compiling entry function 'tc_a_0' for 'sm_80'
ptxas info    : Function properties for tc_a_0
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, 360 bytes cmem[0]
"""
CUDA_TEXT = """
extern "C" __global__ void __launch_bounds__(256) tc_a_0(const f32 *__restrict__ x, i64 n) {
}
extern "C" __global__ void __launch_bounds__(512, 1) tc_a_1(f32 *y) {
}
"""
PTX_TEXT = """
.visible .entry tc_a_0(
\t.param .u64 .ptr .align 1 tc_a_0_param_0
)
.reqntid 128, 2, 1
{
}
.visible .entry tc_a_1(
)
.maxntid 64, 1, 1
{
}
"""


def test_threads_of_blocks_are_read_from_both_languages() -> None:
    assert dict(threads_of(CUDA_TEXT)) == {"tc_a_0": 256, "tc_a_1": 512}
    assert dict(threads_of(PTX_TEXT)) == {"tc_a_0": 256, "tc_a_1": 64}


def test_what_functions_take_is_read_from_assembly_that_tells_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["--targets", "rocm:gfx942", "--models", str(MODEL_PATH), "--output", str(tmp_path / "found.json")]

    assert device_text.main(command) == 0

    found = json.loads((tmp_path / "found.json").read_text())
    functions = [each for kernel in found for each in kernel["functions"]]
    assert {kernel["language"] for kernel in found} == {"amdgpu"} and len(functions) >= len(found) > 5
    assert all(each["registers"] > 0 and each["spill_bytes"] == 0 and each["blocks"] > 0 for each in functions)
    assert "0 do not compile, 0 spill" in capsys.readouterr().out


def test_registers_spills_and_shared_memory_are_read_of_each_function() -> None:
    found = list(read_functions(SAID, {"tc_a_1": 512}, device_called("cuda", "sm_80")))

    assert found == [
        DeviceFunction("tc_a_1", 128, 28, 8, 4608, 1),
        DeviceFunction("tc_a_0", 10, 0, 0, 0, None),
    ]


def test_operators_give_a_model_for_each_sample() -> None:
    names = [name for name, _ in operator_models(2)]

    assert {"add/0", "add/1", "matmul/0", "softmax/1"} <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.skipif(shutil.which("nvcc") is None or shutil.which("ptxas") is None, reason="no compiler for CUDA devices is here")
def test_the_command_compiles_each_kernel_and_tells_of_those_that_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 32]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="only")], "one", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "one.onnx")
    command = ["--models", str(tmp_path / "one.onnx"), "--targets", "cuda:sm_80", "--output", str(tmp_path / "found.json")]

    assert device_text.main(command) == 0

    rows = json.loads((tmp_path / "found.json").read_text())
    assert [(row["language"], len(row["functions"]), row["problem"]) for row in rows] == [("cuda", 1, ""), ("ptx", 1, "")]
    assert all(row["functions"][0]["blocks"] >= 1 and row["functions"][0]["spill_bytes"] == 0 for row in rows)
    monkeypatch.setitem(device_text.TELL, "cuda", "-Werror all-warnings --no-such-option")
    assert device_text.main(command) == 1
    assert "1 do not compile" in capsys.readouterr().out
