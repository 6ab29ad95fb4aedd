"""Operators that users register: from tensor expressions or in Python, called from graphs and from ONNX files."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tc
from tc import te
from tc.errors import InputError, ModelError, ShapeError, TcError, UnsupportedError, UserError
from tc.interp import run_function
from tc.ir.dtype import f32, from_numpy, i64
from tc.ir.expr import Expr, Var, cast, const, select
from tc.ir.graph import Atom, Attrs
from tc.ir.module import IRModule
from tc.ir.parser import parse_module
from tc.ir.printer import print_ir
from tc.ir.structural import first_difference
from tc.ir.types import TensorType, tensor_type
from tc.ops.build import GraphBuilder
from tc.ops.registry import get_op, scoped_ops
from tc.passes.pipeline import PassOptions
from tests.frontend.models import make_model, node
from tests.frontend.users_functions import running_total

F32 = np.float32
ALONE = PassOptions(text="fuse_ops(enable=False)")


@pytest.fixture(autouse=True)
def _nothing_stays_registered() -> Iterator[None]:
    before = scoped_ops()
    yield
    for name in scoped_ops().keys() - before.keys():
        tc.remove_op(name)


def swish(x: te.Tensor, *, beta: float = 1.0) -> te.Tensor:
    return te.compute(x.shape, lambda *i: x[i] / (1.0 + te.call("exp", x[i] * -beta)), "swish")


def swish_in_numpy(x: np.ndarray, *, beta: float = 1.0) -> np.ndarray:
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        return (wide / (1 + np.exp(-beta * wide))).astype(x.dtype)


def scaled_product(a: te.Tensor, b: te.Tensor, bias: te.Tensor | None = None, *, scale: float = 1.0) -> te.Tensor:
    """scale * a @ b + bias"""
    (m, k), n = a.shape, b.shape[1]
    product = te.reduce("sum", (m, n), (k,), lambda i, j, r: a[i, r] * b[r, j], "product")
    return te.compute((m, n), lambda i, j: product[i, j] * scale + (0.0 if bias is None else bias[j]), "scaled_product")


def compiled(*inputs: tuple[str, TensorType], make: Callable[..., Atom], **options: Any) -> tc.CompiledModule:
    return tc.compile(graph(*inputs, make=make), threads=1, **options)


def graph(*inputs: tuple[str, TensorType], make: Callable[..., Atom | tuple[Atom, ...]]) -> IRModule:
    """The module whose results `make(builder, *params)` gives."""
    b = GraphBuilder()
    made = make(b, *(b.param(name, type_) for name, type_ in inputs))
    return IRModule((b.function("main", made if isinstance(made, tuple) else (made,)),))


def rules(module: tc.CompiledModule) -> list[str]:
    return [kernel.rule for kernel in module.report().kernels]


# -- against numpy


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (33, 1, 17)], ids=str)
def test_elementwise_on_any_shape_and_dtype(dtype: type, shape: tuple[int, ...]) -> None:
    tc.op("test.dom::Swish", swish)
    x = np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)
    type_ = tensor_type(shape, from_numpy(np.dtype(dtype)))
    module = compiled(("x", type_), make=lambda b, p: b.call("test.dom::Swish", b.call("neg", p), beta=1.5))

    result = np.asarray(module(x)).reshape(shape)

    assert result.dtype == dtype
    assert len(rules(module)) == 1
    tolerance = 4 * float(ml_dtypes.finfo(dtype).eps)
    expected = swish_in_numpy(-x, beta=1.5).astype(np.float64)
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=4 * tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int64], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("n", [0, 1, 67])
def test_integers_wrap_around(dtype: type, n: int) -> None:
    tc.op("test.dom::Affine", lambda x, y: te.compute(x.shape, lambda i: x[i] * 3 + y[i], "affine"))
    type_, info = tensor_type((n,), from_numpy(np.dtype(dtype))), np.iinfo(dtype)
    module = compiled(("x", type_), ("y", type_), make=lambda b, x, y: b.call("maximum", b.call("test.dom::Affine", x, y), x))
    x, y = np.random.default_rng(n).integers(info.min, info.max, (2, n), dtype, endpoint=True)
    x[:1] = info.min

    with np.errstate(all="ignore"):
        assert np.array_equal(np.asarray(module(x, y)), np.maximum(x * dtype(3) + y, x))
    assert len(rules(module)) == 1


def test_values_at_the_edges() -> None:
    tc.op("test.dom::Swish", swish, reference=swish_in_numpy)
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 88.0, -88.0, 1e-40], F32)
    module = compiled(("x", tensor_type((8,), f32)), make=lambda b, p: b.call("test.dom::Swish", p))

    np.testing.assert_allclose(np.asarray(module(x)), swish_in_numpy(x), rtol=1e-5, atol=1e-35)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 0, 5), (0, 4, 5), (17, 33, 9), (64, 128, 48)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_contraction_takes_in_its_neighbours(m: int, k: int, n: int, with_bias: bool) -> None:
    tc.op("test.dom::Product", scaled_product)
    rng = np.random.default_rng(m + k + n)
    a, b, c = (rng.standard_normal(shape).astype(F32) for shape in ((m, k), (k, n), (n,)))
    types = [("a", tensor_type((m, k), f32)), ("b", tensor_type((k, n), f32)), ("c", tensor_type((n,), f32))]

    def make(g: GraphBuilder, a: Atom, b: Atom, c: Atom) -> Atom:
        product = g.call("test.dom::Product", a, b, *((c,) if with_bias else ()), scale=0.5)
        return g.call("add", g.call("relu", product), c)

    module = compiled(*types, make=make)
    expected = np.maximum(0.5 * (a.astype(np.float64) @ b) + (c if with_bias else 0), 0) + c

    assert len(rules(module)) == 1
    result = np.asarray(module(a, b, c)).reshape(m, n)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    alone = compiled(*types, make=make, passes=ALONE)
    assert len(rules(alone)) == 3
    np.testing.assert_allclose(np.asarray(alone(a, b, c)).reshape(m, n), result, rtol=1e-5, atol=1e-5)


def test_a_contraction_gets_the_rule_of_contractions() -> None:
    tc.op("test.dom::Product", scaled_product)
    types = [("a", tensor_type((64, 128), f32)), ("b", tensor_type((128, 48), f32))]

    assert rules(compiled(*types, make=lambda g, a, b: g.call("test.dom::Product", a, b))) == ["contraction"]


def test_literals_that_it_widens_stay_narrow() -> None:
    tc.op("test.dom::Product", scaled_product)
    rng = np.random.default_rng(0)
    weights, x = rng.integers(-128, 128, (256, 512)).astype(np.int8), rng.standard_normal((20, 256)).astype(F32)

    def make(g: GraphBuilder, x: Atom) -> Atom:
        wide = g.call("dequantize_linear", g.const(weights), g.const(F32(0.5)), g.const(np.int8(3)))
        return g.call("relu", g.call("test.dom::Product", x, wide, scale=2.0))

    module = compiled(("x", tensor_type((20, 256), f32)), make=make)

    np.testing.assert_allclose(module(x), np.maximum(x @ (weights.astype(F32) - 3), 0), rtol=1e-4, atol=0.05)
    assert rules(module) == ["contraction"]
    assert module.report().constant_bytes < 2 * weights.nbytes


def test_symbolic_shapes() -> None:
    tc.op("test.dom::Product", scaled_product)
    m, k = Var("m"), Var("k")
    types = [("a", TensorType((m, k), f32)), ("b", TensorType((k, const(5)), f32))]
    module = compiled(*types, make=lambda g, a, b: g.call("exp", g.call("test.dom::Product", g.call("neg", a), b, scale=2.0)))
    rng = np.random.default_rng(0)

    for rows, depth in itertools.product((0, 1, 13), (0, 1, 6)):
        a, b = rng.standard_normal((rows, depth)).astype(F32), rng.standard_normal((depth, 5)).astype(F32)
        np.testing.assert_allclose(np.asarray(module(a, b)).reshape(rows, 5), np.exp(-2 * a @ b), rtol=1e-4)
    with pytest.raises(InputError):
        module(np.ones((2, 3), F32), np.ones((4, 5), F32))


def test_several_results_any_number_of_operands_and_lists() -> None:
    def mixed(*xs: te.Tensor, weights: tuple[float, ...] = (1.0,), labels: tuple[str, ...] = ()) -> tuple[te.Tensor, te.Tensor]:
        def total(*i: Expr) -> Expr:
            terms = [x[i] * w for x, w in zip(xs, weights, strict=True)]
            return sum(terms[1:], terms[0])

        first = te.compute(xs[0].shape, total, "total")
        return first, te.compute(xs[0].shape, lambda *i: first[i] + float(len(labels)), "named")

    tc.op("test.dom::Mixed", mixed)
    types = [(name, tensor_type((9,), f32)) for name in "xyz"]
    module = tc.compile(
        graph(*types, make=lambda b, *xs: b.call_many("test.dom::Mixed", *xs, weights=[1.0, 2.0, 0.5], labels=["a", "b"])), threads=1
    )
    x, y, z = np.random.default_rng(0).standard_normal((3, 9)).astype(F32)

    total, named = module(x, y, z)

    np.testing.assert_allclose(total, x + 2 * y + z / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(named, x + 2 * y + z / 2 + 2, rtol=1e-5, atol=1e-6)


def test_a_reference_that_is_not_given_is_the_interpreter() -> None:
    tc.op("test.dom::Product", scaled_product)
    module = graph(
        ("a", tensor_type((4, 3), f32)), ("b", tensor_type((3, 2), f32)), make=lambda g, a, b: g.call("test.dom::Product", a, b, scale=3.0)
    )
    a, b = np.arange(12, dtype=F32).reshape(4, 3), np.arange(6, dtype=F32).reshape(3, 2)

    assert np.array_equal(run_function(module, "main", [a, b])[0], 3 * a @ b)
    assert np.array_equal(tc.compile(module, threads=1, verify="always")(a, b), 3 * a @ b)


def test_calls_on_literals_are_folded() -> None:
    tc.op("test.dom::Swish", swish, reference=swish_in_numpy)
    module = compiled(
        ("x", tensor_type((3,), f32)), make=lambda b, p: b.call("add", p, b.call("test.dom::Swish", b.const(np.ones(3, F32))))
    )

    np.testing.assert_allclose(np.asarray(module(np.zeros(3, F32))), swish_in_numpy(np.ones(3, F32)), rtol=1e-6)


def test_an_ir_that_calls_it_prints_and_parses_back() -> None:
    tc.op("test.dom::Swish", swish)
    module = graph(("x", tensor_type((3,), f32)), make=lambda b, p: b.call("test.dom::Swish", p, beta=2.0))

    again = parse_module(print_ir(module))

    assert "call_op('test.dom::Swish', x, beta=2.0)" in print_ir(module)
    assert first_difference(again, module) is None


@pytest.mark.parametrize("channels", [16, 24, 5])
def test_an_elementwise_operator_joins_a_convolution(channels: int) -> None:
    tc.op("test.dom::Swish", swish, reference=swish_in_numpy)
    rng = np.random.default_rng(channels)
    first, second = (rng.standard_normal(shape).astype(F32) / 8 for shape in ((channels, 8, 3, 3), (16, channels, 3, 3)))

    def make(b: GraphBuilder, x: Atom, op: str) -> Atom:
        pads = {"pads": (1, 1, 1, 1)}
        return b.call("conv", b.call(op, b.call("conv", x, b.const(first), **pads)), b.const(second), **pads)

    types = [("x", TensorType((Var("n"), const(8), const(28), const(28)), f32))]
    mine, built_in = (compiled(*types, make=lambda b, x, op=op: make(b, x, op)) for op in ("test.dom::Swish", "silu"))
    x = rng.standard_normal((2, 8, 28, 28)).astype(F32)

    np.testing.assert_allclose(mine(x), built_in(x), rtol=1e-4, atol=1e-5)
    assert len(rules(mine)) == len(rules(built_in))


def test_an_operator_that_depends_on_the_channel_has_no_layout_of_its_own() -> None:
    def ramp(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: x[i] + cast(i[1], f32), "ramp")

    def scaled(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: x[i] * cast(x.shape[-1], f32), "scaled")

    types, attrs = [tensor_type((2, 32, 7, 7), f32)], Attrs(())
    for name, function in (("test.dom::Ramp", ramp), ("test.dom::Scaled", scaled), ("test.dom::Shifted", shifted)):
        tc.op(name, function)
        assert get_op(name).blocked(types, attrs, 16) is None
    tc.op("test.dom::Swish", swish)
    assert get_op("test.dom::Swish").blocked(types, Attrs((("beta", 1.0),)), 16) is not None


# -- memory


def shifted(x: te.Tensor, *, by: int = 1) -> te.Tensor:
    return te.compute(x.shape, lambda i: x[i + by], "shifted")


@pytest.mark.parametrize("n", ["static", "symbolic"])
def test_a_read_outside_of_a_tensor_is_an_error_when_it_runs(n: str) -> None:
    tc.op("test.dom::Shifted", shifted)
    dim = const(8) if n == "static" else Var("n")
    module = compiled(("x", TensorType((dim,), f32)), make=lambda b, p: b.call("neg", b.call("test.dom::Shifted", p)))

    with pytest.raises(InputError, match=r"test\.dom::Shifted: index 8 is out of range for axis 0 of size 8"):
        module(np.arange(8, dtype=F32))


def test_a_read_that_a_condition_keeps_inside_needs_no_check() -> None:
    def padded(x: te.Tensor) -> te.Tensor:
        (n,) = x.shape
        return te.compute((n,), lambda i: select(i + 1 < n, x[i + 1], 0.0), "padded")

    tc.op("test.dom::Padded", padded)
    module = graph(("x", TensorType((Var("n"),), f32)), make=lambda b, p: b.call("test.dom::Padded", p))

    assert np.asarray(tc.compile(module, threads=1)(np.arange(4, dtype=F32))).tolist() == [1, 2, 3, 0]
    assert "checked" not in tc.lower(module, "loops").as_text()


def test_a_quotient_of_a_place_is_proved_to_be_inside() -> None:
    tc.op("test.dom::Repeat", lambda x, *, times: te.compute((x.shape[0] * times,), lambda i: x[i // times], "repeat"))
    module = graph(("x", TensorType((Var("n"),), f32)), make=lambda b, p: b.call("test.dom::Repeat", p, times=3))

    assert np.asarray(tc.compile(module, threads=1)(np.arange(2, dtype=F32))).tolist() == [0, 0, 0, 1, 1, 1]
    assert "checked" not in tc.lower(module, "loops").as_text()


def test_a_result_of_less_than_nothing_is_refused() -> None:
    tc.op("test.dom::Cut", lambda x: te.compute((x.shape[0] - 4,), lambda i: x[i + 4], "cut"))
    module = compiled(("x", TensorType((Var("n"),), f32)), make=lambda b, p: b.call("test.dom::Cut", p))

    assert np.asarray(module(np.arange(6, dtype=F32))).tolist() == [4, 5]
    assert np.asarray(module(np.arange(4, dtype=F32))).tolist() == []
    with pytest.raises(InputError, match=r"test\.dom::Cut: dim 0 of the result is n - 4, which must not be negative"):
        module(np.arange(3, dtype=F32))


def test_rows_that_data_choose_are_checked() -> None:
    def rows(table: te.Tensor, places: te.Tensor) -> te.Tensor:
        return te.compute((places.shape[0], table.shape[1]), lambda i, j: table[cast(places[i], i64), j], "rows")

    tc.op("test.dom::Rows", rows)
    types = [("t", tensor_type((5, 3), f32)), ("p", TensorType((Var("n"),), i64))]
    module = compiled(*types, make=lambda b, t, p: b.call("test.dom::Rows", b.call("neg", t), p))
    table = np.arange(15, dtype=F32).reshape(5, 3)

    assert np.array_equal(np.asarray(module(table, np.array([4, 0, 4]))), -table[[4, 0, 4]])
    for wrong in (5, -1):
        with pytest.raises(InputError, match=f"index {wrong} is out of range for axis 0 of size 5"):
            module(table, np.array([1, wrong]))


# -- what is wrong is said with the operator's name


def _wrong_rank(x: te.Tensor) -> te.Tensor:
    return te.compute((x.shape[0], x.shape[1]), lambda i, j: x[i, j], "wrong")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"compute": swish, "infer": lambda x, **_: tensor_type((3,), f32)}, r"rule gives f32\[3\], the tensor expression f32\[4\]"),
        ({"compute": swish, "infer": lambda x, **_: TensorType(x.shape, i64)}, r"the type rule gives i64\[4\]"),
        ({"compute": swish, "infer": lambda x, **_: TensorType((*x.shape, *x.shape), f32)}, r"the type rule gives f32\[4, 4\]"),
        ({"compute": swish, "infer": lambda x, **_: (x, x)}, "gives 2 results, the tensor expression 1"),
        ({"compute": swish, "infer": lambda x, **_: 3}, "must give a TensorType"),
        ({"compute": lambda x: x[0]}, r"must give a tensor of tc\.te"),
        ({"compute": _wrong_rank}, r"the tensor expression failed on .*IndexError"),
        ({"compute": lambda x, y: x}, "the operand y is required"),
        ({"compute": lambda x: x[0] + 1.0}, r"must give a tensor of tc\.te"),
        ({"compute": lambda x: te.compute(x.shape, lambda i: x[x[i]], "w")}, r"the index x0\[i\] is of f32, must be an integer"),
        ({"compute": lambda: None}, "takes 0 operands, found 1"),
        ({"infer": lambda x: x.shape[3], "reference": lambda x: x}, r"the type rule failed on .*IndexError"),
    ],
)
def test_definitions_that_do_not_fit_are_refused_when_they_are_used(arguments: dict[str, Any], words: str) -> None:
    tc.op("test.dom::Wrong", **arguments)

    with pytest.raises(ShapeError, match=rf"test\.dom::Wrong: .*{words}"):
        graph(("x", tensor_type((4,), f32)), make=lambda b, p: b.call("test.dom::Wrong", p))


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("Plain", {"compute": swish}, "not the name of an operator"),
        ("::Name", {"compute": swish}, "not the name of an operator"),
        ("a b::Name", {"compute": swish}, "not the name of an operator"),
        ("dom::two words", {"compute": swish}, "not the name of an operator"),
        ("ai.onnx::Relu", {"compute": swish}, "ONNX's own"),
        ("d::X", {"infer": lambda x: x}, "a tensor expression, or a type rule and a reference"),
        ("d::X", {"compute": lambda x, k=3: x}, "neither an operand"),
        ("d::X", {"compute": lambda x, **rest: x}, "named one by one"),
        ("d::X", {"compute": lambda x, *, span=1: x}, "no attribute can be called 'span'"),
        ("d::X", {"compute": lambda x, *, a=int: x}, "is a type, must be a number"),
        ("d::X", {"compute": swish, "infer": lambda x: x}, "type rule does not take what the operator takes"),
        ("d::X", {"compute": swish, "reference": lambda x, y, beta: x}, "reference does not take what the operator takes"),
    ],
)
def test_definitions_that_are_none_are_refused_at_once(name: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        tc.op(name, **arguments)
    assert name not in scoped_ops()


def test_the_elements_of_lists_are_like_those_of_the_default() -> None:
    def scaled(x: te.Tensor, *, by: Any = (1.0,), words: Any = ("u",), counts: Any = (1, 2)) -> te.Tensor:
        return te.compute(x.shape, lambda i: x[i] * sum(by), "scaled")

    tc.op("test.dom::Listed", scaled)
    for attrs, said in (
        ({"by": ["one"]}, "attribute 'by': element 0 is 'one'"),
        ({"words": ["a", 1]}, "attribute 'words': element 1 is 1"),
        ({"counts": [1.5]}, "attribute 'counts': element 0 is 1.5"),
    ):
        with pytest.raises(ShapeError, match=rf"test\.dom::Listed: .*{said}"):
            graph(("x", tensor_type((4,), f32)), make=lambda b, p, attrs=attrs: b.call("test.dom::Listed", p, **attrs))

    module = compiled(("x", tensor_type((4,), f32)), make=lambda b, p: b.call("test.dom::Listed", p, by=[1, 2.5]))
    np.testing.assert_array_equal(np.asarray(module(np.ones(4, F32))), np.full(4, 3.5, F32))


@pytest.mark.parametrize(
    ("attrs", "words"),
    [({"beta": "high"}, "attribute 'beta' is 'high'"), ({"gamma": 1}, "no attribute 'gamma'"), ({"beta": [1.0]}, "attribute 'beta' is")],
)
def test_attributes_that_do_not_fit_are_refused(attrs: dict[str, Any], words: str) -> None:
    tc.op("test.dom::Swish", swish)

    with pytest.raises(ShapeError, match=rf"test\.dom::Swish: .*{words}"):
        graph(("x", tensor_type((4,), f32)), make=lambda b, p: b.call("test.dom::Swish", p, **attrs))


def test_a_name_is_registered_once() -> None:
    tc.op("test.dom::Swish", swish)

    with pytest.raises(UserError, match=r"test\.dom::Swish: an operator of this name is registered already"):
        tc.op("test.dom::Swish", swish)
    tc.remove_op("test.dom::Swish")
    with pytest.raises(UserError, match=r"test\.dom::Swish: no operator of this name"):
        tc.remove_op("test.dom::Swish")
    with pytest.raises(UnsupportedError, match=r"test\.dom::Swish"):
        graph(("x", tensor_type((4,), f32)), make=lambda b, p: b.call("test.dom::Swish", p))


def test_many_threads_register_and_compile() -> None:
    wrong: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for turn in range(20):
                tc.op(f"test.dom::T{k}_{turn}", lambda x: te.compute(x.shape, lambda *i: x[i] + 1.0, "t"))
            module = compiled(("x", tensor_type((4,), f32)), make=lambda b, p: b.call(f"test.dom::T{k}_3", p))
            assert np.asarray(module(np.zeros(4, F32))).tolist() == [1] * 4
            for turn in range(20):
                tc.remove_op(f"test.dom::T{k}_{turn}")
        except BaseException as error:  # an assertion in a thread is seen by nobody
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong
    assert not [name for name in scoped_ops() if name.startswith("test.dom::T")]


# -- in ONNX files


def onnx_model(**attributes: Any) -> onnx.ModelProto:
    nodes = [
        node("Relu", "x", "r"),
        node("Swish", "r", "s", domain="test.dom", **attributes),
        node("Neg", "s", "y"),
    ]
    return make_model(nodes, {"x": (F32, ["n", 5])}, ["y"], domains=[("test.dom", 1)])


def test_a_node_of_its_domain_is_the_operator() -> None:
    tc.op("test.dom::Swish", swish)
    module = tc.compile(onnx_model(beta=0.5), threads=1)

    assert len(rules(module)) == 1
    for n in (0, 1, 6):
        x = np.random.default_rng(n).standard_normal((n, 5)).astype(F32)
        np.testing.assert_allclose(np.asarray(module(x)).reshape(n, 5), -swish_in_numpy(np.maximum(x, 0), beta=0.5), rtol=1e-5, atol=1e-6)
    assert [report.status for report in tc.inspect(onnx_model()).nodes] == ["native"] * 3


def test_a_domain_that_nobody_registered_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="Swish"):
        tc.compile(onnx_model(), threads=1)


def test_attributes_and_absent_inputs_of_a_node() -> None:
    seen: list[tuple[Any, ...]] = []

    def picky(x: te.Tensor, y: Any = None, z: Any = None, *, n: int, s: str = "", v: Any = (), w: Any = ()) -> te.Tensor:
        seen.append((y is None, z is None, n, s, v, w))
        other = z if y is None else y
        return x if other is None else te.compute(x.shape, lambda *i: x[i] + other[i], "picky")

    tc.op("test.dom::Picky", picky)
    nodes = [node("Picky", "x - x", "y", domain="test.dom", n=3, s="text", v=[1, 2], w=["a", "b"])]
    module = tc.compile(make_model(nodes, {"x": (F32, [4])}, ["y"], domains=[("test.dom", 1)]), threads=1)

    assert np.asarray(module(np.ones(4, F32))).tolist() == [2] * 4
    assert set(seen) == {(True, False, 3, "text", (1, 2), ("a", "b"))}


def test_what_a_node_gets_wrong_is_said() -> None:
    tc.op("test.dom::Swish", swish)

    with pytest.raises(ShapeError, match=r"the_s: test\.dom::Swish: no attribute 'gamma'"):
        tc.compile(onnx_model(gamma=1.0), threads=1)
    with pytest.raises(ModelError, match="the attribute 'beta' is a tensor or a graph"):
        tc.compile(onnx_model(beta=helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0])), threads=1)


def test_a_registered_operator_goes_before_a_function_of_the_file() -> None:
    body = helper.make_function("test.dom", "Swish", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 17)])
    model = make_model([node("Swish", "x", "y", domain="test.dom")], {"x": (F32, [3])}, ["y"], functions=[body], domains=[("test.dom", 1)])
    x = np.ones(3, F32)
    assert np.asarray(tc.compile(model, threads=1)(x)).tolist() == [-1] * 3

    tc.op("test.dom::Swish", swish)

    np.testing.assert_allclose(np.asarray(tc.compile(model, threads=1)(x)), swish_in_numpy(x), rtol=1e-6)


def test_another_definition_of_the_same_name_is_another_module(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(onnx_model().SerializeToString())
    x = np.ones((1, 5), F32)
    tc.op("test.dom::Swish", lambda x: te.compute(x.shape, lambda *i: x[i] * 2.0, "two"))
    first = tc.compile(tmp_path / "m.onnx", threads=1)
    tc.remove_op("test.dom::Swish")
    tc.op("test.dom::Swish", lambda x: te.compute(x.shape, lambda *i: x[i] * 3.0, "three"))
    second = tc.compile(tmp_path / "m.onnx", threads=1)

    assert np.asarray(first(x)).tolist() == [[-2] * 5]
    assert np.asarray(second(x)).tolist() == [[-3] * 5]


PROCESS = """
import sys
import numpy as np
import tc
from tc import te

