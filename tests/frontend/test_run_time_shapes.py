"""Shapes that come from data: what is compiled gives the same results as onnxruntime, in buffers of the size they have when it runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import tc
from tc.errors import InputError

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
        "g (int64[2] s) => (float[a,b] y) <float[4] x = {1, 2, 3, 4}> { y = Reshape(x, s) }",
        [{"s": i64(2, 2)}, {"s": i64(-1, 1)}],
    )
    check(
        "g (float[2,3,4] x, int64[3] s) => (float[a,b] y) <int64[1] ax = {1}> { q = Reshape(x, s) y = Squeeze(q, ax) }",
        [{"x": X, "s": i64(12, 1, 2)}, {"x": X, "s": i64(-1, 1, 4)}],
    )


def test_two_results_may_be_views_of_one_input() -> None:
    check(
        "g (float[4] x, int64[2] s) => (float[a,b] z, float[c,d] y, float[4] w) "
        "{ z = Reshape(x, s) y = Identity(z) w = Identity(x) }",
        [{"x": V, "s": i64(2, 2)}, {"x": V, "s": i64(1, 4)}],
    )


# The product of the dims wrapped to 0, the number of elements of an empty tensor, and the result was taken to have 2 ** 64 elements.
def test_a_shape_whose_product_exceeds_64_bits_is_refused() -> None:
    compiled = tc.compile(model("g (float[n,m] x, int64[2] s) => (float[a,b] y) { y = Reshape(x, s) }"))
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
        "g (float[4] x, int64 n, int64[2] s) => (float[a,b] y, float[k,c,d] z) { t = Constant<value = bool {1}>() "
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
