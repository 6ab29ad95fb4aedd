"""`tc.quantize` from end to end on small models: what comes out, and what is said where nothing can."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tc
from tc.demo import MODEL_PATH, as_model_input, load_heldout
from tc.errors import UserError
from tc.quantization import quantize as quantize_module
from tc.quantization.quantize import SEARCH_INPUTS, QuantizationStep, split_places
from tc.quantization.result import QuantizedModel, pareto_points
from tests.draws import some_of
from tests.quantization.small_nets import OrtModule, feeds_of, mlp


@pytest.fixture(scope="module", autouse=True)
def short_measurements() -> Iterator[None]:
    """What the front takes is not what these tests are about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tc.quantization.quantize.MEASURE_SECONDS", 0.1)
        yield


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return mlp(np.random.default_rng(0))


@pytest.fixture(scope="module")
def feeds(model: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    return feeds_of(model, np.random.default_rng(1), calls=6)


@pytest.fixture(scope="module")
def steps() -> list[QuantizationStep]:
    return []


@pytest.fixture(scope="module")
def quantized(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], steps: list[QuantizationStep]) -> QuantizedModel:
    return tc.quantize(model, feeds, hardware="vnni", trials=20, callback=steps.append)


def test_the_points_are_what_runs(quantized: QuantizedModel, feeds: list[dict[str, np.ndarray]]) -> None:
    models = {point.label: point.model for point in quantized.points}
    others = feeds[1::2]
    expected = np.concatenate([OrtModule(models["2 in f32"]).run(feed)["y"] for feed in others])

    assert "2 in u8 x s8" in models
    for point in quantized.points:
        onnx.checker.check_model(point.model, full_check=True)
        found = np.concatenate([OrtModule(point.model).run(feed)["y"] for feed in others])
        error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
        assert point.quality.error == pytest.approx(error, rel=1e-2, abs=1e-6)


def test_the_front_is_in_order(quantized: QuantizedModel) -> None:
    front = quantized.front

    assert front == pareto_points(quantized.points)
    assert [p.cost for p in front] == sorted(p.cost for p in front)
    assert [p.quality.loss for p in front] == sorted((p.quality.loss for p in front), reverse=True)
    assert front[-1].quality.error < 1e-6


def test_points_are_chosen_by_what_they_keep(quantized: QuantizedModel) -> None:
    exact = quantized.choose(max_error=1e-6)
    last = quantized.choose(-1)

    assert exact.point is not None and exact.point.quality.error <= 1e-6
    assert last.point == quantized.front[-1] and last.model is last.point.model
    assert quantized.choose().point == quantized.point
    with pytest.raises(UserError, match=r"no point is such; there are: .*in f32"):
        quantized.choose(min_speedup=1e9)
    with pytest.raises(UserError, match="the front has"):
        quantized.choose(99)


