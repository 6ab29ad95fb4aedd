"""What the rules make of odd sizes: register tiles, tails and symbolic rows compute what numpy computes, on one thread and on two."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tc
from tc.errors import ScheduleError
from tc.ir.arith import Facts
from tc.ir.dtype import f32
from tc.ir.expr import Const, Expr, Load, Var, call, const, maximum, select
from tc.ir.loop import For, LoopKind, PrimFunc
from tc.ir.node import walk
from tc.ir.types import DimFact, tensor_type
from tc.ir.uses import variables
from tc.ops.registry import OPS, inference
from tc.ops.winograd import transform_weights
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import finish_loops
from tc.schedule import rules
from tc.schedule.analysis import block_infos
from tc.schedule.knobs import follow
from tc.schedule.rules import apply_rules
from tc.schedule.rules.common import divisors
from tc.schedule.step import Schedule
from tc.schedule.tree import block_names
from tc.target import Target, native_target
from tc.te import compute, create_prim_func, placeholder, reduce
from tests.draws import some_of
from tests.frontend.models import make_model, node
from tests.ops.kernels import correlate, make_prim_func, run

COLUMNS = (1, 3, 15, 16, 17, 31, 32, 33, 47, 64, 80, 100)
DEPTHS = (1, 2, 3, 5, 7, 16, 17, 33)


def scheduled(func: PrimFunc, rule: str | None, target: Target | None = None) -> PrimFunc:
    """The kernel as it is emitted; `rule` must have scheduled it, unless it is None."""
    made = apply_rules(simplify_loops(func), target or native_target())
    assert rule is None or made.rule == rule
    return finish_loops(made.func)


def check(func: PrimFunc, arrays: list[np.ndarray], expected: np.ndarray, depth: int, dims: tuple[int, ...] = ()) -> None:
    """The first result; the error of a sum of `depth` terms of order one in f32."""
    one, two = (run(func, arrays, dims, threads=threads)[0] for threads in (1, 2))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(one, expected, rtol=0, atol=1e-6 * (4 + depth))


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def product_of(m: int | Var, n: int, k: int, transposed: bool = False, bias: bool = False) -> PrimFunc:
    """C = A B, or A B^T, or max(A B + bias, 0)."""
    a, b = placeholder((m, k), f32, "A"), placeholder((n, k) if transposed else (k, n), f32, "B")
    inputs = [a, b]

    def term(i: Expr, j: Expr, r: Expr) -> Expr:
        return a[i, r] * (b[j, r] if transposed else b[r, j])

    result = reduce("sum", (m, n), (k,), term, "mm")
    if bias:
        shift = placeholder((n,), f32, "bias")
        inputs.append(shift)
        total = result
        result = compute((m, n), lambda i, j: maximum(total[i, j] + shift[j], 0.0), "act")
    if not isinstance(m, Var):
        return create_prim_func("mm", inputs, [result])
    return create_prim_func("mm", inputs, [result], (m,), facts=(DimFact(m, 0),))


@pytest.mark.parametrize("rows", range(1, 31))
def test_products_of_every_number_of_rows(rows: int) -> None:
    rng = np.random.default_rng(rows)
    n, k = COLUMNS[rows * 5 % len(COLUMNS)], DEPTHS[rows * 3 % len(DEPTHS)]
    a, b, bias = normal(rng, rows, k), normal(rng, k, n), normal(rng, n)

    func = scheduled(product_of(rows, n, k, bias=True), "contraction")

    check(func, [a, b, bias], np.maximum(a.astype(float) @ b + bias, 0), k)


@pytest.mark.slow
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("rows", range(1, 31))
def test_products_of_every_shape(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    for k in (1, 7, 16):
        a, b = normal(rng, rows, k), normal(rng, k, columns)
        rule = "contraction" if rows * columns > 1 else "row reduction" if k > 1 else None  # a dot product; one product

        check(scheduled(product_of(rows, columns, k), None if columns == 1 and k == 16 else rule), [a, b], a.astype(float) @ b, k)


SYMBOLIC = [(1, 1, False), (5, 3, True), (16, 7, False), (17, 16, True), (31, 1, False), (32, 33, True), (48, 5, False), (100, 17, True)]


@pytest.mark.parametrize(("columns", "depth", "bias"), SYMBOLIC)
def test_one_kernel_serves_any_number_of_rows(columns: int, depth: int, bias: bool) -> None:
    rng = np.random.default_rng(columns)
    func = scheduled(product_of(Var("m"), columns, depth, bias=bias), "contraction")
    b, shift = normal(rng, depth, columns), normal(rng, columns)

    for rows in (*range(33), 61, 100):
        a = normal(rng, rows, depth)
        plain = a.astype(float) @ b
        expected = np.maximum(plain + shift, 0) if bias else plain
        check(func, [a, b, shift] if bias else [a, b], expected, depth, (rows,))


def test_rows_and_columns_of_one_symbolic_size() -> None:
    """Where there are fewer rows than a tile has, there are fewer columns too: the register tile still has a size known to LLVM."""
    m = Var("m")
    a, b = placeholder((m, 15), f32, "A"), placeholder((15, m), f32, "B")
    result = reduce("sum", (m, m), (15,), lambda i, j, r: a[i, r] * b[r, j], "mm")
    func = scheduled(create_prim_func("mm", [a, b], [result], (m,), facts=(DimFact(m, 0),)), "contraction")
    rng = np.random.default_rng(0)

    for size in (0, 1, 2, 3, 4, 5, 6, 15, 16, 17, 31, 40):
        x, y = normal(rng, size, 15), normal(rng, 15, size)
        check(func, [x, y], x.astype(float) @ y, 15, (size,))


@pytest.mark.covering
@pytest.mark.parametrize("level", ["x86-64-v3", "native"])
def test_rows_and_columns_of_two_symbolic_sizes(level: str) -> None:
    """Versions for one vector of columns: of the highest tiles, and of single rows."""
    m, n, k = Var("m"), Var("n"), Var("k")
    target = Target.parse(level)
    a, b = placeholder((m, k), f32, "A"), placeholder((k, n), f32, "B")
    result = reduce("sum", (m, n), (k,), lambda i, j, r: a[i, r] * b[r, j], "mm")
    made = create_prim_func("mm", [a, b], [result], (m, n, k), facts=tuple(DimFact(dim, 0) for dim in (m, n, k)))
    func, rng = scheduled(made, "contraction", target), np.random.default_rng(0)

    for rows in (0, 1, 2, 4, 5, 13, 14, 27):
        for columns in (0, 1, 7, 8, 9, 15, 16, 17, 33, 100):
            x, y = normal(rng, rows, 11), normal(rng, 11, columns)
            check(func, [x, y], x.astype(float) @ y, 11, (rows, columns, 11))
    text = str(scheduled(made, "contraction", Target.parse("x86-64-v4")))
    tiles = {(int(height), int(columns) // 16) for height, columns in re.findall(r"Alloc\(buffer=\w+: f32\[(\d+), (\d+)\]", text)}
    assert len({vectors for height, vectors in tiles if height == 1}) == 2, "single rows have a wide version and a narrow one"
    assert {1} < {vectors for height, vectors in tiles if height > 4}


@pytest.mark.parametrize("rows", [1, 6, 13, 52, 100])
def test_any_number_of_columns_for_a_number_of_rows(rows: int) -> None:
    """The narrow version, for fewer columns than a tile has, took the blocks of the version for few columns for its own."""
    m, n = Var("m"), Var("n")
    a, b = placeholder((m, 3, rows, 9), f32, "A"), placeholder((1, 3, 9, n), f32, "B")
    result = reduce("sum", (m, 3, rows, n), (9,), lambda k, h, i, j, r: a[k, h, i, r] * b[0, h, r, j], "mm")
    made = create_prim_func("mm", [a, b], [result], (m, n), facts=(DimFact(m, 0), DimFact(n, 0)))
    func, rng = scheduled(made, None), np.random.default_rng(rows)

    for count, columns in ((0, 5), (1, 0), (2, 1), (1, 15), (2, 16), (1, 17), (2, 40), (1, 127), (2, 128), (1, 255), (5, 256), (2, 300)):
        x, y = normal(rng, count, 3, rows, 9), normal(rng, 1, 3, 9, columns)
        check(func, [x, y], x.astype(float) @ y, 9, (count, columns))


@pytest.mark.parametrize("depth", [7, Var("k")])
def test_operands_made_of_several_tensors_serve_few_rows(depth: int | Var) -> None:
    """Computed where it is read, such an operand was none of a contraction any more, and an assertion of the rule failed."""
    m, n = Var("m"), Var("n")
    columns = (n // 2 + 1) * 2
    a, u, v = placeholder((m, depth), f32, "A"), placeholder((depth,), f32, "u"), placeholder((columns,), f32, "v")
    b = compute((a.shape[1], columns), lambda r, j: call("sin", u[r] * v[j]), "b")
    result = reduce("sum", (m, columns), (a.shape[1],), lambda i, j, r: a[i, r] * b[r, j], "mm")
    dims = (m, n) if isinstance(depth, int) else (m, n, depth)
    made = create_prim_func("mm", [a, u, v], [result], dims, facts=tuple(DimFact(dim, 0) for dim in dims))
    func, rng = scheduled(made, "contraction"), np.random.default_rng(0)

    for rows, size in ((0, 5), (1, 0), (1, 70), (2, 1), (3, 5), (4, 40), (5, 33), (6, 3), (17, 31), (64, 8)):
        terms = depth if isinstance(depth, int) else (0, 1, 9, 20)[rows % 4]
        x, y, z = normal(rng, rows, terms), normal(rng, terms), normal(rng, (size // 2 + 1) * 2)
        expected = x.astype(float) @ np.sin(np.multiply.outer(y, z).astype(float))
        check(func, [x, y, z], expected, terms, (rows, size, *([] if isinstance(depth, int) else [terms])))


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "native"])
def test_products_on_other_targets(level: str) -> None:
    rng = np.random.default_rng(3)
    for m, n, k in [(7, 21, 9), (30, 64, 5), (1, 40, 33), (13, 8, 2)]:
        a, b = normal(rng, m, k), normal(rng, k, n)

        check(scheduled(product_of(m, n, k), "contraction", Target.parse(level)), [a, b], a.astype(float) @ b, k)


def run_op(name: str, arrays: list[np.ndarray], attrs: dict[str, Any], rule: str, depth: int) -> None:
    op = OPS[name]
    expected = op.run_reference([a.astype(np.float64) for a in arrays], op.attrs(attrs))[0]
    check(scheduled(make_prim_func(op, arrays, attrs), rule), arrays, expected, depth)


@pytest.mark.parametrize("columns", [1, 15, 16, 33, 64])
@pytest.mark.parametrize("shape", [(1,), (13,), (2, 9), (3, 1), (1, 30), (2, 3, 5)], ids=str)
def test_packed_products(shape: tuple[int, ...], columns: int) -> None:
    rng = np.random.default_rng(columns)
    lanes = native_target().lanes(32)
    k = 11
    packed = np.zeros((-(-columns // lanes), k, lanes), np.float32)
    for j in range(columns):
        packed[j // lanes, :, j % lanes] = normal(rng, k)

    rule = "contraction" if columns > 1 or shape != (1,) else "reduction, stage by stage"  # a dot product
    run_op("matmul_packed", [normal(rng, *shape, k), packed], {"columns": columns}, rule, k)


def conv_arrays(
    rng: np.random.Generator, channels: int, outputs: int, size: tuple[int, int], kernel: tuple[int, int], groups: int, block: int
) -> list[np.ndarray]:
    per_group = channels // groups
    x = normal(rng, 1, -(-channels // block), *size, block)
    w = np.zeros((-(-outputs // block), -(-per_group // block), *kernel, block, block), np.float32)
    w[...] = normal(rng, *w.shape) / np.float32(np.sqrt(per_group * kernel[0] * kernel[1]))
    return [x, w, normal(rng, w.shape[0], block)]


def conv_attrs(channels: int, block: int, kernel: tuple[int, int], stride: int, dilation: int, groups: int, pad: int) -> dict[str, Any]:
    return {
        "strides": (stride, stride),
        "pads": (pad, pad, pad, pad),
        "dilations": (dilation, dilation),
        "groups": groups,
        "in_channels": channels,
        "in_block": block,
    }


@pytest.mark.parametrize("width", range(1, 31))
def test_convolutions_of_every_width(width: int) -> None:
    rng = np.random.default_rng(width)
    block = native_target().lanes(32)
    channels, outputs = int(rng.integers(1, 40)), int(rng.integers(1, 70))
    size = (int(rng.integers(1, 9)), width)
    kernel = [(3, 3), (1, 1), (1, 3), (2, 2), (5, 5)][width % 5]
    stride, dilation = (2, 1) if width % 3 == 0 else (1, 2) if width % 7 == 0 else (1, 1)
    pad = (max(kernel) - 1) * dilation // 2 + (kernel[0] != kernel[1])

    arrays = conv_arrays(rng, channels, outputs, size, kernel, 1, block)

    run_op("conv_blocked", arrays, conv_attrs(channels, block, kernel, stride, dilation, 1, pad), "contraction", 40)


@pytest.mark.parametrize(("groups", "stride", "dilation"), [(2, 1, 1), (3, 2, 1), (4, 1, 2), (2, 2, 3)])
def test_convolutions_in_groups(groups: int, stride: int, dilation: int) -> None:
    rng = np.random.default_rng(groups)
    block = native_target().lanes(32)
    channels, outputs = groups * block, groups * 2 * block

    arrays = conv_arrays(rng, channels, outputs, (9, 11), (3, 3), groups, block)

    run_op("conv_blocked", arrays, conv_attrs(channels, block, (3, 3), stride, dilation, groups, dilation), "contraction", 40)


WIDTHS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 65, 112]


@pytest.mark.parametrize("width", some_of(range(1, 31), quick=[width for width in WIDTHS if width < 31]))
def test_depthwise_convolutions_of_every_width(width: int) -> None:
    rng = np.random.default_rng(width)
    block = native_target().lanes(32)
    blocks = 1 + width % 3
    kernel = [(3, 3), (5, 5), (1, 7)][width % 3]
    stride, dilation = (2, 1) if width % 4 == 0 else (1, 2) if width % 5 == 0 else (1, 1)
    x, w = normal(rng, 1 + width % 2, blocks, 1 + width * 7 % 13, width, block), normal(rng, blocks, 1, *kernel, block)
    attrs = conv_attrs(blocks * block, block, kernel, stride, dilation, 1, (max(kernel) - 1) * dilation // 2)

    run_op("conv_blocked", [x, w, normal(rng, blocks, block)], {**attrs, "depthwise": True}, "window reduction", 49)


def plain_depthwise(channels: int, kernel: tuple[int, int], dilation: int, stride: int = 1) -> dict[str, Any]:
    pads = [(size - 1) * dilation // 2 for size in kernel]
    return {"strides": (stride, stride), "pads": (*pads, *pads), "dilations": (dilation, dilation), "groups": channels}


@pytest.mark.parametrize("width", some_of([*range(1, 36), 47, 48, 49, 64, 65, 112], quick=WIDTHS))
def test_plain_depthwise_convolutions_of_every_width(width: int) -> None:
    rng = np.random.default_rng(width)
    kernel = [(3, 3), (5, 5), (1, 7), (3, 1), (2, 3)][width % 5]
    dilation, stride = (2, 1) if width % 4 == 0 else (1, 2 + width % 4) if width % 3 == 0 else (1, 1)
    channels, height = int(rng.integers(2, 20)), int(rng.integers(2, 20))
    x, w = normal(rng, 1 + width % 2, channels, height, width), normal(rng, channels, 1, *kernel)
    overlap = stride <= 4 and kernel[1] > 1 and width > stride * kernel[1]
    rule = "window reduction" if overlap else None

    run_op("conv", [x, w, normal(rng, channels)], plain_depthwise(channels, kernel, dilation, stride), rule, 49)


@pytest.mark.covering
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [(3, 3), (5, 5), (1, 4)])
def test_plain_depthwise_convolutions_of_symbolic_size(kernel: tuple[int, int], stride: int) -> None:
    rng = np.random.default_rng(0)
    n, height, width = Var("n"), Var("h"), Var("w")
    op, w, bias = OPS["conv"], normal(rng, 6, 1, *kernel), normal(rng, 6)
    attrs = op.attrs({**plain_depthwise(6, kernel, 1, stride), "pads": (2, 2, 2, 2)})
    types = [tensor_type((n, 6, height, width), f32), tensor_type(w.shape, f32), tensor_type(bias.shape, f32)]
    facts = tuple(DimFact(dim, 1) for dim in (n, height, width))
    with inference(Facts.of(facts)):
        results = op.infer_types(types, attrs)
        inputs = [placeholder(each.shape, each.dtype, f"x{k}") for k, each in enumerate(types)]
        outputs = op.compute_tensors(inputs, attrs, results)
    func = scheduled(create_prim_func("conv", inputs, outputs, (n, height, width), facts=facts), "window reduction")

    for size in ((1, 1, 1), (1, 5, 7), (2, 6, 8), (1, 7, 9), (1, 12, 16), (1, 13, 3), (3, 2, 20), (1, 9, 70)):
        x = normal(rng, size[0], 6, *size[1:])
        expected = op.run_reference([a.astype(np.float64) for a in (x, w, bias)], attrs)[0]
        check(func, [x, w, bias], expected, kernel[0] * kernel[1], size)


@pytest.mark.parametrize(("depthwise", "kernel"), [(True, 3), (True, 5), (False, 3)])
def test_bands_of_a_symbolic_height(depthwise: bool, kernel: int) -> None:
    """Bands of several padded rows, of which the last may be cut short, for every height and width around their size."""
    rng = np.random.default_rng(kernel)
    block = native_target().lanes(32)
    n, height, width = Var("n"), Var("h"), Var("w")
    op = OPS["conv_blocked"]
    w = normal(rng, 2, 1, kernel, kernel, block) if depthwise else normal(rng, 2, 2, kernel, kernel, block, block)
    bias = normal(rng, 2, block)
    attrs = op.attrs(conv_attrs(2 * block, block, (kernel, kernel), 1, 1, 1, kernel // 2) | {"depthwise": depthwise})
    types = [tensor_type((n, 2, height, width, block), f32), tensor_type(w.shape, f32), tensor_type(bias.shape, f32)]
    facts = tuple(DimFact(dim, 0) for dim in (n, height, width))
    with inference(Facts.of(facts)):
        results = op.infer_types(types, attrs)
        inputs = [placeholder(each.shape, each.dtype, f"x{k}") for k, each in enumerate(types)]
        outputs = op.compute_tensors(inputs, attrs, results)
    func = create_prim_func("conv", inputs, outputs, (n, height, width), facts=facts)
    func = scheduled(func, "window reduction" if depthwise else "contraction")

    for size in ((1, 1, 1), (1, 5, 7), (2, 6, 8), (1, 7, 9), (1, 12, 16), (1, 13, 3), (3, 2, 20), (0, 4, 4), (1, 0, 5)):
        x = normal(rng, size[0], 2, *size[1:], block)
        expected = op.run_reference([a.astype(np.float64) for a in (x, w, bias)], attrs)[0] if x.size else x
        check(func, [x, w, bias], expected, 400 * kernel**2, size)


def test_rows_that_are_packed_in_bands_need_not_be_whole_bands() -> None:
    """157 tiles of rows and one cut short; the rhs is too large for its columns to stay in a cache."""
    rng = np.random.default_rng(0)
    rows, depth, columns = 13 * 37 + 5, 1024, 256
    a, b = normal(rng, rows, depth), normal(rng, depth, columns)

    point = {"mm/pack_lhs": True, "mm/vectors": 2, "mm/rows": 13, "mm/outermost": "rows"}
    made = apply_rules(simplify_loops(product_of(rows, columns, depth)), native_target(), follow(point))

    assert any(choice.knob.name == "mm/band_tiles" for choice in made.choices)
    check(finish_loops(made.func), [a, b], a.astype(float) @ b, 8 * depth)


def test_rows_that_evict_each_other_are_taken_few_at_a_time() -> None:
    rng = np.random.default_rng(0)
    rows, depth, columns = 157, 1024, 256
    a, b = normal(rng, rows, depth), normal(rng, depth, columns)

    made = apply_rules(simplify_loops(product_of(rows, columns, depth)), native_target())

    point = {choice.knob.name: choice.value for choice in made.choices}
    assert point["mm/rows"] <= 8
    assert not point["mm/pack_lhs"]
    check(finish_loops(made.func), [a, b], a.astype(float) @ b, 8 * depth)


def test_tiles_of_columns_are_what_runs_in_parallel_where_rows_have_a_tail() -> None:
    """A symbolic number of samples, which may be 1, around positions that leave some over."""
    rng = np.random.default_rng(0)
    block, n = native_target().lanes(32), Var("n")
    op = OPS["conv_blocked"]
    attrs = op.attrs(conv_attrs(2 * block, block, (5, 1), 1, 1, 1, 0))
    x, w, bias = normal(rng, 1, 2, 107, 1, block), normal(rng, 8, 2, 5, 1, block, block), normal(rng, 8, block)
    types = [tensor_type((n, *x.shape[1:]), f32), tensor_type(w.shape, f32), tensor_type(bias.shape, f32)]
    with inference(Facts()):
        results = op.infer_types(types, attrs)
        inputs = [placeholder(each.shape, each.dtype, f"x{k}") for k, each in enumerate(types)]
        outputs = op.compute_tensors(inputs, attrs, results)
    func = create_prim_func("conv", inputs, outputs, (n,), facts=(DimFact(n, 0),))

    made = apply_rules(simplify_loops(func), replace(native_target(), cores=2))

    loops = [node for node in walk(made.func.body) if isinstance(node, For) and node.kind is LoopKind.PARALLEL]
    assert any(isinstance(loop.extent, Const) and loop.extent.value >= 2 for loop in loops)
    expected = op.run_reference([a.astype(np.float64) for a in (x, w, bias)], attrs)[0]
    check(finish_loops(made.func), [x, w, bias], expected, 800, (1,))


@pytest.mark.parametrize("kind", ["max_pool", "avg_pool"])
@pytest.mark.parametrize("width", [1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 30])
def test_pooling_of_odd_widths(kind: str, width: int) -> None:
    rng = np.random.default_rng(width)
    block = native_target().lanes(32)
    x = normal(rng, 1, 2, 1 + width % 6, width, block)
    attrs = {"kernel": (3, 3, 1), "strides": (1 + width % 2, 2, 1), "pads": (1, 1, 0, 1, 1, 0)}

    run_op(kind, [x], attrs, "window reduction", 9)


@pytest.mark.covering
@pytest.mark.parametrize("kind", ["max_pool", "avg_pool"])
@pytest.mark.parametrize("width", [2, 5, 15, 16, 17, 31, 33, 40])
def test_plain_pooling_of_odd_widths(kind: str, width: int) -> None:
    """Windows that move along the contiguous axis: each row of results padded all of its window's rows anew, a vector at a time."""
    rng = np.random.default_rng(width)
    kernel, stride = [(3, 3), (5, 5), (2, 3)][width % 3], 1 + width % 2
    attrs = {"kernel": kernel, "strides": (stride, stride), "pads": (1, 1, 1, 1)}

    run_op(kind, [normal(rng, 2, 3, 4 + width % 7, width)], attrs, "window reduction", 25)


