"""Models on which random search found `tc` wrong, as ONNX text, each with a line on what broke."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import tc
from tc.errors import ShapeError
from tests.frontend.models import from_text, run_onnxruntime

SMALL = np.array([[-2, 3], [4, 0]])
CASES = {
    # of integers, roots and logarithms had no code: "no code for sqrt of i32"
    "ReduceL2 of integers": ("g (int32[2,2] x) => (int32[a,b] y) { y = ReduceL2(x) }", 17, SMALL.astype(np.int32)),
    "ReduceLogSum of integers": ("g (int32[2,2] x) => (int32[a,b] y) { y = ReduceLogSum(x) }", 17, np.abs(SMALL).astype(np.int32)),
    # Shrink wanted floats
    "Shrink of integers": ("g (int32[2,2] x) => (int32[a,b] y) { y = Shrink <bias=1.5, lambd=2.5> (x) }", 9, SMALL.astype(np.int32)),
    # what numpy makes contiguous has at least one dim
    "Transpose of a folded scalar": (
        "g (float[n] x) => (float y, float[m] z) <float w = {3}> { y = Transpose(w) z = Add(x, y) }",
        13,
        np.ones(2, np.float32),
    ),
    "Expand of a scalar to no dims": ("g (int64[0] s) => (float y) <float w = {3}> { y = Expand(w, s) }", 13, np.zeros(0, np.int64)),
    # padding was taken for the largest element where all are the lowest: index 2^62
    "Indices of a MaxPool of zeros": (
        "g () => (uint8[a,b,c,d] y, int64[a,b,c,d] i) <uint8[1,1,2,2] x = {0,0,0,0}> "
        "{ y, i = MaxPool <kernel_shape=[2,2], pads=[1,1,0,0], strides=[1,1]> (x) }",
        19,
        None,
    ),
    # "range() arg 3 must not be zero"
    "Split of an empty constant": (
        "g () => (int64[a] y) <int64[0] x = {}> { y = Split <num_outputs = 1> (x) }",
        19,
        None,
    ),
    # "loop rit outside loop rlto drives a reduction", and a KeyError
    "ReduceSum of a symbolic dim between ones": (
        "g (float[2,1,1,s,1] x) => (float[a,b,c,d,e] y) { y = ReduceSum (x) }",
        21,
        np.arange(10, dtype=np.float32).reshape(2, 1, 1, 5, 1),
    ),
    "Gather of a dim that occurs twice": (
        "g (float[1,n,n] x) => (float[a,b,c,d] y) <int32[1,1] i = {1}> { y = Gather <axis = -1> (x, i) }",
        17,
        np.arange(4, dtype=np.float32).reshape(1, 2, 2),
    ),
    # ran on a reference that gives no result where the window is longer than the input
    "MaxPool whose padding depends on a dim": (
        'g (float[n,1,n] x) => (float[a,b,c] y) { y = MaxPool <auto_pad="SAME_LOWER", kernel_shape=[3], strides=[3]> (x) }',
        17,
        -np.ones((1, 1, 1), np.float32),
    ),
    # of equal elements the first by columns was taken
    "Indices of a MaxPool by columns": (
        "g (float[1,1,3,3] x) => (float[a,b,c,d] y, int64[a,b,c,d] i) { y, i = MaxPool <kernel_shape=[2,2], storage_order=1> (x) }",
        19,
        np.array([[[[1, 2, 0], [2, 1, 0], [0, 0, 0]]]], np.float32),
    ),
    # of integers known at import, the remainder of a quotient rounded down was taken: 1
    "Mod with fmod of what is known at import": (
        "g () => (int32[a] y) <int32[2] c = {-5, 7}, int32 one = {1}> { a = Abs(c) d = Add(a, one) y = Mod <fmod=1> (c, d) }",
        17,
        None,
    ),
    # integers known at import were not wrapped: "131 out of bounds for int8"
    "Sub of bytes that wraps around": ("g () => (int8[n] y) <int8 c = {3}, int8[2] x = {-128, 3}> { y = Sub(c, x) }", 15, None),
    # the node whose result's size was asked for was dropped as dead: "variable s.0 has no value here"
    "Shape of a Slice": (
        "g (int64[1] st) => (int64[a] y) <int64[1] x = {0}, int64[1] e = {2}, int64[1] ax = {0}> { s = Slice (x, e, ax, st) y = Shape(s) }",
        15,
        np.array([0]),
    ),
    "Shape of a NonZero in a branch": (
        "g (float[4] x) => (int64[a] y) <bool c = {1}> { s = NonZero(x) t = Shape(s) z = Size(s) g = Greater(z, z) "
        "y = If(g) <then_branch = t () => (int64[2] p) { p = Identity(t) }, else_branch = e () => (int64[2] q) { q = Neg(t) }> }",
        15,
        np.array([0, 1, 2, 0], np.float32),
    ),
    # "TypeError: m is not a known integer"
    "ScatterND of indices of a dim": (
        "g (int64[1,m] i) => (float[a,b] y) <float[2,3] x = {1, 2, 3, 4, 5, 6}, float[1] u = {9}> { y = ScatterND(x, i, u) }",
        17,
        np.array([[1, 2]]),
    ),
    # it ran on a reference that always sorts
    "Unique that is not sorted": (
        "g (float[m,1] x) => (float[a] y, int64[b] f, int64[c] i, int64[d] k) { y, f, i, k = Unique <sorted=0> (x) }",
        14,
        np.array([[2], [-3], [2], [0], [-3]], np.float32),
    ),
    "Unique along an axis": (
        "g (float[m,2] x) => (float[a,2] y, int64[b] f, int64[c] i, int64[d] k) { y, f, i, k = Unique <axis=0> (x) }",
        14,
        np.array([[2, 1], [-3, 1], [2, 1]], np.float32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_model_that_random_search_found_agrees_with_onnxruntime(name: str) -> None:
    text, opset, x = CASES[name]
    model = from_text(text, opset)
    feeds = {} if x is None else {model.graph.input[0].name: x}

    found = tc.compile(model, threads=1).run(feeds)

    expected = run_onnxruntime(model, feeds)
    assert [v.shape for v in found.values()] == [np.shape(v) for v in expected]
    for mine, theirs in zip(found.values(), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("op", "size", "said"), [("InstanceNormalization", 1, "4 channels"), ("GroupNormalization <num_groups=2>", 2, "4")]
)
def test_a_scale_that_is_not_one_number_a_channel_is_refused(op: str, size: int, said: str) -> None:
    """Memory behind a scale of one element was read for every channel but the first."""
    text = f"g (float[2,4,3] x, float[n] scale, float[n] bias) => (float[2,4,3] y) {{ y = {op} (x, scale, bias) }}"
    module = tc.compile(from_text(text, 21), threads=1)
    x = np.ones((2, 4, 3), np.float32)

    with pytest.raises(tc.TcError, match=said):
        module.run({"x": x, "scale": np.ones(size, np.float32), "bias": np.ones(size, np.float32)})
    assert module.run({"x": x, "scale": np.ones(4, np.float32), "bias": np.ones(4, np.float32)})["y"].max() == 1.0


@pytest.mark.parametrize("channels", ["6", "m"])
def test_one_factor_of_groups_is_that_of_all_channels(channels: str) -> None:
    text = f"g (float[2,{channels},3] x) => (float[2,{channels},3] y) <float[1] s = {{1.5}}, float[1] b = {{0.75}}>"
    model = from_text(text + " { y = GroupNormalization <num_groups=3> (x, s, b) }", 21)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 6, 3)).astype(np.float32)}

    np.testing.assert_allclose(tc.compile(model, threads=1).run(feeds)["y"], run_onnxruntime(model, feeds)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", ["float s", "float[1,1] s"])
def test_a_factor_of_a_group_normalization_that_is_no_vector_is_refused(scale: str) -> None:
    text = f"g (float[2,4,3] x, {scale}, float[4] b) => (float[2,4,3] y)"
    model = from_text(text + " { y = GroupNormalization <num_groups=2> (x, s, b) }", 21)

    with pytest.raises(ShapeError, match="4 channels"):
        tc.compile(model)


@pytest.mark.parametrize("channels", ["6", "m"])
def test_how_many_factors_a_group_normalization_has_may_be_known_late(channels: str) -> None:
    """One factor or summand for all channels was refused where its size is symbolic."""
    text = f"g (float[2,{channels},3] x, float[n] s, float[k] b) => (float[2,{channels},3] y)"
    model = from_text(text + " { y = GroupNormalization <num_groups=3> (x, s, b) }", 21)
    module, rng = tc.compile(model, threads=1), np.random.default_rng(0)

    for sizes in [(1, 6), (6, 1), (1, 1), (6, 6)]:
        feeds = {"x": rng.standard_normal((2, 6, 3)), "s": rng.random(sizes[0]), "b": rng.random(sizes[1])}
        feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
        np.testing.assert_allclose(module.run(feeds)["y"], run_onnxruntime(model, feeds)[0], rtol=1e-5, atol=1e-6)


def test_a_recurrent_net_of_symbolic_weights_ends_where_its_sequences_do() -> None:
    """It ran on a reference that takes no notice of the lengths."""
    model = from_text(
        "g (float[m,1,s] w, float[m,1,m] r, float[4,1,6] x) => (float[a,b,c,d] y) <int32[1] n = {2}> "
        '{ y = RNN <hidden_size = 1> (x, w, r, "", n) }',
        17,
    )
    rng = np.random.default_rng(0)
    feeds = {"x": rng.random((4, 1, 6)), "w": rng.random((1, 1, 6)), "r": rng.random((1, 1, 1))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}

    found = tc.compile(model, threads=1).run(feeds)["y"]

    np.testing.assert_allclose(found, run_onnxruntime(model, feeds)[0], rtol=1e-5)
    assert (found[2:] == 0).all() and (found[:2] != 0).all()


def test_attention_of_few_rows_over_values_of_a_symbolic_width() -> None:
    """ "register tiles have known sizes"."""
    model = from_text(
        "g (float[s,p,q] x, float[s,m,q] k, float[s,m,u] v) => (float[a,b,c] y) "
        "{ t = Transpose <perm=[0,2,1]> (k) w = MatMul(x, t) z = Softmax(w) y = MatMul(z, v) }",
        17,
    )
    rng = np.random.default_rng(0)
    module = tc.compile(model, threads=1)

    for p, q, m, u in ((1, 3, 5, 1), (2, 8, 17, 70), (9, 4, 3, 64)):
        shapes = {"x": (3, p, q), "k": (3, m, q), "v": (3, m, u)}
        feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        np.testing.assert_allclose(module.run(feeds)["y"], run_onnxruntime(model, feeds)[0], rtol=1e-5, atol=1e-6)


def test_the_slope_of_hard_swish_has_32_bits_for_doubles_too() -> None:
    model = from_text("g (double[5] x) => (double[5] y) { y = HardSwish(x) }", 19)
    feeds = {"x": np.array([-3.5, -1.0, 0.0, 1.5, 4.0])}

    np.testing.assert_allclose(tc.compile(model, threads=1).run(feeds)["y"], ReferenceEvaluator(model).run(None, feeds)[0], rtol=1e-14)


@pytest.mark.covering
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op", ["AveragePool", "LpPool"])
def test_pools_of_steps_longer_than_their_windows_leave_elements_out_in_front(op: str, auto: str) -> None:
    """All that windows do not reach was left out behind."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        size, kernel, step = rng.integers(1, 20, 2), rng.integers(1, 4, 2), rng.integers(1, 8, 2)
        window = f"auto_pad = \"{auto}\", kernel_shape = [{kernel[0]}, {kernel[1]}], strides = [{step[0]}, {step[1]}]"
        model = from_text(f"g (float[1,2,{size[0]},{size[1]}] x) => (float[a,b,c,d] y) {{ y = {op} <{window}> (x) }}", 19)
        feeds = {"x": rng.standard_normal((1, 2, *size)).astype(np.float32)}

        found = tc.compile(model, threads=1).run(feeds)["y"]

        np.testing.assert_allclose(found, run_onnxruntime(model, feeds)[0], rtol=1e-5, atol=1e-6)


