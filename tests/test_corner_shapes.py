"""Shapes that make no difference to a user and much to a scheduler: dims that occur twice, axes of length 1, promised multiples.

What is compiled is compared with the reference implementation of ONNX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tc
from tests.runtime.guarded import guarded_copy

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


def model(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """A graph in ONNX's text form, and its weights by name."""
    made = onnx.parser.parse_model(HEADER + text)
    made.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in weights.items())
    return made


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def check(
    made: onnx.ModelProto,
    calls: Sequence[Sequence[np.ndarray]],
    tolerance: float = 1e-4,
    dims: Mapping[str, tc.Dim] | None = None,
) -> None:
    """Every call gives what the reference gives, up to `tolerance` of the largest number."""
    compiled, reference = tc.compile(made, dims=dims, threads=2), ReferenceEvaluator(made)
    for arrays in calls:
        (expected,) = reference.run(None, dict(zip((i.name for i in made.graph.input), arrays, strict=True)))
        found = compiled(*arrays)
        assert found.shape == expected.shape and found.dtype == expected.dtype
        scale = max(1.0, float(np.abs(expected.astype(np.float64)).max(initial=0.0)))
        np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=0, atol=tolerance * scale)


SQUARE = {  # of images and scores with one symbolic side: (text, weights, shapes of the inputs for b and s)
    "layer normalization": (
        "g (float[b,s,s,8] x) => (float[b,s,s,8] y) { y = LayerNormalization(x, k, c) }",
        {"k": normal(8), "c": normal(8)},
        lambda b, s: [(b, s, s, 8)],
    ),
    "convolution and batch normalization": (
        "g (float[1,17,s,s] x) => (float[1,8,p,q] y)"
        " { t = Conv<pads=[1,1,1,1]>(x, w) y = BatchNormalization(t, k, c, m, v) }",
        {"w": normal(8, 17, 3, 3), "k": normal(8), "c": normal(8), "m": normal(8), "v": np.abs(normal(8))},
        lambda b, s: [(1, 17, s, s)],
    ),
    "Winograd": (
        "g (float[b,64,s,s] x) => (float[b,64,p,q] y) { y = Conv<pads=[1,1,1,1]>(x, w) }",
        {"w": normal(64, 64, 3, 3) / 24},
        lambda b, s: [(b, 64, s, s)],
    ),
    "depthwise": (
        "g (float[b,16,s,s] x) => (float[b,16,p,q] y) { y = Conv<pads=[1,1,1,1], group=16>(x, w) }",
        {"w": normal(16, 1, 3, 3)},
        lambda b, s: [(b, 16, s, s)],
    ),
    "pooling": (
        "g (float[b,5,s,s] x) => (float[b,5,p,q] y) { y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x) }",
        {},
        lambda b, s: [(b, 5, s, s)],
    ),
    "mean of rows": ("g (float[b,s,s] x) => (float[b,s,1] y) { y = ReduceMean<axes=[2]>(x) }", {}, lambda b, s: [(b, s, s)]),
    "mean of columns": ("g (float[b,s,s] x) => (float[b,1,s] y) { y = ReduceMean<axes=[1]>(x) }", {}, lambda b, s: [(b, s, s)]),
    "cube": (
        "g (float[s,s,s] x) => (float[s,s] y) { t = Exp(x) y = ReduceSum<keepdims=0>(t, a) }",
        {"a": np.array([1])},
        lambda b, s: [(s, s, s)],
    ),
    "products of rows": (
        'g (float[b,s,s] x, float[b,s,s] z) => (float[b,s,s] y) { y = Einsum<equation="bij,bkj->bik">(x, z) }',
        {},
        lambda b, s: [(b, s, s), (b, s, s)],
    ),
    "attention": (
        "g (float[b,2,s,8] q, float[b,2,s,8] k, float[b,2,s,8] v, float[b,1,s,s] m) => (float[b,2,s,8] y)"
        " { t = Transpose<perm=[0,1,3,2]>(k) p = MatMul(q, t) l = Add(p, m) w = Softmax<axis=-1>(l) y = MatMul(w, v) }",
        {},
        lambda b, s: [(b, 2, s, 8), (b, 2, s, 8), (b, 2, s, 8), (b, 1, s, s)],
    ),
    "transposition": (
        "g (float[b,s,s] x) => (float[b,s,s] y) { t = Transpose<perm=[0,2,1]>(x) e = Exp(t) y = Add(e, x) }",
        {},
        lambda b, s: [(b, s, s)],
    ),
}


