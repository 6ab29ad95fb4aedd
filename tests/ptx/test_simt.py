"""Kernels in CUDA-C through nvcc, run by the interpreter of PTX, against numpy: plain threads, shared memory, atomics."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.ptx.errors import DivergentBarrier, Misaligned, OutOfBounds, Race, Trap, UnwrittenRead
from tests.ptx.launch import Pointer, run
from tests.ptx.nvcc import ptx_of

ERF = np.vectorize(math.erf, otypes=[np.float64])

# expression in CUDA-C, in numpy, ulps of float32 that nvcc's library may be off
MATH = [
    ("sinf(x)", np.sin, 2), ("cosf(x)", np.cos, 2), ("tanf(x)", np.tan, 4), ("expf(x)", np.exp, 2), ("exp2f(x)", np.exp2, 2),
    ("logf(fabsf(x))", lambda x: np.log(np.abs(x)), 2), ("log1pf(fabsf(x))", lambda x: np.log1p(np.abs(x)), 2),
    ("expm1f(x)", np.expm1, 2), ("sqrtf(fabsf(x))", lambda x: np.sqrt(np.abs(x)), 0),
    ("rsqrtf(fabsf(x))", lambda x: 1 / np.sqrt(np.abs(x)), 2),
    ("tanhf(x)", np.tanh, 2), ("erff(x)", ERF, 3), ("powf(fabsf(x), 2.5f)", lambda x: np.abs(x) ** 2.5, 4),
    ("1.0f / x", lambda x: 1 / x, 0),
    ("x / 3.0f", lambda x: x / 3, 0), ("fmodf(x, 0.7f)", lambda x: np.fmod(x, np.float64(np.float32(0.7))), 0), ("floorf(x)", np.floor, 0),
    ("ceilf(x)", np.ceil, 0), ("rintf(x)", np.rint, 0), ("truncf(x)", np.trunc, 0), ("fmaxf(x, 0.5f)", lambda x: np.fmax(x, 0.5), 0),
    ("atanf(x)", np.arctan, 2), ("sinhf(x)", np.sinh, 3), ("fmaf(x, x, 1.0f)", lambda x: x * x + 1, 0), ("cbrtf(x)", np.cbrt, 1),
]  # fmt: skip


def math_kernel() -> str:
    cases = "\n".join(f"y[{i} * n + t] = {text};" for i, (text, _, _) in enumerate(MATH))
    head = "extern \"C\" __global__ void f(const float* in, float* y, int n) { int t = blockIdx.x * blockDim.x + threadIdx.x;"
    return f"{head} if (t < n) {{ float x = in[t];\n{cases}\n}} }}"


def test_functions_of_float32_are_those_of_numpy() -> None:
    x = np.concatenate([np.random.default_rng(0).standard_normal(240) * 4, [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, 3e38, 120000.0]])
    x = x.astype(np.float32)
    y = np.zeros((len(MATH), len(x)), np.float32)

    run(ptx_of(math_kernel()), "f", (2,), (160,), [x, y, len(x)])

    with np.errstate(all="ignore"):
        for (text, reference, ulps), got in zip(MATH, y, strict=True):
            exact = reference(x.astype(np.float64))
            near = exact.astype(np.float32)
            same = (got == near) | (np.isnan(got) & np.isnan(near))
            off = np.abs(got.astype(np.float64) - exact) <= (ulps + 0.5) * np.spacing(np.abs(near)).astype(np.float64)
            assert (same | off).all(), (text, x[~(same | off)], got[~(same | off)], near[~(same | off)])


CONVERSIONS = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
extern "C" __global__ void f(const float* x, __half* h, __nv_bfloat16* b, unsigned char* e, int* i, long long* l, unsigned char* u,
                             __half* sum,
                             __nv_bfloat16* product, int n) {
  int t = threadIdx.x;
  if (t >= n) return;
  h[t] = __float2half_rn(x[t]); b[t] = __float2bfloat16_rn(x[t]); e[t] = __nv_cvt_float_to_fp8(x[t], __NV_SATFINITE, __NV_E4M3);
  i[t] = (int)x[t]; l[t] = __float2ll_rn(x[t]); u[t] = (unsigned char)__float2uint_rz(x[t]);
  sum[t] = __hfma(h[t], h[t], __float2half_rn(0.1f)); product[t] = __hmul(b[t], b[t]);
}
"""