def test_what_is_far_from_f32_is_not_chosen_by_default(
    model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tc.quantization.evaluate.ERROR_LIMIT", 1e-9)

    found = tc.quantize(model, feeds, hardware="power_of_two", trials=4)

    assert found.point is not None and found.point.label == "2 in f32"
    assert any("the default choice is f32" in note for note in found.notes)
    other = found.choose(max_error=1.0)
    assert other.point is not None and found.point.types != other.point.types  # the report shows those of the model that is chosen
    assert {types for *_, types in found.point.types} == {"f32"} != {types for *_, types in other.point.types}


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_error": "1%"}, "max_error is '1%', must be a number"),
        ({"max_error": math.nan}, "max_error is nan, must be a number"),
        ({"max_error": -0.1}, "max_error is -0.1, must not be negative"),
        ({"min_speedup": 0}, "min_speedup is 0, must be above 0"),
        ({"min_metric": 0.9}, "min_metric needs a metric"),
    ],
)
def test_limits_that_cannot_be_are_said(quantized: QuantizedModel, limits: Mapping[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        quantized.choose(**limits)


def test_who_compiles_all_of_it_is_told_of_the_model(quantized: QuantizedModel) -> None:
    with pytest.raises(UserError, match=r"the model is a QuantizedModel, .*; its \.model is one"):
        tc.compile(quantized)  # type: ignore[arg-type]


def test_progress_is_told(quantized: QuantizedModel, steps: list[QuantizationStep]) -> None:
    stages = [step.stage for step in steps]

    assert stages[0] == "calibrating" and stages[-1] == "measuring the front"
    searching = [step for step in steps if step.stage.startswith("searching")]
    assert [step.done for step in searching] == list(range(1, len(quantized.trials) + 1))


def test_layers_say_what_they_cost(quantized: QuantizedModel) -> None:
    assert [layer.site for layer in quantized.noise] == ["first", "second"]
    for layer in quantized.noise:
        assert 20 < layer.operand_db < 60 and 30 < layer.weight_db < 60
        assert 0 < layer.error < 0.05


def test_the_model_is_saved_whole(quantized: QuantizedModel, tmp_path: Path) -> None:
    quantized.save(tmp_path / "a.onnx")

    assert onnx.load(tmp_path / "a.onnx") == quantized.model
    assert [p.name for p in tmp_path.iterdir()] == ["a.onnx"]
    with pytest.raises(UserError, match="that is a folder"):
        quantized.save(tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        quantized.save(tmp_path / "b" / "a.onnx")


def test_the_report_shows_all_points_and_layers(quantized: QuantizedModel, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    quantized.report(tmp_path / "report.html")

    page = (tmp_path / "report.html").read_text()
    assert all(text in page for text in ("first", "second", "The front", "Sensitivity", *(p.label for p in quantized.points)))
    assert ">metric<" not in page  # there is none
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")


def test_a_stopped_search_is_the_same_when_it_went_on(
    model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], tmp_path: Path
) -> None:
    def stop(step: QuantizationStep) -> None:
        if step.stage.startswith("searching") and step.done == 5:
            raise KeyboardInterrupt

    state = tmp_path / "state.jsonl"
    options: dict[str, Any] = {"hardware": "vnni", "trials": 9, "seed": 2}
    stopped = tc.quantize(model, feeds, state=state, callback=stop, **options)
    went_on = tc.quantize(model, feeds, state=state, **options)
    again = tc.quantize(model, feeds, state=state, **options)

    assert stopped.ended == "interrupted" and len(stopped.trials) == 5
    assert [t.strategy for t in went_on.trials] == [t.strategy for t in again.trials]
    assert [t.strategy for t in went_on.trials[:5]] == [t.strategy for t in stopped.trials]
    assert [t.predicted for t in went_on.trials] == [t.predicted for t in again.trials]
    with pytest.raises(UserError, match="belongs to another search: its seed is 2, here it is 3"):
        tc.quantize(model, feeds, state=state, hardware="vnni", trials=9, seed=3)


def test_a_state_of_another_format_is_left_alone(
    model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "s.jsonl"
    tc.quantize(model, feeds, state=state, hardware="vnni", trials=3)
    before = state.read_bytes()

    monkeypatch.setattr("tc.quantization.quantize.STATE_FORMAT", -1)
    with pytest.raises(UserError, match="belongs to another search: its format is"):
        tc.quantize(model, feeds, state=state, hardware="vnni", trials=3)

    assert state.read_bytes() == before


def test_the_metric_is_what_is_kept(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> None:
    labels = [OrtModule(model).run(feed)["y"].argmax(axis=1) for feed in feeds]

    def accuracy(predict: Any) -> float:
        return float(np.mean([predict(feed)["y"].argmax(axis=1) == label for feed, label in zip(feeds, labels, strict=True)]))

    found = tc.quantize(model, feeds, metric=accuracy, hardware="vnni", trials=8)

    assert all(0 <= p.quality.metric <= 1 for p in found.points)
    assert max(p.quality.metric for p in found.points) == 1.0
    kept = found.choose(min_metric=1.0)
    assert kept.point is not None and kept.point.quality.metric == 1.0


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (lambda predict: 1 / 0, "metric: raised ZeroDivisionError: division by zero"),
        (lambda predict: math.nan, "metric: gave nan"),
        (lambda predict: None, "metric: gave a NoneType"),
        (lambda predict: predict({"x": np.zeros((2, 16), np.float32)})["z"].sum(), "KeyError: 'z'; predict gave the outputs y"),
        (lambda predict: sys.exit(3), "metric: raised SystemExit: 3"),
        (lambda predict: "good", "metric: gave a str"),
        (lambda predict: np.ones(2), r"metric: gave a ndarray of shape \[2\]"),
        (lambda predict: predict({"x": 3}), "metric: raised InputError"),
        (7, "metric is a int, must be a function"),
    ],
)
def test_a_metric_that_gives_no_number_is_named_before_anything_long(
    model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], metric: Any, words: str
) -> None:
    """It was found when the simulated graph had been compiled."""
    steps: list[QuantizationStep] = []

    with pytest.raises(UserError, match=words):
        tc.quantize(model, feeds, metric=metric, hardware="vnni", trials=4, callback=steps.append)
    assert {step.stage for step in steps} <= {"asking the metric of f32"}


def test_a_metric_may_give_an_array_of_no_dims(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> None:
    found = tc.quantize(model, feeds, metric=lambda predict: predict(feeds[0])["y"].mean(), hardware="vnni", trials=2)

    assert all(math.isfinite(point.quality.metric) for point in found.points)


def test_a_metric_that_fails_later_leaves_a_state_to_go_on_from(
    model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], tmp_path: Path
) -> None:
    calls: list[int] = []

    def failing(predict: Any) -> float:
        calls.append(1)
        if len(calls) == 6:
            raise OSError("the labels are gone")
        return -float(np.abs(predict(feeds[0])["y"]).mean())

    options: dict[str, Any] = {"hardware": "vnni", "trials": 7, "state": tmp_path / "s.jsonl", "metric": failing}
    with pytest.raises(UserError, match="metric: raised OSError: the labels are gone"):
        tc.quantize(model, feeds, **options)
    trials = len((tmp_path / "s.jsonl").read_text().splitlines()) - 2  # the facts and the latencies

    found = tc.quantize(model, feeds, **options)

    assert trials == 4 and len(found.trials) == 7


@pytest.mark.parametrize("name", ["20", "biases"])
def test_results_may_have_any_name(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], name: str) -> None:
    """Broke: exporters number what has no name, as the nodes that are added for the search were."""
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)
    renamed.graph.output[0].name = renamed.graph.node[-1].output[0] = name

    found = tc.quantize(renamed, feeds, hardware="vnni", trials=4)

    assert [value.name for value in found.points[0].model.graph.output] == [name]


