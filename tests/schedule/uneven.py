"""Programs whose loops are as long as data says: rows of different lengths, sparse rows, pages."""

from __future__ import annotations

from itertools import pairwise
from textwrap import indent

import numpy as np

from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_prim_func

ROWS, COLUMNS, TERMS, LENGTHS = {"i": "n"}, {"c": "24"}, {"j": "m"}, {"j": "L[i]"}
STORED = {"j": "P[i + 1] - P[i]"}
TOKENS, CACHED = {"t": "L[i]"}, {"t": "q * 8"}
"""Axes and how far they go: rows, columns, terms, and as many terms as a row has, by its length, its start or its pages."""


def nest(name: str, spatial: dict[str, str], store: str, value: str, over: dict[str, str] | None = None, monoid: str = "sum") -> str:
    """Loops around one block, which stores a value or, over further axes, combines values. Axes are the loops' names behind a v."""
    loops = spatial | (over or {})
    axes = [f"v{axis}={'reduction' if axis in (over or {}) else 'spatial'}({extent}, {axis})" for axis, extent in loops.items()]
    lines = [*(f"for {axis} in range({extent}):" for axis, extent in loops.items()), f"with block('{name}', {', '.join(axes)}):"]
    text = "".join("    " * depth + line + "\n" for depth, line in enumerate(lines))
    body = f"{store} = {value}\n"
    if over:
        start, combined = {"sum": ("0.0", f"{store} + {value}"), "max": ("-1000.0", f"max({store}, {value})")}[monoid]
        body = f"annotate(monoid='{monoid}')\nwith init():\n    {store} = {start}\n{store} = {combined}\n"
    return text + indent(body, "    " * len(lines))


def program(signature: str, *nests: str, scratch: tuple[str, ...] = ()) -> str:
    """Nests one after the other in a function; `scratch` are buffers and their types."""
    body = "".join(nests)
    for buffer in reversed(scratch):
        name, type_ = buffer.split(": ")
        body = f"with alloc({type_}, scope='global') as {name}:\n{indent(body, '    ')}"
    return f"@loops\ndef {signature}:\n{indent(body, '    ')}"


RAGGED = "X: f32[n, m], L: i64[n], {y}, n: i64, m: i64"
PRODUCT = "X: f32[n, m], B: f32[m, 24], L: i64[n], Y: f32[n, 24], n: i64, m: i64"
MATRIX = "V: f32[z], K: i64[z], P: i64[n + 1], X: f32[m, d], Y: f32[n, d], n: i64, m: i64, z: i64, d: i64"
SCORES = "Q: f32[n, 6], C: f32[p, 8, 6], T: i64[n, q], L: i64[n], Y: f32[n, q * 8], n: i64, p: i64, q: i64"
WEIGHTED = "W: f32[n, q * 8], C: f32[p, 8, d], T: i64[n, q], L: i64[n], Y: f32[n, d], n: i64, p: i64, q: i64, d: i64"


def row_sum(into: str, term: str) -> str:
    return nest("s", ROWS, f"{into}[vi]", term, LENGTHS)


def row_product(into: str, rhs: str) -> str:
    return nest("s", ROWS | COLUMNS, f"{into}[vi, vc]", f"X[vi, vj] * {rhs}[vj, vc]", LENGTHS)


def sparse_product(into: str, rhs: str) -> str:
    return nest("s", ROWS | {"c": "d"}, f"{into}[vi, vc]", f"V[P[vi] + vj] * {rhs}[K[P[vi] + vj], vc]", STORED)


def page_scores(into: str, query: str) -> str:
    return nest("s", ROWS | TOKENS, f"{into}[vi, vt]", f"{query}[vi, vd] * C[T[vi, vt // 8], vt % 8, vd]", {"d": "6"})


def page_sum(into: str, weights: str) -> str:
    return nest("s", ROWS | {"c": "d"}, f"{into}[vi, vc]", f"{weights}[vi, vt] * C[T[vi, vt // 8], vt % 8, vc]", TOKENS)


RAGGED_MEAN = program(
    f"ragged_mean({RAGGED.format(y='Y: f32[n]')})",
    row_sum("S", "X[vi, vj]"),
    nest("scale", ROWS, "Y[vi]", "S[vi] * 2.0"),
    scratch=("S: f32[n]",),
)

