"""Operators that compute each result element from one element of every operand, broadcast as in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from tc.errors import ShapeError
from tc.ir.dtype import (
    DType,
    bool_,
    f32,
    f64,
    i64,
)
from tc.ir.expr import (
    Add,
    BinaryExpr,
    Cast,
    Div,
    Expr,
    FloorMod,
    Max,
    Min,
    Mul,
    Sub,
    call,
    cast,
    const,
    equal,
    logical_and,
    logical_not,
    logical_or,
    neg,
    not_equal,
    select,
    wrapping,
)
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.common import (
    Arrays,
    Tensors,
    Types,
    aligned_from_right,
    blocked_elementwise,
    broadcast_shapes,
    map_elements,
    operand,
    same_dtype,
    wide,
)
from tc.ops.registry import OpDef, register, require

Element = Callable[..., Expr]


# -- unary


def _register_unary(
    name: str,
    reference: Callable[..., np.ndarray],
    element: Element,
    *,
    result: DType | None = None,
    defaults: dict[str, Any] | None = None,
    float_only: bool = False,
    periodic: bool = False,
    samples: Any = None,
) -> None:
    def infer(types: Types, attrs: Attrs) -> TensorType:
        x = operand(types, 0, name)
        if float_only and not x.dtype.is_float:
            raise ShapeError(f"{name}: needs a float operand, found {x}")
        return x if result is None else TensorType(x.shape, result)

    def run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
        x = arrays[0]
        assert x is not None
        with np.errstate(all="ignore"):
            y = reference(wide(x), **dict(attrs))
        return y if result is not None else y.astype(x.dtype)

    def compute(tensors: Tensors, attrs: Attrs, types: Any) -> Any:
        return map_elements(lambda x: _in_wide(lambda v: element(v, **dict(attrs)), x, result), tensors, types, name)

    rule, found = blocked_elementwise(name), samples or _unary_samples(float_only)
    register(OpDef(name, infer, run, compute, defaults or {}, blocked=rule, periodic=periodic, samples=found))


def _in_wide(fn: Element, x: Expr, result: DType | None) -> Expr:
    """f16 and bf16 are computed in f32 and rounded once."""
    if x.dtype.is_float and x.dtype.bits == 16:
        value = fn(Cast(x, f32))
        return value if result is not None else Cast(value, x.dtype)
    return fn(x)


def _unary_samples(float_only: bool) -> Any:
    def samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
        edges = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -3.5, 30.0, -30.0, np.inf, -np.inf, np.nan], np.float32)
        yield [edges], {}
        yield [rng.standard_normal((3, 5)).astype(np.float32) * 3], {}
        yield [np.zeros((0, 4), np.float32)], {}
        yield [np.array(0.25, np.float64)], {}
        yield [rng.standard_normal(6).astype(np.float16)], {}
        if not float_only:
            yield [np.array([-128, -1, 0, 1, 127], np.int8)], {}

    return samples


def _call(name: str) -> Element:
    return lambda x: call(name, x)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64)).astype(x.dtype)


def _half(x: Expr) -> Expr:
    return const(0.5, x.dtype)


def _c(value: float, x: Expr) -> Expr:
    return const(value, x.dtype)


def _wrapped(ufunc: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.asarray(ufunc(x))


for _name in "exp log sqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh log1p expm1 exp2".split():
    _numpy_name = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh",
                   "atanh": "arctanh"}.get(_name, _name)  # fmt: skip
    _register_unary(_name, _wrapped(getattr(np, _numpy_name)), _call(_name), float_only=True, periodic=_name in ("sin", "cos", "tan"))
for _name, _ufunc in (("floor", np.floor), ("ceil", np.ceil), ("round", np.round), ("trunc", np.trunc)):
    _register_unary(_name, _wrapped(_ufunc), _call(_name))
_register_unary("abs", _wrapped(np.abs), _call("abs"))
_register_unary("sign", _wrapped(np.sign), _call("sign"))
_register_unary("neg", _wrapped(np.negative), lambda x: wrapping(Sub, const(0), x) if x.dtype == i64 else neg(x))
_register_unary("erf", _erf, _call("erf"), float_only=True)
_register_unary("rsqrt", lambda x: 1 / np.sqrt(x), _call("rsqrt"), float_only=True)
_register_unary("reciprocal", lambda x: 1 / x, lambda x: Div(_c(1.0, x), x), float_only=True)
_register_unary(
    "sigmoid", lambda x: 1 / (1 + np.exp(-x)), _call("sigmoid"), float_only=True
)
_register_unary("relu", lambda x: np.maximum(x, 0), lambda x: Max(x, const(0, x.dtype)))
_register_unary("identity", lambda x: x, lambda x: x)
_register_unary(
    "logical_not",
    np.logical_not,
    logical_not,
    result=bool_,
    samples=lambda rng: iter([([np.array([True, False])], {})]),
)
_register_unary(
    "bit_not",
    np.invert,
    lambda x: call("bit_not", x),
    samples=lambda rng: iter([([np.array([0, 1, -1, 127, -128], np.int8)], {}), ([np.array([0, 255], np.uint8)], {})]),
)
_register_unary("is_nan", np.isnan, _call("isnan"), result=bool_, float_only=True)


def _is_inf(x: Expr, detect_negative: bool, detect_positive: bool) -> Expr:
    wanted = []
    if detect_positive:
        wanted.append(equal(x, const(math.inf, x.dtype)))
    if detect_negative:
        wanted.append(equal(x, const(-math.inf, x.dtype)))
    return logical_or(*wanted) if wanted else logical_and(not_equal(x, x), equal(x, x))


_register_unary(
    "is_inf",
    lambda x, detect_negative, detect_positive: ((x == np.inf) & bool(detect_positive))
    | ((x == -np.inf) & bool(detect_negative)),
    _is_inf,
    result=bool_,
    defaults={"detect_negative": True, "detect_positive": True},
    float_only=True,
)


# -- activations


def _softplus(x: Expr) -> Expr:
    """max(x, 0) + log1p(exp(-|x|)): no overflow."""
    return Max(x, _c(0.0, x)) + call("log1p", call("exp", Mul(call("abs", x), _c(-1.0, x))))


def _np_softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


MISH_IS_X = 40.0
"""Where tanh(softplus(x)) is 1 in doubles, and exp(x) squared no infinity in f32."""


def _mish(x: Expr) -> Expr:
    """x * tanh(log(1 + e)) for e = exp(x), which is x * n / (n + 2) for n = e * (e + 2)."""
    e = call("exp", Min(x, _c(MISH_IS_X, x)))
    n = e * (e + _c(2.0, x))
    return x * Div(n, n + _c(2.0, x))


def _gelu(x: Expr, approximate: str) -> Expr:
    if approximate == "tanh":
        inner = (x + x * x * x * _c(0.044715, x)) * _c(math.sqrt(2 / math.pi), x)
        return x * call("sigmoid", inner + inner)  # (1 + tanh(u)) / 2 is sigmoid(2 u)
    return x * call("normal_cdf", x)


def _np_gelu(x: np.ndarray, approximate: str) -> np.ndarray:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + _erf(x * math.sqrt(0.5)))


def _where_positive(x: Expr, yes: Expr, no: Expr) -> Expr:
    return select(x > 0.0, yes, no)


_SELU = {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}
_register_unary(
    "leaky_relu",
    lambda x, alpha: np.where(x < 0, x * np.asarray(alpha, x.dtype), x),
    lambda x, alpha: select(x < 0.0, x * _c(alpha, x), x),
    defaults={"alpha": 0.01},
    float_only=True,
)
_register_unary(
    "elu",
    lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    lambda x, alpha: _where_positive(x, x, (call("exp", x) - _c(1.0, x)) * _c(alpha, x)),
    defaults={"alpha": 1.0},
    float_only=True,
)
_register_unary(
    "selu",
    lambda x, alpha, gamma: gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    lambda x, alpha, gamma: _where_positive(x, x, (call("exp", x) - _c(1.0, x)) * _c(alpha, x)) * _c(gamma, x),
    defaults=_SELU,
    float_only=True,
)
_register_unary(
    "celu",
    lambda x, alpha: np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha)),
    lambda x, alpha: Max(x, _c(0.0, x))
    + Min((call("exp", x * _c(1.0 / alpha if alpha else math.inf, x)) - _c(1.0, x)) * _c(alpha, x), _c(0.0, x)),
    defaults={"alpha": 1.0},
    float_only=True,
)
_register_unary("gelu", _np_gelu, _gelu, defaults={"approximate": "none"}, float_only=True)
_register_unary(
    "hard_sigmoid",
    lambda x, alpha, beta: np.clip(x * np.asarray(alpha, x.dtype) + np.asarray(beta, x.dtype), 0, 1),
    lambda x, alpha, beta: Min(Max(x * _c(alpha, x) + _c(beta, x), _c(0.0, x)), _c(1.0, x)),
    defaults={"alpha": 0.2, "beta": 0.5},
    float_only=True,
)
_SIXTH = float(np.float32(1 / 6))  # ONNX's slope has 32 bits, for doubles too
_register_unary(
    "hard_swish",
    lambda x: x * np.clip(x * np.asarray(_SIXTH, x.dtype) + np.asarray(0.5, x.dtype), 0, 1),
    lambda x: x * Min(Max(x * _c(_SIXTH, x) + _half(x), _c(0.0, x)), _c(1.0, x)),
    float_only=True,
)
_register_unary("silu", lambda x: x / (1 + np.exp(-x)), lambda x: x * call("sigmoid", x), float_only=True)
_register_unary("softplus", _np_softplus, _softplus, float_only=True)
_register_unary("softsign", lambda x: x / (1 + np.abs(x)), lambda x: Div(x, call("abs", x) + _c(1.0, x)), float_only=True)
_register_unary("mish", lambda x: x * np.tanh(_np_softplus(x)), _mish, float_only=True)
_register_unary(
    "thresholded_relu",
    lambda x, alpha: np.where(x > alpha, x, 0),
    lambda x, alpha: select(x > _c(alpha, x), x, _c(0.0, x)),
    defaults={"alpha": 1.0},
    float_only=True,
)
_register_unary(
    "shrink",
    lambda x, bias, lambd: np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)),
    lambda x, bias, lambd: select(
        x < _c(-lambd, x), x + _c(bias, x), select(x > _c(lambd, x), x - _c(bias, x), _c(0.0, x))
    ),
    defaults={"bias": 0.0, "lambd": 0.5},
    float_only=True,
)


# -- binary


def _register_binary(
    name: str,
    reference: Callable[..., np.ndarray],
    element: Callable[..., Expr],
    *,
    result: DType | None = None,
    defaults: dict[str, Any] | None = None,
    samples: Any = None,
    mixed: bool = False,
) -> None:
    def infer(types: Types, attrs: Attrs) -> TensorType:
        a, b = operand(types, 0, name), operand(types, 1, name)
        dtype = a.dtype if mixed else same_dtype(types, name)
        return TensorType(broadcast_shapes(name, a.shape, b.shape), result or dtype)

    def run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
        a, b = arrays[0], arrays[1]
        assert a is not None and b is not None
        with np.errstate(all="ignore"):
            return np.asarray(reference(a, b, **dict(attrs))).astype(result.numpy if result else a.dtype)

    def compute(tensors: Tensors, attrs: Attrs, types: Any) -> Any:
        return map_elements(lambda a, b: element(a, b, **dict(attrs)), tensors, types, name)

    rule = blocked_elementwise(name)
    register(
        OpDef(
            name,
            infer,
            run,
            compute,
            defaults or {},
            blocked=rule,
            aligned=aligned_from_right,
            samples=samples or _binary_samples,
        )
    )


def _binary_samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    edges = np.array([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan], np.float32)
    yield [edges[:, None], edges[None, :]], {}
    yield [normal(3, 1, 4), normal(5, 1)], {}
    yield [normal(4), np.array(2.0, np.float32)], {}
    yield [np.zeros((0, 3), np.float32), normal(3)], {}
    ints = np.array([-128, -7, -1, 0, 1, 3, 127], np.int8)
    yield [ints[:, None], ints[None, :]], {}


def int_div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Division; of integers toward zero, with 0 for a zero divisor."""
    if a.dtype.kind not in "iu":
        return a / b
    safe = np.where(b == 0, 1, b)
    exact = object if a.dtype.itemsize == 8 else np.int64
    wide_a, wide_b = a.astype(exact), safe.astype(exact)
    quotient = np.abs(wide_a) // np.abs(wide_b) * np.where((a < 0) != (safe < 0), -1, 1)
    return np.where(b == 0, 0, _wrap_to(quotient, a.dtype))


