"""Golden LLVM text: what each construct of a loop program is emitted as.

A file begins with the loops; what follows the first line of dashes is written by `pytest --update-golden`. Where two targets get the same
text, it stands once. Names are numbered by their place in the text, so that what is dropped on the way does not show.
"""

from __future__ import annotations

import re
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from tc.codegen.kernels import finish_loops
from tc.codegen.llvm.emitter import emit_prim_func
from tc.interp import run_prim_func
from tc.ir.expr import Var
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_module
from tc.ir.verify import verify
from tests.golden_files import FOLDER, TARGETS, check_text
from tests.ops.kernels import run

FILES = sorted((FOLDER / "llvm").glob("*.txt"))
SEPARATOR = "# -----"
SIZE = 21  # of symbolic dims when programs are run
TOLERANCES = {2: 1e-2, 4: 1e-6, 8: 1e-14}


def normalized(text: str) -> str:
    """The same module with the numbers of local names, within each function, by their order, and declarations in alphabetical order."""
    definitions, numbers = [], dict[str, str]()

    def renamed(found: re.Match[str]) -> str:
        name, number = found.groups()
        return name + numbers.setdefault(number, str(len(numbers)))

    for line in text.strip().splitlines():
        if line.startswith("define "):
            numbers.clear()
        definitions.append(re.sub(r"(%[a-zA-Z_]+\.?)(\d+)\b", renamed, re.sub(r"^([a-z]+)(\d+)(?=:$)", renamed, line)))
    body = [line for line in definitions if not line.startswith("declare ")]
    return "\n".join([*body, *sorted(set(definitions) - set(body))]) + "\n"


def emitted(func: PrimFunc, features: tuple[str, ...]) -> str:
    text = normalized(emit_prim_func(func, "kernel", features).ir_text)
    llvm.parse_assembly(text).verify()
    return text


def assert_computes_its_meaning(func: PrimFunc) -> None:
    """What runs on this machine is what the reference interpreter computes, so that an update blesses no wrong text."""
    arrays, dims = random_inputs(func), [SIZE] * len(func.dims)
    expected = run_prim_func(func, arrays, dims)
    for want, got in zip(expected, run(func, arrays, tuple(dims)), strict=True):
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=TOLERANCES.get(want.itemsize, 1e-6))


def random_inputs(func: PrimFunc) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = []
    for buffer in func.inputs:
        shape = tuple(SIZE if isinstance(dim, Var) else int(dim) for dim in buffer.shape)  # type: ignore[call-overload]
        values = rng.normal(size=shape) if buffer.dtype.is_float else rng.integers(1, 6, shape)
        arrays.append(np.abs(values).astype(buffer.dtype.numpy))
    return arrays


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_emission(path: Path, update_golden: bool) -> None:
    program = path.read_text().partition(SEPARATOR)[0]
    (func,) = parse_module(program).prim_funcs
    verify(func)
    assert_computes_its_meaning(finish_loops(func))
    texts: dict[str, list[str]] = {}

    for name, target in TARGETS.items():
        texts.setdefault(emitted(finish_loops(func, threads=target.cores), target.features), []).append(name)

    check_text(path, program + "".join(f"{SEPARATOR} {', '.join(names)}\n{text}" for text, names in texts.items()), update_golden)


def test_there_are_golden_files() -> None:
    assert len(FILES) >= 30