@pytest.mark.parametrize(("kind", "rule"), [("max_pool", "window reduction"), ("avg_pool", "column reduction")])
def test_sums_over_large_windows_are_taken_apart(kind: str, rule: str) -> None:
    """Of so many terms one after the other rounding errors grow; maxima have none."""
    attrs = {"kernel": (9, 9), "strides": (1, 1), "pads": (4, 4, 4, 4)}

    run_op(kind, [normal(np.random.default_rng(0), 1, 2, 12, 40)], attrs, rule, 81)


@pytest.mark.parametrize("columns", some_of([1, 5, 16, 17, 40, 64, 100], quick=[1, 16, 40]))
def test_sums_over_leading_axes_with_symbolic_length(columns: int) -> None:
    m = Var("m")
    x = placeholder((m, columns), f32, "X")
    total = reduce("sum", (columns,), (m,), lambda j, r: x[r, j], "total")
    func = finish_loops(apply_rules(create_prim_func("sums", [x], [total], (m,), facts=(DimFact(m, 0),)), native_target()).func)

    for rows in (0, 1, 2, 7, 16, 33):
        array = normal(np.random.default_rng(rows), rows, columns)
        check(func, [array], array.sum(0, dtype=float), rows, (rows,))


OUTER = [(2, 5, 7, 9), (1, 21, 33, 65), (1, 3, 4, 3), (1, 1, 1, 4), (1, 1, 1, 1), (3, 40, 64), (2, 300, 8), (1, 7, 5, 130)]