CSR_VECTOR = program(
    "csr_vector(V: f32[z], K: i64[z], P: i64[n + 1], X: f32[m], Y: f32[n], n: i64, m: i64, z: i64)",
    nest("s", ROWS, "Y[vi]", "V[P[vi] + vj] * X[K[P[vi] + vj]]", STORED),
)

TEXTS = {
    "ragged_sum": program(f"ragged_sum({RAGGED.format(y='Y: f32[n]')})", row_sum("Y", "X[vi, vj]")),
    "ragged_mean": RAGGED_MEAN,
    "ragged_softmax": program(
        f"ragged_softmax({RAGGED.format(y='Y: f32[n, m]')})",
        nest("top", ROWS, "T[vi]", "X[vi, vj]", LENGTHS, "max"),
        nest("total", ROWS, "S[vi]", "exp(X[vi, vj] - T[vi])", LENGTHS),
        nest("y", ROWS | TERMS, "Y[vi, vj]", "select(vj < L[vi], exp(X[vi, vj] - T[vi]) / S[vi], 0.0)"),
        scratch=("T: f32[n]", "S: f32[n]"),
    ),
    "ragged_matmul": program(f"ragged_matmul({PRODUCT})", row_product("Y", "B")),
    "ragged_scale": program(
        f"ragged_scale({RAGGED.format(y='Y: f32[n, m]')})",
        nest("zero", ROWS | TERMS, "Y[vi, vj]", "0.0"),
        nest("scale", ROWS | LENGTHS, "Y[vi, vj]", "X[vi, vj] * 2.0"),
    ),
    "csr_vector": CSR_VECTOR,
    "csr_matrix": program(f"csr_matrix({MATRIX})", sparse_product("Y", "X")),
    "paged_scores": program(f"paged_scores({SCORES})", nest("zero", ROWS | CACHED, "Y[vi, vt]", "0.0"), page_scores("Y", "Q")),
    "paged_sum": program(f"paged_sum({WEIGHTED})", page_sum("Y", "W")),
    "ragged_chain": program(
        f"ragged_chain({RAGGED.format(y='Y: f32[n]')})",
        nest("a", ROWS | TERMS, "A[vi, vj]", "X[vi, vj] + 1.0"),
        row_sum("S", "A[vi, vj]"),
        nest("y", ROWS, "Y[vi]", "max(S[vi], 0.0)"),
        scratch=("A: f32[n, m]", "S: f32[n]"),
    ),
    "ragged_product_chain": program(
        f"ragged_product_chain({PRODUCT})",
        nest("a", TERMS | COLUMNS, "A[vj, vc]", "B[vj, vc] + 1.0"),
        row_product("S", "A"),
        nest("y", ROWS | COLUMNS, "Y[vi, vc]", "max(S[vi, vc], 0.0)"),
        scratch=("A: f32[m, 24]", "S: f32[n, 24]"),
    ),
    "csr_chain": program(
        f"csr_chain({MATRIX})",
        nest("a", TERMS | {"c": "d"}, "A[vj, vc]", "X[vj, vc] + 1.0"),
        sparse_product("S", "A"),
        nest("y", ROWS | {"c": "d"}, "Y[vi, vc]", "max(S[vi, vc], 0.0)"),
        scratch=("A: f32[m, d]", "S: f32[n, d]"),
    ),
    "paged_chain": program(
        f"paged_chain({SCORES})",
        nest("a", ROWS | {"d": "6"}, "A[vi, vd]", "Q[vi, vd] * 2.0"),
        page_scores("S", "A"),
        nest("y", ROWS | CACHED, "Y[vi, vt]", "select(vt < L[vi], S[vi, vt], 0.0)"),
        scratch=("A: f32[n, 6]", "S: f32[n, q * 8]"),
    ),
    "paged_sum_chain": program(
        f"paged_sum_chain({WEIGHTED})",
        nest("a", ROWS | CACHED, "A[vi, vt]", "W[vi, vt] * 2.0"),
        page_sum("S", "A"),
        nest("y", ROWS | {"c": "d"}, "Y[vi, vc]", "max(S[vi, vc], 0.0)"),
        scratch=("A: f32[n, q * 8]", "S: f32[n, d]"),
    ),
}

Problem = tuple[PrimFunc, list[np.ndarray], tuple[int, ...]]


