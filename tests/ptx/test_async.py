"""The rest of asynchronous code: other types and sources of wgmma, plain bulk copies, arrivals by cp.async, clusters of one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.errors import AsyncMisuse, Race, UnwrittenRead
from tests.ptx.launch import run
from tests.ptx.nvcc import ptx_of

HEAD = """.version 8.4
.target sm_90a
.address_size 64
.visible .entry f(.param .u64 a, .param .u64 b, .param .u64 d) {
  .extern .shared .align 1024 .b8 s[];
  .reg .b64 %p<8>, %da, %db; .reg .b32 %t<4>, %a<4>, %d<64>; .reg .f32 %f<64>; .reg .pred %q, %q1;
  ld.param.u64 %p0, [a]; ld.param.u64 %p1, [b]; ld.param.u64 %p2, [d]; mov.u32 %t0, %tid.x; mov.u32 %t1, %t0;
  mul.wide.u32 %p3, %t0, 4; add.u64 %p4, %p1, %p3; setp.ne.u32 %q1, 0, 0;
"""


def fill(words: int) -> str:
    """Shared memory from `b`."""
    return f"""
fill: setp.ge.u32 %q, %t1, {words}; @%q bra filled;
  ld.global.b32 %t2, [%p4]; shl.b32 %t3, %t1, 2; add.u32 %t3, %t3, s; st.shared.b32 [%t3], %t2;
  add.u32 %t1, %t1, 128; add.u64 %p4, %p4, 512; bra fill;
filled: fence.proxy.async.shared::cta; bar.sync 0;
"""


def result(register: str, count: int) -> str:
    stores = "\n".join(f"  st.global.b32 [%p3+{4 * i}], %{register}{i};" for i in range(count))
    return f"\n  mul.wide.u32 %p3, %t0, {4 * count}; add.u64 %p3, %p3, %p2;\n{stores}\n  ret;\n}}\n"


def names(register: str, count: int) -> str:
    return "{" + ", ".join(f"%{register}{i}" for i in range(count)) + "}"


def cores(matrix: np.ndarray) -> np.ndarray:
    """Rows along k without swizzle: blocks of 8 rows of 16 bytes, those of one group of rows side by side."""
    rows = matrix.view(np.uint8).reshape(len(matrix), -1)
    return np.ascontiguousarray(rows.reshape(len(rows) // 8, 8, -1, 16).swapaxes(1, 2)).reshape(-1)


def describe(start: int, row_bytes: int) -> int:
    return start >> 4 | 128 >> 4 << 16 | row_bytes * 8 >> 4 << 32


def accumulator(total: np.ndarray, columns: int) -> np.ndarray:
    lane, i = np.arange(128)[:, None], np.arange(columns // 2)
    return total[lane // 32 * 16 + lane % 32 // 4 + i // 2 % 2 * 8, i // 4 * 8 + lane % 4 * 2 + i % 2]


TYPES = {"f16": (np.float16, 16, "f32"), "bf16": (np.uint16, 16, "f32"), "tf32": (np.float32, 8, "f32"), "s8": (np.int8, 32, "s32")}


def operands(kind: str, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """(A, B, exact product, type of the sums) with small whole numbers."""
    dtype, depth, total = TYPES[kind]
    rng = np.random.default_rng(depth)
    a, b = rng.integers(-8, 9, (64, depth)), rng.integers(-8, 9, (columns, depth))
    exact = (a @ b.T).astype(np.int32 if total == "s32" else np.float32)
    if kind == "bf16":
        a, b = ((x.astype(np.float32).view(np.uint32) >> 16) for x in (a, b))
    return a.astype(dtype), b.astype(dtype), exact, total


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("columns", [8, 96])
def test_products_of_every_type(kind: str, columns: int) -> None:
    a, b, exact, total = operands(kind, columns)
    depth = a.shape[1]
    memory = np.concatenate([cores(a), np.zeros(-a.nbytes % 1024, np.uint8), cores(b)])
    starts = (1024, 1024 + -(-a.nbytes // 1024) * 1024)
    register = "d" if total == "s32" else "f"
    scales = "" if kind == "s8" else ", 1, 1, 0, 0" if kind in ("f16", "bf16") else ", 1, 1"
    d = np.zeros((128, columns // 2), exact.dtype)

    sums = names(register, columns // 2)
    text = (
        HEAD + fill(memory.size // 4) + "  wgmma.fence.sync.aligned;\n"
        f"  mov.b64 %da, {describe(starts[0], a.nbytes // 64)}; mov.b64 %db, {describe(starts[1], a.nbytes // 64)};\n"
        f"  wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{total}.{kind}.{kind} {sums}, %da, %db, %q1{scales};\n"
        "  wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" + result(register, columns // 2)
    )
    run(text, "f", (1,), (128,), [memory, memory, d], memory.size)

    np.testing.assert_array_equal(d, accumulator(exact, columns))


def from_registers(between: str = "") -> tuple[str, list[np.ndarray], np.ndarray, int]:
    a, b, exact, _ = operands("f16", 16)
    lane, word = np.arange(128)[:, None], np.arange(4)
    row, k = lane // 32 * 16 + lane % 32 // 4 + word % 2 * 8, word // 2 * 8 + lane % 4 * 2
    held = np.ascontiguousarray(np.stack([a[row, k], a[row, k + 1]], 2)).view(np.uint32)[:, :, 0]
    memory = cores(b)
    d = np.zeros((128, 8), np.float32)
    loads = "".join(f"  ld.global.b32 %a{i}, [%p5+{4 * i}];\n" for i in range(4))
    text = (
        HEAD + fill(memory.size // 4) + "  mul.wide.u32 %p5, %t0, 16; add.u64 %p5, %p5, %p0;\n" + loads
        + f"  wgmma.fence.sync.aligned; mov.b64 %db, {describe(1024, 32)};\n"
        + f"  wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {names('f', 8)}, {names('a', 4)}, %db, %q1, 1, -1, 0;\n"
        + "  wgmma.commit_group.sync.aligned;\n" + between + "  wgmma.wait_group.sync.aligned 0;" + result("f", 8)
    )  # fmt: skip
    return text, [held, memory, d], -exact, memory.size


def test_product_of_registers_and_memory_with_a_sign() -> None:
    text, arguments, expected, shared = from_registers()

    run(text, "f", (1,), (128,), arguments, shared)

    np.testing.assert_array_equal(arguments[2], accumulator(expected, 16))


@pytest.mark.parametrize("between", ["mov.b32 %a1, 0;", "mov.f32 %f9, %f3;", "add.f32 %f0, %f0, %f0;"])
def test_registers_of_a_product_in_flight_may_not_be_touched(between: str) -> None:
    text, arguments, _, shared = from_registers(between)

    with pytest.raises(AsyncMisuse, match=r"before wgmma.wait_group\n.*" + between.split(",")[0].replace(".", r"\.")):
        run(text, "f", (1,), (128,), arguments, shared)


def test_other_registers_may_be_used_during_a_product() -> None:
    text, arguments, expected, shared = from_registers("mov.b32 %d9, 5; add.u32 %t1, %t1, %d9;")

    run(text, "f", (1,), (128,), arguments, shared)

    np.testing.assert_array_equal(arguments[2], accumulator(expected, 16))


COPIES = r"""
#include <cstdint>
__device__ __forceinline__ uint32_t smem(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void wait(uint64_t* barrier, int parity) {
  asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1, 100; @!p bra again; }"
               :: "r"(smem(barrier)), "r"(parity) : "memory");
}
extern "C" __global__ void bulk(const int* x, int* y, int n) {
  __shared__ __align__(16) int s[256]; __shared__ uint64_t bar;
  int t = threadIdx.x;
  if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(smem(&bar)) : "memory");
  __syncthreads();
  if (t == 0) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" :: "r"(smem(&bar)), "r"(n * 4) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(smem(s)), "l"(x), "r"(n * 4), "r"(smem(&bar)) : "memory");
  }
  if (WAITS) wait(&bar, 0);
  int v = t < n ? s[t] * 2 : 0;
  __syncthreads();
  if (t < n) s[t] = v;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (t == 0) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;"
                 :: "l"(y), "r"(smem(s)), "r"(n * 4) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