def test_the_largest_of_windows_of_one_element_is_that_in_the_middle_of_a_step() -> None:
    model = from_text(
        "g (float[1,1,8] x) => (float[a,b,c] y, int64[a,b,c] i) "
        '{ y, i = MaxPool <auto_pad = "SAME_UPPER", kernel_shape = [1], strides = [5]> (x) }',
        19,
    )
    feeds = {"x": np.arange(8, dtype=np.float32)[None, None]}

    found = tc.compile(model, threads=1).run(feeds)

    for mine, right in zip(found.values(), ReferenceEvaluator(model).run(None, feeds), strict=True):
        np.testing.assert_array_equal(mine, right)


@pytest.mark.parametrize(("start", "size"), [(0, 1), (1, 0)])
def test_where_an_empty_slice_begins_is_not_asked_for_what_it_is_stretched_to(start: int, size: int) -> None:
    """The branch of a tensor of one element asked its index of an empty one, too."""
    model = from_text(
        "g (float[1] x, int64[1] starts, int64[1] axes, int64[1] steps, float[p,q,r] b) => (float[k,l,m] y) <int64[1] ends = {2}> "
        "{ t = Neg(x) z = Slice(t, starts, ends, axes, steps) y = Mul(z, b) }",
        17,
    )
    numbers = {"starts": np.array([start]), "axes": np.array([0]), "steps": np.array([1])}
    feeds = {"x": np.ones(1, np.float32), "b": np.ones((2, 1, 1), np.float32), **numbers}

    found = tc.compile(model, threads=1).run(feeds)["y"]

    np.testing.assert_array_equal(found, run_onnxruntime(model, feeds)[0])
    assert found.shape == (2, 1, size)
