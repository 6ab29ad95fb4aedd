"""Which rates a target's cores are taken to have, and from where."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import tc
from tc.codegen.kernels import object_key
from tc.compiler import CompileRequest
from tc.errors import UserError
from tc.passes.pipeline import USUAL
from tc.records.record import place_of
from tc.target import Target
from tc.target.machine import forget_measured, machine_fingerprint, machine_of, measured_path, table_of, write_measured
from tc.target.table import CoreRates, kind_of_cpu, machine_kinds

V3 = Target.parse("x86-64-v3").features
V4 = Target.parse("x86-64-v4").features


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of measured rates of this test's own, which is not there yet."""
    path = tmp_path / "settings" / "machine.json"
    monkeypatch.setenv("TC_MACHINE_FILE", str(path))
    return path


def test_every_kind_says_where_its_numbers_are_from() -> None:
    kinds = machine_kinds().values()

    assert len(kinds) >= 15
    assert [kind.name for kind in kinds if not dict(kind.source).get("rates")] == []
    assert [kind.name for kind in kinds if kind.rates.amx_i8_per_cycle and "amx" in "".join(kind.features)] == []


@pytest.mark.parametrize(
    ("cpu", "features", "kind"),
    [
        ("cascadelake", (*V4, "avx512vnni"), "cascadelake"),
        ("skylake-avx512", V4, "skylake-avx512"),
        ("emeraldrapids", (*V4, "avx512vnni", "avx512fp16", "amx-int8"), "sapphirerapids"),
        ("znver4", (*V4, "avx512vnni", "avx512bf16", "sse4a"), "znver4"),
        ("znver5", (*V4, "avx512vnni", "avx512bf16", "avxvnni", "sse4a"), "znver5"),
        ("znver3", (*V3, "vpclmulqdq", "sse4a"), "znver3"),
        ("znver2", (*V3, "sse4a"), "znver2"),
        ("haswell", V3, "haswell"),
        ("x86-64-v3", V3, "x86-64-v3"),
        ("x86-64", (), "x86-64-v2"),
        ("tigerlake", (*V4, "avx512vnni", "avx512vbmi2"), "icelake-client"),
        ("apple-m1", ("neon",), "aarch64"),
    ],
)
def test_a_cpu_has_the_entry_of_its_family_and_features(cpu: str, features: tuple[str, ...], kind: str) -> None:
    assert kind_of_cpu(cpu, features).name == kind


@pytest.mark.parametrize(
    ("cpu", "features", "kind"),
    [
        ("rocketlake", (*V4, "avx512vnni", "avx512vbmi2", "avx512fp16"), "sapphirerapids"),  # as virtual machines call such a Xeon
        ("sapphirerapids", V3, "haswell"),  # its features are hidden
        ("znver4", V3, "znver2"),
        ("made-up", (*V4, "avx512vnni", "avx512bf16", "sse4a"), "znver4"),
        ("made-up", (*V4, "avx512vnni", "avx512vbmi2"), "icelake-server"),
        ("made-up", (), "intel-sse"),
    ],
)
def test_an_unknown_cpu_or_one_that_lacks_features_has_the_nearest_entry(cpu: str, features: tuple[str, ...], kind: str) -> None:
    assert kind_of_cpu(cpu, features).name == kind


def test_a_target_may_name_the_kind_of_its_machine() -> None:
    target = Target.parse("x86-64-v4:machine=znver4")

    assert machine_of(target) == machine_kinds()["znver4"].rates
    assert Target.parse(str(target)) == target
    with pytest.raises(UserError, match="unknown machine 'z80'; known are x86-64-v4"):
        Target.parse("x86-64-v4:machine=z80")


def test_the_fingerprint_tells_tables_apart_and_nothing_else() -> None:
    target = Target.parse("x86-64-v4")

    assert machine_fingerprint(target) == machine_fingerprint(replace(target, cores=7, l2_bytes=1 << 22))
    assert machine_fingerprint(target) != machine_fingerprint(replace(target, machine="cascadelake"))
    rates = machine_of(target)
    changed = {replace(rates, **{field.name: getattr(rates, field.name) + 1}).fingerprint() for field in fields(CoreRates)}
    assert len(changed | {rates.fingerprint()}) == len(fields(CoreRates)) + 1