def test_narrow_types_round_once() -> None:
    rng = np.random.default_rng(1)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65519.9, 65520.0, 448.0, 464.0, -7e9]
    x = np.concatenate([rng.standard_normal(120) * 30, special]).astype(np.float32)
    n = len(x)
    h, b, e, i = np.zeros(n, np.float16), np.zeros(n, np.uint16), np.zeros(n, np.uint8), np.zeros(n, np.int32)
    wide, u, total, product = np.zeros(n, np.int64), np.zeros(n, np.uint8), np.zeros(n, np.float16), np.zeros(n, np.uint16)

    run(ptx_of(CONVERSIONS, "sm_89"), "f", (1,), (160,), [x, h, b, e, i, wide, u, total, product, n])

    with np.errstate(all="ignore"):
        half = x.astype(np.float16)
        np.testing.assert_array_equal(h, half)
        exact = half.astype(np.float64) ** 2 + np.float64(np.float16(0.1))
        np.testing.assert_array_equal(total, exact.astype(np.float16))
        bits = x.view(np.uint32)
        nearest = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        np.testing.assert_array_equal(b, np.where(np.isnan(x), 0x7FFF, nearest))
        finite = np.isfinite(x)
        clamped = np.where(finite, np.trunc(x.astype(np.float64)), 0).clip(-(2**31), 2**31 - 1)
        np.testing.assert_array_equal(i[finite], clamped[finite].astype(np.int32))
        np.testing.assert_array_equal(wide[finite], np.rint(x[finite].astype(np.float64)).astype(np.int64))
    assert i[np.isnan(x)] == 0 and wide[np.isnan(x)] == -(2**63)
    assert i[-1] == -(2**31) and i[np.isposinf(x)] == 2**31 - 1
    assert e[-2] == 0x7E and e[-3] == 0x7E, "464 is nearer to 448 than to what is not there"
    np.testing.assert_array_equal(e[:4] >> 7, np.signbit(x[:4]))
    np.testing.assert_array_equal(u[finite], clamped.clip(0, 2**32 - 1)[finite].astype(np.uint64).astype(np.uint8))
    square = (nearest.astype(np.uint32) << 16).view(np.float32).astype(np.float64) ** 2
    near = square.astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(product[finite], ((near + 0x7FFF + (near >> 16 & 1)) >> 16).astype(np.uint16)[finite])


TILED = r"""
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float as[16][16], bs[16][16];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  float sum = 0;
  for (int k = 0; k < n; k += 16) {
    as[y][x] = a[row * n + k + x];
    bs[y][x] = b[(k + y) * n + column];
    __syncthreads();
    for (int i = 0; i < 16; i++) sum = fmaf(as[y][i], bs[i][x], sum);
    __syncthreads();  // second
  }
  c[row * n + column] = sum;
}
"""


def run_matmul(source: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-8, 9, (64, 64)).astype(np.float32) for _ in range(2))
    c = np.zeros((64, 64), np.float32)
    run(ptx_of(source), "matmul", (4, 4), (16, 16), [a, b, c, 64])
    return c, a @ b


def test_tiled_matmul_through_shared_memory() -> None:
    c, expected = run_matmul(TILED)

    np.testing.assert_array_equal(c, expected)


def test_dropped_barriers_are_races() -> None:
    with pytest.raises(Race, match=r"warp \d reads .*s\[byte \d+\], which warp \d wrote, with nothing between"):
        run_matmul(TILED.replace("    __syncthreads();\n    for", "    for"))
    with pytest.raises(Race, match=r"warp \d writes .*, which warp \d read"):
        run_matmul(TILED.replace("    __syncthreads();  // second\n", ""))


def test_conflicts_of_banks_are_counted_exactly() -> None:
    source = r"""
    extern "C" __global__ void f(float* y, int n) {
      __shared__ float s[32 * 33]; __shared__ __align__(16) float4 v[64];
      int t = threadIdx.x;
      for (int i = t; i < 32 * 33; i += 32) s[i] = i;
      v[t] = make_float4(t, 1, 2, 3); v[t + 32] = v[t]; __syncwarp();
      y[t] = s[t * 32] + s[t * 33] + s[(t / 2) * 2] + v[(t * 2) & 63].y;
    }"""
    y = np.zeros(32, np.float32)

    report = run(ptx_of(source), "f", (1,), (32,), [y, 32])

    reads = [a for a in report.shared_accesses if a.text.startswith("ld.shared")]
    extra = sorted(a.extra_wavefronts for a in reads)
    # s[32 t]: 32 words of one bank. s[33 t], pairs of one word: none. v[2 t].y as a word: stride of 32 bytes, 8 to a bank.
    assert extra[-1] == 31 and extra[-2] == 7 and not any(extra[:-2])
    assert report.count("st.shared") == 33 + 2


