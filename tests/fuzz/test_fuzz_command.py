"""`tc fuzz` and `tc reduce` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tc.cli import main

pytest.importorskip("onnxruntime")


def test_fuzz_reports_what_came_of_each_model_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = main(["fuzz", "--seed", "1", "--count", "3", "--json", "--folder", str(tmp_path)])

    report = json.loads(capsys.readouterr().out)
    assert code == 0
    assert report["models"] == sum(report["kinds"].values()) == 3
    assert report["operators"] and not report["failures"] and not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", (["--count", "0"], ["--budget", "soon"], ["--processes", "0"], ["--seed", "-1"]))
def test_fuzz_refuses_requests_that_mean_nothing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", *arguments]) == 1
    assert arguments[0] in capsys.readouterr().err


def test_fuzz_refuses_a_precision_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--precision", "fp4"]) == 1
    assert 'precision "fp4" is not known' in capsys.readouterr().err


def test_reduce_says_that_a_model_does_not_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fine.onnx"
    onnx.save(onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) { y = Neg(x) }'), path)
    np.savez(tmp_path / "fine.npz", x=np.ones(3, np.float32))

    code = main(["reduce", str(path), "--inputs", str(tmp_path / "fine.npz")])

    assert code == 0
    assert "does not fail: ok" in capsys.readouterr().out


def test_reduce_refuses_what_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.onnx").write_text("hello")

    assert main(["reduce", str(tmp_path / "text.onnx")]) == 1
    assert "text.onnx: this is not an ONNX model" in capsys.readouterr().err


def test_reduce_says_with_a_code_that_a_file_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reduce", str(tmp_path / "none.onnx")]) == 1
    assert "there is no file" in (said := capsys.readouterr().err) and "none.onnx' (tc explain TC1002)" in said