def _wrap_to(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if values.dtype == object:
        bits = dtype.itemsize * 8
        low = -(2 ** (bits - 1)) if dtype.kind == "i" else 0
        return np.asarray((values - low) % 2**bits + low).astype(dtype)
    return values.astype(dtype)


def _np_pow(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        def power(base: Any, exponent: Any) -> int:
            x, n = int(base), int(exponent)
            if n >= 0:
                return pow(x, n, 1 << 64)
            return 1 if x == 1 else (-1) ** (n % 2) if x == -1 else 0

        values = np.vectorize(power, otypes=[object])(*np.broadcast_arrays(a, b))
        return _wrap_to(values, a.dtype) if values.size else np.zeros(values.shape, a.dtype)
    return np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)


def _pow(a: Expr, b: Expr) -> Expr:
    """In a type that holds both: whether an exponent is odd, and small parts of it, count as much as those of the base."""
    if not a.dtype.is_float and not b.dtype.is_float:
        return call("pow", a, cast(b, a.dtype))
    wide = next(dtype for dtype in (a.dtype, f32, f64) if dtype.is_float and all(_holds(dtype, each.dtype) for each in (a, b)))
    return cast(call("pow", cast(a, wide), cast(b, wide)), a.dtype)


def _holds(dtype: DType, other: DType) -> bool:
    """Whether each number of a type is one of a float type; of i64 and u64, none of whose floats do, f64 does."""
    if other is dtype or dtype is f64:
        return True
    info = ml_dtypes.finfo(dtype.numpy)
    if not other.is_float:
        return other.bits <= info.nmant + 1
    inner = ml_dtypes.finfo(other.numpy)
    return bool(inner.nmant <= info.nmant and inner.maxexp <= info.maxexp and inner.minexp >= info.minexp)


def _mod(a: Expr, b: Expr, fmod: bool) -> Expr:
    if fmod:
        return call("fmod", a, b)
    if a.dtype.is_float:
        remainder = call("fmod", a, b)
        zero = const(0.0, a.dtype)
        differs = logical_and(not_equal(remainder, zero), not_equal_bool(remainder < zero, b < zero))
        return select(differs, remainder + b, remainder)
    return FloorMod(a, b)


def not_equal_bool(a: Expr, b: Expr) -> Expr:
    """Exclusive or."""
    return logical_or(logical_and(a, logical_not(b)), logical_and(logical_not(a), b))


def _np_mod(a: np.ndarray, b: np.ndarray, fmod: bool) -> np.ndarray:
    if a.dtype.kind in "iu":
        safe = np.where(b == 0, 1, b)
        return np.where(b == 0, 0, np.fmod(a, safe) if fmod else np.mod(a, safe))
    return np.fmod(a, b) if fmod else np.mod(a, b)


def _shift_right(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    bits = a.dtype.itemsize * 8
    return np.where(b >= bits, np.where(a < 0, -1, 0), np.right_shift(a, np.minimum(b, bits - 1)))


def _shift_left(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    bits = a.dtype.itemsize * 8
    return np.where(b >= bits, 0, np.left_shift(a, np.minimum(b, bits - 1)))


def _wrapping(operation: type[BinaryExpr]) -> Element:
    """Of i64 values modulo 2**64, as those of other dtypes: expressions in i64 are read as unbounded, which data need not be."""

    def element(a: Expr, b: Expr) -> Expr:
        return wrapping(operation, a, b) if a.dtype == i64 else operation(a, b)

    return element


_register_binary("add", np.add, _wrapping(Add), samples=_binary_samples)
_register_binary("sub", np.subtract, _wrapping(Sub))
_register_binary("mul", np.multiply, _wrapping(Mul))
_register_binary("div", int_div, Div)
_register_binary("maximum", np.maximum, Max)
_register_binary("minimum", np.minimum, Min)


def _pow_samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    yield [np.abs(rng.standard_normal((3, 4))).astype(np.float32), rng.standard_normal(4).astype(np.float32)], {}
    yield [np.array([-2.0, 0.0, 3.0], np.float32), np.array([2.0, 0.0, -1.0], np.float32)], {}
    yield [np.array([-3, 2, 0, 1], np.int32), np.array([3, 5, 0, -2], np.int32)], {}
    yield [np.array([1.5, 2.0], np.float32), np.array([2, 3], np.int64)], {}


def _mod_samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    a = np.array([-7, -4, 0, 4, 7], np.int32)
    b = np.array([-3, 3, 5], np.int32)
    for fmod in (False, True):
        yield [a[:, None], b[None, :]], {"fmod": fmod}
        yield [a[:, None].astype(np.float32), b[None, :].astype(np.float32)], {"fmod": fmod}


def _int_samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    yield [np.array([[0, 1, 5, 200]], np.uint8), np.array([[0], [1], [7], [8]], np.uint8)], {}
    yield [np.array([-128, -1, 0, 64], np.int8), np.array([1, 2, 3, 1], np.int8)], {}


def _bool_samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    flags = np.array([True, False])
    yield [flags[:, None], flags[None, :]], {}


_register_binary("pow", _np_pow, _pow, samples=_pow_samples, mixed=True)
_register_binary("mod", _np_mod, _mod, defaults={"fmod": False}, samples=_mod_samples)
for _name, _ufunc in (("bit_and", np.bitwise_and), ("bit_or", np.bitwise_or), ("bit_xor", np.bitwise_xor)):
    _register_binary(_name, _ufunc, lambda a, b, name=_name: call(name, a, b), samples=_int_samples)
_register_binary("shift_left", _shift_left, lambda a, b: call("shift_left", a, b), samples=_int_samples)
_register_binary("shift_right", _shift_right, lambda a, b: call("shift_right", a, b), samples=_int_samples)

COMPARISONS: dict[str, tuple[Callable[..., Any], Callable[[Expr, Expr], Expr]]] = {
    "equal": (np.equal, equal),
    "not_equal": (np.not_equal, not_equal),
    "less": (np.less, lambda a, b: a < b),
    "less_equal": (np.less_equal, lambda a, b: a <= b),
    "greater": (np.greater, lambda a, b: a > b),
    "greater_equal": (np.greater_equal, lambda a, b: a >= b),
}
"""What compares two numbers, of arrays and as expressions."""

for _name, (_ufunc, _element) in COMPARISONS.items():
    _register_binary(_name, _ufunc, _element, result=bool_)
_register_binary("logical_and", np.logical_and, lambda a, b: logical_and(a, b), result=bool_, samples=_bool_samples)
_register_binary("logical_or", np.logical_or, lambda a, b: logical_or(a, b), result=bool_, samples=_bool_samples)
_register_binary("logical_xor", np.logical_xor, not_equal_bool, result=bool_, samples=_bool_samples)


def _prelu_samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    yield [rng.standard_normal((2, 3, 4)).astype(np.float32), rng.standard_normal((3, 1)).astype(np.float32)], {}


_register_binary(
    "prelu",
    lambda x, slope: np.where(x < 0, x * slope, x),
    lambda x, slope: select(x < 0.0, x * slope, x),
    samples=_prelu_samples,
)


# -- three operands


def _infer_where(types: Types, attrs: Attrs) -> TensorType:
    condition, a, b = (operand(types, k, "where") for k in range(3))
    if not condition.dtype.is_bool:
        raise ShapeError(f"where: the condition must be bool, found {condition}")
    return TensorType(broadcast_shapes("where", condition.shape, a.shape, b.shape), same_dtype((a, b), "where"))


register(
    OpDef(
        "where",
        _infer_where,
        lambda arrays, attrs: np.where(*arrays),  # type: ignore[arg-type]
        lambda tensors, attrs, types: map_elements(select, tensors, types, "where"),
        blocked=blocked_elementwise("where"),
        aligned=aligned_from_right,
        samples=lambda rng: iter(
            [
                (
                    [
                        rng.random((3, 1)) > 0.5,
                        rng.standard_normal((3, 4)).astype(np.float32),
                        rng.standard_normal(4).astype(np.float32),
                    ],
                    {},
                )
            ]
        ),
    )
)


def _clip_operands(items: Any) -> tuple[Any, Any]:
    low = items[1] if len(items) > 1 else None
    high = items[2] if len(items) > 2 else None
    return low, high


def _infer_clip(types: Types, attrs: Attrs) -> TensorType:
    same_dtype(types, "clip")
    for name, bound in zip(("lower", "upper"), _clip_operands(types), strict=True):
        if bound is not None:
            require(equal(product(bound.shape), 1), f"clip: the {name} bound is {bound}, but must be one number")
    return operand(types, 0, "clip")


def _run_clip(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    low, high = _clip_operands(arrays)
    assert x is not None
    if low is not None:
        x = np.maximum(x, low.reshape(()))
    return np.minimum(x, high.reshape(())) if high is not None else x


def _compute_clip(tensors: Tensors, attrs: Attrs, types: Any) -> Any:
    low, high = _clip_operands(tensors)

    def scalar(tensor: Any) -> Expr:
        return tensor[tuple(const(0) for _ in tensor.shape)]

    def element(x: Expr) -> Expr:
        if low is not None:
            x = Max(x, scalar(low))
        return Min(x, scalar(high)) if high is not None else x

    return map_elements(element, tensors[:1], types, "clip")


def _clip_samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    x = np.array([-3.0, -0.5, 0.0, 2.0, np.inf, -np.inf, np.nan], np.float32)
    yield [x, np.array(-1.0, np.float32), np.array(1.0, np.float32)], {}
    yield [x, None, np.array(1.0, np.float32)], {}
    yield [x, np.array([-1.0], np.float32)], {}
    yield [np.array([-5, 0, 100], np.int8), np.array(-2, np.int8), np.array(7, np.int8)], {}


register(
    OpDef("clip", _infer_clip, _run_clip, _compute_clip, blocked=blocked_elementwise("clip"), samples=_clip_samples)
)

assert ml_dtypes.bfloat16  # registers the dtype with numpy
