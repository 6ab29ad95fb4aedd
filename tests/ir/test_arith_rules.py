"""Every rule of the simplifier: true on thousands of random numbers, and of use."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest

from tc.interp import run_prim_func
from tc.ir.arith import Facts, evaluate, polynomial, simplify
from tc.ir.arith_rules import ANY_FLOAT, ANY_INTEGER, ANY_VALUE, LITERALS, RULES, SUMS, Rule
from tc.ir.dtype import DType, f16, f32, i8, i32, i64, u8
from tc.ir.expr import (
    Add,
    Const,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Lt,
    Mul,
    Ne,
    Var,
    const,
)
from tc.ir.matching import compile_rule, first_rule, first_sum_rule, operands_of
from tc.ir.node import Node, substitute, transform, walk
from tc.te import compute, create_prim_func, placeholder

ALL = (*RULES, *SUMS)
WANTED = 2000


def variables(rule: Rule) -> list[Var]:
    found = (node for part in (rule.lhs, rule.rhs, *rule.when) for node in walk(part) if isinstance(node, Var))
    return list(dict.fromkeys(found))


def random_value(var: Var, rng: random.Random) -> int:
    if var.dtype.is_bool:
        return rng.random() < 0.5
    return rng.randint(-4, 4) if rng.random() < 0.5 else rng.randint(-40, 40)


def speaks_of_floats(rule: Rule) -> bool:
    return any(var in ANY_FLOAT for var in variables(rule))


@pytest.mark.parametrize("rule", [rule for rule in ALL if not speaks_of_floats(rule)], ids=str)
def test_a_rule_holds_for_all_integers_that_satisfy_its_conditions(rule: Rule) -> None:
    rng = random.Random(zlib.crc32(str(rule).encode()))
    names = variables(rule)
    satisfied = 0
    for _ in range(400_000):
        env = {var: random_value(var, rng) for var in names}
        for condition in rule.when:  # few numbers drawn apart are equal
            if isinstance(condition, Eq) and isinstance(condition.rhs, Var):
                env[condition.rhs] = evaluate(condition.lhs, env)
        if not all(evaluate(condition, env) for condition in rule.when):
            continue
        assert evaluate(rule.lhs, env) == evaluate(rule.rhs, env), env
        satisfied += 1
        if satisfied == WANTED or (not names and satisfied):
            return
    assert satisfied >= WANTED, f"only {satisfied} of the numbers tried satisfy the conditions"


SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-7, 3.5, -2.25]


def values_of(dtype: DType, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return np.concatenate([SPECIAL, SPECIAL[::-1], rng.standard_normal(100) * 100]).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return np.append(rng.integers(info.min, info.max, 118, endpoint=True), [info.min, info.max]).astype(dtype.numpy)


def in_dtype(template: Expr, loads: dict[Node, Node], dtype: DType) -> Expr:
    """A template on loads of `dtype`, its literals (not the bool ones) of `dtype` as well."""

    def convert(node: Node) -> Node | None:
        return const(node.value, dtype) if isinstance(node, Const) and not node.dtype.is_bool else None

    return transform(substitute(transform(template, convert), loads), lambda node: None)


@pytest.mark.parametrize("dtype", [f32, f16, i32, i8, u8], ids=str)
@pytest.mark.parametrize("rule", [r for r in RULES if set(variables(r)) & (ANY_FLOAT | ANY_INTEGER | ANY_VALUE)], ids=str)
def test_a_rule_for_values_keeps_every_bit_of_every_dtype(rule: Rule, dtype: DType) -> None:
    names = variables(rule)
    if any((var in ANY_FLOAT and not dtype.is_float) or (var in ANY_INTEGER and dtype.is_float) for var in names):
        return
    inputs = {var: placeholder((120,), dtype, var.name) for var in names if not var.dtype.is_bool}
    flags = {var: placeholder((120,), i32, var.name) for var in names if var.dtype.is_bool}
    arrays = [values_of(dtype, k) for k in range(len(inputs))] + [np.arange(120, dtype=np.int32) % 2] * len(flags)

    def results(template: Expr) -> np.ndarray:
        def element(i: Var) -> Expr:
            loads: dict[Node, Node] = {var: x[i] for var, x in inputs.items()}
            loads |= {var: Ne(x[i], const(0, i32)) for var, x in flags.items()}
            return in_dtype(template, loads, dtype)

        every = [*inputs.values(), *flags.values()]
        return run_prim_func(create_prim_func("f", every, [compute((120,), element, "y")]), arrays)[0]

    left, right = results(rule.lhs), results(rule.rhs)

    both_nan = (left != left) & (right != right)
    same = left.view(f"u{left.itemsize}") == right.view(f"u{right.itemsize}")
    assert (same | both_nan).all()


def random_operand(var: Var, rng: random.Random, facts: list[Facts]) -> Expr:
    """What a variable of a rule might stand for: a literal, or a variable of known or unknown range, or a little more."""
    if var in LITERALS:
        return const(rng.choice([2, 3, 4, 8, 12, 16, -3, -8, 0, 5]))
    dtype = i32 if var in ANY_INTEGER else f32 if var in ANY_FLOAT else var.dtype
    atom = Var(f"n{rng.randrange(10**6)}", dtype)
    if dtype != i64:
        return atom
    low = rng.choice([None, 0, 0, 1, 3, -5])
    high = rng.choice([None, 3, 7, 5]) if low is not None else None
    facts[0] = facts[0].with_bounds(atom, low, high)
    shape = rng.random()
    if shape < 0.2:
        return const(rng.randint(-9, 9))
    more = [Mul(atom, const(4)), Add(atom, const(3)), FloorDiv(atom, const(6)), FloorMod(atom, const(48))]
    return atom if shape < 0.8 else rng.choice(more)


def fires(rule: Rule, rng: random.Random) -> bool:
    """Whether the engine chooses this rule for a random instance of its left side."""
    facts = [Facts()]
    names = [node for node in walk(rule.lhs) if isinstance(node, Var)]
    stands_for: dict[Node, Node] = {var: random_operand(var, rng, facts) for var in dict.fromkeys(names)}
    for condition in rule.when:  # a variable that is to equal something, or to be a multiple
        match condition:
            case Eq(lhs=FloorMod(lhs=Var() as multiple, rhs=Var() as part), rhs=Const(value=0)) if multiple not in LITERALS:
                stands_for[multiple] = stands_for[part] * const(rng.choice([2, 3]))
        if isinstance(condition, Eq) and condition.rhs in stands_for:
            stands_for[condition.rhs] = substitute(condition.lhs, stands_for)
        if isinstance(condition, Lt) and isinstance(condition.rhs, Mul):  # or one that is in the range of a loop over a product
            facts[0] = facts[0].assume(substitute(condition, stands_for))
    instance = substitute(rule.lhs, stands_for)
    if rule in SUMS:
        assert isinstance(instance, Add)
        first, second = (polynomial(simplify(term, facts[0])) for term in (instance.lhs, instance.rhs))
        joined = first_sum_rule(first.plus(second), facts[0])
        return joined is not None and joined[0] is rule
    operands = tuple(simplify(operand, facts[0]) for operand in operands_of(instance))
    if all(isinstance(operand, Const) for operand in operands) and len(operands) == 2:
        return False
    found = first_rule(type(instance), operands, facts[0])
    return found is not None and found[0] is rule


@pytest.mark.parametrize("rule", ALL, ids=str)
def test_every_rule_is_chosen_for_some_expression(rule: Rule) -> None:
    rng = random.Random(1)

    assert any(fires(rule, rng) for _ in range(20_000))


def test_a_rule_that_uses_what_its_left_side_does_not_say_is_refused() -> None:
    x, y = Var("x"), Var("y")

    with pytest.raises(AssertionError, match="right side only"):
        compile_rule(Rule(FloorDiv(x, const(3)), y))


def test_division_by_negative_numbers_is_simplified() -> None:
    n = Var("n")
    facts = Facts().with_bounds(n, 0, 7)

    assert simplify(FloorDiv(n, const(-8)) * 8, facts) is not simplify(const(0))
    assert simplify(FloorMod(n * 8 + 3, const(-4))) is const(-1)
    assert evaluate(simplify(FloorDiv(n * 6, const(-3))), {n: 5}) == -10


def test_a_remainder_of_a_negative_divisor_is_not_joined() -> None:
    """x % 3 + 3 * (x // 3 % -2) is not x % -6."""
    n = Var("n")
    expr = FloorMod(n, const(3)) + FloorMod(FloorDiv(n, const(3)), const(-2)) * 3

    for value in range(-12, 12):
        assert evaluate(simplify(expr), {n: value}) == evaluate(expr, {n: value})
