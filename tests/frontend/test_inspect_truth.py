"""What `inspect` says of a node is what a compiled module does with it."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tests.frontend.models import forget_adapter, make_model, node

F32 = np.float32


def test_nodes_on_kernels_of_numpy_are_not_called_native(monkeypatch: pytest.MonkeyPatch) -> None:
    # Operators without loops were "native" and ran as callbacks.
    forget_adapter(monkeypatch, "Unique")
    nodes = [
        node("Unique", "x", "v"),
        node("Relu", "x", "r"),
        node("Unique", "c", "cv"),
    ]
    outputs = ["v", "r", "cv"]
    constants = {"c": np.array([1.0, 0, 2], F32)}
    model = make_model(nodes, {"x": (F32, ["n", 4]), "b": (np.bool_, ["n"])}, outputs, constants)

    said = {report.name for report in tc.inspect(model).nodes if report.status == "fallback"}

    assert said == {"the_v", "the_cv"}
    assert said == {text.split(" (")[0] for text in tc.compile(model).report().fallbacks}


def test_what_has_no_operator_is_said_to_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_adapter(monkeypatch, "Det")
    nodes = [node("Relu", "x", "a"), node("Det", "a", "y")]

    found = tc.inspect(make_model(nodes, {"x": (F32, [2, 2])}, ["a", "y"])).nodes

    assert [(n.name, n.status, n.reason) for n in found] == [("the_a", "native", ""), ("the_y", "fallback", "it has no operator in tc")]
