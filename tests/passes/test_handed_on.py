"""What iterations of a loop hand on in scratch memory stays where it is when buffers are made smaller."""

from __future__ import annotations

import numpy as np
import pytest

from tc.interp import run_prim_func
from tc.ir.expr import Const
from tc.ir.loop import Alloc, For, PrimFunc, walk_statements
from tc.ir.parser import parse_prim_func
from tc.passes.loop.compact_buffers import compact_buffers
from tc.passes.pipeline import finish_loops
from tests.ops.kernels import run

HANDED_ON = {
    "the row before": ["T[i] = X[i]", "Y[i] = T[max(i - 1, 0)]"],
    "one element on": ["T[i + 1] = X[i]", "if 1 <= i:", "    Y[i] = T[i]", "else:", "    Y[i] = 0.0"],
    "a state": ["if i == 0:", "    T[0] = 0.0", "T[0] = T[0] + X[i]", "Y[i] = T[0]"],
}


def program(lines: list[str]) -> str:
    body = "\n".join(f"            {line}" for line in lines)
    return f"@loops\ndef f(X: f32[8], Y: f32[8]):\n    with alloc(f32[9], scope='global') as T:\n        for i in range(8):\n{body}\n"


@pytest.mark.parametrize("name", HANDED_ON)
def test_a_buffer_in_which_iterations_hand_something_on_stays_outside(name: str) -> None:
    func = parse_prim_func(program(HANDED_ON[name]))
    x = np.arange(1, 9, dtype=np.float32)
    (expected,) = run_prim_func(func, [x])

    compacted, finished = compact_buffers(func), finish_loops(func)

    assert isinstance(compacted.body, Alloc)
    np.testing.assert_array_equal(run_prim_func(compacted, [x])[0], expected)
    np.testing.assert_array_equal(run(finished, [x], ())[0], expected)


def test_a_buffer_that_each_iteration_fills_first_goes_inside() -> None:
    lines = ["for k in range(3):", "    if k == 0:", "        T[0] = 0.0", "    T[0] = T[0] + X[i]", "Y[i] = T[0]"]

    compacted = compact_buffers(parse_prim_func(program(lines)))

    assert isinstance(compacted.body, For) and isinstance(compacted.body.body, Alloc)


def test_random_programs_compute_the_same_with_smaller_buffers() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(8).astype(np.float32)
    inside = compared = 0
    for _ in range(300):
        indices = [str(rng.choice(["i", "i + 1", "0", "j", "j + 1", "max(i - 1, 0)", "i // 2", "i % 2", "7 - i"])) for _ in range(3)]
        guard = str(rng.choice(["", "if i == 0:", "if j == 0:", "if i < 4:", "if j < 2:"]))
        first = [f"T[{indices[0]}] = X[i]"]
        lines = ["for j in range(3):", *(f"    {line}" for line in ([guard, f"    {first[0]}"] if guard else first))]
        lines += [f"    T[{indices[1]}] = T[{indices[1]}] + 1.0"] if rng.random() < 0.5 else []
        lines += ["for j in range(3):"] if rng.random() < 0.5 else []
        lines += [f"    Y[i] = T[{indices[2]}]"]
        func = parse_prim_func(program(lines))
        compacted = compact_buffers(func)

        (expected,), (found,) = run_prim_func(func, [x]), run_prim_func(compacted, [x])

        inside += not isinstance(compacted.body, Alloc)
        if not np.isnan(expected).any():  # else it reads what nobody wrote
            compared += 1
            np.testing.assert_array_equal(found, expected, err_msg="\n".join(lines))
    assert inside >= 20 and compared >= 60, (inside, compared)


def guarded(fill: list[str], read: list[str], size: str = "(c + 2) // 3 * 3", count: str = "(c + 2) // 3") -> PrimFunc:
    """Tiles of scratch memory that are filled from X and added up in Y, by 3 rows at a time."""
    lines = [f"    with alloc(f32[{size}], scope='global') as T:", f"        for r in range({count}):"]
    lines += [f"            {line}" for line in (*fill, *read)]
    body = "\n".join(lines)
    return parse_prim_func(f"@loops\ndef f(X: f32[c], Y: f32[c], c: i64):\n    promise(c, 0, None, 1)\n{body}\n")


def allocated(func: PrimFunc) -> Alloc:
    (alloc,) = (node for node in walk_statements(func.body) if isinstance(node, Alloc))
    return alloc


def is_same(func: PrimFunc, compacted: PrimFunc) -> bool:
    """Whether both compute the same, of all sizes, of which the interpreter checks that nothing outside of a buffer is touched."""
    same = []
    for count in (0, 1, 2, 3, 4, 7, 33):
        x = np.arange(1, count + 1, dtype=np.float32)
        expected, found = (run_prim_func(each, [x], (count,))[0] for each in (func, compacted))
        same.append(np.array_equal(found, expected, equal_nan=True))
    return all(same)


TILE = ["for a in range(7):", "    for b in range(2):", "        for d in range(4):"]
TAIL = ["for k in range(3):", "    if r * 3 + k < c:", "        Y[r * 3 + k] = T[r * 3 + k] * 2.0"]


def filled(guard: str, index: str) -> list[str]:
    value = f"X[{index}]" if index.startswith("min") else f"select({index} < c, X[min({index}, c - 1)], 0.0)"
    return [*TILE, f"            if {guard}:", f"                T[{index}] = {value}"]


