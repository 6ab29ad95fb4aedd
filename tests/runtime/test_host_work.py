"""What stays with the host of a device is told with its reason, for every kind of step that the host does itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tc.cli import main
from tc.codegen import backends
from tc.codegen.llvm.backend import CPU
from tc.demo import MODEL_PATH
from tc.errors import UserError
from tc.ir.parser import parse_prim_func
from tc.runtime.host_work import _of_kernel
from tc.stages import on_host
from tests.frontend.models import forget_adapter


@pytest.fixture(autouse=True)
def with_a_backend_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """That emits nothing: only schedules are looked at."""
    monkeypatch.setattr(backends, "BACKENDS", (CPU, replace(CPU, kind="opencl", finish=())))


def value(name: str, shape: list, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A softmax, a choice between branches, an operator without loops, a shape from data."""
    forget_adapter(monkeypatch, "Unique")
    branches = {
        f"{kind}_branch": helper.make_graph([helper.make_node(op, ["s"], [op], name=op)], kind, [], [value(op, ["n", 4])])
        for kind, op in (("then", "Relu"), ("else", "Exp"))
    }
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], name="soft"),
        helper.make_node("If", ["c"], ["i"], name="choose", **branches),
        helper.make_node("Unique", ["i"], ["each"], name="each_once"),
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["most"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["most", "first"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["f"], name="sized"),
        helper.make_node("Reshape", ["i", "shape"], ["r"], name="reshape_to_data"),
    ]
    inputs = [value("x", ["n", 4]), value("c", [], TensorProto.BOOL), value("shape", [2], TensorProto.INT64)]
    outputs = [value("r", ["a", "b"]), value("each", ["k"]), value("f", ["e"])]
    first = helper.make_tensor("first", TensorProto.INT64, [1], [0])
    model = helper.make_model(
        helper.make_graph(nodes, "mixed", inputs, outputs, [first]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    onnx.save(model, tmp_path / "mixed.onnx")
    return tmp_path / "mixed.onnx"


def test_what_stays_on_the_host_is_listed_with_its_reason(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(mixed), "--target", "opencl:generic", "--json"]) == 0

    work = json.loads(capsys.readouterr().out)["host"]["work"]
    small = [each for each in work if each["why"] == "it is small, and only sizes or branches follow from it"]
    assert {each["node"] for each in small} <= {"reshape_to_data", ""} and all(each["what"].endswith("_on_host") for each in small)
    assert [(each["node"], each["why"]) for each in work if each not in small] == [
        ("choose", "which kernels run comes from data, which the host has"),
        ("each_once", "the size of its result depends on data"),
        ("sized", "a shape comes from data: sizes and launches wait for it"),
        ("reshape_to_data", "a shape comes from data, which the host has"),
    ]
    assert main(["inspect", str(mixed), "--target", "opencl:generic"]) == 0
    assert "on the host" in capsys.readouterr().out


def test_nothing_but_launches_stays_where_all_runs_on_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(MODEL_PATH), "--target", "opencl:generic"]) == 0

    assert "nothing but launches" in capsys.readouterr().out


def test_a_target_without_a_device_is_all_host() -> None:
    with pytest.raises(UserError, match="target: 'x86-64-v3' has no device, all of a model runs on the host"):
        on_host(str(MODEL_PATH), "x86-64-v3")


HOST_LOOP = """
@loops
def scan(A: f32[n, 64], B: f32[n, 64], n: i64):
    for i in range(n):
        for t in bound(64, 'thread.x'):
            B[i, t] = A[i, t]
"""
LAUNCH = """
@loops
def rows(A: f32[n, 64], B: f32[n, 64], n: i64):
    for i in bound(n, 'block.x'):
        for k in range(2):
            for t in bound(64, 'thread.x'):
                B[i, t] = A[i, t]
"""
UNBOUND = """
@loops
def one(A: f32[4], B: f32[4]):
    for i in range(4):
        B[i] = A[i]
"""


@pytest.mark.parametrize(
    ("text", "what"),
    [(HOST_LOOP, ["runs n iterations of launches of kernel k"]), (LAUNCH, []), (UNBOUND, ["runs kernel k"])],
)
def test_loops_around_launches_and_kernels_without_any_are_the_hosts(text: str, what: list[str]) -> None:
    assert [each for each, _ in _of_kernel("k", parse_prim_func(text))] == what
