from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import tc
from tc import target
from tc.cli import doctor, main
from tc.codegen import backends
from tc.codegen.backend import Language
from tc.codegen.cuda.compile import toolkit_program
from tc.codegen.llvm.backend import CPU
from tc.demo import MODEL_PATH
from tc.errors import UserError
from tc.runtime.texts import file_stems
from tc.target.device import device_called


def test_doctor_lists_the_devices_that_are_there_with_their_facts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_driver() -> int:
        raise UserError("cuda: no driver here")

    monkeypatch.setattr(doctor, "cuda_count", no_driver)
    monkeypatch.setattr(doctor, "opencl_devices", lambda: ("a device", "another"))
    monkeypatch.setattr(doctor, "opencl_driver_name", lambda number: f"driver {number}")
    monkeypatch.setattr(target, "_DETECTION", {"opencl": lambda number: replace(device_called("opencl", "generic"), processors=number + 3)})

    devices = doctor.device_facts()

    assert devices["cuda"] == {"found": [], "problem": "cuda: no driver here"}
    assert [(each["target"], each["driver"], each["facts"]["processors"]) for each in devices["opencl"]["found"]] == [
        ("opencl:0", "driver 0", 3),
        ("opencl:1", "driver 1", 4),
    ]
    assert main(["doctor"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "no driver here" in text
    assert "rocm devices none is looked for; kernels are written as text for gfx90a, gfx942" in text
    assert "opencl:1: generic (generic device; driver 1), 4 processors, 1.0 GiB, 32.0 KiB shared and at most 256 threads a block" in text


def test_doctor_says_how_to_get_programs_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\necho no version\necho gcc 99.1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    tools = doctor.tool_facts()

    assert (tools["gcc"]["path"], tools["gcc"]["version"]) == (str(compiler), "gcc 99.1")
    assert tools["ptxas"]["path"] is None
    assert doctor.describe_tool("ptxas", tools["ptxas"]).endswith("to get it: NVIDIA's CUDA toolkit")


def test_doctor_tells_of_a_device_for_which_no_code_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> None:
        raise UserError("cuda: of compute capability 7.0")

    monkeypatch.setattr(doctor, "cuda_count", lambda: 1)
    monkeypatch.setattr(doctor, "cuda_driver_name", lambda: "CUDA 13.0")
    monkeypatch.setattr(target, "_DETECTION", {"cuda": refuse})

    found = doctor.device_facts()["cuda"]["found"]

    assert [doctor.describe_device(device) for device in found] == ["cuda:0: cuda: of compute capability 7.0"]


# -- kernels as files


@pytest.fixture
def two_kernels(tmp_path: Path) -> Path:
    """A reduction, and a sum that needs all of it."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], name="soft", axis=-1),
        helper.make_node("ReduceSum", ["s", "axes"], ["y"], name="total", keepdims=0),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", ["n", 32]), ("y", [32])))
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [0])
    graph = helper.make_graph(nodes, "two", [x], [y], [axes])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "two.onnx")
    return tmp_path / "two.onnx"


PROGRAM = ("model.h", "model.c", "runtime.h", "runtime.c", "main.c", "weights.bin")
"""What a program in C has around its kernels."""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
@pytest.mark.parametrize(("target_text", "language", "suffix"), [("x86-64-v3", "asm", ".s"), ("c", "c", ".c")])
def test_compile_writes_a_file_for_each_kernel_the_plan_and_how_to_build_them(
    two_kernels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target_text: str, language: str, suffix: str
) -> None:
    folder = tmp_path / "kernels"

    assert main(["compile", str(two_kernels), "--target", target_text, "--emit", language, "-o", str(folder), "--json"]) == 0

    files = json.loads(capsys.readouterr().out)["files"]
    around = PROGRAM if language == "c" else ()
    kernels = [Path(name).stem for name in files if name.endswith(suffix) and name not in around]
    assert len(kernels) == 2
    expected = [*(f"{kernel}{suffix}" for kernel in kernels), "build.sh", "plan.txt", *around]
    assert sorted(path.name for path in folder.iterdir()) == sorted(files) == sorted(expected)
    assert set(re.findall(r"^(\w+)\(", (folder / "plan.txt").read_text(), re.MULTILINE)) == set(kernels)
    script = (folder / "build.sh").read_text()
    assert script.count("-c $kernel") == 1 and all(script.split().count(kernel) == 1 for kernel in kernels)
    subprocess.run(["sh", str(folder / "build.sh")], check=True, env={**os.environ, "OBJECTS": "not there"})
    assert {path.stem for path in folder.glob("*.o")} - {"model", "runtime", "main"} == set(kernels)
    assert all(re.search(rf"\btc_{kernel}\b", (folder / f"{kernel}{suffix}").read_text()) for kernel in kernels)


def test_names_of_files_are_plain_whatever_users_call_their_kernels(tmp_path: Path) -> None:
    names = ["../up", "a b", "A_b", "x" * 300, ""]

    stems = file_stems(names)

    assert list(stems.values()) == ["___up", "a_b", "A_b_1", "x" * 100, "kernel"]


def test_a_kernel_or_a_name_with_a_dot_is_written_to_one_file(tmp_path: Path) -> None:
    assert main(["compile", str(MODEL_PATH), "--emit", "scheduled", "-o", str(tmp_path / "all.tc")]) == 0
    assert main(["compile", str(MODEL_PATH), "--emit", "scheduled", "--kernel", "softmax", "-o", str(tmp_path / "one")]) == 0
    assert main(["compile", str(MODEL_PATH), "--emit", "scheduled", "-o", str(tmp_path)]) == 0

    kernel = (tmp_path / "softmax.tc").read_text()
    assert (tmp_path / "one").read_text() == kernel
    assert kernel in (tmp_path / "all.tc").read_text()
    assert not (tmp_path / "build.sh").exists() and "output 0" in (tmp_path / "plan.txt").read_text()


def test_a_language_that_the_target_is_not_written_in_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    language = Language(".c", lambda func, name, target: name, lambda file, target: f"cc {file}")
    made_up = replace(CPU, kind="npu", languages={"npu-c": language})
    monkeypatch.setattr(backends, "BACKENDS", (CPU, made_up))

    with pytest.raises(UserError, match=r"of the kind 'cpu' are written as llvm, asm; npu-c is for targets of the kind 'npu'"):
        tc.lower(str(MODEL_PATH), "npu-c")
    with pytest.raises(UserError, match=r"no stage 'ebcdic'; there are: graph, .*, plan, llvm, asm, npu-c"):
        tc.lower(str(MODEL_PATH), "ebcdic")
    with pytest.raises(UserError, match="the stage 'graph' is one text"):
        tc.lower(str(MODEL_PATH)).files()


@pytest.mark.parametrize(
    ("target_text", "language"),
    [
        ("x86-64-v3", "llvm"),
        ("x86-64-v3", "asm"),
        ("c", "c"),
        ("cuda:sm_80", "cuda"),
        ("cuda:sm_80", "ptx"),
        ("opencl:generic", "opencl"),
    ],
)
def test_names_of_nodes_stand_in_one_line_of_comment_whatever_they_are(tmp_path: Path, target_text: str, language: str) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 32]) for name in "xy")
    name = "a */ b\n#error injected\r/* c\u2028#error also\\"
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name=name)], "one", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    text = tc.lower(model, language, target_text).as_text()

    lines = text.splitlines()
    (where,) = [line for line in lines if "injected" in line]
    assert where == lines[0] and r"a * / b\n#error injected\r/ * c\u2028#error also" in where and not where.endswith("\\")
    assert where.startswith(("; ", "# ", "/* ", "// ")) and where.count("*/") == where.startswith("/*")


def test_tuning_for_a_device_that_is_not_here_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(MODEL_PATH), "--target", "cuda:sm_80", "--budget", "5s", "--db", str(tmp_path / "t.db")]) == 1

    assert "cuda: " in capsys.readouterr().err
    assert not (tmp_path / "t.db").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hip:gfx942", "unknown target 'hip:gfx942'; did you mean 'rocm:gfx942'? known are native"),
        ("sm_90", "unknown target 'sm_90'; did you mean 'cuda:sm_90'? known are native"),
        ("nvidia:sm_80,processors=56", "did you mean 'cuda:sm_80'?"),
        ("tpu", "unknown target 'tpu'; known are native"),
        ("znver4", "unknown target 'znver4'; did you mean 'x86-64-v4:machine=znver4'? known are native"),
        ("broadwell:cores=1", "did you mean 'x86-64-v3:machine=haswell'?"),
        ("generic", "did you mean 'opencl:generic'? known"),
    ],
)
def test_a_device_or_cpu_that_is_named_in_another_way_is_asked_for(text: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        tc.target.Target.parse(text)


def test_a_file_in_the_place_of_a_folder_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").touch()

    assert main(["compile", str(MODEL_PATH), "--target", "cuda:sm_80", "--emit", "cuda", "-o", str(tmp_path / "taken")]) == 1

    assert "taken: is a file; a file for each kernel needs a folder" in capsys.readouterr().err


def test_programs_of_the_toolkit_are_found_in_packages_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "site" / "nvidia" / "cu99" / "bin" / "nvdisasm"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    importlib.invalidate_caches()

    assert toolkit_program("nvdisasm") == str(program)
    assert toolkit_program("nvcc") is None


@pytest.mark.parametrize(
    ("target_text", "language", "program"),
    [
        ("cuda:sm_90", "cuda", "nvcc"),
        ("cuda:sm_90", "ptx", "ptxas"),
        ("opencl:generic", "opencl", "clang"),
        ("rocm:gfx942", "amdgpu", "clang"),
    ],
)
def test_the_build_lines_of_device_text_build_it(
    two_kernels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target_text: str, language: str, program: str
) -> None:
    folder = tmp_path / "kernels"
    assert main(["compile", str(two_kernels), "--target", target_text, "--emit", language, "-o", str(folder)]) == 0
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")

    subprocess.run(["sh", str(folder / "build.sh")], check=True)

    made = {path.stem for path in folder.iterdir() if path.suffix in (".cubin", ".bc", ".co")}
    assert made == {path.stem for path in folder.iterdir() if path.suffix in (".cu", ".ptx", ".cl", ".s")} != set()


def test_a_kernel_names_all_nodes_that_it_computes_and_the_plan_says_how_to_read_it() -> None:
    files = tc.lower(str(MODEL_PATH), "opencl", "opencl:generic").files()

    assert str(files["conv_add_relu.cl"]).startswith("/* computes conv_7; batchnormalization_8; add_9; relu_10 */\n")
    assert str(files["plan.txt"]).startswith("# What the host does")
