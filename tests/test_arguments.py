"""Whatever is given to a public function, what comes back is a result or a TcError in the user's words.

Each row ended in a TypeError, AttributeError, KeyError, FileNotFoundError or ValueError from inside, or in a wrong number.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.helper as oh
import pytest
from onnx import TensorProto

import tc
from tc.errors import InputError, ModelError, TcError, UserError


def model_bytes() -> bytes:
    """y = exp(x), x: f32[batch, 4]."""
    values = [oh.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("x", "y")]
    graph = oh.make_graph([oh.make_node("Exp", ["x"], ["y"], "exp")], "g", values[:1], values[1:])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9).SerializeToString()


MODEL = model_bytes()
X = np.ones((2, 4), np.float32)


@pytest.fixture(scope="module")
def module() -> tc.CompiledModule:
    return tc.compile(MODEL)


WRONG_REQUESTS: dict[str, tuple[Callable[[], Any], str]] = {
    "model object": (lambda: tc.compile(object()), "the model is a object, must be the path"),
    "model none": (lambda: tc.compile(None), "the model is a NoneType"),
    "model list": (lambda: tc.compile([MODEL]), "the model is a list"),
    "model array": (lambda: tc.compile(np.zeros(3)), "the model is a ndarray"),
    "model missing": (lambda: tc.compile("nowhere.onnx"), "there is no file 'nowhere.onnx'"),
    "model long name": (lambda: tc.compile("x" * 5000), "File name too long"),
    "model zero in name": (lambda: tc.compile("a\0b"), "null"),
    "model folder": (lambda: tc.compile("/"), "Is a directory"),
    "inspect object": (lambda: tc.inspect(object()), "the model is a object"),
    "interpret object": (lambda: tc.interpret(object(), {}), "the model is a object"),
    "lower object": (lambda: tc.lower(object()), "the model is a object"),
    "tune object": (lambda: tc.tune(object(), "1s"), "the model is a object"),
    "dims text": (lambda: tc.compile(MODEL, dims={"batch": "4"}), "dims: batch is '4', must be a whole number or a tc.Dim"),
    "dims float": (lambda: tc.compile(MODEL, dims={"batch": 4.0}), "dims: batch is 4.0, must be a whole number"),
    "dims bool": (lambda: tc.compile(MODEL, dims={"batch": True}), "dims: batch is True"),
    "dims none": (lambda: tc.compile(MODEL, dims={"batch": None}), "dims: batch is None"),
    "dims beyond 64 bits": (lambda: tc.compile(MODEL, dims={"batch": 2**70}), "dims: batch is 1180591620717411303424, no size of a tensor"),
    "dim up to beyond 64 bits": (lambda: tc.Dim(1, 2**63), "Dim: hi is 9223372036854775808, no size of a tensor"),
    "dims negative": (lambda: tc.compile(MODEL, dims={"batch": -1}), "dims: batch is -1, must not be negative"),
    "dims pair": (lambda: tc.compile(MODEL, dims={"batch": (1, 4)}), r"dims: batch is \(1, 4\)"),
    "dims number": (lambda: tc.compile(MODEL, dims={3: 4}), "dims: 3 is not the name of a dim"),
    "dims list": (lambda: tc.compile(MODEL, dims=["batch"]), "dims is a list, must map names"),
    "dims unknown": (lambda: tc.compile(MODEL, dims={"seq": 4}), "no symbolic dim 'seq'; it has batch"),
    "dims of lower": (lambda: tc.lower(MODEL, dims={"batch": "4"}), "dims: batch is '4'"),
    "dims of tune": (lambda: tc.tune(MODEL, "1s", dims={"batch": "4"}), "dims: batch is '4'"),
    "dim text": (lambda: tc.Dim("1"), "Dim: lo is '1', must be a whole number"),
    "dim float": (lambda: tc.Dim(1, 2.5), "Dim: hi is 2.5"),
    "dim multiple": (lambda: tc.Dim(1, 2, None), "Dim: multiple_of is None"),
    "threads text": (lambda: tc.compile(MODEL, threads="2"), "threads is '2', must be a whole number from 1 to 256"),
    "threads float": (lambda: tc.compile(MODEL, threads=1.5), "threads is 1.5"),
    "threads bool": (lambda: tc.compile(MODEL, threads=True), "threads is True"),
    "threads zero": (lambda: tc.compile(MODEL, threads=0), "threads is 0, must be at least 1"),
    "threads absurd": (lambda: tc.compile(MODEL, threads=1_000_000), "threads is 1000000, must be at most 256"),
    "threads of tune": (lambda: tc.tune(MODEL, "1s", threads=-1), "threads is -1, must be at least 1"),
    "target number": (lambda: tc.compile(MODEL, target=3), "target is a int, must be a name"),
    "target none": (lambda: tc.compile(MODEL, target=None), "target is a NoneType"),
    "target of lower": (lambda: tc.lower(MODEL, target=3), "target is a int"),
    "target of tune": (lambda: tc.tune(MODEL, "1s", target=3), "target is a int"),
    "target unknown": (lambda: tc.compile(MODEL, target="z80"), "unknown target 'z80'"),
    "target cores": (lambda: tc.Target(cores="2"), "cores is '2'"),
    "target features": (lambda: tc.Target(features="avx2"), "features a tuple of names"),
    "target cores absurd": (lambda: tc.Target.parse("native:cores=100000"), "cores is 100000, must be at most 256"),
    "target parse": (lambda: tc.Target.parse(None), "target is a NoneType"),
    "tune number": (lambda: tc.compile(MODEL, tune=3), "tune is a int, must be a time budget"),
    "tune missing": (lambda: tc.compile(MODEL, tune="nowhere.db"), "there is no tuning database 'nowhere.db'"),
    "numerics": (lambda: tc.compile(MODEL, numerics="fast"), "numerics is 'fast'"),
    "numerics list": (lambda: tc.compile(MODEL, numerics=["strict"]), "numerics is"),
    "verify": (lambda: tc.compile(MODEL, verify=True), "verify is True"),
    "on_unsupported": (lambda: tc.compile(MODEL, on_unsupported=None), "on_unsupported is None"),
    "numerics array": (lambda: tc.compile(MODEL, numerics=X), "numerics is array"),
    "verify array": (lambda: tc.compile(MODEL, verify=X), "verify is array"),
    "on_unsupported array": (lambda: tc.lower(MODEL, on_unsupported=X), "on_unsupported is array"),
    "stage array": (lambda: tc.lower(MODEL, stage=X), "no stage array"),
    "dims of inspect": (lambda: tc.inspect(MODEL, dims=X), "dims is a ndarray"),
    "target kind": (lambda: tc.Target(kind=X), "kind must be a name"),
    "target vectors": (lambda: tc.Target(vector_bits=X), "vector_bits a whole number"),
    "stage": (lambda: tc.lower(MODEL, stage=3), "no stage 3"),
    "kernel": (lambda: tc.lower(MODEL, "loops").as_text(kernel="k"), "no kernel 'k'"),
    "kernel list": (lambda: tc.lower(MODEL, "loops").as_text(kernel=["k"]), r"no kernel \['k'\]"),
    "budget": (lambda: tc.tune(MODEL, "soon"), "budget: 'soon' is not a time"),
    "budget none": (lambda: tc.tune(MODEL, None), "budget: None is not a time"),
    "budget nan": (lambda: tc.tune(MODEL, float("nan")), "budget: nan"),
    "sizes": (lambda: tc.tune(MODEL, "1s", sizes={"batch": "4"}), "sizes: batch is '4'"),
    "sizes list": (lambda: tc.tune(MODEL, "1s", sizes=["batch"]), "sizes is a list"),
    "sizes unknown": (lambda: tc.tune(MODEL, "1s", sizes={"seq": 4}), "no symbolic dim .seq.; it has batch"),
    "trials": (lambda: tc.tune(MODEL, "1s", trials="many"), "trials is 'many'"),
    "tasks": (lambda: tc.tune(MODEL, "1s", tasks="exp"), "tasks is a str"),
    "tasks number": (lambda: tc.tune(MODEL, "1s", tasks=[3]), "tasks: 3 is not a pattern"),
    "seed": (lambda: tc.tune(MODEL, "1s", seed=-1), "seed is -1, must be a whole number, not negative"),
    "seed text": (lambda: tc.tune(MODEL, "1s", seed="a"), "seed is 'a'"),
    "database": (lambda: tc.tune(MODEL, "1s", database=3), "database is a int"),
    "callback": (lambda: tc.tune(MODEL, "1s", callback=3), "callback is a int, must be a function"),
    "load missing": (lambda: tc.load("nowhere.tcm"), "there is no file 'nowhere.tcm'"),
    "load folder": (lambda: tc.load("/"), "Is a directory"),
    "load number": (lambda: tc.load(3), "load: the path is a int"),
    "load none": (lambda: tc.load(None), "load: the path is a NoneType"),
    "load zero in name": (lambda: tc.load("a\0b"), "null"),
    "interpret no inputs": (lambda: tc.interpret(MODEL, {}), 'input "x" is missing; the inputs are: x'),
    "interpret unknown": (lambda: tc.interpret(MODEL, {"x": X, "z": X}), 'there is no input "z"'),
    "interpret list": (lambda: tc.interpret(MODEL, [X]), "the inputs are a list"),
    "interpret dtype": (lambda: tc.interpret(MODEL, {"x": X.astype(np.int32)}), 'input "x": dtype is int32, but must be f32'),
    "interpret text": (lambda: tc.interpret(MODEL, {"x": "abc"}), "x"),
    "interpret rank": (lambda: tc.interpret(MODEL, {"x": X[0]}), "x"),
}


@pytest.mark.parametrize("case", WRONG_REQUESTS)
def test_a_wrong_request_is_a_user_error_that_says_what_is_wrong(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    request, words = WRONG_REQUESTS[case]

    with pytest.raises(UserError, match=words):
        request()


WRONG_CALLS: dict[str, tuple[Callable[[tc.CompiledModule], Any], str]] = {
    "none": (lambda m: m(None), 'input "x" is a NoneType'),
    "text": (lambda m: m("abc"), 'input "x" is a str'),
    "list": (lambda m: m([[1.0, 2.0]]), 'input "x" is a list'),
    "too many": (lambda m: m(X, X), "2 arrays given, but the model has 1"),
    "none at all": (lambda m: m(), "0 arrays given"),
    "objects": (lambda m: m(X.astype(object)), "object"),
    "strings": (lambda m: m(np.array([["a"] * 4])), "<U1"),
    "records": (lambda m: m(np.zeros((2, 4), [("a", "f4")])), "dtype is"),
    "dates": (lambda m: m(np.zeros((2, 4), "M8[s]")), "datetime64"),
    "complex": (lambda m: m(X.astype(np.complex64)), "complex64"),
    "big-endian": (lambda m: m(X, out=X.astype(">f4")), "big-endian"),
    "run a list": (lambda m: m.run([X]), "the inputs are a list"),
    "run nothing": (lambda m: m.run({}), 'input "x" is missing'),
    "run none": (lambda m: m.run(None), "the inputs are a NoneType"),
    "run a number for a name": (lambda m: m.run({3: X}), "there is no input 3|there is no input \"3\""),
    "out text": (lambda m: m(X, out="abc"), "out"),
    "out too many": (lambda m: m(X, out=[X, X]), "out: 2 arrays given"),
    "peak negative": (lambda m: m.peak_bytes(batch=-1), "dim batch is -1, must be a whole number, not negative"),
    "peak text": (lambda m: m.peak_bytes(batch="4"), "dim batch is '4'"),
    "peak float": (lambda m: m.peak_bytes(batch=1.5), "dim batch is 1.5"),
    "peak unknown": (lambda m: m.peak_bytes(batch=1, seq=2), "there is no dim 'seq'; the dims are: batch"),
    "peak missing": (lambda m: m.peak_bytes(), "a value for dim batch is needed"),
    "explain unknown": (lambda m: m.explain("nope"), "no node 'nope'"),
    "explain list": (lambda m: m.explain(["exp"]), r"no node \['exp'\]"),
    "profile zero": (lambda m: m.profile(X, repeat=0), "repeat is 0, must be at least 1"),
    "profile text": (lambda m: m.profile(X, repeat="a"), "repeat is 'a'"),
    "profile float": (lambda m: m.profile(X, repeat=1.5), "repeat is 1.5"),
    "profile nothing": (lambda m: m.profile(), "0 arrays given"),
    "save number": (lambda m: m.save(3), "save: the path is a int"),
    "save nowhere": (lambda m: m.save("missing/m.tcm"), "save: 'missing/m.tcm' cannot be written: No such file"),
    "save over a folder": (lambda m: m.save("."), "cannot be written"),
    "address": (lambda m: m.address("nope"), "symbol 'nope'"),
}


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_a_wrong_call_is_an_error_that_says_what_is_wrong(
    case: str, module: tc.CompiledModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, words = WRONG_CALLS[case]

    with pytest.raises(TcError, match=words):
        call(module)


def test_numpy_integers_are_numbers() -> None:
    module = tc.compile(MODEL, dims={"batch": np.int64(2)}, threads=np.int32(1))

    assert module.threads == 1 and module.inputs[0].shape == (2, 4)
    assert tc.Dim(np.int64(1), np.int32(4)) == tc.Dim(1, 4)
    assert tc.compile(MODEL).peak_bytes(batch=np.int64(3)) == tc.compile(MODEL).peak_bytes(batch=3)


@pytest.mark.parametrize("data", [b"", b"\0", b"tcmodule", b"tcmodule" + bytes(100), pickle.dumps([1, 2]), bytes(1000), b"\xff" * 1000])
def test_bytes_that_are_no_model_or_module_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)

    for attempt in (lambda: tc.compile(data), lambda: tc.inspect(data), lambda: tc.compile(tmp_path / "file")):
        with pytest.raises(ModelError):
            attempt()
    with pytest.raises(ModelError):
        tc.load(tmp_path / "file")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer"),
        (b"\xef\xbb\xbf\n<!DOCTYPE html>\n<html>", "an HTML page"),
        (b"<HTML><head>", "an HTML page"),
        (b'<?xml version="1.0"?><net name="m">', "an XML file"),
        (b"PK\x03\x04" + bytes(30), "a zip archive"),
        (b"\x1f\x8b\x08" + bytes(30), "compressed by gzip"),
        (b"\x93NUMPY\x01\x00", "a numpy array"),
        (b"\x89HDF\r\n\x1a\n" + bytes(8), "an HDF5 file"),
        (b"\x1c\0\0\0TFL3" + bytes(8), "a TensorFlow Lite model"),
        (b"GGUF\x03\0\0\0", "a GGUF file"),
    ],
)
def test_files_of_other_kinds_are_called_by_their_name(data: bytes, words: str) -> None:
    with pytest.raises(ModelError, match=f"this is not an ONNX model but {words}"):
        tc.compile(data)


def test_a_compiled_module_given_for_a_model_is_called_by_its_name(module: tc.CompiledModule, tmp_path: Path) -> None:
    module.save(tmp_path / "m.onnx")

    for attempt in (tc.compile, tc.inspect, tc.lower):
        with pytest.raises(ModelError, match=r"a module that tc has compiled already: tc\.load and tc run take it"):
            attempt(tmp_path / "m.onnx")


def test_external_data_that_git_lfs_holds_is_called_by_its_name(tmp_path: Path) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="w.bin")
    values = [oh.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = oh.make_graph([oh.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    (tmp_path / "m.onnx").write_bytes(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9).SerializeToString())
    (tmp_path / "w.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 16\n")

    with pytest.raises(ModelError, match=r"'w'.*'w\.bin' is a Git LFS pointer"):
        tc.compile(tmp_path / "m.onnx")


def test_the_environment_says_how_many_threads_unless_the_call_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tc.compile(MODEL, threads=4).save(tmp_path / "m.tcm")
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert [tc.compile(MODEL).threads, tc.load(tmp_path / "m.tcm").threads] == [3, 3]
    monkeypatch.setenv("TC_NUM_THREADS", "2")
    assert [tc.compile(MODEL).threads, tc.load(tmp_path / "m.tcm").threads] == [2, 2]
    assert [tc.compile(MODEL, threads=1).threads, tc.load(tmp_path / "m.tcm", threads=1).threads] == [1, 1]
    assert tc.compile(MODEL, target="native:cores=1").threads == 1


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "1000000"])
def test_an_odd_number_of_threads_in_the_environment(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own variable is a request; the shared one may be meant for others."""
    usual = tc.compile(MODEL).threads
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert tc.compile(MODEL).threads == usual
    monkeypatch.setenv("TC_NUM_THREADS", text)
    with pytest.raises(UserError, match="TC_NUM_THREADS is '?" + text):
        tc.compile(MODEL)


def test_an_unknown_option_is_pythons_own_error_before_any_budget_is_spent() -> None:
    with pytest.raises(TypeError, match="thread"):
        tc.compile(MODEL, tune="1h", thread=2)
    with pytest.raises(UserError, match="numerics is 'fast'"):
        tc.compile(MODEL, tune="1h", numerics="fast")


def test_input_errors_are_of_their_class(module: tc.CompiledModule) -> None:
    with pytest.raises(InputError):
        module.peak_bytes(batch=-1)
