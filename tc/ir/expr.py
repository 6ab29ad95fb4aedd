"""Scalar expressions: one language for symbolic dims, loop bounds, indices and the values that kernels compute.

Expressions are hash-consed: building the same tree twice gives the same object, so `==` (identity) is tree equality and
expressions are good dictionary keys. `Var` and `Buffer` are the exceptions: each is its own binder.

Integer arithmetic in dims, bounds and indices (dtype i64) is read over the unbounded integers; `//` and `%` round down, so
`(x // c) * c + x % c == x` for every c != 0. In values that kernels compute, integers wrap to their dtype. Floats follow
IEEE 754; `Min` and `Max` return NaN when an operand is NaN.

The Python operators fold constants and drop neutral elements, nothing more; `arith.simplify` does the rest. The classes
themselves build exactly the node that is named, which is what the parser needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Union

from tc.ir.dtype import DType, bool_, f32, f64, i64, u32, u64
from tc.ir.interning import Interned, NeverShared
from tc.ir.node import Node

Value = Union[int, float, bool]
ExprLike = Union["Expr", int, float, bool]


class Expr(Node, metaclass=Interned):
    """A scalar value of type `dtype`."""

    dtype: DType

    def __post_init__(self) -> None:
        """Sets the type of a node that takes it from its operands."""

    def __add__(self, other: ExprLike) -> Expr:
        return add(self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return add(other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return sub(self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return sub(other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return mul(self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return mul(other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return floordiv(self, other)

    def __rfloordiv__(self, other: ExprLike) -> Expr:
        return floordiv(other, self)

    def __mod__(self, other: ExprLike) -> Expr:
        return floormod(self, other)

    def __rmod__(self, other: ExprLike) -> Expr:
        return floormod(other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return _binary(Div, self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return _binary(Div, other, self)

    def __neg__(self) -> Expr:
        return Const(-self.value, self.dtype) if isinstance(self, Const) else neg(self)

    def __lt__(self, other: ExprLike) -> Expr:
        return _compare(Lt, self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return _compare(Le, self, other)

    def __gt__(self, other: ExprLike) -> Expr:
        return _compare(Lt, *reversed(_pair(self, other)))

    def __ge__(self, other: ExprLike) -> Expr:
        return _compare(Le, *reversed(_pair(self, other)))

    def __bool__(self) -> bool:
        if isinstance(self, Const):
            return bool(self.value)
        raise TypeError(f"the truth of {self!r} is not known before the program runs; choose by select(), or ask arith.prove")

    def __index__(self) -> int:
        if isinstance(self, Const) and isinstance(self.value, int):
            return int(self.value)
        raise TypeError(f"{self!r} is not a known integer")

    def __repr__(self) -> str:
        return format_expr(self)


@dataclass(frozen=True, eq=False, repr=False)
class Const(Expr):
    """A literal. Integers are Python ints in the range of the dtype, floats are rounded to the dtype when emitted."""

    value: Value
    dtype: DType


@dataclass(frozen=True, eq=False, repr=False)
class Var(Expr, metaclass=NeverShared):
    """A binder and its uses: a symbolic dim, a loop variable, a block axis. Two `Var`s are one only as one object."""

    is_binder = True
    name: str
    dtype: DType = i64


@dataclass(frozen=True, eq=False)
class Buffer(Node):
    """A typed region of memory. `shape` and `strides` count elements; `strides` None means compact row-major.

    `scope` says where it lives: "global" (a parameter, or the caller's memory), "local" (the stack of one task, or scratch of one
    thread), "register" (SSA values: every index must be a constant after unrolling), "tile" (one register for a tile, touched by
    intrinsics alone), "shared" (a GPU block's memory), "fragment" (registers of all lanes of a warp, or of a group of warps, each of which
    holds some of the elements: see `bit_layout`).
    """

    is_binder = True
    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    scope: str = "global"
    strides: tuple[Expr, ...] | None = None

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Load:
        items = indices if isinstance(indices, tuple) else (indices,)
        return Load(self, tuple(as_expr(index) for index in items))


@dataclass(frozen=True, eq=False, repr=False)
class Load(Expr):
    """The element `buffer[indices]` at the time of evaluation; one index per dimension, in range or the program is wrong."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    def __post_init__(self) -> None:
        self.__dict__["dtype"] = self.buffer.dtype


