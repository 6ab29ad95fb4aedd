"""The simplifier and the prover for integer expressions.

Integer arithmetic (i64) is brought to a canonical polynomial (see `polynomial`); division, remainder, minimum, comparisons and what else
there is are rewritten by the rules of `arith_rules`, under what is known of their operands: intervals, and the symbolic ranges of
loop variables (see `bounds`, `prover`). Everything here reads integers as unbounded; kernel values of other dtypes are rewritten
by exact identities only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tc.errors import TcError
from tc.ir.bits import bit_xor, is_xor, xor_operands
from tc.ir.bounds import EMPTY, UNBOUNDED, Bounds, Facts, VarFact, bounds
from tc.ir.dtype import i64, int_range
from tc.ir.expr import (
    Add,
    And,
    BinaryExpr,
    Cast,
    CompareExpr,
    Const,
    Div,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    MathCall,
    Mul,
    Narrow,
    Not,
    Select,
    Sub,
    Var,
    const,
    logical_not,
    neg,
    recast,
    unwrapped,
)
from tc.ir.matching import make, multiply, recombine
from tc.ir.node import cached_on_node, children, map_children, walk
from tc.ir.polynomial import Polynomial, atoms_of_polynomial, linear_coefficients, polynomial, slack_of
from tc.ir.samples import OPERATIONS, fails_somewhere
from tc.ir.uses import reads_memory

__all__ = [
    "EMPTY",
    "UNBOUNDED",
    "Bounds",
    "Facts",
    "Polynomial",
    "VarFact",
    "atoms_of_polynomial",
    "bounds",
    "equal_shapes",
    "evaluate",
    "linear_coefficients",
    "polynomial",
    "prove",
    "proves",
    "simplify",
    "slack_of",
]


REMEMBERED = 1 << 15
"""Expressions of which is remembered what they became under the same facts."""


def simplify(expr: Expr, facts: Facts | None = None) -> Expr:
    """An equal expression in canonical form. Floats are rewritten by exact identities only."""
    facts = facts if facts is not None else EMPTY
    if isinstance(expr, (Const, Var)):
        return expr
    found = facts.simplified.get(expr)
    if found is None:
        found = _simplify(expr, facts) if asks_facts(expr) else _simplified_alone(expr)
        if found is None:
            found = expr
        if len(facts.simplified) > REMEMBERED:
            facts.simplified.clear()
        facts.simplified[expr] = found
        facts.simplified[found] = found
    return found


_TERMS = frozenset((Add, Sub, Mul, Cast, Narrow, Load, MathCall))
"""Nodes that no rule rewrites by what is known of their operands, unless a cast takes a sum that wraps back to i64, or a call is an
exclusive or of sums. Nor are quotients of floats."""


@cached_on_node
def asks_facts(expr: Expr) -> bool:
    """Whether what an expression becomes may depend on facts: not that of sums and products of variables, and of loads at such indices."""
    cls = type(expr)
    if cls is Const or cls is Var:
        return False
    if (cls not in _TERMS and not (cls is Div and expr.dtype.is_float)) or (cls is Cast and expr.dtype is i64) or is_xor(expr):
        return True
    return any(asks_facts(child) for child in children(expr) if isinstance(child, Expr))


@cached_on_node
def _simplified_alone(expr: Expr) -> Expr | None:
    """What an expression becomes whatever is known; None for itself."""
    found = _simplify(expr, EMPTY)
    return None if found is expr else found


def _simplify(expr: Expr, facts: Facts) -> Expr:
    if expr.dtype == i64 and isinstance(expr, (Add, Sub, Mul)):
        return recombine(_simplified_polynomial(expr, facts), facts).to_expr()
    match expr:
        case And(lhs=a, rhs=b):
            first = simplify(a, facts)
            known = facts if reads_memory(first) else facts.assume(first)  # as of a choice below
            return make(And, (first, simplify(b, known)), facts)
        case Not(operand=a):
            return make(Not, (simplify(a, facts),), facts)
        case Select(condition=c, true_value=a, false_value=b):
            condition = simplify(c, facts)
            if isinstance(condition, Const):
                return simplify(a if condition.value else b, facts)
            if reads_memory(condition):  # a check below stands for all data, not for those that this condition lets through
                return make(Select, (condition, simplify(a, facts), simplify(b, facts)), facts)
            yes, no = simplify(a, facts.assume(condition)), simplify(b, facts.assume(logical_not(condition)))
            return make(Select, (condition, yes, no), facts)
        case FloorDiv(lhs=a, rhs=Const() as b) | FloorMod(lhs=a, rhs=Const() as b) if b.value < 0 and not _never_wraps(neg(a), facts):
            return type(expr)(simplify(a, facts), b)
        case CompareExpr(lhs=a, rhs=b):
            sides = simplify(a, facts), simplify(b, facts)
            return _without_new_wraps(type(expr), sides, make(type(expr), sides, facts), facts)
        case BinaryExpr(lhs=a, rhs=b):
            return make(type(expr), (simplify(a, facts), simplify(b, facts)), facts)
        case Cast(operand=a):
            made = recast(expr, simplify(a, facts))
            plain = unwrapped(made)
            return simplify(plain, facts) if plain is not None and _never_wraps(plain, facts) else made
        case Load(buffer=buffer, indices=indices):
            return Load(buffer, tuple(simplify(index, facts) for index in indices))
        case MathCall(name=name, args=args, dtype=dtype):
            simple = tuple(simplify(arg, facts) for arg in args)
            return _split_xor(bit_xor(*simple), facts) if is_xor(expr) else MathCall(name, simple, dtype)
    return map_children(expr, lambda child: simplify(child, facts) if isinstance(child, Expr) else child)


def _split_xor(expr: Expr, facts: Facts) -> Expr:
    """The exclusive or of sums, by the upper and the lower bits where more of it cancels so:

    bit_xor(bit_xor(x, y) * 2 + a, y * 2 + b)  =>  x * 2 + bit_xor(a, b), for a and b of one bit.
    """
    if not is_xor(expr) or not any(isinstance(part, Add) for part in xor_operands(expr)):
        return expr
    places = {abs(factor) for part in xor_operands(expr) for factor in polynomial(part).terms.values()}
    for factor in sorted(place for place in places if place > 1 and place & (place - 1) == 0):
        upper, lower = (
            _split_xor(bit_xor(*(make(cls, (part, const(factor)), facts) for part in xor_operands(expr))), facts)
            for cls in (FloorDiv, FloorMod)
        )
        split = simplify(upper * factor + lower, facts)
        if _num_xors(split) < _num_xors(expr):
            return split
    return expr


def _num_xors(expr: Expr) -> int:
    return sum(isinstance(node, MathCall) and is_xor(node) for node in walk(expr))


def _never_wraps(expr: Expr, facts: Facts) -> bool:
    """Whether a sum or product in i64 is known to be in its range: by its interval, or because it is made of dims and indices alone."""
    if not any(isinstance(node, (Load, MathCall)) or (isinstance(node, Cast) and node.operand.dtype.is_float) for node in walk(expr)):
        return True
    alone = facts if facts.ranges is None else facts.ranges  # a condition on a sum is on what is left of it where it wraps
    found, (low, high) = bounds(expr, alone), int_range(i64)
    return found.lo is not None and found.hi is not None and low <= found.lo and found.hi <= high


def _without_new_wraps(cls: type[CompareExpr], sides: tuple[Expr, Expr], made: Expr, facts: Facts) -> Expr:
    """What a rule made of the comparison of two sides; itself where neither side wraps and a sum that the rule made may: -2 < x[i] is not
    0 < x[i] + 2 where x[i] is the largest number."""
    if not isinstance(made, CompareExpr) or (made.lhs is sides[0] and made.rhs is sides[1]) or made.lhs.dtype != i64:
        return made

    def may_wrap(side: Expr) -> bool:
        return isinstance(side, (Add, Sub, Mul)) and not _never_wraps(side, facts)

    is_new = (may_wrap(made.lhs) or may_wrap(made.rhs)) and not any(map(may_wrap, sides))
    return cls(*sides) if is_new else made


def _simplified_polynomial(expr: Expr, facts: Facts) -> Polynomial:
    """The polynomial of an i64 expression, its atoms simplified."""
    match expr:
        case Const(value=value):
            return Polynomial({}, int(value))
        case Add(lhs=a, rhs=b):
            return _simplified_polynomial(a, facts).plus(_simplified_polynomial(b, facts))
        case Sub(lhs=a, rhs=b):
            return _simplified_polynomial(a, facts).minus(_simplified_polynomial(b, facts))
        case Mul(lhs=a, rhs=b):
            return multiply(_simplified_polynomial(a, facts), _simplified_polynomial(b, facts))
        case Var():
            return Polynomial({(expr,): 1})
    return polynomial(simplify(expr, facts))


def prove(condition: Expr, facts: Facts | None = None) -> bool | None:
    """True or False when `condition` is known to hold or to fail, else None."""
    result = simplify(condition, facts)
    return bool(result.value) if isinstance(result, Const) else None


def proves(condition: Expr, facts: Facts) -> bool:
    """Whether `prove` is True; faster where numbers refute it."""
    if isinstance(condition, Const):
        return bool(condition.value)
    return not fails_somewhere(condition, facts) and prove(condition, facts) is True


def equal_shapes(a: Sequence[Expr], b: Sequence[Expr], facts: Facts | None = None) -> bool | None:
    """Whether two shapes are the same; None when that depends on the dims."""
    if len(a) != len(b):
        return False
    results = [True if x is y else prove(Eq(x, y), facts) for x, y in zip(a, b, strict=True)]
    if False in results:
        return False
    return None if None in results else True


def evaluate(expr: Expr, env: Mapping[Var, int]) -> int:
    """The value of an integer or bool expression without loads, given its variables."""
    match expr:
        case Const(value=value):
            return value  # type: ignore[return-value]
        case Var():
            if expr not in env:
                raise TcError(f"no value for {expr.name}")
            return env[expr]
        case Div(lhs=a, rhs=b):
            x, y = evaluate(a, env), evaluate(b, env)
            return 0 if y == 0 else abs(x) // abs(y) * (1 if (x >= 0) == (y > 0) else -1)
        case Select(condition=c, true_value=a, false_value=b):
            return evaluate(a if evaluate(c, env) else b, env)
        case Not(operand=a):
            return not evaluate(a, env)
        case Cast(operand=a):
            return int(evaluate(a, env))
        case MathCall(args=(a, b)) if is_xor(expr):
            return evaluate(a, env) ^ evaluate(b, env)
        case BinaryExpr(lhs=a, rhs=b) | CompareExpr(lhs=a, rhs=b):
            return OPERATIONS[type(expr)](evaluate(a, env), evaluate(b, env))
    raise TcError(f"cannot evaluate {expr}")
