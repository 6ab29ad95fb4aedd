"""The tutorials run from top to bottom, and their notebooks are those of their sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.opencl_driver import need_opencl
from tutorials.build import MOST_BYTES, QUICK, find_difference, find_noise, notebook_of, sources

ROOT = Path(__file__).parent.parent

each_tutorial = pytest.mark.parametrize("source", sources(), ids=lambda source: source.stem)


def test_there_are_tutorials() -> None:
    assert [source.name[:2] for source in sources()][:2] == ["01", "02"]


LONG = {"02_tuning_a_matmul", "03_a_gpu_kernel_without_a_gpu", "04_int8_and_bf16"}
"""They search, or interpret what a device does, and both takes its time; the last takes a model from a package registry. `pytest -m slow`
runs them."""


@pytest.mark.parametrize(
    "source", [pytest.param(each, id=each.stem, marks=[pytest.mark.slow] if each.stem in LONG else []) for each in sources()]
)
def test_runs_from_top_to_bottom(source: Path, tmp_path: Path) -> None:
    if "opencl" in source.read_text():
        need_opencl()
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, QUICK: "1", "MPLBACKEND": "Agg"}

    done = subprocess.run([sys.executable, str(source)], cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr[-4000:]
    assert not done.stderr
    assert not list(tmp_path.iterdir()), "a tutorial leaves nothing behind"


@each_tutorial
def test_notebook_has_the_cells_of_its_source(source: Path) -> None:
    assert find_difference(source) is None


@each_tutorial
def test_notebook_was_executed_in_order_and_quietly(source: Path) -> None:
    notebook = nbformat.read(notebook_of(source), as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kinds = {output.output_type for cell in code for output in cell.outputs}

    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert kinds <= {"stream", "display_data"}
    assert not find_noise(notebook)
    assert notebook_of(source).stat().st_size <= MOST_BYTES


def test_notebook_of_an_edited_source_is_found(tmp_path: Path) -> None:
    source = tmp_path / "01_first.py"
    source.write_text("# %% [markdown]\n# words\n\n# %%\nx = 1\n")
    cells = [nbformat.v4.new_markdown_cell("words"), nbformat.v4.new_code_cell("x = 1")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), notebook_of(source))
    assert find_difference(source) is None

    source.write_text("# %% [markdown]\n# words\n\n# %%\nx = 2\n")

    assert find_difference(source) == "01_first.ipynb: cell 2 is not that of 01_first.py"
