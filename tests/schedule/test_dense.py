"""Dense symbolic axes as one: what is computed stays the same, and axes that are used by themselves stay apart."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tc
from tc.interp import run_prim_func
from tc.ir.arith import evaluate
from tc.ir.dtype import f32, i64
from tc.ir.expr import Var, cast
from tc.ir.loop import PrimFunc
from tc.ir.verify import verify
from tc.schedule.analysis import block_infos
from tc.schedule.step import Schedule, Trace
from tc.te import Tensor, compute, create_prim_func, placeholder, reduce
from tests.frontend.models import make_model, node

A, B, C, D = (Var(name, i64) for name in "abcd")


def merged(func: PrimFunc) -> Schedule:
    schedule = Schedule(func)
    schedule.merge_dense()
    verify(schedule.func)
    return schedule


def check(func: PrimFunc, schedule: Schedule, dims: tuple[int, ...]) -> None:
    """The function of fewer dims means the same: of memory that is the same."""
    env, rng = dict(zip(func.dims, dims, strict=True)), np.random.default_rng(0)
    shapes = [tuple(int(evaluate(dim, env)) for dim in buffer.shape) for buffer in func.inputs]
    arrays = [rng.integers(-4, 5, shape).astype(buffer.dtype.numpy) for shape, buffer in zip(shapes, func.inputs, strict=True)]
    fewer = [
        array.reshape([int(evaluate(dim, env)) for dim in buffer.shape]) for array, buffer in zip(arrays, schedule.func.inputs, strict=True)
    ]
    for want, got in zip(run_prim_func(func, arrays, dims), run_prim_func(schedule.func, fewer, dims), strict=True):
        np.testing.assert_array_equal(got.reshape(want.shape), want)
    assert Trace.from_json(schedule.trace.to_json()) == schedule.trace


def shapes_of(schedule: Schedule) -> dict[str, list[str]]:
    return {buffer.name: [str(dim) for dim in buffer.shape] for buffer in schedule.func.buffers}


def test_axes_beside_a_reduction_are_one() -> None:
    x = placeholder((A, B, C), f32, "x")
    func = create_prim_func("f", [x], [reduce("sum", (B, C), (A,), lambda i, j, r: x[r, i, j], "y")], (A, B, C))

    schedule = merged(func)

    assert shapes_of(schedule) == {"x": ["a", "b * c"], "y": ["b * c"]}
    (info,) = block_infos(schedule.func)
    assert len(info.spatial_axes) == len(info.reduction_axes) == 1 and len(info.loops) == 2
    for dims in itertools.product((0, 1, 3), (1, 2, 5), (0, 1, 7)):
        check(func, schedule, dims)


def test_axes_of_several_stages_and_of_reductions_are_one() -> None:
    """A softmax over two axes of five."""
    x = placeholder((A, 3, B, C, D), f32, "x")
    largest = reduce("max", (A, 3, D), (B, C), lambda i, j, k, r, s: x[i, j, r, s, k], "largest")
    shifted = compute((A, 3, B, C, D), lambda i, j, r, s, k: x[i, j, r, s, k] - largest[i, j, k], "shifted")
    func = create_prim_func("f", [x], [shifted], (A, B, C, D))

    schedule = merged(func)

    assert shapes_of(schedule) == {"x": ["a", "3", "b * c", "d"], "shifted": ["a", "3", "b * c", "d"]}  # 3 is known: a and it stay two
    for dims in ((2, 2, 3, 4), (1, 1, 1, 1), (3, 0, 2, 2), (0, 2, 2, 2), (2, 3, 1, 0)):
        check(func, schedule, dims)


def one_block(element: object, *, inputs: tuple[Tensor, ...], shape: tuple[object, ...] = (A, B)) -> PrimFunc:
    return create_prim_func("f", list(inputs), [compute(shape, element, "y")], (A, B))  # type: ignore[arg-type]


X, BIAS, OTHER = placeholder((A, B), f32, "x"), placeholder((B,), f32, "bias"), placeholder((B, A), f32, "other")
PLACES, LONGER, SCALE = placeholder((A,), i64, "places"), placeholder((A, B + 1), f32, "longer"), placeholder((1,), f32, "scale")


@pytest.mark.parametrize(
    ("name", "func"),
    {
        "an axis of its own operand": one_block(lambda i, j: X[i, j] + BIAS[j], inputs=(X, BIAS)),
        "an operand across": one_block(lambda i, j: X[i, j] + OTHER[j, i], inputs=(X, OTHER)),
        "a number of the place": one_block(lambda i, j: X[i, j] + cast(j, f32), inputs=(X,)),
        "the number itself": create_prim_func("f", [], [compute((A, B), lambda i, j: j, "y")], (A, B)),
        "a place that is moved": one_block(lambda i, j: LONGER[i, j + 1], inputs=(LONGER,)),
        "gaps between rows": one_block(lambda i, j: LONGER[i, j], inputs=(LONGER,)),
        "rows by number": one_block(lambda i, j: X[PLACES[i] - PLACES[i], j] + X[i, j], inputs=(X, PLACES)),
        "the first row for all": one_block(lambda i, j: X[0, j] + X[i, j], inputs=(X,)),
    }.items(),
)
def test_axes_that_are_used_by_themselves_stay_two(name: str, func: PrimFunc) -> None:
    schedule = merged(func)

    assert not schedule.trace.steps, name
    assert all(len(info.block.axes) == 2 for info in block_infos(schedule.func))


def test_numbers_for_all_are_read_beside_axes_that_are_one() -> None:
    func = one_block(lambda i, j: X[i, j] * SCALE[0] + X[i, j], inputs=(X, SCALE))
    schedule = merged(func)
    assert shapes_of(schedule) == {"x": ["a * b"], "scale": ["1"], "y": ["a * b"]}
    for dims in itertools.product((0, 1, 4), repeat=2):
        check(func, schedule, dims)


def test_known_axes_stay_as_they_are() -> None:
    x = placeholder((A, 4, 5), f32, "x")
    func = create_prim_func("f", [x], [reduce("sum", (4, 5), (A,), lambda i, j, r: x[r, i, j], "y")], (A,))
    assert not merged(func).trace.steps


MEANINGS = {
    "ReduceSum": lambda x, axis: x.sum(axis, keepdims=True),
    "ReduceMax": lambda x, axis: x.max(axis, keepdims=True),
    "ReduceMean": lambda x, axis: x.mean(axis, keepdims=True),
    "Softmax": lambda x, axis: np.exp(x) / np.exp(x).sum(axis, keepdims=True),
    "CumSum": np.cumsum,
    "ArgMax": lambda x, axis: np.expand_dims(x.argmax(axis), axis),
    "LayerNormalization": lambda x, axis: (x - x.mean(3, keepdims=True)) / np.sqrt(x.var(3, keepdims=True) + 1e-5),
}
BY_ATTRIBUTE = ("LayerNormalization", "Softmax", "ArgMax")
SHAPES = [(1, 1, 1, 1), (2, 3, 1, 1), (5, 17, 3, 2), (3, 1, 40, 1), (2, 33, 1, 70), (1, 2, 130, 3)]


@pytest.mark.covering
@pytest.mark.parametrize("op", MEANINGS)
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_operators_of_drawn_sizes(op: str, axis: int) -> None:
    """Columns of one element were vectors of nothing."""
    rng = np.random.default_rng([axis, len(op)])
    constants = {} if op in BY_ATTRIBUTE else {"k": np.array([axis] if op.startswith("Reduce") else axis)}
    inputs = {"x": (np.float32, list("abcd")), **({"s": (np.float32, ["d"])} if op == "LayerNormalization" else {})}
    attrs = {"axis": 3 if op == "LayerNormalization" else axis} if op in BY_ATTRIBUTE else {}
    names = " ".join([*inputs, *constants])
    module = tc.compile(make_model([node(op, names, "y", **attrs)], inputs, ["y"], constants, opset=18), threads=2)
    for shape in [*SHAPES, *rng.integers(1, 20, (3, 4)).tolist()]:
        x = rng.standard_normal(shape).astype(np.float32)
        arrays = [x, np.ones(shape[3], np.float32)][: len(inputs)]
        np.testing.assert_allclose(module(*arrays), MEANINGS[op](x.astype(np.float64), axis), rtol=1e-4, atol=1e-4)