@pytest.mark.parametrize("name", SQUARE)
def test_a_symbolic_dim_may_occur_twice_in_a_tensor(name: str) -> None:
    """Two parallel loops of one symbolic extent were taken for one: LLVM refused "undefined value %p3"."""
    text, weights, shapes = SQUARE[name]
    sizes = [(1, 1), (2, 3), (3, 16), (1, 17), (2, 33)]

    check(model(text, **weights), [[normal(*shape) for shape in shapes(b, s)] for b, s in sizes], 1e-3 if name == "Winograd" else 1e-4)


def test_a_repeated_dim_may_be_zero() -> None:
    text, weights, _ = SQUARE["layer normalization"]
    compiled = tc.compile(model(text, **weights), threads=2)

    assert [compiled(np.empty((b, s, s, 8), np.float32)).shape for b, s in [(1, 0), (0, 3)]] == [(1, 0, 0, 8), (0, 3, 3, 8)]


@pytest.mark.parametrize(
    ("op", "shape"),
    [("GlobalAveragePool", (1, 3, 16, 1, 16)), ("ReduceMax", (96, 1, 4, 20)), ("ReduceSum", (20, 1, 33)), ("ReduceL2", (1, 40, 1, 1, 5))],
)
def test_a_reduction_over_everything_passes_axes_of_length_one(op: str, shape: tuple[int, ...]) -> None:
    """The loops of (A, 1, B) are not nested in each other directly, and were summed as if B alone were reduced: ScheduleError."""
    dims = ",".join(map(str, shape))
    result = ",".join("1" if op[0] == "R" or d > 1 else str(size) for d, size in enumerate(shape))

    check(model(f"g (float[{dims}] x) => (float[{result}] y) {{ y = {op}(x) }}"), [[normal(*shape)]])


def test_a_product_takes_a_concatenation_with_a_symbolic_number_of_rows() -> None:
    """KeyError: rows that a constant part makes at least five need no version for fewer than four."""
    text = "g (float16[d,4] x) => (float16[e,3] y) { t = Concat<axis=-2>(c, x) y = MatMul(t, w) }"
    half = {name: value.astype(np.float16) for name, value in (("c", normal(5, 4)), ("w", normal(4, 3)))}

    check(model(text, **half), [[normal(d, 4).astype(np.float16)] for d in (0, 1, 7, 8, 9, 30)], 2e-3)


def test_a_product_takes_a_single_number() -> None:
    """ValueError: what is computed before the sum had no loop to run in vectors."""
    made = model("g (float[1] x) => (float[33] y) { t = Tanh(x) e = Exp(t) y = MatMul(e, w) }", w=normal(1, 33))

    check(made, [[normal(1)]])


@pytest.mark.parametrize("producer", ["ConvInteger(x, w)", "ArgMax<axis=1>(x)"])
def test_what_is_compared_with_itself_is_not_computed(producer: str) -> None:
    """Nothing was left to read the sum, and to compute it where it is read was a ScheduleError."""
    weights = {"w": np.ones((5, 4, 3, 3), np.uint8)} if "w" in producer else {}
    made = model(f"g (uint8[1,4,6,6] x) => (bool[1,p,q,r] y) {{ c = {producer} d = Identity(c) y = Greater(c, d) }}", **weights)

    check(made, [[np.arange(144, dtype=np.uint8).reshape(1, 4, 6, 6)]])


