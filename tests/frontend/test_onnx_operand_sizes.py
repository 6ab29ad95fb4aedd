"""Operators that ONNX defines by others refuse operands that do not fit each other: the parts took what they got, and gave numbers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import onnx
import pytest

import tc
from tc.errors import ShapeError, TcError
from tests.draws import some_of


@dataclass(frozen=True)
class Operands:
    """A node, the shapes that fit it, and changes of one dim (operand, axis, size) that do not."""

    node: str
    shapes: tuple[tuple[int, ...], ...]
    spoils: tuple[tuple[int, int, int], ...]
    integers: frozenset[int] = frozenset()
    opset: int = 24


QKV = ((2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6))
FLAT = ((2, 3, 16), (2, 5, 8), (2, 5, 12))
PAST = ((2, 2, 2, 4), (2, 2, 2, 6))
SPOILT_QKV = ((0, 0, 1), (0, 1, 3), (1, 3, 1), (1, 3, 3), (1, 2, 4), (2, 0, 1), (2, 1, 1), (2, 2, 1), (2, 2, 6))
CASES = {
    "Attention": Operands("y = Attention (a, b, c)", QKV, SPOILT_QKV),
    "flat Attention": Operands(
        "y = Attention <q_num_heads = 4, kv_num_heads = 2> (a, b, c)",
        FLAT,
        ((0, 2, 15), (1, 2, 1), (1, 2, 10), (1, 1, 10), (2, 0, 1), (2, 0, 4), (2, 1, 10), (2, 2, 11)),
    ),
    "masked Attention": Operands(
        "y = Attention (a, b, c, d)", (*QKV, (2, 4, 3, 5)), ((3, 0, 3), (3, 1, 2), (3, 2, 2), (3, 3, 6), (3, 3, 10))
    ),
    "Attention with a past": Operands(
        'y, p, q = Attention (a, b, c, "", d, e)',
        (*QKV, *PAST),
        ((3, 0, 1), (3, 1, 1), (3, 2, 1), (3, 3, 1), (4, 1, 4), (4, 2, 3), (4, 3, 1)),
    ),
    "Attention of some keys": Operands(
        'y = Attention (a, b, c, "", "", "", d)', (*QKV, (2,)), ((3, 0, 1), (3, 0, 3)), frozenset({3})
    ),
    "RotaryEmbedding": Operands(
        "y = RotaryEmbedding (a, b, c, d)",
        ((2, 2, 3, 8), (5, 4), (5, 4), (2, 3)),
        ((0, 3, 6), (1, 0, 4), (1, 1, 1), (1, 1, 5), (2, 1, 8), (2, 0, 6), (3, 0, 1), (3, 0, 3), (3, 1, 1), (3, 1, 4)),
        frozenset({3}),
    ),
    "flat RotaryEmbedding": Operands(
        "y = RotaryEmbedding <num_heads = 2> (a, b, c)",
        ((2, 3, 16), (2, 3, 4), (2, 3, 4)),
        ((0, 2, 12), (0, 2, 15), (1, 0, 1), (1, 1, 1), (1, 2, 1), (2, 2, 5)),
    ),
    "partial RotaryEmbedding": Operands(
        "y = RotaryEmbedding <rotary_embedding_dim = 4> (a, b, c)",
        ((2, 2, 3, 8), (2, 3, 2), (2, 3, 2)),
        ((0, 3, 2), (1, 2, 1), (1, 2, 4), (2, 2, 3)),
    ),
    **{
        f"{op}{words}": Operands(
            f"y = {op} {words} (a, b, c)",
            ((3, 5, 2), (3, 2), (5,)),
            ((0, 0, 4), (0, 1, 6), (0, 2, 3), (1, 0, 2), (1, 0, 1), (1, 1, 1), (1, 1, 0), (2, 0, 4), (2, 0, 1)),
            frozenset({1}),
        )
        for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
        for words in ("", '<reduction = "none", ignore_index = 1>')
    },
}
QUICK = ["masked Attention", "Attention with a past", "RotaryEmbedding", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"]


def model_of(case: Operands, shapes: tuple[tuple[int, ...], ...], *, symbolic: bool) -> onnx.ModelProto:
    count = itertools.count()
    inputs = []
    for k, (name, shape) in enumerate(zip("abcde"[: len(shapes)], shapes, strict=True)):
        dims = ",".join(f"s{next(count)}" if symbolic else str(dim) for dim in shape)
        inputs.append(f"{'int64' if k in case.integers else 'float'}[{dims}] {name}")
    outputs = ", ".join(f"float {name.strip()}" for name in case.node.split("=")[0].split(","))
    text = f'<ir_version: 10, opset_import: ["" : {case.opset}]> g ({", ".join(inputs)}) => ({outputs}) {{ {case.node} }}'
    model = onnx.parser.parse_model(text)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def feeds_of(case: Operands, shapes: tuple[tuple[int, ...], ...]) -> dict[str, np.ndarray]:
    arrays = (np.zeros(shape, np.int64) if k in case.integers else np.ones(shape, np.float32) for k, shape in enumerate(shapes))
    return dict(zip("abcde"[: len(shapes)], arrays, strict=True))


def spoilt(case: Operands) -> list[tuple[tuple[int, ...], ...]]:
    def changed(operand: int, axis: int, size: int) -> tuple[tuple[int, ...], ...]:
        own = case.shapes[operand]
        return (*case.shapes[:operand], (*own[:axis], size, *own[axis + 1 :]), *case.shapes[operand + 1 :])

    return [changed(*spoil) for spoil in case.spoils]


@pytest.mark.parametrize("name", CASES)
def test_operands_that_do_not_fit_are_a_shape_error_that_names_the_node(name: str) -> None:
    case = CASES[name]
    for shapes in spoilt(case):
        with pytest.raises(ShapeError, match=case.node.split("=")[1].split()[0]):
            tc.compile(model_of(case, shapes, symbolic=False), threads=1)


@pytest.mark.parametrize("name", some_of(CASES, quick=QUICK))
def test_operands_that_do_not_fit_when_the_model_runs_are_refused(name: str) -> None:
    case = CASES[name]
    module = tc.compile(model_of(case, case.shapes, symbolic=True), threads=1)

    module.run(feeds_of(case, case.shapes))
    for shapes in spoilt(case):
        with pytest.raises(TcError, match=case.node.split("=")[1].split()[0]):
            module.run(feeds_of(case, shapes))
