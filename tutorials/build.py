"""Executes the tutorials and writes the notebooks beside them.

    python tutorials/build.py                 all of them, some minutes
    python tutorials/build.py 01 --quick      those whose names begin so, with few repetitions
    python tutorials/build.py --check         only say whose notebook has other cells than its source

The sources are the `.py` files, in jupytext's percent format: edit those. A notebook is the same cells with what they printed and
drew on the machine that ran them last. Needs `pip install '.[docs]'`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat

FOLDER = Path(__file__).parent
QUICK = "TC_TUTORIAL_QUICK"
"""Environment variable under which the tutorials repeat and search less; they leave nothing out."""

MOST_BYTES = 1 << 20
"""What a notebook may take: pictures are SVG, and long output is cut in the tutorials themselves."""

_KERNEL = "python3"
_METADATA = {
    "jupytext": {"formats": "ipynb,py:percent"},  # who edits one of the pair in Jupyter edits both
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": _KERNEL},
    "language_info": {"name": "python"},
}


def sources() -> list[Path]:
    """The tutorials, in order."""
    return sorted(FOLDER.glob("[0-9][0-9]_*.py"))


def notebook_of(source: Path) -> Path:
    return source.with_suffix(".ipynb")


def cells_of(path: Path) -> list[tuple[str, str]]:
    """Kind and text of each cell of a source or a notebook."""
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def find_difference(source: Path) -> str | None:
    """How the notebook of `source` differs from it, apart from outputs; None when it does not."""
    notebook = notebook_of(source)
    if not notebook.exists():
        return f"{notebook.name} does not exist"
    wanted, found = cells_of(source), cells_of(notebook)
    for number, (want, have) in enumerate(zip(wanted, found), start=1):
        if want != have:
            return f"{notebook.name}: cell {number} is not that of {source.name}"
    if len(wanted) != len(found):
        return f"{notebook.name} has {len(found)} cells, {source.name} has {len(wanted)}"
    return None


def execute(source: Path, timeout: float = 3600.0) -> Any:
    """The notebook of `source` with outputs. nbclient's CellExecutionError when a cell fails."""
    from nbclient import NotebookClient

    notebook = jupytext.read(source)
    notebook.metadata = nbformat.from_dict(_METADATA)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        cell["metadata"] = {}
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name=_KERNEL,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(FOLDER)}},
        extra_arguments=["--InlineBackend.figure_formats=svg", "--InlineBackend.rc={'svg.hashsalt': 'tc'}"],
    )
    client.execute()
    notebook.metadata = nbformat.from_dict(_METADATA)  # the kernel has added versions of its own
    return notebook


def find_noise(notebook: Any) -> list[str]:
    """What was written to standard error: warnings that a reader would stumble over."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"]


def build(source: Path) -> list[str]:
    """Execute `source` and write its notebook; returns complaints."""
    notebook = execute(source)
    text = nbformat.writes(notebook, version=4) + "\n"
    notebook_of(source).write_text(text, encoding="utf-8")
    complaints = [f"{source.name} writes to standard error: {text.strip()}" for text in find_noise(notebook)]
    if len(text.encode()) > MOST_BYTES:
        complaints.append(f"{notebook_of(source).name} is larger than {MOST_BYTES >> 10} KiB")
    return complaints


def main() -> int:
    parser = argparse.ArgumentParser(description="Execute the tutorials and write their notebooks.")
    parser.add_argument("names", nargs="*", help="beginnings of the names of tutorials (default: all)")
    parser.add_argument("--quick", action="store_true", help="few repetitions: to try out, not to publish")
    parser.add_argument("--check", action="store_true", help="execute nothing; compare cells")
    args = parser.parse_args()
    chosen = [source for source in sources() if not args.names or source.name.startswith(tuple(args.names))]
    if not chosen:
        parser.error(f"no tutorial is called so; there are: {', '.join(source.name for source in sources())}")
    if args.quick:
        os.environ[QUICK] = "1"
    complaints: list[str] = []
    for source in chosen:
        if args.check:
            difference = find_difference(source)
            complaints += [] if difference is None else [difference]
        else:
            print(f"{source.name} ...", flush=True)
            complaints += build(source)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
