"""What users get when `tc` itself fails: an error that says where, and a folder that does it again."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tc.check import reproducer
from tc.check.cut import part_of, smallest_part
from tc.check.reproducer import MOST_FOLDERS, read_failure, run_again, stand_in
from tc.cli.main import main
from tc.codegen import kernels
from tc.errors import InternalError, ModelError, ScheduleError, VerifyError
from tc.frontend.onnx import node_context
from tc.ir.graph import Call, all_bindings
from tc.ir.loop import For
from tc.ir.module import IRModule
from tc.ir.node import walk
from tc.ir.parser import parse_module
from tc.passes.manager import PASSES

F32 = np.float32


def chain(*ops: str, weights: np.ndarray | None = None) -> onnx.ModelProto:
    """x [n, 64] through operators of one input each; where weights are given, a product with them first."""
    nodes, name, initializers = [], "x", []
    if weights is not None:
        nodes.append(helper.make_node("MatMul", ["x", "w"], ["h"], name="product"))
        initializers, name = [numpy_helper.from_array(weights, "w")], "h"
    for k, op in enumerate(ops):
        nodes.append(helper.make_node(op, [name], [f"v{k}"], name=f"{op}_{k}"))
        name = f"v{k}"
    x, y = (helper.make_tensor_value_info(each, TensorProto.FLOAT, ["n", 64]) for each in ("x", name))
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], initializers), opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where reproducers go; nothing is taken from the cache of modules."""
    monkeypatch.setenv("TC_REPRODUCERS", str(tmp_path / "failures"))
    monkeypatch.setenv("TC_CACHE_DIR", "off")
    return tmp_path / "failures"


@contextmanager
def failing_pass(name: str, op: str) -> Iterator[None]:
    """A pass of the graph with an error: it fails where it meets an operator."""
    entry = PASSES[name]
    usual = entry.run

    def run(module: IRModule, **options: Any) -> IRModule:
        for func in module.graph_functions:
            for binding in all_bindings(func):
                if isinstance(binding.value, Call) and binding.value.op == op:
                    raise KeyError(op)
        return usual(module, **options)

    object.__setattr__(entry, "run", run)
    try:
        yield
    finally:
        object.__setattr__(entry, "run", usual)


def fails(model: Any, **options: Any) -> InternalError:
    with pytest.raises(InternalError) as caught:
        tc.compile(model, **options)
    return caught.value


def again(folder: str | None) -> None:
    assert folder is not None
    run_again(Path(folder), lambda model, options: tc.compile(model, **options))


