"""`tc bench`: what it measures is complete and says the right things. No test asks for a time."""

from __future__ import annotations

import json
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.console import Console

from benchmarks import kernels
from tc.cli import bench, main
from tc.cli.bench import parse_peers, parse_threads
from tc.errors import MeasureError, UserError
from tc.measure import compare
from tc.measure.harness import Plan
from tc.measure.machine import fma_limit
from tc.measure.runtimes import Runtime, RuntimeMissingError
from tc.target import native_target

QUICK = ("--seconds", "0.05", "--rounds", "2", "--threads", "1")
PLAN = Plan(slot_seconds=1e-4, settle_seconds=1e-4, budget_seconds=0, min_rounds=2, max_rounds=2)


@pytest.fixture
def conv(tmp_path: Path) -> Path:
    """A convolution of 4 channels on 9 by 9 pixels."""
    onnx.save(kernels.make_conv(np.random.default_rng(0), 4, 9), tmp_path / "conv.onnx")
    return tmp_path / "conv.onnx"


def bench_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict]:
    code = main(["bench", *map(str, arguments), *QUICK, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_model_is_measured_beside_the_peers(conv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")

    code, data = bench_json(capsys, conv, "--vs", "onnxruntime", "--kernels", "--shape", "x=1x4x9x9xf32")

    (run,) = data["runs"]
    assert code == 0
    assert set(run["results"]) == {"tc", "onnxruntime"}
    for result in run["results"].values():
        assert result["problem"] == ""
        assert result["error"] < 1e-5
        assert 0 < result["min_seconds"] <= result["median_seconds"]
        assert result["cold_seconds"] > 0
        assert result["peak_bytes"] > 0
    assert set(run["ratios"]) == {"onnxruntime"}
    taps, bias = 2 * 9 * 4 * 4 * 81, 4 * 81
    assert run["roofline"]["flops"] >= taps + bias
    assert {"tc", "onnxruntime"} == set(run["roofline"]["fractions"])
    assert sum(row["calls"] for row in run["kernels"]) >= 1
    assert sum(row["flops"] for row in run["kernels"]) == run["roofline"]["flops"]


def test_it_works_without_any_peer(
    conv: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "is_installed", lambda name: False)

    code, data = bench_json(capsys, conv)

    assert code == 0
    assert data["reference"] == "the reference interpreter"
    assert set(data["runs"][0]["results"]) == {"tc"}
    assert data["runs"][0]["results"]["tc"]["error"] < 1e-5


def test_results_beyond_the_tolerance_give_exit_code_3(conv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = bench_json(capsys, conv, "--vs", "none", "--tolerance", "-1")

    assert code == 3
    assert data["runs"][0]["results"]["tc"]["median_seconds"] > 0


def test_symbolic_dims_count_with_the_shape_that_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = kernels.make_elementwise("Relu", 1, 4, 8)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, tmp_path / "relu.onnx")

    _, data = bench_json(capsys, tmp_path / "relu.onnx", "--vs", "none", "--kernels", "--input", "x0=100x8xf32")

    (kernel,) = data["runs"][0]["kernels"]
    assert (kernel["flops"], kernel["size_bytes"]) == (800, 2 * 4 * 800)
    assert kernel["bound_by"] == "memory"


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_show_what_was_measured(width: int) -> None:
    ratio = {"median": 1.25, "low": 1.2, "high": 1.3}
    times = {"version": "1", "load_seconds": 0.01, "median_seconds": 0.002, "min_seconds": 0.001, "error": 1e-6}
    run = {
        "threads": 1,
        "rounds": 9,
        "results": {
            "tc": {**times, "problem": "", "cold_seconds": 0.5, "peak_bytes": 1 << 20, "precision": "f32"},
            "openvino": {**times, "problem": "", "cold_seconds": None, "peak_bytes": None, "precision": "f32"},
            "onnxruntime": {**dict.fromkeys(times), "version": "", "problem": "not measured: try: pip install onnxruntime"},
        },
        "ratios": {"openvino": ratio},
        "limits": {"flops_per_s": 2e11, "bytes_per_s": 1e10},
        "roofline": {
            "flops": 4 * 10**8,
            "size_bytes": 1 << 20,
            "seconds": 0.002,
            "bound_by": "compute",
            "fractions": {"tc": {**ratio, "median": 0.75}},
        },
        "kernels": [
            {
                "kernel": "conv_1",
                "rule": "contraction",
                "nodes": ["c"],
                "calls": 2,
                "seconds": 0.001,
                "flops": 10**8,
                "size_bytes": 10,
                "gflops_per_s": 100.0,
                "gbytes_per_s": 0.1,
                "bound_by": "compute",
                "of_bound": 0.5,
            },
            {"kernel": "ragged", "rule": "spatial", "nodes": ["r"], "calls": 1, "seconds": 0.001},
        ],
    }
    console = Console(width=width, record=True, force_terminal=True)

    bench.show(console, {"runs": [run], "inputs": {"x": "1x3xf32"}, "reference": "the reference interpreter"}, top=1)

    text = console.export_text()
    assert "1 thread, 9 rounds" in text
    assert "onnxruntime: not measured: try: pip install onnxruntime" in text
    assert "100.0 GFLOP/s  compute       0.50  conv_1" in text
    assert "1 more kernels take 1.00 ms" in text
    assert "400 MFLOP" in text
    assert ("1.25 [1.20, 1.30]" in text) == (width == 120)
    assert all(len(line) <= width for line in text.splitlines())


def test_peers_and_threads_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "available_cpus", lambda: 4)
    monkeypatch.setattr(bench, "is_installed", lambda name: name == "openvino")

    assert parse_peers(None) == ("openvino",)
    assert parse_peers("onnxruntime, tc") == ("onnxruntime",)
    assert parse_peers("none") == ()
    assert parse_threads("") == (1, 4)
    assert parse_threads("2, 1,2") == (2, 1)


@pytest.mark.parametrize("text", ["0", "5", "two", "1,", "-1"])
def test_bad_numbers_of_threads_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "available_cpus", lambda: 4)

    with pytest.raises(UserError, match="numbers from 1 to 4"):
        parse_threads(text)


def test_wrong_requests_are_refused(conv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled = tmp_path / "compiled.onnx"
    compiled.write_bytes(b"tcmodule")
    for arguments, words in (
        ((conv, "--vs", "abacus"), "there is no runtime 'abacus'; there are onnxruntime, openvino"),
        ((compiled,), "tc bench wants the ONNX file"),
        ((conv, "--seconds", "0"), "--seconds more than 0"),
    ):
        assert main(["bench", *map(str, arguments)]) == 1
        assert words in capsys.readouterr().err


def test_a_measuring_process_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr(bench, "run_apart", die)
    request = bench.BenchRequest(Path("m.onnx"), ("openvino",), 2, {}, (), {}, PLAN, False)

    with pytest.raises(MeasureError, match="died with tc, openvino on 2 threads"):
        bench.measure_apart(request)


def test_what_a_runtime_cannot_do_is_its_own_result() -> None:
    def missing(model: Path, threads: int) -> Runtime:
        raise RuntimeMissingError("no such package")

    def broken(model: Path, threads: int) -> Runtime:
        raise NotImplementedError("no kernel")

    def fine(model: Path, threads: int) -> Runtime:
        return Runtime("fine", "1", 0.5, lambda arrays: [np.ones(3)], lambda arrays: lambda: None)

    loaders = {"a": missing, "b": broken, "tc": fine, "c": fine}
    limit = fma_limit(native_target())

    found = compare.compare_runtimes(loaders, Path("m"), 1, {}, [np.array([1.0, 1.0, 2.0])], PLAN, [limit])

    assert found.results["a"].problem == "not measured: no such package"
    assert found.results["b"].problem == "failed: NotImplementedError: no kernel"
    assert found.results["tc"].error == 0.5
    assert set(found.ratios) == {"c"}
    assert found.timings is not None
    assert set(found.timings.names) == {"tc", "c", "fma"}
    assert found.rounds == 2


def test_nothing_is_timed_when_no_runtime_works() -> None:
    found = compare.compare_runtimes({}, Path("m"), 1, {}, [], PLAN)

    assert (found.results, found.ratios, found.rounds) == ({}, {}, 0)
