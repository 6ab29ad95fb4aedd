"""Programs whose loops are as long as data says: rows of different lengths, sparse rows, pages."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_prim_func

RAGGED_SUM = """
@loops
def ragged_sum(X: f32[n, m], L: i64[n], Y: f32[n], n: i64, m: i64):
    for i in range(n):
        for j in range(L[i]):
            with block('s', vi=spatial(n, i), vj=reduction(L[i], j)):
                annotate(monoid='sum')
                with init():
                    Y[vi] = 0.0
                Y[vi] = Y[vi] + X[vi, vj]
"""

RAGGED_MEAN = """
@loops
def ragged_mean(X: f32[n, m], L: i64[n], Y: f32[n], n: i64, m: i64):
    with alloc(f32[n], scope='global') as S:
        for i in range(n):
            for j in range(L[i]):
                with block('s', vi=spatial(n, i), vj=reduction(L[i], j)):
                    annotate(monoid='sum')
                    with init():
                        S[vi] = 0.0
                    S[vi] = S[vi] + X[vi, vj]
        for i in range(n):
            with block('scale', vi=spatial(n, i)):
                Y[vi] = S[vi] * 2.0
"""

RAGGED_SOFTMAX = """
@loops
def ragged_softmax(X: f32[n, m], L: i64[n], Y: f32[n, m], n: i64, m: i64):
    with alloc(f32[n], scope='global') as T:
        with alloc(f32[n], scope='global') as S:
            for i in range(n):
                for j in range(L[i]):
                    with block('top', vi=spatial(n, i), vj=reduction(L[i], j)):
                        annotate(monoid='max')
                        with init():
                            T[vi] = -1000.0
                        T[vi] = max(T[vi], X[vi, vj])
            for i in range(n):
                for j in range(L[i]):
                    with block('total', vi=spatial(n, i), vj=reduction(L[i], j)):
                        annotate(monoid='sum')
                        with init():
                            S[vi] = 0.0
                        S[vi] = S[vi] + exp(X[vi, vj] - T[vi])
            for i in range(n):
                for j in range(m):
                    with block('y', vi=spatial(n, i), vj=spatial(m, j)):
                        Y[vi, vj] = select(vj < L[vi], exp(X[vi, vj] - T[vi]) / S[vi], 0.0)
"""

RAGGED_MATMUL = """
@loops
def ragged_matmul(X: f32[n, m], B: f32[m, 24], L: i64[n], Y: f32[n, 24], n: i64, m: i64):
    for i in range(n):
        for c in range(24):
            for j in range(L[i]):
                with block('s', vi=spatial(n, i), vc=spatial(24, c), vj=reduction(L[i], j)):
                    annotate(monoid='sum')
                    with init():
                        Y[vi, vc] = 0.0
                    Y[vi, vc] = Y[vi, vc] + X[vi, vj] * B[vj, vc]
"""

RAGGED_SCALE = """
@loops
def ragged_scale(X: f32[n, m], L: i64[n], Y: f32[n, m], n: i64, m: i64):
    for i in range(n):
        for j in range(m):
            with block('zero', vi=spatial(n, i), vj=spatial(m, j)):
                Y[vi, vj] = 0.0
    for i in range(n):
        for j in range(L[i]):
            with block('scale', vi=spatial(n, i), vj=spatial(L[i], j)):
                Y[vi, vj] = X[vi, vj] * 2.0
"""

CSR_VECTOR = """
@loops
def csr_vector(V: f32[z], K: i64[z], P: i64[n + 1], X: f32[m], Y: f32[n], n: i64, m: i64, z: i64):
    for i in range(n):
        for j in range(P[i + 1] - P[i]):
            with block('s', vi=spatial(n, i), vj=reduction(P[i + 1] - P[i], j)):
                annotate(monoid='sum')
                with init():
                    Y[vi] = 0.0
                Y[vi] = Y[vi] + V[P[vi] + vj] * X[K[P[vi] + vj]]
