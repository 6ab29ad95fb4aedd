"""Convolutions in groups of any number of channels, over images whose rows are what is vectorized: tiles of channels and of columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tc.interp import run_prim_func
from tc.ir.arith import Facts
from tc.ir.dtype import f32
from tc.ir.expr import Expr, Var, const
from tc.ir.loop import For, PrimFunc
from tc.ir.node import walk
from tc.ir.types import DimFact, tensor_type
from tc.ir.verify import verify
from tc.ops.registry import OPS, inference
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import finish_loops
from tc.schedule.rules import Scheduled, apply_rules
from tc.target import Target, native_target
from tc.te import create_prim_func, placeholder
from tests.draws import some_of
from tests.ops.kernels import run


@dataclass(frozen=True)
class Grouped:
    """A convolution in groups, of so many channels that come in and go out of each."""

    groups: int
    channels: int
    outputs: int
    kernel: int
    stride: int = 1

    def operands(self, rng: np.random.Generator, height: int, width: int) -> list[np.ndarray]:
        shapes = (1, self.groups * self.channels, height, width), (self.groups * self.outputs, self.channels, self.kernel, self.kernel)
        return [rng.integers(-3, 4, shape).astype(np.float32) for shape in (*shapes, shapes[1][:1])]

    def program(self, height: int | Var, width: int | Var) -> PrimFunc:
        op, rng = OPS["conv"], np.random.default_rng(0)
        _, w, bias = self.operands(rng, 1, 1)
        shape = (const(1), const(self.groups * self.channels), *map(as_dim, (height, width)))
        types = [tensor_type(shape, f32), tensor_type(w.shape, f32), tensor_type(bias.shape, f32)]
        dims = tuple(size for size in (height, width) if isinstance(size, Var))
        facts = tuple(DimFact(dim, 1) for dim in dims)
        with inference(Facts.of(facts)):
            results = op.infer_types(types, self.attrs)
            inputs = [placeholder(each.shape, each.dtype, f"x{k}") for k, each in enumerate(types)]
            outputs = op.compute_tensors(inputs, self.attrs, results)
        return create_prim_func("conv", inputs, outputs, dims, facts=facts)

    @property
    def attrs(self) -> dict[str, object]:
        pads = [self.kernel // 2] * 4
        return OPS["conv"].attrs({"strides": (self.stride,) * 2, "pads": tuple(pads), "groups": self.groups})

    def expected(self, arrays: list[np.ndarray]) -> np.ndarray:
        return OPS["conv"].run_reference(arrays, self.attrs)[0]


def as_dim(size: int | Var) -> Expr:
    return size if isinstance(size, Var) else const(size)


def scheduled(func: PrimFunc, target: Target) -> Scheduled:
    made = apply_rules(simplify_loops(func), target)
    verify(made.func)
    assert made.rule == "contraction"
    return made


def drawn(seed: int) -> Grouped:
    rng = np.random.default_rng(seed)
    groups, channels, outputs = (int(rng.integers(low, high)) for low, high in ((2, 5), (1, 6), (2, 34)))
    return Grouped(groups, channels, outputs, int(rng.choice([1, 3, 5])), int(rng.choice([1, 1, 2])))


TARGETS = [Target.parse("x86-64-v3"), Target.parse("x86-64-v4")]


@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_one_kernel_serves_images_of_any_size(seed: int, target: Target) -> None:
    """Rows below a tile's columns, of a whole number of tiles, and of one column more; integers, so that every sum is exact."""
    conv, rng = drawn(seed), np.random.default_rng(seed)
    made = scheduled(conv.program(Var("h"), Var("w")), target)

    for width in (1, 7, 16, 33):
        arrays = conv.operands(rng, 2, width)
        np.testing.assert_array_equal(run_prim_func(made.func, arrays, (2, width))[0], conv.expected(arrays), err_msg=f"{conv}, {width}")


@pytest.mark.parametrize("seed", some_of(range(12), quick=range(5)))
def test_machine_code_for_images_of_any_size_gives_what_the_reference_gives(seed: int) -> None:
    conv, rng = drawn(seed), np.random.default_rng(seed)
    func = finish_loops(scheduled(conv.program(Var("h"), Var("w")), native_target()).func)

    for size in ((1, 1), (3, 2), (5, 15), (4, 16), (2, 31), (7, 32), (3, 47), (1, 63), (2, 65), (3, 129)):
        arrays = conv.operands(rng, *size)
        np.testing.assert_array_equal(run(func, arrays, size)[0], conv.expected(arrays), err_msg=f"{conv}, {size}")


@pytest.mark.parametrize("outputs", [*range(2, 34), 37])
def test_groups_of_every_number_of_channels(outputs: int) -> None:
    conv, rng = Grouped(3, 2, outputs, 3), np.random.default_rng(outputs)
    arrays = conv.operands(rng, 4, 21)

    made = scheduled(conv.program(4, 21), native_target())

    np.testing.assert_array_equal(run(finish_loops(made.func), arrays)[0], conv.expected(arrays))


@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("outputs", [17, 19, 23, 29, 31])
def test_a_prime_number_of_channels_is_taken_several_at_a_time(outputs: int, target: Target) -> None:
    """Tiles had to divide the channels of a group: one at a time took five times as long."""
    conv = Grouped(3, 2, outputs, 3)

    made = scheduled(conv.program(4, 21), target)

    unrolled = [int(str(loop.extent)) for loop in walk(made.func) if isinstance(loop, For) and loop.kind.name == "UNROLLED"]
    assert max(unrolled) >= 4
    arrays = conv.operands(np.random.default_rng(outputs), 4, 21)
    np.testing.assert_array_equal(run_prim_func(made.func, arrays)[0], conv.expected(arrays))
