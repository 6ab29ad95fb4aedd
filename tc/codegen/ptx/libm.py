"""The functions of libm in f64, for processors without one: as LLVM IR, out of multiplications, additions and roundings alone.

Each is good to a few units in the last place (see `tests/codegen/test_ptx_libm.py`), so what is computed in f64 for f32 is right after
rounding; NaN, infinities, zeros and the ends of domains give what C says. Sums of series are written out where they are short.

Sources: the reductions are those of fdlibm (Sun, 1993) and of Payne and Hanek (1983); the series are Taylor's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tc.codegen.llvm.builder import FunctionBuilder, Module, Value
from tc.codegen.llvm.large_angles import payne_hanek
from tc.codegen.llvm.libm_f32 import F32_FUNCTIONS, ends_of_power
from tc.codegen.llvm.number import Number, either, from_bits

PREFIX = "tc_libm_"
"""How the functions' names begin: LLVM knows those of libm, and what it may do with them."""

_INF, _NAN = math.inf, math.nan
_SQUARE_ALONE = 2.0**28
"""Beyond it the square of a number is all that counts beside 1."""


# -- exponentials

_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
_MAGIC, _MAGIC_BITS = 6755399441055744.0, 0x4338000000000000  # 1.5 * 2^52


def _exp2(x: Number) -> Number:
    capped = x.where(x.test("ogt", 1100.0), 1100.0)
    capped = capped.where(capped.test("olt", -1100.0), -1100.0)
    shifted = capped + _MAGIC
    rest = capped - (shifted - _MAGIC)
    value, b = (rest * math.log(2.0)).series([1 / math.factorial(k) for k in range(15)]), x.b
    whole = b.binary("sub", shifted.bits, b.int(_MAGIC_BITS, shifted.bits))
    half = b.binary("ashr", whole, b.int(1, whole))
    for part in (half, b.binary("sub", whole, half)):
        biased = b.binary("add", part, b.int(1023, part))
        value = value * from_bits(b, b.binary("shl", biased, b.int(52, part)))
    return x.where(x.test("ord", x), value)


def _expm1(x: Number) -> Number:
    near = x.fma(x * x.series([1 / math.factorial(k) for k in range(2, 17)]), x)
    far = x.math("exp") - 1.0
    return either(x.b, x.math("abs").test("olt", 0.4), near.where(x.test("oeq", 0.0), x), far)


def _sinh(x: Number) -> Number:
    size = x.math("abs")
    grown, half = _expm1(size), (size * 0.5).math("exp")
    value = (grown + grown / (grown + 1.0)) * 0.5
    return value.where(size.test("ogt", 22.0), half * 0.5 * half).with_sign_of(x)


def _cosh(x: Number) -> Number:
    half = (x.math("abs") * 0.5).math("exp")
    return half * 0.5 * half + 0.5 / (half * half)


def _tanh(x: Number) -> Number:
    less = _expm1(x.math("abs") * -2.0)
    return (-less / (less + 2.0)).with_sign_of(x).where(x.test("uno", x), x)


# -- logarithms


def _log_parts(x: Number) -> tuple[Number, Number]:
    """k and f of a positive number 2^k f, f in [sqrt(1/2), sqrt(2))."""
    b, tiny = x.b, x.test("olt", 2.0**-1022)
    bits = x.where(tiny, x * 2.0**54).bits
    exponent = b.binary("ashr", b.binary("sub", bits, b.int(0x3FE6A09E667F3BCD, bits)), b.int(52, bits))
    part = from_bits(b, b.binary("sub", bits, b.binary("shl", exponent, b.int(52, exponent))))
    power = Number(b, b.convert("sitofp", exponent, "double"))
    return power.where(tiny, power - 54.0), part


_ATANH = [2.0 / (2 * k + 3) for k in range(13)]
"""Of log(f) = 2 s + s^3 P(s^2), s = (f - 1) / (f + 1)."""


def _log_ends(x: Number, value: Number) -> Number:
    """A logarithm where its argument is no positive number."""
    value = value.where(x.test("oeq", _INF), _INF)
    value = value.where(x.test("oeq", 0.0), -_INF)
    return value.where(x.test("olt", 0.0), _NAN).where(x.test("uno", x), x)


