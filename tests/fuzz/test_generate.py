"""Random models: valid, the same for the same seed, of all operators and kinds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from tc.fuzz.builder import Builder, Rejected, Style
from tc.fuzz.evaluate import run_onnxruntime
from tc.fuzz.generate import ROWS, Case, generate, grow

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [generate(seed) for seed in range(60)]


def test_a_seed_always_gives_the_same_model() -> None:
    first, second = generate(7), generate(7)

    assert first.model.SerializeToString() == second.model.SerializeToString()
    assert all(np.array_equal(first.feeds[name], array, equal_nan=array.dtype.kind == "f") for name, array in second.feeds.items())


def test_models_are_valid_and_run(cases: list[Case]) -> None:
    for case in cases:
        onnx.checker.check_model(case.model, full_check=True)
        if case.style.both:
            assert len(run_onnxruntime(case.model, case.feeds)) == len(case.model.graph.output)


def test_models_are_of_all_kinds(cases: list[Case]) -> None:
    dims = [dim for case in cases for i in case.inputs for dim in i.shape]
    sizes = [n for case in cases for i in case.inputs for n in i.array.shape]
    repeated = [case for case in cases if any(len(named) > len(set(named)) for named in map(symbols, case.inputs))]

    assert {0, 1, 2} <= set(sizes)
    assert any(isinstance(dim, str) for dim in dims) and any(dim is None for dim in dims)
    assert repeated
    assert len({case.style.opset for case in cases}) > 10
    assert len({operator for case in cases for operator in case.operators}) > 80


def symbols(value: object) -> list[str]:
    return [dim for dim in value.shape if isinstance(dim, str)]  # type: ignore[attr-defined]


def test_indices_that_may_be_spoilt_are_inputs() -> None:
    case = generate(3, "indices")

    assert any(i.kind == "index" and i.array.dtype.kind == "i" for i in case.inputs)


def test_a_row_that_is_rejected_leaves_nothing_behind() -> None:
    b = Builder(np.random.default_rng(0), Style(opset=17, nodes=1))
    state = b.state()
    x = b.data(np.dtype(np.float32), (2, 3))
    with pytest.raises(Rejected):
        b.emit("MatMul", [x, x])

    b.restore(state)

    assert not b.nodes and not b.pool and not b.shared.inputs and not b.shared.initializers


@pytest.mark.slow
def test_every_row_can_be_drawn() -> None:
    drawn: Counter[str] = Counter()
    for opset in (9, 12, 17, 20, 24, 26, 28):
        for row in (row for row in ROWS if row.exists(opset)):
            for seed in range(8):
                b = Builder(np.random.default_rng((opset, seed)), Style(opset=opset, nodes=1, both=False))
                grow(b, 2)
                try:
                    row.draw(b)
                except (Rejected, ValueError, IndexError, KeyError, TypeError, OverflowError):
                    continue
                drawn[row.op] += 1
                break

    assert {row.op for row in ROWS} - set(drawn) <= {"Optional"}
