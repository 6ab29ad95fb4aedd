"""What the README says of targets: its commands do something, its errors are those that users see, and its table has all there is."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tc.cli import main
from tc.codegen.backends import BACKENDS
from tc.demo import MODEL_PATH
from tc.target import Target, detect
from tests.opencl_driver import need_opencl

SECTION = re.search(r"^## Targets$(.*?)^## ", (Path(__file__).parent.parent / "README.md").read_text(), re.MULTILINE | re.DOTALL)[1]
COMMANDS = [re.split(r"  +", line)[0].partition(" CUDA-C")[0] for line in SECTION.splitlines() if line.startswith("tc ")]
ERRORS = re.findall(r"^\| `tc ([^`]*)` \| `([^`]*)` \|", SECTION, re.MULTILINE)
ROWS = re.findall(r"^\| (`[^|]*) \| [^|]* \| [^|]* \| [^|]* \| ([^|]*) \|$", SECTION, re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where there is a `model.onnx`."""
    shutil.copy(MODEL_PATH, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_does_what_it_says(command: str, folder: Path) -> None:
    if command.endswith("--target opencl"):
        need_opencl()

    assert main(shlex.split(command)[1:]) == 0

    assert len(COMMANDS) >= 7
    assert "-o folder" not in command or (folder / "folder" / "build.sh").exists()


@pytest.mark.parametrize(("command", "answer"), ERRORS)
def test_an_error_is_the_one_that_is_told(
    command: str, answer: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package, facts in (("pyopencl", detect.opencl_facts), ("cuda.bindings", detect.cuda_facts)):
        monkeypatch.setitem(sys.modules, package, None)
        facts.cache_clear()

    assert main(shlex.split(command)) in (1, 2)

    assert answer in capsys.readouterr().err
    assert len(ERRORS) == 5


def test_the_table_has_every_kind_of_target_with_its_languages() -> None:
    named = {
        text: set(re.findall(r"`(\w+)`", languages))
        for targets, languages in ROWS[1:]  # behind the names of the columns
        for text in re.findall(r"`([^`]*)`", targets)
    }

    assert {backend.kind for backend in BACKENDS} <= {"cpu", *(text.partition(":")[0] for text in named)}
    for text, languages in named.items():
        if text in ("opencl", "opencl:1", "cuda", "cuda:1", "-v3", "-v4"):  # they may not be here, or are the end of a name
            continue
        kind = Target.parse(text).kind
        assert {backend.kind: set(backend.languages) for backend in BACKENDS}[kind] == languages, text
