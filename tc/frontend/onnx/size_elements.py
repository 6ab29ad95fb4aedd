"""Elements of tensors that describe shapes, and their arithmetic: expressions over the symbolic dims.

An integer is an i64 `Expr`, a bool a bool `Expr`, a float a `SizeRatio` of integers. Floats occur where exporters scale sizes
(`floor(cast(n) * 0.5)`); they are kept while the real number is one that float arithmetic would get right too: small constant
factors and quotients of sizes, which nothing is done with but rounding them. What must hold for that, and for integers not to wrap
around, says `demands`.

A function of elements answers None where it cannot say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Union

import ml_dtypes
import numpy as np

from tc.ir.arith import Facts, polynomial, prove, simplify
from tc.ir.dtype import DType, bool_, i64
from tc.ir.expr import Const, Expr, const, equal, floordiv, floormod, is_const, maximum, select

MAX_ELEMENTS = 256
_MAX_DENOMINATOR = 1 << 12
_MAX_NUMERATOR = 1 << 20


@dataclass(frozen=True)
class SizeRatio:
    """The real number num / den, den != 0."""

    num: Expr
    den: Expr = const(1)


Element = Union[Expr, SizeRatio]
Elements = np.ndarray  # of objects, each an Element; its shape is the tensor's


def elements_of_array(array: np.ndarray) -> Elements | None:
    """A small constant as elements; None for a large one, or for floats that are not simple ratios."""
    if array.size > MAX_ELEMENTS:
        return None
    if array.dtype.kind in "iub":
        dtype = bool_ if array.dtype.kind == "b" else i64
        return make_elements([const(v, dtype) for v in array.reshape(-1).tolist()], array.shape)
    if array.dtype.kind != "f":
        return None
    ratios = [_ratio_of_float(v) for v in array.reshape(-1).tolist()]
    return None if None in ratios else make_elements(ratios, array.shape)  # type: ignore[arg-type]


def _ratio_of_float(value: float) -> SizeRatio | None:
    if value != value or value in (float("inf"), float("-inf")):
        return None
    exact = Fraction(value)
    if exact.denominator > _MAX_DENOMINATOR or abs(exact.numerator) > _MAX_NUMERATOR:
        return None
    return SizeRatio(const(exact.numerator), const(exact.denominator))


def make_elements(values: Sequence[Element], shape: Sequence[int]) -> Elements:
    """An array of these elements, in row-major order."""
    result = np.empty(len(values), object)
    result[:] = values
    return result.reshape(tuple(shape))


def is_constant(elements: Elements) -> bool:
    """Whether no element depends on a dim."""
    return all(
        isinstance(e, Const) or (isinstance(e, SizeRatio) and isinstance(e.num, Const) and isinstance(e.den, Const))
        for e in elements.reshape(-1)
    )


def fits(elements: Elements, dtype: DType) -> bool:
    """Whether the constants among the elements are numbers of this type; a sum or product that wraps around is not."""
    if dtype.is_bool:
        return True
    if dtype.is_float:
        return all(_is_number(e, dtype) for e in elements.reshape(-1))
    limits, widest = np.iinfo(dtype.numpy), np.iinfo(np.int64)
    flat = list(elements.reshape(-1))
    whole = [polynomial(e) for e in flat if not isinstance(e, Const) and e.dtype is i64]
    factors = (factor for each in whole for factor in (each.constant, *each.terms.values()))
    return all(limits.min <= e.value <= limits.max for e in flat if isinstance(e, Const)) and all(
        widest.min <= factor <= widest.max for factor in factors
    )


def _is_number(ratio: SizeRatio, dtype: DType) -> bool:
    """Whether a ratio, if it is constant, is a number of this float type."""
    if not isinstance(ratio.num, Const) or not isinstance(ratio.den, Const) or not ratio.den.value:
        return True
    exact = Fraction(int(ratio.num), int(ratio.den))
    with np.errstate(over="ignore"):
        rounded = float(np.asarray(float(exact)).astype(dtype.numpy))
    return np.isfinite(rounded) and Fraction(rounded) == exact


def demands(elements: Elements, dtype: DType) -> list[Expr]:
    """What must hold of the dims for elements to be what arithmetic in `dtype` gives."""
    found: list[Expr] = []
    for element in elements.reshape(-1):
        if isinstance(element, SizeRatio):
            largest = 1 << ml_dtypes.finfo(dtype.numpy).nmant + 1
            for part in (element.num, element.den):
                found += [] if isinstance(part, Const) else [part <= largest, part >= -largest]
        elif not isinstance(element, Const) and dtype.is_int:
            limits = np.iinfo(dtype.numpy)
            found += [element >= int(limits.min)] if dtype.bits < 64 or limits.min == 0 else []
            found += [element <= int(limits.max)] if dtype.bits < 64 else []
    return found


def array_of_elements(elements: Elements, dtype: DType) -> np.ndarray:
    """The numpy array of constant elements."""
    values = [
        int(e.num) / int(e.den) if isinstance(e, SizeRatio) else e.value for e in elements.reshape(-1)  # type: ignore[attr-defined]
    ]
    return np.array(values, dtype.numpy).reshape(elements.shape)


def simplified(element: Element, facts: Facts) -> Element:
    if not isinstance(element, SizeRatio):
        return simplify(element, facts)
    num, den = simplify(element.num, facts), simplify(element.den, facts)
    if isinstance(num, Const) and isinstance(den, Const) and den.value:
        exact = Fraction(int(num), int(den))
        return SizeRatio(const(exact.numerator), const(exact.denominator))
    return SizeRatio(num, den)


def _as_ratios(a: Element, b: Element) -> tuple[SizeRatio, SizeRatio] | None:
    """Both as ratios if one is."""
    if isinstance(a, SizeRatio) and isinstance(b, SizeRatio):
        return a, b
    return None


def is_rounded(ratio: SizeRatio) -> bool:
    """Whether a float in the place of a ratio is not just as large."""
    return not isinstance(ratio.den, Const) or ratio.den.value <= 0 or bool(ratio.den.value & (ratio.den.value - 1))


def add(a: Element, b: Element, facts: Facts) -> Element | None:
    """The sum."""
    ratios = _as_ratios(a, b)
    if ratios is None:
        return a + b  # type: ignore[operator]
    x, y = ratios
    if is_rounded(x) or is_rounded(y):
        return None
    if x.den is y.den:
        return SizeRatio(x.num + y.num, x.den)
    return SizeRatio(x.num * y.den + y.num * x.den, x.den * y.den)


def negative(a: Element, facts: Facts) -> Element:
    """The element with the other sign."""
    return SizeRatio(0 - a.num, a.den) if isinstance(a, SizeRatio) else 0 - a


def sub(a: Element, b: Element, facts: Facts) -> Element | None:
    """The difference."""
    return add(a, negative(b, facts), facts)


def mul(a: Element, b: Element, facts: Facts) -> Element | None:
    """The product."""
    ratios = _as_ratios(a, b)
    if ratios is None:
        return a * b  # type: ignore[operator]
    x, y = ratios
    for one, other in ((x, y), (y, x)):
        if one.num is other.den and not (isinstance(other.den, Const) and is_rounded(other)):  # sizes of what is scaled by their quotient
            return SizeRatio(other.num, one.den)
    return None if is_rounded(x) or is_rounded(y) else SizeRatio(x.num * y.num, x.den * y.den)


def div(a: Element, b: Element, facts: Facts) -> Element | None:
    """The quotient: exact of ratios, that of ONNX of integers."""
    ratios = _as_ratios(a, b)
    if ratios is not None:
        x, y = ratios
        if prove(y.num > 0, facts) is not True or is_rounded(x) or is_rounded(y):
            return None
        return SizeRatio(x.num, y.num) if x.den is y.den else SizeRatio(x.num * y.den, x.den * y.num)
    return divide_toward_zero(a, b, facts)  # type: ignore[arg-type]


def divide_toward_zero(a: Expr, b: Expr, facts: Facts) -> Expr | None:
    """The integer quotient of ONNX's Div; None where nothing is known of the divisor's sign."""
    if isinstance(a, Const) and isinstance(b, Const):
        if int(b) == 0:
            return None
        quotient = abs(int(a)) // abs(int(b))
        return const(quotient if (int(a) < 0) == (int(b) < 0) else -quotient)
    if rounds_down(a, b, facts):
        return floordiv(a, b)
    if prove(b > 0, facts) is not True:
        return None
    if prove(a + b > 0, facts) is True:  # the quotient rounded down is -1 at least, where the other is 0
        return maximum(floordiv(a, b), 0)
    return select(a < 0, 0 - floordiv(0 - a, b), floordiv(a, b))


def rounds_down(a: Expr, b: Expr, facts: Facts) -> bool:
    """Whether the quotient rounded toward zero is known to be the one rounded down."""
    if prove(b > 0, facts) is not True:
        return False
    return prove(a >= 0, facts) is True or prove(equal(floormod(a, b), 0), facts) is True


def mod(a: Element, b: Element, facts: Facts) -> Element | None:
    """The remainder of a quotient that is rounded down, of integers and a positive divisor."""
    if isinstance(a, SizeRatio) or isinstance(b, SizeRatio) or prove(b > 0, facts) is not True:
        return None
    return floormod(a, b)


def floor(a: Element, facts: Facts) -> Element | None:
    """A ratio rounded down, as a ratio."""
    if not isinstance(a, SizeRatio) or prove(a.den > 0, facts) is not True:
        return None
    return SizeRatio(floordiv(a.num, a.den))


def ceil(a: Element, facts: Facts) -> Element | None:
    """A ratio rounded up, as a ratio."""
    if not isinstance(a, SizeRatio) or prove(a.den > 0, facts) is not True:
        return None
    return SizeRatio(floordiv(a.num + (a.den - 1), a.den))


def truncate(a: SizeRatio, facts: Facts) -> Expr | None:
    """A ratio rounded toward zero, as an integer."""
    if is_const(a.den, 1):
        return a.num
    if prove(a.den > 0, facts) is not True or prove(a.num >= 0, facts) is not True:
        return None
    return floordiv(a.num, a.den)


def compare_with(function: Callable[[Expr, Expr], Expr]) -> Callable[[Element, Element, Facts], Element | None]:
    """The comparison of elements that is `function` of integers; decided where that can be proven."""
    def compare(a: Element, b: Element, facts: Facts) -> Element | None:
        ratios = _as_ratios(a, b)
        if ratios is not None:
            x, y = ratios
            if prove(x.den > 0, facts) is not True or prove(y.den > 0, facts) is not True:
                return None
            a, b = x.num * y.den, y.num * x.den
        assert isinstance(a, Expr) and isinstance(b, Expr)
        if a.dtype is bool_:
            a, b = select(a, 1, 0), select(b, 1, 0)
        return decide(function(a, b), facts)

    return compare


def decide(condition: Expr, facts: Facts) -> Expr:
    """`condition`, as a constant when it is proven or refuted."""
    known = prove(condition, facts)
    return condition if known is None else const(known, bool_)


def select_element(condition: Element, a: Element, b: Element, facts: Facts) -> Element | None:
    """`a` where the condition holds, else `b`."""
    assert isinstance(condition, Expr)
    if isinstance(condition, Const):
        return a if condition.value else b
    if isinstance(a, SizeRatio) and isinstance(b, SizeRatio):
        return SizeRatio(select(condition, a.num, b.num), select(condition, a.den, b.den))
    return select(condition, a, b)  # type: ignore[arg-type]


def of_integers(function: Callable[[Any, Any], Expr]) -> Callable[[Element, Element, Facts], Element | None]:
    """`function` for integers; nothing is known of ratios."""
    return lambda a, b, facts: None if isinstance(a, SizeRatio) or isinstance(b, SizeRatio) else function(a, b)
