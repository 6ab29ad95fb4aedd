"""Arithmetic on sizes in dtypes that do not hold them: as on any other data, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto
from onnx.parser import parse_model

import tc
from tc.errors import InputError
from tests.frontend.models import run_onnxruntime

HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'
# Each gave numbers of unbounded integers, or of exact fractions, for those of its dtype.
CASES = {
    "differences below zero, unsigned": (
        """(bool[1] less, uint64[1] half, uint64[1] most, float[1] f, uint64[1] rest, int64[1] wide) {
            u = Cast<to = 13>(s)
            three = Constant<value = uint64[1] {3}>()
            five = Constant<value = uint64[1] {5}>()
            d = Sub(three, u)
            less = Less(d, five)
            two = Constant<value = uint64[1] {2}>()
            half = Div(d, two)
            most = Max(d, five)
            f = Cast<to = 1>(d)
            ten = Constant<value = uint64[1] {10}>()
            rest = Mod(d, ten)
            u3 = Cast<to = 12>(s)
            three3 = Constant<value = uint32[1] {3}>()
            d3 = Sub(three3, u3)
            wide = Cast<to = 7>(d3)
        }""",
        [2, 3, 10],
    ),
    "products that wrap around, in 32 bits": (
        """(bool[1] positive, int32[1] q, int64[1] wide, float[1] f, int32[1] size, int32[1] rest) {
            i = Cast<to = 6>(s)
            k = Constant<value = int32[1] {50000}>()
            zero = Constant<value = int32[1] {0}>()
            seven = Constant<value = int32[1] {7}>()
            a = Mul(i, k)
            w = Mul(a, k)
            positive = Greater(w, zero)
            q = Div(w, k)
            wide = Cast<to = 7>(w)
            f = Cast<to = 1>(w)
            size = Abs(w)
            rest = Mod(w, seven)
        }""",
        [0, 10, 20],
    ),
    "integers that no float is": (
        """(int64[2] i, int64[2] j, bool[2] same, int64[1] k) {
            c = Constant<value = int64[2] {16777217, 9007199254740993}>()
            f = Cast<to = 1>(c)
            i = Cast<to = 7>(f)
            d = Cast<to = 11>(c)
            j = Cast<to = 7>(d)
            g = Constant<value = float[2] {16777216, 9007199254740992}>()
            same = Equal(f, g)
            m = Constant<value = int64[1] {16777216}>()
            one = Constant<value = int64[1] {1}>()
            sm = Mul(s, m)
            s1 = Add(sm, one)
            sf = Cast<to = 1>(s1)
            k = Cast<to = 7>(sf)
        }""",
        [1, 5],
    ),
    "high powers and small terms": (
        """(float[1] g8, float[1] g16, float[1] gone) {
            f = Cast<to = 1>(s)
            half = Constant<value = float[1] {0.5}>()
            g1 = Mul(f, half)
            g2 = Mul(g1, g1)
            g4 = Mul(g2, g2)
            g8 = Mul(g4, g4)
            g16 = Mul(g8, g8)
            big = Constant<value = float[1] {1048576.0}>()
            tiny = Constant<value = float[1] {0.000244140625}>()
            fb = Mul(f, big)
            fbt = Add(fb, tiny)
            gone = Sub(fbt, fb)
        }""",
        [1, 20, 110],
    ),
    "rounded quotients": (
        """(int64[1] p, int64[1] n2, float[a] y) {
            f = Cast<to = 1>(s)
            c49 = Constant<value = float[1] {49.0}>()
            d49 = Constant<value = double[1] {49.0}>()
            r = Div(f, c49)
            r64 = Cast<to = 11>(r)
            p64 = Mul(r64, d49)
            p = Cast<to = 7>(p64)
            seven = Constant<value = float[1] {7.0}>()
            q = Div(f, seven)
            q7 = Mul(q, seven)
            low = Floor(q7)
            n2 = Cast<to = 7>(low)
            y = ConstantOfShape(n2)
        }""",
        [1, 20, 31, 62, 110],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_that_of_the_dtype(name: str) -> None:
    text, sizes = CASES[name]
    model: ModelProto = parse_model(HEAD + "g (float[n] x) => " + text.replace("{", "{ s = Shape(x)\n", 1))
    module = tc.compile(model)

    for size in sizes:
        arrays = {"x": np.zeros(size, np.float32)}
        for found, expected in zip(module.run(arrays).values(), run_onnxruntime(model, arrays), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)


def test_sizes_that_a_dtype_does_not_hold_are_told() -> None:
    # The product was a dim, of 64 bits.
    model = parse_model(
        HEAD + "g (float[n, m] x) => (int32[1] a) { s = Shape(x) i = Cast<to = 6>(s) k = Constant<value = int32[1] {65536}>()"
        " one = Constant<value = int64[1] {0}>() two = Constant<value = int64[1] {1}>() d = Slice(i, one, two) a = Mul(d, k) }"
    )
    module = tc.compile(model)

    for size in (3, 32767):
        assert module(np.zeros((size, 0), np.float32)).tolist() == [size * 65536]
    with pytest.raises(InputError, match=r"Mul_6: Mul of sizes as i32, .* only where n \* 65536 <= 2147483647 \(here n = 32768\)"):
        module(np.zeros((32768, 0), np.float32))


def test_sizes_that_are_promised_to_be_too_large_wrap_around() -> None:
    # What no size that is promised fulfils was asked of each: every call was refused.
    model = parse_model(
        HEAD
        + "g (float[n, m] x) => (int32[2] a) { s = Shape(x) i = Cast<to = 6>(s) k = Constant<value = int32[1] {65536}>() a = Mul(i, k) }"
    )
    module = tc.compile(model, dims={"n": tc.Dim(40000, 50000)})

    assert module(np.zeros((40000, 0), np.float32)).tolist() == np.multiply([40000, 0], 65536, dtype=np.int32).tolist()


def test_a_constant_without_elements_is_flattened() -> None:
    model = parse_model(
        HEAD + "g (float[n] x) => (int64[a, b] y, float[n] z) { w = Constant<value = int64[0, 3] {}>() y = Flatten(w) z = Neg(x) }"
    )

    assert tc.compile(model).run({"x": np.zeros(2, np.float32)})["y"].shape == (0, 3)