@pytest.mark.parametrize(
    ("guard", "index", "size"),
    [
        ("a * 8 + b * 4 + d < 36", "r * 3 + (a * 2 + b) // 3", 3),
        ("a * 8 + b * 4 + d <= 35", "r * 3 + (a * 2 + b) // 3", 3),
        ("not 36 <= a * 8 + b * 4 + d", "r * 3 + (a * 2 + b) // 3", 3),
        ("a * 8 + b * 4 + d < 12 and d < 1", "r * 3 + a * 2 + b", 3),
        ("a * 8 + b * 4 + d < 12", "r * 3 + (a * 8 + b * 4 + d) // 4", 3),
        ("a * 2 + b < 3", "r * 3 + a * 2 + b", 3),
    ],
)
def test_a_buffer_is_as_large_as_guards_leave_it_and_goes_inside(guard: str, index: str, size: int) -> None:
    func = guarded(filled(guard, index), TAIL)

    compacted = compact_buffers(func)

    assert isinstance(compacted.body, For) and isinstance(compacted.body.body, Alloc)
    assert [dim.value for dim in allocated(compacted).buffer.shape if isinstance(dim, Const)] == [size]
    assert is_same(func, compacted) and is_same(func, finish_loops(func))


@pytest.mark.parametrize(
    ("guard", "index"),
    [
        ("a * 8 + b * 4 + d < 37", "r * 3 + (a * 2 + b) // 3"),
        ("a * 8 + b * 4 + d < 16", "r * 3 + a * 2 + b"),
        ("a * 2 + b <= 3", "r * 3 + a * 2 + b"),
        ("a * 2 < 3", "r * 3 + a * 2 + b"),
        ("cast(X[0], i64) + a * 2 + b < 3", "r * 3 + a * 2 + b"),
    ],
)
def test_a_buffer_stays_outside_where_the_guard_does_not_keep_iterations_apart(guard: str, index: str) -> None:
    size = "(c + 2) // 3 * 3 + 15"
    read = ["for k in range(3):", "    if r * 3 + k < c:", "        Y[r * 3 + k] = T[max(r * 3 + k - 1, 0)]"]
    func = guarded(filled(guard, index), read, size)

    compacted = compact_buffers(func)

    assert isinstance(compacted.body, Alloc) and is_same(func, compacted)


def test_a_guard_on_one_access_leaves_the_others_their_room() -> None:
    fill = ["for j in range(8):", "    if j < 3:", "        T[j] = X[min(r, c - 1)]", "    if j < 5:", "        T[j + 1] = 1.0"]
    read = ["for k in range(6):", "    if k == 0:", "        Y[r] = T[k]", "    else:", "        Y[r] = Y[r] + T[k]"]
    func = guarded(fill, read, "9", "c")

    compacted = compact_buffers(func)

    assert [str(dim) for dim in allocated(compacted).buffer.shape] == ["6"] and is_same(func, compacted)


def test_rows_that_are_filled_by_vectors_are_whole() -> None:
    fill = ["for j in vectorized(8):", "    if j < 5:", "        T[j] = X[min(r, c - 1)]"]
    func = guarded(fill, ["Y[r] = T[0] + T[4]"], "16", "c")

    compacted = compact_buffers(func)

    assert [str(dim) for dim in allocated(compacted).buffer.shape] == ["8"] and is_same(func, compacted)


def test_random_guarded_programs_compute_the_same_with_smaller_buffers() -> None:
    rng = np.random.default_rng(1)
    smaller = compared = 0
    for _ in range(40):
        wide, narrow, limit = (int(each) for each in rng.integers(1, (4, 5, 24)))
        total = f"a * {wide * narrow} + b * {narrow} + d"
        conditions = [f"{total} < {limit}", f"a * {wide} + b < {limit % 7}", f"not {limit} <= {total}", f"b < {limit % 3} and a < 2"]
        inner = [f"a * {wide} + b", f"(a * {wide} + b) // 2", f"({total}) // {narrow}", "a", "b + 1", f"({total}) % 5", "4 - a"]
        start = str(rng.choice(["r * 3", "r * 4", "r * 2", "0", "r"]))
        loops = ["for a in range(4):", "    for b in range(3):", "        for d in range(2):"]
        index = f"{start} + {rng.choice(inner)}"
        lines = [*loops, f"            if {rng.choice(conditions)}:", f"                T[{index}] = X[min(r, c - 1)] + cast({total}, f32)"]
        if rng.random() < 0.3:
            lines += ["            else:", f"                T[{start} + {rng.choice(inner)}] = 3.0"]
        condition, seen = str(rng.choice([*conditions, "r < c"])), str(rng.choice([index, index, f"{start} + {rng.choice(inner)}"]))
        lines += [*loops, f"            if {condition}:", f"                Y[r] = T[{seen}] + cast(d, f32)"]
        func = guarded(["Y[r] = 0.0", *lines], [], "c * 4 + 40", "c")
        compacted = compact_buffers(func)

        smaller += allocated(compacted).buffer.shape != allocated(func).buffer.shape
        for count in (1, 2, 5):
            x = rng.standard_normal(count).astype(np.float32)
            (expected,), (found,) = run_prim_func(func, [x], (count,)), run_prim_func(compacted, [x], (count,))
            if not np.isnan(expected).any():  # else it reads what nobody wrote
                compared += 1
                np.testing.assert_array_equal(found, expected, err_msg="\n".join(lines))
    assert smaller >= 15 and compared >= 30, (smaller, compared)
