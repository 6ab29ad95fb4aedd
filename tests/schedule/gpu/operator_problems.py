"""Random programs for devices that are operators of several stages: attention, windows, and what goes through an axis in any order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tc.ir.dtype import bool_, f32
from tc.ops.registry import OPS
from tests.ops.kernels import make_prim_func
from tests.schedule.gpu.attentions import attention_problem
from tests.schedule.gpu.problems import Problem
from tests.schedule.gpu.test_device_window import window


def attention(rng: np.random.Generator) -> Problem:
    """A few rows and keys, scaled or masked; scores are small integers, so that weights are far from the smallest floats."""
    heads, rows, keys, depth, width = (int(rng.integers(1, most)) for most in (3, 7, 20, 5, 5))
    shapes = [(heads, rows, depth), (heads, keys, depth), (heads, keys, width)]
    arrays = [rng.integers(-1, 2, shape).astype(np.float32) for shape in shapes]
    steps: tuple[str, ...] = ()
    if rng.random() < 0.5:
        steps, shapes, arrays = ("mul",), [*shapes, ()], [*arrays, np.asarray(0.5, np.float32)]
    if rng.random() < 0.5:
        mask = rng.random((rows, keys)) < 0.6
        mask[:, 0] = True
        steps, shapes = (*steps, "keep"), [*shapes, mask.shape, ()]
        arrays = [*arrays, mask, np.asarray(rng.choice([-np.inf, -20.0]), np.float32)]
    dtypes = [bool_ if array.dtype == bool else f32 for array in arrays]
    problem = attention_problem(shapes, arrays, dtypes, {}, steps=steps)
    return problem.func, problem.arrays, problem.dims


def _called(name: str, arrays: list[np.ndarray], **attrs: object) -> Problem:
    return make_prim_func(OPS[name], [*arrays], attrs), arrays, ()


def running_sum(rng: np.random.Generator) -> Problem:
    """Along either axis, from either end, with or without the element itself."""
    x = rng.integers(-9, 10, (int(rng.integers(1, 5)), int(rng.integers(1, 150)))).astype(rng.choice(["f4", "i4", "i8"]))
    axis, exclusive, reverse = (int(rng.integers(2)) for _ in range(3))
    return _called("cumsum_parallel", [x if axis else x.T.copy()], axis=axis, exclusive=bool(exclusive), reverse=bool(reverse))


def first_in_order(rng: np.random.Generator) -> Problem:
    """The largest or smallest of a row with many ties, or all of it sorted."""
    size = int(rng.integers(1, 100))
    x = rng.integers(-6, 7, (int(rng.integers(1, 4)), size)).astype(rng.choice(["f4", "i1", "i8"]))
    k = size if rng.random() < 0.4 else int(rng.integers(0, size + 1))
    return _called("topk_parallel", [x], k=k, axis=1, largest=bool(rng.random() < 0.5))


def scattered(rng: np.random.Generator) -> Problem:
    """Updates, several of one element, that replace it or are combined with it in order."""
    rows, size, count = (int(rng.integers(1, most)) for most in (4, 20, 30))
    x, updates = (rng.integers(-3, 4, (rows, n)).astype(np.float32) for n in (size, count))
    reduction = str(rng.choice(["none", "add", "mul", "max", "min"]))
    if rng.random() < 0.3:
        return _called("scatter_nd_parallel", [x, rng.integers(-rows, rows, (5, 1)), x[rng.integers(0, rows, 5)]], reduction=reduction)
    return _called("scatter_elements_parallel", [x, rng.integers(-size, size, (rows, count)), updates], axis=1, reduction=reduction)


OPERATOR_CLASSES: dict[str, Callable[[np.random.Generator], Problem]] = {
    rule.__name__: rule for rule in (attention, window, running_sum, first_in_order, scattered)
}
"""By what the operators do."""