@dataclass(frozen=True, eq=False, repr=False)
class BinaryExpr(Expr):
    """Two operands of one dtype; the result has that dtype too."""

    lhs: Expr
    rhs: Expr

    def __post_init__(self) -> None:
        self.__dict__["dtype"] = self.lhs.dtype


class Add(BinaryExpr):
    """lhs + rhs."""


class Sub(BinaryExpr):
    """lhs - rhs."""


class Mul(BinaryExpr):
    """lhs * rhs."""


class Div(BinaryExpr):
    """lhs / rhs; for integers the quotient rounded toward zero, as in C and in ONNX. Division by zero gives 0 for integers."""


class FloorDiv(BinaryExpr):
    """The quotient rounded down. Integers only; dividing by zero gives 0."""


class FloorMod(BinaryExpr):
    """lhs - rhs * (lhs // rhs): has the sign of rhs. Integers only; modulo zero gives 0."""


class Min(BinaryExpr):
    """The smaller operand; NaN if either is NaN."""


class Max(BinaryExpr):
    """The larger operand; NaN if either is NaN."""


@dataclass(frozen=True, eq=False, repr=False)
class CompareExpr(Expr):
    """Two operands of one dtype; the result is a bool."""

    lhs: Expr
    rhs: Expr

    def __post_init__(self) -> None:
        self.__dict__["dtype"] = bool_


class Eq(CompareExpr):
    """lhs == rhs."""


class Ne(CompareExpr):
    """lhs != rhs."""


class Lt(CompareExpr):
    """lhs < rhs. `a > b` is written Lt(b, a)."""


class Le(CompareExpr):
    """lhs <= rhs. `a >= b` is written Le(b, a)."""


@dataclass(frozen=True, eq=False, repr=False)
class And(CompareExpr):
    """Both; operands are bools without side effects, so the order of evaluation does not matter."""


@dataclass(frozen=True, eq=False, repr=False)
class Or(CompareExpr):
    """Either."""


@dataclass(frozen=True, eq=False, repr=False)
class Not(Expr):
    """The negation of a bool."""

    operand: Expr

    def __post_init__(self) -> None:
        self.__dict__["dtype"] = bool_


@dataclass(frozen=True, eq=False, repr=False)
class Select(Expr):
    """`true_value` where `condition` holds, else `false_value`. Loads in the branch that is not chosen are not performed
    outside their buffer: emitters guard or mask them."""

    condition: Expr
    true_value: Expr
    false_value: Expr

    def __post_init__(self) -> None:
        self.__dict__["dtype"] = self.true_value.dtype


@dataclass(frozen=True, eq=False, repr=False)
class Checked(Expr):
    """`value`, provided that 0 <= `index` < `extent`. Otherwise the statement that needs it does not happen, and the call fails.

    The caller reads `message`, whose {index} and {size} stand for `given` (what the user wrote: the index before it was counted from
    the end) and `extent`, both i64. `origin` is the number of the graph's operation that asks, among those of the kernel.
    """

    value: Expr
    index: Expr
    extent: Expr
    given: Expr
    message: str
    origin: int = 0

    def __post_init__(self) -> None:
        self.__dict__["dtype"] = self.value.dtype


@dataclass(frozen=True, eq=False, repr=False)
class Cast(Expr):
    """`operand` converted to `dtype`: floats to integers truncate and saturate, integers wrap, anything to bool is `!= 0`."""

    operand: Expr
    dtype: DType


