"""mma.sync, ldmatrix and cp.async: kernels with inline PTX through nvcc, and single instructions, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.errors import DivergentBarrier, UnwrittenRead
from tests.ptx.launch import Report, run
from tests.ptx.nvcc import ptx_of

PIPELINE = r"""
#include <cuda_fp16.h>
#include <cstdint>
constexpr int M = 64, N = 64, BK = 32, STAGES = 3, LD = BK + PAD, LDB = N + PAD;
__device__ __forceinline__ uint32_t smem(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void copy16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(smem(to)), "l"(from), "r"(bytes));
}
extern "C" __global__ void matmul(const __half* a, const __half* b, float* c, int n, int k) {
  extern __shared__ __align__(16) __half s[];
  __half* as = s; __half* bs = s + STAGES * M * LD;
  int t = threadIdx.x, lane = t & 31, warp = t >> 5, row0 = blockIdx.y * M, column0 = blockIdx.x * N;
  float sum[4][4][4] = {};
  auto fetch = [&](int stage, int k0) {
    for (int i = t; i < M * BK / 8; i += 64) {
      int r = i / (BK / 8), q = i % (BK / 8) * 8;
      copy16(&as[(stage * M + r) * LD + q], &a[(row0 + r) * k + min(k0 + q, k - 8)], k0 + q < k ? 16 : 0);
    }
    for (int i = t; i < BK * N / 8; i += 64) {
      int r = i / (N / 8), q = i % (N / 8) * 8;
      copy16(&bs[(stage * BK + r) * LDB + q], &b[min(k0 + r, k - 1) * n + column0 + q], k0 + r < k ? 16 : 0);
    }
  };
  for (int i = 0; i < STAGES - 1; i++) { fetch(i, i * BK); asm volatile("cp.async.commit_group;"); }
  for (int k0 = 0, stage = 0; k0 < k; k0 += BK, stage = (stage + 1) % STAGES) {
    asm volatile("cp.async.wait_group %0;" :: "n"(WAIT));
    __syncthreads();
    if (k0 + (STAGES - 1) * BK < k) fetch((stage + STAGES - 1) % STAGES, k0 + (STAGES - 1) * BK);
    asm volatile("cp.async.commit_group;");
    for (int kk = 0; kk < BK; kk += 16) {
      uint32_t x[4][4], y[4][2];
      for (int i = 0; i < 4; i++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
          : "=r"(x[i][0]), "=r"(x[i][1]), "=r"(x[i][2]), "=r"(x[i][3])
          : "r"(smem(&as[(stage * M + i * 16 + lane % 16) * LD + kk + lane / 16 * 8])));
      for (int j = 0; j < 4; j += 2)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
          : "=r"(y[j][0]), "=r"(y[j][1]), "=r"(y[j + 1][0]), "=r"(y[j + 1][1])
          : "r"(smem(&bs[(stage * BK + kk + lane % 16) * LDB + warp * 32 + j * 8 + lane / 16 * 8])));
      for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) {
        float* d = sum[i][j];
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(x[i][0]), "r"(x[i][1]), "r"(x[i][2]), "r"(x[i][3]), "r"(y[j][0]), "r"(y[j][1]));
      }
    }
  }
  for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) for (int h = 0; h < 2; h++) {
    float2 v = make_float2(sum[i][j][2 * h], sum[i][j][2 * h + 1]);
    *(float2*)&c[(row0 + i * 16 + h * 8 + lane / 4) * n + column0 + warp * 32 + j * 8 + lane % 4 * 2] = v;
  }
}
"""


def run_pipeline(pad: int = 8, wait: int = 1, k: int = 112) -> tuple[np.ndarray, np.ndarray, Report]:
    rng = np.random.default_rng(5)
    a, b = rng.integers(-4, 5, (128, k)).astype(np.float16), rng.integers(-4, 5, (k, 64)).astype(np.float16)
    c = np.zeros((128, 64), np.float32)
    shared = 3 * (64 * (32 + pad) + 32 * (64 + pad)) * 2
    source = PIPELINE.replace("PAD", str(pad)).replace("WAIT", str(wait))
    report = run(ptx_of(source), "matmul", (1, 2), (64,), [a, b, c, 64, k], shared)
    return c, a.astype(np.float32) @ b.astype(np.float32), report


def test_matmul_by_mma_ldmatrix_and_a_pipeline_of_copies() -> None:
    c, expected, report = run_pipeline()

    np.testing.assert_array_equal(c, expected)
    # 4 steps of k, 2 halves, 4 x 4 tiles, 2 blocks of 2 warps
    assert report.count("mma.sync") == 4 * 2 * 16 * 4
    assert report.bank_conflicts("ldmatrix") == 0
    # Eight lanes write two rows of 64 bytes of A, 80 bytes apart, which wants four banks twice: in 4 copies a lane, by 4
    # quarters of 2 warps, for 4 steps in 2 blocks.
    assert report.bank_conflicts("cp.async") == 4 * 4 * 2 * 4 * 2


def test_rows_without_padding_collide_in_ldmatrix() -> None:
    _, _, report = run_pipeline(pad=0)

    loads = [access for access in report.shared_accesses if access.text.startswith("ldmatrix")]
    # rows of A are 64 bytes: 8 rows on 2 sets of banks; of B 128 bytes: all 8 on one
    assert {access.extra_wavefronts / access.accesses for access in loads} == {4 * 3.0, 4 * 7.0}


def test_missing_wait_for_a_copy_is_an_error() -> None:
    with pytest.raises(UnwrittenRead, match=r"asynchronous instruction wrote, without waiting for it\n.*ldmatrix"):
        run_pipeline(wait=2)


# ---------------------------------------------------------------- single instructions

HEAD = """.version 8.4
.target sm_90a
.address_size 64
.visible .entry f(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d) {
  .reg .b64 %p<8>; .reg .b32 %a<4>, %b<4>, %c<8>, %d<8>, %t<4>; .reg .b16 %h<4>; .reg .f64 %x<8>;
  ld.param.u64 %p0, [a]; ld.param.u64 %p1, [b]; ld.param.u64 %p2, [c]; ld.param.u64 %p3, [d];
  mov.u32 %t0, %tid.x;
"""


def words(prefix: str, base: str, count: int, store: bool = False) -> str:
    """Moves `count` registers a lane from or to memory, lane after lane."""
    lines = [f"  mul.wide.u32 %p4, %t0, {4 * count}; add.s64 %p4, %p4, {base};"]
    for i in range(count):
        lines.append(f"  st.global.b32 [%p4+{4 * i}], %{prefix}{i};" if store else f"  ld.global.b32 %{prefix}{i}, [%p4+{4 * i}];")
    return "\n".join(lines) + "\n"


def registers(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"%{prefix}{i}" for i in range(count)) + "}"


def mma_text(opcode: str, counts: tuple[int, int, int]) -> str:
    a, b, c = counts
    body = words("a", "%p0", a) + words("b", "%p1", b) + words("c", "%p2", c)
    operands = ", ".join((registers("d", c), registers("a", a), registers("b", b), registers("c", c)))
    return HEAD + body + f"  mma.sync.aligned.{opcode} {operands};\n" + words("d", "%p3", c, True) + "  ret;\n}\n"


def fragment(matrix: np.ndarray, by_column: bool, per: int) -> np.ndarray:
    """A matrix as the words of lanes, written down lane by lane from the tables of the ISA: rows by `lane / 4`.

    `per` elements a word. Word w of A holds row g + 8 (w odd) and the w / 2-th quarter along k; B has one row only.
    """
    m = np.ascontiguousarray(matrix.T if by_column else matrix)  # rows g, along k
    count = m.size // 32 // per
    out = np.zeros((32, count, per), m.dtype)
    for lane in range(32):
        g, t = lane >> 2, lane & 3
        for w in range(count):
            row, part = (g + 8 * (w & 1), w >> 1) if m.shape[0] == 16 else (g, w)
            for j in range(per):
                out[lane, w, j] = m[row, part * 4 * per + t * per + j]
    return out.reshape(32, -1).view(np.uint32)


def sums(matrix: np.ndarray) -> np.ndarray:
    """An accumulator as lanes hold it: c0, c1 in row g, c2, c3 in row g + 8."""
    out = np.zeros((32, matrix.size // 32), matrix.dtype)
    for lane in range(32):
        for i in range(out.shape[1]):
            out[lane, i] = matrix[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2]
    return out


INTEGER_SHAPES = [((8, 8, 16), "s8"), ((16, 8, 16), "s8"), ((16, 8, 32), "u8"), ((16, 8, 32), "s8")]


@pytest.mark.parametrize(("shape", "kind"), INTEGER_SHAPES, ids=str)
def test_integer_products_are_exact(shape: tuple[int, int, int], kind: str) -> None:
    m, n, k = shape
    rng = np.random.default_rng(k)
    low, high = (-128, 128) if kind == "s8" else (0, 256)
    dtype = np.int8 if kind == "s8" else np.uint8
    a, b = rng.integers(low, high, (m, k)).astype(dtype), rng.integers(low, high, (k, n)).astype(dtype)
    c = rng.integers(-(2**31), 2**31, (m, n)).astype(np.int32)
    fa, fb, fc = fragment(a, False, 4), fragment(b, True, 4), sums(c)
    d = np.zeros_like(fc)

    text = mma_text(f"m{m}n{n}k{k}.row.col.s32.{kind}.{kind}.s32", (fa.shape[1], fb.shape[1], fc.shape[1]))
    run(text, "f", (1,), (32,), [fa, fb, fc, d])

    exact = a.astype(np.int64) @ b.astype(np.int64) + c
    np.testing.assert_array_equal(d, sums(exact.astype(np.uint32).view(np.int32)))


@pytest.mark.parametrize("k", [8, 16])
@pytest.mark.parametrize("total", ["f16", "f32"])
def test_half_products_round_the_exact_sum_once(k: int, total: str) -> None:
    rng = np.random.default_rng(k)
    a, b = rng.standard_normal((16, k)).astype(np.float16), rng.standard_normal((k, 8)).astype(np.float16)
    c = rng.standard_normal((16, 8)).astype(np.float16 if total == "f16" else np.float32)
    fa, fb, fc = fragment(a, False, 2), fragment(b, True, 2), sums(c).view(np.uint32)
    d = np.zeros_like(fc)

    run(mma_text(f"m16n8k{k}.row.col.{total}.f16.f16.{total}", (fa.shape[1], fb.shape[1], fc.shape[1])), "f", (1,), (32,), [fa, fb, fc, d])

    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    np.testing.assert_array_equal(d, sums(exact.astype(c.dtype)).view(np.uint32))


def test_bf16_and_tf32_products() -> None:
    rng = np.random.default_rng(0)
    c = rng.standard_normal((16, 8)).astype(np.float32)
    for kind, k, drop in (("bf16", 16, 16), ("bf16", 8, 16), ("tf32", 8, 13), ("tf32", 4, 13)):
        bits = [rng.standard_normal(shape).astype(np.float32).view(np.uint32) for shape in ((16, k), (k, 8))]
        cut = [(x >> drop << drop).view(np.float32).astype(np.float64) for x in bits]
        parts = [(x >> 16).astype(np.uint16) for x in bits] if kind == "bf16" else bits
        per = 32 // parts[0].itemsize // 8
        fa, fb, fc = fragment(parts[0], False, per), fragment(parts[1], True, per), sums(c).view(np.uint32)
        d = np.zeros_like(fc)

        run(mma_text(f"m16n8k{k}.row.col.f32.{kind}.{kind}.f32", (fa.shape[1], fb.shape[1], 4)), "f", (1,), (32,), [fa, fb, fc, d])

        np.testing.assert_array_equal(d, sums((cut[0] @ cut[1] + c).astype(np.float32)).view(np.uint32))


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_go_to_shared_memory_and_come_back(transposed: bool) -> None:
    matrices = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    held = np.swapaxes(matrices, 1, 2) if transposed else matrices  # lane 4 g + t holds elements 2 t, 2 t + 1 of line g
    lanes = np.ascontiguousarray(held.reshape(4, 32, 2).swapaxes(0, 1)).reshape(32, 8).view(np.uint32)
    trans = ".trans" if transposed else ""
    body = f"""  .shared .align 16 .b8 s[512]; mov.u32 %t1, s; mad.lo.u32 %t2, %t0, 16, %t1;
  stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%t2], {registers("a", 4)};
  ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {registers("d", 4)}, [%t2];
  ld.shared.v4.b32 {registers("c", 4)}, [%t2];
"""
    out, rows = np.zeros_like(lanes), np.zeros((32, 4), np.uint32)

    text = HEAD + words("a", "%p0", 4) + body + words("d", "%p1", 4, True) + words("c", "%p2", 4, True) + "  ret;\n}\n"
    run(text, "f", (1,), (32,), [lanes, out, rows, rows[:0]])

    np.testing.assert_array_equal(out, lanes)
    np.testing.assert_array_equal(rows.view(np.uint16).reshape(4, 8, 8), matrices)


def test_product_by_a_part_of_a_warp_is_an_error() -> None:
    text = mma_text("m16n8k8.row.col.f32.f16.f16.f32", (2, 1, 4))
    half = text.replace("  mov.u32 %t0, %tid.x;", "  .reg .pred %q; mov.u32 %t0, %tid.x; setp.gt.u32 %q, %t0, 15; @%q exit;")
    arguments = [np.zeros((32, n), np.uint32) for n in (2, 1, 4, 4)]

    run(text, "f", (1,), (32,), arguments)
    with pytest.raises(DivergentBarrier, match="not whole"):
        run(half, "f", (1,), (32,), arguments)
