"""Codes of errors: what is raised stands in the table, what stands in the table is raised, and both say the same."""

from __future__ import annotations

import ast
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import tc
from tc import error_codes, errors
from tc.cli.main import main
from tc.error_codes import CODES, RANGES
from tc.errors import InputError, Span, TcError, UnsupportedError

PACKAGE = Path(tc.__file__).parent


def all_classes(base: type[TcError] = TcError) -> list[type[TcError]]:
    return [base, *(each for child in base.__subclasses__() for each in all_classes(child))]


CLASSES = {each.__name__: each for each in all_classes()}


def raised() -> list[tuple[str, str, str]]:
    """Every code that a call in `tc` gives: the place, the class or "" where a function makes the error, the code."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else ""
                codes = [k.value for k in node.keywords if k.arg == "code"]
                where = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                found.extend((where, name, str(c.value)) for c in codes if isinstance(c, ast.Constant) and str(c.value).startswith("TC"))
    return found


RAISED = raised()


def test_no_code_is_given_twice_and_all_are_of_a_range() -> None:
    parts = (error_codes._IMPORT, error_codes._CALLS, error_codes._COMPILE, error_codes._FILES)
    parts = (*parts, error_codes._QUANTIZATION, error_codes._COMMANDS)

    codes = [each.code for part in parts for each in part]

    assert len(codes) == len(set(codes)) == len(CODES) > 50
    for digit, part in zip(RANGES, parts, strict=True):
        assert [c[:3] for c in (e.code for e in part)] == [f"TC{digit}"] * len(part) and codes == sorted(codes)
        assert all(len(each.code) == 6 for each in part)


def test_every_code_that_is_raised_stands_in_the_table_with_its_class() -> None:
    assert len(RAISED) > 150

    wrong = [
        (where, name, code)
        for where, name, code in RAISED
        if code not in CODES or name not in CLASSES or not issubclass(CLASSES[name], CLASSES[CODES[code].kind])
    ]

    assert wrong == []


def test_every_class_has_a_code_of_its_own() -> None:
    own = {name: each.default_code for name, each in CLASSES.items() if "default_code" in vars(each) and not name.startswith("_")}

    assert set(own) == {name for name in CLASSES if not name.startswith("_")}
    assert all(CODES[code].kind == name for name, code in own.items())


def test_every_code_of_the_table_is_raised_somewhere() -> None:
    given = {code for _, _, code in RAISED} | {each.default_code for each in CLASSES.values()}
    in_variables = {  # codes that are chosen before the error is made
        str(node.value)
        for path in PACKAGE.rglob("*.py")
        if path.name != "error_codes.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in CODES
    }

    assert given | in_variables == set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_explained(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    entry = CODES[code]

    assert main(["explain", code]) == 0

    shown = " ".join(capsys.readouterr().out.split())
    for text in (entry.title, entry.kind, entry.meaning, entry.example, *entry.causes, *entry.advice):
        assert len(text) > 3 and " ".join(text.split()) in shown
    assert entry.causes and entry.advice
    assert (entry.miss != "") == (entry.kind == "UnsupportedError")


@pytest.mark.parametrize("text", ["tc1012", "1012", "[TC1012]"])
def test_codes_are_found_as_people_write_them(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", text]) == 0
    assert capsys.readouterr().out.startswith("TC1012: ")


def test_a_code_that_there_is_not_is_answered_by_its_likes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "TC1112"]) == 1

    said = capsys.readouterr().err
    assert "there is no error code 'TC1112'" in said and "TC1012 (" in said


def test_all_codes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{code} " in shown for code in CODES)

    assert main(["explain", "--json"]) == 0
    assert [each["code"] for each in json.loads(capsys.readouterr().out)["codes"]] == list(CODES)


# -- what errors carry


def one_node(
    op: str, domain: str = "", opset: int = 17, dtype: int = TensorProto.FLOAT, rank: int = 2, inputs: int = 1, **attrs: Any
) -> ModelProto:
    x = helper.make_tensor_value_info("x", dtype, [4] * rank)
    y = helper.make_tensor_value_info("y", dtype, None)
    graph = helper.make_graph([helper.make_node(op, ["x"] * inputs, ["y"], name="n1", domain=domain, **attrs)], "g", [x], [y])
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets)


MISSES = {
    "operator": (one_node("Reluu"), "TC1010", {"node": "n1", "operator": "Reluu", "domain": "ai.onnx", "opset": 17}, "Relu"),
    "of a domain": (one_node("FastGelux", "com.microsoft"), "TC1010", {"domain": "com.microsoft", "opset": 1}, "FastGelu"),
    "opset of the model": (one_node("Relu", opset=999), "TC1011", {}, "1 to "),
    "opset of the node": (one_node("Det", opset=10), "TC1011", {"operator": "Det", "opset": 10}, "since opset 11"),
    "dtype": (one_node("Relu", dtype=TensorProto.COMPLEX64), "TC1012", {}, "float32"),
    "attribute": (
        one_node("LinearRegressor", "ai.onnx.ml", coefficients=[1.0] * 4, post_transform="GAUSSIAN"),
        "TC1013",
        {"operator": "LinearRegressor", "node": "n1", "domain": "ai.onnx.ml"},
        "LOGISTIC",
    ),
    "rank": (one_node("Conv", rank=6, inputs=2), "TC1014", {"operator": "Conv", "node": "n1"}, "up to 3"),
    "implementation": (one_node("StringNormalizer", dtype=TensorProto.STRING), "TC1020", {"operator": "StringNormalizer"}, ""),
}


def test_layouts_of_one_cpu_are_told_from_misspelt_operators() -> None:
    # "check the operator's name ..., register it with tc.op": onnxruntime saves such files when it is asked for nothing but a file
    with pytest.raises(UnsupportedError) as caught:
        tc.compile(one_node("ReorderInput", "com.microsoft.nchwc"))

    assert "ORT_ENABLE_EXTENDED" in caught.value.hint and "tc.op" not in str(caught.value)


@pytest.mark.parametrize("name", MISSES)
def test_what_is_not_supported_is_told_in_parts(name: str) -> None:
    model, code, parts, supported = MISSES[name]

    with pytest.raises(UnsupportedError) as caught:
        tc.compile(model, on_unsupported="error")

    error = caught.value
    assert error.code == code and error.miss == CODES[code].miss and error.miss.split()[0] in (*name.split(), "operator")
    assert {key: error.facts()[key] for key in parts} == parts
    assert supported in error.supported and error.hint and error.supported in str(error) and error.hint in str(error)
    assert str(error).endswith(f" [{code}]")


def test_the_code_stands_once_at_the_end_of_the_text() -> None:
    inner = InputError("x is wrong", Span("net.py", 3, 5, "y = f(x)"))

    assert str(inner) == "net.py:3:5: x is wrong [TC2000]\n    y = f(x)\n        ^"
    assert inner.message == "x is wrong" and inner.text == "net.py:3:5: x is wrong"


def test_errors_survive_pickling() -> None:
    error = UnsupportedError("no", Span("n"), code="TC1013", supported="a, b", hint="take a").of_node("Pad", "", 17)

    again = pickle.loads(pickle.dumps(error))

    assert type(again) is UnsupportedError and str(again) == str(error) and again.facts() == error.facts()


def test_the_command_line_shows_the_code_and_json_has_the_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(one_node("Reluu").SerializeToString())

    assert main(["run", str(path), "--json"]) == 2

    shown = capsys.readouterr()
    assert shown.err.startswith("tc: error: n1: Reluu of ONNX") and shown.err.endswith(" (tc explain TC1010)\n")
    told = json.loads(shown.out)["error"]
    assert {key: told[key] for key in ("code", "operator", "node", "opset", "miss")} == {
        "code": "TC1010",
        "operator": "Reluu",
        "node": "n1",
        "opset": 17,
        "miss": "operator",
    }


def test_calls_have_codes_of_their_own() -> None:
    module = tc.compile(one_node("Relu"))
    x = np.zeros((4, 4), np.float32)
    wrong: dict[str, Any] = {
        "TC2001": lambda: module(x, x),
        "TC2002": lambda: module(x.astype(np.float64)),
        "TC2003": lambda: module(x[:3]),
        "TC2006": lambda: module(x, out=np.zeros((3, 4), np.float32)),
        "TC2007": lambda: module([[0.0]]),
    }

    for code, call in wrong.items():
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.code == code, str(caught.value)


def test_the_module_of_errors_draws_all_its_classes() -> None:
    drawn = errors.__doc__ or ""
    assert all(name in drawn for name in CLASSES if not name.startswith("_"))
