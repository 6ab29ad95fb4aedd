"""Hints on loops: a closed set with one text form, and no say in what a loop computes."""

from __future__ import annotations

import numpy as np
import pytest

from tc.codegen.kernels import finish_loops
from tc.errors import ParseError, VerifyError
from tc.interp import run_prim_func
from tc.ir.hints import NO_HINTS, LoopHints, Prefetch, loop_hints
from tc.ir.loop import For, PrimFunc
from tc.ir.node import replace, transform, walk
from tc.ir.parser import parse_prim_func
from tc.ir.printer import print_ir
from tc.ir.structural import first_difference, structural_hash
from tc.ir.tree_loop import as_square, as_tree_loop
from tc.ir.verify import verify
from tests.ops.kernels import run

COPY = """
@loops
def copy(X: f32[64], Y: f32[64]):
    for i in range(64, {}):
        Y[i] = X[i]
"""

ALL = LoopHints(4, True, Prefetch(1, 512), True, True, "dot4_u8s8")


@pytest.mark.parametrize("hints", [NO_HINTS, ALL, LoopHints(grain=2), LoopHints(prefetch=Prefetch(0, 64)), LoopHints(tree=True)])
def test_hints_survive_their_text(hints: LoopHints) -> None:
    assert loop_hints(hints.items()) == hints
    func = with_hints(parse_prim_func(COPY.format("")), hints)

    again = parse_prim_func(print_ir(func))

    assert [node.hints for node in walk(again) if isinstance(node, For)] == [hints]
    assert first_difference(func, again) is None
    assert print_ir(again) == print_ir(func)


def with_hints(func: PrimFunc, hints: LoopHints) -> PrimFunc:
    return transform(func, lambda node: replace(node, hints=hints) if isinstance(node, For) else None)