@dataclass(frozen=True, eq=False, repr=False)
class Narrow(Cast):
    """A `Cast` of a float to a narrower one because the result of an operator is stored so: where it is not stored, but computed with
    further, it need not be rounded."""


@dataclass(frozen=True, eq=False, repr=False)
class MathCall(Expr):
    """A pure intrinsic such as `exp`, `fma` or `bit_and`; see MATH_CALLS for the names and their arity."""

    name: str
    args: tuple[Expr, ...]
    dtype: DType


MATH_CALLS: dict[str, int] = {
    **dict.fromkeys(
        "exp exp2 log log2 log1p expm1 tanh erf normal_cdf sigmoid sin cos tan asin acos atan sinh cosh asinh acosh atanh sqrt rsqrt "
        "floor ceil round trunc abs sign isnan isinf bit_not round_tf32 decay exp_brief float_bits float_of_bits".split(),
        1,
    ),
    **dict.fromkeys("pow fmod bit_and bit_or bit_xor shift_left shift_right".split(), 2),
    "fma": 3,
    "bounded_quotient": 5,
    "thread_index": 0,
}
"""Name -> number of arguments. `round` is half to even; `shift_right` is arithmetic for signed types. `thread_index` numbers the
threads that run the iterations of a parallel loop, from 0: the same in one iteration, different in iterations that run at once.
`normal_cdf(x)` is (1 + erf(x / sqrt(2))) / 2, the weight of the normal distribution below x. `round_tf32(x)` is the f32 nearest to x that
has 11 significant bits, of two the one with the greater magnitude: what a matrix instruction on tf32 takes; NaN and infinities stay.
`bounded_quotient(x, y, inverse, low, high)` is min(max(x, low), high) / y, NaN being low, of f32; y lies between 2^-60 and 2^60, inverse
is 1 / y, and low / y and high / y are below 2^20: so the quotient is found by products.
`decay(x)` is exp(x) for x at most 0; what is no normal number may be 0.
`exp_brief(x)` is exp(x) for what is rounded to 16 bits: off by no more than 2^-22 (1 + |x|) of it, and 0 where it is no normal number.
`float_bits(x)` is the u32 or u64 that an f32 or f64 is in memory, `float_of_bits(x)` the f32 or f64 that a u32 or u64 is."""


TRUE = Const(True, bool_)
FALSE = Const(False, bool_)

_KEPT: dict[Value, Const] = {}
"""i64 literals that have been used, by their values: few numbers are most literals. Those that are not small are forgotten with the
programs that hold them. Shared by all threads: of two that enter a number, both have the same node."""
_LARGEST_KEPT = 1 << 12


def const(value: Value, dtype: DType = i64) -> Const:
    """A literal of `dtype`, with the Python type that belongs to it."""
    if dtype is i64:
        known = _KEPT.get(value)  # 1.0 and True are found as 1
        return known if known is not None else _integer(int(value))
    if dtype.is_float:
        return Const(float(value), dtype)
    if dtype.is_bool:
        return TRUE if value else FALSE
    return Const(int(value), dtype)


def _integer(value: int) -> Const:
    """An i64 literal that is not known yet, or not kept."""
    made = Const(value, i64)
    if -_LARGEST_KEPT <= value <= _LARGEST_KEPT:
        _KEPT[value] = made
    return made


def as_expr(value: ExprLike, dtype: DType | None = None) -> Expr:
    """`value` as an expression; plain Python numbers become i64, bool or f64 constants, or constants of `dtype`."""
    if isinstance(value, Expr):
        return value
    if dtype is not None:
        return const(value, dtype)
    if isinstance(value, bool):
        return TRUE if value else FALSE
    if isinstance(value, float):
        return Const(value, f64)
    return const(value)


