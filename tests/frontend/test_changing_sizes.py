"""Loops that carry values of changing sizes, and branches whose results only they can size, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import tc
from tc.ir.parser import parse_module
from tc.ir.printer import print_ir
from tests.frontend.models import check_against_onnxruntime, run_onnxruntime

HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'
YES = "c = Constant<value = bool {1}>()\n"
X = np.random.default_rng(7).standard_normal((40, 4)).astype(np.float32)


def calls(sizes: list[int], trips: list[int]) -> list[dict[str, np.ndarray]]:
    return [{"x": X[:n], "t": np.array(t)} for n in sizes for t in trips]


MODELS: dict[str, tuple[str, list[dict[str, np.ndarray]]]] = {
    "two that grow, one by what the other holds": (
        """g (float[n, 4] x, int64 t) => (float[a, 4] y, float[b] z) {
           e = Constant<value = float[1] {0.0}>()
           y, z = Loop(t, c, x, e) <body = b (int64 i, bool ci, float[p, 4] a, float[q] s) => (bool co, float[pp, 4] an, float[qq] sn) {
              co = Identity(ci)
              r = Tanh(a)
              zero = Constant<value = int64[1] {0}>()
              one = Constant<value = int64[1] {1}>()
              row = Slice(r, zero, one, zero)
              an = Concat<axis = 0>(a, row)
              k = ReduceSum<keepdims = 0>(a)
              u = Unsqueeze(k, zero)
              sn = Concat<axis = 0>(s, u)
           }>
        }""",
        calls([1, 2, 7], [0, 1, 2, 9]),
    ),
    "values that change places in a loop that keeps sizes which another one found": (
        """g (float[n, 4] x, int64 t) => (float[a, 4] x1, float[b, 4] y1, float[d, 4] z1) {
           y = Loop(t, c, x) <body = b (int64 i, bool ci, float[p, 4] v) => (bool co, float[pp, 4] vn) {
              co = Identity(ci)
              w = Concat<axis = 0>(v, x)
              vn = Neg(w)
           }>
           z = Tanh(y)
           x1, y1, z1 = Loop(t, c, y, y, z) <body = b (int64 i, bool ci, float[p, 4] u, float[q, 4] v, float[r, 4] w)
              => (bool co, float[pp, 4] un, float[qq, 4] vn, float[rr, 4] wn) {
              co = Identity(ci)
              un = Identity(w)
              vn = Identity(u)
              wn = Identity(v)
           }>
        }""",
        calls([0, 1, 3], [0, 1, 2, 4]),
    ),
    "values that take each other's place, and views of them": (
        """g (float[n, 4] x, int64 t) => (float[a, 4] x1, float[b, 4] y1, float[d] v1, float[e, 4] u1, float[f, 2] w1) {
           flat = Constant<value = int64[1] {-1}>()
           pairs = Constant<value = int64[2] {-1, 2}>()
           v = Reshape(x, flat)
           w = Reshape(x, pairs)
           y = Concat<axis = 0>(x, x, x)
           x1, y1, v1, u1, w1 = Loop(t, c, x, y, v, x, w) <body = b (int64 i, bool ci, float[p, 4] a, float[q, 4] b, float[r] v,
              float[s, 4] u, float[k, 2] w) => (bool co, float[pp, 4] an, float[qq, 4] bn, float[rr] vn, float[ss, 4] un, float[kk, 2] wn) {
              co = Identity(ci)
              an = Identity(b)
              bn = Concat<axis = 0>(a, x)
              vn = Reshape(b, flat)
              un = Concat<axis = 0>(b, b)
              wn = Reshape(un, pairs)
           }>
        }""",
        calls([0, 1, 2, 5], [0, 1, 2, 5, 8]),
    ),
    "sizes and the end that data decide": (
        """g (float[n, 4] x, int64 t) => (float[a] y, int64 count) {
           flat = Constant<value = int64[1] {-1}>()
           v = Reshape(x, flat)
           zero = Constant<value = int64 {0}>()
           y, count = Loop(t, c, v, zero) <body = b (int64 i, bool ci, float[p] a, int64 k) => (bool co, float[pp] an, int64 kn) {
              part = Constant<value = float {0.8}>()
              least = Constant<value = float {0.2}>()
              smaller = Mul(a, part)
              size = Abs(smaller)
              keep = Greater(size, least)
              an = Compress<axis = 0>(smaller, keep)
              one = Constant<value = int64 {1}>()
              kn = Add(k, one)
              left = Size(an)
              three = Constant<value = int64 {3}>()
              co = Greater(left, three)
           }>
        }""",
        calls([0, 1, 7, 40], [0, 1, 3, 1000]),
    ),
    "a stack beside them, as long as the loop runs": (
        """g (float[n, 4] x, int64 t) => (float[a, 4] y, float[b] sums) {
           y, sums = Loop(t, c, x) <body = b (int64 i, bool ci, float[p, 4] a) => (bool co, float[pp, 4] an, float s) {
              an = Concat<axis = 0>(a, a)
              s = ReduceSum<keepdims = 0>(a)
              rows = Size(a)
              most = Constant<value = int64 {90}>()
              co = Less(rows, most)
           }>
        }""",
        calls([1, 2, 5], [0, 1, 3, 9]),
    ),
    "a loop that grows in a loop that grows": (
        """g (float[n, 4] x, int64 t) => (float[a, 4] y) {
           y = Loop(t, c, x) <body = b (int64 i, bool ci, float[p, 4] a) => (bool co, float[pp, 4] an) {
              co = Identity(ci)
              an = Loop(i, ci, a) <body = inner (int64 j, bool cj, float[q, 4] e) => (bool cc, float[qq, 4] en) {
                 cc = Identity(cj)
                 axis = Constant<value = int64[1] {0}>()
                 m = ReduceMean<axes = [0], keepdims = 1>(e)
                 both = Add(i, j)
                 f = Cast<to = 1>(both)
                 s = Add(m, f)
                 en = Concat<axis = 0>(e, s, m)
              }>
           }>
        }""",
        calls([1, 4], [0, 1, 3, 7]),
    ),
    "a branch that grows it, or shrinks it by data": (
        """g (float[n, 4] x, int64 t) => (float[a, 4] y) {
           last = Constant<value = int64[1] {1}>()
           y = Loop(t, c, x) <body = b (int64 i, bool ci, float[p, 4] a) => (bool co, float[pp, 4] an) {
              co = Identity(ci)
              z = Constant<value = float {0.0}>()
              s = ReduceSum<keepdims = 0>(a)
              positive = Greater(s, z)
              an = If(positive) <then_branch = yes () => (float[d, 4] u) {
                    m = ReduceMin<axes = [0], keepdims = 1>(a)
                    q = Sub(m, s)
                    u = Concat<axis = 0>(a, q)
                 }, else_branch = no () => (float[e, 4] v) {
                    sums = ReduceSum<keepdims = 0>(a, last)
                    k = Greater(sums, z)
                    w = Compress<axis = 0>(a, k)
                    more = Constant<value = float[1, 4] {0.3, -0.1, 0.2, 0.1}>()
                    v = Concat<axis = 0>(w, more)
                 }>
           }>
        }""",
        calls([1, 4, 33], [0, 1, 2, 3, 30]),
    ),
    "rows put behind a value that others read before and after": (
        """g (float[n, 4] x, int64 t) => (float[a, 4] y, float[b, 4] z, float[d, 2] v, float s) {
           pairs = Constant<value = int64[2] {-1, 2}>()
           w = Reshape(x, pairs)
           zero = Constant<value = float {0.0}>()
           y, z, v, s = Loop(t, c, x, x, w, zero) <body = b (int64 i, bool ci, float[p, 4] a, float[q, 4] b, float[r, 2] u, float k) =>
              (bool co, float[pp, 4] an, float[qq, 4] bn, float[rr, 2] un, float kn) {
              co = Identity(ci)
              up = Tanh(a)
              an = Concat<axis = 0>(a, x, b, a)
              sum = ReduceSum<keepdims = 0>(a)
              more = ReduceSum<keepdims = 0>(up)
              both = Add(sum, more)
              kn = Add(k, both)
              first = Constant<value = int64[1] {0}>()
              last = Constant<value = int64[1] {9}>()
              bn = Slice(a, first, last, first)
              un = Reshape(an, pairs)
           }>
        }""",
        calls([0, 1, 3], [0, 1, 2, 6]),
    ),
    "what comes from outside of the loop": (
        """g (float[n, 4] x, int64 t) => (float[a] y, float[b, 4] z) {
           flat = Constant<value = int64[1] {-1}>()
           v = Reshape(x, flat)
           xx = Concat<axis = 0>(x, x)
           y, z = Loop(t, c, v, x) <body = b (int64 i, bool ci, float[p] a, float[q, 4] b) => (bool co, float[pp] an, float[qq, 4] bn) {
              co = Identity(ci)
              an = Constant<value = float[3] {1.0, 2.0, 3.0}>()
              bn = Identity(xx)
           }>
        }""",
        calls([0, 1, 4], [0, 1, 3]),
    ),
}


def parsed(name: str) -> onnx.ModelProto:
    text, _ = MODELS[name]
    return parse_model(HEAD + text.replace("{", "{" + YES, 1))


@pytest.mark.covering
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_it_runs_natively_and_right(name: str, threads: int) -> None:
    # ONNX's reference ran all of these loops in Python, node by node; where it has no form of a node, they were refused.
    model = parsed(name)
    module = tc.compile(model, threads=threads, on_unsupported="error")

    for arrays in MODELS[name][1]:
        for found, expected in zip(module.run(arrays).values(), run_onnxruntime(model, arrays), strict=True):
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_interpreter_and_the_text_know_them(name: str) -> None:
    model = parsed(name)

    for arrays in MODELS[name][1]:
        imported = check_against_onnxruntime(model, arrays)
    constants: dict[str, np.ndarray] = {}
    text = print_ir(imported.module, constants)
    assert print_ir(parse_module(text, constants), {}) == text


def test_what_is_put_behind_a_value_extends_its_block() -> None:
    # All of it was copied in each iteration.
    plan = tc.lower(parsed("rows put behind a value that others read before and after"), stage="plan").whole()

    assert "= extend Loop_4.size * 4 * 4 to " in plan and plan.count("exchange") == 2


@pytest.mark.parametrize("trips", [1, 2, 20])
def test_the_condition_after_the_last_iteration_says_nothing(trips: int) -> None:
    # A single iteration whose condition data decide was refused.
    model = parse_model(
        HEAD
        + """g (float[n, 4] x) => (float[a, 4] y) {
            t = Constant<value = int64 {TRIPS}>()
            c = Constant<value = bool {1}>()
            y = Loop(t, c, x) <body = b (int64 i, bool ci, float[p, 4] a) => (bool co, float[pp, 4] an) {
                an = Concat<axis = 0>(a, x)
                s = ReduceSum<keepdims = 0>(an)
                zero = Constant<value = float {0.0}>()
                co = Greater(s, zero)
            }>
        }""".replace("TRIPS", str(trips))
    )
    module = tc.compile(model, on_unsupported="error")

    for n in (0, 1, 5):
        (expected,) = run_onnxruntime(model, {"x": X[:n]})
        np.testing.assert_array_equal(module(X[:n]), expected)


def test_a_branch_gives_the_size_that_a_loop_in_it_finds() -> None:
    # The size was taken for one that is known outside of the branch: "variable Loop_4.size_7 has no value here".
    inner = """<body = inner (int64 j, bool cj, float[q, 4] e) => (bool cc, float[qq, 4] en) {
        cc = Identity(cj)
        en = Concat<axis = 0>(e, x)
    }>"""
    model = parse_model(
        HEAD
        + """g (float[n, 4] x, int64 t) => (float[a, 4] y, float[b, 4] z) {
            c = Constant<value = bool {1}>()
            y = Loop(t, c, x) <body = b (int64 i, bool ci, float[p, 4] a) => (bool co, float[pp, 4] an) {
                co = Identity(ci)
                s = ReduceSum<keepdims = 0>(a)
                zero = Constant<value = float {0.0}>()
                up = Greater(s, zero)
                an = If(up) <then_branch = yes () => (float[d, 4] u) { u = Loop(i, co, a) INNER },
                    else_branch = no () => (float[f, 4] v) { v = Loop(t, co, a) INNER2 }>
            }>
            z = Loop(t, c, y) INNER3
        }""".replace("INNER3", inner).replace("INNER2", inner.replace("inner", "more")).replace("INNER", inner.replace("inner", "most"))
    )
    module = tc.compile(model, on_unsupported="error")

    for n in (0, 1, 3):
        for t in (0, 1, 4):
            arrays = {"x": X[:n], "t": np.array(t)}
            for found, expected in zip(module.run(arrays).values(), run_onnxruntime(model, arrays), strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