def test_a_loop_without_hints_has_the_hash_of_one_without_annotations() -> None:
    """Tuning records know a program by its hash."""
    assert NO_HINTS.items() == ()
    assert structural_hash(parse_prim_func(COPY.format(""))) == "ef53f3c359b907e19d3c0043ca64c12f90706bd2"


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        ("speed=3", r"there is no hint 'speed'; there are: grain, partition, prefetch, tree, transpose, intrinsic"),
        ("grain=0", r"grain is 0, must be a number of iterations, at least 1"),
        ("grain=True", r"grain is True, must be"),
        ("grain=1.0", r"grain is 1.0, must be"),
        ("partition='yes'", r"partition is 'yes', must be 0 or 1"),
        ("prefetch='abc'", r"prefetch is 'abc', must be the number of a buffer, and how many bytes ahead"),
        ("prefetch=(0, 0)", r"prefetch is \(0, 0\), must be"),
        ("prefetch=(0, 10**30)", r"expected a literal"),
        ("tree=2", r"tree is 2, must be 0 or 1"),
        ("intrinsic=''",r"intrinsic is '', must be the name of an instruction"),
        ("transpose=None", r"transpose is None, must be 0 or 1"),
    ],
)
def test_what_is_no_hint_does_not_parse(hint: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse_prim_func(COPY.format(hint))


@pytest.mark.parametrize(
    ("hints", "message"),
    [
        (LoopHints(grain=0), "grain is 0, must be"),
        (LoopHints(grain="4"), "grain is '4', must be"),  # type: ignore[arg-type]
        (LoopHints(partition=2), "the hints are not those of their own text"),  # type: ignore[arg-type]
        (LoopHints(intrinsic="no such"), "there is no intrinsic 'no such'"),
        (LoopHints(prefetch=Prefetch(2, 64)), "loop i fetches buffer 2 ahead; there are 2"),
        (LoopHints(prefetch=Prefetch(-1, 64)), r"prefetch is \(-1, 64\)"),
        (LoopHints(prefetch="0:64"), "has no attribute"),  # type: ignore[arg-type]
    ],
)
def test_hints_with_wrong_values_are_ill_formed(hints: LoopHints, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(with_hints(parse_prim_func(COPY.format("")), hints))


def test_a_claim_to_work_in_place_is_checked_and_proved_again() -> None:
    """Code generation and the memory plan believe it; a program from text may say what it likes."""
    reversing = """
@loops
def reversing(X: f32[64], Y: f32[64]):
    notes(in_place=(0,))
    for i in range(64):
        Y[i] = X[63 - i]
"""
    func = parse_prim_func(reversing)
    verify(func)
    assert dict(finish_loops(func).attrs).get("in_place") is None
    for wrong in ("(1,)", "'0'", "(-1,)", "3"):
        with pytest.raises(VerifyError, match="must be numbers of inputs"):
            verify(parse_prim_func(reversing.replace("(0,)", wrong)))


def test_annotations_of_blocks_are_a_closed_set() -> None:
    text = """
@loops
def one(X: f32[8], Y: f32[8]):
    for i in range(8):
        with block('one', vi=spatial(8, i)):
            annotate({})
            Y[vi] = X[vi]
"""
    verify(parse_prim_func(text.format("monoid='sum'")))
    for wrong in ("monoid=3", "note=1"):
        with pytest.raises(VerifyError, match="there is monoid, a name"):
            verify(parse_prim_func(text.format(wrong)))


SQUARES = {
    "copies": "Y[j, i] = X[i, j]",
    "in place": "Y[j, i] = Y[i, j]",
    "through memory": "Y[j, i] = X[i, cast(Y[0, 0], i64)]",
    "one column": "Y[i, 0] = X[i, j]",
}


@pytest.mark.parametrize(("name", "is_square"), [("copies", True), ("in place", False), ("through memory", False), ("one column", False)])
def test_only_a_copied_square_is_read_before_it_is_written(name: str, is_square: bool) -> None:
    """The hint alone had made it so: a matrix transposed onto itself lost half of its elements twice."""
    func = parse_prim_func(
        f"""
@loops
def square(X: f32[4, 4], Y: f32[4, 4]):
    for i in range(4):
        for j in range(4):
            Y[i, j] = cast(i + 4 * j, f32) * 0.25
    for i in unrolled(4, transpose=1):
        for j in vectorized(4):
            {SQUARES[name]}
"""
    )
    if name == "in place":  # lanes that read what others write have no meaning of their own: run one by one
        func = parse_prim_func(print_ir(func).replace("vectorized(4)", "unrolled(4)"))
    loop = next(node for node in walk(func) if isinstance(node, For) and node.hints.transpose)
    x = np.arange(16, dtype=np.float32).reshape(4, 4) / 8

    assert (as_square(loop) is not None) == is_square
    np.testing.assert_array_equal(run(func, [x])[0], run_prim_func(func, [x])[0])


@pytest.mark.parametrize("store", ["Y[i, j]", "Y[7 - i, j]", "Y[i, 2 - j]", "Z[j, i]"])
def test_rows_may_be_shorter_than_there_are_rows(store: str) -> None:
    """Side by side they are stored at once; in another order, or apart, row by row."""
    func = parse_prim_func(
        f"""
@loops
def rows(X: f32[3, 8], Y: f32[8, 3], Z: f32[3, 8]):
    outputs(2)
    for i in range(8):
        for j in range(3):
            Y[i, j] = 0.0
            Z[j, i] = 0.0
    for i in unrolled(8, transpose=1):
        for j in vectorized(3):
            {store} = X[j, i] + 1.0
"""
    )
    loop = next(node for node in walk(func) if isinstance(node, For) and node.hints.transpose)
    x = np.arange(24, dtype=np.float32).reshape(3, 8)

    assert as_square(loop) is not None
    for found, expected in zip(run(func, [x]), run_prim_func(func, [x]), strict=True):
        np.testing.assert_array_equal(found, expected)


TREES = {
    "sum": ("A[0] = A[0] + X[k]", True),
    "of itself": ("A[0] = A[0] + X[k] * A[0]", False),
    "until it is large": ("if A[0] < 3.0:\n            A[0] = A[0] + X[k]", False),
    "some": ("if X[k] < 3.0:\n            A[0] = A[0] + X[k]", True),
    "another": ("A[k] = A[k] + X[k]", False),
    "of differences": ("A[0] = A[0] - X[k]", False),
    "placed by itself": ("A[cast(A[0], i64) // 100] = A[cast(A[0], i64) // 100] + X[k]", False),
}


@pytest.mark.parametrize("name", TREES)
def test_only_a_sum_whose_order_does_not_matter_is_a_tree(name: str) -> None:
    body, is_tree = TREES[name]
    func = parse_prim_func(
        f"""
@loops
def total(X: f32[8], A: f32[8]):
    for k in range(8):
        A[k] = 0.0
    for k in unrolled(8, tree=1):
        {body}
"""
    )
    loop = next(node for node in walk(func) if isinstance(node, For) and node.hints.tree)
    x = np.array([1, 2, 3, 1, 2, 1, 2, 3], np.float32)

    assert (as_tree_loop(loop) is not None) == is_tree
    np.testing.assert_array_equal(run(func, [x])[0], run_prim_func(func, [x])[0])
