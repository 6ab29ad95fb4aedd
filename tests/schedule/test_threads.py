"""Threads that schedule and emit at once get what one alone gets: caches are shared without a word between them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tc.codegen.kernels import finish_loops
from tc.codegen.llvm.emitter import emit_prim_func
from tc.ir.bounds import Facts
from tc.ir.expr import Var, ceildiv, const
from tc.ir.polynomial import linear_coefficients, polynomial
from tc.ir.printer import print_ir
from tc.ir.structural import fresh_binders
from tc.schedule.rules import apply_rules
from tc.target import Target
from tests.schedule.programs import biased, chain, matmul, row_sum, shifted, softmax
from tests.schedule.random_problems import CLASSES
from tests.schedule.random_traces import random_schedule

THREADS = 3


@pytest.fixture
def busy_threads() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: object) -> list[object]:
    """What several threads make that begin at once; the first exception of one of them is raised."""
    start, results, errors = threading.Barrier(THREADS), [None] * THREADS, list[BaseException]()

    def run(place: int) -> None:
        try:
            start.wait()
            results[place] = work()  # type: ignore[operator]
        except BaseException as error:  # is raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def texts_of(make: object) -> list[str]:
    """Loops and code of small programs, each scheduled by the rules and at random."""
    found = []
    for program in (biased, chain, matmul, row_sum, shifted, softmax):
        func = fresh_binders(program())
        for name in ("x86-64-v3", "x86-64-v4"):
            scheduled = apply_rules(func, Target.parse(name))
            found += [str(scheduled.trace), print_ir(scheduled.func), emit_prim_func(finish_loops(scheduled.func), "kernel").ir_text]
    for seed, name in enumerate(("conv2d", "ragged", "gather")):
        rng = np.random.default_rng(seed)
        schedule = random_schedule(CLASSES[name](rng)[0], rng)
        found.append(print_ir(finish_loops(schedule.func)))
    return found


def test_kernels_are_the_same_from_threads_that_make_them_at_once(busy_threads: None) -> None:
    alone = texts_of(None)

    for made in in_threads(lambda: texts_of(None)):
        assert made == alone


def test_what_is_known_of_shared_expressions_is_the_same_for_all_threads(busy_threads: None) -> None:
    """Facts, polynomials and the intervals that are kept with them belong to everybody."""
    n, i = Var("n"), Var("i")

    def work() -> list[object]:
        found: list[object] = []
        for k in range(1, 60):
            facts = Facts().with_range(i, ceildiv(n, k))
            expr = (i * k + n) // k - (n - i) * const(k + 1)
            parts = linear_coefficients(i * k + n * 2, [i])
            found += [facts, polynomial(expr).to_expr(), parts and tuple(parts[0].items()), polynomial(expr).constant]
        return found[1::4] + found[2::4] + found[3::4]

    first, *others = in_threads(work)

    assert all(other == first for other in others)