def _log_of_part(part: Number) -> Number:
    s = (part - 1.0) / (part + 1.0)
    square = s * s
    return (s * square).fma(square.series(_ATANH), s + s)


def _log(x: Number) -> Number:
    k, part = _log_parts(x)
    return _log_ends(x, k.fma(_LN2_HIGH, k.fma(_LN2_LOW, _log_of_part(part))))


def _log2(x: Number) -> Number:
    k, part = _log_parts(x)
    return _log_ends(x, _log_of_part(part).fma(1 / math.log(2.0), k))


def _log1p(x: Number) -> Number:
    u = x + 1.0
    lost = x - (u - 1.0)
    value = _log(u) + lost / u
    value = value.where(u.test("oeq", _INF), _INF).where(x.test("oeq", -1.0), -_INF)
    return value.where(x.math("abs").test("olt", 2.0**-60), x)


def _asinh(x: Number) -> Number:
    size = x.math("abs")
    square = size * size
    value = _log1p(size + square / ((square + 1.0).math("sqrt") + 1.0))
    return value.where(size.test("ogt", _SQUARE_ALONE), _log(size) + math.log(2.0)).with_sign_of(x).where(x.test("uno", x), x)


def _acosh(x: Number) -> Number:
    above = x - 1.0
    value = _log1p(above + above.fma(above, above + above).math("sqrt"))
    return value.where(x.test("ogt", _SQUARE_ALONE), _log(x) + math.log(2.0)).where(x.test("olt", 1.0), _NAN)


def _atanh(x: Number) -> Number:
    size = x.math("abs")
    value = _log1p((size + size) / (1.0 - size)) * 0.5
    return value.with_sign_of(x).where(size.test("ogt", 1.0), _NAN).where(x.test("uno", x), x)


# -- angles

_QUARTER, _QUARTER_LOW = math.pi / 2, 6.123233995736766e-17
_QUARTER_LOWEST = -1.4973849048591833e-33
_ATAN = [(-1.0) ** k / (2 * k + 1) for k in range(1, 24)]


def _atan(x: Number) -> Number:
    """Of numbers up to 1: atan(y) = pi/4 + atan((y - 1) / (y + 1)) above tan(pi/8); of larger ones pi/2 - atan(1 / x)."""
    b, size = x.b, x.math("abs")
    is_large = size.test("ogt", 1.0)
    y = size.where(is_large, 1.0 / size)
    is_middle = y.test("ogt", math.tan(math.pi / 8))
    z = y.where(is_middle, (y - 1.0) / (y + 1.0))
    square = z * z
    value = (z * square).fma(square.series(_ATAN), z)
    zero = Number(b, b.float(0.0, x.v))
    value = value.where(is_middle, (value + _QUARTER_LOW / 2) + _QUARTER / 2)
    rest = (_QUARTER_LOW - value) + _QUARTER
    return value.where(is_large, rest).where(size.test("oeq", 0.0), zero).with_sign_of(x).where(x.test("uno", x), x)


def _asin(x: Number) -> Number:
    return _atan(x / ((1.0 - x) * (x + 1.0)).math("sqrt")).where(x.test("oeq", 0.0), x)


def _acos(x: Number) -> Number:
    return _atan(((1.0 - x) / (x + 1.0)).math("sqrt")) * 2.0


_LARGE_ANGLE = 2.0**19


def _quadrants(x: Number) -> tuple[Value, Number]:
    """A number of quarter turns, of which the last two bits count, and the rest of an angle, at most an eighth of a turn."""
    b = x.b
    near, far, done = b.label("near"), b.label("far"), b.label("reduced")
    b.branch_if(x.math("abs").test("olt", _LARGE_ANGLE), near, far)
    b.start_block(near)
    shifted = x.fma(2 / math.pi, _MAGIC)
    n = shifted - _MAGIC
    rest = (-n).fma(_QUARTER_LOWEST, (-n).fma(_QUARTER_LOW, (-n).fma(_QUARTER, x)))
    turns = shifted.bits
    b.branch(done)
    b.start_block(far)
    far_turns, far_rest = payne_hanek(x)
    far_end = b.block
    b.branch(done)
    b.start_block(done)
    number = b.emit(f"phi i64 [ {turns.text}, %{near} ], [ {far_turns.text}, %{far_end} ]", "i64")
    angle = b.emit(f"phi double [ {rest.v.text}, %{near} ], [ {far_rest.v.text}, %{far_end} ]", "double")
    return number, Number(b, angle)


