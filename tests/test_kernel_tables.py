"""Tables of kernels: what is measured is right, rows are kept, page and picture say what the rows say. No test asks for a time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import kernel_report, kernel_tables, native_kernels
from benchmarks.kernel_report import KernelRow
from tc.measure.harness import Plan, Ratio
from tc.measure.machine import FORK_JOIN_JOBS, fma_limit, fork_join_programs, stream_limit
from tc.target import native_target

QUICK = Plan(slot_seconds=1e-4, settle_seconds=1e-4, budget_seconds=0, min_rounds=2, max_rounds=2)


def row(name: str = "k", peer: float = 2.0, limit: float = 0.5) -> KernelRow:
    return KernelRow(
        table="stream",
        name=name,
        threads=1,
        seconds={"tc": 1e-3, "onnxruntime": peer * 1e-3, "stream update": limit * 1e-3},
        shortest={"tc": 9e-4, "onnxruntime": peer * 9e-4, "stream update": limit * 9e-4},
        ratios={"onnxruntime": Ratio(peer, peer, peer), "stream update": Ratio(limit, 0.4, 0.6)},
        errors={"tc": 1e-6, "onnxruntime": 0.0},
        flops=10**6,
        size_bytes=4 * 10**6,
        limit="stream update",
        rule="elementwise",
        rounds=8,
        date="2030-01-02",
        commit="abc",
        cpu="cpu",
    )


def test_every_case_makes_a_model_whose_work_is_what_the_case_says() -> None:
    for case in kernel_tables.CASES:
        if case.table not in ("sgemm", "conv") or case.flops > 1e8:
            continue
        model = onnx.shape_inference.infer_shapes(case.make(np.random.default_rng(0)), strict_mode=True)
        shapes = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (*model.graph.input, *model.graph.output)
        }
        weights = {weight.name: list(weight.dims) for weight in model.graph.initializer}
        right = weights["w"] if "w" in weights else shapes["w"]
        terms = np.prod(right[1:]) if case.table == "conv" else right[0]

        assert case.flops == 2 * np.prod(shapes["y"]) * terms, case.name
        assert case.size_bytes == 4 * (np.prod(shapes["x"]) + np.prod(right) + np.prod(shapes["y"])), case.name


def test_names_of_cases_are_unique() -> None:
    names = [(case.table, case.name) for case in kernel_tables.CASES]

    assert len(set(names)) == len(names)


def test_a_matmul_gives_a_row_for_each_kind_of_right_operand() -> None:
    for package in ("onnxruntime", "torch", "threadpoolctl"):
        pytest.importorskip(package)
    case = kernel_tables.matmul_case(7, 20, 33)

    rows = kernel_tables.measure_case(case, 1, QUICK)

    assert [r.table for r in rows] == ["sgemm", "sgemm_constant"]
    for r in rows:
        assert r.peers == ("numpy", "torch")
        assert set(r.ratios) == {"numpy", "torch", "fma"}
        assert r.errors["tc"] < 1e-5


def test_a_kernel_is_measured_beside_peers_and_its_limit() -> None:
    for package in ("onnxruntime", "openvino", "threadpoolctl"):
        pytest.importorskip(package)
    case = kernel_tables.conv_case(4, 9, 5, 3, 2)

    (found,) = kernel_tables.measure_case(case, 1, QUICK)

    assert found.peers == ("onnxruntime", "openvino")
    assert found.limit == "fma"
    assert found.ratios["fma"].median > 0
    assert max(found.errors.values()) < 1e-5


def test_rows_are_kept_and_replaced(tmp_path: Path) -> None:
    kernel_report.update(tmp_path, [row("a"), row("b")])

    kernel_report.update(tmp_path, [dataclasses.replace(row("b"), rounds=99)])

    rows = kernel_report.read_rows(tmp_path / "KERNELS.json")
    assert [(r.name, r.rounds) for r in rows] == [("a", 8), ("b", 99)]
    assert rows[0] == row("a")


def test_the_page_judges_a_table_by_its_ratio_and_names_the_goal() -> None:
    failed = KernelRow("stream", "c", 1, {}, {}, {}, {}, problem="the measuring process died")

    text = kernel_report.as_markdown([row("a", limit=0.5), row("b", limit=0.98), failed])

    end = "0.50 [0.40, 0.60] stream update | 0.50 | 1e-06 | elementwise |"
    expected = "| a | 1.00 | 2.00 | 2.00 [2.00, 2.00] onnxruntime | 1 | 4.0 | " + end
    assert expected in text
    assert "2 rows: geometric mean 0.70, worst 0.50 (a); of the least times, geometric mean 0.70; the goal: worst 0.9." in text
    assert "- c: the measuring process died" in text
    assert "2030-01-02, commit abc, cpu" in text


def test_the_picture_is_drawn_and_small(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    kernel_report.draw([row("first kernel"), row("second kernel")], tmp_path / "k.svg")

    text = (tmp_path / "k.svg").read_text()
    assert "second kernel" in text
    assert len(text) < 200_000


def test_unknown_tables_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernel_tables.main(["sgemv"]) == 1
    assert "no table 'sgemv'" in capsys.readouterr().err


@pytest.mark.parametrize("threads", [1, 2])
def test_limits_count_what_they_do(threads: int) -> None:
    target = native_target()

    fma, update, read = fma_limit(target, threads), stream_limit(target, "update", 1 << 20, threads), stream_limit(target, "read", 1 << 20)

    for limit in (fma, update, read):
        limit.step()
    assert fma.flops % (2 * target.lanes(32)) == 0
    assert (update.flops, fma.size_bytes) == (0, 0)
    assert 0 < update.size_bytes <= 1 << 20
    assert 0 < read.size_bytes <= 1 << 20


def test_fork_join_programs_run() -> None:
    alone, together = fork_join_programs(2)

    alone.step()
    together.step()

    assert FORK_JOIN_JOBS > 0


def test_other_operators_have_three_sizes_each_which_a_seed_draws() -> None:
    names = native_kernels.names()
    drawn = native_kernels.names(3)

    assert len(set(names)) == len(names) == 3 * len(native_kernels.KERNELS)
    assert drawn == native_kernels.names(3)
    assert sum(a != b for a, b in zip(names, drawn, strict=True)) > 0.9 * len(names)
    for name in names[::3]:
        model, arrays, _, _ = native_kernels.make(name)
        assert [value.name for value in model.graph.input] == list(arrays), name


def test_peers_that_do_not_run_an_operator_are_named_beside_its_row(tmp_path: Path) -> None:
    for package in ("onnxruntime", "openvino", "threadpoolctl"):
        pytest.importorskip(package)

    (found,) = kernel_tables.measure_job("native", "trees: 2x3x2", 1, QUICK)

    assert found.peers == ("onnxruntime",)
    assert found.left_out == ("openvino does not run it",)
    kernel_report.update(tmp_path, [found])
    (kept,) = kernel_report.read_rows(tmp_path / "KERNELS.json")
    assert kept == found
    assert "- openvino does not run it: trees: 2x3x2" in kernel_report.as_markdown([kept])
    kernel_report.drop(tmp_path, "native", 1)
    assert not kernel_report.read_rows(tmp_path / "KERNELS.json")
