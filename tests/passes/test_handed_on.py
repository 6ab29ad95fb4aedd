"""What iterations of a loop hand on in scratch memory stays where it is when buffers are made smaller."""

from __future__ import annotations

import numpy as np
import pytest

from tc.interp import run_prim_func
from tc.ir.loop import Alloc, For
from tc.ir.parser import parse_prim_func
from tc.passes.loop.compact_buffers import compact_buffers
from tc.passes.pipeline import finish_loops
from tests.ops.kernels import run

HANDED_ON = {
    "the row before": ["T[i] = X[i]", "Y[i] = T[max(i - 1, 0)]"],
    "one element on": ["T[i + 1] = X[i]", "if 1 <= i:", "    Y[i] = T[i]", "else:", "    Y[i] = 0.0"],
    "a state": ["if i == 0:", "    T[0] = 0.0", "T[0] = T[0] + X[i]", "Y[i] = T[0]"],
}


def program(lines: list[str]) -> str:
    body = "\n".join(f"            {line}" for line in lines)
    return f"@loops\ndef f(X: f32[8], Y: f32[8]):\n    with alloc(f32[9], scope='global') as T:\n        for i in range(8):\n{body}\n"


@pytest.mark.parametrize("name", HANDED_ON)
def test_a_buffer_in_which_iterations_hand_something_on_stays_outside(name: str) -> None:
    func = parse_prim_func(program(HANDED_ON[name]))
    x = np.arange(1, 9, dtype=np.float32)
    (expected,) = run_prim_func(func, [x])

    compacted, finished = compact_buffers(func), finish_loops(func)

    assert isinstance(compacted.body, Alloc)
    np.testing.assert_array_equal(run_prim_func(compacted, [x])[0], expected)
    np.testing.assert_array_equal(run(finished, [x], ())[0], expected)


def test_a_buffer_that_each_iteration_fills_first_goes_inside() -> None:
    lines = ["for k in range(3):", "    if k == 0:", "        T[0] = 0.0", "    T[0] = T[0] + X[i]", "Y[i] = T[0]"]

    compacted = compact_buffers(parse_prim_func(program(lines)))

    assert isinstance(compacted.body, For) and isinstance(compacted.body.body, Alloc)


def test_random_programs_compute_the_same_with_smaller_buffers() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(8).astype(np.float32)
    inside = compared = 0
    for _ in range(300):
        indices = [str(rng.choice(["i", "i + 1", "0", "j", "j + 1", "max(i - 1, 0)", "i // 2", "i % 2", "7 - i"])) for _ in range(3)]
        guard = str(rng.choice(["", "if i == 0:", "if j == 0:", "if i < 4:", "if j < 2:"]))
        first = [f"T[{indices[0]}] = X[i]"]
        lines = ["for j in range(3):", *(f"    {line}" for line in ([guard, f"    {first[0]}"] if guard else first))]
        lines += [f"    T[{indices[1]}] = T[{indices[1]}] + 1.0"] if rng.random() < 0.5 else []
        lines += ["for j in range(3):"] if rng.random() < 0.5 else []
        lines += [f"    Y[i] = T[{indices[2]}]"]
        func = parse_prim_func(program(lines))
        compacted = compact_buffers(func)

        (expected,), (found,) = run_prim_func(func, [x]), run_prim_func(compacted, [x])

        inside += not isinstance(compacted.body, Alloc)
        if not np.isnan(expected).any():  # else it reads what nobody wrote
            compared += 1
            np.testing.assert_array_equal(found, expected, err_msg="\n".join(lines))
    assert inside >= 20 and compared >= 60, (inside, compared)
