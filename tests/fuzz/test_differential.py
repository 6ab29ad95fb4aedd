"""Verdicts: what is wrong, refused, unchecked or crashed, and a short fuzz of `tc` itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tc.codegen import kernels
from tc.compiler import compile_model
from tc.errors import UnsupportedError
from tc.fuzz import campaign, differential
from tc.fuzz.builder import Input
from tc.fuzz.campaign import Settings, run_campaign
from tc.fuzz.differential import How, Run, Verdict, judge
from tc.fuzz.generate import generate, live_names
from tc.fuzz.process import Judge, Judged
from tc.fuzz.worker import pack_model, pack_runs, unpack_model, unpack_runs
from tests.draws import some_of

pytest.importorskip("onnxruntime")
MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x, int64[1] i) => (float[a] y) { z = Exp(x) y = Gather(z, i) }'
)
FEEDS = {"x": np.array([0.5, 1.0], np.float32), "i": np.array([1])}
SPOILT = {**FEEDS, "i": np.array([99])}


class Module:
    """A compiled module that gives what a test says."""

    def __init__(self, compute: Callable[[dict[str, Any]], np.ndarray]) -> None:
        self.compute = compute

    def run(self, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
        return {"y": self.compute(feeds)}


def verdict_on(monkeypatch: pytest.MonkeyPatch, compute: Callable[[dict[str, Any]], np.ndarray], run: Run) -> Verdict:
    monkeypatch.setattr(differential, "compile_model", lambda *args, **options: Module(compute))
    return judge(MODEL, [Run(FEEDS), run] if run.spoilt else [run])


def right(feeds: dict[str, Any]) -> np.ndarray:
    return np.exp(feeds["x"])[feeds["i"] % 2]


def test_the_right_answer_is_ok_within_a_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict_on(monkeypatch, lambda feeds: np.nextafter(right(feeds), np.float32(9)), Run(FEEDS)).kind == "ok"


def test_other_numbers_shapes_and_changed_inputs_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def overwrites(feeds: dict[str, Any]) -> np.ndarray:
        found = right(feeds)
        feeds["x"][:] = 0
        return found

    for compute in (
        lambda f: right(f) * 1.001,
        lambda f: right(f)[None],
        lambda f: right(f).astype(np.float64),
        overwrites,
    ):
        assert verdict_on(monkeypatch, compute, Run(FEEDS)).kind == "wrong"


def test_a_bad_index_that_gives_a_result_is_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict_on(monkeypatch, right, Run(SPOILT, spoilt=True)).kind == "unchecked"


def test_indices_that_no_result_depends_on_are_not_spoilt() -> None:
    """A body's dead Gather was reported as one that is not checked."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x, int64[1] i, int64[1] j, int64[1] k, bool b) => (float[a] y) {'
        "p = Gather(x, k) n = Shape(p)"
        "y = If(b) <then_branch = t () => (float[c] z) { dead = Gather(x, i) z = Gather(x, j) },"
        "else_branch = e () => (float[d] w) { w = Expand(x, n) }> }"
    )

    assert live_names(model.graph) == {"x", "j", "b", "y", "z", "n", "w"}


def test_indices_that_only_a_type_follows_from_are_not_spoilt() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x, int64[1] i) => (float[2] y) { p = Gather(x, i) y = CastLike(x, p) }'
    )

    assert live_names(model.graph) == {"x", "y"}


def test_bad_indices_of_dead_nodes_need_not_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x, int64[1] i, bool b) => (int64[1] y) { p = Gather(x, i) '
        "y = If(b) <then_branch = t () => (int64[1] z) { dead = Neg(p) z = Identity(i) },"
        "else_branch = e () => (int64[1] w) { w = Neg(i) }> }"
    )
    monkeypatch.setattr(differential, "compile_model", lambda *args, **options: Module(lambda feeds: feeds["i"]))
    feeds = {"x": np.ones(2, np.float32), "i": np.array([1]), "b": np.array(True)}

    assert judge(model, [Run(feeds), Run({**feeds, "i": np.array([9])}, spoilt=True)]).kind == "ok"


