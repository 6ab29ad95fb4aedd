"""Iterations of a loop are told apart by what guards inside leave out: no more than what is true of all programs."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.ir.arith import evaluate
from tc.ir.expr import Var
from tc.ir.loop import For, If, PrimFunc, Seq, Stmt, Store
from tc.ir.parser import parse_prim_func
from tc.schedule.step import Schedule


def program(lines: list[str]) -> PrimFunc:
    body = "".join(f"    {line}\n" for line in lines)
    return parse_prim_func(f"@loops\ndef f(X: f32[m], Y: f32[n, c], m: i64, n: i64, c: i64):\n    outputs(2)\n{body}")


def is_accepted(func: PrimFunc, kind: str = "parallel") -> bool:
    try:
        getattr(Schedule(func), kind)("i")
    except ScheduleError as error:
        assert f"{kind}: an iteration of loop i " in str(error)
        return False
    return True


TILES = ["for i in range(n):", "    for a in range(14):", "        for b in range(2):", "            for d in range(16):"]
ROWS = ["for i in range(n):", "    for o in range((c + 31) // 32):", "        for j in range(32):"]


@pytest.mark.parametrize(
    ("loops", "guard", "index"),
    [
        (TILES, "a * 32 + b * 16 + d < 432", "i * 3 + (a * 2 + b) // 9"),
        (TILES, "a * 32 + b * 16 + d < 432", "i * 27 + a * 2 + b"),
        (TILES, "a * 32 + b * 16 + d <= 415", "i * 26 + a * 2 + b"),
        (TILES, "16 <= a * 32 + b * 16 + d", "i * 27 + a * 2 + b"),
        (TILES, "a < 7 and b < 1", "i * 13 + a * 2 + b"),
        (ROWS, "o * 32 + j < c", "i * c + o * 32 + j"),
        (ROWS, "o * 32 + j + 1 < c", "i * (c - 1) + o * 32 + j"),
    ],
)
def test_iterations_under_a_guard_are_apart_by_what_it_leaves(loops: list[str], guard: str, index: str) -> None:
    indent = " " * 4 * len(loops)

    assert is_accepted(program([*loops, f"{indent}if {guard}:", f"{indent}    X[{index}] = 1.0"]))


@pytest.mark.parametrize(
    ("loops", "guard", "index"),
    [
        (TILES, "a * 32 + b * 16 + d < 433", "i * 3 + (a * 2 + b) // 9"),
        (TILES, "a * 32 + b * 16 + d < 433", "i * 27 + a * 2 + b"),
        (TILES, "a * 32 + b * 16 + d <= 416", "i * 26 + a * 2 + b"),
        (TILES, "15 <= a * 32 + b * 16 + d", "i * 27 + a * 2 + b"),
        (TILES, "a < 8 and b < 1", "i * 13 + a * 2 + b"),
        (TILES, "a * 32 + b * 16 + d < 432 or b < 1", "i * 3 + (a * 2 + b) // 7"),
        (TILES, "not a * 32 + b * 16 + d < 16", "i * 3 + (a * 2 + b) // 9"),
        (ROWS, "o * 32 + j <= c", "i * c + o * 32 + j"),
        (ROWS, "o * 32 + j < c + 1", "i * c + o * 32 + j"),
        (ROWS, "o * 31 + j < c", "i * c + o * 32 + j"),
    ],
)
def test_iterations_that_a_guard_does_not_keep_apart_are_refused(loops: list[str], guard: str, index: str) -> None:
    indent = " " * 4 * len(loops)

    assert not is_accepted(program([*loops, f"{indent}if {guard}:", f"{indent}    X[{index}] = 1.0"]))


def test_a_guard_on_one_access_says_nothing_of_another() -> None:
    first = ["for i in range(n):", "    for j in range(32):", "        if j < 8:", "            X[i * 8 + j] = 1.0"]

    assert is_accepted(program(first))
    assert not is_accepted(program([*first, "        X[i * 8 + j] = 2.0"]))
    assert not is_accepted(program([*first, "        else:", "            X[i * 8 + j] = 2.0"]))


def test_a_guard_that_the_loop_changes_says_nothing() -> None:
    lines = ["for i in range(n):", "    for j in range(32):", "        if cast(X[0], i64) + j < 8:", "            X[i * 8 + j] = 1.0"]

    assert not is_accepted(program(lines))


def touched(stmt: Stmt, env: dict[Var, int]) -> set[int]:
    """The elements that a statement stores to."""
    match stmt:
        case For(var=var, extent=extent, body=body):
            return set().union(*(touched(body, {**env, var: value}) for value in range(int(evaluate(extent, env)))))
        case Seq(stmts=stmts):
            return set().union(*(touched(inner, env) for inner in stmts))
        case If(condition=condition, then_body=then_body, else_body=else_body):
            taken = then_body if evaluate(condition, env) else else_body
            return set() if taken is None else touched(taken, env)
        case Store(indices=(index,)):
            return {int(evaluate(index, env))}
    raise AssertionError(stmt)


def random_program(rng: np.random.Generator) -> PrimFunc:
    """A loop over i around one or two guarded stores under three loops, with as many elements for an iteration as it needs, or about so."""
    lines = [f"for i in range({rng.choice(['n', '6'])}):"]
    for store in range(int(rng.integers(1, 3))):
        names, extents = [f"{name}{store}" for name in "abd"], [int(each) for each in rng.integers(1, 6, 3)]
        a, b, d = names
        wide, narrow = int(rng.integers(1, 5)), int(rng.integers(1, 6))
        total = f"{a} * {wide * narrow} + {b} * {narrow} + {d}"
        tile = f"{a} * {wide} + {b}"
        index = str(rng.choice([tile, f"({tile}) // {rng.integers(2, 4)}", f"({total}) // {narrow}", a, total]))
        last = int(rng.integers(1, wide * narrow * 4))
        is_given = rng.random() < 0.3
        limit = "c" if is_given else str(last)
        guards = [f"{total} < {limit}", f"0 <= {total} and {total} < {limit}", f"not {limit} <= {total}", f"{d} + {total} < {limit} + {d}"]
        points = (dict(zip(names, point, strict=True)) for point in product(*map(range, extents)))
        needed = max((eval(index, {}, point) for point in points if eval(total, {}, point) < last), default=0) + 1
        step = max(needed + int(rng.choice([0, 0, 0, 1, -1])), 1)
        for depth, (name, extent) in enumerate(zip(names, extents, strict=True), 1):
            lines.append(f"{' ' * 4 * depth}for {name} in range({extent}):")
        lines.append(f"                if {rng.choice(guards)}:")
        lines.append(f"                    X[i * {'c' if is_given else step} + {index}] = {store}.0")
        if rng.random() < 0.1:
            lines += ["                else:", f"                    X[i * {step} + {b}] = 2.0"]
    return program(lines)


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_accepted_loops_with_guards_are_independent(first: int) -> None:
    accepted = refused = 0
    for seed in range(first, first + 30):
        func = random_program(np.random.default_rng(seed))
        names = {param.name: param for param in func.params if isinstance(param, Var)}
        loop = func.body
        assert isinstance(loop, For)

        found = is_accepted(func)

        independent = True
        for c in range(0, 10, 3):
            env = {names["n"]: 3, names["c"]: c}
            sets = [touched(loop.body, {**env, loop.var: value}) for value in range(int(evaluate(loop.extent, env)))]
            independent &= all(not a & b for a, b in combinations(sets, 2))
        assert independent or not found, (seed, str(func))
        accepted += found
        refused += not independent
    assert accepted >= 5 and refused >= 5