REDUCE = r"""
extern "C" __global__ void softmax(const float* x, float* y, int n) {
  __shared__ float part[8];
  const float* row = x + (long long)blockIdx.x * n;
  int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  float top = -INFINITY;
  for (int i = t; i < n; i += blockDim.x) top = fmaxf(top, row[i]);
  for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  if (lane == 0) part[warp] = top;
  __syncthreads();
  top = part[0];
  for (int i = 1; i < 8; i++) top = fmaxf(top, part[i]);
  __syncthreads();
  float sum = 0;
  for (int i = t; i < n; i += blockDim.x) sum += expf(row[i] - top);
  for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(~0u, sum, o);
  if (lane == 0) part[warp] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < 8; i++) sum += part[i];
  for (int i = t; i < n; i += blockDim.x) y[(long long)blockIdx.x * n + i] = expf(row[i] - top) / sum;
}
"""


@pytest.mark.parametrize("n", [1, 31, 300])
def test_softmax_with_shuffles(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((5, n)).astype(np.float32)
    y = np.zeros_like(x)

    run(ptx_of(REDUCE), "softmax", (5,), (256,), [x, y, n])

    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-6)


def test_histogram_by_atomics() -> None:
    source = r"""
    extern "C" __global__ void histogram(const unsigned char* x, int* bins, int n) {
      __shared__ int s[256];
      s[threadIdx.x] = 0;
      __syncthreads();
      for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) atomicAdd(&s[x[i]], 1);
      __syncthreads();
      atomicAdd(&bins[threadIdx.x], s[threadIdx.x]);
    }"""
    x = np.random.default_rng(3).integers(0, 20, 5000).astype(np.uint8)
    bins = np.zeros(256, np.int32)

    run(ptx_of(source), "histogram", (3,), (256,), [x, bins, len(x)])

    np.testing.assert_array_equal(bins, np.bincount(x, minlength=256))


def test_lanes_that_part_in_loops_meet_again() -> None:
    source = r"""
    extern "C" __global__ void collatz(const unsigned* x, int* steps, int* votes, int n) {
      int t = blockIdx.x * blockDim.x + threadIdx.x;
      if (t >= n) return;
      unsigned v = x[t]; int count = 0;
      while (v != 1) { if (v & 1) { v = 3 * v + 1; } else v >>= 1; if (++count > 500) break; }
      steps[t] = count;
      switch (count & 3) {
        case 0: votes[t] = 5; break;
        case 1: votes[t] = count * 7; break;
        case 2: votes[t] = -count; break;
        default: votes[t] = t;
      }
    }"""
    x = np.random.default_rng(4).integers(1, 1000, 100).astype(np.uint32)
    steps, votes = np.zeros(100, np.int32), np.zeros(100, np.int32)

    def count(v: int) -> int:
        n = 0
        while v != 1:
            v, n = (3 * v + 1 if v & 1 else v >> 1), n + 1
        return n

    run(ptx_of(source), "collatz", (2,), (64,), [x, steps, votes, 100])

    expected = np.array([count(int(v)) for v in x])
    np.testing.assert_array_equal(steps, expected)
    np.testing.assert_array_equal(votes, np.choose(expected & 3, [np.full(100, 5), expected * 7, -expected, np.arange(100)]))


def test_functions_that_are_called_structures_and_local_arrays() -> None:
    source = r"""
    struct P { float a; int k; double d; };
    __device__ __constant__ float table[4] = {1.0f, 2.0f, 4.0f, 8.0f};
    __device__ __noinline__ float helper(float x, int k) { return k & 1 ? x * table[k & 3] : x + k; }
    extern "C" __global__ void f(const float* x, float* y, P p) {
      int t = threadIdx.x; float local[8];
      for (int i = 0; i < 8; i++) local[i] = helper(x[t] + i, p.k + i);
      y[t] = local[t & 7] * p.a + (float)p.d;
      if (t == 3) y[t] = helper(y[t], t);
    }"""
    x = np.arange(40, dtype=np.float32)
    y = np.zeros(40, np.float32)
    p = np.zeros(1, np.dtype([("a", "f4"), ("k", "i4"), ("d", "f8")]))
    p["a"], p["k"], p["d"] = 0.5, 3, 100

    run(ptx_of(source), "f", (1,), (40,), [x, y, p.tobytes()])

    def helper(v: float, k: int) -> float:
        return v * [1, 2, 4, 8][k & 3] if k & 1 else v + k

    expected = np.array([helper(x[t] + (t & 7), 3 + (t & 7)) * 0.5 + 100 for t in range(40)], np.float32)
    expected[3] = helper(expected[3], 3)
    np.testing.assert_array_equal(y, expected)