def test_constant_values_are_quantized_and_noted(model: onnx.ModelProto) -> None:
    """A relu that lets nothing through had the scale 0."""
    dead = onnx.ModelProto()
    dead.CopyFrom(model)
    weight = numpy_helper.to_array(dead.graph.initializer[0])
    dead.graph.initializer[0].CopyFrom(numpy_helper.from_array(-np.abs(weight), "w0"))
    feeds = [{"x": np.abs(feed["x"])} for feed in feeds_of(dead, np.random.default_rng(3))]

    found = tc.quantize(dead, feeds, hardware="vnni", trials=3)

    assert any("'r' was 0 on every calibration input" in note for note in found.notes)
    assert all(np.isfinite(point.quality.error) for point in found.points)


@pytest.mark.parametrize("value", some_of([0.0, 3.0], quick=[3.0]))
def test_constant_inputs_are_noted(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], value: float) -> None:
    constant = [{"x": np.full_like(feed["x"], value)} for feed in feeds]

    found = tc.quantize(model, constant, hardware="vnni", trials=3)

    assert any(f"'x' holds nothing but {value}" in note for note in found.notes)
    assert not any("holds nothing but" in note for note in tc.quantize(model, feeds, hardware="vnni", trials=3).notes)


def test_weights_that_are_not_finite_are_named(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> None:
    broken = onnx.ModelProto()
    broken.CopyFrom(model)
    weight = numpy_helper.to_array(broken.graph.initializer[1]).copy()
    weight[0, 0] = np.inf
    broken.graph.initializer[1].CopyFrom(numpy_helper.from_array(weight, "w1"))

    with pytest.raises(UserError, match="NaN or infinity"):
        tc.quantize(broken, feeds, hardware="vnni", trials=3)


def test_hardware_that_is_not_the_target_is_predicted(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> None:
    found = tc.quantize(model, feeds, hardware="power_of_two", trials=12)

    assert all(math.isnan(p.seconds) for p in found.points)
    assert any("times are predicted" in note for note in found.notes)
    assert found.point is not None and "s8" in found.point.label
    scales = [numpy_helper.to_array(t) for t in found.model.graph.initializer if t.name.endswith(".scale")]
    assert scales and all(np.all(np.log2(scale) % 1 == 0) for scale in scales)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 33, 200])
