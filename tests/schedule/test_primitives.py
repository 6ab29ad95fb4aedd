"""Each primitive on a small program: the loops before and after as text, and the same results."""

from __future__ import annotations

import pytest

from tc.ir.dtype import f32, i32
from tc.ir.expr import Var
from tc.ir.hints import LoopHints
from tc.passes.loop.compact_buffers import compact_buffers
from tc.passes.loop.lower_blocks import lower_blocks
from tc.passes.loop.partition_loops import partition_loops
from tc.passes.loop.simplify_loops import simplify_loops
from tc.schedule.step import Schedule
from tc.schedule.tree import block_places, find_loop
from tc.te import compute, create_prim_func, placeholder, reduce
from tests.schedule.outline import outline
from tests.schedule.programs import assert_same, biased, chain, matmul, row_sum, shifted, two_readers


def after(text: str) -> str:
    """The text of a test, without its margin."""
    lines = text.strip("\n").split("\n")
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[margin:] for line in lines).rstrip()


def test_split_puts_the_tail_under_a_condition() -> None:
    func = chain()
    s = Schedule(func)

    s.split("i", 8)

    assert outline(s.func) == after(
        """
        global a: f32[20]
        io < 3
          ii < 8
            a(vi=io * 8 + ii) if io * 8 + ii < 20
              a[vi] = X[vi] + 1.0
        i_1 < 20
          b(vi=i_1)
            b[vi] = a[vi] * 2.0
        """
    )
    assert_same(func, s)


def test_split_into_three_with_a_symbolic_extent() -> None:
    func = chain(Var("n"))
    s = Schedule(func)

    s.split("i", (None, 2, 4))

    assert outline(s.func) == after(
        """
        global a: f32[n]
        i_0 < (n + 7) // 8
          i_1_1 < 2
            i_2 < 4
              a(vi=(i_0 * 2 + i_1_1) * 4 + i_2) if (i_0 * 2 + i_1_1) * 4 + i_2 < n
                a[vi] = X[vi] + 1.0
        i_1 < n
          b(vi=i_1)
            b[vi] = a[vi] * 2.0
        """
    )
    assert_same(func, s, (21,))


def test_split_without_a_tail_needs_no_condition() -> None:
    func = chain(24)
    s = Schedule(func)

    s.split("i", (None, 8))

    assert outline(s.func) == after(
        """
        global a: f32[24]
        io < 3
          ii < 8
            a(vi=io * 8 + ii)
              a[vi] = X[vi] + 1.0
        i_1 < 24
          b(vi=i_1)
            b[vi] = a[vi] * 2.0
        """
    )
    assert_same(func, s)


def test_split_by_more_than_the_extent() -> None:
    func = chain(3)
    s = Schedule(func)

    s.split("i", 8)

    assert outline(s.func) == after(
        """
        global a: f32[3]
        io < 1
          ii < 8
            a(vi=io * 8 + ii) if io * 8 + ii < 3
              a[vi] = X[vi] + 1.0
        i_1 < 3
          b(vi=i_1)
            b[vi] = a[vi] * 2.0
        """
    )
    assert_same(func, s)


def test_fuse() -> None:
    func = matmul()
    s = Schedule(func)

    s.fuse("i", "j")

    assert outline(s.func) == after(
        """
        ij < 48
          ri < 5
            mm(vi=ij // 8, vj=ij % 8, vri=ri)
              start
                mm[vi, vj] = 0.0
              mm[vi, vj] = mm[vi, vj] + A[vi, vri] * B[vri, vj]
        """
    )
    assert_same(func, s)


def test_reorder() -> None:
    func = matmul()
    s = Schedule(func)

    s.reorder("ri", "i")

    assert outline(s.func) == after(
        """
        ri < 5
          j < 8
            i < 6
              mm(vi=i, vj=j, vri=ri)
                start
                  mm[vi, vj] = 0.0
                mm[vi, vj] = mm[vi, vj] + A[vi, vri] * B[vri, vj]
        """
    )
    assert_same(func, s)


