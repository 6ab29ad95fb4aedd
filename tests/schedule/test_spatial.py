"""What the rule for data movement chooses: how squares follow each other, how much of a row is taken without a loop."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.interp import run_prim_func
from tc.ir.dtype import bool_, f32, from_numpy, i64, u8
from tc.ir.expr import FloorMod, Load, Max, Min, Var, const
from tc.ir.loop import For, LoopKind, PrimFunc
from tc.ir.module import IRModule
from tc.ir.node import walk
from tc.ir.types import TensorType, tensor_type
from tc.ir.uses import variables
from tc.ops.build import GraphBuilder
from tc.ops.registry import OPS
from tc.passes.pipeline import finish_loops
from tc.schedule.analysis import block_infos
from tc.schedule.knobs import Value
from tc.schedule.rules import apply_rules
from tc.target import Target, native_target
from tc.te import compute, create_prim_func, placeholder
from tests.frontend.models import make_model, node
from tests.ops.kernels import make_prim_func, run

WIDE = Target.parse("x86-64-v4")


def chosen(func: PrimFunc, what: str) -> list[Value]:
    return [choice.value for choice in apply_rules(func, WIDE).choices if choice.knob.name.endswith(f"/{what}")]


@pytest.mark.parametrize(("shape", "order"), [((3000, 80), "columns"), ((3000, 3000), "columns"), ((80, 1200), "rows"), ((60, 50), "rows")])
def test_an_operand_of_many_rows_is_read_row_by_row(shape: tuple[int, int], order: str) -> None:
    func = make_prim_func(OPS["transpose"], [np.zeros(shape, np.float32)], {"perm": (1, 0)})

    assert chosen(func, "order") == [order]


@pytest.mark.parametrize(("shape", "in_order"), [((500, 700), True), ((500, 1024), False), ((200, 300), False), ((3000, 80), False)])
def test_what_lies_behind_the_caches_is_written_in_order(shape: tuple[int, int], in_order: bool) -> None:
    """Squares begin lines of the result here and end them there; but lines of which many share a set do not stay until they are used up."""
    func = make_prim_func(OPS["transpose"], [np.zeros(shape, np.float32)], {"perm": (1, 0)})

    assert chosen(func, "squares") == [not in_order]


def test_a_few_vectors_of_a_row_are_taken_without_a_loop() -> None:
    rows = make_prim_func(OPS["concat"], [np.zeros((7, 28), np.float32)] * 3, {"axis": 1})
    short = make_prim_func(OPS["concat"], [np.zeros((7, 20), np.float32)] * 2, {"axis": 1})

    assert (chosen(rows, "vectors"), chosen(short, "vectors")) == ([4], [2])
    assert not chosen(rows, "parts") and not chosen(short, "parts")


@pytest.mark.parametrize(
    "shapes, axis, is_cut",
    [
        (((7, 30), (7, 50)), 1, True),
        (((7, 30, 2), (7, 40, 2)), 1, True),
        (((3, 900), (2, 900)), 0, True),
        (((7, 4, 2),) * 2, 1, False),
        (((7, 64),) * 9, 1, True),
        (((7, 64),) * 10, 1, True),  # one after the other they took three times as long
        (((7, 64),) * 129, 1, False),
    ],
)
def test_few_parts_that_are_not_short_are_copied_one_by_one(shapes: tuple[tuple[int, ...], ...], axis: int, is_cut: bool) -> None:
    func = make_prim_func(OPS["concat"], [np.zeros(shape, np.float32) for shape in shapes], {"axis": axis})

    assert chosen(func, "parts") == [True] * is_cut
    assert len(block_infos(apply_rules(func, WIDE).func)) == (len(shapes) if is_cut else 1)


@pytest.mark.parametrize(("pads", "divides"), [((0, 3, 0, 8), False), ((0, 9, 0, 0), True)])
def test_padding_that_reflects_elements_once_divides_nothing(pads: tuple[int, ...], divides: bool) -> None:
    func = make_prim_func(OPS["pad"], [np.zeros((4, 9), np.float32)], {"pads": pads, "mode": "reflect"})

    indices = [index for load in walk(func.body) if isinstance(load, Load) for index in load.indices]
    assert any(isinstance(node, FloorMod) for index in indices for node in walk(index)) == divides


@pytest.mark.parametrize(("channels", "pixels"), [(24, 50), (16, 33), (40, 16)])
def test_numbers_of_each_channel_do_not_keep_images_from_being_read_in_squares(channels: int, pixels: int) -> None:
    """Of shape [c, 1, 1], beside an image whose channels are its last axis."""
    image, bias, made = (placeholder(tuple(map(const, shape)), f32, name) for shape, name in _turned(channels, pixels))
    result = compute(made.shape, lambda n, c, y, x: image[n, y, x, c] + bias[c, 0, 0], "added")
    func = create_prim_func("turned", [image, bias], [result], ())

    assert chosen(func, "squares") == [True]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape, _ in _turned(channels, pixels)[:2]]
    (found,) = run(finish_loops(apply_rules(func, native_target()).func), arrays)
    np.testing.assert_array_equal(found, arrays[0].transpose(0, 3, 1, 2) + arrays[1])


def _turned(channels: int, pixels: int) -> list[tuple[tuple[int, ...], str]]:
    return [((1, 5, pixels, channels), "image"), ((channels, 1, 1), "bias"), ((1, channels, 5, pixels), "made")]


@pytest.mark.parametrize("mode", ["edge", "reflect"])
@pytest.mark.parametrize("width", [40, 126, 157, 300])
def test_rows_that_are_padded_by_their_own_elements_are_copied_and_not_gathered(mode: str, width: int) -> None:
    x = np.random.default_rng(width).standard_normal((2, 5, width)).astype(np.float32)
    func = make_prim_func(OPS["pad"], [x], {"pads": (0, 1, 2, 0, 3, 1), "mode": mode})

    made = finish_loops(apply_rules(func, native_target()).func)

    vectors = [loop for loop in walk(made.body) if isinstance(loop, For) and loop.kind is LoopKind.VECTORIZED]
    choices = [node for loop in vectors for node in walk(loop.body) if isinstance(node, (Max, Min)) and loop.var in variables(node)]
    assert vectors and not choices
    np.testing.assert_array_equal(run(made, [x])[0], np.pad(x, [(0, 0), (1, 3), (2, 1)], mode=mode))


@pytest.mark.parametrize(("sizes", "before"), [((2, 3, 40, 66), True), ((2, 3, 40, 10), True), ((2, 3, 40, 2), False)])
def test_rows_of_a_resized_image_are_mixed_before_columns_are_looked_up_in_them(sizes: tuple[int, ...], before: bool) -> None:
    """Two vectors are gathered instead of four, unless most of a row is not looked up."""
    x = np.random.default_rng(0).standard_normal((2, 3, 17, 33)).astype(np.float32)
    func = make_prim_func(OPS["resize"], [x], {"sizes": sizes, "scales": (None,) * 4, "mode": "linear"})

    scheduled = apply_rules(func, native_target()).func

    assert any(info.name == "resize2" for info in block_infos(scheduled)) is before
    found = run(finish_loops(scheduled), [x])[0]
    np.testing.assert_allclose(found, run_prim_func(func, [x])[0], rtol=1e-6, atol=1e-6)


TARGETS = ["native", "x86-64-v2", "x86-64-v3", "x86-64-v4", "c"]


@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64], ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("number", range(5))
def test_few_columns_are_exchanged_whatever_their_number(dtype: type, target: str, number: int, rng: np.random.Generator) -> None:
    """Of an operand and of a result; rows that no vector divides, rows of a larger array, and too few for a vector."""
    target_ = Target.of(target)
    if target_.missing_here():
        pytest.skip(f"this CPU lacks {', '.join(target_.missing_here())}")
    columns = (2, 3, *rng.choice(range(4, 17), 3, replace=False))[number]
    rows = int(rng.integers(1, 200))
    images = ((2, columns, 3, rows), (0, 2, 3, 1)), ((2, 3, rows, columns), (0, 3, 1, 2))
    for shape, perm in (((columns, rows), (1, 0)), ((rows, columns), (1, 0)), *images):
        x = rng.integers(0, 100, shape).astype(dtype)
        b = GraphBuilder()
        y = b.call("transpose", b.param("x", tensor_type(shape, from_numpy(x.dtype))), perm=perm)
        compiled = tc.compile(IRModule((b.function("main", (y,)),)), target_, threads=1)

        np.testing.assert_array_equal(np.asarray(compiled(x)), x.transpose(perm))


@pytest.mark.parametrize("columns", [3, 4, 7])
@pytest.mark.parametrize("perm", [(0, 2, 1), (1, 0, 2)])
def test_few_columns_of_rows_that_are_known_later(columns: int, perm: tuple[int, ...], rng: np.random.Generator) -> None:
    n, b = Var("n", i64), GraphBuilder()
    forth = b.call("transpose", b.param("x", TensorType((const(2), const(columns), n), f32)), perm=(0, 2, 1))
    compiled = tc.compile(IRModule((b.function("main", (forth, b.call("transpose", forth, perm=perm))),)), threads=1)
    for rows in (1, 15, 16, 100, 0):
        x = rng.standard_normal((2, columns, rows)).astype(np.float32)

        for found, expected in zip(compiled(x), (x.transpose(0, 2, 1), x.transpose(0, 2, 1).transpose(perm)), strict=True):
            np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize(("shape", "perm"), [((3, 192), (1, 0)), ((192, 3), (1, 0)), ((12, 192), (1, 0)), ((192, 12), (1, 0))])
def test_nothing_is_gathered_of_few_columns(shape: tuple[int, ...], perm: tuple[int, ...]) -> None:
    b = GraphBuilder()
    y = b.call("transpose", b.param("x", tensor_type(shape, f32)), perm=perm)

    assembly = tc.lower(IRModule((b.function("main", (y,)),)), "asm", WIDE).as_text()

    assert "gather" not in assembly and "scatter" not in assembly


def test_one_number_for_a_row_is_spread_along_it() -> None:
    """That numbers of neighbouring rows lie side by side is no reason to write the result across: it took four times as long."""
    func = make_prim_func(OPS["expand"], [np.zeros((42, 22, 1), np.float32)], {"shape": (const(42), const(22), const(500))})

    assert not [loop for loop in walk(apply_rules(func, WIDE).func) if isinstance(loop, For) and loop.hints.transpose]


@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("op", ["maximum", "where", "pow"])
def test_rows_of_few_elements_with_numbers_of_their_own(dtype: str, op: str, target: str, rng: np.random.Generator) -> None:
    """Vectors are columns then, whatever is read along rows, along columns, or is one number."""
    target_ = Target.of(target)
    if target_.missing_here():
        pytest.skip(f"this CPU lacks {', '.join(target_.missing_here())}")
    for columns in (2, 3, *(int(size) for size in rng.integers(4, 16, 2))):
        rows = int(rng.integers(1, 90))
        for shape in ((2, rows, 1), (1, rows, columns), (columns,), (1, 1)):
            x, y = (rng.integers(0, 3, size).astype(dtype) for size in ((2, rows, columns), shape))
            b = GraphBuilder()
            a, c = (b.param(name, tensor_type(each.shape, from_numpy(each.dtype))) for name, each in (("x", x), ("y", y)))
            ends = (a,) if op == "where" else ()
            if op == "pow" and dtype not in ("float32", "float64"):
                continue
            chosen = (b.call("cast", c, dtype=bool_),) if op == "where" else (c,)
            made = b.call(op, *chosen, *ends, a) if op == "where" else b.call(op, a, *chosen)
            compiled = tc.compile(IRModule((b.function("main", (made,)),)), target_, threads=2)

            expected = x if op == "where" else np.maximum(x, y) if op == "maximum" else x**y
            np.testing.assert_allclose(np.asarray(compiled(x, y)), np.broadcast_to(expected, (2, rows, columns)), rtol=1e-5)


@pytest.mark.parametrize(("op", "columns", "few"), [("add", 2, 1), ("add", 6, 1), ("add", 9, 0), ("pow", 12, 1), ("pow", 15, 0)])
def test_few_columns_are_vectors(op: str, columns: int, few: int) -> None:
    """Rows of two powers were computed one number after the other, sixteen times as slowly as vectors."""
    func = make_prim_func(OPS[op], [np.zeros((300, columns), np.float32), np.zeros((300, 1), np.float32)], {})

    assert len(chosen(func, "squares")) == few


def test_channels_of_an_image_become_words_of_bytes() -> None:
    """As the first layer of a quantized network wants them: three channels and a zero, quantized side by side."""
    b = GraphBuilder()
    blocks = b.call("block", b.param("x", tensor_type((1, 3, 20, 48), f32)), axis=1, block=4)
    y = b.call("quantize_linear", blocks, b.const(np.float32(0.1)), b.const(np.uint8(7)), dtype=u8)

    assembly = tc.lower(IRModule((b.function("main", (y,)),)), "asm", WIDE).as_text()

    assert "gather" not in assembly


def test_how_many_taps_there_are_is_counted_in_vectors() -> None:
    """Averages at the ends are of fewer; each was divided by itself, as if it were gathered."""
    model = make_model([node("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])], {"x": (np.float32, [1, 4, 28, 28])}, ["y"])

    text = tc.lower(model, "final", WIDE).as_text()

    divided = [line for line in text.splitlines() if " / cast(" in line]
    assert divided and not [line for line in text.splitlines() if "unrolled(14)" in line or "unrolled(10)" in line]