def test_an_index_whose_result_only_gives_its_size_is_not_spoilt() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x, int64[1] i, int64[1] j) => (int64[1] y, int64 n, float[1] z) '
        "{ p = Gather(x, i) n = Size(p) y = Neg(i) z = Gather(x, j) }"
    )
    inputs = (Input("x", np.ones(2, np.float32), (2,), "data"), *(Input(i, np.array([1]), (1,), "index") for i in "ij"))

    spoilt = [run.feeds for run in differential.runs_of(replace(generate(0), model=model, inputs=inputs)) if run.spoilt]

    assert spoilt and all(feeds["i"] == 1 and not 0 <= feeds["j"] < 2 for feeds in spoilt)


def test_what_no_iteration_made_has_no_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime makes sizes that are not declared 0."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]> g (float[2] x) => (float[a,b] y) '
        "<int64 trips = {0}, bool go = {1}> { g = com.microsoft.FastGelu(x) "
        "y = Loop(trips, go) <body = b (int64 i, bool c) => (bool d, float[k] s) { d = Identity(c) s = Neg(g) }> }"
    )
    for shape, kind in [((0, 2), "ok"), ((0, 0), "ok"), ((0, 2, 1), "wrong"), ((1, 0), "ok"), ((1, 2), "wrong")]:
        found = np.zeros(shape, np.float32)
        monkeypatch.setattr(differential, "compile_model", lambda *args, found=found, **options: Module(lambda feeds: found))
        assert judge(model, [Run({"x": np.ones(2, np.float32)})]).kind == kind, shape


def test_bad_indices_of_empty_results_need_not_be_noticed() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2,0] x, int64[1] i) => (float[a,b] y, float[c,d] z) '
        "{ y = Gather(x, i) z = Neg(x) }"
    )
    feeds = {"x": np.ones((2, 0), np.float32), "i": np.array([1])}

    assert judge(model, [Run(feeds), Run({**feeds, "i": np.array([9])}, spoilt=True)]).kind == "ok"


def test_results_of_another_rank_than_stated_are_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Squeeze of [n, m] leaves a rank that depends on n and m."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[n,m] x) => (float[a] y) { y = Squeeze(x) }'
    )
    monkeypatch.setattr(differential, "compile_model", lambda *args, **options: Module(lambda feeds: feeds["x"][0]))

    assert judge(model, [Run({"x": np.ones(shape, np.float32)}) for shape in ((1, 3), (2, 3))]).kind == "ok"


