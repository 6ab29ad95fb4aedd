"""The order of a product's tiles: those of one wave are near to a square, and each result is still computed once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tc.ir.dtype import f16, f32, i64
from tc.ir.expr import Var, cast
from tc.ir.loop import For, walk_statements
from tc.schedule.knobs import Decide, Knob, Value
from tc.schedule.rules import Scheduled
from tc.te import create_prim_func, placeholder, reduce
from tests.draws import some_of
from tests.schedule.gpu.launches import DEVICE, check_schedule, device_schedule
from tests.schedule.programs import matmul

assert DEVICE.device is not None
SMALL, LARGE = (dataclasses.replace(DEVICE, device=dataclasses.replace(DEVICE.device, processors=count)) for count in (2, 100_000))
"""A device that a few blocks fill, and one that none do."""


def answered(count: int) -> Decide:
    """So many columns of tiles together, or as many as there may be."""

    def decide(knob: Knob) -> Value:
        return max(o for o in knob.options if o <= count) if knob.name.endswith("columns_together") else knob.default

    return decide


def numbers_of_tiles(found: Scheduled) -> list[str]:
    """The sizes of the launch's axes."""
    loops = [stmt for stmt in walk_statements(found.func.body) if isinstance(stmt, For)]
    return [f"{loop.thread}={loop.extent}" for loop in loops if loop.thread.startswith("block")]


def test_a_wave_is_nearly_a_square() -> None:
    large = matmul(4096, 4096, 64)
    answers = {}

    def listen(knob: Knob) -> Value:
        answers[knob.name.split("/")[1]] = knob.default
        return knob.default

    found = device_schedule(large, DEVICE, listen)

    assert answers["columns_together"] == 8  # of tiles of 128 x 128 on 108 processors
    assert numbers_of_tiles(found) == ["block.x=1024"]


def test_what_fills_no_wave_has_one_order() -> None:
    asked = []

    def listen(knob: Knob) -> Value:
        asked.append(knob.name.split("/")[1])
        return knob.default

    device_schedule(matmul(512, 512, 64), LARGE, listen)

    assert "tile" in asked and "columns_together" not in asked


@pytest.mark.covering
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_every_order_computes_each_result(seed: int, count: int) -> None:
    rng = np.random.default_rng([seed, count])
    rows, columns, depth = int(rng.integers(65, 200)), int(rng.integers(129, 260)), int(rng.integers(1, 20))
    func = matmul(rows, columns, depth)
    arrays = [rng.integers(-4, 5, [int(str(dim)) for dim in buffer.shape]).astype(np.float32) for buffer in func.inputs]

    scheduled = check_schedule(func, arrays, decide=answered(count), target=SMALL)

    assert "contraction" in scheduled.rule


@pytest.mark.parametrize("rows", some_of([0, 1, 31, 64, 65, 130], quick=[0, 65]))
def test_an_unknown_number_of_rows_comes_before_the_next_columns(rows: int) -> None:
    m = Var("m", i64)
    x, w = placeholder((m, 16), f16, "X"), placeholder((16, 512), f16, "W")
    out = reduce("sum", (m, 512), (16,), lambda i, j, r: cast(x[i, r], f32) * cast(w[r, j], f32), "mm")
    func = create_prim_func("product", [x, w], [out], (m,))
    rng = np.random.default_rng(rows)
    arrays = [rng.integers(-3, 4, size).astype(np.float16) for size in ((rows, 16), (16, 512))]

    scheduled = check_schedule(func, arrays, (rows,), decide=answered(2), target=SMALL)

    assert scheduled.rule == "matrix contraction"
    y, x = numbers_of_tiles(scheduled)
    assert x.startswith("block.x=") and "m" in x
    assert y.startswith("block.y=") and "m" not in y
