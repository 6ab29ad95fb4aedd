"""Programs of launches, threads forking and joining, with what they compute in numpy: shared memory, tails and barriers of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_module
from tc.passes.loop.distribute_threads import distribute_threads
from tc.passes.loop.simplify_loops import simplify_loops

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class LaunchProgram:
    """A program, the shapes (and dtypes) of its inputs, the values of its dims, and its meaning."""

    text: str
    shapes: tuple[tuple[int, ...], ...]
    meaning: Callable[..., np.ndarray | Arrays]
    dims: tuple[int, ...] = ()
    integers: int = 0  # so many of the last inputs are integers below 8

    @property
    def scheduled(self) -> PrimFunc:
        (func,) = parse_module(f"@loops\n{self.text.strip()}\n").prim_funcs
        return func

    @property
    def finished(self) -> PrimFunc:
        """In the form that devices run."""
        return simplify_loops(distribute_threads(self.scheduled))

    def inputs(self) -> Arrays:
        rng = np.random.default_rng(7)
        floats = [rng.standard_normal(shape).astype(np.float32) for shape in self.shapes[: len(self.shapes) - self.integers]]
        return floats + [rng.integers(0, 8, shape) for shape in self.shapes[len(floats) :]]

    def expected(self) -> Arrays:
        found = self.meaning(*[array.astype(np.float64) if array.dtype == np.float32 else array for array in self.inputs()])
        return found if isinstance(found, list) else [found]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_with_sink(x: np.ndarray) -> np.ndarray:
    """That of which the sum has one more: it matters what is taken off before."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / (1 + e.sum(-1, keepdims=True))


