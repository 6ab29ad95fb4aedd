"""Whole modules on disk: found again with the same bits, and never what something else would have made."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx import TensorProto, numpy_helper

import tc
from tc import compiler
from tc.errors import ModelError, UserError
from tc.frontend.registry import import_model
from tc.runtime import builder
from tc.runtime.module_cache import ModelKey, ModuleCache
from tc.runtime.saved import Seal, read_module, write_module


def model(seed: int = 0, nodes: tuple[str, ...] = ("Tanh", "Softmax")) -> bytes:
    """A symbolic number of rows through a matrix product and some functions."""
    w = np.random.default_rng(seed).standard_normal((24, 19)).astype(np.float32)
    names = [f"v{k}" for k in range(len(nodes) + 1)]
    graph = oh.make_graph(
        [
            oh.make_node("MatMul", ["x", "w"], ["v0"], "product"),
            *(oh.make_node(kind, [a], [b], kind.lower()) for kind, a, b in zip(nodes, names[:-1], names[1:], strict=True)),
        ],
        "g",
        [oh.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 24])],
        [oh.make_tensor_value_info(names[-1], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9).SerializeToString()


X = np.random.default_rng(5).standard_normal((7, 24)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own; the answer is where modules lie in it."""
    monkeypatch.setenv("TC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "modules"


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tcm"))


def name_of(model: bytes, *facts: object) -> str:
    return ModelKey(model, facts).name


def was_cached(module: tc.CompiledModule) -> bool:
    return [name for name, _ in module.report().seconds] == ["load from cache"]


@pytest.fixture
def no_compiling(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Once called, nothing may be compiled any more."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("compiled again")

    return lambda: monkeypatch.setattr(compiler, "run_stages", refuse)


def test_the_second_time_is_a_file_and_gives_the_same_bits(folder: Path, no_compiling: Callable[[], None]) -> None:
    data = model()
    first = tc.compile(data)
    no_compiling()

    second = tc.compile(data)

    assert not was_cached(first) and was_cached(second)
    np.testing.assert_array_equal(first(X).view(np.uint32), second(X).view(np.uint32))
    assert first.inputs == second.inputs and first.outputs == second.outputs and first.threads == second.threads
    assert first.peak_bytes(n=9) == second.peak_bytes(n=9)
    assert first.explain("tanh") == second.explain("tanh")
    assert [k.name for k in first.report().kernels] == [k.name for k in second.report().kernels]


def test_a_file_and_its_bytes_are_one_model(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model())
    tc.compile(path)

    assert was_cached(tc.compile(str(path)))
    assert was_cached(tc.compile(path.read_bytes()))


@pytest.mark.parametrize(
    "changes",
    [
        {"dims": {"n": 7}},
        {"dims": {"n": tc.Dim(1, 8)}},
        {"dims": {"n": tc.Dim(1, 9)}},
        {"threads": 3},
        {"numerics": "strict"},
        {"target": "x86-64-v2"},
        {"on_unsupported": "error"},
    ],
    ids=str,
)
def test_what_decides_the_result_is_part_of_the_key(folder: Path, changes: dict) -> None:
    data = model()
    tc.compile(data)
    tc.compile(data, dims={"n": tc.Dim(1, 10)})

    other = tc.compile(data, **changes)
    again = tc.compile(data, **changes)

    assert not was_cached(other) and was_cached(again)
    assert len(entries(folder)) == 3
    assert again.threads == other.threads and again.target == other.target
    np.testing.assert_array_equal(other(X), again(X))


def test_another_model_is_another_entry(folder: Path) -> None:
    made = [tc.compile(data) for data in (model(), model(1), model(0, ("Tanh", "Sigmoid")))]

    assert not any(map(was_cached, made)) and len(entries(folder)) == 3
    assert not np.array_equal(made[0](X), made[1](X))


def test_another_compiler_does_not_find_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = model()
    tc.compile(data)

    monkeypatch.setattr("tc.runtime.module_cache.compiler_fingerprint", lambda: "edited")

    assert not was_cached(tc.compile(data))


def test_the_key_is_of_bytes_and_facts() -> None:
    contents = ((b"a",), (b"b",), (b"a", 1), (b"a", "1"), (b"a", 1, 1))

    assert len({name_of(*each) for each in contents}) == 5
    assert [name_of(*each) for each in contents] == [name_of(*each) for each in contents]


def test_a_key_begins_with_what_is_known_at_once() -> None:
    key, same_size, other = ModelKey(b"ab", (1,)), ModelKey(b"cd", (1,)), ModelKey(b"abc", (1,))

    assert key.beginning == same_size.beginning != other.beginning
    assert key.name.startswith(key.beginning) and key.name != same_size.name


def test_the_bytes_of_a_model_are_hashed_beside_where_no_file_can_be_its_module(tmp_path: Path) -> None:
    cache, beside = ModuleCache(tmp_path), []
    key, same_size = ModelKey(b"ab", (1,)), ModelKey(b"cd", (1,))

    missed = cache.find_model(key, lambda path, seal: path, beside.append)
    cache.store_model(key, 900, _writer(1500))
    found = cache.find_model(key, lambda path, seal: path, beside.append)
    unlike = cache.find_model(same_size, lambda path, seal: path, beside.append)

    assert missed is None and [task() for task in beside] == [key.name]
    assert found == tmp_path / f"{key.name}.tcm" and unlike is None


def test_a_module_of_a_file_that_changes_meanwhile_is_not_kept(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key would be that of one of the contents, and it made of the other."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model(seed=1))
    importing = compiler.import_model

    def import_and_change(*arguments: object) -> object:
        imported = importing(*arguments)  # type: ignore[arg-type]
        path.write_bytes(model(seed=2))
        os.utime(path, (1000, 1000))
        return imported

    monkeypatch.setattr(compiler, "import_model", import_and_change)
    tc.compile(str(path))

    assert entries(folder) == []


@pytest.mark.parametrize("damage", ["empty", "truncated", "one byte", "other version", "not a module"])
def test_a_damaged_file_is_rebuilt(folder: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    data = model()
    wanted = tc.compile(data)(X)
    (path,) = entries(folder)
    whole = bytearray(path.read_bytes())
    match damage:
        case "empty":
            whole = bytearray()
        case "truncated":
            whole = whole[: len(whole) // 2]
        case "one byte":
            whole[len(whole) // 2] ^= 1
        case "other version":
            whole[8] += 1
        case _:
            whole[:8] = b"somedata"
    path.write_bytes(whole)

    again = tc.compile(data)

    assert not was_cached(again) and "will be rebuilt" in caplog.text
    np.testing.assert_array_equal(again(X), wanted)
    assert was_cached(tc.compile(data))


@pytest.mark.parametrize("missing", ["layout", "constants", "target"])
def test_a_file_with_a_true_hash_and_a_wrong_header_is_refused(folder: Path, missing: str) -> None:
    data = model()
    path = folder.parent.parent / "saved.tcm"
    tc.compile(data).save(path)
    header, sections = read_module(path)
    copies = [np.array(section) for section in sections]
    write_module(path, {name: value for name, value in header.items() if name != missing}, copies)

    with pytest.raises(ModelError):
        tc.load(path)


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("TC_CACHE_DIR", str(tmp_path / "file"))
    data = model()

    first, second = tc.compile(data), tc.compile(data)

    assert not was_cached(second) and "compiled code is not cached" in caplog.text
    np.testing.assert_array_equal(first(X), second(X))


def test_a_folder_that_is_only_read_serves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = model()
    tc.compile(data)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "utime", refuse)  # an administrator's tests may write anywhere

    assert was_cached(tc.compile(data))


def test_a_full_disk_leaves_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)

    module = tc.compile(model())

    assert module(X).shape == (7, 19)
    assert entries(folder) == [] and not list(folder.glob(".*.tmp"))


def test_switched_off_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TC_CACHE_DIR", "off")
    data = model()
    tc.compile(data)

    assert not was_cached(tc.compile(data))


def _writer(size: int) -> Callable[[Path, Seal], None]:
    def write(path: Path, seal: Seal) -> None:
        path.write_bytes(bytes(size))

    return write


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = ModuleCache(tmp_path, limit_bytes=4000)
    for k in range(2):
        cache.store(f"key{k}", 900, _writer(1500))
        os.utime(tmp_path / f"key{k}.tcm", (1000 + k, 1000 + k))
    cache.find("key0", lambda path, seal: path)  # used just now

    cache.store("key2", 900, _writer(1500))

    assert [path.stem for path in entries(tmp_path)] == ["key0", "key2"]


def test_what_is_large_beside_the_bound_is_not_kept(tmp_path: Path) -> None:
    cache = ModuleCache(tmp_path, limit_bytes=4000)

    cache.store("key", 1001, _writer(0))

    assert entries(tmp_path) == []


def _compile_often(folder: str, data: bytes, seed: int) -> bytes:
    os.environ["TC_CACHE_DIR"] = folder
    results = set()
    for k in range(6):
        if (k + seed) % 3 == 0:
            for path in (Path(folder) / "modules").glob("*.tcm"):
                path.unlink(missing_ok=True)
        results.add(tc.compile(data)(X).tobytes())
    (result,) = results
    return result


def test_two_processes_that_compile_and_remove_at_once_agree(tmp_path: Path) -> None:
    data = model()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.starmap(_compile_often, [(str(tmp_path / "cache"), data, seed) for seed in range(2)])

    assert found[0] == found[1]
    left = {path.suffix for path in (tmp_path / "cache" / "modules").iterdir() if path.name != ".lock"}
    assert left <= {".tcm", ".lock"}  # no half of a file


def test_a_profile_of_a_cached_module_names_its_kernels(folder: Path) -> None:
    data = model()
    first = tc.compile(data)
    second = tc.compile(data)

    rows, again = first.profile(X, repeat=2), second.profile(X, repeat=2)

    assert was_cached(second)
    assert {(row.node, row.kernel) for row in rows} == {(row.node, row.kernel) for row in again}
    assert all(row.seconds > 0 for row in again)


def test_what_profiles_is_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = model()
    tc.compile(data)
    cached = tc.compile(data)
    first = cached.profile(X, repeat=1)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(builder.ObjectQueue, "put", refuse)
    again = cached.profile(X, repeat=1)

    assert was_cached(cached)
    assert sorted((row.node, row.kernel) for row in again) == sorted((row.node, row.kernel) for row in first)


def test_a_file_that_changed_after_compiling_is_not_profiled(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model())
    tc.compile(path)
    cached = tc.compile(path)
    path.write_bytes(model(1))

    with pytest.raises(UserError, match="has changed"):
        cached.profile(X)


def test_a_cached_module_can_be_saved_again(folder: Path, tmp_path: Path) -> None:
    data = model()
    tc.compile(data)
    cached = tc.compile(data)

    cached.save(tmp_path / "copy.tcm")

    np.testing.assert_array_equal(tc.load(tmp_path / "copy.tcm")(X), cached(X))


def test_models_with_data_in_other_files_are_compiled_anew(folder: Path, tmp_path: Path) -> None:
    proto = onnx.load_from_string(model())
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = tc.compile(path)(X)
    weights = np.fromfile(tmp_path / "weights.bin", np.float32)
    (-weights).tofile(tmp_path / "weights.bin")

    after = tc.compile(path)

    assert not was_cached(after) and entries(folder) == []
    assert not np.array_equal(after(X), before)


@pytest.mark.parametrize("kind", ["proto", "IR"])
def test_what_has_no_bytes_is_not_cached(folder: Path, kind: str) -> None:
    given = onnx.load_from_string(model()) if kind == "proto" else import_model(model()).module
    tc.compile(given)

    assert not was_cached(tc.compile(given)) and entries(folder) == []


def test_a_module_with_nodes_on_reference_kernels_is_cached_too(folder: Path) -> None:
    graph = oh.make_graph(
        [oh.make_node("NonZero", ["x"], ["y"])],
        "g",
        [oh.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [oh.make_tensor_value_info("y", TensorProto.INT64, None)],
    )
    data = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9).SerializeToString()
    x = np.eye(3, 4, dtype=np.float32)
    first = tc.compile(data)

    second = tc.compile(data)

    assert was_cached(second) and second.report().fallbacks == first.report().fallbacks
    np.testing.assert_array_equal(second(x), np.array(x.nonzero()))


def test_always_verifying_is_never_answered_from_the_cache(folder: Path) -> None:
    data = model()
    tc.compile(data)

    assert not was_cached(tc.compile(data, verify="always"))


def test_the_header_is_plain_json(folder: Path) -> None:
    path = folder.parent.parent / "saved.tcm"
    tc.compile(model()).save(path)

    header, _ = read_module(path)

    assert json.loads(json.dumps(header)) == header
