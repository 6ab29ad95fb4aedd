"""Faults put into what the rules for devices make: attention, windows, rows combined by lanes, orders, copies in the background."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from tc.errors import VerifyError
from tc.interp import run_prim_func
from tc.ir.dtype import f16, f32
from tc.ir.loop import PrimFunc
from tc.ir.node import Node
from tc.ir.verify import verify
from tc.ops.registry import OPS
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tc.schedule.knobs import Knob, Value
from tc.schedule.rules import apply_rules
from tc.te import compute, create_prim_func, placeholder, reduce
from tests.interp.faults import MORE_KINDS, faults_of, why_harmless
from tests.interp.test_faults import ends  # noqa: F401  what never ends is caught, too
from tests.ops.kernels import make_prim_func
from tests.schedule.gpu.launches import DEVICE
from tests.schedule.gpu.test_device_attention import plain
from tests.schedule.gpu.test_device_window import problem
from tests.schedule.gpu.test_matrix_product import FEATURES, Product

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class RuleProgram:
    """What a rule makes of a function, arrays that tell whatever is wrong, and what the function gives."""

    func: PrimFunc
    finished: PrimFunc
    arrays: Arrays
    expected: Arrays

    def outcome(self, changed: PrimFunc) -> str:
        """How a program with a fault is told from the one without."""
        try:
            verify(changed)
        except VerifyError:
            return "refused"
        try:
            found = run_prim_func(changed, self.arrays)
        except VerifyError:
            return "reported"
        return "missed" if self.is_right(found) else "wrong"

    def is_right(self, found: Arrays) -> bool:
        return all(
            np.allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-3, atol=1e-4)
            for got, want in zip(found, self.expected, strict=False)  # workspaces follow
        )


def _smallest(knob: Knob) -> Value:
    """Blocks of few threads: an interpreter runs them."""
    return min(knob.options, key=lambda value: np.prod(value) if isinstance(value, tuple) else value)  # type: ignore[arg-type, return-value]


def _in_the_background(knob: Knob) -> Value:
    """The same, with copies of two stages on their way."""
    return 2 if "stages" in knob.name and 2 in knob.options else _smallest(knob)


def _usual(knob: Knob) -> Value:
    return knob.default


def _made(func: PrimFunc, arrays: Arrays, decide: Callable[[Knob], Value] = _smallest) -> RuleProgram:
    made = apply_rules(func, DEVICE, decide)
    finished = finish_loops(made.func, calls=DEVICE_FINISH_CALLS, features=FEATURES)
    return RuleProgram(func, finished, arrays, run_prim_func(func, arrays))


def _attention(rows: int, keys: int, depth: int, width: int, far_above: tuple[int, ...]) -> RuleProgram:
    """Scores of a row differ little, the later ones being the larger in every other pair of rows, but those of rows by hundreds: what is
    taken off before exponentials must be of the row, and every key counts. But for the first rows, of each of which one key is far above
    all others."""
    problem = plain(rows, keys, depth, width)
    queries, table, values = problem.arrays
    row = np.arange(rows)
    queries[:, 0], queries[:, 1], table[:, 0], table[:, 1] = 0.5 * (-1.0) ** (row // 2), 250 * (row % 4 - 1.5), np.linspace(-3, 3, keys), 1
    for number, key in enumerate(far_above):
        queries[:, 2 + number], table[:, 2 + number] = 200 * (row == number), np.arange(keys) == key
    return _made(problem.func, [queries, table, values])


def _rows() -> RuleProgram:
    """The greatest of a row, and its sum; the last element is the greatest of one, the first of another."""
    x = placeholder((3, 45), f32, "X")
    top = reduce("max", (3,), (45,), lambda i, k: x[i, k], "top")
    total = reduce("sum", (3,), (45,), lambda i, k: x[i, k], "total")
    func = create_prim_func("rows", [x], [compute((3, 45), lambda i, j: x[i, j] * top[i] + total[i], "y")])
    array = np.random.default_rng(0).standard_normal((3, 45)).astype(np.float32)
    array[0, -1], array[1, 0] = 9, 20
    return _made(func, [array], _usual)


def _window() -> RuleProgram:
    own = {"groups": 2, "pads": (1, 1, 1, 1)}
    func, arrays, _ = problem("conv", [(1, 2, 5, 7), (2, 1, 3, 3)], f32, np.random.default_rng(0), 1, False, **own)
    return _made(func, arrays)


def _operator(name: str, array: np.ndarray, **attrs: object) -> RuleProgram:
    return _made(make_prim_func(OPS[name], [array], attrs), [array])


def _product() -> RuleProgram:
    case = Product(16, 16, 64, f16)
    return _made(case.func, case.arrays, _in_the_background)


PROGRAMS: dict[str, Callable[[], RuleProgram]] = {
    "attention": lambda: _attention(16, 32, 16, 16, (31, 1, 17)),
    "attention of few rows": lambda: _attention(4, 150, 8, 5, (149, 63, 1)),
    "rows": _rows,
    "window": _window,
    "running sum": lambda: _operator("cumsum_parallel", np.random.default_rng(1).standard_normal((2, 90)).astype(np.float32), axis=1),
    "first in order": lambda: _operator("topk_parallel", np.append([1, 3, 0, 2] * 3 + [0] * 5, [3, 3, 4])[None], axis=1, k=5),
    "product of halves": _product,
}

NO_OTHER_BLOCK = "no block adds the sum of the last one"
NO_COPY = "the group that is waited for there has no copies"
LAST_FACTOR = "after the last keys sums are changed by a factor of 1"
SAME_FACTOR = "weighted values and the weights that they are divided by change by the same factor"
HARMLESS: dict[str, dict[str, str]] = {
    "attention": {
        **{f"shrink buffer {k}": "the last column is padding" for k in (7, 8, 9)},
        **dict.fromkeys(("drop store 26", "drop store 27"), LAST_FACTOR),
        "two threads store 14": SAME_FACTOR,
    },
    "window": {"more threads 0": "the first thread of the next block does the same"},
    "running sum": {
        **dict.fromkeys(("guard too narrow 1", "guard too narrow 2", "one iteration less 3"), NO_OTHER_BLOCK),
        **dict.fromkeys(("fewer threads 1", "more threads 1"), "that thread does nothing"),
        **dict.fromkeys(("more threads 3", "more threads 4"), "the first thread of the next block does the same"),
    },
    "product of halves": dict.fromkeys(("drop wait 1", "wait for fewer 1"), NO_COPY),
}
"""The faults that change nothing, and why; what is not computed is one of `ARGUED`."""

ARGUED = (NO_OTHER_BLOCK, LAST_FACTOR, SAME_FACTOR, NO_COPY)

program = cache(lambda name: PROGRAMS[name]())


def missed(name: str, every: int) -> dict[str, str | None]:
    """The faults that nothing shows, and why they are harmless."""
    this = program(name)
    found: list[tuple[str, Node, PrimFunc]] = list(faults_of(this.finished, MORE_KINDS))[::every]
    assert found
    return {what: why_harmless(what, node, this.finished) for what, node, changed in found if this.outcome(changed) == "missed"}


def check(name: str, every: int) -> None:
    """All that nothing shows is harmless; of all faults, nothing else is said to be."""
    harmless = HARMLESS.get(name, {})
    found = missed(name, every)
    assert every > 1 or found.keys() == harmless.keys()
    for what, why in found.items():
        assert what in harmless, f"{name}: nothing tells {what}"
        assert harmless[what] == why or (why is None and harmless[what] in ARGUED), (what, why)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_rules_make_is_not_complained_of(name: str) -> None:
    this = program(name)

    verify(this.finished)
    for order in ({}, {"seed": 1}):
        assert this.is_right(run_prim_func(this.finished, this.arrays, **order))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "product of halves"])
def test_some_faults_in_what_the_rules_make_are_caught(name: str) -> None:
    check(name, 9)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_fault_in_what_the_rules_make_is_caught_or_argued_to_be_harmless(name: str) -> None:
    check(name, 1)


def test_faults_of_what_the_rules_make_are_of_all_kinds() -> None:
    found = [what for name in PROGRAMS for what, _, _ in faults_of(program(name).finished, MORE_KINDS)]

    assert len(found) >= 1000
    for kind in MORE_KINDS:
        assert any(what.startswith(kind) for what in found), kind