def _pair(lhs: ExprLike, rhs: ExprLike) -> tuple[Expr, Expr]:
    """Both as expressions of one dtype: a plain number takes the dtype of the other side."""
    if not isinstance(lhs, Expr):
        rhs = as_expr(rhs)
        return as_expr(lhs, rhs.dtype), rhs
    if not isinstance(rhs, Expr):
        return lhs, as_expr(rhs, lhs.dtype)
    if lhs.dtype is not rhs.dtype and lhs.dtype != rhs.dtype:
        raise TypeError(f"operands of different dtypes: {lhs.dtype} and {rhs.dtype}")
    return lhs, rhs


def _binary(cls: type[BinaryExpr], lhs: ExprLike, rhs: ExprLike) -> Expr:
    return cls(*_pair(lhs, rhs))


def _compare(cls: type[CompareExpr], lhs: ExprLike, rhs: ExprLike) -> Expr:
    a, b = _pair(lhs, rhs)
    if isinstance(a, Const) and isinstance(b, Const) and not a.dtype.is_float:
        return TRUE if _COMPARE[cls](a.value, b.value) else FALSE
    return cls(a, b)


_COMPARE = {
    Eq: lambda a, b: a == b,
    Ne: lambda a, b: a != b,
    Lt: lambda a, b: a < b,
    Le: lambda a, b: a <= b,
}


def is_const(expr: Expr, value: Value | None = None) -> bool:
    """Whether `expr` is a literal (equal to `value`, when given)."""
    return isinstance(expr, Const) and (value is None or expr.value == value)


def _both_int(a: Expr, b: Expr) -> bool:
    return isinstance(a, Const) and isinstance(b, Const) and a.dtype is i64


def add(lhs: ExprLike, rhs: ExprLike) -> Expr:
    a, b = _pair(lhs, rhs)
    if _both_int(a, b):
        return const(a.value + b.value)  # type: ignore[attr-defined]
    if a.dtype.is_int:
        if is_const(a, 0):
            return b
        if is_const(b, 0):
            return a
    return Add(a, b)


def sub(lhs: ExprLike, rhs: ExprLike) -> Expr:
    a, b = _pair(lhs, rhs)
    if _both_int(a, b):
        return const(a.value - b.value)  # type: ignore[attr-defined]
    if a.dtype.is_int and is_const(b, 0):
        return a
    return Sub(a, b)


def mul(lhs: ExprLike, rhs: ExprLike) -> Expr:
    a, b = _pair(lhs, rhs)
    if _both_int(a, b):
        return const(a.value * b.value)  # type: ignore[attr-defined]
    if a.dtype.is_int:
        if is_const(a, 0) or is_const(b, 1):
            return a
        if is_const(b, 0) or is_const(a, 1):
            return b
    return Mul(a, b)


def neg(operand: Expr) -> Expr:
    """-operand: 0 - x for integers, a product with -1 for floats (so that -0.0 comes out right)."""
    if operand.dtype.is_float:
        return Mul(operand, const(-1.0, operand.dtype))
    return sub(const(0, operand.dtype), operand)


