"""Steps that must be refused, each with words that say why, and without an effect."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tc.errors import ScheduleError
from tc.ir.dtype import i32
from tc.ir.expr import Var
from tc.ir.loop import PrimFunc
from tc.schedule.step import Schedule
from tests.schedule.programs import (
    biased,
    chain,
    filled,
    filled_up,
    gather,
    matmul,
    row_sum,
    shifted,
    softmax,
    two_addends,
    two_readers,
)

Steps = Callable[[Schedule], object]


def _then(*steps: Steps) -> Steps:
    """Run all but the last step at once; the last one is the illegal one."""

    def run(schedule: Schedule) -> object:
        for step in steps[:-1]:
            step(schedule)
        schedule.before = (schedule.func, schedule.trace)  # type: ignore[attr-defined]
        return steps[-1](schedule)

    return run


def _started(block: str = "mm", loop: str = "ri") -> Steps:
    return _then(lambda s: s.decompose_reduction(block, loop), lambda s: s.init_with_addend(f"{block}_init"))


ILLEGAL: list[tuple[PrimFunc, Steps, str]] = [
    (chain(), lambda s: s.split("k", 4), r"loop k is not in chain; there are: i, i_1"),
    (chain(), lambda s: s.split("i", 0), r"a factor of loop i is 0, must be at least 1"),
    (chain(), lambda s: s.split("i", (None, None)), r"only one factor of loop i may be left open"),
    (chain(), lambda s: s.split("i", (4, 4)), r"make 16 iterations, which may be fewer than its 20"),
    (chain(Var("n")), lambda s: s.split("i", (4, 4)), r"make 16 iterations, which may be fewer than its n"),
    (chain(), lambda s: s.split("i", (4,)), r"loop i needs two factors or more and a name for each"),
    (
        chain(),
        _then(lambda s: s.vectorize("i"), lambda s: s.split("i", 4)),
        r"loop i is vectorized; split it before that",
    ),
    (chain(Var("n")), lambda s: s.split_overlapped("i", 4), r"loop i may have fewer than 4 iterations: n"),
    (chain(), lambda s: s.specialize("n", 4), r"specialize: chain has no dim n; there are: none"),
    (
        chain(Var("n")),
        lambda s: s.specialize_tiles("n", 0, 1, 3, 3),
        r"specialize: tiles of 0 and 3 that cost 1 and 3; each is at least 1",
    ),
    (
        chain(Var("n")),
        _then(lambda s: s.specialize("i", 4), lambda s: s.specialize_tiles("i", 1, 1, 3, 3)),
        r"i is always covered by tiles of 1 as well as by tiles of 3",
    ),
    (matmul(), lambda s: s.split_overlapped("i", 2), r"split_overlapped: loop i is around block \w+, a reduction"),
    (matmul(), lambda s: s.fuse("i", "ri"), r"loop ri is not directly inside loop i"),
    (matmul(), _then(lambda s: s.parallel("i"), lambda s: s.fuse("i", "j")), r"loops i and j are parallel and serial"),
    (softmax(), lambda s: s.reorder("i", "i_1"), r"loop i_1 is not in the perfect nest of loop i"),
    (matmul(), lambda s: s.reorder("i", "i"), r"reorder: a loop is named twice in i, i"),
    (
        row_sum(),
        _then(lambda s: s.fuse("i", "ri"), lambda s: s.split("iri", 4), lambda s: s.reorder("irii", "irio")),
        r"reorder: a loop drives spatial and reduction axes of block s at once",
    ),
    (row_sum(), lambda s: s.parallel("ri"), r"parallel: loop ri drives a reduction axis of block s; use rfactor first"),
    (row_sum(), lambda s: s.vectorize("ri"), r"vectorize: loop ri drives a reduction axis of block s"),
    (row_sum(), lambda s: s.bind("ri", "thread.x"), r"bind: loop ri drives a reduction axis of block s"),
    (
        chain(Var("n")),
        lambda s: s.vectorize("i"),
        r"vectorize: the extent of loop i is n; split it by a constant first",
    ),
    (chain(Var("n")), lambda s: s.unroll("i"), r"unroll: the extent of loop i is n; only constant extents unroll"),
    (
        matmul(),
        _then(lambda s: s.vectorize("j"), lambda s: s.vectorize("i")),
        r"loop i is nested with loop j, which is vectorized",
    ),
    (chain(), lambda s: s.bind("i", "lane"), r"bind: there is no axis 'lane'; there are: block.x"),
    (
        matmul(),
        _then(lambda s: s.bind("i", "block.x"), lambda s: s.bind("j", "block.x")),
        r"loop i around loop j has block.x already",
    ),
    (
        matmul(),
        _then(lambda s: s.bind("j", "block.x"), lambda s: s.bind("i", "block.x")),
        r"bind: loop i around loop j has block.x already",
    ),
    (
        matmul(),
        _then(lambda s: s.bind("i", "thread.x"), lambda s: s.bind("j", "block.x")),
        r"bind: loop j has block.x inside of loop i, which has thread.x",
    ),
    (
        matmul(),
        _then(lambda s: [s.reorder("i", "ri", "j"), s.bind("i", "block.y")], lambda s: s.bind("j", "block.x")),
        r"bind: loop j has block.x inside of a launch, but is not all of what loop i does",
    ),
    (chain(Var("n")), lambda s: s.bind("i", "thread.x"), r"bind: the extent of loop i is n; that of thread.x is constant"),
    (chain(1025), lambda s: s.bind("i", "thread.x"), r"bind: loop i is of a launch of 1025 of thread.x threads, more than 1024"),
    (
        chain(2048),
        _then(lambda s: [s.bind(loop, f"thread.{axis}") for loop, axis in zip(s.split("i", (2, 32, 32))[:2], "xy", strict=True)],
              lambda s: s.bind("i_2", "thread.z")),
        r"bind: .*launch of 2 of thread.x x 32 of thread.y x 32 of thread.z threads, more than 1024",
    ),
    (
        matmul(),
        _then(lambda s: s.parallel("i"), lambda s: s.bind("j", "thread.x")),
        r"bind: loop i is parallel and nested with loop j, which is bound to thread.x",
    ),
    (
        matmul(),
        _then(lambda s: s.bind("j", "thread.x"), lambda s: s.vectorize("i")),
        r"vectorize: loop i is vectorized around loop j, which is bound",
    ),
    (
        matmul(),
        _then(
            lambda s: [s.bind("i", "block.y"), s.bind("j", "block.x")], lambda s: s.decompose_reduction("mm", "j"),
        ),
        r"decompose_reduction\('mm', 'j'\): loop j_init has block.x inside of a launch, but is not all of what loop i does",
    ),
    (
        chain(),
        _then(lambda s: s.vectorize("i"), lambda s: s.loop_partition("i")),
        r"loop_partition: loop i is vectorized",
    ),
    (chain(), lambda s: s.compute_inline("c"), r"block c is not in chain; there are: a, b"),
    (chain(), lambda s: s.compute_inline("b"), r"compute_inline: block b writes the parameter b"),
    (biased(), lambda s: s.compute_inline("mm"), r"block mm is not a plain elementwise computation"),
    (
        chain(),
        _then(lambda s: s.split("i", 8), lambda s: s.compute_inline("a")),
        r"compute_inline: block a has been scheduled already",
    ),
    (
        chain(),
        _then(lambda s: s.transform_layout("a", "n -> n // 4, n % 4"), lambda s: s.compute_inline("a")),
        r"compute_inline: block a does not write a at its own axes",
    ),
    (biased(), lambda s: s.reverse_compute_inline("act"), r"reverse_compute_inline: the producer mm is a reduction"),
    (two_readers(), lambda s: s.reverse_compute_inline("b"), r"reverse_compute_inline: block c reads a too"),
    (shifted(), lambda s: s.reverse_compute_inline("b"), r"block b reads a in several ways"),
    (gather(), lambda s: s.reverse_compute_inline("rows"), r"block rows does not read scaled at its own axes"),
    (filled(), lambda s: s.reverse_compute_inline("one"), r"block one must have one producer, found 0"),
    (two_readers(), lambda s: s.compute_at("a", "i_2"), r"compute_at: block b reads a outside loop i_2"),  # before it
    (two_readers(first=7), lambda s: s.compute_at("a", "i_1"), r"compute_at: block c reads a outside loop i_1"),  # one is not made
    (chain(), lambda s: s.compute_at("b", "i"), r"compute_at: block b writes the parameter b"),
    (chain(), lambda s: s.compute_at("a", "i"), r"compute_at: block a is inside loop i already"),
    (
        row_sum(),
        _then(
            lambda s: s.cache_write("s", "local"),
            lambda s: s.decompose_reduction("s", "ri"),
            lambda s: s.compute_at("s", "ic"),
        ),
        r"compute_at: s_local has other writers than block s",
    ),
    (biased(), lambda s: s.reverse_compute_at("act", "ri"), r"loop ri drives a reduction of block mm"),
    (biased(), lambda s: s.reverse_compute_at("mm", "i_1"), r"block mm is not elementwise"),
    (softmax(), lambda s: s.reverse_compute_at("y", "i_1"), r"block y must stay behind block s"),
    (filled_up(), lambda s: s.reverse_compute_at("b", "i"), r"block b makes more than what it reads of a"),
    (
        chain(),
        _then(
            lambda s: s.split("i", 8),
            lambda s: s.reorder("ii", "io"),
            lambda s: s.reverse_compute_at("b", "ii"),
        ),
        r"block a writes a irregularly",
    ),
    (chain(), lambda s: s.decompose_reduction("a", "i"), r"decompose_reduction: block a has no initialisation"),
    (softmax(), lambda s: s.decompose_reduction("top", "j"), r"loop j is not around block top"),
    (
        row_sum(),
        _then(lambda s: s.split("ri", 5), lambda s: s.decompose_reduction("s", "rii")),
        r"loop rio outside loop rii drives a reduction of block s",
    ),
    (
        row_sum(),
        _then(lambda s: s.fuse("i", "ri"), lambda s: s.decompose_reduction("s", "iri")),
        r"loop iri drives spatial and reduction axes of block s at once",
    ),
    (
        softmax(),
        _then(lambda s: s.compute_at("s", "j_1"), lambda s: s.decompose_reduction("s", "j_1")),
        r"decompose_reduction: loop j_1 is around block y too",
    ),
    (biased(), _started(), r"init_with_addend: block mm_init does not set sums of integers to 0"),
    (biased(dtype=i32), lambda s: s.init_with_addend("act"), r"init_with_addend: block act does not set sums of integers to 0"),
    (biased(dtype=i32, biases=2), _started(), r"init_with_addend: bias has no element for each of mm"),
    (row_sum(dtype=i32), _started("s"), r"init_with_addend: block s_init does not write scratch memory at its own axes"),
    (two_addends(), _started(), r"init_with_addend: mm has 2 addends"),
    (two_addends("mm"), _started(), r"init_with_addend: block other reads mm without an addend"),
    (two_addends("long"), _started(), r"init_with_addend: long is no input of the type of the sums"),
    (row_sum(), lambda s: s.rfactor("s", "i"), r"rfactor: loop i does not drive a reduction axis of block s"),
    (chain(), lambda s: s.rfactor("a", "i"), r"rfactor: block a is not a reduction by a named monoid"),
    (
        row_sum(),
        _then(lambda s: s.decompose_reduction("s", "ri"), lambda s: s.rfactor("s", "ri")),
        r"rfactor: block s is not a reduction by a named monoid",
    ),
    (matmul(), lambda s: s.cache_read("mm", "C"), r"buffer C is not in matmul; there are: A, B, mm"),
    (chain(), lambda s: s.cache_read("a", "b"), r"cache_read: block a does not read b"),
    (matmul(), lambda s: s.cache_read("mm", "mm"), r"cache_read: block mm writes mm too"),
    (matmul(), lambda s: s.cache_read("mm", "A", "L2"), r"cache_read: there is no scope 'L2'"),
    (
        chain(),
        _then(lambda s: s.compute_at("a", "i_1"), lambda s: s.cache_read("b", "a")),
        r"cache_read: block a makes a inside the loops of block b",
    ),
    (
        matmul(),
        lambda s: s.cache_read("mm", "B", "local", "k, n -> n // 4, k"),
        r"the digits of one number, none left out",
    ),
    (
        matmul(),
        lambda s: s.cache_read("mm", "B", "local", "k, n -> k * 2, n"),
        r"write the axes, `->`, and parts such as",
    ),
    (matmul(), lambda s: s.cache_read("mm", "B", "local", "n -> n // 4, n % 4"), r"is for 1 axes, buffer B has 2"),
    (
        row_sum(),
        _then(lambda s: s.decompose_reduction("s", "ri"), lambda s: s.cache_write("s", "local")),
        r"cache_write: s has other writers than block s",
    ),
    (
        chain(),
        _then(lambda s: s.compute_at("a", "i_1"), lambda s: s.cache_write("a", "local")),
        r"cache_write: block b reads a inside the loops of block a",
    ),
    (chain(), lambda s: s.set_scope("X", "local"), r"set_scope: X is a parameter of chain"),
    (chain(), lambda s: s.set_scope("a", "heap"), r"set_scope: there is no scope 'heap'"),
    (
        matmul(),
        _then(lambda s: s.transform_layout("B", "k, n -> n, k"), lambda s: s.transform_layout("B", "k, n -> n, k")),
        r"transform_layout: parameter B has a layout already",
    ),
    (matmul(), lambda s: s.pad_einsum("mm", (4, 4)), r"block mm has 3 axes, got the multiples \(4, 4\)"),
    (softmax(), lambda s: s.pad_einsum("s", (4, 4)), r"block s is not a sum of products of two operands"),
    (
        matmul(),
        _then(lambda s: s.split("i", 4), lambda s: s.pad_einsum("mm", (4, 4, 4))),
        r"pad_einsum: block mm has been scheduled already",
    ),
    (chain(), _then(lambda s: s.split("i", 8), lambda s: s.blockize("ii")), r"the condition .* of block a differs inside the tile"),
    (
        chain(),
        _then(lambda s: s.compute_at("a", "i_1"), lambda s: s.blockize("i_1")),
        r"loop i_1: the loops are not a perfect nest around one block",
    ),
    (matmul(), lambda s: s.tensorize("i", "wgmma"), r"tensorize: there is no intrinsic 'wgmma'"),
]


@pytest.mark.parametrize("case", range(len(ILLEGAL)))
def test_illegal_steps_are_refused(case: int) -> None:
    func, steps, message = ILLEGAL[case]
    schedule = Schedule(func)
    schedule.before = (schedule.func, schedule.trace)  # type: ignore[attr-defined]

    with pytest.raises(ScheduleError, match=message):
        steps(schedule)

    assert (schedule.func, schedule.trace) == schedule.before  # type: ignore[attr-defined]


def test_every_refusal_has_its_own_words() -> None:
    messages = [message for _, _, message in ILLEGAL]

    assert len(set(messages)) == len(messages) >= 40