@pytest.mark.parametrize("length", [9, 17, 25])
def test_vectors_of_bfloats_may_have_one_lane_more_than_eight(length: int) -> None:
    """LLVM ended the process: it cannot "soft promote" the last lane."""
    made = model(f"g (bfloat16[{length}] x) => (bfloat16[{length}] y) {{ y = Sub(x, x) }}")
    made.graph.node[0].input[1] = "w"
    made.graph.initializer.append(onnx.helper.make_tensor("w", onnx.TensorProto.BFLOAT16, [1], [0.5]))
    bfloat16 = tc.compile(made)(np.zeros(length, onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)))

    np.testing.assert_array_equal(bfloat16.astype(np.float32), np.full(length, -0.5, np.float32))


PROMISES = {
    "1x1 convolution": ("Conv(x, w)", (256, 128, 1), tc.Dim(2, 256, 2), (2, 4, 12, 14, 30)),
    "3x3 convolution with stride 2": ("Conv<pads=[1,1,1,1], strides=[2,2]>(x, w)", (64, 128, 3), tc.Dim(8, 256, 8), (8, 16, 24)),
    "few": ("Conv<pads=[1,1,1,1]>(x, w)", (32, 32, 3), tc.Dim(0, 6, 3), (3, 6)),
}


@pytest.mark.parametrize("name", PROMISES)
def test_promised_multiples_leave_a_schedule(name: str) -> None:
    """KeyError: a number of rows that is at least four by its promise has no version for fewer."""
    node, (channels, results, size), dim, sizes = PROMISES[name]
    made = model(f"g (float[1,{channels},h,w_] x) => (float[1,{results},p,q] y) {{ y = {node} }}", w=normal(results, channels, size, size))

    check(made, [[normal(1, channels, h, w)] for h in sizes[:3] for w in sizes], 1e-3, {"h": dim, "w_": dim})


def test_an_audio_encoder_takes_a_promise() -> None:
    """A rule that cut the frames into tiles for a number of them that its promise excludes was a ScheduleError."""
    text = (
        "g (float[1,80,s] x) => (float[1,p,24] y) { a = Conv<pads=[1,1]>(x, k) b = Relu(a) c = Conv<pads=[1,1], strides=[2]>(b, l)"
        " d = Relu(c) e = Transpose<perm=[0,2,1]>(d) q = MatMul(e, m) t = Transpose<perm=[0,2,1]>(q) z = MatMul(q, t)"
        " f = Softmax<axis=-1>(z) y = MatMul(f, q) }"
    )
    weights = {"k": normal(48, 80, 3) / 16, "l": normal(48, 48, 3) / 12, "m": normal(48, 24) / 7}

    check(model(text, **weights), [[normal(1, 80, s)] for s in (32, 64, 96)], 1e-3, {"s": tc.Dim(32, 3200, 32)})


@pytest.mark.parametrize(("dim", "sizes"), [(tc.Dim(32, 512), (32, 33, 50)), (tc.Dim(1, 9), (1, 4, 9)), (tc.Dim(0, 64, 4), (4, 12, 64))])
def test_attention_is_one_kernel_whatever_is_promised(dim: tc.Dim, sizes: tuple[int, ...]) -> None:
    """For rows known to be enough, a version for few was asked for all the same: ScheduleError."""
    text, _, shapes = SQUARE["attention"]
    made = model(text)
    kernels = tc.compile(made, dims={"s": dim}, threads=2).report().kernels

    assert [kernel.rule.partition(",")[0] for kernel in kernels] == ["attention"]
    check(made, [[normal(*shape) for shape in shapes(2, s)] for s in sizes], 1e-4, {"s": dim})


