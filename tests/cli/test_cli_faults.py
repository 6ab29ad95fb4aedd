"""`tc compare` and `tc bisect`: the node, the pass and the kernel at fault."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import tc
from tc.check.bisect import pass_effects
from tc.cli import compare, main
from tc.errors import VerifyError
from tc.frontend.registry import import_model
from tc.ir.graph import Call
from tc.ir.module import IRModule
from tc.passes import manager
from tc.passes.manager import graph_pass, map_graph_functions
from tc.passes.pipeline import PassOptions
from tc.target import Target
from tests.frontend.models import make_model, node

F32 = np.float32


def model() -> onnx.ModelProto:
    """y = relu(x @ w) + 1, and the largest places of its rows."""
    nodes = [node("MatMul", "x w", "p"), node("Relu", "p", "r"), node("Add", "r one", "y"), node("ArgMax", "y", "k", axis=1)]
    weights = {"w": np.linspace(-1, 1, 12, dtype=F32).reshape(3, 4), "one": np.ones((), F32)}
    return make_model(nodes, {"x": (F32, ["n", 3])}, ["y", "k"], weights)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(model(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("against", ["onnxruntime", "reference"])
def test_nodes_that_agree_are_counted(path: Path, against: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(path), "--dims", "n=5", "--against", against, "--all"]) == 0

    text = " ".join(capsys.readouterr().out.split())
    assert f"agrees with {against}: 4 values compared" in text and "outputs of the model as it is compiled" in text


def test_strings_and_results_that_no_node_makes_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {
        "strings": """g (float[2, 4] x) => (float[2, 4] y, string[2] s) { s = Constant<value_strings = ["a", "b"]>() y = Relu(x) }""",
        "none": "g (float[2, 4] x) => (float[1] w) <float[1] w = {1.0}> { }",
    }
    for name, text in texts.items():
        made = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> ' + text)
        onnx.save(made, tmp_path / "m.onnx")

        assert main(["compare", str(tmp_path / "m.onnx")]) == 0
        assert f"{2 if name == 'strings' else 0} values compared" in " ".join(capsys.readouterr().out.split())


def test_the_first_node_that_differs_is_named(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        values = compare.run_reference(model, feeds)
        for k, value in enumerate(model.graph.output):
            if value.name in ("r", "y"):
                values[k] = values[k].copy()
                values[k].flat[2] += 8 * np.spacing(np.abs(values[k]).max()) * 1000
        return values

    monkeypatch.setitem(compare.RUNTIMES, "reference", wrong)
    code = main(["compare", str(path), "--dims", "n=5", "--against", "reference", "--json"])
    data = json.loads(capsys.readouterr().out)

    assert code == 3 and data["first"]["node"] == "the_r" and data["first"]["index"] == [0, 2]
    assert [each["error"] > 1e-4 for each in data["nodes"]] == [False, True, True, False]
    assert main(["compare", str(path), "--against", "reference", "--tolerance", "1"]) == 0


@pytest.mark.parametrize(
    ("a", "b", "ulps"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([1.0], [1.0 + 2**-23], 1),
        ([0.0], [-0.0], 0),
        ([1e-45], [-1e-45], 2),
        ([np.inf, 1.0], [np.inf, 1.0], 0),
    ],
)
def test_units_in_the_last_place_are_counted_through_zero(a: list[float], b: list[float], ulps: int) -> None:
    assert compare.difference(None, "y", np.array(a, F32), np.array(b, F32)).ulps == ulps


def test_integers_and_shapes_are_compared(path: Path) -> None:
    assert compare.difference(None, "k", np.array([2**62, 5]), np.array([2**62, 9])).ulps == 4
    assert compare.difference(None, "k", np.zeros((2, 1)), np.zeros((2, 2))).error == np.inf
    assert compare.difference(None, "k", np.array([np.nan], F32), np.array([1.0], F32)).error == np.inf
    assert compare.difference(None, "k", np.zeros(0, F32), np.zeros(0, F32)).error == 0


def test_what_cannot_be_compared_is_said(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tc.compile(path).save(tmp_path / "m.tcm")
    (tmp_path / "bad.onnx").write_bytes(b"no model")

    for arguments, words in [
        (["compare", str(tmp_path / "m.tcm")], "is a compiled module"),
        (["compare", str(tmp_path / "bad.onnx")], "this is not an ONNX model"),
        (["compare", str(tmp_path / "none.onnx")], "none.onnx"),
        (["compare", str(path), "--tolerance", "nan"], "--tolerance is nan"),
        (["bisect", str(tmp_path / "m.tcm")], "is a compiled module"),
        (["bisect", str(path), "--precision", "bf16"], "bisect follows the passes of f32"),
    ]:
        assert main(arguments) == 1
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run"], ["inspect"], ["compare"], ["reduce"], ["bisect"], ["quantize", "--output"]])
@pytest.mark.parametrize(
    "content, code", [(None, "TC1002"), (b"", "TC1001"), (b"\x08\x08", "TC1001"), (b"\x08", "TC1003"), ("pipe", "TC1002")]
)
def test_a_file_that_is_no_model_has_one_code(
    command: list[str], content: bytes | str | None, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    if content == "pipe":
        os.mkfifo(path)
        writer = os.open(path, os.O_RDWR)  # else who opens it would wait for one
        os.write(writer, model().SerializeToString())
    elif isinstance(content, bytes):
        path.write_bytes(content)

    output = [str(tmp_path / "q.onnx"), "--mode", "dynamic"] if "--output" in command else []

    assert main([command[0], str(path), *command[1:], *output]) == 1
    assert code in capsys.readouterr().err


def test_passes_that_keep_the_model_are_listed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", str(path), "--dims", "n=5"]) == 0

    text = " ".join(capsys.readouterr().out.split())
    assert "no pass changes what the model computes" in text and "fuse_ops" in text


def test_a_pass_that_changes_the_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "PASSES", dict(manager.PASSES))

    @graph_pass
    def lose_relu(module: IRModule) -> IRModule:
        def change(func: object) -> object:
            bindings = [
                dataclasses.replace(b, value=Call("abs", b.value.args, ())) if getattr(b.value, "op", "") == "relu" else b
                for b in func.bindings  # type: ignore[attr-defined]
            ]
            return dataclasses.replace(func, bindings=tuple(bindings))  # type: ignore[type-var]

        return map_graph_functions(module, change)  # type: ignore[arg-type]

    imported = import_model(model())
    inputs = {"x": np.random.default_rng(0).standard_normal((5, 3)).astype(F32)}
    passes = PassOptions(text="canonicalize, lose_relu, fuse_ops")

    found = list(pass_effects(imported, inputs, Target.parse("native"), passes=passes))

    assert [(each.name, each.error > 1e-2) for each in found] == [("canonicalize", False), ("lose_relu", True), ("fuse_ops", True)]


def test_a_kernel_that_does_not_compute_its_loops_is_found(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = tc.compile

    def compile_(*args: object, **options: object) -> object:
        if options.get("verify") == "always":
            raise VerifyError("kernel matmul_relu_add: y differs from the reference interpreter: ...")
        return real(*args, **options)

    monkeypatch.setattr(tc, "compile", compile_)
    code = main(["bisect", str(path), "--json"])

    assert code == 3 and "matmul_relu_add" in json.loads(capsys.readouterr().out)["kernel"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile", "m.onnx", "-o", "m.onnx"],
        ["compile", "m.onnx", "--emit", "graph", "-o", "m.onnx"],
        ["tune", "m.onnx", "--budget", "1s", "--report", "m.onnx", "--db", "t.db"],
        ["quantize", "m.onnx", "--mode", "weights", "-o", "m.onnx"],
        ["quantize", "m.onnx", "--mode", "weights", "-o", "../folder/m.onnx"],
    ],
)
def test_the_model_is_never_written_over(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    onnx.save(model(), "m.onnx")
    before = Path("m.onnx").read_bytes()

    assert main(arguments) == 1

    assert Path("m.onnx").read_bytes() == before


@pytest.mark.parametrize(
    ("redirected", "encoding", "code", "words"),
    [(">&-", "utf-8", 0, ""), ("> /dev/full", "utf-8", 1, "No space left on device"), ("> /dev/null", "ascii", 0, "")],
)
def test_standard_output_may_be_closed_full_or_of_few_letters(
    path: Path, redirected: str, encoding: str, code: int, words: str
) -> None:
    """Broke: an internal error."""
    command = f'"{sys.executable}" -m tc run "{path}" --dims n=2 {redirected}'
    done = subprocess.run(["sh", "-c", command], env={**os.environ, "PYTHONIOENCODING": encoding}, stderr=subprocess.PIPE, text=True)

    assert done.returncode == code and words in done.stderr and "internal error" not in done.stderr


def test_a_full_disk_is_told_of_the_file_that_was_asked_for(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It named a file of its own, which it had removed."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)

    assert main(["compile", str(path), "-o", str(tmp_path / "out.tcm")]) == 1
    message = capsys.readouterr().err
    assert f"{str(tmp_path / 'out.tcm')!r} cannot be written: No space left on device" in message and ".part" not in message
    assert not [each for each in tmp_path.iterdir() if each.suffix == ".tcm"]


def test_nothing_is_written_over_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.onnx"
    onnx.save(make_model([node("Relu", "x", "y")], {"x": (np.float32, [2])}, ["y"]), path)
    np.savez("in.npz", x=np.ones(2, np.float32))
    np.save("x.npy", np.ones(2, np.float32))
    Path("t.db").write_bytes(b'{"format":"tc-tuning","version":1}\n')
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    wrong = [
        (["run", "m.onnx", "--inputs", "in.npz", "-o", "in.npz"], "that is the file of --inputs"),
        (["tune", "m.onnx", "--db", "t.db", "--report", "t.db"], "that is the database"),
        (["reduce", "m.onnx", "--inputs", "in.npz", "-o", "in"], "that is the file of --inputs"),
        (["reduce", "m.onnx", "--threads", "0"], "--threads is 0, must be at least 1"),
        (["reduce", "m.onnx", "--seconds", "-1"], "--seconds is -1"),
        (["run", "m.onnx", "--inputs", "x.npy"], "holds one array, no .npz file"),
        (["compile", "m.onnx", "--dims", "n=3,n=4"], "n is given twice"),
    ]

    for arguments, words in wrong:
        assert main(arguments) == 1, arguments
        assert words in " ".join(capsys.readouterr().err.split()), arguments

    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("package", ["llvmlite", "rich"])  # the first is imported by tc itself, the second by its command line alone
@pytest.mark.parametrize("how", ["python -m tc", "tc", "a program"])
def test_an_interrupt_during_imports_ends_commands_quietly_and_nothing_else(how: str, package: str, tmp_path: Path) -> None:
    """`python -m tc` imports all of tc before the first line of tc/__main__.py, and so did the script: both ended with a traceback."""
    interrupt = "signal.signal(signal.SIGINT, signal.default_int_handler)\nos.kill(os.getpid(), signal.SIGINT)"  # may have been ignored
    (tmp_path / f"{package}.py").write_text(f"import os, signal, time\n{interrupt}\ntime.sleep(60)\n")
    script = tmp_path / ("tc" if how == "tc" else "program.py")
    script.write_text("from tc.__main__ import main\nraise SystemExit(main())\n" if how == "tc" else "import tc, tc.cli\n")
    command = ["-m", "tc", "doctor"] if how == "python -m tc" else [str(script), "doctor"]
    paths = os.pathsep.join(filter(None, (str(tmp_path), str(Path(tc.__file__).parent.parent), os.environ.get("PYTHONPATH"))))

    done = subprocess.run([sys.executable, *command], env={**os.environ, "PYTHONPATH": paths}, cwd="/", capture_output=True, text=True)

    if how == "a program":
        assert done.returncode == -signal.SIGINT and done.stderr.endswith("KeyboardInterrupt\n")
    else:
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