# ---------------------------------------------------------------- what a kernel must not do

SHIFT = r"""
extern "C" __global__ void f(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i + 1];
}"""


def test_access_outside_of_an_array_names_instruction_thread_and_array() -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)

    where = r"byte 256 from the start of argument 0 .*\n.*line \d+: ld.global.*\n.*thread \(31, 0, 0\) of block \(1, 0, 0\)"
    with pytest.raises(OutOfBounds, match=where):
        run(ptx_of(SHIFT), "f", (2,), (32,), [x, y, 64])

    assert not y.any(), "after a fault the arrays are as they were"
    run(ptx_of(SHIFT), "f", (2,), (32,), [x, y, 63])
    np.testing.assert_array_equal(y[:63], x[1:])


def test_address_that_does_not_fit_the_access_is_an_error() -> None:
    x, y = np.zeros(256, np.uint8), np.zeros(64, np.float32)

    with pytest.raises(Misaligned, match="no multiple of 4"):
        run(ptx_of(SHIFT), "f", (1,), (32,), [Pointer(x, 2), y, 16])


def test_arrays_that_overlap_are_one_memory() -> None:
    memory = np.arange(65, dtype=np.float32)

    run(ptx_of(SHIFT), "f", (1,), (32,), [memory[:33], memory[2:], 8])

    np.testing.assert_array_equal(memory[:12], [0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11])


def test_read_of_unwritten_shared_memory_is_an_error() -> None:
    source = r"""
    extern "C" __global__ void f(float* y) {
      __shared__ float s[64];
      if (threadIdx.x != 7) s[threadIdx.x] = 1;
      __syncthreads();
      y[threadIdx.x] = s[63 - threadIdx.x];
    }"""

    with pytest.raises(UnwrittenRead, match=r"byte 28\] is read before anyone wrote it(.|\n)*thread \(56, 0, 0\)"):
        run(ptx_of(source), "f", (1,), (64,), [np.zeros(64, np.float32)])


def test_shared_overrun_is_an_error() -> None:
    source = r"""
    extern "C" __global__ void f(float* y) {
      extern __shared__ float s[];
      s[threadIdx.x + 1] = 1;
      __syncthreads();
      y[threadIdx.x] = s[threadIdx.x + 1];
    }"""
    y = np.zeros(64, np.float32)

    run(ptx_of(source), "f", (1,), (64,), [y], dynamic_shared=65 * 4)
    assert (y == 1).all()
    with pytest.raises(OutOfBounds, match=r"0x\w+(.|\n)*thread \(63, 0, 0\)"):
        run(ptx_of(source), "f", (1,), (64,), [y], dynamic_shared=64 * 4)


@pytest.mark.parametrize("condition", ["threadIdx.x < 32", "threadIdx.x < 16", "y[threadIdx.x] == 0.0f"])
def test_barrier_that_some_threads_do_not_reach_is_an_error(condition: str) -> None:
    source = 'extern "C" __global__ void f(volatile float* y) { if (CONDITION) { __syncthreads(); y[threadIdx.x] = 2; } }'
    y = np.array([0.0] * 40 + [1.0] * 24, np.float32)

    with pytest.raises(DivergentBarrier, match="wait"):
        run(ptx_of(source.replace("CONDITION", condition)), "f", (1,), (64,), [y])


def test_failed_assertion_is_an_error() -> None:
    source = '#include <cassert>\nextern "C" __global__ void f(int* y) { assert(y[threadIdx.x] == 0); y[threadIdx.x] = 1; }'
    y = np.zeros(32, np.int32)

    run(ptx_of(source), "f", (1,), (32,), [y])
    with pytest.raises(Trap, match="assertion"):
        run(ptx_of(source), "f", (1,), (32,), [y])


# ---------------------------------------------------------------- races in global memory

PASS_ON = r"""
extern "C" __global__ void f(float* x, float* y, int by) {
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  x[i] = i;
  BETWEEN;
  y[i] = x[(i + by) % (gridDim.x * blockDim.x)];
}"""


def pass_on(between: str, by: int) -> np.ndarray:
    y = np.zeros(128, np.float32)
    run(ptx_of(PASS_ON.replace("BETWEEN", between)), "f", (2,), (64,), [np.zeros(128, np.float32), y, by])
    return y


