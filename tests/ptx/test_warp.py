"""Instructions of a warp and barriers of parts of a block, against definitions lane by lane; kernels that LLVM writes."""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.ptx.errors import Deadlock, DivergentBarrier, Race
from tests.ptx.launch import run
from tests.ptx.nvcc import ptx_of

HEAD = """.version 8.4
.target sm_90a
.address_size 64
.visible .entry f(.param .u64 in, .param .u64 out) {
  .reg .pred %p<4>; .reg .b64 %a<4>; .reg .b32 %r<10>;
  ld.param.u64 %a0, [in]; ld.param.u64 %a1, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %a2, %r0, 16; mul.wide.u32 %a3, %r0, 8;
  add.u64 %a0, %a0, %a2; add.u64 %a1, %a1, %a3; ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%a0]; mov.u32 %r5, 0; mov.u32 %r6, 0;
"""
TAIL = "\ndone: st.global.v2.b32 [%a1], {%r5, %r6}; ret; }\n"


def on_lanes(body: str, operands: np.ndarray) -> np.ndarray:
    """The words %r5 and %r6 of each of 64 threads, whose %r1 to %r4 are `operands` uint32[64, 4]."""
    out = np.zeros((64, 2), np.uint32)
    run(HEAD + body + TAIL, "f", (1,), (64,), [np.ascontiguousarray(operands, np.uint32), out])
    return out


def words(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, (64, 4), dtype=np.uint32)


