"""Shapes that come from data: what is compiled gives the same results as onnxruntime, in buffers of the size they have when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import tc
from tc.errors import InputError
from tests.draws import some_of

Feed = dict[str, np.ndarray]
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
V = np.array([-1.0, 0.5, 2.0, 3.5], np.float32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}')


def check(text: str, feeds: Sequence[Feed]) -> None:
    """The compiled model and onnxruntime agree on all feeds, shapes included."""
    onnx_model = model(text)
    compiled = tc.compile(onnx_model)
    session = onnxruntime.InferenceSession(onnx_model.SerializeToString())
    for feed in feeds:
        results = list(compiled.run(feed).values())
        for result, expected in zip(results, session.run(None, feed), strict=True):
            assert result.shape == expected.shape
            np.testing.assert_array_equal(result, expected)


# Results were copied into buffers made for the dims of the call before, of size 0 on the first: the heap was overwritten.
@pytest.mark.covering
@pytest.mark.parametrize("shape", [(4, 3, 2), (-1, 1, 12), (0, 0, -1), (24, 1, 1)])
@pytest.mark.parametrize(
    "body",
    [
        "y = Reshape(x, s)",
        "z = Neg(x) y = Reshape(z, s)",
        "z = Reshape(x, s) y = Identity(z)",
        "z = Reshape(x, s) y = Abs(z)",
    ],
)
def test_a_view_of_a_shape_from_data_is_a_result(body: str, shape: tuple[int, ...]) -> None:
    check(f"g (float[2,3,4] x, int64[3] s) => (float[a,b,c] y) {{ {body} }}", [{"x": X, "s": i64(*shape)}])


def test_views_of_constants_and_squeezed_views_are_results() -> None:
    check(
        "g (int64[2] s) => (float[] y) <float[4] x = {1, 2, 3, 4}> { y = Reshape(x, s) }",
        [{"s": i64(2, 2)}, {"s": i64(-1, 1)}],
    )
    check(
        "g (float[2,3,4] x, int64[3] s) => (float[] y) <int64[1] ax = {1}> { q = Reshape(x, s) y = Squeeze(q, ax) }",
        [{"x": X, "s": i64(12, 1, 2)}, {"x": X, "s": i64(-1, 1, 4)}],
    )


def test_two_results_may_be_views_of_one_input() -> None:
    check(
        "g (float[4] x, int64[2] s) => (float[a,b] z, float[] y, float[4] w) "
        "{ z = Reshape(x, s) y = Identity(z) w = Identity(x) }",
        [{"x": V, "s": i64(2, 2)}, {"x": V, "s": i64(1, 4)}],
    )


# Where both were taken as what is left, and that fitted, there was a result.
@pytest.mark.parametrize("shape", [(-1, -1, 24), (-1, 24, -1), (-1, -1, -1), (-1, -1, 4)])
@pytest.mark.parametrize("allowzero", [0, 1])
@pytest.mark.parametrize("empty", [False, True])
def test_a_shape_that_leaves_two_sizes_open_is_refused(shape: tuple[int, ...], allowzero: int, empty: bool) -> None:
    source = model(f"g (float[n,3,4] x, int64[3] s) => (float[] y) {{ y = Reshape <allowzero = {allowzero}> (x, s) }}")
    x = X[:0] if empty else X

    with pytest.raises(InputError, match="Reshape_0: Reshape: the shape holds -1 more than once"):
        tc.compile(source)(x, i64(*shape))
    with pytest.raises(Exception, match=r"(?i)reshape"):
        onnxruntime.InferenceSession(source.SerializeToString()).run(None, {"x": x, "s": i64(*shape)})


# The product of the dims wrapped to 0, the number of elements of an empty tensor, and the result was taken to have 2 ** 64 elements.
def test_a_shape_whose_product_exceeds_64_bits_is_refused() -> None:
    compiled = tc.compile(model("g (float[n,m] x, int64[2] s) => (float[] y) { y = Reshape(x, s) }"))
    with pytest.raises(InputError, match="Reshape_0"):
        compiled(np.ones((0, 3), np.float32), i64(1 << 32, 1 << 32))


LOOP = (
    "g (float[4] x, int64 n) => (float[4] y, float[k,a] z) {{ t = Constant<value = bool {{1}}>() y, z = Loop(n, t, x) <body = "
    "b (int64 i, bool c, float[4] s) => (bool c2, float[4] o, float[a] w) {{ c2 = Identity(c) o = Add(s, x) {0} }}> }}"
)
COUNTS = [{"x": V, "n": np.array(n, np.int64)} for n in (3, 0, 1, 7, -2)]


# Each iteration allocated the stack anew, with the size of one row: rows before were lost, rows after written past its end.
@pytest.mark.parametrize(
    "row",
    [
        "w = Neg(o)",
        "w = Identity(s)",
        "w = Identity(x)",
        "m = Neg(o) w = Concat<axis = 0>(m, s)",
        "two = Constant<value = int64[1] {2}>() w, ignored = TopK(o, two)",
        "two = Constant<value = int64 {2}>() p = Less(i, two) w = If(p) <then_branch = tb () => (float[4] r) { r = Neg(o) }, "
        "else_branch = eb () => (float[4] r2) { r2 = Identity(s) }>",
    ],
)
def test_a_loop_stacks_results_for_a_number_of_iterations_from_data(row: str) -> None:
    check(LOOP.format(row), COUNTS)


def test_a_loop_that_stops_by_a_condition_stacks_what_it_ran() -> None:
    check(
        "g (float[4] x, int64 n) => (float[4] y, float[k,4] z) { t = Constant<value = bool {1}>() y, z = Loop(n, t, x) <body = "
        "b (int64 i, bool c, float[4] s) => (bool c2, float[4] o, float[4] w) { o = Add(s, x) w = Neg(o) "
        "m = ReduceMax<keepdims = 0>(o) most = Constant<value = float {12}>() c2 = Less(m, most) }> }",
        COUNTS,
    )


def test_a_loop_carries_and_stacks_values_of_a_shape_from_data() -> None:
    check(
        "g (float[4] x, int64 n, int64[2] s) => (float[] y, float[k,c,d] z) { t = Constant<value = bool {1}>() "
        "q = Reshape(x, s) y, z = Loop(n, t, q) <body = b (int64 i, bool c, float[e,f] v) => "
        "(bool c2, float[e,f] o, float[e,f] w) { c2 = Identity(c) o = Add(v, q) w = Neg(o) }> }",
        [{"x": V, "n": np.array(n, np.int64), "s": i64(*s)} for n in (1, 3) for s in ((2, 2), (-1, 1))],
    )


@pytest.mark.parametrize("after", ["z = Identity(w)", "z = Abs(w)"])
def test_branches_give_views_of_a_shape_from_data(after: str) -> None:
    check(
        "g (float[4] x, int64[2] s, bool p) => (float[a,b] z) { q = Reshape(x, s) w = If(p) <then_branch = tb () => (float[a,b] r) "
        f"{{ r = Neg(q) }}, else_branch = eb () => (float[a,b] r2) {{ r2 = Identity(q) }}> {after} }}",
        [{"x": V, "s": i64(2, -1), "p": np.array(p)} for p in (True, False)],
    )


def compare(text: str, shapes: Sequence[Sequence[tuple[int, ...]]], rng: np.random.Generator) -> tc.CompiledModule:
    """On f32 inputs of all these shapes the model agrees with onnxruntime; so does the module that assumes nothing of them."""
    onnx_model = model(text)
    compiled = tc.compile(onnx_model)
    session = onnxruntime.InferenceSession(onnx_model.SerializeToString())
    names = [item.name for item in session.get_inputs()]
    for case in shapes:
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in case]
        (expected,) = session.run(None, dict(zip(names, arrays, strict=True)))
        for module in (compiled, compiled.general):
            result = module(*arrays)
            assert result.shape == expected.shape
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    return compiled


SIZES = [(a, b) for a in (0, 1, 5) for b in (0, 1, 5) if a == b or 1 in (a, b)]
MANY = [(a, b, c) for a, b in SIZES for c in (1, max(a, b) if 0 not in (a, b) else 0)]


# Dims of different names had to be equal: a 1 was refused where numpy, ONNX and onnxruntime broadcast it.
@pytest.mark.parametrize("op", ["Add", "Pow", "PRelu", "Max"])
def test_a_dim_that_is_1_when_it_runs_is_broadcast(op: str, rng: np.random.Generator) -> None:
    sizes = [(a, b) for a, b in SIZES if op != "PRelu" or b in (1, a)]
    compare(
        f"g (float[n,4] x, float[m,4] z) => (float[] y) {{ p = Abs(x) y = {op}(p, z) }}",
        [[(a, 4), (b, 4)] for a, b in sizes],
        rng,
    )


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("(float[n,k] c, float[m,k] x, float[p,k] z) => (float[] y) { b = Less(c, x) y = Where(b, x, z) }", "n4 m4 p4"),
        ("(float[n,4] x, float[m,4] z, float[p,4] w) => (float[] y) { t = Add(x, z) u = Mul(t, w) y = Add(u, x) }", "n4 m4 p4"),
        ("(float[n,4] x, float[m,4] z) => (float[] y) { t = Add(x, z) y = Softmax<axis = 0>(t) }", "n4 m4"),
        ("(float[n,4] x, float[m,4] z) => (float[] y) { s = Shape(z) y = Expand(x, s) }", "n4 m4"),
        ("(float[n,4] x, float[m,4] z) => (float[] y) { s = Shape(z) t = Expand(x, s) y = Add(t, z) }", "n4 m4"),
        ("(float[n,3,4] x, float[m,4,5] z) => (float[a,3,5] y) { y = MatMul(x, z) }", "n34 m45"),
        ("(float[n,33,40] x, float[m,40,48] z) => (float[a,33,48] y) { y = MatMul(x, z) }", [("n", 33, 40), ("m", 40, 48)]),
        ("(float[n,2,3] x, float[3,6] w, float[m,2,6] z) => (float[a,2,6] y) { t = MatMul(x, w) y = Add(t, z) }", "n23 36 m26"),
        ("(float[n,2] x, float[n,m] w) => (float[] y) <int64[1] i = {0}, int64[1] j = {1}> "
         "{ t = Slice(x, i, j, i) y = Add(t, x) }", "n2 nm"),
        ("(float[n,4] x, float[1,8] w, float[m,8] z) => (float[] y) { t = ReduceSum(x) u = Mul(t, w) y = Add(u, z) }", "n4 18 m8"),
        ("(float[n,3,5,6] x, float[8,3,3,3] w, float[m,8,1,6] z) => (float[a,8,5,6] y) "
         "{ t = Conv<pads = [1,1,1,1]>(x, w) u = Relu(t) y = Add(u, z) }", "n356 8333 m816"),
    ],
)  # fmt: skip
def test_everything_that_broadcasts_does_so_when_it_runs(text: str, shapes: object, rng: np.random.Generator) -> None:
    cases = []
    for n, m, p in MANY:
        if "Softmax" in text and 0 in (n, m):
            continue
        value = {"n": n, "m": m, "p": p}
        wanted = shapes if isinstance(shapes, list) else [tuple(shape) for shape in str(shapes).split()]
        cases.append([tuple(value.get(str(d), None) if str(d) in value else int(d) for d in shape) for shape in wanted])
    compare(f"g {text}", cases, rng)


def test_attention_with_a_mask_that_may_be_broadcast(rng: np.random.Generator) -> None:
    text = (
        "g (float[b,2,s,8] q, float[b,2,t,8] k, float[b,2,t,8] v, float[d,1,e,f] m) => (float[c,2,u,8] y) "
        "{ kt = Transpose<perm = [0,1,3,2]>(k) a = MatMul(q, kt) z = Add(a, m) w = Softmax<axis = -1>(z) y = MatMul(w, v) }"
    )
    cases = [[(2, 2, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), (d, 1, e, f)] for d in (1, 2) for e in (1, 5) for f in (1, 7)]
    compare(text, cases, rng)


def test_einsum_broadcasts_letters_when_it_runs(rng: np.random.Generator) -> None:
    text = 'g (float[n,a,3] x, float[m,b,3] z) => (float[p,q,r] y) { y = Einsum<equation = "bij,bkj->bik">(x, z) }'
    compare(text, [[(n, 2, 3), (m, 4, 3)] for n in (1, 5) for m in (1, 5) if 1 in (n, m) or n == m], rng)


def test_dims_that_do_not_fit_are_refused_by_node_operand_axis_and_sizes() -> None:
    compiled = tc.compile(model("g (float[n,4] x, float[m,4] z) => (float[] y) { y = Add(x, z) }"))
    message = r"Add_0: add: dim 0 of operand 1 is m, which does not broadcast with n \(here .*n = 3, m = 2"

    for a, b in ((3, 2), (2, 3), (0, 2)):
        with pytest.raises(InputError, match=message.replace("n = 3, m = 2", f"n = {a}, m = {b}")):
            compiled(np.ones((a, 4), np.float32), np.ones((b, 4), np.float32))
    assert compiled._general is None  # a mistake compiles nothing


def test_equal_dims_of_different_names_are_one_program_as_fast_as_of_one_name() -> None:
    text = "g (float[{0},8] x, float[8,16] w, float[{1},16] z) => (float[a,16] y) {{ t = MatMul(x, w) u = Relu(t) y = Add(u, z) }}"
    same, other = (tc.compile(model(text.format("n", name))) for name in ("n", "m"))

    assert [kernel.nodes for kernel in other.report().kernels] == [kernel.nodes for kernel in same.report().kernels]


def test_a_file_holds_the_program_that_broadcasts_too(tmp_path: Path, rng: np.random.Generator) -> None:
    compiled = tc.compile(model("g (float[n,4] x, float[m,4] z) => (float[] y) { y = Add(x, z) }"))
    compiled.save(tmp_path / "m.tcm")
    x, z = (rng.standard_normal((n, 4)).astype(np.float32) for n in (3, 1))

    loaded = tc.load(tmp_path / "m.tcm")

    assert loaded.peak_bytes(n=1, m=3) == compiled.peak_bytes(n=1, m=3) == compiled.peak_bytes(n=3, m=3) > 0
    np.testing.assert_array_equal(loaded(x, z), x + z)
    np.testing.assert_array_equal(loaded(x, x), x + x)


def test_a_call_of_the_program_that_broadcasts_is_profiled(rng: np.random.Generator) -> None:
    compiled = tc.compile(model("g (float[n,4] x, float[m,4] z) => (float[] y) { y = Add(x, z) }"))
    x, z = (rng.standard_normal((n, 4)).astype(np.float32) for n in (3, 1))

    assert [row.node for row in compiled.profile(x, z, repeat=1)] == ["Add_0"]


# A scale of another size than the axis was read past its end.
def test_a_scale_of_another_size_is_refused() -> None:
    compiled = tc.compile(model("g (float[n,k] x, float[m] s) => (float[] y) { y = LayerNormalization(x, s) }"))
    with pytest.raises(InputError, match="layer_norm: the scale"):
        compiled(np.ones((2, 8), np.float32), np.ones(4, np.float32))


# A backward slice of nothing had one element, read before the buffer.
@pytest.mark.parametrize(
    "place", [(-1, -(1 << 40), -1), (5, 0, -1), (100, -3, -1), (0, -100, -1), (-50, -100, -1), (1, -5, -1), (-1, -9, -2), (1, 9, 2)]
)
def test_slices_of_axes_that_may_be_empty(place: tuple[int, int, int], rng: np.random.Generator) -> None:
    start, end, step = place
    feeds = [{"x": rng.standard_normal((n, 2)).astype(np.float32)} for n in (0, 1, 2, 5)]
    constants = f"<int64[1] s = {{{start}}}, int64[1] e = {{{end}}}, int64[1] ax = {{0}}, int64[1] st = {{{step}}}>"
    check(f"g (float[n,2] x) => (float[] y) {constants} {{ y = Slice(x, s, e, ax, st) }}", feeds)
    check(
        "g (float[n,2] x, int64[1] s, int64[1] e) => (float[] y) "
        f"<int64[1] ax = {{0}}, int64[1] st = {{{step}}}> {{ y = Slice(x, s, e, ax, st) }}",
        [{**feed, "s": i64(start), "e": i64(end)} for feed in feeds],
    )


# The cost of a layout was divided by the channels of a tensor that has none.
def test_a_tensor_without_elements_beside_convolutions(rng: np.random.Generator) -> None:
    text = (
        "g (float[1,3,8,8] x, float[1,0,4] e) => (float[1,16,8,8] y, float[1,0,4] z) <int64[4] ws = {16,3,3,3}, "
        "int64[4] vs = {16,1,3,3}> { w = ConstantOfShape<value = float[1] {0.5}>(ws) v = ConstantOfShape<value = float[1] {0.25}>(vs) "
        "u = Conv<pads = [1,1,1,1]>(x, w) r = Relu(u) y = Conv<pads = [1,1,1,1], group = 16>(r, v) z = Relu(e) }"
    )
    onnx_model, x = model(text), rng.standard_normal((1, 3, 8, 8)).astype(np.float32)
    expected = onnxruntime.InferenceSession(onnx_model.SerializeToString()).run(None, {"x": x, "e": np.ones((1, 0, 4), np.float32)})

    y, z = tc.compile(onnx_model)(x, np.ones((1, 0, 4), np.float32))

    np.testing.assert_allclose(y, expected[0], rtol=1e-5, atol=1e-5)
    assert z.shape == (1, 0, 4)


X6 = np.array([0, 1, 2, 0, 3, 4], np.float32)


# The later of two equal calls went away, and with it what the sizes it found were bound to.
@pytest.mark.parametrize(
    "body",
    [
        "p = NonZero(x) q = NonZero(x) pt = Transpose(p) y = Cast<to = 1>(pt) z = Squeeze(q, zero)",
        "p = NonZero(x) q = NonZero(x) pt = Reshape(p, minus) y = Neg(pt) n = Shape(q) k = Slice(n, one, two, zero) "
        "z = ConstantOfShape<value = int64[1] {7}>(k)",
        "y = Unique(x) q = Unique(x) z = Exp(q)",
    ],
)
def test_equal_calls_that_find_sizes_find_the_same(body: str) -> None:
    constants = "<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] minus = {-1}>"
    text = f"g (float[6] x) => (y, z) {constants} {{ {body.replace('Exp', 'Abs')} }}"
    check(text, [{"x": X6}, {"x": X6 * 0}])


# What the call found was written to a result of another size, which was checked only afterwards.
def test_a_size_that_a_call_finds_may_be_forced_later() -> None:
    text = "g (float[6] x) => (int64[1,4,1] y) <int64[3] s = {1, 4, 1}> { p = NonZero(x) y = Reshape(p, s) }"
    check(text, [{"x": X6}])
    with pytest.raises(InputError, match=r"Reshape_1.*count = 2"):
        tc.compile(model(text))(np.array([1, 0, 0, 0, 0, 1], np.float32))


# ONNX's definition of the operator squeezes a batch of one away.
@pytest.mark.covering(2)
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize(("batch", "sizes"), [(1, (3, 4, 5)), (2, (3, 4, 5)), (1, (3, 2, 4, 5)), (1, (3, 4, 1))])
@pytest.mark.parametrize("known", [True, False])
def test_affine_grid(align: int, batch: int, sizes: tuple[int, ...], known: bool, rng: np.random.Generator) -> None:
    space = len(sizes) - 1
    theta = rng.standard_normal((batch, space, space + 1)).astype(np.float32)
    size = i64(batch, *sizes)
    given = f"<int64[{space + 2}] s = {{{', '.join(map(str, size))}}}>" if known else ""
    inputs = f"float[{batch},{space},{space + 1}] t" + ("" if known else f", int64[{space + 2}] s")
    text = f"g ({inputs}) => (float[{','.join('abcde'[: space + 2])}] y) {given} {{ y = AffineGrid<align_corners = {align}>(t, s) }}"
    onnx_model = parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> {text}')
    feed = {"t": theta} if known else {"t": theta, "s": size}
    (expected,) = ReferenceEvaluator(onnx_model).run(None, feed)

    (result,) = tc.compile(onnx_model).run(feed).values()

    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def strided(kernel: int, pad: int, levels: int) -> str:
    """Convolutions of stride 2, and their sizes as exporters compute them: (size + 2 * pad - kernel) / 2 + 1, toward zero."""
    steps = ["s = Shape(x) n0 = Gather(s, i0) h0 = Gather(s, i2) w0 = Gather(s, i3)"]
    for k in range(levels):
        steps.append(f"c{k + 1} = Conv<strides = [2,2], pads = [{pad},{pad},{pad},{pad}]>({'x' if k == 0 else f'c{k}'}, k{min(k, 1)})")
        for d in "hw":
            steps.append(f"{d}a{k} = Add({d}{k}, pp) {d}b{k} = Sub({d}a{k}, kk) {d}c{k} = Div({d}b{k}, i2) {d}{k + 1} = Add({d}c{k}, one)")
    constants = f"<int64[1] pp = {{{2 * pad}}}, int64[1] kk = {{{kernel}}}, int64[1] one = {{1}}, int64[1] eight = {{8}}"
    constants += ", int64[1] i0 = {0}, int64[1] i2 = {2}, int64[1] i3 = {3}>"
    end = f"p = Mul(h{levels}, w{levels}) t = Concat<axis = 0>(n0, eight, p) r = Reshape(c{levels}, t) y = Relu(r)"
    inputs = f"float[n,3,h,w] x, float[8,3,{kernel},{kernel}] k0, float[8,8,{kernel},{kernel}] k1"
    return f"g ({inputs}) => (float[n,8,p] y) {constants} {{ {' '.join(steps)} {end} }}"


# A size of 0 is rounded to another side by Div than by a convolution, so the shape was only known when it ran, for every size.
@pytest.mark.parametrize(("kernel", "pad"), some_of([(3, 1), (3, 0), (1, 0)], quick=[(3, 0), (1, 0)]))
def test_sizes_of_strided_convolutions_are_dims_though_an_image_may_be_empty(kernel: int, pad: int, rng: np.random.Generator) -> None:
    levels = 3
    shapes = [[(n, 3, h, w), (8, 3, kernel, kernel), (8, 8, kernel, kernel)] for n in (1, 2) for h, w in ((15, 40), (17, 16), (24, 31))]

    compiled = compare(strided(kernel, pad, levels), shapes, rng)

    kernels = [kernel for kernel in compiled.report().kernels if not set(kernel.name.split("_")) <= {"block", "unblock"}]
    assert sum(kernel.calls for kernel in kernels if kernel.rule == "contraction") == levels
    # Relu stands alone: the reshape before it moves nothing.
    assert [kernel.name for kernel in kernels if kernel.rule != "contraction"] == ["relu"]
    assert not any("data" in kernel.rule or "shape_tensor" in kernel.name for kernel in compiled.report().kernels)
    small = [rng.standard_normal(shape).astype(np.float32) for shape in ((1, 3, 1, 40), (8, 3, kernel, kernel), (8, 8, kernel, kernel))]
    if kernel == 3 and pad == 0:
        with pytest.raises(InputError, match="must not be negative"):
            compiled(*small)
    else:
        (expected,) = onnxruntime.InferenceSession(model(strided(kernel, pad, levels)).SerializeToString()).run(
            None, dict(zip(("x", "k0", "k1"), small, strict=True))
        )
        np.testing.assert_allclose(compiled(*small), expected, rtol=1e-5, atol=1e-5)


# A part of a size may be negative where the size is not; a kernel that was told otherwise never ended.
def test_sizes_with_parts_that_are_negative(rng: np.random.Generator) -> None:
    compiled = tc.compile(model(strided(3, 0, 2)))
    x, k0, k1 = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 3, 3, 40), (8, 3, 3, 3), (8, 8, 3, 3)))

    assert compiled(x, k0, k1).shape == (1, 8, 0)


@pytest.mark.parametrize("divisor", [2, 3])
def test_quotients_of_shapes_round_toward_zero(divisor: int) -> None:
    text = (
        f"g (float[n] x) => (int64[3] y) <int64[1] d = {{{divisor}}}, int64[1] one = {{1}}, int64[1] five = {{5}}, int64[1] m = {{-3}}> "
        "{ s = Shape(x) a = Sub(s, one) b = Div(a, d) e = Sub(s, five) f = Div(e, d) g = Mul(s, m) h = Div(g, d) "
        "y = Concat<axis = 0>(b, f, h) }"
    )
    compiled = tc.compile(model(text))

    for n in range(9):
        expected = [int((v) / divisor) for v in (n - 1, n - 5, -3 * n)]
        for module in (compiled, compiled.general):
            if module is compiled.general or n >= 1:
                np.testing.assert_array_equal(module(np.zeros(n, np.float32)), expected)


# What says that dims are equal had no form for blocks of channels: around every sum of two scales the layout was changed and back.
def test_sums_of_two_scales_of_an_image_stay_in_blocks(rng: np.random.Generator) -> None:
    text = (
        "g (float[1,16,h,w] x) => (float[1,16,p,q] y) <float[4] scales = {1, 1, 2, 2}, float none = {0}> { "
        "k = ConstantOfShape<value = float[1] {0.01}>(ks) c = Conv<strides = [2,2], pads = [1,1,1,1]>(x, k) "
        "d = Conv<strides = [2,2], pads = [1,1,1,1]>(c, k) u = Resize<mode = \"nearest\">(d, , scales) a = Add(u, c) "
        "y = Conv<pads = [1,1,1,1]>(a, k) }"
    ).replace("float none = {0}", "int64[4] ks = {16, 16, 3, 3}")

    compiled = compare(text, [[(1, 16, h, w)] for h, w in ((16, 24), (40, 8))], rng)

    assert sum("block" in kernel.name and not kernel.name.startswith("conv") for kernel in compiled.report().kernels) <= 2


# A literal index that is also a dim of the buffer was renamed in the buffer's shape: there was no code for the kernel.
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("place", [2, 0, -1, -3])
def test_a_literal_index_into_an_axis_of_any_size(axis: int, place: int, rng: np.random.Generator) -> None:
    shape = ["n", "2"] if axis == 0 else ["2", "n"]
    text = f"g (float[{','.join(shape)}] x) => (float[2] y) <int64 k = {{{place}}}> {{ y = Gather<axis = {axis}>(x, k) }}"
    compiled = tc.compile(model(text))

    for n in (0, 1, 3, 5):
        x = rng.standard_normal((n, 2) if axis == 0 else (2, n)).astype(np.float32)
        if -n <= place < n:
            np.testing.assert_array_equal(compiled(x), np.take(x, place, axis))
        else:
            with pytest.raises(InputError, match=f"index {place} is out of range for axis {axis} of size {n}"):
                compiled(x)


@pytest.mark.parametrize("shape", [(6, 5), (6,), (4, 3, 2)])
def test_bounds_may_be_of_the_first_axes_however_many_there_are(shape: tuple[int, ...]) -> None:
    """No vector says how many: as a loop of torch's `EmbeddingBag` slices its offsets."""
    dims = ",".join(f"d{k}" for k in range(len(shape)))
    results = ",".join(f"r{k}" for k in range(len(shape)))
    text = f"g (float[{dims}] x, int64[u] s, int64[v] e) => (float[{results}] y) {{ y = Slice(x, s, e) }}"
    module = tc.compile(model(text), on_unsupported="error")
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    for starts, ends in (((1,), (3,)), ((), ()), ((1, -2), (4, 99)), ((0, 0, 0), (9, -1, 1)), ((-99,), (2,))):
        feed = {"x": x, "s": i64(*starts), "e": i64(*ends)}
        if len(starts) > len(shape):
            with pytest.raises(InputError, match=f"u = {len(starts)}"):
                module.run(feed)
        else:
            np.testing.assert_array_equal(module.run(feed)["y"], x[tuple(map(slice, starts, ends))])
    with pytest.raises(InputError, match="the number of starts"):
        module.run({"x": x, "s": i64(0), "e": i64(1, 2)})