tc.op("test.dom::Swish", lambda x: te.compute(x.shape, lambda *i: x[i] * float(sys.argv[2]), "times"))
print(np.asarray(tc.compile(sys.argv[1], threads=1)(np.ones((1, 5), np.float32)))[0, 0])
"""


def test_processes_that_define_a_name_differently_share_no_module(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(onnx_model().SerializeToString())
    environment = {**os.environ, "TC_CACHE_DIR": str(tmp_path / "cache")}

    for factor in ("2.0", "3.0", "2.0"):
        command = [sys.executable, "-c", PROCESS, str(tmp_path / "m.onnx"), factor]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert float(done.stdout) == -float(factor)


def test_another_process_imports_the_function_that_a_file_names(tmp_path: Path) -> None:
    tc.op("test.dom::Total", infer=same_type, reference=running_total)
    module = compiled(("x", tensor_type((1, 3), f32)), make=lambda b, p: b.call("test.dom::Total", p, start=2.0))
    module.save(tmp_path / "m.tcm")
    script = "import sys, numpy, tc; print(tc.load(sys.argv[1])(numpy.ones((1, 3), numpy.float32)).tolist())"
    command = [sys.executable, "-c", script, str(tmp_path / "m.tcm")]

    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    (tmp_path / "tc").symlink_to(Path(tc.__file__).parent)  # a process that finds tc, and not these tests
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    alone = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.stdout.strip() == "[[3.0, 4.0, 5.0]]"
    assert "UnsupportedError: the module calls the Python function tests.frontend.users_functions:running_total" in alone.stderr


def test_modules_of_other_domains_are_cached_as_before(tmp_path: Path) -> None:
    tc.op("another.dom::Swish", swish)
    model = make_model([node("Neg", "x", "y")], {"x": (F32, [3])}, ["y"])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())

    first = tc.compile(tmp_path / "m.onnx", threads=1, dims={})
    second = tc.compile(tmp_path / "m.onnx", threads=1)

    assert "load from cache" not in dict(first.report().seconds)
    assert "load from cache" in dict(second.report().seconds)


# -- in Python


def same_type(x: TensorType, **_: Any) -> TensorType:
    return x


def test_an_operator_without_loops_runs_in_python(tmp_path: Path) -> None:
    tc.op("test.dom::Total", infer=same_type, reference=running_total)
    module = compiled(
        ("x", TensorType((Var("n"), const(5)), f32)),
        make=lambda b, p: b.call("neg", b.call("test.dom::Total", b.call("relu", p), start=2.0)),
    )
    tc.remove_op("test.dom::Total")  # the module has what it was compiled with

    module.save(tmp_path / "m.tcm")
    for each in (module, tc.load(tmp_path / "m.tcm")):
        for n in (0, 1, 4):
            x = np.random.default_rng(n).standard_normal((n, 5)).astype(F32)
            expected = -(np.cumsum(np.maximum(x, 0), -1, dtype=F32) + F32(2))
            np.testing.assert_allclose(np.asarray(each(x)).reshape(n, 5), expected, rtol=1e-6)
    assert len(module.report().fallbacks) == 1


def test_a_function_that_no_file_can_name_is_not_saved(tmp_path: Path) -> None:
    tc.op("test.dom::Local", infer=same_type, reference=lambda x: x * 2)
    module = compiled(("x", tensor_type((3,), f32)), make=lambda b, p: b.call("test.dom::Local", p))

    assert np.asarray(module(np.ones(3, F32))).tolist() == [2] * 3
    with pytest.raises(UserError, match=r"test\.dom::Local runs a Python function that a file cannot name"):
        module.save(tmp_path / "m.tcm")
    assert not list(tmp_path.iterdir())


def test_native_operators_are_saved_and_need_no_registration(tmp_path: Path) -> None:
    tc.op("test.dom::Swish", swish)
    compiled(("x", tensor_type((3,), f32)), make=lambda b, p: b.call("test.dom::Swish", p)).save(tmp_path / "m.tcm")
    tc.remove_op("test.dom::Swish")

    x = np.ones(3, F32)
    np.testing.assert_allclose(np.asarray(tc.load(tmp_path / "m.tcm")(x)), swish_in_numpy(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x.astype(np.float64), r"the reference gives float64\[3\], must give f32\[3\]"),
        (lambda x: x[1:], r"the reference gives float32\[2\], must give f32\[3\]"),
        (lambda x: (x, x), r"must give f32\[3\]"),
        (lambda x: x.no_such, r"the reference failed on .*AttributeError"),
    ],
)
def test_what_python_returns_is_looked_at(function: Callable[..., Any], words: str) -> None:
    tc.op("test.dom::Wrong", infer=same_type, reference=function)
    module = compiled(("x", tensor_type((3,), f32)), make=lambda b, p: b.call("test.dom::Wrong", p))

    with pytest.raises(TcError, match=rf"test\.dom::Wrong: .*{words}"):
        module(np.ones(3, F32))


@pytest.mark.parametrize("negatives", [0, 1, 5, 3000])
def test_results_that_share_a_size_that_python_finds_have_it(negatives: int) -> None:
    """Broke: the first took the size of the second, and was read behind its end."""
    size = Var("m", i64)
    tc.op("test.dom::Signs", infer=lambda x: (tensor_type((size,), x.dtype),) * 2, reference=lambda x: (x[x > 0], x[x < 0]))
    nodes = [
        helper.make_node("Signs", ["x"], ["p", "q"], domain="test.dom"),
        helper.make_node("Neg", ["p"], ["a"]),
        helper.make_node("Neg", ["q"], ["b"]),
    ]
    model = make_model(nodes, {"x": (np.float32, ["n"])}, ["a", "b"])
    model.opset_import.append(helper.make_opsetid("test.dom", 1))
    module = tc.compile(model, threads=1)

    x = np.repeat(np.array([1, -1], F32), [3, negatives])
    with pytest.raises(TcError, match=rf"a reference kernel returned shape \({negatives},\), expected \(3,\)"):
        module(x)
    first, second = module(np.array([2, -3, 5, -7], F32))
    np.testing.assert_array_equal(first, [-2, -5])
    np.testing.assert_array_equal(second, [3, 7])


@pytest.mark.parametrize("is_last", [False, True])
def test_a_size_that_python_finds_may_stand_behind_what_follows_from_it(is_last: bool) -> None:
    """Broke: results were checked one by one, before the one that says the size."""
    size, turn = Var("m", i64), slice(None, None, -1 if is_last else 1)
    tc.op(
        "test.dom::Padded",
        infer=lambda x: (tensor_type((size,), x.dtype), tensor_type((size + 1,), x.dtype))[turn],
        reference=lambda x: (x[x > 0], np.append(x[x > 0], F32(0)))[turn],
    )
    nodes = [helper.make_node("Padded", ["x"], ["p", "q"], domain="test.dom"), helper.make_node("Concat", ["p", "q"], ["z"], axis=0)]
    model = make_model(nodes, {"x": (np.float32, ["n"])}, ["z"])
    model.opset_import.append(helper.make_opsetid("test.dom", 1))
    module = tc.compile(model, threads=1)

    for x in ([1, -2, 3], [], [-1], [4] * 40):
        kept = np.array([value for value in x if value > 0], F32)
        expected = [kept, np.append(kept, F32(0))][turn]
        np.testing.assert_array_equal(module(np.array(x, F32)), np.concatenate(expected))


def test_a_size_that_python_finds_is_another_one_in_each_call() -> None:
    """Broke: the second call of an operator had to find what the first did, where the rule gave both the same dim."""
    size = Var("m", i64)
    tc.op("test.dom::Positive", infer=lambda x: tensor_type((size,), x.dtype), reference=lambda x: x[x > 0])
    nodes = [
        helper.make_node("Positive", ["x"], ["p"], domain="test.dom"),
        helper.make_node("Positive", ["y"], ["q"], domain="test.dom"),
        helper.make_node("Positive", ["p"], ["r"], domain="test.dom"),
        helper.make_node("Concat", ["p", "q", "r"], ["z"], axis=0),
    ]
    model = make_model(nodes, {"x": (np.float32, ["m"]), "y": (np.float32, ["k"])}, ["z"])
    model.opset_import.append(helper.make_opsetid("test.dom", 1))

    result = tc.compile(model, threads=1)(np.array([1, -2, 3], F32), np.array([-1, 4, 5, 6], F32))

    np.testing.assert_array_equal(result, [1, 3, 4, 5, 6, 1, 3])


def test_python_is_refused_where_it_is_not_wanted() -> None:
    tc.op("test.dom::Swish", infer=lambda x, beta: x, reference=swish_in_numpy)

    assert [report.status for report in tc.inspect(onnx_model()).nodes] == ["native", "fallback", "native"]
    with pytest.raises(UnsupportedError, match=r"test\.dom::Swish has no tensor expression"):
        tc.compile(onnx_model(), threads=1, on_unsupported="error")


# Broke: asserts said so, which `python -O` leaves out; LLVM refused what came of it, or a number of another meaning did.
@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (lambda x: te.compute(x.shape, lambda i, j: x[i, j] + j, "s"), "operands of different dtypes: f32 and i64"),
        (lambda x: te.compute(x.shape, lambda i, j: x[i], "s"), "indexed with 1 indices"),
        (lambda x: te.compute(x.shape, lambda i, j: te.call("pow", x[i, j]), "s"), "no intrinsic pow with 1 arguments"),
        (lambda x: te.compute(x.shape, lambda i, j: 1.5, "s"), "an element is a float, must be an expression"),
        (lambda x: te.compute((3.0,), lambda i: x[i, 0], "s"), r"a dim is f64\(3.0\), of f64, must be an integer"),
        (lambda x: te.compute((True,), lambda i: x[i, 0], "s"), "a dim is True, of bool, must be an integer"),
        (lambda x: te.compute(x.shape, lambda i, j: te.placeholder((9, 9), f32, "z")[i, j], "s"), "z is no operand"),
        (lambda x: te.placeholder((9, 9), f32, "z"), "z is no operand"),
        (lambda x: te.compute((Var("k", i64),), lambda i: x[i, 0], "s"), "s depends on k, neither an axis"),
        (lambda x: te.compute(x.shape, lambda i, j: x[i, j] * cast(Var("k", i64), f32), "s"), "s depends on k, neither an axis"),
        (lambda x: te.compute(x.shape, lambda i, j: cast(te.call("exp", i), f32), "s"), "exp is of floats, not of i64"),
        (lambda x: te.reduce("all", x.shape[:1], x.shape[1:], lambda i, k: x[i, k], "s"), "all is of bools, not of f32"),
        (lambda x: te.reduce("avg", x.shape[:1], x.shape[1:], lambda i, k: x[i, k], "s"), "s: no reduction 'avg'; there are: sum, "),
        (lambda x: te.compute(x.shape, lambda i, j: x[i, j] if x[i, j] > 0 else -x[i, j], "s"), r"choose by select\(\)"),
    ],
)
def test_mistakes_in_tensor_expressions_are_said(compute: Any, words: str) -> None:
    tc.op("mistakes.dom::Mistake", compute)
    model = make_model([helper.make_node("Mistake", ["x"], ["y"], domain="mistakes.dom")], {"x": (np.float32, ["n", 4])}, ["y"])
    model.opset_import.append(helper.make_opsetid("mistakes.dom", 1))
    with pytest.raises(ShapeError, match=words):
        tc.compile(model)


@pytest.mark.parametrize("domain", ["ai.onnx", "ai.onnx.ml", "ai.onnx.training"])
def test_operators_of_onnx_stay_as_they_are(domain: str) -> None:
    with pytest.raises(UserError, match="is ONNX's own"):
        tc.op(f"{domain}::Scaler", lambda x: x)