def in_blocks(x: np.ndarray, size: int, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """A function of each run of `size` elements, the last of which may be shorter."""
    return np.concatenate([change(x[k : k + size]) for k in range(0, len(x), size)])


def halved(x: np.ndarray) -> np.ndarray:
    """Rows halved until none is above 1."""
    for row in x:
        while np.abs(row).max() > 1:
            row /= 2
    return x


PROGRAMS: dict[str, LaunchProgram] = {
    "matmul": LaunchProgram(
        """
def f(A: f32[8, 12], B: f32[12, 8], C: f32[8, 8]):
    outputs(1)
    for by in bound(2, 'block.y'):
        for bx in bound(2, 'block.x'):
            with alloc(f32[4, 4], scope='local') as C_l:
                for ty in bound(2, 'thread.y'):
                    for tx in bound(2, 'thread.x'):
                        for i in unrolled(2):
                            for j in unrolled(2):
                                C_l[ty * 2 + i, j * 2 + tx] = 0.0
                for ko in range(3):
                    with alloc(f32[4, 4], scope='shared') as A_s:
                        with alloc(f32[4, 4], scope='shared') as B_s:
                            for fy in bound(2, 'thread.y'):
                                for fx in bound(2, 'thread.x'):
                                    for v in range(4):
                                        A_s[fy * 2 + fx, v] = A[by * 4 + fy * 2 + fx, ko * 4 + v]
                            for gy in bound(2, 'thread.y'):
                                for gx in bound(2, 'thread.x'):
                                    for w in range(4):
                                        B_s[w, gy * 2 + gx] = B[ko * 4 + w, bx * 4 + gy * 2 + gx]
                            for uy in bound(2, 'thread.y'):
                                for ux in bound(2, 'thread.x'):
                                    for k in range(4):
                                        for p in unrolled(2):
                                            for q in unrolled(2):
                                                with let(A_s[uy * 2 + p, k] * B_s[k, q * 2 + ux]) as term:
                                                    C_l[uy * 2 + p, q * 2 + ux] = C_l[uy * 2 + p, q * 2 + ux] + term
                for wy in bound(2, 'thread.y'):
                    for wx in bound(2, 'thread.x'):
                        for r in unrolled(2):
                            for s in unrolled(2):
                                C[by * 4 + wy * 2 + r, bx * 4 + s * 2 + wx] = C_l[wy * 2 + r, s * 2 + wx]
""",
        ((8, 12), (12, 8)),
        np.matmul,
    ),
    "row_sum": LaunchProgram(
        """
def f(A: f32[n, 40], S: f32[n], n: i64):
    outputs(1)
    promise(n, 0, None, 1)
    for b in bound(n, 'block.x'):
        with alloc(f32[8], scope='shared') as P:
            for t in bound(8, 'thread.x'):
                P[t] = 0.0
                for k in range(5):
                    P[t] = P[t] + A[b, k * 8 + t]
            for u in bound(4, 'thread.x'):
                P[u] = P[u] + P[u + 4]
            for v in bound(2, 'thread.x'):
                P[v] = P[v] + P[v + 2]
            S[b] = P[0] + P[1]
""",
        ((3, 40),),
        lambda a: a.sum(1),
        (3,),
    ),
    "reversed_with_tails": LaunchProgram(
        """
def f(A: f32[n], B: f32[n], C: f32[n], n: i64):
    outputs(2)
    promise(n, 0, None, 1)
    for b in bound((n + 7) // 8, 'block.x'):
        with alloc(f32[8], scope='shared') as S:
            with alloc(f32[16], scope='local') as L:
                for t in bound(8, 'thread.x'):
                    if b * 8 + t < n:
                        S[t] = A[b * 8 + t]
                        L[t] = A[b * 8 + t] + 1.0
                        L[8 + t] = A[b * 8 + t] + 2.0
                for t2 in bound(8, 'thread.x'):
                    if b * 8 + t2 < n:
                        B[b * 8 + t2] = S[min(7, n - b * 8 - 1) - t2] + L[t2]
                for t3 in bound(8, 'thread.x'):
                    if b * 8 + t3 < n:
                        C[b * 8 + t3] = B[b * 8 + t3] * L[8 + t3]
""",
        ((13,),),
        lambda a: [in_blocks(a, 8, lambda x: x[::-1]) + a + 1, (in_blocks(a, 8, lambda x: x[::-1]) + a + 1) * (a + 2)],
        (13,),
    ),
    "transpose": LaunchProgram(
        """
def f(A: f32[m, n], B: f32[n, m], m: i64, n: i64):
    outputs(1)
    promise(m, 0, None, 1)
    promise(n, 0, None, 1)
    for by in bound((m + 3) // 4, 'block.y'):
        for bx in bound((n + 3) // 4, 'block.x'):
            with alloc(f32[4, 5], scope='shared') as T:
                for y in bound(2, 'thread.y'):
                    for x in bound(4, 'thread.x'):
                        for r in range(2):
                            if by * 4 + r * 2 + y < m and bx * 4 + x < n:
                                T[r * 2 + y, x] = A[by * 4 + r * 2 + y, bx * 4 + x]
                for y2 in bound(2, 'thread.y'):
                    for x2 in bound(4, 'thread.x'):
                        for r2 in range(2):
                            if bx * 4 + r2 * 2 + y2 < n and by * 4 + x2 < m:
                                B[bx * 4 + r2 * 2 + y2, by * 4 + x2] = T[x2, r2 * 2 + y2]
""",
        ((6, 7),),
        np.transpose,
        (6, 7),
    ),
    "softmax_with_sink": LaunchProgram(
        """
def f(A: f32[3, 16], B: f32[3, 16], M: f32[3]):
    outputs(2)
    for b in bound(3, 'block.x'):
        with alloc(f32[4], scope='shared') as top:
            with alloc(f32[4], scope='shared') as total:
                with alloc(f32[16], scope='local') as e:
                    for t in bound(4, 'thread.x'):
                        top[t] = A[b, t]
                        for i in range(3):
                            top[t] = max(top[t], A[b, i * 4 + 4 + t])
                    for s in range(2):
                        for u in bound(4, 'thread.x'):
                            if u < 2 - s:
                                top[u] = max(top[u], top[u + 2 - s])
                    for v in bound(4, 'thread.x'):
                        total[v] = 0.0
                        for j in range(4):
                            e[j * 4 + v] = exp(A[b, j * 4 + v] - top[0])
                            total[v] = total[v] + e[j * 4 + v]
                    for w in bound(4, 'thread.x'):
                        for k in range(4):
                            B[b, k * 4 + w] = e[k * 4 + w] / (total[0] + total[1] + (total[2] + total[3]) + 1.0)
                    M[b] = top[0]
""",
        ((3, 16),),
        lambda a: [softmax_with_sink(a), a.max(1)],
    ),
    "stencil": LaunchProgram(
        """
def f(A: f32[n], B: f32[n], n: i64):
    outputs(1)
    promise(n, 0, None, 1)
    for b in bound((n + 7) // 8, 'block.x'):
        with alloc(f32[10], scope='shared') as S:
            for t in bound(10, 'thread.x'):
                S[t] = select(0 < b * 8 + t and b * 8 + t <= n, A[b * 8 + t - 1], 0.0)
            for u in bound(8, 'thread.x'):
                if b * 8 + u < n:
                    B[b * 8 + u] = S[u] + S[u + 1] * 2.0 + S[u + 2] * 4.0
""",
        ((21,),),
        lambda a: np.convolve(a, [4.0, 2.0, 1.0], "same"),
        (21,),
    ),
    "two_stages": LaunchProgram(
        """
def f(A: f32[5, 8], B: f32[8]):
    outputs(1)
    for b in bound(1, 'block.x'):
        with alloc(f32[2, 8], scope='shared') as S:
            with alloc(f32[8], scope='local') as sums:
                for t in bound(8, 'thread.x'):
                    S[0, t] = A[0, t]
                    sums[t] = 0.0
                for k in range(4):
                    for u in bound(8, 'thread.x'):
                        S[(k + 1) % 2, u] = A[k + 1, u]
                    for v in bound(8, 'thread.x'):
                        sums[v] = sums[v] + S[k % 2, 7 - v] * S[k % 2, v]
                for w in bound(8, 'thread.x'):
                    B[w] = sums[w] + S[0, (w + 1) % 8]
""",
        ((5, 8),),
        lambda a: (a[:4] * a[:4, ::-1]).sum(0) + np.roll(a[4], -1),
    ),
    "scan": LaunchProgram(
        """
def f(A: f32[16], B: f32[16]):
    outputs(1)
    for b in bound(2, 'block.x'):
        with alloc(f32[2, 8], scope='shared') as S:
            for t in bound(8, 'thread.x'):
                S[0, t] = A[b * 8 + t]
            for u in bound(8, 'thread.x'):
                S[1, u] = S[0, u]
                if 0 < u:
                    S[1, u] = S[0, u] + S[0, u - 1]
            for v in bound(8, 'thread.x'):
                S[0, v] = S[1, v]
                if 1 < v:
                    S[0, v] = S[1, v] + S[1, v - 2]
            for w in bound(8, 'thread.x'):
                if 3 < w:
                    B[b * 8 + w] = S[0, w] + S[0, w - 4]
                else:
                    B[b * 8 + w] = S[0, w]
""",
        ((16,),),
        lambda a: in_blocks(a, 8, np.cumsum),
    ),
    "centred": LaunchProgram(
        """
def f(A: f32[3, 8], B: f32[3, 8]):
    outputs(1)
    for b in bound(3, 'block.x'):
        with alloc(f32[2], scope='shared') as mean:
            with alloc(f32[8], scope='shared') as row:
                for t in bound(8, 'thread.x'):
                    row[t] = A[b, t]
                mean[0] = 0.0
                for k in range(8):
                    mean[0] = mean[0] + row[k]
                mean[1] = mean[0] / 8.0
                for u in bound(8, 'thread.x'):
                    B[b, u] = row[u] - mean[1]
""",
        ((3, 8),),
        lambda a: a - a.mean(1, keepdims=True),
    ),
    "column_sums": LaunchProgram(
        """
def f(A: f32[m, 6], B: f32[6], m: i64):
    outputs(1)
    promise(m, 1, None, 1)
    for b in bound(2, 'block.x'):
        with alloc(f32[4, 3], scope='shared') as P:
            for y in bound(4, 'thread.y'):
                for x in bound(3, 'thread.x'):
                    P[y, x] = 0.0
                    for k in range((m + 3) // 4):
                        if k * 4 + y < m:
                            P[y, x] = P[y, x] + A[k * 4 + y, b * 3 + x]
            for z in bound(3, 'thread.x'):
                B[b * 3 + z] = P[0, z] + P[1, z] + (P[2, z] + P[3, z])
""",
        ((7, 6),),
        lambda a: a.sum(0),
        (7,),
    ),
    "table": LaunchProgram(
        """
def f(A: f32[8], I: i64[10], B: f32[10]):
    outputs(1)
    for b in bound(2, 'block.x'):
        with alloc(f32[8], scope='shared') as S:
            for t in bound(4, 'thread.x'):
                for i in range(2):
                    S[i * 4 + t] = A[i * 4 + t] * 3.0
            for u in bound(5, 'thread.x'):
                B[b * 5 + u] = S[max(min(I[b * 5 + u], 7), 0)]
""",
        ((8,), (10,)),
        lambda a, i: (a * 3)[i],
        integers=1,
    ),
    "halving": LaunchProgram(
        """
def f(A: f32[40, 4], B: f32[40, 4]):
    outputs(1)
    for b in bound(40, 'block.x'):
        with alloc(f32[4], scope='shared') as S:
            for t in bound(4, 'thread.x'):
                S[t] = A[b, t] * 8.0
            while 1.0 < max(max(abs(S[0]), abs(S[1])), max(abs(S[2]), abs(S[3]))):
                for u in bound(4, 'thread.x'):
                    S[u] = S[u] * 0.5
            for v in bound(4, 'thread.x'):
                B[b, v] = S[v]
""",
        ((40, 4),),
        lambda a: halved(a * 8),
    ),
    "attention": LaunchProgram(
        """
def f(Q: f32[4, 4], K: f32[6, 4], V: f32[6, 4], O: f32[4, 4]):
    outputs(1)
    for b in bound(4, 'block.x'):
        with alloc(f32[6], scope='shared') as score:
            with alloc(f32[1], scope='shared') as total:
                with alloc(f32[4], scope='shared') as q:
                    for c in bound(4, 'thread.x'):
                        q[c] = Q[b, c] * 0.5
                    for t in bound(6, 'thread.x'):
                        with alloc(f32[1], scope='local') as s:
                            s[0] = 0.0
                            for d in range(4):
                                s[0] = s[0] + q[d] * K[t, d]
                            score[t] = exp(s[0])
                    total[0] = score[0]
                    for k in range(5):
                        total[0] = total[0] + score[k + 1]
                    for u in bound(4, 'thread.x'):
                        with alloc(f32[1], scope='local') as o:
                            o[0] = 0.0
                            for j in range(6):
                                o[0] = o[0] + score[j] * V[j, u]
                            O[b, u] = o[0] / total[0]
""",
        ((4, 4), (6, 4), (6, 4)),
        lambda q, k, v: softmax(q @ k.T / 2) @ v,
    ),
}
