"""Convolutions of f16 whose channels lie side by side, on matrix instructions: images of any size, and rows of pixels that run on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tc.codegen.launches import launches_of
from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.arith import Facts, evaluate
from tc.ir.dtype import DType, bf16, f16
from tc.ir.expr import Var, const, maximum
from tc.ir.loop import PrimFunc
from tc.ir.types import DimFact, TensorType
from tc.ir.verify import verify
from tc.ops.registry import get_op, inference
from tc.schedule.knobs import take_default
from tc.schedule.rules import apply_rules
from tc.te import compute, create_prim_func, placeholder
from tests.codegen.c.devices import OpenClPrograms, opencl_context
from tests.draws import some_of
from tests.ptx.launch import run
from tests.schedule.gpu.launches import DEVICE, drawn
from tests.schedule.gpu.test_matrix_product import FEATURES, calls_of, finish, text_as_ptx, text_for_cuda

BLOCK = 16


class Convolution:
    """max(conv(x, w) + bias, 0) in blocks of channels, of small integers, so that every sum is exact."""

    def __init__(
        self, batch: int, channels: int, filters: int, size: tuple[int, int], kernel: tuple[int, int], *, strides: tuple[int, int] = (1, 1),
        dilations: tuple[int, int] = (1, 1), pads: tuple[int, int, int, int] = (0, 0, 0, 0), dtype: DType = f16, symbolic: bool = False,
        is_finished: bool = True, block: int = BLOCK, any_size: bool = False,
    ) -> None:  # fmt: skip
        op = get_op("conv_blocked")
        n = Var("n") if symbolic else const(batch)
        pixels = (Var("h"), Var("w")) if any_size else tuple(map(const, size))
        given = {"strides": strides, "pads": pads, "dilations": dilations, "in_channels": channels, "in_block": block}
        attrs = op.attrs(tuple(given.items()))
        blocks = [-(-count // block) for count in (channels, filters)]
        shapes = [(n, blocks[0], *pixels, block), (blocks[1], blocks[0], *kernel, block, block), (blocks[1], block)]
        tensors = [placeholder(shape, dtype, name) for shape, name in zip(shapes, ("x", "w", "bias"), strict=True)]
        dims = {dim: value for dim, value in zip((n, *pixels), (batch, *size), strict=True) if isinstance(dim, Var)}
        facts = tuple(DimFact(pixel, extent) for pixel, extent in zip(pixels, kernel, strict=True) if isinstance(pixel, Var))
        with inference(Facts.of(facts)):
            (type_,) = [op.infer([TensorType(tensor.shape, dtype) for tensor in tensors], attrs)]
            assert op.compute is not None and isinstance(type_, TensorType)
            conv = op.compute(tensors, attrs, [type_])
        out = compute(type_.shape, lambda *at: maximum(conv[at], const(0, dtype)), "relu") if is_finished else conv
        self.func = create_prim_func("convolution", tensors, [out], tuple(dims), facts=facts)
        self.dims, env = tuple(dims.values()), dict(dims)
        rng = np.random.default_rng([batch, channels, filters, *size])
        self.arrays = [rng.integers(-2, 3, [int(evaluate(dim, env)) for dim in tensor.shape]).astype(dtype.numpy) for tensor in tensors]
        self.arrays[1][..., channels % block or block :, :][:, -1:] = 0  # lanes past the last channel
        reference = op.reference([array.astype(np.float32) for array in self.arrays], attrs)
        self.expected = np.maximum(reference, 0) if is_finished else reference

    def scheduled(self, decide=take_default) -> PrimFunc:
        found = apply_rules(self.func, DEVICE, decide)
        assert found.rule == "matrix contraction"
        return found.func

    def check(self, *funcs: PrimFunc) -> None:
        for func in funcs:
            verify(func)
            (found, *_) = run_prim_func(func, self.arrays, self.dims)
            np.testing.assert_array_equal(found.astype(np.float32), self.expected)


CONVOLUTIONS: dict[str, Callable[[], Convolution]] = {
    "window": lambda: Convolution(1, 16, 16, (3, 5), (3, 3), pads=(1, 1, 1, 1)),
    "odd channels": lambda: Convolution(2, 19, 21, (4, 3), (2, 3), pads=(0, 1, 1, 0)),
    "steps": lambda: Convolution(3, 16, 16, (7, 6), (3, 2), strides=(2, 1), pads=(1, 0, 1, 1), dtype=bf16),
    "dilated": lambda: Convolution(1, 16, 32, (5, 7), (2, 3), dilations=(2, 2), pads=(2, 1, 2, 1), is_finished=False),
    "pointwise": lambda: Convolution(2, 32, 32, (5, 5), (1, 1)),
    "pointwise, steps": lambda: Convolution(1, 32, 16, (7, 7), (1, 1), strides=(2, 2)),
    "symbolic batch": lambda: Convolution(3, 16, 16, (3, 3), (3, 3), pads=(1, 1, 1, 1), symbolic=True),
    "any size": lambda: Convolution(1, 16, 16, (3, 5), (2, 3), pads=(1, 1, 0, 1), any_size=True),
    "empty batch": lambda: Convolution(0, 16, 16, (4, 5), (3, 3), pads=(1, 1, 1, 1), symbolic=True),
}


@pytest.mark.parametrize("name", some_of(CONVOLUTIONS, quick=CONVOLUTIONS.keys() - {"dilated", "pointwise", "pointwise, steps"}))
def test_convolutions_of_fragments_are_what_the_loops_say(name: str) -> None:
    case = CONVOLUTIONS[name]()
    scheduled = case.scheduled()

    held, plain = finish(scheduled, FEATURES), finish(scheduled, ())

    assert {call.split(".")[0] for call in calls_of(held)} == {"ldmatrix", "mma"} and not calls_of(plain)
    case.check(held, *([scheduled, plain] if name in ("odd channels", "pointwise") else []))


@pytest.mark.slow
def test_many_convolutions_are_what_the_loops_say_with_any_answers() -> None:
    rng = np.random.default_rng(3)
    for _ in range(25):
        kernel = tuple(int(size) for size in rng.integers(1, 4, 2))
        case = Convolution(
            int(rng.integers(1, 4)), int(rng.integers(5, 40)), int(rng.integers(5, 40)), tuple(map(int, rng.integers(6, 9, 2))), kernel,
            strides=tuple(map(int, rng.integers(1, 3, 2))), dilations=tuple(map(int, rng.integers(1, 3, 2))),
            pads=tuple(map(int, rng.integers(0, 3, 4))), symbolic=bool(rng.random() < 0.4),
            any_size=bool(rng.random() < 0.3), is_finished=bool(rng.random() < 0.7),
        )  # fmt: skip
        try:
            scheduled = case.scheduled(drawn(rng))
        except ScheduleError as error:
            assert "shared memory" in str(error)
            continue
        case.check(scheduled, finish(scheduled, FEATURES))


@pytest.mark.covering
@pytest.mark.parametrize("write", [text_for_cuda, text_as_ptx])
@pytest.mark.parametrize("name", ["odd channels", "pointwise, steps", "symbolic batch"])
def test_texts_of_convolutions_do_the_same(name: str, write: Callable[[PrimFunc], str]) -> None:
    case = CONVOLUTIONS[name]()
    func = finish(case.scheduled(), FEATURES)
    (launch,) = launches_of(func)
    env = dict(zip(func.dims, case.dims, strict=True))
    grid = tuple(int(evaluate(size, env)) for size in launch.grid)
    memory = {buffer: np.ascontiguousarray(array) for buffer, array in zip(func.inputs, case.arrays, strict=True)}
    out = func.outputs[0]
    memory[out] = np.zeros(case.expected.shape, out.dtype.numpy)

    arguments = [*(memory[buffer] for buffer in launch.buffers), *(env[var] for var in launch.scalars)]
    report = run(write(func), "kernel_0", grid, launch.threads, arguments)

    np.testing.assert_array_equal(memory[out].astype(np.float32), case.expected)
    assert report.bank_conflicts("ldmatrix") == 0 and report.count("mma.sync.aligned") > 0


@pytest.mark.parametrize("write", [text_for_cuda, text_as_ptx])
def test_channels_are_copied_in_the_background_and_padding_is_zeros_of_copies(write: Callable[[PrimFunc], str]) -> None:
    case = Convolution(1, 64, 64, (14, 14), (3, 3), pads=(1, 1, 1, 1))

    text = write(finish(case.scheduled(), FEATURES))

    assert "cp.async.cg.shared.global" in text and "cp.async.ca" not in text and "ld.global.u16" not in text
    assert ".local" not in text


def test_convolutions_run_on_an_opencl_device_which_has_no_matrix_instructions() -> None:
    context, queue = opencl_context()
    cases = [CONVOLUTIONS[name]() for name in ("odd channels", "dilated", "symbolic batch")]
    funcs = [finish(case.scheduled(), ()) for case in cases]

    programs = OpenClPrograms(funcs, context, queue)

    for case, func in zip(cases, funcs, strict=True):
        (found, *_) = programs.run(func, case.arrays, case.dims)
        np.testing.assert_array_equal(found.astype(np.float32), case.expected)


def test_pixels_run_on_across_the_ends_of_rows_and_of_images() -> None:
    scheduled = Convolution(8, 64, 64, (7, 7), (3, 3), pads=(1, 1, 1, 1), is_finished=False).scheduled()

    (launch,) = launches_of(finish(scheduled, FEATURES))
    rows = 8 * 7 * 7
    assert int(evaluate(launch.grid[0], {})) * launch.threads[1] * 16 * 16 <= 2 * -(-rows // 32) * 32 * 64
