"""`--precision` and `--calibration` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tc.cli.main import main
from tests.frontend.models import make_model, node


@pytest.fixture
def model(tmp_path: Path) -> Path:
    w = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32) / 6
    nodes = [node("MatMul", "x w", "a"), node("Tanh", "a", "b"), node("MatMul", "b w", "y")]
    proto = make_model(nodes, {"x": (np.float32, [4, 32])}, ["y"], {"w": w})
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    batch = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)
    np.savez(tmp_path / "batch.npz", x=batch)
    return tmp_path / "m.onnx"


def test_inspect_lists_how_nodes_are_computed_before_and_after_compiling(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(model), "--precision", "bf16", "--json"]) == 0
    before = json.loads(capsys.readouterr().out)["precision"]
    assert main(["compile", str(model), "--precision", "bf16", "-o", str(model.with_suffix(".tcm"))]) == 0
    capsys.readouterr()
    assert main(["inspect", str(model.with_suffix(".tcm")), "--json"]) == 0
    after = json.loads(capsys.readouterr().out)["precision"]

    assert before["asked"] == after["asked"] == "bf16"
    assert before["nodes"] == after["nodes"]
    assert [(each["op"], each["computed"], each["stored"]) for each in before["nodes"]] == [
        ("matmul", "bf16", "bf16"),
        ("tanh", "f32", "bf16"),
        ("matmul", "bf16", "f32"),
    ]
    assert main(["inspect", str(model), "--precision", "bf16"]) == 0
    assert "computed in" in capsys.readouterr().out


def test_run_takes_calibration_from_files_and_folders(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for precision, where in (("f16", model.parent / "batch.npz"), ("mixed:0.5", model.parent)):
        code = main(["run", str(model), "--precision", precision, "--calibration", str(where), "--json"])

        assert code == 0
        assert json.loads(capsys.readouterr().out)["outputs"]["y"]["shape"] == "4x32xf32"


def test_what_cannot_be_done_is_an_error_of_the_user(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled = str(model.with_suffix(".tcm"))
    assert main(["compile", str(model), "-o", compiled]) == 0
    (model.parent / "empty").mkdir()

    for arguments, words in (
        (["run", str(model), "--precision", "f17"], '"f17" is not known'),
        (["run", str(model), "--precision", "f16"], "--calibration PATH"),
        (["run", str(model), "--precision", "f16", "--calibration", str(model.parent / "empty")], "holds no .npz or .npy file"),
        (["run", compiled, "--precision", "bf16"], "is compiled already"),
        (["inspect", compiled, "--precision", "bf16"], "is compiled already"),
    ):
        capsys.readouterr()
        assert main(arguments) == 1
        assert words in capsys.readouterr().err.replace("\n", " ")
