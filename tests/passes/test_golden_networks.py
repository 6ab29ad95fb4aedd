"""Golden networks: the kernels that small networks are cut into on a fixed target, and where their values lie in memory.

A file begins with the network; what follows the first line of dashes is written by `pytest --update-golden`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tc.compiler import run_stages
from tc.ir.parser import parse_module
from tc.ir.print_plan import print_plan
from tc.ir.printer import print_ir
from tc.ir.verify import verify
from tests.golden_files import FOLDER, TARGETS, Literals, check_text

FILES = sorted((FOLDER / "networks").glob("*.txt"))
SEPARATOR = "# -----"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_fusion_and_plan(path: Path, update_golden: bool) -> None:
    network = path.read_text().partition(SEPARATOR)[0]

    stages = run_stages(parse_module(network, Literals()), TARGETS["x86-64-v4"])

    for module in (stages.graph, stages.lowered, stages.module):
        verify(module)
    found = f"{network}{SEPARATOR} fused\n{print_ir(stages.graph)}{SEPARATOR} plan\n{print_plan(stages.plan)}"
    check_text(path, found, update_golden)


def test_there_are_golden_networks() -> None:
    assert len(FILES) >= 6