def test_a_pass_that_fails_is_named_and_kept_with_the_part_of_the_graph(folders: Path) -> None:
    with failing_pass("remove_dead_code", "erf"):
        error = fails(chain("Relu", "Tanh", "Erf", "Exp", "Sqrt"))

        assert error.code == "TC3900" and isinstance(error.__cause__, KeyError)
        assert "tc failed in remove_dead_code: KeyError: 'erf'" in str(error) and "it fails alone" in str(error)
        assert error.reproducer is not None and error.reproducer in str(error) and error.reproducer.startswith(str(folders))
        module = parse_module((Path(error.reproducer) / "program.tc").read_text())
        assert [b.value.op for b in all_bindings(module.main) if isinstance(b.value, Call)] == ["erf"]
        with pytest.raises(KeyError):
            again(error.reproducer)
    again(error.reproducer)  # without the error in tc


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="there are no alarms here")
def test_an_error_of_a_handler_of_signals_is_the_users(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alarm that ends what takes too long was told as an error in `tc`."""

    def too_late(number: int, frame: object) -> None:
        raise LookupError("too late")

    usual = kernels.apply_rules
    monkeypatch.setattr(kernels, "apply_rules", lambda *args, **options: (signal.raise_signal(signal.SIGALRM), usual(*args, **options))[1])
    before = signal.signal(signal.SIGALRM, too_late)
    try:
        with pytest.raises(LookupError, match="too late"):
            tc.compile(chain("Relu"))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not folders.exists() or not any(folders.iterdir())


def test_a_kernel_that_cannot_be_scheduled_is_kept_as_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = kernels.apply_rules

    def broken(func: Any, target: Any, **options: Any) -> Any:
        assert sum(isinstance(node, For) for node in walk(func.body)) < 3, "no kernel has three loops"
        return usual(func, target, **options)

    monkeypatch.setattr(kernels, "apply_rules", broken)
    model = chain("Relu", weights=np.ones((64, 64), F32))

    error = fails(model, target="x86-64-v3")

    assert "tc failed in schedule: AssertionError: no kernel has three loops" in str(error) and "it fails alone" in str(error)
    facts = read_failure(Path(str(error.reproducer)))
    assert facts["kind"] == "kernel" and facts["options"]["target"].startswith("x86-64-v3") and facts["versions"]["tc"] == tc.__version__
    with pytest.raises(AssertionError):
        again(error.reproducer)
    monkeypatch.undo()
    monkeypatch.setenv("TC_CACHE_DIR", "off")
    again(error.reproducer)


def test_a_node_that_cannot_be_imported_is_kept_as_a_model_of_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(n: Any) -> Any:
        return {}[n.op_type]

    monkeypatch.setitem(node_context.ADAPTERS, ("", "Tanh"), [(1, broken)])

    error = fails(chain("Relu", "Tanh", "Exp"))

    assert "tc failed in import: KeyError: 'Tanh'" in str(error) and "it fails alone" in str(error)
    model = onnx.load(Path(str(error.reproducer)) / "model.onnx")
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Tanh"]
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [0, 64]


def test_errors_of_schedules_keep_their_class_and_say_where_the_kernel_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(func: Any, target: Any, **options: Any) -> Any:
        raise ScheduleError("split: no such loop")

    monkeypatch.setattr(kernels, "apply_rules", broken)

    with pytest.raises(ScheduleError, match=r"split: no such loop; what it was at is in .*it fails alone.*\[TC3030\]"):
        tc.compile(chain("Relu"))


def test_errors_of_a_users_ir_are_the_users(folders: Path) -> None:
    wrong = parse_module("@graph\ndef main(x: f32[4]):\n    y: f32[4] = relu(x)\n    return y\n")
    broken = IRModule((*wrong.functions, *wrong.functions))

    with pytest.raises(VerifyError) as caught:
        tc.compile(broken)

    assert caught.value.hint == "" and not folders.exists()


def test_no_weights_are_kept(folders: Path) -> None:
    weights = np.random.default_rng(7).standard_normal((64, 64)).astype(F32) + F32(5)
    with failing_pass("pack_matmul", "matmul"):
        error = fails(chain("Relu", weights=weights))

    kept = b"".join(path.read_bytes() for path in Path(str(error.reproducer)).iterdir())
    assert len(kept) > weights.nbytes
    for row in weights:
        for start in range(0, 64, 8):
            assert row[start : start + 8].tobytes() not in kept


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint8, np.int64, np.bool_])
def test_what_stands_for_a_literal_is_like_it(dtype: Any) -> None:
    values = (np.random.default_rng(0).standard_normal(10_000) * 20 + 40).clip(0, 100).astype(dtype)

    found = stand_in(values)

    assert found.dtype == values.dtype and found.shape == values.shape and not np.array_equal(found, values)
    wide = values.astype(np.float64)
    assert wide.min() <= found.min() and found.max() <= wide.max()
    assert abs(found.astype(np.float64).mean() - wide.mean()) < 2
    small = values[:10]
    assert stand_in(small) is small


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_stands_for_a_literal_of_no_numbers_is_zero(value: float) -> None:
    assert not stand_in(np.full(5000, value, F32)).any()


def test_what_fails_when_sizes_ask_for_another_program_is_told_alike(folders: Path) -> None:
    """The program that assumes nothing of dims is compiled in the first call that needs it."""
    names = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{name}0", f"{name}1"]) for name in ("x", "y", "z")]
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Add", ["h", "y"], ["z"])]
    graph = helper.make_graph(nodes, "g", names[:2], names[2:])
    module = tc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))

    with failing_pass("fuse_ops", "relu"), pytest.raises(InternalError) as raised:
        module(np.ones((3, 4), F32), np.ones((1, 4), F32))

    assert "tc failed in fuse_ops: KeyError: 'relu'" in str(raised.value) and list(folders.iterdir())


def test_it_can_be_switched_off(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TC_REPRODUCERS", "off")
    with failing_pass("fuse_ops", "relu"):
        error = fails(chain("Relu"))

    assert error.reproducer is None and "TC_REPRODUCERS=off" in str(error) and not folders.exists()


def test_a_folder_that_cannot_be_written_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TC_REPRODUCERS", str(tmp_path / "file"))
    with failing_pass("fuse_ops", "relu"):
        error = fails(chain("Relu"))

    assert "tc failed in fuse_ops: KeyError: 'relu'" in str(error) and "no reproducer could be written" in str(error)


def test_an_error_in_what_writes_reproducers_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(reproducer, "_failure_of", broken)
    with failing_pass("fuse_ops", "relu"):
        error = fails(chain("Relu"))

    assert "KeyError: 'relu'" in str(error) and "no reproducer could be written (ZeroDivisionError" in str(error)


def test_the_number_of_folders_is_bounded_and_other_files_stay(folders: Path) -> None:
    folders.mkdir()
    (folders / "notes").mkdir()
    ops = ["Relu", "Tanh", "Erf", "Exp", "Sqrt", "Neg", "Abs", "Sin", "Cos", "Floor", "Ceil", "Sigmoid"]
    with failing_pass("remove_dead_code", "round"):
        for k in range(MOST_FOLDERS + 3):
            model = chain("Round")
            model.graph.node[0].name = f"{ops[k % len(ops)]}_{k}"
            fails(model)

    assert len([each for each in folders.iterdir() if (each / "failure.json").exists()]) == MOST_FOLDERS
    assert (folders / "notes").is_dir()


def test_the_command_does_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(chain("Relu", "Erf"), path)
    with failing_pass("fuse_ops", "erf"):
        assert main(["run", str(path), "--json"]) == 5
        told = json.loads(capsys.readouterr().out)["error"]
        assert told["code"] == "TC3900" and told["reproducer"] in told["message"]

        assert main(["reproduce", told["reproducer"], "--json"]) == 5
        assert json.loads(capsys.readouterr().out)["same"] is True
    assert main(["reproduce", told["reproducer"]]) == 0
    assert "no error" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", [None, "", "{}", '{"kind": "pass"}', "[1]", '{"kind": 3, "step": 1, "error": {"type": 1, "at": 2}, "options": {}}']
)
def test_a_folder_that_is_no_reproducer_is_an_error_of_the_user(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "failure.json").write_text(text)

    with pytest.raises(ModelError):
        run_again(tmp_path, lambda *_: None)


# -- parts of graphs

IN_LINE = ("relu", "tanh", "erf", "exp", "neg", "abs", "sqrt")
LINE = "@graph\ndef main(x: f32[4]):\n" + "".join(
    f"    v{k + 1}: f32[4] = {op}({'x' if not k else f'v{k}'})\n" for k, op in enumerate(IN_LINE)
)


@pytest.mark.parametrize("wanted", [("relu",), ("sqrt",), ("erf",), ("tanh", "exp"), ("relu", "sqrt"), ()])
def test_the_smallest_part_has_just_what_fails(wanted: tuple[str, ...]) -> None:
    module = parse_module(LINE + "    return v7\n")
    ops = [b.value.op for b in module.main.bindings if isinstance(b.value, Call)]

    def has_all(part: IRModule) -> bool:
        return set(wanted) <= {b.value.op for b in part.main.bindings if isinstance(b.value, Call)}

    part = smallest_part(module, has_all)

    found = [b.value.op for b in part.main.bindings if isinstance(b.value, Call)]
    places = [ops.index(op) for op in wanted] or [0]
    assert found == ops[min(places) : max(places) + 1]


def test_a_part_of_a_graph_takes_what_came_before_and_gives_what_comes_after(rng: np.random.Generator) -> None:
    module = parse_module(LINE + "    return (v3, v7)\n")
    x = rng.standard_normal(4).astype(F32)

    part = part_of(module, 1, 4)

    assert [p.name for p in part.main.params] == ["v1"] and part.main.results == tuple(b.targets[0] for b in part.main.bindings[1:])
    assert len(tc.compile(part)(np.maximum(x, 0))) == 2


def test_what_fails_nowhere_is_kept_whole() -> None:
    module = parse_module(LINE + "    return v7\n")
    assert smallest_part(module, lambda part: False) is module
    assert smallest_part(module, lambda part: True, budget_seconds=0.0) is module

