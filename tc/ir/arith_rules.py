"""The algebra of the simplifier, one rule a line: what is matched, what it becomes, and when.

Sums and products of i64 are polynomials, whose normal form needs no rules; here is everything else. A rule holds for all values of its
variables that satisfy `when`, and a test evaluates every line on random numbers, negative divisors included. Integers are
unbounded; `//` and `%` round down, and give 0 for a divisor of 0; `Div` rounds toward zero.

The kinds of variables, and what each may stand for:

    x y z b q r   any i64 expression            w w2  any integer, of any dtype
    c d e g k m   an i64 literal                v     any float
    p             any bool                      u t   any value at all

Left sides are matched against nodes whose operands are simplified already, first rule first. Sums are matched as follows:

    q * b + r, b matched elsewhere     q * b takes all multiples of b (there must be some), r the rest
    x % c * d + r                      the first term that is a literal times such a remainder, and the rest
    x * g + k over c * g               g is the greatest common divisor of the divisor and all coefficients, and not 1
    x * g + y over c * g               the greatest such g, not 1, for which all that is no multiple of it lies between 0 and g
    x * g + k beside y * g             the positive terms, the constant, the negative terms of the difference of both sides
    z * y + ... // b * (b * y)         any two terms of a sum, in any order
    m, on the right side only          the quotient by c, when the interval of x tells it
    bit_xor(x, y)                      any exclusive or: the rules take bits apart, and equal ones cancel

Conditions `0 < a` and `a != 0` are read off the interval of a; others are proven; those on literals alone are computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tc.ir.bits import bit_xor
from tc.ir.dtype import bool_, f32, i32, i64
from tc.ir.expr import (
    FALSE,
    TRUE,
    Add,
    And,
    Div,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    Max,
    Min,
    Mul,
    Ne,
    Not,
    Or,
    Select,
    Sub,
    Var,
    const,
    neg,
)


@dataclass(frozen=True)
class Rule:
    """`lhs` becomes `rhs` where every condition of `when` holds."""

    lhs: Expr
    rhs: Expr
    when: tuple[Expr, ...] = ()

    def __str__(self) -> str:
        condition = f"  if {', '.join(map(str, self.when))}" if self.when else ""
        return f"{self.lhs}  =>  {self.rhs}{condition}"


x, y, z, b, q, r = (Var(name, i64) for name in "xyzbqr")
c, d, e, g, k, m = (Var(name, i64) for name in "cdegkm")
p = Var("p", bool_)
w, w2, v, u, t = Var("w", i32), Var("w2", i32), Var("v", f32), Var("u", i64), Var("t", i64)

LITERALS = frozenset((c, d, e, g, k, m))
ANY_INTEGER, ANY_FLOAT, ANY_VALUE = frozenset((w, w2)), frozenset((v,)), frozenset((u, t))

ZERO, ONE = const(0), const(1)
INT_ZERO, INT_ONE = const(0, i32), const(1, i32)
FLOAT_ZERO, FLOAT_ONE = const(0.0, f32), const(1.0, f32)

MULTIPLES = q * b + r
REMAINDER_TERM = x % c * d + r
SCALED_SUM = x * g + k
SCALED_DIVISOR = c * g
SCALED_AND_LESS = x * g + y
SCALED_SIDE = y * g

XOR = bit_xor(x, y)
IS_POWER_OF_TWO = (0 < c, Eq(bit_xor(c, c - 1), c * 2 - 1))

DIVISION = (
    Rule(FloorDiv(x, ZERO), ZERO),
    Rule(FloorDiv(x, ONE), x),
    Rule(FloorDiv(ZERO, x), ZERO),
    Rule(FloorDiv(x, c), neg(x) // neg(c), when=(c < 0,)),
    Rule(x // c // b, x // (c * b), when=(0 <= c, 0 <= b)),  # what is divided by 0 is 0
    Rule(x % c // d, x // d % (c // d), when=(0 < d, 0 < c, Eq(c % d, ZERO))),
    Rule(x // x, ONE, when=(0 < x,)),
    Rule(MULTIPLES // b, q + r // b, when=(0 < b,)),
    Rule(x // b, ZERO, when=(0 < b, 0 <= x, x < b)),
    Rule(SCALED_SUM // SCALED_DIVISOR, (x + k // g) // c, when=(0 < g, 0 < c)),
    Rule(x // c, m, when=(0 < c, m * c <= x, x < m * c + c)),
    Rule(SCALED_AND_LESS // SCALED_DIVISOR, x // c, when=(0 < g, 0 < c, 0 <= y, y < g)),
    Rule(XOR // c, bit_xor(x // c, y // c), when=IS_POWER_OF_TWO),
    Rule(Div(x, b), x // b, when=(0 < b, 0 <= x)),
)

REMAINDER = (
    Rule(FloorMod(x, ZERO), ZERO),
    Rule(FloorMod(x, ONE), ZERO),
    Rule(FloorMod(ZERO, x), ZERO),
    Rule(x % x, ZERO),
    Rule(x % c, neg(neg(x) % neg(c)), when=(c < 0,)),
    Rule(MULTIPLES % b, r % b, when=(0 < b,)),
    Rule(REMAINDER_TERM % e, (x * d + r) % e, when=(Ne(c, ZERO), 0 < e, Eq(c * d % e, ZERO))),
    Rule(x % b, x, when=(0 < b, 0 <= x, x < b)),
    Rule(x % c, x - m * c, when=(0 < c, m * c <= x, x < m * c + c)),
    Rule(SCALED_AND_LESS % SCALED_DIVISOR, x % c * g + y, when=(0 < g, 0 < c, 0 <= y, y < g)),
    Rule(XOR % c, bit_xor(x % c, y % c), when=IS_POWER_OF_TWO),
)

SUMS = (  # the parts of numbers taken apart are joined: two terms of a sum become one
    Rule(x % b * y + x // b * (b * y), x * y, when=(Ne(b, ZERO),)),
    Rule(x % b * y + x // b % z * (b * y), x % (b * z) * y, when=(0 < z,)),
    Rule(x // z % b * y + x // (z * b) * (b * y), x // z * y, when=(0 < b,)),
    Rule(x // q % b * y + x // (q * b) % z * (b * y), x // q % (b * z) * y, when=(0 < b, 0 < z)),
    Rule(z * y + x // b * (b * y), x * y, when=(Ne(b, ZERO), Eq(x % b, z))),
    Rule(z % b * y + x // q * (b * y), z * y, when=(0 < b, 0 < q, Eq(q % b, ZERO), Eq(x // (q // b), z))),
    Rule(z % b * y + x // q % r * (b * y), z % (b * r) * y, when=(0 < b, 0 < r, 0 < q, Eq(q % b, ZERO), Eq(x // (q // b), z))),
)

MIN_MAX = (
    Rule(Min(u, u), u),
    Rule(Min(x, y), x, when=(x <= y,)),
    Rule(Min(x, y), y, when=(y <= x,)),
    Rule(Max(u, u), u),
    Rule(Max(x, y), y, when=(x <= y,)),
    Rule(Max(x, y), x, when=(y <= x,)),
)

COMPARISON = (
    Rule(Lt(w, w), FALSE),
    Rule(Lt(x, y), TRUE, when=(x < y,)),
    Rule(Lt(x, y), FALSE, when=(y <= x,)),
    Rule(Lt(x // b, y), TRUE, when=(0 < b, x < y * b)),
    Rule(Lt(SCALED_SUM, SCALED_SIDE), x + k // g < y, when=(0 < g,)),
    Rule(Le(w, w), TRUE),
    Rule(Le(x, y), TRUE, when=(x <= y,)),
    Rule(Le(x, y), FALSE, when=(y < x,)),
    Rule(Le(SCALED_SUM, SCALED_SIDE), x - neg(k) // g <= y, when=(0 < g,)),
    Rule(Eq(w, w), TRUE),
    Rule(Eq(x, y), FALSE, when=(x < y,)),
    Rule(Eq(x, y), FALSE, when=(y < x,)),
    Rule(Eq(x, y), TRUE, when=(x <= y, y <= x)),
    Rule(Eq(SCALED_SUM, SCALED_SIDE), FALSE, when=(0 < g, Ne(k % g, ZERO))),
    Rule(Eq(SCALED_SUM, SCALED_SIDE), Eq(x + k // g, y), when=(0 < g, Eq(k % g, ZERO))),
    Rule(Ne(w, w), FALSE),
    Rule(Ne(x, y), TRUE, when=(x < y,)),
    Rule(Ne(x, y), TRUE, when=(y < x,)),
    Rule(Ne(x, y), FALSE, when=(x <= y, y <= x)),
    Rule(Ne(SCALED_SUM, SCALED_SIDE), TRUE, when=(0 < g, Ne(k % g, ZERO))),
    Rule(Ne(SCALED_SUM, SCALED_SIDE), Ne(x + k // g, y), when=(0 < g, Eq(k % g, ZERO))),
)

BOOLEAN = (
    Rule(Not(TRUE), FALSE),
    Rule(Not(FALSE), TRUE),
    Rule(Not(Not(p)), p),
    Rule(Not(Lt(w, w2)), Le(w2, w)),  # not for floats: a NaN is neither less nor not less
    Rule(Not(Le(w, w2)), Lt(w2, w)),
    Rule(Not(Eq(u, t)), Ne(u, t)),
    Rule(Not(Ne(u, t)), Eq(u, t)),
    Rule(And(p, TRUE), p),
    Rule(And(TRUE, p), p),
    Rule(And(p, FALSE), FALSE),
    Rule(And(FALSE, p), FALSE),
    Rule(And(p, p), p),
    Rule(Or(p, FALSE), p),
    Rule(Or(FALSE, p), p),
    Rule(Or(p, TRUE), TRUE),
    Rule(Or(TRUE, p), TRUE),
    Rule(Or(p, p), p),
    Rule(Select(TRUE, u, t), u),
    Rule(Select(FALSE, u, t), t),
    Rule(Select(p, u, u), u),
)

VALUES = (  # wrapping integers and IEEE floats: x + 0.0 is not x for x = -0.0
    Rule(Mul(w, INT_ONE), w),
    Rule(Mul(INT_ONE, w), w),
    Rule(Div(w, INT_ONE), w),
    Rule(Add(w, INT_ZERO), w),
    Rule(Add(INT_ZERO, w), w),
    Rule(Sub(w, INT_ZERO), w),
    Rule(Mul(v, FLOAT_ONE), v),
    Rule(Mul(FLOAT_ONE, v), v),
    Rule(Div(v, FLOAT_ONE), v),
    Rule(Sub(v, FLOAT_ZERO), v),
)

RULES = (*DIVISION, *REMAINDER, *MIN_MAX, *COMPARISON, *BOOLEAN, *VALUES)
