"""Kernels of a compiled module as files (`CompiledModule.export`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper

import tc
from tc.errors import UnsupportedError, UserError
from tc.ir.parser import parse_module
from tests.opencl_driver import need_opencl

SUMS = parse_module("""
@graph
def main(x: f32[n, 40], y: f32[40]):
    a: f32[n, 40] = mul(x, y)
    s: f32[n] = sum(a, axes=(1,), keepdims=False)
    return a, s
""")


def saved_model(folder: Path, kind: str = "Exp") -> Path:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node(kind, ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    return folder / "m.onnx"


def test_files_are_those_of_the_stage(tmp_path: Path) -> None:
    module = tc.compile(SUMS)

    for language in ("llvm", "asm"):
        names = module.export(tmp_path / language, language)
        expected = tc.lower(SUMS, language).files()
        assert set(names) == set(expected) == set(os.listdir(tmp_path / language))
        assert all((tmp_path / language / name).read_text() == text for name, text in expected.items())
    assert set(module.export(tmp_path / "usual")) == set(tc.lower(SUMS, "llvm").files())


def test_a_program_in_c_is_built_from_them(tmp_path: Path) -> None:
    tc.compile(SUMS, target="c").export(tmp_path / "made" / "here")

    subprocess.run(["sh", str(tmp_path / "made" / "here" / "build.sh")], check=True, capture_output=True)


def test_kernels_for_opencl_are_written(tmp_path: Path) -> None:
    need_opencl()

    names = tc.compile(SUMS, target="opencl").export(tmp_path)

    assert any(name.endswith(".cl") for name in names) and "__kernel" in "".join(f.read_text() for f in tmp_path.glob("*.cl"))


def test_a_module_from_the_cache_writes_the_same(tmp_path: Path) -> None:
    path = saved_model(tmp_path)
    first = tc.compile(path)
    again = tc.compile(path)

    first.export(tmp_path / "first")
    again.export(tmp_path / "again")

    assert np.array_equal(first(np.ones(3, np.float32)), again(np.ones(3, np.float32)))
    for file in (tmp_path / "first").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    module = tc.compile(path := saved_model(tmp_path))
    module.save(tmp_path / "m.tcm")
    (tmp_path / "file").write_text("")

    with pytest.raises(UserError, match="'cpu' are written as llvm, asm; cuda is for targets"):
        module.export(tmp_path / "x", "cuda")
    with pytest.raises(UserError, match="the language is a int"):
        module.export(tmp_path / "x", 3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the folder is a int"):
        module.export(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="cannot be written: File exists"):
        module.export(tmp_path / "file")
    with pytest.raises(UnsupportedError, match="loaded from a file has no kernels as text; compile the model again"):
        tc.load(tmp_path / "m.tcm").export(tmp_path / "x")
    assert not (tmp_path / "x").exists()
    saved_model(path.parent, "Tanh")
    with pytest.raises(UserError, match="the model's file has changed since it was compiled"):
        module.export(tmp_path / "x")


USES = """
import os, sys
import numpy as np
import tc
from tc.errors import UserError

path, change, changed = sys.argv[1:]
module = tc.compile(path)
x = np.ones((3, 64), np.float32)
before = module(x, x)
what = "file has" if changed == path else "external data have"
os.truncate(changed, 16) if change == "cut short" else os.replace(changed + ".other", changed)
for use in (lambda: module.export(path + ".folder"), lambda: module(x[:1], x), lambda: module.save(path + ".tcm")):
    try:
        use()
    except UserError as error:
        assert f"the model's {what} changed since it was compiled" in str(error), error
    else:
        raise AssertionError("not refused")
assert np.array_equal(module(x, x), before)
"""


# Without a cache of modules the old contents were asked for when they were gone, which ended the process (SIGBUS), and a call with sizes
# that need another program of the model got one of the other model.
@pytest.mark.parametrize("cache", ["off", "on"])
@pytest.mark.parametrize("change", ["cut short", "replaced"])
@pytest.mark.parametrize("changed", ["m.onnx", "m.data"])
def test_a_module_outlives_the_files_of_its_model(changed: str, change: str, cache: str, tmp_path: Path) -> None:
    for end, factor in {".other": 2.0, "": 1.0}.items():
        shapes = {"a": ["n", 64], "b": ["m", 64], "y": None}
        infos = [helper.make_tensor_value_info(each, TensorProto.FLOAT, dims) for each, dims in shapes.items()]
        weights = numpy_helper.from_array(np.full((64, 64), factor, np.float32), "w")
        if changed == "m.data":
            (tmp_path / f"m.data{end}").write_bytes(weights.raw_data)
            external_data_helper.set_external_data(weights, "m.data")
            weights.ClearField("raw_data")
        nodes = [helper.make_node("MatMul", ["a", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
        graph = helper.make_graph(nodes, "g", infos[:2], infos[2:], [weights])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        (tmp_path / f"m.onnx{end}").write_bytes(model.SerializeToString())
    env = {**os.environ, "TC_CACHE_DIR": "off" if cache == "off" else str(tmp_path / "cache")}
    arguments = [str(tmp_path / "m.onnx"), change, str(tmp_path / changed)]

    done = subprocess.run([sys.executable, "-c", USES, *arguments], env=env, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
