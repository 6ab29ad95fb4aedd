"""Operators of the user on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tc
from tc.cli.main import main
from tc.ops.registry import scoped_ops
from tests.frontend.models import make_model, node

OPERATORS = """
import tc
from tc import te


tc.op("cli.dom::Twice", lambda x: te.compute(x.shape, lambda *i: x[i] * 2.0, "twice"))
"""


@pytest.fixture(autouse=True)
def _nothing_stays_registered() -> Iterator[None]:
    yield
    for name in list(scoped_ops()):
        if name.startswith("cli.dom::"):
            tc.remove_op(name)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    proto = make_model([node("Twice", "x", "y", domain="cli.dom")], {"x": (np.float32, [3])}, ["y"], domains=[("cli.dom", 1)])
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    return tmp_path / "m.onnx"


def test_a_file_registers_what_a_model_needs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model.parent / "ops_of_mine.py").write_text(OPERATORS)
    assert main(["run", str(model)]) == 2
    capsys.readouterr()

    operators = ["--operators", str(model.parent / "ops_of_mine.py")]
    code = main(["run", str(model), *operators, "--input", "[1,2,3]", "--check", "interpreter", "--json"])

    assert code == 0
    assert json.loads(capsys.readouterr().out)


def test_a_file_that_fails_is_named(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model.parent / "ops_that_fail.py").write_text("1 / 0\n")

    assert main(["inspect", str(model), "--operators", str(model.parent / "ops_that_fail.py")]) == 1
    assert "ops_that_fail.py: ZeroDivisionError" in capsys.readouterr().err
    (model.parent / "ops_that_leave.py").write_text("raise SystemExit(3)\n")
    assert main(["inspect", str(model), "--operators", str(model.parent / "ops_that_leave.py")]) == 1
    assert "ops_that_leave.py: SystemExit: 3" in capsys.readouterr().err
    assert main(["inspect", str(model), "--operators", str(model.parent / "no_such.py")]) == 1
    assert main(["inspect", str(model), "--operators", "no_such_module_at_all"]) == 1
