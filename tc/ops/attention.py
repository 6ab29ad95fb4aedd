"""Attention: softmax(steps(q k^T)) v, as one operator.

Models spell it as a dozen operators; the pass `find_attention` puts them together. What stands between the first product and
the softmax differs from model to model (a scale, masks, a bias, a soft cap), so it is data: `steps`, applied in order. `rounded`: the
exponentials, at most 1, are rounded to the operands' type for the second product, as a model that spells it out rounds the chances.
`nan_to_zero`: chances that are NaN, as those of a row that is masked as a whole, are 0, as models write it that torch exports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import prove
from tc.ir.dtype import largest_number
from tc.ir.expr import Const, Expr, call, cast, const, equal, is_const, logical_and, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import (
    Arrays,
    Tensors,
    Types,
    broadcast_read,
    operand,
    require_broadcasts_to,
    same_dtype,
    sum_dtype,
    wide,
)
from tc.ops.registry import OpDef, current_facts, register, require
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


@dataclass(frozen=True)
class AttentionStep:
    """What one step does with a score and its operands: as an expression, and in numpy. All but `dtypes` are in the sum's dtype."""

    operands: int
    expr: Callable[..., Expr]
    array: Callable[..., np.ndarray]


STEPS: dict[str, AttentionStep] = {
    "mul": AttentionStep(1, lambda s, x: s * x, lambda s, x: s * x),
    "div": AttentionStep(1, lambda s, x: s / x, lambda s, x: s / x),
    "add": AttentionStep(1, lambda s, x: s + x, lambda s, x: s + x),
    "sub": AttentionStep(1, lambda s, x: s - x, lambda s, x: s - x),
    "keep": AttentionStep(2, lambda s, mask, other: select(mask, s, other), lambda s, mask, other: np.where(mask, s, other)),
    "drop": AttentionStep(2, lambda s, mask, other: select(mask, other, s), lambda s, mask, other: np.where(mask, other, s)),
    "tanh": AttentionStep(0, lambda s: call("tanh", s), lambda s: np.tanh(s)),
}
"""What may stand between the first product and the softmax. `keep` and `drop` take a mask and what masked scores become."""


def _permuted(type_: TensorType, perm: Sequence[int] | None, name: str) -> TensorType:
    """The type of an operand after its transpose."""
    if perm is None:
        return type_
    if sorted(perm) != list(range(type_.rank)):
        raise ShapeError(f"attention: {name} {tuple(perm)} is not a permutation of {type_.rank} axes")
    return TensorType(tuple(type_.shape[axis] for axis in perm), type_.dtype)


def _placed(perm: Sequence[int] | None, axes: Sequence[Expr]) -> tuple[Expr, ...]:
    """Where an operand holds the element that is at `axes` after its transpose."""
    return tuple(axes) if perm is None else tuple(axes[tuple(perm).index(d)] for d in range(len(axes)))


def _infer(types: Types, attrs: Attrs) -> TensorType:
    q, k, v = (
        _permuted(operand(types, index, "attention"), attrs[f"{name}_perm"], f"{name}_perm")  # type: ignore[arg-type]
        for index, name in enumerate("qkv")
    )
    dtype = same_dtype((q, k, v), "attention")
    if not dtype.is_float or min(q.rank, k.rank, v.rank) < 2 or not q.rank == k.rank == v.rank:
        raise ShapeError(f"attention: q, k and v must be float tensors of one rank, at least 2; found {q}, {k}, {v}")
    require(equal(q.shape[-1], k.shape[-1]), f"attention: q {q} and k {k} must agree in their last dim")
    require(equal(k.shape[-2], v.shape[-2]), f"attention: k {k} and v {v} must agree in their dim {k.rank - 2}")
    for name, other in (("k", k), ("v", v)):
        for axis in range(q.rank - 2):
            if group_size(q.shape, other.shape, axis) is None:
                raise ShapeError(f"attention: dim {axis} of {name} {other} does not divide that of q {q}")
    _check_terms(types[3:], (*q.shape[:-1], k.shape[-2]), attrs)
    result = TensorType((*q.shape[:-1], v.shape[-1]), dtype)
    return _permuted(result, attrs.out_perm, "out_perm")


