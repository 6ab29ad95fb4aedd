"""Sums of products: matmul and its integer twin, einsum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.dtype import DType, bf16, f32, i32
from tc.ir.expr import Expr, cast, equal
from tc.ir.graph import Atom, Attrs, TensorConst
from tc.ir.types import TensorType
from tc.ops.common import (
    Arrays,
    Tensors,
    Types,
    broadcast_dim,
    broadcast_index,
    broadcast_shapes,
    operand,
    product_dtype,
    require_broadcasts_to,
    require_equal,
    rounded_sums,
    same_dtype,
    sum_dtype,
    wide,
)
from tc.ops.registry import REQUIRED, AxisKeys, OpDef, register, require
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _matmul_shape(a: TensorType, b: TensorType, op: str) -> tuple[Expr, ...]:
    if a.rank == 0 or b.rank == 0:
        raise ShapeError(f"{op}: operands must have at least one axis, found {a} and {b}")
    depth_a, depth_b = a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0]
    require(
        equal(depth_a, depth_b),
        f"{op}: the last dim of {a} is {depth_a}, but dim {max(b.rank - 2, 0)} of {b} is {depth_b}",
    )
    batch = broadcast_shapes(op, a.shape[:-2], b.shape[:-2]) if a.rank > 2 or b.rank > 2 else ()
    rows = (a.shape[-2],) if a.rank > 1 else ()
    columns = (b.shape[-1],) if b.rank > 1 else ()
    return (*batch, *rows, *columns)


def _aligned_batches(types: Types, attrs: Attrs) -> AxisKeys:
    """Leading axes broadcast from the right; rows, columns and zero points do not."""
    operands = [operand(types, k, "matmul") for k in range(2)]
    keys: list[Sequence[object] | None] = [(*range(-t.rank, -2), *(None,) * min(t.rank, 2)) for t in operands]
    return [*keys, *(None for _ in types[2:])]


def _matmul_stage(a: Tensor, b: Tensor, type_: TensorType, dtype: DType) -> Tensor:
    """One reduction stage: out[..., i, j] = sum over k of a[..., i, k] * b[..., k, j]."""
    has_rows, has_columns = len(a.shape) > 1, len(b.shape) > 1
    batch_rank = type_.rank - has_rows - has_columns

    def batch(tensor: Tensor, axes: Sequence[Expr]) -> tuple[Expr, ...]:
        own = max(len(tensor.shape) - 2, 0)
        chosen = slice(batch_rank - own, batch_rank)
        places = zip(axes[chosen], tensor.shape[:own], type_.shape[chosen], strict=True)
        return tuple(broadcast_index(axis, dim, wide) for axis, dim, wide in places)

    def body(*axes: Expr) -> Expr:
        *out, k = axes
        row = (out[batch_rank],) if has_rows else ()
        column = (out[-1],) if has_columns else ()
        lhs, rhs = a[(*batch(a, out), *row, k)], b[(*batch(b, out), k, *column)]
        return cast(lhs, dtype) * cast(rhs, dtype)

    return te.reduce("sum", type_.shape, (a.shape[-1],), body, "matmul")


def _rounded(total: Tensor, dtype: DType) -> Tensor:
    """`total` in the result's dtype."""
    if total.dtype == dtype:
        return total
    return te.compute(total.shape, lambda *axes: cast(total[axes], dtype), "rounded")


