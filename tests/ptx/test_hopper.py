"""TMA, mbarriers and wgmma: a warp-specialised matmul with inline PTX through nvcc, its faults, and single instructions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.errors import AsyncMisuse, Deadlock, OutOfBounds, PtxError, Race, UnwrittenRead
from tests.ptx.launch import Report, run
from tests.ptx.nvcc import ptx_of
from tests.ptx.tensor_map import TensorMap, swizzle

MATMUL = r"""
#include <cuda_fp16.h>
#include <cstdint>
struct __align__(64) Map { char bytes[128]; };
constexpr int M = 64, N = 64, BK = 64, STAGES = 2;
__device__ __forceinline__ uint32_t smem(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ uint64_t matrix(uint32_t at, uint64_t leading, uint64_t stride, uint64_t mode) {
  return (uint64_t)((at & 0x3FFFF) >> 4) | (leading >> 4) << 16 | (stride >> 4) << 32 | mode << 62;
}
__device__ __forceinline__ void wait(uint64_t* barrier, int parity) {
  asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra done; bra again; done: }"
               :: "r"(smem(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void load(void* to, const Map* map, int x, int y, uint64_t* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               :: "r"(smem(to)), "l"(map), "r"(x), "r"(y), "r"(smem(barrier)) : "memory");
}
extern "C" __global__ void matmul(const __grid_constant__ Map a, const __grid_constant__ Map b, const __grid_constant__ Map c, int k) {
  extern __shared__ __align__(1024) char s[];
  __half* as = (__half*)s; __half* bs = (__half*)(s + STAGES * M * BK * 2); float* cs = (float*)(s + STAGES * (M + N) * BK * 2);
  __shared__ __align__(8) uint64_t full[STAGES], empty[STAGES], unwatched;
  int t = threadIdx.x, row0 = blockIdx.y * M, column0 = blockIdx.x * N, steps = (k + BK - 1) / BK;
  if (t == 0) {
    for (int i = 0; i < STAGES; i++) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(smem(&full[i])));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" :: "r"(smem(&empty[i])));
    }
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 9;" :: "r"(smem(&unwatched)));
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  if (t >= 128) {
    if (t == 128)
      for (int i = 0; i < steps; i++) {
        int stage = i % STAGES;
        if (i >= STAGES) wait(&empty[stage], (i / STAGES - 1) & 1);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(smem(&full[stage])), "r"(BYTES) : "memory");
        load(as + stage * M * BK, &a, i * BK, row0, &full[stage]);
        LOAD_B;
      }
  } else {
    float d[32];
    for (int i = 0; i < 32; i++) d[i] = 0;
    for (int i = 0; i < 32; i++) asm volatile("" : "+f"(d[i]) :: "memory");
    for (int i = 0; i < steps; i++) {
      int stage = i % STAGES;
      wait(&full[stage], i / STAGES & 1);
      FENCE;
      for (int kk = 0; kk < BK; kk += 16) {
        uint64_t da = matrix(smem(as + stage * M * BK + kk), 16, 1024, 1), db = DESCRIPTOR_B;
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, TRANSPOSED;" :
          "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
          "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),
          "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) : "l"(da), "l"(db));
      }
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      WAIT;
      asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }" :: "r"(smem(&empty[stage])) : "memory");
    }
    for (int i = 0; i < 32; i++) asm volatile("" : "+f"(d[i]) :: "memory");
    int row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
    for (int i = 0; i < 32; i++) cs[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + column + i % 2] = d[i];
    PROXY;
    asm volatile("bar.sync 1, 128;" ::: "memory");
    if (t == 0) {
      asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                   :: "l"(&c), "r"(column0), "r"(row0), "r"(smem(cs)) : "memory");
      asm volatile("cp.async.bulk.commit_group;");
      STORED;
    }
  }
}
"""
PARTS = {
    "BYTES": "(M + N) * BK * 2",
    "LOAD_B": "load(bs + stage * N * BK, &b, column0, i * BK, &full[stage])",
    "DESCRIPTOR_B": "matrix(smem(bs + stage * N * BK + kk * 64), 8192, 1024, 1)",
    "TRANSPOSED": "1",
    "FENCE": 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory")',
    "WAIT": 'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory")',
    "PROXY": 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory")',
    "STORED": 'asm volatile("cp.async.bulk.wait_group 0;" ::: "memory")',
}


def run_matmul(k: int = 200, b_along_k: bool = False, **changed: str) -> tuple[np.ndarray, np.ndarray, Report]:
    """C [100, 72] of blocks of 64 x 64, so that rows and columns and k end inside of boxes."""
    rng = np.random.default_rng(6)
    a, b = rng.integers(-4, 5, (100, k)).astype(np.float16), rng.integers(-4, 5, (k, 72)).astype(np.float16)
    c = np.zeros((100, 72), np.float32)
    parts = {**PARTS, **changed}
    b_map = TensorMap(b, (64, 64), 128)
    if b_along_k:
        b_map = TensorMap(np.ascontiguousarray(b.T), (64, 64), 128)
        parts["LOAD_B"] = "load(bs + stage * N * BK, &b, i * BK, column0, &full[stage])"
        parts["DESCRIPTOR_B"] = "matrix(smem(bs + stage * N * BK + kk), 16, 1024, 1)"
        parts["TRANSPOSED"] = "0"
    source = MATMUL
    for name, text in parts.items():
        source = source.replace(name, text)
    maps = [TensorMap(a, (64, 64), 128), b_map, TensorMap(c, (64, 64))]
    report = run(ptx_of(source, "sm_90a"), "matmul", (2, 2), (160,), [*maps, k], 2 * 2 * 8192 + 64 * 64 * 4)
    return c, a.astype(np.float32) @ b.astype(np.float32), report


@pytest.mark.parametrize("b_along_k", [False, True])
def test_matmul_by_wgmma_with_operands_from_bulk_copies(b_along_k: bool) -> None:
    c, expected, report = run_matmul(b_along_k=b_along_k)

    np.testing.assert_array_equal(c, expected)
    assert report.count("wgmma.mma_async") == 4 * 4 * 4 * 4  # 4 blocks, 4 steps, 4 parts of k, 4 warps
    assert report.count("cp.async.bulk.tensor") == 4 * (4 * 2 + 1)


FAULTS = {
    "no wait for the products": (AsyncMisuse, "in flight is used", {"WAIT": "", "k": 104}),
    "stage refilled while its products are computed": (Race, r"asynchronous instruction of warp \d read", {"WAIT": ""}),
    "no fence before the first product": (AsyncMisuse, "since the last wgmma.fence", {"FENCE": ""}),
    "stores not made visible to the bulk copy": (Race, "without fence.proxy.async", {"PROXY": ""}),
    "kernel ends before the result is read": (AsyncMisuse, "its group was not waited for", {"STORED": ""}),
    "fewer bytes than announced": (Deadlock, r"wait for the mbarrier .*full\[byte 0\]", {"BYTES": "(M + N) * BK * 2 + 16"}),
    "operand by a barrier that nobody waits for": (UnwrittenRead, "while a bulk copy into it is in flight", {
        "BYTES": "M * BK * 2", "LOAD_B": "load(bs + stage * N * BK, &b, column0, i * BK, &unwatched)"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_asynchronous_code_are_found(fault: str) -> None:
    kind, message, changed = FAULTS[fault]

    with pytest.raises(kind, match=message):
        run_matmul(**changed)


# ---------------------------------------------------------------- descriptions of matrices, against their definition

PRODUCT = """.version 8.4
.target sm_90a
.address_size 64
.visible .entry f(.param .u64 a, .param .u64 b, .param .u64 d, .param .u64 da, .param .u64 db) {{
  .extern .shared .align 1024 .b8 s[];
  .reg .b64 %p<8>; .reg .b32 %t<4>; .reg .f32 %d<{n2}>; .reg .pred %q; .reg .b64 %da, %db;
  ld.param.u64 %p0, [a]; ld.param.u64 %p1, [b]; ld.param.u64 %p2, [d]; ld.param.u64 %da, [da]; ld.param.u64 %db, [db];
  mov.u32 %t0, %tid.x; mov.u32 %t1, %t0; mul.wide.u32 %p3, %t0, 4; add.u64 %p4, %p0, %p3; add.u64 %p5, %p1, %p3;
fill: setp.ge.u32 %q, %t1, {words}; @%q bra filled;
  ld.global.b32 %t2, [%p4]; shl.b32 %t3, %t1, 2; add.u32 %t3, %t3, s; st.shared.b32 [%t3], %t2;
  add.u32 %t1, %t1, 128; add.u64 %p4, %p4, 512; bra fill;
filled: fence.proxy.async.shared::cta; bar.sync 0; wgmma.fence.sync.aligned; setp.ne.u32 %q, 0, 0;
  wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{kind}.{kind} {{{sums}}}, %da, %db, %q, 1, 1{flips};
  wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
  mul.wide.u32 %p3, %t0, {bytes}; add.u64 %p3, %p3, %p2;
{stores}
  ret;
}}
"""
MODES = {0: 0, 128: 1, 64: 2, 32: 3}


def product_text(n: int, k: int, kind: str, words: int, flips: str) -> str:
    sums = ", ".join(f"%d{i}" for i in range(n // 2))
    stores = "\n".join(f"  st.global.f32 [%p3+{4 * i}], %d{i};" for i in range(n // 2))
    return PRODUCT.format(n=n, k=k, n2=n // 2, kind=kind, words=words, sums=sums, bytes=n * 2, stores=stores, flips=flips)


def describe(start: int, leading: int, stride: int, span: int) -> int:
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | MODES[span] << 62


def lay_along_k(matrix: np.ndarray, span: int) -> tuple[np.ndarray, int, int]:
    """(bytes, leading, stride) of rows along k: groups of 8 rows; of 16 bytes a row, or `span`."""
    rows = matrix.view(np.uint8).reshape(len(matrix), -1)
    count, width = rows.shape
    if not span:  # cores of 8 rows x 16 bytes, those of one group of rows side by side
        cores = rows.reshape(count // 8, 8, width // 16, 16).swapaxes(1, 2)
        return np.ascontiguousarray(cores).reshape(-1), 128, width * 8
    padded = np.zeros((count, span), np.uint8)
    padded[:, :width] = rows
    flat = np.zeros(padded.size, np.uint8)
    flat[swizzle(np.arange(padded.size), span)] = padded.reshape(-1)
    return flat, 16, span * 8


def lay_across_k(matrix: np.ndarray, span: int) -> tuple[np.ndarray, int, int]:
    """(bytes, leading, stride) of [rows, k] of two bytes, with rows as the quick axis, `span` bytes of them a line."""
    k_first = np.ascontiguousarray(matrix.T)  # [k, rows]
    depth, count = k_first.shape
    if not span:  # cores of 8 k x 8 rows, 128 bytes
        cores = k_first.reshape(depth // 8, 8, count // 8, 8).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(cores).reshape(-1).view(np.uint8), count * 16, 128
    line = span // 2
    blocks = k_first.reshape(depth // 8, 8, count // line, line).transpose(2, 0, 1, 3)  # [block of rows, group of k, k, line]
    plain = np.ascontiguousarray(blocks).reshape(-1).view(np.uint8)
    flat = np.zeros_like(plain)
    flat[swizzle(np.arange(plain.size), span)] = plain
    return flat, depth * span, 8 * span


@pytest.mark.parametrize("span", [0, 32, 64, 128])
@pytest.mark.parametrize("flips", [(0, 0), (1, 0), (0, 1), (1, 1)], ids=str)
def test_products_of_operands_in_every_layout(span: int, flips: tuple[int, int]) -> None:
    rng = np.random.default_rng(span)
    n, k = 64, 16
    a, b = rng.integers(-4, 5, (64, k)).astype(np.float16), rng.integers(-4, 5, (n, k)).astype(np.float16)
    parts = [lay_across_k(x, span) if flip else lay_along_k(x, span) for x, flip in zip((a, b), flips, strict=True)]
    memory = np.concatenate([np.pad(p[0], (0, -len(p[0]) % 1024)) for p in parts])
    starts = (1024, 1024 + -(-len(parts[0][0]) // 1024) * 1024)
    descriptors = [np.uint64(describe(start, p[1], p[2], span)) for start, p in zip(starts, parts, strict=True)]
    d = np.zeros((128, n // 2), np.float32)

    text = product_text(n, k, "f16", memory.size // 4, f", {flips[0]}, {flips[1]}")
    run(text, "f", (1,), (128,), [memory, memory, d, *descriptors], memory.size)

    lane, i = np.arange(128)[:, None], np.arange(n // 2)
    expected = (a.astype(np.float32) @ b.astype(np.float32).T)[
        lane // 32 * 16 + lane % 32 // 4 + i // 2 % 2 * 8, i // 4 * 8 + lane % 4 * 2 + i % 2
    ]
    np.testing.assert_array_equal(d, expected)


# ---------------------------------------------------------------- boxes

BOX = r"""
#include <cstdint>
struct __align__(64) Map { char bytes[128]; };
extern "C" __global__ void f(const __grid_constant__ Map map, const __grid_constant__ Map to, uint32_t* out, int x, int y, int z) {
  extern __shared__ __align__(1024) uint32_t s[];
  __shared__ uint64_t bar;
  uint32_t b = (uint32_t)__cvta_generic_to_shared(&bar), d = (uint32_t)__cvta_generic_to_shared(s);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.proxy.async;" :: "r"(b) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(b), "r"(4096) : "memory");
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 :: "r"(d), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(b) : "memory");
  }
  __syncthreads();
  asm volatile("{ .reg .pred p; again: mbarrier.test_wait.parity.shared.b64 p, [%0], 0; @!p bra again; }" :: "r"(b) : "memory");
  for (int i = threadIdx.x; i < 1024; i += 32) out[i] = s[i];
  if (threadIdx.x == 0) {
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3}], [%4];"
                 :: "l"(&to), "r"(x), "r"(y), "r"(z), "r"(d) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