@pytest.mark.covering
@pytest.mark.parametrize("columns", ["2", "k"])
@pytest.mark.parametrize("zeros", ["uint8[n] z", "uint8[m] z"])
def test_a_vector_of_zero_points_that_turns_out_to_have_one_is_that_of_all_columns(zeros: str, columns: str) -> None:
    # Numbers behind it were read.
    made = model(f"g (uint8[n,4] x, uint8[4,{columns}] w, uint8 a, {zeros}) => (int32[n,l] y) {{ y = MatMulInteger(x, w, a, z) }}")
    rng = np.random.default_rng(3)
    for rows, count in [(1, 1)] if "[n]" in zeros else [(1, 1), (3, 1), (5, 2)]:
        x, w, a, z = (rng.integers(0, 256, shape).astype(np.uint8) for shape in ((rows, 4), (4, 2), (), (count,)))

        found = tc.compile(made)(x, w, a, guarded_copy(z))

        np.testing.assert_array_equal(found, (x.astype(np.int32) - a) @ (w.astype(np.int32) - z))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_vector_of_zero_points_of_rows_that_turns_out_to_have_one_is_that_of_all(rows: int) -> None:
    made = model("g (uint8[n,4] x, uint8[4,2] w, uint8[m] a) => (int32[n,2] y) { y = MatMulInteger(x, w, a) }")
    x, w, a = (np.random.default_rng(3).integers(0, 256, shape).astype(np.uint8) for shape in ((rows, 4), (4, 2), (1,)))

    found = tc.compile(made)(x, w, guarded_copy(a))

    np.testing.assert_array_equal(found, (x.astype(np.int32) - a) @ w.astype(np.int32))


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("lhs,rhs", [((0, 2), (2,)), ((0, 2), (2, 3)), ((2, 0), (0, 3)), ((2, 0), (0,)), ((2, 3), (3, 0)), ((0,), (0, 3))])
def test_products_may_be_empty(lhs: tuple[int, ...], rhs: tuple[int, ...], precision: str) -> None:
    """Vectors of no columns were divided by."""
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, lhs)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.ones(rhs, np.float32), "w")],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    x = np.ones(lhs, np.float32)

    np.testing.assert_array_equal(tc.compile(made, precision=precision)(x), x @ np.ones(rhs, np.float32))


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceMax", "ReduceLogSumExp"])
def test_sums_of_planes_over_a_side_that_their_columns_have_too(op: str) -> None:
    """Columns behind the last were set to nothing: those of the next rows, which another thread had summed already."""
    made = model(f"g (float[n,m,s,t,s] x) => (float[n,a,b,t,s] y) {{ y = {op}<axes=[1,2], keepdims=1>(x) }}")
    compiled, reference = tc.compile(made, threads=2), ReferenceEvaluator(made)
    for n, m, s, t in ((2, 3, 6, 5), (3, 2, 3, 4), (1, 9, 33, 2), (2, 1, 1, 3)):
        x = np.random.default_rng(n).integers(-8, 9, (n, m, s, t, s)).astype(np.float32)
        (expected,) = reference.run(None, {"x": x})
        for _ in range(40):
            np.testing.assert_allclose(compiled(x), expected, rtol=1e-5)


def test_as_many_images_as_boxes() -> None:
    """Refused: conditions on the dim used up the steps of the proof that an index is below it."""
    limits = {"n": np.array([2]), "t": np.array([0.5], np.float32), "l": np.array([0.1], np.float32)}
    made = model("g (float[m,m,4] b, float[m,2,m] s) => (int64[k,3] y) { y = NonMaxSuppression(b, s, n, t, l) }", **limits)
    rng, compiled, reference = np.random.default_rng(0), tc.compile(made, threads=2), ReferenceEvaluator(made)
    for m in (1, 2, 7, 50):
        corners = rng.random((m, m, 2)).astype(np.float32)
        arrays = np.concatenate([corners, corners + rng.random((m, m, 2)).astype(np.float32)], 2), rng.random((m, 2, m)).astype(np.float32)
        (expected,) = reference.run(None, dict(zip("bs", arrays, strict=True)))
        np.testing.assert_array_equal(compiled(*arrays), expected)
