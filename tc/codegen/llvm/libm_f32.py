"""Functions of libm in f32 alone, for processors that are many times slower in f64: good to one unit in the last place.

What must be known to more bits than an f32 has stands in two of them, the second of which is what the first lacks; sums and products that
make such pairs are exact. The polynomials are least-maximum fits made by scripts/fit_polynomials.py. Angles beyond 2^17 are reduced in f64.

Sources: exact sums and products by Knuth (1969) and Dekker (1971); the reductions by Cody and Waite (1980) and Payne and Hanek (1983).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tc.codegen.llvm.builder import Value
from tc.codegen.llvm.large_angles import payne_hanek
from tc.codegen.llvm.number import Number, either, from_bits

_INF, _NAN = math.inf, math.nan
_MAGIC, _MAGIC_BITS = 12582912.0, 0x4B400000  # 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits

# Their first numbers have so many zeros at the end that products with whole numbers of 8 and 17 bits are exact.
_LN2 = (0.693145751953125, 1.428606765330187e-06)
_QUARTER = (1.57080078125, -4.410743713378906e-06, -4.371138828673793e-08, -1.7151245100058819e-15)


def _whole(x: Number, factor: float) -> tuple[Number, Value]:
    """x * factor to the nearest whole number, as a float and as an integer."""
    shifted = x.fma(factor, _MAGIC)
    return shifted - _MAGIC, x.b.binary("sub", shifted.bits, x.b.int(_MAGIC_BITS, shifted.bits))


def _sum(a: Number | float, b: Number) -> tuple[Number, Number]:
    """a + b and what it lacks, where |a| >= |b| or a is 0."""
    total = b + a
    return total, b - (total - a)


def _any_sum(a: Number | float, b: Number) -> tuple[Number, Number]:
    """a + b and what it lacks."""
    total = b + a
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _power(x: Number, n: Value) -> Number:
    """2^n for -126 <= n <= 127."""
    b = x.b
    return from_bits(b, b.binary("shl", b.binary("add", n, b.int(127, n)), b.int(23, n)))


def _scaled(p: Number, n: Value) -> Number:
    """p * 2^n, rounded once, in two steps: each power is a normal number."""
    b = p.b
    half = b.binary("ashr", n, b.int(1, n))
    return p * _power(p, half) * _power(p, b.binary("sub", n, half))


# -- exponentials

_EXP2 = [0.6931471824645996, 0.24022647738456726, 0.055503323674201965, 0.00961843691766262, 0.0013398875016719103, 0.00015353361959569156]
_EXP = [0.5, 0.1666666716337204, 0.04166645184159279, 0.00833327416330576, 0.001393682206980884, 0.00019915089069399983]
"""Of (exp(r) - 1 - r) / r^2."""


def _clamped(x: Number, low: float, high: float) -> Number:
    above = x.where(x.test("ogt", high), high)
    return above.where(above.test("olt", low), low)


def _exp2(x: Number) -> Number:
    capped = _clamped(x, -160.0, 130.0)
    whole, n = _whole(capped, 1.0)
    rest = capped - whole
    value = _scaled(rest.fma(rest.series(_EXP2), 1.0), n)
    return x.where(x.test("ord", x), value)


def _without_ln2(x: Number) -> tuple[Value, Number, Number]:
    """n, r and what r lacks, x = n ln 2 + r."""
    whole, n = _whole(x, 1 / math.log(2.0))
    first = (-whole).fma(_LN2[0], x)  # exact
    rest = (-whole).fma(_LN2[1], first)
    return n, rest, (-whole).fma(_LN2[1], first - rest)


def _expm1(x: Number) -> Number:
    """2 (2^(n-1) (exp(r) - 1) + 2^(n-1) - 1/2), x = n ln 2 + r."""
    b = x.b
    n, rest, low = _without_ln2(_clamped(x, -25.0, 89.0))
    power = _power(x, b.binary("sub", n, b.int(1, n)))
    square = rest * rest
    small = square.fma(rest.series(_EXP), low.fma(rest, low))
    less, half_lost = _any_sum(power, Number(b, b.float(-0.5, x.v)))
    total, lost = _any_sum(less, rest * power)
    value = total + small.fma(power, lost + half_lost)
    value = value + value
    return value.where(x.math("abs").test("olt", 2.0**-25), x).where(x.test("uno", x), x)


_SINH = [0.1666666716337204, 0.008333289064466953, 0.00019904994405806065]
"""Of (sinh(r) - r) / r^3 in r^2."""
_COSH = [0.5, 0.041666459292173386, 0.0013935428578406572]
"""Of (cosh(r) - 1) / r^2 in r^2."""


def _sinh(x: Number) -> Number:
    size = x.math("abs")
    value = _hyperbolic(size, is_sine=True)
    return value.where(size.test("olt", 2.0**-13), size).with_sign_of(x)


def _cosh(x: Number) -> Number:
    return _hyperbolic(x.math("abs"), is_sine=False)


def _hyperbolic(size: Number, *, is_sine: bool) -> Number:
    """sinh(n ln 2 + r) = (2^(n-1) - 2^(-n-1)) cosh(r) + (2^(n-1) + 2^(-n-1)) sinh(r), and cosh with the two factors exchanged.

    There is no quotient, and near 0, where n is 0, nothing cancels. Half of it is computed first, which is a number where it overflows.
    """
    b = size.b
    n, rest, low = _without_ln2(size.where(size.test("ogt", 89.5), 89.5))
    up = _power(size, b.binary("sub", n, b.int(2, n)))
    down_bits = b.binary("sub", b.int(250 << 23, n), up.bits)
    down = from_bits(b, b.intrinsic("smax", down_bits, b.int(0, n)))
    less, more = up - down, up + down
    square = rest * rest
    even, odd = square * square.series(_COSH), (rest * square).fma(square.series(_SINH), low)
    of_cosh, of_sinh = (less, more) if is_sine else (more, less)
    product = of_sinh * rest
    total, tail = _sum(of_cosh, product)
    lost = (up - less) - down if is_sine else (up - more) + down
    value = total + (tail + of_sinh.fma(rest, -product) + lost + of_cosh.fma(even, of_sinh * odd))
    return value + value


# -- logarithms

_LOG = [
    0.3333331048488617, -0.24999986588954926, 0.20002228021621704, -0.16669243574142456, 0.14218617975711823,
    -0.12384456396102905, 0.11873415112495422, -0.11789275705814362, 0.06913621723651886,
]  # fmt: skip
"""Of (log(1 + f) - f + f^2 / 2) / f^3."""
_LOG2_E = (1.4426950216293335, 1.925963033500011e-08)


def _log_parts(x: Number) -> tuple[Value, Number, Number]:
    """k, as an integer and as a float, and f of a positive number 2^k f, f in [sqrt(1/2), sqrt(2))."""
    b, tiny = x.b, x.test("olt", 2.0**-126)
    exponent, part = _normal_parts(x.where(tiny, x * 2.0**24))
    exponent = b.select(tiny, b.binary("sub", exponent, b.int(24, exponent)), exponent)
    return exponent, Number(b, b.convert("sitofp", exponent, "float")), part


def _normal_parts(x: Number) -> tuple[Value, Number]:
    """k and f of a positive number 2^k f that is not tiny, f in [sqrt(1/2), sqrt(2))."""
    b, bits = x.b, x.bits
    exponent = b.binary("ashr", b.binary("sub", bits, b.int(0x3F3504F3, bits)), b.int(23, bits))
    return exponent, from_bits(b, b.binary("sub", bits, b.binary("shl", exponent, b.int(23, exponent))))


def _log_ends(x: Number, value: Number) -> Number:
    """A logarithm where its argument is no positive number."""
    value = value.where(x.test("oeq", _INF), _INF)
    value = value.where(x.test("oeq", 0.0), -_INF)
    return value.where(x.test("olt", 0.0), _NAN).where(x.test("uno", x), x)


def _log_tail(f: Number) -> Number:
    """log(1 + f) - f."""
    square = f * f
    return square.fma(-0.5, (f * square).fma(f.series(_LOG), f.fma(f, -square) * -0.5))


def _log2(x: Number) -> Number:
    _, k, part = _log_parts(x)
    f = part - 1.0
    square = f * f
    log, low = _sum(f, square * -0.5)
    low = low + (f * square).fma(f.series(_LOG), f.fma(f, -square) * -0.5)
    product = log * _LOG2_E[0]
    total, lost = _sum(k, product)
    lost = lost + log.fma(_LOG2_E[0], -product)
    return _log_ends(x, total + (lost + log.fma(_LOG2_E[1], low * _LOG2_E[0])))


def _log_of_sum(u: Number, lost: Number, is_half: Value | None = None) -> Number:
    """The logarithm of u + lost, of which u is what an f32 can hold, not tiny; of twice that where it is half of what is meant."""
    b = u.b
    n, part = _normal_parts(u)
    lost = lost * _power(u, b.binary("sub", b.int(0, n), n))
    lost = lost.where(u.test("ogt", 2.0**60), 0.0)
    k = Number(b, b.convert("sitofp", n, "float"))
    if is_half is not None:
        k = k.where(is_half, k + 1.0)
    f = part - 1.0
    tail = lost.fma(f.fma(f, -f), _log_tail(f) + lost)
    total, rest = _sum(k * _LN2[0], f)
    return total + (rest + k.fma(_LN2[1], tail))


def _log1p(x: Number) -> Number:
    b, is_large = x.b, x.test("ogt", 1.0)
    u = x + 1.0
    lost = either(b, is_large, 1.0 - (u - x), x - (u - 1.0))
    value = _log_ends(u, _log_of_sum(u, lost))
    return value.where(x.math("abs").test("olt", 2.0**-25), x).where(x.test("uno", x), x)


_SQUARE_ALONE = 4096.0
"""Beyond it the square of a number is all that counts beside 1."""


def _asinh(x: Number) -> Number:
    """log(1 + (y + (sqrt(y^2 + 1) - 1))), y = |x|; of large numbers log(2 y)."""
    size = x.math("abs")
    is_large = size.test("ogt", _SQUARE_ALONE)
    square = size * size
    above, lost = _sum(size, square / ((square + 1.0).math("sqrt") + 1.0))
    u, rest = _any_sum(1.0, above)
    u, lost = u.where(is_large, size), (lost + rest).where(is_large, 0.0)
    return _log_of_sum(u, lost, is_large).where(size.test("oeq", _INF), _INF).with_sign_of(x)


def _acosh(x: Number) -> Number:
    """log(x + sqrt(t^2 + 2 t)), t = x - 1, the root in two numbers; of large numbers log(2 x)."""
    is_large, above = x.test("ogt", _SQUARE_ALONE), x - 1.0
    twice = above + above
    square = above.fma(above, twice)
    root = square.math("sqrt")
    root_low = ((-root).fma(root, square) + above.fma(above, twice - square)) * (0.5 / root)
    root_low = root_low.where(root.test("oeq", 0.0), 0.0)
    u, lost = _sum(x, root)
    u, lost = u.where(is_large, x), (lost + root_low).where(is_large, 0.0)
    value = _log_of_sum(u, lost, is_large).where(x.test("oeq", _INF), _INF)
    return value.where(x.test("ult", 1.0), _NAN)


def _atanh(x: Number) -> Number:
    """Half of log(1 + 2 y / (1 - y)), y = |x|, the quotient in two numbers."""
    size = x.math("abs")
    twice, below = size + size, 1.0 - size
    inverse = 1.0 / below
    quotient = twice * inverse
    lost = ((-quotient).fma(below, twice) - quotient * ((1.0 - below) - size)) * inverse
    u, rest = _any_sum(1.0, quotient)
    value = _log_of_sum(u, lost + rest) * 0.5
    return value.where(size.test("oeq", 1.0), _INF).where(size.test("ugt", 1.0), _NAN).with_sign_of(x)


# -- angles

_LARGE_ANGLE = 2.0**17
_SIN = [-0.1666666716337204, 0.008333329111337662, -0.0001983933470910415, 2.718307996474323e-06]
_COS = [0.0416666679084301, -0.0013888883404433727, 2.4799459424684756e-05, -2.720572069847549e-07]
_TAN = [
    0.33333349227905273, 0.13332663476467133, 0.05405997857451439, 0.021281862631440163, 0.010836671106517315, 8.842894021654502e-05,
    0.004376830533146858,
]  # fmt: skip
"""Of (tan(r) - r) / r^3 in r^2."""


def _reduced_any(x: Number) -> tuple[Value, Number, Number]:
    """The whole quarter turns in an angle, and the rest in two numbers."""
    b = x.b
    near, far, done = b.label("near"), b.label("far"), b.label("reduced")
    b.branch_if(x.math("abs").test("olt", _LARGE_ANGLE), near, far)
    b.start_block(near)
    turns, angle, lost = _reduced(x)
    b.branch(done)
    b.start_block(far)
    far_turns, wide = payne_hanek(Number(b, b.convert("fpext", x.v, "double")))
    far_angle = Number(b, b.convert("fptrunc", wide.v, "float"))
    far_lost = Number(b, b.convert("fptrunc", (wide - Number(b, b.convert("fpext", far_angle.v, "double"))).v, "float"))
    far_turns = b.convert("trunc", far_turns, "i32")
    far_end = b.block
    b.branch(done)
    b.start_block(done)

    def either_way(element: str, one: Value, other: Value) -> Value:
        return b.emit(f"phi {element} [ {one.text}, %{near} ], [ {other.text}, %{far_end} ]", element)

    turns = either_way("i32", turns, far_turns)
    return turns, Number(b, either_way("float", angle.v, far_angle.v)), Number(b, either_way("float", lost.v, far_lost.v))


def _reduced(x: Number) -> tuple[Value, Number, Number]:
    """The same of an angle below _LARGE_ANGLE."""
    n, turns = _whole(x, 2 / math.pi)
    rest = (-n).fma(_QUARTER[1], (-n).fma(_QUARTER[0], x))  # exact
    more = -n * _QUARTER[2]
    angle, lost = _any_sum(rest, more)
    return turns, angle, lost + (-n).fma(_QUARTER[3], (-n).fma(_QUARTER[2], -more))


def near_sin_cos(x: Number) -> tuple[Number, Number]:
    """Of an angle below 2^17; of others some number."""
    return _turned(*_reduced(x))


def near_tan(x: Number) -> Number:
    """Of an angle below 2^17; of others some number."""
    return _tan_turned(*_reduced(x)).where(x.test("oeq", 0.0), x)


def _tan_turned(turns: Value, r: Number, low: Number) -> Number:
    """The tangent of r + low and so many quarter turns: that of r + low, or the negative inverse of what is known of it in two numbers."""
    b, square = r.b, r * r
    tail = r * square * square.series(_TAN)
    tangent = r + tail
    tangent, lost = _sum(r, tail + low.fma(tangent * tangent, low))
    inverse = -1.0 / tangent
    error = inverse.fma(lost, inverse.fma(tangent, 1.0))
    is_odd = b.compare("icmp ne", b.binary("and", turns, b.int(1, turns)), b.int(0, turns))
    return either(b, is_odd, inverse.fma(error, inverse), tangent)


def _turned(turns: Value, r: Number, low: Number) -> tuple[Number, Number]:
    """Sine and cosine of r + low and so many quarter turns."""
    b, square = r.b, r * r
    sine = r + (r * square).fma(square.series(_SIN), low.fma(square * -0.5, low))
    half = square * 0.5
    first = 1.0 - half
    error = r.fma(r, -square) * -0.5
    cosine = first + ((1.0 - first) - half + (square * square).fma(square.series(_COS), (-r).fma(low, error)))
    is_odd = b.compare("icmp ne", b.binary("and", turns, b.int(1, turns)), b.int(0, turns))
    sine, cosine = either(b, is_odd, cosine, sine), either(b, is_odd, sine, cosine)
    for_sine = b.compare("icmp ne", b.binary("and", turns, b.int(2, turns)), b.int(0, turns))
    next_turn = b.binary("add", turns, b.int(1, turns))
    for_cosine = b.compare("icmp ne", b.binary("and", next_turn, b.int(2, turns)), b.int(0, turns))
    return sine.where(for_sine, -sine), cosine.where(for_cosine, -cosine)


_ATAN = [
    -0.33333301866959253, 0.19998638627339013, -0.1426524541498408, 0.10957576197682585, -0.08419458818906446,
    0.058234542028501285, -0.03145569166215707, 0.011064435066870763, -0.0018272115789918705,
]  # fmt: skip
_ASIN = [0.16666753928006992, 0.07495241771017785, 0.04547709857875161, 0.024147602846942798, 0.04221856322382595]
_HALF_PI = (1.5707963705062866, -4.371139000186241e-08)
_PI = (3.1415927410125732, -8.742278000372482e-08)


def _atan(x: Number) -> Number:
    """Of numbers up to 1 a series; of others pi / 2 less that of their inverse, a quotient whose rest is known."""
    b, size = x.b, x.math("abs")
    is_far = size.test("ogt", 1.0)
    inverse = 1.0 / size
    lost = (-inverse).fma(size, 1.0) * inverse
    lost = lost.where(inverse.test("ult", 2.0**-100), 0.0)  # of infinity there is no rest
    t = size.where(is_far, inverse)
    square = t * t
    tail = t * square * square.series(_ATAN)
    first = _HALF_PI[0] - t
    far = first + ((_HALF_PI[0] - first) - t + (_HALF_PI[1] - (tail + lost)))
    return either(b, is_far, far, t + tail).with_sign_of(x)


def _half_angle(size: Number) -> tuple[Value, Number, Number]:
    """Whether a number is above 1/2; it, or the root of half of what it lacks to 1; the arcsine of that less itself."""
    is_far = size.test("ogt", 0.5)
    square = (size * size).where(is_far, (1.0 - size) * 0.5)
    t = size.where(is_far, square.math("sqrt"))
    return is_far, t, t * square * square.series(_ASIN)


def _asin(x: Number) -> Number:
    """Beyond 1/2 it is pi / 2 less twice the arcsine of a root."""
    is_far, t, tail = _half_angle(x.math("abs"))
    twice = t + t
    first = _HALF_PI[0] - twice
    far = first + ((_HALF_PI[0] - first) - twice + (_HALF_PI[1] - (tail + tail)))
    return either(x.b, is_far, far, t + tail).with_sign_of(x)


def _acos(x: Number) -> Number:
    """pi / 2 less the arcsine; beyond 1/2 twice the arcsine of a root, or pi less that."""
    b, is_negative = x.b, x.test("olt", 0.0)
    is_far, t, tail = _half_angle(x.math("abs"))

    def one_of(near: float, above: float, below: float) -> Number:
        far = b.select(is_negative, b.float(below, x.v), b.float(above, x.v))
        return Number(b, b.select(is_far, far, b.float(near, x.v)))

    base, low = one_of(_HALF_PI[0], 0.0, _PI[0]), one_of(_HALF_PI[1], 0.0, _PI[1])
    turned = either(b, is_negative, t, -t)
    factor = either(b, is_far, Number(b, b.float(-2.0, x.v)), Number(b, b.float(1.0, x.v)))
    term, rest = turned * factor, either(b, is_negative, tail, -tail) * factor
    first, lost = _sum(base, term)
    return first + (rest + (low + lost))


# -- powers

_ATANH = [0.6666666269302368, 0.4000033736228943, 0.2853716015815735, 0.2358517348766327]
"""Of log(f) = 2 s + s^3 P(s^2), s = (f - 1) / (f + 1)."""
_TWO_THIRDS_LOW = 2 / 3 - 0.6666666865348816


def _log_pair(size: Number) -> tuple[Number, Number]:
    """The logarithm of a positive number in two, to about 2^-34."""
    _, k, part = _log_parts(size)
    above, below = part - 1.0, part + 1.0
    s = above / below
    s_low = ((-s).fma(below, above) - s * (part - (below - 1.0))) / below
    square = s * s
    square_low = s.fma(s, -square) + (s + s) * s_low
    high, low = _sum(Number(s.b, s.b.float(0.6666666865348816, s.v)), square * square.series(_ATANH[1:]))
    low = low + _TWO_THIRDS_LOW
    product = square * high
    product_low = square.fma(high, -product) + square.fma(low, square_low * high)
    term = s * product
    term_low = s.fma(product, -term) + s.fma(product_low, s_low * product)
    log, lost = _sum(s + s, term)
    total, rest = _sum(k * _LN2[0], log)
    tail = rest + (lost + (k.fma(_LN2[1], term_low) + (s_low + s_low)))
    return _sum(total, tail)


def _pow(x: Number, y: Number) -> Number:
    """exp(y log |x|), the logarithm in two numbers."""
    size = x.math("abs")
    log, log_low = _log_pair(size)
    log = _log_ends(size, log)
    product = log * y
    low = log.fma(y, -product) + log_low * y
    low = low.where(product.math("abs").test("uge", 150.0), 0.0)
    product = _clamped(product, -150.0, 150.0)
    whole, n = _whole(product, 1 / math.log(2.0))
    rest, lost = _any_sum((-whole).fma(_LN2[0], product), -whole * _LN2[1])
    rest, low = _any_sum(rest, low + lost)
    one, lost = _sum(1.0, rest)
    value = one + (lost + (rest * rest).fma(rest.series(_EXP), low.fma(rest, low)))
    value = _scaled(value, n)
    return ends_of_power(x, y, value)


def ends_of_power(x: Number, y: Number, value: Number) -> Number:
    """x^y, `value` being |x|^y, where C says something else: signs, infinities, and what is no number."""
    b, size = x.b, x.math("abs")
    integral = y.math("trunc").test("oeq", y)
    half = y * 0.5
    is_odd = b.binary("and", integral, half.math("trunc").test("une", half))
    is_negative = b.compare("icmp slt", x.bits, b.int(0, x.bits))
    value = value.where(b.binary("and", is_negative, is_odd), -value)
    fractional = b.binary("and", x.test("olt", 0.0), b.binary("xor", integral, b.int(1, integral)))
    value = value.where(b.binary("and", fractional, size.test("olt", _INF)), _NAN)
    value = value.where(b.binary("and", size.test("oeq", 1.0), y.math("abs").test("oeq", _INF)), 1.0)
    value = value.where(b.binary("or", x.test("uno", x), y.test("uno", y)), _NAN)
    return value.where(b.binary("or", y.test("oeq", 0.0), x.test("oeq", 1.0)), 1.0)


# -- remainders


def near_fmod(x: Number, y: Number) -> tuple[Number, Number]:
    """x - q y, exact where q is below 2^23, of f64 2^52, and q, the size of x / y without its fraction."""
    size, step = x.math("abs"), y.math("abs")
    quotient = (size / step).math("trunc")
    rest = (-quotient).fma(step, size)
    rest = rest.where(rest.test("olt", 0.0), rest + step)  # the quotient had been rounded up to a whole number
    return rest.where(size.test("olt", step), size).with_sign_of(x), quotient


F32_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "exp2": _exp2,
    "expm1": _expm1,
    "log2": _log2,
    "log1p": _log1p,
    "sinh": _sinh,
    "cosh": _cosh,
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": _atanh,
    "sin": lambda x: _turned(*_reduced_any(x))[0].where(x.test("oeq", 0.0), x),
    "cos": lambda x: _turned(*_reduced_any(x))[1],
    "tan": lambda x: _tan_turned(*_reduced_any(x)).where(x.test("oeq", 0.0), x),
    "atan": _atan,
    "asin": _asin,
    "acos": _acos,
    "pow": _pow,
}