_SIN = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(1, 10)]
_COS = [(-1.0) ** k / math.factorial(2 * k) for k in range(2, 11)]


def _sin_cos(x: Number) -> tuple[Number, Number]:
    b = x.b
    turns, r = _quadrants(x)
    square = r * r
    sine = (r * square).fma(square.series(_SIN), r)
    cosine = (square * square).fma(square.series(_COS), square.fma(-0.5, 1.0))
    is_odd = b.compare("icmp ne", b.binary("and", turns, b.int(1, turns)), b.int(0, turns))
    sine, cosine = either(b, is_odd, cosine, sine), either(b, is_odd, sine, cosine)
    one = b.int(1, turns)
    for_sine = b.compare("icmp ne", b.binary("and", turns, b.int(2, turns)), b.int(0, turns))
    for_cosine = b.compare("icmp ne", b.binary("and", b.binary("add", turns, one), b.int(2, turns)), b.int(0, turns))
    return sine.where(for_sine, -sine), cosine.where(for_cosine, -cosine)


def _sin(x: Number) -> Number:
    return _sin_cos(x)[0].where(x.test("oeq", 0.0), x)


def _cos(x: Number) -> Number:
    return _sin_cos(x)[1]


def _tan(x: Number) -> Number:
    sine, cosine = _sin_cos(x)
    return (sine / cosine).where(x.test("oeq", 0.0), x)


# -- the error function

_ERF_TERMS, _ERFC_DEPTH = 60, 90
_ERF_NEAR = 2.0


def _erf_near(size: Number) -> Number:
    """2 x / sqrt(pi) exp(-x^2) (1 + 2 x^2 / 3 (1 + 2 x^2 / 5 (...))): all terms are positive."""
    square = size * size
    total = Number(size.b, size.b.float(1.0, size.v))
    for k in range(_ERF_TERMS, 0, -1):
        total = (total * square).fma(2.0 / (2 * k + 1), 1.0)
    return size * (2 / math.sqrt(math.pi)) * (-square).math("exp") * total


def _erfc_far(size: Number) -> Number:
    """exp(-x^2) / sqrt(pi) / (x + 1/2 / (x + 2/2 / (x + 3/2 / ...)))."""
    total = size
    for k in range(_ERFC_DEPTH, 0, -1):
        total = size + (0.5 * k) / total
    return _squared_exp(size) / (total * math.sqrt(math.pi))


def _squared_exp(size: Number) -> Number:
    """exp(-x^2), with what is lost when x is squared."""
    square = size * size
    lost = size.fma(size, -square)
    return (-square).math("exp") * (1.0 - lost)


def _erf(x: Number) -> Number:
    size = x.math("abs")
    capped = size.where(size.test("ogt", 6.0), 6.0)
    near = _erf_near(capped)
    return near.where(size.test("ogt", _ERF_NEAR), 1.0 - _erfc_far(capped)).with_sign_of(x).where(x.test("uno", x), x)


def _erfc(x: Number) -> Number:
    size = x.math("abs")
    capped = size.where(size.test("ogt", 30.0), 30.0)
    far = (1.0 - _erf_near(capped)).where(size.test("ogt", _ERF_NEAR), _erfc_far(capped))
    return far.where(x.test("olt", 0.0), 2.0 - far).where(x.test("uno", x), x)


# -- powers and remainders