def test_measured_rates_count_for_the_cpu_that_they_are_of(settings: Path) -> None:
    target, other = Target.parse("x86-64-v4"), Target.parse("x86-64-v3")
    before = machine_of(target), machine_of(other)

    write_measured(target, {"fma_per_cycle": 1.5, "memory_cycles_per_line": 20}, settings)

    assert machine_of(target) == replace(before[0], fma_per_cycle=1.5, memory_cycles_per_line=20.0)
    assert (table_of(target).measured, table_of(target).measured_names) == (settings, ("fma_per_cycle", "memory_cycles_per_line"))
    assert machine_of(other) == before[1] and table_of(other).measured is None
    assert machine_of(replace(target, machine="x86-64-v4")) == before[0]  # a named table is a fixed one
    write_measured(other, {"fma_latency": 5}, settings)
    assert machine_of(target).fma_per_cycle == 1.5 and machine_of(other).fma_latency == 5  # what was known of the first stays
    assert forget_measured(settings) and not forget_measured(settings)
    assert machine_of(target) == before[0]


def small_model() -> bytes:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 8]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    return bytes(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8).SerializeToString())


def test_whatever_is_kept_is_kept_by_the_table_that_decided(settings: Path) -> None:
    target = Target.parse("native:cores=1")

    def keys() -> tuple[object, ...]:
        request = CompileRequest(small_model(), target, {}, "default", "auto", "fallback", None, None, (), USUAL)
        key = request.key()
        assert key is not None
        return object_key("tc_1", target), key.name, place_of(target)["rates"], tc.compile(small_model(), target).report().rates

    before = keys()
    assert keys() == before and None not in before

    write_measured(target, {"l3_cycles_per_line": 6.25}, settings)

    assert [old for old, new in zip(before, keys(), strict=True) if old == new] == []


def test_a_module_of_another_table_runs_and_says_so(settings: Path, tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    tc.compile(small_model()).save(tmp_path / "m.tcm")
    assert tc.load(tmp_path / "m.tcm").report().notes == ()

    write_measured(Target.parse("native"), {"l3_cycles_per_line": 6.25}, settings)
    module = tc.load(tmp_path / "m.tcm")

    np.testing.assert_array_equal(module(x), np.maximum(x, 0))
    assert [note for note in module.report().notes if "compiled with other rates of this CPU" in note]
    module.save(tmp_path / "again.tcm")  # it is still of the first table
    assert tc.load(tmp_path / "again.tcm").report().rates == module.report().rates != machine_fingerprint(Target.parse("native"))


def test_tests_do_not_see_what_the_user_has_had_measured() -> None:
    assert measured_path() is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not a file of measured rates; `tc doctor --forget` removes it"),
        ("[]", "is not a file of measured rates"),
        (json.dumps({"schema": 1, "machines": {"a": 1}}), "no rates of a"),
        (json.dumps({"schema": 1, "machines": {"a": {"rates": {"speed": 1}}}}), "unknown rate 'speed'"),
        (json.dumps({"schema": 1, "machines": {"a": {"rates": {"fma_per_cycle": 0}}}}), "fma_per_cycle is 0, must be a positive number"),
        ('{"schema": 1, "machines": {"a": {"rates": {"clock_hz": Infinity}}}}', "clock_hz is inf, must be"),
        ('{"schema": 1, "machines": {"a": {"rates": {"clock_hz": true}}}}', "clock_hz is True, must be"),
        (" " * 70_000, "is not a file of measured rates"),
    ],
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(settings: Path, text: str, words: str) -> None:
    settings.parent.mkdir()
    settings.write_text(text)

    with pytest.raises(UserError, match=words):
        machine_of(Target.parse("x86-64-v4:cores=1"))

    write_measured(Target.parse("x86-64-v4"), {"fma_per_cycle": 1}, settings)  # measuring again mends it
    assert machine_of(Target.parse("x86-64-v4")).fma_per_cycle == 1


def test_a_file_of_another_version_does_not_count(settings: Path) -> None:
    settings.parent.mkdir()
    settings.write_text(json.dumps({"schema": 0, "machines": {"a": {"rates": {"speed": 1}}}}))

    assert table_of(Target.parse("x86-64-v4")).measured is None