def shuffled(mode: str, lane: int, by: int, control: int) -> tuple[int, bool]:
    """(source lane, valid), after the pseudo code of the ISA."""
    segment, clamp = control >> 8 & 31, control & 31
    low, high = lane & segment, (lane & segment) | (clamp & ~segment & 31)
    by &= 31
    source = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": low | (by & ~segment & 31)}[mode]
    valid = source >= high if mode == "up" else source <= high
    return (source if valid else lane), valid


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [4, 16, 32])
def test_shuffle(mode: str, width: int) -> None:
    operands = words(width)
    operands[:, 1] %= 40
    control = (32 - width) << 8 | (0 if mode == "up" else 31)

    got = on_lanes(f"shfl.sync.{mode}.b32 %r5|%p1, %r1, %r2, {control}, -1; selp.u32 %r6, 1, 0, %p1;", operands)

    for t in range(64):
        source, valid = shuffled(mode, t % 32, int(operands[t, 1]), control)
        assert got[t].tolist() == [operands[t // 32 * 32 + source, 0], valid], t


WARP: list[tuple[str, Callable[[np.ndarray, int], int]]] = [
    ("vote.sync.ballot.b32 %r5, %p0, -1", lambda w, i: sum(int(v[0] & 1) << k for k, v in enumerate(w))),
    ("vote.sync.any.pred %p1, %p0, 12; selp.u32 %r5, 1, 0, %p1", lambda w, i: int(bool((w[2, 0] | w[3, 0]) & 1))),
    ("vote.sync.all.pred %p1, %p0, 3; selp.u32 %r5, 1, 0, %p1", lambda w, i: int(w[0, 0] & w[1, 0] & 1)),
    ("redux.sync.add.s32 %r5, %r1, -1", lambda w, i: int(w[:, 0].astype(np.int64).sum()) & 0xFFFFFFFF),
    ("redux.sync.min.s32 %r5, %r1, -1", lambda w, i: int(w[:, 0].view(np.int32).min()) & 0xFFFFFFFF),
    ("redux.sync.max.u32 %r5, %r1, -1", lambda w, i: int(w[:, 0].max())),
    ("redux.sync.xor.b32 %r5, %r1, -1", lambda w, i: int(np.bitwise_xor.reduce(w[:, 0]))),
    ("match.any.sync.b32 %r5, %r2, -1", lambda w, i: sum(1 << k for k in range(32) if w[k, 1] == w[i, 1])),
    ("match.all.sync.b32 %r5|%p1, %r4, -1", lambda w, i: 0xFFFFFFFF if (w[:, 3] == w[0, 3]).all() else 0),
    ("activemask.b32 %r5", lambda w, i: 0xFFFFFFFF),
    ("elect.sync %r5|%p1, 0xFFFFFFF0", lambda w, i: 4),
    ("mov.u32 %r5, %lanemask_lt", lambda w, i: (1 << i) - 1),
    ("mov.u32 %r5, %laneid", lambda w, i: i),
]


@pytest.mark.parametrize(("instruction", "definition"), WARP, ids=[row[0].split()[0] for row in WARP])
def test_instruction_of_a_warp(instruction: str, definition: Callable[[np.ndarray, int], int]) -> None:
    operands = words(3)
    operands[:, 0] = np.random.default_rng(1).integers(0, 2**32, 64, dtype=np.uint32) | (np.arange(64) % 32 < 2)
    operands[:, 1] %= 5
    operands[:32, 3] = 9
    guard = "@%p2 " if instruction.startswith("elect") else ""  # lanes outside of the mask do not take part
    body = f"and.b32 %r7, %r1, 1; setp.ne.u32 %p0, %r7, 0; mov.u32 %r8, %laneid; setp.gt.u32 %p2, %r8, 3; {guard}{instruction};"

    got = on_lanes(body, operands)

    for t in range(4 if guard else 0, 64):
        if not (guard and t % 32 < 4):
            assert int(got[t, 0]) == definition(operands[t // 32 * 32 : t // 32 * 32 + 32], t % 32), t


def test_lanes_of_a_mask_wait_for_each_other_on_both_sides_of_a_branch() -> None:
    """Half of a warp sums by itself while the other half is in a loop of its own length."""
    source = r"""
    extern "C" __global__ void f(const int* x, int* y) {
      int t = threadIdx.x, v = x[t];
      if (t & 16) {
        for (int o = 8; o; o >>= 1) v += __shfl_xor_sync(0xFFFF0000u, v, o);
      } else {
        for (int i = 0; i < t; i++) v = v * 3 + 1;
        __syncwarp(0x0000FFFFu);
        v = __shfl_sync(0x0000FFFFu, v, 15 - t);
      }
      y[t] = v;
    }"""
    x, y = np.arange(1, 33, dtype=np.int32), np.zeros(32, np.int32)

    run(ptx_of(source), "f", (1,), (32,), [x, y])

    def iterate(t: int) -> int:
        v = t + 1
        for _ in range(t):
            v = v * 3 + 1
        return v

    np.testing.assert_array_equal(y[16:], x[16:].sum())
    np.testing.assert_array_equal(y[:16], [iterate(15 - t) for t in range(16)])


def test_shuffle_that_some_lanes_of_the_mask_never_reach_is_an_error() -> None:
    source = r"""
    extern "C" __global__ void f(int* y) {
      int t = threadIdx.x;
      if (t < 16) y[t] = __shfl_xor_sync(~0u, t, 1); else __syncwarp();
    }"""

    with pytest.raises(DivergentBarrier, match=r"lanes wait for others of their warp at line .*shfl"):
        run(ptx_of(source), "f", (1,), (32,), [np.zeros(32, np.int32)])


# ---------------------------------------------------------------- barriers

HAND_OVER = r"""
extern "C" __global__ void f(int* y) {
  __shared__ int s[64];
  int t = threadIdx.x;
  if (t < 64) {
    for (int i = 0; i < 3; i++) {
      asm volatile("bar.sync EMPTY, 128;" ::: "memory");
      s[t] = t + i;
      asm volatile("bar.arrive 2, 128;" ::: "memory");
    }
  } else if (t < 128) {
    for (int i = 0; i < 3; i++) {
      asm volatile("bar.arrive 1, 128;" ::: "memory");
      asm volatile("bar.sync 2, 128;" ::: "memory");
      y[(t - 64) * 3 + i] = s[127 - t];
    }
  }
}"""


def test_producers_and_consumers_by_named_barriers() -> None:
    y = np.zeros((64, 3), np.int32)

    run(ptx_of(HAND_OVER.replace("EMPTY", "1")), "f", (1,), (160,), [y])

    np.testing.assert_array_equal(y, 63 - np.arange(64)[:, None] + np.arange(3))


def test_named_barrier_that_is_left_out_is_found() -> None:
    dropped = HAND_OVER.replace('asm volatile("bar.sync EMPTY, 128;" ::: "memory");', "")

    with pytest.raises((Race, DivergentBarrier)):
        run(ptx_of(dropped), "f", (1,), (160,), [np.zeros(192, np.int32)])
    with pytest.raises(DivergentBarrier, match="64 of 128 threads arrived at barrier 1"):
        run(ptx_of(HAND_OVER.replace("EMPTY", "3")), "f", (1,), (160,), [np.zeros(192, np.int32)])


def test_barriers_with_reductions() -> None:
    source = r"""
    extern "C" __global__ void f(const int* x, int* y) {
      int t = threadIdx.x, v = x[blockIdx.x * 96 + t];
      int n = __syncthreads_count(v > 3), all = __syncthreads_and(v > 0), any = __syncthreads_or(v > 8);
      y[blockIdx.x * 96 + t] = n * 100 + all * 10 + any;
    }"""
    x = np.random.default_rng(0).integers(0, 9, (3, 96)).astype(np.int32)
    x[1] = np.maximum(x[1], 1)
    x[2, 5] = 9
    y = np.zeros_like(x)

    run(ptx_of(source), "f", (3,), (96,), [x, y])

    expected = (x > 3).sum(1) * 100 + (x > 0).all(1) * 10 + (x > 8).any(1)
    np.testing.assert_array_equal(y, np.repeat(expected[:, None], 96, 1))


def test_threads_that_wait_for_a_flag_let_others_run() -> None:
    source = r"""
    extern "C" __global__ void f(volatile int* flag, int* y) {
      int t = threadIdx.x;
      if (t < 32) { while (flag[0] == 0) ; y[t] = flag[0] + t; }
      else if (t == 32) { int v = 0; for (int i = 0; i < 50; i++) v += y[100 + i]; flag[0] = v + 7; }
    }"""
    y = np.zeros(200, np.int32)

    run(ptx_of(source), "f", (1,), (64,), [np.zeros(1, np.int32), y])

    np.testing.assert_array_equal(y[:32], 7 + np.arange(32))


def test_endless_loop_is_an_error() -> None:
    source = 'extern "C" __global__ void f(volatile int* flag) { while (flag[0] == 0) ; }'

    with pytest.raises(Deadlock, match="still running after 5000 steps"):
        run(ptx_of(source), "f", (1,), (32,), [np.zeros(1, np.int32)], max_steps=5000)


# ---------------------------------------------------------------- LLVM

LLVM = """
target triple = "nvptx64-nvidia-cuda"
@s = internal addrspace(3) global [64 x float] undef, align 4
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare float @llvm.fma.f32(float, float, float)
declare float @llvm.exp2.f32(float)

define ptx_kernel void @reversed(ptr addrspace(1) %x, ptr addrspace(1) %y, i32 %n) {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %b = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %start = mul i32 %b, 64
  %i = add i32 %start, %t
  %inside = icmp slt i32 %i, %n
  br i1 %inside, label %load, label %zero
load:
  %px = getelementptr float, ptr addrspace(1) %x, i32 %i
  %v = load float, ptr addrspace(1) %px
  br label %meet
zero:
  br label %meet
meet:
  %w = phi float [ %v, %load ], [ -1.0, %zero ]
  %ps = getelementptr [64 x float], ptr addrspace(3) @s, i32 0, i32 %t
  store float %w, ptr addrspace(3) %ps
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %other = sub i32 63, %t
  %pr = getelementptr [64 x float], ptr addrspace(3) @s, i32 0, i32 %other
  %r = load float, ptr addrspace(3) %pr
  %f = call float @llvm.fma.f32(float %r, float %r, float 0.5)
  %py = getelementptr float, ptr addrspace(1) %y, i32 %i
  store float %f, ptr addrspace(1) %py
  ret void
}
"""


def llvm_ptx(text: str, arch: str) -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(text)
    machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(cpu=arch, opt=3)
    return machine.emit_assembly(module)


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_text_of_llvm(arch: str) -> None:
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    y = np.zeros(128, np.float32)

    run(llvm_ptx(LLVM, arch), "reversed", (2,), (64,), [x, y, 100])

    padded = np.append(x, np.full(28, -1, np.float32)).reshape(2, 64)[:, ::-1].reshape(-1).astype(np.float64)
    np.testing.assert_array_equal(y, (padded**2 + 0.5).astype(np.float32))