def floordiv(lhs: ExprLike, rhs: ExprLike) -> Expr:
    a, b = _pair(lhs, rhs)
    if _both_int(a, b):
        return const(a.value // b.value if b.value else 0)  # type: ignore[attr-defined]
    if is_const(b, 1) or is_const(a, 0):
        return a
    return FloorDiv(a, b)


def floormod(lhs: ExprLike, rhs: ExprLike) -> Expr:
    a, b = _pair(lhs, rhs)
    if _both_int(a, b):
        return const(a.value % b.value if b.value else 0)  # type: ignore[attr-defined]
    if is_const(b, 1):
        return const(0, a.dtype)
    return FloorMod(a, b)


def ceildiv(lhs: ExprLike, rhs: ExprLike) -> Expr:
    """The quotient rounded up, for a positive divisor."""
    a, b = _pair(lhs, rhs)
    return floordiv(add(a, sub(b, const(1, b.dtype))), b)


def minimum(lhs: ExprLike, rhs: ExprLike) -> Expr:
    a, b = _pair(lhs, rhs)
    if _both_int(a, b):
        return a if a.value <= b.value else b  # type: ignore[attr-defined]
    return a if a is b else Min(a, b)


def maximum(lhs: ExprLike, rhs: ExprLike) -> Expr:
    a, b = _pair(lhs, rhs)
    if _both_int(a, b):
        return a if a.value >= b.value else b  # type: ignore[attr-defined]
    return a if a is b else Max(a, b)


def equal(lhs: ExprLike, rhs: ExprLike) -> Expr:
    return _compare(Eq, lhs, rhs)


def not_equal(lhs: ExprLike, rhs: ExprLike) -> Expr:
    return _compare(Ne, lhs, rhs)


def logical_and(*operands: ExprLike) -> Expr:
    """The conjunction; true when there are no operands."""
    result: Expr = TRUE
    for operand in map(as_expr, operands):
        if is_const(operand, False) or is_const(result, True):
            result = operand
        elif not is_const(operand, True) and not is_const(result, False):
            result = And(result, operand)
    return result


def conjuncts(condition: Expr) -> list[Expr]:
    """The parts of a conjunction; none for `True`."""
    if isinstance(condition, And):
        return [*conjuncts(condition.lhs), *conjuncts(condition.rhs)]
    return [] if is_const(condition, True) else [condition]


def logical_or(*operands: ExprLike) -> Expr:
    """The disjunction; false when there are no operands."""
    result: Expr = FALSE
    for operand in map(as_expr, operands):
        if is_const(operand, True) or is_const(result, False):
            result = operand
        elif not is_const(operand, False) and not is_const(result, True):
            result = Or(result, operand)
    return result


def logical_not(operand: Expr) -> Expr:
    if isinstance(operand, Const):
        return FALSE if operand.value else TRUE
    if isinstance(operand, Not):
        return operand.operand
    return Not(operand)


def select(condition: Expr, true_value: ExprLike, false_value: ExprLike) -> Expr:
    a, b = _pair(true_value, false_value)
    if isinstance(condition, Const):
        return a if condition.value else b
    return a if a is b else Select(condition, a, b)


def cast(operand: Expr, dtype: DType) -> Expr:
    """`operand` converted to `dtype`; nothing to do when it has that dtype already."""
    if operand.dtype == dtype:
        return operand
    if isinstance(operand, Const) and math.isfinite(operand.value) and (dtype.is_float or not operand.dtype.is_float):
        if dtype.is_float or dtype == i64 or dtype.is_bool:
            return const(operand.value, dtype)
    return Cast(operand, dtype)


def recast(expr: Cast, operand: Expr) -> Expr:
    """The same cast of another operand."""
    made = cast(operand, expr.dtype)
    return Narrow(operand, expr.dtype) if isinstance(expr, Narrow) and isinstance(made, Cast) else made


def wrapping(operation: type[BinaryExpr], a: Expr, b: Expr) -> Expr:
    """A sum, difference or product of i64 values modulo 2**64: made in u64, of which nothing is read as unbounded."""
    return Cast(operation(Cast(a, u64), Cast(b, u64)), i64)


def unwrapped(expr: Expr) -> Expr | None:
    """What `wrapping` was given, as an operation in i64; None where it did not make the expression."""
    match expr:
        case Cast(operand=(Add() | Sub() | Mul()) as made, dtype=dtype) if dtype == i64 and made.dtype == u64:
            match made.lhs, made.rhs:
                case Cast(operand=a), Cast(operand=b) if a.dtype == i64 and b.dtype == i64:
                    return type(made)(a, b)
    return None


def result_of_call(name: str, dtype: DType) -> DType:
    """The dtype of an intrinsic of arguments of `dtype`."""
    if name in ("isnan", "isinf"):
        return bool_
    if name == "float_of_bits":
        return f64 if dtype.bits == 64 else f32
    return dtype if name != "float_bits" else u64 if dtype.bits == 64 else u32


def call(name: str, *args: Expr, dtype: DType | None = None) -> MathCall:
    """`name(*args)`; the result has the dtype of the first argument unless said otherwise: isnan and isinf give a bool, float_bits an
    integer, float_of_bits a float."""
    if MATH_CALLS.get(name) != len(args):
        raise ValueError(f"no intrinsic {name} with {len(args)} arguments")
    if dtype is None:
        dtype = result_of_call(name, args[0].dtype) if args else i64
    return MathCall(name, args, dtype)


OPERATORS: dict[type, tuple[str, int]] = {
    Or: ("or", 1),
    And: ("and", 2),
    Eq: ("==", 4),
    Ne: ("!=", 4),
    Lt: ("<", 4),
    Le: ("<=", 4),
    Add: ("+", 9),
    Sub: ("-", 9),
    Mul: ("*", 10),
    Div: ("/", 10),
    FloorDiv: ("//", 10),
    FloorMod: ("%", 10),
}
"""Text and binding strength (Python's) of the infix operators."""


def format_expr(expr: Expr, strength: int = 0, name_of: Any = None) -> str:
    """Python-like text of `expr`. `name_of(var_or_buffer) -> str` renames binders; constants print their dtype unless i64.

    i64 literals print bare, f32 literals with a point (`1.5`), other dtypes as `f16(1.5)`, `i32(3)`, `True`.
    """

    def fmt(e: Expr, s: int = 0) -> str:
        return format_expr(e, s, name_of)

    def name(binder: Any) -> str:
        return str(binder.name if name_of is None else name_of(binder))

    match expr:
        case Const():
            text = format_const(expr)
            return f"({text})" if text.startswith("-") and strength > 9 else text
        case Var():
            return name(expr)
        case Load(buffer=buffer, indices=indices):
            return f"{name(buffer)}[{', '.join(fmt(i) for i in indices) or '()'}]"
        case Min(lhs=a, rhs=b):
            return f"min({fmt(a)}, {fmt(b)})"
        case Max(lhs=a, rhs=b):
            return f"max({fmt(a)}, {fmt(b)})"
        case Not(operand=a):
            text = f"not {fmt(a, 3)}"
            return f"({text})" if strength > 3 else text
        case Select(condition=c, true_value=a, false_value=b):
            return f"select({fmt(c)}, {fmt(a)}, {fmt(b)})"
        case Checked(value=value, index=index, extent=extent, given=given, message=message, origin=origin):
            return f"checked({', '.join(map(fmt, (value, index, extent, given)))}, {message!r}, {origin})"
        case Cast(operand=a, dtype=dtype):
            return f"{'narrow' if isinstance(expr, Narrow) else 'cast'}({fmt(a)}, {dtype})"
        case MathCall(name=fn, args=args, dtype=dtype):
            suffix = "" if dtype == call(fn, *args).dtype else f", dtype={dtype}"
            return f"{fn}({', '.join(map(fmt, args))}{suffix})"
        case BinaryExpr(lhs=a, rhs=b) | CompareExpr(lhs=a, rhs=b):
            symbol, own = OPERATORS[type(expr)]
            left = own + 1 if own == 4 else own  # comparisons do not chain
            text = f"{fmt(a, left)} {symbol} {fmt(b, own + 1)}"
            return f"({text})" if strength > own else text
    if type(expr).__repr__ is not Expr.__repr__:  # an expression that is not of the IR, and says itself
        return repr(expr)
    raise AssertionError(f"no text for {type(expr).__name__}")


def format_const(const_expr: Const) -> str:
    value, dtype = const_expr.value, const_expr.dtype
    if dtype.is_bool:
        return str(bool(value))
    if dtype == i64:
        return str(value)
    if dtype.is_float:
        if math.isnan(value):
            return f"{dtype}('nan')"
        if math.isinf(value):
            return f"{dtype}('{'inf' if value > 0 else '-inf'}')"
        return repr(float(value)) if dtype.name == "f32" else f"{dtype}({float(value)!r})"
    return f"{dtype}({value})"
