"""Operators that work element by element, with their broadcasts."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tc.fuzz.builder import BF16, BOOL, U8, U16, U32, U64, Builder, Held, Rejected
from tc.fuzz.evaluate import is_float
from tc.fuzz.operators.row import Row, some, unary


def binary(op: str, parameter: str = "T", *, since: int = 7, weight: float = 1.0) -> Row:
    """An operator of two tensors that broadcast."""

    def draw(b: Builder) -> None:
        x = b.pick(b.types(op, parameter))
        pair = [x, b.partner(x)]
        if b.chance(0.5):
            pair.reverse()
        b.emit(op, pair)

    return Row(op, draw, since=since, weight=weight)


def variadic(op: str) -> Row:
    """An operator of one to four tensors that broadcast together."""

    def draw(b: Builder) -> None:
        x = b.pick(b.types(op))
        inputs = [x, *(b.partner(x, grow=False) for _ in range(b.integer(0, 3)))]
        b.emit(op, [inputs[i] for i in b.rng.permutation(len(inputs))])

    return Row(op, draw, since=8)


def without_zeros(b: Builder, held: Held) -> Held:
    """`held`, or the same away from 0."""
    if held.array.size and bool((np.abs(held.array.astype(np.float64)) >= 0.25).all()):
        return held
    if held.dtype.kind == "u":
        return b.emit(
            "Add", [b.emit("Min", [held, b.constant(np.array(9, held.dtype))])[0], b.constant(np.array(1, held.dtype))]
        )[0]
    squeezed = b.emit("Abs", [held])[0]
    return b.emit("Add", [squeezed, b.constant(np.array(1, held.dtype))])[0]


def divide(b: Builder) -> None:
    x = b.pick(b.types("Div"))
    y = b.partner(x)
    b.emit("Div", [x, without_zeros(b, y)])


def mod(b: Builder) -> None:
    types = b.types("Mod")
    x = b.pick(types)
    y = without_zeros(b, b.partner(x))
    fmod = 1 if is_float(x.array) else b.integer(0, 1)
    b.emit("Mod", [x, y], **({"fmod": fmod} if fmod or b.chance(0.5) else {}))


def power(b: Builder) -> None:
    base = b.in_range(b.types("Pow"), 0.25 if b.chance(0.5) else 1, 4)
    other = b.dtype(b.types("Pow", "T1")) if b.since(12) else base.dtype
    exponent = b.partner(base, other)
    if np.abs(exponent.array.astype(np.float64)).max(initial=0) > 5 or (
        base.dtype.kind in "iu" and (exponent.array.astype(np.float64) < 0).any()
    ):
        exponent = b.constant(np.array(b.choose((0, 1, 2, 3)), other))
    b.emit("Pow", [base, exponent])


def where(b: Builder) -> None:
    x = b.pick(b.types("Where"))
    inputs = [b.partner(x, BOOL), x, b.partner(x)]
    np.broadcast_shapes(*(h.shape for h in inputs))
    b.emit("Where", inputs)


def clip(b: Builder) -> None:
    x = b.pick(b.types("Clip"))
    lo, hi = sorted((b.integer(-4, 4) / 2, b.integer(-4, 4) / 2))
    if b.since(11):
        bounds = [
            b.parameter(np.array(max(v, 0) if x.dtype.kind == "u" else v).astype(x.dtype), x.dtype) for v in (lo, hi)
        ]
        if BF16 == x.dtype:
            raise Rejected("no such input")
        b.emit("Clip", [x, *(v if b.chance(0.8) else None for v in bounds)])
    else:
        b.emit("Clip", [x], **{k: float(v) for k, v in (("min", lo), ("max", hi)) if b.chance(0.8)})


def prelu(b: Builder) -> None:
    x = b.pick(b.types("PRelu"))
    b.emit("PRelu", [x, b.partner(x, grow=False)])


def bit_shift(b: Builder) -> None:
    x = b.pick((U8, U16, U32, U64))
    y = b.partner(x)
    if y.array.max(initial=0) >= 8 * x.dtype.itemsize:
        raise Rejected("a shift by the width or more means nothing")
    b.emit("BitShift", [x, y], direction=b.choose(("LEFT", "RIGHT")))


def cast_target(b: Builder, x: Held, op: str, parameter: str) -> np.dtype:
    """A dtype that holds the numbers of `x`, cut to integers where need be."""
    to = b.dtype(b.types(op, parameter))
    numbers = x.array.astype(np.float64)
    if to.kind in "iu":
        info = np.iinfo(to)
        fits = (
            np.isfinite(numbers).all() and (numbers > info.min - 1).all() and (numbers < min(info.max, 2.0**62)).all()
        )
        if is_float(x.array) and not fits:
            raise Rejected("such a cast means nothing")
    return to


def cast(b: Builder) -> None:
    x = b.pick(b.types("Cast", "T1"))
    b.emit("Cast", [x], to=helper.np_dtype_to_tensor_dtype(cast_target(b, x, "Cast", "T2")))


def cast_like(b: Builder) -> None:
    x = b.pick(b.types("CastLike", "T1"))
    to = cast_target(b, x, "CastLike", "T2")
    b.emit("CastLike", [x, b.pick((to,))])


def bit_cast(b: Builder) -> None:
    x = b.pick(b.types("BitCast", "T1"))
    same = [d for d in b.types("BitCast", "T2") if d.itemsize == x.dtype.itemsize and d.kind in "iu"]
    b.emit("BitCast", [x], to=helper.np_dtype_to_tensor_dtype(b.choose(same)))


def swiglu(b: Builder) -> None:
    x = b.pick(b.types("SwiGLU"), ranks=(1, 4), where=lambda h: h.shape[-1] % 2 == 0)
    b.emit("SwiGLU", [x])


SMALL = {"lo": -8.0, "hi": 8.0}
ROWS = (
    *(unary(op) for op in ("Abs", "Neg", "Floor", "Ceil", "Round", "Sign", "Relu", "Sigmoid", "Tanh", "Erf", "Not")),
    *(
        unary(op)
        for op in ("Softsign", "Softplus", "HardSwish", "Mish", "Sin", "Cos", "Atan", "Asinh", "BitwiseNot", "Identity")
    ),
    unary("Tan", lo=-1.25, hi=1.25),
    unary("Asin", lo=-0.75, hi=0.75),
    unary("Acos", lo=-0.75, hi=0.75),
    unary("Atanh", lo=-0.75, hi=0.75),
    unary("Acosh", lo=1.5, hi=100),
    *(unary(op, **SMALL) for op in ("Sinh", "Cosh", "Exp", "Elu", "Selu", "Celu")),
    unary("Elu", some(alpha=(0.5, 2.0)), **SMALL),
    unary("Celu", some(alpha=(0.5, 2.0)), **SMALL),
    unary("Selu", some(alpha=(0.5, 2.0), gamma=(1.5,)), **SMALL),
    unary("Sqrt", lo=0.25, hi=1e4),
    unary("Log", lo=0.25, hi=1e4),
    unary("Reciprocal", lo=0.25, hi=1e4),
    unary("LeakyRelu", some(alpha=(0.5, 0.01, -1.0))),
    unary("ThresholdedRelu", some(alpha=(0.5, 0.0, -1.0))),
    unary("HardSigmoid", some(alpha=(0.5, 0.25), beta=(0.25, 0.0))),
    unary("Shrink", some(lambd=(0.25, 1.0), bias=(0.5, 0.0)), since=9),
    unary("Gelu", some(approximate=("none", "tanh"))),
    unary("Swish", some(alpha=(0.5, 1.0, 2.0))),
    unary("IsNaN", parameter="T1"),
    unary("IsInf", some(detect_negative=(0, 1), detect_positive=(0, 1)), parameter="T1"),
    *(binary(op, weight=2.0) for op in ("Add", "Sub", "Mul")),
    *(binary(op) for op in ("And", "Or", "Xor", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")),
    *(binary(op) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    *(variadic(op) for op in ("Max", "Min", "Sum", "Mean")),
    Row("Div", divide, weight=1.5),
    Row("Mod", mod, since=10),
    Row("Pow", power),
    Row("Where", where, since=9, weight=1.5),
    Row("Clip", clip),
    Row("PRelu", prelu),
    Row("BitShift", bit_shift, since=11),
    Row("Cast", cast, weight=2.0),
    Row("CastLike", cast_like, since=15),
    Row("BitCast", bit_cast, since=26),
    Row("SwiGLU", swiglu, since=28),
)