def test_loop_kinds() -> None:
    func = matmul()
    s = Schedule(func)

    s.parallel("i")
    s.vectorize("j")
    s.unroll("ri")

    assert outline(s.func) == after(
        """
        parallel i < 6
          vectorized j < 8
            unrolled ri < 5
              mm(vi=i, vj=j, vri=ri)
                start
                  mm[vi, vj] = 0.0
                mm[vi, vj] = mm[vi, vj] + A[vi, vri] * B[vri, vj]
        """
    )
    assert_same(func, s)


def test_compute_inline() -> None:
    func = chain()
    s = Schedule(func)

    s.compute_inline("a")

    assert outline(s.func) == after(
        """
        i_1 < 20
          b(vi=i_1)
            b[vi] = (X[vi] + 1.0) * 2.0
        """
    )
    assert_same(func, s)


def test_reverse_compute_inline() -> None:
    func = chain()
    s = Schedule(func)

    s.reverse_compute_inline("b")

    assert outline(s.func) == after(
        """
        i < 20
          a(vi=i)
            b[vi] = (X[vi] + 1.0) * 2.0
        """
    )
    assert_same(func, s)


def test_compute_at() -> None:
    func = chain()
    s = Schedule(func)

    outer, _ = s.split("i_1", 8)
    s.compute_at("a", outer)

    assert outline(s.func) == after(
        """
        global a: f32[20]
        i_1o < 3
          it < 8
            a(vi=i_1o * 8 + it) if i_1o * 8 + it < 20
              a[vi] = X[vi] + 1.0
          i_1i < 8
            b(vi=i_1o * 8 + i_1i) if i_1o * 8 + i_1i < 20
              b[vi] = a[vi] * 2.0
        """
    )
    assert_same(func, s)


@pytest.mark.parametrize("n", [8, 21])
def test_compute_at_makes_everything_for_a_reader_behind_the_loop(n: int) -> None:
    """It was refused whenever there was one: the exponentials of a softmax were written in one loop and summed in another."""
    func = two_readers(n, n)
    s = Schedule(func)

    outer, _ = s.split("i_1", 4)
    s.compute_at("a", outer)

    assert s.loops_of("a")[0] == outer
    assert s.loops_of("c") == ("i_2",)
    assert_same(func, s)


def test_compute_at_takes_a_window() -> None:
    func = shifted()
    s = Schedule(func)

    outer, _ = s.split("i_1", 4)
    s.compute_at("a", outer)

    assert outline(s.func) == after(
        """
        global a: f32[9]
        i_1o < 2
          it < 6
            a(vi=i_1o * 4 + it) if i_1o * 4 + it < 9
              a[vi] = X[vi] * X[vi]
          i_1i < 4
            b(vi=i_1o * 4 + i_1i) if i_1o * 4 + i_1i < 7
              b[vi] = a[vi] + a[vi + 2]
        """
    )
    assert_same(func, s)


def test_reverse_compute_at() -> None:
    func = chain()
    s = Schedule(func)

    outer, _ = s.split("i", 8)
    s.reverse_compute_at("b", outer)

    assert outline(s.func) == after(
        """
        global a: f32[20]
        io < 3
          ii < 8
            a(vi=io * 8 + ii) if io * 8 + ii < 20
              a[vi] = X[vi] + 1.0
          it < 8
            b(vi=io * 8 + it) if io * 8 + it < 20
              b[vi] = a[vi] * 2.0
        """
    )
    assert_same(func, s)


def test_cache_read_packs() -> None:
    func = matmul()
    s = Schedule(func)

    s.cache_read("mm", "B", "local", "k, n -> n // 3, k, n % 3")

    assert outline(s.func) == after(
        """
        local B_local: f32[3, 5, 3]
        ic < 3
          jc < 5
            kc < 3
              B_local(vic=ic, vjc=jc, vkc=kc)
                B_local[vic, vjc, vkc] = select(vic * 3 + vkc < 8, B[vjc, vic * 3 + vkc], 0.0)
        i < 6
          j < 8
            ri < 5
              mm(vi=i, vj=j, vri=ri)
                start
                  mm[vi, vj] = 0.0
                mm[vi, vj] = mm[vi, vj] + A[vi, vri] * B_local[vj // 3, vri, vj % 3]
        """
    )
    assert_same(func, s)