"""


def test_boxes_are_filled_with_zeros_outside_and_added_inside() -> None:
    tensor = np.arange(1, 5 * 7 * 32 + 1, dtype=np.float32).reshape(5, 7, 32)
    to, out = np.ones_like(tensor), np.zeros((4, 8, 32), np.float32)
    box = (32, 8, 4)
    x, y, z = 4, -2, 3

    run(ptx_of(BOX, "sm_90a"), "f", (1,), (32,), [TensorMap(tensor, box), TensorMap(to, box), out, x, y, z], 4096)

    padded = np.zeros((20, 20, 80), np.float32)
    padded[8:13, 8:15, 8:40] = tensor
    np.testing.assert_array_equal(out, padded[8 + z : 12 + z, 8 + y : 16 + y, 8 + x : 40 + x])
    added = np.ones_like(tensor)
    added[3:, :6, 4:] += tensor[3:, :6, 4:]
    np.testing.assert_array_equal(to, added)


def test_box_swizzled_by_its_address() -> None:
    tensor = np.arange(4 * 8 * 32, dtype=np.float32).reshape(4, 8, 32)
    out = np.zeros((32, 8, 4), np.float32)  # lines of 128 bytes as 8 pieces of 16

    maps = [TensorMap(tensor, (32, 8, 4), 128), TensorMap(np.zeros_like(tensor), (32, 8, 4), 128)]
    run(ptx_of(BOX, "sm_90a"), "f", (1,), (32,), [*maps, out, 0, 0, 0], 4096)

    for line in range(32):
        for piece in range(8):
            np.testing.assert_array_equal(out[line, piece ^ line % 8], tensor.reshape(32, 8, 4)[line, piece])


def test_maps_that_the_driver_would_refuse_are_errors() -> None:
    with pytest.raises(PtxError, match="multiples of 16 bytes"):
        TensorMap(np.zeros((8, 9), np.float32), (4, 4))
    with pytest.raises(PtxError, match="a box of"):
        TensorMap(np.zeros((8, 512), np.float16), (512, 4))
    with pytest.raises(PtxError, match="with a swizzle of 64"):
        TensorMap(np.zeros((8, 64), np.float16), (64, 4), 64)


def test_box_beyond_shared_memory_is_an_error() -> None:
    tensor = np.zeros((4, 8, 32), np.float32)
    maps = [TensorMap(tensor, (32, 8, 4)), TensorMap(tensor, (32, 8, 4))]

    with pytest.raises(OutOfBounds, match=r"cp\.async\.bulk\.tensor"):
        run(ptx_of(BOX, "sm_90a"), "f", (1,), (32,), [*maps, np.zeros(1024, np.uint32), 0, 0, 0], 4000)