def group_size(q: Sequence[Expr], other: Sequence[Expr], axis: int) -> int | None:
    """How many heads of q share one of k or v along a leading axis; 0 when k or v has only one for all; None: they do not fit.

    Only the last leading axis, that of the heads, may be shared by groups.
    """
    mine, theirs = q[axis], other[axis]
    if mine is theirs or prove(equal(mine, theirs), current_facts()) is True:
        return 1
    if is_const(theirs, 1):
        return 0
    grouped = axis == len(q) - 3 and isinstance(mine, Const) and isinstance(theirs, Const)
    if grouped and theirs.value > 0 and mine.value % theirs.value == 0:  # type: ignore[union-attr]
        return int(mine.value // theirs.value)  # type: ignore[union-attr]
    return None


def _check_terms(terms: Types, shape: Sequence[Expr], attrs: Attrs) -> None:
    wanted = sum(_step(name).operands for name in attrs.steps)
    if wanted != len(terms):
        raise ShapeError(f"attention: the steps {attrs.steps} take {wanted} operands, found {len(terms)}")
    for term in terms:
        if term is None or term.rank > len(shape):
            raise ShapeError(f"attention: the operand {term} of a step does not fit scores of rank {len(shape)}")
        require_broadcasts_to(term.shape, shape, f"attention: the operand {term} of a step")


def _step(name: str) -> AttentionStep:
    if name not in STEPS:
        raise ShapeError(f"attention: there is no step {name!r}; there are: {', '.join(STEPS)}")
    return STEPS[name]


def _run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    q, k, v = (
        _transposed(wide(arrays[index]), attrs[f"{name}_perm"])  # type: ignore[arg-type]
        for index, name in enumerate("qkv")
    )
    heads = q.shape[-3] if q.ndim > 2 else 1
    k, v = _repeated(k, heads), _repeated(v, heads)
    terms = [wide(term) for term in arrays[3:]]  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        scores = q @ np.swapaxes(k, -1, -2)
        for name in attrs.steps:
            own = [terms.pop(0) for _ in range(STEPS[name].operands)]
            scores = STEPS[name].array(scores, *own).astype(scores.dtype)
        powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True, initial=-np.inf))
        chances = powers / np.sum(powers, axis=-1, keepdims=True)
        if attrs.rounded and powers.size:
            rounded = powers.astype(arrays[2].dtype).astype(powers.dtype)  # type: ignore[union-attr]
            chances = rounded / np.sum(powers, axis=-1, keepdims=True)
        if attrs.nan_to_zero:
            chances = np.where(np.isnan(chances), 0, chances).astype(chances.dtype)
        result = chances @ v
    return np.ascontiguousarray(_transposed(result, attrs.out_perm)).astype(arrays[0].dtype)  # type: ignore[union-attr]


def _transposed(array: np.ndarray, perm: Sequence[int] | None) -> np.ndarray:
    return array if perm is None else np.transpose(array, perm)


