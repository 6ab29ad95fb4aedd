"""What becomes a table of 256 entries, what does not, and that the numbers stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tc
from tc.interp import run_function
from tc.ir.dtype import DType, i8, u8
from tc.ir.graph import Atom, Call
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.passes.graph.byte_tables import byte_tables
from tc.passes.graph.dce import remove_dead_code

Build = Callable[[GraphBuilder], Atom]


def module_of(build: Build) -> IRModule:
    b = GraphBuilder()
    return IRModule((b.function("main", (build(b),)),))


def narrowed(module: IRModule) -> tuple[IRModule, list[str]]:
    after = remove_dead_code(byte_tables(module))
    return after, [binding.value.op for binding in after.main.bindings if isinstance(binding.value, Call)]


def wide(b: GraphBuilder, x: Atom, scale: float = 0.05, zero: int = 100) -> Atom:
    return b.call("dequantize_linear", x, b.const(np.float32(scale)), b.const(np.array(zero, x.type.dtype.numpy)))


def narrow(b: GraphBuilder, x: Atom, scale: float = 0.02, zero: int = 7, dtype: DType = u8) -> Atom:
    return b.call("quantize_linear", x, b.const(np.float32(scale)), b.const(np.array(zero, dtype.numpy)), dtype=dtype)


def bytes_of(b: GraphBuilder, name: str = "x", shape: tuple[int, ...] = (1, 4, 64), dtype: DType = u8) -> Atom:
    return b.param(name, tensor_type(shape, dtype))


def gelu(b: GraphBuilder) -> Atom:
    """As quantizers leave it: bytes after every operator."""
    x = wide(b, bytes_of(b))
    bell = wide(b, narrow(b, b.call("erf", b.call("div", x, b.const(np.float32(1.4142))))), 0.02, 7)
    product = wide(b, narrow(b, b.call("mul", x, b.call("add", bell, b.const(np.float32(1.0)))), 0.1, 20), 0.1, 20)
    return narrow(b, b.call("mul", product, b.const(np.float32(0.5))))


def signed(b: GraphBuilder) -> Atom:
    return narrow(b, b.call("tanh", wide(b, bytes_of(b, dtype=i8), 0.05, -3)), 0.01, -5, i8)


def undefined(b: GraphBuilder) -> Atom:
    """NaN and infinities on their way into the table."""
    x = wide(b, bytes_of(b), 0.5, 128)
    return narrow(b, b.call("div", b.call("log", x), x))


def again(b: GraphBuilder) -> Atom:
    return narrow(b, wide(b, bytes_of(b)))


TABLES = (gelu, signed, undefined, again)


@pytest.mark.parametrize("build", TABLES)
def test_a_function_of_single_bytes_is_one_table(build: Build) -> None:
    module = module_of(build)
    dtype = module.main.params[0].type.dtype.numpy
    numbers = np.arange(256, dtype=np.uint8).view(dtype).reshape(1, 4, 64)

    after, ops = narrowed(module)

    assert ops == ["lookup"]
    assert np.array_equal(run_function(after, "main", [numbers])[0], run_function(module, "main", [numbers])[0])


def of_two(b: GraphBuilder) -> Atom:
    return narrow(b, b.call("add", wide(b, bytes_of(b)), wide(b, bytes_of(b, "y"))))


def per_channel(b: GraphBuilder) -> Atom:
    return narrow(b, b.call("mul", wide(b, bytes_of(b)), b.const(np.arange(64, dtype=np.float32))))


def softmax(b: GraphBuilder) -> Atom:
    return narrow(b, b.call("softmax", wide(b, bytes_of(b)), axis=-1))


def transposed(b: GraphBuilder) -> Atom:
    """The shapes of operand and result are one, their elements are not."""
    return narrow(b, b.call("transpose", wide(b, bytes_of(b, shape=(16, 16)))))


def added_to_its_transpose(b: GraphBuilder) -> Atom:
    x = wide(b, bytes_of(b, shape=(16, 16)))
    return narrow(b, b.call("add", x, b.call("transpose", x)))


def running_sums(b: GraphBuilder) -> Atom:
    return narrow(b, b.call("cumsum", wide(b, bytes_of(b)), axis=1))


def broadcast(b: GraphBuilder) -> Atom:
    return narrow(b, b.call("add", wide(b, bytes_of(b, shape=(4, 1))), b.const(np.zeros((1, 3), np.float32))))


def zero_point(b: GraphBuilder) -> Atom:
    return b.call("quantize_linear", b.const(np.float32(0.5)), b.const(np.float32(0.25)), bytes_of(b, shape=()), dtype=u8)


def normalized(b: GraphBuilder) -> Atom:
    """One channel, whose numbers are literals of an axis: batch_norm takes no scalars, which crashed."""
    return narrow(b, b.call("batch_norm", wide(b, bytes_of(b, shape=(2, 1, 4))), *[b.const(np.ones(1, np.float32))] * 4))


def triangle(b: GraphBuilder) -> Atom:
    """Each element is made of that at its place and of where that is, which crashed."""
    return narrow(b, b.call("trilu", wide(b, bytes_of(b, shape=(16, 16))), b.const(np.int64(-1)), upper=False))


NOT_TABLES = (
    zero_point, of_two, per_channel, softmax, transposed, added_to_its_transpose, running_sums, broadcast, normalized, triangle,
)  # fmt: skip


@pytest.mark.parametrize("build", NOT_TABLES)
def test_what_depends_on_more_than_one_byte_is_no_table(build: Build) -> None:
    module = module_of(build)

    assert byte_tables(module) is module


def test_a_table_of_a_table_is_one() -> None:
    def build(b: GraphBuilder) -> Atom:
        first = narrow(b, b.call("sigmoid", wide(b, bytes_of(b))), 0.004, 0)
        return narrow(b, b.call("exp", wide(b, first, 0.004, 0)))

    _, ops = narrowed(module_of(build))

    assert ops == ["lookup"]


def test_a_number_of_another_rank_keeps_the_shape_of_the_result() -> None:
    """x[5] + 1[1, 1] has two axes: it is not what is looked up for each x."""
    module = module_of(
        lambda b: narrow(b, b.call("add", wide(b, bytes_of(b, shape=(5,))), b.const(np.ones((1, 1), np.float32))))
    )

    after, _ = narrowed(module)

    assert after.main.results[0].type.static_shape == (1, 5)
    numbers = [np.arange(5, dtype=np.uint8)]
    assert np.array_equal(run_function(after, "main", numbers)[0], run_function(module, "main", numbers)[0])


def test_a_number_quantized_by_vectors_of_one_element_is_looked_up() -> None:
    """Parameters may have more axes than what they belong to."""

    def build(b: GraphBuilder) -> Atom:
        parameters = b.const(np.array([0.1], np.float32)), b.const(np.array([3], np.uint8))
        wide = b.call("sigmoid", b.call("dequantize_linear", bytes_of(b, shape=()), *parameters))
        return b.call("quantize_linear", wide, *parameters, dtype=u8)

    module = module_of(build)
    after, ops = narrowed(module)

    assert ops == ["lookup"]
    for number in (0, 3, 7, 255):
        x = np.array(number, np.uint8)
        np.testing.assert_array_equal(run_function(after, "main", [x])[0], run_function(module, "main", [x])[0])
        np.testing.assert_array_equal(tc.compile(module)(x), run_function(module, "main", [x])[0])
