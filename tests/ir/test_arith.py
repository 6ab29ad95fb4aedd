"""The simplifier and the prover, against plain evaluation on random integers."""

from __future__ import annotations

import random

import pytest

from tc.ir.arith import Facts, bounds, equal_shapes, evaluate, linear_coefficients, prove, simplify
from tc.ir.bits import bit_xor
from tc.ir.expr import (
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    Max,
    Min,
    Ne,
    Select,
    Var,
    add,
    call,
    const,
    equal,
    minimum,
    mul,
    sub,
)
from tc.ir.node import walk
from tests.draws import some_of

N, M, P, J = Var("n"), Var("m"), Var("i"), Var("j")
VARIABLES = (N, M, P, J)


def random_expr(rng: random.Random, depth: int) -> Expr:
    """Any integer expression; divisors may be negative or zero."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(VARIABLES) if rng.random() < 0.6 else const(rng.randint(-9, 9))
    kind = rng.choice(["add", "sub", "mul", "//", "%", "min", "max", "select", "xor"])
    a, b = random_expr(rng, depth - 1), random_expr(rng, depth - 1)
    match kind:
        case "add":
            return add(a, b)
        case "sub":
            return sub(a, b)
        case "mul":
            return mul(a, b)
        case "//":
            return FloorDiv(a, b)
        case "%":
            return FloorMod(a, b)
        case "min":
            return Min(a, b)
        case "max":
            return Max(a, b)
        case "xor":
            return bit_xor(a, b) if rng.random() < 0.5 else call("bit_xor", a, b)
    condition = rng.choice([Lt, Le, Eq, Ne])(random_expr(rng, depth - 1), random_expr(rng, depth - 1))
    return Select(condition, a, b)


@pytest.mark.parametrize("seed", some_of(range(8), quick=range(3)))
def test_simplified_expressions_and_bounds_agree_with_evaluation(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(400):
        expr = random_expr(rng, 4)
        low = {v: rng.randint(-5, 5) for v in VARIABLES}
        high = {v: low[v] + rng.randint(0, 8) for v in VARIABLES}
        facts = Facts()
        for v in VARIABLES:
            facts = facts.with_bounds(v, low[v], high[v])

        simple, limits = simplify(expr, facts), bounds(expr, facts)

        for _ in range(5):
            env = {v: rng.randint(low[v], high[v]) for v in VARIABLES}
            value = evaluate(expr, env)
            assert evaluate(simple, env) == value, f"{expr} became {simple} at {env}"
            assert limits.lo is None or limits.lo <= value
            assert limits.hi is None or value <= limits.hi


@pytest.mark.parametrize("seed", range(4))
def test_what_is_proven_holds_under_symbolic_ranges(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        facts = Facts().with_bounds(N, 1, 12).with_bounds(M, 0, 7).with_range(P, N).with_range(J, add(N, M))
        condition = rng.choice([Lt, Le, Eq, Ne])(random_expr(rng, 3), random_expr(rng, 3))

        known = prove(condition, facts)

        if known is None:
            continue
        for _ in range(12):
            n, m = rng.randint(1, 12), rng.randint(0, 7)
            env = {N: n, M: m, P: rng.randrange(n), J: rng.randrange(n + m)}
            assert bool(evaluate(condition, env)) is known, f"{condition} at {env}"


def positive(*variables: Var) -> Facts:
    facts = Facts()
    for var in variables:
        facts = facts.with_bounds(var, 1, None)
    return facts


def test_numbers_taken_apart_are_put_together() -> None:
    facts = positive(N, M).with_bounds(P, 0, None)

    assert simplify(P // 8 * 8 + P % 8, facts) is P
    assert simplify(P // 48 * 48 + P // 12 % 4 * 12 + P % 12, facts) is P
    assert simplify((P // (N * 4)) * (N * 4) + (P // N) % 4 * N + P % N, facts) is P


def test_fused_indices_split_again() -> None:
    facts = positive(N).with_range(P, N).with_bounds(J, 0, 63)

    assert simplify((J * N + P) // N, facts) is J
    assert simplify((J * N + P) % N, facts) is P
    assert simplify((P * 64 + J) // 64, facts) is P


def test_a_tile_that_divides_stays_in_range() -> None:
    inner, outer = Var("ii"), Var("io")
    facts = Facts().with_bounds(N, 0, None).with_bounds(inner, 0, 15).with_range(outer, N // 16)

    assert prove(outer * 16 + inner < N, facts) is True


def test_a_tile_that_may_stick_out_is_not_proven() -> None:
    inner, outer = Var("ii"), Var("io")
    facts = Facts().with_bounds(N, 0, None).with_bounds(inner, 0, 15).with_range(outer, (N + 15) // 16)

    assert prove(outer * 16 + inner < N, facts) is None


def test_a_tile_that_begins_early_stays_in_range() -> None:
    inner, outer = Var("ii"), Var("io")
    facts = Facts().assume(N >= 16).with_bounds(inner, 0, 15).with_range(outer, (N + 15) // 16)
    index = minimum(outer * 16, N - 16) + inner

    assert prove(index < N, facts) is True
    assert prove(index >= 0, facts) is True
    assert prove(index >= 0, Facts().with_bounds(inner, 0, 15).with_range(outer, (N + 15) // 16)) is None


def test_inside_a_loop_no_factor_of_its_extent_is_zero() -> None:
    facts = Facts().with_bounds(N, 0, None).with_bounds(M, 0, None)

    assert simplify((P // N) * N + P % N, facts.with_range(P, M * N)) is P
    assert simplify((P // N) * N + P % N, facts.with_range(J, (M * N + 13) // 14).with_range(P, M * N)) is P
    assert simplify((P // N) * N + P % N, facts.with_range(J, (M * N + 13) // 14)) is P
    assert simplify((P // N) * N + P % N, facts.with_range(J, (M * N + 14) // 14)) is not P
    assert prove(N > 0, facts.with_range(J, M * N // 14)) is True
    assert prove(N > 0, facts.with_range(J, M + N)) is None


def test_convolution_shapes_are_recognised() -> None:
    assert prove(equal((N + 2 - 3) // 1 + 1, N)) is True
    assert equal_shapes((N * 4 // 4, M), (N, M)) is True
    assert equal_shapes((N,), (M,)) is None
    assert equal_shapes((N,), (N + 1,)) is False


def test_assumed_conditions_are_used() -> None:
    facts = Facts().assume(P < N)

    assert prove(P + 1 <= N, facts) is True
    assert prove(P < N, Facts()) is None


def test_conditions_on_tiles_say_where_elements_lie() -> None:
    tile, lane = Var("tile"), Var("lane")
    facts = Facts().with_bounds(lane, 0, 7).assume(P * 2 + tile < 6)

    assert prove(P * 16 + tile * 8 + lane < 48, facts) is True
    assert prove(P * 16 + tile * 8 + lane < 47, facts) is None
    assert prove(P * 16 + tile * 8 + lane * 2 < 48, facts) is None


def test_linear_coefficients_are_found_or_declined() -> None:
    form = linear_coefficients(P * 4 + J * N + 7, [P, J])
    assert form is not None
    coefficients, rest = form
    assert coefficients == {P: const(4), J: N} and rest is const(7)
    assert linear_coefficients(P * J, [P, J]) is None
    assert linear_coefficients(P // 2, [P]) is None


def test_a_condition_that_does_not_help_hides_none_that_does() -> None:
    rows, tile, inside = Var("b") * Var("s"), Var("i"), Var("j")
    few_left = (rows + 12) // 13 * 13 <= (rows + 8) // 9 * 9
    facts = positive(*(node for node in walk(rows) if isinstance(node, Var)))
    index = minimum(tile * 13, rows - 13) + inside

    for conditions in ([rows >= 13], [rows >= 13, few_left], [few_left, rows >= 13]):
        known = facts
        for condition in conditions:
            known = known.assume(condition)
        known = known.with_range(tile, (rows + 12) // 13).with_bounds(inside, 0, 12)
        assert prove(index >= 0, known) is True and prove(index < rows, known) is True
        assert prove(index >= 1, known) is not True


def test_exclusive_ors_cancel_and_are_taken_apart_by_powers_of_two() -> None:
    facts = Facts().with_bounds(N, 0, 63).with_bounds(M, 0, 63)
    mixed = call("bit_xor", call("bit_xor", N, const(5)), M)

    assert simplify(call("bit_xor", M, call("bit_xor", const(5), mixed)), facts) is N
    assert simplify(call("bit_xor", N, N), facts) is const(0)
    assert simplify(mixed // 64, facts) is const(0)
    assert simplify((call("bit_xor", N % 8, M // 8) * 8 + N // 8) // 8, facts) is bit_xor(N % 8, M // 8)
    assert simplify(bit_xor(N * 4 + 1, M * 4) % 4, facts) is const(1)
    assert bounds(mixed, facts) == (0, 63)
    assert bounds(bit_xor(N, P), facts) == (None, None)


def test_exclusive_ors_of_sums_are_taken_apart_by_what_is_known() -> None:
    facts = Facts().with_bounds(N, 0, 1).with_bounds(M, 0, 1)
    mixed = call("bit_xor", call("bit_xor", P, J) * 2 + N, J * 2 + M)

    assert simplify(mixed, facts) is simplify(P * 2 + bit_xor(N, M))
    assert evaluate(simplify(mixed), {N: 5, M: 2, P: 3, J: 6}) == (((3 ^ 6) * 2 + 5) ^ (6 * 2 + 2))


def test_rows_of_a_tile_of_a_number_of_tiles_are_proven_to_be_in_range() -> None:
    """A fused loop over tiles of rows and of columns: its quotient is a tile of rows, of which there are as many as its bound says."""
    rows = mul(FloorDiv(add(M, 63), const(64)), 64)
    facts = Facts().with_bounds(M, 1, None).with_range(P, rows).with_range(J, const(64))

    assert prove(mul(FloorDiv(P, const(64)), 64) + J < rows, facts) is True
    assert prove(mul(FloorDiv(P, const(64)), 64) + J + 1 < rows, facts) is None
    assert prove(mul(FloorDiv(P, const(32)), 32) + J < rows, facts) is None
    for m in range(1, 200, 7):
        count = (m + 63) // 64 * 64
        assert max(p // 64 * 64 + 63 for p in range(count)) < count
        assert max(p // 32 * 32 + 63 for p in range(count)) >= count


def test_a_number_of_tiles_bounds_what_is_left_of_their_product() -> None:
    n, v = Var("n"), Var("v")
    tiles = (n + 63) // 64
    facts = Facts().with_bounds(n, 0, None).with_range(v, tiles * 508)

    assert prove(Lt(v // (tiles * 127), const(4)), facts) is True
    assert prove(Lt(v // (tiles * 127), const(3)), facts) is None
    assert prove(Lt(v // (tiles * 127) * 128 + 127, const(512)), facts) is True
    assert prove(Lt(v // tiles, const(508)), Facts().with_bounds(n, 0, None)) is None


def test_no_factor_of_a_number_of_tiles_is_zero_where_there_is_one() -> None:
    n, m, batch, v, t = (Var(name) for name in ("n", "m", "batch", "v", "t"))
    facts = Facts()
    for dim in (n, m, batch):
        facts = facts.with_bounds(dim, 0, None)
    tiles = (n * m + 255) // 256
    inside = facts.with_range(v, tiles * batch).with_range(t, const(256))

    assert prove(Lt(const(0), batch * n * m), inside) is True
    assert prove(Lt(v % tiles * 256 + t, tiles * 256), inside) is True
    assert prove(Lt(v % tiles * 256 + t, tiles * 256), facts.with_range(t, const(256))) is None
    assert prove(Lt(const(0), n), facts.with_range(v, (n + 256) // 256)) is None