def _compute_matmul(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    a, b = tensors[0], tensors[1]
    assert a is not None and b is not None
    return _rounded(_matmul_stage(a, b, types[0], sum_dtype(types[0].dtype)), types[0].dtype)


def _run_matmul(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    a, b = arrays[0], arrays[1]
    assert a is not None and b is not None
    return rounded_sums(np.asarray(np.matmul(wide(a), wide(b))), attrs, a)


def _matmul_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield [_f32(rng, 3, 4), _f32(rng, 4, 5)], {}
    yield [_f32(rng, 2, 1, 3, 4), _f32(rng, 5, 4, 2)], {}
    yield [_f32(rng, 4), _f32(rng, 4)], {}
    yield [_f32(rng, 4), _f32(rng, 2, 4, 3)], {}
    yield [_f32(rng, 2, 3, 4), _f32(rng, 4)], {}
    yield [_f32(rng, 3, 0), _f32(rng, 0, 2)], {}
    yield [rng.integers(-9, 9, (3, 4)), rng.integers(-9, 9, (4, 2))], {}
    yield [_f32(rng, 2, 3, 4).astype(bf16.numpy), _f32(rng, 4, 2).astype(bf16.numpy)], {"dtype": f32}


register(
    OpDef(
        "matmul",
        lambda types, attrs: TensorType(
            _matmul_shape(operand(types, 0, "matmul"), operand(types, 1, "matmul"), "matmul"),
            product_dtype(attrs, same_dtype(types, "matmul")),
        ),
        _run_matmul,
        _compute_matmul,
        {"dtype": None},
        aligned=_aligned_batches,
        factors=2,
        depth=(-1, -2),
        samples=_matmul_samples,
    )
)


# -- integers


def _zero(items: Sequence[Any], index: int) -> Any:
    return items[index] if len(items) > index else None


def _infer_matmul_integer(types: Types, attrs: Attrs) -> TensorType:
    a, b = operand(types, 0, "matmul_integer"), operand(types, 1, "matmul_integer")
    shape = _matmul_shape(a, b, "matmul_integer")
    for name, zero, of in (("rows", _zero(types, 2), a.shape[-2:-1]), ("columns", _zero(types, 3), b.shape[-1:])):
        if zero is None or zero.rank == 0:
            continue
        if zero.rank > 1 or not of:
            raise ShapeError(f"matmul_integer: the zero points of the {name} are {zero}, but must have 1 dim or none")
        require_broadcasts_to(zero.shape, of, f"matmul_integer: the zero points of the {name}")
    return TensorType(shape, i32)


def _run_matmul_integer(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    a, b = (array.astype(np.int32) for array in arrays[:2])  # type: ignore[union-attr]
    a_zero, b_zero = _zero(arrays, 2), _zero(arrays, 3)
    if a_zero is not None:
        zero = a_zero.astype(np.int32)
        a = a - (zero[..., None] if zero.ndim else zero)
    if b_zero is not None:
        b = b - b_zero.astype(np.int32)
    return np.asarray(np.matmul(a, b))


def _shifted(x: Tensor, zero: Tensor | None, per_row: bool) -> Tensor:
    """x - zero in i32; a zero point of rank 1 belongs to the rows of the lhs or the columns of the rhs."""

    def body(*axes: Expr) -> Expr:
        value = cast(x[axes], i32)
        if zero is None:
            return value
        if not zero.shape:
            return value - cast(zero[()], i32)
        own = -2 if per_row else -1
        return value - cast(zero[broadcast_index(axes[own], zero.shape[0], x.shape[own])], i32)

    return te.compute(x.shape, body, "shifted")


def _compute_matmul_integer(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    a, b = tensors[0], tensors[1]
    assert a is not None and b is not None
    lhs, rhs = _shifted(a, _zero(tensors, 2), True), _shifted(b, _zero(tensors, 3), False)
    return _matmul_stage(lhs, rhs, types[0], i32)


def _shifts(operands: Sequence[Atom | None], attrs: Attrs) -> tuple[int, ...]:
    """The places of zero points, but for those of 0, by which nothing is shifted."""
    given = [place for place in (2, 3) if place < len(operands)]
    return tuple(place for place in given if not (isinstance(zero := operands[place], TensorConst) and not zero.value.any()))


def _integer_samples(rng: np.random.Generator) -> Iterator[Sample]:
    a, b = rng.integers(0, 255, (3, 4)).astype(np.uint8), rng.integers(-128, 127, (4, 2)).astype(np.int8)
    yield [a, b], {}
    yield [a, b, np.array(128, np.uint8), np.array(3, np.int8)], {}
    yield [a, b, None, np.array([3, -1], np.int8)], {}


register(
    OpDef(
        "matmul_integer",
        _infer_matmul_integer,
        _run_matmul_integer,
        _compute_matmul_integer,
        aligned=_aligned_batches,
        data=_shifts,
        samples=_integer_samples,
    )
)


# -- einsum


def parse_einsum(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Letters of each operand and of the result; an ellipsis becomes the letters "...0", "...1" counted from the right."""
    text = equation.replace(" ", "")
    left, _, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ShapeError(f"einsum: {equation!r} has {len(terms)} terms for {len(ranks)} operands")
    most = 0
    parsed = []
    for term, rank in zip(terms, ranks, strict=True):
        head, dots, tail = term.partition("...")
        hidden = rank - len(head) - len(tail) if dots else 0
        if hidden < 0 or (not dots and len(head) != rank):
            raise ShapeError(f"einsum: the term {term!r} does not fit an operand of rank {rank}")
        most = max(most, hidden)
        parsed.append([*head, *(f"...{k}" for k in reversed(range(hidden))), *tail])
    ellipsis = [f"...{k}" for k in reversed(range(most))]
    if "->" in text:
        head, dots, tail = right.partition("...")
        result = [*head, *(ellipsis if dots else []), *tail]
        known = {letter for term in parsed for letter in term}
        if len(set(result)) < len(result) or not known.issuperset(result):
            raise ShapeError(f"einsum: the result {right!r} of {equation!r} repeats a letter, or has one that no operand has")
        return parsed, result
    letters = [letter for term in parsed for letter in term if not letter.startswith("...")]
    return parsed, [*ellipsis, *sorted(letter for letter in set(letters) if letters.count(letter) == 1)]


def _einsum_dims(equation: str, shapes: Sequence[Sequence[Expr]]) -> tuple[dict[str, Expr], list[list[str]], list[str]]:
    terms, result = parse_einsum(equation, [len(shape) for shape in shapes])
    dims: dict[str, Expr] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, dim in zip(term, shape, strict=True):
            dims[letter] = broadcast_dim(dims[letter], dim, "einsum", f"the dim {letter!r}") if letter in dims else dim
    return dims, terms, result


def _infer_einsum(types: Types, attrs: Attrs) -> TensorType:
    present = [operand(types, k, "einsum") for k in range(len(types))]
    dims, terms, result = _einsum_dims(attrs.equation, [type_.shape for type_ in present])
    for term, type_ in zip(terms, present, strict=True):
        for axis, letter in enumerate(term):  # a diagonal does not broadcast
            require_equal(type_.shape[axis], type_.shape[term.index(letter)], f"einsum: the dim {letter!r} of {type_}")
    return TensorType(tuple(dims[letter] for letter in result), same_dtype(present, "einsum"))


def _compute_einsum(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    present = [tensor for tensor in tensors if tensor is not None]
    dims, terms, result = _einsum_dims(attrs.equation, [tensor.shape for tensor in present])
    summed = [letter for letter in dims if letter not in result]
    dtype = sum_dtype(types[0].dtype)

    def body(*axes: Expr) -> Expr:
        place = dict(zip([*result, *summed], axes, strict=True))
        value: Expr | None = None
        for tensor, term in zip(present, terms, strict=True):
            indices = (
                broadcast_index(place[letter], dim, dims[letter]) for letter, dim in zip(term, tensor.shape, strict=True)
            )
            factor = cast(tensor[tuple(indices)], dtype)
            value = factor if value is None else value * factor
        assert value is not None
        return value

    if not summed:
        return te.compute(types[0].shape, lambda *axes: cast(body(*axes), types[0].dtype), "einsum")
    total = te.reduce("sum", types[0].shape, tuple(dims[letter] for letter in summed), body, "einsum")
    return _rounded(total, types[0].dtype)


register(
    OpDef(
        "einsum",
        _infer_einsum,
        lambda arrays, attrs: np.asarray(np.einsum(attrs.equation.replace(" ", ""), *map(wide, arrays))).astype(  # type: ignore[arg-type]
            arrays[0].dtype  # type: ignore[union-attr]
        ),
        _compute_einsum,
        {"equation": REQUIRED},
        factors=-1,
        aligned=lambda types, attrs: parse_einsum(attrs.equation, [operand(types, k, "einsum").rank for k in range(len(types))])[0],
        samples=lambda rng: iter(
            [
                ([_f32(rng, 3, 4), _f32(rng, 4, 5)], {"equation": "ij,jk->ik"}),
                ([_f32(rng, 2, 3, 4), _f32(rng, 2, 5, 4)], {"equation": "b i d, b j d -> b i j"}),
                ([_f32(rng, 3, 3)], {"equation": "ii->i"}),
                ([_f32(rng, 3, 4)], {"equation": "ij->ji"}),
                ([_f32(rng, 2, 3, 4), _f32(rng, 4, 5)], {"equation": "...ij,jk->...ik"}),
                ([_f32(rng, 3), _f32(rng, 3)], {"equation": "i,i"}),
            ]
        ),
    )
)