def _repeated(array: np.ndarray, heads: int) -> np.ndarray:
    if array.ndim < 3 or array.shape[-3] in (0, 1, heads):
        return array
    return np.repeat(array, heads // array.shape[-3], axis=-3)


def _compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    q, k, v = tensors[:3]
    assert q is not None and k is not None and v is not None
    dtype = sum_dtype(q.dtype)
    q_type, k_type, v_type = (
        _permuted(TensorType(x.shape, x.dtype), attrs[f"{name}_perm"], name)  # type: ignore[arg-type]
        for name, x in zip("qkv", (q, k, v), strict=True)
    )
    lead, (rows, depth) = q_type.shape[:-2], q_type.shape[-2:]
    columns, width = v_type.shape[-2:]

    def element(x: Tensor, type_: TensorType, perm: Sequence[int] | None, axes: Sequence[Expr]) -> Expr:
        """Of k or v, for the scores' or the result's leading axes."""
        own = tuple(_shared(axes[d], group_size(q_type.shape, type_.shape, d)) for d in range(len(lead)))
        return cast(x[_placed(perm, (*own, *axes[len(lead) :]))], dtype)

    def product(*axes: Expr) -> Expr:
        *outer, i, j, d = axes
        return cast(q[_placed(attrs.q_perm, (*outer, i, d))], dtype) * element(k, k_type, attrs.k_perm, (*outer, j, d))

    scores = te.reduce("sum", (*lead, rows, columns), (depth,), product, "scores")
    masked = te.compute(scores.shape, lambda *axes: _stepped(scores[axes], axes, scores.shape, tensors[3:], attrs), "masked")
    power = "exp_brief" if attrs.rounded else "decay"
    # a NaN that the maximum passes over reaches the sum through its own exponential
    most = "max" if attrs.nan_to_zero else "max_number"
    top = te.reduce(most, (*lead, rows), (columns,), lambda *axes: masked[axes], "top")

    def raised(*axes: Expr) -> Expr:
        largest = top[axes[:-1]]
        found = call(power, masked[axes] - largest)
        return select(_is_finite(largest), found, const(0.0, dtype)) if attrs.nan_to_zero else found  # else all of the row is NaN

    powers = te.compute(scores.shape, raised, "powers")
    total = te.reduce("sum", (*lead, rows), (columns,), lambda *axes: powers[axes], "total")

    def share(*axes: Expr) -> Expr:  # without any column the result is a sum of nothing
        return select(equal(total[axes], 0.0), const(0.0, dtype), const(1.0, dtype) / total[axes])

    inverse = te.compute((*lead, rows), share, "inverse")

    def weigh(*axes: Expr) -> Expr:
        *outer, i, e, j = axes
        power = powers[(*outer, i, j)]
        weight = cast(cast(power, v.dtype), dtype) if attrs.rounded else power
        return weight * element(v, v_type, attrs.v_perm, (*outer, j, e))

    weighted = te.reduce("sum", (*lead, rows, width), (columns,), weigh, "weighted")

    def result(*places: Expr) -> Expr:
        axes = places if attrs.out_perm is None else tuple(places[attrs.out_perm.index(d)] for d in range(len(places)))
        return cast(weighted[axes] * inverse[axes[:-1]], types[0].dtype)

    return te.compute(types[0].shape, result, "attention")


def _is_finite(value: Expr) -> Expr:
    largest = largest_number(value.dtype)
    return logical_and(const(-largest, value.dtype) <= value, value <= const(largest, value.dtype))


def _shared(axis: Expr, group: int | None) -> Expr:
    assert group is not None, "checked by the type rule"
    return const(0) if group == 0 else axis if group == 1 else axis // group


def _stepped(score: Expr, axes: Sequence[Expr], shape: Sequence[Expr], terms: Tensors, attrs: Attrs) -> Expr:
    rest = list(terms)
    for name in attrs.steps:
        operands = []
        for _ in range(STEPS[name].operands):
            term = rest.pop(0)
            assert term is not None
            value = broadcast_read(term, axes, shape)
            operands.append(value if value.dtype.is_bool else cast(value, score.dtype))
        score = STEPS[name].expr(score, *operands)
    return score


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    scale = np.float32(0.3)
    yield [normal(5, 4), normal(7, 4), normal(7, 3)], {}
    yield [normal(2, 3, 5, 8), normal(2, 3, 9, 8), normal(2, 3, 9, 16), np.array(scale)], {"steps": ("mul",)}
    lowest = np.full((1, 1, 1, 1), np.finfo(np.float32).min, np.float32)
    mask = rng.random((2, 1, 5, 9)) < 0.5
    yield (
        [normal(2, 4, 5, 8), normal(2, 2, 9, 8), normal(2, 2, 9, 8), np.array(scale), mask, lowest],
        {"steps": ("div", "keep")},
    )
    yield [normal(1, 4, 3, 8), normal(1, 1, 9, 8), normal(1, 1, 9, 8), ~mask[:1, :, :3], -lowest], {"steps": ("drop",)}
    yield (
        [normal(2, 17, 3, 20), normal(2, 33, 3, 20), normal(2, 33, 3, 24), normal(2, 1, 1, 33)],
        {"steps": ("tanh", "add"), **dict.fromkeys(("q_perm", "k_perm", "v_perm", "out_perm"), (0, 2, 1, 3))},
    )
    yield [normal(2, 1, 8), normal(2, 8, 40), normal(2, 40, 32)], {"k_perm": (0, 2, 1)}
    yield [normal(40, 16), normal(50, 16), normal(50, 16), np.array(scale)], {"steps": ("mul",)}
    yield [normal(2, 3, 4).astype(np.float16), normal(2, 5, 4).astype(np.float16), normal(2, 5, 4).astype(np.float16)], {}
    yield [normal(3, 4), normal(0, 4), normal(0, 2)], {}
    q, k = normal(2, 20, 8), normal(2, 35, 8)
    q[0, 3], q[1, 5, 2], k[1, 7] = np.inf, np.nan, 1e30
    masked = np.where(rng.random((2, 20, 35)) < 0.4, -np.inf, 0).astype(np.float32)
    masked[0, 1], masked[1, :4] = -np.inf, -np.inf
    yield [q, k, normal(2, 35, 24), masked], {"steps": ("add",), "nan_to_zero": True}
    yield [normal(0, 4), normal(3, 4), normal(3, 2)], {"nan_to_zero": True}


register(
    OpDef(
        "attention",
        _infer,
        _run,
        _compute,
        {"steps": (), "q_perm": None, "k_perm": None, "v_perm": None, "out_perm": None, "rounded": False, "nan_to_zero": False},
        factors=3,
        samples=_samples,
    )
)
