"""Golden files: a pass or a schedule, the program before, the program after.

Each half parses, verifies and prints back unchanged; the pass turns one into the other; and both compute the same on random
inputs, which keeps `pytest --update-golden` from blessing a wrong answer. Read the diff after updating.

A literal too long to be written out is named by its shape in the program before, `const('random 3x1x5', f32[3, 1, 5])`; what a pass
makes of it has the name that the printer gives it.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tc.compiler  # noqa: F401  registers all passes
from tc.interp import run_function, run_prim_func
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.parser import parse_module
from tc.ir.printer import print_ir
from tc.ir.structural import first_difference
from tc.ir.types import TensorType
from tc.ir.verify import verify
from tc.passes.manager import run_pipeline
from tc.schedule.step import Trace
from tests.golden_files import FOLDER, Literals

FILES = sorted(FOLDER.rglob("*.tc"))
SEPARATOR = "# -----\n"
DIM = 5  # the size of every symbolic dim when programs are run


def apply(header: str, module: IRModule) -> IRModule:
    """What the first line of a golden file asks for."""
    kind, _, text = header.removeprefix("# ").partition(": ")
    if kind == "pass":
        return run_pipeline(module, text.strip(), verify=None)
    assert kind == "schedule", f"unknown header {header!r}"
    trace = Trace.from_json(json.dumps({"version": 1, "steps": json.loads(text)}))
    return IRModule(tuple(trace.apply(f) if isinstance(f, PrimFunc) else f for f in module.functions), module.entry)


def check_well_formed(module: IRModule) -> None:
    for func in module.functions:
        verify(func)


def results_of(module: IRModule) -> dict[str, list[np.ndarray]]:
    """What every function of the module computes on fixed random inputs, by its name."""
    found: dict[str, list[np.ndarray]] = {}
    for func in module.functions:
        rng = np.random.default_rng(1)
        if isinstance(func, PrimFunc):
            arrays = [_random(rng, TensorType(b.shape, b.dtype)) for b in func.inputs]
            found[func.name] = list(run_prim_func(func, arrays, [DIM] * len(func.dims)))
        else:
            inputs = [_random(rng, p.type) for p in func.params if isinstance(p.type, TensorType)]
            found[func.name] = list(run_function(module, func.name, inputs))
    return found


def assert_same_results(before: IRModule, after: IRModule) -> None:
    """Each function of `before` is there in `after` and computes the same; others, and workspaces behind the results, may come along."""
    found = results_of(after)
    for name, old in results_of(before).items():
        new = found[name]
        assert old and [array.dtype for array in new[: len(old)]] == [array.dtype for array in old]
        for want, got in zip(old, new[: len(old)], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def _random(rng: np.random.Generator, type_: TensorType) -> np.ndarray:
    shape = type_.static_shape or tuple(DIM if str(d).isidentifier() else int(str(d)) for d in type_.shape)
    if type_.dtype.is_float:
        return rng.standard_normal(shape).astype(type_.dtype.numpy)
    return rng.integers(0, 3, shape).astype(type_.dtype.numpy)


def assert_same_text(module: IRModule, text: str, literals: Literals) -> None:
    assert print_ir(module, literals).strip() == text.strip()


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_golden(path: Path, update_golden: bool) -> None:
    header, _, rest = path.read_text().partition("\n")
    before_text, _, after_text = rest.partition(SEPARATOR)
    literals = Literals()
    before = parse_module(before_text, literals, filename=str(path))
    check_well_formed(before)
    assert_same_text(before, before_text, literals)

    after = apply(header, before)

    check_well_formed(after)
    assert_same_results(before, after)
    found = print_ir(after, literals).strip()  # names the literals that the pass has made
    if update_golden:
        path.write_text(f"{header}\n{print_ir(before, literals).strip()}\n{SEPARATOR}{found}\n")
        return
    expected = parse_module(after_text, literals, filename=str(path))
    assert_same_text(expected, after_text, literals)
    assert first_difference(after, expected) is None, found


def test_there_are_golden_files() -> None:
    assert len(FILES) >= 34
