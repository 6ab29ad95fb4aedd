"""Vector math: elementary functions as branch-free polynomials, for any number of lanes.

LLVM turns `llvm.exp.v16f32` and its like into one libm call per lane, so the functions that kernels spend time in are written
here for f32, and exp for f64. All others call libm lane by lane, in f32 those alone that `libm_f32` lacks; f16 is computed in f32.
Every lane gives the same bits as a scalar call. The error bounds in MATH_ULPS are checked by tests against float64.

The polynomials are least-maximum fits made by scripts/fit_polynomials.py. Range reductions: Cody and Waite (1980).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tc.codegen.llvm.builder import FunctionBuilder, Value
from tc.codegen.llvm.clipped_round import emit_bounded_quotient
from tc.errors import CodegenError

MATH_ULPS: dict[str, float] = {
    "exp": 2.0,
    "decay": 2.0,
    "log": 2.0,
    "tanh": 3.0,
    "erf": 3.0,
    "sigmoid": 4.0,
    "sqrt": 0.5,
    "rsqrt": 1.5,
    "atan": 1.5,
    "asin": 1.5,
    "acos": 1.5,
    "tan": 1.5,
    "asinh": 1.5,
    "atanh": 1.5,
}
"""Largest error of the f32 functions written here and in libm_f32, in units in the last place of the result. Others, and exp in f64:
about 1.

