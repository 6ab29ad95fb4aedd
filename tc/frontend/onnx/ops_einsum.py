"""Sums of products by letters; of two operands as a product of matrices where it is one, whose kernels are better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.values import ModelValue
from tc.ir.arith import prove
from tc.ir.expr import Expr, equal
from tc.ir.types import product
from tc.ops.linear import parse_einsum

Letters = Sequence[str]


@onnx_op("Einsum")
def import_einsum(n: NodeContext) -> NodeResult:
    equation, values = n.attr("equation"), n.values()
    if len(values) == 2 and all(value.dtype.is_float for value in values):
        terms, result = parse_einsum(equation, [value.rank for value in values])
        found = _as_matrices(n, values, terms, result)
        if found is not None:
            return _matmul(n, found)
    return n.call("einsum", *values, equation=equation)


@dataclass(frozen=True)
class _Product:
    """`lhs` is [batch, rows, depth], `rhs` [batch, depth, columns], in some order of their letters; so is the result without the depth."""

    lhs: ModelValue
    rhs: ModelValue
    terms: Sequence[Letters]
    batch: Letters
    rows: Letters
    depth: Letters
    columns: Letters
    result: Letters


def _as_matrices(n: NodeContext, values: Sequence[ModelValue], terms: Sequence[Letters], result: Letters) -> _Product | None:
    """What letters are for, if there is one at least for the rows, the columns and the depth of a product, and no dim is repeated."""
    a, b = terms
    if len(set(a)) < len(a) or len(set(b)) < len(b):
        return None
    shared = [letter for letter in a if letter in b]
    dims = [[value.shape[term.index(letter)] for letter in shared] for value, term in zip(values, terms, strict=True)]
    if not all(prove(equal(x, y), n.facts) is True for x, y in zip(*dims, strict=True)):
        return None
    depth = [letter for letter in shared if letter not in result]
    batch, rows, columns = (
        [letter for letter in result if (letter in a, letter in b) == where] for where in ((True, True), (True, False), (False, True))
    )
    if not (depth and rows and columns) or (values[0].dtype.bits < 32 and any(set(t) - set(shared) - set(result) for t in terms)):
        return None  # halves are summed once, and rounded then
    made, left = [], []
    for value, term, other in ((values[0], a, b), (values[1], b, a)):  # letters of one operand alone are summed first
        alone = tuple(k for k, letter in enumerate(term) if letter not in result and letter not in other)
        made.append(n.call("sum", value, axes=alone, keepdims=False) if alone else value)
        left.append([letter for k, letter in enumerate(term) if k not in alone])
    return _Product(*made, left, batch, rows, depth, columns, result)


def _matmul(n: NodeContext, p: _Product) -> ModelValue:
    dims: dict[str, Expr] = {}
    for value, term in zip((p.lhs, p.rhs), p.terms, strict=True):
        dims.update(zip(term, value.shape, strict=True))

    def shape(*groups: Letters) -> tuple[Expr, ...]:
        return (*(dims[letter] for letter in p.batch), *(product(tuple(dims[letter] for letter in group)) for group in groups))

    lhs = _reshaped(n, _ordered(n, p.lhs, p.terms[0], [*p.batch, *p.rows, *p.depth]), shape(p.rows, p.depth))
    rhs = _reshaped(n, _ordered(n, p.rhs, p.terms[1], [*p.batch, *p.depth, *p.columns]), shape(p.depth, p.columns))
    letters = [*p.batch, *p.rows, *p.columns]
    made = _reshaped(n, n.call("matmul", lhs, rhs), tuple(dims[letter] for letter in letters))
    return _ordered(n, made, letters, p.result)


def _reshaped(n: NodeContext, value: ModelValue, shape: tuple[Expr, ...]) -> ModelValue:
    return value if len(shape) == value.rank else n.call("reshape", value, shape=shape)


def _ordered(n: NodeContext, value: ModelValue, term: Letters, wanted: Letters) -> ModelValue:
    if list(term) == list(wanted):
        return value
    return n.call("transpose", value, perm=tuple(list(term).index(letter) for letter in wanted))