def test_cache_write() -> None:
    func = row_sum()
    s = Schedule(func)

    s.cache_write("s", "local")

    assert outline(s.func) == after(
        """
        local s_local: f32[3]
        i < 3
          ri < 10
            s(vi=i, vri=ri)
              start
                s_local[vi] = 0.0
              s_local[vi] = s_local[vi] + A[vi, vri]
        ic < 3
          s_copy(vic=ic)
            s[vic] = s_local[vic]
        """
    )
    assert_same(func, s)


def test_cache_write_in_another_layout() -> None:
    func = biased()
    s = Schedule(func)

    s.cache_write("act", "local", "i, j -> j // 4, i, j % 4")

    assert outline(s.func) == after(
        """
        local act_local: f32[2, 6, 4]
        global mm: f32[6, 8]
        i < 6
          j < 8
            ri < 5
              mm(vi=i, vj=j, vri=ri)
                start
                  mm[vi, vj] = 0.0
                mm[vi, vj] = mm[vi, vj] + A[vi, vri] * B[vri, vj]
        i_1 < 6
          j_1 < 8
            act(vi=i_1, vj=j_1)
              act_local[vj // 4, vi, vj % 4] = max(mm[vi, vj] + bias[vj], 0.0)
        ic < 6
          jc < 8
            act_copy(vic=ic, vjc=jc)
              act[vic, vjc] = act_local[vjc // 4, vic, vjc % 4]
        """
    )
    assert_same(func, s)


def test_decompose_reduction() -> None:
    func = row_sum()
    s = Schedule(func)

    s.decompose_reduction("s", "ri")

    assert outline(s.func) == after(
        """
        i < 3
          s_init(vi=i)
            s[vi] = 0.0
          ri < 10
            s(vi=i, vri=ri)
              s[vi] = s[vi] + A[vi, vri]
        """
    )
    assert_same(func, s)


def test_a_dim_by_which_terms_are_fused_is_none_of_their_loops() -> None:
    """The first vector of the initialisation went beyond the columns, where these are as many as the terms of a row."""
    m, n = Var("m"), Var("n")
    x = placeholder((m, n, n), f32, "X")
    func = create_prim_func("sums", [x], [reduce("sum", (n,), (m, n), lambda i, r, s: x[r, s, i], "y")], (m, n))
    s = Schedule(func)

    terms = s.fuse("ri", "rj")
    outer, inner = s.split("i", 4)
    s.reorder(outer, terms, inner)
    s.decompose_reduction("y", terms)

    (start,) = (place.block for place in block_places(s.func) if place.block.name == "y_init")
    assert str(start.where) == "io * 4 + ii_init < n"
    assert_same(func, s, (3, 5))


def test_init_with_addend() -> None:
    func = biased(dtype=i32)
    s = Schedule(func)
    start = s.decompose_reduction("mm", "ri")

    s.init_with_addend(start)

    assert outline(s.func) == after(
        """
        global mm: i32[6, 8]
        i < 6
          j < 8
            mm_init(vi=i, vj=j)
              mm[vi, vj] = bias[vj]
            ri < 5
              mm(vi=i, vj=j, vri=ri)
                mm[vi, vj] = mm[vi, vj] + A[vi, vri] * B[vri, vj]
        i_1 < 6
          j_1 < 8
            act(vi=i_1, vj=j_1)
              act[vi, vj] = max(mm[vi, vj], i32(0))
        """
    )
    assert_same(func, s)


