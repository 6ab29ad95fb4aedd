"""Golden schedules: for one kernel each, the steps that the rules choose on fixed targets, and the loops that come of them.

A file begins with the program, a graph or a PrimFunc; what follows the first line of dashes is written by `pytest --update-golden`. To
pin another kernel, write a file that has the program only, and update. The loops are those before anything is unrolled.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tc.compiler import lay_out, lower_model, prepare_model
from tc.ir.parser import parse_module
from tc.ir.printer import print_ir
from tc.ir.verify import verify
from tc.schedule.rules import Scheduled, apply_rules
from tc.target import Target
from tests.golden_files import FOLDER, TARGETS, Literals, check_text, narrow

FILES = sorted((FOLDER / "schedules").glob("*.txt"))
SEPARATOR = "# -----"


def scheduled(program: str, target: Target) -> list[Scheduled]:
    """By the rules alone; of a graph, whatever kernels the passes make of it."""
    module = parse_module(program, Literals())
    if module.graph_functions:
        module = lower_model(lay_out(prepare_model(module, target))).lowered
    return [apply_rules(func, target) for func in module.prim_funcs]


def describe(kernel: Scheduled) -> str:
    verify(kernel.func)
    return f"# {kernel.rule}\n{kernel.trace or '# as written'}\n{narrow(print_ir(kernel.func))}\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_schedule(path: Path, update_golden: bool) -> None:
    program = path.read_text().partition(SEPARATOR)[0]
    sections: dict[str, str] = {}

    for name, target in TARGETS.items():
        text = "\n".join(map(describe, scheduled(program, target)))
        same = next((other for other, known in sections.items() if known == text), None)
        sections[name] = text if same is None else f"# as on {same}\n"

    found = program + "".join(f"{SEPARATOR} {name}\n{text}" for name, text in sections.items())
    check_text(path, found, update_golden)


def test_there_are_golden_schedules() -> None:
    assert len(FILES) >= 45
