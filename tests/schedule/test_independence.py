"""Loops run in any order only where that is proven: against the elements that iterations really touch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.ir.arith import evaluate
from tc.ir.expr import Buffer, Load, Var
from tc.ir.loop import Block, For, PrimFunc, Seq, Stmt, Store
from tc.ir.node import walk
from tc.ir.parser import parse_prim_func
from tc.schedule.step import Schedule

Touched = tuple[Buffer, tuple[int, ...]]
SIZE = 40


def index(rng: np.random.Generator, axes: list[str]) -> str:
    """An index in [0, SIZE): affine, backward, strided, modulo, a quotient, or a constant."""
    a, b = (str(axis) for axis in rng.permutation(axes)[:2])
    forms = [a, a, f"7 - {a}", f"{a} * 2", f"{a} * 2 + 1", f"{a} + 3", f"{a} * 8 + {b}", f"{a} * 4 + {b}", f"{a} % 4", f"{a} // 2", "5",
             f"({a} * 8 + {b}) // 4", f"({a} * 8 + {b}) % 4", f"{a} * 3 - {b} + 7", f"{a} + {b}"]
    return str(rng.choice(forms)) if rng.random() < 0.8 else f"{a} * 4 + {b}"


def program(rng: np.random.Generator) -> PrimFunc:
    """One or two blocks under two loops, which read and write one-dimensional or two-dimensional parameters."""
    rank = int(rng.integers(1, 3))
    extents = [int(rng.choice([1, 2, 4, 7, 8])) for _ in range(2)]

    def element(name: str) -> str:
        axes = ["vi", "vj"]
        return f"{name}[{', '.join(index(rng, axes) for _ in range(rank))}]"

    shape = ", ".join([str(SIZE * 2)] * rank)
    lines = ["@loops", f"def f(X: f32[{shape}], Y: f32[{shape}], Z: f32[{shape}]):", "    outputs(2)"]
    lines += [f"    for i in range({extents[0]}):", f"        for j in range({extents[1]}):"]
    made: list[str] = []
    for k in range(int(rng.integers(1, 3))):
        target = made[0] if made and rng.random() < 0.4 else element(str(rng.choice(["Y", "Z"])))
        source = str(rng.choice([target, element("X"), *([made[0]] if made else []), element(str(rng.choice(["X", "X", "Y", "Z"])))]))
        lines.append(f"            with block('b{k}', vi=spatial({extents[0]}, i), vj=spatial({extents[1]}, j)):")
        lines.append(f"                {target} = {source} + 1.0")
        made.append(target)
    return parse_prim_func("\n".join(lines) + "\n")


def touched(stmt: Stmt, env: dict[Var, int]) -> Iterator[tuple[Touched, bool]]:
    """The elements that a statement touches, and whether it writes them."""
    match stmt:
        case For(var=var, extent=extent, body=body):
            for value in range(int(evaluate(extent, env))):
                yield from touched(body, {**env, var: value})
        case Seq(stmts=stmts):
            for inner in stmts:
                yield from touched(inner, env)
        case Block(axes=axes, body=body):
            yield from touched(body, {**env, **{axis.var: int(evaluate(axis.value, env)) for axis in axes}})
        case Store(buffer=buffer, indices=indices, value=value):
            for node in walk(value):
                if isinstance(node, Load):
                    yield (node.buffer, tuple(int(evaluate(each, env)) for each in node.indices)), False
            yield (buffer, tuple(int(evaluate(each, env)) for each in indices)), True


def is_independent(func: PrimFunc, name: str) -> bool:
    """Whether no iteration of a loop touches what another one writes, with the same iterations of the loops around."""
    def holds(stmt: Stmt, env: dict[Var, int]) -> bool:
        assert isinstance(stmt, For)
        count = range(int(evaluate(stmt.extent, env)))
        if stmt.var.name != name:
            return all(holds(stmt.body, {**env, stmt.var: value}) for value in count)
        sets = [set(touched(stmt.body, {**env, stmt.var: value})) for value in count]
        written = [{element for element, is_store in each if is_store} for each in sets]
        every = [{element for element, _ in each} for each in sets]
        return all(not written[a] & every[b] and not written[b] & every[a] for a, b in combinations(range(len(sets)), 2))

    return holds(func.body, {})


def is_accepted(func: PrimFunc, kind: str, loop: str) -> bool:
    schedule = Schedule(func)
    try:
        getattr(schedule, kind)(loop)
    except ScheduleError as error:
        assert f"{kind}: an iteration of loop {loop} " in str(error)
        return False
    return True


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_accepted_loops_are_independent_and_most_independent_ones_are_accepted(first: int) -> None:
    independent = accepted = 0
    for seed in range(first, first + 100):
        func = program(np.random.default_rng(seed))
        for loop in "ij":
            found = is_accepted(func, "parallel", loop)
            truth = is_independent(func, loop)
            assert truth or not found, (seed, loop, str(func))
            independent += truth
            accepted += truth and found
    assert independent >= 40 and accepted >= 0.9 * independent


def blocks_in_a_loop(*stores: str) -> Schedule:
    """A loop over i, from 0 to 7, around a block for each store."""
    names = "ab"[: len(stores)]
    blocks = (f"        with block('{name}', vi=spatial(8, i)):\n            {store}\n" for name, store in zip(names, stores, strict=True))
    return Schedule(parse_prim_func(f"@loops\ndef f(X: f32[8], K: i64[8], Y: f32[9]):\n    for i in range(8):\n{''.join(blocks)}"))


REFUSED = {
    "backward": (["Y[vi] = Y[7 - vi] + 1.0"], r"reads Y .* block a touches Y\[7 - i\], block a Y\[i\]"),
    "two stores": (["Y[vi // 2] = X[vi]"], r"writes Y .* block a touches Y\[i // 2\]"),
    "scatter": (["Y[K[vi]] = X[vi]"], r"writes Y .* block a touches Y\[K\[i\]\]"),
    "two blocks": (
        ["Y[vi] = X[vi]", "Y[vi + 1] = X[vi] * 2.0"],
        r"writes Y where another one writes it.*block b touches Y\[i \+ 1\], block a Y\[i\]",
    ),
    "a scan": (["Y[vi] = X[vi]", "Y[vi] = Y[vi] + select(1 <= vi, Y[vi - 1], 0.0)"], r"reads Y where another one writes it"),
}


@pytest.mark.parametrize("kind", ["parallel", "vectorize"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_blocks_and_the_elements(name: str, kind: str) -> None:
    stores, message = REFUSED[name]
    schedule = blocks_in_a_loop(*stores)

    with pytest.raises(ScheduleError, match=f"{kind}: an iteration of loop i {message}"):
        getattr(schedule, kind)("i")


def test_state_that_iterations_hand_on_in_scratch_memory_is_no_iterations_own() -> None:
    schedule = Schedule(parse_prim_func("""@loops
def f(X: f32[8], Y: f32[8]):
    with alloc(f32[9], scope='global') as T:
        for i in range(8):
            with block('a', vi=spatial(8, i)):
                T[vi] = X[vi]
            with block('b', vi=spatial(8, i)):
                Y[vi] = T[max(vi - 1, 0)]
"""))

    with pytest.raises(ScheduleError, match="parallel: an iteration of loop i reads T where another one writes it"):
        schedule.parallel("i")


def test_reordering_a_parallel_loop_outward_is_checked_again() -> None:
    schedule = Schedule(parse_prim_func("""@loops
def f(X: f32[8], Y: f32[16]):
    for j in range(8):
        for i in range(8):
            with block('a', vi=spatial(8, i), vj=spatial(8, j)):
                Y[vi + vj] = X[vi]
"""))
    schedule.parallel("i")

    with pytest.raises(ScheduleError, match="reorder: an iteration of loop i writes Y where another one writes it"):
        schedule.reorder("i", "j")