def test_bounds_of_unknown_length_have_that_of_the_others() -> None:
    """One of starts, ends, axes and steps says how many there are; the others are checked when they are there."""
    text = '<ir_version: 9, opset_import: ["" : 19]> g (float[6,5] x, int64[u] s, int64[2] e) => (float[] y) { y = Slice(x, s, e) }'
    module = tc.compile(onnx.parser.parse_model(text))
    x = np.arange(30, dtype=np.float32).reshape(6, 5)

    np.testing.assert_array_equal(module(x, np.array([1, -2]), np.array([4, 99])), x[1:4, 3:])
    with pytest.raises(InputError, match=r"u = 3"):
        module(x, np.array([1, 2, 0]), np.array([4, 5]))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_images_of_any_size_are_reduced(mode: str, rng: np.random.Generator) -> None:
    """What an element costs was written once for each term of a tree of sums, and for each of their tails: for minutes."""
    text = f'g (float[1, 2, 5, 6] x, int64[4] s) => (float y) {{ r = Resize<mode="{mode}">(x, , , s) y = ReduceL2<keepdims=0>(r) }}'
    x = rng.standard_normal((1, 2, 5, 6), dtype=np.float32)
    compiled, peer = tc.compile(model(text)), onnxruntime.InferenceSession(model(text).SerializeToString())

    for sizes in ((1, 2, 5, 6), (1, 2, 1, 1), (1, 2, 9, 4), (1, 2, 40, 37)):
        feed = {"x": x, "s": i64(*sizes)}
        np.testing.assert_allclose(compiled.run(feed)["y"], peer.run(None, feed)[0], rtol=1e-5)


