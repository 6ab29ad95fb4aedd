"""`--check`: who is right where two runtimes differ, and what was compared.

Before, a difference beyond the tolerance of the largest value was tc's error, also where the other runtime was the one that was off:
the text detector PP-OCR, whose largest result is 8e-4, was called wrong for a right answer.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx import TensorProto

from tc.cli import main
from tc.cli.reference import CHECKERS, Arrays, check_outputs, describe_check
from tc.stages import interpret, interpret_in_f64

TINY = np.float32(2.0**-40)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """y = exp(x) * 2^-40, z = x > 0, with x: f32[5]."""
    nodes = [
        oh.make_node("Exp", ["x"], ["e"], "exp"),
        oh.make_node("Mul", ["e", "c"], ["y"], "scale"),
        oh.make_node("Greater", ["x", "zero"], ["z"], "sign"),
    ]
    weights = [oh.make_tensor("c", TensorProto.FLOAT, [], [TINY]), oh.make_tensor("zero", TensorProto.FLOAT, [], [0.0])]
    kinds = {"x": TensorProto.FLOAT, "y": TensorProto.FLOAT, "z": TensorProto.BOOL}
    values = [oh.make_tensor_value_info(name, kind, [5]) for name, kind in kinds.items()]
    graph = oh.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def answer_with(monkeypatch: pytest.MonkeyPatch, change: object) -> None:
    """Let the reference be the interpreter's results, changed."""

    def run(model: Path, inputs: Arrays) -> Arrays:
        return {name: change(name, array) for name, array in interpret(model, inputs).items()}  # type: ignore[operator]

    monkeypatch.setitem(CHECKERS, "interpreter", run)


def test_tiny_results_agree(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tiny), "--check", "onnxruntime"]) == 0
    assert main(["run", str(tiny), "--check", "interpreter"]) == 0

    text = " ".join(capsys.readouterr().out.split())
    assert "agrees with onnxruntime: 2 outputs compared" in text and "y: of 5xf32 the largest difference is" in text


def test_a_reference_that_is_off_is_found_out_by_float64(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(monkeypatch, lambda name, array: array * np.float32(1.01) if name == "y" else array)

    code = main(["run", str(tiny), "--check", "interpreter", "--json"])

    found = json.loads(capsys.readouterr().out)["check"]
    (y, z) = found["outputs"]
    assert code == 0 and found["judged_by_float64"] == ["y"] and found["errors"]["y"] == pytest.approx(0.01, rel=0.05)
    assert y["own_error"] < 1e-6 * y["scale"] < 5e-3 * y["scale"] < y["reference_error"]
    assert (y["shape"], z["shape"], z["own_error"]) == ("5xf32", "5xbool", None)


def test_when_tc_is_off_that_is_said_with_both_distances(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tc.cli.run.interpret_in_f64", lambda model, inputs: {**interpret_in_f64(model, inputs), "y": np.full(5, 7.0)})
    answer_with(monkeypatch, lambda name, array: np.full_like(array, 7.0) if name == "y" else array)

    assert main(["run", str(tiny), "--check", "interpreter"]) == 3

    message = capsys.readouterr().err
    assert "output 'y' differs from interpreter: of 5xf32 the largest difference is 7" in message
    assert "against 7," in message and "tc is off by 7 from float64, interpreter by 0" in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda name, array: array.astype(np.float64), "it is 5xf32, but interpreter has 5xf64"),
        (lambda name, array: array[:3], "it is 5xf32, but interpreter has 3xf32"),
        (lambda name, array: np.where(np.arange(5) == 2, np.nan, array).astype(array.dtype), None),
        (lambda name, array: np.where(np.arange(5) == 2, np.inf, array).astype(array.dtype), None),
    ],
    ids=["dtype", "shape", "nan", "inf"],
)
def test_other_shapes_and_lone_nans(
    tiny: Path, change: object, words: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another shape is an error whatever float64 says; a NaN that only the reference has is the reference's."""
    answer_with(monkeypatch, lambda name, array: change(name, array) if name == "y" else array)  # type: ignore[operator]

    code = main(["run", str(tiny), "--check", "interpreter"])

    assert code == (0 if words is None else 3)
    assert words is None or words in capsys.readouterr().err


def judged(found: list[float], expected: list[float], truth: list[float], tolerance: float = 1e-4) -> bool:
    as_f32 = (np.array(values, np.float32) for values in (found, expected))
    one, other = ({"y": array} for array in as_f32)
    (check,), _ = check_outputs(one, other, tolerance, lambda: {"y": np.array(truth)})
    assert describe_check(check, "it", tolerance)
    return check.is_right


def test_who_is_right() -> None:
    assert judged([1.0, 2.0], [1.0, 2.0], [9.0, 9.0])  # nobody is asked where the two agree
    assert judged([1.0, 2.0], [1.1, 2.0], [1.0, 2.0])  # the reference is off
    assert not judged([1.1, 2.0], [1.0, 2.0], [1.0, 2.0])  # tc is
    assert judged([1.1, 2.0], [0.9, 2.0], [1.0, 2.0])  # both are, as much
    assert not judged([1.5, 2.0], [0.9, 2.0], [1.0, 2.0])  # both are, tc more
    assert not judged([np.nan, 2.0], [1.0, 2.0], [1.0, 2.0])
    assert not judged([np.inf, 2.0], [1.0, 2.0], [1.0, 2.0])
    assert judged([1.0, 2.0], [np.nan, 2.0], [1.0, 2.0])
    assert not judged([1.5, 2.0], [np.nan, 2.0], [1.0, 2.0])  # what is worse than nothing is no measure
    assert judged([np.inf, 2.0], [np.inf, 2.0], [1.0, 2.0])
    assert not judged([0.0], [1e-45], [float(np.float32(1e-45))]) and judged([0.0], [0.0], [0.0])
    assert judged([], [], [])
    assert not judged([1.0], [1.0], [1.0], tolerance=-1.0)


def test_without_float64_the_difference_stands() -> None:
    def fail() -> Arrays:
        raise ValueError("no double here")

    checks, why = check_outputs({"y": np.ones(2, np.float32)}, {"y": np.zeros(2, np.float32)}, 1e-4, fail)

    assert not checks[0].is_right and why == "ValueError: no double here"


def test_float64_is_double_precision_all_the_way() -> None:
    """A sum that f32 loses, through a cast, a constant, a branch and a loop."""
    branch = [
        oh.make_graph([oh.make_node("Mul", ["s", "big"], [f"{name}_y"])], name, [], [oh.make_tensor_value_info(f"{name}_y", 1, [])])
        for name in ("yes", "no")
    ]
    nodes = [
        oh.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        oh.make_node("Add", ["f", "third"], ["a"]),
        oh.make_node("Sub", ["a", "f"], ["s"]),
        oh.make_node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1]),
    ]
    weights = [oh.make_tensor("third", 1, [], [1 / 3]), oh.make_tensor("big", 1, [], [1e6])]
    values = [oh.make_tensor_value_info("n", TensorProto.INT64, []), oh.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = oh.make_graph(nodes, "g", values, [oh.make_tensor_value_info("y", 1, [])], weights)
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9)
    inputs = {"n": np.array(2**22, np.int64), "c": np.array(True)}

    narrow, wide = interpret(model, inputs)["y"], interpret_in_f64(model, inputs)["y"]

    assert narrow.dtype == np.float32 and float(narrow) == 5e5  # 2^22 + 1/3 rounds to a half
    assert wide.dtype == np.float64 and float(wide) == pytest.approx(1e6 / 3, rel=1e-7)
