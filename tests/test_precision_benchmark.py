"""The precision tables: who takes part and with what, what is compared, and what the page says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import precision, zoo
from benchmarks.precision import BF16, INT8, INT8_BF16, ISAS, Job, entrants, exact_outputs, held_target, measure
from benchmarks.precision_report import WIDE, Entrant, PrecisionRow, as_line, as_markdown, read_rows, summary, update
from tc.measure.harness import Plan, Ratio
from tc.measure.runtimes import Runtime
from tc.target import Target

pytest.importorskip("onnxruntime")

QUICK = Plan(slot_seconds=0.001, settle_seconds=0.0, budget_seconds=0.2, min_rounds=2, max_rounds=2)


def job(kind: str = INT8, model: str = "digits", isa: str = "", peers: tuple[str, ...] = ("onnxruntime",)) -> Job:
    return Job(kind, model, 1, isa, QUICK, peers, tries=0)


def row(model: str, peer: float, wide: float, compile_seconds: float, kind: str = INT8) -> PrecisionRow:
    ratios = {
        "onnxruntime": Ratio(peer, peer, peer),
        "openvino": Ratio(peer + 1, peer, peer),
        WIDE: Ratio(wide, wide, wide),
    }
    found = {"tc": Entrant("1", "f32", 1e-3, 0.1, compile_seconds), WIDE: Entrant("1", "f32", 2e-3, None, 2.0)}
    return PrecisionRow(
        kind, model, 1, "", found | {"onnxruntime": Entrant("2", "f32", 3e-3, 0.2)}, ratios, 5, "d", "c", "cpu"
    )


def test_everybody_computes_the_quantized_network_and_tc_its_twin_as_well(rng: np.random.Generator) -> None:
    arrays = zoo.random_inputs("digits_qdq", rng)

    found = measure(job(), arrays, exact_outputs("digits_qdq", arrays))

    assert {name: each.problem for name, each in found.entrants.items()} == {"tc": "", WIDE: "", "onnxruntime": ""}
    assert set(found.ratios) == {WIDE, "onnxruntime"}
    assert found.best_peer() == "onnxruntime"
    assert found.rounds == 2
    assert found.entrants["tc"].error < 1e-2


def test_a_peer_whose_results_are_wrong_is_named_and_not_compared(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = zoo.random_inputs("digits_qdq", rng)
    exact = exact_outputs("digits_qdq", arrays)

    def load(path: Path, threads: int) -> Runtime:
        return Runtime("onnxruntime", "9", 0.0, lambda _: [-array for array in exact], lambda _: lambda: None)

    monkeypatch.setattr(precision, "load_onnxruntime", load)

    found = measure(job(), arrays, exact)

    assert found.entrants["onnxruntime"].problem == "corrupt: its error is 2"
    assert set(found.ratios) == {WIDE}
    assert found.best_peer() is None


def test_names_of_networks_and_precisions_follow_the_kind() -> None:
    kinds = {
        kind: {name: network for name, (network, _) in entrants(job(kind)).items()} for kind in (INT8, INT8_BF16, BF16)
    }

    assert kinds[INT8] == kinds[INT8_BF16] == {"tc": "digits_qdq", WIDE: "digits", "onnxruntime": "digits_qdq"}
    assert kinds[BF16] == dict.fromkeys(("tc", WIDE, "onnxruntime"), "digits")


def test_a_held_target_goes_without_what_it_is_held_from() -> None:
    full = Target.parse("x86-64-v4")
    full = replace(full, features=(*full.features, "amx-int8", "avx512bf16", "avx512vnni"))

    vnni, avx2 = (held_target(full, ISAS[name]) for name in ("vnni", "avx2"))

    assert set(full.features) - set(vnni.features) == {"amx-int8", "avx512bf16"}
    assert not any(feature.startswith(("amx", "avx512")) for feature in avx2.features)
    assert (vnni.vector_bits, avx2.vector_bits) == (512, 256)
    assert held_target(full, ISAS[""]) is full


def test_rows_are_kept_and_replaced_by_what_they_are_about(tmp_path: Path) -> None:
    update(tmp_path, [row("a", 1.0, 2.0, 1.0), row("b", 1.0, 2.0, 1.0)])
    update(tmp_path, [row("a", 3.0, 4.0, 5.0), row("a", 1.0, 1.0, 1.0, BF16)])

    rows = read_rows(tmp_path / "PRECISION.json")

    assert [(each.kind, each.model, each.ratios[WIDE].median) for each in rows] == [
        (INT8, "a", 4.0),
        (INT8, "b", 2.0),
        (BF16, "a", 1.0),
    ]
    assert (
        "| a | 1.00 f32 | 2.00 f32 | 3.00 f32 | 3.00 [3.00, 3.00] onnxruntime | 4.00 [4.00, 4.00] | 2.50 |"
        in (tmp_path / "PRECISION.md").read_text()
    )


def test_a_summary_has_means_and_the_worst() -> None:
    assert summary([row("a", 2.0, 4.0, 1.0), row("b", 0.5, 1.0, 4.0)]) == [
        "Best peer / tc: 2 networks, geometric mean 1.00, worst 0.50 (b).",
        "Own f32 / tc: 2 networks, geometric mean 2.00, worst 1.00 (b).",
        "Compiling / own f32: 2 networks, geometric mean 1.00, worst 2.00 (b).",
    ]


def test_problems_stand_below_the_table() -> None:
    bad = replace(
        row("a", 1.0, 1.0, 1.0),
        entrants={"tc": Entrant("1", "f32", 1e-3), "openvino": Entrant(problem="corrupt: its error is 1.4")},
    )

    assert "- a, openvino: corrupt: its error is 1.4" in as_markdown([bad])
    assert "openvino: corrupt: its error is 1.4" in as_line(bad)