def test_reads_of_what_other_threads_wrote_need_a_barrier() -> None:
    with pytest.raises(Race, match=r"reads byte .* of argument 0 .*warp . of block 0"):
        pass_on("", 33)
    with pytest.raises(Race, match=r"block 1"):
        pass_on("__syncthreads()", 64)

    np.testing.assert_array_equal(pass_on("__syncthreads()", 0), np.arange(128))
    np.testing.assert_array_equal(pass_on("", 0), np.arange(128))


def test_writes_over_what_other_threads_read_need_a_barrier() -> None:
    source = r"""
    extern "C" __global__ void f(float* x) {
      float s = 0;
      for (int i = 0; i < 64; i++) s += x[i];
      BETWEEN;
      x[threadIdx.x] = s;
    }"""
    x = np.ones(64, np.float32)

    run(ptx_of(source.replace("BETWEEN", "__syncthreads()")), "f", (1,), (64,), [x])
    assert (x == 64).all()
    with pytest.raises(Race, match=r"writes byte 0 of argument 0 .* which another one reads"):
        run(ptx_of(source.replace("BETWEEN", "")), "f", (1,), (64,), [x])


def test_threads_that_write_different_values_to_one_place_are_a_race() -> None:
    source = r"""
    extern "C" __global__ void f(int* x, int same) {
      x[blockIdx.x / 2] = same ? 7 : (int)(blockIdx.x * 32 + threadIdx.x) / same_width;
    }"""
    x = np.zeros(2, np.int32)

    run(ptx_of(source.replace("same_width", "1")), "f", (4,), (32,), [x, 1])
    np.testing.assert_array_equal(x, [7, 7])
    with pytest.raises(Race, match="by one instruction"):
        run(ptx_of(source.replace("same_width", "1")), "f", (1,), (32,), [x, 0])
    with pytest.raises(Race, match=r"two threads write different|writes byte 0"):
        run(ptx_of(source.replace("same_width", "32")), "f", (2,), (32,), [x, 0])


def test_parts_of_one_byte_by_two_threads_are_a_race() -> None:
    """Numbers of four bits that two threads merge into one byte."""
    source = r"""
    extern "C" __global__ void f(const int* x, unsigned char* y) {
      int t = threadIdx.x, shift = t % 2 * 4;
      y[t / 2] = (unsigned char)((y[t / 2] & ~(15 << shift)) | x[t] << shift);
    }"""

    with pytest.raises(Race, match="global memory by one instruction"):
        run(ptx_of(source), "f", (1,), (64,), [np.full(64, 5, np.int32), np.zeros(32, np.uint8)])


def test_last_block_may_read_what_others_published() -> None:
    source = r"""
    extern "C" __global__ void f(const float* x, float* part, unsigned* done, float* y) {
      __shared__ int last;
      int b = blockIdx.x;
      if (threadIdx.x == 0) {
        float s = 0;
        for (int i = 0; i < 10; i++) s += x[b * 10 + i];
        part[b] = s;
        __threadfence();
        last = atomicAdd(done, 1u) == gridDim.x - 1;
      }
      __syncthreads();
      if (last && threadIdx.x == 0) {
        float s = 0;
        for (unsigned i = 0; i < gridDim.x; i++) s += ((volatile float*)part)[i];
        *y = s;
      }
    }"""
    y = np.zeros(1, np.float32)

    run(ptx_of(source), "f", (200,), (64,), [np.ones(2000, np.float32), np.zeros(200, np.float32), np.zeros(1, np.uint32), y])

    assert y[0] == 2000


def test_atomic_word_may_reach_behind_the_last_bytes_of_an_array_but_not_change_them() -> None:
    source = r"""
    extern "C" __global__ void f(unsigned char* y, unsigned bits) {
      unsigned char* p = y + threadIdx.x;
      unsigned* word = (unsigned*)((size_t)p & ~(size_t)3);
      atomicOr(word, bits << 8 * ((size_t)p & 3));
    }"""
    y = np.zeros(6, np.uint8)

    run(ptx_of(source), "f", (1,), (6,), [y, 3])
    np.testing.assert_array_equal(y, 3)
    with pytest.raises(OutOfBounds, match="bytes behind argument 0"):
        run(ptx_of(source), "f", (1,), (6,), [y, 0x203])
    with pytest.raises(OutOfBounds, match="byte 8 from the start"):
        run(ptx_of(source), "f", (1,), (9,), [y, 3])