def test_indices_are_brought_near_for_the_reference_evaluator() -> None:
    """It takes them into range in steps, 2^63 / 2 of them."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x, int64[1] i, int64 s) => (float[a] y, int64 t)'
        "{ y = GatherElements(x, i) t = Identity(s) }"
    )
    feeds = {"x": np.ones(2, np.float32), "i": np.array([0]), "s": np.array(3)}

    assert judge(model, [Run(feeds), Run({**feeds, "i": np.array([-(2**63)])}, spoilt=True)]).kind == "ok"


def test_a_refusal_of_what_both_run_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_model(*args: Any, **options: Any) -> Any:
        raise UnsupportedError("no such thing")

    monkeypatch.setattr(differential, "compile_model", compile_model)

    assert judge(MODEL, [Run(FEEDS)]).kind == "refused"


def test_models_and_runs_survive_the_way_to_the_child() -> None:
    runs = [Run(FEEDS), Run(SPOILT, spoilt=True)]

    back = unpack_runs(pack_runs(runs))

    assert unpack_model(pack_model(MODEL)).SerializeToString() == MODEL.SerializeToString()
    assert [run.spoilt for run in back] == [False, True]
    assert back[1].feeds["i"].tolist() == [99]


def test_a_child_that_dies_is_a_crash_and_its_successor_works(monkeypatch: pytest.MonkeyPatch) -> None:
    dying = (
        "import json, os, sys\nsys.stdin.readline()\n"
        "print(json.dumps({'stage': 'tc', 'run': 0, 'oracles': 2}), flush=True)\nos.kill(os.getpid(), 11)"
    )
    judge_ = Judge()

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", dying], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    with monkeypatch.context() as patch:
        patch.setattr(judge_, "_start", start)
        dead = judge_.model(MODEL, [Run(FEEDS)])
    alive = judge_.model(MODEL, [Run(FEEDS)])
    judge_.close()

    assert (dead.kind, dead.text) == ("crash", "the process died of SIGSEGV")
    assert alive.kind == "ok"


@pytest.mark.parametrize("count", some_of([8, 20, 60], quick=[8]))
def test_random_models_agree_with_the_oracles(count: int, tmp_path: Path) -> None:
    summary = run_campaign(range(count), Settings(processes=2), tmp_path)

    assert {f.seed: f.judged.verdict.text for f in summary.failures} == {}
    assert summary.kinds["ok"] >= 3 * count // 4


@pytest.mark.slow
def test_five_thousand_random_models_agree_with_the_oracles(tmp_path: Path) -> None:
    summary = run_campaign(range(10_000, 15_000), Settings(processes=2), tmp_path)

    assert {name: [f.seed for f in group] for name, group in summary.by_signature.items()} == {}
    assert summary.kinds["ok"] >= 4_000
    assert min(summary.operators.values()) >= 3


@pytest.mark.parametrize("count", some_of([10, 20, 300], quick=[10]))
def test_random_networks_agree_with_the_oracles_in_every_precision(count: int, tmp_path: Path) -> None:
    settings = Settings("networks", processes=2)

    summary = run_campaign(range(count), settings, tmp_path)

    assert {f.seed: f.judged.verdict.text for f in summary.failures} == {}
    assert summary.kinds["ok"] >= 3 * count // 4
    assert {settings.of(seed).precision for seed in range(count)} == {"f32", "bf16", "bf16x3", "f16", "mixed:0.05"}


@pytest.mark.parametrize("count", some_of([4, 8, 300], quick=[4]))
def test_random_loops_agree_with_the_oracles(count: int, tmp_path: Path) -> None:
    summary = run_campaign(range(count), Settings("programs", processes=2), tmp_path)

    assert {f.seed: f.judged.verdict.text for f in summary.failures} == {}
    assert summary.kinds["ok"] >= 3 * count // 4
    assert summary.operators["Loop"] >= count // 2


@pytest.mark.parametrize("first, last", some_of([(50, 54), (54, 60), (60, 260)], quick=[(50, 54)]))
def test_no_rule_gives_up_a_kernel_of_a_random_network_halfway(first: int, last: int) -> None:
    for seed in range(first, last):
        case = generate(seed, "networks")
        module = compile_model(case.model, **Settings("networks").of(seed).options(case.feeds))
        assert [note for note in module.report().notes if "does not fit" in note] == [], seed


def test_in_low_precision_as_much_may_differ_as_the_roundings_of_16_bits_make(monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[64, 64] x) => (float[a, b] y) { y = MatMul(x, x) }'
    )
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)

    def verdict(error: float) -> str:
        def compute(feeds: dict[str, Any]) -> np.ndarray:
            return feeds["x"] @ feeds["x"] + np.float32(error)

        monkeypatch.setattr(differential, "compile_model", lambda *args, **options: Module(compute))
        return judge(model, [Run({"x": x})], How(precision="bf16")).kind

    assert verdict(0.05) == "ok"  # 8 is the size of an element, 0.01 to 0.1 what rounding both factors makes of it
    assert verdict(0.5) == "wrong"
    assert How(precision="f16").rounding < How(precision="mixed:1e-2").rounding and How().rounding == 0


def test_what_was_judged_before_an_interruption_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seeds: range, settings: Settings, begun: float) -> Iterator[tuple[int, Judged]]:
        yield seeds[0], Judged(Verdict("ok"))
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "_all", interrupted)

    summary = run_campaign(range(5), Settings(), None)

    assert summary.interrupted and dict(summary.kinds) == {"ok": 1} and not summary.failures


def test_an_error_in_tc_needs_no_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that no oracle takes do not hide that the model is not compiled."""
    model = helper.make_model(helper.make_graph(
        [helper.make_node("Gather", ["x", "i"], ["y"])], "g",
        [helper.make_tensor_value_info("x", 1, [2]), helper.make_tensor_value_info("i", 7, [1])],
        [helper.make_tensor_value_info("y", 1, None)],
    ), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)  # fmt: skip
    runs = [Run({"x": np.ones(2, np.float32), "i": np.array([7])})]

    assert judge(model, runs).kind == "undecided"
    monkeypatch.setattr(kernels, "apply_rules", lambda *args, **options: {}["nothing"])
    verdict = judge(model, runs)
    assert verdict.kind == "internal" and "KeyError" in verdict.text
