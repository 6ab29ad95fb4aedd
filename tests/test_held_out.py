"""Held-out shapes: a seed draws the same kernels each time, rows are kept and not measured twice, the page says what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import drawn_kernels, held_out, held_out_report


def row(name: str = "plain", ratio: float = 0.5, is_open: bool = True) -> dict[str, Any]:
    return {
        "seed": 3,
        "class": "product",
        "name": name,
        "shape": "a[2 x 3]",
        "sizes": {"rows": 2},
        "is_open": is_open,
        "wrong": "",
        "trials": {"new": 7},
        "default_seconds": 2e-6,
        "ratio": [ratio, 0.9 * ratio, 1.1 * ratio],
        "tuner": "new",
        "differing": {"s0/rows": [8, 4]},
        "date": "2030-01-02",
        "commit": "abc",
        "cpu": "cpu",
        "features": "avx2",
        "versions": {"tc": "1"},
    }


def test_a_seed_draws_the_same_kernel_again_and_another_seed_another_one() -> None:
    first, again, other = (drawn_kernels.draw("convolution", "3x3", seed) for seed in (5, 5, 6))

    assert first.model == again.model
    assert first.shape != other.shape


@pytest.mark.parametrize("kind", drawn_kernels.RECIPES)
def test_every_recipe_draws_a_model_that_its_inputs_fit(kind: str) -> None:
    for name in drawn_kernels.RECIPES[kind]:
        drawn = drawn_kernels.draw(kind, name, 7)

        for info in drawn.model.graph.input:
            dims = info.type.tensor_type.shape.dim
            assert drawn.arrays[info.name].shape == tuple(drawn.sizes.get(dim.dim_param, dim.dim_value) for dim in dims), name
        assert bool(drawn.sizes) == ("symbolic" in name), name


def test_a_search_is_kept_and_not_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--seed", "3", "--trials", "3", "--jobs", "1", "--only", "transpose 10", "--most", "2", "--output", str(tmp_path)]

    held_out.main(arguments)
    first = (tmp_path / "HELD_OUT.json").read_text()
    held_out.main(arguments)

    rows = json.loads(first)["rows"]
    assert [(r["class"], r["name"], r["wrong"]) for r in rows] == [
        ("data movement", "transpose 10", ""),
        ("data movement", "transpose 10 of bytes", ""),
    ]
    assert all(0 < r["ratio"][0] < 2 and r["default_seconds"] > 0 and 0 < r["trials"]["new"] <= 3 for r in rows)
    assert (tmp_path / "HELD_OUT.json").read_text() == first
    assert len(capsys.readouterr().out.splitlines()) == 2
    held_out.main([*arguments, "--retime"])
    again = json.loads((tmp_path / "HELD_OUT.json").read_text())["rows"]
    assert [sorted(w["trace"] for w in r["winners"]) for r in again] == [sorted(w["trace"] for w in r["winners"]) for r in rows]
    assert [r["trials"] for r in again] == [r["trials"] for r in rows]


def test_the_page_counts_no_more_than_one_and_only_what_has_choices() -> None:
    text = held_out_report.as_markdown([row("a", 0.5), row("b", 1.2), row("c", 0.1, is_open=False)])

    assert "| product | 2 | 0.707 | 0.50 (a) |" in text
    assert "| product: a | a[2 x 3], rows=2 | 2.0 | 0.50 [0.45, 0.55] | 7 | s0/rows 8 -> 4 |" in text
    assert "| product: c | a[2 x 3], rows=2 | 2.0 | one schedule | 7 |" in text
    assert "2030-01-02, commit abc, cpu, avx2; tc 1" in text