# A 0 that was computed from dims stayed one: results without elements had other shapes than the operator says, and some with
# elements were refused.
@pytest.mark.parametrize(
    ("target", "shapes"),
    [
        ("h = Div(b, two) t = Concat <axis = 0> (h, minus)", [(2, 1, 3), (2, 4, 4), (0, 2, 1), (3, 0, 0)]),
        ("p = Mul(b, c) t = Concat <axis = 0> (p, two, minus)", [(2, 0, 3), (4, 1, 3), (0, 1, 1)]),
        ("h = Div(a, two) t = Concat <axis = 0> (h, b, minus)", [(1, 3, 2), (4, 3, 2), (1, 2, 0)]),
        ("h = Sub(b, one) t = Concat <axis = 0> (a, h, c)", [(1, 1, 1), (3, 1, 5), (0, 2, 4)]),
        ("p = Mul(b, c) t = Concat <axis = 0> (b, p, minus)", [(2, 3, 0), (3, 1, 4)]),
        ("d = Shape(z) t = Concat <axis = 0> (c, d)", [(3, 6, 1), (3, 0, 2), (3, 5, 2)]),
    ],
)
def test_a_size_that_is_0_when_it_runs_takes_that_of_the_operand(target: str, shapes: list[tuple[int, ...]]) -> None:
    onnx_model = model(
        f"""g (float[n,m,k] x, float[p,q] z) => (float[] y)
           <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] minus = {{-1}}> {{
             s = Shape(x)
             a = Gather(s, zero)
             b = Gather(s, one)
             c = Gather(s, two)
             {target}
             y = Reshape(x, t)
           }}"""
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # they take one unknown size for -1
    session = onnxruntime.InferenceSession(onnx_model.SerializeToString(), options)
    compiled = tc.compile(onnx_model)

    for shape in shapes:
        feed = {"x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape), "z": np.zeros((0, 3), np.float32)}
        (result,) = compiled.run(feed).values()
        (expected,) = session.run(None, feed)
        assert result.shape == expected.shape
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("op", "window", "more"),
    [
        ("MaxPool", "2,2 2,2", ""),
        ("AveragePool", "3,3 2,2", ""),
        ("MaxPool", "2,5 3,4", ""),
        ("AveragePool", "5,2 3,1", ", count_include_pad = 1"),  # divided by the window, also by what of it is no image
        ("AveragePool", "3,3 2,2", ", count_include_pad = 1, pads = [0,1,0,0]"),
    ],
)
def test_pools_take_images_shorter_than_their_windows(op: str, window: str, more: str, rng: np.random.Generator) -> None:
    """Two pools, one after the other: programs are for images that are long enough for both, or for any."""
    kernel, strides = window.split()
    pool = f"{op}<kernel_shape = [{kernel}], strides = [{strides}]{more}>"
    text = f"g (float[n,2,h,w] x) => (float[] y) {{ a = {pool}(x) y = {pool}(a) }}"
    sizes = [(h, w) for h in (1, 2, 4, 5, 9, 16, 23) for w in (1, 3, 6, 17, 21)]
    running = [(2, 2, h, w) for h, w in sizes if _runs(text, (2, 2, h, w))]
    compiled = compare(text, [[shape] for shape in running], rng)
    assert len(running) > 5
    assert compiled.general is not compiled
    for h, w in sizes:
        if (2, 2, h, w) not in running:
            with pytest.raises(InputError, match=r"must not be negative|is 0"):
                compiled(np.zeros((2, 2, h, w), np.float32))


def _runs(text: str, shape: tuple[int, ...]) -> bool:
    """Whether onnxruntime has a result for an image: pools with a stride take none that is shorter than a window by that."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model(text).SerializeToString(), options)
    try:
        return bool(session.run(None, {"x": np.zeros(shape, np.float32)}))
    except Exception:
        return False


FAR = (1 << 63) - 1
TILED = "g (float[n,m] x, int64[2] r) => (float[] y) { y = Tile(x, r) }"
TILED_BY = "g (float[n,m] x) => (float[] y) <int64[2] r = {%d, %d}> { y = Tile(x, r) }"


# Loops over rows of no elements were run, 10 ** 12 of them.
@pytest.mark.timeout(60)
@pytest.mark.parametrize("rows", [10**9, 1 << 40])
@pytest.mark.parametrize(
    "text",
    [
        "g (float[n,m] x, int64[2] s) => (float[] y) { y = Tile(x, s) }",
        "g (float[n,m] x, int64[2] s) => (float[] y) { t = Tile(x, s) u = Abs(t) y = Add(t, u) }",
        "g (float[n,m] x, int64[2] s) => (float[] y) <int64[1] d = {0}> { t = Tile(x, s) y = ReduceMax <keepdims = 0> (t, d) }",
        "g (float[n,m] x, int64[2] s) => (float[] y) <int64[4] p = {1, 0, 1, 0}> { t = Tile(x, s) y = Pad(t, p) }",
    ],
)
def test_nothing_along_a_long_axis_takes_no_time(text: str, rows: int) -> None:
    y = tc.compile(model(text))(np.ones((1, 0), np.float32), i64(rows, 1))

    assert y.size == 0 and y.shape == ((0,) if "ReduceMax" in text else (rows + 2, 0) if "Pad" in text else (rows, 0))


# An axis beyond 64 bits was taken for what is left of its size, where another one is empty, and literals' products for 0.
@pytest.mark.parametrize(
    ("text", "x", "more"),
    [
        (TILED, (4, 0), [i64(1 << 62, 1)]),
        (TILED, (4, 0), [i64(1 << 61, 1 << 61)]),
        (TILED_BY % (1 << 62, 1), (4, 0), []),
        (TILED_BY % (1 << 31, 1 << 31), (2, 3), []),
        (TILED_BY % (1 << 40, 1 << 40), (2, 3), []),
        (TILED_BY % (FAR, FAR), (2, 3), []),
        ("g (float[n,m] x, int64[4] p) => (float[] y) { y = Pad <mode = \"edge\"> (x, p) }", (2, 0), [i64(FAR, 0, FAR, 0)]),
    ],
)
def test_sizes_beyond_64_bits_are_refused_whatever_is_empty(text: str, x: tuple[int, int], more: list[np.ndarray]) -> None:
    compiled = tc.compile(model(text))

    with pytest.raises(InputError, match="no memory holds"):
        compiled(np.ones(x, np.float32), *more)
    assert compiled(np.ones((0, 0), np.float32), *(np.zeros_like(each) for each in more)).shape == (0, 0)