def test_rfactor_keeps_partial_results_complete() -> None:
    func = row_sum(3, Var("k"))
    s = Schedule(func)

    _, inner = s.split("ri", 4)
    s.rfactor("s", inner)

    assert outline(s.func) == after(
        """
        global s_rf: f32[4, 3]
        i < 3
          rio < (k + 3) // 4
            rii < 4
              s_rf(vrii=rii, vi=i, vrio=rio)
                start
                  s_rf[vrii, vi] = 0.0
                if vrio * 4 + vrii < k
                  s_rf[vrii, vi] = s_rf[vrii, vi] + A[vi, vrio * 4 + vrii]
        i_f < 3
          rii_f < 4
            s(vi=i_f, vk=rii_f)
              start
                s[vi] = 0.0
              s[vi] = s[vi] + s_rf[vk, vi]
        """
    )
    assert_same(func, s, (2,))


def test_transform_layout() -> None:
    func = chain()
    s = Schedule(func)

    s.transform_layout("a", "n -> n // 8, n % 8")

    assert outline(s.func) == after(
        """
        global a: f32[3, 8]
        i < 20
          a(vi=i)
            a[vi // 8, vi % 8] = X[vi] + 1.0
        i_1 < 20
          b(vi=i_1)
            b[vi] = a[vi // 8, vi % 8] * 2.0
        """
    )
    assert_same(func, s)


def test_pad_einsum() -> None:
    func = matmul(3, 4, 2)
    s = Schedule(func)

    s.pad_einsum("mm", (4, 4, 4))

    assert outline(s.func) == after(
        """
        global mm_pad: f32[4, 4]
        global B_pad: f32[4, 4]
        global A_pad: f32[4, 4]
        ic < 4
          jc < 4
            A_pad(vic=ic, vjc=jc)
              A_pad[vic, vjc] = select(vic < 3 and vjc < 2, A[vic, vjc], 0.0)
        ic_1 < 4
          jc_1 < 4
            B_pad(vic_1=ic_1, vjc_1=jc_1)
              B_pad[vic_1, vjc_1] = select(vic_1 < 2, B[vic_1, vjc_1], 0.0)
        i < 4
          j < 4
            ri < 4
              mm(vi=i, vj=j, vri=ri)
                start
                  mm_pad[vi, vj] = 0.0
                mm_pad[vi, vj] = mm_pad[vi, vj] + A_pad[vi, vri] * B_pad[vri, vj]
        ic_2 < 3
          jc_2 < 4
            mm_copy(vic_2=ic_2, vjc_2=jc_2)
              mm[vic_2, vjc_2] = mm_pad[vic_2, vjc_2]
        """
    )
    assert_same(func, s)


def test_set_scope() -> None:
    func = chain()
    s = Schedule(func)

    s.set_scope("a", "local")

    assert outline(s.func) == after(
        """
        local a: f32[20]
        i < 20
          a(vi=i)
            a[vi] = X[vi] + 1.0
        i_1 < 20
          b(vi=i_1)
            b[vi] = a[vi] * 2.0
        """
    )
    assert_same(func, s)


def test_blockize() -> None:
    func = matmul(4, 8, 4)
    s = Schedule(func)

    s.split("i", 2)
    s.blockize("ii")

    assert outline(s.func) == after(
        """
        io < 2
          mm_o(vio=io, vjo=0, vrio=0)
            start
              ii_init < 2
                j_init < 8
                  mm_init(vi=vio * 2 + ii_init, vj=vjo * 8 + j_init)
                    mm[vi, vj] = 0.0
            ii < 2
              j < 8
                ri < 4
                  mm(vi=vio * 2 + ii, vj=vjo * 8 + j, vri=vrio * 4 + ri)
                    mm[vi, vj] = mm[vi, vj] + A[vi, vri] * B[vri, vj]
        """
    )
    assert_same(func, s)


