"""Random programs for the rules for devices, with the results that they must have: each class is of one rule, or of a few like it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tc.interp import run_prim_func
from tc.ir.dtype import bf16, f16, f32, i8
from tc.ir.loop import PrimFunc
from tests.schedule.gpu.attentions import AttentionProblem, drawn_attention
from tests.schedule.gpu.operator_problems import OPERATOR_CLASSES
from tests.schedule.gpu.problems import DEVICE_CLASSES, Problem
from tests.schedule.gpu.test_matrix_convolution import Convolution
from tests.schedule.gpu.test_matrix_product import Product
from tests.schedule.random_problems import CLASSES

ANY_DEVICE = ("cuda:sm_75", "cuda:sm_80", "cuda:sm_86", "cuda:sm_90a", "opencl:generic")
WITH_WARP_PRODUCTS = ("cuda:sm_80", "cuda:sm_86", "cuda:sm_90")
HOPPER = ("cuda:sm_90a",)


@dataclass(frozen=True)
class RuleProblem:
    """A function, its arrays and dims, what it must give and how exactly, and the devices that it may be scheduled for."""

    func: PrimFunc
    arrays: Sequence[np.ndarray]
    dims: tuple[int, ...]
    expected: Sequence[np.ndarray]
    devices: tuple[str, ...] = ANY_DEVICE
    close: dict[str, float] = field(default_factory=lambda: {"rtol": 1e-5})

    def check(self, results: Sequence[np.ndarray], why: str) -> None:
        for want, got in zip(self.expected, results[: len(self.expected)], strict=True):  # workspaces follow
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), err_msg=why, **self.close)


def _of_loops(problem: Problem) -> RuleProblem:
    """Numbers that add up exactly: the loops in order say what comes out."""
    return RuleProblem(*problem, run_prim_func(*problem))


def _of_class(draw: Callable[[np.random.Generator], Problem]) -> Callable[[np.random.Generator], RuleProblem]:
    return lambda rng: _of_loops(draw(rng))


def _attention(problem: AttentionProblem, devices: tuple[str, ...] = ANY_DEVICE) -> RuleProblem:
    """In halves weights and results are rounded, too."""
    values = problem.arrays[2]
    scale = float(np.max(np.abs(values.astype(np.float64)), where=np.isfinite(values), initial=1))
    step = {f32.numpy: 3e-5, f16.numpy: 2e-3}.get(values.dtype.type, 2.0**-6)
    close = {"rtol": step, "atol": step * scale}
    return RuleProblem(problem.func, problem.arrays, problem.dims, [problem.expected], devices, close)


def attention(rng: np.random.Generator) -> RuleProblem:
    return _attention(drawn_attention(rng, large=bool(rng.random() < 0.3)))


def attention_of_few_rows(rng: np.random.Generator) -> RuleProblem:
    return _attention(drawn_attention(rng, (f32, f16)[int(rng.integers(2))], few=True))


def attention_of_halves(rng: np.random.Generator) -> RuleProblem:
    return _attention(drawn_attention(rng, (f16, bf16)[int(rng.integers(2))]), WITH_WARP_PRODUCTS)


def _product(case: Product | Convolution, devices: tuple[str, ...]) -> RuleProblem:
    dtype = case.func.outputs[0].dtype.numpy
    return RuleProblem(case.func, case.arrays, case.dims, [case.expected.astype(dtype)], devices)


def matrix_product(rng: np.random.Generator) -> RuleProblem:
    """Of halves or bytes; sums of up to 100 small integers are exact in halves, too."""
    dtype = (f16, f16, bf16, i8)[int(rng.integers(4))]
    rows, columns, depth = (int(size) for size in rng.integers(9, 50, 3))
    turned = (bool(rng.random() < 0.4), bool(rng.random() < 0.6))
    batch = (int(rng.integers(1, 3)),) if rng.random() < 0.3 else ()
    result = dtype if dtype is f16 and rng.random() < 0.5 else None
    flags = {"has_bias": bool(rng.random() < 0.5), "symbolic": bool(rng.random() < 0.3)}
    return _product(Product(rows, columns, depth, dtype, turned=turned, batch=batch, result=result, **flags), WITH_WARP_PRODUCTS)


def matrix_convolution(rng: np.random.Generator) -> RuleProblem:
    sizes, kernel, strides, dilations = (tuple(map(int, rng.integers(*ends, 2))) for ends in ((5, 9), (1, 4), (1, 3), (1, 3)))
    case = Convolution(
        int(rng.integers(1, 4)), int(rng.integers(5, 40)), int(rng.integers(5, 40)), sizes, kernel, strides=strides, dilations=dilations,
        pads=tuple(map(int, rng.integers(0, 3, 4))), symbolic=bool(rng.random() < 0.4), is_finished=bool(rng.random() < 0.7),
    )  # fmt: skip
    return _product(case, WITH_WARP_PRODUCTS)


def warpgroup_product(rng: np.random.Generator) -> RuleProblem:
    """Rows lie at multiples of 16 bytes."""
    turned = (bool(rng.integers(2)), bool(rng.integers(2)))
    rows, columns, depth = int(rng.integers(48, 150)), int(rng.integers(48, 150)), int(rng.integers(128, 300))
    rows = rows // 8 * 8 if turned[0] else rows
    columns = columns if turned[1] else columns // 8 * 8
    depth = depth if turned[0] and not turned[1] else depth // 8 * 8
    dtype = (f16, bf16)[int(rng.integers(2))]
    batch = (2,) if rng.integers(4) == 0 else ()
    return _product(Product(rows, columns, depth, dtype, turned=turned, batch=batch, has_bias=bool(rng.integers(2))), HOPPER)


def long_product(rng: np.random.Generator) -> RuleProblem:
    """Few results of many terms: products are cut in parts of their terms."""
    rows, columns, depth = int(rng.integers(1, 20)), int(rng.integers(1, 20)), int(rng.integers(200, 900))
    turned = (bool(rng.integers(2)), bool(rng.integers(2)))
    return _product(Product(rows, columns, depth, f32, turned=turned, has_bias=bool(rng.integers(2))), ANY_DEVICE)


RULE_CLASSES: dict[str, Callable[[np.random.Generator], RuleProblem]] = {
    **{rule.__name__: rule for rule in (attention, attention_of_few_rows, attention_of_halves, long_product)},
    **{rule.__name__: rule for rule in (matrix_product, matrix_convolution, warpgroup_product)},
    **{name: _of_class(draw) for name, draw in {**DEVICE_CLASSES, **OPERATOR_CLASSES}.items() if name != "attention"},
    **{name: _of_class(CLASSES[name]) for name in ("elementwise", "movement", "gather")},
}
"""By what is computed; products and attention of halves are on matrix instructions."""

OF_WARPS = ("attention_of_halves", "matrix_product", "matrix_convolution", "warpgroup_product")
