"""Concatenations whose operands are made in place: no kernel, no copy where none is needed, and the same results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import tc
from tc.compiler import run_stages
from tc.interp.graph import run_function
from tc.ir.dtype import f32, i64
from tc.ir.expr import Expr, Var
from tc.ir.graph import Call, TensorVar
from tc.ir.module import IRModule
from tc.ir.plan import Copy, Launch
from tc.ir.types import DimFact, tensor_type
from tc.ops.build import GraphBuilder
from tc.passes.graph.joins import is_join
from tc.passes.graph.simplify_splits import simplify_splits
from tc.target import native_target

Values = list[TensorVar]
RNG = np.random.default_rng(0)


def layer(b: GraphBuilder, x: TensorVar, width: int = 16) -> TensorVar:
    """A matrix product, which no concatenation fuses with."""
    depth = int(x.type.shape[-1])  # type: ignore[union-attr]
    return b.call("matmul", x, b.const(RNG.standard_normal((depth, width)).astype(np.float32)))


def join(b: GraphBuilder, *parts: TensorVar, axis: int = 0) -> TensorVar:
    return b.call("concat", *parts, axis=axis)


def grown(b: GraphBuilder, x: TensorVar) -> Values:
    """Layers that each add to what all before have made."""
    total = layer(b, x)
    for _ in range(4):
        total = join(b, total, layer(b, total))
    return [layer(b, total)]


def twice(b: GraphBuilder, x: TensorVar) -> Values:
    """One value at several places of several results."""
    y = layer(b, x)
    first, second = join(b, y, layer(b, y), y), join(b, layer(b, x), y)
    return [layer(b, first), layer(b, second)]


def as_results(b: GraphBuilder, x: TensorVar) -> Values:
    """A join, and one of its operands, that are results."""
    y, z = layer(b, x), layer(b, x)
    return [join(b, y, z), z]


def of_others(b: GraphBuilder, x: TensorVar) -> Values:
    """An input of the function and a literal beside something made here."""
    literal = b.const(RNG.standard_normal((2, 16)).astype(np.float32))
    return [layer(b, join(b, layer(b, x), layer(b, x), x, literal))]


def through_views(b: GraphBuilder, x: TensorVar) -> Values:
    y, z = layer(b, x), layer(b, x)
    first, second = (b.call("reshape", v, shape=(1, *v.type.shape)) for v in (y, z))  # type: ignore[union-attr]
    whole = join(b, first, second, axis=1)
    return [layer(b, whole), layer(b, y)]


def used_later(b: GraphBuilder, x: TensorVar) -> Values:
    """An operand dies after the join, at an operator that could work in its place."""
    y, z = layer(b, x), layer(b, x)
    whole = join(b, y, z)
    shifted = b.call("tanh", b.call("mul", y, y))
    return [layer(b, b.call("tanh", layer(b, whole))), layer(b, whole), shifted]


def of_odd_width(b: GraphBuilder, x: TensorVar) -> Values:
    """Parts that end between cache lines: what follows them is copied."""
    return [layer(b, join(b, layer(b, x, 5), layer(b, x, 5)))]


GRAPHS: Sequence[tuple[Callable[[GraphBuilder, TensorVar], Values], int]] = (
    (grown, 0), (twice, 2), (as_results, 1), (of_others, 2), (through_views, 0), (used_later, 0), (of_odd_width, 1),
)  # fmt: skip


def module_of(build: Callable[[GraphBuilder, TensorVar], Values], rows: Expr | int) -> IRModule:
    b = GraphBuilder([DimFact(rows, 0)] if isinstance(rows, Var) else [])
    x = b.param("x", tensor_type((rows, 16), f32))
    return IRModule((b.function("main", tuple(build(b, x))),))


@pytest.mark.covering
@pytest.mark.parametrize("rows", [3, None], ids=["static", "symbolic"])
@pytest.mark.parametrize(("build", "copies"), GRAPHS, ids=[build.__name__ for build, _ in GRAPHS])
def test_operands_are_made_in_their_places(
    build: Callable[[GraphBuilder, TensorVar], Values], copies: int, rows: int | None
) -> None:
    module = module_of(build, rows or Var("n", i64))
    plan = run_stages(module, native_target()).plan

    assert sum(isinstance(step, Copy) for step in plan.steps) == copies
    assert not any("concat" in step.kernel for step in plan.steps if isinstance(step, Launch))
    compiled = tc.compile(module, verify="always")
    assert compiled.report().fallbacks == ()
    for count in (rows,) if rows else (0, 1, 3, 20):
        x = np.random.default_rng(count).standard_normal((count, 16)).astype(np.float32)
        expected = run_function(module, "main", [x])
        found = compiled(x)
        for actual, value in zip(found if len(expected) > 1 else (found,), map(np.asarray, expected), strict=True):
            np.testing.assert_allclose(actual, value, rtol=0, atol=2e-5 * max(1.0, np.abs(value).max(initial=0.0)))


def test_only_what_lies_in_a_row_is_a_join() -> None:
    n = Var("n", i64)
    b = GraphBuilder([DimFact(n, 1)])
    x, y = b.param("x", tensor_type((1, n, 4), f32)), b.param("y", tensor_type((n, 1, 4), f32))

    values = [Call("concat", (v, v), (("axis", axis),)) for v, axis in ((x, 1), (x, -2), (x, 0), (x, 2), (y, 0), (y, 1))]

    assert [is_join(value) for value in values] == [True, True, True, False, True, False]


def test_a_join_of_inputs_stays_a_kernel() -> None:
    b = GraphBuilder()
    x, y = b.param("x", tensor_type((4, 16), f32)), b.param("y", tensor_type((4, 16), f32))
    module = IRModule((b.function("main", (join(b, x, y),)),))

    plan = run_stages(module, native_target()).plan

    assert [type(step) for step in plan.steps] == [Launch]


def sliced(b: GraphBuilder, x: TensorVar, starts: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]) -> TensorVar:
    return b.call("slice", x, starts=starts, sizes=sizes, steps=steps)


@pytest.mark.parametrize(
    ("starts", "sizes", "steps", "is_part"),
    [
        ((1, 0, 0), (2, 5, 16), (1, 1, 1), True),
        ((2, 3, 0), (1, 2, 16), (1, 1, 1), True),
        ((0, 1, 0), (3, 4, 16), (1, 1, 1), False),
        ((0, 0, 0), (4, 5, 16), (1, 1, 1), True),
        ((0, 0, 0), (2, 5, 16), (2, 1, 1), False),
        ((1, 2, 3), (1, 1, 4), (1, 1, 1), False),
        ((3, 0, 0), (0, 5, 16), (1, 1, 1), True),
    ],
    ids=["rows", "inside-a-row", "pieces", "all", "steps", "between-cache-lines", "none"],
)
def test_slices_in_one_piece_are_parts_of_memory(
    starts: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...], is_part: bool
) -> None:
    b = GraphBuilder()
    x = b.param("x", tensor_type((4, 5, 16), f32))
    y = layer(b, x)
    part = sliced(b, y, starts, sizes, steps)
    last = layer(b, part)
    module = IRModule((b.function("main", (last, layer(b, y), part)),))

    plan = run_stages(module, native_target()).plan

    kernels = [step.kernel for step in plan.steps if isinstance(step, Launch)]
    assert any("slice" in kernel for kernel in kernels) != is_part
    array = RNG.standard_normal((4, 5, 16)).astype(np.float32)
    for found, expected in zip(tc.compile(module)(array), run_function(module, "main", [array]), strict=True):
        np.testing.assert_allclose(found, np.asarray(expected), rtol=0, atol=1e-4)


def convolution(b: GraphBuilder, x: TensorVar, outputs: int) -> TensorVar:
    inputs = int(x.type.shape[1])  # type: ignore[union-attr]
    weights = RNG.standard_normal((outputs, inputs, 3, 3)).astype(np.float32) / np.float32(3 * np.sqrt(inputs))
    return b.call("relu", b.call("conv", x, b.const(weights), pads=(1, 1, 1, 1)))


@pytest.mark.parametrize("rows", [20, None], ids=["static", "symbolic"])
def test_convolutions_of_split_channels_work_in_place(rows: int | None) -> None:
    """Half of the channels goes through more layers, and all are joined: nothing is copied, whatever the height of the image."""
    height = rows or Var("h", i64)
    b = GraphBuilder([DimFact(height, 1)] if isinstance(height, Var) else [])
    x = b.param("x", tensor_type((1, 32, height, 17), f32))
    first, second = b.call_many("split", convolution(b, x, 64), axis=1, sizes=(32, 32))
    third = b.call("add", second, convolution(b, convolution(b, second, 32), 32))
    module = IRModule((b.function("main", (convolution(b, join(b, first, second, third, axis=1), 32),)),))

    plan = run_stages(module, native_target()).plan

    kernels = [step.kernel for step in plan.steps if isinstance(step, Launch)]
    assert not any(word in kernel for kernel in kernels for word in ("split", "slice", "concat"))
    assert not any(isinstance(step, Copy) for step in plan.steps)
    array = RNG.standard_normal((1, 32, rows or 9, 17)).astype(np.float32)
    (expected,) = run_function(module, "main", [array])
    np.testing.assert_allclose(tc.compile(module)(array), np.asarray(expected), rtol=0, atol=1e-4)


def test_all_parts_joined_are_the_source() -> None:
    b = GraphBuilder()
    x, y = b.param("x", tensor_type((1, 48, 4, 4), f32)), b.param("y", tensor_type((1, 8, 4, 4), f32))
    parts = b.call_many("split", x, axis=1, sizes=(16, 32))
    values = (join(b, *parts, y, axis=1), join(b, *parts[::-1], y, axis=1), join(b, y, *parts, axis=-3))
    module = simplify_splits(IRModule((b.function("main", values),)))

    joined = [len(each.value.args) for each in module.main.bindings if getattr(each.value, "op", "") == "concat"]

    assert joined == [2, 3, 2]
    arrays = [RNG.standard_normal((1, channels, 4, 4)).astype(np.float32) for channels in (48, 8)]
    expected = run_function(IRModule((b.function("main", values),)), "main", arrays)
    for found, value in zip(run_function(module, "main", arrays), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(value))
