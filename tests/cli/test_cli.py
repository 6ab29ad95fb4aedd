"""Commands of `tc` on models."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tc
from tc.cli import doctor, main
from tc.cli.profile import by_kernel
from tc.demo import MODEL_PATH, load_heldout


def save_model(folder: Path, nodes: list[onnx.NodeProto], inputs: dict, outputs: dict, **options: object) -> Path:
    """A model of opset 17; inputs and outputs are name -> (element type, shape)."""
    values = [
        [helper.make_tensor_value_info(name, *description) for name, description in described.items()]
        for described in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "test", *values)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, **options)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.fixture
def affine(tmp_path: Path) -> Path:
    """y = x * x + x with x: f32[batch, 3]."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"], name="square"),
        helper.make_node("Add", ["square", "x"], ["y"], name="sum"),
    ]
    signature = (TensorProto.FLOAT, ["batch", 3])
    return save_model(tmp_path, nodes, {"x": signature}, {"y": signature})


@pytest.fixture
def with_unknown_operator(tmp_path: Path) -> Path:
    signature = (TensorProto.FLOAT, [3])
    nodes = [helper.make_node("Frobnicate", ["x"], ["y"], name="frob", domain="acme")]
    return save_model(tmp_path, nodes, {"x": signature}, {"y": signature})


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict]:
    code = main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_inspect_lists_the_signature_and_the_nodes(affine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = run_json(capsys, "inspect", affine)

    assert code == 0
    assert data["inputs"] == [{"name": "x", "shape": "batchx3xf32"}]
    assert data["outputs"] == [{"name": "y", "shape": "batchx3xf32"}]
    assert data["operators"] == {"Mul": 1, "Add": 1}
    assert [(node["name"], node["status"]) for node in data["nodes"]] == [("square", "native"), ("sum", "native")]


@pytest.mark.parametrize("columns", ["0", "1", "", "wide"])
def test_a_width_that_is_none_is_the_usual_one(
    affine: Path, columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)

    assert main(["inspect", str(affine)]) == 0
    assert "inputs" in capsys.readouterr().out.replace("\n", "")


def test_inspect_shows_a_refused_node_and_exits_with_2(
    with_unknown_operator: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(with_unknown_operator)]) == 2

    text = capsys.readouterr().out
    assert "frob" in text and "acme.Frobnicate" in text and "refused" in text


def test_run_computes_given_inputs_and_writes_results(
    affine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)

    code, data = run_json(capsys, "run", affine, "--input", tmp_path / "x.npy", "-o", tmp_path / "y.npz", "--repeat", 3)

    assert code == 0
    assert data["inputs"] == {"x": "2x3xf32"}
    assert data["outputs"]["y"]["values"] == (x * x + x).tolist()
    with np.load(tmp_path / "y.npz") as results:
        assert np.array_equal(results["y"], x * x + x)


@pytest.mark.parametrize("checker", ["interpreter", "onnxruntime"])
def test_run_checks_against_a_reference(affine: Path, checker: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = run_json(capsys, "run", affine, "--dims", "batch=5", "--check", checker)

    assert code == 0
    assert data["inputs"] == {"x": "5x3xf32"}
    assert data["check"]["errors"]["y"] <= 1e-6


def test_run_reports_a_difference_with_exit_code_3(affine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(affine), "--check", "onnxruntime", "--tolerance", "-1"]) == 3

    assert "output 'y' differs from onnxruntime" in capsys.readouterr().err


def test_random_inputs_follow_the_seed(affine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = [run_json(capsys, "run", affine, "--seed", seed)[1]["outputs"]["y"]["values"] for seed in (1, 1, 2)]

    assert results[0] == results[1] != results[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--input", "z=2x3xf32"], "the model has no such input; it has x"),
        (["--input", "missing.npy"], "missing.npy: cannot be read"),
        (["--input", "x=2x4xf32"], "dim 1 is 4"),
        (["--input", "x=2x3xf64"], "f64"),
        (["--target", "z80"], "unknown target 'z80'"),
        (["--threads", "0"], "--threads is 0"),
        (["--repeat", "0"], "--repeat is 0"),
        (["-o", "y.txt"], "written as .npz"),
        (["--dims", "batch"], "--dims"),
        (["--input", "x=2x3xf32", "--input", "x=4"], "--input x: given twice, as 2x3xf32 and 4"),
        (["--inputs", "/"], "/: cannot be read as an .npz file: Is a directory"),
        (["--inputs", __file__], "it is no such file, or holds Python objects"),
    ],
)
def test_run_refuses_bad_requests(
    affine: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(affine), *arguments]) == 1

    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "inspect", "compile"])