extern "C" __global__ void arrivals(const float4* x, float* y) {
  __shared__ __align__(16) float4 s[64]; __shared__ uint64_t bar;
  int t = threadIdx.x;
  if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 64;" :: "r"(smem(&bar)) : "memory");
  __syncthreads();
  if (t < 64) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(smem(&s[t])), "l"(x + t) : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(smem(&bar)) : "memory");
  }
  if (WAITS || t < 64) wait(&bar, 0);
  y[t] = ((float*)s)[255 - t];
}
"""


@pytest.mark.parametrize("n", [64, 200])
def test_bytes_in_bulk(n: int) -> None:
    x, y = np.arange(n, dtype=np.int32), np.ones(n, np.int32)

    run(ptx_of(COPIES.replace("WAITS", "true"), "sm_90a"), "bulk", (1,), (256,), [x, y, n])

    np.testing.assert_array_equal(y, 1 + 2 * x)


def test_bytes_in_flight_are_found() -> None:
    with pytest.raises(UnwrittenRead, match="in flight"):
        run(ptx_of(COPIES.replace("WAITS", "false"), "sm_90a"), "bulk", (1,), (256,), [np.zeros(64, np.int32)] * 2 + [64])


def test_copies_arrive_at_an_mbarrier() -> None:
    x, y = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)

    run(ptx_of(COPIES.replace("WAITS", "true"), "sm_90a"), "arrivals", (1,), (256,), [x, y])

    np.testing.assert_array_equal(y, x[::-1])
    with pytest.raises((Race, UnwrittenRead), match="asynchronous instruction"):  # those that only copied need not wait, others must
        run(ptx_of(COPIES.replace("WAITS", "false"), "sm_90a"), "arrivals", (1,), (256,), [x, y])