`normal_cdf` is right to 1.1e-7, absolute."""

_LIBM = {
    "exp", "exp2", "log", "log2", "log1p", "expm1", "tanh", "erf", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "asinh", "acosh", "atanh", "pow", "fmod",
}  # fmt: skip

_ROUNDING = {"floor": "floor", "ceil": "ceil", "round": "roundeven", "trunc": "trunc", "abs": "fabs", "sqrt": "sqrt"}


def emit_math(b: FunctionBuilder, name: str, *args: Value) -> Value:
    """Emit `name(*args)` for floats. All arguments have one element type; CodegenError for an unknown function."""
    first = args[0]
    if first.element == "half":
        wide = emit_math(b, name, *(b.convert("fpext", arg, "float") for arg in args))
        return wide if wide.element == "i1" else b.convert("fptrunc", wide, first.element)
    if name == "float_bits":
        return b.bitcast(first, "i32" if first.element == "float" else "i64")
    if name == "exp_brief":
        return _exp_brief(b, first)
    if name in _ROUNDING:
        return b.intrinsic(_ROUNDING[name], first)
    if name in _SIMPLE:
        return _SIMPLE[name](b, *args)
    if first.element == "float" and name in _FAST:
        return _FAST[name](b, *args)
    if first.element == "double" and name in ("exp", "decay"):
        return _exp_double(b, first)
    if name == "sigmoid":
        one = b.float(1.0, first)
        return b.binary("fdiv", one, b.binary("fadd", one, emit_math(b, "exp", b.fneg(first))))
    if name == "normal_cdf":
        return _normal_cdf_libm(b, first)
    if name in _LIBM:
        return b.per_lane(lambda *scalars: b.libm(name, *scalars), *args)
    raise CodegenError(f"no code for the function {name!r}")


def _is_nan(b: FunctionBuilder, x: Value) -> Value:
    return b.compare("fcmp uno", x, x)


def _is_inf(b: FunctionBuilder, x: Value) -> Value:
    return b.compare("fcmp oeq", b.intrinsic("fabs", x), b.float(math.inf, x))


def _sign(b: FunctionBuilder, x: Value) -> Value:
    """-1, 0 or 1; NaN stays NaN."""
    one = b.intrinsic("copysign", b.float(1.0, x), x)
    keep = b.compare("fcmp une", x, b.float(0.0, x))
    return b.select(_is_nan(b, x), x, b.select(keep, one, b.float(0.0, x)))


def _round_tf32(b: FunctionBuilder, x: Value) -> Value:
    """11 significant bits of an f32, ties away from zero; NaN and infinities stay."""
    bits = b.bitcast(x, "i32")
    rounded = b.binary("and", b.binary("add", bits, b.int(0x1000, bits)), b.int(-0x2000, bits))
    finite = b.compare("fcmp olt", b.intrinsic("fabs", x), b.float(math.inf, x))
    return b.select(finite, b.bitcast(rounded, "float"), x)


def _rsqrt(b: FunctionBuilder, x: Value) -> Value:
    return b.binary("fdiv", b.float(1.0, x), b.intrinsic("sqrt", x))


def _polynomial(b: FunctionBuilder, x: Value, coefficients: tuple[float, ...]) -> Value:
    """Horner's scheme; the lowest power comes first."""
    result = b.float(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        result = b.fma(result, x, b.float(coefficient, x))
    return result


def _paired(b: FunctionBuilder, x: Value, square: Value, coefficients: tuple[float, ...]) -> Value:
    """A polynomial by pairs of coefficients, in half as many steps that wait for each other: time passes with waiting in functions that
    are nothing but one chain."""
    pairs = []
    for k in range(0, len(coefficients), 2):
        low = b.float(coefficients[k], x)
        if k + 1 == len(coefficients):
            pairs.append(low)
        elif coefficients[k + 1] == 1.0:
            pairs.append(b.binary("fadd", x, low))
        else:
            pairs.append(b.fma(x, b.float(coefficients[k + 1], x), low))
    result = pairs[-1]
    for pair in reversed(pairs[:-1]):
        result = b.fma(result, square, pair)
    return result


_EXP = (
    1.0, 1.0, 0.4999999403953552, 0.16666431725025177, 0.04166800156235695, 0.00837415549904108, 0.0013843653723597527,
)  # fmt: skip
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.428606765330187e-06


_MAGIC = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits
_BIASED_MAGIC = _MAGIC + 127.0  # and what then stands there is the exponent of a power of two, as floats hold it


def _exp(b: FunctionBuilder, x: Value) -> Value:
    """exp(x) = 2^n * exp(r), r = x - n ln 2. Right for results down to the last denormal; NaN goes through every step.

    Below the last denormal the scaling is not left to underflow, which costs a hundred cycles a vector: masked softmax is full of it.
    """
    high, zero = b.float(89.0, x), b.float(0.0, x)
    stays = b.compare("fcmp uge", x, b.float(-104.0, x))  # or is NaN
    masked = _has_scalef(b, x)
    clamped = x if masked else b.select(stays, x, zero)
    clamped = b.select(b.compare("fcmp ogt", clamped, high), high, clamped)
    n, shifted, r = _reduced(b, clamped, _MAGIC, _LN2_HIGH, _LN2_LOW)
    p = _paired(b, r, b.binary("fmul", r, r), _EXP)
    if masked:
        return _scalef(b, p, n, zero, stays)
    return _scaled(b, p, n, shifted, stays)


def _decay(b: FunctionBuilder, x: Value) -> Value:
    """2^n * exp(r), the power made by integers, of which those below 0 are 0: nothing underflows."""
    lowest = b.float(-180.0, x)
    capped = b.select(b.compare("fcmp olt", x, lowest), lowest, x)
    _, shifted, r = _reduced(b, capped, _BIASED_MAGIC, _LN2_HIGH, _LN2_LOW)
    power = b.bitcast(_power_of_two(b, shifted), "i32")
    zero = b.int(0, power)
    power = b.select(b.compare("icmp sgt", power, zero), power, zero)
    return b.binary("fmul", _paired(b, r, b.binary("fmul", r, r), _EXP), b.bitcast(power, "float"))


def _exp_brief(b: FunctionBuilder, x: Value) -> Value:
    """By an instruction, where there is one for powers of two; else `exp`."""
    if x.element == "float" and b.has_power_of_two:
        return b.per_lane(b.power_of_two, b.binary("fmul", x, b.float(1.0 / math.log(2.0), x)))
    return emit_math(b, "exp", x)


def _reduced(b: FunctionBuilder, x: Value, magic: float, ln2_high: float, ln2_low: float) -> tuple[Value, Value, Value]:
    """n = x / ln 2 to the nearest integer, n + magic, and x - n ln 2, ln 2 being given in two parts."""
    shifted = b.fma(x, b.float(1.0 / math.log(2.0), x), b.float(magic, x))
    n = b.binary("fsub", shifted, b.float(magic, x))
    r = b.fma(n, b.float(-ln2_high, x), x)
    return n, shifted, b.fma(n, b.float(-ln2_low, x), r)


_LN2_HIGH_DOUBLE, _LN2_LOW_DOUBLE = 0.6931471803691238, 1.9082149292705877e-10  # the first has 21 zeros at its end

_MAGIC_DOUBLE = 6755399441055744.0  # 1.5 * 2^52

_EXP_DOUBLE = tuple(1.0 / math.factorial(k) for k in range(14))
"""What is left out is below 4e-18 where |r| <= ln(2) / 2."""


def _exp_double(b: FunctionBuilder, x: Value) -> Value:
    """As `_exp`, in f64: right for results down to the last denormal, 0 below; NaN goes through every step."""
    high, zero = b.float(710.0, x), b.float(0.0, x)
    stays = b.compare("fcmp uge", x, b.float(-746.0, x))  # or is NaN
    clamped = b.select(stays, x, zero)
    clamped = b.select(b.compare("fcmp ogt", clamped, high), high, clamped)
    _, shifted, r = _reduced(b, clamped, _MAGIC_DOUBLE, _LN2_HIGH_DOUBLE, _LN2_LOW_DOUBLE)
    p = _polynomial(b, r, _EXP_DOUBLE)
    bits = b.bitcast(shifted, "i64")
    whole = b.binary("sub", bits, b.int(0x4338000000000000, bits))  # the bits of _MAGIC_DOUBLE
    half = b.binary("ashr", whole, b.int(1, whole))  # in two steps: each power is a normal number
    powers = (
        b.bitcast(b.binary("shl", b.binary("add", part, b.int(1023, part)), b.int(52, part)), "double")
        for part in (half, b.binary("sub", whole, half))
    )
    for power in powers:
        p = b.binary("fmul", p, power)
    return b.select(stays, p, zero)


def _scaled(b: FunctionBuilder, p: Value, n: Value, shifted: Value, stays: Value | None = None) -> Value:
    """p * 2^n, rounded once; 0 where `stays` is false. `shifted` is n + _MAGIC, p is about 1.

    In two steps: the first power is a normal number, and leaves p one; the second is a constant.
    """
    if _has_scalef(b, p):
        return _scalef(b, p, n)
    bits, is_low = b.bitcast(shifted, "i32"), b.compare("fcmp olt", n, b.float(-64.0, n))
    bias = b.select(is_low, b.int((127 + 64) << 23, bits), b.int((127 - 1) << 23, bits))
    power = b.bitcast(b.binary("add", b.binary("shl", bits, b.int(23, bits)), bias), "float")  # _MAGIC has no bits there
    factor = b.select(is_low, b.float(2.0**-64, p), b.float(2.0, p))
    if stays is not None:
        factor = b.select(stays, factor, b.float(0.0, p))
    return b.binary("fmul", b.binary("fmul", p, power), factor)


def _has_scalef(b: FunctionBuilder, x: Value) -> bool:
    return b.module.has("avx512f") and x.lanes in (16, 32)


def _scalef(b: FunctionBuilder, p: Value, n: Value, zero: Value | None = None, where: Value | None = None) -> Value:
    """p * 2^n; with `where` only in the lanes that it has, and zero in others, which costs nothing and raises nothing."""
    if p.lanes > 16:
        halves = ([None, None] if value is None else b.halves(value) for value in (p, n, zero, where))
        return b.joined(*(_scalef(b, *parts) for parts in zip(*halves, strict=True)))
    name = "llvm.x86.avx512.mask.scalef.ps.512"
    mask = "i16 -1" if where is None else b.emit(f"bitcast {where} to i16", "i16")
    b.module.declare(name, p.type, [p.type, p.type, p.type, "i16", "i32"])
    return b.emit(f"call {p.type} @{name}({p}, {n}, {zero or p}, {mask}, i32 4)", p.element, p.lanes)


def _power_of_two(b: FunctionBuilder, shifted: Value) -> Value:
    """2.0 ** n for -126 <= n <= 127, given n + _BIASED_MAGIC."""
    bits = b.bitcast(shifted, "i32")
    return b.bitcast(b.binary("shl", bits, b.int(23, bits)), "float")


_LOG = (
    0.3333331048488617, -0.24999986588954926, 0.20002228021621704, -0.16669243574142456, 0.14218617975711823,
    -0.12384456396102905, 0.11873415112495422, -0.11789275705814362, 0.06913621723651886,
)  # fmt: skip


def _log(b: FunctionBuilder, x: Value) -> Value:
    """log(x) = e ln 2 + log(1 + f), 1 + f in [sqrt(1/2), sqrt(2))."""
    tiny = b.compare("fcmp olt", x, b.float(2.0**-126, x))
    scaled = b.select(tiny, b.binary("fmul", x, b.float(2.0**23, x)), x)
    bits = b.bitcast(scaled, "i32")
    shifted = b.binary("sub", bits, b.int(0x3F3504F3, bits))  # sqrt(1/2)
    exponent = b.binary("ashr", shifted, b.int(23, bits))
    mantissa = b.binary("sub", bits, b.binary("shl", exponent, b.int(23, bits)))
    e = b.convert("sitofp", exponent, "float")
    e = b.binary("fadd", e, b.select(tiny, b.float(-23.0, x), b.float(0.0, x)))
    f = b.binary("fsub", b.bitcast(mantissa, "float"), b.float(1.0, x))
    square = b.binary("fmul", f, f)
    tail = b.binary("fmul", _polynomial(b, f, _LOG), b.binary("fmul", square, f))
    tail = b.fma(square, b.float(-0.5, x), tail)
    tail = b.fma(e, b.float(_LN2_LOW, x), tail)
    result = b.fma(e, b.float(_LN2_HIGH, x), b.binary("fadd", f, tail))
    result = b.select(b.compare("fcmp oeq", x, b.float(math.inf, x)), x, result)
    result = b.select(b.compare("fcmp oeq", x, b.float(0.0, x)), b.float(-math.inf, x), result)
    bad = b.compare("fcmp ult", x, b.float(0.0, x))
    return b.select(bad, b.select(_is_nan(b, x), x, b.float(math.nan, x)), result)


_TANH = (1.0, -0.33333322405815125, 0.13331177830696106, -0.052725084125995636)
"""Of tanh(r) / r in r^2."""


def _tanh(b: FunctionBuilder, x: Value) -> Value:
    """tanh(n ln(2) / 2 + r) = ((2^n + 1) t - (1 - 2^n)) / (2^n + 1 - (1 - 2^n) t), t = tanh(r); beyond 10 it is 1 in f32.

    Where n is 0 it is t, and -0 is what it was; -x gives the same bits but for the sign, and nothing is above 1: rounding is monotone.
    """
    one, top, low = b.float(1.0, x), b.float(10.0, x), b.float(-10.0, x)
    capped = b.select(b.compare("fcmp ogt", x, top), top, x)
    capped = b.select(b.compare("fcmp olt", capped, low), low, capped)
    shifted = b.fma(capped, b.float(2.0 / math.log(2.0), x), b.float(_BIASED_MAGIC, x))
    n = b.binary("fsub", shifted, b.float(_BIASED_MAGIC, x))
    r = b.fma(n, b.float(-0.5 * math.log(2.0), x), capped)
    power = _power_of_two(b, shifted)
    t = b.binary("fmul", r, _polynomial(b, b.binary("fmul", r, r), _TANH))
    more, less = b.binary("fadd", power, one), b.fneg(b.binary("fsub", one, power))
    return b.binary("fdiv", b.fma(more, t, less), b.fma(less, t, more))


_ERF = (
    -1.6279070377349854, -0.9184476137161255, -0.14827705919742584, 0.027632027864456177, 0.00023140893608797342,
    -0.002405019011348486, 0.0009129946120083332, -0.00016972167941275984, 1.3354109796637204e-05,
)  # fmt: skip
"""Of log2(1 - erf(a)) / a."""
_EXP2M1 = (
    0.6931471824645996, 0.24022650718688965, 0.055503569543361664, 0.009618030861020088, 0.0013390866806730628, 0.0001546973508084193,
)  # fmt: skip
"""Of (2^r - 1) / r."""


def _erf(b: FunctionBuilder, x: Value) -> Value:
    """1 - 2^Q(|x|), as -(2^n (2^r - 1) + 2^n - 1), which is right near zero too; beyond 4 it is 1 in f32."""
    size, four = b.intrinsic("fabs", x), b.float(4.0, x)
    capped = b.select(b.compare("fcmp ogt", size, four), four, size)
    exponent = b.binary("fmul", _paired(b, capped, b.binary("fmul", capped, capped), _ERF), capped)
    shifted = b.binary("fadd", exponent, b.float(_BIASED_MAGIC, x))
    r = b.binary("fsub", exponent, b.binary("fsub", shifted, b.float(_BIASED_MAGIC, x)))
    power = _power_of_two(b, shifted)
    part = b.binary("fmul", _paired(b, r, b.binary("fmul", r, r), _EXP2M1), r)
    less = b.fma(power, part, b.binary("fadd", power, b.float(-1.0, x)))
    return b.intrinsic("copysign", less, x)


def _sigmoid(b: FunctionBuilder, x: Value) -> Value:
    """1 / (1 + e) or e / (1 + e) with e = exp(-|x|): small results keep their precision."""
    one = b.float(1.0, x)
    e = _exp(b, b.fneg(b.intrinsic("fabs", x)))
    top = b.select(b.compare("fcmp olt", x, b.float(0.0, x)), e, one)
    return b.binary("fdiv", top, b.binary("fadd", one, e))


_CDF = (
    -1.0, -1.1511057615280151, -0.45920491218566895, -0.05250502750277519, 0.007075471803545952, -0.00014587001351173967,
    -0.00018254766473546624, 3.862076118821278e-05, -2.772050493149436e-06,
)  # fmt: skip
_EXP2 = (
    1.0, 0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512991189957, 0.0013264721492305398,
)  # fmt: skip


def _normal_cdf(b: FunctionBuilder, x: Value) -> Value:
    """2^Q(|x|), the weight beyond |x|, or one minus that; 0 below -5.6. The error is absolute: that of 1 + erf is no better."""
    size = b.intrinsic("fabs", x)
    most = b.float(5.6, x)
    power = _polynomial(b, b.select(b.compare("fcmp ogt", size, most), most, size), _CDF)
    magic = b.float(_MAGIC, x)
    shifted = b.binary("fadd", power, magic)
    n = b.binary("fsub", shifted, magic)
    beyond = _scaled(b, _polynomial(b, b.binary("fsub", power, n), _EXP2), n, shifted)
    below = b.select(b.compare("fcmp olt", x, b.float(-5.6, x)), b.float(0.0, x), beyond)
    return b.select(b.compare("fcmp olt", x, b.float(0.0, x)), below, b.binary("fsub", b.float(1.0, x), beyond))


def _normal_cdf_libm(b: FunctionBuilder, x: Value) -> Value:
    scaled = b.binary("fmul", x, b.float(-math.sqrt(0.5), x))
    return b.binary("fmul", b.float(0.5, x), b.per_lane(lambda s: b.libm("erfc", s), scaled))


_SIMPLE: dict[str, Callable[..., Value]] = {
    "isnan": _is_nan,
    "isinf": _is_inf,
    "sign": _sign,
    "rsqrt": _rsqrt,
    "bounded_quotient": emit_bounded_quotient,
}
_FAST: dict[str, Callable[..., Value]] = {
    "exp": _exp,
    "decay": _decay,
    "log": _log,
    "tanh": _tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "normal_cdf": _normal_cdf,
    "round_tf32": _round_tf32,
}
