"""Native code is only taken from a cache that nobody but the user can have written.

Before, the folders were made with the mode that the umask gave (0755), nobody looked at their owner, and entries carried a plain hash
that whoever could write a file could make.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import stat
import struct
from pathlib import Path

import numpy as np
import onnx.helper as oh
import pytest
from onnx import TensorProto

import tc
from tc.runtime.cache_root import cache_problem, open_cache_folder
from tc.runtime.module_cache import ModuleCache
from tc.runtime.object_cache import ObjectCache
from tc.runtime.saved import plain_seal, read_module, write_module

NOBODY = 65534
X = np.arange(4, dtype=np.float32)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can give files away")


def model() -> bytes:
    value = [oh.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = oh.make_graph([oh.make_node("Exp", ["x"], ["y"], "exp")], "g", value[:1], value[1:])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9).SerializeToString()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TC_CACHE_DIR", str(tmp_path / "deep" / "cache"))
    return tmp_path / "deep" / "cache"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def was_cached(module: tc.CompiledModule) -> bool:
    return [name for name, _ in module.report().seconds] == ["load from cache"]


def test_every_folder_is_the_users_alone_whatever_the_umask(root: Path) -> None:
    before = os.umask(0)
    try:
        tc.compile(model())
    finally:
        os.umask(before)

    folders = [root.parent, root, *(path for path in root.rglob("*") if path.is_dir())]
    assert len(folders) >= 5
    assert {mode(folder) for folder in folders} == {0o700}
    assert mode(root / "key") == 0o600


def test_a_folder_that_others_may_read_is_closed_to_them_inside(root: Path) -> None:
    (root / "modules").mkdir(parents=True)
    root.chmod(0o755)
    (root / "modules").chmod(0o755)

    tc.compile(model())

    assert mode(root / "modules") == mode(root / "objects") == 0o700
    assert was_cached(tc.compile(model()))


@pytest.mark.parametrize("bits", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_left_alone(root: Path, bits: int, caplog: pytest.LogCaptureFixture) -> None:
    root.mkdir(parents=True)
    root.chmod(bits)

    first, second = tc.compile(model()), tc.compile(model())

    assert not was_cached(second) and list(root.iterdir()) == []
    np.testing.assert_array_equal(first(X), second(X))
    assert [r.message for r in caplog.records if "other users may write to" in r.message and str(root) in r.message] != []
    assert len([r for r in caplog.records if r.name == "tc.cache"]) == 1


@as_root
@pytest.mark.parametrize("part", ["", "modules", "objects"])
def test_a_folder_of_another_user_is_left_alone(root: Path, part: str, caplog: pytest.LogCaptureFixture) -> None:
    (root / part).mkdir(parents=True)
    os.chown(root / part, NOBODY, NOBODY)

    tc.compile(model())

    assert list((root / part).iterdir()) == []
    assert f"belongs to user {NOBODY}" in caplog.text
    assert not was_cached(tc.compile(model())) or part == "objects"


@pytest.mark.parametrize("kind", ["mode", "owner", "link", "size", "folder"])
def test_a_key_that_others_may_know_is_not_used(root: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    tc.compile(model())
    key = root / "key"
    match kind:
        case "mode":
            key.chmod(0o640)
        case "owner" if os.geteuid() == 0:
            os.chown(key, NOBODY, NOBODY)
        case "owner":
            pytest.skip("only the administrator can give files away")
        case "link":
            key.rename(root / "other")
            key.symlink_to(root / "other")
        case "size":
            key.write_bytes(b"short")
        case _:
            key.unlink()
            key.mkdir()

    again = tc.compile(model())

    assert not was_cached(again) and "not cached" in caplog.text and str(key) in caplog.text
    assert cache_problem(root) is not None


def test_another_key_finds_nothing(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = tc.compile(model())(X)
    (root / "key").unlink()

    again = tc.compile(model())

    assert not was_cached(again) and "will be rebuilt" in caplog.text
    np.testing.assert_array_equal(again(X), wanted)
    assert was_cached(tc.compile(model()))


def test_a_module_with_a_true_plain_hash_is_a_forgery(root: Path, tmp_path: Path) -> None:
    tc.compile(model())
    (entry,) = (root / "modules").glob("*.tcm")
    other = tc.compile(model(), numerics="strict")
    other.save(tmp_path / "forged.tcm")  # all that one needs to know without the key
    entry.write_bytes((tmp_path / "forged.tcm").read_bytes())

    assert not was_cached(tc.compile(model()))


def test_an_entry_under_another_name_is_a_forgery(tmp_path: Path) -> None:
    """Two entries of the same user are not taken for each other."""
    objects, modules = ObjectCache(tmp_path / "a"), ModuleCache(tmp_path / "b")
    objects.put("abcd", b"code")
    (tmp_path / "a/ab/abce.tco").write_bytes((tmp_path / "a/ab/abcd.tco").read_bytes())
    modules.store("one", 0, lambda path, seal: write_module(path, {}, [], seal))
    (tmp_path / "b/two.tcm").write_bytes((tmp_path / "b/one.tcm").read_bytes())

    assert objects.get("abcd") == b"code" and objects.get("abce") is None
    assert modules.find("one", read_module) == ({"sections": []}, [])
    assert modules.find("two", read_module) is None


def test_object_code_with_a_plain_hash_is_a_forgery(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("abcd", b"code")
    entry = tmp_path / "ab" / "abcd.tco"
    forged = entry.read_bytes()[:10] + bytes(3) + hashlib.sha256(b"evil").digest() + struct.pack("<Q", 4) + b"evil"
    assert len(forged) == len(entry.read_bytes())
    entry.write_bytes(forged)

    assert cache.get("abcd") is None and not entry.exists()


def test_saved_modules_carry_a_plain_hash(root: Path, tmp_path: Path) -> None:
    """A file that a user saves is for other machines and other keys."""
    tc.compile(model()).save(tmp_path / "saved.tcm")
    (root / "key").unlink()

    header, _ = read_module(tmp_path / "saved.tcm", plain_seal)

    assert header["target"]
    np.testing.assert_array_equal(tc.load(tmp_path / "saved.tcm")(X), tc.compile(model())(X))


def _key_of(folder: str) -> bytes:
    found = open_cache_folder("objects", Path(folder))
    assert found is not None
    return found.key


def test_processes_that_start_together_have_one_key(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(8) as pool:
        keys = pool.map(_key_of, [str(tmp_path / "new")] * 64)

    assert len(set(keys)) == 1 and len(keys[0]) == 32
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["key", "objects"]
