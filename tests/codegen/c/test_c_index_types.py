"""Indices in device code are 32-bit numbers where these are known to hold them: nothing overflows, and little is wider than it need be."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tc.codegen.c.dialect import CUDA, OPENCL, Dialect
from tc.codegen.c.launch import emit_launches
from tc.ir.arith import evaluate
from tc.ir.expr import Expr, Var
from tc.ir.loop import For, PrimFunc, Store, walk_statements
from tc.ir.parser import parse_prim_func


class Word:
    """A signed number as C computes with it: 32 bits unless an operand has 64; overflow is an error."""

    def __init__(self, value: int, bits: int = 32) -> None:
        assert -(1 << (bits - 1)) <= value < 1 << (bits - 1), f"{value} is no number of {bits} bits"
        self.value, self.bits = value, bits

    def made(self, other: Word, value: int) -> Word:
        return Word(value, max(self.bits, other.bits))

    def __add__(self, other: Word) -> Word:
        return self.made(other, self.value + other.value)

    def __sub__(self, other: Word) -> Word:
        return self.made(other, self.value - other.value)

    def __mul__(self, other: Word) -> Word:
        return self.made(other, self.value * other.value)

    def __floordiv__(self, other: Word) -> Word:
        assert self.value >= 0 < other.value
        return self.made(other, self.value // other.value)

    def __mod__(self, other: Word) -> Word:
        assert self.value >= 0 < other.value
        return self.made(other, self.value % other.value)


def wide(word: Word) -> Word:
    return Word(word.value, 64)


def in_python(text: str) -> str:
    """A C expression of names, numbers, + - * / % and casts to i64, of one argument each."""
    while (at := text.find("(i64)")) >= 0:
        end = at + 5
        if text[end] == "(":
            depth, end = 1, end + 1
            while depth:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
        else:
            end = re.compile(r"\w+").match(text, end).end()  # type: ignore[union-attr]
        text = f"{text[:at]}wide({text[at + 5 : end]}){text[end:]}"
    text = re.sub(r"\b(\d+)(LL|L)?\b", lambda found: f"Word({found[1]}, {64 if found[2] or int(found[1]) >= 1 << 31 else 32})", text)
    return text.replace("/", "//")


def store_at(func: PrimFunc, dialect: Dialect) -> tuple[str, dict[str, str]]:
    """The index of the only store, and the types of variables, in the text."""
    text = emit_launches(func, "kernel", dialect)
    found = re.search(r"B\[(.*)\] = 1\.0f;", text)
    assert found is not None, text
    return found[1], {name: kind for kind, name in re.findall(r"\b(i32|i64) (\w+)(?: =|[,)])", text)}


def program(rng: np.random.Generator) -> PrimFunc:
    """A launch that stores at some index of loops over blocks and threads, small or far beyond 32 bits, of dims perhaps."""
    blocks, threads, count = (int(rng.choice([3, 1000, 1 << 20])), 64, int(rng.choice([5, 70000])))
    grid = "n" if rng.random() < 0.3 else str(blocks)
    stride = [int(rng.choice([1, 7, 4096, 1 << 20, 3 << 31])) for _ in range(3)]
    small, divisor = int(rng.choice([3, 1000, 1 << 22])), int(rng.integers(2, 9))
    dim = " + t * n" if grid == "n" and rng.random() < 0.5 else ""
    index = f"b * {stride[0]} + t * {stride[1]} + k * {stride[2]} + (b * {small} + t) // {divisor} % 5 + b * k{dim}"
    lines = [
        "@loops",
        "def f(B: f32[1152921504606846976], n: i64):",
        "    outputs(1)",
        "    promise(n, 0, None, 1)",
        f"    for b in bound({grid}, 'block.x'):",
        f"        for t in bound({threads}, 'thread.x'):",
        f"            for k in range({count}):",
        f"                B[{index}] = 1.0",
    ]
    return parse_prim_func("\n".join(lines))


@pytest.mark.parametrize("dialect", [CUDA, OPENCL], ids=lambda dialect: dialect.name)
def test_indices_neither_overflow_nor_change(dialect: Dialect) -> None:
    rng, widths = np.random.default_rng(1), set()
    for _ in range(60):
        func = program(rng)
        text, types = store_at(func, dialect)
        (store,) = [node for node in walk_statements(func.body) if isinstance(node, Store)]
        loops = [node for node in walk_statements(func.body) if isinstance(node, For)]
        for _ in range(5):
            dims = {func.dims[0]: int(rng.integers(1, 1 << 24))}
            extents = [int(evaluate(loop.extent, dims)) for loop in loops]
            env: dict[Var, int] = dims | {loop.var: int(rng.choice([0, n - 1])) for loop, n in zip(loops, extents, strict=True)}
            names = zip(("bx", "tx", "k") if "tx" in types else ("bx", "t", "k"), (loop.var for loop in loops), strict=True)
            words = {name: Word(env[var], int(types[name][1:])) for name, var in names} | {"n": Word(dims[func.dims[0]], 64)}
            found = eval(in_python(text), {"Word": Word, "wide": wide}, words)
            index: Expr = store.indices[0]
            assert found.value == evaluate(index, env), text
            widths.add(found.bits)
    assert widths == {32, 64}