"""

CSR_MATRIX = """
@loops
def csr_matrix(V: f32[z], K: i64[z], P: i64[n + 1], X: f32[m, d], Y: f32[n, d], n: i64, m: i64, z: i64, d: i64):
    for i in range(n):
        for c in range(d):
            for j in range(P[i + 1] - P[i]):
                with block('s', vi=spatial(n, i), vc=spatial(d, c), vj=reduction(P[i + 1] - P[i], j)):
                    annotate(monoid='sum')
                    with init():
                        Y[vi, vc] = 0.0
                    Y[vi, vc] = Y[vi, vc] + V[P[vi] + vj] * X[K[P[vi] + vj], vc]
"""

PAGED_SCORES = """
@loops
def paged_scores(Q: f32[n, 6], C: f32[p, 8, 6], T: i64[n, q], L: i64[n], Y: f32[n, q * 8], n: i64, p: i64, q: i64):
    for i in range(n):
        for t in range(q * 8):
            with block('zero', vi=spatial(n, i), vt=spatial(q * 8, t)):
                Y[vi, vt] = 0.0
    for i in range(n):
        for t in range(L[i]):
            for d in range(6):
                with block('s', vi=spatial(n, i), vt=spatial(L[i], t), vd=reduction(6, d)):
                    annotate(monoid='sum')
                    with init():
                        Y[vi, vt] = 0.0
                    Y[vi, vt] = Y[vi, vt] + Q[vi, vd] * C[T[vi, vt // 8], vt % 8, vd]
"""

PAGED_SUM = """
@loops
def paged_sum(W: f32[n, q * 8], C: f32[p, 8, d], T: i64[n, q], L: i64[n], Y: f32[n, d], n: i64, p: i64, q: i64, d: i64):
    for i in range(n):
        for c in range(d):
            for t in range(L[i]):
                with block('s', vi=spatial(n, i), vc=spatial(d, c), vt=reduction(L[i], t)):
                    annotate(monoid='sum')
                    with init():
                        Y[vi, vc] = 0.0
                    Y[vi, vc] = Y[vi, vc] + W[vi, vt] * C[T[vi, vt // 8], vt % 8, vc]
"""

RAGGED_CHAIN = """
@loops
def ragged_chain(X: f32[n, m], L: i64[n], Y: f32[n], n: i64, m: i64):
    with alloc(f32[n, m], scope='global') as A:
        with alloc(f32[n], scope='global') as S:
            for i in range(n):
                for j in range(m):
                    with block('a', vi=spatial(n, i), vj=spatial(m, j)):
                        A[vi, vj] = X[vi, vj] + 1.0
            for i in range(n):
                for j in range(L[i]):
                    with block('s', vi=spatial(n, i), vj=reduction(L[i], j)):
                        annotate(monoid='sum')
                        with init():
                            S[vi] = 0.0
                        S[vi] = S[vi] + A[vi, vj]
            for i in range(n):
                with block('y', vi=spatial(n, i)):
                    Y[vi] = max(S[vi], 0.0)
"""

RAGGED_PRODUCT_CHAIN = """
@loops
def ragged_product_chain(X: f32[n, m], B: f32[m, 24], L: i64[n], Y: f32[n, 24], n: i64, m: i64):
    with alloc(f32[m, 24], scope='global') as A:
        with alloc(f32[n, 24], scope='global') as S:
            for j in range(m):
                for c in range(24):
                    with block('a', vj=spatial(m, j), vc=spatial(24, c)):
                        A[vj, vc] = B[vj, vc] + 1.0
            for i in range(n):
                for c in range(24):
                    for j in range(L[i]):
                        with block('s', vi=spatial(n, i), vc=spatial(24, c), vj=reduction(L[i], j)):
                            annotate(monoid='sum')
                            with init():
                                S[vi, vc] = 0.0
                            S[vi, vc] = S[vi, vc] + X[vi, vj] * A[vj, vc]
            for i in range(n):
                for c in range(24):
                    with block('y', vi=spatial(n, i), vc=spatial(24, c)):
                        Y[vi, vc] = max(S[vi, vc], 0.0)
"""

CSR_CHAIN = """
@loops
def csr_chain(V: f32[z], K: i64[z], P: i64[n + 1], X: f32[m, d], Y: f32[n, d], n: i64, m: i64, z: i64, d: i64):
    with alloc(f32[m, d], scope='global') as A:
        with alloc(f32[n, d], scope='global') as S:
            for j in range(m):
                for c in range(d):
                    with block('a', vj=spatial(m, j), vc=spatial(d, c)):
                        A[vj, vc] = X[vj, vc] + 1.0
            for i in range(n):
                for c in range(d):
                    for j in range(P[i + 1] - P[i]):
                        with block('s', vi=spatial(n, i), vc=spatial(d, c), vj=reduction(P[i + 1] - P[i], j)):
                            annotate(monoid='sum')
                            with init():
                                S[vi, vc] = 0.0
                            S[vi, vc] = S[vi, vc] + V[P[vi] + vj] * A[K[P[vi] + vj], vc]
            for i in range(n):
                for c in range(d):
                    with block('y', vi=spatial(n, i), vc=spatial(d, c)):
                        Y[vi, vc] = max(S[vi, vc], 0.0)
"""

PAGED_CHAIN = """
@loops
def paged_chain(Q: f32[n, 6], C: f32[p, 8, 6], T: i64[n, q], L: i64[n], Y: f32[n, q * 8], n: i64, p: i64, q: i64):
    with alloc(f32[n, 6], scope='global') as A:
        with alloc(f32[n, q * 8], scope='global') as S:
            for i in range(n):
                for d in range(6):
                    with block('a', vi=spatial(n, i), vd=spatial(6, d)):
                        A[vi, vd] = Q[vi, vd] * 2.0
            for i in range(n):
                for t in range(L[i]):
                    for d in range(6):
                        with block('s', vi=spatial(n, i), vt=spatial(L[i], t), vd=reduction(6, d)):
                            annotate(monoid='sum')
                            with init():
                                S[vi, vt] = 0.0
                            S[vi, vt] = S[vi, vt] + A[vi, vd] * C[T[vi, vt // 8], vt % 8, vd]
            for i in range(n):
                for t in range(q * 8):
                    with block('y', vi=spatial(n, i), vt=spatial(q * 8, t)):
                        Y[vi, vt] = select(vt < L[vi], S[vi, vt], 0.0)
"""

PAGED_SUM_CHAIN = """
@loops
def paged_sum_chain(W: f32[n, q * 8], C: f32[p, 8, d], T: i64[n, q], L: i64[n], Y: f32[n, d], n: i64, p: i64, q: i64, d: i64):
    with alloc(f32[n, q * 8], scope='global') as A:
        with alloc(f32[n, d], scope='global') as S:
            for i in range(n):
                for t in range(q * 8):
                    with block('a', vi=spatial(n, i), vt=spatial(q * 8, t)):
                        A[vi, vt] = W[vi, vt] * 2.0
            for i in range(n):
                for c in range(d):
                    for t in range(L[i]):
                        with block('s', vi=spatial(n, i), vc=spatial(d, c), vt=reduction(L[i], t)):
                            annotate(monoid='sum')
                            with init():
                                S[vi, vc] = 0.0
                            S[vi, vc] = S[vi, vc] + A[vi, vt] * C[T[vi, vt // 8], vt % 8, vc]
            for i in range(n):
                for c in range(d):
                    with block('y', vi=spatial(n, i), vc=spatial(d, c)):
                        Y[vi, vc] = max(S[vi, vc], 0.0)
"""

TEXTS = {
    "ragged_sum": RAGGED_SUM,
    "ragged_mean": RAGGED_MEAN,
    "ragged_softmax": RAGGED_SOFTMAX,
    "ragged_matmul": RAGGED_MATMUL,
    "ragged_scale": RAGGED_SCALE,
    "csr_vector": CSR_VECTOR,
    "csr_matrix": CSR_MATRIX,
    "paged_scores": PAGED_SCORES,
    "paged_sum": PAGED_SUM,
    "ragged_chain": RAGGED_CHAIN,
    "ragged_product_chain": RAGGED_PRODUCT_CHAIN,
    "csr_chain": CSR_CHAIN,
    "paged_chain": PAGED_CHAIN,
    "paged_sum_chain": PAGED_SUM_CHAIN,
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
