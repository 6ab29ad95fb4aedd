"""Sums of products by letters; of two operands as a product of matrices where it is one, whose kernels are better; of more operands as
those of two after each other, where one of them is such a product."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import prod

from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.values import ModelValue
from tc.ir.arith import prove
from tc.ir.expr import Const, Expr, equal
from tc.ir.types import product
from tc.ops.linear import parse_einsum

Letters = Sequence[str]


NAMES = string.ascii_letters
"""Letters of an equation that is made here."""

USUAL_DIM = 64
"""What a dim that is not known is taken to be where it is chosen which operands come first."""

Pair = tuple[int, int, Letters]
"""Two of the operands that are left, and the letters of what is made of them, in the place of the first."""


@onnx_op("Einsum")
def import_einsum(n: NodeContext) -> NodeResult:
    equation, values = n.attr("equation"), n.values()
    terms, result = parse_einsum(equation, [value.rank for value in values])
    if not all(value.dtype.is_float for value in values):
        return n.call("einsum", *values, equation=equation)
    values = n.graph.aligned("einsum", values, n.span, equation=equation)
    if len(values) > 2 and all(value.dtype.bits >= 32 for value in values):
        pairs = _pairs(values, terms, result)
        if pairs is not None:
            return _in_pairs(n, values, terms, pairs)
    found = _as_matrices(n, values, terms, result) if len(values) == 2 else None
    return n.call("einsum", *values, equation=equation) if found is None else _matmul(n, found)


def _pairs(values: Sequence[ModelValue], terms: Sequence[Letters], result: Letters) -> list[Pair] | None:
    """Which two of the operands that are left are taken next: those with the fewest products, of equal ones those that leave least.
    None where no two are a product of matrices, or there are more products than of all at once."""
    sizes = {
        letter: int(dim.value) if isinstance(dim, Const) else USUAL_DIM
        for value, term in zip(values, terms, strict=True)
        for letter, dim in zip(term, value.shape, strict=True)
    }

    def count(letters: Iterable[str]) -> int:
        return prod(sizes[letter] for letter in set(letters))

    if any(len(set(term)) < len(term) for term in terms) or len(sizes) > len(NAMES):
        return None
    left, pairs, products, is_matrix = list(terms), list[Pair](), 0, False

    def cost(two: tuple[int, int]) -> tuple[int, int]:
        return count(chain.from_iterable(left[k] for k in two)), count(_kept(left, *two, result))

    while len(left) > 1:
        i, j = min(combinations(range(len(left)), 2), key=cost)
        kept = result if len(left) == 2 else _kept(left, i, j, result)
        products += count([*left[i], *left[j]])
        is_matrix |= _is_matrix(left[i], left[j], kept)
        left = [kept if k == i else term for k, term in enumerate(left) if k != j]
        pairs.append((i, j, kept))
    return pairs if is_matrix and products <= 2 * count(sizes) else None


def _kept(terms: Sequence[Letters], i: int, j: int, result: Letters) -> Letters:
    """The letters of two operands that the result or another operand has: first those that both have, as of a batch."""
    others = {*result, *(letter for k, term in enumerate(terms) if k not in (i, j) for letter in term)}
    letters = [letter for letter in dict.fromkeys([*terms[i], *terms[j]]) if letter in others]
    return sorted(letters, key=lambda letter: not (letter in terms[i] and letter in terms[j]))


def _is_matrix(a: Letters, b: Letters, kept: Letters) -> bool:
    """Whether there are rows, columns and a depth."""
    return bool(set(a) - set(b) and set(b) - set(a) and (set(a) & set(b)) - set(kept))


def _in_pairs(n: NodeContext, values: Sequence[ModelValue], terms: Sequence[Letters], pairs: Sequence[Pair]) -> ModelValue:
    left, names = list(zip(values, terms, strict=True)), dict(zip(dict.fromkeys(letter for term in terms for letter in term), NAMES))

    def text(letters: Letters) -> str:
        return "".join(names[letter] for letter in letters)

    for i, j, kept in pairs:
        (lhs, a), (rhs, b) = left[i], left[j]
        found = _as_matrices(n, [lhs, rhs], [a, b], kept)
        made = n.call("einsum", lhs, rhs, equation=f"{text(a)},{text(b)}->{text(kept)}") if found is None else _matmul(n, found)
        left = [(made, kept) if k == i else each for k, each in enumerate(left) if k != j]
    return left[0][0]


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
