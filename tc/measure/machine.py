"""What this machine can do at best: multiply-adds in registers, and streams through memory, as loops made for nothing else.

A limit is a program like any other: it takes its turns in the harness beside the kernels that it limits, so that a machine that
slows down slows both. The loops are native code on the threads of `tc`'s own pool, so they know no cost that kernels do not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tc.codegen.llvm.jit import compile_object, link
from tc.runtime.memory import aligned_empty
from tc.runtime.pool import get_pool
from tc.target import Target

_FMA_STEPS = 1 << 15
_UNROLL = 8  # vectors that a stream moves in one step

FORK_JOIN_JOBS = 10

_RUN = """
declare void @tc_parallel_for(ptr, ptr, i64, i64, i64)
define void @run(ptr %context, i64 %shares, i64 %threads, i64 %times) nounwind {
entry:
  br label %again
again:
  %t = phi i64 [ 0, %entry ], [ %u, %again ]
  call void @tc_parallel_for(ptr @work, ptr %context, i64 %shares, i64 1, i64 %threads)
  %u = add i64 %t, 1
  %more = icmp slt i64 %u, %times
  br i1 %more, label %again, label %done
done:
  ret void
}
"""

# Every share: a chain of dependent multiplications, which neither memory nor the neighbour's work slows down.
_SPIN_TEXT = """
define internal void @work(ptr %context, i64 %begin, i64 %stop, i64 %thread) nounwind {
entry:
  %shares = sub i64 %stop, %begin
  %steps = mul i64 %shares, 20000
  br label %again
again:
  %t = phi i64 [ 0, %entry ], [ %u, %again ]
  %v = phi i64 [ %begin, %entry ], [ %w, %again ]
  %w = call i64 asm sideeffect "imul $0, $0", "=r,0"(i64 %v)
  %u = add i64 %t, 1
  %more = icmp slt i64 %u, %steps
  br i1 %more, label %again, label %done
done:
  ret void
}
"""


@dataclass(frozen=True)
class Limit:
    """A loop that does nothing but reach one limit: call `step`, and `flops` are done, `size_bytes` moved."""

    name: str
    step: Callable[[], object]
    flops: int = 0
    size_bytes: int = 0


def fma_limit(target: Target, threads: int = 1) -> Limit:
    """Fused multiply-adds of f32 vectors, as many chains side by side as registers allow, none of which loads or stores.

    A multiply-add counts as two operations. About 1 ms a call.
    """
    lanes = target.lanes(32)
    chains = target.num_vector_registers - 4
    shares = 4 * threads
    sums, factors = np.zeros(chains * lanes * shares, np.float32), np.ones(lanes, np.float32)
    step = native_loop(_fma_text(lanes, chains), shares, threads, sums, factors)
    return Limit("fma", step, flops=2 * lanes * chains * _FMA_STEPS * shares)


def stream_limit(target: Target, kind: str = "update", size_bytes: int = 128 << 20, threads: int = 1) -> Limit:
    """A stream through `size_bytes` of memory, rounded down; call after call the same, so caches hold what they can.

    kind "update": y = x + 1, half of it read and half written, with ordinary stores (what a store fetches first is not
    counted). "read": the sum of x, all of it read, from several places at once.
    """
    lanes = target.lanes(32)
    shares = 4 * threads
    block = _UNROLL * lanes * shares
    arrays = 2 if kind == "update" else 1
    elements = size_bytes // (4 * arrays) // block * block or block
    data = [_ones(elements) for _ in range(arrays)]
    text = _update_text(lanes, elements // shares) if kind == "update" else _read_text(lanes, elements // shares)
    step = native_loop(text, shares, threads, *data, _ones(lanes * shares))
    return Limit(f"stream {kind}", step, size_bytes=4 * elements * arrays)


def fork_join_programs(threads: int) -> tuple[Limit, Limit]:
    """Two programs of `FORK_JOIN_JOBS` parallel loops each: of one share, which nothing is forked for, and of one share for each thread.

    Every share takes some 20 microseconds, long enough for all threads to come in, so what the second takes longer than the first
    is the cost of `FORK_JOIN_JOBS` times forking and joining. With loops that do nothing the caller is done before others come.
    """
    alone = native_loop(_SPIN_TEXT, 1, 1, repeat=FORK_JOIN_JOBS)
    together = native_loop(_SPIN_TEXT, threads, threads, repeat=FORK_JOIN_JOBS)
    return Limit("one share", alone), Limit("a share each", together)


def _ones(elements: int) -> np.ndarray:
    """float32[elements] of ones that begin a cache line. Ones: a page never written is no memory to read from."""
    array = aligned_empty((elements,), np.dtype(np.float32))
    array.fill(1)
    return array


def native_loop(text: str, shares: int, threads: int, *arrays: np.ndarray, repeat: int = 1) -> Callable[[], object]:
    """The call that runs `work` of the LLVM text over all shares `repeat` times; `arrays` are its context, and stay alive with it."""
    pool = get_pool()
    pool.start(threads)
    library = link([compile_object(text + _RUN)])
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(library.address("run"))
    context = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    keep: tuple[Any, ...] = (library, context, arrays)

    def step() -> object:
        run(ctypes.addressof(keep[1]), shares, threads, repeat)
        return None

    return step


def _fma_text(lanes: int, chains: int) -> str:
    """Every share: `_FMA_STEPS` times acc = acc * a + b for each chain."""
    vector = f"<{lanes} x float>"
    update = f"call {vector} @llvm.fma({vector} {{chain}}, {vector} %a, {vector} %b)"
    return chains_text(vector, chains, _FMA_STEPS, update) + f"declare {vector} @llvm.fma({vector}, {vector}, {vector})\n"


def chains_text(vector: str, chains: int, steps: int, update: str, prepared: Sequence[str] = ()) -> str:
    """Every share: `steps` times an operation on vectors for each chain, whose operand `{chain}` is what it gave before.

    %a and %b come from memory, so nothing can be folded; `prepared`: lines that make other operands from them.
    """
    load = [f"  %p{k} = getelementptr {vector}, ptr %mine, i64 {k}" for k in range(chains)]
    load += [f"  %s{k} = load {vector}, ptr %p{k}, align 4" for k in range(chains)]
    phi = [f"  %c{k} = phi {vector} [ %s{k}, %share ], [ %n{k}, %again ]" for k in range(chains)]
    updates = [f"  %n{k} = {update.format(chain=f'%c{k}')}" for k in range(chains)]
    store = [f"  store {vector} %n{k}, ptr %p{k}, align 4" for k in range(chains)]
    return in_shares(
        [
            f"  %mine = getelementptr {vector}, ptr %x, i64 %first",
            *load,
            f"  %a = load {vector}, ptr %y, align 4",
            f"  %b = load {vector}, ptr %y, align 4",
            *prepared,
            "  br label %again",
            "again:",
            "  %t = phi i64 [ 0, %share ], [ %u, %again ]",
            *phi,
            *updates,
            "  %u = add i64 %t, 1",
            f"  %more = icmp slt i64 %u, {steps}",
            "  br i1 %more, label %again, label %next",
            "next:",
            *store,
        ],
        first=chains,
        arrays="xy",
    )


def _update_text(lanes: int, elements: int) -> str:
    """Every share: y = x + 1 over `elements` of its own."""
    vector = f"<{lanes} x float>"
    body = []
    for k in range(_UNROLL):
        body += [
            f"  %i{k} = add i64 %t, {k}",
            f"  %p{k} = getelementptr {vector}, ptr %x, i64 %i{k}",
            f"  %q{k} = getelementptr {vector}, ptr %y, i64 %i{k}",
            f"  %v{k} = load {vector}, ptr %p{k}, align 64",
            f"  %w{k} = fadd {vector} %v{k}, splat (float 1.0)",
            f"  store {vector} %w{k}, ptr %q{k}, align 64",
        ]
    return in_shares(_stream(body, [], elements // lanes, _UNROLL), first=elements // lanes, arrays="xy")


def _read_text(lanes: int, elements: int) -> str:
    """Every share: the sum of `elements` of its own, read from `_UNROLL` places at once, which keeps more lines on their way."""
    vector = f"<{lanes} x float>"
    vectors = elements // lanes
    apart = vectors // _UNROLL
    phi = [f"  %s{k} = phi {vector} [ zeroinitializer, %share ], [ %w{k}, %again ]" for k in range(_UNROLL)]
    body = []
    for k in range(_UNROLL):
        body += [
            f"  %i{k} = add i64 %t, {k * apart}",
            f"  %p{k} = getelementptr {vector}, ptr %x, i64 %i{k}",
            f"  %v{k} = load {vector}, ptr %p{k}, align 64",
            f"  %w{k} = fadd {vector} %s{k}, %v{k}",
        ]
    total = [f"  %z{k} = fadd {vector} %{'z' if k > 1 else 'w'}{k - 1}, %w{k}" for k in range(1, _UNROLL)]
    store = [*total, f"  %r = getelementptr {vector}, ptr %y, i64 %i", f"  store {vector} %z{_UNROLL - 1}, ptr %r, align 64"]
    return in_shares([*_stream(body, phi, apart, 1), *store], first=vectors, arrays="xy")


def _stream(body: list[str], phi: list[str], vectors: int, stride: int) -> list[str]:
    """A loop over `vectors` from %first on, `stride` of them in one step."""
    return [
        f"  %end = add i64 %first, {vectors}",
        "  br label %again",
        "again:",
        "  %t = phi i64 [ %first, %share ], [ %u, %again ]",
        *phi,
        *body,
        f"  %u = add i64 %t, {stride}",
        "  %more = icmp slt i64 %u, %end",
        "  br i1 %more, label %again, label %next",
        "next:",
    ]


def in_shares(lines: list[str], first: int, arrays: str) -> str:
    """The function `work`: `lines` for each share %i of a chunk; %first counts `first` a share, the context holds `arrays`."""
    pointers = []
    for k, name in enumerate(arrays):
        pointers += [f"  %{name}p = getelementptr ptr, ptr %context, i64 {k}", f"  %{name} = load ptr, ptr %{name}p"]
    return "\n".join(
        [
            "define internal void @work(ptr %context, i64 %begin, i64 %stop, i64 %thread) nounwind {",
            "entry:",
            *pointers,
            "  br label %share",
            "share:",
            "  %i = phi i64 [ %begin, %entry ], [ %j, %next ]",
            f"  %first = mul i64 %i, {first}",
            *lines,
            "  %j = add i64 %i, 1",
            "  %left = icmp slt i64 %j, %stop",
            "  br i1 %left, label %share, label %done",
            "done:",
            "  ret void",
            "}",
            "",
        ]
    )
