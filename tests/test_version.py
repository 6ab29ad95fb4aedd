"""What tells one compiler from another: the content of its files, wherever they lie, and nothing that is raised by hand."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from tc.codegen.kernels import object_key
from tc.runtime.module_cache import ModelKey
from tc.target import Target
from tc.version import compiler_fingerprint, fingerprint_of


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a module, a room and a table."""
    folder = tmp_path / "package"
    (folder / "room").mkdir(parents=True)
    (folder / "one.py").write_text("LANES = 16\n")
    (folder / "room" / "two.py").write_text("BLOCK = 8\n")
    (folder / "room" / "table.json").write_text("{}\n")
    return folder


def long_after() -> float:
    return time.time() + 3600


def test_copies_of_the_same_files_are_one_compiler(package: Path, tmp_path: Path) -> None:
    again = shutil.copytree(package, tmp_path / "elsewhere")
    os.utime(again / "one.py", (1, 1))
    (again / "__pycache__").mkdir()
    (again / "__pycache__" / "one.cpython-311.pyc").write_bytes(b"compiled")
    (again / ".one.py.swp").write_bytes(b"being edited")

    assert fingerprint_of(again, long_after()) == fingerprint_of(package, long_after())


@pytest.mark.parametrize("changed", ["one.py", "room/two.py", "room/table.json"])
def test_a_change_that_keeps_size_and_time_is_another_compiler(package: Path, changed: str) -> None:
    before, path = fingerprint_of(package, long_after()), package / changed
    status = path.stat()

    path.write_bytes(path.read_bytes()[:-2] + b"?\n")  # as a wheel whose files all have one time
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert path.stat().st_size == status.st_size and path.stat().st_mtime_ns == status.st_mtime_ns
    assert fingerprint_of(package, long_after()) != before


def test_a_new_a_renamed_and_a_removed_file_are_other_compilers(package: Path) -> None:
    found = {fingerprint_of(package, long_after())}

    (package / "three.py").write_text("")
    found.add(fingerprint_of(package, long_after()))
    (package / "three.py").rename(package / "four.py")
    found.add(fingerprint_of(package, long_after()))
    (package / "one.py").unlink()
    found.add(fingerprint_of(package, long_after()))

    assert len(found) == 4


def test_sources_edited_after_they_were_imported_are_nobodys(package: Path) -> None:
    """The old program would be kept under the new one's name."""
    now = time.time()
    imported_at = now - 60

    found = {fingerprint_of(package, imported_at) for _ in range(3)}

    assert len(found) == 3 and fingerprint_of(package, long_after()) not in found


def test_a_file_from_the_future_does_not_switch_caches_off(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tc.version.time.time", lambda: package.stat().st_ctime - 3600)

    assert len({fingerprint_of(package, package.stat().st_ctime - 7200) for _ in range(3)}) == 1


def test_both_caches_go_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.parse("x86-64-v3")
    before = object_key("tc_kernel", target), ModelKey(b"model", ("facts",)).name
    assert before == (object_key("tc_kernel", target), ModelKey(b"model", ("facts",)).name)

    for module in ("tc.codegen.kernels", "tc.runtime.module_cache"):
        monkeypatch.setattr(f"{module}.compiler_fingerprint", lambda: "edited")

    after = object_key("tc_kernel", target), ModelKey(b"model", ("facts",)).name
    assert after[0] != before[0] and after[1] != before[1]


def test_it_is_computed_once_and_short() -> None:
    found = compiler_fingerprint()

    assert compiler_fingerprint() is found and len(found) == 20