@pytest.mark.parametrize("shape", OUTER, ids=str)
def test_reductions_of_an_axis_that_others_follow(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape) * shape[-1])
    x = normal(rng, *shape)
    exact = np.exp(x - x.max(1, keepdims=True, initial=-np.inf), dtype=np.float64)
    softmax = make_prim_func(OPS["softmax"], [x], {"axis": 1})
    check(finish_loops(apply_rules(softmax, native_target()).func), [x], exact / exact.sum(1, keepdims=True), shape[1])

    total = make_prim_func(OPS["sum"], [x], {"axes": (1,), "keepdims": False})
    check(finish_loops(apply_rules(total, native_target()).func), [x], x.sum(1, dtype=float), shape[1])

    x.flat[x.size // 2] = np.nan  # counts as the largest
    x[-1, shape[1] // 2] = 3.5
    largest = make_prim_func(OPS["argmax"], [x], {"axis": 1})
    func = finish_loops(apply_rules(largest, native_target()).func)
    for threads in (1, 2):
        np.testing.assert_array_equal(run(func, [x], threads=threads)[0], x.argmax(1)[:, None])


ROWS = [(1, 8), (5, 3), (40, 1), (40, 64), (70, 65), (3, 7, 4), (2, 3, 9, 5), (100, 2), (33, 130), (0, 4)]


@pytest.mark.covering
@pytest.mark.parametrize("shape", ROWS, ids=str)
@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
def test_searches_of_rows_of_every_length(shape: tuple[int, ...], name: str) -> None:
    rng = np.random.default_rng(len(shape) * shape[-1])
    x = rng.integers(-3, 4, shape).astype(np.float32)  # the same number many times
    x.flat[x.size // 2 :: 7] = np.nan
    x.flat[::5] = np.inf if name == "ArgMin" else -np.inf
    for last in (0, 1):
        turned, find = (np.flip(x, -1) if last else x), np.argmax if name == "ArgMax" else np.argmin
        wanted = shape[-1] - 1 - find(turned, -1) if last else find(x, -1)
        for dims in (list(shape), [f"d{k}" for k in range(len(shape))]):
            made = node(name, "x", "y", axis=-1, keepdims=0, select_last_index=last)
            module = tc.compile(make_model([made], {"x": (np.float32, dims)}, ["y"], opset=17), threads=2)
            np.testing.assert_array_equal(module(x), wanted)


def test_a_short_search_has_a_row_in_each_lane() -> None:
    x = np.zeros((500, 8), np.float32)

    made = apply_rules(simplify_loops(make_prim_func(OPS["argmax"], [x], {"axis": 1})), native_target())

    search = next(block for block in block_infos(made.func) if len(block.written_buffers) == 2)
    driven = {axis.var for axis in search.block.axes if search.loops[-1].var in variables(axis.value)}
    assert search.loops[-1].kind is LoopKind.VECTORIZED and driven and not driven & set(search.reduction_axes)


@pytest.mark.parametrize("shape, axes", [((512, 7, 4, 64), (0, 1, 2)), ((64, 7, 4, 500), (0, 1, 2)), ((40, 30, 20, 100), (0, 1))])
def test_dense_axes_of_long_columns_are_reduced_as_one(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    x = normal(rng, *shape)
    rows = (int(np.prod(shape[: len(axes)])), *shape[len(axes) :])
    parts, joined = (
        apply_rules(make_prim_func(OPS["sum"], [array], {"axes": over, "keepdims": False}), native_target())
        for array, over in ((x, axes), (x.reshape(rows), (0,)))
    )

    assert parts.rule == joined.rule
    one, other = (run(finish_loops(made.func), [array])[0] for made, array in ((parts, x), (joined, x.reshape(rows))))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(one, x.sum(axes, dtype=float), rtol=0, atol=1e-6 * (4 + rows[0]))


BEFORE_SHORT = [
    ((768, 100, 3), 0), ((768, 2, 256, 1), 0), ((20, 300, 33, 2), 1), ((40, 5, 1), 0), ((7, 300, 1, 40, 1), 1), ((50, 3, 2, 1), 0),
]  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("shape, axis", BEFORE_SHORT)
@pytest.mark.parametrize("op", ["sum", "max", "argmax", "mean"])
def test_reductions_of_an_axis_before_short_ones(shape: tuple[int, ...], axis: int, op: str) -> None:
    x = normal(np.random.default_rng(axis), *shape)
    attrs = {"axis": axis} if op == "argmax" else {"axes": (axis,)}
    made = apply_rules(simplify_loops(make_prim_func(OPS[op], [x], attrs | {"keepdims": False})), native_target())
    func = finish_loops(made.func)

    one, two = (run(func, [x], threads=threads)[0] for threads in (1, 2))

    np.testing.assert_array_equal(one, two)
    exact = getattr(np, op)(x.astype(np.float64), axis)
    np.testing.assert_allclose(one, exact, rtol=0, atol=0 if op == "argmax" else 1e-6 * (4 + shape[axis]))


@pytest.mark.parametrize(("op", "shape", "attrs"), [("argmax", (20001, 3), {"axis": 1}), ("sum", (300, 1001, 3), {"axes": (0,)})])
def test_one_loop_over_columns_is_shared_by_threads_though_it_is_cut_short(op: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    func = make_prim_func(OPS[op], [np.zeros(shape, np.float32)], attrs)

    made = apply_rules(simplify_loops(func), replace(native_target(), cores=2))

    reduced = [block for block in block_infos(made.func) if block.reduction_axes]
    assert all(any(loop.kind is LoopKind.PARALLEL for loop in block.loops) for block in reduced)


@pytest.mark.parametrize("shape", [(768, 100, 3), (768, 2, 256, 1), (400, 30, 16)])
def test_lanes_are_neighbouring_results_whatever_the_last_axes_are(shape: tuple[int, ...]) -> None:
    func = make_prim_func(OPS["sum"], [np.zeros(shape, np.float32)], {"axes": (0,), "keepdims": False})

    made = apply_rules(simplify_loops(func), native_target())

    summed = [block for block in block_infos(made.func) if block.reduction_axes]
    for block in summed:
        driven = {axis.var for axis in block.block.axes if block.loops[-1].var in variables(axis.value)}
        assert block.loops[-1].kind is LoopKind.VECTORIZED and driven and not driven & set(block.reduction_axes)


@pytest.mark.parametrize("of_rows", [False, True])
def test_a_sum_times_a_number_is_no_product_of_matrices(of_rows: bool) -> None:
    x, scale = placeholder((24, 100), f32, "x"), placeholder((24 if of_rows else 1,), f32, "scale")
    total = reduce("sum", (24,), (100,), lambda i, k: (x[i, k] - 1.0) * scale[i if of_rows else 0], "total")
    shifted = compute((24,), lambda i: total[i] + 1.0, "shifted")
    rng = np.random.default_rng(4)
    given, by = normal(rng, 24, 100), normal(rng, 24 if of_rows else 1)

    func = scheduled(create_prim_func("scaled", [x, scale], [shifted]), "row reduction")

    check(func, [given, by], ((given - 1).astype(float) * by[:, None]).sum(1) + 1, 100)


def test_stages_of_a_softmax_over_an_outer_axis_share_their_columns() -> None:
    func = make_prim_func(OPS["softmax"], [np.zeros((1, 16, 128, 128), np.float32)], {"axis": 1})

    loops = [node for node in walk(scheduled(func, "column reduction")) if isinstance(node, For)]

    columns = 4 * native_target().vector_bits // 32
    extents = [str(loop.extent) for loop in loops if loop.kind is LoopKind.PARALLEL]
    assert extents == ["128", str(128 // columns)], "one nest for all stages"
    lanes = [loop for loop in loops if loop.kind is LoopKind.VECTORIZED]
    assert len(lanes) == 6, "the largest, exponentials, their total, quotients, and what the first and the third begin with"


@pytest.mark.parametrize("depth", [1024, 1040])
def test_a_tile_may_take_a_part_of_a_panel(depth: int) -> None:
    rng = np.random.default_rng(0)
    a, b = placeholder((24, depth), f32, "A"), placeholder((4, depth, 64), f32, "B")
    result = reduce("sum", (24, 250), (depth,), lambda i, j, r: a[i, r] * b[j // 64, r, j % 64], "mm")
    made = apply_rules(create_prim_func("mm", [a, b], [result]), native_target(), follow({"mm/vectors": 2}))
    func = finish_loops(made.func)

    lane_of = {loop.var for loop in walk(func.body) if isinstance(loop, For) and loop.kind is LoopKind.VECTORIZED}
    panels = [load.indices[0] for load in walk(func.body) if isinstance(load, Load) and load.buffer.name == "B"]
    assert panels and not any(node in lane_of for index in panels for node in walk(index)), "lanes are neighbours in one panel"
    x, y = normal(rng, 24, depth), normal(rng, 4, depth, 64)
    check(func, [x, y], x.astype(float) @ y.transpose(1, 0, 2).reshape(depth, 256)[:, :250], depth)


@pytest.mark.parametrize(("tile", "size"), [(4, (22, 19)), (4, (24, 32)), (2, (11, 12))], ids=str)
def test_bands_of_winograd_tiles_of_any_height_give_the_same_bits(tile: int, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(tile)
    x, w, bias = normal(rng, 2, 3, *size, 16), normal(rng, 32, 48, 3, 3), normal(rng, 2, 16)
    blocked = w.reshape(2, 16, 3, 16, 3, 3).transpose(0, 2, 3, 1, 4, 5)
    arrays = [x, transform_weights(blocked, tile), bias]
    attrs = {"tile": tile, "pads": (1, 1, 1, 1), "in_channels": 48}
    func = simplify_loops(make_prim_func(OPS["conv_winograd"], arrays, attrs))
    rows = -(-size[0] // tile)
    (knob,) = [c.knob.name for c in apply_rules(func, native_target()).choices if c.knob.name.endswith("/band_rows")]
    made = [apply_rules(func, native_target(), follow({knob: height})) for height in divisors(rows)]

    found = [run(finish_loops(each.func, threads=2), arrays)[0] for each in made]

    assert [{c.knob.name: c.value for c in each.choices}[knob] for each in made] == divisors(rows)
    padded = np.pad(x.transpose(0, 1, 4, 2, 3).reshape(2, 48, *size), [(0, 0), (0, 0), (1, 1), (1, 1)])
    exact = correlate(padded, w) + bias.reshape(32)[:, None, None]
    expected = exact.reshape(2, 2, 16, *size).transpose(0, 1, 3, 4, 2)
    for each in found:
        np.testing.assert_array_equal(each, found[0])
        np.testing.assert_allclose(each, expected, rtol=0, atol=3e-6 * np.abs(expected).max())


def test_knobs_are_named_by_block() -> None:
    """They were named by the order of asking: `parallel`, `parallel'`, `parallel''`, of which none knew its block."""
    schedule = Schedule(simplify_loops(product_of(5, 20, 7)), follow({"mm/rows": 2, "mm_copy/rows": 3}))

    rows = schedule.choose("mm", "rows", (1, 2, 3), 1), schedule.choose("mm_copy", "rows", (1, 2, 3), 1)

    assert rows == (2, 3)
    assert [choice.knob.name for choice in schedule.choices] == ["mm/rows", "mm_copy/rows"]


def test_who_asks_again_for_a_knob_gets_the_same_answer() -> None:
    schedule = Schedule(simplify_loops(product_of(5, 20, 7)), follow({"mm/rows": 3}))
    first, again, elsewhere = (schedule.choose("mm", "rows", options, 1) for options in ((1, 2, 3), (1, 3, 9), (1, 2)))

    untold = Schedule(simplify_loops(product_of(5, 20, 7)))
    own = untold.choose("mm", "rows", (1, 2), 1), untold.choose("mm", "rows", (1, 2), 2)

    assert (first, again, elsewhere) == (3, 3, 1), "an answer that is none there is the rule's own"
    assert own == (1, 2), "rules that are left alone do what they would"
    assert [choice.value for choice in schedule.choices] == [3]


def test_a_rule_that_finds_no_legal_schedule_leaves_the_kernel_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a rule meant to do with a kernel that it does not fit, the user got a ScheduleError."""

    def hopeless(schedule: Schedule, target: Target) -> str | None:
        schedule.choose("mm", "hopeless", (1, 2), 1)
        schedule.split(schedule.loops_of("mm")[0], 2)
        schedule.parallel("nowhere")
        return "hopeless"

    func, target = simplify_loops(product_of(5, 20, 7)), native_target()
    usual = apply_rules(func, target)
    monkeypatch.setattr(rules, "RULES", (hopeless, *rules.RULES))

    assert apply_rules(func, target).trace == usual.trace
    assert apply_rules(func, target).choices == usual.choices
    assert apply_rules(func, target, follow({"mm/hopeless": 2})).trace == usual.trace  # no other answer would have been right


def test_an_answer_of_a_search_that_alone_is_not_legal_is_no_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(schedule: Schedule, target: Target) -> str | None:
        if schedule.choose("mm", "picky", (1, 2), 1) == 2:
            schedule.parallel("nowhere")
        return "picky"

    func, target = simplify_loops(product_of(5, 20, 7)), native_target()
    monkeypatch.setattr(rules, "RULES", (picky, *rules.RULES))

    assert apply_rules(func, target).rule == "picky"
    with pytest.raises(ScheduleError, match="nowhere"):
        apply_rules(func, target, follow({"mm/picky": 2}))


@pytest.mark.parametrize("shape", [(6, 1, 20), (2, 1, 3, 1, 4), (1, 40, 1)])
def test_stages_that_no_rule_fits_run_one_by_one(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    monkeypatch.setattr(rules, "RULES", (rules.schedule_stages,))
    x = normal(np.random.default_rng(1), *shape)
    exact = np.exp(x.astype(np.float64))

    func = scheduled(make_prim_func(OPS["softmax"], [x], {"axis": 1}), "stage by stage")

    check(func, [x], exact / exact.sum(1, keepdims=True), 40)


@pytest.mark.parametrize("batch", [1, 2])
def test_what_windows_read_in_another_order_is_brought_in_order_first(batch: int) -> None:
    """A result of one sample, whose first index is a number, counted as read once: each of five reads was gathered."""
    x = placeholder((batch, 6, 9, 16), f32, "x")
    turned = compute((batch, 16, 6, 9), lambda n, c, h, w: maximum(x[n, h, w, c], 0.0), "turned")
    sums = reduce("sum", (batch, 12, 6, 9), (5,), lambda n, c, h, w, k: turned[n, c + k, h, w], "sums")
    result = compute((batch, 12, 6, 9), lambda n, c, h, w: sums[n, c, h, w] * turned[n, c, h, w], "result")
    func = apply_rules(simplify_loops(create_prim_func("f", [x], [result])), Target.parse("x86-64-v4")).func

    assert "turned" in block_names(func.body)
    values = normal(np.random.default_rng(0), batch, 6, 9, 16)
    ordered = np.maximum(values, 0).transpose(0, 3, 1, 2)
    expected = sum(ordered[:, k : k + 12] for k in range(5)) * ordered[:, :12]
    check(scheduled(create_prim_func("f", [x], [result]), None), [values], expected, 5)


@pytest.mark.parametrize("squares", [False, True])
def test_blocks_of_channels_are_undone_with_and_without_squares(squares: bool) -> None:
    x = placeholder((2, 7, 7, 16), f32, "x")
    y = compute((32, 7, 7), lambda c, i, j: x[c // 16, i, j, c % 16], "unblock")
    array = np.random.default_rng(0).standard_normal((2, 7, 7, 16)).astype(np.float32)
    target = Target.parse("x86-64-v3")

    scheduled = apply_rules(create_prim_func("unblock", [x], [y]), target, follow({"unblock/squares": squares}))
    result, *_ = run(finish_loops(scheduled.func), [array], target=target)

    assert scheduled.rule == "elementwise"
    np.testing.assert_array_equal(result, array.transpose(0, 3, 1, 2).reshape(32, 7, 7))


@pytest.mark.parametrize(("parts", "channels"), [((24, 24), 32), ((24, 9, 7), 16), ((5, 3), 32), ((1, 1), 16), ((16, 32), 16)])
def test_parts_that_are_joined_in_blocks_of_channels_are_not_joined_before(parts: tuple[int, ...], channels: int) -> None:
    """Each part lies in blocks of its own; what fills up the last blocks of the result makes it larger than the parts."""
    shapes = [(-(-part // channels), 5, channels) for part in parts]
    operands = [placeholder(shape, f32, f"x{k}") for k, shape in enumerate(shapes)]
    plain = [compute((n, 5), lambda c, i, x=x: x[c // channels, i, c % channels], "plain") for n, x in zip(parts, operands, strict=True)]
    begins, total = [sum(parts[:k]) for k in range(len(parts))], sum(parts)

    def joined(c: Expr, i: Expr) -> Expr:
        value = plain[-1][c - begins[-1], i]
        for part, begin, x in reversed(list(zip(parts, begins, plain, strict=True))[:-1]):
            value = select(c < begin + part, x[c - begin, i], value)
        return value

    whole = compute((total, 5), joined, "joined")
    count = -(-total // channels)
    result = compute(
        (count, 5, channels),
        lambda j, i, m: select(j * channels + m < total, whole[j * channels + m, i], const(0.0, f32)),
        "result",
    )
    arrays = [np.random.default_rng(k).standard_normal(shape).astype(np.float32) for k, shape in enumerate(shapes)]
    channels_of = [array.transpose(0, 2, 1).reshape(-1, 5)[:part] for part, array in zip(parts, arrays, strict=True)]
    expected = np.concatenate([*channels_of, np.zeros((count * channels - total, 5), np.float32)])

    func = apply_rules(create_prim_func("f", operands, [result]), Target.parse("x86-64-v3")).func

    assert block_names(func.body) == ("result",)
    found, *_ = run(finish_loops(func), arrays, target=Target.parse("x86-64-v3"))
    np.testing.assert_array_equal(found, expected.reshape(count, channels, 5).transpose(0, 2, 1))


@pytest.mark.parametrize("factor", [2, 3])
def test_what_is_made_larger_is_computed_before(factor: int) -> None:
    x = placeholder((9, 8), f32, "x")
    y = compute((9, 8), lambda i, j: call("exp", x[i, j]), "y")
    result = compute((9 * factor, 8), lambda i, j: y[i // factor, j] * 2.0, "result")
    array = np.random.default_rng(0).standard_normal((9, 8)).astype(np.float32)

    func = apply_rules(create_prim_func("f", [x], [result]), Target.parse("x86-64-v3")).func

    assert block_names(func.body) == ("y", "result")
    found, *_ = run(finish_loops(func), [array], target=Target.parse("x86-64-v3"))
    np.testing.assert_allclose(found, np.repeat(np.exp(array), factor, 0) * 2, rtol=1e-6)
