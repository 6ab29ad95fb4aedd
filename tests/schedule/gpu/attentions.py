"""Attentions to schedule for devices, drawn at random: shapes around those of tiles, masks of all kinds, heads in groups, hard numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tc.ir.dtype import DType, bool_, f32
from tc.ir.expr import Expr, Var, as_expr
from tc.ir.graph import Call
from tc.ir.loop import PrimFunc
from tc.ir.types import TensorType
from tc.ops.build import full_attrs
from tc.ops.registry import get_op
from tc.te import create_prim_func, placeholder

Dim = int | Var


@dataclass(frozen=True)
class AttentionProblem:
    """A function, its arrays and dims, and the result computed in float64."""

    func: PrimFunc
    arrays: list[np.ndarray]
    dims: tuple[int, ...]
    expected: np.ndarray


def attention_problem(
    shapes: Sequence[Sequence[Dim]], arrays: Sequence[np.ndarray], dtypes: Sequence[DType], sizes: dict[Var, int], **attrs: object
) -> AttentionProblem:
    """An attention operator on arrays, some dims of which are symbolic."""
    op = get_op("attention")
    full = full_attrs(Call("attention", (), tuple(attrs.items())))
    tensors = [placeholder(tuple(map(as_expr, shape)), dtype, f"A{k}") for k, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))]
    types = [TensorType(tuple[Expr, ...](x.shape), x.dtype) for x in tensors]
    result = op.compute(tensors, full, [op.infer(types, full)])  # type: ignore[misc]
    func = create_prim_func("attention", tensors, [result], tuple(sizes))
    wide = [array.astype(np.float64) if dtype is not bool_ else array for array, dtype in zip(arrays, dtypes, strict=True)]
    expected = op.reference(wide, full)
    return AttentionProblem(func, list(arrays), tuple(sizes.values()), expected)


def drawn_attention(
    rng: np.random.Generator, dtype: DType = f32, *, large: bool = False, few: bool = False, groups: bool = False
) -> AttentionProblem:
    """Any attention; `few`: of few rows and more keys; `groups`: of so many rows, keys and elements that groups of warps can make it."""
    sizes: dict[Var, int] = {}

    def size(name: str, low: int, high: int, symbolic: float = 0.0) -> tuple[Dim, int]:
        value = int(rng.integers(low, high + 1))
        if rng.random() >= symbolic:
            return value, value
        var = Var(name)
        sizes[var] = value
        return var, value

    b, nb = size("b", 1, 2, 0.2)
    (m, nm), (n, nn) = size("m", 5, 70 if large else 40, 0.3), size("n", 1, 90 if large else 45, 0.3)
    if few:
        sizes = {var: value for var, value in sizes.items() if var is b}
        (m, nm), (n, nn) = size("m", 1, 4), size("n", 1, 300, 0.5)
    if groups:
        sizes = {var: value for var, value in sizes.items() if var is b}
        (m, nm), (n, nn) = size("m", 48, 150, 0.3), size("n", 65, 230, 0.3)
    d, e = (int(rng.choice([48, 64, 104, 128] if groups else [2, 8, 16, 20, 24, 40])) for _ in range(2))
    group = int(rng.choice([1, 1, 2]))
    theirs = int(rng.integers(1, 3))
    heads = theirs * group
    shapes: list[list[Dim]] = [[b, heads, m, d], [b, theirs, n, d], [b, theirs, n, e]]
    ends: list[list[int]] = [[nb, heads, nm, d], [nb, theirs, nn, d], [nb, theirs, nn, e]]
    attrs: dict[str, object] = {}
    for name, at in (("q_perm", 0), ("k_perm", 1), ("v_perm", 2)):
        if rng.random() < 0.3:
            attrs[name] = (0, 2, 1, 3)
            for each in (shapes[at], ends[at]):
                each[1], each[2] = each[2], each[1]
    if rng.random() < 0.3:
        attrs["out_perm"] = (0, 2, 1, 3)
    arrays = [(rng.standard_normal(end) * rng.choice([0.5, 4])).astype(dtype.numpy) for end in ends]
    dtypes: list[DType] = [dtype] * 3
    steps: list[str] = []

    def mask_dims(values: Sequence[Dim], known: Sequence[int]) -> tuple[list[Dim], list[int]]:
        keep = rng.random(4) < 0.6
        return [v if k else 1 for v, k in zip(values, keep, strict=True)], [v if k else 1 for v, k in zip(known, keep, strict=True)]

    for _ in range(int(rng.integers(0, 4))):
        step = str(rng.choice(["mul", "div", "add", "keep", "drop", "tanh"]))
        steps.append(step)
        if step in ("mul", "div"):
            shapes.append([])
            dtypes.append(dtype)
            arrays.append(np.asarray(rng.uniform(0.3, 2), dtype.numpy))
        elif step == "add":
            shape, end = mask_dims((b, heads, m, n), (nb, heads, nm, nn))
            bias = rng.standard_normal(end)
            bias[rng.random(end) < 0.2] = -np.inf if rng.random() < 0.5 else -30
            shapes.append(shape)
            dtypes.append(dtype)
            arrays.append(bias.astype(dtype.numpy))
        elif step in ("keep", "drop"):
            shape, end = mask_dims((b, heads, m, n), (nb, heads, nm, nn))
            mask = np.tril(np.ones(end, bool)) if rng.random() < 0.5 else rng.random(end) < 0.6
            shapes += [shape, []]
            dtypes += [bool_, dtype]
            other = rng.choice([-np.inf, -1e4, -3.4e38 if dtype is f32 else -6e4, 0.0])
            arrays += [mask, np.asarray(other, dtype.numpy)]
    if rng.random() < 0.1:
        arrays[int(rng.integers(2))].flat[0] = rng.choice([np.nan, np.inf, -np.inf])  # in values weights that are 0 in f32 alone would tell
    return attention_problem(shapes, arrays, dtypes, sizes, steps=tuple(steps), rounded=dtype is not f32, **attrs)