def uneven_problem(name: str, rng: np.random.Generator, most: int = 12) -> Problem:
    """One of the programs with small whole numbers: up to `most` rows, which have none to about `most` terms each."""
    n, m, d, p = (int(v) for v in rng.integers(1, most + 1, 4))
    lengths = rng.integers(0, m + 1, n)
    q = -(-max(int(lengths.max()), 1) // 8)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    z = int(starts[-1])

    def numbers(*shape: int) -> np.ndarray:
        return rng.integers(-3, 4, shape).astype(np.float32)

    columns, pages = rng.integers(0, m, z), rng.integers(0, p, (n, q))
    inputs: dict[str, tuple[list[np.ndarray], tuple[int, ...]]] = {
        "ragged_sum": ([numbers(n, m), lengths], (n, m)),
        "ragged_mean": ([numbers(n, m), lengths], (n, m)),
        "ragged_softmax": ([numbers(n, m), lengths], (n, m)),
        "ragged_matmul": ([numbers(n, m), numbers(m, 24), lengths], (n, m)),
        "ragged_scale": ([numbers(n, m), lengths], (n, m)),
        "csr_vector": ([numbers(z), columns, starts, numbers(m)], (n, m, z)),
        "csr_matrix": ([numbers(z), columns, starts, numbers(m, d)], (n, m, z, d)),
        "paged_scores": ([numbers(n, 6), numbers(p, 8, 6), pages, lengths], (n, p, q)),
        "paged_sum": ([numbers(n, q * 8), numbers(p, 8, d), pages, lengths], (n, p, q, d)),
    }
    inputs |= {
        "ragged_chain": inputs["ragged_sum"],
        "ragged_product_chain": inputs["ragged_matmul"],
        "csr_chain": inputs["csr_matrix"],
        "paged_chain": inputs["paged_scores"],
        "paged_sum_chain": inputs["paged_sum"],
    }
    arrays, dims = inputs[name]
    return parse_prim_func(TEXTS[name]), arrays, dims


def expected(name: str, arrays: list[np.ndarray]) -> np.ndarray:
    """What a program means, row by row."""
    match name, arrays:
        case "ragged_sum", (x, lengths):
            return np.array([row[:k].sum() for row, k in zip(x, lengths, strict=True)], np.float32)
        case "ragged_mean", (x, lengths):
            return np.array([row[:k].sum() * 2 for row, k in zip(x, lengths, strict=True)], np.float32)
        case "ragged_softmax", (x, lengths):
            y = np.zeros_like(x)
            for row, k, into in zip(x, lengths, y, strict=True):
                e = np.exp(row[:k] - row[:k].max(initial=-1000))
                into[:k] = e / e.sum() if k else 0
            return y
        case "ragged_matmul", (x, b, lengths):
            return np.stack([row[:k] @ b[:k] for row, k in zip(x, lengths, strict=True)])
        case "ragged_scale", (x, lengths):
            return np.where(np.arange(x.shape[1]) < lengths[:, None], x * 2, 0)
        case "csr_vector", (v, columns, starts, x):
            return np.array([v[a:b] @ x[columns[a:b]] for a, b in pairwise(starts)], np.float32)
        case "csr_matrix", (v, columns, starts, x):
            return np.stack([v[a:b] @ x[columns[a:b]] for a, b in pairwise(starts)])
        case "paged_scores", (query, cache, pages, lengths):
            y = np.zeros((len(query), pages.shape[1] * 8), np.float32)
            for row, own, k, into in zip(query, pages, lengths, y, strict=True):
                into[:k] = (cache[own].reshape(-1, 6) @ row)[:k]
            return y
        case "paged_sum", (weights, cache, pages, lengths):
            rows = [w[:k] @ cache[own].reshape(-1, cache.shape[2])[:k] for w, own, k in zip(weights, pages, lengths, strict=True)]
            return np.stack(rows)
        case "ragged_chain", (x, lengths):
            return np.maximum(expected("ragged_sum", [x + 1, lengths]), 0)
        case "ragged_product_chain", (x, b, lengths):
            return np.maximum(expected("ragged_matmul", [x, b + 1, lengths]), 0)
        case "csr_chain", (v, columns, starts, x):
            return np.maximum(expected("csr_matrix", [v, columns, starts, x + 1]), 0)
        case "paged_chain", (query, cache, pages, lengths):
            return expected("paged_scores", [query * 2, cache, pages, lengths])
        case "paged_sum_chain", (weights, cache, pages, lengths):
            return np.maximum(expected("paged_sum", [weights * 2, cache, pages, lengths]), 0)
    raise AssertionError(name)
