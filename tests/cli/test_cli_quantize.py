"""`tc quantize` on a small model: what is written, what is said, and what is left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tc.cli.main import main
from tests.quantization.small_nets import feeds_of, mlp


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the front takes is not what these tests are about."""
    monkeypatch.setattr("tc.quantization.quantize.MEASURE_SECONDS", 0.1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    rng = np.random.default_rng(0)
    model = mlp(rng)
    onnx.save(model, tmp_path / "model.onnx")
    (tmp_path / "calib").mkdir()
    for index, feed in enumerate(feeds_of(model, rng)):
        np.savez(tmp_path / "calib" / f"{index}.npz", **feed)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


USUAL = ("quantize", "model.onnx", "--data", "calib", "-o", "small.onnx", "--trials", "6", "--hardware", "vnni")
"""On any machine: times that cannot be measured here are predicted from the description."""


def test_a_model_is_written_with_a_report_and_a_front(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")

    code = main([*USUAL, "--report", "q.html", "--json"])

    data = json.loads(capsys.readouterr().out)
    assert code == 0
    assert data["ended"] == "budget" and data["trials"] == 6
    assert sum(point["chosen"] for point in data["points"]) == 1
    assert {"2 in f32", "2 in u8 x s8"} <= {point["products"] for point in data["points"]}
    onnx.checker.check_model(onnx.load("small.onnx"), full_check=True)
    assert "The front" in Path("q.html").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["calib", "model.onnx", "q.html", "small.onnx"]


def test_people_read_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*USUAL, "--max-error", "1e-6"])

    shown = capsys.readouterr()
    assert code == 0
    assert "written: small.onnx" in shown.out and "2 in u8 x s8" in shown.out and ("x as fast" in shown.out or "predicted" in shown.out)
    assert "calibrating" in shown.err
    kinds = {node.op_type for node in onnx.load("small.onnx").graph.node}
    assert "QuantizeLinear" not in kinds


def test_modes_without_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "model.onnx", "-o", "a.onnx", "--mode", "dynamic", "--granularity", "row"]) == 0
    assert main(["quantize", "model.onnx", "-o", "b.onnx", "--mode", "weights", "--bits", "4"]) == 0

    assert "MatMulInteger" in {node.op_type for node in onnx.load("a.onnx").graph.node}
    assert "DequantizeLinear" in {node.op_type for node in onnx.load("b.onnx").graph.node}
    assert "written: b.onnx" in capsys.readouterr().out


def test_a_metric_of_ones_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("metric.py").write_text(
        "import numpy as np\n"
        "X = np.random.default_rng(5).standard_normal((8, 16)).astype(np.float32)\n"
        "def size(predict):\n"
        "    return -float(np.abs(predict({'x': X})['y']).mean())\n"
    )

    code = main([*USUAL, "--metric", "metric.py:size", "--json"])

    assert code == 0
    assert all(point["metric"] < 0 for point in json.loads(capsys.readouterr().out)["points"])


def test_an_output_that_exists_stays_until_a_whole_one_takes_its_place(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("small.onnx").write_bytes(b"of yesterday")
    Path("metric.py").write_text("def gone(predict):\n    raise OSError('no labels')\n")

    failed = main([*USUAL, "--metric", "metric.py:gone"])
    after_failure = Path("small.onnx").read_bytes()
    done = main(["quantize", "model.onnx", "-o", "small.onnx", "--mode", "weights"])

    assert (failed, done) == (1, 0)
    assert after_failure == b"of yesterday"
    onnx.checker.check_model(onnx.load("small.onnx"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-o", "a.onnx", "--state", "no/s.jsonl"], "there is no folder 'no'"),
        (["-o", "model.onnx"], "that is the model itself"),
        (["-o", "calib"], "that is a folder"),
        (["-o", "calib/0.npz"], "-o calib/0.npz: that is in the folder of --data"),
        (["-o", "a", "--state", "a"], "--state a: that is what -o names"),
        (["-o", "a", "--report", "./a"], "--report a: that is what -o names"),
        (["-o", "a", "--state", "s", "--report", "s"], "--report s: that is what --state names"),
        (["-o", "a" * 300], "no file can have that name: File name too long"),
        (["-o", "a.onnx", "--max-error", "-1", "--metric", "m.py:f"], "max_error is -1.0, must not be negative"),
        (["-o", "a.onnx", "--max-error", "1", "--point", "0"], "--point: names the point"),
        (["-o", "a.onnx", "--mode", "dynamic", "--state", "s"], "--state: is for the mode 'static', not for 'dynamic'"),
        (["-o", "no/such/a.onnx"], "there is no folder"),
        (["-o", "a.onnx", "--data", "nothing"], "there is no such file or folder"),
        (["-o", "a.onnx", "--state", "calib"], "that is a folder"),
        (["-o", "a.onnx", "--metric", "m.py"], "must be of the form file.py:function"),
        (["-o", "a.onnx", "--metric", "m.py:f"], "there is no file 'm.py'"),
        (["-o", "a.onnx", "--keep", "tail*"], "no node's name or operator fits 'tail"),
        (["-o", "a.onnx", "--mode", "dynamic", "--max-error", "1"], "the mode 'dynamic' has none"),
        (["-o", "a.onnx", "--min-speedup", "1e9"], "no point is such"),
        (["-o", "a.onnx", "--point", "77"], "the front has"),
    ],
)
def test_a_wrong_request_writes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    before = Path("model.onnx").read_bytes()
    data = [] if "--data" in options or "dynamic" in options else ["--data", "calib"]

    code = main(["quantize", "model.onnx", *data, "--trials", "2", "--hardware", "vnni", *options])

    assert code == 1
    assert words in " ".join(capsys.readouterr().err.split())
    assert Path("model.onnx").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["calib", "model.onnx"]


def test_the_data_of_a_model_are_not_written_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They were, and the model read other weights then."""
    onnx.save(onnx.load("model.onnx"), "far.onnx", save_as_external_data=True, location="far.bin", size_threshold=0)
    before = Path("far.bin").read_bytes()

    for command in (["quantize", "--mode", "weights"], ["compile"]):
        assert main([command[0], "far.onnx", "-o", "far.bin", *command[1:]]) == 1
        assert "far.bin: that is data of the model; nothing was written" in " ".join(capsys.readouterr().err.split())

    assert Path("far.bin").read_bytes() == before
    assert main(["quantize", "far.onnx", "-o", "other.onnx", "--mode", "weights"]) == 0


def test_a_quantized_model_is_not_quantized_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["quantize", "model.onnx", "-o", "a.onnx", "--mode", "weights"])

    code = main(["quantize", "a.onnx", "-o", "b.onnx", "--mode", "weights"])

    assert code == 1 and not Path("b.onnx").exists()
    assert "the model is quantized already" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interruption_writes_the_best_so_far_and_the_search_goes_on(folder: Path) -> None:
    """The signal of the terminal, in a process of its own."""
    program = (
        "import os, signal, sys\n"
        "import tc.quantization.search as s\n"
        "old = s.Search._try\n"
        "def hit(self, *a, **k):\n"
        "    if len(self.trials) == 4: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return old(self, *a, **k)\n"
        "s.Search._try = hit\n"
        "from tc.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    arguments = [*USUAL, "--state", "s.jsonl"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=os.environ)

    assert done.returncode == 0 and "interrupted" in done.stdout and "goes on from here" in done.stdout
    assert Path("small.onnx").exists()
    lines = len(Path("s.jsonl").read_text().splitlines())
    assert lines == 2 + 4
    assert main(arguments) == 0
    assert len(Path("s.jsonl").read_text().splitlines()) == 2 + 6