def test_the_front_is_checked_on_other_inputs(count: int) -> None:
    searched, checked = split_places(count)

    assert searched and checked and max(*searched, *checked) <= count - 1
    assert len(searched) <= SEARCH_INPUTS and len(checked) <= SEARCH_INPUTS
    assert (set(searched) & set(checked) == set()) == (count >= 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trials": 0}, "trials is 0"), ({"seed": -1}, "seed is -1"), ({"budget": "soon"}, "budget: 'soon'"),
        ({"budget": "soon", "trials": 3}, "budget: 'soon'"), ({"search": "luck"}, "search is 'luck'"),
        ({"callback": 3}, "callback is a int"), ({"dims": {"m": 3}}, "no symbolic dim 'm'"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_said(
    model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], options: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        tc.quantize(model, feeds, **options)


@pytest.mark.slow
def test_digits_stay_readable() -> None:
    images, labels = load_heldout()
    inputs = as_model_input(images)

    found = tc.quantize(MODEL_PATH, [inputs[i : i + 16] for i in range(0, 64, 16)], hardware="vnni", trials=40)

    name = found.model.graph.input[0].name
    for point in found.points:
        (scores,) = OrtModule(point.model).run({name: inputs}).values()
        assert np.mean(scores.argmax(axis=1) == labels) >= 0.983


@pytest.mark.parametrize("part", ["_compiled", "measured"])
def test_ctrl_c_while_the_front_is_measured_leaves_what_is_there(
    model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The search was lost."""
    made: list[object] = []
    compiled = quantize_module._Static._compiled

    def some(self: Any, *what: Any) -> Any:
        made.append(what)
        if part == "_compiled" and len(made) == 2:
            raise KeyboardInterrupt
        return compiled(self, *what)

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(quantize_module, "measure_in_turns", stopped)
    monkeypatch.setattr(quantize_module._Static, "_latency", lambda *_: Flat())
    monkeypatch.setattr(quantize_module._Static, "_compiled", some)

    found = tc.quantize(model, feeds, trials=6, threads=1)

    assert found.ended == "interrupted" and found.points and all(math.isnan(point.ratio) for point in found.points)
    assert OrtModule(found.model).run(feeds[0])


def test_ctrl_c_while_points_are_compared_leaves_those_that_were(
    model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search was lost, where a metric on many inputs takes longest."""
    left = [math.inf]

    def measured(modules: list[object], *_: object) -> list[None]:
        left[0] = 1
        return [None] * len(modules)

    def metric(predict: Any) -> float:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return float(-np.square(predict(feeds[0])["y"]).mean())

    monkeypatch.setattr(quantize_module, "measure_in_turns", measured)
    monkeypatch.setattr(quantize_module._Static, "_latency", lambda *_: Flat())

    found = tc.quantize(model, feeds, metric=metric, trials=6, threads=1)

    assert found.ended == "interrupted" and len(found.points) == 1
    assert OrtModule(found.model).run(feeds[0])


class Flat:
    """Seconds that are the same for all."""

    def predict(self, strategy: object) -> float:
        return 1.0