def test_loop_partition_leaves_the_main_part_without_conditions() -> None:
    func = chain()
    s = Schedule(func)
    s.compute_inline("a")
    outer, _ = s.split("i_1", 8)

    s.loop_partition(outer)

    lowered = simplify_loops(partition_loops(compact_buffers(simplify_loops(lower_blocks(s.func)))))
    assert outline(lowered) == after(
        """
        i_1o < 2
          i_1i < 8
            b[i_1i + i_1o * 8] = (X[i_1i + i_1o * 8] + 1.0) * 2.0
        i_1i < 8
          if i_1i < 4
            b[i_1i + 16] = (X[i_1i + 16] + 1.0) * 2.0
        """
    )
    assert_same(func, s)


def test_buffers_shrink_to_what_an_iteration_needs() -> None:
    func = shifted(18)
    s = Schedule(func)
    outer, _ = s.split("i_1", 4)

    s.compute_at("a", outer)

    lowered = compact_buffers(simplify_loops(lower_blocks(s.func)))
    assert "global a: f32[6]" in outline(lowered)
    assert_same(func, s)


def test_a_parameter_in_another_layout_is_recorded() -> None:
    s = Schedule(matmul())

    s.transform_layout("B", "k, n -> n // 4, k, n % 4")

    (b,) = [buffer for buffer in s.func.buffers if buffer.name == "B"]
    assert [int(dim) for dim in b.shape] == [2, 5, 4]
    assert s.func.attrs == (("layout:B", "k, n -> n // 4, k, n % 4"),)


def test_hints_are_replaced_by_newer_ones_of_the_same_name() -> None:
    s = Schedule(chain())

    s.annotate_loop("i", "grain", 8)
    s.annotate_loop("i", "partition", 1)
    s.annotate_loop("i", "grain", 2)

    assert find_loop(s.func, "i").loop.hints == LoopHints(grain=2, partition=True)


@pytest.mark.parametrize("columns", [4, 5, 16])
def test_a_matmul_as_people_schedule_it(columns: int) -> None:
    """Tiles, a packed operand, an epilogue on the tile, sums in registers."""
    func = biased(7, 21, 9)
    s = Schedule(func)
    io, ii = s.split("i_1", 4)
    jo, ji = s.split("j_1", columns)
    s.reorder(io, jo, ii, ji)
    s.parallel(io)
    s.vectorize(ji)
    pack = s.cache_read("mm", "B", "global", f"k, n -> n // {columns}, k, n % {columns}")
    s.compute_at("mm", jo)
    inner = s.loops_of("mm")[2:]
    s.reorder(inner[2], inner[0], inner[1])
    s.decompose_reduction("mm", inner[2])
    s.set_scope("mm", "register")
    s.compute_at(pack, jo)
    assert_same(func, s)


def test_specialize_for_tiles_chooses_by_what_is_left_over() -> None:
    func = chain(Var("n"))
    s = Schedule(func)

    s.specialize("i", 4)
    s.specialize_tiles("i", 5, 6, 3, 4)

    blocks = [place.block.name for place in block_places(s.func)]
    assert len(blocks) == len(set(blocks)) == 6
    for size in range(31):
        assert_same(func, s, (size,))


def test_a_version_may_be_for_two_dims_that_are_large() -> None:
    rows, columns = Var("n"), Var("m")
    a = placeholder((rows, columns), f32, "A")
    func = create_prim_func("twice", [a], [compute((rows, columns), lambda i, j: a[i, j] + a[i, j], "B")], (rows, columns))
    s = Schedule(func)

    s.specialize("i", 3, "j", 5)
    s.split("i", 3)
    s.split_overlapped("j", 5)

    assert len(block_places(s.func)) == 2
    for sizes in ((0, 0), (2, 5), (3, 4), (3, 5), (7, 11)):
        assert_same(func, s, sizes)


def test_the_versions_for_tiles_are_scheduled_apart() -> None:
    func = chain(Var("n"))
    s = Schedule(func)
    s.specialize_tiles("i", 5, 6, 3, 4)

    s.split("i", 5)
    s.split("i_2", 3)

    for size in range(31):
        assert_same(func, s, (size,))
