"""Types of graph values: tensors with symbolic shapes, tuples of them, functions between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from tc.ir.dtype import DType
from tc.ir.expr import Const, Expr, ExprLike, Var, as_expr, ceildiv, const, mul
from tc.ir.node import Node


@dataclass(frozen=True, eq=False)
class TensorType(Node):
    """A dense row-major tensor. Each dim is a non-negative i64 expression over the symbolic dims in scope."""

    shape: tuple[Expr, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    __repr__ = __str__

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def num_elements(self) -> Expr:
        return product(self.shape)

    @property
    def size_bytes(self) -> Expr:
        if self.dtype.per_byte > 1:
            return ceildiv(self.num_elements, self.dtype.per_byte)
        return mul(self.num_elements, self.dtype.size_bytes)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape as integers, or None when a dim is symbolic."""
        if all(isinstance(dim, Const) for dim in self.shape):
            return tuple(int(dim.value) for dim in self.shape)  # type: ignore[attr-defined]
        return None


@dataclass(frozen=True, eq=False)
class TupleType(Node):
    """A fixed number of values."""

    fields: tuple[Type, ...]

    def __str__(self) -> str:
        return f"tuple[{', '.join(map(str, self.fields))}]"

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class FunctionType(Node):
    """A function value: what it takes, what it returns."""

    params: tuple[Type, ...]
    results: tuple[Type, ...]

    def __str__(self) -> str:
        return f"fn[{', '.join(map(str, self.params))}]({', '.join(map(str, self.results))})"

    __repr__ = __str__


Type = Union[TensorType, TupleType, FunctionType]


@dataclass(frozen=True, eq=False)
class DimFact(Node):
    """What is promised about a symbolic dim: `lo <= var <= hi` (hi None: no bound) and `var % multiple_of == 0`."""

    var: Var
    lo: int = 0
    hi: int | None = None
    multiple_of: int = 1


def tensor_type(shape: tuple[ExprLike, ...] | list[ExprLike], dtype: DType) -> TensorType:
    """A TensorType from integers and expressions."""
    return TensorType(tuple(as_expr(dim) for dim in shape), dtype)


def product(dims: tuple[Expr, ...]) -> Expr:
    """The product of the dims; 1 for none."""
    result: Expr = const(1)
    for dim in dims:
        result = mul(result, dim)
    return result
