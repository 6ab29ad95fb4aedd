"""Hardware descriptions are data that is checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tc.errors import UserError
from tc.quantization.description import describe_hardware
from tc.target import Target

X86 = Target()


@pytest.mark.parametrize(
    ("features", "name"),
    [
        ((), "plain"),
        (("avx512vnni",), "vnni"),
        (("avxvnni",), "vnni"),
        (("avx512bf16", "avx512vnni"), "vnni_bf16"),
        (("amx-bf16", "amx-int8", "avx512bf16", "avx512vnni"), "amx"),
    ],
)
def test_a_target_gets_the_description_of_its_features(features: tuple[str, ...], name: str) -> None:
    found = describe_hardware(None, Target(features=features))

    assert found.name == name
    assert found.describes(Target(features=features))
    for op in ("Conv", "Gemm", "MatMul", "Add"):
        rows = found.combinations(op)
        assert rows[-1].is_float and rows[-1].cost == 1.0 and not rows[0].is_float
        assert [row.cost for row in rows] == sorted(row.cost for row in rows)


def test_an_accelerator_is_no_target() -> None:
    found = describe_hardware("power_of_two", X86)

    assert found.is_power_of_two and "Add" in found.shared and not found.describes(X86)


def test_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    rows = [{"operands": ["s8", "s8"], "cost": 0.5}, {"operands": ["f32"], "cost": 1}]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"mine": {"title": "my board", "operators": {"MatMul": rows}}}))

    found = describe_hardware(path, X86)

    assert (found.name, found.title) == ("mine", "my board")
    assert [row.label for row in found.combinations("MatMul")] == ["s8", "f32"]
    assert found.combinations("Conv") == ()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("{", "cannot be read as JSON"),
        ([], "must be an object"),
        ({"a": {}, "b": {}}, "holds 2 descriptions"),
        ({"a": {}}, "has no operators"),
        ({"a": {"scales": "odd"}}, "scales is 'odd'"),
        ({"a": {"operators": {"Conv": [{"operands": ["u8"], "cost": 1}]}}}, "the last combination of Conv must be f32"),
        ({"a": {"operators": {"Conv": [{"operands": ["u7"], "cost": 1}]}}}, "'u7' is none of the types"),
        ({"a": {"operators": {"Conv": [{"operands": ["f32"], "cost": 0}]}}}, "the cost 0 of"),
        ({"a": {"operators": {"Conv": [{"operands": [], "cost": 1}]}}}, "is no combination"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, data: Any, words: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))

    with pytest.raises(UserError, match=words):
        describe_hardware(path, X86)
