"""The layouts of matrix instructions' operands, against the instructions: PTX on registers that were filled by the layouts."""

from __future__ import annotations

import numpy as np
import pytest

from tc.ir.bit_layout import BitLayout
from tc.ir.dtype import DType, bf16, f16, f32, i8, i32, u8
from tc.ir.fragments import ldmatrix_of
from tc.ir.intrinsic import INTRINSICS
from tc.ir.nvidia_intrinsics import MMA_OPERANDS, mma_name
from tests.ir.lanes import gathered, held
from tests.ptx.launch import run
from tests.ptx.test_tensor_cores import HEAD, mma_text, registers, words

PTX_NAMES = {f16: "f16", bf16: "bf16", f32: "tf32", i8: "s8", u8: "u8", i32: "s32"}


def words_of(fragment: BitLayout, matrix: np.ndarray) -> np.ndarray:
    """Registers of 32 bits, lane after lane, of which each holds neighbours in a lane."""
    return np.ascontiguousarray(held(fragment, matrix).T).view(np.uint32)


def matrix_of(fragment: BitLayout, lanes: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return gathered(fragment, np.ascontiguousarray(lanes).view(dtype).reshape(32, -1).T)


def numbers(rng: np.random.Generator, size: tuple[int, ...], dtype: DType) -> np.ndarray:
    low, high = (0, 256) if dtype is u8 else (-128, 128) if dtype is i8 else (-8, 9)
    return rng.integers(low, high, size).astype(dtype.numpy)


@pytest.mark.parametrize("order", ["nn", "tt"])
@pytest.mark.parametrize("operands", MMA_OPERANDS, ids=str)
def test_mma_multiplies_what_the_layouts_say(operands: tuple[int, DType, DType, DType, str], order: str) -> None:
    k, lhs_type, rhs_type, total, _ = operands
    of_lhs, of_rhs, of_sums = INTRINSICS[mma_name(k, lhs_type, rhs_type, order)].layouts
    assert of_lhs is not None and of_rhs is not None and of_sums is not None
    rng = np.random.default_rng(k)
    lhs, rhs, start = numbers(rng, (16, k), lhs_type), numbers(rng, (k, 8), rhs_type), numbers(rng, (16, 8), total)
    a = words_of(of_lhs, lhs if order == "nn" else lhs.T)
    b = words_of(of_rhs, rhs if order == "nn" else rhs.T)
    c = words_of(of_sums, start)
    result = np.zeros_like(c)
    kinds = [PTX_NAMES[each] for each in (lhs_type, rhs_type)]
    kind = "f32" if total is f32 else "s32"

    text = mma_text(f"m16n8k{k}.row.col.{kind}.{kinds[0]}.{kinds[1]}.{kind}", (a.shape[1], b.shape[1], c.shape[1]))
    run(text, "f", (1,), (32,), [a, b, c, result])

    found = matrix_of(of_sums, result, total.numpy)
    np.testing.assert_array_equal(found, start + lhs.astype(total.numpy) @ rhs.astype(total.numpy))


LOADS = [name for name in INTRINSICS if name.startswith("ldmatrix")]


@pytest.mark.parametrize("name", LOADS)
def test_ldmatrix_fills_registers_as_the_layouts_say(name: str) -> None:
    """From rows of 16 bytes more than the fragment's, at the addresses that `ldmatrix_of` gives."""
    intrinsic = INTRINSICS[name]
    (fragment,) = [each for each in intrinsic.layouts if each is not None]
    dtype = intrinsic.pattern.buffers[-1].dtype
    load = ldmatrix_of(fragment, dtype.bits)
    assert load is not None
    rows, columns = (size for _, size in fragment.outputs)
    stride = columns + 128 // dtype.bits
    unsigned = np.dtype(f"u{dtype.size_bytes}")
    tile = np.random.default_rng(rows).integers(0, 200, (rows, stride)).astype(unsigned)
    memory = np.zeros(2048 // dtype.size_bytes, unsigned)
    memory[: tile.size] = tile.ravel()
    row, column = load.addresses(lane=np.arange(8 * load.count))
    addresses = np.resize((row * stride + column) * dtype.size_bytes, (32, 1)).astype(np.uint32)
    out = np.zeros((32, load.count), np.uint32)
    trans = ".trans" if load.transposed else ""
    body = f"""  .shared .align 16 .b8 s[2048]; .reg .b64 %q<4>; mov.u32 %t1, s;
  mul.wide.u32 %q0, %t0, 64; add.s64 %q0, %q0, %p0; mad.lo.u32 %t2, %t0, 64, %t1;
{_copy_64_bytes()}
  bar.sync 0;
  add.u32 %t2, %b0, %t1;
  ldmatrix.sync.aligned.m8n8.x{load.count}{trans}.shared.b16 {registers("d", load.count)}, [%t2];
"""

    text = HEAD + words("b", "%p1", 1) + body + words("d", "%p2", load.count, True) + "  ret;\n}\n"
    run(text, "f", (1,), (32,), [memory, addresses, out, out[:0]])

    np.testing.assert_array_equal(matrix_of(fragment, out, unsigned), tile[:, :columns])


def _copy_64_bytes() -> str:
    """Each lane its part of global memory, to shared memory."""
    return "\n".join(f"  ld.global.b32 %c0, [%q0+{4 * i}]; st.shared.b32 [%t2+{4 * i}], %c0;" for i in range(16))