def test_damaged_and_missing_files_are_user_errors(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.onnx").write_bytes(MODEL_PATH.read_bytes()[:1000])

    assert main([command, str(tmp_path / "bad.onnx")]) == 1
    assert main([command, str(tmp_path / "none.onnx")]) == 1

    first, second = capsys.readouterr().err.strip().splitlines()
    assert "bad.onnx" in first and "none.onnx" in second


def test_run_names_an_unknown_operator_and_exits_with_2(
    with_unknown_operator: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(with_unknown_operator)]) == 2

    message = capsys.readouterr().err
    assert "frob" in message and "Frobnicate" in message


@pytest.mark.parametrize("stage", ["graph", "loops", "scheduled", "llvm", "asm"])
def test_compile_prints_every_stage(affine: Path, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(affine), "--emit", stage]) == 0

    text = capsys.readouterr().out
    marks = {"graph": "def ", "loops": "for ", "scheduled": "for ", "llvm": "define ", "asm": "ret"}
    assert marks[stage] in text


def test_compiled_modules_run_from_their_file(affine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = run_json(capsys, "compile", affine, "-o", tmp_path / "model.tcm")
    assert (code, data["size_bytes"]) == (0, (tmp_path / "model.tcm").stat().st_size)

    code, data = run_json(capsys, "run", tmp_path / "model.tcm", "--input", "x=2x3xf32")

    assert code == 0
    assert data["outputs"]["y"]["shape"] == "2x3xf32"


@pytest.fixture
def renamed(affine: Path, tmp_path: Path) -> Path:
    """A compiled module whose name does not tell."""
    tc.compile(affine).save(tmp_path / "compiled.onnx")
    return tmp_path / "compiled.onnx"


def test_compiled_modules_are_known_by_their_contents(renamed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = run_json(capsys, "run", renamed, "--dims", "batch=2", "--threads", 1, "--input", "x=2")
    assert (code, data["outputs"]["y"]["values"]) == (0, [[6.0] * 3] * 2)

    code, data = run_json(capsys, "inspect", renamed)
    assert (code, data["compiled"], data["dims"]) == (0, True, ["batch"])
    assert data["inputs"] == [{"name": "x", "shape": "batchx3xf32"}]
    assert [kernel["nodes"] for kernel in data["kernels"]] == [["square", "sum"]]
    assert main(["inspect", str(renamed)]) == 0
    assert "compiled module" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--target", "x86-64-v3"], "--target: .* is compiled already"),
        (["run", "--numerics", "strict"], "--numerics: .* is compiled already"),
        (["run", "--verify", "always"], "--verify: .* is compiled already"),
        (["run", "--on-unsupported", "error"], "--on-unsupported: .* is compiled already"),
        (["run", "--tune", "t.db"], "--tune: .* is compiled already"),
        (["run", "--check", "onnxruntime"], "no reference can read; --check wants the ONNX file"),
        (["run", "--dims", "seq=4"], "has no symbolic dim 'seq'; it has batch"),
        (["profile"], "no launch has a clock; tc profile wants the ONNX file"),
        (["bench"], "other runtimes cannot read; tc bench wants the ONNX file"),
        (["tune"], "tc tune wants the ONNX file"),
        (["compile"], "tc compile wants the ONNX file"),
    ],
)
def test_what_a_compiled_module_cannot_do_is_said(
    renamed: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([arguments[0], str(renamed), *arguments[1:]]) == 1

    assert re.search(words, capsys.readouterr().err)


def test_a_module_says_when_it_uses_fewer_threads_than_asked_for(
    affine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tc.compile(affine, threads=1).save(tmp_path / "m.tcm")

    assert main(["run", str(tmp_path / "m.tcm"), "--threads", "2"]) == 0

    assert "on 1 threads: the module was compiled for no more" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--input", "x=99999999999999999999x3xf32"], ["--dims", "batch=99999999999999"]])
def test_inputs_beyond_all_memory_exit_with_4(affine: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(affine), *arguments]) == 4

    assert "the limit is 137438953472" in capsys.readouterr().err


def test_dims_that_were_taken_as_1_are_named(affine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "run", affine)[1]["assumed_dims"] == ["batch"]
    assert run_json(capsys, "run", affine, "--dims", "batch=2")[1]["assumed_dims"] == []
    assert run_json(capsys, "run", affine, "--input", "x=2x3xf32")[1]["assumed_dims"] == []
    assert main(["run", str(affine)]) == 0
    assert "nothing is said of batch: taken as 1; --dims batch=N says otherwise" in " ".join(capsys.readouterr().out.split())


def test_an_error_over_dims_taken_as_1_hints_at_dims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [helper.make_node("Concat", ["x", "x"], ["xx"], axis=0), helper.make_node("Reshape", ["xx", "four"], ["y"], name="four rows")]
    x = (TensorProto.FLOAT, ["rows", 3])
    path = save_model(tmp_path, nodes, {"x": x}, {"y": (TensorProto.FLOAT, [4, 3])})
    model = onnx.load(path)
    model.graph.initializer.append(helper.make_tensor("four", TensorProto.INT64, [2], [4, 3]))
    onnx.save(model, path)

    assert main(["run", str(path)]) == 1

    assert "nothing is said of rows: taken as 1; --dims rows=N says otherwise" in capsys.readouterr().err
    assert main(["run", str(path), "--dims", "rows=2"]) == 0


def test_a_range_of_multiples_is_run_at_its_smallest(affine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = run_json(capsys, "run", affine, "--dims", "batch=1:64:8")

    assert (code, data["inputs"]["x"]) == (0, "8x3xf32")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "-o", "nowhere/y.npz"], "--output nowhere/y.npz: there is no folder 'nowhere'"),
        (["compile", "-o", "nowhere/m.tcm"], "--output nowhere/m.tcm: there is no folder 'nowhere'"),
        (["tune", "--report", "nowhere/r.html"], "--report nowhere/r.html: there is no folder 'nowhere'"),
        (["run", "--threads", "1000000"], "--threads is 1000000, must be at most 256"),
        (["tune", "--threads", "1000000"], "--threads is 1000000, must be at most 256"),
        (["run", "--seed", "-1"], "--seed is -1"),
        (["tune", "--seed", "-1"], "seed is -1"),
        (["tune", "--size", "batch=x"], "--size: 'batch=x'"),
        (["run", "--tolerance", "nan"], "--tolerance is nan"),
        (["bench", "--tolerance", "nan"], "--tolerance is nan"),
        (["compile", "--emit", "graph", "--tune", "t.db"], "--tune: not for --emit"),
    ],
)
def test_bad_requests_are_refused_before_any_work(
    affine: Path, arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tc.compiler.run_stages", refuse)
    monkeypatch.setattr("tc.autotune.tuning.import_model", refuse)

    assert main([arguments[0], str(affine), *arguments[1:]]) == 1

    assert words in capsys.readouterr().err


def test_a_stage_is_of_the_numerics_that_were_asked_for(affine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--emit took no notice of --numerics."""
    assert main(["compile", str(affine), "--emit", "scheduled"]) == 0
    usual = capsys.readouterr().out
    assert main(["compile", str(affine), "--emit", "scheduled", "--numerics", "strict"]) == 0

    assert "strict" in capsys.readouterr().out and "strict" not in usual


def test_passes_are_watched_from_the_command_line(affine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(affine), "--verify-each", "--print-after", "fuse_ops", "--timings"]) == 0
    out = capsys.readouterr().out

    assert "# after fuse_ops\n" in out and "main" in out
    for word in ("stages", "llvm", "passes", "lower_blocks", "schedule"):
        assert word in out

    assert main(["compile", str(affine), "--timings", "--json"]) == 0
    timings = json.loads(capsys.readouterr().out)["timings"]
    assert timings["calls"]["canonicalize"] == 2 and set(timings["calls"]) == set(timings["passes"])
    assert {"import", "graph passes", "schedule", "emit", "llvm", "link"} <= set(timings["stages"])


def test_other_passes_are_run_from_the_command_line(affine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(affine), "--passes", "canonicalize, fuse_ops", "--timings", "--json"]) == 0

    assert set(json.loads(capsys.readouterr().out)["timings"]["passes"]) & {"canonicalize", "simplify_graph"} == {"canonicalize"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--print-after", "fuse_opps"], "--print-after: no pass 'fuse_opps'; there are: "),
        (["--passes", "canonicalize"], "fuse_ops is missing"),
        (["--passes", "canonicalize, fuse_opps"], "no pass 'fuse_opps'"),
        (["--emit", "graph", "--timings"], "are not for --emit"),
    ],
)
def test_passes_that_are_not_there_are_refused(
    affine: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(affine), *arguments]) == 1

    assert words in capsys.readouterr().err


def test_arrays_from_git_lfs_are_called_by_their_name(affine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x.npy", "x.npz"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")

    assert main(["run", str(affine), "--input", str(tmp_path / "x.npy")]) == 1
    assert main(["run", str(affine), "--inputs", str(tmp_path / "x.npz")]) == 1

    assert capsys.readouterr().err.count("it is a Git LFS pointer") == 2


def test_a_kernel_without_a_stage_is_refused(affine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(affine), "--kernel", "k"]) == 1

    assert "--kernel: needs --emit" in capsys.readouterr().err


def test_models_compile_strictly_and_verified(affine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = run_json(capsys, "run", affine, "--numerics", "strict", "--verify", "always", "--check", "interpreter")

    assert code == 0
    assert max(data["check"]["errors"].values()) <= 1e-6


def test_profile_times_every_launch(affine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = run_json(capsys, "profile", affine, "--repeat", "2", "--threads", "1")

    assert (code, data["calls"], data["threads"]) == (0, 2, 1)
    assert data["rows"] and all(row["seconds"] > 0 and row["node"] and row["kernel"] for row in data["rows"])
    assert data["seconds"] == pytest.approx(sum(row["seconds"] for row in data["rows"]))


def test_profile_adds_up_the_launches_of_a_kernel() -> None:
    rows = [
        {"node": "a", "kernel": "k", "rule": "r", "calls": 1, "seconds": 2.0},
        {"node": "b", "kernel": "l", "rule": "r", "calls": 1, "seconds": 2.5},
        {"node": "c", "kernel": "k", "rule": "r", "calls": 1, "seconds": 1.0},
    ]

    assert by_kernel(rows) == [
        {"node": "a, c", "kernel": "k", "rule": "r", "calls": 2, "seconds": 3.0},
        {"node": "b", "kernel": "l", "rule": "r", "calls": 1, "seconds": 2.5},
    ]


def test_profile_shows_the_slowest_rows(affine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(MODEL_PATH), "--top", "1", "--repeat", "1"]) == 0

    text = capsys.readouterr().out
    assert "more rows take" in text and "mean of 1 calls" in text


@pytest.mark.parametrize("arguments", [["--repeat", "0"], ["--top", "-1"]])
def test_profile_refuses_bad_requests(affine: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(affine), *arguments]) == 1

    assert arguments[0] in capsys.readouterr().err


def test_demo_reads_the_heldout_digits(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = run_json(capsys, "demo")

    assert code == 0
    assert data["accuracy"] >= 0.98
    assert data["digits"] == len(load_heldout()[1])
    assert data["reference"]["largest_error"] <= 1e-4 and data["reference"]["same_predictions"]
    assert any("conv" in group and "relu" in group for group in data["fused"])


def test_demo_shows_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--pictures", "2"]) == 0

    text = capsys.readouterr().out
    assert "█" in text
    assert "accuracy" in text and "reference interpreter" in text


def test_doctor_finds_nothing_wrong_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TC_CACHE_DIR", str(tmp_path / "cache"))

    code, data = run_json(capsys, "doctor")

    assert (code, data["problems"]) == (0, [])
    assert data["cache"]["folder"].startswith(str(tmp_path))
    assert data["versions"]["numpy"] == np.__version__
    assert all(seconds > 0 for seconds in data["threads"]["fork_join_seconds"].values())
    assert main(["doctor"]) == 0


def test_doctor_reports_a_cache_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    facts = doctor.cache_facts(tmp_path / "file" / "cache")

    assert "Not a directory" in facts["problem"] and "compiled anew" in facts["problem"]


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write everywhere")
def test_doctor_reports_a_read_only_cache_folder(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)

    assert "Permission denied" in doctor.cache_facts(tmp_path)["problem"]


def test_the_reader_may_leave_early() -> None:
    command = f"{sys.executable} -m tc inspect --nodes {MODEL_PATH} | head -n 1"

    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
