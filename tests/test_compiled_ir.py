"""What IR states of its calls is not believed: sizes that do not fit were read and written as stated."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.errors import InputError, ShapeError
from tc.ir.dtype import f32
from tc.ir.module import IRModule
from tc.ir.parser import parse_module
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder

SCALE = """
@loops
def scale(A: f32[8], B: f32[8]):
    for i in range(8):
        B[i] = A[i] * 2.0
"""


@pytest.mark.parametrize(
    "text",
    [
        "x: f32[3], y: f32[3]) = add(x, y) -> f32[300]",
        "x: f32[3], y: f32[5]) = add(x, y) -> f32[5]",
        "x: f32[2, 9], y: f32[3, 4]) = matmul(x, y) -> f32[2, 4]",
        'x: f32[3], y: f32[3]) = call_tir("scale", (x,), ()) -> f32[8]',
        'x: f32[8], y: f32[3]) = call_tir("scale", (x,), ()) -> f32[9]',
    ],
)
def test_a_call_that_states_another_size_than_it_has_is_refused(text: str) -> None:
    head, body = text.split(") = ")
    call, result = body.split(" -> ")
    module = parse_module(f"{SCALE if 'scale' in call else ''}\n@graph\ndef main({head}):\n    z: {result} = {call}\n    return z\n")

    with pytest.raises(ShapeError, match=r"stated to be|does not broadcast|is 9, but"):
        tc.compile(module, threads=1)


def test_results_of_one_name_are_all_returned() -> None:
    b = GraphBuilder()
    x = b.param("x", tensor_type((2,), f32))
    results = (b.call("neg", x), b.call("neg", b.call("exp", x)), b.call("abs", x, name="neg_1"))
    module = tc.compile(IRModule((b.function("main", results),)), threads=1)

    found = module.run({"x": np.zeros(2, np.float32)})

    assert {name: value.tolist() for name, value in found.items()} == {"neg": [0, 0], "neg_2": [-1, -1], "neg_1": [0, 0]}


def test_sizes_that_may_fit_are_checked_when_the_module_runs() -> None:
    module = tc.compile(
        parse_module("@graph\ndef main(x: f32[2, n], y: f32[m, 3]):\n    z: f32[2, 3] = matmul(x, y)\n    return z\n"), threads=1
    )

    (fits,) = module.run({"x": np.ones((2, 4), np.float32), "y": np.ones((4, 3), np.float32)}).values()
    assert fits.tolist() == [[4.0] * 3] * 2
    with pytest.raises(InputError, match="n = 2000"):
        module.run({"x": np.ones((2, 2000), np.float32), "y": np.ones((4, 3), np.float32)})