def _pow(x: Number, y: Number) -> Number:
    """exp(y log |x|), the logarithm in two numbers."""
    size = x.math("abs")
    k, part = _log_parts(size)
    s = (part - 1.0) / (part + 1.0)
    s_low = (-s).fma(part + 1.0, part - 1.0) / (part + 1.0)
    s_low = s_low - s * ((part - ((part + 1.0) - 1.0)) / (part + 1.0))
    square = s * s
    tail = (s * square).fma(square.series(_ATANH), k.fma(_LN2_LOW, s_low + s_low))
    high = k.fma(_LN2_HIGH, s + s)
    tail = tail + (k.fma(_LN2_HIGH, -high) + (s + s))
    total = high + tail
    tail = (high - total) + tail
    total = _log_ends(size, total)
    product = total * y
    lost = total.fma(y, -product) + tail * y
    lost = lost.where(lost.math("abs").test("uge", 1.0), 0.0)
    value = product.math("exp")
    value = value.where(value.test("olt", _INF), value.fma(lost, value))
    return ends_of_power(x, y, value)


def _fmod(x: Number, y: Number) -> Number:
    """Long division: the divisor, doubled as often as it goes into what is left, is taken away; each difference is exact."""
    b, divisor = x.b, y.math("abs")
    outer, inner, take, done = b.label("again"), b.label("double"), b.label("take"), b.label("rest")
    size, before = x.math("abs"), b.block
    regular = b.binary("and", size.test("olt", _INF), divisor.test("ogt", 0.0))
    b.branch_if(regular, outer, done)
    b.start_block(outer)
    left, smaller = b.name("left"), b.name("smaller")
    phi_left = len(b.lines)
    b.lines.append("")
    rest = Number(b, Value(left, "double"))
    half = rest * 0.5
    b.branch_if(rest.test("oge", divisor), inner, done)
    b.start_block(inner)
    grown = b.name("grown")
    phi_grown = len(b.lines)
    b.lines.append("")
    factor = Number(b, Value(grown, "double"))
    doubled = factor + factor
    b.branch_if(factor.test("ole", half), inner, take)
    b.lines[phi_grown] = f"  {grown} = phi double [ {divisor.v.text}, %{outer} ], [ {doubled.v.text}, %{inner} ]"
    b.start_block(take)
    less = rest - factor
    b.branch(outer)
    b.lines[phi_left] = f"  {left} = phi double [ {size.v.text}, %{before} ], [ {less.v.text}, %{take} ]"
    b.start_block(done)
    nan = b.float(_NAN, x.v).text
    b.lines.append(f"  {smaller} = phi double [ {nan}, %{before} ], [ {left}, %{outer} ]")
    found = Number(b, Value(smaller, "double")).with_sign_of(x)
    return found.where(b.binary("or", x.test("uno", x), y.test("uno", y)), _NAN)


_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "exp": lambda x: x.math("exp"),
    "exp2": _exp2,
    "expm1": _expm1,
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    "log": _log,
    "log2": _log2,
    "log1p": _log1p,
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": _atanh,
    "atan": _atan,
    "asin": _asin,
    "acos": _acos,
    "sin": _sin,
    "cos": _cos,
    "tan": _tan,
    "erf": _erf,
    "erfc": _erfc,
    "pow": _pow,
    "fmod": _fmod,
}
LIBM_NAMES = frozenset(_FUNCTIONS)


F32_LIBM = frozenset(F32_FUNCTIONS)
"""Those that are there in f32, too: by the names of C, "sinf"."""


def define_libm(module: Module) -> None:
    """Let a module have functions of its own in the place of those of libm that it declares."""
    known = {**{name: (make, "double") for name, make in _FUNCTIONS.items()},
             **{f"{name}f": (make, "float") for name, make in F32_FUNCTIONS.items()}}  # fmt: skip
    for name in sorted(known.keys() & module.declarations.keys()):
        del module.declarations[name]
        module.definitions = [text.replace(f"@{name}(", f"@{PREFIX}{name}(") for text in module.definitions]
        module.definitions.append(_definition(module, name, *known[name]))


def _definition(module: Module, name: str, make: Callable[..., Number], kind: str) -> str:
    count = 2 if name in ("pow", "powf", "fmod") else 1
    b = FunctionBuilder(module)
    result = make(*(Number(b, Value(f"%x{k}", kind)) for k in range(count)))
    b.emit_void(f"ret {result.v}")
    params = ", ".join(f"{kind} %x{k}" for k in range(count))
    header = f"define internal {kind} @{PREFIX}{name}({params}) nounwind {{"
    return "\n".join([header, "entry:", *b.entry, *b.lines, "}"])
